//! The life of one connection, in one task: handshake, transmission, draining, end.
//!
//! The task polls three things, in this order: the reader, the slots that can go on, the sender.
//! Replies appear only in the first two, so the sender needs no waking, and everything one turn of
//! the task produced leaves in one send. At depth 1 a request is therefore one receive, one turn of
//! one task, one send.
//!
//! A future of the disk is never dropped half-way: however a connection ends, its requests run to
//! their end, and only their replies are lost.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::execute::{Job, execute};
use super::handshake::{self, Export, Outcome};
use super::incoming::Incoming;
use super::reader::{End, read_requests};
use super::session::{Link, Session, Shared};
use super::slots::Slots;
use crate::runtime::shutdown_socket;
use crate::serve::Disk;

/// Serves one client until it is gone.
pub(super) async fn serve<D: Disk + 'static>(shared: Rc<Shared<D>>, link: Rc<Link>) {
    let mut incoming = Incoming::new(shared.runtime.clone(), link.socket.clone());
    let session = Rc::new(Session::new(shared.clone(), link.socket.clone()));
    if shake_hands(&session, &mut incoming).await {
        transmit(&session, incoming, &link).await;
    }
    shutdown_socket(&link.socket);
}

/// Whether the client chose the export.
async fn shake_hands<D: Disk>(session: &Session<D>, incoming: &mut Incoming) -> bool {
    let shared = &session.shared;
    let export = Export { options: &shared.options, shape: shared.shape() };
    let handshake =
        handshake::negotiate(incoming, &session.replies, &export, || shared.is_shutting_down.get());
    match shared.runtime.timeout(shared.options.handshake_ns, handshake).await {
        Some(Ok(Outcome::Transmission)) => return true,
        Some(Ok(Outcome::Aborted)) => {}
        Some(Ok(Outcome::Violation(what))) => tracing::warn!("handshake refused: {what}"),
        Some(Err(error)) => tracing::debug!("handshake broken off: {error}"),
        None => tracing::warn!("handshake refused: it took too long"),
    }
    false
}

async fn transmit<D: Disk + 'static>(
    session: &Rc<Session<D>>,
    mut incoming: Incoming,
    link: &Link,
) {
    let slots = {
        let session = session.clone();
        Slots::new(move |seat| execute(session.clone(), seat))
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
    log_end(&end);
    let mut drained = |context: &mut Context<'_>| match poll_rest(context) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    };
    let Shared { runtime, options, .. } = &*session.shared;
    let linger = runtime.timeout(options.grace_ns, poll_fn(&mut drained)).await;
    if linger.is_none() {
        session.replies.fail();
        poll_fn(&mut drained).await;
    }
}

/// Whether nothing is under way; tells the server, which waits for that when it shuts down.
fn note_quiet<D: Disk>(session: &Session<D>, slots: &Slots<Job>, link: &Link) -> bool {
    let is_quiet = slots.count() == 0 && session.replies.is_empty() && !session.is_accepting.get();
    if link.is_quiet.replace(is_quiet) != is_quiet && session.shared.is_shutting_down.get() {
        session.shared.changed.wake_all();
    }
    is_quiet
}

fn log_end(end: &End) {
    match end {
        End::Disconnect => {}
        End::Stream(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            tracing::debug!("the client left without saying so");
        }
        End::Stream(error) => tracing::debug!("cannot receive requests: {error}"),
        End::Violation(what) => tracing::warn!("connection closed: {what}"),
    }
}
