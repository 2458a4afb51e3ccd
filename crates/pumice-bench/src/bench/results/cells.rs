//! All runs of a benchmark, and summaries of the repeated runs of each cell.

use serde::Serialize;

use super::{Header, RunResult};
use crate::stats::{Latencies, Percentiles, Summary};
use crate::workload::Unit;

/// Results of a benchmark, complete or not.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// Everything known before the first run.
    pub header: Header,
    /// Runs in the order of completion.
    pub runs: Vec<RunResult>,
}

impl Results {
    /// Returns the runs of one cell, by their round.
    pub fn cell(&self, test: usize, level: usize) -> impl Iterator<Item = &RunResult> {
        self.runs.iter().filter(move |run| run.test == test && run.level == level)
    }

    /// Returns the values of a cell's runs in the test's unit.
    pub fn values(&self, test: usize, level: usize) -> Vec<f64> {
        let unit = self.header.plan.tests[test].unit;
        self.cell(test, level).map(|run| run.value(unit)).collect()
    }

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
            latencies.merge(&run.sample.latency);
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

/// Returns a unique name for each result: its title, with the target and then a number where
/// titles are not unique.
pub(crate) fn names(all: &[Results]) -> Vec<String> {
    let titles: Vec<String> = all.iter().map(|one| one.header.title.clone()).collect();
    let with_target = |one: &Results| format!("{} on {}", one.header.title, one.header.target);
    let targets: Vec<String> = all.iter().map(with_target).collect();
    let is_unique =
        |names: &[String], name: &String| names.iter().filter(|other| *other == name).count() == 1;
    let name = |index: usize| {
        if is_unique(&titles, &titles[index]) {
            titles[index].clone()
        } else if is_unique(&targets, &targets[index]) {
            targets[index].clone()
        } else {
            format!("{} ({})", targets[index], index + 1)
        }
    };
    (0..all.len()).map(name).collect()
}
