//! The journal: a local medium that is divided into slots, each of which holds one use of a
//! segment.
//!
//! ```text
//! superblock slots     the journal's state, in turn   (of a drive: its superblock)
//! segment 0            the superblock slots of the drive
//! segment 1, 2 ..      slots: | header 4 KiB | the bytes of a segment |
//! ```
//!
//! A slot is free, or its header identifies the use that it holds. A released slot may be used
//! again only once its cleared header is durable: after a power loss, an old header must not vouch
//! for the bytes of another use.
//!
//! ```text
//! free, warm -- allocate --> held -- dropped --> dropped -- header zeroed --> zeroed
//! zeroed -- sync --> warm
//! ```
//!
//! A warm slot was written before. Each durable append to another slot requires a commit of the
//! file system's journal. A segment that is begun by a durable append therefore gets a warm slot if
//! one exists, and a free slot is filled with zeroes before hosts that flush often need one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use uuid::Uuid;

use super::object::{Journal, SLOT_HEADER_BYTES, SlotHeader};
use crate::base::{AlignedBuffer, Error, ErrorKind, Result, SegmentId};
use crate::media::{Geometry, Medium, SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS, SUPERBLOCK_STRIDE};

/// A local medium, divided into slots.
pub(super) struct Local<L> {
    medium: L,
    segment_bytes: u32,
    journal: RefCell<Journal>,
    space: Rc<Space>,
}

/// Slots that hold no use.
#[derive(Default)]
struct Space {
    dropped: RefCell<Vec<u32>>,
    zeroed: RefCell<Vec<u32>>,
    free: RefCell<Vec<u32>>,
    warm: RefCell<Vec<u32>>,
}

/// A slot, until it is dropped.
pub(super) struct Slot {
    number: u32,
    space: Rc<Space>,
    /// Whether its header is zero and all other bytes were written.
    is_warm: Cell<bool>,
}

impl Slot {
    fn new(number: u32, space: &Rc<Space>) -> Self {
        assert!(number > 0, "segment 0 has the superblocks of the drive");
        Self { number, space: space.clone(), is_warm: Cell::new(false) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let space = &self.space;
        let list = if self.is_warm.get() { &space.warm } else { &space.dropped };
        list.borrow_mut().push(self.number);
    }
}

/// Returns the division of a local medium into slots.
pub(super) fn geometry(segment_bytes: u32, slots: u32) -> Geometry {
    Geometry {
        segment_bytes: segment_bytes + SLOT_HEADER_BYTES,
        segment_count: slots + 1,
        data_offset: u64::from(SUPERBLOCK_SLOTS) * SUPERBLOCK_STRIDE,
    }
}

impl<L: Medium> Local<L> {
    /// Divides an empty medium into slots. Clears the locations of this journal's headers, since an
    /// earlier journal, perhaps of the same drive, may have left some there; the journal itself is
    /// not written yet.
    ///
    /// # Errors
    /// `AlreadyExists` if the medium is not empty; errors of the medium.
    pub(super) async fn format(medium: L, journal: Journal) -> Result<Self> {
        for slot in 0..SUPERBLOCK_SLOTS {
            if medium.read_superblock(slot).await?.iter().any(|&byte| byte != 0) {
                let what = "the journal is not empty: it belongs to a drive";
                return Err(Error::new(ErrorKind::AlreadyExists, what));
            }
        }
        medium.set_geometry(geometry(journal.segment_bytes, journal.slots))?;
        let space = Rc::new(Space::default());
        // Slots are taken from the end of the list: low numbers first.
        space.free.borrow_mut().extend((1..=journal.slots).rev());
        let (segment_bytes, slots) = (journal.segment_bytes, journal.slots);
        let local = Self { medium, segment_bytes, journal: RefCell::new(journal), space };
        local.clear(slots).await?;
        Ok(local)
    }

