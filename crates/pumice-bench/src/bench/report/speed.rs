//! Charts and tables of throughput, rate, latency and duration.
//!
//! Tests of the same unit share one chart. Tests that differ only in the record size are a sweep
//! and have a separate chart, ordered by record size. Tests that differ only in their depth are
//! drawn by `depth`. With three or more levels of known saving, another chart shows the values over
//! the saving, with a line for each test.

use super::cells::{Cell, Cells};
use crate::bench::results::Results;
use crate::stats::Better;
use crate::workload::{Operation, Unit, Workload};
use pumice_drive::base::units::format_size_exact;
use pumice_report::{Axis, Bar, BarChart, Column, LineChart, Number, Point, Section, Table};

/// Minimum number of record sizes in a sweep. Two are merely two tests.
const SWEEP_MIN: usize = 3;

/// Minimum number of levels in a curve over the saving. The maximum number of its lines ensures
/// that they can be distinguished.
const LEVELS_MIN: usize = 3;
const LINES_MAX: usize = 8;

/// Maximum number of groups in a chart, so that their names are readable. Larger charts are split.
pub(super) const GROUPS_MAX: usize = 16;

pub(super) fn heading(unit: Unit) -> &'static str {
    match unit {
        Unit::Throughput => "Throughput",
        Unit::Rate => "Requests per second",
        Unit::Latency => "Access time",
        Unit::Duration => "Duration",
    }
}

/// Returns the unit of a test's values over time. For latencies and durations, it is requests per
/// second.
pub(super) fn course_unit(unit: Unit) -> Unit {
    match unit {
        Unit::Throughput => Unit::Throughput,
        Unit::Rate | Unit::Latency | Unit::Duration => Unit::Rate,
    }
}

/// Explains, in two sentences, which values are better and the meaning of the bars.
pub(super) fn how_to_read(unit: Unit) -> String {
    let better = match unit.better() {
        Better::Higher => "Higher is better.",
        Better::Lower => "Lower is better.",
    };
    format!(
        "{better} Each bar is the mean of its runs, each error bar one standard deviation to \
         either side."
    )
}

/// Returns a section with the tests of this unit. The section has no blocks if there are none.
pub(super) fn section(cells: &Cells<'_>, unit: Unit) -> Section {
    let mut section = super::section(heading(unit));
    let table = numbers(cells, unit);
    if table.rows().is_empty() {
        return section;
    }
    let charts = charts(cells, unit);
    if !charts.is_empty() {
        section.paragraph(how_to_read(unit));
    }
    if let Some(chart) = over_saving(cells, unit) {
        section.block(chart);
    }
    for chart in charts {
        section.block(chart);
    }
    section.block(table);
    section
}

/// Returns a table of tests by levels, with the mean and deviation in each cell; `None` if this
/// unit was not measured.
pub(super) fn matrix(cells: &Cells<'_>, unit: Unit) -> Option<Table> {
    let levels = cells.plan().levels.iter().map(|level| Column::right(&level.name));
    let levels = levels.map(|column| column.with_unit(unit.name()));
    let mut table =
        Table::with_columns(std::iter::once(Column::left("test")).chain(levels).collect());
    for test in measured(cells, unit) {
        let numbers = cells
            .of_test(test)
            .iter()
            .map(|cell| cell.mean().map(|number| number.with_unit(unit.name())).into());
        let name = cells.plan().tests[test].name.as_str().into();
        table.push(std::iter::once(name).chain(numbers).collect());
    }
    (!table.rows().is_empty()).then_some(table)
}

