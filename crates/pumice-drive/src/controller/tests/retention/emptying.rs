//! Goal: dead data in a segment that snapshots need is freed by emptying the segment, and no
//! snapshot loses data in the process, whatever happens meanwhile: snapshots, deletions, rollbacks,
//! views, a busy host, a crash. Method: single segments of the database of [`super::database`] are
//! emptied, so slowly that each event occurs in the middle; every page of every snapshot is
//! compared.

use std::collections::BTreeMap;

use rand::RngExt;

use super::database::{Database, PAGE, PAGES, content};
use super::snapshots::new;
use super::*;
use crate::base::seed::random;

/// Frames that die while a segment is emptied may belong to a snapshot that was taken since the
/// emptying began, or was being taken then.
#[test]
fn a_snapshot_that_is_taken_while_a_segment_is_emptied_loses_nothing() {
    for begins_first in [true, false] {
        let (database, drive) = Database::of_two_hours(40, 10);
        let world = &database.world;
        let victim = SegmentId(0);
        let latency_ns = 1_000_000..=1_000_000;
        drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
        let wait_until = async |is_true: &dyn Fn() -> bool| {
            while !is_true() {
                world.runtime.clone().sleep_ns(1000).await;
            }
        };
        let (begun, is_overwritten) = (drive.snapshots_begun(), Cell::new(false));
        let snapshot = async {
            wait_until(&|| begins_first || drive.core().forwards().is_used()).await;
            database.end_hour(&drive, 2).await;
        };
        let overwrite = async {
            wait_until(&|| drive.snapshots_begun() > begun).await;
            // Pages in batches that the emptying reaches later.
            for page in 300..360 {
                let version = database.state.borrow_mut().renew(page);
                drive.write(page * PAGE, &content(page, version)).await.unwrap();
            }
            is_overwritten.set(true);
        };
        let empty = async {
            wait_until(&|| !begins_first || is_overwritten.get()).await;
            drive.empty_retained(victim).await.unwrap();
        };
        world.run(async { futures_util::future::join3(snapshot, overwrite, empty).await });
        assert!(drive.core().space().is_retained(victim), "it was emptied for older snapshots");
        drive.layers().set_plan(FaultPlan::default());
        database.empty(&drive, victim);
        database.compare_open(&drive);
        world.kill(drive);
        database.compare();
    }
}

/// After the rollback, the disk and the next snapshot refer to the copied frames at their old
/// locations.
#[test]
fn data_copied_before_a_rollback_is_copied_for_later_snapshots() {
    let (database, drive) = Database::of_two_hours(40, 9);
    let world = &database.world;
    let victim = SegmentId(0);
    let latency_ns = 1_000_000..=1_000_000;
    drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
    // A view ends the emptying halfway.
    let view = async {
        while !drive.core().forwards().is_used() {
            world.runtime.clone().sleep_ns(1000).await;
        }
        drive.view("hour 0", OpenOptions::default()).await.unwrap()
    };
    let both = async { futures_util::future::join(drive.empty_retained(victim), view).await };
    let (emptied, view) = world.run(both);
    emptied.unwrap();
    drop(view);
    assert!(drive.core().space().is_retained(victim), "too tame a test: it was emptied");
    world.run(drive.roll_back("hour 0", true)).unwrap();
    {
        let state = &mut *database.state.borrow_mut();
        state.kept.truncate(1);
        state.versions = state.kept[0].1.clone();
    }
    world.run(database.pass_an_hour(&drive, 2));
    database.overwrite(&drive, 0..250);
    database.empty(&drive, victim);
    database.compare_open(&drive);
    world.kill(drive);
    database.compare();
}

