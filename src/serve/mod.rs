//! Host protocols.
//!
//! Knows no segment: everything it serves is a [`Disk`].

pub mod control;
pub mod disk;
pub mod listen;
pub mod nbd;

pub use disk::Disk;
pub use listen::{Access, Listen, Listener};