/// Returns one table with all numbers of every cell of every result, for programs and spreadsheets.
/// Latencies are in µs; missing values are empty.
pub fn table(all: &[Results]) -> Table {
    let words = ["result", "target", "test", "level", "operation"].map(Column::left);
    let mut columns = words.to_vec();
    columns.push(Column::right("record").with_unit("B"));
    columns.push(Column::left("unit"));
    let numbers = ["n", "mean", "deviation", "95 % from", "95 % to", "median", "least", "greatest"];
    columns.extend(numbers.map(Column::right));
    let latencies = ["mean", "p50", "p90", "p99", "p99.9", "p99.99", "longest"];
    columns.extend(latencies.map(|name| Column::right(format!("latency {name}")).with_unit("µs")));
    let mut table = Table::with_columns(columns);
    for (results, name) in all.iter().zip(crate::bench::results::names(all)) {
        for cell in Cells::new(results).iter().filter(|cell| !cell.runs.is_empty()) {
            let mut row = vec![
                name.as_str().into(),
                results.header.target.as_str().into(),
                cell.test.name.as_str().into(),
                cell.level.name.as_str().into(),
                cell.test.workload.operation.name().into(),
                Number::new(cell.test.workload.record_bytes as f64, 0).into(),
                cell.test.unit.name().into(),
            ];
            row.extend(of_cell(cell));
            row.extend(super::latency::of_cell(&cell.latency()));
            table.push(row);
        }
    }
    table
}

/// Returns the tests with this unit that have runs.
fn measured(cells: &Cells<'_>, unit: Unit) -> Vec<usize> {
    let tests = cells.plan().tests.iter().enumerate().filter(|(_, test)| test.unit == unit);
    let has_runs = |test: &usize| cells.of_test(*test).iter().any(|cell| !cell.runs.is_empty());
    tests.map(|(index, _)| index).filter(has_runs).collect()
}

fn numbers(cells: &Cells<'_>, unit: Unit) -> Table {
    let names = ["mean", "deviation", "95 % from", "95 % to", "median", "least", "greatest"];
    let mut columns = vec![Column::left("test"), Column::left("level"), Column::right("n")];
    columns.extend(names.map(|name| Column::right(name).with_unit(unit.name())));
    let mut table = Table::with_columns(columns).titled("All numbers");
    for test in measured(cells, unit) {
        for cell in cells.of_test(test).iter().filter(|cell| !cell.runs.is_empty()) {
            let mut row = vec![cell.test.name.as_str().into(), cell.level.name.as_str().into()];
            let unit = |number: Number| number.with_unit(unit.name());
            let mut of_cell = of_cell(cell).into_iter();
            row.extend(of_cell.next());
            row.extend(of_cell.map(|number| match number {
                pumice_report::Cell::Number(number) => unit(number).into(),
                other => other,
            }));
            table.push(row);
        }
    }
    table
}

/// Returns the count, mean, deviation, both ends of the interval of the mean, median, minimum and
/// maximum.
fn of_cell(cell: &Cell<'_>) -> Vec<pumice_report::Cell> {
    let count = Number::new(cell.runs.len() as f64, 0);
    let (Some(summary), Some(mean)) = (cell.summary, cell.mean()) else {
        return vec![count.into(), "no number".into()];
    };
    let number = |value: f64| Number::new(value, mean.decimals);
    let interval = summary.mean_interval;
    vec![
        count.into(),
        number(summary.mean).into(),
        summary.deviation.map(number).into(),
        interval.map(|interval| number(interval.low)).into(),
        interval.map(|interval| number(interval.high)).into(),
        number(summary.median).into(),
        number(summary.min).into(),
        number(summary.max).into(),
    ]
}

/// Returns one chart for all tests outside sweeps, then one for each sweep.
fn charts(cells: &Cells<'_>, unit: Unit) -> Vec<BarChart> {
    let mut tests = measured(cells, unit);
    let in_sweeps = cells.sweeps().concat();
    tests.retain(|test| !in_sweeps.contains(test));
    let (sweeps, single) = swept(cells, tests);
    let tests = &cells.plan().tests;
    let parts = single.len().div_ceil(GROUPS_MAX);
    let mut charts = Vec::new();
    for (part, some) in single.chunks(GROUPS_MAX).enumerate() {
        let of = if parts > 1 { format!(", {} of {parts}", part + 1) } else { String::new() };
        let mut chart = chart(cells, unit, format!("{} by test{of}", heading(unit)), "test");
        some.iter().for_each(|test| chart.group(&tests[*test].name, bars(cells.of_test(*test))));
        charts.push(chart.with_fitting_scale());
    }
    for sweep in &sweeps {
        let workload = &tests[sweep[0]].workload;
        let same = |other: &&Vec<usize>| tests[other[0]].workload.operation == workload.operation;
        let mut title = workload.operation.name().to_owned();
        if workload.operation == Operation::Mixed {
            title += &format!(" with {} % reads", workload.reads_percent);
        }
        if sweeps.iter().filter(same).count() > 1 {
            let (span, depth) = (format_size_exact(workload.span_bytes), workload.depth);
            title += &format!(" of {span}, depth {depth}, {} threads", workload.threads);
        }
        let mut chart = chart(cells, unit, format!("{title}, by bytes of a record"), "record");
        for test in sweep {
            let record = format_size_exact(tests[*test].workload.record_bytes);
            chart.group(record, bars(cells.of_test(*test)));
        }
        charts.push(chart.with_fitting_scale());
    }
    charts
}

