//! Real data on a drive: written, read back and compared.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use futures_util::stream::{self, TryStreamExt};
use indicatif::ProgressBar;
use schemars::JsonSchema;
use serde::Serialize;

use super::drive::{Drives, Side};
use super::{CHUNK_BYTES, Defect};
use pumice_drive::base::{AlignedBuffer, Clock};
use pumice_drive::controller::Info;
use pumice_drive::runtime::Runtime;
use pumice_nbd::Durability;
use pumice_nbd::client::Client;

/// Number of requests in flight with real data.
const DEPTH: usize = 8;

/// The result of the real data on one drive.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(super) struct Line {
    /// Codec of the drive.
    pub(super) codec: String,
    /// Bytes that the host wrote.
    pub(super) host_bytes: u64,
    /// Bytes of the frames that hold them.
    pub(super) frame_bytes: u64,
    /// Bytes of all writes to the medium.
    pub(super) media_bytes: u64,
    /// frame_bytes / host_bytes.
    pub(super) stored_fraction: f64,
    /// media_bytes / host_bytes.
    pub(super) write_amplification: f64,
    /// 10^6 host bytes written per second.
    pub(super) write_mb_s: f64,
    /// 10^6 host bytes read per second.
    pub(super) read_mb_s: f64,
}

/// Writes the data to one drive and reads it back, comparing every byte; then to the other.
///
/// # Errors
/// A drive cannot be written or read; [`Defect`] if data differs; `interrupted` was set.
pub(super) fn real_data(
    drives: &Drives,
    folder: &Path,
    data: &[u8],
    interrupted: &AtomicBool,
    bar: &ProgressBar,
) -> Result<[Line; 2]> {
    let one = |side: &Side| {
        let before = side.drive.info();
        let round = round(&drives.runtime, side, folder, data, interrupted, bar);
        let mb_s = drives.runtime.block_on(round)?;
        anyhow::Ok(line(side, &before, mb_s))
    };
    let [with, without] = &drives.sides;
    Ok([one(with)?, one(without)?])
}

/// Returns the MB/s of writing and of reading.
async fn round(
    runtime: &Runtime,
    Side { codec, uri, .. }: &Side,
    folder: &Path,
    data: &[u8],
    interrupted: &AtomicBool,
    bar: &ProgressBar,
) -> Result<[f64; 2]> {
    let client = &Client::connect(runtime, uri).await?;
    let chunks = || {
        let chunks = (0u64..).step_by(CHUNK_BYTES).zip(data.chunks(CHUNK_BYTES));
        stream::iter(chunks.map(anyhow::Ok))
    };
    let go_on = &|chunk: &[u8]| {
        if interrupted.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        bar.inc(chunk.len() as u64);
        Ok(())
    };
    let begin = |what: String| {
        bar.set_message(format!("{codec}: {what}"));
        bar.reset();
        runtime.now_ns()
    };
    let mb_s = |begun_ns: u64| {
        let ns = runtime.now_ns() - begun_ns;
        data.len() as f64 * 1e3 / ns.max(1) as f64
    };

    let begun_ns = begin(format!("writing files of {}", folder.display()));
    let writing = chunks().try_for_each_concurrent(DEPTH, |(offset, chunk)| async move {
        go_on(chunk)?;
        client.write(offset, chunk, Durability::Volatile).await?;
        anyhow::Ok(())
    });
    writing.await?;
    client.flush().await?;
    let write_mb_s = mb_s(begun_ns);

    let begun_ns = begin("reading the files back and comparing".to_owned());
    let reading = chunks().try_for_each_concurrent(DEPTH, |(offset, chunk)| async move {
        go_on(chunk)?;
        let (read, result) = client.read(offset, AlignedBuffer::zeroed(chunk.len())).await;
        result?;
        if *read != *chunk {
            bail!(Defect(format!("data read at offset {offset} differs from the original")));
        }
        anyhow::Ok(())
    });
    reading.await?;
    let read_mb_s = mb_s(begun_ns);
    client.disconnect().await?;
    Ok([write_mb_s, read_mb_s])
}

/// Computes the result of one drive from its counters before and after.
fn line(side: &Side, before: &Info, [write_mb_s, read_mb_s]: [f64; 2]) -> Line {
    let after = side.drive.info();
    let host_bytes = after.host_bytes - before.host_bytes;
    let frame_bytes = after.frame_bytes - before.frame_bytes;
    let media_bytes = after.media_bytes - before.media_bytes;
    Line {
        codec: side.codec.to_string(),
        host_bytes,
        frame_bytes,
        media_bytes,
        stored_fraction: frame_bytes as f64 / host_bytes as f64,
        write_amplification: media_bytes as f64 / host_bytes as f64,
        write_mb_s,
        read_mb_s,
    }
}
