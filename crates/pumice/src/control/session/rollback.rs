//! Rolls back a drive that is served, and that no client uses.
//!
//! A client that has read the disk may have cached contents that the rollback replaces. The drive
//! changes the disk in one step, and checks in that step whether there are clients. Clients that
//! connect later read only the new disk.

use std::rc::Rc;

use super::super::protocol::{Answer, Progress};
use super::{LISTED_MAX, Link, Served, refresh};
use pumice_drive::base::{Error, ErrorKind};
use pumice_drive::controller::SnapshotInfo;

/// Rolls the drive back; returns `None` if the client is gone. The snapshots that were deleted are
/// sent before the answer.
pub(super) async fn roll_back(
    link: &Link,
    served: &Served,
    name: String,
    deletes_newer: bool,
) -> Option<Answer> {
    let Some(exports) = served.snapshots.clone() else {
        let what = "it is attached, and the host may have cached its data: detach it, then roll it \
                    back";
        return Some(Answer::failed(&Error::new(ErrorKind::Busy, what)));
    };
    let (worker, all) = (served.drive.clone(), link.all.clone());
    let rolling = async move {
        let newer = if deletes_newer { newer_than(&worker.snapshots(), &name) } else { Vec::new() };
        exports.until_unused().await;
        let mut result = exports.check_unused();
        for info in &newer {
            if result.is_ok() {
                result = exports.withdraw(&info.name).await;
            }
        }
        let mut rolled = result.map(|()| None);
        if rolled.is_ok() {
            let condition = exports.clone();
            let is_unused = Rc::new(move || condition.check_unused());
            rolled = worker.roll_back_if(&name, deletes_newer, is_unused).await.map(Some);
        }
        // Offers the remaining snapshots again.
        refresh(Some(exports), &all).await;
        Ok::<_, Error>((rolled?, newer))
    };
    let (info, deleted) = match link.run_to_its_end(rolling, Progress::default).await? {
        Ok(done) => done,
        Err(error) => return Some(Answer::failed(&error)),
    };
    for part in deleted.chunks(LISTED_MAX) {
        if !link.send(&Answer::SomeSnapshots(part.to_vec())).await {
            return None;
        }
    }
    let rolled: Vec<SnapshotInfo> = info.into_iter().collect();
    if let Some(info) = rolled.first() {
        tracing::info!(snapshot = info.name, sequence = info.sequence, "rolled back");
    }
    Some(Answer::Snapshots(rolled))
}

/// Returns the snapshots that were taken after the named one.
fn newer_than(all: &[SnapshotInfo], name: &str) -> Vec<SnapshotInfo> {
    let target = all.iter().position(|info| info.name == name);
    target.map_or(Vec::new(), |at| all.iter().skip(at + 1).cloned().collect())
}
