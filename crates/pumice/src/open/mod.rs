//! Opens drives, for subcommands and for the server: the medium, the keys, the origin of a clone.
//!
//! * `media`: the files, devices and buckets of a medium, which are found through one of them.
//! * `origin`: the origin of a clone, which is opened with it.
//! * `served_snapshot`: where to read a snapshot of a drive that a server has locked.

pub(crate) mod media;
pub(crate) mod origin;
pub(crate) mod served_snapshot;

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result};
use futures_util::future::Either;

use crate::control::{self, Client};
use crate::devices;
use crate::keys;
use crate::members;
use crate::objects::BucketPlace;
use crate::place::{self, Place};
use crate::remedy;
use crate::signals;
use crate::storage::{Access, Storage};
use pumice_drive::base;
use pumice_drive::base::clock::while_busy;
use pumice_drive::codec::Pool;
use pumice_drive::controller::{Drive, OpenOptions, is_flat_on};
use pumice_drive::media::file::FileMedium;
use pumice_drive::runtime::{Backend, Runtime};

/// Starts the configured compression threads, if any. They inherit this thread's protection from
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
    error.downcast_ref::<base::Error>().is_some_and(|error| error.kind() == base::ErrorKind::Busy)
}

/// Opens the medium at `path`, which may be `s3://BUCKET/NAME`: with the other members if it is one
/// of an array, with the bucket if it is a journal, and with the keys of an encrypted drive.
///
/// # Errors
/// Errors of [`FileMedium::open`] and [`media::complete`]; `Busy` if the medium is still in use
/// after a second; `PermissionDenied` without the drive's key.
pub(crate) fn medium(runtime: &Runtime, path: &Path, access: &Access) -> Result<Storage> {
    let medium = locked(runtime, path, access)?;
    Ok(runtime.block_on(keys::unlock(medium))?)
}

/// Like [`medium`], without the keys.
///
/// # Errors
/// Same as [`medium`].
pub(crate) fn locked(runtime: &Runtime, path: &Path, access: &Access) -> Result<Storage> {
    if let Some(place) = BucketPlace::of(path)? {
        return Ok(runtime.block_on(media::in_bucket(runtime, &place, access))?);
    }
    let file = one(runtime, path, access)?;
    let completed = runtime.block_on(media::complete(runtime, file, access));
    completed.with_context(|| path.display().to_string())
}

/// Opens the medium at `path` for reading, for a drive that this process has open for reading.
///
/// # Errors
/// Same as [`medium`].
pub(crate) async fn medium_of(runtime: &Runtime, path: &Path) -> base::Result<Storage> {
    let access = Access::new(true);
    let file = media::open_file(runtime, path, &access)?;
    keys::unlock(media::complete(runtime, file, &access).await?).await
}

/// Opens a drive on one file or device as a mirror with this one member.
///
/// # Errors
/// Same as [`drive`].
pub(crate) fn as_mirror(runtime: &Runtime, path: &Path) -> Result<Rc<Drive>> {
    let file = one(runtime, path, &Access::default())?;
    let opening = async {
        // Nothing is changed without the key.
        let file = keys::unlock(Storage::of_file(file)).await?.into_file();
        let medium = devices::to_mirror(file).await?;
        Drive::open(medium.into_shared(), runtime.clock(), OpenOptions::default()).await
    };
    runtime.block_on(opening).map_err(|error| crate::leftovers::advise(path, error))
}

/// Opens a file or device alone, once it is no longer in use.
fn one(runtime: &Runtime, path: &Path, access: &Access) -> Result<FileMedium> {
    let open = || media::open_file(runtime, path, access);
    let opened = runtime.block_on(while_busy(runtime, open));
    Ok(opened.map_err(|error| place::advise(path, error))?)
}

/// Opens the file or device at `path` for a new drive, and removes it from any array.
///
/// # Errors
/// Errors of [`FileMedium::open`] and of writing to it; `Busy` if it is still in use after a
/// second.
pub(crate) fn blank(runtime: &Runtime, path: &Path) -> Result<FileMedium> {
    let medium = one(runtime, path, &Access::default())?;
    runtime.block_on(members::leave_array(&medium))?;
    Ok(medium)
}

/// Opens the drive at `path` and starts its background tasks.
///
/// # Errors
/// Errors of [`FileMedium::open`] and [`Drive::open`], with the path.
pub(crate) fn drive(runtime: &Runtime, path: &Path, options: OpenOptions) -> Result<Rc<Drive>> {
    at(runtime, &Place::of(path)?, &Access::new(options.read_only), options)
}

/// Like [`drive`], for work that reads no block of the disk: a clone is opened without its origin.
///
/// # Errors
/// Same as [`drive`].
pub(crate) fn alone(runtime: &Runtime, path: &Path, options: OpenOptions) -> Result<Rc<Drive>> {
    alone_as(runtime, path, &Access::new(options.read_only), options)
}

/// Like [`alone`], with access to the medium as the user requested.
///
/// # Errors
/// Same as [`drive`].
pub(crate) fn alone_as(
    runtime: &Runtime,
    path: &Path,
    access: &Access,
    options: OpenOptions,
) -> Result<Rc<Drive>> {
    let place = Place::of(path)?;
    check_read_only(&place, options)?;
    let medium = medium(runtime, path, access);
    let medium = medium.map_err(|error| served_snapshot::advise(&place, error))?;
    let opened = Drive::open(medium.into_shared(), runtime.clock(), options);
    runtime.block_on(opened).map_err(|error| crate::leftovers::advise(path, error))
}

/// Runs an operation on the drive at `path`: `served` asks its server, and returns `None` if the
/// server ends before it answers; if there is none, `open` opens the drive here, `work` runs with
/// it, and it is closed. Waits like [`control::served_or_open`].
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

/// Like [`drive`], or opens the snapshot that a place names; with access to the medium as the user
/// requested.
///
/// # Errors
/// Errors of [`drive`]; a snapshot would be opened for writing.
pub(crate) fn at(
    runtime: &Runtime,
    place: &Place,
    access: &Access,
    options: OpenOptions,
) -> Result<Rc<Drive>> {
    check_read_only(place, options)?;
    let medium = medium(runtime, &place.path, access);
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
    let origin = match origin::of(runtime, &*medium, medium.path(), medium.access()).await {
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
