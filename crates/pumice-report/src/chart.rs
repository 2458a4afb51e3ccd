//! Charts as data: bars in groups, and lines. Every chart can also be printed as a table, for
//! formats without drawings and for readers who want the numbers.
//!
//! This module is independent of drawing: it contains no colours, sizes or ticks.

use std::collections::BTreeSet;

use super::number::Number;
use super::table::{Cell, Column, Table};

/// Ratio between the highest and the lowest number of a chart above which the lowest vanish on a
/// linear axis: a bar of 1/50 is only four pixels high.
const LINEAR_RATIO_MAX: f64 = 50.0;

/// The mapping from numbers to positions on an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences have equal distances; bars start at zero.
    #[default]
    Linear,
    /// Equal ratios have equal distances; numbers that are not positive are omitted.
    Log,
    /// Like [`Scale::Log`], with ticks at powers of two; for queue depths and sizes.
    Doubling,
    /// For percentiles in percent: 90, 99 and 99.9 have equal distances; values of 100 and above
    /// are omitted.
    Percentile,
}

/// The quantity of an axis and its scale.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Axis {
    /// Name of the quantity, such as `latency`.
    pub title: String,
    /// Unit of the numbers; empty if they have none.
    pub unit: String,
    /// Scale.
    pub scale: Scale,
}

impl Axis {
    /// Returns a linear axis.
    pub fn new(title: impl Into<String>, unit: impl Into<String>) -> Self {
        Self { title: title.into(), unit: unit.into(), scale: Scale::Linear }
    }

    /// Returns the axis with another scale.
    pub fn with_scale(mut self, scale: Scale) -> Self {
        self.scale = scale;
        self
    }

    /// Returns the axis with a logarithmic scale if some of these numbers would vanish on a linear
    /// one: if all are positive and the highest is more than 50 times the lowest.
    fn fitted(self, numbers: impl Iterator<Item = f64>) -> Self {
        let finite = numbers.filter(|number| number.is_finite());
        let (low, high) = finite.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), number| {
            (low.min(number), high.max(number))
        });
        let vanish = low > 0.0 && high / low > LINEAR_RATIO_MAX;
        if vanish { self.with_scale(Scale::Log) } else { self }
    }

    /// Returns the title and unit, and whether the scale is logarithmic: `latency, µs (log scale)`.
    pub(crate) fn heading(&self) -> String {
        let separator = if self.title.is_empty() || self.unit.is_empty() { "" } else { ", " };
        let is_log = matches!(self.scale, Scale::Log | Scale::Doubling);
        let scale = if is_log { " (log scale)" } else { "" };
        format!("{}{separator}{}{scale}", self.title, self.unit).trim_start().to_owned()
    }
}

/// One bar: a number, or the reason why it is missing.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Height, with its deviation as the error bar; `None` without a measurement.
    pub number: Option<Number>,
    /// Label that replaces the number; empty to show the number itself.
    pub label: String,
}

impl Bar {
    /// Returns a bar without a measurement. `why` replaces the number, and may be empty.
    pub fn missing(why: impl Into<String>) -> Self {
        Self { number: None, label: why.into() }
    }

    /// Returns the bar with a label.
    pub fn labelled(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Returns the height if it can be drawn.
    pub(crate) fn height(&self) -> Option<f64> {
        self.number.as_ref().map(|number| number.value).filter(|value| value.is_finite())
    }
}

impl From<Number> for Bar {
    fn from(number: Number) -> Self {
        Self { number: Some(number), label: String::new() }
    }
}

/// A group of bars, one for each series of the chart.
#[derive(Clone, Debug, PartialEq)]
pub struct BarGroup {
    /// Name printed below the bars.
    pub name: String,
    /// Bars, in the order of the chart's series.
    pub bars: Vec<Bar>,
}

/// Bars in groups, with error bars for numbers that have deviations.
#[derive(Clone, Debug, PartialEq)]
pub struct BarChart {
    /// Title.
    pub title: String,
    /// The kind of the groups, such as `operation`; also the heading of their column in tables.
    pub groups_title: String,
    /// The axis of the bars' heights: linear or logarithmic.
    pub axis: Axis,
    /// Names of the series, in the order of the legend.
    pub series: Vec<String>,
    /// Whether the groups are the ranges of a histogram. All of them are then drawn side by side in
    /// the given width, with only as many names as fit.
    pub is_histogram: bool,
    groups: Vec<BarGroup>,
}

impl BarChart {
    /// Returns a chart without groups.
    pub fn new<S: Into<String>>(
        title: impl Into<String>,
        groups_title: impl Into<String>,
        axis: Axis,
        series: impl IntoIterator<Item = S>,
    ) -> Self {
        Self {
            title: title.into(),
            groups_title: groups_title.into(),
            axis,
            series: series.into_iter().map(Into::into).collect(),
            is_histogram: false,
            groups: Vec::new(),
        }
    }

