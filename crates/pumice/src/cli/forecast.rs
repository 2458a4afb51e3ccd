//! `pumice forecast`: what a drive would do, simulated.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::documents::Documents;
use super::signals::Interrupt;
use super::{Outcome, print, size, whole_number};
use pumice_bench::forecast::{
    Asked, Case, Data, ForecastOptions, GridCell, GridSpec, SCALED_BYTES, Scenario, Source, State,
    Watch, forecast, grid, size_bytes, spec_of,
};
use pumice_bench::payload::Saving;
use pumice_bench::workload::Changes;
use pumice_bench::workload::{DEPTH_MAX, Operation, Pattern, THREADS_MAX};
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_report::{Document, Table};
use pumice_sim::profile::Profile;
use pumice_sim::trace::{Format, Options as TraceOptions};

/// Forecast what a drive would do, compressing and not, without a drive
///
/// Simulates the drive of a profile in virtual time, with garbage collection and wear, but without
/// content: of each block only how much of it is stored. Says throughput, latencies, write
/// amplification by cause, and how long the drive lasts; for the drive as it is, and for the same
/// drive without compression. Where a formula exists, it stands beside.
///
/// A workload that goes by the drive's size, as presets and operations do, is simulated on a drive
/// scaled down to 4 GiB, which takes seconds and gives nearly the same; --full-size simulates all
/// of it. Traces always have the drive's true size.
///
/// Block-mapped flash and hard disks do not compress; of a disk there are only speed and latency.
///
/// WORKLOAD is a preset (pumice bench --list), an operation such as random-write, a job file of
/// fio, or a trace: CSV of MSR Cambridge, text of MQSim or DiskSim, text of blkparse, or fio's
/// iolog of version 2 or 3. Presets and operations go over the whole drive unless --span says less.
///
/// Data is given as what it saves, --saved 50%, the same of every block, or by itself with --data:
/// a file, a folder, or a profile that pumice payload --profile-of wrote. Then it is measured in
/// blocks of 4 KiB with the drive's codec.
///
/// With several of --over-provisioning or several kinds of data, one table says write amplification
/// and throughput of each pair, for the drive as it is; reports have charts of them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice forecast --profile micro-center-64 --workload random-write --saved 50%
  pumice forecast --profile compressing-nvme-1tb --workload random-write --data /srv --full-size
  pumice forecast --profile micro-center-64 --workload random-write \\
    --over-provisioning 7,12,20,28 --saved 0%,25%,50%,75%,98% --html grid.html
  pumice forecast --profile micro-center-64 --workload job.fio --saved 56% --gb-per-day 20
  pumice forecast --profile corsair-force-100 --workload web_0.csv --fold --data data.json --json")]
pub(crate) struct Args {
    /// Name of a drive (pumice drives), or a file with a profile
    #[arg(long, value_name = "NAME")]
    profile: String,

    /// Preset, operation, job file of fio, or trace
    #[arg(long, value_name = "WORKLOAD")]
    workload: String,

