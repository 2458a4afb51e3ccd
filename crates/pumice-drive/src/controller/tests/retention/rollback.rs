//! Goal: a disk that is rolled back becomes the snapshot's disk, atomically; suspended changes wait
//! no longer than necessary; only snapshots that may yield are deleted to free space. Method:
//! drives that are overwritten and emptied, power loss at every half millisecond.

use rand::RngExt;

use super::snapshots::{Disk, SIZE, names, new, rest, whole};
use super::*;

/// Checks the accounts while no checkpoint is being written.
fn settle(drive: &Drive) {
    runtime(drive).block_on(drive.checkpoint()).unwrap();
    assert_accounting(drive);
}

/// Returns an open drive with a disk, and the disk's content when snapshot "a" was taken.
fn with_snapshot(seed: u64, writes: u32) -> (Disk, Rc<Drive>, Vec<u8>) {
    let mut disk = Disk::new(seed);
    let (drive, a) = taken(&mut disk, writes);
    (disk, drive, a)
}

fn taken(disk: &mut Disk, writes: u32) -> (Rc<Drive>, Vec<u8>) {
    let drive = disk.world.open();
    disk.write_some(&drive, writes);
    disk.take(&drive, "a");
    (drive, disk.plain.clone())
}

#[test]
fn a_disk_is_rolled_back() {
    let (mut disk, drive, a) = with_snapshot(31, 60);
    disk.write_around(&drive);
    disk.write_some(&drive, 20);
    disk.take(&drive, "b");
    disk.trim_all(&drive);
    (0..4).for_each(|_| disk.write_around(&drive));
    let refused = disk.world.run(drive.roll_back("a", false)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.chain().contains("b is newer than a"), "{}", refused.chain());
    disk.compare(&drive);
    settle(&drive);
    let missing = disk.world.run(drive.roll_back("c", true)).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    disk.compare(&drive);
    disk.world.run(drive.roll_back("a", true)).unwrap();
    assert_eq!(names(&drive), ["a"]);
    disk.plain.clone_from(&a);
    disk.compare(&drive);
    settle(&drive);
    let drive = disk.world.reopen(drive);
    disk.compare(&drive);
    settle(&drive);
    // The disk is like any other, and the snapshot still exists.
    disk.write_some(&drive, 20);
    disk.take(&drive, "c");
    (0..4).for_each(|_| disk.write_around(&drive));
    rest(&disk.world);
    disk.compare(&drive);
    settle(&drive);
    disk.world.run(drive.roll_back("c", false)).unwrap();
    disk.world.close(drive);
    assert_eq!(disk.world.check().problems, []);
    assert!(whole(&disk.world, "a") == a);
    let c = whole(&disk.world, "c");
    let drive = disk.world.open();
    assert!(disk.world.read(&drive, 0, c.len()).unwrap() == c);
    disk.world.close(drive);
}

/// Garbage collection has copied frames that the snapshot's map refers to, and their old locations
/// have been reused.
#[test]
fn a_disk_is_rolled_back_to_frames_that_were_copied() {
    for seed in 40..44 {
        let mut disk = Disk::with_segments(seed, 17);
        let (drive, a) = taken(&mut disk, 60);
        for _ in 0..12 {
            disk.write_around(&drive);
            rest(&disk.world);
        }
        assert!(drive.core().forwards().copies().count() > 0, "nothing was copied");
        disk.world.run(drive.roll_back("a", false)).unwrap();
        disk.plain.clone_from(&a);
        disk.compare(&drive);
        settle(&drive);
        let drive = disk.world.reopen(drive);
        disk.compare(&drive);
        settle(&drive);
        (0..4).for_each(|_| disk.write_some(&drive, 40));
        rest(&disk.world);
        disk.compare(&drive);
        settle(&drive);
        disk.world.close(drive);
        assert_eq!(disk.world.check().problems, []);
        assert!(whole(&disk.world, "a") == a);
    }
}

