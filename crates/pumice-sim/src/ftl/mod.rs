//! Flash translation layers without contents: they store the address of each block, but not its
//! bytes.
//!
//! ```text
//! log        LogFtl: the order of steps of write, read, trim and flush
//!   collect  empties victims at the pace of the host
//!   faults   failed parts of the flash: rebuilt from parity, or lost
//! spec       the parameters of a drive, and its memory use
//! sizes      the stored size of each block
//! layout     an offset in a segment <-> die, row and page; the 32 bits of a map entry
//! segments   live bytes, erase blocks, victims
//! reverse    the blocks of the host that a segment holds, in few bits
//! drain      rows that wait for their die, and when they are done
//! counts     written bytes by cause
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
pub use log::{Fault, FaultKind, LogFtl, ReadTimes, RebuildTimes};
pub use segments::VictimPolicy;
pub use sizes::StoredSizes;
pub use spec::LogSpec;

/// Size of a host block in bytes.
pub const BLOCK_BYTES: u32 = pumice_drive::base::units::BLOCK_BYTES as u32;
