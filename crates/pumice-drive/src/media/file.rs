//! A file or a block device as a medium, through the runtime's I/O.
//!
//! ```text
//! 0            1 MiB        data_offset      + segment_bytes
//! | slot 0 ... | slot 1 ... | segment 0      | segment 1 ...
//! ```
//!
//! Invariants:
//! * The file is locked while it is open, by one writer or by any number of readers. The exception
//!   is readers of data that a writer never changes, or whose change they can detect.
//! * After a sync failed, or was dropped before its result was known, nothing is written or synced
//!   until the medium is reopened: the kernel reports a lost write only once. A durable append
//!   counts as a write and a sync; see `durable`.
//! * All reads and writes are within the superblock slots and the segments.
//!
//! This medium does not cache and does not check content, and has no notion of a drive.

use std::cell::Cell;
use std::cmp::Ordering;
use std::fs::{self, File, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Advice, AtFlags, FallocateFlags, OFlags, StatxFlags};
use rustix::io::Errno;

use super::{
    Capabilities, Geometry, Medium, SLOTS, SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS, SUPERBLOCK_STRIDE,
    not_durable, slot_offset,
};
use crate::base::units::format_size;
use crate::base::wait::WaitQueue;
use crate::base::{
    AlignedBuffer, Clock, Error, ErrorContext, ErrorKind, OsContext, Result, SegmentId,
};
use crate::crypt::Cipher;
use crate::runtime::Runtime;

mod create;
mod durable;
mod pace;
mod path_watch;

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "patterns of test data")]
mod tests;

use pace::{Pace, SyncMethod};
use path_watch::Found;
pub use path_watch::{Look, PathWatch};

/// The unit of writes in every mode: the page size, which is at least the block size of every
/// common device.
const WRITE_UNIT: u32 = 4096;

/// Maximum missing part of a truncated drive: all but one in this many bytes. This limits the
/// memory that a superblock alone can make a reader allocate; otherwise arbitrary.
const TRUNCATED_MAX: u64 = 256;

/// Options for [`FileMedium::open`]. The default opens the file for writing, through the page
/// cache.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct FileOptions {
    /// Refuse writes, and share the file with other readers.
    pub read_only: bool,
    /// Bypass the page cache (`O_DIRECT`) if the file supports it.
    pub direct: bool,
    /// Read the remaining part of a file or device that is too short for its drive. Reads beyond
    /// its end fail, like reads of damaged sectors. Only with `read_only`.
    pub truncated: bool,
    /// Read a file that another process may have open for writing, without locking it. The data
    /// read must not change meanwhile, or must carry a checksum of its own. Only with `read_only`.
    pub unlocked: bool,
}

impl FileOptions {
    /// Sets whether to refuse writes and share the file with other readers.
    #[must_use]
    pub fn with_read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets whether to bypass the page cache (`O_DIRECT`) if the file supports it.
    #[must_use]
    pub fn with_direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// Sets whether to read the remaining part of a file that is too short for its drive.
    #[must_use]
    pub fn with_truncated(mut self, truncated: bool) -> Self {
        self.truncated = truncated;
        self
    }

    /// Sets whether to read a file that another process may have open for writing.
    #[must_use]
    pub fn with_unlocked(mut self, unlocked: bool) -> Self {
        self.unlocked = unlocked;
        self
    }
}

/// A medium in a file or a block device.
pub struct FileMedium {
    runtime: Runtime,
    file: Arc<OwnedFd>,
    path: PathBuf,
    kind: FileKind,
    bytes: Cell<u64>,
    read_only: bool,
    direct: bool,
    truncated: bool,
    capabilities: Capabilities,
    cipher: Cipher,
    geometry: Cell<Option<Geometry>>,
    poisoned: Cell<bool>,
    /// Failed durable appends for which it is not yet known whether the sync failed.
    doubts: Cell<u32>,
    /// Woken when that becomes known for one of them.
    certain: WaitQueue,
    pace: Pace,
    discard_refused: Cell<bool>,
    found: Arc<Found>,
}

/// The kinds of file that can hold a drive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Regular,
    Device,
}

/// The target of a request.
#[derive(Clone, Copy)]
enum Location {
    Segment(SegmentId, u32),
    Superblock(u32),
}

