//! Examining a drive without changing it.
//!
//! * `info`, `overview`: properties of an open drive, and its state. `warn`: warnings about space.
//! * `scrub`: reads all data of an open drive. `extract`: reads the whole disk.
//! * `check`: checks a drive that is not open. `audit`: recounts the accounts of an open one.
//!   `audit_kept`: checks that each of its snapshots still has each of its blocks.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

mod audit;
mod audit_kept;
mod check;
mod extract;
mod frames;
mod info;
mod overview;
mod problem;
mod scrub;
mod warn;

pub use audit::{Audit, Taken};
pub use audit_kept::KeptAudit;
pub use check::{CheckReport, Checked, Depth, check, check_snapshot};
pub use extract::{Extract, Extracted};
pub(crate) use frames::check_frame;
pub use info::{Info, Memory, Operations, OriginInfo, Partial};
pub use overview::{Alert, AlertKind, CellState, MapCell, Overview, SegmentMap};
pub use problem::Problem;
pub use scrub::ScrubReport;
