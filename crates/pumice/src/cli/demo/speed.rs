//! The last part of the demo: runs the bench preset `compressibility` on both drives, and writes
//! the page.
//!
//! The drives take turns, one round each: on a disk with other users, the results of long runs at
//! different times cannot be compared, and runs at the same time disturb each other.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;

use super::super::bench::unix_seconds;
use super::super::output;
use super::Side;
use pumice_bench::compare::{ComparedCell, Comparison, compare};
use pumice_bench::report::document;
use pumice_bench::results::{Header, Results, RunResult};
use pumice_bench::runner::carry_out;
use pumice_bench::target::Location;
use pumice_bench::workload::{Changes, Preset};
use pumice_bench::{Sink, Status};
use pumice_nbd::client::Uri;
use pumice_report::{Align, Table};

const PRESET: &str = "compressibility";

/// The smallest number of rounds at which differences can be significant.
const ROUNDS: u32 = 5;

/// Span and duration of each test, chosen to keep the demo short.
const SPAN_BYTES: u64 = 256 << 20;
const SECONDS: f64 = 0.3;

/// Stores the runs of one drive and shows the progress.
struct Turn<'a> {
    runs: &'a mut Vec<RunResult>,
    bar: &'a ProgressBar,
    name: String,
    tests: Vec<String>,
}

impl Sink for Turn<'_> {
    fn progress(&mut self, status: Status) {
        self.bar.set_message(format!("{}: {}", self.name, self.tests[status.test]));
        self.bar.tick();
    }

    fn keep(&mut self, run: &RunResult) -> pumice_bench::Result<()> {
        self.runs.push(run.clone());
        self.bar.inc(run.sample.host_bytes);
        Ok(())
    }
}

/// Runs the preset on both drives in turns, writes the page, and compares the drive that compresses
/// with the one that does not.
pub(super) fn measure(
    sides: &[Side; 2],
    interrupted: &AtomicBool,
    bar: &ProgressBar,
    page: &Path,
) -> Result<Comparison> {
    let preset = Preset::load(PRESET)?;
    let changes = Changes {
        runs: Some(ROUNDS),
        seconds: Some(SECONDS),
        span_bytes: Some(SPAN_BYTES),
        ..Changes::default()
    };
    let plan = preset.plan(&changes)?;
    let [with, without] = [&sides[0], &sides[1]].map(|side| {
        let location = Location::Nbd(Uri::unix(&side.drive.socket, ""));
        let begun = unix_seconds();
        let header = Header::new(PRESET, &preset.about, &location, plan.clone(), begun);
        header.map(|header| (location, Results { header, runs: Vec::new() }))
    });
    let mut all = [with?, without?];
    for round in 1..=ROUNDS {
        for ((location, results), side) in all.iter_mut().zip(sides) {
            let mut until = plan.clone();
            (until.runs, until.runs_max) = (round, round);
            let done = results.runs.clone();
            let mut turn = Turn {
                runs: &mut results.runs,
                bar,
                name: format!("{}, round {round} of {ROUNDS}", side.codec),
                tests: plan.tests.iter().map(|test| test.name.clone()).collect(),
            };
            bar.reset();
            carry_out(location, &until, done, interrupted, &mut turn)?;
            if interrupted.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
        }
    }
    let [mut with, mut without] = all.map(|(_, results)| results);
    with.header.target = "a drive with LZ4".into();
    without.header.target = "a drive without compression".into();
    let results = [without, with];
    let html = document(&results).to_html();
    std::fs::write(page, html).with_context(|| format!("cannot write {}", page.display()))?;
    Ok(compare(&results[0], &results[1..])?)
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
    ]);
    for cell in cells {
        let mean = |summary: &Option<pumice_bench::stats::Summary>| {
            summary.as_ref().map_or_else(String::new, |summary| format!("{:.0}", summary.mean))
        };
        let unit = cell.unit.name().to_owned();
        let level = cell.level.clone();
        let (none, lz4) = (mean(&cell.base), mean(&cell.other));
        table.row(vec![cell.test.clone(), level, none, lz4, unit, cell.ratio()]);
    }
    let first_test = &cells[0].test;
    let of_first: Vec<&ComparedCell> =
        cells.iter().filter(|cell| cell.test == *first_test).collect();
    let (most, least) = (of_first[0], of_first[of_first.len() - 1]);
    let interval = |cell: &ComparedCell| cell.compared.and_then(|one| one.ratio_interval);
    let verdict = match (interval(most), interval(least)) {
        (Some(most), Some(least)) if most.low > least.high => {
            "how much compression helps depends on the data"
        }
        _ => "in a run this short on this machine, the difference is not significant",
    };
    format!(
        "Preset {PRESET}, {ROUNDS} runs each, means, with 95 % intervals of the ratio:\n{}\n\
         The speed of '{first_test}', relative to that without compression, is {} with data \
         '{}' and {} with data '{}': {verdict}.\nAll results: {}\n",
        output::table(&table),
        most.ratio(),
        most.level,
        least.ratio(),
        least.level,
        page.display(),
    )
}

#[cfg(test)]
mod tests {
    //! Goal: the sentences about the data name the levels that were measured.
    use super::*;
    use pumice_bench::compare::Against;
    use pumice_bench::workload::Unit;

    #[test]
    fn the_levels_are_those_that_were_run() {
        let levels = ["80 % saved", "50 % saved", "random"];
        let cell = |level: &str| ComparedCell {
            test: "write".into(),
            level: level.into(),
            unit: Unit::Throughput,
            base: None,
            other: None,
            compared: None,
        };
        let cells = levels.map(cell).to_vec();
        let others = vec![Against { other: "lz4".into(), cells, environment: Vec::new() }];
        let text = text(&Comparison { base: "none".into(), others }, Path::new("page.html"));
        let (_, said) = text.split_once("relative to that").expect("a sentence");
        let [first, last] = ["'80 % saved'", "'random'"].map(|level| said.find(level));
        assert!(first.is_some() && first < last, "{said}");
        assert!(!said.contains("98 %") && !said.contains("50 %"), "{said}");
    }
}
