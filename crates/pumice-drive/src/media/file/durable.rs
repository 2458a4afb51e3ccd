//! Durable appends in one operation, a write with `RWF_DSYNC`. See `pace` for the alternative.
//!
//! ```text
//! written ----------------------------------------> durable
//! short   -> the rest, then fdatasync ------------> durable
//! unknown -> (the flag) all of it, then fdatasync -> durable
//! no space ---------------------------------------> nothing has changed: the drive repeats it
//! error   -> the same bytes again, not durably: fails -> the place cannot be written
//!                                               done  -> it was the sync that failed: poisoned
//! ```
//!
//! Until it is known whether the write or the sync failed, all operations that write or sync wait,
//! and their successes do not count: the kernel may have reported to this operation an error that
//! concerns another one.
//!
//! Used only under direct I/O, where the file has no dirty pages. The kernel reports a lost page
//! once, to the next call that syncs. With pages of other appends in its cache, that could be any
//! of the durable appends in progress. For the same reason, only the write can run out of space.
//! Used only on file systems that are known to honor the flag: FUSE passes it on to a server, which
//! may ignore it.

use std::io;
use std::sync::Arc;

use rustix::fd::AsFd;
use rustix::io::Errno;

use super::{FileKind, FileMedium, Location, SyncOutcome, WRITE_UNIT};
use crate::base::{AlignedBuffer, ErrorKind, Result};
use crate::media::not_durable;
use crate::runtime::Runtime;

/// The magic numbers of file systems whose direct writes honor `RWF_DSYNC` and that overwrite a
/// block of a file in place: ext2 to ext4, XFS. Btrfs may turn a direct write into one through the
/// page cache.
///
/// Source: `include/uapi/linux/magic.h` of Linux 6.18; `iomap_dio_complete` and the callers of
/// `generic_write_sync` in these file systems.
const FILE_SYSTEMS: [u64; 2] = [0xef53, 0x5846_5342];

/// Returns whether a file supports durable appends. The thread pool backend has none: it serves
/// systems whose kernel may not support the flag.
pub(super) fn are_possible(runtime: &Runtime, file: impl AsFd, kind: FileKind) -> bool {
    let magic = rustix::fs::fstatfs(file).map(|answer| answer.f_type.cast_unsigned());
    let keeps_flag = magic.is_ok_and(|magic| FILE_SYSTEMS.contains(&magic));
    (kind == FileKind::Device || keeps_flag) && runtime.backend_name() == "io_uring"
}

impl FileMedium {
    /// Writes a buffer and makes its range durable.
    pub(super) async fn write_durably(
        &self,
        location: Location,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.wait_for_certainty().await?;
        self.check_writable()?;
        let at = self.locate(location, buffer.len(), WRITE_UNIT)?;
        // If this is dropped before its result is known, an error of its sync stays unknown.
        let mut outcome = SyncOutcome { poisoned: &self.poisoned, succeeded: false };
        let result = self.runtime.write_durably_at(&self.file, at, buffer.clone()).await;
        outcome.succeeded = true;
        let is_begun = |error: &io::Error| {
            let is_unknown = Errno::from_io_error(error) == Some(Errno::OPNOTSUPP);
            !is_unknown && error.kind() != io::ErrorKind::Interrupted
        };
        let error = match result {
            Ok(written) if written == buffer.len() => return self.wait_for_certainty().await,
            Err(error) if is_begun(&error) => error,
            short => {
                let short = short.map_err(|_| io::ErrorKind::Interrupted.into());
                let rest = self.write_rest(at, &buffer, short).await;
                rest.map_err(|error| self.failed("write", location, error))?;
                return self.sync_data().await.map_err(not_durable);
            }
        };
        let error = self.failed("write", location, error);
        if error.kind() == ErrorKind::NoSpace {
            return Err(error);
        }
        // Begins immediately: from now on, results of other operations prove nothing.
        let doubt = Doubt::begin(self);
        match self.write_unchecked(location, buffer).await {
            Err(again) if again.kind() != ErrorKind::NoSpace => {
                doubt.end();
                Err(again)
            }
            _ => Err(not_durable(error)),
        }
    }
}

/// The state after a failed durable append, until it is known whether its sync failed. Every
/// operation that syncs waits. Poisons the medium when dropped, unless it was ended.
pub(super) struct Doubt<'a> {
    medium: &'a FileMedium,
    is_place: bool,
}

impl<'a> Doubt<'a> {
    pub(super) fn begin(medium: &'a FileMedium) -> Self {
        medium.doubts.update(|doubts| doubts + 1);
        Self { medium, is_place: false }
    }

    /// Ends the doubt: the location cannot be written, and no sync was started.
    pub(super) fn end(mut self) {
        self.is_place = true;
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if !self.is_place {
            self.medium.poisoned.set(true);
        }
        let doubts = self.medium.doubts.get().checked_sub(1);
        self.medium.doubts.set(doubts.expect("a doubt ends once"));
        self.medium.certain.wake_all();
    }
}
