//! `pumice demo`: compares a drive with and without compression, in one command.
//!
//! ```text
//! two drives, lz4 and none: created in a temporary folder, each served by a child process
//!   -> write real files, read them back and compare, on one drive and then on the other
//!   -> run the bench preset `compressibility` on both drives in turns (`speed`)
//!   -> stop the servers -> check both drives -> remove them
//! ```
//!
//! * `data`: the files as one stream; `load`: requests over NBD.
//!
//! The demo removes the folder and the servers when it ends, even after Ctrl-C: a signal ends the
//! run at the next request, and cleanup is the same as after any error.

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

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use self::data::{CHUNK_BYTES, FileStream};
use self::load::{Client, Measured, Request, Verb};
use super::{Outcome, print, print_json, size};
use crate::control;
use pumice_drive::base::ErrorKind;
use pumice_drive::base::checksum::crc64;
use pumice_drive::base::units::format_size;
use pumice_drive::controller::Info;
use pumice_report::{Align, Table};

/// Space on the disk for the bench, in addition to the real data, and space on the medium for data
/// that is overwritten, in addition to both.
const BENCH_BYTES: u64 = 256 << 20;
const ROOM_BYTES: u64 = 2 << 30;

/// Number of requests in flight with real data.
const DEPTH: usize = 8;

/// Compare a drive with and without compression, on real and synthetic data
///
/// Creates two drives in a temporary folder, one with LZ4 and one without compression, serves both
/// over NBD, writes the files of a folder to each, reads them back and compares them, then runs the
/// bench preset `compressibility` on both in turns. Takes a minute or two. Only the page with the
/// results is kept.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder with the real data
    #[arg(default_value = "/usr")]
    path: PathBuf,

    /// Maximum amount of real data
    #[arg(long, value_parser = size, default_value = "2G", value_name = "SIZE")]
    bytes: u64,

    /// Folder for the drives [default: $TMPDIR, or /var/tmp]
    #[arg(long, value_name = "FOLDER")]
    scratch: Option<PathBuf>,

    /// HTML page with all results; an existing file is overwritten
    #[cfg(feature = "bench")]
    #[arg(long, value_name = "FILE", default_value = "pumice-demo.html")]
    page: PathBuf,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Debug, Serialize)]
struct Shown {
    files: [Line; 2],
    #[cfg(feature = "bench")]
    bench: pumice_bench::compare::Comparison,
}

/// The result of the real data on one drive.
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

/// A defect of the drive: the demo ran and found a problem.
#[derive(Debug)]
struct Defect(String);

impl std::fmt::Display for Defect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Defect {}

/// Runs the subcommand.
///
/// # Errors
/// A drive cannot be created or served, or the demo was interrupted.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let interrupted = super::signals::flag()?;
    let result = compare(args, &interrupted);
    if interrupted.load(Ordering::Relaxed) {
        bail!("interrupted: the temporary drives were removed");
    }
    match result {
        Ok(shown) if args.json => print_json(&shown)?,
        Ok(shown) => {
            let text = text(&args.path, &shown.files);
            #[cfg(feature = "bench")]
            let text = format!("{text}\n{}", speed::text(&shown.bench, &args.page));
            print(&text)?;
        }
        Err(error) if is_defect(&error) => {
            super::say_error(&super::chain(&error));
            return Ok(Outcome::Problem);
        }
        Err(error) => return Err(error),
    }
    Ok(Outcome::Good)
}

/// Whether the demo or the drive found damaged data.
fn is_defect(error: &anyhow::Error) -> bool {
    let drive_error = error.downcast_ref::<pumice_drive::base::Error>();
    error.is::<Defect>() || drive_error.is_some_and(|error| error.kind() == ErrorKind::Corrupt)
}

