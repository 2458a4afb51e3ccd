//! The keys derived from one master key of a drive: by HKDF-SHA-256 with the drive's identity as
//! the salt, so that no two drives share a key.
//!
//! Source: RFC 5869.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM_SIV, LessSafeKey, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use uuid::Uuid;
use zeroize::Zeroizing;

use super::Randomness;
use super::xts::Xts;

/// Bytes of every key.
pub const KEY_BYTES: usize = 32;

/// The key from which all keys of a drive are derived. Its bytes are erased when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct MasterKey(Zeroizing<[u8; KEY_BYTES]>);

impl MasterKey {
    /// Draws a new key.
    pub fn draw(randomness: &Randomness) -> Self {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        randomness.fill(&mut *key);
        Self(key)
    }

    /// Returns the master key with these bytes.
    pub fn from_bytes(bytes: Zeroizing<[u8; KEY_BYTES]>) -> Self {
        Self(bytes)
    }

    pub(super) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey")
    }
}

/// The length of a key, for HKDF.
struct Length;

impl KeyType for Length {
    fn len(&self) -> usize {
        KEY_BYTES
    }
}

pub(super) fn derive(secret: &[u8], salt: &[u8], label: &str) -> Zeroizing<[u8; KEY_BYTES]> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    let extracted = Salt::new(HKDF_SHA256, salt).extract(secret);
    let info = [label.as_bytes()];
    let expanded = extracted.expand(&info, Length);
    let expanded = expanded.and_then(|expanded| expanded.fill(&mut *key));
    expanded.expect("HKDF has up to 255 times as many bytes");
    key
}

/// Returns the AEAD for a key.
pub(super) fn aead(key: &[u8; KEY_BYTES]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM_SIV, key).expect("a key of 32 bytes"))
}

/// The keys derived from one master key.
pub(super) struct Keys {
    pub(super) payload: LessSafeKey,
    /// For an earlier master key that is stored under this one.
    pub(super) wrapping: LessSafeKey,
    /// For record headers and sources.
    pub(super) header: Xts,
    /// For their MACs.
    pub(super) record: Mac,
    /// For the MACs of batch headers.
    pub(super) batch: Mac,
    pub(super) superblock: Mac,
}

impl Keys {
    /// Derives the keys of the drive `uuid`.
    pub(super) fn new(master: &MasterKey, uuid: Uuid) -> Self {
        let key = |label| derive(master.bytes(), uuid.as_bytes(), label);
        Self {
            payload: aead(&key("pumice 1 payload")),
            wrapping: aead(&key("pumice 1 earlier key")),
            header: Xts::new(&key("pumice 1 header"), &key("pumice 1 header tweak")),
            record: Mac::new(&key("pumice 1 record")),
            batch: Mac::new(&key("pumice 1 batch")),
            superblock: Mac::new(&key("pumice 1 superblock")),
        }
    }
}

/// AES-256-CMAC.
pub(super) struct Mac(aws_lc_rs::cmac::Key);

impl Mac {
    fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self(aws_lc_rs::cmac::Key::new(aws_lc_rs::cmac::AES_256, key).expect("a key of 32 bytes"))
    }

    /// Returns the MAC of `bytes`.
    pub(super) fn of(&self, bytes: &[u8]) -> [u8; 16] {
        let tag = aws_lc_rs::cmac::sign(&self.0, bytes).expect("AES is available");
        *tag.as_ref().first_chunk().expect("a CMAC has 16 bytes")
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the primitives match the standards, and the keys match the document.
    use aws_lc_rs::aead::{Aad, Nonce};

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn counted() -> [u8; 32] {
        std::array::from_fn(|index| u8::try_from(index).unwrap())
    }

    /// Source: RFC 8452, appendix C.2.
    #[test]
    fn gcm_siv_matches_the_rfc() {
        let mut key = [0; 32];
        key[0] = 1;
        let mut nonce = [0; 12];
        nonce[0] = 3;
        let seal = |aad: &[u8], text: &[u8]| {
            let mut bytes = text.to_vec();
            let nonce = Nonce::assume_unique_for_key(nonce);
            let tag = aead(&key).seal_in_place_separate_tag(nonce, Aad::from(aad), &mut bytes);
            bytes.extend_from_slice(tag.unwrap().as_ref());
            hex(&bytes)
        };
        let mut text = [0; 16];
        assert_eq!(seal(&[], &[]), "07f5f4169bbf55a8400cd47ea6fd400f");
        text[0] = 1;
        let short = "c2ef328e5c71c83b843122130f7364b761e0b97427e3df28";
        assert_eq!(seal(&[], &text[..8]), short);
        text[0] = 2;
        let with_aad = "c91545823cc24f17dbb0e9e807d5ec17b292d28ff61189e8e49f3875ef91aff7";
        assert_eq!(seal(&[1], &text), with_aad);
    }

    /// Source: OpenSSL's HKDF and CMAC.
    #[test]
    fn keys_and_macs_match_another_implementation() {
        let salt = Uuid::from_u128(7);
        let key = |label| hex(&*derive(&counted(), salt.as_bytes(), label));
        for (label, expected) in [
            (
                "pumice 1 payload",
                "cea4884880e29d68996c2497d9ee52b06298de66f9895bbed79da89de738315e",
            ),
            ("pumice 1 header", "777fbff1c563edef244e6731493a7061abb2d5d0608d039c37e2c2967429d374"),
            ("pumice 1 record", "2aab808936c18a2e31beba5a3e5d7237bf904147d14fbceaa7054c19b979bb48"),
        ] {
            assert_eq!(key(label), expected, "{label}");
        }
        let mac = Mac::new(&counted());
        assert_eq!(hex(&mac.of(b"pumice")), "a37b27d2dfc7dee4e5dc5a7f9b3aa042");
    }
}
