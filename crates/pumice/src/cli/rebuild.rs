//! `pumice rebuild`: creates a new drive from the remains of a damaged one.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use futures_util::future::{Either, select};
use indicatif::ProgressBar;
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::clone;
use super::key_args::KeyArgs;
use super::output::counted;
use super::{Outcome, print, print_schema, size};
use crate::environment;
use crate::keys;
use crate::open::{self, media};
use crate::signals::Interrupt;
use crate::storage::{Access, Storage};
use pumice_drive::base::Clock;
use pumice_drive::base::units::{BLOCK_BYTES, format_size};
use pumice_drive::codec::Codec;
use pumice_drive::controller::{
    DamagedDrive, Drive, Extracted, Finder, Identity, Problem, RebuiltFrom, Spec, complete_target,
    copy_into, create_target,
};
use pumice_drive::crypt::Cipher;
use pumice_drive::media::AnyMedium;
use pumice_drive::media::file::FileMedium;
use pumice_drive::runtime::{Backend, Runtime};

/// Maximum number of problems that are listed; the rest are only counted.
const PROBLEMS_LISTED_MAX: usize = 10_000;

/// Maximum number of runs of missing batches that are listed.
const MISSING_LISTED_MAX: usize = 100;

/// Interval at which Ctrl-C is checked.
const INTERRUPT_NS: u64 = 100_000_000;

/// Create a new drive from the remains of one that no longer opens
///
/// Works without superblocks and checkpoints, from the segments alone. SOURCE is only read. Blocks
/// whose newest content is damaged read as zeroes on TARGET; they are listed, with exit code 1. The
/// segments alone do not show which blocks were trimmed, or filled with one byte, some time ago:
/// such blocks may hold their old content again, or read as zeroes. The maximum number of these
/// blocks is reported. Nor do they show that the disk was rolled back to a snapshot: without a
/// later checkpoint, blocks may hold data that was written before the rollback.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice rebuild broken.pumice new.pumice
  pumice rebuild /dev/sdx new.pumice --codec zstd:3 --json
  pumice rebuild broken.pumice new.pumice && pumice check new.pumice")]
pub(crate) struct Args {
    /// File or block device of the damaged drive
    source: PathBuf,

    /// File or block device for the new drive
    target: PathBuf,

    /// Overwrite existing data at the target, such as an incomplete rebuild
    #[arg(long)]
    force: bool,

    /// With --force: overwrite even a Pumice drive at the target, or the remains of one
    #[arg(long, requires = "force")]
    overwrite_drive: bool,

    /// Codec of the new drive [default: the old drive's, or lz4 if it is unknown]
    #[arg(long, value_name = "CODEC")]
    codec: Option<Codec>,

    /// Size of the log of the new drive [default: the old drive's]
    #[arg(long, value_parser = size, value_name = "SIZE")]
    capacity: Option<u64>,

    /// Drive to rebuild, if the source has segments of several drives
    #[arg(long, value_name = "UUID")]
    uuid: Option<Uuid>,

    #[command(flatten)]
    keys: KeyArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Summary {
    /// Identity of the drive that was read.
    source_uuid: Uuid,
    /// Identity of the new drive.
    uuid: Uuid,
    /// The structure from which the drive was rebuilt: superblock, checkpoint, log or records.
    from: &'static str,
    /// Size of the host's disk.
    size_bytes: u64,
    /// Bytes of data, including fills.
    data_bytes: u64,
    /// Blocks that are zeroes now because their content is damaged.
    lost_blocks: u64,
    /// Maximum number of blocks that were trimmed or filled and may hold old content again.
    doubtful_blocks: u64,
    /// Whether blocks without a remaining record may have been filled with one byte.
    fills_may_be_missing: bool,
    /// Runs of missing batches: the numbers of the first and the last.
    missing_batches: Vec<(u64, u64)>,
    /// Number of these runs.
    missing_run_count: u64,
    /// Whether unflushed writes were left out.
    unflushed_left_out: bool,
    /// The damage; at most 10,000 problems are listed.
    problems: Vec<Problem>,
    /// Number of problems.
    problem_count: u64,
    /// Seconds from reading the log to the end of the copy.
    seconds: f64,
}

/// Runs the subcommand.
///
/// # Errors
/// Nothing can be rebuilt, or the new drive cannot be created or written.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.keys.provide()?;
    refuse_same(&args.source, &args.target)?;
    let interrupt = Interrupt::catch()?;
    let runtime = Runtime::new(Backend::Auto)?;
    let mut source =
        open::medium(&runtime, &args.source, &Access { truncated: true, ..Access::new(true) })?;
    let identity = identity(&runtime, &mut source, args, &interrupt)
        .with_context(|| args.source.display().to_string())?;
    let Some(identity) = identity else { return Ok(interrupted(args)) };
    let source = source.into_shared();
    let spec = spec(&identity, args);
    // Encrypted data stays encrypted.
    let keys = (!source.cipher().is_plain()).then_some(&args.keys);
    let (spec, cipher) = super::create::with_keys_of(spec, keys, &args.target)?;
    if args.force && !args.overwrite_drive {
        crate::leftovers::refuse_drive(&args.target)?;
    }
    let origin = clone::list_rebuilt(&args.source, &args.target, &spec)?;
    let summary = onto_new_drive(&runtime, (&source, &identity), (&spec, cipher), args, &interrupt);
    if !matches!(summary, Ok(Some(_)))
        && let Some(origin) = origin
    {
        super::snapshot::forget_or_warn(&origin, spec.uuid);
    }
    match summary? {
        None => Ok(interrupted(args)),
        Some(summary) => report(&summary, args),
    }
}

