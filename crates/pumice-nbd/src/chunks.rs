//! Encodes replies, in the three forms that a handshake can negotiate.
//!
//! Everything is big-endian. This module does no I/O and sets no policy: `read_reply` and
//! `block_status` decide how to divide a reply into chunks.
//!
//! Source: NetworkBlockDevice/nbd, doc/proto.md, "Structured reply chunk message"; its branch
//! extension-ext-header, "Extended reply chunk message".
//!
//! ```text
//! simple      magic u32 | error u32 | cookie u64 | data
//! structured  magic u32 | flags u16 | type u16 | cookie u64 | length u32 | payload
//! extended    magic u32 | flags u16 | type u16 | cookie u64 | offset u64 | length u64 | payload
//!
//! payloads    OFFSET_DATA   offset u64 | data
//!             OFFSET_HOLE   offset u64 | length u32
//!             BLOCK_STATUS  context u32 | (length u32 | status u32)...
//!             .._EXT        context u32 | count u32 | (length u64 | status u64)...
//!             ERROR         error u32 | length u16 | message
//!             ERROR_OFFSET  error u32 | length u16 | message | offset u64
//! ```

#![expect(
    clippy::cast_possible_truncation,
    reason = "messages, extents and data of a reply are limited far below 4 GiB"
)]
#![expect(
    clippy::indexing_slicing,
    reason = "a head is as long as the longest header with an offset"
)]

use serde::{Deserialize, Serialize};

use super::wire::{self, Errno};

const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// The last chunk of its reply.
const FLAG_DONE: u16 = 1 << 0;

/// Types of a chunk.
mod kind {
    pub(super) const NONE: u16 = 0;
    pub(super) const OFFSET_DATA: u16 = 1;
    pub(super) const OFFSET_HOLE: u16 = 2;
    pub(super) const BLOCK_STATUS: u16 = 5;
    pub(super) const BLOCK_STATUS_EXT: u16 = 6;
    pub(super) const ERROR: u16 = (1 << 15) + 1;
    pub(super) const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// Longest message in an error chunk, in bytes: the limit of the protocol for any string.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Longest header before a payload of data: an extended header and the offset of the data.
pub(super) const HEAD_BYTES: usize = 40;

/// The form of requests and replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Headers {
    /// Short requests and simple replies.
    #[default]
    Simple,
    /// Short requests and structured replies.
    Structured,
    /// Requests and replies with lengths of 64 bits.
    Extended,
}

impl Headers {
    /// Returns the length of a request header, in bytes.
    pub(super) fn request_bytes(self) -> usize {
        match self {
            Self::Simple | Self::Structured => wire::REQUEST_BYTES,
            Self::Extended => wire::EXTENDED_REQUEST_BYTES,
        }
    }

    /// Returns whether a reply may consist of chunks, which metadata contexts and partial reads
    /// need.
    pub(super) fn have_chunks(self) -> bool {
        self != Self::Simple
    }
}

/// One extent of a block status: its length in bytes, and its status in the context.
pub(super) type Descriptor = (u64, u64);

/// The fields of a request that its reply repeats.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyTo {
    pub(super) headers: Headers,
    pub(super) cookie: u64,
    /// Offset of the request.
    pub(super) offset: u64,
}

impl ReplyTo {
    /// Appends the reply to a request that succeeded, without data.
    pub(super) fn append_done(self, out: &mut Vec<u8>) {
        match self.headers {
            Headers::Simple => {
                out.extend_from_slice(&wire::encode_reply(self.cookie, Errno::OK));
            }
            _ => self.append_chunk(out, kind::NONE, true, &[]),
        }
    }

