//! The log on stderr: its levels and formats.

/// The level of a log entry. "The log" in docs/operate.md describes what each level contains.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum LogLevel {
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
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub(super) enum LogFormat {
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
        .with_writer(std::io::stderr)
        .with_ansi(super::output::is_stderr_coloured())
        .with_target(false)
        .log_internal_errors(false);
    match format {
        LogFormat::Text => log.without_time().init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}
