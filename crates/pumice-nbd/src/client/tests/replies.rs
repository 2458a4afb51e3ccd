//! Goal: replies reach their requests in any order and in any pieces; a wrong reply ends the
//! connection with a reason for all waiting callers; the client sends no request that the server
//! cannot accept. Method: scripted servers.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::join_all;
use rand::RngExt;

use super::super::super::wire::command;
use super::*;
use pumice_drive::base::seed;

/// Returns bytes that depend on their position on the disk.
fn content(offset: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|index| ((offset + index) * 7 % 251) as u8).collect()
}

/// Polls once, which makes the request but does not send it yet.
async fn begin(future: &mut std::pin::Pin<&mut impl Future>) {
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(_) => panic!("answered before it was asked"),
        Poll::Pending => Poll::Ready(()),
    })
    .await;
}

#[test]
fn replies_come_in_any_order_and_in_pieces_of_any_length() {
    // Short replies go through the buffer; long ones bypass it, the longest by far.
    const LENGTHS: [usize; 8] = [1, 4096, 100_000, 512, 32 << 10, 3 << 20, 65_536, 4000];
    for piece in [1, 15, 16, 17, 4096, 60_000, usize::MAX] {
        let script = move |server: &mut Script| {
            server.enter(None);
            let mut requests: Vec<_> = LENGTHS.iter().map(|_| server.request()).collect();
            requests.sort_by_key(|request| request.cookie % 3);
            requests.reverse();
            let mut stream = Vec::new();
            for request in requests {
                assert_eq!((request.command, request.flags), (command::READ, 0));
                let header = wire::encode_reply(request.cookie, wire::Errno::OK);
                stream.extend_from_slice(&header);
                stream.extend_from_slice(&content(request.offset, request.length as usize));
            }
            // The first bytes arrive in small pieces, the rest together: byte by byte would take
            // long.
            let (slow, fast) = stream.split_at(stream.len().min(20_000));
            slow.chunks(piece).for_each(|piece| server.send(piece));
            fast.chunks(piece.max(50_000)).for_each(|piece| server.send(piece));
            server.expect_end();
        };
        meet_client(script, async |_, client| {
            let reads = LENGTHS.iter().enumerate().map(async |(index, &length)| {
                let offset = index as u64 * 10_000_019;
                let (buffer, result) = client.read(offset, AlignedBuffer::zeroed(length)).await;
                result.unwrap();
                assert!(buffer[..] == content(offset, length), "{length} bytes");
            });
            join_all(reads).await;
            assert_eq!(under_way(&client), 0);
        });
    }
}

#[test]
fn every_error_value_has_its_kind_and_names_the_request() {
    const VALUES: [(u32, ErrorKind); 12] = [
        (1, ErrorKind::ReadOnly),
        (5, ErrorKind::Io),
        (12, ErrorKind::Io),
        (22, ErrorKind::InvalidInput),
        (28, ErrorKind::NoSpace),
        (75, ErrorKind::InvalidInput),
        (95, ErrorKind::Unsupported),
        (108, ErrorKind::Io),
        (2, ErrorKind::InvalidInput),
        (110, ErrorKind::InvalidInput),
        (0x8000_0000, ErrorKind::InvalidInput),
        (u32::MAX, ErrorKind::InvalidInput),
    ];
    let script = |server: &mut Script| {
        server.enter(None);
        for (value, _) in VALUES {
            for _ in 0..2 {
                let request = server.request();
                server.reply(request.cookie, value, b"");
            }
        }
        server.expect_end();
    };
    meet_client(script, async |_, client| {
        for (value, kind) in VALUES {
            let error = read_error(&client, 8192, 512).await;
            assert_eq!(error.kind(), kind, "{value}: {error:?}");
            let text = error.chain();
            assert!(text.contains("read of 512 bytes") && text.contains("offset 8192"), "{text}");
            let cause = std::error::Error::source(&error)
                .and_then(|cause| cause.downcast_ref::<std::io::Error>())
                .and_then(std::io::Error::raw_os_error);
            let is_known = wire::Errno::from_wire(value).known().is_some();
            assert_eq!(cause, is_known.then_some(value as i32), "{text}");
            assert!(is_known || text.contains(&value.to_string()), "{text}");
            let error = client.flush().await.unwrap_err();
            assert!(error.to_string().contains("flush"), "{error}");
        }
    });
}

