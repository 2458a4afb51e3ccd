//! What a run of the torture did, in numbers.

use serde::Serialize;

use super::scene::Verb;
use pumice_drive::base::ErrorKind;
use pumice_drive::controller::Operations;
use pumice_drive::media::layer::Crash;

/// Counters of one world, or summed over many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Worlds: seeds run to their end.
    pub worlds: u64,
    /// Openings of a drive for requests.
    pub lives: u64,
    /// Lives ended by power loss.
    pub power_losses: u64,
    /// Lives whose process was killed, the medium staying as it was.
    pub kills: u64,
    /// Lives ended by closing the drive in order.
    pub closes: u64,
    /// Of the power losses and kills: before the drive had opened.
    pub crashes_while_opening: u64,
    /// Of the power losses and kills: after the last request.
    pub crashes_while_closing: u64,
    /// Lives in which a failing append or sync poisoned the drive.
    pub poisonings: u64,
    /// States of the medium after a crash or with bit rot that were opened and judged.
    pub crash_states: u64,
    /// Requests of hosts that ended.
    pub requests: u64,
    /// Of them reads.
    pub reads: u64,
    /// Of them writes.
    pub writes: u64,
    /// Of them flushes.
    pub flushes: u64,
    /// Of them trims and write-zeroes.
    pub trims: u64,
    /// Requests refused for lack of space.
    pub no_space: u64,
    /// Requests that failed with a medium that failed.
    pub failed: u64,
    /// Operations of the medium.
    pub media_operations: u64,
    /// Polls of tasks, each a place where a crash can strike.
    pub polls: u64,
    /// Unsynced writes of the medium that crashes left whole.
    pub writes_kept: u64,
    /// Unsynced writes that crashes dropped.
    pub writes_dropped: u64,
    /// Unsynced writes that crashes tore.
    pub writes_torn: u64,
    /// Changes that were taken, not flushed, and survived a crash.
    pub changes_kept: u64,
    /// Changes that a crash took back.
    pub changes_lost: u64,
    /// Stored bits flipped.
    pub rotten_bits: u64,
    /// Blocks that rot made unreadable, noticed by the read.
    pub rotten_blocks: u64,
    /// Openings refused because of rot.
    pub rot_refusals: u64,
    /// Segments that garbage collection emptied.
    pub gc_victims: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Leaves of the map read from the medium.
    pub map_misses: u64,
    /// Batches rolled forward by openings.
    pub recovered_batches: u64,
    /// Of everything that happened: the same whenever the same seeds are run.
    pub fingerprint: u64,
}

impl Tally {
    /// Counts a request that ended.
    pub(super) fn request(&mut self, verb: Verb, error: Option<ErrorKind>) {
        self.requests += 1;
        match verb {
            Verb::Read => self.reads += 1,
            Verb::Write => self.writes += 1,
            Verb::Flush => self.flushes += 1,
            Verb::Trim | Verb::WriteZeroes => self.trims += 1,
        }
        match error {
            None => {}
            Some(ErrorKind::NoSpace) => self.no_space += 1,
            Some(_) => self.failed += 1,
        }
    }

    /// Counts what a drive did in a life.
    pub(super) fn drive(&mut self, operations: &Operations) {
        self.gc_victims += operations.gc_victims;
        self.checkpoints += operations.checkpoints;
        self.map_misses += operations.map_misses;
        self.recovered_batches += operations.recovered_batches;
    }

    /// Counts what a crash did to the medium.
    pub(super) fn crash(&mut self, crash: Crash) {
        self.crash_states += 1;
        self.writes_kept += crash.writes_kept;
        self.writes_dropped += crash.writes_dropped;
        self.writes_torn += crash.writes_torn;
    }

    /// Adds another world's counters to these.
    pub fn add(&mut self, other: &Tally) {
        let Tally { fingerprint, .. } = *other;
        self.worlds += other.worlds;
        self.lives += other.lives;
        self.power_losses += other.power_losses;
        self.kills += other.kills;
        self.closes += other.closes;
        self.crashes_while_opening += other.crashes_while_opening;
        self.crashes_while_closing += other.crashes_while_closing;
        self.poisonings += other.poisonings;
        self.crash_states += other.crash_states;
        self.requests += other.requests;
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.trims += other.trims;
        self.no_space += other.no_space;
        self.failed += other.failed;
        self.media_operations += other.media_operations;
        self.polls += other.polls;
        self.writes_kept += other.writes_kept;
        self.writes_dropped += other.writes_dropped;
        self.writes_torn += other.writes_torn;
        self.changes_kept += other.changes_kept;
        self.changes_lost += other.changes_lost;
        self.rotten_bits += other.rotten_bits;
        self.rotten_blocks += other.rotten_blocks;
        self.rot_refusals += other.rot_refusals;
        self.gc_victims += other.gc_victims;
        self.checkpoints += other.checkpoints;
        self.map_misses += other.map_misses;
        self.recovered_batches += other.recovered_batches;
        self.fingerprint = self.fingerprint.rotate_left(1) ^ fingerprint;
    }
}
