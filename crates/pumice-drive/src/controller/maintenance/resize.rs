//! Resizing: changes the size of the host's disk or the capacity while the drive is in use.
//!
//! ```text
//! grow:    medium longer, sync -> superblock, both slots -> the growth is used
//! shrink:  nothing is written beyond the new end -> streams continue before it
//!          -> garbage collection empties the segments beyond it -> all of them are free
//!          -> checkpoint with the short table -> superblock, both slots -> medium shorter
//! ```
//!
//! **Power loss** at any moment leaves the old drive or the new one, with all data. *The superblock
//! states the number of segments and blocks; the checkpoint's root may cover fewer, never more*
//! (recovery compares the two). Growing: until both slots are durable nothing names the growth, so
//! that either slot is right; an earlier root has a shorter table and map, and the missing entries
//! are free segments and holes. Shrinking: both slots name the checkpoint with the short table
//! before either states the smaller number of segments. Nothing after that checkpoint names the
//! segments beyond the end, since they were free when it was started and are no longer allocated.
//! The medium is truncated once no superblock slot references the removed segments.
//!
//! Frames of snapshots in the segments beyond the end, and records of their maps, are copied as
//! well, as in garbage collection. Their maps and roots stay as they are and may name segments that
//! no longer exist; forwarding tables lead to the copies, and remain as long as a snapshot names
//! the originals.
//!
//! A smaller size is refused: the host's data at its end would be lost.

use serde::{Deserialize, Serialize};

use super::super::core::{
    Core, RESERVED_SEGMENTS, SEGMENTS_MIN, meta_segments, usable_segment_bytes,
};
use super::super::drive::Drive;
use super::super::drive::superblocks::geometry;
use crate::base::units::format_size;
use crate::base::{Error, ErrorKind, Result, ensure};
use crate::format::{SEGMENTS_MAX, Stream, Superblock, leaf_bytes_max};

/// Properties to change; `None` leaves a property as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resize {
    /// Size of the host's disk in bytes: a multiple of 4096, not below the current size.
    pub size_bytes: Option<u64>,
    /// Bytes for the log; rounded down to whole segments.
    pub capacity_bytes: Option<u64>,
}

/// Properties of a resized drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Resized {
    /// Size of the host's disk in bytes.
    pub size_bytes: u64,
    /// Bytes of all segments.
    pub capacity_bytes: u64,
    /// Number of segments.
    pub segment_count: u32,
}

/// Marks a drive as being resized until dropped. If dropped before a shrink is complete, reverts
/// the changes made only in memory.
struct Resizing<'a> {
    drive: &'a Drive,
    /// The number of segments according to the superblock.
    segment_count: u32,
}

impl Drop for Resizing<'_> {
    fn drop(&mut self) {
        self.drive.with_core(|core| core.end_resize(self.segment_count));
    }
}

impl Drive {
    /// Changes the size, the capacity or both. The change is durable when this returns.
    ///
    /// The call must run to completion while the drive is open: if it is dropped while it writes
    /// superblocks, the drive accepts no writes until it is reopened.
    ///
    /// # Errors
    /// `InvalidInput` for impossible properties, `NoSpace` if the content of the drive does not
    /// fit, `Corrupt` if a segment cannot be emptied, `Busy`, `ReadOnly`, `Poisoned`, `Medium`. The
    /// drive is then unchanged and in use; after `Medium` or `Poisoned` it accepts no writes.
    pub async fn resize(&self, wanted: Resize) -> Result<Resized> {
        let grows = wanted.size_bytes.is_some_and(|bytes| bytes > self.size_bytes());
        let what = "the disk holds a part of a snapshot, whose size is fixed: until the rest is \
                    received, only the capacity can change";
        ensure(!grows || self.partial_receive().is_none(), ErrorKind::InvalidInput, what)?;
        self.resize_even_a_part(wanted).await
    }

    /// Like [`Drive::resize`], but also resizes the disk of a part, to the size of its snapshot.
    pub(in super::super) async fn resize_even_a_part(&self, wanted: Resize) -> Result<Resized> {
        let before = self.with_core(|core| {
            core.check_writable(0, 0)?;
            core.begin_resize()?;
            Ok(core.superblock().clone())
        })?;
        let mut resizing = Resizing { drive: self, segment_count: before.segment_count };
        let target = target(&before, &wanted)?;
        if target.segment_count < before.segment_count {
            self.core().snapshots().check_shrink(target.segment_count)?;
            self.reap_all().await?;
            let is_unknown = self.core().wants_measure();
            if is_unknown {
                self.measure_retained().await;
            }
            self.check_fits(&target)?;
            self.shrink(&mut resizing, target.segment_count).await?;
        }
        assert!(target.size_bytes >= before.size_bytes, "a disk never gets smaller");
        if target.segment_count > before.segment_count || target.size_bytes > before.size_bytes {
            self.grow(&mut resizing, &target).await?;
        }
        let capacity_bytes = geometry(&target).capacity_bytes();
        let (size_bytes, segment_count) = (target.size_bytes, target.segment_count);
        Ok(Resized { size_bytes, capacity_bytes, segment_count })
    }

    /// Returns the number of segments that a shrink under way has yet to empty.
    // For the progress that the program shows: `resize` and `rekey` need no such call.
    #[doc(hidden)]
    pub fn segments_to_empty(&self) -> u32 {
        self.core().space().going_count()
    }

