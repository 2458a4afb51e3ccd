//! A table with a header, printed as aligned text without borders.

use comfy_table::{CellAlignment, ContentArrangement, presets};

/// How a column is aligned: words left, numbers right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// To the left.
    Left,
    /// To the right.
    Right,
}

/// Rows of cells under a header.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these columns.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let columns = columns.iter().map(|(name, align)| ((*name).to_owned(), *align)).collect();
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row; missing cells stay empty.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table as text, one line a row, each ending with a line break.
    pub fn to_text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Disabled);
        if self.columns.iter().any(|(name, _)| !name.is_empty()) {
            table.set_header(self.columns.iter().map(|(name, _)| name));
        }
        for cells in &self.rows {
            table.add_row(cells);
        }
        for (column, (_, align)) in table.column_iter_mut().zip(&self.columns) {
            column.set_padding((0, 2));
            column.set_cell_alignment(match align {
                Align::Left => CellAlignment::Left,
                Align::Right => CellAlignment::Right,
            });
        }
        let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
        lines.collect()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: columns line up, without trailing blanks.
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
}
