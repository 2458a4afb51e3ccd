//! A file or a block device as a medium, through the runtime's I/O.
//!
//! ```text
//! 0            1 MiB        data_offset      + segment_bytes
//! | slot 0 ... | slot 1 ... | segment 0      | segment 1 ...
//! ```
//!
//! Invariants:
//! * The file is locked while it is open: one writer, or any number of readers.
//! * After a sync failed, or was given up before its result was known, nothing is written and
//!   nothing synced until the medium is opened again: the kernel reports a lost write only once.
//! * Nothing is read or written outside the superblock slots and the segments.
//!
//! It deliberately does not cache, does not check content and does not know what a drive is.

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
    Capabilities, Geometry, Medium, SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS, SUPERBLOCK_STRIDE,
};
use crate::base::{AlignedBuffer, Error, ErrorKind, Result, SegmentId};
use crate::runtime::Runtime;

mod create;

#[cfg(test)]
mod tests;

/// Offsets and lengths of writes, always: the page size, and at least the block size of every
/// device that a file system is made on.
const WRITE_UNIT: u32 = 4096;

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Refuse writes, and share the file with other readers.
    pub read_only: bool,
    /// Bypass the page cache (`O_DIRECT`) if the file allows it.
    pub direct: bool,
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
    capabilities: Capabilities,
    geometry: Cell<Option<Geometry>>,
    poisoned: Cell<bool>,
    discard_refused: Cell<bool>,
}

/// What a path names, if a drive can live there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Regular,
    Device,
}

/// Where a request goes, for its errors.
#[derive(Clone, Copy)]
enum Place {
    Segment(SegmentId, u32),
    Superblock(u32),
}

impl FileMedium {
    /// Makes a sparse file of `bytes` bytes for a drive, or checks that a block device can hold
    /// as many. What is there is kept unless it is empty (a device: its first 4 MiB are zeroes)
    /// or `force` is set; a file then loses its content, a device's is left in place. The file
    /// and its directory entry are durable when this returns.
    ///
    /// # Errors
    /// `AlreadyExists` if something would be overwritten, `Busy` if it is open elsewhere,
    /// `InvalidInput` for a directory or a device that is too small, else the operating system's.
    /// Nothing is changed then.
    pub fn create(path: &Path, bytes: u64, force: bool) -> Result<()> {
        create::create(path, bytes, force)
    }

