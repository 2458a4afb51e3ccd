//! A vhost-user-blk device: a [`Disk`](pumice_nbd::Disk) for virtual machines, over shared memory.
//!
//! ```text
//!  guest: virtio-blk driver         VMM (QEMU, cloud-hypervisor, crosvm): the front end
//!     | descriptors and data in        | messages over a Unix socket, with the descriptors of
//!     | the guest's memory             | the guest's memory and of two eventfds for each ring
//!     v                                v
//!  ring ---- kick -->  run, a task   session, a task
//!   ^                    |  takes requests, executes short writes immediately
//!   +---- call ------  complete <--- execute, a worker for each other request --> disk
//! ```
//!
//! * `message`: the protocol's messages. `channel`: receives and sends them.
//! * `session`: one front end, from its connection to its end. `guest`: which guests may continue.
//! * `memory`: the guest's memory, and the translation of the front end's addresses.
//! * `config`: features and configuration space of the device.
//! * `request`: requests of virtio-blk in a chain of descriptors.
//! * `ring`: a queue of requests. `execute`: takes requests from the rings of a device and executes
//!   them; `workers`: the tasks for requests that may wait.
//! * `buffers`: memory for the data of requests, limited in bytes.
//! * `server`: accepts one front end after another.
//! * `driver`: a front end for tests and measurements (feature `driver`).
//!
//! Everything runs on the drive's thread: no lock and no other thread is on the path of a request.
//! The cost of 4 KiB in addition to the drive itself: one copy between the guest's memory and ours;
//! no system call while requests keep arriving, except one to notify the guest of requests
//! completed together; no allocation for a write that need not wait, and few for any other request.
//!
//! **Trust.** The guest is not trusted: invalid bytes in its rings, descriptors and headers cost it
//! an error or its ring. It may change its memory at any time, so each byte is read once: headers
//! are checked as copies, and data is copied into a buffer before the drive computes checksums or
//! compresses. The front end *is* trusted in three respects. It must not truncate the file of the
//! memory that it shares or keep it in a full tmpfs, which ends this process by SIGBUS, as in every
//! vhost-user device. It must not share files that are slow to read (of FUSE or NFS, or watched by
//! userfaultfd), because the thread waits for each page that it touches. And it must not make the
//! eventfds blocking again. Its messages are limited and checked.
//!
//! The protocol is implemented here on the types of the `vhost` crate, not with its server, because
//! that server blocks its thread for each message, and cannot report a change of the size.
//!
//! Absent: migration of a running guest (no log of dirty pages), packed rings, polling without
//! notifications, several concurrent front ends of one disk.

// Applies to the program's own code. Tests index and cast values that they created themselves.
#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::indexing_slicing
    )
)]

mod buffers;
mod channel;
mod config;
#[cfg(any(test, feature = "driver"))]
pub mod driver;
mod execute;
mod guest;
mod memory;
mod message;
mod request;
mod ring;
mod server;
mod session;
#[cfg(test)]
mod tests;
mod workers;

pub use guest::{KnownGuest, NotAGuest};
pub use request::ID_BYTES as SERIAL_BYTES;
pub use server::{Identity, Server};

/// Entry points for fuzzing: decoders of bytes chosen by the front end and the guest.
pub mod fuzzing {
    pub use crate::message::fuzz as message;
    pub use crate::request::fuzz as request;
}
