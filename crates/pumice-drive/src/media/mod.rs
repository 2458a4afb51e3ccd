//! Media: the storage that holds a drive's superblocks and segments.
//!
//! * [`mem`]: memory, for tests and for measurements of the controller alone.
//! * [`mod@file`]: a file or a block device, through the runtime's I/O.
//! * [`mod@array`]: several media as one, with a copy of everything on each, or with their combined
//!   space.
//! * [`layer`]: media that wrap another medium.
//! * [`tier`]: a local journal and an object store.
//!
//! [`Medium`] is the contract between the controller and its storage. A medium has superblock slots
//! and numbered segments of equal size. It has no notion of LBAs, frames or batches.

#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;

pub use any::AnyMedium;
use array::ArrayInfo;
use tier::Status;

use crate::base::{AlignedBuffer, Error, ErrorKind, Result, SegmentId};
use crate::crypt::{Cipher, PLAIN};

mod any;
pub mod array;
pub mod file;
pub mod layer;
pub mod mem;
pub mod tier;

/// Bytes of one superblock slot.
pub const SUPERBLOCK_BYTES: usize = 4096;

/// Number of superblock slots of every medium.
pub const SUPERBLOCK_SLOTS: u32 = 2;

/// Distance in bytes between superblock slots on a medium that has byte offsets: slot n begins at n
/// times this. Far enough apart that no single misdirected or torn write hits both; otherwise
/// arbitrary. Segments begin after the last slot.
pub const SUPERBLOCK_STRIDE: u64 = 1 << 20;

/// Number of slots of a medium that can be a member of an array. The two slots after the
/// superblocks each hold a complete copy of the member's header. They have the same length, and are
/// read and written in the same way.
pub const SLOTS: u32 = SUPERBLOCK_SLOTS + 2;

/// Returns the byte offset of a slot on a medium that has byte offsets. The slots of an array's
/// headers are half a stride after the superblocks.
pub const fn slot_offset(slot: u32) -> u64 {
    assert!(slot < SLOTS, "a medium has four slots");
    let half = SUPERBLOCK_STRIDE / 2;
    (slot % SUPERBLOCK_SLOTS) as u64 * SUPERBLOCK_STRIDE + (slot / SUPERBLOCK_SLOTS) as u64 * half
}

/// Identifies one of the copies of all data on a medium. While the medium is open, an ID is never
/// reused for another copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopyId(pub u32);

/// The division of a medium into segments. The drive reads it from its superblock and passes it to
/// [`Medium::set_geometry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of one segment: a multiple of the write unit.
    pub segment_bytes: u32,
    /// Number of segments.
    pub segment_count: u32,
    /// Byte offset of segment 0 on a medium that has byte offsets.
    pub data_offset: u64,
}

impl Geometry {
    /// Returns the bytes of all segments together.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.segment_bytes) * u64::from(self.segment_count)
    }

    /// Returns the bytes that a file or device must have.
    pub fn medium_bytes(&self) -> u64 {
        self.data_offset + self.capacity_bytes()
    }
}

/// The features of a medium and its requirements on the caller. Start from the
/// [default](Capabilities::default), which suits every medium, and relax it with the setters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Offsets and lengths of appends are multiples of this many bytes (a power of two, at most
    /// 4096).
    pub write_unit: u32,
    /// Offsets and lengths of reads are multiples of this many bytes (a power of two, at most
    /// 4096).
    pub read_unit: u32,
    /// Whether [`Medium::discard`] frees space.
    pub discard: bool,
    /// Whether [`Medium::append_durably`] is a single operation that costs less than an append and
    /// a sync, and any number of these may be in progress. The drive calls it only in this case.
    pub durable_appends: bool,
    /// Whether a durable append into bytes that were written before takes less time than into other
    /// bytes. In a file system that writes in place, the latter requires a commit of its journal.
    pub prefers_written: bool,
}

impl Default for Capabilities {
    /// Returns units of 4096 bytes, without discard and without durable appends.
    fn default() -> Self {
        Self {
            write_unit: 4096,
            read_unit: 4096,
            discard: false,
            durable_appends: false,
            prefers_written: false,
        }
    }
}

