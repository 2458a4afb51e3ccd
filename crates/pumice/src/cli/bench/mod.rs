//! `pumice bench`: measures a target with data of known compressibility.
//!
//! * `describe`: facts from servers about the drive of a target.
//! * `detect`: finds out whether the target compresses, instead of how fast it is.
//! * `dry`: the plan and its duration.
//! * `hosts`: runs the tests on several hosts at once.
//! * `measure`: runs the tests, or the rest of them.
//! * `show`: progress and the summary.

mod describe;
mod detect;
mod dry;
mod hosts;
mod measure;
mod show;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::key_args::KeyArgs;
use super::output::columns;
use super::values::{seconds, span, up_to, whole_number, word};
use super::{Outcome, print, size};
use pumice_bench::payload::{KindName, Saving};
use pumice_bench::target::Location;
use pumice_bench::workload::{
    Cache, Changes, DEPTH_MAX, Ends, Flush, Operation, Order, PRESETS, Pattern, Preset, THREADS_MAX,
};
use pumice_report::Document;

/// Measure a target with data of known compressibility
///
/// Runs the tests of a preset at every level of compressibility, in several rounds, and writes
/// every run to a result file, for `pumice report` and `pumice compare`. The compressibility of the
/// data is measured before the first run.
///
/// Several targets take turns: each run is followed by the same run on the next target, so that any
/// change on the machine affects all of them alike. The others are compared with the first, pair by
/// pair. That detects smaller differences than a comparison of two sessions does.
///
/// TARGET is a file (created, and removed at the end), a folder (a file in it), a block device,
/// drive:PATH (a Pumice drive, opened in this process), an NBD URI, or sim:PROFILE (a simulated
/// drive in virtual time, see pumice drives; docs/measuring.md lists options for the simulated
/// host, such as sim:PROFILE?cache_bytes=1GiB for a page cache). A target that contains data is
/// refused unless --destroy-data is given. A device that is mounted or has partitions is always
/// refused if the tests write.
///
/// With --hosts, several machines run the tests at the same time, like the clients of one server.
///
/// Presets (see pumice bench --list for descriptions):
///   compressibility      the default: how a target reacts to the data
///   crystaldiskmark      crystaldiskmark-sizes    crystaldiskmark-8    crystaldiskmark-8-nvme
///   iozone-throughput    iozone-iops        atto       queue-depth
///   as-ssd               as-ssd-compression hd-tune    copy    copy-paste
///   iometer              iometer-patterns
///   snia-iops            snia-tp            snia-lat   wsat
///
/// A preset file is in TOML, a job file of fio, or a configuration of Iometer (.icf) with access
/// specifications. A fio option that pumice lacks and that would change the measurement is an
/// error; other differences are printed. Without TARGET the job's filename is used.
///
/// Tests that only read existing data (hd-tune, or --operation access-read) write nothing, and also
/// run on a device that is mounted or has partitions, a file, and a read-only export. Tests that
/// copy files need a folder.
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
#[command(after_help = "\
Examples:
  pumice bench /mnt/disk
  pumice bench /mnt/disk /mnt/other-disk --label old --label new
  pumice bench /dev/sdX --preset iozone-iops --destroy-data
  pumice bench drive:drive.pumice --destroy-data --saved 90% --saved 10% --runs 10
  pumice bench sim:micro-center-64
  pumice bench /mnt/disk --preset my.toml --dry-run
  pumice bench /mnt/disk --preset job.fio
  pumice bench /mnt/disk --preset iozone-iops --span 2xmem --buffered
  pumice bench /mnt/disk --detect-compression
  pumice bench --hosts alpha,beta nbd://server/disk --destroy-data
  pumice bench /dev/sda --preset hd-tune
  pumice bench /mnt/disk --preset copy-paste --span 4G
  pumice bench /mnt/disk --output result.jsonl; pumice report result.jsonl --html page.html")]
pub(crate) struct Args {
    /// Files, folders, block devices, drive:PATH, NBD URIs or sim:PROFILE, which take turns
    #[arg(required_unless_present_any = ["list", "preset", "agent"], value_name = "TARGET")]
    targets: Vec<String>,

    /// Name of the target in reports, in the order of the targets; may be repeated
    #[arg(long = "label", value_name = "NAME", conflicts_with = "resume")]
    labels: Vec<String>,

    /// Name of a preset, or a preset file, a fio job file or an Iometer configuration
    #[arg(long, value_name = "NAME", default_value = PRESETS[0].0)]
    preset: String,

    /// List the presets
    #[arg(long)]
    list: bool,

