//! Goal: a checkpoint or a log with an impossible state and valid checksums causes an error and
//! never a panic; no state that a drive really writes is mistaken for one. Method: entry points of
//! the segment table and the map are called directly before the drive writes its checkpoint, so
//! that the medium has the impossible state.

use super::*;
use crate::base::seed::random;
use crate::format::Record;

const SIZE: u64 = 4 << 20;

/// Returns a drive with data that was killed after a checkpoint with a changed segment table.
/// Because of an earlier checkpoint, the change contradicts only the medium.
fn checkpointed(change: impl FnOnce(&mut crate::controller::space::Space)) -> World {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    let noise = payload::noise(&mut random(1), 64 << 10);
    world.write(&drive, 0, &noise).unwrap();
    world.run(drive.checkpoint()).unwrap();
    drive.with_core(|core| change(core.space_mut()));
    world.run(drive.checkpoint()).unwrap();
    world.kill(drive);
    world
}

/// Guards against a panic if more bytes died than a checkpoint counts as live.
#[test]
fn a_drive_whose_live_bytes_do_not_add_up_takes_no_writes_and_reads_on() {
    let world = checkpointed(|space| space.release(SegmentId(0), 60 << 10));
    assert!(world.check().problem_count > 0);
    let drive = world.open();
    let before = world.read(&drive, 0, 64 << 10).unwrap();
    world.write(&drive, 0, &[1; 64 << 10]).unwrap();
    let next = world.write(&drive, 0, &payload::noise(&mut random(2), 2 << 20));
    assert!(next.is_err(), "written over what does not add up");
    assert_eq!(kind(world.run(drive.flush())), Some(ErrorKind::Poisoned));
    assert_eq!(world.read(&drive, 0, 64 << 10).unwrap().len(), before.len());
    world.kill(drive);
}

/// The same in the log after the checkpoint, where replay meets it.
#[test]
fn a_log_with_negative_live_bytes_is_refused() {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    let noise = payload::noise(&mut random(1), 64 << 10);
    world.write(&drive, 0, &noise).unwrap();
    drive.with_core(|core| core.space_mut().release(SegmentId(0), 60 << 10));
    world.run(drive.checkpoint()).unwrap();
    drive.with_core(|core| core.space_mut().add_live(SegmentId(0), 60 << 10));
    world.run(drive.trim_durable(0, 64 << 10)).unwrap();
    world.kill(drive);
    assert_eq!(world.refusal().kind(), ErrorKind::Corrupt);
    assert!(world.check().problem_count > 0);
}

#[test]
fn a_table_that_does_not_know_the_tails_is_refused() {
    let world = checkpointed(|space| space.seal(SegmentId(0), 0));
    world.close_without_checkpoint(world.open());
    let world = checkpointed(|space| {
        let live = space.live_bytes_of(SegmentId(0));
        space.release(SegmentId(0), live);
        space.seal(SegmentId(0), 0);
        space.free(SegmentId(0));
    });
    assert_eq!(world.refusal().kind(), ErrorKind::Corrupt);
}

/// The segment would be written again from its start, over its content.
#[test]
fn a_record_that_lets_a_stream_go_on_where_it_is_is_refused() {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    world.write(&drive, 0, &payload::noise(&mut random(1), BLOCK_BYTES)).unwrap();
    let generation = drive.core().space().generation(SegmentId(0));
    let record = Record::Open { stream: Stream::Host, segment: SegmentId(0), generation };
    drive.with_core(|core| core.log_mut().announce(Stream::Host, &record));
    world.run(drive.flush()).unwrap();
    world.kill(drive);
    assert_eq!(world.refusal().kind(), ErrorKind::Corrupt);
}

/// Guards against a walk of the log that never searched for the host's first batch.
#[test]
fn a_checkpoint_before_the_first_write_keeps_later_writes() {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    world.run(drive.checkpoint()).unwrap();
    let noise = payload::noise(&mut random(1), 64 << 10);
    world.run(drive.write_durable(0, &noise)).unwrap();
    world.kill(drive);
    let drive = world.open();
    assert!(world.read(&drive, 0, noise.len()).unwrap() == noise);
    assert_eq!(world.check().problem_count, 0);
}
