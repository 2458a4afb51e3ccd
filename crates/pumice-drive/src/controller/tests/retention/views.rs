//! Goal: a snapshot of an open drive reads as when it was taken, whatever happens to the drive, and
//! the blocks written since are known exactly. Method: drives that are overwritten, trimmed,
//! emptied and enlarged while a view is open; the bytes are compared with the disk at the time of
//! the snapshot, and the changes with those of a plain array.

use rand::RngExt;

use super::snapshots::{Disk, SIZE, changed, names};
use super::*;

impl Disk {
    fn view(&self, drive: &Rc<Drive>, name: &str) -> Rc<Drive> {
        self.world.run(drive.view(name, OpenOptions::default())).unwrap()
    }

    /// Compares a view, and its description of its blocks, with a disk.
    fn compare_view(&self, view: &Drive, plain: &[u8]) {
        assert_eq!(view.size_bytes() as usize, plain.len());
        assert!(self.world.read(view, 0, plain.len()).unwrap() == plain, "the snapshot");
        let mut at = 0;
        let visit = |extent: Extent| {
            let part = &plain[at..][..extent.bytes as usize];
            at += part.len();
            assert!(extent.content == Content::Data || part.iter().all(|&byte| byte == 0));
            true
        };
        self.world.run(view.extents(0, plain.len() as u64, visit)).unwrap();
    }
}

#[test]
fn a_view_reads_old_data_while_the_drive_changes() {
    let mut disk = Disk::new(31);
    let larger = small(SIZE, 32).geometry().unwrap().medium_bytes();
    disk.world.memory = MemMedium::new(larger);
    disk.world.run(create(&disk.world.memory, &disk.world.spec)).unwrap();
    let drive = disk.world.open();
    disk.write_around(&drive);
    disk.write_some(&drive, 40);
    disk.take(&drive, "a");
    let a = disk.plain.clone();
    let view = disk.view(&drive, "a");
    assert!(view.is_read_only());
    disk.compare_view(&view, &a);
    disk.write_some(&drive, 40);
    disk.compare_view(&view, &a);
    disk.trim_all(&drive);
    (0..6).for_each(|_| disk.write_around(&drive));
    assert!(drive.info().operations.gc_victims > 0, "nothing was collected");
    disk.compare_view(&view, &a);
    let size_bytes = Some(2 * SIZE);
    let capacity_bytes = Some(drive.info().capacity_bytes + 8 * u64::from(SEGMENT_BYTES));
    disk.world.run(drive.resize(Resize { size_bytes, capacity_bytes })).unwrap();
    disk.plain.resize(2 * SIZE as usize, 0);
    disk.compare_view(&view, &a);
    // A view that was opened much later.
    let late = disk.view(&drive, "a");
    disk.compare_view(&late, &a);
    disk.take(&drive, "b");
    disk.write_around(&drive);
    disk.compare_view(&view, &a);
    drop((view, late));
    disk.compare(&drive);
    disk.world.close(drive);
    assert_eq!(disk.world.check().problems, []);
}

/// Reads and writes alternate on a slow medium, so that each read overlaps appends.
#[test]
fn views_are_read_during_writes() {
    let mut disk = Disk::new(32);
    let drive = disk.world.open();
    disk.write_around(&drive);
    disk.take(&drive, "a");
    let a = disk.plain.clone();
    let latency_ns = 10_000..=500_000;
    drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
    let view = disk.view(&drive, "a");
    let mut data = vec![0; 100 << 10];
    let write = async {
        for step in 0..200_u64 {
            data.fill(step as u8);
            data[..8].copy_from_slice(&step.to_le_bytes());
            let at = step * 37 * BLOCK % (SIZE - (1 << 20));
            with(step % 7 == 0, &drive, drive.write(at, &data)).await.unwrap();
        }
    };
    let read = async {
        let mut out = vec![0; 64 << 10];
        for step in 0..400_usize {
            let at = step * 53 * BLOCK_BYTES % (a.len() - out.len());
            view.read(at as u64, &mut out).await.unwrap();
            assert!(out == a[at..][..out.len()], "at {at}");
        }
    };
    let both = async { futures_util::future::join(write, read).await };
    disk.world.run(both);
    drop(view);
    disk.world.close(drive);
}