impl FileMedium {
    /// Creates a sparse file of `bytes` bytes for a drive, or checks that a block device is at
    /// least that large. Existing data is preserved: the call fails if a file is not empty, or if
    /// the first 4 MiB of a device are not all zeroes. `force` skips that check; a file then loses
    /// its content, and a device retains its content until it is written. The file and its
    /// directory entry are durable when this returns.
    ///
    /// # Errors
    /// `AlreadyExists` if data would be overwritten; `Busy` if the file is open elsewhere;
    /// `InvalidInput` for a directory or a device that is too small; otherwise the error of the
    /// operating system. Nothing is changed then.
    pub fn create(path: &Path, bytes: u64, force: bool) -> Result<()> {
        create::create(path, bytes, force)
    }

    /// Opens and locks a file or device. If direct I/O is requested and not supported, the file is
    /// opened through the page cache, and the reason is logged.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`; `Busy` if the file is open elsewhere; `InvalidInput` if it
    /// is neither a regular file nor a block device.
    pub fn open(runtime: Runtime, path: &Path, options: FileOptions) -> Result<FileMedium> {
        let kind = FileKind::of(path)?;
        let what = || format!("cannot open {}", path.display());
        let mut opening = File::options();
        opening.read(true).write(!options.read_only);
        if kind == FileKind::Device && !options.read_only {
            // The kernel then refuses a device that is mounted or otherwise claimed, and refuses to
            // mount it while it is open. Mounting ignores file locks.
            opening.custom_flags(OFlags::EXCL.bits().cast_signed());
        }
        let file = opening.open(path).os_context(what)?;
        if !(options.unlocked && options.read_only) {
            lock(&file, path, options.read_only)?;
        }
        let bytes = size(&file, kind).os_context(what)?;
        let alignment = direct_alignment(&file, kind);
        let direct = options.direct && set_direct(&file, path, alignment);
        let is_durable =
            direct && !options.read_only && durable::are_possible(&runtime, &file, kind);
        if !direct {
            // After a failed sync, the page cache may hold data as clean pages that never reached
            // the medium. Recovery must not mistake it for durable data.
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).os_context(what)?;
        }
        let read_unit = match alignment {
            Some(alignment) if direct && alignment.is_power_of_two() => alignment,
            _ => WRITE_UNIT,
        };
        let capabilities = Capabilities::default()
            .with_write_unit(WRITE_UNIT)
            .with_read_unit(read_unit)
            .with_discard(!options.read_only && can_discard(&file, kind, bytes))
            .with_durable_appends(is_durable)
            .with_prefers_written(is_durable && kind == FileKind::Regular);
        Ok(FileMedium {
            runtime,
            file: Arc::new(file.into()),
            // The path is checked later, when the process may have another working directory.
            path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
            kind,
            bytes: Cell::new(bytes),
            read_only: options.read_only,
            direct,
            truncated: options.truncated && options.read_only,
            capabilities,
            cipher: Cipher::default(),
            geometry: Cell::new(None),
            poisoned: Cell::new(false),
            doubts: Cell::new(0),
            certain: WaitQueue::default(),
            pace: Pace::default(),
            discard_refused: Cell::new(false),
            found: Arc::default(),
        })
    }

    /// Returns the medium with the keys of its drive.
    #[must_use]
    pub fn with_cipher(self, cipher: Cipher) -> Self {
        Self { cipher, ..self }
    }

    /// Sets the keys of the medium's drive.
    pub fn set_cipher(&mut self, cipher: Cipher) {
        self.cipher = cipher;
    }

    /// Returns the size of the file or device in bytes, as of when it was opened or the geometry
    /// last changed.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Returns whether the page cache is bypassed.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Returns the runtime that performs its operations.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the absolute path with which the medium was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a watcher that checks, on another thread, whether the path still leads to this
    /// medium.
    pub fn path_watch(&self) -> PathWatch {
        PathWatch::new(&self.file, &self.path, self.kind, &self.found)
    }

    /// Returns an error of the medium that states the operation. A full file system is `NoSpace` if
    /// the operation `may_fill` it.
    fn medium_error(&self, doing: &str, may_fill: bool, error: io::Error) -> Error {
        let is_of_space =
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let is_full = may_fill && is_of_space;
        let kind = if is_full { ErrorKind::NoSpace } else { ErrorKind::Medium };
        Error::new(kind, format!("cannot {doing} {}", self.path.display())).caused_by(error)
    }

    /// Returns the error for a request that failed in the operating system.
    fn failed(&self, doing: &str, location: Location, error: io::Error) -> Error {
        let error = self.medium_error(doing, doing == "write", error);
        match location {
            Location::Segment(segment, offset) => {
                error.in_segment(segment).at_offset(offset.into())
            }
            Location::Superblock(slot) => error.at_offset(slot_offset(slot)),
        }
    }

    /// Returns the byte offset in the file of a request for `len` bytes, which must be aligned to
    /// `unit`.
    fn locate(&self, location: Location, len: usize, unit: u32) -> Result<u64> {
        let (segment, offset) = match location {
            Location::Superblock(slot) => {
                let is_known = slot < SLOTS && len == SUPERBLOCK_BYTES;
                if !is_known {
                    let what = format!("the medium has no superblock slot {slot} of {len} bytes");
                    return Err(Error::new(ErrorKind::InvalidInput, what));
                }
                return Ok(slot_offset(slot));
            }
            Location::Segment(segment, offset) => (segment, offset),
        };
        let geometry = self.geometry.get().expect("the geometry is set before segments are used");
        let end = u64::from(offset) + len as u64;
        let what = if segment.0 >= geometry.segment_count {
            "the medium has no such segment"
        } else if end > u64::from(geometry.segment_bytes) {
            "a request reaches beyond the end of its segment"
        } else if !offset.is_multiple_of(unit) || !len.is_multiple_of(unit as usize) {
            "a request is not aligned to the unit of the medium"
        } else {
            let start = u64::from(segment.0) * u64::from(geometry.segment_bytes);
            let at = geometry.data_offset + start + u64::from(offset);
            assert!(at + len as u64 <= geometry.medium_bytes(), "a request beyond the medium");
            return Ok(at);
        };
        let error = Error::new(ErrorKind::InvalidInput, what);
        Err(error.in_segment(segment).at_offset(offset.into()))
    }

    fn check_writable(&self) -> Result<()> {
        if self.read_only {
            let what = format!("{} is open read-only", self.path.display());
            return Err(Error::new(ErrorKind::ReadOnly, what));
        }
        self.check_synced()
    }

    /// Waits until it is known for every failed durable append whether its sync failed.
    ///
    /// # Errors
    /// `Poisoned` if a sync has failed.
    async fn wait_for_certainty(&self) -> Result<()> {
        self.certain.wait_for(|| (self.doubts.get() == 0).then_some(())).await;
        self.check_synced()
    }

    /// # Errors
    /// `Poisoned` if a sync has failed, or may have.
    fn check_synced(&self) -> Result<()> {
        if self.poisoned.get() || self.doubts.get() > 0 {
            let what = format!(
                "{} accepts no more writes because a sync failed: reopen the drive",
                self.path.display()
            );
            return Err(Error::new(ErrorKind::Poisoned, what));
        }
        Ok(())
    }

    async fn write(&self, location: Location, buffer: Arc<AlignedBuffer>) -> Result<()> {
        self.wait_for_certainty().await?;
        self.check_writable()?;
        self.write_unchecked(location, buffer).await
    }

    async fn write_unchecked(&self, location: Location, buffer: Arc<AlignedBuffer>) -> Result<()> {
        let at = self.locate(location, buffer.len(), WRITE_UNIT)?;
        let result = match self.runtime.write_at(&self.file, at, buffer.clone()).await {
            Ok(written) if written == buffer.len() => Ok(()),
            result => self.write_rest(at, &buffer, result).await,
        };
        result.map_err(|error| self.failed("write", location, error))
    }

    /// Completes a write that was short or interrupted. Rare, so it may copy.
    async fn write_rest(
        &self,
        at: u64,
        buffer: &AlignedBuffer,
        mut result: io::Result<usize>,
    ) -> io::Result<()> {
        let mut done = 0;
        loop {
            done += self.progress(result, io::ErrorKind::WriteZero)?;
            assert!(done <= buffer.len(), "more bytes were moved than requested");
            if done == buffer.len() {
                return Ok(());
            }
            let rest = Arc::new(copy_of(&buffer[done..]));
            result = self.runtime.write_at(&self.file, at + done as u64, rest).await;
        }
    }

    async fn fill(&self, location: Location, buffer: AlignedBuffer) -> (AlignedBuffer, Result<()>) {
        let at = match self.locate(location, buffer.len(), self.capabilities.read_unit) {
            Ok(at) => at,
            Err(error) => return (buffer, Err(error)),
        };
        if self.truncated && at + buffer.len() as u64 > self.bytes.get() {
            let error = io::Error::from(io::ErrorKind::UnexpectedEof);
            return (buffer, Err(self.failed("read", location, error)));
        }
        let (mut buffer, result) = self.runtime.read_at(&self.file, at, buffer).await;
        let result = match result {
            Ok(read) if read == buffer.len() => Ok(()),
            result => self.fill_rest(at, &mut buffer, result).await,
        };
        (buffer, result.map_err(|error| self.failed("read", location, error)))
    }

    /// Completes a read that was short or interrupted. Bytes beyond the end of the file become
    /// zeroes. Rare, so it may copy.
    async fn fill_rest(
        &self,
        at: u64,
        buffer: &mut AlignedBuffer,
        mut result: io::Result<usize>,
    ) -> io::Result<()> {
        let mut done = 0;
        loop {
            if let Ok(read) = result
                && done + read < buffer.len()
                && at + (done + read) as u64 >= self.end()?
            {
                buffer[done + read..].fill(0);
                return Ok(());
            }
            done += self.progress(result, io::ErrorKind::UnexpectedEof)?;
            assert!(done <= buffer.len(), "more bytes were moved than requested");
            if done == buffer.len() {
                return Ok(());
            }
            let rest = AlignedBuffer::zeroed(buffer.len() - done);
            let (rest, answer) = self.runtime.read_at(&self.file, at + done as u64, rest).await;
            if let Ok(read) = answer {
                buffer[done..done + read].copy_from_slice(&rest[..read]);
            }
            result = answer;
        }
    }

    /// Returns the number of bytes transferred, in whole units under direct I/O; 0 if the operation
    /// was interrupted.
    fn progress(&self, result: io::Result<usize>, stuck: io::ErrorKind) -> io::Result<usize> {
        let moved = match result {
            Ok(moved) => moved,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(0),
            Err(error) => return Err(error),
        };
        let unit = if self.direct { self.capabilities.read_unit as usize } else { 1 };
        match moved - moved % unit {
            0 => Err(stuck.into()),
            whole => Ok(whole),
        }
    }

    async fn sync_data(&self) -> Result<()> {
        self.wait_for_certainty().await?;
        self.check_writable()?;
        let mut outcome = SyncOutcome { poisoned: &self.poisoned, succeeded: false };
        let result = self.runtime.sync_data(&self.file).await;
        outcome.succeeded = result.is_ok();
        result.map_err(|error| self.medium_error("sync", false, error))?;
        // A sync that failed in the meantime may have received the error report for a write that
        // this sync covers.
        self.wait_for_certainty().await
    }

    /// Changes the size of a file to `needed` bytes. For a device, reads the size again.
    fn set_bytes(&self, needed: u64) -> Result<()> {
        self.check_writable()?;
        let bytes = match self.kind {
            FileKind::Regular => rustix::fs::ftruncate(&self.file, needed).map(|()| needed),
            FileKind::Device => rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0)),
        };
        let bytes =
            bytes.map_err(|error| self.medium_error("change the size of", true, error.into()))?;
        self.bytes.set(bytes);
        Ok(())
    }

    /// Returns the current size of the file in bytes.
    fn end(&self) -> io::Result<u64> {
        match self.kind {
            FileKind::Regular => Ok(rustix::fs::fstat(&self.file)?.st_size.cast_unsigned()),
            // The size of a device is constant.
            FileKind::Device => Ok(self.bytes.get()),
        }
    }
}

