//! `pumice forecast`: simulates a drive under a workload.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::documents::{Documents, JSON_AND_STDOUT};
use super::output::{columns, json_text};
use super::values::{gigabytes, percent, up_to, whole_number, word};
use super::{Outcome, print, size};
use crate::signals::Interrupt;
use pumice_bench::forecast::{
    Asked, Case, Data, ForecastOptions, GridCell, GridSpec, PlannedFault, SCALED_BYTES, Scenario,
    Source, Spec, State, Watch, forecast, grid, size_bytes,
};
use pumice_bench::payload::Saving;
use pumice_bench::workload::Changes;
use pumice_bench::workload::{DEPTH_MAX, Operation, Pattern, THREADS_MAX};
use pumice_drive::codec::Codec;
use pumice_report::{Document, Table};
use pumice_sim::drive::cached::DriveCache;
use pumice_sim::profile::Profile;
use pumice_sim::trace::{Format, Options as TraceOptions};

/// Simulate a drive under a workload, with and without compression
///
/// Simulates a drive profile in virtual time, with garbage collection and wear. Only the compressed
/// size of each block is simulated, not its content. Reports throughput, latencies, write
/// amplification by cause, and the lifetime of the drive, for the drive as it is and for the same
/// drive without compression, and without parity if it has any. Where an analytical formula exists,
/// its result is shown as well.
///
/// Workloads that scale with the drive, such as presets and operations, run on a drive scaled down
/// to 4 GiB, which takes seconds and gives nearly the same results; --full-size simulates the whole
/// drive. Traces always run at the drive's true size.
///
/// With --cache, a faster drive or memory is the cache of the drive, which is simulated at full
/// size; the workload runs until the hit rate no longer changes.
///
/// For a drive with parity across its dies, the report states the cost of parity, and the
/// consequences of the failure of a die. With --fail, one more round follows in which parts of the
/// flash fail.
///
/// Block-mapped flash and hard disks do not compress. For hard disks, only speed and latency are
/// reported.
///
/// WORKLOAD is a preset (pumice bench --list), an operation such as random-write, a fio job file,
/// or a trace: MSR Cambridge CSV, MQSim or DiskSim text, blkparse text, or fio iolog version 2 or
/// 3. Presets and operations use the whole drive unless --span is given.
///
/// The data is described by --saved, the same for every block, or given by --data as a file, a
/// folder, or a profile written by pumice payload --profile-of, and measured in blocks of 4 KiB
/// with the drive's codec.
///
/// With several values of --over-provisioning or several kinds of data, one table shows write
/// amplification and throughput for each combination, for the drive as it is. Reports have charts.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice forecast --profile micro-center-64 --workload random-write --saved 50%
  pumice forecast --profile compressing-nvme-1tb --workload random-write --data /srv --full-size
  pumice forecast --profile micro-center-64 --workload random-write \\
    --over-provisioning 7,12,20,28 --saved 0%,25%,50%,75%,98% --html grid.html
  pumice forecast --profile micro-center-64 --workload job.fio --saved 56% --gb-per-day 20
  pumice forecast --profile micro-center-64 --link sata-6g --stripe 2 --workload read --saved 50%
  pumice forecast --profile hdd-2010 --cache intel-x25-e-32:8G:write-back --workload random-read \\
    --span 32G --pattern zipf
  pumice forecast --profile ocz-vertex-2-50 --workload random-write --saved 50% --fail die:3@50%
  pumice forecast --profile corsair-force-100 --workload web_0.csv --fold --data data.json --json")]
pub(crate) struct Args {
    /// Name of a drive profile (see pumice drives), or a profile file
    #[arg(long, value_name = "NAME")]
    profile: String,

    /// Preset, operation, fio job file or trace
    #[arg(long, value_name = "WORKLOAD")]
    workload: String,

