//! Goal: the map agrees with a plain array of mappings under random operations, whatever is in
//! memory and whenever it was checkpointed. It reports every frame piece exactly once when it dies,
//! and every dead metadata place exactly once when a checkpoint has replaced it.
//!
//! Method: a model plays the callers. Its medium is a table of places; places declared dead at the
//! end of a checkpoint are removed, so that a map that needs them later fails. Checkpoints advance
//! in small steps between other operations; occasionally everything is lost except the medium and
//! the operations since the newest checkpoint began.

mod model;
mod tables;

use rand::RngExt;

use self::model::{BLOCKS, Model, write_place};
use super::*;
use crate::base::SegmentId;
use crate::base::seed::random;

fn random_uniform(random: &mut impl RngExt) -> Mapping {
    match random.random_range(0..3) {
        0 => Mapping::Fill(0),
        1 => Mapping::Fill(0xff),
        _ => Mapping::Hole,
    }
}

fn random_step(model: &mut Model, random: &mut impl RngExt) {
    // Mostly one page, so that leaves are written more than once; occasionally anywhere.
    let near = if random.random_range(0..4) == 0 { BLOCKS } else { 24 * 1024 };
    let lba = random.random_range(0..near);
    match random.random_range(0..100) {
        0..50 => {
            let room = (1024 - lba % 1024).min(BLOCKS - lba).min(16);
            model.write(lba, random.random_range(1..=room) as u8);
        }
        50..65 => {
            let limit = if random.random_range(0..8) == 0 { BLOCKS } else { 3000 };
            let count = random.random_range(1..=(BLOCKS - lba).min(limit));
            model.uniform(lba, count, random_uniform(random));
        }
        65..75 => model.relocate(lba),
        75..82 => model.reap(random.random_range(1..4)),
        82..95 => {
            for _ in 0..random.random_range(1..6) {
                model.checkpoint_step();
            }
        }
        95..99 => model.collect_metadata(random.random_range(0..10)),
        _ => model.lose_memory(),
    }
}

#[test]
fn agrees_with_a_plain_array() {
    let mut evictions = 0;
    for seed in 0..12 {
        let mut random = random(seed);
        let mut model = Model::new(0);
        for step in 0..1500 {
            random_step(&mut model, &mut random);
            if step % 100 == 99 {
                model.check();
            }
        }
        model.check();
        model.check_accounting();
        model.lose_memory();
        model.check();
        model.check_accounting();
        evictions += model.evictions;
    }
    assert!(evictions > 1000, "{evictions}: leaves go in and out");
}

/// Random writes of single blocks leave a leaf in which no search takes place.
#[test]
fn a_leaf_of_single_blocks_finds_each() {
    let mut model = Model::new(usize::MAX);
    for step in 0..1024 {
        model.write(1024 + step * 357 % 1024, 1);
    }
    model.check();
    assert_eq!(model.map.runs().count(), 1024);
    for step in 0..1024 {
        model.uniform(1024 + step * 31 % 1024, 1, Mapping::Fill(1));
    }
    model.check();
    assert_eq!(model.map.runs().collect::<Vec<_>>(), [(Lba(1024), 1024, Mapping::Fill(1))]);
    assert!(model.live.is_empty());
}

/// The common overwrite, which random ranges hardly ever produce: exactly the blocks of an older
/// frame.
#[test]
fn frames_rewritten_in_place_release_the_old_ones() {
    let mut model = Model::new(usize::MAX);
    for _ in 0..3 {
        for lba in (0..1024).step_by(8) {
            model.write(lba, 8);
        }
        model.check();
        model.check_accounting();
    }
}

#[test]
fn trimming_the_largest_drive_touches_no_leaf() {
    let blocks = 1u64 << 40;
    let mut map = L2p::new(blocks, usize::MAX);
    map.map_frame(Lba(blocks / 2), write_place(0, 1), |_| panic!("nothing was there"));
    map.map_uniform(Lba(1), blocks - 2, Mapping::Hole, |_| panic!("not an edge"));
    assert_eq!(map.lookup(Lba(blocks / 2)).resident().0, Mapping::Hole);
    let mut released = 0;
    let mut calls = 0;
    while map.reap(64, |_| released += 1) == Reap::More {
        calls += 1;
    }
    assert_eq!((released, map.mapped_blocks()), (1, 0));
    assert!(calls <= blocks / 1024 / 512 / 64 + 20, "{calls} calls: absent pages are skipped");
}

