//! The bytes of the NBD protocol: magic numbers, flags, options, requests, replies, error values.
//!
//! Everything is big-endian. Decoders accept exactly the given bytes and return `None` for any
//! input that is too short, too long or inconsistent: they never panic and never allocate. This
//! module does no I/O and sets no policy: `handshake` decides which options to honour, `request`
//! which requests to refuse.
//!
//! Source: NetworkBlockDevice/nbd, doc/proto.md, section "Values".
//!
//! ```text
//! request       magic u32 | flags u16 | command u16 | cookie u64 | offset u64 | length u32 | data
//! .. extended   magic u32 | flags u16 | command u16 | cookie u64 | offset u64 | length u64 | data
//! simple reply  magic u32 | error u32 | cookie u64 | payload   (others: see `chunks`)
//! option        IHAVEOPT u64 | option u32 | length u32 | data
//! option reply  magic u64 | option u32 | type u32 | length u32 | data
//! ```

#![expect(
    clippy::cast_possible_truncation,
    reason = "callers send lengths of 32 bits only, and option replies of at most 64 KiB"
)]

use pumice_drive::base::ErrorKind;

/// First word of the server's greeting.
pub(super) const INIT_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Second word of the greeting, and the start of every option.
pub(super) const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

/// Handshake flags of the server, and the same bits in the client's answer.
pub(super) const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Omits the 124 zero bytes after the answer to `EXPORT_NAME`.
pub(super) const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Properties of an export, in the answers to `EXPORT_NAME`, `INFO` and `GO`.
pub(super) mod transmission {
    pub(in super::super) const HAS_FLAGS: u16 = 1 << 0;
    pub(in super::super) const READ_ONLY: u16 = 1 << 1;
    pub(in super::super) const SEND_FLUSH: u16 = 1 << 2;
    pub(in super::super) const SEND_FUA: u16 = 1 << 3;
    pub(in super::super) const SEND_TRIM: u16 = 1 << 5;
    pub(in super::super) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(in super::super) const SEND_DF: u16 = 1 << 7;
    pub(in super::super) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(in super::super) const SEND_CACHE: u16 = 1 << 10;
    pub(in super::super) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Options that a client can send.
pub(super) mod option {
    pub(in super::super) const EXPORT_NAME: u32 = 1;
    pub(in super::super) const ABORT: u32 = 2;
    pub(in super::super) const LIST: u32 = 3;
    pub(in super::super) const STARTTLS: u32 = 5;
    pub(in super::super) const INFO: u32 = 6;
    pub(in super::super) const GO: u32 = 7;
    pub(in super::super) const STRUCTURED_REPLY: u32 = 8;
    pub(in super::super) const LIST_META_CONTEXT: u32 = 9;
    pub(in super::super) const SET_META_CONTEXT: u32 = 10;
    pub(in super::super) const EXTENDED_HEADERS: u32 = 11;
}

/// Types of an option reply.
pub(super) mod reply {
    pub(in super::super) const ACK: u32 = 1;
    pub(in super::super) const SERVER: u32 = 2;
    pub(in super::super) const INFO: u32 = 3;
    pub(in super::super) const META_CONTEXT: u32 = 4;
    pub(in super::super) const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub(in super::super) const ERR_POLICY: u32 = (1 << 31) + 2;
    pub(in super::super) const ERR_INVALID: u32 = (1 << 31) + 3;
    pub(in super::super) const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    pub(in super::super) const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub(in super::super) const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    pub(in super::super) const ERR_TOO_BIG: u32 = (1 << 31) + 9;
    pub(in super::super) const ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;
}

/// Kinds of information in the answers to `INFO` and `GO`.
pub(super) mod info {
    pub(in super::super) const EXPORT: u16 = 0;
    pub(in super::super) const NAME: u16 = 1;
    pub(in super::super) const DESCRIPTION: u16 = 2;
    pub(in super::super) const BLOCK_SIZE: u16 = 3;
}

/// Commands of the transmission phase.
pub(super) mod command {
    pub(in super::super) const READ: u16 = 0;
    pub(in super::super) const WRITE: u16 = 1;
    pub(in super::super) const DISC: u16 = 2;
    pub(in super::super) const FLUSH: u16 = 3;
    pub(in super::super) const TRIM: u16 = 4;
    pub(in super::super) const CACHE: u16 = 5;
    pub(in super::super) const WRITE_ZEROES: u16 = 6;
    pub(in super::super) const BLOCK_STATUS: u16 = 7;
}

/// Command flag: reply only once the effect is durable.
pub(super) const COMMAND_FLAG_FUA: u16 = 1 << 0;
/// Command flag of `WRITE_ZEROES`: keep the range allocated.
pub(super) const COMMAND_FLAG_NO_HOLE: u16 = 1 << 1;

/// Command flag of `READ`: one chunk of data at most.
pub(super) const COMMAND_FLAG_DF: u16 = 1 << 2;
/// Command flag of `BLOCK_STATUS`: one extent for each context.
pub(super) const COMMAND_FLAG_REQ_ONE: u16 = 1 << 3;
/// Command flag of `WRITE_ZEROES`: fail if it would be as slow as a write.
pub(super) const COMMAND_FLAG_FAST_ZERO: u16 = 1 << 4;
/// Command flag with extended headers: the length is that of a payload that follows.
pub(super) const COMMAND_FLAG_PAYLOAD_LEN: u16 = 1 << 5;

/// An error value of a reply, as sent to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Errno(u32);

impl Errno {
    /// No error.
    pub(super) const OK: Self = Self(0);
    /// Change of a read-only export.
    pub(super) const PERM: Self = Self(1);
    /// The disk failed.
    pub(super) const IO: Self = Self(5);
    /// The request is invalid.
    pub(super) const INVAL: Self = Self(22);
    /// No space, or a write past the end of the export.
    pub(super) const NOSPC: Self = Self(28);
    /// The server is shutting down.
    pub(super) const SHUTDOWN: Self = Self(108);

