//! Goal: disks on several threads appear as one server to their clients, and do not wait for each
//! other. Method: two disks in memory, each on its own thread, and the front server in the test's
//! thread. Work that must not wait is observed to continue while the other side is blocked.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use async_channel::bounded;

use super::super::wire::{option, reply};
use super::super::{Handover, RemoteExports};
use super::*;
use pumice_drive::base::Result;

/// A thread with the server of one disk.
struct Thread {
    /// Ends the thread when dropped.
    life: async_channel::Sender<()>,
    handle: JoinHandle<Vec<String>>,
}

impl Thread {
    /// Starts a thread. Offers the initial state of the disk as well, if it `has_state`.
    fn start(
        name: &'static str,
        is_ready: fn(u64) -> bool,
        has_state: bool,
    ) -> (Self, RemoteExports) {
        let (life, end) = bounded::<()>(1);
        let (announce, announced) = mpsc::channel();
        let handle = thread::spawn(move || {
            let runtime = Runtime::new(Backend::Auto).unwrap();
            let disk = Rc::new(MemoryDisk { is_ready, ..MemoryDisk::default() });
            let export = Rc::new(Export::new(name, "", disk.clone()));
            let options = Options::default().shared_by(2);
            let state = has_state.then(|| super::earlier::earlier(&export, "new", 1));
            let exports = [export].into_iter().chain(state).collect();
            let server = Server::new(runtime.clone(), exports, options);
            announce.send(server.remote_exports()).unwrap();
            let serve = || runtime.block_on(end.recv());
            let _ = catch_unwind(AssertUnwindSafe(serve));
            runtime.drop_tasks();
            disk.calls.borrow().clone()
        });
        (Self { life, handle }, announced.recv().unwrap())
    }

    /// Ends the thread, and returns the calls of the disk.
    fn end(self) -> Vec<String> {
        drop(self.life);
        self.handle.join().unwrap()
    }
}

/// The disks `a` and `b`, each on its thread, and a front server.
pub(super) struct World {
    runtime: Runtime,
    server: Rc<Server>,
    threads: [Thread; 2],
}

impl World {
    /// Returns a world in which disk `a` has this `is_ready`.
    fn new(is_ready: fn(u64) -> bool, options: Options) -> Self {
        Self::with(is_ready, options, false)
    }

    /// Returns a world in which disk `a` has a state.
    pub(super) fn with_state() -> Self {
        Self::with(|_| true, Options::default(), true)
    }

    fn with(is_ready: fn(u64) -> bool, options: Options, has_state: bool) -> Self {
        let runtime = Runtime::new(Backend::Auto).unwrap();
        let (a, at_a) = Thread::start("a", is_ready, has_state);
        let (b, at_b) = Thread::start("b", |_| true, false);
        let server = Server::in_front_of(runtime.clone(), vec![at_a, at_b], options);
        Self { runtime, server, threads: [a, b] }
    }

    pub(super) fn run(self, client: impl FnOnce(Door) + Send + 'static) -> Ended {
        let Self { runtime, server, threads } = self;
        let result = visit(client, |listener, near| {
            runtime.spawn(server.clone().serve(listener));
            runtime.block_on(runtime.receive(&near, vec![0; 1], 0..1)).1.unwrap();
            let result = runtime.block_on(server.shutdown());
            runtime.drop_tasks();
            result
        });
        let tally = server.tally();
        let counted = (tally.open(), tally.accepted(), tally.refused_requests());
        Ended { result, counted, calls: threads.map(Thread::end) }
    }
}

/// The results of a world.
pub(super) struct Ended {
    pub(super) result: Result<()>,
    counted: (u64, u64, u64),
    calls: [Vec<String>; 2],
}

impl Door {
    /// Returns a connection before the choice of its export.
    fn haggle(&self) -> Client {
        let mut client = self.connect();
        client.greet(3);
        client
    }

