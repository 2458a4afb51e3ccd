//! `pumice scan`: how compressible data is, and what a drive would make of it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::documents::{Documents, Opened};
use super::output::open_output;
use super::signals::Interrupt;
use super::{Outcome, at_path, print, print_json, size, whole_number};
use pumice_bench::forecast;
use pumice_drive::base::units::format_size;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::codec::Codec;
use pumice_drive::controller::FRAME_BLOCKS_DEFAULT;
use pumice_scan::{
    Config, Drive, Medium, OnMedium, PARTIAL_BYTES_MAX, Partial, Reading, ScanOptions,
    ScanProgress, Scanned, Shard, scan, verdicts,
};

/// The chunks that are measured unless others are asked for, and with `--sweep`.
const CHUNKS: [u32; 2] = [4 << 10, FRAME_BLOCKS_DEFAULT as u32 * 4096];
const SWEEP_CHUNKS: [u32; 6] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10];

/// The codecs that are measured unless others are asked for, and with `--sweep`.
const CODECS: [Codec; 2] = [Codec::Lz4, Codec::Zstd { level: 1 }];
const SWEEP_CODECS: [Codec; 4] =
    [Codec::Lz4, Codec::Zstd { level: -1 }, Codec::Zstd { level: 1 }, Codec::Zstd { level: 3 }];

/// Lowest priority: whoever else wants the processor comes first.
const NICENESS: i32 = 19;

/// The class of the scheduler of disks that is served when nobody else is: see ionice(1).
const IDLE_CLASS: &str = "3";

/// Say how compressible data is, and what a compressing drive would make of it
///
/// Reads samples of files, folders with everything below, block devices or NBD exports, until what
/// is saved is known as closely as asked; everything, where that is cheaper. The interval it gives
/// holds the truth at least as often as it says, whatever the data is like. Nothing is written, and
/// times of access stay as they are where that is allowed.
///
/// Counts what a drive stores: chunks on their own, blocks of one byte as nothing but a header,
/// what saves less than a thirty-second as it is, and a header for each chunk. The first codec with
/// the largest chunk is the one whose error counts.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  pumice scan /home
  pumice scan /var/lib/postgresql --sweep --html data.html
  pumice scan /dev/nvme0n1 --error 0.5
  pumice scan /srv --drive micro-center-64 --drive compressing-nvme-1tb --gb-per-day 50
  pumice scan /srv --medium 530M
  qemu-nbd -r -t -k /tmp/q.sock disk.qcow2 &  pumice scan 'nbd+unix:///?socket=/tmp/q.sock'
  pumice scan /srv --shard 1/8 --partial 1.json
  pumice scan merge *.json")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// Files, folders, block devices or NBD URIs
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    /// lz4, zstd, zstd:LEVEL or none; may be repeated [default: lz4 and zstd:1]
    #[arg(long = "codec", value_name = "CODEC", conflicts_with = "sweep")]
    codecs: Vec<Codec>,

    /// Bytes of a chunk, 4K to 256K; may be repeated [default: 4K and 32K]
    #[arg(long = "chunk", value_name = "SIZE", value_parser = chunk, allow_hyphen_values = true,
        conflicts_with = "sweep")]
    chunks: Vec<u32>,

    /// All codecs in chunks of 4K to 128K
    #[arg(long)]
    sweep: bool,

    /// Half-width of the interval to aim at, in percentage points
    #[arg(long, value_name = "POINTS", default_value_t = 1.0, value_parser = points,
        allow_negative_numbers = true)]
    error: f64,

    /// How often the interval holds the truth at least, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 95.0, value_parser = confidence,
        allow_negative_numbers = true)]
    confidence: f64,

    /// Measure so many draws, whatever the error is
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=100_000),
        conflicts_with = "all", allow_negative_numbers = true)]
    samples: Option<u64>,

    /// Read everything
    #[arg(long)]
    all: bool,

    /// Only this part of it, I of N; --partial says where to keep it for merge
    #[arg(long, value_name = "I/N", default_value_t = Shard::ALL, requires = "partial")]
    shard: Shard,

    /// Keep what was measured, for merge
    #[arg(long, value_name = "FILE")]
    partial: Option<PathBuf>,

    /// Keep a profile, from which pumice bench and pumice payload make data like this
    #[arg(long, value_name = "FILE", conflicts_with = "shard")]
    save: Option<PathBuf>,

    /// Scan other file systems below the folders too
    #[arg(long)]
    cross_file_systems: bool,

    /// Bytes read in a second at most
    #[arg(long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true)]
    rate_limit: Option<u64>,

    /// Keep the priorities the scan was started with; otherwise others come first
    #[arg(long)]
    full_speed: bool,

    /// Threads that compress [default: one a processor]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024),
        allow_negative_numbers = true)]
    threads: Option<u16>,

    /// Other seeds draw other blocks
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = whole_number,
        allow_negative_numbers = true)]
    seed: u64,

    #[command(flatten)]
    output: Output,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Put the shards of a scan together
    ///
    /// Gives what one scan would have given that measured the same draws, to the last digit.
    Merge(Merge),
}

