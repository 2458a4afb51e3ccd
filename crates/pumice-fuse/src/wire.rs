//! The bytes of the kernel's FUSE protocol: the message returned by one read of `/dev/fuse`, and
//! the message accepted by one write.
//!
//! Numbers are in the machine's byte order and may be unaligned. The decoder accepts any bytes and
//! returns `None` for anything too short or inconsistent. This module does no I/O and sets no
//! policy: `file` and `session` decide the answers.
//!
//! Source: Linux, `include/uapi/linux/fuse.h`, version 7.31 of the protocol (Linux 5.4).

use std::ops::Range;

use rustix::io::Errno;
use zerocopy::native_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Version of the protocol; a newer kernel adapts to it.
pub(super) const VERSION: (u32, u32) = (7, 31);

/// Bytes of a write before its data, more than of any other supported request.
pub(super) const REQUEST_HEAD_BYTES: usize = size_of::<RequestHead>() + size_of::<Span>();

/// Inode number of the mounted directory.
pub(super) const ROOT: u64 = 1;

/// Time for which the kernel may cache attributes and names, which never change.
const VALID_SECONDS: U64 = U64::new(86_400);

/// Flags of [`Asked::Init`] and its answer.
pub(super) mod init {
    /// Writes of more than a page.
    pub(crate) const BIG_WRITES: u32 = 1 << 5;
    /// Asynchronous direct I/O.
    pub(crate) const ASYNC_DIO: u32 = 1 << 15;
    /// The answer contains the number of pages of the longest request.
    pub(crate) const MAX_PAGES: u32 = 1 << 22;
}

