//! Goal: everything reported as written is on every active member, and an incomplete member never
//! counts as complete again. Method: members in memory under the fault layer, in virtual time. The
//! bytes outlive the array, so a test can cut the power of one member, assemble the members again
//! and examine each.

use std::rc::Rc;

use futures_util::future::join_all;

use super::*;
use crate::base::Clock;
use crate::media::layer::{BadRange, Fault, FaultPlan, Region, Speed, Throttle, Trigger};
use crate::media::mem::MemMedium;
use crate::runtime::Runtime;

const GEOMETRY: Geometry =
    Geometry { segment_bytes: 4 << 20, segment_count: 4, data_offset: 2 << 20 };

type Faulty = Rc<Fault<MemMedium, Runtime>>;

/// Members whose bytes outlive the array.
struct Bench {
    runtime: Runtime,
    memory: Vec<MemMedium>,
}

impl Bench {
    fn new(members: usize) -> Self {
        Self::of(members, ArrayLayout::Mirror)
    }

    fn of(members: usize, layout: ArrayLayout) -> Self {
        let bytes = GEOMETRY.medium_bytes();
        let memory: Vec<_> = (0..members).map(|_| MemMedium::new(bytes)).collect();
        let bench = Self { runtime: Runtime::simulated(), memory };
        let segment_count = if layout == ArrayLayout::Concat { 2 } else { 0 };
        let new = |index: usize| NewMember { segment_count, ..named(index) };
        let members = bench.memory.iter().enumerate().map(|(at, memory)| (memory.clone(), new(at)));
        let created = Array::create(Uuid::from_u128(1), layout, members.collect());
        bench.run(created).unwrap();
        bench
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Assembles some members, each under a fault layer.
    fn assemble(&self, members: &[usize], degraded: bool) -> Result<(Array<Faulty>, Vec<Faulty>)> {
        let layer = |&member: &usize| {
            let (memory, seed) = (self.memory[member].clone(), member as u64);
            Rc::new(Fault::new(memory, self.runtime.clone(), seed, FaultPlan::default()))
        };
        let layers: Vec<Faulty> = members.iter().map(layer).collect();
        let paths = members.iter().map(|member| format!("/m{member}"));
        let members = layers.iter().cloned().zip(paths).collect();
        let options = Assembly::default().with_degraded(degraded);
        let array = self.run(Array::assemble(members, options))?;
        array.set_geometry(GEOMETRY)?;
        Ok((array, layers))
    }

    fn refusal(&self, members: &[usize], degraded: bool) -> String {
        self.assemble(members, degraded).map(|_| ()).unwrap_err().to_string()
    }

    fn append(&self, array: &Array<Faulty>, segment: u32, offset: u32, byte: u8) -> Result<()> {
        self.run(array.append(SegmentId(segment), offset, Arc::new(page(byte))))
    }

    fn stored(&self, member: usize, segment: u32, offset: u32) -> AlignedBuffer {
        let memory = &self.memory[member];
        memory.set_geometry(GEOMETRY).unwrap();
        let buffer = AlignedBuffer::zeroed(4096);
        let (bytes, result) = self.run(memory.read(SegmentId(segment), offset, buffer));
        result.unwrap();
        bytes
    }

    fn put(&self, member: usize, segment: u32, offset: u32, bytes: AlignedBuffer) {
        self.memory[member].set_geometry(GEOMETRY).unwrap();
        let written = self.memory[member].append(SegmentId(segment), offset, Arc::new(bytes));
        self.run(written).unwrap();
    }
}

fn named(index: usize) -> NewMember {
    let uuid = Uuid::from_u128(index as u128 + 10);
    NewMember { uuid, path: format!("/m{index}"), segment_count: 0 }
}

fn page(byte: u8) -> AlignedBuffer {
    let mut page = AlignedBuffer::zeroed(4096);
    page.fill(byte);
    page
}

fn states(array: &Array<Faulty>) -> Vec<MemberStatus> {
    array.info().members.iter().map(|member| member.state).collect()
}

fn failing_appends() -> FaultPlan {
    FaultPlan { append_errors: Trigger::Nth(1), ..FaultPlan::default() }
}

/// The list of members records which member lacks the write, even if the power fails everywhere at
/// once.
#[test]
fn a_member_that_fails_is_out_durably_before_the_write_counts() {
    type Write = fn(&Bench, &Array<Faulty>) -> Result<()>;
    let writes: [(FaultPlan, Write); 3] = [
        (failing_appends(), |bench, array| bench.append(array, 1, 4096, 7)),
        (failing_appends(), |bench, array| {
            bench.run(array.append_durably(SegmentId(1), 4096, Arc::new(page(7))))
        }),
        (FaultPlan { sync_errors: Trigger::Nth(1), ..FaultPlan::default() }, |bench, array| {
            bench.run(array.sync())
        }),
    ];
    for (number, (plan, write)) in writes.into_iter().enumerate() {
        for failing in [0, 1] {
            let bench = Bench::new(2);
            let (array, layers) = bench.assemble(&[0, 1], false).unwrap();
            layers[failing].set_plan(plan.clone());
            write(&bench, &array).unwrap();
            assert_eq!(states(&array)[failing], MemberStatus::Out, "write {number}");
            assert_eq!(states(&array)[1 - failing], MemberStatus::Online, "write {number}");
            for layer in &layers {
                bench.run(layer.crash()).unwrap();
            }
            drop(array);
            let (array, _) = bench.assemble(&[0, 1], false).unwrap();
            assert_eq!(states(&array)[failing], MemberStatus::Out, "write {number}, afterwards");
            assert_eq!(array.info().state, ArrayState::Degraded);
            // The complete member suffices; the other one does not.
            bench.assemble(&[1 - failing], false).unwrap();
            let what = bench.refusal(&[failing], false);
            assert!(what.contains("is missing"), "write {number}: {what}");
        }
    }
}

#[test]
fn the_last_member_is_never_out() {
    let bench = Bench::new(2);
    let (array, layers) = bench.assemble(&[0, 1], false).unwrap();
    layers.iter().for_each(|layer| layer.set_plan(failing_appends()));
    assert_eq!(bench.append(&array, 0, 0, 1).unwrap_err().kind(), ErrorKind::Medium);
    assert_eq!(states(&array), [MemberStatus::Online; 2]);
    layers[0].set_plan(failing_appends());
    bench.append(&array, 0, 0, 1).unwrap();
    layers[1].set_plan(failing_appends());
    assert_eq!(bench.append(&array, 0, 0, 1).unwrap_err().kind(), ErrorKind::Medium);
    assert_eq!(states(&array), [MemberStatus::Out, MemberStatus::Online]);
    bench.append(&array, 0, 0, 1).unwrap();
}

/// A full file system is not a fault of the member: the drive tries again, and both members get the
/// write.
#[test]
fn a_member_without_space_stays() {
    let bench = Bench::new(2);
    let (array, layers) = bench.assemble(&[0, 1], false).unwrap();
    let full = FaultPlan { no_space_errors: Trigger::Nth(1), ..FaultPlan::default() };
    layers[1].set_plan(full);
    assert_eq!(bench.append(&array, 2, 0, 3).unwrap_err().kind(), ErrorKind::NoSpace);
    bench.append(&array, 2, 0, 3).unwrap();
    assert_eq!(states(&array), [MemberStatus::Online; 2]);
    assert_eq!([0, 1].map(|member| bench.stored(member, 2, 0)[0]), [3, 3]);
}

/// An operation that is abandoned after a member has failed: the next sync must not hide the
/// failure.
#[test]
fn a_cancelled_write_does_not_hide_the_failed_member() {
    let bench = Bench::new(2);
    let (array, layers) = bench.assemble(&[0, 1], false).unwrap();
    layers[1].set_plan(failing_appends());
    let slow = FaultPlan { latency_ns: 1_000..=1_000, ..FaultPlan::default() };
    layers[0].set_plan(slow);
    // The delay is long enough for the append, but not for the header.
    let write = array.append(SegmentId(0), 0, Arc::new(page(1)));
    assert!(bench.run(bench.runtime.timeout(1_500, write)).is_none());
    bench.run(array.sync()).unwrap();
    bench.run(layers[0].crash()).unwrap();
    let (array, _) = bench.assemble(&[0, 1], false).unwrap();
    assert_eq!(states(&array), [MemberStatus::Online, MemberStatus::Out]);
}

#[test]
fn members_that_do_not_belong_together_are_refused() {
    let mut bench = Bench::new(2);
    assert!(bench.refusal(&[1], false).contains("/m0, a member of the mirror, is missing"));
    bench.memory.push(MemMedium::new(GEOMETRY.medium_bytes()));
    assert!(bench.refusal(&[0, 2], false).contains("/m2 is not a member of an array"));
    bench.memory[2] = bench.memory[1].clone();
    assert!(bench.refusal(&[1, 2], true).contains("are the same member"));
    bench.memory[2] = Bench::new(1).memory.remove(0);
    let other = Array::create(
        Uuid::from_u128(2),
        ArrayLayout::Mirror,
        vec![(bench.memory[2].clone(), named(5))],
    );
    bench.run(other).unwrap();
    assert!(bench.refusal(&[0, 2], true).contains("belong to different arrays"));
}

/// Each of two members was used without the other, so no order of events determines which one is
/// right.
#[test]
fn members_with_separate_writes_are_not_combined() {
    let bench = Bench::new(2);
    bench.assemble(&[0], true).unwrap();
    let (array, layers) = bench.assemble(&[1], true).unwrap();
    drop((array, layers));
    assert!(bench.refusal(&[0, 1], false).contains("each written without the other"));
    let (array, _) = bench.assemble(&[1, 0], true).unwrap();
    assert_eq!(states(&array), [MemberStatus::Out, MemberStatus::Online]);
}

#[test]
fn a_member_that_was_left_out_does_not_come_back_by_itself() {
    let bench = Bench::new(2);
    let (array, _layers) = bench.assemble(&[0], true).unwrap();
    bench.append(&array, 0, 0, 9).unwrap();
    drop(array);
    for order in [[0, 1], [1, 0]] {
        let (array, _) = bench.assemble(&order, false).unwrap();
        assert_eq!(states(&array), [MemberStatus::Online, MemberStatus::Out]);
        for _ in 0..4 {
            let (bytes, read) = bench.run(array.read(SegmentId(0), 0, page(0)));
            read.unwrap();
            assert_eq!(bytes[0], 9, "read from a member that lacks it");
        }
    }
}

/// One valid header suffices, and the other one is rewritten.
#[test]
fn damaged_headers_are_written_again() {
    for slot in [2, 3] {
        let bench = Bench::new(2);
        bench.run(bench.memory[1].write_superblock(slot, page(0xff))).unwrap();
        bench.assemble(&[0, 1], false).unwrap();
        for member in &bench.memory {
            let read = |slot| bench.run(member.read_superblock(slot)).unwrap().to_vec();
            assert_eq!(read(2), read(3));
        }
    }
}

/// Where the members are the bottleneck, two of them read almost twice as much in the same time.
#[test]
fn reads_use_all_members() {
    let speed = Speed {
        read_bytes_per_s: 100 << 20,
        append_bytes_per_s: 100 << 20,
        read_latency_ns: 50_000,
        append_latency_ns: 50_000,
    };
    let mut times = Vec::new();
    for count in [1, 2] {
        let bench = Bench::new(count);
        let members = bench.memory.iter().enumerate().map(|(at, memory)| {
            let throttled = Throttle::new(memory.clone(), bench.runtime.clone(), speed);
            (Rc::new(throttled), format!("/m{at}"))
        });
        let members: Vec<_> = members.collect();
        let array = bench.run(Array::assemble(members, Assembly::default())).unwrap();
        array.set_geometry(GEOMETRY).unwrap();
        let begun_ns = bench.runtime.now_ns();
        let read = |number: u32| {
            let array = &array;
            let (segment, offset) = (SegmentId(number % 4), number / 4 * 65_536);
            async move { array.read(segment, offset, AlignedBuffer::zeroed(65_536)).await.1 }
        };
        for first in (0..64).step_by(8) {
            for result in bench.run(join_all((first..first + 8).map(read))) {
                result.unwrap();
            }
        }
        times.push(bench.runtime.now_ns() - begun_ns);
    }
    assert!(times[0] as f64 >= 1.8 * times[1] as f64, "{times:?}");
}

#[test]
fn a_page_that_one_member_cannot_read_is_read_from_another() {
    let bench = Bench::new(2);
    let (array, layers) = bench.assemble(&[0, 1], false).unwrap();
    bench.append(&array, 0, 0, 5).unwrap();
    layers[0].add_bad_range(BadRange::unreadable(Region::Segment(SegmentId(0)), 0..4096));
    for _ in 0..4 {
        let (bytes, read) = bench.run(array.read(SegmentId(0), 0, page(0)));
        read.unwrap();
        assert_eq!(bytes[0], 5);
    }
    let errors: Vec<u64> = array.info().members.iter().map(|member| member.read_errors).collect();
    assert!(errors[0] > 0 && errors[1] == 0, "{errors:?}");
    assert_eq!(states(&array), [MemberStatus::Online; 2]);
}

/// The page of a damaged record may hold another record that only this member has intact.
#[test]
fn a_repair_overwrites_only_verified_blocks() {
    let bench = Bench::new(2);
    let (array, layers) = bench.assemble(&[0, 1], false).unwrap();
    bench.append(&array, 0, 0, 1).unwrap();
    bench.append(&array, 0, 4096, 1).unwrap();
    let mut damaged = page(1);
    damaged[..600].fill(0xee);
    bench.put(0, 0, 0, damaged);
    let mut other = page(1);
    other[700..].fill(0xee);
    bench.put(1, 0, 0, other);
    assert_eq!(bench.run(array.repair(SegmentId(0), 0, &[1; 650])).unwrap(), 1);
    assert_eq!(*bench.stored(0, 0, 0), *page(1));
    assert_eq!(bench.run(array.repair(SegmentId(0), 690, &[1; 4000])).unwrap(), 1);
    assert_eq!(*bench.stored(1, 0, 0), *page(1));
    assert_eq!(bench.run(array.repair(SegmentId(0), 0, &[1; 8192])).unwrap(), 0);
    // An unreadable page has nothing to preserve.
    layers[1].add_bad_range(BadRange::unreadable(Region::Segment(SegmentId(0)), 4096..8192));
    assert_eq!(bench.run(array.repair(SegmentId(0), 5000, &[1; 10])).unwrap(), 1);
    assert_eq!(*bench.stored(1, 0, 4096), *page(1));
    assert!(layers[1].bad_ranges().is_empty());
}

/// Appends arrive while neighbouring bytes are being copied, and the member receives both.
#[test]
fn a_new_member_receives_old_and_new_data() {
    for seed in 0..20 {
        let mut bench = Bench::new(1);
        bench.memory.push(MemMedium::new(GEOMETRY.medium_bytes()));
        let (array, layers) = bench.assemble(&[0], false).unwrap();
        for number in 0..100 {
            bench.append(&array, number % 4, number / 4 * 4096, 1).unwrap();
        }
        let slow = FaultPlan { latency_ns: 1_000..=9_000_000, ..FaultPlan::default() };
        let new = Fault::new(bench.memory[1].clone(), bench.runtime.clone(), seed, slow.clone());
        let new = Rc::new(new);
        bench.run(array.add_member(new, named(1))).unwrap();
        assert_eq!(states(&array), [MemberStatus::Online, MemberStatus::Rebuilding]);
        layers[0].set_plan(slow);
        let copy = async {
            for segment in 0..4 {
                let whole = 0..GEOMETRY.segment_bytes;
                array.copy(SegmentId(segment), whole, &mut |_, _| ()).await.unwrap();
            }
        };
        let write = async {
            for number in 100..400u32 {
                let (segment, offset) = (SegmentId(number % 4), number / 4 * 4096);
                array.append(segment, offset, Arc::new(page(2))).await.unwrap();
            }
        };
        bench.run(futures_util::future::join(copy, write));
        bench.run(array.finish_rebuild()).unwrap();
        assert_eq!(states(&array), [MemberStatus::Online; 2]);
        for number in 0..400 {
            let (segment, offset) = (number % 4, number / 4 * 4096);
            let expected = if number < 100 { 1 } else { 2 };
            assert_eq!(bench.stored(1, segment, offset)[9], expected, "seed {seed}: {number}");
        }
        drop((array, layers));
        bench.assemble(&[0, 1], false).unwrap();
        assert!(bench.refusal(&[1], false).contains("/m0, a member of the mirror, is missing"));
    }
}

/// Guards against an attempt that is refused and lets the next one begin: the end of one rebuild
/// would make the members of both complete.
#[test]
fn members_are_rebuilt_by_one_task_at_a_time() {
    let (array, _) = Bench::new(2).assemble(&[0, 1], false).unwrap();
    let copying = array.begin_copying().unwrap();
    assert!(array.begin_copying().is_none());
    assert!(array.begin_copying().is_none(), "an attempt that was refused ended the first rebuild");
    drop(copying);
    assert!(array.begin_copying().is_some());
}

#[test]
fn a_new_member_that_fails_is_out_and_the_others_go_on() {
    let mut bench = Bench::new(1);
    bench.memory.push(MemMedium::new(GEOMETRY.medium_bytes()));
    let (array, _layers) = bench.assemble(&[0], false).unwrap();
    bench.append(&array, 0, 0, 1).unwrap();
    let memory = bench.memory[1].clone();
    let new = Rc::new(Fault::new(memory, bench.runtime.clone(), 1, FaultPlan::default()));
    bench.run(array.add_member(new.clone(), named(1))).unwrap();
    new.set_plan(failing_appends());
    bench.run(array.copy(SegmentId(0), 0..8192, &mut |_, _| ())).unwrap();
    assert_eq!(states(&array), [MemberStatus::Online, MemberStatus::Out]);
    assert_eq!(bench.run(array.finish_rebuild()).unwrap_err().kind(), ErrorKind::Medium);
    bench.append(&array, 0, 4096, 2).unwrap();
    let out = array.member_at("/m1").unwrap();
    bench.run(array.remove_member(out)).unwrap();
    let last = array.member_at("/m0").unwrap();
    let refused = bench.run(array.remove_member(last)).unwrap_err();
    assert!(refused.to_string().contains("only member that has everything"), "{refused}");
    let small = Rc::new(Fault::new(
        MemMedium::new(GEOMETRY.medium_bytes() - 1),
        bench.runtime.clone(),
        1,
        FaultPlan::default(),
    ));
    let refused = bench.run(array.add_member(small, named(2))).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert_eq!(states(&array), [MemberStatus::Online]);
}

/// A member that is being replaced serves reads until the new one is complete, and then leaves,
/// even if the array was reassembled meanwhile.
#[test]
fn a_member_is_replaced_by_another() {
    for is_interrupted in [false, true] {
        let mut bench = Bench::new(2);
        bench.memory.push(MemMedium::new(GEOMETRY.medium_bytes()));
        let (mut array, mut layers) = bench.assemble(&[0, 1], false).unwrap();
        bench.append(&array, 3, 0, 4).unwrap();
        let new = bench.memory[2].clone();
        let new = Fault::new(new, bench.runtime.clone(), 9, FaultPlan::default());
        let old = array.member_at("/m1").unwrap();
        bench.run(array.replace_member(Rc::new(new), named(2), old)).unwrap();
        if is_interrupted {
            drop((array, layers));
            (array, layers) = bench.assemble(&[0, 1, 2], false).unwrap();
            assert!(array.rebuilding_at("/m2", None).is_none());
        }
        assert!(array.rebuilding_at("/m2", Some(old)).is_some());
        assert_eq!(array.superseded("/m3", Some(old)).len(), 1);
        bench.run(array.copy(SegmentId(3), 0..4096, &mut |_, _| ())).unwrap();
        bench.run(array.finish_rebuild()).unwrap();
        assert_eq!(states(&array), [MemberStatus::Online; 2]);
        assert_eq!(bench.stored(2, 3, 0)[0], 4);
        drop((array, layers));
        let (array, _) = bench.assemble(&[2, 0], false).unwrap();
        assert_eq!(array.info().members.len(), 2);
        drop(array);
        assert!(bench.refusal(&[0, 1, 2], false).contains("/m1 is not a member of an array"));
    }
}

const HOUR_NS: u64 = 3_600_000_000_000;

/// Every operation of the medium continues without a member whose operations never end.
#[test]
fn a_member_that_does_not_answer_is_out() {
    type Operation = fn(&Bench, &Array<Faulty>) -> Result<()>;
    let operations: [Operation; 8] = [
        |bench, array| bench.append(array, 1, 4096, 7),
        |bench, array| bench.run(array.append_durably(SegmentId(1), 4096, Arc::new(page(7)))),
        |bench, array| bench.run(array.sync()),
        |bench, array| bench.run(array.write_superblock(0, page(7))),
        |bench, array| bench.run(array.discard(SegmentId(2))),
        |bench, array| {
            // One of two reads is sent to the member.
            bench.run(array.read(SegmentId(0), 0, page(0))).1?;
            bench.run(array.read(SegmentId(0), 0, page(0))).1
        },
        |bench, array| bench.run(array.repair(SegmentId(0), 0, &[1; 10])).map(|_| ()),
        |bench, array| {
            let reads = array.copies().into_iter();
            let reads =
                reads.map(|copy| bench.run(array.read_copy(copy, SegmentId(0), 0, page(0))).1);
            assert_eq!(reads.filter(Result::is_ok).count(), 1);
            bench.append(array, 1, 4096, 7)
        },
    ];
    for (number, operation) in operations.into_iter().enumerate() {
        for hanging in [0, 1] {
            let bench = Bench::new(2);
            let (array, layers) = bench.assemble(&[0, 1], false).unwrap();
            let array = array.with_patience(Patience::new(&bench.runtime, 30_000_000_000));
            bench.append(&array, 0, 0, 1).unwrap();
            let hangs = FaultPlan { latency_ns: HOUR_NS..=HOUR_NS, ..FaultPlan::default() };
            layers[hanging].set_plan(hangs);
            let begun_ns = bench.runtime.now_ns();
            operation(&bench, &array).unwrap();
            let waited_ns = bench.runtime.now_ns() - begun_ns;
            assert!(waited_ns < 61_000_000_000, "{number}: {waited_ns}");
            assert_eq!(states(&array)[hanging], MemberStatus::Out, "operation {number}");
            assert_eq!(states(&array)[1 - hanging], MemberStatus::Online, "operation {number}");
            bench.run(layers[1 - hanging].crash()).unwrap();
            drop(array);
            let (array, _) = bench.assemble(&[0, 1], false).unwrap();
            assert_eq!(states(&array)[hanging], MemberStatus::Out, "{number}, afterwards");
        }
    }
}

/// The array waits for an operation that is slow on all members, and for the last member.
#[test]
fn members_that_are_all_slow_stay() {
    let bench = Bench::new(2);
    let (array, layers) = bench.assemble(&[0, 1], false).unwrap();
    let array = array.with_patience(Patience::new(&bench.runtime, 30_000_000_000));
    let slow = FaultPlan { latency_ns: 90_000_000_000..=91_000_000_000, ..FaultPlan::default() };
    layers.iter().for_each(|layer| layer.set_plan(slow.clone()));
    bench.append(&array, 0, 0, 1).unwrap();
    bench.run(array.sync()).unwrap();
    let (bytes, read) = bench.run(array.read(SegmentId(0), 0, page(0)));
    read.unwrap();
    assert_eq!(bytes[0], 1);
    assert_eq!(states(&array), [MemberStatus::Online; 2]);
    layers[1].set_plan(failing_appends());
    bench.append(&array, 0, 0, 2).unwrap();
    assert_eq!(states(&array), [MemberStatus::Online, MemberStatus::Out]);
    bench.append(&array, 0, 0, 3).unwrap();
    assert_eq!(bench.run(array.read(SegmentId(0), 0, page(0))).0[0], 3);
    assert_eq!(states(&array), [MemberStatus::Online, MemberStatus::Out]);
}

/// No other member has its segments, so the member must stay, and the array must wait for it.
#[test]
fn a_member_of_a_concatenation_is_never_left_out() {
    let mut bench = Bench::of(2, ArrayLayout::Concat);
    bench.memory.push(MemMedium::new(GEOMETRY.medium_bytes()));
    let (array, layers) = bench.assemble(&[0, 1], false).unwrap();
    let array = array.with_patience(Patience::new(&bench.runtime, 1_000_000_000));
    bench.append(&array, 2, 0, 7).unwrap();
    let append_errors = Trigger::Probability(1.0);
    layers[1].set_plan(FaultPlan { append_errors, ..FaultPlan::default() });
    let new = || {
        let (memory, plan) = (bench.memory[2].clone(), FaultPlan::default());
        let layer = Rc::new(Fault::new(memory, bench.runtime.clone(), 9, plan));
        (layer, NewMember { segment_count: 2, ..named(2) })
    };
    let (layer, member) = new();
    assert!(bench.run(array.extend(layer, member)).is_err(), "a header cannot be stored");
    let active = states(&array);
    assert!(active.iter().all(|state| *state == MemberStatus::Online), "{active:?}");
    // The array waits for a sync that takes longer than the limit.
    layers[1]
        .set_plan(FaultPlan { latency_ns: 5_000_000_000..=5_000_000_000, ..FaultPlan::default() });
    bench.run(array.sync()).unwrap();
    assert_eq!(bench.run(array.read(SegmentId(2), 0, page(0))).0[0], 7);
    assert!(states(&array).iter().all(|state| *state == MemberStatus::Online));
}

#[test]
fn a_concatenation_has_each_segment_once() {
    let bench = Bench::of(2, ArrayLayout::Concat);
    let (array, _layers) = bench.assemble(&[1, 0], false).unwrap();
    for (segment, byte) in (0..4).zip(1..) {
        bench.append(&array, segment, 8192, byte).unwrap();
    }
    let stored = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(member, segment)| {
        bench.memory[member].set_geometry(Geometry { segment_count: 2, ..GEOMETRY }).unwrap();
        let read = bench.memory[member].read(SegmentId(segment), 8192, page(0));
        bench.run(read).0[0]
    });
    assert_eq!(stored, [1, 2, 3, 4]);
    assert!(array.set_geometry(Geometry { segment_count: 5, ..GEOMETRY }).is_err());
    assert!(bench.append(&array, 4, 0, 1).is_err());
    drop(array);
    assert!(bench.refusal(&[0], true).contains("/m1, a member of the array, is missing: attach"));
}

