//! Inputs for the targets of protocols: NBD servers, clients and handovers, FUSE sessions, and
//! vhost-user devices. They are written by hand, not with the encoders under test.

use pumice_drive::base::units::BLOCK_BYTES;

/// Returns inputs of a target that must be accepted.
pub(super) fn seeds(target: &str) -> Vec<(&'static str, Vec<u8>)> {
    match target {
        "nbd_handshake" => handshake_seeds(),
        "nbd_transmission" => transmission_seeds(),
        "nbd_client" => client_seeds(),
        "nbd_allocation" => allocation_seeds(),
        "nbd_handover" => handover_seeds(),
        "fuse" => fuse_seeds(),
        "vhost_message" => vhost_message_seeds(),
        "vhost_request" => vhost_request_seeds(),
        other => panic!("no seeds for {other}"),
    }
}

/// Returns inputs for limits and checks of the protocols: target, name, bytes.
pub(super) fn hostile() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let flags = [0, 0, 0, 3];
    let long_option = [&flags[..], b"IHAVEOPT\0\0\0\x07\xff\xff\xff\xff", &[0; 99]].concat();
    let many_options = [&flags[..], &option(3, b"").repeat(1100), &option(7, &[0; 6])].concat();
    let later = request(0, 0, 2, 0, 1);
    vec![
        ("nbd_handshake", "long-option", long_option),
        ("nbd_handshake", "many-options", many_options),
        (
            "nbd_transmission",
            "long-write",
            [vec![0], request(1, 0, 1, 0, u32::MAX), later].concat(),
        ),
        ("nbd_transmission", "off-the-disk", [vec![0], request(0, 0, 1, u64::MAX - 5, 9)].concat()),
        ("nbd_client", "reply-to-no-request", dialogue(&reply(7))),
        (
            "nbd_client",
            "answers-without-end",
            chunk(0, &[GREETING, &inform(1).repeat(99)].concat()),
        ),
        ("nbd_allocation", "longer-than-any-reply", allocation(&status(5, 0xffff_fffc, &[1; 16]))),
        ("nbd_allocation", "extent-of-nothing", allocation(&status(5, 12, &extent(0, 3)))),
        ("nbd_handover", "fewer-sockets", [&[0], &handover(0, 1, 0, b"")[1..]].concat()),
        ("nbd_handover", "fewer-bytes", handover(1, 1, 70_000, b"short")),
        (
            "nbd_handover",
            "another-version",
            [&b"\0"[..], br#"{"version":3,"listeners":[],"clients":[]}"#, b"\n"].concat(),
        ),
        ("nbd_handover", "no-manifest", b"\x02{}".to_vec()),
        ("fuse", "no-init", fuse(1, &[fuse_request(15, &span(0, 512))])),
        ("fuse", "init-of-an-old-kernel", fuse(1, &[fuse_request(26, &[0; 16])])),
        ("fuse", "write-off-the-disk", fuse(3, &[fuse_write(u64::MAX - 3, b"off")])),
        ("fuse", "wrong-lengths", fuse(2, &[fuse_write(0, b"data"), vec![7; 39]])),
        ("vhost_message", "unknown", vhost_message(99, &[])),
        ("vhost_message", "region-without-end", vhost_message(5, &[1, u64::MAX, 4096, 0, 0])),
        ("vhost_message", "too-many-regions", vhost_message(5, &[33])),
        ("vhost_request", "loop", vhost_request(1, 0, &[(0x300, 16, 1, 0)], &[])),
        (
            "vhost_request",
            "data-off-the-disk",
            vhost_request(0, u64::MAX, &[VHOST_HEAD, (0x400, 512, 3, 2), VHOST_STATUS], &[]),
        ),
        (
            "vhost_request",
            "table-in-a-table",
            vhost_request(0, 0, &[(0x10, 32, 4, 0), (0x10, 32, 4, 0)], &[]),
        ),
        ("vhost_request", "no-status", vhost_request(4, 0, &[(0x300, 16, 0, 0)], &[])),
    ]
}

