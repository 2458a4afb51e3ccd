//! The server's side of the fixed newstyle handshake: from the greeting to the transmission phase,
//! or to the end.
//!
//! ```text
//! greeting -> haggling -+-> transmission, in the dialect and on the export agreed on
//!               ^       +-> the end
//!               |       |
//!               +- TLS <+ STARTTLS       (everything agreed on before is forgotten)
//! ```
//!
//! The state of option haggling is in [`Haggling`], which is created anew after STARTTLS: nothing
//! negotiated in plain text, by the client or by an attacker between the two, counts afterwards. If
//! TLS is required, the server reveals nothing about its exports before TLS starts.
//!
//! Limited: the data of an option, the number of options, and (by the caller) the time.

#![expect(
    clippy::cast_possible_truncation,
    reason = "names and messages have at most 4096 bytes, and a block 4 KiB"
)]
#![expect(
    clippy::indexing_slicing,
    reason = "`find` returns a valid position, and `fill` has received the sliced bytes"
)]

use std::io;

use super::chunks::Headers;
use super::contexts::{CHANGES_MAX, Changes, ContextRequest, Selection};
use super::export::Offer;
use super::incoming::{BUFFER_BYTES, Incoming};
use super::replies::Replies;
use super::request::{Dialect, PAYLOAD_BYTES_MAX, Shape};
use super::wire::{self, InfoRequest, OptionHeader, info, option, reply, transmission};
use pumice_drive::base::units::BLOCK_BYTES;

/// Longest data of an option in bytes; longer data ends the connection. The limit is the length of
/// the receive buffer, so it needs no additional memory.
const OPTION_BYTES_MAX: usize = BUFFER_BYTES;

/// Longest name of an export in bytes, according to the protocol ("Conventions").
const NAME_BYTES_MAX: usize = 4096;

/// Maximum number of options in one haggling phase. Clients send about ten; a client that walks a
/// list may send a few more for each export.
const OPTIONS_MAX: usize = 1024;

/// Announced minimum block size, in bytes. Requests need no alignment, and clients that respect a
/// larger number would refuse unaligned ones before they are sent.
const BLOCK_BYTES_MIN: u32 = 1;

/// The result of option haggling.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The client chose the export at this position; requests follow.
    Transmission(usize, Dialect),
    /// The client starts TLS now, and option haggling starts again.
    StartTls,
    /// The client sent ABORT.
    Aborted,
    /// The client violated the protocol, or sent an option that has no error reply.
    Violation(&'static str),
}

/// The offered exports, and the conditions of their use.
pub(super) struct Terms<'a> {
    pub(super) offers: &'a [Offer<'a>],
    pub(super) security: Security,
    /// Whether the client may see the names of the exports.
    pub(super) shows_names: bool,
    /// Returns the reason why the client may not use the export at a position.
    pub(super) objection: &'a dyn Fn(usize) -> Option<&'static str>,
    /// Called when the client is refused an export, with the requested name and the reason.
    pub(super) refused: &'a dyn Fn(&str, &str),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ClientFlags {
    /// Whether the client understands refusals of options, as TLS requires.
    is_fixed: bool,
    /// Whether zeroes follow the answer to `EXPORT_NAME`.
    wants_zeroes: bool,
}

/// The state of TLS on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Security {
    /// Plain text; the server has no TLS.
    Clear,
    /// Plain text; the client may start TLS.
    Offered,
    /// Plain text; the client must start TLS.
    Required,
    /// Encrypted.
    Encrypted,
}

/// Greets the client: the start of every connection.
///
/// Returns the flags of the client, or the reason for its refusal.
///
/// # Errors
/// The stream ended or failed.
pub(super) async fn greet(
    incoming: &mut Incoming,
    replies: &Replies,
) -> io::Result<Result<ClientFlags, &'static str>> {
    send(replies, &wire::encode_greeting()).await;
    let flags = u32::from_be_bytes(incoming.peek::<{ wire::CLIENT_FLAGS_BYTES }>().await?);
    incoming.consume(wire::CLIENT_FLAGS_BYTES);
    if flags & !u32::from(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES) != 0 {
        return Ok(Err("unknown client flags"));
    }
    Ok(Ok(ClientFlags {
        is_fixed: flags & u32::from(wire::FLAG_FIXED_NEWSTYLE) != 0,
        wants_zeroes: flags & u32::from(wire::FLAG_NO_ZEROES) == 0,
    }))
}

