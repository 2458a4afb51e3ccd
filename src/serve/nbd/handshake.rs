//! The fixed newstyle handshake: from the greeting to the transmission phase, or to the end.
//!
//! Serves one export under two names: the configured one and the default, empty one. Offers
//! neither TLS nor structured replies nor metadata contexts: those options, and unknown ones, are
//! answered as unsupported and the client goes on without.
//!
//! Bounded in every direction: data of an option, number of options, and (by the caller) time.

use std::io;

use super::Options;
use super::incoming::{BUFFER_BYTES, Incoming};
use super::replies::Replies;
use super::request::{PAYLOAD_BYTES_MAX, Shape};
use super::wire::{self, InfoRequest, OptionHeader, info, option, reply, transmission};
use crate::base::units::BLOCK_BYTES;

/// Longest data of an option in bytes; a longer one ends the connection. A name has at most 4 KiB
/// by the protocol; what fits the receive buffer costs nothing to allow.
const OPTION_BYTES_MAX: usize = BUFFER_BYTES;

/// Options in one handshake. Clients ask about ten; a client that walks a list may ask once for
/// each export, and here there is one.
const OPTIONS_MAX: usize = 256;

/// Smallest block announced, in bytes: a disk sector. Smaller requests work all the same.
const BLOCK_BYTES_MIN: u32 = 512;

/// How a handshake ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The client chose the export; its requests follow.
    Transmission,
    /// The client left politely.
    Aborted,
    /// The client broke the protocol or asked for what cannot be refused politely.
    Violation(&'static str),
}

/// What is told about the export.
pub(super) struct Export<'a> {
    pub(super) options: &'a Options,
    pub(super) shape: Shape,
}

/// Negotiates; `is_shutting_down` is asked before each option.
///
/// # Errors
/// The stream ended or broke.
pub(super) async fn negotiate(
    incoming: &mut Incoming,
    replies: &Replies,
    export: &Export<'_>,
    is_shutting_down: impl Fn() -> bool,
) -> io::Result<Outcome> {
    send(replies, &wire::encode_greeting()).await;
    let flags = u32::from_be_bytes(incoming.peek::<{ wire::CLIENT_FLAGS_BYTES }>().await?);
    incoming.consume(wire::CLIENT_FLAGS_BYTES);
    if flags & !u32::from(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES) != 0 {
        return Ok(Outcome::Violation("unknown client flags"));
    }
    let wants_zeroes = flags & u32::from(wire::FLAG_NO_ZEROES) == 0;
    let mut out = Vec::new();
    for _ in 0..OPTIONS_MAX {
        let Some(header) = OptionHeader::decode(&incoming.peek().await?) else {
            return Ok(Outcome::Violation("an option without its magic"));
        };
        let length = header.length as usize;
        if length > OPTION_BYTES_MAX {
            return Ok(Outcome::Violation("an option above the size limit"));
        }
        incoming.consume(wire::OPTION_BYTES);
        incoming.fill(length).await?;
        let data = &incoming.unread()[..length];
        out.clear();
        let outcome = if is_shutting_down() && header.option != option::ABORT {
            let message = b"the server is shutting down";
            wire::append_option_reply(&mut out, header.option, reply::ERR_SHUTDOWN, &[message]);
            None
        } else {
            export.answer(header.option, data, wants_zeroes, &mut out)
        };
        incoming.consume(length);
        send(replies, &out).await;
        if let Some(outcome) = outcome {
            return Ok(outcome);
        }
    }
    Ok(Outcome::Violation("too many options"))
}

async fn send(replies: &Replies, message: &[u8]) {
    replies.append(message);
    drop(replies.turn().await);
}

impl Export<'_> {
    /// Appends the answer to one option; an outcome if the handshake ends with it.
    fn answer(
        &self,
        option: u32,
        data: &[u8],
        wants_zeroes: bool,
        out: &mut Vec<u8>,
    ) -> Option<Outcome> {
        match option {
            option::EXPORT_NAME if !self.is_named(data) => {
                return Some(Outcome::Violation("an unknown export name"));
            }
            option::EXPORT_NAME => {
                out.extend_from_slice(&self.shape.size_bytes.to_be_bytes());
                out.extend_from_slice(&self.transmission_flags().to_be_bytes());
                out.resize(out.len() + if wants_zeroes { wire::EXPORT_NAME_ZEROES } else { 0 }, 0);
                return Some(Outcome::Transmission);
            }
            option::ABORT => {
                wire::append_option_reply(out, option, reply::ACK, &[]);
                return Some(Outcome::Aborted);
            }
            option::LIST => self.answer_list(data, out),
            option::INFO | option::GO => {
                if self.answer_info(option, data, out) && option == option::GO {
                    return Some(Outcome::Transmission);
                }
            }
            _ => {
                let message = b"this server does not support that option";
                wire::append_option_reply(out, option, reply::ERR_UNSUP, &[message]);
            }
        }
        None
    }

    fn answer_list(&self, data: &[u8], out: &mut Vec<u8>) {
        if !data.is_empty() {
            let message = b"the list option takes no data";
            wire::append_option_reply(out, option::LIST, reply::ERR_INVALID, &[message]);
            return;
        }
        let name = self.options.export_name.as_bytes();
        let length = (name.len() as u32).to_be_bytes();
        let entry: [&[u8]; 3] = [&length, name, self.options.description.as_bytes()];
        wire::append_option_reply(out, option::LIST, reply::SERVER, &entry);
        wire::append_option_reply(out, option::LIST, reply::ACK, &[]);
    }

    /// Whether the answer is a success.
    fn answer_info(&self, option: u32, data: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(request) = InfoRequest::decode(data) else {
            let message = b"the lengths in the option do not add up";
            wire::append_option_reply(out, option, reply::ERR_INVALID, &[message]);
            return false;
        };
        if !self.is_named(request.name) {
            let message = format!("no such export: this one is '{}'", self.options.export_name);
            wire::append_option_reply(out, option, reply::ERR_UNKNOWN, &[message.as_bytes()]);
            return false;
        }
        let mut inform = |kind: u16, data: [&[u8]; 3]| {
            let [first, second, third] = data;
            let parts = [&kind.to_be_bytes(), first, second, third];
            wire::append_option_reply(out, option, reply::INFO, &parts);
        };
        let size = self.shape.size_bytes.to_be_bytes();
        inform(info::EXPORT, [&size, &self.transmission_flags().to_be_bytes(), &[]]);
        if request.wants_name {
            inform(info::NAME, [self.options.export_name.as_bytes(), &[], &[]]);
        }
        if request.wants_description {
            inform(info::DESCRIPTION, [self.options.description.as_bytes(), &[], &[]]);
        }
        if request.wants_block_size {
            let [least, preferred, most] =
                [BLOCK_BYTES_MIN, BLOCK_BYTES as u32, PAYLOAD_BYTES_MAX].map(u32::to_be_bytes);
            inform(info::BLOCK_SIZE, [&least, &preferred, &most]);
        }
        wire::append_option_reply(out, option, reply::ACK, &[]);
        true
    }

    fn is_named(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.options.export_name.as_bytes()
    }

    /// All connections see one disk and one flush covers them all: clients may use several.
    fn transmission_flags(&self) -> u16 {
        let flags = transmission::HAS_FLAGS
            | transmission::SEND_FLUSH
            | transmission::SEND_FUA
            | transmission::SEND_TRIM
            | transmission::SEND_WRITE_ZEROES
            | transmission::SEND_CACHE
            | transmission::CAN_MULTI_CONN;
        if self.shape.is_read_only { flags | transmission::READ_ONLY } else { flags }
    }
}