/// Data written after a crash and another replay of the log belongs to the disk.
#[test]
fn power_loss_in_a_rollback_leaves_one_disk_or_the_other() {
    let (mut disk, drive, a) = with_snapshot(32, 30);
    disk.write_some(&drive, 20);
    disk.take(&drive, "b");
    let b = disk.plain.clone();
    disk.write_some(&drive, 20);
    disk.world.run(drive.flush()).unwrap();
    disk.world.close(drive);
    let mut ends = [0; 2];
    for step in 0.. {
        let world = World { seed: step, ..disk.world.copy() };
        let latency_ns = 1_000_000..=1_000_000;
        let drive = world.open();
        drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
        let rolling = drive.roll_back("a", true);
        let ended = world.run(world.runtime.timeout(step * 500_000, rolling)).is_some();
        world.run(drive.layers().crash()).unwrap();
        world.kill(drive);
        let mut drive = world.open();
        let found = names(&drive);
        let is_back = found == ["a"];
        assert!(is_back || found == ["a", "b"], "{found:?}");
        ends[usize::from(is_back)] += 1;
        let mut plain = if is_back { a.clone() } else { disk.plain.clone() };
        assert!(world.read(&drive, 0, plain.len()).unwrap() == plain, "step {step}");
        settle(&drive);
        for _ in 0..2 {
            for _ in 0..30 {
                let data = payload::noise(&mut disk.random, 1 << 20);
                let offset = disk.random.random_range(0..7_u64) << 20;
                world.write(&drive, offset, &data).unwrap();
                plain[offset as usize..][..data.len()].copy_from_slice(&data);
            }
            drive = world.reopen(drive);
            assert!(world.read(&drive, 0, plain.len()).unwrap() == plain, "step {step}");
        }
        world.close(drive);
        assert!(whole(&world, "a") == a, "step {step}");
        assert!(is_back || whole(&world, "b") == b, "step {step}");
        assert_eq!(world.check().problems, [], "step {step}");
        if ended {
            assert!(is_back, "it is durable when the call returns");
            break;
        }
    }
    assert!(ends[0] > 3 && ends[1] > 0, "{ends:?}");
}

/// A rollback that is abandoned halfway, at each operation of the medium in turn, may have taken
/// effect in memory only.
#[test]
fn a_rollback_given_up_takes_no_writes() {
    let (mut disk, drive, a) = with_snapshot(33, 30);
    disk.write_some(&drive, 20);
    disk.world.run(drive.flush()).unwrap();
    disk.world.close(drive);
    let mut begun = 0;
    for step in 0.. {
        let world = disk.world.copy();
        let drive = world.open();
        let latency_ns = 1_000_000..=1_000_000;
        drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
        let rolling = drive.roll_back("a", false);
        if world.run(world.runtime.timeout(step * 500_000, rolling)).is_some() {
            world.kill(drive);
            break;
        }
        drive.layers().set_plan(FaultPlan::default());
        match kind(world.run(drive.write(0, &[1; 4096]))) {
            None => {
                let found = world.read(&drive, 4096, a.len() - 4096).unwrap();
                assert!(found == disk.plain[4096..], "step {step}: another disk takes writes");
            }
            Some(kind) => {
                assert_eq!(kind, ErrorKind::Poisoned, "step {step}");
                begun += 1;
            }
        }
        world.kill(drive);
        let drive = world.open();
        let found = world.read(&drive, 4096, a.len() - 4096).unwrap();
        assert!(found == a[4096..] || found == disk.plain[4096..], "one disk or the other");
        world.close(drive);
        assert_eq!(world.check().problems, [], "step {step}");
    }
    assert!(begun > 5, "too tame a test: {begun}");
}

/// The host starts to use the disk while the map of the snapshot is being read.
#[test]
fn a_disk_that_a_host_has_begun_to_use_is_not_rolled_back() {
    let (mut disk, drive, a) = with_snapshot(37, 30);
    disk.write_some(&drive, 20);
    disk.world.run(drive.flush()).unwrap();
    let drive = disk.world.reopen(drive);
    let is_used = Rc::new(Cell::new(false));
    let condition = || -> Condition {
        let is_used = is_used.clone();
        Rc::new(move || match is_used.get() {
            true => Err(Error::new(ErrorKind::Busy, "a host uses it")),
            false => Ok(()),
        })
    };
    let latency_ns = 1_000_000..=1_000_000;
    drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
    let host = async {
        disk.world.runtime.clone().sleep_ns(1_500_000).await;
        is_used.set(true);
        let mut block = vec![0; BLOCK_BYTES];
        drive.read(0, &mut block).await.unwrap();
        assert!(block == disk.plain[..BLOCK_BYTES]);
    };
    let rolling = drive.roll_back_if("a", false, condition());
    let (rolled, ()) = disk.world.run(futures_util::future::join(rolling, host));
    assert_eq!(kind(rolled), Some(ErrorKind::Busy));
    drive.layers().set_plan(FaultPlan::default());
    disk.compare(&drive);
    disk.write_some(&drive, 20);
    settle(&drive);
    let drive = disk.world.reopen(drive);
    disk.compare(&drive);
    is_used.set(false);
    disk.world.run(drive.roll_back_if("a", false, condition())).unwrap();
    disk.plain = a;
    disk.compare(&drive);
    settle(&drive);
    disk.world.close(drive);
    assert_eq!(disk.world.check().problems, []);
}