impl Medium for FileMedium {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn cipher(&self) -> &Cipher {
        &self.cipher
    }

    fn set_geometry(&self, geometry: Geometry) -> Result<()> {
        let Geometry { segment_bytes, segment_count, data_offset } = geometry;
        let unit = u64::from(WRITE_UNIT);
        let slots_end = (u64::from(SUPERBLOCK_SLOTS) - 1) * SUPERBLOCK_STRIDE + unit;
        let is_possible = segment_bytes > 0
            && segment_bytes.is_multiple_of(WRITE_UNIT)
            && data_offset.is_multiple_of(unit)
            && data_offset >= slots_end;
        if !is_possible {
            let what = format!("the geometry is invalid: {geometry:?}");
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let needed = data_offset.checked_add(geometry.capacity_bytes());
        let needed = needed.or_error(ErrorKind::InvalidInput, "the segments exceed 2^64 bytes")?;
        if let Some(old) = self.geometry.get() {
            let expected = Geometry { segment_count, ..old };
            assert_eq!(expected, geometry, "only the number of segments may change");
            match segment_count.cmp(&old.segment_count) {
                Ordering::Greater => self.set_bytes(needed.max(self.bytes.get()))?,
                Ordering::Less => self.set_bytes(needed)?,
                Ordering::Equal => {}
            }
        }
        let least = if self.truncated { needed / TRUNCATED_MAX } else { needed };
        if least > self.bytes.get() {
            let hint = if self.geometry.get().is_none() {
                ": an extract copies the rest of its disk to an image, a rebuild to a new drive"
            } else {
                ""
            };
            let what = format!(
                "{} is too small: it has {} bytes, the drive needs {needed}{hint}",
                self.path.display(),
                self.bytes.get()
            );
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        self.geometry.set(Some(geometry));
        Ok(())
    }

    fn reserve(&self) -> Result<()> {
        self.check_writable()?;
        let geometry = self.geometry.get().expect("the geometry is set before space is reserved");
        if self.kind == FileKind::Device {
            return Ok(());
        }
        let bytes = geometry.medium_bytes();
        rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, bytes).map_err(|error| {
            let doing = format!("reserve {} for", format_size(bytes));
            match error {
                Errno::OPNOTSUPP | Errno::NOSYS => {
                    let what = format!("cannot {doing} {}", self.path.display());
                    Error::new(ErrorKind::Unsupported, what).caused_by(io::Error::from(error))
                }
                _ => self.medium_error(&doing, true, error.into()),
            }
        })
    }

    fn room(&self) -> Option<u64> {
        if self.read_only || self.kind == FileKind::Device {
            return None;
        }
        let host = rustix::fs::fstatvfs(&self.file).ok()?;
        // A tmpfs without a limit has no size.
        (host.f_blocks > 0).then(|| host.f_bavail.saturating_mul(host.f_frsize))
    }

    async fn preallocate(&self, segment: SegmentId) -> Result<()> {
        self.check_writable()?;
        let location = Location::Segment(segment, 0);
        let at = self.locate(location, 0, WRITE_UNIT)?;
        let len = self.geometry.get().map_or(0, |geometry| geometry.segment_bytes);
        if self.kind == FileKind::Device {
            return Ok(());
        }
        loop {
            match self.runtime.preallocate(&self.file, at, len.into()).await {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // No stronger promise is possible.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {
                    return Ok(());
                }
                Err(error) => {
                    let error = self.medium_error("reserve space for", true, error);
                    return Err(error.in_segment(segment));
                }
            }
        }
    }

