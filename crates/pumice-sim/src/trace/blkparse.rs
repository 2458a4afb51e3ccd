//! Parses the default output format of blkparse, with one event per line.
//!
//! ```text
//!   8,0    3       11     0.009507758   697  Q   W 223490 + 8 [kjournald]
//!   device cpu     number seconds       pid  event rwbs sector + sectors [process]
//! ```
//!
//! Only one kind of event is used: D if the beginning of the file contains D but no Q, otherwise Q.
//! Events of kind Q queue a request, and events of kind D issue it to the driver. All other events,
//! messages, the names of input files, and the statistics at the end are skipped.
//!
//! Source: blkparse(1), output description.

use super::entry::{Entry, number, sectors, shown, time_ns};
use crate::log_drive::Verb;

const SECOND_NS: f64 = 1e9;

/// Parser state.
#[derive(Debug)]
pub(super) struct Blkparse {
    action: &'static str,
    /// Whether the statistics have started.
    is_over: bool,
}

/// The fields that precede the event-specific ones.
struct Event<'a> {
    device: &'a str,
    time: &'a str,
    action: &'a str,
    rest: std::str::SplitAsciiWhitespace<'a>,
}

fn event(line: &str) -> Option<Event<'_>> {
    let mut fields = line.split_ascii_whitespace();
    let device = fields.next().filter(|device| disk(device).is_some())?;
    let (_cpu, _number) = (fields.next()?, fields.next()?);
    let time = fields.next().filter(|time| time.contains('.'))?;
    let _process = fields.next()?;
    Some(Event { device, time, action: fields.next()?, rest: fields })
}

/// Returns whether a line looks like an event.
pub(super) fn is_event(line: &str) -> bool {
    event(line).is_some_and(|event| time_ns(event.time, SECOND_NS).is_ok())
}

/// Returns whether a line has the form "CPU0 (sda):", "Total (8,0):" or, for a process, "kjournald
/// (697)".
fn heads_statistics(line: &str) -> bool {
    let process = line.strip_suffix(')').and_then(|line| line.rsplit_once(" ("));
    line.ends_with("):") || process.is_some_and(|(_, id)| id.chars().all(|c| c.is_ascii_digit()))
}

/// Packs `major,minor` into one number, as the kernel does.
fn disk(device: &str) -> Option<u32> {
    let (major, minor) = device.split_once(',')?;
    let part = |text: &str, most: u64| number("device", text).ok().filter(|part| *part < most);
    Some((part(major, 1 << 12)? << 20 | part(minor, 1 << 20)?) as u32)
}

impl Blkparse {
    /// Selects the event type from the beginning of the file.
    pub(super) fn new(beginning: &[u8]) -> Self {
        let text = String::from_utf8_lossy(beginning);
        let has = |action| text.lines().filter_map(event).any(|event| event.action == action);
        let action = if has("D") && !has("Q") { "D" } else { "Q" };
        Self { action, is_over: false }
    }

    /// Parses a line.
    pub(super) fn entry(&mut self, line: &str) -> Result<Option<Entry>, String> {
        let found = event(line);
        self.is_over |= found.is_none() && heads_statistics(line);
        if self.is_over || line.starts_with("Input file ") && line.ends_with(" added") {
            return Ok(None);
        }
        let Some(Event { device, time, action, mut rest }) = found else {
            return Err(format!("'{}' is not an event", shown(line)));
        };
        if action != self.action {
            return Ok(None);
        }
        let flags = rest.next().ok_or("the operation is missing")?;
        let (first, plus, count) = (rest.next(), rest.next(), rest.next());
        let range = match (first, plus, count) {
            (Some(sector), Some("+"), Some(count)) => Some((sector, count)),
            _ => None,
        };
        let time_ns = time_ns(time, SECOND_NS)?;
        let disk = disk(device).ok_or("its device is invalid")?;
        let Some((sector, count)) = range else {
            // A flush has no sectors; other events without sectors are not requests.
            let flush = Entry { time_ns, verb: Verb::Flush, disk, offset: 0, bytes: 0 };
            return Ok(flags.starts_with('F').then_some(flush));
        };
        let (offset, bytes) = (sectors("sector", sector)?, sectors("size", count)?);
        // The meaning of a flag depends on its position: F is a flush before or after the
        // operation.
        let verb = match flags.trim_start_matches('F').chars().next() {
            Some('R') => Verb::Read,
            Some('W') => Verb::Write,
            Some('D') => Verb::Trim,
            None => Verb::Flush,
            // Commands that transfer no disk data.
            _ => return Ok(None),
        };
        if bytes == 0 {
            let flush = Entry { time_ns, verb: Verb::Flush, disk, offset: 0, bytes: 0 };
            return Ok(flags.starts_with('F').then_some(flush));
        }
        Ok(Some(Entry { time_ns, verb, disk, offset, bytes }))
    }
}
