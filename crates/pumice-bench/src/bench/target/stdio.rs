//! A file accessed through a buffer of this process, like `fwrite` and `fread` of the C library.
//!
//! ```text
//! write: data that fits joins the buffer; otherwise the buffer is written, then whole buffers
//!        directly from the caller, and the rest stays in the buffer
//! read:  data in the buffer; then whole buffers directly to the caller, and for a rest smaller
//!        than a buffer, one buffer is read
//! ```
//!
//! The system calls are `read`, `write` and `lseek`, at the descriptor's own offset. They block the
//! thread, so only one request is in flight. The page cache is always used.
//!
//! Source: the system calls of glibc 2.36's `fwrite` and `fread`, as recorded with strace.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, ErrorKind as IoKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::sync::Arc;

use super::file::{failed, too_short};
use super::{Access, Location, Target};
use crate::error::{Error, Result};
use pumice_drive::base::AlignedBuffer;

/// Buffer size in bytes. The C library uses `st_blksize`, which has this value on the usual file
/// systems of Linux. It is constant here, so that file systems can be compared.
const BUFFER_BYTES: usize = 4096;

/// An open file with its buffer.
pub struct StdioTarget(RefCell<Stream>);

struct Stream {
    file: File,
    /// Offset of the caller. The descriptor's offset is higher during reads and lower during
    /// writes.
    position: u64,
    buffer: [u8; BUFFER_BYTES],
    held: Held,
}

/// The valid contents of the buffer.
enum Held {
    Unread(Range<usize>),
    Unwritten(usize),
}

impl StdioTarget {
    /// Opens the file of a location.
    ///
    /// # Errors
    /// The errors of [`Location::open_file`].
    pub fn open(location: &Location) -> Result<Self> {
        let file = location.open_file(Access { direct: false })?;
        let buffer = [0; BUFFER_BYTES];
        Ok(Self(RefCell::new(Stream { file, position: 0, buffer, held: Held::Unread(0..0) })))
    }
}

impl Stream {
    /// Seeks to the caller's offset if necessary.
    fn seek(&mut self, offset: u64) -> io::Result<()> {
        self.write_buffer()?;
        self.held = Held::Unread(0..0);
        self.file.seek(SeekFrom::Start(offset))?;
        self.position = offset;
        Ok(())
    }

    fn write_buffer(&mut self) -> io::Result<()> {
        if let Held::Unwritten(filled) = self.held {
            self.file.write_all(&self.buffer[..filled])?;
            self.held = Held::Unwritten(0);
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset != self.position || matches!(self.held, Held::Unread(_)) {
            self.seek(offset)?;
        }
        let filled = if let Held::Unwritten(filled) = self.held { filled } else { 0 };
        let (fitting, rest) = data.split_at(data.len().min(BUFFER_BYTES - filled));
        self.buffer[filled..][..fitting.len()].copy_from_slice(fitting);
        self.held = Held::Unwritten(filled + fitting.len());
        if !rest.is_empty() {
            self.write_buffer()?;
            let (whole, tail) = rest.split_at(rest.len() - rest.len() % BUFFER_BYTES);
            self.file.write_all(whole)?;
            self.buffer[..tail.len()].copy_from_slice(tail);
            self.held = Held::Unwritten(tail.len());
        }
        self.position += data.len() as u64;
        Ok(())
    }

    /// Returns the number of bytes read.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        if offset != self.position || matches!(self.held, Held::Unwritten(_)) {
            self.seek(offset)?;
        }
        let mut unread = if let Held::Unread(unread) = &self.held { unread.clone() } else { 0..0 };
        let mut count = 0;
        while count < out.len() {
            let missing = out.len() - count;
            if unread.is_empty() && missing >= BUFFER_BYTES {
                let whole = missing - missing % BUFFER_BYTES;
                match uninterrupted(&mut self.file, &mut out[count..][..whole])? {
                    0 => break,
                    read => count += read,
                }
                continue;
            }
            if unread.is_empty() {
                unread = 0..uninterrupted(&mut self.file, &mut self.buffer)?;
                if unread.is_empty() {
                    break;
                }
            }
            let taken = missing.min(unread.len());
            out[count..][..taken].copy_from_slice(&self.buffer[unread.start..][..taken]);
            unread.start += taken;
            count += taken;
        }
        self.held = Held::Unread(unread);
        self.position += count as u64;
        Ok(count)
    }
}

fn uninterrupted(file: &mut File, out: &mut [u8]) -> io::Result<usize> {
    loop {
        match file.read(out) {
            Err(error) if error.kind() == IoKind::Interrupted => {}
            result => return result,
        }
    }
}

impl Target for StdioTarget {
    async fn read(&self, offset: u64, mut buffer: AlignedBuffer) -> (AlignedBuffer, Result<()>) {
        let result = match self.0.borrow_mut().read(offset, &mut buffer) {
            Ok(count) if count == buffer.len() => Ok(()),
            Ok(count) => Err(too_short(buffer.len(), offset, count)),
            Err(error) => Err(failed("read", offset, error)),
        };
        (buffer, result)
    }

