//! Goal: every path through the handshake works, and each limit ends only one connection. Method:
//! the scripted client of the parent module.

use super::super::wire::{option, reply};
use super::*;

/// HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, CAN_MULTI_CONN, CACHE, FAST_ZERO.
const FLAGS: u16 = 0b1101_0110_1101;

fn run(client: impl FnOnce(&mut Door) + Send + 'static) {
    serve(MemoryDisk::default(), Options::default(), |mut door| client(&mut door));
}

/// Returns the data of `GO` and `INFO`.
fn info_data(name: &[u8], kinds: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name);
    data.extend_from_slice(&(kinds.len() as u16).to_be_bytes());
    kinds.iter().for_each(|kind| data.extend_from_slice(&kind.to_be_bytes()));
    data
}

fn export_info(flags: u16) -> Vec<u8> {
    [&[0, 0][..], &SIZE.to_be_bytes(), &flags.to_be_bytes()].concat()
}

#[test]
fn go_enters_transmission_under_both_names() {
    run(|door| {
        for name in [&b""[..], b"disk"] {
            let mut client = door.connect();
            client.greet(3);
            client.option(option::GO, &info_data(name, &[]));
            assert_eq!(client.option_reply(option::GO), (reply::INFO, export_info(FLAGS)));
            assert_eq!(client.option_reply(option::GO), (reply::ACK, vec![]));
            client.expect_alive();
        }
    });
}

#[test]
fn a_read_only_disk_says_so() {
    let disk = MemoryDisk { is_read_only: true, ..MemoryDisk::default() };
    serve(disk, Options::default(), |door| {
        let mut client = door.connect();
        client.greet(3);
        client.option(option::INFO, &info_data(b"", &[]));
        assert_eq!(client.option_reply(option::INFO), (reply::INFO, export_info(FLAGS | 2)));
    });
}

#[test]
fn info_returns_the_requested_facts_and_negotiation_continues() {
    run(|door| {
        let mut client = door.connect();
        client.greet(3);
        client.option(option::INFO, &info_data(b"disk", &[3, 2, 1, 1, 99, 0]));
        let mut told = Vec::new();
        loop {
            match client.option_reply(option::INFO) {
                (reply::INFO, data) => told.push(data),
                end => break assert_eq!(end, (reply::ACK, vec![])),
            }
        }
        let sizes = [&[0, 3][..], &[0, 0, 0, 1], &[0, 0, 16, 0], &[2, 0, 0, 0]].concat();
        let expected =
            [export_info(FLAGS), b"\0\x01disk".to_vec(), b"\0\x02a test disk".to_vec(), sizes];
        assert_eq!(told, expected);
        client.option(option::GO, &info_data(b"disk", &[]));
        assert_eq!(client.option_reply(option::GO).0, reply::INFO);
        assert_eq!(client.option_reply(option::GO).0, reply::ACK);
        client.expect_alive();
    });
}

#[test]
fn export_name_pads_with_zeroes_unless_told_not_to() {
    run(|door| {
        for (flags, zeroes) in [(3, 0), (1, 124), (0, 124), (2, 0)] {
            let mut client = door.connect();
            client.greet(flags);
            client.option(option::EXPORT_NAME, b"disk");
            let answer = client.receive(10 + zeroes);
            assert_eq!(answer[..10], export_info(FLAGS)[2..]);
            assert!(answer[10..].iter().all(|&byte| byte == 0));
            client.expect_alive();
        }
        let mut client = door.connect();
        client.greet(3);
        client.option(option::EXPORT_NAME, b"another");
        client.expect_end();
    });
}

#[test]
fn list_names_the_export() {
    run(|door| {
        let mut client = door.connect();
        client.greet(3);
        client.option(option::LIST, b"");
        let entry = b"\0\0\0\x04diska test disk".to_vec();
        assert_eq!(client.option_reply(option::LIST), (reply::SERVER, entry));
        assert_eq!(client.option_reply(option::LIST), (reply::ACK, vec![]));
        client.option(option::LIST, b"x");
        assert_eq!(client.option_reply(option::LIST).0, reply::ERR_INVALID);
        client.option(option::ABORT, b"ignored");
        assert_eq!(client.option_reply(option::ABORT), (reply::ACK, vec![]));
        client.expect_end();
    });
}

