//! `pumice scan`: estimates the compressibility of existing data.

mod snapshots;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;

use super::documents::{Documents, JSON_AND_STDOUT, Opened};
use super::key_args::KeyArgs;
use super::output::{columns, open_output};
use super::values::{gigabytes, percent, whole_number};
use super::{Outcome, print, print_schema, size};
use crate::signals::Interrupt;
use pumice_bench::forecast;
use pumice_drive::base::units::format_size;
use pumice_drive::codec::Codec as DriveCodec;
use pumice_drive::controller::FRAME_BLOCKS_DEFAULT;
use pumice_scan::{
    Codec, Config, Drive, Medium, OnMedium, PARTIAL_BYTES_MAX, Partial, Provision, Reading,
    ScanOptions, ScanProgress, Scanned, Shard, scan, verdicts,
};

/// The chunk sizes that are measured by default, and with `--sweep`.
const CHUNKS: [u32; 2] = [4 << 10, FRAME_BLOCKS_DEFAULT as u32 * 4096];
const SWEEP_CHUNKS: [u32; 6] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10];

/// The codecs that are measured by default, and with `--sweep`.
const CODECS: [Codec; 2] =
    [Codec::Drive(DriveCodec::Lz4), Codec::Drive(DriveCodec::Zstd { level: 1 })];
const SWEEP_CODECS: [Codec; 4] = [
    Codec::Drive(DriveCodec::Lz4),
    Codec::Drive(DriveCodec::Zstd { level: -1 }),
    Codec::Drive(DriveCodec::Zstd { level: 1 }),
    Codec::Drive(DriveCodec::Zstd { level: 3 }),
];

/// The lowest CPU priority.
const NICENESS: i32 = 19;

/// The I/O scheduling class that is served only when the disk is otherwise idle: see ionice(1).
const IDLE_CLASS: &str = "3";

/// Estimate how compressible data is, and how a compressing drive would store it
///
/// Reads samples of files, folders (recursively), block devices or NBD exports until the savings
/// are known with the requested precision, or everything, if that is cheaper. The true value is
/// within the reported interval with at least the stated confidence, whatever the data. Holes and
/// space that was allocated but never written are not data.
///
/// Designed for production machines: nothing is written, access times are preserved where the
/// system allows it, and the scan runs at the lowest CPU and I/O priority. It usually reads 17 to
/// 150 MB, in single reads of up to 32 KiB (or the largest --chunk) at random positions, and more
/// for a smaller --error. The scan leaves the page cache as it was; on Linux before 6.14, only when
/// sampling, not when reading everything. The result ends with the pumice create command of a drive
/// that holds the data.
///
/// The estimate counts the bytes that a drive stores: chunks are compressed independently, a block
/// of one repeated byte takes only a header, a chunk that saves less than 1/32 is stored
/// uncompressed, and each chunk has a header. The precision applies to the first codec with chunks
/// of 32K, or with the largest chunk size if 32K is not measured.
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
  pumice scan drive.pumice@monday
  pumice scan /srv --shard 1/8 --partial 1.json
  pumice scan merge *.json")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// Files, folders, block devices, NBD URIs, or snapshots of drives: PATH@NAME
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    /// Codec to measure: lz4, zstd, zstd:LEVEL, none, or liblz4, the LZ4 that programs other than
    /// drives use; may be repeated [default: lz4 and zstd:1]
    #[arg(long = "codec", value_name = "CODEC", conflicts_with = "sweep")]
    codecs: Vec<Codec>,

    /// Chunk size, 4K to 256K; may be repeated [default: 4K and 32K]
    #[arg(long = "chunk", value_name = "SIZE", value_parser = chunk, allow_hyphen_values = true,
        conflicts_with = "sweep")]
    chunks: Vec<u32>,

    /// Measure several codecs with chunk sizes from 4K to 128K
    #[arg(long)]
    sweep: bool,

    /// Target half-width of the confidence interval, in percentage points
    #[arg(long, value_name = "POINTS", default_value_t = 1.0, value_parser = percent(0.01..=50.0),
        allow_negative_numbers = true)]
    error: f64,

    /// Minimum confidence of the interval, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 95.0,
        value_parser = percent(50.0..=99.99), allow_negative_numbers = true)]
    confidence: f64,

    /// Number of samples to measure, regardless of the error; the actual number varies by a few
    /// percent
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=100_000),
        conflicts_with = "all", allow_negative_numbers = true)]
    samples: Option<u64>,

    /// Read everything
    #[arg(long)]
    all: bool,

    /// Scan only part I of N, and write the result to --partial for pumice scan merge
    #[arg(long, value_name = "I/N", default_value_t = Shard::ALL, requires = "partial")]
    shard: Shard,

    /// Write the measurements to a file, for pumice scan merge
    #[arg(long, value_name = "FILE")]
    partial: Option<PathBuf>,

    /// Write a profile, from which pumice bench and pumice payload generate similar data
    #[arg(long, value_name = "FILE", conflicts_with = "shard")]
    save: Option<PathBuf>,

    /// Descend into other file systems
    #[arg(long)]
    cross_file_systems: bool,

    /// Maximum read rate, per second
    #[arg(long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true)]
    rate_limit: Option<u64>,

    /// Run at normal CPU and I/O priority instead of the lowest
    #[arg(long)]
    full_speed: bool,

    /// Number of compression threads [default: one per processor]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024),
        allow_negative_numbers = true)]
    threads: Option<u16>,

    /// Random seed of the samples
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = whole_number,
        allow_negative_numbers = true)]
    seed: u64,

    #[command(flatten)]
    keys: KeyArgs,

    #[command(flatten)]
    output: Output,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Merge the shards of a scan
    ///
    /// The result is identical to that of a single scan of the same samples.
    Merge(Merge),
}