/// Creates the new drive and copies the disk to it. Returns `None` if interrupted.
fn onto_new_drive(
    runtime: &Runtime,
    (source, identity): (&Rc<dyn AnyMedium>, &Identity),
    (spec, cipher): (&Spec, Cipher),
    args: &Args,
    interrupt: &Interrupt,
) -> Result<Option<Summary>> {
    let target = new_drive(runtime, spec, cipher, args)?;
    let bar = super::progress::bytes(identity.size_bytes());
    let work = rebuild(runtime, (source, &args.source), identity, (&target, &args.target), &bar);
    let watch = async {
        while !interrupt.came() {
            runtime.sleep_ns(INTERRUPT_NS).await;
        }
    };
    let ended = runtime.block_on(async {
        match select(std::pin::pin!(work), std::pin::pin!(watch)).await {
            Either::Left((summary, _)) => Some(summary),
            Either::Right(_) => None,
        }
    });
    bar.finish_and_clear();
    let summary = ended.map(|summary| {
        let summary = summary?;
        runtime.block_on(target.close()).with_context(|| args.target.display().to_string())?;
        Ok::<_, anyhow::Error>(summary)
    });
    runtime.drop_tasks();
    let summary = summary.transpose()?;
    drop(target);
    if summary.is_some() {
        complete(runtime, args)?;
    }
    Ok(summary)
}

/// Marks the new drive, which was closed, as complete.
fn complete(runtime: &Runtime, args: &Args) -> Result<()> {
    let medium = open::medium(runtime, &args.target, &Access::new(false))?;
    runtime.block_on(complete_target(&*medium)).with_context(|| args.target.display().to_string())
}

fn interrupted(args: &Args) -> Outcome {
    let target = args.target.display();
    super::say_error(&format!(
        "interrupted: the new drive {target} is incomplete: run the same command with --force again"
    ));
    Outcome::Code(2)
}

fn refuse_same(source: &Path, target: &Path) -> Result<()> {
    let of = |path| std::fs::metadata(path).map(|found| (found.dev(), found.ino(), found.rdev()));
    if let (Ok(source_id), Ok(target_id)) = (of(source), of(target))
        && source_id == target_id
    {
        bail!("{} is both source and target", source.display());
    }
    Ok(())
}

/// Finds the identity of the drive in its superblocks, or in the headers of its segments. Returns
/// `None` if interrupted.
fn identity(
    runtime: &Runtime,
    source: &mut Storage,
    args: &Args,
    interrupt: &Interrupt,
) -> Result<Option<Identity>> {
    if let Some(identity) = runtime.block_on(Identity::of_superblocks(&**source))?
        && args.uuid.is_none_or(|uuid| uuid == identity.uuid())
    {
        return Ok(Some(identity));
    }
    let file = File::open(&args.source).context("cannot read the source")?;
    let mut finder = Finder::new(args.uuid);
    let mut page = vec![0; BLOCK_BYTES];
    let mut offset = 0;
    while offset + page.len() as u64 <= media::bytes(source) {
        if interrupt.came() {
            return Ok(None);
        }
        // A page that cannot be read is treated as having no header.
        if file.read_exact_at(&mut page, offset).is_err() {
            page.fill(0);
        }
        offset = finder.look(offset, &page);
    }
    let identity = finder.result()?;
    if let Some(locked) = identity.locked() {
        source.set_cipher(keys::unlock_recovery(&locked, args.keys.source()?)?);
    }
    Ok(Some(identity))
}

/// Returns the specification of the new drive, which has an identity of its own.
fn spec(identity: &Identity, args: &Args) -> Spec {
    let spec = identity.spec(environment::new_identity(), args.codec);
    Spec {
        created_seconds: environment::unix_seconds(),
        capacity_bytes: args.capacity.or(spec.capacity_bytes),
        ..spec
    }
}

