//! Goal: with parity, a die, block or page that fails at any moment causes no loss; without parity,
//! exactly the data on it is lost; a second failure loses exactly the stripes affected by both.
//! Rebuilds take the calculated time, and every byte is counted. Method: random operations on small
//! drives with failures in between; the blocks affected by a failure are calculated from the map
//! beforehand, row by row.

use std::collections::BTreeSet;

use rand::RngExt;

use super::*;
use crate::ftl::layout::Role;
use crate::nand::BlockAddress;
use pumice_drive::base::ErrorKind;
use pumice_drive::base::seed::random;

/// Returns drives with eight dies on two channels, with parity stripes over all dies or over four,
/// or without parity.
fn drives(stripe_dies: Option<u32>) -> [LogSpec; 3] {
    let shape = FlashShape { dies_per_channel: 4, ..SHAPE };
    // 40 segments of 128 blocks.
    let plain = LogSpec { shape, stripe_dies, user_blocks: 2000, ..small() };
    let fractions = vec![0.05, 0.2, 0.4, 0.75, 1.0];
    let stored = StoredSizes::Table { fractions, seed: 5 };
    let packed = LogSpec { stored, stored_min: 0.14, header_bytes: 24, ..plain.clone() };
    [plain.clone(), packed, LogSpec { moved_apart: false, wear_gap_max: Some(4), ..plain }]
}

const PARITY: [Option<u32>; 3] = [None, Some(4), Some(8)];

/// Writes, trims and flushes at random.
fn disturb(drive: &mut LogFtl, operations: u32, seed: u64) {
    let mut random = random(seed);
    let mut now_ns = drive.now_ns;
    for _ in 0..operations {
        let blocks = if random.random_range(0..4) == 0 { random.random_range(1..40) } else { 1 };
        let lba = Lba(random.random_range(0..drive.spec.user_blocks - u64::from(blocks)));
        let done = match random.random_range(0..20) {
            0 => drive.trim(now_ns, lba, blocks).map(|()| now_ns),
            1 => drive.flush(now_ns),
            2..4 => drive.read(now_ns, lba, blocks).map(|times| times.last_ns),
            _ => drive.write(now_ns, lba, blocks),
        };
        let done_ns = done.unwrap();
        now_ns = if random.random_range(0..3) > 0 { done_ns } else { now_ns + 1000 };
        now_ns = now_ns.max(drive.now_ns);
    }
    drive.trace.clear();
}

/// Returns the blocks that have a byte in one of these parts, on flash and not in memory. They are
/// calculated byte by byte from the map, for drives whose map is exact.
fn blocks_on(drive: &LogFtl, has: impl Fn(u32, u32, BlockAddress, u32) -> bool) -> BTreeSet<u32> {
    assert!(drive.layout.unit_bytes == 1 || drive.layout.unit_bytes == 4096);
    let mapped = (0u32..).zip(&drive.map).filter(|(_, entry)| **entry != UNMAPPED);
    let is_on = |&(lba, &entry): &(u32, &u32)| {
        let (segment, offset) = (drive.layout.segment(entry), drive.layout.offset(entry));
        let end = offset + drive.frames.frame_bytes(lba);
        (offset..end).step_by(64).chain([end - 1]).any(|byte| {
            let data_row = byte / drive.layout.row_bytes;
            let number = drive.layout.row_number(data_row);
            let location = drive.layout.row_location(number);
            let address = drive.segments.block(segment, location.die);
            let now_ns = drive.now_ns;
            let is_on_flash = !drive.drain.is_buffered(&drive.flash, now_ns, address, location.row);
            let is_issued = (drive.open.iter().flatten())
                .all(|open| open.segment != segment || data_row < open.rows);
            is_on_flash && is_issued && has(segment, number, address, drive.layout.page_of(byte))
        })
    };
    mapped.filter(is_on).map(|(lba, _)| lba).collect()
}

fn mapped(drive: &LogFtl) -> BTreeSet<u32> {
    (0u32..).zip(&drive.map).filter(|(_, entry)| **entry != UNMAPPED).map(|it| it.0).collect()
}

fn lost(drive: &LogFtl) -> BTreeSet<u32> {
    (0..drive.spec.user_blocks as u32).filter(|&lba| drive.is_lost(Lba(lba.into()))).collect()
}

