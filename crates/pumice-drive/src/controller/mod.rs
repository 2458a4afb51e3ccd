//! The drive.
//!
//! ```text
//!   rebuild, transfer ------------------+      a new drive from the remains of one; snapshots
//!                                       |      sent to another drive
//!   inspect    maintenance   operations |      inspection | background work | host requests
//!        \          |           /       |
//!         +------ drive -------+--------+      the shell: I/O, waiting, buffers, open and close
//!                   |      \
//!                   |      recovery            builds the core when a drive is opened
//!                   |      /
//!                  core                        all state of an open drive; never waits
//!                /  |   \
//!             map  log  space                  block -> frame | order of batches | live bytes
//!                \  |   /
//!                 place                        addresses in the log
//! ```
//!
//! Imports point down only. `create` creates a drive, `options` contains the options for opening
//! one. The shell is async code over two seams, [`Medium`](crate::media::Medium) and
//! [`Clock`](crate::base::Clock), on one thread; it never names a socket, a thread or a runtime.
//! The header of `core` describes the core.

mod core;
mod create;
mod drive;
mod inspect;
mod keys;
mod log;
mod maintenance;
mod map;
mod operations;
mod options;
mod place;
mod rebuild;
mod recovery;
mod space;
#[cfg(test)]
mod tests;
mod transfer;

pub use self::core::{Condition, NewSnapshot, WARN_THRESHOLDS_MAX};
pub use crate::base::clock::Task;
pub use crate::format::{KeyArea, KeySlot, Origin, RegisteredClone, SlotKind};
pub use create::{
    DATA_OFFSET, FRAME_BLOCKS_DEFAULT, OVER_PROVISIONING_PERCENT_DEFAULT, SEGMENT_BYTES_DEFAULT,
    Spec, create,
};
pub use drive::{Drive, ScrubProgress, is_flat_on, origin_on};
pub use inspect::{
    Alert, AlertKind, Audit, CellState, CheckReport, Checked, Depth, Extract, Extracted, Info,
    KeptAudit, MapCell, Memory, Operations, OriginInfo, Overview, Partial, Problem, ScrubReport,
    SegmentMap, Taken, check, check_snapshot,
};
pub use keys::{KeyChange, Locked, NewKeys, SlotInfo, change_keys, new_keys};
pub use log::framing::{Span, spans};
pub use log::packing::ATOMIC_WRITE_BYTES;
pub use maintenance::{
    Compacted, Flattened, Rekeyed, Resize, Resized, SettingsChange, SettingsChanged, SnapshotInfo,
    StoredSettings, SuspendedChanges,
};
pub use operations::{Allocation, Changed, Compared, Content, Extent};
pub use options::{COMPACT_PERCENT_DEFAULT, OpenOptions, READ_AHEAD_BYTES_DEFAULT};
pub use rebuild::{
    DamagedDrive, Finder, Identity, Parts, RebuiltFrom, complete_target, copy_into, create_target,
};
pub use space::benefit_over_cost;
pub use transfer::{
    Receive, Received, SendStream, Sent, TransferReader, View, transfer_batch_bytes,
};
