//! Goal: after a power loss at any moment, the drive holds a prefix of the order in which writes
//! were acknowledged, never shorter than the last flush, and a write of up to 1 MiB completely or
//! not at all. Method: seeded lives of one drive. Several clients write unique bytes, trim and
//! flush; at a random moment, the fault layer decides which of the unsynced writes survive. The
//! disk of the next life must equal the old one after a prefix of the journal, which holds every
//! change in the order in which the drive accepted it.

use std::cell::RefCell;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::task::Poll;

use rand::{Rng, RngExt};

use super::*;
use crate::base::seed::{Random, random};

const SIZE: usize = 3 << 20;
const CLIENTS: u64 = 6;
const SEEDS: u64 = 30;
const LIVES: u64 = 5;

/// A change of the disk: the bytes that a range holds afterwards.
#[derive(Debug)]
struct Change {
    range: Range<usize>,
    bytes: Vec<u8>,
}

/// The changes that the drive has accepted since the start of a life, in order.
#[derive(Debug, Default)]
struct Journal {
    changes: Vec<Change>,
    /// Number of changes that are known to be durable.
    durable: usize,
    flushes: u64,
    /// Requests answered with no space.
    refused: u64,
}

type Shared = Rc<RefCell<Journal>>;

struct Client {
    drive: Rc<Drive>,
    clock: Runtime,
    journal: Shared,
    random: Random,
}

impl Client {
    /// Issues requests until one fails.
    async fn run(mut self) {
        while self.step().await.is_ok() {
            let pause_ns = self.random.random_range(0..600_000);
            self.clock.sleep_ns(pause_ns).await;
        }
    }

    async fn step(&mut self) -> Result<()> {
        let (drive, random) = (self.drive.clone(), &mut self.random);
        let fua = random.random_range(0..12) == 0;
        let (offset, len) = any_range(random);
        let (at, bytes) = (offset as u64, len as u64);
        let result = match random.random_range(0..20) {
            0..14 => {
                let data = unique(random, len);
                let change = Change { range: offset..offset + len, bytes: data.clone() };
                let write = async {
                    match fua {
                        true => drive.write_durable(at, &data).await,
                        false => drive.write(at, &data).await,
                    }
                };
                self.change(change, fua, write).await
            }
            // The range consists of whole blocks, since its edges would be separate writes.
            14..17 => {
                let (at, bytes) = (at / BLOCK * BLOCK, (bytes / BLOCK).max(1) * BLOCK);
                let bytes = bytes.min(SIZE as u64 - at);
                let change = zeroes(at, bytes);
                let is_trim = random.random_range(0..3) == 0;
                let allocation = allocation(random.random());
                let zero = async {
                    match (is_trim, fua) {
                        (true, true) => drive.trim_durable(at, bytes).await,
                        (true, false) => drive.trim(at, bytes).await,
                        (false, true) => drive.write_zeroes_durable(at, bytes, allocation).await,
                        (false, false) => drive.write_zeroes(at, bytes, allocation).await,
                    }
                };
                self.change(change, fua, zero).await
            }
            _ => self.flush().await,
        };
        match result {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                self.journal.borrow_mut().refused += 1;
                Ok(())
            }
            result => result,
        }
    }

    async fn flush(&self) -> Result<()> {
        let promised = self.journal.borrow().changes.len();
        self.drive.flush().await?;
        self.promise(promised);
        Ok(())
    }

    fn promise(&self, changes: usize) {
        let mut journal = self.journal.borrow_mut();
        journal.flushes += 1;
        journal.durable = journal.durable.max(changes);
    }

    /// Runs a request and enters its change in the journal in the poll in which the drive accepts
    /// it, detected by the drive's count of record bytes. Without FUA, that poll also acknowledges
    /// it.
    async fn change(
        &self,
        change: Change,
        fua: bool,
        request: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let mut request = pin!(request);
        let mut change = Some(change);
        let mut taken = 0;
        let taken_bytes = || self.drive.core().counters().frame_bytes.get();
        poll_fn(|context| {
            let before = taken_bytes();
            let polled = request.as_mut().poll(context);
            if taken_bytes() != before {
                let mut journal = self.journal.borrow_mut();
                journal.changes.push(change.take().expect("a request was taken twice"));
                taken = journal.changes.len();
                assert!(fua || matches!(polled, Poll::Ready(Ok(()))), "taken, not acknowledged");
            }
            polled
        })
        .await?;
        assert!(taken > 0, "acknowledged, not taken");
        if fua {
            self.promise(taken);
        }
        Ok(())
    }
}

