//! The display of `pumice top`: a table of the drives, and the details of the selected one. Only
//! draws, on terminals of any size, even too small ones.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table};

use super::Watched;
use crate::watch::{DriveSnapshot, Rates};
use pumice_drive::base::units::format_size;

/// Parts of the capacity: name, sign, colour.
const SPACE: [(&str, &str, Color); 4] = [
    ("live", "█", Color::Blue),
    ("dead", "▓", Color::Yellow),
    ("free", "░", Color::Gray),
    ("reserve", "·", Color::DarkGray),
];

/// Columns of the table of drives.
const COLUMNS: [&str; 10] = [
    "drive",
    "writes MB/s",
    "medium MB/s",
    "reads MB/s",
    "req/s",
    "stored",
    "WA",
    "write p99",
    "used %",
    "state",
];

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
fn cells(drive: &Watched) -> [String; 10] {
    let name = || drive.name.clone();
    let Some(now) = drive.now.as_ref().map(|now| &now.drives[0]) else {
        let mut cells = std::array::from_fn(|_| String::new());
        (cells[0], cells[9]) = (name(), "no answer".into());
        return cells;
    };
    let rates = drive.rates.back();
    let mega =
        |value: fn(&Rates) -> f64| rates.map_or("-".into(), |rates| short(value(rates) / 1e6));
    let share = |value: Option<f64>| value.map_or("-".into(), short);
    let p99 = rates.and_then(|rates| rates.commands[1].p99_ns);
    [
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
    let rows = drives.iter().enumerate().map(|(number, drive)| {
        let mut texts = cells(drive);
        let last = std::mem::take(&mut texts[9]);
        let right = texts.into_iter().enumerate().take(9).map(|(at, text)| {
            let line = Line::from(text);
            Cell::from(if at == 0 { line } else { line.right_aligned() })
        });
        let state = Cell::from(last.clone()).fg(state_colour(&last));
        let row = Row::new(right.chain([state]));
        if number == chosen { row.add_modifier(Modifier::BOLD) } else { row }
    });
    let head = COLUMNS.into_iter().enumerate().map(|(at, name)| {
        let line = Line::from(name);
        Cell::from(if at == 0 || at == 9 { line } else { line.right_aligned() })
    });
    let mut widths = [Constraint::Length(11); COLUMNS.len()];
    widths[0] = Constraint::Min(12);
    for narrow in [4, 5, 6, 8] {
        widths[narrow] = Constraint::Length(7);
    }
    widths[9] = Constraint::Length(14);
    let head = Row::new(head).dim();
    frame.render_widget(Table::new(rows, widths).header(head).column_spacing(1), area);
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
    let alerts = now.overview.alerts.len() as u16;
    let [alerts_area, writes, medium, space_area, facts, commands] = Layout::vertical([
        Constraint::Length(alerts),
        Constraint::Length(4),
        Constraint::Length(4),
        Constraint::Length(4),
        Constraint::Length(3),
        Constraint::Min(0),
    ])
    .areas(area);
    let lines: Vec<Line<'_>> =
        now.overview.alerts.iter().map(|alert| Line::from(alert.what.as_str())).collect();
    frame.render_widget(Paragraph::new(lines).red(), alerts_area);
    graph(frame, writes, drive, &title, Color::Blue, |rates| rates.host_write_bytes);
    graph(frame, medium, drive, " medium ", Color::Red, |rates| rates.media_write_bytes);
    space(frame, space_area, now);
    frame.render_widget(Paragraph::new(fact_lines(now, drive.rates.back())), facts);
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
    let block = Block::new().borders(Borders::TOP).title(title.to_owned());
    let width = usize::from(area.width);
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
    let now = drive.rates.back().map_or(0.0, value) / 1e6;
    let block = block.title(Line::from(format!(" {} MB/s ", short(now))).right_aligned());
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
    for (bytes, (name, sign, colour)) in parts.into_iter().zip(SPACE) {
        key.push(Span::styled(sign, Style::new().fg(colour)));
        key.push(Span::raw(format!(" {name} {}   ", format_size(bytes))));
    }
    frame.render_widget(Paragraph::new(vec![Line::from(bar), Line::from(key)]), inner);
}

fn fact_lines(drive: &DriveSnapshot, rates: Option<&Rates>) -> Vec<Line<'static>> {
    let info = &drive.info;
    let moved = rates.map_or(0.0, |rates| rates.moved_bytes / 1e6);
    let debt = drive.overview.gc_debt_segments;
    let works = if debt > 0 { format!("{debt} segments to free") } else { "idle".into() };
    vec![
        Line::from(format!(
            "life: {} written, stored fraction {:.4}, write amplification {:.4}",
            format_size(info.host_bytes),
            info.stored_fraction,
            info.write_amplification
        )),
        Line::from(format!(
            "garbage collection {works}, {} MB/s moved, {} segments freed, {} moved in total",
            short(moved),
            info.operations.gc_victims,
            format_size(info.moved_bytes)
        )),
        Line::from(format!(
            "{} requests in flight, {} checkpoints, {} free segments of {}",
            drive.host.in_flight,
            info.operations.checkpoints,
            info.free_segments,
            info.segment_count
        )),
    ]
}

