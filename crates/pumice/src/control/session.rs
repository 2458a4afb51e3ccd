//! The server side of a control socket: reads one request from each client and answers it.
//!
//! Limits: [`CLIENTS_MAX`] clients at a time, a request of [`REQUEST_BYTES_MAX`] bytes, and a time
//! limit for every line in and out; the limits of transfers are in `sending`. While a request runs,
//! a progress line is sent every [`PROGRESS_NS`]; a scrub or a compaction is cancelled when one
//! cannot be sent.

mod clones;
mod devices;
#[cfg(feature = "attach")]
mod lending;
mod rollback;
mod sending;

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::{Either, select};
use uuid::Uuid;

use super::protocol::{Answer, ListedClient, Progress, REQUEST_BYTES_MAX, Request, Service, line};
use crate::partitions;
use crate::watch::Watch;
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::base::{Clock, Error, ErrorKind, Result};
use pumice_drive::controller::{
    Drive, NewKeys, NewSnapshot, Resize, Resized, SettingsChange, SnapshotInfo,
};
use pumice_drive::runtime::Runtime;
use pumice_nbd::{Listed, Roster};

/// Maximum number of clients at a time; others wait in the backlog. Enough for a scrub, a resize
/// and several requests for info.
const CLIENTS_MAX: u32 = 8;

/// Time limit for a client to send its request or accept an answer, and the pause after a failed
/// accept.
const CLIENT_NS: u64 = 5_000_000_000;

/// Interval of progress lines, which also detect that a client is gone.
const PROGRESS_NS: u64 = 250_000_000;

/// Time for which the host's changes are suspended for a snapshot of several drives.
const SUSPENDED_NS_MAX: u64 = 1_000_000_000;

/// Time limit for reading the disk for an optional part of an answer.
const LOOK_NS: u64 = 500_000_000;

/// Clients or snapshots in one answer: their names may be long, and an answer has a limit.
const LISTED_MAX: usize = 16;

/// The clients of a socket, until serving ends so that its drive can be closed.
#[derive(Default)]
pub(super) struct Clients {
    count: Cell<u32>,
    are_to_leave: Cell<bool>,
    changed: WaitQueue,
}

impl Clients {
    /// Stops serving: no further request is started.
    pub(super) fn end(&self) {
        self.are_to_leave.set(true);
        self.changed.wake_all();
    }

    /// Waits for the end.
    pub(super) async fn until_the_end(&self) {
        self.changed.wait_for(|| self.are_to_leave.get().then_some(())).await;
    }

    /// Waits until there are at most this many clients.
    pub(super) async fn until_at_most(&self, count: u32) {
        self.changed.wait_for(|| (self.count.get() <= count).then_some(())).await;
    }
}

/// Counts one client until it is dropped.
struct ClientCount(Rc<Clients>);

impl ClientCount {
    fn of(clients: Rc<Clients>) -> Self {
        clients.count.set(clients.count.get() + 1);
        Self(clients)
    }
}

impl Drop for ClientCount {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        self.0.changed.wake_all();
    }
}

/// The drive and the server that a socket serves.
pub(super) struct Served {
    /// The drive's path, as far as it is UTF-8.
    pub(super) path: String,
    pub(super) drive: Rc<Drive>,
    /// The server, and the name of the drive there.
    pub(super) watch: (Rc<Watch>, String),
    pub(super) uris: Rc<RefCell<Vec<String>>>,
    pub(super) snapshots: Option<Rc<dyn SnapshotExports>>,
    /// Numbers of snapshots that are being sent and lent.
    pub(super) sends: Cell<u32>,
    #[cfg(feature = "attach")]
    pub(super) lent: Cell<u32>,
}

/// The exports of a drive's snapshots.
pub(crate) trait SnapshotExports {
    /// Stops offering a snapshot, so that it can be deleted.
    ///
    /// # Errors
    /// `Busy` if clients read it; nothing has changed.
    fn withdraw<'a>(&'a self, name: &'a str) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

    /// Waits for clients of the drive's disk that are disconnecting.
    fn until_unused(&self) -> Pin<Box<dyn Future<Output = ()> + '_>>;

    /// Checks that no client uses the disk of the drive.
    ///
    /// # Errors
    /// `Busy`, with advice.
    fn check_unused(&self) -> Result<()>;

