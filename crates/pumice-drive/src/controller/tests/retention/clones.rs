//! Goal: a clone is its origin's snapshot with the clone's own writes on top, whatever happens to
//! either; the origin retains the data that clones need, and lists the clones. Method: two drives,
//! each with a plain array. The clone's array begins as the snapshot. The origin's drive is open on
//! a medium of its own, as in another process, and is overwritten, trimmed and collected in
//! between.

use rand::RngExt;

use super::snapshots::{Disk, SIZE, new};
use super::*;
use crate::base::seed::{Random, random};
use crate::format::{Origin, RegisteredClone};

pub(crate) const CLONE_SIZE: u64 = SIZE + (3 << 20);

/// A clone, and its disk.
pub(crate) struct Clone {
    pub(crate) world: World,
    pub(crate) plain: Vec<u8>,
    pub(crate) random: Random,
    pub(crate) wanted: Origin,
    pub(crate) memory_of_origin: MemMedium,
}

pub(crate) fn registered(number: u32) -> RegisteredClone {
    let drive = uuid::Uuid::from_u128(0xc10e << 32 | u128::from(number));
    RegisteredClone { drive, path: format!("/vm/{number}.pumice"), created_seconds: 7 }
}

impl Clone {
    /// Makes a clone of the present disk, through a snapshot of this name.
    pub(crate) fn of(disk: &mut Disk, drive: &Drive, name: &str, number: u32) -> Self {
        Self::with(disk, drive, (name, number), small(CLONE_SIZE, 24))
    }

    /// Makes a clone like [`Clone::of`], with other properties.
    pub(crate) fn with(
        disk: &mut Disk,
        drive: &Drive,
        (name, number): (&str, u32),
        spec: Spec,
    ) -> Self {
        let taken = disk.take(drive, name);
        let clone = registered(number);
        let info = disk.world.run(drive.register_clone(name, clone.clone())).unwrap();
        assert_eq!(info.clones, std::slice::from_ref(&clone));
        let wanted = Origin {
            drive: drive.uuid(),
            snapshot: taken.guid,
            watermark: crate::base::SeqNo(taken.sequence),
            blocks: taken.size_bytes / BLOCK,
            path: "/vm/template.pumice".into(),
        };
        let (uuid, origin) = (clone.drive, Some(wanted.clone()));
        let spec = Spec { uuid, origin, ..spec };
        let mut plain = disk.plain.clone();
        plain.resize(CLONE_SIZE as usize, 0);
        let memory_of_origin = disk.world.memory.clone();
        let (world, random) = (World::new(spec), random(number.into()));
        Self { world, plain, random, wanted, memory_of_origin }
    }

    /// Opens the origin, next to a drive that may have it open for writing.
    pub(crate) fn origin(&self) -> Result<Rc<Drive>> {
        let (runtime, plan) = (self.world.runtime.clone(), self.world.plan.clone());
        let count = Count::new(self.memory_of_origin.clone());
        let medium = Rc::new(Fault::new(count, runtime.clone(), 0, plan));
        let options = OpenOptions::default();
        let (clone, clock) = (self.world.spec.uuid, runtime.clock());
        self.world.run(Drive::open_origin(medium, clock, clone, &self.wanted, options))
    }

    pub(crate) fn open(&self) -> Rc<Drive> {
        let drive = self.world.open();
        drive.set_origin(self.origin().unwrap()).unwrap();
        drive
    }

    pub(crate) fn change(&mut self, drive: &Drive) {
        let len = self.random.random_range(1..300 << 10);
        let offset = self.random.random_range(0..=CLONE_SIZE - len as u64);
        let (from, end) = (offset as usize, offset as usize + len);
        let run = &self.world;
        match self.random.random_range(0..6) {
            0 => {
                run.run(drive.trim(offset, len as u64)).unwrap();
                let from = from.next_multiple_of(BLOCK_BYTES);
                self.plain[from..(end / BLOCK_BYTES * BLOCK_BYTES).max(from)].fill(0);
            }
            1 | 2 => {
                let allocation = allocation(self.random.random_bool(0.5));
                run.run(drive.write_zeroes(offset, len as u64, allocation)).unwrap();
                self.plain[from..end].fill(0);
            }
            _ => {
                let data = payload::any(&mut self.random, len);
                run.write(drive, offset, &data).unwrap();
                self.plain[from..end].copy_from_slice(&data);
            }
        }
    }

    pub(crate) fn trim_all(&mut self, drive: &Drive) {
        self.world.run(drive.trim(0, CLONE_SIZE)).unwrap();
        self.plain.fill(0);
    }

