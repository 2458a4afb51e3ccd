//! Changes the members of a drive's array while the drive is in use.
//!
//! ```text
//! mirror          add, replace: make the file -> member that gets every write
//!                   -> copy the data in use -> complete
//!                 remove, fail: one step
//! concatenation   add: make the file -> last member -> the drive grows
//!                 remove: the drive shrinks -> the last member holds nothing, and leaves
//! ```
//!
//! An interrupted rebuild is still incomplete when the drive is next opened; a server then
//! continues it, and so does the same command.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::environment::new_identity;
use crate::members::{self, PATIENCE_NS};
use crate::storage::Storage;
use pumice_drive::Uuid;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::controller::{Drive, Resize};
use pumice_drive::format::ArrayLayout;
use pumice_drive::media::Medium;
use pumice_drive::media::array::{Array, ArrayInfo, Copying, NewMember, Patience};
use pumice_drive::media::file::{FileMedium, FileOptions};
use pumice_drive::runtime::Runtime;

/// A change of the members of an array. Paths are absolute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum DeviceChange {
    /// Add a member to a mirror.
    Add {
        /// Its file or device.
        path: String,
        /// Whether existing data is overwritten.
        force: bool,
    },
    /// Replace a member with another file or device.
    Replace {
        /// The member, as it is listed.
        old: String,
        /// The file or device.
        new: String,
        /// Whether existing data is overwritten.
        force: bool,
    },
    /// Remove a member.
    Remove {
        /// The member, as it is listed.
        path: String,
    },
    /// Stop using a member, which stays listed.
    Fail {
        /// The member, as it is listed.
        path: String,
    },
}

/// Returns the array of a drive.
///
/// # Errors
/// `InvalidInput` if it is on one file or device.
fn array_of(drive: &Drive) -> Result<&Array<FileMedium>> {
    drive.medium().downcast_ref().ok_or_else(|| {
        let what = "the drive is on one file or device: close it, and `pumice device add` makes a \
                    mirror of it";
        Error::new(ErrorKind::InvalidInput, what)
    })
}

/// Changes the members of a drive's array. Returns its state.
///
/// # Errors
/// `InvalidInput`, `AlreadyExists`, `NotFound`, `Busy`: nothing has changed. `Medium` if the new
/// member failed: it is not in use.
pub(crate) async fn change(
    runtime: &Runtime,
    drive: &Drive,
    change: &DeviceChange,
) -> Result<ArrayInfo> {
    let array = array_of(drive)?;
    if drive.is_read_only() {
        return Err(Error::new(ErrorKind::ReadOnly, "the drive is served read-only"));
    }
    match change {
        DeviceChange::Add { path, force } if array.layout() == ArrayLayout::Concat => {
            extend(runtime, drive, array, path, *force).await?;
        }
        DeviceChange::Add { path, force } => {
            add(runtime, drive, array, (path, *force), None).await?;
        }
        DeviceChange::Replace { old, new, force } => {
            let old = array.member_at(old)?;
            add(runtime, drive, array, (new, *force), Some(old)).await?;
        }
        DeviceChange::Remove { path } if array.layout() == ArrayLayout::Concat => {
            cut(drive, array, path).await?;
        }
        DeviceChange::Remove { path } => {
            let uuid = array.member_at(path)?;
            array.remove_member(uuid).await?;
            tracing::info!(member = path, "a member was removed from the array");
        }
        DeviceChange::Fail { path } => {
            let uuid = array.member_at(path)?;
            array.fail_member(uuid).await?;
        }
    }
    Ok(array.info())
}

