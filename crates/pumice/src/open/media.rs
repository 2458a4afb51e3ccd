//! The medium of a drive: one file or device, an array of them, which is found through any member,
//! or a bucket with a journal.
//!
//! ```text
//! path -> header of a member? -> the paths of all members -> those that are there -> array
//!            no: a journal? -> the bucket that it names
//!            no: a file or device alone
//! ```
//!
//! A member is looked for at its last path, and next to the member that was named; identities
//! decide whether it is the right one. Members that were moved are named on the command line, too.

use std::path::Path;

use crate::holder::Holder;
use crate::members::{PATIENCE_NS, header_at, places, shown};
use crate::objects::{self, BucketPlace};
use crate::storage::{Absent, Access, Storage};
use pumice_drive::Drive;
use pumice_drive::base::clock::while_busy;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::media::AnyMedium;
use pumice_drive::media::array::{Array, Assembly, Patience, read_header};
use pumice_drive::media::file::{FileMedium, FileOptions, PathWatch};
use pumice_drive::media::tier::place_of;
use pumice_drive::runtime::Runtime;

/// Opens a file or device.
///
/// # Errors
/// Errors of [`FileMedium::open`]; if another process is using it, its name.
pub(super) fn open_file(runtime: &Runtime, path: &Path, access: &Access) -> Result<FileMedium> {
    let options = FileOptions::default()
        .with_direct(true)
        .with_read_only(access.read_only)
        .with_truncated(access.truncated)
        .with_unlocked(access.unlocked);
    FileMedium::open(runtime.clone(), path, options).map_err(|error| match Holder::of(path) {
        Some(holder) if error.kind() == ErrorKind::Busy => holder.refusal(path),
        _ => error,
    })
}

/// Opens a drive in a bucket without a journal.
///
/// # Errors
/// The bucket would be written, and the user did not allow this without a journal; the bucket
/// cannot be used.
pub(super) async fn in_bucket(
    runtime: &Runtime,
    place: &BucketPlace,
    access: &Access,
) -> Result<Storage> {
    let storage = match access.diskless && !access.read_only {
        true => Box::pin(objects::diskless(runtime, place)).await,
        false => Box::pin(objects::view(runtime, place, access.read_only)).await,
    };
    Ok(storage?.with_access(access))
}

/// Completes the medium that was opened at a path: if it is a member of an array, the others are
/// opened; if it is a journal, its bucket.
///
/// # Errors
/// Errors of [`Array::assemble`], and of opening a member that is present, or the bucket.
pub(crate) async fn complete(
    runtime: &Runtime,
    file: FileMedium,
    access: &Access,
) -> Result<Storage> {
    let header = match read_header(&file).await {
        Ok(Some(header)) => header,
        Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
        // The superblocks of a medium without a header tell its kind.
        Ok(None) | Err(_) => return without_array(runtime, file, access).await,
    };
    let named = file.path().to_owned();
    let clock = file.runtime().clone();
    let (mut newest, mut seen) = (header.clone(), vec![header.own]);
    let mut members = vec![(file, shown(&named)?)];
    // A header that is found later may list members that the first one does not know.
    while let Some(member) = newest.members.iter().find(|member| !seen.contains(&member.uuid)) {
        seen.push(member.uuid);
        let places = places(&named, &member.path, &access.members);
        let found = places.iter().find_map(|path| {
            let found = header_at(path)?;
            let is_member = (found.array, found.own) == (header.array, member.uuid);
            is_member.then_some((path, found))
        });
        let Some((path, found)) = found else { continue };
        match while_busy(&clock, || open_file(runtime, path, access)).await {
            Ok(medium) => members.push((medium, shown(path)?)),
            Err(error) if error.kind() == ErrorKind::Busy => return Err(error),
            Err(error) => tracing::warn!(
                member = %path.display(),
                error = %error.chain(),
                "a member of the array cannot be opened"
            ),
        }
        if found.events > newest.events {
            newest = found;
        }
    }
    let assembly = Assembly::default()
        .with_read_only(access.read_only)
        .with_absent(access.absent == Absent::Allowed)
        .with_degraded(access.absent == Absent::AndApart)
        .with_patience(Patience::new(&clock, PATIENCE_NS));
    let array = Array::assemble(members, assembly).await?;
    Ok(Storage::new(array, named).with_access(access))
}

/// Returns the medium of a journal, or of a file or device alone.
async fn without_array(runtime: &Runtime, file: FileMedium, access: &Access) -> Result<Storage> {
    let place = match place_of(&file).await {
        Ok(Some(place)) => place,
        Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
        Ok(None) | Err(_) => return Ok(Storage::of_file(file).with_access(access)),
    };
    if access.unlocked {
        let what = format!(
            "{} is the journal of {place}: a clone cannot read from a drive in a bucket",
            file.path().display()
        );
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let how = (access.read_only, access.fenced);
    let storage = Box::pin(objects::with_journal(runtime, file, &place, how)).await?;
    Ok(storage.with_access(access))
}

/// Returns the results of a function for the local files and devices of a medium.
fn of_files<T>(medium: &dyn AnyMedium, what: impl Fn(&FileMedium) -> T) -> Vec<T> {
    if let Some(array) = medium.downcast_ref::<Array<FileMedium>>() {
        return array.media().iter().map(|medium| what(medium)).collect();
    }
    let file = medium.downcast_ref().or_else(|| objects::journal_of(medium));
    file.map(what).into_iter().collect()
}

/// Returns the size of the file or device of a medium in bytes; for an array, the size of its first
/// one; for a bucket, the size of the journal.
pub(crate) fn bytes(storage: &Storage) -> u64 {
    of_files(&**storage, FileMedium::bytes).first().copied().unwrap_or(0)
}

/// Whether a drive bypasses the page cache.
pub(crate) fn is_direct(drive: &Drive) -> bool {
    of_files(drive.medium(), FileMedium::is_direct).into_iter().all(|is_direct| is_direct)
}

/// Returns the watchers that check whether the paths of a drive still lead to its files.
pub(crate) fn path_watch(drive: &Drive) -> Vec<PathWatch> {
    of_files(drive.medium(), FileMedium::path_watch)
}