#[derive(Debug, clap::Args)]
struct Merge {
    /// What --partial wrote, of every shard
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    output: Output,
}

/// What becomes of the result.
#[derive(Debug, clap::Args)]
struct Output {
    /// Simulate this drive under the data (see pumice drives); may be repeated
    #[arg(long = "drive", value_name = "NAME")]
    drives: Vec<String>,

    /// What the host writes a day in GB, to say how many years drives last
    #[arg(long, value_name = "GB", value_parser = super::forecast::gigabytes,
        allow_negative_numbers = true)]
    gb_per_day: Option<f64>,

    /// Say how fast a Pumice drive would be on this medium: bytes that it takes in a second, or a
    /// folder on it, where that is measured with files of up to 1 GiB, which are removed
    #[arg(long, value_name = "SPEED|DIR", allow_hyphen_values = true)]
    medium: Option<Medium>,

    #[command(flatten)]
    documents: Documents,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn chunk(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    match u32::try_from(bytes) {
        Ok(bytes) if bytes.is_power_of_two() && (4096..=256 << 10).contains(&bytes) => Ok(bytes),
        _ => Err(format!("'{text}' is no chunk: give a power of two from 4K to 256K")),
    }
}

fn points(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.01..=50.0).contains(number));
    number.ok_or_else(|| format!("'{text}' is no error: give points from 0.01 to 50"))
}

fn confidence(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (50.0..=99.99).contains(number));
    number.ok_or_else(|| format!("'{text}' is no confidence: give per cents from 50 to 99.99"))
}

/// Runs the subcommand.
///
/// # Errors
/// What was named cannot be scanned, or outputs cannot be written.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    match &args.command {
        Some(Command::Merge(merge)) => run_merge(merge),
        None => args.run(),
    }
}

fn run_merge(merge: &Merge) -> Result<Outcome> {
    let inputs: Vec<&Path> = merge.files.iter().map(PathBuf::as_path).collect();
    let opened = merge.output.open(&inputs)?;
    let parts: Result<Vec<(String, Partial)>> = merge
        .files
        .iter()
        .map(|path| {
            let cannot = |error| at_path(path, error);
            let bytes =
                fs::metadata(path).map_err(|error| cannot(Error::os("cannot read", error)))?.len();
            if bytes > PARTIAL_BYTES_MAX {
                let what = format!("has {}: no scan writes so much", format_size(bytes));
                return Err(cannot(Error::new(ErrorKind::InvalidInput, what)));
            }
            let text = fs::read_to_string(path)
                .map_err(|error| cannot(Error::os("cannot read", error)))?;
            let part = Partial::from_json(&text).map_err(|error| cannot(error.into()))?;
            Ok((path.display().to_string(), part))
        })
        .collect();
    let whole = Partial::merge(&parts?)?;
    let interrupt = Interrupt::catch()?;
    merge.output.show(&whole, opened, &interrupt)
}

