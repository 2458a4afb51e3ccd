//! Imports IOzone's output: the table of its automatic mode and of single files, and the sums of
//! its throughput mode.
//!
//! ```text
//!               kB  reclen    write  rewrite    read ...   headings end where numbers end
//!             1024       4   966941  2240689         ...   tests that were not run are blank
//!
//!         Children see throughput for  2 initial writers  = 1990248.06 kB/sec
//! ```
//!
//! A repeated row is a further round, so that outputs of several runs can be concatenated. One kB
//! is 1024 bytes. Not imported: pwrite and pread; fwrite and fread in sums; measurements in units
//! other than kB/s.

use super::imported::{About, Imported, Measured, workload};
use crate::bench::results::Results;
use crate::stats::Latencies;
use crate::workload::Operation;
use crate::workload::{Test, Unit};
use pumice_drive::base::units::format_size_exact;

/// Columns of the table after the file size and record size, and the positions where their numbers
/// end. Source: output of IOzone 3.489.
const COLUMNS: [(Operation, usize); 13] = [
    (Operation::Write, 33),
    (Operation::Rewrite, 42),
    (Operation::Read, 51),
    (Operation::Reread, 60),
    (Operation::RandomRead, 69),
    (Operation::RandomWrite, 78),
    (Operation::BackwardRead, 87),
    (Operation::RecordRewrite, 97),
    (Operation::StrideRead, 107),
    (Operation::FWrite, 116),
    (Operation::FRewrite, 125),
    (Operation::FRead, 134),
    (Operation::FReread, 143),
];

/// Names of the tests in throughput mode.
const SUMS: [(&str, Operation); 8] = [
    ("initial writers", Operation::Write),
    ("rewriters", Operation::Rewrite),
    ("readers", Operation::Read),
    ("re-readers", Operation::Reread),
    ("random readers", Operation::RandomRead),
    ("random writers", Operation::RandomWrite),
    ("reverse readers", Operation::BackwardRead),
    ("stride readers", Operation::StrideRead),
];

const KB: u64 = 1024;

/// Parses IOzone's output.
///
/// # Errors
/// The reason, as text.
pub(super) fn parse(text: &str) -> Result<Results, String> {
    let after = |what: &str| text.lines().find_map(|line| Some(line.split_once(what)?.1.trim()));
    if after("Output is in").is_some_and(|unit| !unit.starts_with("kBytes/sec")) {
        return Err("IOzone measured in units other than kBytes/sec: remove -O and -N".into());
    }
    let version = after("$Revision:").and_then(|rest| rest.split_whitespace().next());
    let command = after("Command line used:").unwrap_or_default();
    let words: Vec<&str> = command.split_whitespace().collect();
    let file = words.windows(2).find(|pair| pair[0] == "-f").map(|pair| pair[1]);
    let mut found = Imported::default();
    for part in parts(text) {
        table(&mut found, &part)?;
        throughput(&mut found, &part)?;
    }
    let named = |name: &str, value: Option<&str>| Some((name.to_owned(), value?.to_owned()));
    let about = About {
        tool: format!("IOzone {}", version.unwrap_or("of unknown version")),
        about: "Measured by IOzone, without latencies.".to_owned(),
        target: file.unwrap_or("not named").to_owned(),
        command: command.to_owned(),
        direct: words.contains(&"-I"),
        begun_unix_s: 0,
        environment: [
            named("IOzone mode", after("Compiled for")),
            named("IOzone build", after("Build:")),
            named("begun", after("Run began:")),
        ]
        .into_iter()
        .flatten()
        .collect(),
    };
    found.finish(about)
}

/// Splits concatenated outputs and returns the lines of each.
fn parts(text: &str) -> Vec<Vec<&str>> {
    let mut parts = vec![Vec::new()];
    for line in text.lines() {
        if line.contains("Iozone: Performance Test") {
            parts.push(Vec::new());
        }
        parts.last_mut().expect("there is one").push(line);
    }
    parts
}

