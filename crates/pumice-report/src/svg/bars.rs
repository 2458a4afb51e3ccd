//! A bar chart with groups side by side, a bar for each series, error bars, and numbers above the
//! bars if all of them fit.
//!
//! ```text
//! throughput, MB/s
//!   800 ┤        ┬
//!   400 ┤  ▇     ▇
//!     0 ┼──▇▇▇───▇▇▇──
//!         write  read
//! ```

use super::super::chart::{Bar, BarChart, Scale};
use super::super::number::grouped;
use super::super::text::{bar_text, log_floor};
use super::label::{parts, shortened, text_width, wrapped};
use super::pixel_axis::{Ends, PixelAxis};
use super::{FONT_LABEL, FONT_TITLE, Frame, Pixel, Px, Size, Svg, series_class};

/// Minimum and maximum width of a bar in pixels. A bar must be visible, and a single bar must not
/// fill the chart.
const BAR_MIN: f64 = 7.0;
const BAR_MAX: f64 = 46.0;

/// Minimum width of a group in pixels, and the maximum for its longest word, because its name must
/// be readable.
const GROUP_MIN: f64 = 44.0;
const WORD_MAX: f64 = 84.0;

/// Minimum distance between the names of two groups in pixels.
const NAME_GAP: f64 = 4.0;

/// Maximum width of a group per bar in pixels, which keeps charts with few bars small.
const GROUP_MAX_PER_BAR: f64 = 110.0;

/// Share of a group's width that separates it from the next.
const GROUP_GAP: f64 = 0.18;

/// Maximum number of lines in a group's name, and their height.
const NAME_LINES_MAX: usize = 4;
const LINE_HEIGHT: f64 = 14.0;

/// Pixels above the plot for the axis title, and pixels between the title and the highest tick for
/// numbers.
const ABOVE: f64 = 34.0;

/// Pixels between tick labels and the plot.
const TICK_GAP: f64 = 8.0;

/// Draws a bar chart.
pub(crate) fn bars(chart: &BarChart, frame: &Frame<'_>) -> String {
    let layout = Layout::new(chart, frame);
    let description = format!(
        "Bar chart of {}: {} groups of {} bars. The numbers are in the table that follows.",
        chart.axis.heading(),
        chart.groups().len(),
        chart.series.len()
    );
    let mut svg = Svg::new(frame, layout.size, &chart.title, &description);
    let heading = shortened(&chart.axis.heading(), FONT_TITLE, layout.size.width);
    svg.label("axis", Pixel { x: 0.0, y: FONT_TITLE }, &heading);
    for (tick, label) in layout.axis.ticks() {
        let y = layout.axis.at(tick);
        let line = format!("M{} {}H{}", Px(layout.left), Px(y), Px(layout.size.width));
        svg.empty("path", &[("class", &"grid"), ("d", &line)]);
        svg.label("tick end", Pixel { x: layout.left - TICK_GAP, y: y + 4.0 }, &label);
    }
    for (index, group) in chart.groups().iter().enumerate() {
        let middle = layout.left + (index as f64 + 0.5) * layout.group_width;
        for (index, bar) in group.bars.iter().enumerate() {
            let x = middle + (index as f64 - group.bars.len() as f64 / 2.0) * layout.bar_width;
            let about = about(chart, &group.name, index, bar);
            draw_bar(&mut svg, &layout, &DrawnBar { bar, x, index, about: &about });
        }
        if index % layout.name_step == 0 {
            draw_name(&mut svg, &layout, middle, &group.name);
        }
    }
    let floor = layout.axis.floor();
    let line = format!("M{} {}H{}", Px(layout.left), Px(floor), Px(layout.size.width));
    svg.empty("path", &[("class", &"floor"), ("d", &line)]);
    svg.finish()
}

/// Sizes that determine the whole layout.
struct Layout {
    size: Size,
    left: f64,
    bottom: f64,
    group_width: f64,
    bar_width: f64,
    axis: PixelAxis,
    has_numbers: bool,
    /// One in this many groups is labelled.
    name_step: usize,
}

