//! Results for people: one model of a document, and printers that each write the whole of it.
//! Programs get JSON from the measurements themselves through serde.
//!
//! ```text
//! Document -> Section -> Block: paragraph, note, table, pairs, bars, lines, preformatted
//!                                  |
//!             to_text   to_markdown   to_html   to_xlsx;   one table: to_csv
//! ```
//!
//! * `document`, `table`, `chart`, `number`: what is said, without how it looks.
//! * `text`, `markdown`: for a terminal, for GitHub.
//! * `csv`, `xlsx`, over `flat`: for programs and spreadsheets, with whole numbers.
//! * `html`, `svg`: a page that stands alone, and the charts in it.
//!
//! Invariant: the same document is printed to the same bytes. Deliberately knows nothing of drives
//! or benchmarks, and writes no files.

mod chart;
mod csv;
mod document;
mod flat;
mod html;
mod markdown;
mod number;
#[cfg(test)]
mod sample;
mod svg;
mod table;
mod text;
mod xlsx;

pub use chart::{Axis, Bar, BarChart, BarGroup, LineChart, Scale, Series};
pub use document::{Block, Document, NoteKind, Section};
pub use number::Number;
pub use table::{Align, Cell, Column, Table};
