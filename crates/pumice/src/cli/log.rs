//! The log on stderr: its levels and formats. Each event is one line, whatever names and messages
//! it contains.

use std::io::{self, Write};

/// The level of a log entry. "The log" in docs/operate.md describes what each level contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogLevel {
    /// Nothing
    Off,
    /// Failures that require action
    Error,
    /// Conditions that deserve attention
    Warn,
    /// Starts, stops and changes
    Info,
    /// Details of requests and internal operations, for developers
    Debug,
}

impl From<LogLevel> for tracing::level_filters::LevelFilter {
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
    /// Human-readable lines without timestamps
    #[default]
    Text,
    /// One JSON object per line, with a timestamp
    Json,
}

/// Sends the log to stderr.
pub(super) fn start(format: LogFormat, level: LogLevel) {
    let log = tracing_subscriber::fmt()
        .with_max_level(tracing::level_filters::LevelFilter::from(level))
        .with_writer(|| Lines(std::io::stderr()))
        .with_ansi(super::output::is_stderr_coloured())
        .with_target(false)
        .log_internal_errors(false);
    match format {
        LogFormat::Text => log.without_time().init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// Writes each event, which comes in one piece, as one line: control characters within it are
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
    //! Goal: an event is one line.
    use super::*;

    #[test]
    fn no_name_makes_a_line_of_its_own() {
        let mut written = Vec::new();
        for event in ["plain \u{e4} \x1b[31mred\n", "a\n<0>b\r\0\tc\n", "\n", "no end\n\n"] {
            Lines(&mut written).write_all(event.as_bytes()).unwrap();
        }
        let text = String::from_utf8(written).unwrap();
        let expected = "plain \u{e4} \x1b[31mred\na\\n<0>b\\r\\x00\\tc\n\nno end\\n\n";
        assert_eq!(text, expected);
    }
}