    fn misplaced(&self) -> Option<String> {
        self.found.what(&self.path, self.kind == FileKind::Device)
    }

    async fn append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.write(Location::Segment(segment, offset), buffer).await
    }

    async fn read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        self.fill(Location::Segment(segment, offset), buffer).await
    }

    async fn append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        let (location, len) = (Location::Segment(segment, offset), buffer.len());
        let way =
            if self.capabilities.durable_appends { self.pace.next_way() } else { SyncMethod::Sync };
        let started_ns = self.runtime.now_ns();
        match way {
            SyncMethod::Flag => self.write_durably(location, buffer).await?,
            SyncMethod::Sync => {
                self.write(location, buffer).await?;
                self.sync_data().await.map_err(not_durable)?;
            }
        }
        self.pace.took(way, len, self.runtime.now_ns() - started_ns);
        Ok(())
    }

    async fn sync(&self) -> Result<()> {
        self.sync_data().await
    }

    async fn discard(&self, segment: SegmentId) -> Result<()> {
        self.check_writable()?;
        let location = Location::Segment(segment, 0);
        let at = self.locate(location, 0, WRITE_UNIT)?;
        let len = self.geometry.get().map_or(0, |geometry| geometry.segment_bytes);
        if !self.capabilities.discard || self.discard_refused.get() {
            return Ok(());
        }
        loop {
            match self.runtime.punch_hole(&self.file, at, len.into()).await {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The bytes of a discarded segment may have any value, so skipping it is correct.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {
                    let path = self.path.display();
                    tracing::info!(%path, "discard not supported: freed space stays allocated");
                    self.discard_refused.set(true);
                    return Ok(());
                }
                Err(error) => return Err(self.failed("discard in", location, error)),
            }
        }
    }

    async fn read_superblock(&self, slot: u32) -> Result<AlignedBuffer> {
        let buffer = AlignedBuffer::zeroed(SUPERBLOCK_BYTES);
        let (buffer, result) = self.fill(Location::Superblock(slot), buffer).await;
        result.map(|()| buffer)
    }

    async fn write_superblock(&self, slot: u32, bytes: AlignedBuffer) -> Result<()> {
        self.write(Location::Superblock(slot), Arc::new(bytes)).await
    }
}