fn any_range(random: &mut Random) -> (usize, usize) {
    let len = match random.random_range(0..40) {
        0..12 => random.random_range(1..6000),
        12..36 => random.random_range(1..=12) * BLOCK_BYTES,
        36..39 => random.random_range(1..200 << 10),
        _ => ATOMIC_WRITE_BYTES,
    };
    let offset = random.random_range(0..=SIZE - len);
    let aligned = len.is_multiple_of(BLOCK_BYTES) && random.random();
    (if aligned { offset / BLOCK_BYTES * BLOCK_BYTES } else { offset }, len)
}

fn zeroes(offset: u64, len: u64) -> Change {
    let range = offset as usize..(offset + len) as usize;
    Change { bytes: vec![0; range.len()], range }
}

/// Returns bytes that differ from all others in every block: half noise, half compressible, or one
/// stamp repeated.
fn unique(random: &mut Random, len: usize) -> Vec<u8> {
    let stamp = random.next_u64().to_le_bytes();
    let mut data: Vec<u8> = stamp.into_iter().cycle().take(len).collect();
    if random.random() {
        for block in data.chunks_mut(BLOCK_BYTES) {
            let half = block.len() / 2;
            random.fill_bytes(&mut block[..half]);
        }
    }
    data
}

/// Returns the number of changes after which `old` becomes `found`, counted from the last promised
/// one on.
fn prefix_len(old: &[u8], found: &[u8], journal: &Journal) -> Option<usize> {
    let mut disk = old.to_vec();
    let mut apply = |change: &Change| disk[change.range.clone()].copy_from_slice(&change.bytes);
    let (promised, open) = journal.changes.split_at(journal.durable);
    promised.iter().for_each(&mut apply);
    let differs = |disk: &[u8], block: usize| {
        let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
        disk[range.clone()] != found[range]
    };
    let mut wrong: std::collections::BTreeSet<usize> =
        (0..SIZE / BLOCK_BYTES).filter(|&block| differs(&disk, block)).collect();
    // Uses the longest of several answers, which differ only by changes without an effect.
    let mut answer = wrong.is_empty().then_some(journal.durable);
    for (index, change) in open.iter().enumerate() {
        disk[change.range.clone()].copy_from_slice(&change.bytes);
        for block in change.range.start / BLOCK_BYTES..change.range.end.div_ceil(BLOCK_BYTES) {
            if differs(&disk, block) {
                wrong.insert(block);
            } else {
                wrong.remove(&block);
            }
        }
        if wrong.is_empty() {
            answer = Some(journal.durable + index + 1);
        }
    }
    answer
}

/// The events in the lives of all seeds, which show that the test exercised enough.
#[derive(Debug, Default)]
struct Met {
    lost_changes: usize,
    kept_unpromised: usize,
    torn: u64,
    flushes: u64,
}

/// Runs one life: opens, compares with the life before, works, loses power.
fn live(world: &World, random: &mut Random, disk: &mut Vec<u8>, met: &mut Met) {
    let drive = world.open();
    assert!(world.read(&drive, 0, SIZE).unwrap() == *disk, "the disk changed while it was off");
    let journal = Shared::default();
    for _ in 0..CLIENTS {
        let seed = crate::base::seed::random(random.next_u64());
        let (drive, clock, journal) = (drive.clone(), world.runtime.clone(), journal.clone());
        let client = Client { drive, clock, journal, random: seed };
        world.runtime.spawn(client.run());
    }
    let moment_ns = random.random_range(0..40_000_000);
    let crash = world.run(async {
        world.runtime.sleep_ns(moment_ns).await;
        drive.layers().crash().await.unwrap()
    });
    world.kill(drive);
    let drive = world.open();
    let found = world.read(&drive, 0, SIZE).unwrap();
    world.kill(drive);
    let journal = journal.take();
    let kept = prefix_len(disk, &found, &journal).unwrap_or_else(|| {
        let (taken, durable) = (journal.changes.len(), journal.durable);
        panic!("no prefix: {taken} changes, {durable} promised, {crash:?} at {moment_ns} ns")
    });
    met.lost_changes += journal.changes.len() - kept;
    met.kept_unpromised += kept - journal.durable;
    met.torn += crash.writes_torn;
    met.flushes += journal.flushes;
    *disk = found;
}