#[test]
fn filling_a_large_drive_makes_no_pages() {
    let blocks = 1u64 << 32;
    let mut map = L2p::new(blocks, usize::MAX);
    let empty_bytes = map.memory_bytes();
    map.map_uniform(Lba(1024), blocks - 2048, Mapping::Fill(1), |_| panic!("nothing was there"));
    assert_eq!(map.next_mapped_leaf(0), Some(1));
    assert_eq!(map.mapped_blocks(), blocks - 2048, "before it is taken down");
    while map.reap(64, |_| panic!("nothing was there")) == Reap::More {}
    assert_eq!(map.mapped_blocks(), blocks - 2048);
    assert!(map.memory_bytes() < empty_bytes + 3 * 4096, "but the two pages at the ends");
    // A write in the middle removes only its own page from the range.
    let middle = blocks / 2 + 5 * 1024;
    map.map_frame(Lba(middle), write_place(0, 1), |_| panic!("nothing was there"));
    while map.reap(64, |_| panic!("nothing was there")) == Reap::More {}
    assert_eq!(map.mapped_blocks(), blocks - 2048);
    assert!(map.memory_bytes() < empty_bytes + 5 * 4096);
    assert_eq!(map.next_mapped_leaf(0), Some(1));
    for lba in [middle - 1024, middle + 1, middle + 1024] {
        assert_eq!(map.lookup(Lba(lba)).resident().0, Mapping::Fill(1));
    }
}

#[test]
fn trimming_leaves_on_the_medium_needs_one_at_a_time() {
    let mut model = Model::new(0);
    for leaf in 0..1000 {
        for block in 0..40 {
            model.write(leaf * 1024 + block * 7, 1);
        }
        if leaf % 10 == 0 {
            model.finish_checkpoint();
        }
    }
    model.finish_checkpoint();
    model.uniform(0, 1000 * 1024, Mapping::Hole);
    let before = model.map.resident_bytes();
    model.reap(u32::MAX);
    assert!(model.map.resident_bytes() <= before.max(16 << 10) && model.map.dirty_bytes() == 0);
    assert!(model.live.is_empty());
    assert_eq!(model.map.mapped_blocks(), 0);
    model.finish_checkpoint();
    assert_eq!(model.medium.len(), 2, "only directory pages are left");
    model.lose_memory();
    model.check_accounting();
    model.check();
}

#[test]
fn a_sequential_frame_is_one_run_of_sixteen_bytes() {
    let mut model = Model::new(0);
    for lba in (0..1024).step_by(8) {
        model.write(lba, 8);
    }
    model.check();
    assert_eq!(model.map.runs().count(), 128);
    assert!(model.map.resident_bytes() < 128 * 16 * 2 + 100);
}

#[test]
fn blocks_in_a_gap_are_counted_once() {
    let mut map = L2p::new(1024, usize::MAX);
    for (number, lba) in [0, 2, 1, 1].into_iter().enumerate() {
        map.map_frame(Lba(lba), write_place(number as u32, 1), |_| {});
    }
    assert_eq!(map.mapped_blocks(), 3);
}

#[test]
fn only_blocks_that_still_map_to_a_frame_are_moved() {
    let mut map = L2p::new(4096, usize::MAX);
    let (old, new) = (write_place(1, 8), write_place(2, 16));
    map.map_frame(Lba(1032), old, |_| {});
    map.map_frame(Lba(1032), write_place(3, 1), |_| {});
    map.map_uniform(Lba(1035), 2, Mapping::Hole, |_| {});
    let from = old.address();
    let pieces = |map: &L2p| map.live_pieces(Lba(1032), old).collect::<Vec<_>>();
    let expected =
        [LivePiece { start: 9, index: 1, count: 2 }, LivePiece { start: 13, index: 5, count: 3 }];
    assert_eq!(pieces(&map), expected);
    // A damaged map may disagree with the record about another frame in the same place.
    let longer = FramePlace { record_bytes: old.record_bytes + 1, ..old };
    assert_eq!(map.live_pieces(Lba(1032), longer).count(), 0);
    assert_eq!(map.live_pieces(Lba(1031), old).count(), 0);
    let mut released = Vec::new();
    let blocks = BlockMove { lba: Lba(1032), count: 8, from, to: new, to_index: 4 };
    let moved = map.move_blocks(blocks, |piece, at| released.push((piece, at)));
    let old = |index, count| Released { place: old, index, count };
    assert_eq!((moved, released), (5, vec![(old(1, 2), 5), (old(5, 3), 9)]));
    assert_eq!(pieces(&map), []);
    for (lba, index) in [(1033, 5), (1034, 6), (1037, 9), (1039, 11)] {
        let mapping = Mapping::Frame { place: new, index };
        assert_eq!(map.lookup(Lba(lba)).resident().0, mapping, "LBA {lba}");
    }
    assert_eq!(map.lookup(Lba(1035)), Lookup::Run(Mapping::Hole, 2));
}

