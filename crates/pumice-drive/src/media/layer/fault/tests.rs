//! Goal: a crash preserves every synced sector and may lose every other one; every fault strikes
//! when the plan requires; a seed reproduces a run.
//!
//! Method: a memory medium under the layer, a clock that jumps to the next deadline when no task is
//! ready, and many seeds where an outcome is random.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::media::mem::MemMedium;

const GEOMETRY: Geometry = Geometry { segment_bytes: 64 << 10, segment_count: 4, data_offset: 0 };

/// Virtual time.
#[derive(Clone, Default)]
struct TestClock(Rc<RefCell<(u64, BTreeSet<u64>)>>);

impl Clock for TestClock {
    fn now_ns(&self) -> u64 {
        self.0.borrow().0
    }

    async fn sleep_ns(&self, ns: u64) {
        let deadline = self.now_ns() + ns;
        self.0.borrow_mut().1.insert(deadline);
        poll_fn(|_| if self.now_ns() < deadline { Poll::Pending } else { Poll::Ready(()) }).await;
    }
}

impl TestClock {
    /// Advances to the next deadline; returns whether there was one.
    fn advance(&self) -> bool {
        let (now, deadlines) = &mut *self.0.borrow_mut();
        let Some(next) = deadlines.pop_first() else { return false };
        *now = next.max(*now);
        true
    }

    /// Runs all futures to completion. Returns their indices in the order of completion.
    fn run_all(&self, mut futures: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) -> Vec<usize> {
        let mut order = Vec::new();
        loop {
            for (index, future) in futures.iter_mut().enumerate() {
                if !order.contains(&index) && poll(future.as_mut()) {
                    order.push(index);
                }
            }
            if order.len() == futures.len() {
                return order;
            }
            assert!(self.advance(), "nothing left to wait for");
        }
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut value = None;
        self.run_all(vec![Box::pin(async { value = Some(future.await) })]);
        value.unwrap()
    }
}

/// Polls once; returns whether the future is done.
fn poll(future: Pin<&mut (impl Future<Output = ()> + ?Sized)>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

struct World {
    clock: TestClock,
    medium: MemMedium,
    fault: Fault<MemMedium, TestClock>,
}

impl World {
    fn new(seed: u64, plan: FaultPlan) -> Self {
        let clock = TestClock::default();
        let medium = MemMedium::new(1 << 20);
        let fault = Fault::new(medium.clone(), clock.clone(), seed, plan);
        fault.set_geometry(GEOMETRY).unwrap();
        Self { clock, medium, fault }
    }

    fn append(&self, segment: u32, offset: u32, len: usize, byte: u8) -> Result<()> {
        self.clock.run(self.fault.append(SegmentId(segment), offset, Arc::new(filled(len, byte))))
    }

    fn append_durably(&self, segment: u32, offset: u32, len: usize, byte: u8) -> Result<()> {
        let bytes = Arc::new(filled(len, byte));
        self.clock.run(self.fault.append_durably(SegmentId(segment), offset, bytes))
    }

    fn write_superblock(&self, byte: u8) -> Result<()> {
        self.clock.run(self.fault.write_superblock(0, filled(SUPERBLOCK_BYTES, byte)))
    }

    fn sync(&self) -> Result<()> {
        self.clock.run(self.fault.sync())
    }

    fn crash(&self) -> Crash {
        self.clock.run(self.fault.crash()).unwrap()
    }

    /// Returns the content of a segment of the wrapped medium.
    fn content(&self, segment: u32) -> Vec<u8> {
        let buffer = AlignedBuffer::zeroed(GEOMETRY.segment_bytes as usize);
        let (buffer, result) = self.clock.run(self.medium.read(SegmentId(segment), 0, buffer));
        result.unwrap();
        buffer.to_vec()
    }

    fn superblock(&self) -> Vec<u8> {
        self.clock.run(self.medium.read_superblock(0)).unwrap().to_vec()
    }
}

fn filled(len: usize, byte: u8) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(len);
    buffer.fill(byte);
    buffer
}