    /// Run each test at most four times, for at most one second, over 256 MiB
    #[arg(long)]
    quick: bool,

    /// Number of runs of each test at each level
    #[arg(long, value_name = "NUMBER", value_parser = up_to(1000), allow_negative_numbers = true)]
    runs: Option<u32>,

    /// Repeat until the half-width of the 95 % confidence interval is below this share of the mean
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    precision: Option<Saving>,

    /// Maximum number of runs with --precision [default: three times --runs]
    #[arg(long, value_name = "NUMBER", value_parser = up_to(1000), allow_negative_numbers = true)]
    runs_max: Option<u32>,

    /// Duration of each time-based test, in seconds or with a unit, such as 2min
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    seconds: Option<f64>,

    /// Time that each time-based test runs before it is measured, in seconds or with a unit
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    warm_up: Option<f64>,

    /// Size of the part of the target that is used, or a multiple of the memory such as 2xmem
    #[arg(long, value_parser = span, value_name = "SIZE", allow_hyphen_values = true)]
    span: Option<u64>,

    /// Starting offset within the target, such as 32256 (sector 63) for old partitions
    #[arg(long, value_parser = size, value_name = "SIZE", allow_hyphen_values = true)]
    shift: Option<u64>,

    /// Number of requests in flight per thread
    #[arg(long, value_name = "NUMBER", value_parser = up_to(DEPTH_MAX),
        allow_negative_numbers = true)]
    depth: Option<u32>,

    /// Number of threads
    #[arg(long, value_name = "NUMBER", value_parser = up_to(THREADS_MAX),
        allow_negative_numbers = true)]
    threads: Option<u32>,

    /// Record size, instead of the record sizes of the tests; may be repeated
    #[arg(long = "record", value_parser = size, value_name = "SIZE", allow_hyphen_values = true)]
    records: Vec<u64>,

    /// Run only this operation of the preset; may be repeated
    #[arg(long = "operation", value_name = "NAME", value_parser = operation)]
    operations: Vec<Operation>,

    /// Compressibility of the test data, as the share of space saved, instead of the preset's
    /// levels; may be repeated
    #[arg(long = "saved", value_name = "SHARE", allow_hyphen_values = true)]
    saved: Vec<Saving>,

    /// Kind of test data, see pumice payload; may be repeated [default with --saved: exact]
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<KindName>,

    /// Share of the test data that duplicates earlier data
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    duplicates: Option<Saving>,

    /// Bypass the page cache (O_DIRECT)
    #[arg(long, conflicts_with = "buffered")]
    direct: bool,

    /// Use buffered I/O
    #[arg(long)]
    buffered: bool,

    /// State of the page cache before each run: dropped or warm
    #[arg(long, value_name = "STATE", value_parser = word::<Cache>)]
    cache: Option<Cache>,

    /// When to flush: timed or untimed (at the end of each test), or each-write
    #[arg(long, value_name = "WHEN", value_parser = word::<Flush>)]
    flush: Option<Flush>,

    /// Distribution of random requests: uniform, once, 80/20, zipf or zipf:EXPONENT
    #[arg(long, value_name = "PATTERN", value_parser = word::<Pattern>)]
    pattern: Option<Pattern>,

    /// When a test ends: usual (the span if it is sequential, --seconds if it is random), time,
    /// span (random tests make one request per record of the span), or first of both
    #[arg(long, value_name = "WHAT", value_parser = word::<Ends>)]
    ends: Option<Ends>,

    /// Order of the levels in each round: shuffled or given
    #[arg(long, value_name = "ORDER", value_parser = word::<Order>)]
    order: Option<Order>,

    /// Random seed of the data, addresses and orders
    #[arg(long, value_name = "NUMBER", value_parser = whole_number, allow_negative_numbers = true)]
    seed: Option<u64>,

    /// Result file, which must not exist [default: the first unused name of PRESET-1.jsonl, ...]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Continue the benchmark of this result file, with the options recorded in it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["preset", "output", "dry_run",
        "fio_job", "quick", "runs", "precision", "runs_max", "seconds", "warm_up", "span", "shift",
        "depth", "threads", "records", "operations", "saved", "kinds", "duplicates", "direct",
        "buffered", "cache", "flush", "pattern", "ends", "order", "seed"])]
    resume: Option<PathBuf>,

    /// Detect whether the target compresses or deduplicates, from its reported usage, counters and
    /// speed, instead of running a preset; uses --span bytes, at least 8M [default: 64M]
    #[arg(long, conflicts_with_all = ["preset", "resume", "dry_run", "fio_job", "output", "quick",
        "runs", "precision", "runs_max", "seconds", "warm_up", "shift", "depth", "threads",
        "records", "operations", "saved", "kinds", "duplicates", "cache", "flush", "pattern",
        "ends", "order"])]
    detect_compression: bool,

    /// Print an equivalent fio job, as far as fio supports it, and exit
    #[arg(long, conflicts_with = "dry_run")]
    fio_job: bool,

    /// Run the benchmark on these hosts at the same time; they reach TARGET under the same name: an
    /// NBD export, which is divided among them, or a file or device of each host. They need the
    /// same version of pumice and passwordless ssh logins
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', help_heading = "Several hosts",
        conflicts_with_all = ["resume", "detect_compression", "fio_job", "precision"])]
    hosts: Vec<String>,

    /// Command that runs a program on a host, as words separated by spaces; the host and the
    /// program are appended [default: ssh with options for batch use]
    #[arg(
        long,
        value_name = "COMMAND",
        env = "PUMICE_SSH",
        hide_env_values = true,
        help_heading = "Several hosts"
    )]
    ssh: Option<String>,

    /// Path of pumice on the hosts
    #[arg(long, value_name = "PATH", default_value = "pumice", help_heading = "Several hosts")]
    hosts_program: String,

    /// Take part in the benchmark of another machine, over stdin and stdout
    #[arg(long, hide = true, exclusive = true)]
    agent: bool,

    /// Print the plan, its duration and the amount of data written, and exit
    #[arg(long)]
    dry_run: bool,

    /// Allow overwriting existing data on the target
    #[arg(long)]
    destroy_data: bool,

    #[command(flatten)]
    keys: KeyArgs,

    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// Parses the name of an operation for clap.