/// Returns an option as a client sends it.
fn option(number: u8, data: &[u8]) -> Vec<u8> {
    [&b"IHAVEOPT\0\0\0"[..], &[number], &(data.len() as u32).to_be_bytes(), data].concat()
}

fn handshake_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let flags = &[0, 0, 0, 3][..];
    let go = option(7, b"\0\0\0\x05drive\0\x03\0\0\0\x01\0\x03");
    let list = option(3, b"");
    let info = option(6, b"\0\0\0\x05other\0\0");
    let query = b"\0\0\0\x05drive\0\0\0\x01\0\0\0\x0fbase:allocation";
    let contexts = |number| option(number, query);
    let read = request(0, 0, 1, 0, 512);
    vec![
        ("go", [flags, &go].concat()),
        ("list-info-go", [flags, &list, &info, &go].concat()),
        ("unsupported-go", [flags, &option(5, b""), &option(8, b""), &go].concat()),
        ("structured-contexts-go", [flags, &option(8, b""), &contexts(10), &go].concat()),
        (
            "extended-list-contexts-go",
            [flags, &option(11, b""), &contexts(9), &contexts(10), &go].concat(),
        ),
        ("zeroes-go-read", [&[0, 0, 0, 1], &go[..], &read].concat()),
    ]
}

/// Returns a request as a client sends it.
fn request(command: u8, flags: u8, cookie: u8, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, flags, 0, command];
    bytes.extend([0, 0, 0, 0, 0, 0, 0, cookie]);
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

fn transmission_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let block = BLOCK_BYTES as u32;
    let write = |flags, cookie, offset| {
        [request(1, flags, cookie, offset, 600), vec![cookie; 600]].concat()
    };
    let simple = vec![
        ("read", request(0, 0, 1, 512, block)),
        ("long-read", request(0, 0, 1, 4096, (1 << 20) + 512)),
        ("write-on-the-spot", [write(0, 1, 512), request(0, 0, 2, 0, 2048)].concat()),
        ("write-through-a-slot", [write(0, 1, 513), write(1, 2, 4096)].concat()),
        (
            "others",
            (3..7)
                .flat_map(|verb| request(verb, 0, verb, 0, if verb == 3 { 0 } else { block }))
                .collect(),
        ),
        ("zeroes-fua", [request(6, 3, 1, 100, 9000), request(3, 0, 2, 0, 0)].concat()),
        (
            "refused-and-go-on",
            [
                request(0, 0, 1, 1 << 40, 1),
                request(9, 0, 2, 0, 1),
                request(0, 0, 3, 0, 1),
                request(2, 0, 4, 0, 0),
            ]
            .concat(),
        ),
        ("cut-off", [request(0, 0, 1, 0, 1), request(1, 0, 2, 0, 3 << 19), vec![7; 100]].concat()),
    ];
    let dialect = |first: u8, requests: &[u8]| [&[first], requests].concat();
    let status = [request(7, 0, 1, 0, block), request(7, 8, 2, 0, 64 * block)].concat();
    let whole = request(0, 4, 1, 4096, (1 << 20) + 512);
    let late = [request(0, 0, 1, 1 << 40, 512), request(1, 0, 2, 1 << 40, 512)].concat();
    let long = (1 << 20) + 512;
    let others = [
        ("structured-long-read", dialect(1, &request(0, 0, 1, 4096, long))),
        ("structured-whole-read", dialect(1, &whole)),
        ("structured-status", dialect(2, &[status.clone(), write(0, 3, 513)].concat())),
        ("extended-read-and-status", {
            let status = extended(7, 0, 2, 0, 1 << 20);
            dialect(3, &[extended(0, 0, 1, 0, long.into()), status].concat())
        }),
        ("extended-write-and-payload-of-a-trim", {
            let write = [extended(1, PAYLOAD_LEN, 1, 0, 600), vec![1; 600]].concat();
            let trim = [extended(4, PAYLOAD_LEN, 2, 0, 8), vec![1; 8]].concat();
            dialect(3, &[write, trim, extended(3, 0, 3, 0, 0)].concat())
        }),
        ("stays", dialect(4, &[request(0, 0, 1, 512, block), write(0, 2, 512)].concat())),
        ("stays-with-half-a-write", {
            dialect(4, &[request(0, 0, 1, 0, 1), request(1, 0, 2, 0, 600), vec![1; 100]].concat())
        }),
        ("stays-with-half-of-a-refused-write", {
            dialect(4, &[request(0, 0, 9, 0, 1), late, vec![1; 100]].concat())
        }),
    ];
    let simple = simple.into_iter().map(|(name, requests)| (name, dialect(0, &requests)));
    simple.chain(others).collect()
}

