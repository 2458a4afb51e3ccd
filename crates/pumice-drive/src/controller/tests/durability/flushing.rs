//! Goal: a flush costs one durable append where that suffices, and a sync where it does not. It
//! waits only for preceding batches of the log. Method: operations of the medium are counted; the
//! medium's time is virtual.

use super::*;
use crate::base::seed::random;
use crate::controller::core::{Purpose, Wakes};
use crate::media::layer::{Counts, Trigger};

const SIZE: u64 = 16 << 20;

/// Opens a drive with all its writers, but without tasks that would seal batches of their own.
fn open(world: &World) -> Rc<Drive> {
    let drive = world.open_without_collector();
    for _ in 1..log::WRITERS {
        let writer = drive.clone();
        world.runtime.spawn(async move { writer.run_writer().await });
    }
    drive
}

fn counts(drive: &Drive) -> Counts {
    drive.layers().inner().counts()
}

/// Writes a block, and seals its batch if `seals`. The batch is then on the medium when this
/// returns.
fn write(world: &World, drive: &Drive, block: u64, seals: bool) {
    let data = payload::noise(&mut random(block), BLOCK_BYTES);
    world.write(drive, block * BLOCK, &data).unwrap();
    if seals {
        drive.with_core(|core| core.seal(Stream::Host));
        until_written(world, drive);
    }
}

fn until_written(world: &World, drive: &Drive) {
    let is_written =
        |core: &mut Core| (core.log().written_seq() == core.log().sealed_seq()).then_some(());
    world.run(drive.wait_for(&drive.queues.progress, is_written));
}

/// Writes a block, and flushes it.
fn write_flushed(world: &World, drive: &Drive, block: u64) {
    write(world, drive, block, false);
    world.run(drive.flush()).unwrap();
}

/// Seals a batch of metadata without a record, as a checkpoint next to the host would.
fn seal_meta(core: &mut Core) {
    assert!(core.make_room(0, Purpose::Meta).unwrap());
    let totals = core.counters().totals();
    core.log_mut().seal_empty(Stream::Meta, totals);
    core.wake(Wakes::WRITERS);
}

#[test]
fn a_flush_is_one_durable_append() {
    let world = World::new(small(SIZE, 4));
    let drive = open(&world);
    let before = counts(&drive);
    for block in 0..10 {
        write_flushed(&world, &drive, block);
        // There is nothing left to flush.
        world.run(drive.flush()).unwrap();
    }
    let used = counts(&drive) - before;
    assert_eq!((used.appends, used.durable_appends, used.syncs), (10, 10, 0));
    assert_eq!(drive.info().operations.durable_appends, 10);
    assert_eq!(drive.core().log().durable_seq(), drive.core().log().sealed_seq());
    world.close(drive);
}

#[test]
fn a_flush_after_batches_that_are_not_durable_is_one_sync() {
    let world = World::new(small(SIZE, 4));
    let drive = open(&world);
    for round in 0..5 {
        let before = counts(&drive);
        write(&world, &drive, 10 * round, true);
        write(&world, &drive, 10 * round + 1, true);
        write_flushed(&world, &drive, 10 * round + 2);
        let used = counts(&drive) - before;
        assert_eq!((used.appends, used.durable_appends, used.syncs), (3, 0, 1));
        // From now on all batches before a new one are durable.
        write_flushed(&world, &drive, 10 * round + 3);
        let used = counts(&drive) - before;
        assert_eq!((used.appends, used.durable_appends, used.syncs), (4, 1, 1));
    }
    world.close(drive);
}

#[test]
fn a_medium_without_durable_appends_is_synced() {
    let mut world = World::new(small(SIZE, 4));
    world.memory = world.memory.clone().without_durable_appends();
    let drive = open(&world);
    let before = counts(&drive);
    for block in 0..10 {
        write_flushed(&world, &drive, block);
    }
    let used = counts(&drive) - before;
    assert_eq!((used.appends, used.durable_appends, used.syncs), (10, 0, 10));
    world.close(drive);
}

