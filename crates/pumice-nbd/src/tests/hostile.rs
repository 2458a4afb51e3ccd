//! Goal: no bytes and no silence of one client harm the server or another client. Method: thousands
//! of seeded random streams, in every dialect, and clients that stop reading.

use rand::RngExt;

use super::super::wire::option;
use super::dialects::{encode_extended, enter_by};
use super::*;
use pumice_drive::base::seed::{self, Random};

const SEED: u64 = 20_261_107;

fn bytes(random: &mut Random, length: usize) -> Vec<u8> {
    (0..length).map(|_| random.random()).collect()
}

/// Sends all bytes that the server accepts before it closes.
fn pour(mut client: Client, stream: &[u8]) {
    let _closed_early = client.0.write_all(stream);
    client.drain();
}

#[test]
fn random_bytes_from_the_start() {
    serve(MemoryDisk::default(), Options::default(), |door| {
        let random = &mut seed::random(SEED);
        let mut witness = door.enter();
        for round in 0..1000 {
            let length = random.random_range(0..2000);
            let mut stream = bytes(random, length);
            // Half of the streams get past the flags, and half of these past the magic.
            if round % 2 == 0 {
                stream.splice(..4.min(length), [0, 0, 0, 3]);
            }
            if round % 4 == 0 && length > 20 {
                stream[4..12].copy_from_slice(b"IHAVEOPT");
                stream[12..18].copy_from_slice(&[0, 0, 0, (round / 4 % 12) as u8, 0, 0]);
            }
            pour(door.connect(), &stream);
            if round % 100 == 0 {
                witness.expect_alive();
            }
        }
        witness.expect_alive();
    });
}

#[test]
fn random_requests_after_the_handshake() {
    let left = serve(MemoryDisk::default(), Options::default(), |door| {
        let random = &mut seed::random(SEED);
        let mut witness = door.enter();
        for round in 0..1500 {
            let client = match round % 3 {
                0 => door.enter(),
                1 => enter_by(&door, option::STRUCTURED_REPLY),
                _ => enter_by(&door, option::EXTENDED_HEADERS),
            };
            let mut stream = Vec::new();
            for _ in 0..random.random_range(1..20) {
                let request = random_request(random);
                if round % 3 == 2 {
                    stream.extend_from_slice(&encode_extended(&request));
                } else {
                    stream.extend_from_slice(&request.encode());
                }
                if random.random_ratio(1, 3) {
                    let length = random.random_range(0..300);
                    stream.extend_from_slice(&bytes(random, length));
                }
            }
            stream.truncate(random.random_range(0..=stream.len()));
            pour(client, &stream);
            if round % 100 == 0 {
                witness.expect_alive();
            }
        }
        witness.expect_alive();
    });
    assert!(left.refused > 100, "the requests were not wrong enough");
    assert!(left.disk.completed.get() > 100, "the requests were all wrong");
}

/// Returns a request with plausible fields mixed with absurd ones.
fn random_request(random: &mut Random) -> Request {
    let length = match random.random_range(0..4) {
        0 => random.random_range(0..300),
        1 => random.random_range(0..100_000),
        2 => 1 << random.random_range(0..32),
        _ => random.random::<u32>().into(),
    };
    Request {
        // The sixth flag: the length is the length of a payload.
        flags: match random.random_range(0..4) {
            0 => random.random(),
            1 => random.random_range(0..4) | 1 << 5,
            _ => random.random_range(0..4),
        },
        command: random.random_range(0..9),
        cookie: random.random(),
        offset: if random.random_ratio(1, 4) {
            random.random()
        } else {
            random.random_range(0..SIZE + 4096)
        },
        length,
    }
}

#[test]
fn random_bytes_after_the_handshake() {
    serve(MemoryDisk::default(), Options::default(), |door| {
        let random = &mut seed::random(SEED);
        let mut witness = door.enter();
        for _ in 0..1000 {
            let length = random.random_range(0..100);
            pour(door.enter(), &bytes(random, length));
        }
        witness.expect_alive();
    });
}

#[test]
fn clients_that_do_not_read_stop_only_themselves() {
    // Memory is so limited that the two stalled clients together hold all of it.
    let options = Options { payload_bytes: 4 << 20, ..Options::default() };
    serve(MemoryDisk::default(), options, |door| {
        let mut stalled = [door.enter(), door.enter(), door.enter()];
        let mut requests = Vec::new();
        for length in [4096, 32 << 10, 256 << 10, 1 << 20, 8 << 20] {
            for cookie in 0..100 {
                let read = Request { flags: 0, command: command::READ, cookie, offset: 0, length };
                requests.extend_from_slice(&read.encode());
            }
        }
        // The requests are sent in one piece, which fits in a socket: the server stops accepting
        // requests long before the end.
        stalled.iter_mut().for_each(|client| client.send(&requests));
        let mut client = door.enter();
        for round in 0..20u8 {
            let data = vec![round; 3 << 20];
            assert_eq!(client.write(0, 0, &data), 0);
            assert!(client.read(0, 3 << 20).unwrap() == data);
            assert!(client.read(0, 4096).unwrap() == data[..4096]);
            client.expect_alive();
        }
        for client in &mut stalled {
            assert_eq!(client.reply().1, 0);
        }
    });
}