/// No snapshot refers to the location of a copy of live data that was made after the newest
/// snapshot.
#[test]
fn a_copy_that_no_snapshot_names_gets_no_entry() {
    let (database, drive) = Database::of_two_hours(40, 8);
    database.empty(&drive, SegmentId(0));
    let first = drive.core().forwards().copies().next().map(|copied| copied.to);
    let of = first.expect("something is named there");
    // The segment has copies from before that snapshot and from after it.
    database.world.run(database.end_hour(&drive, 2));
    database.empty(&drive, SegmentId(1));
    // The stream leaves that segment.
    database.empty(&drive, SegmentId(2));
    let copies: Vec<u32> = {
        let core = drive.core();
        let leading = core.forwards().leading_to(of, 0..=u32::MAX);
        let later = leading.filter(|((from, _), _)| from.segment != SegmentId(0));
        later.map(|(_, copied)| copied.offset).collect()
    };
    assert!(copies.len() > 20, "too tame a test: {} copies", copies.len());
    database.empty(&drive, of.segment);
    let entries = copies.iter().filter(|&&offset| drive.core().forwards().has(of, offset)).count();
    assert_eq!(entries, 0, "of {} copies that only entries lead to", copies.len());
    database.compare_open(&drive);
    database.world.kill(drive);
    database.compare();
}

/// A host that overwrites data of a segment being emptied must not look like damage.
#[test]
fn data_that_dies_during_emptying_does_not_retain_the_segment() {
    let (database, drive) = Database::of_two_hours(40, 14);
    let world = &database.world;
    let victim = SegmentId(0);
    database.damage(&drive, victim, 20);
    let latency_ns = 1_000_000..=1_000_000;
    drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
    let overwrite = async {
        // The emptying reads that page again.
        while !drive.core().forwards().is_used() {
            world.runtime.clone().sleep_ns(1000).await;
        }
        for page in 40..100 {
            let version = database.state.borrow_mut().renew(page);
            drive.write(page * PAGE, &content(page, version)).await.unwrap();
        }
    };
    let both = async { futures_util::future::join(drive.empty_retained(victim), overwrite).await };
    world.run(both).0.unwrap();
    drive.layers().set_plan(FaultPlan::default());
    assert!(!drive.core().space().is_retained(victim), "it was not emptied");
    database.free(&drive, victim);
    database.compare_open(&drive);
    world.kill(drive);
    database.compare();
}

/// Even a short event counts, such as a view that is closed again.
#[test]
fn a_change_of_retained_data_makes_an_emptying_void() {
    let (database, drive) = Database::of_two_hours(40, 12);
    let world = &database.world;
    let victim = SegmentId(0);
    // Nothing in it is live: only the needs of snapshots retain it.
    database.overwrite(&drive, 0..640);
    world.run(drive.flush()).unwrap();
    assert_eq!(drive.core().space().live_bytes_of(victim), 0, "too tame a test");
    let begin = || drive.core().begin_emptying(victim).expect("nothing keeps it");
    let ends = [
        ("nothing", false),
        ("a checkpoint", false),
        ("a view", true),
        ("a snapshot", true),
        ("a deletion", true),
        ("a rollback", true),
    ];
    for (what, is_end) in ends {
        let emptying = begin();
        match what {
            "nothing" => {}
            "a checkpoint" => world.run(drive.checkpoint()).unwrap(),
            "a view" => drop(world.run(drive.view("hour 0", OpenOptions::default())).unwrap()),
            "a snapshot" => world.run(database.end_hour(&drive, 2)),
            "a deletion" => world.run(database.delete(&drive, 2)),
            _ => drop(world.run(drive.roll_back("hour 1", false)).unwrap()),
        }
        assert_eq!(drive.core().snapshots().is_void(&emptying), is_end, "{what}");
        let has_ended = is_end && drive.with_core(|core| core.end_emptying(&emptying));
        assert!(!has_ended && drive.core().space().is_retained(victim), "{what}");
    }
    let versions = database.state.borrow().kept[1].1.clone();
    database.state.borrow_mut().versions = versions;
    database.empty(&drive, victim);
    database.compare_open(&drive);
    world.kill(drive);
    database.compare();
}

