//! The keys of a drive that is not open: the locked drive on a medium, the secrets that open it,
//! and changes of them.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::drive::superblocks::{self, StoredSuperblock};
use crate::base::{Error, ErrorKind, Result};
use crate::crypt::{Cipher, MasterKey, Randomness, Secret, Wrapped};
use crate::format::{
    DriveShape, EARLIER_KEY_BYTES, KEY_SLOT_BYTES, KEY_SLOTS, KeyArea, KeySlot, SlotKind,
    Superblock,
};
use crate::media::{AnyMedium, SUPERBLOCK_SLOTS};

/// An encrypted drive whose keys are not known yet.
#[derive(Clone, Debug)]
pub struct Locked {
    /// Identity of the drive.
    pub uuid: Uuid,
    /// Size of the disk and division of the medium, from a superblock that is not yet verified;
    /// `None` if all superblocks are lost.
    pub shape: Option<DriveShape>,
    /// The keys stored in each superblock, the newest first. They are equal unless a change of them
    /// was interrupted.
    areas: Vec<KeyArea>,
}

impl Locked {
    /// Returns the locked drive on a medium; `None` if the drive there is not encrypted. Trusts
    /// nothing: opening the drive verifies the superblock with the keys.
    ///
    /// # Errors
    /// `Medium`, `NotADrive`, `Unsupported`; `Corrupt` if there is no whole superblock.
    pub async fn on(medium: &dyn AnyMedium) -> Result<Option<Self>> {
        let mut found: Vec<Superblock> = Vec::new();
        let mut failure = None;
        for slot in 0..SUPERBLOCK_SLOTS {
            let read = medium.read_superblock(slot).await;
            match read.and_then(|bytes| Superblock::decode(&bytes)) {
                Ok(superblock) => found.push(superblock),
                Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
                Err(error) => failure = Some(error),
            }
        }
        found.sort_by_key(|superblock| std::cmp::Reverse(superblock.revision));
        let Some(newest) = found.first() else {
            return Err(failure.expect("a slot that was read is whole, or an error"));
        };
        let (uuid, shape) = (newest.uuid, Some(newest.shape()));
        if newest.keys.is_none() {
            return Ok(None);
        }
        let areas = found.into_iter().filter(|superblock| superblock.uuid == uuid);
        let areas = areas.filter_map(|superblock| superblock.keys).collect();
        Ok(Some(Self { uuid, shape, areas }))
    }

    /// Returns a drive for which only one slot is known, repeated by its segment headers.
    pub(super) fn by_recovery(uuid: Uuid, slot: KeySlot) -> Self {
        let mut slots = [const { None }; KEY_SLOTS];
        if let Some(first) = slots.first_mut() {
            *first = Some(slot);
        }
        let areas = vec![KeyArea { since: 0, earlier: None, slots }];
        Self { uuid, shape: None, areas }
    }

    /// Returns whether a key that was replaced is still in use.
    pub fn has_earlier_key(&self) -> bool {
        self.areas.first().is_some_and(|area| area.earlier.is_some())
    }

    /// Returns whether a secret of a kind could open a slot.
    pub fn has(&self, kind: SlotKind) -> bool {
        self.areas.iter().flat_map(|area| area.slots.iter().flatten()).any(|slot| slot.kind == kind)
    }

    /// Opens the slot of a secret. `randomness` supplies the random bytes.
    ///
    /// # Errors
    /// `PermissionDenied` if it opens no slot; `Corrupt` if a slot is damaged.
    pub fn unlock(&self, secret: &Secret, randomness: Randomness) -> Result<Cipher> {
        for area in &self.areas {
            for slot in area.slots.iter().flatten() {
                let Some(master) = slot.open(self.uuid, secret)? else { continue };
                let open = |wrapped| Cipher::unwrap_earlier(self.uuid, &master, wrapped);
                let earlier = area.earlier.as_ref().map(open).transpose()?;
                return Ok(Cipher::new(self.uuid, master, area.since, earlier, randomness));
            }
        }
        let what = match SlotKind::of(secret) {
            SlotKind::Passphrase => "wrong passphrase",
            SlotKind::Key => "wrong key, or a key of another drive",
            SlotKind::Recovery => "wrong recovery code, or a code of another drive",
        };
        Err(Error::new(ErrorKind::PermissionDenied, what))
    }
}

