//! Goal: the received copy of a clone has the clone's content, without its origin; later transfers
//! send only the changes. Method: templates, clones and targets with several codecs and forms of
//! frames; the disks are compared byte by byte, and the sent bytes with the stored ones.

use rand::RngExt;

use super::clones::{CLONE_SIZE, Clone, registered};
use super::snapshots::{Disk, SIZE, new};
use super::transfer::{batches, compare, partial, receive, receive_all};
use super::*;
use crate::base::seed::random;
use crate::format::Origin;

/// A snapshot of a clone, its base, if any, and the byte at which the transfer starts.
type Wanted<'a> = (&'a str, Option<&'a str>, u64);

async fn send(
    info: impl Fn(&str) -> SnapshotInfo,
    disk: Result<Rc<Drive>>,
    base: Option<Result<Rc<Drive>>>,
    (name, since, start): Wanted<'_>,
) -> Result<(Vec<u8>, Sent)> {
    let (disk, base) = (disk?, base.transpose()?);
    let (info, since) = (info(name), since.map(info));
    let base = base.as_ref().zip(since.as_ref()).map(|(disk, info)| View { disk, info });
    let mut send = SendStream::new(View { disk: &disk, info: &info }, base, start)?;
    let mut bytes = Vec::new();
    while let Some(more) = send.next().await? {
        bytes.extend_from_slice(&more);
        send.reuse(more);
    }
    Ok((bytes, send.sent()))
}

impl Clone {
    /// Sends a snapshot of a drive that is open.
    fn send_open(&self, drive: &Rc<Drive>, wanted: Wanted<'_>) -> Result<(Vec<u8>, Sent)> {
        let infos = drive.snapshots();
        let info = |name: &str| infos.iter().find(|info| info.name == name).unwrap().clone();
        let open = |name| self.world.run(drive.view(name, OpenOptions::default()));
        self.world.run(send(info, open(wanted.0), wanted.1.map(open), wanted))
    }

    /// Sends a snapshot of a drive that is closed.
    fn send_closed(&self, wanted: Wanted<'_>) -> Result<(Vec<u8>, Sent)> {
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let infos = self.world.try_open(options)?.snapshots();
        let info = |name: &str| infos.iter().find(|info| info.name == name).unwrap().clone();
        let open = |name| {
            let (medium, runtime) = (self.world.medium(), self.world.runtime.clone());
            let view =
                self.world.run(Drive::open_snapshot(medium, runtime.clock(), name, options))?;
            view.set_origin(self.origin()?)?;
            Ok(view)
        };
        let sent = self.world.run(send(info, open(wanted.0), wanted.1.map(open), wanted));
        self.world.runtime.drop_tasks();
        sent
    }

    fn take(&self, drive: &Drive, name: &str, number: u32) -> Vec<u8> {
        self.world.run(drive.create_snapshot(new(name, number))).unwrap();
        self.plain.clone()
    }
}

fn target(spec: &Spec) -> World {
    let uuid = uuid::Uuid::from_u128(2);
    World::new(Spec { uuid, ..spec.clone() })
}

/// With several codecs and forms, so that frames of the origin differ from the clone's.
#[test]
fn a_received_clone_has_the_data_of_the_sent_one() {
    let lz4 = || small(CLONE_SIZE, 24);
    let blocks = || Spec { frame_form: FrameForm::Chunks, ..lz4() };
    let zstd = || Spec { codec: Codec::Zstd { level: 1 }, ..lz4() };
    let long = || Spec { frame_blocks: 64, ..lz4() };
    let triples: [[Spec; 3]; 6] = [
        [lz4(), lz4(), lz4()],
        [blocks(), lz4(), lz4()],
        [lz4(), blocks(), blocks()],
        [zstd(), lz4(), lz4()],
        [long(), lz4(), zstd()],
        [blocks(), zstd(), blocks()],
    ];
    for (seed, [of_origin, of_clone, of_target]) in (0..).zip(triples) {
        let mut disk = Disk::new(seed);
        disk.world = World { seed, ..World::new(Spec { size_bytes: SIZE, ..of_origin }) };
        let template = disk.world.open();
        disk.write_some(&template, 60);
        let text = payload::text(&mut disk.random, 1 << 20);
        disk.world.write(&template, 4 << 20, &text).unwrap();
        disk.plain[4 << 20..5 << 20].copy_from_slice(&text);
        // Some frames were moved before the clone existed, and the tables have their locations.
        disk.take(&template, "older");
        (0..3).for_each(|_| disk.write_around(&template));
        disk.write_some(&template, 40);
        let mut clone = Clone::with(&mut disk, &template, ("golden", 1), of_clone);
        let drive = clone.open();
        (0..10).for_each(|_| clone.change(&drive));
        let a = clone.take(&drive, "a", 50);
        (0..10).for_each(|_| clone.change(&drive));
        disk.write_around(&template);
        let b = clone.take(&drive, "b", 51);
        clone.trim_all(&drive);
        let c = clone.take(&drive, "c", 52);
        (0..3).for_each(|_| clone.change(&drive));
        let served = [target(&of_target), target(&of_target)];
        for (name, since, disk) in [("a", None, &a), ("b", Some("a"), &b), ("c", Some("b"), &c)] {
            let (transfer, _) = clone.send_open(&drive, (name, since, 0)).unwrap();
            receive_all(&served[0], &transfer).unwrap();
            compare(&served[0], name, disk);
        }
        clone.world.close(drive);
        disk.world.close(template);
        for (name, since, disk) in [("b", None, &b), ("c", Some("b"), &c)] {
            let (transfer, _) = clone.send_closed((name, since, 0)).unwrap();
            receive_all(&served[1], &transfer).unwrap();
            compare(&served[1], name, disk);
        }
    }
}

