//! Goal: a medium that fails to write or to sync ends the drive's writes permanently; acknowledged
//! data can still be read, and a reopened drive holds a prefix with all flushed data. Method: the
//! first append or sync of a plan fails, whether or not its bytes arrived.

use super::*;
use crate::base::seed::random;
use crate::media::layer::Trigger;

const SIZE: u64 = 4 << 20;

fn assert_poisoned(world: &World, drive: &Drive) {
    let poisoned = Some(ErrorKind::Poisoned);
    assert_eq!(kind(world.run(drive.flush())), poisoned);
    assert_eq!(kind(world.write(drive, 0, &[1; 10])), poisoned);
    assert_eq!(kind(world.run(drive.write_durable(8192, &[1; 4096]))), poisoned);
    assert_eq!(kind(world.run(drive.trim(0, BLOCK))), poisoned);
    assert_eq!(kind(world.run(drive.write_zeroes(0, BLOCK, Allocation::Keep))), poisoned);
}

/// Blocks 0..4 are flushed, each of them is then overwritten in a batch of its own, and then the
/// failure occurs.
fn fail(plan: FaultPlan, seed: u64, power_loss: bool) {
    let mut world = World::new(small(SIZE, 4));
    world.seed = seed;
    let drive = world.open();
    let old = payload::noise(&mut random(seed), 4 * BLOCK_BYTES);
    let new = payload::noise(&mut random(seed + 1000), 4 * BLOCK_BYTES);
    world.run(drive.write_durable(0, &old)).unwrap();
    let watermark = drive.info().watermark;
    drive.layers().set_plan(plan);
    // All in one poll, before any of them can fail.
    world.run(async {
        for block in 0..4 {
            let at = block * BLOCK_BYTES;
            drive.write(at as u64, &new[at..at + BLOCK_BYTES]).await.unwrap();
            drive.with_core(|core| core.seal(Stream::Host));
        }
    });
    assert_eq!(kind(world.run(drive.flush())), Some(ErrorKind::Poisoned));
    assert!(world.read(&drive, 0, new.len()).unwrap() == new, "acknowledged data is gone");
    // The medium has recovered, but the drive must not rely on it.
    drive.layers().set_plan(FaultPlan::default());
    assert_poisoned(&world, &drive);
    assert_eq!(drive.info().watermark, watermark, "called durable after a failure");
    assert!(world.read(&drive, 0, new.len()).unwrap() == new);
    assert_eq!(kind(world.run(drive.close())), Some(ErrorKind::Poisoned));
    if power_loss {
        world.run(drive.layers().crash()).unwrap();
    }
    world.kill(drive);
    let drive = world.open();
    assert!(!drive.info().was_clean);
    let read = world.read(&drive, 0, old.len()).unwrap();
    let is_new = |block: &usize| {
        let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
        assert!(read[range.clone()] == new[range.clone()] || read[range.clone()] == old[range]);
        read[block * BLOCK_BYTES] == new[block * BLOCK_BYTES]
    };
    let kept = (0..4).take_while(is_new).count();
    assert_eq!((0..4).filter(is_new).count(), kept, "not a prefix");
    world.run(drive.write_durable(0, &new)).unwrap();
    let drive = world.reopen(drive);
    assert!(world.read(&drive, 0, new.len()).unwrap() == new);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

#[test]
fn a_failed_append_poisons_the_drive() {
    for seed in 0..12 {
        for failing in 1..=4 {
            let append_errors = Trigger::Nth(failing);
            fail(FaultPlan { append_errors, ..FaultPlan::default() }, seed, seed % 2 == 0);
        }
    }
}

/// The same for batches that are appended durably.
#[test]
fn a_failed_durable_append_poisons_the_drive() {
    for seed in 0..12 {
        for failing in 1..=3 {
            for is_sync in [false, true] {
                let world = World { seed, ..World::new(small(SIZE, 4)) };
                let drive = world.open();
                world.run(drive.write_durable(0, &[1; BLOCK_BYTES])).unwrap();
                let nth = Trigger::Nth(failing);
                let none = Trigger::Never;
                let (append_errors, sync_errors) = if is_sync { (none, nth) } else { (nth, none) };
                let latency_ns = 0..=1_000_000;
                let plan =
                    FaultPlan { append_errors, sync_errors, latency_ns, ..Default::default() };
                drive.layers().set_plan(plan);
                let written = world.run(futures_util::future::join_all((1..4_u8).map(|block| {
                    let drive = &drive;
                    async move {
                        let at = u64::from(block) * BLOCK;
                        drive.write(at, &[block; BLOCK_BYTES]).await.unwrap();
                        (block, drive.flush().await)
                    }
                })));
                let failed = written.iter().filter(|(_, flushed)| flushed.is_err());
                assert!(failed.clone().count() > 0, "no flush has failed");
                assert!(failed.clone().all(|(_, flushed)| {
                    flushed.as_ref().unwrap_err().kind() == ErrorKind::Poisoned
                }));
                drive.layers().set_plan(FaultPlan::default());
                assert_poisoned(&world, &drive);
                // Only a failed append marks its location as bad, not a failed sync.
                world.run(world.runtime.sleep_ns(3_000_000_000));
                let bad = drive.core().superblock().bad_segments.len();
                assert_eq!(bad, usize::from(!is_sync));
                world.run(drive.layers().crash()).unwrap();
                world.kill(drive);
                let drive = world.open();
                for (block, _) in written.iter().filter(|(_, flushed)| flushed.is_ok()) {
                    let read = world.read(&drive, u64::from(*block) * BLOCK, BLOCK_BYTES).unwrap();
                    assert_eq!(read, [*block; BLOCK_BYTES]);
                }
                world.close(drive);
            }
        }
    }
}

#[test]
fn a_failed_sync_poisons_the_drive() {
    for seed in 0..12 {
        let sync_errors = Trigger::Nth(1);
        fail(FaultPlan { sync_errors, ..FaultPlan::default() }, seed, seed % 2 == 0);
    }
}

/// Writers that wait for space when the medium fails receive an error.
#[test]
fn waiting_writes_fail_with_the_drive() {
    let world = World::new(small(64 << 20, 24));
    let drive = world.open();
    let always = Trigger::Probability(1.0);
    let latency_ns = 1_000_000..=1_000_000;
    drive.layers().set_plan(FaultPlan { append_errors: always, latency_ns, ..Default::default() });
    let noise = payload::noise(&mut random(1), 1 << 20);
    let mut acknowledged = 0;
    let error = loop {
        match world.write(&drive, acknowledged << 20, &noise) {
            Ok(()) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Poisoned);
    // Every fourth write is divided between two batches, and begins with three free buffers.
    assert_eq!(acknowledged as usize, log::BUFFER_COUNT - 3, "the wait was not met");
    for at in 0..acknowledged {
        assert!(world.read(&drive, at << 20, 1 << 20).unwrap() == noise);
    }
}

#[test]
fn a_failed_read_fails_its_request_only() {
    // Otherwise a chunk that cannot be read is read again with its frame.
    let world = World::new(Spec { frame_form: FrameForm::Solid, ..small(SIZE, 4) });
    let drive = world.open();
    // A batch without parity.
    let noise = payload::noise(&mut random(1), 48 << 10);
    world.run(drive.write_durable(0, &noise)).unwrap();
    drive.layers().set_plan(FaultPlan { read_errors: Trigger::Nth(1), ..Default::default() });
    assert_eq!(kind(world.read(&drive, 0, 4096)), Some(ErrorKind::Medium));
    assert!(world.read(&drive, 0, 4096).unwrap() == noise[..4096]);
    drive.layers().set_plan(FaultPlan { read_errors: Trigger::Nth(1), ..Default::default() });
    // In a frame that no read above has decoded and cached.
    assert_eq!(kind(world.write(&drive, 40_970, &[1; 10])), Some(ErrorKind::Medium));
    let block = 40_960..45_056;
    assert!(world.read(&drive, 40_960, 4096).unwrap() == noise[block], "a failed write changed it");
    world.write(&drive, 40_970, &[1; 10]).unwrap();
}

#[test]
fn a_read_that_fails_while_opening_costs_no_more_than_it_must() {
    let mut world = World::new(small(SIZE, 4));
    let drive = world.open();
    let noise = payload::noise(&mut random(1), 64 << 10);
    world.run(drive.write_durable(0, &noise)).unwrap();
    world.close(drive);
    // Reads during an opening: two superblock slots; root, table, page list, page; the log after
    // them.
    for failing in 1..=12 {
        world.plan = FaultPlan { read_errors: Trigger::Nth(failing), ..Default::default() };
        let opened = world.try_open(OpenOptions { read_only: true, ..OpenOptions::default() });
        // A part of the checkpoint is restored from parity.
        let drive = opened.unwrap_or_else(|error| panic!("{failing}: {}", error.chain()));
        let read = world.read(&drive, 0, noise.len());
        assert!(read.is_err() || read.unwrap() == noise, "failing read {failing}");
        assert!(world.read(&drive, 0, noise.len()).unwrap() == noise, "{failing}");
        world.close(drive);
    }
}

/// Guards against two concurrent syncs, one of which receives the report of a loss that concerns
/// both: the flush of the other must not be acknowledged.
#[test]
fn a_flush_during_a_failing_sync_is_not_acknowledged() {
    let mut acknowledged = 0;
    for seed in 0..200 {
        let mut world = World::new(small(SIZE, 4));
        (world.seed, world.plan.latency_ns) = (seed, 1..=2_000_000);
        let drive = world.open();
        let sync_errors = Trigger::Nth(1 + seed % 2);
        drive.layers().set_plan(FaultPlan { sync_errors, ..world.plan.clone() });
        let beside = drive.clone();
        world.runtime.spawn(async move {
            let _turn = beside.turn().await;
            drop(beside.update_superblocks(|_| ()).await);
        });
        let data = payload::noise(&mut random(seed), BLOCK_BYTES);
        let is_acknowledged = world.run(drive.write_durable(0, &data)).is_ok();
        world.run(world.runtime.sleep_ns(20_000_000));
        world.run(drive.layers().crash()).unwrap();
        world.kill(drive);
        world.plan = FaultPlan::default();
        let drive = world.open();
        if is_acknowledged {
            acknowledged += 1;
            let read = world.read(&drive, 0, BLOCK_BYTES).unwrap();
            assert!(read == data, "seed {seed}: what was flushed is gone");
        }
        world.kill(drive);
    }
    assert!(acknowledged > 20, "too tame a test");
}

/// A medium reports a failed sync once, and no task waits any more for the flush that requested it.
/// The next flush must fail.
#[test]
fn a_sync_that_fails_for_an_abandoned_flush_is_remembered() {
    // The future is dropped halfway through the sync, or the durable append.
    for (is_durable, moment_ns) in [(false, 1_500_000), (true, 700_000)] {
        let mut world = World::new(small(SIZE, 4));
        if !is_durable {
            world.memory = world.memory.without_durable_appends();
        }
        world.plan.latency_ns = 1_000_000..=1_000_000;
        let drive = world.open();
        world.write(&drive, 0, &[1; 100]).unwrap();
        let sync_errors = Trigger::Nth(1);
        drive.layers().set_plan(FaultPlan { sync_errors, ..world.plan.clone() });
        let counts = || drive.layers().inner().counts();
        let before = counts();
        let cut = world.run(world.runtime.timeout(moment_ns, drive.flush()));
        let syncs = counts().syncs + counts().durable_appends;
        assert!(cut.is_none(), "too tame a test");
        assert_eq!(syncs, before.syncs + before.durable_appends + 1, "too tame a test");
        assert_eq!(kind(world.run(drive.flush())), Some(ErrorKind::Poisoned), "acknowledged");
        assert_poisoned(&world, &drive);
        assert_eq!(drive.info().watermark, 0, "called durable");
        world.kill(drive);
    }
}

/// A checkpoint whose future is dropped, at any point, leaves a drive that continues, or that
/// accepts no more writes because it is not known which superblock counts.
#[test]
fn an_abandoned_checkpoint_harms_nobody() {
    let mut poisoned = 0;
    // A checkpoint begins with an append; three syncs follow, with two superblocks between them.
    for moment in 0..14 {
        let mut world = World::new(small(SIZE, 4));
        world.plan.latency_ns = 1_000_000..=1_000_000;
        let drive = world.open();
        let data = payload::noise(&mut random(moment), 64 << 10);
        world.run(drive.write_durable(0, &data)).unwrap();
        world.run(drive.checkpoint()).unwrap();
        drive.with_core(|core| core.map_mut().touch_leaf(0));
        let abandoned = drive.checkpoint();
        let ended = world.run(world.runtime.timeout(250_000 + moment * 500_000, abandoned));
        assert_eq!(ended.is_some(), moment >= 12, "moment {moment}");
        let next = world.run(drive.checkpoint());
        if (4..12).contains(&moment) {
            assert_eq!(kind(next), Some(ErrorKind::Poisoned), "moment {moment}");
            poisoned += 1;
        } else {
            next.unwrap();
            assert_accounting(&drive);
        }
        world.kill(drive);
        let drive = world.open();
        assert!(world.read(&drive, 0, data.len()).unwrap() == data, "moment {moment}");
        assert_accounting(&drive);
        world.close(drive);
        assert_eq!(world.check().problems, [], "moment {moment}");
    }
    assert_eq!(poisoned, 8);
}
