//! Timelines of time-based runs: initial speed and speed over time.
//!
//! The last interval of a run is omitted: it is incomplete.

use super::cells::{Cell, Cells};
use crate::bench::engine::Interval;
use crate::workload::Unit;
use pumice_report::{Axis, LineChart, Point, Section};

/// Returns a chart of the rate and a chart of the maximum latency for each time-based test; no
/// blocks if there are none.
pub(super) fn section(cells: &Cells<'_>) -> Section {
    let mut section = super::section("Timeline");
    for (index, test) in cells.plan().tests.iter().enumerate() {
        if !test.workload.operation.is_timed() {
            continue;
        }
        let time = || Axis::new("time", "s");
        let (axis, scale) = match test.unit {
            Unit::Throughput => {
                let scale = test.workload.record_bytes as f64 / 1e6;
                (Axis::new("throughput", Unit::Throughput.name()), scale)
            }
            // The course of a latency is that of the requests per second, and the chart below.
            Unit::Rate | Unit::Latency | Unit::Duration => {
                (Axis::new("requests per second", Unit::Rate.name()), 1.0)
            }
        };
        let mut rate = LineChart::new(&test.name, time(), axis);
        let mut longest = LineChart::new(
            format!("{}: maximum latency", test.name),
            time(),
            Axis::new("latency", "ms"),
        );
        for cell in cells.of_test(index) {
            let (seconds, course) = course(cell);
            let at = |index: usize| (index as f64 + 0.5) * seconds;
            let points = course.iter().enumerate();
            let rates =
                points.clone().map(|(i, part)| Point::new(at(i), part.rate / seconds * scale));
            let latencies =
                points.map(|(i, part)| Point::new(at(i), part.latency_ns_max as f64 / 1e6));
            if course.len() > 1 {
                rate.line(&cell.level.name, rates.collect());
                longest.line(&cell.level.name, latencies.collect());
            }
        }
        if !rate.series.is_empty() {
            section.block(rate).block(longest);
        }
    }
    if !section.blocks.is_empty() {
        let what = "Means over the runs that lasted this long; maximum latency of any of them.";
        section.blocks.insert(0, pumice_report::Block::Paragraph(what.into()));
    }
    section
}

/// One interval of a cell, over its runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Part {
    /// Mean number of requests in a run.
    rate: f64,
    latency_ns_max: u64,
}

/// Returns the seconds of an interval, and the intervals of all runs, converted to the same length.
fn course(cell: &Cell<'_>) -> (f64, Vec<Part>) {
    let coarsest = cell.runs.iter().map(|run| run.sample.interval_ns).max().unwrap_or(1);
    let mut parts: Vec<(Part, u32)> = Vec::new();
    for run in &cell.runs {
        let whole = run.sample.intervals.len().saturating_sub(1);
        let joined = (coarsest / run.sample.interval_ns.max(1)).max(1) as usize;
        for (index, intervals) in run.sample.intervals[..whole].chunks_exact(joined).enumerate() {
            if parts.len() == index {
                parts.push((Part::default(), 0));
            }
            let (part, runs) = &mut parts[index];
            let longest = |interval: &Interval| interval.latency_ns_max;
            part.rate += intervals.iter().map(|interval| interval.operations as f64).sum::<f64>();
            part.latency_ns_max =
                part.latency_ns_max.max(intervals.iter().map(longest).max().unwrap_or(0));
            *runs += 1;
        }
    }
    let mean = |(part, runs): (Part, u32)| Part { rate: part.rate / f64::from(runs), ..part };
    (coarsest as f64 / 1e9, parts.into_iter().map(mean).collect())
}

#[cfg(test)]
mod tests {
    //! Goal: runs whose intervals differ in length are averaged over the same time.
    use super::*;
    use crate::bench::results::sample;

    #[test]
    fn runs_are_brought_to_the_same_intervals() {
        let mut results = sample::results(&[100.0, 100.0]);
        let interval =
            |operations, latency_ns_max| Interval { operations, latency_ns_sum: 0, latency_ns_max };
        results.runs.retain(|run| run.test == 1 && run.level == 0);
        results.runs[0].sample.interval_ns = 100_000_000;
        results.runs[0].sample.intervals = vec![interval(30, 5), interval(50, 9), interval(1, 99)];
        results.runs[1].sample.interval_ns = 50_000_000;
        results.runs[1].sample.intervals =
            [10, 10, 20, 20, 7].map(|operations| interval(operations, 6)).to_vec();
        let cells = Cells::new(&results);
        let (seconds, parts) = course(&cells.of_test(1)[0]);
        let part = |rate, latency_ns_max| Part { rate, latency_ns_max };
        assert_eq!((seconds, parts), (0.1, vec![part(25.0, 6), part(45.0, 9)]));
    }
}
