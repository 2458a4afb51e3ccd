//! The demo's NBD client: fixed newstyle, simple replies, a fixed number of requests in flight.
//!
//! Deliberately small: it speaks to the demo's own server over a Unix socket, as any client would,
//! and reports what it measured. Replies are matched by cookie, so they may come in any order.

#![allow(clippy::disallowed_methods, reason = "it measures real time, as a benchmark does")]

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::failed;
use crate::base::{Error, ErrorKind, Result};

const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_EXPORT_NAME: u32 = 1;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// How long the server may take over one reply: a slow disk under a full write cache.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// A command of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Verb {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
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

/// A connection in transmission.
pub(super) struct Client {
    reader: BufReader<UnixStream>,
    writer: BufWriter<UnixStream>,
    size_bytes: u64,
    interrupted: Arc<AtomicBool>,
}

impl Client {
    /// Connects and does the handshake. Once `interrupted` is set, runs end with an error.
    pub(super) fn connect(socket: &Path, interrupted: Arc<AtomicBool>) -> Result<Self> {
        let stream = UnixStream::connect(socket).map_err(failed("cannot connect"))?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT)).map_err(failed("cannot connect"))?;
        let writer = stream.try_clone().map_err(failed("cannot connect"))?;
        let mut client = Self {
            reader: BufReader::with_capacity(256 << 10, stream),
            writer: BufWriter::with_capacity(256 << 10, writer),
            size_bytes: 0,
            interrupted,
        };
        client.size_bytes = client.handshake().map_err(failed("the NBD handshake failed"))?;
        Ok(client)
    }

    /// Size of the export.
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn handshake(&mut self) -> io::Result<u64> {
        if self.read_u64()? != NBD_MAGIC || self.read_u64()? != OPTION_MAGIC {
            return Err(io::Error::other("the server speaks something else"));
        }
        let mut flags = [0; 2];
        self.reader.read_exact(&mut flags)?;
        // Fixed newstyle, and no zeroes behind the export's flags.
        self.writer.write_all(&3u32.to_be_bytes())?;
        self.writer.write_all(&OPTION_MAGIC.to_be_bytes())?;
        self.writer.write_all(&OPTION_EXPORT_NAME.to_be_bytes())?;
        self.writer.write_all(&0u32.to_be_bytes())?;
        self.writer.flush()?;
        let size_bytes = self.read_u64()?;
        self.reader.read_exact(&mut flags)?;
        Ok(size_bytes)
    }

    /// Carries out `requests` with `depth` of them in flight, then flushes after writes; the flush
    /// is part of the time. For a write `data` gives the bytes of the n-th request, for a read it
    /// is shown them.
    pub(super) fn run(
        &mut self,
        verb: Verb,
        depth: usize,
        requests: &mut dyn Iterator<Item = Request>,
        data: &mut dyn FnMut(Request, &mut [u8]) -> Result<()>,
    ) -> Result<Measured> {
        let start = Instant::now();
        let mut slots: Vec<Option<Request>> = vec![None; depth];
        let mut free: Vec<usize> = (0..depth).collect();
        let mut buffer = Vec::new();
        let mut measured = Measured::default();
        loop {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::Medium, "interrupted"));
            }
            while let Some(&slot) = free.last() {
                let Some(request) = requests.next() else { break };
                free.pop();
                slots[slot] = Some(request);
                buffer.resize(request.len, 0);
                if verb == Verb::Write {
                    data(request, &mut buffer)?;
                }
                let payload = if verb == Verb::Write { &buffer[..] } else { &[] };
                self.send(verb, slot as u64, request, payload).map_err(failed("sending"))?;
            }
            if free.len() == depth {
                break;
            }
            self.writer.flush().map_err(failed("sending"))?;
            // Everything that has come in already, so that requests go out together again.
            loop {
                let slot = self.receive().map_err(failed("the server's reply"))?;
                let request = slots.get_mut(slot).and_then(Option::take);
                let request = request.ok_or_else(|| {
                    failed("the server's reply")(io::Error::other("an unknown cookie"))
                })?;
                if verb == Verb::Read {
                    buffer.resize(request.len, 0);
                    self.reader.read_exact(&mut buffer).map_err(failed("the server's reply"))?;
                    data(request, &mut buffer)?;
                }
                free.push(slot);
                measured.requests += 1;
                measured.bytes += request.len as u64;
                if self.reader.buffer().len() < 16 || free.len() == depth {
                    break;
                }
            }
        }
        if verb == Verb::Write {
            self.flush()?;
        }
        measured.seconds = start.elapsed().as_secs_f64();
        Ok(measured)
    }

    fn flush(&mut self) -> Result<()> {
        let nothing = Request { offset: 0, len: 0 };
        self.send(Verb::Flush, 0, nothing, &[])
            .and_then(|()| self.writer.flush())
            .and_then(|()| self.receive())
            .map_err(failed("the flush"))?;
        Ok(())
    }

    /// Ends the connection in order.
    pub(super) fn disconnect(mut self) -> Result<()> {
        let nothing = Request { offset: 0, len: 0 };
        self.send(Verb::Disconnect, 0, nothing, &[])
            .and_then(|()| self.writer.flush())
            .map_err(failed("the disconnect"))
    }

    fn send(&mut self, verb: Verb, cookie: u64, request: Request, data: &[u8]) -> io::Result<()> {
        let mut header = [0; 28];
        header[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        header[6..8].copy_from_slice(&(verb as u16).to_be_bytes());
        header[8..16].copy_from_slice(&cookie.to_be_bytes());
        header[16..24].copy_from_slice(&request.offset.to_be_bytes());
        header[24..].copy_from_slice(&(request.len as u32).to_be_bytes());
        self.writer.write_all(&header)?;
        self.writer.write_all(data)
    }

    /// Waits for a reply; gives its cookie.
    fn receive(&mut self) -> io::Result<usize> {
        let mut reply = [0; 16];
        self.reader.read_exact(&mut reply)?;
        let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("4 bytes"));
        if word(0) != REPLY_MAGIC {
            return Err(io::Error::other("not a reply"));
        }
        if word(4) != 0 {
            return Err(io::Error::from_raw_os_error(word(4) as i32));
        }
        let cookie = u64::from_be_bytes(reply[8..].try_into().expect("8 bytes"));
        usize::try_from(cookie).map_err(io::Error::other)
    }

    fn read_u64(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.reader.read_exact(&mut bytes)?;
        Ok(u64::from_be_bytes(bytes))
    }
}
