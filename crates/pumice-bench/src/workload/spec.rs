//! Workloads, which have the same description for every kind of target.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::files::FileSet;
use super::mix::{self, Access};
use crate::error::{Error, Result};
use pumice_drive::base::units::{BLOCK_BYTES, format_size};

/// Minimum and maximum record size in bytes.
pub const RECORD_BYTES_MIN: u64 = 512;
/// See [`RECORD_BYTES_MIN`].
pub const RECORD_BYTES_MAX: u64 = 64 << 20;

/// Maximum number of bytes in flight, because each request in flight has a buffer (arbitrary).
const FLIGHT_BYTES_MAX: u64 = 16 << 30;

/// Maximum number of requests in flight per thread.
pub const DEPTH_MAX: u32 = 1024;

/// Maximum number of threads.
pub const THREADS_MAX: u32 = 64;

/// Maximum number of positions in a surface read, and number of records read at each. With 64 KiB
/// records, a stretch is 1 MiB, in which the rotational delay of a hard disk matters little.
const POSITIONS_MAX: u64 = 500;
const STRETCH_RECORDS: u64 = 16;

/// Distance between consecutive accesses of a stride read, in records: IOzone's default.
const STRIDE_RECORDS: u64 = 17;

/// Operations, named as in IOzone.
///
/// Sequential operations cover the span once, record by record; random operations last for the
/// workload's duration. [`Ends`] changes this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Write every record in order. A file created by the bench is truncated first.
    Write,
    /// Overwrite every record in order.
    Rewrite,
    /// Read every record in order.
    Read,
    /// Read every record in order again.
    Reread,
    /// Read random records.
    RandomRead,
    /// Write random records.
    RandomWrite,
    /// Read and write random records.
    Mixed,
    /// Read every record, from the last to the first.
    BackwardRead,
    /// Read every 17th record, then the records after those, until every record has been read.
    StrideRead,
    /// Write the first record repeatedly.
    RecordRewrite,
    /// Trim random records.
    Trim,
    /// Copy every record of the span's first half to its second half.
    Copy,
    /// Write every record in order through a buffer, as `fwrite` of the C library does. A file
    /// created by the bench is truncated first.
    #[serde(rename = "fwrite")]
    FWrite,
    /// Overwrite every record in order through a buffer.
    #[serde(rename = "frewrite")]
    FRewrite,
    /// Read every record in order through a buffer, as `fread` of the C library does.
    #[serde(rename = "fread")]
    FRead,
    /// Read every record in order through a buffer again.
    #[serde(rename = "freread")]
    FReread,
    /// Read stretches of records at up to 500 evenly spaced positions, from the start of the span
    /// to its end, regardless of the target's contents.
    SurfaceRead,
    /// Read random records, regardless of the target's contents. Reports show the position of each.
    AccessRead,
    /// Read the first record repeatedly, regardless of the target's contents, so that the data
    /// comes from the drive's cache.
    BurstRead,
    /// Copy a file of the size of the span to a new file, with reads and writes.
    CopyFile,
    /// Copy a file of the size of the span to a new file, with `copy_file_range`.
    CopyRange,
    /// Copy the files of an ISO image ([`FileSet::Image`]) to a new folder.
    CopyIso,
    /// Copy the files of a program ([`FileSet::Program`]) to a new folder.
    CopyProgram,
    /// Copy the files of a game ([`FileSet::Game`]) to a new folder.
    CopyGame,
}

impl Operation {
    /// All operations, ordered so that each builds on the previous ones.
    pub const ALL: [Self; 24] = [
        Self::Write,
        Self::Rewrite,
        Self::Read,
        Self::Reread,
        Self::RandomRead,
        Self::RandomWrite,
        Self::Mixed,
        Self::BackwardRead,
        Self::StrideRead,
        Self::RecordRewrite,
        Self::Trim,
        Self::Copy,
        Self::FWrite,
        Self::FRewrite,
        Self::FRead,
        Self::FReread,
        Self::SurfaceRead,
        Self::AccessRead,
        Self::BurstRead,
        Self::CopyFile,
        Self::CopyRange,
        Self::CopyIso,
        Self::CopyProgram,
        Self::CopyGame,
    ];