#[test]
fn touched_leaves_are_written_again() {
    let mut map = clean(4, usize::MAX);
    assert!(map.dirty_bytes() == 0);
    map.touch_page(0);
    map.begin_checkpoint();
    assert_eq!((map.next_pending(), map.dirty_pages()), (None, vec![0]));
    map.set_page_address(0, meta_place(100));
    assert_eq!(map.end_checkpoint(), [meta_place(4)]);
    map.touch_leaf(2);
    map.begin_checkpoint();
    assert_eq!((map.next_pending(), map.next_pending()), (Some(2), None));
    assert_eq!(map.dirty_pages(), [0]);
}

/// Returns a map with `leaves` leaves of one frame each on the medium, all clean and in memory.
fn clean(leaves: u64, budget_bytes: usize) -> L2p {
    let mut map = L2p::new(leaves * 1024, budget_bytes);
    for leaf in 0..leaves {
        map.map_frame(Lba(leaf * 1024), write_place(leaf as u32, 1), |_| {});
    }
    checkpoint(&mut map);
    map
}

fn meta_place(number: u32) -> MetadataAddress {
    MetadataAddress { segment: SegmentId(7), offset: number * 16, bytes: 16 }
}

fn checkpoint(map: &mut L2p) {
    map.begin_checkpoint();
    let mut next = 0;
    while let Some(leaf) = map.next_pending() {
        map.checkpointed(leaf, DirectoryEntry::Leaf(meta_place(leaf as u32)));
        next = next.max(leaf as u32 + 1);
    }
    for page in map.dirty_pages() {
        map.set_page_address(page, meta_place(next + page));
    }
    map.end_checkpoint();
}

fn load(map: &mut L2p, leaf: u64) {
    let DirectoryEntry::Leaf(place) = map.entry(leaf) else { panic!("not on the medium") };
    let mut content = Leaf::uniform(Mapping::Hole);
    let frame = Mapping::Frame { place: write_place(leaf as u32, 1), index: 0 };
    content.replace(0, 1, frame, &mut |_| {});
    map.install(leaf, place, content);
}

#[test]
fn leaves_in_use_stay() {
    let mut map = clean(1000, 0);
    let hot = 0..10;
    let mut hot_loads = 0;
    map.budget_bytes = 100 * map.resident_bytes() / 8.max(map.slab.slots().count());
    for leaf in 0..1000 {
        for hot in hot.clone() {
            if let Lookup::Missing(leaf) = map.lookup(Lba(hot * 1024)) {
                load(&mut map, leaf);
                hot_loads += 1;
            }
        }
        if let Lookup::Missing(leaf) = map.lookup(Lba(leaf * 1024)) {
            load(&mut map, leaf);
        }
        assert!(map.resident_bytes() <= map.budget_bytes);
    }
    assert!(map.stats().evictions >= 1800, "{:?}", map.stats());
    assert!(hot_loads <= 10, "{hot_loads} loads of leaves that are asked for all the time");
}

/// The slot of a leaf that was reaped keeps its place in the queue.
#[test]
fn a_leaf_that_was_just_loaded_stays() {
    for reaped in 0..9 {
        let mut map = clean(20, 0);
        let is_missing = |map: &L2p, leaf: u64| map.missing(Lba(leaf * 1024), 1).is_some();
        map.budget_bytes = usize::MAX;
        let ninth = (0..20).find(|&leaf| is_missing(&map, leaf)).unwrap();
        load(&mut map, ninth);
        map.budget_bytes = 0;
        let in_memory: Vec<_> = (0..20).filter(|&leaf| !is_missing(&map, leaf)).collect();
        assert_eq!(in_memory.len(), 9);
        map.map_uniform(Lba(in_memory[reaped] * 1024), 1024, Mapping::Hole, |_| ());
        assert_eq!(map.reap(1, |_| ()), Reap::Done);
        (0..20).for_each(|leaf| _ = map.lookup(Lba(leaf * 1024)));
        let another = (0..20).find(|&leaf| is_missing(&map, leaf)).unwrap();
        load(&mut map, another);
        assert!(!is_missing(&map, another), "leaf {another}, in the slot of {reaped}");
    }
}

#[test]
fn dirty_leaves_stay_with_any_budget() {
    let mut map = clean(100, 0);
    assert_eq!(map.slab.slots().count(), 8, "the clean ones that are always kept");
    for leaf in 0..50 {
        if let Some(leaf) = map.missing(Lba(leaf * 1024), 1) {
            load(&mut map, leaf);
        }
        map.map_frame(Lba(leaf * 1024), write_place(1000 + leaf as u32, 1), |_| {});
    }
    assert_eq!(map.slab.slots().filter(|(_, slot)| slot.is_dirty()).count(), 50);
    assert!(map.dirty_bytes() > 0);
    checkpoint(&mut map);
    assert_eq!((map.dirty_bytes(), map.slab.slots().count()), (0, 8));
}

