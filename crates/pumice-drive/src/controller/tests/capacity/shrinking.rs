//! Goal: dead space is returned to the host of the medium, even from an idle drive; and the memory
//! of a drive follows its activity. Method: drives with far more segments than their data needs, in
//! virtual time; the medium in memory counts the segments that were not discarded.

use rand::RngExt;

use super::*;
use crate::base::seed::random;

const SECOND_NS: u64 = 1_000_000_000;
const SEGMENT: u64 = SEGMENT_BYTES as u64;

/// Each stream has an open segment, which counts in full in memory.
const OPEN_BYTES: u64 = 3 * SEGMENT;

/// Overwrites `region` bytes of a disk of 64 MiB on 60 segments `times` times, with data that
/// compresses to about a half. Returns the disk.
fn overwritten(world: &World, drive: &Drive, region: u64, times: u64) -> Vec<u8> {
    let mut random = random(7);
    let piece = 64 << 10;
    let mut plain = vec![0; region as usize];
    for _ in 0..region * times / piece as u64 {
        let mut data = payload::noise(&mut random, piece);
        data.chunks_mut(8192).for_each(|chunk| chunk[4096..].fill(7));
        let at = random.random_range(0..region as usize / piece) * piece;
        world.write(drive, at as u64, &data).unwrap();
        plain[at..at + piece].copy_from_slice(&data);
    }
    world.run(drive.flush()).unwrap();
    plain
}

fn wait(world: &World, seconds: u64) {
    world.run(world.runtime.sleep_ns(seconds * SECOND_NS));
}

