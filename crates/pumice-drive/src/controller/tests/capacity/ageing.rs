//! Goal: a drive after long use, with data that is cold and partly overwritten, still has as much
//! space as when it was new; operations that free space keep their reserve; transient faults and
//! waits have no lasting effect. Method: cold frames that are smaller as a whole than in parts,
//! next to hot noise; tiny records that grow when they are moved; drives that are filled until they
//! refuse writes, then trimmed.

use std::pin::Pin;

use futures_util::future::{Either, select};
use rand::RngExt;

use super::*;
use crate::base::seed::{Random, random};
use crate::media::layer::Trigger;

const FRAME: usize = 8 * BLOCK_BYTES;

/// Returns a drive for [`cold_frame`], in frames that are compressed as a whole.
fn solid(size: u64, segments: u64) -> Spec {
    Spec { frame_form: FrameForm::Solid, ..small(size, segments) }
}

/// Returns a frame of one incompressible block eight times, each with a stamp. The frame is smaller
/// as a whole than in two parts.
fn cold_frame(number: u64) -> Vec<u8> {
    let block = payload::noise(&mut random(number), BLOCK_BYTES);
    let mut frame = block.repeat(8);
    for (index, block) in frame.chunks_exact_mut(BLOCK_BYTES).enumerate() {
        block[..8].copy_from_slice(&(number * 8 + index as u64).to_le_bytes());
    }
    frame
}

/// Returns a block that compresses to about `noise_bytes`.
fn sparse_block(random: &mut Random, noise_bytes: usize) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES];
    block[..noise_bytes].copy_from_slice(&payload::noise(random, noise_bytes));
    block
}

/// Guards against cold segments that look partly dead, are repeatedly moved whole, and prevent
/// garbage collection of segments that are really dead.
#[test]
fn cold_frames_with_dead_blocks_do_not_wear_a_drive_out() {
    let (cold, hot) = (96u64 << 20, 32u64 << 20);
    let segments = 13;
    let world = World::new(solid(cold + hot, segments));
    let drive = world.open();
    for number in 0..cold / FRAME as u64 {
        let offset = number * FRAME as u64;
        world.write(&drive, offset, &cold_frame(number)).unwrap();
    }
    for number in 0..cold / FRAME as u64 {
        for index in [1, 5] {
            let offset = number * FRAME as u64 + index * BLOCK;
            world.run(drive.write_zeroes(offset, BLOCK, Allocation::Release)).unwrap();
        }
    }
    let mut random = random(1);
    let rounds = 6;
    for number in 0..rounds * hot / BLOCK {
        let lba = random.random_range(0..hot / BLOCK);
        let data = payload::noise(&mut random, BLOCK_BYTES);
        let written = world.write(&drive, cold + lba * BLOCK, &data);
        let info = drive.info();
        assert!(
            written.is_ok(),
            "write {number} is refused with {:.1} % used after {} victims, {} bytes moved",
            info.used_percent,
            info.operations.gc_victims,
            info.moved_bytes
        );
    }
    let info = drive.info();
    assert!(info.operations.gc_victims > 10, "too tame a test");
    assert!(info.moved_bytes < 5 * rounds * hot, "{} bytes moved", info.moved_bytes);
    world.kill(drive);
}

/// Guards against garbage collection that uses up the reserve of trims, or its own last segment,
/// because a moved record is longer than before.
#[test]
fn moving_records_that_grow_leaves_trims_their_reserve() {
    let size = 256u64 << 20;
    let world = World::new(Spec { frame_blocks: 1, ..small(size, 4) });
    let drive = world.open();
    let mut random = random(1);
    let blocks = size / BLOCK;
    let mut next = 0;
    while next + 16 <= blocks {
        let data: Vec<u8> = (0..16).flat_map(|_| sparse_block(&mut random, 400)).collect();
        // 8 % of the writes are overwrites.
        let lba = if random.random_range(0..100) < 8 && next > 0 {
            random.random_range(0..next / 16) * 16
        } else {
            next += 16;
            next - 16
        };
        if world.write(&drive, lba * BLOCK, &data).is_err() {
            break;
        }
    }
    assert!(next > 20_000 && next + 16 <= blocks, "{next} blocks fill the drive");
    let written = next - 16;
    for round in 0..2500 {
        let lba = random.random_range(0..written);
        let trimmed = world.run(drive.trim_durable(lba * BLOCK, BLOCK));
        assert_eq!(kind(trimmed), None, "trim {round} is refused");
        let lba = random.random_range(0..written);
        let _ = world.write(&drive, lba * BLOCK, &sparse_block(&mut random, 400));
    }
    for lba in (0..written).step_by(2) {
        world.run(drive.trim(lba * BLOCK, BLOCK)).unwrap();
    }
    world.run(drive.flush()).unwrap();
    for number in 0..written / 4 {
        let lba = random.random_range(0..written);
        let written = world.write(&drive, lba * BLOCK, &sparse_block(&mut random, 400));
        assert_eq!(kind(written), None, "write {number} after half the disk was trimmed");
    }
    world.kill(drive);
}

