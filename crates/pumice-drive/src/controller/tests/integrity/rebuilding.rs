//! Goal: a drive is rebuilt from its remains: exactly, as long as a checkpoint or the entire log
//! exists; otherwise from its records. In that case, no older version is returned for a block whose
//! newest version is known, and only trims and fills may be forgotten, which is reported. The
//! source is unchanged. Method: drives with a history of every kind of request lose superblocks,
//! checkpoints, or all metadata; the rebuilt drive is opened and compared with an array.

use rand::RngExt;

use super::*;
use crate::base::seed::{Random, random};
use crate::controller::rebuild::{
    DamagedDrive, Finder, Identity, RebuiltFrom, complete_target, copy_into, create_target,
};
use crate::format::{BatchHeader, RECORD_HEADER_BYTES, SegmentHeader};

/// The result of a rebuild.
pub(crate) struct Rebuilt {
    pub(crate) from: RebuiltFrom,
    pub(crate) disk: Vec<u8>,
    lost: Vec<(u64, u64)>,
    doubtful: u64,
    pub(crate) problems: u64,
    missing: Vec<(u64, u64)>,
}

/// A drive, an array of its bytes, and the blocks whose last change was a trim.
struct History {
    world: World,
    drive: Rc<Drive>,
    plain: Vec<u8>,
    trimmed: Vec<bool>,
    random: Random,
}

impl History {
    fn new(size: u64, segments: u64, seed: u64) -> Self {
        let world = World::new(small(size, segments));
        let drive = world.open();
        let (plain, trimmed) = (vec![0; size as usize], vec![false; (size / BLOCK) as usize]);
        Self { world, drive, plain, trimmed, random: random(seed) }
    }

    /// Performs one request on whole blocks. Batches are left open, so versions of a block share
    /// them.
    fn step(&mut self) {
        let blocks = self.trimmed.len() as u64;
        let count = self.random.random_range(1..=24);
        let lba = self.random.random_range(0..=blocks - count);
        let (offset, len) = (lba * BLOCK, count * BLOCK);
        let range = offset as usize..(offset + len) as usize;
        let is_trim = match self.random.random_range(0..20) {
            0 => {
                self.world.run(self.drive.trim(offset, len)).unwrap();
                self.plain[range].fill(0);
                true
            }
            1 => {
                self.world.run(self.drive.write_zeroes(offset, len, Allocation::Keep)).unwrap();
                self.plain[range].fill(0);
                false
            }
            kind => {
                let data = match kind {
                    // The data compresses so well that a copy includes its dead blocks.
                    2..11 => payload::noise(&mut self.random, 64).repeat(len as usize / 64),
                    11..14 => payload::text(&mut self.random, len as usize),
                    _ => payload::any(&mut self.random, len as usize),
                };
                self.world.write(&self.drive, offset, &data).unwrap();
                self.plain[range].copy_from_slice(&data);
                false
            }
        };
        self.trimmed[lba as usize..(lba + count) as usize].fill(is_trim);
        if self.random.random_range(0..40) == 0 {
            self.world.run(self.drive.flush()).unwrap();
        }
    }

    fn steps(&mut self, count: u32) {
        for _ in 0..count {
            self.step();
        }
    }

    /// Closes the drive, and then removes both its superblocks.
    fn lose_superblocks(self) -> (World, Vec<u8>, Vec<bool>) {
        let Self { world, drive, plain, trimmed, .. } = self;
        world.close(drive);
        zero_superblocks(&world);
        (world, plain, trimmed)
    }
}

pub(crate) fn zero_superblocks(world: &World) {
    for slot in 0..2 {
        world.run(world.memory.write_superblock(slot, AlignedBuffer::zeroed(4096))).unwrap();
    }
}

fn header(world: &World, segment: u32) -> Option<SegmentHeader> {
    SegmentHeader::found_in(&world.peek(segment, 0, 4096))
}