/// Asserts that every byte has a cause, and that every programmed page is counted: host, garbage
/// collection, wear leveling, rebuild, padding and parity.
fn assert_adds_up(drive: &mut LogFtl) {
    drive.settle();
    let counts = drive.counts();
    let row_bytes = drive.layout.row_bytes;
    let partial = |open: &Open| u64::from(open.offset - open.rows * row_bytes);
    let waiting: u64 = drive.open.iter().flatten().map(partial).sum();
    let moved = counts.collected_bytes + counts.leveled_bytes + counts.rebuilt_bytes;
    let caused = counts.host_bytes + moved + counts.padding_bytes + counts.parity_bytes;
    assert_eq!(caused, counts.flash_bytes + waiting, "{counts:?}");
    let programmed = drive.flash_counts().pages_programmed * 4096;
    assert_eq!(programmed, counts.flash_bytes - counts.failed_bytes, "{counts:?}");
    let parts = counts.amplification();
    let moved = parts.collected + parts.leveled + parts.rebuilt;
    let sum = parts.host + moved + parts.padding + parts.parity;
    assert!((sum / counts.write_amplification() - 1.0).abs() < 0.01);
}

/// Parity is exactly one row of each written stripe.
#[test]
fn a_row_of_each_stripe_is_parity() {
    for (stripe_dies, share) in [(Some(2), 0.5), (Some(4), 0.25), (Some(8), 0.125)] {
        let [spec, ..] = drives(stripe_dies);
        let mut drive = LogFtl::new(LogSpec { user_blocks: 1600, ..spec }).unwrap();
        for lba in 0..1600 {
            drive.write(drive.now_ns, Lba(lba), 1).unwrap();
        }
        let rows = 1600 / 2;
        let stripes = rows / (u64::from(stripe_dies.unwrap()) - 1);
        let counts = drive.counts();
        assert_eq!(counts.parity_bytes, stripes * 8192, "{stripe_dies:?}");
        assert_eq!(counts.flash_bytes, (rows + stripes) * 8192);
        assert!((counts.parity_bytes as f64 / counts.flash_bytes as f64 - share).abs() < 0.002);
        assert_adds_up(&mut drive);
    }
}

#[test]
fn a_die_that_fails_at_any_moment_loses_nothing_with_parity_and_its_blocks_without() {
    for stripe_dies in PARITY {
        for (kind, spec) in drives(stripe_dies).into_iter().enumerate() {
            for moment in 0..8 {
                let mut drive = LogFtl::new(spec.clone()).unwrap();
                disturb(&mut drive, 1500 + 137 * moment, u64::from(moment));
                let die = moment % 8;
                let before = mapped(&drive);
                // Incomplete rows are padded first, as in a flush.
                for stream in 0..3 {
                    drive.pad_row(stream);
                }
                let on_die = blocks_on(&drive, |_, _, address, _| address.die == die);
                assert!(moment < 4 || !on_die.is_empty());
                drive.fail(drive.now_ns, Fault::Die(die)).unwrap();
                let expected = if stripe_dies.is_none() { on_die } else { BTreeSet::new() };
                let what = format!("{stripe_dies:?}, kind {kind}, moment {moment}");
                assert_eq!(lost(&drive), expected, "{what}");
                assert_eq!(drive.counts().blocks_lost, expected.len() as u64, "{what}");
                assert_eq!(mapped(&drive), before.difference(&expected).copied().collect());
                drive.settle();
                assert_eq!(drive.rebuild().frames_left, 0, "{what}");
                let left = blocks_on(&drive, |_, _, address, _| address.die == die);
                assert_eq!(left, BTreeSet::new(), "{what}: still on the failed die");
                // The drive continues without the die.
                let pages = drive.flash.programmed_rows(BlockAddress { die, block: 0 });
                disturb(&mut drive, 1500, 77);
                accounts::recount(&drive);
                assert_adds_up(&mut drive);
                let same = drive.flash.programmed_rows(BlockAddress { die, block: 0 });
                assert_eq!(pages, same, "{what}: the failed die was used");
            }
        }
    }
}

