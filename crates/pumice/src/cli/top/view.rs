//! The display of `pumice top`: a table of the drives, and the details of the selected one. Only
//! draws, on terminals of any size, even too small ones.
//!
//! A number is shown whole or not at all: a part of it would be a different number. Cells that do
//! not fit are left out, the least important first; only names and words are shortened.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table};

use super::watching::Watched;
use crate::cli::{output, snapshot};
use crate::watch::{DriveSnapshot, Rates};
use pumice_drive::base::units::format_size;
use pumice_report::Align;

/// Parts of the capacity: name, sign, colour.
const SPACE: [(&str, &str, Color); 4] = [
    ("live", "█", Color::Blue),
    ("dead", "▓", Color::Yellow),
    ("free", "░", Color::Gray),
    ("reserve", "·", Color::DarkGray),
];

/// Columns between two columns of a table.
const GAP: usize = 2;

/// Minimum height at which all details fit.
const TALL: u16 = 27;

/// A column of a table.
struct Column {
    name: &'static str,
    /// Its minimum width, so that the layout does not change with every number; a cell may be
    /// wider.
    width: usize,
    /// Where not all columns fit, those of the lowest ranks are shown.
    rank: u8,
    is_number: bool,
}

const fn text_column(name: &'static str, width: usize, rank: u8) -> Column {
    Column { name, width, rank, is_number: false }
}

const fn number_column(name: &'static str, width: usize, rank: u8) -> Column {
    Column { name, width, rank, is_number: true }
}

/// Columns of the table of drives.
const COLUMNS: [Column; 10] = [
    text_column("drive", 12, 0),
    number_column("wr MB/s", 7, 2),
    number_column("md MB/s", 7, 5),
    number_column("rd MB/s", 7, 6),
    number_column("req/s", 5, 9),
    number_column("stored", 6, 8),
    number_column("WA", 4, 7),
    number_column("wr p99", 7, 3),
    number_column("used %", 6, 4),
    text_column("state", 7, 1),
];

/// Columns of the table of commands.
const COMMAND_COLUMNS: [Column; 6] = [
    text_column("command", 12, 0),
    number_column("req/s", 5, 1),
    number_column("MB/s", 5, 2),
    number_column("p50", 7, 4),
    number_column("p99", 7, 3),
    number_column("failed", 6, 5),
];

/// Width of a drive's name up to which it takes precedence over columns.
const NAME_WIDTH: usize = 24;

/// Returns the indices and widths of the columns that fit `width`. The first column has the width
/// that the others leave.
fn fitting(columns: &[Column], rows: &[Vec<String>], width: usize) -> Vec<(usize, usize)> {
    let measured = |at: usize| {
        let cells = rows.iter().map(|row| Line::from(row[at].as_str()).width());
        let least = columns[at].width.max(columns[at].name.len());
        cells.max().unwrap_or(0).max(least)
    };
    let mut ranked: Vec<usize> = (1..columns.len()).collect();
    ranked.sort_by_key(|at| columns[*at].rank);
    let name = measured(0);
    let mut left = width.saturating_sub(name.min(NAME_WIDTH));
    let mut picked = Vec::new();
    for at in ranked {
        let needed = measured(at) + GAP;
        if needed > left {
            break;
        }
        left -= needed;
        picked.push((at, needed - GAP));
    }
    picked.push((0, (name.min(NAME_WIDTH) + left).min(name).min(width)));
    picked.sort_unstable();
    picked
}

/// Returns the end of a name that is too long, after an ellipsis.
fn shortened(name: &str, width: usize) -> String {
    let mut rest = name.chars();
    while Line::from(rest.as_str()).width() + 1 > width && rest.next().is_some() {}
    if Line::from(name).width() <= width {
        name.to_owned()
    } else {
        format!("…{}", rest.as_str())
    }
}