/// Zeroes every segment of metadata and returns their number.
fn zero_metadata(world: &World) -> usize {
    let segments = 0..world.spec.geometry().unwrap().segment_count;
    let is_meta =
        |segment: &u32| header(world, *segment).is_some_and(|header| header.stream == Stream::Meta);
    let metadata: Vec<u32> = segments.filter(is_meta).collect();
    for &segment in &metadata {
        world.run(world.memory.discard(SegmentId(segment))).unwrap();
    }
    metadata.len()
}

/// Returns the identity of the drive, from its superblocks or its segments' headers.
fn identity(world: &World) -> Identity {
    if let Some(identity) = world.run(Identity::of_superblocks(&world.memory)).unwrap() {
        return identity;
    }
    let geometry = world.spec.geometry().unwrap();
    let mut finder = Finder::new(None);
    let mut offset = 0;
    while offset < geometry.medium_bytes() {
        let at = offset.checked_sub(geometry.data_offset);
        let segment_bytes = u64::from(geometry.segment_bytes);
        let page = match at {
            None => AlignedBuffer::zeroed(4096),
            Some(at) => world.peek((at / segment_bytes) as u32, (at % segment_bytes) as u32, 4096),
        };
        let next = finder.look(offset, &page);
        assert!(next > offset);
        offset = next;
    }
    finder.result().unwrap()
}

/// Rebuilds a drive, checks that the source is not written to, and checks the new drive.
pub(crate) fn rebuild(world: &World) -> Rebuilt {
    let before = world.medium_checksum();
    let medium = world.medium();
    let identity = identity(world);
    let spec = identity.spec(uuid::Uuid::from_u128(0x4e3), None);
    let target = World::new(Spec { codec: Codec::Lz4, ..spec });
    let drive = target.open();
    let mut damaged =
        world.run(DamagedDrive::open(medium.clone(), world.runtime.clock(), identity)).unwrap();
    let mut lost = Vec::new();
    let mut parts = damaged.parts();
    while let Some(part) = world.run(parts.next()) {
        target.run(copy_into(&part, &drive)).unwrap();
        if let Extracted::Lost(problem) = part {
            lost.push((problem.lba.unwrap(), problem.lba_count.unwrap()));
        }
    }
    assert_eq!(parts.offset(), world.spec.size_bytes);
    let rebuilt = Rebuilt {
        from: damaged.rebuilt_from(),
        doubtful: damaged.doubtful_blocks(),
        problems: damaged.problems().1,
        missing: damaged.missing_batches(),
        lost,
        disk: {
            let drive = target.reopen(drive);
            let disk = target.read(&drive, 0, world.spec.size_bytes as usize).unwrap();
            target.close(drive);
            disk
        },
    };
    assert_eq!(target.check().problems, []);
    let counts = medium.inner().counts();
    assert_eq!((counts.appends, counts.superblock_writes, counts.discards), (0, 0, 0));
    assert_eq!(world.medium_checksum(), before, "the source was changed");
    rebuilt
}

/// Compares a disk with an array. Blocks whose last change was a trim or a fill with one byte are
/// exempt: their records may be lost, but the rebuild must report how many blocks may hold older
/// content.
fn compare(rebuilt: &Rebuilt, plain: &[u8], trimmed: &[bool]) {
    let mut came_back = 0;
    let uniform = |block: &[u8]| block.iter().all(|&byte| byte == block[0]);
    for (lba, &is_trimmed) in trimmed.iter().enumerate() {
        let range = lba * BLOCK_BYTES..(lba + 1) * BLOCK_BYTES;
        let (found, right) = (&rebuilt.disk[range.clone()], &plain[range]);
        assert!(found == right || is_trimmed || uniform(right), "LBA {lba} is wrong");
        // If no older version remains either, a block reads as zeroes.
        came_back += u64::from(found != right && found.iter().any(|&byte| byte != 0));
    }
    assert!(came_back <= rebuilt.doubtful, "{came_back} blocks came back unsaid");
}

