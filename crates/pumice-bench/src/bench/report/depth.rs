//! Tests that differ in nothing but the number of requests in flight, as lines over that number.

use super::cells::{Cell, Cells};
use super::speed;
use crate::workload::{Plan, Unit, Workload};
use pumice_report::{Axis, LineChart, Point, Scale};

/// Minimum number of depths of a line.
const DEPTHS_MIN: usize = 3;

/// Tests that differ only in their depth.
pub(super) struct Family {
    /// What they have in common, such as `random read, 4 KiB`.
    name: String,
    /// Their indices, by depth.
    pub(super) tests: Vec<usize>,
}

/// Returns the families of a plan's tests with this unit, in the order of the plan.
pub(super) fn families(plan: &Plan, unit: Unit) -> Vec<Family> {
    let mut alike: Vec<(Workload, Vec<usize>)> = Vec::new();
    for (index, test) in plan.tests.iter().enumerate().filter(|(_, test)| test.unit == unit) {
        let workload = Workload { depth: 1, ..test.workload.clone() };
        match alike.iter_mut().find(|(other, _)| *other == workload) {
            Some((_, members)) => members.push(index),
            None => alike.push((workload, vec![index])),
        }
    }
    let depth = |test: &usize| plan.tests[*test].workload.depth;
    let mut families = Vec::new();
    for (_, mut tests) in alike {
        tests.sort_by_key(depth);
        let is_rising = tests.windows(2).all(|pair| depth(&pair[0]) < depth(&pair[1]));
        if tests.len() >= DEPTHS_MIN && is_rising {
            let first = &plan.tests[tests[0]];
            let suffix = format!(", depth {}", first.workload.depth);
            families.push(Family { name: first.name.replace(&suffix, ""), tests });
        }
    }
    families
}

/// Returns the charts of one result: with one level a line for each family, and otherwise for each
/// family a chart with a line for each level.
pub(super) fn charts(cells: &Cells<'_>, unit: Unit) -> Vec<LineChart> {
    let plan = cells.plan();
    let families = families(plan, unit);
    let [_] = &plan.levels[..] else {
        let of_family = |family: &Family| {
            let mut pair = pair(&family.name, unit);
            for (level, description) in plan.levels.iter().enumerate() {
                add(&mut pair, &description.name, cells, family, level);
            }
            pair
        };
        return families.iter().flat_map(of_family).filter(has_lines).collect();
    };
    let mut pair = pair(speed::heading(unit), unit);
    for family in &families {
        add(&mut pair, &family.name, cells, family, 0);
    }
    pair.into_iter().filter(has_lines).collect()
}

/// Returns the charts of several results of one plan: for each family and level, a line for each
/// result.
pub(super) fn side_by_side(cells: &[Cells<'_>], names: &[String], unit: Unit) -> Vec<LineChart> {
    let Some(first) = cells.first() else { return Vec::new() };
    let plan = first.plan();
    let mut charts = Vec::new();
    for family in families(plan, unit) {
        for (level, description) in plan.levels.iter().enumerate() {
            let title = match plan.levels.len() {
                1 => family.name.clone(),
                _ => format!("{}, {}", family.name, description.name),
            };
            let mut pair = pair(&title, unit);
            for (cells, name) in cells.iter().zip(names) {
                add(&mut pair, name, cells, &family, level);
            }
            charts.extend(pair.into_iter().filter(has_lines));
        }
    }
    charts
}

fn has_lines(chart: &LineChart) -> bool {
    !chart.series.is_empty()
}

/// Returns a chart of the speed and one of the latency.
fn pair(title: &str, unit: Unit) -> [LineChart; 2] {
    let x = || Axis::new("requests in flight", "").with_scale(Scale::Log);
    let latency = Axis::new("mean latency", "µs").with_scale(Scale::Log);
    [
        LineChart::new(format!("{title}, over the requests in flight"), x(), speed::axis(unit)),
        LineChart::new(format!("{title}: latency over the requests in flight"), x(), latency),
    ]
}

/// Adds a line to both charts, if the family has runs.
fn add(pair: &mut [LineChart; 2], name: &str, cells: &Cells<'_>, family: &Family, level: usize) {
    let cells: Vec<&Cell<'_>> =
        family.tests.iter().map(|test| &cells.of_test(*test)[level]).collect();
    let flight = |cell: &Cell<'_>| {
        f64::from(cell.test.workload.depth) * f64::from(cell.test.workload.threads)
    };
    let speed = cells.iter().filter_map(|cell| {
        let summary = cell.summary?;
        Some(Point { x: flight(cell), y: summary.mean, deviation: summary.deviation })
    });
    let latency = cells.iter().filter_map(|cell| {
        let percentiles = cell.latency().percentiles()?;
        Some(Point::new(flight(cell), percentiles.mean_ns / 1e3))
    });
    for (chart, points) in pair.iter_mut().zip([speed.collect(), latency.collect::<Vec<_>>()]) {
        let points: Vec<Point> = points;
        if !points.is_empty() {
            chart.line(name, points);
        }
    }
}
