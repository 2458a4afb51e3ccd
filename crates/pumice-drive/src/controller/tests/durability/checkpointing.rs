//! Goal: a checkpoint represents one moment; the records that it and its predecessor refer to
//! remain until both superblock slots have moved; and an abandoned checkpoint leaves no trace.
//! Method: a medium whose operations take a millisecond, examined every tenth of a millisecond.

use super::survival::take_free_segments;
use super::*;
use crate::base::seed::random;
use crate::controller::core::Wakes;

const SIZE: u64 = 4 << 20;

/// Interval at which the tests examine the drive.
const LOOK_NS: u64 = 100_000;

fn slow_down(drive: &Drive) {
    let latency_ns = 1_000_000..=1_000_000;
    drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
}

/// Runs a checkpoint as a task of its own, and calls `look` until it has ended.
fn checkpoint_watched(world: &World, drive: &Rc<Drive>, mut look: impl FnMut()) {
    let checkpointing = drive.clone();
    world.runtime.spawn(async move { checkpointing.checkpoint().await.unwrap() });
    world.run(async {
        world.runtime.yield_now().await;
        assert!(drive.core().checkpoints().is_running(), "no checkpoint was begun");
        while drive.core().checkpoints().is_running() {
            look();
            world.runtime.sleep_ns(LOOK_NS).await;
        }
    });
}

/// A checkpoint stores the segment table as of its beginning. A segment that is in use at that time
/// must not be freed and used for the checkpoint's own records before the checkpoint has ended.
#[test]
fn no_segment_is_given_back_while_a_checkpoint_is_written() {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    let noise = payload::noise(&mut random(1), 1 << 20);
    for _ in 0..6 {
        world.run(drive.write_durable(0, &noise)).unwrap();
    }
    world.run(drive.checkpoint()).unwrap();
    let empty = SegmentId(0);
    assert!(!drive.core().space().is_free(empty), "freed though no one needs it");
    assert_eq!(drive.core().space().empty(drive.core().checkpoints().checkpointed()), [empty]);
    slow_down(&drive);
    let mut is_short = false;
    checkpoint_watched(&world, &drive, || {
        if !std::mem::replace(&mut is_short, true) {
            take_free_segments(&drive, 6);
            drive.with_core(|core| core.wake(Wakes::COLLECTOR));
        }
        assert!(!drive.core().space().is_free(empty), "freed under the checkpoint");
    });
    world.run(world.runtime.sleep_ns(100_000_000));
    assert!(drive.core().space().is_free(empty), "too tame a test");
    world.kill(drive);
    let drive = world.open();
    assert!(world.read(&drive, 0, noise.len()).unwrap() == noise);
}

/// Returns the requests to the medium while a future runs: `w` for a superblock write, `s` for a
/// sync.
fn superblock_order(
    world: &World,
    medium: &TestMedium,
    future: impl Future<Output = ()>,
) -> String {
    let mut order = String::new();
    let counts = || medium.inner().counts();
    let mut before = counts();
    let mut future = std::pin::pin!(future);
    loop {
        let ended = world.run(world.runtime.timeout(LOOK_NS, future.as_mut())).is_some();
        let used = counts() - before;
        before = counts();
        assert!(used.superblock_writes + used.syncs <= 1, "two operations at once");
        order.extend((0..used.superblock_writes).map(|_| 'w').chain((0..used.syncs).map(|_| 's')));
        if ended {
            return order;
        }
    }
}

/// A medium may tear both slots if both writes are in progress.
#[test]
fn each_superblock_slot_is_durable_before_the_other_is_written() {
    let mut world = World::new(small(SIZE, 4));
    world.plan.latency_ns = 1_000_000..=1_000_000;
    let medium = world.medium();
    let mut opened = None;
    let order = superblock_order(&world, &medium, async {
        let opening = Drive::open(medium.clone(), world.runtime.clock(), OpenOptions::default());
        opened = Some(opening.await.unwrap());
    });
    assert_eq!(order, "swsws", "opening");
    let drive = opened.unwrap();
    world.write(&drive, 0, &[1; 5000]).unwrap();
    let checkpoint = async { drive.checkpoint().await.unwrap() };
    assert_eq!(superblock_order(&world, &medium, checkpoint), "swsws", "checkpoint");
    let close = async { drive.close().await.unwrap() };
    // A checkpoint comes first.
    assert_eq!(superblock_order(&world, &medium, close), "swswswsws", "close");
    world.kill(drive);
}

