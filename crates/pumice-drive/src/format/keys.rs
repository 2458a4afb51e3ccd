//! The keys of an encrypted drive in its superblock: slots that each hold the master key under one
//! secret, and the previous master key as long as segments written with it remain.

use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::layout::layout;
use crate::base::Result;
use crate::crypt::{
    Cipher, Derivation, MasterKey, NONCE_BYTES, SALT_BYTES, Secret, WRAPPED_BYTES, unwrap, wrap,
};

/// Number of slots.
pub const KEY_SLOTS: usize = 8;

/// Bytes of a slot.
pub const KEY_SLOT_BYTES: usize = 128;

/// Bytes of an earlier master key: nonce, key, tag.
pub(crate) const EARLIER_KEY_BYTES: usize = NONCE_BYTES + WRAPPED_BYTES;

layout! {
    struct Layout: 128 {
        kind: u8,
        lanes: u8,
        reserved_kind: U16,
        memory_kib: U32,
        passes: U32,
        reserved_passes: U32,
        created_seconds: U64,
        salt: [u8; SALT_BYTES],
        nonce: [u8; NONCE_BYTES],
        wrapped: [u8; WRAPPED_BYTES],
        reserved: [u8; 12],
    }
}

pub(super) const FIELDS: &[super::layout::Field] = Layout::FIELDS;

/// The kind of secret that opens a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SlotKind {
    /// A passphrase.
    Passphrase = 1,
    /// The content of a key file, or the output of a command.
    Key = 2,
    /// A recovery code.
    Recovery = 3,
}

impl SlotKind {
    /// Returns the kind of slot that a secret opens.
    pub fn of(secret: &Secret) -> Self {
        match secret {
            Secret::Passphrase(_) => Self::Passphrase,
            Secret::Key(_) => Self::Key,
            Secret::Recovery(_) => Self::Recovery,
        }
    }
}

/// The master key under one secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySlot {
    /// The kind of secret that opens it.
    pub kind: SlotKind,
    /// Creation time, in seconds since 1970; information only.
    pub created_seconds: u64,
    derivation: Derivation,
    salt: [u8; SALT_BYTES],
    nonce: [u8; NONCE_BYTES],
    wrapped: [u8; WRAPPED_BYTES],
}

impl KeySlot {
    /// Creates a slot for `secret` that holds the newest master key of the drive `uuid`, with the
    /// default [`Derivation`] for that kind of secret.
    ///
    /// # Errors
    /// `InvalidInput` for an overlong passphrase.
    ///
    /// # Panics
    /// If the cipher belongs to an unencrypted drive.
    pub fn new(uuid: Uuid, cipher: &Cipher, secret: &Secret, created_seconds: u64) -> Result<Self> {
        let kind = SlotKind::of(secret);
        let derivation = match kind {
            SlotKind::Passphrase => Derivation::PASSPHRASE,
            SlotKind::Key | SlotKind::Recovery => Derivation::Hkdf,
        };
        let (mut salt, mut nonce) = ([0; SALT_BYTES], [0; NONCE_BYTES]);
        cipher.randomness().fill(&mut salt);
        cipher.randomness().fill(&mut nonce);
        let wrapped = [0; WRAPPED_BYTES];
        let slot = Self { kind, created_seconds, derivation, salt, nonce, wrapped };
        let (master, _) = cipher.newest();
        let wrapped = wrap(master, secret, derivation, &salt, nonce, &slot.bound(uuid))?;
        Ok(Self { wrapped, ..slot })
    }

    /// Returns the master key; `None` if the secret is not this slot's.
    ///
    /// # Errors
    /// `Corrupt` for parameters that this program does not accept.
    pub fn open(&self, uuid: Uuid, secret: &Secret) -> Result<Option<MasterKey>> {
        if SlotKind::of(secret) != self.kind {
            return Ok(None);
        }
        let bound = self.bound(uuid);
        unwrap(&self.wrapped, secret, self.derivation, &self.salt, self.nonce, &bound)
    }

