//! The terminal and its keys.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::watching::Watching;
use super::{nanoseconds, view};
use crate::signals;
use pumice_drive::base::Clock;
use pumice_drive::runtime::{Backend, Runtime};

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

/// Shows the drives until a key, a signal or the end of the terminal.
///
/// # Errors
/// The terminal cannot be used.
pub(super) fn interactive(watching: &mut Watching, interval: Duration) -> Result<()> {
    let ending = signals::flag()?;
    // Real time, because a person is watching.
    let clock = Runtime::new(Backend::Threads)?;
    let cannot = "cannot use the terminal";
    let mut terminal = ratatui::try_init().context(cannot)?;
    let shown = show(&mut terminal, watching, interval, &clock, &ending);
    ratatui::restore();
    shown.context(cannot)
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
    let mut next_ns = clock.now_ns() + nanoseconds(interval);
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
                    next_ns = clock.now_ns() + nanoseconds(interval);
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
