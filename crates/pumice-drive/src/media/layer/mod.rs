//! Wrappers that are media too.
//!
//! * `count`: how many operations and bytes the medium was asked for.
//! * `fault`: latency, errors, wrong bytes and power loss, reproducible by seed.

pub mod count;
pub mod fault;

pub use count::{Count, Counts};
pub use fault::{Crash, Fault, FaultPlan, Trigger};