/// Fills a thin drive with blocks of noise in order until it refuses them. Returns the number of
/// accepted blocks.
fn fill_in_order(world: &World, drive: &Drive) -> u64 {
    let mut random = random(9);
    for lba in 0..drive.size_bytes() / BLOCK {
        let data = payload::noise(&mut random, BLOCK_BYTES);
        match world.write(drive, lba * BLOCK, &data) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                return lba;
            }
        }
    }
    panic!("the drive never fills");
}

/// Guards against a write that waits for a checkpoint although the task with the turn writes none.
#[test]
fn a_write_that_waits_for_the_turn_ends_with_it() {
    let world = World::new(small(64 << 20, 6));
    let drive = world.open();
    fill_in_order(&world, &drive);
    world.run(drive.flush()).unwrap();
    assert!(world.write(&drive, 0, &[1; 4096]).is_err(), "not full");
    let turn = world.run(drive.turn());
    let (held, ended) = (drive.clone(), Rc::new(Cell::new(false)));
    let told = ended.clone();
    world.runtime.spawn(async move {
        let written = held.write(0, &payload::noise(&mut random(1), 8192)).await;
        assert_eq!(kind(written), Some(ErrorKind::NoSpace));
        told.set(true);
    });
    world.run(world.runtime.sleep_ns(1_000_000));
    drop(turn);
    world.run(world.runtime.sleep_ns(60_000_000_000));
    assert!(ended.get(), "the write waits forever");
    world.kill(drive);
}

/// Guards against a transient read error that causes refused writes, or prevents a segment from
/// being emptied until the drive is reopened.
#[test]
fn read_errors_that_pass_leave_nothing_behind() {
    let size = 24u64 << 20;
    let world = World::new(Spec { capacity_bytes: None, ..small(size, 0) });
    let drive = world.open();
    let mut random = random(3);
    let mut overwrite = |count: u64| {
        for number in 0..count {
            let data = payload::noise(&mut random, 64 << 10);
            let offset = random.random_range(0..(size - (64 << 10)) / BLOCK) * BLOCK;
            let written = std::pin::pin!(drive.write(offset, &data));
            let time = std::pin::pin!(world.runtime.sleep_ns(600_000_000_000));
            match world.run(select(written, time)) {
                Either::Left((written, _)) => assert_eq!(kind(written), None, "write {number}"),
                Either::Right(_) => panic!("write {number} waits forever"),
            }
        }
    };
    overwrite(1000);
    let read_errors = Trigger::Probability(0.02);
    drive.layers().set_plan(FaultPlan { read_errors, ..FaultPlan::default() });
    overwrite(3000);
    drive.layers().set_plan(FaultPlan::default());
    overwrite(4000);
    let stuck = drive.core().space().views().filter(|view| view.is_stuck).count();
    assert_eq!(stuck, 0, "segments that cannot be emptied, though all of them can be read");
    assert_accounting(&drive);
    world.kill(drive);
}