    /// Returns the chart as a histogram.
    pub fn as_histogram(mut self) -> Self {
        self.is_histogram = true;
        self
    }

    /// Returns the chart with a logarithmic axis, labelled as such, if some bars would vanish on a
    /// linear one: if all are positive and the highest is more than 50 times the lowest.
    pub fn with_fitting_scale(mut self) -> Self {
        let heights = self.groups.iter().flat_map(|group| &group.bars).filter_map(Bar::height);
        self.axis = std::mem::take(&mut self.axis).fitted(heights);
        self
    }

    /// Adds a group. Missing bars at the end count as not measured.
    ///
    /// # Panics
    ///
    /// If there are more bars than series.
    pub fn group(&mut self, name: impl Into<String>, mut bars: Vec<Bar>) {
        assert!(bars.len() <= self.series.len(), "a group has more bars than there are series");
        bars.resize(self.series.len(), Bar::missing(""));
        self.groups.push(BarGroup { name: name.into(), bars });
    }

    /// Returns the groups from left to right.
    pub fn groups(&self) -> &[BarGroup] {
        &self.groups
    }

    /// Returns the numbers as a table with a row for each group and a column for each series.
    pub(crate) fn to_table(&self) -> Table {
        let series = self.series.iter().map(|name| named(name, &self.axis));
        let first = Column::left(&self.groups_title);
        let mut table = Table::with_columns(std::iter::once(first).chain(series).collect());
        for group in &self.groups {
            let cells = group.bars.iter().map(|bar| match &bar.number {
                Some(number) => number.clone().into(),
                None if bar.label.is_empty() => Cell::Empty,
                None => bar.label.as_str().into(),
            });
            table.push(std::iter::once(group.name.as_str().into()).chain(cells).collect());
        }
        table.titled(&self.title)
    }
}

/// A point of a line chart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Position on the horizontal axis.
    pub x: f64,
    /// Position on the vertical axis.
    pub y: f64,
    /// Standard deviation of y; `None` if unknown.
    pub deviation: Option<f64>,
}

impl Point {
    /// Returns a point without a deviation.
    pub fn new(x: f64, y: f64) -> Self {
        Self { x, y, deviation: None }
    }

    /// Returns whether both coordinates are finite.
    fn is_drawable(&self) -> bool {
        self.x.is_finite() && self.y.is_finite()
    }

    /// Returns the deviation, if it can be drawn.
    pub(crate) fn drawable_deviation(&self) -> Option<f64> {
        self.deviation.filter(|deviation| *deviation > 0.0 && deviation.is_finite())
    }

    /// Returns y, with its deviation if the deviation can be drawn.
    pub(crate) fn number(&self) -> Number {
        let number = Number::plain(self.y);
        match self.drawable_deviation() {
            // Uses the larger of the two numbers of decimals.
            Some(deviation) => {
                let decimals = number.decimals.max(Number::plain(deviation).decimals);
                Number::new(self.y, decimals).with_deviation(deviation)
            }
            None => number,
        }
    }
}

/// One line of a chart, or unconnected points.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points in order.
    pub points: Vec<Point>,
    /// Whether consecutive points are connected.
    pub is_joined: bool,
    /// Whether y belongs to the chart's right axis.
    pub is_right: bool,
}

/// Lines over a common axis.
#[derive(Clone, Debug, PartialEq)]
pub struct LineChart {
    /// Title.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis: linear or logarithmic.
    pub y: Axis,
    /// A second vertical axis on the right, for another quantity.
    pub right: Option<Axis>,
    /// Lines, in the order of the legend.
    pub series: Vec<Series>,
}

