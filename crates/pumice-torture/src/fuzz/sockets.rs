//! Code shared by the targets on sockets: a runtime, and the two directions of a peer on its
//! thread.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::Shutdown;

use pumice_drive::runtime::{Backend, Runtime};

/// Maximum number of answer bytes that are kept; later ones are dropped.
pub(super) const ANSWERS_KEPT_MAX: usize = 8 << 20;

thread_local! {
    static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

/// Returns the runtime of this thread: creating one for each input would take most of the time.
pub(super) fn runtime() -> Runtime {
    RUNTIME.with_borrow_mut(|runtime| {
        let new = || Runtime::new(Backend::Auto).expect("an I/O backend");
        runtime.get_or_insert_with(new).clone()
    })
}

/// Sends all bytes, unless the other side closes the connection, and shuts this side down.
pub(super) async fn send(runtime: &Runtime, socket: &Arc<OwnedFd>, bytes: Vec<u8>) {
    send_and_stay(runtime, socket, bytes).await;
    // Fails if the server has already closed it.
    let _closed = rustix::net::shutdown(socket, Shutdown::Write);
}

/// Sends all bytes, unless the other side closes the connection.
pub(super) async fn send_and_stay(runtime: &Runtime, socket: &Arc<OwnedFd>, mut bytes: Vec<u8>) {
    let (mut start, end) = (0, bytes.len());
    while start < end {
        let (returned, result) = runtime.send(socket, bytes, start..end).await;
        bytes = returned;
        match result {
            Ok(sent) => start += sent,
            // The server has closed the connection.
            Err(_) => return,
        }
    }
}

/// Receives until the other side ends. Returns the first bytes received.
pub(super) async fn receive(runtime: &Runtime, socket: &Arc<OwnedFd>) -> Vec<u8> {
    let mut answers = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let range = 0..buffer.len();
        let (returned, result) = runtime.receive(socket, buffer, range).await;
        buffer = returned;
        match result {
            Ok(0) | Err(_) => return answers,
            Ok(length) => {
                let kept = length.min(ANSWERS_KEPT_MAX - answers.len());
                answers.extend_from_slice(&buffer[..kept]);
            }
        }
    }
}
