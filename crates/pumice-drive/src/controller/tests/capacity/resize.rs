//! Goal: a drive in use grows and shrinks, and a power loss at any moment leaves the old drive or
//! the new one with all data; an impossible size is refused with the nearest possible one, and
//! changes nothing. Method: noise all over a drive whose medium has space to spare, a client that
//! keeps writing with FUA, and a power loss at a random moment of a resize.

use rand::RngExt;

use super::*;
use crate::base::seed::random;
use crate::media::layer::Trigger;

const SIZE: u64 = 24 << 20;
const SEGMENTS: u32 = 31;
const SEGMENTS_SMALL: u32 = 20;
const SEGMENTS_LARGE: u32 = 40;

/// The blocks that the client writes repeatedly, at the start of the disk.
const CLIENT_BLOCKS: u64 = 16;

fn capacity(segments: u32) -> Option<u64> {
    Some(u64::from(segments) * u64::from(SEGMENT_BYTES))
}

/// Returns a drive of 31 segments on a medium for 40, overwritten more than once; and its disk.
fn spread(seed: u64) -> (World, Vec<u8>) {
    let spec = Spec { capacity_bytes: capacity(SEGMENTS), ..small(SIZE, 0) };
    let large = Spec { capacity_bytes: capacity(SEGMENTS_LARGE), ..spec.clone() };
    let world = World {
        runtime: Runtime::simulated(),
        memory: MemMedium::new(large.geometry().unwrap().medium_bytes()),
        spec,
        plan: FaultPlan::default(),
        seed,
    };
    world.run(create(&world.memory, &world.spec)).unwrap();
    let drive = world.open();
    let mut plain = vec![0; SIZE as usize];
    let mut random = random(seed);
    let whole = 0..SIZE / (1 << 20);
    let places = whole.map(|mib| mib << 20).collect::<Vec<_>>();
    let again = (0..90).map(|_| random.random_range(0..=SIZE - (1 << 20)) / BLOCK * BLOCK);
    for offset in places.into_iter().chain(again.collect::<Vec<_>>()) {
        let data = payload::noise(&mut random, 1 << 20);
        world.write(&drive, offset, &data).unwrap();
        plain[offset as usize..][..1 << 20].copy_from_slice(&data);
    }
    let zeroes = vec![0; (CLIENT_BLOCKS * BLOCK) as usize];
    world.write(&drive, 0, &zeroes).unwrap();
    plain[..zeroes.len()].fill(0);
    world.run(drive.flush()).unwrap();
    assert!(drive.core().space().used_from(SEGMENTS_SMALL) > 3, "nothing to empty");
    world.close(drive);
    (world, plain)
}

fn shape(drive: &Drive) -> (u64, u32) {
    (drive.size_bytes(), drive.core().space().segment_count())
}

fn resize(world: &World, drive: &Drive, size: Option<u64>, segments: u32) -> Result<Resized> {
    let wanted = Resize { size_bytes: size, capacity_bytes: capacity(segments) };
    world.run(drive.resize(wanted))
}

