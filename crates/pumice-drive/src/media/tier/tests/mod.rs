//! Goal: whatever happens to the local medium, the drive in the bucket is a prefix of the sequence
//! of writes, no shorter than the newest counted commit; one of two writers is refused; nothing
//! that a counted commit refers to is missing; no flushed data is lost as long as the journal
//! exists. Method: a [`World`] has a simulated store in virtual time, which verifies the bucket
//! after each operation, and writers that write one block after the other, so that the content of
//! the disk reveals the length of the prefix.
//!
//! * `ending`: closing in an outage, and commits that fail.
//! * `following`: the next image of a reader.
//! * `objects`: arbitrary bytes.
//! * `remains`: remains of other machines and of earlier openings.
//! * `store`: the simulated store.
//! * `warm`: the speed of flushes.
//! * `worlds`: outages, lost journals, and several writers at any moment.

mod ending;
mod following;
mod objects;
mod remains;
mod store;
mod warm;
mod worlds;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use uuid::Uuid;

use self::store::{Client, Faults, Gate, Sim};
use super::local::geometry;
use super::state::Evicted;
use super::{BucketView, Durable, Options, Shape, Tier};
use crate::base::{AlignedBuffer, Clock, ErrorKind, Result, SegmentId};
use crate::controller::{Drive, OpenOptions, Spec, create};
use crate::media::layer::{Fault, FaultPlan, Trigger};
use crate::media::mem::MemMedium;
use crate::media::{Medium, Remote};
use crate::runtime::Runtime;

const SEGMENT_BYTES: u32 = 4 << 20;
const SLOTS: u32 = 20;
const BLOCK: usize = 4096;
/// Blocks of the disk that are written.
const BLOCKS: u64 = 1 << 10;
const SIZE: u64 = 32 << 20;

type Local = Rc<Fault<MemMedium, Runtime>>;
type TestTier = Rc<Tier<Local, Client, Runtime>>;
struct World {
    runtime: Runtime,
    sim: Rc<Sim>,
    nonces: Cell<u128>,
    options: Options,
    seed: u64,
}

/// A machine with an open drive.
struct Machine {
    tier: TestTier,
    drive: Rc<Drive>,
    gate: Gate,
}

