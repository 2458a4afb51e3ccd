//! Goal: every command, every error value, every path of a payload, order and pipelining. Method:
//! the scripted client of the parent module; the calls that reached the disk are compared at the
//! end.

use super::*;

fn run(disk: MemoryDisk, client: impl FnOnce(&mut Client) + Send + 'static) -> Left {
    let left = serve(disk, Options::default(), |door| {
        let mut client_socket = door.enter();
        client(&mut client_socket);
        client_socket.request(command::DISC, 0, 0, 0, 0);
        client_socket.expect_end();
    });
    assert_eq!(left.connections, 0);
    left
}

/// Returns bytes that differ at every offset by which a mistake could shift them.
fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(7) ^ ((at >> 8) as u8) ^ seed).collect()
}

#[test]
fn every_command_reaches_the_disk() {
    let left = run(MemoryDisk::default(), |client| {
        assert_eq!(client.write(0, 4096, &pattern(4096, 1)), 0);
        assert_eq!(client.read(4096, 4096).unwrap(), pattern(4096, 1));
        assert_eq!(client.write(1, 1, b"unaligned"), 0);
        assert_eq!(client.read(0, 11).unwrap(), b"\0unaligned\0");
        assert_eq!(client.call(command::FLUSH, 0, 0, 0), 0);
        assert_eq!(client.call(command::TRIM, 0, 4096, 512), 0);
        assert_eq!(client.read(4096, 1024).unwrap()[..512], [0; 512]);
        assert_eq!(client.call(command::WRITE_ZEROES, 0, 4608, 512), 0);
        assert_eq!(client.call(command::WRITE_ZEROES, 3, 8192, 1 << 20), 0);
        assert_eq!(client.call(command::CACHE, 0, 0, SIZE as u32), 0);
        assert_eq!(client.call(command::TRIM, 1, 0, SIZE as u32), 0);
    });
    let expected = [
        "write 4096 4096 Volatile",
        "write 1 9 Durable",
        "flush",
        "trim 4096 512 Volatile",
        "zero 4608 512 Release Volatile",
        "zero 8192 1048576 Keep Durable",
        "prefetch 0 41943040",
        "trim 0 41943040 Durable",
        "flush",
    ];
    assert_eq!(left.calls(), expected);
    // The counts include three reads and the calls above.
    assert_eq!((left.disk.completed.get(), left.refused), (3 + 9, 0));
}

#[test]
fn fua_and_nothing_are_accepted_on_every_command() {
    let left = run(MemoryDisk::default(), |client| {
        for command in [command::READ, command::TRIM, command::WRITE_ZEROES, command::CACHE] {
            assert_eq!(client.call(command, 0, 4096, 0), 0);
        }
        assert_eq!(client.write(0, SIZE, b""), 0);
        assert_eq!(client.call(command::READ, 1, 0, 0), 0);
        assert_eq!(client.call(command::CACHE, 1, 0, 512), 0);
        assert_eq!(client.call(command::FLUSH, 1, 0, 0), 0);
        assert_eq!(client.write(1, 0, b""), 0);
    });
    // An empty write with FUA still makes earlier ones durable.
    assert_eq!(left.calls(), ["prefetch 0 512", "flush", "flush", "flush"]);
}

#[test]
fn refused_requests_leave_the_stream_in_step() {
    let left = run(MemoryDisk::default(), |client| {
        assert_eq!(client.write(0, SIZE - 1, b"ab"), 28);
        assert_eq!(client.write(2, 0, &[b'N'; 100_000]), 22);
        assert_eq!(client.write(0, u64::MAX, &[0x25; 4096]), 28);
        assert_eq!(client.write(0, 0, &vec![0; (32 << 20) + 1]), 22);
        assert_eq!(client.read(SIZE - 1, 2), Err(22));
        assert_eq!(client.read(0, (32 << 20) + 1), Err(22));
        assert_eq!(client.call(command::TRIM, 0, SIZE, 1), 22);
        assert_eq!(client.call(command::WRITE_ZEROES, 0, SIZE, 1), 28);
        assert_eq!(client.call(command::WRITE_ZEROES, 1 << 5, 0, 512), 22);
        assert_eq!(client.call(command::CACHE, 0, SIZE, 1), 22);
        assert_eq!(client.call(command::FLUSH, 0, 0, 512), 22);
        assert_eq!(client.call(7, 0, 0, 512), 22);
        assert_eq!(client.call(999, 0, 0, 512), 22);
        client.expect_alive();
    });
    assert_eq!(left.refused, 13);
    let writes = left.calls().iter().filter(|call| call.starts_with("write")).count();
    assert_eq!(writes, 1);
}