/// Frames of the origin are sent in their stored form, holes and trimmed blocks need no data, and a
/// transfer with a base sends none of these.
#[test]
fn no_more_is_sent_of_a_clone_than_it_needs() {
    let mut disk = Disk::new(20);
    let template = disk.world.open();
    let text = payload::text(&mut disk.random, 4 << 20);
    disk.world.write(&template, 2 << 20, &text).unwrap();
    disk.plain[2 << 20..6 << 20].copy_from_slice(&text);
    let mut clone = Clone::of(&mut disk, &template, "golden", 1);
    let stored = template.snapshots()[0].live_bytes;
    let drive = clone.open();
    clone.take(&drive, "a", 50);
    let block = vec![7; BLOCK_BYTES];
    let zeroes = vec![0; BLOCK_BYTES];
    // Zeroes over data, zeroes over a hole, and data.
    for (at, data) in [(2 << 20, &zeroes), (7 << 20, &zeroes), (5 << 20, &block)] {
        clone.world.write(&drive, at, data).unwrap();
        clone.plain[at as usize..][..BLOCK_BYTES].copy_from_slice(data);
    }
    let b = clone.take(&drive, "b", 51);
    let (whole, sent) = clone.send_open(&drive, ("a", None, 0)).unwrap();
    assert_eq!(sent.changed_bytes, 4 << 20);
    assert_eq!(sent.record_bytes, stored, "frames as the origin stores them");
    let (more, sent) = clone.send_open(&drive, ("b", Some("a"), 0)).unwrap();
    assert_eq!(sent.changed_bytes, 2 * BLOCK, "zeroes where the origin has none");
    assert!(sent.record_bytes < 2 * BLOCK, "{sent:?}");
    let received = target(&small(CLONE_SIZE, 24));
    let info = receive_all(&received, &whole).unwrap();
    assert_eq!(info.live_bytes, stored, "and as the target does");
    receive_all(&received, &more).unwrap();
    compare(&received, "b", &b);
    let info = drive.snapshots()[0].clone();
    clone.world.close(drive);
    // Without the origin, nothing is sent that could be mistaken for a transfer.
    let view = Drive::open_snapshot(
        clone.world.medium(),
        clone.world.runtime.clock(),
        "a",
        OpenOptions::default(),
    );
    let view = clone.world.run(view).unwrap();
    let mut send = SendStream::new(View { disk: &view, info: &info }, None, 0).unwrap();
    let error = clone.world.run(async {
        loop {
            match send.next().await {
                Ok(part) => assert!(part.is_some(), "the transfer has an end"),
                Err(error) => break error,
            }
        }
    });
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    drop(send);
    clone.world.close(view);
    disk.world.close(template);
}

#[test]
fn a_clone_is_sent_on_where_that_was_interrupted() {
    let mut disk = Disk::new(21);
    let template = disk.world.open();
    disk.write_around(&template);
    let mut clone = Clone::of(&mut disk, &template, "golden", 1);
    let drive = clone.open();
    (0..20).for_each(|_| clone.change(&drive));
    let a = clone.take(&drive, "a", 50);
    (0..20).for_each(|_| clone.change(&drive));
    let b = clone.take(&drive, "b", 51);
    let mut random = random(22);
    let mut interrupted = 0;
    for _ in 0..6 {
        let target = target(&small(CLONE_SIZE, 24));
        for (name, since, disk) in [("a", None, &a), ("b", Some("a"), &b)] {
            let mut start = 0;
            loop {
                let (transfer, _) = clone.send_open(&drive, (name, since, start)).unwrap();
                let end = random.random_range(0..=batches(&transfer).len());
                if receive(&target, &transfer, end, random.random_bool(0.5)).is_ok() {
                    break;
                }
                interrupted += 1;
                let options = OpenOptions { read_only: true, ..partial() };
                let part = target.try_open(options).unwrap();
                start = part.partial_receive().map_or(0, |part| part.offset);
                target.kill(part);
            }
            compare(&target, name, disk);
        }
    }
    assert!(interrupted > 6, "{interrupted}");
    clone.world.close(drive);
    disk.world.close(template);
}

/// Frames are read from the clone, its origin and the origin's origin.
#[test]
fn a_clone_of_a_clone_is_sent() {
    let mut disk = Disk::new(23);
    let template = disk.world.open();
    disk.write_around(&template);
    disk.world.run(template.trim(3 << 20, 1 << 20)).unwrap();
    disk.plain[3 << 20..4 << 20].fill(0);
    let mut first = Clone::of(&mut disk, &template, "golden", 1);
    let middle = first.open();
    (0..12).for_each(|_| first.change(&middle));
    let taken = first.world.run(middle.create_snapshot(new("middle", 60))).unwrap();
    first.world.run(middle.register_clone("middle", registered(2))).unwrap();
    let wanted = Origin {
        drive: middle.uuid(),
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
    let top = second.world.open();
    let below = second.origin().unwrap();
    below.set_origin(first.origin().unwrap()).unwrap();
    top.set_origin(below).unwrap();
    (0..12).for_each(|_| second.change(&top));
    let a = second.take(&top, "a", 50);
    let (transfer, _) = second.send_open(&top, ("a", None, 0)).unwrap();
    let received = target(&small(CLONE_SIZE, 24));
    receive_all(&received, &transfer).unwrap();
    compare(&received, "a", &a);
    second.world.close(top);
    first.world.close(middle);
    disk.world.close(template);
}
