//! Goal: no single bad page of a long batch of data has any consequence: the log is followed, reads
//! and garbage collection return the right data, and a scrub rewrites it elsewhere. Method: each
//! page of a segment of the host's data is changed, or made unreadable, in turn.

use super::*;
use crate::base::seed::random;

const SIZE: u64 = 4 << 20;

/// Returns a drive that was killed, with a long batch of compressible frames and one of
/// incompressible frames, both flushed; and the content of the disk. If it `vouches`, a short batch
/// follows, which records that they were durable.
fn killed(vouches: bool) -> (World, Vec<u8>) {
    let world = World::new(small(SIZE, 6));
    let drive = world.open();
    let mut random = random(1);
    let mut plain = vec![0; SIZE as usize];
    for (at, noise_bytes) in [(0, 2000), (2 << 20, BLOCK_BYTES)] {
        for block in 0..150 {
            let mut data = payload::noise(&mut random, BLOCK_BYTES);
            data[noise_bytes..].fill(7);
            let at = at + block * BLOCK_BYTES;
            world.write(&drive, at as u64, &data).unwrap();
            plain[at..][..BLOCK_BYTES].copy_from_slice(&data);
        }
        world.run(drive.flush()).unwrap();
    }
    if vouches {
        world.run(drive.write_durable(SIZE - BLOCK, &plain[..BLOCK_BYTES])).unwrap();
        plain.copy_within(..BLOCK_BYTES, (SIZE - BLOCK) as usize);
    }
    world.kill(drive);
    (world, plain)
}

/// Returns the end of the batches that have parity.
fn end(world: &World) -> u32 {
    let batches = super::damage::batches(world, 0);
    let long: Vec<_> = batches.iter().filter(|batch| batch.parity_pages > 0).collect();
    assert_eq!(long.len(), 2, "each flush sealed a long batch");
    let last = long.last().unwrap();
    last.offset + last.batch_bytes() as u32
}

fn assert_whole(drive: &Drive, world: &World, plain: &[u8], when: &str) {
    for (at, expected) in (0..).step_by(65536).zip(plain.chunks(65536)) {
        let read = world.read(drive, at, expected.len());
        assert!(read.as_ref().is_ok_and(|read| read == expected), "{when}: {at}: {:?}", read.err());
    }
}

/// Returns all offsets for the pages with the first headers, and one of them in turn for every
/// other page.
fn of_page<const N: usize>(page: u32, offsets: [u32; N]) -> Vec<u32> {
    if page < 8 { offsets.to_vec() } else { vec![offsets[page as usize % N]] }
}

#[test]
fn any_page_of_a_long_batch_may_be_damaged() {
    let (world, plain) = killed(true);
    for page in 0..end(&world) / 4096 {
        for offset in of_page(page, [0, 30, 2000, 4095]) {
            let copy = world.copy();
            copy.flip(0, page * 4096 + offset);
            let when = format!("page {page} + {offset}");
            let opened = copy.try_open(OpenOptions::default());
            let drive = opened.unwrap_or_else(|error| panic!("{when}: {}", error.chain()));
            assert_whole(&drive, &copy, &plain, &when);
            copy.kill(drive);
        }
    }
}

/// Immediately after a flush, nothing records yet that its batch was durable.
#[test]
fn any_page_of_the_last_batch_may_be_damaged() {
    let (world, plain) = killed(false);
    let last = super::damage::batches(&world, 0).pop().unwrap();
    let first = last.offset / 4096;
    for page in first..end(&world) / 4096 {
        for offset in of_page(page - first, [0, 40, 2000]) {
            let copy = world.copy();
            copy.flip(0, page * 4096 + offset);
            let when = format!("page {page} + {offset}");
            let drive = copy.open();
            assert_whole(&drive, &copy, &plain, &when);
            // The opening has rewritten the page, and declares the batch durable.
            copy.run(drive.layers().crash()).unwrap();
            copy.kill(drive);
            let drive = copy.open();
            assert_eq!(drive.info().operations.cut_batches, 0, "{when}");
            assert_whole(&drive, &copy, &plain, &when);
            copy.close(drive);
            assert_eq!(copy.check().problems, [], "{when}");
        }
    }
}

#[test]
fn any_page_of_a_long_batch_may_be_unreadable() {
    let (world, plain) = killed(true);
    for page in 0..end(&world) / 4096 {
        let copy = world.copy();
        let range = page * 4096..(page + 1) * 4096;
        let bad = RefCell::new(Some((SegmentId(0), range)));
        let medium = Rc::new(reading::BadSector { inner: copy.memory.clone(), bad });
        let opening = Drive::open(medium, copy.runtime.clock(), OpenOptions::default());
        let opened = copy.run(opening);
        let drive = opened.unwrap_or_else(|error| panic!("page {page}: {}", error.chain()));
        let mut read = vec![0; plain.len()];
        copy.run(drive.read(0, &mut read)).unwrap();
        assert!(read == plain, "page {page}");
        copy.runtime.drop_tasks();
    }
}

