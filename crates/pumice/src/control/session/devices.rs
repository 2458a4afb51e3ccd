//! Requests about the members of a drive's array.

use std::rc::Rc;

use super::super::protocol::{Answer, Progress};
use super::Link;
use crate::devices::{self, DeviceChange};
use pumice_drive::controller::Drive;

/// Changes the members; returns `None` if the client is gone.
pub(super) async fn change(link: &Link, drive: &Rc<Drive>, change: DeviceChange) -> Option<Answer> {
    let (worker, runtime) = (drive.clone(), link.runtime.clone());
    let changing = async move {
        let changed = devices::change(&runtime, &worker, &change).await;
        if let Err(error) = &changed {
            tracing::warn!(error = %error.chain(), "cannot change the array");
        }
        changed
    };
    let progress = || {
        let rebuild =
            drive.medium().as_array().map(|array| array.info().rebuild).unwrap_or_default();
        Progress { done: 0, total: rebuild.total_bytes, bytes: rebuild.copied_bytes }
    };
    Some(match link.run_to_its_end(changing, progress).await? {
        Ok(info) => Answer::Devices(Box::new(info)),
        Err(error) => Answer::failed(&error),
    })
}