/// A batch in flight during a sync is durable by itself; the watermark waits for the sync.
#[test]
fn a_durable_append_during_a_sync_waits_for_its_end() {
    let mut world = World::new(small(SIZE, 4));
    world.plan.latency_ns = 1_000_000..=1_000_000;
    let drive = open(&world);
    write(&world, &drive, 0, true);
    let before = counts(&drive);
    let (first, second) = (drive.clone(), drive.clone());
    world.run(async {
        let sync = first.sync();
        let later = async {
            world.runtime.sleep_ns(100_000).await;
            second.write(BLOCK, &[7; BLOCK_BYTES]).await.unwrap();
            second.flush().await.unwrap();
        };
        let (synced, ()) = futures_util::future::join(sync, later).await;
        synced.unwrap();
    });
    drop((first, second));
    let used = counts(&drive) - before;
    assert_eq!((used.appends, used.durable_appends, used.syncs), (1, 1, 1));
    assert_eq!(drive.core().log().durable_seq(), drive.core().log().sealed_seq());
    world.close(drive);
}

/// While every writer is busy, the open batch collects the data of further flushes.
#[test]
fn many_flushes_share_a_batch_while_the_medium_is_busy() {
    let mut world = World::new(small(SIZE, 4));
    world.plan.latency_ns = 1_000_000..=1_000_000;
    let drive = open(&world);
    let before = counts(&drive);
    let tasks = (0..32_u64).map(|task| {
        let drive = drive.clone();
        async move {
            for round in 0..10 {
                let block = task * 10 + round;
                drive.write_durable(block * BLOCK, &[task as u8 + 1; BLOCK_BYTES]).await.unwrap();
            }
        }
    });
    let begun_ns = world.runtime.now_ns();
    world.run(futures_util::future::join_all(tasks));
    let rounds = (world.runtime.now_ns() - begun_ns) / 1_000_000;
    let used = counts(&drive) - before;
    assert!(rounds <= 21, "320 flushes by 32 tasks took {rounds} times that of an append");
    assert!(used.appends <= 100, "{} batches", used.appends);
    assert_eq!((used.durable_appends, used.syncs), (used.appends, 0));
    world.close(drive);
}

/// Batches that a checkpoint or garbage collection seals after the host's last batch are not
/// flushed.
#[test]
fn a_flush_does_not_wait_for_later_batches_of_other_streams() {
    let world = World::new(small(SIZE, 4));
    let drive = open(&world);
    // The first one refers to its segment in the host's stream.
    drive.with_core(seal_meta);
    world.run(drive.flush_log()).unwrap();
    write(&world, &drive, 0, false);
    let before = counts(&drive);
    // All in one poll, before any of them is written.
    let last = world.run(async {
        let last = drive.with_core(|core| {
            core.seal(Stream::Host);
            let last = core.log().sealed_seq();
            seal_meta(core);
            last
        });
        drive.flush().await.unwrap();
        last
    });
    let used = counts(&drive) - before;
    assert_eq!((used.durable_appends, used.syncs), (1, 0));
    assert_eq!(drive.core().log().durable_seq(), last);
    assert!(drive.core().log().sealed_seq() > last);
    world.run(drive.flush_log()).unwrap();
    assert_eq!(drive.core().log().durable_seq(), drive.core().log().sealed_seq());
    world.kill(drive);
}

