//! Goal: a batch or header at the location where the log could continue, or beyond its end, counts
//! only if it was written for this drive, this use of this segment, and this location. Method: the
//! last batch, or a batch after it, is rewritten with one wrong value and valid checksums; without
//! a wrong value, it counts.

use super::damage::{batches, written};
use super::*;
use crate::base::SeqNo;
use crate::base::seed::random;
use crate::format::{BATCH_HEADER_BYTES, BatchHeader, SEGMENT_HEADER_BYTES, SegmentHeader};

/// Bytes of a batch without records.
const EMPTY_BYTES: usize = 4096;

/// A change of a header, and its description.
type Change<T> = (&'static str, fn(&mut T));

const BATCH_CHANGES: [Change<BatchHeader>; 4] = [
    ("another drive", |header| header.uuid = uuid::Uuid::from_u128(1)),
    ("another use of the segment", |header| header.generation += 1),
    ("another segment", |header| header.segment.0 += 1),
    ("another place", |header| header.offset += 4096),
];

/// Returns a copy of a batch without records: only its header shows where it belongs.
fn emptied(like: &BatchHeader) -> BatchHeader {
    let body_bytes = (EMPTY_BYTES - BATCH_HEADER_BYTES) as u32;
    let (records_checksum, record_bytes, record_count) = (0, 0, 0);
    let parity_pages = 0;
    BatchHeader {
        records_checksum,
        record_bytes,
        record_count,
        body_bytes,
        parity_pages,
        needs_next: false,
        ..like.clone()
    }
}

fn put(world: &World, (segment, offset): (u32, u32), encode: impl FnOnce(&mut [u8])) {
    let mut page = AlignedBuffer::zeroed(EMPTY_BYTES);
    encode(&mut page);
    world.run(world.memory.append(SegmentId(segment), offset, page.into())).unwrap();
}

fn put_batch(world: &World, place: (u32, u32), header: &BatchHeader) {
    put(world, place, |page| {
        header.encode_into(page);
    });
}

/// The last of three durable batches.
#[test]
fn a_batch_that_belongs_elsewhere_does_not_continue_the_log() {
    let opens = |change: fn(&mut BatchHeader)| {
        let (world, _) = written();
        let mut last = emptied(&batches(&world, 0)[2]);
        let place = (0, last.offset);
        world.ruin_parity(0);
        change(&mut last);
        put_batch(&world, place, &last);
        world.try_open(OpenOptions::default()).map(|drive| world.kill(drive))
    };
    opens(|_| ()).unwrap();
    for (what, change) in BATCH_CHANGES {
        assert_eq!(kind(opens(change)), Some(ErrorKind::Corrupt), "{what}");
    }
}

/// Returns a drive whose log ends with a durable batch that is the first of segment 1.
fn continued() -> World {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    let noise = payload::noise(&mut random(1), 1 << 20);
    while batches(&world, 1).is_empty() {
        world.run(drive.write_durable(0, &noise)).unwrap();
    }
    world.close_without_checkpoint(drive);
    assert_eq!(batches(&world, 1).len(), 1);
    world
}

const SIZE: u64 = 4 << 20;

/// The segment is recorded as the next one of a stream.
#[test]
fn a_segment_that_was_begun_for_something_else_does_not_continue_the_log() {
    let opens = |change: fn(&mut SegmentHeader)| {
        let world = continued();
        let page = world.peek(1, 0, SEGMENT_HEADER_BYTES);
        let mut header = SegmentHeader::found_in(&page).unwrap();
        change(&mut header);
        put(&world, (1, 0), |page| header.encode_into(page));
        // A batch of the use that the header describes.
        let first = &batches(&world, 1)[0];
        let first = BatchHeader { generation: header.generation, ..emptied(first) };
        put_batch(&world, (1, first.offset), &first);
        world.try_open(OpenOptions::default()).map(|drive| world.kill(drive))
    };
    opens(|_| ()).unwrap();
    let changes: [Change<SegmentHeader>; 5] = [
        ("another drive", |header| header.uuid = uuid::Uuid::from_u128(1)),
        ("another use of the segment", |header| header.generation += 1),
        ("another segment", |header| header.segment.0 += 1),
        ("another stream", |header| header.stream = Stream::Moved),
        ("another first batch", |header| header.first_seq.0 += 1),
    ];
    // Each is refused by the walk of the log, not by a later step with less information.
    let mut said = Vec::new();
    for (what, change) in changes {
        let opened = opens(change);
        let error = opened.err().unwrap_or_else(|| panic!("{what}: the log continues"));
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}");
        said.push(error.chain());
        assert_eq!(said[0], said[said.len() - 1], "{what}");
    }
}

