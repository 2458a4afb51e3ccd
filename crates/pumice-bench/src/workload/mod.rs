//! What is done to a target.

pub mod pattern;
mod plan;
mod preset;
mod spec;

pub use plan::*;
pub use preset::*;
pub use spec::*;