impl Args {
    fn run(&self) -> Result<Outcome> {
        let inputs: Vec<&Path> = self.paths.iter().map(PathBuf::as_path).collect();
        let opened = self.output.open(&inputs)?;
        let kept = |path: &Option<PathBuf>| -> Result<Option<(PathBuf, fs::File)>> {
            path.as_ref()
                .map(|path| Ok::<_, Error>((path.clone(), open_output(path, self.output.force())?)))
                .transpose()
        };
        let (partial_file, like_file): (Option<(PathBuf, fs::File)>, _) =
            (kept(&self.partial)?, kept(&self.save)?);
        let options = self.options();
        if !self.full_speed {
            let_others_pass();
        }
        let interrupt = Interrupt::catch()?;
        let shown = Shown::new();
        let scanned = scan(&self.paths, &options, self.save.is_some(), &shown, interrupt.flag());
        shown.bar.finish_and_clear();
        let Some(Scanned { partial, profile: like }) = scanned? else {
            super::say_error("interrupted while files were listed: nothing was read yet");
            return Ok(Outcome::Code(2));
        };
        if let Some((path, file)) = partial_file {
            write_all(file, &path, &partial.to_json())?;
        }
        if let Some((path, file)) = like_file {
            let Some(like) = like else {
                let what = "less than 64 KiB could be read: too little for a profile";
                return Err(at_path(&path, Error::new(ErrorKind::InvalidInput, what)));
            };
            write_all(file, &path, &like.to_json())?;
        }
        self.output.show(&partial, opened, &interrupt)
    }

