//! Fuzz target for the key slots of superblocks, and for new keys received over a control socket.

use uuid::Uuid;

use super::bytes::filled;
use pumice_drive::crypt::{KEY_SECRET_BYTES_MIN, Secret};
use pumice_drive::format::{KEY_SLOT_BYTES, KeySlot, SlotKind};

/// The drive of the slots in the seeds.
const DRIVE: Uuid = Uuid::from_u128(0x5eed);

/// Returns the secret that opens the seeds for keys.
fn secret() -> Secret {
    Secret::Key(vec![0x5e; KEY_SECRET_BYTES_MIN].into())
}

/// Decodes a key slot that begins with the input, and tries to open it. Passphrases are not tried:
/// the work that a slot may demand takes minutes.
pub fn key_slot(input: &[u8]) -> bool {
    let bytes = filled::<KEY_SLOT_BYTES>(input);
    let Ok(Some(slot)) = KeySlot::decode(&bytes) else { return false };
    assert!(slot.encode() == bytes, "a key slot has a single encoding");
    if slot.kind != SlotKind::Passphrase {
        let opened = slot.open(DRIVE, &secret());
        let opened = opened.expect("a slot that is decoded has parameters that can be followed");
        assert!(opened.is_none() || slot.kind == SlotKind::Key, "a key is not a recovery code");
        let of_another = slot.open(Uuid::nil(), &secret()).expect("as above");
        assert!(of_another.is_none(), "a slot opens on its own drive only");
    }
    true
}

/// Returns inputs that are accepted: one of each kind.
#[cfg(test)]
pub(super) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    use pumice_drive::controller::new_keys;
    use pumice_drive::crypt::{Randomness, RecoveryCode};

    let passphrase = Secret::Passphrase(b"a passphrase".to_vec().into());
    let code = RecoveryCode::draw(&Randomness::seeded(1)).secret();
    let secrets = [secret(), code, passphrase];
    let made = new_keys(DRIVE, &secrets, 1_790_000_000, Randomness::seeded(2));
    let slots = made.expect("three secrets").1.slots;
    let all = ["key", "recovery-code", "passphrase"].into_iter().zip(slots.into_iter().flatten());
    all.map(|(name, slot)| (name, slot.encode().to_vec())).collect()
}

/// Returns inputs that are refused.
#[cfg(test)]
pub(super) fn hostile() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let changed = |seed: usize, at: usize, bytes: &[u8]| {
        let mut slot = seeds().remove(seed).1;
        slot[at..at + bytes.len()].copy_from_slice(bytes);
        slot
    };
    vec![
        ("key_slot", "nothing", vec![0; KEY_SLOT_BYTES]),
        ("key_slot", "unknown-kind", changed(0, 0, &[4])),
        ("key_slot", "all-memory", changed(2, 4, &[0xff; 4])),
        ("key_slot", "all-time", changed(2, 8, &[0xff; 4])),
        ("key_slot", "many-lanes", changed(2, 1, &[17])),
        ("key_slot", "a-key-with-passes", changed(0, 8, &[3])),
        ("key_slot", "reserved-bytes", changed(0, KEY_SLOT_BYTES - 1, &[1])),
    ]
}
