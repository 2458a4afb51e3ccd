//! Goal: a thin drive refuses writes before acknowledging them, loses nothing, and accepts writes
//! again after a trim; a full drive never refuses; reads, flushes and trims always continue; the
//! duration of a trim does not grow with its length. Method: incompressible writes until the drive
//! refuses them, or for many times its size, compared with an array.

use rand::RngExt;

use super::*;
use crate::base::seed::random;
use crate::controller::map::LEAF_BLOCKS;

const SIZE: u64 = 4 << 20;

/// Writes noise of `len` bytes at random offsets until the drive refuses; `disk` records the
/// content.
fn fill(world: &World, drive: &Drive, len: usize, plain: &mut [u8], seed: u64) {
    let mut random = random(seed);
    for _ in 0..100_000 {
        let data = payload::noise(&mut random, len);
        let offset = random.random_range(0..=plain.len() - len) / BLOCK_BYTES * BLOCK_BYTES;
        match world.write(drive, offset as u64, &data) {
            Ok(()) => plain[offset..offset + len].copy_from_slice(&data),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                return;
            }
        }
    }
    panic!("the drive never fills");
}

/// A full drive, with a map far larger than its memory, is trimmed as a whole. The host waits for
/// the first freed space, not until all trimmed blocks are subtracted.
#[test]
fn a_write_does_not_wait_for_all_of_a_large_trim() {
    let size = 16u64 << 30;
    let leaf = u64::from(LEAF_BLOCKS) * BLOCK;
    for is_scattered in [false, true] {
        let mut world = World::new(small(size, 16));
        world.plan.latency_ns = 100_000..=100_000;
        let options = OpenOptions { map_cache_bytes: 2 << 20, ..OpenOptions::default() };
        let drive = world.try_open(options).unwrap();
        let noise = payload::noise(&mut random(1), 1 << 20);
        // A block of noise, and many runs.
        let mut runs = noise[..BLOCK_BYTES].to_vec();
        (1..=255).for_each(|byte| runs.extend([byte; BLOCK_BYTES]));
        let leaves = size / leaf;
        for number in 0..leaves {
            let place = if is_scattered { number * 4099 % leaves } else { number };
            world.write(&drive, place * leaf, &runs).unwrap();
        }
        for number in 0.. {
            if world.write(&drive, leaf * (number % leaves) + (2 << 20), &noise).is_err() {
                break;
            }
        }
        world.run(drive.checkpoint()).unwrap();
        world.run(drive.trim(0, size)).unwrap();
        let mut longest_ns = 0;
        for number in 0..32 {
            let begun_ns = world.runtime.now_ns();
            world.write(&drive, number << 20, &noise).unwrap();
            longest_ns = longest_ns.max(world.runtime.now_ns() - begun_ns);
        }
        // Reading the leaves one after the other would take 400 ms.
        assert!(longest_ns < 40_000_000, "scattered: {is_scattered}; a wait of {longest_ns} ns");
        assert_accounting(&drive);
        world.close(drive);
        assert_eq!(world.check().problems, []);
    }
}