    pub(super) fn enter_at(&self, export: &str) -> Client {
        let mut client = self.haggle();
        client.option(option::GO, &choice(export));
        assert_eq!(client.option_reply(option::GO).0, reply::INFO);
        assert_eq!(client.option_reply(option::GO), (reply::ACK, vec![]));
        client
    }
}

pub(super) fn choice(export: &str) -> Vec<u8> {
    let length = export.len() as u32;
    [&length.to_be_bytes(), export.as_bytes(), &[0, 0]].concat()
}

/// Returns the names that the server lists.
fn listed(client: &mut Client) -> Vec<String> {
    client.option(option::LIST, b"");
    let mut names = Vec::new();
    loop {
        match client.option_reply(option::LIST) {
            (reply::SERVER, data) => names.push(String::from_utf8(data[4..].to_vec()).unwrap()),
            (kind, _) => {
                assert_eq!(kind, reply::ACK);
                return names;
            }
        }
    }
}

#[test]
fn clients_reach_the_disk_that_they_choose() {
    let ended = World::new(|_| true, Options::default()).run(|door| {
        let mut haggler = door.connect();
        haggler.greet(3);
        assert_eq!(listed(&mut haggler), ["a", "b"]);
        haggler.option(option::GO, &choice("c"));
        assert_eq!(haggler.option_reply(option::GO).0, reply::ERR_UNKNOWN);
        let (mut a, mut b) = (door.enter_at("a"), door.enter_at("b"));
        assert_eq!((a.write(0, 0, b"first"), b.write(0, 0, b"other")), (0, 0));
        assert_eq!(a.read(0, 5).unwrap(), b"first");
        assert_eq!(b.read(0, 5).unwrap(), b"other");
        // The request is sent together with the choice, so it arrives on the thread that performs
        // handshakes.
        let mut hasty = door.connect();
        hasty.greet(3);
        let request = Request { flags: 0, command: command::READ, cookie: 9, offset: 0, length: 5 };
        let header = [&b"IHAVEOPT"[..], &option::GO.to_be_bytes(), &7u32.to_be_bytes()].concat();
        hasty.send(&[&header, &choice("b")[..], &request.encode()[..20]].concat());
        hasty.option_reply(option::GO);
        hasty.option_reply(option::GO);
        hasty.send(&request.encode()[20..]);
        assert_eq!((hasty.reply(), hasty.receive(5)), ((9, 0), b"other".to_vec()));
        assert_ne!(hasty.call(command::READ, 0, 1 << 50, 1), 0);
    });
    ended.result.unwrap();
    assert_eq!(ended.counted, (0, 4, 1));
    assert_eq!(ended.calls[0], ["write 0 5 Volatile", "flush"]);
    assert_eq!(ended.calls[1], ["write 0 5 Volatile", "flush"]);
}

/// Locked while disk `a` must stay busy.
static BUSY: Mutex<()> = Mutex::new(());
/// Notified when it is busy.
static ENTERED: Mutex<Option<mpsc::Sender<()>>> = Mutex::new(None);

fn is_busy_at_0(offset: u64) -> bool {
    if offset == 0 {
        if let Some(entered) = ENTERED.lock().unwrap().take() {
            entered.send(()).unwrap();
        }
        drop(BUSY.lock().unwrap_or_else(PoisonError::into_inner));
    }
    true
}

#[test]
fn a_busy_disk_holds_up_no_other() {
    let ended = World::new(is_busy_at_0, Options::default()).run(|door| {
        let (mut a, mut b) = (door.enter_at("a"), door.enter_at("b"));
        let (entered, has_entered) = mpsc::channel();
        *ENTERED.lock().unwrap() = Some(entered);
        let busy = BUSY.lock().unwrap();
        a.request(command::WRITE, 0, 1, 0, 4);
        a.send(b"long");
        has_entered.recv_timeout(TIME_LIMIT).unwrap();
        // Its thread is blocked.
        b.expect_alive();
        door.enter_at("b").expect_alive();
        let mut haggler = door.connect();
        haggler.greet(3);
        assert_eq!(listed(&mut haggler), ["a", "b"]);
        drop(busy);
        assert_eq!(a.reply(), (1, 0));
        a.expect_alive();
    });
    ended.result.unwrap();
}

