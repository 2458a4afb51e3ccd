//! Making a clone independent of its origin, while it is in use.
//!
//! ```text
//! each hole below the origin's blocks -> the origin's data there -> appended, if still a hole
//!    -> all are filled -> flush -> superblock without an origin, both slots
//!                              \-> with the number of the last batch, if snapshots need the origin
//!       the last of these is deleted -> its checkpoint's superblock has no origin
//! ```
//!
//! Nothing creates holes in that range, so filled blocks stay filled, and the next run resumes an
//! interrupted one. *Crash before both superblocks are durable:* the drive is still a clone, and
//! little or nothing of it reads from the origin. *After:* its disk reads nothing from the origin,
//! and all filled blocks are durable; holes of the disk are zeroes from then on.
//!
//! **Snapshots** of the clone that were taken before still read from the origin. Their data is not
//! copied: their maps are retained checkpoints, which never change, and a copy for them alone would
//! occupy the space that deleting each is meant to free. Snapshots from the batch that the
//! superblock names onwards are of a disk without holes that read from the origin. If the disk is
//! rolled back to an earlier snapshot, it reads from the origin again, according to the same
//! superblock that names the map.

use serde::{Deserialize, Serialize};

use super::super::core::{Attempt, BlockWrite, Core, Edge};
use super::super::drive::Drive;
use super::super::log::packing::ATOMIC_WRITE_BYTES;
use super::super::map::{Lookup, Mapping};
use super::super::operations::{Content, Extent};
use crate::base::units::{BLOCK_BYTES, buffer_bytes};
use crate::base::{Error, ErrorKind, Lba, Result, SeqNo};
use crate::format::LEAF_BLOCKS;

const COPIED_BLOCKS: u64 = (ATOMIC_WRITE_BYTES / BLOCK_BYTES) as u64;

/// The progress of a flatten, or its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Flattened {
    /// Bytes from the start of the disk that no longer read from the origin.
    pub done_bytes: u64,
    /// Bytes of the disk that could read from the origin before any flatten.
    pub total_bytes: u64,
    /// Bytes of data that were copied.
    pub copied_bytes: u64,
    /// Snapshots and bookmarks of the clone that still need the origin. The origin is forgotten
    /// with the last of them. Known when nothing is left to copy.
    #[serde(default)]
    pub snapshots: u32,
    /// Whether the drive is independent of the origin.
    pub is_complete: bool,
}

