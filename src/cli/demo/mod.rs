//! `pumice demo`: the drive's main job in one command, with and without compression.
//!
//! ```text
//! for codec lz4, then none:
//!   create in a temporary folder -> `pumice serve` as a child, on a Unix socket
//!   -> real files in, all read back and compared -> synthetic data, random and sequential
//!   -> stop the server -> check the drive -> remove it
//! ```
//!
//! Nothing stays behind, not after Ctrl-C either: a signal ends the run at the next request, and
//! the folder and the server go as they do after any error.

mod client;
mod data;

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

use self::client::{Client, Measured, Request, Verb};
use self::data::{CHUNK_BYTES, FileStream, Synthetic};
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

/// Bytes of each sequential run and of each random one.
const SEQUENTIAL_BYTES: u64 = 512 << 20;
const RANDOM_BYTES: u64 = 256 << 20;

/// Requests in flight, sequential and random.
const SEQUENTIAL_DEPTH: usize = 8;
const RANDOM_DEPTH: usize = 32;

/// Show what the drive does with real and synthetic data, beside the same without compression
///
/// Makes two drives in a temporary folder, one with LZ4 and one without compression, serves each
/// over NBD, fills it with the files of a folder, reads all back and compares, then measures
/// synthetic data. Takes a minute or two; nothing is left behind.
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

/// What one kind of data became on one drive.
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
        Ok(lines) if args.json => print_json(&lines)?,
        Ok(lines) => print(&text(&lines))?,
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            super::say_error(&error.chain());
            return Ok(Outcome::Problem);
        }
        Err(error) => return Err(error),
    }
    Ok(Outcome::Good)
}

/// Everything with one drive, then with the other.
fn compare(args: &Args, interrupted: &Arc<AtomicBool>) -> Result<Vec<Line>> {
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
    let mut lines = Vec::new();
    for codec in ["lz4", "none"] {
        let drive = DemoDrive::start(folder.path(), codec, bytes)?;
        let client = Client::connect(&drive.socket, interrupted.clone())?;
        lines.extend(measure(&drive, client, codec, &args.path, bytes, &bar)?);
        bar.set_message(format!("{codec}: checking every checksum"));
        drive.finish()?;
    }
    bar.finish_and_clear();
    Ok(lines)
}

