//! The last hour of each drive, so that a page shows it as soon as it is loaded.
//!
//! ```text
//! every few seconds: a snapshot of all drives -> rates since the one before -> a point of each
//! ```
//!
//! The points are in memory, and are lost when the server ends. A snapshot occupies a thread of
//! drives for as long as one for a client.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

use super::ask::Asker;
use crate::watch::{DriveSnapshot, Rates, Snapshot};

/// Time that the points cover.
const SPAN: Duration = Duration::from_secs(3600);

/// Maximum points of a drive: one every five seconds, the resolution of a chart.
const POINTS_MAX: usize = 720;

/// Points of all drives together, about 16 MiB. Servers of more than 360 drives keep fewer of each.
const POINTS_TOTAL: usize = 1 << 18;

/// Minimum points of a drive: one a minute.
const POINTS_MIN: usize = 60;

/// The values of a point, in this order: the server's time in seconds, bytes or requests per
/// second, and latencies in seconds.
const FIELDS: [&str; 12] = [
    "time",
    "host",
    "frames",
    "media",
    "moved",
    "meta",
    "reads",
    "writes",
    "read_p50",
    "read_p99",
    "write_p50",
    "write_p99",
];

/// The points of all drives.
#[derive(Clone)]
pub(super) struct History(Arc<Mutex<HashMap<String, Past>>>);

/// The history of a drive.
#[derive(Default)]
struct Past {
    /// The last snapshot and its time; `None` if the last attempt failed.
    last: Option<(u64, DriveSnapshot)>,
    points: VecDeque<Point>,
}

/// Averages over the time since the previous point.
#[derive(Clone, Copy, Serialize)]
struct Point(f64, [f32; FIELDS.len() - 1]);

/// The points of a drive, in the form in which they are sent.
#[derive(Serialize)]
pub(super) struct Points {
    /// Seconds between two points.
    period: f64,
    fields: [&'static str; FIELDS.len()],
    points: Vec<Point>,
}

impl History {
    /// Returns an empty history of the drives that can be asked.
    pub(super) fn new(asker: &Asker) -> Self {
        let history = Self(Arc::default());
        history.drives(|drives| follow(drives, asker.names()));
        history
    }

    /// Records points forever.
    pub(super) async fn keep(self, asker: Asker) {
        let count = self.drives(|drives| drives.len());
        let mut ticks = interval(period(count));
        // A server that was suspended does not catch up.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let snapshot = asker.snapshot().await.ok();
            self.drives(|drives| {
                follow(drives, asker.names());
                note(drives, snapshot);
            });
        }
    }

    /// Returns the points of a drive; `None` if there is no such drive.
    pub(super) fn points(&self, drive: &str) -> Option<Points> {
        self.drives(|drives| {
            let points = drives.get(drive)?.points.iter().copied().collect();
            let period = period(drives.len()).as_secs_f64();
            Some(Points { period, fields: FIELDS, points })
        })
    }

