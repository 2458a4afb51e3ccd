//! Progress to steady state: values, latencies and single seconds over the whole test.
//!
//! Used only for plans that track steady state. All rounds are drawn, and the counted ones are
//! marked. The numbers of every other section cover only the measurement window.
//!
//! Source: SNIA, "Solid State Storage Performance Test Specification" 2.0.2 (2020), the plots of
//! steady state convergence and write saturation.

use super::cells::{Cell, Cells};
use super::{consistency, speed};
use crate::bench::results::RunResult;
use crate::stats::{self, RANGE_MAX};
use pumice_report::{Axis, LineChart, Point, Scale, Section};

/// Maximum number of tests in a chart, so that their lines can be distinguished.
const LINES_MAX: usize = 8;

/// Latency percentiles drawn over time.
const PERCENTILES: [(f64, &str); 4] =
    [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9"), (1.0, "longest")];

/// Returns the charts. The section has no blocks if the plan does not track steady state.
pub(super) fn section(cells: &Cells<'_>) -> Section {
    let mut section = super::section("Rounds until steady state");
    let Some((index, tracked)) = cells.tracked() else { return section };
    section.paragraph(format!(
        "All rounds; those after the last mark of the window are in steady state. A window of {} \
         rounds is steady if its values spread by at most {:.0} % of their average and their best \
         line changes by at most {:.0} %. All other sections show the measurement window only.",
        stats::WINDOW_ROUNDS,
        RANGE_MAX * 100.0,
        stats::SLOPE_MAX * 100.0
    ));
    for cell in tracked {
        section.block(convergence(cell));
        section.block(seconds(cell));
        section.block(latencies(cell));
        if cell.all.iter().any(|run| run.sample.written_bytes > 0) {
            section.block(saturation(cell));
        }
    }
    let others: Vec<usize> = cells.like(index);
    for tests in others.chunks(LINES_MAX).filter(|_| others.len() > 1) {
        let title = "Tests of the same mix, round by round";
        let mut chart =
            LineChart::new(title, Axis::new("round", ""), speed::axis(tracked[0].test.unit));
        chart.y = chart.y.with_scale(Scale::Log);
        for &test in tests {
            for cell in cells.of_test(test) {
                chart.line(cell.name(), by_round(cell));
            }
        }
        section.block(chart);
    }
    section
}

fn by_round(cell: &Cell<'_>) -> Vec<Point> {
    let point = |run: &&RunResult| Point::new(round(run), run.value(cell.test.unit));
    cell.all.iter().map(point).collect()
}

fn round(run: &RunResult) -> f64 {
    f64::from(run.round) + 1.0
}

/// Returns the tracked values by round, with the average, limits and best-fit line of the last
/// window.
fn convergence(cell: &Cell<'_>) -> LineChart {
    let title = format!("{}, round by round", cell.name());
    let mut chart = LineChart::new(title, Axis::new("round", ""), speed::axis(cell.test.unit));
    chart.line("measured", by_round(cell));
    let values: Vec<f64> = cell.all.iter().map(|run| run.value(cell.test.unit)).collect();
    let Some(window) = stats::steady(&values).last else { return chart };
    let ends = [cell.all[window.first], cell.all[values.len() - 1]].map(round);
    let flat = |value: f64| ends.map(|x| Point::new(x, value)).to_vec();
    let half = window.average * RANGE_MAX / 2.0;
    let (from, to) = window.line();
    chart.line("average of the window", flat(window.average));
    chart.line("10 % above", flat(window.average + half));
    chart.line("10 % below", flat(window.average - half));
    chart.line("best line", vec![Point::new(ends[0], from), Point::new(ends[1], to)]);
    chart
}

/// Returns requests or bytes per second for each second of the whole test.
fn seconds(cell: &Cell<'_>) -> LineChart {
    let title = format!("{}, second by second", cell.name());
    let axis = speed::axis(speed::course_unit(cell.test.unit));
    let mut chart = LineChart::new(title, Axis::new("time", "s"), axis);
    let parts = consistency::parts(&cell.all, cell, |_| 1.0);
    let dot =
        |run: &RunResult, part: &consistency::Part| Point::new(run.begun_s + part.at_s, part.value);
    let all = cell.all.iter().zip(&parts);
    let dots = all.flat_map(|(run, parts)| parts.iter().map(move |part| dot(run, part)));
    chart.dots("measured", dots.collect());
    chart
}

/// Returns latency percentiles by round.
fn latencies(cell: &Cell<'_>) -> LineChart {
    let title = format!("{}, latency round by round", cell.name());
    let axis = Axis::new("latency", "µs").with_scale(Scale::Log);
    let mut chart = LineChart::new(title, Axis::new("round", ""), axis);
    for (share, name) in PERCENTILES {
        let point = |run: &&RunResult| {
            let ns = run.sample.latency.quantile_ns(share)?;
            Some(Point::new(round(run), ns as f64 / 1e3))
        };
        chart.line(name, cell.all.iter().filter_map(point).collect());
    }
    chart
}

/// Returns the value of each round over the bytes written by its end.
fn saturation(cell: &Cell<'_>) -> LineChart {
    let title = format!("{}, over the bytes written", cell.name());
    let mut chart = LineChart::new(title, Axis::new("written", "GB"), speed::axis(cell.test.unit));
    let mut written = 0.0;
    let point = |run: &&RunResult| {
        written += run.sample.written_bytes as f64 / 1e9;
        Point::new(written, run.value(cell.test.unit))
    };
    chart.line("measured", cell.all.iter().map(point).collect());
    chart
}