    /// Compares the disk, its reported state, and the image extracted from it.
    pub(crate) fn compare(&self, drive: &Drive) {
        let len = self.plain.len();
        assert!(self.world.read(drive, 0, len).unwrap() == self.plain, "the disk");
        let mut at = 0;
        let visit = |extent: Extent| {
            let part = &self.plain[at..][..extent.bytes as usize];
            at += part.len();
            assert!(extent.content == Content::Data || part.iter().all(|&byte| byte == 0));
            true
        };
        self.world.run(drive.extents(0, len as u64, visit)).unwrap();
        assert_eq!(at, len);
        let mut image = vec![0; len];
        self.world.run(async {
            let mut extract = Extract::new(drive);
            while let Some(part) = extract.next().await {
                match part {
                    Extracted::Data { offset, bytes } => {
                        image[offset as usize..][..bytes.len()].copy_from_slice(bytes);
                    }
                    Extracted::Fill { offset, len, byte } => {
                        image[offset as usize..][..len as usize].fill(byte);
                    }
                    Extracted::Lost(problem) => panic!("{problem:?}"),
                }
            }
        });
        assert!(image == self.plain, "the image");
    }
}

#[test]
fn a_clone_is_its_origin_plus_its_own_writes() {
    for seed in 0..4 {
        let mut disk = Disk::new(seed);
        let mut template = disk.world.open();
        disk.write_some(&template, 60);
        let mut clone = Clone::of(&mut disk, &template, "golden", 1 + seed as u32);
        let mut drive = clone.open();
        clone.compare(&drive);
        for step in 0..8 {
            (0..12).for_each(|_| clone.change(&drive));
            clone.compare(&drive);
            disk.write_around(&template);
            match step {
                1 => {
                    clone.world.close_without_checkpoint(drive);
                    drive = clone.open();
                }
                2 => disk.trim_all(&template),
                3 => template = disk.world.reopen(template),
                4 => {
                    clone.world.run(drive.flush()).unwrap();
                    clone.world.kill(drive);
                    drive = clone.open();
                }
                5 => clone.trim_all(&drive),
                _ => {}
            }
            clone.compare(&drive);
        }
        disk.compare(&template);
        disk.world.close(template);
        clone.compare(&drive);
        clone.world.close(drive);
        assert_eq!(clone.world.check().problems, []);
        assert_eq!(disk.world.check().problems, []);
    }
}

/// Another process continues to use the tables of moved frames that it found when it opened the
/// origin.
#[test]
fn data_that_a_clone_needs_stays_in_place() {
    let mut disk = Disk::new(11);
    let template = disk.world.open();
    disk.write_some(&template, 60);
    disk.take(&template, "older");
    disk.write_around(&template);
    let clone = Clone::of(&mut disk, &template, "golden", 1);
    let before = clone.open();
    // None of its data is in memory yet.
    disk.trim_all(&template);
    disk.world.run(template.delete_snapshot("older")).unwrap();
    let victims = template.info().operations.gc_victims;
    (0..8).for_each(|_| disk.write_around(&template));
    disk.world.run(template.compact(0)).unwrap();
    assert!(template.info().operations.gc_victims > victims, "nothing was collected");
    clone.compare(&before);
    clone.world.kill(before);
    let template = disk.world.reopen(template);
    let before = clone.open();
    (0..4).for_each(|_| disk.write_around(&template));
    disk.world.run(template.compact(0)).unwrap();
    clone.compare(&before);
    disk.compare(&template);
    clone.world.close(before);
    disk.world.close(template);
    assert_eq!(disk.world.check().problems, []);
}

