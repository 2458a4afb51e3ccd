//! Ctrl-C for subcommands that work through something long: the first one asks them to stop, a
//! second one ends the process as it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use pumice_drive::base::{Error, Result};

/// Whether somebody asked the process to stop.
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Begins to catch SIGINT, SIGTERM and SIGHUP.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn catch() -> Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // The order counts: the first signal finds the flag unset, and sets it.
            signal_hook::flag::register_conditional_shutdown(signal, 2, asked.clone())
                .and_then(|_| signal_hook::flag::register(signal, asked.clone()))
                .map_err(|error| Error::os("cannot catch signals", error))?;
        }
        Ok(Self(asked))
    }

    /// Set once a signal has come.
    #[cfg(feature = "bench")]
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0
    }

    /// Whether a signal has come.
    pub(crate) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
