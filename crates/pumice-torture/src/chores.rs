//! Work of hosts in addition to requests: they scrub the drive, change its size and capacity, and
//! replace its key. The other chores are in `snapshots`, `views`, `clones` and `retention`: hosts
//! take snapshots, read them, create clones and have segments emptied.

use rand::RngExt;

use super::hazard::Hazard;
use super::host::{BLOCK, Host};
use super::oracle::Mismatch;
use pumice_drive::base::{Error, ErrorKind};
use pumice_drive::controller::{NewKeys, Resize};
use pumice_drive::crypt::{KEY_SECRET_BYTES_MIN, Randomness, Secret};
use pumice_drive::media::Medium;

/// A chore follows one request in this many, if the world has the chore.
const REQUESTS_PER_CHORE: u32 = 40;

/// Number of segments that fit on the medium beyond those of the created drive.
pub(super) const SEGMENTS_TO_GROW: u32 = 6;

/// Maximum number of blocks by which a disk grows in one step.
const BLOCKS_TO_GROW: u64 = 64;

impl Host {
    /// Performs a chore of the world, or none.
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
        if self.scene.hazards.has(Hazard::Encryption)
            && self.random.random_range(0..2 * REQUESTS_PER_CHORE) == 0
        {
            self.rekey().await?;
        }
        if self.scene.hazards.has(Hazard::Snapshots) {
            self.snapshot().await?;
            self.look_back().await?;
            self.retain().await?;
        }
        if self.scene.hazards.has(Hazard::Clones) {
            self.tend_clones().await?;
        }
        self.flatten().await
    }

    /// Scrubs the drive; only damage excuses a problem.
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
        // Hosts may use the new blocks before they learn of them.
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
            // The resize changed nothing.
            Err(error) if self.is_refusal(&error) => {
                // Another resize may have enlarged the disk since.
                if grown && drive.size_bytes() as usize == before {
                    self.scene.oracle.borrow_mut().shrink(before);
                }
                Ok(())
            }
            // The next opening shows how much of the resize is durable.
            Err(error) if self.may_fail(&error) => Ok(()),
            Err(error) => Err(Mismatch {
                promised: format!("{wanted:?} is done or refused"),
                found: error.chain(),
            }),
        }
    }

    /// Replaces the key of the drive, or resumes a replacement.
    async fn rekey(&mut self) -> Result<(), Mismatch> {
        let drive = self.drive.clone();
        let goes_on = drive.info().has_earlier_key;
        let randomness = Randomness::seeded(self.random.random());
        let keys = {
            let layers = self.scene.layers.borrow();
            let cipher = layers.as_ref().expect("a life has a medium").cipher();
            NewKeys::draw(drive.uuid(), cipher, &[secret()], 0, randomness)
        };
        let keys = keys.expect("a key is not a passphrase");
        match drive.rekey((!goes_on).then_some(&keys)).await {
            Ok(_) => {
                let mut tally = self.scene.tally.borrow_mut();
                tally.rekeys += 1;
                tally.rekeys_gone_on += u64::from(goes_on);
                Ok(())
            }
            // Another replacement may have ended, or begun, in the meantime.
            Err(error) if self.is_refusal(&error) || self.may_fail(&error) => Ok(()),
            Err(error) => Err(Mismatch {
                promised: "a key is replaced, or that is refused".to_owned(),
                found: error.chain(),
            }),
        }
    }

    /// Returns whether a resize was refused for a reason of the world.
    fn is_refusal(&self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::NoSpace | ErrorKind::Busy => true,
            // The capacity does not shrink below snapshots, and damaged snapshots keep their key.
            ErrorKind::InvalidInput => {
                self.scene.hazards.has(Hazard::Snapshots)
                    || self.scene.hazards.has(Hazard::Encryption)
            }
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

/// Returns the key file of encrypted drives.
pub(super) fn secret() -> Secret {
    Secret::Key(vec![0x5e; KEY_SECRET_BYTES_MIN].into())
}
