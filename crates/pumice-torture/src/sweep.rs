//! A sweep of damage: one sector of a drive is damaged at a random place, many times over, and the
//! data that the drive then reads is judged.
//!
//! The drives are closed, killed after a flush, killed after small writes that were flushed one by
//! one, and never closed, each with three codecs. A sector that holds data is drawn; one of its
//! bits flips, all of its bytes become zero, or it becomes unreadable. Then the disk must hold the
//! right data, or reads of the affected blocks fail, or the drive is refused and `rebuild` reads
//! it. After a crash, the log may also end before the last flush: docs/format.md, "Limits of
//! recovery".

use std::cell::Cell;
use std::rc::Rc;

use rand::RngExt;
use serde::Serialize;
use uuid::Uuid;

use super::data;
use pumice_drive::base::seed::{Random, random};
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::{AlignedBuffer, Error, Result, SegmentId};
use pumice_drive::codec::Codec;
use pumice_drive::controller::{
    DamagedDrive, Drive, Extracted, Identity, OpenOptions, Spec, create,
};
use pumice_drive::media::layer::{BadRange, Fault, FaultPlan, Region};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::media::{Medium, SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};
use pumice_drive::runtime::Runtime;

const SEGMENT_BYTES: u32 = 4 << 20;
const SECTOR_BYTES: usize = 512;
/// Bytes of the disk of each drive, and segments that hold little more.
const SIZE_BYTES: usize = 12 << 20;
const SEGMENTS: u64 = 14;
/// Longest write, and its part of the disk.
const WRITE_BYTES: usize = 16 * BLOCK_BYTES;
/// Writes between flushes. After the last flush but one, each write goes to a part of the disk of
/// its own.
const WRITES_PER_FLUSH: usize = 12;
/// Small writes that are flushed one by one.
const FLUSHED_WRITES: u64 = 600;
/// Bytes of one read, so that one read meets one damaged frame.
const READ_BYTES: usize = 32 << 10;

/// How the life of a drive ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Closed,
    /// After checkpoints.
    Killed,
    /// The same, after small writes each of which was flushed, as databases do.
    Flushed,
    /// Killed in its first life, before any checkpoint.
    NeverClosed,
}

/// Result of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SweepReport {
    /// Damaged sectors.
    pub damages: u64,
    /// All data was right.
    pub right: u64,
    /// Right, except for unreadable blocks.
    pub unreadable: u64,
    /// Right, but the log of a killed drive ends before its last flush.
    pub cut: u64,
    /// The drive did not open.
    pub refused: u64,
    /// Refused drives that `rebuild` read.
    pub rebuilt: u64,
    /// Wrong data without an error: a broken promise. Each entry states how to reproduce it.
    pub silent: Vec<String>,
}

impl SweepReport {
    /// Returns whether every promise was kept.
    pub fn is_good(&self) -> bool {
        self.silent.is_empty() && self.rebuilt == self.refused
    }
}

/// The place of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sector {
    Slot(u32, u32),
    Segment(u32, u32),
}

/// The damage to a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Flip(u32),
    Zero,
    Unreadable,
}

/// A drive, and the content of its disk at the last flush and at the one before.
struct Base {
    runtime: Runtime,
    memory: MemMedium,
    unreadable: Cell<Option<Sector>>,
    disk: Vec<u8>,
    before: Vec<u8>,
    /// Sectors that are not zero.
    sectors: Vec<Sector>,
    what: String,
    was_killed: bool,
}

type Damaged = Fault<MemMedium, Runtime>;

/// Damages `damages` sectors, one at a time; `progress` is called after each.
///
/// # Panics
/// If a drive without damage fails a host's request.
pub fn sweep(seed: u64, damages: u64, progress: &mut dyn FnMut(&SweepReport)) -> SweepReport {
    let zstd = Codec::Zstd { level: 1 };
    let mut bases = Vec::new();
    for (codec, recompress) in [(Codec::Lz4, None), (Codec::None, None), (zstd, Some(zstd))] {
        for ending in [Ending::Closed, Ending::Killed, Ending::Flushed, Ending::NeverClosed] {
            let options = OpenOptions {
                recompress,
                checkpoint_bytes: if ending == Ending::NeverClosed { 1 << 30 } else { 4 << 20 },
                ..OpenOptions::default()
            };
            bases.push(Base::new(seed, codec, options, ending));
        }
    }
    let mut report = SweepReport::default();
    for number in 0..damages {
        let mut random = random(seed ^ (number + 1) << 16);
        let base = &bases[number as usize % bases.len()];
        let sector = base.sectors[random.random_range(0..base.sectors.len())];
        let damage = match random.random_range(0..3) {
            0 => Damage::Flip(random.random_range(0..SECTOR_BYTES as u32 * 8)),
            1 => Damage::Zero,
            _ => Damage::Unreadable,
        };
        let old = base.damage(sector, damage);
        report.damages += 1;
        if let Err(wrong) = base.judge(&mut report) {
            let what = &base.what;
            report.silent.push(format!("damage {number}, {what}, {sector:?}, {damage:?}: {wrong}"));
        }
        base.store(sector, old);
        base.unreadable.set(None);
        progress(&report);
    }
    report
}