/// Guards against a sync that counts as successful although a concurrent durable append has failed,
/// which may have received the error report of a loss that concerned both.
#[test]
fn a_sync_during_a_failed_durable_append_does_not_count() {
    for seed in 0..50 {
        let mut world = World::new(small(SIZE, 4));
        (world.seed, world.plan.latency_ns) = (seed, 2_000_000..=2_000_000);
        let drive = open(&world);
        let block = payload::noise(&mut random(0), BLOCK_BYTES);
        write(&world, &drive, 0, true);
        let is_flushed = world.run(async {
            let later = async {
                world.runtime.sleep_ns(100_000).await;
                let sync_errors = Trigger::Nth(1);
                let latency_ns = 500_000..=500_000;
                let plan = FaultPlan { sync_errors, latency_ns, ..FaultPlan::default() };
                drive.layers().set_plan(plan);
                drive.write(BLOCK, &[7; BLOCK_BYTES]).await.unwrap();
                assert_eq!(kind(drive.flush().await), Some(ErrorKind::Poisoned));
            };
            let (flushed, ()) = futures_util::future::join(drive.flush(), later).await;
            drive.clock.sleep_ns(10_000_000).await;
            drive.layers().crash().await.unwrap();
            flushed.is_ok()
        });
        world.kill(drive);
        world.plan = FaultPlan::default();
        let drive = world.open();
        let read = world.read(&drive, 0, BLOCK_BYTES).unwrap();
        assert!(!is_flushed || read == block, "seed {seed}: what was flushed is gone");
        world.close(drive);
    }
}

/// A task that waits for a sync may check its result late, after the medium has failed and the sync
/// has ended.
#[test]
fn a_sync_that_ends_after_a_failure_is_not_believed() {
    let world = World::new(small(SIZE, 4));
    let drive = open(&world);
    drive.with_core(|core| {
        let number = core.request_sync();
        let end = core.begin_sync().expect("a sync was requested");
        core.poison(&Error::new(ErrorKind::Medium, "a durable append failed"));
        core.sync_ended(end);
        assert!(!core.log().has_synced(number));
    });
    world.kill(drive);
}

/// A sync in progress may not cover a batch that reaches the medium meanwhile: the batch's own
/// flush needs another sync.
#[test]
fn writes_during_a_sync_are_not_made_durable_by_it() {
    for seed in 0..20 {
        let mut world = World::new(small(SIZE, 4));
        world.memory = world.memory.without_durable_appends();
        (world.seed, world.plan.latency_ns) = (seed, 2_000_000..=2_000_000);
        let drive = open(&world);
        let write = async |block: u64| {
            let data = payload::noise(&mut random(block), BLOCK_BYTES);
            drive.write(block * BLOCK, &data).await.unwrap();
        };
        world.run(async {
            let first = async {
                write(0).await;
                drive.flush().await.unwrap();
            };
            // The second batch is written from 1.5 to 3.5 ms; the first sync runs from 2 to 4 ms.
            let second = async {
                drive.clock.sleep_ns(1_500_000).await;
                write(1).await;
                drive.with_core(|core| core.seal(Stream::Host));
                drive.clock.sleep_ns(3_000_000).await;
                drive.flush().await.unwrap();
                drive.layers().crash().await.unwrap();
            };
            futures_util::future::join(first, second).await;
        });
        world.kill(drive);
        world.plan = FaultPlan::default();
        let drive = world.open();
        for block in 0..2 {
            let read = world.read(&drive, block * BLOCK, BLOCK_BYTES).unwrap();
            let written = payload::noise(&mut random(block), BLOCK_BYTES);
            assert!(read == written, "seed {seed}: what was flushed is gone");
        }
        world.close(drive);
    }
}

/// A batch of another stream was sealed while a flush was in progress. That batch does not confirm
/// the flush, so a batch that does must still follow.
#[test]
fn a_flush_completes_while_another_stream_seals() {
    let mut world = World::new(small(SIZE, 4));
    world.plan.latency_ns = 1_000_000..=1_000_000;
    let drive = world.open();
    drive.with_core(seal_meta);
    world.run(drive.flush_log()).unwrap();
    let seq = world.run(async {
        drive.write(0, &[7; 100]).await.unwrap();
        let beside = async {
            drive.clock.sleep_ns(100_000).await;
            let seq = drive.core().log().sealed_seq();
            drive.with_core(seal_meta);
            seq
        };
        let (flushed, seq) = futures_util::future::join(drive.flush(), beside).await;
        flushed.unwrap();
        seq
    });
    world.run(world.runtime.sleep_ns(3_000_000_000));
    assert_eq!(drive.core().log().durable_seq(), drive.core().log().sealed_seq());
    let segment = drive.core().log().tail(Stream::Host).unwrap().segment.0;
    world.run(drive.layers().crash()).unwrap();
    world.kill(drive);
    let batches = damage::batches(&world, segment);
    let flushed = batches.iter().find(|header| header.seq == seq).unwrap();
    world.flip_for_good(segment, flushed.offset + 20);
    assert_eq!(world.refusal().kind(), ErrorKind::Corrupt, "cut as a torn tail");
}

