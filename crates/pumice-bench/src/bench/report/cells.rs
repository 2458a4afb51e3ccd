//! Runs grouped by test and level, summarised once.
//!
//! Invariant: each test and level of the plan has one cell, ordered by test. The runs of a cell are
//! ordered by round. A cell may have no runs.

use crate::bench::results::{Results, RunResult};
use crate::stats::{Latencies, Summary};
use crate::workload::{Level, Plan, Test, Workload};
use pumice_report::Number;

/// Significant digits of a measured number.
const DIGITS: u8 = 4;

/// Minimum number of depths in a sweep. Two are merely two tests.
const DEPTHS_MIN: usize = 3;

/// One test at one level.
pub(super) struct Cell<'a> {
    pub(super) test: &'a Test,
    pub(super) level: &'a Level,
    /// All runs, ordered by round.
    pub(super) all: Vec<&'a RunResult>,
    /// The counted runs, ordered by round: all runs, or the runs of the measurement window.
    pub(super) runs: Vec<&'a RunResult>,
    /// Values of the runs, in the test's unit.
    pub(super) values: Vec<f64>,
    /// Summary of the values; `None` without runs.
    pub(super) summary: Option<Summary>,
    is_only_level: bool,
}

/// The cells of a result.
pub(super) struct Cells<'a> {
    pub(super) results: &'a Results,
    all: Vec<Cell<'a>>,
}

impl<'a> Cells<'a> {
    pub(super) fn new(results: &'a Results) -> Self {
        let plan = &results.header.plan;
        let levels = plan.levels.len();
        let mut runs: Vec<Vec<&RunResult>> = vec![Vec::new(); plan.tests.len() * levels];
        for run in &results.runs {
            if let Some(cell) = runs.get_mut(run.test * levels + run.level) {
                cell.push(run);
            }
        }
        let mut runs = runs.into_iter();
        let mut all = Vec::with_capacity(runs.len());
        let windows: Vec<_> = (0..levels).map(|level| results.window(level)).collect();
        for test in &plan.tests {
            for (level, window) in plan.levels.iter().zip(&windows) {
                let mut every = runs.next().expect("a list for each test and level");
                every.sort_by_key(|run| run.round);
                let mut runs = every.clone();
                runs.retain(|run| window.contains(&run.round));
                let values: Vec<f64> = runs.iter().map(|run| run.value(test.unit)).collect();
                let summary = Summary::of(&values);
                let is_only_level = levels == 1;
                all.push(Cell { test, level, all: every, runs, values, summary, is_only_level });
            }
        }
        Self { results, all }
    }

    /// Returns the groups of tests that differ only in their depth, each group ordered by depth.
    pub(super) fn sweeps(&self) -> Vec<Vec<usize>> {
        let tests = &self.plan().tests;
        let depth = |test: &usize| tests[*test].workload.depth;
        let mut alike: Vec<(Workload, Vec<usize>)> = Vec::new();
        for (index, test) in tests.iter().enumerate() {
            let workload = Workload { depth: 0, ..test.workload.clone() };
            let same = alike
                .iter_mut()
                .find(|(other, members)| *other == workload && tests[members[0]].unit == test.unit);
            match same {
                Some((_, members)) => members.push(index),
                None => alike.push((workload, vec![index])),
            }
        }
        let sorted = alike.into_iter().map(|(_, mut members)| {
            members.sort_by_key(depth);
            members
        });
        let distinct =
            |members: &Vec<usize>| members.windows(2).all(|pair| depth(&pair[0]) < depth(&pair[1]));
        sorted.filter(|members| members.len() >= DEPTHS_MIN && distinct(members)).collect()
    }

    pub(super) fn plan(&self) -> &'a Plan {
        &self.results.header.plan
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Cell<'a>> {
        self.all.iter()
    }

    /// Returns the index and cells of the test that is tracked for steady state; `None` if there is
    /// no such test or it has no runs.
    pub(super) fn tracked(&self) -> Option<(usize, &[Cell<'a>])> {
        let name = self.plan().steady.as_ref()?;
        let index = self.plan().tests.iter().position(|test| test.name == *name)?;
        let cells = self.of_test(index);
        cells.iter().any(|cell| !cell.all.is_empty()).then_some((index, cells))
    }

    /// Returns the tests with the same operation and mix as this one.
    pub(super) fn like(&self, test: usize) -> Vec<usize> {
        let tests = &self.plan().tests;
        let mix = |test: usize| {
            let workload = &tests[test].workload;
            (workload.operation, workload.reads_percent)
        };
        (0..tests.len()).filter(|other| mix(*other) == mix(test)).collect()
    }

    /// Returns the cells of one test, ordered by level.
    pub(super) fn of_test(&self, test: usize) -> &[Cell<'a>] {
        let levels = self.plan().levels.len();
        &self.all[test * levels..(test + 1) * levels]
    }
}

impl Cell<'_> {
    /// Returns the name of the test, and of the level if there are several.
    pub(super) fn name(&self) -> String {
        if self.is_only_level {
            self.test.name.clone()
        } else {
            format!("{}, {}", self.test.name, self.level.name)
        }
    }

    /// Returns the mean and deviation; `None` without runs.
    pub(super) fn mean(&self) -> Option<Number> {
        let summary = self.summary?;
        let number = Number::significant(summary.mean, DIGITS);
        Some(match summary.deviation {
            Some(deviation) => number.with_deviation(deviation),
            None => number,
        })
    }

    /// Returns the latencies of all runs.
    pub(super) fn latency(&self) -> Latencies {
        let mut all = Latencies::new();
        self.runs.iter().for_each(|run| all.merge(&run.sample.latency));
        all
    }
}