#[test]
fn a_full_thin_drive_refuses_writes_and_takes_them_again_after_a_trim() {
    let size = 64u64 << 20;
    let world = World::new(small(size, 6));
    let drive = world.open();
    let mut plain = vec![0; size as usize];
    fill(&world, &drive, 1 << 20, &mut plain, 1);
    fill(&world, &drive, 4 << 10, &mut plain, 2);
    for fua in [false, true] {
        let refused = kind(world.run(with(fua, &drive, drive.write(0, &[1; 5000]))));
        assert_eq!(refused, Some(ErrorKind::NoSpace));
    }
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
    world.run(drive.flush()).unwrap();
    assert_accounting(&drive);
    let drive = world.reopen(drive);
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
    // Smaller writes are refused together with larger ones.
    for len in [1 << 20, 4 << 10] {
        let data = payload::noise(&mut random(4), len);
        assert_eq!(kind(world.write(&drive, 0, &data)), Some(ErrorKind::NoSpace));
    }
    // Trims continue, even when there are more of them than fit into any reserve.
    for round in 0..3000 {
        let at = round * 7 % (size / BLOCK / 64) * BLOCK;
        world.run(drive.trim_durable(at, BLOCK)).unwrap();
        plain[at as usize..][..BLOCK_BYTES].fill(0);
    }
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
    // The space that the trims returned is reused, and no more.
    world.run(drive.trim(0, size / 2)).unwrap();
    plain[..size as usize / 2].fill(0);
    let before = drive.info().host_bytes;
    fill(&world, &drive, 64 << 10, &mut plain, 3);
    assert!(drive.info().host_bytes - before > 4 << 20, "a trim gave nothing back");
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
    assert_accounting(&drive);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Guards against garbage collection that needs space to make space.
#[test]
fn a_full_drive_takes_overwrites_for_ever() {
    let size = 24u64 << 20;
    let spec = Spec { capacity_bytes: None, frame_blocks: 1, ..small(size, 0) };
    let world = World::new(spec);
    let mut drive = world.open();
    let mut random = random(1);
    let mut plain = vec![0; size as usize];
    for life in 0..3 {
        for _ in 0..8 * size / BLOCK {
            let offset = random.random_range(0..size / BLOCK) * BLOCK;
            let data = payload::noise(&mut random, BLOCK_BYTES);
            world.write(&drive, offset, &data).unwrap();
            plain[offset as usize..][..BLOCK_BYTES].copy_from_slice(&data);
        }
        let info = drive.info();
        assert!(info.operations.gc_victims > 10, "life {life}: {info:?}");
        assert!(world.read(&drive, 0, plain.len()).unwrap() == plain, "life {life}");
        assert_accounting(&drive);
        drive = world.reopen(drive);
        assert!(world.read(&drive, 0, plain.len()).unwrap() == plain, "life {life}, reopened");
    }
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// The default capacity holds the entire disk, written once in any order, with data that does not
/// compress.
#[test]
fn a_full_drive_takes_its_whole_size() {
    let spec = Spec { capacity_bytes: None, frame_blocks: 1, ..small(SIZE, 0) };
    let world = World::new(spec);
    let drive = world.open();
    let noise = payload::noise(&mut random(1), SIZE as usize);
    let blocks = SIZE / BLOCK;
    for lba in (0..blocks).map(|step| step * 357 % blocks) {
        let at = lba as usize * BLOCK_BYTES;
        world.run(drive.write(lba * BLOCK, &noise[at..at + BLOCK_BYTES])).unwrap();
    }
    assert!(world.read(&drive, 0, SIZE as usize).unwrap() == noise);
}

#[test]
fn trimming_four_tebibytes_is_one_record() {
    let size = 4u64 << 40;
    let world = World::new(small(size, 4));
    let drive = world.open();
    let far = size / 2 + 12_345;
    world.run(drive.write_durable(far, &[7; 10_000])).unwrap();
    let before = drive.layers().inner().counts();
    let record_bytes = drive.info().frame_bytes;
    world.run(drive.trim_durable(0, size)).unwrap();
    let used = drive.layers().inner().counts() - before;
    assert_eq!((used.appends, used.append_bytes), (1, 4096));
    assert_eq!(drive.info().operations.media_read_bytes, 0);
    assert_eq!(drive.info().frame_bytes - record_bytes, RECORD_BYTES);
    assert_eq!(drive.info().mapped_bytes, 0);
    world.run(drive.write_zeroes(0, size, Allocation::Keep)).unwrap();
    assert_eq!(drive.info().frame_bytes - record_bytes, 2 * RECORD_BYTES);
    assert_eq!(world.read(&drive, far, 10_000).unwrap(), [0; 10_000]);
    assert_accounting(&drive);
    assert_eq!(drive.info().live_bytes, 0);
    let drive = world.reopen(drive);
    assert_eq!(world.read(&drive, far, 10_000).unwrap(), [0; 10_000]);
    assert_eq!(drive.info().mapped_bytes, 0, "zeroes are no data");
}

const RECORD_BYTES: u64 = crate::format::RECORD_HEADER_BYTES as u64;
