//! Job files of fio, as far as they determine a host's requests.
//!
//! ```text
//! [global]            applies to the jobs that follow
//! rw=randwrite
//! [a job]
//! bs=4k
//! ```
//!
//! Supported: `rw`, `bs`, `iodepth`, `numjobs`, `size`, `offset`, `rwmixread`, `rwmixwrite`,
//! `random_distribution` (random, zipf:EXPONENT, zoned:80/20:20/80), `runtime`, `fsync`/`fdatasync`
//! of 0 or 1. Options without effect on the requests are ignored; all others become remarks. Jobs
//! run one after the other.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};
use crate::workload::import::sections::{self, sections};
use crate::workload::{Ends, Flush, Operation, Pattern, Workload};
use pumice_drive::base::units::parse_size;

/// Maximum size of a job file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Duration in seconds of a job that reads and has no runtime.
const SECONDS: f64 = 10.0;

/// Options that do not affect the requests of a drive, or only how fio counts.
const PASSED_OVER: [&str; 36] = [
    "allow_file_create",
    "allow_mounted_write",
    "buffer_compress_chunk",
    "clat_percentiles",
    "create_serialize",
    "description",
    "direct",
    "disable_clat",
    "disable_lat",
    "disable_slat",
    "end_fsync",
    "eta-newline",
    "fallocate",
    "filename",
    "directory",
    "filesize",
    "gtod_reduce",
    "group_reporting",
    "hipri",
    "invalidate",
    "ioengine",
    "iodepth_batch",
    "loops",
    "name",
    "new_group",
    "norandommap",
    "percentile_list",
    "ramp_time",
    "randrepeat",
    "randseed",
    "refill_buffers",
    "scramble_buffers",
    "stonewall",
    "thread",
    "time_based",
    "wait_for_previous",
];

/// A job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Name of its section.
    pub name: String,
    /// Its workload; the span is one record if it has no size.
    pub workload: Workload,
    /// Its size in bytes; the whole drive if absent.
    pub size_bytes: Option<u64>,
}

/// A file of jobs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct JobFile {
    pub(super) jobs: Vec<Job>,
    /// Options that are not simulated.
    pub(super) remarks: Vec<String>,
}

fn invalid(what: impl Into<String>) -> Error {
    Error::invalid(what.into())
}

fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(text.lines().map(str::trim));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with([';', '#']))
}

fn section_name(line: &str) -> Option<&str> {
    line.strip_prefix('[')?.strip_suffix(']')
}

impl JobFile {
    /// Returns whether the beginning of a file looks like a job file.
    pub(super) fn is_one(beginning: &str) -> bool {
        lines(beginning).next().is_some_and(|(_, line)| section_name(line).is_some())
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the line or job; [`Error::Io`].
    pub(super) fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let mut text = String::new();
        File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
            .map_err(|error| Error::io(format!("cannot read {shown}"), error))?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(invalid(format!("{shown} has more than {FILE_BYTES_MAX} bytes")));
        }
        Self::parse(&text).map_err(|what| invalid(format!("{shown}: {what}")))
    }

    /// Parses the text of a file.
    pub(super) fn parse(text: &str) -> std::result::Result<Self, String> {
        let sections: Vec<Section> = sections(text)?.into_iter().map(Section).collect();
        let mut remarks = Vec::new();
        let mut jobs = Vec::new();
        for section in &sections {
            let job = section.job(&mut remarks);
            jobs.push(job.map_err(|what| format!("job '{}': {what}", section.0.name))?);
        }
        if jobs.len() > 1 && !sections[1..].iter().all(Section::waits) {
            remarks
                .push("fio runs these jobs concurrently; here they run one after the other".into());
        }
        remarks.dedup();
        Ok(Self { jobs, remarks })
    }
}

/// A job as it is in the file.
struct Section(sections::Section);

impl Section {
    fn get(&self, keys: &[&str]) -> Option<&str> {
        let mut found = self.0.options.iter().rev();
        found.find(|(key, _)| keys.contains(&key.as_str())).map(|(_, value)| value.as_str())
    }

