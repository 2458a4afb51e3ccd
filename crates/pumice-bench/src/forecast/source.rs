//! Workloads by name or from a file: an operation, a preset, another tool's file or a trace.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::workload::{Changes, Ends, Flush, Operation, PRESETS, Pattern, Preset, Test, Workload};
use pumice_drive::base::near::nearest;
use pumice_drive::base::units::{format_size, format_size_exact};
use pumice_sim::trace::{Format, Options as TraceOptions};

/// Spans are multiples of this size.
const BLOCK_BYTES: u64 = pumice_drive::base::units::BLOCK_BYTES as u64;

/// Bytes at the beginning of a file that identify the format.
const BEGINNING_BYTES: u64 = 64 << 10;

/// Default number of requests in flight for an operation: the depth of NCQ.
const DEPTH: u32 = 32;

/// Default duration of a read-only operation, in seconds.
const SECONDS: f64 = 10.0;

/// A named workload or trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Name.
    pub name: String,
    /// Workload or trace.
    pub load: Load,
}

/// The activity of a host.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// A checked workload.
    Steps(Workload),
    /// A recorded trace.
    Trace(TraceLoad),
}

/// A trace, and the options for reading it.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceLoad {
    /// The file.
    pub path: PathBuf,
    /// See [`TraceOptions`].
    pub options: TraceOptions,
    /// Whether requests beyond the end of the drive are mapped into it.
    pub folds: bool,
}

/// Changes to a workload from a command line.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Changes to a preset or an operation.
    pub changes: Changes,
    /// The options for reading a trace.
    pub trace: TraceOptions,
    /// See [`TraceLoad::folds`].
    pub folds: bool,
}

impl Asked {
    /// Returns the parameters for a drive of `size_bytes` that is represented by a simulated drive
    /// of `simulated_bytes`. A span keeps its proportion of the drive.
    ///
    /// # Errors
    /// The span is larger than the drive.
    pub fn scaled(&self, size_bytes: u64, simulated_bytes: u64) -> Result<Self> {
        let mut asked = self.clone();
        if let Some(span) = &mut asked.changes.span_bytes {
            if *span > size_bytes {
                return Err(beyond("a span", *span, size_bytes));
            }
            if simulated_bytes < size_bytes / BLOCK_BYTES * BLOCK_BYTES {
                let part = *span as f64 / size_bytes as f64 * simulated_bytes as f64;
                *span = (part as u64 / BLOCK_BYTES * BLOCK_BYTES).max(BLOCK_BYTES);
            }
        }
        Ok(asked)
    }
}

/// A workload before it is adapted to a drive.
#[derive(Clone, Debug)]
pub enum Source {
    /// A preset.
    Preset(Box<Preset>),
    /// One operation.
    Operation(Operation),
    /// A trace.
    Trace(TraceLoad),
}

fn invalid(what: impl Into<String>) -> Error {
    Error::invalid(what.into())
}

impl Source {
    /// Finds a workload. Returns it with remarks about options that are not simulated.
    ///
    /// # Errors
    /// [`Error::NotFound`] with a suggestion; [`Error::Invalid`] for a file of unknown format.
    pub fn find(name: &str, asked: &Asked) -> Result<(Self, Vec<String>)> {
        if PRESETS.iter().any(|(known, _)| *known == name) {
            return Ok((Self::Preset(Box::new(Preset::load(name)?)), Vec::new()));
        }
        if let Some(operation) = Operation::ALL.into_iter().find(|it| it.name() == name) {
            return Ok((Self::Operation(operation), Vec::new()));
        }
        let path = Path::new(name);
        if !path.exists() {
            return Err(Error::NotFound(not_found(name)));
        }
        if path.extension().is_some_and(|ending| ending == "toml") {
            return Ok((Self::Preset(Box::new(Preset::load(name)?)), Vec::new()));
        }
        let mut beginning = Vec::new();
        File::open(path)
            .and_then(|file| file.take(BEGINNING_BYTES).read_to_end(&mut beginning))
            .map_err(|error| Error::io(format!("cannot read {name}"), error))?;
        let trace = TraceLoad { path: path.into(), options: asked.trace, folds: asked.folds };
        if asked.trace.format.or_else(|| Format::detect(&beginning)).is_some() {
            return Ok((Self::Trace(trace), Vec::new()));
        }
        if Preset::is_of_another_tool(&String::from_utf8_lossy(&beginning)) {
            let preset = Preset::load(name)?;
            let remarks = preset.notes.clone();
            return Ok((Self::Preset(Box::new(preset)), remarks));
        }
        let formats = Format::ALL.map(Format::name).join(", ");
        let what = "is neither a preset (*.toml, a fio job) nor a trace: specify --format";
        Err(invalid(format!("{name} {what} ({formats})")))
    }

    /// Returns whether the addresses scale with the size of the drive, so that a smaller drive can
    /// represent it; see [`Preset::is_relative`]. Traces do not scale.
    pub fn is_relative(&self) -> bool {
        match self {
            Self::Preset(preset) => preset.is_relative(),
            Self::Operation(_) => true,
            Self::Trace(_) => false,
        }
    }

