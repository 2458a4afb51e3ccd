//! A server and a client for NBD, the Network Block Device protocol.
//!
//! The [`Server`] supports the fixed newstyle handshake, simple, structured and extended replies,
//! metadata contexts and TLS, and serves any number of exports. An [`Export`] serves anything that
//! implements [`Disk`]: a Pumice drive, or your own type. The [`Client`] reads, writes, flushes and
//! trims an export of any server.
//!
//! A server and its disks run on the one thread of a [`Runtime`]; each connection is one task. If
//! disks are on several threads, a front server accepts clients, performs handshakes, and passes
//! each client to the thread of its disk: [`Server::in_front_of`]. The crate has no notion of
//! segments or of the format of a drive.
//!
//! ```
//! use std::rc::Rc;
//!
//! use pumice_drive::base::AlignedBuffer;
//! use pumice_drive::runtime::{Backend, Runtime};
//! use pumice_nbd::memory_disk::MemoryDisk;
//! use pumice_nbd::{Access, Client, Durability, Export, Listen, Listener, Options, Server, Uri};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! let socket = directory.path().join("disk.sock");
//!
//! let runtime = Runtime::new(Backend::Auto)?;
//! let export = Rc::new(Export::new("disk", "1 MiB in memory", Rc::new(MemoryDisk::new(1 << 20))));
//! let server = Server::new(runtime.clone(), vec![export], Options::default());
//! let listener = Listener::bind(&Listen::Unix(socket.clone()), Access::default())?;
//! runtime.spawn(server.clone().serve(listener));
//!
//! runtime.block_on(async {
//!     let client = Client::connect(&runtime, &Uri::unix(&socket, "disk")).await?;
//!     let data = b"hello...".repeat(64);
//!     client.write(4096, &data, Durability::Volatile).await?;
//!     client.flush().await?;
//!     let (data, result) = client.read(4096, AlignedBuffer::zeroed(512)).await;
//!     result?;
//!     assert_eq!(data[..5], *b"hello");
//!     client.disconnect().await?;
//!     server.shutdown().await
//! })?;
//! # runtime.drop_tasks();
//! # Ok(())
//! # }
//! ```
//!
//! The server supports neither oldstyle clients nor pre-shared TLS keys. The client supports
//! neither TLS nor structured replies, and does not reconnect.
//!
//! # How the server works
//!
//! ```text
//!            +---------------------- connection: one task -----------------------+
//!  socket -> | incoming -> receive --- write at once ------------> replies       | -> socket
//!            |               |                                       ^  sender   |
//!            |               +-- job -> slots (64 x execute) --------+           |
//!            +--------------------------- | -------------------------------------+
//!                                        Disk        (payload buffers: budget)
//! ```
//!
//! The states of a connection:
//!
//! ```text
//!  accepted -> handshake -> transmission -> draining -> closed
//!                  |             |              ^ |
//!                  |             +- DISC, end of stream, wrong magic, broken socket
//!                  |             |                +- requests ended, replies sent, or after 5 s
//!                  |             +- parked, to be resumed by the next server
//!                  +- ABORT, wrong magic, unknown name, limits, after 10 s -> closed
//! ```
//!
//! **Expected cost of a request.** A 4 KiB write at depth 32 is 28 + 4096 bytes in and 16 bytes
//! out. One 64 KiB receive delivers 15 of them and one send answers 15. The two system calls (about
//! 1.5 us each, and 64 KiB of copying in the kernel, about 8 us) therefore cost 0.8 us per request,
//! and decoding and checking less than 0.1 us. The rest is the cost of the disk. At depth 1, each
//! request costs one receive and one send, and the wake-ups of the client and of the kernel
//! dominate.
//!
//! **Measured cost**, over a disk in memory with a runtime on `poll` (fio, nbd engine, 20,000
//! requests of 4 KiB, Unix socket): at depth 32, 1,882 receives and 631 sends for writes, 2,851 and
//! 2,836 for reads; at depth 1, one send for each request, one receive for each read and 1.01 for
//! each write (the client sends header and payload separately).
//!
//! **Allocations** after warm-up: the future of the disk for each request, except for a write that
//! need not wait, and a counter of the pieces of a write above 1 MiB.
//!
//! | file | contents |
//! |---|---|
//! | `wire`, `chunks` | bytes of the protocol, error values |
//! | `contexts` | metadata contexts |
//! | `request` | validation of requests |
//! | `disk`, `any_disk` | the interface of a served disk, and the same as a trait object |
//! | `export` | a disk and its name |
//! | `handshake` | options |
//! | `channel`, `tls` | a socket, in plain text or encrypted |
//! | `identity`, `certificate` | identity of the server, and names of its clients |
//! | `policy`, `rate` | access to exports, and limits of their use |
//! | `caller`, `roster` | clients as other threads see them |
//! | `notices` | log lines about clients |
//! | `incoming`, `replies` | the two halves of a channel |
//! | `receive` | requests as they arrive |
//! | `slots`, `execute` | requests in flight, and their execution |
//! | `read_reply`, `block_status` | requests whose replies carry data |
//! | `spare_time` | the share of a thread that BLOCK_STATUS may use |
//! | `budget` | memory for payloads |
//! | `session` | state shared by the parts of a connection |
//! | `options` | security and limits of a server |
//! | `connection`, `server` | the order of steps |
//! | `changes` | a server that changes while it serves |
//! | `remote_exports` | exports on another thread |
//! | `tally` | counters for any thread |
//! | `handover` | connections that another process continues |
//! | `client` | the client |
//!
//! [`Runtime`]: pumice_drive::runtime::Runtime

// Applies to code outside of tests. Tests index and cast values that they created themselves.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::indexing_slicing)
)]

mod any_disk;
mod block_status;
mod budget;
mod caller;
mod certificate;
mod changes;
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
mod identity;
mod incoming;
pub mod listen;
pub mod memory_disk;
mod notices;
mod options;
mod policy;
mod rate;
mod read_reply;
mod receive;
mod remote_exports;
mod replies;
mod request;
mod roster;
mod server;
mod session;
mod slots;
mod spare_time;
mod tally;
mod tls;
mod wire;

#[cfg(test)]
mod tests;

pub use any_disk::AnyDisk;
pub use certificate::Validity;
pub use client::{Capabilities, Client, Uri};
pub use disk::{Allocation, Change, Content, Disk, Durability, Extent};
pub use export::{Announcement, Earlier, Export, Lineage};
pub use handover::{Handover, Parked};
pub use identity::Identity;
pub use ipnet::IpNet;
pub use listen::{Access, Endpoint, Listen, Listener};
pub use options::{Options, Security};
pub use policy::{Policy, Rules};
pub use rate::Rate;
pub use remote_exports::RemoteExports;
pub use roster::{Listed, Roster};
pub use server::Server;
pub use tally::Tally;

/// Length of the pieces in which longer requests are streamed, in bytes. After a crash, a write up
/// to this length is present completely or not at all; for a longer write, this applies to each
/// piece.
const PIECE_BYTES: usize = 1 << 20;
