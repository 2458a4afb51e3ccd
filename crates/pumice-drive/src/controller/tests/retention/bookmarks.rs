//! Goal: a bookmark holds a map and no data, and still reports every block written since, wherever
//! garbage collection has moved the others; no data can be read through it. Method: disks whose
//! snapshots become bookmarks, before and after their frames are moved, freed and overwritten; the
//! reported blocks are compared with the disks, block by block.

use rand::RngExt;

use super::snapshots::{Disk, SIZE, changed, names, rest, whole};
use super::*;

fn options() -> OpenOptions {
    OpenOptions { incomplete: true, ..OpenOptions::default() }
}

fn open(world: &World, name: &str) -> Rc<Drive> {
    let opening = Drive::open_snapshot(world.medium(), world.runtime.clock(), name, options());
    world.run(opening).unwrap()
}

fn bookmark(disk: &Disk, drive: &Drive, name: &str) -> SnapshotInfo {
    disk.world.run(drive.bookmark_snapshot(name)).unwrap()
}

fn change_some(disk: &mut Disk, drive: &Drive) {
    disk.write_some(drive, 6);
    let at = disk.random.random_range(0..SIZE / BLOCK - 40) * BLOCK;
    disk.world.run(drive.trim(at, 30 * BLOCK)).unwrap();
    disk.plain[at as usize..][..30 * BLOCK_BYTES].fill(0);
}

/// Empties every full segment of frames, so that all their content has moved.
fn move_all(world: &World, drive: &Drive) {
    world.run(drive.flush()).unwrap();
    let full: Vec<SegmentId> = {
        let core = drive.core();
        let space = core.space();
        let is_full = |stream, segment, generation| !space.is_open(segment, stream, generation);
        let used = space.used().filter(|used| {
            let stream = space.stream(used.segment);
            let is_of_frames = stream != Stream::Meta && used.live_bytes > 0;
            is_of_frames && is_full(stream, used.segment, used.generation)
        });
        used.map(|used| used.segment).collect()
    };
    for segment in full {
        let is_retained = drive.core().space().is_retained(segment);
        if is_retained {
            world.run(drive.empty_retained(segment)).unwrap();
        } else {
            world.run(drive.empty_victim(segment)).unwrap();
        }
    }
    world.run(drive.checkpoint()).unwrap();
    world.run(drive.checkpoint()).unwrap();
}

/// Checks that all differing blocks are reported. Returns how many blocks are reported as changed,
/// and how many differ.
fn compare(disk: &Disk, from: (&Drive, &[u8]), to: (&Drive, &[u8])) -> [u64; 2] {
    let changed = changed(&disk.world, from.0, to.0);
    let mut counts = [0, 0];
    let blocks = from.1.chunks(BLOCK_BYTES).zip(to.1.chunks(BLOCK_BYTES));
    for (at, ((old, new), is_reported)) in blocks.zip(changed).enumerate() {
        assert!(is_reported || old == new, "block {at} is missed");
        counts[0] += u64::from(is_reported);
        counts[1] += u64::from(old != new);
    }
    counts
}

#[test]
fn a_bookmark_finds_every_change_without_its_data() {
    let mut disk = Disk::new(31);
    let mut disks = Vec::new();
    let drive = disk.world.open_without_collector();
    let count = 6;
    for number in 0..count {
        if number == 0 {
            disk.write_around(&drive);
        } else {
            change_some(&mut disk, &drive);
        }
        disk.take(&drive, &number.to_string());
        disks.push(disk.plain.clone());
        // Some snapshots become bookmarks before their frames are moved, others later.
        if number % 3 == 0 {
            bookmark(&disk, &drive, &number.to_string());
        }
        move_all(&disk.world, &drive);
    }
    bookmark(&disk, &drive, "1");
    change_some(&mut disk, &drive);
    disks.push(disk.plain.clone());
    move_all(&disk.world, &drive);
    disk.world.audit(&drive);
    assert!(drive.core().forwards().is_used(), "too tame a test: no table");
    let is_bookmark: Vec<bool> = drive.snapshots().iter().map(|info| info.is_bookmark).collect();
    assert_eq!(is_bookmark, [true, true, false, true, false, false]);
    disk.world.close(drive);
    assert_eq!(disk.world.check().problems, []);
    let now = OpenOptions { read_only: true, ..OpenOptions::default() };
    let now = disk.world.try_open(now).unwrap();
    let mut views: Vec<_> = (0..count).map(|at| open(&disk.world, &at.to_string())).collect();
    views.push(now);
    let (mut reported, mut differing) = (0, 0);
    for old in 0..count {
        for new in old + 1..=count {
            let [more, fewer] =
                compare(&disk, (&views[old], &disks[old]), (&views[new], &disks[new]));
            reported += more;
            differing += fewer;
        }
    }
    assert!(differing > 1000, "too tame a test: {differing}");
    // Rewritten equal patterns, and blocks that were dead when a snapshot's frame moved.
    assert!(reported <= differing + differing / 5, "{reported} reported, {differing} differ");
    for view in views {
        disk.world.run(view.close()).unwrap();
    }
}

