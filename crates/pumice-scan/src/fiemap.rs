//! Finds the extents of a file that are allocated but were never written (`FS_IOC_FIEMAP`).
//!
//! Such extents read as zeroes and contain no data. `SEEK_DATA` reports them as data while any of
//! their pages is in the page cache, so its result alone depends on earlier reads.
//!
//! This is the only file of the crate with unsafe code: the system call requires a structure that
//! ends with an array, and there is no safe binding. The map is read in its current state
//! (`FIEMAP_FLAG_SYNC` is not set), because a scan must not cause a file system to write.
//!
//! Source: Linux, Documentation/filesystems/fiemap.rst and include/uapi/linux/fiemap.h.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// Extents per system call; they occupy 4 KiB.
const EXTENTS: usize = 72;

/// Flags of an extent: the last one in the file; allocated but not written.
const LAST: u32 = 1 << 0;
const UNWRITTEN: u32 = 1 << 11;

/// `struct fiemap` without its array.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Header {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
}

/// `struct fiemap_extent`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_flags: [u32; 3],
}

/// `struct fiemap` with an array of [`EXTENTS`] extents.
#[repr(C)]
struct Request {
    header: Header,
    extents: [Extent; EXTENTS],
}

const _: () = assert!(size_of::<Header>() == 32 && size_of::<Extent>() == 56);
const _: () = assert!(size_of::<Request>() == 32 + 56 * EXTENTS, "no padding before the array");

const FS_IOC_FIEMAP: Opcode = opcode::read_write::<Header>(b'f', 11);

/// Calls `visit` for each unwritten extent that overlaps the first `bytes` bytes, in file order,
/// until it returns false. Returns whether the file system supports this map.
///
/// # Errors
/// An error from the operating system, except for an unsupported map.
pub(super) fn unwritten(
    file: &File,
    bytes: u64,
    mut visit: impl FnMut(Range<u64>) -> bool,
) -> io::Result<bool> {
    let mut at = 0;
    while at < bytes {
        let request = match extents(file, at, bytes - at) {
            Ok(request) => request,
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::NOSYS) if at == 0 => {
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        };
        let count = (request.header.mapped_extents as usize).min(EXTENTS);
        let before = at;
        for extent in &request.extents[..count] {
            let end = extent.logical.saturating_add(extent.length);
            if extent.flags & UNWRITTEN != 0 && !visit(extent.logical..end.min(bytes)) {
                return Ok(true);
            }
            at = at.max(end);
            if extent.flags & LAST != 0 {
                return Ok(true);
            }
        }
        // There are no more extents, or there was no progress.
        if at == before {
            break;
        }
    }
    Ok(true)
}

/// Returns the extents in a range, limited to the size of the array.
fn extents(file: &File, start: u64, length: u64) -> Result<Box<Request>, Errno> {
    let header = Header { start, length, extent_count: EXTENTS as u32, ..Header::default() };
    let mut request = Box::new(Request { header, extents: [Extent::default(); EXTENTS] });
    // SAFETY: the request starts with the header that the kernel expects for this opcode. Its array
    // has as many extents as the header states, in the kernel's layout (asserted above). All bytes
    // are valid values of its fields, and it outlives the call.
    unsafe {
        let updater = Updater::<FS_IOC_FIEMAP, Request>::new(&mut *request);
        ioctl(file, updater)?;
    }
    Ok(request)
}