#[test]
fn a_drive_grows_and_shrinks_in_use() {
    let (world, mut plain) = spread(1);
    let drive = world.open();
    let resized = resize(&world, &drive, None, SEGMENTS_SMALL).unwrap();
    assert_eq!((resized.segment_count, resized.size_bytes), (SEGMENTS_SMALL, SIZE));
    assert_eq!(resized.capacity_bytes, capacity(SEGMENTS_SMALL).unwrap());
    assert_accounting(&drive);
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
    // The drive is killed, not closed: the new size must be on the medium.
    world.kill(drive);
    assert_eq!(world.check().problems, []);
    let drive = world.open();
    assert_eq!(shape(&drive), (SIZE, SEGMENTS_SMALL));
    resize(&world, &drive, Some(2 * SIZE), SEGMENTS_LARGE).unwrap();
    assert_eq!(shape(&drive), (2 * SIZE, SEGMENTS_LARGE));
    let data = payload::noise(&mut random(5), 16 << 20);
    for _ in 0..3 {
        world.write(&drive, SIZE + 5000, &data).unwrap();
    }
    plain.resize(2 * SIZE as usize, 0);
    plain[SIZE as usize + 5000..][..data.len()].copy_from_slice(&data);
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
    world.run(drive.flush()).unwrap();
    assert!(drive.core().space().used_from(SEGMENTS_SMALL) > 0, "what is new is used");
    // No checkpoint has been written since then.
    world.kill(drive);
    let drive = world.open();
    assert_eq!(shape(&drive), (2 * SIZE, SEGMENTS_LARGE));
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
    assert_accounting(&drive);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

#[test]
fn impossible_sizes_are_refused_and_change_nothing() {
    let (world, plain) = spread(2);
    let drive = world.open();
    let error = resize(&world, &drive, None, 12).unwrap_err();
    let live_bytes = drive.info().live_bytes;
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains(&format!("{live_bytes} live bytes")), "{error}");
    let refused = |size, segments| resize(&world, &drive, size, segments).unwrap_err();
    assert!(refused(Some(SIZE - 4096), SEGMENTS).to_string().contains("cannot shrink below"));
    for (size, segments) in [
        (Some(SIZE + 1), SEGMENTS),
        (Some(u64::MAX), SEGMENTS),
        (None, 0),
        // More segments than the medium has.
        (None, SEGMENTS_LARGE + 1),
        (Some(2 * SIZE), SEGMENTS_LARGE + 1),
    ] {
        let error = refused(size, segments);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert_eq!(shape(&drive), (SIZE, SEGMENTS));
    }
    world.run(drive.checkpoint()).unwrap();
    let free = drive.info().free_segments;
    // A shrink that is dropped halfway leaves the drive unchanged.
    world.run(world.runtime.timeout(1, async {
        let wanted = Resize { capacity_bytes: capacity(SEGMENTS_SMALL), ..Resize::default() };
        let _ = drive.resize(wanted).await;
    }));
    assert!(drive.info().free_segments >= free && drive.segments_to_empty() == 0);
    let drive = world.reopen(drive);
    assert_eq!(shape(&drive), (SIZE, SEGMENTS));
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Writes the client's blocks one after the other with FUA, each with the next stamp, and records
/// the last acknowledged stamp.
async fn stamp(drive: Rc<Drive>, acknowledged: Rc<Cell<u64>>) {
    for stamp in 1u64.. {
        let block: Vec<u8> = stamp.to_le_bytes().repeat(BLOCK_BYTES / 8);
        if drive.write_durable(stamp % CLIENT_BLOCKS * BLOCK, &block).await.is_err() {
            return;
        }
        acknowledged.set(stamp);
    }
}

/// Checks the client's blocks: each holds its newest acknowledged stamp, or a later one.
fn check_stamps(found: &[u8], acknowledged: u64) {
    for (block, bytes) in (0..CLIENT_BLOCKS).zip(found.chunks(BLOCK_BYTES)) {
        let stamp = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert!(bytes.chunks(8).all(|word| word == stamp.to_le_bytes()), "a torn block");
        // The newest stamp, up to the acknowledged one, that falls on this block; 0 means none.
        let age = (acknowledged + CLIENT_BLOCKS - block) % CLIENT_BLOCKS;
        let newest = acknowledged.saturating_sub(age);
        assert!(stamp >= newest, "block {block} lost {newest}, has {stamp}");
    }
}

/// Cuts the power in a resize from the drive of [`spread`] to `target`. Returns how often the old
/// and the new drive remained.
fn crash_in_resize(target: (u64, u32), seeds: u64) -> (u32, u32) {
    let (mut old, mut new) = (0, 0);
    let bases = [spread(0), spread(1)];
    for seed in 0..seeds {
        let (base, plain) = &bases[seed as usize % bases.len()];
        let (mut random, mut moment_ns) = (random(seed), u64::MAX / 2);
        // The first life of a seed measures the time of the resize; the second loses power in it.
        for life in 0..2 {
            let mut world = World {
                runtime: Runtime::simulated(),
                spec: base.spec.clone(),
                memory: base.memory.deep_copy(),
                plan: FaultPlan { latency_ns: 0..=400_000, ..FaultPlan::default() },
                seed,
            };
            let drive = world.open();
            let acknowledged = Rc::new(Cell::new(0));
            world.runtime.spawn(stamp(drive.clone(), acknowledged.clone()));
            let wanted = Resize { size_bytes: Some(target.0), capacity_bytes: capacity(target.1) };
            let begun_ns = world.runtime.now_ns();
            world.run(async {
                let clock = &world.runtime;
                let resized = clock.timeout(moment_ns, drive.resize(wanted)).await;
                assert!(life > 0 || resized.is_some_and(|resized| resized.is_ok()));
                drive.layers().crash().await.unwrap();
            });
            moment_ns = random.random_range(0..(world.runtime.now_ns() - begun_ns) * 14 / 10);
            world.kill(drive);
            world.plan = FaultPlan::default();
            let drive = world.open();
            let client_bytes = (CLIENT_BLOCKS * BLOCK) as usize;
            let found = world.read(&drive, 0, SIZE as usize).unwrap();
            assert!(found[client_bytes..] == plain[client_bytes..], "seed {seed}");
            check_stamps(&found[..client_bytes], acknowledged.get());
            if life == 1 {
                old += u32::from(shape(&drive) == (SIZE, SEGMENTS));
                new += u32::from(shape(&drive) == target);
            }
            // The drive continues in either case.
            assert_accounting(&drive);
            resize(&world, &drive, Some(target.0), target.1).unwrap();
            assert_eq!(shape(&drive), target);
            assert!(world.read(&drive, 0, SIZE as usize).unwrap() == found);
            let beyond = (target.0 - SIZE) as usize;
            assert!(world.read(&drive, SIZE, beyond).unwrap().iter().all(|&byte| byte == 0));
            world.close(drive);
            assert_eq!(world.check().problems, [], "seed {seed}");
        }
    }
    assert_eq!(u64::from(old + new), seeds, "neither the old drive nor the new one");
    (old, new)
}

#[test]
fn power_loss_in_a_grow_leaves_the_old_drive_or_the_new_one() {
    let (old, new) = crash_in_resize((2 * SIZE, SEGMENTS_LARGE), 24);
    assert!(old > 3 && new > 3, "too tame: {old} old, {new} new");
}

#[test]
fn power_loss_in_a_shrink_leaves_the_old_drive_or_the_new_one() {
    let (old, new) = crash_in_resize((SIZE, SEGMENTS_SMALL), 24);
    assert!(old > 3 && new > 1, "too tame: {old} old, {new} new");
}

/// A shrink that fails leaves the drive unchanged: bad segments stay bad.
#[test]
fn a_shrink_that_fails_hands_out_no_bad_segment() {
    let world = World::new(small(SIZE, 20));
    let bad = SegmentId(world.spec.geometry().unwrap().segment_count - 1);
    for slot in 0..2 {
        let mut bytes = world.run(world.memory.read_superblock(slot)).unwrap();
        let mut superblock = Superblock::decode(&bytes).unwrap();
        superblock.bad_segments = vec![bad];
        bytes.copy_from_slice(&superblock.encode());
        world.run(world.memory.write_superblock(slot, bytes)).unwrap();
    }
    let drive = world.open();
    world.run(drive.write_durable(0, &[1; 4096])).unwrap();
    assert!(drive.core().space().is_bad(bad));
    let no_space_errors = Trigger::Probability(1.0);
    drive.layers().set_plan(FaultPlan { no_space_errors, ..FaultPlan::default() });
    let capacity_bytes = capacity(bad.0 - 2);
    let shrinking = drive.resize(Resize { size_bytes: None, capacity_bytes });
    let ended = world.run(world.runtime.timeout(10_000_000_000, shrinking));
    assert!(ended.is_none(), "too tame a test: {ended:?}");
    assert!(drive.core().space().is_bad(bad), "a bad segment will be handed out");
    world.kill(drive);
}
