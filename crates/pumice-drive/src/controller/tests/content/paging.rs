//! Goal: the map's leaves stay within their budget, whatever the disk's size; evicted leaves are
//! read again; and an opening reads only the log after the newest checkpoint and holds no more
//! leaves than allowed. Method: writes scattered over a disk many times larger than the budget
//! covers.

use rand::RngExt;

use super::*;
use crate::base::seed::random;
use crate::format::leaf_bytes_max;

const SIZE: u64 = 64 << 30;
/// The smallest budget: two leaves, each of which occupies up to twice its bytes on the medium.
const CACHE_BYTES: usize = 4 * leaf_bytes_max(true);
/// Leaves above the budget, for a request that needs both ends of its range.
const SLACK_BYTES: usize = 2 * leaf_bytes_max(true);

fn options() -> OpenOptions {
    let checkpoint_bytes = 1 << 20;
    OpenOptions { map_cache_bytes: CACHE_BYTES, checkpoint_bytes, ..OpenOptions::default() }
}

/// Writes blocks of the byte 1, 2, ... far apart, and returns the offsets in order.
fn scatter(world: &World, drive: &Drive, count: usize) -> Vec<u64> {
    let mut random = random(1);
    let place = |_| random.random_range(0..SIZE / BLOCK) * BLOCK;
    let places: Vec<u64> = (0..count).map(place).collect();
    for (number, place) in places.iter().enumerate() {
        world.run(drive.write(*place, &payload_of(number))).unwrap();
        let leaves = drive.info().memory.map_leaf_bytes as usize;
        assert!(leaves < CACHE_BYTES + SLACK_BYTES, "{leaves} bytes after {number} writes");
    }
    places
}

fn payload_of(number: usize) -> Vec<u8> {
    let word = (number as u64).to_le_bytes();
    word.repeat(BLOCK_BYTES / word.len())
}