    /// Returns the data that the wrapped key is bound to: the drive, and the slot up to the salt.
    fn bound(&self, uuid: Uuid) -> [u8; 16 + 56] {
        let mut bound = [0; 16 + 56];
        let (uuid_bytes, rest) = bound.split_at_mut(16);
        uuid_bytes.copy_from_slice(uuid.as_bytes());
        let slot = self.encode();
        let (head, _) = slot.split_at(rest.len());
        rest.copy_from_slice(head);
        bound
    }

    /// Encodes the slot.
    pub fn encode(&self) -> [u8; KEY_SLOT_BYTES] {
        let mut layout = Layout::new_zeroed();
        layout.kind = self.kind as u8;
        if let Derivation::Argon2id { memory_kib, passes, lanes } = self.derivation {
            layout.memory_kib = memory_kib.into();
            layout.passes = passes.into();
            layout.lanes = lanes;
        }
        layout.created_seconds = self.created_seconds.into();
        layout.salt = self.salt;
        layout.nonce = self.nonce;
        layout.wrapped = self.wrapped;
        let mut bytes = [0; KEY_SLOT_BYTES];
        bytes.copy_from_slice(layout.as_bytes());
        bytes
    }

    /// Decodes a slot: `Ok(None)` if it is empty.
    ///
    /// # Errors
    /// For values that no program writes.
    #[expect(clippy::result_unit_err, reason = "the enclosing structure reports the error")]
    pub fn decode(bytes: &[u8; KEY_SLOT_BYTES]) -> std::result::Result<Option<Self>, ()> {
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let layout = Layout::read_from_bytes(bytes).map_err(|_| ())?;
        let (memory_kib, passes) = (layout.memory_kib.get(), layout.passes.get());
        let (kind, derivation) = match layout.kind {
            1 => {
                let lanes = layout.lanes;
                (SlotKind::Passphrase, Derivation::Argon2id { memory_kib, passes, lanes })
            }
            2 => (SlotKind::Key, Derivation::Hkdf),
            3 => (SlotKind::Recovery, Derivation::Hkdf),
            _ => return Err(()),
        };
        let slot = Self {
            kind,
            created_seconds: layout.created_seconds.get(),
            derivation,
            salt: layout.salt,
            nonce: layout.nonce,
            wrapped: layout.wrapped,
        };
        // Every other byte must be as encoded.
        let is_possible = derivation.is_possible() && slot.encode() == *bytes;
        if is_possible { Ok(Some(slot)) } else { Err(()) }
    }
}

/// The keys of a drive, as stored in its superblock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyArea {
    /// First generation of segments that are written with the master key of the slots.
    pub since: u64,
    /// The master key of earlier segments, wrapped under that key.
    pub earlier: Option<[u8; EARLIER_KEY_BYTES]>,
    /// The slots. Their numbers never change.
    pub slots: [Option<KeySlot>; KEY_SLOTS],
}

impl KeyArea {
    /// Returns the slot of the recovery code, which segment headers repeat.
    pub fn recovery(&self) -> Option<&KeySlot> {
        self.slots.iter().flatten().find(|slot| slot.kind == SlotKind::Recovery)
    }

    pub(super) fn encode_earlier(&self) -> [u8; EARLIER_KEY_BYTES] {
        self.earlier.unwrap_or([0; EARLIER_KEY_BYTES])
    }

    pub(super) fn encode_slots(&self) -> [[u8; KEY_SLOT_BYTES]; KEY_SLOTS] {
        self.slots.each_ref().map(|slot| match slot {
            Some(slot) => slot.encode(),
            None => [0; KEY_SLOT_BYTES],
        })
    }