fn spec() -> Spec {
    Spec {
        segment_bytes: SEGMENT_BYTES,
        capacity_bytes: Some(40 * u64::from(SEGMENT_BYTES)),
        ..Spec::new(Uuid::from_u128(0x5eed), SIZE)
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let runtime = Runtime::simulated();
        let sim = Sim::new(&runtime, seed, SEGMENT_BYTES);
        let options = Options { host: "first".into(), ..Options::default() };
        Self { runtime, sim, nonces: Cell::new(1), options, seed }
    }

    fn nonce(&self) -> Uuid {
        Uuid::from_u128(self.nonces.replace(self.nonces.get() + 1))
    }

    fn journal(&self) -> MemMedium {
        MemMedium::new(1 << 30)
    }

    fn local(&self, journal: &MemMedium) -> Local {
        // In half of the worlds, the previous content of a slot reappears in it, as on a block
        // device without discard.
        let keeps_old = self.seed.is_multiple_of(2);
        let discards_ignored = if keeps_old { Trigger::Probability(1.0) } else { Trigger::Never };
        let latency_ns = 0..=3_000_000;
        let plan = FaultPlan { latency_ns, discards_ignored, ..FaultPlan::default() };
        let seed = self.seed ^ self.nonces.get() as u64;
        Rc::new(Fault::new(journal.clone(), self.runtime.clone(), seed, plan))
    }

    fn shape(&self) -> Shape {
        Shape { uuid: Uuid::from_u128(7), segment_bytes: SEGMENT_BYTES, slots: SLOTS }
    }

    /// Creates the drive. Both its journal and the bucket have everything.
    async fn create(&self, journal: &MemMedium) -> Result<()> {
        let (client, _) = self.sim.client();
        let (local, clock) = (self.local(journal), self.runtime.clone());
        let options = self.options.clone();
        let tier = Tier::create(local, client, clock, self.shape(), self.nonce(), options).await?;
        create(&tier, &spec()).await?;
        tier.finish().await
    }

    async fn machine(&self, tier: Tier<Local, Client, Runtime>, gate: Gate) -> Result<Machine> {
        let tier = Rc::new(tier);
        let options = OpenOptions { checkpoint_bytes: 4 << 20, ..OpenOptions::default() };
        let drive = Drive::open(tier.clone(), self.runtime.clock(), options).await?;
        Ok(Machine { tier, drive, gate })
    }

    async fn open_on(&self, local: Local) -> Result<Machine> {
        let (client, gate) = self.sim.client();
        let clock = self.runtime.clone();
        let tier = Tier::open(local, client, clock, self.nonce(), &self.options.host).await?;
        self.machine(tier, gate).await
    }

    async fn open(&self, journal: &MemMedium) -> Result<Machine> {
        self.open_on(self.local(journal)).await
    }

    async fn take_over(&self, journal: &MemMedium) -> Result<Machine> {
        let (client, gate) = self.sim.client();
        let (clock, options) = (self.runtime.clone(), self.options.clone());
        let local = self.local(journal);
        let tier = Tier::take_over(local, client, clock, SLOTS, self.nonce(), options).await?;
        self.machine(tier, gate).await
    }

    /// Opens the drive in the bucket for reading.
    async fn view(&self) -> Rc<Drive> {
        let (client, _) = self.sim.client();
        let view = BucketView::open(client, self.runtime.clone()).await.unwrap();
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        Drive::open(Rc::new(view), self.runtime.clock(), options).await.unwrap()
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}

/// Returns the content of a block after write `number`: incompressible, so that the log grows.
fn content(number: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    for (at, word) in block.chunks_mut(8).enumerate() {
        let mixed = crate::base::seed::mix(number << 16 | at as u64);
        word.copy_from_slice(&mixed.to_le_bytes());
    }
    block[..8].copy_from_slice(&number.to_le_bytes());
    block
}

/// Returns the block that write `number` goes to. The order is random, and each block is written
/// often.
fn block_of(number: u64) -> u64 {
    crate::base::seed::mix(number) % BLOCKS
}

async fn write(drive: &Drive, number: u64) -> Result<()> {
    drive.write(block_of(number) * BLOCK as u64, &content(number)).await
}

/// Returns how many writes a disk has, after verifying that its content is exactly their result.
async fn prefix(drive: &Drive) -> u64 {
    let mut disk = vec![0; BLOCKS as usize * BLOCK];
    drive.read(0, &mut disk).await.unwrap();
    let stamp = |block: &[u8]| u64::from_le_bytes(block[..8].try_into().unwrap());
    let newest = disk.chunks(BLOCK).map(stamp).max().unwrap();
    let mut expected = vec![0_u64; BLOCKS as usize];
    (1..=newest).for_each(|number| expected[block_of(number) as usize] = number);
    for (block, &number) in disk.chunks(BLOCK).zip(&expected) {
        let is_right = if number == 0 {
            block.iter().all(|&byte| byte == 0)
        } else {
            block == content(number)
        };
        assert!(is_right, "the disk is no prefix of {newest} writes");
    }
    newest
}

#[test]
fn a_drive_whose_journal_is_lost_is_taken_over() {
    let world = World::new(1);
    let (journal, other) = (world.journal(), world.journal());
    world.run(async {
        world.create(&journal).await.unwrap();
        let machine = world.open(&journal).await.unwrap();
        // More writes than fit in the slots of the journal.
        for number in 1..=30_000 {
            write(&machine.drive, number).await.unwrap();
        }
        machine.drive.close().await.unwrap();
        machine.tier.finish().await.unwrap();
        assert_eq!(machine.tier.status().lag_bytes, 0);
    });
    world.runtime.drop_tasks();
    world.run(async {
        let drive = world.view().await;
        assert_eq!(prefix(&drive).await, 30_000, "for reading");
        let machine = world.take_over(&other).await.unwrap();
        assert_eq!(prefix(&machine.drive).await, 30_000);
        for number in 30_001..=31_000 {
            write(&machine.drive, number).await.unwrap();
        }
        machine.drive.flush().await.unwrap();
    });
    world.runtime.drop_tasks();
    world.run(async {
        let machine = world.open(&other).await.unwrap();
        assert_eq!(prefix(&machine.drive).await, 31_000, "what is flushed is in the journal");
        let refused = world.open(&journal).await.err().expect("the first machine is refused");
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert!(refused.chain().contains("another machine (first)"), "{}", refused.chain());
    });
}

/// Returns a copy of the durable content of a journal.
async fn copy_of(world: &World, journal: &MemMedium) -> MemMedium {
    let copy = world.journal();
    let geometry = geometry(SEGMENT_BYTES, SLOTS);
    copy.set_geometry(geometry).unwrap();
    for slot in 0..2 {
        let bytes = journal.read_superblock(slot).await.unwrap();
        copy.write_superblock(slot, bytes).await.unwrap();
    }
    for segment in (0..geometry.segment_count).map(SegmentId) {
        let buffer = AlignedBuffer::zeroed(geometry.segment_bytes as usize);
        let (bytes, read) = journal.read(segment, 0, buffer).await;
        read.unwrap();
        copy.append(segment, 0, Arc::new(bytes)).await.unwrap();
    }
    copy
}

#[test]
fn an_earlier_copy_of_the_journal_is_refused() {
    let world = World::new(2);
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let machine = world.open(&journal).await.unwrap();
        write(&machine.drive, 1).await.unwrap();
        machine.drive.flush().await.unwrap();
        machine.tier.finish().await.unwrap();
        let copy = copy_of(&world, &journal).await;
        write(&machine.drive, 2).await.unwrap();
        machine.drive.flush().await.unwrap();
        machine.tier.finish().await.unwrap();
        let error = world.open(&copy).await.err().expect("the copy lacks a commit");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.chain().contains("older than the bucket"), "{}", error.chain());
        // That does not fence the journal that is in use.
        write(&machine.drive, 3).await.unwrap();
        machine.drive.flush().await.unwrap();
        machine.tier.finish().await.unwrap();
    });
}

