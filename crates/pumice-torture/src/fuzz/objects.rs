//! Fuzz target for the objects and the journal of a drive in a bucket: the identity of the drive,
//! claims, commits, the state of the journal, and headers of its slots.

use pumice_drive::base::checksum::crc64;
use pumice_drive::media::tier::{ObjectKind, encode_again};

const SEGMENT_BYTES: u32 = 4 << 20;

const KINDS: [ObjectKind; 5] = [
    ObjectKind::Drive,
    ObjectKind::Claim,
    ObjectKind::Commit,
    ObjectKind::Journal,
    ObjectKind::Slot,
];

/// Decodes an object as it is, and then with the right length and checksum. Input: one byte that
/// selects the kind, the bytes of the object. An accepted object has an encoding that decodes to
/// the same object.
pub fn object(input: &[u8]) -> bool {
    let Some((&kind, input)) = input.split_first() else { return false };
    let kind = KINDS[usize::from(kind) % KINDS.len()];
    let _ = encode_again(kind, input, SEGMENT_BYTES);
    let mut bytes = input.to_vec();
    if bytes.len() < 24 {
        return false;
    }
    let length = bytes.len() as u32;
    bytes[12..16].copy_from_slice(&length.to_le_bytes());
    bytes[16..24].fill(0);
    let checksum = crc64(&bytes);
    bytes[16..24].copy_from_slice(&checksum.to_le_bytes());
    let Ok(again) = encode_again(kind, &bytes, SEGMENT_BYTES) else { return false };
    let twice = encode_again(kind, &again, SEGMENT_BYTES).expect("an encoded object is accepted");
    assert_eq!(twice, again, "an object has a single encoding");
    true
}

/// Returns an input: an object of a kind, with these fields after its identity.
#[cfg(test)]
fn of(kind: u8, magic: &[u8; 8], fields: &[&[u8]]) -> Vec<u8> {
    let version = 1_u32.to_le_bytes();
    let head = [&[kind], &magic[..], &version, &[0; 12], &[7; 16]].concat();
    [head, fields.concat()].concat()
}

/// Returns a commit of one segment with these chunks (offset, bytes).
#[cfg(test)]
fn commit(chunks: &[(u32, u32)]) -> Vec<u8> {
    let word = |number: u32| number.to_le_bytes();
    let long = |number: u64| number.to_le_bytes();
    let mut fields = [&word(3)[..], &long(9), &word(3), &long(8), &long(1)].concat();
    // One superblock, and one segment.
    fields.extend([&word(1)[..], &[5; 4096], &word(0), &word(1)].concat());
    fields.extend([&word(4)[..], &long(77), &word(chunks.len() as u32)].concat());
    for &(offset, bytes) in chunks {
        fields.extend([&word(offset)[..], &word(bytes), &word(2), &long(5)].concat());
    }
    of(2, b"PUMICECM", &[&fields])
}

/// Returns the state of a journal with a number of slots and of nonces.
#[cfg(test)]
fn journal(slots: u32, nonces: u32) -> Vec<u8> {
    let word = |number: u32| number.to_le_bytes();
    let long = |number: u64| number.to_le_bytes();
    let mut fields = [&long(6)[..], &word(SEGMENT_BYTES), &word(slots), &word(1)].concat();
    fields.extend([&word(3)[..], &long(9), &long(5), &long(6), &word(1), &word(nonces)].concat());
    fields.extend(vec![8; 16 * nonces as usize]);
    fields.extend([&word(6)[..], b"s3://b"].concat());
    of(3, b"PUMICEJL", &[&fields])
}

/// Returns inputs that are accepted: one of each kind.
#[cfg(test)]
pub(super) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let word = |number: u32| number.to_le_bytes();
    vec![
        ("drive", of(0, b"PUMICEBK", &[&word(SEGMENT_BYTES)])),
        ("claim", of(1, b"PUMICECL", &[&word(3), &[9; 16], &word(4), b"host"])),
        ("commit", commit(&[(4096, 8192), (12_288, 4096)])),
        ("journal", journal(128, 2)),
        ("slot", of(4, b"PUMICESL", &[&word(4), &77_u64.to_le_bytes()])),
    ]
}

/// Returns inputs that are refused.
#[cfg(test)]
pub(super) fn hostile() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let word = |number: u32| number.to_le_bytes();
    let mut newer = seeds().remove(3).1;
    newer[9] = 2;
    vec![
        ("object", "nothing", vec![2]),
        ("object", "segments-of-nothing", of(0, b"PUMICEBK", &[&word(0)])),
        ("object", "claim-of-no-epoch", of(1, b"PUMICECL", &[&[0; 20], &word(0)])),
        ("object", "host-beyond-the-end", of(1, b"PUMICECL", &[&word(3), &[9; 16], &[0xff; 4]])),
        ("object", "chunks-that-overlap", commit(&[(0, 8192), (4096, 8192)])),
        ("object", "chunk-beyond-the-segment", commit(&[(SEGMENT_BYTES - 1, 2)])),
        ("object", "journal-without-slots", journal(0, 2)),
        ("object", "journal-of-many-nonces", journal(128, 65)),
        ("object", "journal-of-a-newer-version", newer),
    ]
}
