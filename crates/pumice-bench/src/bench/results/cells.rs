//! Summaries of the repeated runs of each cell.

use serde::Serialize;

use super::Results;
use crate::stats::{Latencies, Percentiles, Summary};
use crate::workload::Unit;

/// One test at one level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellSummary {
    /// Name of the test.
    pub test: String,
    /// Name of the level.
    pub level: String,
    /// Unit of the values.
    pub unit: Unit,
    /// Summary of the runs' values.
    #[serde(flatten)]
    pub values: Summary,
    /// Latencies of all runs; absent if unknown.
    pub latency: Option<Percentiles>,
    /// Each kind of warning once.
    pub warnings: Vec<String>,
}

impl Results {
    /// Returns every cell that has a run, in the plan's order.
    pub fn cells(&self) -> Vec<CellSummary> {
        let plan = &self.header.plan;
        let tests = plan.tests.iter().enumerate();
        let cells =
            tests.flat_map(|(test, _)| (0..plan.levels.len()).map(move |level| (test, level)));
        cells.filter_map(|(test, level)| self.cell_summary(test, level)).collect()
    }

    fn cell_summary(&self, test: usize, level: usize) -> Option<CellSummary> {
        let plan = &self.header.plan;
        let values = Summary::of(&self.values(test, level), plan.seed)?;
        let mut latencies = Latencies::new();
        let mut warnings: Vec<String> = Vec::new();
        for run in self.cell(test, level) {
            latencies.merge(&run.latency);
            warnings.extend(run.warnings.iter().cloned());
        }
        warnings.sort();
        warnings.dedup();
        Some(CellSummary {
            test: plan.tests[test].name.clone(),
            level: plan.levels[level].name.clone(),
            unit: plan.tests[test].unit,
            values,
            latency: latencies.percentiles(),
            warnings,
        })
    }
}
