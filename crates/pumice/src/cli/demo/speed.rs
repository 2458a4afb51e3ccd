//! Writes of data of several compressibilities, on both drives in turns.
//!
//! The drives take turns, one run each: a change on the machine then affects both alike.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use schemars::JsonSchema;
use serde::Serialize;

use super::drive::Side;
use crate::environment::unix_seconds;
use pumice_bench::compare::{ComparedCell, compare};
use pumice_bench::payload::measure;
use pumice_bench::results::{Header, Results, RunResult};
use pumice_bench::runner::End;
use pumice_bench::stats::VISIT_SPREAD;
use pumice_bench::target::{Contender, Location};
use pumice_bench::workload::{
    Cache, Ends, Flush, Level, Operation, Order, Pattern, Plan, Test, Unit, Workload,
};
use pumice_bench::{Benchmark, Contest, Sink, Status};
use pumice_drive::codec::Codec;
use pumice_nbd::client::Uri;

/// Bytes of a run: a third of a second at the speed of the flash.
pub(super) const SPAN_BYTES: u64 = 32 << 20;

/// Bytes of a request, and requests in flight.
const RECORD_BYTES: u64 = 1 << 20;
const DEPTH: u32 = 4;

/// Savings of the made data, in per cent. The first and the last are those of the published
/// results.
const SAVINGS: [f64; 5] = [98.0, 75.0, 50.0, 25.0, 2.0];

/// Bytes of a frame of the drive, and of the data whose saving is measured.
const FRAME_BYTES: usize = 32 << 10;
const MEASURED_BYTES: usize = 8 << 20;

/// A profile of the files of a PostgreSQL database, see [`POSTGRESQL_SOURCE`].
const POSTGRESQL: &str = include_str!("postgresql.json");

/// The source of the profile.
pub(super) const POSTGRESQL_SOURCE: &str = "made from the profile of a database of pgbench \
    (PostgreSQL 15, scale 10, 183 MiB after 40,000 transactions)";

/// Kinds of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// Made to save a share.
    Made,
    /// Made to be like a database.
    Database,
    /// Real files.
    Files,
}

/// One kind of data on both drives.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct Cell {
    /// Kind of the data.
    pub(super) kind: Kind,
    /// Saving of LZ4 on the data in frames of 32 KiB, in per cent.
    pub(super) saved_percent: f64,
    /// The drive without compression is the base.
    #[serde(flatten)]
    pub(super) compared: ComparedCell,
}

/// The results of all runs.
pub(super) struct Measured {
    pub(super) cells: Vec<Cell>,
    /// Results of the drive without compression and of the one with it.
    pub(super) results: Vec<Results>,
}

/// Shows the progress.
struct Turns<'a> {
    bar: &'a ProgressBar,
    rounds: u32,
    names: Vec<String>,
    levels: Vec<String>,
}

impl Sink for Turns<'_> {
    fn begin(&mut self, headers: &[Header]) -> pumice_bench::Result<()> {
        self.names = headers.iter().map(|header| header.name().to_owned()).collect();
        let levels = &headers[0].plan.levels;
        self.levels = levels.iter().map(|level| level.name.clone()).collect();
        Ok(())
    }

    fn progress(&mut self, status: Status) {
        let (name, level) = (&self.names[status.target], &self.levels[status.level]);
        self.bar.set_message(format!(
            "{name}, round {} of {}: {level}",
            status.round + 1,
            self.rounds
        ));
        self.bar.tick();
    }

    fn keep(&mut self, _target: usize, run: &RunResult) -> pumice_bench::Result<()> {
        self.bar.inc(run.sample.host_bytes);
        Ok(())
    }
}