impl LineChart {
    /// Returns a chart without lines.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Self {
        Self { title: title.into(), x, y, right: None, series: Vec::new() }
    }

    /// Returns the chart with a logarithmic vertical axis, labelled as such, if some points would
    /// vanish on a linear one: if all are positive and the highest is more than 50 times the
    /// lowest.
    pub fn with_fitting_scale(mut self) -> Self {
        let points = self.series.iter().flat_map(|series| &series.points);
        self.y = std::mem::take(&mut self.y).fitted(points.map(|point| point.y));
        self
    }

    /// Adds a line.
    pub fn line(&mut self, name: impl Into<String>, points: Vec<Point>) {
        let (is_joined, is_right) = (true, false);
        self.series.push(Series { name: name.into(), points, is_joined, is_right });
    }

    /// Adds unconnected points.
    pub fn dots(&mut self, name: impl Into<String>, points: Vec<Point>) {
        let (is_joined, is_right) = (false, false);
        self.series.push(Series { name: name.into(), points, is_joined, is_right });
    }

    /// Adds unconnected points whose y belongs to the right axis, and sets that axis.
    pub fn dots_at_right(&mut self, name: impl Into<String>, axis: Axis, points: Vec<Point>) {
        self.right = Some(axis);
        let (is_joined, is_right) = (false, true);
        self.series.push(Series { name: name.into(), points, is_joined, is_right });
    }

    /// Returns the vertical axis of a series.
    pub(crate) fn axis_of(&self, series: &Series) -> &Axis {
        self.right.as_ref().filter(|_| series.is_right).unwrap_or(&self.y)
    }

    /// Returns the numbers as a table with a column for each line and at most `rows_max` rows (at
    /// least 2).
    ///
    /// Each row is an x at which some line has a point. If there are too many, evenly spaced ones
    /// are used, including the first and the last. A line shows its last point at or before that x,
    /// but nothing before its first or after its last point. Unconnected points appear only at
    /// their own x.
    pub(crate) fn to_table(&self, rows_max: usize) -> Table {
        let series = self.series.iter().map(|it| named(&it.name, self.axis_of(it)));
        let first = named(&self.x.title, &self.x);
        let mut table = Table::with_columns(std::iter::once(first).chain(series).collect());
        let sorted = self.series.iter().map(|it| (it.is_joined, it.by_x())).collect::<Vec<_>>();
        let places = spaced(&self.places(), rows_max.max(2));
        for &x in &places {
            let cells = sorted.iter().map(|(is_joined, points)| {
                let point = last_up_to(points, x).filter(|point| *is_joined || point.x == x);
                point.map(|point| point.number()).into()
            });
            table.push(std::iter::once(Number::plain(x).into()).chain(cells).collect());
        }
        table.titled(&self.title)
    }

    /// Returns the x of all points, in ascending order without duplicates.
    pub(crate) fn places(&self) -> Vec<f64> {
        let points = self.series.iter().flat_map(|series| &series.points);
        let places = points.filter(|point| point.is_drawable()).map(|point| Ordered(point.x));
        places.collect::<BTreeSet<_>>().into_iter().map(|x| x.0).collect()
    }
}

impl Series {
    /// Returns the points that can be drawn, ordered by x.
    fn by_x(&self) -> Vec<Point> {
        let mut points = self.points.clone();
        points.retain(Point::is_drawable);
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        points
    }
}