    /// Returns the name used in presets.
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Rewrite => "rewrite",
            Self::Read => "read",
            Self::Reread => "reread",
            Self::RandomRead => "random-read",
            Self::RandomWrite => "random-write",
            Self::Mixed => "mixed",
            Self::BackwardRead => "backward-read",
            Self::StrideRead => "stride-read",
            Self::RecordRewrite => "record-rewrite",
            Self::Trim => "trim",
            Self::Copy => "copy",
            Self::FWrite => "fwrite",
            Self::FRewrite => "frewrite",
            Self::FRead => "fread",
            Self::FReread => "freread",
            Self::SurfaceRead => "surface-read",
            Self::AccessRead => "access-read",
            Self::BurstRead => "burst-read",
            Self::CopyFile => "copy-file",
            Self::CopyRange => "copy-range",
            Self::CopyIso => "copy-iso",
            Self::CopyProgram => "copy-program",
            Self::CopyGame => "copy-game",
        }
    }

    /// Returns whether the operation is usually time-based. If not, it ends with the span.
    pub fn is_timed(self) -> bool {
        matches!(self, Self::RandomRead | Self::RandomWrite | Self::Mixed)
            || matches!(self, Self::RecordRewrite | Self::Trim)
            || matches!(self, Self::AccessRead | Self::BurstRead)
    }

    /// Returns whether the operation changes the contents of the target.
    pub fn writes(self) -> bool {
        !matches!(
            self,
            Self::Read | Self::Reread | Self::RandomRead | Self::BackwardRead | Self::StrideRead
        ) && !matches!(self, Self::FRead | Self::FReread)
            && !self.reads_as_it_is()
    }

    /// Returns whether the operation reads existing data of any kind: no data is written before it,
    /// unless the target is the bench's own file.
    pub(crate) fn reads_as_it_is(self) -> bool {
        matches!(self, Self::SurfaceRead | Self::AccessRead | Self::BurstRead)
    }

    /// Returns the files that the operation copies; `None` if it uses the target itself. An
    /// operation that copies files requires a folder, and uses the page cache.
    pub fn file_set(self) -> Option<FileSet> {
        match self {
            Self::CopyFile | Self::CopyRange => Some(FileSet::One),
            Self::CopyIso => Some(FileSet::Image),
            Self::CopyProgram => Some(FileSet::Program),
            Self::CopyGame => Some(FileSet::Game),
            _ => None,
        }
    }

    /// Returns whether the operation has only one thread and one request in flight.
    pub fn is_serial(self) -> bool {
        self.reads_as_it_is() || self.file_set().is_some()
    }

    /// Returns whether the operation writes a new file, so that a file created by the bench is
    /// truncated first.
    pub fn is_new(self) -> bool {
        matches!(self, Self::Write | Self::FWrite)
    }

    /// Returns whether the operation uses a buffer of this process. Such an operation has only one
    /// request in flight, uses the page cache, and requires a file.
    pub fn is_stdio(self) -> bool {
        matches!(self, Self::FWrite | Self::FRewrite | Self::FRead | Self::FReread)
    }
}

/// Default exponent of a Zipf distribution.
///
/// Source: Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", 2010.
const ZIPF_THETA: f64 = 0.99;

/// Maximum exponent. At 3, seven of eight accesses already target a single record.
const ZIPF_THETA_MAX: f64 = 10.0;

/// Distribution of random accesses. Text forms: `uniform`, `once`, `80/20`, `zipf` (0.99),
/// `zipf:1.2`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub enum Pattern {
    /// All records are equally probable.
    #[default]
    Uniform,
    /// Every record once in random order, then repeatedly, as in IOzone and fio.
    Once,
    /// 80 % of accesses to the first 20 % of the span.
    HotCold,
    /// A Zipf distribution with this exponent, above 0 and up to 10: higher exponents concentrate
    /// accesses on fewer records. Hot records are scattered over the span.
    Zipf(f64),
}

impl Pattern {
    fn check(self) -> Result<()> {
        match self {
            Self::Zipf(theta) if !(theta > 0.0 && theta <= ZIPF_THETA_MAX) => {
                let most = ZIPF_THETA_MAX;
                let what = format!("zipf:{theta}: expected an exponent above 0, up to {most}");
                Err(Error::invalid(what))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Once => f.write_str("once"),
            Self::HotCold => f.write_str("80/20"),
            Self::Zipf(theta) => write!(f, "zipf:{theta}"),
        }
    }
}

impl FromStr for Pattern {
    type Err = Error;

    /// # Errors
    /// [`Error::Invalid`] for unknown patterns or exponents out of range.
    fn from_str(text: &str) -> Result<Self> {
        let unknown = || {
            let what = format!(
                "invalid pattern '{text}': expected uniform, once, 80/20, zipf or zipf:0.99"
            );
            Error::invalid(what)
        };
        let pattern = match (text, text.split_once(':')) {
            ("uniform", _) => Self::Uniform,
            ("once", _) => Self::Once,
            ("80/20", _) => Self::HotCold,
            ("zipf", _) => Self::Zipf(ZIPF_THETA),
            (_, Some(("zipf", theta))) => Self::Zipf(theta.parse().map_err(|_| unknown())?),
            _ => return Err(unknown()),
        };
        pattern.check()?;
        Ok(pattern)
    }
}

impl TryFrom<String> for Pattern {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.to_string()
    }
}

