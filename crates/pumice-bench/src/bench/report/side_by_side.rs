//! Several results in one chart: a group of bars for each target.
//!
//! With several levels, each test has its own chart, in which each target is a group and each level
//! a bar. With three or more levels of known saving, another chart shows the speed over the saving.
//! With one level, all tests of a unit share one chart, in which each target is a bar. Tests that
//! sweep the queue depth have separate charts.

use super::cells::{Cell, Cells};
use super::facts;
use super::range;
use super::speed::{self, GROUPS_MAX};
use crate::bench::results::Results;
use crate::workload::Unit;
use pumice_report::{Axis, Bar, BarChart, Column, LineChart, Section, Table};

/// Returns a section with the charts. The section has no blocks if there are fewer than two
/// results. The results must have been compared.
pub(super) fn section(all: &[Results], names: &[String]) -> Section {
    let mut section = super::section("Side by side");
    let [first, _, ..] = all else { return section };
    section.block(measured(all, names));
    let cells: Vec<Cells<'_>> = all.iter().map(Cells::new).collect();
    let in_sweeps: Vec<usize> = cells[0].sweeps().concat();
    let plan = &first.header.plan;
    for unit in Unit::ALL {
        let is_drawn = |test: &usize| plan.tests[*test].unit == unit && !in_sweeps.contains(test);
        let tests: Vec<usize> = (0..plan.tests.len()).filter(is_drawn).collect();
        if !tests.is_empty() {
            section.paragraph(speed::how_to_read(unit));
        }
        if plan.levels.len() > 1 {
            for test in tests {
                section.block(by_level(&cells, names, test, unit));
                if let Some(chart) = over_saving(&cells, names, test, unit) {
                    section.block(chart);
                }
            }
            continue;
        }
        let parts = tests.len().div_ceil(GROUPS_MAX);
        for (part, tests) in tests.chunks(GROUPS_MAX).enumerate() {
            let of = if parts > 1 { format!(", {} of {parts}", part + 1) } else { String::new() };
            let title = format!("{} of {}{of}", speed::heading(unit), names.join(" and "));
            let mut chart = BarChart::new(title, "test", speed::axis(unit), names);
            for &test in tests {
                let bars = cells.iter().map(|cells| bar(&cells.of_test(test)[0])).collect();
                chart.group(&plan.tests[test].name, bars);
            }
            section.block(chart.with_fitting_scale());
        }
    }
    let cells: Vec<&Cells<'_>> = cells.iter().collect();
    for chart in range::charts(&cells, names) {
        section.block(chart);
    }
    section
}

/// Returns the chart of one test, with a group for each target and a bar for each level.
fn by_level(cells: &[Cells<'_>], names: &[String], test: usize, unit: Unit) -> BarChart {
    let plan = cells[0].plan();
    let levels = plan.levels.iter().map(|level| level.name.clone());
    let title = plan.tests[test].name.clone();
    let mut chart = BarChart::new(title, "target", speed::axis(unit), levels);
    for (cells, name) in cells.iter().zip(names) {
        chart.group(name, cells.of_test(test).iter().map(bar).collect());
    }
    chart.with_fitting_scale()
}

/// Returns a row for each result, with its target, machine, device and start.
fn measured(all: &[Results], names: &[String]) -> Table {
    let columns = ["result", "target", "host", "system", "device", "begun"];
    let mut table = Table::with_columns(columns.map(Column::left).to_vec()).titled("Targets");
    for (results, name) in all.iter().zip(names) {
        let header = &results.header;
        let fact = |name: &str| header.fact(name).unwrap_or_default();
        let system: Vec<&str> = ["distribution", "kernel"].map(fact).to_vec();
        let system = system.into_iter().filter(|fact| !fact.is_empty()).collect::<Vec<_>>();
        let device = [fact("device model"), fact("device stack"), fact("device")];
        let device = device.into_iter().find(|fact| !fact.is_empty());
        let begun = match header.begun_unix_s {
            0 => String::new(),
            seconds => facts::utc(seconds),
        };
        table.push(vec![
            name.as_str().into(),
            header.target.as_str().into(),
            fact("host").into(),
            system.join(", ").into(),
            device.unwrap_or_else(|| fact("simulated drive")).into(),
            begun.into(),
        ]);
    }
    table
}

/// Returns one test over the saving of its data, with a line for each target and with deviations.
fn over_saving(
    cells: &[Cells<'_>],
    names: &[String],
    test: usize,
    unit: Unit,
) -> Option<LineChart> {
    let plan = cells[0].plan();
    if !speed::has_curve(&cells[0]) {
        return None;
    }
    let title = format!("{}, over the saving of the data", plan.tests[test].name);
    let mut chart = LineChart::new(title, Axis::new("space saved", "%"), speed::axis(unit));
    for (cells, name) in cells.iter().zip(names) {
        chart.line(name, speed::curve(cells.of_test(test)));
    }
    Some(chart.with_fitting_scale())
}

fn bar(cell: &Cell<'_>) -> Bar {
    cell.mean().map_or(Bar::missing("not run"), Bar::from)
}
