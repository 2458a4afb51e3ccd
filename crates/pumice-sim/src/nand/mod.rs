//! Simulated NAND flash, in virtual time.
//!
//! * `blocks`: the free erase blocks, and their wear.
//! * `flash`: the rules and the times of flash; holds no bytes.
//! * `medium`: segments on flash for the controller, with their bytes in memory.
//! * `timeline`: the busy times of a bus.

mod blocks;
mod flash;
mod medium;
mod timeline;

pub use blocks::{FREE_BLOCK_BYTES, FreeBlocks, Wear, Worn};
pub use flash::{BlockAddress, Flash, FlashCounts, FlashShape, FlashTiming};
pub use medium::{NandMedium, NandSpec};
