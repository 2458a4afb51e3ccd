//! Consistency: one dot for each second of a time-based test, over all its consecutive runs, and
//! one dot for the longest latency in that second.
//!
//! The dots show stalls, which a mean hides. Several targets share one chart. With several levels,
//! only the levels with the smallest and the largest saving are drawn.

use super::cells::{Cell, Cells};
use super::speed;
use crate::bench::engine::Interval;
use crate::bench::results::RunResult;
use crate::workload::Unit;
use pumice_report::{Axis, Block, LineChart, Point, Section};

/// Maximum number of dots in a series. More would hide each other.
const DOTS_MAX: usize = 1500;

/// Minimum number of dots in a chart. Fewer would not show any scatter.
const DOTS_MIN: usize = 10;

/// A part of a run, merged from one or more intervals.
pub(super) struct Part {
    /// Midpoint of the part, in seconds from the start of the run.
    pub(super) at_s: f64,
    /// Value per second, in the test's unit.
    pub(super) value: f64,
    /// Longest latency of a request that ended in the part, in µs; 0 if no request did.
    pub(super) longest_us: f64,
}

/// Returns a section with the charts of all results, whose plans must be alike. The section has no
/// blocks if no test is time-based.
pub(super) fn section(all: &[Cells<'_>], names: &[String]) -> Section {
    let mut section = super::section("Consistency");
    let Some(first) = all.first() else { return section };
    let plan = first.plan();
    let levels = drawn_levels(first);
    for (index, test) in plan.tests.iter().enumerate() {
        if !test.workload.operation.is_timed() {
            continue;
        }
        for (of, lines) in lines(all, names, &levels) {
            let chart = |what: &str, axis: Axis| {
                let title = format!("{}{of}: {what}", test.name);
                LineChart::new(title, Axis::new("time measured", "s"), axis)
            };
            let mut rate = chart("second by second", speed::axis(speed::course_unit(test.unit)));
            let mut longest = chart("longest latency", Axis::new("latency", "µs"));
            for (name, cells, level) in lines {
                let (rates, latencies) = dots(&cells.of_test(index)[level]);
                if rates.len() >= DOTS_MIN {
                    rate.dots(name, rates);
                    longest.dots(name, latencies);
                }
            }
            if !rate.series.is_empty() {
                section.block(rate.with_fitting_scale()).block(longest.with_fitting_scale());
            }
        }
    }
    if !section.blocks.is_empty() {
        let which = if plan.levels.len() > 2 {
            " Only the levels with the least and the greatest saving are drawn."
        } else {
            ""
        };
        let what = format!(
            "A dot for each second of all runs, one run after another; runs of a few seconds have \
             a dot for each of their intervals. The closer the dots, the steadier the target.\
             {which}"
        );
        section.blocks.insert(0, Block::Paragraph(what));
    }
    section
}

/// The name of a series, and its target and level.
type Line<'a> = (&'a str, &'a Cells<'a>, usize);

/// Returns the title suffix and the series of each chart of a test. One target has all levels in
/// one chart; several targets share a chart for each level.
fn lines<'a>(
    all: &'a [Cells<'a>],
    names: &'a [String],
    levels: &[usize],
) -> Vec<(String, Vec<Line<'a>>)> {
    let name = |cells: &'a Cells<'a>, level: usize| cells.plan().levels[level].name.as_str();
    match all {
        [one] if levels.len() > 1 => {
            let of_level = |level: &usize| (name(one, *level), one, *level);
            vec![(String::new(), levels.iter().map(of_level).collect())]
        }
        _ => {
            let of_level = |level: &usize| {
                let of = match all[0].plan().levels.len() {
                    1 => String::new(),
                    _ => format!(", {}", name(&all[0], *level)),
                };
                let targets = all.iter().zip(names);
                (of, targets.map(|(cells, name)| (name.as_str(), cells, *level)).collect())
            };
            levels.iter().map(of_level).collect()
        }
    }
}

/// Returns the levels to draw: the ones with the smallest and largest saving, or the first and the
/// last level.
fn drawn_levels(cells: &Cells<'_>) -> Vec<usize> {
    let levels = &cells.plan().levels;
    let mut indices: Vec<usize> = (0..levels.len()).collect();
    if levels.iter().all(|level| level.saved_percent.is_some()) {
        let saved = |index: &usize| levels[*index].saved_percent.unwrap_or(0.0);
        indices.sort_by(|one, other| saved(other).total_cmp(&saved(one)));
    }
    match indices[..] {
        [first, .., last] => vec![first, last],
        _ => indices,
    }
}

/// Returns the dots of a cell: its values, and its longest latencies.
fn dots(cell: &Cell<'_>) -> (Vec<Point>, Vec<Point>) {
    let (mut rates, mut latencies) = (Vec::new(), Vec::new());
    let mut begun_s = 0.0;
    for (run, parts) in cell.runs.iter().zip(parts(&cell.runs, cell, dot_s)) {
        for part in parts {
            let at = begun_s + part.at_s;
            rates.push(Point::new(at, part.value));
            if part.longest_us > 0.0 {
                latencies.push(Point::new(at, part.longest_us));
            }
        }
        begun_s += run.sample.seconds;
    }
    (rates, latencies)
}