#[test]
fn a_wrong_stream_ends_all_requests_with_one_reason() {
    type Break = fn(&mut Script, [u64; 3]);
    let breaks: [(&str, Break); 11] = [
        ("invalid reply header", |server, _| server.send(&[9; 16])),
        // A structured reply, which was not negotiated.
        ("invalid reply header", |server, _| {
            server.send(&[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0])
        }),
        ("unknown request", |server, _| server.reply(7 << 32, 0, b"")),
        ("unknown request", |server, _| server.reply(u64::MAX, 0, b"")),
        ("unknown request", |server, cookies| {
            server.reply(cookies[0], 5, b"");
            server.reply(cookies[0], 5, b"");
        }),
        ("unknown request", |server, cookies| {
            server.reply(cookies[1], 0, &[0; 4096]);
            server.reply(cookies[1], 0, &[0; 4096]);
        }),
        ("the server closed it", |_, _| ()),
        ("in the middle of a reply", |server, _| server.send(&[0x67, 0x44, 0x66])),
        ("in the middle of a reply", |server, cookies| server.reply(cookies[1], 0, &[0; 4095])),
        ("in the middle of a reply", |server, cookies| server.reply(cookies[2], 0, &[0; 99_000])),
        ("in the middle of a reply", |server, cookies| server.reply(cookies[2], 0, &[0; 10])),
    ];
    for (what, break_off) in breaks {
        let script = move |server: &mut Script| {
            server.enter(None);
            let cookies = [0; 3].map(|_: i32| server.request().cookie);
            break_off(server, cookies);
        };
        meet_client(script, async |_, client| {
            let requests = join_all([0, 4096, 100_000].map(async |length| match length {
                0 => client.flush().await.err(),
                length => client.read(0, AlignedBuffer::zeroed(length)).await.1.err(),
            }));
            let errors: Vec<Error> = requests.await.into_iter().flatten().collect();
            let lost = |error: &&Error| error.to_string().contains("no connection to nbd+unix");
            let reasons: Vec<&Error> = errors.iter().filter(lost).collect();
            assert!(reasons.len() >= 2, "{what}: {errors:?}");
            for error in reasons {
                assert_eq!(error.kind(), ErrorKind::Io);
                assert!(error.to_string().contains(what), "{what}: {error}");
            }
            let later = read_error(&client, 0, 512).await;
            assert!(later.to_string().contains(what), "{later}");
            assert!(client.write(0, &[1; 512], Volatile).await.is_err());
            assert!(client.disconnect().await.unwrap_err().to_string().contains(what));
            assert_eq!(under_way(&client), 0);
        });
    }
}

#[test]
fn the_reply_of_a_dropped_future_is_read_and_thrown_away() {
    for length in [4096, 200_000] {
        let script = move |server: &mut Script| {
            server.enter(None);
            for _ in 0..2 {
                // If the payload of a dropped request were not read, it would be mistaken for a
                // reply.
                let [dropped, kept] = [server.request(), server.request()];
                server.reply(dropped.cookie, 0, &content(dropped.offset, length));
                server.reply(kept.cookie, 0, &content(kept.offset, 512));
            }
            server.expect_end();
        };
        meet_client(script, async |_, client| {
            for _ in 0..2 {
                {
                    let mut dropped = pin!(client.read(7, AlignedBuffer::zeroed(length)));
                    begin(&mut dropped).await;
                }
                assert_eq!(under_way(&client), 1, "its buffer is still to be filled");
                let (buffer, result) = client.read(99, AlignedBuffer::zeroed(512)).await;
                result.unwrap();
                assert!(buffer[..] == content(99, 512));
                assert_eq!(under_way(&client), 0);
            }
        });
    }
}

