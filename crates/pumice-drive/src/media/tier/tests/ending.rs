//! Goal: a drive closes in time while the bucket does not answer, reports the data that the bucket
//! lacks, and never reports data as durable that is not; after a failed commit, the next one is
//! tried immediately. Method: stores that refuse everything, and stores that never answer, in
//! virtual time; the journal loses power after the drive is closed.

use super::*;
use crate::controller::NewSnapshot;

/// Longest time until a drive is closed: a minute without a response, and the rest of the close.
const END_NS: u64 = 70_000_000_000;

/// How a store fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outage {
    Refuses,
    Hangs,
}

impl Outage {
    const BOTH: [Self; 2] = [Self::Refuses, Self::Hangs];

    fn begin(self, world: &World, machine: &Machine) {
        match self {
            Self::Refuses => world.sim.is_down.set(true),
            Self::Hangs => machine.gate.stop(),
        }
    }
}

/// Closes the drive, which must fail in time, and returns the message.
async fn close(world: &World, machine: &Machine) -> String {
    let closed = world.runtime.timeout(END_NS, machine.drive.close()).await;
    closed.expect("the close ends in time").unwrap_err().chain()
}

#[test]
fn a_drive_whose_lag_is_full_closes_in_an_outage() {
    for outage in Outage::BOTH {
        let mut world = World::new(6);
        world.options.lag_bytes_max = 8 << 20;
        let journal = world.journal();
        let done = Cell::new(0);
        world.run(async {
            world.create(&journal).await.unwrap();
            let local = world.local(&journal);
            let machine = world.open_on(local.clone()).await.unwrap();
            outage.begin(&world, &machine);
            let write_all = async {
                for number in 1..=4000 {
                    write(&machine.drive, number).await.unwrap();
                    done.set(number);
                }
            };
            let waits = world.runtime.timeout(60_000_000_000, write_all).await;
            assert!(waits.is_none(), "16 MiB do not fit below a limit of 8");
            let text = close(&world, &machine).await;
            assert!(
                text.contains("the bucket lacks") && text.contains("MiB"),
                "{outage:?}: {text}"
            );
            assert!(text.contains("the next opening commits"), "{outage:?}: {text}");
            local.crash().await.unwrap();
        });
        world.runtime.drop_tasks();
        world.sim.is_down.set(false);
        world.run(async {
            let machine = world.open(&journal).await.unwrap();
            let found = prefix(&machine.drive).await;
            assert!(found >= done.get(), "{found} of {}: the journal has all", done.get());
        });
    }
}

#[test]
fn a_flush_that_waits_for_the_bucket_is_refused_when_the_drive_closes() {
    for outage in Outage::BOTH {
        let mut world = World::new(5);
        world.options.durable = Durable::Bucket;
        let journal = world.journal();
        world.run(async {
            world.create(&journal).await.unwrap();
            let machine = world.open(&journal).await.unwrap();
            write(&machine.drive, 1).await.unwrap();
            machine.drive.flush().await.unwrap();
            outage.begin(&world, &machine);
            write(&machine.drive, 2).await.unwrap();
            let close = async {
                world.runtime.sleep_ns(1_000_000_000).await;
                close(&world, &machine).await
            };
            let (flushed, text) = futures_util::future::join(machine.drive.flush(), close).await;
            let flushed = flushed.expect_err("it is not in the bucket").chain();
            for text in [flushed, text] {
                assert!(text.contains("the bucket lacks"), "{outage:?}: {text}");
            }
        });
        world.runtime.drop_tasks();
        world.sim.is_down.set(false);
        world.run(async {
            let machine = world.open(&journal).await.unwrap();
            assert_eq!(prefix(&machine.drive).await, 2, "the journal has it");
        });
    }
}

/// A drive without a local file has such a journal.
#[test]
fn data_lost_with_a_journal_in_memory_is_reported() {
    let mut world = World::new(5);
    world.options.durable = Durable::Bucket;
    world.options.is_volatile = true;
    let (journal, memory) = (world.journal(), world.journal());
    world.run(async {
        world.create(&journal).await.unwrap();
        let machine = world.take_over(&memory).await.unwrap();
        write(&machine.drive, 1).await.unwrap();
        machine.drive.flush().await.unwrap();
        world.sim.is_down.set(true);
        write(&machine.drive, 2).await.unwrap();
        let text = close(&world, &machine).await;
        assert!(text.contains("LOST") && !text.contains("the journal has them"), "{text}");
        world.sim.is_down.set(false);
        let drive = world.view().await;
        assert_eq!(prefix(&drive).await, 1, "what was flushed is there");
    });
}