#[test]
fn options_not_offered_are_refused_and_skipped() {
    run(|door| {
        let mut client = door.connect();
        client.greet(3);
        // PEEK_EXPORT, and undefined options.
        for unsupported in [4, 12, 0, u32::MAX] {
            for length in [0, 1, 4096, 65536] {
                client.option(unsupported, &vec![0x49; length]);
                assert_eq!(client.option_reply(unsupported).0, reply::ERR_UNSUP);
            }
        }
        for name in [&b"disk2"[..], b"dis", &[b'x'; 4096]] {
            client.option(option::GO, &info_data(name, &[3]));
            let (kind, message) = client.option_reply(option::GO);
            assert_eq!(kind, reply::ERR_UNKNOWN);
            assert!(String::from_utf8(message).unwrap().contains("'disk'"));
        }
        client.option(option::GO, &info_data(&[b'x'; 4097], &[]));
        assert_eq!(client.option_reply(option::GO).0, reply::ERR_TOO_BIG);
        let data = info_data(b"disk", &[3, 2]);
        for length in 0..data.len() {
            client.option(option::GO, &data[..length]);
            assert_eq!(client.option_reply(option::GO).0, reply::ERR_INVALID, "{length}");
        }
        client.option(option::GO, &data);
        assert_eq!(client.option_reply(option::GO).0, reply::INFO);
    });
}

#[test]
fn violations_close_the_connection() {
    run(|door| {
        let mut witness = door.enter();
        let mut client = door.connect();
        client.greet(3 | 4);
        client.expect_end();
        let mut client = door.connect();
        client.greet(3);
        client.send(b"IHAVEOPS\0\0\0\x03\0\0\0\0");
        client.expect_end();
        let mut client = door.connect();
        client.greet(3);
        client.send(b"IHAVEOPT\0\0\0\x63\0\x01\0\x01");
        client.expect_end();
        let mut client = door.connect();
        client.greet(3);
        for _ in 0..1024 {
            client.option(option::LIST, b"x");
            client.option_reply(option::LIST);
        }
        client.expect_end();
        witness.expect_alive();
    });
}

#[test]
fn requests_may_follow_go_without_waiting_for_its_answer() {
    run(|door| {
        let mut client = door.connect();
        client.greet(3);
        let go = [&b"IHAVEOPT\0\0\0\x07\0\0\0\x06"[..], &info_data(b"", &[])].concat();
        let read = Request { flags: 0, command: 0, cookie: 5, offset: 0, length: 8 }.encode();
        client.send(&[&go[..], &read].concat());
        assert_eq!(client.option_reply(option::GO).0, reply::INFO);
        assert_eq!(client.option_reply(option::GO).0, reply::ACK);
        assert_eq!(client.reply(), (5, 0));
        assert_eq!(client.receive(8), [0; 8]);
    });
}

#[test]
fn a_slow_handshake_is_cut_off_and_a_finished_one_is_not() {
    let options = Options { handshake_ns: 200_000_000, ..Options::default() };
    serve(MemoryDisk::default(), options, |door| {
        let mut witness = door.enter();
        let mut halfway = door.connect();
        halfway.greet(3);
        halfway.send(b"IHAVE");
        let mut silent = door.connect();
        silent.receive(18);
        silent.expect_end();
        halfway.expect_end();
        witness.expect_alive();
    });
}

#[test]
fn clients_above_the_limit_wait_for_their_turn() {
    let options = Options { connections_max: 2, ..Options::default() };
    serve(MemoryDisk::default(), options, |door| {
        let first = door.enter();
        let mut second = door.enter();
        let mut third = door.connect();
        second.expect_alive();
        third.0.set_nonblocking(true).unwrap();
        assert_eq!(
            third.0.read(&mut [0]).unwrap_err().kind(),
            std::io::ErrorKind::WouldBlock,
            "accepted above the limit"
        );
        third.0.set_nonblocking(false).unwrap();
        first.drain();
        third.greet(3);
        third.option(option::LIST, b"");
        assert_eq!(third.option_reply(option::LIST).0, reply::SERVER);
    });
}
