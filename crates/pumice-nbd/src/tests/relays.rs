//! Goal: clients whose connection is on a third thread notice nothing of it.
//! Method: a disk in memory on one thread, connections on another, and the server in front of both
//! in the test's thread; the connections are in the clear, so that the scripted client speaks them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use async_channel::bounded;

use super::super::{Elsewhere, Handover, PassedOn, connections};
use super::threads::{choice, listed};
use super::*;
use crate::Disk;
use crate::caller::Caller;
use crate::relay::{self, Relay, RelayEnd};
use crate::request::Shape;
use pumice_drive::base::{Clock, Result};

/// How long the gate of a disk is closed: enough for a server to begin its end meanwhile.
const GATE_NS: u64 = 500_000_000;

/// A thread that lives until this is dropped.
struct Thread<T> {
    life: async_channel::Sender<()>,
    handle: JoinHandle<T>,
}

impl<T: Send + 'static> Thread<T> {
    /// `make` returns what others see of the thread, and what it leaves.
    fn start<F: FnOnce() -> T>(
        make: impl FnOnce(&Runtime) -> (Elsewhere, F) + Send + 'static,
    ) -> (Self, Elsewhere) {
        let (life, end) = bounded::<()>(1);
        let (announce, announced) = mpsc::channel();
        let handle = thread::spawn(move || {
            let runtime = Runtime::new(Backend::Auto).unwrap();
            let (elsewhere, leave) = make(&runtime);
            announce.send(elsewhere).unwrap();
            let _ = catch_unwind(AssertUnwindSafe(|| runtime.block_on(end.recv())));
            runtime.drop_tasks();
            leave()
        });
        (Self { life, handle }, announced.recv().unwrap())
    }

    fn end(self) -> T {
        drop(self.life);
        self.handle.join().unwrap()
    }
}

/// A disk `a`, a thread for connections to it, and a server in front of both.
pub(super) struct World {
    runtime: Runtime,
    server: Rc<Server<MemoryDisk>>,
    disk: Thread<Vec<String>>,
    connections: Thread<()>,
}

impl World {
    fn new(is_ready: fn(u64) -> bool) -> Self {
        Self::with(move || MemoryDisk { is_ready, ..MemoryDisk::default() })
    }

    /// With the state of the disk when it was made.
    pub(super) fn with_state() -> Self {
        Self::with_states(MemoryDisk::default, &["new"])
    }

    fn with(make: impl FnOnce() -> MemoryDisk + Send + 'static) -> Self {
        Self::with_states(make, &[])
    }

    /// The gate of the disk opens itself, after `GATE_NS`.
    fn with_states(
        make: impl FnOnce() -> MemoryDisk + Send + 'static,
        states: &'static [&'static str],
    ) -> Self {
        let runtime = Runtime::new(Backend::Auto).unwrap();
        let (disk, at_disk) = Thread::start(move |runtime| {
            let disk = Rc::new(make());
            let (gate, clock) = (disk.clone(), runtime.clone());
            runtime.spawn(async move {
                clock.sleep_ns(GATE_NS).await;
                gate.calls.borrow_mut().extend(gate.gated_offset.map(|_| "the gate opens".into()));
                gate.open_gate();
            });
            let export = Rc::new(Export::new("a", "", disk.clone()));
            let states = states.iter().map(|name| super::earlier::earlier(&export, name, 1));
            let exports = [export.clone()].into_iter().chain(states).collect();
            let server = Server::new(runtime.clone(), exports, Options::default());
            (server.elsewhere(), move || disk.calls.borrow().clone())
        });
        let (connections, at_connections) =
            Thread::start(|runtime| (connections(runtime.clone(), Options::default()), || ()));
        let server = Server::in_front_of(runtime.clone(), vec![at_disk], Options::default());
        server.connections_through(vec![at_connections], PassedOn::All);
        Self { runtime, server, disk, connections }
    }

    pub(super) fn run(
        self,
        client: impl FnOnce(Door) + Send + 'static,
    ) -> (Result<()>, Vec<String>) {
        let Self { runtime, server, disk, connections } = self;
        let result = visit(client, |listener, near| {
            runtime.spawn(server.clone().serve(listener));
            runtime.block_on(runtime.receive(&near, vec![0; 1], 0..1)).1.unwrap();
            let result = runtime.block_on(server.shutdown());
            runtime.drop_tasks();
            result
        });
        assert_eq!(server.tally().open(), 0);
        connections.end();
        (result, disk.end())
    }
}

