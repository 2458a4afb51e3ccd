//! A document as a self-contained HTML page without network access, scripts or fonts. Charts are
//! inline SVG, in a wide and a narrow version, of which the page shows one. Every chart has its
//! numbers in a table that can be unfolded.
//!
//! The template (`page.html`) escapes all text and receives it ready for display; only the output
//! of `svg` is inserted unescaped. The page's policy forbids scripts and requests.

use std::collections::BTreeSet;

use askama::Template;

use super::chart::{BarChart, LineChart};
use super::document::{Block, Document, NoteKind, Section, printable};
use super::number::grouped;
use super::svg::{self, Frame};
use super::table::{Align, Cell, Column, Table};

/// A drawing in the page's text column, and on a phone. The page scales drawings down in narrower
/// windows.
const WIDE: Frame<'_> = Frame { id: "", width: 820.0, plot_height: 230.0 };
const NARROW: Frame<'_> = Frame { id: "", width: 350.0, plot_height: 190.0 };

/// Maximum characters of a row name that is not wrapped.
const NAME_CHARS_MAX: usize = 28;

/// Maximum rows of a line chart's table.
const LINE_ROWS_MAX: usize = 60;

/// Minimum number of sections for a table of contents.
const CONTENTS_FROM: usize = 4;

impl Document {
    /// Returns the document as a page of HTML 5 in UTF-8.
    pub fn to_html(&self) -> String {
        let mut ids = BTreeSet::new();
        let sections: Vec<_> =
            self.sections.iter().map(|section| SectionView::new(section, &mut ids)).collect();
        let page = Page {
            title: printable(&self.title),
            lead: printable(&self.lead),
            has_contents: sections.len() >= CONTENTS_FROM,
            sections,
        };
        page.render().expect("writing to a String does not fail")
    }
}

#[derive(Template)]
#[template(path = "page.html")]
struct Page {
    title: String,
    lead: String,
    has_contents: bool,
    sections: Vec<SectionView>,
}

struct SectionView {
    id: String,
    heading: String,
    blocks: Vec<BlockView>,
}

enum BlockView {
    Paragraph(String),
    Note { class: &'static str, word: &'static str, text: String },
    Table(TableView),
    Pairs(Vec<(String, String)>),
    Figure(FigureView),
    Preformatted(String),
}

impl SectionView {
    fn new(section: &Section, ids: &mut BTreeSet<String>) -> Self {
        let id = unique_id(&section.heading, ids);
        let blocks = section.blocks.iter().enumerate();
        let blocks = blocks.map(|(index, block)| BlockView::new(block, &format!("{id}-{index}")));
        Self { heading: printable(&section.heading), blocks: blocks.collect(), id: id.clone() }
    }
}

/// Returns the heading as letters, digits and hyphens, with a number if another section has the
/// same id.
///
/// Ids within a section append `-` and a number to its id. They cannot collide with the id of
/// another section, whose number follows `--`.
fn unique_id(heading: &str, ids: &mut BTreeSet<String>) -> String {
    let words = heading.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<_> = words.take(8).map(str::to_ascii_lowercase).collect();
    let slug = format!("part-{}", words.join("-")).trim_end_matches('-').to_owned();
    let mut id = slug.clone();
    let mut number = 2;
    while !ids.insert(id.clone()) {
        id = format!("{slug}--{number}");
        number += 1;
    }
    id
}

impl BlockView {
    fn new(block: &Block, id: &str) -> Self {
        match block {
            Block::Paragraph(text) => Self::Paragraph(printable(text)),
            Block::Note { kind, text } => Self::Note {
                class: match kind {
                    NoteKind::Note => "note",
                    NoteKind::Warning => "note warning",
                },
                word: kind.word(),
                text: printable(text),
            },
            Block::Table(table) => Self::Table(TableView::new(table)),
            Block::Pairs(pairs) => {
                let pairs = pairs.iter().map(|(key, value)| (printable(key), printable(value)));
                Self::Pairs(pairs.collect())
            }
            Block::Bars(chart) => Self::Figure(FigureView::bars(chart, id)),
            Block::Lines(chart) => Self::Figure(FigureView::lines(chart, id)),
            Block::Preformatted(text) => Self::Preformatted(printable(text)),
        }
    }
}

struct FigureView {
    title: String,
    /// Sample as SVG, name.
    legend: Vec<(String, String)>,
    /// Drawings as SVG.
    wide: String,
    narrow: String,
    /// Facts that are in the table but not in the drawing.
    numbers_title: String,
    numbers: TableView,
}

