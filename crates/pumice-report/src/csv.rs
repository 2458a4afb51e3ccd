//! One table as CSV (RFC 4180, with line feeds): a header line, then one line for each row.
//!
//! Numbers are printed in full, not rounded, with a decimal point. Text is printed unchanged. Text
//! that a spreadsheet would interpret as a formula is protected only in `xlsx`, because a change
//! here would affect every program.

use csv::{Terminator, WriterBuilder};

use super::flat::{Flat, Value};
use super::table::Table;

impl Table {
    /// Returns the table as CSV, without its title.
    ///
    /// A column of means is followed by a column of their deviations. Units are in the header.
    /// Units that belong to single numbers have a separate column. Empty cells and missing numbers
    /// are empty fields.
    pub fn to_csv(&self) -> String {
        let flat = Flat::new(self);
        let mut writer =
            WriterBuilder::new().terminator(Terminator::Any(b'\n')).from_writer(Vec::new());
        if !flat.header.is_empty() {
            writer.write_record(&flat.header).expect("writing to memory does not fail");
        }
        for row in &flat.rows {
            let fields = row.iter().map(field);
            writer.write_record(fields).expect("every row has as many values as the header");
        }
        let bytes = writer.into_inner().expect("writing to memory does not fail");
        String::from_utf8(bytes).expect("CSV of text is text")
    }
}

fn field(value: &Value) -> String {
    match value {
        Value::Empty => String::new(),
        Value::Text(text) => text.clone(),
        Value::Number(value, _) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: programs can read back exactly the numbers and words of the table.
    use super::super::{Column, Number, sample};
    use super::*;

    #[test]
    fn means_and_deviations_are_separate_columns() {
        let text = sample::runs().to_csv();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0],
            "operation,runs,throughput (MB/s),throughput deviation (MB/s),p50 (µs),\
             p50 deviation (µs),p99 (µs),p99 deviation (µs),p99.9 (µs),remark"
        );
        assert!(lines[1].starts_with("Sequential write 128 KiB,5,812.4,20.31,50.46"), "{text}");
        assert!(lines[2].ends_with(",44,,=SUM(A1:A9) is no formula"), "{text}");
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn text_and_numbers_come_back_as_they_were() {
        let words = ["a,b", "say \"x\"", "two\nlines", " =1+1", ""];
        let mut table = Table::with_columns(vec![Column::left("w"), Column::right("n")]);
        for word in words {
            table.push(vec![word.into(), Number::new(0.1 + 0.2, 1).into()]);
        }
        table.push(vec!["none".into(), Number::new(f64::NAN, 1).into()]);
        table.push(vec!["unit".into(), Number::new(1e21, 1).with_unit("B").into()]);
        let text = table.to_csv();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let rows: Vec<_> = reader.records().map(|row| row.expect("valid CSV")).collect();
        for (row, word) in rows.iter().zip(words) {
            assert_eq!((&row[0], row[1].parse()), (word, Ok(0.1 + 0.2)));
        }
        assert_eq!((&rows[5][1], &rows[6][2]), ("", "B"));
        assert_eq!(rows[6][1].parse(), Ok(1e21));
    }
}