    /// Share of space that compression saves of every block, like 50% (never stored, never a
    /// ratio); may be repeated, or several with commas
    #[arg(
        long,
        value_name = "SHARE",
        allow_hyphen_values = true,
        value_delimiter = ',',
        required_unless_present = "data",
        conflicts_with = "data"
    )]
    saved: Vec<Saving>,

    /// Data to measure: a file, a folder, or a saved profile of data; may be repeated
    #[arg(long, value_name = "PATH")]
    data: Vec<PathBuf>,

    /// The same flash sold as a drive of another size: what it has beyond that, in per cent of it;
    /// may be repeated, or several with commas [default: the profile's]
    #[arg(long, value_name = "PERCENT", value_parser = percent, value_delimiter = ',',
        allow_negative_numbers = true)]
    over_provisioning: Vec<f64>,

    /// What the host writes a day in GB, to say how many years the drive lasts
    #[arg(long, value_name = "GB", value_parser = gigabytes, allow_negative_numbers = true)]
    gb_per_day: Option<f64>,

    /// State of the drive: new, filled in order, or steady under the workload
    #[arg(long, value_name = "STATE", default_value = "steady", value_parser = state)]
    state: State,

    /// Simulate a smaller drive, over-provisioned alike: faster, and nearly the same [default: 4G,
    /// but for traces and jobs with a size of their own]
    #[arg(long, value_parser = size, value_name = "SIZE", allow_hyphen_values = true)]
    scaled: Option<u64>,

    /// Simulate all of the drive, which can take many minutes
    #[arg(long, conflicts_with = "scaled")]
    full_size: bool,

    /// Bytes of the drive that are used; a scaled one uses the same part [default: all]
    #[arg(long, value_parser = size, value_name = "SIZE", allow_hyphen_values = true)]
    span: Option<u64>,

    /// Record size in place of the workload's own; may be repeated
    #[arg(long = "record", value_parser = size, value_name = "SIZE", allow_hyphen_values = true)]
    records: Vec<u64>,

    /// These operations of a preset only; may be repeated
    #[arg(long = "operation", value_name = "NAME", value_parser = super::bench::operation)]
    operations: Vec<Operation>,

    /// Requests in flight of each thread [default: the preset's, or 32]
    #[arg(long, value_name = "NUMBER", value_parser = super::bench::up_to(DEPTH_MAX),
        allow_negative_numbers = true)]
    depth: Option<u32>,

    /// Threads [default: the preset's, or 1]
    #[arg(long, value_name = "NUMBER", value_parser = super::bench::up_to(THREADS_MAX),
        allow_negative_numbers = true)]
    threads: Option<u32>,

    /// Where random requests go: uniform, once, 80/20, zipf or zipf:EXPONENT
    #[arg(long, value_name = "PATTERN", value_parser = super::bench::word::<Pattern>)]
    pattern: Option<Pattern>,

    /// Format of a trace, if it is not found out: msr, mqsim, blkparse or iolog
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,

    /// Lines of a trace that cannot be read are counted instead of an error
    #[arg(long)]
    skip_bad: bool,

    /// Requests of a trace beyond the drive go to a place in it instead of an error
    #[arg(long)]
    fold: bool,

    /// Which disk of a trace [default: the first that occurs]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    disk: Option<u32>,

    /// Other seeds give other addresses
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = whole_number,
        allow_negative_numbers = true)]
    seed: u64,

    #[command(flatten)]
    documents: Documents,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn gigabytes(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.001..=1e9).contains(number));
    number.ok_or_else(|| format!("'{text}' is no number of GB a day: give one like 20"))
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim_end().parse().ok();
    let number = number.filter(|number| (0.1..=1000.0).contains(number));
    let what = "is no over-provisioning: give per cents of the drive's size like 7, 0.1 to 1000";
    number.ok_or_else(|| format!("'{text}' {what}"))
}

fn state(text: &str) -> Result<State, String> {
    match text {
        "new" => Ok(State::New),
        "filled" => Ok(State::Filled),
        "steady" => Ok(State::Steady),
        _ => Err(format!("'{text}' is no state: give new, filled or steady")),
    }
}

/// Runs the subcommand.
///
/// # Errors
/// The options, the profile and the workload do not fit together; files that cannot be read.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let profile = Profile::find(&args.profile)?;
    let asked = args.asked();
    let (source, remarks) = Source::find(&args.workload, &asked)?;
    args.refuse_what_has_no_place(&source)?;
    let inputs = [Path::new(&args.workload), Path::new(&args.profile)];
    let opened = args.documents.open(&inputs)?;
    if args.json && opened.uses_stdout() {
        let what = "--json and a report both want stdout: give the report a file";
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let plan = Plan::new(args, &profile, &source, &asked)?;
    let interrupt = Interrupt::catch()?;
    let data = args.data(&profile)?;
    let shown = Shown::new();
    let answer = match data.len() * plan.rows.len() {
        1 => {
            let (options, cases) = plan.row(0);
            let scenario = Scenario { profile: &profile, cases, options: &options };
            let made = forecast(scenario, &data[0], &shown, interrupt.flag());
            shown.finish();
            made?.map(|mut made| {
                made.remarks.splice(0..0, remarks);
                Answer::of(&made, made.document(), made.summary(), made.table())
            })
        }
        _ => {
            let (cells, columns, options) = (plan.cells(&data), data.len(), &plan.options);
            let spec = GridSpec { profile: &profile, options, cells: &cells, columns };
            let made = grid(spec, &shown, interrupt.flag());
            shown.finish();
            made?.map(|mut made| {
                made.remarks.splice(0..0, remarks);
                Answer::of(&made, made.document(), made.summary(), made.table())
            })
        }
    };
    let Some(answer) = answer else {
        super::say_error("interrupted: there is no forecast");
        return Ok(Outcome::Code(2));
    };
    let uses_stdout = opened.uses_stdout();
    if !opened.is_none() {
        opened.write(&answer.document, &answer.table)?;
    }
    match (args.json, uses_stdout) {
        (true, _) => print(&answer.json)?,
        (false, false) => print(&answer.summary.to_text())?,
        (false, true) => {}
    }
    Ok(Outcome::Good)
}

/// What is printed and written.
struct Answer {
    json: String,
    document: Document,
    summary: Document,
    table: Table,
}

impl Answer {
    fn of(
        made: &impl serde::Serialize,
        document: Document,
        summary: Document,
        table: Table,
    ) -> Self {
        let json = serde_json::to_string_pretty(made).expect("results serialize") + "\n";
        Self { json, document, summary, table }
    }
}

