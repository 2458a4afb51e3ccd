//! Simulated NAND flash, in virtual time.
//!
//! * `flash`: what may be done to flash and how long it takes; holds no bytes.
//! * `medium`: segments on it for the controller, with their bytes in memory.
//! * `timeline`: when a bus is taken.

mod flash;
mod medium;
mod timeline;

pub use flash::{BlockAddress, Flash, FlashCounts, FlashShape, FlashTiming};
pub use medium::{NandMedium, NandSpec};