/// Guards against a file that retains every byte ever written until its log is full.
#[test]
fn overwritten_data_is_freed_while_the_host_is_quiet() {
    let world = World::new(small(64 << 20, 60));
    let drive = world.open();
    let plain = overwritten(&world, &drive, 20 << 20, 16);
    assert!(world.memory.resident_bytes() > 100 << 20, "too tame a test");
    wait(&world, 60);
    let (held, live) = (world.memory.resident_bytes(), drive.info().live_bytes);
    assert!(held <= live + live / 5 + (4 << 20) + OPEN_BYTES, "{held} bytes hold {live}");
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
    assert_accounting(&drive);
    let drive = world.reopen(drive);
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Guards against a trim that the host of the medium never sees.
#[test]
fn trimmed_space_is_returned_within_a_minute() {
    let world = World::new(small(64 << 20, 60));
    let drive = world.open();
    overwritten(&world, &drive, 40 << 20, 2);
    world.run(drive.trim_durable(0, 64 << 20)).unwrap();
    wait(&world, 60);
    let held = world.memory.resident_bytes();
    assert!(held <= OPEN_BYTES, "{held} bytes hold an empty disk");
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// As above, next to a host that never rests.
#[test]
fn trimmed_data_is_freed_under_load() {
    let world = World::new(small(64 << 20, 60));
    let drive = world.open();
    overwritten(&world, &drive, 40 << 20, 2);
    world.run(drive.trim_durable(0, 40 << 20)).unwrap();
    for second in 0..60 {
        world.write(&drive, (60 << 20) + second * BLOCK, &[second as u8; 5000]).unwrap();
        wait(&world, 1);
    }
    let held = world.memory.resident_bytes();
    assert!(held <= OPEN_BYTES + SEGMENT, "{held} bytes hold nearly nothing");
    world.kill(drive);
}

/// Guards against pointless moves: after an hour without a change, nothing is moved or written any
/// more, and the moved data does not exceed the original data.
#[test]
fn a_drive_that_is_not_in_use_comes_to_rest() {
    for percent in [0, 20, 300] {
        let world = World::new(small(64 << 20, 60));
        let options = OpenOptions { compact_percent: Some(percent), ..OpenOptions::default() };
        let drive = world.try_open(options).unwrap();
        overwritten(&world, &drive, 20 << 20, 8);
        wait(&world, 60);
        let info = drive.info();
        let overwritten_bytes = info.host_bytes;
        assert!(info.moved_bytes < overwritten_bytes / 2, "{percent}: {info:?}");
        wait(&world, 3600);
        assert_eq!(drive.info().media_bytes, info.media_bytes, "{percent}: it never rests");
        world.kill(drive);
    }
}

/// Frames of many similar blocks, a few of them dead, are copied whole: that gains nothing, and
/// their segments look as before.
#[test]
fn emptying_that_gains_nothing_ends() {
    let frames = 4096;
    let world = World::new(Spec { frame_blocks: 64, ..small(1 << 30, 60) });
    let drive = world.open();
    let mut random = random(3);
    for frame in 0..frames {
        let block = payload::noise(&mut random, BLOCK_BYTES);
        world.write(&drive, frame * 64 * BLOCK, &block.repeat(64)).unwrap();
    }
    // Two blocks of each frame remain, which use twice the space in frames of their own.
    for half in 0..2 * frames {
        world.run(drive.trim((half * 32 + 1) * BLOCK, 31 * BLOCK)).unwrap();
    }
    wait(&world, 120);
    let moved_bytes = drive.info().moved_bytes;
    assert!(moved_bytes > SEGMENT, "{moved_bytes}: too tame a test");
    assert!(moved_bytes < 5 * SEGMENT, "{moved_bytes} bytes were moved for nothing");
    wait(&world, 3600);
    assert_eq!(drive.info().moved_bytes, moved_bytes);
    world.kill(drive);
}

/// Guards against a host that has to share its medium with work that can wait.
#[test]
fn giving_back_stops_when_the_host_writes() {
    let mut world = World::new(small(64 << 20, 60));
    world.plan.latency_ns = 1_000_000..=1_000_000;
    let drive = world.open();
    let plain = overwritten(&world, &drive, 20 << 20, 12);
    while drive.info().moved_bytes == 0 {
        world.run(world.runtime.sleep_ns(SECOND_NS / 100));
    }
    world.write(&drive, 60 << 20, &[5; 5000]).unwrap();
    let before = drive.info().moved_bytes;
    for number in 0..20 {
        wait(&world, 1);
        world.write(&drive, 60 << 20, &[number; 5000]).unwrap();
    }
    let moved_bytes = drive.info().moved_bytes - before;
    assert!(moved_bytes <= 2 << 20, "{moved_bytes} bytes were moved beside a writing host");
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
    world.run(drive.flush()).unwrap();
    assert_accounting(&drive);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

#[test]
fn a_drive_is_compacted_at_once_when_asked() {
    let world = World::new(small(64 << 20, 60));
    let options = OpenOptions { compact_percent: None, ..OpenOptions::default() };
    let drive = world.try_open(options).unwrap();
    let plain = overwritten(&world, &drive, 20 << 20, 12);
    wait(&world, 600);
    let moved_bytes = drive.info().moved_bytes;
    assert_eq!(moved_bytes, 0, "it was not asked for");
    let compacted = world.run(drive.compact(5)).unwrap();
    assert!(compacted.is_complete, "{compacted:?}");
    assert!(compacted.occupied_bytes_before > 2 * compacted.occupied_bytes, "{compacted:?}");
    assert!(compacted.occupied_bytes <= compacted.live_bytes / 20 * 21 + (4 << 20));
    assert!(world.memory.resident_bytes() <= compacted.occupied_bytes + OPEN_BYTES);
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
    // No work remains.
    let again = world.run(drive.compact(5)).unwrap();
    assert_eq!((again.is_complete, again.moved_bytes), (true, 0));
    // A second one at the same time is refused; a cancelled one leaves nothing behind.
    overwritten(&world, &drive, 20 << 20, 4);
    let mut first = Box::pin(drive.compact(0));
    assert!(world.run(futures_util::future::poll_immediate(&mut first)).is_none());
    assert_eq!(kind(world.run(drive.compact(0))), Some(ErrorKind::Busy));
    drop(first);
    world.run(drive.compact(0)).unwrap();
    assert_accounting(&drive);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Guards against zeroing 1 MiB for each read of a frame of 32 KiB.
#[test]
fn reads_take_as_much_memory_as_their_frames() {
    let mut world = World::new(small(16 << 20, 12));
    world.plan.latency_ns = 1_000_000..=1_000_000;
    let drive = world.open();
    let plain = payload::noise(&mut random(1), 8 << 20);
    world.write(&drive, 0, &plain).unwrap();
    world.run(drive.flush()).unwrap();
    let reads = (0..64_usize).map(|number| {
        let (drive, at) = (drive.clone(), number * (128 << 10));
        async move {
            let mut out = [0; BLOCK_BYTES];
            drive.read(at as u64, &mut out).await.unwrap();
            (at, out)
        }
    });
    for (at, out) in world.run(futures_util::future::join_all(reads)) {
        assert_eq!(out, plain[at..at + BLOCK_BYTES]);
    }
    let taken = drive.info().memory.read_buffer_bytes;
    assert!(taken <= 64 * (40 << 10), "64 reads of 4 KiB took {taken} bytes");
    assert!(drive.buffers.in_flight_bytes_most() <= 64 * (40 << 10));
    world.kill(drive);
}

/// Guards against a drive that uses megabytes of memory before its first request, and retains them
/// afterwards.
#[test]
fn a_drive_that_is_not_in_use_takes_little_memory() {
    let world = World::new(small(16 << 20, 12));
    let drive = world.open();
    let held = || {
        let memory = drive.info().memory;
        memory.batch_bytes + memory.read_buffer_bytes + memory.frame_cache_bytes
    };
    assert!(held() < 64 << 10, "{} bytes before the first request", held());
    let plain = payload::noise(&mut random(1), 8 << 20);
    world.write(&drive, 0, &plain).unwrap();
    world.run(drive.flush()).unwrap();
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
    assert!(world.read(&drive, 8192, 4096).unwrap() == plain[8192..12288]);
    assert!(held() > 1 << 20);
    wait(&world, 30);
    assert!(held() < 64 << 10, "{} bytes half a minute after the last request", held());
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
    world.write(&drive, 4096, &plain[..8192]).unwrap();
    world.close(drive);
}

/// Guards against holes in a file whose space was reserved.
#[test]
fn a_preallocated_drive_is_never_discarded() {
    let world = World::new(Spec { preallocated: true, ..small(64 << 20, 30) });
    let drive = world.open();
    overwritten(&world, &drive, 10 << 20, 4);
    world.run(drive.trim_durable(0, 64 << 20)).unwrap();
    wait(&world, 60);
    world.run(drive.compact(0)).unwrap();
    assert!(drive.info().preallocated);
    assert_eq!(drive.layers().inner().counts().discards, 0);
    let drive = world.reopen(drive);
    overwritten(&world, &drive, 64 << 20, 8);
    assert_eq!(drive.layers().inner().counts().discards, 0);
    world.close(drive);
}

#[test]
fn power_loss_while_space_is_given_back_loses_nothing() {
    let mut moved_bytes = 0;
    for seed in 0..8 {
        let mut world = World::new(small(64 << 20, 40));
        (world.seed, world.plan.latency_ns) = (seed, 0..=2_000_000);
        let drive = world.open();
        let plain = overwritten(&world, &drive, 12 << 20, 6);
        let moment_ns = 3 * SECOND_NS + random(seed).random_range(0..3 * SECOND_NS);
        world.run(world.runtime.sleep_ns(moment_ns));
        moved_bytes += drive.info().moved_bytes;
        world.run(drive.layers().crash()).unwrap();
        world.kill(drive);
        world.plan = FaultPlan::default();
        let drive = world.open();
        assert!(world.read(&drive, 0, plain.len()).unwrap() == plain, "seed {seed}");
        assert_accounting(&drive);
        world.close(drive);
        assert_eq!(world.check().problems, [], "seed {seed}");
    }
    assert!(moved_bytes > 0, "too tame a test");
}

/// Guards against a drive that was emptied once and retains data that has died since.
#[test]
fn space_freed_after_a_rest_is_returned_too() {
    let world = World::new(small(128 << 20, 100));
    let options = OpenOptions { compact_percent: Some(100), ..OpenOptions::default() };
    let drive = world.try_open(options).unwrap();
    let mut random = random(1);
    let piece = 64 << 10;
    // A third of each segment remains.
    for number in 0..(40_u64 << 20) / piece {
        for region in [0, 40 << 20, 80 << 20] {
            let data = payload::noise(&mut random, piece as usize);
            world.write(&drive, region + number * piece, &data).unwrap();
        }
    }
    world.run(drive.trim_durable(40 << 20, 80 << 20)).unwrap();
    wait(&world, 60);
    let moved_bytes = drive.info().moved_bytes;
    assert!(moved_bytes > 4 * SEGMENT, "{moved_bytes}: too tame a test");
    let is_moved = |lba| {
        let core = drive.core();
        let Mapping::Frame { place, .. } = core.map().peek(Lba(lba)).resident().0 else {
            panic!("LBA {lba} is no frame")
        };
        core.space().stream(place.segment) == Stream::Moved
    };
    for lba in (0..(40_u64 << 20) / BLOCK).step_by(8) {
        if is_moved(lba) {
            world.run(drive.trim(lba * BLOCK, 8 * BLOCK)).unwrap();
        }
    }
    world.run(drive.flush()).unwrap();
    wait(&world, 120);
    let (held, live) = (world.memory.resident_bytes(), drive.info().live_bytes);
    assert!(held <= 2 * live + (4 << 20) + OPEN_BYTES, "{held} bytes hold {live}");
    assert_accounting(&drive);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Guards against forgotten empty segments: next to a busy host they were not worth a checkpoint,
/// and then the host becomes idle.
#[test]
fn small_gains_are_returned_when_the_host_rests() {
    let world = World::new(small(4 << 30, 60));
    let options = OpenOptions { compact_percent: None, ..OpenOptions::default() };
    let drive = world.try_open(options).unwrap();
    let noise = payload::noise(&mut random(1), 1 << 20);
    for number in 0..9 {
        world.write(&drive, number << 20, &noise).unwrap();
    }
    let mut random = random(2);
    for _ in 0..20_000 {
        let lba = random.random_range(4096..drive.size_bytes() / BLOCK);
        world.write(&drive, lba * BLOCK, &noise[..BLOCK_BYTES / 2]).unwrap();
    }
    world.run(drive.trim_durable(0, 9 << 20)).unwrap();
    for second in 0..40 {
        world.write(&drive, (4 << 22) + second * BLOCK, &[2; 4096]).unwrap();
        wait(&world, 1);
    }
    wait(&world, 120);
    let empty = drive.core().space().empty_count();
    assert_eq!(empty, 0, "segments that hold nothing");
    world.kill(drive);
}

/// A memory medium that is full at a given number of bytes.
struct Narrow {
    inner: MemMedium,
    most: Cell<u64>,
}

impl crate::media::layer::Layer for Narrow {
    type Inner = MemMedium;

    fn inner(&self) -> &MemMedium {
        &self.inner
    }

    async fn on_append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: std::sync::Arc<AlignedBuffer>,
    ) -> Result<()> {
        // A segment counts in full from its first byte.
        let takes = if offset == 0 { SEGMENT } else { 0 };
        if self.inner.resident_bytes() + takes > self.most.get() {
            return Err(Error::new(ErrorKind::NoSpace, "no space left on device"));
        }
        self.inner.append(segment, offset, buffer).await
    }

    async fn on_append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: std::sync::Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.on_append(segment, offset, buffer).await
    }
}

/// Guards against a drive that fills the file system below it while its host is idle: live data is
/// copied before dead space is returned.
#[test]
fn giving_back_needs_little_room() {
    let world = World::new(small(128 << 20, 100));
    let medium = Rc::new(Narrow { inner: world.memory.clone(), most: Cell::new(u64::MAX) });
    let opening = Drive::open(medium.clone(), world.runtime.clock(), OpenOptions::default());
    let drive = world.run(opening).unwrap();
    let (mut random, piece) = (random(1), 64 << 10);
    // Half of each segment remains.
    for number in 0..(40_u64 << 20) / piece {
        for region in [0, 40 << 20] {
            let data = payload::noise(&mut random, piece as usize);
            world.run(drive.write(region + number * piece, &data)).unwrap();
        }
    }
    world.run(drive.trim_durable(40 << 20, 40 << 20)).unwrap();
    medium.most.set(world.memory.resident_bytes() + 3 * SEGMENT);
    wait(&world, 120);
    assert!(!drive.info().medium_full, "the drive has filled its medium");
    let (held, live) = (world.memory.resident_bytes(), drive.info().live_bytes);
    assert!(held <= live + live / 5 + (4 << 20) + OPEN_BYTES, "{held} bytes hold {live}");
    world.run(drive.write_durable(0, &[1; 4096])).unwrap();
    world.run(drive.close()).unwrap();
}