#[test]
fn a_small_map_cache_holds_a_large_disk() {
    let world = World::new(small(SIZE, 10));
    let drive = world.try_open(options()).unwrap();
    let places = scatter(&world, &drive, 3000);
    for (number, place) in places.iter().enumerate() {
        assert!(world.read(&drive, *place, BLOCK_BYTES).unwrap() == payload_of(number));
    }
    let operations = drive.info().operations;
    assert!(operations.map_misses > 2000, "{operations:?}");
    assert!(operations.map_evictions > 2000 && operations.checkpoints > 2, "{operations:?}");
    world.run(drive.flush()).unwrap();
    let written = operations.batches;
    world.kill(drive);
    let drive = world.try_open(options()).unwrap();
    let recovered = drive.info().operations.recovered_batches;
    assert!(recovered < written / 2, "{recovered} of {written} batches were read again");
    for (number, place) in places.iter().enumerate() {
        assert!(world.read(&drive, *place, BLOCK_BYTES).unwrap() == payload_of(number));
    }
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// After an orderly end, no log is read.
#[test]
fn an_orderly_end_leaves_no_log_to_read() {
    let world = World::new(small(SIZE, 10));
    let drive = world.try_open(options()).unwrap();
    scatter(&world, &drive, 300);
    let drive = world.reopen(drive);
    // The checkpoint's own batches follow it in the log.
    assert!(drive.info().operations.recovered_batches <= 2, "{:?}", drive.info().operations);
    world.close(drive);
}

/// Guards against a checkpoint that causes the next one.
#[test]
fn a_drive_at_rest_writes_no_checkpoints() {
    let mut world = World::new(small(SIZE, 10));
    world.plan.latency_ns = 1_000_000..=1_000_000;
    let drive = world.try_open(OpenOptions { checkpoint_bytes: 1, ..options() }).unwrap();
    scatter(&world, &drive, 20);
    world.run(drive.flush()).unwrap();
    // The checkpoint that is due, and one for the host's writes during the first.
    world.run(drive.clock.sleep_ns(5_000_000_000));
    let (checkpoints, media_bytes) =
        (drive.info().operations.checkpoints, drive.info().media_bytes);
    assert!((1..=20).contains(&checkpoints), "{checkpoints}");
    world.run(drive.clock.sleep_ns(60_000_000_000));
    assert_eq!(drive.info().operations.checkpoints, checkpoints);
    assert_eq!(drive.info().media_bytes, media_bytes);
    world.close(drive);
}

/// Runs every kind of request that needs two leaves at the same time, in numbers far above the
/// leaves that fit in memory, together with readers that need other leaves, so that no leaf stays
/// in memory for long.
fn write_across_leaves(latency_ns: std::ops::RangeInclusive<u64>) {
    const PAIRS: u64 = 64;
    const ROUNDS: u64 = 3;
    const LEAF_BYTES: u64 = 4 << 20;
    let mut world = World::new(small(SIZE, 30));
    // Eight clean leaves are retained, whatever the budget.
    let options = OpenOptions { map_cache_bytes: 2 << 10, ..OpenOptions::default() };
    let drive = world.try_open(options).unwrap();
    let border = |pair: u64| (2 * pair + 1) * LEAF_BYTES;
    for pair in 0..2 * PAIRS {
        world.write(&drive, border(pair) - BLOCK, &[1; 2 * BLOCK_BYTES]).unwrap();
    }
    world.close(drive);
    world.plan.latency_ns = latency_ns;
    let drive = world.try_open(options).unwrap();
    let left = Rc::new(Cell::new(PAIRS));
    for pair in 0..PAIRS {
        let (drive, left) = (drive.clone(), left.clone());
        world.runtime.spawn(async move {
            for round in 0..ROUNDS {
                let (at, byte) = (border(pair), (pair * ROUNDS + round) as u8);
                match pair % 3 {
                    0 => drive.write(at - BLOCK, &[byte; 2 * BLOCK_BYTES]).await,
                    1 => drive.write(at - 700, &[byte; 1400]).await,
                    _ => drive.write_zeroes(at - BLOCK, 2 * BLOCK, allocation(round == 2)).await,
                }
                .unwrap();
            }
            left.set(left.get() - 1);
        });
    }
    for reader in 0..PAIRS {
        let (drive, left) = (drive.clone(), left.clone());
        world.runtime.spawn(async move {
            let mut block = [0; BLOCK_BYTES];
            for side in [0, BLOCK].into_iter().cycle() {
                if left.get() == 0 {
                    return;
                }
                drive.read(border(PAIRS + reader) - side, &mut block).await.unwrap();
                // Other tasks get a turn although this task's leaves are in memory.
                drive.clock.sleep_ns(1000).await;
            }
        });
    }
    // One after the other, they would take two seconds.
    world.run(world.runtime.sleep_ns(20_000_000_000));
    assert_eq!(left.get(), 0, "writers that never end");
    assert!(drive.info().operations.map_misses > PAIRS * ROUNDS, "too tame a test");
    for pair in 0..PAIRS {
        let expected = if pair % 3 == 2 { 0 } else { (pair * ROUNDS + ROUNDS - 1) as u8 };
        assert_eq!(world.read(&drive, border(pair) - 700, 1400).unwrap(), [expected; 1400]);
    }
    world.kill(drive);
}

/// Guards against requests that evict each other's leaves forever.
#[test]
fn requests_for_two_leaves_make_progress() {
    write_across_leaves(1_000_000..=1_000_000);
    write_across_leaves(1..=1_000_000);
}

/// Recovers a drive from its medium with a limit of this many bytes of changed leaves.
fn recover_within(world: &World, changed_bytes: usize) -> Result<recovery::Recovered> {
    let loaded = world.run(superblocks::load(&world.memory)).unwrap();
    let limits = recovery::Limits { clean_bytes: CACHE_BYTES, changed_bytes };
    let settings = Settings {
        cipher: Cipher::default(),
        has_durable_appends: false,
        prefers_written: false,
        is_read_only: true,
        map_cache_bytes: CACHE_BYTES,
        checkpoint_bytes: 1 << 30,
        gives_back: GivesBack::default(),
        warn_percent: None,
    };
    world.run(recovery::recover(&world.memory, &loaded.stored.superblock, settings, limits))
}

/// Guards against a log that fills the memory with leaves before a checkpoint of them can be
/// written.
#[test]
fn a_log_that_changes_too_much_of_the_map_is_refused() {
    let world = World::new(small(SIZE, 10));
    let drive = world.open();
    for leaf in 0..1000 {
        world.write(&drive, leaf << 22, &payload_of(1)).unwrap();
    }
    world.run(drive.checkpoint()).unwrap();
    for leaf in 0..1000 {
        world.write(&drive, (leaf << 22) + BLOCK, &payload_of(2)).unwrap();
    }
    world.close_without_checkpoint(drive);
    let all = recover_within(&world, usize::MAX).unwrap().core.map().dirty_bytes();
    assert!(all > 64 << 10, "too tame a test");
    assert_eq!(recover_within(&world, all).unwrap().core.map().dirty_bytes(), all);
    for changed_bytes in [0, all / 2, all - 1] {
        let error = recover_within(&world, changed_bytes).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("map cache"), "{error}");
    }
    let limit = |cache| recovery::Limits::for_map_cache(cache).changed_bytes;
    assert_eq!((limit(2 << 10), limit(1 << 30)), (4 * MAP_CACHE_BYTES_DEFAULT, 4 << 30));
}

