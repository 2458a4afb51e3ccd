//! Recovery: the state of a drive, rebuilt when it is opened.
//!
//! ```text
//! superblock -> root of the newest checkpoint -> segment table, directory pages, dropped ranges
//!            -> a core -> the log after the checkpoint, record by record -> end of the log
//! ```
//!
//! Every record is applied by the same methods of the core as live traffic. Leaves are read when a
//! record needs them. Without a checkpoint the walk begins at the start of the log. Recovery writes
//! nothing.
//!
//! **Memory.** A leaf that the log changes stays in memory until the next checkpoint, which only an
//! open drive can write. Damaged or forged bytes could cause any number of leaves to change, so
//! there is a limit ([`Limits::for_map_cache`]), beyond which the opening is refused. An open drive
//! stays below it: see `Core::must_wait_for_checkpoint`.
//!
//! * `reader`: reads the checkpoint. `snapshots`: the snapshots that it lists. `forwards`: the new
//!   places of frames and metadata that snapshots name. `kept_map`: the map of a snapshot.
//!   `replay`: applies the log. `equal`: copies that differ after an unclean end.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

mod equal;
mod forwards;
mod kept_map;
mod reader;
mod replay;
mod snapshots;

use std::collections::BTreeMap;

use super::core::{Core, Forwards, KeptDisk, Kind, NewestCheckpoint, Restored, Settings};
use super::log::walk::{Cut, Walk, WalkEnd};
use super::log::{LogEnd, Tail, Totals, closing_bytes};
use super::map::L2p;
use super::options::MAP_CACHE_BYTES_DEFAULT;
use super::space::Space;
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorKind, Result, SegmentId};
use crate::format::{Root, Snapshot, Stream, Superblock};
use crate::media::AnyMedium;

pub(crate) use equal::make_equal;
pub(crate) use kept_map::KeptMap;
use reader::Checkpoint;
pub(crate) use reader::Reader;
use replay::Replay;
pub(crate) use snapshots::{not_found, superblock_of};

/// Metadata records read concurrently.
const READS_AT_ONCE: usize = 32;

/// Maximum number of problems stored for a report.
const PROBLEMS_KEPT_MAX: usize = 1000;

/// Bytes of leaves that recovery may store in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of clean leaves; others are read again.
    pub(crate) clean_bytes: usize,
    /// Bytes of leaves that the log changed; more changes are refused.
    pub(crate) changed_bytes: usize,
}

impl Limits {
    /// Returns the limits for a map cache: four times its bytes may be changed, or four times the
    /// default cache if that is more, so that a drive written with the default opens with a smaller
    /// cache. An open drive lets at most twice its cache change after its newest checkpoint; the
    /// limit is twice that because the same leaf may occupy twice the memory, as vectors grow.
    pub(crate) fn for_map_cache(bytes: usize) -> Self {
        let changed_bytes = bytes.max(MAP_CACHE_BYTES_DEFAULT).saturating_mul(4);
        assert!(bytes <= changed_bytes, "a full cache of changed leaves is recovered");
        Self { clean_bytes: bytes, changed_bytes }
    }

    /// Returns limits that permit any number of changed leaves. For a rescue, which may have to
    /// replay the whole log.
    pub(crate) fn for_rescue() -> Self {
        Self { clean_bytes: MAP_CACHE_BYTES_DEFAULT, changed_bytes: usize::MAX }
    }
}

/// The result of a recovery.
pub(crate) struct Recovered {
    /// The core, which accepts no writes before [`Core::start`].
    pub(crate) core: Core,
    /// The end of the log.
    pub(crate) walk_end: WalkEnd,
    /// Batches that were rolled forward.
    pub(crate) batches: u64,
    /// Problems in them that did not stop recovery, including data restored from parity; the first
    /// thousand.
    pub(crate) problems: Vec<Error>,
}