impl Base {
    fn new(seed: u64, codec: Codec, options: OpenOptions, ending: Ending) -> Self {
        let runtime = Runtime::simulated();
        let spec = Spec {
            segment_bytes: SEGMENT_BYTES,
            capacity_bytes: Some(SEGMENTS * u64::from(SEGMENT_BYTES)),
            codec,
            ..Spec::new(Uuid::from_u128(0x53e9), SIZE_BYTES as u64)
        };
        let geometry = spec.geometry().expect("a possible drive");
        let memory = MemMedium::new(geometry.medium_bytes());
        runtime.block_on(create(&memory, &spec)).expect("memory does not fail");
        let mut base = Self {
            memory: memory.clone(),
            unreadable: Cell::new(None),
            runtime,
            disk: vec![0; SIZE_BYTES],
            before: Vec::new(),
            sectors: Vec::new(),
            what: format!("{codec} {ending:?}"),
            was_killed: ending != Ending::Closed,
        };
        let mut random = random(seed);
        let rounds = if ending == Ending::NeverClosed { 12 } else { 120 };
        let clock = base.runtime.clone();
        let drive =
            clock.block_on(Drive::open(Rc::new(memory), clock.clock(), options)).expect("opens");
        clock.block_on(async {
            for round in 0..rounds {
                base.before.clone_from(&base.disk);
                base.write(&drive, &mut random, round).await.expect("a write");
                drive.flush().await.expect("a flush");
            }
            let flushed = if ending == Ending::Flushed { FLUSHED_WRITES } else { 0 };
            for number in 0..flushed {
                base.before.clone_from(&base.disk);
                base.write_flushed(&drive, &mut random, number).await.expect("a flushed write");
            }
            if ending == Ending::Closed {
                drive.close().await.expect("a close");
            }
        });
        clock.drop_tasks();
        drop(drive);
        base.sectors = base.used_sectors(geometry.segment_count);
        base
    }

