//! Goal: damage to the headers of a small batch, which has no parity, hides no data, because the
//! next batch repeats them.

use super::*;
use crate::media::layer::{BadRange, Region};
use rand::RngExt;

use crate::base::SeqNo;
use crate::base::seed::random;
use crate::format::BATCH_HEADER_BYTES;

const SIZE: u64 = 4 << 20;

/// Returns a drive that was killed, with small writes, each flushed, over older data; and the
/// present and the earlier content of the disk.
fn killed(spec: Spec) -> (World, [Vec<u8>; 2]) {
    let world = World::new(spec);
    let drive = world.open();
    let mut random = random(7);
    let old = payload::text(&mut random, SIZE as usize);
    for (at, part) in (0..).step_by(1 << 20).zip(old.chunks(1 << 20)) {
        world.write(&drive, at, part).unwrap();
    }
    world.run(drive.checkpoint()).unwrap();
    let mut new = old.clone();
    for round in 0..40 {
        let blocks = random.random_range(1..=6);
        let at = random.random_range(0..SIZE / BLOCK - blocks) * BLOCK;
        let len = (blocks * BLOCK) as usize;
        let bytes = match round % 3 {
            0 => payload::noise(&mut random, len),
            1 => vec![round; len],
            _ => payload::text(&mut random, len),
        };
        world.run(drive.write_durable(at, &bytes)).unwrap();
        new[at as usize..][..len].copy_from_slice(&bytes);
    }
    // While idle, the drive vouches for all earlier batches.
    world.run(world.runtime.sleep_ns(2_000_000_000));
    world.kill(drive);
    (world, [new, old])
}

/// Returns the batches of the host after the checkpoint, except for the last one, which repeats
/// headers and is not repeated itself.
fn small_batches(world: &World) -> Vec<crate::format::BatchHeader> {
    let mut found: Vec<_> = (0..6).flat_map(|segment| damage::batches(world, segment)).collect();
    found.retain(|batch| batch.parity_pages == 0);
    found.sort_by_key(|batch| batch.seq);
    found.pop();
    assert!(found.len() > 35, "{} small batches: too tame a test", found.len());
    found
}

#[test]
fn headers_of_a_small_batch_may_be_damaged() {
    for codec in [Codec::None, Codec::Lz4] {
        let (world, [new, _]) = killed(Spec { codec, ..small(SIZE, 6) });
        let mut lacking = 0;
        for batch in small_batches(&world) {
            let copy = world.copy();
            copy.flip(batch.segment.0, batch.offset + 40);
            let Ok(drive) = copy.try_open(OpenOptions::default()) else {
                lacking += 1;
                continue;
            };
            assert_eq!(drive.info().operations.cut_batches, 0);
            assert_whole(&drive, &copy, &new, batch.seq);
            assert_accounting(&drive);
            copy.close(drive);
            let drive = copy.open();
            assert_whole(&drive, &copy, &new, batch.seq);
            copy.close(drive);
        }
        assert!(lacking <= 4, "{codec}: {lacking} headers were not repeated");
    }
}

fn assert_whole(drive: &Drive, world: &World, plain: &[u8], seq: SeqNo) {
    for (at, part) in (0..).step_by(1 << 20).zip(plain.chunks(1 << 20)) {
        assert!(world.read(drive, at, part.len()).unwrap() == part, "batch {seq}, at {at}");
    }
}

/// A scrub finds the content of a batch with damaged headers and rewrites it, even long after the
/// last replay of the batch.
#[test]
fn a_scrub_writes_a_small_batch_with_damaged_headers_again() {
    let (world, [new, _]) = killed(Spec { codec: Codec::Lz4, ..small(SIZE, 6) });
    let batches = small_batches(&world);
    for is_replayed in [true, false] {
        if !is_replayed {
            let drive = world.open();
            world.run(drive.checkpoint()).unwrap();
            world.close(drive);
        }
        let (mut lacking, mut repaired) = (0, 0);
        for batch in &batches {
            // The header of the batch, and the header of its first record.
            for at in [40, 4 + BATCH_HEADER_BYTES as u32] {
                let copy = world.copy();
                copy.flip(batch.segment.0, batch.offset + at);
                let noticed = !copy.check().problems.is_empty();
                let Ok(drive) = copy.try_open(OpenOptions::default()) else {
                    lacking += 1;
                    continue;
                };
                let mut parts = (0..).step_by(1 << 20).zip(new.chunks(1 << 20));
                let fails = parts.any(|(at, part)| copy.read(&drive, at, part.len()).is_err());
                assert!(!fails || noticed, "{}: check says nothing of it", batch.seq);
                let report = copy.run(drive.scrub(0)).unwrap();
                lacking += u64::from(report.problem_count > 0);
                repaired += report.repaired;
                assert_whole(&drive, &copy, &new, batch.seq);
                if report.problem_count == 0 {
                    let again = copy.run(drive.scrub(0)).unwrap();
                    assert_eq!((again.problem_count, again.repaired), (0, 0), "{}", batch.seq);
                }
                assert_accounting(&drive);
                copy.close(drive);
            }
        }
        assert!(lacking <= 8 && repaired > 50, "{lacking} not restored, {repaired} repaired");
    }
}