/// Segments that a clone needed are collected once the clone is forgotten.
#[test]
fn a_snapshot_with_clones_is_not_deleted() {
    let mut disk = Disk::new(12);
    let template = disk.world.open();
    disk.write_some(&template, 20);
    disk.take(&template, "a");
    let yields = NewSnapshot { yields: true, ..new("golden", 7) };
    disk.world.run(template.create_snapshot(yields)).unwrap();
    for number in 1..=5 {
        disk.world.run(template.register_clone("golden", registered(number))).unwrap();
    }
    let refused = |template: &Drive, error: Error| {
        assert_eq!(error.kind(), ErrorKind::Busy);
        let what = error.to_string();
        assert!(what.contains("/vm/1.pumice, /vm/2.pumice, /vm/3.pumice and 2 more"), "{what}");
        assert_eq!(super::snapshots::names(template), ["a", "golden"]);
    };
    let delete = |template: &Drive| disk.world.run(template.delete_snapshot("golden"));
    refused(&template, delete(&template).unwrap_err());
    refused(&template, disk.world.run(template.delete_snapshots(&["a", "golden"])).unwrap_err());
    refused(&template, disk.world.run(template.roll_back("a", true)).map(|_| ()).unwrap_err());
    assert!(template.core().superblock().has_clones, "other programs must know them");
    disk.world.kill(template);
    let template = disk.world.open();
    refused(&template, disk.world.run(template.delete_snapshot("golden")).unwrap_err());
    let again = template.register_clone("golden", registered(3));
    assert_eq!(disk.world.run(again).unwrap_err().kind(), ErrorKind::AlreadyExists);
    let nowhere = template.register_clone("b", registered(9));
    assert_eq!(disk.world.run(nowhere).unwrap_err().kind(), ErrorKind::NotFound);
    let relative = RegisteredClone { path: "vm.pumice".into(), ..registered(9) };
    let relative = template.register_clone("golden", relative);
    assert_eq!(disk.world.run(relative).unwrap_err().kind(), ErrorKind::InvalidInput);
    for number in 1..=5 {
        let forgotten = disk.world.run(template.forget_clone(registered(number).drive)).unwrap();
        assert!(forgotten);
    }
    assert!(!disk.world.run(template.forget_clone(registered(1).drive)).unwrap());
    assert!(!template.core().superblock().has_clones, "any program may open it");
    assert!(
        (0..template.core().space().segment_count())
            .all(|segment| !template.core().space().is_fixed(SegmentId(segment)))
    );
    disk.world.run(template.delete_snapshot("golden")).unwrap();
    disk.world.close(template);
    assert_eq!(disk.world.check().problems, []);
}

/// The host is refused before a clone loses data that it reads.
#[test]
fn a_snapshot_with_clones_does_not_yield() {
    let mut disk = Disk::new(13);
    let template = disk.world.open();
    disk.write_around(&template);
    let yields = NewSnapshot { yields: true, ..new("golden", 7) };
    disk.world.run(template.create_snapshot(yields)).unwrap();
    disk.world.run(template.register_clone("golden", registered(1))).unwrap();
    let fill = |template: &Drive, random: &mut Random| {
        (0..400).try_for_each(|step: u64| {
            let data = payload::noise(random, 1 << 20);
            disk.world.write(template, (step % 8) << 20, &data)
        })
    };
    for number in 0.. {
        let taken = disk.world.run(template.create_snapshot(new(&number.to_string(), 9 + number)));
        if taken.is_err() {
            break;
        }
        if fill(&template, &mut disk.random).is_err() {
            break;
        }
    }
    assert!(super::snapshots::names(&template).contains(&"golden".to_owned()));
    disk.world.kill(template);
}

#[test]
fn without_its_origin_a_clone_reads_only_its_own_data() {
    let mut disk = Disk::new(14);
    let template = disk.world.open();
    disk.write_some(&template, 60);
    let mut clone = Clone::of(&mut disk, &template, "golden", 1);
    let drive = clone.world.open();
    let block = vec![7; BLOCK_BYTES];
    clone.world.write(&drive, BLOCK, &block).unwrap();
    assert_eq!(clone.world.read(&drive, BLOCK, BLOCK_BYTES).unwrap(), block);
    for (offset, len) in [(0, 1), (0, 3 * BLOCK_BYTES), (BLOCK, 2 * BLOCK_BYTES)] {
        let error = clone.world.read(&drive, offset, len).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{offset}");
    }
    let partial = clone.world.write(&drive, 3 * BLOCK + 1, &[1]).unwrap_err();
    assert_eq!(partial.kind(), ErrorKind::NotFound);
    let asked = clone.world.run(drive.extents(0, SIZE, |_| true)).unwrap_err();
    assert_eq!(asked.kind(), ErrorKind::NotFound);
    // Beyond the origin's end, the clone reads zeroes.
    let beyond = clone.world.read(&drive, SIZE, BLOCK_BYTES).unwrap();
    assert_eq!(beyond, vec![0; BLOCK_BYTES]);
    let flattened = clone.world.run(drive.flatten(|_| true)).unwrap_err();
    assert_eq!(flattened.kind(), ErrorKind::NotFound);
    clone.world.close(drive);
    // The origin must be neither another snapshot nor another drive.
    let other = disk.take(&template, "other");
    disk.world.run(template.register_clone("other", registered(1))).unwrap();
    let (watermark, snapshot) = (crate::base::SeqNo(other.sequence), other.guid);
    let right = clone.wanted.clone();
    clone.wanted = Origin { watermark, snapshot, ..right.clone() };
    let (drive, wrong) = (clone.world.open(), clone.origin().unwrap());
    assert_eq!(drive.set_origin(wrong).unwrap_err().kind(), ErrorKind::InvalidInput);
    let uuid = uuid::Uuid::from_u128(0xbad);
    for (wanted, kind) in [
        (Origin { drive: uuid, ..right.clone() }, ErrorKind::InvalidInput),
        (Origin { snapshot: uuid, ..right.clone() }, ErrorKind::NotFound),
    ] {
        clone.wanted = wanted;
        assert_eq!(clone.origin().map(|_| ()).unwrap_err().kind(), kind);
    }
    clone.wanted = right;
    // A copy of the clone, with a different identity, and the clone once it is forgotten.
    clone.world.spec.uuid = uuid;
    assert_eq!(clone.origin().map(|_| ()).unwrap_err().kind(), ErrorKind::NotFound);
    clone.world.spec.uuid = registered(1).drive;
    assert!(clone.origin().is_ok());
    while disk.world.run(template.forget_clone(registered(1).drive)).unwrap() {}
    assert_eq!(clone.origin().map(|_| ()).unwrap_err().kind(), ErrorKind::NotFound);
    clone.world.close(drive);
    disk.world.close(template);
}

