//! Charts as inline SVG: a small writer and the drawings.
//!
//! * `writer`: elements, their attributes and text;
//! * `pixel_axis`: mapping from numbers to pixels on an axis, round ticks and their labels;
//! * `label`: text width and line breaking;
//! * `bars`, `lines`: the two types of charts; `key`: the samples in their legends.
//!
//! Invariants: all text is escaped, elements are balanced, coordinates are finite, and equal charts
//! produce equal bytes. Colours, fonts and line widths are classes defined by the page, so that
//! they follow its light or dark scheme.

mod bars;
mod key;
mod label;
mod lines;
mod pixel_axis;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use bars::bars;
pub(crate) use key::{bar_key, line_key};
pub(crate) use lines::lines;
use writer::{Pixel, Px, Size, Svg};

/// Number of colours. They then repeat in a paler shade.
const COLOURS: usize = 7;

/// Font sizes in pixels: for axis titles and legends, and for everything else.
const FONT_TITLE: f64 = 12.0;
const FONT_LABEL: f64 = 11.0;

/// Parameters of a drawing.
pub(crate) struct Frame<'a> {
    /// Id, unique within the page; letters, digits and hyphens.
    pub(crate) id: &'a str,
    /// Width in pixels at which the drawing must be readable. The drawing may be wider.
    pub(crate) width: f64,
    /// Height of the plot, excluding the parts above and below it.
    pub(crate) plot_height: f64,
}

/// Returns the classes of a series: its colour, in a paler shade once colours repeat.
fn series_class(index: usize) -> String {
    let pale = if (index / COLOURS) % 2 == 1 { " pale" } else { "" };
    format!("s{}{pale}", index % COLOURS)
}
