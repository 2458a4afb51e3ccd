//! Goal: garbage collection and checkpoints lose no durable data, whenever the process or the power
//! dies; everything that they read, move, refer to and free is accounted for exactly. Method: lives
//! of a drive that holds little more than its disk, with a writer that knows the possible contents
//! of each block and a concurrent reader. Single steps are driven directly where a random life
//! would hardly ever meet them.

use std::cell::RefCell;

use rand::RngExt;

use super::*;
use crate::base::SeqNo;
use crate::base::seed::{Random, random};
use crate::controller::core::{MoveReason, Wakes};
use crate::controller::log::records::records;
use crate::controller::log::segment_scan::SegmentScan;
use crate::controller::maintenance::Mover;
use crate::format::{RECORD_HEADER_BYTES, Record};

const BLOCKS: u64 = 1536;
const SEEDS: u64 = 5;
const LIVES: u64 = 5;

/// Returns a block of the host. Its version is its first eight bytes, 0 for a trimmed block. A
/// third of the blocks are noise, a third half noise, and in the last third an entire frame is
/// smaller than a part of it alone.
fn content(version: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES];
    if version > 0 {
        let noise = [BLOCK_BYTES, BLOCK_BYTES / 2, 0][(version >> 20) as usize % 3];
        block[8..].fill(0x55);
        let noise = payload::noise(&mut random(version), noise.max(8));
        block[..noise.len()].copy_from_slice(&noise);
        block[..8].copy_from_slice(&version.to_le_bytes());
    }
    block
}

/// The possible contents of each block.
struct Disk {
    /// Versions that may be found after a crash: the durable one and all later ones.
    allowed: Vec<Vec<u64>>,
    /// Number of starts and ends of changes; odd while a change is in progress.
    changes: Vec<u64>,
    writes: u64,
    victims: u64,
    checkpoints: u64,
}

type Shared = Rc<RefCell<Disk>>;

impl Disk {
    fn begin(&mut self, lba: u64, count: u64, trims: bool) -> Vec<u8> {
        self.writes += 1;
        let mut data = Vec::new();
        for lba in lba..lba + count {
            let version = if trims { 0 } else { self.writes << 20 | lba };
            self.allowed[lba as usize].push(version);
            self.changes[lba as usize] += 1;
            data.extend(content(version));
        }
        data
    }

    fn end(&mut self, lba: u64, count: u64) {
        for lba in lba..lba + count {
            self.changes[lba as usize] += 1;
        }
    }

    fn flushed(&mut self) {
        for versions in &mut self.allowed {
            versions.drain(..versions.len() - 1);
        }
    }

    /// Checks that each block may have the content found after a crash, and adopts that content.
    fn compare(&mut self, found: &[u8], when: &str) {
        for (lba, block) in found.chunks(BLOCK_BYTES).enumerate() {
            let version = u64::from_le_bytes(block[..8].try_into().unwrap());
            let allowed = &mut self.allowed[lba];
            assert!(allowed.contains(&version), "{when}: LBA {lba} is {version}, not {allowed:?}");
            assert!(block == content(version), "{when}: LBA {lba}");
            *allowed = vec![version];
            self.changes[lba] &= !1;
        }
    }
}

/// Writes, trims and flushes until a request fails.
async fn write(drive: Rc<Drive>, disk: Shared, mut random: Random) {
    loop {
        let count = random.random_range(1..=24);
        let lba = random.random_range(0..=BLOCKS - count);
        let kind = random.random_range(0..40);
        let data = disk.borrow_mut().begin(lba, count, kind == 0);
        let fua = kind < 3;
        let done = match kind {
            0 => with(fua, &drive, drive.trim(lba * BLOCK, count * BLOCK)).await,
            _ => with(fua, &drive, drive.write(lba * BLOCK, &data)).await,
        };
        if let Err(error) = done {
            assert_ne!(error.kind(), ErrorKind::NoSpace, "the drive is full");
            return;
        }
        disk.borrow_mut().end(lba, count);
        if fua {
            disk.borrow_mut().flushed();
        }
    }
}

