//! `pumice top`: shows the activity of served drives in the terminal.
//!
//! * `source`: where figures come from. `watching`: the figures over time.
//! * `view`: draws them. `screen`: the terminal and its keys.
//!
//! Queries servers on this machine through their control sockets, as `pumice info` does, so that
//! they need no HTTP; other servers over HTTP. Restores the terminal on every exit, even a panic.

mod screen;
mod source;
mod view;
mod watching;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use schemars::JsonSchema;
use serde::Serialize;

use self::source::{Asker, Source};
use self::watching::Watching;
use super::output::terminal_columns;
use super::{Outcome, lossy, print, print_schemas};
use crate::watch::{Rates, Snapshot};
use pumice_drive::base::Clock;
use pumice_drive::runtime::{Backend, Runtime};

/// Monitor served drives in the terminal
///
/// Shows host writes against media writes, compression, latencies, space and garbage collection.
/// Keys: up and down select a drive, q quits.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice top drive.pumice
  pumice top a.pumice b.pumice --interval 5
  pumice top http://127.0.0.1:9110
  pumice top drive.pumice --once --json")]
pub(crate) struct Args {
    /// Drives served on this machine, or http://ADDR:PORT of a server with --http, for all of its
    /// drives
    #[arg(required = true, value_name = "PATH|URL")]
    sources: Vec<Source>,

    /// File with the token for servers at a URL
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Seconds between samples, from 0.1 to 3600
    #[arg(long, default_value = "1", value_parser = interval, value_name = "SECONDS")]
    interval: Duration,

    /// Print one sample as text and exit
    #[arg(long)]
    once: bool,

    /// Print one sample as JSON and exit
    #[arg(long)]
    json: bool,
}

/// Parses an interval for clap.
fn interval(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    let seconds = seconds.ok_or("expected a number of seconds from 0.1 to 3600")?;
    Ok(Duration::from_secs_f64(seconds))
}

/// Returns an interval in nanoseconds.
fn nanoseconds(interval: Duration) -> u64 {
    u64::try_from(interval.as_nanos()).expect("at most an hour")
}

/// Returns the token for servers, if there is one.
///
/// # Errors
/// The file cannot be read, or there is no server to send the token to.
fn token(args: &Args) -> Result<Option<String>> {
    let Some(path) = &args.token_file else { return Ok(None) };
    if !args.sources.iter().any(|source| matches!(source, Source::Server(_))) {
        bail!("--token-file needs a server URL: add one, or omit the option");
    }
    let token = std::fs::read_to_string(path);
    let path = path.display();
    let token = token.with_context(|| format!("cannot read {path}"))?;
    let token = token.trim();
    if token.is_empty() || !token.chars().all(|c| c.is_ascii_graphic()) {
        bail!("{path} contains no token: use the file of `serve --http-token-file`");
    }
    Ok(Some(token.to_owned()))
}

/// Runs the subcommand.
///
/// # Errors
/// A drive is not served, a server refuses the request, or there is no terminal.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let mut watching = Watching::start(Asker::new(token(args)?), &args.sources)?;
    if args.once || args.json {
        let runtime = Runtime::new(Backend::Threads)?;
        runtime.block_on(runtime.sleep_ns(nanoseconds(args.interval)));
        watching.look();
        return sample(&watching, args.json).map(|()| Outcome::Good);
    }
    if !std::io::stdout().is_terminal() {
        bail!("stdout is not a terminal: use --once or --json to print a sample");
    }
    screen::interactive(&mut watching, args.interval)?;
    Ok(Outcome::Good)
}

/// A sample of a drive.
#[derive(Serialize, JsonSchema)]
pub(super) struct Sample<'a> {
    /// Rates since the previous sample; `None` if there is none.
    rates: Option<&'a Rates>,
    /// The server and its drives; `None` if it has ended.
    snapshot: Option<&'a Snapshot>,
    /// The drive, if it was named by its file.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// The server, if it was named by its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
}

/// Prints one sample of each drive.
fn sample(watching: &Watching, as_json: bool) -> Result<()> {
    if !as_json {
        let width = terminal_columns().map_or(usize::MAX, usize::from);
        return print(&view::text(&watching.drives, width));
    }
    let samples = watching.drives.iter().map(|drive| {
        let (path, url) = match &watching.sources[drive.source] {
            Source::Drive(path) => (Some(lossy(path)), None),
            Source::Server(url) => (None, Some(url.as_str())),
        };
        Sample { rates: drive.rates.back(), snapshot: drive.now.as_ref(), path, url }
    });
    print_schemas("top-1", &samples.collect::<Vec<_>>())
}