/// Runs the whole demo.
fn compare(args: &Args, interrupted: &Arc<AtomicBool>) -> Result<Shown> {
    let scratch = args.scratch.clone().unwrap_or_else(|| {
        std::env::var_os("TMPDIR").map_or_else(|| "/var/tmp".into(), PathBuf::from)
    });
    let folder = tempfile::Builder::new().prefix("pumice-demo-").tempdir_in(&scratch);
    let folder =
        folder.with_context(|| format!("cannot create a folder in {}", scratch.display()))?;
    let bytes = fitting_bytes(folder.path(), args.bytes)?;
    let bar = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{spinner} {msg} {bytes} {bytes_per_sec}");
    bar.set_style(style.expect("a constant template"));
    bar.set_message("reading the files into memory");
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

/// Returns the amount of real data, at most `wanted`, for which the file system has space.
fn fitting_bytes(folder: &Path, wanted: u64) -> Result<u64> {
    let space = rustix::fs::statvfs(folder)
        .with_context(|| format!("cannot query the free space of {}", folder.display()))?;
    let free = space.f_bavail * space.f_frsize;
    // Both drives store all of the data, one of them uncompressed.
    let room = 2 * (BENCH_BYTES + ROOM_BYTES);
    let left = free.saturating_sub(room) / 2 * 9 / 10;
    if left < 64 << 20 {
        bail!(
            "{} has {} free, but the demo needs {}: use --scratch to name another folder",
            folder.display(),
            format_size(free),
            format_size(room + (256 << 20))
        );
    }
    Ok(wanted.min(left).next_multiple_of(CHUNK_BYTES as u64))
}

/// A drive in the temporary folder, and its server.
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
        let output =
            create.args(["--codec", codec]).output().context("cannot run pumice create")?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            let message = message.trim();
            bail!("{}", message.strip_prefix("pumice: ").unwrap_or(message));
        }
        let mut serve = pumice()?;
        serve.arg("serve").arg(&path).arg("--unix").arg(&socket).arg("--json");
        serve.env("PUMICE_LOG", "warn").stdout(Stdio::piped()).stdin(Stdio::null());
        let mut server = serve.spawn().context("cannot run pumice serve")?;
        // The server prints at least one line once it listens, and none if it cannot.
        let mut first = String::new();
        if let Some(stdout) = server.stdout.take() {
            let read = BufReader::new(stdout).read_line(&mut first);
            read.context("cannot read the output of pumice serve")?;
        }
        if first.is_empty() {
            bail!("pumice serve did not start");
        }
        Ok(Self { path, socket, server })
    }

    fn info(&self) -> Result<Info> {
        control::info(&self.path)?
            .with_context(|| format!("no server answers for {}", self.path.display()))
    }

    /// Stops the server, checks the drive and removes it.
    fn finish(mut self) -> Result<()> {
        terminate(&self.server);
        let status = self.server.wait().context("cannot wait for pumice serve")?;
        let check = pumice()?.arg("check").arg(&self.path).output();
        let check = check.context("cannot run pumice check")?;
        if !status.success() || !check.status.success() {
            let found = String::from_utf8_lossy(&check.stdout);
            let found = found.lines().collect::<Vec<_>>().join("; ");
            bail!(Defect(format!("pumice serve ended with {status}; pumice check: {found}")));
        }
        fs::remove_file(&self.path).context("cannot remove the drive")
    }
}

impl Drop for DemoDrive {
    fn drop(&mut self) {
        // The server removes its sockets when it is terminated.
        terminate(&self.server);
        let _ = self.server.wait();
    }
}

fn terminate(server: &Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(server.id() as i32) {
        // The server may have exited already.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

/// Returns a command that runs this program.
fn pumice() -> Result<Command> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    // In a separate process group, Ctrl-C reaches only the demo, which then stops its children.
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

/// The results of writing and reading.
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

/// Returns the results of the real data as a table and a sentence.
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
        "Files of {}:\n{}\nAll {} MiB were read back correctly. For each byte of data, the drive \
         wrote {:.2} bytes with compression and {:.2} without.\n",
        folder.display(),
        table.to_text(),
        mib(with.host_bytes),
        with.write_amplification,
        without.write_amplification,
    )
}