impl Layout {
    fn new(chart: &BarChart, frame: &Frame<'_>) -> Self {
        let scale = chart.axis.scale;
        let all = || chart.groups().iter().flat_map(|group| &group.bars);
        let mut ends: Vec<f64> = all().flat_map(ends).collect();
        if matches!(scale, Scale::Log | Scale::Doubling) {
            ends.push(log_floor(all().filter_map(Bar::height)));
        }
        let bottom = ABOVE + frame.plot_height;
        let ticks = (frame.plot_height / 42.0) as usize;
        let axis = PixelAxis::new(scale, &ends, ticks, Ends::Ticks).between(bottom, ABOVE);
        let labels = axis.ticks().into_iter().map(|(_, label)| text_width(&label, FONT_LABEL));
        let left = labels.fold(0.0, f64::max) + TICK_GAP;

        let groups = chart.groups().len().max(1) as f64;
        let series = chart.series.len().max(1) as f64;
        let words = chart.groups().iter().flat_map(|group| parts(&group.name));
        let word =
            words.map(|(_, word)| text_width(word, FONT_LABEL) + NAME_GAP).fold(0.0, f64::max);
        let bars_min = series * BAR_MIN / (1.0 - GROUP_GAP);
        let group_min = if chart.is_histogram {
            bars_min
        } else {
            bars_min.max(GROUP_MIN).max(word.min(WORD_MAX))
        };
        let group_max = (series * GROUP_MAX_PER_BAR).max(group_min);
        let group_width = ((frame.width - left) / groups).clamp(group_min, group_max);
        let bar_width = (group_width * (1.0 - GROUP_GAP) / series).min(BAR_MAX);
        let name_step = if chart.is_histogram { (word / group_width).ceil().max(1.0) } else { 1.0 };
        let name_width = group_width * name_step;
        let names = chart.groups().iter().map(|group| name_lines(&group.name, name_width).len());
        let height = bottom + 6.0 + LINE_HEIGHT * names.max().unwrap_or(0) as f64 + 4.0;
        // A single bar has free space on both sides.
        let room = if series == 1.0 { group_width - 4.0 } else { bar_width };
        let fits = |bar: &Bar| text_width(&number_text(bar), FONT_LABEL) <= room;
        let has_numbers = all().filter(|bar| bar.number.is_some()).all(fits);
        let size = Size { width: left + groups * group_width, height };
        let name_step = name_step as usize;
        Self { size, left, bottom, group_width, bar_width, axis, has_numbers, name_step }
    }
}

/// Returns the numbers that the axis must include to show a bar.
fn ends(bar: &Bar) -> Vec<f64> {
    let Some(height) = bar.height() else { return Vec::new() };
    let deviation = bar.number.as_ref().and_then(|number| number.deviation).unwrap_or(0.0);
    // An error bar below zero is meaningless for positive quantities, so it ends at zero.
    let low = if height >= 0.0 { height } else { height - deviation };
    vec![low, if height >= 0.0 { height + deviation } else { height }]
}

/// Returns the number above a bar.
fn number_text(bar: &Bar) -> String {
    match &bar.number {
        Some(number) if bar.label.is_empty() => grouped(&number.value_text()),
        _ => bar_text(bar),
    }
}

/// Returns the tooltip text of a bar.
fn about(chart: &BarChart, group: &str, series: usize, bar: &Bar) -> String {
    let number = bar.number.clone().map(|number| {
        if number.unit.is_empty() {
            number.with_unit(&chart.axis.unit).to_string()
        } else {
            number.to_string()
        }
    });
    let series = chart.series.get(series).map_or("", String::as_str);
    let label = if bar.label.is_empty() { None } else { Some(bar.label.clone()) };
    let said: Vec<_> = number.into_iter().chain(label).collect();
    let said = if said.is_empty() { "not measured".to_owned() } else { said.join(", ") };
    format!("{group}, {series}: {said}")
}