/// Returns the byte of each sector, after checking that every sector repeats one byte.
fn sectors(bytes: &[u8]) -> Vec<u8> {
    let sectors = bytes.chunks(SECTOR_BYTES);
    sectors
        .map(|sector| {
            assert!(sector.iter().all(|&byte| byte == sector[0]), "torn inside a sector");
            sector[0]
        })
        .collect()
}

fn medium_error<T: std::fmt::Debug>(result: Result<T>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Medium);
}

#[test]
fn a_crash_keeps_synced_data_and_draws_the_rest_by_sector() {
    let mut crash_total = Crash::default();
    let mut survivors = BTreeSet::new();
    for seed in 0..200 {
        let world = World::new(seed, FaultPlan::default());
        world.append(0, 0, 8192, 1).unwrap();
        world.write_superblock(1).unwrap();
        world.sync().unwrap();
        world.append(0, 8192, 8192, 2).unwrap();
        world.append(1, 4096, 4096, 3).unwrap();
        world.write_superblock(2).unwrap();
        // Reads before the crash see all writes.
        assert_eq!(sectors(&world.content(0))[..32], [[1; 16], [2; 16]].concat());

        let crash = world.crash();
        let content = sectors(&world.content(0));
        assert_eq!(content[..16], [1; 16]);
        assert!(content[16..32].iter().all(|byte| [0, 2].contains(byte)));
        assert!(content[32..].iter().all(|&byte| byte == 0));
        let other = sectors(&world.content(1));
        assert!(other[8..16].iter().all(|byte| [0, 3].contains(byte)));
        assert!(other[..8].iter().chain(&other[16..]).all(|&byte| byte == 0));
        let superblock = sectors(&world.superblock());
        assert!(superblock.iter().all(|byte| [1, 2].contains(byte)));
        assert_eq!(crash.writes_kept + crash.writes_dropped + crash.writes_torn, 3);
        crash_total.writes_kept += crash.writes_kept;
        crash_total.writes_dropped += crash.writes_dropped;
        crash_total.writes_torn += crash.writes_torn;
        // In any order: each of the three may survive without the others.
        survivors.insert((content[16] == 2, other[8] == 3, superblock[0] == 2));
    }
    assert_eq!(survivors.len(), 8);
    let Crash { writes_kept, writes_dropped, writes_torn } = crash_total;
    assert!([writes_kept, writes_dropped, writes_torn].iter().all(|&n| n > 100), "{crash_total:?}");
}

#[test]
fn a_sector_written_twice_keeps_one_of_its_contents() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let world = World::new(seed, FaultPlan::default());
        world.write_superblock(1).unwrap();
        world.sync().unwrap();
        world.write_superblock(2).unwrap();
        world.write_superblock(3).unwrap();
        let crash = world.crash();
        let superblock = sectors(&world.superblock());
        match (crash.writes_kept, crash.writes_dropped) {
            (2, 0) => assert_eq!(superblock, [3; 8]),
            (0, 2) => assert_eq!(superblock, [1; 8]),
            (1, 1) => assert!(superblock == [2; 8] || superblock == [3; 8], "{superblock:?}"),
            _ => {}
        }
        seen.extend(superblock);
    }
    assert_eq!(seen, BTreeSet::from([1, 2, 3]));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let plan = FaultPlan {
            latency_ns: 10..=5000,
            append_errors: Trigger::Probability(0.2),
            ..FaultPlan::default()
        };
        let world = World::new(seed, plan);
        let results: Vec<bool> =
            (0..16).map(|index| world.append(0, index * 4096, 4096, 5).is_ok()).collect();
        let crash = world.crash();
        (results, world.clock.now_ns(), world.content(0), crash)
    };
    assert!(run(1) == run(1));
    assert!(run(1) != run(2));
}

#[test]
fn operations_complete_out_of_order_within_the_stated_latency() {
    let plan = FaultPlan { latency_ns: 1000..=9000, ..FaultPlan::default() };
    let world = World::new(7, plan);
    let (fault, clock) = (&world.fault, &world.clock);
    let completed: RefCell<Vec<u64>> = RefCell::default();
    let order = clock.run_all(
        (0..16)
            .map(|index| -> Pin<Box<dyn Future<Output = ()>>> {
                let completed = &completed;
                Box::pin(async move {
                    let offset = index * 4096;
                    fault.append(SegmentId(0), offset, Arc::new(filled(4096, 1))).await.unwrap();
                    completed.borrow_mut().push(clock.now_ns());
                })
            })
            .collect(),
    );
    assert!(!order.is_sorted());
    let completed = completed.into_inner();
    assert!(completed.iter().all(|time| (1000..=9000).contains(time)), "{completed:?}");
    assert!(completed.is_sorted());
    assert_eq!(sectors(&world.content(0)), [1; 128]);
}

