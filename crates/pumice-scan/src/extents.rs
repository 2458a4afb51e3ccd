//! The parts of a file that contain data, excluding holes and space that is allocated but was never
//! written.
//!
//! `SEEK_DATA` finds the holes. It reports unwritten space as data while its pages are in the page
//! cache. The extent map of the file system ([`super::fiemap`]) identifies such space, and its
//! cached contents are examined block by block: zeroes are not data; any other contents have been
//! written and will reach the disk. The result therefore does not depend on earlier reads. Reading
//! unwritten space costs no I/O.
//!
//! Without such a map (tmpfs, ZFS, NFS, most FUSE file systems), only `SEEK_DATA` is used.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::fiemap;
use super::population::Extent;
use pumice_drive::base::units::BLOCK_BYTES;

/// Maximum number of runs of data, and of unwritten extents, in a file. The remainder counts as
/// data.
pub(super) const EXTENTS_MAX: usize = 1 << 16;

/// Minimum size for reading the extent map of a file without holes. Smaller files count as data,
/// because opening every file would make the listing of large trees several times slower.
const MAPPED_BYTES_MIN: u64 = 1 << 20;

/// Bytes per read.
const PIECE_BYTES: usize = 1 << 20;

/// Returns whether a regular file uses less space than its length, which means that it has holes.
pub(super) fn is_sparse(metadata: &Metadata) -> bool {
    metadata.blocks() * 512 < metadata.len()
}

/// Returns whether a regular file may contain space without data.
pub(super) fn may_have_holes(metadata: &Metadata) -> bool {
    is_sparse(metadata) || metadata.len() >= MAPPED_BYTES_MIN
}

/// Returns the runs of blocks with data in the first `bytes` bytes; `None` if all blocks contain
/// data. A block contains data if any of its bytes is data.
///
/// # Errors
/// An error from the operating system.
pub(super) fn data(file: &File, bytes: u64) -> io::Result<Option<Vec<Extent>>> {
    let mut unwritten = Vec::new();
    fiemap::unwritten(file, bytes, |range| {
        unwritten.push(range);
        unwritten.len() < EXTENTS_MAX
    })?;
    let mut runs = Runs::default();
    let (mut at, mut next) = (0, 0);
    while at < bytes {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            // The whole file counts as data if the file system cannot report holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(error) => return Err(error.into()),
        };
        let hole = if runs.is_full() { bytes } else { hole_after(file, data, bytes)? };
        let mut from = data;
        while let Some(range) = unwritten.get(next).filter(|range| range.start < hole) {
            if range.end > from {
                runs.add(from..range.start.max(from));
                add_written(file, range.start.max(from)..range.end.min(hole), &mut runs)?;
                from = range.end.min(hole);
            }
            if range.end > hole {
                break;
            }
            next += 1;
        }
        runs.add(from..hole);
        at = hole.max(data + 1);
    }
    let whole = [Extent { first: 0, blocks: bytes.div_ceil(BLOCK_BYTES as u64) }];
    Ok((runs.0 != whole).then_some(runs.0))
}

fn hole_after(file: &File, data: u64, bytes: u64) -> io::Result<u64> {
    match seek(file, SeekFrom::Hole(data)) {
        Ok(hole) => Ok(hole.min(bytes)),
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NXIO) => Ok(bytes),
        Err(error) => Err(error.into()),
    }
}

/// Adds the blocks of an unwritten range whose contents in the page cache are not zero.
fn add_written(file: &File, range: Range<u64>, runs: &mut Runs) -> io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES.min((range.end - range.start) as usize)];
    let mut at = range.start;
    while at < range.end && !runs.is_full() {
        let wanted = buffer.len().min((range.end - at) as usize);
        let read = file.read_at(&mut buffer[..wanted], at)?;
        if read == 0 {
            return Ok(());
        }
        for (index, block) in buffer[..read].chunks(BLOCK_BYTES).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                let start = at + (index * BLOCK_BYTES) as u64;
                runs.add(start..start + block.len() as u64);
            }
        }
        at += read as u64;
    }
    if runs.is_full() {
        runs.add(at..range.end);
    }
    Ok(())
}

/// Runs of blocks under construction, in ascending order.
#[derive(Default)]
pub(super) struct Runs(pub(super) Vec<Extent>);

impl Runs {
    /// Returns whether the limit on separate runs has been reached.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= EXTENTS_MAX
    }

    /// Adds the blocks of a byte range, which must not start before the previous one. Adjacent runs
    /// are merged.
    pub(super) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let block = BLOCK_BYTES as u64;
        let (first, end) = (range.start / block, range.end.div_ceil(block));
        let is_full = self.is_full();
        match self.0.last_mut() {
            // If a file has too many pieces, the gaps between its last runs count as data.
            Some(last) if is_full || first <= last.first + last.blocks => {
                last.blocks = last.blocks.max(end - last.first);
            }
            _ => self.0.push(Extent { first, blocks: end - first }),
        }
    }
}
