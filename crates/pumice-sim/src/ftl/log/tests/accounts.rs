//! Goal: written bytes add up; each block is in exactly one segment, the one that received its last
//! version; equal seeds produce equal runs; memory is within its limit. Method: random operations
//! on several kinds of drives. Moves are recorded and tracked in an array of versions, which the
//! layer does not have; all counters are recalculated from the lists.

use std::collections::BTreeMap;

use rand::RngExt;

use super::*;
use pumice_drive::base::ErrorKind;
use pumice_drive::base::seed::random;

/// Returns drives that together cover every property that affects the path of a block.
fn kinds() -> Vec<LogSpec> {
    let table = small();
    vec![
        table.clone(),
        compressing(),
        LogSpec { moved_apart: false, ..small() },
        LogSpec { moved_apart: false, stripe_dies: Some(4), ..compressing() },
        LogSpec {
            victims: VictimPolicy::CostBenefit,
            stripe_dies: Some(4),
            user_blocks: 1500,
            ..small()
        },
        LogSpec { bad_percent: 4.0, user_blocks: 1600, wear_gap_max: Some(2), ..table },
        LogSpec {
            stored: StoredSizes::Constant(0.3),
            header_bytes: 28,
            user_blocks: 6000,
            timing: FlashTiming { cache_program: true, multi_plane: false, ..TIMING },
            ..small()
        },
    ]
}

/// Writes, reads, trims and flushes at random, mostly single-block writes. Returns the last time.
fn disturb(drive: &mut LogFtl, operations: u32, seed: u64) -> u64 {
    let mut random = random(seed);
    let mut now_ns = drive.now_ns;
    let mut sum = 0u64;
    for _ in 0..operations {
        let blocks = if random.random_range(0..4) == 0 { random.random_range(1..40) } else { 1 };
        let last = drive.spec.user_blocks - u64::from(blocks);
        // Half of the accesses are in a tenth of the drive.
        let end = if random.random_range(0..2) == 0 { last } else { last / 10 };
        let lba = Lba(random.random_range(0..=end));
        let answer = match random.random_range(0..20) {
            0 => drive.trim(now_ns, lba, blocks).map(|()| now_ns),
            1 => drive.flush(now_ns),
            2..6 => drive.read(now_ns, lba, blocks).map(|times| times.last_ns),
            _ => drive.write(now_ns, lba, blocks),
        };
        let done_ns = answer.unwrap();
        assert!(done_ns >= now_ns);
        sum = sum.wrapping_mul(31).wrapping_add(done_ns);
        now_ns = if random.random_range(0..3) == 0 { done_ns } else { now_ns + 1000 };
        now_ns = now_ns.max(drive.now_ns);
    }
    sum
}

/// Recounts all counters, and compares them with the tables.
pub(super) fn recount(drive: &LogFtl) {
    let mut found = vec![0u32; drive.map.len()];
    for segment in 0..drive.segments.count() {
        let range = drive.entries_of(segment);
        let is_here = |lba: &u32| range.contains(&drive.map[*lba as usize]);
        let live = (0..drive.map.len() as u32).filter(is_here);
        let bytes = live.clone().map(|lba| drive.frames.frame_bytes(lba)).sum::<u32>();
        let blocks = live.clone().count();
        assert_eq!(drive.segments.live_bytes(segment), bytes, "segment {segment}");
        assert_eq!(drive.segments.live_count(segment) as usize, blocks, "segment {segment}");
        if drive.segments.is_free(segment) {
            assert_eq!(blocks, 0, "segment {segment} is free");
        } else if drive.segments.is_sealed(segment) {
            let lbas = drive.segments.lbas(segment);
            lbas.for_each(|lba| found[lba as usize] += u32::from(is_here(&lba)));
            assert!(lbas.len() < 64 || lbas.len() as usize <= 2 * blocks + 1, "it is not thinned");
        } else if drive.collection.segment() == Some(segment) {
            live.for_each(|lba| found[lba as usize] += 1);
        } else {
            let open = drive.open.iter().flatten().find(|open| open.segment == segment).unwrap();
            let listed = std::collections::BTreeSet::from_iter(&open.lbas);
            listed.into_iter().filter(|lba| is_here(lba)).for_each(|&lba| found[lba as usize] += 1);
        }
    }
    for (lba, &count) in found.iter().enumerate() {
        assert_eq!(count, u32::from(drive.map[lba] != UNMAPPED), "block {lba}");
    }
}

