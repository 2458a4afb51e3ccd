//! The requests of a host, and the tasks that write its data to the medium.
//!
//! * `write`, `trim`, `read`, `flush`: one file for each request.
//! * `read_ahead`: reading ahead of sequential readers.
//! * `extents`: the content of a range, and loading it ahead of a read.
//! * `diff`: differences from an earlier snapshot. `ages`: the ages of moved blocks.
//! * `write_back`: sealed batches to the medium.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

mod ages;
mod diff;
mod extents;
mod flush;
mod read;
mod read_ahead;
mod read_chunks;
mod reorder;
mod trim;
mod write;
mod write_back;

pub use diff::{Changed, Compared};
pub(crate) use diff::{Difference, Differences};
pub use extents::{Content, Extent};
pub(crate) use read::{READS_AT_ONCE, group_len};
pub use trim::Allocation;
