//! A storage benchmark whose data has the compressibility that was asked for.
//!
//! * `payload`: data of a given saving, as a host would write it.
//! * `workload`: what is done to a target, in numbers; `pattern`: where each request goes.
//! * `target`: what is measured; `engine`: carries a workload out and measures it.
//! * `plan`: which workloads on which data, how often; `results`: what that gave.
//! * `preset`: plans as people write them; `runner`: carries a plan out.
//! * `patience`: how long a target is waited for that shall stop.
//! * `doubts`: what a reader must know before believing a run.
//! * `detect`: whether a target compresses or deduplicates, and how.
//! * `stats`: what repeated measurements allow one to say.
//! * `report`: results for people; `compare`: results held against each other.
//! * `reproduce`: published experiments, run again on simulated drives.
//! * `forecast`: what a simulated drive without content would do.
//! * `interop`: results of fio and IOzone, and jobs for fio.
//!
//! Reaches a drive only as a host does; prints nothing.

pub mod compare;
pub mod detect;
mod doubts;
pub mod engine;
pub mod forecast;
pub mod interop;
mod patience;
pub mod pattern;
pub mod payload;
pub mod plan;
pub mod preset;
pub mod report;
pub mod reproduce;
pub mod results;
pub mod runner;
pub mod stats;
pub mod target;
pub mod workload;
