//! Goal: reads return the written data, requests reach the disk unchanged, and the end of a
//! connection is orderly on both sides. Method: our own server over a disk in memory, on the
//! client's runtime, with both of its backends.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::join_all;
use futures_util::future::poll_immediate;
use rand::RngExt;

use super::super::super::{Export, Options, Server};
use super::super::table::REQUESTS_MAX;
use super::*;
use crate::memory_disk::{MemoryDisk, SIZE as DISK_BYTES};
use crate::{Access, Listen, Listener};
use pumice_drive::base::seed;

/// Everything available to the body of a test.
struct World {
    runtime: Runtime,
    disk: Rc<MemoryDisk>,
    server: Rc<Server>,
    socket: std::path::PathBuf,
}

impl World {
    async fn connect(&self, export: &str) -> Result<Client> {
        let text = format!("nbd+unix:///{export}?socket={}", self.socket.display());
        Client::connect(&self.runtime, &Uri::parse(&text)?).await
    }

    fn calls(&self) -> Vec<String> {
        self.disk.calls.borrow().clone()
    }

    async fn until(&self, is_so: impl Fn() -> bool) {
        while !is_so() {
            self.runtime.yield_now().await;
        }
    }
}

fn with_server(backend: Backend, disk: MemoryDisk, body: impl AsyncFnOnce(&World)) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let runtime = Runtime::new(backend).unwrap();
    let disk = Rc::new(disk);
    let export = Export::new("disk", "", disk.clone());
    let server = Server::new(runtime.clone(), vec![Rc::new(export)], Options::default());
    let listener = Listener::bind(&Listen::Unix(socket.clone()), Access::default()).unwrap();
    runtime.spawn(server.clone().serve(listener));
    let world = World { runtime: runtime.clone(), disk, server, socket };
    let limited = async { runtime.timeout(TIME_LIMIT_NS, body(&world)).await };
    runtime.block_on(limited).expect("the client hangs");
    runtime.drop_tasks();
}

#[test]
fn many_tasks_read_their_own_writes() {
    const TASKS: u64 = 40;
    for backend in [Backend::Auto, Backend::Threads] {
        with_server(backend, MemoryDisk::default(), async |world| {
            let client = world.connect("").await.unwrap();
            assert_eq!(client.size_bytes(), DISK_BYTES);
            let area = DISK_BYTES / TASKS;
            let tasks = (0..TASKS).map(async |task| {
                let random = &mut seed::random(task);
                for round in 0..20 {
                    let sectors = match random.random_range(0..3) {
                        0 => 8,
                        1 => random.random_range(1..10),
                        _ => random.random_range(1..600),
                    };
                    let length = 512 * sectors as usize;
                    let offset = task * area + 512 * random.random_range(0..area / 512 - sectors);
                    let mut data = AlignedBuffer::zeroed(length);
                    data.fill_with(|| random.random());
                    let data = Arc::new(data);
                    match round % 2 {
                        0 => client.write(offset, &data, Volatile).await.unwrap(),
                        _ => client.write_shared(offset, &data, Volatile).await.unwrap(),
                    }
                    assert_eq!(Arc::strong_count(&data), 1, "the buffer is given back");
                    let (read, result) = client.read(offset, AlignedBuffer::zeroed(length)).await;
                    result.unwrap();
                    assert!(read[..] == data[..], "task {task}: {length} bytes at {offset}");
                }
            });
            join_all(tasks).await;
            client.disconnect().await.unwrap();
        });
    }
}

#[test]
fn every_verb_reaches_the_disk_as_it_was_asked_for() {
    let disk = MemoryDisk { failure: Some((1 << 20, ErrorKind::NoSpace)), ..MemoryDisk::default() };
    with_server(Backend::Auto, disk, async |world| {
        let client = world.connect("disk").await.unwrap();
        client.write(0, &[1; 4096], Volatile).await.unwrap();
        client.write(4096, &[2; 1024], Durable).await.unwrap();
        client.flush().await.unwrap();
        client.trim(512, 1024, Volatile).await.unwrap();
        client.trim(0, 512, Durable).await.unwrap();
        client.write_zeroes(4096, 512, Release, Volatile).await.unwrap();
        client.write_zeroes(2048, 512, Keep, Durable).await.unwrap();
        let (buffer, result) = client.read(0, AlignedBuffer::zeroed(5120)).await;
        result.unwrap();
        for (range, byte) in [(0..1536, 0), (1536..2048, 1), (2048..2560, 0), (2560..4096, 1)] {
            assert!(buffer[range].iter().all(|&is| is == byte));
        }
        assert!(buffer[4096..4608].iter().all(|&is| is == 0));
        assert!(buffer[4608..].iter().all(|&is| is == 2));
        let error = client.write((1 << 20) - 512, &[3; 1024], Volatile).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
        let expected = [
            "write 0 4096 Volatile",
            "write 4096 1024 Durable",
            "flush",
            "trim 512 1024 Volatile",
            "trim 0 512 Durable",
            "zero 4096 512 Release Volatile",
            "zero 2048 512 Keep Durable",
            "write 1048064 1024 Volatile",
        ];
        assert_eq!(world.calls(), expected);
    });
}