    /// Compressibility of every block, as the share of space saved, such as 50%; may be repeated or
    /// separated by commas; this or --data is required for a drive that compresses
    #[arg(
        long,
        value_name = "SHARE",
        allow_hyphen_values = true,
        value_delimiter = ',',
        conflicts_with = "data"
    )]
    saved: Vec<Saving>,

    /// Data to measure: a file, a folder or a saved profile; may be repeated
    #[arg(long, value_name = "PATH")]
    data: Vec<PathBuf>,

    /// Over-provisioning in percent of the drive's size, for the same amount of flash; may be
    /// repeated or separated by commas [default: the profile's]
    #[arg(long, value_name = "PERCENT", value_parser = percent(0.1..=1000.0), value_delimiter = ',',
        allow_negative_numbers = true)]
    over_provisioning: Vec<f64>,

    /// Attach the drive to another link: sata-1.5g, sata-3g, sata-6g, nvme-3x4 or nvme-4x4
    /// [default: the profile's]
    #[arg(long, value_name = "LINK")]
    link: Option<String>,

    /// Number of such drives in a RAID 0, with chunks of 128 KiB and a link for each
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = up_to(64),
        allow_negative_numbers = true)]
    stripe: u32,

    /// Put a cache in front of the drive, as `NAME:SIZE[:write-back][:LINE]`: NAME is a drive
    /// profile, ram (a software cache in the host's memory) or ram-card (memory with a battery);
    /// LINE is 4K to 64K [default: write-through, lines of 4 KiB]
    #[arg(long, value_name = "CACHE", value_parser = cache)]
    cache: Option<DriveCache>,

    /// Amount of data that the host writes per day in GB, to estimate the lifetime of the drive
    #[arg(long, value_name = "GB", value_parser = gigabytes, allow_negative_numbers = true)]
    gb_per_day: Option<f64>,

    /// Let a part of the flash fail during one more round: `die:NUMBER`, `block:NUMBER` or
    /// `page:NUMBER` of that die, and the share of the requests before the failure, such as
    /// die:3@50%; may be repeated or separated by commas [default: none]
    #[arg(long, value_name = "PART", value_parser = fault, value_delimiter = ',')]
    fail: Vec<PlannedFault>,

    /// Initial state of the drive: new, filled (its span sequentially), steady (filled, then under
    /// the workload) or used (the whole drive filled, then under the workload)
    #[arg(long, value_name = "STATE", default_value = "steady", value_parser = state)]
    state: State,

    /// Simulate a drive scaled down to this size, with the same over-provisioning [default: 4G, but
    /// unscaled for traces and for jobs that specify a size]
    #[arg(long, value_parser = size, value_name = "SIZE", allow_hyphen_values = true)]
    scaled: Option<u64>,

    /// Simulate the whole drive, which can take many minutes
    #[arg(long, conflicts_with = "scaled")]
    full_size: bool,

    /// Part of the drive that is used; scaled like the drive [default: all]
    #[arg(long, value_parser = size, value_name = "SIZE", allow_hyphen_values = true)]
    span: Option<u64>,

    /// Record size instead of the workload's; may be repeated
    #[arg(long = "record", value_parser = size, value_name = "SIZE", allow_hyphen_values = true)]
    records: Vec<u64>,

    /// Run only this operation of a preset; may be repeated
    #[arg(long = "operation", value_name = "NAME", value_parser = super::bench::operation)]
    operations: Vec<Operation>,

    /// Number of requests in flight per thread [default: the preset's, or 32]
    #[arg(long, value_name = "NUMBER", value_parser = up_to(DEPTH_MAX),
        allow_negative_numbers = true)]
    depth: Option<u32>,

    /// Number of threads [default: the preset's, or 1]
    #[arg(long, value_name = "NUMBER", value_parser = up_to(THREADS_MAX),
        allow_negative_numbers = true)]
    threads: Option<u32>,

    /// Distribution of random requests: uniform, once, 80/20, zipf or zipf:EXPONENT
    #[arg(long, value_name = "PATTERN", value_parser = word::<Pattern>)]
    pattern: Option<Pattern>,

    /// Format of the trace: msr, mqsim, blkparse or iolog [default: detected]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,

    /// Skip and count malformed lines of a trace
    #[arg(long)]
    skip_bad: bool,

    /// Map requests beyond the end of the drive into the drive
    #[arg(long)]
    fold: bool,

    /// Disk number within a trace [default: the first that occurs]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    disk: Option<u32>,

    /// Random seed of the addresses
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = whole_number,
        allow_negative_numbers = true)]
    seed: u64,

    #[command(flatten)]
    documents: Documents,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn cache(text: &str) -> Result<DriveCache, String> {
    DriveCache::find(text).map_err(|error| error.to_string())
}

fn fault(text: &str) -> Result<PlannedFault, String> {
    PlannedFault::parse(text).map_err(|error| error.to_string())
}

fn state(text: &str) -> Result<State, String> {
    match text {
        "new" => Ok(State::New),
        "filled" => Ok(State::Filled),
        "steady" => Ok(State::Steady),
        "used" => Ok(State::Used),
        _ => Err("expected new, filled, steady or used".to_owned()),
    }
}

