//! The progress of a benchmark on stderr, and its summary on stdout.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use super::super::output::columns;
use super::super::{print, print_schema, print_schemas};
use super::{describe, dry};
use pumice_bench::compare::compare;
use pumice_bench::results::{Header, LevelFindings, Results, RunResult};
use pumice_bench::stats::VISIT_SPREAD;
use pumice_bench::target::Location;
use pumice_bench::workload::Plan;
use pumice_bench::{Activity, FileSink, Sink, Status, report};

/// Chunk size of the findings printed before the first run.
const PRINTED_CHUNK_BYTES: usize = 4 << 10;

/// Shows the progress of a benchmark and stores its runs in a file.
pub(super) struct Shown {
    /// The plan, once the benchmark has begun.
    plan: Option<Plan>,
    /// Names of the targets, if there are several.
    targets: Vec<String>,
    file: FileSink,
    bar: ProgressBar,
    kept: usize,
}

impl Shown {
    /// `kept`: runs that the file already contains.
    pub(super) fn new(file: FileSink, kept: usize) -> Self {
        let style = ProgressStyle::with_template("[{pos}/{len}, {eta} left] {wide_msg}");
        let bar = ProgressBar::no_length().with_style(style.expect("a constant template"));
        Self { plan: None, targets: Vec::new(), file, bar, kept }
    }

    /// Number of runs in the file; `None` if the benchmark has not begun.
    pub(super) fn kept(&self) -> Option<usize> {
        self.plan.is_some().then_some(self.kept)
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Sink for Shown {
    fn describe(&mut self, location: &Location) -> Vec<(String, String)> {
        describe::served(location)
    }

    fn begin(&mut self, headers: &[Header]) -> pumice_bench::Result<()> {
        self.file.begin(headers)?;
        if self.kept == 0 {
            payloads(&headers[0].payloads);
            // A closed stderr is harmless.
            let power = dry::power(&headers[0].plan, headers.len());
            let _ = writeln!(std::io::stderr(), "{power}");
        }
        self.plan = Some(headers[0].plan.clone());
        if headers.len() > 1 {
            self.targets = headers.iter().map(|header| format!("{}, ", header.name())).collect();
        }
        Ok(())
    }

    fn progress(&mut self, status: Status) {
        let Some(Plan { tests, levels, .. }) = &self.plan else { return };
        let (level, round) = (&levels[status.level].name, status.round + 1);
        let what = match status.activity {
            Activity::Purge => "purging".to_owned(),
            Activity::Precondition(pass) => format!("preconditioning, pass {}", pass + 1),
            Activity::Fill => "filling".to_owned(),
            Activity::Measure => tests[status.test].name.clone(),
        };
        self.bar.set_length(status.planned);
        self.bar.set_position(status.done);
        let target = self.targets.get(status.target).map_or("", String::as_str);
        self.bar.set_message(format!("{target}round {round}, {level}: {what}"));
    }

    fn keep(&mut self, target: usize, run: &RunResult) -> pumice_bench::Result<()> {
        self.file.keep(target, run)?;
        self.kept += 1;
        self.bar.inc(1);
        Ok(())
    }
}

/// Prints the measured compressibility of each level's data before the first run.
fn payloads(payloads: &[LevelFindings]) {
    let mut text = String::new();
    for LevelFindings { level, findings } in payloads {
        let at_4k = findings.iter().filter(|finding| finding.chunk_bytes == PRINTED_CHUNK_BYTES);
        let saved = at_4k.map(|finding| format!("{} {}", finding.codec, finding.saved));
        let saved: Vec<String> = saved.collect();
        text += &format!("data '{level}' in chunks of 4 KiB: {}\n", saved.join("; "));
    }
    // A closed stderr is harmless: the results file contains the findings too.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Prints the summary of a complete benchmark; if several targets took turns, also their
/// comparison.
pub(super) fn summary(all: &[Results], path: &Path, json: bool) -> Result<()> {
    let [first, others @ ..] = all else { return Ok(()) };
    let comparison =
        if others.is_empty() { None } else { Some(compare(first, others, VISIT_SPREAD)?) };
    if json {
        return match comparison {
            None => print_schemas("bench-1", &first.cells()),
            Some(comparison) => print_schema("compare-1", &comparison),
        };
    }
    let mut text = String::new();
    match comparison {
        None => text += &report::summary(first).to_text_within(columns()),
        Some(comparison) => {
            text += &comparison.summary().to_text_within(columns());
            for results in all {
                text += &report::warnings(results).to_text_within(columns());
            }
        }
    }
    print(&format!("{text}\nResults: {}\n", path.display()))
}
