//! A table and its cells.

use crate::document::printable;
use crate::number::grouped;
use crate::table::{Align, Cell, Column, Table};

/// Maximum number of characters in a row name that is not wrapped.
const NAME_CHARS_MAX: usize = 28;

/// Minimum number of columns for printing a table in landscape format.
const WIDE_FROM: usize = 11;

pub(super) struct TableView {
    pub(super) title: String,
    /// Whether the table is too wide for portrait format.
    pub(super) is_wide: bool,
    pub(super) has_header: bool,
    pub(super) columns: Vec<ColumnView>,
    pub(super) rows: Vec<Vec<CellView>>,
}

pub(super) struct ColumnView {
    pub(super) name: String,
    pub(super) unit: String,
    pub(super) class: &'static str,
}

pub(super) struct CellView {
    pub(super) text: String,
    /// Whether the text is short enough never to be wrapped.
    pub(super) is_short: bool,
    pub(super) class: &'static str,
    /// The deviation with its sign; empty if the number has no deviation.
    pub(super) deviation: String,
    /// Number of characters reserved for each deviation in the column, so that numbers are aligned;
    /// 0 for none.
    pub(super) deviation_width: usize,
}

impl TableView {
    pub(super) fn new(table: &Table) -> Self {
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
            is_wide: table.columns().len() >= WIDE_FROM,
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

/// Returns the number of characters of the longest deviation in a column.
fn deviation_width(table: &Table, index: usize) -> usize {
    let width = |row: &Vec<Cell>| match &row[index] {
        Cell::Number(number) => number.deviation_text().map_or(0, |text| text.chars().count() + 2),
        Cell::Empty | Cell::Text(_) => 0,
    };
    table.rows().iter().map(width).max().unwrap_or(0)
}
