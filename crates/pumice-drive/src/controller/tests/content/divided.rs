//! Writes that are divided between the end of a segment and the next one.

use super::*;
use crate::base::SeqNo;
use crate::base::seed::random;
use crate::controller::tests::integrity::damage::{SIZE, batches};
use crate::format::BatchHeader;

const MIB: usize = 1 << 20;

/// A drive on which 1 MiB at 0 was written repeatedly, flushed except for the last time. The last
/// write is divided, and both of its batches are on the medium.
struct Divided {
    world: World,
    /// The flushed content, and the content of the last write.
    before: Vec<u8>,
    after: Vec<u8>,
    first: BatchHeader,
    second: BatchHeader,
}

fn divided() -> Divided {
    let world = World::new(small(SIZE, 24));
    let drive = world.open_without_collector();
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for seed in 1.. {
        before = std::mem::replace(&mut after, payload::noise(&mut random(seed), MIB));
        world.write(&drive, 0, &after).unwrap();
        if drive.core().log().tail(Stream::Host).expect("a tail").segment != SegmentId(0) {
            break;
        }
        world.run(drive.flush()).unwrap();
    }
    while drive.core().log().written_seq() < drive.core().log().sealed_seq() {
        world.run(world.runtime.yield_now());
    }
    assert!(world.read(&drive, 0, MIB).unwrap() == after);
    world.kill(drive);
    let first = batches(&world, 0).pop().expect("a batch at the end of the segment");
    let second = batches(&world, 1).pop().expect("a batch in the next segment");
    assert!(first.needs_next && !second.needs_next && second.seq.0 == first.seq.0 + 1);
    assert!(second.watermark < first.seq, "nothing says that they are durable");
    Divided { world, before, after, first, second }
}

impl Divided {
    /// Removes a batch, as a power loss does.
    fn lose(&self, batch: &BatchHeader) {
        let from = append_start(batch);
        let end = batch.offset + batch.batch_bytes() as u32;
        let zeroes = AlignedBuffer::zeroed((end - from) as usize);
        self.world.run(self.world.memory.append(batch.segment, from, zeroes.into())).unwrap();
    }
}

#[test]
fn a_divided_write_leaves_next_to_nothing_unused() {
    let Divided { world, after, first, second, .. } = divided();
    let unused = SEGMENT_BYTES - first.offset - first.batch_bytes() as u32;
    assert!(unused < 64 << 10, "{unused} bytes");
    let drive = world.open();
    assert!(world.read(&drive, 0, MIB).unwrap() == after);
    assert!(drive.core().log().sealed_seq() >= second.seq);
    assert_accounting(&drive);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Guards against a write that survives a power loss in part, and against a later opening that
/// adopts the complete first part of one.
#[test]
fn a_divided_write_is_whole_or_absent() {
    for lost in 0..3 {
        let divided = divided();
        let Divided { world, before, first, second, .. } = &divided;
        let parts = [first, second];
        parts.iter().enumerate().filter(|(at, _)| lost >> at & 1 == 0).for_each(|(_, part)| {
            divided.lose(part);
        });
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let drive = world.try_open(options).unwrap();
        assert!(world.read(&drive, 0, MIB).unwrap() == *before, "{lost}, read-only");
        world.kill(drive);
        assert_eq!(world.check().problems, []);
        let drive = world.open();
        assert!(world.read(&drive, 0, MIB).unwrap() == *before, "{lost}");
        assert!(drive.core().log().sealed_seq() < first.seq);
        let is_left = |batch: &BatchHeader| batch.seq == first.seq && batch.epoch == first.epoch;
        assert!(!batches(world, 0).iter().any(is_left), "{lost}: it is there for later openings");
        // The stream continues, and divides the next write there.
        let next = payload::noise(&mut random(99), MIB);
        world.run(drive.write_durable(MIB as u64, &next)).unwrap();
        world.kill(drive);
        let drive = world.open();
        assert!(world.read(&drive, 0, MIB).unwrap() == *before, "{lost}, later");
        assert!(world.read(&drive, MIB as u64, MIB).unwrap() == next);
        world.close(drive);
        assert_eq!(world.check().problems, []);
    }
}

/// Guards against flushed data that silently reverts to older data, where damage to the second part
/// looks like a power loss.
#[test]
fn a_divided_write_that_was_flushed_is_never_dropped() {
    for at in 0..2 {
        let Divided { world, after, first, second, .. } = divided();
        let drive = world.open();
        assert!(world.read(&drive, 0, MIB).unwrap() == after);
        world.run(drive.write_durable(2 << 20, &[7; 4096])).unwrap();
        world.kill(drive);
        let damaged = [&first, &second][at];
        world.flip_for_good(damaged.segment.0, damaged.offset + 30);
        assert_eq!(world.refusal().kind(), ErrorKind::Corrupt, "part {at}");
    }
}

/// Guards against a first part that counts as durable because of a sync between the two parts.
#[test]
fn the_first_part_alone_is_never_durable() {
    let world = World::new(small(SIZE, 24));
    let drive = world.open_without_tasks();
    let noise = payload::noise(&mut random(1), MIB);
    for _ in 0..SEGMENT_BYTES as usize / MIB {
        world.write(&drive, 0, &noise).unwrap();
    }
    let second = drive.core().log().sealed_seq();
    assert_eq!(drive.core().log().tail(Stream::Host).expect("a tail").segment, SegmentId(1));
    let reached = || (drive.core().log().written_seq(), drive.core().log().durable_seq());
    drive.with_core(|core| {
        while let Some(batch) = core.next_to_write() {
            if batch.seq < second {
                core.batch_written(batch.seq, false, || None);
            }
        }
        core.request_sync();
        let end = core.begin_sync().expect("a sync that was requested");
        core.sync_ended(end);
    });
    assert_eq!(reached(), (SeqNo(second.0 - 2), SeqNo(second.0 - 2)));
    drive.with_core(|core| core.batch_written(second, false, || None));
    assert_eq!(reached(), (second, SeqNo(second.0 - 2)));
    world.kill(drive);
}