/// Poisons the medium when dropped, unless the sync succeeded.
struct SyncOutcome<'a> {
    poisoned: &'a Cell<bool>,
    succeeded: bool,
}

impl Drop for SyncOutcome<'_> {
    fn drop(&mut self) {
        if !self.succeeded {
            self.poisoned.set(true);
        }
    }
}

fn copy_of(bytes: &[u8]) -> AlignedBuffer {
    let mut copy = AlignedBuffer::zeroed(bytes.len());
    copy.copy_from_slice(bytes);
    copy
}

impl FileKind {
    /// Returns the kind of the file at `path`, following symbolic links.
    fn of(path: &Path) -> Result<FileKind> {
        let shown = path.display();
        let metadata = fs::metadata(path).os_context(|| format!("cannot open {shown}"))?;
        let file_type = metadata.file_type();
        let what = if file_type.is_file() {
            return Ok(FileKind::Regular);
        } else if file_type.is_block_device() {
            return Ok(FileKind::Device);
        } else if file_type.is_dir() {
            format!("{shown} is a directory")
        } else {
            format!("{shown} is neither a regular file nor a block device")
        };
        Err(Error::new(ErrorKind::InvalidInput, what))
    }
}

/// Locks the file until it is closed, for one writer or for several readers.
fn lock(file: &File, path: &Path, shared: bool) -> Result<()> {
    let locked = if shared { file.try_lock_shared() } else { file.try_lock() };
    locked.map_err(|error| match error {
        TryLockError::WouldBlock => Error::new(
            ErrorKind::Busy,
            format!(
                "{} is in use by another process: stop it, or wait until it ends",
                path.display()
            ),
        ),
        TryLockError::Error(error) => Error::os(format!("cannot lock {}", path.display()), error),
    })
}

