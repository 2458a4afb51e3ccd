//! `pumice demo`: the drive's main job in one command, with and without compression.
//!
//! ```text
//! two drives, lz4 and none: created in a temporary folder, each served by a child
//!   -> real files in, all read back and compared, on one drive and then on the other
//!   -> synthetic data, random and sequential: several rounds, the drives taking turns
//!   -> stop the servers -> check both drives -> remove them
//! ```
//!
//! Medians of rounds that take turns: on a disk that others use too, one run beside another says
//! nothing about the drives.
//!
//! Nothing stays behind, not after Ctrl-C either: a signal ends the run at the next request, and
//! the folder and the server go as they do after any error.

mod data;
mod load;

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use rand::RngExt;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use self::data::{CHUNK_BYTES, FileStream, Synthetic};
use self::load::{Client, Measured, Request, Verb};
use super::{Outcome, print, print_json, size};
use crate::base::checksum::crc64;
use crate::base::seed::random;
use crate::base::units::{BLOCK_BYTES, format_size};
use crate::base::{Error, ErrorKind, Result};
use crate::controller::Info;
use crate::report::{Align, Table};
use crate::serve::control;

/// Where the synthetic data lies on the disk: behind the real data.
const SYNTHETIC_AREA_BYTES: u64 = 1 << 30;

/// Bytes of each sequential round and of each random one, and rounds of each kind of data.
const SEQUENTIAL_BYTES: u64 = 160 << 20;
const RANDOM_BYTES: u64 = 80 << 20;
const ROUNDS: u64 = 3;

/// Bytes of all synthetic data that a drive gets.
const SYNTHETIC_BYTES: u64 = 3 * ROUNDS * (SEQUENTIAL_BYTES + RANDOM_BYTES);

/// Requests in flight, sequential and random.
const SEQUENTIAL_DEPTH: usize = 8;
const RANDOM_DEPTH: usize = 32;

/// Show what the drive does with real and synthetic data, beside the same without compression
///
/// Makes two drives in a temporary folder, one with LZ4 and one without compression, serves both
/// over NBD, fills each with the files of a folder, reads all back and compares, then measures
/// synthetic data on both in turns. Takes a minute or two; nothing is left behind.
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

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// What one kind of data became on one drive. Speeds are medians of the rounds.
#[derive(Clone, Debug, Serialize)]
struct Line {
    data: String,
    codec: &'static str,
    host_bytes: u64,
    frame_bytes: u64,
    media_bytes: u64,
    stored_fraction: f64,
    write_amplification: f64,
    write_mb_s: f64,
    write_iops: f64,
    read_mb_s: f64,
    read_iops: f64,
    /// Of each round, in order.
    write_mb_s_rounds: Vec<f64>,
}

/// Runs the subcommand.
///
/// # Errors
/// A drive cannot be made or served, or what is read is not what was written.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register(signal, interrupted.clone());
        registered.map_err(failed("cannot catch signals"))?;
    }
    let result = compare(args, &interrupted);
    if interrupted.load(Ordering::Relaxed) {
        return Err(Error::new(ErrorKind::Medium, "interrupted; nothing is left behind"));
    }
    match result {
        Ok(lines) if args.json => print_json(lines.as_flattened())?,
        Ok(lines) => print(&text(&lines))?,
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            super::say_error(&error.chain());
            return Ok(Outcome::Problem);
        }
        Err(error) => return Err(error),
    }
    Ok(Outcome::Good)
}

/// Everything with both drives: a line of each for each kind of data.
fn compare(args: &Args, interrupted: &Arc<AtomicBool>) -> Result<Vec<[Line; 2]>> {
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
    let mut lines = vec![real_data(&mut sides, &args.path, bytes, &bar)?];
    for saved in [98, 50, 2] {
        for pattern in [Pattern::Random, Pattern::Sequential] {
            lines.push(synthetic_data(&mut sides, saved, pattern, &bar)?);
        }
    }
    for side in sides {
        bar.set_message(format!("{}: checking every checksum", side.codec));
        side.client.disconnect()?;
        side.drive.finish()?;
    }
    bar.finish_and_clear();
    Ok(lines)
}

