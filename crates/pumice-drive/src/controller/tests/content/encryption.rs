//! Goal: an encrypted drive behaves like any other; none of its content is on the medium in the
//! clear; after any change of the medium, a read returns the written data or fails; without its
//! key, or with a different one, nothing can be read or changed.

use std::collections::BTreeSet;

use super::*;
use crate::crypt::{Randomness, RecoveryCode, Secret};
use crate::format::{Record, SEALED, SlotKind};
use crate::media::SUPERBLOCK_SLOTS;

const TEXT: &[u8; 64] = b"The quick brown fox jumps over the lazy dog, as it does each day";

pub(crate) fn secret(byte: u8) -> Secret {
    Secret::Key(zeroize::Zeroizing::new(vec![byte; 32]))
}

/// Returns the specification with keys that `secret(1)` unlocks, and their cipher.
pub(crate) fn with_keys(spec: Spec, randomness: Randomness) -> (Spec, Cipher) {
    let code = RecoveryCode::draw(&Randomness::seeded(7));
    let secrets = [secret(1), code.secret()];
    let (cipher, area) = new_keys(spec.uuid, &secrets, 0, randomness).unwrap();
    (Spec { keys: Some(area), ..spec }, cipher)
}

impl World {
    /// Makes an empty encrypted drive, with keys and nonces from a seed.
    pub(crate) fn encrypted(spec: Spec) -> Self {
        Self::encrypted_by(spec, Randomness::seeded(1))
    }

    fn encrypted_by(spec: Spec, randomness: Randomness) -> Self {
        let (spec, cipher) = with_keys(spec, randomness);
        let medium_bytes = spec.geometry().unwrap().medium_bytes();
        let memory = MemMedium::new(medium_bytes).with_cipher(cipher);
        let runtime = Runtime::simulated();
        let world = Self { runtime, spec, memory, plan: FaultPlan::default(), seed: 0 };
        world.run(create(&world.memory, &world.spec)).unwrap();
        world
    }

    /// Returns the same medium with other keys, or none.
    pub(crate) fn with_cipher(&self, cipher: Cipher) -> Self {
        let memory = self.memory.clone().with_cipher(cipher);
        let (runtime, spec) = (Runtime::simulated(), self.spec.clone());
        Self { runtime, spec, memory, plan: FaultPlan::default(), seed: 0 }
    }

    /// Returns all bytes of the medium.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for slot in 0..SUPERBLOCK_SLOTS {
            bytes.extend_from_slice(&self.run(self.memory.read_superblock(slot)).unwrap());
        }
        for segment in 0..self.spec.geometry().unwrap().segment_count {
            bytes.extend_from_slice(&self.peek(segment, 0, SEGMENT_BYTES as usize));
        }
        bytes
    }

    fn put(&self, segment: u32, offset: u32, bytes: &[u8]) {
        let page = offset / 4096 * 4096;
        let len = (offset as usize + bytes.len()).next_multiple_of(4096) - page as usize;
        let mut whole = self.peek(segment, page, len);
        whole[(offset - page) as usize..][..bytes.len()].copy_from_slice(bytes);
        self.run(self.memory.append(SegmentId(segment), page, whole.into())).unwrap();
    }
}

/// Returns blocks of text, each different.
fn text(blocks: usize, seed: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = TEXT.iter().copied().cycle().take(blocks * BLOCK_BYTES).collect();
    for (index, block) in bytes.chunks_mut(BLOCK_BYTES).enumerate() {
        let mark = crate::base::seed::mix(seed << 32 | index as u64);
        block[..8].copy_from_slice(&mark.to_le_bytes());
    }
    bytes
}

/// Returns the records of a segment, each with its location and bytes.
fn records_in(world: &World, segment: u32) -> Vec<(Record, u32, Vec<u8>)> {
    let mut all = Vec::new();
    for batch in damage::batches(world, segment) {
        let body = world.peek(segment, batch.offset, batch.batch_bytes() as usize);
        let body = &body[crate::format::BATCH_HEADER_BYTES..];
        for found in log::records::records(world.memory.cipher(), &batch, body) {
            let found = found.unwrap();
            all.push((found.record, found.place.offset, found.bytes.to_vec()));
        }
    }
    all
}

