//! Goal: a spreadsheet receives numbers as numbers and text as text, never as a formula, and charts
//! that refer to the numbers beside them.
//!
//! Method: another library reads the workbook back; for charts, the XML in the file is parsed.

use std::io::{Cursor, Read};

use calamine::{Data, Reader, Xlsx};

use super::super::{Bar, Point, sample};
use super::*;

fn read(document: &Document) -> Xlsx<Cursor<Vec<u8>>> {
    Xlsx::new(Cursor::new(document.to_xlsx().expect("a workbook"))).expect("a valid workbook")
}

fn rows(book: &mut Xlsx<Cursor<Vec<u8>>>, sheet: &str) -> Vec<Vec<Data>> {
    let range = book.worksheet_range(sheet).expect("the sheet is there");
    range.rows().map(<[Data]>::to_vec).collect()
}

fn has(rows: &[Vec<Data>], expected: &[Data]) -> bool {
    rows.iter().any(|row| row.starts_with(expected))
}

#[test]
fn every_block_is_there_with_numbers_as_numbers() {
    let mut book = read(&sample::document());
    let names = ["Throughput", "Repeatability", "Latency", "Change since version 0.1"];
    assert_eq!(book.sheet_names()[..4], names);
    let text = |text: &str| Data::String(text.to_owned());
    let (name, number) = (text("Sequential write 128 KiB"), Data::Float);

    let throughput = rows(&mut book, "Throughput");
    assert_eq!(throughput[0][0], text("Throughput"));
    let row = [name.clone(), number(412.0), number(9.5), number(633.2), number(21.0)];
    assert!(has(&throughput, &row), "{throughput:?}");
    let row = [text("Trim"), number(1502.0), number(99.0), text("not supported"), Data::Empty];
    assert!(has(&throughput, &row), "{throughput:?}");

    let runs = rows(&mut book, "Repeatability");
    let header = [text("operation"), text("runs"), text("throughput (MB/s)")];
    assert!(has(&runs, &header), "{runs:?}");
    assert!(has(&runs, &[name, number(5.0), number(812.4), number(812.4 / 40.0)]), "{runs:?}");
    assert!(runs.iter().any(|row| row[0].to_string().starts_with("Warning: The processor")));

    let latency = rows(&mut book, "Latency");
    assert!(has(&latency, &[number(299.0)]), "all points are there: {}", latency.len());
    let environment = rows(&mut book, "Environment");
    assert!(has(&environment, &[text("kernel"), text("6.1.0")]), "{environment:?}");
    assert!(has(&environment, &[text("    --device /dev/nbd0 --seed 7")]), "{environment:?}");
}

#[test]
fn text_is_never_a_formula() {
    let mut document = Document::new("=1+1", "=1+1");
    for text in ["=1+1", "+1", "-1", "@SUM(1)", "{=1}", "=cmd|' /C calc'!A0", "\t=1", "http://x"] {
        let mut chart = BarChart::new(text, text, Axis::new(text, text), [text]);
        chart.group(text, vec![Bar::missing(text)]);
        let mut lines = LineChart::new(text, Axis::new(text, text), Axis::new(text, text));
        lines.line(text, vec![Point::new(1.0, 1.0)]);
        let mut table = Table::with_columns(vec![Column::left(text)]).titled(text);
        table.push(vec![text.into()]);
        let section = document.section(text);
        section.paragraph(text).note(text).pairs([(text, text)]).preformatted(text);
        section.block(table).block(chart).block(lines);
    }
    let mut book = read(&document);
    for name in book.sheet_names() {
        let formulas = book.worksheet_formula(&name).expect("the sheet is there");
        assert!(formulas.is_empty(), "{name}: {formulas:?}");
        for cell in rows(&mut book, &name).concat() {
            let number = matches!(cell, Data::Float(value) if value == 1.0);
            assert!(number || matches!(cell, Data::String(_) | Data::Empty), "{name}: {cell:?}");
        }
    }
    for (_, xml) in parts(&document, "xl/charts/chart") {
        for formula in xml.split("<c:f>").skip(1) {
            let formula = formula.split("</c:f>").next().unwrap_or_default();
            assert!(formula.contains("!$"), "not one of ours: {formula}");
        }
        assert!(!xml.contains("<c:tx><c:strRef>"), "a name became a reference: {xml}");
    }
}

#[test]
fn charts_read_their_numbers_and_deviations() {
    let charts = parts(&sample::document(), "xl/charts/chart");
    assert_eq!(charts.len(), 5);
    let bars = &charts[0].1;
    for formula in ["Throughput!$A$7:$A$11", "Throughput!$B$7:$B$11", "Throughput!$C$7:$C$11"] {
        assert!(bars.contains(formula), "no {formula} in {bars}");
    }
    assert_eq!(bars.matches("<c:errBars>").count(), 3);
    assert_eq!(charts.iter().filter(|(_, xml)| xml.contains("<c:logBase")).count(), 2);
}

