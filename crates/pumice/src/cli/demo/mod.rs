//! `pumice demo`: compares a drive that compresses with the same drive without compression and with
//! a published drive, in one command.
//!
//! ```text
//! two drives, lz4 and none: in a temporary folder, on flash of 2011        (`drive`)
//!   -> a sample of real files: written, read back and compared on each     (`sample`, `files`)
//!   -> data of several compressibilities and kinds, written to both in turns  (`speed`)
//!   -> close both drives, check them, remove them
//!   -> headline, verdict and one chart, on the terminal and on a page        (`show`)
//! ```
//!
//! * `published`: the results of 2011.
//!
//! The demo removes the folder and the drives when it ends, even after Ctrl-C: a signal ends the
//! run at the next request, and cleanup is the same as after any error.

mod drive;
mod files;
mod published;
mod sample;
mod show;
mod speed;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;

use self::drive::Drives;
use self::files::Line;
use self::published::Published;
use self::sample::Sample;
use self::speed::{Cell, Measured};
use super::values::up_to;
use super::{Outcome, output, print, print_schema, size};
use pumice_drive::base::ErrorKind;
use pumice_drive::base::units::format_size;

/// Bytes of one write of real data.
const CHUNK_BYTES: usize = 1 << 20;

/// Size of each disk: space for the sample and for data that overwrites it many times.
const DISK_BYTES: u64 = 512 << 20;

/// Maximum of the sample.
const SAMPLE_BYTES_MAX: u64 = 256 << 20;

/// Space that each drive may take in the temporary folder: its disk, a fifth for its log, and the
/// sample.
const DRIVE_BYTES: u64 = 768 << 20;

/// Compare a drive with and without compression, on real and synthetic data
///
/// Creates two drives in a temporary folder, one with LZ4 and one without compression, limited to
/// the speed of the flash and the link of a published drive of 2011, regardless of the disk. Writes
/// a sample of the files of a folder to each, reads it back and compares it, then writes data of
/// several compressibilities to both in turns. Takes about a minute. Only the page is kept.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice demo
  pumice demo ~/documents
  pumice demo --scratch /dev/shm")]
pub(crate) struct Args {
    /// Folder with the real data
    #[arg(default_value = "/usr")]
    path: PathBuf,

    /// Amount of real data, up to 256M
    #[arg(long, value_parser = size, default_value = "64M", value_name = "SIZE")]
    bytes: u64,

    /// Folder for the drives [default: $TMPDIR, or /var/tmp]
    #[arg(long, value_name = "FOLDER")]
    scratch: Option<PathBuf>,

    /// Runs of each kind of data on each drive; fewer than 6 cannot show a difference
    #[arg(long, value_name = "NUMBER", default_value = "8", value_parser = up_to(100),
        allow_negative_numbers = true)]
    rounds: u32,

    /// HTML page with all results; an existing file is overwritten
    #[arg(long, value_name = "FILE", default_value = "pumice-demo.html")]
    page: PathBuf,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DemoResult {
    /// All kinds of data on both drives.
    cells: Vec<Cell>,
    /// The sample on the drive that compresses and on the other.
    files: [Line; 2],
    /// Bytes of all files from which the sample was drawn.
    files_bytes: u64,
    /// Share of the operations for which the disk below took longer than the limit.
    late_share: f64,
    /// Rounds of the benchmark.
    rounds: u32,
    /// Writes of the published drive.
    published: [Published; 2],
}

/// The folders that the demo uses.
struct Source<'a> {
    /// The folder with the real data.
    folder: &'a Path,
    /// The folder of the drives.
    scratch: &'a Path,
    page: &'a Path,
}

/// A defect of the drive: the demo ran and found a problem.
#[derive(Debug)]
struct Defect(String);

impl std::fmt::Display for Defect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Defect {}

/// Runs the subcommand.
///
/// # Errors
/// A drive cannot be created or served, or the demo was interrupted.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    if args.bytes > SAMPLE_BYTES_MAX {
        bail!("--bytes is above 256M: the sample is kept in memory");
    }
    let interrupted = crate::signals::flag()?;
    let scratch = args.scratch.clone().unwrap_or_else(|| {
        std::env::var_os("TMPDIR").map_or_else(|| "/var/tmp".into(), PathBuf::from)
    });
    let source = Source { folder: &args.path, scratch: &scratch, page: &args.page };
    let result = compare(args, &source, &interrupted);
    if interrupted.load(Ordering::Relaxed) {
        bail!("interrupted: the temporary drives were removed");
    }
    match result {
        Ok(shown) if args.json => print_schema("demo-1", &shown)?,
        Ok(shown) => {
            let text = show::text(&shown, &source, output::columns());
            print(&format!("{text}\nThe chart and all results: {}\n", args.page.display()))?;
        }
        Err(error) if is_defect(&error) => {
            super::say_error(&super::chain(&error));
            return Ok(Outcome::Problem);
        }
        Err(error) => return Err(error),
    }
    Ok(Outcome::Good)
}

/// Whether the demo or the drive found damaged data.
fn is_defect(error: &anyhow::Error) -> bool {
    let drive_error = error.downcast_ref::<pumice_drive::base::Error>();
    error.is::<Defect>() || drive_error.is_some_and(|error| error.kind() == ErrorKind::Corrupt)
}

/// Runs the whole demo, and writes the page.
fn compare(args: &Args, source: &Source<'_>, interrupted: &AtomicBool) -> Result<DemoResult> {
    let scratch = source.scratch;
    let folder = tempfile::Builder::new().prefix("pumice-demo-").tempdir_in(scratch);
    let folder =
        folder.with_context(|| format!("cannot create a folder in {}", scratch.display()))?;
    check_space(folder.path())?;
    let bar = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{spinner} {bytes} {bytes_per_sec} {wide_msg}");
    bar.set_style(style.expect("a constant template"));
    bar.set_message(format!("drawing a sample of the files of {}", args.path.display()));
    bar.tick();
    let Sample { bytes, files_bytes } = Sample::draw(&args.path, args.bytes, interrupted)?;
    let sample = folder.path().join("sample");
    std::fs::write(&sample, &bytes).context("cannot write to the temporary folder")?;
    let drives = Drives::start(folder.path())?;
    let files = files::real_data(&drives, &args.path, &bytes, interrupted, &bar)?;
    drop(bytes);
    let uris = drives.sides.each_ref().map(|side| side.uri.clone());
    let real = (&*sample, &*args.path);
    let measuring = || speed::run(uris, folder.path(), real, args.rounds, interrupted, &bar);
    let Measured { cells, results } = drives.serve_during(measuring)?;
    bar.set_message("checking every checksum of both drives");
    let late_share = drives.finish()?;
    bar.finish_and_clear();
    let (rounds, published) = (args.rounds, published::WRITES);
    let shown = DemoResult { cells, files, files_bytes, late_share, rounds, published };
    show::page(&shown, &results, source)?;
    Ok(shown)
}

/// Checks that the file system has space for both drives and the sample.
fn check_space(folder: &Path) -> Result<()> {
    let space = rustix::fs::statvfs(folder)
        .with_context(|| format!("cannot query the free space of {}", folder.display()))?;
    let (free, needed) = (space.f_bavail * space.f_frsize, 2 * DRIVE_BYTES + SAMPLE_BYTES_MAX);
    if free < needed {
        bail!(
            "{} has {} free, but the demo needs {}: use --scratch to name another folder",
            folder.display(),
            format_size(free),
            format_size(needed)
        );
    }
    Ok(())
}
