//! Tests of the device, by a scripted driver over a real socket and shared memory.
//!
//! The device runs on a thread of its own, as the drive's thread does; the driver is the test.

mod continuing;
mod hostile;
mod protocol;
mod requests;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::driver::{Driver, Setup};
use crate::{Identity, KnownGuest, Server};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::memory_disk::MemoryDisk;
use pumice_nbd::{Access, Disk, Listen, Listener};
use tempfile::TempDir;

/// A device in a thread, until it is dropped or ended.
struct Device<T> {
    directory: TempDir,
    end: Option<UnixStream>,
    thread: JoinHandle<(T, Option<KnownGuest>)>,
}

/// Serves the disk that `open` returns, and passes it to `close` at the end.
fn serve_with<D: Disk + 'static, T: Send + 'static>(
    identity: Identity,
    open: impl FnOnce(&Runtime) -> Rc<D> + Send + 'static,
    close: impl FnOnce(&Runtime, Rc<D>) -> T + Send + 'static,
) -> Device<T> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let (end, ended) = UnixStream::pair().unwrap();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = Runtime::new(Backend::Auto).unwrap();
        let disk = open(&runtime);
        let server = Server::new(runtime.clone(), disk.clone(), &identity);
        let listener = Listener::bind(&Listen::Unix(path), Access::default()).unwrap();
        runtime.spawn(server.clone().serve(listener));
        ready.send(()).unwrap();
        let ended: Arc<OwnedFd> = Arc::new(ended.into());
        let guest = runtime.block_on(async {
            // A byte requests a handover, until there is another byte or the end.
            let next = async || runtime.receive(&ended, vec![0], 0..1).await.1.unwrap();
            match next().await {
                0 => server.shutdown().await.map(|()| None).unwrap(),
                _ => server.hand_over(async { _ = next().await }).await.unwrap(),
            }
        });
        let result = close(&runtime, disk);
        runtime.drop_tasks();
        (result, guest)
    });
    is_ready.recv().unwrap();
    Device { directory, end: Some(end), thread }
}

fn identity() -> Identity {
    Identity { serial: "0123456789".into(), guest: None }
}

/// Serves a disk in memory.
fn serve(disk: impl FnOnce() -> MemoryDisk + Send + 'static) -> Device<Outcome> {
    serve_with(identity(), |_| Rc::new(disk()), |_, disk| Outcome::of(&disk))
}

/// Serves a disk in memory whose requests at its start wait at a gate.
fn serve_gated() -> (Device<Outcome>, Gate) {
    let (gate, opened) = UnixStream::pair().unwrap();
    let device = serve_with(
        identity(),
        |runtime| {
            let disk = MemoryDisk { gated_offset: Some(0), ..MemoryDisk::default() };
            let disk = Rc::new(disk);
            let (of_task, runtime_of_task) = (disk.clone(), runtime.clone());
            let opened: Arc<OwnedFd> = Arc::new(opened.into());
            runtime.spawn(async move {
                let (_, result) = runtime_of_task.receive(&opened, vec![0], 0..1).await;
                result.unwrap();
                of_task.open_gate();
            });
            disk
        },
        |_, disk| Outcome::of(&disk),
    );
    (device, Gate(gate))
}

/// The gate of a disk.
struct Gate(UnixStream);

impl Gate {
    fn open(mut self) {
        self.0.write_all(&[1]).unwrap();
    }
}

/// The requests that a disk in memory has received.
struct Outcome {
    calls: Vec<String>,
    bytes: Vec<u8>,
}

impl Outcome {
    fn of(disk: &MemoryDisk) -> Self {
        Self { calls: disk.calls.borrow().clone(), bytes: disk.bytes.borrow().clone() }
    }
}

impl<T> Device<T> {
    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn connect(&self) -> Driver {
        self.connect_with(Setup::default())
    }

    fn connect_with(&self, setup: Setup) -> Driver {
        Driver::connect(&self.socket(), setup).unwrap()
    }

    /// Begins to shut down the device.
    fn begin_end(&mut self) {
        self.end = None;
    }

    /// Shuts down the device.
    fn end(mut self) -> T {
        self.begin_end();
        self.thread.join().unwrap().0
    }

    /// Begins to hand the guest over.
    fn begin_hand_over(&mut self) {
        self.end.as_mut().unwrap().write_all(&[1]).unwrap();
    }

    /// Hands the guest over to the next server.
    fn hand_over(mut self) -> (T, KnownGuest) {
        self.begin_hand_over();
        let (result, guest) = self.thread.join().unwrap();
        (result, guest.unwrap())
    }
}
