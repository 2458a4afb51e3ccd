//! Simulated drives with real bytes, attached to a host's link, in virtual time.
//!
//! ```text
//! host -> front: queue, link, processor -> log           a map of blocks, on flash
//!                                       -> block-mapped  a map of large units, on flash
//!                                       -> disk          a head over platters
//!                                       -> memory
//!                                       -> cached        a fast drive before a slow one
//! ```
//!
//! **Cost model**: only the flash, the platters and the front end take virtual time. Compression
//! and map lookups take no time of their own; a profile includes them in the duration of a command.
//! The contents of the drive are in memory, as written by the host.

pub mod cached;
mod design;
mod log;
mod simulated;
mod spec;
#[cfg(test)]
mod tests;

pub use design::{DesignCounts, SimCounts};
pub use simulated::SimDrive;
pub use spec::{SimDesign, SimSpec};
