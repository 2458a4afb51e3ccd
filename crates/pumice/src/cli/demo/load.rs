//! The demo's load: a fixed number of requests in flight over the NBD client, as any host would
//! make them, and what it measured.
//!
//! Deliberately small: one connection, one run at a time, blocking for whoever calls.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::try_join_all;

use pumice_drive::base::{AlignedBuffer, Clock, Error, ErrorKind, Result};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::client::{Client as NbdClient, Uri};

/// How long the server may take over one reply: a slow disk under a full write cache.
const REPLY_NS_MAX: u64 = 30_000_000_000;

/// What a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Read,
    Write,
}

/// One request: where, and how many bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) offset: u64,
    pub(super) len: usize,
}

/// What a run of requests took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    pub(super) requests: u64,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

/// A connection, and the runtime it lives on.
pub(super) struct Client {
    nbd: NbdClient,
    runtime: Runtime,
    interrupted: Arc<AtomicBool>,
}

/// Gives the bytes of a write, or is shown those of a read.
type OnData<'a> = dyn FnMut(Request, &mut [u8]) -> Result<()> + 'a;

/// What the requests of a run share.
struct Run<'a> {
    verb: Verb,
    requests: RefCell<&'a mut dyn Iterator<Item = Request>>,
    data: RefCell<&'a mut OnData<'a>>,
    measured: Cell<Measured>,
}

impl Client {
    /// Connects and does the handshake. Once `interrupted` is set, runs end with an error.
    pub(super) fn connect(socket: &Path, interrupted: Arc<AtomicBool>) -> Result<Self> {
        let runtime = Runtime::new(Backend::Auto)?;
        let nbd = runtime.block_on(NbdClient::connect(&runtime, &Uri::unix(socket, "")))?;
        Ok(Self { nbd, runtime, interrupted })
    }

    /// Carries out `requests` with `depth` of them in flight, then flushes after writes; the flush
    /// is part of the time. For a write `data` gives the bytes of the n-th request, for a read it
    /// is shown them.
    pub(super) fn run(
        &mut self,
        verb: Verb,
        depth: usize,
        requests: &mut dyn Iterator<Item = Request>,
        data: &mut OnData<'_>,
    ) -> Result<Measured> {
        let start_ns = self.runtime.now_ns();
        let run = Run {
            verb,
            requests: RefCell::new(requests),
            data: RefCell::new(data),
            measured: Cell::default(),
        };
        self.runtime.block_on(async {
            try_join_all((0..depth).map(|_| self.lane(&run))).await?;
            match verb {
                Verb::Write => self.in_time(self.nbd.flush()).await?,
                Verb::Read => Ok(()),
            }
        })?;
        let seconds = (self.runtime.now_ns() - start_ns) as f64 / 1e9;
        Ok(Measured { seconds, ..run.measured.get() })
    }

    /// One request behind the other, until there are no more.
    async fn lane(&self, run: &Run<'_>) -> Result<()> {
        let mut buffer = Arc::new(AlignedBuffer::zeroed(0));
        loop {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
            }
            let Some(request) = run.requests.borrow_mut().next() else { return Ok(()) };
            // Nobody else has it: a request that was answered has let it go.
            let mut bytes = Arc::try_unwrap(buffer).unwrap_or_else(|_| AlignedBuffer::zeroed(0));
            if bytes.len() != request.len {
                bytes = AlignedBuffer::zeroed(request.len);
            }
            buffer = match run.verb {
                Verb::Write => {
                    (run.data.borrow_mut())(request, &mut bytes)?;
                    let bytes = Arc::new(bytes);
                    self.in_time(self.nbd.write_shared(request.offset, &bytes, false)).await??;
                    bytes
                }
                Verb::Read => {
                    let (mut bytes, result) =
                        self.in_time(self.nbd.read(request.offset, bytes)).await?;
                    result?;
                    (run.data.borrow_mut())(request, &mut bytes)?;
                    Arc::new(bytes)
                }
            };
            let mut measured = run.measured.get();
            measured.requests += 1;
            measured.bytes += request.len as u64;
            run.measured.set(measured);
        }
    }

    async fn in_time<T>(&self, reply: impl Future<Output = T>) -> Result<T> {
        let late = || Error::new(ErrorKind::Busy, "the server gave no answer for 30 seconds");
        self.runtime.timeout(REPLY_NS_MAX, reply).await.ok_or_else(late)
    }

    /// Ends the connection in order.
    pub(super) fn disconnect(self) -> Result<()> {
        self.runtime.block_on(self.nbd.disconnect())
    }
}