/// Adds a member to a mirror, possibly as the replacement of another one, and completes it. If an
/// earlier attempt with this member was interrupted, starts again.
async fn add(
    runtime: &Runtime,
    drive: &Drive,
    array: &Array<FileMedium>,
    (path, force): (&str, bool),
    replaced: Option<Uuid>,
) -> Result<()> {
    if array.layout() != ArrayLayout::Mirror {
        let what = "the array is not a mirror: its members cannot be replaced";
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let copying = begin_copying(array)?;
    if array.rebuilding_at(path, replaced).is_none() {
        let medium = make(runtime, array, path, force, drive.geometry().medium_bytes())?;
        // If this fails, nothing has changed.
        array.clear_new_member(&medium).await?;
        let mut replaced = replaced;
        for uuid in array.superseded(path, replaced) {
            array.remove_member(uuid).await?;
            replaced = replaced.filter(|replaced| *replaced != uuid);
        }
        let new = NewMember { uuid: new_identity(), path: path.to_owned(), segment_count: 0 };
        match replaced {
            Some(old) => array.replace_member(medium, new, old).await,
            None => array.add_member(medium, new).await,
        }?;
        tracing::info!(member = path, "a member was added to the array and is being rebuilt");
    }
    rebuild(drive, array, &copying).await
}

/// Creates the file of a new member, or checks a device, and opens it. A created file is removed
/// again on failure.
fn make(
    runtime: &Runtime,
    array: &Array<FileMedium>,
    path: &str,
    force: bool,
    bytes: u64,
) -> Result<FileMedium> {
    if array.is_in_use(path) {
        let what = format!("{path} is a member already");
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let existed = Path::new(path).exists();
    FileMedium::create(Path::new(path), bytes, force)?;
    let options = FileOptions::default().with_direct(true);
    FileMedium::open(runtime.clone(), Path::new(path), options).inspect_err(|_| {
        if !existed {
            let _ = std::fs::remove_file(path);
        }
    })
}

/// Adds the space of one more file or device to a concatenation: a file gets the size of the last
/// member.
async fn extend(
    runtime: &Runtime,
    drive: &Drive,
    array: &Array<FileMedium>,
    path: &str,
    force: bool,
) -> Result<()> {
    let _turn = begin_copying(array)?;
    let geometry = drive.geometry();
    let segment_bytes = u64::from(geometry.segment_bytes);
    let (first, last) = array.last_segments();
    // Added by a command that did not complete.
    let is_waiting = geometry.segment_count <= first
        && array.member_at(path).is_ok_and(|uuid| array.check_last(uuid).is_ok());
    if is_waiting {
        return grow(drive, array, path).await;
    }
    let is_device = Path::new(path).metadata().is_ok_and(|found| !found.is_file());
    let least = if is_device { 1 } else { u64::from(last) };
    let medium = make(runtime, array, path, force, geometry.data_offset + least * segment_bytes)?;
    let room = medium.bytes().saturating_sub(geometry.data_offset) / segment_bytes;
    let count = if is_device { room } else { least };
    let segment_count = u32::try_from(count).unwrap_or(u32::MAX);
    let new = NewMember { uuid: new_identity(), path: path.to_owned(), segment_count };
    array.extend(medium, new).await?;
    grow(drive, array, path).await
}

/// Grows the capacity to the sum of all members.
async fn grow(drive: &Drive, array: &Array<FileMedium>, path: &str) -> Result<()> {
    let segment_bytes = u64::from(drive.geometry().segment_bytes);
    let (first, count) = array.last_segments();
    let capacity_bytes = Some((u64::from(first) + u64::from(count)) * segment_bytes);
    drive.resize(Resize { capacity_bytes, size_bytes: None }).await?;
    tracing::info!(member = path, "a member was added to the array");
    Ok(())
}

/// Moves the data on the last member of a concatenation to the others, and removes that member.
async fn cut(drive: &Drive, array: &Array<FileMedium>, path: &str) -> Result<()> {
    let _turn = begin_copying(array)?;
    let uuid = array.member_at(path)?;
    array.check_last(uuid)?;
    let geometry = drive.geometry();
    let (first, _) = array.last_segments();
    if geometry.segment_count > first {
        let capacity_bytes = Some(u64::from(first) * u64::from(geometry.segment_bytes));
        drive.resize(Resize { capacity_bytes, size_bytes: None }).await?;
    }
    array.remove_member(uuid).await?;
    tracing::info!(member = path, "a member was removed from the array");
    Ok(())
}

fn begin_copying(array: &Array<FileMedium>) -> Result<Copying<'_, FileMedium>> {
    array.begin_copying().ok_or_else(|| {
        let what = "a member is being rebuilt: wait until the rebuild ends";
        Error::new(ErrorKind::Busy, what)
    })
}

/// Completes the members that are being rebuilt. The members that they replace then leave the
/// array.
async fn rebuild(
    drive: &Drive,
    array: &Array<FileMedium>,
    _copying: &Copying<'_, FileMedium>,
) -> Result<()> {
    let copy = async |segment, range, show: &mut dyn FnMut(u32, &[u8])| {
        array.copy(segment, range, show).await
    };
    drive.copy_in_use(|bytes| array.begin_progress(bytes), copy).await?;
    array.finish_rebuild().await
}

/// Continues an interrupted rebuild of members, in a task of its own.
pub(crate) fn go_on(runtime: &Runtime, drive: &Rc<Drive>) {
    if drive.is_read_only() || !array_of(drive).is_ok_and(Array::is_rebuilding) {
        return;
    }
    let drive = Rc::downgrade(drive);
    runtime.spawn(async move {
        let Some(drive) = drive.upgrade() else { return };
        tracing::info!("restarting the rebuild of a member of the array");
        let completed = async {
            let array = array_of(&drive)?;
            rebuild(&drive, array, &begin_copying(array)?).await
        };
        if let Err(error) = completed.await {
            tracing::warn!(error = %error.chain(), "a member of the array was not rebuilt");
        }
    });
}

/// Turns a drive on one file or device, which is not in use, into a mirror with this one member.
///
/// # Errors
/// Errors of the medium.
pub(crate) async fn to_mirror(medium: FileMedium) -> Result<Storage> {
    let (path, cipher) = (medium.path().to_owned(), medium.cipher().clone());
    let new = NewMember { uuid: new_identity(), path: members::shown(&path)?, segment_count: 0 };
    let (layout, clock) = (ArrayLayout::Mirror, medium.runtime().clone());
    let array = Array::create(new_identity(), layout, vec![(medium, new)]).await?;
    let array = array.with_patience(Patience::new(&clock, PATIENCE_NS));
    Ok(Storage::new(array, path).with_cipher(cipher))
}

/// Returns the path of a member, as it is listed.
///
/// # Errors
/// `InvalidInput` if the path is not UTF-8.
pub(crate) fn listed(path: &Path) -> Result<String> {
    members::shown(&PathBuf::from(path))
}
