//! Counters of a torture run.

use serde::Serialize;

use super::verb::Verb;
use pumice_drive::base::ErrorKind;
use pumice_drive::controller::Operations;
use pumice_drive::media::layer::Crash;

/// Counters of one world, or summed over many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Worlds run to their end.
    pub worlds: u64,
    /// Openings of a drive for requests.
    pub lives: u64,
    /// Lives ended by power loss.
    pub power_losses: u64,
    /// Lives whose process was killed, without power loss.
    pub kills: u64,
    /// Lives ended by a clean close.
    pub closes: u64,
    /// Power losses and kills before the drive had opened.
    pub crashes_while_opening: u64,
    /// Power losses and kills after the last request.
    pub crashes_while_closing: u64,
    /// Lives in which a failing append or sync poisoned the drive.
    pub poisonings: u64,
    /// States of the medium, after a crash or with bit rot, that were opened and checked.
    pub crash_states: u64,
    /// Completed requests of hosts.
    pub requests: u64,
    /// Reads among the requests.
    pub reads: u64,
    /// Writes among the requests.
    pub writes: u64,
    /// Flushes among the requests.
    pub flushes: u64,
    /// Trims and write-zeroes among the requests.
    pub trims: u64,
    /// Requests refused for lack of space.
    pub no_space: u64,
    /// Requests that failed because of the medium.
    pub failed: u64,
    /// Operations of the medium.
    pub media_operations: u64,
    /// Polls of tasks: each is a point at which a crash can happen.
    pub polls: u64,
    /// Unsynced writes of the medium that survived a crash.
    pub writes_kept: u64,
    /// Unsynced writes that a crash dropped.
    pub writes_dropped: u64,
    /// Unsynced writes that a crash tore.
    pub writes_torn: u64,
    /// Changes that were accepted, not flushed, and survived a crash.
    pub changes_kept: u64,
    /// Changes that were lost in a crash.
    pub changes_lost: u64,
    /// Stored bits flipped.
    pub rotten_bits: u64,
    /// Blocks that rot made unreadable, as detected by a read.
    pub rotten_blocks: u64,
    /// Openings that failed because of rot.
    pub rot_refusals: u64,
    /// Places of the medium that were damaged under a served drive.
    pub damaged_places: u64,
    /// Openings that read a wrong bit.
    pub misreads: u64,
    /// Openings that failed because of damage under a served drive, or in the opening.
    pub refusals: u64,
    /// Blocks that damage made unreadable when a drive was opened.
    pub unreadable_blocks: u64,
    /// Scrubs that completed.
    pub scrubs: u64,
    /// Changes of size or capacity that completed.
    pub resizes: u64,
    /// Keys that were replaced, and replacements that continued after a crash.
    pub rekeys: u64,
    /// Replacements that continued after a crash.
    pub rekeys_gone_on: u64,
    /// Snapshots taken.
    pub snapshots: u64,
    /// Snapshots refused for lack of space or during a resize.
    pub snapshots_refused: u64,
    /// Snapshots deleted.
    pub snapshots_deleted: u64,
    /// Snapshots made bookmarks.
    pub bookmarks: u64,
    /// Bookmarks compared with a later snapshot after a life.
    pub bookmarks_compared: u64,
    /// Disks rolled back to a snapshot.
    pub rollbacks: u64,
    /// Snapshots read whole after a life and compared.
    pub snapshots_compared: u64,
    /// Views of snapshots read whole while hosts wrote.
    pub views_read: u64,
    /// Pairs of views compared with the list of changes.
    pub diffs: u64,
    /// Snapshots sent while hosts wrote.
    pub sends: u64,
    /// Snapshots received on another drive.
    pub received: u64,
    /// Attempts to receive a snapshot that were cut off, crashed or failed.
    pub receives_interrupted: u64,
    /// Interrupted receives that ended because of a fault of the other medium.
    pub receives_failed: u64,
    /// Interrupted receives that ended because the other drive was full.
    pub receives_full: u64,
    /// Clones created from snapshots.
    pub clones: u64,
    /// Lives of clones.
    pub clone_lives: u64,
    /// Lives of clones that ended with a crash of the origin.
    pub clones_crashed: u64,
    /// Completed requests of hosts of clones.
    pub clone_requests: u64,
    /// Polls of tasks of clones.
    pub clone_polls: u64,
    /// Clones made independent of their origin.
    pub flattenings: u64,
    /// Audits of snapshots.
    pub audits: u64,
    /// Compactions requested by hosts, whether completed or stopped early.
    pub compactions: u64,
    /// Forwarding tables damaged at the end, and the number of snapshots then listed as damaged.
    pub tables_damaged: [u64; 2],
    /// Drives extracted or rebuilt.
    pub rescues: u64,
    /// Longest time of a request, in nanoseconds of virtual time.
    pub request_ns_max: u64,
    /// Most bytes of buffers that operations of the medium held.
    pub in_flight_bytes_max: u64,
    /// Smallest share of the space for data that a disk took when a write was refused, in percent,
    /// if any was; an upper bound of the disk's content counts.
    pub refused_at_percent: Option<u64>,
    /// Frames that were restored from parity for reads.
    pub restored_reads: u64,
    /// Bytes of frames that were read ahead and then requested.
    pub read_ahead_used_bytes: u64,
    /// Segments that garbage collection emptied.
    pub gc_victims: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Leaves of the map read from the medium.
    pub map_misses: u64,
    /// Batches rolled forward by openings.
    pub recovered_batches: u64,
    /// Fingerprint of all events: equal for equal seeds.
    pub fingerprint: u64,
}