/// Returns the minimum length of a part of a run in seconds: one second, or one interval if the run
/// is shorter than ten seconds.
fn dot_s(run: &RunResult) -> f64 {
    if run.sample.seconds < DOTS_MIN as f64 { 0.0 } else { 1.0 }
}

/// Returns the parts of each run: intervals merged to about `dot_s`, or to more if there would be
/// too many dots. The last interval of a run is incomplete and therefore omitted.
pub(super) fn parts(
    runs: &[&RunResult],
    cell: &Cell<'_>,
    dot_s: fn(&RunResult) -> f64,
) -> Vec<Vec<Part>> {
    let scale = match cell.test.unit {
        Unit::Throughput => cell.test.workload.record_bytes as f64 / 1e6,
        Unit::Rate | Unit::Latency | Unit::Duration => 1.0,
    };
    let seconds: f64 = runs.iter().map(|run| run.sample.seconds).sum();
    let of_run = |run: &&RunResult| {
        let interval_s = run.sample.interval_ns as f64 / 1e9;
        let whole = run.sample.intervals.len().saturating_sub(1);
        let least_s = (seconds / DOTS_MAX as f64).max(dot_s(run));
        let joined = ((least_s / interval_s).round() as usize).clamp(1, whole.max(1));
        let part = |(index, some): (usize, &[Interval])| {
            let length_s = interval_s * joined as f64;
            let requests = some.iter().map(|interval| interval.operations).sum::<u64>();
            let longest_ns = some.iter().map(|interval| interval.latency_ns_max).max();
            Part {
                at_s: (index as f64 + 0.5) * length_s,
                value: requests as f64 / length_s * scale,
                longest_us: longest_ns.unwrap_or(0) as f64 / 1e3,
            }
        };
        run.sample.intervals[..whole].chunks_exact(joined).enumerate().map(part).collect()
    };
    runs.iter().map(of_run).collect()
}

#[cfg(test)]
mod tests {
    //! Goal: each dot has the time and value of its second, and a chart has no more dots than are
    //! visible.
    use super::*;
    use crate::bench::results::sample;

    #[test]
    fn dots_are_seconds() {
        let mut results = sample::results(&[100.0, 100.0]);
        results.runs.retain(|run| run.test == 1 && run.level == 0);
        let interval = |operations| Interval {
            operations,
            latency_ns_sum: 0,
            latency_ns_max: operations * 1000,
        };
        // The first run has 12 seconds in intervals of half a second, the last one incomplete. The
        // second has one second, whose intervals are shown individually.
        let long = &mut results.runs[0].sample;
        (long.seconds, long.interval_ns) = (12.2, 500_000_000);
        long.intervals = (0..25).map(|index| interval(index % 5 + 1)).collect();
        let short = &mut results.runs[1].sample;
        (short.seconds, short.interval_ns) = (1.0, 50_000_000);
        short.intervals = vec![interval(7); 20];
        let cells = Cells::new(&results);
        let (rates, latencies) = dots(&cells.of_test(1)[0]);
        assert_eq!((rates.len(), latencies.len()), (12 + 19, 12 + 19));
        let dot = |point: &Point| (point.x, point.y);
        assert_eq!((dot(&rates[0]), dot(&rates[1])), ((0.5, 3.0), (1.5, 7.0)));
        assert_eq!((dot(&latencies[0]), dot(&latencies[2])), ((0.5, 2.0), (2.5, 5.0)));
        assert!((rates[12].x - 12.225).abs() < 1e-9 && (rates[12].y - 140.0).abs() < 1e-9);

        // A day of seconds is drawn with no more dots than are visible.
        for run in &mut results.runs {
            (run.sample.seconds, run.sample.interval_ns) = (43_200.0, 1_000_000_000);
            run.sample.intervals = vec![interval(7); 43_200];
        }
        let cells = Cells::new(&results);
        let (rates, _) = dots(&cells.of_test(1)[0]);
        assert!((DOTS_MAX / 2..=DOTS_MAX).contains(&rates.len()), "{}", rates.len());
    }

    #[test]
    fn both_ends_of_the_savings_are_drawn() {
        let mut results = sample::results(&[100.0; 2]);
        let mut level = results.header.plan.levels[0].clone();
        (level.name, level.saved_percent) = ("100 % saved".into(), Some(100.0));
        results.header.plan.levels.push(level);
        let cells = Cells::new(&results);
        assert_eq!(drawn_levels(&cells), [2, 1]);
        let one = section(std::slice::from_ref(&cells), &["a".into()]);
        // A sequential test that ends with its span has no dots for seconds.
        assert_eq!(one.blocks.len(), 1 + 2);
        let two = section(&[Cells::new(&results), cells], &["a".into(), "b".into()]);
        assert_eq!(two.blocks.len(), 1 + 2);
        let Block::Lines(chart) = &two.blocks[1] else { panic!("a chart") };
        assert_eq!(chart.title, "random write, 0 % saved: second by second");
        assert_eq!(chart.series.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }
}
