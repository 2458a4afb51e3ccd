//! Timelines of time-based runs: the initial speed, and the speed over time.
//!
//! The last interval of a run is incomplete and therefore omitted.

use super::cells::{Cell, Cells};
use super::speed;
use crate::workload::Unit;
use pumice_report::{Axis, LineChart, Point, Section};

/// Returns a rate chart for each time-based test. The section has no blocks if there are none.
pub(super) fn section(cells: &Cells<'_>) -> Section {
    let mut section = super::section("Timeline");
    for (index, test) in cells.plan().tests.iter().enumerate() {
        if !test.workload.is_timed() {
            continue;
        }
        let unit = speed::course_unit(test.unit);
        let scale = match unit {
            Unit::Throughput => test.workload.mean_bytes() / 1e6,
            _ => 1.0,
        };
        let mut chart = LineChart::new(&test.name, Axis::new("time", "s"), speed::axis(unit));
        for cell in cells.of_test(index) {
            let (seconds, course) = course(cell);
            let point = |(index, requests): (usize, &f64)| {
                Point::new((index as f64 + 0.5) * seconds, requests / seconds * scale)
            };
            if course.len() > 1 {
                chart.line(&cell.level.name, course.iter().enumerate().map(point).collect());
            }
        }
        if !chart.series.is_empty() {
            section.block(chart.with_fitting_scale());
        }
    }
    if !section.blocks.is_empty() {
        let what = "Means over the runs that lasted this long.";
        section.blocks.insert(0, pumice_report::Block::Paragraph(what.into()));
    }
    section
}

/// Returns the length of an interval in seconds, and the mean number of requests per run in each
/// interval. The intervals of all runs are converted to the same length.
fn course(cell: &Cell<'_>) -> (f64, Vec<f64>) {
    let coarsest = cell.runs.iter().map(|run| run.sample.interval_ns).max().unwrap_or(1);
    let mut parts: Vec<(f64, u32)> = Vec::new();
    for run in &cell.runs {
        let whole = run.sample.intervals.len().saturating_sub(1);
        let joined = (coarsest / run.sample.interval_ns.max(1)).max(1) as usize;
        for (index, intervals) in run.sample.intervals[..whole].chunks_exact(joined).enumerate() {
            if parts.len() == index {
                parts.push((0.0, 0));
            }
            let (requests, runs) = &mut parts[index];
            *requests += intervals.iter().map(|interval| interval.operations as f64).sum::<f64>();
            *runs += 1;
        }
    }
    let mean = |(requests, runs)| requests / f64::from(runs);
    (coarsest as f64 / 1e9, parts.into_iter().map(mean).collect())
}

#[cfg(test)]
mod tests {
    //! Goal: runs whose intervals differ in length are averaged over equal intervals.
    use super::*;
    use crate::bench::engine::Interval;
    use crate::bench::results::sample;

    #[test]
    fn runs_are_brought_to_the_same_intervals() {
        let mut results = sample::results(&[100.0, 100.0]);
        let interval = |operations| Interval { operations, latency_ns_sum: 0, latency_ns_max: 9 };
        results.runs.retain(|run| run.test == 1 && run.level == 0);
        results.runs[0].sample.interval_ns = 100_000_000;
        results.runs[0].sample.intervals = vec![interval(30), interval(50), interval(1)];
        results.runs[1].sample.interval_ns = 50_000_000;
        results.runs[1].sample.intervals = [10, 10, 20, 20, 7].map(interval).to_vec();
        let cells = Cells::new(&results);
        assert_eq!(course(&cells.of_test(1)[0]), (0.1, vec![25.0, 45.0]));
    }
}
