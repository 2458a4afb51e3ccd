//! Goal: the capacity of a drive with snapshots shrinks without changing any snapshot; a power loss
//! at any moment leaves the old drive or the new one, with all of them. Method: noise all over a
//! drive, with snapshots and a bookmark in between, so that their frames and metadata are
//! everywhere; disks are compared byte by byte.

use super::snapshots::{Disk, SIZE, names, new, rest, whole};
use super::*;

/// Segments of the drive before the shrink.
const SEGMENTS: u32 = 60;

/// Bytes beyond the compared part of the disk. They fill the first segments, and are trimmed.
const FILLER: u64 = 100 << 20;

/// A closed drive, its disk, and the disks of its snapshots.
pub(crate) struct Scene {
    pub(crate) disk: Disk,
    taken: Vec<(String, Vec<u8>)>,
    /// Number of segments after the shrink. Snapshots have frames and metadata beyond it.
    fewer: u32,
}

fn capacity(segments: u32) -> Resize {
    let capacity_bytes = Some(u64::from(segments) * u64::from(SEGMENT_BYTES));
    Resize { size_bytes: None, capacity_bytes }
}

impl Scene {
    fn new(seed: u64) -> Self {
        Self::on(World::new(Self::spec()), seed)
    }

    pub(crate) fn encrypted(seed: u64) -> Self {
        Self::on(World::encrypted(Self::spec()), seed)
    }

    fn spec() -> Spec {
        let spec = small(SIZE + FILLER, 0);
        Spec { capacity_bytes: capacity(SEGMENTS).capacity_bytes, ..spec }
    }

    fn on(world: World, seed: u64) -> Self {
        let mut disk = Disk::new(seed);
        disk.world = World { seed, ..world };
        let mut scene = Self { disk, taken: Vec::new(), fewer: 0 };
        let options = OpenOptions { compact_percent: None, ..OpenOptions::default() };
        let drive = scene.disk.world.try_open(options).unwrap();
        let filler = payload::noise(&mut scene.disk.random, 1 << 20);
        for at in 0..FILLER >> 20 {
            scene.disk.world.write(&drive, SIZE + (at << 20), &filler).unwrap();
        }
        scene.disk.write_around(&drive);
        scene.disk.write_some(&drive, 20);
        scene.disk.world.run(drive.trim(SIZE, FILLER)).unwrap();
        scene.take(&drive, "a");
        for name in ["b", "c"] {
            scene.disk.write_some(&drive, 60);
            scene.take(&drive, name);
        }
        // Only the snapshot's map remains.
        scene.disk.world.run(drive.bookmark_snapshot("b")).unwrap();
        scene.disk.world.run(drive.trim(1 << 20, 1 << 20)).unwrap();
        scene.disk.plain[1 << 20..2 << 20].fill(0);
        scene.disk.write_some(&drive, 60);
        scene.disk.world.run(drive.flush()).unwrap();
        let highest = |is_meta: bool| {
            let core = drive.core();
            let kept = core.snapshots().kept();
            let segments = kept.iter().flat_map(|kept| kept.retained.iter());
            let wanted =
                |&segment: &SegmentId| (core.space().stream(segment) == Stream::Meta) == is_meta;
            segments.filter(wanted).max().unwrap().0
        };
        scene.fewer = highest(false).min(highest(true));
        assert!((17..SEGMENTS).contains(&scene.fewer), "{} segments", scene.fewer);
        scene.disk.world.close(drive);
        scene
    }

    pub(crate) fn take(&mut self, drive: &Drive, name: &str) {
        self.disk.take(drive, name);
        self.taken.push((name.to_owned(), self.disk.plain.clone()));
    }

    pub(crate) fn compare(&self, world: &World, drive: &Rc<Drive>) {
        assert!(world.read(drive, 0, self.disk.plain.len()).unwrap() == self.disk.plain);
        for (name, plain) in &self.taken {
            if name == "b" {
                self.compare_changes(world, drive, name, plain);
                continue;
            }
            let view = world.run(drive.view(name, OpenOptions::default())).unwrap();
            assert!(world.read(&view, 0, plain.len()).unwrap() == *plain, "snapshot {name}");
            drop(view);
            self.compare_changes(world, drive, name, plain);
        }
    }

    fn compare_changes(&self, world: &World, drive: &Rc<Drive>, name: &str, plain: &[u8]) {
        let options = OpenOptions { incomplete: true, ..OpenOptions::default() };
        let view = world.run(drive.view(name, options)).unwrap();
        let mut expected = plain.to_vec();
        let visit = |changed: Changed| {
            let range = changed.offset as usize..(changed.offset + changed.bytes) as usize;
            expected[range.clone()].copy_from_slice(&self.disk.plain[range]);
            true
        };
        world.run(drive.changes_since(&view, visit)).unwrap();
        assert!(expected == self.disk.plain, "the changes since {name}");
    }
}

fn segments(drive: &Drive) -> u32 {
    drive.core().space().segment_count()
}

