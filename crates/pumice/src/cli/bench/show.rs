//! The progress of a benchmark on stderr, and its summary on stdout.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use super::super::{print, print_json};
use pumice_bench::plan::Plan;
use pumice_bench::results::{LevelFindings, Results, RunResult, Writer};
use pumice_bench::runner::{Doing, Step, Watch};

/// Chunk size of the findings that are printed before the first run.
const SHOWN_CHUNK_BYTES: usize = 4 << 10;

/// Shows the progress of a benchmark and stores its runs.
pub(super) struct Shown<'a> {
    plan: &'a Plan,
    writer: Writer,
    bar: ProgressBar,
    kept: usize,
}

impl<'a> Shown<'a> {
    pub(super) fn new(plan: &'a Plan, writer: Writer) -> Self {
        let style = ProgressStyle::with_template("{msg} [{pos}/{len}, {eta} left]");
        let bar = ProgressBar::no_length().with_style(style.expect("a constant template"));
        Self { plan, writer, bar, kept: 0 }
    }

    /// Returns the number of runs that were stored.
    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Watch for Shown<'_> {
    fn begins(&mut self, step: Step) {
        let Plan { tests, levels, .. } = self.plan;
        let (level, round) = (&levels[step.level].name, step.round + 1);
        let what = match step.doing {
            Doing::Precondition(pass) => format!("preconditioning, pass {}", pass + 1),
            Doing::Fill => "filling".to_owned(),
            Doing::Run => tests[step.test].name.clone(),
        };
        self.bar.set_length(step.planned);
        self.bar.set_position(step.done);
        self.bar.set_message(format!("round {round}, {level}: {what}"));
    }

    fn keep(&mut self, run: &RunResult) -> pumice_drive::base::Result<()> {
        self.writer.append(run)?;
        self.kept += 1;
        self.bar.inc(1);
        Ok(())
    }
}

/// Prints how compressible the data of each level is, before the first measurement.
pub(super) fn payloads(payloads: &[LevelFindings]) {
    let mut text = String::new();
    for LevelFindings { level, findings } in payloads {
        let at_4k = findings.iter().filter(|finding| finding.chunk_bytes == SHOWN_CHUNK_BYTES);
        let saved = at_4k.map(|finding| format!("{} {}", finding.codec, finding.saved));
        let saved: Vec<String> = saved.collect();
        text += &format!("data '{level}' in chunks of 4 KiB: {}\n", saved.join("; "));
    }
    // A closed stderr is not an error: the result file contains the findings, too.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Prints the summary.
pub(super) fn summary(results: &Results, path: &Path, json: bool) -> Result<()> {
    if json {
        print_json(&results.cells())?;
    } else {
        let text = pumice_bench::report::summary(results).to_text();
        print(&format!("{text}\nResults: {}\n", path.display()))?;
    }
    Ok(())
}
