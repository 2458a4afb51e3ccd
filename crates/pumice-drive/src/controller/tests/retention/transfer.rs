//! Goal: the received data equals the sent data, whatever the target's codec and frames, wherever
//! the transfer was interrupted; a transfer that is incomplete, or for another drive, makes no
//! snapshot. A part never holds less than it claims. Method: a source that is overwritten, trimmed
//! and collected between its snapshots, and targets of several kinds; disks and snapshots are
//! compared byte by byte.

use rand::RngExt;

use super::*;
use crate::base::seed::{Random, random};
use crate::format::{
    BATCH_HEADER_BYTES, BatchHeader, RECORD_HEADER_BYTES, Record, TRANSFER_HEAD_BYTES,
};

const SIZE: u64 = 12 << 20;

/// Size of a disk for which small drives have no space.
const NOISE: u64 = 32 << 20;

/// A drive with snapshots, and their disks.
struct Source {
    world: World,
    plain: Vec<u8>,
    disks: Vec<(String, Vec<u8>)>,
    random: Random,
}

impl Source {
    /// Makes a drive with snapshots "0", "1" and so on.
    fn new(seed: u64, spec: Spec, snapshots: u32) -> Self {
        let world = World { seed, ..World::new(spec) };
        let plain = vec![0; SIZE as usize];
        let mut source = Self { world, plain, disks: Vec::new(), random: random(seed) };
        for number in 0..snapshots {
            source.go_on(&number.to_string());
        }
        source
    }

    /// Makes a drive with a snapshot "0" of an empty disk, and "1" of a disk full of noise.
    fn of_noise(seed: u64) -> Self {
        let mut source = Self::new(seed, small(NOISE, 24), 0);
        let drive = source.world.open();
        source.world.run(drive.create_snapshot(snapshots::new("0", 0xa0))).unwrap();
        let noise = payload::noise(&mut source.random, NOISE as usize);
        source.world.write(&drive, 0, &noise).unwrap();
        source.world.run(drive.create_snapshot(snapshots::new("1", 0xa1))).unwrap();
        source.world.close(drive);
        source.disks.push(("1".into(), noise));
        source
    }

    /// Changes the disk and takes a snapshot.
    fn go_on(&mut self, name: &str) {
        let drive = self.world.open();
        for _ in 0..30 {
            let len = self.random.random_range(1..200 << 10);
            let offset = self.random.random_range(0..=SIZE - len as u64);
            let data = payload::any(&mut self.random, len);
            self.world.write(&drive, offset, &data).unwrap();
            self.plain[offset as usize..][..len].copy_from_slice(&data);
        }
        for byte in [0, 7] {
            let at = self.random.random_range(0..SIZE / BLOCK - 300) as usize * BLOCK_BYTES;
            let fill = vec![byte; 256 * BLOCK_BYTES];
            self.world.write(&drive, at as u64, &fill).unwrap();
            self.plain[at..][..fill.len()].copy_from_slice(&fill);
        }
        let at = self.random.random_range(0..SIZE / BLOCK - 300) * BLOCK;
        self.world.run(drive.trim(at, 200 * BLOCK)).unwrap();
        self.plain[at as usize..][..200 * BLOCK_BYTES].fill(0);
        // Long enough for several batches.
        let noise = payload::noise(&mut self.random, 3 << 20);
        let at = self.random.random_range(0..=SIZE - noise.len() as u64) / BLOCK * BLOCK;
        self.world.write(&drive, at, &noise).unwrap();
        self.plain[at as usize..][..noise.len()].copy_from_slice(&noise);
        // Garbage collection moves frames.
        self.world.run(self.world.runtime.clone().sleep_ns(20_000_000_000));
        let guid = uuid::Uuid::from_u128(0xa0 + self.disks.len() as u128);
        let new =
            NewSnapshot { name: name.into(), guid, created_seconds: 1_790_000_000, yields: false };
        self.world.run(drive.create_snapshot(new)).unwrap();
        self.disks.push((name.into(), self.plain.clone()));
        self.world.close(drive);
    }

