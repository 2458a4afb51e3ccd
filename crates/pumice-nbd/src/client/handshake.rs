//! The client's side of the handshake: from the server's greeting to an export.
//!
//! ```text
//! greeting -> flags -> GO (name; asks for BLOCK_SIZE) -> INFO .. -> ACK           -> transmission
//!                        |                              -> other error -> ABORT   -> refused
//!                        +-> ERR_UNSUP, or no fixed newstyle -> EXPORT_NAME       -> transmission
//! ```
//!
//! Negotiates neither TLS nor structured replies nor metadata contexts, so that all replies of the
//! transmission phase are simple ones; `allocation` negotiates its own features before GO. No input
//! from the server is trusted: the number of answers and their lengths are limited, invalid sizes
//! are refused, and messages are escaped before they become part of an error. The caller limits the
//! time.

#![expect(
    clippy::cast_possible_truncation,
    reason = "a name has at most 4096 bytes and a block 4 KiB"
)]

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::super::incoming::{BUFFER_BYTES, Incoming};
use super::super::request::PAYLOAD_BYTES_MAX;
use super::super::wire::{
    self, Information, OptionHeader, OptionReply, info, option, reply, transmission,
};
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::runtime::Runtime;

/// Maximum number of answers to one option. Servers send one for each of the protocol's four kinds
/// of information.
const ANSWERS_MAX: usize = 64;

/// Maximum number of characters of a server's message in an error.
const MESSAGE_CHARS_MAX: usize = 200;

/// Largest minimum block size in bytes, according to the protocol ("Size constraints").
const BLOCK_BYTES_MIN_MAX: u32 = 64 << 10;

/// The features and limits of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Changes are refused.
    pub is_read_only: bool,
    /// Supports FLUSH.
    pub has_flush: bool,
    /// Supports FUA.
    pub has_fua: bool,
    /// Supports TRIM.
    pub has_trim: bool,
    /// Supports WRITE_ZEROES.
    pub has_write_zeroes: bool,
    /// A flush on one connection covers the writes of others, so a client may use several.
    pub has_multi_conn: bool,
    /// Offsets and lengths must be multiples of this: a power of two, or 1 if the server does not
    /// announce it.
    pub block_bytes_min: u32,
    /// Multiples of this are fast: a power of two, or 4096 if the server does not announce it.
    pub block_bytes_preferred: u32,
    /// Longest payload of one request: a multiple of the minimum block size, at most 32 MiB, and 32
    /// MiB if the server does not announce it.
    pub payload_bytes_max: u32,
}

/// An export, as described by its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Export {
    /// At most `i64::MAX`.
    pub(super) size_bytes: u64,
    pub(super) capabilities: Capabilities,
}

impl Export {
    fn new(size_bytes: u64, flags: u16) -> Result<Self> {
        if i64::try_from(size_bytes).is_err() {
            return Err(violation(format!("export size of {size_bytes} bytes")));
        }
        // Without HAS_FLAGS the other flags are undefined.
        let has = |flag| flags & transmission::HAS_FLAGS != 0 && flags & flag != 0;
        let capabilities = Capabilities {
            is_read_only: has(transmission::READ_ONLY),
            has_flush: has(transmission::SEND_FLUSH),
            has_fua: has(transmission::SEND_FUA),
            has_trim: has(transmission::SEND_TRIM),
            has_write_zeroes: has(transmission::SEND_WRITE_ZEROES),
            has_multi_conn: has(transmission::CAN_MULTI_CONN),
            block_bytes_min: 1,
            block_bytes_preferred: BLOCK_BYTES as u32,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
        };
        Ok(Self { size_bytes, capabilities })
    }