/// Returns the rows of numbers below the headings.
fn table(found: &mut Imported, lines: &[&str]) -> Result<(), String> {
    let is_heading = |line: &&&str| line.split_whitespace().take(2).eq(["kB", "reclen"]);
    let Some(heading) = lines.iter().position(|line| is_heading(&line)) else { return Ok(()) };
    for line in &lines[heading + 1..] {
        let numbers = numbers(line);
        let [(Some(file_kb), _), (Some(record_kb), _), rest @ ..] = &numbers[..] else {
            // A blank line ends the table; text follows.
            match line.trim() {
                "" => break,
                text => return Err(format!("'{text}' is not a row of IOzone's table")),
            }
        };
        for (value, end) in rest {
            let nearest = COLUMNS.iter().min_by_key(|(_, column)| column.abs_diff(*end));
            let (operation, column) = nearest.copied().expect("there are columns");
            let Some(value) = value.filter(|_| column.abs_diff(*end) <= 3) else {
                return Err(format!("'{}' has a number outside the columns", line.trim()));
            };
            let one = Row { file_kb: *file_kb, record_kb: *record_kb, threads: 1 };
            one.add(found, operation, value as f64)?;
        }
    }
    Ok(())
}

/// Returns every number of a line and the column where it ends.
fn numbers(line: &str) -> Vec<(Option<u64>, usize)> {
    let mut numbers = Vec::new();
    let mut at = 0;
    for word in line.split(' ') {
        at += word.len();
        if !word.trim().is_empty() {
            numbers.push((word.trim().parse().ok(), at));
        }
        at += 1;
    }
    numbers
}

/// Adds the sums over several processes.
fn throughput(found: &mut Imported, lines: &[&str]) -> Result<(), String> {
    let (mut file_kb, mut record_kb) = (0, 0);
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["Each", _, "writes", "a", file, "kByte", "file", "in", record, "kByte", ..] =
            words[..]
        {
            let number = |text: &str| {
                text.parse::<u64>().map_err(|_| format!("'{}' has no sizes", line.trim()))
            };
            (file_kb, record_kb) = (number(file)?, number(record)?);
        }
        let Some((_, rest)) = line.split_once("Children see throughput for") else { continue };
        let wrong = || format!("'{}' is not a sum of IOzone's throughput mode", line.trim());
        let (name, value) = rest.split_once('=').ok_or_else(wrong)?;
        let (count, name) = name.trim().split_once(' ').ok_or_else(wrong)?;
        let threads: u32 = count.parse().map_err(|_| wrong())?;
        let value: f64 = value
            .trim()
            .strip_suffix("kB/sec")
            .and_then(|value| value.trim().parse().ok())
            .ok_or_else(wrong)?;
        let Some((_, operation)) = SUMS.iter().find(|(known, _)| *known == name.trim()) else {
            continue;
        };
        Row { file_kb, record_kb, threads }.add(found, *operation, value)?;
    }
    Ok(())
}

/// Parameters of a number.
struct Row {
    file_kb: u64,
    record_kb: u64,
    threads: u32,
}

