//! What a drive does for itself, beside the host's requests.
//!
//! * `checkpoint`: the map and the segment table on the medium.
//! * `gc`: emptying segments, record by record (`moving`), or several frames as one (`joining`).
//! * `clones`: which drives read from snapshots of this one. `flatten`: reading from none.
//! * `holding`: emptying segments that snapshots need.
//! * `compact`: giving back to the medium what is dead. `copying`: another place for all of it.
//! * `warm`: discarding and zeroing segments that are free.
//! * `snapshot`: checkpoints that are kept.
//! * `resize`: another size, another capacity. `rekey`: another master key. `emptying`: waiting for
//!   what both empty. `settings`: another codec, other thresholds.

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
mod holding;
mod joining;
mod kept_metadata;
pub(crate) mod moving;
mod rekey;
mod resize;
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
pub use snapshot::{HeldChanges, SnapshotInfo};
