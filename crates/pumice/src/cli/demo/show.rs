//! The report of the demo: a headline, a verdict, one chart, and how it was made; on the terminal
//! and on a page.

use std::path::Path;

use anyhow::{Context, Result};

use super::drive::{FLASH, LINK_BYTES_PER_S};
use super::published::{DRIVE, SOURCE, WRITES};
use super::speed::{Cell, Kind, POSTGRESQL_SOURCE, SPAN_BYTES};
use super::{DemoResult, Source};
use pumice_bench::report::document;
use pumice_bench::results::Results;
use pumice_bench::stats::{Summary, Verdict};
use pumice_drive::base::units::format_size;
use pumice_report::{
    Axis, Bar, BarChart, Column, Document, LineChart, Number, Point, Section, Table,
};

/// Above this share of late operations, the results include the speed of the disk.
const LATE_SHARE_MAX: f64 = 0.05;

const WITH: &str = "this drive, LZ4";
const WITHOUT: &str = "this drive, no compression";

/// Returns the result in a sentence that fits a line.
pub(super) fn headline(shown: &DemoResult, source: &Source<'_>) -> String {
    let ratio = |kind| {
        let cell = shown.cells.iter().find(|cell| cell.kind == kind);
        let compared = cell.and_then(|cell| cell.compared.compared);
        compared.map_or_else(|| "?".to_owned(), |one| format!("{:.1}", one.ratio))
    };
    format!(
        "On flash of 97 MB/s, compression speeds up writes {} times for files of {}, {} for \
         PostgreSQL.",
        ratio(Kind::Files),
        source.folder.display(),
        ratio(Kind::Database),
    )
}

/// Returns the kind of data of a cell in which the drive that compresses is slower, and by how
/// much.
fn slower_text(cell: &Cell) -> Option<String> {
    let compared = cell.compared.compared.filter(|one| one.verdict == Verdict::Slower)?;
    let percent = (1.0 - compared.ratio) * 100.0;
    Some(format!("'{}' by {percent:.1} %", cell.compared.level))
}

/// Returns a sentence with the number of kinds of data for which the drives differ, and another
/// with the bytes that each drive wrote to its flash for each byte of the files.
pub(super) fn verdict(shown: &DemoResult, source: &Source<'_>) -> String {
    let of = |verdict| {
        let is = |cell: &&Cell| cell.compared.compared.is_some_and(|one| one.verdict == verdict);
        let names = shown.cells.iter().filter(is).map(|cell| cell.compared.level.clone());
        names.collect::<Vec<_>>()
    };
    let (faster, same) = (of(Verdict::Faster), of(Verdict::NoDifference));
    let slower: Vec<_> = shown.cells.iter().filter_map(slower_text).collect();
    let count = shown.cells.len();
    let mut parts = vec![format!("faster with {} of {count} kinds of data", faster.len())];
    if !slower.is_empty() {
        parts.push(format!("slower with {}", slower.join(", ")));
    }
    if !same.is_empty() {
        parts.push(format!("not different with '{}'", same.join("', '")));
    }
    let told = if of(Verdict::TooFewRuns).len() == count {
        format!("{} rounds are too few to detect a difference with compression.", shown.rounds)
    } else {
        let parts = parts.join(", ");
        format!(
            "On flash of {} MB/s, the compressing drive is {parts} (95 %, corrected for {count} \
             comparisons).",
            FLASH.append_bytes_per_s / 1_000_000
        )
    };
    let [with, without] = &shown.files;
    format!(
        "{told} For each byte of the files of {} it wrote {:.2} bytes to its flash, the other \
         {:.2}; all {} were read back correctly.",
        source.folder.display(),
        with.write_amplification,
        without.write_amplification,
        format_size(with.host_bytes),
    )
}

/// Returns how everything was made.
fn how(shown: &DemoResult, source: &Source<'_>) -> Vec<String> {
    let mb = |bytes: u64| bytes / 1_000_000;
    let mut how = vec![
        format!(
            "Two drives of this program, one with LZ4 and one without compression, each in a file \
             of {}. A layer between drive and file limits it to {} MB/s of writes, a layer between \
             drive and host to {} MB/s, in real time: the flash and the link of a drive of 2011. \
             Both limits are the two published points, so these two agree by construction; the \
             points between them are measured. The limits do not accumulate idle time.",
            source.scratch.display(),
            mb(FLASH.append_bytes_per_s),
            mb(LINK_BYTES_PER_S),
        ),
        format!(
            "Each point is the mean of {} runs, in turns with the other drive, over NBD: {} in \
             order, requests of 1 MiB, 4 in flight, with the flush at the end. Error bars are one \
             standard deviation. The saving is the share that LZ4 saves in the drive's frames of \
             32 KiB.",
            shown.rounds,
            format_size(SPAN_BYTES),
        ),
        format!(
            "The lines use data generated to save the stated share. Data like PostgreSQL's is \
             {POSTGRESQL_SOURCE}. Files of {}: {} of real files of this machine, in evenly spaced \
             pieces of 256 KiB, of {} in all.",
            source.folder.display(),
            format_size(shown.files[0].host_bytes),
            format_size(shown.files_bytes),
        ),
        format!("Published: {SOURCE}."),
    ];
    let late = shown.late_share;
    if late > LATE_SHARE_MAX {
        how.push(format!(
            "The disk below was slower than the limit in {:.0} % of its operations, so the results \
             include its speed: choose a faster one with --scratch.",
            late * 100.0
        ));
    }
    how
}

