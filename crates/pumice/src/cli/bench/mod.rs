//! `pumice bench`: measures a target with data of exactly known compressibility.
//!
//! * `detect`: whether the target compresses, instead of how fast it is.
//! * `dry`: what would be done, and how long it would take.
//! * `show`: progress, and what is printed at the end.

mod detect;
mod dry;
mod show;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use self::show::Shown;
use super::signals::Interrupt;
use super::{Outcome, print, print_json, size, whole_number};
use pumice_bench::interop::fio_job;
use pumice_bench::payload::{KindName, Saving};
use pumice_bench::runner::End;
use pumice_bench::target::Location;
use pumice_bench::workload::{
    Cache, Changes, DEPTH_MAX, Flush, Operation, Order, PRESETS, Pattern, Preset, THREADS_MAX,
};
use pumice_bench::{Benchmark, FileSink, Finished, Resumption};
use pumice_drive::base::Result;
use pumice_report::Document;

/// Measure a target with data of exactly known compressibility
///
/// Runs the tests of a preset at every level of compressibility, round after round, and writes
/// every run to a file of results, for `pumice report` and `pumice compare`. What the data saves is
/// measured before the first run.
///
/// TARGET is a file (made, and removed at the end), a folder (a file in it), a block device,
/// drive:PATH (a Pumice drive, opened in this process), an NBD URI, or sim:PROFILE (a drive in
/// virtual time, see pumice drives; with conditions of a host as docs/bench.md lists them, such as
/// sim:PROFILE?cache_bytes=1GiB for a page cache). What holds anything is refused unless
/// --destroy-data is given; what is mounted or has partitions is refused always.
///
/// Presets (pumice bench --list says what each one does):
///   compressibility      the default: how a target reacts to the data
///   iozone-throughput    iozone-iops    crystaldiskmark    as-ssd    atto    iometer    copy
///   snia-iops            wsat
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
#[command(after_help = "\
Examples:
  pumice bench /mnt/disk
  pumice bench /dev/sdX --preset iozone-iops --destroy-data
  pumice bench drive:drive.pumice --destroy-data --saved 90% --saved 10% --runs 10
  pumice bench sim:micro-center-64
  pumice bench /mnt/disk --preset my.toml --dry-run
  pumice bench /mnt/disk --detect-compression
  pumice bench /mnt/disk --output result.jsonl; pumice report result.jsonl --html page.html")]
pub(crate) struct Args {
    /// File, folder, block device, drive:PATH, NBD URI or sim:PROFILE
    #[arg(required_unless_present = "list")]
    target: Option<String>,

    /// Name of a preset, or a file with one
    #[arg(long, value_name = "NAME", default_value = PRESETS[0].0)]
    preset: String,

    /// List the presets
    #[arg(long)]
    list: bool,

    /// Three runs of a second at most, over 256 MiB
    #[arg(long)]
    quick: bool,

    /// Runs of each test at each level
    #[arg(long, value_name = "NUMBER", value_parser = up_to(1000), allow_negative_numbers = true)]
    runs: Option<u32>,

    /// Go on until the mean is known this well, half its 95 % interval in per cent of it
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    precision: Option<Saving>,

    /// Runs at most with --precision [default: three times --runs]
    #[arg(long, value_name = "NUMBER", value_parser = up_to(1000), allow_negative_numbers = true)]
    runs_max: Option<u32>,

    /// Seconds of tests that end with time
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    seconds: Option<f64>,

    /// Seconds that they run before they are measured
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    warm_up: Option<f64>,

    /// Bytes of the target that are used
    #[arg(long, value_parser = size, value_name = "SIZE", allow_hyphen_values = true)]
    span: Option<u64>,

    /// Where they begin: 32256 is the 63rd sector, where old partitions begin
    #[arg(long, value_parser = size, value_name = "SIZE", allow_hyphen_values = true)]
    shift: Option<u64>,