impl FigureView {
    fn bars(chart: &BarChart, id: &str) -> Self {
        let names = chart.series.iter().enumerate();
        Self {
            title: printable(&chart.title),
            legend: legend(names.map(|(index, name)| (svg::bar_key(index), printable(name)))),
            wide: svg::bars(chart, &Frame { id: &format!("{id}-wide"), ..WIDE }),
            narrow: svg::bars(chart, &Frame { id: &format!("{id}-narrow"), ..NARROW }),
            numbers_title: "Numbers".to_owned(),
            numbers: TableView::new(&chart.to_table().titled("")),
        }
    }

    fn lines(chart: &LineChart, id: &str) -> Self {
        let table = chart.to_table(LINE_ROWS_MAX).titled("");
        let (shown, places) = (table.rows().len(), chart.places().len());
        let series = chart.series.iter().enumerate();
        Self {
            title: printable(&chart.title),
            legend: legend(
                series
                    .map(|(index, series)| (svg::line_key(index, series), printable(&series.name))),
            ),
            wide: svg::lines(chart, &Frame { id: &format!("{id}-wide"), ..WIDE }),
            narrow: svg::lines(chart, &Frame { id: &format!("{id}-narrow"), ..NARROW }),
            numbers_title: if places > shown {
                format!("Numbers ({shown} of {places} points)")
            } else {
                "Numbers".to_owned()
            },
            numbers: TableView::new(&table),
        }
    }
}

/// A legend, if there is more than one series.
fn legend(entries: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    let entries: Vec<_> = entries.collect();
    if entries.len() < 2 { Vec::new() } else { entries }
}

struct TableView {
    title: String,
    has_header: bool,
    columns: Vec<ColumnView>,
    rows: Vec<Vec<CellView>>,
}

struct ColumnView {
    name: String,
    unit: String,
    class: &'static str,
}

struct CellView {
    text: String,
    /// Whether the text is short enough never to be wrapped.
    is_short: bool,
    class: &'static str,
    /// The deviation with its sign; empty if the number has none.
    deviation: String,
    /// Characters reserved for every deviation of the column, so that numbers line up; 0 for none.
    deviation_width: usize,
}

impl TableView {
    fn new(table: &Table) -> Self {
        let widths: Vec<_> =
            (0..table.columns().len()).map(|index| deviation_width(table, index)).collect();
        let cells = |row: &Vec<Cell>| {
            let cells = row.iter().zip(table.columns()).zip(&widths);
            cells.map(|((cell, column), width)| CellView::new(cell, column, *width)).collect()
        };
        let column = |column: &Column| ColumnView {
            name: printable(&column.name),
            unit: printable(&column.unit),
            class: class(column),
        };
        Self {
            title: printable(table.title()),
            has_header: table.has_header(),
            columns: table.columns().iter().map(column).collect(),
            rows: table.rows().iter().map(cells).collect(),
        }
    }
}

fn class(column: &Column) -> &'static str {
    match column.align {
        Align::Left => "l",
        Align::Right => "r",
    }
}

impl CellView {
    fn new(cell: &Cell, column: &Column, deviation_width: usize) -> Self {
        let (text, deviation) = match cell {
            Cell::Number(number) => {
                let deviation = number.deviation_text().map(|text| format!("± {}", grouped(&text)));
                let unit = if number.unit == column.unit { "" } else { &number.unit };
                let value = grouped(&number.value_text());
                match (deviation, unit.is_empty()) {
                    (deviation, true) => (value, deviation.unwrap_or_default()),
                    (None, false) => (format!("{value} {unit}"), String::new()),
                    (Some(deviation), false) => (value, format!("{deviation} {unit}")),
                }
            }
            other => (other.text(column), String::new()),
        };
        let deviation_width = if matches!(cell, Cell::Number(_)) { deviation_width } else { 0 };
        Self {
            is_short: text.chars().count() <= NAME_CHARS_MAX,
            text: printable(&text),
            class: class(column),
            deviation: printable(&deviation),
            deviation_width,
        }
    }
}

/// Characters of the longest deviation in a column.
fn deviation_width(table: &Table, index: usize) -> usize {
    let width = |row: &Vec<Cell>| match &row[index] {
        Cell::Number(number) => number.deviation_text().map_or(0, |text| text.chars().count() + 2),
        Cell::Empty | Cell::Text(_) => 0,
    };
    table.rows().iter().map(width).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
