//! Goal: frames of chunks are never mistaken for other frames, retain their readable
//! blocks, and leave the host the space that it was promised. Method: drives with such frames,
//! whose map, medium or memory is changed underneath them.

use rand::RngExt;

use super::*;
use crate::base::SeqNo;
use crate::base::seed::random;
use crate::codec::ChunkTable;
use crate::controller::rebuild::Identity;
use crate::format::Source;

const SIZE: u64 = 4 << 20;

fn chunked(size_bytes: u64, segments: u64) -> Spec {
    Spec { frame_form: FrameForm::Chunks, ..small(size_bytes, segments) }
}

fn frame_of(drive: &Drive, lba: u64) -> FramePlace {
    match drive.core().map().peek(Lba(lba)).resident().0 {
        Mapping::Frame { place, .. } => place,
        other => panic!("LBA {lba} is {other:?}"),
    }
}

/// Reads a block and compares it with `data`. Returns the number of bytes read from the medium.
fn read_block(world: &World, drive: &Drive, data: &[u8], block: usize) -> u64 {
    let before = drive.info().operations.media_read_bytes;
    let at = block * BLOCK_BYTES;
    let read = world.read(drive, at as u64, BLOCK_BYTES).unwrap();
    assert!(read == data[at..at + BLOCK_BYTES], "block {block}");
    drive.info().operations.media_read_bytes - before
}

/// Guards against a block that is served from memory for an LBA other than its record's: nothing is
/// read from the medium, so no header is compared.
#[test]
fn cached_parts_of_a_frame_serve_no_other_blocks() {
    let world = World::new(chunked(SIZE, 4));
    let drive = world.open();
    let data = payload::text(&mut random(1), 96 << 10);
    world.write(&drive, 0, &data).unwrap();
    let drive = world.reopen(drive);
    world.run(drive.load_range(Lba(0), 24)).unwrap();
    let place = frame_of(&drive, 0);
    let refuse = |what: &str, block: u64| {
        let read = world.read(&drive, (16 + block) * BLOCK, BLOCK_BYTES);
        assert_eq!(kind(read), Some(ErrorKind::Corrupt), "{what}");
    };
    // The read cache has block 0; the map has the table of the others.
    assert!(read_block(&world, &drive, &data, 0) > 0);
    assert_eq!(read_block(&world, &drive, &data, 0), 0);
    drive.with_core(|core| core.map_mut().map_frame(Lba(16), place, |_| ()));
    refuse("a cached block", 0);
    refuse("a table", 5);
    // A sequential reader causes the frame to be decoded.
    world.read(&drive, BLOCK, BLOCK_BYTES).unwrap();
    world.read(&drive, 2 * BLOCK, BLOCK_BYTES).unwrap();
    refuse("a decoded frame", 7);
    for block in 0..8 {
        read_block(&world, &drive, &data, block);
    }
    world.kill(drive);
}

/// Guards against the loss of readable blocks when their frame moves.
#[test]
fn garbage_collection_keeps_the_blocks_that_can_still_be_read() {
    for has_dead in [false, true] {
        let world = World::new(chunked(SIZE, 6));
        let drive = world.open_without_collector();
        // A batch without parity.
        let data = payload::text(&mut random(2), 8 * BLOCK_BYTES);
        world.run(drive.write_durable(0, &data)).unwrap();
        let drive = world.reopen(drive);
        world.run(drive.load_range(Lba(0), 8)).unwrap();
        let place = frame_of(&drive, 0);
        if has_dead {
            world.run(drive.trim_durable(4 * BLOCK, BLOCK)).unwrap();
        }
        let lost = drive.core().map().table(Lba(0), 0, &place).unwrap().chunk_of(7);
        assert!(lost.start > 4, "{lost:?}");
        world.flip(place.segment.0, place.offset + place.record_bytes - 3);
        let is_whole = |drive: &Drive| {
            for block in (0..lost.start).filter(|block| *block != 4) {
                read_block(&world, drive, &data, block);
            }
            let read = world.read(drive, 4 * BLOCK, BLOCK_BYTES).unwrap();
            let expected = if has_dead { &[0; 4096][..] } else { &data[4 * 4096..5 * 4096] };
            assert!(read == expected, "block 4");
            for block in lost.clone() {
                let read = world.read(drive, block as u64 * BLOCK, BLOCK_BYTES);
                assert_eq!(kind(read), Some(ErrorKind::Corrupt));
            }
        };
        is_whole(&drive);
        world.run(drive.empty_victim(place.segment)).unwrap();
        assert_eq!(drive.core().space().live_bytes_of(place.segment), 0);
        is_whole(&drive);
        assert_accounting(&drive);
        let drive = world.reopen(drive);
        is_whole(&drive);
        world.kill(drive);
    }
}