/// The most real data for which the folder's file system has room with everything else.
fn fitting_bytes(folder: &Path, wanted: u64) -> Result<u64> {
    let space =
        rustix::fs::statvfs(folder).map_err(|error| failed("no free space")(error.into()))?;
    let free = space.f_bavail * space.f_frsize;
    let synthetic = 3 * (SEQUENTIAL_BYTES + RANDOM_BYTES) * 11 / 10;
    let left = free.saturating_sub(synthetic + (256 << 20)) * 9 / 10;
    if left < 64 << 20 {
        let what = format!(
            "{} has {} free, the demo needs {}: name another folder with --scratch",
            folder.display(),
            format_size(free),
            format_size(synthetic + (400 << 20))
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
        // There is no garbage collection yet: the log must hold everything that is written.
        let written = real_bytes + 3 * (SEQUENTIAL_BYTES + RANDOM_BYTES);
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

/// All of one drive's lines.
fn measure(
    drive: &DemoDrive,
    mut client: Client,
    codec: &'static str,
    folder: &Path,
    real_bytes: u64,
    bar: &ProgressBar,
) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    let before = drive.info()?;
    let (written, read) = real_data(&mut client, codec, folder, real_bytes, bar)?;
    let name = format!("files of {}", folder.display());
    lines.push(line(name, codec, &before, &drive.info()?, written, read));
    for saved in [98, 50, 2] {
        for (pattern, verb_depth, len, bytes) in [
            ("random 4 KiB", RANDOM_DEPTH, BLOCK_BYTES, RANDOM_BYTES),
            ("sequential 1 MiB", SEQUENTIAL_DEPTH, CHUNK_BYTES, SEQUENTIAL_BYTES),
        ] {
            let name = format!("{saved} % saved, {pattern}");
            bar.set_message(format!("{codec}: {name}"));
            bar.reset();
            let mut requests =
                Pattern { start: client.size_bytes() - SYNTHETIC_AREA_BYTES, len, bytes };
            let before = drive.info()?;
            let mut synthetic = Synthetic::new(saved, u64::from(saved) << 40);
            let mut fill = |request: Request, buffer: &mut [u8]| {
                bar.inc(request.len as u64);
                synthetic.fill(buffer);
                Ok(())
            };
            let written =
                client.run(Verb::Write, verb_depth, &mut requests.requests(), &mut fill)?;
            let after = drive.info()?;
            let mut ignore = |request: Request, _: &mut [u8]| {
                bar.inc(request.len as u64);
                Ok(())
            };
            let read = client.run(Verb::Read, verb_depth, &mut requests.requests(), &mut ignore)?;
            lines.push(line(name, codec, &before, &after, written, read));
        }
    }
    client.disconnect()?;
    Ok(lines)
}

/// Where a synthetic run reads or writes.
struct Pattern {
    start: u64,
    len: usize,
    bytes: u64,
}

impl Pattern {
    /// The same requests at every call: blocks drawn by a fixed seed, or one behind the other.
    fn requests(&mut self) -> impl Iterator<Item = Request> + use<> {
        let (start, len) = (self.start, self.len);
        let mut random = random(self.bytes);
        (0..self.bytes / len as u64).map(move |number| {
            let block = match len {
                BLOCK_BYTES => random.random_range(0..SYNTHETIC_AREA_BYTES / len as u64),
                _ => number,
            };
            Request { offset: start + block * len as u64, len }
        })
    }
}

/// Writes the files and reads them back, comparing every chunk.
fn real_data(
    client: &mut Client,
    codec: &str,
    folder: &Path,
    bytes: u64,
    bar: &ProgressBar,
) -> Result<(Measured, Measured)> {
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
    Ok((written, read))
}

fn line(
    data: String,
    codec: &'static str,
    before: &Info,
    after: &Info,
    written: Measured,
    read: Measured,
) -> Line {
    let host_bytes = after.host_bytes - before.host_bytes;
    let frame_bytes = after.frame_bytes - before.frame_bytes;
    let media_bytes = after.media_bytes - before.media_bytes;
    let rate = |amount: u64, seconds: f64| amount as f64 / seconds.max(1e-9);
    Line {
        data,
        codec,
        host_bytes,
        frame_bytes,
        media_bytes,
        stored_fraction: rate(frame_bytes, host_bytes as f64),
        write_amplification: rate(media_bytes, host_bytes as f64),
        write_mb_s: rate(written.bytes, written.seconds) / 1e6,
        write_iops: rate(written.requests, written.seconds),
        read_mb_s: rate(read.bytes, read.seconds) / 1e6,
        read_iops: rate(read.requests, read.seconds),
    }
}

/// The table, and in two sentences what it shows.
fn text(lines: &[Line]) -> String {
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
    let (with, without) = lines.split_at(lines.len() / 2);
    for line in with.iter().zip(without).flat_map(|(with, without)| [with, without]) {
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
    table.to_text() + "\n" + &conclusion(with, without)
}

fn conclusion(with: &[Line], without: &[Line]) -> String {
    let real = &with[0];
    let fastest = &with[2];
    let speedup = |index: usize| with[index].write_mb_s / without[index].write_mb_s.max(1e-9);
    format!(
        "All {:.0} MiB of {} read back right, and the drive wrote {:.2} bytes for each byte of \
         theirs, where without compression it wrote {:.2}.\n{} is written at {:.2} x the speed \
         without compression, data that saves 2 % at {:.2} x: your data decides.\n",
        real.host_bytes as f64 / (1 << 20) as f64,
        real.data,
        real.write_amplification,
        without[0].write_amplification,
        fastest.data,
        speedup(2),
        speedup(6),
    )
}

/// An error of the operating system while doing `what`.
fn failed(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    move |error| Error::os(what, error)
}