impl Capabilities {
    /// Sets the unit of appends in bytes.
    #[must_use]
    pub fn with_write_unit(mut self, bytes: u32) -> Self {
        self.write_unit = bytes;
        self
    }

    /// Sets the unit of reads in bytes.
    #[must_use]
    pub fn with_read_unit(mut self, bytes: u32) -> Self {
        self.read_unit = bytes;
        self
    }

    /// Sets whether discard frees space.
    #[must_use]
    pub fn with_discard(mut self, discard: bool) -> Self {
        self.discard = discard;
        self
    }

    /// Sets whether an append can be made durable in one operation.
    #[must_use]
    pub fn with_durable_appends(mut self, durable_appends: bool) -> Self {
        self.durable_appends = durable_appends;
        self
    }

    /// Sets whether durable appends into bytes that were written before take less time.
    #[must_use]
    pub fn with_prefers_written(mut self, prefers_written: bool) -> Self {
        self.prefers_written = prefers_written;
        self
    }
}

/// Storage for two superblock slots and a fixed number of segments of equal size.
///
/// This trait is the entire contract between a drive and its storage. Implement it to store a drive
/// on storage of your own. To change some operations of an existing medium, implement
/// [`Layer`](layer::Layer) instead; `examples/custom_medium.rs` does that.
///
/// # Calls
///
/// * [`capabilities`](Medium::capabilities) and the superblock operations may be called at any
///   time.
/// * [`set_geometry`](Medium::set_geometry) is called before the first operation on a segment. Each
///   operation on a segment stays within the geometry of the latest successful call.
/// * Any number of operations may be in progress at once, and they may complete in any order. The
///   drive never has two writes to overlapping bytes in progress, and discards a segment only when
///   no other operation on it is in progress. At most one superblock write is in progress. A read
///   that overlaps a write in progress may return anything.
/// * Between two discards of a segment, the drive may use it several times, and in each use writes
///   each byte at most once; before that, it may fill the segment with zeroes. The exception is the
///   time after a crash: the drive then continues after the last valid batch and overwrites the
///   remains of batches that were never durable.
/// * All methods are called on the thread that owns the drive. A medium needs no locks.
///
/// # Ordering and durability
///
/// * An append or a superblock write that has completed is visible to every later read.
/// * Operations are neither ordered nor durable before [`sync`](Medium::sync). After a power loss,
///   each write that no successful sync covers may be present, absent, or torn at any multiple of
///   512 bytes, independently of all others and of the order in which they completed.
/// * A successful sync covers every append, discard and superblock write that had completed when it
///   was called. Writes that were still in progress are not covered.
/// * A durable append covers its own range and nothing else: earlier plain appends stay volatile.
/// * A medium must never tear a write at a granularity finer than 512 bytes, and must never change
///   bytes outside the range of a write.
///
/// # Failures
///
/// * After a failed append or superblock write, the written range may hold anything.
/// * After a failed sync, everything that was not durable before must be assumed lost, even if a
///   later sync succeeds. The drive then accepts no more writes until it is reopened. A durable
///   append that failed as `Poisoned` has the same consequence.
/// * A read that cannot return the stored bytes must fail. The drive detects wrong bytes by
///   checksum, and requests others from a medium with several [copies](Copies).
///
/// # Cancellation
///
/// An operation owns its buffer: a read takes a buffer and returns it; an append shares one,
/// because the drive serves reads from it meanwhile. The drive never changes appended bytes, so a
/// medium may retain the buffer instead of a copy; it can return another buffer in exchange through
/// [`spare_buffer`](Medium::spare_buffer). The future of an operation may be dropped. The operation
/// may then take effect, in part or as a whole, at any later time, and the medium must keep the
/// buffer alive as long as it is in use.
pub trait Medium {
    /// Returns the features and requirements of the medium. Constant while the medium is open.
    fn capabilities(&self) -> Capabilities;

    /// Returns the keys of the drive on the medium, as set by the medium's owner; [`PLAIN`] if none
    /// were set. The medium itself stores bytes as it receives them. Constant while the medium is
    /// open.
    fn cipher(&self) -> &Cipher {
        &PLAIN
    }

