//! Goal: reading ahead saves a sequential reader its waiting and changes nothing else: content,
//! errors, memory, the cost of random readers. Method: counted reads in virtual time; readers next
//! to writers whose blocks contain their version; a medium with one unreadable sector.

use std::collections::BTreeMap;

use rand::RngExt;

use super::reading::BadSector;
use super::*;
use crate::base::seed::random;
use crate::media::layer::{FaultPlan, Trigger};

const SIZE: u64 = 16 << 20;
const LATENCY_NS: u64 = 100_000;
/// Number of reads of each reader next to writers.
const READS: u64 = 600;
const KIB: usize = 1 << 10;

fn options(read_ahead_bytes: usize) -> OpenOptions {
    OpenOptions { read_ahead_bytes, read_cache_bytes: 0, ..OpenOptions::default() }
}

/// Returns a closed drive that is full of `data`.
fn filled(form: FrameForm, data: &[u8]) -> World {
    let mut world = World::new(Spec { frame_form: form, ..small(SIZE, 8) });
    let drive = world.open();
    for (piece, at) in data.chunks(256 * KIB).zip((0..).step_by(256 * KIB)) {
        world.write(&drive, at, piece).unwrap();
    }
    world.close(drive);
    world.plan.latency_ns = LATENCY_NS..=LATENCY_NS;
    world
}

/// The cost of some reads.
#[derive(Clone, Copy, Debug)]
struct Cost {
    ns: u64,
    media_reads: u64,
    media_bytes: u64,
    ahead_bytes: u64,
}

/// Opens the drive, reads `len` bytes at each of `offsets`, one after the other, and returns the
/// cost.
fn cost(
    world: &World,
    options: OpenOptions,
    len: usize,
    offsets: impl Iterator<Item = u64>,
    data: &[u8],
) -> Cost {
    let drive = world.try_open(options).unwrap();
    world.run(drive.load_range(Lba(0), SIZE / BLOCK)).unwrap();
    let before = drive.layers().inner().counts();
    let begun_ns = world.runtime.now_ns();
    for offset in offsets {
        let read = world.read(&drive, offset, len).unwrap();
        assert!(read == data[offset as usize..offset as usize + len], "{len} bytes at {offset}");
        assert!(drive.ahead.memory_bytes() <= options.read_ahead_bytes);
    }
    let used = drive.layers().inner().counts() - before;
    let info = drive.info();
    let ns = world.runtime.now_ns() - begun_ns;
    let ahead_bytes = info.operations.read_ahead_bytes;
    world.close(drive);
    Cost { ns, media_reads: used.reads, media_bytes: used.read_bytes, ahead_bytes }
}

#[test]
fn a_sequential_reader_waits_less_and_reads_no_more() {
    let data = payload::noise(&mut random(1), SIZE as usize);
    for form in [FrameForm::Solid, FrameForm::Chunks] {
        let world = filled(form, &data);
        for len in [4 * KIB, 32 * KIB, 100_000, 256 * KIB] {
            let offsets = || (0..SIZE - len as u64).step_by(len);
            let without = cost(&world, options(0), len, offsets(), &data);
            let with = cost(&world, options(8 << 20), len, offsets(), &data);
            assert_eq!(without.ahead_bytes, 0);
            let what = format!("{form:?}, {len}: {without:?} {with:?}");
            assert!(with.ns < without.ns * 3 / 4, "{what}");
            assert!(len > 32 * KIB || with.media_reads < without.media_reads / 2, "{what}");
            assert!(with.media_bytes < without.media_bytes * 21 / 20, "{what}");
        }
    }
}

/// Two consecutive reads, then reads elsewhere.
#[test]
fn random_readers_read_nothing_ahead() {
    let data = payload::noise(&mut random(2), SIZE as usize);
    let world = filled(FrameForm::Solid, &data);
    let mut random = random(3);
    let mut place = || random.random_range(0..SIZE / BLOCK / 4) * 4 * BLOCK;
    let offsets: Vec<_> = (0..300).map(|_| place()).flat_map(|at| [at, at + BLOCK]).collect();
    let without = cost(&world, options(0), BLOCK_BYTES, offsets.iter().copied(), &data);
    let with = cost(&world, options(8 << 20), BLOCK_BYTES, offsets.iter().copied(), &data);
    assert_eq!(with.ahead_bytes, 0);
    assert_eq!((with.ns, with.media_bytes), (without.ns, without.media_bytes));
}

/// No more bytes are read ahead in vain than usefully.
#[test]
fn an_abandoned_read_ahead_costs_at_most_twice_the_bytes() {
    let data = payload::noise(&mut random(4), SIZE as usize);
    let world = filled(FrameForm::Solid, &data);
    let run = |at: u64| (at..at + (256 << 10)).step_by(32 * KIB);
    let offsets = || (0..SIZE).step_by(1 << 20).flat_map(run);
    let without = cost(&world, options(0), 32 * KIB, offsets(), &data);
    let with = cost(&world, options(2 << 20), 32 * KIB, offsets(), &data);
    assert!(with.ahead_bytes > 0);
    assert!(with.media_bytes <= without.media_bytes * 2, "{without:?} {with:?}");
    assert!(with.ns < without.ns, "{without:?} {with:?}");
}