    fn disk(&self, name: &str) -> &[u8] {
        &self.disks.iter().find(|disk| disk.0 == name).unwrap().1
    }

    fn send(&self, name: &str, since: Option<&str>, start: u64) -> Vec<u8> {
        self.try_send(name, since, start).unwrap().0
    }

    fn try_send(&self, name: &str, since: Option<&str>, start: u64) -> Result<(Vec<u8>, Sent)> {
        let World { runtime, .. } = &self.world;
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let drive = self.world.try_open(options)?;
        let infos = drive.snapshots();
        let info = |name: &str| infos.iter().find(|info| info.name == name).unwrap();
        let open = |name| Drive::open_snapshot(self.world.medium(), runtime.clock(), name, options);
        let disk = self.world.run(open(name))?;
        let base = since.map(|name| self.world.run(open(name)).unwrap());
        let base =
            base.as_ref().zip(since).map(|(base, since)| View { disk: base, info: info(since) });
        let result = self.world.run(async {
            let mut send = SendStream::new(View { disk: &disk, info: info(name) }, base, start)?;
            let mut bytes = Vec::new();
            while let Some(more) = send.next().await? {
                bytes.extend_from_slice(&more);
                send.reuse(more);
            }
            Ok((bytes, send.sent()))
        });
        runtime.drop_tasks();
        result
    }
}

/// Returns the batches after the head, all complete except perhaps the last.
pub(crate) fn batches(transfer: &[u8]) -> Vec<&[u8]> {
    let mut rest = transfer.get(TRANSFER_HEAD_BYTES..).unwrap_or(&[]);
    let mut batches = Vec::new();
    while let Some(header) = rest.first_chunk() {
        let Ok(len) = transfer_batch_bytes(header) else { break };
        let (batch, later) = rest.split_at(len.min(rest.len()));
        batches.push(batch);
        rest = later;
    }
    batches
}

pub(crate) fn partial() -> OpenOptions {
    OpenOptions { incomplete: true, ..OpenOptions::default() }
}

/// Applies a transfer, up to `end` batches of it, and takes the snapshot if the transfer ends.
async fn apply(drive: &Drive, transfer: &[u8], end: usize, notes: bool) -> Result<SnapshotInfo> {
    let head = transfer.first_chunk().ok_or_else(|| Error::new(ErrorKind::Corrupt, "no head"))?;
    let reader = TransferReader::new(head)?;
    let name = reader.head().name.clone();
    drive.check_transfer(reader.head(), &name).await?;
    let mut receive = Receive::new(drive, reader, name);
    for batch in batches(transfer).into_iter().take(end) {
        if receive.apply(batch).await? {
            return receive.end().await;
        }
        if notes {
            receive.note().await?;
        }
    }
    assert_eq!(kind(receive.end().await), Some(ErrorKind::InvalidInput), "it has not ended");
    Err(Error::new(ErrorKind::Corrupt, "cut off"))
}

/// Applies a transfer to a closed drive, and then ends the process.
pub(crate) fn receive(
    target: &World,
    transfer: &[u8],
    end: usize,
    notes: bool,
) -> Result<SnapshotInfo> {
    let drive = target.try_open(partial())?;
    let result = target.run(apply(&drive, transfer, end, notes));
    target.kill(drive);
    result
}

pub(crate) fn receive_all(target: &World, transfer: &[u8]) -> Result<SnapshotInfo> {
    receive(target, transfer, usize::MAX, false)
}

/// Compares the disk and a snapshot of a target.
pub(crate) fn compare(target: &World, name: &str, wanted: &[u8]) {
    let drive = target.open();
    assert!(target.read(&drive, 0, wanted.len()).unwrap() == wanted, "the disk, {name}");
    target.close(drive);
    let options = OpenOptions::default();
    let opening = Drive::open_snapshot(target.medium(), target.runtime.clock(), name, options);
    let view = target.run(opening).unwrap();
    assert!(target.read(&view, 0, wanted.len()).unwrap() == wanted, "the snapshot {name}");
    target.close(view);
    assert_eq!(target.check().problems, []);
}