    /// Opens and locks a file or device. If direct I/O is asked for and refused, the file is
    /// opened buffered and the log says why.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`; `Busy` if it is open elsewhere; `InvalidInput` if it is
    /// neither a regular file nor a block device.
    pub fn open(runtime: Runtime, path: &Path, options: OpenOptions) -> Result<FileMedium> {
        let kind = FileKind::of(path)?;
        let cannot_open = |error| Error::os(format!("cannot open {}", path.display()), error);
        let mut opening = File::options();
        opening.read(true).write(!options.read_only);
        if kind == FileKind::Device && !options.read_only {
            // The kernel then refuses a device that is mounted or otherwise held, and refuses to
            // mount it meanwhile: locks of files are no concern of theirs.
            opening.custom_flags(OFlags::EXCL.bits() as i32);
        }
        let file = opening.open(path).map_err(cannot_open)?;
        lock(&file, path, options.read_only)?;
        let bytes = size(&file, kind).map_err(cannot_open)?;
        let alignment = direct_alignment(&file, kind);
        let direct = options.direct && set_direct(&file, path, alignment);
        if !direct {
            // After a failed sync the page cache may show what never reached the medium, as clean;
            // nothing read from it then may be called durable.
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)
                .map_err(|error| cannot_open(error.into()))?;
        }
        let capabilities = Capabilities {
            write_unit: WRITE_UNIT,
            read_unit: match alignment {
                Some(alignment) if direct && alignment.is_power_of_two() => alignment,
                _ => WRITE_UNIT,
            },
            discard: !options.read_only && can_discard(&file, kind, bytes),
        };
        Ok(FileMedium {
            runtime,
            file: Arc::new(file.into()),
            path: path.to_owned(),
            kind,
            bytes: Cell::new(bytes),
            read_only: options.read_only,
            direct,
            capabilities,
            geometry: Cell::new(None),
            poisoned: Cell::new(false),
            discard_refused: Cell::new(false),
        })
    }

    /// Size of the file or device in bytes, as far as this drive knows.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Whether the page cache is bypassed.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// The path it was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds what was being done, where, to an error of the operating system.
    fn failed(&self, doing: &str, place: Place, error: io::Error) -> Error {
        let what = format!("cannot {doing} {}", self.path.display());
        let is_full = doing == "write" && error.kind() == io::ErrorKind::StorageFull;
        let kind = if is_full { ErrorKind::NoSpace } else { ErrorKind::Medium };
        let error = Error::new(kind, what).caused_by(error);
        match place {
            Place::Segment(segment, offset) => error.in_segment(segment).at_offset(offset.into()),
            Place::Superblock(slot) => error.at_offset(u64::from(slot) * SUPERBLOCK_STRIDE),
        }
    }

    /// The byte offset of a place that `len` bytes in units of `unit` may be moved at.
    fn locate(&self, place: Place, len: usize, unit: u32) -> Result<u64> {
        let (segment, offset) = match place {
            Place::Superblock(slot) => {
                if slot >= SUPERBLOCK_SLOTS || len != SUPERBLOCK_BYTES {
                    let what = format!("no superblock slot {slot} of {len} bytes");
                    return Err(Error::new(ErrorKind::InvalidInput, what));
                }
                return Ok(u64::from(slot) * SUPERBLOCK_STRIDE);
            }
            Place::Segment(segment, offset) => (segment, offset),
        };
        let geometry = self.geometry.get().expect("segments are used once the geometry is known");
        let end = u64::from(offset) + len as u64;
        let wrong = if segment.0 >= geometry.segment_count {
            "no such segment"
        } else if end > u64::from(geometry.segment_bytes) {
            "a request ends behind its segment"
        } else if !offset.is_multiple_of(unit) || !len.is_multiple_of(unit as usize) {
            "a request is not aligned"
        } else {
            let start = u64::from(segment.0) * u64::from(geometry.segment_bytes);
            return Ok(geometry.data_offset + start + u64::from(offset));
        };
        let error = Error::new(ErrorKind::InvalidInput, wrong);
        Err(error.in_segment(segment).at_offset(offset.into()))
    }

    fn check_writable(&self) -> Result<()> {
        if self.read_only {
            let what = format!("{} is open read-only", self.path.display());
            return Err(Error::new(ErrorKind::ReadOnly, what));
        }
        if self.poisoned.get() {
            let what = format!(
                "{} takes no more writes because a sync failed: open the drive again",
                self.path.display()
            );
            return Err(Error::new(ErrorKind::Poisoned, what));
        }
        Ok(())
    }

    async fn write(&self, place: Place, buffer: Arc<AlignedBuffer>) -> Result<()> {
        self.check_writable()?;
        let at = self.locate(place, buffer.len(), WRITE_UNIT)?;
        let result = match self.runtime.write_at(&self.file, at, buffer.clone()).await {
            Ok(written) if written == buffer.len() => Ok(()),
            result => self.write_rest(at, &buffer, result).await,
        };
        result.map_err(|error| self.failed("write", place, error))
    }

    /// Goes on after a write that was short or interrupted. Rare, so it may copy.
    async fn write_rest(
        &self,
        at: u64,
        buffer: &AlignedBuffer,
        mut result: io::Result<usize>,
    ) -> io::Result<()> {
        let mut done = 0;
        loop {
            done += self.progress(result, io::ErrorKind::WriteZero)?;
            if done == buffer.len() {
                return Ok(());
            }
            let rest = Arc::new(copy_of(&buffer[done..]));
            result = self.runtime.write_at(&self.file, at + done as u64, rest).await;
        }
    }

    async fn fill(&self, place: Place, buffer: AlignedBuffer) -> (AlignedBuffer, Result<()>) {
        let at = match self.locate(place, buffer.len(), self.capabilities.read_unit) {
            Ok(at) => at,
            Err(error) => return (buffer, Err(error)),
        };
        let (mut buffer, result) = self.runtime.read_at(&self.file, at, buffer).await;
        let result = match result {
            Ok(read) if read == buffer.len() => Ok(()),
            result => self.fill_rest(at, &mut buffer, result).await,
        };
        (buffer, result.map_err(|error| self.failed("read", place, error)))
    }

    /// Goes on after a read that was short or interrupted; what lies behind the end of the file
    /// becomes zeroes. Rare, so it may copy.
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

    /// How far an operation came, in whole units if the file wants units; 0 if it was interrupted.
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

    /// Makes a file so long; looks again how large a device is.
    fn set_bytes(&self, needed: u64) -> Result<()> {
        self.check_writable()?;
        let failed = |error: io::Error| {
            Error::os(format!("cannot change the size of {}", self.path.display()), error)
        };
        let bytes = match self.kind {
            FileKind::Regular => {
                rustix::fs::ftruncate(&self.file, needed).map_err(|error| failed(error.into()))?;
                needed
            }
            FileKind::Device => rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))
                .map_err(|error| failed(error.into()))?,
        };
        self.bytes.set(bytes);
        Ok(())
    }

    /// Where the file ends now.
    fn end(&self) -> io::Result<u64> {
        match self.kind {
            FileKind::Regular => Ok(rustix::fs::fstat(&self.file)?.st_size as u64),
            // A device keeps its size.
            FileKind::Device => Ok(self.bytes.get()),
        }
    }
}