/// The time at which the target's volatile cache is flushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Flush {
    /// After the last request; the flush is part of the measured time.
    #[default]
    Timed,
    /// After the last request; the flush is not part of the measured time.
    Untimed,
    /// After every write, like a database's log.
    EachWrite,
}

/// The condition that ends a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Ends {
    /// Sequential operations end with the span, random operations after the duration.
    #[default]
    Usual,
    /// After the duration; sequential operations restart at the end of the span.
    Time,
    /// With the span; random operations make as many requests as the span has records.
    Span,
    /// With the span or after the duration, whichever is earlier.
    First,
}

impl Ends {
    /// Returns whether this is the default.
    pub(crate) fn is_usual(&self) -> bool {
        *self == Self::Usual
    }
}

/// One workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Workload {
    /// Operation.
    pub operation: Operation,
    /// Request size in bytes, 512 to 64 MiB; in a mix, the size of the largest request.
    pub record_bytes: u64,
    /// Requests in flight per thread.
    pub depth: u32,
    /// Number of threads. Sequential threads divide the span; random threads use all of it.
    pub threads: u32,
    /// Number of bytes of the target that are used, starting at `shift_bytes`.
    pub span_bytes: u64,
    /// Offset of the span within the target: 0 is aligned; 32256 is the 63rd sector, as in old
    /// partition tables.
    pub shift_bytes: u64,
    /// Distribution of random accesses.
    pub pattern: Pattern,
    /// Share of reads in a mixed workload, in percent.
    pub reads_percent: u32,
    /// Duration of time-based operations, in seconds.
    pub seconds: f64,
    /// The time at which the volatile cache is flushed.
    pub flush: Flush,
    /// The condition that ends the workload.
    #[serde(default, skip_serializing_if = "Ends::is_usual")]
    pub ends: Ends,
    /// Kinds of requests in a mixed workload. If empty, all requests have `record_bytes` and are
    /// random, and `reads_percent` of them are reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mix: Vec<Access>,
}