#[test]
fn a_store_without_exclusive_creation_is_refused() {
    let world = World::new(3);
    world.sim.is_lying.set(true);
    let error = world.run(world.create(&world.journal())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(world.sim.names("").iter().all(|name| name.starts_with("probe/")), "nothing is left");
}

/// Guards against a journal that takes writes and that no later process can open.
#[test]
fn a_lag_that_no_journal_can_have_is_refused() {
    let mut world = World::new(3);
    world.options.lag_ns = 86_400_000_000_001;
    let error = world.run(world.create(&world.journal())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(world.sim.names("").iter().all(|name| name.starts_with("probe/")), "nothing is left");
}

#[test]
fn nothing_is_asked_of_the_store_while_nothing_is_written() {
    let world = World::new(4);
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let machine = world.open(&journal).await.unwrap();
        write(&machine.drive, 1).await.unwrap();
        machine.drive.flush().await.unwrap();
        world.runtime.sleep_ns(60_000_000_000).await;
        assert_eq!((machine.tier.status().lag_ns, machine.tier.status().lag_bytes), (0, 0));
        let before = world.sim.operations.get();
        world.runtime.sleep_ns(86_400_000_000_000).await;
        assert_eq!(world.sim.operations.get(), before);
    });
}

#[test]
fn in_bucket_mode_a_flush_is_in_the_bucket() {
    let mut world = World::new(5);
    world.options.durable = Durable::Bucket;
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let machine = world.open(&journal).await.unwrap();
        for number in 1..=20 {
            write(&machine.drive, number).await.unwrap();
            machine.drive.flush().await.unwrap();
            let drive = world.view().await;
            assert_eq!(prefix(&drive).await, number);
        }
    });
}

