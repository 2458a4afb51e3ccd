//! The threads of the drives.
//!
//! ```text
//!   this thread        signals, listeners, handshakes      (and all drives, if it is the only one)
//!      |  |  |
//!      |  |  +-- drives-1   drives, and the requests of their clients
//!      |  +----- drives-2
//!      +-------- http, codec-1 ..
//! ```
//!
//! A drive has one owner, the thread that opened it. Each thread has its own runtime and a part of
//! the drives, adjacent on the command line; the server that clients connect to passes each client
//! to the thread of its drive. The threads share nothing that a request would have to lock.
//!
//! A panic on a thread ends its drives as `kill -9` would: unflushed data is lost. Their clients
//! are disconnected and are refused until the server restarts, `/healthz` fails, and the drives of
//! other threads are served as before. A panic on the only thread ends the process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, bail};
use async_channel::{Receiver, Sender, bounded};

use super::drive_thread::{Described, DriveThread, Plan, Showing};
use super::exports::{Planned, Served};
use super::snapshots;
use super::watch::Answerer;
use crate::signals;
use crate::watch::{Names, Terms};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::{Announcement, Policy, RemoteExports, Server};

/// All drives of a server, in the order of the command line.
pub(super) enum Drives {
    /// On the thread of the server.
    Local(DriveThread, Names),
    /// On threads of their own.
    Remote(Vec<Thread>),
}

/// A thread of drives.
pub(super) struct Thread {
    drives: Vec<Described>,
    names: Names,
    /// Ends the thread when dropped.
    orders: Sender<Order>,
    handle: JoinHandle<Result<()>>,
}

/// A drive that was opened; `None` if it was left out.
type Added = Option<(Described, Announcement)>;

/// A command to a thread of drives.
enum Order {
    /// Show the drives: the first order.
    Show(Showing),
    /// Open another drive.
    Add(Box<Planned>, Sender<Result<Added>>),
    /// Close a drive, whose clients are gone.
    Remove(String, Sender<Result<()>>),
    /// Set the URIs under which clients reach the drives.
    Uris(Vec<Vec<String>>),
}

/// A thread that is opening its drives.
struct Opening {
    opened: mpsc::Receiver<Opened>,
    orders: Sender<Order>,
    handle: JoinHandle<Result<()>>,
}

/// The drives that a thread has opened.
struct Opened {
    drives: Vec<Described>,
    remote: RemoteExports,
}

/// The reason why nothing is served.
const NONE_LEFT: &str = "none of the drives can be opened";

