//! Goal: a snapshot never changes until it is deleted, costs only space, and returns that space; it
//! exists completely or not at all, whenever the power fails. Method: drives that are overwritten,
//! trimmed and emptied several times over; the disk of each snapshot is compared byte by byte with
//! the disk when it was taken.

use rand::RngExt;

use super::*;
use crate::base::seed::{Random, random};
use crate::controller::core::Purpose;
use crate::controller::tests::durability::survival::take_free_segments;
use crate::media::layer::Trigger;

pub(crate) const SIZE: u64 = 8 << 20;

/// A drive with space for its disk several times over, and that disk.
pub(crate) struct Disk {
    pub(crate) world: World,
    pub(crate) plain: Vec<u8>,
    pub(crate) random: Random,
    taken: u32,
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with_segments(seed, 24)
    }

    pub(crate) fn with_segments(seed: u64, segments: u64) -> Self {
        let world = World { seed, ..World::new(small(SIZE, segments)) };
        Self { world, plain: vec![0; SIZE as usize], random: random(seed), taken: 0 }
    }

    pub(crate) fn write_some(&mut self, drive: &Drive, writes: u32) {
        for _ in 0..writes {
            let len = self.random.random_range(1..200 << 10);
            let offset = self.random.random_range(0..=SIZE - len as u64);
            let data = payload::any(&mut self.random, len);
            self.world.write(drive, offset, &data).unwrap();
            self.plain[offset as usize..][..len].copy_from_slice(&data);
        }
    }

    pub(crate) fn trim_all(&mut self, drive: &Drive) {
        self.world.run(drive.trim(0, SIZE)).unwrap();
        self.plain.fill(0);
    }

    fn write_in_second_leaf(&mut self, drive: &Drive) {
        let block = self.random.random_range(SIZE / 2 / BLOCK..SIZE / BLOCK);
        let data = payload::noise(&mut self.random, BLOCK as usize);
        self.world.write(drive, block * BLOCK, &data).unwrap();
        self.plain[(block * BLOCK) as usize..][..data.len()].copy_from_slice(&data);
    }

    /// Writes enough to fill the drive's capacity, so that garbage collection runs.
    pub(crate) fn write_around(&mut self, drive: &Drive) {
        for _ in 0..40 {
            let offset = self.random.random_range(0..=SIZE - (1 << 20)) / BLOCK * BLOCK;
            let data = payload::noise(&mut self.random, 1 << 20);
            self.world.write(drive, offset, &data).unwrap();
            self.plain[offset as usize..][..data.len()].copy_from_slice(&data);
        }
    }

    pub(crate) fn take(&mut self, drive: &Drive, name: &str) -> SnapshotInfo {
        self.taken += 1;
        self.world.run(drive.create_snapshot(new(name, self.taken))).unwrap()
    }

    pub(crate) fn compare(&self, drive: &Drive) {
        let read = self.world.read(drive, 0, self.plain.len()).unwrap();
        assert!(read == self.plain, "the disk");
    }
}

pub(crate) fn new(name: &str, number: u32) -> NewSnapshot {
    let guid = uuid::Uuid::from_u128(number.into());
    NewSnapshot { name: name.to_owned(), guid, created_seconds: 1_790_000_000, yields: false }
}

pub(crate) fn names(drive: &Drive) -> Vec<String> {
    drive.snapshots().into_iter().map(|info| info.name).collect()
}

/// Reads an entire snapshot of a closed drive.
pub(crate) fn whole(world: &World, name: &str) -> Vec<u8> {
    let options = OpenOptions::default();
    let opening = Drive::open_snapshot(world.medium(), world.runtime.clock(), name, options);
    let view = world.run(opening).unwrap();
    assert!(view.is_read_only());
    let bytes = world.read(&view, 0, view.size_bytes() as usize).unwrap();
    world.close(view);
    bytes
}

fn free(drive: &Drive) -> u32 {
    drive.core().space().free_count()
}

/// Lets background work finish.
pub(crate) fn rest(world: &World) {
    world.run(world.runtime.clone().sleep_ns(20_000_000_000));
}

