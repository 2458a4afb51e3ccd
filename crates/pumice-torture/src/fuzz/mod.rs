//! Entry points of the fuzzers: one function per target, for bytes from untrusted sources.
//!
//! * `bytes`: the decoders of `format`, and `codec` below them.
//! * `image`: a small drive's medium, written from a script with valid checksums; a checkpoint if
//!   the script has one.
//! * `open`: opens and checks such a medium. `transfer`: the input of `pumice receive`.
//! * `nbd`: the NBD server against any client; `nbd_client`: the client against any server, and its
//!   queries for holes; `nbd_handover`: a server against the handover of any predecessor.
//! * `vhost`: a vhost-user device against any front end and any guest.
//! * `fuse`: a FUSE session against any kernel. `sockets`: code shared by the targets on sockets.
//! * `keys`: key slots of encrypted drives.
//! * `objects`: objects and journal of a drive in a bucket.
//! * `files`: traces, results of benchmarks, partial results of scans.
//!
//! An entry point panics when a promise is broken; otherwise it returns whether the input was
//! accepted: a corpus without accepted inputs tests nothing. The fuzzers in `fuzz/` call the entry
//! points; `tests` calls them with every file of `fuzz/corpus/`, without a fuzzer. No state
//! survives a call (except the runtime that sockets need), so that an input reproduces its failure.
//!
//! Random bytes rarely pass a checksum. So the targets correct the checksums first, by the offsets
//! of `docs/format.md` and not with the encoders under test.

mod bytes;
mod files;
mod fuse;
mod image;
mod keys;
mod nbd;
mod nbd_client;
mod nbd_handover;
mod objects;
mod open;
mod sockets;
#[cfg(test)]
mod tests;
mod transfer;
mod vhost;

pub use bytes::{array, batch, checkpoint, leaf, record, segment, superblock};
pub use files::{bench_results, scan_partial, trace};
pub use fuse::fuse;
pub use keys::key_slot;
pub use nbd::{nbd_handshake, nbd_transmission};
pub use nbd_client::{nbd_allocation, nbd_client};
pub use nbd_handover::nbd_handover;
pub use objects::object;
pub use open::open;
pub use transfer::transfer;
pub use vhost::{vhost_message, vhost_request};

/// A fuzz entry point; returns whether the input was accepted.
pub type EntryPoint = fn(&[u8]) -> bool;

/// Every target: its name in `fuzz/fuzz_targets/` and `fuzz/corpus/`, and its entry point. A new
/// target needs a line here, a binary in `fuzz/`, its name in the Makefile, and a few seeds.
pub const TARGETS: [(&str, EntryPoint); 22] = [
    ("superblock", superblock),
    ("array", array),
    ("key_slot", key_slot),
    ("object", object),
    ("segment", segment),
    ("batch", batch),
    ("record", record),
    ("leaf", leaf),
    ("checkpoint", checkpoint),
    ("open", open),
    ("transfer", transfer),
    ("nbd_handshake", nbd_handshake),
    ("nbd_transmission", nbd_transmission),
    ("nbd_client", nbd_client),
    ("nbd_allocation", nbd_allocation),
    ("nbd_handover", nbd_handover),
    ("fuse", fuse),
    ("vhost_message", vhost_message),
    ("vhost_request", vhost_request),
    ("trace", trace),
    ("bench_results", bench_results),
    ("scan_partial", scan_partial),
];