/// Rebuilds a drive's state, with no more leaves in memory than `limits` permit.
///
/// # Errors
/// `Medium`; `Corrupt` if durable parts of the log or of the checkpoint are missing; `InvalidInput`
/// if the log changes more leaves than the limits permit.
pub(crate) async fn recover(
    medium: &dyn AnyMedium,
    superblock: &Superblock,
    settings: Settings,
    limits: Limits,
) -> Result<Recovered> {
    let reader = Reader::new(medium, superblock);
    let is_read_only = settings.is_read_only;
    let Checkpointed { root, mut core } = checkpointed(&reader, settings, limits).await?;
    if let (Some(place), Some(root)) = (&superblock.checkpoint, &root) {
        // This precedes the walk, since the log does not continue in segments that snapshots need.
        let (kept, forwards) = reader.snapshots(place, root, core.space()).await?;
        core.set_snapshots(kept, forwards)?;
    }
    let mut replay = Replay::new(reader, core, limits.changed_bytes);
    let mut walk = Walk::new(medium, superblock, root.as_ref());
    let (mut batches, mut problems) = (0, Vec::new());
    loop {
        for detour in walk.take_detours() {
            replay.enter(detour.stream, detour.segment, detour.generation).await?;
        }
        let lowest_empty = |count| replay.core().space().lowest_empty(count);
        let Some(batch) = walk.next(&lowest_empty).await? else { break };
        replay.apply(&batch).await?;
        batches += 1;
        if let Some(damage) = batch.damage
            && problems.len() < PROBLEMS_KEPT_MAX
        {
            tracing::warn!(error = %damage.chain(), "damage in the log");
            problems.push(damage);
        }
    }
    let walk_end = walk.end();
    if is_read_only {
        equal::note_holders(medium, superblock.segment_bytes, &walk_end.unproven).await;
    }
    warn_of_cut(&walk_end, superblock);
    check_tails(&walk_end, superblock)?;
    check_metadata(replay.core(), &walk_end.end, superblock)?;
    let (core, restored) = replay.end();
    problems.extend(restored);
    problems.truncate(PROBLEMS_KEPT_MAX);
    Ok(Recovered { core, walk_end, batches, problems })
}

/// The state of a drive at its newest checkpoint, or an empty drive.
struct Checkpointed {
    root: Option<Root>,
    core: Core,
}

async fn checkpointed(
    reader: &Reader<'_>,
    settings: Settings,
    limits: Limits,
) -> Result<Checkpointed> {
    let superblock = reader.superblock();
    let Some(place) = &superblock.checkpoint else {
        let blocks = superblock.size_bytes / BLOCK_BYTES as u64;
        let restored = Restored {
            map: L2p::new(blocks, limits.clean_bytes),
            space: Space::with_bad(superblock.segment_count, &superblock.bad_segments)?,
            newest: NewestCheckpoint::default(),
            tails: [None; Stream::COUNT],
        };
        return Ok(Checkpointed {
            root: None,
            core: Core::new(superblock.clone(), settings, restored),
        });
    };
    let root = reader.root(place).await?;
    let checkpoint = reader.checkpoint(place, &root, limits.clean_bytes).await?;
    let Checkpoint { map, space, lists } = checkpoint;
    // For a snapshot, the segments that its map may name.
    let superblock = Superblock { segment_count: reader.segment_count(), ..superblock.clone() };
    let newest =
        NewestCheckpoint { checkpointed: root.watermark, begun_at_bytes: root.media_bytes, lists };
    let tails = tails_of(&root);
    let mut core = Core::new(superblock, settings, Restored { map, space, newest, tails });
    core.set_lost_leaves(root.lost_leaves);
    core.set_rolled_back(root.rolled_back);
    Ok(Checkpointed { root: Some(root), core })
}

fn tails_of(root: &Root) -> [Option<Tail>; Stream::COUNT] {
    root.tails.map(|tail| {
        tail.map(|tail| Tail {
            segment: tail.segment,
            generation: tail.generation,
            used: tail.used,
        })
    })
}

