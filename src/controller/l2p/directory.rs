//! The resident directory: what each leaf is, 8 bytes a leaf, in pages of 512 leaves.
//!
//! An entry is a packed [`DirectoryEntry`], the same as on the medium, or the number of the slot
//! that holds the leaf in memory. A page that does not exist is 512 holes.

use crate::format::{DIRECTORY_PAGE_LEAVES, DirectoryEntry, MetaPlace};

/// The two highest bits, which no packed [`DirectoryEntry`] has both set, say that the rest is the
/// number of a slot.
const SLOT_TAG: u64 = 0b11 << 62;

/// 512 entries, and how they stand on the medium.
pub(super) struct Page {
    entries: [u64; DIRECTORY_PAGE_LEAVES],
    /// Where a checkpoint wrote the page last.
    pub(super) place: Option<MetaPlace>,
    /// Changed since the last checkpoint began.
    pub(super) dirty: bool,
    /// To be written by the running checkpoint.
    pub(super) pending: bool,
}

/// What the directory says about a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// It is in memory, in this slot.
    Slot(u32),
    /// It is not.
    Entry(DirectoryEntry),
}

impl Held {
    fn of(raw: u64) -> Self {
        if raw >= SLOT_TAG {
            return Held::Slot(raw as u32);
        }
        Held::Entry(DirectoryEntry::unpack(raw).expect("the directory holds packed entries"))
    }

    fn raw(self) -> u64 {
        match self {
            Held::Slot(slot) => SLOT_TAG | u64::from(slot),
            Held::Entry(entry) => entry.pack(),
        }
    }
}

/// The pages.
pub(super) struct Directory {
    pages: Vec<Option<Box<Page>>>,
    page_count: usize,
}

impl Directory {
    /// A directory of `leaf_count` holes.
    pub(super) fn new(leaf_count: u64) -> Self {
        let mut directory = Self { pages: Vec::new(), page_count: 0 };
        directory.grow(leaf_count);
        directory
    }

    /// Makes room for `leaf_count` leaves.
    pub(super) fn grow(&mut self, leaf_count: u64) {
        let pages = leaf_count.div_ceil(DIRECTORY_PAGE_LEAVES as u64) as usize;
        self.pages.resize_with(pages.max(self.pages.len()), || None);
    }

    /// What is known about a leaf of the drive.
    #[inline]
    pub(super) fn held(&self, leaf: u64) -> Held {
        match &self.pages[page_of(leaf) as usize] {
            None => Held::Entry(DirectoryEntry::Hole),
            Some(page) => Held::of(page.entries[index_of(leaf)]),
        }
    }

    /// Notes what a leaf is; its page comes to be if need be.
    pub(super) fn set(&mut self, leaf: u64, held: Held) {
        self.page_mut(page_of(leaf)).entries[index_of(leaf)] = held.raw();
    }

    /// The page, if it exists and is one of the drive's.
    pub(super) fn page(&self, page: u32) -> Option<&Page> {
        self.pages.get(page as usize)?.as_deref()
    }

    /// The first page from `page` on that exists; the number of pages if there is none.
    pub(super) fn absent_end(&self, page: u32) -> u64 {
        let rest = &self.pages[page as usize..];
        let absent = rest.iter().position(Option::is_some).unwrap_or(rest.len());
        u64::from(page) + absent as u64
    }

    /// The page, which comes to be if need be.
    pub(super) fn page_mut(&mut self, page: u32) -> &mut Page {
        let slot = &mut self.pages[page as usize];
        if slot.is_none() {
            self.page_count += 1;
        }
        slot.get_or_insert_with(|| {
            let entries = [0; DIRECTORY_PAGE_LEAVES];
            Box::new(Page { entries, place: None, dirty: false, pending: false })
        })
    }

    /// Every page that exists, in order.
    pub(super) fn pages(&self) -> impl Iterator<Item = (u32, &Page)> {
        let numbered = self.pages.iter().enumerate();
        numbered.filter_map(|(number, page)| Some((number as u32, page.as_deref()?)))
    }

    /// The same, to be changed.
    pub(super) fn pages_mut(&mut self) -> impl Iterator<Item = (u32, &mut Page)> {
        let numbered = self.pages.iter_mut().enumerate();
        numbered.filter_map(|(number, page)| Some((number as u32, page.as_deref_mut()?)))
    }

    /// Bytes of memory held.
    pub(super) fn memory_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Option<Box<Page>>>() + self.page_count * size_of::<Page>()
    }
}

impl Page {
    /// What is known about each leaf of the page.
    pub(super) fn held(&self) -> impl Iterator<Item = Held> {
        self.entries.iter().map(|&raw| Held::of(raw))
    }
}

/// The page with the entry of `leaf`.
pub(super) fn page_of(leaf: u64) -> u32 {
    (leaf / DIRECTORY_PAGE_LEAVES as u64) as u32
}

/// Where in its page the entry of `leaf` is.
pub(super) fn index_of(leaf: u64) -> usize {
    (leaf % DIRECTORY_PAGE_LEAVES as u64) as usize
}
