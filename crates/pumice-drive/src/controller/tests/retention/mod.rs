//! Snapshots, bookmarks and clones preserve their original content, and can be sent to other
//! drives.

mod bookmarks;
pub(super) mod clones;
mod database;
mod emptying;
mod flattened;
mod retaining;
mod rollback;
mod sent_clones;
pub(super) mod shrinking_kept;
pub(super) mod snapshots;
mod taking;
pub(super) mod transfer;
mod views;

use super::*;