/// The second failure occurs before or after the rebuild of the first.
#[test]
fn a_second_die_loses_the_stripes_that_both_hit() {
    for stripe_dies in [Some(4), Some(8)] {
        for (kind, spec) in drives(stripe_dies).into_iter().enumerate() {
            for (first, second, is_rebuilt) in
                [(0, 1, false), (2, 6, false), (0, 1, true), (3, 5, true)]
            {
                let mut drive = LogFtl::new(spec.clone()).unwrap();
                disturb(&mut drive, 3000, 9);
                drive.settle();
                drive.fail(drive.now_ns, Fault::Die(first)).unwrap();
                if is_rebuilt {
                    drive.settle();
                }
                // The rebuild starts immediately.
                drive.read(drive.now_ns, Lba(0), 0).unwrap();
                let layout = drive.layout;
                let segments = drive.segments.clone();
                let is_hit = |segment: u32, number: u32, address: BlockAddress, _: u32| {
                    let other = if address.die == first { second } else { first };
                    let is_old = segments.dead(segment) == 0;
                    let issued = layout.row_number(segments.rows(segment));
                    let mut stripe = layout.stripe_of(number).filter(|&it| it < issued);
                    let has_other = stripe.any(|it| layout.row_location(it).die == other);
                    let is_failed = address.die == first || address.die == second;
                    is_failed && has_other && is_old
                };
                let expected = blocks_on(&drive, is_hit);
                assert!(!expected.is_empty() || (stripe_dies == Some(4) && first == 2));
                drive.fail(drive.now_ns, Fault::Die(second)).unwrap();
                let what = format!("{stripe_dies:?}, kind {kind}, {first} and {second}");
                let differ = Vec::from_iter(lost(&drive).symmetric_difference(&expected).copied());
                assert_eq!(differ, [0u32; 0], "{what}, rebuilt: {is_rebuilt}");
                drive.settle();
                assert_adds_up(&mut drive);
            }
        }
    }
}

/// Returns whether another row of a stripe is unreadable on the same plane, or whether there is no
/// parity.
fn is_beyond(drive: &LogFtl, segment: u32, number: u32, page: u32) -> bool {
    let mut others = drive.layout.stripe_of(number).filter(|&it| it != number);
    let is_lost = |other| drive.lost_planes(segment, other) >> page & 1 == 1;
    !drive.layout.has_parity() || others.any(is_lost)
}

#[test]
fn blocks_and_pages_that_fail_lose_nothing_with_parity() {
    for stripe_dies in PARITY {
        for spec in drives(stripe_dies) {
            let mut drive = LogFtl::new(spec).unwrap();
            let mut random = random(3);
            let mut was_lost = 0;
            for round in 0..40 {
                disturb(&mut drive, 200, round);
                let lba = random.random_range(0..drive.map.len());
                let entry = drive.map[lba];
                if entry == UNMAPPED {
                    continue;
                }
                let data_row = drive.layout.row_of(drive.layout.offset(entry));
                let (address, row) = drive.row_address(drive.layout.segment(entry), data_row);
                if drive.faults.blocks().contains(&address) {
                    continue;
                }
                let before = lost(&drive);
                let (fault, expected) = if round % 8 == 0 {
                    for stream in drive.streams_to_cut(Fault::Block(address)) {
                        drive.pad_row(stream);
                    }
                    let is_on = |segment, number, it, page| {
                        it == address && is_beyond(&drive, segment, number, page)
                    };
                    (Fault::Block(address), blocks_on(&drive, is_on))
                } else {
                    let plane = drive.layout.page_of(drive.layout.offset(entry));
                    let is_on = |segment, number, it, page| {
                        let location = drive.layout.row_location(number);
                        (it, location.row, page) == (address, row, plane)
                            && is_beyond(&drive, segment, number, page)
                    };
                    (Fault::Page { address, row, plane }, blocks_on(&drive, is_on))
                };
                drive.fail(drive.now_ns, fault).unwrap();
                let now = lost(&drive).difference(&before).copied().collect::<BTreeSet<_>>();
                assert_eq!(now, expected, "{stripe_dies:?}, {fault:?}");
                was_lost += now.len();
                drive.settle();
            }
            accounts::recount(&drive);
            assert_adds_up(&mut drive);
            // With parity, only data that an earlier fault had left unprotected is lost.
            assert!(was_lost > 30 || stripe_dies.is_some(), "{was_lost}");
            assert!(was_lost < 30 || stripe_dies.is_none(), "{was_lost}");
        }
    }
}

/// Each read of a lost block is an error until the block is written or trimmed.
#[test]
fn lost_blocks_are_unreadable_until_they_are_written() {
    let [spec, ..] = drives(None);
    let mut drive = LogFtl::new(spec).unwrap();
    for lba in 0..256 {
        drive.write(drive.now_ns, Lba(lba), 1).unwrap();
    }
    drive.settle();
    drive.fail(drive.now_ns, Fault::Die(3)).unwrap();
    // One eighth of two segments, with two blocks per row.
    let gone = Vec::from_iter(lost(&drive));
    assert_eq!(gone.len(), 32);
    drive.read(drive.now_ns, Lba(0), 256).unwrap();
    assert_eq!(drive.counts().blocks_unreadable, 32);
    drive.write(drive.now_ns, Lba(gone[0].into()), 1).unwrap();
    drive.trim(drive.now_ns, Lba(gone[1].into()), 1).unwrap();
    drive.read(drive.now_ns, Lba(0), 256).unwrap();
    assert_eq!(drive.counts().blocks_unreadable, 32 + 30);
    assert_eq!(drive.counts().blocks_lost, 32, "a count of what was lost, not of what is");
}

