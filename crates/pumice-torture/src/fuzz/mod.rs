//! Entry points of the fuzzers: one function a target, from bytes that anyone may have made.
//!
//! * `bytes`: the decoders of `format`, and `codec` behind them.
//! * `image`: a small drive's medium, written as a script says, its checksums right; a checkpoint
//!   if the script has one.
//! * `open`: opens and checks such a medium.
//! * `nbd`: a client of the NBD server.
//!
//! An entry point panics when something is wrong and else says whether the input was taken for
//! good: a corpus of which nothing is taken tests nothing. The fuzzers in `fuzz/` call them with
//! the feature `fuzz`; `tests` calls them with every file of `fuzz/corpus/`, without a fuzzer.
//! Deliberately absent: state between two calls (but for the runtime that sockets need), so that
//! an input found does the same again.
//!
//! A decoder is rarely reached behind a checksum. So the targets put the checksums right first,
//! by the offsets of `docs/format.md` and not with the encoders that they are held against.

mod bytes;
mod image;
mod nbd;
mod open;
#[cfg(test)]
mod tests;

pub use bytes::{batch, checkpoint, leaf, record, segment, superblock};
pub use nbd::{nbd_handshake, nbd_transmission};
pub use open::open;

/// What a fuzzer calls: says whether the input was taken for good.
pub type EntryPoint = fn(&[u8]) -> bool;

/// Every target: its name in `fuzz/fuzz_targets/` and `fuzz/corpus/`, and its entry point. A new
/// one takes a line here, a binary in `fuzz/` and a few seeds.
pub const TARGETS: [(&str, EntryPoint); 9] = [
    ("superblock", superblock),
    ("segment", segment),
    ("batch", batch),
    ("record", record),
    ("leaf", leaf),
    ("checkpoint", checkpoint),
    ("open", open),
    ("nbd_handshake", nbd_handshake),
    ("nbd_transmission", nbd_transmission),
];
