//! Goal: one server continues the clients that another hands over, and no client notices.
//! Method: a scripted client, two servers of one disk one after the other, and between them the
//! handover through a socket, as between two processes.

use super::super::handover::Known;
use super::super::request::Dialect;
use super::super::wire::{option, reply};
use super::super::{Handover, Lineage, Parked};
use super::*;
use pumice_drive::base::Clock;

fn server(runtime: &Runtime, disk: &Rc<MemoryDisk>, grace_ns: u64) -> Rc<Server> {
    let export = Rc::new(Export::new("disk", "", disk.clone()));
    let options = Options { grace_ns, ..Options::default() };
    Server::new(runtime.clone(), vec![export], options)
}

/// Runs `client` against a server of `disk`, which the first signal hands over to another one. The
/// gate of the disk opens a little later. Returns the number of clients that were handed over.
fn hand_over(disk: MemoryDisk, grace_ns: u64, client: impl FnOnce(Door) + Send + 'static) -> usize {
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let disk = Rc::new(disk);
    let first = server(&runtime, &disk, grace_ns);
    visit(client, |listener, near| {
        runtime.spawn(first.clone().serve(listener));
        runtime.block_on(async {
            assert!(answer_signal(&runtime, &near).await, "the client hands over");
            let opener = (runtime.clone(), disk.clone());
            runtime.spawn(async move {
                // The delay is long enough for the first server to stop reading. Otherwise, the
                // test checks less.
                opener.0.sleep_ns(GATE_NS).await;
                opener.1.open_gate();
            });
            let handover = first.hand_over().await.unwrap();
            assert_eq!(first.connections(), 0);
            assert_eq!(disk.calls.borrow().last().unwrap(), "flush", "what was told is durable");
            let handover = through_a_socket(handover);
            let count = handover.clients.len();
            let second = server(&runtime, &disk, grace_ns);
            for listener in handover.listeners {
                runtime.spawn(second.clone().serve(listener));
            }
            handover.clients.into_iter().for_each(|client| second.resume(client));
            assert!(!answer_signal(&runtime, &near).await, "nothing but the end is left");
            second.shutdown().await.unwrap();
            count
        })
    })
}

/// Returns whether the client sent another signal instead of ending.
async fn answer_signal(runtime: &Runtime, near: &Arc<OwnedFd>) -> bool {
    let (buffer, received) = runtime.receive(near, vec![0; 1], 0..1).await;
    let is_signal = received.unwrap() > 0;
    if is_signal {
        runtime.send(near, buffer, 0..1).await.1.unwrap();
    }
    is_signal
}

/// Returns the handover as the next process receives it. The listeners of the previous process are
/// not dropped.
fn through_a_socket(handover: Handover) -> Handover {
    let (ours, theirs) = UnixStream::pair().unwrap();
    handover.send(&ours).unwrap();
    let Handover { listeners, clients, others: _ } = handover;
    listeners.into_iter().for_each(std::mem::forget);
    drop((clients, ours));
    Handover::receive(&theirs).unwrap()
}

const GO_ON: u8 = b'g';

/// Time from the start of the handover until the gate opens.
const GATE_NS: u64 = 200_000_000;

#[test]
fn requests_in_flight_complete_and_partial_ones_continue() {
    let disk = MemoryDisk { gated_offset: Some(0), ..MemoryDisk::default() };
    let handed = hand_over(disk, 5_000_000_000, |mut door| {
        let mut client = door.enter();
        client.request(command::READ, 0, 1, 0, 16);
        // The request ends at the gate, with half a header after it.
        let request =
            Request { flags: 0, command: command::READ, cookie: 2, offset: 8192, length: 4 };
        client.expect_alive();
        client.send(&request.encode()[..11]);
        door.signal(GO_ON);
        assert_eq!(client.reply(), (1, 0));
        client.receive(16);
        client.send(&request.encode()[11..]);
        assert_eq!(client.reply(), (2, 0));
        assert_eq!(client.receive(4), b"stil");
        client.expect_alive();
    });
    assert_eq!(handed, 1);
}

#[test]
fn unread_requests_are_answered_by_the_next_server() {
    let handed = hand_over(MemoryDisk::default(), 5_000_000_000, |mut door| {
        let mut client = door.enter();
        client.expect_alive();
        door.signal(GO_ON);
        // Either server may read them, and the first may stop anywhere.
        for cookie in 0..500 {
            client.request(command::WRITE, 0, cookie, cookie * 4096, 4096);
            client.send(&[cookie as u8; 4096]);
            assert_eq!(client.reply(), (cookie, 0));
        }
        for cookie in 0..500 {
            assert_eq!(client.read(cookie * 4096, 4096).unwrap(), [cookie as u8; 4096]);
        }
    });
    assert_eq!(handed, 1);
}