#[test]
fn a_snapshot_never_changes() {
    let mut disk = Disk::new(1);
    let drive = disk.world.open();
    disk.write_some(&drive, 60);
    disk.take(&drive, "first");
    let first = disk.plain.clone();
    disk.write_around(&drive);
    disk.take(&drive, "second");
    let second = disk.plain.clone();
    disk.trim_all(&drive);
    (0..6).for_each(|_| disk.write_around(&drive));
    disk.compare(&drive);
    assert_eq!(names(&drive), ["first", "second"]);
    let freed = drive.info().operations.gc_victims;
    assert!(freed > 0, "nothing was collected");
    let drive = disk.world.reopen(drive);
    disk.write_around(&drive);
    disk.compare(&drive);
    disk.world.close(drive);
    assert!(whole(&disk.world, "first") == first, "first");
    assert!(whole(&disk.world, "second") == second, "second");
    assert_eq!(disk.world.check().problems, []);
}

#[test]
fn a_snapshot_outlives_openings_and_checkpoints() {
    let mut disk = Disk::new(2);
    let mut drive = disk.world.open();
    disk.write_some(&drive, 30);
    disk.take(&drive, "a");
    let a = disk.plain.clone();
    // The newest checkpoint is the snapshot.
    disk.world.kill(drive);
    drive = disk.world.open();
    assert_eq!(names(&drive), ["a"]);
    assert!(drive.core().superblock().has_snapshots, "other programs must know them");
    for _ in 0..3 {
        disk.write_some(&drive, 30);
        disk.world.run(drive.checkpoint()).unwrap();
        disk.world.run(drive.flush()).unwrap();
        disk.world.kill(drive);
        drive = disk.world.open();
    }
    disk.compare(&drive);
    let before: Vec<_> =
        drive.core().snapshots().kept().iter().map(|kept| kept.retained.clone()).collect();
    drive = disk.world.reopen(drive);
    let after: Vec<_> =
        drive.core().snapshots().kept().iter().map(|kept| kept.retained.clone()).collect();
    assert_eq!(before, after, "recovery finds what was retained");
    disk.world.close(drive);
    assert!(whole(&disk.world, "a") == a);
}

#[test]
fn deleting_a_snapshot_frees_data_that_only_it_retained() {
    let mut disk = Disk::new(3);
    let drive = disk.world.open();
    disk.write_around(&drive);
    disk.take(&drive, "a");
    disk.write_around(&drive);
    disk.take(&drive, "b");
    disk.write_around(&drive);
    rest(&disk.world);
    let before = free(&drive);
    let (a, b) = (drive.snapshots()[0].clone(), drive.snapshots()[1].clone());
    assert!(a.alone_bytes >= 2 << 20 && b.alone_bytes >= 2 << 20, "{a:?} {b:?}");
    let deleted = disk.world.run(drive.delete_snapshot("a")).unwrap();
    assert_eq!(deleted, a);
    rest(&disk.world);
    let gained = u64::from(free(&drive) - before) * u64::from(SEGMENT_BYTES);
    assert!(gained + (8 << 20) > a.alone_bytes, "{gained} of {}", a.alone_bytes);
    disk.world.run(drive.delete_snapshot("b")).unwrap();
    assert!(!drive.core().space().has_retained());
    assert!(!drive.core().superblock().has_snapshots, "any program may open it");
    rest(&disk.world);
    let kind = |name: &str| disk.world.run(drive.delete_snapshot(name)).unwrap_err().kind();
    assert_eq!((kind("a"), kind("never")), (ErrorKind::NotFound, ErrorKind::NotFound));
    disk.compare(&drive);
    disk.world.close(drive);
    assert_eq!(disk.world.check().problems, []);
}