#[test]
fn requests_of_every_kind_reach_the_disk() {
    let (result, calls) = World::new(|_| true).run(|door| {
        let (mut one, mut other) = (door.enter_at("a"), door.enter_at("a"));
        assert_eq!(one.write(0, 0, b"first"), 0);
        assert_eq!(other.read(0, 5).unwrap(), b"first");
        assert_eq!(one.call(command::FLUSH, 0, 0, 0), 0);
        assert_eq!(one.call(command::WRITE_ZEROES, 2, 8192, 4096), 0);
        assert_eq!(one.call(command::TRIM, 1, 4096, 4096), 0);
        assert_eq!(one.call(command::CACHE, 0, 0, 4096), 0);
        let long = vec![7; 3 << 20];
        assert_eq!(one.write(0, 1 << 20, &long), 0);
        assert_eq!(other.read(1 << 20, 3 << 20).unwrap(), long);
        assert_eq!(one.call(command::READ, 0, SIZE, 1), 22);
        one.expect_alive();
    });
    result.unwrap();
    let expected = [
        "write 0 5 false",
        "flush",
        "zero 8192 4096 true false",
        "trim 4096 4096 true",
        "prefetch 0 4096",
    ];
    assert_eq!(calls[..5], expected);
    assert_eq!(calls.iter().filter(|call| call.starts_with("write 1048576")).count(), 1);
    assert_eq!(calls.last().unwrap(), "flush");
}

/// Guards against a flush of the disk before the last requests of its clients.
#[test]
fn what_is_under_way_is_flushed_at_the_end() {
    let gated = || MemoryDisk { gated_offset: Some(0), ..MemoryDisk::default() };
    let (result, calls) = World::with(gated).run(|door| {
        let mut client = door.enter_at("a");
        client.request(command::WRITE, 0, 1, 0, 4);
        client.send(b"late");
        client.expect_alive();
    });
    result.unwrap();
    assert_eq!(calls.first().unwrap(), "write 0 4 false");
    assert_eq!(calls[calls.len() - 2..], ["the gate opens", "flush"], "{calls:?}");
}

#[test]
fn deep_queues_are_answered_in_full() {
    let (result, _) = World::new(|offset| offset % 8192 == 0).run(|door| {
        let mut clients: Vec<_> = (0..4).map(|_| door.enter_at("a")).collect();
        for client in &mut clients {
            for number in 0..200 {
                client.request(command::WRITE, 0, number, number * 4096, 4096);
                client.send(&[number as u8; 4096]);
            }
        }
        for client in &mut clients {
            let mut cookies: Vec<_> = (0..200).map(|_| client.reply()).collect();
            cookies.sort_unstable();
            assert!(cookies.into_iter().eq((0..200).map(|number| (number, 0))));
        }
        for number in 0..200 {
            assert_eq!(clients[0].read(number * 4096, 4096).unwrap(), [number as u8; 4096]);
        }
    });
    result.unwrap();
}

#[test]
fn a_disk_whose_thread_ends_ends_its_clients() {
    let panics_at_0 = |offset| {
        assert_ne!(offset, 0, "planted");
        true
    };
    let (result, _) = World::new(panics_at_0).run(|door| {
        let (mut evil, mut bystander) = (door.enter_at("a"), door.enter_at("a"));
        bystander.expect_alive();
        evil.request(command::WRITE, 0, 1, 0, 4);
        evil.send(b"evil");
        bystander.drain();
        evil.drain();
        let mut late = door.connect();
        late.greet(3);
        late.option(wire::option::GO, &choice("a"));
        assert_eq!(late.option_reply(wire::option::GO).0, wire::reply::ERR_UNKNOWN);
    });
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Poisoned);
}

#[test]
fn clients_go_to_the_thread_of_the_disk_once_that_of_connections_has_ended() {
    let World { runtime, server, disk, connections } = World::new(|_| true);
    connections.end();
    visit(
        |door| {
            let mut client = door.enter_at("a");
            assert_eq!(listed(&mut door.haggle()), ["a"]);
            assert_eq!(client.write(0, 0, b"still"), 0);
        },
        |listener, near| {
            runtime.spawn(server.clone().serve(listener));
            runtime.block_on(runtime.receive(&near, vec![0; 1], 0..1)).1.unwrap();
            runtime.block_on(server.shutdown()).unwrap();
            runtime.drop_tasks();
        },
    );
    assert_eq!(disk.end(), ["write 0 5 false", "flush"]);
}

