//! The two superblock slots of a medium: choosing the newest valid one, and writing them in turn.

use crate::base::{AlignedBuffer, Error, ErrorKind, Remedy, Result};
use crate::crypt::Cipher;
use crate::format::{SUPERBLOCK_BYTES, Superblock};
use crate::media::{AnyMedium, CopyId, Geometry, SUPERBLOCK_SLOTS};

/// A superblock and its slot.
#[derive(Clone, Debug)]
pub(crate) struct StoredSuperblock {
    pub(crate) superblock: Superblock,
    /// The slot from which it was read.
    pub(crate) slot: u32,
}

/// The newest valid superblock, and the errors of the other slot, unless it is merely older.
pub(crate) struct Loaded {
    /// The superblock that counts.
    pub(crate) stored: StoredSuperblock,
    /// Errors of slots that contain no valid superblock.
    pub(crate) problems: Vec<Error>,
    /// Copies of each slot.
    pub(crate) copies: usize,
}

/// Reads both slots.
///
/// # Errors
/// The errors of [`load_any`]; `Corrupt` for the target of a rebuild that has not ended;
/// `InvalidInput` for a member of an array that is opened alone.
pub(crate) async fn load(medium: &dyn AnyMedium) -> Result<Loaded> {
    let loaded = load_any(medium).await?;
    if loaded.stored.superblock.incomplete {
        let what = "it is an incomplete rebuild, and parts of its disk are missing: run the \
                    rebuild again";
        return Err(Error::new(ErrorKind::Corrupt, what).with_remedy(Remedy::Overwrite));
    }
    if loaded.stored.superblock.is_array && medium.as_array().is_none() {
        let what = "it is a member of an array whose headers cannot be read: open the array by \
                    another member, or save the data of this one with a rebuild";
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    Ok(loaded)
}

/// Reads both slots, in every copy, including those of an incomplete drive.
///
/// # Errors
/// `Medium` if no slot is valid and one cannot be read; `NotADrive` if no slot has the magic;
/// `Unsupported` if either was written by a newer version; `PermissionDenied` if the medium lacks
/// the keys of an encrypted drive, or has keys and the drive is not encrypted; `Corrupt` if neither
/// is valid.
pub(crate) async fn load_any(medium: &dyn AnyMedium) -> Result<Loaded> {
    let mut newest: Option<StoredSuperblock> = None;
    let mut problems = Vec::new();
    let copies = medium.copies();
    let slots = 0..SUPERBLOCK_SLOTS;
    for (slot, &copy) in slots.flat_map(|slot| copies.iter().map(move |copy| (slot, copy))) {
        let read = match medium.as_array().filter(|_| copies.len() != 1) {
            None => medium.read_superblock(slot).await,
            Some(array) => array.read_superblock_copy(copy, slot).await,
        };
        match read.and_then(|bytes| verified(&bytes, medium.cipher())) {
            Ok(found) => {
                let is_newer =
                    |other: &StoredSuperblock| found.revision > other.superblock.revision;
                if newest.as_ref().is_none_or(is_newer) {
                    newest = Some(StoredSuperblock { superblock: found, slot });
                }
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied) =>
            {
                return Err(error);
            }
            Err(error) => problems.push((slot, copy, error)),
        }
    }
    match newest {
        Some(stored) => {
            // A member that was removed in the meantime is no longer part of the drive.
            let present = medium.copies();
            problems.retain(|(_, copy, _)| copies.len() == 1 || present.contains(copy));
            let named = |(slot, copy, error): (u32, CopyId, Error)| {
                let on = match copies.len() {
                    1 => String::new(),
                    _ => format!(" on {}", copy_name(medium, copy)),
                };
                let what = format!("superblock slot {slot} is damaged{on}");
                Error::new(ErrorKind::Corrupt, what).caused_by(error)
            };
            let problems = problems.into_iter().map(named).collect();
            Ok(Loaded { stored, problems, copies: copies.len() })
        }
        None => {
            let slots = problems.into_iter().map(|(slot, _, error)| (slot, error));
            Err(no_superblock(slots.collect()))
        }
    }
}

/// Returns the path of a copy of a medium.
pub(crate) fn copy_name(medium: &dyn AnyMedium, copy: CopyId) -> String {
    let members = medium.as_array().map(|array| array.info().members).unwrap_or_default();
    let found = members.into_iter().find(|member| member.copy == copy);
    found.map_or_else(|| "a member that was removed".to_owned(), |member| member.path)
}

/// Decodes a slot and verifies it with the keys.
fn verified(bytes: &[u8], cipher: &Cipher) -> Result<Superblock> {
    const DENIED: ErrorKind = ErrorKind::PermissionDenied;
    let superblock = Superblock::decode(bytes)?;
    match (superblock.keys.is_some(), cipher.is_plain()) {
        (true, true) => Err(Error::new(DENIED, "the drive is encrypted, and no key was given")),
        // Another drive may have been put in its place.
        (false, false) => {
            Err(Error::new(DENIED, "a key was given, and the drive is not encrypted"))
        }
        (false, true) => Ok(superblock),
        (true, false) => Superblock::check_mac(bytes, cipher).map(|()| superblock),
    }
}

/// Returns the reason why there is no drive to open.
fn no_superblock(problems: Vec<(u32, Error)>) -> Error {
    let kinds: Vec<ErrorKind> = problems.iter().map(|(_, error)| error.kind()).collect();
    if let Some(unreadable) = kinds.iter().position(|kind| *kind == ErrorKind::Medium) {
        return problems.into_iter().nth(unreadable).expect("just found").1;
    }
    if kinds.iter().all(|kind| *kind == ErrorKind::NotADrive) {
        return Error::new(ErrorKind::NotADrive, "it holds no Pumice drive");
    }
    let what = "both superblocks of the drive are damaged: make a working drive of the remaining \
                data with a rebuild";
    Error::new(ErrorKind::Corrupt, what)
}

/// Writes a superblock with the next revision to one slot. The write is not durable before a sync.
///
/// # Errors
/// `Medium`.
pub(crate) async fn store_next(
    medium: &dyn AnyMedium,
    slot: u32,
    superblock: &mut Superblock,
) -> Result<()> {
    superblock.revision = superblock.revision.saturating_add(1);
    store(medium, slot, superblock).await
}

/// Writes a superblock to one slot. The write is not durable before a sync.
///
/// # Errors
/// `Medium`.
pub(crate) async fn store(
    medium: &dyn AnyMedium,
    slot: u32,
    superblock: &Superblock,
) -> Result<()> {
    assert!(slot < SUPERBLOCK_SLOTS, "a superblock goes to one of two slots");
    superblock.check_invariants();
    let mut bytes = AlignedBuffer::zeroed(SUPERBLOCK_BYTES);
    bytes.copy_from_slice(&superblock.encode_with(medium.cipher()));
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
