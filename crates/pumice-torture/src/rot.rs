//! Bit rot: flips stored bits of a closed drive and checks the drive's reports.
//!
//! Wherever the bits are, a read returns the right bytes or an error. If they are in a structure,
//! the drive may refuse to open; in both cases `check` must report a problem. Rot of segments is
//! repaired afterwards, so that the later lives of the world are checked completely; a damaged
//! superblock slot stays, and must have no effect.
//!
//! Only closed drives rot: after a crash, damage to the last flushed data cannot be distinguished
//! from a torn tail (docs/format.md), so its detection is not promised.

use std::rc::Rc;

use rand::RngExt;

use super::damage::Bit;
use super::life::{COMPARED_AT_ONCE, Life};
use super::medium::Layers;
use super::oracle::Mismatch;
use super::world::World;
use pumice_drive::base::ErrorKind;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::controller::{Depth, Drive, OpenOptions, check};
use pumice_drive::media::layer::FaultPlan;
use pumice_drive::media::{Medium, SUPERBLOCK_BYTES};

/// Maximum number of bits that rot together.
const BITS_MAX: u32 = 4;

impl World {
    /// Flips bits of the closed drive, and checks the consequences.
    pub(super) fn rot(&mut self) -> Result<(), Mismatch> {
        if self.random.random_range(0..6) == 0 {
            self.rot_superblock();
            return Ok(());
        }
        let runtime = self.scene.runtime.clone();
        let (memory, geometry) = (self.memory.clone(), self.geometry);
        let draw = |_| runtime.block_on(Bit::draw(&mut self.random, &memory, &geometry));
        let flips: Vec<Bit> = (0..BITS_MAX).filter_map(draw).collect();
        let flip = |bit: &Bit| runtime.block_on(bit.flip(&memory));
        flips.iter().for_each(flip);
        self.scene.tally.borrow_mut().rotten_bits += flips.len() as u64;
        self.scene.tally.borrow_mut().crash_states += 1;
        let judged = self.judge_rot();
        flips.iter().rev().for_each(flip);
        judged
    }

    /// Opens the drive read-only, and reads every block.
    fn judge_rot(&self) -> Result<(), Mismatch> {
        let runtime = self.scene.runtime.clone();
        let plan = FaultPlan::default();
        let layers = Layers::new(self.memory.clone(), runtime.clone(), 0, plan);
        let life = Life::new(self.scene.clone(), Rc::new(layers));
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
    async fn read_rotten(&self, drive: &Drive) -> Result<bool, Mismatch> {
        let mut noticed = false;
        // A resize that was under way has taken effect or not.
        let (size, floor) = (drive.size_bytes(), self.scene.size_floor.get());
        let bytes = self.scene.oracle.borrow().bytes().min(size as usize);
        if size < floor {
            return Err(Mismatch {
                promised: format!("a disk of at least {floor} bytes"),
                found: format!("a disk of {size} bytes"),
            });
        }
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
    async fn read_once(&self, drive: &Drive, start: usize, end: usize) -> Result<bool, Mismatch> {
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
        self.scene.farewell.set(None);
    }
}