/// Restores a drive as it was when a snapshot was taken: `superblock` is from [`superblock_of`].
/// The subsequent log is not read; `forwards` contains the places of records that were moved.
///
/// # Errors
/// `Medium` or `Corrupt`.
pub(crate) async fn restore(
    medium: &dyn AnyMedium,
    superblock: &Superblock,
    settings: Settings,
    limits: Limits,
    (entry, forwards): (&Snapshot, Forwards),
) -> Result<Recovered> {
    let reader = Reader::of_kept(medium, superblock, &forwards);
    let Checkpointed { root, mut core } = checkpointed(&reader, settings, limits).await?;
    let kind = if entry.is_bookmark { Kind::Bookmark } else { Kind::View };
    core.read_through(forwards, kind);
    let what = "a snapshot has no root";
    let root = root.ok_or_else(|| Error::new(ErrorKind::Corrupt, what))?;
    let (seq, checksum) = (root.watermark, root.watermark_checksum);
    let Root { host_bytes, frame_bytes, media_bytes, moved_bytes, .. } = root;
    let walk_end = WalkEnd {
        end: LogEnd { seq, checksum, tails: tails_of(&root) },
        epoch: root.epoch,
        totals: Totals { host_bytes, frame_bytes, media_bytes, moved_bytes },
        cut: Cut::default(),
        unreadable: Vec::new(),
        unproven: Vec::new(),
        completed: Vec::new(),
    };
    let problems = reader.take_restored();
    Ok(Recovered { core, walk_end, batches: 0, problems })
}

/// Reads the disk of a snapshot: `superblock` is from [`superblock_of`], with the current size of
/// the disk.
///
/// # Errors
/// `Medium` or `Corrupt`.
pub(crate) async fn kept_disk(
    medium: &dyn AnyMedium,
    superblock: &Superblock,
    map_cache_bytes: usize,
    forwards: &Forwards,
) -> Result<KeptDisk> {
    let reader = Reader::of_kept(medium, superblock, forwards);
    let what = "a snapshot has no root";
    let place = superblock.checkpoint.ok_or_else(|| Error::new(ErrorKind::Corrupt, what))?;
    let root = reader.any_root(&place).await?;
    let Checkpoint { map, space, .. } = reader.checkpoint(&place, &root, map_cache_bytes).await?;
    let Root { watermark, lost_leaves, .. } = root;
    Ok(KeptDisk { watermark, map, space, lost_leaves, copies: BTreeMap::new() })
}

/// Reports the data found beyond the end of the log, which a crash leaves.
fn warn_of_cut(walk_end: &WalkEnd, superblock: &Superblock) {
    let Cut { batches, bytes, unreadable_bytes } = walk_end.cut;
    if batches == 0 && unreadable_bytes == 0 {
        return;
    }
    let reason = if unreadable_bytes > 0 {
        "the place of the next batch, or one after it, cannot be read"
    } else {
        "the next batch is missing, torn or damaged"
    };
    tracing::warn!(
        drive = %superblock.uuid,
        end = walk_end.end.seq.0,
        batches,
        bytes,
        unreadable_bytes,
        reason,
        "the log was cut at its torn tail: nothing shows that the batches after it were durable"
    );
}

/// Checks that the log includes the batches of the newest checkpoint, which are the first after it.
/// Otherwise its streams would overwrite them.
fn check_metadata(core: &Core, end: &LogEnd, superblock: &Superblock) -> Result<()> {
    let root = superblock.checkpoint.iter().map(|root| (root.address.segment, root.address.offset));
    let map = core.map().metadata_addresses().map(|named| (named.segment, named.offset));
    let is_beyond = |&(segment, offset): &(SegmentId, u32)| {
        let mut tails = end.tails.iter().flatten();
        let is_after = tails.any(|tail| tail.segment == segment && offset >= tail.used);
        is_after || core.space().is_free(segment)
    };
    match root.chain(map).find(is_beyond) {
        None => Ok(()),
        Some((segment, offset)) => {
            let what = "a part of the newest checkpoint is beyond the end of the log: rebuild the \
                        drive";
            let error = Error::new(ErrorKind::Corrupt, what);
            Err(error.in_segment(segment).at_offset(offset.into()))
        }
    }
}

/// Checks that each stream's segment has space for the record that names the next one.
fn check_tails(walk_end: &WalkEnd, superblock: &Superblock) -> Result<()> {
    for (stream, tail) in Stream::ALL.into_iter().zip(walk_end.end.tails) {
        let Some(tail) = tail else { continue };
        if tail.used > superblock.segment_bytes - closing_bytes(stream) {
            let what = "a segment is full, and no record names the next segment of its stream";
            return Err(Error::new(ErrorKind::Corrupt, what).in_segment(tail.segment));
        }
    }
    Ok(())
}
