//! Goal: the data that snapshots need is found after any crash and next to any damage: a segment
//! being emptied, a damaged table of moved frames, a log that ends beyond many segments that hold
//! only data of snapshots. Method: power loss at each operation of the medium in turn, and wrong
//! bytes at a known location; each disk is compared with its content when its snapshot was taken.

use super::database::{Database, PAGES};
use super::snapshots::{Disk, changed, names, whole};
use super::*;
use crate::base::seed::random;

/// Returns a disk with two snapshots, and a full segment in which they need some frames and others
/// are dead.
fn with_two_snapshots(seed: u64) -> (Disk, [Vec<u8>; 2], SegmentId) {
    let mut disk = Disk::new(seed);
    let drive = disk.world.open_without_collector();
    disk.write_around(&drive);
    disk.write_some(&drive, 10);
    disk.take(&drive, "a");
    let a = disk.plain.clone();
    disk.write_some(&drive, 20);
    disk.take(&drive, "b");
    let b = disk.plain.clone();
    disk.write_some(&drive, 20);
    disk.world.run(drive.flush()).unwrap();
    let victim = {
        let core = drive.core();
        let space = core.space();
        let is_victim = |segment: &SegmentId| {
            let is_of_host = space.stream(*segment) == Stream::Host;
            let is_open = space.is_open(*segment, Stream::Host, space.generation(*segment));
            is_of_host && !is_open && space.retained_by(*segment) == 2
        };
        let dead = |segment: &SegmentId| {
            space.needed_bytes_of(*segment, SEGMENT_BYTES) - space.live_bytes_of(*segment)
        };
        let victim = (0..24).map(SegmentId).filter(is_victim).max_by_key(dead);
        let victim = victim.expect("a full segment that both need");
        assert!(dead(&victim) > 200_000, "too tame a test: {}", dead(&victim));
        victim
    };
    disk.world.close(drive);
    (disk, [a, b], victim)
}

/// Moves all needed data out of a segment, up to the checkpoint after which the segment is free.
async fn empty(drive: &Drive, victim: SegmentId) {
    drive.empty_retained(victim).await.unwrap();
    drive.checkpoint().await.unwrap();
    drive.checkpoint().await.unwrap();
    drive.flush().await.unwrap();
    let is_free = drive.core().empty_segments().contains(&victim);
    assert!(is_free, "what was needed is elsewhere");
    drive.with_core(|core| core.free_segment(victim));
}

/// The power fails at each operation of the medium in turn.
#[test]
fn power_loss_at_each_step_of_emptying_a_segment_changes_no_snapshot() {
    let (mut disk, [a, b], victim) = with_two_snapshots(41);
    let mut ends = [0, 0];
    for step in 0.. {
        let world = World { seed: step, ..disk.world.copy() };
        let drive = world.open_without_collector();
        let plan = FaultPlan { latency_ns: 1_000_000..=1_000_000, ..FaultPlan::default() };
        drive.layers().set_plan(plan);
        let emptying = empty(&drive, victim);
        let ended = world.run(world.runtime.timeout(step * 500_000, emptying)).is_some();
        world.run(drive.layers().crash()).unwrap();
        world.kill(drive);
        let drive = world.open();
        world.audit(&drive);
        ends[usize::from(drive.core().forwards().is_used())] += 1;
        let read = world.read(&drive, 0, disk.plain.len()).unwrap();
        assert!(read == disk.plain, "the disk at step {step}");
        // Free segments are written to.
        for _ in 0..20 {
            let data = payload::noise(&mut disk.random, 1 << 20);
            world.write(&drive, 0, &data).unwrap();
        }
        world.close(drive);
        assert!(whole(&world, "a") == a, "a at step {step}");
        assert!(whole(&world, "b") == b, "b at step {step}");
        if ended {
            break;
        }
    }
    assert!(ends[0] > 5 && ends[1] > 2, "too tame a test: {ends:?}");
}

