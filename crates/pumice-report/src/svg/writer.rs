//! An SVG writer that escapes all text and balances all elements.

use std::fmt::{self, Display, Write as _};

use super::Frame;

/// Maximum width, relative to the requested width, up to which a drawing is scaled down rather than
/// scrolled.
const FITS_MAX: f64 = 1.1;

/// A size in pixels.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub(super) width: f64,
    pub(super) height: f64,
}

/// A position in pixels, relative to the upper left corner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pixel {
    pub(super) x: f64,
    pub(super) y: f64,
}

/// A coordinate, with at most one decimal.
#[derive(Clone, Copy)]
pub(super) struct Px(pub(super) f64);

impl Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A browser would reject an element with a coordinate that is not finite.
        let tenths = if self.0.is_finite() { (self.0 * 10.0).round() } else { 0.0 };
        // Adding zero removes the sign of a negative zero.
        write!(f, "{}", tenths / 10.0 + 0.0)
    }
}

/// Escapes `text` so that it cannot end an element or an attribute.
struct Escaped<T>(T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in crate::document::printable(&self.0.to_string()).chars() {
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

/// Name and value of an attribute.
type Attribute<'a> = (&'static str, &'a dyn Display);

/// Writes elements in order.
#[derive(Default)]
pub(super) struct Svg {
    text: String,
    open: Vec<&'static str>,
}

impl Svg {
    /// Returns a drawing of this size, with a title and a description for screen readers.
    ///
    /// The class is `fits` if the drawing is about as wide as requested, so that it can be scaled
    /// down. A wider one must be scrolled.
    pub(super) fn new(frame: &Frame<'_>, size: Size, title: &str, description: &str) -> Self {
        let mut svg = Self::default();
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
    pub(super) fn open(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.begin(name, attributes);
        self.text.push('>');
        self.open.push(name);
    }

    /// Closes the last opened element.
    pub(super) fn close(&mut self) {
        let name = self.open.pop().expect("an element is open");
        write_to(&mut self.text, format_args!("</{name}>"));
    }

    /// Writes an element without content.
    pub(super) fn empty(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.begin(name, attributes);
        self.text.push_str("/>");
    }

    /// Writes an element that contains text.
    pub(super) fn leaf(&mut self, name: &'static str, attributes: &[Attribute<'_>], text: &str) {
        self.begin(name, attributes);
        write_to(&mut self.text, format_args!(">{}</{name}>", Escaped(text)));
    }

    /// Writes text at a position.
    pub(super) fn label(&mut self, class: &'static str, at: Pixel, text: &str) {
        self.leaf("text", &[("class", &class), ("x", &Px(at.x)), ("y", &Px(at.y))], text);
    }

    fn begin(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        write_to(&mut self.text, format_args!("<{name}"));
        for (key, value) in attributes {
            write_to(&mut self.text, format_args!(" {key}=\"{}\"", Escaped(value)));
        }
    }

    /// Closes all open elements and returns the drawing.
    pub(super) fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        self.text
    }
}

fn write_to(text: &mut String, arguments: fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a String takes everything");
}
