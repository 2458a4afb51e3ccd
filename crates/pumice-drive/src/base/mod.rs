//! The foundation of every other module: units and newtypes, errors, time, seeded randomness,
//! aligned buffers, checksums and waiting.
//!
//! This module has no notion of a drive and imports no other module of the crate.
//!
//! The [root](crate) of the crate re-exports most names that an embedder needs. The rest of this
//! module serves the other crates of the workspace.

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