#[test]
fn in_an_outage_writes_wait_at_the_limit_and_go_on_afterwards() {
    let mut world = World::new(6);
    world.options.lag_bytes_max = 8 << 20;
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let machine = world.open(&journal).await.unwrap();
        let done = Cell::new(0);
        let write_all = async {
            for number in 1..=8000 {
                write(&machine.drive, number).await.unwrap();
                done.set(number);
            }
            machine.drive.flush().await.unwrap();
        };
        world.sim.is_down.set(true);
        let mut write_all = Box::pin(write_all);
        let waits = world.runtime.timeout(3_600_000_000_000, write_all.as_mut()).await;
        assert!(waits.is_none(), "32 MiB do not fit below a limit of 8");
        assert!(done.get() > 1000, "{} writes before the limit", done.get());
        let status = machine.tier.status();
        assert!(status.lag_bytes <= 8 << 20, "{status:?}");
        assert!(status.trouble.is_some() && status.lag_ns > 3_500_000_000_000, "{status:?}");
        world.sim.is_down.set(false);
        let goes_on = world.runtime.timeout(600_000_000_000, write_all).await;
        assert!(goes_on.is_some(), "the store answers again");
        assert_eq!(prefix(&machine.drive).await, 8000);
    });
}

#[test]
fn a_slot_that_is_appended_to_is_not_given_up() {
    let world = World::new(7);
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let tier = open_tier(&world, world.local(&journal)).await;
        let segment = SegmentId(30);
        tier.append(segment, 0, page(1)).await.unwrap();
        tier.finish().await.unwrap();
        let mut append = Box::pin(tier.append(segment, BLOCK as u32, page(2)));
        let poll = futures_util::future::poll_immediate(append.as_mut());
        assert!(poll.await.is_none(), "the append is under way");
        while tier.state.evict() == Evicted::One {}
        append.await.unwrap();
        assert_eq!(tier.state.evict(), Evicted::None, "the bucket lacks a page of it");
        tier.finish().await.unwrap();
        assert!(evict_all(&world, &tier).await > 0, "all of it is in the bucket now");
        let (bytes, read) = tier.read(segment, 0, AlignedBuffer::zeroed(2 * BLOCK)).await;
        read.unwrap();
        assert_eq!((bytes[0], bytes[BLOCK]), (1, 2));
    });
}

#[test]
fn only_names_of_chunks_and_commits_are_swept() {
    let epoch = super::object::epoch_of;
    let name = super::object::Chunk { offset: 4096, bytes: 4096, epoch: 7, checksum: 0 }.name(1, 2);
    assert_eq!(epoch(&name), Some(7));
    let commit = super::object::CommitId { epoch: 8, number: 1 }.name();
    assert_eq!(epoch(&commit), Some(8));
    let wrong = ["s/x", "s/00000001/0000000000000002/00001000-00001000", "commits/00000001"];
    assert!(wrong.into_iter().all(|name| epoch(name).is_none()));
    assert_eq!(epoch(&format!("{name}-00000001")), None);
    assert_eq!(epoch(&name.replace('7', "+")), None);
    assert_eq!(epoch("claims/00000001"), None);
}

#[test]
fn objects_of_earlier_epochs_are_swept() {
    let world = World::new(8);
    let journal = world.journal();
    for life in 1..=5 {
        world.run(async {
            world.create(&journal).await.err();
            let machine = world.open(&journal).await.unwrap();
            for number in 1..=50 {
                write(&machine.drive, number).await.unwrap();
            }
            machine.drive.flush().await.unwrap();
            world.runtime.sleep_ns(10_000_000_000).await;
            // A chunk whose writer was lost before the commit that would have referred to it.
            world.sim.objects.borrow_mut().insert(
                format!("s/{life:08x}/0000000000000001/00000000-00001000-00000001"),
                Arc::from(&[0][..]),
            );
        });
        world.runtime.drop_tasks();
    }
    world.run(async {
        let machine = world.open(&journal).await.unwrap();
        machine.tier.finish().await.unwrap();
        world.runtime.sleep_ns(60_000_000_000).await;
        let own = format!("commits/{:08x}/", machine.tier.status().epoch);
        let commits = world.sim.names("commits/");
        assert!(commits.iter().all(|name| name.starts_with(&own)), "{commits:?}");
        let bytes = machine.tier.status().stored_bytes;
        let objects = world.sim.objects.borrow();
        let chunks = objects.iter().filter(|(name, _)| name.starts_with("s/"));
        let listed: usize = chunks.map(|(_, chunk)| chunk.len()).sum();
        assert_eq!(listed as u64, bytes, "the bucket has what is named, and nothing else");
    });
}

