//! Audits of snapshots: whenever a snapshot may have lost data, the drive looks up each block of
//! each snapshot. A read finds a loss only in the blocks that it reads, and not after the snapshot
//! is deleted or a table leads elsewhere.
//!
//! An audit runs in one poll of the calling task, and reads below the faults. So nothing else
//! happens meanwhile, no time passes, and a seed determines the same run with and without audits.

use std::cell::Cell;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::oracle::Mismatch;
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

    /// Returns whether a segment was freed since the last call or audit.
    pub(super) fn take_due(&self) -> bool {
        self.is_due.take()
    }

    /// Audits the snapshots of a drive. If reads of the medium fail, some segments may be stuck.
    pub(super) fn run(&self, drive: &Drive, reads_fail: bool) -> Result<(), Mismatch> {
        self.is_due.set(false);
        self.is_running.set(true);
        let polled = pin!(drive.audit_snapshots()).poll(&mut Context::from_waker(Waker::noop()));
        self.is_running.set(false);
        let found = match polled {
            Poll::Ready(Ok(audit)) if audit.stuck == 0 || reads_fail => return Ok(()),
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
