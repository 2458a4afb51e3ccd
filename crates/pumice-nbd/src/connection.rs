//! One connection, in one task: handshake, transmission, draining, end.
//!
//! The task polls in this order: the receiver of requests, the slots that can continue, the sender.
//! Only the first two produce replies, so the sender needs no wake-up, and all replies produced in
//! one turn of the task leave in one send. At depth 1, a request therefore costs one receive, one
//! turn of one task, and one send.
//!
//! A future of the disk is never dropped before it completes. However a connection ends, its
//! requests complete, and only their replies are lost.

#![expect(clippy::indexing_slicing, reason = "the handshake returns the position of an offer")]

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::Security as Offered;
use super::channel::Channel;
use super::execute::{Job, execute};
use super::export::Export;
use super::handover::{Known, Parked};
use super::handshake::{self, Outcome, Security, Terms};
use super::incoming::Incoming;
use super::receive::{End, read_requests};
use super::remote_exports::RemoteExports;
use super::replies::Replies;
use super::request::{Dialect, Shape};
use super::session::{Link, Place, Session, Shared, Stage};
use super::slots::Slots;
use super::tls::Tls;
use pumice_drive::base::Clock;

/// Serves one client until it disconnects or is parked.
pub(super) async fn serve(shared: Rc<Shared>, link: Rc<Link>) -> Option<Parked> {
    let caller = &link.caller;
    let channel = Channel::new(shared.runtime.clone(), caller.socket.clone());
    let mut incoming = Incoming::new(channel.clone());
    let replies = Replies::new(channel.clone(), shared.all_pending.clone());
    let limit_ns = shared.options.handshake_ns;
    let places = shared.places();
    let handshake = shake_hands(&shared, &places, &link, &channel, &mut incoming, &replies);
    let outcome = shared.runtime.timeout(limit_ns, handshake).await;
    let chosen = match outcome {
        // The client left before it was answered. Its later requests are not executed.
        Some(Ok(_)) if replies.has_failed() => {
            tracing::debug!(client = %caller, "client left during its handshake");
            None
        }
        // The other exports are dropped, so that they can be closed.
        Some(Ok(Outcome::Transmission(index, dialect))) => {
            places.into_iter().nth(index).map(|place| (place, dialect))
        }
        Some(Ok(Outcome::Violation(reason))) => {
            shared.note_refused(caller, None, reason);
            None
        }
        Some(Ok(Outcome::Aborted | Outcome::StartTls)) => None,
        Some(Err(error)) => {
            tracing::debug!(client = %caller, %error, "handshake failed");
            None
        }
        None => {
            shared.note_refused(caller, None, "the handshake takes too long");
            None
        }
    };
    let mut parked = None;
    match chosen.filter(|(place, dialect)| may_enter(&shared, &link, place, dialect)) {
        None => {}
        Some((Place::Local(export), dialect)) => {
            enter(&shared, &link, &export.name);
            let session = Session::new(shared.clone(), export, caller.clone(), dialect, replies);
            parked = transmit(&Rc::new(session), incoming, &link, &channel).await;
        }
        Some((Place::Remote(other, export), dialect)) => {
            let (socket, name) = (caller.socket.clone(), export.name.clone());
            let (known, unread) = (Known::default(), incoming.unread().to_vec());
            let client = Parked { socket, export: name.clone(), dialect, known, unread };
            drop((incoming, replies));
            let channel = Rc::into_inner(channel).expect("nothing else uses the channel");
            let entered = || enter(&shared, &link, &name);
            let (caller, tls) = (caller.clone(), channel.into_tls());
            return leave(&link, other.serve(client, caller, tls, entered).await);
        }
    }
    end(&shared, &link, &channel, parked).await
}

