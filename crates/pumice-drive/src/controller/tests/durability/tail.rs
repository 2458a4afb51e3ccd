//! Goal: the end of the log survives a medium that once reads wrong bytes, has sectors that cannot
//! be read or written, or has no space for a while. Data that was flushed at least a second before
//! the end is never cut off silently. Method: faults of the layer at the tail of the log, with the
//! drive killed and reopened.

use super::*;
use crate::base::seed::random;
use crate::controller::core::SEGMENTS_MIN;
use crate::controller::tests::integrity::damage::batches;
use crate::media::layer::{BadRange, Region, Trigger};

const SIZE: u64 = 4 << 20;

fn read_only() -> OpenOptions {
    OpenOptions { read_only: true, ..OpenOptions::default() }
}

/// Opens the drive on a medium with bad ranges.
pub(crate) fn open_with(
    world: &World,
    bad: &[BadRange],
    options: OpenOptions,
) -> (Rc<TestMedium>, Result<Rc<Drive>>) {
    let medium = world.medium();
    for range in bad {
        medium.add_bad_range(range.clone());
    }
    let opened = world.run(Drive::open(medium.clone(), world.runtime.clock(), options));
    (medium, opened)
}

/// Returns a killed drive whose first 64 KiB hold `old`, durable and vouched for, and then `new`,
/// in the last batch. Returns that batch's location as well.
fn overwritten(is_flushed: bool, idle_seconds: u64) -> (World, [Vec<u8>; 2], (u32, u32, u32)) {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    let [old, new] = [1, 2].map(|seed| payload::noise(&mut random(seed), 64 << 10));
    world.run(drive.write_durable(0, &old)).unwrap();
    let drive = world.reopen(drive);
    world.write(&drive, 0, &new).unwrap();
    if is_flushed {
        world.run(drive.flush()).unwrap();
    } else {
        drive.with_core(|core| core.seal(Stream::Host));
        world.run(world.runtime.sleep_ns(1_000_000));
    }
    let (tail, seq) = {
        let core = drive.core();
        (core.log().tail(Stream::Host).unwrap(), core.log().sealed_seq())
    };
    world.run(world.runtime.sleep_ns(idle_seconds * 1_000_000_000));
    world.kill(drive);
    let found = batches(&world, tail.segment.0);
    let last = found.iter().find(|batch| batch.seq == seq).unwrap();
    let place = (tail.segment.0, last.offset, last.batch_bytes() as u32);
    (world, [old, new], place)
}

/// One read of an opening returns one wrong bit, on a drive whose last flush nothing vouches for.
#[test]
fn a_bit_that_is_read_wrong_once_hides_nothing() {
    let (mut world, [_, new], _) = overwritten(true, 0);
    let mut opened = 0;
    for nth in 1..=20 {
        // Most bits of a long read do not belong to the log.
        for seed in 0..60 {
            world.seed = seed;
            world.plan = FaultPlan { read_corruptions: Trigger::Nth(nth), ..Default::default() };
            let Ok(drive) = world.try_open(read_only()) else { continue };
            opened += 1;
            assert_eq!(drive.info().operations.cut_batches, 0);
            drive.layers().set_plan(FaultPlan::default());
            let read = world.read(&drive, 0, new.len()).unwrap();
            assert!(read == new, "read {nth}, seed {seed}: what was flushed is gone");
            world.kill(drive);
        }
    }
    assert!(opened > 600, "{opened}: too tame a test");
}

#[test]
fn damage_to_data_flushed_a_second_ago_is_no_torn_tail() {
    for at in [20, 128 + 9, 30_000] {
        let (world, [_, new], (segment, offset, _)) = overwritten(true, 2);
        world.flip_for_good(segment, offset + at);
        match world.try_open(OpenOptions::default()) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}"),
            Ok(drive) => {
                let read = world.read(&drive, 0, new.len());
                assert_eq!(kind(read), Some(ErrorKind::Corrupt), "byte {at}");
            }
        }
    }
}

