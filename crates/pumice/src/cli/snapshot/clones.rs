//! The clones that are registered with the snapshots of a drive.

use std::path::Path;

use anyhow::{Context, Result, bail};
use uuid::Uuid;

use super::{change, change_even_a_part, list};
use crate::control::Request;
use crate::open::origin;
use pumice_drive::controller::{Drive, Origin, RegisteredClone, SnapshotInfo};
use pumice_drive::runtime::{Backend, Runtime};

/// Returns a snapshot of a drive by its name.
///
/// # Errors
/// There is none, or the drive cannot be opened.
pub(crate) fn named(path: &Path, name: &str) -> Result<SnapshotInfo> {
    let found = list(path)?.into_iter().find(|info| info.name == name);
    found.with_context(|| {
        format!("{} has no snapshot named {name}: see `pumice snapshot list`", path.display())
    })
}

/// Registers a clone with the snapshot that it reads from.
///
/// # Errors
/// There is no such snapshot, or it has too many clones: nothing has changed.
pub(crate) fn register(path: &Path, name: &str, clone: RegisteredClone) -> Result<SnapshotInfo> {
    let wanted = Request::RegisterClone { name: name.to_owned(), clone: clone.clone() };
    let register = async |drive: &Drive| Ok(vec![drive.register_clone(name, clone).await?]);
    let registered = change(path, &wanted, register)?.into_iter().next();
    registered.with_context(|| format!("{}: the answer names no snapshot", path.display()))
}

/// Removes a clone from the list.
///
/// # Errors
/// The drive cannot be opened for writing.
pub(crate) fn forget(path: &Path, clone: Uuid) -> Result<()> {
    let forgetting = async |drive: &Drive| drive.forget_clone(clone).await.map(|_| Vec::new());
    change_even_a_part(path, &Request::ForgetClone { drive: clone }, forgetting).map(drop)
}

/// Like [`forget`], but a failure is only logged and has no other effect. Returns whether it
/// succeeded.
pub(crate) fn forget_or_warn(path: &Path, clone: Uuid) -> bool {
    let forgotten = forget(path, clone);
    if let Err(error) = &forgotten {
        let error = crate::cli::chain(error);
        let what = "the origin still lists the clone, until the snapshot is deleted";
        tracing::warn!(%error, "{what}");
    }
    forgotten.is_ok()
}

/// Returns the identity of a drive and its origin, if it is a clone.
pub(super) fn origin_of(path: &Path) -> Option<(Uuid, Origin)> {
    let runtime = Runtime::new(Backend::Auto).ok()?;
    let (uuid, origin) = origin::identity(&runtime, path).ok()?;
    Some((uuid, origin?))
}

/// Removes a clone from its origin's list if the clone no longer reads from there: its disk was
/// flattened, and the last snapshot that needed the origin was deleted.
pub(super) fn forget_if_independent(path: &Path, (clone, origin): (Uuid, Origin)) {
    if origin::is_independent(path, clone) {
        forget_or_warn(&origin::path_of(path, &origin), clone);
    }
}

/// Removes clones of a snapshot from the list: the named ones, and those that are independent of
/// it.
///
/// # Errors
/// A named clone is not listed, or is in use: nothing has changed.
pub(super) fn forget_all(path: &Path, name: &str, gone: &[String]) -> Result<()> {
    let snapshots = list(path)?;
    let listed = snapshots.iter().find(|info| info.name == name);
    let listed = listed.map_or(&[][..], |info| &info.clones);
    for wanted in gone {
        let is_it = |clone: &&RegisteredClone| is_named(clone, wanted);
        let Some(clone) = listed.iter().find(is_it) else {
            bail!("{}@{name} has no clone {wanted}: see `pumice snapshot list`", path.display());
        };
        if origin::is_served(Path::new(&clone.path)) {
            bail!("{} is in use, and reads from {}@{name}", clone.path, path.display());
        }
    }
    for clone in listed {
        let is_gone = gone.iter().any(|wanted| is_named(clone, wanted));
        if is_gone || origin::is_independent(Path::new(&clone.path), clone.drive) {
            forget(path, clone.drive)?;
        }
    }
    Ok(())
}

fn is_named(clone: &RegisteredClone, wanted: &str) -> bool {
    let path = std::path::absolute(wanted);
    clone.path == wanted
        || clone.drive.to_string() == wanted
        || path.is_ok_and(|path| path == Path::new(&clone.path))
}
