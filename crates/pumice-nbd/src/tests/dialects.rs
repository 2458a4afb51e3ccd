//! Goal: clients can negotiate more than simple replies, and the result applies to nothing else.
//! Method: the scripted client of the parent module, extended to read chunks.

use super::super::wire::{option, reply};
use super::*;

const DONE: u16 = 1;
const NONE: u16 = 0;
const DATA: u16 = 1;
const HOLE: u16 = 2;
const STATUS: u16 = 5;
const STATUS_EXT: u16 = 6;
const ERROR: u16 = (1 << 15) + 1;
const ERROR_OFFSET: u16 = (1 << 15) + 2;

const ALLOCATION: u32 = 1;
const STORED: u32 = 2;

/// A chunk of a structured reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    flags: u16,
    kind: u16,
    pub(super) cookie: u64,
    pub(super) payload: Vec<u8>,
}

impl Client {
    /// Negotiates an option without data.
    pub(super) fn agree(&mut self, option: u32) {
        self.option(option, b"");
        assert_eq!(self.option_reply(option), (reply::ACK, vec![]));
    }

    /// Selects contexts; returns their identifiers and names.
    pub(super) fn select(&mut self, export: &str, names: &[&str]) -> Vec<(u32, String)> {
        self.option(option::SET_META_CONTEXT, &context_data(export, names));
        let mut selected = Vec::new();
        loop {
            match self.option_reply(option::SET_META_CONTEXT) {
                (reply::META_CONTEXT, data) => {
                    let id = u32::from_be_bytes(data[..4].try_into().unwrap());
                    selected.push((id, String::from_utf8(data[4..].to_vec()).unwrap()));
                }
                end => {
                    assert_eq!(end, (reply::ACK, vec![]));
                    return selected;
                }
            }
        }
    }

    /// Enters the transmission phase. Returns the flags of the export.
    pub(super) fn go(&mut self) -> u16 {
        self.option(option::GO, b"\0\0\0\0\0\0");
        let (kind, data) = self.option_reply(option::GO);
        assert_eq!((kind, data.len()), (reply::INFO, 12));
        assert_eq!(self.option_reply(option::GO), (reply::ACK, vec![]));
        u16::from_be_bytes(data[10..].try_into().unwrap())
    }

    pub(super) fn chunk(&mut self) -> Chunk {
        let header = self.receive(20);
        assert_eq!(header[..4], 0x668e_33ef_u32.to_be_bytes(), "{header:x?}");
        let [flags, kind] = [4, 6].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
        let cookie = u64::from_be_bytes(header[8..16].try_into().unwrap());
        let length = u32::from_be_bytes(header[16..].try_into().unwrap());
        Chunk { flags, kind, cookie, payload: self.receive(length as usize) }
    }

    /// Sends a request with extended headers.
    fn extended(&mut self, command: u16, flags: u16, offset: u64, length: u64) {
        self.send(&encode_extended(&Request { flags, command, cookie: 77, offset, length }));
    }

    /// Receives an extended chunk: the offset that it repeats, and the rest.
    fn extended_chunk(&mut self) -> (u64, Chunk) {
        let header = self.receive(32);
        assert_eq!(header[..4], 0x6e8a_278c_u32.to_be_bytes(), "{header:x?}");
        let [flags, kind] = [4, 6].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
        let field = |at: usize| u64::from_be_bytes(header[at..at + 8].try_into().unwrap());
        let chunk =
            Chunk { flags, kind, cookie: field(8), payload: self.receive(field(24) as usize) };
        (field(16), chunk)
    }
}

/// Returns a request with an extended header.
pub(super) fn encode_extended(request: &Request) -> Vec<u8> {
    let mut bytes = 0x21e4_1c71_u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&request.flags.to_be_bytes());
    bytes.extend_from_slice(&request.command.to_be_bytes());
    for field in [request.cookie, request.offset, request.length] {
        bytes.extend_from_slice(&field.to_be_bytes());
    }
    bytes
}

