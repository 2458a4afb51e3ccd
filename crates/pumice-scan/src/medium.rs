//! The speed at which a Pumice drive would accept the data on a medium of a given speed.
//!
//! ```text
//! drive         = min(compression speed of one thread, medium / stored fraction)
//! uncompressed  = medium / stored fraction without compression
//! ```
//!
//! Speeds are in host bytes written sequentially, and include the overhead of the log. The speed of
//! the medium is either specified or measured with [`RUNS`] runs of the benchmark, direct and
//! flushed, each long enough to be timed precisely. The ends of the result combine the ends of both
//! intervals: the lowest speed with the largest stored fraction. Not included: the other work of a
//! drive's thread (checksums, copies, the protocol), and the effect of a medium's own cache or
//! garbage collection on longer writes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use schemars::JsonSchema;
use serde::Serialize;

use super::chunks::LOG_OVERHEAD;
use super::outcome::Outcome;
use super::verdict::Range;
use super::{Error, Result};
use pumice_bench::engine::{RunSpec, measure};
use pumice_bench::payload::{self, Kind, Payload};
use pumice_bench::stats::Summary;
use pumice_bench::target::{Access, Location};
use pumice_bench::workload::{Ends, Flush, Operation, Pattern, Workload};
use pumice_drive::base::units::parse_size;

/// Number of runs. With fewer runs, the interval contains the mean too rarely (see
/// [`Summary::of`]).
const RUNS: u64 = 5;

/// Target duration of a run in seconds: longer than a disk's cache can absorb, but short enough to
/// wait for.
const RUN_SECONDS: f64 = 0.5;

/// Bytes written in the first trial, and the maximum for a run.
const SPAN_BYTES_MIN: u64 = 4 << 20;
const SPAN_BYTES_MAX: u64 = 1 << 30;

/// Record size and queue depth, which are similar to the batches of a drive.
const RECORD_BYTES: u64 = 1 << 20;
const DEPTH: u32 = 4;

/// A medium, as named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Its sequential write speed in bytes per second.
    Speed(u64),
    /// A folder on the medium, in which to measure the speed.
    Folder(PathBuf),
}

impl FromStr for Medium {
    type Err = String;

    /// Parses a speed such as `530M`, or a folder. A folder with such a name must be written as
    /// `./530M`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match parse_size(text) {
            Ok(0) => {
                Err("invalid medium speed 0: expected bytes per second, such as 530M".to_owned())
            }
            Ok(bytes_per_s) => Ok(Self::Speed(bytes_per_s)),
            Err(_) if Path::new(text).is_dir() => Ok(Self::Folder(text.into())),
            Err(_) => Err(format!(
                "'{text}' is neither a speed nor a folder: expected bytes per second, such as \
                 530M, or a folder on the medium"
            )),
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Speed(bytes) => write!(f, "a medium of {:.0} MB/s", *bytes as f64 / 1e6),
            Self::Folder(path) => write!(f, "the medium of {}", path.display()),
        }
    }
}

/// The speed of a medium.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Speed {
    /// Name of the medium.
    pub name: String,
    /// Sequential write speed in MB/s (10^6); a range if it was measured.
    pub mb_per_s: Range,
    /// Whether the speed was measured, rather than specified.
    pub is_measured: bool,
}

impl Medium {
    /// Returns the speed; `None` if `stop` was set first. To measure a folder, this writes up to 1
    /// GiB to temporary files for several seconds.
    ///
    /// # Errors
    /// The folder cannot be written, or has too little free space.
    pub fn speed(&self, stop: &AtomicBool) -> Result<Option<Speed>> {
        let name = self.to_string();
        let folder = match self {
            Self::Speed(bytes) => {
                let mb_per_s = Range::of(*bytes as f64 / 1e6, &[]);
                return Ok(Some(Speed { name, mb_per_s, is_measured: false }));
            }
            Self::Folder(folder) => folder,
        };
        let Some(runs) = measured(folder, stop)? else { return Ok(None) };
        let summary = Summary::of(&runs).filter(|summary| summary.mean > 0.0);
        let summary = summary.ok_or_else(|| {
            Error::Unsupported(format!("the speed of {name} cannot be measured").into())
        })?;
        let ends =
            summary.mean_interval.map_or(vec![], |interval| vec![interval.low, interval.high]);
        Ok(Some(Speed { name, mb_per_s: Range::of(summary.mean, &ends), is_measured: true }))
    }
}

