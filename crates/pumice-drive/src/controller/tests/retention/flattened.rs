//! Goal: a clone with snapshots is flattened without a change to any of them; its origin is needed
//! exactly as long as one of them exists. Method: clones are flattened, rolled back and emptied,
//! and the power fails repeatedly in between; disks and snapshots are compared byte by byte with
//! their original content.

use super::clones::{CLONE_SIZE, Clone};
use super::snapshots::{Disk, new};
use super::*;

/// A clone, and its snapshots.
struct Scene {
    disk: Disk,
    template: Rc<Drive>,
    clone: Clone,
    taken: Vec<(String, Vec<u8>)>,
}

impl Scene {
    fn new(seed: u64) -> (Self, Rc<Drive>) {
        let mut disk = Disk::new(seed);
        let template = disk.world.open();
        disk.write_some(&template, 60);
        let clone = Clone::of(&mut disk, &template, "golden", 1);
        let drive = clone.open();
        (Self { disk, template, clone, taken: Vec::new() }, drive)
    }

    fn change(&mut self, drive: &Drive) {
        (0..10).for_each(|_| self.clone.change(drive));
    }

    fn take(&mut self, drive: &Drive, name: &str) {
        let number = 50 + self.taken.len() as u32;
        self.clone.world.run(drive.create_snapshot(new(name, number))).unwrap();
        self.taken.push((name.to_owned(), self.clone.plain.clone()));
    }

    /// Compares the disk and each snapshot.
    fn compare(&self, drive: &Rc<Drive>) {
        self.clone.compare(drive);
        self.compare_snapshots(drive);
    }

    fn compare_snapshots(&self, drive: &Rc<Drive>) {
        for info in drive.snapshots() {
            let (name, plain) = self.taken.iter().find(|taken| taken.0 == info.name).unwrap();
            let opening = drive.view(name, OpenOptions::default());
            let view = self.clone.world.run(opening).unwrap();
            assert!(self.clone.world.read(&view, 0, plain.len()).unwrap() == *plain, "{name}");
        }
    }

    /// Compares the reported changes since a snapshot with the actual ones.
    fn compare_changes(&self, drive: &Rc<Drive>, name: &str) {
        let (_, plain) = self.taken.iter().find(|taken| taken.0 == name).unwrap();
        let run = &self.clone.world;
        let view = run.run(drive.view(name, OpenOptions::default())).unwrap();
        let mut expected = plain.clone();
        let visit = |changed: Changed| {
            let range = changed.offset as usize..(changed.offset + changed.bytes) as usize;
            expected[range.clone()].copy_from_slice(&self.clone.plain[range]);
            true
        };
        run.run(drive.changes_since(&view, visit)).unwrap();
        assert!(expected == self.clone.plain, "the changes since {name}");
    }

    fn flatten(&self, drive: &Drive) -> Flattened {
        self.clone.world.run(drive.flatten(|_| true)).unwrap()
    }

    fn delete(&self, drive: &Drive, name: &str) {
        self.clone.world.run(drive.delete_snapshot(name)).unwrap();
    }

    /// Closes all drives. No origin is read any more.
    fn end(self, drive: Rc<Drive>) {
        self.clone.world.close(drive);
        assert_eq!(self.clone.world.check().problems, []);
        self.disk.world.close(self.template);
    }
}