/// Returns the axis of the bars.
pub(super) fn axis(unit: Unit) -> Axis {
    match unit {
        Unit::Throughput => Axis::new("throughput", unit.name()),
        Unit::Rate => Axis::new("requests per second", unit.name()),
        Unit::Latency => Axis::new("latency", unit.name()),
        Unit::Duration => Axis::new("duration", unit.name()),
    }
}

/// Returns the values over the saving of the data, with a line for each test; `None` if too few
/// levels have a known saving or there are too many tests.
fn over_saving(cells: &Cells<'_>, unit: Unit) -> Option<LineChart> {
    let tests = measured(cells, unit);
    if !has_curve(cells) || !(1..=LINES_MAX).contains(&tests.len()) {
        return None;
    }
    let title = format!("{} over the saving of the data", heading(unit));
    let mut chart = LineChart::new(title, Axis::new("space saved", "%"), axis(unit));
    for test in tests {
        chart.line(&cells.plan().tests[test].name, curve(cells.of_test(test)));
    }
    Some(chart)
}

/// Returns whether enough levels have a known saving for a curve.
pub(super) fn has_curve(cells: &Cells<'_>) -> bool {
    let levels = cells.plan().levels.iter();
    levels.filter(|level| level.known_saving().is_some()).count() >= LEVELS_MIN
}

/// Returns the values of a test over the saving, with deviations, in ascending order of the saving.
pub(super) fn curve(cells: &[Cell<'_>]) -> Vec<Point> {
    let point = |cell: &Cell<'_>| {
        let (saved, summary) = (cell.level.known_saving()?, cell.summary?);
        Some(Point { x: saved, y: summary.mean, deviation: summary.deviation })
    };
    let mut points: Vec<Point> = cells.iter().filter_map(point).collect();
    points.sort_by(|one, two| one.x.total_cmp(&two.x));
    points
}

fn chart(cells: &Cells<'_>, unit: Unit, title: String, groups: &str) -> BarChart {
    let levels = cells.plan().levels.iter().map(|level| level.name.clone());
    BarChart::new(title, groups, axis(unit), levels)
}

fn bars(cells: &[Cell<'_>]) -> Vec<Bar> {
    let bar = |cell: &Cell<'_>| cell.mean().map_or(Bar::missing("not run"), Bar::from);
    cells.iter().map(bar).collect()
}

/// Returns the sweeps, each ordered by record size, and the tests that belong to none.
fn swept(cells: &Cells<'_>, tests: Vec<usize>) -> (Vec<Vec<usize>>, Vec<usize>) {
    let all = &cells.plan().tests;
    let record = |test: &usize| all[*test].workload.record_bytes;
    let mut alike: Vec<(Workload, Vec<usize>)> = Vec::new();
    for test in &tests {
        let workload = Workload { record_bytes: 0, ..all[*test].workload.clone() };
        match alike.iter_mut().find(|(other, _)| *other == workload) {
            Some((_, members)) => members.push(*test),
            None => alike.push((workload, vec![*test])),
        }
    }
    let mut sweeps = Vec::new();
    for (_, mut members) in alike {
        members.sort_by_key(record);
        let distinct = members.windows(2).all(|pair| record(&pair[0]) < record(&pair[1]));
        if members.len() >= SWEEP_MIN && distinct {
            sweeps.push(members);
        }
    }
    let single = tests.into_iter().filter(|test| !sweeps.iter().any(|sweep| sweep.contains(test)));
    let single = single.collect();
    (sweeps, single)
}
