//! Goal: garbage collection never waits for a task that waits for it, and never makes a transient
//! fault of the medium permanent. Method: drives that hold little more than their disk, overwritten
//! many times.

use futures_util::future::Either;
use rand::RngExt;

use super::*;
use crate::base::seed::random;
use crate::media::layer::Trigger;

const SIZE: u64 = 24 << 20;

/// Lets eight hosts write parts of blocks to a thin drive that is almost full. Returns whether they
/// finish.
fn write_parts(seed: u64) -> bool {
    let mut world = World::new(small(SIZE, 4));
    (world.seed, world.plan.latency_ns) = (seed, 0..=2_000_000);
    let drive = world.open();
    let left = Rc::new(Cell::new(8));
    for number in 0..left.get() {
        let (drive, left) = (drive.clone(), left.clone());
        world.runtime.spawn(async move {
            let mut random = random(seed * 8 + number);
            for _ in 0..60 {
                let len = random.random_range(5000..700_000);
                let data = payload::noise(&mut random, len);
                let offset = random.random_range(0..SIZE - data.len() as u64) | 1;
                let written = drive.write(offset, &data).await;
                // Sometimes the drive is full; trims free space.
                if kind(written) == Some(ErrorKind::NoSpace) || random.random_range(0..20) == 0 {
                    let half = random.random_range(0..2) * SIZE / 2;
                    drive.trim(half, SIZE / 2).await.unwrap();
                }
            }
            left.set(left.get() - 1);
        });
    }
    world.run(world.runtime.sleep_ns(600_000_000_000));
    let ended = left.get() == 0;
    assert!(drive.info().operations.gc_victims > 0, "too tame a test");
    world.kill(drive);
    ended
}

/// Guards against a deadlock: a write holds the segment from which it merges a block while it waits
/// for space, and garbage collection waits for the write to release the segment.
#[test]
fn writes_of_parts_of_blocks_do_not_stop_garbage_collection() {
    for seed in 0..6 {
        assert!(write_parts(seed), "seed {seed}: writes wait forever");
    }
}

/// Guards against an intact frame that is read with a flipped bit, copied with it, and freed.
#[test]
fn a_disturbed_reading_damages_nothing() {
    let mut world = World::new(Spec { capacity_bytes: None, ..small(SIZE, 0) });
    let mut random = random(5);
    let mut plain = vec![0; SIZE as usize];
    world.plan.read_corruptions = Trigger::Probability(0.3);
    let drive = world.open();
    while drive.info().operations.gc_victims < 60 {
        let data = payload::noise(&mut random, 64 << 10);
        let offset = random.random_range(0..(SIZE as usize - data.len()) / BLOCK_BYTES);
        let offset = offset * BLOCK_BYTES;
        world.write(&drive, offset as u64, &data).unwrap();
        plain[offset..offset + data.len()].copy_from_slice(&data);
    }
    drive.layers().set_plan(FaultPlan::default());
    world.close(drive);
    world.plan = FaultPlan::default();
    let drive = world.open();
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
}

/// Guards against a host that is not slowed until the last free segment is used up, and then waits
/// for an entire segment to be freed. It must wait often and briefly.
#[test]
fn a_host_waits_often_and_for_little() {
    let size = 48u64 << 20;
    let world = World::new(Spec { codec: Codec::None, ..small(size, 16) });
    let drive = world.open();
    let mut random = random(1);
    let block = payload::noise(&mut random, BLOCK_BYTES);
    let mut waits = Vec::new();
    for number in 0..4 * size / BLOCK {
        let lba = if number < size / BLOCK { number } else { random.random_range(0..size / BLOCK) };
        let before = drive.info().moved_bytes;
        world.write(&drive, lba * BLOCK, &block).unwrap();
        let moved_bytes = drive.info().moved_bytes - before;
        // In the first round, garbage collection has not found its pace yet.
        if moved_bytes > 0 && number >= 2 * size / BLOCK {
            waits.push(moved_bytes);
        }
    }
    assert!(drive.info().moved_bytes > 4 * size, "too tame a test");
    let mean = waits.iter().sum::<u64>() / waits.len() as u64;
    let segment = u64::from(SEGMENT_BYTES);
    assert!(mean < segment && waits.iter().all(|&wait| wait < 3 * segment), "{mean}: {waits:?}");
}

