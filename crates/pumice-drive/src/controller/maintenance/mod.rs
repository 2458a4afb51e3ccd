//! The maintenance of a drive, in addition to the host's requests.
//!
//! * `checkpoint`: the map and the segment table on the medium.
//! * `gc`: emptying segments, record by record (`moving`).
//! * `clones`: registering drives that read from snapshots of this one. `flatten`: making a clone
//!   independent of its origin.
//! * `retained`: emptying segments that snapshots need.
//! * `compact`: returning dead space to the medium. `copying`: copying the drive to another place.
//! * `warm`: discarding and zeroing free segments.
//! * `snapshot`: retained checkpoints.
//! * `resize`: changing size and capacity. `rekey`: changing the master key. `emptying`: waiting
//!   for the segments that these two empty. `settings`: changing the codec and the thresholds.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

mod checkpoint;
mod clones;
mod compact;
mod copying;
mod emptying;
mod flatten;
mod gc;
mod kept_metadata;
pub(crate) mod moving;
mod rekey;
mod resize;
mod retained;
mod rollback;
mod settings;
mod snapshot;
mod warm;

pub use compact::Compacted;
pub use flatten::Flattened;
#[cfg(test)]
pub(crate) use moving::Mover;
pub use rekey::Rekeyed;
pub use resize::{Resize, Resized};
pub use settings::{SettingsChange, SettingsChanged, StoredSettings};
pub use snapshot::{SnapshotInfo, SuspendedChanges};