/// Returns the size in bytes.
fn size(mut file: &File, kind: FileKind) -> io::Result<u64> {
    match kind {
        FileKind::Regular => Ok(file.metadata()?.len()),
        FileKind::Device => file.seek(SeekFrom::End(0)),
    }
}

/// Returns the alignment in bytes that direct I/O requires of offsets and lengths: 0 if the file
/// does not support direct I/O, `None` if the kernel does not report it (before Linux 6.1).
fn direct_alignment(file: &File, kind: FileKind) -> Option<u32> {
    if let Ok(answer) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        && StatxFlags::from_bits_retain(answer.stx_mask).contains(StatxFlags::DIOALIGN)
    {
        return Some(answer.stx_dio_offset_align);
    }
    match kind {
        FileKind::Device => rustix::fs::ioctl_blksszget(file).ok(),
        FileKind::Regular => None,
    }
}

/// Switches to direct I/O. Logs the reason if that is not possible.
fn set_direct(file: &File, path: &Path, alignment: Option<u32>) -> bool {
    let path = path.display();
    match alignment {
        Some(0) => {
            tracing::info!(%path, "direct I/O not supported: using the page cache");
            return false;
        }
        Some(alignment) if alignment > WRITE_UNIT => {
            tracing::info!(%path, alignment, "blocks exceed 4 KiB: using the page cache");
            return false;
        }
        _ => {}
    }
    // The flag is changed after locking instead of by reopening: a second descriptor would need the
    // lock.
    let switched = rustix::fs::fcntl_getfl(file)
        .and_then(|flags| rustix::fs::fcntl_setfl(file.as_fd(), flags | OFlags::DIRECT));
    if let Err(error) = switched {
        tracing::info!(%path, %error, "cannot enable direct I/O: using the page cache");
    }
    switched.is_ok()
}

/// Returns whether the file supports holes. A device reports that only at its first discard.
fn can_discard(file: &File, kind: FileKind, bytes: u64) -> bool {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // A hole beyond the end of a file changes nothing.
    let beyond = bytes.next_multiple_of(u64::from(WRITE_UNIT));
    kind == FileKind::Device || rustix::fs::fallocate(file, mode, beyond, WRITE_UNIT.into()).is_ok()
}
