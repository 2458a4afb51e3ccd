//! `pumice top`: shows the activity of served drives in the terminal.
//!
//! Queries servers on this machine through their control sockets, as `pumice info` does, so that
//! they need no HTTP; other servers over HTTP. Restores the terminal on every exit, even a panic.

mod source;
mod view;

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use serde_json::json;

use self::source::{Asker, Source};
use super::{Outcome, print, print_json};
use crate::watch::{Rates, Snapshot};
use pumice_drive::base::{Clock, Error, ErrorKind, Result};
use pumice_drive::runtime::{Backend, Runtime};

/// Rates kept for the graphs: more than a terminal is wide.
const HISTORY: usize = 512;

/// Longest wait for a key before signals are checked.
const KEY_MAX: Duration = Duration::from_millis(200);

/// Time limit for the rest of a key sequence that has begun to arrive.
const KEY_REST: Duration = Duration::from_millis(10);

/// Input from the terminal.
enum Input {
    None,
    Some,
    /// The terminal has been closed.
    Gone,
}

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

/// Watched drives, and their sources.
struct Watching {
    asker: Asker,
    sources: Vec<Source>,
    drives: Vec<Watched>,
}

/// A watched drive.
pub(super) struct Watched {
    /// Index of its source.
    source: usize,
    /// Its path, or its name on the server.
    name: String,
    /// The latest snapshot, of this drive alone; none while its source does not answer.
    now: Option<Snapshot>,
    /// Rates from one snapshot to the next, the newest last.
    rates: VecDeque<Rates>,
}

impl Watching {
    /// Takes the first samples; every source must answer.
    ///
    /// # Errors
    /// Those of [`Asker::ask`].
    fn start(asker: Asker, sources: &[Source]) -> Result<Self> {
        let mut watching = Self { asker, sources: sources.to_vec(), drives: Vec::new() };
        for (index, source) in sources.iter().enumerate() {
            let first = watching.asker.ask(source)?;
            watching.take(index, Some(first));
        }
        Ok(watching)
    }

    /// Takes a sample from every source. A server that is ending or busy may answer the next time.
    fn look(&mut self) {
        for index in 0..self.sources.len() {
            let answer = self.asker.ask(&self.sources[index]).ok();
            self.take(index, answer);
        }
    }

    /// Assigns the answer of a source to its drives; new drives are watched from now on.
    fn take(&mut self, source: usize, answer: Option<Snapshot>) {
        let mut parts: Vec<(String, Snapshot)> = Vec::new();
        for drive in answer.iter().flat_map(|answer| &answer.drives) {
            let answer = answer.as_ref().expect("an answer with drives");
            let name = match &self.sources[source] {
                Source::Drive(path) => path.display().to_string(),
                Source::Server(_) if self.sources.len() == 1 => drive.name.clone(),
                Source::Server(url) => format!("{} at {url}", drive.name),
            };
            parts.push((name, Snapshot { drives: vec![drive.clone()], ..answer.clone() }));
        }
        for drive in self.drives.iter_mut().filter(|drive| drive.source == source) {
            let part = parts.iter().position(|(name, _)| *name == drive.name);
            drive.update(part.map(|index| parts.swap_remove(index).1));
        }
        for (name, now) in parts {
            self.drives.push(Watched { source, name, now: Some(now), rates: VecDeque::new() });
        }
    }
}

impl Watched {
    /// Advances to a later snapshot.
    fn update(&mut self, later: Option<Snapshot>) {
        if let (Some(earlier), Some(later)) = (&self.now, &later) {
            match later.now_ns.checked_sub(earlier.now_ns) {
                Some(ns) if ns > 0 => {
                    let seconds = ns as f64 / 1e9;
                    let (from, to) = (&earlier.drives[0], &later.drives[0]);
                    self.rates.push_back(Rates::between(from, to, seconds));
                }
                // The server was restarted.
                _ => self.rates.clear(),
            }
            if self.rates.len() > HISTORY {
                self.rates.pop_front();
            }
        }
        self.now = later;
    }
}