#[test]
fn a_write_far_above_the_limit_and_a_wrong_magic_end_the_connection() {
    serve(MemoryDisk::default(), Options::default(), |door| {
        let mut witness = door.enter();
        let mut client = door.enter();
        client.request(command::WRITE, 0, 1, 0, (64 << 20) + 1);
        client.expect_end();
        let mut client = door.enter();
        client.send(&[0; 28]);
        client.expect_end();
        witness.expect_alive();
    });
}

#[test]
fn a_read_only_disk_refuses_changes() {
    let disk = MemoryDisk { is_read_only: true, ..MemoryDisk::default() };
    let left = run(disk, |client| {
        assert_eq!(client.write(0, 0, &[1; 512]), 1);
        assert_eq!(client.call(command::TRIM, 0, 0, 512), 1);
        assert_eq!(client.call(command::WRITE_ZEROES, 0, 0, 512), 1);
        assert_eq!(client.call(command::FLUSH, 0, 0, 0), 0);
        assert_eq!(client.read(0, 512).unwrap(), [0; 512]);
    });
    assert_eq!(left.calls(), ["flush"]);
}

#[test]
fn failures_of_the_disk_become_error_values() {
    for (kind, value) in [(ErrorKind::NoSpace, 28), (ErrorKind::Corrupt, 5)] {
        for is_ready in [|_| true, |_| false] as [fn(u64) -> bool; 2] {
            let failure = Some((5000, kind));
            let disk = MemoryDisk { failure, is_ready, ..MemoryDisk::default() };
            let left = run(disk, move |client| {
                assert_eq!(client.write(0, 4096, &[1; 4096]), value);
                assert_eq!(client.write(1, 4096, &[1; 4096]), value);
                assert_eq!(client.write(0, 0, &vec![1; 3 << 20]), value);
                assert_eq!(client.read(4096, 4096), Err(value));
                assert_eq!(client.read(0, 32 << 20), Err(value));
                assert_eq!(client.call(command::TRIM, 0, 0, 1 << 20), value);
                assert_eq!(client.call(command::WRITE_ZEROES, 0, 0, 1 << 20), value);
                assert_eq!(client.call(command::CACHE, 0, 0, 1 << 20), value);
                client.expect_alive();
            });
            assert_eq!(left.disk.failed.get(), 3 + 2 + 3, "writes, reads and the others");
        }
    }
}

#[test]
fn payloads_of_every_length_arrive_whole() {
    for is_ready in [|_| true, |_| false] as [fn(u64) -> bool; 2] {
        let disk = MemoryDisk { is_ready, ..MemoryDisk::default() };
        run(disk, |client| {
            let lengths = [1, 511, 4096, 32768, 32769, 65507, 65508, 65536, 65537, 1 << 20];
            let longer = [(1 << 20) + 1, 5 << 20, (5 << 20) + 77, 32 << 20];
            for (seed, length) in lengths.into_iter().chain(longer).enumerate() {
                let data = pattern(length, seed as u8);
                let offset = 13 * seed as u64;
                assert_eq!(client.write((seed % 2) as u16, offset, &data), 0, "{length}");
                assert!(client.read(offset, length as u32).unwrap() == data, "{length}");
            }
        });
    }
}

#[test]
fn a_long_write_is_streamed_and_flushed_once_for_fua() {
    let left = run(MemoryDisk::default(), |client| {
        assert_eq!(client.write(1, 512, &pattern((2 << 20) + 5, 3)), 0);
    });
    let expected = [
        "write 512 1048576 Volatile",
        "write 1049088 1048576 Volatile",
        "write 2097664 5 Volatile",
    ];
    assert_eq!(left.calls()[..3], expected);
    assert_eq!(left.calls()[3..], ["flush", "flush"], "one for FUA, one at shutdown");
}

#[test]
fn requests_may_come_in_any_fragments() {
    run(MemoryDisk { is_ready: |_| false, ..MemoryDisk::default() }, |client| {
        let mut stream = Vec::new();
        for block in 0..20u64 {
            let request =
                Request { flags: 0, command: 1, cookie: block, offset: block * 300, length: 300 };
            stream.extend_from_slice(&request.encode());
            stream.extend_from_slice(&pattern(300, block as u8));
        }
        for (at, part) in [1, 27, 28, 29, 327, 5000].into_iter().enumerate() {
            stream.chunks(part).for_each(|fragment| client.send(fragment));
            let mut cookies: Vec<_> = (0..20).map(|_| client.reply()).collect();
            cookies.sort();
            assert_eq!(cookies, (0..20).map(|block| (block, 0)).collect::<Vec<_>>(), "{at}");
            for block in 0..20u64 {
                assert_eq!(client.read(block * 300, 300).unwrap(), pattern(300, block as u8));
            }
        }
    });
}