    /// Returns the cases for a drive of this size.
    ///
    /// # Errors
    /// A workload does not fit on the drive.
    pub fn cases(&self, size_bytes: u64, asked: &Asked) -> Result<Vec<Case>> {
        let changes = &asked.changes;
        if let Some(span) = changes.span_bytes.filter(|span| *span > size_bytes) {
            return Err(beyond("a span", span, size_bytes));
        }
        match self {
            Self::Trace(trace) => {
                let name = trace.path.file_name().unwrap_or(trace.path.as_os_str());
                let name = name.to_string_lossy().into_owned();
                Ok(vec![Case { name, load: Load::Trace(trace.clone()) }])
            }
            Self::Operation(operation) => {
                let what = match operation {
                    _ if operation.is_stdio() => "uses a buffer of the host",
                    _ if operation.file_set().is_some() => "copies files of a file system",
                    _ => "",
                };
                if !what.is_empty() {
                    let what = format!("{} {what}", operation.name());
                    return Err(invalid(format!("{what}, which forecasts do not simulate")));
                }
                let is_serial = operation.is_serial();
                let is_random = operation.is_timed();
                let records = match changes.records.as_slice() {
                    [] => vec![if is_random { 4096 } else { 128 << 10 }],
                    records => records.to_vec(),
                };
                let workload = |record_bytes: u64| {
                    let workload = Workload {
                        operation: *operation,
                        record_bytes,
                        depth: if is_serial { 1 } else { changes.depth.unwrap_or(DEPTH) },
                        threads: if is_serial { 1 } else { changes.threads.unwrap_or(1) },
                        span_bytes: changes.span_bytes.unwrap_or(size_bytes),
                        shift_bytes: changes.shift_bytes.unwrap_or(0),
                        pattern: changes.pattern.unwrap_or_default(),
                        reads_percent: 50,
                        seconds: changes.seconds.unwrap_or(SECONDS),
                        flush: changes.flush.unwrap_or_default(),
                        ends: Ends::Usual,
                        mix: Vec::new(),
                    };
                    let name = described(&workload);
                    case(name, fitted(workload, size_bytes))
                };
                records.into_iter().map(workload).collect()
            }
            Self::Preset(preset) => {
                let whole_bytes = Some(size_bytes);
                let own = changes.span_bytes.or(whole_bytes.filter(|_| !preset.is_imported));
                let changes = Changes { span_bytes: own, whole_bytes, ..changes.clone() };
                let mut plan = preset.plan(&changes)?;
                plan.leave_out_stdio();
                plan.leave_out_copies();
                let test = |Test { name, workload, .. }: Test| {
                    let end = workload.end_bytes();
                    if workload.span_bytes != size_bytes && end > size_bytes && preset.is_imported {
                        return Err(beyond(&format!("test '{name}'"), end, size_bytes));
                    }
                    case(name, fitted(workload, size_bytes))
                };
                plan.tests.into_iter().map(test).collect()
            }
        }
    }
}

fn case(name: String, workload: Workload) -> Result<Case> {
    let named = |error: Error| error.context(name.clone());
    workload.check().map_err(named)?;
    Ok(Case { name, load: Load::Steps(workload) })
}

fn beyond(what: &str, end_bytes: u64, size_bytes: u64) -> Error {
    let (end, size) = (format_size(end_bytes), format_size(size_bytes));
    invalid(format!("{what} of {end} extends beyond the drive of {size}: make it smaller"))
}

/// Returns the workload with a span that consists of whole records and does not extend beyond the
/// end of the drive.
fn fitted(mut workload: Workload, size_bytes: u64) -> Workload {
    let left = size_bytes.saturating_sub(workload.shift_bytes);
    let record = workload.record_bytes.max(1);
    workload.span_bytes = workload.span_bytes.min(left) / record * record;
    workload
}

/// Returns a name for an unnamed workload.
pub(super) fn described(workload: &Workload) -> String {
    let mut name = workload.operation.name().replace('-', " ");
    if workload.operation == Operation::Mixed {
        name = format!("{} % reads", workload.reads_percent);
    }
    name += &format!(", {}", format_size_exact(workload.record_bytes));
    if workload.operation.is_timed() && workload.pattern != Pattern::Uniform {
        name += &format!(", {}", workload.pattern);
    }
    if workload.depth > 1 {
        name += &format!(", depth {}", workload.depth);
    }
    if workload.threads > 1 {
        name += &format!(", {} threads", workload.threads);
    }
    if workload.flush == Flush::EachWrite {
        name += ", each write flushed";
    }
    name
}

fn not_found(name: &str) -> String {
    let presets = PRESETS.map(|(known, _)| known);
    let operations = Operation::ALL.map(Operation::name);
    let near = nearest(name, &presets).or_else(|| nearest(name, &operations));
    let hint = near.map_or(".".into(), |near| format!(", did you mean {near}?"));
    let is_simulated = |it: &Operation| !it.is_stdio() && it.file_set().is_none();
    let operations: Vec<&str> =
        Operation::ALL.into_iter().filter(is_simulated).map(Operation::name).collect();
    format!(
        "no workload or file with the name {name}{hint} Presets: {}; operations: {}",
        presets.join(", "),
        operations.join(", ")
    )
}
