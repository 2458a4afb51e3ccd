//! The keys of the drive on a medium, and all operations that use them: sealing and opening
//! payloads, hiding headers, and MACs in place of checksums. An unencrypted drive has the cipher
//! [`PLAIN`], which seals and hides nothing.
//!
//! **Which key.** Each use of a segment has a number, its generation; generations only grow. A
//! master key applies from one generation on, and the previous key applies before it. The
//! generation therefore determines the key, and both keys are in use while a drive is being
//! re-keyed.

use std::fmt;
use std::sync::{Arc, OnceLock};

use aws_lc_rs::aead::{Aad, Nonce};
use uuid::Uuid;

use super::keys::{Keys, MasterKey};
use super::wrap::{NONCE_BYTES, WRAPPED_BYTES};
use super::{KEY_BYTES, Randomness};
use crate::base::{Error, ErrorKind, Lba, Result};

/// Bytes that sealing adds to a payload: a nonce and a tag.
pub const SEAL_BYTES: usize = NONCE_BYTES + MAC_BYTES;

/// Bytes of a tag, and of a full MAC.
pub(crate) const MAC_BYTES: usize = 16;

/// The cipher of an unencrypted drive.
pub static PLAIN: Cipher = Cipher(None);

/// The keys of a drive, shared by all holders of the cipher.
#[derive(Clone, Default)]
pub struct Cipher(Option<Arc<Ring>>);

struct Ring {
    uuid: Uuid,
    first: Epoch,
    randomness: Randomness,
}

/// A master key, the first generation that uses it, and the next key, which may come into use after
/// the drive was opened.
struct Epoch {
    /// First generation of segments that are written with this key.
    since: u64,
    master: MasterKey,
    keys: Keys,
    next: OnceLock<Box<Epoch>>,
}

/// The identity of a payload. A sealed payload opens only with the same identity.
#[derive(Clone, Copy)]
pub struct Binding([u8; 28]);

impl Binding {
    /// Binds the payload of a frame, but not to its location, since garbage collection moves it.
    pub fn frame(lba: Lba, blocks: u8, encoding: u8) -> Self {
        Self::new([1, encoding, blocks], lba.0, [0; 16])
    }

    /// Binds the payload of metadata, and also its location.
    pub fn metadata(kind: u8, number: u64, encoding: u8, place: [u8; 16]) -> Self {
        Self::new([5, encoding, kind], number, place)
    }

    fn new(kind: [u8; 3], number: u64, place: [u8; 16]) -> Self {
        let mut bytes = [0; 28];
        let (head, rest) = bytes.split_at_mut(4);
        let (number_bytes, place_bytes) = rest.split_at_mut(8);
        head.split_at_mut(3).0.copy_from_slice(&kind);
        number_bytes.copy_from_slice(&number.to_le_bytes());
        place_bytes.copy_from_slice(&place);
        Self(bytes)
    }
}

impl Cipher {
    /// A generation that is always written with the newest key.
    pub const NEWEST: u64 = u64::MAX;

    /// Returns the cipher of the encrypted drive `uuid`. Segments of generation `since` and later
    /// are written with `master`, and earlier segments, if any are left, with `previous`.
    pub fn new(
        uuid: Uuid,
        master: MasterKey,
        since: u64,
        previous: Option<MasterKey>,
        randomness: Randomness,
    ) -> Self {
        let current = Epoch::new(uuid, since, master);
        let first = match previous {
            None => current,
            Some(master) => {
                let next = OnceLock::from(Box::new(current));
                Epoch { next, ..Epoch::new(uuid, 0, master) }
            }
        };
        Self(Some(Arc::new(Ring { uuid, first, randomness })))
    }

    /// Returns whether the drive is unencrypted.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the bytes that sealing adds to a payload.
    #[inline]
    pub fn seal_bytes(&self) -> usize {
        if self.is_plain() { 0 } else { SEAL_BYTES }
    }

    /// Returns whether this is the cipher of the drive `uuid`.
    pub fn is_of(&self, uuid: Uuid) -> bool {
        self.0.as_ref().is_some_and(|ring| ring.uuid == uuid)
    }

    fn ring(&self) -> &Ring {
        self.0.as_ref().expect("an encrypted drive has keys")
    }

    /// Returns whether payloads of both generations are sealed with the same key.
    #[inline]
    pub(crate) fn is_same_key(&self, one: u64, other: u64) -> bool {
        match &self.0 {
            None => true,
            Some(ring) => std::ptr::eq(ring.epoch(one), ring.epoch(other)),
        }
    }

    /// Returns the master key for new segments, and the first generation that uses it.
    ///
    /// # Panics
    /// If the drive is unencrypted.
    pub fn newest(&self) -> (&MasterKey, u64) {
        let newest = self.ring().newest();
        (&newest.master, newest.since)
    }