fn names(target: &World) -> Vec<String> {
    let options = OpenOptions { read_only: true, ..partial() };
    let drive = target.try_open(options).unwrap();
    let names = drive.snapshots().into_iter().map(|info| info.name).collect();
    target.kill(drive);
    names
}

#[test]
fn received_data_equals_sent_data() {
    let lz4 = || small(SIZE, 24);
    let blocks = || Spec { frame_form: FrameForm::Chunks, ..lz4() };
    let zstd = || Spec { codec: Codec::Zstd { level: 1 }, ..lz4() };
    let long = || Spec { frame_blocks: 64, ..lz4() };
    let short = || Spec { frame_blocks: 1, codec: Codec::None, ..lz4() };
    let pairs: [(Spec, Spec); 6] = [
        (lz4(), lz4()),
        (lz4(), blocks()),
        (blocks(), zstd()),
        (zstd(), short()),
        (long(), lz4()),
        (blocks(), blocks()),
    ];
    for (seed, (from, to)) in (0..).zip(pairs) {
        let source = Source::new(seed, from, 4);
        let target = World::new(Spec { uuid: uuid::Uuid::from_u128(2), ..to });
        for (name, since) in [("0", None), ("1", Some("0")), ("3", Some("1"))] {
            let transfer = source.send(name, since, 0);
            let info = receive_all(&target, &transfer).unwrap();
            let number: u128 = name.parse().unwrap();
            assert_eq!((info.name.as_str(), info.guid.as_u128()), (name, 0xa0 + number));
            assert_eq!(info.created_seconds, 1_790_000_000);
            compare(&target, name, source.disk(name));
        }
        assert_eq!(names(&target), ["0", "1", "3"], "pair {seed}");
        // Received data can be sent on.
        let source = Source { world: target, ..source };
        let last = World::new(lz4());
        receive_all(&last, &source.send("1", None, 0)).unwrap();
        receive_all(&last, &source.send("3", Some("1"), 0)).unwrap();
        compare(&last, "3", source.disk("3"));
    }
}

/// A frame is sent and stored in its stored form.
#[test]
fn a_transfer_takes_the_bytes_that_are_stored() {
    let mut source = Source::new(7, small(SIZE, 24), 0);
    let drive = source.world.open();
    let data = payload::text(&mut source.random, 8 << 20);
    source.world.write(&drive, 0, &data).unwrap();
    let new = |name: &str, guid| NewSnapshot {
        name: name.into(),
        guid: uuid::Uuid::from_u128(guid),
        created_seconds: 0,
        yields: false,
    };
    let a = source.world.run(drive.create_snapshot(new("a", 1))).unwrap();
    source.world.write(&drive, 1 << 20, &data[..1 << 20]).unwrap();
    source.world.run(drive.create_snapshot(new("b", 2))).unwrap();
    source.world.close(drive);
    let (_, sent) = source.try_send("a", None, 0).unwrap();
    assert_eq!(sent.changed_bytes, 8 << 20);
    assert_eq!(sent.record_bytes, a.live_bytes, "frames as they are stored");
    assert!(sent.transfer_bytes < a.live_bytes * 105 / 100, "{sent:?}");
    let (transfer, sent) = source.try_send("b", Some("a"), 0).unwrap();
    assert_eq!(sent.changed_bytes, 1 << 20);
    assert!(sent.record_bytes < a.live_bytes / 7, "{sent:?}");
    let target = World::new(small(SIZE, 24));
    let whole = source.send("a", None, 0);
    let received = receive_all(&target, &whole).unwrap();
    assert_eq!(received.live_bytes, a.live_bytes, "frames are kept as they are sent");
    receive_all(&target, &transfer).unwrap();
}

