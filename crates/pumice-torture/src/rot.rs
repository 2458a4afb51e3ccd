//! Bit rot: flips stored bits of a closed drive and checks what the drive reports.
//!
//! Wherever the bits are, a read returns the right bytes or an error. If they are in a structure,
//! the drive may refuse to open; in both cases `check` must report a problem. Rot of segments is
//! repaired afterwards, so that the later lives of the world are checked completely; a damaged
//! superblock slot stays, and must have no effect.
//!
//! Only closed drives rot: after a crash, damage to the last flushed data cannot be distinguished
//! from a torn tail (docs/format.md), so its detection is not promised.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rand::RngExt;

use super::life::{COMPARED_AT_ONCE, Life};
use super::medium::Layers;
use super::oracle::Mismatch;
use super::scene::TorturedDrive;
use super::world::World;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::{AlignedBuffer, ErrorKind, SegmentId};
use pumice_drive::controller::{Depth, OpenOptions, check};
use pumice_drive::media::layer::FaultPlan;
use pumice_drive::media::{Medium, SUPERBLOCK_BYTES};

/// Maximum number of bits that rot at once.
const BITS_MAX: u32 = 4;

/// Bytes of a page that contain a header, if the page begins with one.
const HEADER_BYTES: u32 = 160;

/// One flipped bit of a segment.
#[derive(Clone, Copy, Debug)]
struct Flip {
    segment: u32,
    offset: u32,
    bit: u8,
}

impl World {
    /// Flips bits of the closed drive, and checks the consequences.
    pub(super) fn rot(&mut self) -> Result<(), Mismatch> {
        if self.random.random_range(0..6) == 0 {
            self.rot_superblock();
            return Ok(());
        }
        let flips: Vec<Flip> =
            (0..self.random.random_range(1..=BITS_MAX)).filter_map(|_| self.draw_flip()).collect();
        flips.iter().for_each(|flip| self.flip(*flip));
        self.scene.tally.borrow_mut().rotten_bits += flips.len() as u64;
        self.scene.tally.borrow_mut().crash_states += 1;
        let judged = self.judge_rot();
        flips.iter().rev().for_each(|flip| self.flip(*flip));
        judged
    }

    /// Opens the drive read-only, and reads every block.
    fn judge_rot(&self) -> Result<(), Mismatch> {
        let runtime = self.scene.runtime.clone();
        let plan = FaultPlan::default();
        let life = Life {
            scene: self.scene.clone(),
            layers: Rc::new(Layers::new(self.memory.clone(), runtime.clone(), 0, plan)),
            stage: Cell::default(),
            farewell: Cell::default(),
            drive: RefCell::default(),
        };
        let options = OpenOptions { read_only: true, ..self.options };
        let noticed = match runtime.block_on(life.open(options)) {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.scene.tally.borrow_mut().rot_refusals += 1;
                true
            }
            Err(error) => {
                let promised = "rot is reported as corruption".to_owned();
                return Err(Mismatch { promised, found: error.chain() });
            }
            Ok(drive) => {
                let noticed = runtime.block_on(self.read_rotten(&drive));
                self.scene.end_tasks();
                noticed?
            }
        };
        let report = runtime.block_on(check(&self.memory, Depth::Full, &mut |_| ()));
        if noticed && report.is_ok_and(|report| report.problem_count == 0) {
            return Err(Mismatch {
                promised: "check reports rot that reads detect".to_owned(),
                found: "no problem".to_owned(),
            });
        }
        Ok(())
    }

    /// Reads the whole disk, block by block where a longer read fails. Returns whether any read
    /// failed.
    async fn read_rotten(&self, drive: &TorturedDrive) -> Result<bool, Mismatch> {
        let mut noticed = false;
        let bytes = self.scene.oracle.borrow().bytes();
        for start in (0..bytes).step_by(COMPARED_AT_ONCE) {
            let end = (start + COMPARED_AT_ONCE).min(bytes);
            if !self.read_once(drive, start, end).await? {
                continue;
            }
            noticed = true;
            for block in (start..end).step_by(BLOCK_BYTES) {
                let failed = self.read_once(drive, block, block + BLOCK_BYTES).await?;
                self.scene.tally.borrow_mut().rotten_blocks += u64::from(failed);
            }
        }
        Ok(noticed)
    }

    /// Returns whether a read fails because of rot; a read that succeeds must be right.
    async fn read_once(
        &self,
        drive: &TorturedDrive,
        start: usize,
        end: usize,
    ) -> Result<bool, Mismatch> {
        let mut out = vec![0xa5; end - start];
        let result = drive.read(start as u64, &mut out).await;
        let mut oracle = self.scene.oracle.borrow_mut();
        oracle.begin_read(0, start..end);
        match result {
            Ok(()) => oracle.end_read(0, Some(&out)).map(|()| false),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                oracle.end_read(0, None).map(|()| true)
            }
            Err(error) => Err(Mismatch {
                promised: "rot is reported as corruption".to_owned(),
                found: error.chain(),
            }),
        }
    }

    /// Draws a bit in a used page of a segment; half of the bits are in its first bytes, where
    /// headers are.
    fn draw_flip(&mut self) -> Option<Flip> {
        for _ in 0..30 {
            let segment = self.random.random_range(0..self.geometry.segment_count);
            let pages = match self.random.random() {
                true => self.geometry.segment_bytes / BLOCK_BYTES as u32,
                // Where even an almost empty segment contains data.
                false => 16,
            };
            let page = self.random.random_range(0..pages) * BLOCK_BYTES as u32;
            let within = match self.random.random_range(0..3) {
                0 => HEADER_BYTES,
                _ => BLOCK_BYTES as u32,
            };
            let flip = Flip {
                segment,
                offset: page + self.random.random_range(0..within),
                bit: self.random.random_range(0..8),
            };
            if self.page(flip).iter().any(|&byte| byte != 0) {
                return Some(flip);
            }
        }
        None
    }

    /// Returns the page around a bit.
    fn page(&self, flip: Flip) -> AlignedBuffer {
        let page = flip.offset / BLOCK_BYTES as u32 * BLOCK_BYTES as u32;
        let buffer = AlignedBuffer::zeroed(BLOCK_BYTES);
        let read = self.memory.read(SegmentId(flip.segment), page, buffer);
        self.scene.runtime.block_on(read).0
    }

    fn flip(&self, flip: Flip) {
        let mut bytes = self.page(flip);
        bytes[flip.offset as usize % BLOCK_BYTES] ^= 1 << flip.bit;
        let page = flip.offset / BLOCK_BYTES as u32 * BLOCK_BYTES as u32;
        let write = self.memory.append(SegmentId(flip.segment), page, bytes.into());
        self.scene.runtime.block_on(write).expect("memory does not fail");
    }

    /// Damages one of the superblock slots: one slot is enough.
    fn rot_superblock(&mut self) {
        let slot = self.random.random_range(0..2);
        let runtime = self.scene.runtime.clone();
        let read = runtime.block_on(self.memory.read_superblock(slot));
        let mut bytes = read.expect("memory does not fail");
        bytes[self.random.random_range(0..SUPERBLOCK_BYTES)] ^= 1;
        let written = runtime.block_on(self.memory.write_superblock(slot, bytes));
        written.expect("memory does not fail");
        self.scene.tally.borrow_mut().rotten_bits += 1;
        // The newest slot records the clean close; without it, that is unknown.
        self.forget_farewell();
    }
}
