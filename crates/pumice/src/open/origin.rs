//! The origin of a clone, found and opened when the clone is opened.
//!
//! The clone records the path of its origin: an absolute path. A file of the same name next to the
//! clone is accepted as well, so that a folder with both can be moved. Identities decide whether it
//! is the origin. Its file is not locked: another process may serve it and write to it meanwhile.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;

use super::media;
use crate::control;
use crate::keys;
use crate::storage::{Access, Storage};
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::controller::{Drive, OpenOptions, Origin, is_flat_on, origin_on};
use pumice_drive::media::AnyMedium;
use pumice_drive::runtime::{Backend, Runtime};
use uuid::Uuid;

/// Maximum length of a chain of origins, each a clone of the next: each takes memory, and each read
/// passes through all of them.
pub(crate) const CHAIN_MAX: u32 = 16;

/// Memory for data read from an origin: half of a drive's defaults, since a clone has its own.
const CACHE_BYTES: usize = 16 << 20;
const MAP_CACHE_BYTES: usize = 128 << 20;

/// Opens the origin of the drive on a medium, which was opened at a path; `None` if the drive is no
/// clone.
///
/// # Errors
/// `NotFound` if the origin is not found, with advice; else errors from opening it.
pub(crate) async fn of(
    runtime: &Runtime,
    medium: &dyn AnyMedium,
    path: &Path,
    access: &Access,
) -> Result<Option<Rc<Drive>>> {
    // Opening the drive itself reports its errors.
    let Ok((clone, Some(wanted))) = origin_on(medium).await else { return Ok(None) };
    open(runtime, access, path, (clone, wanted), 1).await.map(Some)
}

/// Like [`of`]; also `None` if only snapshots older than a flattening read from the origin.
///
/// # Errors
/// Errors of [`of`] and [`is_flat_on`].
pub(crate) async fn needed(
    runtime: &Runtime,
    medium: &dyn AnyMedium,
    path: &Path,
    access: &Access,
) -> Result<Option<Rc<Drive>>> {
    match is_flat_on(medium).await? {
        true => Ok(None),
        false => of(runtime, medium, path, access).await,
    }
}