/// Blocks beyond the origin's end stay zeroes, even where the disk has grown.
#[test]
fn a_clone_grows_beyond_its_origin() {
    let mut disk = Disk::new(15);
    let template = disk.world.open();
    disk.write_around(&template);
    let mut clone = Clone::of(&mut disk, &template, "golden", 1);
    let drive = clone.open();
    let grown = CLONE_SIZE + (4 << 20);
    let resize = Resize { size_bytes: Some(grown), capacity_bytes: None };
    clone.world.run(drive.resize(resize)).unwrap();
    clone.plain.resize(grown as usize, 0);
    clone.compare(&drive);
    clone.trim_all(&drive);
    clone.world.close(drive);
    let drive = clone.open();
    let read = clone.world.read(&drive, 0, SIZE as usize).unwrap();
    assert!(read.iter().all(|&byte| byte == 0), "what was trimmed");
    clone.world.close(drive);
    disk.world.close(template);
}

#[test]
fn snapshots_of_a_clone_read_from_its_origin_too() {
    let mut disk = Disk::new(16);
    let template = disk.world.open();
    disk.write_around(&template);
    let mut clone = Clone::of(&mut disk, &template, "golden", 1);
    let drive = clone.open();
    (0..10).for_each(|_| clone.change(&drive));
    clone.world.run(drive.create_snapshot(new("a", 50))).unwrap();
    let a = clone.plain.clone();
    // Zeroes over blocks of the origin are a change, though nothing was mapped.
    clone.world.run(drive.write_zeroes(SIZE / 2, 8 * BLOCK, Allocation::Release)).unwrap();
    clone.plain[SIZE as usize / 2..][..8 * BLOCK_BYTES].fill(0);
    (0..10).for_each(|_| clone.change(&drive));
    let view = clone.world.run(drive.view("a", OpenOptions::default())).unwrap();
    assert!(clone.world.read(&view, 0, a.len()).unwrap() == a, "the snapshot");
    let mut expected = a.clone();
    let visit = |changed: Changed| {
        let range = changed.offset as usize..(changed.offset + changed.bytes) as usize;
        expected[range.clone()].copy_from_slice(&clone.plain[range]);
        true
    };
    clone.world.run(drive.changes_since(&view, visit)).unwrap();
    assert!(expected == clone.plain, "the changes");
    drop(view);
    clone.world.run(drive.roll_back("a", false)).unwrap();
    clone.plain = a;
    clone.compare(&drive);
    clone.world.close(drive);
    let name = "a";
    let opening = Drive::open_snapshot(
        clone.world.medium(),
        clone.world.runtime.clock(),
        name,
        OpenOptions::default(),
    );
    let view = clone.world.run(opening).unwrap();
    view.set_origin(clone.origin().unwrap()).unwrap();
    clone.compare(&view);
    clone.world.close(view);
    disk.world.close(template);
}