#[derive(Debug, clap::Args)]
struct Merge {
    /// Files written by --partial, one for each shard
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    output: Output,
}

/// Flags for the result.
#[derive(Debug, clap::Args)]
struct Output {
    /// Simulate this drive profile with the data (see pumice drives); may be repeated
    #[arg(long = "drive", value_name = "NAME")]
    drives: Vec<String>,

    /// Amount of data that the host writes per day in GB, to estimate the lifetime of drives
    #[arg(long, value_name = "GB", value_parser = gigabytes,
        allow_negative_numbers = true)]
    gb_per_day: Option<f64>,

    /// Estimate the speed of a Pumice drive on a medium, given by its write rate per second, or by
    /// a folder on it, in which the rate is measured with temporary files of up to 1 GiB
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
        _ => Err("expected a power of two from 4K to 256K".to_owned()),
    }
}

/// Runs the subcommand.
///
/// # Errors
/// A path cannot be scanned, or an output cannot be written.
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
            let shown = path.display().to_string();
            let cannot_read = || format!("cannot read {shown}");
            let bytes = fs::metadata(path).with_context(cannot_read)?.len();
            if bytes > PARTIAL_BYTES_MAX {
                let (size, max) = (format_size(bytes), format_size(PARTIAL_BYTES_MAX));
                bail!("{shown} has {size}, more than the {max} that a scan can write");
            }
            let text = fs::read_to_string(path).with_context(cannot_read)?;
            let part = Partial::from_json(&text).with_context(|| shown.clone())?;
            Ok((shown, part))
        })
        .collect();
    let whole = Partial::merge(&parts?)?;
    let interrupt = Interrupt::catch()?;
    merge.output.show(&whole, opened, &interrupt)
}

impl Args {
    fn run(&self) -> Result<Outcome> {
        self.keys.provide()?;
        let inputs: Vec<&Path> = self.paths.iter().map(PathBuf::as_path).collect();
        let opened = self.output.open(&inputs)?;
        let create = |path: &Option<PathBuf>| -> Result<Option<(PathBuf, fs::File)>> {
            let Some(path) = path else { return Ok(None) };
            Ok(Some((path.clone(), open_output(path, self.output.force())?)))
        };
        let (partial_file, like_file) = (create(&self.partial)?, create(&self.save)?);
        let mut options = self.options();
        if !self.full_speed {
            lower_priority();
        }
        let interrupt = Interrupt::catch()?;
        let snapshots = snapshots::Snapshots::of(&self.paths)?;
        options.exports.clone_from(&snapshots.exports);
        let shown = Shown::new();
        let scanned = scan(&self.paths, &options, self.save.is_some(), &shown, interrupt.flag());
        shown.bar.finish_and_clear();
        let Some(Scanned { partial, profile: like }) = scanned? else {
            super::say_error("interrupted before anything was read: nothing was scanned");
            return Ok(Outcome::Code(2));
        };
        if let Some((path, file)) = partial_file {
            write_all(file, &path, &partial.to_json())?;
        }
        if let Some((path, file)) = like_file {
            let Some(like) = like else {
                bail!(
                    "cannot write {}: a profile needs at least 64 KiB of readable data",
                    path.display()
                );
            };
            write_all(file, &path, &like.to_json())?;
        }
        self.output.show(&partial, opened, &interrupt)
    }