#[test]
fn a_stalled_upload_stops_only_itself() {
    let options = Options { payload_bytes: 2 << 20, ..Options::default() };
    let disk = MemoryDisk { is_ready: |_| false, ..MemoryDisk::default() };
    serve(disk, options, |door| {
        let mut stalled: Vec<_> = (0..5).map(|_| door.enter()).collect();
        for client in &mut stalled {
            client.request(command::WRITE, 0, 1, 0, 1 << 20);
            client.send(&[0; 1000]);
        }
        let mut client = door.enter();
        assert_eq!(client.write(0, 1 << 20, &vec![1; 9 << 20]), 0);
        client.expect_alive();
        for client in &mut stalled {
            client.send(&vec![0; (1 << 20) - 1000]);
            assert_eq!(client.reply(), (1, 0));
        }
    });
}

#[test]
fn a_failure_after_a_reply_began_ends_the_connection() {
    let failure = Some((3 << 20, ErrorKind::Corrupt));
    let disk = MemoryDisk { failure, ..MemoryDisk::default() };
    let options = Options { payload_bytes: 2 << 20, ..Options::default() };
    let left = serve(disk, options, |door| {
        let mut client = door.enter();
        client.request(command::READ, 0, 1, 0, 8 << 20);
        assert_eq!(client.reply(), (1, 0));
        client.receive(3 << 20);
        client.expect_end();
        let mut client = door.enter();
        assert_eq!(client.read(3 << 20, 8 << 20), Err(5), "known before the reply began");
        client.expect_alive();
    });
    assert_eq!(left.disk.failed.get(), 2);
}

#[test]
fn replies_that_nobody_reads_do_not_pile_up() {
    let left = serve(MemoryDisk::default(), Options::default(), |door| {
        let client = door.enter();
        let mut stream = client.0.try_clone().unwrap();
        let write = Request { flags: 0, command: command::WRITE, cookie: 0, offset: 0, length: 1 };
        let request = [&write.encode()[..], &[7]].concat();
        // The server accepts less than a fiftieth of that before the replies fill all buffers.
        let sender = std::thread::spawn(move || {
            let requests = request.repeat(100_000);
            for _ in 0..100 {
                let Ok(()) = stream.write_all(&requests) else { return };
            }
        });
        let mut witness = door.enter();
        (0..1000).for_each(|_| witness.expect_alive());
        client.0.shutdown(Shutdown::Both).unwrap();
        sender.join().unwrap();
    });
    let completed = left.disk.completed.get();
    assert!(completed < 200_000 + 3000, "{completed} requests");
}

#[test]
fn requests_of_a_client_that_has_left_are_dropped() {
    let options = Options { connections_max: 1, ..Options::default() };
    let left = serve(MemoryDisk::default(), options, |door| {
        let mut client = door.enter();
        let read =
            Request { flags: 0, command: command::READ, cookie: 1, offset: 0, length: 32 << 20 };
        // The requests are sent in one piece, which fits in a socket.
        client.send(&read.encode().repeat(500));
        drop(client);
        // Accepted only once the first client has left.
        door.enter().expect_alive();
    });
    // Only the requests that were in slots when the client left.
    assert!(left.disk.completed.get() < 100, "{} requests", left.disk.completed.get());
}

/// Guards against reads that wait for a buffer when their client leaves, and are then executed.
#[test]
fn reads_that_wait_for_a_buffer_are_dropped_with_their_client() {
    let options = Options { connections_max: 1, payload_bytes: 2 << 20, ..Options::default() };
    for length in [32 << 20, 1 << 20] {
        let disk = MemoryDisk { gated_offset: Some(0), ..MemoryDisk::default() };
        let left = serve(disk, options.clone(), move |mut door| {
            let mut client = door.enter();
            let read = Request { flags: 0, command: command::READ, cookie: 1, offset: 0, length };
            client.send(&read.encode().repeat(60));
            // The others have begun: some at the gate, the rest without a buffer.
            assert_eq!(client.call(command::CACHE, 0, 1 << 20, 4096), 0);
            drop(client);
            door.signal(OPEN_GATE);
            // Accepted only once the first client has left.
            door.enter().expect_alive();
        });
        let completed = left.disk.completed.get();
        assert!(completed < 10, "{completed} requests");
    }
}

#[test]
fn a_client_that_leaves_without_reading_is_let_go() {
    let options = Options { grace_ns: 100_000_000, connections_max: 1, ..Options::default() };
    serve(MemoryDisk::default(), options, |door| {
        let mut client = door.enter();
        client.request(command::READ, 0, 1, 0, 32 << 20);
        client.request(command::DISC, 0, 0, 0, 0);
        // Accepted only once the first client has left.
        door.enter().expect_alive();
        drop(client);
    });
}