/// After a flush that is followed by no other batch, one batch of 4 KiB vouches for it; then
/// nothing more is written.
#[test]
fn an_idle_drive_writes_one_batch_and_no_more() {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    let sleep = |seconds: u64| world.run(world.runtime.sleep_ns(seconds * 1_000_000_000));
    let counts = || drive.layers().inner().counts();
    sleep(3);
    assert_eq!(counts().appends, 0, "nothing to vouch for");
    for round in 1..=3 {
        world.run(drive.write_durable(0, &[7; 5000])).unwrap();
        let (before, info) = (counts(), drive.info());
        assert!(info.watermark == info.sequence, "round {round}");
        sleep(2);
        let used = counts() - before;
        assert_eq!((used.appends, used.append_bytes, used.syncs), (1, 4096, 1), "round {round}");
        assert_eq!(drive.info().sequence, info.sequence + 1);
        sleep(60);
        assert_eq!(counts() - before, used, "an idle drive writes");
    }
    world.write(&drive, 8192, &[8; 5000]).unwrap();
    let drive = world.reopen(drive);
    assert_accounting(&drive);
    assert_eq!(world.read(&drive, 0, 5000).unwrap(), [7; 5000]);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Parity restores the host's last write from the last batch, torn or damaged.
#[test]
fn a_last_batch_with_an_unreadable_page_is_completed() {
    for heals in [true, false] {
        for part in [0..512, 4096..4608, 65_536..69_632] {
            let (world, [_, new], (segment, offset, _)) = overwritten(true, 0);
            let range = offset + part.start..offset + part.end;
            let region = Region::Segment(SegmentId(segment));
            let bad = BadRange { heals, ..BadRange::unreadable(region, range) };
            let (_, opened) = open_with(&world, std::slice::from_ref(&bad), read_only());
            let drive = opened.unwrap();
            assert!(world.read(&drive, 0, new.len()).unwrap() == new, "{part:?}");
            assert_eq!(drive.info().operations.cut_batches, 0);
            world.kill(drive);
            let (medium, opened) = open_with(&world, &[bad], OpenOptions::default());
            let drive = opened.unwrap();
            world.run(drive.write_durable(1 << 20, &new)).unwrap();
            world.kill(drive);
            let bad = medium.bad_ranges();
            assert_eq!(bad.is_empty(), heals, "{part:?}");
            let (_, opened) = open_with(&world, &bad, OpenOptions::default());
            let drive = opened.unwrap();
            for offset in [0, 1 << 20] {
                assert!(world.read(&drive, offset, new.len()).unwrap() == new, "{part:?}");
            }
            world.kill(drive);
        }
    }
}

/// Sectors whose write was interrupted by a power loss cannot be read until they are rewritten.
#[test]
fn a_torn_tail_that_cannot_be_read_is_cut() {
    for heals in [true, false] {
        for part in [0..8192, 4096..12_288, 0..69_632] {
            let (world, [old, _], (segment, offset, _)) = overwritten(false, 0);
            let range = offset + part.start..offset + part.end;
            let region = Region::Segment(SegmentId(segment));
            let bad = BadRange { heals, ..BadRange::unreadable(region, range) };
            let (_, opened) = open_with(&world, std::slice::from_ref(&bad), read_only());
            let drive = opened.unwrap();
            assert!(world.read(&drive, 0, old.len()).unwrap() == old);
            let cut = drive.info().operations;
            let unreadable_bytes = u64::from(part.end.div_ceil(4096) - part.start / 4096) * 4096;
            assert_eq!(cut.cut_unreadable_bytes, unreadable_bytes);
            // The record headers reveal the batch too.
            assert_eq!(cut.cut_batches, u64::from(part.end < 69_632));
            world.kill(drive);
            let (medium, opened) = open_with(&world, &[bad], OpenOptions::default());
            let drive = opened.unwrap();
            assert!(world.read(&drive, 0, old.len()).unwrap() == old);
            let data = payload::noise(&mut random(9), 200 << 10);
            world.run(drive.write_durable(1 << 20, &data)).unwrap();
            world.kill(drive);
            let bad = medium.bad_ranges();
            assert_eq!(bad.is_empty(), heals);
            let named = world.run(superblocks::load(&world.memory)).unwrap().stored.superblock;
            let expected: &[_] = if heals { &[] } else { &[SegmentId(segment)] };
            assert_eq!(named.bad_segments, expected);
            let (_, opened) = open_with(&world, &bad, OpenOptions::default());
            let drive = opened.unwrap();
            assert!(world.read(&drive, 0, old.len()).unwrap() == old);
            assert!(world.read(&drive, 1 << 20, data.len()).unwrap() == data);
            // An empty bad segment is freed after a checkpoint.
            world.run(world.runtime.sleep_ns(1_000_000_000));
            assert_accounting(&drive);
            world.close(drive);
        }
    }
}

/// A durable batch that cannot be read is never cut: the opening fails with advice.
#[test]
fn a_durable_tail_that_cannot_be_read_is_refused() {
    let (world, _, (segment, offset, _)) = overwritten(true, 2);
    let region = Region::Segment(SegmentId(segment));
    // Two pages are damaged, and parity restores only one.
    let bad = [BadRange::unreadable(region, offset..offset + 8192)];
    let (_, opened) = open_with(&world, &bad, OpenOptions::default());
    let error = opened.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Medium, "{}", error.chain());
    assert!(error.chain().contains("rebuild the drive"), "{}", error.chain());
    // The batch can be read again, so nothing was lost.
    world.close(world.open());
}

