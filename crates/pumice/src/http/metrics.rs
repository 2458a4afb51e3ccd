//! A snapshot in the format of Prometheus.
//!
//! Names follow Prometheus' conventions: base units, `_total` for counters, one name for one thing.
//! Byte counters name their layer. Every series of a drive has the label `drive`.
//!
//! Always OpenMetrics 1.0, which Prometheus has read since 2.5 and requests; the `Accept` header is
//! not evaluated.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeMetric, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::watch::{BUCKETS, DriveSnapshot, Latency, Snapshot, bucket_limit_ns};
use pumice_drive::media::array::{MemberInfo, MemberStatus};

/// Prefix of all names.
const PREFIX: &str = "pumice";

/// A value of a drive: name without prefix and `_total`, help text, and the function that reads it.
type Definition<T> = (&'static str, &'static str, fn(&DriveSnapshot) -> T);

/// Counters. The first five cover the life of the drive, the others start when it is opened.
const COUNTERS: [Definition<u64>; 35] = [
    ("host_written_bytes", "Bytes written by the host.", |drive| drive.info.host_bytes),
    (
        "frame_written_bytes",
        "Bytes of frames written for the host: compressed, with headers.",
        |drive| drive.info.frame_bytes,
    ),
    ("media_written_bytes", "Bytes written to the medium.", |drive| drive.info.media_bytes),
    ("gc_moved_bytes", "Bytes moved by garbage collection.", |drive| drive.info.moved_bytes),
    ("epochs", "Times the drive was opened for writing.", |drive| drive.info.epoch.into()),
    ("host_read_bytes", "Bytes read by the host.", |drive| drive.info.operations.host_read_bytes),
    ("media_read_bytes", "Bytes read from the medium for the host.", |drive| {
        drive.info.operations.media_read_bytes
    }),
    ("metadata_written_bytes", "Bytes written for checkpoints.", |drive| {
        drive.info.operations.meta_bytes
    }),
    ("gc_victims", "Segments freed by garbage collection.", |drive| {
        drive.info.operations.gc_victims
    }),
    ("checkpoints", "Checkpoints written.", |drive| drive.info.operations.checkpoints),
    ("batches", "Batches appended to the medium.", |drive| drive.info.operations.batches),
    ("durable_appends", "Batches that were durable without a sync.", |drive| {
        drive.info.operations.durable_appends
    }),
    ("syncs", "Syncs of the medium.", |drive| drive.info.operations.syncs),
    ("zeroed_bytes", "Zeroes written to free segments, for flushes into them.", |drive| {
        drive.info.operations.zeroed_bytes
    }),
    ("fill_blocks", "Blocks of one repeated byte, stored without data.", |drive| {
        drive.info.operations.fill_blocks
    }),
    ("merged_blocks", "Blocks written partially, which needs a read first.", |drive| {
        drive.info.operations.merged_blocks
    }),
    ("reordered_bytes", "Bytes that were read in order and written again in order.", |drive| {
        drive.info.operations.reordered_bytes
    }),
    ("restored_reads", "Damaged frames that were restored from parity for reads.", |drive| {
        drive.info.operations.restored_reads
    }),
    ("corrupt_reads", "Reads that failed because of damage.", |drive| {
        drive.info.operations.corrupt_reads
    }),
    ("map_cache_hits", "Map lookups that found their leaf in memory.", |drive| {
        drive.info.operations.map_hits
    }),
    ("map_cache_misses", "Map lookups that had to read their leaf.", |drive| {
        drive.info.operations.map_misses
    }),
    ("map_cache_evictions", "Map leaves evicted to stay within the cache limit.", |drive| {
        drive.info.operations.map_evictions
    }),
    ("frame_cache_hits", "Reads served from a cached frame.", |drive| {
        drive.info.operations.frame_cache_hits
    }),
    ("read_cache_hits", "Blocks of short reads served from the read cache.", |drive| {
        drive.info.operations.read_cache_hits
    }),
    ("read_cache_misses", "Blocks of short reads that were read and decoded.", |drive| {
        drive.info.operations.read_cache_misses
    }),
    ("read_ahead_bytes", "Bytes read from the medium ahead of sequential readers.", |drive| {
        drive.info.operations.read_ahead_bytes
    }),
    ("read_ahead_used_bytes", "Bytes of frames read ahead and later requested.", |drive| {
        drive.info.operations.read_ahead_used_bytes
    }),
    ("scrubs", "Completed scrubs.", |drive| drive.info.scrub.scrubs_completed),
    ("recovered_batches", "Batches replayed when the drive was opened.", |drive| {
        drive.info.operations.recovered_batches
    }),
    ("bucket_puts", "Writes of objects.", |drive| {
        drive.info.bucket.as_ref().map_or(0, |bucket| bucket.requests.puts)
    }),
    ("bucket_gets", "Reads of objects, and checks whether one exists.", |drive| {
        drive.info.bucket.as_ref().map_or(0, |bucket| bucket.requests.gets)
    }),
    ("bucket_lists", "Listings of objects.", |drive| {
        drive.info.bucket.as_ref().map_or(0, |bucket| bucket.requests.lists)
    }),
    ("bucket_deletes", "Deletions of objects.", |drive| {
        drive.info.bucket.as_ref().map_or(0, |bucket| bucket.requests.deletes)
    }),
    ("bucket_put_bytes", "Bytes written to objects.", |drive| {
        drive.info.bucket.as_ref().map_or(0, |bucket| bucket.requests.put_bytes)
    }),
    ("bucket_get_bytes", "Bytes read from objects.", |drive| {
        drive.info.bucket.as_ref().map_or(0, |bucket| bucket.requests.get_bytes)
    }),
];

