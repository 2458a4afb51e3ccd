//! The model of the map's callers: a plain array, a medium, and a checkpoint in steps.

use std::collections::HashMap;

use super::super::*;
use crate::base::SegmentId;
use crate::format::{MapLimits, decode_page, encode_page};

/// More than two directory pages, and an incomplete last leaf.
pub(super) const BLOCKS: u64 = 1100 * 1024 + 100;

const LIMITS: MapLimits = MapLimits { segment_count: 8, segment_bytes: 1 << 30, seal_bytes: 0 };

type Live = HashMap<FrameAddress, u64>;

/// An operation as replayed from the log.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Frame(u64, FramePlace),
    Uniform(u64, u64, Mapping),
    Move(u64, u16, FrameAddress, FramePlace),
}

/// The state stored by the newest finished checkpoint, in addition to the medium.
#[derive(Clone, Default)]
struct Root {
    pages: Vec<(u32, MetadataAddress)>,
    dropped: Vec<DroppedRange>,
    leaf_mapped_blocks: u64,
    live: Live,
    /// Operations since it began.
    since: Vec<Operation>,
}

pub(super) struct Model {
    pub(super) map: L2p,
    pub(super) live: Live,
    /// Leaves and pages by their packed place.
    pub(super) medium: HashMap<u64, Vec<u8>>,
    pub(super) evictions: u64,
    plain: Vec<Mapping>,
    root: Root,
    running: Option<Root>,
    next_frame: u32,
    next_meta: u32,
    budget_bytes: usize,
}

/// The place of the `number`-th frame.
pub(super) fn write_place(number: u32, blocks: u8) -> FramePlace {
    let record_bytes = 100 + number % 97;
    FramePlace { segment: SegmentId(3), offset: number * 1000, record_bytes, blocks }
}

impl Model {
    pub(super) fn new(budget_bytes: usize) -> Self {
        Self {
            map: L2p::new(BLOCKS, budget_bytes),
            live: HashMap::new(),
            medium: HashMap::new(),
            evictions: 0,
            plain: vec![Mapping::Hole; BLOCKS as usize],
            root: Root::default(),
            running: None,
            next_frame: 0,
            next_meta: 0,
            budget_bytes,
        }
    }

    pub(super) fn write(&mut self, lba: u64, blocks: u8) {
        let place = self.new_frame(blocks);
        self.log(Operation::Frame(lba, place));
        for index in 0..blocks {
            self.plain[lba as usize + usize::from(index)] = Mapping::Frame { place, index };
        }
    }

    pub(super) fn uniform(&mut self, lba: u64, count: u64, mapping: Mapping) {
        self.log(Operation::Uniform(lba, count, mapping));
        self.plain[lba as usize..(lba + count) as usize].fill(mapping);
    }

    /// Moves the live blocks of the frame at `lba`, if there is one, to a new frame.
    pub(super) fn relocate(&mut self, lba: u64) {
        let Mapping::Frame { place: from, index } = self.plain[lba as usize] else { return };
        let first = lba - u64::from(index);
        let to = self.new_frame(from.blocks);
        let key = from.address();
        let range = first as usize..(first + u64::from(from.blocks)).min(BLOCKS) as usize;
        let live: Vec<_> = (0u8..)
            .zip(&self.plain[range.clone()])
            .filter(|(_, at)| matches!(at, Mapping::Frame { place, .. } if *place == from))
            .map(|(at, _)| at)
            .collect();
        self.load_missing(first, u64::from(from.blocks));
        let pieces = self.map.live_pieces(Lba(first), from);
        let start = (first % 1024) as u16;
        let found: Vec<_> = pieces
            .flat_map(|piece| {
                assert_eq!(u16::from(piece.index), piece.start - start);
                piece.index..piece.index + piece.count
            })
            .collect();
        assert_eq!(found, live, "live pieces of {from:?}");
        self.log(Operation::Move(first, u16::from(from.blocks), key, to));
        for (index, mapping) in (0u8..).zip(&mut self.plain[range]) {
            if live.contains(&index) {
                *mapping = Mapping::Frame { place: to, index };
            }
        }
    }

    fn new_frame(&mut self, blocks: u8) -> FramePlace {
        self.next_frame += 1;
        write_place(self.next_frame, blocks)
    }

