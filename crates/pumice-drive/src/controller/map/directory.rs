//! The resident directory: what each leaf is, 8 bytes a leaf, in pages of 512 leaves.
//!
//! An entry is a packed [`DirectoryEntry`], the same as on the medium, or the number of the slot
//! that holds the leaf in memory. A page that does not exist is 512 holes. One whose entries are a
//! few runs of the same is kept as those runs, so that a few blocks here and there on a huge disk,
//! or fills of any length, take no 4 KiB each.

use crate::format::{DIRECTORY_PAGE_LEAVES, DirectoryEntry, MetaPlace};

/// The two highest bits, which no packed [`DirectoryEntry`] has both set, say that the rest is the
/// number of a slot.
const SLOT_TAG: u64 = 0b11 << 62;

/// Runs up to which a page is kept as them: a sixteenth of its entries. Arbitrary beyond that.
const RUNS_MAX: usize = 16;

/// The entries of a page.
enum Entries {
    /// The start of each run of equal entries, and the entry: in order, the first at 0.
    Runs(Vec<(u16, u64)>),
    /// Every entry.
    All(Box<[u64; DIRECTORY_PAGE_LEAVES]>),
}

impl Entries {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        match self {
            Entries::All(entries) => entries[index],
            Entries::Runs(runs) => runs[run_at(runs, index)].1,
        }
    }

    fn set(&mut self, index: usize, raw: u64) {
        let runs = match self {
            Entries::All(entries) => {
                entries[index] = raw;
                return;
            }
            Entries::Runs(runs) => runs,
        };
        let at = run_at(runs, index);
        let (start, before) = runs[at];
        if before == raw {
            return;
        }
        let next = index + 1;
        if next < runs.get(at + 1).map_or(DIRECTORY_PAGE_LEAVES, |run| usize::from(run.0)) {
            runs.insert(at + 1, (next as u16, before));
        }
        if usize::from(start) < index {
            runs.insert(at + 1, (index as u16, raw));
        } else {
            runs[at].1 = raw;
        }
        runs.dedup_by_key(|run| run.1);
        if runs.len() > RUNS_MAX {
            let mut all = Box::new([0; DIRECTORY_PAGE_LEAVES]);
            all.iter_mut().zip(self.iter()).for_each(|(entry, raw)| *entry = raw);
            *self = Entries::All(all);
        }
    }

    fn iter(&self) -> impl Iterator<Item = u64> {
        let mut run = 0;
        (0..DIRECTORY_PAGE_LEAVES).map(move |index| match self {
            Entries::All(entries) => entries[index],
            Entries::Runs(runs) => {
                run += usize::from(runs.get(run + 1).is_some_and(|next| next.0 as usize == index));
                runs[run].1
            }
        })
    }

    fn memory_bytes(&self) -> usize {
        match self {
            Entries::All(_) => size_of::<[u64; DIRECTORY_PAGE_LEAVES]>(),
            Entries::Runs(runs) => runs.capacity() * size_of::<(u16, u64)>(),
        }
    }
}

/// Returns the run in which an entry lies.
fn run_at(runs: &[(u16, u64)], index: usize) -> usize {
    runs.partition_point(|run| usize::from(run.0) <= index) - 1
}

/// 512 entries, and their state on the medium.
pub(super) struct Page {
    entries: Entries,
    /// The place where a checkpoint wrote the page last.
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
    /// Bytes of memory of all pages' entries.
    entry_bytes: usize,
}

impl Directory {
    /// Creates a directory of `leaf_count` holes.
    pub(super) fn new(leaf_count: u64) -> Self {
        let mut directory = Self { pages: Vec::new(), page_count: 0, entry_bytes: 0 };
        directory.grow(leaf_count);
        directory
    }

    /// Makes room for `leaf_count` leaves.
    pub(super) fn grow(&mut self, leaf_count: u64) {
        let pages = leaf_count.div_ceil(DIRECTORY_PAGE_LEAVES as u64) as usize;
        self.pages.resize_with(pages.max(self.pages.len()), || None);
    }

    /// Returns what is known about a leaf of the drive.
    #[inline]
    pub(super) fn held(&self, leaf: u64) -> Held {
        match &self.pages[page_of(leaf) as usize] {
            None => Held::Entry(DirectoryEntry::Hole),
            Some(page) => Held::of(page.entries.get(index_of(leaf))),
        }
    }

    /// Notes what a leaf is; creates its page if necessary.
    pub(super) fn set(&mut self, leaf: u64, held: Held) {
        let entries = &mut self.page_mut(page_of(leaf)).entries;
        let before = entries.memory_bytes();
        entries.set(index_of(leaf), held.raw());
        let after = entries.memory_bytes();
        self.entry_bytes = self.entry_bytes + after - before;
    }

    /// Returns a page, if it exists and is one of the drive's.
    pub(super) fn page(&self, page: u32) -> Option<&Page> {
        self.pages.get(page as usize)?.as_deref()
    }

    /// Returns the first page from `page` on that exists; the number of pages if no more exists.
    pub(super) fn absent_end(&self, page: u32) -> u64 {
        let rest = &self.pages[page as usize..];
        let absent = rest.iter().position(Option::is_some).unwrap_or(rest.len());
        u64::from(page) + absent as u64
    }

    /// Returns a page; creates it if necessary.
    pub(super) fn page_mut(&mut self, page: u32) -> &mut Page {
        let slot = &mut self.pages[page as usize];
        if slot.is_none() {
            self.page_count += 1;
        }
        slot.get_or_insert_with(|| {
            let entries = Entries::Runs(vec![(0, DirectoryEntry::Hole.pack())]);
            self.entry_bytes += entries.memory_bytes();
            Box::new(Page { entries, place: None, dirty: false, pending: false })
        })
    }

    /// Returns every page that exists, in order.
    pub(super) fn pages(&self) -> impl Iterator<Item = (u32, &Page)> {
        let numbered = self.pages.iter().enumerate();
        numbered.filter_map(|(number, page)| Some((number as u32, page.as_deref()?)))
    }

    /// Returns every page that exists, in order, for changes.
    pub(super) fn pages_mut(&mut self) -> impl Iterator<Item = (u32, &mut Page)> {
        let numbered = self.pages.iter_mut().enumerate();
        numbered.filter_map(|(number, page)| Some((number as u32, page.as_deref_mut()?)))
    }

    /// Returns the bytes of memory held.
    pub(super) fn memory_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Option<Box<Page>>>()
            + self.page_count * size_of::<Page>()
            + self.entry_bytes
    }
}

impl Page {
    /// Returns what is known about each leaf of the page.
    pub(super) fn held(&self) -> impl Iterator<Item = Held> {
        self.entries.iter().map(Held::of)
    }
}

/// Returns the page with the entry of `leaf`.
pub(super) fn page_of(leaf: u64) -> u32 {
    (leaf / DIRECTORY_PAGE_LEAVES as u64) as u32
}

/// Returns the index in its page of the entry of `leaf`.
pub(super) fn index_of(leaf: u64) -> usize {
    (leaf % DIRECTORY_PAGE_LEAVES as u64) as usize
}