/// The map has the table of each frame from its write on. Guards against a first read that fetches
/// the entire frame.
#[test]
fn the_first_read_of_a_block_reads_no_more_than_it() {
    let size = 16 << 20;
    let world = World::new(chunked(size, 8));
    let drive = world.open();
    let data = payload::text(&mut random(3), size as usize);
    for (number, part) in data.chunks(1 << 20).enumerate() {
        world.write(&drive, (number << 20) as u64, part).unwrap();
    }
    // The tables must also be found after recovery from the checkpoint, and from the log alone.
    world.close(drive);
    let killed = world.copy();
    let drive = killed.open();
    for (number, part) in data.chunks(1 << 20).enumerate() {
        killed.write(&drive, (number << 20) as u64, part).unwrap();
    }
    killed.run(drive.flush()).unwrap();
    killed.kill(drive);
    for world in [world, killed] {
        let options = OpenOptions { read_cache_bytes: 0, ..OpenOptions::default() };
        let drive = world.try_open(options).unwrap();
        world.run(drive.load_range(Lba(0), size / BLOCK)).unwrap();
        // A block of each frame, none twice.
        for frame in (0..size as usize / BLOCK_BYTES / 8).map(|number| number * 77 % 512) {
            let bytes = read_block(&world, &drive, &data, frame * 8 + frame * 3 % 8);
            assert!((1..=8192).contains(&bytes), "{bytes} bytes for one block");
        }
        world.kill(drive);
    }
}

/// The drive was written by a program without support for tables. Guards against such drives
/// staying slow.
#[test]
fn a_frame_without_a_table_in_the_map_is_read_whole_once() {
    let world = World::new(chunked(SIZE, 4));
    let drive = world.open();
    let data = payload::text(&mut random(9), 96 << 10);
    world.write(&drive, 0, &data).unwrap();
    let drive = world.reopen(drive);
    world.run(drive.load_range(Lba(0), 24)).unwrap();
    let place = frame_of(&drive, 8);
    drive.with_core(|core| core.map_mut().set_table(Lba(8), place, None));
    let before = drive.core().map().dirty_bytes();
    assert!(read_block(&world, &drive, &data, 9) > 8192, "too tame a test");
    assert!(read_block(&world, &drive, &data, 13) <= 8192);
    assert_eq!(drive.core().map().dirty_bytes(), before, "a read has nothing written");
    world.kill(drive);
}

#[test]
fn a_short_read_across_two_frames_reads_neither_of_them_whole() {
    let world = World::new(chunked(SIZE, 4));
    let drive = world.open();
    let data = payload::text(&mut random(4), 256 << 10);
    world.write(&drive, 0, &data).unwrap();
    let drive = world.reopen(drive);
    world.run(drive.load_range(Lba(0), 64)).unwrap();
    let across = |at: usize| {
        let at = at * BLOCK_BYTES;
        let before = drive.info().operations.media_read_bytes;
        let read = world.read(&drive, at as u64, 2 * BLOCK_BYTES).unwrap();
        assert!(read == data[at..at + 2 * BLOCK_BYTES]);
        drive.info().operations.media_read_bytes - before
    };
    for at in [7, 23] {
        let bytes = across(at);
        assert!((4096..=16 << 10).contains(&bytes), "{bytes} bytes for two blocks");
    }
    world.kill(drive);
}