/// Flags of an opened file.
pub(super) mod open {
    /// The file is not cached.
    pub(crate) const DIRECT_IO: u32 = 1 << 0;
    /// Writes of the file may run in parallel.
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

mod operation {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const READDIR: u32 = 28;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const DESTROY: u32 = 38;
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(super) const FALLOCATE: u32 = 43;
}

/// Defines structures with a checked size.
macro_rules! layouts {
    ($(
        $(#[$doc:meta])* $name:ident: $bytes:literal { $($field:ident: $type:ty,)* }
    )*) => {$(
        $(#[$doc])*
        #[derive(
            Clone, Copy,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
            zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub(super) struct $name { $($field: $type,)* }

        const _: () = assert!(size_of::<$name>() == $bytes);
    )*};
}

layouts! {
    /// Header of every request.
    RequestHead: 40 {
        bytes: U32, operation: U32, unique: U64, node: U64,
        user: U32, group: U32, process: U32, extensions: U32,
    }
    InitArguments: 16 { major: U32, minor: U32, max_readahead: U32, flags: U32, }
    /// Arguments of reads and writes.
    Span: 40 {
        handle: U64, offset: U64, length: U32, flags: U32,
        lock_owner: U64, open_flags: U32, padding: U32,
    }
    AllocateArguments: 32 { handle: U64, offset: U64, length: U64, mode: U32, padding: U32, }

    /// Header of every reply.
    ReplyHead: 16 { bytes: U32, status: I32, unique: U64, }
    Init: 64 {
        major: U32, minor: U32, max_readahead: U32, flags: U32,
        max_background: U16, congestion_threshold: U16, max_write: U32, time_granularity_ns: U32,
        max_pages: U16, rest: [U16; 17],
    }
    /// Attributes of a file. Its times are 0 and its owner is root.
    Attributes: 88 {
        node: U64, size_bytes: U64, sectors: U64, times: [u8; 36],
        mode: U32, links: U32, user: U32, group: U32, device: U32, block_bytes: U32, flags: U32,
    }
    /// A directory entry with its attributes.
    Entry: 128 {
        node: U64, generation: U64, entry_seconds: U64, attributes_seconds: U64, nanoseconds: U64,
        attributes: Attributes,
    }
    ValidAttributes: 104 { seconds: U64, nanoseconds: U32, padding: U32, attributes: Attributes, }
    Opened: 16 { handle: U64, flags: U32, padding: U32, }
    Written: 8 { length: U32, padding: U32, }
    /// Header of a name in a listing; the name is padded with zeroes to eight bytes.
    DirectoryHead: 24 { node: U64, next: U64, name_bytes: U32, kind: U32, }
    FileSystem: 80 {
        blocks: U64, free: U64, available: U64, files: U64, free_files: U64,
        block_bytes: U32, name_bytes_max: U32, fragment_bytes: U32, rest: [U32; 7],
    }
    /// A complete reply to a write.
    WriteReply: 24 { head: ReplyHead, written: Written, }
}

/// A request without its data.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    /// The number that the reply repeats.
    pub(super) unique: u64,
    /// Inode number of its file.
    pub(super) node: u64,
    pub(super) asked: Asked<'a>,
}

/// The operation. Offsets and lengths are bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked<'a> {
    Init {
        version: (u32, u32),
        max_readahead: u32,
        flags: u32,
    },
    Lookup {
        name: &'a [u8],
    },
    Attributes,
    Open,
    OpenDirectory,
    ReadDirectory {
        offset: u64,
        length: u32,
    },
    Read {
        offset: u64,
        length: u32,
    },
    /// The data is at `range` of the request.
    Write {
        offset: u64,
        range: Range<usize>,
    },
    Sync,
    Allocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    FileSystem,
    /// A descriptor or the mount is closed.
    End,
    /// Needs no reply.
    Note,
    /// Any other operation.
    Other,
}

/// Decodes a request; `None` if it is malformed.
pub(super) fn decode(bytes: &[u8]) -> Option<Request<'_>> {
    let (head, arguments) = RequestHead::ref_from_prefix(bytes).ok()?;
    if head.bytes.get() as usize != bytes.len() {
        return None;
    }
    let asked = match head.operation.get() {
        operation::INIT => {
            let (init, _) = InitArguments::ref_from_prefix(arguments).ok()?;
            let version = (init.major.get(), init.minor.get());
            let (max_readahead, flags) = (init.max_readahead.get(), init.flags.get());
            Asked::Init { version, max_readahead, flags }
        }
        operation::LOOKUP => Asked::Lookup { name: arguments.strip_suffix(&[0])? },
        operation::GETATTR => Asked::Attributes,
        operation::OPEN => Asked::Open,
        operation::OPENDIR => Asked::OpenDirectory,
        operation::READDIR => {
            let (span, _) = Span::ref_from_prefix(arguments).ok()?;
            Asked::ReadDirectory { offset: span.offset.get(), length: span.length.get() }
        }
        operation::READ => {
            let (span, _) = Span::ref_from_prefix(arguments).ok()?;
            Asked::Read { offset: span.offset.get(), length: span.length.get() }
        }
        operation::WRITE => {
            let (span, data) = Span::ref_from_prefix(arguments).ok()?;
            let range = bytes.len() - data.len()..bytes.len();
            (span.length.get() as usize == data.len()).then_some(())?;
            Asked::Write { offset: span.offset.get(), range }
        }
        operation::FSYNC => Asked::Sync,
        operation::FALLOCATE => {
            let (allocate, _) = AllocateArguments::ref_from_prefix(arguments).ok()?;
            let (offset, length) = (allocate.offset.get(), allocate.length.get());
            Asked::Allocate { offset, length, mode: allocate.mode.get() }
        }
        operation::STATFS => Asked::FileSystem,
        operation::RELEASE | operation::FLUSH | operation::RELEASEDIR | operation::DESTROY => {
            Asked::End
        }
        operation::FORGET | operation::BATCH_FORGET | operation::INTERRUPT => Asked::Note,
        _ => Asked::Other,
    };
    Some(Request { unique: head.unique.get(), node: head.node.get(), asked })
}

/// Returns the length of a message or a part of one, which cannot exceed the longest request.
fn length(bytes: usize) -> U32 {
    U32::new(u32::try_from(bytes).expect("messages are far shorter than 4 GiB"))
}

