//! Goal: a drive is marked as closed in order only if all acknowledged data is durable, and nothing
//! is written after that mark. Method: a write that arrives between the flush of a close and its
//! superblock; checkpoints requested at any moment of a close.

use futures_util::future::join;

use super::*;
use crate::media::layer::Trigger;

/// Closes a drive while a write arrives halfway through the sync of the close. With `seal`, the
/// write is in progress on the medium when the superblock would be written.
fn close_under_a_write(seal: bool) {
    let world = World::new(small(4 << 20, 4));
    let drive = world.open();
    world.write(&drive, 0, &[1; 5000]).unwrap();
    let latency_ns = 1_000_000..=1_000_000;
    drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
    let late = async {
        // The flush is an append of one millisecond. The checkpoint appends for another and syncs
        // for a third. The superblocks follow, with a write and a sync each. The last sync would
        // cover batches sealed before it begins.
        world.runtime.sleep_ns(if seal { 6_500_000 } else { 4_500_000 }).await;
        // A write that was accepted earlier does the same.
        let write = BlockWrite {
            lba: Lba(2),
            blocks: 2,
            parts: &[&[2; 8192]],
            edges: &[],
            host_bytes: 8192,
            makes_holes: false,
        };
        let appended = drive.with_core(|core| core.append_write(&write, |_, _| unreachable!()));
        assert_eq!(appended.unwrap(), Attempt::Done);
        if seal {
            drive.with_core(|core| core.seal(Stream::Host));
        }
    };
    let before = drive.layers().inner().counts().superblock_writes;
    let (closed, ()) = world.run(join(drive.close(), late));
    assert_eq!(kind(closed), Some(ErrorKind::Busy), "seal: {seal}");
    // The two superblocks of the checkpoint, which do not record that the drive was closed in
    // order.
    assert_eq!(drive.layers().inner().counts().superblock_writes, before + 2);
    world.kill(drive);
    let drive = world.open();
    assert!(!drive.info().was_clean, "seal: {seal}");
    assert_eq!(world.read(&drive, 0, 5000).unwrap(), [1; 5000]);
}

#[test]
fn a_write_after_the_last_flush_makes_the_end_unclean() {
    close_under_a_write(false);
    close_under_a_write(true);
}

/// Only the caller holds a closed drive, so the medium can be reopened immediately, even after a
/// failure.
#[test]
fn no_task_holds_a_drive_that_was_closed() {
    for sync_fails in [false, true] {
        let mut world = World::new(small(4 << 20, 4));
        world.plan.latency_ns = 1_000_000..=1_000_000;
        let drive = world.open();
        world.write(&drive, 0, &[1; 5000]).unwrap();
        if sync_fails {
            let sync_errors = Trigger::Probability(1.0);
            drive.layers().set_plan(FaultPlan { sync_errors, ..FaultPlan::default() });
        }
        let begun_ns = world.runtime.now_ns();
        assert_eq!(world.run(drive.close()).is_err(), sync_fails);
        assert_eq!(Rc::strong_count(&drive), 1, "sync fails: {sync_fails}");
        let took_ns = world.runtime.now_ns() - begun_ns;
        assert!(took_ns < 20_000_000, "closing took {took_ns} ns");
    }
}

/// A checkpoint requested while a drive is being closed, or later, does not change how it was
/// closed.
#[test]
fn no_checkpoint_follows_the_mark_of_an_orderly_end() {
    let mut refused = 0;
    for moment in 0..30 {
        let mut world = World::new(small(4 << 20, 4));
        world.plan.latency_ns = 1_000_000..=1_000_000;
        let drive = world.open();
        world.write(&drive, 0, &[1; 5000]).unwrap();
        let late = async {
            world.runtime.sleep_ns(moment * 500_000).await;
            drive.checkpoint().await
        };
        let (closed, late) = world.run(join(drive.close(), late));
        closed.unwrap();
        assert_eq!(
            drive.core().superblock().watermark,
            drive.core().log().sealed_seq(),
            "moment {moment}"
        );
        refused += u32::from(late.is_err());
        assert_eq!(kind(world.run(drive.checkpoint())), Some(ErrorKind::Poisoned));
        let end = drive.core().log().chain_end();
        world.kill(drive);
        let superblock = world.run(superblocks::load(&world.memory)).unwrap().stored.superblock;
        assert!(superblock.clean, "moment {moment}");
        assert_eq!((superblock.watermark, superblock.watermark_checksum), (end.seq, end.checksum));
    }
    assert!((5..28).contains(&refused), "too tame a test: {refused}");
}

/// The superblock's watermark and its checksum belong to the same batch, whichever task wrote it
/// last.
#[test]
fn a_superblock_names_the_checksum_of_the_batch_that_it_calls_durable() {
    let world = World::new(small(4 << 20, 4));
    let drive = world.open();
    for round in 0..3 {
        world.run(drive.write_durable(0, &[round; 5000])).unwrap();
        world.run(drive.checkpoint()).unwrap();
        let end = drive.core().log().chain_end();
        let superblock = world.run(superblocks::load(&world.memory)).unwrap().stored.superblock;
        assert_eq!((superblock.watermark, superblock.watermark_checksum), (end.seq, end.checksum));
    }
}
