//! Drives in a bucket of an S3-compatible object store: their places, access to the store, and the
//! opening of such a drive.
//!
//! * `place`: `s3://BUCKET/NAME`.
//! * `prices`: the cost of a bucket.
//! * `remote`: the opening; `absent` takes its place in a program without the feature `objects`.
//! * `s3`: the store, on a thread of its own with a runtime of its own.
//! * `settings`: how it is reached. `answers`: the meaning of its errors.
//!
//! `pumice_drive::media::tier` describes drives in buckets.

#[cfg(feature = "objects")]
mod answers;
#[cfg(not(feature = "objects"))]
#[path = "absent.rs"]
mod remote;
#[cfg(feature = "objects")]
mod remote;
#[cfg(feature = "objects")]
mod s3;
#[cfg(feature = "objects")]
mod settings;

mod place;
mod prices;

pub(crate) use place::BucketPlace;
pub(crate) use prices::{Cost, Prices};
#[cfg(feature = "objects")]
pub(crate) use remote::host;
pub(crate) use remote::{diskless, is_stale, journal_of, newer, view, with_journal};
#[cfg(feature = "objects")]
pub(crate) use s3::S3;