    /// Sets the division of the medium into segments. A later call may only change the number of
    /// segments, when the capacity of the drive changes; no operation is in progress on a segment
    /// that the call removes. A medium that supports it then grows, or frees the space beyond the
    /// last segment, which no longer holds data. The new size is durable after a sync.
    ///
    /// # Errors
    /// `InvalidInput` if the medium is too small for the geometry; `NoSpace` or `Medium` if it
    /// cannot grow. Nothing is changed then.
    fn set_geometry(&self, geometry: Geometry) -> Result<()>;

    /// Reserves the space of all segments on a medium that can grow, so that no append fails for
    /// lack of space. The drive then never discards. May take a while.
    ///
    /// # Errors
    /// `NoSpace`; `Unsupported` if the medium cannot do this.
    fn reserve(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the free bytes in the storage from which the medium allocates space as it is
    /// written, such as the free space of the file system of a sparse file. `None` if that cannot
    /// run out, or is not known. Must not block for long.
    fn room(&self) -> Option<u64> {
        None
    }

    /// Allocates the missing space of a segment from the storage of [`room`](Medium::room): until
    /// the segment is discarded, no append to it fails for lack of space, as far as the medium can
    /// promise that. The bytes of the segment are not changed, and appends to it may be in
    /// progress.
    ///
    /// # Errors
    /// `NoSpace`; part of the space may have been allocated then. `Medium`.
    fn preallocate(&self, segment: SegmentId) -> impl Future<Output = Result<()>> {
        let _ = segment;
        async { Ok(()) }
    }

    /// Returns a message with the problem and its remedy if the location of the medium has changed
    /// such that its content is at risk although it can still be used. Must not block.
    fn misplaced(&self) -> Option<String> {
        None
    }

    /// Writes the buffer at `offset` of `segment`. Offset and length are multiples of the write
    /// unit, and the range is within the segment.
    ///
    /// # Errors
    /// `NoSpace` or `Medium`. The range may then hold anything. After `NoSpace` the drive repeats
    /// the append, with the same bytes, until it succeeds.
    fn append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> impl Future<Output = Result<()>>;

    /// Writes the buffer like [`append`](Medium::append), and makes only the range of this append
    /// durable. The drive calls this if [`Capabilities::durable_appends`] is set. The default is an
    /// append and a sync.
    ///
    /// # Errors
    /// `NoSpace` or `Medium` if the bytes could not be written: see [`append`](Medium::append).
    /// After `NoSpace` the drive repeats the operation as an append that is not durable. `Poisoned`
    /// if the bytes were written and could not be made durable: see [Failures](Medium#failures).
    fn append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> impl Future<Output = Result<()>> {
        async move {
            self.append(segment, offset, buffer).await?;
            self.sync().await.map_err(not_durable)
        }
    }

    /// Returns a buffer that the medium retained after an append and no longer needs. The drive
    /// calls this when it finds that the medium has retained a buffer. A medium that retains no
    /// buffers returns `None`.
    fn spare_buffer(&self) -> Option<AlignedBuffer> {
        None
    }

    /// Fills the buffer from `offset` of `segment`. Offset and length are multiples of the read
    /// unit, and the range is within the segment. Bytes that were not written since the last
    /// discard may have any value.
    ///
    /// # Errors
    /// `Medium`. The buffer's content is then unspecified.
    fn read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> impl Future<Output = (AlignedBuffer, Result<()>)>;

    /// Makes every completed append, discard and superblock write durable.
    ///
    /// # Errors
    /// `Medium`. See [Failures](Medium#failures).
    fn sync(&self) -> impl Future<Output = Result<()>>;

    /// Prepares a free segment for durable appends, on a medium that supports this itself: see
    /// [`Capabilities::prefers_written`]. Returns whether the medium does; if not, the drive writes
    /// zeroes to the segment.
    ///
    /// # Errors
    /// The errors of [`append`](Medium::append). Nothing is lost.
    fn prepare(&self, segment: SegmentId) -> impl Future<Output = Result<bool>> {
        let _ = segment;
        async { Ok(false) }
    }

    /// Frees the space of a segment, whose bytes may then have any value. A medium without discard
    /// does nothing.
    ///
    /// # Errors
    /// `Medium`. The bytes may then have any value too.
    fn discard(&self, segment: SegmentId) -> impl Future<Output = Result<()>>;

    /// Reads superblock slot 0 or 1: [`SUPERBLOCK_BYTES`] bytes, or zeroes if the slot was never
    /// written.
    ///
    /// # Errors
    /// `Medium`.
    fn read_superblock(&self, slot: u32) -> impl Future<Output = Result<AlignedBuffer>>;

    /// Writes superblock slot 0 or 1, [`SUPERBLOCK_BYTES`] bytes. Not durable before a sync. After
    /// `NoSpace` the drive repeats the write until it succeeds.
    ///
    /// # Errors
    /// `Medium`. The slot may then hold anything; the other one is unchanged.
    fn write_superblock(&self, slot: u32, bytes: AlignedBuffer)
    -> impl Future<Output = Result<()>>;

    /// Returns the medium as an array, if it is one.
    fn as_array(&self) -> Option<&dyn Copies> {
        None
    }

    /// Returns the medium as one in remote storage, if it is one.
    fn as_remote(&self) -> Option<&dyn Remote> {
        None
    }
}

/// An array: a medium that consists of several. A mirror has several copies of all data; a
/// concatenation has one.
pub trait Copies {
    /// Returns the state of the members. Must not block.
    fn info(&self) -> ArrayInfo;

