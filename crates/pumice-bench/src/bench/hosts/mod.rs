//! Runs one benchmark on several hosts concurrently, to measure a server or a bucket with many
//! clients.
//!
//! ```text
//! this machine: fleet --+-- ssh a pumice bench --agent --- runs the plan on its own
//!                       +-- ssh b pumice bench --agent --- runs the plan on its own
//!
//! hello -> clocks -> prepare -> ready, on all -> { waiting, on all -> go at one time -> ran } ...
//! ```
//!
//! * [`fleet`](run_on_hosts): connects to the hosts, synchronizes them, and stops them all at the
//!   end.
//! * [`agent`](serve): the host's part.
//! * `message`: the messages between them.
//! * `merge`: the combined result of all hosts.
//!
//! Every activity starts on all hosts at a common time, once all hosts are ready. A host that
//! fails, or can no longer be reached, ends the benchmark on all hosts. A host whose connection
//! ends stops its benchmark and removes its file. Messages from hosts are not trusted.

mod agent;
mod fleet;
mod merge;
mod message;
#[cfg(test)]
mod tests;

pub use agent::serve;
pub use fleet::{Connection, run_on_hosts};