/// Returns whether the client may still use the export that it was promised. In the meantime, the
/// export may have been withdrawn, or taken by other clients.
fn may_enter(shared: &Shared, link: &Link, place: &Place, dialect: &Dialect) -> bool {
    let is_there = shared.places().iter().any(|other| other.is_same(place));
    let objection = if is_there {
        shared.admission(place.ruled_by(), &link.caller)
    } else {
        Some("the export is no longer served")
    };
    match objection {
        Some(reason) => shared.note_refused(&link.caller, Some(place.name()), reason),
        // From now on the export cannot be withdrawn without the client.
        None => link.caller.note_chosen(place.chosen(dialect)),
    }
    objection.is_none()
}

/// Records that the client has chosen an export and is served.
fn enter(shared: &Shared, link: &Link, export: &str) {
    link.is_haggling.set(false);
    shared.notices.connected(shared.runtime.now_ns(), &link.caller, export);
    shared.changed.wake_all();
}

/// Continues a client that was parked, by this server or another one, or that has chosen its export
/// on another thread. The channel is encrypted if `tls` is `Some`.
pub(super) async fn resume(
    shared: Rc<Shared>,
    export: Rc<Export>,
    link: Rc<Link>,
    parked: Parked,
    tls: Option<Tls>,
) -> Option<Parked> {
    let channel = Channel::continued(shared.runtime.clone(), link.caller.socket.clone(), tls);
    let incoming = Incoming::with_unread(channel.clone(), &parked.unread);
    drop(parked.unread);
    let replies = Replies::new(channel.clone(), shared.all_pending.clone());
    let (caller, dialect) = (link.caller.clone(), parked.dialect.clone());
    let session = Rc::new(Session::new(shared.clone(), export, caller, dialect, replies));
    let parked = transmit(&session, incoming, &link, &channel).await;
    end(&shared, &link, &channel, parked).await
}

/// Continues a client on the thread of its export.
pub(super) async fn resume_there(
    other: Rc<RemoteExports>,
    link: Rc<Link>,
    parked: Parked,
) -> Option<Parked> {
    let parked = other.serve(parked, link.caller.clone(), None, || ()).await;
    leave(&link, parked)
}

/// Closes the channel of a client that is not parked.
async fn end(
    shared: &Shared,
    link: &Link,
    channel: &Channel,
    parked: Option<Parked>,
) -> Option<Parked> {
    if parked.is_none() {
        // The server does not wait for a client that does not read.
        let _ = shared.runtime.timeout(shared.options.grace_ns, channel.close()).await;
    }
    leave(link, parked)
}

/// Disconnects a client that is not parked.
fn leave(link: &Link, parked: Option<Parked>) -> Option<Parked> {
    if parked.is_none() {
        link.cut();
    }
    parked
}

/// Performs the handshake, from the greeting to the transmission phase, with TLS if the client
/// requests it.
async fn shake_hands(
    shared: &Shared,
    places: &[Place],
    link: &Link,
    channel: &Channel,
    incoming: &mut Incoming,
    replies: &Replies,
) -> io::Result<Outcome> {
    let flags = match handshake::greet(incoming, replies).await? {
        Ok(flags) => flags,
        Err(what) => return Ok(Outcome::Violation(what)),
    };
    let offers: Vec<_> = places.iter().map(Place::offer).collect();
    let shape = async |index: usize| places[index].shape().await;
    let objection = |index: usize| shared.admission(offers[index].ruled_by(), &link.caller);
    let refused =
        |export: &str, reason: &str| shared.note_refused(&link.caller, Some(export), reason);
    let offered = shared.security.borrow().clone();
    let mut security = match &offered {
        Offered::Clear => Security::Clear,
        Offered::Allow(_) => Security::Offered,
        Offered::Require(_) => Security::Required,
    };
    loop {
        let shows_names = !shared.policy.borrow().hides_names;
        let (offers, objection, refused) = (&offers[..], &objection, &refused);
        let terms = Terms { offers, security, shows_names, objection, refused };
        let is_shutting_down = || shared.stage.get() == Stage::ShuttingDown;
        let outcome =
            handshake::haggle(incoming, replies, &terms, flags, shape, is_shutting_down).await?;
        let (Offered::Allow(identity) | Offered::Require(identity)) = &offered else {
            return Ok(outcome);
        };
        if outcome != Outcome::StartTls {
            return Ok(outcome);
        }
        match channel.encrypt(identity).await {
            Ok(tls) => {
                tls.note_certificate(&link.caller);
                // Other certificates may have replaced these in the meantime.
                if !shared.security.borrow().accepts(&link.caller, Some(identity)) {
                    return Ok(Outcome::Violation("its certificate is no longer accepted"));
                }
            }
            Err(error) => {
                shared.note_refused(&link.caller, None, format_args!("TLS: {error}"));
                return Err(error);
            }
        }
        security = Security::Encrypted;
    }
}