/// Returns the token for servers, if there is one.
///
/// # Errors
/// The file cannot be read, or there is no server to send the token to.
fn token(args: &Args) -> Result<Option<String>> {
    let Some(path) = &args.token_file else { return Ok(None) };
    if !args.sources.iter().any(|source| matches!(source, Source::Server(_))) {
        let what = "--token-file needs a server URL: add one, or omit the option";
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let token = std::fs::read_to_string(path);
    let path = path.display();
    let token = token.map_err(|error| Error::os(format!("cannot read {path}"), error))?;
    let token = token.trim();
    if token.is_empty() || !token.chars().all(|c| c.is_ascii_graphic()) {
        let what = format!("{path} contains no token: use the file of `serve --http-token-file`");
        return Err(Error::new(ErrorKind::InvalidInput, what));
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
        runtime.block_on(runtime.sleep_ns(args.interval.as_nanos() as u64));
        watching.look();
        return sample(&watching, args.json).map(|()| Outcome::Good);
    }
    if !std::io::stdout().is_terminal() {
        let what = "stdout is not a terminal: use --once or --json to print a sample";
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    interactive(&mut watching, args.interval)?;
    Ok(Outcome::Good)
}

/// Prints one sample of each drive.
fn sample(watching: &Watching, as_json: bool) -> Result<()> {
    if !as_json {
        return print(&view::text(&watching.drives));
    }
    let sample = |drive: &Watched| {
        let mut sample = json!({ "rates": drive.rates.back(), "snapshot": drive.now });
        match &watching.sources[drive.source] {
            Source::Drive(path) => sample["path"] = json!(path),
            Source::Server(url) => sample["url"] = json!(url),
        }
        sample
    };
    print_json(&watching.drives.iter().map(sample).collect::<Vec<_>>())
}

fn interactive(watching: &mut Watching, interval: Duration) -> Result<()> {
    let ending = super::signals::flag()?;
    // Real time, for a person.
    let clock = Runtime::new(Backend::Threads)?;
    let cannot = |error| Error::os("cannot use the terminal", error);
    let mut terminal = ratatui::try_init().map_err(cannot)?;
    let shown = show(&mut terminal, watching, interval, &clock, &ending);
    ratatui::restore();
    shown.map_err(cannot)
}

/// Waits for input. The library that reads keys does not notice a closed terminal and would read
/// its end forever.
fn wait_for_input(limit: Duration) -> std::io::Result<Input> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        // Keys then come from the controlling terminal, and the library waits for them.
        return Ok(if event::poll(limit)? { Input::Some } else { Input::None });
    }
    let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
    let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
    match rustix::event::poll(&mut polled, Some(&limit)) {
        Ok(0) | Err(Errno::INTR) => Ok(Input::None),
        Ok(_) if polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) => Ok(Input::Gone),
        Ok(_) => Ok(Input::Some),
        Err(error) => Err(error.into()),
    }
}

/// Draws and samples until a key or a signal ends it.
fn show(
    terminal: &mut DefaultTerminal,
    watching: &mut Watching,
    interval: Duration,
    clock: &Runtime,
    ending: &AtomicBool,
) -> std::io::Result<()> {
    let mut chosen = 0;
    let mut next_ns = clock.now_ns() + interval.as_nanos() as u64;
    while !ending.load(Ordering::Relaxed) {
        terminal.draw(|frame| view::draw(frame, &watching.drives, chosen))?;
        let wait = Duration::from_nanos(next_ns.saturating_sub(clock.now_ns()));
        let has_key = match wait_for_input(wait.min(KEY_MAX))? {
            Input::Gone => return Ok(()),
            Input::None => Ok(false),
            // The input may be half a key sequence, with the rest arriving within a moment.
            Input::Some => event::poll(KEY_REST),
        };
        match has_key {
            Ok(true) => {}
            Ok(false) => {
                if clock.now_ns() >= next_ns {
                    watching.look();
                    next_ns = clock.now_ns() + interval.as_nanos() as u64;
                }
                continue;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        // A resize needs only the next drawing.
        let Event::Key(KeyEvent { code, modifiers, kind, .. }) = event::read()? else { continue };
        let is_control = modifiers.contains(KeyModifiers::CONTROL);
        match code {
            _ if kind == KeyEventKind::Release => {}
            KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
            KeyCode::Char('c') if is_control => return Ok(()),
            KeyCode::Up | KeyCode::Char('k') => chosen = chosen.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => {
                chosen = (chosen + 1).min(watching.drives.len().max(1) - 1)
            }
            _ => {}
        }
    }
    Ok(())
}
