//! Goal: an export is open to the clients that its rules admit, and a change to a running server
//! disturbs no other client. Method: clients over Unix sockets, whose user is that of the test;
//! rules that list this user or another one.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;

use rustix::net::{AddressFamily, SocketType};

use super::super::wire::{option, reply};
use super::super::{Listed, Policy, Rate, Rules};
use super::threads::choice;
use super::*;
use pumice_drive::base::Clock;

/// Returns the user of this process.
fn own() -> u32 {
    std::fs::metadata("/proc/self").unwrap().uid()
}

fn policy(rules: Rules) -> Policy {
    Policy { rules: [("disk".to_owned(), rules)].into(), ..Policy::default() }
}

fn open_to(users: &[u32]) -> Policy {
    policy(Rules { users: Some(users.into()), ..Rules::default() })
}

fn with(policy: Policy) -> Options {
    Options { policy, ..Options::default() }
}

impl Door {
    /// Returns a greeted connection, and the answer to an option.
    fn ask(&self, option: u32, data: &[u8]) -> (Client, u32) {
        let mut client = self.connect();
        client.greet(3);
        client.option(option, data);
        let kind = client.option_reply(option).0;
        (client, kind)
    }
}

#[test]
fn unlisted_clients_are_refused() {
    for open in [&[][..], &[own() + 1]] {
        serve(MemoryDisk::default(), with(open_to(open)), |door| {
            for option in [option::GO, option::INFO] {
                for name in ["disk", ""] {
                    let (mut client, kind) = door.ask(option, &choice(name));
                    assert_eq!(kind, reply::ERR_POLICY);
                    // The connection can still be used for other exports.
                    client.option(option::LIST, b"");
                    assert_eq!(client.option_reply(option::LIST), (reply::ACK, vec![]));
                }
            }
            let (mut client, kind) = door.ask(option::STRUCTURED_REPLY, b"");
            assert_eq!(kind, reply::ACK);
            let contexts = b"\0\0\0\x04disk\0\0\0\0";
            for option in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
                client.option(option, contexts);
                assert_eq!(client.option_reply(option).0, reply::ERR_POLICY);
            }
            let mut client = door.connect();
            client.greet(3);
            client.option(option::EXPORT_NAME, b"disk");
            client.expect_end();
        });
    }
    serve(MemoryDisk::default(), with(open_to(&[own() + 1, own()])), |door| {
        door.enter().expect_alive();
    });
}

#[test]
fn an_address_does_not_open_unix_sockets_nor_a_user_tcp() {
    let addresses = Some(vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()]);
    let rules = Rules { addresses, ..Rules::default() };
    serve(MemoryDisk::default(), with(policy(rules)), |door| {
        assert_eq!(door.ask(option::GO, &choice("disk")).1, reply::ERR_POLICY);
    });
    let rules = Rules { certificates: Some(vec!["name".into()]), ..Rules::default() };
    serve(MemoryDisk::default(), with(policy(rules)), |door| {
        assert_eq!(door.ask(option::GO, &choice("disk")).1, reply::ERR_POLICY);
    });
}

#[test]
fn names_can_be_kept_from_clients() {
    let policy = Policy { hides_names: true, ..Policy::default() };
    serve(MemoryDisk::default(), with(policy), |door| {
        let (mut client, kind) = door.ask(option::LIST, b"");
        assert_eq!(kind, reply::ERR_POLICY);
        client.option(option::GO, &choice("other"));
        let (kind, message) = client.option_reply(option::GO);
        assert_eq!((kind, &message[..]), (reply::ERR_UNKNOWN, &b"no such export"[..]));
        door.enter().expect_alive();
    });
}

#[test]
fn connections_of_an_export_and_of_a_peer_are_limited() {
    let rules = Rules { connections_max: Some(2), ..Rules::default() };
    serve(MemoryDisk::default(), with(policy(rules)), |door| {
        let (first, mut second) = (door.enter(), door.enter());
        let (mut third, kind) = door.ask(option::GO, &choice("disk"));
        assert_eq!(kind, reply::ERR_POLICY);
        drop(first);
        // Its place becomes free once the server has noticed.
        loop {
            third.option(option::GO, &choice("disk"));
            if third.option_reply(option::GO).0 == reply::INFO {
                break;
            }
        }
        assert_eq!(third.option_reply(option::GO).0, reply::ACK);
        third.expect_alive();
        second.expect_alive();
    });
    let policy = Policy { connections_per_peer_max: Some(2), ..Policy::default() };
    serve(MemoryDisk::default(), with(policy), |door| {
        let (first, mut second) = (door.enter(), door.connect());
        second.greet(3);
        door.connect().expect_end();
        second.option(option::GO, &choice("disk"));
        assert_eq!(second.option_reply(option::GO).0, reply::INFO);
        drop(first);
    });
}