/// Guards against a disk that is closed while a connection still uses it.
#[test]
fn a_withdrawn_export_is_free_once_its_clients_are_gone() {
    let World { runtime, server, disk, connections } = World::new(|_| true);
    visit(
        |mut door| {
            let mut client = door.enter_at("a");
            client.expect_alive();
            door.signal(b'w');
            client.expect_end();
        },
        |listener, near| {
            runtime.spawn(server.clone().serve(listener));
            let (byte, signalled) = runtime.block_on(runtime.receive(&near, vec![0; 1], 0..1));
            assert_eq!(signalled.unwrap(), 1);
            assert!(runtime.block_on(server.withdraw("a")));
            runtime.block_on(async {
                runtime.send(&near, byte, 0..1).await.1.unwrap();
                runtime.receive(&near, vec![0; 1], 0..1).await.1.unwrap();
                server.shutdown().await.unwrap();
            });
            runtime.drop_tasks();
        },
    );
    connections.end();
    disk.end();
}

#[test]
fn clients_are_handed_over() {
    let (first, second) = (World::new(|_| true), World::new(|_| true));
    visit(
        |mut door| {
            let mut client = door.enter_at("a");
            assert_eq!(client.write(0, 0, b"old"), 0);
            door.signal(b'h');
            assert_eq!(client.read(0, 3).unwrap(), [0; 3], "the disk is still the first");
            assert_eq!(client.write(0, 0, b"new"), 0);
            assert_eq!(client.read(0, 3).unwrap(), b"new");
        },
        |listener, near| {
            let runtime = &first.runtime;
            runtime.spawn(first.server.clone().serve(listener));
            let (byte, signalled) = runtime.block_on(runtime.receive(&near, vec![0; 1], 0..1));
            assert_eq!(signalled.unwrap(), 1);
            let Handover { clients, listeners } =
                runtime.block_on(first.server.hand_over()).unwrap();
            assert_eq!((clients.len(), listeners.len()), (1, 1));
            let runtime = &second.runtime;
            clients.into_iter().for_each(|client| second.server.resume(client));
            runtime.block_on(async {
                runtime.send(&near, byte, 0..1).await.1.unwrap();
                runtime.receive(&near, vec![0; 1], 0..1).await.1.unwrap();
                second.server.shutdown().await.unwrap();
            });
            runtime.drop_tasks();
            first.runtime.drop_tasks();
        },
    );
    for (World { disk, connections, .. }, expected) in [(first, "old"), (second, "new")] {
        connections.end();
        assert_eq!(disk.end(), ["write 0 3 false", "flush"], "{expected}");
    }
}

/// Both ends of a way to a disk of 8 KiB, of which the relay believes that it has 4.
fn ends(runtime: &Runtime) -> (Rc<Export<MemoryDisk>>, RelayEnd) {
    let (end, relay) = relay::way(Shape { size_bytes: 4096, is_read_only: false });
    let export = Rc::new(Export::new("a", "", Rc::new(MemoryDisk::new(8192))));
    let carried_out = relay::carry_out(runtime.clone(), Rc::default(), export.clone(), end);
    runtime.spawn(carried_out);
    (export, relay)
}

#[test]
fn a_disk_that_has_grown_is_used_to_its_end() {
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let (_export, relay) = ends(&runtime);
    let (near, _far) = UnixStream::pair().unwrap();
    let relay = Relay::new(&runtime, relay, Caller::new(Arc::new(near.into()), 0));
    assert_eq!(relay.size_bytes(), 4096);
    runtime.block_on(async {
        relay.refresh().await;
        assert_eq!(relay.size_bytes(), 8192);
        relay.write(4096, b"last", true).await.unwrap();
        relay.close().await;
        assert!(relay.flush().await.is_err());
    });
}

/// Guards against a disk that stays in use after the thread of its client has ended.
#[test]
fn a_client_that_never_came_in_leaves_its_disk() {
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let (export, relay) = ends(&runtime);
    runtime.block_on(runtime.sleep_ns(0));
    drop(relay);
    let is_free = async {
        while Rc::strong_count(&export) > 1 {
            runtime.sleep_ns(1_000_000).await;
        }
    };
    runtime.block_on(runtime.timeout(TIME_LIMIT.as_nanos() as u64, is_free)).unwrap();
}