    /// Returns the source of random bytes.
    ///
    /// # Panics
    /// If the drive is unencrypted.
    pub fn randomness(&self) -> &Randomness {
        &self.ring().randomness
    }

    /// Adds another master key, for segments of generation `since` and later. The earlier keys
    /// remain available for the lifetime of this cipher.
    ///
    /// # Panics
    /// If the drive is unencrypted, or a key for a later generation already exists.
    pub fn renew(&self, master: MasterKey, since: u64) {
        let ring = self.ring();
        let newest = ring.newest();
        assert!(since > newest.since, "keys follow one another");
        let next = Box::new(Epoch::new(ring.uuid, since, master));
        assert!(newest.next.set(next).is_ok(), "one key follows another");
    }

    /// Seals the payload of `len` bytes that begins at byte 12 of `buffer`, in place. Returns the
    /// bytes of the sealed payload, from the start of the buffer.
    ///
    /// # Panics
    /// If the drive is unencrypted, or the buffer is shorter than `len` plus [`SEAL_BYTES`].
    #[inline]
    pub fn seal(&self, generation: u64, binding: Binding, buffer: &mut [u8], len: usize) -> usize {
        let ring = self.ring();
        let nonce: [u8; NONCE_BYTES] = ring.randomness.nonce();
        let (nonce_bytes, rest) = buffer.split_at_mut(NONCE_BYTES);
        let (payload, rest) = rest.split_at_mut(len);
        let (tag_bytes, _) = rest.split_at_mut(MAC_BYTES);
        nonce_bytes.copy_from_slice(&nonce);
        let key = &ring.epoch(generation).keys.payload;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let aad = Aad::from(ring.bound(binding));
        let tag = key.seal_in_place_separate_tag(nonce, aad, payload);
        tag_bytes.copy_from_slice(tag.expect("a payload is shorter than 64 GiB").as_ref());
        len + SEAL_BYTES
    }

    /// Opens a sealed payload into `target`, which is exactly [`SEAL_BYTES`] shorter.
    ///
    /// # Errors
    /// `Corrupt` if any byte of the payload was changed, or the binding is a different one.
    ///
    /// # Panics
    /// If the drive is unencrypted, or the target has another length.
    #[inline]
    pub fn open(
        &self,
        generation: u64,
        binding: Binding,
        sealed: &[u8],
        target: &mut [u8],
    ) -> Result<()> {
        assert_eq!(sealed.len(), target.len() + SEAL_BYTES, "a payload opens to its own length");
        let ring = self.ring();
        let (nonce, rest) = sealed.split_first_chunk().expect("longer than a seal");
        let (payload, tag) = rest.split_at(target.len());
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let aad = Aad::from(ring.bound(binding));
        let key = &ring.epoch(generation).keys.payload;
        let opened = key.open_separate_gather(nonce, aad, payload, tag, target);
        opened.map_err(|_| {
            let what = "an encrypted payload is not authentic: it was changed, or is another one";
            Error::new(ErrorKind::Corrupt, what)
        })
    }

    /// Hides the bytes of a header, or of the sources after it, that are stored at `place`.
    ///
    /// # Panics
    /// If the drive is unencrypted, or there are fewer than 16 bytes.
    #[inline]
    pub fn hide(&self, generation: u64, place: [u8; 16], bytes: &mut [u8]) {
        self.ring().epoch(generation).keys.header.encrypt(place, bytes);
    }

    /// Reverts [`Cipher::hide`].
    ///
    /// # Panics
    /// See [`Cipher::hide`].
    #[inline]
    pub fn show(&self, generation: u64, place: [u8; 16], bytes: &mut [u8]) {
        self.ring().epoch(generation).keys.header.decrypt(place, bytes);
    }

    /// Returns the MAC of a record's header and sources.
    ///
    /// # Panics
    /// If the drive is unencrypted.
    #[inline]
    pub(crate) fn record_mac(&self, generation: u64, bytes: &[u8]) -> u32 {
        let mac = self.ring().epoch(generation).keys.record.of(bytes);
        u32::from_le_bytes(*mac.first_chunk().expect("a MAC is longer"))
    }

    /// Returns the MAC of a batch header.
    ///
    /// # Panics
    /// If the drive is unencrypted.
    pub(crate) fn batch_mac(&self, generation: u64, bytes: &[u8]) -> u64 {
        let mac = self.ring().epoch(generation).keys.batch.of(bytes);
        u64::from_le_bytes(*mac.first_chunk().expect("a MAC is longer"))
    }

    /// Returns the MAC of a superblock whose key applies from generation `since` on.
    ///
    /// # Panics
    /// If the drive is unencrypted.
    pub(crate) fn superblock_mac(&self, since: u64, bytes: &[u8]) -> [u8; MAC_BYTES] {
        self.ring().epoch(since).keys.superblock.of(bytes)
    }