/// The most real data for which the folder's file system has room with everything else.
fn fitting_bytes(folder: &Path, wanted: u64) -> Result<u64> {
    let space =
        rustix::fs::statvfs(folder).map_err(|error| failed("no free space")(error.into()))?;
    let free = space.f_bavail * space.f_frsize;
    // Both drives hold all of it, the one without compression as it is.
    let synthetic = 2 * (SYNTHETIC_BYTES * 11 / 10);
    let left = free.saturating_sub(synthetic + (256 << 20)) / 2 * 9 / 10;
    if left < 64 << 20 {
        let what = format!(
            "{} has {} free, the demo needs {}: name another folder with --scratch",
            folder.display(),
            format_size(free),
            format_size(synthetic + (500 << 20))
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
        let size = real_bytes + SYNTHETIC_AREA_BYTES;
        // All that is written fits, so that garbage collection has nothing to do on either drive.
        let written = real_bytes + SYNTHETIC_BYTES;
        let capacity = written + written / 50 + (256 << 20);
        let (size, capacity) = (size.to_string(), capacity.to_string());
        let mut create = pumice()?;
        create.arg("create").arg(&path).args(["--size", &size, "--capacity", &capacity]);
        let output = create.args(["--codec", codec]).output().map_err(failed("cannot run"))?;
        if !output.status.success() {
            let what = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::new(ErrorKind::Medium, what));
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
            return Err(Error::new(ErrorKind::Medium, "the demo's server did not start"));
        }
        Ok(Self { path, socket, server })
    }

    fn info(&self) -> Result<Info> {
        let silent = || Error::new(ErrorKind::Medium, "no info");
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

/// Where a synthetic round reads or writes.
#[derive(Clone, Copy)]
enum Pattern {
    Random,
    Sequential,
}

impl Pattern {
    fn name(self) -> &'static str {
        match self {
            Pattern::Random => "random 4 KiB",
            Pattern::Sequential => "sequential 1 MiB",
        }
    }

    fn depth(self) -> usize {
        match self {
            Pattern::Random => RANDOM_DEPTH,
            Pattern::Sequential => SEQUENTIAL_DEPTH,
        }
    }

    /// The requests of a round, the same at every call: blocks drawn by the round's number, or one
    /// behind the other.
    fn requests(self, start: u64, round: u64) -> impl Iterator<Item = Request> {
        let (len, bytes) = match self {
            Pattern::Random => (BLOCK_BYTES, RANDOM_BYTES),
            Pattern::Sequential => (CHUNK_BYTES, SEQUENTIAL_BYTES),
        };
        let mut random = random(round);
        let first = round * SEQUENTIAL_BYTES / CHUNK_BYTES as u64;
        (0..bytes / len as u64).map(move |number| {
            let block = match self {
                Pattern::Random => random.random_range(0..SYNTHETIC_AREA_BYTES / len as u64),
                Pattern::Sequential => first + number,
            };
            Request { offset: start + block * len as u64, len }
        })
    }
}

/// Writes and reads synthetic data, the drives taking turns.
fn synthetic_data(
    sides: &mut [Side; 2],
    saved: u32,
    pattern: Pattern,
    bar: &ProgressBar,
) -> Result<[Line; 2]> {
    let name = format!("{saved} % saved, {}", pattern.name());
    let before = [sides[0].drive.info()?, sides[1].drive.info()?];
    let mut rounds = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        for (side, rounds) in sides.iter_mut().zip(&mut rounds) {
            bar.set_message(format!("{}: {name}, round {} of {ROUNDS}", side.codec, round + 1));
            bar.reset();
            let start = side.client.size_bytes() - SYNTHETIC_AREA_BYTES;
            let mut synthetic = Synthetic::new(saved, u64::from(saved) << 40 | round << 32);
            let mut fill = |request: Request, buffer: &mut [u8]| {
                bar.inc(request.len as u64);
                synthetic.fill(buffer);
                Ok(())
            };
            let requests = || pattern.requests(start, round);
            let depth = pattern.depth();
            let written = side.client.run(Verb::Write, depth, &mut requests(), &mut fill)?;
            let mut ignore = |request: Request, _: &mut [u8]| {
                bar.inc(request.len as u64);
                Ok(())
            };
            let read = side.client.run(Verb::Read, depth, &mut requests(), &mut ignore)?;
            rounds.push(Round { written, read });
        }
    }
    lines(&name, sides, &before, &rounds)
}

/// Writes the files to one drive and reads them back, comparing every chunk; then to the other.
fn real_data(
    sides: &mut [Side; 2],
    folder: &Path,
    bytes: u64,
    bar: &ProgressBar,
) -> Result<[Line; 2]> {
    let before = [sides[0].drive.info()?, sides[1].drive.info()?];
    let mut rounds = [Vec::new(), Vec::new()];
    for (side, rounds) in sides.iter_mut().zip(&mut rounds) {
        rounds.push(files(side, folder, bytes, bar)?);
    }
    lines(&format!("files of {}", folder.display()), sides, &before, &rounds)
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
    let written = client.run(Verb::Write, SEQUENTIAL_DEPTH, &mut requests, &mut fill)?;
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
    let read = client.run(Verb::Read, SEQUENTIAL_DEPTH, &mut requests, &mut compare)?;
    Ok(Round { written, read })
}

