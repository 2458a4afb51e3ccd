//! The last part of the demo: runs the bench preset `compressibility` on both drives, and writes
//! the page.
//!
//! The drives take turns, one round each: on a disk with other users, the results of long runs at
//! different times cannot be compared, and runs at the same time disturb each other.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;

use super::super::bench::unix_seconds;
use super::super::output;
use super::Side;
use pumice_bench::compare::{ComparedCell, Comparison, compare};
use pumice_bench::report::document;
use pumice_bench::results::{Header, RunResult};
use pumice_bench::runner::End;
use pumice_bench::stats::{VISIT_SPREAD, Verdict};
use pumice_bench::target::{Contender, Location};
use pumice_bench::workload::{Changes, Preset};
use pumice_bench::{Benchmark, Contest, Sink, Status};
use pumice_drive::base::units::format_size;
use pumice_nbd::client::Uri;
use pumice_report::{Align, Table};

const PRESET: &str = "compressibility";

/// Rounds: two more than the smallest number at which turns can be significant.
const ROUNDS: u32 = 8;

/// Span and duration of each test, chosen to keep the demo short.
const SPAN_BYTES: u64 = 256 << 20;
const SECONDS: f64 = 0.3;

/// Shows the progress.
struct Turns<'a> {
    bar: &'a ProgressBar,
    names: Vec<String>,
    tests: Vec<String>,
}

impl Sink for Turns<'_> {
    fn begin(&mut self, headers: &[Header]) -> pumice_bench::Result<()> {
        self.names = headers.iter().map(|header| header.name().to_owned()).collect();
        let tests = &headers[0].plan.tests;
        self.tests = tests.iter().map(|test| test.name.clone()).collect();
        Ok(())
    }

    fn progress(&mut self, status: Status) {
        let (name, test) = (&self.names[status.target], &self.tests[status.test]);
        self.bar.set_message(format!("{name}, round {} of {ROUNDS}: {test}", status.round + 1));
        self.bar.tick();
    }

    fn keep(&mut self, _target: usize, run: &RunResult) -> pumice_bench::Result<()> {
        self.bar.inc(run.sample.host_bytes);
        Ok(())
    }
}

/// Runs the preset on both drives in turns, writes the page, which begins with what the files
/// `took`, and compares the drive that compresses with the one that does not.
pub(super) fn measure(
    sides: &[Side; 2],
    interrupted: &AtomicBool,
    bar: &ProgressBar,
    page: &Path,
    took: &str,
) -> Result<Comparison> {
    let preset = Preset::load(PRESET)?;
    let changes = Changes {
        runs: Some(ROUNDS),
        seconds: Some(SECONDS),
        span_bytes: Some(SPAN_BYTES),
        ..Changes::default()
    };
    let benchmark = Benchmark {
        title: PRESET.into(),
        about: preset.about.clone(),
        plan: preset.plan(&changes)?,
        destroy: true,
        begun_unix_s: unix_seconds(),
    };
    let [with, without] = sides;
    let sides = [(without, "a drive without compression"), (with, "a drive with LZ4")];
    let targets = sides.map(|(side, label)| Contender {
        location: Location::Nbd(Uri::unix(&side.drive.socket, "")),
        label: label.into(),
    });
    bar.reset();
    let mut turns = Turns { bar, names: Vec::new(), tests: Vec::new() };
    let Contest { end, results } = benchmark.run_in_turns(&targets, interrupted, &mut turns)?;
    if end == End::Stopped {
        bail!("interrupted");
    }
    let comparison = compare(&results[0], &results[1..], VISIT_SPREAD)?;
    let mut document = document(&results);
    document.title = "A drive with compression, and the same drive without".into();
    document.lead = format!(
        "{took} {} Both drives were served by this machine from files on one disk, and took turns: \
         {ROUNDS} rounds of {SECONDS} s for each time-based test, over {}.",
        verdict(&comparison),
        format_size(SPAN_BYTES)
    );
    let html = document.to_html();
    std::fs::write(page, html).with_context(|| format!("cannot write {}", page.display()))?;
    Ok(comparison)
}