#[test]
fn impossible_requests_are_refused_without_asking_the_server() {
    let disk = MemoryDisk { is_read_only: true, ..MemoryDisk::default() };
    with_server(Backend::Auto, disk, async |world| {
        let client = world.connect("").await.unwrap();
        assert!(client.is_read_only());
        let kind = |result: Result<()>| result.unwrap_err().kind();
        assert_eq!(kind(client.write(0, &[1], Volatile).await), ErrorKind::ReadOnly);
        assert_eq!(kind(client.trim(0, 1, Volatile).await), ErrorKind::ReadOnly);
        assert_eq!(kind(client.write_zeroes(0, 1, Release, Volatile).await), ErrorKind::ReadOnly);
        client.flush().await.unwrap();
        assert_eq!(client.read(0, AlignedBuffer::zeroed(4096)).await.1.err().map(|_| ()), None);
        assert_eq!(read_error(&client, DISK_BYTES, 512).await.kind(), ErrorKind::InvalidInput);
        assert_eq!(
            (world.calls(), world.server.exports()[0].refused_requests()),
            (vec!["flush".to_owned()], 0)
        );
    });
}

#[test]
fn an_unknown_export_is_not_found() {
    with_server(Backend::Auto, MemoryDisk::default(), async |world| {
        let error = world.connect("disc").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.chain().contains("'disc'"), "{}", error.chain());
        world.connect("disk").await.unwrap();
    });
}

#[test]
fn more_requests_than_may_be_under_way_wait() {
    with_server(Backend::Auto, MemoryDisk::default(), async |world| {
        let client = world.connect("").await.unwrap();
        let most = Cell::new(0);
        let writes = (0..3 * REQUESTS_MAX as u64).map(async |index| {
            client.write(index * 4096, &[index as u8; 4096], Volatile).await.unwrap();
            most.set(most.get().max(under_way(&client)));
        });
        join_all(writes).await;
        assert!(most.get() <= REQUESTS_MAX);
        let flushes = (0..3 * REQUESTS_MAX).map(async |_| {
            client.flush().await.unwrap();
            most.set(most.get().max(under_way(&client)));
        });
        join_all(flushes).await;
        assert!((REQUESTS_MAX - 10..=REQUESTS_MAX).contains(&most.get()), "{}", most.get());
    });
}

#[test]
fn a_dropped_request_leaves_the_others_alone() {
    let disk = MemoryDisk { gated_offset: Some(0), ..MemoryDisk::default() };
    with_server(Backend::Auto, disk, async |world| {
        let client = world.connect("").await.unwrap();
        for length in [512, 102_400] {
            {
                let mut read = pin!(client.read(0, AlignedBuffer::zeroed(length)));
                assert!(poll_immediate(&mut read).await.is_none());
            }
            {
                let data = Arc::new(AlignedBuffer::zeroed(length));
                let mut write = pin!(client.write_shared(1 << 20, &data, Volatile));
                assert!(poll_immediate(&mut write).await.is_none());
            }
        }
        client.write(4096, &[5; 512], Volatile).await.unwrap();
        let (buffer, result) = client.read(4096, AlignedBuffer::zeroed(512)).await;
        assert!(result.is_ok() && buffer.iter().all(|&byte| byte == 5));
        world.disk.open_gate();
        world.until(|| under_way(&client) == 0).await;
        client.disconnect().await.unwrap();
    });
}

#[test]
fn disconnecting_waits_for_answers_and_takes_no_more_requests() {
    let disk = MemoryDisk { gated_offset: Some(0), ..MemoryDisk::default() };
    with_server(Backend::Auto, disk, async |world| {
        let client = world.connect("").await.unwrap();
        let slow = async { client.write(0, &[1; 512], Volatile).await };
        let end = async { client.disconnect().await };
        let later = async {
            // Polled after the other two have begun.
            let error = client.flush().await.unwrap_err();
            assert!(error.to_string().contains("disconnecting"), "{error}");
            world.runtime.yield_now().await;
            assert_eq!(world.server.connections(), 1);
            world.disk.open_gate();
        };
        let (slow, end, ()) = futures_util::future::join3(slow, end, later).await;
        slow.unwrap();
        end.unwrap();
        client.disconnect().await.unwrap();
        let error = read_error(&client, 0, 512).await;
        assert!(error.to_string().contains("has disconnected"), "{error}");
        world.until(|| world.server.connections() == 0).await;
    });
}

#[test]
fn the_last_clone_closes_the_connection() {
    with_server(Backend::Auto, MemoryDisk::default(), async |world| {
        let client = world.connect("").await.unwrap();
        let clone = client.clone();
        let socket = Arc::downgrade(&client.connection().socket);
        drop(client);
        clone.flush().await.unwrap();
        assert_eq!(world.server.connections(), 1);
        drop(clone);
        world.until(|| world.server.connections() == 0 && socket.upgrade().is_none()).await;
    });
}

#[test]
fn a_server_that_shut_down_is_noticed() {
    with_server(Backend::Auto, MemoryDisk::default(), async |world| {
        let client = world.connect("").await.unwrap();
        world.server.shutdown().await.unwrap();
        let error = client.flush().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error:?}");
        assert!(error.to_string().contains("the server closed it"), "{error}");
    });
}

#[test]
fn tcp_carries_the_same() {
    with_server(Backend::Auto, MemoryDisk::default(), async |world| {
        let any = Listen::Tcp(([127, 0, 0, 1], 0).into());
        let listener = Listener::bind(&any, Access::default()).unwrap();
        let uri = Uri::parse(&listener.uri("", false)).unwrap();
        world.runtime.spawn(world.server.clone().serve(listener));
        let client = Client::connect(&world.runtime, &uri).await.unwrap();
        let mut data = AlignedBuffer::zeroed(1 << 20);
        data.fill_with({
            let mut random = seed::random(3);
            move || random.random()
        });
        let data = Arc::new(data);
        client.write_shared(512, &data, Durable).await.unwrap();
        let (buffer, result) = client.read(512, AlignedBuffer::zeroed(1 << 20)).await;
        assert!(result.is_ok() && buffer[..] == data[..]);
        client.disconnect().await.unwrap();
    });
}