#[test]
fn many_readers_at_once_keep_to_the_memory() {
    let data = payload::noise(&mut random(5), SIZE as usize);
    let world = filled(FrameForm::Solid, &data);
    let readers = |count: u64| {
        let share = SIZE / count;
        (0..share)
            .step_by(32 * KIB)
            .flat_map(move |at| (0..count).map(move |reader| reader * share + at))
    };
    for (count, budget) in [(4, 8 << 20), (16, 2 << 20)] {
        let without = cost(&world, options(0), 32 * KIB, readers(count), &data);
        let with = cost(&world, options(budget), 32 * KIB, readers(count), &data);
        assert!(with.ns < without.ns, "{count}: {without:?} {with:?}");
        let what = format!("{count}: {without:?} {with:?}");
        assert!(with.media_bytes < without.media_bytes * 3 / 2, "{what}");
    }
}

/// Garbage collection, scrubs and extents read sequentially, but are not hosts.
#[test]
fn only_hosts_are_read_ahead_of() {
    let data = payload::text(&mut random(6), SIZE as usize);
    let world = filled(FrameForm::Solid, &data);
    let drive = world.open();
    let mut out = vec![0; 64 * KIB];
    for at in (0..SIZE / BLOCK).step_by(16) {
        world.run(drive.read_blocks(Lba(at), &mut out)).unwrap();
    }
    world.run(drive.scrub(0)).unwrap();
    assert_eq!(drive.info().operations.read_ahead_bytes, 0);
    world.close(drive);
}

/// A drive whose blocks hold their versions, for sequential readers.
struct Versions {
    drive: Rc<Drive>,
    clock: Runtime,
    /// The last written version of each block, and the version being written.
    known: RefCell<Vec<(u64, u64)>>,
    reads: Cell<u64>,
    noise: Vec<u8>,
}

impl Versions {
    /// Returns the content of a block: its address, its version, and noise that differs from most
    /// other blocks.
    fn block(&self, lba: u64, version: u64) -> Vec<u8> {
        let at = (lba * 977 + version * 131) as usize % (self.noise.len() - BLOCK_BYTES);
        [&lba.to_le_bytes(), &version.to_le_bytes(), &self.noise[at..at + BLOCK_BYTES - 16]]
            .concat()
    }

    async fn write(&self, lba: u64, count: u64) {
        let lbas = lba..lba + count;
        let mut data = Vec::new();
        for lba in lbas.clone() {
            let known = &mut self.known.borrow_mut()[lba as usize];
            known.1 += 1;
            data.extend(self.block(lba, known.1));
        }
        self.drive.write(lba * BLOCK, &data).await.unwrap();
        for lba in lbas {
            let known = &mut self.known.borrow_mut()[lba as usize];
            known.0 = known.1;
        }
    }

    async fn overwrite(&self, blocks_max: u64, seed: u64) {
        let mut random = random(seed);
        for _ in 0..16_000 / blocks_max {
            let count = random.random_range(1..=blocks_max);
            self.write(random.random_range(0..SIZE / BLOCK - count), count).await;
            self.clock.sleep_ns(random.random_range(0..blocks_max * 40_000)).await;
        }
    }

    /// Reads the disk in order, repeatedly.
    async fn read(&self, len: u64, seed: u64) {
        let mut random = random(seed);
        let blocks = len / BLOCK;
        let mut lba = random.random_range(0..SIZE / BLOCK / 2);
        let mut out = vec![0; len as usize];
        for _ in 0..READS {
            if lba + blocks > SIZE / BLOCK {
                lba = random.random_range(0..SIZE / BLOCK / 2);
            }
            let written: Vec<_> =
                (lba..lba + blocks).map(|lba| self.known.borrow()[lba as usize].0).collect();
            self.drive.read(lba * BLOCK, &mut out).await.unwrap();
            for ((lba, written), found) in (lba..).zip(written).zip(out.chunks(BLOCK_BYTES)) {
                let version = u64::from_le_bytes(found[8..16].try_into().unwrap());
                let most = self.known.borrow()[lba as usize].1;
                assert!((written..=most).contains(&version), "LBA {lba}: {version} of {written}");
                assert!(found == self.block(lba, version), "LBA {lba} has other content");
            }
            self.reads.set(self.reads.get() + 1);
            lba += blocks;
            // Reads from memory take no time, and other tasks must get a turn.
            self.clock.sleep_ns(random.random_range(0..100_000)).await;
        }
    }
}

