//! Goal: arbitrary bytes from a bucket or a journal lead at worst to an error. Method: every
//! structure with each bit changed, which its checksum must detect; and with random bytes changed
//! or truncated and a valid checksum, which must not cause a panic.

use std::collections::BTreeMap;

use rand::RngExt;

use super::super::object::{
    Chunk, Claim, Commit, CommitId, DriveObject, Entry, Journal, SlotHeader,
};
use super::*;
use crate::base::checksum::crc64;
use crate::base::seed::random;

/// Decodes bytes as the structure of this number.
fn decode(kind: usize, bytes: &[u8]) -> Result<()> {
    match kind {
        0 => DriveObject::decode(bytes).map(|_| ()),
        1 => Claim::decode(bytes, "a claim").map(|_| ()),
        2 => Commit::decode(bytes, "a commit", SEGMENT_BYTES).map(|_| ()),
        3 => Journal::decode(bytes).map(|_| ()),
        _ => SlotHeader::decode(bytes).map(|_| ()),
    }
}

fn structures() -> Vec<Vec<u8>> {
    let uuid = Uuid::from_u128(7);
    let id = CommitId { epoch: 3, number: 9 };
    let drive = DriveObject { uuid, segment_bytes: SEGMENT_BYTES };
    let claim = Claim { uuid, epoch: 3, nonce: Uuid::from_u128(8), host: "host".into() };
    let chunk = Chunk { offset: 4096, bytes: 8192, epoch: 2, checksum: 5 };
    let entry = Entry { use_id: 77, chunks: vec![chunk] };
    let commit = Commit {
        uuid,
        id,
        after: CommitId { epoch: 3, number: 8 },
        base: 1,
        superblocks: [Some(page(1)), None],
        changes: BTreeMap::from([(4, Some(entry)), (5, None)]),
    };
    let journal = Journal {
        uuid,
        revision: 6,
        segment_bytes: SEGMENT_BYTES,
        slots: SLOTS,
        first_epoch: 1,
        intent: id,
        lag_ns: 5,
        lag_bytes_max: 6,
        is_durable_in_bucket: true,
        place: "s3://bucket/name".into(),
        nonces: vec![uuid],
    };
    let header = SlotHeader { uuid, segment: 4, use_id: 77 };
    let shared = [drive.encode(), claim.encode(), commit.encode()].map(|bytes| bytes.to_vec());
    let local = [journal.encode().to_vec(), header.encode().to_vec()];
    shared.into_iter().chain(local).collect()
}

#[test]
fn each_changed_bit_is_noticed() {
    for (kind, bytes) in structures().into_iter().enumerate() {
        decode(kind, &bytes).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(kind, &changed).is_err(), "structure {kind}, bit {bit}");
        }
        assert!(decode(kind, &bytes[..bytes.len() - 1]).is_err());
        assert!(decode(kind, &[]).is_err());
    }
}

#[test]
fn hostile_bytes_with_a_right_checksum_do_no_harm() {
    let mut random = random(1);
    for (kind, bytes) in structures().into_iter().enumerate() {
        for _ in 0..4000 {
            let mut changed = bytes.clone();
            if random.random_range(0..4) == 0 {
                changed.truncate(random.random_range(24..=bytes.len()));
            }
            for _ in 0..random.random_range(1..8) {
                // The fields are at the beginning; the rest is mostly zero.
                let end = if random.random() { 200.min(changed.len()) } else { changed.len() };
                let at = random.random_range(0..end);
                changed[at] = if random.random() { 0xff } else { random.random() };
            }
            let length = (changed.len() as u32).to_le_bytes();
            changed[12..16].copy_from_slice(&length);
            changed[16..24].fill(0);
            let checksum = crc64(&changed).to_le_bytes();
            changed[16..24].copy_from_slice(&checksum);
            let _ = decode(kind, &changed);
            if let (3, Ok(journal)) = (kind, Journal::decode(&changed)) {
                // The first operations on a decoded journal.
                let _ = geometry(journal.segment_bytes, journal.slots).medium_bytes();
                let _ = journal.encode();
            }
        }
    }
}
