//! Decides whether to accept a request, and with which error value to refuse it.
//!
//! Pure functions from the header of a request and the shape of the export to a command or an error
//! value. An accepted request is within the export, so later code does not check ranges again.

use serde::{Deserialize, Serialize};

use super::chunks::Headers;
use super::contexts::{Changes, Contexts};
use super::disk::{Allocation, Durability};
use super::wire::{self, Errno, Request, command};

/// Longest read, and longest payload of a write, in bytes: the length that the protocol requires
/// every server to accept ("Size constraints", 2^25), and that `INFO_BLOCK_SIZE` announces.
pub(super) const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// `is_whole`: in one chunk at most.
    Read {
        is_whole: bool,
    },
    Write,
    Flush,
    Trim,
    WriteZeroes {
        allocation: Allocation,
    },
    Cache,
    /// `is_one`: one extent for each context.
    BlockStatus {
        is_one: bool,
    },
}

impl Verb {
    /// Returns the name of the command, as used in metrics and logs.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Trim => "trim",
            Self::WriteZeroes { .. } => "write_zeroes",
            Self::Cache => "cache",
            Self::BlockStatus { .. } => "block_status",
        }
    }

    /// Returns whether the command changes the disk, so that FUA has a meaning.
    pub(super) fn changes(self) -> bool {
        matches!(self, Self::Write | Self::Trim | Self::WriteZeroes { .. })
    }
}

/// A request that was accepted. Its range is within the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) verb: Verb,
    pub(super) durability: Durability,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    /// At most [`PAYLOAD_BYTES_MAX`] for a read or write.
    pub(super) length: u64,
}

impl Command {
    /// Returns the number of data bytes in the reply, if the command succeeds.
    pub(super) fn read_bytes(&self) -> u64 {
        if matches!(self.verb, Verb::Read { .. }) { self.length } else { 0 }
    }

    /// Returns the number of data bytes that arrived with the command.
    pub(super) fn written_bytes(&self) -> u64 {
        if self.verb == Verb::Write { self.length } else { 0 }
    }
}

/// The properties of an export that the checks need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) size_bytes: u64,
    pub(super) is_read_only: bool,
}

/// The features that a handshake negotiated for the transmission phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Dialect {
    pub(super) headers: Headers,
    pub(super) contexts: Contexts,
    /// Contexts of changes, in the order of their identifiers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) changes: Vec<Changes>,
}

impl Dialect {
    /// Returns whether the client has selected any context.
    fn has_contexts(&self) -> bool {
        !self.contexts.is_empty() || !self.changes.is_empty()
    }

    /// Decodes a request header of [`Headers::request_bytes`]; `None` if the magic is wrong.
    pub(super) fn decode(&self, bytes: &[u8]) -> Option<Request> {
        match self.headers {
            Headers::Extended => Request::decode_extended(bytes.first_chunk()?),
            _ => Request::decode(bytes.first_chunk()?),
        }
    }

    /// Returns the length of the payload after the header of a request, in bytes.
    pub(super) fn payload_bytes(&self, request: &Request) -> u64 {
        let has_payload = match self.headers {
            Headers::Extended => request.flags & wire::COMMAND_FLAG_PAYLOAD_LEN != 0,
            _ => request.command == command::WRITE,
        };
        if has_payload { request.length } else { 0 }
    }
}