impl Workload {
    /// Checks the invariants that other code relies on.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the invalid number and its range.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::invalid(what));
        let record = self.record_bytes;
        if !(RECORD_BYTES_MIN..=RECORD_BYTES_MAX).contains(&record) || !record.is_multiple_of(512) {
            return wrong(format!(
                "records of {record} bytes: expected 512 B to 64 MiB, in sectors"
            ));
        }
        if !(1..=DEPTH_MAX).contains(&self.depth) {
            return wrong(format!("depth {}: expected 1 to {DEPTH_MAX}", self.depth));
        }
        if self.operation.is_stdio() && self.depth != 1 {
            let (name, depth) = (self.operation.name(), self.depth);
            return wrong(format!("depth {depth}: {name} has one request in flight, expected 1"));
        }
        if self.operation.is_serial() && (self.depth != 1 || self.threads != 1) {
            let name = self.operation.name();
            return wrong(format!("{name} has one thread with one request in flight"));
        }
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return wrong(format!("{} threads: expected 1 to {THREADS_MAX}", self.threads));
        }
        let flight_bytes = record * u64::from(self.depth) * u64::from(self.threads);
        if flight_bytes > FLIGHT_BYTES_MAX {
            let (flight, most) = (format_size(flight_bytes), format_size(FLIGHT_BYTES_MAX));
            return wrong(format!("{flight} in flight: expected up to {most}; reduce the depth"));
        }
        if self.operation.is_stdio() && !matches!(self.ends, Ends::Usual | Ends::Span) {
            let name = self.operation.name();
            return wrong(format!("{name} passes over the span once and cannot end by time"));
        }
        if self.reads_percent > 100 {
            return wrong(format!("{} % of reads: expected 0 to 100", self.reads_percent));
        }
        if !self.shift_bytes.is_multiple_of(512) {
            return wrong(format!(
                "a shift of {} bytes is not a multiple of 512",
                self.shift_bytes
            ));
        }
        if !(self.seconds > 0.0 && self.seconds <= 1e6) {
            return wrong(format!(
                "{} seconds: expected more than 0, up to a million",
                self.seconds
            ));
        }
        self.pattern.check()?;
        self.check_mix()?;
        let least = record
            * u64::from(self.threads)
            * if self.operation == Operation::Copy { 2 } else { 1 };
        if self.span_bytes < least {
            let (span, least) = (format_size(self.span_bytes), format_size(least));
            return wrong(format!(
                "a span of {span} is too small for {}: it needs {least}",
                self.operation.name()
            ));
        }
        Ok(())
    }

    fn check_mix(&self) -> Result<()> {
        if self.mix.is_empty() {
            return Ok(());
        }
        let (operation, pattern) = (self.operation, self.pattern);
        if operation != Operation::Mixed {
            let name = operation.name();
            return Err(Error::invalid(format!("{name} takes no mix: only mixed does")));
        }
        if pattern != Pattern::Uniform {
            return Err(Error::invalid(format!("a mix has no pattern {pattern}: remove it")));
        }
        mix::check(&self.mix, self.record_bytes)
    }

    /// Returns the end of the used part of the target, in bytes.
    pub fn end_bytes(&self) -> u64 {
        self.shift_bytes.saturating_add(self.span_bytes)
    }

    /// Returns the number of records in the span.
    pub(crate) fn records(&self) -> u64 {
        self.span_bytes / self.record_bytes
    }

    /// Returns whether the workload ends after its duration at the latest.
    pub fn is_timed(&self) -> bool {
        match self.ends {
            Ends::Usual => self.operation.is_timed(),
            Ends::Time | Ends::First => true,
            Ends::Span => false,
        }
    }

    /// Returns whether the workload ends with the span at the latest.
    pub fn ends_with_span(&self) -> bool {
        match self.ends {
            Ends::Usual => !self.operation.is_timed(),
            Ends::Span | Ends::First => true,
            Ends::Time => false,
        }
    }

    /// Returns the mean request size in bytes.
    pub(crate) fn mean_bytes(&self) -> f64 {
        let part = |access: &Access| access.bytes as f64 * f64::from(access.share_percent) / 100.0;
        if self.mix.is_empty() { self.record_bytes as f64 } else { self.mix.iter().map(part).sum() }
    }

    /// Returns the size that divides the size of every request.
    pub fn piece_bytes(&self) -> u64 {
        self.mix.iter().map(|access| access.bytes).fold(self.record_bytes, mix::common)
    }

    /// Returns the number of bytes that the workload writes, or `None` if it is time-based. The
    /// number is approximate for a mixed workload.
    pub fn written_bytes(&self) -> Option<u64> {
        let all = self.records() * self.record_bytes;
        match self.operation {
            operation if !operation.writes() || operation == Operation::Trim => Some(0),
            operation if operation.file_set().is_some() => Some(self.span_bytes),
            _ if self.is_timed() => None,
            Operation::Copy => Some(all / 2),
            Operation::Mixed => Some(all * u64::from(100 - self.reads_percent.min(100)) / 100),
            _ => Some(all),
        }
    }

    /// Returns the number of bytes that the workload reads and writes, or `None` if it is
    /// time-based.
    pub fn moved_bytes(&self) -> Option<u64> {
        match self.operation {
            operation if operation.file_set().is_some() => Some(2 * self.span_bytes),
            _ if self.is_timed() => None,
            Operation::SurfaceRead => Some(self.surface().reads() * self.record_bytes),
            _ => Some(self.span_bytes),
        }
    }

    /// Returns the positions of a surface read.
    pub(crate) fn surface(&self) -> Surface {
        let records = self.records();
        let stretch_records = records.clamp(1, STRETCH_RECORDS);
        Surface {
            positions: (records / stretch_records).clamp(1, POSITIONS_MAX),
            stretch_records,
            records,
        }
    }

    /// Returns the distance between consecutive accesses of a stride read, in records.
    pub(crate) fn stride_records(&self) -> u64 {
        STRIDE_RECORDS
    }

    /// Returns whether every request covers whole 4 KiB blocks.
    pub(crate) fn is_block_aligned(&self) -> bool {
        let block = BLOCK_BYTES as u64;
        let aligned = |access: &Access| access.step_bytes().is_multiple_of(block);
        self.piece_bytes().is_multiple_of(block)
            && self.shift_bytes.is_multiple_of(block)
            && self.mix.iter().all(aligned)
    }
}

/// The positions of a surface read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Surface {
    /// Number of positions, at least 1.
    pub(crate) positions: u64,
    /// Number of consecutive records read at each position.
    pub(crate) stretch_records: u64,
    records: u64,
}

impl Surface {
    /// Returns the total number of records read.
    pub(crate) fn reads(&self) -> u64 {
        self.positions * self.stretch_records
    }