#[test]
fn an_idle_client_of_the_handshake_is_disconnected() {
    let policy = Policy { idle_max_ns: Some(300_000_000), ..Policy::default() };
    let is_ready = |offset| offset != 0;
    let disk = MemoryDisk { is_ready, gated_offset: Some(0), ..MemoryDisk::default() };
    serve(disk, with(policy), |mut door| {
        let (mut idle, mut busy) = (door.enter(), door.enter());
        // Its request takes longer than the longest allowed idle time.
        busy.request(command::WRITE, 0, 1, 0, 4);
        busy.send(b"long");
        idle.expect_end();
        // Another connection begins only now. When it ends, the busy one has waited at least as
        // long.
        door.enter().expect_end();
        door.signal(OPEN_GATE);
        assert_eq!(busy.reply(), (1, 0));
    });
}

#[test]
fn requests_of_an_export_keep_to_its_rate() {
    let rate = Rate { operations: Some(50), bytes: None };
    let rules = Rules { rate, ..Rules::default() };
    serve(MemoryDisk::default(), with(policy(rules)), |mut door| {
        let clock = Runtime::new(Backend::Threads).unwrap();
        let started_ns = clock.now_ns();
        let (mut one, mut other) = (door.enter(), door.enter());
        for _ in 0..10 {
            one.expect_alive();
            other.expect_alive();
        }
        // Forty requests, of which six may start at once.
        let taken_ns = clock.now_ns() - started_ns;
        assert!(taken_ns > 600_000_000, "{taken_ns} ns");
        // Waiting requests delay neither the end of their connection nor the end of the server.
        let flush = Request { flags: 0, command: command::FLUSH, cookie: 1, offset: 0, length: 0 };
        one.send(&flush.encode().repeat(1000));
        door.signal(SHUT_DOWN);
        let ends_ns = clock.now_ns();
        one.drain();
        assert!(clock.now_ns() - ends_ns < 10_000_000_000);
    });
}

#[test]
fn a_change_of_rates_counts_for_the_next_request() {
    let limited = |operations, bytes| {
        let rules = Rules { rate: Rate { operations, bytes }, ..Rules::default() };
        let rules = ["disk", "more"].map(|name| (name.to_owned(), rules.clone()));
        Policy { rules: rules.into(), ..Policy::default() }
    };
    let slow: Step = Box::new(move |server| {
        server.set_policy(limited(Some(10), None));
        server.add(Rc::new(Export::new("more", "", Rc::new(MemoryDisk::default()))));
    });
    let crawling: Step = Box::new(move |server| server.set_policy(limited(None, Some(1))));
    let free: Step = Box::new(|server| server.set_policy(Policy::default()));
    change(vec![slow, crawling, free], |mut door| {
        let clock = Runtime::new(Backend::Threads).unwrap();
        let mut disk = door.enter_at("disk");
        door.signal(0);
        for client in [&mut disk, &mut door.enter_at("more")] {
            let started_ns = clock.now_ns();
            (0..5).for_each(|_| client.expect_alive());
            // Ten requests, of which two may start at once.
            let taken_ns = clock.now_ns() - started_ns;
            assert!(taken_ns > 700_000_000, "{taken_ns} ns");
        }
        door.signal(1);
        // The next requests would have to wait longer than this test does.
        assert_eq!(disk.write(0, 0, b"bytes for half a minute: thirty"), 0);
        door.signal(2);
        disk.expect_alive();
    });
}

/// A change of a server.
type Step = Box<dyn Fn(&Rc<Server>)>;

/// Runs `client` against a server. The client sends the number of a step to have it performed.
fn change(steps: Vec<Step>, client: impl FnOnce(Door) + Send + 'static) {
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let disk = || Rc::new(MemoryDisk::default());
    let exports = vec![Rc::new(Export::new("disk", "", disk()))];
    let server = Server::new(runtime.clone(), exports, Options::default());
    visit(client, |listener, near| {
        runtime.spawn(server.clone().serve(listener));
        runtime.block_on(async {
            let mut buffer = vec![0; 1];
            loop {
                let (returned, received) = runtime.receive(&near, buffer, 0..1).await;
                buffer = returned;
                if received.unwrap() == 0 {
                    break;
                }
                steps[usize::from(buffer[0])](&server);
                buffer = runtime.send(&near, buffer, 0..1).await.0;
            }
            server.shutdown().await.unwrap();
        });
        runtime.drop_tasks();
    });
}

