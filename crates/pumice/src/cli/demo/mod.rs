//! `pumice demo`: the drive's main job in one command, with and without compression.
//!
//! ```text
//! two drives, lz4 and none: created in a temporary folder, each served by a child
//!   -> real files in, all read back and compared, on one drive and then on the other
//!   -> the bench's preset `compressibility` on both, the drives taking turns (`speed`)
//!   -> stop the servers -> check both drives -> remove them
//! ```
//!
//! * `data`: the files as one stream; `load`: requests in flight over NBD.
//!
//! Nothing stays behind, not after Ctrl-C either: a signal ends the run at the next request, and
//! the folder and the server go as they do after any error.

mod data;
mod load;
#[cfg(feature = "bench")]
mod speed;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use self::data::{CHUNK_BYTES, FileStream};
use self::load::{Client, Measured, Request, Verb};
use super::{Outcome, print, print_json, size};
use crate::control;
use pumice_drive::base::checksum::crc64;
use pumice_drive::base::units::format_size;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::controller::Info;
use pumice_report::{Align, Table};

/// Bytes of the disk behind the real data, for the bench; and of the medium behind them, for what
/// is written over and over.
const BENCH_BYTES: u64 = 256 << 20;
const ROOM_BYTES: u64 = 2 << 30;

/// Requests in flight with real data.
const DEPTH: usize = 8;

/// Show what the drive does with real and synthetic data, beside the same without compression
///
/// Makes two drives in a temporary folder, one with LZ4 and one without compression, serves both
/// over NBD, fills each with the files of a folder, reads all back and compares, then runs the
/// bench's preset `compressibility` on both in turns. Takes a minute or two; nothing is left behind
/// but the page.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder whose files are the real data
    #[arg(default_value = "/usr")]
    path: PathBuf,

    /// Most bytes of real data
    #[arg(long, value_parser = size, default_value = "2G", value_name = "SIZE")]
    bytes: u64,

    /// Folder for the drives [default: TMPDIR, else /var/tmp]
    #[arg(long, value_name = "FOLDER")]
    scratch: Option<PathBuf>,

    /// File for the page with all that was measured; an old one is overwritten
    #[cfg(feature = "bench")]
    #[arg(long, value_name = "FILE", default_value = "pumice-demo.html")]
    page: PathBuf,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Shown {
    files: [Line; 2],
    #[cfg(feature = "bench")]
    bench: pumice_bench::compare::Comparison,
}

/// What the files became on one drive.
#[derive(Clone, Debug, Serialize)]
struct Line {
    codec: &'static str,
    host_bytes: u64,
    frame_bytes: u64,
    media_bytes: u64,
    stored_fraction: f64,
    write_amplification: f64,
    write_mb_s: f64,
    read_mb_s: f64,
}

/// Runs the subcommand.
///
/// # Errors
/// A drive cannot be made or served, or what is read is not what was written.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let interrupted = super::signals::flag()?;
    let result = compare(args, &interrupted);
    if interrupted.load(Ordering::Relaxed) {
        return Err(Error::new(ErrorKind::Interrupted, "interrupted; nothing is left behind"));
    }
    match result {
        Ok(shown) if args.json => print_json(&shown)?,
        Ok(shown) => {
            let text = text(&args.path, &shown.files);
            #[cfg(feature = "bench")]
            let text = format!("{text}\n{}", speed::text(&shown.bench, &args.page));
            print(&text)?;
        }
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            super::say_error(&error.chain());
            return Ok(Outcome::Problem);
        }
        Err(error) => return Err(error),
    }
    Ok(Outcome::Good)
}

