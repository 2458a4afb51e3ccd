//! The snapshots that a rule keeps: the newest of each hour, day, week, month or year.

use std::collections::BTreeSet;
use std::str::FromStr;

use pumice_drive::controller::SnapshotInfo;

/// A period for which one snapshot is kept. Periods are in UTC, weeks begin on Monday.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Period {
    Hour,
    Day,
    Week,
    Month,
    Year,
}

/// The rules: each keeps the newest snapshot of each of the last COUNT periods that have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keep(Vec<(Period, usize)>);

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rule = |part: &str| {
            let what =
                || format!("{part:?} is not PERIOD:COUNT, such as hourly:24, daily:7, weekly:4");
            let (period, count) = part.split_once(':').ok_or_else(what)?;
            let period = match period {
                "hourly" => Period::Hour,
                "daily" => Period::Day,
                "weekly" => Period::Week,
                "monthly" => Period::Month,
                "yearly" => Period::Year,
                _ => return Err(what()),
            };
            let count = count.parse().ok().filter(|&count| count > 0).ok_or_else(what)?;
            Ok((period, count))
        };
        text.split(',').map(rule).collect::<Result<_, _>>().map(Self)
    }
}

impl Period {
    /// Returns a text that is the same for all times of one period, and differs between periods.
    fn of(self, seconds: u64) -> String {
        /// Days from Monday, 29 December 1969, to 1 January 1970.
        const MONDAY: u64 = 3;
        // YYYY-MM-DDTHH:MM:SSZ
        let time = super::time(seconds);
        let prefix = match self {
            Self::Week => return ((seconds / 86_400 + MONDAY) / 7).to_string(),
            Self::Hour => 13,
            Self::Day => 10,
            Self::Month => 7,
            Self::Year => 4,
        };
        time.chars().take(prefix).collect()
    }
}

impl Keep {
    /// Returns the names of the snapshots that no rule keeps, oldest first.
    pub(super) fn expired(&self, snapshots: &[SnapshotInfo]) -> Vec<String> {
        let mut kept = BTreeSet::new();
        for &(period, count) in &self.0 {
            let mut periods = BTreeSet::new();
            for info in snapshots.iter().rev() {
                if periods.len() < count && periods.insert(period.of(info.created_seconds)) {
                    kept.insert(info.sequence);
                }
            }
        }
        let expired = snapshots.iter().filter(|info| !kept.contains(&info.sequence));
        expired.map(|info| info.name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: each rule keeps the newest snapshot of each of its last periods, and no others.
    use super::*;

    fn snapshots(times: &[u64]) -> Vec<SnapshotInfo> {
        let one = |(number, &created): (u64, &u64)| {
            serde_json::from_value(serde_json::json!({
                "name": format!("auto-{number}"), "guid": uuid::Uuid::nil(), "sequence": number,
                "created_seconds": created, "size_bytes": 0, "mapped_bytes": 0, "live_bytes": 0,
                "written_bytes": 0, "alone_bytes": 0,
            }))
        };
        (1..).zip(times).map(|entry| one(entry).expect("a snapshot")).collect()
    }

    #[test]
    fn the_newest_of_each_period_is_kept() {
        // Every 20 minutes for 50 hours.
        const BEGIN: u64 = 1_790_000_000 / 86_400 * 86_400;
        let times: Vec<u64> = (0..150).map(|step| BEGIN + step * 1200).collect();
        let all = snapshots(&times);
        let keep: Keep = "hourly:3,daily:7".parse().unwrap();
        let expired: BTreeSet<String> = keep.expired(&all).into_iter().collect();
        let kept = all.iter().filter(|info| !expired.contains(&info.name));
        let kept: Vec<u64> = kept.map(|info| (info.created_seconds - BEGIN) / 60).collect();
        // The last of the first two days, and the last of the last three hours.
        assert_eq!(kept, [23 * 60 + 40, 47 * 60 + 40, 48 * 60 + 40, 49 * 60 + 40]);
        assert_eq!(keep.expired(&[]), Vec::<String>::new());
    }

    #[test]
    fn weeks_begin_on_monday_and_months_on_the_first() {
        // Sunday, 1 March 2026, 23:59:59, and the second after it.
        const SUNDAY: u64 = 1_772_409_599;
        assert_ne!(Period::Week.of(SUNDAY), Period::Week.of(SUNDAY + 1));
        assert_eq!(Period::Week.of(SUNDAY - 6 * 86_400), Period::Week.of(SUNDAY));
        assert_eq!(Period::Month.of(SUNDAY), "2026-03");
        assert_eq!(Period::Month.of(SUNDAY - 86_400), "2026-02");
        assert_eq!(Period::Year.of(SUNDAY), "2026");
    }

    #[test]
    fn rules_that_are_none_are_refused() {
        for text in ["", "hourly", "hourly:0", "hourly:-1", "hourly:24,", "often:3", "daily: 7"] {
            let error = text.parse::<Keep>().unwrap_err();
            assert!(error.contains("such as hourly:24"), "{text}: {error}");
        }
    }
}