    /// Appends the reply to a request that failed; `at` is the byte of the export that failed, if
    /// known. The message is human-readable, and is truncated at the limit of the protocol. A
    /// simple reply has neither.
    pub(super) fn append_error(
        self,
        out: &mut Vec<u8>,
        error: Errno,
        message: &str,
        at: Option<u64>,
    ) {
        if self.headers == Headers::Simple {
            out.extend_from_slice(&wire::encode_reply(self.cookie, error));
            return;
        }
        let message = &message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)];
        let length = (message.len() as u16).to_be_bytes();
        let error = error.to_wire().to_be_bytes();
        let place = at.map(u64::to_be_bytes);
        let (kind, place) = match &place {
            Some(place) => (kind::ERROR_OFFSET, place.as_slice()),
            None => (kind::ERROR, &[][..]),
        };
        self.append_chunk(out, kind, true, &[&error, &length, message.as_bytes(), place]);
    }

    /// Appends the chunk of a read that reports zeroes. Not for simple replies.
    pub(super) fn append_hole(self, out: &mut Vec<u8>, offset: u64, length: u32, is_last: bool) {
        let parts: [&[u8]; 2] = [&offset.to_be_bytes(), &length.to_be_bytes()];
        self.append_chunk(out, kind::OFFSET_HOLE, is_last, &parts);
    }

    /// Appends the chunk of one context; the extents start at the offset of the request. Not for
    /// simple replies.
    pub(super) fn append_status(
        self,
        out: &mut Vec<u8>,
        context: u32,
        descriptors: &[Descriptor],
        is_last: bool,
    ) {
        let context = context.to_be_bytes();
        if self.headers == Headers::Extended {
            let count = (descriptors.len() as u32).to_be_bytes();
            let bytes: Vec<u8> = descriptors
                .iter()
                .flat_map(|(length, status)| [length.to_be_bytes(), status.to_be_bytes()])
                .flatten()
                .collect();
            let parts: [&[u8]; 3] = [&context, &count, &bytes];
            return self.append_chunk(out, kind::BLOCK_STATUS_EXT, is_last, &parts);
        }
        let bytes: Vec<u8> = descriptors
            .iter()
            .flat_map(|(length, status)| [*length as u32, *status as u32].map(u32::to_be_bytes))
            .flatten()
            .collect();
        self.append_chunk(out, kind::BLOCK_STATUS, is_last, &[&context, &bytes]);
    }

    /// Writes the header of `length` bytes of data that were read at `offset` to the end of `head`,
    /// and returns the start of the header. In a simple reply, all data of the request follows one
    /// header.
    pub(super) fn write_data_head(
        self,
        head: &mut [u8; HEAD_BYTES],
        offset: u64,
        length: usize,
        is_last: bool,
    ) -> usize {
        let mut start = HEAD_BYTES;
        let mut prepend = |bytes: &[u8]| {
            let end = start;
            start -= bytes.len();
            head[start..end].copy_from_slice(bytes);
        };
        if self.headers == Headers::Simple {
            prepend(&wire::encode_reply(self.cookie, Errno::OK));
            return start;
        }
        prepend(&offset.to_be_bytes());
        let payload_bytes = length as u64 + 8;
        match self.headers {
            Headers::Extended => prepend(&self.extended(kind::OFFSET_DATA, is_last, payload_bytes)),
            _ => prepend(&self.structured(kind::OFFSET_DATA, is_last, payload_bytes)),
        }
        start
    }

    fn append_chunk(self, out: &mut Vec<u8>, kind: u16, is_last: bool, parts: &[&[u8]]) {
        let length = parts.iter().map(|part| part.len() as u64).sum();
        match self.headers {
            Headers::Extended => out.extend_from_slice(&self.extended(kind, is_last, length)),
            _ => out.extend_from_slice(&self.structured(kind, is_last, length)),
        }
        parts.iter().for_each(|part| out.extend_from_slice(part));
    }

    fn structured(self, kind: u16, is_last: bool, payload_bytes: u64) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&first_word(STRUCTURED_REPLY_MAGIC, kind, is_last));
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        // No chunk is longer than the longest read plus its offset.
        bytes[16..].copy_from_slice(&(payload_bytes as u32).to_be_bytes());
        bytes
    }

    fn extended(self, kind: u16, is_last: bool, payload_bytes: u64) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&first_word(EXTENDED_REPLY_MAGIC, kind, is_last));
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&payload_bytes.to_be_bytes());
        bytes
    }
}