pub(super) fn context_data(export: &str, names: &[&str]) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
    let mut data = string(export);
    data.extend_from_slice(&(names.len() as u32).to_be_bytes());
    names.iter().for_each(|name| data.extend_from_slice(&string(name)));
    data
}

/// Returns a client that has negotiated structured replies and both contexts.
fn structured(door: &Door) -> Client {
    enter_by(door, option::STRUCTURED_REPLY)
}

/// Returns a client that has negotiated both contexts and this option: structured replies or
/// extended headers.
pub(super) fn enter_by(door: &Door, option: u32) -> Client {
    let mut client = door.connect();
    client.greet(3);
    client.agree(option);
    let selected = client.select("", &["base:allocation", "x-pumice:stored"]);
    let expected = [(ALLOCATION, "base:allocation"), (STORED, "x-pumice:stored")];
    assert_eq!(selected, expected.map(|(id, name)| (id, name.to_owned())));
    client.go();
    client
}

/// Returns the descriptors of a status chunk, 32 bits each.
pub(super) fn descriptors(chunk: &Chunk) -> (u32, Vec<(u32, u32)>) {
    assert_eq!(chunk.kind, STATUS);
    let words: Vec<_> =
        chunk.payload.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
    (words[0], words[1..].chunks(2).map(|pair| (pair[0], pair[1])).collect())
}

/// Returns a disk of zeroes except for these blocks.
fn disk_with_data(blocks: &[usize]) -> MemoryDisk {
    let disk = MemoryDisk::default();
    for &block in blocks {
        disk.bytes.borrow_mut()[block * 4096..][..4096].fill(block as u8 | 1);
    }
    disk
}

#[test]
fn structured_replies_say_more() {
    let disk =
        MemoryDisk { failure: Some((1 << 20, ErrorKind::Corrupt)), ..disk_with_data(&[1, 2]) };
    serve(disk, Options::default(), |door| {
        let mut client = structured(&door);
        client.request(command::READ, 0, 5, 4096, 512);
        let chunk = client.chunk();
        assert_eq!((chunk.flags, chunk.kind, chunk.cookie), (DONE, DATA, 5));
        assert_eq!(chunk.payload, [&4096_u64.to_be_bytes()[..], &[1; 512]].concat());
        client.request(command::FLUSH, 0, 6, 0, 0);
        let expected = Chunk { flags: DONE, kind: NONE, cookie: 6, payload: vec![] };
        assert_eq!(client.chunk(), expected);
        client.request(command::READ, 0, 7, 1 << 20, 512);
        let chunk = client.chunk();
        assert_eq!((chunk.flags, chunk.kind, chunk.cookie), (DONE, ERROR, 7));
        assert_eq!(chunk.payload[..4], [0, 0, 0, 5]);
        let message = String::from_utf8(chunk.payload[6..].to_vec()).unwrap();
        // The location of the drive and the exact failure are only for the log.
        assert_eq!(message, "the data is damaged: see the log of the server");
        client.request(command::READ, 0, 8, SIZE, 512);
        let chunk = client.chunk();
        assert_eq!((chunk.kind, &chunk.payload[..4]), (ERROR, &[0, 0, 0, 22][..]));
        assert!(chunk.payload.ends_with(b"exceeds the end of the export"));
        client.request(command::WRITE, 0, 9, 8192, 4);
        client.send(b"true");
        assert_eq!((client.chunk().kind, client.0.take_error().unwrap().is_none()), (NONE, true));
    });
}

