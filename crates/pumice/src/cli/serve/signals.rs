//! What signals ask of `pumice serve`: to end, or to restart.

use std::io::{IsTerminal, stderr, stdin};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use pumice_drive::base::{Error, Result};
use pumice_drive::runtime::Runtime;

/// The signals that were caught.
#[derive(Clone)]
pub(super) struct Signals {
    /// Gets a byte at each.
    socket: Arc<OwnedFd>,
    is_ending: Arc<AtomicBool>,
}

impl Signals {
    /// Begins to catch SIGINT and SIGTERM, which ask for the end, and SIGHUP, which asks for a
    /// restart if there `may` be one. A second one that asks for the end ends the process as it is:
    /// what was not flushed is lost.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn catch(may_restart: bool) -> Result<Self> {
        let cannot = |error| Error::os("cannot catch signals", error);
        let (receiver, sender) = UnixStream::pair().map_err(cannot)?;
        let is_ending = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let sender = sender.try_clone().map_err(cannot)?;
            if signal != SIGHUP || !may_restart {
                // The order counts: the first signal finds the flag unset, and sets it.
                let flag = || is_ending.clone();
                signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, flag())
                    .and_then(|_| signal_hook::flag::register(signal, flag()))
                    .map_err(cannot)?;
            }
            signal_hook::low_level::pipe::register(signal, sender).map_err(cannot)?;
        }
        // The program before this one may have held them back, see `hold`.
        all().thread_unblock().map_err(|error| cannot(error.into()))?;
        Ok(Self { socket: Arc::new(receiver.into()), is_ending })
    }

    /// Waits for a signal.
    pub(super) async fn next(&self, runtime: &Runtime) {
        let _ = runtime.receive(&self.socket, vec![0; 1], 0..1).await;
    }

    /// Whether one has asked for the end.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }
}

/// Has signals wait for [`Signals::catch`] in the program that this process executes: before that,
/// SIGHUP would end that one, and what this one catches is forgotten with it. A signal that comes
/// later than this is seen by the next program, unless another thread of this one takes it.
///
/// # Errors
/// The operating system's.
pub(super) fn hold() -> Result<()> {
    let held = all().thread_block();
    held.map_err(|error| Error::os("cannot hold signals back", error.into()))
}

/// Whether SIGHUP says that a terminal has gone, and means the end, rather than a request.
pub(super) fn is_on_a_terminal() -> bool {
    stdin().is_terminal() || stderr().is_terminal()
}

fn all() -> SigSet {
    SigSet::from_iter([Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM])
}