    fn log(&mut self, operation: Operation) {
        self.root.since.push(operation);
        if let Some(running) = &mut self.running {
            running.since.push(operation);
        }
        self.apply(operation);
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Frame(lba, place) => {
                self.load_missing(lba, u64::from(place.blocks));
                let key = place.address();
                self.live.insert(key, u64::from(place.record_bytes));
                let live = &mut self.live;
                self.map.map_frame(Lba(lba), place, |released| release(live, released));
            }
            Operation::Uniform(lba, count, mapping) => {
                while let Some(leaf) = self.map.missing_edges(Lba(lba), count) {
                    self.load(leaf);
                }
                let live = &mut self.live;
                let released = |released| release(live, released);
                self.map.map_uniform(Lba(lba), count, mapping, released);
            }
            Operation::Move(lba, count, from, to) => {
                self.load_missing(lba, u64::from(count));
                let mut moved = 0;
                let mut dead = Vec::new();
                let mut expected = 0;
                for at in 0..count {
                    let (mapping, _) = self.map.lookup(Lba(lba + u64::from(at))).resident();
                    if let Mapping::Frame { place, .. } = mapping
                        && place.address() == from
                    {
                        expected += 1;
                        moved += to.share(at as u8, 1);
                    }
                }
                if moved > 0 {
                    self.live.insert(to.address(), u64::from(moved));
                }
                let blocks = BlockMove { lba: Lba(lba), count, from, to, to_index: 0 };
                let count = self.map.move_blocks(blocks, |piece, _| dead.push(piece));
                assert_eq!(count, expected);
                for piece in dead {
                    release(&mut self.live, piece);
                }
            }
        }
    }

    fn load_missing(&mut self, lba: u64, count: u64) {
        while let Some(leaf) = self.map.missing(Lba(lba), count) {
            self.load(leaf);
        }
    }

    fn load(&mut self, leaf: u64) {
        let DirectoryEntry::Leaf(place) = self.map.entry(leaf) else {
            panic!("leaf {leaf} is missing and not on the medium")
        };
        let content = self.decode(place);
        self.map.install(leaf, place, content);
    }

    fn decode(&self, place: MetadataAddress) -> Leaf {
        let bytes = self.medium.get(&place.pack()).expect("a dead place is read");
        Leaf::decode(bytes, &LIMITS).unwrap()
    }

    /// Reaps up to `steps` dropped leaves.
    pub(super) fn reap(&mut self, steps: u32) {
        for _ in 0..steps {
            let live = &mut self.live;
            match self.map.reap(1, |released| release(live, released)) {
                Reap::Done => return,
                Reap::More => {}
                Reap::Missing(leaf) => self.load(leaf),
            }
        }
    }

    /// Begins a checkpoint, or writes one leaf or page of it, or ends it. Returns whether it ended.
    pub(super) fn checkpoint_step(&mut self) -> bool {
        let Some(running) = &mut self.running else {
            let snapshot = self.map.begin_checkpoint();
            self.running = Some(Root {
                dropped: snapshot.ranges,
                leaf_mapped_blocks: snapshot.leaf_mapped_blocks,
                live: self.live.clone(),
                ..Root::default()
            });
            return false;
        };
        if let Some(leaf) = self.map.next_pending() {
            let mut bytes = Vec::new();
            let entry = match self.map.pending_content(leaf, &mut bytes) {
                LeafContent::Uniform(Mapping::Fill(byte)) => DirectoryEntry::Fill(byte),
                LeafContent::Uniform(_) => DirectoryEntry::Hole,
                LeafContent::Runs => DirectoryEntry::Leaf(self.append(bytes)),
            };
            self.map.checkpointed(leaf, entry);
            return false;
        }
        if let Some(&page) = self.map.dirty_pages().first() {
            let bytes = encode_page(&self.map.page(page));
            let place = self.append(bytes.to_vec());
            self.map.set_page_address(page, place);
            return false;
        }
        running.pages = self.map.page_addresses().collect();
        for dead in self.map.end_checkpoint() {
            self.medium.remove(&dead.pack()).expect("a place died twice");
        }
        assert_eq!(self.map.frozen_bytes(), 0);
        self.root = self.running.take().unwrap();
        true
    }

    /// Ends the running checkpoint, or makes one.
    pub(super) fn finish_checkpoint(&mut self) {
        while !self.checkpoint_step() {}
    }

    fn append(&mut self, bytes: Vec<u8>) -> MetadataAddress {
        self.next_meta += 1;
        let segment = SegmentId(self.next_meta % 8);
        let place = MetadataAddress { segment, offset: self.next_meta * 16, bytes: 4112 };
        self.medium.insert(place.pack(), bytes);
        place
    }

    /// Rewrites some of the places on the medium, as garbage collection does.
    pub(super) fn collect_metadata(&mut self, share: u64) {
        for leaf in (share..BLOCKS.div_ceil(1024)).step_by(10) {
            let DirectoryEntry::Leaf(place) = self.map.entry(leaf) else { continue };
            assert!(self.map.is_current_leaf(leaf, place));
            self.load_missing(leaf * 1024, 1);
            self.map.touch_leaf(leaf);
        }
        let pages: Vec<_> = self.map.page_addresses().collect();
        for (page, place) in pages {
            assert!(self.map.is_current_page(page, place));
            self.map.touch_page(page);
        }
        assert!(!self.map.is_current_leaf(u64::MAX, meta_nowhere()));
        assert!(!self.map.is_current_page(u32::MAX, meta_nowhere()));
    }

    /// Restores the map from the newest checkpoint and the operations since it began.
    pub(super) fn lose_memory(&mut self) {
        self.evictions += self.map.stats().evictions;
        let root = std::mem::take(&mut self.root);
        let pages = root.pages.iter().map(|&(page, place)| {
            let bytes = &self.medium[&place.pack()];
            RestoredPage {
                page,
                address: place,
                entries: Box::new(decode_page(bytes, &LIMITS).unwrap()),
            }
        });
        self.map =
            L2p::restore(BLOCKS, self.budget_bytes, pages, &root.dropped, root.leaf_mapped_blocks)
                .unwrap();
        let named: Vec<_> = self.map.metadata_addresses().map(MetadataAddress::pack).collect();
        let before = self.medium.len();
        // Records of an unfinished checkpoint are dead.
        self.medium.retain(|place, _| named.contains(place));
        assert_eq!(self.medium.len(), named.len(), "a live place was declared dead");
        assert!(self.running.is_some() || before == named.len(), "a dead place was never told");
        self.running = None;
        self.live = root.live.clone();
        for &operation in &root.since {
            self.apply(operation);
        }
        self.root = root;
    }

    /// Compares every block with the plain array, and the bytes in memory with a count.
    pub(super) fn check(&mut self) {
        let mut lba = 0;
        while lba < BLOCKS {
            let (mapping, count) = match self.map.lookup(Lba(lba)) {
                Lookup::Run(mapping, count) => (mapping, count),
                Lookup::Missing(leaf) => {
                    self.load(leaf);
                    continue;
                }
            };
            assert!(count > 0);
            for step in 0..count.min(BLOCKS - lba) {
                let expected = match mapping {
                    Mapping::Frame { place, index } => {
                        Mapping::Frame { place, index: index + step as u8 }
                    }
                    uniform => uniform,
                };
                assert_eq!(self.plain[(lba + step) as usize], expected, "LBA {}", lba + step);
            }
            lba += count;
        }
        self.check_walk();
        for (_, slot) in self.map.slab.slots() {
            slot.content.check_invariants();
        }
        let bytes = |dirty: bool| {
            let slots = self.map.slab.slots().map(|(_, slot)| slot);
            slots
                .filter(|slot| !dirty || slot.is_dirty() || slot.is_pending())
                .map(|slot| size_of_val(slot) + slot.content.memory_bytes())
                .sum::<usize>()
        };
        assert_eq!(self.map.resident_bytes(), bytes(false));
        assert_eq!(self.map.dirty_bytes(), bytes(true));
    }

    /// Checks that the walk over mapped leaves finds every mapped block.
    fn check_walk(&mut self) {
        let mut found = 0;
        let mut from = 0;
        while let Some(leaf) = self.map.next_mapped_leaf(from) {
            if self.map.leaf_runs(leaf).is_none() {
                self.load(leaf);
            }
            let runs = self.map.leaf_runs(leaf).unwrap();
            let data = runs.filter(|(_, _, mapping)| !mapping.is_zero());
            found += data.map(|(_, count, _)| count).sum::<u64>();
            from = leaf + 1;
        }
        assert_eq!(found, self.plain_mapped());
    }

    fn plain_mapped(&self) -> u64 {
        self.plain.iter().filter(|mapping| !mapping.is_zero()).count() as u64
    }

    /// Checks that counts are exact with everything reaped and a checkpoint made: live bytes by
    /// frame, mapped blocks, and the medium's content.
    pub(super) fn check_accounting(&mut self) {
        self.reap(u32::MAX);
        let mut live = Live::new();
        for mapping in &self.plain {
            if let Mapping::Frame { place, index } = mapping {
                let bytes = u64::from(place.share(*index, 1));
                *live.entry(place.address()).or_default() += bytes;
            }
        }
        assert!(live == self.live, "live bytes are not those of the map");
        assert_eq!(self.map.mapped_blocks(), self.plain_mapped());
        if self.running.is_some() {
            self.finish_checkpoint();
        }
        self.finish_checkpoint();
        assert_eq!(self.map.dirty_bytes(), 0);
        let mut named: Vec<_> = self.map.metadata_addresses().map(MetadataAddress::pack).collect();
        let mut held: Vec<_> = self.medium.keys().copied().collect();
        named.sort_unstable();
        held.sort_unstable();
        assert_eq!(named, held, "the medium holds what the map names and nothing else");
    }
}

fn meta_nowhere() -> MetadataAddress {
    MetadataAddress { segment: SegmentId(0), offset: 0, bytes: 16 }
}

fn release(live: &mut Live, released: Released) {
    let key = released.place.address();
    let bytes = u64::from(released.place.share(released.index, released.count));
    let left = live.get_mut(&key).expect("a frame was released twice");
    *left = left.checked_sub(bytes).expect("more bytes released than the frame has");
    if *left == 0 {
        live.remove(&key);
    }
}
