//! Goal: the oracle rejects everything that breaks a promise, and nothing else.
//! Method: histories made by hand, and the disks that a crash could and could not leave.

use super::*;

const BLOCKS: usize = 8;

/// Returns a change of `count` blocks from `block` on, all of one byte.
fn write(request: u64, block: usize, count: usize) -> Change {
    let content = Content::Bytes(vec![request as u8; count * BLOCK_BYTES]);
    Change { request, offset: block * BLOCK_BYTES, content }
}

fn trim(request: u64, block: usize, count: usize) -> Change {
    let content = Content::Zeroes(count * BLOCK_BYTES);
    Change { request, offset: block * BLOCK_BYTES, content }
}

/// Settles with everything that is durable, on a disk that can be read.
fn settle(oracle: &mut Oracle, bytes: &[u8]) -> Result<Settled, Mismatch> {
    let floor = oracle.durable();
    oracle.settle(Found { bytes, unreadable: &BTreeSet::new() }, floor)
}

/// Returns a disk with one byte value per block.
fn disk(bytes: [u8; BLOCKS]) -> Vec<u8> {
    bytes.into_iter().flat_map(|byte| [byte; BLOCK_BYTES]).collect()
}

/// Returns the history of most tests: 1 and 2 overlap, 3 trims a part of both, 4 writes into that.
fn oracle(durable: usize) -> Oracle {
    let mut oracle = Oracle::new(BLOCKS * BLOCK_BYTES);
    for change in [write(1, 0, 4), write(2, 2, 4), trim(3, 3, 2), write(4, 4, 1)] {
        oracle.take(change);
    }
    oracle.promise(durable);
    oracle
}

const STATES: [[u8; BLOCKS]; 5] = [
    [0; BLOCKS],
    [1, 1, 1, 1, 0, 0, 0, 0],
    [1, 1, 2, 2, 2, 2, 0, 0],
    [1, 1, 2, 0, 0, 2, 0, 0],
    [1, 1, 2, 0, 4, 2, 0, 0],
];

#[test]
fn every_prefix_not_shorter_than_the_flush_is_right() {
    for durable in 0..=4 {
        for (kept, state) in STATES.into_iter().enumerate() {
            let settled = settle(&mut oracle(durable), &disk(state));
            match settled {
                Ok(settled) => assert_eq!(settled, Settled { kept, lost: 4 - kept }),
                Err(mismatch) => {
                    assert!(kept < durable, "{kept} of {durable}: {mismatch:?}");
                    assert!(mismatch.found.contains("a flush was lost"), "{mismatch:?}");
                }
            }
            assert_eq!(settle(&mut oracle(durable), &disk(state)).is_ok(), kept >= durable);
        }
    }
}

fn assert_refused(found: &[u8], what: &str) {
    let mismatch = settle(&mut oracle(1), found).expect_err(what);
    assert!(mismatch.found.contains("no prefix explains"), "{what}: {mismatch:?}");
}

#[test]
fn contents_that_are_no_prefix_are_refused() {
    assert_refused(&disk([1, 1, 2, 2, 4, 2, 0, 0]), "a resurrected trim");
    assert_refused(&disk([0, 0, 2, 2, 2, 2, 0, 0]), "the second change without the first");
    assert_refused(&disk([1, 1, 1, 1, 2, 2, 0, 0]), "half of a write");
    assert_refused(&disk([1, 1, 1, 0, 4, 2, 0, 0]), "a stale block under newer ones");
    assert_refused(&disk([1, 1, 2, 0, 4, 2, 0, 9]), "a block that was never written");
    assert_refused(&disk([2, 1, 2, 0, 4, 2, 0, 0]), "the right bytes at the wrong offset");
    let mut mixed = disk(STATES[2]);
    mixed[2 * BLOCK_BYTES + 512..3 * BLOCK_BYTES].fill(1);
    assert_refused(&mixed, "a block half old, half new");
    let mut flipped = disk(STATES[4]);
    flipped[77] ^= 1;
    assert_refused(&flipped, "a flipped bit");
}

#[test]
fn a_settled_disk_is_the_base_of_the_next_life() {
    let mut oracle = oracle(0);
    settle(&mut oracle, &disk(STATES[2])).unwrap();
    assert_eq!((oracle.taken(), oracle.durable()), (0, 0));
    oracle.take(write(5, 7, 1));
    let error = settle(&mut oracle, &disk(STATES[3])).unwrap_err();
    assert!(error.found.contains("LBA 3"), "{error:?}");
    settle(&mut oracle, &disk([1, 1, 2, 2, 2, 2, 0, 5])).unwrap();
}

/// Judges a read of blocks 2..4, during which change 2 is taken.
fn read(found: [u8; 2]) -> Result<(), Mismatch> {
    let mut oracle = Oracle::new(BLOCKS * BLOCK_BYTES);
    oracle.take(write(1, 0, 4));
    oracle.begin_read(1, 2 * BLOCK_BYTES + 100..4 * BLOCK_BYTES);
    oracle.take(write(2, 2, 1));
    oracle.take(trim(3, 6, 1));
    let found: Vec<u8> = found.into_iter().flat_map(|byte| [byte; BLOCK_BYTES]).collect();
    oracle.end_read(1, Some(&found[100..]))
}

