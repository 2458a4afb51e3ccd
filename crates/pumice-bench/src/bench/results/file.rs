//! Results in a file: a line of JSON for what is known before, and one for each run.
//!
//! A run's line is appended and made durable when the run has ended, so that whatever happens later
//! costs nothing that was measured. A last line without its end is what an interruption left: it is
//! passed over when reading, and cut off before anything more is appended. Never trusts a file: a
//! line that is none of ours is an error with its number.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::{FORMAT, Header, Results, RunResult};
use crate::error::{Error, Result};

/// Longest line: a run's histogram has 40,000 pairs at most.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// Runs of a file at most: all of a plan with the most tests, levels and rounds would not fit in
/// memory.
const RUNS_MAX: usize = 1_000_000;

/// A file that takes a run after the other.
pub struct Writer {
    file: File,
    path: PathBuf,
}

impl Writer {
    /// Makes a new file for these results.
    ///
    /// # Errors
    /// `AlreadyExists`; `InvalidInput` for a directory; the operating system's.
    pub fn create(path: &Path, header: &Header) -> Result<Self> {
        let file = File::options().write(true).create_new(true).open(path).map_err(|error| {
            if path.is_dir() {
                let what = format!("{} is a directory: name a file in it", path.display());
                return Error::invalid(what);
            }
            if error.kind() == std::io::ErrorKind::AlreadyExists {
                let what = format!(
                    "{} exists: name another file, or say --resume to go on with it",
                    path.display()
                );
                return Error::AlreadyExists(what);
            }
            Error::io(format!("cannot write {}", path.display()), error)
        })?;
        let mut writer = Self { file, path: path.to_owned() };
        writer.append_line(header)?;
        Ok(writer)
    }

    /// Goes on with a file, behind its last whole line.
    ///
    /// # Errors
    /// `NotFound` if there is no such file; those of [`read`]; the operating system's.
    pub fn resume(path: &Path) -> Result<(Self, Results)> {
        let failed = |error| Error::io(format!("cannot write {}", path.display()), error);
        let opened = File::options().read(true).write(true).open(path);
        let file = opened.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                let what = format!("there are no results in {} to go on with", path.display());
                Error::io(what, error)
            }
            _ => failed(error),
        })?;
        let (results, whole_bytes) = read_from(&file, path)?;
        file.set_len(whole_bytes).map_err(failed)?;
        (&file).seek(SeekFrom::End(0)).map_err(failed)?;
        Ok((Self { file, path: path.to_owned() }, results))
    }

    /// Appends a run; durable when this returns.
    ///
    /// # Errors
    /// The operating system's.
    pub fn append(&mut self, run: &RunResult) -> Result<()> {
        self.append_line(run)
    }

    fn append_line(&mut self, value: &impl serde::Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(value).expect("results serialize");
        line.push(b'\n');
        self.file.write_all(&line).and_then(|()| self.file.sync_data()).map_err(|error| {
            let what = format!("cannot write the results to {}", self.path.display());
            Error::io(what, error)
        })
    }
}

/// Reads a file of results.
///
/// # Errors
/// `InvalidInput` with the line's number for what is no result of ours; `Unsupported` for another
/// version's; the operating system's.
pub fn read(path: &Path) -> Result<Results> {
    let file = File::open(path)
        .map_err(|error| Error::io(format!("cannot read {}", path.display()), error))?;
    read_from(&file, path).map(|(results, _)| results)
}

/// The results, and the bytes of all whole lines.
fn read_from(file: &File, path: &Path) -> Result<(Results, u64)> {
    let mut lines = Lines { reader: BufReader::new(file), path, number: 0, whole_bytes: 0 };
    let Some(first) = lines.next_line()? else {
        return Err(lines.wrong("there is no whole line: these are no results of a benchmark"));
    };
    let header = header(&lines, &first)?;
    let mut runs = Vec::new();
    while let Some(line) = lines.next_line()? {
        let run: RunResult =
            serde_json::from_slice(&line).map_err(|error| lines.wrong(&error.to_string()))?;
        let plan = &header.plan;
        if run.test >= plan.tests.len() || run.level >= plan.levels.len() {
            return Err(lines.wrong("a run of a test or level that the plan does not have"));
        }
        if !(run.seconds.is_finite() && run.seconds >= 0.0) || run.interval_ns == 0 {
            return Err(lines.wrong("a run that took no time that could be"));
        }
        if runs.len() == RUNS_MAX {
            return Err(lines.wrong("more runs than any plan has"));
        }
        runs.push(run);
    }
    Ok((Results { header, runs }, lines.whole_bytes))
}

fn header(lines: &Lines<'_>, line: &[u8]) -> Result<Header> {
    let value: serde_json::Value = serde_json::from_slice(line)
        .map_err(|error| lines.wrong(&format!("no result of a benchmark: {error}")))?;
    match value.get("pumice_bench").and_then(serde_json::Value::as_u64) {
        Some(format) if format == u64::from(FORMAT) => {}
        Some(format) => {
            let what = format!("results of version {format}; this program reads {FORMAT}");
            return Err(Error::unsupported(format!("{}: {what}", lines.at())));
        }
        None => return Err(lines.wrong("no result of pumice bench")),
    }
    let header: Header =
        serde_json::from_value(value).map_err(|error| lines.wrong(&error.to_string()))?;
    header
        .plan
        .check()
        .map_err(|error| Error::invalid_because(format!("{}: invalid plan", lines.at()), error))?;
    Ok(header)
}

/// Whole lines of a file.
struct Lines<'a> {
    reader: BufReader<&'a File>,
    path: &'a Path,
    /// Of the line read last, from 1.
    number: u64,
    whole_bytes: u64,
}

impl Lines<'_> {
    /// The next line with its end; `None` behind the last whole one.
    fn next_line(&mut self) -> Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let limited = (&mut self.reader).take(LINE_BYTES_MAX);
        let read = { limited }.read_until(b'\n', &mut line);
        read.map_err(|error| Error::io(format!("cannot read {}", self.path.display()), error))?;
        self.number += 1;
        if line.last() == Some(&b'\n') {
            self.whole_bytes += line.len() as u64;
            return Ok(Some(line));
        }
        match line.len() as u64 {
            LINE_BYTES_MAX => Err(self.wrong("the line is too long")),
            _ => Ok(None),
        }
    }

    fn at(&self) -> String {
        format!("{}, line {}", self.path.display(), self.number)
    }

    fn wrong(&self, what: &str) -> Error {
        Error::invalid(format!("{}: {what}", self.at()))
    }
}

#[cfg(test)]
mod tests;