    /// Returns the copies of all data that can be read separately. While an operation is in
    /// progress, copies may disappear and new ones may appear at any time.
    fn copies(&self) -> Vec<CopyId>;

    /// Reads like [`Medium::read`], from this copy only. A reader that finds wrong bytes uses this
    /// to read other copies.
    ///
    /// # Errors
    /// `Medium`, also if the copy does not exist or no longer exists.
    fn read_copy(
        &self,
        copy: CopyId,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> LocalBoxFuture<'_, (AlignedBuffer, Result<()>)>;

    /// Reads a superblock slot of one copy, like [`read_copy`](Copies::read_copy).
    ///
    /// # Errors
    /// See [`read_copy`](Copies::read_copy).
    fn read_superblock_copy(
        &self,
        copy: CopyId,
        slot: u32,
    ) -> LocalBoxFuture<'_, Result<AlignedBuffer>>;

    /// Compares the bytes at `offset` of `segment` in each copy with `bytes`, and overwrites copies
    /// that differ or cannot be read. Returns the number of copies overwritten. Offset and length
    /// need not be aligned: other bytes of a copy that can be read stay as they are.
    ///
    /// The caller knows from a checksum that `bytes` were written there, completely, in the
    /// segment's present use, and prevents a discard of the segment meanwhile. Not durable before a
    /// sync. An array with one copy, or one that is not written to, does nothing.
    ///
    /// # Errors
    /// `NoSpace`, or `Medium` if no copy can be written.
    fn repair<'a>(
        &'a self,
        segment: SegmentId,
        offset: u32,
        bytes: &'a [u8],
    ) -> LocalBoxFuture<'a, Result<u32>>;

    /// Records that copies may differ in a range of a segment, and which of them hold the bytes
    /// that a reader has found there and verified by a checksum. From now on, the range is read
    /// from these copies alone. Only for an array that is not written to; otherwise the copies are
    /// [made equal](Copies::repair).
    fn note_holders(&self, copies: &[CopyId], segment: SegmentId, range: Range<u32>);
}

/// A medium in remote storage, such as a bucket.
pub trait Remote {
    /// Returns the state of the bucket and of the lag. Must not block.
    fn status(&self) -> Status;

    /// Tells the medium that the drive is about to be closed. From now on, an operation that waits
    /// for the remote storage fails if that refuses for ten seconds, or does not respond for a
    /// minute. An append then fails as `NoSpace`, and a sync as `Medium`: the writes that it would
    /// have covered are not durable. May be called again. Must not block.
    fn ending(&self);

    /// Completes the copy in the remote storage, which the medium updates with a delay. The drive
    /// calls this once it is closed; by then, everything is durable in the sense of
    /// [`Medium::sync`].
    ///
    /// # Errors
    /// The remote copy is not complete. Nothing is lost locally.
    fn finish(&self) -> LocalBoxFuture<'_, Result<()>>;
}

/// Returns the error of a durable append whose bytes could not be made durable.
pub(crate) fn not_durable(error: Error) -> Error {
    let what = "appended data could not be made durable";
    Error::new(ErrorKind::Poisoned, what).caused_by(error)
}
