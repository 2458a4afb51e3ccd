//! NBD, both ends. [`client`] is the one; this file describes the other.
//!
//! The NBD server: fixed newstyle handshake, simple, structured and extended replies, metadata
//! contexts, TLS, any number of exports, each any [`Disk`].
//!
//! Everything runs on the runtime's one thread; each connection is one task. Knows no segment and
//! no format.
//!
//! ```text
//!            +---------------------- connection: one task -----------------------+
//!  socket -> | incoming -> reader --- write on the spot ---------> replies       | -> socket
//!            |               |                                       ^  sender   |
//!            |               +-- job -> slots (64 x execute) --------+           |
//!            +--------------------------- | -------------------------------------+
//!                                        Disk        (payload buffers: budget)
//! ```
//!
//! A connection's states:
//!
//! ```text
//!  accepted -> handshake -> transmission -> draining -> closed
//!                  |             |              ^ |
//!                  |             +- DISC, end of stream, wrong magic, broken socket
//!                  |             |                +- requests ended, replies sent or 5 s over
//!                  |             +- parked, to be resumed by the next server
//!                  +- ABORT, wrong magic, unknown name, limits, 10 s over -> closed
//! ```
//!
//! **What it should cost.** A 4 KiB write at depth 32 is 28 + 4096 bytes in and 16 bytes out. One
//! 64 KiB receive brings 15 of them and one send answers 15, so the two system calls (about 1.5 us
//! each, and 64 KiB of copying in the kernel, about 8 us) come to 0.8 us for each request;
//! decoding, checking and counting to less than 0.1 us. The rest is the disk's. At depth 1 it is
//! one receive and one send for each request, and the client's and the kernel's wake-ups, which
//! dominate.
//!
//! Counted over a disk in memory with a runtime on `poll` (fio, nbd engine, 20,000 requests of 4
//! KiB, Unix socket): at depth 32, 1,882 receives and 631 sends for writes, 2,851 and 2,836 for
//! reads; at depth 1 one send for each, one receive for each read and 1.01 for each write (the
//! client sends header and payload apart). Allocations after warm-up: none, but for the counter of
//! a write above 1 MiB.
//!
//! | file | noun |
//! |---|---|
//! | `wire`, `chunks` | bytes of the protocol, error values |
//! | `contexts` | metadata contexts |
//! | `request` | which requests are accepted |
//! | `export` | what is served, and its name |
//! | `handshake` | options |
//! | `channel`, `tls` | a socket, perhaps encrypted |
//! | `incoming`, `replies` | the two halves of a channel |
//! | `reader` | requests as they arrive |
//! | `slots`, `execute` | requests under way, and what they do |
//! | `reading`, `block_status` | requests whose replies have data |
//! | `budget` | memory for payloads |
//! | `session` | state that those share |
//! | `connection`, `server` | the order of steps |
//! | `handover` | connections that another process goes on with |
//!
//! [`Disk`]: crate::Disk

mod block_status;
mod budget;
mod channel;
mod chunks;
pub mod client;
mod connection;
mod contexts;
pub mod disk;
mod execute;
mod export;
mod handover;
mod handshake;
mod incoming;
pub mod listen;
pub mod memory_disk;
mod read_reply;
mod receive;
mod replies;
mod request;
mod server;
mod session;
mod slots;
mod tls;
mod wire;

#[cfg(test)]
mod tests;

pub use disk::Disk;
pub use export::Export;
pub use handover::{Handover, Parked};
pub use listen::{Access, Listen, Listener};
pub use server::{Options, Security, Server};
pub use tls::Identity;

/// Length of the pieces in which longer requests are streamed, in bytes. A write up to this length
/// is all there or not at all after a crash; a longer one is so piece by piece.
const PIECE_BYTES: usize = 1 << 20;
