//! Goal: batches and segments are filled to the last byte and not beyond. Method: batches of one
//! page each fill a segment; writes that do not compress meet every amount of free space near the
//! end of a batch.

use super::*;
use crate::base::seed::random;

const SIZE: u64 = 4 << 20;

/// Bytes of a batch that holds one fill.
const PAGE: u32 = 4096;

/// Writes fills in batches of their own until the host's segment holds `used` bytes.
fn fill_to(world: &World, drive: &Drive, used: u32) {
    let end = || drive.core().log().tail(Stream::Host).map_or(0, |tail| tail.used);
    while end() < used {
        world.run(drive.write_zeroes_durable(BLOCK, BLOCK, Allocation::Keep)).unwrap();
    }
    assert_eq!(end(), used);
    assert_eq!(drive.core().log().tail(Stream::Host).unwrap().segment, SegmentId(0));
}

/// The last batch of data ends where the bytes reserved for the closing batch begin; the closing
/// batch ends with the segment.
#[test]
fn batches_end_exactly_at_the_end_of_their_segment() {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    fill_to(&world, &drive, SEGMENT_BYTES - log::closing_bytes(Stream::Host) - PAGE);
    let room = PAGE as usize - crate::format::BATCH_HEADER_BYTES;
    let fit = |bytes| drive.core().log().fit(Stream::Host, bytes, u32::MAX);
    assert_eq!([fit(room), fit(room + 1)], [log::Fit::NewBatch, log::Fit::NewSegment]);
    fill_to(&world, &drive, SEGMENT_BYTES - log::closing_bytes(Stream::Host));
    world.kill(drive);
    assert_eq!(world.check().problems, []);
    let drive = world.open();
    let noise = payload::noise(&mut random(1), 64 << 10);
    world.run(drive.write_durable(0, &noise)).unwrap();
    let last = damage::batches(&world, 0).pop().unwrap();
    assert_eq!((last.offset, last.batch_bytes()), (SEGMENT_BYTES - PAGE, u64::from(PAGE)));
    assert_eq!(drive.core().log().tail(Stream::Host).unwrap().segment, SegmentId(1));
    let before = state(&drive);
    world.kill(drive);
    assert_eq!(world.check().problems, []);
    let drive = world.open();
    assert_same_state(before, &drive);
    assert!(world.read(&drive, 0, noise.len()).unwrap() == noise);
}

/// Whatever space is left in an open batch, an incompressible write gets as much space as it needs,
/// including a record header for every block.
#[test]
fn the_worst_case_of_a_write_fits_the_room_it_is_given() {
    let world = World::new(Spec { frame_blocks: 1, ..small(SIZE, 24) });
    let drive = world.open();
    let noise = payload::noise(&mut random(1), 1 << 20);
    let mut met = 0;
    for blocks in (0..20).chain(12..18).chain(12..18) {
        world.run(drive.flush()).unwrap();
        for _ in 0..blocks {
            world.write(&drive, 0, &noise[..BLOCK_BYTES]).unwrap();
        }
        let room = |bytes| drive.core().log().fit(Stream::Host, bytes, u32::MAX) == log::Fit::Open;
        // The space is sufficient for the blocks, but not for their headers.
        met += u32::from(
            room(noise.len())
                && !room(packing::worst_case_bytes(256, drive.medium.cipher().seal_bytes())),
        );
        world.write(&drive, 0, &noise).unwrap();
    }
    assert!(met > 0, "too tame a test");
    assert!(world.read(&drive, 0, noise.len()).unwrap() == noise);
    assert_accounting(&drive);
}

/// A server's receive loop relies on this: `try_write` never waits, and a refusal changes nothing.
#[test]
fn a_write_without_waits_completes_immediately() {
    let world = World::new(small(8 << 20, 4));
    let drive = world.open();
    let data = payload::noise(&mut random(5), 2 * BLOCK_BYTES);
    assert!(matches!(drive.try_write(BLOCK, &data), Some(Ok(()))));
    assert!(world.read(&drive, BLOCK, data.len()).unwrap() == data);
    let beyond = drive.try_write(8 << 20, &data).map(kind);
    assert_eq!(beyond, Some(Some(ErrorKind::InvalidInput)));
    // Parts of blocks are merged with the stored data, and long writes are split.
    assert!(drive.try_write(BLOCK + 1, &data).is_none());
    assert!(drive.try_write(BLOCK, &data[1..]).is_none());
    assert!(drive.try_write(0, &vec![1; ATOMIC_WRITE_BYTES + BLOCK_BYTES]).is_none());
    let drive = world.reopen(drive);
    // The leaf of the map is on the medium.
    assert!(drive.try_write(0, &data).is_none());
    assert_eq!(drive.info().operations.writes, 0);
    assert!(world.read(&drive, BLOCK, data.len()).unwrap() == data);
    assert!(matches!(drive.try_write(0, &data), Some(Ok(()))));
    assert!(world.read(&drive, 0, data.len()).unwrap() == data);
    world.close(drive);
}