#[test]
fn power_loss_leaves_a_prefix_not_shorter_than_the_last_flush() {
    let mut met = Met::default();
    for seed in 0..SEEDS {
        let mut random = random(seed);
        let frame_blocks = [1, 8, 64][seed as usize % 3];
        let mut world = World::new(Spec { frame_blocks, ..small(SIZE as u64, 12) });
        if seed % 4 == 3 {
            world.memory = world.memory.without_durable_appends();
        }
        world.plan.latency_ns = 0..=random.random_range(1..3_000_000);
        let mut disk = vec![0; SIZE];
        for life in 0..LIVES {
            world.seed = seed * LIVES + life;
            live(&world, &mut random, &mut disk, &mut met);
        }
        world.plan = FaultPlan::default();
        let drive = world.open();
        assert_accounting(&drive);
        assert!(world.read(&drive, 0, SIZE).unwrap() == disk);
        world.close(drive);
        assert_eq!(world.check().problems, [], "seed {seed}");
    }
    let tame = met.lost_changes < 100 || met.kept_unpromised < 100 || met.torn < 50;
    assert!(!tame && met.flushes > 500, "too tame a test: {met:?}");
}

/// Power fails while the drive is being opened or closed. No acknowledged data is lost, whatever
/// happens to the superblocks.
#[test]
fn power_loss_while_opening_or_closing_loses_nothing() {
    let mut ended = 0;
    for seed in 0..60u64 {
        let mut random = random(seed);
        let mut world = World::new(small(SIZE as u64, 4));
        let drive = world.open();
        let data = unique(&mut random, 100_000);
        world.run(drive.write_durable(5000, &data)).unwrap();
        world.kill(drive);
        world.plan.latency_ns = 500_000..=1_000_000;
        world.seed = seed;
        let (medium, moment_ns) = (world.medium(), random.random_range(0..40_000_000));
        let clock = world.runtime.clone();
        let opening = Drive::open(medium.clone(), clock.clock(), OpenOptions::default());
        let life = async {
            let drive = opening.await.unwrap();
            drive.close().await.unwrap()
        };
        world.run(async {
            ended += u32::from(clock.timeout(moment_ns, life).await.is_some());
            medium.crash().await.unwrap();
        });
        world.runtime.drop_tasks();
        world.plan = FaultPlan::default();
        let drive = world.open();
        assert!(world.read(&drive, 5000, data.len()).unwrap() == data, "seed {seed}");
        world.close(drive);
    }
    assert!((5..55).contains(&ended), "{ended} of 60 lives ended before the power did");
}

/// A process dies with unsynced batches on the medium, the next one opens the drive, and power
/// fails during the opening. Batches that the new superblock declares durable must be durable.
#[test]
fn power_loss_while_opening_after_a_kill_leaves_a_drive_that_opens() {
    let mut kept = 0;
    for seed in 0..60u64 {
        let mut random = random(seed);
        let mut world = World::new(small(SIZE as u64, 4));
        world.seed = seed;
        let medium = world.medium();
        let clock = world.runtime.clone();
        let options = OpenOptions::default();
        let open = || Drive::open_without_tasks(medium.clone(), clock.clock(), options);
        let data = unique(&mut random, 100_000);
        let drive = Rc::new(world.run(open()).unwrap());
        let writer = drive.clone();
        world.runtime.spawn(async move { writer.run_writer().await });
        world.write(&drive, 0, &data).unwrap();
        drive.with_core(|core| core.seal(Stream::Host));
        world.run(world.runtime.yield_now());
        assert_eq!(drive.core().log().written_seq().0, 1, "the batch is not on the medium");
        world.kill(drive);
        medium.set_plan(FaultPlan { latency_ns: 500_000..=1_000_000, ..FaultPlan::default() });
        let moment_ns = random.random_range(0..12_000_000);
        world.run(async {
            clock.timeout(moment_ns, open()).await;
            medium.crash().await.unwrap();
        });
        world.plan = FaultPlan::default();
        let drive = world.open();
        let read = world.read(&drive, 0, data.len()).unwrap();
        assert!(
            read == data || read.iter().all(|&byte| byte == 0),
            "seed {seed}: a part of a write"
        );
        kept += u32::from(read == data);
        world.close(drive);
    }
    assert!((5..55).contains(&kept), "{kept} of 60 writes were kept: too tame a test");
}
