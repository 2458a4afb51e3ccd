//! Reports: one document model, and printers for several formats. Programs get JSON from the
//! measurements through serde instead.
//!
//! ```text
//! Document -> Section -> Block: paragraph, note, table, pairs, bars, lines, preformatted
//!                                  |
//!             to_text   to_markdown   to_html   to_xlsx;   one table: to_csv
//! ```
//!
//! * `document`, `table`, `chart`, `number`: the content, independent of its format.
//! * `text`, `markdown`: for a terminal, for GitHub.
//! * `csv`, `xlsx`, based on `flat`: for programs and spreadsheets, with unrounded numbers.
//! * `html`, `svg`: a self-contained page, and the charts in it.
//!
//! Invariant: equal documents are printed to equal bytes. Knows nothing of drives or benchmarks,
//! and writes no files.
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
