//! `pumice demo`: compares a drive with and without compression, in one command.
//!
//! ```text
//! two drives, lz4 and none: created in a temporary folder, each served by a child process
//!   -> write real files, read them back and compare, on one drive and then on the other
//!   -> run the bench preset `compressibility` on both drives in turns (`speed`)
//!   -> stop the servers -> check both drives -> remove them
//! ```
//!
//! * `drive`: a drive and its server. `files`: real data on a drive. `speed`: the bench.
//! * `data`: the files as one stream; `load`: requests over NBD.
//!
//! The demo removes the folder and the servers when it ends, even after Ctrl-C: a signal ends the
//! run at the next request, and cleanup is the same as after any error.

mod data;
mod drive;
mod files;
mod load;
#[cfg(feature = "bench")]
mod speed;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use self::data::{CHUNK_BYTES, FileStream};
use self::drive::Side;
use self::files::Line;
use super::{Outcome, print, print_schema, size};
use pumice_drive::base::ErrorKind;
use pumice_drive::base::units::format_size;

/// Space on the disk for the bench, in addition to the real data, and space on the medium for data
/// that is overwritten, in addition to both.
const BENCH_BYTES: u64 = 256 << 20;
const ROOM_BYTES: u64 = 2 << 30;

/// Compare a drive with and without compression, on real and synthetic data
///
/// Creates two drives in a temporary folder, one with LZ4 and one without compression, serves both
/// over NBD, writes the files of a folder to each, reads them back and compares them, then runs the
/// bench preset `compressibility` on both in turns. Takes a minute or two. Only the page with the
/// results is kept.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice demo
  pumice demo ~/documents --bytes 500M")]
pub(crate) struct Args {
    /// Folder with the real data
    #[arg(default_value = "/usr")]
    path: PathBuf,

    /// Maximum amount of real data
    #[arg(long, value_parser = size, default_value = "2G", value_name = "SIZE")]
    bytes: u64,

    /// Folder for the drives [default: $TMPDIR, or /var/tmp]
    #[arg(long, value_name = "FOLDER")]
    scratch: Option<PathBuf>,

    /// HTML page with all results; an existing file is overwritten
    #[cfg(feature = "bench")]
    #[arg(long, value_name = "FILE", default_value = "pumice-demo.html")]
    page: PathBuf,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Debug, Serialize)]
struct Shown {
    files: [Line; 2],
    #[cfg(feature = "bench")]
    bench: pumice_bench::compare::Comparison,
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
    let interrupted = super::signals::flag()?;
    let result = compare(args, &interrupted);
    if interrupted.load(Ordering::Relaxed) {
        bail!("interrupted: the temporary drives were removed");
    }
    match result {
        Ok(shown) if args.json => print_schema("demo-1", &shown)?,
        Ok(shown) => {
            let took = files::took(&args.path, &shown.files);
            let text = files::text(&args.path, &shown.files);
            #[cfg(feature = "bench")]
            let took = format!("{took} {}", speed::verdict(&shown.bench));
            #[cfg(feature = "bench")]
            let text = format!("{text}\n{}", speed::text(&shown.bench, &args.page));
            print(&format!("{took}\n\n{text}"))?;
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

/// Runs the whole demo.
fn compare(args: &Args, interrupted: &Arc<AtomicBool>) -> Result<Shown> {
    let scratch = args.scratch.clone().unwrap_or_else(|| {
        std::env::var_os("TMPDIR").map_or_else(|| "/var/tmp".into(), PathBuf::from)
    });
    let folder = tempfile::Builder::new().prefix("pumice-demo-").tempdir_in(&scratch);
    let folder =
        folder.with_context(|| format!("cannot create a folder in {}", scratch.display()))?;
    let bytes = fitting_bytes(folder.path(), args.bytes)?;
    let bar = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{spinner} {bytes} {bytes_per_sec} {wide_msg}");
    bar.set_style(style.expect("a constant template"));
    bar.set_message("reading the files into memory");
    let mut stream = FileStream::new(&args.path, bytes)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    while stream.fill(&mut chunk) && !interrupted.load(Ordering::Relaxed) {
        bar.inc(CHUNK_BYTES as u64);
    }
    let mut sides = [
        Side::start(folder.path(), "lz4", bytes, interrupted)?,
        Side::start(folder.path(), "none", bytes, interrupted)?,
    ];
    let files = files::real_data(&mut sides, &args.path, bytes, &bar)?;
    #[cfg(feature = "bench")]
    let bench = {
        let took = files::took(&args.path, &files);
        speed::measure(&sides, interrupted, &bar, &args.page, &took)?
    };
    for side in sides {
        bar.set_message(format!("{}: checking every checksum", side.codec));
        side.client.disconnect()?;
        side.drive.finish()?;
    }
    bar.finish_and_clear();
    Ok(Shown {
        files,
        #[cfg(feature = "bench")]
        bench,
    })
}

/// Returns the amount of real data, at most `wanted`, for which the file system has space.
fn fitting_bytes(folder: &Path, wanted: u64) -> Result<u64> {
    let space = rustix::fs::statvfs(folder)
        .with_context(|| format!("cannot query the free space of {}", folder.display()))?;
    let free = space.f_bavail * space.f_frsize;
    // Both drives store all of the data, one of them uncompressed.
    let room = 2 * (BENCH_BYTES + ROOM_BYTES);
    let left = free.saturating_sub(room) / 2 * 9 / 10;
    if left < 64 << 20 {
        bail!(
            "{} has {} free, but the demo needs {}: use --scratch to name another folder",
            folder.display(),
            format_size(free),
            format_size(room + (256 << 20))
        );
    }
    Ok(wanted.min(left).next_multiple_of(CHUNK_BYTES as u64))
}
