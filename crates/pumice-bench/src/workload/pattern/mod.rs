//! The addresses of one thread of a workload, in order.
//!
//! A function of the workload, the thread and a seed: equal inputs produce equal addresses.
//! Sequential operations end after the span; random ones continue forever, until the time is up.

mod requests;
mod shuffle;
mod zipf;

pub use requests::{Request, Requests};
