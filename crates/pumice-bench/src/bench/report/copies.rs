//! Copies of files: the duration and throughput of each.

use super::cells::{Cell, Cells};
use crate::stats::Summary;
use crate::workload::Unit;
use pumice_report::{Column, Number, Section, Table};

/// Significant digits of a mean.
const DIGITS: u8 = 4;

/// Returns a section with the table. The section has no blocks if no test copies files.
pub(super) fn section(cells: &Cells<'_>) -> Section {
    let mut section = super::section("Copies of files");
    if let Some(table) = table(cells) {
        section.paragraph(
            "Means with their 95 % intervals. The time includes a sync of the file system; the \
             files were not in the page cache before.",
        );
        section.block(table);
    }
    section
}

/// Returns a table of all tests that copy files, in seconds and in MB/s; `None` if there are none.
pub(super) fn table(cells: &Cells<'_>) -> Option<Table> {
    let mut table = Table::with_columns(vec![
        Column::left("copy"),
        Column::left("level"),
        Column::right("files"),
        Column::right("MB"),
        Column::right("seconds"),
        Column::left("95 %"),
        Column::right("MB/s"),
        Column::left("95 %"),
    ]);
    let copies = |cell: &&Cell<'_>| cell.test.workload.operation.file_set().is_some();
    for cell in cells.iter().filter(copies) {
        let Some(run) = cell.runs.first() else { continue };
        let mut row = vec![
            cell.test.name.as_str().into(),
            cell.level.name.as_str().into(),
            Number::new(run.sample.operations as f64, 0).into(),
            Number::new(run.sample.host_bytes as f64 / 1e6, 1).into(),
        ];
        for unit in [Unit::Duration, Unit::Throughput] {
            let values: Vec<f64> = cell.runs.iter().map(|run| run.value(unit)).collect();
            let summary = Summary::of(&values);
            row.push(summary.map(|summary| Number::significant(summary.mean, DIGITS)).into());
            row.push(summary.and_then(interval).unwrap_or_default().as_str().into());
        }
        table.push(row);
    }
    (!table.rows().is_empty()).then_some(table)
}

/// Returns the interval of the mean as text, with as many decimals as the mean.
fn interval(summary: Summary) -> Option<String> {
    let decimals = Number::significant(summary.mean, DIGITS).decimals;
    let number = |value: f64| Number::new(value, decimals).to_string();
    let interval = summary.mean_interval?;
    Some(format!("{} to {}", number(interval.low), number(interval.high)))
}

#[cfg(test)]
mod tests {
    //! Goal: a copy is reported in seconds and in MB/s, each with its interval.
    use super::*;
    use crate::bench::results::sample::{results, test, workload};
    use crate::workload::Operation;

    #[test]
    fn seconds_and_throughput_have_intervals() {
        let mut all = results(&[0.0, 0.0, 0.0]);
        let plan = &mut all.header.plan;
        plan.levels.truncate(1);
        plan.tests.truncate(1);
        plan.tests[0] = test("Copy ISO", Unit::Duration, workload(Operation::CopyIso, 1 << 20));
        all.runs.retain(|run| (run.test, run.level) == (0, 0));
        for (run, seconds) in all.runs.iter_mut().zip([1.0, 2.0, 3.0]) {
            run.sample.seconds = seconds;
            run.sample.host_bytes = 120_000_000;
            run.sample.operations = 2;
        }
        let text = table(&Cells::new(&all)).expect("a table").to_text();
        let row = text.lines().last().expect("a row");
        let words: Vec<&str> = row.split_whitespace().skip(5).collect();
        // Student's interval for 1, 2 and 3, with a lower bound of 0; the mean of 120, 60 and 40.
        let wanted = ["2", "120.0", "2.000", "0.000", "to", "4.484", "73.33"];
        assert_eq!(words[..7], wanted, "{text}");
        assert!(section(&Cells::new(&results(&[1.0]))).blocks.is_empty());
    }
}
