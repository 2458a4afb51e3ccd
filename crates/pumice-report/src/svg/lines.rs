//! A line chart with one path for each series, markers if there are few points, and a second
//! vertical axis on the right for a second quantity.

use super::super::chart::{LineChart, Point, Series};
use super::super::number::Number;
use super::key::{MARKER_RADIUS, MARKERS_MAX, line_class, marker};
use super::label::{shortened, text_width};
use super::pixel_axis::{Ends, PixelAxis};
use super::{FONT_LABEL, FONT_TITLE, Frame, Pixel, Px, Size, Svg, series_class};

/// Pixels above and below the plot for titles and tick labels.
const ABOVE: f64 = 30.0;
const BELOW: f64 = 42.0;

/// Pixels between tick labels and the plot, and between adjacent tick labels.
const TICK_GAP: f64 = 8.0;

/// Draws a line chart.
pub(crate) fn lines(chart: &LineChart, frame: &Frame<'_>) -> String {
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let xs: Vec<f64> = points().map(|point| point.x).collect();
    let bottom = ABOVE + frame.plot_height;
    let y = height_axis(chart, false, frame).between(bottom, ABOVE);
    let right_y = height_axis(chart, true, frame).between(bottom, ABOVE);
    let left = widest(&y) + TICK_GAP;
    let x = PixelAxis::new(chart.x.scale, &xs, (frame.width / 100.0) as usize, Ends::Data);
    // The right half of the last label extends beyond the plot.
    let margin = match &chart.right {
        Some(_) => widest(&right_y) + TICK_GAP,
        None => 0.0,
    };
    let margin = margin.max(widest(&x).max(MARKER_RADIUS) / 2.0);
    let right = (frame.width - margin).max(left + 1.0);
    let x = x.between(left, right);

    let description = format!(
        "Line chart of {} over {}: {} lines. The numbers are in the table that follows.",
        chart.y.heading(),
        chart.x.heading(),
        chart.series.len()
    );
    let size = Size { width: frame.width, height: bottom + BELOW };
    let mut svg = Svg::new(frame, size, &chart.title, &description);
    let room = if chart.right.is_some() { frame.width / 2.0 - TICK_GAP } else { frame.width };
    let heading = shortened(&chart.y.heading(), FONT_TITLE, room);
    svg.label("axis", Pixel { x: 0.0, y: FONT_TITLE }, &heading);
    let heading = shortened(&chart.x.heading(), FONT_TITLE, right - left);
    let below = Pixel { x: (left + right) / 2.0, y: bottom + BELOW - 6.0 };
    svg.label("axis middle", below, &heading);
    draw_grid(&mut svg, &x, &y, Plot { left, right, bottom });
    if let Some(axis) = &chart.right {
        let heading = shortened(&axis.heading(), FONT_TITLE, room);
        svg.label("axis end", Pixel { x: frame.width, y: FONT_TITLE }, &heading);
        for (tick, label) in right_y.ticks() {
            svg.label("tick", Pixel { x: right + TICK_GAP, y: right_y.at(tick) + 4.0 }, &label);
        }
    }
    for (index, series) in chart.series.iter().enumerate() {
        svg.open("g", &[("class", &series_class(index))]);
        svg.leaf("title", &[], &series.name);
        let y = if series.is_right { &right_y } else { &y };
        let pieces = pieces(&series.points, &x, y);
        let thinned: Vec<_> = pieces.iter().map(|piece| thinned(piece)).collect();
        let class = line_class(index);
        if series.is_joined {
            svg.empty("path", &[("class", &class), ("d", &path(&thinned))]);
        }
        draw_deviations(&mut svg, series, &x, y);
        if !series.is_joined || series.points.len() <= MARKERS_MAX {
            for point in pieces.iter().flatten() {
                draw_marker(&mut svg, chart, index, point);
            }
        }
        svg.close();
    }
    svg.finish()
}

