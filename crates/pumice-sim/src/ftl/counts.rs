//! Counters of written bytes by cause.

use super::BLOCK_BYTES;

/// Counters of a drive since its creation.
///
/// `host + rewritten + collected + leveled + rebuilt + padding + parity = flash` bytes, except for
/// bytes waiting in incomplete rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounts {
    /// 4 KiB blocks written by the host.
    pub host_blocks_written: u64,
    /// 4 KiB blocks read by the host.
    pub host_blocks_read: u64,
    /// Blocks that contained data when the host trimmed them.
    pub blocks_trimmed: u64,
    /// Bytes of frames that store the host's blocks, including headers.
    pub host_bytes: u64,
    /// Bytes of frames that share a unit of the map with a block written by the host.
    pub rewritten_bytes: u64,
    /// Bytes of frames moved by garbage collection.
    pub collected_bytes: u64,
    /// Bytes of frames moved by wear leveling.
    pub leveled_bytes: u64,
    /// Bytes of frames that were rewritten elsewhere after a failure of the flash.
    pub rebuilt_bytes: u64,
    /// Bytes programmed as padding, in flushed rows and at the ends of segments.
    pub padding_bytes: u64,
    /// Bytes of parity rows.
    pub parity_bytes: u64,
    /// Bytes of all rows that were issued to the flash or are waiting for their die.
    pub flash_bytes: u64,
    /// Bytes of rows, included in `flash_bytes`, that were waiting for a part of the flash when it
    /// failed, and were not programmed.
    pub failed_bytes: u64,
    /// Blocks lost in a failure of the flash.
    pub blocks_lost: u64,
    /// Lost blocks that the host tried to read; each read is an I/O error.
    pub blocks_unreadable: u64,
    /// Segments emptied to reclaim space.
    pub segments_collected: u64,
    /// Segments emptied for wear leveling.
    pub segments_leveled: u64,
}

/// Write amplification by cause: the bytes programmed for each cause, divided by the bytes of the
/// host's blocks before compression. The parts add up to [`LogCounts::write_amplification`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amplification {
    /// Host data, as stored.
    pub host: f64,
    /// Other host data in partly overwritten units of the map.
    pub rewritten: f64,
    /// Garbage collection.
    pub collected: f64,
    /// Wear leveling.
    pub leveled: f64,
    /// Data rewritten elsewhere after a failure of the flash.
    pub rebuilt: f64,
    /// Padding.
    pub padding: f64,
    /// Parity.
    pub parity: f64,
}

impl LogCounts {
    /// Returns the increments since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            host_blocks_written: self.host_blocks_written - earlier.host_blocks_written,
            host_blocks_read: self.host_blocks_read - earlier.host_blocks_read,
            blocks_trimmed: self.blocks_trimmed - earlier.blocks_trimmed,
            host_bytes: self.host_bytes - earlier.host_bytes,
            rewritten_bytes: self.rewritten_bytes - earlier.rewritten_bytes,
            collected_bytes: self.collected_bytes - earlier.collected_bytes,
            leveled_bytes: self.leveled_bytes - earlier.leveled_bytes,
            rebuilt_bytes: self.rebuilt_bytes - earlier.rebuilt_bytes,
            padding_bytes: self.padding_bytes - earlier.padding_bytes,
            parity_bytes: self.parity_bytes - earlier.parity_bytes,
            flash_bytes: self.flash_bytes - earlier.flash_bytes,
            failed_bytes: self.failed_bytes - earlier.failed_bytes,
            blocks_lost: self.blocks_lost - earlier.blocks_lost,
            blocks_unreadable: self.blocks_unreadable - earlier.blocks_unreadable,
            segments_collected: self.segments_collected - earlier.segments_collected,
            segments_leveled: self.segments_leveled - earlier.segments_leveled,
        }
    }

    /// Returns the sums of these counters and the counters of another drive.
    pub fn with(&self, other: &Self) -> Self {
        Self {
            host_blocks_written: self.host_blocks_written + other.host_blocks_written,
            host_blocks_read: self.host_blocks_read + other.host_blocks_read,
            blocks_trimmed: self.blocks_trimmed + other.blocks_trimmed,
            host_bytes: self.host_bytes + other.host_bytes,
            rewritten_bytes: self.rewritten_bytes + other.rewritten_bytes,
            collected_bytes: self.collected_bytes + other.collected_bytes,
            leveled_bytes: self.leveled_bytes + other.leveled_bytes,
            rebuilt_bytes: self.rebuilt_bytes + other.rebuilt_bytes,
            padding_bytes: self.padding_bytes + other.padding_bytes,
            parity_bytes: self.parity_bytes + other.parity_bytes,
            flash_bytes: self.flash_bytes + other.flash_bytes,
            failed_bytes: self.failed_bytes + other.failed_bytes,
            blocks_lost: self.blocks_lost + other.blocks_lost,
            blocks_unreadable: self.blocks_unreadable + other.blocks_unreadable,
            segments_collected: self.segments_collected + other.segments_collected,
            segments_leveled: self.segments_leveled + other.segments_leveled,
        }
    }

    /// Returns the sum of the bytes of all causes.
    pub(super) fn caused_bytes(&self) -> u64 {
        let moved = self.collected_bytes + self.leveled_bytes + self.rebuilt_bytes;
        self.host_bytes + self.rewritten_bytes + moved + self.padding_bytes + self.parity_bytes
    }

    /// Returns programmed bytes divided by host bytes, with 4 KiB per block; 0 before the first
    /// write.
    pub fn write_amplification(&self) -> f64 {
        self.per_host_byte(self.flash_bytes)
    }

    /// Returns the write amplification by cause, excluding bytes that are waiting in incomplete
    /// rows.
    pub fn amplification(&self) -> Amplification {
        Amplification {
            host: self.per_host_byte(self.host_bytes),
            rewritten: self.per_host_byte(self.rewritten_bytes),
            collected: self.per_host_byte(self.collected_bytes),
            leveled: self.per_host_byte(self.leveled_bytes),
            rebuilt: self.per_host_byte(self.rebuilt_bytes),
            padding: self.per_host_byte(self.padding_bytes),
            parity: self.per_host_byte(self.parity_bytes),
        }
    }

    fn per_host_byte(&self, bytes: u64) -> f64 {
        let host = self.host_blocks_written * u64::from(BLOCK_BYTES);
        if host == 0 { 0.0 } else { bytes as f64 / host as f64 }
    }
}