/// The reason for a refusal: its error value, and a human-readable message.
pub(super) type Refusal = (Errno, &'static str);

/// Accepts a request, or returns the reason for refusing it.
///
/// `DISC` is not a command: it has no reply, and `receive` handles it first.
///
/// # Errors
/// EINVAL for an unknown command or flag, a command that the dialect lacks, a read or write above
/// [`PAYLOAD_BYTES_MAX`], a flush with a range, a block status of zero bytes, and a read, trim,
/// cache or block status past the end; ENOSPC for a write or write-zeroes past the end; EPERM for a
/// change of a read-only export.
///
/// Source: doc/proto.md, "Error values" and "Request types".
pub(super) fn check(
    request: &Request,
    shape: Shape,
    dialect: &Dialect,
) -> Result<Command, Refusal> {
    let verb = verb(request, dialect).ok_or((Errno::INVAL, "unknown command or flag"))?;
    if verb.changes() && shape.is_read_only {
        return Err((Errno::PERM, "the export is read-only"));
    }
    let end = request.offset.checked_add(request.length);
    let is_past_the_end = end.is_none_or(|end| end > shape.size_bytes);
    let is_too_long = request.length > u64::from(PAYLOAD_BYTES_MAX);
    let past_the_end = "range exceeds the end of the export";
    match verb {
        Verb::Flush if request.offset != 0 || request.length != 0 => {
            return Err((Errno::INVAL, "flush with a range"));
        }
        Verb::BlockStatus { .. } if request.length == 0 => {
            return Err((Errno::INVAL, "block status of zero bytes"));
        }
        Verb::Read { .. } | Verb::Write if is_too_long => {
            return Err((Errno::INVAL, "length exceeds 32 MiB"));
        }
        Verb::Write | Verb::WriteZeroes { .. } if is_past_the_end => {
            return Err((Errno::NOSPC, past_the_end));
        }
        _ if is_past_the_end => return Err((Errno::INVAL, past_the_end)),
        _ => {}
    }
    let durability = match request.flags & wire::COMMAND_FLAG_FUA {
        0 => Durability::Volatile,
        _ => Durability::Durable,
    };
    Ok(Command {
        verb,
        durability,
        cookie: request.cookie,
        offset: request.offset,
        length: request.length,
    })
}

/// Returns the verb of a request, if the dialect has the command, all flags are allowed, and a
/// payload is present if one is needed.
fn verb(request: &Request, dialect: &Dialect) -> Option<Verb> {
    let has = |flag| request.flags & flag != 0;
    let is_extended = dialect.headers == Headers::Extended;
    let (verb, allowed) = match request.command {
        command::READ => {
            let is_whole = has(wire::COMMAND_FLAG_DF);
            let has_chunks = dialect.headers.have_chunks();
            (Verb::Read { is_whole }, if has_chunks { wire::COMMAND_FLAG_DF } else { 0 })
        }
        command::WRITE if is_extended && !has(wire::COMMAND_FLAG_PAYLOAD_LEN) => return None,
        command::WRITE if is_extended => (Verb::Write, wire::COMMAND_FLAG_PAYLOAD_LEN),
        command::WRITE => (Verb::Write, 0),
        command::FLUSH => (Verb::Flush, 0),
        command::TRIM => (Verb::Trim, 0),
        command::WRITE_ZEROES => {
            let allocation = match has(wire::COMMAND_FLAG_NO_HOLE) {
                true => Allocation::Keep,
                false => Allocation::Release,
            };
            // Executed as a trim or a fill, which is always faster than a write.
            let flags = wire::COMMAND_FLAG_NO_HOLE | wire::COMMAND_FLAG_FAST_ZERO;
            (Verb::WriteZeroes { allocation }, flags)
        }
        command::CACHE => (Verb::Cache, 0),
        command::BLOCK_STATUS if !dialect.has_contexts() => return None,
        command::BLOCK_STATUS => {
            let is_one = has(wire::COMMAND_FLAG_REQ_ONE);
            (Verb::BlockStatus { is_one }, wire::COMMAND_FLAG_REQ_ONE)
        }
        _ => return None,
    };
    // Once FUA is announced, it must be accepted on every command.
    (request.flags & !(allowed | wire::COMMAND_FLAG_FUA) == 0).then_some(verb)
}

#[cfg(test)]
mod tests {
    //! Goal: every error value of the table in [`check`], and the exact edge of every range.
    use super::*;

    const SIZE: u64 = 1 << 30;
    const WRITABLE: Shape = Shape { size_bytes: SIZE, is_read_only: false };

    const SIMPLE: Dialect = dialect(Headers::Simple, Contexts::NONE);
    const STRUCTURED: Dialect = dialect(Headers::Structured, Contexts::ALL);
    const EXTENDED: Dialect = dialect(Headers::Extended, Contexts::ALL);

    const fn dialect(headers: Headers, contexts: Contexts) -> Dialect {
        Dialect { headers, contexts, changes: Vec::new() }
    }

    fn request(command: u16, flags: u16, offset: u64, length: u64) -> Request {
        Request { flags, command, cookie: 9, offset, length }
    }

    fn error_in(dialect: &Dialect, command: u16, flags: u16, offset: u64, length: u64) -> u32 {
        let request = request(command, flags, offset, length);
        check(&request, WRITABLE, dialect).map_or_else(|(error, _)| error.to_wire(), |_| 0)
    }

    fn error(command: u16, flags: u16, offset: u64, length: u64) -> u32 {
        error_in(&SIMPLE, command, flags, offset, length)
    }

    #[test]
    fn ranges_end_at_the_end_of_the_export() {
        for (command, past) in [
            (command::READ, 22),
            (command::WRITE, 28),
            (command::TRIM, 22),
            (command::WRITE_ZEROES, 28),
            (command::CACHE, 22),
        ] {
            assert_eq!(error(command, 0, SIZE - 512, 512), 0);
            assert_eq!(error(command, 0, SIZE - 512, 513), past);
            assert_eq!(error(command, 0, SIZE, 0), 0);
            assert_eq!(error(command, 0, SIZE + 1, 0), past);
            assert_eq!(error(command, 0, u64::MAX, 1), past);
            assert_eq!(error(command, 0, u64::MAX - 4095, 4096), past);
        }
    }

    #[test]
    fn payloads_are_limited_and_other_lengths_are_not() {
        let max = u64::from(PAYLOAD_BYTES_MAX);
        for command in [command::READ, command::WRITE] {
            assert_eq!(error(command, 0, 0, max), 0);
            assert_eq!(error(command, 0, 0, max + 1), 22);
            let flag = if command == command::WRITE { wire::COMMAND_FLAG_PAYLOAD_LEN } else { 0 };
            assert_eq!(error_in(&EXTENDED, command, flag, 0, max), 0);
            assert_eq!(error_in(&EXTENDED, command, flag, 0, 1 << 32), 22);
        }
        for command in [command::TRIM, command::WRITE_ZEROES, command::CACHE] {
            assert_eq!(error(command, 0, 0, SIZE), 0);
        }
        assert_eq!(error(command::FLUSH, 0, 0, 0), 0);
        assert_eq!(error(command::FLUSH, 0, 0, 1), 22);
        assert_eq!(error(command::FLUSH, 0, 512, 0), 22);
    }

    #[test]
    fn flags_and_commands_that_are_unknown_are_refused() {
        for command in 0..=u16::MAX {
            let is_known = matches!(command, 0 | 1 | 3..=6);
            assert_eq!(error(command, 0, 0, 0), if is_known { 0 } else { 22 }, "{command}");
            assert_eq!(error(command, 1, 0, 0), if is_known { 0 } else { 22 }, "{command}");
            for bit in 1..16 {
                let is_known = command == command::WRITE_ZEROES && matches!(bit, 1 | 4);
                let expected = if is_known { 0 } else { 22 };
                assert_eq!(error(command, 1 << bit, 0, 0), expected, "{command}, bit {bit}");
            }
        }
    }

    #[test]
    fn only_requests_of_the_dialect_are_accepted() {
        for (dialect, has_chunks) in [(SIMPLE, false), (STRUCTURED, true), (EXTENDED, true)] {
            let expected = if has_chunks { 0 } else { 22 };
            let df = wire::COMMAND_FLAG_DF;
            assert_eq!(error_in(&dialect, command::READ, df, 0, 512), expected);
            for flags in [0, wire::COMMAND_FLAG_REQ_ONE] {
                assert_eq!(error_in(&dialect, command::BLOCK_STATUS, flags, 0, 512), expected);
            }
            assert_eq!(error_in(&dialect, command::TRIM, df, 0, 512), 22);
            assert_eq!(error_in(&dialect, command::READ, wire::COMMAND_FLAG_REQ_ONE, 0, 512), 22);
        }
        let unasked = Dialect { contexts: Contexts::NONE, ..STRUCTURED };
        assert_eq!(error_in(&unasked, command::BLOCK_STATUS, 0, 0, 512), 22);
        let payload = wire::COMMAND_FLAG_PAYLOAD_LEN;
        assert_eq!(error_in(&EXTENDED, command::WRITE, payload, 0, 512), 0);
        assert_eq!(error_in(&EXTENDED, command::WRITE, 0, 0, 512), 22);
        for command in [command::READ, command::TRIM, command::BLOCK_STATUS] {
            assert_eq!(error_in(&EXTENDED, command, payload, 0, 512), 22);
        }
        for dialect in [SIMPLE, STRUCTURED] {
            assert_eq!(error_in(&dialect, command::WRITE, payload, 0, 512), 22);
        }
    }

    /// Guards against the flaw of CVE-2025-47711 and CVE-2025-47712: a block status at the edge of
    /// 32 bits, or of the export, that one check accepts although a later step cannot handle it.
    #[test]
    fn block_status_ends_at_the_end_of_the_export() {
        for dialect in [STRUCTURED, EXTENDED] {
            let status =
                |offset, length| error_in(&dialect, command::BLOCK_STATUS, 0, offset, length);
            assert_eq!(status(0, SIZE), 0);
            assert_eq!(status(SIZE - 1, 1), 0);
            assert_eq!(status(0, SIZE + 1), 22);
            assert_eq!(status(SIZE, 1), 22);
            assert_eq!(status(0, 0), 22);
            assert_eq!(status(SIZE - 1, u64::from(u32::MAX)), 22);
            assert_eq!(status(u64::MAX, 1), 22);
        }
    }

    #[test]
    fn payloads_are_at_the_offsets_in_the_header() {
        let write = request(command::WRITE, 0, 0, 512);
        let read = request(command::READ, wire::COMMAND_FLAG_PAYLOAD_LEN, 0, 512);
        assert_eq!([&write, &read].map(|request| SIMPLE.payload_bytes(request)), [512, 0]);
        assert_eq!([&write, &read].map(|request| EXTENDED.payload_bytes(request)), [0, 512]);
    }

    #[test]
    fn a_read_only_export_refuses_changes_only() {
        let shape = Shape { is_read_only: true, ..WRITABLE };
        for command in 0..=6 {
            let expected = match command {
                command::WRITE | command::TRIM | command::WRITE_ZEROES => Err(Errno::PERM),
                command::DISC => Err(Errno::INVAL),
                _ => Ok(()),
            };
            let checked = check(&request(command, 0, 0, 0), shape, &SIMPLE);
            assert_eq!(checked.map(|_| ()).map_err(|(error, _)| error), expected);
        }
    }

    #[test]
    fn an_accepted_request_is_carried_over_whole() {
        let accepted =
            check(&request(command::WRITE_ZEROES, 3, 4096, 512), WRITABLE, &SIMPLE).unwrap();
        let verb = Verb::WriteZeroes { allocation: Allocation::Keep };
        let durability = Durability::Durable;
        let expected = Command { verb, durability, cookie: 9, offset: 4096, length: 512 };
        assert_eq!(accepted, expected);
    }
}
