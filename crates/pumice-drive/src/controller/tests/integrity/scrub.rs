//! Goal: a scrub finds every kind of damage in live data and reports the affected blocks, reports
//! no damage where there is none, however busy the drive is, respects its rate and ends on time.
//! Method: bits flipped on the medium of a closed drive; a scrub next to writers, trims, garbage
//! collection and checkpoints in virtual time.

use super::damage::{batches, record_of, written};
use super::*;
use crate::base::seed::random;
use crate::format::{RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use rand::RngExt;

fn scrub(world: &World, drive: &Drive) -> ScrubReport {
    world.run(drive.scrub(0)).unwrap()
}

/// Returns the first block and the number of blocks of each problem.
fn blocks(report: &ScrubReport) -> Vec<Option<(u64, u64)>> {
    let blocks = |problem: &Problem| problem.lba.zip(problem.lba_count);
    report.problems.iter().map(blocks).collect()
}

#[test]
fn a_damaged_frame_is_listed_with_its_blocks_until_it_is_dead() {
    let (world, data) = written();
    let (segment, offset) = record_of(&world, 50);
    world.flip_for_good(segment, offset + RECORD_HEADER_BYTES as u32 + 9);
    let drive = world.open();
    let report = scrub(&world, &drive);
    assert_eq!(blocks(&report), [Some((48, 8))], "{report:?}");
    assert!(report.completed && report.frames == 15 && report.segments > 0);
    let progress = drive.info().scrub;
    assert_eq!((progress.scrub_problems, progress.scrubs_completed), (1, 1));
    assert_eq!(
        (progress.scrub_running, progress.scrub_checked_bytes),
        (false, report.checked_bytes)
    );
    world.write(&drive, 48 * BLOCK, &data[48 * BLOCK_BYTES..56 * BLOCK_BYTES]).unwrap();
    world.run(drive.flush()).unwrap();
    assert_eq!(scrub(&world, &drive).problem_count, 0, "it will never be read");
    world.close(drive);
}

/// The three batches are in an open segment. With more batches after them, the segment is full.
#[test]
fn frames_after_a_damaged_batch_header_are_missed() {
    for is_full in [false, true] {
        let (world, data) = written();
        let drive = world.open();
        if is_full {
            let mut random = random(3);
            for _ in 0..5 {
                world.write(&drive, 1 << 20, &payload::noise(&mut random, 1 << 20)).unwrap();
            }
            assert_ne!(drive.core().log().tail(Stream::Host).unwrap().segment, SegmentId(0));
        }
        world.close(drive);
        let header = batches(&world, 0).swap_remove(1);
        world.flip_for_good(0, header.offset + 8);
        // Additionally, one frame's payload is damaged: only its blocks cannot be read.
        let drive = world.open();
        let Lookup::Run(Mapping::Frame { place, .. }, _) = ({
            world.run(drive.load_range(Lba(48), 1)).unwrap();
            drive.core().map().peek(Lba(48))
        }) else {
            panic!("no frame")
        };
        world.flip_for_good(0, place.offset + RECORD_HEADER_BYTES as u32 + 5);
        let report = scrub(&world, &drive);
        assert_eq!(blocks(&report), [None, Some((48, 8))], "full: {is_full}, {report:?}");
        assert_eq!(report.problems[0].segment, Some(0));
        assert!(world.read(&drive, 0, 40 * BLOCK_BYTES).unwrap() == data[..40 * BLOCK_BYTES]);
        world.close(drive);
    }
}

#[test]
fn damage_in_the_map_the_lists_and_a_superblock_is_found() {
    let (world, _) = written();
    let drive = world.open();
    world.run(drive.checkpoint()).unwrap();
    assert_eq!(scrub(&world, &drive).problems, []);
    let whole = scrub(&world, &drive);
    let named = |drive: &Drive| drive.core().map().metadata_addresses().collect::<Vec<_>>();
    let count = named(&drive).len();
    assert!(whole.metadata as usize > count);
    // The scrub causes each of them to be rewritten elsewhere.
    for number in 0..count {
        let place = named(&drive)[number];
        world.flip(place.segment.0, place.offset + RECORD_HEADER_BYTES as u32 + 9);
        let report = scrub(&world, &drive);
        assert_eq!((report.problem_count, report.repaired), (0, 1), "{report:?}");
        assert_ne!(named(&drive)[number], place);
    }
    let root = drive.core().superblock().checkpoint.unwrap().address;
    world.flip_for_good(root.segment.0, root.offset + RECORD_HEADER_BYTES as u32 + 9);
    let report = scrub(&world, &drive);
    assert_eq!((report.problem_count, report.repaired), (0, 1), "{report:?}");
    assert_eq!(scrub(&world, &drive).repaired, 0);
    let mut slot = world.run(world.memory.read_superblock(0)).unwrap();
    slot[60] ^= 1;
    world.run(world.memory.write_superblock(0, slot)).unwrap();
    let report = scrub(&world, &drive);
    assert_eq!(report.problem_count, 1);
    assert!(report.problems[0].what.contains("slot 0"), "{report:?}");
    world.close(drive);
}

/// Writers, trims, garbage collection and checkpoints change the drive during the scrub.
#[test]
fn a_busy_drive_is_found_sound() {
    const SIZE: u64 = 24 << 20;
    let mut moved_bytes = 0;
    for seed in 0..2 {
        let mut world = World::new(small(SIZE, 8));
        world.plan.latency_ns = 0..=300_000;
        world.seed = seed;
        let drive = world.open();
        for client in 0..3 {
            let (drive, clock) = (drive.clone(), world.runtime.clone());
            let mut random = random(seed * 10 + client);
            world.runtime.spawn(async move {
                loop {
                    let len = random.random_range(1..=64) * BLOCK_BYTES;
                    let offset = random.random_range(0..=SIZE - len as u64) / BLOCK * BLOCK;
                    let data = payload::any(&mut random, len);
                    let done = match random.random_range(0..20) {
                        0 => drive.trim(offset, len as u64 * 4 % (SIZE - offset)).await,
                        1 => drive.checkpoint().await,
                        2 => drive.flush().await,
                        _ => drive.write(offset, &data).await,
                    };
                    if done.is_err() {
                        return;
                    }
                    clock.sleep_ns(random.random_range(0..200_000)).await;
                }
            });
        }
        world.run(world.runtime.sleep_ns(200_000_000));
        for _ in 0..6 {
            let before = drive.info().moved_bytes;
            let report = world.run(drive.scrub(400 << 20)).unwrap();
            moved_bytes += drive.info().moved_bytes - before;
            assert_eq!(report.problems, [], "seed {seed}");
            assert!(report.completed && report.frames > 100, "{report:?}");
        }
        world.kill(drive);
    }
    assert!(moved_bytes > 10 << 20, "too tame a test: {moved_bytes} bytes moved");
}

#[test]
fn a_scrub_keeps_its_rate_and_ends_with_the_drive() {
    let world = World::new(small(64 << 20, 12));
    let drive = world.open();
    let mut random = random(9);
    for index in 0..20 {
        world.write(&drive, index << 20, &payload::noise(&mut random, 1 << 20)).unwrap();
    }
    world.run(drive.checkpoint()).unwrap();
    let begun_ns = world.runtime.now_ns();
    let report = world.run(drive.scrub(10 << 20)).unwrap();
    let seconds = (world.runtime.now_ns() - begun_ns) as f64 / 1e9;
    let wanted = report.checked_bytes as f64 / f64::from(10 << 20);
    assert!((wanted * 0.95..wanted * 1.05).contains(&seconds), "{seconds} s, not {wanted}");
    // A second concurrent scrub is refused, and one that was dropped does not count.
    world.run(world.runtime.timeout(1_000_000_000, drive.scrub(1 << 20)));
    assert!(!drive.info().scrub.scrub_running, "a dropped scrub still runs");
    let (other, clock) = (drive.clone(), world.runtime.clone());
    let running = async {
        clock.sleep_ns(500_000_000).await;
        assert_eq!(kind(other.scrub(0).await), Some(ErrorKind::Busy));
        other.close().await.unwrap();
    };
    let (report, ()) = world.run(futures_util::future::join(drive.scrub(1 << 20), running));
    assert!(!report.unwrap().completed);
    drop(other);
    world.kill(drive);
}

#[test]
fn data_still_in_buffers_is_no_damage() {
    let world = World::new(small(16 << 20, 4));
    let drive = world.open();
    world.write(&drive, 0, &payload::noise(&mut random(1), 300 << 10)).unwrap();
    let report = scrub(&world, &drive);
    assert_eq!((report.problem_count, report.frames), (0, 0), "{report:?}");
    world.run(drive.flush()).unwrap();
    let report = scrub(&world, &drive);
    assert_eq!(report.problem_count, 0);
    assert!(report.frames > 0 && report.checked_bytes > SEGMENT_HEADER_BYTES as u64);
    world.close(drive);
}