/// Each frame is read once, however small the reads are.
#[test]
fn a_reader_in_order_reads_each_frame_once() {
    let world = World::new(chunked(SIZE, 4));
    let drive = world.open();
    let data = payload::text(&mut random(5), 1 << 20);
    world.write(&drive, 0, &data).unwrap();
    let drive = world.reopen(drive);
    world.run(drive.load_range(Lba(0), 256)).unwrap();
    let before = drive.layers().inner().counts().reads;
    for at in (0..data.len()).step_by(BLOCK_BYTES) {
        let read = world.read(&drive, at as u64, BLOCK_BYTES).unwrap();
        assert!(read == data[at..at + BLOCK_BYTES]);
    }
    let reads = drive.layers().inner().counts().reads - before;
    // The first read is not yet recognized as sequential.
    assert!(reads <= 256 / 8 + 1, "{reads} reads for 32 frames");
    world.kill(drive);
}

/// Returns a block, and its LZ4 encoding of `len` bytes or a few more.
fn hardly_shorter(len: usize) -> (Vec<u8>, Vec<u8>) {
    let block = |noise: usize| {
        [payload::noise(&mut random(8), noise), vec![0; BLOCK_BYTES - noise]].concat()
    };
    let encode = |noise: usize| (block(noise), lz4_flex::block::compress(&block(noise)));
    let found = (1..BLOCK_BYTES).map(encode).find(|(_, encoded)| encoded.len() >= len);
    found.unwrap()
}

/// A frame that this program would not have written: the entries of two of its blocks are longer
/// than the saving of their encoding. Guards against a part of a frame that finds no space on a
/// full drive.
#[test]
fn cut_blocks_take_no_more_space_than_alone() {
    let world = World::new(chunked(SIZE, 6));
    let drive = world.open_without_collector();
    let noise = payload::noise(&mut random(7), BLOCK_BYTES);
    let ((one, one_encoded), (last, last_encoded)) = (hardly_shorter(1000), hardly_shorter(4090));
    assert!((4090..4096).contains(&last_encoded.len()));
    let data = [&one[..], &noise, &last].concat();
    world.write(&drive, 0, &data).unwrap();
    let place = frame_of(&drive, 0);
    let stored = [(1u16, &one_encoded), (0, &noise), (1, &last_encoded)];
    let entries = stored.iter().flat_map(|(encoding, bytes)| {
        let word = encoding << 13 | bytes.len() as u16;
        [&word.to_le_bytes()[..], &crate::base::checksum::crc32(bytes).to_le_bytes()].concat()
    });
    let payload: Vec<u8> =
        entries.chain(stored.iter().flat_map(|(_, bytes)| bytes.to_vec())).collect();
    let FrameAddress { segment, offset } = place.address();
    let moved = packing::MovedFrame {
        generation: 0,
        lba: Lba(0),
        blocks: 3,
        encoding: crate::codec::Encoding::Chunks as u8,
        payload: &payload,
        payload_checksum: crate::base::checksum::crc64(&payload),
        sources: &[Source { birth: SeqNo(1), blocks: 3, segment, offset }],
    };
    let pieces: Vec<_> = drive.core().map().live_pieces(Lba(0), place).collect();
    let moved = core::Move {
        lba: Lba(0),
        from: place,
        pieces: &pieces,
        frames: &[moved],
        room_bytes: moved.record_bytes(),
        reason: core::MoveReason::Empty,
    };
    let attempt = drive.with_core(|core| core.move_frame(&moved)).unwrap();
    assert!(attempt == core::Attempt::Done);
    let drive = world.reopen(drive);
    world.run(drive.load_range(Lba(0), 3)).unwrap();
    let moved = frame_of(&drive, 0);
    assert_ne!(moved, place);
    assert!(world.read(&drive, 0, data.len()).unwrap() == data);
    world.run(drive.trim_durable(0, BLOCK)).unwrap();
    world.run(drive.empty_victim(moved.segment)).unwrap();
    assert_ne!(frame_of(&drive, 1), moved);
    let (one, last) = (frame_of(&drive, 1), frame_of(&drive, 2));
    let bytes = one.record_bytes + if last == one { 0 } else { last.record_bytes };
    assert!(bytes as usize <= packing::moved_bytes_max(2, 0), "{bytes} bytes for two blocks");
    assert!(world.read(&drive, BLOCK, 2 * BLOCK_BYTES).unwrap() == data[BLOCK_BYTES..]);
    assert_accounting(&drive);
    world.kill(drive);
    assert_eq!(world.check().problems, []);
}