/// Command flag: an extended header has the length of a payload.
const PAYLOAD_LEN: u8 = 1 << 5;

/// Returns a request with an extended header.
fn extended(command: u8, flags: u8, cookie: u8, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0x21, 0xe4, 0x1c, 0x71, 0, flags, 0, command];
    bytes.extend([0, 0, 0, 0, 0, 0, 0, cookie]);
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

/// The first bytes that a server sends.
const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";

/// Returns a chunk of a server's script: sends `bytes` after receiving `wait` bytes.
fn chunk(wait: u8, bytes: &[u8]) -> Vec<u8> {
    [&[wait][..], &(bytes.len() as u16).to_le_bytes(), bytes].concat()
}

/// Returns the answer to GO for an export of `size` bytes, without the acknowledgement.
fn inform(size: u64) -> Vec<u8> {
    let magic = 0x0003_e889_0455_65a9_u64.to_be_bytes();
    let kind_and_length = [0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 12, 0, 0];
    [&magic[..], &kind_and_length, &size.to_be_bytes(), &[0, 0x6d]].concat()
}

/// Returns a simple reply to the request in the client's first slot, or to no request.
fn reply(cookie: u8) -> Vec<u8> {
    [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, cookie][..], &[9; 512]].concat()
}

/// Returns a handshake (28 bytes from the client: flags and GO), and `answer` to a first request.
fn dialogue(answer: &[u8]) -> Vec<u8> {
    let magic = 0x0003_e889_0455_65a9_u64.to_be_bytes();
    let acknowledged = [&magic[..], &[0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0]].concat();
    let export = [inform(1 << 20), acknowledged].concat();
    [chunk(0, GREETING), chunk(28, &export), chunk(28, answer)].concat()
}

fn client_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let refused = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0];
    vec![
        ("read", dialogue(&reply(0))),
        ("write-refused", [dialogue(&reply(0)), chunk(28, &refused)].concat()),
    ]
}

/// Returns a handshake for block status (flags and STRUCTURED_REPLY, SET_META_CONTEXT, GO), then
/// `answer` to the first request.
fn allocation(answer: &[u8]) -> Vec<u8> {
    let magic = 0x0003_e889_0455_65a9_u64.to_be_bytes();
    let reply = |option: u8, kind: u8, data: &[u8]| {
        let numbers = [0, 0, 0, option, 0, 0, 0, kind, 0, 0, 0, data.len() as u8];
        [&magic[..], &numbers, data].concat()
    };
    let contexts = [reply(10, 4, b"\0\0\0\x01base:allocation"), reply(10, 1, b"")].concat();
    let export = [inform(1 << 20), reply(7, 1, b"")].concat();
    let asked = [chunk(20, &reply(8, 1, b"")), chunk(43, &contexts), chunk(24, &export)].concat();
    [chunk(0, GREETING), asked, chunk(28, answer)].concat()
}

/// Returns the last chunk of a structured reply to the first request.
fn status(kind: u8, length: u32, payload: &[u8]) -> Vec<u8> {
    let header = [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, kind, 0, 0, 0, 0, 0, 0, 0, 1];
    [&header[..], &length.to_be_bytes(), payload].concat()
}