    fn constrain(&mut self, min: u32, preferred: u32, payload_max: u32) -> Result<()> {
        let is_sane = min.is_power_of_two()
            && min <= BLOCK_BYTES_MIN_MAX
            && preferred.is_power_of_two()
            && preferred >= min
            && payload_max >= min;
        if !is_sane {
            let what = format!("block sizes of {min}, {preferred} and {payload_max} bytes");
            return Err(violation(what));
        }
        let capabilities = &mut self.capabilities;
        capabilities.block_bytes_min = min;
        capabilities.block_bytes_preferred = preferred;
        capabilities.payload_bytes_max = payload_max.min(PAYLOAD_BYTES_MAX) / min * min;
        Ok(())
    }
}

/// Returns the error for a server that violates the protocol.
pub(super) fn violation(what: impl Into<String>) -> Error {
    let what = format!("the server violates the protocol: {}", what.into());
    Error::new(ErrorKind::Unsupported, what)
}

pub(super) fn broken(error: io::Error) -> Error {
    let what = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the server closed the connection during the handshake",
        _ => "the handshake failed",
    };
    Error::new(ErrorKind::Io, what).caused_by(error)
}

/// A connection before its transmission phase.
pub(super) struct Handshake<'a> {
    pub(super) runtime: &'a Runtime,
    pub(super) socket: &'a Arc<OwnedFd>,
    pub(super) incoming: &'a mut Incoming,
    /// Name of the requested export.
    pub(super) export: &'a str,
}

impl Handshake<'_> {
    /// Negotiates an export. Requests may follow.
    ///
    /// # Errors
    /// `NotFound` if there is no such export, `PermissionDenied` if the server refuses it,
    /// `Unsupported` if it requires TLS or violates the protocol, `Io` if the connection ends.
    pub(super) async fn negotiate(mut self) -> Result<Export> {
        let flags = self.greet().await?;
        if flags & wire::FLAG_FIXED_NEWSTYLE != 0
            && let Some(export) = self.go().await?
        {
            return Ok(export);
        }
        self.export_name(flags & wire::FLAG_NO_ZEROES == 0).await
    }

    /// Receives the greeting and answers it. Returns the flags common to both sides.
    ///
    /// # Errors
    /// `Unsupported` if the other side is not a newstyle server.
    pub(super) async fn greet(&mut self) -> Result<u16> {
        let greeting = self.take::<{ wire::GREETING_BYTES }>().await?;
        let offered = wire::decode_greeting(&greeting).ok_or_else(|| {
            let what =
                "the other side is not an NBD server, or supports only the oldstyle handshake";
            Error::new(ErrorKind::Unsupported, what)
        })?;
        let flags = offered & (wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
        self.send(&u32::from(flags).to_be_bytes()).await?;
        Ok(flags)
    }

    /// Sends GO. Returns `None` if the server does not support it.
    pub(super) async fn go(&mut self) -> Result<Option<Export>> {
        let wanted_name = self.export;
        let name = wanted_name.as_bytes();
        let length = (name.len() as u32).to_be_bytes();
        let wanted = [1u16.to_be_bytes(), info::BLOCK_SIZE.to_be_bytes()].concat();
        self.send_option(option::GO, &[&length, name, &wanted].concat()).await?;
        let (mut export, mut constraints) = (None, None);
        for _ in 0..ANSWERS_MAX {
            let (kind, data) = self.answer(option::GO).await?;
            match kind {
                reply::INFO => match Information::decode(data) {
                    None => return Err(violation("information with a wrong length")),
                    Some(Information::Export { size_bytes, flags }) => {
                        export = Some(Export::new(size_bytes, flags)?);
                    }
                    Some(Information::BlockSize { min, preferred, payload_max }) => {
                        constraints = Some((min, preferred, payload_max));
                    }
                    Some(Information::Other) => {}
                },
                reply::ACK => {
                    let mut export = export.ok_or_else(|| violation("no export size"))?;
                    if let Some((min, preferred, payload_max)) = constraints {
                        export.constrain(min, preferred, payload_max)?;
                    }
                    return Ok(Some(export));
                }
                reply::ERR_UNSUP => return Ok(None),
                kind => {
                    let refused = refusal(kind, wanted_name, data);
                    // An orderly end. The server may have vanished, and its answer would add
                    // nothing.
                    let _ = self.send_option(option::ABORT, &[]).await;
                    return Err(refused);
                }
            }
        }
        Err(violation("too many answers"))
    }

    /// Sends EXPORT_NAME, which a server can only refuse by closing the connection.
    async fn export_name(&mut self, expects_zeroes: bool) -> Result<Export> {
        self.send_option(option::EXPORT_NAME, self.export.as_bytes()).await?;
        let answer = self.take::<{ wire::EXPORT_BYTES }>().await.map_err(|error| {
            let what = format!("the server may have no export '{}'", self.export);
            Error::new(ErrorKind::NotFound, what).caused_by(error)
        })?;
        let (size_bytes, flags) = wire::decode_export(&answer)
            .ok_or_else(|| violation("malformed answer to EXPORT_NAME"))?;
        if expects_zeroes {
            self.incoming.skip(wire::EXPORT_NAME_ZEROES).await.map_err(broken)?;
        }
        Export::new(size_bytes, flags)
    }

    /// Returns the next answer to `option`: its type and data.
    pub(super) async fn answer(&mut self, option: u32) -> Result<(u32, &[u8])> {
        let header = self.take::<{ wire::OPTION_REPLY_BYTES }>().await?;
        let Some(OptionReply { option: answered, kind, length }) = OptionReply::decode(&header)
        else {
            return Err(violation("wrong magic in an answer"));
        };
        if answered != option {
            return Err(violation(format!("an answer to option {answered}, not {option}")));
        }
        let length = length as usize;
        if length > BUFFER_BYTES {
            return Err(violation(format!("answer of {length} bytes")));
        }
        self.incoming.fill(length).await.map_err(broken)?;
        Ok((kind, self.incoming.take(length)))
    }

    async fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.incoming.peek::<N>().await.map_err(broken)?;
        self.incoming.consume(N);
        Ok(bytes)
    }

    pub(super) async fn send_option(&self, option: u32, data: &[u8]) -> Result<()> {
        let header = OptionHeader { option, length: data.len() as u32 }.encode();
        self.send(&[&header, data].concat()).await
    }

    async fn send(&self, message: &[u8]) -> Result<()> {
        send(self.runtime, self.socket, message).await
    }
}