/// What is simulated: for each over-provisioning what is done on a drive of it.
struct Plan {
    options: ForecastOptions,
    rows: Vec<(Option<f64>, Vec<Case>)>,
}

impl Plan {
    /// # Errors
    /// There is no such drive, or the workload does not fit it.
    fn new(args: &Args, profile: &Profile, source: &Source, asked: &Asked) -> Result<Self> {
        let is_scaled = source.is_relative() && !args.full_size && profile.kind() == "log";
        let scaled = is_scaled.then_some(SCALED_BYTES);
        let options = ForecastOptions {
            state: args.state,
            seed: args.seed,
            bytes_per_day: args.gb_per_day.map(|gb| gb * 1e9),
            scaled_bytes: args.scaled.or(scaled),
            over_provisioning_percent: None,
        };
        let over: Vec<Option<f64>> = match args.over_provisioning.as_slice() {
            [] => vec![None],
            several => several.iter().copied().map(Some).collect(),
        };
        let row = |over_provisioning_percent| {
            let options = ForecastOptions { over_provisioning_percent, ..options.clone() };
            // Before the data is measured, which may take long, what it is for must be possible.
            let data = Data::none();
            let simulated_bytes = spec_of(profile, &data, &options)?.size_bytes();
            let asked = asked.scaled(size_bytes(profile, &data, &options)?, simulated_bytes)?;
            Ok((over_provisioning_percent, source.cases(simulated_bytes, &asked)?))
        };
        let rows = over.into_iter().map(row).collect::<Result<_>>()?;
        Ok(Self { options, rows })
    }

    fn row(&self, index: usize) -> (ForecastOptions, &[Case]) {
        let (over_provisioning_percent, cases) = &self.rows[index];
        let over_provisioning_percent = *over_provisioning_percent;
        (ForecastOptions { over_provisioning_percent, ..self.options.clone() }, cases)
    }

    /// Every pair of a row and data.
    fn cells(&self, data: &[Data]) -> Vec<GridCell> {
        let pairs = self.rows.iter().flat_map(|row| data.iter().map(move |data| (row, data)));
        let cell =
            |((over_provisioning_percent, cases), data): (&(_, Vec<Case>), &Data)| GridCell {
                over_provisioning_percent: *over_provisioning_percent,
                data: data.clone(),
                cases: cases.clone(),
            };
        pairs.map(cell).collect()
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

    /// The data, measured.
    ///
    /// # Errors
    /// It cannot be read.
    fn data(&self, profile: &Profile) -> Result<Vec<Data>> {
        if self.data.is_empty() {
            return Ok(self.saved.iter().copied().map(Data::saved).collect());
        }
        let data = |path: &PathBuf| Ok(Data::of_path(path, profile.controller.codec())?);
        self.data.iter().map(data).collect()
    }

    /// ForecastOptions that a workload of this kind would not heed.
    fn refuse_what_has_no_place(&self, source: &Source) -> Result<()> {
        let changes = [
            ("--span", self.span.is_some()),
            ("--record", !self.records.is_empty()),
            ("--depth", self.depth.is_some()),
            ("--threads", self.threads.is_some()),
            ("--pattern", self.pattern.is_some()),
        ];
        let of_preset = [("--operation", !self.operations.is_empty())];
        let of_trace = [
            ("--format", self.format.is_some()),
            ("--skip-bad", self.skip_bad),
            ("--fold", self.fold),
            ("--disk", self.disk.is_some()),
        ];
        let (kind, wrong): (&str, Vec<&[(&str, bool)]>) = match source {
            Source::Preset(_) => ("a preset", vec![&of_trace]),
            Source::Operation(_) => ("an operation", vec![&of_preset, &of_trace]),
            Source::Jobs(_) => ("a job file", vec![&changes, &of_preset, &of_trace]),
            Source::Trace(_) => ("a trace", vec![&changes, &of_preset]),
        };
        match wrong.into_iter().flatten().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((option, _)) => {
                let what = format!("{option} has no effect on {kind}: leave it out");
                Err(Error::new(ErrorKind::InvalidInput, what))
            }
        }
    }
}

/// Progress on stderr, a line for each simulation that goes at the same time.
pub(super) struct Shown {
    bars: MultiProgress,
    of: Mutex<Vec<ProgressBar>>,
}

impl Shown {
    pub(super) fn new() -> Self {
        Self { bars: MultiProgress::new(), of: Mutex::default() }
    }

    /// Lets `change` loose on the line of a simulation, which is made if there is none yet.
    fn with(&self, simulation: usize, change: impl FnOnce(&ProgressBar)) {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        while of.len() <= simulation {
            let style = ProgressStyle::with_template("{msg} [{human_pos} requests, {per_sec}]");
            let bar = ProgressBar::no_length().with_style(style.expect("a constant template"));
            of.push(self.bars.add(bar));
        }
        change(&of[simulation]);
    }

    /// Takes it from the screen.
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