/// Returns the speed of each run in a folder, in MB/s; `None` if the measurement was stopped.
fn measured(folder: &Path, stop: &AtomicBool) -> Result<Option<Vec<f64>>> {
    let failed =
        |source| Error::Io { what: format!("cannot write in {}", folder.display()), source };
    // The temporary folder is removed on every return path.
    let made = tempfile::Builder::new().prefix(".pumice-scan-").tempdir_in(folder);
    let made = made.map_err(failed)?;
    let mut bench = Bench {
        location: Location::Folder(made.path().to_owned()),
        access: Access { direct: true },
        payload: Payload::new(payload::PayloadOptions::new(Kind::Random))?,
        runs: 0,
    };
    let mut span_bytes = SPAN_BYTES_MIN;
    loop {
        let Some(seconds) = bench.write(span_bytes, stop)? else { return Ok(None) };
        let wanted = span_bytes as f64 * (RUN_SECONDS / seconds.max(1e-6));
        // The beginning of a run is its slowest part, so a trial that is too short underestimates
        // the speed.
        let next = (wanted as u64).min(span_bytes * 8).min(SPAN_BYTES_MAX);
        if next < span_bytes * 2 {
            break;
        }
        span_bytes = next.next_multiple_of(RECORD_BYTES);
    }
    let mut all = Vec::new();
    for _ in 0..RUNS {
        let Some(seconds) = bench.write(span_bytes, stop)? else { return Ok(None) };
        all.push(span_bytes as f64 / seconds / 1e6);
    }
    Ok(Some(all))
}

struct Bench {
    location: Location,
    access: Access,
    payload: Payload,
    runs: u64,
}

impl Bench {
    /// Returns the time to write and flush `span_bytes` bytes, in seconds; `None` if stopped.
    fn write(&mut self, span_bytes: u64, stop: &AtomicBool) -> Result<Option<f64>> {
        self.location.prepare(span_bytes, true)?;
        let workload = Workload {
            operation: Operation::Write,
            record_bytes: RECORD_BYTES,
            depth: DEPTH,
            threads: 1,
            span_bytes,
            shift_bytes: 0,
            pattern: Pattern::default(),
            reads_percent: 0,
            seconds: RUN_SECONDS,
            flush: Flush::Timed,
            ends: Ends::Usual,
            mix: Vec::new(),
        };
        // The data is incompressible and never repeats.
        self.runs += 1;
        let run = RunSpec { workload, payload: self.payload.clone(), stream: self.runs, seed: 1 };
        let sample = match measure(&self.location, self.access, &run, stop) {
            // Some file systems do not support O_DIRECT. The flush is timed in any case.
            Err(error) if self.access.direct && error.is_unsupported() => {
                self.access.direct = false;
                measure(&self.location, self.access, &run, stop)
            }
            other => other,
        };
        let seconds = sample?.seconds;
        Ok((!stop.load(Ordering::Relaxed)).then_some(seconds))
    }
}

/// The bottleneck of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// The write speed of the medium.
    Medium,
    /// The compression speed of one thread.
    Codec,
}

/// The speed of a Pumice drive on a medium.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct OnMedium {
    /// The medium.
    pub medium: Speed,
    /// Speed of sequential host writes in MB/s, with the main configuration.
    pub drive_mb_per_s: Range,
    /// Speed of sequential host writes in MB/s, without compression.
    pub uncompressed_mb_per_s: Range,
    /// The bottleneck according to the measured values.
    pub bound: Bound,
}

impl OnMedium {
    /// Calculates the speed of a drive with the data; `None` if too little data was read to
    /// determine the speed of the codec.
    pub fn of(outcome: &Outcome, medium: Speed) -> Option<Self> {
        let main = outcome.main();
        let codec = main.mb_per_s?;
        let speed = medium.mb_per_s;
        let drive = |mb_per_s: f64, stored: f64| codec.min(mb_per_s / (stored + LOG_OVERHEAD));
        let stored = main.drive;
        let is = drive(speed.is, stored.stored);
        let ends = [drive(speed.low, stored.stored_high), drive(speed.high, stored.stored_low)];
        let plain = |mb_per_s: f64| mb_per_s / (1.0 + LOG_OVERHEAD);
        Some(Self {
            drive_mb_per_s: Range::of(is, &ends),
            uncompressed_mb_per_s: Range::of(plain(speed.is), &[speed.low, speed.high].map(plain)),
            bound: if is < codec { Bound::Medium } else { Bound::Codec },
            medium,
        })
    }

