//! What a drive does for itself, beside the host's requests.
//!
//! * `checkpoint`: the map and the segment table on the medium.
//! * `gc`: emptying segments, record by record (`moving`), or several frames as one (`joining`).
//! * `resize`: another size, another capacity.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

mod checkpoint;
mod gc;
mod joining;
mod moving;
mod resize;

#[cfg(test)]
pub(crate) use moving::Mover;
pub use resize::{Resize, Resized};