#[test]
fn a_change_disconnects_only_clients_that_lost_access() {
    let shut: Step = Box::new(|server| server.set_policy(open_to(&[own() + 1])));
    let open: Step = Box::new(|server| {
        server.set_policy(open_to(&[own()]));
        server.add(Rc::new(Export::new("more", "", Rc::new(MemoryDisk::default()))));
    });
    let withdraw: Step = Box::new(|server| {
        let (runtime, server) = (server.runtime().clone(), server.clone());
        runtime.spawn(async move { assert!(server.withdraw("disk").await) });
    });
    change(vec![shut, open, withdraw], |mut door| {
        let mut first = door.enter();
        first.expect_alive();
        door.signal(0);
        first.expect_end();
        assert_eq!(door.ask(option::GO, &choice("disk")).1, reply::ERR_POLICY);
        let (mut early, _) = door.ask(option::STRUCTURED_REPLY, b"");
        door.signal(1);
        let (mut disk, mut more) = (door.enter_at("disk"), door.enter_at("more"));
        disk.expect_alive();
        more.expect_alive();
        door.signal(2);
        disk.expect_end();
        more.expect_alive();
        // A client in its handshake cannot choose a withdrawn export.
        early.option(option::GO, &choice("disk"));
        while early.option_reply(option::GO).0 != reply::ACK {}
        early.expect_end();
        assert_eq!(door.ask(option::GO, &choice("disk")).1, reply::ERR_UNKNOWN);
        more.expect_alive();
    });
}

#[test]
fn clients_are_listed_and_dropped() {
    let drop_it: Step = Box::new(|server| {
        let listed = server.roster().list(u64::MAX);
        let busy = |client: &&Listed| client.export.as_deref() == Some("disk");
        let client = listed.iter().find(busy).unwrap();
        let identity = format!("uid={}", own());
        assert_eq!(client.identity.as_deref(), Some(identity.as_str()));
        assert_eq!(client.address, format!("unix:pid={}", std::process::id()));
        let counted = (client.requests, client.read_bytes, client.written_bytes);
        assert_eq!(counted, (2, 10, 10));
        assert!(listed.iter().any(|client| client.export.is_none()), "one in its handshake");
        assert!(server.roster().disconnect(client.id));
        assert!(!server.roster().disconnect(u64::MAX));
    });
    change(vec![drop_it], |mut door| {
        let mut silent = door.connect();
        silent.greet(3);
        let mut client = door.enter();
        client.expect_alive();
        door.signal(0);
        client.expect_end();
        let mut next = door.enter();
        next.expect_alive();
    });
}

/// Connects from an address of this machine.
fn connect_from(source: [u8; 4], target: SocketAddr) -> Client {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((source, 0))).unwrap();
    rustix::net::connect(&socket, &target).unwrap();
    let socket = UnixStream::from(socket);
    socket.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    Client(socket)
}

/// Runs clients, in a thread, against a server at a TCP address.
fn serve_tcp(options: Options, clients: impl FnOnce(SocketAddr) + Send + 'static) {
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let export = Export::new("disk", "a test disk", Rc::new(MemoryDisk::default()));
    let server = Server::new(runtime.clone(), vec![Rc::new(export)], options);
    let any = Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    let listener = Listener::bind(&any, Access::default()).unwrap();
    let target = listener.tcp_address().unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let clients = std::thread::spawn(move || {
        let _far = far;
        clients(target);
    });
    runtime.spawn(server.clone().serve(listener));
    let near = Arc::new(near.into());
    runtime.block_on(async {
        let _ = runtime.receive(&near, vec![0; 1], 0..1).await;
        server.shutdown().await.unwrap();
    });
    clients.join().unwrap();
}

/// Guards against many clients from one address that drive out earlier clients of other addresses.
#[test]
fn the_peer_with_most_silent_connections_is_evicted() {
    let options = Options { connections_max: 8, ..Options::default() };
    serve_tcp(options, |target| {
        let mut patient = connect_from([127, 0, 0, 1], target);
        patient.greet(3);
        let mut crowd: Vec<_> = (0..40).map(|_| connect_from([127, 0, 0, 2], target)).collect();
        assert_eq!(crowd[0].receive(18).len(), 18);
        crowd[0].expect_end();
        connect_from([127, 0, 0, 3], target).greet(3);
        // It is still connected.
        patient.option(option::GO, &choice("disk"));
        assert_eq!(patient.option_reply(option::GO).0, reply::INFO);
    });
}

#[test]
fn a_peer_with_all_its_connections_keeps_no_other_out() {
    let policy = Policy { connections_per_peer_max: Some(2), ..Policy::default() };
    serve_tcp(with(policy), |target| {
        let mut crowd = [(); 2].map(|()| connect_from([127, 0, 0, 2], target));
        crowd.iter_mut().for_each(|client| client.greet(3));
        connect_from([127, 0, 0, 2], target).expect_end();
        connect_from([127, 0, 0, 3], target).greet(3);
        crowd[0].option(option::GO, &choice("disk"));
        assert_eq!(crowd[0].option_reply(option::GO).0, reply::INFO);
    });
}