/// Rebuilds a drive as the program does: until the end, the target is marked as incomplete.
async fn rebuild_onto(medium: &Rc<TestMedium>, clock: &Runtime, source: &MemMedium) -> Result<()> {
    let identity = Identity::of_superblocks(source).await?.expect("a superblock");
    let spec = identity.spec(uuid::Uuid::from_u128(0x4e3), None);
    create_target(&**medium, &spec).await?;
    let drive = Drive::open_target(medium.clone(), clock.clock()).await?;
    let mut damaged = DamagedDrive::open(Rc::new(source.clone()), clock.clock(), identity).await?;
    let mut parts = damaged.parts();
    while let Some(part) = parts.next().await {
        copy_into(&part, &drive).await?;
    }
    drive.close().await?;
    complete_target(medium).await
}

#[test]
fn power_loss_in_a_rebuild_leaves_no_target_that_looks_whole() {
    let (source, data) = damage::written();
    let (mut random, mut refused, mut whole, mut took_ns) = (random(3), 0, 0, 0);
    for round in 0..40 {
        let mut target = World {
            runtime: Runtime::simulated(),
            spec: source.spec.clone(),
            memory: MemMedium::new(source.spec.geometry().unwrap().medium_bytes()),
            plan: FaultPlan { latency_ns: 0..=400_000, ..FaultPlan::default() },
            seed: round,
        };
        let (medium, clock) = (target.medium(), target.runtime.clone());
        let limit_ns = match round {
            0 => u64::MAX / 2,
            // This is about the time at which the rebuild ends.
            late if late % 3 == 0 => took_ns / 4 * 3 + random.random_range(0..took_ns),
            _ => random.random_range(0..took_ns),
        };
        target.run(async {
            let rebuilding = rebuild_onto(&medium, &clock, &source.memory);
            if let Some(ended) = clock.timeout(limit_ns, rebuilding).await {
                ended.unwrap();
                took_ns = took_ns.max(clock.now_ns());
            }
            medium.crash().await.unwrap();
        });
        target.runtime.drop_tasks();
        target.plan = FaultPlan::default();
        let drive = match target.try_open(OpenOptions::default()) {
            Ok(drive) => drive,
            Err(error) => {
                let is_blank = error.kind() == ErrorKind::NotADrive;
                let what = error.to_string();
                assert!(is_blank || what.contains("run the rebuild again"), "{what}");
                let checked = target.run(check(&target.medium(), Depth::Full, &mut |_| ()));
                assert_eq!(kind(checked), Some(error.kind()));
                let identity = target.run(Identity::of_superblocks(&target.memory));
                assert!(is_blank || kind(identity) == Some(ErrorKind::Corrupt), "{what}");
                refused += 1;
                continue;
            }
        };
        whole += 1;
        assert!(target.read(&drive, 0, data.len()).unwrap() == data, "round {round}");
        target.close(drive);
    }
    assert!(refused > 10 && whole > 1, "too tame: {refused} refused, {whole} whole");
}

#[test]
fn without_superblocks_a_checkpoint_gives_all_back() {
    let mut history = History::new(12 << 20, 24, 1);
    history.steps(300);
    let (world, plain, _) = history.lose_superblocks();
    assert_eq!(world.refusal().kind(), ErrorKind::NotADrive);
    let rebuilt = rebuild(&world);
    assert_eq!(
        (rebuilt.from, rebuilt.lost.len(), rebuilt.doubtful),
        (RebuiltFrom::Checkpoint, 0, 0)
    );
    assert!(rebuilt.disk == plain);
    // The only checkpoint is at the end of the log, and the log does not need it.
    assert!(zero_metadata(&world) > 0);
    let rebuilt = rebuild(&world);
    assert_eq!((rebuilt.from, rebuilt.lost.len(), rebuilt.doubtful), (RebuiltFrom::Log, 0, 0));
    assert!(rebuilt.disk == plain);
}

/// The log after the older checkpoint still exists.
#[test]
fn without_the_newest_checkpoint_an_older_one_gives_all_back() {
    let mut history = History::new(12 << 20, 24, 2);
    history.steps(150);
    history.world.run(history.drive.checkpoint()).unwrap();
    history.steps(150);
    history.world.run(history.drive.checkpoint()).unwrap();
    let place = history.drive.core().superblock().checkpoint.unwrap().address;
    history.world.run(history.drive.flush()).unwrap();
    let History { world, drive, plain, .. } = history;
    world.kill(drive);
    super::parity::ruin(&world, place.segment, place.offset);
    zero_superblocks(&world);
    let rebuilt = rebuild(&world);
    assert_eq!(
        (rebuilt.from, rebuilt.lost.len(), rebuilt.doubtful),
        (RebuiltFrom::Checkpoint, 0, 0)
    );
    assert!(rebuilt.disk == plain);
}

