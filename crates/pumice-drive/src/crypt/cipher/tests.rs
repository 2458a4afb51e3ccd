//! Goal: sealed data opens as its own kind and as no other; the right key applies; no nonce
//! repeats.

use std::collections::BTreeSet;

use super::*;
use crate::crypt::KEY_BYTES;

fn master(byte: u8) -> MasterKey {
    MasterKey::from_bytes(zeroize::Zeroizing::new([byte; KEY_BYTES]))
}

fn cipher(uuid: u128, byte: u8, seed: u64) -> Cipher {
    Cipher::new(Uuid::from_u128(uuid), master(byte), 0, None, Randomness::seeded(seed))
}

fn sealed(cipher: &Cipher, generation: u64, binding: Binding, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; NONCE_BYTES];
    bytes.extend_from_slice(payload);
    bytes.resize(payload.len() + SEAL_BYTES, 0);
    assert_eq!(cipher.seal(generation, binding, &mut bytes, payload.len()), bytes.len());
    bytes
}

fn opened(cipher: &Cipher, generation: u64, binding: Binding, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut payload = vec![0; bytes.len() - SEAL_BYTES];
    cipher.open(generation, binding, bytes, &mut payload).ok().map(|()| payload)
}

#[test]
fn a_sealed_payload_opens_only_at_its_place() {
    let ours = cipher(1, 1, 1);
    let binding = Binding::frame(Lba(7), 8, 0x81);
    let bytes = sealed(&ours, 5, binding, b"a payload");
    assert_eq!(opened(&ours, 5, binding, &bytes).unwrap(), b"a payload");
    let place = |byte| [byte; 16];
    for other in [
        Binding::frame(Lba(8), 8, 0x81),
        Binding::frame(Lba(7), 4, 0x81),
        Binding::frame(Lba(7), 8, 0x82),
        Binding::metadata(8, 7, 0x81, place(0)),
    ] {
        assert!(opened(&ours, 5, other, &bytes).is_none());
    }
    for other in [cipher(2, 1, 1), cipher(1, 2, 1)] {
        assert!(opened(&other, 5, binding, &bytes).is_none(), "another drive, another key");
    }
    let binding = Binding::metadata(1, 2, 0x81, place(3));
    let bytes = sealed(&ours, 5, binding, b"metadata");
    assert!(opened(&ours, 5, binding, &bytes).is_some());
    assert!(opened(&ours, 5, Binding::metadata(1, 2, 0x81, place(4)), &bytes).is_none());
}

#[test]
fn every_flipped_bit_of_a_payload_is_noticed() {
    let ours = cipher(1, 1, 1);
    let binding = Binding::frame(Lba(7), 1, 0x80);
    let good = sealed(&ours, 1, binding, &[0x5a; 40]);
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(opened(&ours, 1, binding, &bytes).is_none(), "bit {bit}");
    }
    for len in SEAL_BYTES..good.len() {
        assert!(opened(&ours, 1, binding, &good[..len]).is_none(), "{len} bytes");
    }
}

#[test]
fn the_use_number_selects_the_key() {
    let uuid = Uuid::from_u128(1);
    let old = Cipher::new(uuid, master(1), 0, None, Randomness::seeded(1));
    let binding = Binding::frame(Lba(7), 1, 0x80);
    let early = sealed(&old, 9, binding, b"early");
    let wrapped = {
        let new = Cipher::new(uuid, master(2), 10, None, Randomness::seeded(2));
        new.wrap(old.newest().0, Wrapped::Earlier)
    };
    let earlier = Cipher::unwrap_earlier(uuid, &master(2), &wrapped).unwrap();
    assert!(earlier == master(1));
    assert!(Cipher::unwrap_earlier(uuid, &master(3), &wrapped).is_err());
    let both = Cipher::new(uuid, master(2), 10, Some(earlier), Randomness::seeded(3));
    assert_eq!(opened(&both, 9, binding, &early).unwrap(), b"early");
    assert!(opened(&both, 10, binding, &early).is_none());
    assert!(both.is_same_key(8, 9) && !both.is_same_key(9, 10));
    // An open drive adopts a new key in the same way.
    old.renew(master(2), 10);
    for cipher in [&old, &both] {
        let late = sealed(cipher, Cipher::NEWEST, binding, b"late");
        assert_eq!(opened(&old, 10, binding, &late).unwrap(), b"late");
        assert_eq!(opened(&both, 11, binding, &late).unwrap(), b"late");
    }
    assert_eq!(old.superblock_mac(10, b"any"), both.superblock_mac(10, b"any"));
    assert_eq!(old.superblock_mac(0, b"any"), both.superblock_mac(0, b"any"));
    assert_ne!(old.superblock_mac(0, b"any"), both.superblock_mac(10, b"any"));
}

#[test]
fn keys_follow_one_another_in_one_process() {
    let uuid = Uuid::from_u128(1);
    let cipher = Cipher::new(uuid, master(1), 0, None, Randomness::seeded(1));
    let binding = Binding::frame(Lba(7), 1, 0x80);
    let mut all = vec![(0, sealed(&cipher, 0, binding, b"first"))];
    for (since, byte) in [(10, 2), (20, 3), (21, 4)] {
        let next = cipher.wrap(&master(byte), Wrapped::Next);
        assert!(cipher.unwrap(&next, Wrapped::Earlier).is_err(), "it is for another use");
        cipher.renew(cipher.unwrap(&next, Wrapped::Next).unwrap(), since);
        assert!(cipher.unwrap(&next, Wrapped::Next).is_err(), "it is under the key before");
        all.push((since, sealed(&cipher, since, binding, b"later")));
    }
    for (index, (since, bytes)) in all.iter().enumerate() {
        let end = all.get(index + 1).map_or(Cipher::NEWEST, |(end, _)| end - 1);
        assert!(opened(&cipher, *since, binding, bytes).is_some());
        assert!(opened(&cipher, end, binding, bytes).is_some());
        assert!(opened(&cipher, end.wrapping_add(1), binding, bytes).is_none());
    }
}

#[test]
fn equal_payloads_are_sealed_differently() {
    let system = Cipher::new(Uuid::nil(), master(1), 0, None, Randomness::System);
    let binding = Binding::frame(Lba(7), 1, 0x80);
    let all: BTreeSet<_> = (0..1000).map(|_| sealed(&system, 1, binding, b"same")).collect();
    let nonces: BTreeSet<_> = all.iter().map(|bytes| bytes[..NONCE_BYTES].to_vec()).collect();
    assert_eq!((all.len(), nonces.len()), (1000, 1000));
}

#[test]
fn headers_are_hidden_by_place_and_key() {
    let ours = cipher(1, 1, 1);
    let header: [u8; 24] = *b"header of a record 24 by";
    let hidden = |cipher: &Cipher, place| {
        let mut bytes = header;
        cipher.hide(3, [place; 16], &mut bytes);
        bytes
    };
    let mut bytes = hidden(&ours, 1);
    let all = [bytes, header, hidden(&ours, 2), hidden(&cipher(1, 2, 1), 1)];
    assert_eq!(BTreeSet::from(all).len(), 4);
    ours.show(3, [1; 16], &mut bytes);
    assert_eq!(bytes, header);
    assert_ne!(ours.record_mac(3, &header), cipher(1, 2, 1).record_mac(3, &header));
    let batch = ours.batch_mac(3, &header);
    assert_ne!(batch & u64::from(u32::MAX), u64::from(ours.record_mac(3, &header)));
}
