//! Which clones the snapshots of a drive have.

use std::path::Path;

use anyhow::{Context, Result, bail};
use uuid::Uuid;

use super::{change, list, request};
use crate::cli::origin;
use crate::control::{self, Request};
use pumice_drive::controller::{RegisteredClone, SnapshotInfo};

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

/// Lists a clone with the snapshot that it reads from.
///
/// # Errors
/// There is no such snapshot, or it has too many clones: nothing has changed.
pub(crate) fn register(path: &Path, name: &str, clone: RegisteredClone) -> Result<SnapshotInfo> {
    let registered = if control::connect(path)?.is_some() {
        request(path, &Request::RegisterClone { name: name.to_owned(), clone })?
    } else {
        change(path, async |drive| drive.register_clone(name, clone).await.map(|it| vec![it]))?
    };
    let registered = registered.into_iter().next();
    registered.with_context(|| format!("{}: the answer names no snapshot", path.display()))
}

/// Lists a clone no longer.
///
/// # Errors
/// The drive cannot be opened for writing.
pub(crate) fn forget(path: &Path, clone: Uuid) -> Result<()> {
    if control::connect(path)?.is_some() {
        request(path, &Request::ForgetClone { drive: clone })?;
    } else {
        change(path, async |drive| drive.forget_clone(clone).await.map(|_| Vec::new()))?;
    }
    Ok(())
}

/// Lists clones of a snapshot no longer: those named, and those that are independent of it.
///
/// # Errors
/// One that is named is not listed, or is in use: nothing has changed.
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
