//! A document as text for a terminal. Lines have at most 100 columns unless a width is specified;
//! charts are bars of block characters.
//!
//! Only preformatted text may be wider. A table that is too wide is split between columns into
//! several tables, each with the first column. Cells that are too wide by themselves are wrapped.
//! Control characters are removed, so that an untrusted name cannot control the terminal.

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, Table as Layout, Width, presets,
};

use super::chart::{Bar, BarChart, LineChart, Scale};
use super::document::{Block, Document, printable};
use super::number::NO_NUMBER;
use super::table::{Table, lines};

/// Number of columns in a line, unless a width is specified.
const WIDTH: u16 = 100;

/// Minimum number of columns in a line: enough for names, a bar and its number.
const WIDTH_MIN: u16 = 40;

/// Number of blanks between two columns of a table.
const GAP: u16 = 2;

/// Returns the maximum width of a table's first column, which leaves space for another column.
fn first_width_max(width: u16) -> u16 {
    width * 2 / 5
}

/// Maximum length of a bar in columns, and minimum length of a readable scale.
const BAR_WIDTH_MAX: u16 = 50;
const BAR_WIDTH_MIN: u16 = 10;

/// Returns the maximum width of group and series names beside the bars.
fn name_width_max(width: u16) -> u16 {
    (width / 4).min(24)
}

/// Maximum number of rows in a line chart's table.
const LINE_ROWS_MAX: usize = 20;

impl Document {
    /// Returns the document as text that ends with a line break. Lines have at most 100 columns,
    /// except in preformatted blocks. Empty headings are omitted.
    pub fn to_text(&self) -> String {
        self.to_text_within(WIDTH)
    }

    /// Returns the document as text with lines of at most `width` columns, which must be 40 or
    /// more.
    pub fn to_text_within(&self, width: u16) -> String {
        let width = width.max(WIDTH_MIN);
        let mut blocks = vec![underlined(&self.title, '═', width)];
        if !self.lead.is_empty() {
            blocks.push(wrapped("", &self.lead, width));
        }
        for section in &self.sections {
            blocks.push(underlined(&section.heading, '─', width));
            blocks.extend(section.blocks.iter().map(|one| block(one, width)));
        }
        blocks.retain(|block| !block.is_empty());
        printable(&blocks.join("\n"))
    }
}

impl Table {
    /// Returns the text of [`Table::to_text`] in lines of at most `width` columns, which must be 40
    /// or more. Cells are wrapped. Columns that do not fit are printed below, in parts that each
    /// repeat the first column.
    pub fn to_text_within(&self, width: u16) -> String {
        cut(self, width.max(WIDTH_MIN))
    }
}

fn block(block: &Block, width: u16) -> String {
    match block {
        Block::Paragraph(text) => wrapped("", text, width),
        Block::Note { kind, text } => wrapped(&format!("{}:", kind.word()), text, width),
        Block::Table(table) => titled(table.title(), cut(table, width), width),
        Block::Pairs(pairs) => pairs_text(pairs, width),
        Block::Bars(chart) => bars(chart, width),
        Block::Lines(chart) => line_table(chart, width),
        Block::Preformatted(text) => text.lines().map(|line| format!("    {line}\n")).collect(),
    }
}

/// Returns a heading underlined with `character`; empty for an empty heading.
fn underlined(heading: &str, character: char, width: u16) -> String {
    if heading.is_empty() {
        return String::new();
    }
    let heading = wrapped("", heading, width);
    let width = heading.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    format!("{heading}{}\n", character.to_string().repeat(width))
}

fn titled(title: &str, text: String, width: u16) -> String {
    if title.is_empty() { text } else { wrapped("", title, width) + &text }
}

/// Wraps `text` to the width of a line; `mark` precedes the first line.
fn wrapped(mark: &str, text: &str, width: u16) -> String {
    let mark = if mark.is_empty() { String::new() } else { format!("{mark} ") };
    let indent = " ".repeat(mark.chars().count());
    let options = textwrap::Options::new(width.into())
        .initial_indent(&mark)
        .subsequent_indent(&indent)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::fill(&printable(text), options) + "\n"
}

