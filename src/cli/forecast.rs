//! `pumice forecast`: what a drive would do, simulated.

use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};

use super::documents::Documents;
use super::interrupt::Interrupt;
use super::{Outcome, print, print_json, size, whole_number};
use crate::base::{Error, ErrorKind, Result};
use crate::bench::forecast::{Asked, Data, Options, Source, State, Watch, forecast, spec_of};
use crate::bench::payload::Saving;
use crate::bench::preset::Changes;
use crate::bench::workload::{DEPTH_MAX, Operation, Pattern, THREADS_MAX};
use crate::model::profile::Profile;
use crate::model::trace::{Format, Options as TraceOptions};

/// Forecast what a drive would do, compressing and not, without a drive
///
/// Simulates the drive of a profile in virtual time, with garbage collection and wear, but without
/// content: of each block only how much of it is stored. Says throughput, latencies, write
/// amplification by cause, and how long the drive lasts; for the drive as it is, and for the same
/// drive without compression. Where a formula exists, it stands beside.
///
/// WORKLOAD is a preset (pumice bench --list), an operation such as random-write, a job file of
/// fio, or a trace: CSV of MSR Cambridge, text of MQSim or DiskSim, text of blkparse, or fio's
/// iolog of version 2 or 3. Presets and operations go over the whole drive unless --span says less.
///
/// Data is given as what it saves, --saved 50%, the same of every block, or by itself with --data:
/// a file, a folder, or a profile that pumice payload --profile-of wrote. Then it is measured in
/// blocks of 4 KiB with the drive's codec.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice forecast --profile micro-center-64 --workload random-write --saved 50%
  pumice forecast --profile compressing-nvme-1tb --workload random-write --data /srv --scaled 16G
  pumice forecast --profile micro-center-64 --workload job.fio --saved 56% --gb-per-day 20
  pumice forecast --profile corsair-force-100 --workload web_0.csv --fold --data data.json --json")]
pub(crate) struct Args {
    /// Name of a drive (pumice drives), or a file with a profile; of kind "log"
    #[arg(long, value_name = "NAME")]
    profile: String,

    /// Preset, operation, job file of fio, or trace
    #[arg(long, value_name = "WORKLOAD")]
    workload: String,

    /// Share of space that compression saves of every block, like 50% (never stored, never a ratio)
    #[arg(
        long,
        value_name = "SHARE",
        allow_hyphen_values = true,
        required_unless_present = "data",
        conflicts_with = "data"
    )]
    saved: Option<Saving>,

    /// Data to measure: a file, a folder, or a saved profile of data
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,

    /// What the host writes a day in GB, to say how many years the drive lasts
    #[arg(long, value_name = "GB", value_parser = gigabytes, allow_negative_numbers = true)]
    gb_per_day: Option<f64>,

    /// State of the drive: new, filled in order, or steady under the workload
    #[arg(long, value_name = "STATE", default_value = "steady", value_parser = state)]
    state: State,

    /// Simulate a smaller drive, over-provisioned alike: faster, and nearly the same
    #[arg(long, value_parser = size, value_name = "SIZE", allow_hyphen_values = true)]
    scaled: Option<u64>,

    /// Bytes of the drive that are used [default: all]
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

fn gigabytes(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.001..=1e9).contains(number));
    number.ok_or_else(|| format!("'{text}' is no number of GB a day: give one like 20"))
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
    let (source, mut remarks) = Source::find(&args.workload, &asked)?;
    args.refuse_what_has_no_place(&source)?;
    let inputs = [Path::new(&args.workload), Path::new(&args.profile)];
    let opened = args.documents.open(&inputs)?;
    if args.json && opened.uses_stdout() {
        let what = "--json and a report both want stdout: give the report a file";
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let options = Options {
        state: args.state,
        seed: args.seed,
        bytes_per_day: args.gb_per_day.map(|gb| gb * 1e9),
        scaled_bytes: args.scaled,
    };
    // Before the data is measured, which may take long, what it is for must be possible.
    let size_bytes = spec_of(&profile, &Data::none(), &options)?.size_bytes();
    let cases = source.cases(size_bytes, &asked)?;
    let interrupt = Interrupt::catch()?;
    let data = match (&args.data, args.saved) {
        (Some(path), _) => Data::of_path(path, profile.controller.codec())?,
        (None, saved) => Data::saved(saved.unwrap_or(Saving::NONE)),
    };
    let mut shown = Shown::new();
    let made = forecast(&profile, &data, &cases, &options, &mut shown, interrupt.flag());
    shown.bar.finish_and_clear();
    let Some(mut made) = made? else {
        super::say_error("interrupted: there is no forecast");
        return Ok(Outcome::Code(2));
    };
    remarks.append(&mut made.remarks);
    made.remarks = remarks;
    let uses_stdout = opened.uses_stdout();
    if !opened.is_none() {
        opened.write(&made.document(), &made.table())?;
    }
    match (args.json, uses_stdout) {
        (true, _) => print_json(&made)?,
        (false, false) => print(&made.summary().to_text())?,
        (false, true) => {}
    }
    Ok(Outcome::Good)
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

    /// Options that a workload of this kind would not heed.
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

/// Progress on stderr.
struct Shown {
    bar: ProgressBar,
}

impl Shown {
    fn new() -> Self {
        let style = ProgressStyle::with_template("{msg} [{human_pos} requests, {per_sec}]");
        let bar = ProgressBar::no_length().with_style(style.expect("a constant template"));
        Self { bar }
    }
}

impl Watch for Shown {
    fn begins(&mut self, what: String, requests: u64) {
        self.bar.reset();
        self.bar.set_length(requests);
        self.bar.set_message(what);
    }

    fn goes_on(&mut self, requests: u64) {
        self.bar.inc(requests);
    }
}
