//! Reads the scanned data: read-only, without changing access times if permitted, without filling
//! the page cache if the kernel supports it, and within the requested rate. Holes are not read.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, Mode, OFlags, fadvise, open};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::population::{Location, Source};
use pumice_drive::base::clock::Clock;
use pumice_drive::base::units::{BLOCK_BYTES, transfer_ns};
use pumice_drive::base::{AlignedBuffer, Error};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::client::{Client, Uri};

/// The rate limit for one of several readers.
struct Pace {
    bytes_per_s: u64,
    clock: Option<Runtime>,
    /// The time at which the next read may start.
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

/// The reader of one thread, which keeps its last source open.
pub(super) struct Reader {
    pace: Option<Pace>,
    /// The expected access pattern, as advice to the kernel.
    advice: Advice,
    open: Option<(String, Open)>,
}

enum Open {
    File(Uncached),
    Export(Runtime, Client),
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.close();
    }
}

impl Reader {
    /// Creates a reader, limited to `bytes_per_s`, for all bytes in order or, otherwise, for few
    /// bytes at random offsets.
    pub(super) fn new(bytes_per_s: Option<u64>, in_order: bool) -> Self {
        let advice = if in_order { Advice::Sequential } else { Advice::Random };
        let pace = bytes_per_s.map(|bytes_per_s| Pace { bytes_per_s, clock: None, free_at_ns: 0 });
        Self { pace, advice, open: None }
    }

    /// Reads `blocks` blocks from block `first` of a source into `buffer`. Holes, and the end of a
    /// partial last block, are filled with zeroes without reading. Returns the number of bytes
    /// read.
    ///
    /// # Errors
    /// `UnexpectedEof` if the source has become shorter; errors from the operating system and the
    /// server.
    pub(super) fn read(
        &mut self,
        source: &Source,
        first: u64,
        blocks: u64,
        buffer: &mut Vec<u8>,
    ) -> io::Result<u64> {
        buffer.clear();
        buffer.resize(blocks as usize * BLOCK_BYTES, 0);
        self.open(source)?;
        let mut all = 0;
        for run in source.runs_in(first, blocks) {
            let offset = run.first * BLOCK_BYTES as u64;
            let length = run.blocks * BLOCK_BYTES as u64;
            let there = source.bytes.saturating_sub(offset).min(length) as usize;
            if let Some(pace) = &mut self.pace {
                pace.wait(there as u64)?;
            }
            let target = &mut buffer[(run.first - first) as usize * BLOCK_BYTES..][..there];
            match &mut self.open.as_mut().expect("it was just opened").1 {
                Open::File(file) => file.read(target, offset)?,
                Open::Export(runtime, client) => {
                    let mut into = AlignedBuffer::zeroed(there);
                    into.set_len(there);
                    let (read, result) = runtime.block_on(client.read(offset, into));
                    result.map_err(failed)?;
                    target.copy_from_slice(&read);
                }
            }
            all += there as u64;
        }
        Ok(all)
    }

    fn open(&mut self, source: &Source) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|(name, _)| *name == source.name) {
            return Ok(());
        }
        self.close();
        let open = match &source.location {
            Location::File(path) => Open::File(Uncached::new(open_quietly(path)?, self.advice)),
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
            // All data has been read, so disconnection errors do not matter.
            let _ = runtime.block_on(client.disconnect());
            drop(client);
            runtime.drop_tasks();
        }
    }

    /// Reads the first bytes of a file, limited to the length of `buffer`. Returns an empty slice
    /// for anything other than a file.
    pub(super) fn head<'b>(&mut self, source: &Source, buffer: &'b mut [u8]) -> &'b [u8] {
        let Ok(()) = self.open(source) else { return &[] };
        match &self.open {
            Some((_, Open::File(file))) => match file.file.read_at(buffer, 0) {
                Ok(length) => &buffer[..length],
                Err(_) => &[],
            },
            _ => &[],
        }
    }
}

/// A file whose reads leave the page cache unchanged: pages read by other programs remain, and
/// pages read by the scan are dropped.
struct Uncached {
    file: File,
    advice: Advice,
    /// Whether the kernel can read without keeping the pages in the cache.
    has_dontcache: bool,
}

/// `RWF_DONTCACHE`, since Linux 6.14: drops the pages that the call reads from the disk. Source:
/// Linux, include/uapi/linux/fs.h.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

impl Uncached {
    fn new(file: File, advice: Advice) -> Self {
        // This is only a hint; without it, reading is merely slower.
        let _ = fadvise(&file, 0, None, advice);
        Self { file, advice, has_dontcache: true }
    }

    /// Fills `target` with the data at `offset`.
    fn read(&mut self, target: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while self.has_dontcache && done < target.len() {
            let rest = &mut [IoSliceMut::new(&mut target[done..])];
            match preadv2(&self.file, rest, offset + done as u64, DONTCACHE) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => self.has_dontcache = false,
                Err(error) => return Err(error.into()),
            }
        }
        if done == target.len() {
            return Ok(());
        }
        self.read_and_drop(&mut target[done..], offset + done as u64)
    }

    /// The alternative for older kernels: drops the pages that were not in the cache before the
    /// read. It is not used when all data is read in order, because the kernel then reads ahead.
    fn read_and_drop(&self, target: &mut [u8], offset: u64) -> io::Result<()> {
        let mut cached = 0;
        if self.advice == Advice::Random {
            let whole = &mut [IoSliceMut::new(target)];
            cached = preadv2(&self.file, whole, offset, ReadWriteFlags::NOWAIT).unwrap_or(0);
        }
        let (offset, rest) = (offset + cached as u64, &mut target[cached..]);
        self.file.read_exact_at(rest, offset)?;
        if self.advice == Advice::Random {
            // This is also only a hint.
            let _ =
                fadvise(&self.file, offset, NonZeroU64::new(rest.len() as u64), Advice::DontNeed);
        }
        Ok(())
    }
}

fn failed(error: Error) -> io::Error {
    io::Error::other(error.to_string())
}

/// Opens a file for reading, without changing its access time if the process owns the file.
pub(super) fn open_quietly(path: &Path) -> io::Result<File> {
    // The file may have been replaced with a pipe, and opening a pipe would block.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let quiet = open(path, flags | OFlags::NOATIME, Mode::empty());
    let opened = match quiet {
        Err(rustix::io::Errno::PERM) => open(path, flags, Mode::empty()),
        opened => opened,
    };
    Ok(File::from(opened?))
}