fn pairs_text(pairs: &[(String, String)], width: u16) -> String {
    let mut table = Table::new(&[("", super::Align::Left), ("", super::Align::Left)]);
    for (key, value) in pairs {
        table.row(vec![key.clone(), value.clone()]);
    }
    cut(&table, width)
}

/// Returns a layout that wraps at the width of a line.
fn layout(width: u16) -> Layout {
    let mut layout = Layout::new();
    layout.load_preset(presets::NOTHING);
    layout.set_content_arrangement(ContentArrangement::Dynamic);
    layout.set_width(width + GAP);
    layout
}

fn constrain(layout: &mut Layout, index: usize, constraint: ColumnConstraint) {
    if let Some(column) = layout.column_mut(index) {
        column.set_constraint(constraint);
    }
}

/// Splits a table into parts that fit the line width, each with the first column.
fn cut(table: &Table, line: u16) -> String {
    let clean = cleaned(table);
    let columns = clean.columns().len();
    if columns == 0 {
        return String::new();
    }
    let widths = clean.laid_out(0..columns).column_max_content_widths();
    let first = widths[0].min(first_width_max(line));
    let first = if columns == 1 { line } else { first };
    let mut parts = Vec::new();
    let mut picked = vec![0];
    let mut used = first;
    for (index, width) in widths.iter().enumerate().skip(1) {
        let width = (*width).min(line - first - GAP);
        if used + GAP + width > line && picked.len() > 1 {
            parts.push(part(&clean, &picked, first, line));
            picked.truncate(1);
            used = first;
        }
        picked.push(index);
        used += GAP + width;
    }
    parts.push(part(&clean, &picked, first, line));
    parts.join("\n")
}

/// Returns these columns of a table. The first is at most `first` columns wide.
fn part(table: &Table, picked: &[usize], first: u16, width: u16) -> String {
    let mut layout = table.laid_out(picked.iter().copied());
    layout.set_content_arrangement(ContentArrangement::Dynamic);
    layout.set_width(width + GAP);
    constrain(&mut layout, 0, ColumnConstraint::UpperBoundary(Width::Fixed(first + GAP)));
    lines(&layout)
}

/// Returns the table without control characters, which would disturb the layout.
fn cleaned(table: &Table) -> Table {
    use super::table::Cell;
    let clean = |cell: &Cell| match cell {
        Cell::Text(text) => Cell::Text(printable(text)),
        other => other.clone(),
    };
    let mut result = Table::with_columns(table.columns().to_vec());
    for row in table.rows() {
        result.push(row.iter().map(clean).collect());
    }
    result
}

fn line_table(chart: &LineChart, width: u16) -> String {
    let table = chart.to_table(LINE_ROWS_MAX);
    let places = chart.places().len();
    let mut title = chart.title.clone();
    if !chart.y.heading().is_empty() {
        title += &format!(": {}", chart.y.heading());
    }
    if places > table.rows().len() {
        title += &format!("; {} of {places} points", table.rows().len());
    }
    titled(&title, cut(&table, width), width)
}

/// Returns horizontal bars: group, series, bar, number. Bars of negative numbers extend to the
/// left, in a column that is added only if needed.
fn bars(chart: &BarChart, width: u16) -> String {
    let scale = BarScale::new(chart, width);
    let mut layout = layout(width);
    for group in chart.groups() {
        for (index, (bar, series)) in group.bars.iter().zip(&chart.series).enumerate() {
            let group = if index == 0 { printable(&group.name) } else { String::new() };
            let mut row = vec![group, printable(series)];
            row.extend(scale.has_left.then(|| scale.left(bar)));
            row.extend([scale.right(bar), printable(&bar_text(bar))]);
            layout.add_row(row);
        }
    }
    for (index, column) in layout.column_iter_mut().enumerate() {
        let is_left = scale.has_left && index == 2;
        column.set_padding((0, if is_left { 0 } else { GAP }));
        column.set_cell_alignment(if is_left { CellAlignment::Right } else { CellAlignment::Left });
    }
    for index in 0..2 {
        let widest = Width::Fixed(name_width_max(width) + GAP);
        let widest = ColumnConstraint::UpperBoundary(widest);
        constrain(&mut layout, index, widest);
    }
    let heading = [chart.title.as_str(), &chart.axis.heading()];
    let heading: Vec<&str> = heading.into_iter().filter(|part| !part.is_empty()).collect();
    titled(&heading.join(": "), lines(&layout), width)
}

