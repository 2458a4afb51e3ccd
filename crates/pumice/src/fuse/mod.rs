//! A disk as one file of a FUSE file system, for the kernel to make a block device of.
//!
//! ```text
//! loop device --direct I/O--> fuse --one read of /dev/fuse--> session, a task --> disk
//!      ^                                                         |
//!      +-------------- reply: one write of /dev/fuse ------------+
//! ```
//!
//! * `wire`: the kernel's protocol.
//! * `file`: the file system of one file: what may be asked of it, and what it is.
//! * `payloads`: memory for what requests carry, bounded in bytes.
//! * `session`: the conversation with the kernel, on the drive's thread.
//! * `mount`: its beginning and its end.
//!
//! What 4 KiB cost beside the drive itself: one read and one write of `/dev/fuse`; one copy between
//! user and kernel; no allocation for a write that need not wait, a task for all else. The thread
//! is woken when a request comes while it sleeps: at depth 1 that is one wake-up a request, at
//! depth 32 few.
//!
//! The protocol is spoken here rather than by a library because those that there are call back from
//! a loop of their own: on a thread of its own, which costs two changes of context and a copy more
//! for a request (`benches/attach.sh`).
//!
//! Absent: caching of any kind (the file is open for direct I/O only), other files, changes of the
//! disk's size after mounting, the loop device itself.

mod file;
mod mount;
mod payloads;
mod session;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use file::FILE_NAME;
pub(crate) use mount::FuseMount;