/// Guards against refusing a drive because of leaves that were trimmed again: they were not in the
/// memory of the drive that wrote the log, either.
#[test]
fn leaves_that_were_trimmed_take_no_memory_in_recovery() {
    let world = World::new(small(SIZE, 10));
    let drive = world.open();
    for leaf in 0..1000 {
        world.write(&drive, leaf << 22, &payload_of(1)).unwrap();
        world.run(drive.trim(leaf << 22, 4 << 20)).unwrap();
    }
    world.write(&drive, 0, &payload_of(2)).unwrap();
    world.close_without_checkpoint(drive);
    recover_within(&world, 4 << 10).unwrap();
    world.close(world.open());
    assert_eq!(world.check().problems, []);
}

/// Guards against successive crashes in checkpoints, each of which adds another cache full of
/// changed leaves for the next opening to hold.
#[test]
fn deaths_in_checkpoints_do_not_add_up_in_recovery() {
    const LATENCY_NS: u64 = 1_000_000_000;
    let mut world = World::new(small(SIZE, 30));
    world.plan.latency_ns = LATENCY_NS..=LATENCY_NS;
    let options = OpenOptions { checkpoint_bytes: 1 << 30, ..options() };
    let mut most = 0;
    for life in 0..8 {
        let drive = world.try_open(options).unwrap();
        let changed = drive.core().map().dirty_bytes();
        assert!(changed < 2 * CACHE_BYTES + SLACK_BYTES, "{changed} bytes in life {life}");
        most = most.max(changed);
        let (host, clock) = (drive.clone(), world.runtime.clone());
        world.runtime.spawn(async move {
            // Different leaves every time, so that none has to be read.
            for leaf in life * 2000..(life + 1) * 2000 {
                host.write(leaf << 22, &payload_of(1)).await.unwrap();
            }
            clock.sleep_ns(u64::MAX / 2).await;
        });
        // Long enough for the host to continue once the checkpoint's leaves are on the medium, and
        // for its writes to reach the medium too; too short for the superblocks.
        world.run(drive.clock.sleep_ns(LATENCY_NS * 6 / 5));
        world.runtime.spawn({
            let drive = drive.clone();
            async move { drive.flush().await.unwrap() }
        });
        world.run(drive.clock.sleep_ns(LATENCY_NS * 13 / 10));
        assert_eq!(drive.info().operations.checkpoints, 0, "too short a test");
        world.kill(drive);
    }
    assert!(most > CACHE_BYTES, "too tame a test: {most}");
    let drive = world.open();
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Guards against garbage collection that changes more leaves than the cache may hold.
#[test]
fn moving_scattered_frames_keeps_to_the_map_cache() {
    let world = World::new(small(SIZE, 10));
    let options = OpenOptions { map_cache_bytes: CACHE_BYTES, ..OpenOptions::default() };
    let drive = world.try_open(options).unwrap();
    let mut random = random(1);
    for leaf in 0..1000 {
        world.write(&drive, leaf << 22, &payload::noise(&mut random, BLOCK_BYTES)).unwrap();
    }
    world.run(drive.checkpoint()).unwrap();
    let turn = world.run(drive.turn());
    let is_moved = Rc::new(Cell::new(false));
    world.runtime.spawn({
        let (drive, is_moved) = (drive.clone(), is_moved.clone());
        async move {
            drive.empty_victim(SegmentId(0)).await.unwrap();
            is_moved.set(true);
        }
    });
    world.run(world.runtime.sleep_ns(60_000_000_000));
    let bytes = drive.core().map().resident_bytes();
    assert!(bytes < CACHE_BYTES + SLACK_BYTES, "{bytes} bytes while no checkpoint can be written");
    drop(turn);
    world.run(world.runtime.sleep_ns(60_000_000_000));
    assert!(is_moved.get(), "it waits forever");
    assert!(drive.info().moved_bytes > 2 << 20, "too tame a test");
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Guards against garbage collection that waits for a checkpoint that is not due, because the host
/// has written nothing since the last one.
#[test]
fn moving_the_map_has_a_checkpoint_written_though_nobody_writes() {
    let world = World::new(small(SIZE, 10));
    let options = OpenOptions { map_cache_bytes: 2 << 10, ..OpenOptions::default() };
    let drive = world.try_open(options).unwrap();
    for leaf in 0..100 {
        world.write(&drive, leaf << 22, &payload_of(1)).unwrap();
    }
    world.run(drive.checkpoint()).unwrap();
    let is_meta = |segment: &SegmentId| drive.core().space().stream(*segment) == Stream::Meta;
    let used: Vec<_> = drive.core().space().used().map(|used| used.segment).collect();
    let segment = used.into_iter().find(is_meta).unwrap();
    let is_moved = Rc::new(Cell::new(false));
    world.runtime.spawn({
        let (drive, is_moved) = (drive.clone(), is_moved.clone());
        async move {
            drive.empty_victim(segment).await.unwrap();
            is_moved.set(true);
        }
    });
    world.run(world.runtime.sleep_ns(60_000_000_000));
    assert!(is_moved.get(), "it waits forever");
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Two maps are read in the order of the medium, not leaf by leaf, and the reported differences are
/// exact even if the cache holds only a fraction of the leaves.
#[test]
fn scattered_differences_of_a_large_disk_are_found_in_few_reads() {
    let world = World::new(small(SIZE, 10));
    let mut drive = world.open();
    let mut places = [Vec::new(), Vec::new()];
    let mut random = random(3);
    for (name, (guid, places)) in ["old", "new"].into_iter().zip((1..).zip(&mut places)) {
        for _ in 0..4000 {
            let place = random.random_range(0..SIZE / BLOCK) * BLOCK;
            world.run(drive.write(place, &payload_of(places.len() + 1))).unwrap();
            places.push(place);
        }
        world.run(drive.create_snapshot(snapshots::new(name, guid))).unwrap();
        drive = world.reopen(drive);
    }
    let [_, mut written] = places;
    written.sort_unstable();
    written.dedup();
    // Leaves of one sweep must not evict each other before they are compared.
    for (map_cache_bytes, most_reads) in [(8 << 20, 400), (CACHE_BYTES, 4000)] {
        let options = OpenOptions { map_cache_bytes, ..OpenOptions::default() };
        let [old, new] = ["old", "new"].map(|name| world.run(drive.view(name, options)).unwrap());
        let before = drive.layers().inner().counts();
        let mut changed = Vec::new();
        let visit = |range: Changed| {
            changed.extend((range.offset..range.offset + range.bytes).step_by(BLOCK_BYTES));
            true
        };
        world.run(new.changes_since(&old, visit)).unwrap();
        assert!(changed == written, "{} of {} are found", changed.len(), written.len());
        let reads = (drive.layers().inner().counts() - before).reads;
        let misses = [&old, &new].map(|view| view.info().operations.map_misses);
        let misses = misses.iter().sum::<u64>();
        assert!(reads < most_reads && misses < 12_000, "{reads} reads, {misses} leaves");
    }
    world.close(drive);
}
