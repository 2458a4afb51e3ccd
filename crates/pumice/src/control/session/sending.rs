//! Sends a snapshot of a served drive to a client of its control socket.
//!
//! ```text
//! client: {"request":"send","snapshot":"b","since":"a","resume":null}
//! server: {"sending":{...}}   then {"part":{"offset":O,"bytes":N}} and N bytes, again and again
//!         {"sent":{...}}      and the end
//! ```
//!
//! The snapshots are read through views, so that the host can continue to write. They cannot be
//! deleted meanwhile, and garbage collection does not move their data; so a client that takes no
//! data for [`STALL_NS`] is disconnected, and a drive has at most [`SENDS_MAX`] transfers at a
//! time. When the drive is closed, they end, too.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{Either, select};

use super::super::protocol::{Answer, Part, Progress, line};
use super::super::transfer::{Sending, Wanted};
use super::{Link, PROGRESS_NS, Served};
use pumice_drive::base::{Clock, Error, ErrorKind, Result};
use pumice_drive::controller::{Drive, OpenOptions, SendStream, SnapshotInfo, View};

/// Maximum number of snapshots of a drive that are sent at the same time. Arbitrary: enough for a
/// local and a remote copy.
const SENDS_MAX: u32 = 2;

/// Time for which a client may accept no data: longer than interruptions of network connections
/// that are not closed.
const STALL_NS: u64 = 600_000_000_000;

/// Memory for the map of each snapshot, which is read in order: enough for one GiB of the disk.
const MAP_CACHE_BYTES: usize = 4 << 20;

/// Counts one of the snapshots that are being sent.
struct Turn<'a>(&'a Cell<u32>);

impl<'a> Turn<'a> {
    fn of(sends: &'a Cell<u32>) -> Option<Self> {
        (sends.get() < SENDS_MAX).then(|| {
            sends.set(sends.get() + 1);
            Self(sends)
        })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().checked_sub(1).expect("a turn ends once"));
    }
}

/// Sends a snapshot; returns `None` if the client is gone, or the drive is being closed.
pub(super) async fn send(link: &Link, served: &Served, wanted: &Wanted) -> Option<Answer> {
    let Some(_turn) = Turn::of(&served.sends) else {
        let what = format!("{SENDS_MAX} snapshots of the drive are being sent: try again later");
        return Some(Answer::failed(&Error::new(ErrorKind::Busy, what)));
    };
    match select(pin!(send_all(link, &served.drive, wanted)), pin!(link.all.until_the_end())).await
    {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => None,
    }
}

/// An open snapshot, and its description.
type Open = (Rc<Drive>, SnapshotInfo);

fn view((disk, info): &Open) -> View<'_> {
    View { disk, info }
}

async fn send_all(link: &Link, drive: &Rc<Drive>, wanted: &Wanted) -> Option<Answer> {
    let (start, disk, base) = match link.run(open(drive, wanted), Progress::default).await? {
        Ok(opened) => opened,
        Err(error) => return Some(Answer::failed(&error)),
    };
    let mut send = match SendStream::new(view(&disk), base.as_ref().map(view), start) {
        Ok(send) => send,
        Err(error) => return Some(Answer::failed(&error)),
    };
    let (snapshot, since) = (disk.1.clone(), base.as_ref().map(|(_, info)| info.clone()));
    tracing::info!(snapshot = snapshot.name, "a snapshot is being sent");
    let sending = Sending { snapshot, since, start };
    if !link.send(&Answer::Sending(Box::new(sending))).await {
        return None;
    }
    loop {
        let bytes = match next(link, &mut send).await? {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Some(Answer::Sent(send.sent())),
            Err(error) => {
                let (snapshot, chain) = (&disk.1.name, error.chain());
                tracing::warn!(snapshot, error = %chain, "a snapshot cannot be sent");
                return Some(Answer::failed(&error));
            }
        };
        let part = Part { offset: send.sent().offset, bytes: bytes.len() as u64 };
        link.send_within(STALL_NS, line(&Answer::Part(part))).await?;
        send.reuse(link.send_within(STALL_NS, bytes).await?);
    }
}

/// Opens the requested snapshots, and returns the byte at which the transfer starts.
async fn open(drive: &Rc<Drive>, wanted: &Wanted) -> Result<(u64, Open, Option<Open>)> {
    let Sending { snapshot, since, start } = wanted.find(&drive.snapshots())?;
    let disk = open_one(drive, snapshot, false).await?;
    let base = match since {
        Some(since) => Some(open_one(drive, since, true).await?),
        None => None,
    };
    Ok((start, disk, base))
}

/// Opens a snapshot; a bookmark, which is `incomplete`, if that is accepted.
async fn open_one(drive: &Rc<Drive>, info: SnapshotInfo, incomplete: bool) -> Result<Open> {
    let options = OpenOptions {
        map_cache_bytes: MAP_CACHE_BYTES,
        read_cache_bytes: 0,
        incomplete,
        ..OpenOptions::default()
    };
    let disk = drive.view(&info.name, options).await?;
    // From here on the snapshot cannot be deleted. Before, another one may have taken its name.
    if drive.snapshots().iter().all(|found| found.guid != info.guid) {
        let what = format!("the snapshot {} no longer exists", info.name);
        return Err(Error::new(ErrorKind::NotFound, what));
    }
    Ok((disk, info))
}

/// Returns the next bytes of the transfer, and reports meanwhile to the client that the server is
/// alive; `None` if the client is gone.
async fn next(link: &Link, send: &mut SendStream<'_>) -> Option<Result<Option<Vec<u8>>>> {
    let mut work = pin!(send.next());
    loop {
        match select(work.as_mut(), pin!(link.runtime.sleep_ns(PROGRESS_NS))).await {
            Either::Left((next, _)) => return Some(next),
            Either::Right(_) => {
                let report = line(&Answer::Progress(Progress::default()));
                link.send_within(STALL_NS, report).await?;
            }
        }
    }
}
