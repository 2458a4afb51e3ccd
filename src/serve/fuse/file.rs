//! The file system: a directory with one file, whose bytes are the disk's.
//!
//! What can be answered from the size is answered here, on the session thread; what concerns bytes
//! goes to the inbox. Requests beyond the end are refused here: reads end there, as of any file.
//! Nothing can be created, truncated or opened for caching.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, WriteFlags,
};

use super::inbox::{Inbox, REQUEST_BYTES_MAX, Request};
use super::mount::FILE_NAME;

/// The file's number; the directory has 1.
const FILE: INodeNo = INodeNo(2);

/// How long the kernel may believe what it was told: nothing ever changes.
const VALID: Duration = Duration::from_secs(86_400);

/// Unit of the file: the disk's blocks. A loop device takes its discard granularity from it.
const BLOCK_BYTES: u32 = 4096;

/// Requests under way that the kernel counts as background, which all asynchronous direct I/O is:
/// twice the requests of a loop device. The default of 12 would be the queue depth.
const BACKGROUND_MAX: u16 = 256;

/// Modes of fallocate: `FALLOC_FL_KEEP_SIZE`, `_PUNCH_HOLE`, `_ZERO_RANGE` of Linux's
/// `falloc.h`.
const KEEP_SIZE: i32 = 0x01;
const PUNCH_HOLE: i32 = 0x02;
const ZERO_RANGE: i32 = 0x10;

/// The file system.
pub(super) struct DiskFile {
    pub(super) size_bytes: u64,
    pub(super) is_read_only: bool,
    pub(super) inbox: Arc<Inbox>,
}

impl DiskFile {
    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let is_file = inode == FILE;
        let size = if is_file { self.size_bytes } else { 0 };
        (is_file || inode == INodeNo::ROOT).then_some(FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: match (is_file, self.is_read_only) {
                (true, true) => 0o400,
                (true, false) => 0o600,
                (false, _) => 0o500,
            },
            nlink: if is_file { 1 } else { 2 },
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: BLOCK_BYTES,
            flags: 0,
        })
    }

    /// Whether a range that is to be changed lies on the disk; else what to say.
    fn check_change(&self, offset: u64, length: u64) -> Result<(), Errno> {
        let end = offset.checked_add(length).filter(|&end| end <= self.size_bytes);
        match (self.is_read_only, end) {
            (true, _) => Err(Errno::EROFS),
            (false, None) => Err(Errno::EFBIG),
            (false, Some(_)) => Ok(()),
        }
    }
}

impl Filesystem for DiskFile {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Without asynchronous direct I/O a loop device has one request under way at a time.
        let wanted = InitFlags::FUSE_ASYNC_DIO;
        config.add_capabilities(wanted).map_err(|missing| {
            std::io::Error::other(format!("the kernel's FUSE lacks {missing:?}"))
        })?;
        // Each answers with the nearest that it can do, which is good enough.
        let _ = config.set_max_write(REQUEST_BYTES_MAX as u32);
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.set_congestion_threshold(BACKGROUND_MAX);
        Ok(())
    }

    fn destroy(&mut self) {
        self.inbox.end();
    }

    fn lookup(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let is_there = parent == INodeNo::ROOT && name == FILE_NAME;
        match self.attributes(FILE).filter(|_| is_there) {
            Some(attributes) => reply.entry(&VALID, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &fuser::Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&VALID, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn readdir(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if offset == 0 {
            // One entry fits the smallest buffer.
            let _ = reply.add(FILE, 1, FileType::RegularFile, FILE_NAME);
        }
        reply.ok();
    }

    fn open(&self, _: &fuser::Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = self.size_bytes.saturating_sub(offset);
        // The kernel asks for no more than it was told it may write.
        let length = left.min(size.into()).min(REQUEST_BYTES_MAX as u64) as usize;
        if length == 0 {
            return reply.data(&[]);
        }
        let payload = self.inbox.payload(length);
        self.inbox.push(Request::Read { offset, payload, reply });
    }

    fn write(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if let Err(error) = self.check_change(offset, data.len() as u64) {
            return reply.error(error);
        }
        let mut payload = self.inbox.payload(data.len());
        payload.bytes_mut().copy_from_slice(data);
        self.inbox.push(Request::Write { offset, payload, reply });
    }

    fn flush(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        reply: ReplyEmpty,
    ) {
        // A descriptor is closed, which promises nothing.
        reply.ok();
    }

    fn fsync(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.inbox.push(Request::Flush { reply });
    }

    fn fallocate(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        // A hole reads as zeroes to its last byte, so it is no trim, which keeps partly covered
        // blocks: a loop device punches holes for both of discard and write-zeroes.
        let keep_allocated = match mode & !KEEP_SIZE {
            PUNCH_HOLE => false,
            ZERO_RANGE => true,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        match self.check_change(offset, length) {
            Ok(()) => self.inbox.push(Request::Zero { offset, length, keep_allocated, reply }),
            Err(error) => reply.error(error),
        }
    }

    fn statfs(&self, _: &fuser::Request, _: INodeNo, reply: ReplyStatfs) {
        let blocks = self.size_bytes / u64::from(BLOCK_BYTES);
        reply.statfs(blocks, 0, 0, 1, 0, BLOCK_BYTES, FILE_NAME.len() as u32, BLOCK_BYTES);
    }
}