/// Runs the subcommand.
///
/// # Errors
/// The options, the profile and the workload do not fit together, or a file cannot be read.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let mut profile = Profile::find(&args.profile)?;
    if let Some(link) = &args.link {
        profile = profile.with_link(link)?;
    }
    let compressing = args.compressing(&profile);
    if let Some((name, _)) = compressing.filter(|_| args.saved.is_empty() && args.data.is_empty()) {
        bail!("{name} compresses: specify the saving of the data, such as --saved 50%, or --data");
    }
    let asked = args.asked();
    let (source, remarks) = Source::find(&args.workload, &asked)?;
    args.refuse_unused_options(&source)?;
    let inputs = [Path::new(&args.workload), Path::new(&args.profile)];
    let opened = args.documents.open(&inputs)?;
    if args.json && opened.uses_stdout() {
        bail!(JSON_AND_STDOUT);
    }
    let plan = Plan::new(args, &profile, &source, &asked)?;
    let interrupt = Interrupt::catch()?;
    let data = args.data(&profile)?;
    if data.len() * plan.rows.len() > 1 && !args.fail.is_empty() {
        bail!(
            "--fail has no effect on several forecasts: specify one over-provisioning and one \
             kind of data"
        );
    }
    let shown = Shown::new();
    let answer = match data.len() * plan.rows.len() {
        1 => {
            let (options, cases) = plan.row(0);
            let scenario = Scenario { profile: &profile, cases, options: &options };
            let made = forecast(scenario, &data[0], &shown, interrupt.flag());
            shown.finish();
            made?.map(|mut made| {
                made.remarks.splice(0..0, remarks);
                Answer::of("forecast-1", &made, made.document(), made.summary(), made.table())
            })
        }
        _ => {
            let (cells, columns, options) = (plan.cells(&data), data.len(), &plan.options);
            let spec = GridSpec { profile: &profile, options, cells: &cells, columns };
            let made = grid(spec, &shown, interrupt.flag());
            shown.finish();
            made?.map(|mut made| {
                made.remarks.splice(0..0, remarks);
                Answer::of("forecasts-1", &made, made.document(), made.summary(), made.table())
            })
        }
    };
    let Some(answer) = answer else {
        super::say_error("interrupted: no forecast was made");
        return Ok(Outcome::Code(2));
    };
    let uses_stdout = opened.uses_stdout();
    if !opened.is_none() {
        opened.write(&answer.document, &answer.table)?;
    }
    match (args.json, uses_stdout) {
        (true, _) => print(&answer.json)?,
        (false, false) => print(&answer.summary.to_text_within(columns()))?,
        (false, true) => {}
    }
    Ok(Outcome::Good)
}

/// The result in every format.
struct Answer {
    json: String,
    document: Document,
    summary: Document,
    table: Table,
}

impl Answer {
    fn of(
        schema: &'static str,
        made: &impl serde::Serialize,
        document: Document,
        summary: Document,
        table: Table,
    ) -> Self {
        let json = json_text(schema, made);
        Self { json, document, summary, table }
    }
}

/// The simulations to run: the cases for each over-provisioning.
struct Plan {
    options: ForecastOptions,
    rows: Vec<Row>,
}

/// The simulations with one over-provisioning.
struct Row {
    /// `None` for the over-provisioning of the profile.
    over_provisioning_percent: Option<f64>,
    cases: Vec<Case>,
}

impl Plan {
    /// Plans the simulations.
    ///
    /// # Errors
    /// The drive is impossible, or the workload does not fit it.
    fn new(args: &Args, profile: &Profile, source: &Source, asked: &Asked) -> Result<Self> {
        let is_log = profile.kind() == "log" && args.cache.is_none();
        let is_scaled = source.is_relative() && !args.full_size && is_log;
        let scaled = is_scaled.then_some(SCALED_BYTES);
        let options = ForecastOptions {
            state: args.state,
            seed: args.seed,
            bytes_per_day: args.gb_per_day.map(|gb| gb * 1e9),
            scaled_bytes: args.scaled.or(scaled),
            stripe: args.stripe,
            cache: args.cache.clone(),
            over_provisioning_percent: None,
            faults: args.fail.clone(),
        };
        let over: Vec<Option<f64>> = match args.over_provisioning.as_slice() {
            [] => vec![None],
            several => several.iter().copied().map(Some).collect(),
        };
        let row = |over_provisioning_percent| {
            let options = ForecastOptions { over_provisioning_percent, ..options.clone() };
            // Impossible requests are refused before the data is measured, which may take a long
            // time.
            let data = Data::none();
            let simulated_bytes = Spec::of(profile, &data, &options)?.size_bytes();
            let asked = asked.scaled(size_bytes(profile, &data, &options)?, simulated_bytes)?;
            let cases = source.cases(simulated_bytes, &asked)?;
            Ok(Row { over_provisioning_percent, cases })
        };
        let rows = over.into_iter().map(row).collect::<Result<_>>()?;
        Ok(Self { options, rows })
    }

