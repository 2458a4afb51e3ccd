//! The two superblock slots of a medium: choosing the newest valid one, and writing in turn.

use crate::base::{AlignedBuffer, Error, ErrorKind, Result};
use crate::format::{SUPERBLOCK_BYTES, Superblock};
use crate::media::{Geometry, Medium, SUPERBLOCK_SLOTS};

/// A superblock and its slot.
#[derive(Clone, Debug)]
pub(crate) struct StoredSuperblock {
    /// The superblock.
    pub(crate) superblock: Superblock,
    /// The slot it was read from.
    pub(crate) slot: u32,
}

/// The newest valid superblock, and what is wrong with the other slot, if it is not merely older.
pub(crate) struct Loaded {
    /// The superblock that counts.
    pub(crate) stored: StoredSuperblock,
    /// Errors of slots that hold no valid superblock.
    pub(crate) problems: Vec<Error>,
}

/// Reads both slots.
///
/// # Errors
/// As [`load_any`]; `Corrupt` for the target of a rebuild that has not ended.
pub(crate) async fn load<M: Medium>(medium: &M) -> Result<Loaded> {
    let loaded = load_any(medium).await?;
    if loaded.stored.superblock.incomplete {
        let what = "it is an incomplete rebuild, and parts of its disk are missing: run `pumice \
                    rebuild SOURCE TARGET --force` again";
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    Ok(loaded)
}

/// Reads both slots, also those of an incomplete drive.
///
/// # Errors
/// `Medium` if no slot is valid and one cannot be read; `NotADrive` if no slot has the magic;
/// `Unsupported` if either was written by a newer version; `Corrupt` if neither is valid.
pub(crate) async fn load_any<M: Medium>(medium: &M) -> Result<Loaded> {
    let mut newest: Option<StoredSuperblock> = None;
    let mut problems = Vec::new();
    for slot in 0..SUPERBLOCK_SLOTS {
        let read = medium.read_superblock(slot).await;
        match read.and_then(|bytes| Superblock::decode(&bytes)) {
            Ok(found) => {
                let is_newer =
                    |other: &StoredSuperblock| found.revision > other.superblock.revision;
                if newest.as_ref().is_none_or(is_newer) {
                    newest = Some(StoredSuperblock { superblock: found, slot });
                }
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
            Err(error) => problems.push((slot, error)),
        }
    }
    match newest {
        Some(stored) => {
            let named = |(slot, error): (u32, Error)| {
                Error::new(ErrorKind::Corrupt, format!("superblock slot {slot} is damaged"))
                    .caused_by(error)
            };
            let problems = problems.into_iter().map(named).collect();
            Ok(Loaded { stored, problems })
        }
        None => Err(no_superblock(problems)),
    }
}

/// Returns why there is no drive to open.
fn no_superblock(problems: Vec<(u32, Error)>) -> Error {
    let kinds: Vec<ErrorKind> = problems.iter().map(|(_, error)| error.kind()).collect();
    if let Some(unreadable) = kinds.iter().position(|kind| *kind == ErrorKind::Medium) {
        return problems.into_iter().nth(unreadable).expect("just found").1;
    }
    if kinds.iter().all(|kind| *kind == ErrorKind::NotADrive) {
        return Error::new(ErrorKind::NotADrive, "it holds no Pumice drive");
    }
    let what = "both superblocks of the drive are damaged: make a working drive of what is left \
                with `pumice rebuild`";
    Error::new(ErrorKind::Corrupt, what)
}

/// Writes a superblock with the next revision to one slot. Not durable before a sync.
///
/// # Errors
/// `Medium`.
pub(crate) async fn store_next<M: Medium>(
    medium: &M,
    slot: u32,
    superblock: &mut Superblock,
) -> Result<()> {
    superblock.revision = superblock.revision.saturating_add(1);
    store(medium, slot, superblock).await
}

/// Writes a superblock to one slot. Not durable before a sync.
///
/// # Errors
/// `Medium`.
pub(crate) async fn store<M: Medium>(medium: &M, slot: u32, superblock: &Superblock) -> Result<()> {
    superblock.check_invariants();
    let mut bytes = AlignedBuffer::zeroed(SUPERBLOCK_BYTES);
    bytes.copy_from_slice(&superblock.encode());
    medium.write_superblock(slot, bytes).await
}

/// Returns the geometry of the medium that a superblock describes.
pub(crate) fn geometry(superblock: &Superblock) -> Geometry {
    Geometry {
        segment_bytes: superblock.segment_bytes,
        segment_count: superblock.segment_count,
        data_offset: superblock.data_offset,
    }
}