    /// Returns the keys; `None` if they are impossible.
    pub(super) fn decode(
        since: u64,
        earlier: &[u8; EARLIER_KEY_BYTES],
        slots: &[[u8; KEY_SLOT_BYTES]; KEY_SLOTS],
    ) -> Option<Self> {
        let mut decoded = [const { None }; KEY_SLOTS];
        for (target, bytes) in decoded.iter_mut().zip(slots) {
            *target = KeySlot::decode(bytes).ok()?;
        }
        let earlier = earlier.iter().any(|&byte| byte != 0).then_some(*earlier);
        let is_possible = decoded.iter().any(Option::is_some) && earlier.is_none_or(|_| since > 0);
        is_possible.then_some(Self { since, earlier, slots: decoded })
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a slot opens only with its secret and on its drive; no slot with a changed byte opens;
    //! bytes that no program writes are refused.
    use rand_xoshiro::rand_core::Rng;

    use super::*;
    use crate::base::seed;
    use crate::crypt::Randomness;

    fn secret(byte: u8) -> Secret {
        Secret::Key(zeroize::Zeroizing::new(vec![byte; 32]))
    }

    fn cipher(uuid: Uuid) -> Cipher {
        let randomness = Randomness::seeded(1);
        Cipher::new(uuid, MasterKey::draw(&randomness), 0, None, randomness)
    }

    /// Returns whether a changed slot is accepted and opens.
    fn opens(bytes: &[u8; KEY_SLOT_BYTES], uuid: Uuid, secret: &Secret) -> bool {
        let slot = KeySlot::decode(bytes).ok().flatten();
        slot.is_some_and(|slot| matches!(slot.open(uuid, secret), Ok(Some(_))))
    }

    #[test]
    fn a_slot_opens_with_its_secret_and_on_its_drive() {
        let (uuid, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let cipher = cipher(uuid);
        let slot = KeySlot::new(uuid, &cipher, &secret(1), 5).unwrap();
        let bytes = slot.encode();
        assert_eq!(KeySlot::decode(&bytes), Ok(Some(slot.clone())));
        assert!(slot.open(uuid, &secret(1)).unwrap().as_ref() == Some(cipher.newest().0));
        assert!(!opens(&bytes, uuid, &secret(2)) && !opens(&bytes, other, &secret(1)));
        let phrase = Secret::Passphrase(zeroize::Zeroizing::new(vec![1; 32]));
        assert!(!opens(&bytes, uuid, &phrase), "a key is no passphrase");
        let by_phrase = KeySlot::new(uuid, &cipher, &phrase, 5).unwrap();
        assert!(opens(&by_phrase.encode(), uuid, &phrase));
        assert!(!opens(&by_phrase.encode(), uuid, &secret(1)));
    }

    #[test]
    fn no_changed_slot_opens() {
        let uuid = Uuid::from_u128(1);
        let good = KeySlot::new(uuid, &cipher(uuid), &secret(1), 5).unwrap().encode();
        for bit in 0..good.len() * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!opens(&bytes, uuid, &secret(1)), "bit {bit}");
        }
        let mut random = seed::random(1);
        for _ in 0..2000 {
            let mut bytes = [0; KEY_SLOT_BYTES];
            random.fill_bytes(&mut bytes);
            bytes[0] &= 3;
            assert!(KeySlot::decode(&bytes).is_err(), "its reserved bytes are not zero");
        }
    }

    #[test]
    fn parameters_that_would_take_all_memory_are_refused() {
        let uuid = Uuid::from_u128(1);
        let phrase = Secret::Passphrase(zeroize::Zeroizing::new(vec![1; 32]));
        let good = KeySlot::new(uuid, &cipher(uuid), &phrase, 5).unwrap().encode();
        for (at, bytes) in
            [(4, u32::MAX), (4, (1 << 20) + 1), (4, 7), (8, 0), (8, 65), (8, u32::MAX)]
        {
            let mut slot = good;
            slot[at..at + 4].copy_from_slice(&bytes.to_le_bytes());
            assert!(KeySlot::decode(&slot).is_err(), "{bytes} at {at}");
        }
        for lanes in [0, 17, 255] {
            let mut slot = good;
            slot[1] = lanes;
            assert!(KeySlot::decode(&slot).is_err(), "{lanes} lanes");
        }
    }
}
