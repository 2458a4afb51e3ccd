//! A master key wrapped under a secret: under a passphrase, by Argon2id, or under a key, by HKDF;
//! then AES-256-GCM-SIV.
//!
//! Source: RFC 9106 (Argon2), RFC 5869 (HKDF), RFC 8452 (AES-GCM-SIV).

use std::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use aws_lc_rs::aead::{Aad, Nonce};
use zeroize::Zeroizing;

use super::keys::{KEY_BYTES, MasterKey, aead, derive};
use crate::base::{Error, ErrorContext, ErrorKind, Result, ensure};

pub(crate) const SALT_BYTES: usize = 32;

pub(crate) const NONCE_BYTES: usize = 12;

/// Bytes of a wrapped master key.
pub(crate) const WRAPPED_BYTES: usize = KEY_BYTES + 16;

/// Minimum bytes of a secret that is not a passphrase: only its length protects it.
pub const KEY_SECRET_BYTES_MIN: usize = 32;

/// Maximum memory, in KiB, that stored parameters may request from Argon2: 1 GiB.
const MEMORY_KIB_MAX: u32 = 1 << 20;

/// Maximum passes and lanes that stored parameters may request from Argon2. Arbitrary; the defaults
/// are a fraction of it.
const PASSES_MAX: u32 = 64;
const LANES_MAX: u8 = 16;

/// A secret that opens a slot. Its bytes are erased when it is dropped.
#[derive(Clone)]
pub enum Secret {
    /// A passphrase.
    Passphrase(Zeroizing<Vec<u8>>),
    /// A key: at least [`KEY_SECRET_BYTES_MIN`] bytes that cannot be guessed.
    Key(Zeroizing<Vec<u8>>),
    /// The bits of a recovery code.
    Recovery(Zeroizing<[u8; KEY_BYTES]>),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passphrase(_) => "Passphrase",
            Self::Key(_) => "Key",
            Self::Recovery(_) => "Recovery",
        })
    }
}

/// The derivation of a wrapping key from a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Derivation {
    /// From a passphrase.
    Argon2id {
        /// Memory in KiB.
        memory_kib: u32,
        /// Passes over the memory.
        passes: u32,
        /// Lanes.
        lanes: u8,
    },
    /// From a key.
    Hkdf,
}

impl Derivation {
    /// The default for passphrases: a tenth of a second and 64 MiB, which every machine that serves
    /// a drive can spare. Source: RFC 9106, section 4, the second recommended option.
    pub(crate) const PASSPHRASE: Self =
        Self::Argon2id { memory_kib: 64 << 10, passes: 3, lanes: 4 };

    /// Returns whether this program accepts these parameters.
    pub fn is_possible(&self) -> bool {
        match *self {
            Self::Hkdf => true,
            Self::Argon2id { memory_kib, passes, lanes } => {
                (1..=LANES_MAX).contains(&lanes)
                    && (8 * u32::from(lanes)..=MEMORY_KIB_MAX).contains(&memory_kib)
                    && (1..=PASSES_MAX).contains(&passes)
            }
        }
    }
}

/// Derives the wrapping key of a secret.
fn wrapping_key(
    secret: &Secret,
    derivation: Derivation,
    salt: &[u8; SALT_BYTES],
) -> Result<Zeroizing<[u8; KEY_BYTES]>> {
    const INVALID: ErrorKind = ErrorKind::InvalidInput;
    ensure(derivation.is_possible(), ErrorKind::Corrupt, "a key slot's parameters are invalid")?;
    match (secret, derivation) {
        (Secret::Passphrase(passphrase), Derivation::Argon2id { memory_kib, passes, lanes }) => {
            let params = Params::new(memory_kib, passes, lanes.into(), Some(KEY_BYTES)).ok();
            let params = params.or_error(ErrorKind::Corrupt, "parameters of Argon2")?;
            let mut key = Zeroizing::new([0; KEY_BYTES]);
            let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
            let hashed = argon2.hash_password_into(passphrase, salt, &mut *key).ok();
            hashed.or_error(INVALID, "the passphrase is too long")?;
            Ok(key)
        }
        (Secret::Key(key), Derivation::Hkdf) => Ok(derive(key, salt, "pumice 1 key slot")),
        (Secret::Recovery(code), Derivation::Hkdf) => {
            Ok(derive(&**code, salt, "pumice 1 recovery slot"))
        }
        (Secret::Passphrase(_), Derivation::Hkdf) | (_, Derivation::Argon2id { .. }) => {
            Err(Error::new(INVALID, "the secret and the key slot are of different kinds"))
        }
    }
}

/// Wraps a master key under a secret, bound to `bound`.
///
/// # Errors
/// `InvalidInput` for a secret that does not fit the derivation, or an overlong one.
pub fn wrap(
    master: &MasterKey,
    secret: &Secret,
    derivation: Derivation,
    salt: &[u8; SALT_BYTES],
    nonce: [u8; NONCE_BYTES],
    bound: &[u8],
) -> Result<[u8; WRAPPED_BYTES]> {
    let key = wrapping_key(secret, derivation, salt)?;
    let mut wrapped = [0; WRAPPED_BYTES];
    let (bytes, tag) = wrapped.split_at_mut(KEY_BYTES);
    bytes.copy_from_slice(master.bytes());
    let nonce = Nonce::assume_unique_for_key(nonce);
    let sealed = aead(&key).seal_in_place_separate_tag(nonce, Aad::from(bound), bytes);
    tag.copy_from_slice(sealed.expect("a key is short").as_ref());
    Ok(wrapped)
}

/// Unwraps a key that [`wrap`] wrapped; `None` if the secret is a different one, or a byte was
/// changed.
///
/// # Errors
/// `Corrupt` for impossible parameters; the errors of [`wrap`].
pub fn unwrap(
    wrapped: &[u8; WRAPPED_BYTES],
    secret: &Secret,
    derivation: Derivation,
    salt: &[u8; SALT_BYTES],
    nonce: [u8; NONCE_BYTES],
    bound: &[u8],
) -> Result<Option<MasterKey>> {
    let key = wrapping_key(secret, derivation, salt)?;
    let mut bytes = Zeroizing::new(*wrapped);
    let nonce = Nonce::assume_unique_for_key(nonce);
    let opened = aead(&key).open_in_place(nonce, Aad::from(bound), &mut *bytes);
    let opened = opened.ok().and_then(|opened| opened.first_chunk::<KEY_BYTES>());
    Ok(opened.map(|master| MasterKey::from_bytes(Zeroizing::new(*master))))
}
