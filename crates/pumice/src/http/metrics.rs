//! A snapshot as Prometheus reads it.
//!
//! Names follow Prometheus' conventions: base units, `_total` for counters, one name for one thing.
//! Byte counters name their layer. Every series of a drive has the label `drive`.
//!
//! Always OpenMetrics 1.0, which Prometheus has read since 2.5 and asks for; the `Accept` header is
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

/// What all names begin with.
const PREFIX: &str = "pumice";

/// A number of a drive: name without prefix and `_total`, what it is, where it is found.
type Definition<T> = (&'static str, &'static str, fn(&DriveSnapshot) -> T);

/// What only grows. The first five cover the drive's life, the others count from the opening.
const COUNTERS: [Definition<u64>; 22] = [
    ("host_written_bytes", "Bytes the host wrote.", |drive| drive.info.host_bytes),
    ("frame_written_bytes", "Bytes those became, compressed, with headers.", |drive| {
        drive.info.frame_bytes
    }),
    ("media_written_bytes", "Bytes written to the medium.", |drive| drive.info.media_bytes),
    ("gc_moved_bytes", "Bytes that garbage collection moved.", |drive| drive.info.moved_bytes),
    ("epochs", "Openings for writing.", |drive| drive.info.epoch.into()),
    ("host_read_bytes", "Bytes the host read.", |drive| drive.info.operations.host_read_bytes),
    ("media_read_bytes", "Bytes read from the medium for the host.", |drive| {
        drive.info.operations.media_read_bytes
    }),
    ("metadata_written_bytes", "Bytes of checkpoints.", |drive| drive.info.operations.meta_bytes),
    ("gc_victims", "Segments that garbage collection emptied.", |drive| {
        drive.info.operations.gc_victims
    }),
    ("gc_joined_frames", "Frames that garbage collection put together from several.", |drive| {
        drive.info.operations.joined_frames
    }),
    ("checkpoints", "Checkpoints written.", |drive| drive.info.operations.checkpoints),
    ("batches", "Batches appended to the medium.", |drive| drive.info.operations.batches),
    ("syncs", "Syncs of the medium.", |drive| drive.info.operations.syncs),
    ("fill_blocks", "Blocks of one byte, stored without data.", |drive| {
        drive.info.operations.fill_blocks
    }),
    ("merged_blocks", "Blocks written in part, read first and merged.", |drive| {
        drive.info.operations.merged_blocks
    }),
    ("corrupt_reads", "Reads that met damage.", |drive| drive.info.operations.corrupt_reads),
    ("map_cache_hits", "Look-ups of the map that found their leaf in memory.", |drive| {
        drive.info.operations.map_hits
    }),
    ("map_cache_misses", "Leaves of the map that had to be read.", |drive| {
        drive.info.operations.map_misses
    }),
    ("map_cache_evictions", "Leaves given up for the map's budget.", |drive| {
        drive.info.operations.map_evictions
    }),
    ("frame_cache_hits", "Reads served from a frame decoded before.", |drive| {
        drive.info.operations.frame_cache_hits
    }),
    ("scrubs", "Scrubs that came to their end.", |drive| drive.info.scrub.scrubs_completed),
    ("recovered_batches", "Batches of the log that the opening read.", |drive| {
        drive.info.operations.recovered_batches
    }),
];