/// Guards against garbage collection that sleeps until the host has to wait for it.
#[test]
fn garbage_collection_begins_before_writers_wait() {
    let size = 48u64 << 20;
    let world = World::new(small(size, 18));
    let drive = world.open();
    let mut random = random(1);
    for number in 0..5 * size / BLOCK {
        let lba = if number < size / BLOCK { number } else { random.random_range(0..size / BLOCK) };
        let data = payload::noise(&mut random, BLOCK_BYTES);
        if number % 64 == 63 {
            // The host is slow enough for the medium and for garbage collection.
            world.run(world.runtime.sleep_ns(100_000_000));
        }
        let written = drive.try_write(lba * BLOCK, &data);
        let free = drive.core().space().free_count();
        assert!(written.is_some(), "write {number} waits with {free} segments free");
        written.unwrap().unwrap();
    }
    assert!(drive.info().operations.gc_victims > 10, "too tame a test");
    world.kill(drive);
}

/// A frame can have more blocks than its record has bytes. Even one live block must keep its
/// segment in use.
#[test]
fn a_block_of_a_tiny_frame_keeps_its_segment() {
    let spec = Spec { frame_blocks: 64, codec: Codec::Zstd { level: 1 }, ..small(64 << 20, 8) };
    let world = World::new(spec);
    let drive = world.open();
    let tiny = [0x20, 0].repeat(131_072);
    world.write(&drive, 0, &tiny).unwrap();
    let info = drive.info();
    assert!(info.frame_bytes < 64, "{} bytes: too large a frame", info.frame_bytes);
    // The rest of its segment dies, and empty segments are freed.
    let mut random = random(1);
    for round in 0..3 {
        for mebibyte in 1..9 {
            let data = payload::noise(&mut random, 1 << 20);
            world.write(&drive, mebibyte << 20, &data).unwrap();
        }
        if round == 0 {
            world.write(&drive, BLOCK, &payload::noise(&mut random, 63 * BLOCK_BYTES)).unwrap();
        }
    }
    // A checkpoint in progress holds more segments than the newest one refers to.
    world.run(drive.checkpoint()).unwrap();
    assert_accounting(&drive);
    world.run(world.runtime.sleep_ns(60_000_000_000));
    assert!(world.read(&drive, 0, BLOCK_BYTES).unwrap() == tiny[..BLOCK_BYTES]);
    let drive = world.reopen(drive);
    assert!(world.read(&drive, 0, BLOCK_BYTES).unwrap() == tiny[..BLOCK_BYTES]);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Guards against a drive that moves all its data, for the few dead bytes in it, before it becomes
/// full.
#[test]
fn a_fill_without_overwriting_moves_next_to_nothing() {
    for (segments, blocks) in [(12, 8), (40, 1), (40, 256), (100, 100)] {
        let world = World::new(small(1 << 30, segments));
        let drive = world.open();
        let mut random = random(10);
        let mut at = 0;
        loop {
            let data = payload::noise(&mut random, blocks * BLOCK_BYTES);
            if world.write(&drive, at, &data).is_err() {
                break;
            }
            at += data.len() as u64;
            // Background work has its turn, as it has next to a host.
            if at.is_multiple_of(1 << 20) {
                world.run(world.runtime.sleep_ns(1_000_000));
            }
        }
        let info = drive.info();
        let amplification = info.media_bytes as f64 / info.host_bytes as f64;
        let shape = format!("{segments} segments, writes of {blocks} blocks");
        assert!(amplification < 1.1, "{shape}: {amplification:.3}, {} moved", info.moved_bytes);
        world.kill(drive);
    }
}

/// Guards against a used percentage that stays below 100 while writes are refused, or is 100 while
/// they are accepted; and against writes that are still refused after a trim.
#[test]
fn used_is_100_when_writes_are_refused_and_a_trim_ends_that() {
    for segments in [5, 12, 30] {
        let world = World::new(small(256 << 20, segments));
        let drive = world.open();
        let mut random = random(9);
        let mut lba = 0;
        let is_full = || {
            let overview = drive.overview();
            overview.alerts.iter().any(|alert| alert.kind == AlertKind::Full)
        };
        let mut last = 0.0;
        let refused = |used: f64| used >= 100.0 && is_full();
        loop {
            let used = drive.info().used_percent;
            let was_full = is_full();
            assert_eq!(used >= 100.0, was_full, "{segments}: {used} %");
            assert!(lba == 0 || used > last - 10.0, "{segments}: {last} %, then {used} %");
            let data = payload::noise(&mut random, BLOCK_BYTES);
            if world.write(&drive, lba * BLOCK, &data).is_err() {
                break;
            }
            assert!(!was_full, "{segments}: full, and a write is accepted");
            last = used;
            lba += 1;
        }
        assert!(last > 95.0, "{segments}: {last} % just before a write was refused");
        assert!(refused(drive.info().used_percent), "{segments}: {} %", drive.info().used_percent);
        // The trimmed space, except for one or two segments, since space is freed in whole
        // segments.
        let trimmed = (2 * u64::from(SEGMENT_BYTES)) / BLOCK;
        let trimmed = trimmed + 2 * u64::from(SEGMENT_BYTES) / BLOCK;
        world.run(drive.trim_durable(BLOCK, trimmed * BLOCK)).unwrap();
        let mut again = 0;
        while again < 2 * trimmed {
            let was_full = is_full();
            let data = payload::noise(&mut random, BLOCK_BYTES);
            if world.write(&drive, (lba + 1 + again) * BLOCK, &data).is_err() {
                break;
            }
            // Before the first write, the drive has not considered the trimmed space.
            assert!(!was_full || again == 0, "{segments}: full, and write {again} is accepted");
            again += 1;
        }
        let remainder = 2 * u64::from(SEGMENT_BYTES) / BLOCK;
        assert!(again + remainder >= trimmed, "{segments}: {again} of {trimmed} after a trim");
        assert!(again <= trimmed + remainder, "{segments}: {again} of {trimmed} after a trim");
        assert!(refused(drive.info().used_percent), "{segments}: {} %", drive.info().used_percent);
        world.kill(drive);
    }
}

/// Guards against requests that wait for a checkpoint that fails for lack of space, and against
/// refused trims: the map of a huge disk uses much of a thin drive.
#[test]
fn a_thin_drive_whose_map_takes_much_of_it_never_hangs() {
    let size = 256u64 << 30;
    let world = World::new(small(size, 57));
    let options = OpenOptions { map_cache_bytes: 256 << 10, ..OpenOptions::default() };
    let drive = world.try_open(options).unwrap();
    let mut random = random(1);
    let within = |what: &str, request: Pin<Box<dyn Future<Output = Result<()>>>>| {
        let request = world.runtime.timeout(60_000_000_000, request);
        world.run(request).unwrap_or_else(|| panic!("{what} waits forever"))
    };
    let write = |lba: u64, data: Vec<u8>| {
        let drive = drive.clone();
        within("a write", Box::pin(async move { drive.write(lba * BLOCK, &data).await }))
    };
    let trim = |lba: u64, fua| {
        let drive = drive.clone();
        within(
            "a trim",
            Box::pin(async move {
                if fua {
                    drive.trim_durable(lba * BLOCK, BLOCK).await
                } else {
                    drive.trim(lba * BLOCK, BLOCK).await
                }
            }),
        )
    };
    let mut written = Vec::new();
    loop {
        let lba = random.random_range(0..size / BLOCK);
        if write(lba, payload::noise(&mut random, BLOCK_BYTES)).is_err() {
            break;
        }
        written.push(lba);
    }
    let full = written.len();
    let (mut refused, mut least) = (0, u32::MAX);
    for round in 0..1000 {
        least = least.min(drive.core().space().free_count());
        let lba = written.swap_remove(random.random_range(0..written.len()));
        assert_eq!(kind(trim(lba, true)), None, "trim {round} is refused");
        let lba = random.random_range(0..size / BLOCK);
        match write(lba, payload::noise(&mut random, BLOCK_BYTES)) {
            Ok(()) => written.push(lba),
            Err(_) => refused += 1,
        }
    }
    assert!(least > 0, "checkpoints have used up their reserve after {refused} refusals");
    for lba in written.drain(..full / 2) {
        assert_eq!(kind(trim(lba, false)), None, "a trim is refused");
    }
    world.run(drive.flush()).unwrap();
    for number in 0..full / 8 {
        let lba = random.random_range(0..size / BLOCK);
        let written = write(lba, payload::noise(&mut random, BLOCK_BYTES));
        assert_eq!(kind(written), None, "write {number} after half was trimmed");
    }
    world.kill(drive);
}

/// Guards against moving the same frames again after each opening, when the cost of moving them is
/// not known.
#[test]
fn the_cost_of_moving_is_learned_once() {
    let (cold, hot) = (96u64 << 20, 16u64 << 20);
    let world = World::new(solid(cold + hot, 13));
    let mut drive = world.open();
    for number in 0..cold / FRAME as u64 {
        let offset = number * FRAME as u64;
        world.write(&drive, offset, &cold_frame(number)).unwrap();
        for index in [1, 5] {
            world.run(drive.trim(offset + index * BLOCK, BLOCK)).unwrap();
        }
    }
    let mut random = random(1);
    let mut overwrite = |drive: &Drive, bytes: u64| {
        let before = drive.info();
        for number in 0..bytes / BLOCK {
            let lba = random.random_range(0..hot / BLOCK);
            let data = payload::noise(&mut random, BLOCK_BYTES);
            let written = world.write(drive, cold + lba * BLOCK, &data);
            assert_eq!(kind(written), None, "write {number}");
        }
        drive.info().moved_bytes - before.moved_bytes
    };
    overwrite(&drive, 4 * hot);
    let settled = overwrite(&drive, 4 * hot);
    let cold_bytes = cold / 8 + 4 * u64::from(SEGMENT_BYTES);
    for life in 0..4 {
        drive = world.reopen(drive);
        let again = overwrite(&drive, 4 * hot);
        assert!(again <= settled + cold_bytes, "life {life}: {again}, before {settled}");
    }
    world.kill(drive);
}

/// Guards against a full drive that refuses writes permanently because the medium could not be read
/// for a while, during which no data can die.
#[test]
fn a_medium_that_fails_for_a_while_does_not_fill_a_drive() {
    let size = 24u64 << 20;
    let world = World::new(Spec { capacity_bytes: None, ..small(size, 0) });
    let drive = world.open();
    let mut random = random(3);
    let mut overwrite = |count: u64| {
        let mut refused = 0;
        for _ in 0..count {
            let data = payload::noise(&mut random, 64 << 10);
            let offset = random.random_range(0..(size - (64 << 10)) / BLOCK) * BLOCK;
            let written = drive.write(offset, &data);
            let written = world.run(world.runtime.timeout(60_000_000_000, written));
            refused += u64::from(written.expect("a write waits forever").is_err());
        }
        refused
    };
    assert_eq!(overwrite(2000), 0);
    let read_errors = Trigger::Probability(1.0);
    drive.layers().set_plan(FaultPlan { read_errors, ..FaultPlan::default() });
    assert!(overwrite(1000) > 100, "too tame a test");
    drive.layers().set_plan(FaultPlan::default());
    world.run(world.runtime.sleep_ns(30_000_000_000));
    assert_eq!(overwrite(1000), 0, "the medium can be read again");
    world.kill(drive);
}

/// Guards against garbage collection that reads the leaves of the map one by one, for each record:
/// a host waits for the sum of these reads.
#[test]
fn leaves_of_moved_frames_are_read_concurrently() {
    let mut longest_ns = [1, 2, 3].map(longest_write_beside_scattered_moves);
    longest_ns.sort_unstable();
    // One write may have to wait for several victims.
    assert!(longest_ns[1] < 120_000_000, "writes take up to {longest_ns:?} ns");
}

fn longest_write_beside_scattered_moves(seed: u64) -> u64 {
    let size = 64u64 << 30;
    let world = World::new(small(size, 18));
    let options = OpenOptions { map_cache_bytes: 1 << 20, ..OpenOptions::default() };
    let drive = world.try_open(options).unwrap();
    let mut random = random(seed);
    let places: Vec<u64> = (0..12_000).map(|_| random.random_range(0..size / BLOCK)).collect();
    let mut longest_ns = 0;
    for number in 0..30_000 {
        if number == 12_000 {
            let latency_ns = 1_000_000..=1_000_000;
            drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
        }
        let place = if number < 12_000 { number } else { random.random_range(0..12_000) };
        let data = payload::noise(&mut random, BLOCK_BYTES);
        let begun_ns = world.runtime.now_ns();
        world.write(&drive, places[place] * BLOCK, &data).unwrap();
        longest_ns = longest_ns.max(world.runtime.now_ns() - begun_ns);
    }
    assert!(drive.info().operations.gc_victims > 5, "too tame a test");
    world.kill(drive);
    longest_ns
}
