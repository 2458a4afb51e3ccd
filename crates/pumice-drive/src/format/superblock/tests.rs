//! Goal: round trip; every damaged bit is detected; a newer format is not mistaken for damage.
use super::*;

fn sample() -> Superblock {
    Superblock {
        uuid: Uuid::from_u128(0x1234_5678_9abc_def0_1122_3344_5566_7788),
        revision: 3,
        epoch: 2,
        clean: true,
        incomplete: false,
        size_bytes: 64 << 30,
        segment_bytes: 32 << 20,
        segment_count: 2300,
        data_offset: 2 << 20,
        created_seconds: 1_700_000_000,
        frame_blocks: 8,
        codec: 2,
        codec_level: -1,
        watermark: SeqNo(99),
        watermark_checksum: 0xfeed,
        checkpoint: Some(CheckpointAddress {
            address: RecordAddress { generation: 7, segment: SegmentId(2299), offset: 8192 },
            record_bytes: 160,
            payload_checksum: 0xbeef,
        }),
        warn_percent: [70, 80, 90, 0],
        is_preallocated: true,
        has_chunks: true,
        has_snapshots: true,
        receiving: Some(Receiving {
            snapshot: Uuid::from_u128(77),
            base: Some(Uuid::from_u128(66)),
            offset: 5 << 20,
        }),
        origin: Some(Origin {
            drive: Uuid::from_u128(88),
            snapshot: Uuid::from_u128(99),
            watermark: SeqNo(1234),
            blocks: 4096,
            path: "/vm/template.pumice".into(),
        }),
        flat_since: SeqNo(97),
        keys: None,
        has_clones: true,
        is_array: true,
        bad_segments: vec![SegmentId(7), SegmentId(0)],
        detours: [(98, Stream::Host), (99, Stream::Meta)]
            .map(|(seq, stream)| Detour {
                seq: SeqNo(seq),
                generation: 5 << 32,
                segment: SegmentId(8),
                stream,
            })
            .to_vec(),
    }
}

/// Returns a superblock without fields that require a feature, except for its frames.
fn bare() -> Superblock {
    let (receiving, origin, has_clones, is_array) = (None, None, false, false);
    let flat_since = SeqNo(0);
    Superblock { receiving, origin, flat_since, has_clones, is_array, ..sample() }
}

fn resealed(change: impl FnOnce(&mut Layout)) -> Vec<u8> {
    let mut layout = Layout::read_from_bytes(&sample().encode()).unwrap();
    change(&mut layout);
    layout.checksum = 0.into();
    layout.checksum = crc64(layout.as_bytes()).into();
    layout.as_bytes().to_vec()
}

/// A program that does not support the encoding of such frames would report them as damaged.
#[test]
fn a_drive_of_chunks_needs_a_program_that_knows_them() {
    for (has_chunks, bits) in [(false, 0), (true, 3)] {
        let superblock = Superblock { has_chunks, has_snapshots: false, ..bare() };
        let layout = Layout::read_from_bytes(&superblock.encode()).unwrap();
        assert_eq!(layout.features_incompatible.get(), bits);
        assert_eq!(layout.features_compatible.get(), PREALLOCATED);
    }
    // Features of a program without support for tables, and features of no program.
    let known = (CHUNKS | RECEIVING | CLONE).into();
    let known = resealed(|layout| layout.features_incompatible = known);
    assert!(Superblock::decode(&known).unwrap().has_chunks);
    let none = (CHUNK_TABLES | RECEIVING | CLONE).into();
    let none = resealed(|layout| layout.features_incompatible = none);
    assert_eq!(Superblock::decode(&none).unwrap_err().kind(), ErrorKind::Corrupt);
}

/// A program that does not support snapshots would free segments that they need.
#[test]
fn a_drive_with_snapshots_needs_a_program_that_knows_them() {
    for (has_snapshots, bits) in [(false, 3), (true, 7)] {
        let superblock = Superblock { has_snapshots, ..bare() };
        let layout = Layout::read_from_bytes(&superblock.encode()).unwrap();
        assert_eq!(layout.features_incompatible.get(), bits);
    }
    for (bits, is_possible) in [(28, true), (29, true), (31, true), (30, false), (23, false)] {
        let bytes = resealed(|layout| layout.features_incompatible = bits.into());
        let decoded = Superblock::decode(&bytes);
        assert_eq!(decoded.is_ok_and(|found| found.has_snapshots), is_possible, "{bits}");
    }
}

#[test]
fn round_trip() {
    for (clean, incomplete) in [(true, false), (false, false), (false, true)] {
        let superblock = Superblock { clean, incomplete, ..sample() };
        assert_eq!(Superblock::decode(&superblock.encode()).unwrap(), superblock);
    }
    let all = Receiving { base: None, ..sample().receiving.unwrap() };
    for receiving in [None, Some(all)] {
        let superblock = Superblock { receiving, ..sample() };
        assert_eq!(Superblock::decode(&superblock.encode()).unwrap(), superblock);
    }
    let longest = Origin { path: "x".repeat(ORIGIN_PATH_MAX), ..sample().origin.unwrap() };
    for (origin, flat_since) in [(None, 0), (Some(longest), 0), (sample().origin, u64::MAX)] {
        let flat_since = SeqNo(flat_since);
        let superblock = Superblock { origin, flat_since, ..sample() };
        assert_eq!(Superblock::decode(&superblock.encode()).unwrap(), superblock);
    }
}

