//! Requests about clones: registering one with its origin, and making one independent.

use std::cell::Cell;
use std::rc::Rc;

use super::super::protocol::{Answer, Progress};
use super::Link;
use pumice_drive::base::Result;
use pumice_drive::controller::{Drive, Flattened, SnapshotInfo};

/// Changes the list of clones; returns `None` if the client is gone.
pub(super) async fn change(
    link: &Link,
    drive: &Rc<Drive>,
    change: impl AsyncFnOnce(Rc<Drive>) -> Result<Vec<SnapshotInfo>> + 'static,
) -> Option<Answer> {
    let worker = drive.clone();
    let changing = async move { change(worker).await };
    Some(match link.run_to_its_end(changing, Progress::default).await? {
        Ok(changed) => Answer::Snapshots(changed),
        Err(error) => Answer::failed(&error),
    })
}

/// Flattens the drive; returns `None` if the client is gone.
pub(super) async fn flatten(link: &Link, drive: &Rc<Drive>) -> Option<Answer> {
    let so_far = Rc::new(Cell::new(Flattened::default()));
    let (worker, shown) = (drive.clone(), so_far.clone());
    let flattening = async move {
        let flattened = worker
            .flatten(|so_far| {
                shown.set(so_far);
                true
            })
            .await;
        if let Ok(Flattened { copied_bytes, is_complete, .. }) = flattened {
            tracing::info!(copied_bytes, is_complete, "flattened");
        }
        flattened
    };
    let progress = || Progress {
        done: so_far.get().done_bytes,
        total: so_far.get().total_bytes,
        bytes: so_far.get().done_bytes,
    };
    Some(match link.run_to_its_end(flattening, progress).await? {
        Ok(flattened) => Answer::Flattened(flattened),
        Err(error) => Answer::failed(&error),
    })
}
