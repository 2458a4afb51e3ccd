//! Checkpoints: the map and the segment table on the medium, so that opening a drive reads only the
//! log after the last checkpoint instead of the whole log.
//!
//! ```text
//! begin:  seal every stream -> its last batch; take the table, the tails, the dropped ranges;
//!         dirty leaves become pending (the host continues, on copies)
//! write:  leaves -> directory pages -> lists -> root, as batches of the metadata stream
//! end:    flush -> superblock slot, sync -> the other slot, sync
//!         -> records that only the previous checkpoint named are dead
//! ```
//!
//! The superblock moves only when everything it names is durable, and nothing that the previous one
//! named is freed until both slots have moved: either slot names complete structures. A checkpoint
//! is exact: it contains the state of the drive after its last batch, without later changes, so
//! that rolling forward through the same methods yields the same accounting.

use std::mem::take;

use super::super::core::{Begun, CheckpointAction, Core, MetaPosition, PendingPiece};
use super::super::drive::{Drive, Turn};
use super::super::log::metadata::{LIST_BYTES, PAGE_ENTRY_BYTES};
use super::super::log::packing::MetaRecord;
use crate::base::{Error, ErrorKind, Result, SeqNo};
use crate::format::{
    CheckpointAddress, DroppedRange, Listed, MetaKind, MetadataAddress, RecordAddress, Root,
    Snapshot, TableEntry, leaf_bytes_max,
};

/// Metadata records written before the host has a turn: 8 leaves of 16 KiB take about 0.1 ms.
const RECORDS_A_TURN: u32 = 8;

/// Pause between a failed attempt and the next one.
const RETRY_NS: u64 = 1_000_000_000;

/// A checkpoint that is being written. If dropped before it is complete, it is abandoned: the next
/// checkpoint names the leaves and pages that it wrote, and its lists are dead.
struct Attempt<'a> {
    drive: &'a Drive,
    /// The places of its lists and its root.
    lists: Vec<MetadataAddress>,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.drive.with_core(|core| core.abandon_checkpoint(&self.lists));
    }
}

/// A kind of list in a checkpoint, and the length of its entries.
#[derive(Clone, Copy)]
struct ListKind {
    kind: MetaKind,
    entry_bytes: usize,
}

impl Drive {
    /// Writes a checkpoint of the current state of the drive. The whole checkpoint is durable when
    /// this returns. If dropped before completion, the checkpoint is abandoned; if dropped while
    /// superblocks are written, the drive is poisoned.
    ///
    /// # Errors
    /// `ReadOnly`, `NoSpace`, `Poisoned`, `Medium`: the previous checkpoint is still the newest.
    pub async fn checkpoint(&self) -> Result<()> {
        self.checkpoint_with(CheckpointAction::None).await
    }

