//! Goal: every possible answer of a server to the handshake leads to an export or to an error with
//! the reason, in time. Method: scripted servers.

use rand::RngExt;

use super::*;
use pumice_drive::base::seed;

fn connect_error(script: impl FnOnce(&mut Script) + Send + 'static) -> Error {
    meet(script, async |runtime, uri| Client::connect(runtime, uri).await.unwrap_err())
}

#[test]
fn go_gives_size_flags_and_constraints() {
    let script = |server: &mut Script| {
        assert_eq!(server.greet(), 3);
        assert_eq!(server.option(), (option::GO, b"\0\0\0\x04disk\0\x01\0\x03".to_vec()));
        server.answer(option::GO, reply::INFO, &[&info::NAME.to_be_bytes(), b"disk"]);
        server.inform_block_size([512, 4096, 100_000]);
        server.inform_export(SIZE, FLAGS | 1 << 8);
        server.answer(option::GO, reply::ACK, &[]);
        server.expect_end();
    };
    meet_client(script, async |_, client| {
        let it = client.capabilities();
        assert_eq!((client.size_bytes(), client.is_read_only()), (SIZE, false));
        assert!(it.has_flush && it.has_fua && it.has_trim && it.has_write_zeroes);
        assert!(it.has_multi_conn);
        let sizes = (it.block_bytes_min, it.block_bytes_preferred, it.payload_bytes_max);
        assert_eq!(sizes, (512, 4096, 100_000 / 512 * 512));
    });
}

#[test]
fn without_constraints_the_protocol_s_hold_and_without_has_flags_none_does() {
    for (flags, is_read_only) in [(1 | 2, true), (0xfffe, false)] {
        let script = move |server: &mut Script| {
            server.greet();
            server.option();
            server.inform_export(i64::MAX as u64, flags);
            server.answer(option::GO, reply::ACK, &[]);
            server.expect_end();
        };
        meet_client(script, async |_, client| {
            let it = client.capabilities();
            assert_eq!((client.size_bytes(), it.is_read_only), (i64::MAX as u64, is_read_only));
            assert!(!it.has_flush && !it.has_fua && !it.has_trim && !it.has_write_zeroes);
            let sizes = (it.block_bytes_min, it.block_bytes_preferred, it.payload_bytes_max);
            assert_eq!(sizes, (1, 4096, 32 << 20));
            let kind = async |result: Result<()>| result.unwrap_err().kind();
            assert_eq!(kind(client.flush().await).await, ErrorKind::Unsupported);
            let change = if is_read_only { ErrorKind::ReadOnly } else { ErrorKind::Unsupported };
            assert_eq!(kind(client.write(0, &[1], Durable).await).await, change);
            assert_eq!(kind(client.trim(0, 1, Volatile).await).await, change);
            assert_eq!(kind(client.write_zeroes(0, 1, Release, Volatile).await).await, change);
        });
    }
}

#[test]
fn servers_without_go_are_asked_by_name() {
    // Flags of the greeting, whether GO is tried, and the client's answer.
    for (offered, tries_go) in [(3u16, true), (1, true), (2, false), (0, false)] {
        let script = move |server: &mut Script| {
            server.send(b"NBDMAGICIHAVEOPT");
            server.send(&offered.to_be_bytes());
            assert_eq!(u32::from_be_bytes(server.receive()), u32::from(offered));
            if tries_go {
                assert_eq!(server.option().0, option::GO);
                server.answer(option::GO, reply::ERR_UNSUP, &[b"what?"]);
            }
            assert_eq!(server.option(), (option::EXPORT_NAME, b"disk".to_vec()));
            server.send(&SIZE.to_be_bytes());
            server.send(&FLAGS.to_be_bytes());
            if offered & wire::FLAG_NO_ZEROES == 0 {
                server.send(&[0; 124]);
            }
            let request = server.request();
            server.reply(request.cookie, 0, b"data");
            server.expect_end();
        };
        meet_client(script, async |_, client| {
            assert_eq!((client.size_bytes(), client.capabilities().has_trim), (SIZE, true));
            let (buffer, result) = client.read(0, AlignedBuffer::zeroed(4)).await;
            result.unwrap();
            assert_eq!(buffer[..], *b"data", "offered {offered}");
        });
    }
    let error = connect_error(|server| {
        server.greet();
        server.option();
        server.answer(option::GO, reply::ERR_UNSUP, &[]);
        server.option();
    });
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
}

#[test]
fn a_refusal_gives_the_reason_and_disconnects() {
    for (kind, expected) in [
        (reply::ERR_UNKNOWN, ErrorKind::NotFound),
        (reply::ERR_POLICY, ErrorKind::PermissionDenied),
        (reply::ERR_TLS_REQD, ErrorKind::Unsupported),
        (reply::ERR_SHUTDOWN, ErrorKind::Io),
        (reply::ERR_INVALID, ErrorKind::Io),
        (reply::SERVER, ErrorKind::Io),
        (u32::MAX, ErrorKind::Io),
    ] {
        let error = connect_error(move |server| {
            server.greet();
            server.option();
            server.answer(option::GO, kind, &[b"go \x1b[2J\xffaway", &[b'x'; 5000]]);
            assert_eq!(server.option(), (option::ABORT, vec![]));
        });
        assert_eq!(error.kind(), expected, "{kind:#x}: {error:?}");
        let chain = error.chain();
        assert!(chain.contains("go \\u{1b}[2J") && chain.contains("'disk'"), "{chain}");
        assert!(chain.len() < 600, "{chain}");
    }
}