    /// Returns the number of the record to read in this turn; `None` after the last turn.
    pub(crate) fn record(&self, turn: u64) -> Option<u64> {
        let (position, offset) = (turn / self.stretch_records, turn % self.stretch_records);
        if position >= self.positions {
            return None;
        }
        let last_begin = u128::from(self.records.saturating_sub(self.stretch_records));
        let steps = u128::from(self.positions.saturating_sub(1).max(1));
        let begin = last_begin * u128::from(position) / steps;
        Some(begin as u64 + offset)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: command lines and files have the same meaning, and impossible numbers are refused by
    //! name. Method: conversions in both directions, and one invalid number at a time.
    use super::*;
    use pumice_drive::base::ErrorKind;

    #[test]
    fn operations_have_one_name() {
        for operation in Operation::ALL {
            let name = format!("\"{}\"", operation.name());
            assert_eq!(serde_json::to_string(&operation).unwrap(), name);
            assert_eq!(serde_json::from_str::<Operation>(&name).unwrap(), operation);
        }
    }

    #[test]
    fn impossible_workloads_are_refused() {
        let good = Workload {
            operation: Operation::RandomRead,
            record_bytes: 4096,
            depth: 1,
            threads: 2,
            span_bytes: 8192,
            shift_bytes: 512,
            pattern: Pattern::Uniform,
            reads_percent: 100,
            seconds: 1.0,
            flush: Flush::Timed,
            ends: Ends::Usual,
            mix: Vec::new(),
        };
        good.check().unwrap();
        Workload { operation: Operation::FRead, ..good.clone() }.check().unwrap();
        let copy = Workload { operation: Operation::Copy, ..good.clone() };
        Workload { span_bytes: 16_384, ..copy.clone() }.check().unwrap();
        for (bad, word) in [
            (Workload { record_bytes: 513, ..good.clone() }, "513"),
            (Workload { record_bytes: 0, ..good.clone() }, "512 B"),
            (Workload { record_bytes: (64 << 20) + 512, ..good.clone() }, "64 MiB"),
            (Workload { record_bytes: 64 << 20, depth: 129, ..good.clone() }, "in flight"),
            (
                Workload { operation: Operation::FRead, ends: Ends::Time, ..good.clone() },
                "cannot end by time",
            ),
            (Workload { depth: 0, ..good.clone() }, "depth 0"),
            (Workload { depth: 1025, ..good.clone() }, "depth 1025"),
            (Workload { threads: 0, ..good.clone() }, "0 threads"),
            (Workload { threads: 65, span_bytes: 1 << 30, ..good.clone() }, "65 threads"),
            (Workload { reads_percent: 101, ..good.clone() }, "101 %"),
            (Workload { shift_bytes: 100, ..good.clone() }, "100 bytes"),
            (Workload { seconds: 0.0, ..good.clone() }, "0 seconds"),
            (Workload { seconds: f64::NAN, ..good.clone() }, "NaN seconds"),
            (Workload { span_bytes: 8191, ..good.clone() }, "too small"),
            (Workload { pattern: Pattern::Zipf(f64::NAN), ..good.clone() }, "zipf"),
            (Workload { operation: Operation::FRead, depth: 2, ..good.clone() }, "fread"),
            (Workload { operation: Operation::SurfaceRead, ..good.clone() }, "surface-read"),
            (Workload { operation: Operation::CopyIso, ..good.clone() }, "copy-iso"),
            (Workload { span_bytes: 16_383, ..copy }, "too small"),
        ] {
            let error = bad.check().expect_err(word);
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn patterns_are_read_as_they_are_written() {
        for (text, pattern, written) in [
            ("uniform", Pattern::Uniform, "uniform"),
            ("once", Pattern::Once, "once"),
            ("80/20", Pattern::HotCold, "80/20"),
            ("zipf", Pattern::Zipf(0.99), "zipf:0.99"),
            ("zipf:1", Pattern::Zipf(1.0), "zipf:1"),
            ("zipf:1.25", Pattern::Zipf(1.25), "zipf:1.25"),
        ] {
            assert_eq!(text.parse::<Pattern>().unwrap(), pattern);
            assert_eq!(pattern.to_string(), written);
            assert_eq!(serde_json::to_string(&pattern).unwrap(), format!("\"{written}\""));
            assert_eq!(serde_json::from_str::<Pattern>(&format!("\"{text}\"")).unwrap(), pattern);
        }
        for wrong in ["", "zipf:", "zipf:0", "zipf:-1", "zipf:nan", "zipf:11", "zip", "20/80"] {
            let error = wrong.parse::<Pattern>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{wrong}");
            assert!(serde_json::from_str::<Pattern>(&format!("\"{wrong}\"")).is_err(), "{wrong}");
        }
    }
}
