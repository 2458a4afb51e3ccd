//! Copies files within a file system, as a user does with copy and paste, and measures the time.
//!
//! ```text
//! write the files -> sync the file system -> drop the files from the page cache -> clock
//!    -> copy one file after the other -> sync the file system -> clock -> remove the copies
//! ```
//!
//! The copy uses the page cache, as every copying program does. The sync is part of the measured
//! time, because a copy in memory is not durable. A sync also writes the dirty pages of other
//! programs; an earlier, untimed sync has therefore written the pages that were already dirty.
//!
//! All files are in a separate folder, which is removed when [`Files`] is dropped. This module
//! prints nothing.

use std::fs::{self, File};
use std::io::{ErrorKind as IoKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, copy_file_range, fadvise, syncfs};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

use super::engine::{INTERVAL_NS_MIN, Sample};
use crate::error::{Error, Result};
use crate::payload::Payload;
use crate::stats::Latencies;
use crate::workload::{Flush, Operation, Workload};

/// Buffer size for writing the files before they are copied, in bytes.
const WRITE_BYTES: usize = 1 << 20;

/// Maximum bytes per `copy_file_range`: large enough for a file system that shares extents, and
/// small enough that the stop flag is checked regularly.
const RANGE_BYTES_MAX: usize = 128 << 20;

/// Files that can be copied.
pub(super) struct Files {
    folder: TempDir,
    sizes: Vec<u64>,
    workload: Workload,
    level: usize,
}

impl Files {
    /// Writes the files of a workload into a new folder below `folder`, with the data of a level,
    /// starting with stream number `stream`. Setting `stop` ends this early.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an operation that does not copy files; [`Error::Io`].
    pub(super) fn write(
        folder: &Path,
        workload: &Workload,
        level: usize,
        payload: &Payload,
        (stream, seed): (u64, u64),
        stop: &AtomicBool,
    ) -> Result<Self> {
        let set = workload.operation.file_set().ok_or_else(|| {
            Error::invalid(format!("{} copies no files", workload.operation.name()))
        })?;
        let failed = |error| Error::io(format!("cannot write to {}", folder.display()), error);
        let made = tempfile::Builder::new().prefix("pumice-bench-copy-").tempdir_in(folder);
        let sizes = set.sizes(workload.span_bytes, seed);
        let files =
            Self { folder: made.map_err(failed)?, sizes, workload: workload.clone(), level };
        let mut data = payload.stream(stream);
        let mut buffer = vec![0; WRITE_BYTES];
        let written = (|| -> std::io::Result<()> {
            fs::create_dir(files.source())?;
            for (number, size) in files.sizes.iter().enumerate() {
                let mut file = File::create_new(name(&files.source(), number))?;
                let mut left = *size;
                while left > 0 && !stop.load(Ordering::Relaxed) {
                    let part = left.min(WRITE_BYTES as u64) as usize;
                    data.fill(&mut buffer[..part]);
                    file.write_all(&buffer[..part])?;
                    left -= part as u64;
                }
            }
            Ok(())
        })();
        written.map_err(failed)?;
        Ok(files)
    }

    /// Returns whether these files belong to this workload and contain this level's data.
    pub(super) fn are_of(&self, workload: &Workload, level: usize) -> bool {
        let set = |workload: &Workload| workload.operation.file_set();
        let is_same_set = set(&self.workload) == set(workload);
        is_same_set && self.workload.span_bytes == workload.span_bytes && self.level == level
    }

    /// Copies all files and returns the measurements; each copied file counts as one request.
    /// Setting `stop` ends the copying early; the sample is then not a measurement.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the file system has no `copy_file_range`; [`Error::Io`].
    pub(super) fn copy(&self, workload: &Workload, stop: &AtomicBool) -> Result<Sample> {
        let shown = self.folder.path().display();
        let failed = |error: std::io::Error| match error.kind() {
            IoKind::Unsupported | IoKind::CrossesDevices => {
                let what = format!("the file system of {shown} does not support copy_file_range");
                Error::unsupported_because(what, error)
            }
            _ => Error::io(format!("cannot copy files in {shown}"), error),
        };
        let root = File::open(self.folder.path()).map_err(failed)?;
        self.forget(&root).map_err(failed)?;
        let target = self.folder.path().join("copy");
        let mut latency = Latencies::new();
        let mut buffer = vec![0; workload.record_bytes as usize];
        let begun_ns = now_ns();
        let copied = (|| -> std::io::Result<()> {
            fs::create_dir(&target)?;
            for number in 0..self.sizes.len() {
                let [from, to] = [&self.source(), &target].map(|folder| name(folder, number));
                let file_begun_ns = now_ns();
                let (from, to) = (File::open(from)?, File::create_new(to)?);
                match workload.operation {
                    Operation::CopyRange => by_range(&from, &to, stop)?,
                    _ => by_buffer(from, to, &mut buffer, stop)?,
                }
                latency.record((now_ns() - file_begun_ns).max(1));
            }
            Ok(())
        })();
        copied.map_err(failed)?;
        let copied_ns = now_ns();
        syncfs(&root).map_err(|errno| failed(errno.into()))?;
        let synced_ns = now_ns();
        fs::remove_dir_all(&target).map_err(failed)?;
        let bytes = self.sizes.iter().sum();
        let ended_ns = end_ns(workload.flush, copied_ns, synced_ns);
        Ok(Sample {
            seconds: (ended_ns - begun_ns) as f64 / 1e9,
            flush_seconds: (synced_ns - copied_ns) as f64 / 1e9,
            operations: self.sizes.len() as u64,
            host_bytes: bytes,
            written_bytes: bytes,
            latency,
            interval_ns: INTERVAL_NS_MIN,
            intervals: Vec::new(),
            spots: Vec::new(),
            generation_share: 0.0,
        })
    }

    fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    /// Makes everything durable and drops the files from the page cache.
    fn forget(&self, root: &File) -> std::io::Result<()> {
        syncfs(root)?;
        for number in 0..self.sizes.len() {
            let file = File::open(name(&self.source(), number))?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
        Ok(())
    }
}

/// Copies a file with reads and writes.
fn by_buffer(
    mut from: File,
    mut to: File,
    buffer: &mut [u8],
    stop: &AtomicBool,
) -> std::io::Result<()> {
    while !stop.load(Ordering::Relaxed) {
        match from.read(buffer) {
            Ok(0) => break,
            Ok(count) => to.write_all(&buffer[..count])?,
            Err(error) if error.kind() == IoKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Copies a file with `copy_file_range`.
fn by_range(from: &File, to: &File, stop: &AtomicBool) -> std::io::Result<()> {
    while !stop.load(Ordering::Relaxed) {
        match copy_file_range(from, None, to, None, RANGE_BYTES_MAX) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Returns the end time of a copy that was synced at `synced_ns`.
fn end_ns(flush: Flush, copied_ns: u64, synced_ns: u64) -> u64 {
    if flush == Flush::Untimed { copied_ns } else { synced_ns }
}

fn name(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("{number:06}"))
}

fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    //! Goal: a copy is complete, is counted correctly, and leaves no files. Method: real files in a
    //! temporary folder.
    use super::*;
    use crate::bench::results::sample;
    use crate::payload::{Kind, PayloadOptions, Saving};

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn workload(operation: Operation) -> Workload {
        Workload { depth: 1, span_bytes: 3_000_001, ..sample::workload(operation, 1 << 20) }
    }

    fn payload() -> Payload {
        Payload::new(PayloadOptions::new(Kind::Exact(Saving::from_fraction(0.5)))).unwrap()
    }

    fn written(folder: &Path, workload: &Workload) -> Files {
        Files::write(folder, workload, 1, &payload(), (9, 4), &NEVER).unwrap()
    }

    #[test]
    fn every_set_is_copied_whole_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        for operation in Operation::ALL.into_iter().filter(|it| it.file_set().is_some()) {
            let workload = workload(operation);
            let files = written(folder.path(), &workload);
            let count = files.sizes.len();
            let sample = files.copy(&workload, &NEVER).unwrap();
            assert_eq!((sample.host_bytes, sample.written_bytes), (3_000_001, 3_000_001));
            assert_eq!((sample.operations, sample.latency.count()), (count as u64, count as u64));
            assert!(sample.seconds >= sample.flush_seconds && sample.seconds > 0.0);
            let left: Vec<_> = fs::read_dir(files.folder.path()).unwrap().flatten().collect();
            assert_eq!(left.len(), 1, "only the source is left");
            drop(files);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }

    /// Guards against a copy with wrong or missing bytes.
    #[test]
    fn copies_have_the_bytes_of_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let files = written(folder.path(), &workload(Operation::CopyFile));
        let from = name(&files.source(), 0);
        let bytes = fs::read(&from).unwrap();
        let mut units = vec![0; 1 << 20];
        payload().stream(9).fill(&mut units);
        assert!(bytes.len() == 3_000_001 && bytes[..1 << 20] == units);
        for (number, operation) in [Operation::CopyFile, Operation::CopyRange].iter().enumerate() {
            let to = folder.path().join(number.to_string());
            let (source, target) = (File::open(&from).unwrap(), File::create_new(&to).unwrap());
            match operation {
                Operation::CopyRange => by_range(&source, &target, &NEVER).unwrap(),
                _ => by_buffer(source, target, &mut [0; 4096], &NEVER).unwrap(),
            }
            assert!(fs::read(to).unwrap() == bytes, "{operation:?}");
        }
    }

    /// Guards against measuring the speed of memory, when no data has reached the device.
    #[test]
    fn the_sync_is_timed_unless_told() {
        assert_eq!(end_ns(Flush::default(), 5, 9), 9);
        assert_eq!((end_ns(Flush::EachWrite, 5, 9), end_ns(Flush::Untimed, 5, 9)), (9, 5));
    }

    #[test]
    fn files_are_known_by_their_set_and_data() {
        let folder = tempfile::tempdir().unwrap();
        let file = workload(Operation::CopyFile);
        let files = written(folder.path(), &file);
        assert!(files.are_of(&file, 1) && files.are_of(&workload(Operation::CopyRange), 1));
        assert!(!files.are_of(&file, 0) && !files.are_of(&workload(Operation::CopyIso), 1));
        assert!(!files.are_of(&Workload { span_bytes: 5, ..file }, 1));
    }
}
