//! The members of an array as files: their headers and paths.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pumice_drive::base::{AlignedBuffer, Error, ErrorKind, Result};
use pumice_drive::format::{ARRAY_HEADER_BYTES, ArrayHeader, MemberState};
use pumice_drive::media::file::FileMedium;
use pumice_drive::media::{Medium, SLOTS, SUPERBLOCK_SLOTS, slot_offset};

/// Time that a member may keep the drive waiting for work that another one has completed: as long
/// as the kernel waits for a command of a disk before it resets the disk, and less than hosts wait
/// for a drive.
pub(crate) const PATIENCE_NS: u64 = 30_000_000_000;

/// Overwrites the headers of a medium that was a member of an array.
///
/// # Errors
/// Errors of the medium.
pub(crate) async fn leave_array(medium: &FileMedium) -> Result<()> {
    for slot in SUPERBLOCK_SLOTS..SLOTS {
        let is_blank = |bytes: &AlignedBuffer| bytes.iter().all(|&byte| byte == 0);
        if !medium.read_superblock(slot).await.is_ok_and(|bytes| is_blank(&bytes)) {
            medium.write_superblock(slot, AlignedBuffer::zeroed(ARRAY_HEADER_BYTES)).await?;
            medium.sync().await?;
        }
    }
    Ok(())
}

/// Returns the header of the member at a path, without locking it; `None` if it is not a member.
pub(crate) fn header_at(path: &Path) -> Option<ArrayHeader> {
    let file = File::open(path).ok()?;
    let mut newest: Option<ArrayHeader> = None;
    for slot in SUPERBLOCK_SLOTS..SLOTS {
        let mut bytes = [0; ARRAY_HEADER_BYTES];
        let read = file.read_exact_at(&mut bytes, slot_offset(slot));
        let Ok(header) =
            read.map_err(|_| ()).and_then(|()| ArrayHeader::decode(&bytes).map_err(|_| ()))
        else {
            continue;
        };
        if newest.as_ref().is_none_or(|newest| newest.events < header.events) {
            newest = Some(header);
        }
    }
    newest
}

/// Returns the last known paths of the other members of the array of the one at `path`, those that
/// have everything first.
pub(crate) fn companions(path: &Path) -> Vec<PathBuf> {
    let Some(header) = header_at(path) else { return Vec::new() };
    let others = header.members.iter().filter(|member| member.uuid != header.own);
    let (active, rest): (Vec<_>, Vec<_>) =
        others.partition(|member| member.state == MemberState::Active);
    let all = active.into_iter().chain(rest);
    all.flat_map(|member| places(path, &member.path, &[])).collect()
}

/// Returns the paths at which a member may be whose last path was `last`.
pub(crate) fn places(named: &Path, last: &str, others: &[PathBuf]) -> Vec<PathBuf> {
    let last = PathBuf::from(last);
    let beside = last.file_name().map(|name| named.with_file_name(name));
    let mut places: Vec<PathBuf> = [Some(last), beside].into_iter().flatten().collect();
    places.extend(others.iter().cloned());
    places.retain(|path| path.is_absolute() || path.components().count() > 0);
    places.dedup();
    places
}

/// Returns a path in the form that headers use: absolute.
///
/// # Errors
/// `InvalidInput` if the path is not UTF-8.
pub(crate) fn shown(path: &Path) -> Result<String> {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let wrong = || {
        let what = format!("{} is not UTF-8: rename it", path.display());
        Error::new(ErrorKind::InvalidInput, what)
    };
    whole.to_str().map(ToOwned::to_owned).ok_or_else(wrong)
}
