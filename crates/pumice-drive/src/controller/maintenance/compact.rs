//! Returning dead space to the medium: automatically while the host is quiet, and immediately on
//! request.
//!
//! `core::reclaim::compact` decides which space is returned, and when. Garbage collection does the
//! work, slowly unless it was requested, and leaves a segment half emptied when the host is active
//! again.

use serde::{Deserialize, Serialize};

use super::super::core::{Core, Occupied};
use super::super::drive::Drive;
use crate::base::Result;

/// Pause for each byte of a segment that is emptied while nothing waits for it. At most 125 MB/s
/// are read, and half of the time of a slower medium is left to the host's reads.
const PAUSE_NS_A_BYTE: u64 = 8;

/// The result of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Compacted {
    /// Bytes that the log occupied on the medium before.
    pub occupied_bytes_before: u64,
    /// Bytes that it occupies now.
    pub occupied_bytes: u64,
    /// Bytes of records that are live.
    pub live_bytes: u64,
    /// Bytes of records that the compaction moved.
    pub moved_bytes: u64,
    /// Bytes of the disk that were scattered over the log and are now in order.
    pub reordered_bytes: u64,
    /// Whether the drive now occupies no more than requested. If not, the rest cannot be gained by
    /// moving records, or there is no space to move them.
    pub is_complete: bool,
}

/// A compaction under way, which ends when dropped.
struct Compacting<'a>(&'a Drive);

impl Drop for Compacting<'_> {
    fn drop(&mut self) {
        self.0.with_core(|core| core.reclaim_mut().end_compaction());
    }
}

impl Drive {
    /// Empties and discards segments until the drive occupies at most `percent` percent more than
    /// its live bytes, while the drive is in use. If dropped before completion, the compaction
    /// stops, and the work done so far remains.
    ///
    /// # Errors
    /// `Busy` if a compaction, a resize or a replacement of the key is under way, `ReadOnly`,
    /// `Poisoned`.
    pub async fn compact(&self, percent: u32) -> Result<Compacted> {
        // Trimmed blocks count as live until they are reaped.
        self.with_core(|core| core.check_writable(0, 0))?;
        self.reap_all().await?;
        if self.core().wants_measure() {
            self.measure_retained().await;
        }
        let (before, moved_before) = self.with_core(|core| {
            core.begin_compaction(percent)?;
            Ok((core.occupied(), core.counters().moved_bytes.get()))
        })?;
        let compacting = Compacting(self);
        let ended = |core: &mut Core| match core.check_writable(0, 0) {
            Ok(()) => (!core.compacts_more()).then_some(Ok(())),
            Err(error) => Some(Err(error)),
        };
        self.wait_for(&self.queues.progress, ended).await?;
        drop(compacting);
        let core = self.core();
        let Occupied { bytes, live_bytes } = core.occupied();
        Ok(Compacted {
            occupied_bytes_before: before.bytes,
            occupied_bytes: bytes,
            live_bytes,
            moved_bytes: core.counters().moved_bytes.get() - moved_before,
            reordered_bytes: 0,
            is_complete: core.occupied().is_within(percent),
        })
    }

    /// Compacts like [`Drive::compact`], after blocks that are scattered over the log were appended
    /// again in the order of the disk. Reads the whole disk.
    ///
    /// # Errors
    /// The errors of [`Drive::compact`]; `InvalidInput` if the drive has snapshots or bookmarks, or
    /// if more than 85 % of its capacity is in use.
    pub async fn compact_in_order(&self, percent: u32) -> Result<Compacted> {
        let reordered_bytes = self.reorder().await?;
        Ok(Compacted { reordered_bytes, ..self.compact(percent).await? })
    }

    /// Checks, once a second, whether there is space to return.
    pub(crate) fn give_back_tick(&self) {
        let is_out_of_use = self.with_core(Core::compaction_tick);
        self.ahead.tick();
        if is_out_of_use {
            self.ahead.release_all(&self.buffers);
            self.with_core(Core::release_buffers);
            self.buffers.release();
            self.cache.release();
        }
    }

    /// Makes a stream leave a segment that contains little live data. Returns whether any stream
    /// did.
    pub(super) async fn leave_stale_segment(&self) -> Result<bool> {
        let stream = {
            let core = self.core();
            core.compaction_is_wanted().then(|| core.stale_stream()).flatten()
        };
        let Some(stream) = stream else { return Ok(false) };
        self.with_room(|core| Ok(core.leave_segment(stream)?.then_some(()))).await?;
        Ok(true)
    }

    /// Waits after `bytes` of a segment were scanned, if nothing waits for the segment to be
    /// emptied.
    pub(super) async fn pause_gently(&self, bytes: u32) {
        if self.core().collects_gently() {
            self.pause(u64::from(bytes) * PAUSE_NS_A_BYTE).await;
        }
    }
}