#[test]
fn long_reads_come_in_parts_with_holes() {
    serve(disk_with_data(&[40, 41, 63]), Options::default(), |door| {
        let mut client = structured(&door);
        let length = 64 * 4096;
        client.request(command::READ, 0, 1, 0, length);
        let chunks: Vec<_> = (0..4).map(|_| client.chunk()).collect();
        let kinds: Vec<_> = chunks.iter().map(|chunk| (chunk.kind, chunk.flags)).collect();
        assert_eq!(kinds, [(HOLE, 0), (DATA, 0), (HOLE, 0), (DATA, DONE)]);
        let hole =
            |offset: u64, bytes: u32| [&offset.to_be_bytes()[..], &bytes.to_be_bytes()].concat();
        assert_eq!(chunks[0].payload, hole(0, 40 * 4096));
        assert_eq!(chunks[2].payload, hole(42 * 4096, 21 * 4096));
        let data = [&(40_u64 * 4096).to_be_bytes()[..], &[41; 8192]].concat();
        assert_eq!(chunks[1].payload, data);
        // Must not be split: one chunk, including the zeroes.
        client.request(command::READ, wire::COMMAND_FLAG_DF, 2, 0, length);
        let chunk = client.chunk();
        assert_eq!((chunk.kind, chunk.flags, chunk.payload.len()), (DATA, DONE, 8 + 64 * 4096));
        // Only zeroes: one hole, and it is the last chunk.
        client.request(command::READ, 0, 3, 0, 20 * 4096);
        let chunk = client.chunk();
        assert_eq!((chunk.kind, chunk.flags), (HOLE, DONE));
    });
}

#[test]
fn a_failure_in_the_middle_of_a_long_read_names_its_place() {
    let disk = MemoryDisk { failure: Some((3 << 20, ErrorKind::Medium)), ..MemoryDisk::default() };
    disk.bytes.borrow_mut().fill(9);
    // Memory is so short that the reply consists of pieces of 1 MiB.
    let options = Options { payload_bytes: 4 << 20, ..Options::default() };
    serve(disk, options, |door| {
        let mut client = structured(&door);
        // One connection may hold 2 MiB. The first piece fails as soon as it contains the byte.
        client.request(command::READ, 0, 4, 0, 4 << 20);
        let mut received = 0;
        loop {
            let chunk = client.chunk();
            match chunk.kind {
                DATA => received += chunk.payload.len() as u64 - 8,
                kind => {
                    assert_eq!((kind, chunk.flags), (ERROR_OFFSET, DONE));
                    let place = &chunk.payload[chunk.payload.len() - 8..];
                    assert_eq!(u64::from_be_bytes(place.try_into().unwrap()), received);
                    break;
                }
            }
        }
        assert!((1 << 20..=3 << 20).contains(&received), "{received}");
        client.request(command::FLUSH, 0, 6, 0, 0);
        assert_eq!(client.chunk().kind, NONE);
    });
}

#[test]
fn a_whole_read_that_fails_is_completed_and_keeps_the_connection() {
    let disk = MemoryDisk { failure: Some((3 << 20, ErrorKind::Medium)), ..MemoryDisk::default() };
    disk.bytes.borrow_mut().fill(9);
    let options = Options { payload_bytes: 4 << 20, ..Options::default() };
    serve(disk, options, |door| {
        let mut client = structured(&door);
        client.request(command::READ, wire::COMMAND_FLAG_DF, 4, 0, 8 << 20);
        let chunk = client.chunk();
        assert_eq!((chunk.kind, chunk.flags, chunk.payload.len()), (DATA, 0, 8 + (8 << 20)));
        let zeroes = chunk.payload[8..].iter().position(|&byte| byte == 0).unwrap();
        assert!((1 << 20..=3 << 20).contains(&zeroes), "{zeroes}");
        let chunk = client.chunk();
        assert_eq!((chunk.kind, chunk.flags, chunk.cookie), (ERROR_OFFSET, DONE, 4));
        let place = &chunk.payload[chunk.payload.len() - 8..];
        assert_eq!(u64::from_be_bytes(place.try_into().unwrap()), zeroes as u64);
        client.request(command::READ, wire::COMMAND_FLAG_DF, 5, 4 << 20, 8 << 20);
        let chunk = client.chunk();
        assert_eq!((chunk.kind, chunk.flags, chunk.payload.len()), (DATA, 0, 8 + (8 << 20)));
        let chunk = client.chunk();
        assert_eq!((chunk.kind, chunk.flags, chunk.cookie), (NONE, DONE, 5));
    });
}

