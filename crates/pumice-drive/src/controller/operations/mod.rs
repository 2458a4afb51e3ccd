//! What a host asks of a drive, and the tasks that write what it wrote to the medium.
//!
//! * `write`, `trim`, `read`, `flush`: one file for each request.
//! * `read_aside`: long reads that several threads decode.
//! * `read_ahead`: what sequential readers will ask for next.
//! * `extents`: what a range holds, and loading it ahead of a read.
//! * `diff`: what differs from an earlier snapshot. `ages`: how old moved blocks are.
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
mod read_aside;
mod read_blocks;
mod trim;
mod write;
mod write_back;

pub use diff::{Changed, Compared};
pub(crate) use diff::{Difference, Differences};
pub use extents::{Content, Extent};
pub(crate) use read::{READS_AT_ONCE, group_len};