    /// Returns the error of a received value; any value is possible.
    pub(super) const fn from_wire(value: u32) -> Self {
        Self(value)
    }

    /// Returns the value on the wire.
    pub(super) const fn to_wire(self) -> u32 {
        self.0
    }
}

impl From<ErrorKind> for Errno {
    /// Derives NBD's value from [`ErrorKind::errno`]. The protocol has EPERM for a read-only
    /// export, no EBUSY and no ENOENT, and reserves ENOTSUP for fast zeroing. An errno without a
    /// value of its own becomes EIO, or EINVAL if a different request could succeed.
    fn from(kind: ErrorKind) -> Self {
        match rustix::io::Errno::from_raw_os_error(kind.errno()) {
            rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP => Self::INVAL,
            rustix::io::Errno::NOSPC => Self::NOSPC,
            rustix::io::Errno::ROFS | rustix::io::Errno::ACCESS => Self::PERM,
            _ => Self::IO,
        }
    }
}

impl Errno {
    /// Returns the kind of a server's error. The protocol uses Linux's numbers. `None` for a value
    /// that the protocol does not define; a client must treat that as EINVAL.
    ///
    /// Source: doc/proto.md, "Error values".
    pub(super) fn known(self) -> Option<ErrorKind> {
        Some(match self.0 {
            1 => ErrorKind::ReadOnly,
            // The disk failed, memory is short or the server is shutting down: a later request, or
            // another server, may succeed.
            5 | 12 | 108 => ErrorKind::Io,
            22 | 75 => ErrorKind::InvalidInput,
            28 => ErrorKind::NoSpace,
            95 => ErrorKind::Unsupported,
            _ => return None,
        })
    }
}

/// Length of a [`Request`] on the wire, without a write's payload.
pub(super) const REQUEST_BYTES: usize = 28;
/// Length of a [`Request`] with extended headers.
pub(super) const EXTENDED_REQUEST_BYTES: usize = 32;
/// Length of a simple reply on the wire, without a read's payload.
pub(super) const REPLY_BYTES: usize = 16;
/// Length of an [`OptionHeader`] on the wire.
pub(super) const OPTION_BYTES: usize = 16;
/// Length of the client's flags, its answer to the greeting.
pub(super) const CLIENT_FLAGS_BYTES: usize = 4;

/// The header of a request. Only its magic has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// `COMMAND_FLAG_` bits.
    pub(super) flags: u16,
    /// A value of [`command`], or anything else.
    pub(super) command: u16,
    /// Identifies the request in its reply.
    pub(super) cookie: u64,
    /// First byte of the range.
    pub(super) offset: u64,
    /// Bytes in the range; for a write, also the payload that follows.
    pub(super) length: u64,
}

