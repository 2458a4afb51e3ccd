//! Snapshots of several drives at one moment.
//!
//! ```text
//! drives that are served: suspend ------> create --> the host's changes are resumed
//!                         suspend ------> create --> ...
//! closed ones:            open .........> create --> close
//! ```
//!
//! All drives are suspended, or open here, before the first snapshot is begun. So every snapshot
//! contains all writes that were acknowledged before that moment, and no write that was sent after
//! a later acknowledgement.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use uuid::Uuid;

use super::{ask, change, new};
use crate::control::{self, Answer, Request};
use crate::open;
use pumice_drive::controller::{Drive, NewSnapshot, OpenOptions, SnapshotInfo};
use pumice_drive::runtime::{Backend, Runtime};

/// Time limit for a server to suspend its host's changes: it first removes the map leaves of
/// trimmed ranges.
const SUSPENDED_WITHIN: Duration = Duration::from_secs(10);

/// A drive, and the name of its new snapshot.
pub(super) type Wanted = (PathBuf, String);

/// Takes a snapshot of each drive, all at the same moment if there are several.
///
/// # Errors
/// A snapshot cannot be taken: then none of them is kept.
pub(super) fn create(wanted: &[Wanted], yields: bool) -> Result<Vec<SnapshotInfo>> {
    if let [(path, name)] = wanted {
        let new = new(name.clone(), yields);
        let request = Request::CreateSnapshot(new.clone());
        return change(path, &request, async |drive| Ok(vec![drive.create_snapshot(new).await?]));
    }
    let runtime = Runtime::new(Backend::Auto)?;
    let mut drives = Vec::new();
    for (path, name) in wanted {
        let closed = match control::connect(path)? {
            Some(_) => None,
            None => {
                let options = OpenOptions { compact_percent: None, ..OpenOptions::default() };
                Some(open::alone(&runtime, path, options)?)
            }
        };
        drives.push(Member { path, new: new(name.clone(), yields), closed });
    }
    let mut taken = create_all(&runtime, &drives);
    if taken.iter().any(Result::is_err) {
        for (drive, _) in drives.iter().zip(&taken).filter(|(_, taken)| taken.is_ok()) {
            if let Err(error) = drive.delete(&runtime) {
                eprintln!("pumice: {error:#}");
            }
        }
    }
    for (drive, taken) in drives.iter().zip(&mut taken) {
        if let Some(closed) = &drive.closed
            && let Err(error) = runtime.block_on(closed.close())
            && taken.is_ok()
        {
            *taken = Err(error).with_context(|| drive.path.display().to_string());
        }
    }
    runtime.drop_tasks();
    taken.into_iter().collect::<Result<_>>().context("no snapshot was kept")
}

/// One of several drives.
struct Member<'a> {
    path: &'a Path,
    new: NewSnapshot,
    /// Open in this process, if it is not served.
    closed: Option<Rc<Drive>>,
}

impl Member<'_> {
    fn delete(&self, runtime: &Runtime) -> Result<()> {
        match &self.closed {
            Some(drive) => {
                runtime.block_on(drive.delete_snapshot(&self.new.name))?;
            }
            None => {
                super::delete_only(self.path, std::slice::from_ref(&self.new.name))?;
            }
        }
        Ok(())
    }
}

/// Suspends the changes of all drives that are served, then takes all snapshots.
fn create_all(runtime: &Runtime, drives: &[Member<'_>]) -> Vec<Result<SnapshotInfo>> {
    let served: Vec<_> = drives.iter().filter(|drive| drive.closed.is_none()).collect();
    thread::scope(|scope| {
        let (suspended, is_suspended) = mpsc::channel();
        let suspending = served.iter().map(|drive| {
            let (suspended, path, guid) = (suspended.clone(), drive.path, drive.new.guid);
            scope.spawn(move || suspend(path, guid, &suspended))
        });
        let suspending: Vec<_> = suspending.collect();
        drop(suspended);
        let all_suspended =
            served.iter().try_for_each(|_| is_suspended.recv_timeout(SUSPENDED_WITHIN));
        let creating: Vec<_> = drives
            .iter()
            .map(|drive| {
                let create = Request::CreateSnapshot(drive.new.clone());
                let path = drive.path;
                let is_served = drive.closed.is_none() && all_suspended.is_ok();
                let create = move || match control::connect(path)? {
                    Some(client) => ask(client, path, &create),
                    None => Ok(None),
                };
                is_served.then(|| scope.spawn(create))
            })
            .collect();
        let taken: Vec<Result<SnapshotInfo>> = drives
            .iter()
            .zip(creating)
            .map(|(drive, creating)| {
                let path = drive.path.display();
                if let Err(error) = &all_suspended {
                    return Err(anyhow!("the servers do not suspend their hosts' writes: {error}"));
                }
                match (&drive.closed, creating) {
                    (Some(closed), _) => {
                        let creating = closed.create_snapshot(drive.new.clone());
                        runtime.block_on(creating).with_context(|| path.to_string())
                    }
                    (None, Some(creating)) => {
                        let taken = creating.join().expect("no thread panics")?;
                        let taken = taken.and_then(|taken| taken.into_iter().next());
                        taken.with_context(|| format!("{path}: its server has stopped"))
                    }
                    (None, None) => unreachable!("a drive that is not open here is served"),
                }
            })
            .collect();
        let ended = suspending.into_iter().map(|thread| thread.join().expect("no thread panics"));
        // The reason why one drive could not be suspended is more useful than the fact that the
        // others were not.
        let mut failed: Vec<_> = ended.collect::<Vec<_>>().into_iter().map(Result::err).collect();
        let mut at = 0;
        let with_reason = taken.into_iter().zip(drives).map(|(taken, drive)| {
            if drive.closed.is_some() {
                return taken;
            }
            at += 1;
            failed[at - 1].take().map_or(taken, Err)
        });
        with_reason.collect()
    })
}

/// Makes a server suspend its host's changes until the snapshot is begun; signals on `suspended`
/// once it does.
fn suspend(path: &Path, guid: Uuid, suspended: &mpsc::Sender<()>) -> Result<()> {
    let client = control::connect(path)?;
    let client = client.with_context(|| format!("{}: the server has stopped", path.display()))?;
    let answer = client.ask(&Request::SuspendChanges { guid }, |answer| {
        if matches!(answer, Answer::Suspended) {
            // The waiting thread may have given up.
            let _ = suspended.send(());
        }
    });
    match answer.with_context(|| path.display().to_string())? {
        Some(Answer::Resumed { in_the_snapshot: true }) => Ok(()),
        Some(Answer::Resumed { in_the_snapshot: false }) => {
            bail!("{}: its writes could not be suspended long enough: try again", path.display())
        }
        _ => bail!("{}: its server has stopped", path.display()),
    }
}