    /// Clears, durably, the headers of all slots, and the superblock slots of the drive.
    async fn clear(&self, slots: u32) -> Result<()> {
        let superblocks = (0..SUPERBLOCK_SLOTS).map(|slot| (0, self.superblock_offset(slot)));
        let headers = (1..=slots).map(|number| (number, 0));
        let mut is_clean = true;
        for (segment, offset) in superblocks.chain(headers) {
            let buffer = AlignedBuffer::zeroed(SLOT_HEADER_BYTES as usize);
            let (page, read) = self.medium.read(SegmentId(segment), offset, buffer).await;
            if read.is_ok() && page.iter().all(|&byte| byte == 0) {
                continue;
            }
            let zeroes = Arc::new(AlignedBuffer::zeroed(SLOT_HEADER_BYTES as usize));
            self.medium.append(SegmentId(segment), offset, zeroes).await?;
            is_clean = false;
        }
        if is_clean { Ok(()) } else { self.medium.sync().await }
    }

    /// Opens a journal. Returns the slots in use.
    ///
    /// # Errors
    /// `NotADrive` if there is none; `Corrupt`; errors of the medium.
    pub(super) async fn open(medium: L) -> Result<(Self, Vec<(SlotHeader, Slot)>)> {
        let journal = find_journal(&medium).await??;
        medium.set_geometry(geometry(journal.segment_bytes, journal.slots))?;
        let space = Rc::new(Space::default());
        let mut used = Vec::new();
        for number in (1..=journal.slots).rev() {
            let buffer = AlignedBuffer::zeroed(SLOT_HEADER_BYTES as usize);
            let (header, read) = medium.read(SegmentId(number), 0, buffer).await;
            read?;
            match SlotHeader::decode(&header) {
                Ok(header) if header.uuid == journal.uuid => {
                    used.push((header, Slot::new(number, &space)));
                }
                _ => space.free.borrow_mut().push(number),
            }
        }
        let segment_bytes = journal.segment_bytes;
        Ok((Self { medium, segment_bytes, journal: RefCell::new(journal), space }, used))
    }

    pub(super) fn medium(&self) -> &L {
        &self.medium
    }

    pub(super) fn uuid(&self) -> Uuid {
        self.journal.borrow().uuid
    }

    pub(super) fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }

    pub(super) fn journal(&self) -> Journal {
        self.journal.borrow().clone()
    }

    /// Changes the state of the journal, durably.
    ///
    /// # Errors
    /// Errors of the medium. The state is then either the old or the new one.
    pub(super) async fn update(&self, change: impl FnOnce(&mut Journal)) -> Result<()> {
        let mut journal = self.journal();
        let shape = |journal: &Journal| (journal.uuid, journal.segment_bytes, journal.slots);
        let before = shape(&journal);
        change(&mut journal);
        assert_eq!(shape(&journal), before, "a journal keeps its identity and its shape");
        journal.revision += 1;
        let slot = u32::from(!journal.revision.is_multiple_of(2));
        let bytes = journal.encode();
        *self.journal.borrow_mut() = journal;
        self.medium.write_superblock(slot, bytes).await?;
        self.sync().await
    }

    /// Allocates a free slot, if there is one: preferably a warm one for durable appends, and a
    /// cold one for others.
    pub(super) fn allocate(&self, durably: bool) -> Option<Slot> {
        let Space { free, warm, .. } = &*self.space;
        let (first, second) = if durably { (warm, free) } else { (free, warm) };
        let number = first.borrow_mut().pop();
        Some(Slot::new(number.or_else(|| second.borrow_mut().pop())?, &self.space))
    }

    /// Returns whether a slot is warm.
    pub(super) fn has_warm(&self) -> bool {
        !self.space.warm.borrow().is_empty()
    }

    /// Takes a free cold slot to be warmed, if there is one.
    pub(super) fn take_cold(&self) -> Option<Slot> {
        Some(Slot::new(self.space.free.borrow_mut().pop()?, &self.space))
    }

    /// Records that a free slot was written.
    pub(super) fn set_warm(&self, slot: Slot) {
        assert!(!slot.is_warm.replace(true), "a slot becomes warm once");
    }

    /// Returns whether there are slots that become free if they are erased and the medium is
    /// synced.
    pub(super) fn can_reclaim(&self) -> bool {
        !(self.space.dropped.borrow().is_empty() && self.space.zeroed.borrow().is_empty())
    }

