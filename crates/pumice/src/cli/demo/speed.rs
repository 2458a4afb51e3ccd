//! Writes of data of several compressibilities, on both drives in turns.
//!
//! The drives take turns, one run each: a change on the machine then affects both alike.

use std::iter::repeat_n;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use schemars::JsonSchema;
use serde::Serialize;

use crate::environment::unix_seconds;
use pumice_bench::compare::{ComparedCell, compare};
use pumice_bench::payload::{KindName, Saving, measure};
use pumice_bench::results::{Header, Results, RunResult};
use pumice_bench::runner::End;
use pumice_bench::stats::VISIT_SPREAD;
use pumice_bench::target::{Contender, Location};
use pumice_bench::workload::{Changes, Operation, Plan, Preset};
use pumice_bench::{Benchmark, Contest, Sink, Status};
use pumice_drive::codec::Codec;
use pumice_nbd::client::Uri;

/// Bytes of a run: a third of a second at the speed of the flash.
pub(super) const SPAN_BYTES: u64 = 32 << 20;

/// Bytes of a request, and requests in flight.
const RECORD_BYTES: u64 = 1 << 20;
const DEPTH: u32 = 4;

/// Savings of the generated data, in percent. The first and the last are those of the published
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
    /// Generated to save a given share.
    Made,
    /// Generated to resemble a database.
    Database,
    /// Real files.
    Files,
}

/// Returns the kinds of data, in the order of the plan's levels.
fn kinds() -> impl Iterator<Item = Kind> {
    repeat_n(Kind::Made, SAVINGS.len()).chain([Kind::Database, Kind::Files])
}

/// One kind of data on both drives.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct Cell {
    /// Kind of the data.
    pub(super) kind: Kind,
    /// Saving of LZ4 on the data in frames of 32 KiB, in percent.
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
    headers: Vec<Header>,
}

impl Sink for Turns<'_> {
    fn begin(&mut self, headers: &[Header]) -> pumice_bench::Result<()> {
        self.headers = headers.to_vec();
        Ok(())
    }

    fn progress(&mut self, status: Status) {
        let header = &self.headers[status.target];
        let (round, rounds) = (status.round + 1, header.plan.runs);
        let (name, level) = (header.name(), &header.plan.levels[status.level].name);
        self.bar.set_message(format!("{name}, round {round} of {rounds}: {level}"));
        self.bar.tick();
    }

    fn keep(&mut self, _target: usize, run: &RunResult) -> pumice_bench::Result<()> {
        self.bar.inc(run.sample.host_bytes);
        Ok(())
    }
}

/// Writes every kind of data to both drives in turns, the one that compresses and the other.
/// `sample` is the file of the real data, taken from `real`; `folder` holds files that the
/// benchmark reads.
pub(super) fn run(
    [with, without]: [Uri; 2],
    folder: &Path,
    (sample, real): (&Path, &Path),
    rounds: u32,
    interrupted: &AtomicBool,
    bar: &ProgressBar,
) -> Result<Measured> {
    let profile = folder.join("postgresql.json");
    std::fs::write(&profile, POSTGRESQL).context("cannot write to the temporary folder")?;
    let plan = plan(&profile, sample, real, rounds)?;
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
    let targets = [(without, "no compression"), (with, "LZ4")]
        .map(|(uri, label)| Contender { location: Location::Nbd(uri), label: label.into() });
    bar.reset();
    let mut turns = Turns { bar, headers: Vec::new() };
    let Contest { end, results } = benchmark.run_in_turns(&targets, interrupted, &mut turns)?;
    if end == End::Stopped {
        bail!("interrupted");
    }
    let comparison = compare(&results[0], &results[1..], VISIT_SPREAD)?;
    let against = comparison.others.into_iter().next().context("two drives were measured")?;
    let all = against.cells.into_iter().zip(kinds()).zip(savings);
    let mut cells: Vec<Cell> = all
        .map(|((compared, kind), saved_percent)| Cell { kind, saved_percent, compared })
        .collect();
    cells.sort_by(|a, b| b.saved_percent.total_cmp(&a.saved_percent));
    Ok(Measured { cells, results })
}

/// Returns the plan: the writes of a preset, with data of all [`kinds`].
fn plan(profile: &Path, sample: &Path, real: &Path, rounds: u32) -> Result<Plan> {
    let (profile, sample) = (profile.to_owned(), sample.to_owned());
    let changes = Changes {
        runs: Some(rounds),
        span_bytes: Some(SPAN_BYTES),
        depth: Some(DEPTH),
        records: vec![RECORD_BYTES],
        operations: vec![Operation::Write],
        saved: SAVINGS.map(|percent| Saving::from_fraction(percent / 100.0)).to_vec(),
        kinds: vec![KindName::Exact, KindName::Like(profile), KindName::Replay(sample)],
        ..Changes::default()
    };
    let mut plan = Preset::load("compressibility")?.plan(&changes)?;
    if let [.., database, files] = &mut plan.levels[..] {
        database.name = "like PostgreSQL".into();
        files.name = format!("files of {}", real.display());
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    //! Goal: the plan is valid, and its data has the properties that its names state.
    use super::*;

    #[test]
    fn the_data_matches_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let [profile, sample] = ["profile", "sample"].map(|name| folder.path().join(name));
        std::fs::write(&profile, POSTGRESQL).unwrap();
        std::fs::write(&sample, vec![7; 1 << 20]).unwrap();
        let plan = plan(&profile, &sample, Path::new("/usr"), 8).unwrap();
        assert_eq!(plan.tests.len(), 1);
        assert_eq!(plan.tests[0].name, "write, 1 MiB, depth 4");
        assert_eq!(plan.levels.len(), kinds().count());
        for (level, kind) in plan.levels.iter().zip(kinds()) {
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