/// Numbers ordered by `total_cmp`.
#[derive(PartialEq)]
struct Ordered(f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

fn named(name: &str, axis: &Axis) -> Column {
    Column::right(name).with_unit(&axis.unit)
}

fn last_up_to(points: &[Point], x: f64) -> Option<&Point> {
    let upto = points.partition_point(|point| point.x <= x);
    let last = points.get(upto.checked_sub(1)?)?;
    (upto < points.len() || last.x == x).then_some(last)
}

/// Returns at most `count` values, evenly spaced by index, including both ends.
fn spaced(places: &[f64], count: usize) -> Vec<f64> {
    if places.len() <= count {
        return places.to_vec();
    }
    (0..count).map(|index| places[index * (places.len() - 1) / (count - 1)]).collect()
}

#[cfg(test)]
mod tests {
    //! Goal: a chart's table has the correct numbers in the correct cells, and no more rows than
    //! requested.
    use super::*;

    #[test]
    fn bars_are_a_row_for_each_group() {
        let axis = Axis::new("throughput", "MB/s").with_scale(Scale::Log);
        assert_eq!(axis.heading(), "throughput, MB/s (log scale)");
        let mut chart = BarChart::new("Throughput", "operation", axis, ["a", "b", "c"]);
        let number = Number::new(10.0, 1).with_deviation(0.25);
        chart.group("write", vec![number.into(), Bar::missing("not run")]);
        let text = chart.to_table().to_text();
        let expected = [
            "operation           a        b     c",
            "                 MB/s     MB/s  MB/s",
            "write      10.0 ± 0.2  not run",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn small_numbers_do_not_vanish() {
        let scales = |numbers: &[f64]| {
            let axis = || Axis::new("rate", "MB/s");
            let mut bars = BarChart::new("", "", axis(), ["a"]);
            let mut lines = LineChart::new("", Axis::default(), axis());
            for number in numbers {
                bars.group("x", vec![Number::new(*number, 1).into()]);
                lines.dots("x", vec![Point::new(1.0, *number)]);
            }
            bars.group("y", vec![Bar::missing("not run")]);
            let (bars, lines) = (bars.with_fitting_scale(), lines.with_fitting_scale());
            assert_eq!(bars.axis.scale, lines.y.scale);
            bars.axis.heading()
        };
        assert_eq!(scales(&[10.0, 51.0, 501.0, f64::NAN]), "rate, MB/s (log scale)");
        for numbers in [&[10.0, 499.0][..], &[0.0, 1000.0], &[-1.0, 1000.0], &[]] {
            assert_eq!(scales(numbers), "rate, MB/s", "{numbers:?}");
        }
    }

    #[test]
    fn lines_show_the_last_point_before_each_row() {
        let mut chart = LineChart::new("Latency", Axis::new("time", "s"), Axis::new("p99", "µs"));
        chart.line("a", (0..=100).map(|x| Point::new(f64::from(x), 2.0 * f64::from(x))).collect());
        let points = [(49.0, 7.5), (20.0, 5.0), (f64::NAN, 1.0), (60.0, 9.0)];
        chart.line("b", points.map(|(x, y)| Point::new(x, y)).to_vec());
        assert_eq!(
            chart.to_table(5).to_text(),
            "time    a    b\n   s   µs   µs\n   0    0\n  25   50    5\n  50  100  7.5\n\
             \u{20} 75  150\n 100  200\n"
        );
        assert_eq!(chart.to_table(1000).rows().len(), 101);
    }

    #[test]
    fn a_second_quantity_has_its_unit() {
        let mut chart = LineChart::new("x", Axis::new("position", "GB"), Axis::new("rate", "MB/s"));
        chart.line("a", vec![Point::new(0.0, 1.0)]);
        chart.dots_at_right("b", Axis::new("time", "ms"), vec![Point::new(2.0, 8.0)]);
        let text = chart.to_table(5).to_text();
        assert_eq!(
            text,
            "position     a   b\n      GB  MB/s  ms\n       0     1\n       2         8\n"
        );
    }

    #[test]
    fn dots_are_at_their_own_places_with_their_deviations() {
        let mut chart = LineChart::new("x", Axis::new("saved", "%"), Axis::new("speed", "MB/s"));
        let points = [(0.0, 1.0), (50.0, 2.0), (100.0, 3.0)];
        chart.line("a", points.map(|(x, y)| Point::new(x, y)).to_vec());
        chart.dots(
            "b",
            vec![Point::new(100.0, 8.0), Point { deviation: Some(0.5), ..Point::new(0.0, 7.0) }],
        );
        assert_eq!(
            chart.to_table(5).to_text(),
            "saved     a          b\n    %  MB/s       MB/s\n    0     1  7.0 ± 0.5\n   50     2\n\
             \u{20} 100     3          8\n"
        );
    }
}