impl Request {
    /// Decodes a request header; `None` if the magic is wrong: the stream is then out of sync and
    /// can no longer be trusted.
    pub(super) fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let request = Self::decode_start(&mut fields, REQUEST_MAGIC)?;
        Some(Self { length: fields.u32()?.into(), ..request })
    }

    /// Decodes an extended request header; `None` if the magic is wrong.
    pub(super) fn decode_extended(bytes: &[u8; EXTENDED_REQUEST_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let request = Self::decode_start(&mut fields, EXTENDED_REQUEST_MAGIC)?;
        Some(Self { length: fields.u64()?, ..request })
    }

    /// Decodes all fields except for the length.
    fn decode_start(fields: &mut Fields<'_>, magic: u32) -> Option<Self> {
        if fields.u32()? != magic {
            return None;
        }
        Some(Self {
            flags: fields.u16()?,
            command: fields.u16()?,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            length: 0,
        })
    }

    /// Encodes the header in the form that a client sends. The length must fit in 32 bits.
    pub(super) fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        debug_assert!(self.length <= u64::from(u32::MAX));
        bytes[24..].copy_from_slice(&(self.length as u32).to_be_bytes());
        bytes
    }
}

/// Encodes the header of a simple reply; the data of a successful read follows it.
pub(super) fn encode_reply(cookie: u64, error: Errno) -> [u8; REPLY_BYTES] {
    let mut bytes = [0; REPLY_BYTES];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.0.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// Decodes the header of a simple reply: cookie and error value; `None` if the magic is wrong.
pub(super) fn decode_reply(bytes: &[u8; REPLY_BYTES]) -> Option<(u64, Errno)> {
    let mut fields = Fields(bytes);
    if fields.u32()? != SIMPLE_REPLY_MAGIC {
        return None;
    }
    let error = Errno::from_wire(fields.u32()?);
    Some((fields.u64()?, error))
}

/// Length of the server's greeting.
pub(super) const GREETING_BYTES: usize = 18;

/// Encodes the server's greeting.
pub(super) fn encode_greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..8].copy_from_slice(&INIT_MAGIC.to_be_bytes());
    bytes[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    bytes[16..].copy_from_slice(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
    bytes
}

/// Decodes a server's greeting: its handshake flags, or `None` if it is not a newstyle server.
pub(super) fn decode_greeting(bytes: &[u8; GREETING_BYTES]) -> Option<u16> {
    let mut fields = Fields(bytes);
    if fields.u64()? != INIT_MAGIC || fields.u64()? != OPTION_MAGIC {
        return None;
    }
    fields.u16()
}

/// Header of an option; `length` bytes of data follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OptionHeader {
    /// A value of [`option`], or anything else.
    pub(super) option: u32,
    /// Length of the data in bytes.
    pub(super) length: u32,
}

