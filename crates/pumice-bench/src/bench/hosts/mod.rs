//! One benchmark on several hosts concurrently: a server or a bucket as seen by many clients.
//!
//! ```text
//! this machine: fleet --+-- ssh a pumice bench --agent --- runs the plan on its own
//!                       +-- ssh b pumice bench --agent --- runs the plan on its own
//!
//! hello -> clocks -> prepare -> ready, on all -> { waiting, on all -> go at one time -> ran } ...
//! ```
//!
//! * [`fleet`](run_on_hosts): connects, keeps the hosts in step, and ends them all.
//! * [`agent`](serve): the host's side.
//! * `message`: the messages between them.
//! * `merge`: one result of all hosts.
//!
//! Every activity of every host begins at a common time: no host starts it before all are ready. A
//! host that fails, or can no longer be reached, ends the benchmark on all of them. A host whose
//! connection ends stops by itself and removes its file. Messages of hosts are not trusted.

mod agent;
mod fleet;
mod merge;
mod message;
#[cfg(test)]
mod tests;

pub use agent::serve;
pub use fleet::{Connection, run_on_hosts};
