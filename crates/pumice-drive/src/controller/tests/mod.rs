//! Goal: the drive fulfils its promises: content, order, durability, integrity, space. Method: a
//! [`World`] holds a medium in memory that outlives every opening of its drive, wrapped in the
//! fault and count layers, on a runtime in virtual time. Every test is repeatable.
//!
//! * `content`: whatever the host does, the disk reads as written.
//! * `durability`: flushed data survives, however the drive ends.
//! * `integrity`: damage and failures of media are found, repaired or reported, and never returned
//!   as data.
//! * `capacity`: space that no data needs is reused, and a full drive refuses writes before it
//!   acknowledges them.
//! * `retention`: snapshots, bookmarks and clones preserve their original content, and can be sent
//!   to other drives.

mod capacity;
mod content;
mod durability;
mod integrity;
mod payload;
mod retention;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::core::{Attempt, BlockWrite, Core, GivesBack, Settings};
use super::drive::{frame_cache, superblocks};
use super::log::packing;
use super::log::parity::fill_parity;
use super::map::{Lookup, Mapping};
use super::options::MAP_CACHE_BYTES_DEFAULT;
use super::place::{FrameAddress, FramePlace, SegmentUse};
use super::*;
use crate::base::units::BLOCK_BYTES;
use crate::base::{AlignedBuffer, Clock, Error, ErrorKind, Lba, Result, SegmentId};
use crate::codec::{Codec, FrameForm, Workers};
use crate::crypt::{Cipher, Randomness};
use crate::format::{BATCH_HEADER_BYTES, BatchHeader, Stream, Superblock};
use crate::media::Medium;
use crate::media::layer::{Count, Fault, FaultPlan};
use crate::media::mem::MemMedium;
use crate::runtime::Runtime;
use content::{encryption, reading};
use durability::{survival, tail};
use integrity::{damage, parity, rebuilding};
use retention::{clones, snapshots};

type TestMedium = Fault<Count<MemMedium>, Runtime>;
impl Drive {
    /// Returns the layers of a [`World`]'s drive.
    fn layers(&self) -> &TestMedium {
        self.medium().downcast_ref().expect("a drive of a world")
    }
}

/// Returns the runtime on which a drive was opened.
fn runtime(drive: &Drive) -> &Runtime {
    drive.clock.downcast_ref().expect("tests have no other clock")
}

const SEGMENT_BYTES: u32 = 4 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// Segments of a small drive that are never available to data: reserved for trims, garbage
/// collection and checkpoints, or open for these.
const OTHER_SEGMENTS: u64 = 7;

/// Returns the specification of a small drive: about `segments` of 4 MiB for the data of a disk of
/// `size_bytes`.
fn small(size_bytes: u64, segments: u64) -> Spec {
    Spec {
        segment_bytes: SEGMENT_BYTES,
        capacity_bytes: Some((segments + OTHER_SEGMENTS) * u64::from(SEGMENT_BYTES)),
        ..Spec::new(uuid::Uuid::from_u128(0x5eed), size_bytes)
    }
}

/// Returns the allocation of zeroed blocks that a test draws at random or alternates.
fn allocation(keeps: bool) -> Allocation {
    if keeps { Allocation::Keep } else { Allocation::Release }
}

/// A medium, a clock, and the specification of the drive on them.
struct World {
    runtime: Runtime,
    spec: Spec,
    memory: MemMedium,
    plan: FaultPlan,
    seed: u64,
}