/// Opens the origin of the clone at `clone`, and the origin of that origin.
fn open<'a>(
    runtime: &'a Runtime,
    access: &'a Access,
    clone: &'a Path,
    (uuid, wanted): (Uuid, Origin),
    depth: u32,
) -> Pin<Box<dyn Future<Output = Result<Rc<Drive>>> + 'a>> {
    Box::pin(async move {
        if depth > CHAIN_MAX {
            let what = format!(
                "{}: the chain of clones is too long (at most {CHAIN_MAX}): make one of them \
                 independent with `pumice flatten`",
                clone.display()
            );
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let mut failure = None;
        for path in places(clone, &wanted) {
            match open_at(runtime, access, &path, (uuid, &wanted)).await {
                Ok(origin) => {
                    if let Some(next) = origin.origin() {
                        let next = (origin.uuid(), next);
                        origin.set_origin(open(runtime, access, &path, next, depth + 1).await?)?;
                    }
                    return Ok(origin);
                }
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        }
        Err(missing(clone, &wanted, failure))
    })
}

async fn open_at(
    runtime: &Runtime,
    access: &Access,
    path: &Path,
    (clone, origin): (Uuid, &Origin),
) -> Result<Rc<Drive>> {
    let medium = medium(runtime, path, access).await?;
    let medium = keys::unlock_origin(medium).await?.into_shared();
    let options = OpenOptions {
        read_only: true,
        read_cache_bytes: CACHE_BYTES,
        map_cache_bytes: MAP_CACHE_BYTES,
        ..OpenOptions::default()
    };
    Drive::open_origin(medium, runtime.clock(), clone, origin, options).await
}

/// Changes the recorded path of a clone's origin.
///
/// # Errors
/// `InvalidInput` if the drive is no clone; errors from opening its origin there: nothing has
/// changed.
pub(crate) async fn move_to(runtime: &Runtime, clone: &Drive, path: &Path) -> Result<()> {
    let wrong = |what: String| Error::new(ErrorKind::InvalidInput, what);
    let wanted = clone.origin().ok_or_else(|| wrong("the drive is not a clone".into()))?;
    drop(open_at(runtime, &Access::default(), path, (clone.uuid(), &wanted)).await?);
    let whole = path.canonicalize().ok().and_then(|path| path.to_str().map(ToOwned::to_owned));
    let whole = whole.ok_or_else(|| wrong(format!("{} is not UTF-8", path.display())))?;
    clone.set_origin_path(whole).await
}

/// Opens a medium that another process may write to, for reading and without keys, with as much of
/// it absent as `access` allows.
///
/// # Errors
/// Errors of [`media::open_file`] and [`media::complete`].
pub(crate) async fn medium(runtime: &Runtime, path: &Path, access: &Access) -> Result<Storage> {
    let access = Access { read_only: true, truncated: false, unlocked: true, ..access.clone() };
    media::complete(runtime, media::open_file(runtime, path, &access)?, &access).await
}

/// Returns the possible paths of an origin.
fn places(clone: &Path, wanted: &Origin) -> Vec<PathBuf> {
    let named = PathBuf::from(&wanted.path);
    let beside = named.file_name().map(|name| clone.with_file_name(name));
    let beside = beside.filter(|beside| *beside != named);
    [Some(named), beside].into_iter().flatten().collect()
}

fn missing(clone: &Path, wanted: &Origin, failure: Option<Error>) -> Error {
    let clone = clone.display();
    let what = format!(
        "{clone} is a clone, and its origin cannot be opened at {}, nor beside the clone: move it \
         back, or use `pumice set {clone} origin=PATH`",
        wanted.path
    );
    let kind = failure.as_ref().map_or(ErrorKind::NotFound, Error::kind);
    let error = Error::new(kind, what);
    match failure {
        Some(failure) => error.caused_by(failure),
        None => error,
    }
}

/// Returns the current or last path of a clone's origin.
pub(crate) fn path_of(clone: &Path, wanted: &Origin) -> PathBuf {
    let mut places = places(clone, wanted);
    let there = places.iter().position(|path| {
        let found = Runtime::new(Backend::Auto).and_then(|runtime| identity(&runtime, path));
        found.is_ok_and(|(uuid, _)| uuid == wanted.drive)
    });
    places.swap_remove(there.unwrap_or(0))
}

/// Returns the identity of the drive at `path`, which may be open elsewhere, and its origin, if it
/// is a clone.
///
/// # Errors
/// There is no drive, or it cannot be read.
pub(crate) fn identity(runtime: &Runtime, path: &Path) -> Result<(Uuid, Option<Origin>)> {
    runtime.block_on(async {
        let medium = medium(runtime, path, &Access::default()).await?;
        origin_on(&*keys::unlock_origin(medium).await?).await
    })
}

/// Returns the number of drives through which a clone of the drive at `path` would read.
///
/// # Errors
/// Same as [`identity`].
pub(crate) fn depth(runtime: &Runtime, path: &Path) -> Result<u32> {
    let (mut path, mut depth) = (path.to_owned(), 1);
    while let (_, Some(next)) = identity(runtime, &path)?
        && depth <= CHAIN_MAX
    {
        (path, depth) = (path_of(&path, &next), depth + 1);
    }
    Ok(depth)
}

/// Whether a registered clone no longer reads from any other drive: it was flattened, and its
/// origin was not notified.
pub(crate) fn is_independent(path: &Path, clone: Uuid) -> bool {
    let found = Runtime::new(Backend::Auto).and_then(|runtime| identity(&runtime, path));
    matches!(found, Ok((uuid, None)) if uuid == clone)
}

/// Whether a server has the drive at `path`.
pub(crate) fn is_served(path: &Path) -> bool {
    matches!(control::connect(path), Ok(Some(_)))
}
