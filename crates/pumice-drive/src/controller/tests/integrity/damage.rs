//! Goal: wrong bytes on the medium are never returned and never hide acknowledged data silently:
//! reads of a damaged location fail and report it, everything else continues, and a state that
//! cannot be determined prevents the opening. Method: a bit is flipped in each kind of structure
//! after the drive was closed or killed.

use rand::RngExt;

use super::*;
use crate::base::seed::random;
use crate::format::{
    BATCH_HEADER_BYTES, BatchHeader, RECORD_HEADER_BYTES, Record, SEGMENT_HEADER_BYTES,
};
use crate::media::layer::{BadRange, Region};

pub(crate) const SIZE: u64 = 4 << 20;

/// Returns a closed drive with three durable batches of 160 KiB each in segment 0, one after the
/// other on the disk. The data is text, so frames are compressed.
pub(crate) fn written() -> (World, Vec<u8>) {
    let world = World::new(small(SIZE, 4));
    let data = payload::text(&mut random(1), 480 << 10);
    let drive = world.open();
    for (index, part) in data.chunks(160 << 10).enumerate() {
        world.run(drive.write_durable(index as u64 * (160 << 10), part)).unwrap();
    }
    world.close_without_checkpoint(drive);
    (world, data)
}

/// Returns the batch headers of a segment, in order.
pub(crate) fn batches(world: &World, segment: u32) -> Vec<BatchHeader> {
    let bytes = world.peek(segment, 0, SEGMENT_BYTES as usize);
    let cipher = world.memory.cipher();
    bytes
        .chunks(4096)
        .filter_map(|page| BatchHeader::decode_with(page, cipher).ok())
        .map(|(h, _)| h)
        .collect()
}

