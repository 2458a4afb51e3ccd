//! Keys and ciphers of encrypted drives.
//!
//! ```text
//! passphrase, key, recovery code --Argon2id or HKDF--> wrapping key --opens a slot--> master key
//! master key, uuid --HKDF--> payload key | header keys | keys of the MACs
//!
//! payload  nonce 12 | AES-256-GCM-SIV ciphertext | tag 16     bound to its identity, see `Binding`
//! headers  AES-256-XTS, tweaked by their place in one use of a segment, and AES-256-CMAC
//! ```
//!
//! * `cipher`: the keys of the drive on a medium, and their uses: payloads, headers, MACs.
//! * `keys`: the keys derived from one master key.
//! * `xts`: AES-XTS with ciphertext stealing, for units of 16 bytes or more.
//! * `wrap`: a master key under a passphrase or another key.
//! * `recovery`: recovery codes, as people copy them.
//! * `random`: nonces, salts and keys.
//!
//! This module has no notion of a record, a slot or a drive: callers pass the bytes and their
//! binding. `docs/encryption.md` has the reasons.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

mod cipher;
mod keys;
mod random;
mod recovery;
mod wrap;
mod xts;

pub(crate) use cipher::MAC_BYTES;
pub use cipher::{Binding, Cipher, PLAIN, SEAL_BYTES, Wrapped};
pub use keys::{KEY_BYTES, MasterKey};
pub use random::Randomness;
pub use recovery::RecoveryCode;
pub use wrap::{Derivation, KEY_SECRET_BYTES_MIN, Secret, unwrap, wrap};
pub(crate) use wrap::{NONCE_BYTES, SALT_BYTES, WRAPPED_BYTES};
