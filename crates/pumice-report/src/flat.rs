//! A table for programs, with one value per cell. A column of numbers with deviations becomes two
//! columns, and a column of numbers with their own units gets an additional column for the units.

use super::number::Number;
use super::table::{Cell, Column, Table};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// An empty cell.
    Empty,
    /// Text.
    Text(String),
    /// A finite number, and its number of decimals in reports.
    Number(f64, u8),
}

/// A flat table.
pub(crate) struct Flat {
    /// Names of the columns, with their units.
    pub(crate) header: Vec<String>,
    /// Rows, each with one value for each column.
    pub(crate) rows: Vec<Vec<Value>>,
    /// For each column of the original table, the column of its numbers and the column of their
    /// deviations.
    pub(crate) places: Vec<(usize, Option<usize>)>,
}

impl Flat {
    /// Returns the numbers and texts of `table`.
    pub(crate) fn new(table: &Table) -> Self {
        let mut flat = Self { header: Vec::new(), rows: Vec::new(), places: Vec::new() };
        flat.rows.resize(table.rows().len(), Vec::new());
        for (index, column) in table.columns().iter().enumerate() {
            let cells = || table.rows().iter().map(|row| &row[index]);
            let numbers = || cells().filter_map(number);
            let value = flat.add(column.heading(), cells().map(value));
            let has_deviations = numbers().any(|number| number.deviation.is_some());
            let deviation = has_deviations.then(|| {
                let named = Column { name: joined(&column.name, "deviation"), ..column.clone() };
                flat.add(named.heading(), cells().map(deviation))
            });
            if numbers().any(|number| has_own_unit(number, column)) {
                let units = cells().map(|cell| match number(cell) {
                    Some(number) if has_own_unit(number, column) => {
                        Value::Text(number.unit.clone())
                    }
                    _ => Value::Empty,
                });
                flat.add(joined(&column.name, "unit"), units);
            }
            flat.places.push((value, deviation));
        }
        flat
    }

    /// Adds a column and returns its index.
    fn add(&mut self, name: String, values: impl Iterator<Item = Value>) -> usize {
        self.header.push(name);
        for (row, value) in self.rows.iter_mut().zip(values) {
            row.push(value);
        }
        self.header.len() - 1
    }
}

fn joined(name: &str, word: &str) -> String {
    format!("{name} {word}").trim_start().to_owned()
}

fn number(cell: &Cell) -> Option<&Number> {
    match cell {
        Cell::Number(number) => Some(number),
        Cell::Empty | Cell::Text(_) => None,
    }
}

fn has_own_unit(number: &Number, column: &Column) -> bool {
    !number.unit.is_empty() && number.unit != column.unit
}

fn value(cell: &Cell) -> Value {
    match cell {
        Cell::Empty => Value::Empty,
        Cell::Text(text) => Value::Text(text.clone()),
        Cell::Number(number) => finite(number.value, number.decimals),
    }
}

fn deviation(cell: &Cell) -> Value {
    match number(cell).and_then(|number| Some((number.deviation?, number.decimals))) {
        Some((deviation, decimals)) => finite(deviation, decimals),
        None => Value::Empty,
    }
}

fn finite(value: f64, decimals: u8) -> Value {
    if value.is_finite() { Value::Number(value, decimals) } else { Value::Empty }
}
