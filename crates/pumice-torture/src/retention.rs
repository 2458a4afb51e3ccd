//! Drives that keep many snapshots while hosts overwrite the disk: segments that snapshots need are
//! emptied repeatedly, so that copies are copied again over generations.
//!
//! ```text
//! a round: writes, snapshots, deletions | segments emptied | views that end that half-way
//!   -> the disk is rolled back, perhaps -> the next round, on the same open drive
//! ```
//!
//! Garbage collection empties such a segment only where much of it is dead and space is short,
//! which happens once in a life of ordinary length, if at all. So the disk is small, lives are
//! long, and hosts have segments emptied in addition to the drive's own garbage collection.
//! Emptying stops at any point: the host has waited long enough, or an event changes which segments
//! are needed: a view opens, a snapshot is taken or deleted, the disk is rolled back.

use futures_util::future::join;
use rand::{Rng, RngExt};

use super::data::Texture;
use super::hazard::Hazard;
use super::host::{Habits, Host};
use super::oracle::Mismatch;
use pumice_drive::base::ErrorKind;
use pumice_drive::base::seed::Random;
use pumice_drive::controller::Spec;
use pumice_nbd::Durability;

/// Blocks of the disk: one to four segments of data.
const BLOCKS: std::ops::RangeInclusive<u64> = 1024..=3072;

/// Segments beyond those of the disk: enough, most of the time, for the data of its snapshots.
const SEGMENTS_MORE: std::ops::RangeInclusive<u64> = 6..=14;

/// Requests of a life, as a multiple of the steps.
pub(super) const STEPS_OF_RETENTION: u64 = 4;

/// Rounds of a life.
pub(super) const ROUNDS: std::ops::RangeInclusive<u64> = 2..=8;

/// Number of snapshots beyond which hosts only delete.
pub(super) const SNAPSHOTS_WANTED: usize = 8;

/// A host has segments emptied, or reads a snapshot, once in this many requests, on average.
const REQUESTS_PER_CHORE: u32 = 20;

/// Space that a drive may occupy beyond its needs when a host has segments emptied.
const EXCESS_PERCENT_MAX: u32 = 10;

/// Maximum number of requests while segments are emptied.
const REQUESTS_MEANWHILE: u32 = 20;

/// Longest time that a host waits for segments to be emptied in one of two cases, as a multiple of
/// the longest operation of the medium: about the time to empty a segment.
const PATIENCE: u64 = 24;

/// Turns a drive into one of these.
pub(super) fn shape(spec: &mut Spec, random: &mut Random) {
    let blocks = random.random_range(BLOCKS);
    *spec = Spec {
        size_bytes: blocks * 4096,
        capacity_bytes: None,
        // Frames large enough to die in part.
        frame_blocks: 1 << random.random_range(1..=3),
        ..spec.clone()
    };
    let geometry = spec.geometry().expect("worlds are drawn within the limits");
    let more = random.random_range(SEGMENTS_MORE) * u64::from(spec.segment_bytes);
    spec.capacity_bytes = Some(geometry.capacity_bytes() + more);
}

/// Returns the habits of hosts that use such a drive.
pub(super) fn habits(habits: Habits) -> Habits {
    Habits {
        is_small: false,
        is_heavy: false,
        retains: true,
        texture: Texture::Noise,
        trim_percent: 5,
        ..habits
    }
}

impl Host {
    /// Occasionally has segments emptied, alone or during other activity, or reads a snapshot.
    pub(super) async fn retain(&mut self) -> Result<(), Mismatch> {
        let is_wanted = self.scene.hazards.has(Hazard::Retention)
            && self.random.random_range(0..REQUESTS_PER_CHORE) == 0;
        if !is_wanted {
            return Ok(());
        }
        match self.random.random_range(0..4) {
            0 => self.compact().await?,
            1 => self.glance().await?,
            _ => self.meddle().await?,
        }
        self.scene.audit_snapshots(&self.drive)
    }

