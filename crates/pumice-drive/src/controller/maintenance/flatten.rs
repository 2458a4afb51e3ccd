//! Making a clone independent of its origin, while it is in use.
//!
//! ```text
//! each hole below the origin's blocks -> what the origin has there -> appended, if still a hole
//!    -> all are filled -> flush -> superblock without an origin, both slots
//! ```
//!
//! Nothing makes holes there, so what was filled stays filled, and a run that was cut off is gone
//! on with by the next. *Crash before both superblocks are durable:* the drive is a clone, of which
//! nothing or little reads from the origin. *After:* it is none, and all that it had filled is
//! durable. Snapshots of the clone read from the origin, too, so there must be none.

use serde::{Deserialize, Serialize};

use super::super::core::{Attempt, BlockWrite, Core, Edge};
use super::super::drive::Drive;
use super::super::log::packing::ATOMIC_WRITE_BYTES;
use super::super::map::{Lookup, Mapping};
use super::super::operations::{Content, Extent};
use crate::base::units::{BLOCK_BYTES, buffer_bytes};
use crate::base::{Clock, Error, ErrorKind, Lba, Result};
use crate::format::LEAF_BLOCKS;
use crate::media::Medium;

/// Blocks copied in one write.
const COPIED_BLOCKS: u64 = (ATOMIC_WRITE_BYTES / BLOCK_BYTES) as u64;

/// How far a flattening has come, or what one did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flattened {
    /// Bytes of the disk that do not read from the origin any more, from the first on.
    pub done_bytes: u64,
    /// Bytes of the disk that could.
    pub total_bytes: u64,
    /// Bytes of data that were copied.
    pub copied_bytes: u64,
    /// Whether the drive is independent of the origin.
    pub is_complete: bool,
}

impl<M: Medium, C: Clock> Drive<M, C> {
    /// Copies what this clone reads from its origin, then forgets the origin. `goes_on` is told how
    /// far it has come, and returns false to stop: the next call goes on from there. When this
    /// returns, what it did is durable. Must run to its end, as [`Drive::create_snapshot`]; the
    /// origin may forget the clone then.
    ///
    /// # Errors
    /// `InvalidInput` if the drive is no clone, or has snapshots; `NotFound` if its origin is not
    /// open; `NoSpace`, `Corrupt` or `Medium` if a block of the origin cannot be read, `ReadOnly`,
    /// `Poisoned`. The drive is a clone then, and in use; after `Medium` it may take no writes.
    pub async fn flatten(&self, mut goes_on: impl FnMut(Flattened) -> bool) -> Result<Flattened> {
        self.core().check_writable(0, 0)?;
        self.core().check_flat()?;
        let end = self.core().inherited_blocks();
        let mut done = Flattened { total_bytes: end * BLOCK_BYTES as u64, ..Flattened::default() };
        let mut buffer = vec![0; ATOMIC_WRITE_BYTES];
        let mut at = 0;
        while at < end {
            at += self.flatten_from(Lba(at), &mut buffer, &mut done.copied_bytes).await?;
            done.done_bytes = at.min(end) * BLOCK_BYTES as u64;
            if !goes_on(done) {
                self.flush().await?;
                return Ok(done);
            }
            // Others have a turn, also where nothing is waited for.
            self.clock.sleep_ns(0).await;
        }
        self.flush().await?;
        let _turn = self.turn().await;
        self.core().log().check_poison()?;
        self.core().check_flat()?;
        self.update_superblocks(|superblock| superblock.origin = None).await?;
        Ok(Flattened { is_complete: true, ..done })
    }

    /// Fills what is a hole from a block on; returns how many blocks it has dealt with, 0 if
    /// something changed meanwhile.
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

    /// Writes blocks that are all holes; returns false if one is none any more.
    async fn fill_with(&self, lba: Lba, bytes: &[u8]) -> Result<bool> {
        let blocks = bytes.len() / BLOCK_BYTES;
        let Some(hole) = self.core().version(lba).filter(|version| version.is_hole()) else {
            return Ok(false);
        };
        let all = (lba.0..lba.0 + blocks as u64).map(Lba);
        let edges: Vec<Edge> = all.map(|lba| Edge { lba, before: hole }).collect();
        let parts = [bytes];
        // The host wrote none of them.
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

impl Core {
    /// Checks that nothing but the disk reads from the origin of this clone.
    ///
    /// # Errors
    /// `InvalidInput`, with what to do.
    fn check_flat(&self) -> Result<()> {
        let invalid = |what: String| Err(Error::new(ErrorKind::InvalidInput, what));
        if self.superblock().origin.is_none() {
            return invalid("the drive is no clone: it reads from no other".into());
        }
        match self.snapshots().kept().first() {
            None => Ok(()),
            Some(oldest) => invalid(format!(
                "the snapshots of the clone read from its origin, too: delete them first, the \
                 oldest is {}",
                oldest.entry.name
            )),
        }
    }
}

const _: () = assert!(COPIED_BLOCKS <= LEAF_BLOCKS as u64, "a copy lies in one or two leaves");