/// One checkpoint after the rollback has a damaged root, and the other one a damaged leaf; earlier
/// checkpoints do not record the rollback.
#[test]
fn a_rebuild_that_undoes_a_rollback_reports_it() {
    let mut history = History::new(12 << 20, 24, 12);
    history.steps(100);
    history.world.run(history.drive.create_snapshot(snapshots::new("a", 1))).unwrap();
    history.steps(100);
    history.world.run(history.drive.roll_back("a", false)).unwrap();
    let root = history.drive.core().superblock().checkpoint.unwrap().address;
    let metadata = |drive: &Drive| drive.core().map().metadata_addresses().collect::<Vec<_>>();
    let before = metadata(&history.drive);
    history.steps(30);
    history.world.run(history.drive.checkpoint()).unwrap();
    let History { world, drive, .. } = history;
    let leaf = metadata(&drive).into_iter().find(|place| !before.contains(place));
    let disk = world.read(&drive, 0, world.spec.size_bytes as usize).unwrap();
    world.kill(drive);
    zero_superblocks(&world);
    let rebuilt = rebuild(&world);
    assert_eq!((rebuilt.from, rebuilt.problems), (RebuiltFrom::Checkpoint, 0));
    assert!(rebuilt.disk == disk);
    let leaf = leaf.expect("a leaf was changed");
    super::parity::ruin(&world, leaf.segment, leaf.offset);
    let rebuilt = rebuild(&world);
    assert_eq!((rebuilt.from, rebuilt.problems), (RebuiltFrom::Checkpoint, 0));
    assert!(rebuilt.disk == disk, "from the checkpoint of the rollback");
    super::parity::ruin(&world, root.segment, root.offset);
    let rebuilt = rebuild(&world);
    assert_eq!((rebuilt.from, rebuilt.problems), (RebuiltFrom::Checkpoint, 1));
    assert!(rebuilt.disk != disk, "too tame a test");
}

#[test]
fn without_any_metadata_the_records_give_all_back() {
    let mut history = History::new(12 << 20, 24, 3);
    history.steps(150);
    history.world.run(history.drive.checkpoint()).unwrap();
    history.steps(150);
    let (world, plain, _) = history.lose_superblocks();
    assert!(zero_metadata(&world) > 0);
    let rebuilt = rebuild(&world);
    assert_eq!((rebuilt.from, rebuilt.lost.len()), (RebuiltFrom::Records, 0));
    // No segment of data was freed, so no trim is forgotten.
    assert!(rebuilt.disk == plain);
}

/// Versions of a block are in one batch, were moved with parts of their frames dead, and their
/// segments were freed and reused.
#[test]
fn after_garbage_collection_the_newest_versions_are_found() {
    for seed in 4..7 {
        let mut history = History::new(12 << 20, 6, seed);
        while history.drive.info().operations.gc_victims < 24 {
            history.steps(20);
        }
        let (world, plain, trimmed) = history.lose_superblocks();
        let rebuilt = rebuild(&world);
        assert_eq!((rebuilt.from, rebuilt.doubtful), (RebuiltFrom::Checkpoint, 0));
        assert!(rebuilt.disk == plain, "seed {seed}");
        assert!(zero_metadata(&world) > 0);
        let rebuilt = rebuild(&world);
        assert_eq!((rebuilt.from, rebuilt.lost.len()), (RebuiltFrom::Records, 0));
        assert!(rebuilt.doubtful > 0, "no batch is gone: too tame a test");
        compare(&rebuilt, &plain, &trimmed);
    }
}

