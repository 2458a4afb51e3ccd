//! A compressing, log-structured block device as a library.
//!
//! A *drive* is a disk of 4 KiB blocks, like an SSD in software. It compresses every write, packs
//! the compressed frames byte by byte and appends them to a log on a *medium*: a file, a block
//! device, memory, or storage of your own. Garbage collection, checkpoints and recovery are part of
//! the drive. The `pumice` program serves drives to other machines; this crate puts one into your
//! program.
//!
//! ```
//! use std::rc::Rc;
//!
//! use pumice_drive::{Drive, MemMedium, OpenOptions, Result, Runtime, Spec, Uuid, create};
//!
//! # fn main() -> Result<()> {
//! // A runtime in virtual time suits tests; `Runtime::new(Backend::Auto)` does real I/O.
//! let runtime = Runtime::simulated();
//! runtime.block_on(async {
//!     // A disk of 64 MiB. The spec determines how large its medium must be.
//!     let spec = Spec::new(Uuid::from_u128(1), 64 << 20);
//!     let medium = MemMedium::new(spec.geometry()?.medium_bytes());
//!     create(&medium, &spec).await?;
//!
//!     let options = OpenOptions::default();
//!     let drive = Drive::open(Rc::new(medium.clone()), runtime.clock(), options).await?;
//!     drive.write(4096, b"hello").await?;
//!     drive.flush().await?; // durable from here on
//!     drive.close().await?;
//!
//!     let drive = Drive::open(Rc::new(medium), runtime.clock(), options).await?;
//!     let mut bytes = [0; 5];
//!     drive.read(4096, &mut bytes).await?;
//!     assert_eq!(&bytes, b"hello");
//!     drive.close().await
//! })
//! # }
//! ```
//!
//! The directory `examples/` has complete programs: `embed` keeps a drive in a file, `snapshots`
//! takes snapshots and rolls back, and `custom_medium` adds a medium of its own. The crate
//! `pumice-nbd` has `nbd_export`, which serves a drive to other programs.
//!
//! # What a drive promises
//!
//! * **Durability.** When [`Drive::flush`] or [`Drive::write_durable`] returns, every write
//!   acknowledged before it survives `kill -9`, power loss and torn sectors.
//! * **Prefix consistency.** After a crash, the drive holds a prefix of the acknowledged changes
//!   that includes at least everything up to the last flush. A write of up to 1 MiB is applied
//!   completely or not at all.
//! * **Integrity.** Checksums cover every stored byte. A damaged block fails its reads; it is never
//!   returned as zeroes, as older data or as wrong data.
//! * **Space.** A full medium refuses new writes with [`ErrorKind::NoSpace`] before it acknowledges
//!   them. Reads, trims, flushes and garbage collection continue, and after a trim writes continue
//!   too.
//! * **Memory.** The map cache, the buffers and the in-flight data have fixed budgets, whatever the
//!   size of the drive. See [`OpenOptions`].
//! * **An open format.** `docs/format.md` describes every byte. A drive can be rebuilt from its
//!   segments alone.
//!
//! # Features
//!
//! * LZ4 or zstd at any level from -7 to 19. Incompressible data is detected and stored at nearly
//!   memory speed. See [`Codec`].
//! * Random 4 KiB writes without a read-modify-write of their neighbours.
//! * Trim and write-zeroes in constant time for large ranges; holes read without I/O.
//! * Optional recompression of cold data with a denser codec during garbage collection.
//! * Snapshots: read them, compare them, roll back to them, create writable clones of them, and
//!   transfer their differences to other drives. See [`snapshots`] and [`Drive::create_snapshot`].
//! * Encryption at rest with AES-256. See [`Spec::keys`].
//! * Mirrors of several members, and objects in a bucket with a local journal. See
//!   [`media::array`] and [`media::tier`].
//! * Online scrubbing and resizing; checking, extraction and rebuilding without a server.
//! * Any storage through [`Medium`], and any wrapper of one through [`Layer`].
//! * Simulation: the same code runs in virtual time, and one seed repeats a run exactly.
//!
//! # What it is not
//!
//! * Not a file system and not a key-value store: it stores numbered blocks.
//! * Not thread-safe: a drive lives on the thread of its [`Runtime`]. Send requests to that thread
//!   through a channel.
//! * Not for a general async executor: a drive needs this crate's [`Runtime`] for I/O and time, or
//!   an implementation of [`Clock`] and [`Medium`] on another executor.
//! * Not replicated to other machines. [`media::array`] mirrors a drive on local devices.
//! * Not released. The format may still change. Do not store your only copy of any data in it.
//! * Not portable: Linux only, with io_uring if the kernel has it.
//!
//! # Limits
//!
//! | what | limit |
//! |---|---|
//! | size of the disk | 4 KiB to 16 PiB, a multiple of 4 KiB |
//! | segment | 4 MiB to 1 GiB, 32 MiB by default |
//! | segments | 11 to 2^24 |
//! | frame | 1 to 64 blocks of 4 KiB, 8 by default |
//! | atomic write | 1 MiB |
//! | openings at a time | one for writing, or any number for reading |
//!
//! # Modules
//!
//! The root of the crate and [`snapshots`] export every name that an embedder needs, including
//! every type in the public methods of [`Drive`]. [`media`] and [`runtime`] document storage and
//! execution. The modules [`base`], [`codec`], [`controller`], [`crypt`] and [`format`](mod@format)
//! are public because the other crates of the workspace use them: the server, the simulator, the
//! benchmarks and the torture test. Names that only those modules export may change at any time.

pub mod base;
pub mod codec;
pub mod controller;
pub mod crypt;
pub mod format;
pub mod media;
pub mod runtime;

/// Snapshots, clones, and transfers between drives.
pub mod snapshots {
    #[doc(inline)]
    pub use crate::controller::{
        Changed, Compared, Condition, Flattened, NewSnapshot, Origin, Partial, Receive, Received,
        RegisteredClone, SendStream, SnapshotInfo, SuspendedChanges, TransferReader, View,
    };
    #[doc(inline)]
    pub use crate::format::TransferHead;
}

#[doc(inline)]
pub use base::clock::AnyClock;
#[doc(inline)]
pub use base::{AlignedBuffer, Clock, Error, ErrorKind, Lba, Remedy, Result, SegmentId, SeqNo};
#[doc(inline)]
pub use codec::{Codec, Workers};
#[doc(inline)]
pub use controller::{
    Allocation, Compacted, Content, Drive, Extent, Info, Memory, NewKeys, OpenOptions, Operations,
    Overview, Rekeyed, Resize, Resized, ScrubReport, SegmentMap, SettingsChange, SettingsChanged,
    Spec, StoredSettings, WARN_THRESHOLDS_MAX, create,
};
#[doc(inline)]
pub use media::file::{FileMedium, FileOptions};
#[doc(inline)]
pub use media::layer::Layer;
#[doc(inline)]
pub use media::mem::MemMedium;
#[doc(inline)]
pub use media::{AnyMedium, Capabilities, Geometry, Medium};
#[doc(inline)]
pub use runtime::{Backend, Runtime};
/// The type of a drive's identity, from the crate `uuid`.
#[doc(no_inline)]
pub use uuid::Uuid;