/// Returns the vertical axis of all series on the left or on the right.
fn height_axis(chart: &LineChart, is_right: bool, frame: &Frame<'_>) -> PixelAxis {
    let series = chart.series.iter().filter(|series| series.is_right == is_right);
    let heights: Vec<f64> = series.flat_map(|series| &series.points).flat_map(reach).collect();
    let axis = chart.right.as_ref().filter(|_| is_right).unwrap_or(&chart.y);
    let ticks = (frame.plot_height / 42.0) as usize;
    PixelAxis::new(axis.scale, &heights, ticks, Ends::Ticks)
}

/// Returns the width in pixels of the widest label.
fn widest(axis: &PixelAxis) -> f64 {
    let labels = axis.ticks().into_iter().map(|(_, label)| text_width(&label, FONT_LABEL));
    labels.fold(0.0, f64::max)
}

/// Returns the y of a point, and both ends of its deviation if it can be drawn.
fn reach(point: &Point) -> [f64; 3] {
    let (y, deviation) = (point.y, point.drawable_deviation().unwrap_or(0.0));
    [y, y + deviation, if y > deviation { y - deviation } else { y }]
}

/// A point of a series, and its position in the drawing.
#[derive(Clone, Copy, Debug)]
struct DrawnPoint {
    pixel: Pixel,
    point: Point,
}

/// Edges of the plot in pixels.
#[derive(Clone, Copy)]
struct Plot {
    left: f64,
    right: f64,
    bottom: f64,
}

/// Draws an error bar with caps at each point that has a deviation.
fn draw_deviations(svg: &mut Svg, series: &Series, x: &PixelAxis, y: &PixelAxis) {
    for point in &series.points {
        let Some(deviation) = point.drawable_deviation() else { continue };
        let (high, low) = (point.y + deviation, point.y - deviation);
        if !(x.shows(point.x) && y.shows(high) && y.shows(low)) {
            continue;
        }
        let (at, high, low) = (x.at(point.x), y.at(high), y.at(low));
        let end = |y: f64| format!("M{} {}h{}", Px(at - 4.0), Px(y), Px(8.0));
        let d = format!("M{} {}V{}{}{}", Px(at), Px(high), Px(low), end(high), end(low));
        svg.empty("path", &[("class", &"error-halo"), ("d", &d)]);
        svg.empty("path", &[("class", &"error"), ("d", &d)]);
    }
}

fn draw_grid(svg: &mut Svg, x: &PixelAxis, y: &PixelAxis, plot: Plot) {
    let Plot { left, right, bottom } = plot;
    for (tick, label) in y.ticks() {
        let at = y.at(tick);
        let line = format!("M{} {}H{}", Px(left), Px(at), Px(right));
        svg.empty("path", &[("class", &"grid"), ("d", &line)]);
        svg.label("tick end", Pixel { x: left - TICK_GAP, y: at + 4.0 }, &label);
    }
    let floor = format!("M{} {}H{}", Px(left), Px(bottom), Px(right));
    svg.empty("path", &[("class", &"floor"), ("d", &floor)]);
    let mut free_from = f64::NEG_INFINITY;
    for (tick, label) in x.ticks() {
        let (at, half) = (x.at(tick), text_width(&label, FONT_LABEL) / 2.0);
        let line = format!("M{} {}v4", Px(at), Px(bottom));
        svg.empty("path", &[("class", &"floor"), ("d", &line)]);
        // Labels that would overlap the previous label are omitted.
        if at - half >= free_from {
            let below = Pixel { x: at, y: bottom + 4.0 + FONT_LABEL + 2.0 };
            svg.label("tick middle", below, &label);
            free_from = at + half + TICK_GAP;
        }
    }
}