impl Medium for FileMedium {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn set_geometry(&self, geometry: Geometry) -> Result<()> {
        let Geometry { segment_bytes, segment_count, data_offset } = geometry;
        let unit = u64::from(WRITE_UNIT);
        let slots_end = (u64::from(SUPERBLOCK_SLOTS) - 1) * SUPERBLOCK_STRIDE + unit;
        if segment_bytes == 0
            || !segment_bytes.is_multiple_of(WRITE_UNIT)
            || !data_offset.is_multiple_of(unit)
            || data_offset < slots_end
        {
            let what = format!("not a possible geometry: {geometry:?}");
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let capacity = u64::from(segment_bytes) * u64::from(segment_count);
        let Some(needed) = data_offset.checked_add(capacity) else {
            return Err(Error::new(ErrorKind::InvalidInput, "no medium has as many segments"));
        };
        if let Some(old) = self.geometry.get() {
            assert_eq!(Geometry { segment_count, ..old }, geometry, "only the number changes");
            match segment_count.cmp(&old.segment_count) {
                Ordering::Greater => self.set_bytes(needed.max(self.bytes.get()))?,
                Ordering::Less => self.set_bytes(needed)?,
                Ordering::Equal => {}
            }
        }
        if needed > self.bytes.get() {
            let what = format!(
                "{} is too small: it has {} bytes, its drive needs {needed}",
                self.path.display(),
                self.bytes.get()
            );
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        self.geometry.set(Some(geometry));
        Ok(())
    }

    async fn append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.write(Place::Segment(segment, offset), buffer).await
    }

    async fn read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        self.fill(Place::Segment(segment, offset), buffer).await
    }

    async fn sync(&self) -> Result<()> {
        self.check_writable()?;
        let mut outcome = SyncOutcome { poisoned: &self.poisoned, succeeded: false };
        let result = self.runtime.sync_data(&self.file).await;
        outcome.succeeded = result.is_ok();
        result.map_err(|error| {
            let what = format!("cannot make {} durable", self.path.display());
            Error::new(ErrorKind::Medium, what).caused_by(error)
        })
    }

