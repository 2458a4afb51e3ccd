//! The change of a drive between two snapshots, per second. Pure.

use schemars::JsonSchema;
use serde::Serialize;

use super::latency::Latency;
use super::snapshot::DriveSnapshot;

/// Host bytes below which stored fraction and write amplification are meaningless: a few writes
/// leave most of a batch empty.
const TELLING_BYTES: u64 = 64 << 10;

/// Rates of a drive over an interval.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Rates {
    /// Seconds between the snapshots.
    pub seconds: f64,
    /// Bytes per second that the host wrote.
    pub host_write_bytes: f64,
    /// Bytes per second that the host read.
    pub host_read_bytes: f64,
    /// Bytes per second written to the medium.
    pub media_write_bytes: f64,
    /// Bytes per second that garbage collection moved.
    pub moved_bytes: f64,
    /// Segments per second that garbage collection freed.
    pub victims: f64,
    /// Requests per second, of all commands.
    pub requests: f64,
    /// Frame bytes over host bytes; `None` if the host wrote too little.
    pub stored_fraction: Option<f64>,
    /// Media bytes over host bytes; `None` if the host wrote too little.
    pub write_amplification: Option<f64>,
    /// The commands by name.
    pub commands: Vec<CommandRates>,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct CommandRates {
    /// Its name.
    pub command: &'static str,
    /// Requests per second.
    pub requests: f64,
    /// Bytes per second.
    pub bytes: f64,
    /// Median latency in nanoseconds; `None` without requests.
    pub p50_ns: Option<f64>,
    /// 99th percentile of the latency in nanoseconds.
    pub p99_ns: Option<f64>,
    /// Failed requests since the server started.
    pub errors: u64,
}

impl Rates {
    /// Returns the rates between two snapshots taken `seconds` apart. A counter that decreased
    /// counts as unchanged.
    pub(crate) fn between(earlier: &DriveSnapshot, later: &DriveSnapshot, seconds: f64) -> Self {
        let seconds = seconds.max(f64::MIN_POSITIVE);
        let gained = |count: fn(&DriveSnapshot) -> u64| count(later).saturating_sub(count(earlier));
        let rate = |count: fn(&DriveSnapshot) -> u64| gained(count) as f64 / seconds;
        let host_bytes = gained(|drive| drive.info.host_bytes);
        let share =
            |bytes: u64| (host_bytes >= TELLING_BYTES).then(|| bytes as f64 / host_bytes as f64);
        let commands: Vec<_> = later
            .host
            .commands()
            .into_iter()
            .zip(earlier.host.commands())
            .map(|((command, now), (_, before))| {
                let latency: Latency = now.latency.since(&before.latency);
                CommandRates {
                    command,
                    requests: latency.count() as f64 / seconds,
                    bytes: now.bytes.saturating_sub(before.bytes) as f64 / seconds,
                    p50_ns: latency.quantile_ns(0.5),
                    p99_ns: latency.quantile_ns(0.99),
                    errors: now.error_count(),
                }
            })
            .collect();
        Self {
            seconds,
            host_write_bytes: host_bytes as f64 / seconds,
            host_read_bytes: rate(|drive| drive.info.operations.host_read_bytes),
            media_write_bytes: rate(|drive| drive.info.media_bytes),
            moved_bytes: rate(|drive| drive.info.moved_bytes),
            victims: rate(|drive| drive.info.operations.gc_victims),
            requests: commands.iter().map(|command| command.requests).sum(),
            stored_fraction: share(gained(|drive| drive.info.frame_bytes)),
            write_amplification: share(gained(|drive| drive.info.media_bytes)),
            commands,
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: rates are differences over time, and shares exist only where they mean something.
    use super::*;
    use crate::watch::tests::snapshot;

    #[test]
    fn rates_are_differences_over_time() {
        let before = snapshot("d").drives.remove(0);
        let mut after = before.clone();
        after.info.host_bytes += 1 << 20;
        after.info.frame_bytes += 1 << 18;
        after.info.media_bytes += 1 << 19;
        after.host.write.bytes += 1 << 20;
        for _ in 0..4 {
            after.host.write.latency.record(3_000);
        }
        let rates = Rates::between(&before, &after, 2.0);
        assert_eq!(rates.host_write_bytes, f64::from(1 << 19));
        assert_eq!((rates.stored_fraction, rates.write_amplification), (Some(0.25), Some(0.5)));
        assert_eq!(rates.requests, 2.0);
        let write = &rates.commands[1];
        assert_eq!((write.command, write.requests, write.errors), ("write", 2.0, 1));
        assert!(write.p50_ns.is_some_and(|ns| (2_000.0..=4_000.0).contains(&ns)));
        assert_eq!(rates.commands[0].p50_ns, None);
        after.info.host_bytes = before.info.host_bytes + TELLING_BYTES - 1;
        assert_eq!(Rates::between(&before, &after, 1.0).stored_fraction, None);
        // The server was restarted.
        let back = Rates::between(&after, &before, 0.0);
        assert_eq!((back.host_write_bytes, back.requests), (0.0, 0.0));
    }
}