/// Draws the keys of a new drive `uuid`, which each of the secrets opens. Returns its cipher, and
/// the key area of its superblock.
///
/// # Errors
/// `InvalidInput` for no secret, more than [`KEY_SLOTS`], or an overlong passphrase.
pub fn new_keys(
    uuid: Uuid,
    secrets: &[Secret],
    created_seconds: u64,
    randomness: Randomness,
) -> Result<(Cipher, KeyArea)> {
    if secrets.is_empty() || secrets.len() > KEY_SLOTS {
        let what = format!("a drive has from 1 to {KEY_SLOTS} keys");
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let master = MasterKey::draw(&randomness);
    let cipher = Cipher::new(uuid, master, 0, None, randomness);
    let mut slots = [const { None }; KEY_SLOTS];
    for (slot, secret) in slots.iter_mut().zip(secrets) {
        *slot = Some(KeySlot::new(uuid, &cipher, secret, created_seconds)?);
    }
    Ok((cipher, KeyArea { since: 0, earlier: None::<[u8; EARLIER_KEY_BYTES]>, slots }))
}

/// Slots of a drive, as bytes.
type Slots = [Option<KeySlot>; KEY_SLOTS];

/// A new master key for a drive, for the process that has it open: encrypted under the current key,
/// with the slots that will open the drive. Reveals nothing without the current key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewKeys {
    pub(super) slots: Vec<Hex>,
    pub(super) wrapped: Hex,
}

/// Bytes encoded as hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Hex(pub(super) Vec<u8>);

impl From<Hex> for String {
    fn from(hex: Hex) -> Self {
        hex.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl TryFrom<String> for Hex {
    type Error = &'static str;

    fn try_from(text: String) -> std::result::Result<Self, Self::Error> {
        const EXPECTED: &str = "expected pairs of hexadecimal digits";
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        let byte = |[high, low]: &[u8; 2]| u8::try_from(digit(high)? << 4 | digit(low)?).ok();
        let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        bytes.filter(|_| rest.is_empty()).map(Self).ok_or(EXPECTED)
    }
}

impl NewKeys {
    /// Draws a master key for the drive `uuid`, which each of the secrets will open, for a process
    /// that has the current key.
    ///
    /// # Errors
    /// The errors of [`new_keys`].
    ///
    /// # Panics
    /// If the cipher belongs to a drive that is not encrypted.
    pub fn draw(
        uuid: Uuid,
        present: &Cipher,
        secrets: &[Secret],
        created_seconds: u64,
        randomness: Randomness,
    ) -> Result<Self> {
        let (cipher, area) = new_keys(uuid, secrets, created_seconds, randomness)?;
        let (master, _) = cipher.newest();
        let wrapped = Hex(present.wrap(master, Wrapped::Next).to_vec());
        let slots = area.slots.iter().flatten().map(|slot| Hex(slot.encode().to_vec())).collect();
        Ok(Self { slots, wrapped })
    }

    /// Returns the slots, and the wrapped key.
    ///
    /// # Errors
    /// `InvalidInput` if they are malformed.
    pub(super) fn decode(&self) -> Result<(Slots, [u8; EARLIER_KEY_BYTES])> {
        let invalid = || Error::new(ErrorKind::InvalidInput, "the new keys are malformed");
        let wrapped = self.wrapped.0.as_slice().try_into().map_err(|_| invalid())?;
        let mut slots = [const { None }; KEY_SLOTS];
        if self.slots.is_empty() || self.slots.len() > KEY_SLOTS {
            return Err(invalid());
        }
        for (target, bytes) in slots.iter_mut().zip(&self.slots) {
            let bytes: &[u8; KEY_SLOT_BYTES] =
                bytes.0.as_slice().try_into().map_err(|_| invalid())?;
            *target = KeySlot::decode(bytes).map_err(|()| invalid())?;
        }
        let mut all = slots.iter().flatten();
        let recoveries = all.clone().filter(|slot| slot.kind == SlotKind::Recovery).count();
        let is_possible = all.next().is_some() && recoveries <= 1;
        if is_possible { Ok((slots, wrapped)) } else { Err(invalid()) }
    }
}

/// A change of the key slots of a drive.
#[derive(Clone, Debug)]
pub enum KeyChange {
    /// Fill an empty slot.
    Add(Secret),
    /// Empty a slot.
    Remove(usize),
    /// Empty a slot and fill it again.
    Replace(usize, Secret),
}

/// A slot that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    /// Its number, which does not change.
    pub number: usize,
    /// The kind of secret that opens it.
    pub kind: SlotKind,
    /// Time at which it was filled, in seconds since 1970; 0 if unknown.
    pub created_seconds: u64,
}

impl Locked {
    /// Returns the slots that are not empty.
    pub fn slots(&self) -> Vec<SlotInfo> {
        self.areas.first().map(slots_of).unwrap_or_default()
    }

