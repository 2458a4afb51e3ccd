//! Checks every few seconds whether the files of open drives are still where they were opened, on
//! one thread for all of them, because a check may block.

use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use crate::signals;
use pumice_drive::media::file::{Look, PathWatch};

/// Pause between two checks: two system calls for each drive. Arbitrary.
const PAUSE: Duration = Duration::from_secs(2);

/// The channel to the thread; `None` if the thread could not be started.
static LOOKER: LazyLock<Option<Sender<PathWatch>>> = LazyLock::new(|| {
    let (sender, receiver) = channel();
    let start = || Builder::new().name("path_watch".into()).spawn(move || look_on(&receiver));
    match signals::blocked(start) {
        Ok(Ok(_)) => Some(sender),
        _ => None,
    }
});

/// Checks a drive from now on, until it is closed, and logs changes.
pub(crate) fn watch(drive: PathWatch) {
    if let Some(looker) = &*LOOKER {
        // The thread does not end.
        let _ = looker.send(drive);
    }
}

fn look_on(added: &Receiver<PathWatch>) {
    let mut drives = Vec::new();
    loop {
        match added.recv_timeout(PAUSE) {
            Ok(drive) => drives.push(drive),
            Err(RecvTimeoutError::Timeout) => drives.retain(is_open),
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // Waits while there are no drives to check.
        while drives.is_empty() {
            match added.recv() {
                Ok(drive) => drives.push(drive),
                Err(_) => return,
            }
        }
    }
}

/// Checks once, and logs; returns whether the drive is still open.
fn is_open(drive: &PathWatch) -> bool {
    let path = drive.path().display();
    match drive.look() {
        Some(Look::Lost(what)) => tracing::error!(drive = %path, what, "the drive is misplaced"),
        Some(Look::Back) => tracing::info!(drive = %path, "the drive is back in its place"),
        Some(Look::AsBefore) => {}
        None => return false,
    }
    true
}