const GAUGES: [Definition<f64>; 29] = [
    ("size_bytes", "Size of the disk.", |drive| drive.info.size_bytes as f64),
    ("capacity_bytes", "Capacity of the drive: the size of all segments.", |drive| {
        drive.info.capacity_bytes as f64
    }),
    ("mapped_bytes", "Bytes of the disk that hold data other than zeroes.", |drive| {
        drive.info.mapped_bytes as f64
    }),
    ("stored_ratio", "Frame bytes divided by host bytes, over the life of the drive.", |drive| {
        drive.info.stored_fraction
    }),
    (
        "write_amplification_ratio",
        "Media bytes divided by host bytes, over the life of the drive.",
        |drive| drive.info.write_amplification,
    ),
    ("used_ratio", "Used share of the capacity available for data.", |drive| {
        drive.info.used_percent / 100.0
    }),
    ("segments", "Number of segments.", |drive| drive.info.segment_count.into()),
    ("free_segments", "Free segments.", |drive| drive.info.free_segments.into()),
    ("warm_bytes", "Bytes of free segments that are kept for flushes.", |drive| {
        drive.info.warm_bytes as f64
    }),
    ("gc_debt_segments", "Segments to free until garbage collection stops.", |drive| {
        drive.overview.gc_debt_segments.into()
    }),
    ("snapshots", "Number of snapshots.", |drive| drive.info.snapshots.into()),
    ("snapshot_bytes", "Bytes that snapshots retain beyond the disk.", |drive| {
        drive.info.snapshot_bytes as f64
    }),
    (
        "snapshot_oldest_timestamp_seconds",
        "When the oldest snapshot was taken, in seconds since 1970; 0 without snapshots.",
        |drive| drive.info.snapshot_oldest_seconds.unwrap_or(0) as f64,
    ),
    ("clones", "Number of clones that read from snapshots.", |drive| drive.info.clones.into()),
    ("requests_in_flight", "Requests in flight.", |drive| drive.host.in_flight as f64),
    ("writable", "1 if the drive accepts writes, else 0.", |drive| {
        let refuses = drive.overview.alerts.iter().any(|alert| alert.refuses_writes);
        f64::from(u8::from(!refuses))
    }),
    ("alerts", "Active alerts; /healthz describes them.", |drive| {
        drive.overview.alerts.len() as f64
    }),
    ("members", "Files or devices that hold the drive.", |drive| {
        drive.info.array.as_ref().map_or(1, |array| array.members.len()) as f64
    }),
    ("members_online", "Files or devices that have all data.", |drive| {
        let is_online = |member: &&MemberInfo| member.state == MemberStatus::Online;
        let members = drive.info.array.as_ref().map(|array| array.members.iter());
        members.map_or(1, |members| members.filter(is_online).count()) as f64
    }),
    ("bucket_lag_seconds", "Age of the oldest change that the bucket lacks.", |drive| {
        drive.info.bucket.as_ref().map_or(0.0, |bucket| bucket.lag_ns as f64 / 1e9)
    }),
    ("bucket_lag_bytes", "Bytes that are only in the journal.", |drive| {
        drive.info.bucket.as_ref().map_or(0.0, |bucket| bucket.lag_bytes as f64)
    }),
    ("bucket_stored_bytes", "Bytes of segments in the bucket.", |drive| {
        drive.info.bucket.as_ref().map_or(0.0, |bucket| bucket.stored_bytes as f64)
    }),
    (
        "bucket_requests_cost_dollars",
        "Price of the requests to the bucket since the drive was opened.",
        |drive| drive.bucket_cost.map_or(0.0, |cost| cost.requests_usd),
    ),
    (
        "bucket_storage_cost_dollars_per_month",
        "Monthly price of the current storage in the bucket.",
        |drive| drive.bucket_cost.map_or(0.0, |cost| cost.storage_usd_per_month),
    ),
    ("undurable_batches", "Batches not yet durable.", |drive| {
        drive.info.sequence.saturating_sub(drive.info.watermark) as f64
    }),
    ("scrub_running", "1 if a scrub is running, else 0.", |drive| {
        f64::from(u8::from(drive.info.scrub.scrub_running))
    }),
    ("scrub_problems", "Problems found by the last scrub.", |drive| {
        drive.info.scrub.scrub_problems as f64
    }),
    ("recovery_duration_seconds", "Duration of recovery when the drive was opened.", |drive| {
        drive.info.operations.recovery_ns as f64 / 1e9
    }),
    ("rated_write_bytes", "Rated write endurance of the medium; 0 if unknown.", {
        |drive| drive.rated_write_bytes.unwrap_or(0) as f64
    }),
];

