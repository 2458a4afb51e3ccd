//! Goal: no single bad sector of a checkpoint has any consequence: the drive opens, all data is
//! right, and the next checkpoint or a scrub rewrites the damaged records. Method: each page of
//! each batch of metadata is changed, or made unreadable, in turn.

use super::*;
use crate::base::seed::random;
use crate::format::{BATCH_ALIGNMENT, BatchHeader, RECORD_HEADER_BYTES};

const SIZE: u64 = 4 << 30;

/// Damages a metadata record and the parity of its batch, so that the record cannot be restored.
pub(crate) fn ruin(world: &World, segment: SegmentId, offset: u32) {
    let batches = super::damage::batches(world, segment.0).into_iter();
    let batch = batches.rev().find(|batch| batch.offset <= offset);
    let batch = batch.expect("metadata is in a batch");
    assert!(batch.parity_pages > 0, "metadata has parity");
    world.flip(segment.0, offset + RECORD_HEADER_BYTES as u32 + 20);
    let end = batch.offset + batch.batch_bytes() as u32;
    for page in 1..=u32::from(batch.parity_pages) {
        for at in (0..4096).step_by(8) {
            world.flip(segment.0, end - page * 4096 + at);
        }
    }
}

/// Returns a closed drive with a few leaves in two directory pages, and some of the written data
/// with its offsets.
fn checkpointed() -> (World, Vec<(u64, Vec<u8>)>) {
    let world = World::new(small(SIZE, 6));
    let drive = world.open();
    let mut random = random(1);
    let mut written = Vec::new();
    // The blocks are written in scattered order, so that leaves compress badly.
    for step in 0..500 {
        for leaf in [0, 1, 2, 3, 600, 601] {
            let data = payload::noise(&mut random, BLOCK_BYTES);
            let at = (leaf << 22) + step * 389 % 1021 * BLOCK;
            world.write(&drive, at, &data).unwrap();
            if step % 50 == leaf % 50 {
                written.push((at, data));
            }
        }
    }
    world.run(drive.trim(700 << 22, 4 << 22)).unwrap();
    world.close(drive);
    (world, written)
}