    /// Returns the number of a slot that a secret opens.
    ///
    /// # Errors
    /// The errors of [`Locked::unlock`].
    pub fn slot_of(&self, secret: &Secret) -> Result<Option<usize>> {
        let Some(newest) = self.areas.first() else { return Ok(None) };
        for (number, slot) in newest.slots.iter().enumerate() {
            if let Some(slot) = slot
                && slot.open(self.uuid, secret)?.is_some()
            {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }
}

fn slots_of(area: &KeyArea) -> Vec<SlotInfo> {
    let slots = area.slots.iter().enumerate();
    let info = |(number, slot): (usize, &Option<KeySlot>)| {
        let KeySlot { kind, created_seconds, .. } = *slot.as_ref()?;
        Some(SlotInfo { number, kind, created_seconds })
    };
    slots.filter_map(info).collect()
}

/// Changes the key slots of an encrypted drive that is not open, on a medium with its cipher.
/// Returns the slots that now open the drive; when this returns, both superblocks contain them
/// durably. After an interruption, the drive opens with the slots from before or after the change.
///
/// # Errors
/// `InvalidInput` if the slot is empty, all are filled, the last would be emptied, there would be
/// two recovery codes, or the drive is not encrypted: nothing has changed. `Corrupt`, `Medium`.
pub async fn change_keys(
    medium: &dyn AnyMedium,
    change: &KeyChange,
    created_seconds: u64,
) -> Result<Vec<SlotInfo>> {
    let invalid = |what: &'static str| Error::new(ErrorKind::InvalidInput, what);
    let StoredSuperblock { mut superblock, mut slot } = superblocks::load(medium).await?.stored;
    let uuid = superblock.uuid;
    let area = superblock.keys.as_mut().ok_or_else(|| invalid("the drive is not encrypted"))?;
    let (number, secret) = match change {
        KeyChange::Add(secret) => {
            let empty = area.slots.iter().position(Option::is_none);
            let full = "all key slots are in use: remove a key first";
            (empty.ok_or_else(|| invalid(full))?, Some(secret))
        }
        KeyChange::Remove(number) => (*number, None),
        KeyChange::Replace(number, secret) => (*number, Some(secret)),
    };
    let is_known = area.slots.get(number).is_some_and(Option::is_some);
    if !is_known && !matches!(change, KeyChange::Add(_)) {
        return Err(invalid("there is no key in that slot: list the keys"));
    }
    let others = area.slots.iter().enumerate().filter(|(other, _)| *other != number);
    let others: Vec<SlotKind> = others.filter_map(|(_, slot)| Some(slot.as_ref()?.kind)).collect();
    match secret.map(SlotKind::of) {
        None if others.is_empty() => {
            return Err(invalid("this is the only key: without it the drive cannot be opened"));
        }
        Some(SlotKind::Recovery) if others.contains(&SlotKind::Recovery) => {
            return Err(invalid("the drive has a recovery code: remove or change it"));
        }
        _ => {}
    }
    let new = |secret| KeySlot::new(uuid, medium.cipher(), secret, created_seconds);
    let new = secret.map(new).transpose()?;
    *area.slots.get_mut(number).expect("a slot that was found") = new;
    let slots = slots_of(area);
    for _ in 0..SUPERBLOCK_SLOTS {
        slot = 1 - slot;
        superblocks::store_next(medium, slot, &mut superblock).await?;
        medium.sync().await?;
    }
    Ok(slots)
}