#[test]
fn a_flood_of_status_requests_is_answered_one_by_one() {
    let disk = MemoryDisk { gates_extents: true, ..MemoryDisk::default() };
    let left = serve(disk, Options::default(), |mut door| {
        let mut client = structured(&door);
        for cookie in 0..64 {
            client.request(command::BLOCK_STATUS, 0, cookie, 0, SIZE as u32);
        }
        door.enter().expect_alive();
        door.signal(OPEN_GATE);
        for _ in 0..64 {
            assert_eq!((client.chunk().kind, client.chunk().kind), (STATUS, STATUS));
        }
    });
    assert_eq!(left.disk.waited_together.get(), 1);
}

/// Guards against long answers that are computed, one after the other, for a client that reads none
/// of them.
#[test]
fn answers_that_nobody_takes_are_not_worked_out() {
    const ASKED: u64 = 60;
    let disk = MemoryDisk::default();
    disk.bytes.borrow_mut().chunks_mut(8192).for_each(|blocks| blocks[0] = 1);
    let left = serve(disk, Options::default(), |door| {
        let command = command::BLOCK_STATUS;
        let status = Request { flags: 0, command, cookie: 0, offset: 0, length: 16 << 20 };
        let mut client = structured(&door);
        // The requests are sent in one piece, which fits in a socket.
        client.send(&status.encode().repeat(1000));
        let mut other = structured(&door);
        for _ in 0..ASKED {
            other.send(&status.encode());
            // 2,048 extents in each context.
            let lengths = [other.chunk(), other.chunk()].map(|chunk| chunk.payload.len());
            assert_eq!(lengths, [4 + 2048 * 8; 2]);
        }
    });
    // Each answer needs three lists and 32 KiB: a dozen fill the socket and the buffer of replies.
    let more = left.disk.listed.get() - ASKED * 3;
    assert!(more < 20 * 3, "{more} lists for a client that takes nothing");
}

#[test]
fn block_status_reports_the_selected_contexts() {
    serve(disk_with_data(&[1, 2, 4]), Options::default(), |door| {
        let mut client = structured(&door);
        client.request(command::BLOCK_STATUS, 0, 1, 0, 6 * 4096);
        let (id, allocation) = descriptors(&client.chunk());
        assert_eq!(id, ALLOCATION);
        assert_eq!(allocation, [(4096, 2), (8192, 0), (4096, 3), (4096, 0), (4096, 3)]);
        let chunk = client.chunk();
        assert_eq!(chunk.flags, DONE);
        let (id, stored) = descriptors(&chunk);
        assert_eq!(id, STORED);
        assert_eq!(stored, [(4096, 0), (4096, 16), (4096, 32), (4096, 0), (4096, 64), (4096, 0)]);
        // One extent each, not beyond the request.
        client.request(command::BLOCK_STATUS, wire::COMMAND_FLAG_REQ_ONE, 2, 4096 + 100, 5000);
        assert_eq!(descriptors(&client.chunk()), (ALLOCATION, vec![(5000, 0)]));
        assert_eq!(descriptors(&client.chunk()), (STORED, vec![(3996, 16)]));
        client.request(command::BLOCK_STATUS, 0, 3, 1, SIZE as u32);
        assert_eq!(client.chunk().kind, ERROR);
    });
}

#[test]
fn long_answers_end_and_clients_ask_on() {
    let disk = MemoryDisk::default();
    for block in (0..SIZE as usize / 4096).step_by(2) {
        disk.bytes.borrow_mut()[block * 4096] = 1;
    }
    serve(disk, Options::default(), |door| {
        let mut client = structured(&door);
        let (mut at, mut answers) = (0, 0);
        while at < SIZE {
            client.request(command::BLOCK_STATUS, 0, 1, at, (SIZE - at) as u32);
            let (_, allocation) = descriptors(&client.chunk());
            client.chunk();
            assert!(allocation.len() <= 2048);
            at += allocation.iter().map(|(bytes, _)| u64::from(*bytes)).sum::<u64>();
            answers += 1;
        }
        assert_eq!((at, answers), (SIZE, SIZE.div_ceil(2048 * 4096)));
    });
}