#[test]
fn snapshots_of_a_flattened_clone_keep_its_origin_until_they_are_deleted() {
    for seed in 70..73 {
        let (mut scene, drive) = Scene::new(seed);
        scene.take(&drive, "untouched");
        scene.change(&drive);
        scene.take(&drive, "changed");
        scene.change(&drive);
        let mut steps = 0;
        let flattening = drive.flatten(|_| {
            steps += 1;
            steps < 3
        });
        let stopped = scene.clone.world.run(flattening).unwrap();
        assert!(!stopped.is_complete);
        scene.compare(&drive);
        let flattened = scene.flatten(&drive);
        assert_eq!((flattened.is_complete, flattened.snapshots), (false, 2), "{flattened:?}");
        assert!(!drive.reads_from_origin());
        scene.compare(&drive);
        scene.compare_changes(&drive, "untouched");
        // Nothing is left to do.
        let again = scene.flatten(&drive);
        assert_eq!((again.copied_bytes, again.snapshots), (0, 2), "{again:?}");
        // Holes are zeroes from now on, also in later snapshots.
        scene.clone.trim_all(&drive);
        assert_eq!(drive.info().mapped_bytes, 0, "trims make holes again");
        scene.compare(&drive);
        scene.compare_changes(&drive, "untouched");
        scene.compare_changes(&drive, "changed");
        scene.take(&drive, "empty");
        scene.change(&drive);
        scene.clone.world.run(drive.flush()).unwrap();
        scene.clone.world.kill(drive);
        // The disk needs no origin; its older snapshots do.
        let drive = scene.clone.world.open();
        scene.clone.compare(&drive);
        let view = scene.clone.world.run(drive.view("untouched", OpenOptions::default())).unwrap();
        let read = scene.clone.world.read(&view, 0, CLONE_SIZE as usize);
        assert_eq!(kind(read), Some(ErrorKind::NotFound), "seed {seed}");
        drop(view);
        drive.set_origin(scene.clone.origin().unwrap()).unwrap();
        scene.compare(&drive);
        scene.delete(&drive, "untouched");
        assert!(drive.origin().is_some(), "another one needs it");
        scene.compare(&drive);
        scene.delete(&drive, "changed");
        assert_eq!(drive.origin(), None);
        scene.clone.world.kill(drive);
        let drive = scene.clone.world.open();
        assert_eq!(drive.origin(), None);
        scene.compare(&drive);
        let refused = scene.clone.world.run(drive.flatten(|_| true)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        scene.end(drive);
    }
}

/// Bookmarks report the blocks written since, so they must record which blocks were read from the
/// origin.
#[test]
fn a_bookmark_of_a_flattened_clone_keeps_its_origin() {
    let (mut scene, drive) = Scene::new(74);
    scene.take(&drive, "a");
    scene.change(&drive);
    assert_eq!(scene.flatten(&drive).snapshots, 1);
    scene.clone.world.run(drive.bookmark_snapshot("a")).unwrap();
    assert!(drive.origin().is_some());
    scene.clone.trim_all(&drive);
    let options = OpenOptions { incomplete: true, ..OpenOptions::default() };
    let view = scene.clone.world.run(drive.view("a", options)).unwrap();
    let mut expected = scene.taken[0].1.clone();
    let visit = |changed: Changed| {
        expected[changed.offset as usize..(changed.offset + changed.bytes) as usize].fill(0);
        true
    };
    scene.clone.world.run(drive.changes_since(&view, visit)).unwrap();
    assert!(expected == scene.clone.plain, "the changes since the bookmark");
    drop(view);
    scene.delete(&drive, "a");
    assert_eq!(drive.origin(), None);
    scene.clone.compare(&drive);
    scene.end(drive);
}

#[test]
fn a_flattened_clone_is_rolled_back_to_data_of_its_origin() {
    let (mut scene, drive) = Scene::new(75);
    scene.take(&drive, "a");
    scene.change(&drive);
    assert_eq!(scene.flatten(&drive).snapshots, 1);
    scene.clone.trim_all(&drive);
    scene.take(&drive, "b");
    scene.change(&drive);
    // One rollback is to a snapshot that needs no origin, the other to one that does.
    let run = &scene.clone.world;
    run.run(drive.roll_back("b", false)).unwrap();
    assert!(!drive.reads_from_origin());
    scene.clone.plain = scene.taken[1].1.clone();
    scene.compare(&drive);
    scene.clone.world.run(drive.roll_back("a", true)).unwrap();
    assert!(drive.reads_from_origin());
    scene.clone.plain = scene.taken[0].1.clone();
    scene.compare(&drive);
    scene.change(&drive);
    scene.compare(&drive);
    scene.clone.world.close(drive);
    let drive = scene.clone.open();
    scene.compare(&drive);
    scene.delete(&drive, "a");
    assert!(drive.origin().is_some(), "its disk reads from there");
    scene.compare(&drive);
    assert!(scene.flatten(&drive).is_complete);
    scene.compare(&drive);
    scene.end(drive);
}

/// After the rollback, the disk is not the one that was being flattened.
#[test]
fn a_disk_that_is_rolled_back_while_it_is_flattened_still_reads_from_its_origin() {
    let (mut scene, drive) = Scene::new(77);
    scene.take(&drive, "a");
    scene.change(&drive);
    let is_half_done = Cell::new(false);
    let flattening = drive.flatten(|so_far| {
        is_half_done.set(so_far.done_bytes > so_far.total_bytes / 2);
        true
    });
    let rolling = async {
        while !is_half_done.get() {
            scene.clone.world.runtime.clone().sleep_ns(0).await;
        }
        drive.roll_back("a", false).await.unwrap();
    };
    let both = futures_util::future::join(flattening, rolling);
    let (flattened, ()) = scene.clone.world.run(both);
    assert_eq!(kind(flattened), Some(ErrorKind::Busy));
    assert!(drive.reads_from_origin());
    scene.clone.plain = scene.taken[0].1.clone();
    scene.compare(&drive);
    assert_eq!(scene.flatten(&drive).snapshots, 1);
    scene.compare(&drive);
    scene.end(drive);
}

/// Power fails while the clone is flattened, during a rollback after that, and during the deletion
/// of the last snapshot that needs the origin.
#[test]
fn power_loss_in_a_flattening_leaves_disk_and_snapshots() {
    let (mut scene, drive) = Scene::new(76);
    scene.take(&drive, "a");
    scene.change(&drive);
    scene.clone.world.close(drive);
    let mut ends = [0; 4];
    for step in 0.. {
        let world = World { seed: step, ..scene.clone.world.copy() };
        scene.clone.world = world;
        let before = (scene.clone.world.copy(), scene.clone.plain.clone());
        let drive = scene.clone.open();
        let latency_ns = 1_000_000..=1_000_000;
        drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
        let work = async {
            drive.flatten(|_| true).await.unwrap();
            drive.trim_durable(0, BLOCK * 64).await.unwrap();
            drive.roll_back("a", false).await.unwrap();
            drive.flatten(|_| true).await.unwrap();
            drive.delete_snapshot("a").await.unwrap();
        };
        let run = &scene.clone.world;
        let ended = run.run(run.runtime.timeout(step * 2_500_000, work)).is_some();
        run.run(drive.layers().crash()).unwrap();
        run.kill(drive);
        let drive = run.open();
        let needs = drive.origin().is_some();
        if needs {
            drive.set_origin(scene.clone.origin().unwrap()).unwrap();
        }
        let has_a = !drive.snapshots().is_empty();
        assert!(needs || !has_a, "step {step}: a snapshot has lost its origin");
        ends[usize::from(drive.reads_from_origin()) * 2 + usize::from(needs)] += 1;
        let read = run.read(&drive, 0, CLONE_SIZE as usize).unwrap();
        let mut trimmed = before.1.clone();
        trimmed[..64 * BLOCK_BYTES].fill(0);
        let possible = [&before.1, &trimmed, &scene.taken[0].1];
        assert!(possible.contains(&&read), "step {step}: another disk");
        scene.clone.plain = read;
        scene.compare_snapshots(&drive);
        // Later records of the log are replayed in the same way.
        scene.change(&drive);
        scene.clone.world.run(drive.flush()).unwrap();
        scene.clone.world.kill(drive);
        let drive = scene.clone.world.open();
        if needs {
            drive.set_origin(scene.clone.origin().unwrap()).unwrap();
        }
        scene.compare(&drive);
        scene.clone.world.close(drive);
        assert_eq!(scene.clone.world.check().problems, [], "step {step}");
        (scene.clone.world, scene.clone.plain) = before;
        if ended {
            assert!(!needs, "all is durable when the calls return");
            break;
        }
    }
    // A clone; a flattened one with a snapshot; an independent drive.
    assert!(ends[3] > 3 && ends[1] > 3 && ends[0] > 0, "{ends:?}");
    scene.disk.world.close(scene.template);
}