async fn transmit(
    session: &Rc<Session>,
    mut incoming: Incoming,
    link: &Link,
    channel: &Channel,
) -> Option<Parked> {
    let slots = {
        let session = session.clone();
        Slots::new(move |inbox| execute(session.clone(), inbox))
    };
    let mut sender = pin!(session.replies.send_appended());
    let mut poll_rest = |context: &mut Context<'_>| {
        slots.poll(context);
        let _endless = sender.as_mut().poll(context);
        note_quiet(session, &slots, link)
    };
    let end = {
        let mut reader = pin!(read_requests(session, &mut incoming, &slots));
        poll_fn(|context| {
            let end = reader.as_mut().poll(context);
            poll_rest(context);
            end
        })
        .await
    };
    log_end(session, &end);
    let mut drained = |context: &mut Context<'_>| {
        if poll_rest(context) { Poll::Ready(()) } else { Poll::Pending }
    };
    let Shared { runtime, options, .. } = &*session.shared;
    if matches!(end, End::Parked) {
        // The server closes the connections of late clients.
        poll_fn(&mut drained).await;
    } else if runtime.timeout(options.grace_ns, poll_fn(&mut drained)).await.is_none() {
        session.replies.fail();
        poll_fn(&mut drained).await;
    }
    // An encrypted connection cannot continue in another process, because its keys stay in this
    // one.
    let may_park = matches!(end, End::Parked) && !session.replies.has_failed();
    let export = &session.export;
    let Shape { size_bytes, is_read_only } = export.shape();
    (may_park && !channel.is_encrypted()).then(|| Parked {
        socket: link.caller.socket.clone(),
        export: export.name.clone(),
        dialect: session.dialect.clone(),
        known: Known { left: export.lineage.leaves.clone(), size_bytes, is_read_only },
        unread: incoming.unread().to_vec(),
    })
}

/// Returns whether nothing is in flight. Reports this to the server, which waits for it during
/// shutdown, and records whether the connection waits for its client.
fn note_quiet(session: &Session, slots: &Slots<Job>, link: &Link) -> bool {
    let waits_to_receive = session.is_in_request.get() && slots.count() == 0;
    link.waits_for_client.set(waits_to_receive || !session.replies.is_empty());
    let is_quiet = slots.count() == 0 && session.replies.is_empty() && !session.is_in_request.get();
    if link.is_quiet.replace(is_quiet) != is_quiet {
        link.caller.meter.note_busy(!is_quiet);
        if session.shared.stage.get() == Stage::ShuttingDown {
            session.shared.changed.wake_all();
        }
    }
    is_quiet
}

fn log_end(session: &Session, end: &End) {
    let (export, client) = (&session.export.name, &session.caller);
    match end {
        End::Disconnect => tracing::debug!(%export, %client, "client sent DISC"),
        End::Parked => tracing::debug!(%export, %client, "client parked"),
        End::Stream(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            tracing::debug!(%export, %client, "client closed its connection without DISC");
        }
        End::Stream(error) => {
            tracing::debug!(%export, %client, %error, "cannot receive requests");
        }
        End::Violation(reason) => {
            tracing::debug!(%export, %client, reason, "connection closed: protocol violation");
        }
    }
}
