//! The range of a target: transfer rates and access times by position, in the style of HD Tune.
//!
//! This applies to tests that read existing data. As in HD Tune, the chart of a result has both
//! quantities: a line of rates, which are means over the runs, and a dot for the access time of
//! each request. Several results have one chart for each quantity.

use super::cells::{Cell, Cells};
use crate::bench::engine::Spot;
use crate::workload::{Operation, Unit};
use pumice_report::{Axis, Column, LineChart, Number, Point, Section, Table};

/// Maximum number of dots in a series. More would hide each other.
const DOTS_MAX: usize = 1500;

/// Returns the charts and a table of all tests that read existing data. The section has no blocks
/// if there are none.
pub(super) fn section(cells: &Cells<'_>) -> Section {
    let mut section = super::section("Over the range");
    let Some(table) = table(cells) else { return section };
    section.paragraph(
        "By position on the target, from its start to its end. Rates are means over the runs of \
         the stretch at a position; each dot is one request.",
    );
    for level in 0..cells.plan().levels.len() {
        if let Some(chart) = both(cells, level) {
            section.block(chart);
        }
    }
    section.block(table);
    section
}

/// Returns one chart with the rates and access times of a result at a level; `None` without
/// positions.
fn both(cells: &Cells<'_>, level: usize) -> Option<LineChart> {
    let tests = 0..cells.plan().tests.len();
    let has_spots = |cell: &&Cell<'_>| cell.runs.iter().any(|run| !run.sample.spots.is_empty());
    let at_level = tests.map(|test| &cells.of_test(test)[level]).filter(has_spots);
    let (rated, timed): (Vec<_>, Vec<_>) = at_level.partition(|cell| is_rate(cell));
    let first = rated.first().or(timed.first())?;
    let title = match (rated.is_empty(), timed.is_empty()) {
        (false, false) => "Transfer rate and access time over the range",
        _ => "Over the range",
    };
    let title = match cells.plan().levels.len() {
        1 => title.to_owned(),
        _ => format!("{title}, {}", first.level.name),
    };
    let axis = if rated.is_empty() { time_axis() } else { rate_axis() };
    let mut chart = LineChart::new(title, Axis::new("position", "GB"), axis);
    for cell in &rated {
        chart.line(&cell.test.name, rates(cell));
    }
    for cell in &timed {
        match rated.is_empty() {
            true => chart.dots(&cell.test.name, times(cell)),
            false => chart.dots_at_right(&cell.test.name, time_axis(), times(cell)),
        }
    }
    Some(chart)
}

fn is_rate(cell: &Cell<'_>) -> bool {
    cell.test.workload.operation == Operation::SurfaceRead
}

fn rate_axis() -> Axis {
    Axis::new("transfer rate", Unit::Throughput.name())
}

fn time_axis() -> Axis {
    Axis::new("access time", Unit::Latency.name())
}