    fn waits(&self) -> bool {
        self.get(&["stonewall", "wait_for_previous"]).is_some()
    }

    fn job(&self, remarks: &mut Vec<String>) -> std::result::Result<Job, String> {
        const READ: &[&str] = &[
            "rw",
            "readwrite",
            "bs",
            "blocksize",
            "iodepth",
            "numjobs",
            "size",
            "offset",
            "rwmixread",
            "rwmixwrite",
            "random_distribution",
            "runtime",
            "fsync",
            "fdatasync",
        ];
        let number = |keys: &[&str], default: u32| match self.get(keys) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| format!("invalid number {}={text}", keys[0])),
        };
        let mut remark = |what: String| remarks.push(format!("job '{}': {what}", self.0.name));
        for (key, value) in &self.0.options {
            if !READ.contains(&key.as_str()) && !PASSED_OVER.contains(&key.as_str()) {
                let hint = if key.starts_with("buffer_compress") { ": use --saved" } else { "" };
                remark(format!("{key}={value} is not simulated{hint}"));
            }
        }
        let operation = self.operation()?;
        let record_bytes = self.record_bytes()?;
        let reads_percent = match self.get(&["rwmixwrite"]) {
            Some(_) => 100u32.saturating_sub(number(&["rwmixwrite"], 50)?),
            None => number(&["rwmixread"], 50)?,
        };
        let pattern = self.pattern()?;
        if !operation.is_timed() && number(&["numjobs"], 1)? > 1 {
            remark("each of fio's numjobs covers the whole span; here they divide it".into());
        }
        let flush = match (number(&["fsync"], 0)?, number(&["fdatasync"], 0)?) {
            (0, 0) => Flush::Untimed,
            (1, _) | (_, 1) => Flush::EachWrite,
            _ => {
                remark("flushes after several writes are not simulated".into());
                Flush::Untimed
            }
        };
        let size_bytes = self.size_bytes()?;
        let offset = self.get(&["offset"]).map_or(Ok(0), parse_size)?;
        let workload = Workload {
            operation,
            record_bytes,
            depth: number(&["iodepth"], 1)?,
            threads: number(&["numjobs"], 1)?,
            span_bytes: size_bytes.unwrap_or(u64::MAX - offset),
            shift_bytes: offset,
            pattern,
            reads_percent,
            seconds: self.seconds()?,
            flush,
            ends: Ends::Usual,
            mix: Vec::new(),
        };
        workload.check().map_err(|error| error.to_string())?;
        Ok(Job { name: self.0.name.clone(), workload, size_bytes })
    }

    fn operation(&self) -> std::result::Result<Operation, String> {
        let text = self.get(&["rw", "readwrite"]).unwrap_or("read");
        Ok(match text {
            "read" => Operation::Read,
            "write" => Operation::Rewrite,
            "randread" => Operation::RandomRead,
            "randwrite" => Operation::RandomWrite,
            "randrw" => Operation::Mixed,
            "randtrim" => Operation::Trim,
            _ => {
                let known = "read, write, randread, randwrite, randrw or randtrim";
                return Err(format!("rw={text} is not simulated: expected {known}"));
            }
        })
    }

    fn record_bytes(&self) -> std::result::Result<u64, String> {
        let text = self.get(&["bs", "blocksize"]).unwrap_or("4k");
        if text.contains([',', '-']) {
            return Err(format!("bs={text}: expected one size for reads and writes"));
        }
        parse_size(text)
    }

    /// Without norandommap fio writes every block once before it writes any block twice.
    fn pattern(&self) -> std::result::Result<Pattern, String> {
        let text = self.get(&["random_distribution"]).unwrap_or("random");
        Ok(match (text, text.split_once(':')) {
            ("random", _) if self.get(&["norandommap"]).is_none_or(|it| it == "0") => Pattern::Once,
            ("random", _) => Pattern::Uniform,
            ("zoned:80/20:20/80", _) => Pattern::HotCold,
            (_, Some(("zipf", _))) => text.parse().map_err(|it: Error| it.to_string())?,
            _ => {
                let known = "random, zipf:EXPONENT or zoned:80/20:20/80";
                return Err(format!(
                    "random_distribution={text} is not simulated: expected {known}"
                ));
            }
        })
    }

    fn size_bytes(&self) -> std::result::Result<Option<u64>, String> {
        match self.get(&["size"]) {
            None | Some("100%") => Ok(None),
            Some(text) if text.ends_with('%') => Err(format!(
                "size={text}: expected bytes, such as 10g, or nothing for the whole drive"
            )),
            Some(text) => parse_size(text).map(Some),
        }
    }

    fn seconds(&self) -> std::result::Result<f64, String> {
        let Some(text) = self.get(&["runtime"]) else { return Ok(SECONDS) };
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let unit = match &text[end..] {
            "" | "s" => 1.0,
            "ms" => 1e-3,
            "us" => 1e-6,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err(format!("runtime={text}: expected seconds")),
        };
        let number: f64 = text[..end].parse().map_err(|_| format!("runtime={text} is no time"))?;
        Ok(number * unit)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a job means what it means to fio, and what is not simulated is said or refused.
    //! Method: a file with every key; one wrong key after the other.

    use super::*;

    const FILE: &str = "\
; a comment
[global]
ioengine=libaio
direct=1
bs=8k
iodepth=16
norandommap

[first]
rw=randrw
rwmixread=70
size=1g
offset=1m
random_distribution=zipf:1.1
runtime=2m
time_based
numjobs=2

# another
[second]
stonewall
rw=randwrite
bs=4k
fsync=1
";

    #[test]
    fn every_key_arrives() {
        let JobFile { jobs, remarks } = JobFile::parse(FILE).unwrap();
        assert!(JobFile::is_one(FILE) && remarks.is_empty(), "{remarks:?}");
        let first = Workload {
            operation: Operation::Mixed,
            record_bytes: 8192,
            depth: 16,
            threads: 2,
            span_bytes: 1 << 30,
            shift_bytes: 1 << 20,
            pattern: Pattern::Zipf(1.1),
            reads_percent: 70,
            seconds: 120.0,
            flush: Flush::Untimed,
            ends: Ends::Usual,
            mix: Vec::new(),
        };
        assert_eq!((jobs[0].name.as_str(), jobs[0].size_bytes), ("first", Some(1 << 30)));
        assert_eq!(jobs[0].workload, first);
        let second = &jobs[1].workload;
        assert_eq!((second.operation, second.record_bytes), (Operation::RandomWrite, 4096));
        assert_eq!((second.depth, second.flush), (16, Flush::EachWrite));
        assert_eq!((second.pattern, jobs[1].size_bytes), (Pattern::Uniform, None));
        let once = JobFile::parse("[x]\nrw=randwrite\n").unwrap();
        assert_eq!(once.jobs[0].workload.pattern, Pattern::Once);
    }

    #[test]
    fn what_is_not_simulated_is_said() {
        for (line, word) in [
            ("rate=10m", "rate=10m"),
            ("buffer_compress_percentage=50", "--saved"),
            ("fsync=32", "after several writes"),
            ("[more]", "concurrently"),
        ] {
            let text = format!("[x]\nrw=randwrite\nnorandommap=1\n{line}\n");
            let JobFile { remarks, .. } = JobFile::parse(&text).expect(line);
            assert!(remarks.iter().any(|remark| remark.contains(word)), "{line}: {remarks:?}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (text, word) in [
            ("[x]\nrw=rw\n", "rw=rw"),
            ("[x]\nbs=4k,8k\n", "one size"),
            ("[x]\nbs=x\n", "'x'"),
            ("[x]\niodepth=many\n", "iodepth"),
            ("[x]\niodepth=0\n", "depth 0"),
            ("[x]\nsize=50%\n", "size=50%"),
            ("[x]\nruntime=soon\n", "runtime"),
            ("[x]\nrandom_distribution=pareto:0.9\n", "pareto"),
            ("[global]\nrw=read\n", "no job"),
        ] {
            let error = JobFile::parse(text).expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        }
        assert!(!JobFile::is_one("rw=read\n") && !JobFile::is_one(""));
    }
}