pub(super) fn operation(text: &str) -> Result<Operation, String> {
    word(text).map_err(|_| {
        let names = Operation::ALL.map(Operation::name);
        let near = pumice_drive::base::near::nearest(text, &names);
        let hint = near.map_or(".".into(), |near| format!(", did you mean {near}?"));
        format!("unknown operation{hint} Operations: {}", names.join(", "))
    })
}

/// Runs the subcommand.
///
/// # Errors
/// The options, the preset and the target do not fit together, or the target fails.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    if args.list {
        print(&list()?)?;
        return Ok(Outcome::Good);
    }
    if args.agent {
        return hosts::serve();
    }
    if !args.hosts.is_empty() {
        return hosts::run(args);
    }
    let secret = args.keys.source()?.map(|source| source.secret()).transpose()?;
    let resumes = args.resume.is_some() || args.detect_compression;
    let preset = if resumes { None } else { Some(Preset::load(&args.preset)?) };
    let mut args = args.clone();
    if let (true, Some(preset)) = (args.targets.is_empty(), &preset) {
        let target = preset.target.clone();
        args.targets.push(target.with_context(|| format!("no TARGET to run {} on", args.preset))?);
    }
    let args = &args;
    let parsed = |target: &String| Ok(Location::parse(target)?.with_secret(secret.clone()));
    let locations: Vec<Location> = args.targets.iter().map(parsed).collect::<Result<_>>()?;
    if args.labels.len() > locations.len() {
        bail!("{} labels for {} targets", args.labels.len(), locations.len());
    }
    if args.detect_compression {
        let [location] = &locations[..] else { bail!("--detect-compression needs one target") };
        return detect::run(args, location);
    }
    if let Some(path) = &args.resume {
        return measure::resume(args, &locations, path);
    }
    measure::run(args, preset.expect("loaded unless it is resumed"), &locations)
}

/// Returns the presets and their descriptions.
fn list() -> Result<String> {
    let about = |(name, _)| Ok((name, Preset::load(name)?.about));
    let presets = PRESETS.into_iter().map(about).collect::<Result<Vec<_>>>()?;
    let mut document = Document::default();
    document.section("").pairs(presets);
    Ok(document.to_text_within(columns()))
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
            whole_bytes: None,
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
            ends: self.ends,
            order: self.order,
            seed: self.seed,
        }
    }

    /// Returns the path of the result file.
    fn output(&self, preset: &str) -> PathBuf {
        if let Some(path) = &self.output {
            return path.clone();
        }
        let stem = Path::new(preset).file_stem().unwrap_or_default().to_string_lossy();
        let names = (1u64..).map(|number| PathBuf::from(format!("{stem}-{number}.jsonl")));
        names.into_iter().find(|path| !path.exists()).expect("there are more names than files")
    }
}
