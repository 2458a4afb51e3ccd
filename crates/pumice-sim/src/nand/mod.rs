//! Simulated NAND flash, in virtual time.
//!
//! * `blocks`: which erase blocks are free, and how worn.
//! * `flash`: what may be done to flash and how long it takes; holds no bytes.
//! * `medium`: segments on it for the controller, with their bytes in memory.
//! * `timeline`: when a bus is taken.

mod blocks;
mod flash;
mod medium;
mod timeline;

pub use blocks::{FREE_BLOCK_BYTES, FreeBlocks, Wear, Worn};
pub use flash::{BlockAddress, Flash, FlashCounts, FlashShape, FlashTiming};
pub use medium::{NandMedium, NandSpec};