/// Returns the segment of metadata, and the end of its written part.
fn metadata(world: &World) -> (u32, u32) {
    let drive = world.try_open(OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    let tail = drive.core().log().tail(Stream::Meta).unwrap();
    world.close(drive);
    (tail.segment.0, tail.used)
}

fn assert_whole(world: &World, drive: &Drive, written: &[(u64, Vec<u8>)], when: &str) {
    for (at, data) in written {
        let read = world.read(drive, *at, data.len());
        assert!(read.as_ref().is_ok_and(|read| read == data), "{when}: {at}: {:?}", read.err());
    }
}

#[test]
fn any_page_of_a_checkpoint_may_be_damaged() {
    let (world, written) = checkpointed();
    let (segment, end) = metadata(&world);
    assert!(end > 8 * 4096, "too small a checkpoint: {end}");
    for page in 0..end / 4096 {
        for offset in [0, 30, 200, 4095] {
            let copy = world.copy();
            copy.flip(segment, page * 4096 + offset);
            let when = format!("page {page} + {offset}");
            let opened = copy.try_open(OpenOptions::default());
            let drive = opened.unwrap_or_else(|error| panic!("{when}: {}", error.chain()));
            assert_whole(&copy, &drive, &written, &when);
            copy.kill(drive);
        }
    }
}

#[test]
fn any_page_of_a_checkpoint_may_be_unreadable() {
    let (world, written) = checkpointed();
    let (segment, end) = metadata(&world);
    for page in 0..end / 4096 {
        let copy = world.copy();
        let range = page * 4096..(page + 1) * 4096;
        let bad = RefCell::new(Some((SegmentId(segment), range)));
        let medium = Rc::new(reading::BadSector { inner: copy.memory.clone(), bad });
        let opening = Drive::open(medium, copy.runtime.clock(), OpenOptions::default());
        let opened = copy.run(opening);
        let drive = opened.unwrap_or_else(|error| panic!("page {page}: {}", error.chain()));
        for (at, data) in &written {
            let mut read = vec![0; data.len()];
            copy.run(drive.read(*at, &mut read)).unwrap();
            assert!(read == *data, "page {page}: {at}");
        }
        copy.runtime.drop_tasks();
    }
}

/// Neighbours are in different groups of parity.
#[test]
fn a_run_of_two_pages_may_be_damaged() {
    let (world, written) = checkpointed();
    let (segment, end) = metadata(&world);
    for page in 1..end / 4096 - 1 {
        let copy = world.copy();
        copy.flip(segment, page * 4096 + 77);
        copy.flip(segment, (page + 1) * 4096 + 770);
        let Ok(drive) = copy.try_open(OpenOptions::default()) else {
            // The last page of one batch and the first of the next do not form a run within a
            // batch.
            let bytes = copy.peek(segment, page * 4096, 2 * BATCH_ALIGNMENT);
            let is_border =
                BatchHeader::decode_with(&bytes[BATCH_ALIGNMENT..], world.memory.cipher()).is_err();
            assert!(is_border, "page {page}");
            continue;
        };
        assert_whole(&copy, &drive, &written, &format!("pages {page} and the next"));
        copy.kill(drive);
    }
}

#[test]
fn a_scrub_writes_damaged_metadata_anew() {
    let (world, written) = checkpointed();
    let (segment, end) = metadata(&world);
    for page in 1..end / 4096 {
        let copy = world.copy();
        copy.flip(segment, page * 4096 + 200);
        let drive = copy.open();
        let report = copy.run(drive.scrub(0)).unwrap();
        assert_eq!(report.problems, [], "page {page}");
        let again = copy.run(drive.scrub(0)).unwrap();
        assert_eq!((again.repaired, again.problem_count), (0, 0), "page {page}: {report:?}");
        assert_whole(&copy, &drive, &written, &format!("page {page}"));
        copy.close(drive);
    }
}

/// The last batch of a checkpoint that no superblock refers to is cut like any torn tail, if parity
/// does not restore it. Any other batch is restored.
#[test]
fn a_torn_batch_of_metadata_is_completed_or_cut() {
    let (world, written) = checkpointed();
    let drive = world.open();
    let before = [0, 1].map(|slot| world.run(world.memory.read_superblock(slot)).unwrap());
    let first = drive.core().log().sealed_seq();
    for leaf in [0, 600] {
        world.write(&drive, leaf << 22, &written[0].1).unwrap();
        world.run(drive.checkpoint()).unwrap();
    }
    let last = drive.core().log().sealed_seq();
    let segment = drive.core().log().tail(Stream::Meta).unwrap().segment.0;
    world.kill(drive);
    for (slot, bytes) in (0..).zip(before) {
        world.run(world.memory.write_superblock(slot, bytes)).unwrap();
    }
    let batches = super::damage::batches(&world, segment);
    let batches: Vec<_> = batches.into_iter().filter(|batch| batch.seq > first).collect();
    assert!(batches.len() > 1 && batches.last().unwrap().seq == last, "{batches:?}");
    for batch in &batches {
        // The header of the batch, and the header of its first record.
        for offset in [20, 130] {
            let copy = world.copy();
            copy.flip(segment, batch.offset + offset);
            let drive = copy.open();
            let end = drive.core().superblock().watermark;
            assert_eq!(end, last, "batch {} + {offset}", batch.seq);
            copy.kill(drive);
        }
    }
    world.flip_for_good(segment, batches.last().unwrap().offset + 20);
    let drive = world.open();
    assert_eq!(drive.core().superblock().watermark.0, last.0 - 1);
    world.kill(drive);
}

/// A scan finds nothing after the header; the map refers to the records.
#[test]
fn a_damaged_header_keeps_no_segment_of_metadata_in_use() {
    let (world, written) = checkpointed();
    let (segment, _) = metadata(&world);
    let drive = world.open_without_collector();
    let data = payload::noise(&mut random(5), BLOCK_BYTES);
    // Leaf 601 remains in the first segment.
    for step in 0_u64.. {
        let tail = drive.core().log().tail(Stream::Meta).unwrap();
        if tail.segment.0 != segment {
            break;
        }
        world.write(&drive, ((step % 4) << 22) + 1020 * BLOCK, &data).unwrap();
        world.run(drive.checkpoint()).unwrap();
    }
    world.close(drive);
    let drive = world.open_without_collector();
    let (_, _, place) = drive.core().map().metadata_in(SegmentId(segment)).next().unwrap();
    let batches = super::damage::batches(&world, segment).into_iter();
    let batch = batches.rev().find(|batch| batch.offset <= place.offset).unwrap();
    world.flip(segment, batch.offset + 20);
    world.run(drive.empty_victim(SegmentId(segment))).unwrap();
    assert_eq!(drive.core().space().live_bytes_of(SegmentId(segment)), 0);
    assert_whole(&world, &drive, &written, "after the header");
    world.close(drive);
}