    fn row(&self, index: usize) -> (ForecastOptions, &[Case]) {
        let Row { over_provisioning_percent, cases } = &self.rows[index];
        let over_provisioning_percent = *over_provisioning_percent;
        (ForecastOptions { over_provisioning_percent, ..self.options.clone() }, cases)
    }

    /// Returns every combination of a row and data.
    fn cells(&self, data: &[Data]) -> Vec<GridCell> {
        let cell = |row: &Row, data: &Data| GridCell {
            over_provisioning_percent: row.over_provisioning_percent,
            data: data.clone(),
            cases: row.cases.clone(),
        };
        let cells = |row| data.iter().map(move |data| cell(row, data));
        self.rows.iter().flat_map(cells).collect()
    }
}

impl Args {
    fn asked(&self) -> Asked {
        Asked {
            changes: Changes {
                span_bytes: self.span,
                depth: self.depth,
                threads: self.threads,
                records: self.records.clone(),
                operations: self.operations.clone(),
                pattern: self.pattern,
                ..Changes::default()
            },
            trace: TraceOptions { format: self.format, skips_bad: self.skip_bad, disk: self.disk },
            folds: self.fold,
        }
    }

    /// Returns the name and the codec of the drive, or of its cache, if one of them compresses.
    fn compressing<'a>(&'a self, profile: &'a Profile) -> Option<(&'a str, Codec)> {
        let drive = (profile.id.as_str(), profile.controller.codec());
        let cache = self.cache.as_ref().map(|cache| (cache.name(), cache.codec()));
        [Some(drive), cache].into_iter().flatten().find(|(_, codec)| *codec != Codec::None)
    }

    /// Measures the data.
    ///
    /// # Errors
    /// The data cannot be read.
    fn data(&self, profile: &Profile) -> Result<Vec<Data>> {
        if self.data.is_empty() {
            // A drive that does not compress stores all bytes of any data.
            let saved = if self.saved.is_empty() { &[Saving::NONE][..] } else { &self.saved };
            return Ok(saved.iter().copied().map(Data::saved).collect());
        }
        let codec = self.compressing(profile).map_or(Codec::None, |(_, codec)| codec);
        Ok(self.data.iter().map(|path| Data::of_path(path, codec)).collect::<Result<_, _>>()?)
    }

    /// Refuses options that have no effect on this kind of workload.
    fn refuse_unused_options(&self, source: &Source) -> Result<()> {
        let given = |option, is_given: bool| is_given.then_some(option);
        let change = given("--span", self.span.is_some())
            .or(given("--record", !self.records.is_empty()))
            .or(given("--depth", self.depth.is_some()))
            .or(given("--threads", self.threads.is_some()))
            .or(given("--pattern", self.pattern.is_some()));
        let of_preset = given("--operation", !self.operations.is_empty());
        let of_trace = given("--format", self.format.is_some())
            .or(given("--skip-bad", self.skip_bad))
            .or(given("--fold", self.fold))
            .or(given("--disk", self.disk.is_some()));
        let (kind, unused) = match source {
            Source::Preset(_) => ("a preset", of_trace),
            Source::Operation(_) => ("an operation", of_preset.or(of_trace)),
            Source::Trace(_) => ("a trace", change.or(of_preset)),
        };
        match unused {
            None => Ok(()),
            Some(option) => bail!("{option} has no effect on {kind}: remove it"),
        }
    }
}

/// Progress on stderr, with a line for each simulation that runs at the same time.
pub(super) struct Shown {
    bars: MultiProgress,
    of: Mutex<Vec<ProgressBar>>,
}

impl Shown {
    pub(super) fn new() -> Self {
        Self { bars: MultiProgress::new(), of: Mutex::default() }
    }

    /// Applies `change` to the line of a simulation, which is created if necessary.
    fn with(&self, simulation: usize, change: impl FnOnce(&ProgressBar)) {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        while of.len() <= simulation {
            let style = ProgressStyle::with_template(
                "[{human_pos} of {human_len} requests, {eta} left] {wide_msg}",
            );
            let bar = ProgressBar::no_length().with_style(style.expect("a constant template"));
            of.push(self.bars.add(bar));
        }
        change(&of[simulation]);
    }

    /// Clears the lines.
    pub(super) fn finish(&self) {
        let of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        of.iter().for_each(ProgressBar::finish_and_clear);
    }
}

impl Watch for Shown {
    fn begins(&self, simulation: usize, what: String, requests: u64) {
        self.with(simulation, |bar| {
            bar.reset();
            bar.set_length(requests);
            bar.set_message(what);
        });
    }

    fn advances(&self, simulation: usize, requests: u64) {
        self.with(simulation, |bar| bar.inc(requests));
    }
}