/// Returns in one sentence in how many cells the drive with LZ4 was faster or slower.
pub(super) fn verdict(comparison: &Comparison) -> String {
    let cells = &comparison.others[0].cells;
    let of = |verdict| {
        let is =
            move |cell: &&ComparedCell| cell.compared.is_some_and(|one| one.verdict == verdict);
        cells.iter().filter(is)
    };
    let (faster, slower) = (of(Verdict::Faster).count(), of(Verdict::Slower).count());
    let ratio = |cell: &&ComparedCell| cell.compared.map_or(0.0, |one| one.ratio);
    let most = of(Verdict::Faster).max_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let most = most.map_or(String::new(), |cell| {
        format!(", most of all '{}' of data '{}': {} times", cell.test, cell.level, cell.ratio())
    });
    format!(
        "With compression, {faster} of {} tests were faster, {slower} slower, and {} not \
         significantly different{most}.",
        cells.len(),
        cells.len() - faster - slower
    )
}

/// Returns the results as a table and a few sentences.
pub(super) fn text(comparison: &Comparison, page: &Path) -> String {
    let cells = &comparison.others[0].cells;
    let mut table = Table::new(&[
        ("test", Align::Left),
        ("data", Align::Left),
        ("none", Align::Right),
        ("lz4", Align::Right),
        ("unit", Align::Left),
        ("lz4 as a multiple of none", Align::Right),
        ("verdict", Align::Left),
    ]);
    for cell in cells {
        let mean = |summary: &Option<pumice_bench::stats::Summary>| {
            summary.as_ref().map_or_else(String::new, |summary| format!("{:.0}", summary.mean))
        };
        let unit = cell.unit.name().to_owned();
        let level = cell.level.clone();
        let (none, lz4) = (mean(&cell.base), mean(&cell.other));
        let verdict = cell.verdict("none");
        table.row(vec![cell.test.clone(), level, none, lz4, unit, cell.ratio(), verdict]);
    }
    format!(
        "Preset {PRESET}, {ROUNDS} rounds in turns, means, with 95 % intervals of the ratio:\n{}\n\
         All results: {}\n",
        output::table(&table),
        page.display(),
    )
}

#[cfg(test)]
mod tests {
    //! Goal: the headline says what the verdicts say, and no more.
    use super::*;
    use pumice_bench::compare::Against;
    use pumice_bench::stats::{Better, Design, Pair, compare};
    use pumice_bench::workload::Unit;

    #[test]
    fn the_headline_counts_verdicts() {
        let pair = |ratio: f64| {
            let base = [100.0, 101.0, 99.0, 102.0, 98.0, 100.5, 99.5, 100.0];
            Pair::of(&base, &base.map(|value| value * ratio))
        };
        let pairs = [1.5, 2.0, 0.8, 1.0].map(pair);
        let compared = compare(&pairs, Design::Turns, Better::Higher, 1, 1);
        let cell = |(level, compared): (&str, _)| ComparedCell {
            test: "write".into(),
            level: level.into(),
            unit: Unit::Throughput,
            base: None,
            other: None,
            compared,
        };
        let cells: Vec<_> = ["a", "b", "c", "d"].into_iter().zip(compared).map(cell).collect();
        let others = vec![Against {
            other: "lz4".into(),
            took_turns: true,
            design: Design::Turns,
            cells,
            environment: Vec::new(),
        }];
        let comparison = Comparison { base: "none".into(), others };
        let said = verdict(&comparison);
        let wanted = "2 of 4 tests were faster, 1 slower, and 1 not significantly different, most \
                      of all 'write' of data 'b': 2.00";
        assert!(said.contains(wanted), "{said}");
        let text = text(&comparison, Path::new("page.html"));
        assert!(text.contains("faster") && text.contains("page.html"), "{text}");
    }
}
