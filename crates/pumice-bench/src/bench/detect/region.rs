//! The tested part of a target: recreated before each run, written and read with only the requests
//! timed, and cleaned up on drop.
//!
//! Requests are issued one at a time, because a queue would hide the cost of each. A file is
//! removed and recreated before each run: a file system may record attributes of its data (for
//! example btrfs: not compressible), which must not affect the next run.

use std::cell::Cell;
use std::fs::File;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, fadvise, syncfs};

use super::data::Maker;
use crate::bench::shutdown::until_stopped;
use crate::bench::target::{Access, FileTarget, Location, NbdTarget, Target, open_drive};
use crate::error::{Error, Result};
use pumice_drive::base::{AlignedBuffer, Clock};
use pumice_drive::controller::Drive;
use pumice_drive::controller::Info;
use pumice_drive::runtime::{Backend, Runtime};

/// Bytes of each request: twice the largest compression unit of common file systems.
pub(super) const RECORD_BYTES: u64 = 256 << 10;

/// Settings of a detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The mode in which the target is opened.
    pub access: Access,
    /// Allows overwriting existing data on the target.
    pub destroy: bool,
    /// Bytes of each run: at least [`SPAN_BYTES_MIN`](super::SPAN_BYTES_MIN), a multiple of
    /// 256 KiB.
    pub span_bytes: u64,
    /// Seed of the data and of the order of runs.
    pub seed: u64,
}

/// A target under test.
pub(super) struct Region<'a> {
    location: &'a Location,
    access: Access,
    span_bytes: u64,
    stop: &'a AtomicBool,
    runtime: Runtime,
    /// The open drive, if the location is a drive; the drive's file itself is never a target.
    drive: Option<Rc<Drive>>,
    /// The connection, if the location is an export.
    export: Option<Rc<NbdTarget>>,
    trims: bool,
    /// Whether the target did not respond after a stop; it is no longer used.
    is_silent: Cell<bool>,
}

/// An open target.
enum Opened {
    File(FileTarget),
    Drive(Rc<Drive>),
    Export(Rc<NbdTarget>),
}

impl Opened {
    async fn read(&self, offset: u64, mut buffer: AlignedBuffer) -> (AlignedBuffer, Result<()>) {
        match self {
            Self::File(file) => file.read(offset, buffer).await,
            Self::Export(export) => export.read(offset, buffer).await,
            Self::Drive(drive) => {
                let result = drive.read(offset, &mut buffer).await;
                (buffer, result.map_err(Error::from))
            }
        }
    }

    async fn write(&self, offset: u64, buffer: &Arc<AlignedBuffer>) -> Result<()> {
        match self {
            Self::File(file) => file.write(offset, buffer).await,
            Self::Export(export) => export.write(offset, buffer).await,
            Self::Drive(drive) => Ok(drive.write(offset, buffer).await?),
        }
    }

    async fn flush(&self) -> Result<()> {
        match self {
            Self::File(file) => file.flush().await,
            Self::Export(export) => export.flush().await,
            Self::Drive(drive) => Ok(drive.flush().await?),
        }
    }

    async fn trim(&self, len: u64) -> Result<()> {
        match self {
            Self::File(file) => file.trim(0, len).await,
            Self::Export(export) => export.trim(0, len).await,
            Self::Drive(drive) => Ok(drive.trim(0, len).await?),
        }
    }
}

impl<'a> Region<'a> {
    /// Prepares the target as [`Location::prepare`] does.
    ///
    /// # Errors
    /// The errors of [`Location::prepare`] and of opening a drive or export.
    pub(super) fn open(
        location: &'a Location,
        settings: Settings,
        stop: &'a AtomicBool,
    ) -> Result<Self> {
        let Settings { access, destroy, span_bytes, .. } = settings;
        let runtime = Runtime::new(Backend::Auto)?;
        location.prepare(span_bytes, destroy)?;
        let drive = match location {
            Location::Drive(file) => Some(runtime.block_on(open_drive(&runtime, file))?),
            _ => None,
        };
        let export = match location {
            Location::Nbd(uri) => Some(Rc::new(runtime.block_on(NbdTarget::open(&runtime, uri))?)),
            _ => None,
        };
        let is_silent = Cell::new(false);
        let trims = true;
        Ok(Self { location, access, span_bytes, stop, runtime, drive, export, trims, is_silent })
    }

    /// Returns whether the device has freed its old blocks before every run so far.
    pub(super) fn trims(&self) -> bool {
        self.trims
    }

    /// Returns the counters of a drive.
    pub(super) fn drive_info(&self) -> Option<Info> {
        self.drive.as_ref().map(|drive| drive.info())
    }