impl ReplyHead {
    /// Returns the header of a result of `bytes` bytes.
    pub(super) fn good(unique: u64, bytes: usize) -> Self {
        let bytes = length(size_of::<Self>() + bytes);
        Self { bytes, status: I32::ZERO, unique: unique.into() }
    }

    /// Returns the header of an error.
    pub(super) fn bad(unique: u64, errno: Errno) -> Self {
        Self { status: I32::new(-errno.raw_os_error()), ..Self::good(unique, 0) }
    }
}

impl WriteReply {
    /// Returns the reply to a write of `bytes` bytes.
    pub(super) fn new(unique: u64, bytes: usize) -> Self {
        let written = Written { length: length(bytes), padding: U32::ZERO };
        Self { head: ReplyHead::good(unique, size_of::<Written>()), written }
    }
}

impl Init {
    /// Returns the answer to the kernel's first request. Limits requests to `bytes_max` of data, in
    /// whole pages, and background requests, which include all asynchronous direct I/O, to
    /// `background_max` in flight.
    pub(super) fn new(
        max_readahead: u32,
        flags: u32,
        bytes_max: usize,
        background_max: u16,
    ) -> Self {
        Self {
            major: VERSION.0.into(),
            minor: VERSION.1.into(),
            max_readahead: max_readahead.into(),
            flags: flags.into(),
            max_background: background_max.into(),
            congestion_threshold: background_max.into(),
            max_write: length(bytes_max),
            time_granularity_ns: 1.into(),
            max_pages: U16::new(u16::try_from(bytes_max / 4096).expect("at most 256 MiB")),
            ..Self::new_zeroed()
        }
    }
}

impl Attributes {
    /// Returns attributes; `mode` is type and permissions, as in `stat`.
    pub(super) fn new(node: u64, size_bytes: u64, mode: u32, links: u32, block_bytes: u32) -> Self {
        Self {
            node: node.into(),
            size_bytes: size_bytes.into(),
            sectors: U64::new(size_bytes / 512),
            mode: mode.into(),
            links: links.into(),
            block_bytes: block_bytes.into(),
            ..Self::new_zeroed()
        }
    }

    /// Returns the answer to [`Asked::Attributes`].
    pub(super) fn valid(self) -> ValidAttributes {
        let zeroed = ValidAttributes::new_zeroed();
        ValidAttributes { seconds: VALID_SECONDS, attributes: self, ..zeroed }
    }

    /// Returns the answer to [`Asked::Lookup`].
    pub(super) fn entry(self) -> Entry {
        Entry {
            node: self.node,
            entry_seconds: VALID_SECONDS,
            attributes_seconds: VALID_SECONDS,
            attributes: self,
            ..Entry::new_zeroed()
        }
    }

    /// Returns the answer to [`Asked::ReadDirectory`] with this entry; the next one is at `next`.
    pub(super) fn listed(self, name: &str, next: u64) -> Vec<u8> {
        let head = DirectoryHead {
            node: self.node,
            next: next.into(),
            name_bytes: length(name.len()),
            // Without the permissions.
            kind: U32::new(self.mode.get() >> 12),
        };
        let mut listed = [head.as_bytes(), name.as_bytes()].concat();
        listed.resize(listed.len().next_multiple_of(8), 0);
        listed
    }
}

impl Opened {
    pub(super) fn new(flags: u32) -> Self {
        Self { flags: flags.into(), ..Self::new_zeroed() }
    }
}

impl FileSystem {
    /// Returns the statistics of a file system with one file of `blocks` blocks; nothing is free.
    pub(super) fn new(blocks: u64, block_bytes: u32, name_bytes_max: usize) -> Self {
        Self {
            blocks: blocks.into(),
            files: 1.into(),
            block_bytes: block_bytes.into(),
            fragment_bytes: block_bytes.into(),
            name_bytes_max: length(name_bytes_max),
            ..Self::new_zeroed()
        }
    }
}
