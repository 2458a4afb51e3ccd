//! Opens a drive for a subcommand.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::available_parallelism;

use anyhow::{Context, Result};
use clap::value_parser;
use futures_util::future::Either;

use crate::cli::values::{Compaction, compaction, map_cache};
use crate::cli::{keys, served_snapshot, size};
use crate::control::{self, Client};
use crate::devices;
use crate::holder::Holder;
use crate::objects::BucketPlace;
use crate::place::{self, Place};
use crate::remedy;
use crate::signals;
use crate::storage::{self, Absent, Hints, Storage};
use pumice_drive::base;
use pumice_drive::base::ErrorKind;
use pumice_drive::base::clock::while_busy;
use pumice_drive::codec::{Codec, Pool};
use pumice_drive::controller::{
    COLD_FRAME_BLOCKS_DEFAULT, COMPACT_PERCENT_DEFAULT, Drive, OpenOptions,
    READ_AHEAD_BYTES_DEFAULT, is_flat_on,
};
use pumice_drive::media::file::{FileMedium, FileOptions};
use pumice_drive::runtime::{Backend, Runtime};

/// Flags of subcommands that open a drive for hosts.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[group(skip)]
pub(crate) struct Opening {
    /// Refuse writes and change nothing
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Approximate memory for the map of each drive, at least 1M; the rest is read from the drive
    /// on demand. 64M covers 128 GiB written in long requests, or 26 GiB on a drive of
    /// independent blocks (`create --frame blocks`)
    #[arg(long, value_parser = map_cache, default_value = "256M", value_name = "SIZE")]
    map_cache: u64,

    /// Memory for recently read blocks of each drive, decoded; 0 for none
    #[arg(long, value_parser = size, default_value = "32M", value_name = "SIZE")]
    cache: u64,

    /// Maximum amount of log between checkpoints, all of which is read after a crash
    #[arg(long, value_parser = size, default_value = "1G", value_name = "SIZE")]
    checkpoint: u64,

    /// Recompress data that garbage collection moves with a denser codec: zstd or zstd:LEVEL. Where
    /// that saves 1/16 or more, frames of independent blocks become solid ones
    #[arg(long, value_name = "CODEC")]
    recompress: Option<Codec>,

    /// While the host is quiet, return the space of dead data to the medium until the drive
    /// occupies at most this much beyond its live data, in percent of the live data; or off
    /// [default: 20 for a file, off for a block device]
    #[arg(long, value_parser = compaction, value_name = "PERCENT|off")]
    compact: Option<Compaction>,

    /// Threads that compress data, for all drives together and including the threads that serve
    /// them; a server spreads its drives over up to this many [default: one per processor, at most
    /// 8]
    #[arg(long, value_parser = value_parser!(u16).range(1..=THREADS_MAX), value_name = "NUMBER")]
    threads: Option<u16>,

    /// Serve a mirror although a member is missing that may have been written to without the
    /// others; that member must be replaced afterwards
    #[arg(long)]
    degraded: bool,

    /// Serve s3://BUCKET/NAME for writing without a local file, and take the drive over from the
    /// machine that has its journal: a flush returns once the bucket has everything, and up to 20
    /// segments are in memory
    #[arg(long, conflicts_with = "read_only")]
    diskless: bool,

    /// Time that a thread with drives polls for the next request before it sleeps, in microseconds,
    /// while polling often succeeds; 0 saves processor time, and clients with few requests at a
    /// time wait longer
    #[arg(long, value_parser = value_parser!(u16).range(..=BUSY_POLL_US_MAX), default_value = "50",
        value_name = "MICROSECONDS")]
    busy_poll: u16,
}

/// Longer than any client on this machine takes for its next request.
const BUSY_POLL_US_MAX: i64 = 1000;

/// Far more than one thread that orders all writes can use.
const THREADS_MAX: i64 = 64;

/// Maximum of the default number of threads: the same as in other servers of block devices. Not
/// measured, for want of a machine with as many processors.
const THREADS_DEFAULT_MAX: usize = 8;

impl Opening {
    /// Returns the number of threads that compress, and the maximum number of threads that serve
    /// drives.
    pub(crate) fn threads(&self) -> usize {
        let processors = || available_parallelism().map_or(1, usize::from);
        let threads = self.threads.map(usize::from);
        threads.unwrap_or_else(|| processors().min(THREADS_DEFAULT_MAX))
    }

    /// Returns the number of compression threads in addition to those of the drives: none if a
    /// single thread does all the work.
    pub(crate) fn compressors(&self) -> usize {
        if self.read_only { 0 } else { self.threads() - 1 }
    }