/// Returns the label, the number, or a dash.
pub(crate) fn bar_text(bar: &Bar) -> String {
    match &bar.number {
        _ if !bar.label.is_empty() => bar.label.clone(),
        Some(number) => number.text(),
        None => NO_NUMBER.to_owned(),
    }
}

/// Maps heights to columns.
struct BarScale {
    scale: Scale,
    /// Base of the bars: zero, or, on a logarithmic axis, the power of ten below the lowest bar.
    floor: f64,
    columns_per_unit: f64,
    /// Whether any bar is negative.
    has_left: bool,
}

impl BarScale {
    fn new(chart: &BarChart, width: u16) -> Self {
        let scale = chart.axis.scale;
        let bars = || chart.groups().iter().flat_map(|group| &group.bars);
        let heights = || bars().filter_map(Bar::height);
        let floor = match scale {
            Scale::Log | Scale::Doubling => log_floor(heights()),
            Scale::Linear | Scale::Percentile => 0.0,
        };
        let mut this = Self { scale, floor, columns_per_unit: 1.0, has_left: false };
        let lengths = || heights().map(|height| this.length(height));
        let lowest = lengths().fold(0.0, f64::min);
        let range = lengths().fold(0.0, f64::max) - lowest;
        this.has_left = lowest < 0.0;
        let text = bars().map(|bar| bar_text(bar).chars().count()).max().unwrap_or(0);
        let name = |names: &mut dyn Iterator<Item = &String>| {
            let longest = names.map(|name| name.chars().count()).max().unwrap_or(0);
            longest.min(name_width_max(width).into())
        };
        let names = name(&mut chart.groups().iter().map(|group| &group.name))
            + name(&mut chart.series.iter());
        let rest = usize::from(width).saturating_sub(names + text + 3 * usize::from(GAP));
        let width = rest.clamp(BAR_WIDTH_MIN.into(), BAR_WIDTH_MAX.into());
        this.columns_per_unit = if range > 0.0 { width as f64 / range } else { 0.0 };
        this
    }

    /// Returns the signed length in columns of a bar with this height.
    fn length(&self, height: f64) -> f64 {
        let units = match self.scale {
            Scale::Log | Scale::Doubling if height > 0.0 => (height / self.floor).log10(),
            Scale::Log | Scale::Doubling => 0.0,
            Scale::Linear | Scale::Percentile => height,
        };
        units * self.columns_per_unit
    }

    /// Returns the part of a bar below zero.
    fn left(&self, bar: &Bar) -> String {
        let length = bar.height().map_or(0.0, |height| self.length(height));
        "█".repeat((-length).max(0.0).round() as usize)
    }

    /// Returns the part of a bar above zero.
    fn right(&self, bar: &Bar) -> String {
        let length = bar.height().map_or(0.0, |height| self.length(height));
        blocks(length.max(0.0))
    }
}

/// Returns the power of ten below the lowest positive height, so that the lowest bar is visible.
pub(crate) fn log_floor(heights: impl Iterator<Item = f64>) -> f64 {
    let lowest = heights.filter(|height| *height > 0.0).fold(f64::INFINITY, f64::min);
    if lowest.is_infinite() {
        return 1.0;
    }
    10f64.powf((lowest / 1.25).log10().floor())
}