#[test]
fn a_grown_disk_that_is_rolled_back_keeps_its_size() {
    let (disk, drive, mut wanted) = with_snapshot(34, 30);
    let grown = SIZE + (4 << 20);
    let resize = Resize { size_bytes: Some(grown), ..Resize::default() };
    disk.world.run(drive.resize(resize)).unwrap();
    disk.world.write(&drive, SIZE, &[7; 1 << 20]).unwrap();
    disk.world.run(drive.roll_back("a", false)).unwrap();
    wanted.resize(grown as usize, 0);
    assert_eq!(drive.size_bytes(), grown);
    assert!(disk.world.read(&drive, 0, wanted.len()).unwrap() == wanted);
    settle(&drive);
    let drive = disk.world.reopen(drive);
    assert!(disk.world.read(&drive, 0, wanted.len()).unwrap() == wanted);
    disk.world.close(drive);
    assert_eq!(disk.world.check().problems, []);
}

#[test]
fn changes_wait_until_the_snapshot_is_begun() {
    let mut disk = Disk::new(35);
    let drive = disk.world.open();
    disk.write_some(&drive, 30);
    let before = disk.plain.clone();
    disk.world.run(async {
        let suspended = drive.suspend_changes(new("a", 1).guid).await.unwrap();
        let data = vec![9; 8192];
        let mut writing = std::pin::pin!(drive.write(0, &data));
        let waits = disk.world.runtime.timeout(1_000_000_000, writing.as_mut()).await;
        assert!(waits.is_none(), "a write does not wait");
        assert!(!suspended.are_in_the_snapshot());
        drive.create_snapshot(new("a", 1)).await.unwrap();
        assert!(suspended.are_in_the_snapshot());
        writing.await.unwrap();
        drop(suspended);
        // Changes are resumed without a snapshot.
        let suspended = drive.suspend_changes(new("a", 1).guid).await.unwrap();
        let mut trimming = std::pin::pin!(drive.trim_durable(0, 4096));
        let waits = disk.world.runtime.timeout(1_000_000_000, trimming.as_mut()).await;
        assert!(waits.is_none(), "a trim does not wait");
        drop(suspended);
        trimming.await.unwrap();
    });
    disk.world.close(drive);
    assert!(whole(&disk.world, "a") == before);
}

/// A snapshot for which changes were suspended represents that moment, even if another one is begun
/// first. If changes are resumed before it is begun, no snapshot is taken.
#[test]
fn nothing_that_was_suspended_for_a_snapshot_is_in_it() {
    let mut late = 0;
    for step in 0..24 {
        let mut disk = Disk::new(37);
        let drive = disk.world.open();
        disk.write_some(&drive, 30);
        let latency_ns = 500_000..=500_000;
        drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
        let created = disk.world.run(async {
            let suspended = drive.suspend_changes(new("a", 2).guid).await.unwrap();
            let letting = async {
                disk.world.runtime.clone().sleep_ns(step * 250_000).await;
                drop(suspended);
            };
            let other = drive.create_snapshot(new("other", 1));
            let create = drive.create_snapshot(new("a", 2));
            let data = vec![9; 8192];
            let write = drive.write(0, &data);
            futures_util::future::join4(other, create, write, letting).await.1
        });
        disk.world.close(drive);
        match created {
            Ok(_) => assert!(whole(&disk.world, "a") == disk.plain, "step {step}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "step {step}: {error:?}");
                late += 1;
            }
        }
    }
    assert!((1..24).contains(&late), "{late} of 24 were let go too early");
}

#[test]
fn snapshots_that_yield_are_given_up_oldest_first_before_a_write_is_refused() {
    let mut disk = Disk::new(36);
    // On a thin drive, the host's writes do not fit next to the snapshots.
    disk.world = World { seed: 36, ..World::new(small(8 * SIZE, 24)) };
    disk.plain = vec![0; 8 * SIZE as usize];
    let drive = disk.world.open();
    for number in 1.. {
        let data = payload::noise(&mut disk.random, 4 << 20);
        disk.world.write(&drive, 0, &data).unwrap();
        if number == 1 {
            disk.plain[..data.len()].copy_from_slice(&data);
        }
        let new = NewSnapshot { yields: number > 1, ..new(&number.to_string(), number) };
        // Snapshots are created as long as there is space for them.
        if disk.world.run(drive.create_snapshot(new)).is_err() {
            break;
        }
    }
    let mut seen = vec![names(&drive)];
    let refused = (0..2000_u64).find_map(|at| {
        let data = payload::noise(&mut disk.random, 64 << 10);
        let result = disk.world.run(drive.write((at * 7 % 1023) << 16, &data));
        if seen.last() != Some(&names(&drive)) {
            seen.push(names(&drive));
        }
        result.err()
    });
    assert!(refused.is_none() || names(&drive) == ["1"], "refused with {:?}", names(&drive));
    assert!(seen.len() > 1, "some were given up: {seen:?}");
    for (before, after) in seen.iter().zip(&seen[1..]) {
        assert_eq!(after.first().unwrap(), "1", "it does not yield");
        assert!(before[2..].ends_with(&after[1..]), "the oldest that yields go: {seen:?}");
    }
    disk.world.close(drive);
    assert_eq!(disk.world.check().problems, []);
    assert!(whole(&disk.world, "1") == disk.plain);
}