/// Frames are cut repeatedly, and no write is refused. Guards against cut frames that use more
/// space than their blocks do alone.
#[test]
fn a_full_drive_of_chunks_takes_overwrites() {
    let size = 16u64 << 20;
    let world = World::new(Spec { capacity_bytes: None, ..chunked(size, 0) });
    let mut drive = world.open();
    let mut random = random(6);
    let mut plain = vec![0; size as usize];
    for life in 0..3 {
        for _ in 0..4 * size / BLOCK / 3 {
            let count = random.random_range(1..6) * BLOCK_BYTES;
            let offset =
                random.random_range(0..(size as usize - count) / BLOCK_BYTES) * BLOCK_BYTES;
            // Compressible and incompressible blocks, such that the frame saves a seventh.
            let mut data = payload::noise(&mut random, count);
            if random.random_range(0..4) == 0 {
                data[..count / BLOCK_BYTES * 600].fill(0);
            }
            world.write(&drive, offset as u64, &data).unwrap();
            plain[offset..offset + count].copy_from_slice(&data);
        }
        assert!(world.read(&drive, 0, plain.len()).unwrap() == plain, "life {life}");
        assert_accounting(&drive);
        drive = world.reopen(drive);
        assert!(world.read(&drive, 0, plain.len()).unwrap() == plain, "life {life}, reopened");
    }
    let moved_bytes = drive.info().moved_bytes;
    assert!(moved_bytes > size / 2, "too tame a test: {moved_bytes} bytes moved");
    for _ in 0..200 {
        let block = random.random_range(0..size / BLOCK);
        world.read(&drive, block * BLOCK, BLOCK_BYTES).unwrap();
    }
    assert!(drive.core().map().table_count() > 0, "no frame has chunks");
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

#[test]
fn frames_of_chunks_have_at_most_eight() {
    for (frame_blocks, has_chunks) in [(1, true), (8, true), (16, false), (64, false)] {
        let world = World::new(Spec { frame_blocks, ..chunked(SIZE, 4) });
        let drive = world.open();
        assert_eq!(drive.info().has_chunks, has_chunks, "{frame_blocks}");
        world.close(drive);
    }
}

/// Returns a drive of 1 MiB of text, and the text.
fn written(segments: u64, seed: u64) -> (World, Rc<Drive>, Vec<u8>) {
    let world = World::new(chunked(SIZE, segments));
    let drive = world.open();
    let data = payload::text(&mut random(seed), 1 << 20);
    world.write(&drive, 0, &data).unwrap();
    world.run(drive.flush()).unwrap();
    (world, drive, data)
}

/// Checks that a block of each frame is read alone.
fn assert_read_alone(world: &World, drive: &Drive, data: &[u8]) {
    world.run(drive.load_range(Lba(0), (data.len() / BLOCK_BYTES) as u64)).unwrap();
    let frames = data.len() / BLOCK_BYTES / 8;
    // No two reads follow each other.
    for frame in (0..frames).map(|number| number * 5 % frames) {
        let bytes = read_block(world, drive, data, frame * 8 + frame * 3 % 8);
        assert!(bytes <= 8192, "{bytes} bytes for a block of frame {frame}");
    }
}

#[test]
fn a_resized_drive_of_chunks_reads_them_alone() {
    let (world, drive, data) = written(12, 10);
    let segments = drive.core().space().segment_count();
    let capacity = u64::from(segments - 4) * u64::from(SEGMENT_BYTES);
    let wanted = Resize { size_bytes: None, capacity_bytes: Some(capacity) };
    world.run(drive.resize(wanted)).unwrap();
    assert_read_alone(&world, &drive, &data);
    let drive = world.reopen(drive);
    assert_read_alone(&world, &drive, &data);
    assert_accounting(&drive);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

#[test]
fn moved_frames_of_chunks_are_read_alone() {
    let (world, drive, data) = written(8, 11);
    let victim = frame_of(&drive, 0);
    world.run(drive.empty_victim(victim.segment)).unwrap();
    assert_ne!(frame_of(&drive, 0).segment, victim.segment);
    assert_read_alone(&world, &drive, &data);
    // The tables must also be found after recovery from the log.
    world.run(drive.flush_log()).unwrap();
    world.kill(drive);
    let drive = world.open();
    assert_read_alone(&world, &drive, &data);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Guards against the table of a frame that no longer exists.
#[test]
fn recompressed_frames_of_chunks_are_solid() {
    let (world, drive, data) = written(8, 12);
    world.close(drive);
    let recompress = Some(Codec::Zstd { level: 3 });
    let drive = world.try_open(OpenOptions { recompress, ..OpenOptions::default() }).unwrap();
    world.run(drive.load_range(Lba(0), 256)).unwrap();
    assert!(drive.core().map().table_count() > 20, "too tame a test");
    world.run(drive.empty_victim(frame_of(&drive, 0).segment)).unwrap();
    assert_eq!(drive.core().map().table_count(), 0);
    assert!(world.read(&drive, 0, data.len()).unwrap() == data);
    let drive = world.reopen(drive);
    (0..256).for_each(|block| _ = read_block(&world, &drive, &data, block * 77 % 256));
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

#[test]
fn a_rebuilt_drive_of_chunks_is_one_again() {
    let (world, drive, data) = written(8, 13);
    world.close(drive);
    let identity = world.run(Identity::of_superblocks(&world.memory)).unwrap().unwrap();
    let uuid = uuid::Uuid::from_u128(7);
    for codec in [None, Some(Codec::None)] {
        assert_eq!(identity.spec(uuid, codec).frame_form, FrameForm::Chunks);
    }
    let rebuilt = rebuilding::rebuild(&world);
    assert!(rebuilt.disk[..data.len()] == data);
    assert_eq!(rebuilt.problems, 0);
}

/// Content found through the table of another payload does not match the checksums of its blocks.
#[test]
fn a_wrong_table_in_the_map_changes_no_content_and_is_reported() {
    let (world, drive, data) = written(8, 17);
    world.close(drive);
    assert_eq!(world.check().problems, []);
    let drive = world.open();
    // Makes the leaf dirty.
    world.write(&drive, 2 << 20, &data[..BLOCK_BYTES]).unwrap();
    let place = frame_of(&drive, 8);
    let table = drive.core().map().table(Lba(8), 0, &place).unwrap();
    let mut stored = *table.stored().first_chunk().unwrap();
    // The checksum of block 3.
    stored[3 * 6 + 2] ^= 1;
    let wrong = ChunkTable::from_stored(&stored, 8).unwrap();
    drive.with_core(|core| core.map_mut().set_table(Lba(8), place, Some(wrong)));
    let drive = world.reopen(drive);
    for block in [13, 11, 9, 14, 11] {
        read_block(&world, &drive, &data, block);
    }
    world.kill(drive);
    let problems = world.check().problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(format!("{problems:?}").contains("the table of another frame"), "{problems:?}");
}

/// Leaves of more than 16 KiB: frames with five live blocks each, and a run between every two of
/// them. Guards against limits that hold only for leaves without tables.
#[test]
fn long_leaves_are_written_and_read() {
    let (world, drive, mut data) = written(8, 14);
    let more = payload::text(&mut random(15), 3 << 20);
    world.write(&drive, 1 << 20, &more).unwrap();
    data.extend(more);
    let mut random = random(16);
    for frame in 0..data.len() / BLOCK_BYTES / 8 {
        for block in [1, 3, 5].map(|block| (frame * 8 + block) * BLOCK_BYTES) {
            let one = payload::text(&mut random, BLOCK_BYTES);
            world.write(&drive, block as u64, &one).unwrap();
            data[block..block + BLOCK_BYTES].copy_from_slice(&one);
        }
    }
    assert_eq!(drive.core().map().table_count(), 128);
    let drive = world.reopen(drive);
    assert!(world.read(&drive, 0, data.len()).unwrap() == data);
    assert_eq!(drive.core().map().table_count(), 128);
    assert_accounting(&drive);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}