#[test]
fn the_nth_operation_of_its_kind_fails_and_no_other() {
    let plan = FaultPlan {
        append_errors: Trigger::Nth(2),
        read_errors: Trigger::Nth(3),
        sync_errors: Trigger::Nth(1),
        ..FaultPlan::default()
    };
    let world = World::new(1, plan.clone());
    let read = || world.clock.run(world.fault.read(SegmentId(0), 0, filled(512, 0))).1;
    for _ in 0..2 {
        world.append(0, 0, 4096, 1).unwrap();
        medium_error(world.write_superblock(1));
        world.append(0, 4096, 4096, 1).unwrap();
        read().unwrap();
        world.clock.run(world.fault.read_superblock(1)).unwrap();
        medium_error(read());
        read().unwrap();
        medium_error(world.sync());
        world.sync().unwrap();
        world.fault.set_plan(plan.clone());
    }
}

#[test]
fn a_probability_strikes_about_as_often_as_it_says() {
    let plan = FaultPlan { read_errors: Trigger::Probability(0.25), ..FaultPlan::default() };
    let world = World::new(1, plan);
    let failures = (0..4000)
        .filter(|_| world.clock.run(world.fault.read(SegmentId(0), 0, filled(512, 0))).1.is_err());
    // Five standard deviations on either side.
    assert!((863..1137).contains(&failures.count()));
}

#[test]
fn a_failed_append_may_or_may_not_have_arrived() {
    let mut arrived = BTreeSet::new();
    let mut survived = BTreeSet::new();
    for seed in 0..50 {
        let plan = FaultPlan { append_errors: Trigger::Nth(1), ..FaultPlan::default() };
        let world = World::new(seed, plan);
        medium_error(world.append(0, 0, 4096, 1));
        arrived.insert(world.content(0)[0]);
        // No later sync makes the write durable.
        world.sync().unwrap();
        world.crash();
        survived.extend(sectors(&world.content(0)[..4096]));
    }
    assert_eq!(arrived, BTreeSet::from([0, 1]));
    assert_eq!(survived, BTreeSet::from([0, 1]));
}

#[test]
fn data_of_a_failed_sync_is_never_durable() {
    let mut survived = BTreeSet::new();
    for seed in 0..50 {
        let plan = FaultPlan { sync_errors: Trigger::Nth(1), ..FaultPlan::default() };
        let world = World::new(seed, plan);
        world.append(0, 0, 4096, 1).unwrap();
        world.write_superblock(1).unwrap();
        medium_error(world.sync());
        world.append(0, 4096, 4096, 2).unwrap();
        world.write_superblock(2).unwrap();
        world.sync().unwrap();
        world.crash();
        let content = sectors(&world.content(0));
        assert_eq!(content[8..16], [2; 8]);
        // The second superblock is durable, and the first one must not reappear.
        assert_eq!(sectors(&world.superblock()), [2; 8]);
        survived.extend(content[..8].to_vec());
    }
    assert_eq!(survived, BTreeSet::from([0, 1]));
}

#[test]
fn a_sync_cannot_save_data_that_another_lost_meanwhile() {
    let mut survived = BTreeSet::new();
    for seed in 0..50 {
        let plan = FaultPlan { sync_errors: Trigger::Nth(1), ..FaultPlan::default() };
        let world = World::new(seed, FaultPlan { latency_ns: 100..=1000, ..plan });
        world.append(0, 0, 4096, 1).unwrap();
        let order = world.clock.run_all(vec![
            Box::pin(async { medium_error(world.fault.sync().await) }),
            Box::pin(async { world.fault.sync().await.unwrap() }),
        ]);
        world.crash();
        if order == [0, 1] {
            survived.extend(sectors(&world.content(0)[..4096]));
        }
    }
    assert_eq!(survived, BTreeSet::from([0, 1]));
}