#[test]
fn a_client_in_its_handshake_may_end_it_first() {
    let handed = hand_over(MemoryDisk::default(), 5_000_000_000, |mut door| {
        let mut client = door.connect();
        client.greet(3);
        client.option(option::LIST, b"");
        assert_eq!(client.option_reply(option::LIST).0, reply::SERVER);
        client.option_reply(option::LIST);
        door.signal(GO_ON);
        client.0.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let silence = client.0.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(silence, Err(std::io::ErrorKind::WouldBlock), "cut off while it thinks");
        client.0.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        client.option(option::GO, b"\0\0\0\0\0\0");
        client.option_reply(option::GO);
        assert_eq!(client.option_reply(option::GO), (reply::ACK, vec![]));
        client.expect_alive();
        // New clients are accepted by the second server.
        door.enter().expect_alive();
    });
    assert_eq!(handed, 1);
}

#[test]
fn silent_clients_and_half_payloads_are_disconnected() {
    let handed = hand_over(MemoryDisk::default(), 50_000_000, |mut door| {
        let mut silent = door.connect();
        let mut half = door.enter();
        let mut whole = door.enter();
        half.request(command::WRITE, 0, 1, 0, 4096);
        half.send(&[1; 1000]);
        whole.expect_alive();
        door.signal(GO_ON);
        assert_eq!(silent.receive(18), b"NBDMAGICIHAVEOPT\0\x03");
        silent.expect_end();
        half.expect_end();
        whole.expect_alive();
        assert_eq!(whole.read(0, 4096).unwrap(), [0; 4096], "half a payload was written");
    });
    assert_eq!(handed, 1);
}

/// The payload is skipped, to stay synchronized.
#[test]
fn a_client_that_sends_half_a_refused_payload_is_disconnected() {
    let handed = hand_over(MemoryDisk::default(), 50_000_000, |mut door| {
        let mut half = door.enter();
        let mut whole = door.enter();
        half.request(command::WRITE, 0, 1, SIZE, 4096);
        half.send(&[1; 1000]);
        whole.expect_alive();
        door.signal(GO_ON);
        half.expect_end();
        whole.expect_alive();
    });
    assert_eq!(handed, 1);
}

/// A disk may take longer than a client may.
#[test]
fn a_slow_disk_is_waited_for() {
    let disk = MemoryDisk { gated_offset: Some(0), ..MemoryDisk::default() };
    let handed = hand_over(disk, GATE_NS / 10, |mut door| {
        let mut client = door.enter();
        client.request(command::READ, 0, 1, 0, 16);
        client.expect_alive();
        door.signal(GO_ON);
        assert_eq!(client.reply(), (1, 0));
        client.receive(16);
        client.expect_alive();
    });
    assert_eq!(handed, 1);
}

#[test]
fn clients_that_do_not_read_replies_are_disconnected() {
    let handed = hand_over(MemoryDisk::default(), 50_000_000, |mut door| {
        let mut deaf = door.enter();
        let mut other = door.enter();
        deaf.request(command::READ, 0, 1, 0, 32 << 20);
        assert_eq!(deaf.reply(), (1, 0));
        door.signal(GO_ON);
        other.expect_alive();
        deaf.drain();
    });
    assert_eq!(handed, 1);
}

#[test]
fn a_failed_flush_hands_nobody_over() {
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let disk = Rc::new(MemoryDisk { fails_flush: true, ..MemoryDisk::default() });
    let server = server(&runtime, &disk, 5_000_000_000);
    let (near, far) = UnixStream::pair().unwrap();
    far.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let parked = Parked {
        socket: Arc::new(near.into()),
        export: "disk".into(),
        dialect: Default::default(),
        known: Default::default(),
        unread: Vec::new(),
    };
    server.resume(parked);
    assert!(runtime.block_on(server.hand_over()).is_err());
    Client(far).expect_end();
}

#[test]
fn a_client_of_an_export_that_is_gone_is_closed() {
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let server = server(&runtime, &Rc::default(), 5_000_000_000);
    let (near, far) = UnixStream::pair().unwrap();
    far.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let socket = Arc::new(near.into());
    server.resume(Parked {
        socket,
        export: "other".into(),
        dialect: Default::default(),
        known: Default::default(),
        unread: vec![],
    });
    assert_eq!(server.connections(), 0);
    Client(far).expect_end();
}