/// Returns one chart for each test and level with positions, with one series for each result.
pub(super) fn charts(all: &[&Cells<'_>], names: &[String]) -> Vec<LineChart> {
    let Some(first) = all.first() else { return Vec::new() };
    let mut charts = Vec::new();
    for (index, cell) in first.iter().enumerate() {
        if cell.runs.iter().all(|run| run.sample.spots.is_empty()) {
            continue;
        }
        let axis = if is_rate(cell) { rate_axis() } else { time_axis() };
        let title = format!("{} over the range", cell.name());
        let mut chart = LineChart::new(title, Axis::new("position", "GB"), axis);
        for (cells, name) in all.iter().zip(names) {
            let Some(cell) = cells.iter().nth(index) else { continue };
            match is_rate(cell) {
                true => chart.line(name, rates(cell)),
                false => chart.dots(name, times(cell)),
            }
        }
        charts.push(chart);
    }
    charts
}

/// Returns the table; `None` if no test reads existing data.
///
/// The extremes are taken over the positions of all runs.
pub(super) fn table(cells: &Cells<'_>) -> Option<Table> {
    let mut table = Table::with_columns(vec![
        Column::left("test"),
        Column::left("level"),
        Column::right("mean"),
        Column::right("least"),
        Column::right("greatest"),
        Column::left("unit"),
        Column::right("processor").with_unit("%"),
    ]);
    let looks = |cell: &&Cell<'_>| cell.test.workload.operation.reads_as_it_is();
    for cell in cells.iter().filter(looks) {
        let Some(mean) = cell.mean() else { continue };
        let number = |value: f64| Number::new(value, mean.decimals);
        let ends = ends(cell).map(|ends| ends.map(number));
        let [least, greatest] = match ends {
            Some(ends) => ends.map(Some),
            None => [None, None],
        };
        let shares = cell.runs.iter().map(|run| run.processor_share);
        let share = shares.sum::<f64>() / cell.runs.len().max(1) as f64;
        table.push(vec![
            cell.test.name.as_str().into(),
            cell.level.name.as_str().into(),
            mean.into(),
            least.into(),
            greatest.into(),
            cell.test.unit.name().into(),
            Number::new(share * 100.0, 1).into(),
        ]);
    }
    (!table.rows().is_empty()).then_some(table)
}

/// Returns the smallest and the largest value at a position, in the test's unit; `None` without
/// positions.
fn ends(cell: &Cell<'_>) -> Option<[f64; 2]> {
    let spots = cell.runs.iter().flat_map(|run| &run.sample.spots);
    let values = spots.map(|spot| match cell.test.unit {
        Unit::Throughput => rate(spot),
        Unit::Rate => 1e9 / spot.ns.max(1) as f64,
        Unit::Latency => spot.ns as f64 / 1e6,
        Unit::Duration => spot.ns as f64 / 1e9,
    });
    let both = |ends: Option<[f64; 2]>, value: f64| {
        let [least, greatest] = ends.unwrap_or([value, value]);
        Some([least.min(value), greatest.max(value)])
    };
    values.fold(None, both)
}

/// Returns the mean rate at each position, over the runs.
fn rates(cell: &Cell<'_>) -> Vec<Point> {
    let mut spots: Vec<&Spot> = cell.runs.iter().flat_map(|run| &run.sample.spots).collect();
    spots.sort_by_key(|spot| spot.offset_bytes);
    let point = |same: &[&Spot]| {
        let mean = same.iter().map(|spot| rate(spot)).sum::<f64>() / same.len() as f64;
        Point::new(position(same[0]), mean)
    };
    spots.chunk_by(|one, two| one.offset_bytes == two.offset_bytes).map(point).collect()
}

/// Returns the access times by position. If there are too many, the same share of each run is
/// returned.
fn times(cell: &Cell<'_>) -> Vec<Point> {
    let count: usize = cell.runs.iter().map(|run| run.sample.spots.len()).sum();
    let spots = cell.runs.iter().flat_map(|run| &run.sample.spots);
    let kept = spots.step_by(count.div_ceil(DOTS_MAX).max(1));
    kept.map(|spot| Point::new(position(spot), spot.ns as f64 / 1e6)).collect()
}

/// Returns the rate in 10^6 bytes per second.
fn rate(spot: &Spot) -> f64 {
    spot.bytes as f64 * 1e3 / spot.ns.max(1) as f64
}

/// Returns the position in 10^9 bytes from the start of the target.
fn position(spot: &Spot) -> f64 {
    spot.offset_bytes as f64 / 1e9
}

#[cfg(test)]
mod tests {
    //! Goal: each value is drawn at its position, and the reported ends are the extremes over the
    //! positions.
    use super::*;
    use crate::bench::results::sample::{results, test, workload};

    fn spot(offset_bytes: u64, bytes: u64, ns: u64) -> Spot {
        Spot { offset_bytes, bytes, ns }
    }

    #[test]
    fn positions_have_their_rates_and_times() {
        let mut all = results(&[100.0, 100.0]);
        let plan = &mut all.header.plan;
        plan.levels.truncate(1);
        let unit = Unit::Throughput;
        plan.tests[0] = test("Transfer rate", unit, workload(Operation::SurfaceRead, 4096));
        plan.tests[1] = test("Access time", Unit::Latency, workload(Operation::AccessRead, 4096));
        all.runs.retain(|run| run.level == 0);
        for (number, run) in all.runs.iter_mut().enumerate() {
            let slow = 1 + (number as u64) / 2;
            run.sample.spots = match run.test {
                0 => vec![spot(0, 1 << 20, 10_000_000 * slow), spot(1 << 30, 1 << 20, 20_000_000)],
                _ => vec![spot(5_000_000_000, 4096, 2_000_000), spot(0, 4096, 1_000_000 * slow)],
            };
        }
        let cells = Cells::new(&all);
        let charts = charts(&[&cells, &cells], &["old".to_owned(), "new".to_owned()]);
        assert_eq!(charts.len(), 2);
        assert_eq!(charts[0].series[1].name, "new");
        let [begin, end] = &charts[0].series[0].points[..] else { panic!("two positions") };
        // The mean of 104.8576 and 52.4288 MB/s.
        assert!(begin.x == 0.0 && (begin.y - 78.6432).abs() < 1e-9, "{begin:?}");
        assert_eq!((end.x, end.y), ((1u64 << 30) as f64 / 1e9, 52.4288));
        let dots = &charts[1].series[0];
        assert!(!dots.is_joined);
        assert_eq!((dots.points.len(), dots.points[0].x, dots.points[0].y), (4, 5.0, 2.0));
        let section = section(&cells);
        let one = section.blocks.iter().find_map(|block| match block {
            pumice_report::Block::Lines(chart) => Some(chart),
            _ => None,
        });
        let one = one.expect("a chart");
        let series: Vec<_> = one.series.iter().map(|it| (it.name.as_str(), it.is_right)).collect();
        assert_eq!(series, [("Transfer rate", false), ("Access time", true)]);
        let text = table(&cells).expect("a table").to_text();
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).expect(name);
        assert!(row("Transfer rate").contains("52.4  ") && row("Transfer rate").contains("104.9"));
        assert!(row("Access time").contains("2.0000  ms"), "{text}");
        assert!(row("Access time").ends_with("50.0"), "{text}");
        assert!(super::section(&Cells::new(&results(&[1.0]))).blocks.is_empty());
    }
}