#[test]
fn a_sync_covers_appends_completed_before_its_call() {
    let mut survived = BTreeSet::new();
    for seed in 0..50 {
        let plan = FaultPlan { latency_ns: 100..=1000, ..FaultPlan::default() };
        let world = World::new(seed, plan);
        let mut append = Box::pin(async {
            world.fault.append(SegmentId(0), 0, Arc::new(filled(4096, 1))).await.unwrap();
        });
        assert!(!poll(append.as_mut()));
        world.clock.run_all(vec![append, Box::pin(async { world.fault.sync().await.unwrap() })]);
        world.crash();
        survived.extend(sectors(&world.content(0)[..4096]));
    }
    assert_eq!(survived, BTreeSet::from([0, 1]));
}

#[test]
fn operations_under_way_at_a_crash_fail_and_are_as_good_as_unsynced() {
    let mut survived = BTreeSet::new();
    for seed in 0..50 {
        let plan = FaultPlan { latency_ns: 100..=1000, ..FaultPlan::default() };
        let world = World::new(seed, plan);
        world.append(0, 4096, 4096, 2).unwrap();
        let mut append = Box::pin(async {
            medium_error(world.fault.append(SegmentId(0), 0, Arc::new(filled(4096, 1))).await);
        });
        let mut sync = Box::pin(async { medium_error(world.fault.sync().await) });
        assert!(!poll(append.as_mut()));
        assert!(!poll(sync.as_mut()));
        world.crash();
        let content = world.content(0);
        world.clock.run_all(vec![append, sync]);
        medium_error(world.append(0, 0, 4096, 3));
        medium_error(world.sync());
        medium_error(world.clock.run(world.fault.discard(SegmentId(0))));
        medium_error(world.clock.run(world.fault.read(SegmentId(0), 0, filled(512, 0))).1);
        world.clock.run(world.fault.crash()).unwrap_err();
        assert!(world.content(0) == content);
        survived.extend(sectors(&content[..8192]));
    }
    assert_eq!(survived, BTreeSet::from([0, 1, 2]));
}

#[test]
fn a_corrupt_read_has_one_flipped_bit_and_leaves_the_medium_alone() {
    for seed in 0..20 {
        let plan = FaultPlan { read_corruptions: Trigger::Nth(2), ..FaultPlan::default() };
        let world = World::new(seed, plan);
        world.append(0, 0, 4096, 0x55).unwrap();
        for number in 1..=3 {
            let (buffer, result) =
                world.clock.run(world.fault.read(SegmentId(0), 0, filled(4096, 0)));
            result.unwrap();
            let flipped: u32 = buffer.iter().map(|byte| (byte ^ 0x55).count_ones()).sum();
            assert_eq!(flipped, u32::from(number == 2));
        }
        assert_eq!(sectors(&world.content(0)[..4096]), [0x55; 8]);
    }
}

#[test]
fn a_discard_takes_effect_or_is_ignored() {
    for seed in 0..20 {
        let plan = FaultPlan { discards_ignored: Trigger::Nth(1), ..FaultPlan::default() };
        let world = World::new(seed, plan);
        world.append(0, 0, 4096, 1).unwrap();
        world.sync().unwrap();
        world.clock.run(world.fault.discard(SegmentId(0))).unwrap();
        assert_eq!(world.content(0)[0], 1);
        world.append(1, 0, 4096, 3).unwrap();
        world.sync().unwrap();
        // The crash rolls this append back to the bytes that an ignored discard left there.
        world.append(0, 0, 4096, 2).unwrap();
        // A discard that took effect is not undone with the append before it.
        world.append(1, 0, 4096, 4).unwrap();
        world.clock.run(world.fault.discard(SegmentId(1))).unwrap();
        world.crash();
        assert!(sectors(&world.content(0)[..4096]).iter().all(|byte| [1, 2].contains(byte)));
        assert_eq!(sectors(&world.content(1)), [0; 128]);
    }
}

