//! Torture tests: the real controller on a simulated medium in virtual time. Each world is drawn
//! from a seed: hosts issue random requests, the power fails at random moments, and an oracle knows
//! what was promised.
//!
//! * `world`: a seed, its drive and the sequence of its lives.
//! * `hazard`: what befalls a world beside crashes, and how often.
//! * `life`: open, compare, serve, close.
//! * `host`: random requests. `data`: the data they write. `chores`: scrubs and resizes.
//! * `crash_point`: ends a life at any await point or operation of the medium.
//! * `medium`: the medium of the drive. `rot`: bits that flip while the drive is closed.
//!   `damage`: bits and sectors that go bad under a served drive, and stay bad.
//! * `rescue`: a drive is extracted and rebuilt. `snapshots`: some are taken, deleted and compared.
//!   `views`: they are read and sent while hosts write. `transfers`: another drive receives them.
//!   `retention`: many are kept while segments that they need are emptied again and again.
//!   `audits`: the drive is asked whether it still has all of them. `tables`: one of those that say
//!   where their frames are is damaged in the end.
//! * `gauge`: bounds of memory, time and space.
//! * `oracle`: what a disk must hold. `scene`: what all parts of a world share. `trace`: the
//!   fingerprint of a run.
//! * `tally`, `violation`: the result. `keep`: the states of a world as files.
//! * `mirror`: a drive on two members that fail apart.
//! * `sweep`: one damaged sector at a time, many times over.
//! * `full`: a full drive that is overwritten for hours, without crashes.
//! * `ageing`: drives that are overwritten as databases do, for many times what they hold.
//! * `fuzz`: the entry points of the fuzzers.
//!
//! A seed and the rules determine a run completely. The crate reaches the drive only as a
//! host does, except for `Drive::audit`, `Drive::audit_snapshots`, `Drive::forward_pieces`,
//! `Drive::taken` and `Drive::snapshots_begun`, and never reads the wall clock. It is not
//! published: only the tests and fuzzers of this repository use it.

mod ageing;
mod audits;
mod chores;
mod clones;
mod crash_point;
mod crowd;
mod damage;
mod data;
mod full;
pub mod fuzz;
mod gauge;
mod hazard;
mod host;
mod keep;
mod latencies;
mod life;
mod medium;
mod mirror;
mod oracle;
mod rescue;
mod retention;
mod rot;
mod scene;
mod snapshots;
mod sweep;
mod tables;
mod tally;
#[cfg(test)]
mod tests;
mod trace;
mod transfers;
mod views;
mod violation;
mod world;

pub use ageing::{AgeingPlan, AgeingReport, Used, run_ageing};
pub use full::{FullPlan, FullReport, run_full};
pub use hazard::{Hazard, Weights};
pub use mirror::run_mirrors;
pub use sweep::{SweepReport, sweep};
pub use tally::Tally;
pub use violation::Violation;
pub use world::{Rules, run_world};

/// Default for the maximum number of requests of a life: enough to fill several batches and
/// segments, few enough that a world takes a fraction of a second.
pub const STEPS_DEFAULT: u64 = 200;