/// Returns the segment and the offset of the record that holds a block.
pub(crate) fn record_of(world: &World, lba: u64) -> (u32, u32) {
    let drive = world.try_open(OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    world.run(drive.load_range(Lba(lba), 1)).unwrap();
    let (mapping, _) = drive.core().map().peek(Lba(lba)).resident();
    world.close(drive);
    match mapping {
        Mapping::Frame { place, .. } => (place.segment.0, place.offset),
        other => panic!("LBA {lba} is {other:?}"),
    }
}

/// A sector is unreadable when its frame should be moved, and readable later. Guards against a
/// frame that is given up immediately, though the fault lasts only a few minutes.
#[test]
fn unreadable_data_is_not_given_up_at_once() {
    for minutes in [1, 10] {
        let world = World::new(small(32 << 20, 12));
        let drive = world.open_without_collector();
        let data = payload::noise(&mut random(1), 32 << 10);
        world.run(drive.write_durable(0, &data)).unwrap();
        let (mapping, _) = drive.core().map().peek(Lba(0)).resident();
        let Mapping::Frame { place, .. } = mapping else { panic!("{mapping:?}") };
        while drive.core().log().tail(Stream::Host).unwrap().segment == place.segment {
            let noise = payload::noise(&mut random(2), 1 << 20);
            world.run(drive.write_durable(8 << 20, &noise)).unwrap();
        }
        let from = place.offset + 8192;
        let range = BadRange::unreadable(Region::Segment(place.segment), from..from + 512);
        drive.layers().add_bad_range(range);
        let live = || drive.core().space().live_bytes_of(place.segment);
        world.run(drive.empty_victim(place.segment)).unwrap();
        assert_eq!(live(), place.record_bytes, "the frame was given up, or more was left");
        assert!(drive.core().next_victim().is_none());
        let read = world.read(&drive, 0, data.len());
        assert_eq!(kind(read), Some(ErrorKind::Medium));
        world.run(world.runtime.sleep_ns(minutes * 60_000_000_000));
        world.run(drive.empty_victim(place.segment)).unwrap();
        assert_eq!(live() == 0, minutes == 10);
        drive.with_core(Core::seal_all);
        world.run(drive.flush()).unwrap();
        world.kill(drive);
        // The drive is opened again without the fault.
        let drive = world.open();
        let read = world.read(&drive, 0, data.len());
        match minutes {
            1 => assert!(read.unwrap() == data),
            _ => assert_eq!(kind(read), Some(ErrorKind::Corrupt)),
        }
        assert_accounting(&drive);
        world.close(drive);
    }
}

/// Every segment has an unreadable frame, and the host overwrites the rest. Frames are given up
/// before a write is refused.
#[test]
fn unreadable_data_refuses_no_write() {
    let size = 24u64 << 20;
    let world = World::new(Spec { capacity_bytes: None, ..small(size, 0) });
    let drive = world.open();
    let mut random = random(3);
    let mut bad = 0;
    for number in 0..6000 {
        let data = payload::noise(&mut random, 64 << 10);
        let offset = random.random_range(0..(size - (64 << 10)) / BLOCK) * BLOCK;
        assert_eq!(kind(world.write(&drive, offset, &data)), None, "write {number}");
        if number % 40 == 39 && bad < 40 {
            let core = drive.core();
            let lba = Lba(random.random_range(0..size / BLOCK));
            if let Lookup::Run(Mapping::Frame { place, .. }, _) = core.map().peek(lba) {
                let region = Region::Segment(place.segment);
                let at = place.offset + 4096;
                drive.layers().add_bad_range(BadRange::unreadable(region, at..at + 512));
                bad += 1;
            }
        }
    }
    world.kill(drive);
}

#[test]
fn a_damaged_frame_fails_its_own_blocks_only() {
    let (world, data) = written();
    let (segment, offset) = record_of(&world, 50);
    world.flip_for_good(segment, offset + RECORD_HEADER_BYTES as u32 + 9);
    let drive = world.open();
    for lba in 0..120u64 {
        let read = world.read(&drive, lba * BLOCK, BLOCK_BYTES);
        if (48..56).contains(&lba) {
            let error = read.unwrap_err();
            assert_eq!((error.kind(), error.lba()), (ErrorKind::Corrupt, Some(Lba(lba))));
        } else {
            let at = lba as usize * BLOCK_BYTES;
            assert!(read.unwrap() == data[at..at + BLOCK_BYTES], "LBA {lba}");
        }
    }
    let whole = world.read(&drive, 0, data.len()).unwrap_err();
    assert_eq!((whole.kind(), whole.lba()), (ErrorKind::Corrupt, Some(Lba(48))));
    assert_eq!(kind(world.write(&drive, 50 * BLOCK + 1, &[1])), Some(ErrorKind::Corrupt));
    assert_eq!(drive.info().operations.corrupt_reads, 8 + 1 + 1);
    let report = world.check();
    let named = |problem: &&Problem| problem.lba.is_some();
    let places: Vec<_> = report.problems.iter().filter(named).collect();
    assert_eq!(places.len(), 1, "{:?}", report.problems);
    assert_eq!((places[0].lba, places[0].lba_count), (Some(48), Some(8)));
    // Once rewritten, the blocks can be read again.
    world.write(&drive, 48 * BLOCK, &data[48 * BLOCK_BYTES..56 * BLOCK_BYTES]).unwrap();
    assert!(world.read(&drive, 0, data.len()).unwrap() == data);
    let drive = world.reopen(drive);
    assert!(world.read(&drive, 0, data.len()).unwrap() == data);
}

/// Returns a drive that was never closed, with 60 flushed writes of one frame each after `filler`
/// bytes, so that the log ends in its first segment or in a later one.
fn flushed_and_killed(filler: usize) -> (World, Vec<u8>, u32) {
    let world = World::new(small(16 << 20, 8));
    let drive = world.open();
    let noise = payload::noise(&mut random(1), filler);
    world.run(drive.write_durable(8 << 20, &noise)).unwrap();
    let data = payload::text(&mut random(2), 60 * 8 * BLOCK_BYTES);
    for (index, frame) in data.chunks(8 * BLOCK_BYTES).enumerate() {
        world.run(drive.write_durable((index * frame.len()) as u64, frame)).unwrap();
    }
    let segment = drive.core().log().tail(Stream::Host).expect("a host tail").segment;
    world.kill(drive);
    (world, data, segment.0)
}

/// Guards against the loss of an entire segment of flushed writes. Batches beyond the damage prove
/// that the damaged one was durable, even if it is the first batch of their segment, or the
/// segment's header is damaged.
#[test]
fn damage_in_the_first_batch_of_a_segment_never_ends_the_log() {
    for filler in [0, 4 << 20] {
        let header_at = SEGMENT_HEADER_BYTES as u32;
        let record_at = header_at + BATCH_HEADER_BYTES as u32;
        for (what, offset) in [
            ("segment header", 20),
            ("batch header", header_at + 30),
            ("record header", record_at + 8),
            ("payload", record_at + RECORD_HEADER_BYTES as u32 + 100),
        ] {
            let (world, data, segment) = flushed_and_killed(filler);
            assert_eq!(segment, u32::from(filler > 0), "the log ends in another segment");
            world.flip_for_good(segment, offset);
            let opened = world.try_open(OpenOptions::default());
            let when = format!("{what} of segment {segment}");
            assert!(world.check().problem_count > 0, "{when}");
            let drive = match opened {
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{when}");
                    assert_ne!(what, "payload", "{when}");
                    continue;
                }
                Ok(drive) => drive,
            };
            for (index, frame) in data.chunks(8 * BLOCK_BYTES).enumerate() {
                match world.read(&drive, (index * frame.len()) as u64, frame.len()) {
                    Ok(found) => assert!(found == frame, "{when}: frame {index}"),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{when}"),
                }
            }
        }
    }
}

