//! Goal: a drive is called closed in order only if everything it acknowledged is durable.
//! Method: a write that gets in between the flush of a closing and its superblock.

use futures_util::future::join;

use super::*;

/// Closes a drive while a write comes half-way through the closing's sync, and with `seal` is on
/// its way to the medium when the superblock would be written.
fn close_under_a_write(seal: bool) {
    let world = World::new(small(4 << 20, 4));
    let drive = world.open();
    world.write(&drive, 0, &[1; 5000]).unwrap();
    let latency_ns = 1_000_000..=1_000_000;
    drive.medium().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
    let late = async {
        // Flush and checkpoint append for one millisecond and sync for another; then come the
        // superblocks, with a write and a sync each.
        world.runtime.sleep_ns(5_500_000).await;
        // As a write does that was let in before.
        drive.make_room(8192 + 56, admit::Purpose::Data).await.unwrap();
        drive.append_blocks(Lba(2), &[2; 8192]);
        if seal {
            drive.seal(Stream::Host);
        }
    };
    let before = drive.medium().inner().counts().superblock_writes;
    let (closed, ()) = world.run(join(drive.close(), late));
    assert_eq!(kind(closed), Some(ErrorKind::Busy), "seal: {seal}");
    // Those of the checkpoint, which does not say that the drive was closed in order.
    assert_eq!(drive.medium().inner().counts().superblock_writes, before + 2);
    world.kill(drive);
    let drive = world.open();
    assert!(!drive.info().was_clean, "seal: {seal}");
    assert_eq!(world.read(&drive, 0, 5000).unwrap(), [1; 5000]);
}

#[test]
fn a_write_behind_the_last_flush_makes_the_end_unclean() {
    close_under_a_write(false);
    close_under_a_write(true);
}
