//! Reports: one document model, and printers for several formats. JSON for programs does not come
//! from here but from the measurements, through serde.
//!
//! ```text
//! Document -> Section -> Block: paragraph, note, table, pairs, bars, lines, preformatted
//!                                  |
//!             to_text   to_markdown   to_html   to_xlsx;   one table: to_csv
//! ```
//!
//! * `document`, `table`, `chart`, `number`: the contents, independent of their format.
//! * `text`, `markdown`: printers for a terminal and for GitHub.
//! * `csv`, `xlsx`, based on `flat`: printers for programs and spreadsheets, with unrounded
//!   numbers.
//! * `html`, `svg`: a self-contained page, and its charts.
//!
//! Invariant: equal documents are printed as equal bytes. The crate is independent of drives and
//! benchmarks, and writes no files.
//!
//! ```
//! use pumice_report::{Align, Document, Table};
//!
//! let mut table = Table::new(&[("test", Align::Left), ("MB/s", Align::Right)]);
//! table.row(vec!["write".into(), "512".into()]);
//! let mut document = Document::new("Results", "One test.");
//! document.section("Speed").block(table);
//! assert!(document.to_text().contains("512"));
//! ```

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

pub use chart::{Axis, Bar, BarChart, BarGroup, LineChart, Point, Scale, Series};
pub use document::{Block, Document, NoteKind, Section};
pub use number::Number;
pub use table::{Align, Cell, Column, Table};
