//! Detects whether, and how, a target compresses or deduplicates, by observing it from outside.
//!
//! ```text
//! rounds   incompressible, 50 % and 90 % saved, zeroes, duplicates: in shuffled order, each
//!          written to a fresh target, flushed and read back
//!            -> space: growth of each usage source;  speed: writing, reading
//! sweeps   only if space showed compression: savings from 0 to 75 %, repeats 2 to 128 KiB apart
//!            -> the smallest saving that saves space;  the largest distance of repeats
//! ```
//!
//! * `look`: the sequence of steps; `detection`: the result.
//! * `data`: the kinds of data; `region`: the tested part of the target.
//! * `usage_source`: readings of used space; `judge`: conclusions from them.
//! * `words`: reports.
//!
//! Compression below all readable layers (inside an SSD, in cloud storage) affects only the speed,
//! and evidence from speed alone is never more than "perhaps". This module does not read a file's
//! extent map (FIEMAP): that requires an ioctl that safe code cannot make, and reports lengths
//! before compression.

mod data;
mod detection;
mod judge;
mod look;
mod region;
#[cfg(test)]
mod tests;
mod usage_source;
mod words;

pub use data::Data;
pub use detection::{
    Account, Amount, Answer, Class, Detection, FORMAT, Operation, Speed, Strength, Sweep,
    SweepStep, Zeroes,
};
pub use look::{SPAN_BYTES_MIN, detect};
pub use region::Settings;
