//! SIGINT, SIGTERM and SIGHUP: the only place that catches them.
//!
//! | command | first signal | second signal |
//! |---|---|---|
//! | `serve` | [`Signals`]: shut down; SIGHUP may restart | end the process as it is |
//! | `attach` | [`socket`]: detach, unless the device is in use | the same again |
//! | `top`, `demo` | [`flag()`]: end at the next step | the same again |
//! | other long commands | [`Interrupt`]: end at the next step | end the process as it is |
//!
//! A command that a signal has stopped before it was done exits with 128 plus the signal's number,
//! as shells expect; a server that has shut down is done.

use std::io::{IsTerminal, stderr, stdin};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};

use pumice_drive::runtime::Runtime;

/// The signals that end a command.
const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Number of the last signal that asked a command to stop; 0 before.
static STOPPED_BY: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// The failed operation, for every error in this file but one.
const CANNOT_CATCH: &str = "cannot catch signals";

/// Sets `asked` at the first `signal`, and ends the process with `exit_code` at the second.
fn set_then_exit(signal: i32, exit_code: i32, asked: &Arc<AtomicBool>) -> Result<()> {
    // The order counts: the first signal finds the flag unset, and sets it.
    flag::register_conditional_shutdown(signal, exit_code, asked.clone())
        .and_then(|_| flag::register(signal, asked.clone()))
        .map(drop)
        .context(CANNOT_CATCH)
}

/// Returns the exit code of a command that has not finished its work because a signal asked it to
/// stop; `None` if no signal has arrived.
pub(crate) fn exit_code() -> Option<u8> {
    let signal = STOPPED_BY.load(Ordering::Relaxed);
    u8::try_from(signal).ok().filter(|signal| *signal > 0).map(|signal| 128 + signal)
}

/// Records each `signal` for [`exit_code`].
fn note(signal: i32) -> Result<()> {
    let number = usize::try_from(signal).expect("signals are positive");
    flag::register_usize(signal, STOPPED_BY.clone(), number).map(drop).context(CANNOT_CATCH)
}

/// Returns a flag that each signal sets.
///
/// # Errors
/// Errors of the operating system.
#[cfg(any(feature = "bench", feature = "top"))]
pub(crate) fn flag() -> Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in ENDING {
        note(signal)?;
        flag::register(signal, asked.clone()).context(CANNOT_CATCH)?;
    }
    Ok(asked)
}

/// Returns a socket that receives one byte for each signal.
///
/// # Errors
/// Errors of the operating system.
#[cfg(feature = "attach")]
pub(crate) fn socket() -> Result<OwnedFd> {
    let (receiver, sender) = UnixStream::pair().context(CANNOT_CATCH)?;
    for signal in ENDING {
        let sender = sender.try_clone().context(CANNOT_CATCH)?;
        pipe::register(signal, sender).context(CANNOT_CATCH)?;
    }
    Ok(receiver.into())
}

/// Whether the process was asked to stop: at the first signal a long command ends at its next step,
/// at the second the process ends immediately.
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Starts to catch signals.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn catch() -> Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in ENDING {
            note(signal)?;
            set_then_exit(signal, 128 + signal, &asked)?;
        }
        Ok(Self(asked))
    }

    /// Returns the flag that a signal sets.
    #[cfg(feature = "bench")]
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0
    }

    /// Whether a signal has arrived.
    pub(crate) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The signals that a server waits for: shut down, or restart.
#[derive(Clone)]
pub(crate) struct Signals {
    /// Receives one byte for each signal.
    socket: Arc<OwnedFd>,
    is_ending: Arc<AtomicBool>,
}

impl Signals {
    /// Starts to catch SIGINT and SIGTERM, which request shutdown, and SIGHUP, which requests a
    /// restart if `may_restart`, else shutdown. A second request for shutdown ends the process
    /// immediately; unflushed writes are lost.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn catch(may_restart: bool) -> Result<Self> {
        let (receiver, sender) = UnixStream::pair().context(CANNOT_CATCH)?;
        let is_ending = Arc::new(AtomicBool::new(false));
        for signal in ENDING {
            let sender = sender.try_clone().context(CANNOT_CATCH)?;
            if signal != SIGHUP || !may_restart {
                set_then_exit(signal, 128 + signal, &is_ending)?;
            }
            pipe::register(signal, sender).context(CANNOT_CATCH)?;
        }
        // The program that executed this one may have blocked them, see `block`.
        all().thread_unblock().context(CANNOT_CATCH)?;
        Ok(Self { socket: Arc::new(receiver.into()), is_ending })
    }

    /// Waits for a signal.
    pub(crate) async fn next(&self, runtime: &Runtime) {
        // An error ends the wait as well; the caller then checks the flag.
        let _ = runtime.receive(&self.socket, vec![0; 1], 0..1).await;
    }

    /// Whether a signal has requested shutdown.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }
}

/// Blocks the signals until [`Signals::catch`] in the program that this process executes next.
/// Otherwise SIGHUP would end that program before it catches signals, because handlers do not
/// survive an exec. A signal that arrives after this call is delivered to the next program, unless
/// another thread of this one takes it.
///
/// # Errors
/// Errors of the operating system.
pub(crate) fn block() -> Result<()> {
    all().thread_block().context("cannot block signals")
}

/// Starts threads, in `start`, that no signal interrupts: a signal that arrives while this thread
/// has blocked signals waits for it.
///
/// # Errors
/// Errors of the operating system.
pub(crate) fn blocked<T>(start: impl FnOnce() -> T) -> Result<T> {
    // A new thread has the mask of the one that starts it.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let mask = mask.context("cannot block signals")?;
    let started = start();
    mask.thread_set_mask().context("cannot unblock signals")?;
    Ok(started)
}

/// Whether SIGHUP means that the terminal was closed, and so requests shutdown, not a restart.
pub(crate) fn is_on_a_terminal() -> bool {
    stdin().is_terminal() || stderr().is_terminal()
}

fn all() -> SigSet {
    SigSet::from_iter([Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM])
}