/// Sends an entire message.
///
/// # Errors
/// `Io` if the connection ends.
pub(super) async fn send(runtime: &Runtime, socket: &Arc<OwnedFd>, message: &[u8]) -> Result<()> {
    let (mut buffer, mut sent) = (message.to_vec(), 0);
    while sent < message.len() {
        let (back, result) = runtime.send(socket, buffer, sent..message.len()).await;
        buffer = back;
        match result {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => sent += result.map_err(broken)?,
        }
    }
    Ok(())
}

/// Returns the error for a server that refuses the export.
fn refusal(kind: u32, export: &str, data: &[u8]) -> Error {
    let said = String::from_utf8_lossy(data);
    let said: String = said.chars().take(MESSAGE_CHARS_MAX).collect();
    let (kind, what) = match kind {
        reply::ERR_UNKNOWN => (ErrorKind::NotFound, "the server has no such export".to_owned()),
        reply::ERR_POLICY => (ErrorKind::PermissionDenied, "the server refuses access".to_owned()),
        reply::ERR_TLS_REQD => (
            ErrorKind::Unsupported,
            "the server requires TLS, which is not supported yet".to_owned(),
        ),
        reply::ERR_SHUTDOWN => (ErrorKind::Io, "the server is shutting down".to_owned()),
        other => (ErrorKind::Io, format!("the server answers with option error {other:#x}")),
    };
    let said = if said.is_empty() { said } else { format!(" ('{}')", said.escape_debug()) };
    Error::new(kind, format!("cannot use export '{}': {what}{said}", export.escape_debug()))
}
