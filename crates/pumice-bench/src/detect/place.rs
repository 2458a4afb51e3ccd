//! The target while it is looked at: made fresh before each run, written and read with the clock
//! around the requests alone, cleaned up when dropped.
//!
//! Requests go one after the other: a queue would hide in its depth what the target does with each.
//! A file is removed and made anew before each run: what a file system notes in it about its data
//! (btrfs, that it does not compress) must not reach into the next.

use std::cell::Cell;
use std::fs::File;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, fadvise, syncfs};

use super::data::Maker;
use crate::patience::patiently;
use crate::target::{Access, FileTarget, Location, NbdTarget, Target};
use pumice_drive::base::{AlignedBuffer, Clock, Error, ErrorKind, Result};
use pumice_drive::controller::{Drive, Info, OpenOptions};
use pumice_drive::media::file::{self, FileMedium};
use pumice_drive::runtime::{Backend, Runtime};

/// Bytes of each request: the most that common file systems compress as one, twice.
pub(super) const RECORD_BYTES: u64 = 256 << 10;

type OpenDrive = Rc<Drive<FileMedium, Runtime>>;

/// A target that is looked at.
pub(super) struct Place<'a> {
    location: &'a Location,
    access: Access,
    span_bytes: u64,
    stop: &'a AtomicBool,
    runtime: Runtime,
    /// There if the location is a drive, until the end: its file is never a target itself.
    drive: Option<OpenDrive>,
    /// There if the location is an export, until the end.
    export: Option<Rc<NbdTarget>>,
    trims: bool,
    /// It did not answer in time when it was to stop, and is not asked any more.
    is_silent: Cell<bool>,
}

/// What a request goes to.
enum Opened {
    File(FileTarget),
    Drive(OpenDrive),
    Export(Rc<NbdTarget>),
}

impl Opened {
    async fn read(&self, offset: u64, mut buffer: AlignedBuffer) -> (AlignedBuffer, Result<()>) {
        match self {
            Self::File(file) => file.read(offset, buffer).await,
            Self::Export(export) => export.read(offset, buffer).await,
            Self::Drive(drive) => {
                let result = drive.read(offset, &mut buffer).await;
                (buffer, result)
            }
        }
    }

    async fn write(&self, offset: u64, buffer: &Arc<AlignedBuffer>) -> Result<()> {
        match self {
            Self::File(file) => file.write(offset, buffer).await,
            Self::Export(export) => export.write(offset, buffer).await,
            Self::Drive(drive) => drive.write(offset, buffer, false).await,
        }
    }

    async fn flush(&self) -> Result<()> {
        match self {
            Self::File(file) => file.flush().await,
            Self::Export(export) => export.flush().await,
            Self::Drive(drive) => drive.flush().await,
        }
    }

    async fn trim(&self, len: u64) -> Result<()> {
        match self {
            Self::File(file) => file.trim(0, len).await,
            Self::Export(export) => export.trim(0, len).await,
            Self::Drive(drive) => drive.trim(0, len, false).await,
        }
    }
}

impl<'a> Place<'a> {
    /// Makes the target ready as [`Location::prepare`] does.
    ///
    /// # Errors
    /// Those of [`Location::prepare`] and of opening a drive or export.
    pub(super) fn open(
        location: &'a Location,
        access: Access,
        destroy: bool,
        span_bytes: u64,
        stop: &'a AtomicBool,
    ) -> Result<Self> {
        let runtime = Runtime::new(Backend::Auto)?;
        location.prepare(span_bytes, destroy)?;
        let drive = match location {
            Location::Drive(path) => Some(open_drive(&runtime, path)?),
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

    /// Whether a device gave its old blocks back before each run so far.
    pub(super) fn trims(&self) -> bool {
        self.trims
    }

    /// What a drive says of itself.
    pub(super) fn drive_info(&self) -> Option<Info> {
        self.drive.as_ref().map(|drive| drive.info())
    }

    /// Makes the target as if nothing had been written to it.
    ///
    /// # Errors
    /// The target's; none if it cannot trim.
    pub(super) fn refresh(&mut self) -> Result<()> {
        if self.location.is_made() {
            // Emptied first: a descriptor that is still being closed would keep its blocks.
            self.location.empty()?;
            self.location.remove();
            let path = self.location.path().unwrap_or_default();
            let made = File::options().write(true).create_new(true).open(&path);
            made.map_err(|error| Error::os(format!("cannot make {}", path.display()), error))?;
        } else {
            match self.trim() {
                Err(error) if error.kind() == ErrorKind::Unsupported => self.trims = false,
                other => other?,
            }
        }
        // What was freed becomes free only when the transaction that freed it has ended.
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

    /// Runs `work` to its end; `None` if it was stopped, or given up behind a stop.
    fn run<T>(&self, work: impl Future<Output = Result<Option<T>>>) -> Result<Option<T>> {
        if self.is_silent.get() {
            return Ok(None);
        }
        let work = patiently(&self.runtime, self.stop, || {}, work);
        self.runtime.block_on(work).unwrap_or_else(|| {
            self.is_silent.set(true);
            Ok(None)
        })
    }

    /// Waits until the file system has written everything, what it keeps about space included.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn settle(&self) -> Result<()> {
        if !self.location.is_made() {
            return Ok(());
        }
        let failed = |error| Error::os(format!("cannot sync {}", self.location), error);
        let file = File::open(self.location.path().unwrap_or_default()).map_err(failed)?;
        syncfs(&file).map_err(|errno| failed(errno.into()))
    }

    /// Writes the span and flushes it; seconds of the requests and the flush. `None` if it was
    /// stopped.
    ///
    /// # Errors
    /// The target's.
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
                    // The target still holds its share of the last one.
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

    /// Reads the span, from below the page cache; seconds of the requests. `None` if it was
    /// stopped.
    ///
    /// # Errors
    /// The target's.
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

    /// Drops what was written from the page cache. It is all durable by then, so nothing stays.
    fn drop_cache(&self) -> Result<()> {
        if self.drive.is_some() || self.export.is_some() || self.access.direct {
            return Ok(());
        }
        let failed = |error| Error::os(format!("cannot read {}", self.location), error);
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

fn open_drive(runtime: &Runtime, path: &Path) -> Result<OpenDrive> {
    runtime.block_on(async {
        let options = file::OpenOptions { read_only: false, direct: true };
        let medium = FileMedium::open(runtime.clone(), path, options)?;
        Drive::open(medium, runtime.clone(), OpenOptions::default()).await
    })
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // The answer is known by now, or an error is on its way: what fails here changes neither.
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
