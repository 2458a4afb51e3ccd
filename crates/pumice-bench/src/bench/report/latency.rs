//! Latencies of single requests, over all runs of a cell.

use super::cells::Cells;
use crate::stats::Latencies;
use pumice_report::{Axis, Cell, Column, LineChart, Number, Point, Scale, Section, Table};

/// Percentages of a curve. From 90 % on, the points follow the number of nines.
const PERCENTS: [f64; 18] = [
    0.0, 10.0, 25.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 97.5, 99.0, 99.5, 99.75, 99.9, 99.95,
    99.99, 99.995, 99.999,
];

/// Returns a section with a table of all cells and a curve for each test. The section has no blocks
/// if no latency is known.
pub(super) fn section(cells: &Cells<'_>) -> Section {
    let mut section = super::section("Latency");
    let mut columns = vec![Column::left("test"), Column::left("level"), Column::right("requests")];
    let names = ["mean", "p50", "p90", "p99", "p99.9", "p99.99", "longest"];
    columns.extend(names.map(|name| Column::right(name).with_unit("µs")));
    let mut table = Table::with_columns(columns).titled("All percentiles");
    let mut charts = Vec::new();
    for (index, test) in cells.plan().tests.iter().enumerate() {
        let mut chart = LineChart::new(
            format!("Latency: {}", test.name),
            Axis::new("percentile", "%").with_scale(Scale::Percentile),
            Axis::new("latency", "µs").with_scale(Scale::Log),
        );
        for cell in cells.of_test(index) {
            let latency = cell.latency();
            if latency.count() == 0 {
                continue;
            }
            chart.line(&cell.level.name, curve(&latency));
            let mut row = vec![test.name.as_str().into(), cell.level.name.as_str().into()];
            row.push(Number::new(latency.count() as f64, 0).into());
            row.extend(of_cell(&latency).into_iter().map(|cell| match cell {
                Cell::Number(number) => number.with_unit("µs").into(),
                other => other,
            }));
            table.push(row);
        }
        if !chart.series.is_empty() {
            charts.push(chart);
        }
    }
    let Some(table) = super::filled(table) else { return section };
    section.paragraph(
        "Lower is better. From the request to its reply, over all runs; a percentile is the \
         latency that this share of the requests did not exceed.",
    );
    for chart in charts {
        section.block(chart);
    }
    section.block(table);
    section
}

/// Returns the mean, five percentiles and the maximum, in µs; empty without recorded latencies.
pub(super) fn of_cell(latency: &Latencies) -> Vec<Cell> {
    let Some(told) = latency.percentiles() else { return Vec::new() };
    let number = |ns: f64| Number::significant(ns / 1e3, 4).into();
    let all = [told.p50_ns, told.p90_ns, told.p99_ns, told.p99_9_ns, told.p99_99_ns, told.max_ns];
    std::iter::once(told.mean_ns).chain(all.map(|ns| ns as f64)).map(number).collect()
}

/// Returns the latency in µs over the percentage, up to the last percentage that at least one
/// request exceeds.
fn curve(latency: &Latencies) -> Vec<Point> {
    let beyond = |percent: &f64| latency.count() as f64 * (1.0 - percent / 100.0) >= 1.0 - 1e-9;
    let point = |percent: f64| {
        let ns = latency.quantile_ns(percent / 100.0)?;
        Some(Point::new(percent, ns as f64 / 1e3))
    };
    PERCENTS.into_iter().filter(beyond).filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    //! Goal: a curve ends at its last request.
    use super::*;

    #[test]
    fn a_curve_ends_with_its_requests() {
        let mut latency = Latencies::new();
        (1..=1000).for_each(|us| latency.record(us * 1000));
        let curve = curve(&latency);
        assert_eq!(curve.last().map(|point| point.x), Some(99.9));
        let at = |percent: f64| curve.iter().find(|point| point.x == percent).expect("a point").y;
        assert!((at(50.0) / 500.0 - 1.0).abs() < 2e-3 && (at(99.9) / 999.0 - 1.0).abs() < 2e-3);
        assert!(of_cell(&Latencies::new()).is_empty());
    }
}
