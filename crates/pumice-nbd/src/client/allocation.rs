//! The holes of an export, obtained with `BLOCK_STATUS` in the context `base:allocation`.
//!
//! ```text
//! greeting -> flags -> STRUCTURED_REPLY -> SET_META_CONTEXT -> GO -> BLOCK_STATUS .. -> DISC
//!                         +-- refused ------+-- refused or no such context -> None
//! ```
//!
//! Uses a connection of its own, with one request at a time: the client's other connections have
//! simple replies only, because their handshake negotiates nothing else. No input from the server
//! is trusted: lengths are limited, an extent beyond the request is cut, and a server that makes no
//! progress causes an error.

#![expect(
    clippy::cast_possible_truncation,
    reason = "a request is at most 1 GiB long, and a query is a constant"
)]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::super::channel::Channel;
use super::super::incoming::{BUFFER_BYTES, Incoming};
use super::super::wire::{self, Fields, Request, command, option, reply};
use super::connect::connect;
use super::handshake::{Export, Handshake, broken, violation};
use super::uri::Uri;
use super::verbs::Unfinished;
use crate::disk::Content;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::runtime::Runtime;

/// The context, and the bits of its status. Source: doc/proto.md, "base:allocation".
const CONTEXT: &[u8] = b"base:allocation";
const STATE_HOLE: u32 = 1 << 0;
const STATE_ZERO: u32 = 1 << 1;

/// Longest range of one request in bytes: a multiple of every possible minimum block size.
const RANGE_BYTES_MAX: u64 = 1 << 30;

/// Longest payload of a chunk in bytes: qemu-nbd sends a megabyte of extents, and every server less
/// than four.
const CHUNK_BYTES_MAX: u32 = 4 << 20;

/// Maximum number of chunks of one reply. Two suffice: one with extents, and one that ends the
/// reply.
const CHUNKS_MAX: usize = 16;

/// Maximum number of answers to one option.
const ANSWERS_MAX: usize = 64;

/// `magic u32 | flags u16 | type u16 | cookie u64 | length u32`.
const CHUNK_HEADER_BYTES: usize = 20;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
const FLAG_DONE: u32 = 1 << 0;
const KIND_BLOCK_STATUS: u32 = 5;
const KIND_ERROR: u32 = 1 << 15;

/// Calls `visit` for the extents of an export in order, each with its length in bytes and its
/// content, until `visit` returns false or the export ends. Adjacent extents may be of the same
/// kind. Returns false, without a call, if the server does not report extents. Must be called in a
/// task of `runtime`.
///
/// A hole is a range that the server has not allocated *and* that reads as zeroes; allocated zeroes
/// are [`Content::Zeroes`].
///
/// # Errors
/// The errors of [`super::Client::connect`]; `Busy` if the server takes longer than `limit_ns` in
/// total; errors of the server.
pub async fn allocation(
    runtime: &Runtime,
    uri: &Uri,
    limit_ns: u64,
    visit: impl FnMut(u64, Content) -> bool,
) -> Result<bool> {
    let told = runtime.timeout(limit_ns, tell(runtime, uri, visit)).await;
    let told = told.unwrap_or_else(|| {
        let what = format!("no end within {} s", limit_ns as f64 / 1e9);
        Err(Error::new(ErrorKind::Busy, what))
    });
    told.map_err(|error| {
        let what = format!("cannot read the allocation map of {uri}");
        Error::new(error.kind(), what).caused_by(error)
    })
}

async fn tell(
    runtime: &Runtime,
    uri: &Uri,
    visit: impl FnMut(u64, Content) -> bool,
) -> Result<bool> {
    let socket = connect(&uri.server).await;
    let socket = Arc::new(socket.map_err(|error| Error::os("cannot connect", error))?);
    // The connection ends with this call, even on timeout.
    let _unfinished = Unfinished(Some(socket.clone()));
    let mut incoming = Incoming::new(Channel::new(runtime.clone(), socket.clone()));
    let handshake =
        Handshake { runtime, socket: &socket, incoming: &mut incoming, export: uri.export() };
    let Some((export, context)) = handshake.negotiate_allocation().await? else {
        return Ok(false);
    };
    let mut asking = Asking { runtime, socket: &socket, incoming, context, visit };
    asking.all(&export).await?;
    Ok(true)
}

impl Handshake<'_> {
    /// Negotiates structured replies and the context. Returns the export and the identifier of the
    /// context, or `None` if the server lacks either.
    ///
    /// # Errors
    /// The errors of [`Handshake::negotiate`].
    async fn negotiate_allocation(mut self) -> Result<Option<(Export, u32)>> {
        if self.greet().await? & wire::FLAG_FIXED_NEWSTYLE == 0 {
            return Ok(None);
        }
        self.send_option(option::STRUCTURED_REPLY, &[]).await?;
        if self.answer(option::STRUCTURED_REPLY).await?.0 != reply::ACK {
            let _ = self.send_option(option::ABORT, &[]).await;
            return Ok(None);
        }
        let name = self.export.as_bytes();
        let length = |bytes: &[u8]| (bytes.len() as u32).to_be_bytes();
        let (name_length, query_length) = (length(name), length(CONTEXT));
        let parts: [&[u8]; 5] = [&name_length, name, &1u32.to_be_bytes(), &query_length, CONTEXT];
        self.send_option(option::SET_META_CONTEXT, &parts.concat()).await?;
        let mut context = None;
        for _ in 0..ANSWERS_MAX {
            let (kind, data) = self.answer(option::SET_META_CONTEXT).await?;
            match kind {
                reply::META_CONTEXT => {
                    let mut fields = Fields(data);
                    let id = fields.u32().ok_or_else(|| violation("a short metadata context"))?;
                    if fields.0 == CONTEXT {
                        context = Some(id);
                    }
                }
                reply::ACK => {
                    let Some(context) = context else { break };
                    let export = self.go().await?;
                    return Ok(export.map(|export| (export, context)));
                }
                // If the export does not exist, the next connection is refused too, with a message.
                _ => break,
            }
        }
        let _ = self.send_option(option::ABORT, &[]).await;
        Ok(None)
    }
}

