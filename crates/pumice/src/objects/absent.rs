//! The medium of a drive in a bucket, in a program that was built without buckets: it has no
//! values.

use std::path::Path;
use std::sync::Arc;

use super::BucketPlace;
use pumice_drive::base::{AlignedBuffer, Error, ErrorKind, Result, SegmentId};
use pumice_drive::crypt::Cipher;
use pumice_drive::media::file::FileMedium;
use pumice_drive::media::{Capabilities, Geometry, Medium};
use pumice_drive::runtime::Runtime;

/// A drive in a bucket, which cannot exist here.
pub(crate) enum Remote {}

impl Remote {
    /// Returns the local file.
    pub(crate) fn journal(&self) -> Option<&FileMedium> {
        match *self {}
    }

    /// Returns the path with which the drive was opened.
    pub(crate) fn path(&self) -> &Path {
        match *self {}
    }

    /// Returns the image of a newer commit.
    ///
    /// # Errors
    /// None.
    pub(crate) async fn newer(&self) -> Result<Option<Self>> {
        match *self {}
    }

    /// Whether an object that the image names is no longer in the bucket.
    pub(crate) fn is_stale(&self) -> bool {
        match *self {}
    }

    /// Sets the keys of the drive.
    pub(crate) fn set_cipher(&mut self, _: Cipher) {
        match *self {}
    }
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
) -> Result<Remote> {
    Err(refused(&format!("{} ({place})", journal.path().display())))
}

/// Refuses a bucket.
///
/// # Errors
/// Always.
pub(crate) async fn diskless(_: &Runtime, place: &BucketPlace) -> Result<Remote> {
    Err(refused(&place.to_string()))
}

/// Refuses a bucket.
///
/// # Errors
/// Always.
pub(crate) async fn view(_: &Runtime, place: &BucketPlace, _: bool) -> Result<Remote> {
    Err(refused(&place.to_string()))
}

impl Medium for Remote {
    fn capabilities(&self) -> Capabilities {
        match *self {}
    }

    fn set_geometry(&self, _: Geometry) -> Result<()> {
        match *self {}
    }

    async fn append(&self, _: SegmentId, _: u32, _: Arc<AlignedBuffer>) -> Result<()> {
        match *self {}
    }

    async fn read(&self, _: SegmentId, _: u32, _: AlignedBuffer) -> (AlignedBuffer, Result<()>) {
        match *self {}
    }

    async fn sync(&self) -> Result<()> {
        match *self {}
    }

    async fn discard(&self, _: SegmentId) -> Result<()> {
        match *self {}
    }

    async fn read_superblock(&self, _: u32) -> Result<AlignedBuffer> {
        match *self {}
    }

    async fn write_superblock(&self, _: u32, _: AlignedBuffer) -> Result<()> {
        match *self {}
    }
}