/// Returns one extent in the context 1.
fn extent(bytes: u32, flags: u32) -> Vec<u8> {
    [1, bytes, flags].map(u32::to_be_bytes).concat()
}

fn allocation_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let whole = allocation(&status(5, 12, &extent(1 << 20, 3)));
    let halves = [status(5, 12, &extent(1 << 19, 0)), status(5, 12, &extent(1 << 19, 3))];
    let second = chunk(28, &[&halves[1][..15], &[2], &halves[1][16..]].concat());
    vec![("hole", whole), ("data-and-hole", [allocation(&halves[0]), second].concat())]
}

/// Returns a handover of listeners and clients, each with the same unread bytes.
fn handover(listeners: u8, clients: u8, unread_bytes: usize, unread: &[u8]) -> Vec<u8> {
    // "/nowhere"
    let path = "[47,110,111,119,104,101,114,101]";
    let listener = format!(r#"{{"Unix":{{"path":{path},"file":null}}}}"#);
    let dialect = r#"{"headers":"Simple","contexts":[false,false]}"#;
    let known = r#"{"left":"","size_bytes":65536,"is_read_only":false}"#;
    let client = format!(
        r#"{{"export":"disk","dialect":{dialect},"known":{known},"unread_bytes":{unread_bytes}}}"#
    );
    let list = |text: &str, count| vec![text.to_owned(); usize::from(count)].join(",");
    let (listens, parked) = (list(&listener, listeners), list(&client, clients));
    let manifest = format!(r#"{{"version":2,"listeners":[{listens}],"clients":[{parked}]}}"#);
    let unread = unread.repeat(clients.into());
    let sockets = listeners + clients;
    [&[sockets][..], manifest.as_bytes(), b"\n", &unread].concat()
}

fn handover_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let read = request(0, 0, 1, 512, 512);
    let write = [request(1, 1, 2, 0, 512), vec![3; 512]].concat();
    vec![
        ("listener-and-client", handover(1, 1, 0, b"")),
        ("half-a-request", handover(0, 2, 20, &read[..20])),
        ("requests", handover(1, 2, read.len() + write.len(), &[read, write].concat())),
    ]
}

/// Returns an input for a FUSE session: its first byte, and messages with their lengths.
fn fuse(mode: u8, messages: &[Vec<u8>]) -> Vec<u8> {
    let framed = messages
        .iter()
        .flat_map(|message| [&(message.len() as u16).to_le_bytes()[..], message].concat());
    [mode].into_iter().chain(framed).collect()
}

/// Returns a FUSE request for the file without its length, numbered by its operation.
fn fuse_request(operation: u8, arguments: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 0, operation, 0, 0, 0, operation, 0, 0, 0, 0, 0, 0, 0, 2];
    bytes.resize(40, 0);
    bytes.extend(arguments);
    bytes
}

/// Arguments of a FUSE read or write.
fn span(offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    bytes.extend(offset.to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes.resize(40, 0);
    bytes
}

fn fuse_write(offset: u64, data: &[u8]) -> Vec<u8> {
    fuse_request(16, &[&span(offset, 0), data].concat())
}

fn fuse_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let punch = [0, 4096, 4096, 3].map(u64::to_le_bytes).concat();
    let mut lookup = fuse_request(1, b"disk\0");
    lookup[16] = 1;
    let about = [3, 14, 17, 27, 21].map(|operation| fuse_request(operation, &[0; 16]));
    let listed = fuse_request(28, &span(0, 4096));
    let read = fuse_request(15, &span(4096, 8192));
    let ends = [25, 18, 29, 2, 36, 42].map(|operation| fuse_request(operation, &[0; 24]));
    vec![
        ("read", fuse(3, std::slice::from_ref(&read))),
        ("write-at-once", fuse(3, &[fuse_write(4096, &[5; 512]), read.clone()])),
        ("write-that-waits", fuse(3, &[fuse_write(4097, &[5; 512]), fuse_request(20, &[0; 16])])),
        ("long-write", fuse(3, &[fuse_write(1, &[6; 17 << 10])])),
        ("punch", fuse(3, &[fuse_request(43, &punch)])),
        ("file-system", fuse(3, &[&[lookup][..], &about, &[listed, read], &ends].concat())),
    ]
}