#[test]
fn a_snapshot_that_is_read_is_not_deleted() {
    let mut disk = Disk::new(33);
    let drive = disk.world.open();
    disk.write_some(&drive, 20);
    disk.take(&drive, "a");
    let view = disk.view(&drive, "a");
    let other = disk.view(&drive, "a");
    let refused = |count: u32| {
        let error = disk.world.run(drive.delete_snapshot("a")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{count} views");
        assert!(error.to_string().contains("snapshot a is being read"), "{error}");
        assert_eq!(names(&drive), ["a"]);
    };
    refused(2);
    drop(other);
    refused(1);
    drop(view);
    disk.world.run(drive.delete_snapshot("a")).unwrap();
    assert!(!drive.core().space().has_retained());
    let missing = disk.world.run(drive.view("a", OpenOptions::default()));
    assert_eq!(kind(missing), Some(ErrorKind::NotFound));
    disk.world.close(drive);
}

/// A view and a deletion begin at the same moment. One of the two is refused.
#[test]
fn views_and_deletions_exclude_each_other() {
    let (mut views, mut deletions) = (0, 0);
    for step in 0..60_u64 {
        let mut disk = Disk::new(34);
        let drive = disk.world.open();
        disk.write_some(&drive, 20);
        disk.take(&drive, "a");
        let a = disk.plain.clone();
        disk.write_some(&drive, 5);
        let latency_ns = 50_000..=50_000;
        drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
        let open = async {
            disk.world.runtime.clone().sleep_ns(step * 20_000).await;
            drive.view("a", OpenOptions::default()).await
        };
        let delete = async {
            disk.world.runtime.clone().sleep_ns(100_000).await;
            drive.delete_snapshot("a").await
        };
        let both = async { futures_util::future::join(delete, open).await };
        let (deleted, view) = disk.world.run(both);
        drive.layers().set_plan(FaultPlan::default());
        match (&deleted, &view) {
            (Ok(_), Err(error)) => {
                assert!(matches!(error.kind(), ErrorKind::Busy | ErrorKind::NotFound), "{error}");
                deletions += 1;
            }
            (Err(error), Ok(view)) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                disk.compare_view(view, &a);
                views += 1;
            }
            (Ok(_), Ok(_)) => panic!("step {step}: a view of a deleted snapshot"),
            (Err(error), Err(other)) => panic!("step {step}: {error}, {other}"),
        }
        drop(view);
        disk.world.close(drive);
    }
    assert!(views > 0 && deletions > 0, "{views} views, {deletions} deletions");
}

/// By then, the superblocks refer to other checkpoints, and are being written.
#[test]
fn views_are_opened_while_checkpoints_are_written() {
    let mut disk = Disk::new(35);
    let drive = disk.world.open();
    disk.write_some(&drive, 20);
    disk.take(&drive, "a");
    let a = disk.plain.clone();
    for step in 0..20_u64 {
        disk.write_some(&drive, 3);
        let latency_ns = 50_000..=50_000;
        drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
        let open = async {
            disk.world.runtime.clone().sleep_ns(step * 25_000).await;
            drive.view("a", OpenOptions::default()).await.unwrap()
        };
        let both = async { futures_util::future::join(drive.checkpoint(), open).await };
        let (written, view) = disk.world.run(both);
        written.unwrap();
        drive.layers().set_plan(FaultPlan::default());
        disk.compare_view(&view, &a);
    }
    disk.world.close(drive);
}

/// Checks that the reported blocks differ, except for a few that were rewritten unchanged.
fn assert_exact(reported: &[bool], before: &[u8], now: &[u8]) {
    let block = |plain: &[u8], at: usize| plain.chunks(BLOCK_BYTES).nth(at).map(<[u8]>::to_vec);
    let (mut extra, mut differing) = (0, 0);
    for (at, &is_reported) in reported.iter().enumerate() {
        let differs = block(before, at) != block(now, at);
        assert!(is_reported || !differs, "block {at} is missed");
        differing += u32::from(differs);
        extra += u32::from(is_reported && !differs);
    }
    assert!(extra <= differing / 50, "{extra} blocks beside {differing}");
}

