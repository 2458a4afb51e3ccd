//! The command line: one file per subcommand.
//!
//! Results go to stdout, progress and logs to stderr. Exit codes: 0 good, 1 ran and found a
//! problem, 2 could not run. A reader that closes stdout early is not an error.

#[cfg(feature = "attach")]
mod attach;
#[cfg(feature = "bench")]
mod bench;
mod check;
#[cfg(feature = "bench")]
mod compare;
mod config;
mod create;
mod demo;
#[cfg(feature = "attach")]
mod detach;
#[cfg(feature = "bench")]
mod documents;
#[cfg(feature = "bench")]
mod drives;
mod extract;
#[cfg(feature = "bench")]
mod forecast;
mod info;
mod manual;
mod open;
mod output;
#[cfg(feature = "bench")]
mod payload;
mod rebuild;
#[cfg(feature = "bench")]
mod report;
#[cfg(feature = "bench")]
mod reproduce;
mod resize;
#[cfg(feature = "bench")]
mod scan;
mod scrub;
mod serve;
mod signals;
#[cfg(feature = "top")]
mod top;
mod watch;

use std::ffi::OsString;
use std::io::{ErrorKind as IoErrorKind, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use self::config::Arguments;
use pumice_drive::base::Error;
use pumice_drive::controller::WARN_THRESHOLDS_MAX;

/// What the program found, when it could run.
pub(crate) enum Outcome {
    /// All is well.
    Good,
    /// It ran and found a problem.
    Problem,
    /// Another program's exit code is passed on.
    Code(u8),
}

/// An SSD controller in software that compresses as it writes.
///
/// A Pumice drive is a file or block device that a host sees as a disk over NBD. Every write is
/// compressed, packed and appended to a log; nothing is lost that was flushed.
#[derive(Debug, Parser)]
#[command(name = "pumice", version, max_term_width = 100, term_width = 100)]
#[command(after_help = "\
Examples:
  pumice create drive.pumice --size 64G
  pumice serve drive.pumice --unix /tmp/drive.sock
  pumice serve drive.pumice --run 'nbdinfo \"$uri\"'
  pumice demo")]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// What the log on stderr tells, and all above it [default: info for serve, else warn]
    #[arg(long, value_enum, value_name = "LEVEL", env = "PUMICE_LOG", hide_env_values = true)]
    log: Option<LogLevel>,

    /// Form of the log on stderr
    #[arg(long, value_enum, value_name = "FORM", default_value_t)]
    #[arg(env = "PUMICE_LOG_FORMAT", hide_env_values = true)]
    log_format: LogFormat,
}

/// For whom the log is written: "The log" in docs/operate.md says what is on each level.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LogLevel {
    /// Nothing
    Off,
    /// What the operator must act on
    Error,
    /// What somebody should look at
    Warn,
    /// What begins, ends or is changed
    Info,
    /// What clients and the drive tell each other, for developers
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

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum LogFormat {
    /// A line for a person
    #[default]
    Text,
    /// A line of JSON, with the time
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(create::Args),
    Serve(serve::Args),
    #[cfg(feature = "attach")]
    Attach(attach::Args),
    #[cfg(feature = "attach")]
    Detach(detach::Args),
    Info(info::Args),
    Check(check::Args),
    Scrub(scrub::Args),
    Resize(resize::Args),
    Extract(extract::Args),
    Rebuild(rebuild::Args),
    Demo(demo::Args),
    #[cfg(feature = "top")]
    Top(top::Args),
    #[cfg(feature = "bench")]
    Bench(bench::Args),
    #[cfg(feature = "bench")]
    Payload(payload::Args),
    #[cfg(feature = "bench")]
    Report(report::Args),
    #[cfg(feature = "bench")]
    Compare(compare::Args),
    #[cfg(feature = "bench")]
    Scan(scan::Args),
    #[cfg(feature = "bench")]
    Drives(drives::Args),
    #[cfg(feature = "bench")]
    Reproduce(reproduce::Args),
    #[cfg(feature = "bench")]
    Forecast(forecast::Args),
    Completions(manual::Completions),
    Man(manual::Man),
}

/// Runs the program with the process's arguments.
pub(crate) fn main() -> ExitCode {
    run(std::env::args_os())
}

fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::gather(Cli::command(), args.collect()) {
        Ok(arguments) => arguments,
        Err(error) => {
            say_error(&error.chain());
            return ExitCode::from(2);
        }
    };
    let cli = match Cli::try_parse_from(&arguments.args) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error, &arguments),
    };
    let default_level = match cli.command {
        Command::Serve(_) => LogLevel::Info,
        _ => LogLevel::Warn,
    };
    start_log(cli.log_format, cli.log.unwrap_or(default_level));
    let result = match cli.command {
        Command::Create(args) => create::run(&args),
        Command::Serve(args) => serve::run(&args),
        #[cfg(feature = "attach")]
        Command::Attach(args) => attach::run(&args),
        #[cfg(feature = "attach")]
        Command::Detach(args) => detach::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Scrub(args) => scrub::run(&args),
        Command::Resize(args) => resize::run(&args),
        Command::Extract(args) => extract::run(&args),
        Command::Rebuild(args) => rebuild::run(&args),
        Command::Demo(args) => demo::run(&args),
        #[cfg(feature = "top")]
        Command::Top(args) => top::run(&args),
        #[cfg(feature = "bench")]
        Command::Bench(args) => bench::run(&args),
        #[cfg(feature = "bench")]
        Command::Payload(args) => payload::run(&args),
        #[cfg(feature = "bench")]
        Command::Report(args) => report::run(&args),
        #[cfg(feature = "bench")]
        Command::Compare(args) => compare::run(&args),
        #[cfg(feature = "bench")]
        Command::Scan(args) => scan::run(&args),
        #[cfg(feature = "bench")]
        Command::Drives(args) => drives::run(&args),
        #[cfg(feature = "bench")]
        Command::Reproduce(args) => reproduce::run(&args),
        #[cfg(feature = "bench")]
        Command::Forecast(args) => forecast::run(&args),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::man(&args),
    };
    match result {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Problem) => ExitCode::from(1),
        Ok(Outcome::Code(code)) => ExitCode::from(code),
        Err(error) => {
            say_error(&error.chain());
            ExitCode::from(2)
        }
    }
}

/// Sends the log to stderr.
fn start_log(format: LogFormat, level: LogLevel) {
    let log = tracing_subscriber::fmt()
        .with_max_level(tracing::level_filters::LevelFilter::from(level))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .log_internal_errors(false);
    match format {
        LogFormat::Text => log.without_time().init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// Help and version as clap prints them; every mistake as one line.
fn refuse(error: &clap::Error, arguments: &Arguments) -> ExitCode {
    if !error.use_stderr() {
        return match print(&error.render().to_string()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                say_error(&error.chain());
                ExitCode::from(2)
            }
        };
    }
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        say_error("name a command, like create or serve (see pumice --help)");
        return ExitCode::from(2);
    }
    let text = error.render().to_string();
    let paragraph = text.lines().take_while(|line| !line.trim().is_empty());
    let line = paragraph.map(str::trim).collect::<Vec<_>>().join(" ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    let place = arguments.place_of(error).map(|place| place + ": ").unwrap_or_default();
    say_error(&format!("{place}{line} (see pumice --help)"));
    ExitCode::from(2)
}

fn say_error(line: &str) {
    // Nobody may be listening; that must not change how the program ends.
    let _ = writeln!(std::io::stderr(), "pumice: {line}");
}

/// Prints a result to stdout.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != IoErrorKind::BrokenPipe => {
            Err(Error::os("cannot write the result", error))
        }
        _ => Ok(()),
    }
}

/// Prints a result as JSON, indented, to stdout.
pub(crate) fn print_json(value: &(impl serde::Serialize + ?Sized)) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).expect("results serialize");
    print(&(text + "\n"))
}

/// `text` in lines of at most that many columns, as far as its words allow; one line at least.
#[cfg(feature = "bench")]
pub(crate) fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let width = |text: &str| text.chars().count();
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a line");
        if line.is_empty() {
            line.push_str(word);
        } else if width(line) + 1 + width(word) <= columns {
            *line += &format!(" {word}");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Reads a size for clap.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    pumice_drive::base::units::parse_size(text)
}

/// Reads a number for clap that has no unit and no limit.
#[cfg(feature = "bench")]
pub(crate) fn whole_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("'{text}' is not a whole number from 0 to {}", u64::MAX))
}

/// Reads thresholds in per cent for clap: `80,90,95` or `none`.
pub(crate) fn thresholds(text: &str) -> Result<[u8; WARN_THRESHOLDS_MAX], String> {
    let mut thresholds = [0; WARN_THRESHOLDS_MAX];
    if text == "none" {
        return Ok(thresholds);
    }
    let wrong =
        || format!("'{text}' is not a list of up to {WARN_THRESHOLDS_MAX} per cents like 80,90,95");
    let parts: Vec<&str> = text.split(',').collect();
    if parts.len() > WARN_THRESHOLDS_MAX {
        return Err(wrong());
    }
    for (threshold, part) in thresholds.iter_mut().zip(parts) {
        *threshold = part.trim().parse().map_err(|_| wrong())?;
        if !(1..=100).contains(threshold) {
            return Err(wrong());
        }
    }
    Ok(thresholds)
}

/// A path for a message.
pub(crate) fn at_path(path: &std::path::Path, error: Error) -> Error {
    let kind = error.kind();
    Error::new(kind, path.display().to_string()).caused_by(error)
}
