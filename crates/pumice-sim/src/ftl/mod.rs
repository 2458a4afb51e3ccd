//! Flash translation layers without content: where a block is, not what is in it.
//!
//! ```text
//! log        LogFtl: the order of steps of write, read, trim and flush
//!   collect  emptying victims, at the pace of the host
//! spec       what a drive is made of, and what it takes in memory
//! sizes      how many bytes a block takes
//! layout     a place in a segment <-> die, row and page; the 32 bits of a map entry
//! segments   live bytes, erase blocks, victims
//! reverse    which blocks of the host a segment holds, in few bits
//! drain      rows that wait for their die, and when they are done
//! counts     what was written, by whom
//! sample     a small drive for tests
//! ```

mod counts;
mod drain;
mod layout;
mod log;
mod reverse;
#[cfg(test)]
pub mod sample;
mod segments;
mod sizes;
mod spec;

pub use counts::{Amplification, LogCounts};
pub use log::LogFtl;
pub use sizes::StoredSizes;
pub use spec::{LogSpec, VictimPolicy};

/// Bytes of a block of the host.
pub const BLOCK_BYTES: u32 = pumice_drive::base::units::BLOCK_BYTES as u32;
