//! Results of a benchmark for people: the whole of them as a document, and a screen of them.
//!
//! * `cells`: runs by test and level, summed up once for everything else.
//! * `speed`: bars and numbers of what was looked at first.
//! * `latency`: percentiles, as numbers and as curves.
//! * `course`: timed runs over their time.
//! * `findings`: what a reader must know first: warnings, trends, steady state, runs apart.
//! * `facts`: what the data saved, what the device counted, what it was measured on.
//!
//! Says nothing that `stats` does not allow, drops no run, and knows no format of files: printing
//! is `pumice_report`'s. The same results give the same document.

mod cells;
mod facts;
mod findings;
mod latency;
mod speed;
#[cfg(test)]
mod tests;
mod timeline;

use crate::bench::compare::compare;
use crate::bench::results::{Results, names};
use crate::workload::Unit;
use pumice_report::{Block, Document, Section, Table};

pub use speed::table;

use cells::Cells;

/// How the others of `all` compare with the first, and all that is known of them, one by one.
///
/// Sections of several results begin with the result's name.
pub fn document(all: &[Results]) -> Document {
    let names = names(all);
    let (title, lead) = match all {
        [one] => (one.header.title.clone(), one.header.about.clone()),
        _ => (names.join(" · "), format!("{} results, each on its own and compared.", all.len())),
    };
    let mut document = Document::new(title, lead);
    if let [base, others @ ..] = all
        && !others.is_empty()
    {
        match compare(base, others) {
            Ok(comparison) => document.sections.extend(comparison.document().sections),
            Err(error) => {
                let why = format!("These results are not compared: {}.", error.chain());
                document.section("Comparison").note(why);
            }
        }
    }
    for (results, name) in all.iter().zip(&names) {
        let prefix = if all.len() > 1 { format!("{name}: ") } else { String::new() };
        for section in sections(results) {
            document.section(format!("{prefix}{}", section.heading)).blocks = section.blocks;
        }
    }
    document
}

/// What fits a screen: a table for each unit, tests by levels, and what must be known to read it.
pub fn summary(results: &Results) -> Document {
    let cells = Cells::new(results);
    let mut document = Document::new(results.header.title.clone(), String::new());
    for unit in [Unit::Throughput, Unit::Rate] {
        if let Some(table) = speed::matrix(&cells, unit) {
            document.section(speed::heading(unit)).block(table);
        }
    }
    let warnings = findings::section(&cells);
    if !warnings.blocks.is_empty() {
        document.section(warnings.heading).blocks = warnings.blocks;
    }
    document
}

/// The sections of one result that say anything.
fn sections(results: &Results) -> Vec<Section> {
    let cells = Cells::new(results);
    let mut sections = vec![findings::section(&cells)];
    sections.extend([Unit::Throughput, Unit::Rate].map(|unit| speed::section(&cells, unit)));
    sections.extend([
        latency::section(&cells),
        timeline::section(&cells),
        facts::payloads(&cells),
        facts::device(&cells),
        facts::environment(&cells),
    ]);
    sections.retain(|section| !section.blocks.is_empty());
    sections
}

/// A section without blocks yet.
fn section(heading: &str) -> Section {
    Section { heading: heading.to_owned(), blocks: Vec::new() }
}

/// A table, if it has any row.
fn filled(table: Table) -> Option<Block> {
    (!table.rows().is_empty()).then(|| table.into())
}