impl Drive {
    /// Copies the data that the disk of this clone reads from its origin, then forgets the origin.
    /// If the clone has snapshots, the origin is forgotten only when the last of them is deleted.
    /// `goes_on` receives the progress, and returns false to stop; closing the drive also stops the
    /// work. The next call continues from there. The work is durable when this returns. The call
    /// must run to completion, like [`Drive::create_snapshot`]; if the result is complete, the
    /// origin may forget the clone.
    ///
    /// # Errors
    /// `InvalidInput` if the drive is not a clone; `NotFound` if its origin is not open; `NoSpace`;
    /// `Corrupt` or `Medium` if a block of the origin cannot be read; `ReadOnly`; `Poisoned`;
    /// `Busy` if the drive was rolled back in the meantime. The drive is then still a clone, and in
    /// use; after `Medium` it may accept no writes.
    pub async fn flatten(&self, mut goes_on: impl FnMut(Flattened) -> bool) -> Result<Flattened> {
        self.core().check_writable(0, 0)?;
        let origin = self.origin();
        let total_bytes = origin.map(|origin| origin.blocks * BLOCK_BYTES as u64);
        let total_bytes = total_bytes.ok_or_else(no_clone)?;
        let rolled_back = self.core().snapshots().rolled_back();
        // There are none if the disk was flattened before.
        let end = self.core().inherited_blocks();
        let mut done = Flattened { total_bytes, ..Flattened::default() };
        let mut buffer = vec![0; ATOMIC_WRITE_BYTES];
        let mut at = 0;
        while at < end {
            at += self.flatten_from(Lba(at), &mut buffer, &mut done.copied_bytes).await?;
            done.done_bytes = at.min(end) * BLOCK_BYTES as u64;
            assert!(done.done_bytes <= total_bytes, "no more is done than there was to do");
            if !goes_on(done) || self.core().is_ending() {
                self.flush().await?;
                return Ok(done);
            }
            // Lets other tasks run even if this function never waits.
            self.clock.sleep_ns(0).await;
        }
        self.flush().await?;
        let _turn = self.turn().await;
        self.core().log().check_poison()?;
        if self.core().snapshots().rolled_back() != rolled_back {
            let what = "the disk was rolled back while it was flattened: flatten it again";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        // Checkpoints that begin after this point contain all filled blocks.
        let (flat_since, snapshots) = self.with_core(|core| core.flat_since());
        let is_complete = snapshots == 0;
        self.update_superblocks(|superblock| match is_complete {
            true => (superblock.origin, superblock.flat_since) = (None, SeqNo(0)),
            false => superblock.flat_since = flat_since,
        })
        .await?;
        Ok(Flattened { done_bytes: total_bytes, snapshots, is_complete, ..done })
    }

    /// Fills the hole at a block, if there is one. Returns the number of blocks done; 0 if
    /// something changed in the meantime.
    async fn flatten_from(
        &self,
        lba: Lba,
        buffer: &mut [u8],
        copied_bytes: &mut u64,
    ) -> Result<u64> {
        self.load_to_change(lba, 1).await?;
        let run = self.core().map().peek(lba);
        let blocks = match run {
            Lookup::Missing(_) => return Ok(0),
            Lookup::Run(Mapping::Hole, blocks) => blocks,
            Lookup::Run(_, blocks) => return Ok(blocks),
        };
        let Some(blocks) = self.inherited(lba, blocks) else { return Ok(blocks) };
        let offset = lba.0 * BLOCK_BYTES as u64;
        let mut found = None;
        let visit = |extent| found.replace(extent).is_some();
        self.extents(offset, blocks * BLOCK_BYTES as u64, visit).await?;
        let Some(Extent { bytes, content, .. }) = found else { return Ok(0) };
        let blocks = bytes / BLOCK_BYTES as u64;
        if content != Content::Data {
            let fill = |core: &mut Core| Ok(core.fill_hole(lba, blocks)?.unless_waiting());
            let filled = self.with_room(fill).await? == Attempt::Done;
            return Ok(if filled { blocks } else { 0 });
        }
        let blocks = blocks.min(COPIED_BLOCKS);
        let part = buffer.get_mut(..buffer_bytes(blocks)).expect("a copy fits in the buffer");
        self.read_inherited(offset, part).await?;
        let is_done = self.fill_with(lba, part).await?;
        if is_done {
            *copied_bytes += part.len() as u64;
        }
        Ok(if is_done { blocks } else { 0 })
    }

    /// Writes blocks that are all holes. Returns false if one no longer is.
    async fn fill_with(&self, lba: Lba, bytes: &[u8]) -> Result<bool> {
        let blocks = bytes.len() / BLOCK_BYTES;
        let Some(hole) = self.core().version(lba).filter(|version| version.is_hole()) else {
            return Ok(false);
        };
        let all = (lba.0..lba.0 + blocks as u64).map(Lba);
        let edges: Vec<Edge> = all.map(|lba| Edge { lba, before: hole }).collect();
        let parts = [bytes];
        // The host wrote none of these bytes.
        let (host_bytes, makes_holes) = (0, false);
        let write =
            BlockWrite { lba, blocks, parts: &parts, edges: &edges, host_bytes, makes_holes };
        let append = |core: &mut Core| {
            let compressor = &mut *self.compressor.borrow_mut();
            let attempt = core.append_write(&write, |raw, target| compressor.compress(raw, target));
            Ok(attempt?.unless_waiting())
        };
        Ok(self.with_room(append).await? == Attempt::Done)
    }
}

fn no_clone() -> Error {
    Error::new(ErrorKind::InvalidInput, "the drive is not a clone: it reads from no other")
}

const _: () = assert!(COPIED_BLOCKS <= LEAF_BLOCKS as u64, "a copy lies in one or two leaves");