/// After a lack of space, the batch is appended again without durability, and later durable appends
/// do not make it durable.
#[test]
fn a_batch_that_lacked_space_becomes_durable_by_a_sync() {
    for failing in 1..=4 {
        let mut world = World::new(small(SIZE, 4));
        let drive = open(&world);
        write_flushed(&world, &drive, 0);
        let no_space_errors = Trigger::Nth(failing);
        let latency_ns = 0..=500_000;
        drive.layers().set_plan(FaultPlan { no_space_errors, latency_ns, ..FaultPlan::default() });
        let writes = (0..4_u64).map(|block| {
            let drive = &drive;
            async move {
                drive.write(block * BLOCK, &[block as u8 + 1; BLOCK_BYTES]).await.unwrap();
                while let Err(error) = drive.flush().await {
                    assert_eq!(error.kind(), ErrorKind::NoSpace);
                    drive.clock.sleep_ns(100_000_000).await;
                }
            }
        });
        world.run(futures_util::future::join_all(writes));
        assert!(counts(&drive).syncs > 2, "no sync after the opening's");
        world.run(drive.layers().crash()).unwrap();
        world.kill(drive);
        world.seed += 1;
        let drive = world.open();
        for block in 0..4_u64 {
            let read = world.read(&drive, block * BLOCK, BLOCK_BYTES).unwrap();
            assert_eq!(read, [block as u8 + 1; BLOCK_BYTES], "block {block}, failing {failing}");
        }
        world.close(drive);
    }
}

/// Power fails while durable appends, plain ones and syncs are in progress concurrently. Data for
/// which a flush has returned survives, whatever happens to the rest.
#[test]
fn power_loss_with_plain_batches_loses_nothing_flushed() {
    let mut durable = 0;
    for seed in 0..200_u64 {
        let mut world = World::new(small(SIZE, 4));
        world.plan.latency_ns = 0..=1_000_000;
        world.seed = seed;
        let drive = open(&world);
        let flushed = Rc::new(RefCell::new([0_u8; 8]));
        for task in 0..8_u64 {
            let (drive, flushed) = (drive.clone(), flushed.clone());
            let clock = world.runtime.clone();
            let mut random = random(seed * 8 + task);
            world.runtime.spawn(async move {
                for round in 1..200_u8 {
                    let pause_ns = rand::RngExt::random_range(&mut random, 0..1_500_000);
                    clock.sleep_ns(pause_ns).await;
                    let block = [round; BLOCK_BYTES];
                    if drive.write(task * BLOCK, &block).await.is_err() {
                        return;
                    }
                    if rand::RngExt::random_range(&mut random, 0..4) == 0 {
                        drive.with_core(|core| core.seal(Stream::Host));
                    } else if drive.flush().await.is_ok() {
                        flushed.borrow_mut()[task as usize] = round;
                    }
                }
            });
        }
        let moment_ns = rand::RngExt::random_range(&mut random(seed), 0..30_000_000);
        world.run(async {
            world.runtime.sleep_ns(moment_ns).await;
            drive.layers().crash().await.unwrap();
        });
        durable += drive.info().operations.durable_appends;
        world.kill(drive);
        world.plan = FaultPlan::default();
        let drive = world.open();
        for (task, &round) in flushed.borrow().iter().enumerate() {
            let read = world.read(&drive, task as u64 * BLOCK, BLOCK_BYTES).unwrap();
            assert!(read[0] >= round, "seed {seed}: task {task} had flushed {round}: {}", read[0]);
        }
        world.close(drive);
    }
    assert!(durable > 1000, "{durable} durable appends: too tame a test");
}
