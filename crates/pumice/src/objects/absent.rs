//! Drives in a bucket, in a program that was built without buckets: none can be opened.

use super::BucketPlace;
use crate::storage::Storage;
use pumice_drive::Drive;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::media::AnyMedium;
use pumice_drive::media::file::FileMedium;
use pumice_drive::runtime::Runtime;

/// Returns `None`: no drive is in a bucket.
pub(crate) fn journal_of(_: &dyn AnyMedium) -> Option<&FileMedium> {
    None
}

/// Returns `None`: no drive is in a bucket.
///
/// # Errors
/// None.
pub(crate) async fn newer(_: &Drive) -> Result<Option<Storage>> {
    Ok(None)
}

/// Returns false: no drive is in a bucket.
pub(crate) fn is_stale(_: &Drive) -> bool {
    false
}

fn refused(place: &str) -> Error {
    let what = format!("{place} is a drive in a bucket: this pumice was built without `objects`");
    Error::new(ErrorKind::Unsupported, what)
}

/// Refuses a journal.
///
/// # Errors
/// Always.
pub(crate) async fn with_journal(
    _: &Runtime,
    journal: FileMedium,
    place: &str,
    _: (bool, bool),
) -> Result<Storage> {
    Err(refused(&format!("{} ({place})", journal.path().display())))
}

/// Refuses a bucket.
///
/// # Errors
/// Always.
pub(crate) async fn diskless(_: &Runtime, place: &BucketPlace) -> Result<Storage> {
    Err(refused(&place.to_string()))
}

/// Refuses a bucket.
///
/// # Errors
/// Always.
pub(crate) async fn view(_: &Runtime, place: &BucketPlace, _: bool) -> Result<Storage> {
    Err(refused(&place.to_string()))
}