/// Answers options until one ends the haggling. Calls `is_shutting_down` before each option, and
/// `shape` before an option whose answer describes the export at a position. That export may have
/// ended.
///
/// # Errors
/// The stream ended or failed.
pub(super) async fn haggle(
    incoming: &mut Incoming,
    replies: &Replies,
    terms: &Terms<'_>,
    flags: ClientFlags,
    shape: impl AsyncFn(usize) -> Option<Shape>,
    is_shutting_down: impl Fn() -> bool,
) -> io::Result<Outcome> {
    let mut haggling =
        Haggling { terms, flags, headers: Headers::default(), selected: None, shape: None };
    let mut out = Vec::new();
    for _ in 0..OPTIONS_MAX {
        let Some(header) = OptionHeader::decode(&incoming.peek().await?) else {
            return Ok(Outcome::Violation("wrong magic in an option"));
        };
        let length = header.length as usize;
        if length > OPTION_BYTES_MAX {
            return Ok(Outcome::Violation("option exceeds the size limit"));
        }
        incoming.consume(wire::OPTION_BYTES);
        incoming.fill(length).await?;
        let data = &incoming.unread()[..length];
        haggling.shape = match haggling.wanted(header.option, data) {
            Some(index) => shape(index).await,
            None => None,
        };
        out.clear();
        let outcome = if is_shutting_down() && header.option == option::EXPORT_NAME {
            return Ok(Outcome::Violation("EXPORT_NAME during a shutdown"));
        } else if is_shutting_down() && header.option != option::ABORT {
            let message = b"the server is shutting down";
            wire::append_option_reply(&mut out, header.option, reply::ERR_SHUTDOWN, &[message]);
            None
        } else {
            haggling.answer(header.option, data, &mut out)
        };
        incoming.consume(length);
        // This is plain text that would be processed as if it had been encrypted: an attacker may
        // have inserted it.
        if outcome == Some(Outcome::StartTls) && !incoming.unread().is_empty() {
            return Ok(Outcome::Violation("clear text after STARTTLS"));
        }
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

/// Refusal of an option: type of the reply, and a human-readable message.
type Refusal = (u32, String);

/// The state of the negotiation.
struct Haggling<'a> {
    terms: &'a Terms<'a>,
    flags: ClientFlags,
    headers: Headers,
    /// The contexts selected last, and the position of their export.
    selected: Option<(usize, Selection)>,
    /// The shape of the export that the current option concerns.
    shape: Option<Shape>,
}

impl Haggling<'_> {
    /// Returns the position of the export whose shape the answer to an option contains.
    fn wanted(&self, option: u32, data: &[u8]) -> Option<usize> {
        let name = match option {
            _ if self.terms.security == Security::Required => return None,
            option::EXPORT_NAME => data,
            option::INFO | option::GO => InfoRequest::decode(data)?.name,
            _ => return None,
        };
        self.find(name).ok()
    }

    /// Appends the answer to one option. Returns an outcome if the option ends the haggling.
    fn answer(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Option<Outcome> {
        let acknowledge =
            |out: &mut Vec<u8>| wire::append_option_reply(out, option, reply::ACK, &[]);
        let answered = match option {
            option::ABORT => {
                acknowledge(out);
                return Some(Outcome::Aborted);
            }
            option::STARTTLS => match self.start_tls(data) {
                Ok(()) => {
                    acknowledge(out);
                    return Some(Outcome::StartTls);
                }
                Err(refusal) => Err(refusal),
            },
            option::EXPORT_NAME => return Some(self.export_name(data, out)),
            _ if self.terms.security == Security::Required => {
                Err((reply::ERR_TLS_REQD, "TLS is required: send STARTTLS first".into()))
            }
            option::LIST => self.list(data, out),
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => self.agree(option, data),
            option::LIST_META_CONTEXT => self.list_contexts(data, out),
            option::SET_META_CONTEXT => self.select_contexts(data, out),
            option::INFO | option::GO => match self.inform(option, data, out) {
                Ok(outcome) if option == option::GO => {
                    acknowledge(out);
                    return Some(outcome);
                }
                result => result.map(|_| ()),
            },
            _ => Err((reply::ERR_UNSUP, "option not supported".into())),
        };
        match answered {
            Ok(()) => acknowledge(out),
            Err((kind, message)) => {
                self.report(option, data, kind, &message);
                wire::append_option_reply(out, option, kind, &[message.as_bytes()]);
            }
        }
        None
    }

    /// Reports the refusal of an export.
    fn report(&self, option: u32, data: &[u8], kind: u32, message: &str) {
        if matches!(option, option::INFO | option::GO)
            && matches!(kind, reply::ERR_POLICY | reply::ERR_UNKNOWN)
            && let Some(request) = InfoRequest::decode(data)
        {
            (self.terms.refused)(&String::from_utf8_lossy(request.name), message);
        }
    }

    fn start_tls(&self, data: &[u8]) -> Result<(), Refusal> {
        match self.terms.security {
            _ if !data.is_empty() => Err(invalid("the option takes no data")),
            _ if !self.flags.is_fixed => Err(invalid("TLS needs the fixed newstyle handshake")),
            Security::Clear => {
                Err((reply::ERR_POLICY, "this server was started without TLS".into()))
            }
            Security::Encrypted => Err(invalid("the connection is already encrypted")),
            Security::Offered | Security::Required => Ok(()),
        }
    }

    /// Answers EXPORT_NAME, for which the protocol has no error reply.
    fn export_name(&self, name: &[u8], out: &mut Vec<u8>) -> Outcome {
        if self.terms.security == Security::Required {
            return Outcome::Violation("EXPORT_NAME before TLS");
        }
        if self.headers == Headers::Extended {
            return Outcome::Violation("EXPORT_NAME with extended headers");
        }
        let index = match self.find(name) {
            Ok(index) => index,
            Err((reply::ERR_POLICY, _)) => {
                return Outcome::Violation("EXPORT_NAME of an export that the client may not use");
            }
            Err(_) => return Outcome::Violation("unknown export name"),
        };
        let Some(shape) = self.shape else {
            return Outcome::Violation("export is no longer served");
        };
        out.extend_from_slice(&shape.size_bytes.to_be_bytes());
        out.extend_from_slice(&self.transmission_flags(shape).to_be_bytes());
        out.resize(
            out.len() + if self.flags.wants_zeroes { wire::EXPORT_NAME_ZEROES } else { 0 },
            0,
        );
        Outcome::Transmission(index, self.dialect(index))
    }

    fn list(&self, data: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
        if !data.is_empty() {
            return Err(invalid("the option takes no data"));
        }
        if !self.terms.shows_names {
            return Err((reply::ERR_POLICY, "this server does not list its exports".into()));
        }
        for offer in self.usable() {
            let name = offer.name.as_bytes();
            let length = (name.len() as u32).to_be_bytes();
            let entry: [&[u8]; 3] = [&length, name, offer.description.as_bytes()];
            wire::append_option_reply(out, option::LIST, reply::SERVER, &entry);
        }
        Ok(())
    }

    fn agree(&mut self, option: u32, data: &[u8]) -> Result<(), Refusal> {
        if !data.is_empty() {
            return Err(invalid("the option takes no data"));
        }
        self.headers = match (option, self.headers) {
            (option::EXTENDED_HEADERS, _) => Headers::Extended,
            (_, Headers::Extended) => {
                let message = "extended headers are already negotiated";
                return Err((reply::ERR_EXT_HEADER_REQD, message.into()));
            }
            _ => Headers::Structured,
        };
        Ok(())
    }

    fn list_contexts(&self, data: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
        let (index, request) = self.context_request(data)?;
        // The names of states are names of exports.
        let states = if self.terms.shows_names { self.states(index) } else { Vec::new() };
        append_contexts(out, option::LIST_META_CONTEXT, &request.listed(&states), false);
        Ok(())
    }

    fn select_contexts(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
        // An earlier selection is dropped even if this one fails.
        self.selected = None;
        let (index, request) = self.context_request(data)?;
        let selection = request.selected(&self.states(index));
        if selection.changes.len() > CHANGES_MAX {
            let message = format!("at most {CHANGES_MAX} contexts of changes may be selected");
            return Err((reply::ERR_TOO_BIG, message));
        }
        append_contexts(out, option::SET_META_CONTEXT, &selection, true);
        self.selected = Some((index, selection));
        Ok(())
    }

    /// Returns the names of the earlier states with which an export can be compared. For an earlier
    /// state, these are the states before it.
    fn states(&self, index: usize) -> Vec<&str> {
        let offers = self.terms.offers;
        let offer = &offers[index];
        let of = offer.ruled_by();
        let before = offer.earlier.map_or(u64::MAX, |earlier| earlier.sequence);
        let states = offers.iter().filter_map(|offer| offer.earlier);
        let states = states.filter(|state| state.of == of && state.sequence < before);
        states.map(|state| &*state.name).collect()
    }

    fn context_request<'d>(&self, data: &'d [u8]) -> Result<(usize, ContextRequest<'d>), Refusal> {
        if !self.headers.have_chunks() {
            return Err(invalid("metadata contexts need structured replies"));
        }
        let request =
            ContextRequest::decode(data).ok_or(invalid("the lengths in the option do not add up"));
        let request = request?;
        Ok((self.find(request.name)?, request))
    }

    /// Appends the requested information about an export. Returns the outcome if the client
    /// proceeds with it.
    fn inform(&self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Outcome, Refusal> {
        let request = InfoRequest::decode(data);
        let request = request.ok_or(invalid("the lengths in the option do not add up"))?;
        let index = self.find(request.name)?;
        let offer = &self.terms.offers[index];
        let gone = || (reply::ERR_UNKNOWN, "the export is no longer served".to_owned());
        let shape = self.shape.ok_or_else(gone)?;
        let mut inform = |kind: u16, data: [&[u8]; 3]| {
            let [first, second, third] = data;
            let parts = [&kind.to_be_bytes(), first, second, third];
            wire::append_option_reply(out, option, reply::INFO, &parts);
        };
        let size = shape.size_bytes.to_be_bytes();
        inform(info::EXPORT, [&size, &self.transmission_flags(shape).to_be_bytes(), &[]]);
        if request.wants_name {
            inform(info::NAME, [offer.name.as_bytes(), &[], &[]]);
        }
        if request.wants_description {
            inform(info::DESCRIPTION, [offer.description.as_bytes(), &[], &[]]);
        }
        if request.wants_block_size {
            let [least, preferred, most] =
                [BLOCK_BYTES_MIN, BLOCK_BYTES as u32, PAYLOAD_BYTES_MAX].map(u32::to_be_bytes);
            inform(info::BLOCK_SIZE, [&least, &preferred, &most]);
        }
        Ok(Outcome::Transmission(index, self.dialect(index)))
    }

    /// Returns the offers that the client may use.
    fn usable(&self) -> impl Iterator<Item = &Offer<'_>> {
        let offers = self.terms.offers.iter().enumerate();
        let exports = offers.filter(|(_, offer)| offer.is_export());
        let usable = exports.filter(|(index, _)| (self.terms.objection)(*index).is_none());
        usable.map(|(_, offer)| offer)
    }

    /// Returns the position of the export with this name, if the client may use it.
    fn find(&self, name: &[u8]) -> Result<usize, Refusal> {
        if name.len() > NAME_BYTES_MAX {
            let message = format!("export name of {} bytes: the limit is 4096", name.len());
            return Err((reply::ERR_TOO_BIG, message));
        }
        let offers = self.terms.offers;
        let mut disks = (0..).zip(offers).filter(|(_, offer)| offer.earlier.is_none());
        let found = match (name.is_empty(), disks.next(), disks.next()) {
            (true, Some((only, _)), None) => Some(only),
            _ => offers.iter().position(|it| it.is_export() && it.name.as_bytes() == name),
        };
        let index = found.ok_or_else(|| (reply::ERR_UNKNOWN, self.unknown()))?;
        match (self.terms.objection)(index) {
            Some(objection) => Err((reply::ERR_POLICY, objection.into())),
            None => Ok(index),
        }
    }

    /// Lists a limited number of the available names, in a string that the protocol allows.
    fn unknown(&self) -> String {
        const NAMES: usize = 8;
        let mut names: Vec<_> =
            self.usable().take(NAMES + 1).map(|offer| format!("'{:.100}'", offer.name)).collect();
        if !self.terms.shows_names || names.is_empty() {
            return "no such export".into();
        }
        if names.len() > NAMES {
            names.truncate(NAMES);
            names.push("more".into());
        }
        format!("no such export: available are {}", names.join(", "))
    }

    /// Returns the dialect of the transmission phase on this export.
    fn dialect(&self, index: usize) -> Dialect {
        let selection = self.selected.as_ref().filter(|(selected, _)| *selected == index);
        let Selection { contexts, changes } =
            selection.map(|(_, selection)| selection.clone()).unwrap_or_default();
        Dialect { headers: self.headers, contexts, changes }
    }

    /// Returns the transmission flags. All connections access one disk and one flush covers them
    /// all, so clients may use several.
    fn transmission_flags(&self, shape: Shape) -> u16 {
        let mut flags = transmission::HAS_FLAGS
            | transmission::SEND_FLUSH
            | transmission::SEND_FUA
            | transmission::SEND_TRIM
            | transmission::SEND_WRITE_ZEROES
            | transmission::SEND_FAST_ZERO
            | transmission::SEND_CACHE
            | transmission::CAN_MULTI_CONN;
        if self.headers.have_chunks() {
            flags |= transmission::SEND_DF;
        }
        if shape.is_read_only {
            flags |= transmission::READ_ONLY;
        }
        flags
    }
}

fn invalid(message: &str) -> Refusal {
    (reply::ERR_INVALID, message.into())
}

fn append_contexts(out: &mut Vec<u8>, option: u32, selection: &Selection, with_ids: bool) {
    let mut append = |id: u32, name: &str| {
        let id = if with_ids { id } else { 0 };
        let parts: [&[u8]; 2] = [&id.to_be_bytes(), name.as_bytes()];
        wire::append_option_reply(out, option, reply::META_CONTEXT, &parts);
    };
    selection.contexts.iter().for_each(|context| append(context.id(), context.name()));
    for (position, changes) in selection.changes.iter().enumerate() {
        append(Changes::id(position), &changes.name());
    }
}
