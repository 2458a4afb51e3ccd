//! Simulated NAND flash, in virtual time.
//!
//! * `blocks`: the free erase blocks, and their wear.
//! * `flash`: the rules and the timing of flash; stores no bytes.
//! * `timeline`: the busy times of a bus.

mod blocks;
mod flash;
mod timeline;

pub(crate) use blocks::FREE_BLOCK_BYTES;
pub use blocks::{FreeBlocks, Wear, Worn};
pub use flash::{BlockAddress, Flash, FlashCounts, FlashShape, FlashTiming};