impl Row {
    fn add(&self, found: &mut Imported, operation: Operation, kb_per_s: f64) -> Result<(), String> {
        let bytes = |kb: u64| kb.checked_mul(KB).filter(|_| kb <= 1 << 40);
        let (Some(file), Some(record)) = (bytes(self.file_kb), bytes(self.record_kb)) else {
            return Err(format!("a file of {} kB is out of range", self.file_kb));
        };
        if record == 0 || file < record {
            return Err(format!("records of {record} bytes in a file of {file} are out of range"));
        }
        let all = file.saturating_mul(u64::from(self.threads));
        let (file_size, record_size) = (format_size_exact(file), format_size_exact(record));
        let mut name = format!("{} {record_size} of {file_size}", operation.name());
        if self.threads > 1 {
            name += &format!(" × {}", self.threads);
        }
        let mut workload = workload(operation, record, all);
        workload.threads = self.threads;
        let measured = Measured {
            seconds: all as f64 / (kb_per_s * KB as f64),
            operations: all / record,
            host_bytes: all,
            latency: Latencies::new(),
            warnings: Vec::new(),
        };
        found.add(Test { name, unit: Unit::Throughput, workload }, measured)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: each of IOzone's numbers is assigned to its operation. Method: output of IOzone 3.489:
    //! automatic mode, a single file with omitted tests, two processes.
    use super::*;

    const AUTO: &str = include_str!("samples/iozone-auto.txt");
    const SINGLE: &str = include_str!("samples/iozone-single.txt");
    const THROUGHPUT: &str = include_str!("samples/iozone-throughput.txt");

    /// Returns each operation with its record size in KiB and its rate in kB/s.
    fn told(results: &Results) -> Vec<(Operation, u64, u64)> {
        let one = |(index, test): (usize, &Test)| {
            let value = results.values(index, 0)[0] * 1e6 / 1024.0;
            (test.workload.operation, test.workload.record_bytes / 1024, value.round() as u64)
        };
        results.header.plan.tests.iter().enumerate().map(one).collect()
    }

    #[test]
    fn the_table_is_read() {
        let results = parse(AUTO).expect("output of IOzone");
        let told = told(&results);
        assert_eq!(told.len(), 26);
        for expected in [
            (Operation::Write, 4, 972_635),
            (Operation::Reread, 4, 3_304_314),
            (Operation::RandomRead, 4, 3_495_237),
            (Operation::BackwardRead, 4, 3_655_895),
            (Operation::RecordRewrite, 64, 18_608_584),
            (Operation::StrideRead, 64, 18_936_769),
            (Operation::FWrite, 4, 2_409_105),
            (Operation::FReread, 64, 18_936_769),
        ] {
            assert!(told.contains(&expected), "{expected:?} in {told:?}");
        }
        assert_eq!(results.header.plan.tests[13].name, "write 64 KiB of 1 MiB");
        assert!(results.header.command.ends_with("iozone -a -s 1m -r 4k -r 64k"));
        assert_eq!(results.header.environment[1].1, "linux-AMD64");
    }

    #[test]
    fn blanks_are_tests_that_were_not_run() {
        let told = told(&parse(SINGLE).expect("output of IOzone"));
        let expected = [
            (Operation::Write, 4, 966_941),
            (Operation::Rewrite, 4, 2_240_689),
            (Operation::RandomRead, 4, 2_993_413),
            (Operation::RandomWrite, 4, 2_060_128),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn sums_of_processes_are_read() {
        let results = parse(THROUGHPUT).expect("output of IOzone");
        let told = told(&results);
        assert_eq!(told.len(), 6);
        assert_eq!(told[0], (Operation::Write, 4, 1_990_248));
        assert_eq!(told[3], (Operation::Reread, 4, 6_432_393));
        assert_eq!(told[5], (Operation::RandomWrite, 4, 3_231_691));
        let workload = &results.header.plan.tests[0].workload;
        assert_eq!((workload.threads, workload.span_bytes), (2, 2 << 20));
    }

    #[test]
    fn repeated_rows_are_rounds() {
        let results = parse(&format!("{SINGLE}\n{SINGLE}\n{SINGLE}")).expect("outputs of IOzone");
        assert_eq!((results.header.plan.tests.len(), results.header.plan.runs), (4, 3));
        assert_eq!(results.values(2, 0).len(), 3);
    }

    #[test]
    fn impossible_reports_are_refused() {
        let refused = |from: &str, to: &str| {
            assert!(SINGLE.contains(from), "{from}");
            parse(&SINGLE.replace(from, to)).expect_err("refused")
        };
        assert!(refused("kBytes/sec", "microseconds/op").contains("remove -O"));
        assert!(refused("2240689", "2240x89").contains("outside the columns"));
        assert!(refused("1024       4 ", "1024       0 ").contains("out of range"));
        assert!(refused("966941", "     0").contains("invalid duration"));
        assert!(refused("reclen", "nelcer").contains("no measurement"));
        let error = parse(&THROUGHPUT.replace("kB/sec", "kB")).expect_err("refused");
        assert!(error.contains("not a sum"), "{error}");
    }
}
