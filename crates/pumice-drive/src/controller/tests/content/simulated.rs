//! Goal: many concurrent requests have the same result as sequential ones, whatever the latencies
//! of the medium; and a run in virtual time is repeatable byte for byte. Method: tasks on a medium
//! whose operations take 0 to 2 ms and complete out of order.

use std::cell::RefCell;

use rand::RngExt;

use super::*;
use crate::base::seed::{Random, random};

const SIZE: u64 = 16 << 20;
const TASKS: u64 = 24;
const OPERATIONS: u64 = 120;

fn slow_world(seed: u64, segments: u64) -> World {
    let mut world = World::new(small(SIZE, segments));
    world.plan.latency_ns = 0..=2_000_000;
    world.seed = seed;
    world
}

/// Runs one task for each number to its end.
pub(crate) fn run_all<F: Future<Output = ()> + 'static>(
    world: &World,
    tasks: impl Iterator<Item = F>,
) {
    let left = Rc::new(Cell::new(0));
    let ended = Rc::new(crate::base::wait::WaitQueue::default());
    for task in tasks {
        left.set(left.get() + 1);
        let (left, ended) = (left.clone(), ended.clone());
        world.runtime.spawn(async move {
            task.await;
            left.set(left.get() - 1);
            ended.wake_all();
        });
    }
    let all_ended = ended.wait_for(|| (left.get() == 0).then_some(()));
    let in_time = world.run(world.runtime.timeout(3_600_000_000_000, all_ended));
    in_time.expect("some task waits forever");
}

/// The end of an operation: task, operation, virtual time, result.
type Event = (u64, u64, u64, u64);

/// A task that owns a part of the disk, and an array to compare it with.
struct Worker {
    drive: Rc<Drive>,
    clock: Runtime,
    number: u64,
    plain: Vec<u8>,
    random: Random,
    log: Rc<RefCell<Vec<Event>>>,
}

impl Worker {
    fn new(world: &World, drive: &Rc<Drive>, number: u64, log: &Rc<RefCell<Vec<Event>>>) -> Self {
        Self {
            drive: drive.clone(),
            clock: world.runtime.clone(),
            number,
            // Odd bounds, so that neighbours share a block and a frame.
            plain: vec![0; (SIZE / TASKS) as usize],
            random: random(world.seed * 1000 + number),
            log: log.clone(),
        }
    }

    async fn run(mut self) {
        for operation in 0..OPERATIONS {
            let result = self.step().await;
            let event = (self.number, operation, self.clock.now_ns(), result);
            self.log.borrow_mut().push(event);
        }
        let mut read = vec![0; self.plain.len()];
        self.drive.read(self.base(), &mut read).await.unwrap();
        assert!(read == self.plain, "task {}", self.number);
    }

    fn base(&self) -> u64 {
        self.number * self.plain.len() as u64
    }

    async fn step(&mut self) -> u64 {
        let limit = if self.random.random_range(0..10) == 0 { 200_000 } else { 9000 };
        let len = self.random.random_range(1..limit);
        let at = self.random.random_range(0..=self.plain.len() - len);
        let offset = self.base() + at as u64;
        let fua = self.random.random_range(0..10) == 0;
        match self.random.random_range(0..20) {
            0..11 => {
                let data = payload::any(&mut self.random, len);
                with(fua, &self.drive, self.drive.write(offset, &data)).await.unwrap();
                self.plain[at..at + len].copy_from_slice(&data);
                0
            }
            11 => {
                let zeroes = self.drive.write_zeroes(offset, len as u64, Allocation::Release);
                with(fua, &self.drive, zeroes).await.unwrap();
                self.plain[at..at + len].fill(0);
                0
            }
            12 => {
                self.drive.flush().await.unwrap();
                0
            }
            _ => {
                let mut out = vec![0xa5; len];
                self.drive.read(offset, &mut out).await.unwrap();
                assert!(out == self.plain[at..at + len], "task {} at {at}", self.number);
                crate::base::checksum::crc64(&out)
            }
        }
    }
}

/// Runs all workers and returns the events and the medium's fingerprint.
fn run_workers(seed: u64) -> (Vec<Event>, u64) {
    let world = slow_world(seed, 24);
    let drive = world.open();
    let log = Rc::new(RefCell::new(Vec::new()));
    let workers = (0..TASKS).map(|number| Worker::new(&world, &drive, number, &log).run());
    run_all(&world, workers);
    assert_accounting(&drive);
    let before = state(&drive);
    let drive = world.reopen(drive);
    assert_same_state(before, &drive);
    world.close(drive);
    assert_eq!(world.check().problems, []);
    (log.take(), world.medium_checksum())
}

/// Neighbouring tasks share blocks and frames, so this also shows that concurrent writes to
/// different parts of one block all survive.
#[test]
fn tasks_with_separate_shares_do_not_disturb_each_other_and_runs_repeat() {
    let first = run_workers(1);
    assert_eq!(first.0.len() as u64, TASKS * OPERATIONS);
    assert!(first.0.last().unwrap().2 > 1_000_000, "nothing ever waited");
    assert!(first == run_workers(1), "the same seed gave another run");
    let other = run_workers(2);
    assert!(first.0 != other.0 && first.1 != other.1, "another seed gave the same run");
}