/// Content type of [`exposition`].
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns all metrics of a snapshot, as OpenMetrics.
pub(super) fn exposition(snapshot: Snapshot) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Metrics(snapshot)));
    let mut text = String::with_capacity(32 << 10);
    prometheus_client::encoding::text::encode(&mut text, &registry)
        .expect("writing to a string does not fail");
    text
}

/// A snapshot for prometheus-client to collect.
#[derive(Debug)]
struct Metrics(Snapshot);

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.server(&mut encoder)?;
        for (name, help, value) in COUNTERS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for drive in &self.0.drives {
                let labels = [("drive", drive.name.as_str())];
                ConstCounter::new(value(drive)).encode(metric.encode_family(&labels)?)?;
            }
        }
        for (name, help, value) in GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for drive in &self.0.drives {
                let labels = [("drive", drive.name.as_str())];
                ConstGauge::new(value(drive)).encode(metric.encode_family(&labels)?)?;
            }
        }
        self.space(&mut encoder)?;
        self.memory(&mut encoder)?;
        self.requests(&mut encoder)
    }
}

impl Metrics {
    /// Metrics of the server.
    fn server(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (version, connections) = (&self.0.version, &self.0.connections);
        let help = "Version of the program; always 1.";
        let mut metric = encoder.encode_descriptor("build_info", help, None, MetricType::Gauge)?;
        let labels = [("version", version.as_str())];
        ConstGauge::new(1i64).encode(metric.encode_family(&labels)?)?;
        for (name, help, value) in [
            ("connections", "NBD clients connected.", connections.open as f64),
            ("uptime_seconds", "Time since the server started.", self.0.now_ns as f64 / 1e9),
            (
                "snapshot_duration_seconds",
                "Duration of collecting these metrics on the drives' thread.",
                self.0.taken_ns as f64 / 1e9,
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        for (name, help, value) in [
            ("connections_accepted", "NBD clients accepted.", connections.accepted),
            (
                "connections_refused",
                "NBD clients refused: a handshake, a certificate or an export.",
                connections.refused,
            ),
            (
                "refused_requests",
                "Requests refused before they reached a drive: malformed, or during shutdown.",
                connections.refused_requests,
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)?;
        }
        let help = "Expiry of a certificate or list of revocations, in seconds since 1970.";
        let name = "certificate_expiry_timestamp_seconds";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (index, validity) in connections.validities.iter().enumerate() {
            // A file may hold a chain of certificates.
            let number = index.to_string();
            let labels = [("file", validity.file.as_str()), ("number", number.as_str())];
            ConstGauge::new(validity.until_s).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn space(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Capacity by state.";
        self.bytes_by(
            encoder,
            "space_bytes",
            help,
            "state",
            |DriveSnapshot { overview, .. }| {
                [
                    ("live", overview.live_bytes),
                    ("dead", overview.dead_bytes),
                    ("free", overview.free_bytes),
                    ("reserve", overview.reserve_bytes),
                ]
            },
        )
    }

    fn memory(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Memory in use, by owner.";
        self.bytes_by(encoder, "memory_bytes", help, "owner", |DriveSnapshot { info, .. }| {
            [
                ("map", info.memory.map_bytes),
                ("batches", info.memory.batch_bytes),
                ("read_buffers", info.memory.read_buffer_bytes),
                ("frame_cache", info.memory.frame_cache_bytes),
                ("read_cache", info.memory.read_cache_bytes),
            ]
        })
    }

    /// Encodes a gauge in bytes with a label for each part of a drive's bytes.
    fn bytes_by<N: EncodeGaugeValue, const PARTS: usize>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        label: &'static str,
        parts: impl Fn(&DriveSnapshot) -> [(&'static str, N); PARTS],
    ) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for drive in &self.0.drives {
            for (part, bytes) in parts(drive) {
                let labels = [("drive", drive.name.as_str()), (label, part)];
                ConstGauge::new(bytes).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn requests(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let name = "request_duration_seconds";
        let help = "Latency of requests, including failed ones.";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for drive in &self.0.drives {
            for (command, stats) in drive.host.commands() {
                let labels = [("drive", drive.name.as_str()), ("command", command)];
                histogram(metric.encode_family(&labels)?, &stats.latency)?;
            }
        }
        let help = "Bytes of successful requests.";
        let kind = MetricType::Counter;
        let mut metric = encoder.encode_descriptor("request_bytes", help, None, kind)?;
        for drive in &self.0.drives {
            for (command, stats) in drive.host.commands() {
                let labels = [("drive", drive.name.as_str()), ("command", command)];
                ConstCounter::new(stats.bytes).encode(metric.encode_family(&labels)?)?;
            }
        }
        let help = "Failed requests, by kind of error.";
        let mut metric = encoder.encode_descriptor("request_errors", help, None, kind)?;
        for drive in &self.0.drives {
            for (command, stats) in drive.host.commands() {
                for (kind, count) in &stats.errors {
                    let kind = format!("{kind:?}");
                    let labels =
                        [("drive", drive.name.as_str()), ("command", command), ("kind", &kind)];
                    ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

fn histogram(mut metric: MetricEncoder<'_>, latency: &Latency) -> fmt::Result {
    let limit = |index| match index {
        BUCKETS => f64::INFINITY,
        index => bucket_limit_ns(index) as f64 / 1e9,
    };
    let mut buckets = [(0.0, 0); BUCKETS + 1];
    for (index, (bucket, count)) in buckets.iter_mut().zip(latency.counts).enumerate() {
        *bucket = (limit(index), count);
    }
    let sum = latency.sum_ns as f64 / 1e9;
    metric.encode_histogram::<NoLabelSet>(sum, latency.count(), &buckets, None)
}

#[cfg(test)]
mod tests {
    //! Goal: names follow OpenMetrics, and a drive's name may hold any character. promtool and
    //! Prometheus check the output in `tests/it`.
    use super::*;
    use crate::watch::tests::snapshot;

    #[test]
    fn counters_and_histograms_are_named_as_open_metrics_want() {
        let text = exposition(snapshot("d"));
        assert!(text.ends_with("# EOF\n"));
        assert!(text.contains("# HELP pumice_host_written_bytes "));
        assert!(text.contains("\npumice_host_written_bytes_total{drive=\"d\"} 1000\n"));
        let ends = "pumice_certificate_expiry_timestamp_seconds\
                    {file=\"server-cert.pem\",number=\"0\"} 2\n";
        assert!(text.contains(ends), "{text}");
        assert!(text.contains("\npumice_connections_refused_total 4\n"), "{text}");
        let bucket = "pumice_request_duration_seconds_bucket{le=\"0.000016\",drive=\"d\",\
                      command=\"write\"} 1\n";
        assert!(text.contains(bucket), "{text}");
        for (name, ..) in COUNTERS {
            assert!(text.contains(&format!("# TYPE pumice_{name} counter\n")), "{name}");
        }
    }

    #[test]
    fn every_series_is_described_and_there_once() {
        let text = exposition(snapshot("d"));
        let mut seen = std::collections::BTreeSet::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, _) = line.rsplit_once(' ').unwrap();
            assert!(seen.insert(series.to_owned()), "{series} twice");
            let name = series.split('{').next().unwrap();
            let base = ["_bucket", "_sum", "_count", "_total"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .unwrap_or(name);
            assert!(text.contains(&format!("# TYPE {base} ")), "{name}");
        }
    }

    #[test]
    fn names_of_drives_are_escaped() {
        let text = exposition(snapshot("a\"b\\c\nd"));
        assert!(text.contains("{drive=\"a\\\"b\\\\c\\nd\"}"));
    }
}
