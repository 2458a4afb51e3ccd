//! A disk as the only file of a FUSE file system, on which the kernel sets up a loop device.
//!
//! ```text
//! loop device --direct I/O--> fuse --one read of /dev/fuse--> session, a task --> disk
//!      ^                                                         |
//!      +-------------- reply: one write of /dev/fuse ------------+
//! ```
//!
//! * `wire`: the kernel's protocol.
//! * `file`: the file system: its one file and the operations on it.
//! * `payloads`: memory for the data of requests, limited in bytes.
//! * `session`: reads and answers requests, on the drive's thread.
//! * `mount`: mounts and unmounts.
//!
//! The cost of 4 KiB besides the drive itself: one read and one write of `/dev/fuse`; one copy
//! between user and kernel; no allocation for a write that need not wait, a task for everything
//! else. A request that arrives while the thread sleeps wakes it: one wake-up for each request at
//! depth 1, few at depth 32.
//!
//! Implements the protocol without a library because the existing ones call back from a loop of
//! their own, on a thread of its own, which costs two more context switches and one more copy for
//! each request (`benches/attach.sh`).
//!
//! Absent: caching of any kind (the file is open for direct I/O only), other files, changes of the
//! disk's size after mounting, the loop device itself.

// Applies to code outside of tests. Tests index and cast values that they created themselves.
#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::indexing_slicing
    )
)]

mod file;
mod mount;
mod payloads;
mod session;
#[cfg(test)]
mod tests;
mod wire;

pub use file::file_name;
pub use mount::{FuseMount, serve};
