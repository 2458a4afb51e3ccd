//! Where segments live: the seam between the controller and what stores bytes.
//!
//! * `mem`: memory, for tests and for measuring the controller alone.
//! * `file`: a file or a block device through the runtime's I/O.
//! * `nand`: simulated flash in virtual time.
//! * `layer/`: wrappers that are media too.
//!
//! A medium knows two superblock slots and numbered segments of equal size. It deliberately does
//! not know what an LBA, a frame or a batch is.

use std::sync::Arc;

use crate::base::{AlignedBuffer, Result, SegmentId};

pub mod file;
pub mod layer;
mod lent;
pub mod mem;

/// Bytes of one superblock slot.
pub const SUPERBLOCK_BYTES: usize = 4096;

/// Superblock slots of every medium.
pub const SUPERBLOCK_SLOTS: u32 = 2;

/// Distance in bytes between superblock slots on a medium that has byte offsets: slot n begins at
/// n times this. Far enough apart that no single misdirected or torn write hits both (arbitrary
/// beyond that); segments begin behind the last slot.
pub const SUPERBLOCK_STRIDE: u64 = 1 << 20;

/// How a medium is divided. Read from the superblock, then told to the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of one segment; a multiple of the write unit.
    pub segment_bytes: u32,
    /// Number of segments.
    pub segment_count: u32,
    /// Byte offset of segment 0 on a medium that has byte offsets.
    pub data_offset: u64,
}

impl Geometry {
    /// Bytes that all segments hold together.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.segment_bytes) * u64::from(self.segment_count)
    }

    /// Bytes a file or device must have.
    pub fn medium_bytes(&self) -> u64 {
        self.data_offset + self.capacity_bytes()
    }
}

/// What a medium can do and what it asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Offsets and lengths of appends are multiples of this many bytes (a power of two, at most
    /// 4096).
    pub write_unit: u32,
    /// Offsets and lengths of reads are multiples of this many bytes (a power of two, at most
    /// 4096).
    pub read_unit: u32,
    /// Whether [`Medium::discard`] gives space back.
    pub discard: bool,
}

/// A place for segments.
///
/// **What may happen before [`Medium::sync`] returns.** Completed appends may be lost, may survive
/// in any order, and may be torn at any 512-byte boundary. After `sync` returned without error,
/// everything that had completed when it was called survives power loss.
///
/// Buffers are owned by the operation while it runs: a read's is handed over and comes back, an
/// append's is shared, because reads are served from it meanwhile. A dropped future does not
/// cancel an operation.
pub trait Medium {
    /// What the medium asks and offers. Constant while it is open.
    fn capabilities(&self) -> Capabilities;

    /// Tells the medium how it is divided, before any segment is touched; and again, with another
    /// number of segments only, when the drive's capacity changes. A medium that can then grows, or
    /// gives back what lies behind the last segment, which nothing is in any more; a longer one is
    /// durable after a sync.
    ///
    /// # Errors
    /// `InvalidInput` if the medium is too small for the geometry, `NoSpace` or `Medium` if it
    /// cannot grow; nothing is changed then.
    fn set_geometry(&self, geometry: Geometry) -> Result<()>;

    /// Writes the buffer's bytes at `offset` of `segment`. The controller never writes a byte of
    /// a segment twice between two discards of it, except after a crash, where it continues
    /// behind the last valid batch.
    ///
    /// # Errors
    /// `NoSpace` or `Medium`; the bytes on the medium are then unknown.
    fn append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> impl Future<Output = Result<()>>;

    /// Fills the buffer from `offset` of `segment`. Bytes never written read as anything.
    ///
    /// # Errors
    /// `Medium`; the buffer's content is then unspecified.
    fn read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> impl Future<Output = (AlignedBuffer, Result<()>)>;

    /// Makes every completed append, discard and superblock write durable.
    ///
    /// # Errors
    /// `Medium`: what was not durable before must be taken as lost; never retry it as if nothing
    /// had happened.
    fn sync(&self) -> impl Future<Output = Result<()>>;

    /// Gives a segment's space back; its bytes then read as anything.
    ///
    /// # Errors
    /// `Medium`.
    fn discard(&self, segment: SegmentId) -> impl Future<Output = Result<()>>;

    /// Reads superblock slot 0 or 1: [`SUPERBLOCK_BYTES`] bytes, zeroes where none was written.
    ///
    /// # Errors
    /// `Medium`.
    fn read_superblock(&self, slot: u32) -> impl Future<Output = Result<AlignedBuffer>>;

    /// Writes superblock slot 0 or 1 ([`SUPERBLOCK_BYTES`] bytes). Not durable before a sync.
    ///
    /// # Errors
    /// `Medium`.
    fn write_superblock(&self, slot: u32, bytes: AlignedBuffer)
    -> impl Future<Output = Result<()>>;
}