/// Without snapshots no block is reported needlessly.
#[test]
fn changes_since_a_bookmark_are_exact_where_no_snapshot_retains_frames() {
    let mut disk = Disk::new(32);
    let drive = disk.world.open_without_collector();
    for at in 0..SIZE >> 20 {
        let data = payload::noise(&mut disk.random, 1 << 20);
        disk.world.write(&drive, at << 20, &data).unwrap();
        disk.plain[(at << 20) as usize..][..data.len()].copy_from_slice(&data);
    }
    disk.take(&drive, "a");
    bookmark(&disk, &drive, "a");
    let a = disk.plain.clone();
    move_all(&disk.world, &drive);
    let mut written = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let block = disk.random.random_range(0..SIZE / BLOCK);
        let data = payload::noise(&mut disk.random, BLOCK_BYTES);
        disk.world.write(&drive, block * BLOCK, &data).unwrap();
        disk.plain[(block * BLOCK) as usize..][..BLOCK_BYTES].copy_from_slice(&data);
        written.insert(block);
    }
    for _ in 0..2 {
        let view = disk.world.run(drive.view("a", options())).unwrap();
        let [reported, differing] = compare(&disk, (&view, &a), (&drive, &disk.plain));
        assert_eq!((reported, differing), (written.len() as u64, written.len() as u64));
        drop(view);
        // Data written since is moved as well.
        assert!(drive.with_core(|core| core.leave_segment(Stream::Host)).unwrap());
        move_all(&disk.world, &drive);
    }
    disk.world.close(drive);
}

#[test]
fn a_bookmark_retains_its_map_only_and_stays_as_it_is() {
    let mut disk = Disk::new(33);
    let mut drive = disk.world.open();
    disk.write_around(&drive);
    disk.take(&drive, "a");
    disk.write_around(&drive);
    disk.take(&drive, "b");
    let b = disk.plain.clone();
    rest(&disk.world);
    let before = drive.snapshots()[0].alone_bytes;
    let info = bookmark(&disk, &drive, "a");
    assert!(info.is_bookmark && info.live_bytes == 0 && !info.yields, "{info:?}");
    assert!(info.alone_bytes < before, "{} of {before}", info.alone_bytes);
    let retained = |drive: &Drive| {
        let core = drive.core();
        let kept = core.snapshots().kept();
        kept.iter().map(|kept| (kept.named.clone(), kept.retained.clone())).collect::<Vec<_>>()
    };
    // Segments that held its frames become segments of maps.
    for _ in 0..4 {
        disk.write_around(&drive);
        disk.world.run(drive.checkpoint()).unwrap();
    }
    let (_, of_a) = &retained(&drive)[0];
    assert!(of_a.iter().all(|segment| drive.core().space().stream(segment) == Stream::Meta));
    let before = retained(&drive)[0].clone();
    disk.world.run(drive.flush()).unwrap();
    disk.world.kill(drive);
    drive = disk.world.open();
    assert_eq!(retained(&drive)[0], before, "recovery finds what was retained");
    disk.world.audit(&drive);
    assert_eq!(disk.world.run(drive.delete_snapshot("a")).unwrap().name, "a");
    assert_eq!(names(&drive), ["b"]);
    disk.world.audit(&drive);
    disk.world.close(drive);
    assert!(whole(&disk.world, "b") == b);
    assert_eq!(disk.world.check().problems, []);
}

#[test]
fn nothing_is_read_by_a_bookmark() {
    let mut disk = Disk::new(34);
    let drive = disk.world.open();
    disk.write_some(&drive, 20);
    disk.take(&drive, "a");
    disk.write_some(&drive, 20);
    disk.take(&drive, "b");
    let view = disk.world.run(drive.view("a", OpenOptions::default())).unwrap();
    assert_eq!(kind(disk.world.run(drive.bookmark_snapshot("a"))), Some(ErrorKind::Busy));
    drop(view);
    bookmark(&disk, &drive, "a");
    let again = disk.world.run(drive.bookmark_snapshot("a"));
    assert_eq!(kind(again), Some(ErrorKind::AlreadyExists));
    assert_eq!(kind(disk.world.run(drive.bookmark_snapshot("c"))), Some(ErrorKind::NotFound));
    let error = disk.world.run(drive.view("a", OpenOptions::default())).err().unwrap();
    assert_eq!(error.to_string().split(':').next(), Some("a is a bookmark, which has no data"));
    assert_eq!(kind(disk.world.run(drive.roll_back("a", true))), Some(ErrorKind::InvalidInput));
    let view = disk.world.run(drive.view("a", options())).unwrap();
    assert_eq!(kind(disk.world.read(&view, 0, 1)), Some(ErrorKind::InvalidInput));
    drop(view);
    // The bookmark is older than the abandoned state, and newer than the state to which the disk
    // returns.
    disk.take(&drive, "c");
    bookmark(&disk, &drive, "c");
    assert_eq!(kind(disk.world.run(drive.roll_back("b", false))), Some(ErrorKind::InvalidInput));
    disk.world.run(drive.roll_back("b", true)).unwrap();
    assert_eq!(names(&drive), ["a", "b"]);
    disk.world.close(drive);
    let closed = Drive::open_snapshot(
        disk.world.medium(),
        disk.world.runtime.clock(),
        "a",
        Default::default(),
    );
    assert_eq!(kind(disk.world.run(closed)), Some(ErrorKind::InvalidInput));
    let mut ignore = |_| ();
    let checking = check_snapshot(&disk.world.memory, "a", Depth::Full, &mut ignore);
    assert_eq!(disk.world.run(checking).unwrap().problems, []);
}