/// Returns a bar that is `length` columns long, in steps of an eighth.
fn blocks(length: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (length * 8.0).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

#[cfg(test)]
mod tests {
    //! Goal: text fits into its columns, includes every block, and contains no control characters.
    use super::super::sample;
    use super::super::{Align, Axis, Number};
    use super::*;

    #[test]
    fn every_block_is_there_within_the_columns() {
        for width in [40, 60, 80] {
            for line in sample::document().to_text_within(width).lines() {
                assert!(line.chars().count() <= usize::from(width), "wider than {width}: {line}");
            }
        }
        let text = sample::document().to_text();
        for line in text.lines() {
            assert!(line.chars().count() <= usize::from(WIDTH), "too wide: {line}");
            assert_eq!(line.trim_end(), line);
        }
        for expected in sample::EXPECTED {
            assert!(text.contains(expected), "no {expected:?} in\n{text}");
        }
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn headings_are_underlined_and_paragraphs_wrapped() {
        let mut document = Document::new("Title", "word ".repeat(30));
        document.section("Part").warning("mind ".repeat(40)).preformatted("a\n  b");
        let text = document.to_text();
        assert!(
            text.starts_with(&format!("Title\n═════\n\n{}word\n", "word ".repeat(19))),
            "{text}"
        );
        assert!(text.contains("\nWarning: mind mind"), "{text}");
        assert!(text.contains("\n         mind mind"), "{text}");
        assert!(text.ends_with("\n\n    a\n      b\n"), "{text}");
    }

    #[test]
    fn a_document_without_headings_begins_with_its_blocks() {
        let mut document = Document::default();
        document.section("").pairs([("name", "word ".repeat(20)), ("other", "word".into())]);
        let words = "word ".repeat(18);
        let text = format!("name   {}\n       word word\nother  word\n", words.trim_end());
        assert_eq!(document.to_text(), text);
    }

    #[test]
    fn a_wide_table_is_cut_between_columns() {
        let names: Vec<String> = (0..12).map(|index| format!("number {index:05}")).collect();
        let mut columns = vec![("name", Align::Left)];
        columns.extend(names.iter().map(|name| (name.as_str(), Align::Right)));
        let mut table = Table::new(&columns);
        table.row((0..13).map(|index| format!("cell {index}")).collect());
        let text = cut(&table, WIDTH);
        let headers: Vec<_> = text.lines().filter(|line| line.starts_with("name ")).collect();
        assert_eq!(headers.len(), 2, "{text}");
        for name in &names {
            assert_eq!(text.matches(name.as_str()).count(), 1, "{text}");
        }
    }

    #[test]
    fn bars_are_as_long_as_their_numbers() {
        let mut chart = BarChart::new("T", "op", Axis::new("rate", "MB/s"), ["a"]);
        chart.group("x", vec![Number::new(100.0, 0).with_deviation(3.0).into()]);
        chart.group("y", vec![Number::new(25.5, 0).into()]);
        chart.group("z", vec![Bar::missing("")]);
        let text = bars(&chart, WIDTH);
        let expected = format!(
            "T: rate, MB/s\nx  a  {}  100 ± 3\ny  a  {}▊{}  26\nz  a  {}  –\n",
            "█".repeat(50),
            "█".repeat(12),
            " ".repeat(37),
            " ".repeat(50)
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn negative_bars_stand_left_of_the_others() {
        let mut chart = BarChart::new("", "op", Axis::new("change", "%"), ["a"]);
        chart.group("x", vec![Number::new(-10.0, 0).into()]);
        chart.group("y", vec![Number::new(40.0, 0).into()]);
        let text = bars(&chart, WIDTH);
        let (left, right) = ("█".repeat(10), "█".repeat(40));
        let expected = format!(
            "change, %\nx  a  {left}{}  -10\ny  a  {}{right}  40\n",
            " ".repeat(40),
            " ".repeat(10)
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn logarithmic_bars_begin_at_a_power_of_ten() {
        let axis = Axis::new("", "").with_scale(Scale::Log);
        let mut chart = BarChart::new("", "op", axis, ["a"]);
        for value in [20.0, 200.0, 100_000.0, 0.0] {
            chart.group("x", vec![Number::new(value, 0).into()]);
        }
        let text = bars(&chart, WIDTH);
        let lengths: Vec<_> = text.lines().map(|line| line.matches('█').count()).collect();
        assert_eq!(lengths, [0, 3, 16, 50, 0], "{text}");
    }

    #[test]
    fn control_characters_do_not_get_through() {
        let evil = "\u{1b}[31mred\u{7}";
        let mut document = Document::new(evil, evil);
        document.section(evil).paragraph(evil).pairs([(evil, evil)]).preformatted(evil);
        let mut table = Table::new(&[(evil, Align::Left)]).titled(evil);
        table.row(vec![evil.into()]);
        let mut chart = BarChart::new(evil, evil, Axis::new(evil, evil), [evil]);
        chart.group(evil, vec![Bar::missing(evil)]);
        document.sections[0].block(table).block(chart);
        let text = document.to_text();
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }
}
