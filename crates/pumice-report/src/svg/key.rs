//! Markers and dashes that distinguish series in addition to their colours, and the samples in
//! legends.

use super::super::chart::Series;
use super::{COLOURS, Pixel, Px, Svg, series_class};

/// Pixels from the centre of a marker to its edge.
pub(super) const MARKER_RADIUS: f64 = 2.8;

/// Maximum number of points in a series with markers.
pub(super) const MARKERS_MAX: usize = 40;

/// Returns the legend sample of a bar chart's series.
pub(crate) fn bar_key(index: usize) -> String {
    key(index, 12.0, |svg| {
        let square = [("x", 0.5), ("y", 0.5), ("width", 11.0), ("height", 11.0)];
        let square = square.map(|(name, value)| (name, Px(value)));
        let square =
            square.each_ref().map(|(name, value)| (*name, value as &dyn std::fmt::Display));
        svg.empty("rect", &square);
    })
}

/// Returns the legend sample of a line chart's series.
pub(crate) fn line_key(index: usize, series: &Series) -> String {
    key(index, 24.0, |svg| {
        if series.is_joined {
            svg.empty("path", &[("class", &line_class(index)), ("d", &"M1 6H23")]);
        }
        if !series.is_joined || series.points.len() <= MARKERS_MAX {
            svg.open("g", &[("class", &"marker")]);
            svg.empty(
                "path",
                &[("d", &marker(index, Pixel { x: 12.0, y: 6.0 }, MARKER_RADIUS + 0.4))],
            );
            svg.close();
        }
    })
}

/// Returns a sample without a title, because the name follows it.
fn key(index: usize, width: f64, draw: impl FnOnce(&mut Svg)) -> String {
    let mut svg = Svg::default();
    let size = [("width", Px(width)), ("height", Px(12.0))];
    svg.open(
        "svg",
        &[
            ("class", &format!("key bar {}", series_class(index))),
            (size[0].0, &size[0].1),
            (size[1].0, &size[1].1),
            ("viewBox", &format!("0 0 {} 12", Px(width))),
            ("aria-hidden", &"true"),
        ],
    );
    draw(&mut svg);
    svg.finish()
}

/// Returns the classes of a line, which is dashed once the colours repeat.
pub(super) fn line_class(index: usize) -> &'static str {
    if (index / COLOURS) % 2 == 1 { "line dashed" } else { "line" }
}

/// Returns the outline of a marker, which has one of four shapes.
pub(super) fn marker(index: usize, center: Pixel, radius: f64) -> String {
    let (x, y, r) = (Px(center.x), Px(center.y), radius);
    let path = match index % 4 {
        0 => {
            return format!(
                "M{} {y}a{1} {1} 0 1 0 {2} 0a{1} {1} 0 1 0 {3} 0z",
                Px(x.0 - r),
                Px(r),
                Px(2.0 * r),
                Px(-2.0 * r)
            );
        }
        1 => [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)].to_vec(),
        2 => [(0.0, -1.3), (1.2, 0.9), (-1.2, 0.9)].to_vec(),
        _ => [(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)].to_vec(),
    };
    let corner = |(dx, dy): (f64, f64)| format!("{} {}", Px(x.0 + dx * r), Px(y.0 + dy * r));
    format!("M{}z", path.into_iter().map(corner).collect::<Vec<_>>().join("L"))
}
