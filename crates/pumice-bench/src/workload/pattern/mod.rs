//! The sequence of addresses of one thread of a workload.
//!
//! The sequence is a function of the workload, the thread and a seed: equal inputs produce equal
//! addresses. Operations that do not end with the span continue until the time is up.

mod blend;
mod request;
mod requests;
mod shuffle;
mod zipf;

pub use request::{Action, Request};
pub use requests::Requests;
