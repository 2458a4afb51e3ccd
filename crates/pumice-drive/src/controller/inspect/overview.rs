//! The overview for an operator, in addition to the counters: the use of the capacity, the debt of
//! garbage collection, alerts, and the segments as a map for display.
//!
//! The overview changes nothing. The caller limits the length of the map of segments, whatever the
//! drive's size.

use serde::{Deserialize, Serialize};

use super::super::core::{Core, Purpose};
use super::super::drive::Drive;
use super::super::space::{SegmentView, State};
use crate::format::Stream;
use crate::media::Remote;

/// Use of the capacity, and health of the drive. The byte counts add up to the capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Overview {
    /// Bytes that the map or the newest checkpoint names.
    pub live_bytes: u64,
    /// Bytes in segments in use that nothing names: the possible gain of garbage collection, and
    /// headers.
    pub dead_bytes: u64,
    /// Bytes that data may still occupy without any garbage collection.
    pub free_bytes: u64,
    /// Bytes of free segments that are reserved for checkpoints, garbage collection and trims.
    pub reserve_bytes: u64,
    /// Segments that garbage collection must free before it rests; 0 while it rests.
    pub gc_debt_segments: u32,
    /// The drive's problems, the worst first; empty for a healthy drive.
    pub alerts: Vec<Alert>,
}

/// One problem of a drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Alert {
    /// Its kind, for programs.
    pub kind: AlertKind,
    /// Whether the drive refuses writes because of it.
    pub refuses_writes: bool,
    /// The problem and its remedy, for people.
    pub what: String,
}

/// Kinds of alert, from the worst to the mildest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AlertKind {
    /// The medium failed: nothing can become durable until the drive is reopened.
    Poisoned,
    /// There is no space for data, and garbage collection cannot gain any.
    Full,
    /// The path of the medium no longer leads to it.
    Misplaced,
    /// The bucket lags too far, or another machine has taken over the drive.
    Bucket,
    /// A member of the array is missing.
    Degraded,
    /// A clone's origin cannot be opened.
    Origin,
    /// Reads or a scrub found bytes other than those written.
    Damage,
    /// A threshold of space is passed.
    Space,
}

/// The segments of a drive in order, several in each cell if there are more segments than cells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentMap {
    /// Segments of the drive.
    pub segment_count: u32,
    /// Number of segments in a cell; the last may have fewer.
    pub segments_per_cell: u32,
    /// Bytes of one segment.
    pub segment_bytes: u32,
    /// The cells, in order.
    pub cells: Vec<MapCell>,
}

/// The content of a cell's segments: the state, and live bytes in percent of the cell's bytes. In
/// JSON an array of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapCell(pub CellState, pub u8);

/// The displayed state of a cell: the last of these that any of its segments has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CellState {
    /// Contains nothing.
    Free,
    /// Parts of checkpoints.
    Meta,
    /// Data moved by garbage collection.
    Moved,
    /// The host's writes.
    Host,
    /// Being filled.
    Open,
    /// Contains something that cannot be read, so that it cannot be emptied.
    Stuck,
}

impl Drive {
    /// Returns the use of the capacity and the health of the drive. Takes a few microseconds; in
    /// the worst case the time is proportional to the number of segments.
    pub fn overview(&self) -> Overview {
        let core = self.core();
        let space = core.space();
        let segment_bytes = u64::from(core.superblock().segment_bytes);
        let free = space.free_count();
        let reserve = core.reserved_segments(Purpose::Data).min(free);
        // The rest of a segment that is being filled is as good as free.
        let unfilled: u64 = Stream::ALL
            .into_iter()
            .filter_map(|stream| core.log().filled(stream))
            .map(|filled| segment_bytes.saturating_sub(u64::from(filled)))
            .sum();
        let used = space.segment_count().checked_sub(space.all_free_count());
        let used = used.expect("free segments are segments of the drive");
        let used_bytes = u64::from(used) * segment_bytes;
        // Neither can be larger, unless the medium contains wrong counts.
        let live_bytes = space.live_bytes().min(used_bytes);
        let unfilled = unfilled.min(used_bytes - live_bytes);
        Overview {
            live_bytes,
            dead_bytes: used_bytes - unfilled - live_bytes,
            free_bytes: u64::from(free - reserve) * segment_bytes + unfilled,
            reserve_bytes: u64::from(reserve) * segment_bytes,
            gc_debt_segments: core.gc_target_segments().saturating_sub(free),
            alerts: self.alerts(),
        }
    }