/// Everything with both drives.
fn compare(args: &Args, interrupted: &Arc<AtomicBool>) -> Result<Shown> {
    let scratch = args.scratch.clone().unwrap_or_else(|| {
        std::env::var_os("TMPDIR").map_or_else(|| "/var/tmp".into(), PathBuf::from)
    });
    let folder = tempfile::Builder::new().prefix("pumice-demo-").tempdir_in(&scratch);
    let folder = folder.map_err(failed(format!("cannot use {}", scratch.display())))?;
    let bytes = fitting_bytes(folder.path(), args.bytes)?;
    let bar = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{spinner} {msg} {bytes} {bytes_per_sec}");
    bar.set_style(style.expect("a constant template"));
    bar.set_message("reading the files once, so that both drives find them in memory");
    let mut stream = FileStream::new(&args.path, bytes)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    while stream.fill(&mut chunk) && !interrupted.load(Ordering::Relaxed) {
        bar.inc(CHUNK_BYTES as u64);
    }
    let mut sides = [
        Side::start(folder.path(), "lz4", bytes, interrupted)?,
        Side::start(folder.path(), "none", bytes, interrupted)?,
    ];
    let files = real_data(&mut sides, &args.path, bytes, &bar)?;
    #[cfg(feature = "bench")]
    let bench = speed::measure(&sides, interrupted, &bar, &args.page)?;
    for side in sides {
        bar.set_message(format!("{}: checking every checksum", side.codec));
        side.client.disconnect()?;
        side.drive.finish()?;
    }
    bar.finish_and_clear();
    Ok(Shown {
        files,
        #[cfg(feature = "bench")]
        bench,
    })
}

/// The most real data for which the folder's file system has room with everything else.
fn fitting_bytes(folder: &Path, wanted: u64) -> Result<u64> {
    let space =
        rustix::fs::statvfs(folder).map_err(|error| failed("no free space")(error.into()))?;
    let free = space.f_bavail * space.f_frsize;
    // Both drives hold all of it, the one without compression as it is.
    let room = 2 * (BENCH_BYTES + ROOM_BYTES);
    let left = free.saturating_sub(room) / 2 * 9 / 10;
    if left < 64 << 20 {
        let what = format!(
            "{} has {} free, the demo needs {}: name another folder with --scratch",
            folder.display(),
            format_size(free),
            format_size(room + (256 << 20))
        );
        return Err(Error::new(ErrorKind::NoSpace, what));
    }
    Ok(wanted.min(left).next_multiple_of(CHUNK_BYTES as u64))
}

/// A served drive in the temporary folder.
struct DemoDrive {
    path: PathBuf,
    socket: PathBuf,
    server: Child,
}

impl DemoDrive {
    fn start(folder: &Path, codec: &str, real_bytes: u64) -> Result<Self> {
        let (path, socket) = (folder.join(codec), folder.join(format!("{codec}.sock")));
        let size = real_bytes + BENCH_BYTES;
        let capacity = size + size / 50 + ROOM_BYTES;
        let (size, capacity) = (size.to_string(), capacity.to_string());
        let mut create = pumice()?;
        create.arg("create").arg(&path).args(["--size", &size, "--capacity", &capacity]);
        let output = create.args(["--codec", codec]).output().map_err(failed("cannot run"))?;
        if !output.status.success() {
            let what = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::new(ErrorKind::Io, what));
        }
        let mut serve = pumice()?;
        serve.arg("serve").arg(&path).arg("--unix").arg(&socket).arg("--json");
        serve.env("PUMICE_LOG", "warn").stdout(Stdio::piped()).stdin(Stdio::null());
        let mut server = serve.spawn().map_err(failed("cannot run the server"))?;
        // It prints one line or more once it listens, and nothing if it cannot.
        let mut first = String::new();
        if let Some(stdout) = server.stdout.take() {
            BufReader::new(stdout).read_line(&mut first).map_err(failed("no server"))?;
        }
        if first.is_empty() {
            return Err(Error::new(ErrorKind::Io, "the demo's server did not start"));
        }
        Ok(Self { path, socket, server })
    }

    fn info(&self) -> Result<Info> {
        let silent = || Error::new(ErrorKind::Io, "no info");
        control::info(&self.path)?.ok_or_else(silent)
    }

    /// Stops the server, checks the drive and removes it.
    fn finish(mut self) -> Result<()> {
        terminate(&self.server);
        let status = self.server.wait().map_err(failed("the server's end"))?;
        let check = pumice()?.arg("check").arg(&self.path).output();
        let check = check.map_err(failed("cannot run the check"))?;
        if !status.success() || !check.status.success() {
            let found = String::from_utf8_lossy(&check.stdout).into_owned();
            return Err(Error::new(ErrorKind::Corrupt, format!("the drive is wrong: {found}")));
        }
        fs::remove_file(&self.path).map_err(failed("cannot remove the drive"))
    }
}

