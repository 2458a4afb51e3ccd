//! Goal: the map has the table of a frame as long as enough blocks map to it, and never the table
//! of another frame; a leaf with tables decodes to itself, and no other bytes decode to it.
//!
//! Method: small maps by hand; leaves of random frames, overwritten and read back; every single
//! change to a leaf on the medium is refused or yields another leaf.

use super::*;
use crate::base::checksum::crc32;
use crate::format::{LEAF_TABLE_BYTES, MapLimits};

const LIMITS: MapLimits = MapLimits { segment_count: 8, segment_bytes: 1 << 30, seal_bytes: 0 };

/// Returns the table of a payload of `blocks` blocks that differs with `number`.
fn table(number: u32, blocks: u8) -> ChunkTable {
    let entry = |block: u32| {
        let word = 1 << 13 | (100 + (number + block) % 1000) as u16;
        let checksum = crc32(&(number * 8 + block).to_le_bytes());
        [&word.to_le_bytes()[..], &checksum.to_le_bytes()].concat()
    };
    let mut stored = (0..u32::from(blocks)).flat_map(entry).collect::<Vec<_>>();
    stored.resize(LEAF_TABLE_BYTES, 0);
    ChunkTable::from_stored(stored.first_chunk().unwrap(), blocks.into()).unwrap()
}

fn place(number: u32, blocks: u8) -> FramePlace {
    let record_bytes = 28 + table(number, blocks).payload_bytes() as u32;
    FramePlace { segment: SegmentId(number % 8), offset: number * 10_000, record_bytes, blocks }
}

fn write(map: &mut L2p, lba: u64, number: u32, blocks: u8) {
    if blocks == 1 {
        return map.map_frame(Lba(lba), FramePlace { blocks, ..place(number, 2) }, |_| ());
    }
    let place = place(number, blocks);
    map.map_frame(Lba(lba), place, |_| ());
    map.set_table(Lba(lba), place, Some(table(number, blocks)));
}

fn found(map: &L2p, lba: u64, number: u32, blocks: u8) -> bool {
    let table_found = map.table(Lba(lba), 0, &place(number, blocks));
    assert!(table_found.is_none_or(|found| found == table(number, blocks)), "another table");
    table_found.is_some()
}

/// Returns the only leaf as a checkpoint writes it.
fn stored(map: &mut L2p) -> Vec<u8> {
    map.begin_checkpoint();
    let mut bytes = Vec::new();
    let leaf = map.next_pending().unwrap();
    assert_eq!(map.pending_content(leaf, &mut bytes), LeafContent::Runs);
    let address = MetadataAddress { segment: SegmentId(0), offset: 16, bytes: 4112 };
    map.checkpointed(leaf, DirectoryEntry::Leaf(address));
    for page in map.dirty_pages() {
        map.set_page_address(page, address);
    }
    map.end_checkpoint();
    bytes
}

fn again(bytes: &[u8]) -> Result<Vec<u8>, crate::base::Error> {
    let mut again = Vec::new();
    Leaf::decode(bytes, &LIMITS)?.encode(&mut again);
    Ok(again)
}

#[test]
fn a_table_is_dropped_when_few_blocks_of_its_frame_are_left() {
    let mut map = L2p::new(1024, usize::MAX);
    write(&mut map, 16, 1, 8);
    assert!(found(&map, 16, 1, 8));
    assert!(map.table(Lba(19), 3, &place(1, 8)).is_some());
    // The same frame would begin elsewhere.
    assert_eq!(map.table(Lba(19), 2, &place(1, 8)), None);
    assert_eq!(map.table(Lba(2), 3, &place(1, 8)), None);
    for (lba, is_left) in [(16, true), (20, true), (18, true), (23, true), (17, false)] {
        map.map_uniform(Lba(lba), 1, Mapping::Hole, |_| ());
        assert_eq!(found(&map, 16, 1, 8), is_left, "without block {lba}");
    }
    write(&mut map, 32, 2, 3);
    assert!(!found(&map, 32, 2, 3), "too few blocks");
    write(&mut map, 40, 3, 8);
    write(&mut map, 40, 4, 8);
    assert!(!found(&map, 40, 3, 8) && found(&map, 40, 4, 8), "written over");
    assert_eq!(map.table_count(), 1);
}