/// A bar and its position.
struct DrawnBar<'a> {
    bar: &'a Bar,
    /// Left edge in pixels.
    x: f64,
    /// Index of the series.
    index: usize,
    about: &'a str,
}

fn draw_bar(svg: &mut Svg, layout: &Layout, drawn: &DrawnBar<'_>) {
    let &DrawnBar { bar, x, index, about } = drawn;
    let gap = if layout.bar_width > 12.0 { 1.0 } else { 0.5 };
    let (left, width) = (x + gap, layout.bar_width - 2.0 * gap);
    let middle = x + layout.bar_width / 2.0;
    let (floor, axis) = (layout.axis.floor(), &layout.axis);
    svg.open("g", &[("class", &format!("bar {}", series_class(index)))]);
    svg.leaf("title", &[], about);
    let Some(height) = bar.height().filter(|height| axis.shows(*height)) else {
        draw_missing(svg, layout, bar, middle);
        svg.close();
        return;
    };
    let top = axis.at(height);
    svg.empty(
        "rect",
        &[
            ("x", &Px(left)),
            ("y", &Px(top.min(floor))),
            ("width", &Px(width)),
            ("height", &Px((floor - top).abs().max(0.5))),
        ],
    );
    let deviation = bar.number.as_ref().and_then(|number| number.deviation);
    let deviation = deviation.filter(|deviation| *deviation > 0.0 && deviation.is_finite());
    let mut highest = top;
    if let Some(deviation) = deviation {
        let (high, low) = (axis.at(height + deviation), axis.at(height - deviation));
        highest = if height >= 0.0 { high } else { low };
        let cap = (width / 4.0).clamp(1.5, 5.0);
        let (from, to) = (Px(middle - cap), Px(middle + cap));
        let (high, low, middle) = (Px(high), Px(low), Px(middle));
        let d = format!("M{from} {high}H{to}M{from} {low}H{to}M{middle} {high}V{low}");
        svg.empty("path", &[("class", &"error-halo"), ("d", &d)]);
        svg.empty("path", &[("class", &"error"), ("d", &d)]);
    }
    if layout.has_numbers {
        let y = if height >= 0.0 { highest - 5.0 } else { highest + FONT_LABEL + 2.0 };
        svg.label("number middle", Pixel { x: middle, y }, &number_text(bar));
    }
    svg.close();
}

/// Draws the reason for a missing bar, rotated if there is enough space, or a dash.
fn draw_missing(svg: &mut Svg, layout: &Layout, bar: &Bar, middle: f64) {
    let text = bar_text(bar);
    let floor = layout.axis.floor();
    if bar.label.is_empty() || layout.bar_width < FONT_LABEL {
        let above = Pixel { x: middle, y: floor - 5.0 };
        svg.label("number middle", above, super::super::number::NO_NUMBER);
        return;
    }
    let text = shortened(&text, FONT_LABEL, floor - ABOVE - 12.0);
    let turn = format!("rotate(-90 {} {})", Px(middle + 4.0), Px(floor - 6.0));
    svg.leaf(
        "text",
        &[
            ("class", &"number"),
            ("x", &Px(middle + 4.0)),
            ("y", &Px(floor - 6.0)),
            ("transform", &turn),
        ],
        &text,
    );
}

fn name_lines(name: &str, width: f64) -> Vec<String> {
    wrapped(name, FONT_LABEL, width - NAME_GAP + 0.01, NAME_LINES_MAX)
}

fn draw_name(svg: &mut Svg, layout: &Layout, middle: f64, name: &str) {
    svg.open("g", &[]);
    svg.leaf("title", &[], name);
    let width = layout.group_width * layout.name_step as f64;
    for (index, line) in name_lines(name, width).iter().enumerate() {
        let y = layout.bottom + 6.0 + LINE_HEIGHT * (index as f64 + 0.75);
        svg.label("tick middle", Pixel { x: middle, y }, line);
    }
    svg.close();
}