#[test]
fn the_counts_of_writes_add_up() {
    for (number, spec) in kinds().into_iter().enumerate() {
        let mut drive = LogFtl::new(spec).unwrap();
        for round in 0..6 {
            disturb(&mut drive, 3000, round);
            recount(&drive);
        }
        drive.settle();
        let counts = drive.counts();
        let written = counts.host_bytes + counts.collected_bytes + counts.leveled_bytes;
        let row_bytes = drive.layout.row_bytes;
        let partial = |open: &Open| u64::from(open.offset - open.rows * row_bytes);
        let waiting: u64 = drive.open.iter().flatten().map(partial).sum();
        assert_eq!(
            written + counts.padding_bytes + counts.parity_bytes,
            counts.flash_bytes + waiting,
            "kind {number}: {counts:?}"
        );
        let flash = drive.flash_counts();
        let page_bytes = u64::from(drive.spec.shape.page_bytes);
        assert_eq!(flash.pages_programmed * page_bytes, counts.flash_bytes, "kind {number}");
        assert_eq!(drive.erases().map(u64::from).sum::<u64>(), flash.blocks_erased);
        assert!(counts.segments_collected > 100, "kind {number}: too little to see: {counts:?}");
        // Every emptied segment is erased when it is reused; the free ones have not been erased
        // yet.
        let emptied = counts.segments_collected + counts.segments_leveled;
        let dies = u64::from(drive.spec.shape.dies());
        assert!(flash.blocks_erased <= emptied * dies, "kind {number}");
        assert!(flash.blocks_erased + 10 * dies >= emptied * dies, "kind {number}: {flash:?}");
        let parts = counts.amplification();
        let sum = parts.host + parts.collected + parts.leveled + parts.padding + parts.parity;
        assert!((sum / counts.write_amplification() - 1.0).abs() < 0.01);
    }
}