    /// Sets, for all arrays that are opened from now on, the paths at which members may be, and
    /// whether absent ones are left out.
    pub(crate) fn hint(&self, paths: &[PathBuf]) {
        let (paths, degraded, diskless) = (paths.to_vec(), self.degraded, self.diskless);
        storage::hint(Hints { paths, degraded, diskless, ..Hints::default() });
    }

    /// Returns how long to poll for completions before sleeping, in nanoseconds.
    pub(crate) fn busy_poll_ns(&self) -> u64 {
        u64::from(self.busy_poll) * 1000
    }

    /// Returns the options for opening the drive at `path`.
    pub(crate) fn options(&self, path: &Path) -> OpenOptions {
        let compact_percent = match self.compact {
            Some(Compaction::Off) => None,
            Some(Compaction::To(percent)) => Some(percent),
            // Space returned to a device is of use to few, and costs writes.
            None => Some(COMPACT_PERCENT_DEFAULT).filter(|_| !is_device(path)),
        };
        OpenOptions {
            read_only: self.read_only,
            partial: false,
            bookmark: false,
            map_cache_bytes: self.map_cache as usize,
            read_cache_bytes: self.cache as usize,
            read_ahead_bytes: READ_AHEAD_BYTES_DEFAULT,
            checkpoint_bytes: self.checkpoint,
            recompress: self.recompress,
            cold_frame_blocks: COLD_FRAME_BLOCKS_DEFAULT,
            warn_percent: None,
            compact_percent,
        }
    }
}

/// Starts compression threads, if there are to be any. They inherit this thread's protection from
/// memory reclaim, and no signal interrupts them.
///
/// # Errors
/// A thread cannot be started.
pub(crate) fn pool(threads: usize) -> Result<Option<Arc<Pool>>> {
    if threads == 0 {
        return Ok(None);
    }
    let pool = signals::blocked(|| Pool::start(threads))?;
    pool.context("cannot start threads").map(Some)
}

fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Waits for up to a second until `condition` holds. Returns whether it does.
#[cfg(feature = "attach")]
pub(crate) fn wait_until(runtime: &Runtime, condition: impl Fn() -> bool) -> bool {
    let unmet = || base::Error::new(ErrorKind::Busy, "not yet");
    runtime.block_on(while_busy(runtime, || condition().then_some(()).ok_or_else(unmet))).is_ok()
}

/// Whether a drive could not be opened because it is open elsewhere.
#[cfg(feature = "attach")]
pub(crate) fn is_busy(error: &anyhow::Error) -> bool {
    error.downcast_ref::<base::Error>().is_some_and(|error| error.kind() == ErrorKind::Busy)
}

/// Opens the medium at `path`, which may be `s3://BUCKET/NAME`, for reading: with the other members
/// if it is one of an array, with the bucket if it is a journal, and with the keys of an encrypted
/// drive.
///
/// # Errors
/// Errors of [`FileMedium::open`] and [`Storage::complete`]; `Busy` if the medium is still in use
/// after a second; `PermissionDenied` without the drive's key.
pub(crate) fn medium(runtime: &Runtime, path: &Path, read_only: bool) -> Result<Storage> {
    unlocked(runtime, locked(runtime, path, read_only)?)
}

/// As [`medium`], without the keys.
///
/// # Errors
/// As [`medium`].
pub(crate) fn locked(runtime: &Runtime, path: &Path, read_only: bool) -> Result<Storage> {
    open(runtime, path, FileOptions::default().with_read_only(read_only), Absent::Known)
}

fn unlocked(runtime: &Runtime, medium: Storage) -> Result<Storage> {
    Ok(runtime.block_on(keys::unlock(medium))?)
}

/// As [`medium`], for looking at a drive: a member may be absent.
///
/// # Errors
/// As [`medium`].
pub(crate) fn medium_to_look_at(runtime: &Runtime, path: &Path) -> Result<Storage> {
    let options = FileOptions::default().with_read_only(true);
    unlocked(runtime, open(runtime, path, options, Absent::AndApart)?)
}

/// As [`medium`], for verification: a member may be absent, if the others were not used separately
/// from it.
///
/// # Errors
/// As [`medium`].
pub(crate) fn medium_to_check(runtime: &Runtime, path: &Path) -> Result<Storage> {
    let options = FileOptions::default().with_read_only(true);
    unlocked(runtime, open(runtime, path, options, Absent::Allowed)?)
}

