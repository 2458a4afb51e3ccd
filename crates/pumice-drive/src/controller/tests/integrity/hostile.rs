//! Goal: bytes with valid checksums that no drive would have written neither crash the program nor
//! are accepted as content. Method: structures of a valid drive are decoded, changed, and encoded
//! again.

use super::damage::{batches, record_of, written};
use super::*;
use crate::base::SeqNo;
use crate::format::{BATCH_HEADER_BYTES, Detour, RECORD_HEADER_BYTES, Record, RecordAddress};

/// Replaces bytes at `offset` of segment 0.
fn patch(world: &World, offset: u32, bytes: &[u8]) {
    let page = offset / 4096 * 4096;
    let mut pages = world.peek(0, page, 8192);
    let at = (offset - page) as usize;
    pages[at..at + bytes.len()].copy_from_slice(bytes);
    world.run(world.memory.append(SegmentId(0), page, pages.into())).unwrap();
}

/// A record header that matches its own checksum but differs from the one in its sealed batch would
/// place content at a wrong address.
#[test]
fn a_record_header_that_does_not_fit_the_chain_stops_the_opening() {
    for payload_is_damaged in [false, true] {
        let (world, _) = written();
        let (segment, offset) = record_of(&world, 50);
        let generation = batches(&world, 0)[0].generation;
        let place = RecordAddress { generation, segment: SegmentId(segment), offset };
        let bytes = world.peek(0, offset / 4096 * 4096, 8192);
        let mut record = Record::decode(&bytes[(offset % 4096) as usize..], place).unwrap();
        let Record::Data { lba, .. } = &mut record else { panic!("{record:?}") };
        lba.0 += 8;
        let mut header = [0; RECORD_HEADER_BYTES];
        record.encode_into(place, &[], &mut header);
        world.ruin_parity(segment);
        patch(&world, offset, &header);
        if payload_is_damaged {
            world.flip_for_good(segment, offset + RECORD_HEADER_BYTES as u32 + 9);
        }
        assert_eq!(world.refusal().kind(), ErrorKind::Corrupt, "{payload_is_damaged}");
        assert!(world.check().problem_count > 0, "{payload_is_damaged}");
    }
}

fn set_revision(world: &World, slot: u32, revision: u64) {
    let mut bytes = world.run(world.memory.read_superblock(slot)).unwrap();
    let superblock = Superblock { revision, ..Superblock::decode(&bytes).unwrap() };
    bytes.copy_from_slice(&superblock.encode());
    world.run(world.memory.write_superblock(slot, bytes)).unwrap();
}

#[test]
fn counters_at_their_end_stay_there() {
    for slot in 0..2 {
        let (world, data) = written();
        set_revision(&world, slot, u64::MAX);
        let mut last = batches(&world, 0).pop().unwrap();
        (last.host_bytes, last.frame_bytes, last.media_bytes) = (u64::MAX - 1, u64::MAX, u64::MAX);
        let mut header = [0; BATCH_HEADER_BYTES];
        last.encode_into(&mut header);
        patch(&world, last.offset, &header);
        let drive = world.open();
        world.run(drive.write_durable(0, &data[4096..8192])).unwrap();
        let drive = world.reopen(drive);
        let info = drive.info();
        assert_eq!((info.host_bytes, info.media_bytes), (u64::MAX, u64::MAX), "slot {slot}");
        assert!(world.read(&drive, 0, 4096).unwrap() == data[4096..8192]);
        world.close(drive);
        assert_eq!(world.check().problems, []);
    }
}

/// The bad segments and the detours of a superblock may be such as no drive would write.
#[test]
fn a_detour_beyond_the_end_of_the_log_is_no_reason_to_panic() {
    let world = World::new(small(4 << 20, 4));
    for slot in 0..2 {
        let mut bytes = world.run(world.memory.read_superblock(slot)).unwrap();
        let mut superblock = Superblock::decode(&bytes).unwrap();
        superblock.bad_segments = vec![SegmentId(0)];
        let (seq, segment) = (SeqNo(5), SegmentId(1));
        superblock.detours = vec![Detour { seq, generation: 0, segment, stream: Stream::Host }];
        bytes.copy_from_slice(&superblock.encode());
        world.run(world.memory.write_superblock(slot, bytes)).unwrap();
    }
    let drive = world.open();
    world.run(drive.write_durable(0, &[1; 4096])).unwrap();
    let drive = world.reopen(drive);
    assert_eq!(world.read(&drive, 0, 4096).unwrap(), [1; 4096]);
    world.close(drive);
}
