//! A snapshot of an open drive as a file, for a process that attaches it in addition to the drive.

use std::cell::Cell;
use std::path::Path;
use std::pin::pin;

use futures_util::future::select;

use super::super::protocol::{Answer, Progress};
use super::{Link, Served};
use pumice_drive::base::{Error, ErrorKind};
use pumice_drive::controller::OpenOptions;
use pumice_fuse::FuseMount;

/// Maximum number of snapshots of a drive that are lent at the same time: each occupies one of the
/// client connections.
const LENT_MAX: u32 = 4;

/// Pause between two attempts to unmount the file of a process that was killed, whose loop device
/// still has it open.
const PAUSE_NS: u64 = 1_000_000_000;

/// Counts a lent snapshot until it is dropped.
struct Turn<'a>(&'a Cell<u32>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Lends a snapshot until the client disconnects, or the server ends; returns the error if the loan
/// fails before.
pub(super) async fn lend(
    link: &Link,
    served: &Served,
    name: &str,
    directory: &Path,
    shown: &str,
) -> Option<Answer> {
    if served.lent.get() == LENT_MAX {
        let what = format!("{LENT_MAX} snapshots of the drive are attached: detach one first");
        return Some(Answer::failed(&Error::new(ErrorKind::Busy, what)));
    }
    served.lent.set(served.lent.get() + 1);
    let _turn = Turn(&served.lent);
    let opening = served.drive.view(name, OpenOptions::default());
    let mounted = match link.run(opening, Progress::default).await? {
        Ok(view) => FuseMount::mount(&link.runtime, view, directory, shown),
        Err(error) => Err(error),
    };
    let mut mount = match mounted {
        Ok(mount) => mount,
        Err(error) => return Some(Answer::failed(&error)),
    };
    tracing::info!(snapshot = name, "a snapshot is attached");
    if link.send(&Answer::Lent {}).await {
        select(pin!(link.until_gone()), pin!(link.all.until_the_end())).await;
    }
    while mount.unmount().is_err() {
        let pause = link.runtime.timeout(PAUSE_NS, link.all.until_the_end());
        if pause.await.is_some() {
            break;
        }
    }
    tracing::info!(snapshot = name, "a snapshot is detached");
    None
}