/// Joins as many of `parts` as fit `width`, starting with the first.
fn joined(parts: Vec<String>, separator: &str, width: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let more = if line.is_empty() { part } else { format!("{separator}{part}") };
        if Line::from(line.as_str()).width() + Line::from(more.as_str()).width() > width {
            break;
        }
        line += &more;
    }
    line
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, drives: &[Watched], chosen: usize) {
    let rows = drives.len() as u16 + 1;
    let [list, rest, keys] = Layout::vertical([
        Constraint::Length(rows.min(frame.area().height / 3 + 2)),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    table(frame, list, drives, chosen);
    if let Some(drive) = drives.get(chosen) {
        detail(frame, rest, drive);
    }
    let hint = if drives.len() > 1 { " q quit   up/down drive" } else { " q quit" };
    frame.render_widget(Paragraph::new(hint).dim(), keys);
}

/// Returns the cells of a drive in the table.
fn cells(drive: &Watched) -> Vec<String> {
    let name = || drive.name.clone();
    let Some(now) = drive.now.as_ref().map(|now| &now.drives[0]) else {
        let mut cells = vec![String::new(); COLUMNS.len()];
        (cells[0], cells[9]) = (name(), "no answer".into());
        return cells;
    };
    let rates = drive.rates.back();
    let mega =
        |value: fn(&Rates) -> f64| rates.map_or("-".into(), |rates| short(value(rates) / 1e6));
    let share = |value: Option<f64>| value.map_or("-".into(), short);
    let p99 = rates.and_then(|rates| rates.commands[1].p99_ns);
    vec![
        name(),
        mega(|rates| rates.host_write_bytes),
        mega(|rates| rates.media_write_bytes),
        mega(|rates| rates.host_read_bytes),
        rates.map_or("-".into(), |rates| short(rates.requests)),
        share(rates.and_then(|rates| rates.stored_fraction)),
        share(rates.and_then(|rates| rates.write_amplification)),
        p99.map_or("-".into(), latency),
        format!("{:.1}", now.info.used_percent),
        state(now).into(),
    ]
}

fn state(drive: &DriveSnapshot) -> &'static str {
    let alerts = &drive.overview.alerts;
    if alerts.iter().any(|alert| alert.refuses_writes) {
        "refuses writes"
    } else if alerts.is_empty() {
        "healthy"
    } else {
        "attention"
    }
}

fn state_colour(state: &str) -> Color {
    if state == "healthy" { Color::Green } else { Color::Red }
}

fn table(frame: &mut Frame<'_>, area: Rect, drives: &[Watched], chosen: usize) {
    let rows: Vec<_> = drives.iter().map(cells).collect();
    let picked = fitting(&COLUMNS, &rows, area.width.into());
    let drawn = drawn(&COLUMNS, rows, &picked)
        .into_iter()
        .enumerate()
        .map(|(number, row)| if number == chosen { row.add_modifier(Modifier::BOLD) } else { row });
    frame.render_widget(laid_out(&COLUMNS, drawn, &picked), area);
}

/// Returns rows with the picked columns.
fn drawn(
    columns: &'static [Column],
    rows: Vec<Vec<String>>,
    picked: &[(usize, usize)],
) -> Vec<Row<'static>> {
    let cell = |row: &Vec<String>, (at, width): (usize, usize)| {
        let text = if at == 0 { shortened(&row[at], width) } else { row[at].clone() };
        let cell = aligned(&columns[at], text.clone());
        if columns[at].name == "state" { cell.fg(state_colour(&text)) } else { cell }
    };
    let row = |row: Vec<String>| Row::new(picked.iter().map(|column| cell(&row, *column)));
    rows.into_iter().map(row).collect()
}

fn aligned(column: &Column, text: String) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(if column.is_number { line.right_aligned() } else { line })
}

/// Returns a table with the heading of the picked columns.
fn laid_out(
    columns: &'static [Column],
    rows: impl IntoIterator<Item = Row<'static>>,
    picked: &[(usize, usize)],
) -> Table<'static> {
    let heading = |(at, _): &(usize, usize)| aligned(&columns[*at], columns[*at].name.into());
    let widths = picked.iter().map(|(_, width)| Constraint::Length(*width as u16));
    let head = Row::new(picked.iter().map(heading)).dim();
    Table::new(rows, widths).header(head).column_spacing(GAP as u16)
}