#[test]
fn a_drive_with_snapshots_shrinks() {
    for mut scene in [Scene::new(80), Scene::new(81), Scene::encrypted(82)] {
        let world = scene.disk.world.copy();
        let drive = world.open();
        let resized = world.run(drive.resize(capacity(scene.fewer))).unwrap();
        assert_eq!(resized.segment_count, scene.fewer);
        scene.compare(&world, &drive);
        world.audit(&drive);
        world.kill(drive);
        assert_eq!(world.check().problems, []);
        for at in [0, 2] {
            let (name, plain) = &scene.taken[at];
            assert!(whole(&world, name)[..plain.len()] == *plain, "{name}, closed");
        }
        // Moved data is moved again, by garbage collection and by another shrink.
        let mut drive = world.open();
        scene.disk.world = world;
        for _ in 0..3 {
            scene.disk.write_around(&drive);
            rest(&scene.disk.world);
        }
        scene.compare(&scene.disk.world, &drive);
        scene.disk.world.run(drive.resize(capacity(SEGMENTS))).unwrap();
        scene.disk.write_around(&drive);
        scene.take(&drive, "d");
        (0..3).for_each(|_| scene.disk.write_around(&drive));
        drive = scene.disk.world.reopen(drive);
        scene.disk.world.run(drive.resize(capacity(scene.fewer + 4))).unwrap();
        scene.compare(&scene.disk.world, &drive);
        drive = scene.disk.world.reopen(drive);
        scene.compare(&scene.disk.world, &drive);
        // The disk reverts to a snapshot whose map was moved.
        scene.disk.world.run(drive.roll_back("a", true)).unwrap();
        scene.disk.plain = scene.taken[0].1.clone();
        scene.taken.truncate(1);
        scene.compare(&scene.disk.world, &drive);
        drive = scene.disk.world.reopen(drive);
        scene.compare(&scene.disk.world, &drive);
        scene.disk.write_around(&drive);
        scene.disk.world.run(drive.delete_snapshot("a")).unwrap();
        rest(&scene.disk.world);
        assert!(!drive.core().forwards().is_used(), "no table is left");
        scene.disk.compare(&drive);
        scene.disk.world.close(drive);
        assert_eq!(scene.disk.world.check().problems, []);
    }
}

/// The power fails at each of many moments of a shrink.
#[test]
fn power_loss_in_a_shrink_changes_no_snapshot() {
    power_loss_in_a_shrink(&Scene::new(84));
}

#[test]
fn power_loss_in_a_shrink_of_an_encrypted_drive_changes_no_snapshot() {
    power_loss_in_a_shrink(&Scene::encrypted(86));
}

fn power_loss_in_a_shrink(scene: &Scene) {
    let mut ends = [0; 2];
    for step in 0.. {
        let world = World { seed: step, ..scene.disk.world.copy() };
        let drive = world.open();
        let latency_ns = 1_000_000..=1_000_000;
        drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
        let shrinking = drive.resize(capacity(scene.fewer));
        let ended = world.run(world.runtime.timeout(step * 9_700_000, shrinking)).is_some();
        world.run(drive.layers().crash()).unwrap();
        world.kill(drive);
        let drive = world.open();
        let is_shrunk = segments(&drive) == scene.fewer;
        assert!(is_shrunk || segments(&drive) == SEGMENTS);
        ends[usize::from(is_shrunk)] += 1;
        assert_eq!(names(&drive), ["a", "b", "c"]);
        scene.compare(&world, &drive);
        world.audit(&drive);
        let drive = world.reopen(drive);
        scene.compare(&world, &drive);
        world.close(drive);
        assert_eq!(world.check().problems, [], "step {step}");
        if ended {
            assert!(is_shrunk, "it is durable when the call returns");
            break;
        }
    }
    assert!(ends[0] > 5 && ends[1] > 0, "{ends:?}");
}

/// The error is one clear line, and nothing has changed.
#[test]
fn snapshots_that_prevent_a_shrink_are_named() {
    let scene = Scene::new(85);
    let world = scene.disk.world.copy();
    let drive = world.open();
    let refused = |wanted: ErrorKind, mention: &str| {
        let error = world.run(drive.resize(capacity(scene.fewer))).unwrap_err();
        assert_eq!(error.kind(), wanted, "{error}");
        assert!(error.to_string().contains(mention), "{error}");
        assert_eq!(segments(&drive), SEGMENTS);
    };
    let view = world.run(drive.view("c", OpenOptions::default())).unwrap();
    refused(ErrorKind::Busy, "snapshot c is read");
    drop(view);
    let clone = super::clones::registered(1);
    world.run(drive.register_clone("a", clone.clone())).unwrap();
    refused(ErrorKind::InvalidInput, "clones read from snapshot a");
    world.run(drive.forget_clone(clone.drive)).unwrap();
    let error = world.run(drive.resize(capacity(14))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains("for snapshots alone"), "{error}");
    scene.compare(&world, &drive);
    world.run(drive.resize(capacity(scene.fewer))).unwrap();
    scene.compare(&world, &drive);
    world.close(drive);
    let mut scene = scene;
    scene.disk.world = world;
    // Operations that were possible before are not refused.
    let drive = scene.disk.world.open();
    scene.disk.world.run(drive.create_snapshot(new("e", 90))).unwrap();
    scene.disk.world.close(drive);
    assert_eq!(scene.disk.world.check().problems, []);
}
