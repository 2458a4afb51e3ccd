//! Reports of a benchmark: a full document, and a summary for one screen.
//!
//! * `best`: the best of several runs in addition to the mean.
//! * `cells`: runs grouped by test and level, summarised once for all sections.
//! * `rounds`: the progress to steady state.
//! * `side_by_side`: bars of several results in one chart.
//! * `depth`: speed and latency over queue depth.
//! * `consistency`: single seconds and longest latencies.
//! * `speed`: bars and numbers for each unit.
//! * `score`: the score of AS SSD.
//! * `range`: rates and access times over the range of a target.
//! * `copies`: copies of files in seconds and MB/s.
//! * `latency`: percentiles, as numbers and as curves.
//! * `timeline`: time-based runs over their duration.
//! * `findings`: results that a reader must know first: warnings, trends, steady state, outliers.
//! * `facts`: savings of the data, counters of the device, and the environment.
//!
//! This module draws no conclusions beyond `stats`, omits no run, and is independent of file
//! formats: `pumice_report` does the printing. Equal results produce equal documents.

mod best;
mod cells;
mod consistency;
mod copies;
mod depth;
mod facts;
mod findings;
mod latency;
mod range;
mod rounds;
mod score;
mod side_by_side;
mod speed;
#[cfg(test)]
mod tests;
mod timeline;

use crate::bench::compare::{Comparison, compare};
use crate::bench::results::{Results, names};
use crate::stats::VISIT_SPREAD;
use crate::workload::Unit;
use pumice_report::{Block, Document, Section, Table};

pub use speed::table;

use cells::Cells;

/// Returns a document that compares all other results with the first, and then describes each
/// result.
///
/// With several results, section headings begin with the name of the result.
pub fn document(all: &[Results]) -> Document {
    let names = names(all);
    let (title, lead) = match all {
        [one] => (title(one), lead(one)),
        _ => (titles(all, &names), format!("{} results, individually and compared.", all.len())),
    };
    let mut document = Document::new(title, lead);
    if let [base, others @ ..] = all
        && !others.is_empty()
    {
        match compare(base, others, VISIT_SPREAD) {
            Ok(comparison) => {
                let compared = self::comparison(all, &comparison);
                document.sections.extend(compared.sections);
            }
            Err(error) => {
                let why = format!("These results cannot be compared: {}.", error.chain());
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

/// Returns a document that compares these results: charts that contain all of them, then tables.
pub fn comparison(all: &[Results], comparison: &Comparison) -> Document {
    let (names, mut document) = (names(all), comparison.document());
    let cells: Vec<Cells<'_>> = all.iter().map(Cells::new).collect();
    document.title = titles(all, &names);
    let front = [side_by_side::section(all, &names), depth::section(&cells, &names)];
    document.sections.splice(0..0, front);
    document.sections.push(consistency::section(&cells, &names));
    document.sections.retain(|section| !section.blocks.is_empty());
    document
}

/// Returns the preset and target of a result.
fn title(results: &Results) -> String {
    format!("{} on {}", results.header.title, results.header.name())
}

/// Returns the names of results that are shown together, and their preset if it is the same.
fn titles(all: &[Results], names: &[String]) -> String {
    let joined = names.join(" · ");
    let mut presets = all.iter().map(|results| results.header.title.as_str());
    let first = presets.next().unwrap_or_default();
    let is_same = presets.all(|preset| preset == first);
    if is_same && !joined.contains(first) { format!("{first}: {joined}") } else { joined }
}

/// Returns the subject of a preset, and the place and time of its run.
fn lead(results: &Results) -> String {
    let header = &results.header;
    let known = |names: &[&str]| -> Vec<&str> {
        names.iter().filter_map(|name| header.fact(name)).collect()
    };
    let details = known(&["distribution", "kernel", "device model"]).join(", ");
    let place = match (known(&["host", "simulated drive"]).first(), details.is_empty()) {
        (Some(place), true) => format!(" on {place}"),
        (Some(place), false) => format!(" on {place} ({details})"),
        (None, true) => String::new(),
        (None, false) => format!(" on {details}"),
    };
    let date = match header.begun_unix_s {
        0 => String::new(),
        seconds => format!(", {}", facts::utc(seconds)),
    };
    if place.is_empty() && date.is_empty() {
        return header.about.clone();
    }
    format!("{} Measured{place}{date}.", header.about).trim_start().to_owned()
}

/// Returns a summary for one screen: a table of tests by levels for each unit, then the findings.
pub fn summary(results: &Results) -> Document {
    let cells = Cells::new(results);
    let mut document = Document::new(title(results), lead(results));
    for unit in Unit::ALL {
        if let Some(table) = speed::matrix(&cells, unit) {
            document.section(speed::heading(unit)).block(table);
        }
    }
    let best = best::section(&cells);
    if !best.blocks.is_empty() {
        document.section(best.heading).blocks = best.blocks;
    }
    let more = [score::table(&cells), range::table(&cells), copies::table(&cells)];
    for (heading, table) in ["AS SSD score", "Over the range", "Copies of files"].iter().zip(more) {
        if let Some(table) = table {
            document.section(*heading).block(table);
        }
    }
    let warnings = findings::section(&cells);
    if !warnings.blocks.is_empty() {
        document.section(warnings.heading).blocks = warnings.blocks;
    }
    document
}

/// Returns the facts that a reader must know before trusting a result; the document has no sections
/// if there are none.
pub fn warnings(results: &Results) -> Document {
    let mut document = Document::default();
    let found = findings::section(&Cells::new(results));
    if !found.blocks.is_empty() {
        let heading = format!("{}: {}", results.header.name(), found.heading);
        document.section(heading).blocks = found.blocks;
    }
    document
}

/// Returns the sections of one result that are not empty.
fn sections(results: &Results) -> Vec<Section> {
    let cells = Cells::new(results);
    let name = results.header.name().to_owned();
    let mut sections = vec![findings::section(&cells)];
    sections.push(score::section(&cells));
    sections.extend(Unit::ALL.map(|unit| speed::section(&cells, unit)));
    sections.push(best::section(&cells));
    sections.extend([
        depth::section(std::slice::from_ref(&cells), std::slice::from_ref(&name)),
        range::section(&cells),
        copies::section(&cells),
        rounds::section(&cells),
        latency::section(&cells),
        timeline::section(&cells),
        consistency::section(std::slice::from_ref(&cells), std::slice::from_ref(&name)),
        facts::payloads(&cells),
        facts::device(&cells),
        facts::machine(&cells),
        facts::environment(&cells),
    ]);
    sections.retain(|section| !section.blocks.is_empty());
    sections
}

/// Returns a section without blocks.
fn section(heading: &str) -> Section {
    Section { heading: heading.to_owned(), blocks: Vec::new() }
}

/// Returns a table, if it has any row.
fn filled(table: Table) -> Option<Block> {
    (!table.rows().is_empty()).then(|| table.into())
}
