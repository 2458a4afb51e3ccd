//! A storage benchmark whose data has the compressibility that was asked for.
//!
//! * `payload`: data of a given saving, as a host would write it.
//! * `workload`: what is done to a target, in numbers; `pattern`: where each request goes.
//! * `target`: what is measured; `engine`: carries a workload out and measures it.
//! * `plan`: which workloads on which data, how often; `results`: what that gave.
//! * `preset`: plans as people write them; `runner`: carries a plan out.
//! * `doubts`: what a reader must know before believing a run.
//! * `stats`: what repeated measurements allow one to say.
//!
//! Reaches a drive only as a host does; prints nothing.

mod doubts;
pub mod engine;
pub mod pattern;
pub mod payload;
pub mod plan;
pub mod preset;
pub mod results;
pub mod runner;
pub mod stats;
pub mod target;
pub mod workload;