    /// Returns the segments in at most `cells_max` cells, and in at least one.
    pub fn segment_map(&self, cells_max: u32) -> SegmentMap {
        let core = self.core();
        let space = core.space();
        let segment_bytes = core.superblock().segment_bytes;
        let segments_per_cell = space.segment_count().div_ceil(cells_max.max(1)).max(1);
        let views: Vec<SegmentView> = space.views().collect();
        let cells =
            views.chunks(segments_per_cell as usize).map(|chunk| cell(chunk, segment_bytes));
        assert!(cells.len() <= cells_max.max(1) as usize, "a map has no more cells than asked for");
        SegmentMap {
            segment_count: space.segment_count(),
            segments_per_cell,
            segment_bytes,
            cells: cells.collect(),
        }
    }

    /// Returns the drive's problems, the worst first.
    pub(super) fn alerts(&self) -> Vec<Alert> {
        let mut alerts = Vec::new();
        let mut say = |kind, refuses_writes, what| {
            alerts.push(Alert { kind, refuses_writes, what });
        };
        let core = self.core();
        let is_consistent = core.space().check();
        if let Err(error) = core.log().check_poison().and(is_consistent) {
            say(AlertKind::Poisoned, true, error.chain());
        }
        if let Err(error) = core.log().check_medium_full() {
            say(AlertKind::Full, true, format!("{}: make space there", error.chain()));
        }
        if core.is_full() {
            let what = "the drive is full, writes are refused: trim unneeded data, or extend the \
                        capacity";
            say(AlertKind::Full, true, what.to_owned());
        }
        if let Some(what) = self.medium().misplaced() {
            say(AlertKind::Misplaced, false, what);
        }
        let bucket = self.medium().as_remote().map(Remote::status);
        if let Some((refuses, what)) = bucket.and_then(|bucket| bucket.alert()) {
            say(AlertKind::Bucket, refuses, what);
        }
        if let Some(what) = self.medium().as_array().and_then(|array| array.info().alert()) {
            say(AlertKind::Degraded, false, what);
        }
        let (reads, scrub) = (core.counters().corrupt_reads.get(), self.scrub.get());
        if reads > 0 || scrub.scrub_problems > 0 {
            let what = format!(
                "{reads} reads met damage, the last scrub found {}: a scrub lists the damage",
                scrub.scrub_problems
            );
            say(AlertKind::Damage, false, what);
        }
        let restored = core.counters().restored_reads.get();
        if restored > 0 {
            let what = format!(
                "{restored} damaged frames were restored from parity for reads: a scrub \
                 rewrites them elsewhere"
            );
            say(AlertKind::Damage, false, what);
        }
        let lost = core.lost_leaves();
        if lost > 0 {
            let what = format!(
                "{lost} leaves of the map were lost over the drive's life: reads of their blocks \
                 fail until they are written or trimmed; a check lists these blocks"
            );
            say(AlertKind::Damage, false, what);
        }
        if let Some(what) = damaged_snapshots(&core) {
            say(AlertKind::Damage, false, what);
        }
        if let Some(threshold) = self.warnings().last().filter(|_| !core.is_full()) {
            let used_percent = self.used_percent();
            let what = format!(
                "{used_percent:.1} % of the capacity is in use, above the warning threshold of \
                 {threshold} %: trim, or extend the capacity"
            );
            say(AlertKind::Space, false, what);
        }
        alerts
    }
}

fn damaged_snapshots(core: &Core) -> Option<String> {
    let damaged = core.snapshots().kept().iter().filter(|kept| kept.damage.is_some());
    let first = damaged.clone().next()?;
    Some(format!(
        "{} snapshots are damaged, the first is {}: they retain everything, and reads of missing \
         data fail, until they are deleted",
        damaged.count(),
        first.entry.name
    ))
}

fn cell(segments: &[SegmentView], segment_bytes: u32) -> MapCell {
    let state = |view: &SegmentView| match view {
        SegmentView { is_stuck: true, .. } => CellState::Stuck,
        SegmentView { state: State::Free, .. } => CellState::Free,
        SegmentView { state: State::Open, .. } => CellState::Open,
        SegmentView { stream: Stream::Host, .. } => CellState::Host,
        SegmentView { stream: Stream::Moved, .. } => CellState::Moved,
        SegmentView { stream: Stream::Meta, .. } => CellState::Meta,
    };
    let live: u64 = segments.iter().map(|view| u64::from(view.live_bytes)).sum();
    let bytes = segments.len() as u64 * u64::from(segment_bytes);
    // Rounded up: a cell with any live bytes is not shown as empty.
    let percent = (live * 100).div_ceil(bytes.max(1)).min(100) as u8;
    MapCell(segments.iter().map(state).max().unwrap_or(CellState::Free), percent)
}