/// With eight dies on eight channels, seven rows are sensed concurrently, and each is transferred
/// over its own bus.
#[test]
fn a_rebuild_takes_the_time_of_the_arithmetic() {
    let shape = FlashShape { channels: 8, dies_per_channel: 1, ..SHAPE };
    let spec = LogSpec { shape, stripe_dies: Some(8), user_blocks: 2000, ..small() };
    let mut drive = LogFtl::new(spec).unwrap();
    // Whole segments of 8 stripes, with 7 rows of 2 blocks each.
    let segments = 10;
    for lba in 0..segments * 112 {
        drive.write(drive.now_ns, Lba(lba), 1).unwrap();
    }
    drive.settle();
    let (began_ns, pages) = (drive.now_ns, drive.flash_counts().pages_read);
    drive.fail(began_ns, Fault::Die(2)).unwrap();
    // A die contains the parity of one stripe in eight, and data of the other stripes.
    let stripes = segments * 7;
    assert_eq!(drive.rebuild().frames_left, stripes * 2);

    // If the host reads a block that has not been rebuilt yet, the rest of its stripe is also read.
    let frame = *drive.faults.rebuild_frames().last().unwrap() as u32;
    let mut degraded = drive.clone();
    let took_ns = degraded.read(began_ns, Lba(frame.into()), 1).unwrap().last_ns - began_ns;
    let page_ns = TIMING.read_ns + TIMING.transfer_ns(4096);
    let row_ns = TIMING.read_ns + TIMING.transfer_ns(8192);
    assert_near(took_ns, page_ns + row_ns);

    drive.settle();
    let took_ns = drive.rebuild().took_ns;
    let expected_ns = stripes * row_ns;
    assert!(took_ns >= expected_ns, "{took_ns} ns, but reading takes {expected_ns}");
    // A row that is being rewritten, or the parity of seven dies, delays the next read.
    let program_ns = TIMING.program_ns + TIMING.transfer_ns(8192);
    assert!(took_ns <= expected_ns + stripes * 7 / 6 * program_ns, "{took_ns} ns");
    let read = drive.flash_counts().pages_read - pages;
    assert_eq!(read, stripes * 7 * 2, "seven rows of two pages for each stripe");
    assert_eq!(drive.counts().rebuilt_bytes, stripes * 2 * 4096);
}

#[test]
fn a_drive_that_has_no_room_left_says_so() {
    let [spec, ..] = drives(Some(8));
    // The maximum that fits: 35 segments of 112 blocks.
    let mut drive = LogFtl::new(LogSpec { user_blocks: 3920, ..spec }).unwrap();
    for lba in 0..3920 {
        drive.write(drive.now_ns, Lba(lba), 1).unwrap();
    }
    drive.settle();
    drive.fail(drive.now_ns, Fault::Die(0)).unwrap();
    let mut random = random(1);
    let ended = (0..20_000)
        .find_map(|_| drive.write(drive.now_ns, Lba(random.random_range(0..3920)), 1).err());
    assert_eq!(ended.unwrap().kind(), ErrorKind::NoSpace);
    drive.settle();
    assert_eq!(lost(&drive), BTreeSet::new());
    drive.read(drive.now_ns, Lba(0), 3920).unwrap();
}

#[test]
fn impossible_failures_are_refused() {
    let [spec, ..] = drives(Some(8));
    let mut drive = LogFtl::new(spec).unwrap();
    let address = BlockAddress { die: 7, block: 39 };
    drive.fail(0, Fault::Block(address)).unwrap();
    drive.fail(0, Fault::Die(1)).unwrap();
    for (fault, words) in [
        (Fault::Die(8), "Die(8) does not exist"),
        (Fault::Die(1), "Die(1) has already failed"),
        (Fault::Block(BlockAddress { die: 0, block: 40 }), "does not exist"),
        (Fault::Block(address), "has already failed"),
        (Fault::Block(BlockAddress { die: 1, block: 0 }), "has already failed"),
        (Fault::Page { address, row: 8, plane: 0 }, "does not exist"),
        (Fault::Page { address, row: 0, plane: 2 }, "does not exist"),
    ] {
        let error = drive.fail(0, fault).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(words), "{error}");
    }
    // A die that has lost one of its 40 blocks.
    assert_eq!(drive.segments.free_count(), 39);
    let roles = (0..64).filter(|&number| drive.layout.role(number, &[1]) == Role::Dead);
    assert_eq!(roles.count(), 8);
}
