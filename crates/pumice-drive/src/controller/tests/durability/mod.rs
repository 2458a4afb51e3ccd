//! Flushed data survives whatever ends the drive.

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