    /// Requests in flight of each thread
    #[arg(long, value_name = "NUMBER", value_parser = up_to(DEPTH_MAX),
        allow_negative_numbers = true)]
    depth: Option<u32>,

    /// Threads
    #[arg(long, value_name = "NUMBER", value_parser = up_to(THREADS_MAX),
        allow_negative_numbers = true)]
    threads: Option<u32>,

    /// Record size in place of the tests' own; may be repeated
    #[arg(long = "record", value_parser = size, value_name = "SIZE", allow_hyphen_values = true)]
    records: Vec<u64>,

    /// These operations of the preset only; may be repeated
    #[arg(long = "operation", value_name = "NAME", value_parser = operation)]
    operations: Vec<Operation>,

    /// Data of which so much is saved, in place of the preset's levels; may be repeated
    #[arg(long = "saved", value_name = "SHARE", allow_hyphen_values = true)]
    saved: Vec<Saving>,

    /// Kind of data, as in pumice payload; may be repeated [default with --saved: exact]
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<KindName>,

    /// Share of data that repeats earlier data
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    duplicates: Option<Saving>,

    /// Around the page cache
    #[arg(long, conflicts_with = "buffered")]
    direct: bool,

    /// Through the page cache
    #[arg(long)]
    buffered: bool,

    /// What the page cache holds before a run: dropped or warm
    #[arg(long, value_name = "STATE", value_parser = word::<Cache>)]
    cache: Option<Cache>,

    /// The flush at the end: timed, untimed or each-write
    #[arg(long, value_name = "WHEN", value_parser = word::<Flush>)]
    flush: Option<Flush>,

    /// Where random requests go: uniform, once, 80/20, zipf or zipf:EXPONENT
    #[arg(long, value_name = "PATTERN", value_parser = word::<Pattern>)]
    pattern: Option<Pattern>,

    /// Order of levels in a round: shuffled or given
    #[arg(long, value_name = "ORDER", value_parser = word::<Order>)]
    order: Option<Order>,

    /// Other seeds give other data, addresses and orders
    #[arg(long, value_name = "NUMBER", value_parser = whole_number, allow_negative_numbers = true)]
    seed: Option<u64>,

    /// File for the results, must not exist [default: the first free of PRESET-1.jsonl, ...]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Go on with the benchmark of this file, which says what is done
    #[arg(long, value_name = "FILE", conflicts_with_all = ["preset", "output", "dry_run",
        "fio_job", "quick", "runs", "precision", "runs_max", "seconds", "warm_up", "span", "shift",
        "depth", "threads", "records", "operations", "saved", "kinds", "duplicates", "direct",
        "buffered", "cache", "flush", "pattern", "order", "seed"])]
    resume: Option<PathBuf>,

    /// Find out whether the target compresses or deduplicates, from reported usage, counters and
    /// speed, instead of running a preset; of --span, 8M or more [default: 64M]
    #[arg(long, conflicts_with_all = ["preset", "resume", "dry_run", "fio_job", "output", "quick",
        "runs", "precision", "runs_max", "seconds", "warm_up", "shift", "depth", "threads",
        "records", "operations", "saved", "kinds", "duplicates", "cache", "flush", "pattern",
        "order"])]
    detect_compression: bool,

    /// Print a job for fio that does the same, as far as fio can, and do nothing
    #[arg(long, conflicts_with = "dry_run")]
    fio_job: bool,

    /// Say what would be done, how long it takes and what is written, and do nothing
    #[arg(long)]
    dry_run: bool,

    /// Whatever the target holds may be overwritten
    #[arg(long)]
    destroy_data: bool,

    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// Reads a count from 1 to `most`.
pub(super) fn up_to(most: u32) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(most))
}

/// Reads seconds; how many make sense is the plan's to say.
fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|seconds| (0.0..f64::INFINITY).contains(seconds));
    number.ok_or_else(|| format!("'{text}' is no time: give a number of seconds, like 0.5"))
}

/// Reads what serde knows by one word.
pub(super) fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    use serde::de::IntoDeserializer;
    use serde::de::value::Error as WordError;
    T::deserialize(IntoDeserializer::<WordError>::into_deserializer(text)).map_err(|error| {
        let text = error.to_string();
        match text.split_once(", expected ") {
            Some((_, known)) => format!("give {}", known.replace('`', "")),
            None => text,
        }
    })
}

pub(super) fn operation(text: &str) -> Result<Operation, String> {
    word(text).map_err(|_| {
        let names = Operation::ALL.map(Operation::name);
        let near = pumice_drive::base::near::nearest(text, &names);
        let hint = near.map_or(".".into(), |near| format!(", did you mean {near}?"));
        format!("no operation is called {text}{hint} Operations: {}", names.join(", "))
    })
}