#[test]
fn a_leaf_loaded_from_an_old_place_is_not_taken() {
    let mut map = clean(20, 0);
    let leaf = (0..20).find(|&leaf| map.missing(Lba(leaf * 1024), 1).is_some()).unwrap();
    let old = Leaf::uniform(Mapping::Fill(1));
    map.install(leaf, meta_place(999), old.clone());
    assert_eq!(map.lookup(Lba(leaf * 1024)), Lookup::Missing(leaf));
    load(&mut map, leaf);
    map.map_frame(Lba(leaf * 1024), write_place(77, 1), |_| {});
    map.install(leaf, meta_place(leaf as u32), old);
    assert_ne!(map.lookup(Lba(leaf * 1024)).resident().0, Mapping::Fill(1));
}

#[test]
#[should_panic(expected = "before it was loaded")]
fn changing_a_leaf_that_is_not_in_memory_is_a_bug() {
    let mut map = clean(20, 0);
    let leaf = (0..20).find(|&leaf| map.missing(Lba(leaf * 1024), 1).is_some()).unwrap();
    map.map_frame(Lba(leaf * 1024), write_place(77, 1), |_| {});
}

#[test]
fn impossible_checkpoints_are_refused() {
    let restore = |page: u32, entry: (usize, u64), dropped: &[(u64, u64)], mapped: u64| {
        let mut entries = Box::new([0; DIRECTORY_PAGE_LEAVES]);
        entries[entry.0] = entry.1;
        let page = RestoredPage { page, address: meta_place(1), entries };
        let range = |&(start, end)| DroppedRange { start, end, mapping: Mapping::Hole };
        let dropped: Vec<_> = dropped.iter().map(range).collect();
        L2p::restore(600 * 1024 + 5, 0, [page], &dropped, mapped).is_ok()
    };
    let leaf = DirectoryEntry::Leaf(meta_place(5)).pack();
    assert!(restore(0, (0, leaf), &[(0, 4), (4, 600)], 600 * 1024 + 5));
    assert!(restore(1, (600 - 512, leaf), &[], 0), "the last leaf, of five blocks");
    for (page, entry, dropped, mapped) in [
        (2, (0, 0), vec![], 0),
        (1, (601 - 512, leaf), vec![], 0),
        (0, (0, 3 << 62), vec![], 0),
        (0, (0, 0), vec![(0, 601)], 0),
        (0, (0, 0), vec![(3, 3)], 0),
        (0, (0, 0), vec![(3, 5), (4, 6)], 0),
        (0, (0, 0), vec![(4, 5), (1, 2)], 0),
        (0, (0, 0), vec![], 600 * 1024 + 6),
    ] {
        assert!(!restore(page, entry, &dropped, mapped), "{page} {entry:?} {dropped:?} {mapped}");
    }
}

/// Guards against a 4 KiB page of the directory for both ends of each fill: a batch of 4 MiB could
/// then use more than a gigabyte of memory.
#[test]
fn far_fills_take_memory_in_proportion_to_their_number() {
    const FILLS: u64 = 4000;
    let blocks = (16 << 50) / 4096;
    let mut map = L2p::new(blocks, 0);
    let empty_bytes = map.memory_bytes();
    let leaf = u64::from(LEAF_BLOCKS);
    let start = |fill: u64| fill * (blocks / FILLS) + 100 * leaf + 17;
    // Two pages and a half, with both ends within a leaf.
    let count = leaf * 1280 + 5;
    for fill in 0..FILLS {
        map.map_uniform(Lba(start(fill)), count, Mapping::Fill(fill as u8), |_| ());
    }
    assert_eq!(map.reap(u32::MAX, |_| ()), Reap::Done);
    let bytes = map.memory_bytes() - empty_bytes;
    assert!(bytes < FILLS as usize * 1024, "{bytes} bytes for {FILLS} fills");
    for fill in 0..FILLS {
        let at = |lba: u64| map.peek(Lba(lba)).resident().0;
        let (start, filled) = (start(fill), Mapping::Fill(fill as u8));
        assert_eq!([at(start - 1), at(start + count)], [Mapping::Hole; 2]);
        for inside in [0, leaf, 500 * leaf, 1279 * leaf, count - 1] {
            assert_eq!(at(start + inside), filled);
        }
    }
}