/// A reader that tries the copies one by one must not get the same copy twice.
#[test]
fn a_copy_comes_from_one_member_even_if_others_fail() {
    let mut bench = Bench::new(3);
    bench.memory.push(MemMedium::new(GEOMETRY.medium_bytes()));
    let (array, _layers) = bench.assemble(&[0, 1, 2], false).unwrap();
    for (member, number) in (0..3).zip(0..) {
        bench.put(member, 0, 0, page(10 + number));
        bench.run(bench.memory[member].write_superblock(0, page(20 + number))).unwrap();
    }
    let copies = array.copies();
    let read = || -> Vec<[Option<u8>; 2]> {
        let of = |&copy: &_| {
            let (bytes, read) = bench.run(array.read_copy(copy, SegmentId(0), 0, page(0)));
            let superblock = bench.run(array.read_superblock_copy(copy, 0)).ok();
            [read.ok().map(|()| bytes[0]), superblock.map(|bytes| bytes[0])]
        };
        copies.iter().map(of).collect()
    };
    let [one, other, last] = [0, 1, 2].map(|at| [Some(10 + at), Some(20 + at)]);
    let none = [None; 2];
    assert_eq!(read(), [one, other, last]);
    bench.run(array.fail_member(array.member_at("/m1").unwrap())).unwrap();
    assert_eq!(read(), [one, none, last]);
    bench.run(array.remove_member(array.member_at("/m0").unwrap())).unwrap();
    assert_eq!(read(), [none, none, last]);
    let new = bench.memory[3].clone();
    let new = Fault::new(new, bench.runtime.clone(), 9, FaultPlan::default());
    bench.run(array.add_member(Rc::new(new), named(3))).unwrap();
    bench.run(array.finish_rebuild()).unwrap();
    assert_eq!(read(), [none, none, last]);
    assert_eq!(array.copies().len(), 2);
}