/// Reads blocks. Each must have its last acknowledged content if no task is changing it.
async fn read(drive: Rc<Drive>, disk: Shared, mut random: Random, failed: Rc<Cell<u32>>) {
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        drive.clock.sleep_ns(random.random_range(1000..400_000)).await;
        let lba = random.random_range(0..BLOCKS) as usize;
        let before = disk.borrow().changes[lba];
        match drive.read(lba as u64 * BLOCK, &mut block).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => failed.set(failed.get() + 1),
            Err(_) => return,
            Ok(()) => {
                let disk = disk.borrow();
                if before.is_multiple_of(2) && disk.changes[lba] == before {
                    let expected = content(*disk.allowed[lba].last().unwrap());
                    failed.set(failed.get() + u32::from(block != expected));
                }
            }
        }
    }
}

/// Runs one life: reads and writes until the process or the power dies.
fn live(world: &World, options: OpenOptions, random_of: &mut Random, disk: &Shared, when: &str) {
    let drive = world.try_open(options).unwrap();
    let failed = Rc::new(Cell::new(0));
    let writer = write(drive.clone(), disk.clone(), random(random_of.random()));
    world.runtime.spawn(writer);
    for _ in 0..3 {
        let seed = random(random_of.random());
        world.runtime.spawn(read(drive.clone(), disk.clone(), seed, failed.clone()));
    }
    let last = disk.borrow().writes + random_of.random_range(300..900);
    world.run(async {
        while disk.borrow().writes < last {
            world.runtime.sleep_ns(random_of.random_range(1000..200_000)).await;
        }
    });
    if random_of.random() {
        world.run(drive.layers().crash()).unwrap();
    }
    assert_eq!(failed.get(), 0, "{when}: reads failed");
    let operations = drive.info().operations;
    disk.borrow_mut().victims += operations.gc_victims;
    disk.borrow_mut().checkpoints += operations.checkpoints;
    world.kill(drive);
    // Read-only: recovery alone found the live bytes, and no checkpoint is in progress.
    let drive = world.try_open(OpenOptions { read_only: true, ..options }).unwrap();
    let found = world.read(&drive, 0, (BLOCKS * BLOCK) as usize).unwrap();
    disk.borrow_mut().compare(&found, when);
    assert_accounting(&drive);
    world.kill(drive);
}

fn flip_superblock(world: &World, slot: u32) {
    let mut bytes = world.run(world.memory.read_superblock(slot)).unwrap();
    bytes[100] ^= 1;
    world.run(world.memory.write_superblock(slot, bytes)).unwrap();
}

/// Runs lives with the same garbage collection.
fn live_and_die(options: OpenOptions) {
    let (mut victims, mut checkpoints) = (0, 0);
    for seed in 0..SEEDS {
        let mut random = random(seed);
        let mut world = World::new(small(BLOCKS * BLOCK, 4));
        world.plan.latency_ns = 1000..=random.random_range(2000..500_000);
        let disk = Shared::new(RefCell::new(Disk {
            allowed: vec![vec![0]; BLOCKS as usize],
            changes: vec![0; BLOCKS as usize],
            writes: 0,
            victims: 0,
            checkpoints: 0,
        }));
        for life in 0..LIVES {
            world.seed = seed * LIVES + life;
            live(&world, options, &mut random, &disk, &format!("seed {seed}, life {life}"));
        }
        world.plan = FaultPlan::default();
        assert_eq!(world.check().problems, [], "seed {seed}");
        // Either of the two slots alone refers to complete structures.
        flip_superblock(&world, seed as u32 % 2);
        let drive = world.try_open(options).unwrap();
        let found = world.read(&drive, 0, (BLOCKS * BLOCK) as usize).unwrap();
        disk.borrow_mut().compare(&found, "one superblock");
        world.close(drive);
        victims += disk.borrow().victims;
        checkpoints += disk.borrow().checkpoints;
    }
    assert!(
        victims > 30 && checkpoints > 10,
        "too tame: {victims} victims, {checkpoints} checkpoints"
    );
}