/// Returns the cells of each command in its table.
fn command_cells(rates: &Rates) -> impl Iterator<Item = [String; 6]> {
    rates.commands.iter().map(|command| {
        let time = |ns: Option<f64>| ns.map_or("-".into(), latency);
        [
            command.command.replace('_', "-"),
            short(command.requests),
            short(command.bytes / 1e6),
            time(command.p50_ns),
            time(command.p99_ns),
            command.errors.to_string(),
        ]
    })
}

const COMMAND_COLUMNS: [&str; 6] = ["command", "req/s", "MB/s", "p50", "p99", "failed"];

fn command_table(frame: &mut Frame<'_>, area: Rect, rates: &Rates) {
    let line = |(at, text): (usize, String)| {
        let line = Line::from(text);
        Cell::from(if at == 0 { line } else { line.right_aligned() })
    };
    let rows = command_cells(rates).map(|cells| Row::new(cells.into_iter().enumerate().map(line)));
    let head = COMMAND_COLUMNS.map(str::to_owned).into_iter().enumerate().map(line);
    let widths = [Constraint::Length(12); COMMAND_COLUMNS.len()];
    let table = Table::new(rows, widths).header(Row::new(head).dim());
    frame.render_widget(table.block(Block::new().borders(Borders::TOP)), area);
}

/// Returns all drives as plain text.
pub(super) fn text(drives: &[Watched]) -> String {
    let columns = |names: &[&str]| {
        let mut columns = vec![("", pumice_report::Align::Right); names.len()];
        columns.iter_mut().zip(names).for_each(|(column, name)| column.0 = name);
        columns[0].1 = pumice_report::Align::Left;
        columns.into_iter().map(|(name, align)| (name.to_owned(), align)).collect::<Vec<_>>()
    };
    let table = |names: &[&str], rows: Vec<Vec<String>>| {
        let columns = columns(names);
        let columns: Vec<_> = columns.iter().map(|(name, align)| (name.as_str(), *align)).collect();
        let mut table = pumice_report::Table::new(&columns);
        rows.into_iter().for_each(|row| table.row(row));
        table.to_text()
    };
    let rows = drives.iter().map(|drive| cells(drive).to_vec()).collect();
    let mut text = table(&COLUMNS, rows);
    for drive in drives {
        let Some(now) = drive.now.as_ref().map(|now| &now.drives[0]) else { continue };
        text += &format!("\n{}\n", now.name);
        for alert in &now.overview.alerts {
            text += &format!("warning: {}\n", alert.what);
        }
        let parts = parts(now).into_iter().zip(SPACE);
        let parts: Vec<_> =
            parts.map(|(bytes, (name, ..))| format!("{name} {}", format_size(bytes))).collect();
        text += &format!("space: {}\n", parts.join(", "));
        for line in fact_lines(now, drive.rates.back()) {
            text += &format!("{line}\n");
        }
        if let Some(rates) = drive.rates.back() {
            text += &table(&COMMAND_COLUMNS, command_cells(rates).map(Vec::from).collect());
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
    //! Goal: everything is drawn on terminals of any size, with drives that answer and that do not.
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
        for text in ["52.4", "0.50", "write p99", "healthy", "no answer", "live 1 B", "q quit"] {
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
        let text = text(&drives);
        assert!(text.contains("d[2J") && !text.contains('\u{1b}'), "{text:?}");
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