/// The segment was reused. Guards against searching for a block at its place in another frame.
#[test]
fn a_frame_without_a_table_has_no_table_of_an_earlier_frame() {
    let mut map = L2p::new(1024, usize::MAX);
    write(&mut map, 0, 1, 8);
    let same = place(1, 8);
    map.map_frame(Lba(8), same, |_| ());
    map.set_table(Lba(8), same, None);
    assert!(!found(&map, 8, 1, 8) && !found(&map, 0, 1, 8));
}

#[test]
fn a_moved_frame_has_a_table_if_enough_of_it_is_live() {
    for (dead, is_kept) in [(4, true), (5, false)] {
        let mut map = L2p::new(1024, usize::MAX);
        write(&mut map, 0, 1, 8);
        map.map_uniform(Lba(0), dead, Mapping::Fill(1), |_| ());
        let to = place(2, 8);
        let from = place(1, 8).address();
        map.move_blocks(BlockMove { lba: Lba(0), count: 8, from, to, to_index: 0 }, |_, _| ());
        map.set_table(Lba(0), to, Some(table(2, 8)));
        assert_eq!(found(&map, 0, 2, 8), is_kept, "{dead} dead blocks");
        assert!(!found(&map, 0, 1, 8));
    }
}

/// A damaged map has runs of two frames at one address. Guards against writing a leaf that cannot
/// be read.
#[test]
fn frames_that_share_an_address_store_no_table() {
    let mut map = L2p::new(1024, usize::MAX);
    write(&mut map, 0, 1, 8);
    write(&mut map, 8, 2, 8);
    map.map_frame(Lba(64), place(1, 8), |_| ());
    let bytes = stored(&mut map);
    assert_eq!(again(&bytes).unwrap(), bytes);
    assert_eq!(bytes.len(), 5 * 16 + 48, "one table");
    assert_eq!(Leaf::decode(&bytes, &LIMITS).unwrap().table_count(), 1);
}

/// In a damaged map. Guards against looking up a block in a table with fewer blocks.
#[test]
fn frames_of_two_lengths_at_one_address_share_no_table() {
    let mut map = L2p::new(1024, usize::MAX);
    let longer = FramePlace { blocks: 64, ..place(1, 8) };
    map.map_frame(Lba(0), longer, |_| ());
    write(&mut map, 0, 1, 8);
    assert!(found(&map, 0, 1, 8));
    assert_eq!(map.table(Lba(10), 10, &longer), None);
    let bytes = stored(&mut map);
    assert_eq!(again(&bytes).unwrap(), bytes);
    assert_eq!(Leaf::decode(&bytes, &LIMITS).unwrap().table_count(), 0);
}

#[test]
fn a_read_leaves_a_table_without_a_change() {
    let mut map = L2p::new(1024, usize::MAX);
    map.map_frame(Lba(0), place(1, 8), |_| ());
    stored(&mut map);
    assert_eq!(map.dirty_bytes(), 0);
    let before = map.resident_bytes();
    map.set_table(Lba(0), place(1, 8), Some(table(1, 8)));
    assert!(found(&map, 0, 1, 8));
    assert_eq!(map.dirty_bytes(), 0);
    assert!(map.resident_bytes() >= before + 60, "its memory is not counted");
}

/// The memory of a leaf, as ARCHITECTURE.md states it.
#[test]
fn memory_of_a_leaf_of_whole_frames() {
    let mut map = L2p::new(1024, usize::MAX);
    (0..128).for_each(|frame| write(&mut map, u64::from(frame) * 8, frame, 8));
    let bytes = stored(&mut map);
    assert_eq!(bytes.len(), 128 * (16 + 48));
    let leaf = Leaf::decode(&bytes, &LIMITS).unwrap();
    assert_eq!(leaf.memory_bytes(), 128 * (16 + 60));
}

/// The longest leaf: each block a run, and each frame with a table.
#[test]
fn the_longest_leaf_reads_back() {
    let mut map = L2p::new(1024, usize::MAX);
    for pair in 0..128 {
        let lba = u64::from(pair) * 8;
        write(&mut map, lba, 2 * pair, 8);
        let to = place(2 * pair + 1, 8);
        for block in (1..8).step_by(2) {
            let from = place(2 * pair, 8).address();
            let (lba, to_index) = (Lba(lba + block), block as u8);
            map.move_blocks(BlockMove { lba, count: 1, from, to, to_index }, |_, _| ());
        }
        map.set_table(Lba(lba), to, Some(table(2 * pair + 1, 8)));
    }
    assert_eq!(map.table_count(), 256);
    let bytes = stored(&mut map);
    assert_eq!(bytes.len(), 1024 * 16 + 256 * 48);
    assert_eq!(again(&bytes).unwrap(), bytes);
}

