//! The log on stderr: its levels and formats, and its limit on repeated messages. Each event is one
//! line, whatever names and messages it contains.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tracing::callsite::Identifier;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// The level of a log entry. "The log" in docs/operate.md describes what each level contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogLevel {
    // Nothing
    Off,
    // Failures that require action
    Error,
    // Conditions that deserve attention
    Warn,
    // Starts, stops and changes
    Info,
    // Details of requests and internal operations, for developers
    Debug,
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Off => Self::OFF,
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
        }
    }
}

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    // Human-readable lines without timestamps
    #[default]
    Text,
    // One JSON object per line, with a timestamp
    Json,
}

/// Maximum number of warnings and errors that each place in the program logs in a minute. A failure
/// of each request would otherwise fill the file system of the log, which for an attached drive is
/// memory.
const A_MINUTE_MAX: u32 = 100;

/// Sends the log to stderr.
pub(super) fn start(format: LogFormat, level: LogLevel) {
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(|| Lines(std::io::stderr()))
        .with_ansi(super::output::is_stderr_coloured())
        .with_target(false)
        .log_internal_errors(false);
    let log = tracing_subscriber::registry().with(LevelFilter::from(level));
    match format {
        LogFormat::Text => log.with(layer.without_time().with_filter(Limit::new())).init(),
        LogFormat::Json => {
            log.with(layer.json().flatten_event(true).with_filter(Limit::new())).init();
        }
    }
}

/// Drops warnings and errors of a place that has logged too many in this minute.
struct Limit {
    begun: Instant,
    /// The minute of the last event of each place, and the number of events in it. The number of
    /// places is bounded by the number of log statements in the program.
    places: Mutex<HashMap<Identifier, (u64, u32)>>,
}

#[allow(clippy::disallowed_methods, reason = "the log belongs to no drive and no simulation")]
impl Limit {
    fn new() -> Self {
        Self { begun: Instant::now(), places: Mutex::default() }
    }

    /// Returns the minutes since the log was started.
    fn minute(&self) -> u64 {
        self.begun.elapsed().as_secs() / 60
    }
}

impl<S> Filter<S> for Limit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        if *event.metadata().level() > Level::WARN {
            return true;
        }
        let now = self.minute();
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let (minute, count) = places.entry(event.metadata().callsite()).or_default();
        if *minute != now {
            (*minute, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= A_MINUTE_MAX
    }
}

/// Writes each event, which arrives in one piece, as one line: control characters within it are
/// escaped, so that no name makes a line that looks like another event. The escape character is
/// left alone, because colours begin with it; the subscriber has escaped it in names.
struct Lines<W>(W);

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let (line, end) = match event.split_last() {
            Some((b'\n', line)) => (line, &b"\n"[..]),
            _ => (event, &b""[..]),
        };
        let is_plain = |byte: &u8| !byte.is_ascii_control() || *byte == b'\x1b';
        if line.iter().all(is_plain) {
            self.0.write_all(event)?;
            return Ok(event.len());
        }
        let mut escaped = Vec::with_capacity(event.len() + 16);
        for byte in line {
            match is_plain(byte) {
                true => escaped.push(*byte),
                false => escaped.extend(byte.escape_ascii()),
            }
        }
        escaped.extend(end);
        self.0.write_all(&escaped)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: an event is one line; repeated events neither fill the log nor hide others.
    use std::io::{Read, Seek};
    use std::sync::Arc;

    use super::*;

    #[test]
    fn warnings_that_repeat_are_left_out() {
        let file = tempfile::tempfile().expect("a file");
        let writer = Arc::new(file.try_clone().expect("a handle"));
        let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_filter(Limit::new());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for request in 0..3 * A_MINUTE_MAX {
                tracing::warn!(request, "repeated");
                tracing::info!(request, "ordinary");
            }
            tracing::error!("another");
        });
        let (mut file, mut text) = (file, String::new());
        file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("the log");
        let count = |word| text.lines().filter(|line| line.contains(word)).count() as u32;
        let counts = ["repeated", "ordinary", "another"].map(count);
        assert_eq!(counts, [A_MINUTE_MAX, 3 * A_MINUTE_MAX, 1]);
    }

    #[test]
    fn names_add_no_lines() {
        let mut written = Vec::new();
        for event in ["plain \u{e4} \x1b[31mred\n", "a\n<0>b\r\0\tc\n", "\n", "no end\n\n"] {
            Lines(&mut written).write_all(event.as_bytes()).unwrap();
        }
        let text = String::from_utf8(written).unwrap();
        let expected = "plain \u{e4} \x1b[31mred\na\\n<0>b\\r\\x00\\tc\n\nno end\\n\n";
        assert_eq!(text, expected);
    }
}