/// A frame with a block that was overwritten in the same batch is copied whole, because that is
/// smaller. The copy of the dead block is as old as the live block, and must not be mistaken for
/// it.
#[test]
fn a_dead_block_that_was_copied_along_is_not_taken() {
    let mut history = History::new(12 << 20, 6, 9);
    let size = 8 * BLOCK_BYTES;
    for frame in 0..64 {
        let small = payload::noise(&mut history.random, 64).repeat(size / 64);
        let over = payload::noise(&mut history.random, BLOCK_BYTES);
        let at = frame * size;
        history.world.write(&history.drive, at as u64, &small).unwrap();
        history.world.write(&history.drive, at as u64 + 3 * BLOCK, &over).unwrap();
        history.plain[at..at + size].copy_from_slice(&small);
        history.plain[at + 3 * BLOCK_BYTES..at + 4 * BLOCK_BYTES].copy_from_slice(&over);
    }
    let first = history.plain[..64 * size].to_vec();
    history.world.run(history.drive.flush()).unwrap();
    assert_eq!(damage::batches(&history.world, 0).len(), 1);
    let is_there = |world: &World| header(world, 0).is_some_and(|header| header.first_seq.0 == 1);
    while is_there(&history.world) {
        let at = history.random.random_range(3 << 20..11 << 20) / BLOCK * BLOCK;
        let data = payload::noise(&mut history.random, 128 << 10);
        history.world.write(&history.drive, at, &data).unwrap();
    }
    let (world, ..) = history.lose_superblocks();
    assert!(zero_metadata(&world) > 0);
    let rebuilt = rebuild(&world);
    assert_eq!((rebuilt.from, rebuilt.lost.len()), (RebuiltFrom::Records, 0));
    for (lba, block) in first.chunks(BLOCK_BYTES).enumerate() {
        assert!(rebuilt.disk[lba * BLOCK_BYTES..][..BLOCK_BYTES] == *block, "LBA {lba}");
    }
}

/// An intact superblock does not help a drive whose log is damaged in the middle.
#[test]
fn damage_in_the_middle_of_the_log_costs_only_the_damaged_data() {
    let (world, data) = damage::written();
    let (segment, record) = damage::record_of(&world, 50);
    world.flip_for_good(segment, record + 8);
    assert_eq!(world.refusal().kind(), ErrorKind::Corrupt);
    let rebuilt = rebuild(&world);
    assert_eq!((rebuilt.from, rebuilt.problems), (RebuiltFrom::Records, 1));
    let batch = 160 << 10;
    assert!(rebuilt.disk[..batch] == data[..batch]);
    assert!(rebuilt.disk[2 * batch..data.len()] == data[2 * batch..]);
}

#[test]
fn a_damaged_frame_is_lost_and_nothing_older_is_given() {
    let (world, data) = damage::written();
    let drive = world.open();
    let newer = payload::text(&mut random(77), 32 << 10);
    world.run(drive.write_durable(48 * BLOCK, &newer)).unwrap();
    world.kill(drive);
    let (segment, offset) = damage::record_of(&world, 50);
    world.flip_for_good(segment, offset + RECORD_HEADER_BYTES as u32 + 9);
    // The first batch is damaged, so only the records remain usable.
    world.flip_for_good(0, 4096 + 30);
    zero_superblocks(&world);
    let rebuilt = rebuild(&world);
    assert_eq!((rebuilt.from, &rebuilt.lost[..]), (RebuiltFrom::Records, &[(48, 8)][..]));
    let mut expected = data;
    expected[48 * BLOCK_BYTES..56 * BLOCK_BYTES].fill(0);
    assert!(rebuilt.disk[160 << 10..expected.len()] == expected[160 << 10..]);
    assert_eq!(rebuilt.problems, 1);
}

/// Checks that only `lost` blocks are lost if nothing except the records remains of a drive.
pub(crate) fn assert_records_lose(world: &World, lost: &[(u64, u64)]) {
    zero_superblocks(world);
    zero_metadata(world);
    // The first batch is damaged, so only the records remain usable.
    world.flip_for_good(0, 4096 + 30);
    let rebuilt = rebuild(world);
    assert_eq!((rebuilt.from, &rebuilt.lost[..]), (RebuiltFrom::Records, lost));
}

