//! Goal: a leaf of the map that is damaged beyond restoring costs its own blocks and nothing else:
//! they fail until they are written or trimmed, space is still freed, and what the leaf mapped is
//! kept for a rebuild.
//! Method: a record of a leaf and the parity of its batch are damaged in a closed drive.

use rand::RngExt;

use super::parity::ruin;
use super::*;
use crate::base::seed::random;
use crate::controller::rebuild::Way;
use crate::format::DirectoryEntry;

const LEAF_BYTES: u64 = 4 << 20;
const SIZE: u64 = 3 * LEAF_BYTES;

/// A drive of three leaves, written in random order, whose first leaf is lost; and what the disk
/// held.
fn without_first_leaf() -> (World, Vec<u8>) {
    let world = World::new(small(SIZE, 5));
    let drive = world.open();
    let mut random = random(1);
    let mut plain = vec![0; SIZE as usize];
    let scattered = (0..4000).map(|_| random.random_range(0..SIZE / BLOCK) * BLOCK);
    let spread = (0..SIZE).step_by(BLOCK_BYTES * 8);
    for at in scattered.collect::<Vec<_>>().into_iter().chain(spread) {
        let data = payload::noise(&mut random, BLOCK_BYTES);
        world.write(&drive, at, &data).unwrap();
        plain[at as usize..][..data.len()].copy_from_slice(&data);
    }
    world.close(drive);
    // Closing may have written it again.
    let drive = world.try_open(OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    let entry = drive.core().map().entry(0);
    world.close(drive);
    let DirectoryEntry::Leaf(place) = entry else { panic!("leaf 0 is {entry:?}") };
    ruin(&world, place.segment, place.offset);
    (world, plain)
}

fn assert_lost(world: &World, drive: &TestDrive, block: u64) {
    let found = kind(world.read(drive, block * BLOCK, BLOCK_BYTES));
    assert_eq!(found, Some(ErrorKind::Corrupt), "block {block}");
}

/// Overwrites all other leaves several times.
fn churn(world: &World, drive: &TestDrive) {
    let mut random = random(2);
    for _ in 0..200 {
        let at = random.random_range((LEAF_BYTES / BLOCK)..(SIZE / BLOCK - 128)) * BLOCK;
        world.write(drive, at, &payload::noise(&mut random, 128 * BLOCK_BYTES)).unwrap();
    }
    assert!(drive.info().operations.gc_victims > 0, "nothing was collected");
}

#[test]
fn writing_blocks_of_a_lost_leaf_heals_them_and_no_others() {
    let (world, _) = without_first_leaf();
    let drive = world.open();
    assert_lost(&world, &drive, 8);
    let says_lost = |drive: &TestDrive| {
        drive.info().alerts.iter().any(|alert| alert.what.contains("part of the map was lost"))
    };
    let data = payload::noise(&mut random(3), 2 * BLOCK_BYTES);
    world.write(&drive, 8 * BLOCK, &data).unwrap();
    assert!(says_lost(&drive));
    world.run(drive.trim(16 * BLOCK, 3 * BLOCK, false)).unwrap();
    let assert_healed = |drive: &TestDrive| {
        assert!(world.read(drive, 8 * BLOCK, data.len()).unwrap() == data);
        assert!(world.read(drive, 16 * BLOCK, 3 * BLOCK_BYTES).unwrap() == [0; 3 * BLOCK_BYTES]);
        for block in [0, 7, 10, 15, 19, 1023] {
            assert_lost(&world, drive, block);
        }
    };
    assert_healed(&drive);
    // A death, then an end in order: the log, then the checkpoint says so.
    world.run(drive.flush()).unwrap();
    world.kill(drive);
    let drive = world.open();
    assert_healed(&drive);
    let drive = world.reopen(drive);
    assert_healed(&drive);
    let drive = world.reopen(drive);
    assert_healed(&drive);
    assert!(says_lost(&drive));
    world.close(drive);
    assert!(world.check().problem_count > 0);
}

#[test]
fn a_trim_heals_a_lost_leaf_and_space_is_freed() {
    let (world, _) = without_first_leaf();
    let drive = world.open();
    world.run(drive.trim(0, LEAF_BYTES, false)).unwrap();
    assert!(world.read(&drive, 0, 65536).unwrap() == [0; 65536]);
    let data = payload::noise(&mut random(3), BLOCK_BYTES);
    world.write(&drive, BLOCK, &data).unwrap();
    churn(&world, &drive);
    assert!(world.read(&drive, BLOCK, BLOCK_BYTES).unwrap() == data);
    let drive = world.reopen(drive);
    churn(&world, &drive);
    assert!(world.read(&drive, BLOCK, BLOCK_BYTES).unwrap() == data);
    world.close(drive);
}

/// Lives of all kinds follow the loss; in the end each block that the leaf mapped is found in the
/// records, as the host wrote it last.
#[test]
fn garbage_collection_keeps_what_a_lost_leaf_mapped() {
    let (world, plain) = without_first_leaf();
    let drive = world.open();
    churn(&world, &drive);
    assert_lost(&world, &drive, 8);
    world.kill(drive);
    let drive = world.open();
    churn(&world, &drive);
    let drive = world.reopen(drive);
    churn(&world, &drive);
    assert_lost(&world, &drive, 8);
    let written = payload::noise(&mut random(9), 2 * BLOCK_BYTES);
    world.write(&drive, 40 * BLOCK, &written).unwrap();
    churn(&world, &drive);
    let mut others = vec![0; (SIZE - LEAF_BYTES) as usize];
    world.run(drive.read(LEAF_BYTES, &mut others)).unwrap();
    world.close(drive);
    let rebuilt = super::rebuilding::rebuild(&world);
    assert_eq!(rebuilt.way, Way::Records);
    let mut expected = plain;
    expected[40 * BLOCK_BYTES..42 * BLOCK_BYTES].copy_from_slice(&written);
    expected[LEAF_BYTES as usize..].copy_from_slice(&others);
    let pairs = rebuilt.disk.chunks(BLOCK_BYTES).zip(expected.chunks(BLOCK_BYTES)).enumerate();
    let wrong: Vec<usize> =
        pairs.filter(|(_, (found, expected))| found != expected).map(|(block, _)| block).collect();
    assert_eq!(wrong, [], "blocks that a rebuild does not find");
}
