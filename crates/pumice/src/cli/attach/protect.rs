//! Protects the process that serves a device when memory is short: the kernel may be waiting for
//! this very device to free memory.
//!
//! None of these protections is indispensable, so a failure is a warning.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::configure_io_flusher_behavior;

/// As for other daemons that storage depends on: killed almost last, but not unkillable.
const OOM_SCORE_ADJ: &str = "-900";

/// Protections that failed; reported once the device is ready.
#[derive(Default)]
pub(super) struct Failures(Vec<String>);

/// Locks this process's memory, and keeps its allocations from waiting for I/O. Applies to the
/// calling thread and to threads that it starts afterwards.
pub(super) fn against_reclaim() -> Failures {
    let mut failures = Failures::default();
    // Pages are locked when they are touched: most of the memory that the map may take is never
    // used.
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(error) = mlockall(flags) {
        failures.0.push(format!("cannot lock memory: {error}"));
    }
    if let Err(error) = configure_io_flusher_behavior(true) {
        failures.0.push(format!("cannot set the I/O flusher flag: {error}"));
    }
    failures
}

/// Makes it unlikely that the kernel's OOM killer chooses this process, and logs all failures.
pub(super) fn against_killing(mut failures: Failures) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ) {
        failures.0.push(format!("cannot set oom_score_adj: {error}"));
    }
    if !failures.0.is_empty() {
        let reason = failures.0.join("; ");
        tracing::warn!(reason, "the device may hang if memory runs out");
    }
}