    /// Wraps another master key of the drive under the newest one.
    ///
    /// # Panics
    /// If the drive is unencrypted.
    pub fn wrap(&self, other: &MasterKey, use_of: Wrapped) -> [u8; NONCE_BYTES + WRAPPED_BYTES] {
        let ring = self.ring();
        let nonce: [u8; NONCE_BYTES] = ring.randomness.nonce();
        let mut wrapped = [0; NONCE_BYTES + WRAPPED_BYTES];
        let (nonce_bytes, rest) = wrapped.split_at_mut(NONCE_BYTES);
        let (bytes, tag_bytes) = rest.split_at_mut(KEY_BYTES);
        nonce_bytes.copy_from_slice(&nonce);
        bytes.copy_from_slice(other.bytes());
        let aad = Aad::from(use_of.bound(ring.uuid));
        let key = &ring.newest().keys.wrapping;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = key.seal_in_place_separate_tag(nonce, aad, bytes).expect("a key is short");
        tag_bytes.copy_from_slice(tag.as_ref());
        wrapped
    }

    /// Unwraps a key that [`Cipher::wrap`] wrapped for the same use under the newest key.
    ///
    /// # Errors
    /// `Corrupt` if a byte differs.
    ///
    /// # Panics
    /// If the drive is unencrypted.
    pub fn unwrap(
        &self,
        wrapped: &[u8; NONCE_BYTES + WRAPPED_BYTES],
        use_of: Wrapped,
    ) -> Result<MasterKey> {
        let ring = self.ring();
        unwrap_under(ring.uuid, &ring.newest().keys, wrapped, use_of)
    }

    /// Unwraps the earlier master key of the drive `uuid`, wrapped under `master`.
    ///
    /// # Errors
    /// `Corrupt` if a byte differs.
    pub(crate) fn unwrap_earlier(
        uuid: Uuid,
        master: &MasterKey,
        wrapped: &[u8; NONCE_BYTES + WRAPPED_BYTES],
    ) -> Result<MasterKey> {
        unwrap_under(uuid, &Keys::new(master, uuid), wrapped, Wrapped::Earlier)
    }
}

/// The relation of a wrapped master key to its wrapping key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapped {
    /// The key before it, as stored in superblocks.
    Earlier,
    /// The key after it, as passed to the process that has the drive open.
    Next,
}

impl Wrapped {
    fn bound(self, uuid: Uuid) -> Vec<u8> {
        let mut bound = uuid.into_bytes().to_vec();
        if self == Self::Next {
            bound.extend_from_slice(b"next");
        }
        bound
    }
}

fn unwrap_under(
    uuid: Uuid,
    keys: &Keys,
    wrapped: &[u8; NONCE_BYTES + WRAPPED_BYTES],
    use_of: Wrapped,
) -> Result<MasterKey> {
    let mut bytes = zeroize::Zeroizing::new(*wrapped);
    let (nonce, sealed) = bytes.split_at_mut(NONCE_BYTES);
    let nonce = *nonce.first_chunk().expect("a nonce precedes the key");
    let nonce = Nonce::assume_unique_for_key(nonce);
    let aad = Aad::from(use_of.bound(uuid));
    let opened = keys.wrapping.open_in_place(nonce, aad, sealed).ok();
    let opened = opened.and_then(|opened| opened.first_chunk::<KEY_BYTES>());
    let opened = opened.map(|key| MasterKey::from_bytes(zeroize::Zeroizing::new(*key)));
    opened.ok_or_else(|| Error::new(ErrorKind::Corrupt, "a wrapped master key is not authentic"))
}

impl Ring {
    #[inline]
    fn epoch(&self, generation: u64) -> &Epoch {
        let mut epoch = &self.first;
        while let Some(next) = epoch.next.get() {
            if generation < next.since {
                break;
            }
            epoch = next;
        }
        epoch
    }

    fn newest(&self) -> &Epoch {
        self.epoch(Cipher::NEWEST)
    }

    /// Returns the additional data of a payload: the drive and the payload's identity.
    #[inline]
    fn bound(&self, binding: Binding) -> [u8; 44] {
        let mut bytes = [0; 44];
        let (uuid, rest) = bytes.split_at_mut(16);
        uuid.copy_from_slice(self.uuid.as_bytes());
        rest.copy_from_slice(&binding.0);
        bytes
    }
}

impl Epoch {
    fn new(uuid: Uuid, since: u64, master: MasterKey) -> Self {
        Self { since, keys: Keys::new(&master, uuid), master, next: OnceLock::new() }
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_plain() { "Cipher(plain)" } else { "Cipher(encrypted)" })
    }
}

#[cfg(test)]
mod tests;