    /// Describes the result in a sentence.
    pub(super) fn words(&self, outcome: &Outcome) -> String {
        let between = |range: &Range| {
            if range.low == range.high {
                format!("{:.0} MB/s", range.is)
            } else {
                format!("{:.0} MB/s ({:.0} to {:.0})", range.is, range.low, range.high)
            }
        };
        let (drive, plain) = (self.drive_mb_per_s, self.uncompressed_mb_per_s);
        let because = match self.bound {
            Bound::Medium => "the medium is the bottleneck".to_owned(),
            Bound::Codec => format!(
                "compression, {:.0} MB/s per thread here, is the bottleneck",
                outcome.main().mb_per_s.unwrap_or(0.0)
            ),
        };
        format!(
            "On {}, which writes {}{}: a drive would write this data sequentially at {}, compared \
             with {} without compression, {:.2} times as fast: {because}. The estimate includes no \
             other work of a drive.",
            self.medium.name,
            between(&self.medium.mb_per_s),
            if self.medium.is_measured { " by measurement" } else { "" },
            between(&drive),
            between(&plain),
            drive.is / plain.is,
        )
    }
}

#[cfg(test)]
mod tests {
    //! Goal: speeds agree with the calculation, with the ends of both intervals, and a measurement
    //! leaves no files. Method: an outcome with chosen numbers; a folder.

    use super::super::tests::outcome_of_noise;
    use super::*;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    fn speed(is: f64, low: f64, high: f64) -> Speed {
        Speed { name: "m".to_owned(), mb_per_s: Range { is, low, high }, is_measured: true }
    }

    fn outcome(codec: f64) -> Outcome {
        let mut outcome = outcome_of_noise();
        let main = &mut outcome.configs[outcome.main];
        main.mb_per_s = Some(codec);
        (main.drive.stored, main.drive.stored_low, main.drive.stored_high) = (0.5, 0.4, 0.6);
        outcome
    }

    #[test]
    fn the_slower_of_codec_and_medium_counts() {
        let on = |codec, speed| OnMedium::of(&outcome(codec), speed).unwrap();
        let slow = on(1000.0, speed(100.0, 90.0, 110.0));
        let near = |one: f64, other: f64| assert!((one - other).abs() < 0.01, "{one} {other}");
        near(slow.drive_mb_per_s.is, 196.46);
        near(slow.drive_mb_per_s.low, 90.0 / 0.609);
        near(slow.drive_mb_per_s.high, 110.0 / 0.409);
        near(slow.uncompressed_mb_per_s.is, 99.11);
        near(slow.uncompressed_mb_per_s.low, 89.20);
        assert_eq!(slow.bound, Bound::Medium);
        let words = slow.words(&outcome(1000.0));
        for part in ["writes 100 MB/s (90 to 110) by", "at 196 MB/s (148 to 269)", "1.98 times"] {
            assert!(words.contains(part), "no '{part}' in {words}");
        }
        let fast = on(150.0, speed(100.0, 90.0, 110.0));
        near(fast.drive_mb_per_s.is, 150.0);
        near(fast.drive_mb_per_s.low, 147.78);
        near(fast.drive_mb_per_s.high, 150.0);
        assert_eq!(fast.bound, Bound::Codec);
        let mut unknown = outcome(1.0);
        unknown.configs[unknown.main].mb_per_s = None;
        assert_eq!(OnMedium::of(&unknown, speed(1.0, 1.0, 1.0)), None);
    }

    #[test]
    fn a_medium_is_measured_and_nothing_stays() {
        let folder = tempfile::tempdir().unwrap();
        let medium: Medium = folder.path().to_str().unwrap().parse().unwrap();
        let speed = medium.speed(&GO_ON).unwrap().unwrap();
        let Range { is, low, high } = speed.mb_per_s;
        assert!(speed.is_measured && is > 0.1 && low <= is && is <= high, "{speed:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(medium.speed(&AtomicBool::new(true)).unwrap(), None);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let gone = Medium::Folder(folder.path().join("gone"));
        let error = pumice_drive::base::chain(&gone.speed(&GO_ON).unwrap_err());
        assert!(error.contains("cannot write in"), "{error}");
    }

    #[test]
    fn a_speed_is_read_as_people_type_it() {
        assert_eq!("530MB".parse(), Ok(Medium::Speed(530_000_000)));
        assert_eq!("1M".parse(), Ok(Medium::Speed(1 << 20)));
        for text in ["0", "fast", "/nonexistent", "-5M"] {
            assert!(text.parse::<Medium>().unwrap_err().contains("such as 530M"), "{text}");
        }
    }
}
