//! Real data on a drive: written, read back and compared.

use std::path::Path;

use anyhow::{Result, bail};
use indicatif::ProgressBar;
use schemars::JsonSchema;
use serde::Serialize;

use super::drive::Side;
use super::load::{Measured, Request, Verb};
use super::{CHUNK_BYTES, Defect};
use pumice_drive::controller::Info;

/// Number of requests in flight with real data.
const DEPTH: usize = 8;

/// The result of the real data on one drive.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct Line {
    /// Codec of the drive.
    codec: &'static str,
    /// Bytes that the host wrote.
    pub(super) host_bytes: u64,
    /// Bytes of the frames that hold them.
    frame_bytes: u64,
    /// Bytes that the medium was asked to write.
    media_bytes: u64,
    /// frame_bytes / host_bytes.
    pub(super) stored_fraction: f64,
    /// media_bytes / host_bytes.
    pub(super) write_amplification: f64,
    /// 10^6 host bytes written per second.
    write_mb_s: f64,
    /// 10^6 host bytes read per second.
    read_mb_s: f64,
}

/// Writes the data to one drive and reads it back, comparing every byte; then to the other.
///
/// # Errors
/// A drive cannot be written or read; [`Defect`] if data differs.
pub(super) fn real_data(
    sides: &mut [Side; 2],
    folder: &Path,
    data: &[u8],
    bar: &ProgressBar,
) -> Result<[Line; 2]> {
    let one = |side: &mut Side| -> Result<Line> {
        let before = side.drive.state()?.info;
        let measured = round(side, folder, data, bar)?;
        anyhow::Ok(line(side.codec, &before, &side.drive.state()?.info, &measured))
    };
    let [with, without] = sides;
    Ok([one(with)?, one(without)?])
}

/// Returns the measurements of writing and of reading.
fn round(side: &mut Side, folder: &Path, data: &[u8], bar: &ProgressBar) -> Result<[Measured; 2]> {
    let Side { codec, client, .. } = side;
    let requests = || {
        let count = data.len() / CHUNK_BYTES;
        (0..count).map(|index| Request { offset: (index * CHUNK_BYTES) as u64, len: CHUNK_BYTES })
    };
    bar.set_message(format!("{codec}: writing files of {}", folder.display()));
    bar.reset();
    let mut fill = |request: Request, buffer: &mut [u8]| {
        bar.inc(request.len as u64);
        buffer.copy_from_slice(&data[request.offset as usize..][..request.len]);
        Ok(())
    };
    let written = client.run(Verb::Write, DEPTH, &mut requests(), &mut fill)?;
    bar.set_message(format!("{codec}: reading the files back and comparing"));
    bar.reset();
    let mut compare = |request: Request, buffer: &mut [u8]| {
        bar.inc(request.len as u64);
        if *buffer == data[request.offset as usize..][..request.len] {
            return Ok(());
        }
        bail!(Defect(format!("data read at offset {} differs from the original", request.offset)))
    };
    let read = client.run(Verb::Read, DEPTH, &mut requests(), &mut compare)?;
    Ok([written, read])
}

/// Computes the result of one drive from its counters before and after.
fn line(codec: &'static str, before: &Info, after: &Info, [written, read]: &[Measured; 2]) -> Line {
    let host_bytes = after.host_bytes - before.host_bytes;
    let frame_bytes = after.frame_bytes - before.frame_bytes;
    let media_bytes = after.media_bytes - before.media_bytes;
    let rate = |measured: &Measured| measured.bytes as f64 / 1e6 / measured.seconds.max(1e-9);
    Line {
        codec,
        host_bytes,
        frame_bytes,
        media_bytes,
        stored_fraction: frame_bytes as f64 / host_bytes as f64,
        write_amplification: media_bytes as f64 / host_bytes as f64,
        write_mb_s: rate(written),
        read_mb_s: rate(read),
    }
}

#[cfg(test)]
impl Line {
    /// A result with known bytes only.
    pub(super) fn sample(codec: &'static str, stored_fraction: f64) -> Self {
        Self {
            codec,
            host_bytes: 64 << 20,
            frame_bytes: 0,
            media_bytes: 0,
            stored_fraction,
            write_amplification: stored_fraction,
            write_mb_s: 0.0,
            read_mb_s: 0.0,
        }
    }
}
