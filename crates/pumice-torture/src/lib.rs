//! The torture: the real controller on a simulated medium in virtual time, world after world, each
//! drawn from a seed; hosts do what they like, the power goes whenever it likes, and an oracle
//! knows what was promised.
//!
//! * `world`: a seed, its drive and the row of its lives.
//! * `life`: open, judge, serve, close.
//! * `host`: random requests. `data`: what they write.
//! * `crash_point`: ends a life at any await point or operation of the medium.
//! * `medium`: what the drive sees. `rot`: bits that flip while it is closed.
//! * `oracle`: the oracle. `scene`: what all of them share. `trace`: the fingerprint of a run.
//! * `tally`, `violation`: the result.
//! * `full`: no world, but a full drive that is overwritten for hours.
//!
//! The same seed and steps give the same run. Deliberately reaches the drive only as a host does,
//! but for `Drive::audit` and `Drive::taken`; never asks for the time.

mod crash_point;
mod data;
mod full;
pub mod fuzz;
mod host;
mod life;
mod medium;
mod oracle;
mod rot;
mod scene;
mod tally;
#[cfg(test)]
mod tests;
mod trace;
mod violation;
mod world;

pub use full::{FullPlan, FullReport, run_full};
pub use tally::Tally;
pub use violation::Violation;
pub use world::run_world;

/// Requests that a life issues at most, unless somebody says otherwise: enough to fill several
/// batches and segments, few enough that a world takes a fraction of a second.
pub const STEPS_DEFAULT: u64 = 200;
