//! The command line.
//!
//! * One file or folder for each subcommand, with its flags and its `run`.
//! * `commands`: the subcommands in groups; `config`: a file of flags; `values`: parsers of flags.
//! * `opening`, `key_args`: flags of many subcommands; `state`: the use of a drive.
//! * `mount`: the program as a helper of mount(8); `watch`: the monitoring options of `serve`.
//! * `log`: the log; `output`: results and messages, whose JSON `schema` describes; `documents`:
//!   reports in several formats; `progress`: the progress of a command.
//!
//! Results go to stdout, progress and logs to stderr. The exit code is 0 for success, 1 if the
//! subcommand ran and found a problem, 2 if it could not run, and 128 plus the number of a signal
//! that has stopped it. A reader that closes stdout early is not an error.
//!
//! Subcommands return `anyhow` errors: only their text matters here, except where a subcommand
//! downcasts to a particular error.

#[cfg(feature = "attach")]
mod attach;
#[cfg(feature = "bench")]
mod bench;
mod check;
mod clients;
mod clone;
mod commands;
mod compact;
#[cfg(feature = "bench")]
mod compare;
mod config;
mod create;
#[cfg(feature = "bench")]
mod demo;
#[cfg(feature = "attach")]
mod detach;
mod device;
mod diff;
#[cfg(feature = "bench")]
mod documents;
#[cfg(feature = "bench")]
mod drives;
mod extract;
mod flatten;
#[cfg(feature = "bench")]
mod forecast;
mod info;
mod key;
mod key_args;
mod list;
mod log;
mod manual;
#[cfg(feature = "attach")]
mod mount;
mod opening;
mod output;
#[cfg(feature = "bench")]
mod payload;
mod progress;
mod rebuild;
mod receive;
mod rekey;
#[cfg(feature = "bench")]
mod report;
#[cfg(feature = "bench")]
mod reproduce;
mod resize;
#[cfg(feature = "bench")]
mod scan;
mod schema;
mod scrub;
mod send;
mod serve;
mod set;
mod snapshot;
mod state;
mod token;
#[cfg(feature = "top")]
mod top;
mod values;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser};

use self::commands::{Command, DriveCommand, program};
use self::config::Arguments;
pub(crate) use self::log::{LogFormat, LogLevel};
pub(crate) use self::output::{lossy, print, print_schema, print_schemas, say_error};
pub(crate) use self::values::{size, socket_address, thresholds};
pub(crate) use crate::remedy::chain_of as chain;
use crate::signals;

/// The result of a subcommand that could run.
pub(crate) enum Outcome {
    /// Success.
    Good,
    /// The subcommand found a problem.
    Problem,
    /// The exit code of another program, which is passed on.
    Code(u8),
}

/// SSD controller in software that compresses as it writes, served over NBD or attached locally
///
/// A Pumice drive is a file or block device. `pumice serve` exports it to hosts over NBD, and
/// `pumice attach` makes it a block device of this machine. Every write is compressed, packed and
/// appended to a log. Flushed data survives crashes and power loss.
#[derive(Debug, Parser)]
#[command(name = "pumice", version)]
#[command(subcommand_value_name = "COMMAND")]
#[command(after_help = "\
Examples:
  pumice create drive.pumice --size 64G
  pumice serve drive.pumice --unix /tmp/drive.sock
  pumice serve drive.pumice --run 'nbdinfo \"$uri\"'
  sudo pumice attach drive.pumice /mnt --mkfs ext4
  pumice demo")]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Minimum level logged to stderr [default: info for serve, otherwise warn]
    #[arg(long, value_enum, value_name = "LEVEL", env = "PUMICE_LOG", hide_env_values = true)]
    log: Option<LogLevel>,

    /// Format of the log on stderr
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    #[arg(env = "PUMICE_LOG_FORMAT", hide_env_values = true)]
    log_format: LogFormat,
}

/// Runs the program with the process's arguments.
pub(crate) fn main() -> ExitCode {
    #[cfg(feature = "attach")]
    if let Some(code) = mount::helper() {
        return code;
    }
    run(std::env::args_os())
}

fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let mut program = program();
    let mut arguments = match Arguments::gather(program.clone(), &serve::TABLES, args.collect()) {
        Ok(arguments) => arguments,
        Err(error) => return fail(&error),
    };
    let mut cli = match parse(&mut program, &arguments) {
        Ok(cli) => cli,
        Err(error) => return refuse(&program, &error, &arguments),
    };
    if let Err(error) = cli.take_tables(&mut arguments) {
        return fail(&error);
    }
    let default_level = match cli.command {
        Command::Drive(DriveCommand::Serve(_)) => LogLevel::Info,
        _ => LogLevel::Warn,
    };
    log::start(cli.log_format, cli.log.unwrap_or(default_level));
    let code = match cli.command.run() {
        Ok(Outcome::Good) => return ExitCode::SUCCESS,
        Ok(Outcome::Problem) => ExitCode::from(1),
        Ok(Outcome::Code(code)) => ExitCode::from(code),
        Err(error) => fail(&error),
    };
    signals::exit_code().map_or(code, ExitCode::from)
}

fn parse(program: &mut clap::Command, arguments: &Arguments) -> Result<Cli, clap::Error> {
    program
        .try_get_matches_from_mut(&arguments.args)
        .and_then(|matches| Cli::from_arg_matches(&matches))
        .map_err(|error| error.format(program))
}