/// Opens the medium at `path` for reading its remains, even if it is truncated.
///
/// # Errors
/// As [`medium`].
pub(crate) fn remains(runtime: &Runtime, path: &Path) -> Result<Storage> {
    let options = FileOptions::default().with_read_only(true).with_truncated(true);
    unlocked(runtime, open(runtime, path, options, Absent::Known)?)
}

/// Opens the medium at `path` for reading, for a drive that this process has open for reading.
///
/// # Errors
/// Errors of [`FileMedium::open`] and [`Storage::complete`]; `PermissionDenied` without its key.
pub(crate) async fn medium_of(
    runtime: &Runtime,
    path: &Path,
) -> pumice_drive::base::Result<Storage> {
    let options = FileOptions::default().with_read_only(true).with_direct(true);
    let open = |path: &Path| FileMedium::open(runtime.clone(), path, options);
    keys::unlock(Storage::complete(runtime, open(path)?, options, Absent::Known, &open).await?)
        .await
}

/// Opens a medium, and the other members of its array; an error names the process that is using
/// one.
fn open(runtime: &Runtime, path: &Path, options: FileOptions, absent: Absent) -> Result<Storage> {
    if let Some(place) = BucketPlace::of(path)? {
        return Ok(runtime.block_on(Storage::in_bucket(runtime, &place, options.read_only))?);
    }
    let options = options.with_direct(true);
    let file = one(runtime, path, options)?;
    let open = |path: &Path| {
        FileMedium::open(runtime.clone(), path, options).map_err(|error| named(path, error))
    };
    let completed = runtime.block_on(Storage::complete(runtime, file, options, absent, &open));
    completed.with_context(|| path.display().to_string())
}

/// Opens a drive on one file or device as a mirror with this one member.
///
/// # Errors
/// As [`drive`].
pub(crate) fn as_mirror(runtime: &Runtime, path: &Path) -> Result<Rc<Drive>> {
    let file = one(runtime, path, FileOptions::default().with_direct(true))?;
    let opening = async {
        // Nothing is changed without the key.
        let Storage::File(file) = keys::unlock(Storage::File(file)).await? else {
            let what = "it is an array already";
            return Err(base::Error::new(ErrorKind::InvalidInput, what));
        };
        let medium = Rc::new(devices::to_mirror(file).await?);
        Drive::open(medium, runtime.clock(), OpenOptions::default()).await
    };
    runtime.block_on(opening).map_err(|error| crate::leftovers::advise(path, error))
}

/// Opens a file or device alone.
fn one(runtime: &Runtime, path: &Path, options: FileOptions) -> Result<FileMedium> {
    let open = || FileMedium::open(runtime.clone(), path, options);
    let opened = runtime.block_on(while_busy(runtime, open));
    Ok(opened.map_err(|error| place::advise(path, named(path, error)))?)
}

/// Adds to an error of opening a file the process that is using it.
fn named(path: &Path, error: base::Error) -> base::Error {
    match Holder::of(path) {
        Some(holder) if error.kind() == ErrorKind::Busy => holder.refusal(path),
        _ => error,
    }
}

/// Opens the file or device at `path` for a new drive, and removes it from any array.
///
/// # Errors
/// Errors of [`FileMedium::open`] and of writing to it; `Busy` if it is still in use after a
/// second.
pub(crate) fn blank(runtime: &Runtime, path: &Path) -> Result<FileMedium> {
    let medium = one(runtime, path, FileOptions::default().with_direct(true))?;
    runtime.block_on(storage::leave_array(&medium))?;
    Ok(medium)
}

/// Opens the drive at `path` and starts its background tasks.
///
/// # Errors
/// Errors of [`FileMedium::open`] and [`Drive::open`], with the path.
pub(crate) fn drive(runtime: &Runtime, path: &Path, options: OpenOptions) -> Result<Rc<Drive>> {
    at(runtime, &Place::of(path)?, options)
}

/// As [`drive`], for work that reads no block of the disk: a clone is opened without its origin.
///
/// # Errors
/// As [`drive`].
pub(crate) fn alone(runtime: &Runtime, path: &Path, options: OpenOptions) -> Result<Rc<Drive>> {
    let place = Place::of(path)?;
    check_read_only(&place, options)?;
    let medium = medium(runtime, path, options.read_only);
    let medium = medium.map_err(|error| served_snapshot::advise(&place, error))?;
    let opened = Drive::open(Rc::new(medium), runtime.clock(), options);
    runtime.block_on(opened).map_err(|error| crate::leftovers::advise(path, error))
}