/// A clone of a clone reads through both.
#[test]
fn clones_have_clones() {
    let mut disk = Disk::new(17);
    let template = disk.world.open();
    disk.write_around(&template);
    let mut first = Clone::of(&mut disk, &template, "golden", 1);
    let drive = first.open();
    (0..20).for_each(|_| first.change(&drive));
    let taken = first.world.run(drive.create_snapshot(new("middle", 60))).unwrap();
    first.world.run(drive.register_clone("middle", registered(2))).unwrap();
    let wanted = Origin {
        drive: drive.uuid(),
        snapshot: taken.guid,
        watermark: crate::base::SeqNo(taken.sequence),
        blocks: CLONE_SIZE / BLOCK,
        path: "/vm/1.pumice".into(),
    };
    let (uuid, origin) = (registered(2).drive, Some(wanted.clone()));
    let world = World::new(Spec { uuid, origin, ..small(CLONE_SIZE, 24) });
    let memory_of_origin = first.world.memory.clone();
    let (plain, random) = (first.plain.clone(), random(3));
    let mut second = Clone { world, plain, random, wanted, memory_of_origin };
    (0..20).for_each(|_| first.change(&drive));
    let top = second.world.open();
    let middle = second.origin().unwrap();
    middle.set_origin(first.origin().unwrap()).unwrap();
    top.set_origin(middle).unwrap();
    (0..20).for_each(|_| second.change(&top));
    second.compare(&top);
    second.world.run(top.flatten(|_| true)).unwrap();
    second.compare(&top);
    second.world.close(top);
    first.world.close(drive);
    disk.world.close(template);
}

#[test]
fn a_flattened_clone_needs_no_origin() {
    let mut disk = Disk::new(18);
    let template = disk.world.open();
    disk.write_some(&template, 60);
    let mut clone = Clone::of(&mut disk, &template, "golden", 1);
    let mut drive = clone.open();
    (0..10).for_each(|_| clone.change(&drive));
    // Flattening is stopped, resumed after a crash, and continued while the host writes.
    for step in 0.. {
        let mut calls = 0;
        let stopped = drive.flatten(|_| {
            calls += 1;
            calls < 4
        });
        let flattened = clone.world.run(stopped).unwrap();
        clone.compare(&drive);
        if flattened.is_complete {
            break;
        }
        clone.change(&drive);
        if step % 4 == 1 {
            clone.world.run(drive.flush()).unwrap();
            clone.world.kill(drive);
            drive = clone.open();
        }
        if step == 6 {
            clone.world.run(drive.flatten(|_| true)).unwrap();
            break;
        }
    }
    clone.compare(&drive);
    assert_eq!(drive.origin(), None);
    // Any program may open the drive, and holes are holes again.
    let refused = clone.world.run(drive.flatten(|_| true)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    clone.world.kill(drive);
    let drive = clone.world.open();
    clone.compare(&drive);
    clone.trim_all(&drive);
    assert_eq!(drive.info().mapped_bytes, 0);
    clone.compare(&drive);
    clone.world.close(drive);
    disk.world.run(template.forget_clone(registered(1).drive)).unwrap();
    disk.world.run(template.delete_snapshot("golden")).unwrap();
    disk.world.close(template);
    assert_eq!(clone.world.check().problems, []);
}

/// Data or zeroes that the host writes while a block is copied take precedence.
#[test]
fn a_clone_is_written_while_it_is_flattened() {
    let mut disk = Disk::new(19);
    let template = disk.world.open();
    disk.write_around(&template);
    let mut clone = Clone::of(&mut disk, &template, "golden", 1);
    clone.world.plan.latency_ns = 1..=2_000_000;
    let drive = clone.open();
    // The host writes where blocks are being copied.
    let copying = Cell::new(0);
    let flattening = drive.flatten(|so_far| {
        copying.set(so_far.done_bytes);
        true
    });
    let mut plain = std::mem::take(&mut clone.plain);
    let host = async {
        for _ in 0..400 {
            let len = clone.random.random_range(1..8 << 10);
            let offset = copying.get() + clone.random.random_range(0..1 << 20);
            let data = payload::noise(&mut clone.random, len);
            let part = &mut plain[offset as usize..][..len];
            if clone.random.random_bool(0.3) {
                part.fill(0);
                drive.write_zeroes(offset, len as u64, Allocation::Release).await.unwrap();
            } else {
                part.copy_from_slice(&data);
                drive.write(offset, &data).await.unwrap();
            }
            clone.world.runtime.clone().sleep_ns(20_000).await;
        }
    };
    let (flattened, ()) = clone.world.run(futures_util::future::join(flattening, host));
    assert!(flattened.unwrap().is_complete);
    clone.plain = plain;
    clone.compare(&drive);
    clone.world.close(drive);
    let drive = clone.world.open();
    clone.compare(&drive);
    clone.world.close(drive);
    disk.world.close(template);
}
