//! Opens drives, for subcommands and for the server: the medium, the keys, the origin of a clone.
//!
//! * `origin`: the origin of a clone, which is opened with it.
//! * `served_snapshot`: where to read a snapshot of a drive that a server has locked.

pub(crate) mod origin;
pub(crate) mod served_snapshot;

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result};
use futures_util::future::Either;

use crate::control::{self, Client};
use crate::devices;
use crate::holder::Holder;
use crate::keys;
use crate::objects::BucketPlace;
use crate::place::{self, Place};
use crate::remedy;
use crate::signals;
use crate::storage::{self, Absent, Storage};
use pumice_drive::base;
use pumice_drive::base::ErrorKind;
use pumice_drive::base::clock::while_busy;
use pumice_drive::codec::Pool;
use pumice_drive::controller::{Drive, OpenOptions, is_flat_on};
use pumice_drive::media::file::{FileMedium, FileOptions};
use pumice_drive::runtime::{Backend, Runtime};

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
        let file = keys::unlock(Storage::of_file(file)).await?.into_file();
        let medium = devices::to_mirror(file).await?;
        Drive::open(medium.into_shared(), runtime.clock(), OpenOptions::default()).await
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
    let opened = Drive::open(medium.into_shared(), runtime.clock(), options);
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
    let opened = Drive::open(medium.into_shared(), runtime.clock(), options);
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
    let origin = match origin::of(runtime, &*medium, medium.path()).await {
        Err(error) if !is_flat_on(&*medium).await? => return Err(error),
        origin => origin,
    };
    let medium = medium.into_shared();
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
