//! Real data on a drive: written, read back and compared.

use std::path::Path;

use anyhow::{Result, bail};
use indicatif::ProgressBar;
use serde::Serialize;

use super::super::output;
use super::Defect;
use super::data::{CHUNK_BYTES, FileStream};
use super::drive::Side;
use super::load::{Measured, Request, Verb};
use pumice_drive::base::checksum::crc64;
use pumice_drive::controller::Info;
use pumice_report::{Align, Table};

/// Number of requests in flight with real data.
const DEPTH: usize = 8;

/// The result of the real data on one drive.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Line {
    codec: &'static str,
    host_bytes: u64,
    frame_bytes: u64,
    media_bytes: u64,
    stored_fraction: f64,
    write_amplification: f64,
    write_mb_s: f64,
    read_mb_s: f64,
}

/// The results of writing and reading.
struct Round {
    written: Measured,
    read: Measured,
}

/// Writes the files to one drive and reads them back, comparing every chunk; then to the other.
///
/// # Errors
/// A file or a drive cannot be read; [`Defect`] if data differs.
pub(super) fn real_data(
    sides: &mut [Side; 2],
    folder: &Path,
    bytes: u64,
    bar: &ProgressBar,
) -> Result<[Line; 2]> {
    let one = |side: &mut Side| -> Result<Line> {
        let before = side.drive.info()?;
        let round = files(side, folder, bytes, bar)?;
        anyhow::Ok(line(side.codec, &before, &side.drive.info()?, &round))
    };
    let [with, without] = sides;
    Ok([one(with)?, one(without)?])
}

fn files(side: &mut Side, folder: &Path, bytes: u64, bar: &ProgressBar) -> Result<Round> {
    let Side { codec, client, .. } = side;
    let mut stream = FileStream::new(folder, bytes)?;
    bar.set_message(format!("{codec}: writing the files of {}", folder.display()));
    bar.reset();
    // A chunk is read before its request is made, so that the requests end with the stream.
    let chunks = std::cell::RefCell::new((vec![0; CHUNK_BYTES], &mut stream));
    let mut requests = (0..bytes / CHUNK_BYTES as u64).map_while(|number| {
        let (chunk, stream) = &mut *chunks.borrow_mut();
        let offset = number * CHUNK_BYTES as u64;
        stream.fill(chunk).then_some(Request { offset, len: CHUNK_BYTES })
    });
    let mut fill = |request: Request, buffer: &mut [u8]| {
        bar.inc(request.len as u64);
        buffer.copy_from_slice(&chunks.borrow().0);
        Ok(())
    };
    let written = client.run(Verb::Write, DEPTH, &mut requests, &mut fill)?;
    let checksums = stream.checksums();
    bar.set_message(format!("{codec}: reading the files back and comparing"));
    bar.reset();
    let mut requests = (0..checksums.len() as u64)
        .map(|number| Request { offset: number * CHUNK_BYTES as u64, len: CHUNK_BYTES });
    let mut compare = |request: Request, buffer: &mut [u8]| {
        bar.inc(request.len as u64);
        if crc64(buffer) == checksums[request.offset as usize / CHUNK_BYTES] {
            return Ok(());
        }
        bail!(Defect(format!("data read at offset {} is not what was written", request.offset)))
    };
    let read = client.run(Verb::Read, DEPTH, &mut requests, &mut compare)?;
    Ok(Round { written, read })
}

/// Computes the result of one drive from its counters before and after.
fn line(codec: &'static str, before: &Info, after: &Info, round: &Round) -> Line {
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
        write_mb_s: rate(&round.written),
        read_mb_s: rate(&round.read),
    }
}

/// Returns the results of the real data as a table.
pub(super) fn text(folder: &Path, lines: &[Line; 2]) -> String {
    let mut table = Table::new(&[
        ("codec", Align::Left),
        ("host MiB", Align::Right),
        ("media MiB", Align::Right),
        ("stored", Align::Right),
        ("WA", Align::Right),
        ("write MB/s", Align::Right),
        ("read MB/s", Align::Right),
    ]);
    let mib = |bytes: u64| format!("{:.0}", bytes as f64 / (1 << 20) as f64);
    for line in lines {
        table.row(vec![
            line.codec.into(),
            mib(line.host_bytes),
            mib(line.media_bytes),
            format!("{:.3}", line.stored_fraction),
            format!("{:.3}", line.write_amplification),
            format!("{:.0}", line.write_mb_s),
            format!("{:.0}", line.read_mb_s),
        ]);
    }
    format!(
        "Files of {}:\n{}\nAll {} MiB were read back correctly.\n",
        folder.display(),
        output::table(&table),
        mib(lines[0].host_bytes),
    )
}

/// Returns the headline: what the drives wrote for each byte of the files.
pub(super) fn took(folder: &Path, lines: &[Line; 2]) -> String {
    let [with, without] = lines;
    format!(
        "For each byte of the files of {}, the drive wrote {:.2} bytes with compression and {:.2} \
         without.",
        folder.display(),
        with.write_amplification,
        without.write_amplification,
    )
}