/// This is true whatever garbage collection does during the rollback.
#[test]
fn a_segment_that_is_emptied_during_a_rollback_can_be_emptied_after_it() {
    let (database, drive) = Database::of_two_hours(40, 15);
    let victim = SegmentId(0);
    database.empty(&drive, SegmentId(1));
    database.world.close(drive);
    for step in 0..16 {
        let copy = Database { world: database.world.copy(), state: database.state.clone() };
        let world = &copy.world;
        let drive = world.open_without_collector();
        let latency_ns = 1_000_000..=1_000_000;
        drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
        let empty = async {
            world.runtime.clone().sleep_ns(step * 1_000_000).await;
            drive.empty_retained(victim).await.unwrap();
        };
        let both =
            async { futures_util::future::join(drive.roll_back("hour 0", true), empty).await };
        world.run(both).0.unwrap();
        drive.layers().set_plan(FaultPlan::default());
        {
            let state = &mut *copy.state.borrow_mut();
            state.kept.truncate(1);
            state.versions = state.kept[0].1.clone();
        }
        world.run(drive.audit()).unwrap();
        world.run(copy.pass_an_hour(&drive, 2));
        copy.overwrite(&drive, 0..250);
        if drive.core().space().is_retained(victim) {
            copy.empty(&drive, victim);
        }
        copy.compare_open(&drive);
        world.kill(drive);
        copy.compare();
    }
}

/// A backup of one snapshot, which may take hours, does not retain data that only other snapshots
/// need.
#[test]
fn a_view_retains_the_data_of_its_snapshot_and_no_more() {
    let (database, drive) = Database::new(40, 16);
    let world = &database.world;
    world.close(drive);
    let drive = world.open_without_collector();
    world.run(database.end_hour(&drive, 0));
    database.overwrite(&drive, 0..640);
    world.run(database.end_hour(&drive, 1));
    let [of_first, of_both] = [SegmentId(0), SegmentId(3)];
    {
        let core = drive.core();
        let [first, second] = core.snapshots().kept() else { panic!("two snapshots") };
        assert!(first.named.contains(of_first) && !second.named.contains(of_first));
        assert!(first.named.contains(of_both) && second.named.contains(of_both));
    }
    let view = world.run(drive.view("hour 1", OpenOptions::default())).unwrap();
    database.empty(&drive, of_first);
    world.run(drive.empty_retained(of_both)).unwrap();
    assert!(drive.core().space().is_retained(of_both), "a view reads it");
    let versions = database.state.borrow().kept[1].1.clone();
    for (page, version) in (0..).zip(versions) {
        let read = world.read(&view, page * PAGE, PAGE as usize).unwrap();
        assert!(read == content(page, version), "page {page}");
    }
    drop(view);
    database.empty(&drive, of_both);
    database.compare_open(&drive);
    world.kill(drive);
    database.compare();
}

/// Until a checkpoint has the tables, moved frames are recovered from the log.
#[test]
fn moved_frames_are_no_changes_after_a_crash() {
    let (database, drive) = Database::of_two_hours(40, 16);
    let world = &database.world;
    world.run(drive.empty_retained(SegmentId(0))).unwrap();
    world.run(drive.flush()).unwrap();
    world.kill(drive);
    let drive = world.open_without_collector();
    assert!(drive.core().forwards().is_used(), "too tame a test");
    database.settle(&drive);
    database.compare_open(&drive);
    world.kill(drive);
    database.compare();
}

/// A measurement during a deletion of snapshots is discarded, because its result would be too low.
#[test]
fn retained_bytes_are_measured_again_after_a_deletion() {
    for step in 0..16 {
        let (database, drive) = Database::of_two_hours(40, 16);
        let world = &database.world;
        world.run(drive.measure_retained());
        database.overwrite(&drive, 0..PAGES / 2);
        world.run(database.end_hour(&drive, 2));
        world.run(database.delete(&drive, 2));
        let latency_ns = 1_000_000..=1_000_000;
        drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
        let measure = async {
            world.runtime.clone().sleep_ns(step * 500_000).await;
            drive.measure_retained().await;
        };
        let both = async { futures_util::future::join(database.delete(&drive, 1), measure).await };
        world.run(both);
        let needed = |drive: &Drive| {
            while drive.core().wants_measure() {
                world.run(drive.measure_retained());
            }
            let core = drive.core();
            let all = (0..core.space().segment_count()).map(SegmentId);
            let used = all.filter(|&segment| !core.space().is_free(segment));
            let of = |at: SegmentId| (at, core.space().needed_bytes_of(at, SEGMENT_BYTES));
            used.map(of).collect::<BTreeMap<_, _>>()
        };
        let known = needed(&drive);
        drive.layers().set_plan(FaultPlan::default());
        world.close(drive);
        let drive = world.open_without_collector();
        for (segment, least) in needed(&drive) {
            let found = known.get(&segment).copied().unwrap_or(least);
            assert!(found >= least, "step {step}: {segment} holds {least}, not {found}");
        }
        world.kill(drive);
    }
}

