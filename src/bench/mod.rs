//! A storage benchmark whose data has the compressibility that was asked for.
//!
//! * `payload`: data of a given saving, as a host would write it.
//! * `workload`: what is done to a target, in numbers; `pattern`: where each request goes.
//! * `target`: what is measured; `engine`: carries a workload out and measures it.
//! * `plan`: which workloads on which data, how often; `results`: what that gave.
//! * `stats`: what repeated measurements allow one to say.
//!
//! Reaches a drive only as a host does; prints nothing.

pub mod engine;
pub mod pattern;
pub mod payload;
pub mod plan;
pub mod results;
pub mod stats;
pub mod target;
pub mod workload;