/// The requests of one connection.
struct Asking<'a, V> {
    runtime: &'a Runtime,
    socket: &'a Arc<OwnedFd>,
    incoming: Incoming,
    context: u32,
    visit: V,
}

/// The progress of one reply.
struct Told {
    /// The end of the last extent.
    end: u64,
    /// Whether the visitor wants more.
    wants_more: bool,
}

impl<V: FnMut(u64, Content) -> bool> Asking<'_, V> {
    async fn all(&mut self, export: &Export) -> Result<()> {
        let block = u64::from(export.capabilities.block_bytes_min);
        // A size that is not a multiple of the minimum block size has a tail that no request can
        // cover.
        let size = export.size_bytes / block * block;
        let (mut at, mut cookie) = (0, 0);
        while at < size {
            let length = (size - at).min(RANGE_BYTES_MAX);
            cookie += 1;
            let request =
                Request { flags: 0, command: command::BLOCK_STATUS, cookie, offset: at, length };
            self.send(&request).await?;
            let told = self.reply(cookie, at..at + length).await?;
            if !told.wants_more {
                break;
            }
            // Only whole blocks count, so that the next request begins at one.
            let end = told.end / block * block;
            if end <= at {
                return Err(violation("a block status without an extent"));
            }
            at = end;
        }
        let end = Request { flags: 0, command: command::DISC, cookie: 0, offset: 0, length: 0 };
        // All extents are known, so it does not matter how the server ends the connection.
        let _ = self.send(&end).await;
        Ok(())
    }

    /// Receives the chunks of one reply.
    async fn reply(&mut self, cookie: u64, range: std::ops::Range<u64>) -> Result<Told> {
        let mut told = Told { end: range.start, wants_more: true };
        for _ in 0..CHUNKS_MAX {
            let header = self.incoming.peek::<CHUNK_HEADER_BYTES>().await.map_err(broken)?;
            self.incoming.consume(CHUNK_HEADER_BYTES);
            let chunk =
                Chunk::decode(&header).ok_or_else(|| violation("not a structured reply"))?;
            if chunk.cookie != cookie || chunk.length > CHUNK_BYTES_MAX {
                return Err(violation("a reply to no request, or of invalid length"));
            }
            if chunk.kind & KIND_ERROR != 0 {
                return Err(self.error(chunk.length).await?);
            }
            if chunk.kind == KIND_BLOCK_STATUS {
                self.extents(chunk.length, &range, &mut told).await?;
            } else {
                self.incoming.skip(chunk.length as usize).await.map_err(broken)?;
            }
            if chunk.is_last {
                return Ok(told);
            }
        }
        Err(violation("a reply of too many chunks"))
    }

    /// Receives `context u32 | (length u32 | status u32)...`.
    async fn extents(
        &mut self,
        length: u32,
        range: &std::ops::Range<u64>,
        told: &mut Told,
    ) -> Result<()> {
        if length < 4 || !(length - 4).is_multiple_of(8) {
            return Err(violation("extents of a wrong length"));
        }
        let context = u32::from_be_bytes(self.take().await?);
        for _ in 0..(length - 4) / 8 {
            let extent: [u8; 8] = self.take().await?;
            let mut fields = Fields(&extent);
            let (Some(bytes), Some(status)) = (fields.u32(), fields.u32()) else { break };
            // The last extent may extend beyond the request.
            let bytes = u64::from(bytes).min(range.end - told.end);
            if context != self.context || bytes == 0 || !told.wants_more {
                continue;
            }
            let content = match (status & STATE_HOLE != 0, status & STATE_ZERO != 0) {
                (true, true) => Content::Hole,
                (false, true) => Content::Zeroes,
                // An unallocated range may still read as arbitrary data.
                (_, false) => Content::Data,
            };
            told.end += bytes;
            told.wants_more = (self.visit)(bytes, content);
        }
        Ok(())
    }

    /// Receives the error of a failed request: `error u32 | length u16 | message`.
    async fn error(&mut self, length: u32) -> Result<Error> {
        let length = (length as usize).min(BUFFER_BYTES);
        self.incoming.fill(length).await.map_err(broken)?;
        let value = Fields(self.incoming.take(length)).u32().unwrap_or_default();
        let kind = wire::Errno::from_wire(value).known().unwrap_or(ErrorKind::InvalidInput);
        Ok(Error::new(kind, format!("the server answers with error {value}")))
    }

    async fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.incoming.peek::<N>().await.map_err(broken)?;
        self.incoming.consume(N);
        Ok(bytes)
    }

    async fn send(&self, request: &Request) -> Result<()> {
        super::handshake::send(self.runtime, self.socket, &request.encode()).await
    }
}

/// The header of a structured reply's chunk.
struct Chunk {
    is_last: bool,
    kind: u32,
    cookie: u64,
    length: u32,
}

impl Chunk {
    /// Decodes a header; `None` if the magic is wrong.
    fn decode(bytes: &[u8; CHUNK_HEADER_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u32()? != STRUCTURED_REPLY_MAGIC {
            return None;
        }
        let flags_and_kind = fields.u32()?;
        let cookie = u64::from(fields.u32()?) << 32 | u64::from(fields.u32()?);
        Some(Self {
            is_last: flags_and_kind >> 16 & FLAG_DONE != 0,
            kind: flags_and_kind & 0xffff,
            cookie,
            length: fields.u32()?,
        })
    }
}