#[test]
fn a_drive_is_as_it_was_after_crashes_and_checks() {
    let world = World::encrypted(small(8 << 20, 6));
    let mut model = vec![0; 8 << 20];
    let mut random = crate::base::seed::random(3);
    let mut drive = world.open();
    for round in 0..40_usize {
        let at = round * 977 % 1500;
        let mut data = text(1 + round * 31 % 400, round as u64);
        if round % 4 > 0 {
            data = payload::noise(&mut random, data.len());
        }
        model[at * BLOCK_BYTES..][..data.len()].copy_from_slice(&data);
        world.write(&drive, at as u64 * BLOCK, &data).unwrap();
        let hole = round * 131 % 1900;
        model[hole * BLOCK_BYTES..][..9 * BLOCK_BYTES].fill(0);
        world.run(drive.trim(hole as u64 * BLOCK, 9 * BLOCK)).unwrap();
        let fill = round * 57 % 1900;
        model[fill * BLOCK_BYTES..][..BLOCK_BYTES].fill(7);
        world.write(&drive, fill as u64 * BLOCK, &[7; BLOCK_BYTES]).unwrap();
        world.run(drive.flush()).unwrap();
        if round % 7 == 3 {
            world.kill(drive);
            drive = world.open();
        }
        if round % 11 == 5 {
            drive = world.reopen(drive);
        }
    }
    assert!(world.read(&drive, 0, model.len()).unwrap() == model);
    assert!(drive.info().encrypted);
    world.close(drive);
    let report = world.check();
    assert_eq!(report.problems, []);
}

#[test]
fn nothing_of_the_content_is_on_the_medium() {
    let world = World::encrypted(small(8 << 20, 6));
    let drive = world.open();
    for round in 0..6 {
        world.write(&drive, round * 64 * BLOCK, &text(64, round)).unwrap();
    }
    world
        .run(drive.create_snapshot(NewSnapshot {
            name: "a name that is a secret".into(),
            guid: uuid::Uuid::from_u128(5),
            created_seconds: 1,
            yields: false,
        }))
        .unwrap();
    world.close(drive);
    let bytes = world.bytes();
    let mut runs = TEXT.windows(8).chain(b"a name that is a secret".windows(8));
    let found = runs.find(|run| bytes.windows(8).any(|window| window == *run));
    assert_eq!(found.map(|run| String::from_utf8_lossy(run).into_owned()), None);
    // The records of the host, including their headers, are noise.
    let mut counts = [0_u32; 256];
    let records = records_in(&world, 0);
    let all: Vec<u8> = records.iter().flat_map(|(_, _, bytes)| bytes.clone()).collect();
    all.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let len = all.len() as f64;
    let shares = counts.iter().map(|count| f64::from(*count) / len).filter(|share| *share > 0.0);
    let entropy: f64 = shares.map(|share| -share * share.log2()).sum();
    // The average for n random bytes is 8 - 255 / (2 ln 2 n).
    let expected = 8.0 - 255.0 / (2.0 * std::f64::consts::LN_2 * len);
    assert!(entropy > expected - 0.02, "{entropy} bits a byte, expected {expected}");
    for (record, _, _) in records {
        if let Record::Data { encoding, .. } = record {
            assert_ne!(encoding & SEALED, 0);
        }
    }
}