#[test]
fn damage_that_hides_durable_data_stops_the_opening_and_is_reported() {
    let (segment, record) = record_of(&written().0, 50);
    let [_, middle, last] = &batches(&written().0, 0)[..] else { panic!("three batches") };
    let (middle, last) = (middle.offset, last.offset);
    for (what, offset) in [
        ("segment header", 20),
        ("first batch header", 4096 + 30),
        ("middle batch header", middle + 30),
        ("last batch header, which the superblock names", last + 30),
        ("record header", record + 8),
    ] {
        let (world, _) = written();
        world.flip_for_good(segment, offset);
        let error = world.refusal();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        assert!(world.check().problem_count > 0, "{what}");
    }
}

/// Guards against problems of the first batch that are mistaken for stray segment headers.
#[test]
fn damaged_padding_is_reported_and_harms_nothing() {
    for batch in 0..3 {
        let (world, data) = written();
        let header = &batches(&world, 0)[batch];
        let padding = header.offset + BATCH_HEADER_BYTES as u32 + header.record_bytes;
        assert!(header.record_bytes < header.body_bytes, "no padding in batch {batch}");
        world.flip_for_good(0, padding);
        assert_eq!(world.check().problem_count, 1, "batch {batch}");
        let drive = world.open();
        assert!(world.read(&drive, 0, data.len()).unwrap() == data);
    }
}

#[test]
fn a_torn_tail_loses_only_unflushed_data() {
    for place in 0..2 {
        let (world, data) = written();
        let drive = world.open();
        world.write(&drive, 0, &data[200_000..300_000]).unwrap();
        drive.with_core(|core| core.seal(Stream::Host));
        world.run(world.runtime.yield_now());
        world.kill(drive);
        let header = batches(&world, 0).pop().unwrap();
        assert_eq!(header.seq.0, 4, "the last batch is not on the medium");
        world.flip_for_good(0, header.offset + [40, 5000][place]);
        let drive = world.open();
        assert!(world.read(&drive, 0, data.len()).unwrap() == data, "place {place}");
        world.run(drive.write_durable(0, &data[100_000..200_000])).unwrap();
        world.kill(drive);
        assert_eq!(world.check().problems, []);
        let drive = world.open();
        assert!(world.read(&drive, 0, 100_000).unwrap() == data[100_000..200_000]);
    }
}

