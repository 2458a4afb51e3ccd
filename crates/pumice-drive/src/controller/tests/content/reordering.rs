//! Goal: blocks that were written at random need few media reads once they were read in order, and
//! no write during such a read is undone. Method: counted reads; changes at many moments of a read.

use rand::seq::SliceRandom;

use super::*;
use crate::base::seed::{Random, random};

const SIZE: u64 = 8 << 20;
const SCATTERED: usize = 1 << 20;

/// Writes the first MiB of the disk in blocks, in random order, and returns its content.
fn scatter(world: &World, drive: &Drive, random: &mut Random) -> Vec<u8> {
    let data = payload::noise(random, SCATTERED);
    let mut blocks: Vec<_> = (0..SCATTERED).step_by(BLOCK_BYTES).collect();
    blocks.shuffle(random);
    for at in blocks {
        world.write(drive, at as u64, &data[at..at + BLOCK_BYTES]).unwrap();
    }
    data
}

/// Reads the first MiB with nothing in memory but the map, and returns the number of media reads.
fn media_reads(world: &World, drive: &Drive, expected: &[u8]) -> u64 {
    world.run(drive.load_range(Lba(0), (SCATTERED / BLOCK_BYTES) as u64)).unwrap();
    let before = drive.layers().inner().counts().reads;
    assert!(world.read(drive, 0, SCATTERED).unwrap() == expected);
    drive.layers().inner().counts().reads - before
}

#[test]
fn scattered_blocks_are_in_order_after_one_read() {
    let world = World::new(small(SIZE, 20));
    let mut drive = world.open();
    let data = scatter(&world, &drive, &mut random(1));
    let mut reads = Vec::new();
    for reordered in [SCATTERED as u64, 0, 0] {
        drive = world.reopen(drive);
        reads.push(media_reads(&world, &drive, &data));
        assert_eq!(drive.info().operations.reordered_bytes, reordered);
    }
    assert!(reads[0] > 100 && reads[1] <= 8 && reads[2] == reads[1], "{reads:?}");
    assert_accounting(&drive);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Guards against data that was written, or trimmed, during a read, and that the read replaces by
/// earlier content.
#[test]
fn changes_during_a_read_are_not_undone() {
    let mut world = World::new(small(SIZE, 20));
    world.plan.latency_ns = 10_000..=100_000;
    let mut drive = world.open();
    let mut random = random(2);
    let mut reordered = 0;
    for round in 0..40 {
        let mut data = scatter(&world, &drive, &mut random);
        drive = world.reopen(drive);
        world.run(drive.load_range(Lba(0), (SCATTERED / BLOCK_BYTES) as u64)).unwrap();
        let reader = drive.clone();
        world.runtime.spawn(async move {
            reader.read(0, &mut vec![0; SCATTERED]).await.unwrap();
        });
        world.run(world.runtime.sleep_ns(round * 15_000));
        for (at, is_trim) in [(100 * BLOCK_BYTES, false), (200 * BLOCK_BYTES, true)] {
            let block = &mut data[at..at + BLOCK_BYTES];
            block.fill(if is_trim { 0 } else { 0xee });
            let change = match is_trim {
                true => world.run(drive.trim(at as u64, BLOCK)),
                false => world.write(&drive, at as u64, block),
            };
            change.unwrap();
        }
        world.run(world.runtime.sleep_ns(1_000_000_000));
        reordered += drive.info().operations.reordered_bytes;
        assert!(world.read(&drive, 0, SCATTERED).unwrap() == data, "round {round}");
        drive = world.reopen(drive);
        assert!(world.read(&drive, 0, SCATTERED).unwrap() == data, "round {round}, opened again");
    }
    assert!(reordered > 20 * SCATTERED as u64, "too tame a test: {reordered}");
    world.close(drive);
}

/// Reading must not cost space that a snapshot retains, or that is scarce, and must not change what
/// a bookmark compares.
#[test]
fn blocks_stay_where_snapshots_or_a_full_drive_need_them() {
    for (size, segments) in [(SIZE, 20), (2 * SIZE, 4)] {
        let world = World::new(small(size, segments));
        let mut drive = world.open();
        let mut random = random(3);
        world.write(&drive, 0, &payload::noise(&mut random, size as usize)).unwrap();
        let data = scatter(&world, &drive, &mut random);
        if segments == 20 {
            world.run(drive.create_snapshot(snapshots::new("before", 1))).unwrap();
        }
        drive = world.reopen(drive);
        assert!(media_reads(&world, &drive, &data) > 100, "too tame a test");
        assert_eq!(drive.info().operations.reordered_bytes, 0, "{segments} segments");
        world.close(drive);
    }
}