/// What goes up and down.
const GAUGES: [Definition<f64>; 17] = [
    ("size_bytes", "Size of the host's disk.", |drive| drive.info.size_bytes as f64),
    ("capacity_bytes", "Bytes of all segments.", |drive| drive.info.capacity_bytes as f64),
    ("mapped_bytes", "Bytes of the host's disk that hold something.", |drive| {
        drive.info.mapped_bytes as f64
    }),
    ("stored_ratio", "Frame bytes over host bytes, over the drive's life.", |drive| {
        drive.info.stored_fraction
    }),
    ("write_amplification_ratio", "Media bytes over host bytes, over the drive's life.", |drive| {
        drive.info.write_amplification
    }),
    ("used_ratio", "Share of what data may take that is in use.", |drive| {
        drive.info.used_percent / 100.0
    }),
    ("segments", "Segments.", |drive| drive.info.segment_count.into()),
    ("free_segments", "Segments that hold nothing.", |drive| drive.info.free_segments.into()),
    ("gc_debt_segments", "Segments to free until garbage collection rests.", |drive| {
        drive.overview.gc_debt_segments.into()
    }),
    ("requests_in_flight", "Requests of hosts under way.", |drive| drive.host.in_flight as f64),
    ("writable", "Whether writes are taken: 1, or 0.", |drive| {
        let refuses = drive.overview.alerts.iter().any(|alert| alert.refuses_writes);
        f64::from(u8::from(!refuses))
    }),
    ("alerts", "Things that are wrong; /healthz names them.", |drive| {
        drive.overview.alerts.len() as f64
    }),
    ("undurable_batches", "Batches that are not known to be durable.", |drive| {
        drive.info.sequence.saturating_sub(drive.info.watermark) as f64
    }),
    ("scrub_running", "Whether a scrub runs: 1, or 0.", |drive| {
        f64::from(u8::from(drive.info.scrub.scrub_running))
    }),
    ("scrub_problems", "Problems that the last scrub found.", |drive| {
        drive.info.scrub.scrub_problems as f64
    }),
    ("recovery_duration_seconds", "Time the opening took for checkpoint and log.", |drive| {
        drive.info.operations.recovery_ns as f64 / 1e9
    }),
    ("rated_write_bytes", "Bytes that may be written to the medium in its life; 0: not told.", {
        |drive| drive.rated_write_bytes.unwrap_or(0) as f64
    }),
];

/// What [`exposition`] returns.
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

/// A snapshot that prometheus-client can ask.
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
    /// What has no drive.
    fn server(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (version, connections) = (&self.0.version, self.0.connections);
        let help = "The program; always 1.";
        let mut metric = encoder.encode_descriptor("build_info", help, None, MetricType::Gauge)?;
        let labels = [("version", version.as_str())];
        ConstGauge::new(1i64).encode(metric.encode_family(&labels)?)?;
        for (name, help, value) in [
            ("connections", "NBD clients connected.", connections.open as f64),
            ("uptime_seconds", "Time since the start.", self.0.now_ns as f64 / 1e9),
            (
                "snapshot_duration_seconds",
                "Time the drives' thread took to tell all this.",
                self.0.taken_ns as f64 / 1e9,
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        for (name, help, value) in [
            ("connections_accepted", "NBD clients accepted.", connections.accepted),
            (
                "refused_requests",
                "Requests that never reached a drive: wrong, or during shutdown.",
                connections.refused_requests,
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)?;
        }
        Ok(())
    }

    fn space(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Where the capacity is; the states add up to it.";
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
        let help = "Memory held, by owner.";
        self.bytes_by(encoder, "memory_bytes", help, "owner", |DriveSnapshot { info, .. }| {
            [
                ("map", info.memory.map_bytes),
                ("batches", info.memory.batch_bytes),
                ("read_buffers", info.memory.read_buffer_bytes),
                ("frame_cache", info.memory.frame_cache_bytes),
            ]
        })
    }

    /// A gauge in bytes, with a label that says which part of a drive's bytes.
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
        let help = "Time from a request's arrival to its reply, failed ones too.";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for drive in &self.0.drives {
            for (command, stats) in drive.host.commands() {
                let labels = [("drive", drive.name.as_str()), ("command", command)];
                histogram(metric.encode_family(&labels)?, &stats.latency)?;
            }
        }
        let help = "Bytes of requests that succeeded.";
        let kind = MetricType::Counter;
        let mut metric = encoder.encode_descriptor("request_bytes", help, None, kind)?;
        for drive in &self.0.drives {
            for (command, stats) in drive.host.commands() {
                let labels = [("drive", drive.name.as_str()), ("command", command)];
                ConstCounter::new(stats.bytes).encode(metric.encode_family(&labels)?)?;
            }
        }
        let help = "Requests that a drive failed, by kind of failure.";
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
    //! Goal: names follow OpenMetrics, and a drive's name may hold any character. What promtool and Prometheus say of them is in `tests/it`.
    use super::*;
    use crate::watch::tests::snapshot;

    #[test]
    fn counters_and_histograms_are_named_as_open_metrics_want() {
        let text = exposition(snapshot("d"));
        assert!(text.ends_with("# EOF\n"));
        assert!(text.contains("# HELP pumice_host_written_bytes "));
        assert!(text.contains("\npumice_host_written_bytes_total{drive=\"d\"} 1000\n"));
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
