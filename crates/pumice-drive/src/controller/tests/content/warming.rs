//! Goal: while the host flushes often, a few freed segments retain their content and are reused,
//! preferably by the host; the old content is never mistaken for that of the next use. Once the
//! host no longer flushes, when the medium is full, and during a close, these segments are returned
//! to the medium. A segment being discarded or zeroed is not allocated, causes no refused write,
//! and delays nothing. Method: a disk is overwritten until garbage collection has freed segments
//! several times.

use rand::RngExt;

use super::*;
use crate::base::seed::random;
use crate::controller::core::Purpose;
use crate::controller::log::Fit;
use crate::controller::log::segment_scan::SegmentScan;
use crate::format::BatchHeader;
use crate::media::layer::{BadRange, Counts, Region, Trigger};

const SIZE: u64 = 8 << 20;
const PIECE: usize = 16 << 10;
const SECOND_NS: u64 = 1_000_000_000;

/// Overwrites random pieces of the disk, `plain`, 500 per second, and flushes if `flushes`.
fn overwrite(world: &World, drive: &Drive, plain: &mut [u8], pieces: u64, flushes: bool) {
    for _ in 0..pieces {
        let mut random = random(world.seed << 32 | drive.info().operations.writes);
        let at = random.random_range(0..plain.len() / PIECE) * PIECE;
        let data = payload::noise(&mut random, PIECE);
        world.write(drive, at as u64, &data).unwrap();
        plain[at..at + PIECE].copy_from_slice(&data);
        if flushes {
            world.run(drive.flush()).unwrap();
        }
        // Garbage collection gets a turn.
        world.run(world.runtime.sleep_ns(2_000_000));
    }
}

/// Overwrites and flushes until a segment is warm and `is_wanted`.
fn overwrite_until(
    world: &World,
    drive: &Drive,
    plain: &mut [u8],
    is_wanted: impl Fn(&Core) -> bool,
) {
    for _ in 0..20_000 {
        overwrite(world, drive, plain, 1, true);
        let core = drive.core();
        if !core.space().warm().is_empty() && is_wanted(&core) {
            return;
        }
    }
    panic!("nothing stays warm");
}

fn wait(world: &World, seconds: u64) {
    world.run(world.runtime.sleep_ns(seconds * SECOND_NS));
}

fn counts(drive: &Drive) -> Counts {
    drive.layers().inner().counts()
}

/// Returns the number of segments that occupy memory of the medium, and the number of used or
/// retained ones.
fn segments(world: &World, drive: &Drive) -> (u64, u64) {
    let core = drive.core();
    let used = core.space().segment_count() - core.space().free_count();
    (world.memory.resident_bytes() / u64::from(SEGMENT_BYTES), used.into())
}

/// Returns whether a segment is being discarded or zeroed.
fn is_held(drive: &Drive) -> bool {
    let core = drive.core();
    core.space().kept_count() > core.space().warm().len()
}