/// The power fails at each operation of the medium in turn.
#[test]
fn power_loss_in_a_creation_or_deletion_leaves_it_or_not() {
    let mut disk = Disk::new(4);
    let drive = disk.world.open();
    disk.write_some(&drive, 20);
    disk.take(&drive, "old");
    let old = disk.plain.clone();
    disk.write_some(&drive, 20);
    disk.world.run(drive.flush()).unwrap();
    disk.world.close(drive);
    let mut ends = [0; 4];
    for step in 0.. {
        let world = World { seed: step, ..disk.world.copy() };
        let plan = FaultPlan { latency_ns: 1_000_000..=1_000_000, ..FaultPlan::default() };
        let drive = world.open();
        drive.layers().set_plan(plan);
        let both = async {
            drive.create_snapshot(new("new", 7)).await.unwrap();
            drive.delete_snapshot("old").await.unwrap();
        };
        let ended = world.run(world.runtime.timeout(step * 500_000, both)).is_some();
        world.run(drive.layers().crash()).unwrap();
        world.kill(drive);
        let drive = world.open();
        let found = names(&drive);
        let end = match found.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["old"] => 0,
            ["old", "new"] => 1,
            ["new"] => 2,
            _ => panic!("{found:?}"),
        };
        ends[end] += 1;
        let read = world.read(&drive, 0, disk.plain.len()).unwrap();
        assert!(read == disk.plain, "the disk at step {step}");
        let mut drive = drive;
        for _ in 0..2 {
            for _ in 0..30 {
                let data = payload::noise(&mut disk.random, 1 << 20);
                world.write(&drive, disk.random.random_range(0..7) << 20, &data).unwrap();
            }
            drive = world.reopen(drive);
        }
        assert_eq!(names(&drive), found);
        world.close(drive);
        for name in &found {
            let wanted = if name == "old" { &old } else { &disk.plain };
            assert!(whole(&world, name) == *wanted, "{name} at step {step}");
        }
        assert_eq!(world.check().problems, [], "step {step}");
        if ended {
            break;
        }
    }
    assert!(ends[0] > 3 && ends[1] > 3 && ends[2] > 0, "{ends:?}");
}

/// Returns a full segment with frames that are live.
fn full_segment(drive: &Drive) -> SegmentId {
    let core = drive.core();
    let mut used: Vec<_> = core.space().used().collect();
    used.retain(|used| {
        used.live_bytes > 100_000
            && core.space().stream(used.segment) == Stream::Host
            && !core.space().is_open(used.segment, Stream::Host, used.generation)
    });
    used.first().expect("a full segment").segment
}

/// Cut frames could not be found at the locations that the snapshot refers to.
#[test]
fn garbage_collection_leaves_a_victim_that_a_snapshot_needs() {
    let mut disk = Disk::new(5);
    let drive = disk.world.open_without_collector();
    disk.write_around(&drive);
    disk.world.run(drive.flush()).unwrap();
    let victim = full_segment(&drive);
    let live_bytes = drive.core().space().live_bytes_of(victim);
    disk.world.run(drive.checkpoint()).unwrap();
    disk.take(&drive, "a");
    disk.world.run(drive.empty_victim(victim)).unwrap();
    assert_eq!(drive.core().space().live_bytes_of(victim), live_bytes, "moved");
    disk.world.run(drive.delete_snapshot("a")).unwrap();
    disk.world.run(drive.empty_victim(victim)).unwrap();
    assert_eq!(drive.core().space().live_bytes_of(victim), 0);
    disk.compare(&drive);
}

/// Trims free nothing, and each dirties a leaf whose old record remains.
#[test]
fn a_full_drive_deletes_its_snapshot_however_much_was_trimmed() {
    let mut disk = Disk::new(6);
    let drive = disk.world.open();
    for at in 0..8 {
        let data = payload::noise(&mut disk.random, 1 << 20);
        disk.world.write(&drive, at << 20, &data).unwrap();
    }
    for number in 1.. {
        match disk.world.run(drive.create_snapshot(new(&number.to_string(), number))) {
            Ok(_) => disk.write_some(&drive, 30),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                break;
            }
        }
    }
    assert!(drive.snapshots().len() > 1);
    let is_full = (0..2000_u64).any(|at| {
        let data = payload::noise(&mut disk.random, 256 << 10);
        let result = disk.world.run(drive.write((at * 7 % 31) << 18, &data));
        result.is_err_and(|error| error.kind() == ErrorKind::NoSpace)
    });
    assert!(is_full, "the drive was filled");
    for at in 0..3000_u64 {
        let offset = at * 5 % (SIZE / BLOCK) * BLOCK;
        let trimmed = disk.world.run(drive.trim_durable(offset, BLOCK));
        if at % 50 == 0 {
            disk.world.run(drive.checkpoint()).unwrap();
        }
        if let Err(error) = trimmed {
            assert_eq!(error.kind(), ErrorKind::NoSpace);
        }
    }
    for name in names(&drive) {
        disk.world.run(drive.delete_snapshot(&name)).unwrap();
    }
    rest(&disk.world);
    disk.write_around(&drive);
    disk.world.close(drive);
    assert_eq!(disk.world.check().problems, []);
}