    /// Writes a checkpoint that also performs an additional action, such as creating a snapshot.
    ///
    /// # Errors
    /// The errors of [`Drive::checkpoint`], and an error if the action is impossible.
    pub(super) async fn checkpoint_with(&self, action: CheckpointAction) -> Result<()> {
        if self.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, "the drive was opened read-only"));
        }
        let turn = self.turn().await;
        self.checkpoint_in(turn, action).await
    }

    /// Writes a checkpoint in a turn that the caller holds.
    pub(super) async fn checkpoint_in(
        &self,
        turn: Turn<'_>,
        action: CheckpointAction,
    ) -> Result<()> {
        self.core().log().check_poison()?;
        if self.core().log().is_closing() {
            return Err(Error::new(ErrorKind::Poisoned, "the drive is closed"));
        }
        let mut attempt = Attempt { drive: self, lists: Vec::new() };
        let written = self.write_checkpoint(&mut attempt.lists, action).await;
        let result = written.map(|(root, named)| {
            let lists = take(&mut attempt.lists);
            self.with_core(|core| core.end_checkpoint(&root, lists, named));
        });
        drop(attempt);
        drop(turn);
        self.with_core(|core| core.checkpoint_ended(&result));
        result
    }

    /// Writes a checkpoint whenever one is due, or the host needs the space of a snapshot that
    /// yields, until the drive closes.
    pub(crate) async fn run_checkpoints(&self) {
        let next = |core: &mut Core| {
            let ends = core.must_end();
            (ends || core.snapshots().must_yield() || core.checkpoint_is_due()).then_some(ends)
        };
        while !self.is_read_only() && !self.wait_for(&self.queues.checkpointer, next).await {
            let gone = self.with_core(Core::next_to_yield);
            let result = match gone {
                Some(snapshot) => self.give_up(snapshot).await,
                None => self.checkpoint().await,
            };
            if let Err(error) = result {
                tracing::warn!(error = %error.chain(), "no checkpoint was written");
                self.pause(RETRY_NS).await;
            }
        }
    }

    async fn write_checkpoint(
        &self,
        lists: &mut Vec<MetadataAddress>,
        action: CheckpointAction,
    ) -> Result<(Root, CheckpointAddress)> {
        // Creating its snapshot completes a received part; a rollback discards the part.
        let (created, is_given_up) = match &action {
            CheckpointAction::Create { new, .. } => (Some(new.guid), false),
            CheckpointAction::RollBack(..) => (None, true),
            CheckpointAction::None | CheckpointAction::Edit(_) => (None, false),
        };
        let completes = |snapshot| is_given_up || created == Some(snapshot);
        let mut action = Some(action);
        let begun = loop {
            self.with_room(Core::append_lost).await?;
            let begin = |core: &mut Core| {
                let action = action.take_if(|_| !core.has_lost_waiting())?;
                Some(core.begin_checkpoint(action))
            };
            if let Some(begun) = self.with_core(begin) {
                break begun?;
            }
        };
        self.write_leaves().await?;
        self.write_pages().await?;
        let mut root = self.write_lists(begun, lists).await?;
        let MetaRecord { place, payload_checksum } = self
            .with_room(|core| core.append_root(&mut root, &mut self.meta_compressor.borrow_mut()))
            .await?;
        lists.push(place);
        self.flush_log().await?;
        assert!(
            self.core().log().durable_seq() > root.watermark,
            "a root is durable before a superblock names it"
        );
        let generation = self.core().space().generation(place.segment);
        let named = CheckpointAddress {
            address: RecordAddress { generation, segment: place.segment, offset: place.offset },
            record_bytes: place.bytes,
            payload_checksum,
        };
        let (has_snapshots, has_clones) = self.core().snapshots().will_be_listed();
        let is_independent = self.core().will_be_independent();
        self.update_superblocks(|superblock| {
            superblock.checkpoint = Some(named);
            superblock.has_snapshots = has_snapshots;
            superblock.has_clones = has_clones;
            if is_independent {
                (superblock.origin, superblock.flat_since) = (None, SeqNo(0));
            }
            superblock.receiving = superblock.receiving.filter(|part| !completes(part.snapshot));
        })
        .await?;
        Ok((root, named))
    }

    /// Writes the lists that a root names, and adds their places to `lists`.
    async fn write_lists(&self, begun: Begun, lists: &mut Vec<MetadataAddress>) -> Result<Root> {
        let Begun { mut root, table, dropped, snapshots, forwards } = begun;
        root.forward_lists = self.write_forwards(&forwards).await?;
        (root.lost_pieces, root.lost_until) = self.core().forwards().lost();
        let pages: Vec<_> = self.core().map().page_addresses().collect();
        root.page_count = count(&pages);
        root.dropped_count = count(&dropped);
        let list = ListKind { kind: MetaKind::PageList, entry_bytes: PAGE_ENTRY_BYTES };
        root.page_lists = self
            .write_list(list, &pages, lists, |(page, place), raw| {
                raw.extend(u64::from(*page).to_le_bytes());
                raw.extend(place.pack().to_le_bytes());
            })
            .await?;
        let list = ListKind { kind: MetaKind::Table, entry_bytes: TableEntry::BYTES };
        root.tables = self.write_list(list, &table, lists, TableEntry::encode_into).await?;
        let list = ListKind { kind: MetaKind::Dropped, entry_bytes: DroppedRange::BYTES };
        root.dropped_lists =
            self.write_list(list, &dropped, lists, DroppedRange::encode_into).await?;
        // The bitmap needs no bits for the subsequent lists: the root names their places.
        if let Some(bitmap) = self.with_core(|core| core.retained_bitmap(lists)) {
            let list = ListKind { kind: MetaKind::Retained, entry_bytes: 1 };
            root.retained_lists =
                self.write_list(list, &bitmap, lists, |byte, raw| raw.push(*byte)).await?;
        }
        let list = ListKind { kind: MetaKind::Snapshots, entry_bytes: Snapshot::BYTES };
        let listed: Vec<_> = snapshots.iter().flat_map(Snapshot::listed).collect();
        root.snapshot_lists = self.write_list(list, &listed, lists, Listed::encode_into).await?;
        Ok(root)
    }

    /// Writes the forwarding tables that changed. Returns the places of all tables.
    async fn write_forwards(&self, pieces: &[PendingPiece]) -> Result<Vec<MetadataAddress>> {
        for (written, piece) in (1..).zip(pieces) {
            self.with_room(|core| {
                let compressor = &mut self.meta_compressor.borrow_mut();
                Ok(core.append_forwards(piece, compressor)?.then_some(()))
            })
            .await?;
            self.give_turn(written).await;
        }
        Ok(self.core().forwards().pieces())
    }

    /// Writes the leaves that were dirty when the checkpoint began, with their content at that
    /// time.
    async fn write_leaves(&self) -> Result<()> {
        let mut raw = Vec::new();
        for written in 1_u32.. {
            raw.clear();
            let Some(leaf) = self.with_core(|core| core.next_leaf(&mut raw)) else { break };
            assert!(raw.len() <= leaf_bytes_max(true), "a leaf fits the longest record");
            self.with_room(|core| {
                let compressor = &mut self.meta_compressor.borrow_mut();
                Ok(core.append_leaf(leaf, &raw, compressor)?.then_some(()))
            })
            .await?;
            self.give_turn(written).await;
        }
        Ok(())
    }

    /// Writes the directory pages that the leaves changed.
    async fn write_pages(&self) -> Result<()> {
        let pages = self.core().map().dirty_pages();
        for (written, page) in (1..).zip(pages) {
            self.with_room(|core| {
                let compressor = &mut self.meta_compressor.borrow_mut();
                Ok(core.append_page(page, compressor)?.then_some(()))
            })
            .await?;
            self.give_turn(written).await;
        }
        Ok(())
    }

    /// Writes a list in pieces. Returns their places, and adds them to `lists`.
    async fn write_list<T>(
        &self,
        list: ListKind,
        entries: &[T],
        lists: &mut Vec<MetadataAddress>,
        mut encode: impl FnMut(&T, &mut Vec<u8>),
    ) -> Result<Vec<MetadataAddress>> {
        let mut places = Vec::new();
        for (number, piece) in (0..).zip(entries.chunks(LIST_BYTES / list.entry_bytes)) {
            let mut raw = Vec::with_capacity(LIST_BYTES);
            for entry in piece {
                encode(entry, &mut raw);
            }
            assert_eq!(raw.len(), piece.len() * list.entry_bytes, "entries have one length");
            let position = MetaPosition { kind: list.kind, number: u64::from(number) };
            let appended = self
                .with_room(|core| {
                    core.append_meta(position, &raw, &mut self.meta_compressor.borrow_mut())
                })
                .await?;
            places.push(appended.place);
            lists.push(appended.place);
            self.give_turn(number).await;
        }
        assert_eq!(
            places.len(),
            entries.len().div_ceil(LIST_BYTES / list.entry_bytes),
            "a list has the number of pieces that recovery expects"
        );
        Ok(places)
    }

    /// Lets other tasks run after every few records.
    async fn give_turn(&self, records_written: u32) {
        if records_written.is_multiple_of(RECORDS_A_TURN) {
            self.clock.sleep_ns(0).await;
        }
    }
}

/// Returns the number of entries of a list in the width of the root's field.
fn count<T>(entries: &[T]) -> u32 {
    u32::try_from(entries.len()).expect("a checkpoint's lists have fewer than 2^32 entries")
}