#[test]
fn requests_keep_to_the_server_s_sizes() {
    let script = |server: &mut Script| {
        server.enter(Some([512, 4096, 8192 + 100]));
        for (command, offset, length) in [
            (command::READ, 512, 8192),
            (command::READ, 8704, 8192),
            (command::READ, 16_896, 4096),
            (command::WRITE, 1024, 8192),
            (command::WRITE, 9216, 512),
            (command::WRITE, 512, 8192),
            (command::WRITE, 8704, 8192),
            (command::WRITE, 16_896, 4096),
        ] {
            let request = server.request();
            let is = (request.command, request.offset, request.length as usize);
            assert_eq!(is, (command, offset, length));
            if command == command::WRITE {
                let mut data = vec![0; length];
                server.0.read_exact(&mut data).unwrap();
                assert!(data == content(offset, length), "{length} bytes at {offset}");
                server.reply(request.cookie, 0, b"");
            } else {
                server.reply(request.cookie, 0, &content(offset, length));
            }
        }
        server.expect_end();
    };
    meet_client(script, async |_, client| {
        let (buffer, result) = client.read(512, AlignedBuffer::zeroed(20_480)).await;
        result.unwrap();
        assert!(buffer[..] == content(512, 20_480));
        client.write(1024, &content(1024, 8704), Volatile).await.unwrap();
        client.write_shared(512, &Arc::new(buffer), Volatile).await.unwrap();
        for (offset, length) in [(1, 512), (512, 511), (256, 256), (SIZE, 512), (SIZE - 512, 1024)]
        {
            let error = read_error(&client, offset, length).await;
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
            assert!(client.write(offset, &vec![0; length], Volatile).await.is_err());
            assert!(client.trim(offset, length as u64, Volatile).await.is_err());
            assert!(client.write_zeroes(offset, length as u64, Release, Volatile).await.is_err());
        }
        let error = read_error(&client, u64::MAX - 511, 512).await;
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
        client.write(0, &[], Volatile).await.unwrap();
    });
}

#[test]
fn long_ranges_and_copied_writes_go_in_pieces() {
    let script = |server: &mut Script| {
        server.greet();
        server.option();
        server.inform_export(5 << 30, FLAGS);
        server.answer(option::GO, reply::ACK, &[]);
        for (command, flags, offset, length) in [
            (command::TRIM, 1, 512u64, 1u32 << 30),
            (command::TRIM, 1, 512 + (1 << 30), 1 << 30),
            (command::TRIM, 1, 512 + (2 << 30), 7),
            (command::WRITE_ZEROES, 2, 0, 1 << 30),
            (command::WRITE_ZEROES, 2, 1 << 30, 1),
            (command::WRITE, 1, 9, 1 << 20),
            (command::WRITE, 1, 9 + (1 << 20), 3),
        ] {
            let request = server.request();
            let Request { cookie, .. } = request;
            let length = length.into();
            assert_eq!(request, Request { flags, command, cookie, offset, length });
            if command == command::WRITE {
                server.0.read_exact(&mut vec![0; length as usize]).unwrap();
            }
            server.reply(cookie, 0, b"");
        }
        server.expect_end();
    };
    meet_client(script, async |_, client| {
        client.trim(512, (2 << 30) + 7, Durable).await.unwrap();
        client.write_zeroes(0, (1 << 30) + 1, Keep, Volatile).await.unwrap();
        client.write(9, &vec![1; (1 << 20) + 3], Durable).await.unwrap();
    });
}

#[test]
fn requests_of_one_turn_leave_together() {
    let script = |server: &mut Script| {
        server.enter(None);
        let mut seen = vec![0; 32 * (28 + 4096) + 1];
        // A send of 128 KiB uses a few buffers of the kernel, which a reader may receive one by
        // one; one send per request would use many more.
        let (mut length, mut reads) = (0, 0);
        while length < seen.len() - 1 {
            length += server.0.read(&mut seen[length..]).unwrap();
            reads += 1;
        }
        assert!(reads <= 5 && length == seen.len() - 1, "{length} bytes in {reads} reads");
        for request in seen[..length].chunks(28 + 4096) {
            let header = Request::decode(request[..28].try_into().unwrap()).unwrap();
            server.reply(header.cookie, 0, b"");
        }
        server.expect_end();
    };
    meet_client(script, async |_, client| {
        let writes =
            (0..32).map(async |index| client.write(index * 4096, &[7; 4096], Volatile).await);
        assert!(join_all(writes).await.into_iter().all(|result| result.is_ok()));
    });
}

#[test]
fn random_replies_end_in_an_error() {
    for round in 0..300 {
        let script = move |server: &mut Script| {
            let random = &mut seed::random(round);
            server.enter(None);
            let cookies = [0; 4].map(|_: i32| server.request().cookie);
            for _ in 0..random.random_range(1..12) {
                let cookie = match random.random_range(0..3) {
                    0 => random.random(),
                    _ => cookies[random.random_range(0..4)],
                };
                let error = if random.random_ratio(1, 3) { random.random() } else { 0 };
                let payload = vec![0x67; random.random_range(0..9000)];
                server.reply(cookie, error, &payload);
            }
        };
        meet_client(script, async |_, client| {
            let reads = [512, 4096, 7000, 80_000].map(async |length| {
                let (buffer, _) = client.read(0, AlignedBuffer::zeroed(length)).await;
                assert_eq!(buffer.len(), length);
            });
            join_all(reads).await;
            assert_eq!(under_way(&client), 0);
        });
    }
}
