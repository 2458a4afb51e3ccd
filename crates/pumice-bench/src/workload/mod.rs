//! Workloads and plans: what a benchmark or a forecast does, without how it is measured.
//!
//! * `spec`: one workload, in numbers.
//! * `pattern`: the addresses of its requests.
//! * `plan`: tests at levels of compressibility, repeated in rounds.
//! * `preset`: plans as TOML files, and changes from a command line.
//!
//! Uses `payload` for the levels' data; knows no target.

pub mod pattern;
mod plan;
mod preset;
mod spec;

pub use plan::*;
pub use preset::*;
pub use spec::*;