/// Scattered blocks, each in a record of its own, are sent as their stored bytes and their headers.
#[test]
fn a_transfer_of_scattered_blocks_is_not_much_longer_than_them() {
    let mut source = Source::new(31, small(SIZE, 24), 0);
    let drive = source.world.open();
    let data = payload::text(&mut source.random, SIZE as usize);
    source.world.write(&drive, 0, &data).unwrap();
    source.world.run(drive.create_snapshot(snapshots::new("a", 1))).unwrap();
    let mut blocks: Vec<u64> = (0..SIZE / BLOCK).collect();
    rand::seq::SliceRandom::shuffle(&mut blocks[..], &mut source.random);
    blocks.truncate(600);
    for at in &blocks {
        let data = payload::text(&mut source.random, BLOCK_BYTES);
        source.world.write(&drive, at * BLOCK, &data).unwrap();
    }
    source.world.run(drive.create_snapshot(snapshots::new("b", 2))).unwrap();
    let mut stored_bytes = 0;
    for at in &blocks {
        let visit = |extent: Extent| {
            stored_bytes += extent.stored_bytes;
            true
        };
        source.world.run(drive.extents(at * BLOCK, BLOCK, visit)).unwrap();
    }
    source.world.close(drive);
    let (_, sent) = source.try_send("b", Some("a"), 0).unwrap();
    assert_eq!(sent.changed_bytes, 600 * BLOCK);
    assert!(sent.transfer_bytes <= stored_bytes * 105 / 100, "{sent:?} of {stored_bytes} stored");
}

#[test]
fn a_transfer_goes_on_where_it_was_interrupted() {
    let source = Source::new(8, small(SIZE, 24), 2);
    let mut random = random(9);
    for (name, since) in [("0", None), ("1", Some("0"))] {
        for _ in 0..12 {
            let target = World::new(small(SIZE, 24));
            if let Some(since) = since {
                receive_all(&target, &source.send(since, None, 0)).unwrap();
            }
            let before = names(&target);
            let mut transfer = source.send(name, since, 0);
            let mut attempts = 0;
            loop {
                attempts += 1;
                let count = batches(&transfer).len();
                let end = random.random_range(1..=count);
                let result = receive(&target, &transfer, end, random.random_bool(0.5));
                if result.is_ok() {
                    break;
                }
                assert_eq!(names(&target), before, "no snapshot of a part");
                let kind = target.refusal().kind();
                assert_eq!(kind, ErrorKind::InvalidInput, "a part is not opened");
                let drive = target.try_open(OpenOptions { read_only: true, ..partial() }).unwrap();
                let part = drive.partial_receive().unwrap();
                assert_eq!(part.base.is_some(), since.is_some());
                target.kill(drive);
                transfer = source.send(name, since, part.offset);
            }
            assert!(attempts > 0);
            compare(&target, name, source.disk(name));
        }
    }
}

/// Returns a drive on a medium that has space for a larger capacity.
fn on_large_medium(segments: u64) -> World {
    let world = World {
        runtime: Runtime::simulated(),
        memory: MemMedium::new(small(NOISE, 24).geometry().unwrap().medium_bytes()),
        spec: small(NOISE, segments),
        plan: FaultPlan::default(),
        seed: 0,
    };
    world.run(create(&world.memory, &world.spec)).unwrap();
    world
}

fn resize(target: &World, size_bytes: Option<u64>, segments: u64) -> Result<Resized> {
    let capacity_bytes = small(SIZE, segments).capacity_bytes;
    let drive = target.try_open(partial())?;
    let resized = target.run(drive.resize(Resize { size_bytes, capacity_bytes }));
    target.close(drive);
    resized
}