    /// Has segments emptied, to completion or for a while.
    async fn compact(&mut self) -> Result<(), Mismatch> {
        let is_patient = self.random.random();
        let patience_ns = if is_patient { u64::MAX } else { self.patience_ns() };
        self.compact_for(patience_ns).await
    }

    /// Has segments emptied, and meanwhile, at a random moment, changes which data is needed, or
    /// its users.
    async fn meddle(&mut self) -> Result<(), Mismatch> {
        let mut other = self.another();
        let meddling = async move {
            let patience_ns = other.patience_ns();
            other.scene.sleep(patience_ns).await;
            match other.random.random_range(0..4) {
                0 => other.change_snapshots().await,
                1 => other.glance().await,
                2 => other.trim_and_take_snapshot().await,
                _ => other.request_some().await,
            }
        };
        let (emptied, meddled) = join(self.compact_for(u64::MAX), meddling).await;
        emptied.and(meddled)
    }

    fn another(&mut self) -> Self {
        let seed = self.random.next_u64();
        Self::new(self.drive.clone(), self.scene.clone(), self.habits, seed)
    }

    /// Takes a snapshot and trims the whole disk at a random moment meanwhile, so that the snapshot
    /// may have trims that were not yet subtracted.
    async fn trim_and_take_snapshot(&mut self) -> Result<(), Mismatch> {
        if !self.scene.snapshots.borrow().are_allowed() {
            return Ok(());
        }
        let mut other = self.another();
        let trimming = async move {
            let patience_ns = other.patience_ns() / 8;
            other.scene.sleep(patience_ns).await;
            let Some(number) = other.scene.next_request() else { return Ok(()) };
            other.trim(0, other.disk_bytes(), number, Durability::Volatile).await
        };
        let (taken, trimmed) = join(self.take_snapshot(), trimming).await;
        taken.and(trimmed)
    }

    /// Issues some requests.
    async fn request_some(&mut self) -> Result<(), Mismatch> {
        for _ in 0..self.random.random_range(1..=REQUESTS_MEANWHILE) {
            let Some(number) = self.scene.next_request() else { break };
            self.request(number).await?;
        }
        Ok(())
    }

    /// Begins to empty segments and stops midway, so that the tables refer to some of the frames
    /// that the disk references again after a rollback.
    pub(super) async fn empty_in_part(mut self) -> Result<(), Mismatch> {
        let patience_ns = self.patience_ns();
        self.compact_for(patience_ns).await
    }

    fn patience_ns(&mut self) -> u64 {
        self.scene.latency_ns() * self.random.random_range(0..=PATIENCE)
    }

    async fn compact_for(&mut self, patience_ns: u64) -> Result<(), Mismatch> {
        let percent = self.random.random_range(0..=EXCESS_PERCENT_MAX);
        let drive = self.drive.clone();
        let compacting = drive.compact(percent);
        match self.scene.runtime.timeout(patience_ns, compacting).await {
            Some(Err(error)) if !self.may_fail(&error) && error.kind() != ErrorKind::NoSpace => {
                let promised = "the drive is compacted, as far as it can be".to_owned();
                Err(Mismatch { promised, found: error.chain() })
            }
            _ => {
                self.scene.tally.borrow_mut().compactions += 1;
                Ok(())
            }
        }
    }

    /// Opens a snapshot, perhaps while segments are being emptied, and in some cases reads it after
    /// a while.
    async fn glance(&mut self) -> Result<(), Mismatch> {
        if self.scene.faults.get().of_reads {
            return Ok(());
        }
        let infos = self.drive.snapshots();
        let readable = self.scene.snapshots.borrow().readable(&infos);
        if readable.is_empty() {
            return Ok(());
        }
        let which = self.random.random_range(0..readable.len());
        let Some(now) = self.open_view(&readable[which]).await? else { return Ok(()) };
        if self.random.random() {
            let patience_ns = self.patience_ns();
            self.scene.sleep(patience_ns).await;
            self.read_view(&now).await?;
        }
        Ok(())
    }
}
