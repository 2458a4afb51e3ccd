//! Published results of a drive that compresses, shown next to the measured ones.

/// A published point.
#[derive(Clone, Copy, Debug, serde::Serialize, schemars::JsonSchema)]
pub(super) struct Published {
    /// Compressibility requested from the benchmark, in percent.
    pub(super) asked_percent: f64,
    /// Throughput in MB/s.
    pub(super) mb_s: f64,
}

/// The drive.
pub(super) const DRIVE: &str = "Micro Center 64 GB (SandForce SF-1222), published";

/// The source of its numbers, and their meaning.
pub(super) const SOURCE: &str = "J. Layton, \"SandForce 1222 SSD Testing, part 2\" (2011), which \
    recalls the writes of \"Real-Time Data Compression in SSDs\" (2011-04-12) as about 260 and 97 \
    MB/s: IOzone with 1 MiB records of data that it was asked to make 98 and 2 % dedupable, \
    buffered, on ext4";

/// Its sequential writes. The source does not say whether a MB is 10^6 or 2^20 bytes.
pub(super) const WRITES: [Published; 2] =
    [Published { asked_percent: 98.0, mb_s: 260.0 }, Published { asked_percent: 2.0, mb_s: 97.0 }];