/// The table that leads to its map is damaged, and the map's first segment is in use again.
#[test]
fn a_bookmark_whose_map_is_lost_is_damaged_and_compares_with_nothing() {
    let mut disk = Disk::new(36);
    let drive = disk.world.open_without_collector();
    disk.write_around(&drive);
    disk.take(&drive, "a");
    bookmark(&disk, &drive, "a");
    let first = drive.core().log().tail(Stream::Meta).unwrap().segment;
    assert!(drive.with_core(|core| core.leave_segment(Stream::Meta)).unwrap());
    disk.world.run(drive.checkpoint()).unwrap();
    assert!(drive.core().space().is_retained(first), "the map is there");
    disk.world.run(drive.empty_retained(first)).unwrap();
    while !drive.core().empty_segments().contains(&first) {
        disk.world.run(drive.checkpoint()).unwrap();
    }
    disk.world.run(drive.flush()).unwrap();
    drive.with_core(|core| core.free_segment(first));
    assert_eq!(drive.core().forwards().metadata().count(), 1);
    let piece = drive.core().forwards().metadata().next().expect("a table");
    let view = disk.world.run(drive.view("a", options())).unwrap();
    changed(&disk.world, &view, &drive);
    drop(view);
    disk.world.close(drive);
    disk.world.flip_for_good(piece.segment.0, piece.offset + piece.bytes / 2);
    let drive = disk.world.open();
    assert!(drive.snapshots()[0].damage.is_some());
    while drive.core().space().is_free(first) {
        disk.write_around(&drive);
    }
    disk.world.close(drive);
    let drive = disk.world.open();
    assert!(drive.snapshots()[0].damage.is_some(), "after a checkpoint");
    let comparing = async {
        let view = drive.view("a", options()).await?;
        drive.changes_since(&view, |_| true).await
    };
    assert_eq!(kind(disk.world.run(comparing)), Some(ErrorKind::Corrupt));
    disk.compare(&drive);
    assert_eq!(disk.world.run(drive.delete_snapshot("a")).unwrap().name, "a");
    disk.world.audit(&drive);
    disk.world.close(drive);
    assert_eq!(disk.world.check().problems, []);
}

/// Abandons the change at each operation of the medium in turn.
#[test]
fn power_loss_leaves_a_snapshot_or_a_bookmark() {
    let mut disk = Disk::new(35);
    let drive = disk.world.open();
    disk.write_some(&drive, 20);
    disk.take(&drive, "a");
    let a = disk.plain.clone();
    disk.write_some(&drive, 10);
    disk.world.run(drive.flush()).unwrap();
    disk.world.close(drive);
    let mut ends = [0, 0];
    for step in 0.. {
        let world = World { seed: step, ..disk.world.copy() };
        let plan = FaultPlan { latency_ns: 1_000_000..=1_000_000, ..FaultPlan::default() };
        let drive = world.open();
        drive.layers().set_plan(plan);
        let bookmark = async { drive.bookmark_snapshot("a").await.unwrap() };
        let ended = world.run(world.runtime.timeout(step * 500_000, bookmark)).is_some();
        world.run(drive.layers().crash()).unwrap();
        world.kill(drive);
        let drive = world.open();
        let is_bookmark = drive.snapshots()[0].is_bookmark;
        assert!(is_bookmark || !ended, "step {step}");
        ends[usize::from(is_bookmark)] += 1;
        world.audit(&drive);
        for _ in 0..30 {
            let data = payload::noise(&mut disk.random, 1 << 20);
            world.write(&drive, disk.random.random_range(0..7) << 20, &data).unwrap();
        }
        world.close(drive);
        assert_eq!(world.check().problems, [], "step {step}");
        if is_bookmark {
            let view = open(&world, "a");
            assert_eq!(view.size_bytes(), SIZE);
            world.close(view);
        } else {
            assert!(whole(&world, "a") == a, "step {step}");
        }
        if ended {
            break;
        }
    }
    assert!(ends[0] > 3 && ends[1] > 0, "{ends:?}");
}
