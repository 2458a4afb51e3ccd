//! Reads the scanned data: read-only, without changing access times where that is permitted, and
//! within the requested rate.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, Mode, OFlags, fadvise, open};

use super::population::{Location, Source};
use pumice_drive::base::clock::Clock;
use pumice_drive::base::units::{BLOCK_BYTES, transfer_ns};
use pumice_drive::base::{AlignedBuffer, Error};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::client::{Client, Uri};

/// The rate limit of one of several readers.
struct Pace {
    bytes_per_s: u64,
    clock: Option<Runtime>,
    /// The time at which it may read again.
    free_at_ns: u64,
}

impl Pace {
    /// Waits until `bytes` bytes may be read.
    fn wait(&mut self, bytes: u64) -> io::Result<()> {
        let clock = match &mut self.clock {
            Some(clock) => clock,
            clock => clock.insert(Runtime::new(Backend::Auto).map_err(failed)?),
        };
        let now_ns = clock.now_ns();
        if self.free_at_ns > now_ns {
            clock.block_on(clock.sleep_ns(self.free_at_ns - now_ns));
        }
        let begin_ns = self.free_at_ns.max(now_ns);
        self.free_at_ns = begin_ns.saturating_add(transfer_ns(bytes, self.bytes_per_s));
        Ok(())
    }
}

/// The reader of one thread; keeps its last source open.
pub(super) struct Reader {
    pace: Option<Pace>,
    /// The access pattern, for the kernel.
    advice: Advice,
    open: Option<(String, Open)>,
}

enum Open {
    File(File),
    Export(Runtime, Client),
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.close();
    }
}

impl Reader {
    /// Creates a reader for all bytes in order, or else for few at random offsets, limited to
    /// `bytes_per_s`.
    pub(super) fn new(bytes_per_s: Option<u64>, in_order: bool) -> Self {
        let advice = if in_order { Advice::Sequential } else { Advice::Random };
        let pace = bytes_per_s.map(|bytes_per_s| Pace { bytes_per_s, clock: None, free_at_ns: 0 });
        Self { pace, advice, open: None }
    }

    /// Reads `blocks` blocks from block `first` of a source into `buffer`; a partial last block is
    /// padded with zeroes.
    ///
    /// # Errors
    /// `UnexpectedEof` if the source has become shorter; the errors of the operating system and of
    /// the server.
    pub(super) fn read(
        &mut self,
        source: &Source,
        first: u64,
        blocks: u64,
        buffer: &mut Vec<u8>,
    ) -> io::Result<()> {
        let offset = first * BLOCK_BYTES as u64;
        let length = (blocks as usize) * BLOCK_BYTES;
        let there = (source.bytes.saturating_sub(offset)).min(length as u64) as usize;
        if let Some(pace) = &mut self.pace {
            pace.wait(there as u64)?;
        }
        buffer.resize(length, 0);
        buffer[there..].fill(0);
        self.open(source)?;
        match &self.open.as_ref().expect("it was just opened").1 {
            Open::File(file) => file.read_exact_at(&mut buffer[..there], offset),
            Open::Export(runtime, client) => {
                let mut into = AlignedBuffer::zeroed(there);
                into.set_len(there);
                let (read, result) = runtime.block_on(client.read(offset, into));
                result.map_err(failed)?;
                buffer[..there].copy_from_slice(&read);
                Ok(())
            }
        }
    }

    fn open(&mut self, source: &Source) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|(name, _)| *name == source.name) {
            return Ok(());
        }
        self.close();
        let open = match &source.location {
            Location::File(path) => {
                let file = open_quietly(path)?;
                // A hint; without it, reading is only slower.
                let _ = fadvise(&file, 0, None, self.advice);
                Open::File(file)
            }
            Location::Export(uri) => {
                let runtime = Runtime::new(Backend::Auto).map_err(failed)?;
                let uri = Uri::parse(uri).map_err(failed)?;
                let client = runtime.block_on(Client::connect(&runtime, &uri)).map_err(failed)?;
                Open::Export(runtime, client)
            }
        };
        self.open = Some((source.name.clone(), open));
        Ok(())
    }

    fn close(&mut self) {
        if let Some((_, Open::Export(runtime, client))) = self.open.take() {
            // All data was read; how the server ends the connection does not matter.
            let _ = runtime.block_on(client.disconnect());
            drop(client);
            runtime.drop_tasks();
        }
    }

    /// Reads the first bytes of a file, at most the length of `buffer`; empty for anything but a
    /// file.
    pub(super) fn head<'b>(&mut self, source: &Source, buffer: &'b mut [u8]) -> &'b [u8] {
        let Ok(()) = self.open(source) else { return &[] };
        match &self.open {
            Some((_, Open::File(file))) => match file.read_at(buffer, 0) {
                Ok(length) => &buffer[..length],
                Err(_) => &[],
            },
            _ => &[],
        }
    }
}

fn failed(error: Error) -> io::Error {
    io::Error::other(error.to_string())
}

/// Opens a file for reading, without changing its access time if the process owns the file.
fn open_quietly(path: &Path) -> io::Result<File> {
    // The file may have become a pipe, and opening a pipe would block.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let quiet = open(path, flags | OFlags::NOATIME, Mode::empty());
    let opened = match quiet {
        Err(rustix::io::Errno::PERM) => open(path, flags, Mode::empty()),
        opened => opened,
    };
    Ok(File::from(opened?))
}