    /// Clears the headers of dropped slots, which are free after the next sync. Nothing is
    /// discarded: the rest of a slot could vanish from the medium before its header does.
    pub(super) async fn erase_dropped(&self) -> Result<()> {
        loop {
            let Some(number) = self.space.dropped.borrow_mut().pop() else { return Ok(()) };
            let segment = SegmentId(number);
            let zeroes = Arc::new(AlignedBuffer::zeroed(SLOT_HEADER_BYTES as usize));
            let result = self.medium.append(segment, 0, zeroes).await;
            if result.is_err() {
                self.space.dropped.borrow_mut().push(number);
                return result;
            }
            self.space.zeroed.borrow_mut().push(number);
        }
    }

    /// Makes all completed operations durable.
    pub(super) async fn sync(&self) -> Result<()> {
        let zeroed = self.space.zeroed.take();
        self.medium.sync().await?;
        self.space.warm.borrow_mut().extend(zeroed);
        Ok(())
    }

    /// Writes the header that identifies the use that a slot holds from now on.
    pub(super) async fn write_header(&self, slot: &Slot, segment: u32, use_id: u64) -> Result<()> {
        assert!(!slot.is_warm.get(), "the header of a warm slot is zero");
        let header = SlotHeader { uuid: self.uuid(), segment, use_id };
        self.medium.append(SegmentId(slot.number), 0, header.encode()).await
    }

    pub(super) async fn append(
        &self,
        slot: &Slot,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
        durably: bool,
    ) -> Result<()> {
        let end = u64::from(offset) + buffer.len() as u64;
        assert!(end <= u64::from(self.segment_bytes), "an append lies within its slot");
        let (segment, offset) = (SegmentId(slot.number), SLOT_HEADER_BYTES + offset);
        match durably {
            true => self.medium.append_durably(segment, offset, buffer).await,
            false => self.medium.append(segment, offset, buffer).await,
        }
    }

    pub(super) async fn read(
        &self,
        slot: &Slot,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        self.medium.read(SegmentId(slot.number), SLOT_HEADER_BYTES + offset, buffer).await
    }

    /// Returns the offset in segment 0 of a superblock slot of the drive. Each is stored in a half
    /// of its own.
    fn superblock_offset(&self, slot: u32) -> u32 {
        assert!(slot < SUPERBLOCK_SLOTS, "a drive has two superblock slots");
        self.segment_bytes / 2 / SLOT_HEADER_BYTES * SLOT_HEADER_BYTES * slot
    }

    /// Reads a superblock slot of the drive.
    pub(super) async fn read_superblock(&self, slot: u32) -> Result<AlignedBuffer> {
        let buffer = AlignedBuffer::zeroed(SUPERBLOCK_BYTES);
        let at = self.superblock_offset(slot);
        let (buffer, read) = self.medium.read(SegmentId(0), at, buffer).await;
        read.map(|()| buffer)
    }

    /// Writes a superblock slot of the drive.
    pub(super) async fn write_superblock(
        &self,
        slot: u32,
        bytes: Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.medium.append(SegmentId(0), self.superblock_offset(slot), bytes).await
    }
}

/// Returns the state of the journal on a medium; an error of the inner kind if there is none, or if
/// a newer version has written to it.
///
/// # Errors
/// Errors of the medium.
pub(super) async fn find_journal<L: Medium>(medium: &L) -> Result<Result<Journal>> {
    let mut newest: Option<Journal> = None;
    let mut problem = Error::new(ErrorKind::NotADrive, "there is no journal");
    for slot in 0..SUPERBLOCK_SLOTS {
        match Journal::decode(&medium.read_superblock(slot).await?) {
            Ok(journal) if newest.as_ref().is_none_or(|old| old.revision < journal.revision) => {
                newest = Some(journal);
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(Err(error)),
            // The other slot may be blank.
            Err(error) if problem.kind() == ErrorKind::NotADrive => problem = error,
            Err(_) => {}
        }
    }
    Ok(newest.ok_or(problem))
}