/// No record shows which blocks a zeroed segment held, but its batches are known to be lost.
#[test]
fn batches_that_are_gone_are_named() {
    let world = World::new(small(16 << 20, 8));
    let drive = world.open();
    let noise = payload::noise(&mut random(1), 1 << 20);
    for index in 0..6 {
        world.run(drive.write_durable(index << 20, &noise)).unwrap();
    }
    world.kill(drive);
    let next = header(&world, 1).expect("the log went on").first_seq.0;
    world.run(world.memory.discard(SegmentId(0))).unwrap();
    let rebuilt = rebuild(&world);
    assert_eq!((rebuilt.from, rebuilt.lost.len()), (RebuiltFrom::Records, 0));
    assert_eq!(rebuilt.missing, [(1, next - 1)]);
}

/// Ends a life after two unflushed batches of the host. Returns the batches in segment 0.
fn lose_two_batches(world: &World, drive: Rc<Drive>) -> Vec<BatchHeader> {
    for (offset, byte) in [(0, 1), (8192, 2)] {
        world.write(&drive, offset, &[byte; 4096]).unwrap();
        drive.with_core(|core| core.seal(Stream::Host));
        world.run(world.runtime.yield_now());
    }
    world.kill(drive);
    damage::batches(world, 0)
}

/// Two batches were not flushed, and the first was torn. The next life overwrote the first; the
/// second still exists, intact.
#[test]
fn remains_of_a_lost_life_are_ignored() {
    let (world, data) = damage::written();
    let drive = world.open();
    let left = lose_two_batches(&world, drive);
    world.flip_for_good(0, left[3].offset + 30);
    let drive = world.open();
    world.run(drive.write_durable(4096, &[3; 4096])).unwrap();
    world.kill(drive);
    assert_eq!(damage::batches(&world, 0).len(), 5);
    world.flip_for_good(0, left[1].offset + 30);
    let rebuilt = rebuild(&world);
    assert_eq!(rebuilt.from, RebuiltFrom::Records);
    assert!(rebuilt.disk[8192..160 << 10] == data[8192..160 << 10], "a lost write came back");
    assert!(rebuilt.disk[4096..8192].iter().all(|&byte| byte == 3));
}

/// As above, but the next life overwrote the first one with a later batch. Its own first batches,
/// of metadata, are lost.
#[test]
fn remains_of_a_lost_life_do_not_replace_a_missing_batch() {
    let (world, _) = damage::written();
    let drive = world.open();
    world.run(drive.checkpoint()).unwrap();
    let before = damage::batches(&world, 0).len();
    let left = lose_two_batches(&world, drive);
    assert_eq!(left.len(), before + 2);
    world.flip_for_good(0, left[before].offset + 30);
    let drive = world.open();
    for _ in 0..3 {
        world.run(drive.checkpoint()).unwrap();
    }
    world.run(drive.write_durable(4096, &[3; 4096])).unwrap();
    world.kill(drive);
    let found = damage::batches(&world, 0);
    assert!(found[before].seq > left[before + 1].seq && found[before + 1] == left[before + 1]);
    assert!(zero_metadata(&world) > 0);
    let rebuilt = rebuild(&world);
    assert_eq!(rebuilt.from, RebuiltFrom::Records);
    assert!(rebuilt.disk[8192..12288].iter().any(|&byte| byte != 2), "a lost write came back");
    assert!(rebuilt.disk[4096..8192].iter().all(|&byte| byte == 3));
}