/// Returns the points that can be drawn, in pieces. A point that cannot be drawn starts a new
/// piece.
fn pieces(points: &[Point], x: &PixelAxis, y: &PixelAxis) -> Vec<Vec<DrawnPoint>> {
    let shown = |point: &Point| x.shows(point.x) && y.shows(point.y);
    let pieces = points.split(|point| !shown(point)).filter(|piece| !piece.is_empty());
    let drawn = |&point: &Point| {
        let pixel = Pixel { x: x.at(point.x), y: y.at(point.y) };
        DrawnPoint { pixel, point }
    };
    pieces.map(|piece| piece.iter().map(drawn).collect()).collect()
}

/// Keeps only the first, highest, lowest and last of consecutive points in one pixel column. The
/// picture is the same, with at most four points per column.
fn thinned(points: &[DrawnPoint]) -> Vec<Pixel> {
    let mut kept = Vec::new();
    for column in points.chunk_by(|a, b| a.pixel.x.floor() == b.pixel.x.floor()) {
        let height = |index: &usize| column[*index].pixel.y;
        let highest = (0..column.len()).min_by(|a, b| height(a).total_cmp(&height(b)));
        let lowest = (0..column.len()).max_by(|a, b| height(a).total_cmp(&height(b)));
        let mut picked = vec![0, column.len() - 1];
        picked.extend(highest);
        picked.extend(lowest);
        picked.sort_unstable();
        picked.dedup();
        kept.extend(picked.into_iter().map(|index| column[index].pixel));
    }
    kept
}

fn path(pieces: &[Vec<Pixel>]) -> String {
    let mut d = String::new();
    for piece in pieces {
        for (index, Pixel { x, y }) in piece.iter().enumerate() {
            let verb = if index == 0 { 'M' } else { 'L' };
            d += &format!("{verb}{} {}", Px(*x), Px(*y));
        }
    }
    d
}

fn draw_marker(svg: &mut Svg, chart: &LineChart, index: usize, drawn: &DrawnPoint) {
    let DrawnPoint { pixel, point } = drawn;
    let with_unit = |value: f64, unit: &str| Number::plain(value).with_unit(unit).to_string();
    let about = format!(
        "{}: {} at {}",
        chart.series[index].name,
        with_unit(point.y, &chart.axis_of(&chart.series[index]).unit),
        with_unit(point.x, &chart.x.unit)
    );
    svg.open("g", &[("class", &"marker")]);
    svg.leaf("title", &[], &about);
    svg.empty("path", &[("d", &marker(index, *pixel, MARKER_RADIUS))]);
    svg.close();
}

#[cfg(test)]
mod tests {
    //! Goal: thinning many points makes no visible difference, and gaps are preserved.
    use super::super::super::Scale;
    use super::*;

    #[test]
    fn columns_keep_their_extremes() {
        let points = [5.0, 9.0, 1.0, 4.0, 4.5, 7.0].into_iter().enumerate();
        let points = points.map(|(index, y)| {
            let pixel = Pixel { x: index as f64 * 0.2, y };
            DrawnPoint { pixel, point: Point::new(0.0, 0.0) }
        });
        let points: Vec<_> = points.collect();
        let kept: Vec<_> = thinned(&points).iter().map(|pixel| (pixel.x, pixel.y)).collect();
        assert_eq!(kept, [(0.0, 5.0), (0.2, 9.0), (0.4, 1.0), (0.8, 4.5), (1.0, 7.0)]);
    }

    #[test]
    fn values_that_cannot_be_drawn_are_gaps() {
        let places = |scale| PixelAxis::new(scale, &[1.0, 10.0], 5, Ends::Data).between(0.0, 10.0);
        let points = [(1.0, 1.0), (2.0, 10.0), (3.0, 0.0), (f64::NAN, 3.0), (4.0, 1.0)];
        let points = points.map(|(x, y)| Point::new(x, y));
        let pieces = pieces(&points, &places(Scale::Linear), &places(Scale::Log));
        let thinned: Vec<_> = pieces.iter().map(|piece| thinned(piece)).collect();
        let path = path(&thinned);
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 1), "{path}");
    }
}