/// Draws the details of one drive.
fn detail(frame: &mut Frame<'_>, area: Rect, drive: &Watched) {
    let Some(now) = drive.now.as_ref().map(|now| &now.drives[0]) else {
        let text = format!("{}: the server does not answer", drive.name);
        frame.render_widget(Paragraph::new(text).red(), area);
        return;
    };
    let info = &now.info;
    let title = format!(
        " {}: {} disk on {}, {} ",
        now.name,
        format_size(info.size_bytes),
        format_size(info.capacity_bytes),
        info.codec
    );
    let width = usize::from(area.width).max(1);
    let alerts = now.overview.alerts.iter();
    let alerts = alerts.flat_map(|alert| textwrap::wrap(&alert.what, width));
    let alerts: Vec<Line<'_>> = alerts.map(Line::from).collect();
    // The commands keep their height, and the graphs shrink.
    let (graph_height, space_height) = if area.height < TALL { (2, 3) } else { (4, 4) };
    let lines = facts_of(now, drive.rates.back()).into_iter();
    let lines: Vec<_> = lines.map(|parts| Line::from(joined(parts, ", ", width))).collect();
    let [alerts_area, writes, medium, space_area, facts, commands] = Layout::vertical([
        Constraint::Length(alerts.len() as u16),
        Constraint::Length(graph_height),
        Constraint::Length(graph_height),
        Constraint::Length(space_height),
        Constraint::Length(lines.len() as u16),
        Constraint::Min(0),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(alerts).red(), alerts_area);
    graph(frame, writes, drive, &title, Color::Blue, |rates| rates.host_write_bytes);
    graph(frame, medium, drive, " medium ", Color::Red, |rates| rates.media_write_bytes);
    space(frame, space_area, now);
    frame.render_widget(Paragraph::new(lines), facts);
    if let Some(rates) = drive.rates.back() {
        command_table(frame, commands, rates);
    }
}

fn graph(
    frame: &mut Frame<'_>,
    area: Rect,
    drive: &Watched,
    title: &str,
    colour: Color,
    value: fn(&Rates) -> f64,
) {
    let width = usize::from(area.width);
    let now = drive.rates.back().map_or(0.0, value) / 1e6;
    let now = format!(" {} MB/s ", short(now));
    let now = if now.len() > width { String::new() } else { now };
    let title = joined(vec![title.to_owned()], "", width.saturating_sub(now.len()));
    let block = Block::new().borders(Borders::TOP).title(title);
    let skipped = drive.rates.len().saturating_sub(width);
    // Host and medium share one scale, so that they can be compared.
    let highest = drive
        .rates
        .iter()
        .skip(skipped)
        .map(|rates| rates.host_write_bytes.max(rates.media_write_bytes) as u64)
        .max();
    let values: Vec<u64> =
        drive.rates.iter().skip(skipped).map(|rates| value(rates) as u64).collect();
    let block = block.title(Line::from(now).right_aligned());
    let graph = Sparkline::default().block(block).data(&values).max(highest.unwrap_or(1).max(1));
    frame.render_widget(graph.style(Style::new().fg(colour)), area);
}

/// Returns the use of the capacity in bytes, in the order of [`SPACE`].
fn parts(drive: &DriveSnapshot) -> [u64; 4] {
    let overview = &drive.overview;
    [overview.live_bytes, overview.dead_bytes, overview.free_bytes, overview.reserve_bytes]
}

fn space(frame: &mut Frame<'_>, area: Rect, drive: &DriveSnapshot) {
    let block = Block::new().borders(Borders::TOP).title(" space ");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let (parts, total) = (parts(drive), drive.info.capacity_bytes.max(1));
    let mut bar = Vec::new();
    let (mut sum, mut done) = (0, 0);
    for (bytes, (_, sign, colour)) in parts.into_iter().zip(SPACE) {
        sum += u128::from(bytes);
        // Values from another machine may be inconsistent.
        let end = sum.min(u128::from(total)) * u128::from(inner.width) / u128::from(total);
        let end = end as usize;
        bar.push(Span::styled(sign.repeat(end.saturating_sub(done)), Style::new().fg(colour)));
        done = done.max(end);
    }
    let mut key = Vec::new();
    let mut left = usize::from(inner.width);
    for (bytes, (name, sign, colour)) in parts.into_iter().zip(SPACE) {
        let text = format!(" {name} {}", format_size(bytes));
        let Some(rest) = left.checked_sub(1 + text.len()) else { break };
        left = rest.saturating_sub(3);
        key.push(Span::styled(sign, Style::new().fg(colour)));
        key.push(Span::raw(text + "   "));
    }
    frame.render_widget(Paragraph::new(vec![Line::from(bar), Line::from(key)]), inner);
}

/// Returns lines of facts, each in parts: three, and one of snapshots if there are any.
fn facts_of(drive: &DriveSnapshot, rates: Option<&Rates>) -> Vec<Vec<String>> {
    let info = &drive.info;
    let moved = rates.map_or(0.0, |rates| rates.moved_bytes / 1e6);
    let debt = drive.overview.gc_debt_segments;
    // There is no share before the first write.
    let share = |share: f64| if info.host_bytes > 0 { format!("{share:.4}") } else { "-".into() };
    let works = if debt > 0 { format!("{debt} segments to free") } else { "idle".into() };
    let mut lines = vec![
        vec![
            format!("life: {} written", format_size(info.host_bytes)),
            format!("stored fraction {}", share(info.stored_fraction)),
            format!("write amplification {}", share(info.write_amplification)),
        ],
        vec![
            format!("garbage collection {works}"),
            format!("{} MB/s moved", short(moved)),
            format!("{} segments freed", info.operations.gc_victims),
            format!("{} moved in total", format_size(info.moved_bytes)),
        ],
        vec![
            format!("{} requests in flight", drive.host.in_flight),
            format!("{} free segments of {}", info.free_segments, info.segment_count),
            format!("{} checkpoints", info.operations.checkpoints),
        ],
    ];
    if info.snapshots > 0 {
        let of = output::counted(info.snapshots.into(), "snapshot");
        let retained = format_size(info.snapshot_bytes);
        let mut parts = vec![format!("{of} retain {retained} more")];
        if info.snapshots == 1 {
            parts = vec![format!("{of} retains {retained} more")];
        }
        let oldest = info.snapshot_oldest_seconds.map(snapshot::time);
        parts.extend(oldest.map(|time| format!("the oldest taken {time}")));
        if info.clones > 0 {
            parts.push(output::counted(info.clones.into(), "clone"));
        }
        lines.push(parts);
    }
    lines
}

/// Returns the cells of each command in its table.
fn command_cells(rates: &Rates) -> Vec<Vec<String>> {
    let cells = rates.commands.iter().map(|command| {
        let time = |ns: Option<f64>| ns.map_or("-".into(), latency);
        vec![
            command.command.replace('_', "-"),
            short(command.requests),
            short(command.bytes / 1e6),
            time(command.p50_ns),
            time(command.p99_ns),
            command.errors.to_string(),
        ]
    });
    cells.collect()
}

fn command_table(frame: &mut Frame<'_>, area: Rect, rates: &Rates) {
    let rows = command_cells(rates);
    let picked = fitting(&COMMAND_COLUMNS, &rows, area.width.into());
    let drawn = drawn(&COMMAND_COLUMNS, rows, &picked);
    let table = laid_out(&COMMAND_COLUMNS, drawn, &picked);
    frame.render_widget(table.block(Block::new().borders(Borders::TOP)), area);
}

/// Returns all drives as plain text of at most `width` columns.
pub(super) fn text(drives: &[Watched], width: usize) -> String {
    let table = |columns: &[Column], rows: Vec<Vec<String>>| {
        let picked = fitting(columns, &rows, width);
        let align = |column: &Column| if column.is_number { Align::Right } else { Align::Left };
        let of = picked.iter().map(|(at, _)| (columns[*at].name, align(&columns[*at])));
        let mut table = pumice_report::Table::new(&of.collect::<Vec<_>>());
        for row in rows {
            let cell = |(at, width): &(usize, usize)| match at {
                0 => shortened(&row[0], *width),
                at => row[*at].clone(),
            };
            table.row(picked.iter().map(cell).collect());
        }
        table.to_text()
    };
    let rows = drives.iter().map(cells).collect();
    let mut text = table(&COLUMNS, rows);
    for drive in drives {
        let Some(now) = drive.now.as_ref().map(|now| &now.drives[0]) else { continue };
        text += &format!("\n{}\n", now.name);
        for alert in &now.overview.alerts {
            text += &format!("warning: {}\n", alert.what);
        }
        let parts = parts(now).into_iter().zip(SPACE);
        let mut space: Vec<_> =
            parts.map(|(bytes, (name, ..))| format!("{name} {}", format_size(bytes))).collect();
        space[0].insert_str(0, "space: ");
        for parts in [space].into_iter().chain(facts_of(now, drive.rates.back())) {
            text += &(joined(parts, ", ", width) + "\n");
        }
        if let Some(rates) = drive.rates.back() {
            text += &table(&COMMAND_COLUMNS, command_cells(rates));
        }
    }
    // Names come from servers, and the terminal interprets control characters.
    text.retain(|c| c == '\n' || !c.is_control());
    text
}

/// Formats a number with about three digits.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{}M", short(value / 1e6)),
        size if size >= 1e4 => format!("{}k", short(value / 1e3)),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        0.0 => "0".into(),
        _ => format!("{value:.2}"),
    }
}