/// All checksums are valid, so only the limits of the drive can expose the record.
#[test]
fn a_record_of_blocks_that_the_drive_cannot_have_is_refused() {
    let noise = payload::noise(&mut random(1), 2 * BLOCK_BYTES);
    let end = SIZE / BLOCK;
    for beyond in [false, true] {
        let (world, _) = written();
        let drive = world.open();
        world.write(&drive, 0, &noise[..BLOCK_BYTES]).unwrap();
        drive.with_core(|core| {
            let open = core.log_mut().open_batch(Stream::Host);
            if beyond {
                open.push_range(&Record::Trim { lba: Lba(end - 1), lba_count: 2 });
            } else {
                let compressor = &mut drive.compressor.borrow_mut();
                open.push_frame(Lba(7), 2, |target| compressor.compress(&noise, target));
            }
        });
        world.run(drive.flush()).unwrap();
        world.kill(drive);
        assert_eq!(world.refusal().kind(), ErrorKind::Corrupt, "beyond the disk: {beyond}");
    }
}

/// The location, the generation and all checksums are valid; only the block is not the requested
/// one.
#[test]
fn a_frame_with_other_blocks_than_in_the_map_is_refused() {
    let (world, _) = written();
    let drive = world.open();
    world.run(drive.load_range(Lba(0), 1)).unwrap();
    let (mapping, _) = drive.core().map().peek(Lba(0)).resident();
    let Mapping::Frame { place, .. } = mapping else { panic!("LBA 0 is {mapping:?}") };
    drive.with_core(|core| core.map_mut().map_frame(Lba(16), place, |_| ()));
    for len in [BLOCK_BYTES, 8 * BLOCK_BYTES] {
        let error = world.read(&drive, 16 * BLOCK, len).unwrap_err();
        assert_eq!((error.kind(), error.lba()), (ErrorKind::Corrupt, Some(Lba(16))));
    }
    world.read(&drive, 0, BLOCK_BYTES).unwrap();
}

/// Rewrites a batch header of segment 0 with a change and a matching checksum.
fn change_header(world: &World, batch: usize, change: fn(&mut BatchHeader)) {
    let mut header = batches(world, 0)[batch].clone();
    change(&mut header);
    let mut page = world.peek(0, header.offset, 4096);
    header.encode_into(&mut page);
    world.run(world.memory.append(SegmentId(0), header.offset, page.into())).unwrap();
}

/// A batch belongs to the log only after the batch that preceded it when it was written.
#[test]
fn a_batch_that_names_another_predecessor_is_refused() {
    let (world, _) = written();
    change_header(&world, 1, |header| header.previous_checksum ^= 1);
    assert_eq!(world.refusal().kind(), ErrorKind::Corrupt);
}

/// All checksums and the chain are valid, but epochs never decrease along the log.
#[test]
fn a_batch_of_an_earlier_epoch_than_the_one_before_it_is_refused() {
    let (world, _) = written();
    change_header(&world, 2, |_| ());
    assert_eq!(world.check().problem_count, 0);
    change_header(&world, 2, |header| header.epoch -= 1);
    assert_eq!(world.refusal().kind(), ErrorKind::Corrupt);
}

/// Two batches are on the medium, the first one torn. The next life writes a batch of the same size
/// over it. The second, which is intact, is then exactly where the log would continue.
#[test]
fn batches_of_a_lost_life_are_never_replayed() {
    let (world, data) = written();
    let drive = world.open();
    for (offset, byte) in [(0, 1), (8192, 2)] {
        world.write(&drive, offset, &[byte; 4096]).unwrap();
        drive.with_core(|core| core.seal(Stream::Host));
        world.run(world.runtime.yield_now());
    }
    world.kill(drive);
    let left = batches(&world, 0);
    assert_eq!(left.len(), 5);
    world.flip_for_good(0, left[3].offset + 30);
    let drive = world.open();
    world.run(drive.write_durable(4096, &[3; 4096])).unwrap();
    world.kill(drive);
    let now = batches(&world, 0);
    assert_eq!((&now[4], now[3].epoch), (&left[4], left[3].epoch + 1));
    let drive = world.open();
    let mut expected = data;
    expected[4096..8192].fill(3);
    assert!(world.read(&drive, 0, expected.len()).unwrap() == expected);
}