/// Guards against leaves that count as unchanged because a checkpoint stored them at the location
/// recorded in the snapshot, while the change is in memory only.
#[test]
fn changes_of_an_open_disk_are_exact() {
    let mut disk = Disk::new(36);
    let drive = disk.world.open_without_collector();
    disk.write_around(&drive);
    disk.take(&drive, "a");
    let a = disk.plain.clone();
    // No leaf is in memory, so the blocks that a trim drops are not subtracted immediately.
    disk.world.close(drive);
    let drive = disk.world.open_without_collector();
    let view = disk.view(&drive, "a");
    assert!(!changed(&disk.world, &view, &drive).contains(&true));
    // Trims an entire leaf that is unchanged since the snapshot.
    disk.world.run(drive.trim(SIZE / 2, SIZE / 2)).unwrap();
    disk.plain[SIZE as usize / 2..].fill(0);
    assert_exact(&changed(&disk.world, &view, &drive), &a, &disk.plain);
    for _ in 0..8 {
        disk.write_some(&drive, 1);
        assert_exact(&changed(&disk.world, &view, &drive), &a, &disk.plain);
    }
    disk.world.run(drive.checkpoint()).unwrap();
    assert_exact(&changed(&disk.world, &view, &drive), &a, &disk.plain);
    disk.world.run(drive.write_zeroes(0, SIZE / 2, Allocation::Keep)).unwrap();
    disk.plain.fill(0);
    assert_exact(&changed(&disk.world, &view, &drive), &a, &disk.plain);
    let b = disk.take(&drive, "b");
    disk.write_some(&drive, 3);
    let later = disk.view(&drive, "b");
    assert_eq!(b.name, "b");
    let b = vec![0; SIZE as usize];
    assert_exact(&changed(&disk.world, &view, &later), &a, &b);
    assert_exact(&changed(&disk.world, &later, &drive), &b, &disk.plain);
    let backwards = disk.world.run(view.changes_since(&later, |_| true)).unwrap_err();
    assert_eq!(backwards.kind(), ErrorKind::InvalidInput);
    // After a kill, the changes are in the log only.
    disk.world.run(drive.flush()).unwrap();
    drop((view, later));
    disk.world.kill(drive);
    let now = disk.world.try_open(OpenOptions { read_only: true, ..OpenOptions::default() });
    let now = now.unwrap();
    let view = disk.view(&now, "a");
    assert_exact(&changed(&disk.world, &view, &now), &a, &disk.plain);
}

/// A comparison of any part of the disk has the same result as a comparison of the whole.
#[test]
fn a_part_is_compared_as_the_whole_is() {
    let mut disk = Disk::new(37);
    let drive = disk.world.open();
    disk.write_some(&drive, 20);
    disk.take(&drive, "a");
    let view = disk.view(&drive, "a");
    disk.write_some(&drive, 6);
    disk.world.run(drive.trim(3 << 20, 2 << 20)).unwrap();
    let whole = changed(&disk.world, &view, &drive);
    for _ in 0..200 {
        let offset = disk.random.random_range(0..SIZE);
        let len = disk.random.random_range(0..=(SIZE - offset).min(5 << 20));
        let mut at = offset;
        let visit = |Compared { bytes, changed }| {
            assert!(bytes > 0);
            for block in at / BLOCK..(at + bytes).div_ceil(BLOCK) {
                assert_eq!(changed.is_some(), whole[block as usize], "block {block}");
            }
            at += bytes;
            true
        };
        disk.world.run(drive.compare(&view, offset, len, visit)).unwrap();
        assert_eq!(at, offset + len);
    }
    let beyond = disk.world.run(drive.compare(&view, SIZE, 1, |_| true));
    assert_eq!(kind(beyond), Some(ErrorKind::InvalidInput));
    drop(view);
    disk.world.close(drive);
}

/// Each leaf in turn is the only one that has changed.
#[test]
fn changes_of_a_leaf_beside_others_are_found() {
    let mut disk = Disk::new(38);
    let drive = disk.world.open();
    disk.write_around(&drive);
    for leaf in 0..SIZE / (4 << 20) {
        let name = leaf.to_string();
        disk.take(&drive, &name);
        let view = disk.view(&drive, &name);
        let before = disk.plain.clone();
        let at = (leaf * (4 << 20)) as usize;
        disk.world.write(&drive, at as u64, &[leaf as u8 + 1; BLOCK_BYTES]).unwrap();
        disk.plain[at..][..BLOCK_BYTES].fill(leaf as u8 + 1);
        disk.world.run(drive.checkpoint()).unwrap();
        let reported = changed(&disk.world, &view, &drive);
        assert_exact(&reported, &before, &disk.plain);
        assert_eq!(reported.iter().filter(|&&is_changed| is_changed).count(), 1);
    }
    disk.world.close(drive);
}
