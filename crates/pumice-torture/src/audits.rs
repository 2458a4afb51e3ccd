//! Audits of snapshots: whenever a snapshot may have lost data, the drive is asked for each block
//! of each snapshot. A read finds a loss only in the blocks that it reads, and not after the
//! snapshot is deleted or a table leads elsewhere.
//!
//! An audit runs in one poll of the calling task, and reads below the faults. So nothing else
//! happens meanwhile, no time passes, and a seed determines the same run with and without audits.

use std::cell::Cell;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::hazard::Hazard;
use super::oracle::Mismatch;
use super::scene::Scene;
use pumice_drive::base::ErrorKind;
use pumice_drive::controller::Drive;

/// Whether an audit runs, and whether one should.
#[derive(Debug, Default)]
pub(super) struct Audits {
    is_running: Cell<bool>,
    is_due: Cell<bool>,
}

impl Audits {
    /// Returns whether an audit is running.
    pub(super) fn is_running(&self) -> bool {
        self.is_running.get()
    }

    /// Records that a segment was freed.
    pub(super) fn segment_freed(&self) {
        self.is_due.set(true);
    }
}

impl Scene {
    /// Audits the snapshots of the drive, if a segment was freed since the last audit.
    pub(super) fn audit_if_due(&self, drive: &Drive) -> Result<(), Mismatch> {
        if self.audits.is_due.get() { self.audit_snapshots(drive) } else { Ok(()) }
    }

    /// Audits the snapshots of the drive, unless damage explains missing data.
    pub(super) fn audit_snapshots(&self, drive: &Drive) -> Result<(), Mismatch> {
        self.audits.is_due.set(false);
        if !self.hazards.has(Hazard::Snapshots) || self.is_damaged.get() {
            return Ok(());
        }
        self.audits.is_running.set(true);
        let polled = pin!(drive.audit_snapshots()).poll(&mut Context::from_waker(Waker::noop()));
        self.audits.is_running.set(false);
        self.tally.borrow_mut().audits += 1;
        let found = match polled {
            Poll::Ready(Ok(audit)) if audit.stuck == 0 || self.faults.get().of_reads => {
                return Ok(());
            }
            Poll::Ready(Ok(audit)) => format!("{} segments cannot be emptied", audit.stuck),
            // The state in memory differs from the state that the next opening finds.
            Poll::Ready(Err(error)) if error.kind() == ErrorKind::Poisoned => return Ok(()),
            Poll::Ready(Err(error)) => error.chain(),
            Poll::Pending => "the audit waits for something".to_owned(),
        };
        Err(Mismatch {
            promised: "snapshots have all of their blocks, and nothing else is retained".to_owned(),
            found,
        })
    }
}
