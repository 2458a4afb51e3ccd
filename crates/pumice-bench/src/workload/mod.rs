//! Workloads and plans: the activity of a benchmark or a forecast, independent of its measurement.
//!
//! * `span`: spans relative to the memory size.
//! * `spec`: one workload, in numbers.
//! * `pattern`: the addresses of its requests.
//! * `files`: sets of files to copy within a file system.
//! * `import`: presets from fio and Iometer files.
//! * `mix`: the kinds of requests in a mixed workload.
//! * `plan`: tests at levels of compressibility, repeated in rounds.
//! * `preset`: plans as TOML files, and changes from a command line.
//!
//! The module uses `payload` for the levels' data, and is independent of targets.

mod files;
mod import;
mod mix;
pub mod pattern;
mod plan;
mod preset;
mod span;
mod spec;

pub use files::{FILES_MAX, FileSet};
pub(crate) use mix::ACCESSES_MAX;
pub use mix::Access;
pub use plan::{Cache, Level, Order, Plan, RUNS_MAX, TESTS_MAX, Test, Unit};
pub use preset::{Changes, PRESETS, Preset};
pub(crate) use span::memory_of;
pub use span::{memory_bytes, parse_span};
pub use spec::{
    DEPTH_MAX, Ends, Flush, Operation, Pattern, RECORD_BYTES_MAX, RECORD_BYTES_MIN, THREADS_MAX,
    Workload,
};