    async fn write(&self, offset: u64, buffer: &Arc<AlignedBuffer>) -> Result<()> {
        let written = self.0.borrow_mut().write(offset, buffer);
        written.map_err(|error| failed("write", offset, error))
    }

    /// Writes the buffer first, as `fflush` does.
    async fn flush(&self) -> Result<()> {
        let mut stream = self.0.borrow_mut();
        let flushed = stream.write_buffer().and_then(|()| stream.file.sync_data());
        flushed.map_err(|error| Error::io("flush failed", error))
    }

    async fn trim(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(Error::unsupported("C library streams do not support trim"))
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    //! Goal: data written through the buffer reaches the file, data read through it equals the
    //! file, and the system calls are the same as the C library's. Method: records of many sizes,
    //! aligned and unaligned, compared with the file; the descriptor's offset shows the transferred
    //! bytes.
    use super::*;

    fn target(folder: &std::path::Path, bytes: &[u8]) -> (StdioTarget, std::path::PathBuf) {
        let path = folder.join("data");
        std::fs::write(&path, bytes).unwrap();
        (StdioTarget::open(&Location::File(path.clone())).unwrap(), path)
    }

    fn pattern(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at / 7 % 251) as u8).collect()
    }

    #[test]
    fn the_file_has_the_written_data() {
        for record in [512, 1024, 4096, 6144, 8192, 10_240, 65_536] {
            let folder = tempfile::tempdir().unwrap();
            let (target, path) = target(folder.path(), &[]);
            let data = pattern(record * 9);
            let mut stream = target.0.borrow_mut();
            for (number, part) in data.chunks(record).enumerate() {
                stream.write((number * record) as u64, part).unwrap();
            }
            stream.write_buffer().unwrap();
            assert!(std::fs::read(path).unwrap() == data, "records of {record} bytes");
        }
    }

    #[test]
    fn reads_return_the_content_of_the_file() {
        for record in [512, 1024, 4096, 6144, 8192, 10_240, 65_536] {
            let folder = tempfile::tempdir().unwrap();
            let data = pattern(record * 9);
            let (target, _) = target(folder.path(), &data);
            let mut stream = target.0.borrow_mut();
            for (number, part) in data.chunks(record).enumerate() {
                let mut out = vec![0; record];
                let count = stream.read((number * record) as u64, &mut out).unwrap();
                assert!(count == record && out == part, "record {number} of {record} bytes");
            }
            assert_eq!(stream.read(data.len() as u64, &mut [0; 512]).unwrap(), 0);
        }
    }

    #[test]
    fn offsets_and_directions_may_change() {
        let folder = tempfile::tempdir().unwrap();
        let (target, path) = target(folder.path(), &[0; 16_384]);
        let mut stream = target.0.borrow_mut();
        let mut out = [0; 512];
        stream.read(0, &mut out).unwrap();
        stream.write(512, &[1; 512]).unwrap();
        stream.write(8192, &[2; 512]).unwrap();
        assert_eq!((stream.read(512, &mut out).unwrap(), out), (512, [1; 512]));
        assert_eq!((stream.read(8192, &mut out).unwrap(), out), (512, [2; 512]));
        stream.write(8192, &[3; 512]).unwrap();
        stream.write_buffer().unwrap();
        drop(stream);
        let mut wanted = vec![0; 16_384];
        wanted[512..1024].fill(1);
        wanted[8192..8704].fill(3);
        assert!(std::fs::read(path).unwrap() == wanted);
    }

    #[test]
    fn system_calls_match_the_c_library() {
        // Records, and the descriptor's offset after each of them. The offsets agree with strace of
        // glibc, except that glibc has no buffer yet at its first write.
        let written: [(usize, [u64; 4]); 4] = [
            (1024, [0, 0, 0, 0]),
            (4096, [0, 8192, 8192, 16_384]),
            (6144, [4096, 12_288, 16_384, 24_576]),
            (65_536, [65_536, 131_072, 196_608, 262_144]),
        ];
        for (record, offsets) in written {
            let folder = tempfile::tempdir().unwrap();
            let (target, _) = target(folder.path(), &[]);
            let mut stream = target.0.borrow_mut();
            let found = [0, 1, 2, 3].map(|number| {
                stream.write((number * record) as u64, &vec![0; record]).unwrap();
                stream.file.stream_position().unwrap()
            });
            assert_eq!(found, offsets, "writes of {record} bytes");
        }
        let read: [(usize, [u64; 4]); 3] = [
            (1024, [4096, 4096, 4096, 4096]),
            (6144, [8192, 12_288, 20_480, 24_576]),
            (65_536, [65_536, 131_072, 196_608, 262_144]),
        ];
        for (record, offsets) in read {
            let folder = tempfile::tempdir().unwrap();
            let (target, _) = target(folder.path(), &[0; 262_144]);
            let mut stream = target.0.borrow_mut();
            let found = [0, 1, 2, 3].map(|number| {
                stream.read((number * record) as u64, &mut vec![0; record]).unwrap();
                stream.file.stream_position().unwrap()
            });
            assert_eq!(found, offsets, "reads of {record} bytes");
        }
    }
}