/// Messages name the snapshots that need the table, and everything else is intact.
#[test]
fn a_damaged_table_of_moved_frames_costs_snapshots_only() {
    let (mut disk, [_, b], victim) = with_two_snapshots(42);
    let drive = disk.world.open_without_collector();
    disk.world.run(empty(&drive, victim));
    let piece = drive.core().forwards().metadata().next().expect("a table");
    disk.world.close(drive);
    disk.world.flip_for_good(piece.segment.0, piece.offset + piece.bytes / 2);
    let problems = disk.world.check().problems;
    for name in ["a", "b"] {
        let is_named = problems.iter().any(|problem| {
            problem.what.contains(&format!("snapshot {name} is damaged"))
                && problem.what.contains("a forwarding table is damaged")
        });
        assert!(is_named, "{name}: {problems:?}");
    }
    let opening = Drive::open_snapshot(
        disk.world.medium(),
        disk.world.runtime.clock(),
        "b",
        OpenOptions::default(),
    );
    let damaged = disk.world.run(opening).unwrap();
    match disk.world.read(&damaged, 0, b.len()) {
        Ok(read) => assert!(read == b, "other data"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
    }
    disk.world.kill(damaged);
    let drive = disk.world.open();
    assert!(drive.snapshots().iter().all(|info| info.damage.is_some()), "{:?}", drive.snapshots());
    disk.compare(&drive);
    let problems = disk.world.run(drive.scrub(0)).unwrap().problems;
    let is_named = |name| problems.iter().any(|found| found.what.contains(name));
    assert!(is_named("snapshot a is damaged") && is_named("snapshot b is damaged"), "{problems:?}");
    let alerts = drive.overview().alerts;
    assert!(alerts.iter().any(|alert| alert.what.starts_with("2 snapshots are damaged")));
    // Nothing that they may need is given up, and the drive continues.
    disk.write_some(&drive, 30);
    disk.world.run(drive.checkpoint()).unwrap();
    disk.world.close(drive);
    let drive = disk.world.open();
    disk.compare(&drive);
    assert!(drive.snapshots().iter().all(|info| info.damage.is_some()), "{:?}", drive.snapshots());
    disk.world.run(drive.delete_snapshots(&["a", "b"])).unwrap();
    assert_eq!(names(&drive), Vec::<String>::new());
    disk.write_around(&drive);
    disk.take(&drive, "c");
    disk.world.close(drive);
    assert_eq!(disk.world.check().problems, []);
    assert!(whole(&disk.world, "c") == disk.plain && b != disk.plain);
}

/// The other tables are used, later snapshots do not need the damaged piece, and the damage is
/// reported as long as a snapshot may lack data.
#[test]
fn a_damaged_piece_of_a_table_costs_only_its_own_entries() {
    let (database, drive) = Database::of_two_hours(40, 13);
    let world = &database.world;
    database.empty(&drive, SegmentId(0));
    database.empty(&drive, SegmentId(1));
    let piece = drive.core().forwards().metadata().next().expect("tables");
    assert!(drive.core().forwards().metadata().count() > 1, "too tame a test");
    world.close(drive);
    world.flip_for_good(piece.segment.0, piece.offset + piece.bytes / 2);
    let damaged = |drive: &Drive| {
        let is_damaged = |info: SnapshotInfo| (info.name, info.damage.is_some());
        drive.snapshots().into_iter().map(is_damaged).collect::<Vec<_>>()
    };
    let wanted = [("hour 0", true), ("hour 1", true), ("hour 2", false)];
    let wanted = wanted.map(|(name, is_damaged)| (name.to_owned(), is_damaged));
    let drive = world.open();
    assert_eq!(damaged(&drive), wanted[..2]);
    world.run(database.pass_an_hour(&drive, 2));
    world.close(drive);
    let mut drive = world.open();
    assert_eq!(damaged(&drive), wanted, "after a checkpoint");
    drive = world.reopen(drive);
    assert_eq!(damaged(&drive), wanted, "and after another one");
    // Garbage collection leaves the damaged piece where it is, and the drive continues.
    assert!(drive.with_core(|core| core.leave_segment(Stream::Meta)).unwrap());
    world.run(drive.checkpoint()).unwrap();
    let is_retained = drive.core().space().is_retained(piece.segment);
    assert!(is_retained, "damaged snapshots need every segment");
    world.run(drive.empty_retained(piece.segment)).unwrap();
    (0..3).for_each(|_| world.run(drive.checkpoint()).unwrap());
    let live_bytes = drive.core().space().live_bytes_of(piece.segment);
    assert!(live_bytes >= piece.bytes, "the damaged piece is live: {live_bytes}");
    assert!(!drive.core().empty_segments().contains(&piece.segment));
    assert!(!drive.core().space().is_free(piece.segment));
    world.audit(&drive);
    drive = world.reopen(drive);
    assert_eq!(damaged(&drive), wanted, "after garbage collection");
    world.close(drive);
    for (name, found) in database.readable_pages() {
        assert_eq!(found == PAGES, name == "hour 2", "{found} pages of {name}");
        // A piece has 511 entries.
        assert!(found >= PAGES - 511, "{found} pages of {name}");
    }
    let drive = world.open();
    world.run(database.delete(&drive, 0));
    world.run(database.delete(&drive, 0));
    assert_eq!(drive.core().forwards().lost().0, 0, "no one may need it any more");
    world.close(drive);
    database.compare();
}

/// Guards against a log that is cut. If segments that only snapshots need count as free, the only
/// proof that a damaged batch was durable is in a segment that is not among the lowest free ones.
#[test]
fn many_retained_empty_segments_do_not_hide_the_end_of_the_log() {
    const SIZE: u64 = 80 << 20;
    let world = World::new(small(SIZE, 60));
    let drive = world.open_without_collector();
    let mut random = random(43);
    for at in 0..SIZE >> 20 {
        let noise = payload::noise(&mut random, 1 << 20);
        world.write(&drive, at << 20, &noise).unwrap();
    }
    world.run(drive.create_snapshot(super::snapshots::new("a", 1))).unwrap();
    world.run(drive.trim(0, SIZE)).unwrap();
    reap_all(&drive);
    world.run(drive.flush()).unwrap();
    world.run(drive.checkpoint()).unwrap();
    let (retained, open) = {
        let core = drive.core();
        let space = core.space();
        let is_retained_only = |segment: &SegmentId| {
            space.live_bytes_of(*segment) == 0
                && space.stream(*segment) == Stream::Host
                && space.is_retained(*segment)
        };
        let open = core.log().tail(Stream::Host).expect("the host has written").segment;
        ((0..60).map(SegmentId).filter(is_retained_only).count(), open)
    };
    assert!(retained > 16, "too tame a test: {retained}");
    let noise = payload::noise(&mut random, 1 << 20);
    let tail = || drive.core().log().tail(Stream::Host).expect("the host has written").segment;
    while tail() == open {
        world.write(&drive, 0, &noise).unwrap();
        drive.with_core(|core| core.seal(Stream::Host));
        world.run(world.runtime.yield_now());
    }
    world.run(drive.flush()).unwrap();
    world.run(drive.write_durable(0, &noise[..4096])).unwrap();
    world.kill(drive);
    let last = damage::batches(&world, open.0).pop().expect("a batch");
    world.flip_for_good(open.0, last.offset + 30);
    assert_eq!(world.refusal().kind(), ErrorKind::Corrupt);
}

/// A frame that a snapshot and the disk share is recognized as one, whether it was moved once or
/// twice.
#[test]
fn changes_are_exact_during_repeated_emptying() {
    let (disk, [a, _], _) = with_two_snapshots(44);
    let differs = |at: usize| {
        let block = at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES;
        a[block.clone()] != disk.plain[block]
    };
    let mut drive = disk.world.open_without_collector();
    for _ in 0..2 {
        let full: Vec<SegmentId> = {
            let core = drive.core();
            let space = core.space();
            let is_victim = |segment: &SegmentId| {
                let (stream, generation) = (space.stream(*segment), space.generation(*segment));
                let is_open = space.is_open(*segment, stream, generation);
                space.is_retained(*segment) && stream != Stream::Meta && !is_open
            };
            (0..24).map(SegmentId).filter(is_victim).collect()
        };
        for victim in full {
            disk.world.run(empty(&drive, victim));
        }
        disk.world.close(drive);
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let (medium, clock) = (disk.world.medium(), disk.world.runtime.clone());
        let view =
            disk.world.run(Drive::open_snapshot(medium, clock.clock(), "a", options)).unwrap();
        let now = disk.world.try_open(options).unwrap();
        let found = changed(&disk.world, &view, &now);
        let missed = (0..found.len()).find(|&at| differs(at) && !found[at]);
        assert_eq!(missed, None, "the first block that is missed");
        let more = (0..found.len()).filter(|&at| found[at] && !differs(at)).count();
        assert!(more < found.len() / 20, "{more} blocks too many");
        disk.world.run(view.close()).unwrap();
        disk.world.run(now.close()).unwrap();
        drop((view, now));
        drive = disk.world.open_without_collector();
    }
    disk.world.close(drive);
}
