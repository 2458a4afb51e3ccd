//! Goal: a leaf of the map that is damaged beyond repair affects only its own blocks: they fail
//! until they are written or trimmed, space is still freed, and a rebuild reports the loss. Method:
//! a record of a leaf and the parity of its batch are damaged in a closed drive.

use rand::RngExt;

use super::parity::ruin;
use super::*;
use crate::base::seed::random;
use crate::format::{DirectoryEntry, MetadataAddress};
use crate::media::layer::Trigger;

const LEAF_BYTES: u64 = 4 << 20;
const SIZE: u64 = 3 * LEAF_BYTES;

/// Returns a drive of three leaves, written in random order; the content of the disk, and the
/// location of its first leaf.
fn three_leaves() -> (World, Vec<u8>, MetadataAddress) {
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
    // Closing may have rewritten the leaf.
    let drive = world.try_open(OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    let entry = drive.core().map().entry(0);
    world.close(drive);
    let DirectoryEntry::Leaf(place) = entry else { panic!("leaf 0 is {entry:?}") };
    (world, plain, place)
}

/// Returns the same drive with its first leaf lost.
fn without_first_leaf() -> (World, Vec<u8>) {
    let (world, plain, place) = three_leaves();
    ruin(&world, place.segment, place.offset);
    (world, plain)
}

fn assert_lost(world: &World, drive: &Drive, block: u64) {
    let found = kind(world.read(drive, block * BLOCK, BLOCK_BYTES));
    assert_eq!(found, Some(ErrorKind::Corrupt), "block {block}");
}

/// Overwrites all other leaves several times.
fn churn(world: &World, drive: &Drive) {
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
    let says_lost = |drive: &Drive| {
        drive.info().alerts.iter().any(|alert| alert.what.contains("leaves of the map were lost"))
    };
    let data = payload::noise(&mut random(3), 2 * BLOCK_BYTES);
    world.write(&drive, 8 * BLOCK, &data).unwrap();
    assert!(says_lost(&drive));
    world.run(drive.trim(16 * BLOCK, 3 * BLOCK)).unwrap();
    let assert_healed = |drive: &Drive| {
        assert!(world.read(drive, 8 * BLOCK, data.len()).unwrap() == data);
        assert!(world.read(drive, 16 * BLOCK, 3 * BLOCK_BYTES).unwrap() == [0; 3 * BLOCK_BYTES]);
        for block in [0, 7, 10, 15, 19, 1023] {
            assert_lost(&world, drive, block);
        }
    };
    assert_healed(&drive);
    // A crash, then an orderly end: first the log records the loss, then the checkpoint.
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
    world.run(drive.trim(0, LEAF_BYTES)).unwrap();
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

/// Lives of all kinds follow the loss. Garbage collection frees the frames that the leaf mapped,
/// and a rebuild finds the loss and no older content of the blocks.
#[test]
fn frames_of_a_lost_leaf_are_freed_and_nothing_older_is_returned() {
    let (world, _) = without_first_leaf();
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
    let stuck = drive.core().space().views().filter(|view| view.is_stuck).count();
    assert_eq!(stuck, 0, "segments that cannot be emptied");
    let mut others = vec![0; (SIZE - LEAF_BYTES) as usize];
    world.run(drive.read(LEAF_BYTES, &mut others)).unwrap();
    world.run(drive.audit()).unwrap();
    let report = world.run(drive.scrub(0)).unwrap();
    let is_of_leaf = |problem: &Problem| problem.lba.is_some_and(|lba| lba < LEAF_BYTES / BLOCK);
    assert!(report.problems.iter().all(is_of_leaf), "{:?}", report.problems);
    assert!(!report.problems.is_empty(), "a scrub lists what is lost");
    world.close(drive);
    for has_superblocks in [true, false] {
        if !has_superblocks {
            super::rebuilding::zero_superblocks(&world);
        }
        let rebuilt = super::rebuilding::rebuild(&world);
        assert!(rebuilt.disk[LEAF_BYTES as usize..] == others);
        let blocks = rebuilt.disk[..LEAF_BYTES as usize].chunks(BLOCK_BYTES).enumerate();
        for (block, found) in blocks {
            let expected: &[u8] = match block {
                40 | 41 => &written[(block - 40) * BLOCK_BYTES..][..BLOCK_BYTES],
                _ => &[0; BLOCK_BYTES],
            };
            assert!(found == expected, "block {block}");
        }
    }
}

/// One page of the leaf is damaged. Parity restores it, but only when the rest can be read.
#[test]
fn a_passing_fault_makes_no_leaf_lost() {
    let world = World::new(small(SIZE, 5));
    let drive = world.open();
    let mut random = random(4);
    for at in (0..LEAF_BYTES).step_by(BLOCK_BYTES) {
        world.write(&drive, at, &payload::noise(&mut random, BLOCK_BYTES)).unwrap();
    }
    let mut plain = vec![0; LEAF_BYTES as usize];
    world.run(drive.read(0, &mut plain)).unwrap();
    let drive = world.reopen(drive);
    let DirectoryEntry::Leaf(place) = drive.core().map().entry(0) else { panic!("no leaf 0") };
    world.flip(place.segment.0, place.offset + 60);
    let plan = FaultPlan {
        read_errors: Trigger::Probability(0.5),
        read_corruptions: Trigger::Probability(0.3),
        ..FaultPlan::default()
    };
    drive.layers().set_plan(plan);
    for _ in 0..50 {
        // The write may fail, as long as no data is lost.
        drop(world.write(&drive, LEAF_BYTES - BLOCK, &plain[plain.len() - BLOCK_BYTES..]));
    }
    drive.layers().set_plan(FaultPlan::default());
    assert_eq!(drive.core().lost_leaves(), 0);
    let mut read = vec![0; plain.len()];
    world.run(drive.read(0, &mut read)).unwrap();
    assert!(read == plain);
}

/// A leaf that cannot be read is given up as late as a frame, and only if the medium can be read
/// elsewhere.
#[test]
fn a_leaf_that_cannot_be_read_for_long_becomes_lost() {
    let (world, _, place) = three_leaves();
    let bad = Rc::new(reading::BadSector { inner: world.memory.clone(), bad: RefCell::new(None) });
    let options = OpenOptions::default();
    let opening = Drive::open_without_tasks(bad.clone(), world.runtime.clock(), options);
    let drive = Rc::new(world.run(opening).unwrap());
    let (writer, syncer) = (drive.clone(), drive.clone());
    world.runtime.spawn(async move { writer.run_writer().await });
    world.runtime.spawn(async move { syncer.run_syncer().await });
    let start = place.offset / 4096 * 4096;
    *bad.bad.borrow_mut() = Some((place.segment, start..start + (1 << 20)));
    let write = || world.run(drive.write_durable(8 * BLOCK, &[7; BLOCK_BYTES]));
    assert_eq!(kind(write()), Some(ErrorKind::Medium));
    world.run(world.runtime.sleep_ns(200_000_000_000));
    assert_eq!(kind(write()), Some(ErrorKind::Medium));
    world.run(world.runtime.sleep_ns(110_000_000_000));
    write().unwrap();
    assert_eq!(drive.core().lost_leaves(), 1);
    let mut read = vec![0; BLOCK_BYTES];
    world.run(drive.read(8 * BLOCK, &mut read)).unwrap();
    assert_eq!(read, [7; BLOCK_BYTES]);
    world.run(drive.read(9 * BLOCK, &mut read)).unwrap_err();
    *bad.bad.borrow_mut() = None;
    assert_eq!(kind(world.run(drive.read(9 * BLOCK, &mut read))), Some(ErrorKind::Corrupt));
    world.run(drive.read(LEAF_BYTES, &mut read)).unwrap();
    world.runtime.drop_tasks();
}

/// Requests that find a leaf being read count together, so that none of them waits forever.
#[test]
fn many_writes_to_a_lost_leaf_end() {
    let (world, _) = without_first_leaf();
    let drive = world.open_without_collector();
    let latency_ns = 2_000_000..=2_000_000;
    drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
    let data = [7; BLOCK_BYTES];
    let writes = (0..32).map(|block| drive.write(block * BLOCK, &data));
    let all = futures_util::future::try_join_all(writes);
    let ended = world.run(world.runtime.timeout(5_000_000_000, all));
    ended.expect("the writes end").unwrap();
    world.kill(drive);
}

/// If the disk ends within its last leaf, the leaf has no blocks beyond the disk.
#[test]
fn the_last_leaf_of_the_disk_may_be_lost() {
    let size = LEAF_BYTES + 5 * BLOCK;
    let world = World::new(small(size, 5));
    let drive = world.open();
    let data = payload::noise(&mut random(1), 5 * BLOCK_BYTES);
    world.write(&drive, LEAF_BYTES, &data).unwrap();
    world.close(drive);
    let drive = world.try_open(OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    let DirectoryEntry::Leaf(place) = drive.core().map().entry(1) else { panic!("no leaf 1") };
    world.close(drive);
    ruin(&world, place.segment, place.offset);
    let drive = world.open_without_collector();
    world.write(&drive, LEAF_BYTES, &data[..BLOCK_BYTES]).unwrap();
    world.run(drive.with_room(crate::controller::core::Core::append_lost)).unwrap();
    world.run(drive.flush()).unwrap();
    world.kill(drive);
    let drive = world.open();
    assert!(world.read(&drive, LEAF_BYTES, BLOCK_BYTES).unwrap() == data[..BLOCK_BYTES]);
    assert_lost(&world, &drive, LEAF_BYTES / BLOCK + 1);
    let drive = world.reopen(drive);
    assert_lost(&world, &drive, LEAF_BYTES / BLOCK + 4);
    world.close(drive);
}