    async fn discard(&self, segment: SegmentId) -> Result<()> {
        self.check_writable()?;
        let place = Place::Segment(segment, 0);
        let at = self.locate(place, 0, WRITE_UNIT)?;
        let len = self.geometry.get().map_or(0, |geometry| geometry.segment_bytes);
        if !self.capabilities.discard || self.discard_refused.get() {
            return Ok(());
        }
        loop {
            match self.runtime.punch_hole(&self.file, at, len.into()).await {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The bytes of a discarded segment may be anything, so not to discard is correct.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {
                    tracing::info!(path = %self.path.display(), "no discard: space stays");
                    self.discard_refused.set(true);
                    return Ok(());
                }
                Err(error) => return Err(self.failed("discard in", place, error)),
            }
        }
    }

    async fn read_superblock(&self, slot: u32) -> Result<AlignedBuffer> {
        let buffer = AlignedBuffer::zeroed(SUPERBLOCK_BYTES);
        let (buffer, result) = self.fill(Place::Superblock(slot), buffer).await;
        result.map(|()| buffer)
    }

    async fn write_superblock(&self, slot: u32, bytes: AlignedBuffer) -> Result<()> {
        self.write(Place::Superblock(slot), Arc::new(bytes)).await
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
    /// What `path` names, through symbolic links.
    fn of(path: &Path) -> Result<FileKind> {
        let shown = path.display();
        let metadata =
            fs::metadata(path).map_err(|error| Error::os(format!("cannot open {shown}"), error))?;
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

/// Locks the file for one writer or for many readers until it is closed.
fn lock(file: &File, path: &Path, shared: bool) -> Result<()> {
    let locked = if shared { file.try_lock_shared() } else { file.try_lock() };
    locked.map_err(|error| match error {
        TryLockError::WouldBlock => Error::new(
            ErrorKind::Busy,
            format!("{} is in use by another process: stop that one first", path.display()),
        ),
        TryLockError::Error(error) => Error::os(format!("cannot lock {}", path.display()), error),
    })
}

/// Size in bytes.
fn size(mut file: &File, kind: FileKind) -> io::Result<u64> {
    match kind {
        FileKind::Regular => Ok(file.metadata()?.len()),
        FileKind::Device => file.seek(SeekFrom::End(0)),
    }
}

/// What direct I/O asks of offsets and lengths, in bytes: 0 if the file does none, `None` if the
/// kernel does not tell (before Linux 6.1).
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

/// Switches to direct I/O; says why if that is not possible.
fn set_direct(file: &File, path: &Path, alignment: Option<u32>) -> bool {
    let path = path.display();
    match alignment {
        Some(0) => {
            tracing::info!(%path, "no direct I/O on this file: using the page cache");
            return false;
        }
        Some(alignment) if alignment > WRITE_UNIT => {
            tracing::info!(%path, alignment, "blocks too large for direct I/O: buffered");
            return false;
        }
        _ => {}
    }
    // Switched on after the lock was taken: one descriptor, so one lock.
    let switched = rustix::fs::fcntl_getfl(file)
        .and_then(|flags| rustix::fs::fcntl_setfl(file.as_fd(), flags | OFlags::DIRECT));
    if let Err(error) = switched {
        tracing::info!(%path, %error, "direct I/O refused: using the page cache");
    }
    switched.is_ok()
}

/// Whether space can be given back. A device is asked when it comes to it.
fn can_discard(file: &File, kind: FileKind, bytes: u64) -> bool {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let behind = bytes.next_multiple_of(u64::from(WRITE_UNIT));
    // A hole behind the end of a file changes nothing.
    kind == FileKind::Device || rustix::fs::fallocate(file, mode, behind, WRITE_UNIT.into()).is_ok()
}
