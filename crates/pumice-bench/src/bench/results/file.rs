//! A result file: one line of JSON for the header of each target, and one for each run.
//!
//! A single target has one header. If targets take turns, the first header contains the number of
//! targets, and each run of a target other than the first contains the target's index.
//!
//! The line of a run is appended and made durable when the run has ended, so that a later failure
//! loses no finished run. An interruption may leave an incomplete last line. Readers skip it, and
//! writers truncate it before they append. Files are not trusted: a malformed line is an error that
//! contains the line number.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{FORMAT, Header, Results, RunResult, TARGETS_MAX};
use crate::error::{Error, Result};

/// Maximum length of a line. The histogram of a run has at most 40,000 pairs.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// Maximum number of runs in a file. The results of the largest possible plan would not fit into
/// memory.
const RUNS_MAX: usize = 1_000_000;

/// A result file open for appending.
pub struct Writer {
    file: File,
    path: PathBuf,
}

impl Writer {
    /// Creates a file with these headers, one for each target.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`]; [`Error::Invalid`] for a directory; [`Error::Io`].
    pub fn create(path: &Path, headers: &[Header]) -> Result<Self> {
        let file = File::options().write(true).create_new(true).open(path).map_err(|error| {
            if path.is_dir() {
                let what = format!("{} is a directory: specify a file in it", path.display());
                return Error::invalid(what);
            }
            if error.kind() == std::io::ErrorKind::AlreadyExists {
                let what = format!(
                    "{} exists: specify another file, or continue it with --resume",
                    path.display()
                );
                return Error::AlreadyExists(what);
            }
            Error::io(format!("cannot write {}", path.display()), error)
        })?;
        let mut writer = Self { file, path: path.to_owned() };
        for header in headers {
            writer.append_line(header)?;
        }
        Ok(writer)
    }

    /// Opens a file for appending after its last complete line.
    ///
    /// # Errors
    /// The errors of [`read`].
    pub fn resume(path: &Path) -> Result<(Self, Vec<Results>)> {
        let failed = |error| Error::io(format!("cannot write {}", path.display()), error);
        let opened = File::options().read(true).write(true).open(path);
        let file = opened.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                let what = format!("no results to continue in {}", path.display());
                Error::io(what, error)
            }
            _ => failed(error),
        })?;
        let (results, whole_bytes) = read_from(&file, path)?;
        file.set_len(whole_bytes).map_err(failed)?;
        (&file).seek(SeekFrom::End(0)).map_err(failed)?;
        Ok((Self { file, path: path.to_owned() }, results))
    }

    /// Appends a run of the target with this index. The run is durable when this returns.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn append(&mut self, target: usize, run: &RunResult) -> Result<()> {
        self.append_line(&Line { target, run })
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

/// The line of a run.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Line<T> {
    /// Index of the target among the targets that took turns; absent for the first.
    #[serde(default, skip_serializing_if = "is_first")]
    target: usize,
    #[serde(flatten)]
    run: T,
}

fn is_first(target: &usize) -> bool {
    *target == 0
}

/// Returns the JSON schema of a line of a result file.
pub fn line_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "The headers of all targets come first, then a line for each run.",
        "oneOf": [
            generator.subschema_for::<Header>(),
            generator.subschema_for::<Line<RunResult>>(),
        ],
    })
}

/// Reads a result file. Returns the results of each target; there is at least one.
///
/// # Errors
/// [`Error::Results`] with the line number for malformed results; [`Error::Unsupported`] for
/// another version; [`Error::Io`].
pub fn read(path: &Path) -> Result<Vec<Results>> {
    let file = File::open(path)
        .map_err(|error| Error::io(format!("cannot read {}", path.display()), error))?;
    read_from(&file, path).map(|(results, _)| results)
}

/// Returns the results, and the total length of all complete lines in bytes.
fn read_from(file: &File, path: &Path) -> Result<(Vec<Results>, u64)> {
    let mut lines = Lines { reader: BufReader::new(file), path, number: 0, whole_bytes: 0 };
    let Some(first) = lines.next_line()? else {
        return Err(lines.wrong("no complete line: this is not a file of benchmark results"));
    };
    let mut all = vec![Results { header: header(&lines, &first)?, runs: Vec::new() }];
    let targets = all[0].header.turns.as_ref().map_or(1, |turns| turns.of as usize);
    if !(1..=TARGETS_MAX).contains(&targets) {
        return Err(lines.wrong(&format!("{targets} targets: expected 1 to {TARGETS_MAX}")));
    }
    while all.len() < targets {
        let Some(line) = lines.next_line()? else {
            return Err(lines.wrong("the header of a target is missing"));
        };
        let header = header(&lines, &line)?;
        if header.plan != all[0].header.plan || !header.is_in_turns_with(&all[0].header) {
            return Err(lines.wrong("a target of another benchmark"));
        }
        all.push(Results { header, runs: Vec::new() });
    }
    let mut count = 0;
    while let Some(line) = lines.next_line()? {
        let Line { target, run } = run(&lines, &line, &all)?;
        if count == RUNS_MAX {
            return Err(lines.wrong("more runs than any plan has"));
        }
        count += 1;
        all[target].runs.push(run);
    }
    Ok((all, lines.whole_bytes))
}

fn run(lines: &Lines<'_>, line: &[u8], all: &[Results]) -> Result<Line<RunResult>> {
    let line: Line<RunResult> =
        serde_json::from_slice(line).map_err(|error| lines.wrong(&error.to_string()))?;
    let Line { target, run } = &line;
    let plan = &all[0].header.plan;
    if *target >= all.len() {
        return Err(lines.wrong("a run of a target that no header describes"));
    }
    if run.test >= plan.tests.len() || run.level >= plan.levels.len() {
        return Err(lines.wrong("a run of a test or level that the plan does not contain"));
    }
    if !(run.sample.seconds.is_finite() && run.sample.seconds >= 0.0) || run.sample.interval_ns == 0
    {
        return Err(lines.wrong("a run with an invalid duration"));
    }
    Ok(line)
}

fn header(lines: &Lines<'_>, line: &[u8]) -> Result<Header> {
    let value: serde_json::Value = serde_json::from_slice(line)
        .map_err(|error| lines.wrong(&format!("not a benchmark result: {error}")))?;
    match value.get("pumice_bench").and_then(serde_json::Value::as_u64) {
        Some(format) if (1..=u64::from(FORMAT)).contains(&format) => {}
        Some(format) => {
            let what = format!("results of version {format}; this program reads up to {FORMAT}");
            return Err(Error::unsupported(format!("{}: {what}", lines.at())));
        }
        None => return Err(lines.wrong("not a result of pumice bench")),
    }
    let header: Header =
        serde_json::from_value(value).map_err(|error| lines.wrong(&error.to_string()))?;
    header
        .plan
        .check()
        .map_err(|error| Error::invalid_because(format!("{}: invalid plan", lines.at()), error))?;
    Ok(header)
}

/// Complete lines of a file.
struct Lines<'a> {
    reader: BufReader<&'a File>,
    path: &'a Path,
    /// Number of the last line read, starting at 1.
    number: u64,
    whole_bytes: u64,
}

impl Lines<'_> {
    /// Returns the next line including its line feed; `None` after the last complete line.
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
        Error::Results {
            path: self.path.display().to_string(),
            line: self.number,
            what: what.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
