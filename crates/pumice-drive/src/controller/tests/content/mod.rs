//! Whatever the host does, the disk reads as written.

mod chunks;
mod divided;
pub(super) mod encryption;
mod extents;
mod extracting;
mod model;
mod paging;
pub(super) mod reading;
mod reading_ahead;
mod rekey;
mod reordering;
pub(super) mod simulated;
mod threads;
mod warming;
mod zeroes;

use super::*;