/// Runs the subcommand.
///
/// # Errors
/// The options, the preset and the target do not fit together; the target's errors.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    if args.list {
        return print(&list()?).map(|()| Outcome::Good);
    }
    let target = args.target.as_deref().expect("required unless listed");
    let location = Location::parse(target)?;
    if args.detect_compression {
        return detect::run(args, &location);
    }
    if let Some(path) = &args.resume {
        return resume(args, &location, path);
    }
    let preset = Preset::load(&args.preset)?;
    let mut plan = preset.plan(&args.changes())?;
    if plan.direct || !location.is_made() {
        let left_out = plan.leave_out_stdio();
        let names: Vec<_> = left_out.into_iter().map(Operation::name).collect();
        if !names.is_empty() {
            let names = names.join(", ");
            super::say_error(&format!("left out: {names}, which need a file and the page cache"));
        }
        plan.check()?;
    }
    if args.fio_job {
        return print(&fio_job(&plan, target)).map(|()| Outcome::Good);
    }
    if args.dry_run {
        if args.json {
            return print_json(&plan).map(|()| Outcome::Good);
        }
        return print(&dry::text(&plan, target)).map(|()| Outcome::Good);
    }
    let interrupt = Interrupt::catch()?;
    let path = args.output(&args.preset);
    let benchmark = Benchmark {
        title: args.preset.clone(),
        about: preset.about,
        plan,
        destroy: args.destroy_data,
        begun_unix_s: unix_seconds(),
    };
    let mut shown = Shown::new(FileSink::new(path.clone()), 0);
    let ended = benchmark.run(&location, interrupt.flag(), &mut shown);
    conclude(args, &location, &path, &shown, ended)
}

/// Continues an interrupted benchmark.
fn resume(args: &Args, location: &Location, path: &Path) -> Result<Outcome> {
    let interrupt = Interrupt::catch()?;
    let (file, results) = FileSink::resume(path.to_owned())?;
    let mut shown = Shown::new(file, results.runs.len());
    let resumption = Resumption { results, destroy: args.destroy_data };
    let ended = resumption.run(location, interrupt.flag(), &mut shown);
    conclude(args, location, path, &shown, ended)
}

/// Prints the outcome of a benchmark.
fn conclude(
    args: &Args,
    location: &Location,
    path: &Path,
    shown: &Shown,
    ended: pumice_bench::Result<Finished>,
) -> Result<Outcome> {
    shown.finish();
    let file = path.display();
    let kept = match shown.kept() {
        Some(1) => "1 run is".to_owned(),
        kept => format!("{} runs are", kept.unwrap_or(0)),
    };
    match ended {
        Err(error) if shown.kept().is_none() => Err(error.into()),
        Err(error) => {
            let what = format!("{location}: the benchmark failed; {kept} in {file}");
            Err(error.context(what).into())
        }
        Ok(Finished { end: End::Stopped, .. }) => {
            super::say_error(&format!(
                "interrupted: {kept} in {file}; continue with --resume {file}"
            ));
            Ok(Outcome::Code(2))
        }
        Ok(Finished { end: End::Complete, results }) => {
            show::summary(&results, path, args.json)?;
            Ok(Outcome::Good)
        }
    }
}

/// Seconds since 1970.
#[allow(clippy::disallowed_methods, reason = "results have a date")]
pub(super) fn unix_seconds() -> u64 {
    // A clock before 1970 is as good as none.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Every preset and what it does.
fn list() -> Result<String> {
    let about = |(name, _)| Ok((name, Preset::load(name)?.about));
    let presets = PRESETS.into_iter().map(about).collect::<Result<Vec<_>>>()?;
    let mut document = Document::default();
    document.section("").pairs(presets);
    Ok(document.to_text())
}

impl Args {
    fn changes(&self) -> Changes {
        Changes {
            quick: self.quick,
            runs: self.runs,
            runs_max: self.runs_max,
            precision_percent: self.precision.map(Saving::percent),
            seconds: self.seconds,
            warm_up_seconds: self.warm_up,
            span_bytes: self.span,
            shift_bytes: self.shift,
            depth: self.depth,
            threads: self.threads,
            records: self.records.clone(),
            operations: self.operations.clone(),
            saved: self.saved.clone(),
            kinds: self.kinds.clone(),
            duplicates: self.duplicates,
            direct: self.direct.then_some(true).or(self.buffered.then_some(false)),
            cache: self.cache,
            flush: self.flush,
            pattern: self.pattern,
            order: self.order,
            seed: self.seed,
        }
    }

    /// Where the results go.
    fn output(&self, preset: &str) -> PathBuf {
        if let Some(path) = &self.output {
            return path.clone();
        }
        let stem = Path::new(preset).file_stem().unwrap_or_default().to_string_lossy();
        let names = (1u64..).map(|number| PathBuf::from(format!("{stem}-{number}.jsonl")));
        names.into_iter().find(|path| !path.exists()).expect("there are more names than files")
    }
}