/// The recorded offset covers the applied bytes, not all bytes passed in: the rest of a failed
/// batch is sent again.
#[test]
fn a_part_holds_all_before_its_offset_even_after_an_error() {
    let source = Source::of_noise(16);
    let transfer = source.send("1", None, 0);
    let mut inside = 0;
    for segments in 4..=6 {
        let target = on_large_medium(segments);
        let drive = target.try_open(partial()).unwrap();
        let reader = TransferReader::new(transfer.first_chunk().unwrap()).unwrap();
        let mut receive = Receive::new(&drive, reader, "1".into());
        let mut rest = batches(&transfer).into_iter();
        let mut before = 0;
        let error = rest.find_map(|batch| {
            before = receive.offset();
            target.run(receive.apply(batch)).err()
        });
        assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::NoSpace), "{segments}");
        inside += u32::from(receive.offset() > before);
        let refused = target.run(receive.apply(rest.next().unwrap()));
        assert_eq!(kind(refused), Some(ErrorKind::InvalidInput), "a batch after a hole");
        target.run(receive.note()).unwrap();
        let offset = drive.partial_receive().unwrap().offset;
        assert!(offset > 0, "{segments}");
        let part = target.read(&drive, 0, offset as usize).unwrap();
        assert!(part == source.disk("1")[..part.len()], "{segments}: the disk below {offset}");
        target.close(drive);
        resize(&target, None, 24).unwrap();
        receive_all(&target, &source.send("1", None, offset)).unwrap();
        compare(&target, "1", source.disk("1"));
    }
    assert!(inside > 0, "too tame a test");
}

/// The batch is right except for its sums, which are checked last.
#[test]
fn a_batch_that_is_refused_changes_nothing() {
    let source = Source::new(17, small(SIZE, 24), 1);
    let transfer = source.send("0", None, 0);
    for at in 0..3 {
        let target = World::new(small(SIZE / 2, 24));
        let drive = target.try_open(partial()).unwrap();
        let reader = TransferReader::new(transfer.first_chunk().unwrap()).unwrap();
        let mut receive = Receive::new(&drive, reader, "0".into());
        for (number, batch) in batches(&transfer).into_iter().enumerate() {
            if number == at {
                let before = (receive.offset(), receive.bytes());
                let (header, mut wrong) = (BatchHeader::decode(batch).unwrap().0, batch.to_vec());
                let host_bytes = header.host_bytes + 1;
                BatchHeader { host_bytes, ..header }.encode_into(&mut wrong);
                assert_eq!(kind(target.run(receive.apply(&wrong))), Some(ErrorKind::Corrupt));
                target.run(receive.note()).unwrap();
                assert_eq!((receive.offset(), receive.bytes()), before);
                let found = (drive.partial_receive().map(|part| part.offset), drive.size_bytes());
                let wanted = if at == 0 { (None, SIZE / 2) } else { (Some(before.0), SIZE) };
                assert_eq!(found, wanted, "batch {at}");
            }
            target.run(receive.apply(batch)).unwrap();
        }
        target.run(receive.end()).unwrap();
        target.close(drive);
        compare(&target, "0", source.disk("0"));
    }
}

#[test]
fn a_part_is_given_room_and_keeps_its_base() {
    let source = Source::new(18, small(SIZE, 24), 3);
    let target = World::new(small(SIZE, 24));
    receive_all(&target, &source.send("0", None, 0)).unwrap();
    receive_all(&target, &source.send("1", Some("0"), 0)).unwrap();
    receive(&target, &source.send("2", Some("1"), 0), 2, true).unwrap_err();
    let drive = target.try_open(partial()).unwrap();
    let part = drive.partial_receive();
    assert_eq!(kind(target.run(drive.delete_snapshots(&["0", "1"]))), Some(ErrorKind::Busy));
    assert_eq!(kind(target.run(drive.bookmark_snapshot("1"))), Some(ErrorKind::Busy));
    target.run(drive.delete_snapshot("0")).unwrap();
    target.close(drive);
    let refused = resize(&target, Some(2 * SIZE), 24);
    assert_eq!(kind(refused), Some(ErrorKind::InvalidInput), "the disk of a part");
    for segments in [16, 20] {
        resize(&target, Some(SIZE), segments).unwrap();
    }
    let drive = target.try_open(partial()).unwrap();
    assert_eq!(drive.partial_receive(), part);
    target.close(drive);
    receive_all(&target, &source.send("2", Some("1"), part.unwrap().offset)).unwrap();
    compare(&target, "2", source.disk("2"));
    assert_eq!(names(&target), ["1", "2"]);
}

