//! The file system: a directory with one file, whose content is that of the disk.
//!
//! This module defines attributes and operations. Changes beyond the end are refused here; reads
//! end there, as for any file. Files cannot be created, truncated or opened for cached I/O.

use rustix::fs::FileType;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::wire::{Asked, Attributes, FileSystem, Opened, ROOT, open};
use pumice_nbd::Allocation;

/// The name of the file if the name of the disk is not a valid file name.
const PLAIN_NAME: &str = "disk";

/// Maximum length of a name in bytes. Source: Linux, `NAME_MAX`.
const NAME_BYTES_MAX: usize = 255;

/// Returns the name of the only file: the name of the disk, truncated to the maximum length, or
/// `disk` if the name is not a valid file name.
pub fn file_name(disk: &str) -> &str {
    let is_possible = |name: &str| !name.contains(['/', '\0']) && !["", ".", ".."].contains(&name);
    let name = disk.get(..disk.floor_char_boundary(NAME_BYTES_MAX));
    name.filter(|name| is_possible(name)).unwrap_or(PLAIN_NAME)
}

/// Inode number of the file.
const FILE: u64 = 2;

/// Block size of the file and of the disk. A loop device derives its discard granularity from it.
const BLOCK_BYTES: u32 = 4096;

/// Modes of fallocate: `FALLOC_FL_KEEP_SIZE`, `_PUNCH_HOLE`, `_ZERO_RANGE` of Linux's
/// `falloc.h`.
const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;

/// The file system.
pub(super) struct DiskFile {
    pub(super) name: String,
    pub(super) size_bytes: u64,
    pub(super) is_read_only: bool,
}

impl DiskFile {
    /// Answers an operation that needs no data of the disk.
    ///
    /// # Errors
    /// The error for the kernel: no such file, or no such operation.
    pub(super) fn answer(&self, node: u64, asked: &Asked) -> Result<Vec<u8>, Errno> {
        match *asked {
            Asked::Lookup { name } if node == ROOT && name == self.name.as_bytes() => {
                Ok(self.attributes(FILE)?.entry().as_bytes().to_vec())
            }
            Asked::Lookup { .. } => Err(Errno::NOENT),
            Asked::Attributes => Ok(self.attributes(node)?.valid().as_bytes().to_vec()),
            Asked::Open => {
                let opened = Opened::new(open::DIRECT_IO | open::PARALLEL_DIRECT_WRITES);
                Ok(opened.as_bytes().to_vec())
            }
            Asked::OpenDirectory => Ok(Opened::new(0).as_bytes().to_vec()),
            Asked::ReadDirectory { offset: 0, length } => {
                let listed = self.attributes(FILE)?.listed(&self.name, 1);
                if listed.len() <= length as usize { Ok(listed) } else { Err(Errno::INVAL) }
            }
            // Closing a descriptor promises nothing about durability.
            Asked::ReadDirectory { .. } | Asked::End => Ok(Vec::new()),
            Asked::FileSystem => {
                let blocks = self.size_bytes / u64::from(BLOCK_BYTES);
                Ok(FileSystem::new(blocks, BLOCK_BYTES, NAME_BYTES_MAX).as_bytes().to_vec())
            }
            // After one such answer, the kernel does not send the operation again.
            _ => Err(Errno::NOSYS),
        }
    }

    fn attributes(&self, node: u64) -> Result<Attributes, Errno> {
        let (kind, size_bytes, permissions, links) = match node {
            ROOT => (FileType::Directory, 0, 0o500, 2),
            FILE if self.is_read_only => (FileType::RegularFile, self.size_bytes, 0o400, 1),
            FILE => (FileType::RegularFile, self.size_bytes, 0o600, 1),
            _ => return Err(Errno::NOENT),
        };
        let mode = kind.as_raw_mode() | permissions;
        Ok(Attributes::new(node, size_bytes, mode, links, BLOCK_BYTES))
    }

    /// Returns the number of bytes that exist among the `length` bytes at `offset`.
    pub(super) fn readable(&self, offset: u64, length: u32) -> u32 {
        let rest = self.size_bytes.saturating_sub(offset);
        u32::try_from(rest).map_or(length, |rest| rest.min(length))
    }

    /// Checks that a range to be changed is on the disk.
    ///
    /// # Errors
    /// The range is outside of the disk, or the disk is read-only.
    pub(super) fn check_change(&self, offset: u64, length: u64) -> Result<(), Errno> {
        let end = offset.checked_add(length).filter(|&end| end <= self.size_bytes);
        match (self.is_read_only, end) {
            (true, _) => Err(Errno::ROFS),
            (false, None) => Err(Errno::FBIG),
            (false, Some(_)) => Ok(()),
        }
    }

    /// Returns whether the range that an fallocate zeroes stays allocated.
    ///
    /// # Errors
    /// Any other mode of fallocate, or a range outside of the disk.
    pub(super) fn check_zero(
        &self,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<Allocation, Errno> {
        // A hole reads as zeroes up to its last byte. It is therefore not a trim, which preserves
        // partly covered blocks: a loop device punches holes for both discard and write-zeroes.
        let allocation = match mode & !KEEP_SIZE {
            PUNCH_HOLE => Allocation::Release,
            ZERO_RANGE => Allocation::Keep,
            _ => return Err(Errno::OPNOTSUPP),
        };
        self.check_change(offset, length).map(|()| allocation)
    }
}