    /// Checks that the content of the drive fits a target.
    ///
    /// # Errors
    /// `NoSpace`, with the numbers.
    fn check_fits(&self, target: &Superblock) -> Result<()> {
        let (live_bytes, retained_bytes) = {
            let core = self.core();
            (core.space().live_bytes(), core.space().retained_dead_frame_bytes())
        };
        let usable = usable_segment_bytes(target.segment_bytes);
        let leaf_bytes = leaf_bytes_max(target.has_chunks);
        let reserved = meta_segments(&target.shape(), leaf_bytes, self.options.map_cache_bytes);
        let kept = reserved + RESERVED_SEGMENTS;
        // Each stream has an open segment, and one more lets the host continue.
        let others = u64::from(kept) + Stream::COUNT as u64 + 1;
        let needed = (live_bytes + retained_bytes).div_ceil(usable) + others;
        if needed <= u64::from(target.segment_count) {
            return Ok(());
        }
        let segment_bytes = u64::from(target.segment_bytes);
        let what = format!(
            "a capacity of {} is too small: the drive holds {live_bytes} live bytes{} and keeps {} \
             in reserve, so it needs {} ({}) or more; or trim unneeded data",
            format_size(geometry(target).capacity_bytes()),
            match retained_bytes {
                0 => String::new(),
                retained => format!(", {retained} for snapshots alone,"),
            },
            others * segment_bytes,
            needed * segment_bytes,
            format_size(needed * segment_bytes)
        );
        Err(Error::new(ErrorKind::NoSpace, what))
    }

    async fn grow(&self, resizing: &mut Resizing<'_>, target: &Superblock) -> Result<()> {
        let _turn = self.turn().await;
        self.core().log().check_poison()?;
        self.with_core(|core| core.add_segments(target.segment_count))?;
        self.medium.set_geometry(geometry(target))?;
        if target.is_preallocated {
            self.medium.reserve()?;
        }
        self.sync().await?;
        self.update_superblocks(|superblock| {
            superblock.size_bytes = target.size_bytes;
            superblock.segment_count = target.segment_count;
        })
        .await?;
        assert!(target.segment_count >= resizing.segment_count, "a drive that grows keeps all");
        resizing.segment_count = target.segment_count;
        self.with_core(Core::use_growth);
        Ok(())
    }

    async fn shrink(&self, resizing: &mut Resizing<'_>, segment_count: u32) -> Result<()> {
        self.evacuate(segment_count).await?;
        assert_eq!(self.segments_to_empty(), 0, "segments are emptied before they are removed");
        // The medium and the table are truncated while no operation uses the removed segments.
        let is_cold = |core: &mut Core| (!core.space().is_kept_from(segment_count)).then_some(());
        self.wait_for(&self.queues.progress, is_cold).await;
        self.with_core(|core| core.remove_segments(segment_count));
        self.checkpoint().await?;
        let _turn = self.turn().await;
        self.core().log().check_poison()?;
        self.update_superblocks(|superblock| {
            superblock.segment_count = segment_count;
            superblock.bad_segments.retain(|segment| segment.0 < segment_count);
            superblock.detours.retain(|detour| detour.segment.0 < segment_count);
        })
        .await?;
        resizing.segment_count = segment_count;
        self.with_core(Core::take_shape);
        let now = geometry(self.core().superblock());
        if let Err(error) = self.medium.set_geometry(now) {
            tracing::warn!(error = %error.chain(), "cannot shorten the medium");
        }
        Ok(())
    }

    /// Waits until no segment from `end` onwards is in use.
    async fn evacuate(&self, end: u32) -> Result<()> {
        let check_hindrance = |core: &Core| {
            core.snapshots().check_no_readers("the capacity cannot shrink")?;
            // A clone may have been registered in the meantime.
            core.snapshots().check_shrink(end)
        };
        let step = |core: &mut Core| core.evacuate_step(end);
        self.until_emptied(step, |core| core.evacuation(end), check_hindrance).await
    }
}

/// Returns the superblock with the requested properties.
///
/// # Errors
/// `InvalidInput`.
fn target(before: &Superblock, wanted: &Resize) -> Result<Superblock> {
    let invalid = |what: String| Error::new(ErrorKind::InvalidInput, what);
    let segment_bytes = u64::from(before.segment_bytes);
    let mut target = before.clone();
    if let Some(capacity) = wanted.capacity_bytes {
        let count = u32::try_from(capacity / segment_bytes).unwrap_or(u32::MAX);
        if !(SEGMENTS_MIN..=SEGMENTS_MAX).contains(&count) {
            return Err(invalid(format!(
                "a capacity of {} is not from {SEGMENTS_MIN} to {SEGMENTS_MAX} segments of {}",
                format_size(capacity),
                format_size(segment_bytes)
            )));
        }
        target.segment_count = count;
        target.bad_segments.retain(|segment| segment.0 < count);
        // A checkpoint that precedes the smaller superblock replaces these detours.
        target.detours.retain(|detour| detour.segment.0 < count);
    }
    if let Some(size_bytes) = wanted.size_bytes {
        if size_bytes < before.size_bytes {
            return Err(invalid(format!(
                "the size cannot shrink below {} ({} bytes), because data at the end of the disk \
                 would be lost: copy the disk to a new drive instead",
                format_size(before.size_bytes),
                before.size_bytes
            )));
        }
        target.size_bytes = size_bytes;
    }
    match target.impossible() {
        None => Ok(target),
        Some(what) => Err(invalid(what.into())),
    }
}