/// Throughput over the saving of the data: both drives, the published one, and real data.
pub(super) fn chart(cells: &[Cell], folder: &Path) -> LineChart {
    let title = "Writes of 1 MiB over the compressibility of the data";
    let axis = Axis::new("throughput", "MB/s");
    let mut chart = LineChart::new(title, Axis::new("space saved", "%"), axis);
    let point = |cell: &Cell, summary: Option<Summary>| {
        summary.map(|one| Point { x: cell.saved_percent, y: one.mean, deviation: one.deviation })
    };
    let of = |kind: Kind| cells.iter().filter(move |cell| cell.kind == kind);
    chart.line(WITH, of(Kind::Made).filter_map(|cell| point(cell, cell.compared.other)).collect());
    let without = of(Kind::Made).filter_map(|cell| point(cell, cell.compared.base)).collect();
    chart.line(WITHOUT, without);
    let published = WRITES.map(|one| Point::new(one.asked_percent, one.mb_s));
    chart.dots(DRIVE, published.to_vec());
    let names = [
        (Kind::Database, "data like PostgreSQL's, LZ4".to_owned()),
        (Kind::Files, format!("files of {}, LZ4", folder.display())),
    ];
    for (kind, name) in names {
        let points = of(kind).filter_map(|cell| point(cell, cell.compared.other));
        chart.dots(name, points.collect());
    }
    chart
}

/// Both drives as bars, for a terminal.
fn bars(cells: &[Cell]) -> BarChart {
    let axis = Axis::new("throughput", "MB/s");
    let mut chart = BarChart::new("Writes of 1 MiB", "data", axis, ["LZ4", "no compression"]);
    let bar = |summary: Option<Summary>| match summary {
        Some(Summary { mean, deviation, .. }) => {
            let number = Number::new(mean, 1);
            deviation.map_or(number.clone(), |one| number.with_deviation(one)).into()
        }
        None => Bar::missing("not run"),
    };
    for Cell { kind, saved_percent, compared } in cells {
        let name = match kind {
            Kind::Made => compared.level.clone(),
            _ => format!("{} ({saved_percent:.0} %)", compared.level),
        };
        chart.group(name, vec![bar(compared.other), bar(compared.base)]);
    }
    chart
}

/// Returns the verdicts as a table.
fn verdicts(cells: &[Cell]) -> Table {
    let mut table = Table::with_columns(vec![
        Column::left("data"),
        Column::right("saved").with_unit("%"),
        Column::right("no compression").with_unit("MB/s"),
        Column::right("LZ4").with_unit("MB/s"),
        Column::left("LZ4 / no compression (95 %)"),
        Column::left("verdict"),
        Column::right("SF-1222, published").with_unit("MB/s"),
    ]);
    let mean = |summary: Option<Summary>| summary.map(|one| Number::new(one.mean, 1));
    for Cell { kind, saved_percent, compared } in cells {
        let published = WRITES.iter().find(|one| {
            *kind == Kind::Made && compared.level == format!("{} % saved", one.asked_percent)
        });
        table.push(vec![
            compared.level.as_str().into(),
            Number::new(*saved_percent, 1).into(),
            mean(compared.base).into(),
            mean(compared.other).into(),
            compared.ratio().into(),
            compared.verdict("not measured").into(),
            published.map(|one| Number::new(one.mb_s, 0)).into(),
        ]);
    }
    table
}

/// Returns the text for the terminal.
pub(super) fn text(shown: &DemoResult, source: &Source<'_>, columns: u16) -> String {
    let mut document = Document::default();
    let section = document.section("");
    section.paragraph(headline(shown, source)).paragraph(verdict(shown, source));
    section.block(bars(&shown.cells)).block(verdicts(&shown.cells));
    let section = document.section("How it was made");
    for text in how(shown, source) {
        section.paragraph(text);
    }
    document.to_text_within(columns)
}