fn hangs() -> FaultPlan {
    FaultPlan { latency_ns: HOUR_NS..=HOUR_NS, ..FaultPlan::default() }
}

/// The limit also applies to operations on a single member.
#[test]
fn superblocks_of_a_member_that_does_not_answer_are_not_waited_for() {
    for hanging in [0, 1] {
        let open = || {
            let bench = Bench::new(2);
            let (array, layers) = bench.assemble(&[0, 1], false).unwrap();
            let array = array.with_patience(Patience::new(&bench.runtime, 30_000_000_000));
            let copies = array.copies();
            bench.run(array.write_superblock(1, page(7))).unwrap();
            layers[hanging].set_plan(hangs());
            (bench, array, copies)
        };
        let (bench, array, _) = open();
        assert_eq!(bench.run(array.read_superblock(1)).unwrap()[0], 7);
        assert!(bench.runtime.now_ns() < 31_000_000_000, "{hanging}");
        let expected = if hanging == 0 { MemberStatus::Out } else { MemberStatus::Online };
        assert_eq!(states(&array)[0], expected);
        let (bench, array, copies) = open();
        let read =
            copies.iter().map(|&copy| bench.run(array.read_superblock_copy(copy, 1)).is_ok());
        assert_eq!(read.collect::<Vec<_>>(), [hanging == 1, hanging == 0]);
        assert!(bench.runtime.now_ns() < 31_000_000_000, "{hanging}");
        assert_eq!(states(&array)[hanging], MemberStatus::Out);
        let (bench, array, _) = open();
        let hung = array.member_at(&format!("/m{hanging}")).unwrap();
        bench.run(array.remove_member(hung)).unwrap();
        assert!(bench.runtime.now_ns() < 61_000_000_000, "{hanging}: it was removed");
        assert_eq!(states(&array), [MemberStatus::Online]);
    }
}

