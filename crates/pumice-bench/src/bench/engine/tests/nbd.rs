//! Goal: an export is measured like any other target, and an export that contains data is
//! protected. Method: our own server with a disk in memory that records its requests, running on a
//! separate thread; for an export without optional features, a thread acts as the server.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use super::*;
use pumice_drive::base::AlignedBuffer;
use pumice_nbd::client::Uri;
use pumice_nbd::{Access, Allocation, Disk, Durability, Listen, Listener};
use pumice_nbd::{Export, Options as ServerOptions, Server};

const DISK_BYTES: usize = 8 << 20;

/// The contents of the server's disk, and its changes as name, offset and length.
#[derive(Default)]
struct Content {
    bytes: Vec<u8>,
    changes: Vec<(&'static str, u64, u64)>,
}

#[derive(Clone, Default)]
struct MemoryDisk {
    content: Arc<Mutex<Content>>,
    is_read_only: bool,
}

impl MemoryDisk {
    fn new(is_read_only: bool) -> Self {
        let content = Content { bytes: vec![0; DISK_BYTES], changes: Vec::new() };
        Self { content: Arc::new(Mutex::new(content)), is_read_only }
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap()
    }

    fn count(&self, name: &str) -> usize {
        self.content().changes.iter().filter(|change| change.0 == name).count()
    }
}

impl Disk for MemoryDisk {
    fn size_bytes(&self) -> u64 {
        DISK_BYTES as u64
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    async fn read(&self, offset: u64, out: &mut [u8]) -> pumice_drive::base::Result<()> {
        out.copy_from_slice(&self.content().bytes[offset as usize..][..out.len()]);
        Ok(())
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> Option<pumice_drive::base::Result<()>> {
        let mut content = self.content();
        content.changes.push(("write", offset, data.len() as u64));
        content.bytes[offset as usize..][..data.len()].copy_from_slice(data);
        Some(Ok(()))
    }

    async fn write(
        &self,
        offset: u64,
        data: &[u8],
        _durability: Durability,
    ) -> pumice_drive::base::Result<()> {
        self.try_write(offset, data).expect("it never waits")
    }

    async fn flush(&self) -> pumice_drive::base::Result<()> {
        self.content().changes.push(("flush", 0, 0));
        Ok(())
    }

    async fn trim(
        &self,
        offset: u64,
        len: u64,
        _durability: Durability,
    ) -> pumice_drive::base::Result<()> {
        self.content().changes.push(("trim", offset, len));
        Ok(())
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        _allocation: Allocation,
        _durability: Durability,
    ) -> pumice_drive::base::Result<()> {
        self.content().changes.push(("zero", offset, len));
        Ok(())
    }

    async fn prefetch(&self, _offset: u64, _len: u64) -> pumice_drive::base::Result<()> {
        Ok(())
    }
}

/// A server that stops when this is dropped.
struct Served {
    location: Location,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_some_and(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

fn place() -> (tempfile::TempDir, PathBuf, Location) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let uri = Uri::unix(&socket, "disk").to_string();
    (folder, socket, Location::parse(&uri).unwrap())
}

fn serve(disk: &MemoryDisk) -> Served {
    let (folder, socket, location) = place();
    let listener = Listener::bind(&Listen::Unix(socket), Access::default()).unwrap();
    let (stop, stopped) = UnixStream::pair().unwrap();
    let disk = disk.clone();
    let thread = std::thread::spawn(move || {
        let runtime = Runtime::new(Backend::Auto).unwrap();
        let export = Rc::new(Export::new("disk", "", Rc::new(disk)));
        let server = Server::new(runtime.clone(), vec![export], ServerOptions::default());
        runtime.spawn(server.clone().serve(listener));
        let stopped = Arc::new(stopped.into());
        runtime.block_on(async {
            runtime.receive(&stopped, vec![0], 0..1).await.1.unwrap();
            server.shutdown().await.unwrap();
        });
        runtime.drop_tasks();
    });
    Served { location, stop: Some(stop), thread: Some(thread), _folder: folder }
}

#[test]
fn the_server_receives_the_writes_of_a_run() {
    let disk = MemoryDisk::new(false);
    let served = serve(&disk);
    let run = run(Workload { threads: 2, ..workload(Operation::Write) });
    served.location.prepare(RECORDS * RECORD, false).unwrap();
    let sample = go(&served.location, &run).unwrap();
    assert_eq!((sample.operations, sample.written_bytes), (RECORDS, RECORDS * RECORD));
    let bytes = disk.content().bytes[..(RECORDS * RECORD) as usize].to_vec();
    let mut found: Vec<_> = bytes.chunks(4096).map(<[u8]>::to_vec).collect();
    let each = RECORDS * RECORD / 4096 / 2;
    let mut wanted = [units(&run, 10, each), units(&run, 11, each)].concat();
    found.sort();
    wanted.sort();
    assert!(found == wanted, "the export holds something else than the payload");
    assert_eq!((disk.count("write"), disk.count("flush")), (RECORDS as usize, 2));
}

#[test]
fn every_operation_goes_over_the_wire() {
    let disk = MemoryDisk::new(false);
    let served = serve(&disk);
    go(&served.location, &run(workload(Operation::Write))).unwrap();
    disk.content().changes.clear();
    for operation in [Operation::Read, Operation::StrideRead, Operation::RandomRead] {
        assert!(go(&served.location, &run(workload(operation))).unwrap().operations > 0);
    }
    assert!(disk.content().changes.is_empty(), "a read changed something");
    let sample = go(&served.location, &run(workload(Operation::Trim))).unwrap();
    assert_eq!(disk.count("trim") as u64, sample.operations);
    assert!(disk.content().changes.iter().all(|change| change.0 != "trim" || change.2 == RECORD));
    go(&served.location, &run(workload(Operation::Copy))).unwrap();
    let half = (RECORDS * RECORD / 2) as usize;
    let content = disk.content();
    assert!(content.bytes[..half] == content.bytes[half..2 * half]);
}

#[test]
fn an_export_that_holds_something_is_not_overwritten() {
    let disk = MemoryDisk::new(false);
    let served = serve(&disk);
    let kind = |bytes: usize, destroy| {
        served.location.prepare(bytes as u64, destroy).err().map(|error| error.kind())
    };
    assert_eq!(kind(DISK_BYTES, false), None);
    assert_eq!(kind(DISK_BYTES + 1, true), Some(ErrorKind::InvalidInput));
    for place in [0, (1 << 20) - 1, DISK_BYTES - (1 << 20), DISK_BYTES - 1] {
        disk.content().bytes[place] = 1;
        assert_eq!(kind(DISK_BYTES, false), Some(ErrorKind::AlreadyExists), "at {place}");
        assert_eq!(kind(DISK_BYTES, true), None);
        disk.content().bytes[place] = 0;
    }
    assert!(disk.content().changes.is_empty(), "preparing changed something");
    let served = serve(&MemoryDisk::new(true));
    let error = served.location.prepare(4096, true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
}

/// Serves an oldstyle export that can neither flush nor trim, until its client disconnects. A
/// request that the export does not support fails the test.
fn bare_export(mut socket: UnixStream) {
    socket.write_all(b"NBDMAGICIHAVEOPT\0\0").unwrap();
    // The client's flags; an option's magic, number and length; the name.
    socket.read_exact(&mut [0; 4 + 16 + "disk".len()]).unwrap();
    socket.write_all(&(DISK_BYTES as u64).to_be_bytes()).unwrap();
    socket.write_all(&[0, 1]).unwrap();
    socket.write_all(&[0; 124]).unwrap();
    let mut request = [0; 28];
    socket.read_exact(&mut request).unwrap();
    assert_eq!(request[6..8], [0, 2], "something was asked but to disconnect");
}

#[test]
fn unsupported_commands_are_not_sent_to_an_export() {
    let (_folder, socket, location) = place();
    let listener = UnixListener::bind(&socket).unwrap();
    let server = std::thread::spawn(move || bare_export(listener.accept().unwrap().0));
    let Location::Nbd(uri) = &location else { panic!("{location} is no export") };
    let runtime = Runtime::new(Backend::Auto).unwrap();
    runtime.block_on(async {
        let target = NbdTarget::open(&runtime, uri).await.unwrap();
        assert_eq!(target.trim(0, 4096).await.unwrap_err().kind(), ErrorKind::Unsupported);
        target.flush().await.unwrap();
        let beyond = target.read(DISK_BYTES as u64, AlignedBuffer::zeroed(4096)).await.1;
        assert_eq!(beyond.unwrap_err().kind(), ErrorKind::InvalidInput);
        target.close().await.unwrap();
    });
    runtime.drop_tasks();
    server.join().unwrap();
}

#[test]
fn exports_are_named_by_their_uri() {
    for text in ["nbd://localhost:10809/disk", "nbd+unix:///disk?socket=/tmp/socket"] {
        let location = Location::parse(text).unwrap();
        assert!(matches!(location, Location::Nbd(_)), "{location:?}");
        assert_eq!((location.to_string().as_str(), location.path()), (text, None));
        assert!(!location.is_made());
    }
    assert_eq!(Location::parse("nbds://host/disk").unwrap_err().kind(), ErrorKind::Unsupported);
    for text in ["nbd+unix:///disk", "NBD://", "http://host/disk"] {
        assert_eq!(Location::parse(text).unwrap_err().kind(), ErrorKind::InvalidInput, "{text}");
    }
}