/// Writes the page.
///
/// # Errors
/// It cannot be written.
pub(super) fn page(shown: &DemoResult, results: &[Results], source: &Source<'_>) -> Result<()> {
    let mut document = document(results);
    document.title = headline(shown, source);
    document.lead = verdict(shown, source);
    let mut first = Section { heading: "Speed over compressibility".into(), blocks: Vec::new() };
    first.block(chart(&shown.cells, source.folder)).block(verdicts(&shown.cells));
    for text in how(shown, source) {
        first.paragraph(text);
    }
    document.sections.insert(0, first);
    let page = source.page;
    std::fs::write(page, document.to_html())
        .with_context(|| format!("cannot write {}", page.display()))
}

#[cfg(test)]
mod tests {
    //! Goal: headline, verdict and chart state the measurements, and no more.
    use super::*;
    use crate::cli::demo::files::Line;
    use pumice_bench::compare::ComparedCell;
    use pumice_bench::stats::{Better, Design, Pair, compare};
    use pumice_bench::workload::Unit;

    fn shown(late_share: f64) -> DemoResult {
        let base = [97.0, 97.1, 96.9, 97.2, 96.8, 97.05, 96.95, 97.0];
        let kinds = [
            (Kind::Made, "98 % saved", 97.5, 2.68),
            (Kind::Database, "like PostgreSQL", 60.0, 2.41),
            (Kind::Files, "files of /usr", 50.0, 1.96),
            (Kind::Made, "2 % saved", 2.0, 1.0),
        ];
        let pairs = kinds.map(|kind| Pair::of(&base, &base.map(|value| value * kind.3)));
        let compared = compare(&pairs, Design::Turns, Better::Higher, 1, 1);
        let cell = |((kind, level, saved_percent, ratio), compared): ((_, &str, _, f64), _)| Cell {
            kind,
            saved_percent,
            compared: ComparedCell {
                test: "write".into(),
                level: level.into(),
                unit: Unit::Throughput,
                base: Summary::of(&base),
                other: Summary::of(&base.map(|value| value * ratio)),
                compared,
            },
        };
        let cells = kinds.into_iter().zip(compared).map(cell).collect();
        let files = [0.5, 1.0].map(|write_amplification| Line {
            host_bytes: 64 << 20,
            write_amplification,
            ..Line::default()
        });
        DemoResult { cells, files, files_bytes: 9 << 30, late_share, rounds: 8, published: WRITES }
    }

    fn source() -> Source<'static> {
        let path = Path::new;
        Source { folder: path("/usr"), scratch: path("/var/tmp"), page: path("page.html") }
    }

    #[test]
    fn the_first_line_has_the_numbers_and_the_verdict_its_cells() {
        let text = text(&shown(0.0), &source(), 500);
        let first = text.lines().next().unwrap();
        let wanted = "On flash of 97 MB/s, compression speeds up writes 2.0 times for files of \
                      /usr, 2.4 for PostgreSQL.";
        assert_eq!(first, wanted);
        assert!(first.len() <= 100, "more than a line");
        for wanted in [
            "faster with 3 of 4 kinds of data, not different with '2 % saved'",
            "wrote 0.50 bytes to its flash, the other 1.00",
            "2.68 (2.68 to 2.68)",
            "no difference",
            "260",
            "97 MB/s of writes",
            "J. Layton",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        assert!(!text.contains("slower"), "{text}");
    }

    #[test]
    fn how_much_slower_is_said() {
        let mut shown = shown(0.0);
        let compared = shown.cells[3].compared.compared.as_mut().unwrap();
        (compared.verdict, compared.ratio) = (Verdict::Slower, 0.998);
        let text = verdict(&shown, &source());
        assert!(text.contains("of data, slower with '2 % saved' by 0.2 %"), "{text}");
    }

    #[test]
    fn a_disk_that_was_too_slow_is_named() {
        let text = text(&shown(0.25), &source(), 200);
        assert!(text.contains("slower than the limit in 25 % of its operations"), "{text}");
    }

    #[test]
    fn one_chart_has_both_drives_the_published_one_and_real_data() {
        let chart = chart(&shown(0.0).cells, Path::new("/usr"));
        let names: Vec<&str> = chart.series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names.len(), 5, "{names:?}");
        assert_eq!((names[0], names[1], names[2]), (WITH, WITHOUT, DRIVE));
        let [with, without, published, ..] = &chart.series[..] else { panic!("too few") };
        assert!(with.is_joined && without.is_joined && !published.is_joined);
        assert!(with.points.iter().all(|point| point.deviation.is_some()), "no error bars");
        assert_eq!(published.points[0], Point::new(98.0, 260.0));
    }
}