/// Guards against a lost batch in place of a durable one. A life left a torn batch in the stream of
/// moved frames. The next life wrote the batch of that number in the host stream, and this batch is
/// damaged later. Only its header shows that the torn batch is a different one.
#[test]
fn a_torn_batch_of_a_lost_life_does_not_stand_in_for_a_damaged_one() {
    let world = World::new(small(SIZE, 4));
    let data = payload::noise(&mut random(1), 64 << 10);
    let drive = world.open_without_collector();
    for moved in [true, false] {
        world.run(drive.write_durable(0, &data)).unwrap();
        world.run(survival::move_all(&drive, SegmentId(0)));
        drive.with_core(|core| core.seal(Stream::Moved));
        if moved {
            world.run(drive.flush()).unwrap();
        } else {
            world.run(world.runtime.yield_now());
        }
    }
    let segment = drive.core().log().tail(Stream::Moved).expect("a tail").segment.0;
    world.kill(drive);
    let torn = batches(&world, segment).pop().expect("the batch that was not flushed");
    world.flip_for_good(segment, torn.offset + torn.body_bytes / 2);
    let drive = world.open_without_collector();
    for byte in [1, 2] {
        world.run(drive.write_durable(1 << 20, &[byte; 4096])).unwrap();
    }
    world.kill(drive);
    let host = batches(&world, 0);
    let [.., damaged, proof] = &host[..] else { panic!("two batches of the second life") };
    assert_eq!((damaged.seq, proof.watermark), (torn.seq, torn.seq));
    assert!(damaged.epoch > torn.epoch && damaged.previous_checksum == torn.previous_checksum);
    world.flip_for_good(0, damaged.offset + 30);
    assert_eq!(world.refusal().kind(), ErrorKind::Corrupt);
}

/// As above, but parity could complete either batch, and the superblock records that a batch of
/// that number was durable. The later opening must not find the end of the log at the torn one.
#[test]
fn a_torn_batch_of_a_lost_life_is_not_completed_in_place_of_a_durable_one() {
    let world = World::new(small(SIZE, 4));
    let noise = |seed| payload::noise(&mut random(seed), 64 << 10);
    let drive = world.open_without_collector();
    world.run(drive.write_durable(0, &noise(1))).unwrap();
    world.run(survival::move_all(&drive, SegmentId(0)));
    world.run(drive.flush()).unwrap();
    world.run(drive.write_durable(0, &noise(1))).unwrap();
    world.run(survival::move_all(&drive, SegmentId(0)));
    drive.with_core(|core| core.seal(Stream::Moved));
    world.run(world.runtime.yield_now());
    let segment = drive.core().log().tail(Stream::Moved).expect("a tail").segment.0;
    world.kill(drive);
    let torn = batches(&world, segment).pop().expect("the batch that was not flushed");
    let whole = world.peek(segment, torn.offset + 8192, 4096);
    world.flip_for_good(segment, torn.offset + 8192 + 7);
    let drive = world.open_without_collector();
    world.run(drive.write_durable(1 << 20, &noise(2))).unwrap();
    world.run(drive.write_durable(3 << 20, &noise(4))).unwrap();
    world.kill(drive);
    // Its superblock refers to a later batch, so a batch of that number is durable.
    let drive = world.open_without_collector();
    world.run(drive.write_durable(2 << 20, &noise(3))).unwrap();
    world.kill(drive);
    let host = batches(&world, 0);
    let durable = host.iter().find(|batch| batch.seq == torn.seq).expect("the durable batch");
    assert!(durable.epoch > torn.epoch && durable.parity_pages > 0 && torn.parity_pages > 0);
    // The torn batch lacks one page, and the durable one lacks the page with its header.
    world.run(world.memory.append(SegmentId(segment), torn.offset + 8192, whole.into())).unwrap();
    let parity = torn.offset + torn.batch_bytes() as u32 - 4096;
    world.flip(segment, parity + 7);
    world.flip(segment, torn.offset + 4096 + 9);
    world.flip(0, durable.offset + 30);
    let drive = world.open();
    for (at, seed) in [(0, 1), (1 << 20, 2), (2 << 20, 3), (3 << 20, 4)] {
        assert!(world.read(&drive, at, 64 << 10).unwrap() == noise(seed), "at {at}");
    }
    world.close(drive);
}

