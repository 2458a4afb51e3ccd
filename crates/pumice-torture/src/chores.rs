//! What hosts do beside requests: they scrub the drive, change its size and capacity, take
//! snapshots and look at them, which `snapshots` and `views` have.

use rand::RngExt;

use super::hazard::Hazard;
use super::host::{BLOCK, Host};
use super::oracle::Mismatch;
use pumice_drive::base::{Error, ErrorKind};
use pumice_drive::controller::Resize;

/// A chore follows one request in this many, if the world has the chore at all.
const REQUESTS_PER_CHORE: u32 = 40;

/// Segments beyond those of the created drive that its medium has room for.
pub(super) const SEGMENTS_TO_GROW: u32 = 6;

/// Blocks by which a disk grows at once, at most.
const BLOCKS_TO_GROW: u64 = 64;

impl Host {
    /// Does a chore of the world, or none.
    pub(super) async fn chore(&mut self) -> Result<(), Mismatch> {
        for hazard in [Hazard::Scrub, Hazard::Resize] {
            let drawn = self.random.random_range(0..REQUESTS_PER_CHORE);
            if !self.scene.hazards.has(hazard) || drawn > 0 {
                continue;
            }
            match hazard {
                Hazard::Scrub => self.scrub().await?,
                _ => self.resize().await?,
            }
        }
        if self.scene.hazards.has(Hazard::Snapshots) {
            self.snapshot().await?;
            self.look_back().await?;
        }
        Ok(())
    }

    /// Reads everything that the drive holds; only damage is a problem.
    async fn scrub(&mut self) -> Result<(), Mismatch> {
        let rate_bytes = [0, 16 << 20][self.random.random_range(0..2)];
        let drive = self.drive.clone();
        let promised = || "a scrub finds no problem where no damage is".to_owned();
        match drive.scrub(rate_bytes).await {
            Ok(report) => {
                self.scene.tally.borrow_mut().scrubs += 1;
                let may_find = self.scene.is_damaged.get() || self.scene.faults.get().of_reads;
                if report.problem_count > 0 && !may_find {
                    let found = format!("{:?}", report.problems);
                    return Err(Mismatch { promised: promised(), found });
                }
                Ok(())
            }
            Err(error) if self.may_fail(&error) => Ok(()),
            Err(error) => Err(Mismatch { promised: promised(), found: error.chain() }),
        }
    }

    /// Grows the disk, or changes the capacity.
    async fn resize(&mut self) -> Result<(), Mismatch> {
        let info = self.drive.info();
        let most = self.scene.segments_max();
        let mut wanted = Resize::default();
        if self.random.random_range(0..3) == 0 {
            let more = self.random.random_range(1..=BLOCKS_TO_GROW) * BLOCK;
            wanted.size_bytes = Some(info.size_bytes + more);
        } else {
            let segments = self.random.random_range(most.saturating_sub(12).max(11)..=most);
            wanted.capacity_bytes = Some(u64::from(segments) * u64::from(info.segment_bytes));
        }
        // Hosts may use what is new before they hear that it is there.
        let size = wanted.size_bytes.unwrap_or(info.size_bytes);
        let (mut before, mut grown) = (0, false);
        {
            let mut oracle = self.scene.oracle.borrow_mut();
            if size as usize > oracle.bytes() {
                before = oracle.bytes();
                grown = true;
                oracle.grow(size as usize);
            }
        }
        let drive = self.drive.clone();
        match drive.resize(wanted).await {
            Ok(resized) => {
                self.scene.tally.borrow_mut().resizes += 1;
                let floor = self.scene.size_floor.get().max(resized.size_bytes);
                self.scene.size_floor.set(floor);
                Ok(())
            }
            // It changed nothing.
            Err(error) if self.is_refusal(&error) => {
                // Unless another resize has made it longer since.
                if grown && drive.size_bytes() as usize == before {
                    self.scene.oracle.borrow_mut().shrink(before);
                }
                Ok(())
            }
            // The next opening shows what is durable of it.
            Err(error) if self.may_fail(&error) => Ok(()),
            Err(error) => Err(Mismatch {
                promised: format!("{wanted:?} is done or refused"),
                found: error.chain(),
            }),
        }
    }

    /// Returns whether a resize was refused for a reason of the world.
    fn is_refusal(&self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::NoSpace | ErrorKind::Busy => true,
            // The capacity does not shrink below snapshots.
            ErrorKind::InvalidInput => self.scene.hazards.has(Hazard::Snapshots),
            _ => false,
        }
    }

    /// Returns whether damage or faults of the world explain an error.
    pub(super) fn may_fail(&self, error: &Error) -> bool {
        let faults = self.scene.faults.get();
        let is_damaged = faults.of_reads || self.scene.is_damaged.get();
        match error.kind() {
            ErrorKind::Busy => true,
            ErrorKind::Poisoned => faults.of_writes,
            ErrorKind::Medium => faults.of_writes || is_damaged,
            ErrorKind::Corrupt => is_damaged,
            _ => false,
        }
    }
}
