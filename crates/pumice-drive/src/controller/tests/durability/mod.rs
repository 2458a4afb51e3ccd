//! Flushed data survives, however the drive ends.

mod checkpointing;
mod closing;
mod crash;
mod flushing;
mod golden;
mod golden_mirror;
mod settings;
pub(super) mod survival;
pub(super) mod tail;

use super::*;
