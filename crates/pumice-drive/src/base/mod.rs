//! The foundation of every other module: units and newtypes, errors, time, seeded randomness,
//! aligned buffers, checksums and waiting.
//!
//! It does not know what a drive is and imports no other module of the crate.
//!
//! Most names that an embedder needs are re-exported at the [root](crate) of the crate. The rest of
//! this module serves the other crates of the workspace.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

pub mod aligned;
pub mod checksum;
pub mod clock;
pub mod error;
pub mod near;
pub mod seed;
pub mod units;
pub mod wait;

pub use aligned::AlignedBuffer;
pub use clock::Clock;
pub use error::{Error, ErrorContext, ErrorKind, OsContext, Remedy, Result, chain, ensure};
pub use units::{Lba, SegmentId, SeqNo};