#[test]
fn a_server_that_breaks_the_protocol_is_left() {
    let before_options: [&[u8]; 4] = [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\0\0",
        b"NBDMAGICIHAVEOPS\0\x03",
        b"NBDMAGIDIHAVEOPT\0\x03",
    ];
    for greeting in before_options {
        let error = connect_error(|server| server.send(greeting));
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    }
    type Answer = (&'static str, fn(&mut Script));
    let answers: [Answer; 9] = [
        ("wrong magic", |server| server.send(&[7; 20])),
        ("to option 6", |server| server.answer(option::INFO, reply::ACK, &[])),
        ("4294967295 bytes", |server| {
            server.send(&0x0003_e889_0455_65a9u64.to_be_bytes());
            server.send(&[0, 0, 0, 7, 0, 0, 0, 3, 255, 255, 255, 255]);
        }),
        ("no export size", |server| server.answer(option::GO, reply::ACK, &[])),
        ("wrong length", |server| server.answer(option::GO, reply::INFO, &[&[0, 0, 1]])),
        ("wrong length", |server| server.answer(option::GO, reply::INFO, &[&[0]])),
        ("export size of 9223372036854775808 bytes", |server| server.inform_export(1 << 63, 1)),
        ("export size of 18446744073709551615 bytes", |server| server.inform_export(u64::MAX, 1)),
        ("too many answers", |server| {
            (0..1000).for_each(|_| server.inform_export(SIZE, FLAGS));
        }),
    ];
    for (what, answer) in answers {
        let error = connect_error(move |server| {
            server.greet();
            server.option();
            answer(server);
        });
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{what}: {error:?}");
        assert!(error.chain().contains(what), "{what}: {error:?}");
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for sizes in [
        [0, 4096, 1 << 20],
        [3, 4096, 1 << 20],
        [128 << 10, 128 << 10, 1 << 20],
        [512, 256, 1 << 20],
        [512, 5000, 1 << 20],
        [512, 4096, 0],
        [512, 4096, 511],
    ] {
        let error = connect_error(move |server| server.enter(Some(sizes)));
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{sizes:?}: {error:?}");
    }
}

#[test]
fn a_connection_that_ends_or_falls_silent_fails_in_time() {
    let greeting = wire::encode_greeting();
    for length in 0..=greeting.len() {
        let error = connect_error(move |server| server.send(&greeting[..length]));
        assert_eq!(error.kind(), ErrorKind::Io, "{length}: {error:?}");
    }
    let silent: [fn(&mut Script); 3] = [
        |server| server.expect_end(),
        |server| {
            server.greet();
            server.expect_end();
        },
        |server| {
            server.greet();
            server.option();
            server.inform_export(SIZE, FLAGS);
            server.expect_end();
        },
    ];
    for script in silent {
        let error = meet(script, async |runtime, uri| {
            Client::connect_within(runtime, uri, 50_000_000).await.unwrap_err()
        });
        assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
    }
    let runtime = Runtime::new(Backend::Auto).unwrap();
    for (uri, kind) in [
        ("nbd+unix:///?socket=/no/such/socket", ErrorKind::NotFound),
        // No server listens on a free port.
        ("nbd://127.0.0.1:1/", ErrorKind::Io),
    ] {
        let uri = Uri::parse(uri).unwrap();
        let error = runtime.block_on(Client::connect(&runtime, &uri)).unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.to_string().contains(&uri.to_string()), "{error:?}");
    }
}

#[test]
fn random_answers_end_in_an_error() {
    for round in 0..300 {
        meet(
            move |server| {
                let random = &mut seed::random(round);
                server.greet();
                server.option();
                for _ in 0..random.random_range(1..10) {
                    let length = random.random_range(0..40);
                    let data: Vec<u8> = (0..length).map(|_| random.random_range(0..4)).collect();
                    match random.random_range(0..3) {
                        0 => server.answer(option::GO, random.random_range(1..5), &[&data]),
                        1 => server.answer(option::GO, reply::INFO, &[&data]),
                        _ => server.send(&data),
                    }
                }
            },
            async |runtime, uri| {
                // Some handshakes reach an export; each of these exports must be valid.
                let Ok(client) = Client::connect(runtime, uri).await else { return };
                assert!(client.capabilities().block_bytes_min.is_power_of_two());
                assert!(client.size_bytes() <= i64::MAX as u64);
            },
        );
    }
    assert_eq!(Information::decode(&[]), None);
}