/// Writes every kind of data to both drives in turns. `sample` is the file of the real data, taken
/// from `real`; `folder` holds files that the benchmark reads.
pub(super) fn run(
    sides: &[Side; 2],
    folder: &Path,
    (sample, real): (&Path, &Path),
    rounds: u32,
    interrupted: &AtomicBool,
    bar: &ProgressBar,
) -> Result<Measured> {
    let profile = folder.join("postgresql.json");
    std::fs::write(&profile, POSTGRESQL).context("cannot write to the temporary folder")?;
    let (plan, kinds) = plan(&profile, sample, real, rounds);
    let mut savings = Vec::new();
    for level in &plan.levels {
        let unit_bytes = level.unit_bytes(RECORD_BYTES);
        let mut data = vec![0; MEASURED_BYTES];
        // No run uses this stream.
        level.payload(plan.seed, unit_bytes)?.stream(u64::MAX).fill(&mut data);
        savings.push(measure(&data, Codec::Lz4, FRAME_BYTES).percent());
    }
    let benchmark = Benchmark {
        title: "demo".into(),
        about: "Sequential writes of data of several compressibilities.".into(),
        plan,
        destroy: true,
        begun_unix_s: unix_seconds(),
    };
    let [with, without] = sides;
    let sides = [(without, "no compression"), (with, "LZ4")];
    let targets = sides.map(|(side, label)| Contender {
        location: Location::Nbd(Uri::unix(&side.drive.socket, "")),
        label: label.into(),
    });
    bar.reset();
    let mut turns = Turns { bar, rounds, names: Vec::new(), levels: Vec::new() };
    let Contest { end, results } = benchmark.run_in_turns(&targets, interrupted, &mut turns)?;
    if end == End::Stopped {
        bail!("interrupted");
    }
    let comparison = compare(&results[0], &results[1..], VISIT_SPREAD)?;
    let against = comparison.others.into_iter().next().context("two drives were measured")?;
    let all = against.cells.into_iter().zip(kinds).zip(savings);
    let mut cells: Vec<Cell> = all
        .map(|((compared, kind), saved_percent)| Cell { kind, saved_percent, compared })
        .collect();
    cells.sort_by(|a, b| b.saved_percent.total_cmp(&a.saved_percent));
    Ok(Measured { cells, results })
}

/// Returns the plan, and the kind of data of each of its levels.
fn plan(profile: &Path, sample: &Path, real: &Path, rounds: u32) -> (Plan, Vec<Kind>) {
    let level = |name: String, kind: String, saved_percent| Level {
        name,
        kind,
        saved_percent,
        duplicates_percent: None,
    };
    let mut kinds = vec![Kind::Made; SAVINGS.len()];
    let made = |saved: f64| level(format!("{saved} % saved"), "exact".into(), Some(saved));
    let mut levels: Vec<Level> = SAVINGS.into_iter().map(made).collect();
    kinds.push(Kind::Database);
    levels.push(level("like PostgreSQL".into(), format!("like:{}", profile.display()), None));
    kinds.push(Kind::Files);
    let name = format!("files of {}", real.display());
    levels.push(level(name, format!("replay:{}", sample.display()), None));
    let workload = Workload {
        operation: Operation::Write,
        record_bytes: RECORD_BYTES,
        depth: DEPTH,
        threads: 1,
        span_bytes: SPAN_BYTES,
        shift_bytes: 0,
        pattern: Pattern::default(),
        reads_percent: 0,
        seconds: 1.0,
        flush: Flush::Timed,
        ends: Ends::Usual,
        mix: Vec::new(),
    };
    let test = Test { name: "write, 1 MiB, depth 4".into(), unit: Unit::Throughput, workload };
    let plan = Plan {
        tests: vec![test],
        levels,
        runs: rounds,
        runs_max: rounds,
        precision_percent: None,
        steady: None,
        purge: false,
        precondition: 0,
        fills: false,
        order: Order::Shuffled,
        direct: true,
        cache: Cache::Dropped,
        warm_up_seconds: 0.0,
        pause_seconds: 0.0,
        best_of: None,
        seed: 1,
    };
    (plan, kinds)
}

#[cfg(test)]
mod tests {
    //! Goal: the plan is valid, and its data has the properties that its names state.
    use super::*;

    #[test]
    fn the_data_is_what_it_is_called() {
        let folder = tempfile::tempdir().unwrap();
        let [profile, sample] = ["profile", "sample"].map(|name| folder.path().join(name));
        std::fs::write(&profile, POSTGRESQL).unwrap();
        std::fs::write(&sample, vec![7; 1 << 20]).unwrap();
        let (plan, kinds) = plan(&profile, &sample, Path::new("/usr"), 8);
        plan.check().unwrap();
        assert_eq!(plan.levels.len(), kinds.len());
        for (level, kind) in plan.levels.iter().zip(kinds) {
            let mut data = vec![0; MEASURED_BYTES];
            level.payload(1, 4096).unwrap().stream(0).fill(&mut data);
            let saved = measure(&data, Codec::Lz4, FRAME_BYTES).percent();
            let wanted = match kind {
                Kind::Made => {
                    level.saved_percent.unwrap() - 1.5..level.saved_percent.unwrap() + 1.5
                }
                Kind::Database => 75.0..90.0,
                Kind::Files => 99.0..100.0,
            };
            assert!(wanted.contains(&saved), "{}: {saved}", level.name);
        }
    }
}
