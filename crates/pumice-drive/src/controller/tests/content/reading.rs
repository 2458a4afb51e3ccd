//! Goal: small sequential reads of one frame share a media read, and a bad sector of the medium
//! fails only the blocks that it contains. Method: counted reads; a medium with one sector that
//! cannot be read.

use std::ops::Range;

use super::*;
use crate::base::seed::random;

const SIZE: u64 = 4 << 20;

#[test]
fn a_stored_frame_that_is_read_in_order_is_read_from_the_medium_twice() {
    for codec in [Codec::None, Codec::Lz4] {
        let world = World::new(Spec { codec, ..small(SIZE, 4) });
        let drive = world.open();
        let noise = payload::noise(&mut random(1), 32 << 10);
        world.write(&drive, 0, &noise).unwrap();
        // No data is left in a batch buffer.
        let drive = world.reopen(drive);
        world.run(drive.load_range(Lba(0), 8)).unwrap();
        let before = drive.layers().inner().counts();
        for block in 0..8 {
            let at = block * BLOCK_BYTES;
            let read = world.read(&drive, at as u64, BLOCK_BYTES).unwrap();
            assert!(read == noise[at..at + BLOCK_BYTES]);
        }
        let used = drive.layers().inner().counts() - before;
        // The first read reads its block only; the second one continues it, and reads the frame.
        assert_eq!((used.reads, drive.info().operations.frame_cache_hits), (2, 6), "{codec}");
    }
}

/// Frames of one block are not stored among the decoded frames.
#[test]
fn a_block_of_a_short_read_is_read_from_the_medium_once() {
    let world = World::new(Spec { frame_blocks: 1, ..small(SIZE, 4) });
    let drive = world.open();
    let noise = payload::noise(&mut random(1), 256 << 10);
    world.write(&drive, 0, &noise).unwrap();
    let drive = world.reopen(drive);
    world.run(drive.load_range(Lba(0), 64)).unwrap();
    let reads = || drive.layers().inner().counts().reads;
    let check = |offset: usize, len: usize| {
        let before = reads();
        let read = world.read(&drive, offset as u64, len).unwrap();
        assert!(read == noise[offset..offset + len], "{len} bytes at {offset}");
        reads() - before
    };
    // Part of a block, the block, its neighbours, parts of both.
    assert_eq!((check(9000, 100), check(8192, 4096), check(9999, 1000)), (1, 0, 0));
    assert_eq!((check(4096, 16 << 10), check(8000, 9000), check(4096, 16 << 10)), (1, 0, 0));
    // A longer read neither consults nor fills the cache of short reads.
    assert_eq!((check(0, 128 << 10), check(64 << 10, 4096), check(0, 128 << 10)), (1, 1, 1));
    let used = drive.info().operations;
    assert_eq!((used.read_cache_hits, used.read_cache_misses), (1 + 1 + 1 + 4 + 4, 1 + 3 + 1));
    world.kill(drive);
}

/// Guards against a block that reads as the earlier content at its offset, from before the segment
/// was reused: records of the same length begin at the same offsets in each use.
#[test]
fn a_block_never_comes_from_an_earlier_use_of_its_segment() {
    let world = World::new(Spec { frame_blocks: 1, ..small(SIZE, 4) });
    let drive = world.open();
    let mut random = random(2);
    for round in 0..20 {
        let noise = payload::noise(&mut random, SIZE as usize);
        world.write(&drive, 0, &noise).unwrap();
        world.run(drive.flush()).unwrap();
        for at in (0..noise.len()).step_by(BLOCK_BYTES) {
            let read = world.read(&drive, at as u64, BLOCK_BYTES).unwrap();
            assert!(read == noise[at..at + BLOCK_BYTES], "block at {at} in round {round}");
        }
    }
    let generation = drive.core().space().generation(SegmentId(0));
    assert!(generation > 1, "too tame a test: generation {generation}");
    world.close(drive);
}

/// Returns a reopened drive of chunks with `data`, where only the map is cached.
fn reopened_blocks(world: &World, data: &[u8]) -> Rc<Drive> {
    let drive = world.open();
    world.write(&drive, 0, data).unwrap();
    let drive = world.reopen(drive);
    world.run(drive.load_range(Lba(0), (data.len() / BLOCK_BYTES) as u64)).unwrap();
    drive
}

#[test]
fn a_block_is_read_without_the_rest_of_its_frame() {
    let world = World::new(Spec { frame_form: FrameForm::Chunks, ..small(SIZE, 4) });
    let data = payload::text(&mut random(3), 256 << 10);
    let drive = reopened_blocks(&world, &data);
    let read = |block: usize| {
        let before = drive.info().operations.media_read_bytes;
        let at = block * BLOCK_BYTES;
        let read = world.read(&drive, at as u64, BLOCK_BYTES).unwrap();
        assert!(read == data[at..at + BLOCK_BYTES], "block {block}");
        drive.info().operations.media_read_bytes - before
    };
    for block in [2, 5, 7, 0, 4] {
        let bytes = read(block);
        assert!((1..=8192).contains(&bytes), "{bytes} bytes for one block");
    }
    world.kill(drive);
}

