//! The socket, the thread, and connections with their limits.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use futures_util::future::{Either, select};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use super::access::Access;
use super::{ask, routes};
use crate::watch::Watch;
use pumice_drive::base::{Error, Result};
use pumice_drive::runtime::Runtime;

/// Connections at once; more wait in the backlog. A browser opens up to six.
const CONNECTIONS_MAX: usize = 64;

/// Bytes of a request's line and headers at most, and of what is buffered of a connection.
const HEADER_BYTES_MAX: usize = 16 << 10;

/// Headers of a request at most: browsers send about twenty.
const HEADERS_MAX: usize = 64;

/// Time for a request's headers to arrive, and for the next request of a connection to begin.
const HEADER_MAX: Duration = Duration::from_secs(5);

/// How long a connection may live, and how long a request that then runs has to end: so that
/// nobody who reads slowly, or sends a body that never ends, keeps a place for ever. A client that
/// means well connects again.
const CONNECTION_MAX: Duration = Duration::from_secs(60);
const CONNECTION_GRACE: Duration = Duration::from_secs(10);

/// Pause after a failed accept: out of descriptors, it would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A socket that listens, before anything is served at it.
pub(crate) struct Http {
    listener: TcpListener,
    access: Access,
}

/// A thread that serves; ended when dropped.
pub(crate) struct Serving {
    stop: Option<oneshot::Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    /// Listens.
    ///
    /// # Errors
    /// The operating system's: the port is in use, or not for this user.
    pub(crate) fn bind(access: Access) -> Result<Self> {
        let address = access.address();
        let cannot = |error| Error::os(format!("cannot listen at http://{address}"), error);
        let listener = TcpListener::bind(address).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let access = access.at(listener.local_addr().map_err(cannot)?);
        Ok(Self { listener, access })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.access.address()
    }

    /// Serves what `watch` says, whose drives live on the thread of `runtime`, until the result is
    /// dropped.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub(crate) fn serve(self, runtime: &Runtime, watch: Rc<Watch>) -> Result<Serving> {
        let (asker, answerer) = ask::channel();
        let app = routes::router(asker, self.access);
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("http".into());
        let thread = thread.spawn(move || run(self.listener, app, stopped));
        let thread = thread.map_err(|error| Error::os("cannot start a thread for HTTP", error))?;
        runtime.spawn(answerer.run(runtime.clone(), watch));
        Ok(Serving { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.stop.take());
        // It waits for nothing but this; a panic there has been printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(listener: TcpListener, app: Router, stopped: oneshot::Receiver<Infallible>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.and_then(|runtime| {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            select(pin!(accept(listener, app)), stopped).await;
            Ok(())
        })
    });
    if let Err(error) = served {
        tracing::error!("HTTP is not served: {error}");
    }
}

/// Accepts clients for ever, and serves each in a task of its own.
async fn accept(listener: tokio::net::TcpListener, app: Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = places.clone().acquire_owned().await.expect("nobody closes it");
        match listener.accept().await {
            Ok((socket, _)) => drop(tokio::spawn(converse(socket, app.clone(), place))),
            Err(error) => {
                // A client that left before it was accepted is no reason to wait.
                if error.kind() != io::ErrorKind::ConnectionAborted {
                    tracing::warn!("cannot accept an HTTP client: {error}");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Serves one client until it is gone or its time is over.
async fn converse(socket: TcpStream, app: Router, _place: OwnedSemaphorePermit) {
    let mut connection = http1::Builder::new();
    connection
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_MAX)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEADER_BYTES_MAX)
        .max_buf_size(2 * HEADER_BYTES_MAX);
    let service = TowerToHyperService::new(app);
    let mut connection = pin!(connection.serve_connection(TokioIo::new(socket), service));
    let ended = match select(connection.as_mut(), pin!(sleep(CONNECTION_MAX))).await {
        Either::Left((ended, _)) => Some(ended),
        Either::Right(_) => {
            connection.as_mut().graceful_shutdown();
            timeout(CONNECTION_GRACE, connection).await.ok()
        }
    };
    match ended {
        Some(Err(error)) => tracing::debug!("an HTTP client was refused or left: {error}"),
        None => tracing::debug!("an HTTP client took too long"),
        Some(Ok(())) => {}
    }
}