/// A medium that cannot be read at all does not count as a torn tail.
#[test]
fn a_medium_that_cannot_be_read_is_refused() {
    let (world, [_, new], (segment, offset, _)) = overwritten(false, 0);
    let bad = BadRange::unreadable(Region::Segment(SegmentId(segment)), offset..SEGMENT_BYTES);
    let (_, opened) = open_with(&world, &[bad], OpenOptions::default());
    let error = opened.err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Medium);
    assert!(error.chain().contains("cannot find the end of the log"), "{}", error.chain());
    let drive = world.open();
    assert!(world.read(&drive, 0, new.len()).unwrap() == new);
}

/// A sector that cannot be written affects one life of the drive, not every one.
#[test]
fn a_place_that_cannot_be_written_is_left() {
    for is_empty in [false, true] {
        let world = World::new(small(SIZE, 4));
        let mut bad = Vec::new();
        let mut kept = Vec::new();
        let mut poisoned = 0;
        for life in 0..6_u64 {
            let (medium, opened) = open_with(&world, &bad, OpenOptions::default());
            let drive = opened.unwrap();
            let data = payload::noise(&mut random(life), 64 << 10);
            if life == u64::from(!is_empty) {
                let tail = drive.core().log().tail(Stream::Host);
                let (segment, used) = tail.map_or((0, 0), |tail| (tail.segment.0, tail.used));
                let region = Region::Segment(SegmentId(segment));
                let range = BadRange::dead(region, used..used + 4096);
                medium.add_bad_range(BadRange { fails_reads: false, ..range });
            }
            let written = world.run(drive.write_durable(life << 16, &data));
            match written {
                Ok(()) => kept.push((life << 16, data)),
                Err(_) => poisoned += 1,
            }
            world.run(world.runtime.sleep_ns(3_000_000_000));
            for (at, data) in &kept {
                assert!(world.read(&drive, *at, data.len()).unwrap() == *data, "life {life}");
            }
            if life % 2 == 0 {
                drop(world.run(drive.close()));
            }
            world.kill(drive);
            bad = medium.bad_ranges();
        }
        assert_eq!(poisoned, 1, "the drive fails in every life");
        assert_eq!(kept.len(), 5);
    }
}

/// The smallest drive still accepts writes and overwrites if one segment cannot be written.
#[test]
fn the_smallest_drive_can_do_without_a_segment() {
    let capacity = u64::from(SEGMENTS_MIN) * u64::from(SEGMENT_BYTES);
    let spec = Spec { capacity_bytes: Some(capacity), ..small(SIZE, 0) };
    let world = World::new(spec);
    let drive = world.open();
    let noise = payload::noise(&mut random(1), 1 << 20);
    world.run(drive.write_durable(0, &noise)).unwrap();
    let tail = drive.core().log().tail(Stream::Host).unwrap();
    let region = Region::Segment(tail.segment);
    drive.layers().add_bad_range(BadRange::dead(region, tail.used..tail.used + 4096));
    assert!(world.run(drive.write_durable(0, &noise)).is_err());
    world.run(world.runtime.sleep_ns(3_000_000_000));
    let bad = drive.layers().bad_ranges();
    world.kill(drive);
    let (_, opened) = open_with(&world, &bad, OpenOptions::default());
    let drive = opened.unwrap();
    assert_eq!(drive.info().bad_segments, [tail.segment.0]);
    for number in 0..40 {
        let written = world.run(drive.write_durable((number % 2) << 20, &noise));
        assert_eq!(kind(written), None, "write {number}");
    }
    world.close(drive);
}