async fn open_tier(world: &World, local: Local) -> Tier<Local, Client, Runtime> {
    let (client, _) = world.sim.client();
    let clock = world.runtime.clone();
    Tier::open(local, client, clock, world.nonce(), "first").await.unwrap()
}

fn page(byte: u8) -> Arc<AlignedBuffer> {
    let mut page = AlignedBuffer::zeroed(BLOCK);
    page.fill(byte);
    Arc::new(page)
}

#[test]
fn an_old_header_never_vouches_for_the_bytes_of_another_use() {
    for seed in 0..16 {
        let world = World::new(seed);
        let journal = world.journal();
        world.run(async {
            world.create(&journal).await.unwrap();
            let local = world.local(&journal);
            let tier = open_tier(&world, local.clone()).await;
            // There are as many uses as slots, so the first ones are evicted for the last ones.
            for segment in 0..SLOTS {
                tier.append(SegmentId(segment), 0, page(1)).await.unwrap();
            }
            tier.finish().await.unwrap();
            for segment in SLOTS..SLOTS + 4 {
                tier.append(SegmentId(segment), 0, page(2)).await.unwrap();
            }
            local.crash().await.unwrap();
        });
        world.runtime.drop_tasks();
        world.run(async {
            let tier = open_tier(&world, world.local(&journal)).await;
            for segment in (0..SLOTS).map(SegmentId) {
                let (bytes, read) = tier.read(segment, 0, AlignedBuffer::zeroed(BLOCK)).await;
                read.unwrap();
                assert_eq!(bytes[0], 1, "seed {seed}, segment {segment:?}");
            }
        });
        world.runtime.drop_tasks();
    }
}

/// Returns the beginning of segment 30 after an operation on a new drive and a power loss.
fn after_power_loss(
    seed: u64,
    doing: impl AsyncFnOnce(&World, &Tier<Local, Client, Runtime>),
) -> AlignedBuffer {
    let world = World::new(seed);
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let local = world.local(&journal);
        let tier = open_tier(&world, local.clone()).await;
        doing(&world, &tier).await;
        local.crash().await.unwrap();
    });
    world.runtime.drop_tasks();
    let found = world.run(async {
        let tier = open_tier(&world, world.local(&journal)).await;
        let (bytes, read) = tier.read(SegmentId(30), 0, AlignedBuffer::zeroed(2 * BLOCK)).await;
        read.unwrap();
        bytes
    });
    world.runtime.drop_tasks();
    found
}

#[test]
fn a_durable_append_to_a_new_slot_survives_a_crash() {
    for seed in 0..8 {
        let bytes = after_power_loss(seed, async |_, tier| {
            tier.append_durably(SegmentId(30), 0, page(3)).await.unwrap();
        });
        assert_eq!(bytes[0], 3, "seed {seed}");
    }
}

/// Evicts all uses that are in the bucket, once the commit that uploaded them has released them.
/// Returns their number.
async fn evict_all(world: &World, tier: &Tier<Local, Client, Runtime>) -> u32 {
    let mut evicted = 0;
    loop {
        match tier.state.evict() {
            Evicted::One => evicted += 1,
            Evicted::AllHeld => world.runtime.sleep_ns(1_000_000).await,
            Evicted::None => return evicted,
        }
    }
}

/// The header of the use is then in another slot, which no sync has covered.
#[test]
fn a_durable_append_after_an_eviction_survives_a_crash() {
    for seed in 0..8 {
        let bytes = after_power_loss(seed, async |world, tier| {
            tier.append_durably(SegmentId(30), 0, page(3)).await.unwrap();
            tier.finish().await.unwrap();
            assert!(evict_all(world, tier).await > 0);
            tier.append_durably(SegmentId(30), BLOCK as u32, page(4)).await.unwrap();
        });
        assert_eq!((bytes[0], bytes[BLOCK]), (3, 4), "seed {seed}");
    }
}
