//! Charts as inline SVG: a small writer and the drawings.
//!
//! * `pixel_axis`: from numbers to pixels on an axis, round ticks and their labels;
//! * `label`: text width and line breaking;
//! * `bars`, `lines`: the two charts; `key`: the samples in their legends.
//!
//! Invariants: all text is escaped, elements are balanced, coordinates are finite, and equal charts
//! produce equal bytes. Colours, fonts and line widths are classes that the page defines, so that
//! they follow its light or dark scheme.

use std::fmt::{self, Display, Write as _};

mod bars;
mod key;
mod label;
mod lines;
mod pixel_axis;

pub(crate) use bars::bars;
pub(crate) use key::{bar_key, line_key};
pub(crate) use lines::lines;

/// Number of colours before they repeat in a paler shade.
const COLOURS: usize = 7;

/// Font size in pixels: axis titles and legends; everything else.
const FONT_TITLE: f64 = 12.0;
const FONT_LABEL: f64 = 11.0;

/// Maximum width relative to the requested width at which a drawing is scaled down rather than
/// scrolled.
const FITS_MAX: f64 = 1.1;

/// Environment of a drawing.
pub(crate) struct Frame<'a> {
    /// Unique in the page; letters, digits and hyphens.
    pub(crate) id: &'a str,
    /// Width in pixels at which the drawing must be readable; it may be wider.
    pub(crate) width: f64,
    /// Height of the plot, without the parts above and below it.
    pub(crate) plot_height: f64,
}

/// A size in pixels.
#[derive(Clone, Copy)]
struct Size {
    width: f64,
    height: f64,
}

/// A position in pixels from the upper left corner.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pixel {
    x: f64,
    y: f64,
}

/// Returns the classes of a series: its colour, and paler when colours repeat.
fn series_class(index: usize) -> String {
    let pale = if (index / COLOURS) % 2 == 1 { " pale" } else { "" };
    format!("s{}{pale}", index % COLOURS)
}

/// A coordinate, with at most one decimal.
#[derive(Clone, Copy)]
struct Px(f64);

impl Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A browser would refuse an element with a coordinate that is not finite.
        let tenths = if self.0.is_finite() { (self.0 * 10.0).round() } else { 0.0 };
        // Adding zero removes the sign of a negative zero.
        write!(f, "{}", tenths / 10.0 + 0.0)
    }
}

/// Escapes `text` so that it can end neither an element nor an attribute.
struct Escaped<T>(T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in super::document::printable(&self.0.to_string()).chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// An attribute's name and value.
type Attribute<'a> = (&'static str, &'a dyn Display);

/// Writes elements in order.
struct Svg {
    text: String,
    open: Vec<&'static str>,
}

impl Svg {
    /// Returns a drawing of this size with a title and a description for screen readers.
    ///
    /// The class is `fits` if the drawing is about as wide as requested, so that it can be scaled
    /// down; a wider one must be scrolled.
    fn new(frame: &Frame<'_>, size: Size, title: &str, description: &str) -> Self {
        let mut svg = Self { text: String::new(), open: Vec::new() };
        let (id, fits) = (frame.id, size.width <= frame.width * FITS_MAX);
        let (title_id, description_id) = (format!("{id}-title"), format!("{id}-about"));
        svg.open(
            "svg",
            &[
                ("class", if fits { &"fits" } else { &"wider" }),
                ("viewBox", &format!("0 0 {} {}", Px(size.width), Px(size.height))),
                ("width", &Px(size.width)),
                ("height", &Px(size.height)),
                ("role", &"img"),
                ("aria-labelledby", &format!("{title_id} {description_id}")),
            ],
        );
        svg.leaf("title", &[("id", &title_id)], title);
        svg.leaf("desc", &[("id", &description_id)], description);
        svg
    }

    /// Opens an element with children.
    fn open(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.begin(name, attributes);
        self.text.push('>');
        self.open.push(name);
    }

    /// Closes the last opened element.
    fn close(&mut self) {
        let name = self.open.pop().expect("an element is open");
        write_to(&mut self.text, format_args!("</{name}>"));
    }

    /// Writes an empty element.
    fn empty(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.begin(name, attributes);
        self.text.push_str("/>");
    }

    /// Writes an element with text.
    fn leaf(&mut self, name: &'static str, attributes: &[Attribute<'_>], text: &str) {
        self.begin(name, attributes);
        write_to(&mut self.text, format_args!(">{}</{name}>", Escaped(text)));
    }

    /// Writes text at a position.
    fn label(&mut self, class: &'static str, at: Pixel, text: &str) {
        self.leaf("text", &[("class", &class), ("x", &Px(at.x)), ("y", &Px(at.y))], text);
    }

    fn begin(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        write_to(&mut self.text, format_args!("<{name}"));
        for (key, value) in attributes {
            write_to(&mut self.text, format_args!(" {key}=\"{}\"", Escaped(value)));
        }
    }

    /// Returns the drawing, with everything closed.
    fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        self.text
    }
}

fn write_to(text: &mut String, arguments: fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a String takes everything");
}

#[cfg(test)]
mod tests;
