//! The load of the demo: a fixed number of requests in flight over NBD, as any host issues them.
//!
//! One connection and one run at a time; the caller blocks. The bench's engine cannot replace it:
//! the engine generates its data and discards the data that it reads, while the demo writes real
//! files and compares the checksum of every chunk that it reads back.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use futures_util::future::try_join_all;

use pumice_drive::base::{AlignedBuffer, Clock};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::Durability;
use pumice_nbd::client::{Client as NbdClient, Uri};

/// Time limit for one reply, in nanoseconds: long enough for a slow disk with a full write cache.
const REPLY_NS_MAX: u64 = 30_000_000_000;

/// The operation of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Read,
    Write,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) offset: u64,
    pub(super) len: usize,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    pub(super) requests: u64,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

/// A connection and its runtime.
pub(super) struct Client {
    nbd: NbdClient,
    runtime: Runtime,
    interrupted: Arc<AtomicBool>,
}

/// Fills the buffer of a write, or examines the buffer of a read.
type OnData<'a> = dyn FnMut(Request, &mut [u8]) -> Result<()> + 'a;

/// The state that the requests of a run share.
struct Run<'a> {
    verb: Verb,
    requests: RefCell<&'a mut dyn Iterator<Item = Request>>,
    data: RefCell<&'a mut OnData<'a>>,
    measured: Cell<Measured>,
}

impl Client {
    /// Connects to the server. Once `interrupted` is set, runs fail.
    pub(super) fn connect(socket: &Path, interrupted: Arc<AtomicBool>) -> Result<Self> {
        let runtime = Runtime::new(Backend::Auto)?;
        let nbd = runtime.block_on(NbdClient::connect(&runtime, &Uri::unix(socket, "")))?;
        Ok(Self { nbd, runtime, interrupted })
    }

    /// Executes `requests` with `depth` of them in flight, then flushes after writes; the time
    /// includes the flush. `data` is called before each write and after each read.
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
                Verb::Write => self.in_time(self.nbd.flush()).await??,
                Verb::Read => {}
            }
            anyhow::Ok(())
        })?;
        let seconds = (self.runtime.now_ns() - start_ns) as f64 / 1e9;
        Ok(Measured { seconds, ..run.measured.get() })
    }

    /// Executes one request after another, until there are no more.
    async fn lane(&self, run: &Run<'_>) -> Result<()> {
        let mut buffer = Arc::new(AlignedBuffer::zeroed(0));
        loop {
            if self.interrupted.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            let Some(request) = run.requests.borrow_mut().next() else { return Ok(()) };
            // The buffer is unique: a completed request has released it.
            let mut bytes = Arc::try_unwrap(buffer).unwrap_or_else(|_| AlignedBuffer::zeroed(0));
            if bytes.len() != request.len {
                bytes = AlignedBuffer::zeroed(request.len);
            }
            buffer = match run.verb {
                Verb::Write => {
                    (run.data.borrow_mut())(request, &mut bytes)?;
                    let bytes = Arc::new(bytes);
                    let volatile = Durability::Volatile;
                    self.in_time(self.nbd.write_shared(request.offset, &bytes, volatile)).await??;
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
        let reply = self.runtime.timeout(REPLY_NS_MAX, reply).await;
        reply.context("the server did not reply for 30 seconds")
    }

    /// Closes the connection as the protocol requires.
    pub(super) fn disconnect(self) -> Result<()> {
        Ok(self.runtime.block_on(self.nbd.disconnect())?)
    }
}