/// Guards against durable batches being dropped as a torn tail. The only proof that the damaged one
/// was durable follows the first batch of the next segment.
#[test]
fn damage_at_the_end_of_a_segment_is_no_torn_tail() {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    let noise = payload::noise(&mut random(1), 1 << 20);
    while batches(&world, 1).is_empty() {
        world.write(&drive, 0, &noise).unwrap();
        drive.with_core(|core| core.seal(Stream::Host));
        world.run(world.runtime.yield_now());
    }
    world.run(drive.flush()).unwrap();
    world.run(drive.write_durable(0, &noise[..4096])).unwrap();
    world.kill(drive);
    let next = batches(&world, 1);
    assert_eq!(next[0].watermark.0, 0);
    assert_eq!(next[1].watermark, next[0].seq);
    world.flip_for_good(0, batches(&world, 0).pop().unwrap().offset + 30);
    assert_eq!(world.refusal().kind(), ErrorKind::Corrupt);
}

fn flip_superblock(world: &World, slot: u32, byte: usize) {
    let mut bytes = world.run(world.memory.read_superblock(slot)).unwrap();
    bytes[byte] ^= 1;
    world.run(world.memory.write_superblock(slot, bytes)).unwrap();
}

#[test]
fn one_superblock_is_enough_and_epochs_stay_unique() {
    for slot in 0..2 {
        let (world, data) = written();
        let drive = world.open();
        let epoch = drive.info().epoch;
        world.run(drive.write_durable(0, &data[4096..8192])).unwrap();
        world.kill(drive);
        flip_superblock(&world, slot, 100);
        assert_eq!(world.check().problem_count, 1);
        let drive = world.open();
        assert_eq!(drive.info().epoch, epoch + 1, "slot {slot}");
        assert!(world.read(&drive, 4096, data.len() - 4096).unwrap() == data[4096..]);
        world.close(drive);
    }
}

#[test]
fn the_newer_of_two_superblocks_counts() {
    for slot in 0..2 {
        let (world, _) = written();
        let mut newest = world.run(superblocks::load(&world.memory)).unwrap().stored.superblock;
        world.run(superblocks::store_next(&world.memory, slot, &mut newest)).unwrap();
        assert_eq!(world.run(superblocks::load(&world.memory)).unwrap().stored.slot, slot);
    }
}

#[test]
fn without_superblocks_there_is_no_drive() {
    let (world, _) = written();
    for slot in 0..2 {
        flip_superblock(&world, slot, 100);
    }
    assert_eq!(world.refusal().kind(), ErrorKind::Corrupt);
    for slot in 0..2 {
        flip_superblock(&world, slot, 0);
    }
    assert_eq!(world.refusal().kind(), ErrorKind::NotADrive);
}

#[test]
fn a_truncated_medium_is_refused() {
    let (mut world, _) = written();
    let short = MemMedium::new(world.memory.bytes() - 4096);
    for slot in 0..2 {
        let bytes = world.run(world.memory.read_superblock(slot)).unwrap();
        world.run(short.write_superblock(slot, bytes)).unwrap();
    }
    world.memory = short;
    assert_eq!(world.refusal().kind(), ErrorKind::InvalidInput);
}