/// Reading an entire batch next to bad sectors can take seconds, and a host repeats failed reads.
#[test]
fn failed_restorations_are_not_retried_at_once() {
    let (world, plain) = killed(true);
    let drive = world.open();
    world.ruin_parity(0);
    world.flip(0, 10 * 4096 + 1000);
    let blocks = plain.len() as u64 / BLOCK;
    let attempt = |block| {
        let before = drive.layers().inner().counts().read_bytes;
        let read = world.read(&drive, block * BLOCK, BLOCK_BYTES);
        (read.is_err(), drive.layers().inner().counts().read_bytes - before)
    };
    let lost = (0..blocks).find(|&block| attempt(block).0).expect("a block is lost");
    let (is_lost, read_bytes) = attempt(lost);
    assert!(is_lost && read_bytes < 64 << 10, "{read_bytes} bytes were read again");
    world.run(world.runtime.sleep_ns(11_000_000_000));
    let (is_lost, read_bytes) = attempt(lost);
    assert!(is_lost && read_bytes > 64 << 10, "{read_bytes} bytes were read");
}

#[test]
fn a_scrub_writes_restored_frames_elsewhere() {
    let (world, plain) = killed(true);
    for page in 1..end(&world) / 4096 {
        let copy = world.copy();
        let drive = copy.reopen(copy.open_without_collector());
        copy.flip(0, page * 4096 + 1000);
        let report = copy.run(drive.scrub(0)).unwrap();
        assert_eq!(report.problems, [], "page {page}");
        assert!(report.repaired <= 2, "page {page}: {report:?}");
        // No live data has lost its parity.
        copy.flip(0, if page == 20 { 21 } else { 20 } * 4096 + 1000);
        assert_whole(&drive, &copy, &plain, &format!("page {page}"));
        copy.kill(drive);
    }
}

#[test]
fn garbage_collection_moves_restored_frames() {
    let (world, plain) = killed(true);
    for page in 1..end(&world) / 4096 {
        let copy = world.copy();
        let drive = copy.reopen(copy.open_without_collector());
        copy.flip(0, page * 4096 + [0, 1000][page as usize % 2]);
        copy.run(drive.empty_victim(SegmentId(0))).unwrap();
        assert_whole(&drive, &copy, &plain, &format!("page {page}"));
        assert_eq!(drive.core().space().live_bytes_of(SegmentId(0)), 0, "page {page}");
        assert_eq!(drive.info().operations.restored_reads, 0, "nothing damaged is left");
        copy.kill(drive);
    }
}

/// A frame with lost content stays listed, and does not prevent the repair of the rest of its
/// batch.
#[test]
fn a_scrub_repairs_a_batch_that_holds_a_lost_frame() {
    let (world, plain) = killed(true);
    let drive = world.reopen(world.open_without_collector());
    world.flip_for_good(0, 10 * 4096 + 1000);
    world.run(drive.empty_victim(SegmentId(0))).unwrap();
    let drive = world.reopen(drive);
    let lost = world.run(drive.scrub(0)).unwrap();
    assert_eq!((lost.problem_count, lost.repaired), (1, 0), "{:?}", lost.problems);
    let (lba, lba_count) = (lost.problems[0].lba.unwrap(), lost.problems[0].lba_count.unwrap());
    let Mapping::Frame { place, .. } = drive.core().map().peek(Lba(lba)).resident().0 else {
        panic!("LBA {lba} is no frame")
    };
    let batches = super::damage::batches(&world, place.segment.0).into_iter();
    let batch = batches.rev().find(|batch| batch.offset < place.offset).unwrap();
    assert!(batch.parity_pages > 0);
    world.flip(place.segment.0, batch.offset + 12 * 4096 + 1000);
    let again = world.run(drive.scrub(0)).unwrap();
    assert_eq!((again.problem_count, again.repaired), (1, 1), "{:?}", again.problems);
    world.flip(place.segment.0, batch.offset + 14 * 4096 + 1000);
    for (block, expected) in (0..).zip(plain.chunks(BLOCK_BYTES)) {
        let read = world.read(&drive, block * BLOCK, BLOCK_BYTES);
        let is_lost = block.checked_sub(lba).is_some_and(|from| from < lba_count);
        assert_eq!(is_lost, read.is_err(), "block {block}");
        assert!(is_lost || read.is_ok_and(|read| read == expected), "block {block}");
    }
}

/// A short batch has no parity: one page for each small flush would be expensive.
#[test]
fn a_damaged_short_batch_costs_its_own_blocks() {
    let world = World::new(small(SIZE, 6));
    let drive = world.open();
    let data = payload::noise(&mut random(1), 8 * BLOCK_BYTES);
    world.run(drive.write_durable(0, &data)).unwrap();
    world.run(drive.write_durable(64 * BLOCK, &data)).unwrap();
    let drive = world.reopen(drive);
    world.flip(0, 4096 + 3000);
    assert_eq!(kind(world.read(&drive, 0, 4096)), Some(ErrorKind::Corrupt));
    assert!(world.read(&drive, 64 * BLOCK, data.len()).unwrap() == data);
    assert_eq!(drive.info().operations.restored_reads, 0);
}
