//! `pumice top`: what served drives do, in the terminal, once a second.
//!
//! Asks servers on this machine through their control sockets, as `pumice info` does: they need no
//! HTTP. Others are asked over theirs. The terminal is put back as it was however this ends, by a
//! panic too.

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

/// How long to wait for a key before signals are looked at.
const KEY_MAX: Duration = Duration::from_millis(200);

/// How long the rest of a key may take that has begun to arrive.
const KEY_REST: Duration = Duration::from_millis(10);

/// What there is to read from the terminal.
enum Input {
    None,
    Some,
    /// The terminal has been closed.
    Gone,
}

/// Watch served drives in the terminal
///
/// Shows what hosts write against what the medium gets, how well data compresses, latencies, space
/// and garbage collection. Keys: up and down choose a drive, q ends.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice top drive.pumice
  pumice top a.pumice b.pumice --interval 5
  pumice top http://127.0.0.1:9110
  pumice top drive.pumice --once --json")]
pub(crate) struct Args {
    /// Drives that are served on this machine, or http://ADDR:PORT of a server with --http, for all
    /// of its drives
    #[arg(required = true, value_name = "PATH|URL")]
    sources: Vec<Source>,

    /// File with the token that servers at a URL want
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Seconds between looks, from 0.1 to 3600
    #[arg(long, default_value = "1", value_parser = interval, value_name = "SECONDS")]
    interval: Duration,

    /// Print one sample as text and end
    #[arg(long)]
    once: bool,

    /// Print one sample as JSON and end
    #[arg(long)]
    json: bool,
}

/// Reads an interval for clap.
fn interval(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    let seconds = seconds.ok_or(format!("'{text}' is no number of seconds from 0.1 to 3600"))?;
    Ok(Duration::from_secs_f64(seconds))
}

/// Drives that are watched, and where to ask for them.
struct Watching {
    asker: Asker,
    sources: Vec<Source>,
    drives: Vec<Watched>,
}

/// A drive that is watched.
pub(super) struct Watched {
    /// Which of the sources answers for it.
    source: usize,
    /// As it was named, or as its server names it.
    name: String,
    /// The newest snapshot, of this drive alone; none while nobody answers.
    now: Option<Snapshot>,
    /// Rates from one snapshot to the next, the newest last.
    rates: VecDeque<Rates>,
}

impl Watching {
    /// Looks for the first time, when all must answer.
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

    /// Asks everywhere for a snapshot. A server that ends or is busy just now may answer the next
    /// time.
    fn look(&mut self) {
        for index in 0..self.sources.len() {
            let answer = self.asker.ask(&self.sources[index]).ok();
            self.take(index, answer);
        }
    }

    /// Gives each drive its part of what a place answered; drives that are new there are watched
    /// from now on.
    fn take(&mut self, source: usize, answer: Option<Snapshot>) {
        let mut parts: Vec<(String, Snapshot)> = Vec::new();
        for drive in answer.iter().flat_map(|answer| &answer.drives) {
            let answer = answer.as_ref().expect("it has drives");
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
    /// Goes on to a newer snapshot.
    fn update(&mut self, later: Option<Snapshot>) {
        if let (Some(earlier), Some(later)) = (&self.now, &later) {
            match later.now_ns.checked_sub(earlier.now_ns) {
                Some(ns) if ns > 0 => {
                    let seconds = ns as f64 / 1e9;
                    let (from, to) = (&earlier.drives[0], &later.drives[0]);
                    self.rates.push_back(Rates::between(from, to, seconds));
                }
                // Another server.
                _ => self.rates.clear(),
            }
            if self.rates.len() > HISTORY {
                self.rates.pop_front();
            }
        }
        self.now = later;
    }
}

/// The token that servers want, if one is given.
///
/// # Errors
/// The file cannot be read, or there is no server to give the token to.
fn token(args: &Args) -> Result<Option<String>> {
    let Some(path) = &args.token_file else { return Ok(None) };
    if !args.sources.iter().any(|source| matches!(source, Source::Server(_))) {
        let what = "--token-file is for servers at a URL: name one, or leave it out";
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let token = std::fs::read_to_string(path);
    let path = path.display();
    let token = token.map_err(|error| Error::os(format!("cannot read {path}"), error))?;
    let token = token.trim();
    if token.is_empty() || !token.chars().all(|c| c.is_ascii_graphic()) {
        let what = format!("{path} holds no token: give the file of `serve --http-token-file`");
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    Ok(Some(token.to_owned()))
}

/// Runs the subcommand.
///
/// # Errors
/// A drive is not served, a server does not let us look, or there is no terminal.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let mut watching = Watching::start(Asker::new(token(args)?), &args.sources)?;
    if args.once || args.json {
        let runtime = Runtime::new(Backend::Threads)?;
        runtime.block_on(runtime.sleep_ns(args.interval.as_nanos() as u64));
        watching.look();
        return sample(&watching, args.json).map(|()| Outcome::Good);
    }
    if !std::io::stdout().is_terminal() {
        let what = "there is no terminal to draw on: --once and --json print a sample";
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

/// Waits for something to read. The library that reads keys does not see a terminal that is closed:
/// it would read its end for ever.
fn wait_for_input(limit: Duration) -> std::io::Result<Input> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        // Then keys come from the controlling terminal, and the library waits for them.
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

/// Draws and looks until somebody ends it.
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
            // What is there may be half a key, and the rest of it a moment away.
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
        // A resize needs nothing but the next drawing.
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
