//! A document as GitHub Markdown. Charts become tables of their numbers.
//!
//! Text is escaped: it can neither end a table cell nor become markup.

use super::chart::LineChart;
use super::document::{Block, Document, NoteKind, printable};
use super::table::{Align, Table};

/// Maximum number of rows in a line chart's table.
const LINE_ROWS_MAX: usize = 20;

/// Minimum number of backticks around preformatted text.
const FENCE_MIN: usize = 3;

impl Document {
    /// Returns the document as Markdown, ending with a line break.
    pub fn to_markdown(&self) -> String {
        let mut blocks = vec![format!("# {}\n", inline(&self.title))];
        blocks.push(paragraph(&self.lead));
        for section in &self.sections {
            blocks.push(format!("## {}\n", inline(&section.heading)));
            blocks.extend(section.blocks.iter().map(block));
        }
        blocks.retain(|block| !block.is_empty());
        blocks.join("\n")
    }
}

fn block(block: &Block) -> String {
    match block {
        Block::Paragraph(text) => paragraph(text),
        Block::Note { kind, text } => {
            let kind = match kind {
                NoteKind::Note => "NOTE",
                NoteKind::Warning => "WARNING",
            };
            format!("> [!{kind}]\n> {}", paragraph(text))
        }
        Block::Table(table) => titled(table),
        Block::Pairs(pairs) => {
            let mut table = Table::new(&[("", Align::Left), ("", Align::Left)]);
            for (key, value) in pairs {
                table.row(vec![key.clone(), value.clone()]);
            }
            rows(&table)
        }
        Block::Bars(chart) => titled(&chart.to_table()),
        Block::Lines(chart) => line_table(chart),
        Block::Preformatted(text) => fenced(text),
    }
}

fn line_table(chart: &LineChart) -> String {
    let table = chart.to_table(LINE_ROWS_MAX);
    let (shown, places) = (table.rows().len(), chart.places().len());
    if places <= shown {
        return titled(&table);
    }
    let title = format!("{} ({shown} of {places} points)", chart.title);
    titled(&table.titled(title))
}

fn titled(table: &Table) -> String {
    match table.title() {
        "" => rows(table),
        title => format!("**{}**\n\n{}", inline(title), rows(table)),
    }
}

fn rows(table: &Table) -> String {
    let columns = table.columns();
    if columns.is_empty() {
        return String::new();
    }
    let mut text = row(columns.iter().map(super::table::Column::heading));
    let rule = columns.iter().map(|column| match column.align {
        Align::Left => "---",
        Align::Right => "---:",
    });
    text += &format!("| {} |\n", rule.collect::<Vec<_>>().join(" | "));
    for cells in table.rows() {
        text += &row(cells.iter().zip(columns).map(|(cell, column)| cell.text(column)));
    }
    text
}

fn row(cells: impl Iterator<Item = String>) -> String {
    let cells: Vec<_> = cells.map(|cell| inline(&cell)).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// Returns a paragraph as one line with a line break; an empty paragraph is omitted.
fn paragraph(text: &str) -> String {
    let text = inline(text);
    if text.is_empty() {
        return text;
    }
    // Characters that start a list, a heading, a rule or a quotation at the beginning of a line.
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(digits);
    let marks: &[char] = if digits == 0 { &['-', '+', '#', '=', '~'] } else { &['.', ')'] };
    let escape = if rest.starts_with(marks) { "\\" } else { "" };
    format!("{number}{escape}{rest}\n")
}

/// Returns text as one line, with all Markdown and HTML markup characters escaped.
fn inline(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for word in printable(text).split_whitespace() {
        if !escaped.is_empty() {
            escaped.push(' ');
        }
        for c in word.chars() {
            if r"\`*_[]<>|&~".contains(c) {
                escaped.push('\\');
            }
            escaped.push(c);
        }
    }
    escaped
}

/// Returns preformatted text between fences that do not occur in it.
fn fenced(text: &str) -> String {
    let text = printable(text);
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(FENCE_MIN.max(longest + 1));
    format!("{fence}text\n{}\n{fence}\n", text.trim_end_matches('\n'))
}

#[cfg(test)]
mod tests {
    //! Goal: every block is present, and untrusted text never becomes markup.
    use super::super::sample;
    use super::*;

    #[test]
    fn every_block_is_there() {
        let text = sample::document().to_markdown();
        for expected in sample::EXPECTED {
            assert!(text.contains(expected), "no {expected:?} in\n{text}");
        }
        for expected in [
            "# Pumice against its neighbours\n\nThree devices",
            "\n\n## Throughput\n\nHigher",
            "\n> [!WARNING]\n> The processor",
            "\n| operation | runs | throughput (MB/s) |",
            "\n| --- | ---: | ---: |",
            "| 812.4 ± 20.3 |",
            "\n| Trim | 1502.0 ± 99.0 | not supported |  |\n",
            "**Latency over time (20 of 300 points)**",
            "\n```text\npumice bench run",
        ] {
            assert!(text.contains(expected), "no {expected:?} in\n{text}");
        }
    }

    #[test]
    fn text_cannot_become_markup() {
        for (text, escaped) in [
            ("a|b", r"a\|b"),
            ("<script>", r"\<script\>"),
            ("*x* _y_ `z` [l](u)", r"\*x\* \_y\_ \`z\` \[l\](u)"),
            ("a\\|b\n\n## c\r\n", r"a\\\|b ## c"),
            ("\u{1b}[1m &amp;", "\u{fffd}\\[1m \\&amp;"),
        ] {
            assert_eq!(inline(text), escaped);
        }
        for (text, escaped) in
            [("- a", "\\- a\n"), ("# a", "\\# a\n"), ("12. a", "12\\. a\n"), ("1 - a", "1 - a\n")]
        {
            assert_eq!(paragraph(text), escaped);
        }
        assert_eq!(fenced("a ```` b\n"), "`````text\na ```` b\n`````\n");
    }
}