impl OptionHeader {
    /// Decodes the header of an option; `None` if the magic is wrong.
    pub(super) fn decode(bytes: &[u8; OPTION_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u64()? != OPTION_MAGIC {
            return None;
        }
        Some(Self { option: fields.u32()?, length: fields.u32()? })
    }

    /// Encodes the header in the form that a client sends.
    pub(super) fn encode(&self) -> [u8; OPTION_BYTES] {
        let mut bytes = [0; OPTION_BYTES];
        bytes[..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.option.to_be_bytes());
        bytes[12..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

/// Length of an [`OptionReply`] on the wire.
pub(super) const OPTION_REPLY_BYTES: usize = 20;

/// Header of a reply to an option; `length` bytes of data follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OptionReply {
    /// The option that this reply answers.
    pub(super) option: u32,
    /// A value of [`reply`], or anything else.
    pub(super) kind: u32,
    /// Length of the data in bytes.
    pub(super) length: u32,
}

impl OptionReply {
    /// Decodes the header; `None` if the magic is wrong.
    pub(super) fn decode(bytes: &[u8; OPTION_REPLY_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u64()? != OPTION_REPLY_MAGIC {
            return None;
        }
        Some(Self { option: fields.u32()?, kind: fields.u32()?, length: fields.u32()? })
    }
}

/// One answer of [`reply::INFO`], as far as the client uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Information {
    /// Size of the export in bytes, and [`transmission`] flags.
    Export { size_bytes: u64, flags: u16 },
    /// Size constraints in bytes.
    BlockSize { min: u32, preferred: u32, payload_max: u32 },
    /// Anything else.
    Other,
}

impl Information {
    /// Decodes the data of an answer; `None` if its length does not fit its kind.
    pub(super) fn decode(data: &[u8]) -> Option<Self> {
        let mut fields = Fields(data);
        let information = match fields.u16()? {
            info::EXPORT => Self::Export { size_bytes: fields.u64()?, flags: fields.u16()? },
            info::BLOCK_SIZE => {
                let [min, preferred] = [fields.u32()?, fields.u32()?];
                Self::BlockSize { min, preferred, payload_max: fields.u32()? }
            }
            _ => return Some(Self::Other),
        };
        fields.0.is_empty().then_some(information)
    }
}

/// Length of the answer to `EXPORT_NAME`, without the zeroes.
pub(super) const EXPORT_BYTES: usize = 10;

/// Decodes the answer to `EXPORT_NAME`: size of the export in bytes, and [`transmission`] flags.
pub(super) fn decode_export(bytes: &[u8; EXPORT_BYTES]) -> Option<(u64, u16)> {
    let mut fields = Fields(bytes);
    Some((fields.u64()?, fields.u16()?))
}

/// Zero bytes after the answer to `EXPORT_NAME`, for clients that did not negotiate their omission.
pub(super) const EXPORT_NAME_ZEROES: usize = 124;

/// Appends a reply to `option`; `data` is its parts in order.
pub(super) fn append_option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let length: usize = data.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    // The length is far below 4 GiB: it is limited by the length of options and by the names of
    // exports.
    out.extend_from_slice(&(length as u32).to_be_bytes());
    for part in data {
        out.extend_from_slice(part);
    }
}

/// The data of `INFO` and `GO`: the name of an export and the kinds of information requested.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InfoRequest<'a> {
    /// Name of the export; empty for the default export.
    pub(super) name: &'a [u8],
    /// The canonical name is requested.
    pub(super) wants_name: bool,
    /// The description is requested.
    pub(super) wants_description: bool,
    /// The size constraints are requested.
    pub(super) wants_block_size: bool,
}

impl<'a> InfoRequest<'a> {
    /// Decodes the data of an option; `None` if the lengths in it do not add up. Unknown kinds of
    /// information are ignored, repeated ones answered once.
    pub(super) fn decode(data: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let count = fields.u16()?;
        let mut request =
            Self { name, wants_name: false, wants_description: false, wants_block_size: false };
        for _ in 0..count {
            match fields.u16()? {
                info::NAME => request.wants_name = true,
                info::DESCRIPTION => request.wants_description = true,
                info::BLOCK_SIZE => request.wants_block_size = true,
                _ => {}
            }
        }
        fields.0.is_empty().then_some(request)
    }
}

/// Takes integers and byte strings from the start of a slice.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    /// Returns a byte string that follows its length.
    pub(super) fn string(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(field)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the bytes match the protocol, and every truncation and wrong length is refused.
    //! Method: round trips, values written out from the document, every prefix of every message.
    use super::*;

    const REQUEST: Request = Request {
        flags: 0x0102,
        command: 0x0304,
        cookie: 0x1122_3344_5566_7788,
        offset: 0x99aa_bbcc_ddee_ff00,
        length: 0x0a0b_0c0d,
    };

    #[test]
    fn requests_have_the_documented_layout() {
        let bytes = REQUEST.encode();
        assert_eq!(bytes[..8], [0x25, 0x60, 0x95, 0x13, 1, 2, 3, 4]);
        assert_eq!(bytes[8..16], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        assert_eq!(bytes[24..], [0x0a, 0x0b, 0x0c, 0x0d]);
        assert_eq!(Request::decode(&bytes), Some(REQUEST));
        for position in 0..4 {
            let mut wrong = bytes;
            wrong[position] ^= 1;
            assert_eq!(Request::decode(&wrong), None);
        }
    }

    #[test]
    fn extended_requests_have_the_documented_layout() {
        let start = &REQUEST.encode()[4..24];
        let bytes = [&[0x21, 0xe4, 0x1c, 0x71], start, &[0, 0, 0, 1, 0, 0, 0, 2]].concat();
        let bytes: [u8; EXTENDED_REQUEST_BYTES] = bytes.try_into().unwrap();
        let expected = Request { length: 0x1_0000_0002, ..REQUEST };
        assert_eq!(Request::decode_extended(&bytes), Some(expected));
        let mut wrong = bytes;
        wrong[3] ^= 1;
        assert_eq!(Request::decode_extended(&wrong), None);
    }

    #[test]
    fn replies_have_the_documented_layout() {
        let bytes = encode_reply(7, Errno::NOSPC);
        assert_eq!(bytes, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(decode_reply(&bytes), Some((7, Errno::NOSPC)));
        assert_eq!(&encode_greeting(), b"NBDMAGICIHAVEOPT\x00\x03");
    }

    #[test]
    fn option_headers_need_their_magic() {
        let mut bytes = *b"IHAVEOPT\0\0\0\x07\0\0\x01\x02";
        assert_eq!(OptionHeader::decode(&bytes), Some(OptionHeader { option: 7, length: 258 }));
        assert_eq!(OptionHeader { option: 7, length: 258 }.encode(), bytes);
        bytes[3] = b'x';
        assert_eq!(OptionHeader::decode(&bytes), None);
    }

    #[test]
    fn option_replies_count_their_data() {
        let mut out = Vec::new();
        append_option_reply(&mut out, option::GO, reply::ERR_UNKNOWN, &[b"ab", b"c"]);
        assert_eq!(out[..8], [0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9]);
        assert_eq!(out[8..20], [0, 0, 0, 7, 0x80, 0, 0, 6, 0, 0, 0, 3]);
        assert_eq!(&out[20..], b"abc");
        let mut header = *out.first_chunk::<OPTION_REPLY_BYTES>().unwrap();
        let expected = OptionReply { option: option::GO, kind: reply::ERR_UNKNOWN, length: 3 };
        assert_eq!(OptionReply::decode(&header), Some(expected));
        header[7] ^= 1;
        assert_eq!(OptionReply::decode(&header), None);
    }

    #[test]
    fn info_requests_are_read_whole_or_not_at_all() {
        let data = b"\0\0\0\x04disk\0\x04\0\x03\0\x01\x77\x77\0\x03";
        let request = InfoRequest::decode(data).unwrap();
        assert_eq!(request.name, b"disk");
        assert!(request.wants_name && request.wants_block_size && !request.wants_description);
        for length in 0..data.len() {
            assert_eq!(InfoRequest::decode(&data[..length]), None, "{length} bytes");
        }
        assert_eq!(InfoRequest::decode(&[data.as_slice(), &[0]].concat()), None);
        assert_eq!(InfoRequest::decode(b"\xff\xff\xff\xff\0\0\0\0"), None);
    }

    #[test]
    fn greetings_need_both_magic_numbers() {
        let greeting = encode_greeting();
        assert_eq!(decode_greeting(&greeting), Some(3));
        for position in 0..16 {
            let mut wrong = greeting;
            wrong[position] ^= 1;
            assert_eq!(decode_greeting(&wrong), None, "byte {position}");
        }
    }

    #[test]
    fn information_is_read_whole_or_not_at_all() {
        let export = [0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 1, 2];
        let block_size = [0, 3, 0, 0, 2, 0, 0, 0, 16, 0, 2, 0, 0, 0];
        let expected = [
            Information::Export { size_bytes: 4096, flags: 0x102 },
            Information::BlockSize { min: 512, preferred: 4096, payload_max: 32 << 20 },
        ];
        for (data, expected) in [&export[..], &block_size].into_iter().zip(expected) {
            assert_eq!(Information::decode(data), Some(expected));
            assert_eq!(Information::decode(&[data, &[0]].concat()), None);
            for length in 0..data.len() {
                assert_eq!(Information::decode(&data[..length]), None, "{length} bytes");
            }
        }
        assert_eq!(Information::decode(b"\0\x01disk"), Some(Information::Other));
        assert_eq!(decode_export(&[0, 0, 0, 0, 0, 0, 16, 0, 1, 2]), Some((4096, 0x102)));
    }

    #[test]
    fn every_kind_of_error_has_a_value_the_protocol_knows() {
        use ErrorKind::*;
        for (kind, value) in [
            (InvalidInput, 22),
            (NoSpace, 28),
            (Corrupt, 5),
            (Medium, 5),
            (Poisoned, 5),
            (ReadOnly, 1),
            (Busy, 5),
            (NotADrive, 22),
            (Unsupported, 22),
            (NotFound, 5),
            (PermissionDenied, 1),
            (AlreadyExists, 5),
            (Io, 5),
            (Interrupted, 5),
        ] {
            assert_eq!(Errno::from(kind).to_wire(), value, "{kind:?}");
        }
    }
}
