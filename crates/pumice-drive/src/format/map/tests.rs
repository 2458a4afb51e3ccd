//! Goal: the map's records survive a round trip, and nothing impossible is accepted, whatever the
//! bytes: no panic, no address outside the drive, one encoding for one content. Method: round trips
//! at the limits of each field; every single change of a valid leaf is either refused or decodes to
//! a leaf that encodes to the same bytes.

use rand::RngExt;

use super::*;
use crate::base::seed::random;

const LIMITS: MapLimits = MapLimits { segment_count: 9, segment_bytes: 4 << 20, seal_bytes: 0 };

fn address(segment: u32, offset: u32, bytes: u32) -> MetadataAddress {
    MetadataAddress { segment: SegmentId(segment), offset, bytes }
}

#[test]
fn places_and_entries_survive_packing() {
    for segment in [0, 1, META_SEGMENTS_MAX - 1] {
        for offset in [0, 16, (1 << 30) - 16] {
            for bytes in [16, META_RECORD_BYTES_MAX] {
                let address = address(segment, offset, bytes);
                assert_eq!(MetadataAddress::unpack(address.pack()), Some(address));
                let entry = DirectoryEntry::Leaf(address);
                assert_eq!(DirectoryEntry::unpack(entry.pack()), Some(entry));
            }
        }
    }
    for byte in 0..=255 {
        let entry = DirectoryEntry::Fill(byte);
        assert_eq!(DirectoryEntry::unpack(entry.pack()), Some(entry));
        assert!(entry.pack() >> 62 == 0b10);
    }
    assert_eq!(DirectoryEntry::unpack(0), Some(DirectoryEntry::Hole));
}

#[test]
fn impossible_entries_are_refused() {
    for packed in [1 << 63 | 256, 3 << 62, u64::MAX, 1 << 40, 1 << 11] {
        assert_eq!(DirectoryEntry::unpack(packed), None, "{packed:#x}");
    }
    let mut random = random(1);
    for _ in 0..10_000 {
        let packed = random.random::<u64>() >> random.random_range(0..64);
        if let Some(entry) = DirectoryEntry::unpack(packed) {
            assert_eq!(entry.pack(), packed);
        }
    }
}

#[test]
fn a_page_holds_only_addresses_on_the_drive() {
    let mut entries = [0; DIRECTORY_PAGE_LEAVES];
    entries[0] = DirectoryEntry::Fill(7).pack();
    entries[511] = DirectoryEntry::Leaf(address(8, (4 << 20) - 32, 32)).pack();
    let bytes = encode_page(&entries);
    assert_eq!(decode_page(&bytes, &LIMITS).unwrap(), entries);
    assert!(decode_page(&bytes[..4088], &LIMITS).is_err());
    assert!(decode_page(&[], &LIMITS).is_err());
    for bad in [address(9, 0, 16), address(8, (4 << 20) - 16, 32)] {
        entries[300] = DirectoryEntry::Leaf(bad).pack();
        assert!(decode_page(&encode_page(&entries), &LIMITS).is_err(), "{bad:?}");
    }
    entries[300] = 1 << 63 | 256;
    assert!(decode_page(&encode_page(&entries), &LIMITS).is_err());
}

fn frame(blocks: u8, index: u8) -> RunContent {
    RunContent::Frame {
        segment: 8,
        offset: 4096,
        record_bytes: 500,
        blocks,
        index,
        has_table: false,
    }
}

fn encoded(runs: &[(u16, RunContent)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (start, content) in runs {
        encode_run(*start, *content, &mut bytes);
    }
    bytes
}

fn sample() -> Vec<(u16, RunContent)> {
    vec![
        (0, RunContent::Fill(0)),
        (3, frame(64, 0)),
        (67, frame(8, 7)),
        (68, RunContent::Hole),
        (1000, RunContent::Fill(9)),
        (1010, RunContent::Fill(8)),
        (1023, frame(1, 0)),
    ]
}

#[test]
fn a_leaf_reads_back() {
    for runs in [sample(), vec![(0, RunContent::Hole)]] {
        let bytes = encoded(&runs);
        assert_eq!(bytes.len(), runs.len() * LEAF_RUN_BYTES);
        assert!(decode_leaf(&bytes, &LIMITS).unwrap().0.eq(runs));
    }
}

#[test]
fn a_changed_leaf_is_refused_or_is_another_one() {
    let good = encoded(&sample());
    for len in 0..good.len() {
        let whole = len > 0 && len.is_multiple_of(LEAF_RUN_BYTES);
        // A shorter list of runs has a longer last run, which is possible for a fill but not for a
        // frame.
        let fits = [16, 64, 80, 96].contains(&len);
        assert_eq!(decode_leaf(&good[..len], &LIMITS).is_ok(), whole && fits, "{len} bytes");
    }
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok((runs, tables)) = decode_leaf(&bytes, &LIMITS) {
            let runs: Vec<_> = runs.collect();
            assert_eq!(encoded(&runs), bytes, "bit {bit}: read as something else");
            assert_eq!(tables, []);
        }
    }
}

#[test]
fn impossible_leaves_are_refused() {
    let far = |segment, offset| RunContent::Frame {
        segment,
        offset,
        record_bytes: 4096,
        blocks: 64,
        index: 0,
        has_table: false,
    };
    let rest = (64, RunContent::Hole);
    assert!(decode_leaf(&encoded(&[(0, far(8, (4 << 20) - 4096)), rest]), &LIMITS).is_ok());
    for runs in [
        vec![],
        vec![(1, RunContent::Hole)],
        vec![(0, RunContent::Hole), (1024, RunContent::Fill(1))],
        vec![(0, RunContent::Hole), (0, RunContent::Fill(1))],
        vec![(0, RunContent::Hole), (9, RunContent::Fill(1)), (8, RunContent::Fill(2))],
        vec![(0, RunContent::Hole), (9, RunContent::Hole)],
        vec![(0, RunContent::Fill(3)), (9, RunContent::Fill(3))],
        vec![(0, frame(64, 1)), rest],
        vec![(0, frame(65, 0)), rest],
        vec![(0, frame(63, 0)), rest],
        vec![(0, far(9, 0)), rest],
        vec![(0, far(8, (4 << 20) - 4095)), rest],
        vec![(0, far(u32::MAX, u32::MAX)), rest],
    ] {
        assert!(decode_leaf(&encoded(&runs), &LIMITS).is_err(), "{runs:?}");
    }
    // In a hole or a fill, every field except the byte is zero.
    for (kind, index, offset, record_bytes) in
        [(0, 1, 0, 0), (1, 9, 1, 0), (1, 9, 0, 1), (2, 0, 0, 0)]
    {
        let mut bytes = encoded(&[(0, RunContent::Hole)]);
        bytes[2] = index;
        (bytes[4], bytes[8], bytes[12]) = (kind, offset, record_bytes);
        assert!(decode_leaf(&bytes, &LIMITS).is_err(), "{bytes:?}");
    }
}