/// A new member has not answered anything yet, so the limit applies even without an answer from
/// another member.
#[test]
fn a_new_member_that_does_not_answer_is_refused() {
    for layout in [ArrayLayout::Mirror, ArrayLayout::Concat] {
        let mut bench = Bench::of(2, layout);
        bench.memory.push(MemMedium::new(GEOMETRY.medium_bytes()));
        let (array, _layers) = bench.assemble(&[0, 1], false).unwrap();
        let array = array.with_patience(Patience::new(&bench.runtime, 30_000_000_000));
        let new = Rc::new(Fault::new(bench.memory[2].clone(), bench.runtime.clone(), 9, hangs()));
        let refused = if layout == ArrayLayout::Mirror {
            bench.run(array.add_member(new, named(2)))
        } else {
            bench.run(array.extend(new, NewMember { segment_count: 2, ..named(2) }))
        };
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Medium);
        assert!(bench.runtime.now_ns() < 31_000_000_000, "{layout:?}");
        assert_eq!(states(&array).len(), 2);
    }
}

/// The drive grows while the superblocks of a new member are written.
#[test]
fn a_new_member_is_as_long_as_the_drive_is_by_then() {
    let mut bench = Bench::new(1);
    bench.memory.push(MemMedium::new(GEOMETRY.medium_bytes()));
    bench.memory.push(MemMedium::new(2 * GEOMETRY.medium_bytes()));
    bench.memory[0] = bench.memory[2].clone();
    let created = Array::create(
        Uuid::from_u128(1),
        ArrayLayout::Mirror,
        vec![(bench.memory[0].clone(), named(0))],
    );
    bench.run(created).unwrap();
    let (array, _layers) = bench.assemble(&[0], false).unwrap();
    let slow = FaultPlan { latency_ns: 1_000_000..=1_000_000, ..FaultPlan::default() };
    let new = Rc::new(Fault::new(bench.memory[1].clone(), bench.runtime.clone(), 9, slow));
    let grow = async {
        bench.runtime.sleep_ns(500_000).await;
        array.set_geometry(Geometry { segment_count: 5, ..GEOMETRY })
    };
    let (added, grown) =
        bench.run(futures_util::future::join(array.add_member(new, named(1)), grow));
    grown.unwrap();
    assert_eq!(added.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(states(&array), [MemberStatus::Online]);
}

/// A member may hang in reads. The first of them are the reads of the headers.
#[test]
fn a_member_that_hangs_at_the_opening_counts_as_absent() {
    for hanging in [0, 1] {
        let bench = Bench::new(2);
        let assemble = |degraded| {
            let layer = |member: usize| {
                let (memory, clock) = (bench.memory[member].clone(), bench.runtime.clone());
                let plan = if member == hanging { hangs() } else { FaultPlan::default() };
                (Rc::new(Fault::new(memory, clock, 1, plan)), format!("/m{member}"))
            };
            let patience = Patience::new(&bench.runtime, 30_000_000_000);
            let options = Assembly::default().with_patience(patience).with_degraded(degraded);
            bench.run(Array::assemble([0, 1].map(layer).into(), options))
        };
        let refused = assemble(false).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains(&format!("/m{hanging}, a member of the mirror, is missing")));
        let array = assemble(true).unwrap();
        assert!(bench.runtime.now_ns() < 61_000_000_000, "{hanging}");
        assert_eq!(states(&array)[hanging], MemberStatus::Out);
        assert_eq!(states(&array)[1 - hanging], MemberStatus::Online);
    }
}