    /// Resets the target to its unwritten state.
    ///
    /// # Errors
    /// The errors of the target. A target that cannot trim is not an error.
    pub(super) fn refresh(&mut self) -> Result<()> {
        if self.location.is_made() {
            // The file is truncated first: a descriptor that is still being closed would hold its
            // blocks.
            self.location.empty()?;
            self.location.remove();
            let path = self.location.path().unwrap_or_default();
            let made = File::options().write(true).create_new(true).open(&path);
            made.map_err(|error| Error::io(format!("cannot create {}", path.display()), error))?;
        } else {
            match self.trim() {
                Err(error) if error.is_unsupported() => self.trims = false,
                other => other?,
            }
        }
        // Freed space becomes available only when the transaction that freed it has ended.
        self.settle()?;
        self.settle()
    }

    fn trim(&self) -> Result<()> {
        let opened = self.opened()?;
        let trimmed = self.run(async {
            opened.trim(self.span_bytes).await?;
            opened.flush().await.map(Some)
        });
        trimmed.map(|_| ())
    }

    /// Runs `work` to completion. Returns `None` if it was stopped, or abandoned after a stop.
    fn run<T>(&self, work: impl Future<Output = Result<Option<T>>>) -> Result<Option<T>> {
        if self.is_silent.get() {
            return Ok(None);
        }
        let work = until_stopped(&self.runtime, self.stop, || {}, work);
        self.runtime.block_on(work).unwrap_or_else(|| {
            self.is_silent.set(true);
            Ok(None)
        })
    }

    /// Waits until the file system has written everything, including its space accounting.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn settle(&self) -> Result<()> {
        if !self.location.is_made() {
            return Ok(());
        }
        let failed = |error| Error::io(format!("cannot sync {}", self.location), error);
        let file = File::open(self.location.path().unwrap_or_default()).map_err(failed)?;
        syncfs(&file).map_err(|errno| failed(errno.into()))
    }

    /// Writes and flushes the span. Returns the duration of the requests and the flush in seconds,
    /// or `None` if it was stopped.
    ///
    /// # Errors
    /// The errors of the target.
    pub(super) fn write(&self, maker: &Maker) -> Result<Option<f64>> {
        let opened = self.opened()?;
        self.run(async {
            let mut buffer = Arc::new(AlignedBuffer::zeroed(RECORD_BYTES as usize));
            let mut spent_ns = 0;
            for offset in (0..self.span_bytes).step_by(RECORD_BYTES as usize) {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                match Arc::get_mut(&mut buffer) {
                    Some(bytes) => maker.fill(offset, bytes),
                    // The target still holds a reference to the previous buffer.
                    None => {
                        let mut bytes = AlignedBuffer::zeroed(RECORD_BYTES as usize);
                        maker.fill(offset, &mut bytes);
                        buffer = Arc::new(bytes);
                    }
                }
                let begun_ns = self.runtime.now_ns();
                opened.write(offset, &buffer).await?;
                spent_ns += self.runtime.now_ns() - begun_ns;
            }
            let begun_ns = self.runtime.now_ns();
            opened.flush().await?;
            spent_ns += self.runtime.now_ns() - begun_ns;
            Ok(Some(spent_ns as f64 / 1e9))
        })
    }

    /// Reads the span, bypassing the page cache. Returns the duration of the requests in seconds,
    /// or `None` if it was stopped.
    ///
    /// # Errors
    /// The errors of the target.
    pub(super) fn read(&self) -> Result<Option<f64>> {
        self.drop_cache()?;
        let opened = self.opened()?;
        self.run(async {
            let mut buffer = AlignedBuffer::zeroed(RECORD_BYTES as usize);
            let mut spent_ns = 0;
            for offset in (0..self.span_bytes).step_by(RECORD_BYTES as usize) {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                let begun_ns = self.runtime.now_ns();
                let (bytes, result) = opened.read(offset, buffer).await;
                buffer = bytes;
                result?;
                spent_ns += self.runtime.now_ns() - begun_ns;
            }
            Ok(Some(spent_ns as f64 / 1e9))
        })
    }

    /// Drops the written data from the page cache. All of it is durable by then, so all of it can
    /// be dropped.
    fn drop_cache(&self) -> Result<()> {
        if self.drive.is_some() || self.export.is_some() || self.access.direct {
            return Ok(());
        }
        let failed = |error| Error::io(format!("cannot read {}", self.location), error);
        let file = File::open(self.location.path().unwrap_or_default()).map_err(failed)?;
        let dropped = fadvise(&file, 0, None, Advice::DontNeed);
        dropped.map_err(|errno| failed(errno.into()))
    }

    fn opened(&self) -> Result<Opened> {
        Ok(match (&self.drive, &self.export) {
            (Some(drive), _) => Opened::Drive(Rc::clone(drive)),
            (_, Some(export)) => Opened::Export(Rc::clone(export)),
            _ => Opened::File(FileTarget::open(&self.runtime, self.location, self.access)?),
        })
    }
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        // The result is known, or an error is being returned; cleanup errors change neither.
        if self.location.is_made() {
            self.location.remove();
        } else {
            let _ = self.trim();
        }
        if let Some(drive) = self.drive.take() {
            let _ = self.runtime.block_on(drive.close());
        }
        if let Some(export) = self.export.take() {
            let _ = self.run(async { export.close().await.map(Some) });
        }
        self.runtime.drop_tasks();
    }
}