impl Drives {
    /// Opens drives on this number of threads, or on this one if it is 0; returns them with the
    /// server that clients connect to.
    ///
    /// # Errors
    /// Errors from opening a drive, and errors of the operating system; all drives are then closed.
    pub(super) fn open(
        runtime: &Runtime,
        plan: Plan,
        threads: usize,
        io: Backend,
    ) -> Result<(Self, Rc<Server>)> {
        if threads == 0 {
            let drive_thread = DriveThread::open(runtime, plan)?.context(NONE_LEFT)?;
            let server = drive_thread.server.clone();
            let names = names_of(&drive_thread.described());
            return Ok((Self::Local(drive_thread, names), server));
        }
        let options = plan.options.clone();
        let mut plan = plan;
        // The server in front decides which clients are accepted.
        plan.options.policy = Policy::default();
        // All of them open their drives at the same time.
        let plans = plan.split(threads).into_iter().enumerate();
        let openings: Vec<_> = plans.map(|(index, plan)| start(index + 1, plan, io)).collect();
        let (mut threads, mut others, mut failed) = (Vec::new(), Vec::new(), None);
        for opening in openings {
            match opening.and_then(Opening::wait) {
                Ok(Some((thread, remote))) => {
                    threads.push(thread);
                    others.push(remote);
                }
                // All of its drives were left out.
                Ok(None) => {}
                // The first error is the one to report.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let drives = Self::Remote(threads);
        if let Some(error) = failed {
            let _ = drives.close();
            return Err(error);
        }
        if others.is_empty() {
            bail!(NONE_LEFT);
        }
        Ok((drives, Server::in_front_of(runtime.clone(), others, options)))
    }

    /// Returns the drives of each thread.
    pub(super) fn described(&self) -> Vec<Vec<Described>> {
        match self {
            Self::Local(drive_thread, _) => vec![drive_thread.described()],
            Self::Remote(threads) => threads.iter().map(|thread| thread.drives.clone()).collect(),
        }
    }

    /// Returns the names of the drives of each thread.
    pub(super) fn names(&self) -> Vec<Names> {
        match self {
            Self::Local(_, names) => vec![names.clone()],
            Self::Remote(threads) => threads.iter().map(|thread| thread.names.clone()).collect(),
        }
    }

    /// Whether all threads are alive.
    pub(super) fn are_whole(&self) -> bool {
        match self {
            Self::Local(..) => true,
            Self::Remote(threads) => threads.iter().all(|thread| !thread.handle.is_finished()),
        }
    }

    /// Opens another drive, on the thread with the fewest drives, while the others are served;
    /// clients may then choose it. Returns whether it was opened: a drive that was found in a
    /// directory is left out if it cannot be opened.
    ///
    /// # Errors
    /// Errors from opening it; its thread has ended.
    pub(super) fn add(
        &mut self,
        runtime: &Runtime,
        server: &Server,
        planned: Planned,
    ) -> Result<bool> {
        let threads = match self {
            Self::Local(drive_thread, names) => {
                let is_added = drive_thread.add(planned)?.is_some();
                refresh(names, &drive_thread.described());
                return Ok(is_added);
            }
            Self::Remote(threads) => threads,
        };
        let fewest = threads.iter().enumerate().min_by_key(|(_, thread)| thread.drives.len());
        let index = fewest.context(NONE_LEFT)?.0;
        let thread = &mut threads[index];
        let added = thread.ask(runtime, |answer| Order::Add(Box::new(planned), answer))?;
        let Some((described, announcement)) = added else { return Ok(false) };
        thread.drives.push(described);
        refresh(&thread.names, &thread.drives);
        server.announce(index, announcement);
        Ok(true)
    }

    /// Closes a drive: disconnects its clients, waits for their requests, and flushes.
    ///
    /// # Errors
    /// Its requests do not end; the error from closing it.
    pub(super) fn remove(&mut self, runtime: &Runtime, server: &Server, name: &str) -> Result<()> {
        if !runtime.block_on(server.withdraw(name)) {
            bail!("requests of its clients are still in flight: the drive stays open");
        }
        let threads = match self {
            Self::Local(drive_thread, names) => {
                let removed = drive_thread.remove(name);
                refresh(names, &drive_thread.described());
                return removed;
            }
            Self::Remote(threads) => threads,
        };
        let is_here = |thread: &&mut Thread| thread.drives.iter().any(|drive| drive.name == name);
        let Some(thread) = threads.iter_mut().find(is_here) else { return Ok(()) };
        let removed = thread.ask(runtime, |answer| Order::Remove(name.to_owned(), answer));
        thread.drives.retain(|drive| drive.name != name);
        refresh(&thread.names, &thread.drives);
        removed
    }

    /// Sets the URIs under which clients reach the drives, in the order of [`Self::described`].
    pub(super) fn set_uris(&self, uris: &[Vec<String>]) {
        match self {
            Self::Local(drive_thread, _) => drive_thread.set_uris(uris),
            Self::Remote(threads) => {
                let mut rest = uris;
                for thread in threads {
                    let (own, others) = rest.split_at(thread.drives.len());
                    rest = others;
                    // A thread that has ended has nothing to show.
                    let _ = thread.orders.try_send(Order::Uris(own.to_vec()));
                }
            }
        }
    }

    /// Returns the drives on this thread.
    pub(super) fn here(&self) -> &[Served] {
        match self {
            Self::Local(drive_thread, _) => &drive_thread.served,
            Self::Remote(..) => &[],
        }
    }

    /// Makes all drives visible to monitoring, with an answerer for each thread, and to other
    /// commands.
    pub(super) fn show(
        &mut self,
        runtime: &Runtime,
        answerers: Vec<Option<Answerer>>,
        server: &Rc<Server>,
        terms: Terms,
        uris: &[Vec<String>],
    ) {
        let (done, all_done) = mpsc::channel();
        let showing = |uris: &[Vec<String>], answerer, front| {
            let (uris, done) = (uris.to_vec(), done.clone());
            let (tally, roster) = (server.tally().clone(), server.roster().clone());
            Showing { uris, terms, tally, roster, answerer, front, _done: done }
        };
        match self {
            Self::Local(drive_thread, _) => {
                let show = |answerer| drive_thread.show(showing(uris, answerer, None));
                answerers.into_iter().for_each(show);
            }
            Self::Remote(threads) => {
                let mut rest = uris;
                for (index, (thread, answerer)) in threads.iter().zip(answerers).enumerate() {
                    let (own, others) = rest.split_at(thread.drives.len());
                    rest = others;
                    let front = Some(snapshots::front(runtime, server, index));
                    // A thread that has ended has nothing to show.
                    let _ = thread.orders.try_send(Order::Show(showing(own, answerer, front)));
                }
            }
        }
        drop(done);
        // No message is sent: the wait ends when all senders are dropped.
        let _ = all_done.recv();
    }

    /// Closes all drives, whose clients are gone.
    ///
    /// # Errors
    /// The first error of a drive, with its path.
    pub(super) fn close(self) -> Result<()> {
        let threads = match self {
            Self::Local(drive_thread, _) => return drive_thread.close(),
            Self::Remote(threads) => threads,
        };
        let end = |thread: Thread| {
            drop(thread.orders);
            thread.handle
        };
        let handles: Vec<_> = threads.into_iter().map(end).collect();
        handles.into_iter().map(join).fold(Ok(()), Result::and)
    }
}

impl Opening {
    fn wait(self) -> Result<Option<(Thread, RemoteExports)>> {
        let Self { opened, orders, handle } = self;
        match opened.recv() {
            Ok(Opened { drives, remote }) => {
                let names = names_of(&drives);
                Ok(Some((Thread { drives, names, orders, handle }, remote)))
            }
            Err(_) => join(handle).map(|()| None),
        }
    }
}

impl Thread {
    /// Sends an order, and waits until it is carried out, while this thread's clients are served.
    fn ask<T>(
        &self,
        runtime: &Runtime,
        order: impl FnOnce(Sender<Result<T>>) -> Order,
    ) -> Result<T> {
        let (sender, answer) = bounded(1);
        let asked = runtime.block_on(async {
            self.orders.send(order(sender)).await.ok()?;
            answer.recv().await.ok()
        });
        asked.unwrap_or_else(|| Err(anyhow!("the thread of these drives has ended")))
    }
}

fn names_of(drives: &[Described]) -> Names {
    let names = Names::default();
    refresh(&names, drives);
    names
}

fn refresh(names: &Names, drives: &[Described]) {
    let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
    *names = drives.iter().map(|drive| drive.name.clone()).collect();
}

/// Starts a thread that opens its drives and serves them until the result is dropped.
fn start(number: usize, plan: Plan, io: Backend) -> Result<Opening> {
    let (orders, taken) = bounded(1);
    let (report, opened) = mpsc::sync_channel(1);
    let run = move || {
        let runtime = Runtime::new(io)?;
        let Some(drive_thread) = DriveThread::open(&runtime, plan)? else { return Ok(()) };
        live(&runtime, drive_thread, &report, &taken)
    };
    let thread = thread::Builder::new().name(format!("drives-{number}"));
    let handle = signals::blocked(|| thread.spawn(run))?.context("cannot start a thread")?;
    Ok(Opening { opened, orders, handle })
}

fn join(handle: JoinHandle<Result<()>>) -> Result<()> {
    let panicked = |_| Err(anyhow!("a thread panicked while it opened or closed its drives"));
    handle.join().unwrap_or_else(panicked)
}

/// Serves open drives, then closes them.
fn live(
    runtime: &Runtime,
    mut drive_thread: DriveThread,
    report: &mpsc::SyncSender<Opened>,
    orders: &Receiver<Order>,
) -> Result<()> {
    let drives = drive_thread.described();
    let names: Vec<_> = drives.iter().map(|drive| drive.name.clone()).collect();
    let remote = drive_thread.server.remote_exports();
    // Without a receiver, `orders` is closed as well.
    let _ = report.send(Opened { drives, remote });
    let serve = || {
        while let Ok(order) = runtime.block_on(orders.recv()) {
            obey(&mut drive_thread, order);
        }
    };
    if catch_unwind(AssertUnwindSafe(serve)).is_ok() {
        return drive_thread.close();
    }
    let drives = names.join(" ");
    tracing::error!(%drives, "a thread panicked: these drives are gone until the server restarts");
    drop(drive_thread);
    // Ending tasks notifies others, and a task that panics must not keep the rest alive.
    while catch_unwind(AssertUnwindSafe(|| runtime.drop_tasks())).is_err() {}
    Ok(())
}

fn obey(drive_thread: &mut DriveThread, order: Order) {
    // If no one waits for an answer any longer, it is dropped.
    match order {
        Order::Show(showing) => drive_thread.show(showing),
        Order::Add(planned, answer) => drop(answer.try_send(drive_thread.add(*planned))),
        Order::Remove(name, answer) => drop(answer.try_send(drive_thread.remove(&name))),
        Order::Uris(uris) => drive_thread.set_uris(&uris),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a thread that panics releases its drives, and the server in front of it notices. The
    //! effect on clients is tested where clients are: `pumice_nbd::tests::threads`.
    use std::path::Path;

    use pumice_drive::Uuid;
    use pumice_drive::controller::{OpenOptions, Spec, create};
    use pumice_drive::media::file::FileMedium;
    use pumice_nbd::Options;

    use super::*;
    use crate::open;
    use crate::storage::Access;

    fn drive(runtime: &Runtime, path: &Path) {
        let spec = Spec { segment_bytes: 4 << 20, ..Spec::new(Uuid::from_u128(7), 1 << 20) };
        FileMedium::create(path, spec.geometry().unwrap().medium_bytes(), false).unwrap();
        let medium = open::medium(runtime, path, &Access::default()).unwrap();
        runtime.block_on(create(&*medium, &spec)).unwrap();
    }

    #[test]
    fn a_panic_gives_the_drives_of_its_thread_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("evil.pumice");
        let runtime = Runtime::new(Backend::Auto).unwrap();
        drive(&runtime, &path);
        let drives = vec![Planned {
            path: path.clone(),
            name: "evil".to_owned(),
            description: None,
            access: Access::default(),
            options: OpenOptions::default(),
            is_found: false,
            file: None,
            snapshot: None,
            follow_ns: None,
        }];
        let (pool, options) = (None, Options::default());
        let plan = Plan { drives, pool, threads: 1, options, busy_poll_ns: 0 };
        let (orders, taken) = bounded(1);
        let (report, opened) = mpsc::sync_channel(1);
        let (trigger, triggered) = bounded::<()>(1);
        let thread = thread::spawn(move || {
            let runtime = Runtime::new(Backend::Auto)?;
            let drive_thread = DriveThread::open(&runtime, plan)?.unwrap();
            runtime.spawn(async move {
                let _ = triggered.recv().await;
                panic!("planted");
            });
            live(&runtime, drive_thread, &report, &taken)
        });
        let remote = opened.recv().unwrap().remote;
        let options = Options::default();
        let server = Server::in_front_of(runtime.clone(), vec![remote], options);
        let (done, all_done) = mpsc::channel();
        let (tally, roster) = (server.tally().clone(), server.roster().clone());
        let uris = vec![Vec::new()];
        let terms = Terms::default();
        let (answerer, front) = (None, None);
        let shows = Showing { uris, terms, tally, roster, answerer, front, _done: done };
        let shown = orders.try_send(Order::Show(shows));
        shown.unwrap_or_else(|_| panic!("the thread has ended"));
        assert!(all_done.recv().is_err(), "nothing is sent");
        assert!(FileMedium::create(&path, 1 << 20, true).is_err(), "the drive is not locked");
        trigger.try_send(()).unwrap();
        thread.join().unwrap().unwrap();
        drop(open::medium(&runtime, &path, &Access::default()).unwrap());
        let left = runtime.block_on(server.hand_over()).unwrap();
        assert!(left.clients.is_empty(), "a restart goes on with the other drives");
        let ended = runtime.block_on(server.shutdown()).unwrap_err();
        assert!(ended.to_string().contains("evil"), "{ended}");
    }
}
