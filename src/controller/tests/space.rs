//! Goal: a full log refuses writes before acknowledging them and loses nothing; reads, flushes and
//! trims go on; a trim of any length takes no time that grows with it.
//! Method: incompressible writes until the drive refuses them, compared with an array.

use rand::RngExt;

use super::*;
use crate::base::seed::random;

const SIZE: u64 = 4 << 20;

/// Writes noise of `len` bytes at random places until the drive refuses; gives the disk.
fn fill(world: &World, drive: &TestDrive, len: usize, plain: &mut [u8], seed: u64) {
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
    panic!("the log never fills");
}

#[test]
fn a_full_log_refuses_writes_and_keeps_what_it_acknowledged() {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    let mut plain = vec![0; SIZE as usize];
    fill(&world, &drive, 1 << 20, &mut plain, 1);
    // Smaller writes still find room at the end of the last segment.
    let before = drive.info().host_bytes;
    fill(&world, &drive, 100 << 10, &mut plain, 2);
    fill(&world, &drive, 4 << 10, &mut plain, 3);
    assert!(drive.info().host_bytes - before > 100 << 10);
    assert_eq!(drive.info().free_segments, 1, "the reserve was touched");
    for fua in [false, true] {
        let refused = kind(world.run(drive.write(0, &[1; 5000], fua)));
        assert_eq!(refused, Some(ErrorKind::NoSpace));
    }
    assert!(world.read(&drive, 0, SIZE as usize).unwrap() == plain);
    world.run(drive.flush()).unwrap();
    let drive = world.reopen(drive);
    assert!(world.read(&drive, 0, SIZE as usize).unwrap() == plain);
    assert_eq!(kind(world.write(&drive, 4096, &[1; 4096])), Some(ErrorKind::NoSpace));

    // Trims go on, and data may not follow them into the reserve: they would run out.
    for round in 0..50 {
        let lba = round * 7 % (SIZE / BLOCK);
        world.run(drive.trim(lba * BLOCK, 3 * BLOCK, true)).unwrap();
        world.run(drive.write_zeroes(lba * BLOCK, BLOCK, true, false)).unwrap();
        let from = (lba * BLOCK) as usize;
        plain[from..(from + 3 * BLOCK_BYTES).min(SIZE as usize)].fill(0);
        let refused = kind(world.write(&drive, SIZE - 4096, &[1; 4096]));
        assert_eq!(refused, Some(ErrorKind::NoSpace), "round {round}");
    }
    let drive = world.reopen(drive);
    assert_eq!(kind(world.write(&drive, 0, &[1; 4096])), Some(ErrorKind::NoSpace));
    world.run(drive.trim(0, BLOCK, true)).unwrap();
    plain[..BLOCK_BYTES].fill(0);
    assert!(world.read(&drive, 0, SIZE as usize).unwrap() == plain);
    assert_accounting(&drive);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

#[test]
fn a_log_filled_with_trims_refuses_them_too_and_still_closes() {
    let world = World::new(small(SIZE, 2));
    let drive = world.open();
    world.write(&drive, 0, &[7; 100]).unwrap();
    let mut trims = 0u64;
    while let Ok(()) = world.run(drive.trim(BLOCK, BLOCK, true)) {
        trims += 1;
        assert!(trims < 5000);
    }
    assert!(trims > u64::from(SEGMENT_BYTES) / BLOCK, "{trims} trims did not use the reserve");
    let drive = world.reopen(drive);
    assert_eq!(kind(world.run(drive.trim(BLOCK, BLOCK, false))), Some(ErrorKind::NoSpace));
    assert_eq!(world.read(&drive, 0, 100).unwrap(), [7; 100]);
    world.close(drive);
}

/// The default capacity holds the whole disk, written once in any order, with data that does not
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
        world.run(drive.write(lba * BLOCK, &noise[at..at + BLOCK_BYTES], false)).unwrap();
    }
    assert!(world.read(&drive, 0, SIZE as usize).unwrap() == noise);
}

#[test]
fn trimming_four_tebibytes_is_one_record() {
    let size = 4u64 << 40;
    let world = World::new(small(size, 4));
    let drive = world.open();
    let far = size / 2 + 12_345;
    world.run(drive.write(far, &[7; 10_000], true)).unwrap();
    let before = drive.medium().inner().counts();
    let record_bytes = drive.info().frame_bytes;
    world.run(drive.trim(0, size, true)).unwrap();
    let used = drive.medium().inner().counts() - before;
    assert_eq!((used.appends, used.append_bytes), (1, 4096));
    assert_eq!(drive.info().operations.media_read_bytes, 0);
    assert_eq!(drive.info().frame_bytes - record_bytes, RECORD_BYTES);
    assert_eq!(drive.info().mapped_bytes, 0);
    world.run(drive.write_zeroes(0, size, true, false)).unwrap();
    assert_eq!(drive.info().frame_bytes - record_bytes, 2 * RECORD_BYTES);
    assert_eq!(world.read(&drive, far, 10_000).unwrap(), [0; 10_000]);
    assert_accounting(&drive);
    assert_eq!(drive.info().live_bytes, 0);
    let drive = world.reopen(drive);
    assert_eq!(world.read(&drive, far, 10_000).unwrap(), [0; 10_000]);
    assert_eq!(drive.info().mapped_bytes, size);
}

const RECORD_BYTES: u64 = crate::format::RECORD_HEADER_BYTES as u64;