impl World {
    /// Makes an empty drive. With `PUMICE_TEST_ENCRYPTED` set, it is encrypted if possible. Most
    /// tests then pass as well, except those that forge or count bytes.
    fn new(spec: Spec) -> Self {
        let (spec, cipher) = match std::env::var_os("PUMICE_TEST_ENCRYPTED") {
            Some(_) if spec.frame_form == FrameForm::Solid && spec.keys.is_none() => {
                encryption::with_keys(spec, Randomness::seeded(1))
            }
            _ => (spec, Cipher::default()),
        };
        let memory = MemMedium::new(spec.geometry().unwrap().medium_bytes());
        let memory = memory.with_cipher(cipher);
        let runtime = Runtime::simulated();
        let world = Self { runtime, spec, memory, plan: FaultPlan::default(), seed: 0 };
        world.run(create(&world.memory, &world.spec)).unwrap();
        world
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Returns new layers around the bytes.
    fn medium(&self) -> Rc<TestMedium> {
        let count = Count::new(self.memory.clone());
        Rc::new(Fault::new(count, self.runtime.clone(), self.seed, self.plan.clone()))
    }

    fn try_open(&self, options: OpenOptions) -> Result<Rc<Drive>> {
        self.run(Drive::open(self.medium(), self.runtime.clock(), options))
    }

    /// Opens the drive without garbage collection, checkpoints and upkeep: only the writers and the
    /// syncer run.
    fn open_without_collector(&self) -> Rc<Drive> {
        let drive = self.open_without_tasks();
        let (writer, syncer) = (drive.clone(), drive.clone());
        self.runtime.spawn(async move { writer.run_writer().await });
        self.runtime.spawn(async move { syncer.run_syncer().await });
        drive
    }

    /// Opens the drive without any task.
    fn open_without_tasks(&self) -> Rc<Drive> {
        let options = OpenOptions::default();
        let opening = Drive::open_without_tasks(self.medium(), self.runtime.clock(), options);
        Rc::new(self.run(opening).unwrap())
    }

    fn open(&self) -> Rc<Drive> {
        self.try_open(OpenOptions::default()).unwrap()
    }

    fn refusal(&self) -> Error {
        self.try_open(OpenOptions::default()).map(|_| ()).unwrap_err()
    }

    fn close(&self, drive: Rc<Drive>) {
        self.run(drive.close()).unwrap();
        self.kill(drive);
    }

    /// Closes the drive in order, and leaves reading the log to the next opening.
    fn close_without_checkpoint(&self, drive: Rc<Drive>) {
        self.run(drive.close_without_checkpoint()).unwrap();
        self.kill(drive);
    }

    /// Ends the process: everything that is only in memory is lost.
    fn kill(&self, drive: Rc<Drive>) {
        self.runtime.drop_tasks();
        assert_eq!(Rc::strong_count(&drive), 1, "the drive is still held");
    }

    fn reopen(&self, drive: Rc<Drive>) -> Rc<Drive> {
        self.close(drive);
        self.open()
    }

    /// Recounts the accounts of an open drive, and reads all blocks of its snapshots.
    fn audit(&self, drive: &Drive) {
        self.run(drive.audit()).unwrap();
        self.run(drive.audit_snapshots()).unwrap();
    }

    fn check(&self) -> CheckReport {
        self.run(check(&self.medium(), Depth::Full, &mut |_| ())).unwrap()
    }

    fn read(&self, drive: &Drive, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut out = vec![0xa5; len];
        self.run(drive.read(offset, &mut out)).map(|()| out)
    }

    fn write(&self, drive: &Drive, offset: u64, data: &[u8]) -> Result<()> {
        self.run(drive.write(offset, data))
    }

    /// Returns the bytes of a part of a segment, as stored on the medium.
    fn peek(&self, segment: u32, offset: u32, len: usize) -> AlignedBuffer {
        let buffer = AlignedBuffer::zeroed(len);
        let (bytes, result) = self.run(self.memory.read(SegmentId(segment), offset, buffer));
        result.unwrap();
        bytes
    }

    /// Returns another world with the same bytes on its medium.
    fn copy(&self) -> Self {
        let memory = self.memory.deep_copy();
        let (spec, plan) = (self.spec.clone(), self.plan.clone());
        Self { runtime: Runtime::simulated(), spec, memory, plan, seed: self.seed }
    }

    /// Flips one bit of the byte at `offset` of a segment.
    fn flip(&self, segment: u32, offset: u32) {
        let page = offset / 4096 * 4096;
        let mut bytes = self.peek(segment, page, 4096);
        bytes[(offset - page) as usize] ^= 0x10;
        self.run(self.memory.append(SegmentId(segment), page, bytes.into())).unwrap();
    }

    /// Flips the same bit as [`World::flip`] and, if the batch has parity, the corresponding bit of
    /// the parity; otherwise removes its echo. The damage can then not be repaired.
    fn flip_for_good(&self, segment: u32, offset: u32) {
        let batch = damage::batches(self, segment).into_iter().find(|batch| {
            let (from, len) = (append_start(batch), batch.batch_bytes() as u32);
            (from..batch.offset + len).contains(&offset)
        });
        self.flip(segment, offset);
        let Some(batch) = batch else { return };
        if batch.parity_pages == 0 {
            return self.remove_echo(&batch);
        }
        let (from, parity) = (append_start(&batch), u32::from(batch.parity_pages));
        let end = batch.offset + batch.batch_bytes() as u32;
        let page = (offset - from) / 4096;
        self.flip(segment, end - (parity - page % parity) * 4096 + offset % 4096);
    }

    /// Removes the headers of a batch that the batch after it repeats.
    fn remove_echo(&self, batch: &BatchHeader) {
        let segments = 0..self.spec.geometry().unwrap().segment_count;
        let batches = segments.flat_map(|segment| damage::batches(self, segment));
        for after in batches.filter(|after| after.seq.0 == batch.seq.0 + 1) {
            let from = append_start(&after);
            let end = after.offset + after.batch_bytes() as u32;
            let mut append = self.peek(after.segment.0, from, (end - from) as usize);
            let parity = usize::from(after.parity_pages);
            let records = BATCH_HEADER_BYTES + after.record_bytes as usize;
            let padding = (after.offset - from) as usize + records;
            let padded = append.len() - parity * 4096;
            append[padding..padded].fill(0);
            if parity > 0 {
                fill_parity(&mut append, parity);
            }
            self.run(self.memory.append(after.segment, from, append.into())).unwrap();
        }
    }

    /// Damages the parity of all batches of a segment.
    fn ruin_parity(&self, segment: u32) {
        for batch in damage::batches(self, segment) {
            let end = batch.offset + batch.batch_bytes() as u32;
            for page in 1..=u32::from(batch.parity_pages) {
                for at in (0..4096).step_by(8) {
                    self.flip(segment, end - page * 4096 + at);
                }
            }
        }
    }

    /// Returns a fingerprint of everything on the medium.
    fn medium_checksum(&self) -> u64 {
        let mut digest = 0;
        let mut add = |bytes: &[u8]| {
            digest = crate::base::checksum::crc64(&[&u64::to_le_bytes(digest), bytes].concat());
        };
        for slot in 0..2 {
            add(&self.run(self.memory.read_superblock(slot)).unwrap());
        }
        for segment in 0..self.spec.geometry().unwrap().segment_count {
            add(&self.peek(segment, 0, SEGMENT_BYTES as usize));
        }
        digest
    }
}

/// Returns where the append of a batch begins: the first one includes the segment's header.
fn append_start(batch: &crate::format::BatchHeader) -> u32 {
    if batch.offset == 4096 { 0 } else { batch.offset }
}

/// Subtracts the blocks of every trimmed leaf, so that live bytes are exact, and loads every other
/// leaf.
fn reap_all(drive: &Drive) {
    runtime(drive).block_on(async {
        drive.reap_all().await.unwrap();
        let next = |leaf| drive.core().map().next_mapped_leaf(leaf);
        let mut leaf = next(0);
        while let Some(found) = leaf {
            drive.load_leaf(found).await.unwrap();
            leaf = next(found + 1);
        }
    });
}

/// Returns the live bytes of each segment, counted again from the map.
fn recount(drive: &Drive) -> Vec<(SegmentId, u32)> {
    let mut live: Vec<_> = drive.core().space().used().map(|used| (used.segment, 0)).collect();
    let mut add = |number: SegmentId, bytes: u32| {
        let entry = live.iter_mut().find(|(segment, _)| *segment == number);
        entry.expect("the map names a free segment").1 += bytes;
    };
    for (_, count, mapping) in drive.core().map().runs() {
        let Mapping::Frame { place, index } = mapping else { continue };
        add(place.segment, place.share(index, count as u8));
    }
    for place in drive.core().metadata() {
        add(place.segment, place.bytes);
    }
    live
}

/// Checks the live bytes of each segment, and their sum, against a recount from the map.
fn assert_accounting(drive: &Drive) {
    reap_all(drive);
    let live: Vec<_> =
        drive.core().space().used().map(|used| (used.segment, used.live_bytes)).collect();
    assert_eq!(live, recount(drive));
    let sum: u64 = live.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
    assert_eq!(drive.core().space().live_bytes(), sum);
}

/// Checks that a reopened drive has the same map and live bytes as before.
fn assert_same_state(before: (Runs, u64), after: &Drive) {
    assert_accounting(after);
    assert!(before == state(after), "recovery found another map");
}

type Runs = Vec<(Lba, u64, Mapping)>;

fn state(drive: &Drive) -> (Runs, u64) {
    reap_all(drive);
    let metadata: u64 = drive.core().metadata().iter().map(|place| u64::from(place.bytes)).sum();
    (drive.core().map().runs().collect(), drive.core().space().live_bytes() - metadata)
}

/// Performs a change of a drive as a host's request with or without FUA.
async fn with(fua: bool, drive: &Drive, change: impl Future<Output = Result<()>>) -> Result<()> {
    change.await?;
    if fua { drive.flush().await } else { Ok(()) }
}

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}
