//! A table: rows of typed cells under a header, printed as aligned text without borders.
//!
//! Cells contain numbers as numbers, so that spreadsheets get the full value and text the rounded
//! one. Every row has exactly one cell per column.

use comfy_table::{CellAlignment, ContentArrangement, presets};

use super::number::Number;

/// Alignment of a column: left for text, right for numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// To the left.
    Left,
    /// To the right.
    Right,
}

/// Header and alignment of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name in the header; may be empty.
    pub name: String,
    /// Unit of the numbers, printed in the header; empty if they have none.
    pub unit: String,
    /// Alignment of the header and the cells.
    pub align: Align,
}

impl Column {
    /// Returns a column of text.
    pub fn left(name: impl Into<String>) -> Self {
        Self { name: name.into(), unit: String::new(), align: Align::Left }
    }

    /// Returns a column of numbers.
    pub fn right(name: impl Into<String>) -> Self {
        Self { name: name.into(), unit: String::new(), align: Align::Right }
    }

    /// Returns the column with a unit in its header.
    pub fn with_unit(mut self, unit: impl Into<String>) -> Self {
        self.unit = unit.into();
        self
    }

    /// Returns the name and unit on one line, such as `write (MB/s)`.
    pub(crate) fn heading(&self) -> String {
        match (self.name.is_empty(), self.unit.is_empty()) {
            (_, true) => self.name.clone(),
            (true, false) => self.unit.clone(),
            (false, false) => format!("{} ({})", self.name, self.unit),
        }
    }
}

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Nothing.
    Empty,
    /// Text, which is never interpreted as a number or a formula.
    Text(String),
    /// A number. Its unit is printed only if the column has no unit or a different one.
    Number(Number),
}

impl Cell {
    /// Returns the text of the cell in `column`.
    pub(crate) fn text(&self, column: &Column) -> String {
        match self {
            Cell::Empty => String::new(),
            Cell::Text(text) => text.clone(),
            Cell::Number(number) if number.unit == column.unit => number.text(),
            Cell::Number(number) => number.to_string(),
        }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Number> for Cell {
    fn from(number: Number) -> Self {
        Self::Number(number)
    }
}

/// `None` leaves the cell empty.
impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(cell: Option<T>) -> Self {
        cell.map_or(Self::Empty, Into::into)
    }
}

/// Rows of cells under a header.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    title: String,
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Returns an empty table with these columns.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let column = |(name, align): &(&str, Align)| Column {
            name: (*name).to_owned(),
            unit: String::new(),
            align: *align,
        };
        Self::with_columns(columns.iter().map(column).collect())
    }

    /// Returns an empty table with these columns, which may have units.
    pub fn with_columns(columns: Vec<Column>) -> Self {
        Self { title: String::new(), columns, rows: Vec::new() }
    }

    /// Returns the table with a title above it.
    pub fn titled(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// Adds a row of text; missing cells stay empty.
    ///
    /// # Panics
    ///
    /// If there are more cells than columns.
    pub fn row(&mut self, cells: Vec<String>) {
        self.push(cells.into_iter().map(Cell::Text).collect());
    }

    /// Adds a row of cells; missing cells stay empty.
    ///
    /// # Panics
    ///
    /// If there are more cells than columns.
    pub fn push(&mut self, mut cells: Vec<Cell>) {
        assert!(cells.len() <= self.columns.len(), "a row has more cells than there are columns");
        cells.resize(self.columns.len(), Cell::Empty);
        self.rows.push(cells);
    }

    /// Returns the title; empty if there is none.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Returns the columns, from left to right.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Returns the rows. Each has one cell for each column.
    pub fn rows(&self) -> &[Vec<Cell>] {
        &self.rows
    }

    /// Returns whether any column has a name or a unit.
    pub(crate) fn has_header(&self) -> bool {
        self.columns.iter().any(|column| !column.name.is_empty() || !column.unit.is_empty())
    }

    /// Returns the table as text without its title. Each row is one line that ends with a line
    /// break and is as wide as its cells.
    pub fn to_text(&self) -> String {
        let mut table = self.laid_out(0..self.columns.len());
        table.set_content_arrangement(ContentArrangement::Disabled);
        lines(&table)
    }

    /// Returns the layout of the columns with these indices.
    pub(crate) fn laid_out(
        &self,
        picked: impl Iterator<Item = usize> + Clone,
    ) -> comfy_table::Table {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::NOTHING);
        if self.has_header() {
            table.set_header(picked.clone().map(|index| self.header_text(index)));
        }
        for cells in &self.rows {
            table.add_row(picked.clone().map(|index| cells[index].text(&self.columns[index])));
        }
        for (column, index) in table.column_iter_mut().zip(picked) {
            column.set_padding((0, 2));
            column.set_cell_alignment(match self.columns[index].align {
                Align::Left => CellAlignment::Left,
                Align::Right => CellAlignment::Right,
            });
        }
        table
    }

    /// Returns the name above the unit. If only some columns have units, all names are on the same
    /// line.
    fn header_text(&self, index: usize) -> String {
        let column = &self.columns[index];
        if column.unit.is_empty() {
            column.name.clone()
        } else {
            format!("{}\n{}", column.name, column.unit)
        }
    }
}

/// Returns the lines of a layout without trailing blanks; each line ends with a line break.
pub(crate) fn lines(table: &comfy_table::Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    //! Goal: columns are aligned, without trailing blanks; cells show their values.
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("name", Align::Left), ("bytes", Align::Right)]);
        table.row(vec!["host".into(), "4096".into()]);
        table.row(vec!["a longer one".into(), "7".into()]);
        assert_eq!(
            table.to_text(),
            "name          bytes\nhost           4096\na longer one      7\n"
        );
    }

    #[test]
    fn columns_without_names_have_no_header() {
        let mut table = Table::new(&[("", Align::Left), ("", Align::Left)]);
        table.row(vec!["size".into(), "64 GiB".into()]);
        assert_eq!(table.to_text(), "size  64 GiB\n");
    }

    #[test]
    fn cells_are_typed_and_units_stand_in_the_header() {
        let mut table =
            Table::with_columns(vec![Column::left("op"), Column::right("rate").with_unit("MB/s")]);
        table.push(vec!["write".into(), Number::new(99.96, 1).with_deviation(0.5).into()]);
        table.push(vec!["read".into(), Number::new(1.5, 1).with_unit("GB/s").into()]);
        table.push(vec!["trim".into(), None::<Number>.into()]);
        table.push(vec!["same".into(), Number::new(2.0, 1).with_unit("MB/s").into()]);
        table.push(vec!["short".into()]);
        assert_eq!(
            table.to_text(),
            "op            rate\n              MB/s\nwrite  100.0 ± 0.5\nread      1.5 GB/s\n\
             trim\nsame           2.0\nshort\n"
        );
    }
}