/// Writes random frames over each other, and compares the result with the expected content.
#[test]
fn tables_agree_with_a_count_of_blocks() {
    for seed in 0..20 {
        let mut random = random(seed);
        let mut map = L2p::new(1024, usize::MAX);
        let mut plain: Vec<(u32, u64, u8)> = vec![(0, 0, 0); 1024];
        for number in 1..400 {
            let blocks = random.random_range(1..=8u8);
            let lba =
                random.random_range(0..128u64) * 8 + random.random_range(0..=u64::from(8 - blocks));
            if random.random_range(0..10) == 0 {
                map.map_uniform(Lba(lba), blocks.into(), Mapping::Fill(7), |_| ());
                plain[lba as usize..][..blocks.into()].fill((0, 0, 0));
            } else {
                write(&mut map, lba, number, blocks);
                plain[lba as usize..][..blocks.into()].fill((number, lba, blocks));
            }
            let mut frames = plain.clone();
            frames.sort_unstable();
            let has_table = |run: &&[(u32, u64, u8)]| run[0].0 > 0 && run.len() >= 4;
            let frames: Vec<_> = frames.chunk_by(|a, b| a == b).filter(has_table).collect();
            assert_eq!(map.table_count(), frames.len());
            assert!(frames.iter().all(|run| found(&map, run[0].1, run[0].0, run[0].2)));
        }
        let bytes = stored(&mut map);
        assert_eq!(again(&bytes).unwrap(), bytes);
        assert_eq!(Leaf::decode(&bytes, &LIMITS).unwrap().table_count(), map.table_count());
    }
}

#[test]
fn a_changed_leaf_with_tables_is_refused_or_is_another_one() {
    let mut map = L2p::new(1024, usize::MAX);
    write(&mut map, 0, 1, 8);
    write(&mut map, 8, 2, 4);
    write(&mut map, 3, 3, 1);
    write(&mut map, 70, 4, 2);
    let good = stored(&mut map);
    assert_eq!(Leaf::decode(&good, &LIMITS).unwrap().table_count(), 2);
    for len in 0..good.len() {
        assert!(again(&good[..len]).is_err(), "{len} bytes");
    }
    assert!(again(&[&good[..], &[0; 48]].concat()).is_err(), "a table too many");
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(again) = again(&bytes) {
            assert_eq!(again, bytes, "bit {bit}: read as something else");
        }
    }
}

/// Each table is refused for a different reason.
#[test]
fn impossible_tables_are_refused() {
    let mut map = L2p::new(1024, usize::MAX);
    write(&mut map, 0, 1, 8);
    write(&mut map, 3, 2, 1);
    let good = stored(&mut map);
    // Runs: 3 blocks of frame 1, frame 2, 4 blocks of frame 1, a hole; one table.
    assert_eq!(good.len(), 4 * 16 + 48);
    assert!(again(&good).is_ok());
    let refused = |what: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        assert!(again(&bytes).is_err(), "{what}");
    };
    refused("only one of two runs has the flag", &|bytes| bytes[32 + 3] &= 0x7f);
    refused("only the other one has the flag", &|bytes| bytes[3] &= 0x7f);
    refused("no run has the flag", &|bytes| {
        bytes[3] &= 0x7f;
        bytes[32 + 3] &= 0x7f;
    });
    refused("a frame of one block", &|bytes| bytes[16 + 3] |= 0x80);
    refused("a hole with a table", &|bytes| bytes[48 + 3] |= 0x80);
    refused("too few blocks are left", &|bytes| {
        // The last five blocks become a part of the hole.
        bytes.drain(32..48);
        bytes[32] = 4;
    });
    refused("two runs of one frame have two lengths", &|bytes| bytes[32 + 12] ^= 16);
    refused("a record of another length", &|bytes| {
        bytes[12] ^= 1;
        bytes[32 + 12] ^= 1;
    });
    refused("two runs of one frame begin it elsewhere", &|bytes| bytes[2] = 1);
    refused("a block that is longer than a block", &|bytes| bytes[64 + 1] |= 0x1f);
    refused("an encoding that does not exist", &|bytes| bytes[64 + 1] |= 0xe0);
}