/// Overwrites, garbage collection and reused segments, next to sequential readers. One of the
/// readers reads single blocks.
#[test]
fn readers_in_order_find_the_last_write() {
    let (mut used_bytes, mut victims, mut generation) = (0, 0, 0);
    for (seed, form) in [(1, FrameForm::Solid), (2, FrameForm::Chunks), (3, FrameForm::Solid)] {
        let mut world = World::new(Spec { frame_form: form, ..small(SIZE, 7) });
        world.plan.latency_ns = 0..=300_000;
        world.seed = seed;
        let drive =
            world.try_open(options([8 << 20, 1 << 20, 256 << 10][seed as usize - 1])).unwrap();
        let known = RefCell::new(vec![(0, 0); (SIZE / BLOCK) as usize]);
        let (clock, reads) = (world.runtime.clone(), Cell::new(0));
        let noise = payload::noise(&mut random(seed), 1 << 20);
        let versions = Rc::new(Versions { drive: drive.clone(), clock, known, reads, noise });
        for lba in (0..SIZE / BLOCK).step_by(64) {
            world.run(versions.write(lba, 64));
        }
        let mut tasks: Vec<Task> = Vec::new();
        for (number, len) in [(0, 4096), (1, 32 << 10), (2, 128 << 10)] {
            let versions = versions.clone();
            tasks.push(Box::pin(async move { versions.read(len, seed * 10 + number).await }));
        }
        for (number, blocks_max) in [(3, 4), (4, 256)] {
            let versions = versions.clone();
            let seed = seed * 10 + number;
            tasks.push(Box::pin(async move { versions.overwrite(blocks_max, seed).await }));
        }
        simulated::run_all(&world, tasks.into_iter());
        let operations = drive.info().operations;
        assert_eq!(versions.reads.get(), 3 * READS);
        assert_eq!(operations.corrupt_reads, 0);
        used_bytes += operations.read_ahead_used_bytes;
        victims += operations.gc_victims;
        generation = generation.max(drive.core().space().generation(SegmentId(1)));
        drop(versions);
        world.close(drive);
        assert_eq!(world.check().problems, []);
    }
    let is_tame = used_bytes < 1 << 20 || victims == 0 || generation < 2;
    assert!(!is_tame, "too tame a test: {used_bytes} bytes, {victims} victims, {generation}");
}

/// A bad sector ahead of a sequential reader fails only the read of its own blocks.
#[test]
fn a_read_ahead_error_fails_only_the_read_of_that_block() {
    let data = payload::noise(&mut random(7), SIZE as usize);
    let world = filled(FrameForm::Solid, &data);
    let medium = Rc::new(BadSector { inner: world.memory.clone(), bad: RefCell::default() });
    let options = OpenOptions { read_only: true, ..options(8 << 20) };
    let drive = world.run(Drive::open(medium.clone(), world.runtime.clock(), options)).unwrap();
    world.run(drive.load_range(Lba(0), SIZE / BLOCK)).unwrap();
    let bad = Lba(1000);
    let Mapping::Frame { place, .. } = drive.core().map().peek(bad).resident().0 else {
        panic!("the block is no frame")
    };
    let at = place.offset.next_multiple_of(512);
    medium.bad.replace(Some((place.segment, at..at + 512)));
    let mut failed = BTreeMap::new();
    let mut restored = 0;
    let mut out = vec![0; 16 * KIB];
    for offset in (0..SIZE).step_by(16 * KIB) {
        match world.run(drive.read(offset, &mut out)) {
            Ok(()) => assert!(out == data[offset as usize..offset as usize + out.len()]),
            Err(error) => _ = failed.insert(offset, error.kind()),
        }
        restored = drive.info().operations.restored_reads;
    }
    assert_eq!(failed, BTreeMap::new());
    assert!((1..=2).contains(&restored), "{restored} reads restored");
    assert!(drive.info().operations.read_ahead_used_bytes > SIZE / 2);
    drop(drive);
    world.runtime.drop_tasks();
}

/// Bytes that were read ahead wrongly once are read again for their reader.
#[test]
fn damaged_read_ahead_data_is_read_again() {
    let data = payload::noise(&mut random(8), SIZE as usize);
    let world = filled(FrameForm::Solid, &data);
    // This applies to each of the reads ahead.
    for nth in 1..=40 {
        let drive = world.try_open(options(8 << 20)).unwrap();
        let read_corruptions = Trigger::Nth(nth);
        drive.layers().set_plan(FaultPlan { read_corruptions, ..FaultPlan::default() });
        let mut wrong = 0;
        for offset in (0..SIZE).step_by(64 * KIB) {
            let read = world.read(&drive, offset, 64 * KIB).unwrap();
            wrong += u32::from(read != data[offset as usize..offset as usize + 64 * KIB]);
        }
        assert_eq!((wrong, drive.info().operations.corrupt_reads), (0, 0), "read {nth}");
        world.close(drive);
    }
}

#[test]
fn a_drive_that_is_not_in_use_keeps_nothing_that_was_read_ahead() {
    let data = payload::noise(&mut random(9), SIZE as usize);
    let world = filled(FrameForm::Solid, &data);
    let drive = world.try_open(options(8 << 20)).unwrap();
    for offset in (0..SIZE / 2).step_by(64 * KIB) {
        world.read(&drive, offset, 64 * KIB).unwrap();
    }
    assert!(drive.ahead.memory_bytes() > 0, "nothing was read ahead");
    world.run(world.runtime.clone().sleep_ns(15_000_000_000));
    assert_eq!(drive.ahead.memory_bytes(), 0);
    world.close(drive);
}