/// Returns a drive whose fourth batch, which was not flushed, is torn; and the header of that
/// batch.
fn torn() -> (World, BatchHeader) {
    let (world, data) = written();
    let drive = world.open();
    world.write(&drive, 0, &data[200_000..300_000]).unwrap();
    drive.with_core(|core| core.seal(Stream::Host));
    world.run(world.runtime.yield_now());
    world.kill(drive);
    let last = batches(&world, 0).pop().unwrap();
    assert_eq!(last.seq, SeqNo(4));
    world.flip(0, last.offset + 40);
    (world, last)
}

/// The batch after a torn one shows that the torn one was durable.
#[test]
fn only_a_batch_of_this_log_proves_that_a_missing_one_was_durable() {
    let opens = |change: fn(&mut BatchHeader)| {
        let (world, last) = torn();
        let place = (0, last.offset + last.batch_bytes() as u32);
        let (offset, watermark) = (place.1, last.seq);
        let mut proof = BatchHeader { offset, watermark, ..emptied(&last) };
        change(&mut proof);
        put_batch(&world, place, &proof);
        world.try_open(OpenOptions::default()).map(|drive| world.kill(drive))
    };
    assert_eq!(kind(opens(|_| ())), Some(ErrorKind::Corrupt));
    let earlier: Change<BatchHeader> = ("an earlier watermark", |header| header.watermark.0 -= 1);
    for (what, change) in BATCH_CHANGES.into_iter().chain([earlier]) {
        assert_eq!(kind(opens(change)), None, "{what}");
    }
}

/// The same in a segment that the log had not reached.
#[test]
fn only_a_segment_begun_later_proves_that_a_missing_batch_was_durable() {
    let opens = |change: fn(&mut SegmentHeader)| {
        let (world, last) = torn();
        let page = world.peek(0, 0, SEGMENT_HEADER_BYTES);
        let mut header = SegmentHeader::found_in(&page).unwrap();
        (header.segment, header.first_seq) = (SegmentId(1), SeqNo(5));
        let (offset, watermark) = (SEGMENT_HEADER_BYTES as u32, last.seq);
        let generation = header.generation;
        let proof = BatchHeader { segment: SegmentId(1), offset, watermark, ..emptied(&last) };
        change(&mut header);
        assert_eq!(proof.generation, generation);
        put(&world, (1, 0), |page| header.encode_into(page));
        put_batch(&world, (1, offset), &proof);
        world.try_open(OpenOptions::default()).map(|drive| world.kill(drive))
    };
    let changes: [Change<SegmentHeader>; 2] = [
        ("another use of the segment", |header| header.generation += 1),
        ("begun before the missing batch", |header| header.first_seq.0 -= 2),
    ];
    for (what, change) in changes {
        assert_eq!(kind(opens(change)), None, "{what}");
    }
    // A damaged header does not invalidate the proof.
    let changes: [Change<SegmentHeader>; 4] = [
        ("nothing", |_| ()),
        ("another drive", |header| header.uuid = uuid::Uuid::from_u128(1)),
        ("another segment", |header| header.segment.0 += 1),
        ("begun with the missing batch", |header| header.first_seq.0 -= 1),
    ];
    for (what, change) in changes {
        assert_eq!(kind(opens(change)), Some(ErrorKind::Corrupt), "{what}");
    }
}