#[test]
fn extended_headers_take_long_ranges() {
    serve(disk_with_data(&[1]), Options::default(), |door| {
        let mut client = door.connect();
        client.greet(3);
        client.agree(option::EXTENDED_HEADERS);
        // Extended headers include chunks, and cannot be revoked.
        client.option(option::STRUCTURED_REPLY, b"");
        assert_eq!(client.option_reply(option::STRUCTURED_REPLY).0, reply::ERR_EXT_HEADER_REQD);
        client.select("", &["base:allocation"]);
        client.go();
        client.extended(command::READ, 0, 4096, 16);
        let (offset, chunk) = client.extended_chunk();
        assert_eq!((offset, chunk.kind, chunk.flags, chunk.cookie), (4096, DATA, DONE, 77));
        assert_eq!(chunk.payload, [&4096_u64.to_be_bytes()[..], &[1; 16]].concat());
        client.extended(command::WRITE, wire::COMMAND_FLAG_PAYLOAD_LEN, 8192, 4);
        client.send(b"true");
        assert_eq!(client.extended_chunk().1.kind, NONE);
        client.extended(command::TRIM, 0, 0, SIZE);
        assert_eq!(client.extended_chunk().1.kind, NONE);
        client.extended(command::BLOCK_STATUS, 0, 8192, SIZE - 8192);
        let (offset, chunk) = client.extended_chunk();
        assert_eq!((offset, chunk.kind), (8192, STATUS_EXT));
        assert_eq!(chunk.payload[..8], [0, 0, 0, 1, 0, 0, 8, 0]);
        assert_eq!(chunk.payload.len(), 8 + 16 * 2048);
        // Past 32 bits, and past the end.
        client.extended(command::TRIM, 0, 0, 1 << 33);
        let (_, chunk) = client.extended_chunk();
        assert_eq!((chunk.kind, &chunk.payload[..4]), (ERROR, &[0, 0, 0, 22][..]));
        // Payloads where there must be none, and none where there must be one.
        client.extended(command::TRIM, wire::COMMAND_FLAG_PAYLOAD_LEN, 0, 4);
        client.send(b"what");
        assert_eq!(client.extended_chunk().1.kind, ERROR);
        client.extended(command::WRITE, 0, 0, 4);
        assert_eq!(client.extended_chunk().1.kind, ERROR);
        client.extended(command::FLUSH, 0, 0, 0);
        assert_eq!(client.extended_chunk().1.kind, NONE);
        // Far above any limit: the connection ends.
        client.extended(command::WRITE, wire::COMMAND_FLAG_PAYLOAD_LEN, 0, u64::MAX);
        client.expect_end();
    });
}

#[test]
fn flags_follow_the_negotiation() {
    serve(MemoryDisk::default(), Options::default(), |door| {
        let df = 1 << 7;
        let mut simple = door.connect();
        simple.greet(3);
        assert_eq!(simple.go() & df, 0);
        for option in [option::STRUCTURED_REPLY, option::EXTENDED_HEADERS] {
            let mut client = door.connect();
            client.greet(3);
            client.option(option, b"x");
            assert_eq!(client.option_reply(option).0, reply::ERR_INVALID);
            client.agree(option);
            assert_eq!(client.go() & df, df);
        }
    });
}

#[test]
fn contexts_are_listed_and_need_chunks() {
    serve(MemoryDisk::default(), Options::default(), |door| {
        let mut client = door.connect();
        client.greet(3);
        for option in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
            client.option(option, &context_data("", &["base:allocation"]));
            assert_eq!(client.option_reply(option).0, reply::ERR_INVALID);
        }
        client.agree(option::STRUCTURED_REPLY);
        let list = option::LIST_META_CONTEXT;
        client.option(list, &context_data("disk", &[]));
        assert_eq!(client.option_reply(list).1, b"\0\0\0\0base:allocation");
        assert_eq!(client.option_reply(list).1, b"\0\0\0\0x-pumice:stored");
        assert_eq!(client.option_reply(list).0, reply::ACK);
        client.option(list, &context_data("another", &[]));
        assert_eq!(client.option_reply(list).0, reply::ERR_UNKNOWN);
        client.option(list, &context_data(&"x".repeat(4097), &[]));
        assert_eq!(client.option_reply(list).0, reply::ERR_TOO_BIG);
        client.option(list, b"\0\0\0\x01");
        assert_eq!(client.option_reply(list).0, reply::ERR_INVALID);
        // A failed selection selects nothing, and drops the selection before it.
        assert_eq!(client.select("disk", &["base:allocation"]).len(), 1);
        client.option(option::SET_META_CONTEXT, &context_data("another", &["base:allocation"]));
        assert_eq!(client.option_reply(option::SET_META_CONTEXT).0, reply::ERR_UNKNOWN);
        client.go();
        client.request(command::BLOCK_STATUS, 0, 1, 0, 512);
        assert_eq!(client.chunk().kind, ERROR);
    });
}