/// A rollback to the base abandons the part.
#[test]
fn the_base_of_a_part_does_not_yield() {
    let source = Source::of_noise(19);
    let target = World::new(small(NOISE, 8));
    let drive = target.open();
    let mut base = payload::noise(&mut random(20), 4 << 20);
    target.write(&drive, 0, &base).unwrap();
    let new = NewSnapshot { yields: true, ..snapshots::new("0", 0xa0) };
    target.run(drive.create_snapshot(new)).unwrap();
    target.close(drive);
    base.resize(NOISE as usize, 0);
    let error = receive_all(&target, &source.send("1", Some("0"), 0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(names(&target), ["0"]);
    let drive = target.try_open(partial()).unwrap();
    target.run(drive.roll_back("0", false)).unwrap();
    target.close(drive);
    compare(&target, "0", &base);
}

#[test]
fn power_loss_leaves_a_part_or_the_snapshot() {
    let source = Source::new(10, small(SIZE, 24), 2);
    let base = World::new(small(SIZE, 24));
    receive_all(&base, &source.send("0", None, 0)).unwrap();
    let transfer = source.send("1", Some("0"), 0);
    let (mut parts, mut wholes, mut untouched) = (0, 0, 0);
    for step in 0.. {
        let target = World { seed: step, ..base.copy() };
        let drive = target.try_open(partial()).unwrap();
        let latency_ns = 1_000_000..=1_000_000;
        drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
        let receiving = apply(&drive, &transfer, usize::MAX, true);
        let ended = target.run(target.runtime.timeout(step * 900_000, receiving)).is_some();
        target.run(drive.layers().crash()).unwrap();
        target.kill(drive);
        let drive = target.try_open(OpenOptions { read_only: true, ..partial() }).unwrap();
        let (part, snapshots) = (drive.partial_receive(), drive.snapshots().len());
        target.kill(drive);
        match part {
            Some(part) => {
                assert_eq!(snapshots, 1);
                parts += 1;
                receive_all(&target, &source.send("1", Some("0"), part.offset)).unwrap();
                compare(&target, "1", source.disk("1"));
            }
            None if snapshots == 1 => {
                untouched += 1;
                compare(&target, "0", source.disk("0"));
            }
            None => {
                wholes += 1;
                compare(&target, "1", source.disk("1"));
            }
        }
        if ended {
            break;
        }
    }
    assert!(parts > 3 && wholes > 0 && untouched > 0, "{parts} {wholes} {untouched}");
}

#[test]
fn a_transfer_that_is_damaged_or_cut_off_makes_no_snapshot() {
    let source = Source::new(11, small(SIZE, 24), 2);
    let transfer = source.send("1", Some("0"), 0);
    let mut reader = TransferReader::new(transfer.first_chunk().unwrap()).unwrap();
    batches(&transfer).iter().for_each(|batch| reader.check(batch).unwrap());
    assert!(reader.has_ended());
    let is_whole = |bytes: &[u8]| {
        let Some(head) = bytes.first_chunk() else { return false };
        let Ok(mut reader) = TransferReader::new(head) else { return false };
        batches(bytes).into_iter().all(|batch| reader.check(batch).is_ok()) && reader.has_ended()
    };
    assert!(is_whole(&transfer));
    // The transfer is cut at each border of records, and within records.
    let mut at = TRANSFER_HEAD_BYTES;
    let mut places: Vec<usize> = (0..TRANSFER_HEAD_BYTES).step_by(7).collect();
    for batch in batches(&transfer) {
        let (header, _) = BatchHeader::decode(batch).unwrap();
        let mut from = BATCH_HEADER_BYTES;
        for _ in 0..header.record_count {
            let record = Record::decode(
                &batch[from..],
                crate::format::RecordAddress {
                    generation: header.seq.0,
                    segment: SegmentId(0),
                    offset: 4096 + from as u32,
                },
            )
            .unwrap();
            places.extend([at + from, at + from + RECORD_HEADER_BYTES]);
            from += record.record_bytes() as usize;
        }
        places.extend([at, at + 9, at + 127, at + from, at + batch.len() - 1]);
        at += batch.len();
    }
    assert_eq!(at, transfer.len());
    places.retain(|&at| at < transfer.len());
    let mut damaged = transfer.clone();
    for &place in places.iter().step_by(11) {
        assert!(!is_whole(&transfer[..place]), "cut off at {place}");
        damaged[place] ^= 4;
        assert!(!is_whole(&damaged), "damaged at {place}");
        damaged[place] ^= 4;
    }
    let parts = batches(&transfer);
    let head = &transfer[..TRANSFER_HEAD_BYTES];
    let mut swapped = parts.clone();
    swapped.swap(0, 1);
    let joined = |parts: &[&[u8]]| [&[head], parts].concat().concat();
    assert!(!is_whole(&joined(&swapped)), "out of order");
    assert!(!is_whole(&joined(&parts[1..])), "without the first");
    let other = source.send("1", None, 0);
    let spliced = [&parts[..1], &batches(&other)[1..]].concat();
    assert!(!is_whole(&joined(&spliced)), "of two transfers");
    let (header, mut of_others) = (BatchHeader::decode(parts[1]).unwrap().0, parts[1].to_vec());
    BatchHeader { previous_checksum: !header.previous_checksum, ..header }
        .encode_into(&mut of_others);
    let spliced = joined(&[&[parts[0], &of_others[..]], &parts[2..]].concat());
    assert!(!is_whole(&spliced), "with a batch that follows another one");
    // The same for a drive: only data that it had before is visible.
    let target = World::new(small(SIZE, 24));
    receive_all(&target, &source.send("0", None, 0)).unwrap();
    damaged[transfer.len() / 2] ^= 1;
    for bytes in [&damaged[..], &transfer[..transfer.len() - 4096], &joined(&swapped)] {
        let error = receive_all(&target, bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(names(&target), ["0"]);
    }
    receive_all(&target, &transfer).unwrap();
    compare(&target, "1", source.disk("1"));
}

#[test]
fn a_transfer_for_another_drive_is_refused() {
    let source = Source::new(12, small(SIZE, 24), 3);
    let target = World::new(small(SIZE, 24));
    let refused = |transfer: &[u8], mention: &str| {
        let drive = target.try_open(OpenOptions { read_only: true, ..partial() }).unwrap();
        let reader = TransferReader::new(transfer.first_chunk().unwrap()).unwrap();
        let fit = drive.check_transfer(reader.head(), &reader.head().name);
        let error = target.run(fit).unwrap_err();
        assert!(error.to_string().contains(mention), "{error}");
        target.kill(drive);
    };
    refused(&source.send("1", Some("0"), 0), "has no snapshots");
    refused(&source.send("0", None, BLOCK), "from the beginning");
    receive_all(&target, &source.send("0", None, 0)).unwrap();
    refused(&source.send("0", None, 0), "has this snapshot already");
    refused(&source.send("2", Some("1"), 0), "is not the newest here, which is 0");
    refused(&source.send("1", None, 0), "has data already");
    let small_disk = World::new(small(SIZE / 2, 12));
    let drive = small_disk.open();
    small_disk.write(&drive, 0, &[3; BLOCK_BYTES]).unwrap();
    let new = NewSnapshot {
        name: "0".into(),
        guid: uuid::Uuid::from_u128(9),
        created_seconds: 0,
        yields: false,
    };
    small_disk.run(drive.create_snapshot(new)).unwrap();
    small_disk.close(drive);
    let foreign = Source { world: small_disk, plain: vec![], disks: vec![], random: random(1) };
    refused(&foreign.send("0", None, 0), "another snapshot named 0");
    // A part of one is not mistaken for a part of another.
    receive(&target, &source.send("1", Some("0"), 0), 2, true).unwrap_err();
    refused(&source.send("2", Some("0"), 0), "which this transfer does not continue");
    refused(&source.send("1", Some("0"), SIZE), "which this transfer does not continue");
    receive_all(&target, &source.send("1", Some("0"), 0)).unwrap();
    compare(&target, "1", source.disk("1"));
}

#[test]
fn a_part_is_given_up_by_rolling_back() {
    let source = Source::new(14, small(SIZE, 24), 2);
    let target = World::new(small(SIZE, 24));
    receive_all(&target, &source.send("0", None, 0)).unwrap();
    let transfer = source.send("1", Some("0"), 0);
    receive(&target, &transfer, 2, true).unwrap_err();
    let drive = target.try_open(partial()).unwrap();
    target.run(drive.roll_back("0", false)).unwrap();
    assert_eq!(drive.partial_receive(), None);
    target.close(drive);
    compare(&target, "0", source.disk("0"));
    receive_all(&target, &transfer).unwrap();
    compare(&target, "1", source.disk("1"));
}

/// The target's disk grows to the size of the source's.
#[test]
fn a_larger_disk_makes_the_target_larger() {
    let source = Source::new(13, small(SIZE, 24), 1);
    let target = World::new(small(SIZE / 2, 24));
    receive_all(&target, &source.send("0", None, 0)).unwrap();
    compare(&target, "0", source.disk("0"));
    let drive = target.open();
    assert_eq!(drive.size_bytes(), SIZE);
    target.close(drive);
}

/// Returns a closed drive whose disk is noise, with a snapshot "a" of it.
fn noise() -> (World, SnapshotInfo) {
    let world = World::new(small(SIZE, 24));
    let drive = world.open();
    let noise = payload::noise(&mut random(15), SIZE as usize);
    world.write(&drive, 0, &noise).unwrap();
    let guid = uuid::Uuid::from_u128(1);
    let new = NewSnapshot { name: "a".into(), guid, created_seconds: 0, yields: false };
    let info = world.run(drive.create_snapshot(new)).unwrap();
    world.close(drive);
    (world, info)
}

/// Opens the snapshot, on a medium that can be slowed down.
fn open_noise(world: &World) -> (Rc<TestMedium>, Rc<Drive>) {
    let (medium, options) = (world.medium(), OpenOptions::default());
    let opening = Drive::open_snapshot(medium.clone(), world.runtime.clock(), "a", options);
    (medium, world.run(opening).unwrap())
}

/// The next part is read while the previous one is written.
#[test]
fn the_medium_is_read_while_the_transfer_is_written() {
    const READ_NS: u64 = 40_000_000;
    const WRITE_NS: u64 = 4_000_000;
    let (world, info) = noise();
    let (medium, disk) = open_noise(&world);
    medium.set_plan(FaultPlan { latency_ns: READ_NS..=READ_NS, ..FaultPlan::default() });
    let clock = &world.runtime;
    let (took_ns, parts) = world.run(async {
        let mut send = SendStream::new(View { disk: &disk, info: &info }, None, 0).unwrap();
        let (began_ns, mut parts) = (clock.now_ns(), 0);
        while let Some(part) = send.next().await.unwrap() {
            parts += u64::from(part.len() > 1 << 19);
            send.reuse(part);
            clock.sleep_ns(WRITE_NS).await;
        }
        (clock.now_ns() - began_ns, parts)
    });
    world.close(disk);
    assert!(parts >= SIZE >> 20, "{parts} parts of about 1 MiB");
    // A leaf of the map and then three windows of frames. In sequence, these are four reads and
    // twelve writes; overlapped, two reads and the writes.
    assert!(took_ns < 4 * READ_NS, "{took_ns} ns");
}

#[test]
fn a_transfer_that_cannot_be_read_has_no_end() {
    let (world, info) = noise();
    let send = || {
        let (_, disk) = open_noise(&world);
        let sent = world.run(async {
            let mut send = SendStream::new(View { disk: &disk, info: &info }, None, 0).unwrap();
            let mut bytes = Vec::new();
            loop {
                match send.next().await {
                    Ok(Some(part)) => bytes.extend_from_slice(&part),
                    Ok(None) => return Ok(bytes),
                    Err(error) => {
                        send.next().await.unwrap_err();
                        return Err(error);
                    }
                }
            }
        });
        world.close(disk);
        sent
    };
    let whole = send().unwrap();
    // Damage that the parity of its batch restores has no effect.
    world.flip(0, 300 << 10);
    assert!(send().unwrap() == whole);
    world.ruin_parity(0);
    assert_eq!(kind(send()), Some(ErrorKind::Corrupt));
}