#[test]
fn handshakes_hold_up_no_disk() {
    let World { runtime, server, threads } = World::new(|_| true, Options::default());
    let is_over = Arc::new(AtomicBool::new(false));
    let client_is_over = is_over.clone();
    visit(
        move |mut door| {
            let (mut a, mut b) = (door.enter_at("a"), door.enter_at("b"));
            // The thread that performs handshakes is blocked from here on.
            door.signal(b'b');
            a.expect_alive();
            b.expect_alive();
            assert_eq!(a.call(command::FLUSH, 0, 0, 0), 0);
            client_is_over.store(true, Ordering::SeqCst);
        },
        |listener, near| {
            runtime.spawn(server.clone().serve(listener));
            let (_, signalled) = runtime.block_on(runtime.receive(&near, vec![0; 1], 0..1));
            assert_eq!(signalled.unwrap(), 1);
            let mut near = UnixStream::from(near.try_clone().unwrap());
            near.write_all(b"b").unwrap();
            // Returns when the client has ended.
            assert_eq!(near.read(&mut [0]).unwrap(), 0);
            assert!(is_over.load(Ordering::SeqCst), "a client waited for this thread");
            runtime.block_on(server.shutdown()).unwrap();
            runtime.drop_tasks();
        },
    );
    threads.into_iter().for_each(|thread| drop(thread.end()));
}

/// Guards against requests that are executed although their client left before it was admitted.
#[test]
fn a_client_that_leaves_during_the_handshake_has_requested_nothing() {
    let World { runtime, server, threads } = World::new(|_| true, Options::default());
    visit(
        |mut door| {
            let mut hasty = door.connect();
            let write =
                Request { flags: 0, command: command::WRITE, cookie: 1, offset: 0, length: 4 };
            let header = [&b"IHAVEOPT"[..], &option::GO.to_be_bytes(), &7u32.to_be_bytes()];
            let parts = [&3u32.to_be_bytes()[..], &header.concat(), &choice("a"), &write.encode()];
            hasty.send(&[&parts.concat()[..], b"late"].concat());
            drop(hasty);
            door.signal(b'b');
            door.enter_at("a").expect_alive();
        },
        |listener, near| {
            let signal = || runtime.block_on(runtime.receive(&near, vec![0; 1], 0..1)).1.unwrap();
            assert_eq!(signal(), 1);
            runtime.spawn(server.clone().serve(listener));
            UnixStream::from(near.try_clone().unwrap()).write_all(b"b").unwrap();
            assert_eq!(signal(), 0);
            runtime.block_on(server.shutdown()).unwrap();
            runtime.drop_tasks();
        },
    );
    let [calls, _] = threads.map(Thread::end);
    assert_eq!(calls, ["write 8192 10 Volatile", "flush"]);
}