/// Formats a latency in nanoseconds with its unit.
fn latency(ns: f64) -> String {
    match ns {
        ns if ns < 1e6 => format!("{} us", short(ns / 1e3)),
        ns if ns < 1e9 => format!("{} ms", short(ns / 1e6)),
        ns => format!("{} s", short(ns / 1e9)),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: everything is drawn on terminals of any size, with drives that answer and drives that
    //! do not.
    use std::collections::VecDeque;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::watch::tests::snapshot;

    fn watched() -> Vec<Watched> {
        let mut now = snapshot("d");
        now.drives[0].info.capacity_bytes = 3;
        let mut later = now.drives[0].clone();
        later.info.host_bytes += 50 << 20;
        later.info.frame_bytes += 25 << 20;
        later.host.write.latency.record(3_000);
        let rates = Rates::between(&now.drives[0], &later, 1.0);
        let rates = VecDeque::from([rates]);
        let gone = Watched { source: 1, name: "gone".into(), now: None, rates: VecDeque::new() };
        vec![Watched { source: 0, name: "d".into(), now: Some(now), rates }, gone]
    }

    fn drawn(width: u16, height: u16, chosen: usize) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &watched(), chosen)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_figures_are_there() {
        let screen = drawn(120, 40, 0);
        for text in ["52.4", "0.50", "wr p99", "healthy", "no answer", "live 1 B", "q quit"] {
            assert!(screen.contains(text), "{text} in\n{screen}");
        }
        assert!(drawn(120, 40, 1).contains("the server does not answer"));
    }

    /// A snapshot of a foreign or malicious server.
    #[test]
    fn senseless_figures_are_drawn_and_do_not_reach_the_terminal_s_controls() {
        let mut drives = watched();
        let drive = &mut drives[0].now.as_mut().unwrap().drives[0];
        drive.info.capacity_bytes = 0;
        let overview = &mut drive.overview;
        (overview.live_bytes, overview.dead_bytes) = (u64::MAX, u64::MAX);
        drive.host.write.latency.counts = [u64::MAX; 26];
        drive.name = "d\u{1b}[2J".into();
        let before = drives[0].now.as_ref().unwrap().drives[0].clone();
        let rates = Rates::between(&watched()[0].now.as_ref().unwrap().drives[0], &before, 1.0);
        drives[0].rates.push_back(rates);
        let mut terminal = Terminal::new(TestBackend::new(120, 40)).unwrap();
        terminal.draw(|frame| draw(frame, &drives, 0)).unwrap();
        let text = text(&drives, 100);
        assert!(text.contains("d[2J") && !text.contains('\u{1b}'), "{text:?}");
    }

    /// Guards against truncated numbers, which read as different numbers: 10.2k as 0.2k, 145 us as
    /// 5 us.
    #[test]
    fn a_number_is_whole_or_absent() {
        let mut drives = watched();
        drives[0].name = "a/long/path/of/a/drive.pumice".into();
        let info = &mut drives[0].now.as_mut().unwrap().drives[0].info;
        (info.snapshots, info.snapshot_bytes) = (12, 3 << 30);
        (info.snapshot_oldest_seconds, info.clones) = (Some(1_700_000_000), 2);
        let rates = drives[0].rates.back_mut().unwrap();
        rates.requests = 10_200.0;
        rates.commands[1].p99_ns = Some(145_000.0);
        let rates = rates.clone();
        let cells = cells(&drives[0]);
        let now = &drives[0].now.as_ref().unwrap().drives[0];
        let facts = facts_of(now, Some(&rates)).into_iter().map(|parts| parts.join(", "));
        let facts: Vec<String> = facts.collect();
        assert!(facts[3].starts_with("12 snapshots retain 3 GiB more, the oldest "));
        for width in 40..=100 {
            let mut terminal = Terminal::new(TestBackend::new(width, 24)).unwrap();
            terminal.draw(|frame| draw(frame, &drives, 0)).unwrap();
            let screen = terminal.backend().to_string();
            let lines: Vec<_> = screen.lines().map(|line| line.trim_matches('"')).collect();
            let words = |line: usize| {
                lines[line].split("  ").map(str::trim).filter(|word| !word.is_empty())
            };
            let shown: Vec<_> = words(0).collect();
            let expected = COLUMNS.iter().zip(&cells);
            let expected = expected.filter(|(column, _)| shown.contains(&column.name));
            let expected: Vec<_> = expected.map(|(_, cell)| cell.as_str()).skip(1).collect();
            assert_eq!(words(1).skip(1).collect::<Vec<_>>(), expected, "{screen}");
            assert_eq!(shown.len(), expected.len() + 1, "{screen}");
            assert!(shown.contains(&"state") && lines[1].contains("drive.pumice"), "{screen}");
            let write = lines.iter().position(|line| line.starts_with("write ")).expect("a row");
            let commands = command_cells(&rates);
            assert!(words(write).all(|word| commands[1].iter().any(|cell| cell == word)));
            for fact in &facts {
                let is_shown = |line: &&&str| {
                    let line = line.trim_end();
                    line.len() > 9 && fact.starts_with(line) && {
                        let rest = &fact[line.len()..];
                        rest.is_empty() || rest.starts_with(", ")
                    }
                };
                assert_eq!(lines.iter().filter(is_shown).count(), 1, "{fact}\n{screen}");
            }
        }
        assert!(drawn(100, 24, 0).contains("req/s"), "there is room for all but the rarest");
    }

    #[test]
    fn the_commands_are_there_on_a_usual_terminal() {
        let screen = drawn(80, 24, 0);
        let rates = watched()[0].rates[0].clone();
        for cells in command_cells(&rates) {
            assert!(screen.contains(&format!("\"{} ", cells[0])), "{}\n{screen}", cells[0]);
        }
    }

    #[test]
    fn any_size_will_do() {
        for width in [1, 2, 7, 20, 79, 300] {
            for height in [1, 2, 5, 12, 24, 90] {
                drawn(width, height, 0);
                drawn(width, height, 1);
            }
        }
    }
}