/// Returns a message of a front end: its number, and the words of its body.
fn vhost_message(code: u32, body: &[u64]) -> Vec<u8> {
    let head = [code, 1, body.len() as u32 * 8].map(u32::to_ne_bytes).concat();
    head.into_iter().chain(body.iter().flat_map(|word| word.to_ne_bytes())).collect()
}

fn vhost_message_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let config = [0, 96, 1].map(u32::to_ne_bytes).concat();
    let head = [24_u32, 1, 108].map(u32::to_ne_bytes).concat();
    vec![
        ("features", vhost_message(1, &[])),
        ("memory", vhost_message(5, &[1, 1 << 20, 1 << 20, 7 << 40, 0])),
        ("add-memory", vhost_message(37, &[0, 1 << 20, 1 << 20, 7 << 40, 0])),
        ("addresses", vhost_message(9, &[0, 7 << 40, 7 << 40 | 4096, 7 << 40 | 8192, 0])),
        ("kick", vhost_message(12, &[3])),
        ("enable", vhost_message(18, &[1 << 32])),
        ("config", [head, config, vec![0; 96]].concat()),
    ]
}

/// Descriptors of a request's head and status: address, length, flags (1 next, 2 write, 4 a table),
/// next.
const VHOST_HEAD: (u64, u32, u16, u16) = (0x300, 16, 1, 1);
const VHOST_STATUS: (u64, u32, u16, u16) = (0x310, 1, 2, 0);

/// Returns the memory of a guest that offers one request, with `data` at 0x400.
fn vhost_request(kind: u32, sector: u64, chain: &[(u64, u32, u16, u16)], data: &[u8]) -> Vec<u8> {
    let mut memory = vec![0; 0x400];
    for (slot, (address, length, flags, next)) in memory.chunks_mut(16).zip(chain) {
        slot[..8].copy_from_slice(&address.to_le_bytes());
        slot[8..12].copy_from_slice(&length.to_le_bytes());
        slot[12..14].copy_from_slice(&flags.to_le_bytes());
        slot[14..].copy_from_slice(&next.to_le_bytes());
    }
    // One entry is available: the first descriptor.
    memory[0x102] = 1;
    memory[0x300..0x304].copy_from_slice(&kind.to_le_bytes());
    memory[0x308..0x310].copy_from_slice(&sector.to_le_bytes());
    memory.extend(data);
    memory
}

fn vhost_request_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let with = |kind, length, flags, data: &[u8]| {
        vhost_request(kind, 8, &[VHOST_HEAD, (0x400, length, flags, 2), VHOST_STATUS], data)
    };
    let range = [8_u64.to_le_bytes(), [8, 0, 0, 0, 0, 0, 0, 0]].concat();
    let mut table = vhost_request(1, 0, &[(0x500, 48, 4, 0)], &[0; 0x100]);
    for (address, length, flags, next) in [VHOST_HEAD, (0x600, 512, 1, 2), VHOST_STATUS] {
        table.extend(u64::to_le_bytes(address));
        table.extend(u32::to_le_bytes(length));
        table.extend([flags, next].map(u16::to_le_bytes).concat());
    }
    let mut flush = VHOST_HEAD;
    flush.3 = 2;
    vec![
        ("read", with(0, 4096, 3, &[])),
        ("write", with(1, 512, 1, &[7; 512])),
        ("flush", vhost_request(4, 0, &[flush, VHOST_STATUS, VHOST_STATUS], &[])),
        ("id", with(8, 20, 3, &[])),
        ("discard", with(11, 16, 1, &range)),
        ("write-zeroes", with(13, 16, 1, &range)),
        ("table", table),
    ]
}