#[test]
fn without_its_key_nothing_is_opened_and_nothing_changed() {
    let world = World::encrypted(small(4 << 20, 4));
    let drive = world.open();
    world.write(&drive, 0, &text(16, 1)).unwrap();
    world.kill(drive);
    let before = world.medium_checksum();
    let refuse = |cipher: Cipher| {
        let other = world.with_cipher(cipher);
        let error = other.refusal();
        let checked = other.run(check(&other.medium(), Depth::Full, &mut |_| ()));
        assert!(checked.is_err());
        assert_eq!(world.medium_checksum(), before);
        error
    };
    let error = refuse(Cipher::default());
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
    let (_, other) = with_keys(world.spec.clone(), Randomness::seeded(2));
    refuse(other);
    let locked = world.run(Locked::on(&world.memory)).unwrap().unwrap();
    let kinds: Vec<SlotKind> = locked.slots().iter().map(|slot| slot.kind).collect();
    assert_eq!(kinds, [SlotKind::Key, SlotKind::Recovery]);
    let error = locked.unlock(&secret(2), Randomness::seeded(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
    for right in [secret(1), RecoveryCode::draw(&Randomness::seeded(7)).secret()] {
        let cipher = locked.unlock(&right, Randomness::seeded(1)).unwrap();
        let drive = world.with_cipher(cipher).open();
        assert!(world.read(&drive, 0, 16 * BLOCK_BYTES).is_ok());
        runtime(&drive).drop_tasks();
    }
    // Keys for a drive that has none.
    let plain = World::new(small(4 << 20, 4));
    let (_, cipher) = with_keys(plain.spec.clone(), Randomness::seeded(1));
    let error = plain.with_cipher(cipher).refusal();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
}

/// Returns a small closed drive with two versions of some blocks, and its disk.
fn closed() -> (World, Vec<u8>) {
    let world = World::encrypted(small(4 << 20, 4));
    let drive = world.open();
    for round in 0..3 {
        for block in 0..6 {
            world.write(&drive, block * BLOCK, &text(1, round * 10 + block)).unwrap();
        }
        world.run(drive.flush()).unwrap();
    }
    world.close_without_checkpoint(drive);
    let drive = world.open();
    let disk = world.read(&drive, 0, 8 * BLOCK_BYTES).unwrap();
    world.close(drive);
    (world, disk)
}

/// Asserts that a changed drive returns its blocks or fails. Returns whether all were returned.
fn is_right_or_fails(world: &World, disk: &[u8], what: &str) -> bool {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let Ok(drive) = world.try_open(options) else { return false };
    let mut all = true;
    for (index, expected) in disk.chunks(BLOCK_BYTES).enumerate() {
        match world.read(&drive, index as u64 * BLOCK, BLOCK_BYTES) {
            Ok(bytes) => assert!(bytes == expected, "{what}: block {index} is another one"),
            Err(_) => all = false,
        }
    }
    world.runtime.drop_tasks();
    all
}

#[test]
fn no_flipped_bit_changes_the_data_read() {
    let (world, disk) = closed();
    assert!(is_right_or_fails(&world, &disk, "unchanged"));
    let segments = world.spec.geometry().unwrap().segment_count;
    let mut failed = 0;
    for segment in 0..segments {
        let bytes = world.peek(segment, 0, SEGMENT_BYTES as usize);
        let Some(end) = bytes.iter().rposition(|&byte| byte != 0) else { continue };
        let payloads = records_in(&world, segment).into_iter().map(|(record, offset, bytes)| {
            let offset = offset as usize;
            offset + record.header_bytes() as usize..offset + bytes.len()
        });
        let payloads: Vec<_> = payloads.collect();
        // All headers, and some of the payloads and of the zeroes around them.
        let touched = |at: &usize| match payloads.iter().any(|payload| payload.contains(at)) {
            true => at.is_multiple_of(9),
            false => bytes[*at] != 0 || at.is_multiple_of(61),
        };
        for at in (0..=end).filter(touched) {
            let copy = world.copy();
            let page = at / 4096 * 4096;
            let mut changed = copy.peek(segment, page as u32, 4096);
            changed[at - page] ^= 1 << (at % 8);
            let offset = page as u32;
            copy.run(copy.memory.append(SegmentId(segment), offset, changed.into())).unwrap();
            let what = format!("segment {segment}, byte {at}");
            failed += u32::from(!is_right_or_fails(&copy, &disk, &what));
        }
    }
    assert!(failed > 100, "{failed}");
}

#[test]
fn no_record_passes_for_another_one() {
    let (world, disk) = closed();
    let segments = world.spec.geometry().unwrap().segment_count;
    let all: Vec<_> = (0..segments)
        .flat_map(|segment| {
            let records = records_in(&world, segment).into_iter();
            records.map(move |(record, offset, bytes)| (segment, record, offset, bytes))
        })
        .collect();
    let mut tried = 0;
    for (segment, record, offset, bytes) in &all {
        for (other_segment, other, other_offset, others) in &all {
            let is_same_place = (segment, offset) == (other_segment, other_offset);
            if is_same_place || record.stored_bytes() == 0 || others.len() < bytes.len() {
                continue;
            }
            let _ = other;
            // The record with its header, and the payload alone.
            let header = record.header_bytes() as usize;
            for from in [0, header] {
                let copy = world.copy();
                copy.put(*segment, offset + from as u32, &others[from..bytes.len()]);
                let what = format!("{segment}/{offset} by {other_segment}/{other_offset} {from}");
                is_right_or_fails(&copy, &disk, &what);
                tried += 1;
            }
        }
    }
    assert!(tried > 100, "{tried}");
}

#[test]
fn a_log_that_is_cut_or_replayed_is_refused_or_older_as_a_whole() {
    let (world, disk) = closed();
    let tail = damage::batches(&world, 0).into_iter().next_back().unwrap();
    let copy = world.copy();
    copy.put(0, tail.offset, &vec![0; tail.batch_bytes() as usize]);
    is_right_or_fails(&copy, &disk, "cut");
    // A superblock with a changed bit and a valid checksum is not accepted.
    for slot in 0..SUPERBLOCK_SLOTS {
        for at in [48, 80, 120, 136, 200, 2300] {
            let copy = world.copy();
            let mut bytes = copy.run(copy.memory.read_superblock(slot)).unwrap();
            bytes[at] ^= 1;
            bytes[16..24].fill(0);
            let checksum = crate::base::checksum::crc64(&bytes);
            bytes[16..24].copy_from_slice(&checksum.to_le_bytes());
            copy.run(copy.memory.write_superblock(slot, bytes)).unwrap();
            is_right_or_fails(&copy, &disk, &format!("slot {slot}, byte {at}"));
        }
    }
}

#[test]
fn two_copies_that_run_apart_repeat_no_nonce() {
    let world = World::encrypted_by(small(4 << 20, 4), Randomness::System);
    let drive = world.open();
    world.write(&drive, 0, &text(4, 1)).unwrap();
    world.close(drive);
    let mut nonces = BTreeSet::new();
    let mut count = 0;
    let mut take = |world: &World| {
        for segment in 0..world.spec.geometry().unwrap().segment_count {
            for (record, offset, bytes) in records_in(world, segment) {
                if record.stored_bytes() > 0 {
                    let from = record.header_bytes() as usize;
                    nonces.insert((bytes[from..from + 12].to_vec(), segment, offset));
                    count += 1;
                }
            }
        }
    };
    take(&world);
    let shared = records_in(&world, 0).len();
    for _ in 0..2 {
        let copy = world.copy();
        let drive = copy.open();
        world.write(&drive, 0, &text(64, 9)).unwrap();
        copy.close(drive);
        take(&copy);
    }
    // A nonce recurs only at the same location, in records from before the copies.
    let alone: BTreeSet<_> = nonces.iter().map(|(nonce, ..)| nonce.clone()).collect();
    assert_eq!(alone.len(), nonces.len());
    assert!(nonces.len() > 16 && shared > 0 && count > nonces.len());
}

#[test]
fn key_slots_change_at_once_or_not_at_all() {
    let world = World::encrypted(small(4 << 20, 4));
    let drive = world.open();
    world.write(&drive, 0, &text(8, 1)).unwrap();
    world.close(drive);
    let change = |change: &KeyChange| world.run(change_keys(&world.memory, change, 3));
    let opens = |secret: &Secret| {
        let locked = world.run(Locked::on(&world.memory)).unwrap().unwrap();
        let cipher = locked.unlock(secret, Randomness::seeded(4));
        cipher.is_ok_and(|cipher| {
            let world = world.with_cipher(cipher);
            let drive = world.open();
            let is_there = world.read(&drive, 0, 8 * BLOCK_BYTES).unwrap() == text(8, 1);
            world.close(drive);
            is_there
        })
    };
    let slots = change(&KeyChange::Add(secret(9))).unwrap();
    assert_eq!(slots.iter().map(|slot| slot.number).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(opens(&secret(1)) && opens(&secret(9)) && !opens(&secret(8)));
    change(&KeyChange::Replace(0, secret(8))).unwrap();
    assert!(!opens(&secret(1)) && opens(&secret(9)) && opens(&secret(8)));
    change(&KeyChange::Remove(2)).unwrap();
    assert!(!opens(&secret(9)) && opens(&secret(8)));
    let code = RecoveryCode::draw(&Randomness::seeded(9)).secret();
    for refused in [
        KeyChange::Remove(2),
        KeyChange::Remove(99),
        KeyChange::Add(code),
        KeyChange::Replace(3, secret(1)),
    ] {
        assert_eq!(kind(change(&refused)), Some(ErrorKind::InvalidInput));
    }
    for _ in 0..6 {
        change(&KeyChange::Add(secret(5))).unwrap();
    }
    assert_eq!(kind(change(&KeyChange::Add(secret(5)))), Some(ErrorKind::InvalidInput));
    for number in 1..8 {
        change(&KeyChange::Remove(number)).unwrap();
    }
    assert_eq!(kind(change(&KeyChange::Remove(0))), Some(ErrorKind::InvalidInput));
    assert!(opens(&secret(8)));
    // A power loss during a change leaves either superblock.
    let before = world.copy();
    change(&KeyChange::Replace(0, secret(6))).unwrap();
    for torn in 0..SUPERBLOCK_SLOTS {
        let mixed = world.copy();
        let old = before.run(before.memory.read_superblock(torn)).unwrap();
        mixed.run(mixed.memory.write_superblock(torn, old)).unwrap();
        let locked = mixed.run(Locked::on(&mixed.memory)).unwrap().unwrap();
        assert!(locked.unlock(&secret(6), Randomness::seeded(4)).is_ok());
        assert!(locked.unlock(&secret(8), Randomness::seeded(4)).is_ok());
    }
}

#[test]
fn a_snapshot_is_sent_in_the_clear_and_received_encrypted() {
    let world = World::encrypted(small(4 << 20, 4));
    let drive = world.open();
    world.write(&drive, 0, &text(40, 1)).unwrap();
    world.write(&drive, 3 * BLOCK, &text(2, 2)).unwrap();
    let expected = world.read(&drive, 0, 4 << 20).unwrap();
    let new = NewSnapshot {
        name: "a".into(),
        guid: uuid::Uuid::from_u128(5),
        created_seconds: 1,
        yields: false,
    };
    let info = world.run(drive.create_snapshot(new)).unwrap();
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    world.close(drive);
    let view = world.run(Drive::open_snapshot(world.medium(), world.runtime.clock(), "a", options));
    let view = view.unwrap();
    let mut send = SendStream::new(View { disk: &view, info: &info }, None, 0).unwrap();
    let mut sent = Vec::new();
    while let Some(bytes) = world.run(send.next()).unwrap() {
        sent.extend(bytes);
    }
    assert!(sent.windows(16).any(|window| window == &TEXT[8..24]), "it is in the clear");
    let spec = Spec { uuid: uuid::Uuid::from_u128(77), ..small(4 << 20, 4) };
    let target = World::encrypted(spec);
    crate::controller::tests::retention::transfer::receive_all(&target, &sent).unwrap();
    let received = target.open();
    assert!(target.read(&received, 0, 4 << 20).unwrap() == expected);
}