#[test]
fn names_choose_among_several_exports() {
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let disks = [1, 2].map(|_| Rc::new(MemoryDisk::default()));
    let exports = disks
        .iter()
        .zip(["one", "two"])
        .map(|(disk, name)| Rc::new(Export::new(name, format!("the disk {name}"), disk.clone())));
    let server = Server::new(runtime.clone(), exports.collect(), Options::default());
    serve_with(&runtime, &server, &disks[0], |door| {
        let mut client = door.connect();
        client.greet(3);
        client.option(option::LIST, b"");
        assert_eq!(client.option_reply(option::LIST).1, b"\0\0\0\x03onethe disk one");
        assert_eq!(client.option_reply(option::LIST).1, b"\0\0\0\x03twothe disk two");
        assert_eq!(client.option_reply(option::LIST).0, reply::ACK);
        // There is no default.
        client.option(option::GO, b"\0\0\0\0\0\0");
        let (kind, message) = client.option_reply(option::GO);
        assert_eq!(kind, reply::ERR_UNKNOWN);
        assert_eq!(message, b"no such export: available are 'one', 'two'");
        // A selection for one export does not apply to the other.
        client.agree(option::STRUCTURED_REPLY);
        client.select("one", &["base:allocation"]);
        client.option(option::GO, b"\0\0\0\x03two\0\0");
        assert_eq!(client.option_reply(option::GO).0, reply::INFO);
        assert_eq!(client.option_reply(option::GO).0, reply::ACK);
        client.request(command::BLOCK_STATUS, 0, 1, 0, 512);
        assert_eq!(client.chunk().kind, ERROR);
        client.request(command::WRITE, 0, 2, 0, 3);
        client.send(b"two");
        assert_eq!(client.chunk().kind, NONE);
    });
    let written = disks.map(|disk| disk.bytes.borrow()[..3].to_vec());
    assert_eq!(written, [b"\0\0\0".to_vec(), b"two".to_vec()]);
}

#[test]
fn silent_clients_are_evicted_for_new_ones() {
    let options = Options { connections_max: 8, ..Options::default() };
    serve(MemoryDisk::default(), options, |door| {
        let mut witness = door.enter();
        let mut silent: Vec<_> = (0..40).map(|_| door.connect()).collect();
        // A client that chooses its export is admitted immediately, although the limit is exceeded.
        let mut late = door.enter();
        late.expect_alive();
        witness.expect_alive();
        assert_eq!(silent[0].receive(18).len(), 18);
        silent[0].expect_end();
    });
}

#[test]
fn tls_is_not_talked_into_a_server_without_it() {
    serve(MemoryDisk::default(), Options::default(), |door| {
        let mut client = door.connect();
        client.greet(3);
        client.option(option::STARTTLS, b"");
        assert_eq!(client.option_reply(option::STARTTLS).0, reply::ERR_POLICY);
        client.option(option::STARTTLS, b"x");
        assert_eq!(client.option_reply(option::STARTTLS).0, reply::ERR_INVALID);
        client.go();
        client.expect_alive();
        // A client that does not announce support for refusals.
        let mut client = door.connect();
        client.greet(0);
        client.option(option::STARTTLS, b"");
        assert_eq!(client.option_reply(option::STARTTLS).0, reply::ERR_INVALID);
    });
}