/// Trimmed blocks that were not yet subtracted when a snapshot was taken count in its segment
/// table, for segments that have been reused when the disk is rolled back.
#[test]
fn a_disk_is_rolled_back_to_trims_that_were_not_taken_down() {
    let mut disk = Disk::new(45);
    let drive = disk.world.open_without_collector();
    disk.write_around(&drive);
    disk.world.run(drive.flush()).unwrap();
    disk.world.close(drive);
    // No leaf is in memory, so the blocks of a trim are not subtracted automatically.
    let drive = disk.world.open_without_collector();
    let taking = async {
        let turn = drive.turn().await;
        let trim = async {
            disk.world.runtime.clone().sleep_ns(1).await;
            drive.trim(0, SIZE).await.unwrap();
            assert!(!drive.core().map().missing_to_reap(1).is_empty(), "too tame a test");
            drop(turn);
        };
        let (taken, ()) =
            futures_util::future::join(drive.create_snapshot(new("t", 1)), trim).await;
        taken.unwrap();
    };
    disk.world.run(taking);
    disk.plain.fill(0);
    reap_all(&drive);
    disk.world.run(drive.checkpoint()).unwrap();
    assert!(empty_all_retained(&disk.world, &drive) > 0);
    let plain = disk.plain.clone();
    disk.write_around(&drive);
    disk.world.run(drive.roll_back("t", false)).unwrap();
    disk.plain = plain;
    disk.write_some(&drive, 4);
    disk.compare(&drive);
    settle(&drive);
    let drive = disk.world.reopen(drive);
    disk.write_some(&drive, 4);
    disk.compare(&drive);
    settle(&drive);
    disk.world.close(drive);
    assert_eq!(disk.world.check().problems, []);
}

/// More leaves name copied frames than stay in memory.
#[test]
fn copied_frames_are_followed_with_any_map_cache() {
    const LEAF_BYTES: u64 = 4 << 20;
    const LEAVES: u64 = 40;
    let world = World { seed: 46, ..World::new(small(LEAVES * LEAF_BYTES, 30)) };
    let drive = world.open_without_collector();
    let mut random = crate::base::seed::random(46);
    let mut write_all = |drive: &Drive| -> Vec<Vec<u8>> {
        let write = |leaf| {
            let data = payload::noise(&mut random, 256 << 10);
            world.write(drive, leaf * LEAF_BYTES, &data).unwrap();
            data
        };
        (0..LEAVES).map(write).collect()
    };
    let old = write_all(&drive);
    world.run(drive.create_snapshot(new("a", 1))).unwrap();
    write_all(&drive);
    world.run(drive.checkpoint()).unwrap();
    assert!(empty_all_retained(&world, &drive) > 1, "too tame a test");
    write_all(&drive);
    world.run(drive.flush()).unwrap();
    world.close(drive);
    // Eight clean leaves stay, whatever the budget.
    let options = OpenOptions { map_cache_bytes: 2 << 10, ..OpenOptions::default() };
    let drive = world.try_open(options).unwrap();
    assert!(drive.core().forwards().copies().count() > 0, "nothing was copied");
    world.run(drive.roll_back("a", false)).unwrap();
    let drive = world.reopen(drive);
    for (leaf, data) in (0..).zip(&old) {
        let found = world.read(&drive, leaf * LEAF_BYTES, data.len()).unwrap();
        assert!(found == *data, "leaf {leaf}");
    }
    settle(&drive);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Empties and frees the segments of the host that only snapshots need; returns their number.
fn empty_all_retained(world: &World, drive: &Drive) -> usize {
    let retained: Vec<SegmentId> = {
        let core = drive.core();
        let space = core.space();
        let is_old = |segment: &SegmentId| {
            let is_open = space.is_open(*segment, Stream::Host, space.generation(*segment));
            space.is_retained(*segment) && space.stream(*segment) == Stream::Host && !is_open
        };
        space.used().map(|used| used.segment).filter(is_old).collect()
    };
    for &segment in &retained {
        world.run(drive.empty_retained(segment)).unwrap();
        while !drive.core().empty_segments().contains(&segment) {
            world.run(drive.checkpoint()).unwrap();
        }
        world.run(drive.flush()).unwrap();
        drive.with_core(|core| core.free_segment(segment));
    }
    retained.len()
}
