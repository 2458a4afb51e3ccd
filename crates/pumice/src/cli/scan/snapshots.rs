//! Snapshots as inputs of a scan: as exports of the drive's server or of this process.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use crate::open::{self, served_snapshot};
use anyhow::{Context, Result, anyhow};
use async_channel::{Receiver, Sender, bounded};
use pumice_drive::controller::OpenOptions;
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::{Access, Export, Listen, Listener, Options, Server};
use tempfile::TempDir;

use crate::place::Place;
use crate::signals;
use crate::storage;

/// The snapshots among the named paths, served until this is dropped.
pub(super) struct Snapshots {
    /// Each snapshot with its URI.
    pub(super) exports: Vec<(PathBuf, String)>,
    offered: Vec<Offered>,
}

/// A snapshot of a closed drive, which only this process can reach.
struct Offered {
    end: Sender<()>,
    thread: Option<JoinHandle<Result<()>>>,
    folder: TempDir,
}

impl Snapshots {
    /// Finds the snapshots.
    ///
    /// # Errors
    /// There is no such snapshot, or it cannot be opened.
    pub(super) fn of(paths: &[PathBuf]) -> Result<Self> {
        let mut found = Self { exports: Vec::new(), offered: Vec::new() };
        for path in paths {
            // An address may also contain an @.
            let place = Place::of(path).ok().filter(|place| place.path.is_file());
            let Some(place) = place.filter(|place| place.snapshot.is_some()) else { continue };
            let uri = match served_snapshot::uri(&place)? {
                Some(uri) => uri,
                None => {
                    let offered = Offered::begin(place)?;
                    let uri = offered.uri();
                    found.offered.push(offered);
                    uri
                }
            };
            found.exports.push((path.clone(), uri));
        }
        Ok(found)
    }
}

impl Offered {
    /// Opens a snapshot, and serves it on a thread of its own.
    fn begin(place: Place) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("pumice-scan-").tempdir();
        let folder = folder.context("cannot make a folder for a socket")?;
        let socket = folder.path().join(SOCKET);
        let (end, ended) = bounded(1);
        let (ready, is_ready) = mpsc::channel();
        let thread = thread::Builder::new().name("snapshot".into());
        let thread =
            signals::blocked(|| thread.spawn(move || serve(&place, socket, &ready, &ended)))?;
        let thread = Some(thread.context("cannot start a thread")?);
        let mut offered = Self { end, thread, folder };
        match is_ready.recv() {
            Ok(()) => Ok(offered),
            Err(_) => Err(offered.end().err().unwrap_or_else(|| anyhow!("it is not served"))),
        }
    }

    fn uri(&self) -> String {
        let socket = self.folder.path().join(SOCKET);
        format!("nbd+unix:///?socket={}", served_snapshot::encoded(&socket.to_string_lossy()))
    }

    fn end(&mut self) -> Result<()> {
        self.end.close();
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(anyhow!("a thread failed")))
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        // The scan has read the data that it needs, or reports why not.
        let _ = self.end();
    }
}

/// Name of the socket in its folder.
const SOCKET: &str = "socket";

fn serve(
    place: &Place,
    socket: PathBuf,
    ready: &mpsc::Sender<()>,
    ended: &Receiver<()>,
) -> Result<()> {
    let runtime = Runtime::new(Backend::Auto)?;
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let drive = open::at(&runtime, place, &storage::Access::new(true), options)?;
    let listener = Listener::bind(&Listen::Unix(socket), Access::default())?;
    let export = Rc::new(Export::new("", "a snapshot that is scanned", drive));
    let server = Server::new(runtime.clone(), vec![export], Options::default());
    runtime.spawn(server.clone().serve(listener));
    // The waiting thread may have been interrupted.
    let _ = ready.send(());
    runtime.block_on(async {
        // Closed when the scan has ended.
        let _ = ended.recv().await;
        server.shutdown().await
    })?;
    runtime.drop_tasks();
    Ok(())
}