/// Runs an operation on the drive at `path`: `served` asks its server, and returns `None` if the
/// server ends before it answers; if there is none, `open` opens the drive here, `work` runs with
/// it, and it is closed. As [`control::served_or_open`].
///
/// # Errors
/// Errors of [`control::connect`], `served` and `open`; errors of `work` and of closing, with the
/// path.
pub(crate) fn served_or_closed<T>(
    path: &Path,
    served: impl Fn(Client) -> Result<Option<T>>,
    open: impl Fn(&Runtime) -> Result<Rc<Drive>>,
    work: impl FnOnce(&Runtime, &Rc<Drive>) -> Result<T>,
) -> Result<T> {
    let open = || {
        let runtime = Runtime::new(Backend::Auto)?;
        let drive = open(&runtime)?;
        Ok((runtime, drive))
    };
    let (runtime, drive) = match control::served_or_open(path, served, open)? {
        Either::Left(done) => return Ok(done),
        Either::Right(opened) => opened,
    };
    let done = work(&runtime, &drive);
    let closed = runtime.block_on(drive.close());
    runtime.drop_tasks();
    done.and_then(|done| Ok(closed.map(|()| done)?)).with_context(|| path.display().to_string())
}

/// As [`alone`], read-only, even if a member of its array is absent.
///
/// # Errors
/// As [`drive`].
pub(crate) fn to_look_at(
    runtime: &Runtime,
    path: &Path,
    options: OpenOptions,
) -> Result<Rc<Drive>> {
    assert!(options.read_only, "a drive that may be outdated is opened read-only");
    let place = Place::of(path)?;
    let medium = medium_to_look_at(runtime, path);
    let medium = medium.map_err(|error| served_snapshot::advise(&place, error))?;
    let opened = Drive::open(Rc::new(medium), runtime.clock(), options);
    runtime.block_on(opened).map_err(|error| crate::leftovers::advise(path, error))
}

/// As [`drive`], or opens the snapshot that a place names.
///
/// # Errors
/// As [`drive`]; a snapshot would be opened for writing.
pub(crate) fn at(runtime: &Runtime, place: &Place, options: OpenOptions) -> Result<Rc<Drive>> {
    check_read_only(place, options)?;
    let medium = medium(runtime, &place.path, options.read_only);
    let medium = medium.map_err(|error| served_snapshot::advise(place, error))?;
    on(runtime, place, medium, options)
}

fn check_read_only(place: &Place, options: OpenOptions) -> Result<()> {
    if let (Some(name), false) = (&place.snapshot, options.read_only) {
        let path = place.path.display();
        anyhow::bail!("{path}@{name}: a snapshot can only be read: use --read-only");
    }
    Ok(())
}

/// Opens the drive on a medium, or a snapshot of it, which was opened at the path of `place`, and
/// starts its background tasks.
///
/// # Errors
/// Errors of [`Drive::open`] and [`Drive::open_snapshot`], with the path.
pub(crate) fn on(
    runtime: &Runtime,
    place: &Place,
    medium: Storage,
    options: OpenOptions,
) -> Result<Rc<Drive>> {
    let path = &place.path;
    let opened = runtime.block_on(on_medium(runtime, place.snapshot.as_deref(), medium, options));
    opened.map_err(|error| crate::leftovers::advise(path, error))
}

/// Opens the drive on a medium, or one of its snapshots, together with the origin if it is a clone,
/// and starts its background tasks.
///
/// # Errors
/// Errors of [`Drive::open`] and [`Drive::open_snapshot`]; the origin of a clone is needed and
/// cannot be opened: nothing has changed then.
pub(crate) async fn on_medium(
    runtime: &Runtime,
    snapshot: Option<&str>,
    medium: Storage,
    options: OpenOptions,
) -> pumice_drive::base::Result<Rc<Drive>> {
    let origin = match super::origin::of(runtime, &medium).await {
        Err(error) if !is_flat_on(&medium).await? => return Err(error),
        origin => origin,
    };
    let medium = Rc::new(medium);
    let drive = match snapshot {
        None => Drive::open(medium, runtime.clock(), options).await,
        Some(name) => Drive::open_snapshot(medium, runtime.clock(), name, options).await,
    }?;
    let ready = match origin {
        Ok(Some(origin)) if drive.origin().is_some() => drive.set_origin(origin),
        Err(error) if drive.reads_from_origin() => Err(error),
        Err(error) => {
            let what = "the origin is not open: only snapshots from before the flattening need it";
            tracing::warn!(error = %remedy::chain(&error), "{what}");
            Ok(())
        }
        Ok(_) => Ok(()),
    };
    if let Err(error) = ready {
        let _ = drive.close().await;
        return Err(error);
    }
    Ok(drive)
}