/// The lines of both drives for one kind of data.
fn lines(
    data: &str,
    sides: &[Side; 2],
    before: &[Info; 2],
    rounds: &[Vec<Round>; 2],
) -> Result<[Line; 2]> {
    let line = |side: usize| {
        let Side { codec, drive, .. } = &sides[side];
        Ok(line(data, codec, &before[side], &drive.info()?, &rounds[side]))
    };
    Ok([line(0)?, line(1)?])
}

fn line(data: &str, codec: &'static str, before: &Info, after: &Info, rounds: &[Round]) -> Line {
    let host_bytes = after.host_bytes - before.host_bytes;
    let frame_bytes = after.frame_bytes - before.frame_bytes;
    let media_bytes = after.media_bytes - before.media_bytes;
    let per_second = |amount: u64, measured: &Measured| amount as f64 / measured.seconds.max(1e-9);
    let rates = |rate: &dyn Fn(&Round) -> f64| rounds.iter().map(rate).collect::<Vec<_>>();
    let write_mb_s = rates(&|round| per_second(round.written.bytes, &round.written) / 1e6);
    Line {
        data: data.into(),
        codec,
        host_bytes,
        frame_bytes,
        media_bytes,
        stored_fraction: frame_bytes as f64 / host_bytes as f64,
        write_amplification: media_bytes as f64 / host_bytes as f64,
        write_mb_s: median(&write_mb_s),
        write_iops: median(&rates(&|round| per_second(round.written.requests, &round.written))),
        read_mb_s: median(&rates(&|round| per_second(round.read.bytes, &round.read) / 1e6)),
        read_iops: median(&rates(&|round| per_second(round.read.requests, &round.read))),
        write_mb_s_rounds: write_mb_s,
    }
}

/// The middle one, the upper of two; 0 if there is none.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// The table, and in two sentences what it shows.
fn text(lines: &[[Line; 2]]) -> String {
    let mut table = Table::new(&[
        ("data", Align::Left),
        ("codec", Align::Left),
        ("host MiB", Align::Right),
        ("media MiB", Align::Right),
        ("stored", Align::Right),
        ("WA", Align::Right),
        ("write MB/s", Align::Right),
        ("write IOPS", Align::Right),
        ("read MB/s", Align::Right),
        ("read IOPS", Align::Right),
    ]);
    for line in lines.as_flattened() {
        let mib = |bytes: u64| format!("{:.0}", bytes as f64 / (1 << 20) as f64);
        table.row(vec![
            if line.codec == "none" { String::new() } else { line.data.clone() },
            line.codec.into(),
            mib(line.host_bytes),
            mib(line.media_bytes),
            format!("{:.3}", line.stored_fraction),
            format!("{:.3}", line.write_amplification),
            format!("{:.0}", line.write_mb_s),
            format!("{:.0}", line.write_iops),
            format!("{:.0}", line.read_mb_s),
            format!("{:.0}", line.read_iops),
        ]);
    }
    table.to_text() + "\n" + &conclusion(lines)
}

/// Two sentences on the real data, and on the sequential writes that save most and least.
fn conclusion(lines: &[[Line; 2]]) -> String {
    let [with, without] = &lines[0];
    let (most, least) = (Speedup::of(&lines[2]), Speedup::of(&lines[6]));
    let verdict = if most.lowest > least.highest {
        "your data decides"
    } else {
        "on this machine, in so short a run, its speed does not show which data it gets"
    };
    format!(
        "All {:.0} MiB of {} read back right, and the drive wrote {:.2} bytes for each byte of \
         theirs, where without compression it wrote {:.2}.\nThe speed of sequential writes, as a \
         multiple of that without compression, is {most} with data that saves 98 % and {least} \
         with data that saves 2 %: {verdict}.\n",
        with.host_bytes as f64 / (1 << 20) as f64,
        with.data,
        with.write_amplification,
        without.write_amplification,
    )
}

/// How many times as fast writing is with compression as without, by round.
struct Speedup {
    lowest: f64,
    median: f64,
    highest: f64,
}

impl Speedup {
    fn of([with, without]: &[Line; 2]) -> Self {
        let pairs = with.write_mb_s_rounds.iter().zip(&without.write_mb_s_rounds);
        let ratios: Vec<f64> = pairs.map(|(with, without)| with / without.max(1e-9)).collect();
        Self {
            lowest: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            median: median(&ratios),
            highest: ratios.iter().copied().fold(0.0, f64::max),
        }
    }
}

impl fmt::Display for Speedup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.median, self.lowest, self.highest)
    }
}

/// An error of the operating system while doing `what`.
fn failed(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    move |error| Error::os(what, error)
}
