//! Goal: segments are allocated once, lowest first; live bytes add up; only empty and unread
//! segments are freed; the victim is the segment with the best benefit over cost.
use super::*;

const BYTES: u32 = 1000;

fn choice(now: u64, gain_bytes_min: u32) -> Choice {
    Choice {
        now: SeqNo(now),
        segment_bytes: BYTES,
        gain_bytes_min,
        room_bytes: u64::MAX,
        frame_blocks: None,
    }
}

fn used(space: &mut Space, live_bytes: u32, age: u64) -> SegmentId {
    let segment = space.allocate(Stream::Host, 1).unwrap();
    space.batch_sealed(segment, SeqNo(age));
    space.add_live(segment, live_bytes);
    space.seal(segment, 0);
    segment
}

#[test]
fn segments_are_handed_out_lowest_first_and_once() {
    let mut space = Space::new(3).unwrap();
    space.occupy(SegmentId(1), Stream::Host, 7).unwrap();
    assert_eq!(space.allocate(Stream::Host, 8), Some(SegmentId(0)));
    space.set_end(2);
    assert_eq!((space.allocate(Stream::Host, 9), space.free_count()), (None, 0), "beyond the end");
    space.set_end(3);
    assert_eq!(space.free_count(), 1);
    assert_eq!(space.allocate(Stream::Moved, 9), Some(SegmentId(2)));
    assert_eq!(space.allocate(Stream::Host, 10), None);
    assert_eq!(space.free_count(), 0);
    let generations = [0, 1, 2, 3].map(|segment| space.generation(SegmentId(segment)));
    assert_eq!(generations, [8, 7, 9, 0]);
    space.seal(SegmentId(1), 0);
    space.free(SegmentId(1));
    assert_eq!(space.free_count(), 1);
    assert_eq!(space.allocate(Stream::Host, 11), Some(SegmentId(1)));
}

#[test]
fn the_host_gets_warm_segments_and_others_cold_ones_of_the_lowest_few() {
    let mut space = Space::new(8).unwrap();
    for warm in [1, 2, 6] {
        space.set_warm(SegmentId(warm));
    }
    assert!(space.is_among_lowest(SegmentId(3)) && !space.is_among_lowest(SegmentId(4)));
    assert_eq!(space.allocate(Stream::Host, 1), Some(SegmentId(1)));
    assert_eq!(space.allocate(Stream::Moved, 2), Some(SegmentId(0)));
    assert_eq!(space.allocate(Stream::Meta, 3), Some(SegmentId(3)));
    assert_eq!((space.warm(), space.free_count()), (&[SegmentId(2), SegmentId(6)][..], 5));
    // Recovery searches the lowest segments for the log.
    space.set_end(6);
    assert_eq!(space.allocate(Stream::Host, 4), Some(SegmentId(2)));
    assert_eq!(space.allocate(Stream::Host, 5), Some(SegmentId(4)));
    space.set_end(8);
    for stream in [Stream::Meta, Stream::Meta, Stream::Meta] {
        assert!(space.allocate(stream, 6).is_some());
    }
    assert_eq!((space.warm(), space.free_count()), (&[][..], 0));
    space.seal(SegmentId(3), 0);
    space.free(SegmentId(3));
    space.set_bad(SegmentId(3));
    space.set_warm(SegmentId(3));
    assert_eq!(space.kept_count(), 0, "a bad segment is never handed out");
}

#[test]
fn held_segments_count_as_free_and_are_not_allocated() {
    let mut space = Space::new(3).unwrap();
    space.set_warm(SegmentId(0));
    space.hold_free(SegmentId(0));
    assert_eq!((space.free_count(), space.available_count(), space.kept_count()), (3, 2, 1));
    assert_eq!(space.allocate(Stream::Host, 1), Some(SegmentId(1)));
    assert_eq!(space.allocate(Stream::Host, 2), Some(SegmentId(2)));
    assert_eq!(space.allocate(Stream::Host, 3), None);
    assert_eq!((space.free_count(), space.available_count()), (1, 0));
    space.end_hold(SegmentId(0));
    assert_eq!((space.kept_count(), space.available_count()), (0, 1));
    assert_eq!(space.allocate(Stream::Moved, 3), Some(SegmentId(0)));
}

