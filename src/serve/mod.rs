//! Host protocols.
//!
//! Knows no segment: everything it serves is a [`Disk`].

pub mod control;
pub mod disk;
#[cfg(feature = "attach")]
pub mod fuse;
#[cfg(feature = "http")]
pub mod http;
pub mod listen;
pub mod nbd;
#[cfg(test)]
mod test_disk;
pub mod watch;

pub use disk::Disk;
pub use listen::{Access, Listen, Listener};
