//! Snapshots, bookmarks and clones hold what they were taken of, and go to other drives.

mod bookmarks;
pub(super) mod clones;
mod emptying;
mod flattened;
mod holding;
mod retaining;
mod rollback;
mod sent_clones;
pub(super) mod shrinking_kept;
pub(super) mod snapshots;
mod taking;
pub(super) mod transfer;
mod views;

use super::*;