    /// Writes to parts of the disk that do not overlap.
    async fn write(&mut self, drive: &Drive, random: &mut Random, round: u64) -> Result<()> {
        let parts = SIZE_BYTES / WRITE_BYTES;
        let first = random.random_range(0..parts);
        for index in 0..WRITES_PER_FLUSH {
            let blocks = random.random_range(1..=WRITE_BYTES / BLOCK_BYTES);
            let at = (first + index * 5) % parts * WRITE_BYTES;
            let number = round * WRITES_PER_FLUSH as u64 + index as u64;
            let bytes = data::any(random, at as u64, blocks * BLOCK_BYTES, number);
            drive.write(at as u64, &bytes).await?;
            self.disk[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// Writes a few blocks.
    async fn write_flushed(
        &mut self,
        drive: &Drive,
        random: &mut Random,
        number: u64,
    ) -> Result<()> {
        let blocks = random.random_range(1..=4);
        let at = random.random_range(0..=SIZE_BYTES / BLOCK_BYTES - blocks) * BLOCK_BYTES;
        let bytes = data::any(random, at as u64, blocks * BLOCK_BYTES, number);
        drive.write_durable(at as u64, &bytes).await?;
        self.disk[at..at + bytes.len()].copy_from_slice(&bytes);
        Ok(())
    }

    fn used_sectors(&self, segments: u32) -> Vec<Sector> {
        let mut used = Vec::new();
        let mut add = |bytes: &[u8], place: &dyn Fn(u32) -> Sector| {
            for (at, sector) in (0..).step_by(SECTOR_BYTES).zip(bytes.chunks(SECTOR_BYTES)) {
                if sector.iter().any(|&byte| byte != 0) {
                    used.push(place(at));
                }
            }
        };
        for slot in 0..SUPERBLOCK_SLOTS {
            add(&self.load(Sector::Slot(slot, 0)), &|at| Sector::Slot(slot, at));
        }
        for segment in 0..segments {
            let read = self.read_memory(segment, 0, SEGMENT_BYTES as usize);
            add(&read, &|at| Sector::Segment(segment, at));
        }
        used
    }

    fn read_memory(&self, segment: u32, offset: u32, len: usize) -> AlignedBuffer {
        let buffer = AlignedBuffer::zeroed(len);
        self.runtime.block_on(self.memory.read(SegmentId(segment), offset, buffer)).0
    }

    /// Returns the medium, with the unreadable sector.
    fn medium(&self) -> Damaged {
        let plan = FaultPlan::default();
        let medium = Fault::new(self.memory.clone(), self.runtime.clone(), 0, plan);
        if let Some(sector) = self.unreadable.get() {
            let (region, at) = match sector {
                Sector::Slot(slot, at) => (Region::Superblock(slot), at),
                Sector::Segment(segment, at) => (Region::Segment(SegmentId(segment)), at),
            };
            medium.add_bad_range(BadRange::unreadable(region, at..at + SECTOR_BYTES as u32));
        }
        medium
    }

    /// Returns the page or slot around a sector.
    fn load(&self, sector: Sector) -> AlignedBuffer {
        match sector {
            Sector::Slot(slot, _) => {
                let read = self.runtime.block_on(self.memory.read_superblock(slot));
                read.expect("memory does not fail")
            }
            Sector::Segment(segment, at) => {
                self.read_memory(segment, at / BLOCK_BYTES as u32 * BLOCK_BYTES as u32, BLOCK_BYTES)
            }
        }
    }

    fn store(&self, sector: Sector, page: AlignedBuffer) {
        let stored = match sector {
            Sector::Slot(slot, _) => {
                self.runtime.block_on(self.memory.write_superblock(slot, page))
            }
            Sector::Segment(segment, at) => {
                let at = at / BLOCK_BYTES as u32 * BLOCK_BYTES as u32;
                let segment = SegmentId(segment);
                self.runtime.block_on(self.memory.append(segment, at, page.into()))
            }
        };
        stored.expect("memory does not fail");
    }

    /// Damages a sector; returns the page or slot around it as it was.
    fn damage(&self, sector: Sector, damage: Damage) -> AlignedBuffer {
        let old = self.load(sector);
        let (Sector::Slot(_, at) | Sector::Segment(_, at)) = sector;
        let from = at as usize % SUPERBLOCK_BYTES;
        let mut page = self.load(sector);
        match damage {
            Damage::Flip(bit) => page[from + bit as usize / 8] ^= 1 << (bit % 8),
            Damage::Zero => page[from..from + SECTOR_BYTES].fill(0),
            Damage::Unreadable => self.unreadable.set(Some(sector)),
        }
        self.store(sector, page);
        old
    }

    /// Opens the drive and reads its disk, or rebuilds it if it is refused.
    ///
    /// # Errors
    /// A description of the problem.
    fn judge(&self, report: &mut SweepReport) -> Result<(), String> {
        let clock = self.runtime.clone();
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let judged =
            match clock.block_on(Drive::open(Rc::new(self.medium()), clock.clock(), options)) {
                Ok(drive) => clock.block_on(self.judge_disk(&drive, report)),
                Err(_) => {
                    report.refused += 1;
                    let rebuilt = clock.block_on(self.rebuild());
                    report.rebuilt += u64::from(rebuilt.is_ok());
                    rebuilt
                }
            };
        clock.drop_tasks();
        judged
    }

    async fn judge_disk(&self, drive: &Drive, report: &mut SweepReport) -> Result<(), String> {
        let (mut is_unreadable, mut is_cut) = (false, false);
        for start in (0..SIZE_BYTES).step_by(READ_BYTES) {
            let mut out = vec![0xa5; READ_BYTES];
            if drive.read(start as u64, &mut out).await.is_ok() {
                is_cut |= self.compare(start, &out)?;
                continue;
            }
            is_unreadable = true;
            for at in (start..start + READ_BYTES).step_by(BLOCK_BYTES) {
                let mut block = [0xa5; BLOCK_BYTES];
                if drive.read(at as u64, &mut block).await.is_ok() {
                    is_cut |= self.compare(at, &block)?;
                }
            }
        }
        match (is_cut, is_unreadable) {
            (true, _) => report.cut += 1,
            (_, true) => report.unreadable += 1,
            _ => report.right += 1,
        }
        Ok(())
    }

    /// Returns whether bytes are older than the last flush, as after the log was truncated.
    ///
    /// # Errors
    /// The bytes are neither right nor older.
    fn compare(&self, start: usize, found: &[u8]) -> Result<bool, String> {
        let mut is_older = false;
        for (at, block) in (start..).step_by(BLOCK_BYTES).zip(found.chunks(BLOCK_BYTES)) {
            if *block == self.disk[at..at + BLOCK_BYTES] {
                continue;
            }
            if !self.was_killed || *block != self.before[at..at + BLOCK_BYTES] {
                return Err(format!("block {} is wrong", at / BLOCK_BYTES));
            }
            is_older = true;
        }
        Ok(is_older)
    }

    /// Reads the disk as `pumice rebuild` does. The data that it finds must be right, unless it
    /// reports that some may be missing.
    async fn rebuild(&self) -> Result<(), String> {
        let chain = |error: Error| format!("cannot be rebuilt: {}", error.chain());
        let medium = Rc::new(self.medium());
        let identity = Identity::of_superblocks(&*medium).await.map_err(chain)?;
        let identity = identity.ok_or("cannot be rebuilt: no superblock is left")?;
        let damaged = DamagedDrive::open(medium, self.runtime.clock(), identity).await;
        let mut damaged = damaged.map_err(chain)?;
        let mut wrong = None;
        let mut parts = damaged.parts();
        while let Some(part) = parts.next().await {
            if let Extracted::Data { offset, bytes } = part {
                wrong = self.compare(offset as usize, bytes).err().or(wrong);
            }
        }
        drop(parts);
        let is_doubtful = damaged.problems().1 > 0 || damaged.has_missing_batches();
        match wrong {
            Some(wrong) if !is_doubtful => Err(format!("rebuilt without a problem, and {wrong}")),
            _ => Ok(()),
        }
    }
}