/// While a drive closes, segments that are only in the bucket are read and continued.
#[test]
fn reads_of_the_bucket_do_not_keep_a_drive_from_closing() {
    for outage in Outage::BOTH {
        let world = World::new(9);
        let journal = world.journal();
        world.run(async {
            world.create(&journal).await.unwrap();
            let machine = world.open(&journal).await.unwrap();
            for number in 1..=2000 {
                write(&machine.drive, number).await.unwrap();
            }
            machine.drive.flush().await.unwrap();
            machine.tier.finish().await.unwrap();
            assert!(evict_all(&world, &machine.tier).await > 0);
            outage.begin(&world, &machine);
            write(&machine.drive, 2001).await.unwrap();
            let mut block = vec![0; BLOCK];
            let at = block_of(1) * BLOCK as u64;
            let read = world.runtime.timeout(2 * END_NS, machine.drive.read(at, &mut block));
            let close = async {
                world.runtime.sleep_ns(1_000_000_000).await;
                world.runtime.timeout(END_NS, machine.drive.close()).await
            };
            let (read, closed) = futures_util::future::join(read, close).await;
            assert!(read.expect("the read ends").is_err(), "{outage:?}");
            closed.expect("the close ends in time").unwrap_err();
        });
        world.runtime.drop_tasks();
        world.sim.is_down.set(false);
        world.run(async {
            let machine = world.open(&journal).await.unwrap();
            assert!(prefix(&machine.drive).await >= 2000, "nothing flushed is lost");
        });
    }
}

/// A slow connection, for example, may need almost a minute for an object.
#[test]
fn a_store_that_is_slow_is_waited_for() {
    let world = World::new(19);
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let machine = world.open(&journal).await.unwrap();
        for number in 1..=6000 {
            write(&machine.drive, number).await.unwrap();
        }
        world.sim.slow_ns.set(55_000_000_000);
        let begun_ns = world.runtime.now_ns();
        machine.drive.close().await.unwrap();
        assert!(world.runtime.now_ns() - begun_ns > 100_000_000_000, "it took several of them");
        assert_eq!(machine.tier.status().lag_bytes, 0);
    });
}

#[test]
fn a_view_that_is_closed_ends_nothing_of_its_drive() {
    let world = World::new(21);
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let machine = world.open(&journal).await.unwrap();
        write(&machine.drive, 1).await.unwrap();
        let (name, guid) = ("one".to_owned(), Uuid::from_u128(1));
        let new = NewSnapshot { name, guid, created_seconds: 0, yields: false };
        machine.drive.create_snapshot(new).await.unwrap();
        let view = machine.drive.view("one", OpenOptions::default()).await.unwrap();
        view.close().await.unwrap();
        drop(view);
        // This is longer than any closing may take, but the drive is not closing.
        machine.gate.stop();
        world.runtime.sleep_ns(600_000_000_000).await;
        machine.gate.resume();
        write(&machine.drive, 2).await.unwrap();
        machine.drive.close().await.unwrap();
    });
}

#[test]
fn after_a_failed_commit_the_next_one_is_tried_at_once() {
    let mut world = World::new(10);
    world.options.lag_ns = 3_600_000_000_000;
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let tier = open_tier(&world, world.local(&journal)).await;
        world.sim.is_down.set(true);
        tier.append(SegmentId(30), 0, page(1)).await.unwrap();
        for attempt in 0..2 {
            let begun_ns = world.runtime.now_ns();
            let text = tier.finish().await.unwrap_err().chain();
            assert!(text.contains("503 Slow Down"), "attempt {attempt}: {text}");
            let took_ns = world.runtime.now_ns() - begun_ns;
            assert!(took_ns < END_NS, "attempt {attempt} took {took_ns} ns");
        }
        world.sim.is_down.set(false);
        let begun_ns = world.runtime.now_ns();
        tier.finish().await.unwrap();
        let took_ns = world.runtime.now_ns() - begun_ns;
        assert!(took_ns < 5_000_000_000, "the store answers, and it took {took_ns} ns");
    });
}

#[test]
fn an_unknown_commit_is_reported_with_the_reason() {
    let world = World::new(11);
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let tier = open_tier(&world, world.local(&journal)).await;
        world.sim.is_down.set(true);
        // Nothing is uploaded before the commit itself.
        let (bytes, slot) = (tier.read_superblock(0).await.unwrap(), 0);
        tier.write_superblock(slot, bytes).await.unwrap();
        for attempt in 0..2 {
            let text = tier.finish().await.unwrap_err().chain();
            assert!(text.contains("503 Slow Down"), "attempt {attempt}: {text}");
        }
    });
}