/// While a checkpoint is written, both it and its predecessor count as live, to the byte. Records
/// that only the predecessor refers to die when the second superblock slot is durable, and not
/// earlier.
#[test]
fn frames_of_the_previous_checkpoint_are_live_until_both_slots_have_moved() {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    let noise = payload::noise(&mut random(1), 64 << 10);
    world.write(&drive, 0, &noise).unwrap();
    world.run(drive.checkpoint()).unwrap();
    drive.with_core(|core| core.map_mut().touch_leaf(0));
    let old: Vec<_> = drive.core().metadata();
    let before = drive.info();
    let counts = drive.layers().inner().counts();
    slow_down(&drive);
    let mut looks = 0;
    checkpoint_watched(&world, &drive, || {
        let info = drive.info();
        let written = info.operations.meta_bytes - before.operations.meta_bytes;
        assert_eq!(info.live_bytes, before.live_bytes + written, "after {looks} looks");
        assert_eq!(info.mapped_bytes, before.mapped_bytes);
        assert_eq!(info.operations.checkpoints, before.operations.checkpoints);
        assert_eq!(info.free_segments, drive.core().space().free_count());
        looks += 1;
    });
    let used = drive.layers().inner().counts() - counts;
    assert_eq!((used.superblock_writes, used.syncs), (2, 3));
    // A checkpoint consists of an append, a sync, and two superblocks, each with a sync.
    assert!(looks >= 60, "too tame a test: {looks}");
    let info = drive.info();
    assert_eq!(info.operations.checkpoints, before.operations.checkpoints + 1);
    // Leaf, page and lists were all rewritten.
    let written = info.operations.meta_bytes - before.operations.meta_bytes;
    let died: u64 = old.iter().map(|place| u64::from(place.bytes)).sum();
    assert_eq!(info.live_bytes, before.live_bytes + written - died);
    assert_accounting(&drive);
}

/// Returns a drive on which a checkpoint has failed for lack of space after its first list, and the
/// segments that were taken away.
fn failed_for_space() -> (World, Rc<Drive>, Vec<SegmentId>) {
    // The table has 16 KB, so it no longer fits when leaf, page and page list do.
    let world = World::new(small(SIZE, 500));
    // Without garbage collection, which would free space.
    let drive = world.open_without_collector();
    world.write(&drive, 0, &payload::noise(&mut random(1), 64 << 10)).unwrap();
    world.run(drive.checkpoint()).unwrap();
    let taken = take_free_segments(&drive, 0);
    let error = loop {
        assert!(drive.core().checkpoints().completed() < 5000, "checkpoints take no room");
        drive.with_core(|core| core.map_mut().touch_leaf(0));
        if let Err(error) = world.run(drive.checkpoint()) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(drive.core().map().superseded_addresses().count() > 1, "no leaf and page were written");
    (world, drive, taken)
}

/// The next checkpoint refers to the leaves and pages that were written; the lists are dead; and
/// the records that would have been replaced still wait to be counted as dead.
#[test]
fn a_checkpoint_that_is_given_up_after_its_lists_is_accounted_for() {
    let (world, drive, taken) = failed_for_space();
    assert_accounting(&drive);
    for segment in taken {
        drive.with_core(|core| core.space_mut().seal(segment, 0));
        drive.with_core(|core| core.space_mut().free(segment));
    }
    world.run(drive.checkpoint()).unwrap();
    assert_eq!(drive.core().map().superseded_addresses().count(), 0);
    assert_accounting(&drive);
    let before = state(&drive);
    world.kill(drive);
    let drive = world.open();
    assert_same_state(before, &drive);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// The batch after the checkpoint need not be the checkpoint's own: a host may be faster.
#[test]
fn the_first_batch_after_the_checkpoint_is_applied() {
    let world = World::new(small(64 << 20, 8));
    let drive = world.open();
    // The stream of checkpoints has a segment from now on.
    world.run(drive.checkpoint()).unwrap();
    // More leaves than are written before the host gets a turn.
    let (old, new) = (vec![1; BLOCK_BYTES], payload::noise(&mut random(1), BLOCK_BYTES));
    for leaf in 0..12 {
        world.write(&drive, leaf * (4 << 20) + BLOCK, &old).unwrap();
    }
    let checkpointing = drive.clone();
    world.runtime.spawn(async move { checkpointing.checkpoint().await.unwrap() });
    world.run(async {
        while !drive.core().checkpoints().is_running() {
            world.runtime.yield_now().await;
        }
        let watermark = drive.core().log().sealed_seq();
        drive.write_durable(0, &new).await.unwrap();
        drive.turn().await;
        assert_eq!(drive.core().checkpoints().checkpointed(), watermark, "too tame a test");
    });
    let first = drive.core().checkpoints().checkpointed().0 + 1;
    world.kill(drive);
    let streams: Vec<_> = (0..3)
        .filter(|&segment| damage::batches(&world, segment).iter().any(|b| b.seq.0 == first))
        .collect();
    assert_eq!(streams, [0], "not a batch of the host's");
    let drive = world.open();
    assert!(world.read(&drive, 0, BLOCK_BYTES).unwrap() == new);
    assert!(world.read(&drive, BLOCK, BLOCK_BYTES).unwrap() == old);
    assert_accounting(&drive);
}

/// A crash between the trim of an entire leaf and the next checkpoint. The leaf's record is live
/// until then, though the map no longer refers to it. Found by killing a server under ext4.
#[test]
fn a_check_ignores_frames_that_the_next_checkpoint_drops() {
    let world = World::new(small(4 * SIZE, 8));
    let drive = world.open();
    let noise = payload::noise(&mut random(1), 64 << 10);
    world.run(drive.write_durable(SIZE, &noise)).unwrap();
    world.run(drive.checkpoint()).unwrap();
    world.run(drive.trim_durable(SIZE, SIZE)).unwrap();
    world.kill(drive);
    assert_eq!(world.check().problems, []);
    let drive = world.open();
    reap_all(&drive);
    assert_eq!(drive.core().map().superseded_addresses().count(), 1, "too tame a test");
}
