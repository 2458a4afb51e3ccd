//! Simulated NAND flash, in virtual time.
//!
//! * `flash`: what may be done to flash and how long it takes; holds no bytes.
//! * `timeline`: when a bus is taken.

mod flash;
mod timeline;

pub use flash::{BlockAddress, Flash, FlashCounts, FlashShape, FlashTiming};
