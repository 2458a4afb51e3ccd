//! Goal: a drive on a full or nearly full file system respects the remaining space just as it
//! respects its capacity: dead space is reused before a write is refused, trims and operations that
//! return space continue, and no accepted write waits for space. Method: a medium whose free space
//! other users take and return, compared with an array.

use rand::RngExt;

use super::*;
use crate::base::seed::random;

const SIZE: u64 = 64 << 20;
const LIVE: usize = 16 << 20;
const ROOM: u64 = 64 << 20;

/// Returns a drive of 64 MiB and more, with 64 MiB of free space.
fn world() -> World {
    let world = World::new(small(SIZE, 48));
    world.memory.set_room(Some(ROOM));
    world
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    payload::noise(&mut random(seed), len)
}

/// Overwrites, flushed or not, reuse the locations of dead data.
#[test]
fn dead_space_is_used_again_before_the_host_is_full() {
    let world = world();
    let drive = world.open();
    let mut plain = vec![0; LIVE];
    let mut random = random(1);
    for round in 0..400_u64 {
        let at = random.random_range(0..16) << 20;
        let data = noise(round, 1 << 20);
        world.write(&drive, at as u64, &data).unwrap();
        plain[at..][..1 << 20].copy_from_slice(&data);
        if round % 16 == 0 {
            world.run(drive.flush()).unwrap();
        }
    }
    assert_eq!(world.memory.refused_appends(), 0);
    assert!(world.read(&drive, 0, LIVE).unwrap() == plain);
    assert_accounting(&drive);
    let drive = world.reopen(drive);
    assert!(world.read(&drive, 0, LIVE).unwrap() == plain);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Other users take the remaining space. Writes are refused, and accepted again after a trim;
/// operations that return space continue, even after the drive is reopened.
#[test]
fn a_host_that_others_fill_does_not_wedge_a_drive() {
    for is_reopened in [false, true] {
        let world = world();
        let mut drive = world.open();
        let mut plain = noise(1, LIVE);
        world.write(&drive, 0, &plain).unwrap();
        world.run(drive.flush()).unwrap();
        // Long enough for the drive to notice that space is low.
        world.run(world.runtime.sleep_ns(2_500_000_000));
        world.memory.set_room(Some(0));
        world.memory.besiege_room();
        let mut refused = 0;
        for round in 0..200_u64 {
            let at = (round % 16) as usize * (1 << 20);
            let data = noise(100 + round, 1 << 20);
            match world.write(&drive, at as u64, &data) {
                Ok(()) => plain[at..][..1 << 20].copy_from_slice(&data),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace);
                    refused += 1;
                }
            }
        }
        assert!(refused < 100, "{refused} of 200 overwrites are refused, with dead space inside");
        world.run(drive.flush()).unwrap();
        assert_eq!(world.memory.refused_appends(), 0, "what was let through had its space");
        if is_reopened {
            drive = world.reopen(drive);
            // This happens immediately, not when the first request waits for it.
            assert!(drive.info().warm_bytes > 0 && drive.info().used_percent < 100.0);
        }
        assert!(world.read(&drive, 0, LIVE).unwrap() == plain);
        world.run(drive.trim(0, LIVE as u64 / 2)).unwrap();
        plain[..LIVE / 2].fill(0);
        world.run(drive.flush()).unwrap();
        world.run(world.runtime.sleep_ns(2_500_000_000));
        let data = noise(3, 1 << 20);
        world.write(&drive, 0, &data).unwrap();
        plain[..1 << 20].copy_from_slice(&data);
        world.run(drive.flush()).unwrap();
        assert!(world.read(&drive, 0, LIVE).unwrap() == plain);
        world.run(drive.compact(10)).unwrap();
        assert_accounting(&drive);
        world.close(drive);
        assert_eq!(world.check().problems, []);
    }
}

/// A drive whose last segment allocated no space while there was plenty is opened on a full file
/// system, where other segments have space.
#[test]
fn the_rest_of_an_open_segment_gets_the_space_of_a_free_one() {
    for is_besieged in [false, true] {
        let world = World::new(small(SIZE, 48));
        world.memory.set_room(Some(8 << 30));
        let drive = world.open();
        let plain = noise(1, 8 << 20);
        world.run(drive.write_durable(0, &plain[..1 << 20])).unwrap();
        world.close(drive);
        for segment in 20..30 {
            world.run(world.memory.preallocate(SegmentId(segment))).unwrap();
        }
        world.memory.set_room(Some(0));
        if is_besieged {
            // The space of an abandoned segment is lost, but only once.
            world.memory.besiege_room();
            let drive = world.open();
            world.run(world.runtime.sleep_ns(20_000_000_000));
            let kept = drive.info().warm_bytes / u64::from(SEGMENT_BYTES);
            assert!((10 - 3..10).contains(&kept), "{kept} segments are kept");
            continue;
        }
        let drive = world.open();
        world.run(drive.write_durable(1 << 20, &plain[1 << 20..])).unwrap();
        assert_eq!(world.memory.refused_appends(), 0);
        assert!(world.read(&drive, 0, 8 << 20).unwrap() == plain);
    }
}

/// There was plenty of space when the open segments of the streams were begun.
#[test]
fn open_segments_get_their_space_when_the_medium_fills_up() {
    let world = World::new(small(SIZE, 48));
    world.memory.set_room(Some(8 << 30));
    let drive = world.open();
    let plain = noise(1, 2 << 20);
    world.run(drive.write_durable(0, &plain[..1 << 20])).unwrap();
    assert_eq!((drive.info().low_room_bytes, drive.info().warm_bytes), (None, 0));
    world.memory.set_room(Some(1 << 30));
    world.run(world.runtime.sleep_ns(2_500_000_000));
    let kept = drive.info().warm_bytes;
    assert!(kept > 4 * u64::from(SEGMENT_BYTES), "{kept} bytes are kept");
    assert!(drive.info().low_room_bytes.is_some_and(|left| left + kept <= 1 << 30));
    world.memory.set_room(Some(0));
    world.run(drive.write_durable(1 << 20, &plain[1 << 20..])).unwrap();
    assert_eq!(world.memory.refused_appends(), 0);
    // Once there is plenty of space, nothing is retained.
    world.memory.set_room(Some(8 << 30));
    world.run(world.runtime.sleep_ns(2_500_000_000));
    assert_eq!((drive.info().low_room_bytes, drive.info().warm_bytes), (None, 0));
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}