#[test]
fn a_read_returns_a_content_that_the_block_had_meanwhile() {
    assert_eq!(read([1, 1]), Ok(()));
    assert_eq!(read([2, 1]), Ok(()));
    for wrong in [[0, 1], [1, 2], [2, 0], [3, 1]] {
        assert!(read(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn a_read_that_began_after_a_change_returns_nothing_older() {
    let mut oracle = Oracle::new(BLOCKS * BLOCK_BYTES);
    oracle.take(write(1, 0, 1));
    oracle.begin_read(1, 0..BLOCK_BYTES);
    assert!(oracle.end_read(1, Some(&[0; BLOCK_BYTES])).is_err());
    oracle.begin_read(2, 0..BLOCK_BYTES);
    oracle.take(write(2, 0, 1));
    let mut mixed = [1; BLOCK_BYTES];
    mixed[..2048].fill(2);
    assert!(oracle.end_read(2, Some(&mixed)).is_err(), "a mixture");
}

/// The message is the only information for finding a bug.
#[test]
fn a_mismatch_names_block_history_and_content() {
    let mut random = pumice_drive::base::seed::random(1);
    let mut oracle = Oracle::new(BLOCKS * BLOCK_BYTES);
    for request in [40, 41] {
        let stamped = |number| {
            let mut any = || super::super::data::any(&mut random, 0, BLOCK_BYTES, number);
            (0..64).map(|_| any()).find(|bytes| describe(bytes).contains("stamp"))
        };
        let bytes = { stamped }(request).expect("some kind carries a stamp");
        oracle.take(Change { request, offset: 0, content: Content::Bytes(bytes) });
    }
    oracle.take(write(42, 1, 1));
    let mut found = oracle.disk.bytes.clone();
    found[..BLOCK_BYTES].fill(7);
    let mismatch = settle(&mut oracle, &found).unwrap_err();
    assert!(mismatch.found.contains("LBA 0"), "{mismatch:?}");
    assert!(mismatch.found.contains("1 (request 40), 2 (request 41)"), "{mismatch:?}");
    assert!(mismatch.found.contains("bytes 0x07"), "{mismatch:?}");
    assert!(mismatch.promised.contains("request 41 for LBA 0"), "{mismatch:?}");
}

fn unreadable(bytes: &[u8], block: usize) -> (BTreeSet<usize>, Vec<u8>) {
    let mut found = bytes.to_vec();
    found[bytes_of(block)].fill(0xa5);
    (BTreeSet::from([block]), found)
}

#[test]
fn an_unreadable_block_has_the_content_of_some_prefix() {
    // Changes 2 to 4 agree except in blocks 3 and 4; block 4 cannot be read.
    let (blocks, found) = unreadable(&disk(STATES[3]), 4);
    let settled = |byte: u8| {
        let mut oracle = oracle(1);
        oracle.settle(Found { bytes: &found, unreadable: &blocks }, 1).unwrap();
        oracle.begin_read(1, 4 * BLOCK_BYTES..5 * BLOCK_BYTES);
        oracle.end_read(1, Some(&[byte; BLOCK_BYTES]))
    };
    assert_eq!((settled(0), settled(4)), (Ok(()), Ok(())));
    for wrong in [1, 2, 0xa5] {
        assert!(settled(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_vague_block_is_vague_until_it_is_written_as_a_whole() {
    let (blocks, found) = unreadable(&disk(STATES[3]), 4);
    let mut oracle = oracle(1);
    oracle.settle(Found { bytes: &found, unreadable: &blocks }, 1).unwrap();
    let half = Content::Bytes(vec![9; BLOCK_BYTES / 2]);
    oracle.take(Change { request: 5, offset: 4 * BLOCK_BYTES, content: half });
    for first in [0, 4] {
        let mut bytes = disk(STATES[3]);
        bytes[bytes_of(4)].fill(first);
        bytes[4 * BLOCK_BYTES..][..BLOCK_BYTES / 2].fill(9);
        oracle.begin_read(1, 0..bytes.len());
        assert_eq!(oracle.end_read(1, Some(&bytes)), Ok(()));
        bytes[bytes_of(4)].fill(first);
        oracle.begin_read(1, 0..bytes.len());
        assert!(oracle.end_read(1, Some(&bytes)).is_err(), "without the change");
    }
    oracle.take(write(6, 4, 1));
    oracle.begin_read(1, 4 * BLOCK_BYTES..5 * BLOCK_BYTES);
    assert!(oracle.end_read(1, Some(&[4; BLOCK_BYTES])).is_err(), "an older content");
    settle(&mut oracle, &disk([1, 1, 2, 0, 6, 2, 0, 0])).unwrap();
}

#[test]
fn a_change_vouches_for_durable_changes_before_it() {
    let mut oracle = oracle(0);
    oracle.promise(2);
    assert_eq!(oracle.vouched(1), 0);
    oracle.take(write(5, 7, 1));
    oracle.promise(4);
    assert_eq!(oracle.vouched(1), 0, "4 was accepted before anything was durable");
    oracle.promise(5);
    assert_eq!(oracle.vouched(1), 2);
}

#[test]
fn old_changes_become_a_part_of_the_base() {
    let mut oracle = Oracle::new(BLOCKS * BLOCK_BYTES);
    for number in 1..=2000 {
        oracle.take(write(number, number as usize % BLOCKS, 1));
        oracle.promise(number as usize);
    }
    assert!(oracle.changes.len() <= VOUCHED_MAX + 2, "{}", oracle.changes.len());
    assert_eq!((oracle.taken(), oracle.vouched(1)), (2000, 1999));
    let newest = (1993..=2000).map(|number: u64| (number as usize % BLOCKS, number as u8));
    let mut bytes = disk([0; BLOCKS]);
    newest.for_each(|(block, byte)| bytes[bytes_of(block)].fill(byte));
    assert_eq!(settle(&mut oracle, &bytes), Ok(Settled { kept: 2000, lost: 0 }));
}