fn new_drive(runtime: &Runtime, spec: &Spec, cipher: Cipher, args: &Args) -> Result<Rc<Drive>> {
    let at_target = || args.target.display().to_string();
    let geometry = spec.geometry().with_context(at_target)?;
    FileMedium::create(&args.target, geometry.medium_bytes(), args.force)?;
    let medium = Rc::new(open::blank(runtime, &args.target)?.with_cipher(cipher));
    let opening = async {
        create_target(&*medium, spec).await?;
        Drive::open_target(medium, runtime.clock()).await
    };
    runtime.block_on(opening).with_context(at_target)
}

async fn rebuild(
    runtime: &Runtime,
    (source, source_path): (&Rc<dyn AnyMedium>, &Path),
    identity: &Identity,
    (target, path): (&Drive, &Path),
    bar: &ProgressBar,
) -> Result<Summary> {
    let begun_ns = runtime.now_ns();
    let damaged = DamagedDrive::open(source.clone(), runtime.clock(), identity.clone()).await;
    let mut damaged = damaged.with_context(|| source_path.display().to_string())?;
    let mut summary = Summary {
        source_uuid: identity.uuid(),
        uuid: target.uuid(),
        from: match damaged.rebuilt_from() {
            RebuiltFrom::Superblock => "superblock",
            RebuiltFrom::Checkpoint => "checkpoint",
            RebuiltFrom::Log => "log",
            RebuiltFrom::Records => "records",
        },
        size_bytes: identity.size_bytes(),
        data_bytes: 0,
        lost_blocks: 0,
        doubtful_blocks: 0,
        fills_may_be_missing: false,
        missing_batches: Vec::new(),
        missing_run_count: 0,
        unflushed_left_out: false,
        problems: Vec::new(),
        problem_count: 0,
        seconds: 0.0,
    };
    let mut parts = damaged.parts();
    loop {
        bar.set_position(parts.offset());
        let Some(part) = parts.next().await else { break };
        let copied = copy_into(&part, target).await;
        copied.with_context(|| path.display().to_string())?;
        summary.take(part);
    }
    drop(parts);
    let (problems, problem_count) = damaged.problems();
    let room = PROBLEMS_LISTED_MAX - summary.problems.len();
    summary.problems.extend(problems.iter().take(room).cloned());
    summary.problem_count += problem_count;
    summary.doubtful_blocks = damaged.doubtful_blocks();
    summary.fills_may_be_missing = damaged.has_missing_batches();
    summary.missing_batches = damaged.missing_batches();
    summary.missing_run_count = summary.missing_batches.len() as u64;
    summary.missing_batches.truncate(MISSING_LISTED_MAX);
    summary.unflushed_left_out = damaged.has_cut_batches();
    summary.seconds = (runtime.now_ns() - begun_ns) as f64 / 1e9;
    Ok(summary)
}

impl Summary {
    fn take(&mut self, part: Extracted<'_>) {
        match part {
            Extracted::Data { bytes, .. } => self.data_bytes += bytes.len() as u64,
            Extracted::Fill { byte: 0, .. } => {}
            Extracted::Fill { len, .. } => self.data_bytes += len,
            Extracted::Lost(problem) => {
                self.lost_blocks += problem.lba_count.unwrap_or(0);
                self.problem_count += 1;
                if self.problems.len() < PROBLEMS_LISTED_MAX {
                    self.problems.push(problem);
                }
            }
        }
    }

    /// Whether the new drive may differ from the old one.
    fn is_doubtful(&self) -> bool {
        self.problem_count > 0 || self.doubtful_blocks > 0 || self.fills_may_be_missing
    }

    fn text(&self, target: &Path) -> String {
        let mut text = super::check::list(&self.problems, self.problem_count);
        for (first, last) in &self.missing_batches {
            text += &format!(
                "batches {first} to {last} of the log are missing: garbage collection freed them, \
                 or their data is lost\n"
            );
        }
        let unlisted = self.missing_run_count - self.missing_batches.len() as u64;
        if unlisted > 0 {
            text += &format!("and {unlisted} more runs of batches\n");
        }
        if self.fills_may_be_missing {
            text += &format!(
                "no checkpoint could be used, and parts of the log are missing: up to {} blocks \
                 may have been trimmed or filled with one byte after they were written; blocks \
                 without a remaining record read as zeroes\n",
                self.doubtful_blocks
            );
        }
        if self.unflushed_left_out {
            text += "unflushed writes after a gap in the log were left out\n";
        }
        text + &format!(
            "rebuilt {} from the {}: size {}, {} of data in {:.1} s ({}/s), {} lost\n",
            target.display(),
            self.from,
            format_size(self.size_bytes),
            format_size(self.data_bytes),
            self.seconds,
            format_size((self.data_bytes as f64 / self.seconds.max(1e-3)) as u64),
            counted(self.lost_blocks, "block")
        )
    }
}

fn report(summary: &Summary, args: &Args) -> Result<Outcome> {
    if args.json {
        print_schema("rebuild-1", summary)?;
    } else {
        print(&summary.text(&args.target))?;
    }
    Ok(if summary.is_doubtful() { Outcome::Problem } else { Outcome::Good })
}