/// Guards against a victim that is read from the medium while its last batches are still being
/// written: it would be mistaken for damaged, and never be freed.
#[test]
fn a_victim_is_emptied_of_frames_still_in_flight() {
    for seed in 0..4 {
        let mut world = World::new(small(16 << 20, 6));
        world.seed = seed;
        let drive = world.open();
        let latency_ns = 500_000_000..=500_000_000;
        drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
        let plain = payload::noise(&mut random(seed), 5 << 20);
        for (number, data) in plain.chunks(64 << 10).enumerate() {
            world.write(&drive, (number * (64 << 10)) as u64, data).unwrap();
        }
        let victim = SegmentId(0);
        assert!(!drive.core().space().is_open(victim, Stream::Host, 1), "too little was written");
        assert!(
            drive.core().log().written_seq() < drive.core().log().sealed_seq(),
            "nothing is on its way"
        );
        world.run(drive.empty_victim(victim)).unwrap();
        assert_eq!(drive.core().space().live_bytes_of(victim), 0, "seed {seed}");
        assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
        world.kill(drive);
    }
}

/// Guards against content that is moved forever because the end of a segment, where no frame fits,
/// looks like reclaimable space.
#[test]
fn garbage_collection_ends_when_only_ends_of_segments_are_left() {
    let spec = Spec { frame_blocks: 64, codec: Codec::None, ..small(64 << 20, 6) };
    let mut world = World::new(spec);
    world.plan.latency_ns = 100_000..=100_000;
    let drive = world.open();
    let mut random = random(1);
    let frame = payload::noise(&mut random, 64 * BLOCK_BYTES);
    let victims = || drive.info().operations.gc_victims;
    for number in 0..256 {
        // Each segment may be examined once; a checkpoint may cause another examination of all.
        let most = victims() + 2 * u64::from(drive.core().space().segment_count());
        let place = if number % 8 == 7 { random.random_range(0..number) } else { number };
        let write = std::pin::pin!(drive.write(place * frame.len() as u64, &frame));
        let time = std::pin::pin!(world.runtime.sleep_ns(10_000_000_000));
        match world.run(futures_util::future::select(write, time)) {
            Either::Left((Ok(()), time)) => world.run(time),
            Either::Left((Err(error), _)) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                assert!(number >= 6 * 15 && victims() > 0, "{number}: too tame a test");
                return;
            }
            Either::Right(_) => panic!("{number}: a write waits forever"),
        }
        assert!(victims() <= most, "{number}: {} victims", victims());
    }
    panic!("the drive never fills");
}

/// Guards against a checkpoint for each moved or written frame, which uses up the space that
/// garbage collection frees: however small the map's cache is, a few leaves may be dirty.
#[test]
fn a_tiny_cache_of_the_map_leaves_room_for_data() {
    // Frames without tables, whose shorter leaves have the smallest budget.
    let frame_form = FrameForm::Solid;
    let spec = Spec { frame_blocks: 1, frame_form, codec: Codec::None, ..small(32 << 20, 5) };
    let mut world = World::new(spec);
    world.plan.latency_ns = 100_000..=100_000;
    let options = OpenOptions { map_cache_bytes: 2 << 10, ..OpenOptions::default() };
    let drive = world.try_open(options).unwrap();
    let mut random = random(1);
    let block = payload::noise(&mut random, BLOCK_BYTES);
    for number in 0..12_000 {
        let place = random.random_range(0..2048) * 4 * BLOCK;
        let write = drive.write(place, &block);
        let written = world.run(world.runtime.timeout(10_000_000_000, write));
        written.unwrap_or_else(|| panic!("{number}: a write waits forever")).unwrap();
    }
    let (victims, checkpoints) =
        (drive.info().operations.gc_victims, drive.info().operations.checkpoints);
    assert!(victims > 5 && checkpoints > 500, "{victims}, {checkpoints}: too tame a test");
    world.close(drive);
}
