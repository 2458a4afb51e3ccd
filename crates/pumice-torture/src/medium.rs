//! The medium of a tortured drive: the fault layer, with the crash point and the trace on top.
//!
//! It is a handle: the world keeps the layer after the drive is gone, because unsynced data
//! outlives the process that wrote it. It adds no faults of its own.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::audits::Audits;
use super::crash_point::{CrashPoint, Effect};
use super::gauge::InFlight;
use super::trace::Trace;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::{AlignedBuffer, Clock, Result, SegmentId};
use pumice_drive::media::Medium;
use pumice_drive::media::layer::{Fault, Layer};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::runtime::Runtime;

/// A wrong bit that a single read of the medium will return.
#[derive(Debug, Default)]
pub(super) struct Misread {
    /// Number of reads of written bytes before it, and the random number that selects the bit.
    at: Cell<Option<(u64, u64)>>,
}

impl Misread {
    /// Sets or clears the wrong bit.
    pub(super) fn set(&self, at: Option<(u64, u64)>) {
        self.at.set(at);
    }

    /// Returns whether the wrong bit is still to come.
    pub(super) fn is_set(&self) -> bool {
        self.at.get().is_some()
    }

    /// Flips a bit of a page that is not empty, if it is the turn of this read.
    fn apply(&self, bytes: &mut [u8]) {
        let Some((reads, drawn)) = self.at.get() else { return };
        let has_data = |page: &&mut [u8]| page.iter().any(|&byte| byte != 0);
        let mut pages: Vec<_> = bytes.chunks_mut(BLOCK_BYTES).filter(has_data).collect();
        if pages.is_empty() {
            return;
        }
        self.at.set(reads.checked_sub(1).map(|left| (left, drawn)));
        if reads == 0 {
            let page = drawn as usize % pages.len();
            let bit = (drawn >> 32) as usize % (pages[page].len() * 8);
            pages[page][bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// The layers below the handle.
pub(super) type Layers = Fault<MemMedium, Runtime>;

/// The kinds of operation, as recorded in the trace.
#[derive(Clone, Copy)]
enum Kind {
    Append = 1,
    Read,
    Sync,
    Discard,
    ReadSuperblock,
    WriteSuperblock,
    AppendDurably,
}

/// A handle on the fault layer of one world.
#[derive(Clone)]
pub(super) struct TracedMedium {
    /// The fault layer and the memory below it.
    pub(super) layers: Rc<Layers>,
    /// The crash point of the life.
    pub(super) crash_point: Rc<CrashPoint>,
    /// Records all operations.
    pub(super) trace: Rc<Trace>,
    /// Counts the buffers that operations hold.
    pub(super) in_flight: Rc<InFlight>,
    /// Returns a wrong bit.
    pub(super) misread: Rc<Misread>,
    /// Audits, which read below the faults and learn which segments are freed.
    pub(super) audits: Rc<Audits>,
    /// The clock for the time of an operation.
    pub(super) clock: Runtime,
}

impl TracedMedium {
    fn note(&self, kind: Kind, place: u32, offset: u32, is_ok: bool) {
        let place = u64::from(place) << 32 | u64::from(offset);
        self.trace.add(&[kind as u64, place, u64::from(is_ok), self.clock.now_ns()]);
    }

    /// Runs an operation up to the crash point, and records it.
    async fn traced<T>(
        &self,
        kind: Kind,
        place: u32,
        effect: Effect,
        operation: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let result = self.crash_point.operation(effect, operation).await;
        self.note(kind, place, 0, result.is_ok());
        result
    }
}

impl TracedMedium {
    /// Appends, durably or not.
    async fn append_as(
        &self,
        kind: Kind,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.trace.add_bytes(&buffer);
        let _held = self.in_flight.hold(buffer.len());
        let append = async {
            match kind {
                Kind::AppendDurably => self.layers.append_durably(segment, offset, buffer).await,
                _ => self.layers.append(segment, offset, buffer).await,
            }
        };
        let result = self.crash_point.operation(Effect::Update, append).await;
        self.note(kind, segment.0, offset, result.is_ok());
        result
    }
}

impl Layer for TracedMedium {
    type Inner = Layers;

    fn inner(&self) -> &Layers {
        &self.layers
    }

    async fn on_append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.append_as(Kind::Append, segment, offset, buffer).await
    }

    async fn on_append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.append_as(Kind::AppendDurably, segment, offset, buffer).await
    }

    async fn on_read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        if self.audits.is_running() {
            return Layers::inner(&self.layers).read(segment, offset, buffer).await;
        }
        let _held = self.in_flight.hold(buffer.len());
        let read = self.layers.read(segment, offset, buffer);
        let (mut buffer, result) = self.crash_point.operation(Effect::None, read).await;
        self.misread.apply(&mut buffer);
        self.note(Kind::Read, segment.0, offset, result.is_ok());
        (buffer, result)
    }

    async fn on_sync(&self) -> Result<()> {
        self.traced(Kind::Sync, 0, Effect::Update, self.layers.sync()).await
    }

    async fn on_discard(&self, segment: SegmentId) -> Result<()> {
        self.audits.segment_freed();
        let discard = self.layers.discard(segment);
        self.traced(Kind::Discard, segment.0, Effect::Discard, discard).await
    }

    async fn on_read_superblock(&self, slot: u32) -> Result<AlignedBuffer> {
        let read = self.layers.read_superblock(slot);
        self.traced(Kind::ReadSuperblock, slot, Effect::None, read).await
    }

    async fn on_write_superblock(&self, slot: u32, bytes: AlignedBuffer) -> Result<()> {
        let write = self.layers.write_superblock(slot, bytes);
        self.traced(Kind::WriteSuperblock, slot, Effect::Superblock, write).await
    }
}