#[test]
fn a_snapshot_is_refused_where_it_would_take_the_reserves() {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    world.write(&drive, 0, &payload::noise(&mut random(1), 6 << 20)).unwrap();
    let error = world.run(drive.create_snapshot(new("a", 1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains("free segments"), "{error}");
    assert!(drive.snapshots().is_empty());
    world.write(&drive, 0, &[1; 5000]).unwrap();
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

#[test]
fn a_damaged_root_of_a_snapshot_retains_everything_and_can_be_deleted() {
    let mut disk = Disk::new(7);
    let drive = disk.world.open();
    disk.write_some(&drive, 30);
    disk.take(&drive, "a");
    disk.write_some(&drive, 30);
    let root = drive.core().snapshots().kept()[0].entry.root.unwrap();
    disk.world.close(drive);
    disk.world.flip_for_good(root.address.segment.0, root.address.offset + 40);
    let drive = disk.world.open();
    assert!(drive.snapshots()[0].damage.is_some());
    disk.compare(&drive);
    let used: Vec<_> = drive.core().space().used().map(|used| used.segment).collect();
    assert!(drive.core().snapshots().kept()[0].retained.iter().count() + 3 > used.len());
    disk.world.run(drive.delete_snapshot("a")).unwrap();
    assert!(!drive.core().space().has_retained());
    disk.world.close(drive);
}

#[test]
fn names_are_checked_and_1024_is_the_limit() {
    let mut disk = Disk::new(8);
    let drive = disk.world.open();
    disk.write_some(&drive, 3);
    disk.take(&drive, "a");
    let kind = |name: &str| {
        let result = disk.world.run(drive.create_snapshot(new(name, 1)));
        result.map(|info| info.name).unwrap_err().kind()
    };
    assert_eq!(kind("a"), ErrorKind::AlreadyExists);
    assert_eq!(kind("a/b"), ErrorKind::InvalidInput);
    assert_eq!(kind(""), ErrorKind::InvalidInput);
    for number in 1..1024 {
        disk.world.run(drive.create_snapshot(new(&number.to_string(), number))).unwrap();
    }
    assert_eq!(kind("one more"), ErrorKind::NoSpace);
    let drive = disk.world.reopen(drive);
    assert_eq!(drive.snapshots().len(), 1024);
    disk.compare(&drive);
    disk.world.run(drive.delete_snapshot("500")).unwrap();
    disk.world.run(drive.create_snapshot(new("one more", 1))).unwrap();
    disk.world.close(drive);
    assert!(whole(&disk.world, "a") == disk.plain);
}

#[test]
fn a_drive_with_snapshots_has_another_size_and_capacity() {
    let mut disk = Disk::new(9);
    let drive = disk.world.open();
    disk.write_some(&drive, 20);
    disk.take(&drive, "a");
    let a = disk.plain.clone();
    let resize = |size_bytes, segments: u64| {
        let capacity_bytes = Some(segments * u64::from(SEGMENT_BYTES));
        disk.world.run(drive.resize(Resize { size_bytes, capacity_bytes }))
    };
    resize(None, 28).unwrap();
    resize(Some(2 * SIZE), 31).unwrap();
    disk.world.run(drive.write_durable(SIZE, &[7; 9000])).unwrap();
    disk.take(&drive, "grown");
    disk.world.close(drive);
    assert!(whole(&disk.world, "a") == a, "as large as it was");
    assert_eq!(whole(&disk.world, "grown").len() as u64, 2 * SIZE);
}

/// No work is started repeatedly for data that snapshots retain.
#[test]
fn an_idle_drive_with_snapshots_comes_to_rest() {
    let mut disk = Disk::new(10);
    let drive = disk.world.open();
    disk.write_around(&drive);
    disk.take(&drive, "a");
    disk.write_around(&drive);
    rest(&disk.world);
    rest(&disk.world);
    let before = drive.layers().inner().counts();
    disk.world.run(disk.world.runtime.clone().sleep_ns(3_600_000_000_000));
    let used = drive.layers().inner().counts() - before;
    assert_eq!((used.appends, used.superblock_writes), (0, 0), "{used:?}");
    disk.world.close(drive);
}

/// A failed attempt does not affect the next one or the drive.
#[test]
fn a_snapshot_given_up_retains_nothing() {
    let mut disk = Disk::new(11);
    let drive = disk.world.open();
    disk.write_some(&drive, 30);
    let plan = FaultPlan { latency_ns: 1_000_000..=1_000_000, ..FaultPlan::default() };
    drive.layers().set_plan(plan);
    let creating = drive.create_snapshot(new("a", 1));
    assert!(disk.world.run(disk.world.runtime.timeout(1_500_000, creating)).is_none());
    assert!(!drive.core().space().has_retained());
    assert!(drive.snapshots().is_empty());
    disk.world.run(drive.create_snapshot(new("a", 2))).unwrap();
    assert_eq!(names(&drive), ["a"]);
    disk.world.close(drive);
    assert!(whole(&disk.world, "a") == disk.plain);
}

/// A deletion that fails leaves the snapshot unchanged.
#[test]
fn a_deletion_given_up_changes_nothing() {
    let mut disk = Disk::new(14);
    let drive = disk.world.open();
    disk.write_some(&drive, 30);
    disk.take(&drive, "a");
    let a = disk.plain.clone();
    let retained = |drive: &Drive| {
        let core = drive.core();
        let used: Vec<_> = core.space().used().map(|used| used.segment).collect();
        used.into_iter().filter(|&segment| core.space().is_retained(segment)).collect::<Vec<_>>()
    };
    let before = retained(&drive);
    let latency_ns = 1_000_000..=1_000_000;
    drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
    let deleting = drive.delete_snapshot("a");
    assert!(disk.world.run(disk.world.runtime.timeout(1_500_000, deleting)).is_none());
    drive.layers().set_plan(FaultPlan::default());
    assert_eq!(names(&drive), ["a"]);
    assert_eq!(retained(&drive), before);
    disk.trim_all(&drive);
    (0..3).for_each(|_| disk.write_around(&drive));
    disk.world.close(drive);
    assert!(whole(&disk.world, "a") == a);
}

/// Writes to the second leaf, and writes checkpoints, until metadata goes to a segment other than
/// that of the first leaf. Returns the latter.
fn leave_a_leaf(disk: &mut Disk, drive: &Drive) -> SegmentId {
    let tail = |drive: &Drive| drive.core().log().tail(Stream::Meta).unwrap().segment;
    for at in [0, SIZE / 2] {
        let data = payload::noise(&mut disk.random, 64 << 10);
        disk.world.write(drive, at, &data).unwrap();
        disk.plain[at as usize..][..data.len()].copy_from_slice(&data);
    }
    disk.world.run(drive.checkpoint()).unwrap();
    let first = tail(drive);
    while tail(drive) == first {
        disk.write_in_second_leaf(drive);
        disk.world.run(drive.checkpoint()).unwrap();
    }
    assert!(drive.core().metadata().iter().any(|place| place.segment == first), "the leaf");
    first
}

/// A crash left batches after the end of the log, which no snapshot needs.
#[test]
fn remains_of_a_crash_in_a_retained_segment_are_no_problem() {
    let mut disk = Disk::new(18);
    let drive = disk.world.open();
    disk.write_some(&drive, 5);
    disk.world.run(drive.flush()).unwrap();
    let tail = |drive: &Drive| drive.core().log().tail(Stream::Host).unwrap();
    let end = tail(&drive);
    for _ in 0..2 {
        let data = payload::noise(&mut disk.random, 20 << 10);
        disk.world.write(&drive, 0, &data).unwrap();
        disk.world.run(disk.world.runtime.clone().sleep_ns(5_000_000_000));
    }
    let beyond = tail(&drive);
    assert!(beyond.segment == end.segment && beyond.used > end.used + (40 << 10));
    disk.world.kill(drive);
    for page in (end.used..beyond.used).step_by(4096) {
        // A different byte of each page is damaged, so that parity restores none.
        disk.world.flip(end.segment.0, page + 2000 + page / 4096 % 64);
    }
    let drive = disk.world.open();
    assert_eq!(tail(&drive).used, end.used, "the log was cut");
    let leave = |core: &mut Core| Ok(core.leave_segment(Stream::Host)?.then_some(()));
    disk.world.run(drive.with_room(leave)).unwrap();
    assert_ne!(tail(&drive).segment, end.segment);
    disk.take(&drive, "a");
    assert!(drive.core().space().is_retained(end.segment));
    let report = disk.world.run(drive.scrub(0)).unwrap();
    assert_eq!(report.problems, []);
    disk.compare(&drive);
    disk.world.close(drive);
}

/// Opens the drive twice: first the snapshot is the newest checkpoint, then it is not.
#[test]
fn a_snapshot_needs_leaves_of_earlier_checkpoints() {
    let mut disk = Disk::new(15);
    let drive = disk.world.open_without_collector();
    let segment = leave_a_leaf(&mut disk, &drive);
    disk.take(&drive, "a");
    assert!(drive.core().space().is_retained(segment));
    disk.world.kill(drive);
    for _ in 0..2 {
        let drive = disk.world.open_without_collector();
        assert!(drive.core().space().is_retained(segment));
        disk.write_in_second_leaf(&drive);
        disk.world.close(drive);
    }
}

/// The checkpoint refers to the leaf, but once it is complete, the map no longer does.
#[test]
fn a_snapshot_needs_leaves_that_are_trimmed_while_it_is_taken() {
    let mut disk = Disk::new(16);
    let drive = disk.world.open_without_collector();
    let segment = leave_a_leaf(&mut disk, &drive);
    let a = disk.plain.clone();
    let latency_ns = 1_000_000..=1_000_000;
    drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
    let trim = async {
        while drive.snapshots_begun() == 0 {
            disk.world.runtime.clone().sleep_ns(10_000).await;
        }
        drive.trim(0, SIZE / 2).await.unwrap();
        drive.reap_all().await.unwrap();
        assert!(drive.snapshots().is_empty(), "it is still being taken");
    };
    let both = futures_util::future::join(drive.create_snapshot(new("a", 1)), trim);
    disk.world.run(both).0.unwrap();
    drive.layers().set_plan(FaultPlan::default());
    assert!(drive.core().space().is_retained(segment));
    disk.plain[..SIZE as usize / 2].fill(0);
    let drive = disk.world.reopen(drive);
    assert!(drive.core().space().is_retained(segment));
    for _ in 0..3 {
        disk.write_around(&drive);
        disk.world.run(drive.checkpoint()).unwrap();
    }
    disk.compare(&drive);
    disk.world.close(drive);
    assert!(whole(&disk.world, "a") == a);
}

/// Frames are being moved when a snapshot is taken. The snapshot must find them later by their
/// locations.
#[test]
fn frames_stay_from_the_moment_at_which_a_snapshot_is_taken() {
    let mut were_moved = 0;
    for step in 0..40_u64 {
        let mut disk = Disk::new(17);
        let drive = disk.world.open_without_collector();
        disk.write_around(&drive);
        disk.world.run(drive.checkpoint()).unwrap();
        let places = || -> Vec<_> {
            let core = drive.core();
            let runs = core.map().runs();
            let frames = runs.map(|(lba, _, mapping)| match mapping {
                Mapping::Frame { place, .. } => Some((lba, place.segment, place.offset)),
                _ => None,
            });
            frames.collect()
        };
        let victim = full_segment(&drive);
        let latency_ns = 100_000..=100_000;
        drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
        let at_first = places();
        let mut at_cut = Vec::new();
        let create = async {
            disk.world.runtime.clone().sleep_ns(step * 50_000).await;
            let mut creating = std::pin::pin!(drive.create_snapshot(new("a", 1)));
            std::future::poll_fn(|context| {
                let before = drive.snapshots_begun();
                let polled = creating.as_mut().poll(context);
                if drive.snapshots_begun() > before {
                    at_cut = places();
                }
                polled
            })
            .await
        };
        let empty = drive.empty_victim(victim);
        let (created, emptied) = disk.world.run(futures_util::future::join(create, empty));
        created.unwrap();
        emptied.unwrap();
        were_moved += u32::from(at_cut != at_first && drive.core().space().is_retained(victim));
        assert!(places() == at_cut, "frames were moved, step {step}");
    }
    assert!(were_moved > 0, "no snapshot was taken while frames were moved");
}

/// A snapshot that waits for garbage collection waits as long as any other, but not beyond the time
/// at which the drive stops accepting writes.
#[test]
fn a_snapshot_that_waits_for_room_ends_with_the_drive() {
    let mut disk = Disk::new(13);
    let drive = disk.world.open_without_collector();
    while drive.core().space().free_count() >= drive.core().segments_for_snapshot() {
        let data = payload::noise(&mut disk.random, 1 << 20);
        disk.world.write(&drive, disk.random.random_range(0..7) << 20, &data).unwrap();
    }
    let (world, runtime) = (&disk.world, &disk.world.runtime);
    let fail = async {
        let other = drive.create_snapshot(new("b", 2));
        assert!(runtime.timeout(1_000_000, other).await.is_none(), "it waits");
        assert!(drive.core().snapshots().wanted_segments() > 0, "the first still waits");
        let append_errors = Trigger::Nth(1);
        drive.layers().set_plan(FaultPlan { append_errors, ..FaultPlan::default() });
        drive.write_durable(0, &[1; 5000]).await.unwrap_err();
    };
    let first = runtime.timeout(60_000_000_000, drive.create_snapshot(new("a", 1)));
    let (first, ()) = world.run(futures_util::future::join(first, fail));
    let error = first.expect("it ends").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Poisoned);
    assert_eq!(drive.core().snapshots().wanted_segments(), 0);
}

/// Data that only a snapshot needs is verified as well.
#[test]
fn damage_in_a_snapshot_is_found_by_check_and_scrub() {
    let mut disk = Disk::new(12);
    let drive = disk.world.open();
    let data = payload::noise(&mut disk.random, 1 << 20);
    disk.world.write(&drive, 0, &data).unwrap();
    let Lookup::Run(Mapping::Frame { place, .. }, _) = drive.core().map().peek(Lba(40)) else {
        panic!("a block was not written")
    };
    disk.take(&drive, "a");
    disk.world.write(&drive, 0, &[3; 1 << 20]).unwrap();
    disk.world.close(drive);
    let check_a = |depth| {
        let mut ignore = |_| ();
        disk.world.run(check_snapshot(&disk.world.memory, "a", depth, &mut ignore)).unwrap()
    };
    assert_eq!(check_a(Depth::Full).problems, []);
    let report = disk.world.check();
    assert_eq!((report.snapshots, report.problems), (1, vec![]));
    disk.world.flip_for_good(place.segment.0, place.offset + place.record_bytes / 2);
    assert_eq!(disk.world.check().problems, [], "the disk does not need it");
    let problems = check_a(Depth::Full).problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(check_a(Depth::Quick).problems, []);
    let drive = disk.world.open();
    let report = disk.world.run(drive.scrub(0)).unwrap();
    assert_eq!(report.problem_count, 1, "{:?}", report.problems);
    disk.world.close(drive);
    // Any check notices the loss of metadata that the snapshot's map needs.
    let drive = disk.world.open();
    let kept = drive.core().snapshots().kept()[0].clone();
    let root = kept.entry.root.unwrap();
    disk.world.close(drive);
    disk.world.flip_for_good(root.address.segment.0, root.address.offset + 40);
    let problems = disk.world.check().problems;
    assert!(problems[0].what.contains("snapshot a is damaged"), "{problems:?}");
}

/// Opens a snapshot of a closed drive.
fn view(world: &World, name: &str) -> Rc<Drive> {
    let options = OpenOptions::default();
    world.run(Drive::open_snapshot(world.medium(), world.runtime.clock(), name, options)).unwrap()
}

/// Returns the blocks that were written between one disk and another.
pub(crate) fn changed(world: &World, from: &Drive, to: &Drive) -> Vec<bool> {
    let mut changed = vec![false; (to.size_bytes() / BLOCK) as usize];
    let mut last = 0;
    let visit = |range: Changed| {
        assert!(range.offset >= last && range.bytes > 0, "in order");
        last = range.offset + range.bytes;
        changed[(range.offset / BLOCK) as usize..(last / BLOCK) as usize].fill(true);
        true
    };
    world.run(to.changes_since(from, visit)).unwrap();
    changed
}

/// Garbage collection moves only data that no snapshot needs.
#[test]
fn changes_between_snapshots_are_exact() {
    let mut disk = Disk::new(13);
    let mut disks = Vec::new();
    let mut drive = disk.world.open();
    for number in 0..5 {
        if number == 0 {
            disk.write_around(&drive);
        } else {
            disk.write_some(&drive, 6);
            let at = disk.random.random_range(0..SIZE / BLOCK - 40) * BLOCK;
            disk.world.run(drive.trim(at, 30 * BLOCK)).unwrap();
            disk.plain[at as usize..][..30 * BLOCK_BYTES].fill(0);
        }
        disk.take(&drive, &number.to_string());
        disks.push(disk.plain.clone());
        // Data that lives only between two snapshots keeps garbage collection busy.
        for _ in 0..3 {
            let data = payload::noise(&mut disk.random, 1 << 20);
            disk.world.write(&drive, 7 << 20, &data).unwrap();
            disk.plain[7 << 20..].copy_from_slice(&data);
        }
        rest(&disk.world);
        drive = disk.world.reopen(drive);
    }
    disks.push(disk.plain.clone());
    disk.world.close(drive);
    let now =
        disk.world.try_open(OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    let mut views: Vec<_> = (0..5).map(|number| view(&disk.world, &number.to_string())).collect();
    views.push(now);
    let (mut reported, mut differing) = (0, 0);
    for (old, new) in (0..6).flat_map(|old| (old..6).map(move |new| (old, new))) {
        let changed = changed(&disk.world, &views[old], &views[new]);
        assert!(old != new || !changed.contains(&true), "a snapshot differs from itself");
        let block = |plain: &[u8], at: usize| plain[at * BLOCK_BYTES..][..BLOCK_BYTES].to_vec();
        for (at, &is_reported) in changed.iter().enumerate() {
            let differs = block(&disks[old], at) != block(&disks[new], at);
            assert!(is_reported || !differs, "block {at} from {old} to {new} is missed");
            reported += u64::from(is_reported);
            differing += u64::from(differs);
        }
    }
    // The rest are rewrites of equal patterns.
    assert!(reported <= differing + differing / 50, "{reported} reported, {differing} differ");
    let backwards = disk.world.run(views[0].changes_since(&views[1], |_| true)).unwrap_err();
    assert_eq!(backwards.kind(), ErrorKind::InvalidInput);
    for view in views {
        disk.world.run(view.close()).unwrap();
    }
}

/// A leaf in memory differs from the one on the medium, and so does a leaf in a range that was
/// dropped.
#[test]
fn changes_that_only_the_log_has_are_found() {
    let mut disk = Disk::new(19);
    let drive = disk.world.open();
    disk.write_around(&drive);
    disk.take(&drive, "a");
    disk.world.close(drive);
    for trims in [false, true] {
        let drive = disk.world.open();
        if trims {
            disk.world.run(drive.trim_durable(0, SIZE)).unwrap();
        } else {
            disk.world.run(drive.write_durable(5 * BLOCK, &[7; BLOCK_BYTES])).unwrap();
        }
        disk.world.kill(drive);
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let (now, then) = (disk.world.try_open(options).unwrap(), view(&disk.world, "a"));
        let found = changed(&disk.world, &then, &now).iter().filter(|&&it| it).count();
        let zero = disk.plain.chunks(BLOCK_BYTES).filter(|it| it.iter().all(|it| *it == 0)).count();
        let all = disk.plain.len() / BLOCK_BYTES - zero;
        assert_eq!(found, if trims { all } else { 1 });
        disk.world.run(now.close()).unwrap();
        disk.world.run(then.close()).unwrap();
        disk.world.runtime.drop_tasks();
    }
}

/// Each trim dirties a leaf whose old record a snapshot retains. If trims continued as long as they
/// fit the open segment, checkpoints could run out of space.
#[test]
fn a_trim_needs_its_reserve_while_there_are_snapshots() {
    let mut disk = Disk::new(18);
    let drive = disk.world.open();
    disk.write_some(&drive, 20);
    disk.take(&drive, "a");
    let trim = || disk.world.run(drive.trim_durable(0, BLOCK));
    trim().unwrap();
    let reserve = drive.core().reserved_segments(Purpose::Trim);
    take_free_segments(&drive, reserve - 1);
    assert_eq!(trim().unwrap_err().kind(), ErrorKind::NoSpace);
    disk.world.run(drive.checkpoint()).unwrap();
    disk.world.run(drive.delete_snapshot("a")).unwrap();
    trim().unwrap();
}