/// A program that does not support clones would read zeroes, or move frames that clones need.
#[test]
fn clones_and_their_origins_need_a_program_that_knows_them() {
    assert!(Superblock { flat_since: SeqNo(1), ..bare() }.impossible().is_some());
    for (superblock, bits) in [
        (bare(), 7),
        (Superblock { has_clones: true, ..bare() }, 39),
        (Superblock { origin: sample().origin, ..bare() }, 23),
    ] {
        let layout = Layout::read_from_bytes(&superblock.encode()).unwrap();
        assert_eq!(layout.features_incompatible.get(), bits);
    }
}

#[test]
fn every_flipped_bit_and_every_truncation_is_noticed() {
    let good = sample().encode();
    for bit in (0..512).chain((512..good.len() * 8).step_by(97)) {
        let mut bytes = good;
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Superblock::decode(&bytes).is_err(), "bit {bit}");
    }
    for len in [0, 1, 8, 24, 4095] {
        assert!(Superblock::decode(&good[..len]).is_err(), "{len} bytes");
    }
}

#[test]
fn newer_is_told_from_damaged_and_foreign() {
    let kind = |bytes: &[u8]| Superblock::decode(bytes).unwrap_err().kind();
    assert_eq!(kind(&[0; 4096]), ErrorKind::NotADrive);
    let newer: [fn(&mut Layout); 4] = [
        |layout| layout.version = 2.into(),
        |layout| layout.length = 8192.into(),
        |layout| layout.features_incompatible = 256.into(),
        |layout| layout.features_read_only = 4.into(),
    ];
    for (index, change) in newer.into_iter().enumerate() {
        assert_eq!(kind(&resealed(change)), ErrorKind::Unsupported, "change {index}");
    }
    let reserved = resealed(|layout| layout.reserved[7] = 1);
    assert_eq!(kind(&reserved), ErrorKind::Corrupt);
    assert!(Superblock::decode(&resealed(|layout| layout.features_compatible = 3.into())).is_ok());
}

#[test]
fn impossible_values_are_refused_though_the_checksum_is_right() {
    let changes: [fn(&mut Layout); 36] = [
        |layout| layout.version = 0.into(),
        // For chunks.
        |layout| layout.frame_blocks = 16.into(),
        |layout| layout.state = 3.into(),
        |layout| layout.size_bytes = 0.into(),
        |layout| layout.size_bytes = 4097.into(),
        |layout| layout.size_bytes = (1 << 55).into(),
        |layout| layout.segment_bytes = 4096.into(),
        |layout| layout.segment_bytes = ((32 << 20) + 512).into(),
        |layout| layout.segment_count = 0.into(),
        |layout| layout.segment_count = ((1 << 26) + 1).into(),
        |layout| layout.data_offset = 0.into(),
        |layout| layout.data_offset = ((2 << 20) + 512).into(),
        |layout| layout.data_offset = (1 << 41).into(),
        |layout| layout.frame_blocks = 0.into(),
        |layout| layout.frame_blocks = 3.into(),
        |layout| layout.frame_blocks = 65.into(),
        |layout| layout.frame_blocks = 128.into(),
        |layout| layout.codec = 3.into(),
        |layout| layout.bad_count = 129.into(),
        |layout| layout.bad_segments[1] = 2300.into(),
        |layout| layout.detour_count = 17.into(),
        |layout| layout.detour_count = u32::MAX.into(),
        |layout| layout.detour_segments[0] = 2300.into(),
        |layout| layout.detour_streams[1] = 3,
        |layout| layout.detour_seqs[0] = 100.into(),
        |layout| layout.bad_segments[2] = 1.into(),
        |layout| layout.detour_generations[2] = 1.into(),
        |layout| layout.receiving_snapshot = [0; 16],
        |layout| layout.receiving_offset = (1 << 55).into(),
        |layout| layout.origin_drive = [0; 16],
        |layout| layout.origin_blocks = ((64 << 30) / 4096 + 1).into(),
        |layout| layout.origin_path_bytes = 1025.into(),
        |layout| layout.origin_path_bytes = 3.into(),
        |layout| layout.origin_path[0] = 0xff,
        // For a drive that is not a clone.
        |layout| layout.features_incompatible = 47.into(),
        |layout| layout.origin_path[1023] = 1,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let error = Superblock::decode(&resealed(change)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "change {index}");
    }
    let most = resealed(|layout| layout.segment_count = (1 << 26).into());
    assert_eq!(Superblock::decode(&most).unwrap().segment_count, 1 << 26);
}
