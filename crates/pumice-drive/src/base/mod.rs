//! What every room stands on: units and newtypes, errors, time, seeded randomness, aligned
//! buffers, checksums, waiting.
//!
//! Does not know what a drive is. Imports nothing from the other rooms.

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
pub use error::{Error, ErrorContext, ErrorKind, OsContext, Result, ensure};
pub use units::{Lba, SegmentId, SeqNo};
