//! Keeps the process that serves a device going when memory is short: the kernel may be waiting for
//! this very device to get memory back.
//!
//! None of it is indispensable, so what cannot be had is a warning.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::configure_io_flusher_behavior;

/// As for other daemons that storage depends on: nearly the last to be killed, but not unkillable.
const OOM_SCORE_ADJ: &str = "-900";

/// What could not be had: said once the device is ready, as it is no reason for a refusal.
#[derive(Default)]
pub(super) struct Lacks(Vec<String>);

/// Keeps this process's memory in memory, and its allocations from waiting for I/O. Of threads, it
/// concerns the calling one and those that it starts from now on.
pub(super) fn against_reclaim() -> Lacks {
    let mut lacks = Lacks::default();
    // Pages are locked as they are touched: most of what the map may take is never used.
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(error) = mlockall(flags) {
        lacks.0.push(format!("cannot lock memory: {error}"));
    }
    if let Err(error) = configure_io_flusher_behavior(true) {
        lacks.0.push(format!("cannot become an I/O flusher: {error}"));
    }
    lacks
}

/// Makes it unlikely that this process is chosen when the kernel must kill one, and says what could
/// not be had.
pub(super) fn against_killing(mut lacks: Lacks) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ) {
        lacks.0.push(format!("cannot lower the chance of being killed for it: {error}"));
    }
    if !lacks.0.is_empty() {
        tracing::warn!("the device may hang if memory runs out: {}", lacks.0.join("; "));
    }
}