/// The death of a process loses no completed write; writes in progress arrive as a whole, in part
/// or not at all; the medium continues to serve, and its cache is still volatile.
#[test]
fn a_killed_process_leaves_the_cache_as_it_was() {
    let (mut kept, mut gone, mut torn, mut lost_later) = (0, 0, 0, 0);
    for seed in 0..60 {
        let world = World::new(seed, FaultPlan { latency_ns: 5..=5, ..FaultPlan::default() });
        world.append(0, 0, 8192, 1).unwrap();
        let bytes = Arc::new(filled(8192, 2));
        let mut under_way = Box::pin(world.fault.append(SegmentId(1), 0, bytes));
        let waits = under_way.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        assert!(waits);
        drop(under_way);
        world.clock.run(world.fault.kill()).unwrap();
        assert!(world.content(0)[..8192].iter().all(|&byte| byte == 1), "seed {seed}");
        match world.content(1)[..8192].iter().filter(|&&byte| byte == 2).count() {
            0 => gone += 1,
            8192 => kept += 1,
            _ => torn += 1,
        }
        // The next process writes and syncs; then everything present is durable.
        let before = world.content(1);
        if seed % 2 == 0 {
            world.sync().unwrap();
            world.crash();
            assert_eq!(world.content(1), before, "seed {seed}");
            assert!(world.content(0)[..8192].iter().all(|&byte| byte == 1), "seed {seed}");
        } else {
            world.crash();
            lost_later += u32::from(world.content(0)[..8192].contains(&0));
        }
    }
    assert!(kept > 5 && gone > 2 && torn > 5 && lost_later > 5, "{kept} {gone} {torn}");
}

fn read(world: &World, segment: u32, offset: u32, len: usize) -> Result<()> {
    world.clock.run(world.fault.read(SegmentId(segment), offset, filled(len, 0))).1
}

#[test]
fn a_bad_range_fails_until_a_write_heals_it() {
    let world = World::new(1, FaultPlan::default());
    let segment = Region::Segment(SegmentId(1));
    world.append(1, 0, 12288, 1).unwrap();
    world.fault.add_bad_range(BadRange::unreadable(segment, 4000..8193));
    world.fault.set_plan(FaultPlan::default());
    for _ in 0..3 {
        medium_error(read(&world, 1, 0, 4096));
        medium_error(read(&world, 1, 8192, 512));
        read(&world, 1, 0, 3584).unwrap();
        read(&world, 1, 8704, 512).unwrap();
        read(&world, 0, 4096, 512).unwrap();
    }
    world.append(1, 4096, 4096, 2).unwrap();
    read(&world, 1, 4096, 4096).unwrap();
    let rest = [3584..4096, 8192..8704].map(|bytes| BadRange::unreadable(segment, bytes));
    assert_eq!(world.fault.bad_ranges(), rest);
    world.append(1, 0, 12288, 3).unwrap();
    assert_eq!(world.fault.bad_ranges(), []);
    read(&world, 1, 0, 12288).unwrap();
}

#[test]
fn a_dead_range_stays_dead() {
    let world = World::new(1, FaultPlan::default());
    world.fault.add_bad_range(BadRange::dead(Region::Segment(SegmentId(0)), 4096..8192));
    world.fault.add_bad_range(BadRange::dead(Region::Superblock(0), 0..512));
    for _ in 0..3 {
        medium_error(world.append(0, 0, 8192, 1));
        medium_error(read(&world, 0, 4096, 512));
        medium_error(world.write_superblock(1));
        medium_error(world.clock.run(world.fault.read_superblock(0)));
    }
    world.append(0, 0, 4096, 1).unwrap();
    world.clock.run(world.fault.read_superblock(1)).unwrap();
    world.fault.clear_bad_ranges();
    world.append(0, 0, 8192, 1).unwrap();
}

#[test]
fn a_full_file_system_refuses_appends() {
    let no_space_errors = Trigger::Probability(1.0);
    let world = World::new(1, FaultPlan { no_space_errors, ..FaultPlan::default() });
    assert_eq!(world.append(0, 0, 4096, 1).unwrap_err().kind(), ErrorKind::NoSpace);
    world.write_superblock(1).unwrap();
    world.sync().unwrap();
    world.fault.set_plan(FaultPlan::default());
    world.append(0, 0, 4096, 1).unwrap();
    world.sync().unwrap();
    world.crash();
    assert_eq!(world.content(0)[..4096], [1; 4096]);
}

