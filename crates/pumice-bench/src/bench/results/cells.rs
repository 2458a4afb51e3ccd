//! All runs of a benchmark, and summaries of the repeated runs of each cell.

use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::Serialize;

use super::{Header, RunResult};
use crate::stats::{Latencies, Percentiles, Summary, WINDOW_ROUNDS};
use crate::workload::{RUNS_MAX, Unit};

/// Results of a benchmark, complete or partial.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// The facts known before the first run.
    pub header: Header,
    /// Runs in order of completion.
    pub runs: Vec<RunResult>,
}

impl Results {
    /// Returns the counted runs of one cell: the runs in [`Results::window`] if the plan tracks
    /// steady state, otherwise all.
    pub fn cell(&self, test: usize, level: usize) -> impl Iterator<Item = &RunResult> {
        let window = self.window(level);
        self.all_of(test, level).filter(move |run| window.contains(&run.round))
    }

    /// Returns all runs of one cell.
    pub fn all_of(&self, test: usize, level: usize) -> impl Iterator<Item = &RunResult> {
        self.runs.iter().filter(move |run| run.test == test && run.level == level)
    }

    /// Returns the rounds whose runs are counted at a level. If the plan tracks steady state, this
    /// is the measurement window, which is the last [`WINDOW_ROUNDS`] of the tracked test;
    /// otherwise it is all rounds.
    ///
    /// Source: SNIA, "Solid State Storage Performance Test Specification" 2.0.2 (2020): reported
    /// values are averages over the measurement window.
    pub fn window(&self, level: usize) -> RangeInclusive<u32> {
        let plan = &self.header.plan;
        let tracked =
            plan.steady.as_ref().and_then(|name| plan.tests.iter().position(|t| t.name == *name));
        let Some(tracked) = tracked else { return 0..=u32::MAX };
        let mut rounds: Vec<u32> = self.all_of(tracked, level).map(|run| run.round).collect();
        rounds.sort_unstable();
        rounds.dedup();
        match rounds.len().checked_sub(WINDOW_ROUNDS) {
            Some(first) => rounds[first]..=rounds[rounds.len() - 1],
            None => 0..=u32::MAX,
        }
    }

    /// Returns the values of a cell's runs in the test's unit.
    pub fn values(&self, test: usize, level: usize) -> Vec<f64> {
        let unit = self.header.plan.tests[test].unit;
        self.cell(test, level).map(|run| run.value(unit)).collect()
    }

    /// Returns the values of a cell by round; `None` for rounds without a run.
    pub fn rounds(&self, test: usize, level: usize) -> Vec<Option<f64>> {
        let unit = self.header.plan.tests[test].unit;
        let mut rounds = Vec::new();
        for run in self.cell(test, level) {
            // Files are not trusted. No plan has more rounds.
            let round = (run.round as usize).min(RUNS_MAX as usize);
            if rounds.len() <= round {
                rounds.resize(round + 1, None);
            }
            rounds[round] = Some(run.value(unit));
        }
        rounds
    }

    /// Returns every cell that has a run, in plan order.
    pub fn cells(&self) -> Vec<CellSummary> {
        let plan = &self.header.plan;
        let tests = plan.tests.iter().enumerate();
        let cells =
            tests.flat_map(|(test, _)| (0..plan.levels.len()).map(move |level| (test, level)));
        cells.filter_map(|(test, level)| self.cell_summary(test, level)).collect()
    }

    fn cell_summary(&self, test: usize, level: usize) -> Option<CellSummary> {
        let plan = &self.header.plan;
        let values = Summary::of(&self.values(test, level))?;
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
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
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
    /// The warnings, without duplicates of the same kind.
    pub warnings: Vec<String>,
}

/// Returns a unique name for each result: its label, or the target if it took turns, or its title.
/// If these names are not unique, the target is appended, and then a number.
pub(crate) fn names(all: &[Results]) -> Vec<String> {
    let short = |one: &Results| {
        let header = &one.header;
        let has_name = !header.label.is_empty() || header.turns.is_some();
        if has_name { header.name().to_owned() } else { header.title.clone() }
    };
    let titles: Vec<String> = all.iter().map(short).collect();
    let with_target = |one: &Results| format!("{} on {}", one.header.title, one.header.name());
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
