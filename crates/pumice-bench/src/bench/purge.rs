//! Purges a target: trims the part that a benchmark uses, as `blkdiscard` does for a whole device,
//! so that a flash drive can start in the state of a new one.
//!
//! This is neither a format nor a secure erase: a drive may retain the mapping of the rest of its
//! flash.

use std::rc::Rc;

use super::target::{Access, DriveTarget, FileTarget, Location, NbdTarget, SimTarget, Target};
use crate::error::{Error, Result};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_sim::system::System;

/// Bytes of one trim: a length that every protocol supports.
const TRIM_BYTES: u64 = 64 << 20;

/// Trims the first `bytes` bytes of a target, or truncates its file, and then flushes it.
///
/// # Errors
/// [`Error::Unsupported`] if the target does not support trim; the
/// errors of the target.
pub(super) fn purge(
    location: &Location,
    access: Access,
    sim: Option<&Rc<System>>,
    bytes: u64,
) -> Result<()> {
    if let Some(sim) = sim {
        return sim.runtime().block_on(trim_all(Ok(SimTarget(Rc::clone(sim))), bytes));
    }
    let runtime = Runtime::new(Backend::Auto)?;
    let purged = match location {
        Location::File(_) | Location::Folder(_) => location.empty(),
        Location::Drive(file) => runtime
            .block_on(async { trim_all(DriveTarget::open(&runtime, file).await, bytes).await }),
        Location::Nbd(uri) => {
            runtime.block_on(async { trim_all(NbdTarget::open(&runtime, uri).await, bytes).await })
        }
        Location::Existing(_) => {
            return Err(Error::ReadOnly(format!("{location} is read-only: it is not purged")));
        }
        Location::Device(_) | Location::Sim(_) => {
            runtime.block_on(trim_all(FileTarget::open(&runtime, location, access), bytes))
        }
    };
    runtime.drop_tasks();
    purged
}

async fn trim_all<T: Target>(opened: Result<T>, bytes: u64) -> Result<()> {
    let target = opened?;
    let mut trimmed = Ok(());
    let mut offset = 0;
    while offset < bytes && trimmed.is_ok() {
        let len = TRIM_BYTES.min(bytes - offset);
        trimmed = target.trim(offset, len).await;
        offset += len;
    }
    if trimmed.is_ok() {
        trimmed = target.flush().await;
    }
    let closed = target.close().await;
    trimmed.and(closed)
}