fn every(checkpoint_bytes: u64) -> OpenOptions {
    OpenOptions { checkpoint_bytes, ..OpenOptions::default() }
}

#[test]
fn deaths_under_garbage_collection_and_checkpoints_lose_nothing() {
    live_and_die(every(1 << 20));
}

#[test]
fn deaths_under_garbage_collection_lose_nothing() {
    live_and_die(every(64 << 20));
}

#[test]
fn deaths_under_garbage_collection_that_recompresses_lose_nothing() {
    let recompress = Some(Codec::Zstd { level: 1 });
    live_and_die(OpenOptions { recompress, ..every(64 << 20) });
}

/// Takes free segments away until `left` remain. Returns the taken ones.
pub(crate) fn take_free_segments(drive: &Drive, left: u32) -> Vec<SegmentId> {
    drive.with_core(|core| {
        let space = core.space_mut();
        let mut taken = Vec::new();
        while space.free_count() > left {
            taken.push(space.allocate(Stream::Moved, 1).unwrap());
        }
        taken
    })
}

/// The age of data is the age of the host's write, however often the data was moved.
#[test]
fn a_frame_moved_twice_names_the_batch_in_which_the_host_wrote_it() {
    let world = World::new(small(4 << 20, 4));
    let drive = world.open();
    world.run(drive.write_durable(0, &payload::noise(&mut random(1), 8 * BLOCK_BYTES))).unwrap();
    let birth = drive.core().log().sealed_seq();
    for _ in 0..2 {
        let Mapping::Frame { place, .. } = drive.core().map().peek(Lba(0)).resident().0 else {
            panic!("LBA 0 is no frame");
        };
        world.run(move_all(&drive, place.segment));
        drive.with_core(|core| core.seal(Stream::Moved));
        world.run(drive.flush_log()).unwrap();
    }
    let tail = drive.core().log().tail(Stream::Moved).unwrap();
    let births = world.run(births_in(&drive, tail.segment));
    assert_eq!(births, [birth; 2]);
    let age = drive.core().space().table()[tail.segment.0 as usize].age;
    assert_eq!(age, birth);
    assert_accounting(&drive);
}

/// Guards against the loss of flushed writes: after a crash, a batch with a copy of a damaged frame
/// must not look like a torn tail.
#[test]
fn a_damaged_frame_that_was_moved_does_not_end_the_log() {
    let world = World::new(Spec { frame_form: FrameForm::Solid, ..small(4 << 20, 4) });
    let drive = world.open_without_collector();
    let noise = payload::noise(&mut random(1), 8 * BLOCK_BYTES);
    world.run(drive.write_durable(0, &noise)).unwrap();
    let place = |drive: &Drive| match drive.core().map().peek(Lba(0)).resident().0 {
        Mapping::Frame { place, .. } => place,
        other => panic!("LBA 0 is {other:?}"),
    };
    world.flip(0, place(&drive).offset + RECORD_HEADER_BYTES as u32 + 9);
    // The frame is moved whole, and then again with a dead block.
    world.run(move_all(&drive, SegmentId(0)));
    drive.with_core(|core| core.seal(Stream::Moved));
    world.run(drive.write_durable(BLOCK, &noise[..BLOCK_BYTES])).unwrap();
    let moved = place(&drive).segment;
    world.run(move_all(&drive, moved));
    drive.with_core(|core| core.seal(Stream::Moved));
    world.run(drive.write_durable(8 * BLOCK, &noise)).unwrap();
    world.kill(drive);
    let drive = world.open();
    assert!(world.read(&drive, 8 * BLOCK, noise.len()).unwrap() == noise, "a flushed write");
    assert!(world.read(&drive, BLOCK, BLOCK_BYTES).unwrap() == noise[..BLOCK_BYTES]);
    for lba in [0, 2, 7] {
        let error = world.read(&drive, lba * BLOCK, BLOCK_BYTES).unwrap_err();
        assert_eq!((error.kind(), error.lba()), (ErrorKind::Corrupt, Some(Lba(lba))));
    }
    assert_accounting(&drive);
    world.close(drive);
    let problems = world.check().problems;
    assert!(problems.iter().all(|problem| problem.lba == Some(0)), "{problems:?}");
    assert!(!problems.is_empty());
    rebuilding::assert_records_lose(&world, &[(0, 1), (2, 6)]);
}