/// The file system below a sparse file is full for a while.
#[test]
fn a_full_host_is_waited_for() {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    let [old, new, more] = [1, 2, 3].map(|seed| payload::noise(&mut random(seed), 64 << 10));
    world.run(drive.write_durable(0, &old)).unwrap();
    world.run(world.runtime.sleep_ns(3_000_000_000));
    let no_space_errors = Trigger::Probability(1.0);
    drive.layers().set_plan(FaultPlan { no_space_errors, ..Default::default() });
    world.write(&drive, 0, &new).unwrap();
    assert_eq!(kind(world.run(drive.flush())), Some(ErrorKind::NoSpace));
    for _ in 0..3 {
        world.run(world.runtime.sleep_ns(2_500_000_000));
        assert_eq!(kind(world.write(&drive, 1 << 20, &more)), Some(ErrorKind::NoSpace));
        assert_eq!(kind(world.run(drive.flush())), Some(ErrorKind::NoSpace));
        assert!(world.read(&drive, 0, new.len()).unwrap() == new);
        assert!(drive.info().medium_full);
    }
    drive.layers().set_plan(FaultPlan::default());
    world.run(world.runtime.sleep_ns(2_500_000_000));
    assert!(!drive.info().medium_full);
    world.write(&drive, 1 << 20, &more).unwrap();
    world.run(drive.flush()).unwrap();
    world.run(drive.layers().crash()).unwrap();
    world.kill(drive);
    let drive = world.open();
    assert!(world.read(&drive, 0, new.len()).unwrap() == new);
    assert!(world.read(&drive, 1 << 20, more.len()).unwrap() == more);
    assert_accounting(&drive);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// A drive that is closed, or dies, while its host is full keeps flushed data.
#[test]
fn a_drive_is_closed_while_its_host_is_full() {
    for is_closed in [true, false] {
        let world = World::new(small(64 << 20, 24));
        let drive = world.open();
        let [old, new] = [1, 2].map(|seed| payload::noise(&mut random(seed), 1 << 20));
        world.run(drive.write_durable(0, &old)).unwrap();
        let no_space_errors = Trigger::Probability(1.0);
        drive.layers().set_plan(FaultPlan { no_space_errors, ..Default::default() });
        let mut acknowledged = 0;
        while world.write(&drive, (acknowledged % 24) << 20, &new).is_ok() {
            acknowledged += 1;
            assert!(acknowledged < 40, "more is acknowledged than fits in memory");
        }
        assert!(acknowledged > 0);
        assert!(world.read(&drive, 0, new.len()).unwrap() == new);
        if is_closed {
            assert_eq!(kind(world.run(drive.close())), Some(ErrorKind::NoSpace));
        }
        world.kill(drive);
        let drive = world.open();
        let read = world.read(&drive, 0, old.len()).unwrap();
        assert!(read == old || read == new);
        world.run(drive.write_durable(0, &new)).unwrap();
        world.close(drive);
        assert_eq!(world.check().problems, []);
    }
}

/// The file system writes each block to a new location, and has none for a superblock. Guards
/// against a drive that accepts no more writes until it is reopened, although nothing was lost.
#[test]
fn a_host_that_is_full_for_a_superblock_is_waited_for() {
    for is_closed in [false, true] {
        let world = World::new(small(SIZE, 4));
        let drive = world.open();
        let [old, new] = [1, 2].map(|seed| payload::noise(&mut random(seed), 64 << 10));
        world.run(drive.write_durable(0, &old)).unwrap();
        world.run(drive.checkpoint()).unwrap();
        world.run(drive.write_durable(0, &new)).unwrap();
        let superblock_no_space_errors = Trigger::Probability(1.0);
        drive.layers().set_plan(FaultPlan { superblock_no_space_errors, ..Default::default() });
        let ended = Rc::new(Cell::new(None));
        let (held, end) = (drive.clone(), ended.clone());
        world.runtime.spawn(async move { end.set(Some(kind(held.checkpoint().await))) });
        for _ in 0..4 {
            world.run(world.runtime.sleep_ns(2_500_000_000));
            assert_eq!(ended.get(), None, "a checkpoint that no superblock names");
            assert_eq!(kind(world.write(&drive, 1 << 20, &old)), Some(ErrorKind::NoSpace));
            assert!(drive.info().medium_full);
            assert!(world.read(&drive, 0, new.len()).unwrap() == new);
            // A partly failed write may have torn the slot; the other slot still counts.
            let copy = world.copy();
            let drive = copy.open();
            assert!(copy.read(&drive, 0, new.len()).unwrap() == new);
            assert_accounting(&drive);
            copy.close(drive);
        }
        if is_closed {
            assert_eq!(kind(world.run(drive.close())), Some(ErrorKind::NoSpace));
            assert_eq!(ended.get(), Some(Some(ErrorKind::NoSpace)));
            world.kill(drive);
        } else {
            drive.layers().set_plan(FaultPlan::default());
            world.run(world.runtime.sleep_ns(2_500_000_000));
            assert_eq!((ended.get(), drive.info().medium_full), (Some(None), false));
            world.run(drive.write_durable(1 << 20, &old)).unwrap();
            world.close(drive);
        }
        let drive = world.open();
        assert!(world.read(&drive, 0, new.len()).unwrap() == new);
        world.close(drive);
        assert_eq!(world.check().problems, []);
    }
}

/// Guards against a drive that never closes: a stream waits for a free buffer to leave its segment,
/// and no buffer becomes free while the host is full.
#[test]
fn a_drive_that_gives_space_back_is_closed_while_its_host_is_full() {
    let mut world = World::new(Spec { segment_bytes: 32 << 20, ..small(64 << 20, 240) });
    world.plan.latency_ns = 1_000_000..=1_000_000;
    let drive = world.open();
    let data = payload::noise(&mut random(1), 64 << 10);
    for _ in 0..200 {
        world.write(&drive, 0, &data).unwrap();
    }
    world.run(drive.flush()).unwrap();
    let no_space_errors = Trigger::Probability(1.0);
    let plan = FaultPlan { no_space_errors, ..world.plan.clone() };
    drive.layers().set_plan(plan);
    for number in 1..=6_u64 {
        let held = drive.clone();
        let data = payload::noise(&mut random(number), 1 << 20);
        world.runtime.spawn(async move {
            drop(held.write(number << 20, &data).await);
        });
    }
    world.run(world.runtime.sleep_ns(10_000_000_000));
    let closing = world.runtime.timeout(60_000_000_000, drive.close());
    let closed = world.run(closing).expect("the drive never closes");
    assert_eq!(kind(closed), Some(ErrorKind::NoSpace));
    world.kill(drive);
}

/// Unreadable bytes beyond the end of a closed log were never written, however many there are.
#[test]
fn a_closed_drive_reads_no_unwritten_bytes() {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    let data = payload::noise(&mut random(1), 64 << 10);
    world.run(drive.write_durable(0, &data)).unwrap();
    let tail = drive.core().log().tail(Stream::Host).unwrap();
    world.close(drive);
    let region = Region::Segment(tail.segment);
    let bad = [BadRange::unreadable(region, tail.used + (64 << 10)..SEGMENT_BYTES)];
    for options in [read_only(), OpenOptions::default()] {
        let (_, opened) = open_with(&world, &bad, options);
        let drive = opened.unwrap();
        assert!(world.read(&drive, 0, data.len()).unwrap() == data);
        assert_eq!(drive.info().operations.cut_batches, 0);
        world.kill(drive);
    }
}

/// Includes the first write to a segment. Without it, the segment's header is missing and no other
/// segment refers to it.
#[test]
fn a_write_that_never_arrived_is_noticed_if_a_later_one_did() {
    let data = |number: u64| payload::noise(&mut random(number), 1 << 20);
    let mut refused = 0;
    // The first two writes are of superblocks.
    for (count, nth) in (2..=6).flat_map(|count| (3..=count + 2).map(move |nth| (count, nth))) {
        let mut world = World::new(small(16 << 20, 8));
        world.plan = FaultPlan { lost_writes: Trigger::Nth(nth), ..FaultPlan::default() };
        let drive = world.open();
        for number in 0..count {
            world.run(drive.write_durable(number << 20, &data(number))).unwrap();
        }
        world.run(drive.write_durable(count << 20, &[1; BLOCK_BYTES])).unwrap();
        world.kill(drive);
        world.plan = FaultPlan::default();
        match world.try_open(OpenOptions::default()) {
            Ok(drive) => {
                for number in 0..count {
                    let read = world.read(&drive, number << 20, 1 << 20);
                    let is_right = read.as_ref().is_ok_and(|read| *read == data(number));
                    assert!(is_right || read.is_err(), "write {nth} of {count}: {number} is older");
                }
                world.kill(drive);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "write {nth} of {count}");
                refused += 1;
            }
        }
    }
    assert!(refused > 10, "{refused}: too tame a test");
}