#[test]
fn read_only_writes_nothing() {
    let (world, data) = written();
    let drive = world.open();
    world.write(&drive, 0, &data[4096..9000]).unwrap();
    drive.with_core(|core| core.seal(Stream::Host));
    world.run(world.runtime.yield_now());
    world.kill(drive);
    let before = world.medium_checksum();
    let drive = world.try_open(OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    assert!(world.read(&drive, 0, 4904).unwrap() == data[4096..9000]);
    let refused = Some(ErrorKind::ReadOnly);
    assert_eq!(kind(world.write(&drive, 0, &[1])), refused);
    assert_eq!(kind(world.run(drive.trim(0, BLOCK))), refused);
    assert_eq!(kind(world.run(drive.write_zeroes(0, 1, Allocation::Release))), refused);
    world.run(drive.flush()).unwrap();
    world.run(drive.close()).unwrap();
    let counts = drive.layers().inner().counts();
    assert_eq!((counts.appends, counts.superblock_writes, counts.discards), (0, 0, 0));
    world.kill(drive);
    assert_eq!(world.medium_checksum(), before);
}

#[test]
fn wrong_bytes_from_the_bus_are_noticed_and_the_next_read_is_right() {
    let (world, data) = written();
    let drive = world.open();
    let once = crate::media::layer::Trigger::Nth(1);
    drive.layers().set_plan(FaultPlan { read_corruptions: once, ..FaultPlan::default() });
    // The bit may be in the bytes that alignment to the read unit adds around the frame.
    match world.read(&drive, 0, 32 << 10) {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
        Ok(read) => assert!(read == data[..32 << 10]),
    }
    assert!(world.read(&drive, 0, data.len()).unwrap() == data);
}

/// A life left a torn batch in the host stream, and the next one wrote the batch of that number
/// elsewhere. Another opening vouched for that batch. Whatever is damaged later, the torn batch is
/// not used.
#[test]
fn a_torn_batch_does_not_stand_in_for_a_vouched_one() {
    for header_is_damaged in [false, true] {
        let world = World::new(small(SIZE, 4));
        let data = payload::noise(&mut random(1), 64 << 10);
        let drive = world.open_without_collector();
        world.run(drive.write_durable(0, &data)).unwrap();
        world.run(survival::move_all(&drive, SegmentId(0)));
        drive.with_core(|core| core.seal(Stream::Moved));
        world.run(drive.flush()).unwrap();
        world.run(drive.write_durable(0, &data)).unwrap();
        for offset in [1_u64 << 20, 2 << 20] {
            world.write(&drive, offset, &data[..4096]).unwrap();
        }
        drive.with_core(|core| core.seal(Stream::Host));
        world.run(world.runtime.yield_now());
        world.kill(drive);
        let torn = batches(&world, 0).pop().expect("the batch that was not flushed");
        world.flip_for_good(0, torn.offset + torn.body_bytes - 100);
        let drive = world.open_without_collector();
        world.run(survival::move_all(&drive, SegmentId(0)));
        drive.with_core(|core| core.seal(Stream::Moved));
        world.run(drive.flush()).unwrap();
        let moved = drive.core().log().tail(Stream::Moved).expect("a tail").segment.0;
        world.kill(drive);
        let vouched = batches(&world, moved).pop().expect("the moved batch");
        assert_eq!((vouched.seq, vouched.epoch > torn.epoch), (torn.seq, true));
        // This opening vouches for the end of the log, and has no other effect.
        let drive = world.open_without_collector();
        world.kill(drive);
        let damaged = if header_is_damaged { 30 } else { vouched.body_bytes / 2 };
        world.flip_for_good(moved, vouched.offset + damaged);
        match world.try_open(OpenOptions::default()) {
            Ok(drive) => {
                assert!(!header_is_damaged, "a durable batch is missing");
                assert_eq!(world.read(&drive, 1 << 20, 4096).unwrap(), [0; 4096], "it is back");
            }
            Err(error) => {
                assert!(header_is_damaged, "{}", error.chain());
                assert_eq!(error.kind(), ErrorKind::Corrupt);
            }
        }
        world.runtime.drop_tasks();
    }
}
