//! Goal: the client learns the holes that a server reports, accepts a server that reports none, and
//! no server makes the client hang, panic or allocate without limit. Method: scripted servers,
//! which split replies in unusual ways, violate the protocol, or send noise.

use rand::{Rng, RngExt};

use super::super::super::wire::command;
use super::super::allocation;
use super::*;
use crate::Content;
use pumice_drive::base::seed;

/// Returns the extents that the client learns, joined; `None` if the server does not report them.
async fn told(runtime: &Runtime, uri: &Uri) -> Result<Option<Vec<(u64, Content)>>> {
    let mut extents: Vec<(u64, Content)> = Vec::new();
    let is_told = allocation(runtime, uri, TIME_LIMIT_NS / 2, |bytes, content| {
        match extents.last_mut() {
            Some(last) if last.1 == content => last.0 += bytes,
            _ => extents.push((bytes, content)),
        }
        true
    });
    Ok(is_told.await?.then_some(extents))
}

/// Enters the transmission phase with the context 7.
fn enter(server: &mut Script, size: u64) {
    server.greet();
    assert_eq!(server.option().0, option::STRUCTURED_REPLY);
    server.answer(option::STRUCTURED_REPLY, reply::ACK, &[]);
    let (kind, data) = server.option();
    assert_eq!(kind, option::SET_META_CONTEXT);
    assert_eq!(data, b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation");
    let id = 7u32.to_be_bytes();
    server.answer(kind, reply::META_CONTEXT, &[&id, b"base:allocation"]);
    server.answer(kind, reply::ACK, &[]);
    assert_eq!(server.option().0, option::GO);
    server.inform_export(size, FLAGS);
    server.answer(option::GO, reply::ACK, &[]);
}

/// Returns a chunk of a structured reply.
fn chunk(cookie: u64, is_last: bool, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = 0x668e_33efu32.to_be_bytes().to_vec();
    bytes.extend(u16::from(is_last).to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn status(context: u32, extents: &[(u32, u32)]) -> Vec<u8> {
    let words = extents.iter().flat_map(|(length, status)| [*length, *status]);
    std::iter::once(context).chain(words).flat_map(u32::to_be_bytes).collect()
}

#[test]
fn extents_match_the_server() {
    const SIZE: u64 = 3 << 30;
    let script = |server: &mut Script| {
        enter(server, SIZE);
        let request = server.request();
        assert_eq!((request.command, request.offset), (command::BLOCK_STATUS, 0));
        assert_eq!(request.length, 1 << 30);
        // Another context first; data, a hole, zeroes, unallocated data; then an empty last chunk.
        let other = chunk(request.cookie, false, 5, &status(8, &[(1 << 30, 3)]));
        let extents = [(4096, 0), (8192, 3), (4096, 2), (4096, 1)];
        server.send(&other);
        server.send(&chunk(request.cookie, false, 5, &status(7, &extents)));
        server.send(&chunk(request.cookie, true, 0, &[]));
        // Continues where the extents ended. The next extent reaches beyond the request and the
        // export.
        let request = server.request();
        assert_eq!(request.offset, 20480);
        server.send(&chunk(request.cookie, true, 5, &status(7, &[(u32::MAX, 3)])));
        for _ in 0..2 {
            let request = server.request();
            let whole = [(request.length as u32, 3)];
            server.send(&chunk(request.cookie, true, 5, &status(7, &whole)));
        }
        assert_eq!(server.request().command, command::DISC);
        server.expect_end();
    };
    let extents = meet(script, async |runtime, uri| told(runtime, uri).await.unwrap().unwrap());
    let expected = [
        (4096, Content::Data),
        (8192, Content::Hole),
        (4096, Content::Zeroes),
        (4096, Content::Data),
        (SIZE - 20480, Content::Hole),
    ];
    assert_eq!(extents, expected);
}

#[test]
fn a_server_that_does_not_tell_is_no_error() {
    let no_structure = |server: &mut Script| {
        server.greet();
        server.option();
        server.answer(option::STRUCTURED_REPLY, reply::ERR_UNSUP, &[]);
        server.expect_end();
    };
    let no_context = |server: &mut Script| {
        server.greet();
        server.option();
        server.answer(option::STRUCTURED_REPLY, reply::ACK, &[]);
        server.option();
        server.answer(option::SET_META_CONTEXT, reply::ACK, &[]);
        server.expect_end();
    };
    let old = |server: &mut Script| {
        server.send(b"NBDMAGICIHAVEOPT\0\0");
        server.expect_end();
    };
    for extents in [
        meet(no_structure, async |runtime, uri| told(runtime, uri).await),
        meet(no_context, async |runtime, uri| told(runtime, uri).await),
        meet(old, async |runtime, uri| told(runtime, uri).await),
    ] {
        assert_eq!(extents.unwrap(), None);
    }
}

#[test]
fn wrong_replies_are_errors() {
    type Reply = fn(u64) -> Vec<u8>;
    let cases: [(Reply, &str); 7] = [
        (|cookie| chunk(cookie, true, 0, &[]), "without an extent"),
        (|cookie| chunk(cookie, true, 5, &status(7, &[(0, 3)])), "without an extent"),
        (|cookie| chunk(cookie, true, 5, &[0; 13]), "a wrong length"),
        (|cookie| chunk(cookie + 1, true, 5, &status(7, &[(4096, 3)])), "no request"),
        (|cookie| chunk(cookie, true, 0x8001, b"\0\0\0\x05\0\x02no"), "error 5"),
        (|_| vec![1; 20], "not a structured reply"),
        (|cookie| chunk(cookie, false, 0, &[]).repeat(20), "too many chunks"),
    ];
    for (reply, words) in cases {
        let script = move |server: &mut Script| {
            enter(server, SIZE);
            let cookie = server.request().cookie;
            server.send(&reply(cookie));
            server.expect_end();
        };
        let error = meet(script, async |runtime, uri| told(runtime, uri).await.unwrap_err());
        assert!(error.chain().contains(words), "{words}: {}", error.chain());
    }
    // A length of 4 GiB is refused before any of it is received.
    let script = |server: &mut Script| {
        enter(server, SIZE);
        let cookie = server.request().cookie;
        let mut header = chunk(cookie, true, 5, &[]);
        header[16..].fill(0xff);
        server.send(&header);
        server.expect_end();
    };
    let error = meet(script, async |runtime, uri| told(runtime, uri).await.unwrap_err());
    assert!(error.chain().contains("invalid length"), "{}", error.chain());
}

#[test]
fn a_server_that_is_silent_or_noisy_is_left() {
    let silent = |server: &mut Script| {
        enter(server, SIZE);
        server.request();
        // The client must not wait for the end of the runtime.
        assert!(server.0.read_to_end(&mut Vec::new()).is_ok(), "the client keeps the connection");
    };
    let error = meet(silent, async |runtime, uri| {
        allocation(runtime, uri, 1_000_000_000, |_, _| true).await.unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Busy);
    for number in 0..30 {
        let noisy = move |server: &mut Script| {
            let random = &mut seed::random(number);
            // After a part of a valid conversation.
            match number % 3 {
                0 => server.send(&wire::encode_greeting()),
                1 => enter(server, SIZE),
                _ => {}
            }
            let mut noise = vec![0; random.random_range(1..200_000)];
            random.fill_bytes(&mut noise);
            server.send(&noise);
        };
        let told = meet(noisy, async |runtime, uri| told(runtime, uri).await);
        assert!(told.is_err(), "{number}");
    }
}
