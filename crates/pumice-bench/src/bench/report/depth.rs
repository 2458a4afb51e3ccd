//! Speed and latency over queue depth, with one line for each target or level.
//!
//! Tests that differ only in their depth are a sweep. Every result with several depths has these
//! charts, regardless of its preset.

use super::cells::{Cell, Cells};
use super::speed;
use pumice_drive::base::units::format_size_exact;
use pumice_report::{Axis, LineChart, Point, Scale, Section};

/// Maximum number of lines in a chart, so that they can be distinguished.
const LINES_MAX: usize = 8;

/// Returns a section with the sweeps of all results, whose plans must be alike. The section has no
/// blocks if there are no sweeps.
pub(super) fn section(all: &[Cells<'_>], names: &[String]) -> Section {
    let mut section = super::section("Over queue depth");
    let Some(first) = all.first() else { return section };
    for sweep in first.sweeps() {
        let title = title(first, &sweep);
        for lines in series(all, names) {
            let chart = |what: &str, axis: Axis| {
                let of = lines.level.map_or(String::new(), |level| format!(", {level}"));
                let depth = Axis::new("queue depth", "").with_scale(Scale::Doubling);
                LineChart::new(format!("{title}{of}: {what}"), depth, axis)
            };
            let unit = first.plan().tests[sweep[0]].unit;
            let mut value = chart(speed::heading(unit), speed::axis(unit));
            let mut mean = chart("mean latency", Axis::new("latency", "µs"));
            let mut tail = chart("latency, 99th percentile", Axis::new("latency", "µs"));
            for line in &lines.lines {
                value.line(
                    &line.name,
                    line.points(&sweep, |cell| {
                        let summary = cell.summary?;
                        Some((summary.mean, summary.deviation))
                    }),
                );
                let us = |ns: f64| Some((ns / 1e3, None));
                mean.line(
                    &line.name,
                    line.points(&sweep, |cell| us(cell.latency().percentiles()?.mean_ns)),
                );
                tail.line(
                    &line.name,
                    line.points(&sweep, |cell| us(cell.latency().percentiles()?.p99_ns as f64)),
                );
            }
            for chart in [value, mean, tail] {
                if chart.series.iter().any(|series| !series.points.is_empty()) {
                    section.block(chart.with_fitting_scale());
                }
            }
        }
    }
    if !section.blocks.is_empty() {
        let what = "Tests that differ only in the number of requests in flight. Error bars are one \
                    standard deviation to either side.";
        section.blocks.insert(0, pumice_report::Block::Paragraph(what.into()));
    }
    section
}

/// Returns the common properties of the tests of a sweep, such as `random-read, 4 KiB`.
fn title(cells: &Cells<'_>, sweep: &[usize]) -> String {
    let workload = &cells.plan().tests[sweep[0]].workload;
    let record = format_size_exact(workload.record_bytes);
    let threads = match workload.threads {
        1 => String::new(),
        threads => format!(", {threads} threads"),
    };
    format!("{}, {record}{threads}", workload.operation.name())
}

/// The lines of a chart.
struct Lines<'a> {
    /// The level of all lines, if each level has its own chart.
    level: Option<&'a str>,
    lines: Vec<Line<'a>>,
}

/// The cells of a target at a level.
struct Line<'a> {
    name: String,
    cells: &'a Cells<'a>,
    level: usize,
}

/// Returns the lines of each chart: one chart if the lines can be distinguished, otherwise one for
/// each level.
fn series<'a>(all: &'a [Cells<'a>], names: &'a [String]) -> Vec<Lines<'a>> {
    let levels = &all[0].plan().levels;
    let line = |(cells, name): (&'a Cells<'a>, &str), level: usize, has_level: bool| {
        let of_level = &levels[level].name;
        let name = match (all.len(), has_level) {
            (1, true) => of_level.clone(),
            (_, true) => format!("{name}, {of_level}"),
            (_, false) => name.to_owned(),
        };
        Line { name, cells, level }
    };
    let targets = || all.iter().zip(names.iter().map(String::as_str));
    if all.len() * levels.len() <= LINES_MAX || all.len() == 1 {
        let has_level = levels.len() > 1;
        let of_level = |level| targets().map(move |target| line(target, level, has_level));
        return vec![Lines { level: None, lines: (0..levels.len()).flat_map(of_level).collect() }];
    }
    let of_level = |level: usize| Lines {
        level: Some(levels[level].name.as_str()),
        lines: targets().map(|target| line(target, level, false)).collect(),
    };
    (0..levels.len()).map(of_level).collect()
}

impl Line<'_> {
    /// Returns a point, with its deviation if known, for each test of a sweep that has a value.
    fn points(
        &self,
        sweep: &[usize],
        value: impl Fn(&Cell<'_>) -> Option<(f64, Option<f64>)>,
    ) -> Vec<Point> {
        let point = |test: &usize| {
            let cell = &self.cells.of_test(*test)[self.level];
            let (y, deviation) = value(cell)?;
            Some(Point { x: f64::from(cell.test.workload.depth), y, deviation })
        };
        sweep.iter().filter_map(point).collect()
    }
}