#[test]
fn sheets_have_legal_and_different_names() {
    let mut names = BTreeSet::new();
    for (heading, name) in [
        ("Latency", "Latency"),
        ("latency", "latency 2"),
        ("a/b: [c]*?\\", "a b c"),
        ("", "Section"),
        ("''", "Section 2"),
        ("History", "History of it"),
        ("A heading that is longer than a sheet's name", "A heading that is longer than a"),
        ("A heading that is longer than a sheet's other", "A heading that is longer than 2"),
        ("123456789012345678901234567890𝄞", "123456789012345678901234567890"),
    ] {
        assert_eq!(sheet_name(heading, &mut names), name);
    }
    let mut document = Document::new("", "");
    for heading in ["it's", "A1", "R1C1", "1", "a!b", "漢字", "TRUE", "\u{1b}"] {
        document.section(heading).block(sample::throughput());
    }
    assert_eq!(read(&document).sheet_names().len(), 8);
    assert_eq!(read(&Document::default()).sheet_names().len(), 1);
}

#[test]
fn long_text_and_extreme_numbers_do_not_fail() {
    let long = "x𝄞".repeat(40_000);
    let mut document = Document::new(long.clone(), "");
    let mut chart = BarChart::new(&long, &long, Axis::new(&long, &long), [&long]);
    for value in [f64::NAN, f64::INFINITY, f64::MAX, f64::MIN_POSITIVE] {
        chart.group(&long, vec![Number::new(value, 12).with_deviation(value).into()]);
    }
    document.section(&long).paragraph(&long).block(chart);
    let mut book = read(&document);
    let name = book.sheet_names()[0].clone();
    let cells = rows(&mut book, &name).concat();
    assert!(cells.contains(&Data::Float(f64::MAX)), "{:?}", cells.len());
    let mut empty = Document::new("", "");
    let axis = || Axis::new("", "");
    empty.section("").block(LineChart::new("", axis(), axis())).block(Table::new(&[]));
    read(&empty);
}

#[test]
fn the_same_document_gives_the_same_bytes() {
    let bytes = sample::document().to_xlsx().expect("a workbook");
    assert_eq!(bytes, sample::document().to_xlsx().expect("a workbook"));
    let (_, properties) = parts(&sample::document(), "docProps/core.xml").remove(0);
    assert_eq!(properties.matches("2000-01-01T00:00:00Z").count(), 2, "{properties}");
    // Modification time of the first file in the archive: the earliest time that the format
    // supports.
    assert_eq!(bytes[10..14], [0, 0, 0x21, 0]);
}

/// Returns the files of a workbook whose path starts with `start`, in the order of the archive's
/// directory.
fn parts(document: &Document, start: &str) -> Vec<(String, String)> {
    let bytes = document.to_xlsx().expect("a workbook");
    let end = bytes.windows(4).rposition(|window| window == b"PK\x05\x06").expect("an archive");
    let u16_at = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let u32_at = |at: usize| u16_at(at) | u16_at(at + 2) << 16;
    let (mut found, mut entry) = (Vec::new(), u32_at(end + 16));
    while bytes[entry..].starts_with(b"PK\x01\x02") {
        let (packed, name_bytes, local) =
            (u32_at(entry + 20), u16_at(entry + 28), u32_at(entry + 42));
        let name = String::from_utf8_lossy(&bytes[entry + 46..][..name_bytes]).into_owned();
        if name.starts_with(start) {
            let data = local + 30 + u16_at(local + 26) + u16_at(local + 28);
            let mut text = String::new();
            let mut unpacked = flate2::read::DeflateDecoder::new(&bytes[data..][..packed]);
            unpacked.read_to_string(&mut text).expect("deflated text");
            found.push((name, text));
        }
        entry += 46 + name_bytes + u16_at(entry + 30) + u16_at(entry + 32);
    }
    assert!(!found.is_empty(), "nothing called {start}");
    found
}

#[test]
fn dots_keep_their_deviations_in_a_workbook() {
    let mut document = Document::default();
    let mut chart = LineChart::new("T", Axis::new("saved", "%"), Axis::new("rate", "MB/s"));
    chart.line("a", vec![Point::new(0.0, 1.0), Point::new(50.0, 2.0)]);
    chart.dots(
        "b",
        vec![Point { deviation: Some(0.5), ..Point::new(0.0, 7.0) }, Point::new(50.0, 8.0)],
    );
    document.section("x").block(chart);
    let charts = parts(&document, "xl/charts/chart");
    let xml = &charts[0].1;
    assert_eq!(xml.matches("<c:errBars>").count(), 1, "{xml}");
    assert!(xml.contains("<c:symbol val=\"circle\"/>") && xml.contains("<a:noFill/>"), "{xml}");
}