/// A frame whose parts would be longer than the whole is copied with its dead block. Its length is
/// not a multiple of its number of blocks, so the share of live blocks depends on which ones they
/// are.
#[test]
fn the_live_pieces_of_a_moved_frame_keep_their_own_shares() {
    let world = World::new(Spec { frame_form: FrameForm::Solid, ..small(4 << 20, 4) });
    let drive = world.open();
    let noise = payload::noise(&mut random(1), BLOCK_BYTES);
    world.write(&drive, 0, &noise.repeat(5)).unwrap();
    world.run(drive.write_durable(2 * BLOCK, &noise)).unwrap();
    world.run(move_all(&drive, SegmentId(0)));
    let Mapping::Frame { place, index } = drive.core().map().peek(Lba(3)).resident().0 else {
        panic!("LBA 3 is no frame");
    };
    assert!(place.segment > SegmentId(0) && (place.blocks, index) == (5, 3), "{place:?} {index}");
    assert_ne!(place.share(index, 2), place.share(0, 2));
    let Mapping::Frame { place: newer, .. } = drive.core().map().peek(Lba(2)).resident().0 else {
        panic!("LBA 2 is no frame");
    };
    assert_ne!(newer, place, "older content is back");
    assert_accounting(&drive);
}

fn scan(drive: &Drive, segment: SegmentId) -> SegmentScan<'_> {
    let shape = drive.core().superblock().shape();
    let generation = drive.core().space().generation(segment);
    SegmentScan::new(drive.medium(), drive.uuid(), &shape, segment, generation)
}

pub(crate) async fn move_all(drive: &Drive, segment: SegmentId) {
    let mut mover = Mover::new(drive, MoveReason::Empty);
    let mut scan = scan(drive, segment);
    while let Some((header, body)) = scan.next().await {
        for found in records(drive.medium.cipher(), &header, body) {
            mover.move_record(header.seq, &found.unwrap()).await.unwrap();
        }
    }
}

/// Returns the births of the sources of all frames in a segment.
async fn births_in(drive: &Drive, segment: SegmentId) -> Vec<SeqNo> {
    let mut births = Vec::new();
    let mut scan = scan(drive, segment);
    while let Some((header, body)) = scan.next().await {
        for found in records(drive.medium.cipher(), &header, body).map(|found| found.unwrap()) {
            if matches!(found.record, Record::Data { .. }) {
                let sources = found.sources(drive.medium.cipher());
                births.extend(sources.iter().map(|source| source.birth));
            }
        }
    }
    births
}

