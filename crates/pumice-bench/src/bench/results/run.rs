//! The result of one run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::environment::{DeviceBytes, MachineLoad};
use crate::bench::engine::Sample;
use crate::workload::Unit;

/// One run of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunResult {
    /// Round, from 0.
    pub round: u32,
    /// Index into the plan's tests.
    pub test: usize,
    /// Index into the plan's levels.
    pub level: usize,
    /// Position in the order of all runs, from 0.
    pub place: u64,
    /// Seconds from the start of the benchmark's first run.
    pub begun_s: f64,
    /// Measurements of the engine, or of the tool whose results were imported.
    #[serde(flatten)]
    pub sample: Sample,
    /// Processor time of the whole bench divided by wall time and threads, 0 to 1.
    pub processor_share: f64,
    /// Counters of the underlying device; absent if there is no such device or it has no counters.
    pub device: Option<DeviceBytes>,
    /// Load on the machine that the bench did not cause; absent in virtual time, for results of
    /// other tools, and in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineLoad>,
    /// Warnings about this run.
    pub warnings: Vec<String>,
}

impl RunResult {
    /// Returns the value in a unit: 10^6 bytes or requests per second, the mean latency in ms, or
    /// the duration in seconds. If latencies are unknown, the mean latency is calculated for one
    /// request in flight.
    pub fn value(&self, unit: Unit) -> f64 {
        let sample = &self.sample;
        let seconds = sample.seconds.max(1e-9);
        match unit {
            Unit::Throughput => sample.host_bytes as f64 / 1e6 / seconds,
            Unit::Rate => sample.operations as f64 / seconds,
            Unit::Latency => match sample.latency.percentiles() {
                Some(latency) => latency.mean_ns / 1e6,
                None => seconds * 1e3 / sample.operations.max(1) as f64,
            },
            Unit::Duration => seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the value of a run matches its unit.
    use super::*;
    use crate::bench::results::sample::run;

    #[test]
    fn values_have_their_unit() {
        let mut run = run(0, 1, 0, 500.0);
        run.sample.seconds = 2.0;
        assert_eq!(run.value(Unit::Rate), 250.0);
        assert_eq!(run.value(Unit::Throughput), 1.024);
        assert_eq!(run.value(Unit::Duration), 2.0);
        // 99 of 100 requests took 0.1 ms, the others 1 ms.
        assert!((run.value(Unit::Latency) - 0.109).abs() < 1e-3);
        run.sample.latency = crate::stats::Latencies::new();
        assert_eq!(run.value(Unit::Latency), 4.0);
    }
}