    #[allow(clippy::disallowed_methods, reason = "how old files are depends on the date")]
    fn options(&self) -> ScanOptions {
        let (codecs, chunks) = match self.sweep {
            true => (SWEEP_CODECS.to_vec(), SWEEP_CHUNKS.to_vec()),
            false => (or(&self.codecs, &CODECS), or(&self.chunks, &CHUNKS)),
        };
        let configs: Vec<Config> = codecs
            .iter()
            .flat_map(|&codec| chunks.iter().map(move |&chunk_bytes| Config { codec, chunk_bytes }))
            .collect();
        let wanted = match chunks.contains(&CHUNKS[1]) {
            true => CHUNKS[1],
            false => chunks.iter().copied().max().unwrap_or(CHUNKS[1]),
        };
        let main = configs.iter().position(|config| config.chunk_bytes == wanted).unwrap_or(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        ScanOptions {
            configs,
            main,
            error_points: self.error,
            confidence_percent: self.confidence,
            reading: match (self.all, self.samples) {
                (true, _) => Reading::All,
                (false, Some(count)) => Reading::Draws(count),
                (false, None) => Reading::Auto,
            },
            seed: self.seed,
            shard: self.shard,
            threads: self.threads.map_or(processors, usize::from),
            bytes_per_s: self.rate_limit,
            crosses: self.cross_file_systems,
            now_s: now.as_secs() as i64,
        }
    }
}

/// What was asked for without repetitions, or what is usual.
fn or<T: Copy + PartialEq>(asked: &[T], usual: &[T]) -> Vec<T> {
    let mut all = Vec::new();
    for &one in if asked.is_empty() { usual } else { asked } {
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all
}

/// Puts this process behind all others, for the processor and for disks. Threads that are started
/// later inherit both. Where it cannot be the scan is only less polite.
fn let_others_pass() {
    let _ = rustix::process::nice(NICENESS);
    // There is no safe call for it; the tool is part of util-linux.
    let this = std::process::id().to_string();
    let mut ionice = std::process::Command::new("ionice");
    ionice.args(["--class", IDLE_CLASS, "--pid", &this]);
    let _ = ionice.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

fn write_all(mut file: fs::File, path: &Path, text: &str) -> Result<()> {
    let written = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
    written.map_err(|error| at_path(path, Error::os("cannot write", error)))
}

/// The result as JSON.
#[derive(Serialize)]
struct Shape<'a> {
    #[serde(flatten)]
    outcome: &'a pumice_scan::Outcome,
    drives: &'a [Drive],
    on_medium: Option<&'a OnMedium>,
}

impl Output {
    fn force(&self) -> bool {
        self.documents.force()
    }

    /// Opens the reports, before anything is read for them.
    fn open(&self, inputs: &[&Path]) -> Result<Opened> {
        let opened = self.documents.open(inputs)?;
        if self.json && opened.uses_stdout() {
            let what = "--json and a report both want stdout: give the report a file";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        if self.gb_per_day.is_some() && self.drives.is_empty() {
            let what = "--gb-per-day says how long a drive lasts: name one with --drive";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        for drive in &self.drives {
            pumice_sim::profile::Profile::find(drive)?;
        }
        Ok(opened)
    }

    fn show(&self, partial: &Partial, opened: Opened, interrupt: &Interrupt) -> Result<Outcome> {
        let outcome = pumice_scan::Outcome::of(partial);
        let simulated = super::forecast::Shown::new();
        let bytes_per_day = self.gb_per_day.map(|gb| gb * 1e9);
        let drives = match interrupt.came() {
            true => None,
            false => verdicts(
                &outcome,
                &self.drives,
                bytes_per_day,
                &simulated as &dyn forecast::Watch,
                interrupt.flag(),
            )?,
        };
        simulated.finish();
        let drives = drives.unwrap_or_default();
        let on_medium = self.on_medium(&outcome, interrupt)?;
        let on_medium = on_medium.as_ref();
        let uses_stdout = opened.uses_stdout();
        let document = outcome.document(&drives, on_medium);
        if !opened.is_none() {
            opened.write(&document, &outcome.table())?;
        }
        match (self.json, uses_stdout) {
            (true, _) => print_json(&Shape { outcome: &outcome, drives: &drives, on_medium })?,
            (false, false) => print(&document.to_text())?,
            (false, true) => {}
        }
        Ok(if interrupt.came() { Outcome::Code(2) } else { Outcome::Good })
    }

    /// What a drive would do on the medium that was named, if one was and there is time.
    fn on_medium(
        &self,
        outcome: &pumice_scan::Outcome,
        interrupt: &Interrupt,
    ) -> Result<Option<OnMedium>> {
        let Some(medium) = self.medium.as_ref().filter(|_| !interrupt.came()) else {
            return Ok(None);
        };
        let Some(speed) = medium.speed(interrupt.flag())? else { return Ok(None) };
        let made = OnMedium::of(outcome, speed);
        if made.is_none() {
            super::say_error("too little was read to say how fast the codec is: no speed is given");
        }
        Ok(made)
    }
}

/// Progress on stderr.
struct Shown {
    bar: ProgressBar,
    files: AtomicU64,
    bytes: AtomicU64,
}

impl Shown {
    fn new() -> Self {
        let style = ProgressStyle::with_template("listing: {msg}").expect("a constant template");
        let bar = ProgressBar::no_length().with_style(style);
        Self { bar, files: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }
}

impl ScanProgress for Shown {
    fn found(&self, files: u64, bytes: u64) {
        let files = self.files.fetch_add(files, Ordering::Relaxed) + files;
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.bar.set_message(format!("{files} files, {}", format_size(bytes)));
    }

    fn begin(&self, reads_draws: bool, total: u64) {
        let template = match reads_draws {
            true => "{bar:30} {pos} of about {len} draws, {eta} left",
            false => "{bar:30} {percent} % read, {eta} left",
        };
        self.bar.set_style(ProgressStyle::with_template(template).expect("a constant template"));
        self.bar.reset();
        self.bar.set_length(total);
    }

    fn advance(&self, count: u64) {
        self.bar.inc(count);
        // A plan may turn out too small.
        if self.bar.length().is_some_and(|length| length < self.bar.position()) {
            self.bar.set_length(self.bar.position());
        }
    }
}