    #[allow(clippy::disallowed_methods, reason = "the age of files depends on the date")]
    fn options(&self) -> ScanOptions {
        let (codecs, chunks) = if self.sweep {
            (SWEEP_CODECS.to_vec(), SWEEP_CHUNKS.to_vec())
        } else {
            (or_default(&self.codecs, &CODECS), or_default(&self.chunks, &CHUNKS))
        };
        let configs: Vec<Config> = codecs
            .iter()
            .flat_map(|&codec| chunks.iter().map(move |&chunk_bytes| Config { codec, chunk_bytes }))
            .collect();
        let wanted = if chunks.contains(&CHUNKS[1]) {
            CHUNKS[1]
        } else {
            chunks.iter().copied().max().unwrap_or(CHUNKS[1])
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
            exports: Vec::new(),
            now_s: now.as_secs() as i64,
        }
    }
}

/// Returns the requested values without repetitions, or the default if there are none.
fn or_default<T: Copy + PartialEq>(requested: &[T], default: &[T]) -> Vec<T> {
    let mut all = Vec::new();
    for &one in if requested.is_empty() { default } else { requested } {
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all
}

/// Assigns this process the lowest priority for the processor and for disks. Threads that are
/// started later inherit both. Failures are ignored: the scan then competes with other processes.
fn lower_priority() {
    let _ = rustix::process::nice(NICENESS);
    // There is no safe system call for it; the tool is part of util-linux.
    let this = std::process::id().to_string();
    let mut ionice = std::process::Command::new("ionice");
    ionice.args(["--class", IDLE_CLASS, "--pid", &this]);
    let _ = ionice.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

fn write_all(mut file: fs::File, path: &Path, text: &str) -> Result<()> {
    let written = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Version of the result's JSON; `docs/scan.md` describes it.
const JSON_VERSION: u32 = 1;

/// The result as JSON.
#[derive(Serialize, JsonSchema)]
pub(super) struct Shape<'a> {
    /// 1: as in the files of earlier versions, in addition to `schema`.
    format: u32,
    #[serde(flatten)]
    outcome: &'a pumice_scan::Outcome,
    /// Expected behaviour of drives with the data, as requested by `--drive`.
    drives: &'a [Drive],
    /// The speed on a medium, as requested by `--medium`; `None` if not requested.
    on_medium: Option<&'a OnMedium>,
    /// The drive to create; `None` if none is recommended.
    create: Option<Provision>,
}

impl Output {
    fn force(&self) -> bool {
        self.documents.force()
    }

    /// Opens the reports, before the scan starts.
    fn open(&self, inputs: &[&Path]) -> Result<Opened> {
        let opened = self.documents.open(inputs)?;
        if self.json && opened.uses_stdout() {
            bail!(JSON_AND_STDOUT);
        }
        if self.gb_per_day.is_some() && self.drives.is_empty() {
            bail!("--gb-per-day requires --drive: specify whose lifetime to estimate");
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
        let drives = if interrupt.came() {
            None
        } else {
            let watch = &simulated as &dyn forecast::Watch;
            verdicts(&outcome, &self.drives, bytes_per_day, watch, interrupt.flag())?
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
            (true, _) => print_schema(
                "scan-1",
                &Shape {
                    format: JSON_VERSION,
                    outcome: &outcome,
                    drives: &drives,
                    on_medium,
                    create: Provision::of(&outcome),
                },
            )?,
            (false, false) => print(&document.to_text_within(columns()))?,
            (false, true) => {}
        }
        Ok(if interrupt.came() { Outcome::Code(2) } else { Outcome::Good })
    }

    /// Estimates a drive on the medium, if one was named and there was no interrupt.
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
            super::say_error("no speed estimate: too little was read to measure the codec");
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
    fn mapped(&self, told: u64, bytes: u64) {
        let (told, bytes) = (format_size(told), format_size(bytes));
        self.bar.set_message(format!("querying the allocation: {told} of {bytes}"));
    }

    fn found(&self, files: u64, bytes: u64) {
        let files = self.files.fetch_add(files, Ordering::Relaxed) + files;
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.bar.set_message(format!("{files} files, {}", format_size(bytes)));
    }

    fn begin(&self, reads_draws: bool, total: u64) {
        let template = if reads_draws {
            "{pos} of about {len} samples, {eta} left {wide_bar}"
        } else {
            "{percent} % read, {eta} left {wide_bar}"
        };
        self.bar.set_style(ProgressStyle::with_template(template).expect("a constant template"));
        self.bar.reset();
        self.bar.set_length(total);
    }

    fn advance(&self, count: u64) {
        self.bar.inc(count);
        // The planned number of samples may turn out too small.
        if self.bar.length().is_some_and(|length| length < self.bar.position()) {
            self.bar.set_length(self.bar.position());
        }
    }
}