#[test]
fn a_block_written_by_many_at_once_holds_one_of_the_values() {
    let world = slow_world(3, 16);
    let drive = world.open();
    let last = Rc::new(RefCell::new([0u8; 4]));
    let writers = (0..40u64).map(|number| {
        let (drive, last, mut random) = (drive.clone(), last.clone(), random(number));
        async move {
            for round in 0..40u64 {
                let lba = random.random_range(0..4u64);
                let value = (number * 40 + round) as u8;
                if random.random() {
                    // The block is not a fill but a frame with the value in every second byte.
                    let data: Vec<u8> = (0..4096).map(|at| [value, at as u8][at % 2]).collect();
                    drive.write(lba * BLOCK, &data).await.unwrap();
                    // No task runs between the write's place in the order and this statement.
                    last.borrow_mut()[lba as usize] = value;
                } else {
                    let mut out = vec![0; 4096];
                    drive.read(lba * BLOCK, &mut out).await.unwrap();
                    let value = out[0];
                    let whole = (0..4096).all(|at| out[at] == [value, at as u8][at % 2]);
                    assert!(whole || out.iter().all(|&byte| byte == 0), "a mixture");
                }
                if random.random_range(0..8) == 0 {
                    drive.flush().await.unwrap();
                }
            }
        }
    });
    run_all(&world, writers);
    let expected = *last.borrow();
    for lba in 0..4u64 {
        let out = world.read(&drive, lba * BLOCK, 4096).unwrap();
        assert_eq!(out[0], expected[lba as usize], "the last acknowledged write is not there");
    }
}

#[test]
fn writes_to_parts_of_one_block_all_survive() {
    let world = slow_world(4, 16);
    let drive = world.open();
    world.write(&drive, 0, &payload::noise(&mut random(1), 32 << 10)).unwrap();
    let drive = world.reopen(drive);
    let writers = (0..64u64).map(|number| {
        let (drive, clock) = (drive.clone(), world.runtime.clone());
        async move {
            for round in 0..8u64 {
                clock.sleep_ns(number * 31_000 % 900_000).await;
                // Each part has 500 bytes, so some parts cross into a second block.
                let value = (number + round) as u8;
                let data = [value; 500];
                with(round == 5, &drive, drive.write(number * 500, &data)).await.unwrap();
            }
        }
    });
    run_all(&world, writers);
    let expected: Vec<u8> = (0..64u64).flat_map(|number| [(number + 7) as u8; 500]).collect();
    assert!(world.read(&drive, 0, 32_000).unwrap() == expected);
    assert!(drive.info().operations.merged_blocks > 64 * 8, "no race was lost: too tame a test");
}

/// Guards against a panic: a write that lost the race for its edge left an empty batch near the end
/// of a segment, where the next write did not fit.
#[test]
fn a_lost_race_near_the_end_of_a_segment_leaves_no_batch_in_the_way() {
    let world = World::new(small(SIZE, 6));
    let drive = world.open();
    let noise = payload::noise(&mut random(5), 1 << 20);
    while drive.info().sequence == 0
        || drive.core().log().fit(Stream::Host, 1 << 20, u32::MAX) != log::Fit::NewSegment
    {
        world.run(drive.write_durable(0, &noise[..200 << 10])).unwrap();
    }
    let latency = |ns| FaultPlan { latency_ns: ns..=ns, ..FaultPlan::default() };
    let (clock, medium) = (world.runtime.clone(), drive.layers());
    world.run(async {
        medium.set_plan(latency(4_000_000));
        let edge = drive.write(100, &[7; 100]);
        let rival = async {
            clock.sleep_ns(1_000_000).await;
            medium.set_plan(latency(1_000_000));
            drive.write(0, &noise[..4096]).await.unwrap();
            drive.with_core(|core| core.seal(Stream::Host));
            clock.sleep_ns(3_500_000).await;
            assert_eq!(
                drive.core().log().fit(Stream::Host, 4096, u32::MAX),
                log::Fit::Open,
                "the batch of the write that lost"
            );
            assert!(!drive.core().log().has_open_records(Stream::Host));
            drive.write_durable(1 << 20, &noise).await.unwrap();
        };
        futures_util::future::join(edge, rival).await.0.unwrap();
    });
    let mut expected = noise[..4096].to_vec();
    expected[100..200].fill(7);
    assert!(world.read(&drive, 0, 4096).unwrap() == expected);
    assert!(world.read(&drive, 1 << 20, 1 << 20).unwrap() == noise);
    let drive = world.reopen(drive);
    assert!(world.read(&drive, 0, 4096).unwrap() == expected);
    assert!(world.read(&drive, 1 << 20, 1 << 20).unwrap() == noise);
}

#[test]
fn waiting_flushes_share_syncs_and_an_abandoned_one_harms_nobody() {
    let mut world = World::new(small(SIZE, 6));
    world.memory = world.memory.without_durable_appends();
    world.plan.latency_ns = 1_000_000..=1_000_000;
    let drive = world.open();
    world.write(&drive, 0, &[1; 100]).unwrap();
    let cut = world.run(world.runtime.timeout(1_500_000, drive.flush()));
    assert!(cut.is_none(), "the flush ended before its sync");
    let syncs = drive.layers().inner().counts().syncs;
    let flushers = (0..50u8).map(|number| {
        let drive = drive.clone();
        async move { drive.write_durable(u64::from(number) * 100, &[number; 100]).await.unwrap() }
    });
    run_all(&world, flushers);
    let syncs = drive.layers().inner().counts().syncs - syncs;
    assert!((1..=25).contains(&syncs), "{syncs} syncs for 50 flushes");
    assert_eq!(drive.info().watermark, drive.info().sequence);
}