/// The map has the frame's table, with which each block could be read alone.
#[test]
fn a_sequential_reader_does_not_read_a_frame_once_a_block() {
    let world = World::new(Spec { frame_form: FrameForm::Chunks, ..small(SIZE, 4) });
    let data = payload::text(&mut random(3), 256 << 10);
    let options =
        OpenOptions { read_cache_bytes: 16 << 10, read_ahead_bytes: 0, ..OpenOptions::default() };
    world.close(reopened_blocks(&world, &data));
    let drive = world.try_open(options).unwrap();
    assert!(world.read(&drive, 0, data.len()).unwrap() == data);
    let at = 8 * BLOCK;
    let before = drive.layers().inner().counts().reads;
    let mut out = [0; 1536];
    for part in 0..8 * BLOCK_BYTES / out.len() {
        let at = at as usize + part * out.len();
        world.run(drive.read(at as u64, &mut out)).unwrap();
        assert!(out[..] == data[at..at + out.len()]);
    }
    let reads = drive.layers().inner().counts().reads - before;
    assert!(reads <= 2, "{reads} reads of a frame");
    world.kill(drive);
}

#[test]
fn a_damaged_block_is_restored_or_fails() {
    for is_restored in [true, false] {
        let world = World::new(Spec { frame_form: FrameForm::Chunks, ..small(SIZE, 4) });
        // A batch of 64 KiB or more has parity.
        let len = if is_restored { 1 << 20 } else { 32 << 10 };
        let data = payload::text(&mut random(4), len);
        let drive = reopened_blocks(&world, &data);
        let Mapping::Frame { place, .. } = drive.core().map().peek(Lba(0)).resident().0 else {
            panic!("the first block is no frame")
        };
        let read = |block: usize| world.read(&drive, (block * BLOCK_BYTES) as u64, BLOCK_BYTES);
        assert!(read(0).unwrap() == data[..BLOCK_BYTES]);
        drive.cache.release();
        world.flip(place.segment.0, place.offset + place.record_bytes - 3);
        assert!(
            read(2).unwrap() == data[2 * BLOCK_BYTES..3 * BLOCK_BYTES],
            "not the damaged block"
        );
        let last = read(7);
        if is_restored {
            assert!(last.unwrap() == data[7 * BLOCK_BYTES..8 * BLOCK_BYTES]);
            assert_eq!(drive.info().operations.restored_reads, 1);
        } else {
            assert_eq!(last.unwrap_err().kind(), ErrorKind::Corrupt);
        }
        world.kill(drive);
    }
}

/// Memory in which a range of one segment cannot be read.
pub(crate) struct BadSector {
    pub(crate) inner: MemMedium,
    pub(crate) bad: RefCell<Option<(SegmentId, Range<u32>)>>,
}

impl crate::media::layer::Layer for BadSector {
    type Inner = MemMedium;

    fn inner(&self) -> &MemMedium {
        &self.inner
    }

    async fn on_read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        let end = offset + buffer.len() as u32;
        let is_hit =
            self.bad.borrow().as_ref().is_some_and(|(bad, range)| {
                *bad == segment && range.start < end && offset < range.end
            });
        if is_hit {
            return (buffer, Err(Error::new(ErrorKind::Medium, "a bad sector")));
        }
        self.inner.read(segment, offset, buffer).await
    }
}

/// Three frames of one block each, the middle one dead. A read of all three blocks fetches all
/// three frames with one media read.
#[test]
fn a_bad_sector_fails_its_own_blocks_and_not_their_neighbours() {
    let world = World::new(Spec { frame_blocks: 1, ..small(SIZE, 4) });
    let drive = world.open();
    let mut data = payload::noise(&mut random(1), 3 * BLOCK_BYTES);
    world.write(&drive, 0, &data).unwrap();
    world.run(drive.trim(BLOCK, BLOCK)).unwrap();
    data[BLOCK_BYTES..2 * BLOCK_BYTES].fill(0);
    world.close(drive);
    let medium = Rc::new(BadSector { inner: world.memory.clone(), bad: RefCell::default() });
    let options = OpenOptions { read_only: true, read_cache_bytes: 0, ..OpenOptions::default() };
    let drive = world.run(Drive::open(medium.clone(), world.runtime.clock(), options)).unwrap();
    world.run(drive.load_range(Lba(0), 3)).unwrap();
    let place = |lba| match drive.core().map().peek(Lba(lba)).resident().0 {
        Mapping::Frame { place, .. } => place,
        other => panic!("LBA {lba} is {other:?}"),
    };
    let (first, last) = (place(0), place(2));
    assert!(first.segment == last.segment && last.offset - first.offset < 16 << 10);
    let read = |lba: u64, blocks: usize| {
        let mut out = vec![0xa5; blocks * BLOCK_BYTES];
        world.run(drive.read(lba * BLOCK, &mut out)).map(|()| out)
    };
    let before = drive.info().operations.media_read_bytes;
    assert!(read(0, 3).unwrap() == data);
    let read_bytes = drive.info().operations.media_read_bytes - before;
    assert!(read_bytes > 3 * BLOCK, "not read together: {read_bytes} bytes");

    let sector = |at: u32| Some((first.segment, at / 512 * 512..at / 512 * 512 + 512));
    medium.bad.replace(sector(first.offset + first.record_bytes + 2048));
    assert!(read(0, 3).unwrap() == data, "only the dead frame is unreadable");
    for (bad, lba) in [(first, 0), (last, 2)] {
        medium.bad.replace(sector(bad.offset + 2048));
        let error = read(0, 3).unwrap_err();
        assert_eq!((error.kind(), error.lba()), (ErrorKind::Medium, Some(Lba(lba))));
        let neighbour = 2 - lba as usize;
        let at = neighbour * BLOCK_BYTES;
        assert!(read(neighbour as u64, 1).unwrap() == data[at..at + BLOCK_BYTES]);
    }
}
