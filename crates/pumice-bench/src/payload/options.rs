//! The parameters of a payload and their limits.

use std::sync::Arc;

use super::{IozoneLayout, Profile, Saving, UNIT_BYTES};
use crate::error::{Error, Result};
use pumice_drive::codec::Codec;

/// Maximum record size of IOzone in bytes; this is IOzone's own limit.
pub const RECORD_BYTES_MAX: usize = 16 << 20;

/// Minimum unit size in bytes: one sector.
pub(crate) const UNIT_BYTES_MIN: usize = 512;

/// Kind of data.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Random bytes, which cannot be compressed.
    Random,
    /// One byte repeated.
    Byte(u8),
    /// Units that all have this saving.
    Exact(Saving),
    /// Units that have this saving on average in 4 KiB chunks and vary like units of real data:
    /// many hardly compress, zstd saves more than LZ4, and larger chunks save more than smaller
    /// ones. Above 80 %, an increasing number of units consists of 16 fresh bytes and then zeroes.
    Spread(Saving),
    /// Data that is statistically similar to profiled data, including fills and duplicates.
    Like(Profile),
    /// These bytes, repeated from a different offset in each stream.
    Replay(Arc<[u8]>),
    /// Records as written by IOzone with this percentage for `-+w`, `-+y` and `-+C`; each unit is a
    /// record.
    Iozone(IozoneLayout, Saving),
}

/// Parameters of a payload.
#[derive(Clone, Debug, PartialEq)]
pub struct PayloadOptions {
    /// Kind of data.
    pub kind: Kind,
    /// Payloads with different seeds have no units in common.
    pub seed: u64,
    /// Share of units that repeat an earlier unit of the stream: below 100 %, and at most 99 % of
    /// units that are not fills. Spread and like data repeats in windows of 64 KiB, so that chunks
    /// retain their savings.
    pub duplicates: Saving,
    /// The codec used to calibrate exact and spread data.
    pub codec: Codec,
    /// Unit size in bytes: a power of two from 512 to 4096; up to 16 MiB for IOzone's records.
    /// Always 4096 for spread and like data.
    pub unit_bytes: usize,
}

impl PayloadOptions {
    /// Returns options for 4 KiB units with seed 1, calibrated for LZ4, without duplicates.
    /// [`Kind::Like`] has the duplicates of its profile.
    pub fn new(kind: Kind) -> Self {
        let duplicates = match &kind {
            Kind::Like(profile) => profile.duplicates(),
            _ => Saving::NONE,
        };
        Self { kind, seed: 1, duplicates, codec: Codec::Lz4, unit_bytes: UNIT_BYTES }
    }
}

pub(super) fn check(options: &PayloadOptions) -> Result<()> {
    let wrong = |what: String| Err(Error::invalid(what));
    let unit_bytes = options.unit_bytes;
    let (largest, only) = match options.kind {
        Kind::Iozone(..) => (RECORD_BYTES_MAX, false),
        Kind::Spread(_) | Kind::Like(_) => (UNIT_BYTES, true),
        _ => (UNIT_BYTES, false),
    };
    let smallest = if only { UNIT_BYTES } else { UNIT_BYTES_MIN };
    if !unit_bytes.is_power_of_two() || !(smallest..=largest).contains(&unit_bytes) {
        return wrong(format!(
            "units of {unit_bytes} bytes: this kind takes powers of two from {smallest} to \
             {largest}"
        ));
    }
    if options.duplicates.fraction() >= 1.0 {
        return wrong("duplicates must be less than 100 %: the first unit cannot be one".into());
    }
    match &options.kind {
        Kind::Replay(bytes) if bytes.is_empty() => wrong("the file to replay is empty".into()),
        _ => Ok(()),
    }
}