/// Returns whether a client that left a writable disk of [`SIZE`] bytes in the state "a" continues,
/// if the next server has `disk` in a state that follows `follows`.
fn goes_on(disk: MemoryDisk, follows: &str) -> bool {
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let lineage = Lineage { follows: follows.into(), leaves: "b".into() };
    let export = Rc::new(Export::new("disk", "", Rc::new(disk)).with_lineage(lineage));
    let server = Server::new(runtime, vec![export], Options::default());
    let (near, _far) = UnixStream::pair().unwrap();
    server.resume(Parked {
        socket: Arc::new(near.into()),
        export: "disk".into(),
        dialect: Default::default(),
        known: Known { left: "a".into(), size_bytes: SIZE, is_read_only: false },
        unread: vec![],
    });
    server.connections() == 1
}

#[test]
fn a_client_continues_only_on_the_disk_that_it_knows() {
    assert!(goes_on(MemoryDisk::default(), "a"));
    assert!(goes_on(MemoryDisk::new(SIZE + 4096), "a"), "a disk may grow");
    assert!(!goes_on(MemoryDisk::default(), "b"), "another state");
    assert!(!goes_on(MemoryDisk::default(), ""), "something was lost");
    assert!(!goes_on(MemoryDisk::new(SIZE - 4096), "a"), "smaller");
    let disk = MemoryDisk { is_read_only: true, ..MemoryDisk::default() };
    assert!(!goes_on(disk, "a"), "read-only");
}

/// Hands over more descriptors and bytes than fit in one message.
#[test]
fn many_clients_share_the_socket() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (socket, _) = UnixStream::pair().unwrap();
    let socket = Arc::new(OwnedFd::from(socket));
    let client = |index: usize| Parked {
        socket: socket.clone(),
        export: format!("{index}\n"),
        dialect: Default::default(),
        known: Default::default(),
        unread: vec![index as u8; index % 7 * 9000],
    };
    let (other, mut peer) = UnixStream::pair().unwrap();
    let others = vec![other.into()];
    let clients = (0..600).map(client).collect();
    Handover { listeners: Vec::new(), clients, others }.send(&ours).unwrap();
    let mut received = Handover::receive(&theirs).unwrap();
    assert_eq!(received.clients.len(), 600);
    let mut other = UnixStream::from(received.others.remove(0));
    other.write_all(b"!").unwrap();
    peer.read_exact(&mut [0]).unwrap();
    for (index, parked) in received.clients.iter().enumerate() {
        assert_eq!(parked.export, format!("{index}\n"));
        assert_eq!(parked.unread, client(index).unread);
    }
}

/// An older program without contexts of changes must not continue such a client; a newer one
/// continues the clients of an older one.
#[test]
fn contexts_of_changes_go_through_the_socket() {
    let text = r#"{"headers":"Structured","contexts":[true,false],
        "changes":[{"state":"a","is_qemu":true},{"state":"b","is_qemu":false}]}"#;
    let with: Dialect = serde_json::from_str(text).unwrap();
    let without: Dialect =
        serde_json::from_str(r#"{"headers":"Structured","contexts":[true,false]}"#).unwrap();
    assert!(!serde_json::to_string(&without).unwrap().contains("changes"));
    for (dialect, version) in [(with, 3), (without, 2)] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (socket, _) = UnixStream::pair().unwrap();
        let client = Parked {
            socket: Arc::new(OwnedFd::from(socket)),
            export: "disk".to_owned(),
            dialect: dialect.clone(),
            known: Default::default(),
            unread: Vec::new(),
        };
        let handover = Handover { clients: vec![client], ..Handover::default() };
        assert!(handover.manifest().contains(&format!("\"version\":{version},")));
        handover.send(&ours).unwrap();
        assert_eq!(Handover::receive(&theirs).unwrap().clients[0].dialect, dialect);
    }
}

#[test]
fn nonsense_is_refused() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let kind = || Handover::receive(&theirs).map(drop).unwrap_err().kind();
    assert_eq!(kind(), ErrorKind::Corrupt, "nothing came");
    for (text, expected) in [
        ("", ErrorKind::Corrupt),
        ("{}\n", ErrorKind::Corrupt),
        (r#"{"version":2,"listeners":[],"clients":[]}"#, ErrorKind::Corrupt),
        ("{\"version\":4,\"listeners\":[],\"clients\":[]}\n", ErrorKind::Unsupported),
        (
            "{\"version\":2,\"listeners\":[{\"Tcp\":\"127.0.0.1:1\"}],\"clients\":[]}\n",
            ErrorKind::Corrupt,
        ),
    ] {
        super::super::handover::send_text(&ours, text);
        assert_eq!(kind(), expected, "{text}");
    }
}