impl Cli {
    /// Passes on the settings that the subcommand does not parse itself.
    fn take_tables(&mut self, arguments: &mut Arguments) -> anyhow::Result<()> {
        if let Command::Drive(DriveCommand::Serve(args)) = &mut self.command {
            args.take(std::mem::take(&mut arguments.tables), (self.log, self.log_format))?;
        }
        Ok(())
    }
}

/// Reads the process's arguments, and the configuration that they name, again; returns the
/// arguments of `serve`.
///
/// # Errors
/// The arguments are not those of `serve`, or the configuration is wrong now.
pub(crate) fn serve_args() -> anyhow::Result<Box<serve::Args>> {
    let mut program = program();
    let typed = std::env::args_os().collect();
    let mut arguments = Arguments::gather(program.clone(), &serve::TABLES, typed)?;
    let mut cli = parse(&mut program, &arguments)?;
    cli.take_tables(&mut arguments)?;
    match cli.command {
        Command::Drive(DriveCommand::Serve(args)) => Ok(args),
        _ => anyhow::bail!("the arguments do not start a server"),
    }
}

/// The log options.
pub(crate) type LogOptions = (Option<LogLevel>, LogFormat);

/// Prints the reason why the program could not run.
fn fail(error: &anyhow::Error) -> ExitCode {
    say_error(&chain(error));
    ExitCode::from(2)
}

/// Prints help and version as clap formats them, and every mistake as one line.
fn refuse(program: &clap::Command, error: &clap::Error, arguments: &Arguments) -> ExitCode {
    if !error.use_stderr() {
        let help = error.render();
        let help = if output::is_coloured() { help.ansi().to_string() } else { help.to_string() };
        return match print(&help) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        };
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        say_error(&no_command(program, arguments));
        return ExitCode::from(2);
    }
    let text = error.render().to_string();
    let paragraph = text.lines().take_while(|line| !line.trim().is_empty());
    let line = paragraph.map(str::trim).collect::<Vec<_>>().join(" ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    let position = arguments.position_of(error).map(|position| position + ": ").unwrap_or_default();
    let meant = suggestion(error).map(|name| format!(": did you mean '{name}'?"));
    let is_whole = cfg!(all(feature = "attach", feature = "bench", feature = "top"));
    let meant = match meant {
        None if error.kind() == ErrorKind::InvalidSubcommand && !is_whole => {
            "; this build leaves commands out: `make build` has them all".to_owned()
        }
        meant => meant.unwrap_or_default(),
    };
    // None of the program's own flags takes the name of a subcommand.
    let given = arguments.args.iter().skip(1).filter_map(|arg| arg.to_str());
    let (mut found, mut command) = (program, String::new());
    for name in given {
        if let Some(next) = found.find_subcommand(name) {
            (found, command) = (next, format!("{command}{name} "));
        }
    }
    say_error(&format!("{position}{line}{meant} (see pumice {command}--help)"));
    ExitCode::from(2)
}

/// Returns the message for a missing subcommand, with the available ones.
fn no_command(program: &clap::Command, arguments: &Arguments) -> String {
    let given = arguments.args.iter().skip(1).filter_map(|arg| arg.to_str());
    match given.into_iter().find_map(|name| program.find_subcommand(name)) {
        None => format!("no command given (see pumice --help)\n\n{}", commands::names()),
        Some(command) => {
            let (name, parts) = (command.get_name(), command.get_subcommands());
            let parts: Vec<_> = parts.map(clap::Command::get_name).collect();
            format!("{name} needs one of: {} (see pumice {name} --help)", parts.join(", "))
        }
    }
}

/// Words that other programs use for these subcommands; clap might suggest a different subcommand
/// that is spelled more similarly.
const ELSEWHERE: [(&str, &str); 16] = [
    ("mount", "attach"),
    ("umount", "detach"),
    ("unmount", "detach"),
    ("start", "serve"),
    ("export", "serve"),
    ("delete", "snapshot delete"),
    ("destroy", "snapshot delete"),
    ("remove", "snapshot delete"),
    ("rollback", "snapshot rollback"),
    ("grow", "resize"),
    ("shrink", "resize"),
    ("backup", "send"),
    ("restore", "receive"),
    ("copy", "clone"),
    ("fsck", "check"),
    ("verify", "check"),
];

/// Returns the intended word: from [`ELSEWHERE`], or else clap's suggestion.
fn suggestion(error: &clap::Error) -> Option<String> {
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && let Some((_, name)) = ELSEWHERE.iter().find(|(known, _)| known == word)
    {
        return Some((*name).to_owned());
    }
    let suggested = |kind| match error.get(kind)? {
        ContextValue::String(name) => Some(name.clone()),
        // The best suggestion is the last.
        ContextValue::Strings(names) => names.last().cloned(),
        _ => None,
    };
    let command = suggested(ContextKind::SuggestedSubcommand);
    let other = suggested(ContextKind::SuggestedArg);
    let other = other.or_else(|| suggested(ContextKind::SuggestedValue));
    match (command, other) {
        // A flag of that subcommand.
        (Some(command), Some(flag)) => Some(format!("{command} {flag}")),
        (command, other) => command.or(other),
    }
}
