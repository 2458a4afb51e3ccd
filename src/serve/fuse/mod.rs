//! A disk as one file of a FUSE file system, for the kernel to make a block device of.
//!
//! ```text
//! loop device --direct I/O--> fuse --/dev/fuse--> session thread --inbox--> drive's thread
//!      ^                                                                         |
//!      +------------------------- reply: one write of /dev/fuse -----------------+
//! ```
//!
//! * `file`: the file system of one file, on the session thread: what a request asks for, and
//!   whether it lies on the disk.
//! * `inbox`: the way to the drive's thread, bounded in bytes.
//! * `carry`: what the drive's thread does with a request.
//! * `mount`: its beginning and its end.
//!
//! What 4 KiB cost beside the drive itself: one read and one write of `/dev/fuse`; two copies
//! between user and kernel for a read or a write, of which the session thread makes one, and one
//! more of a write's data, out of the session's only buffer, while the drive's thread does other
//! things; no allocation, as payloads are kept. The drive's thread is woken once for all requests
//! that come while it sleeps or works, by 8 bytes into its eventfd, and only if it sleeps: at depth
//! 1 that is one wake-up a request, at depth 32 few.
//!
//! Absent: caching of any kind (the file is open for direct I/O only), other files, changes of the
//! disk's size after mounting, the loop device itself.

mod carry;
mod file;
mod inbox;
mod mount;

pub use mount::{FILE_NAME, FuseMount};