#[test]
fn live_bytes_add_up() {
    let mut space = Space::new(2).unwrap();
    space.occupy(SegmentId(0), Stream::Host, 1).unwrap();
    space.add_live(SegmentId(0), 100);
    space.release(SegmentId(0), 40);
    assert_eq!(space.live_bytes(), 60);
    let used = UsedSegment { segment: SegmentId(0), generation: 1, live_bytes: 60 };
    assert_eq!(space.used().collect::<Vec<_>>(), [used]);
    assert_eq!(space.changes(), 1);
    assert!(space.try_add_live(SegmentId(1), 5, BYTES).is_err(), "a free segment");
    assert!(space.try_add_live(SegmentId(2), 5, BYTES).is_err(), "no segment");
    assert!(space.try_add_live(SegmentId(0), BYTES - 59, BYTES).is_err(), "more than there can be");
    assert_eq!(space.live_bytes(), 60);
}

#[test]
fn inconsistent_counts_are_noticed_and_not_applied() {
    let wrong: [fn(&mut Space); 4] = [
        |space| space.release(SegmentId(0), 101),
        |space| space.release(SegmentId(9), 1),
        |space| space.add_live(SegmentId(0), u32::MAX),
        |space| space.add_live(SegmentId(9), 1),
    ];
    for wrong in wrong {
        let mut space = Space::new(1).unwrap();
        space.occupy(SegmentId(0), Stream::Host, 1).unwrap();
        space.add_live(SegmentId(0), 100);
        space.check().unwrap();
        wrong(&mut space);
        assert_eq!(space.check().unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!((space.live_bytes(), space.live_bytes_of(SegmentId(0))), (100, 100));
    }
}

#[test]
fn segments_being_read_are_not_freed() {
    let mut space = Space::new(1).unwrap();
    let segment = used(&mut space, 0, 1);
    space.pin(segment);
    space.free(segment);
    assert!(!space.is_free(segment));
    assert!(space.check().is_err());
}

#[test]
fn a_segment_is_empty_without_live_data_and_readers() {
    let mut space = Space::new(4).unwrap();
    let (live, old, young) =
        (used(&mut space, 1, 1), used(&mut space, 0, 5), used(&mut space, 0, 9));
    assert_eq!(space.empty(SeqNo(9)), [old, young]);
    assert_eq!(space.empty(SeqNo(8)), [old]);
    assert!(space.has_empty_after(SeqNo(8)) && !space.has_empty_after(SeqNo(9)));
    space.pin(old);
    assert!(space.has_empty_in_use());
    assert_eq!(space.empty(SeqNo(9)), [young]);
    space.unpin(old);
    assert_eq!(space.empty(SeqNo(9)), [old, young]);
    space.release(live, 1);
    assert_eq!(space.empty(SeqNo(5)), [live, old]);
}

#[test]
fn recovery_reuses_only_segments_without_live_data() {
    let mut space = Space::new(2).unwrap();
    let segment = used(&mut space, 10, 1);
    assert_eq!(space.occupy(segment, Stream::Host, 9).unwrap_err().kind(), ErrorKind::Corrupt);
    space.release(segment, 10);
    space.occupy(segment, Stream::Host, 9).unwrap();
    space.occupy(segment, Stream::Host, 9).unwrap();
    assert!(space.occupy(segment, Stream::Host, 10).is_err());
    assert!(space.occupy(segment, Stream::Meta, 9).is_err());
    assert!(space.occupy(SegmentId(2), Stream::Host, 9).is_err());
    assert_eq!(space.free_count(), 1);
}

#[test]
fn a_table_comes_back_without_metadata() {
    let mut space = Space::new(4).unwrap();
    used(&mut space, 10, 3);
    let meta = space.allocate(Stream::Meta, 5).unwrap();
    space.add_live(meta, 77);
    let table = space.table();
    let mut restored = Space::new(4).unwrap();
    for (number, entry) in table.iter().enumerate() {
        let segment = SegmentId(u32::try_from(number).unwrap());
        restored.restore(segment, entry, segment == meta).unwrap();
    }
    assert_eq!(restored.live_bytes(), 10);
    assert_eq!(restored.free_count(), 2);
    restored.add_live(meta, 77);
    assert_eq!(restored.table(), table);
    assert!(restored.restore(SegmentId(4), &table[0], false).is_err());
}

#[test]
fn the_victim_pays_best() {
    let mut space = Space::new(8).unwrap();
    let full = used(&mut space, BYTES, 1);
    let half = used(&mut space, 500, 90);
    assert_eq!(space.victim(&choice(100, 1)), Some(half));
    // Also empty, but older: dead data there stays dead longer.
    let old = used(&mut space, 500, 10);
    assert_eq!(space.victim(&choice(100, 1)), Some(old));
    let emptier = used(&mut space, 100, 10);
    assert_eq!(space.victim(&choice(100, 1)), Some(emptier));
    assert_eq!(space.victim(&choice(100, 901)), None, "too little to gain");
    space.set_stuck(emptier);
    assert_eq!(space.victim(&choice(100, 1)), Some(old));
    // A segment that must be emptied is emptied, whatever its gain.
    space.set_end(full.0);
    assert_eq!(space.going_count(), 4);
    assert_eq!(space.evacuee(), Some(full));
}

#[test]
fn an_end_that_nothing_fits_into_is_no_gain() {
    let mut space = Space::new(1).unwrap();
    let short = space.allocate(Stream::Moved, 1).unwrap();
    space.add_live(short, BYTES - 200);
    space.seal(short, 190);
    assert_eq!(space.victim(&choice(9, 10)), Some(short));
    assert_eq!(space.victim(&choice(9, 11)), None);
}

#[test]
fn dead_blocks_moved_along_are_no_gain_and_need_space() {
    let mut space = Space::new(1).unwrap();
    let segment = space.allocate(Stream::Moved, 1).unwrap();
    space.add_live(segment, 400);
    space.add_burden(segment, 400);
    space.seal(segment, 0);
    assert_eq!(space.victim(&choice(9, 200)), Some(segment));
    assert_eq!(space.victim(&choice(9, 201)), None);
    assert_eq!(space.victim(&Choice { room_bytes: 799, ..choice(9, 1) }), None, "no room");
    assert_eq!(space.gainable_bytes(BYTES, 200), 200);
    assert_eq!(space.gainable_bytes(BYTES, 201), 0);
    // When half of it has died, half of its burden is assumed to be gone.
    space.release(segment, 200);
    assert_eq!(space.victim(&choice(9, 600)), Some(segment));
    assert_eq!(space.victim(&choice(9, 601)), None);
}

/// Guards against a full drive that refuses writes although all dead data was carried along.
#[test]
fn dead_blocks_moved_along_may_disappear_with_their_frame() {
    let mut space = Space::new(1).unwrap();
    let segment = space.allocate(Stream::Moved, 1).unwrap();
    space.add_live(segment, 600);
    space.add_burden(segment, 390);
    space.seal(segment, 0);
    let hoped = |bytes| Choice { frame_blocks: Some(8), ..choice(9, bytes) };
    assert_eq!(space.victim(&hoped(11)), None, "nothing has died");
    space.release(segment, 20);
    assert_eq!(space.victim(&choice(9, 50)), None);
    assert_eq!(space.victim(&hoped(10 + 20 + 140)), Some(segment));
    assert_eq!(space.victim(&hoped(10 + 20 + 141)), None);
}

/// On a drive with very many segments each part of them has its turn.
#[test]
fn a_victim_is_found_wherever_it_is() {
    let mut space = Space::new(0).unwrap();
    space.grow(3 << 16).unwrap();
    let number = SegmentId((2 << 16) + 5);
    space.occupy(number, Stream::Host, 1).unwrap();
    space.add_live(number, 500);
    space.seal(number, 0);
    for now in 0..7 {
        assert_eq!(space.victim(&choice(now, 500)), Some(number));
        assert_eq!(space.victim(&choice(now, 501)), None);
    }
}

#[test]
fn stuck_segments_are_retried_after_more_and_more_checkpoints() {
    let mut space = Space::new(1).unwrap();
    let segment = used(&mut space, 100, 1);
    for rest in [2, 4, 8] {
        space.set_stuck(segment);
        for _ in 0..rest {
            assert_eq!(space.victim(&choice(9, 1)), None);
            space.let_stuck_rest();
        }
        assert_eq!(space.victim(&choice(9, 1)), Some(segment));
    }
}

#[test]
fn a_table_too_large_for_memory_is_refused() {
    let mut space = Space::new(0).unwrap();
    assert!(space.grow(1000).is_ok());
    assert_eq!(space.free_count(), 0, "nothing is used before the end is set");
    space.set_end(1000);
    assert_eq!(space.free_count(), 1000);
    space.shrink(10);
    assert_eq!((space.free_count(), space.segment_count()), (10, 10));
}