impl Tally {
    /// Counts a completed request.
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

    /// Adds the operations of a drive in a life.
    pub(super) fn drive(&mut self, operations: &Operations) {
        self.restored_reads += operations.restored_reads;
        self.read_ahead_used_bytes += operations.read_ahead_used_bytes;
        self.gc_victims += operations.gc_victims;
        self.checkpoints += operations.checkpoints;
        self.map_misses += operations.map_misses;
        self.recovered_batches += operations.recovered_batches;
    }

    /// Adds the effect of a crash on the medium.
    pub(super) fn crash(&mut self, crash: Crash) {
        self.crash_states += 1;
        self.writes_kept += crash.writes_kept;
        self.writes_dropped += crash.writes_dropped;
        self.writes_torn += crash.writes_torn;
    }

    /// Records the share of the space in use when a write was refused.
    pub(super) fn refused_at(&mut self, percent: u64) {
        self.refused_at_percent =
            Some(self.refused_at_percent.map_or(percent, |least| least.min(percent)));
    }

    /// Records the bytes in flight.
    pub(super) fn held_at_most(&mut self, bytes: u64) {
        self.in_flight_bytes_max = self.in_flight_bytes_max.max(bytes);
    }

    /// Records the time of a request.
    pub(super) fn took_at_most(&mut self, ns: u64) {
        self.request_ns_max = self.request_ns_max.max(ns);
    }

    /// Adds another world's counters.
    pub fn add(&mut self, other: &Tally) {
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
        self.damaged_places += other.damaged_places;
        self.misreads += other.misreads;
        self.refusals += other.refusals;
        self.unreadable_blocks += other.unreadable_blocks;
        self.scrubs += other.scrubs;
        self.resizes += other.resizes;
        self.rekeys += other.rekeys;
        self.rekeys_gone_on += other.rekeys_gone_on;
        self.snapshots += other.snapshots;
        self.snapshots_refused += other.snapshots_refused;
        self.snapshots_deleted += other.snapshots_deleted;
        self.bookmarks += other.bookmarks;
        self.bookmarks_compared += other.bookmarks_compared;
        self.rollbacks += other.rollbacks;
        self.snapshots_compared += other.snapshots_compared;
        self.views_read += other.views_read;
        self.diffs += other.diffs;
        self.sends += other.sends;
        self.received += other.received;
        self.receives_interrupted += other.receives_interrupted;
        self.receives_failed += other.receives_failed;
        self.receives_full += other.receives_full;
        self.clones += other.clones;
        self.clone_lives += other.clone_lives;
        self.clones_crashed += other.clones_crashed;
        self.clone_requests += other.clone_requests;
        self.clone_polls += other.clone_polls;
        self.flattenings += other.flattenings;
        self.audits += other.audits;
        self.compactions += other.compactions;
        self.tables_damaged = [0, 1].map(|at| self.tables_damaged[at] + other.tables_damaged[at]);
        self.rescues += other.rescues;
        self.took_at_most(other.request_ns_max);
        self.held_at_most(other.in_flight_bytes_max);
        other.refused_at_percent.into_iter().for_each(|percent| self.refused_at(percent));
        self.restored_reads += other.restored_reads;
        self.read_ahead_used_bytes += other.read_ahead_used_bytes;
        self.gc_victims += other.gc_victims;
        self.checkpoints += other.checkpoints;
        self.map_misses += other.map_misses;
        self.recovered_batches += other.recovered_batches;
        self.fingerprint = self.fingerprint.rotate_left(1) ^ other.fingerprint;
    }
}