/// Blocks in a lost page fail, and none return older data.
#[test]
fn a_page_of_a_small_batch_may_be_lost() {
    let (world, [new, old]) = killed(Spec { codec: Codec::Lz4, ..small(SIZE, 6) });
    let (mut lacking, mut failed) = (0, 0);
    for batch in small_batches(&world) {
        for page in (0..batch.batch_bytes() as u32).step_by(4096) {
            let copy = world.copy();
            let zeroes = crate::base::AlignedBuffer::zeroed(4096);
            let append = copy.memory.append(batch.segment, batch.offset + page, zeroes.into());
            copy.run(append).unwrap();
            let Ok(drive) = copy.try_open(OpenOptions::default()) else {
                lacking += 1;
                continue;
            };
            for at in (0..SIZE).step_by(BLOCK_BYTES) {
                failed += u32::from(!is_right(&drive, &copy, at, &new, &old));
            }
            copy.kill(drive);
            let range = batch.offset + page + 3072..batch.offset + page + 3584;
            let bad = BadRange::unreadable(Region::Segment(batch.segment), range);
            let copy = world.copy();
            let (_, opened) = tail::open_with(&copy, &[bad], OpenOptions::default());
            let Ok(drive) = opened else {
                lacking += 1;
                continue;
            };
            for at in (0..SIZE).step_by(BLOCK_BYTES) {
                is_right(&drive, &copy, at, &new, &old);
            }
            copy.kill(drive);
        }
    }
    assert!(lacking <= 4 && failed > 20, "{lacking} refused, {failed} blocks failed");
}

/// Returns whether a block is right. A wrong block must have been written after the checkpoint, and
/// its read must fail.
fn is_right(drive: &Drive, world: &World, at: u64, new: &[u8], old: &[u8]) -> bool {
    let block = at as usize..at as usize + BLOCK_BYTES;
    match world.read(drive, at, BLOCK_BYTES) {
        Ok(read) => {
            assert!(read == new[block], "at {at}");
            true
        }
        Err(error) => {
            let is_damage = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Medium);
            assert!(is_damage, "at {at}: {error}");
            assert!(old[block.clone()] != new[block], "at {at}: it was not written");
            false
        }
    }
}

/// The first of two small batches that were not flushed is torn: its headers are known, but its
/// content is not.
#[test]
fn a_torn_batch_is_cut_although_its_headers_are_repeated() {
    let (world, [new, _]) = killed(small(SIZE, 6));
    let drive = world.open();
    let mut random = random(8);
    for at in [0, 1 << 20] {
        world.write(&drive, at, &payload::noise(&mut random, 2 * BLOCK_BYTES)).unwrap();
        drive.with_core(|core| core.seal(Stream::Host));
        world.run(world.runtime.yield_now());
    }
    let (segment, last) = {
        let core = drive.core();
        (core.log().tail(Stream::Host).unwrap().segment.0, core.log().sealed_seq())
    };
    world.kill(drive);
    let batches = damage::batches(&world, segment);
    let torn = batches.iter().find(|batch| batch.seq.0 + 1 == last.0).unwrap();
    for page in [0, 4096, 8192] {
        let copy = world.copy();
        let zeroes = crate::base::AlignedBuffer::zeroed(4096);
        copy.run(copy.memory.append(torn.segment, torn.offset + page, zeroes.into())).unwrap();
        let drive = copy.open();
        assert_whole(&drive, &copy, &new, last);
        assert!(drive.info().operations.cut_batches > 0, "page {page}");
        copy.kill(drive);
    }
}