#[test]
fn segments_stay_warm_while_the_host_flushes() {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    let mut plain = vec![0; SIZE as usize];
    let mut seen = 0;
    for _ in 0..60 {
        overwrite(&world, &drive, &mut plain, 100, true);
        let kept = drive.info().warm_bytes / u64::from(SEGMENT_BYTES);
        seen += u32::from(kept > 0);
        let (resident, used) = segments(&world, &drive);
        assert!((used..=used + 4).contains(&resident), "{resident} segments for {used} in use");
        assert!(kept <= 4, "{kept} segments are warm");
    }
    assert!(seen > 30, "a segment was warm at {seen} of 60 moments");
    // Nothing is retained for a host that no longer flushes.
    wait(&world, 100);
    assert_eq!(drive.info().warm_bytes, 0);
    let (resident, used) = segments(&world, &drive);
    assert_eq!(resident, used);
    assert_eq!(world.read(&drive, 0, plain.len()).unwrap(), plain);
    assert_accounting(&drive);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Guards against a commit of the file system's journal for each flush until a never written
/// segment is full. The segments after it have been written before.
#[test]
fn a_host_that_flushes_leaves_a_segment_that_is_not_warm() {
    let world = World::new(small(SIZE, 40));
    let drive = world.open();
    let mut plain = vec![0; SIZE as usize];
    overwrite(&world, &drive, &mut plain, 1, true);
    let tail = || drive.core().log().tail(Stream::Host).unwrap();
    let mut left = Vec::new();
    while left.len() < 16 {
        let before = tail();
        overwrite(&world, &drive, &mut plain, 1, true);
        if tail().segment != before.segment {
            left.push((before.segment, before.used));
        }
    }
    let early: Vec<_> =
        left.iter().filter(|(_, used)| *used < SEGMENT_BYTES / 8 * 7).map(|left| left.0).collect();
    assert_eq!(early.len(), 1, "{left:?}");
    // The rest of that segment was never written, so it is not warm when it is freed.
    let is_free = || drive.core().space().all_free().any(|segment| segment == early[0]);
    while !is_free() {
        overwrite(&world, &drive, &mut plain, 1, true);
        assert!(!drive.core().space().is_warm(early[0]));
    }
    assert!(!drive.core().space().warm().is_empty(), "too tame a test");
    assert!(!drive.core().space().is_warm(early[0]));
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
    assert_accounting(&drive);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Guards against zeroing segments that garbage collection has just freed, and against warm
/// segments that go to streams that do not flush.
#[test]
fn the_host_continues_in_segments_that_garbage_collection_freed() {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    let mut plain = vec![0; SIZE as usize];
    overwrite(&world, &drive, &mut plain, 3000, true);
    let (zeroed, discards) = (drive.info().operations.zeroed_bytes, counts(&drive).discards);
    let (mut warm, mut cold) = (0, 0);
    let tail = || drive.core().log().tail(Stream::Host).unwrap().segment;
    for _ in 0..6000 {
        let before = tail();
        let next = drive.core().space().next_for(Stream::Host);
        let is_warm = next.is_some_and(|next| drive.core().space().is_warm(next));
        overwrite(&world, &drive, &mut plain, 1, true);
        if tail() != before {
            *(if is_warm { &mut warm } else { &mut cold }) += 1;
        }
    }
    let zeroed = (drive.info().operations.zeroed_bytes - zeroed) / u64::from(SEGMENT_BYTES);
    let discards = counts(&drive).discards - discards;
    assert!(warm + cold > 10, "too tame a test: {warm} and {cold}");
    assert!(cold * 10 <= warm, "{cold} segments were cold and {warm} warm");
    assert!(zeroed == 0, "{zeroed} were zeroed, {warm} entered, {discards} discarded");
    world.kill(drive);
}

#[test]
fn nothing_stays_warm_without_flushes() {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    let mut plain = vec![0; SIZE as usize];
    for _ in 0..60 {
        overwrite(&world, &drive, &mut plain, 80, false);
        assert_eq!(drive.info().warm_bytes, 0);
        let (resident, used) = segments(&world, &drive);
        assert!(resident <= used, "{resident} segments for {used} in use");
    }
    assert!(counts(&drive).discards > 5, "too tame a test");
    world.close(drive);
}

#[test]
fn a_close_and_a_compaction_leave_nothing_warm() {
    for closes in [true, false] {
        let world = World::new(small(SIZE, 4));
        let drive = world.open();
        overwrite_until(&world, &drive, &mut vec![0; SIZE as usize], |_| true);
        if closes {
            world.run(drive.close()).unwrap();
        } else {
            world.run(drive.compact(20)).unwrap();
        }
        assert_eq!(drive.info().warm_bytes, 0);
        let (resident, used) = segments(&world, &drive);
        assert!(resident <= used, "{resident} segments for {used} in use");
        world.kill(drive);
    }
}

/// The host does not stop for a compaction, and no segment stays warm for it until the compaction
/// has ended.
#[test]
fn a_compaction_ends_while_a_host_flushes() {
    let mut world = World::new(small(SIZE, 4));
    world.plan.latency_ns = 200_000..=200_000;
    let drive = world.open();
    let mut plain = vec![0; SIZE as usize];
    let are_several = |core: &Core| core.space().warm().len() > 2;
    overwrite_until(&world, &drive, &mut plain, are_several);
    for _ in 0..3 {
        let has_ended = Cell::new(false);
        let host = async {
            for number in 0..6_000_u64 {
                let data = [number.to_le_bytes()[0]; PIECE];
                drive.write(number % 32 * PIECE as u64, &data).await.unwrap();
                drive.flush().await.unwrap();
                world.runtime.sleep_ns(1_000_000).await;
                if has_ended.get() {
                    return;
                }
            }
            panic!("a compaction does not end");
        };
        let compaction = async {
            drive.compact(20).await.unwrap();
            has_ended.set(true);
        };
        world.run(futures_util::future::join(host, compaction));
        overwrite(&world, &drive, &mut plain, 2000, true);
    }
    world.kill(drive);
}

/// Guards against a panic if a damaged map refers to data in a segment that counts as empty.
#[test]
fn a_segment_that_is_read_while_it_is_freed_does_not_become_warm() {
    let world = World::new(small(SIZE, 8));
    let drive = world.open();
    drive.with_core(|core| {
        let segment = core.space_mut().allocate(Stream::Moved, 1 << 40).unwrap();
        core.space_mut().seal(segment, 0);
        core.pin(segment);
        core.free_warm_segment(segment);
        assert!(!core.space().is_free(segment) && !core.space().is_warm(segment));
        assert!(core.space().check().is_err(), "writes must end");
    });
}

/// Guards against zeroing that wears out the medium for a host that flushes seldom, in bursts.
#[test]
fn no_more_is_zeroed_than_is_flushed() {
    let world = World::new(small(SIZE, 8));
    let drive = world.open();
    let block = payload::noise(&mut random(1), 64).repeat(64);
    for burst in 0..120_u64 {
        for number in 0..40 {
            world.write(&drive, (burst * 40 + number) % 64 * BLOCK, &block).unwrap();
            world.run(drive.flush()).unwrap();
            world.run(world.runtime.sleep_ns(25_000_000));
        }
        // Flushes without data.
        for _ in 0..40 {
            world.run(drive.flush()).unwrap();
            world.run(world.runtime.sleep_ns(25_000_000));
        }
        wait(&world, 100);
    }
    let Operations { zeroed_bytes, .. } = drive.info().operations;
    let media_bytes = drive.info().media_bytes;
    assert!(
        zeroed_bytes <= media_bytes + 2 * u64::from(SEGMENT_BYTES),
        "{zeroed_bytes}, {media_bytes}"
    );
    world.kill(drive);
}

/// Guards against retaining space for flushes while writes are refused for lack of space.
#[test]
fn a_full_medium_gets_warm_segments_back() {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    let mut plain = vec![0; SIZE as usize];
    overwrite_until(&world, &drive, &mut plain, |_| true);
    let no_space_errors = Trigger::Probability(1.0);
    drive.layers().set_plan(FaultPlan { no_space_errors, ..FaultPlan::default() });
    let data = vec![7; PIECE];
    world.write(&drive, 0, &data).unwrap();
    plain[..PIECE].copy_from_slice(&data);
    assert_eq!(kind(world.run(drive.flush())), Some(ErrorKind::NoSpace));
    world.run(world.runtime.sleep_ns(1_000_000));
    assert_eq!(drive.info().warm_bytes, 0);
    let (resident, used) = segments(&world, &drive);
    assert!(resident <= used, "{resident} segments for {used} in use");
    drive.layers().set_plan(FaultPlan::default());
    wait(&world, 2);
    world.run(drive.flush()).unwrap();
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
    world.close(drive);
}

/// Guards against segments that stay warm permanently because a drive has none to spare for the
/// time of a discard.
#[test]
fn a_nearly_full_drive_that_rests_keeps_nothing_warm() {
    let world = World::new(small(14 << 20, 4));
    let options = OpenOptions { compact_percent: None, ..OpenOptions::default() };
    let drive = world.try_open(options).unwrap();
    let has_none_to_spare =
        |core: &Core| core.space().free_count() <= core.reserved_segments(Purpose::Data) + 1;
    overwrite_until(&world, &drive, &mut vec![0; 14 << 20], has_none_to_spare);
    wait(&world, 100);
    assert!(has_none_to_spare(&drive.core()), "too tame a test");
    assert_eq!(drive.info().warm_bytes, 0);
    world.close(drive);
}

/// Guards against a write that is refused because a free segment is held for a moment.
#[test]
fn warm_segments_refuse_no_write() {
    let world = World::new(small(SIZE, 30));
    let drive = world.open_without_collector();
    let piece = payload::noise(&mut random(1), 1 << 20);
    let free = || drive.core().space().free_count();
    let fits = || {
        let core = drive.core();
        core.log().fit(Stream::Host, 1 << 20, core.space().end()) != Fit::NewSegment
    };
    let least = drive.core().reserved_segments(Purpose::Data) + 1;
    while free() > least || fits() {
        world.write(&drive, 0, &piece).unwrap();
    }
    world.run(world.runtime.sleep_ns(1_000_000));
    let held = drive.core().space().next_for(Stream::Host).unwrap();
    drive.with_core(|core| core.space_mut().hold_free(held));
    // Garbage collection cannot free anything.
    drive.with_core(|core| core.end_collection_step(true));
    for (purpose, is_enough) in [(Purpose::Data, false), (Purpose::Trim, true)] {
        let made = drive.with_core(|core| core.make_room(1 << 20, purpose));
        assert_eq!(made.unwrap(), is_enough, "{purpose:?}");
        if is_enough {
            break;
        }
        // A stream that may use the reserves does not take a held segment, either.
        for stream in Stream::ALL {
            assert_ne!(drive.core().space().next_for(stream), Some(held));
        }
    }
    drive.with_core(|core| core.end_hold(held, false));
    assert_eq!(drive.core().space().next_for(Stream::Host), Some(held));
    world.kill(drive);
}

/// Guards against a shrink that removes a segment from the table, is dropped, and makes the segment
/// available again while it is still being discarded.
#[test]
fn a_shrink_waits_for_warm_segments() {
    let world = World::new(small(SIZE, 20));
    let drive = world.open();
    world.write(&drive, 0, &[1; 5000]).unwrap();
    let last = SegmentId(drive.core().space().segment_count() - 1);
    drive.with_core(|core| core.space_mut().hold_free(last));
    let capacity_bytes = Some(u64::from(last.0 - 5) * u64::from(SEGMENT_BYTES));
    let shrink = || {
        let shrinking = drive.resize(Resize { size_bytes: None, capacity_bytes });
        world.run(world.runtime.timeout(100 * SECOND_NS, shrinking))
    };
    assert!(shrink().is_none());
    drive.with_core(|core| core.end_hold(last, true));
    shrink().unwrap().unwrap();
    assert_eq!(drive.info().warm_bytes, 0);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Guards against a close that waits for a sync that no task runs any more: the log could not be
/// written to its end, but the last zeroes were written.
#[test]
fn a_failing_close_ends_during_zeroing() {
    let mut has_zeroed = 0;
    for moment in 0..100 {
        let mut world = World::new(small(SIZE, 20));
        world.plan.latency_ns = 1_000_000..=1_000_000;
        let drive = world.open();
        let mut plain = vec![0; SIZE as usize];
        while !is_held(&drive) {
            overwrite(&world, &drive, &mut plain, 1, true);
        }
        world.run(world.runtime.sleep_ns(moment % 10 * 200_000));
        world.write(&drive, 0, &[1; 5000]).unwrap();
        let no_space_errors = Trigger::Probability(1.0);
        drive.layers().set_plan(FaultPlan { no_space_errors, ..world.plan.clone() });
        assert_eq!(kind(world.run(drive.flush())), Some(ErrorKind::NoSpace));
        drive.layers().set_plan(world.plan.clone());
        world.run(world.runtime.sleep_ns(moment / 10 * 700_000));
        has_zeroed += u32::from(is_held(&drive));
        let closed = world.run(world.runtime.timeout(60 * SECOND_NS, drive.close()));
        assert!(closed.is_some(), "moment {moment}: a close that does not end");
        world.kill(drive);
    }
    assert!(has_zeroed > 10, "too tame a test: {has_zeroed}");
}

/// Guards against zeroing only half of a segment: the rest of its earlier use would look like a use
/// with a damaged header.
#[test]
fn remains_of_an_earlier_process_are_not_zeroed() {
    for moment in 0..20 {
        let mut world = World::new(small(SIZE, 20));
        world.plan.discards_ignored = Trigger::Probability(1.0);
        let drive = world.open();
        let mut plain = vec![0; SIZE as usize];
        // More segments than are used below.
        overwrite(&world, &drive, &mut plain, 3000, false);
        world.run(drive.trim_durable(0, SIZE)).unwrap();
        plain.fill(0);
        wait(&world, 30);
        assert!(drive.core().space().free_count() > 20, "too tame a test");
        world.kill(drive);
        world.plan.latency_ns = 1_000_000..=1_000_000;
        let drive = world.open();
        while drive.core().space().kept_count() == 0 {
            overwrite(&world, &drive, &mut plain, 1, true);
        }
        world.run(world.runtime.sleep_ns(moment * 500_000));
        let info = drive.info();
        world.kill(drive);
        let copy = world.copy();
        rebuilding::zero_superblocks(&copy);
        let rebuilt = rebuilding::rebuild(&copy);
        assert_eq!(info.operations.zeroed_bytes, 0, "moment {moment}");
        assert_eq!(rebuilt.problems, 0, "moment {moment}");
        assert!(rebuilt.disk == plain, "moment {moment}: {:?}", rebuilt.from);
    }
}

/// Guards against a flush that is vouched for only after zeroing has ended.
#[test]
fn flushed_data_is_vouched_for_during_zeroing() {
    let mut world = World::new(small(SIZE, 20));
    world.plan.latency_ns = 1_000_000..=1_000_000;
    let drive = world.open();
    let mut plain = vec![0; SIZE as usize];
    while !is_held(&drive) {
        overwrite(&world, &drive, &mut plain, 1, true);
    }
    // Writing zeroes of 1 MiB takes half a second, and so does the pause after it.
    let latency_ns = 500_000_000..=500_000_000;
    drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
    let sealed = drive.core().log().sealed_seq();
    world.run(world.runtime.sleep_ns(2_100_000_000));
    assert!(is_held(&drive), "too tame a test");
    assert_eq!(drive.core().log().sealed_seq().0, sealed.0 + 1, "no batch vouches");
    world.kill(drive);
}

/// Returns the batches of a segment as a scan finds them, and their end.
fn scan(world: &World, tail: log::Tail) -> (Vec<BatchHeader>, u32) {
    let uuid = world.spec.uuid;
    let drive = world.try_open(OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    let shape = drive.core().superblock().shape();
    world.kill(drive);
    let log::Tail { segment, generation, .. } = tail;
    let mut scan = SegmentScan::new(&world.memory, uuid, &shape, segment, generation);
    let mut found = Vec::new();
    while let Some((header, _)) = world.run(scan.next()) {
        found.push(header);
    }
    let end = found.last().map_or(0, |last| last.offset + last.batch_bytes() as u32);
    (found, end)
}

/// Guards against stale batches of a warm segment that are mistaken for current ones: a reused
/// segment ends where its own batches end, for all readers that do not follow the log.
#[test]
fn batches_of_an_earlier_use_do_not_belong_to_the_next() {
    let mut stale = 0;
    for seed in 0..12 {
        let mut world = World::new(small(SIZE, 4));
        world.seed = seed;
        let drive = world.open();
        let mut plain = vec![0; SIZE as usize];
        overwrite(&world, &drive, &mut plain, 1500 + seed * 130, true);
        let tail = drive.core().log().tail(Stream::Host).unwrap();
        world.kill(drive);
        let (found, end) = scan(&world, tail);
        assert_eq!(end, tail.used, "seed {seed}: the scan ends at the tail");
        assert!(found.is_sorted_by_key(|header| header.seq));
        let all = damage::batches(&world, tail.segment.0);
        stale += all.iter().filter(|header| header.generation != tail.generation).count();
        let drive = world.open();
        assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
        assert_accounting(&drive);
        world.close(drive);
        assert_eq!(world.check().problems, [], "seed {seed}");
    }
    assert!(stale > 10, "{stale} stale batches: too tame a test");
}

/// Power fails while warm segments are reused. Flushed data survives, and no data of an earlier use
/// appears. A rebuild without superblocks has the same result, as long as it finds a checkpoint.
#[test]
fn power_loss_with_warm_segments_loses_nothing_flushed() {
    for seed in 0..16 {
        let mut world = World::new(small(SIZE, 4));
        world.seed = seed;
        let mut plain = vec![0; SIZE as usize];
        for life in 0..3 {
            let drive = world.open();
            assert!(world.read(&drive, 0, plain.len()).unwrap() == plain, "seed {seed}");
            overwrite(&world, &drive, &mut plain, 800 + seed * 40, true);
            // A torn write, in a segment that may be warm.
            let mut lost = random(seed);
            let data = payload::noise(&mut lost, 300 << 10);
            drive.layers().set_plan(FaultPlan { latency_ns: 1..=2_000_000, ..Default::default() });
            world.run(async {
                drive.write(0, &data).await.unwrap();
                drive.with_core(Core::seal_all);
                world.runtime.sleep_ns(lost.random_range(0..2_000_000)).await;
                drive.layers().crash().await.unwrap();
            });
            world.kill(drive);
            let drive = world.open();
            let found = world.read(&drive, 0, plain.len()).unwrap();
            assert!(found[300 << 10..] == plain[300 << 10..], "seed {seed}, life {life}");
            let is_new = found[..300 << 10] == data;
            assert!(is_new || found == plain, "seed {seed}, life {life}");
            plain = found;
            assert_accounting(&drive);
            world.kill(drive);
        }
        let copy = world.copy();
        rebuilding::zero_superblocks(&copy);
        let rebuilt = rebuilding::rebuild(&copy);
        assert!(rebuilt.disk == plain, "seed {seed}: {:?}", rebuilt.from);
    }
}

/// If garbage collection has not freed any segment yet, the next segment is zeroed while the host
/// flushes often.
#[test]
fn the_next_segment_is_zeroed_for_a_host_that_flushes_often() {
    let world = World::new(small(SIZE, 8));
    let drive = world.open();
    // Batches of 4 KiB, so that only the last part of the test fills the segment.
    let block = payload::noise(&mut random(1), 64).repeat(64);
    let is_zeroed = |segment: SegmentId| {
        let bytes = world.peek(segment.0, 0, SEGMENT_BYTES as usize);
        bytes.iter().all(|&byte| byte == 0)
    };
    let write = |count: u64, flushes: bool| {
        for number in 0..count {
            world.write(&drive, number % 64 * BLOCK, &block).unwrap();
            if flushes {
                world.run(drive.flush()).unwrap();
            }
            world.run(world.runtime.sleep_ns(10_000_000));
        }
    };
    // Without flushes, and with few of them, nothing is written ahead.
    write(300, false);
    for _ in 0..30 {
        write(10, false);
        write(1, true);
    }
    let resident = || world.memory.resident_bytes() / u64::from(SEGMENT_BYTES);
    assert_eq!((drive.info().operations.zeroed_bytes, resident()), (0, 1));
    write(300, true);
    // The host's stream has left its own segment for the first one, and the next one is zeroed too.
    let segment = u64::from(SEGMENT_BYTES);
    let tail = || drive.core().log().tail(Stream::Host).unwrap().segment;
    let first = tail();
    let next = drive.core().space().next_for(Stream::Host).unwrap();
    let zeroed = || drive.info().operations.zeroed_bytes / segment;
    assert_eq!((zeroed(), drive.info().warm_bytes), (2, segment));
    // A checkpoint may have taken one segment, which is not a warm one.
    assert!((3..=4).contains(&resident()), "{} segments", resident());
    assert!(is_zeroed(next));
    // The stream enters the next segment when the current one is full, and the one after it is not
    // zeroed before that.
    while tail() == first {
        assert_eq!(zeroed(), 2);
        write(20, true);
    }
    assert_eq!(tail(), next);
    write(200, true);
    let zeroed = drive.info().operations.zeroed_bytes;
    assert_eq!(zeroed, 3 * segment);
    assert_eq!(drive.info().media_bytes, {
        let used = drive.layers().inner().counts();
        used.append_bytes - zeroed
    });
    world.run(world.runtime.sleep_ns(100_000_000_000));
    assert_eq!(drive.info().warm_bytes, 0);
    assert_accounting(&drive);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// A failure to write zeroes has no other consequence.
#[test]
fn zeroes_that_cannot_be_written_are_no_failure() {
    for failing in 1..=4 {
        let world = World::new(small(SIZE, 8));
        let drive = world.open();
        let flush = || {
            world.write(&drive, 0, &[failing; BLOCK_BYTES]).unwrap();
            world.run(drive.flush()).unwrap();
            world.run(world.runtime.sleep_ns(10_000_000));
        };
        (0..60).for_each(|_| flush());
        let next = drive.core().space().next_for(Stream::Host).unwrap();
        let dead = BadRange::dead(Region::Segment(next), 0..u32::from(failing) << 20);
        drive.layers().add_bad_range(dead);
        (0..300).for_each(|_| flush());
        assert_eq!(drive.info().warm_bytes, 0);
        assert!(drive.core().log().check_poison().is_ok());
        assert_eq!(world.read(&drive, 0, BLOCK_BYTES).unwrap(), [failing; BLOCK_BYTES]);
        world.kill(drive);
    }
}