#[test]
fn a_thread_that_panics_ends_its_clients_and_no_others() {
    let panics_at_0 = |offset| {
        assert_ne!(offset, 0, "planted");
        true
    };
    let ended = World::new(panics_at_0, Options::default()).run(|door| {
        let mut late = door.connect();
        late.greet(3);
        let (mut a, mut bystander) = (door.enter_at("a"), door.enter_at("a"));
        let mut b = door.enter_at("b");
        a.request(command::WRITE, 0, 1, 0, 4);
        a.send(b"evil");
        a.expect_end();
        bystander.expect_end();
        b.expect_alive();
        late.option(option::GO, &choice("a"));
        assert_eq!(late.option_reply(option::GO).0, reply::ERR_UNKNOWN);
        late.option(option::GO, &choice("b"));
        assert_eq!(late.option_reply(option::GO).0, reply::INFO);
        assert_eq!(late.option_reply(option::GO).0, reply::ACK);
        late.expect_alive();
        let mut old = door.connect();
        old.greet(3);
        old.option(option::EXPORT_NAME, b"a");
        old.expect_end();
    });
    assert_eq!(ended.result.unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(ended.counted.0, 0);
    assert_eq!(ended.calls[1].last().unwrap(), "flush", "the other disk was not flushed");
}

#[test]
fn clients_of_all_threads_count_for_the_limit() {
    let options = Options { connections_max: 2, ..Options::default() };
    let ended = World::new(|_| true, options).run(|door| {
        let (a, mut b) = (door.enter_at("a"), door.enter_at("b"));
        let mut waits = door.connect();
        waits.0.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let silence = waits.0.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(silence, Err(std::io::ErrorKind::WouldBlock), "one too many");
        waits.0.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        drop(a);
        waits.greet(3);
        b.expect_alive();
    });
    ended.result.unwrap();
}

/// Guards against a disk that is closed while a client still uses it.
#[test]
fn a_withdrawn_export_is_free_once_its_clients_are_gone() {
    let World { runtime, server, threads } = World::new(|_| true, Options::default());
    visit(
        |mut door| {
            let (mut a, mut b) = (door.enter_at("a"), door.enter_at("b"));
            a.expect_alive();
            door.signal(b'w');
            a.expect_end();
            b.expect_alive();
            assert_eq!(listed(&mut door.haggle()), ["b"]);
        },
        |listener, near| {
            runtime.spawn(server.clone().serve(listener));
            let (byte, signalled) = runtime.block_on(runtime.receive(&near, vec![0; 1], 0..1));
            assert_eq!(signalled.unwrap(), 1);
            assert!(runtime.block_on(server.withdraw("a")));
            assert_eq!(server.connections(), 1);
            runtime.block_on(async {
                runtime.send(&near, byte, 0..1).await.1.unwrap();
                runtime.receive(&near, vec![0; 1], 0..1).await.1.unwrap();
                server.shutdown().await.unwrap();
            });
            runtime.drop_tasks();
        },
    );
    threads.into_iter().for_each(|thread| drop(thread.end()));
}

#[test]
fn clients_of_all_threads_are_handed_over() {
    let first = World::new(|_| true, Options::default());
    let second = World::new(|_| true, Options::default());
    visit(
        |mut door| {
            let (mut a, mut b) = (door.enter_at("a"), door.enter_at("b"));
            assert_eq!(a.write(0, 0, b"old"), 0);
            let request =
                Request { flags: 0, command: command::READ, cookie: 2, offset: 0, length: 3 };
            b.send(&request.encode()[..11]);
            // This server has received half of a request, or the next one will.
            a.expect_alive();
            door.signal(b'h');
            assert_eq!(a.read(0, 3).unwrap(), [0; 3], "the disk is still the first");
            assert_eq!(a.write(0, 0, b"new"), 0);
            b.send(&request.encode()[11..]);
            assert_eq!((b.reply(), b.receive(3)), ((2, 0), vec![0; 3]));
            assert_eq!(a.read(0, 3).unwrap(), b"new");
            door.enter_at("b").expect_alive();
        },
        |listener, near| {
            let runtime = &first.runtime;
            runtime.spawn(first.server.clone().serve(listener));
            let (byte, signalled) = runtime.block_on(runtime.receive(&near, vec![0; 1], 0..1));
            assert_eq!(signalled.unwrap(), 1);
            let Handover { listeners, clients, .. } =
                runtime.block_on(first.server.hand_over()).unwrap();
            assert_eq!((listeners.len(), clients.len(), first.server.connections()), (1, 2, 0));
            let runtime = &second.runtime;
            for listener in listeners {
                runtime.spawn(second.server.clone().serve(listener));
            }
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
    let [a, b] = first.threads.map(Thread::end);
    assert_eq!(a.last().unwrap(), "flush");
    assert_eq!(b, ["flush"]);
    let [a, _] = second.threads.map(Thread::end);
    assert_eq!(a, ["write 0 3 Volatile", "flush"]);
}
