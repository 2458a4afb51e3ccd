//! The socket, the thread, and connections with their limits.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use futures_util::future::{Either, FutureExt, select, try_join};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use super::access::{Access, Place};
use super::ask::{self, Answerer};
use super::history::History;
use super::routes;
use crate::watch::Names;
use pumice_drive::base::{Error, Result};
use pumice_nbd::{Listen, Listener};

/// Maximum number of connections; others wait in the backlog. A browser opens up to six.
const CONNECTIONS_MAX: usize = 64;

/// Longest request line with headers, and maximum bytes buffered for a connection.
const HEADER_BYTES_MAX: usize = 16 << 10;

/// Maximum number of headers of a request: browsers send about twenty.
const HEADERS_MAX: usize = 64;

/// Time limit for the headers of a request, and for the next request of a connection to start.
const HEADER_MAX: Duration = Duration::from_secs(5);

/// Maximum duration of a connection, and the time that a request then has to end, so that a client
/// that reads slowly, or sends an endless body, does not hold its connection forever. Other clients
/// reconnect.
const CONNECTION_MAX: Duration = Duration::from_secs(60);
const CONNECTION_GRACE: Duration = Duration::from_secs(10);

/// Pause after a failed accept: without file descriptors, it would fail again immediately.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket that is not served yet.
pub(crate) struct Http {
    socket: Socket,
    access: Access,
}

enum Socket {
    Tcp(TcpListener),
    /// The first value removes the file at the end.
    Unix(Listener, UnixListener),
}

/// The thread that serves; ended on drop.
pub(crate) struct Serving {
    stop: Option<oneshot::Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    /// Listens.
    ///
    /// # Errors
    /// Errors of the operating system: the port is in use, or not permitted; errors of
    /// [`Listener::bind`].
    pub(crate) fn bind(access: Access) -> Result<Self> {
        let place = access.place().clone();
        let cannot = |error| Error::os(format!("cannot listen on {place}"), error);
        match &place {
            Place::Tcp(address) => {
                let listener = TcpListener::bind(address).map_err(cannot)?;
                listener.set_nonblocking(true).map_err(cannot)?;
                let access = access.at(listener.local_addr().map_err(cannot)?);
                Ok(Self { socket: Socket::Tcp(listener), access })
            }
            Place::Unix(path) => {
                let owner = Listener::bind(&Listen::Unix(path.clone()), Default::default())?;
                let listener = owner.socket().try_clone().map_err(cannot)?;
                let listener = UnixListener::from(listener);
                listener.set_nonblocking(true).map_err(cannot)?;
                Ok(Self { socket: Socket::Unix(owner, listener), access })
            }
        }
    }

    /// Returns the address or socket on which it listens.
    pub(crate) fn place(&self) -> &Place {
        self.access.place()
    }

    /// Serves snapshots of drives, whose names are given for each of their threads, until the first
    /// result is dropped. Each thread needs its answerer.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    pub(crate) fn serve(self, names: Vec<Names>) -> Result<(Serving, Vec<Answerer>)> {
        let (asker, answerers) = ask::channels(names);
        let history = History::new(&asker);
        let app = routes::router(asker.clone(), history.clone(), self.access);
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("http".into());
        let thread = thread.spawn(move || run(self.socket, app, history.keep(asker), stopped));
        let thread = thread.map_err(|error| Error::os("cannot start a thread for HTTP", error))?;
        Ok((Serving { stop: Some(stop), thread: Some(thread) }, answerers))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The thread waits only for this signal; a panic there has already been printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(
    socket: Socket,
    app: Router,
    keeping: impl Future<Output = ()>,
    stopped: oneshot::Receiver<Infallible>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.and_then(|runtime| {
        runtime.block_on(async {
            let serving = async {
                match socket {
                    Socket::Tcp(listener) => {
                        let listener = tokio::net::TcpListener::from_std(listener)?;
                        accept(async || Ok(listener.accept().await?.0), app).await
                    }
                    Socket::Unix(_owner, listener) => {
                        let listener = tokio::net::UnixListener::from_std(listener)?;
                        accept(async || Ok(listener.accept().await?.0), app).await
                    }
                }
            };
            match select(pin!(try_join(serving, keeping.map(Ok))), stopped).await {
                Either::Left((Err(error), _)) => Err(error),
                _ => Ok(()),
            }
        })
    });
    if let Err(error) = served {
        tracing::error!(%error, "cannot serve HTTP");
    }
}

/// Accepts clients forever, and serves each in a task of its own.
async fn accept<S>(next: impl AsyncFn() -> io::Result<S>, app: Router) -> io::Result<Infallible>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
        match next().await {
            Ok(socket) => drop(tokio::spawn(serve_client(socket, app.clone(), permit))),
            Err(error) => {
                // A client that left before it was accepted is no reason to pause.
                if error.kind() != io::ErrorKind::ConnectionAborted {
                    tracing::warn!(%error, "cannot accept an HTTP connection: retrying");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Serves one client until it leaves or its time is over.
async fn serve_client<S>(socket: S, app: Router, _permit: OwnedSemaphorePermit)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
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
        Some(Err(error)) => tracing::debug!(%error, "HTTP connection failed"),
        None => tracing::debug!("HTTP connection timed out"),
        Some(Ok(())) => {}
    }
}
