//! The resident directory: the content of each leaf, 8 bytes a leaf, in pages of 512 leaves.
//!
//! An entry is a packed [`DirectoryEntry`], the same as on the medium, or the number of the slot
//! that contains the leaf in memory. A page that does not exist is 512 holes. A page whose entries
//! form a few runs of equal entries is stored as those runs, so that a few scattered blocks on a
//! huge disk, or fills of any length, do not occupy 4 KiB each.

use crate::format::{DIRECTORY_PAGE_LEAVES, DirectoryEntry, MetadataAddress};

/// If the two highest bits are both set, which no packed [`DirectoryEntry`] has, the rest is the
/// number of a slot.
const SLOT_TAG: u64 = 0b11 << 62;

/// Maximum number of runs of a page that is stored as runs: a sixteenth of its entries. Otherwise
/// arbitrary.
const RUNS_MAX: usize = 16;
const _: () = assert!(RUNS_MAX < DIRECTORY_PAGE_LEAVES, "runs are fewer than entries");
const _: () =
    assert!(DIRECTORY_PAGE_LEAVES <= 1 << u16::BITS, "the start of a run of entries has 16 bits");

/// The entries of a page.
enum Entries {
    /// The start of each run of equal entries, and the entry: in order, the first at 0.
    Runs(Vec<(u16, u64)>),
    /// Every entry.
    All(Box<[u64; DIRECTORY_PAGE_LEAVES]>),
}

#[expect(
    clippy::indexing_slicing,
    reason = "`index_of` returns indexes of entries, and the runs partition them"
)]
impl Entries {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        assert!(index < DIRECTORY_PAGE_LEAVES, "an entry belongs to its page");
        match self {
            Entries::All(entries) => entries[index],
            Entries::Runs(runs) => runs[run_at(runs, index)].1,
        }
    }

    fn set(&mut self, index: usize, raw: u64) {
        assert!(index < DIRECTORY_PAGE_LEAVES, "an entry belongs to its page");
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
            runs.insert(at + 1, (start_of_run(next), before));
        }
        if usize::from(start) < index {
            runs.insert(at + 1, (start_of_run(index), raw));
        } else {
            runs[at].1 = raw;
        }
        runs.dedup_by_key(|run| run.1);
        debug_assert!(runs.is_sorted_by(|run, next| run.0 < next.0), "runs are in order");
        assert_eq!(runs.first().map(|run| run.0), Some(0), "the first run starts at 0");
        if runs.len() > RUNS_MAX {
            let mut all = Box::new([0; DIRECTORY_PAGE_LEAVES]);
            all.iter_mut().zip(self.iter()).for_each(|(entry, raw)| *entry = raw);
            *self = Entries::All(all);
        }
        debug_assert_eq!(self.get(index), raw, "an entry reads back");
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

/// Returns the run that contains an entry.
fn run_at(runs: &[(u16, u64)], index: usize) -> usize {
    let after = runs.partition_point(|run| usize::from(run.0) <= index);
    after.checked_sub(1).expect("the first run starts at 0")
}

fn start_of_run(index: usize) -> u16 {
    u16::try_from(index).expect("the index of an entry has 16 bits")
}

/// 512 entries, and their state on the medium.
pub(super) struct Page {
    entries: Entries,
    /// The address at which a checkpoint last wrote the page.
    pub(super) address: Option<MetadataAddress>,
    /// Whether the page changed since the last checkpoint began.
    pub(super) dirty: bool,
    /// Whether the running checkpoint must write the page.
    pub(super) pending: bool,
}

/// The location of a leaf according to the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// The leaf is in memory, in this slot.
    Slot(u32),
    /// The leaf is not in memory.
    Entry(DirectoryEntry),
}

impl Location {
    fn of(raw: u64) -> Self {
        if raw >= SLOT_TAG {
            let slot = u32::try_from(raw & !SLOT_TAG);
            return Location::Slot(slot.expect("the number of a slot has 32 bits"));
        }
        Location::Entry(DirectoryEntry::unpack(raw).expect("the directory holds packed entries"))
    }

    fn raw(self) -> u64 {
        let raw = match self {
            Location::Slot(slot) => SLOT_TAG | u64::from(slot),
            Location::Entry(entry) => entry.pack(),
        };
        let is_slot = matches!(self, Location::Slot(_));
        assert_eq!(raw >= SLOT_TAG, is_slot, "only the number of a slot has both tag bits");
        raw
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
        assert!(directory.covers(leaf_count), "a directory has a page for every leaf");
        directory
    }

