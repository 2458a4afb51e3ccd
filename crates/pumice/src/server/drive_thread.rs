//! The drives that live on one thread, and their server.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use anyhow::Result;

use super::exports::{self, Planned, Served};
use super::snapshots::Front;
use super::watch::{self, Answerer};
use crate::open::media;
use crate::watch::{Terms, Watch};
use pumice_drive::codec::{Pool, Workers};
use pumice_drive::runtime::Runtime;
use pumice_nbd::{Announcement, Options, Roster, Server, Tally};

/// The drives, options and resources of one thread.
pub(super) struct Plan {
    pub(super) drives: Vec<Planned>,
    /// Compression threads, shared by all drive threads.
    pub(super) pool: Option<Arc<Pool>>,
    /// Drive threads of the server; they share its limits.
    pub(super) threads: usize,
    pub(super) options: Options,
    /// See [`Runtime::set_busy_poll`].
    pub(super) busy_poll_ns: u64,
}

/// The facts that other threads know of an open drive.
#[derive(Clone)]
pub(crate) struct Described {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(super) is_direct: bool,
    pub(super) io: &'static str,
}

/// The data that a drive thread needs before its drives become visible.
pub(super) struct Showing {
    /// URIs of each drive here.
    pub(super) uris: Vec<Vec<String>>,
    pub(super) terms: Terms,
    /// Counters of the server that clients connect to.
    pub(super) tally: Arc<Tally>,
    pub(super) roster: Arc<Roster>,
    pub(super) answerer: Option<Answerer>,
    /// The way to that server, if it is on another thread.
    pub(super) front: Option<Front>,
    /// Dropped when the drives are shown.
    pub(super) _done: Sender<()>,
}

pub(super) struct DriveThread {
    runtime: Runtime,
    workers: Option<Workers>,
    pub(super) served: Vec<Served>,
    pub(super) server: Rc<Server>,
    /// Set once the drives are shown, with the terms of the storage that holds them.
    watch: Option<(Rc<Watch>, Terms)>,
    front: Option<Front>,
}

impl Plan {
    /// Splits the plan into those of `threads` drive threads.
    pub(super) fn split(self, threads: usize) -> Vec<Self> {
        let Self { drives, pool, options, busy_poll_ns, .. } = self;
        let (count, mut drives) = (drives.len(), drives.into_iter());
        let part = |index| {
            let length = (index + 1) * count / threads - index * count / threads;
            let drives = drives.by_ref().take(length).collect();
            let (pool, options) = (pool.clone(), options.clone());
            Self { drives, pool, threads, options, busy_poll_ns }
        };
        (0..threads).map(part).collect()
    }
}

impl DriveThread {
    /// Opens the drives; `None` if all of them were left out.
    ///
    /// # Errors
    /// Errors from opening a drive; the others are then closed again.
    pub(super) fn open(runtime: &Runtime, plan: Plan) -> Result<Option<Self>> {
        runtime.set_busy_poll(plan.busy_poll_ns);
        let workers = plan.pool.map(Workers::of);
        let mut served = exports::open_all(runtime, &plan.drives, workers.as_ref(), plan.threads)?;
        if served.is_empty() {
            return Ok(None);
        }
        let exports = served.iter().map(|drive| drive.export.clone()).collect();
        let options = plan.options.shared_by(plan.threads);
        let server = Server::new(runtime.clone(), exports, options);
        for drive in &mut served {
            exports::show_snapshots(runtime, drive, &server, None);
        }
        let runtime = runtime.clone();
        Ok(Some(Self { runtime, workers, served, server, watch: None, front: None }))
    }

    /// Returns the facts about the drives for other threads.
    pub(super) fn described(&self) -> Vec<Described> {
        self.served.iter().map(|drive| self.describe(drive)).collect()
    }

    fn describe(&self, drive: &Served) -> Described {
        Described {
            path: drive.path.clone(),
            name: drive.export.name.clone(),
            is_direct: media::is_direct(&drive.drive.get()),
            io: self.runtime.backend_name(),
        }
    }

    /// Opens another drive, whose export the server offers from then on; `None` if it was left out.
    ///
    /// # Errors
    /// Errors from opening it.
    pub(super) fn add(&mut self, planned: Planned) -> Result<Option<(Described, Announcement)>> {
        let planned = [planned];
        let opened = exports::open_all(&self.runtime, &planned, self.workers.as_ref(), 1)?;
        let Some(mut served) = opened.into_iter().next() else { return Ok(None) };
        self.server.add(served.export.clone());
        exports::show_snapshots(&self.runtime, &mut served, &self.server, self.front.clone());
        if let Some((watch, terms)) = &self.watch {
            exports::show(&self.runtime, &mut served, *terms, watch);
        }
        let added = (self.describe(&served), Announcement::of(&served.export));
        self.served.push(served);
        Ok(Some(added))
    }

    /// Closes a drive whose clients are gone, and which is no longer offered to clients.
    ///
    /// # Errors
    /// The error from closing it.
    pub(super) fn remove(&mut self, name: &str) -> Result<()> {
        // This does not wait: the server in front has no clients of this export.
        self.runtime.block_on(self.server.withdraw(name));
        let Some(at) = self.served.iter().position(|served| served.export.name == name) else {
            return Ok(());
        };
        if let Some((watch, _)) = &self.watch {
            watch.remove(name);
        }
        let served = self.served.remove(at);
        exports::close_all(&self.runtime, &[served])
    }

    /// Sets the URIs under which clients reach the drives.
    pub(super) fn set_uris(&self, uris: &[Vec<String>]) {
        for (served, uris) in self.served.iter().zip(uris) {
            served.uris.borrow_mut().clone_from(uris);
        }
    }

    /// Makes the drives visible to monitoring and to other commands.
    pub(super) fn show(&mut self, showing: Showing) {
        let Showing { uris, terms, tally, roster, answerer, front, _done } = showing;
        let watch = watch::watch(&self.runtime, tally, roster);
        self.set_uris(&uris);
        for served in &mut self.served {
            served.snapshots.iter().for_each(|snapshots| snapshots.inform(front.clone()));
            exports::show(&self.runtime, served, terms, &watch);
        }
        watch::answer(answerer, &self.runtime, &watch);
        self.watch = Some((watch, terms));
        self.front = front;
    }

    /// Closes the drives, whose clients are gone.
    ///
    /// # Errors
    /// The first error of a drive, with its path.
    pub(super) fn close(self) -> Result<()> {
        let closed = exports::close_all(&self.runtime, &self.served);
        let runtime = self.runtime.clone();
        drop(self);
        // The tasks hold references to the runtime; dropping them also removes the files of the
        // listeners.
        runtime.drop_tasks();
        closed
    }
}
