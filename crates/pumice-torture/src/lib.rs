//! Torture tests: the real controller on a simulated medium in virtual time. Each world is drawn
//! from a seed: hosts issue random requests, the power fails at random moments, and an oracle knows
//! the drive's promises.
//!
//! * `world`: a seed, its drive and the sequence of its lives.
//! * `hazard`: the hazards of a world other than crashes, and how often they occur.
//! * `life`: open, compare, serve, close.
//! * `host`: random requests. `verb`: their kinds. `data`: the data they write. `chores`: scrubs
//!   and resizes.
//! * `crash_point`: ends a life at any await point or operation of the medium.
//! * `medium`: the medium of the drive. `rot`: bits that flip while the drive is closed. `damage`:
//!   bits and sectors that go bad while a drive is served, and stay bad.
//! * `rescue`: a drive is extracted and rebuilt. `snapshots`: some are taken, deleted and compared.
//!   `views`: they are read and sent while hosts write. `transfers`: another drive receives them.
//!   `retention`: many are kept while segments that they need are emptied repeatedly. `audits`: the
//!   drive is asked whether it still has all of them. `tables`: at the end, one of the tables that
//!   locate their frames is damaged.
//! * `gauge`: bounds of memory, time and space.
//! * `oracle`: the expected content of a disk. `scene`: the state that all parts of a world share,
//!   in it `frozen`: the snapshots, `registry`: the clones, `outbox`: the transfers. `trace`: the
//!   fingerprint of a run.
//! * `tally`, `violation`: the result. `keep`: the states of a world as files.
//! * `mirror`: a drive on two members that fail independently.
//! * `sweep`: one damaged sector at a time, many times over.
//! * `full`: a full drive that is overwritten for hours, without crashes.
//! * `ageing`: drives that are overwritten in the pattern of databases, many times their data.
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
mod frozen;
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
mod outbox;
mod registry;
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
mod verb;
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
