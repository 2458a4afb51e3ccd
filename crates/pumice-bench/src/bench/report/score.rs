//! AS SSD's score: one number each for reading, for writing and for both.
//!
//! Source: Tom's Hardware, "Three PCI Express-Based SSDs: When SATA 6 Gb/s Is Too Slow",
//! tomshardware.com/reviews/pci-express-ssd,2952-6.html. The formula fits a published result:
//! 1353.82 and 1178.03 MB/s, 37.38 and 80.51, 671.87 and 720.75 score 845, 919 and 2196. Whether
//! the program's MB are 10^6 or 2^20 bytes is unknown; here they are 10^6.

use super::cells::Cells;
use crate::stats::Summary;
use crate::workload::{Test, Unit};
use pumice_report::{Column, Number, Section, Table};

/// Name of the preset.
const PRESET: &str = "as-ssd";

/// Names of its tests: sequential, 4 KiB, 4 KiB by 64 threads; each with reads and writes.
const TESTS: [&str; 6] =
    ["Seq read", "Seq write", "4K read", "4K write", "4K-64Thrd read", "4K-64Thrd write"];

/// Names of the scores, and the weights of the tests in each.
const SCORES: [(&str, [f64; 6]); 3] = [
    ("read", [0.1, 0.0, 1.0, 0.0, 1.0, 0.0]),
    ("write", [0.0, 0.1, 0.0, 1.0, 0.0, 1.0]),
    ("total", [0.1, 0.15, 2.0, 1.0, 1.5, 1.0]),
];

/// Returns a section with the scores. The section has no blocks if the result belongs to another
/// preset or not all tests were measured.
pub(super) fn section(cells: &Cells<'_>) -> Section {
    let mut section = super::section("AS SSD score");
    let Some(table) = table(cells) else { return section };
    section.paragraph(
        "Means over the rounds with their 95 % intervals, from MB/s of each test by the published \
         formula. Higher is better.",
    );
    section.block(table);
    section
}

/// Returns the scores of each level; `None` where [`section`] has no blocks.
pub(super) fn table(cells: &Cells<'_>) -> Option<Table> {
    if cells.results.header.title != PRESET {
        return None;
    }
    let is_named = |name: &'static str| move |test: &Test| test.name == name;
    let tests = TESTS.map(|name| cells.plan().tests.iter().position(is_named(name)));
    let mut table = Table::with_columns(vec![
        Column::left("score"),
        Column::left("level"),
        Column::right("mean"),
        Column::right("95 % from"),
        Column::right("95 % to"),
    ]);
    for (index, level) in cells.plan().levels.iter().enumerate() {
        let rounds = tests.map(|test| test.map_or(Vec::new(), |test| by_round(cells, test, index)));
        for (name, weights) in SCORES {
            let Some(summary) = Summary::of(&scores(&rounds, &weights)) else { continue };
            let whole = |value: f64| Number::new(value, 0);
            let interval = summary.mean_interval;
            table.push(vec![
                name.into(),
                level.name.as_str().into(),
                whole(summary.mean).into(),
                interval.map(|interval| whole(interval.low)).into(),
                interval.map(|interval| whole(interval.high)).into(),
            ]);
        }
    }
    (!table.rows().is_empty()).then_some(table)
}

/// Returns the throughput of a test for each round.
fn by_round(cells: &Cells<'_>, test: usize, level: usize) -> Vec<(u32, f64)> {
    let runs = &cells.of_test(test)[level].runs;
    runs.iter().map(|run| (run.round, run.value(Unit::Throughput))).collect()
}

/// Returns the score of each round in which all weighted tests were measured.
fn scores(rounds: &[Vec<(u32, f64)>; 6], weights: &[f64; 6]) -> Vec<f64> {
    let counts = || rounds.iter().zip(weights).filter(|(_, weight)| **weight > 0.0);
    let Some((first, _)) = counts().next() else { return Vec::new() };
    let score = |(round, _): &(u32, f64)| -> Option<f64> {
        let value =
            |values: &[(u32, f64)]| values.iter().find(|(it, _)| it == round).map(|it| it.1);
        counts().map(|(values, weight)| Some(value(values)? * weight)).sum()
    };
    first.iter().filter_map(score).collect()
}

#[cfg(test)]
mod tests {
    //! Goal: the formula is the published one, and only the tests of the preset are scored.
    use super::*;
    use crate::bench::results::Results;
    use crate::bench::results::sample::{results, run, test, workload};
    use crate::workload::Operation;

    /// A published result: a Samsung 960 EVO with AS SSD 1.9.5986.35387, 2017-02-06
    /// (gist.github.com/nwgat/603c455cb46392789f76d34c56e9be6f).
    const PUBLISHED: [f64; 6] = [1353.82, 1178.03, 37.38, 80.51, 671.87, 720.75];

    fn published() -> Results {
        let mut all = results(&[]);
        all.header.title = PRESET.to_owned();
        all.header.plan.levels.truncate(1);
        let tests = TESTS.map(|name| test(name, Unit::Throughput, workload(Operation::Read, 4096)));
        all.header.plan.tests = tests.to_vec();
        for round in 0..3 {
            for (test, value) in PUBLISHED.into_iter().enumerate() {
                let mut one = run(round, 0, 0, value);
                one.test = test;
                all.runs.push(one);
            }
        }
        all
    }

    #[test]
    fn a_published_result_has_its_published_score() {
        let mut all = published();
        let text = table(&Cells::new(&all)).expect("scores").to_text();
        let score = |name: &str| {
            let row = text.lines().find(|line| line.starts_with(name)).expect(name).to_owned();
            row.split_whitespace().nth(4).expect("a mean").to_owned()
        };
        assert_eq!(["read", "write", "total"].map(score), ["845", "919", "2196"], "{text}");
        // Without writes, only reads have scores.
        all.runs.retain(|run| run.test % 2 == 0);
        let text = table(&Cells::new(&all)).expect("scores").to_text();
        assert!(text.contains("845") && !text.contains("total"), "{text}");
        all.header.title = "mine".to_owned();
        assert!(section(&Cells::new(&all)).blocks.is_empty());
    }
}