/// A checkpoint that finds no space leaves the previous one unchanged, accounted for to the byte.
#[test]
fn a_checkpoint_that_fails_leaves_the_one_before() {
    let world = World::new(small(4 << 20, 4));
    // Without garbage collection, which would free space.
    let drive = world.open_without_collector();
    let data = payload::noise(&mut random(1), 64 << 10);
    world.write(&drive, 0, &data).unwrap();
    world.run(drive.checkpoint()).unwrap();
    take_free_segments(&drive, 0);
    let mut completed = 0;
    let (refused, named) = loop {
        assert!(completed < 5000, "checkpoints take no room");
        let named = drive.core().metadata();
        drive.with_core(|core| core.map_mut().touch_leaf(0));
        match world.run(drive.checkpoint()) {
            Ok(()) => completed += 1,
            Err(error) => break (error, named),
        }
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    let still_named = drive.core().metadata();
    assert!(named.iter().all(|place| still_named.contains(place)), "{named:?}, {still_named:?}");
    assert_accounting(&drive);
    world.kill(drive);
    let drive = world.open();
    assert!(world.read(&drive, 0, data.len()).unwrap() == data);
    assert_accounting(&drive);
}

/// Unreadable batches that a later batch vouches for are not a torn tail.
#[test]
fn a_log_whose_end_cannot_be_read_does_not_end_there() {
    let (world, _) = damage::written();
    let drive = world.open();
    let data = vec![7; 100_000];
    world.run(drive.write_durable(0, &data)).unwrap();
    world.run(world.runtime.sleep_ns(2_000_000_000));
    world.kill(drive);
    let mut batches = damage::batches(&world, 0);
    batches.pop().unwrap();
    let last = batches.pop().unwrap();
    assert_eq!(last.seq.0, 4);
    world.remove_echo(&last);
    let bad = RefCell::new(Some((SegmentId(0), last.offset..last.offset + 512)));
    let medium = Rc::new(reading::BadSector { inner: world.memory.clone(), bad });
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let open = || world.run(Drive::open(medium.clone(), world.runtime.clock(), options));
    assert_eq!(open().map(|_| ()).unwrap_err().kind(), ErrorKind::Medium);
    // Unreadable bytes beyond the end, where nothing was written, are not a loss.
    let beyond = last.offset + last.batch_bytes() as u32 + (64 << 10);
    medium.bad.replace(Some((SegmentId(0), beyond..beyond + 512)));
    let drive = open().unwrap();
    let mut out = vec![0; data.len()];
    world.run(drive.read(0, &mut out)).unwrap();
    assert!(out == data);
}

/// Power fails while a checkpoint's superblocks are being written. One of them is intact.
#[test]
fn power_loss_between_superblocks_leaves_one() {
    for seed in 0..60 {
        let mut world = World::new(small(4 << 20, 4));
        world.seed = seed;
        let drive = world.open();
        let data = payload::noise(&mut random(seed), 64 << 10);
        world.run(drive.write_durable(0, &data)).unwrap();
        let latency_ns = 1_000_000..=1_000_000;
        drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
        let writes = || drive.layers().inner().counts().superblock_writes;
        let (before, more) = (writes(), 1 + seed % 2);
        let checkpointing = drive.clone();
        world.runtime.spawn(async move { drop(checkpointing.checkpoint().await) });
        world.run(async {
            while writes() < before + more {
                world.runtime.sleep_ns(100_000).await;
            }
            drive.layers().crash().await.unwrap();
        });
        world.kill(drive);
        let drive = world.open();
        assert!(world.read(&drive, 0, data.len()).unwrap() == data, "seed {seed}");
        world.kill(drive);
    }
}

/// Guards against a block that reads as the earlier content at its location, from before the
/// segment was reused.
#[test]
fn frames_of_a_segment_that_is_given_back_are_forgotten() {
    let world = World::new(small(4 << 20, 4));
    let drive = world.open();
    let noise = payload::noise(&mut random(1), 1 << 20);
    for _ in 0..6 {
        world.run(drive.write_durable(0, &noise)).unwrap();
    }
    let offset = crate::format::SEGMENT_HEADER_BYTES as u32;
    let place = FrameAddress { segment: SegmentId(0), offset };
    let wanted = frame_cache::Wanted { address: place, lba: Lba(0), bytes: BLOCK_BYTES };
    drive.cache.fill(wanted, |_| Ok::<_, Error>(())).unwrap();
    assert!(matches!(drive.cache.begin(wanted, |_| ()), frame_cache::Lookup::Hit(())));
    assert_eq!(drive.core().space().live_bytes_of(SegmentId(0)), 0);
    take_free_segments(&drive, 6);
    world.run(drive.checkpoint()).unwrap();
    drive.with_core(|core| core.wake(Wakes::COLLECTOR));
    world.run(world.runtime.sleep_ns(1_000_000_000));
    assert!(drive.core().space().is_free(SegmentId(0)), "too tame a test");
    assert!(matches!(drive.cache.begin(wanted, |_| ()), frame_cache::Lookup::Miss));
    world.kill(drive);
}
