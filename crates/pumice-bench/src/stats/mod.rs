//! Statistics of repeated measurements: pure functions over numbers.
//!
//! * `summary`: summarises the runs of one cell, with an interval for the mean.
//! * `interval`: the interval of a mean.
//! * `outliers`: unusual runs, which are reported but never dropped.
//! * `comparison`: the ratio between two targets, and whether the difference is significant.
//! * `turns`: whether targets that took turns differ in any of many cells.
//! * `power`: the smallest difference that a comparison can detect.
//! * `steady`: the detection of steady state.
//! * `histogram`: latencies.
//! * `enough`: whether more runs are needed.
//! * `trend`: whether values depend on the order of the runs.
//! * `sample`, `rank`: numbers and ranks used by the other modules.
//!
//! The same numbers and seed produce the same result. Numbers that cannot be measurements (not
//! finite, or beyond [`MAGNITUDE_MAX`]) have a defined result everywhere, mostly `None`, and never
//! cause a panic. This module drops no run, is independent of units except for latencies in ns,
//! reads no clock, does no I/O and prints nothing.

mod comparison;
mod enough;
mod histogram;
mod interval;
mod outliers;
mod power;
mod rank;
mod sample;
mod steady;
mod summary;
mod trend;
mod turns;

pub use comparison::{Better, Comparison, Design, Pair, VISIT_SPREAD, Verdict, compare};
pub use enough::{Goal, Progress, RUNS_LEAST, enough};
pub use histogram::{LATENCY_NS_MAX, Latencies, Percentiles};
pub use interval::Interval;
pub(crate) use outliers::outliers;
pub use outliers::{OUTLIER_SCORE, Outlier};
pub use power::Planned;
pub use sample::MAGNITUDE_MAX;
pub use steady::{RANGE_MAX, Rounds, SLOPE_MAX, WINDOW_ROUNDS, Window, steady};
pub use summary::Summary;
pub(crate) use trend::trend;
pub use trend::{Direction, EXACT_ORDER_MAX, Trend};

/// p values from this limit on are attributed to chance. A convention.
pub(crate) const SIGNIFICANT_P: f64 = 0.05;

#[cfg(test)]
mod tests;