/// The lost life had continued in another segment, which was not used since; the segment in which
/// the next life began was freed.
#[test]
fn a_segment_that_only_a_lost_life_used_is_not_taken() {
    let world = World::new(Spec { codec: Codec::None, ..small(24 << 20, 8) });
    let noise = |seed, len: usize| payload::noise(&mut random(seed), len);
    let drive = world.open();
    let tail = |drive: &Drive| drive.core().log().tail(Stream::Host).unwrap().segment;
    world.write(&drive, 0, &noise(1, 6 << 20)).unwrap();
    world.run(drive.checkpoint()).unwrap();
    let kept = tail(&drive);
    world.run(drive.write_durable(20 << 20, &noise(2, BLOCK_BYTES))).unwrap();
    assert_eq!(tail(&drive), kept);
    while tail(&drive) == kept {
        world.write(&drive, 0, &noise(3, 1 << 20)).unwrap();
    }
    let first = tail(&drive);
    // Empties segment 0.
    world.write(&drive, 1 << 20, &noise(4, 3 << 20)).unwrap();
    world.run(drive.flush()).unwrap();
    assert_eq!(tail(&drive), first);
    let end = damage::batches(&world, first.0).len();
    // These writes are lost.
    while tail(&drive) == first {
        world.write(&drive, 8 << 20, &noise(5, 300_000)).unwrap();
    }
    let lost = tail(&drive);
    world.write(&drive, 20 << 20, &noise(6, BLOCK_BYTES)).unwrap();
    drive.with_core(|core| core.seal(Stream::Host));
    world.run(world.runtime.sleep_ns(1_000_000));
    world.kill(drive);
    world.flip_for_good(first.0, damage::batches(&world, first.0)[end].offset + 30);
    let drive = world.open();
    assert!(world.read(&drive, 20 << 20, BLOCK_BYTES).unwrap() == noise(2, BLOCK_BYTES));
    world.run(world.runtime.sleep_ns(100_000_000_000));
    for _ in 0..16 {
        world.run(drive.checkpoint()).unwrap();
    }
    for round in 0.. {
        if tail(&drive) != first {
            break;
        }
        world.write(&drive, 9 << 20, &noise(round, 1 << 20)).unwrap();
    }
    assert!(tail(&drive) < first, "no segment came free: the lost one is used again");
    world.run(drive.write_durable(9 << 20, &noise(7, 1 << 20))).unwrap();
    let tail = tail(&drive);
    world.kill(drive);
    let [left, found] = [lost, tail].map(|segment| damage::batches(&world, segment.0));
    let [last, next] = [left.last().unwrap(), &found[0]];
    assert!(last.epoch < next.epoch && last.seq < next.seq, "{last:?} {next:?}");
    world.run(world.memory.discard(first)).unwrap();
    assert!(zero_metadata(&world) > 0);
    let rebuilt = rebuild(&world);
    assert_eq!(rebuilt.from, RebuiltFrom::Records);
    let found = &rebuilt.disk[20 << 20..][..BLOCK_BYTES];
    assert!(found != noise(6, BLOCK_BYTES), "a lost write came back");
    assert!(found == noise(2, BLOCK_BYTES));
}