#[test]
fn a_lost_write_succeeds_and_changes_nothing() {
    let world = World::new(1, FaultPlan { lost_writes: Trigger::Nth(2), ..FaultPlan::default() });
    world.append(0, 0, 4096, 1).unwrap();
    world.append(0, 4096, 4096, 2).unwrap();
    world.append(0, 8192, 4096, 3).unwrap();
    world.sync().unwrap();
    world.crash();
    let content = sectors(&world.content(0)[..12288]);
    assert_eq!(content, [[1; 8], [0; 8], [3; 8]].concat());
}

#[test]
fn a_misdirected_write_is_somewhere_else() {
    let mut found_in = BTreeSet::new();
    for seed in 0..40 {
        let misdirected_writes = Trigger::Nth(1);
        let world = World::new(seed, FaultPlan { misdirected_writes, ..FaultPlan::default() });
        world.append(0, 0, 4096, 1).unwrap();
        world.sync().unwrap();
        world.crash();
        let written: Vec<u32> = (0..4).filter(|&at| world.content(at).contains(&1)).collect();
        assert_eq!(written.len(), 1);
        let count: usize = written.iter().map(|&at| world.content(at).len()).sum();
        assert_eq!(count, GEOMETRY.segment_bytes as usize);
        found_in.extend(written);
    }
    assert_eq!(found_in, BTreeSet::from([0, 1, 2, 3]));
}

#[test]
fn a_power_loss_can_leave_unreadable_sectors() {
    let mut unreadable = 0;
    for seed in 0..40 {
        let plan = FaultPlan { crash_leaves_unreadable: true, ..FaultPlan::default() };
        let world = World::new(seed, plan);
        world.append(0, 0, 4096, 1).unwrap();
        world.sync().unwrap();
        world.append(0, 4096, 4096, 2).unwrap();
        world.crash();
        let bad = world.fault.bad_ranges();
        let expected = BadRange::unreadable(Region::Segment(SegmentId(0)), 7680..8192);
        assert!(bad.is_empty() || bad == [expected]);
        unreadable += bad.len();
    }
    assert!((10..30).contains(&unreadable), "{unreadable}");
}

#[test]
fn a_durable_append_survives_a_crash_and_nothing_else_for_it() {
    let mut lost = 0;
    for seed in 0..100 {
        let world = World::new(seed, FaultPlan::default());
        world.append(0, 0, 4096, 1).unwrap();
        // The durable append overwrites volatile bytes and is adjacent to others.
        world.append(1, 0, 8192, 2).unwrap();
        world.append_durably(1, 4096, 4096, 3).unwrap();
        world.append(1, 8192, 4096, 4).unwrap();
        world.crash();
        let content = world.content(1);
        assert!(content[4096..8192].iter().all(|&byte| byte == 3), "seed {seed}");
        let is_lost = |bytes: &[u8]| u32::from(bytes.contains(&0));
        lost += is_lost(&world.content(0)[..4096]) + is_lost(&content[..4096]);
        lost += is_lost(&content[8192..12288]);
    }
    assert!(lost > 150, "{lost} of 300 volatile appends lost something");
}

#[test]
fn a_durable_append_fails_as_an_append_or_as_a_sync() {
    for seed in 0..30 {
        let first = Trigger::Nth(1);
        let world = World::new(seed, FaultPlan { append_errors: first, ..FaultPlan::default() });
        medium_error(world.append_durably(0, 0, 4096, 1));
        let no_space_errors = first;
        world.fault.set_plan(FaultPlan { no_space_errors, ..FaultPlan::default() });
        let full = world.append_durably(0, 0, 4096, 1).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        // All completed writes are lost with it, even if later syncs succeed.
        world.append(1, 0, 4096, 1).unwrap();
        world.fault.set_plan(FaultPlan { sync_errors: first, ..FaultPlan::default() });
        let failed = world.append_durably(2, 0, 4096, 1).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Poisoned);
        world.sync().unwrap();
        let crash = world.crash();
        let [volatile, synced] = [crash.writes_dropped + crash.writes_torn, crash.writes_kept];
        assert_eq!(volatile + synced, 4, "seed {seed}: {crash:?}");
    }
}