    /// Adds space for `leaf_count` leaves.
    pub(super) fn grow(&mut self, leaf_count: u64) {
        let pages = u32::try_from(leaf_count.div_ceil(DIRECTORY_PAGE_LEAVES as u64));
        let pages = pages.expect("the number of a directory page has 32 bits") as usize;
        self.pages.resize_with(pages.max(self.pages.len()), || None);
        assert!(self.covers(leaf_count), "a directory never shrinks");
    }

    fn covers(&self, leaf_count: u64) -> bool {
        leaf_count <= self.pages.len() as u64 * DIRECTORY_PAGE_LEAVES as u64
    }

    /// Returns the location of a leaf of the drive.
    #[inline]
    pub(super) fn location(&self, leaf: u64) -> Location {
        let page = self.pages.get(page_of(leaf) as usize);
        match page.expect("a leaf of the drive has a page") {
            None => Location::Entry(DirectoryEntry::Hole),
            Some(page) => Location::of(page.entries.get(index_of(leaf))),
        }
    }

    /// Sets the location of a leaf; creates its page if necessary.
    pub(super) fn set(&mut self, leaf: u64, location: Location) {
        let entries = &mut self.page_mut(page_of(leaf)).entries;
        let before = entries.memory_bytes();
        entries.set(index_of(leaf), location.raw());
        let after = entries.memory_bytes();
        let entry_bytes = (self.entry_bytes + after).checked_sub(before);
        self.entry_bytes = entry_bytes.expect("the entries of a page are counted");
        debug_assert_eq!(self.location(leaf), location, "the entry of a leaf reads back");
    }

    /// Returns a page, if it exists and belongs to the drive.
    pub(super) fn page(&self, page: u32) -> Option<&Page> {
        self.pages.get(page as usize)?.as_deref()
    }

    /// Returns the first existing page at or after `page`; the number of pages if no more exists.
    pub(super) fn absent_end(&self, page: u32) -> u64 {
        let rest = self.pages.get(page as usize..).expect("a page of the drive");
        let absent = rest.iter().position(Option::is_some).unwrap_or(rest.len());
        let end = u64::from(page) + absent as u64;
        assert!(end <= self.pages.len() as u64, "pages beyond the drive are not counted");
        end
    }

    /// Returns a page; creates it if necessary.
    pub(super) fn page_mut(&mut self, page: u32) -> &mut Page {
        let pages = self.pages.len();
        let slot = self.pages.get_mut(page as usize).expect("a page of the drive");
        if slot.is_none() {
            self.page_count += 1;
        }
        assert!((1..=pages).contains(&self.page_count), "pages that exist are counted");
        slot.get_or_insert_with(|| {
            let entries = Entries::Runs(vec![(0, DirectoryEntry::Hole.pack())]);
            self.entry_bytes += entries.memory_bytes();
            Box::new(Page { entries, address: None, dirty: false, pending: false })
        })
    }

    /// Returns every page that exists, in order.
    pub(super) fn pages(&self) -> impl Iterator<Item = (u32, &Page)> {
        (0..).zip(&self.pages).filter_map(|(number, page)| Some((number, page.as_deref()?)))
    }

    /// Returns every page that exists, in order, for changes.
    pub(super) fn pages_mut(&mut self) -> impl Iterator<Item = (u32, &mut Page)> {
        let numbered = (0..).zip(&mut self.pages);
        numbered.filter_map(|(number, page)| Some((number, page.as_deref_mut()?)))
    }

    /// Returns the bytes of memory in use.
    pub(super) fn memory_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Option<Box<Page>>>()
            + self.page_count * size_of::<Page>()
            + self.entry_bytes
    }

    /// Checks the counts against the pages, in debug builds.
    pub(super) fn check_counts(&self) {
        debug_assert_eq!(self.pages().count(), self.page_count, "pages that exist are counted");
        let bytes = self.pages().map(|(_, page)| page.entries.memory_bytes());
        debug_assert_eq!(bytes.sum::<usize>(), self.entry_bytes, "bytes of entries are counted");
    }
}

impl Page {
    /// Returns the location of each leaf of the page.
    pub(super) fn locations(&self) -> impl Iterator<Item = Location> {
        self.entries.iter().map(Location::of)
    }
}

/// Returns the page with the entry of `leaf`.
pub(super) fn page_of(leaf: u64) -> u32 {
    let page = u32::try_from(leaf / DIRECTORY_PAGE_LEAVES as u64);
    page.expect("the number of a directory page has 32 bits")
}

/// Returns the index in its page of the entry of `leaf`.
#[expect(clippy::cast_possible_truncation, reason = "the remainder is below 512")]
pub(super) fn index_of(leaf: u64) -> usize {
    (leaf % DIRECTORY_PAGE_LEAVES as u64) as usize
}