/// A block is overwritten, and the overwrite is lost with its batch. A copy of the block's frame,
/// made while the block was dead in memory, must not be mistaken for old data.
#[test]
fn a_block_that_came_back_to_life_in_a_copy_is_not_older_than_it_is() {
    let world = World::new(small(24 << 20, 8));
    let drive = world.open_without_collector();
    let mut fillers = random(5);
    let mut fill = |drive: &Drive| {
        let tail = || drive.core().log().tail(Stream::Host).unwrap().segment;
        let before = tail();
        while tail() == before {
            let noise = payload::noise(&mut fillers, 1 << 20);
            world.run(drive.write_durable(8 << 20, &noise)).unwrap();
        }
        tail()
    };
    world.run(drive.write_durable(16 << 20, &[9; 5000])).unwrap();
    let noise = |seed, len: usize| payload::noise(&mut random(seed), len);
    world.run(drive.write_durable(3 * BLOCK, &noise(1, BLOCK_BYTES))).unwrap();
    // The stream of moved frames already has a segment.
    let before = fill(&drive);
    world.run(drive.write_durable(20 << 20, &noise(4, BLOCK_BYTES))).unwrap();
    let victim = fill(&drive);
    world.run(drive.empty_victim(before)).unwrap();
    // The data compresses so well that a copy includes its dead blocks.
    let small = noise(2, 64).repeat(8 * BLOCK_BYTES / 64);
    // For a while after noise, compressible data is stored uncompressed.
    world.write(&drive, 12 << 20, &small.repeat(64)).unwrap();
    world.run(drive.write_durable(0, &small)).unwrap();
    let next = fill(&drive);
    world.write(&drive, 3 * BLOCK, &noise(3, BLOCK_BYTES)).unwrap();
    world.run(drive.empty_victim(victim)).unwrap();
    assert!(next != victim && drive.core().space().live_bytes_of(victim) == 0);
    let place = drive.core().map().peek(Lba(0)).resident().0;
    assert!(matches!(place, Mapping::Frame { place, .. } if place.blocks == 8));
    drive.with_core(|core| core.seal(Stream::Moved));
    world.run(world.runtime.sleep_ns(1_000_000));
    world.kill(drive);
    let drive = world.open();
    let found = world.read(&drive, 3 * BLOCK, BLOCK_BYTES).unwrap();
    assert!(found != noise(1, BLOCK_BYTES));
    world.kill(drive);
    // This has the same effect as freeing the segment later.
    world.run(world.memory.discard(victim)).unwrap();
    zero_superblocks(&world);
    zero_metadata(&world);
    world.flip(0, 4096 + 30);
    let rebuilt = rebuild(&world);
    assert_eq!(rebuilt.from, RebuiltFrom::Records);
    let seeds = |block: &[u8]| [1, 3].map(|seed| block == noise(seed, BLOCK_BYTES));
    let after = &rebuilt.disk[3 * BLOCK_BYTES..4 * BLOCK_BYTES];
    assert!(after == found, "{:?} became {:?}", seeds(&found), seeds(after));
}

#[test]
fn a_segment_without_its_header_is_read_all_the_same() {
    let (world, data) = damage::written();
    world.flip_for_good(0, 20);
    zero_superblocks(&world);
    let found = Finder::new(None);
    assert_eq!(found.result().unwrap_err().kind(), ErrorKind::NotADrive);
    // Another segment describes the drive.
    let spec = identity_of_another(&world);
    let medium = world.medium();
    let mut damaged =
        world.run(DamagedDrive::open(medium.clone(), world.runtime.clock(), spec)).unwrap();
    let mut parts = damaged.parts();
    let mut bytes = 0;
    while let Some(part) = world.run(parts.next()) {
        let Extracted::Data { offset, bytes: found } = part else { panic!("{part:?}") };
        assert!(found == &data[offset as usize..][..found.len()]);
        bytes += found.len();
    }
    assert_eq!(bytes, data.len());
    assert_eq!((damaged.rebuilt_from(), damaged.problems().1), (RebuiltFrom::Records, 1));
}

/// Returns the identity of another drive made with the same specification.
fn identity_of_another(world: &World) -> Identity {
    let another = World::new(world.spec.clone());
    let drive = another.open();
    another.run(drive.write_durable(0, &[1, 2])).unwrap();
    another.kill(drive);
    zero_superblocks(&another);
    identity(&another)
}

#[test]
fn segments_of_several_drives_are_told_apart() {
    let drives = [World::new(small(4 << 20, 4)), {
        World::new(Spec { uuid: uuid::Uuid::from_u128(9), ..small(8 << 20, 4) })
    }];
    let mut pages = Vec::new();
    for world in &drives {
        let drive = world.open();
        world.run(drive.write_durable(0, &[1, 2])).unwrap();
        world.kill(drive);
        pages.push(world.peek(0, 0, 4096));
    }
    let at = 2 << 20;
    let mut finder = Finder::new(None);
    assert_eq!(finder.look(0, &pages[0]), 4096, "a header out of its place counted");
    for page in &pages {
        assert_eq!(finder.look(at, page), at + u64::from(SEGMENT_BYTES));
    }
    let error = finder.result().unwrap_err();
    assert!(error.to_string().contains("by UUID"), "{error}");
    let mut finder = Finder::new(Some(uuid::Uuid::from_u128(9)));
    for page in &pages {
        finder.look(at, page);
    }
    assert_eq!(finder.result().unwrap().size_bytes(), 8 << 20);
}