/// Runs `task` next to a host that overwrites the disk without pause, once the disk is full.
/// Returns its result and the number of writes refused while it ran.
fn beside_a_busy_host<R>(world: &World, drive: &Drive, task: impl Future<Output = R>) -> (R, u64) {
    let latency_ns = 50_000..=150_000;
    drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
    let (is_ended, writes, refused) = (Cell::new(false), Cell::new(0), Cell::new(0));
    let host = async |seed: u64| {
        let mut random = random(seed);
        while !is_ended.get() {
            let data = payload::noise(&mut random, 64 << 10);
            let at = random.random_range(0..world.spec.size_bytes >> 16) << 16;
            // The write may be refused while a snapshot retains the rest.
            if drive.write(at, &data).await.is_err() {
                refused.set(refused.get() + 1);
                world.runtime.clone().sleep_ns(1_000_000).await;
            }
            writes.set(writes.get() + 1);
            assert!(writes.get() < 8192, "it does not end");
        }
    };
    let task = async {
        while writes.get() < 1024 {
            world.runtime.clone().sleep_ns(100_000).await;
        }
        refused.set(0);
        let result = task.await;
        is_ended.set(true);
        result
    };
    let result = world.run(async { futures_util::future::join3(host(1), host(2), task).await }).2;
    (result, refused.get())
}

/// The disk occupies 8 segments, each of two snapshots up to 8 for data overwritten since it was
/// taken, and the reserves occupy the rest.
#[test]
fn no_write_and_no_snapshot_is_refused_while_snapshots_come_and_go() {
    for segments in [22, 28, 40] {
        let world = World { seed: segments, ..World::new(small(32 << 20, segments)) };
        let drive = world.open();
        let rotate = async {
            for hour in 0..8 {
                drive.create_snapshot(new(&hour.to_string(), hour + 1)).await.unwrap();
                world.runtime.clone().sleep_ns(20_000_000).await;
                if let Some(before) = hour.checked_sub(1) {
                    drive.delete_snapshot(&before.to_string()).await.unwrap();
                }
            }
        };
        let (_, refused) = beside_a_busy_host(&world, &drive, rotate);
        assert_eq!(refused, 0, "{segments} segments");
        world.close(drive);
    }
}

/// A host that takes each segment as it becomes free waits while a snapshot needs segments, until
/// there are enough or no more can be freed.
#[test]
fn a_snapshot_is_taken_under_constant_load() {
    for segments in [9, 12, 14, 16, 20, 24] {
        let world = World { seed: segments, ..World::new(small(32 << 20, segments)) };
        let drive = world.open();
        match beside_a_busy_host(&world, &drive, drive.create_snapshot(new("a", 1))).0 {
            Ok(_) => assert!(segments > 9),
            Err(error) => {
                assert_eq!(segments, 9, "{error:?}");
                assert_eq!(error.kind(), ErrorKind::NoSpace);
            }
        }
        world.close(drive);
    }
}

#[test]
fn a_compaction_ends_under_constant_load() {
    for segments in [12, 16, 24] {
        let world = World { seed: segments, ..World::new(small(32 << 20, segments)) };
        let drive = world.open();
        let (compacted, _) = beside_a_busy_host(&world, &drive, drive.compact(0));
        let compacted = compacted.unwrap();
        assert!(compacted.moved_bytes > 0);
        world.close(drive);
    }
}