/// Returns magic, flags and type.
fn first_word(magic: u32, kind: u16, is_last: bool) -> [u8; 8] {
    let flags = if is_last { FLAG_DONE } else { 0 };
    (u64::from(magic) << 32 | u64::from(flags) << 16 | u64::from(kind)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    //! Goal: in all three forms, the bytes match the protocol, written out from its document.
    use super::*;

    const COOKIE: u64 = 0x0102_0304_0506_0708;

    fn to(headers: Headers) -> ReplyTo {
        ReplyTo { headers, cookie: COOKIE, offset: 0x1000 }
    }

    fn appended(append: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        append(&mut out);
        out
    }

    #[test]
    fn success_without_data() {
        let simple = appended(|out| to(Headers::Simple).append_done(out));
        assert_eq!(simple, *b"\x67\x44\x66\x98\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08");
        let structured = appended(|out| to(Headers::Structured).append_done(out));
        assert_eq!(
            structured,
            *b"\x66\x8e\x33\xef\0\x01\0\0\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0"
        );
        let extended = appended(|out| to(Headers::Extended).append_done(out));
        let expected = b"\x6e\x8a\x27\x8c\0\x01\0\0\x01\x02\x03\x04\x05\x06\x07\x08\
            \0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\0";
        assert_eq!(extended, *expected);
    }

    #[test]
    fn errors_carry_their_message_and_their_place() {
        let simple = appended(|out| to(Headers::Simple).append_error(out, Errno::IO, "no", None));
        assert_eq!(simple[4..8], [0, 0, 0, 5]);
        let structured = appended(|out| {
            to(Headers::Structured).append_error(out, Errno::IO, "no", Some(0x2000));
        });
        assert_eq!(structured[4..8], [0, 1, 0x80, 2]);
        assert_eq!(structured[16..], *b"\0\0\0\x10\0\0\0\x05\0\x02no\0\0\0\0\0\0\x20\0");
        let extended = appended(|out| {
            to(Headers::Extended).append_error(out, Errno::INVAL, "", None);
        });
        assert_eq!(extended[4..8], [0, 1, 0x80, 1]);
        assert_eq!(extended[24..], *b"\0\0\0\0\0\0\0\x06\0\0\0\x16\0\0");
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let long = "é".repeat(3000);
        let bytes = appended(|out| {
            to(Headers::Structured).append_error(out, Errno::IO, &format!("x{long}"), None);
        });
        // One byte and 2047 two-byte characters.
        assert_eq!(bytes[24..26], 4095_u16.to_be_bytes());
        assert_eq!(bytes.len(), 20 + 6 + 4095);
        assert!(std::str::from_utf8(&bytes[26..]).is_ok());
    }

    #[test]
    fn holes_and_status() {
        let hole = appended(|out| to(Headers::Structured).append_hole(out, 0x3000, 512, false));
        assert_eq!(hole[4..8], [0, 0, 0, 2]);
        assert_eq!(hole[16..], *b"\0\0\0\x0c\0\0\0\0\0\0\x30\0\0\0\x02\0");
        let descriptors = [(4096, 3), (8192, 0)];
        let status = appended(|out| {
            to(Headers::Structured).append_status(out, 7, &descriptors, true);
        });
        assert_eq!(status[4..8], [0, 1, 0, 5]);
        let expected = b"\0\0\0\x14\0\0\0\x07\0\0\x10\0\0\0\0\x03\0\0\x20\0\0\0\0\0";
        assert_eq!(status[16..], *expected);
        let status = appended(|out| {
            to(Headers::Extended).append_status(out, 7, &descriptors[..1], true);
        });
        assert_eq!(status[4..8], [0, 1, 0, 6]);
        let expected = b"\0\0\0\0\0\0\0\x18\0\0\0\x07\0\0\0\x01\
            \0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\x03";
        assert_eq!(status[24..], *expected);
    }

    #[test]
    fn heads_of_data_end_where_the_data_begins() {
        let mut head = [0xaa; HEAD_BYTES];
        let start = to(Headers::Simple).write_data_head(&mut head, 0x2000, 4096, true);
        assert_eq!(head[start..], wire::encode_reply(COOKIE, Errno::OK));
        let start = to(Headers::Structured).write_data_head(&mut head, 0x2000, 4096, false);
        assert_eq!(head[start..start + 8], *b"\x66\x8e\x33\xef\0\0\0\x01");
        assert_eq!(head[start + 16..], *b"\0\0\x10\x08\0\0\0\0\0\0\x20\0");
        let start = to(Headers::Extended).write_data_head(&mut head, 0x2000, 4096, true);
        assert_eq!(start, 0);
        assert_eq!(head[4..8], [0, 1, 0, 1]);
        let expected = b"\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x10\x08\0\0\0\0\0\0\x20\0";
        assert_eq!(head[16..], *expected);
    }
}