/// A move copies the version at its source. If an old copy were ever mistaken for the newest, the
/// versions would differ.
#[test]
fn a_block_is_where_its_last_version_went() {
    for (number, spec) in kinds().into_iter().enumerate() {
        let mut drive = LogFtl::new(spec).unwrap();
        let mut newest = vec![0u32; drive.map.len()];
        let mut places: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
        for round in 0..200 {
            disturb(&mut drive, 60, 1000 + round);
            for event in std::mem::take(&mut drive.trace) {
                match event {
                    Event::Placed { lba, cause: Cause::Host, to, .. } => {
                        newest[lba as usize] += 1;
                        assert_eq!(places.insert(to, (lba, newest[lba as usize])), None);
                    }
                    Event::Placed { lba, from, to, .. } => {
                        let copied = places[&from];
                        assert_eq!(copied, (lba, newest[lba as usize]), "kind {number}: stale");
                        assert_eq!(places.insert(to, copied), None, "kind {number}: overwritten");
                    }
                    Event::Freed { segment } => {
                        let range = drive.entries_of(segment);
                        places.retain(|place, _| !range.contains(place));
                    }
                }
            }
            for (lba, &entry) in (0u32..).zip(&drive.map) {
                if entry != UNMAPPED {
                    let expected = (lba, newest[lba as usize]);
                    assert_eq!(places.get(&entry), Some(&expected), "kind {number}");
                }
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for spec in kinds() {
        let run = |seed| {
            let mut drive = LogFtl::new(spec.clone()).unwrap();
            let answers = disturb(&mut drive, 4000, seed);
            (answers, drive.settle(), drive.counts(), drive.flash_counts(), drive.wear())
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }
}

/// Returns a drive of 10^12 bytes with a current geometry: 64 dies with 2 planes and 16 KiB pages.
fn terabyte(fraction: f64, over_provisioning: f64) -> LogSpec {
    let raw = 1e12 * (1.0 + over_provisioning);
    let shape = FlashShape {
        channels: 8,
        dies_per_channel: 8,
        planes: 2,
        blocks_per_plane: (raw / (64.0 * 2.0 * 256.0 * 16384.0)).ceil() as u32 + 5,
        pages_per_block: 256,
        page_bytes: 16384,
    };
    let header_bytes = if fraction < 1.0 { 24 } else { 0 };
    let stored = StoredSizes::Constant(fraction);
    let buffer_bytes = 8 << 20;
    let user_blocks = 1_000_000_000_000 / 4096;
    LogSpec { shape, user_blocks, stored, header_bytes, buffer_bytes, ..small() }
}

#[test]
fn a_terabyte_takes_less_than_two_gib() {
    for fraction in [1.0, 0.5, 0.14] {
        for over_provisioning in [0.0737, 0.28] {
            let bytes = terabyte(fraction, over_provisioning).memory_bytes_max().unwrap();
            assert!(bytes < 2 << 30, "{fraction} stored takes {bytes} bytes");
            assert!(bytes > 4 * 244_140_625, "not even its map is counted: {bytes} bytes");
        }
    }
}

#[test]
fn memory_stays_below_the_stated_bound() {
    for fraction in [1.0, 0.5, 0.14] {
        let shape = FlashShape { pages_per_block: 64, blocks_per_plane: 128, ..SHAPE };
        let plain = LogSpec { shape, user_blocks: 55_000, ..small() };
        let header_bytes = if fraction < 1.0 { 24 } else { 0 };
        let stored = StoredSizes::Constant(fraction);
        let spec = LogSpec { stored, header_bytes, ..plain };
        let most = spec.memory_bytes_max().unwrap();
        let mut drive = LogFtl::new(spec).unwrap();
        let mut host = host(Order::Uniform, 1);
        let mut seen = 0;
        for _ in 0..20 {
            host.run(&mut drive, 20_000).unwrap();
            drive.trace.clear();
            // The amount of data waiting for the flash is limited by the buffer size, not by the
            // drive size.
            seen = seen.max(drive.memory_bytes() - drive.drain.heap_bytes());
        }
        assert!(seen <= most, "{fraction}: {seen} bytes, at most {most}");
        assert!(seen * 4 > most * 3, "{fraction}: {seen} bytes, said to be {most}");
    }
}

#[test]
fn impossible_specifications_are_refused() {
    let refused = |spec: LogSpec, what: &str| {
        let error = LogFtl::new(spec).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(what), "{error}");
    };
    // 40 segments, including 5 free or open ones.
    assert!(LogFtl::new(LogSpec { user_blocks: 35 * 64, ..small() }).is_ok());
    refused(LogSpec { user_blocks: 35 * 64 + 1, ..small() }, "room for");
    refused(LogSpec { user_blocks: 0, ..small() }, "cannot be simulated");
    refused(LogSpec { free_segments: 1, ..small() }, "free_segments");
    refused(LogSpec { buffer_bytes: 4096, ..small() }, "write buffer");
    refused(LogSpec { bad_percent: 60.0, ..small() }, "bad");
    refused(LogSpec { stored: StoredSizes::Constant(2.0), ..small() }, "fraction");

    let mut drive = LogFtl::new(small()).unwrap();
    assert!(drive.write(0, Lba(2000), 1).is_err());
    assert!(drive.read(0, Lba(1999), 2).is_err());
    assert!(drive.trim(0, Lba(u64::MAX), 1).is_err());
    drive.write(1000, Lba(1999), 1).unwrap();
    assert!(drive.write(999, Lba(0), 1).is_err(), "time went backwards");
}

/// Every flushed write pads half of a row, and this padding must be reclaimed.
#[test]
fn a_full_drive_lives_with_a_flush_after_every_write() {
    for spec in [LogSpec { user_blocks: 35 * 64, ..small() }, compressing()] {
        let mut drive = LogFtl::new(spec).unwrap();
        let mut random = random(1);
        let mut now_ns = 0;
        for _ in 0..20_000 {
            let lba = Lba(random.random_range(0..drive.spec.user_blocks));
            drive.write(now_ns, lba, 1).unwrap();
            now_ns = drive.flush(now_ns).unwrap();
        }
        recount(&drive);
    }
}