impl Drop for DemoDrive {
    fn drop(&mut self) {
        // In order, so that it removes its sockets; it has nothing left to do.
        terminate(&self.server);
        let _ = self.server.wait();
    }
}

fn terminate(server: &Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(server.id() as i32) {
        // It may have ended already.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

/// This program again.
fn pumice() -> Result<Command> {
    let program = std::env::current_exe().map_err(failed("cannot find this program"))?;
    let mut command = Command::new(program);
    // A group of its own: Ctrl-C is the demo's to handle, and its children end with it.
    command.process_group(0);
    Ok(command)
}

/// A drive and its client.
struct Side {
    codec: &'static str,
    client: Client,
    drive: DemoDrive,
}

impl Side {
    fn start(
        folder: &Path,
        codec: &'static str,
        real_bytes: u64,
        interrupted: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let drive = DemoDrive::start(folder, codec, real_bytes)?;
        let client = Client::connect(&drive.socket, interrupted.clone())?;
        Ok(Self { codec, client, drive })
    }
}

/// What one round of writing and reading measured.
struct Round {
    written: Measured,
    read: Measured,
}

/// Writes the files to one drive and reads them back, comparing every chunk; then to the other.
fn real_data(
    sides: &mut [Side; 2],
    folder: &Path,
    bytes: u64,
    bar: &ProgressBar,
) -> Result<[Line; 2]> {
    let one = |side: &mut Side| -> Result<Line> {
        let before = side.drive.info()?;
        let round = files(side, folder, bytes, bar)?;
        Ok(line(side.codec, &before, &side.drive.info()?, &round))
    };
    let [with, without] = sides;
    Ok([one(with)?, one(without)?])
}

fn files(side: &mut Side, folder: &Path, bytes: u64, bar: &ProgressBar) -> Result<Round> {
    let Side { codec, client, .. } = side;
    let mut stream = FileStream::new(folder, bytes)?;
    bar.set_message(format!("{codec}: writing the files of {}", folder.display()));
    bar.reset();
    // A chunk is read ahead of its request, so that the stream's end ends the requests.
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
    bar.set_message(format!("{codec}: reading all back and comparing"));
    bar.reset();
    let mut requests = (0..checksums.len() as u64)
        .map(|number| Request { offset: number * CHUNK_BYTES as u64, len: CHUNK_BYTES });
    let mut compare = |request: Request, buffer: &mut [u8]| {
        bar.inc(request.len as u64);
        if crc64(buffer) == checksums[request.offset as usize / CHUNK_BYTES] {
            return Ok(());
        }
        let what = "what was read is not what was written";
        Err(Error::new(ErrorKind::Corrupt, what).at_offset(request.offset))
    };
    let read = client.run(Verb::Read, DEPTH, &mut requests, &mut compare)?;
    Ok(Round { written, read })
}

/// What the files became on one drive.
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

/// The table of the real data, and in a sentence what it shows.
fn text(folder: &Path, lines: &[Line; 2]) -> String {
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
    let [with, without] = lines;
    format!(
        "Files of {}:\n{}\nAll {} MiB read back right, and the drive wrote {:.2} bytes for each \
         byte of theirs, where without compression it wrote {:.2}.\n",
        folder.display(),
        table.to_text(),
        mib(with.host_bytes),
        with.write_amplification,
        without.write_amplification,
    )
}

/// An error of the operating system while doing `what`.
fn failed(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    move |error| Error::os(what, error)
}