#[test]
fn many_requests_at_once_are_all_answered() {
    for is_ready in [|_| true, |_| false] as [fn(u64) -> bool; 2] {
        run(MemoryDisk { is_ready, ..MemoryDisk::default() }, move |client| {
            let mut writer = Client(client.0.try_clone().unwrap());
            let sender = std::thread::spawn(move || {
                for cookie in 0..2000u64 {
                    let length = 4096 * (1 + cookie as u32 % 17);
                    match cookie % 4 {
                        0 => writer.request(command::READ, 0, cookie, 0, length),
                        1 => writer.request(command::FLUSH, 0, cookie, 0, 0),
                        2 => writer.request(command::CACHE, 0, cookie, 0, length),
                        _ => {
                            writer.request(command::WRITE, 0, cookie, 0, length);
                            writer.send(&vec![0; length as usize]);
                        }
                    }
                }
            });
            let mut answered = vec![false; 2000];
            for _ in 0..2000 {
                let (cookie, error) = client.reply();
                assert_eq!(error, 0);
                assert!(!std::mem::replace(&mut answered[cookie as usize], true));
                if cookie % 4 == 0 {
                    client.receive(4096 * (1 + cookie as usize % 17));
                }
            }
            sender.join().unwrap();
        });
    }
}

#[test]
fn a_later_request_can_overtake() {
    let disk =
        MemoryDisk { gated_offset: Some(0), is_opened_by_reads: true, ..MemoryDisk::default() };
    run(disk, |client| {
        client.request(command::READ, 0, 1, 0, 4096);
        client.request(command::READ, 0, 2, 4096, 8);
        assert_eq!(client.reply(), (2, 0));
        client.receive(8);
        assert_eq!(client.reply(), (1, 0));
        client.receive(4096);
    });
}

#[test]
fn a_disconnect_waits_for_requests_in_progress() {
    let disk = MemoryDisk { gated_offset: Some(0), ..MemoryDisk::default() };
    serve(disk, Options::default(), |mut door| {
        let mut client = door.enter();
        client.request(command::READ, 0, 1, 0, 16);
        client.request(command::DISC, 0, 2, 0, 0);
        door.enter().expect_alive();
        door.signal(OPEN_GATE);
        assert_eq!(client.reply(), (1, 0));
        client.receive(16);
        client.expect_end();
    });
}

#[test]
fn a_write_that_must_wait_lets_others_pass() {
    let disk = MemoryDisk { gated_offset: Some(0), ..MemoryDisk::default() };
    serve(disk, Options::default(), |mut door| {
        let mut client = door.enter();
        client.request(command::WRITE, 0, 1, 0, 4096);
        client.send(&[1; 4096]);
        client.expect_alive();
        door.signal(OPEN_GATE);
        assert_eq!(client.reply(), (1, 0));
        assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
    });
}

#[test]
fn more_requests_than_slots_wait_in_the_socket() {
    let disk = MemoryDisk { gated_offset: Some(0), ..MemoryDisk::default() };
    serve(disk, Options::default(), |mut door| {
        let mut client = door.enter();
        let mut requests = Vec::new();
        for cookie in 0..200 {
            let read = Request { flags: 0, command: command::READ, cookie, offset: 0, length: 1 };
            requests.extend_from_slice(&read.encode());
        }
        client.send(&requests);
        door.enter().expect_alive();
        door.signal(OPEN_GATE);
        let mut cookies = Vec::new();
        for _ in 0..200 {
            let (cookie, error) = client.reply();
            client.receive(1);
            assert_eq!(error, 0);
            cookies.push(cookie);
        }
        cookies.sort();
        assert_eq!(cookies, (0..200).collect::<Vec<_>>());
        client.expect_alive();
    });
}

/// The slot of an answered request is reused for the next one, whose answer must not overtake the
/// requests that wait for their turn to send.
#[test]
fn long_reads_are_answered_in_order() {
    const LENGTH: u32 = 4 << 20;
    serve(MemoryDisk::default(), Options::default(), |mut door| {
        let mut client = door.enter();
        for cookie in 0..3 {
            client.request(command::READ, 0, cookie, 0, LENGTH);
        }
        let mut answered = Vec::new();
        for cookie in 3..20 {
            // A reply exceeds the capacity of the socket, so the next one waits for its turn.
            answered.push(client.reply().0);
            client.receive(LENGTH as usize);
            client.request(command::READ, 0, cookie, 0, LENGTH);
            // When the server answers this, it has seen the request.
            door.signal(OPEN_GATE);
        }
        assert_eq!(answered, (0..17).collect::<Vec<_>>());
    });
}