    /// Offers the snapshots that the drive has now, and no others.
    fn refresh(&self) -> Pin<Box<dyn Future<Output = ()> + '_>>;
}

/// Accepts clients until the end, and serves each in a task of its own.
pub(super) async fn serve(
    runtime: Runtime,
    socket: Arc<OwnedFd>,
    clients: Rc<Clients>,
    served: Served,
) {
    let served = Rc::new(served);
    loop {
        let accepting = async {
            clients.until_at_most(CLIENTS_MAX - 1).await;
            runtime.accept(&socket).await
        };
        let accepted = match select(pin!(clients.until_the_end()), pin!(accepting)).await {
            Either::Left(_) => return,
            Either::Right((accepted, _)) => accepted,
        };
        match accepted {
            Ok(client) => {
                let count = ClientCount::of(clients.clone());
                let (runtime_of_link, client) = (runtime.clone(), Arc::new(client));
                let link = Link { runtime: runtime_of_link, client, all: clients.clone() };
                let served = served.clone();
                runtime.spawn(async move {
                    let _count = count;
                    serve_client(&link, &served).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a control connection: retrying");
                runtime.sleep_ns(CLIENT_NS).await;
            }
        }
    }
}

/// A connection to a client.
struct Link {
    runtime: Runtime,
    client: Arc<OwnedFd>,
    all: Rc<Clients>,
}

async fn serve_client(link: &Link, served: &Served) {
    let Served { drive, watch: (watch, name), .. } = served;
    let arriving = link.runtime.timeout(CLIENT_NS, link.request());
    // A client without an answer asks the next server.
    let request = match select(pin!(link.all.until_the_end()), pin!(arriving)).await {
        Either::Right((Some(Ok(request)), _)) => request,
        Either::Right((Some(Err(error)), _)) => {
            link.send(&Answer::failed(&error)).await;
            return;
        }
        Either::Right((None, _)) | Either::Left(_) => return,
    };
    let answer = match request {
        Request::Info {} => Some(Answer::Info(Box::new(drive.info()))),
        Request::Watch {} => Some(Answer::Watched(Box::new(watch.snapshot(Some(name))))),
        Request::Scrub { rate_bytes } => scrub(link, drive, rate_bytes).await,
        Request::Resize(wanted) => resize(link, drive, wanted).await,
        Request::Rekey { keys } => rekey(link, drive, keys).await,
        Request::Set(change) => set(link, drive, change).await,
        Request::Compact { percent, in_order } => compact(link, drive, percent, in_order).await,
        Request::CreateSnapshot(new) => create_snapshot(link, served, new).await,
        Request::DeleteSnapshots { names } => delete_snapshots(link, served, names).await,
        Request::BookmarkSnapshot { name } => bookmark_snapshot(link, served, name).await,
        Request::RegisterClone { name, clone } => {
            clones::change(link, drive, async move |drive| {
                drive.register_clone(&name, clone).await.map(|info| vec![info])
            })
            .await
        }
        Request::ForgetClone { drive: clone } => {
            clones::change(link, drive, async move |drive| {
                drive.forget_clone(clone).await.map(|_| Vec::new())
            })
            .await
        }
        Request::Flatten {} => clones::flatten(link, drive).await,
        Request::RollBack { name, deletes_newer } => {
            rollback::roll_back(link, served, name, deletes_newer).await
        }
        Request::Device { change } => devices::change(link, drive, change).await,
        Request::SuspendChanges { guid } => suspend_changes(link, drive, guid).await,
        Request::Snapshots {} => snapshots(link, drive.list_snapshots().await).await,
        Request::Send(wanted) => sending::send(link, served, &wanted).await,
        #[cfg(feature = "attach")]
        Request::Lend { name, directory, shown } => {
            lending::lend(link, served, &name, directory.as_ref(), &shown).await
        }
        Request::Service {} => Some(service(link, served).await),
        Request::Clients {} => clients(link, watch.roster()).await,
        Request::Disconnect { id } => Some(Answer::Disconnected(watch.roster().disconnect(id))),
    };
    if let Some(answer) = answer {
        link.send(&answer).await;
    }
}

/// Returns the way in which the drive is served.
async fn service(link: &Link, served: &Served) -> Answer {
    let Served { path, drive, watch: (watch, name), uris, .. } = served;
    // If the medium does not respond, the client still receives the rest of the answer.
    let reading = link.runtime.timeout(LOOK_NS, partitions::sector_bytes_on(drive));
    let table_sector_bytes = reading.await.flatten();
    Answer::Service(Service {
        path: path.clone(),
        process: std::process::id(),
        export: name.clone(),
        clients: watch.connections().open,
        uris: uris.borrow().clone(),
        table_sector_bytes,
    })
}

/// Lists the clients of the server, a few in each answer; returns `None` if the client is gone.
async fn clients(link: &Link, roster: &Roster) -> Option<Answer> {
    let listed = roster.list(link.runtime.now_ns());
    let mut parts = listed.chunks(LISTED_MAX);
    let last = parts.next_back().unwrap_or_default();
    let answer = |part: &[Listed]| part.iter().map(ListedClient::from).collect();
    for part in parts {
        if !link.send(&Answer::SomeClients(answer(part))).await {
            return None;
        }
    }
    Some(Answer::Clients(answer(last)))
}

/// Scrubs the drive; returns `None` if the client is gone.
async fn scrub(link: &Link, drive: &Drive, rate_bytes: u64) -> Option<Answer> {
    let progress = || {
        let scrub = drive.info().scrub;
        Progress {
            done: scrub.scrub_segments_done,
            total: scrub.scrub_segments,
            bytes: scrub.scrub_checked_bytes,
        }
    };
    let mut report = match link.run_until_the_end(drive.scrub(rate_bytes), progress).await? {
        Ok(report) => report,
        Err(error) => return Some(Answer::failed(&error)),
    };
    for problem in std::mem::take(&mut report.problems) {
        if !link.send(&Answer::Problem(problem)).await {
            return None;
        }
    }
    Some(Answer::Scrubbed(report))
}

/// Compacts the drive; returns `None` if the client is gone.
async fn compact(link: &Link, drive: &Drive, percent: u32, in_order: bool) -> Option<Answer> {
    let progress = || {
        let info = drive.info();
        Progress { done: 0, total: info.live_bytes, bytes: info.occupied_bytes }
    };
    let compacting = async {
        match in_order {
            true => drive.compact_in_order(percent).await,
            false => drive.compact(percent).await,
        }
    };
    Some(match link.run_until_the_end(compacting, progress).await? {
        Ok(compacted) => Answer::Compacted(compacted),
        Err(error) => Answer::failed(&error),
    })
}

/// Resizes the drive; returns `None` if the client is gone.
async fn resize(link: &Link, drive: &Rc<Drive>, wanted: Resize) -> Option<Answer> {
    let worker = drive.clone();
    let resizing = async move {
        let resized = worker.resize(wanted).await;
        match &resized {
            Ok(Resized { size_bytes, capacity_bytes, .. }) => {
                tracing::info!(size_bytes, capacity_bytes, "resized");
            }
            // The client receives the error, and the drive is unchanged.
            Err(error) => tracing::info!(error = %error.chain(), "resize failed"),
        }
        resized
    };
    let progress = || Progress { total: drive.segments_to_empty().into(), ..Progress::default() };
    Some(match link.run_to_its_end(resizing, progress).await? {
        Ok(resized) => Answer::Resized(resized),
        Err(error) => Answer::failed(&error),
    })
}

/// Replaces the master key of the drive; returns `None` if the client is gone.
async fn rekey(link: &Link, drive: &Rc<Drive>, keys: Option<NewKeys>) -> Option<Answer> {
    let worker = drive.clone();
    let rekeying = async move {
        let rekeyed = worker.rekey(keys.as_ref()).await;
        match &rekeyed {
            Ok(rekeyed) => tracing::info!(segments = rekeyed.segments, "master key replaced"),
            Err(error) => {
                tracing::warn!(error = %error.chain(), "the master key was not replaced");
            }
        }
        rekeyed
    };
    let progress = || Progress { total: drive.segments_to_empty().into(), ..Progress::default() };
    Some(match link.run_to_its_end(rekeying, progress).await? {
        Ok(rekeyed) => Answer::Rekeyed(rekeyed),
        Err(error) => Answer::failed(&error),
    })
}

/// Changes settings of the drive; returns `None` if the client is gone.
async fn set(link: &Link, drive: &Rc<Drive>, change: SettingsChange) -> Option<Answer> {
    let worker = drive.clone();
    let changing = async move {
        let changed = worker.change_settings(change).await;
        if let Ok(changed) = &changed {
            let (codec, warn) = (changed.after.codec, changed.after.warn_percent);
            tracing::info!(%codec, ?warn, "settings changed");
        }
        changed
    };
    Some(match link.run_to_its_end(changing, Progress::default).await? {
        Ok(changed) => Answer::Set(changed),
        Err(error) => Answer::failed(&error),
    })
}

/// Takes a snapshot; returns `None` if the client is gone.
async fn create_snapshot(link: &Link, served: &Served, new: NewSnapshot) -> Option<Answer> {
    let (worker, exports) = (served.drive.clone(), served.snapshots.clone());
    let all = link.all.clone();
    let creating = async move {
        let created = worker.create_snapshot(new).await;
        refresh(exports, &all).await;
        created
    };
    Some(match link.run_to_its_end(creating, Progress::default).await? {
        Ok(info) => {
            tracing::info!(snapshot = info.name, sequence = info.sequence, "snapshot taken");
            Answer::Snapshots(vec![info])
        }
        Err(error) => Answer::failed(&error),
    })
}

/// Deletes snapshots; returns `None` if the client is gone.
async fn delete_snapshots(link: &Link, served: &Served, names: Vec<String>) -> Option<Answer> {
    let (worker, exports) = (served.drive.clone(), served.snapshots.clone());
    let all = link.all.clone();
    let deleting = async move {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut result = Ok(Vec::new());
        for name in &names {
            if let (Some(exports), Ok(_)) = (&exports, &result) {
                result = exports.withdraw(name).await.map(|()| Vec::new());
            }
        }
        if result.is_ok() {
            result = worker.delete_snapshots(&names).await;
        }
        // Offers the remaining snapshots again.
        refresh(exports, &all).await;
        result
    };
    match link.run_to_its_end(deleting, Progress::default).await? {
        Ok(deleted) => {
            for info in &deleted {
                tracing::info!(snapshot = info.name, sequence = info.sequence, "snapshot deleted");
            }
            snapshots(link, deleted).await
        }
        Err(error) => Some(Answer::failed(&error)),
    }
}

/// Turns a snapshot into a bookmark; returns `None` if the client is gone.
async fn bookmark_snapshot(link: &Link, served: &Served, name: String) -> Option<Answer> {
    let (worker, exports) = (served.drive.clone(), served.snapshots.clone());
    let all = link.all.clone();
    let changing = async move {
        let withdrawn = match &exports {
            Some(exports) => exports.withdraw(&name).await,
            None => Ok(()),
        };
        let result = match withdrawn {
            Ok(()) => worker.bookmark_snapshot(&name).await,
            Err(error) => Err(error),
        };
        refresh(exports, &all).await;
        result
    };
    Some(match link.run_to_its_end(changing, Progress::default).await? {
        Ok(info) => {
            tracing::info!(snapshot = info.name, sequence = info.sequence, "now a bookmark");
            Answer::Snapshots(vec![info])
        }
        Err(error) => Answer::failed(&error),
    })
}

/// Offers the current snapshots, unless the server is ending: its threads must then no longer wait
/// for each other.
async fn refresh(exports: Option<Rc<dyn SnapshotExports>>, all: &Clients) {
    if let Some(exports) = exports {
        select(pin!(all.until_the_end()), pin!(exports.refresh())).await;
    }
}

/// Suspends the host's changes until the snapshot `of` is begun, for at most a second; returns
/// `None` if the client is gone.
async fn suspend_changes(link: &Link, drive: &Drive, of: Uuid) -> Option<Answer> {
    let suspended = match drive.suspend_changes(of).await {
        Ok(suspended) => suspended,
        Err(error) => return Some(Answer::failed(&error)),
    };
    if !link.send(&Answer::Suspended).await {
        return None;
    }
    link.runtime.timeout(SUSPENDED_NS_MAX, suspended.until_in_the_snapshot()).await;
    Some(Answer::Resumed { in_the_snapshot: suspended.are_in_the_snapshot() })
}

/// Lists snapshots, a few in each answer; returns `None` if the client is gone.
async fn snapshots(link: &Link, all: Vec<SnapshotInfo>) -> Option<Answer> {
    let mut parts = all.chunks(LISTED_MAX);
    let last = parts.next_back().unwrap_or_default();
    for part in parts {
        if !link.send(&Answer::SomeSnapshots(part.to_vec())).await {
            return None;
        }
    }
    Some(Answer::Snapshots(last.to_vec()))
}

impl Link {
    /// Reads the request.
    async fn request(&self) -> Result<Request> {
        let wrong = |what: &'static str| Error::new(ErrorKind::InvalidInput, what);
        let mut bytes = vec![0; REQUEST_BYTES_MAX];
        let mut end = 0;
        loop {
            let (buffer, received) =
                self.runtime.receive(&self.client, bytes, end..REQUEST_BYTES_MAX).await;
            bytes = buffer;
            let received = received.map_err(|error| Error::os("cannot read a request", error))?;
            let mut arrived = bytes.iter().take(end + received).skip(end);
            if let Some(length) = arrived.position(|&byte| byte == b'\n') {
                bytes.truncate(end + length);
                return serde_json::from_slice(&bytes).map_err(|error| {
                    wrong("unknown request: is the server another version?").caused_by(error)
                });
            }
            end += received;
            if received == 0 || end == REQUEST_BYTES_MAX {
                return Err(wrong("a request is one line of JSON of at most 4096 bytes"));
            }
        }
    }

    /// Waits until the client has closed its side of the connection.
    #[cfg(feature = "attach")]
    async fn until_gone(&self) {
        while let (_, Ok(1..)) = self.runtime.receive(&self.client, vec![0], 0..1).await {}
    }

    /// Runs `work` in a task of its own, because it must not stop halfway, and reports its progress
    /// to the client; returns `None` if the client is gone.
    async fn run_to_its_end<T: 'static>(
        &self,
        work: impl Future<Output = T> + 'static,
        progress: impl Fn() -> Progress,
    ) -> Option<T> {
        let result = Rc::new(RefCell::new(None));
        let ended = Rc::new(WaitQueue::default());
        let (worked, wake) = (result.clone(), ended.clone());
        self.runtime.spawn(async move {
            *worked.borrow_mut() = Some(work.await);
            wake.wake_all();
        });
        self.run(ended.wait_for(|| result.borrow_mut().take()), progress).await
    }

    /// Runs `work`, which may stop halfway, until the socket is no longer served, and reports its
    /// progress to the client; returns `None` if the client is gone.
    async fn run_until_the_end<T>(
        &self,
        work: impl Future<Output = Result<T>>,
        progress: impl Fn() -> Progress,
    ) -> Option<Result<T>> {
        let ending = async {
            match select(pin!(work), pin!(self.all.until_the_end())).await {
                Either::Left((result, _)) => result,
                Either::Right(_) => {
                    let what = "its server has ended: try again";
                    Err(Error::new(ErrorKind::Interrupted, what))
                }
            }
        };
        self.run(ending, progress).await
    }

    /// Runs `work` and reports its progress to the client; returns `None` if the client is gone.
    async fn run<T>(
        &self,
        work: impl Future<Output = T>,
        progress: impl Fn() -> Progress,
    ) -> Option<T> {
        let mut work = pin!(work);
        loop {
            let pause = pin!(self.runtime.sleep_ns(PROGRESS_NS));
            if let Either::Left((result, _)) = select(work.as_mut(), pause).await {
                return Some(result);
            }
            let report = Answer::Progress(progress());
            // The work continues while the client reads.
            match select(work.as_mut(), pin!(self.send(&report))).await {
                Either::Left((result, sending)) => return sending.await.then_some(result),
                Either::Right((true, _)) => {}
                Either::Right((false, _)) => return None,
            }
        }
    }

    /// Sends an answer; returns whether the client accepted it.
    async fn send(&self, answer: &Answer) -> bool {
        let sending = self.send_within(CLIENT_NS, line(answer));
        self.runtime.timeout(CLIENT_NS, sending).await.flatten().is_some()
    }

    /// Sends bytes and returns the buffer; `None` if the client accepts none of them for
    /// `limit_ns`.
    async fn send_within(&self, limit_ns: u64, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        let mut at = 0;
        while at < bytes.len() {
            let range = at..bytes.len();
            let sending = self.runtime.send(&self.client, bytes, range);
            let (buffer, sent) = self.runtime.timeout(limit_ns, sending).await?;
            bytes = buffer;
            match sent {
                Ok(sent) if sent > 0 => at += sent,
                _ => return None,
            }
        }
        Some(bytes)
    }
}