    fn drives<T>(&self, call: impl FnOnce(&mut HashMap<String, Past>) -> T) -> T {
        // Each point is added by a single step, so a panic elsewhere leaves nothing half-done.
        call(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the maximum number of points of each drive, for this number of drives.
fn points_max(drives: usize) -> usize {
    (POINTS_TOTAL / drives.max(1)).clamp(POINTS_MIN, POINTS_MAX)
}

/// Returns the time between two points.
fn period(drives: usize) -> Duration {
    SPAN.div_f64(points_max(drives) as f64)
}

/// Removes drives that are no longer served, and adds new ones.
fn follow(drives: &mut HashMap<String, Past>, names: impl Iterator<Item = String>) {
    let names: HashSet<String> = names.collect();
    drives.retain(|name, _| names.contains(name));
    for name in names {
        drives.entry(name).or_default();
    }
}

/// Adds a point to each drive that answered twice in a row.
fn note(drives: &mut HashMap<String, Past>, snapshot: Option<Snapshot>) {
    let points_max = points_max(drives.len());
    let now_ns = snapshot.as_ref().map_or(0, |snapshot| snapshot.now_ns);
    let answers = snapshot.into_iter().flat_map(|snapshot| snapshot.drives);
    let mut answers: HashMap<String, DriveSnapshot> =
        answers.map(|drive| (drive.name.clone(), drive)).collect();
    for (name, past) in drives {
        let now = answers.remove(name).map(|drive| (now_ns, drive));
        if let (Some((then_ns, then)), Some((_, now))) = (&past.last, &now)
            && now_ns > *then_ns
        {
            // Other drives, which share the memory, may have been added since.
            let excess = (past.points.len() + 1).saturating_sub(points_max);
            past.points.drain(..excess);
            let seconds = (now_ns - then_ns) as f64 / 1e9;
            past.points.push_back(Point(now_ns as f64 / 1e9, values(then, now, seconds)));
        }
        past.last = now;
    }
}

/// Returns the values of a point. A latency without requests is NaN, which is null
/// in JSON.
fn values(then: &DriveSnapshot, now: &DriveSnapshot, seconds: f64) -> [f32; FIELDS.len() - 1] {
    let rates = Rates::between(then, now, seconds);
    let per_second = |then: u64, now: u64| now.saturating_sub(then) as f64 / seconds;
    let command = |name| rates.commands.iter().find(|command| command.command == name);
    let (read, write) = (command("read"), command("write"));
    let latency = |ns: Option<f64>| ns.map_or(f64::NAN, |ns| ns / 1e9);
    let values = [
        rates.host_write_bytes,
        per_second(then.info.frame_bytes, now.info.frame_bytes),
        rates.media_write_bytes,
        rates.moved_bytes,
        per_second(then.info.operations.meta_bytes, now.info.operations.meta_bytes),
        read.map_or(0.0, |read| read.requests),
        write.map_or(0.0, |write| write.requests),
        latency(read.and_then(|read| read.p50_ns)),
        latency(read.and_then(|read| read.p99_ns)),
        latency(write.and_then(|write| write.p50_ns)),
        latency(write.and_then(|write| write.p99_ns)),
    ];
    #[expect(clippy::cast_possible_truncation, reason = "a chart shows three digits")]
    values.map(|value| value as f32)
}

#[cfg(test)]
mod tests {
    //! Goal: an hour is kept and no more, and a drive that did not answer leaves a gap.
    use super::*;
    use crate::watch::tests::snapshot;

    const SECOND_NS: u64 = 1_000_000_000;

    fn at(seconds: u64) -> Snapshot {
        let mut snapshot = snapshot("d");
        snapshot.now_ns = seconds * SECOND_NS;
        snapshot.drives[0].info.host_bytes = seconds << 20;
        snapshot
    }

    fn history() -> HashMap<String, Past> {
        HashMap::from([("d".to_owned(), Past::default())])
    }

    #[test]
    fn the_points_of_an_hour_are_kept() {
        let mut drives = history();
        for tick in 0..POINTS_MAX as u64 + 10 {
            note(&mut drives, Some(at(5 * tick)));
        }
        let points = &drives["d"].points;
        assert_eq!((points.len(), points[0].0), (POINTS_MAX, 50.0));
        assert!(points.iter().all(|point| point.1[0] == (1 << 20) as f32));
        let text = serde_json::to_string(&points[0]).unwrap();
        assert!(text.starts_with("[50.0,[1048576.0,") && text.ends_with("null]]"), "{text}");
    }

    #[test]
    fn a_drive_that_did_not_answer_has_a_gap() {
        let mut drives = history();
        for answer in [Some(at(0)), Some(at(5)), None, Some(at(15)), Some(at(20))] {
            note(&mut drives, answer);
        }
        let times: Vec<f64> = drives["d"].points.iter().map(|point| point.0).collect();
        assert_eq!(times, [5.0, 20.0]);
    }

    #[test]
    fn drives_come_and_go() {
        let mut drives = history();
        [0, 5].iter().for_each(|&seconds| note(&mut drives, Some(at(seconds))));
        follow(&mut drives, ["d", "e"].map(String::from).into_iter());
        assert_eq!(drives.len(), 2);
        assert_eq!(drives["d"].points.len(), 1, "the points of a drive that stays are kept");
        follow(&mut drives, ["e".to_owned()].into_iter());
        assert!(!drives.contains_key("d"));
    }

    #[test]
    fn many_drives_share_the_memory() {
        assert_eq!((points_max(1), period(1)), (POINTS_MAX, Duration::from_secs(5)));
        assert_eq!(points_max(1000), POINTS_TOTAL / 1000);
        assert_eq!((points_max(1 << 20), period(1 << 20)), (POINTS_MIN, Duration::from_secs(60)));
    }
}
