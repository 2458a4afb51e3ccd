//! Goal: a drive on a mirror loses no flushed byte if one of two members is lost, damaged or stale,
//! shows one history whichever member is read, and repairs damage. Method: two members in memory
//! that outlive the drive, each under a fault layer of its own, so that each loses power in its own
//! way; the oracle knows the versions of each block and which of them were flushed.

use rand::{Rng, RngExt};

use super::*;
use crate::base::seed::random;
use crate::format::{ArrayLayout, BATCH_HEADER_BYTES, BatchHeader, Record};
use crate::media::array::{Array, Assembly, MemberStatus, NewMember, Patience};
use crate::media::layer::{BadRange, Region, Trigger};

type Member = Rc<Fault<MemMedium, Runtime>>;
type Mirror = Rc<Array<Member>>;

const BLOCKS: usize = 256;

/// Two members, and the drive on them.
struct Pair {
    runtime: Runtime,
    memory: [MemMedium; 2],
    segment_count: u32,
    cipher: Cipher,
}

/// An opening of the drive.
struct Opened {
    drive: Rc<Drive>,
    members: Vec<Member>,
}

impl Pair {
    fn new() -> Self {
        Self::of(small(BLOCKS as u64 * BLOCK, 12), Cipher::default())
    }

    fn encrypted() -> Self {
        let spec = small(BLOCKS as u64 * BLOCK, 12);
        let (spec, cipher) = encryption::with_keys(spec, Randomness::seeded(3));
        Self::of(spec, cipher)
    }

    fn of(spec: Spec, cipher: Cipher) -> Self {
        let geometry = spec.geometry().unwrap();
        let memory = [0, 1].map(|_| MemMedium::new(geometry.medium_bytes()));
        let runtime = Runtime::simulated();
        let pair = Self { runtime, memory, segment_count: geometry.segment_count, cipher };
        let members = [0, 1].map(|index| {
            let uuid = uuid::Uuid::from_u128(index as u128 + 1);
            let new = NewMember { uuid, path: format!("/m{index}"), segment_count: 0 };
            (pair.memory[index].clone(), new)
        });
        pair.runtime.block_on(async {
            let uuid = uuid::Uuid::from_u128(9);
            let array = Array::create(uuid, ArrayLayout::Mirror, members.into()).await.unwrap();
            create(&array.with_cipher(pair.cipher.clone()), &spec).await.unwrap();
        });
        pair
    }

    fn copy(&self) -> Self {
        let memory = self.memory.each_ref().map(MemMedium::deep_copy);
        let cipher = self.cipher.clone();
        let segment_count = self.segment_count;
        Self { runtime: Runtime::simulated(), memory, segment_count, cipher }
    }

    fn layers(&self, members: &[usize], seed: u64, plan: &FaultPlan) -> Vec<Member> {
        let layer = |&index: &usize| {
            let (memory, seed) = (self.memory[index].clone(), seed * 2 + index as u64);
            Rc::new(Fault::new(memory, self.runtime.clone(), seed, plan.clone()))
        };
        members.iter().map(layer).collect()
    }

    fn assemble(&self, members: &[usize], seed: u64, plan: &FaultPlan) -> (Mirror, Vec<Member>) {
        let layers = self.layers(members, seed, plan);
        let paths = members.iter().map(|index| format!("/m{index}"));
        let members = layers.iter().cloned().zip(paths).collect();
        let options = Assembly::default().with_degraded(true);
        let array = self.runtime.block_on(Array::assemble(members, options)).unwrap();
        (Rc::new(array.with_cipher(self.cipher.clone())), layers)
    }

    /// Assembles the mirror like a program that changes nothing.
    fn assemble_to_read(&self, members: &[usize]) -> (Mirror, Vec<Member>) {
        let members = self.layers(members, 0, &FaultPlan::default());
        let paths = (0..).map(|index| format!("/m{index}"));
        let all = members.iter().cloned().zip(paths).collect();
        let array = Array::assemble(all, Assembly::default().with_read_only(true));
        let array = self.runtime.block_on(array).unwrap().with_cipher(self.cipher.clone());
        let patience = Patience::new(&self.runtime, 30_000_000_000);
        (Rc::new(array.with_patience(patience)), members)
    }

    fn try_open(&self, members: &[usize], seed: u64, plan: &FaultPlan) -> Result<Opened> {
        let (mirror, members) = self.assemble(members, seed, plan);
        let opening = Drive::open(mirror, self.runtime.clock(), OpenOptions::default());
        Ok(Opened { drive: self.runtime.block_on(opening)?, members })
    }

    fn open(&self, members: &[usize]) -> Opened {
        self.try_open(members, 0, &FaultPlan::default()).unwrap()
    }

    fn close(&self, opened: Opened) {
        self.runtime.block_on(opened.drive.close()).unwrap();
        self.runtime.drop_tasks();
    }

    /// Cuts the power of all members, each with an outcome of its own.
    fn crash(&self, opened: Opened) {
        self.runtime.drop_tasks();
        for member in &opened.members {
            self.runtime.block_on(member.crash()).unwrap();
        }
    }

    fn write(&self, opened: &Opened, block: usize, version: u64) {
        let data = content(block, version);
        self.runtime.block_on(opened.drive.write(block as u64 * BLOCK, &data)).unwrap();
    }

    fn flush(&self, opened: &Opened) {
        self.runtime.block_on(opened.drive.flush()).unwrap();
    }

    fn read(&self, opened: &Opened, block: usize) -> Result<Vec<u8>> {
        let mut out = vec![0xa5; BLOCK_BYTES];
        let read = opened.drive.read(block as u64 * BLOCK, &mut out);
        self.runtime.block_on(read).map(|()| out)
    }

    fn versions(&self, opened: &Opened) -> Vec<u64> {
        let version = |block| version_of(block, &self.read(opened, block).unwrap());
        (0..BLOCKS).map(version).collect()
    }

    fn peek(&self, member: usize, segment: u32) -> AlignedBuffer {
        let buffer = AlignedBuffer::zeroed(SEGMENT_BYTES as usize);
        let read = self.memory[member].read(SegmentId(segment), 0, buffer);
        let (bytes, result) = self.runtime.block_on(read);
        result.unwrap();
        bytes
    }

    fn put(&self, member: usize, segment: u32, offset: u32, bytes: AlignedBuffer) {
        let written = self.memory[member].append(SegmentId(segment), offset, bytes.into());
        self.runtime.block_on(written).unwrap();
    }

    /// Flips a bit in each page of a member, except for blank pages.
    fn rot(&self, member: usize) {
        for segment in 0..self.segment_count {
            let bytes = self.peek(member, segment);
            for (number, page) in bytes.chunks(4096).enumerate() {
                if page.iter().any(|&byte| byte != 0) {
                    let mut damaged = AlignedBuffer::zeroed(4096);
                    damaged.copy_from_slice(page);
                    damaged[number * 37 % 4096] ^= 4;
                    self.put(member, segment, number as u32 * 4096, damaged);
                }
            }
        }
    }

    /// Returns the batches of a member.
    fn batches(&self, member: usize) -> Vec<BatchHeader> {
        let in_segment = |segment| {
            let bytes = self.peek(member, segment);
            let pages = bytes.chunks(4096);
            let headers =
                pages.filter_map(|page| BatchHeader::decode_with(page, &self.cipher).ok());
            headers.map(|(header, _)| header).collect::<Vec<_>>()
        };
        (0..self.segment_count).flat_map(in_segment).collect()
    }

    /// Flips a bit of a member.
    fn flip(&self, member: usize, segment: u32, offset: u32) {
        let bytes = self.peek(member, segment);
        let page = offset / 4096 * 4096;
        let mut damaged = AlignedBuffer::zeroed(4096);
        damaged.copy_from_slice(&bytes[page as usize..][..4096]);
        damaged[(offset - page) as usize] ^= 4;
        self.put(member, segment, page, damaged);
    }

    /// Returns for each segment whether both members have the same bytes.
    fn equal_segments(&self) -> Vec<bool> {
        let is_equal = |segment| *self.peek(0, segment) == *self.peek(1, segment);
        (0..self.segment_count).map(is_equal).collect()
    }
}

/// Returns an incompressible block that holds its number and version; version 0 is zeroes.
fn content(block: usize, version: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK_BYTES];
    if version > 0 {
        random(version * 1_000 + block as u64).fill_bytes(&mut data);
        data[..8].copy_from_slice(&version.to_le_bytes());
    }
    data
}

fn version_of(block: usize, data: &[u8]) -> u64 {
    let version = u64::from_le_bytes(data[..8].try_into().unwrap());
    assert!(data == content(block, version), "block {block} is of no version");
    version
}

#[test]
fn damage_on_one_member_is_read_around_and_repaired() {
    for rotten in [0, 1] {
        let pair = Pair::new();
        let opened = pair.open(&[0, 1]);
        (0..BLOCKS).for_each(|block| pair.write(&opened, block, 7));
        pair.close(opened);
        pair.rot(rotten);
        let opened = pair.open(&[0, 1]);
        assert_eq!(pair.versions(&opened), [7; BLOCKS]);
        let repaired = opened.drive.info().array.unwrap().members[rotten].repaired;
        assert!(repaired > 0, "nothing was repaired");
        assert_eq!(opened.drive.info().operations.corrupt_reads, 0);
        let report = pair.runtime.block_on(opened.drive.scrub(0)).unwrap();
        assert_eq!(report.problems, [], "{report:?}");
        assert!(report.repaired > 0);
        pair.close(opened);
        // The damaged member has been repaired: it serves alone.
        let opened = pair.open(&[rotten]);
        assert_eq!(pair.versions(&opened), [7; BLOCKS]);
        let report = pair.runtime.block_on(opened.drive.scrub(0)).unwrap();
        assert_eq!((report.problems, report.repaired), (vec![], 0));
        pair.close(opened);
    }
}

/// Frames in one page, damaged on different members.
#[test]
fn damage_on_both_members_is_repaired_where_it_does_not_meet() {
    let pair = Pair::new();
    let opened = pair.open(&[0, 1]);
    for block in 0..BLOCKS {
        let mut data = content(block, 3);
        // Several frames fit in a page.
        data[700..].fill(1);
        pair.runtime.block_on(opened.drive.write(block as u64 * BLOCK, &data)).unwrap();
    }
    pair.close(opened);
    for member in [0, 1] {
        for segment in 0..pair.segment_count {
            let mut bytes = pair.peek(member, segment);
            let mut damaged = false;
            for at in (0..bytes.len()).step_by(1024).filter(|at| at / 1024 % 2 == member) {
                if at >= 8192 && bytes[at..at + 64].iter().any(|&byte| byte != 0) {
                    bytes[at] ^= 1;
                    damaged = true;
                }
            }
            if damaged {
                pair.put(member, segment, 0, bytes);
            }
        }
    }
    let opened = pair.open(&[0, 1]);
    let mut lost = 0;
    for block in 0..BLOCKS {
        match pair.read(&opened, block) {
            Ok(data) => assert_eq!(data[..700], content(block, 3)[..700], "block {block}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                lost += 1;
            }
        }
    }
    // A frame of 740 bytes covers one or two of these locations, in the latter case one on each
    // member.
    assert!(lost < BLOCKS * 3 / 4, "{lost} blocks are lost");
    pair.runtime.block_on(opened.drive.scrub(0)).unwrap();
    pair.close(opened);
}

/// Every flushed block is found. The content that is found stays, whichever member is read from
/// then on.
#[test]
fn members_with_different_losses_read_the_same() {
    for seed in 0..16 {
        let mut random = random(seed);
        let pair = Pair::new();
        let (mut flushed, mut written) = (vec![0; BLOCKS], vec![0; BLOCKS]);
        let mut version = 1;
        for life in 0..4 {
            let plan = FaultPlan {
                latency_ns: 1_000..=400_000,
                crash_leaves_unreadable: random.random_range(0..3) == 0,
                ..FaultPlan::default()
            };
            let opened = pair.try_open(&[0, 1], seed * 16 + life, &plan).unwrap();
            for _ in 0..random.random_range(1..60) {
                for _ in 0..random.random_range(1..8) {
                    let block = random.random_range(0..BLOCKS);
                    pair.write(&opened, block, version);
                    written[block] = version;
                    version += 1;
                }
                if random.random_range(0..6) == 0 {
                    pair.flush(&opened);
                    flushed.clone_from(&written);
                }
                let pause_ns = random.random_range(0..300_000_000);
                pair.runtime.block_on(pair.runtime.sleep_ns(pause_ns));
            }
            pair.crash(opened);
            let opened = pair.open(&[0, 1]);
            let found = pair.versions(&opened);
            for block in 0..BLOCKS {
                let range = flushed[block]..=written[block];
                let what = format!("seed {seed}, life {life}, block {block}");
                assert!(range.contains(&found[block]), "{what}: {} in {range:?}", found[block]);
            }
            // The process is killed, and one member never returns.
            pair.runtime.drop_tasks();
            drop(opened);
            for alone in [0, 1] {
                let pair = pair.copy();
                let opened = pair.open(&[alone]);
                assert_eq!(pair.versions(&opened), found, "seed {seed}, life {life}: {alone}");
                pair.close(opened);
            }
            let opened = pair.open(&[0, 1]);
            assert_eq!(pair.versions(&opened), found, "seed {seed}, life {life}: again");
            pair.close(opened);
            (flushed, written) = (found.clone(), found);
        }
    }
}

/// The newest batches of one member are damaged, and nothing on that member shows that they were
/// durable.
#[test]
fn a_flushed_end_of_the_log_survives_on_either_member() {
    for rotten in [0, 1] {
        let pair = Pair::new();
        let opened = pair.open(&[0, 1]);
        for block in 0..8 {
            pair.write(&opened, block, 5);
            pair.flush(&opened);
        }
        pair.crash(opened);
        for segment in 0..pair.segment_count {
            let bytes = pair.peek(rotten, segment);
            let used = bytes.chunks(4096).filter(|page| page.starts_with(b"PUMICEBT")).count();
            if used > 4 {
                // All except the first two pages: the header of the segment and one batch.
                for page in 2..bytes.len() as u32 / 4096 {
                    pair.put(rotten, segment, page * 4096, AlignedBuffer::zeroed(4096));
                }
            }
        }
        let opened = pair.open(&[0, 1]);
        assert_eq!(pair.versions(&opened)[..8], [5; 8], "{rotten} is rotten");
        // Data that was known to be durable is repaired when it is read, or by a scrub.
        pair.runtime.block_on(opened.drive.scrub(0)).unwrap();
        pair.close(opened);
        let opened = pair.open(&[rotten]);
        assert_eq!(pair.versions(&opened)[..8], [5; 8], "{rotten} alone");
        pair.close(opened);
    }
}

#[test]
fn a_member_that_fails_while_it_is_written_to_leaves_a_whole_drive() {
    for failing in [0, 1] {
        for trigger in 1..12 {
            let pair = Pair::new();
            let opened = pair.open(&[0, 1]);
            (0..20).for_each(|block| pair.write(&opened, block, 1));
            pair.flush(&opened);
            let (append_errors, sync_errors) = if trigger % 2 == 0 {
                (Trigger::Nth(trigger / 2), Trigger::Never)
            } else {
                (Trigger::Never, Trigger::Nth(trigger / 2 + 1))
            };
            let plan = FaultPlan { append_errors, sync_errors, ..FaultPlan::default() };
            opened.members[failing].set_plan(plan);
            for block in 0..60 {
                pair.write(&opened, block, 2);
                pair.flush(&opened);
            }
            let state = opened.drive.info().array.unwrap().members[failing].state;
            assert_eq!(state, MemberStatus::Out, "{failing} at {trigger}");
            let kinds: Vec<_> = opened.drive.info().alerts.iter().map(|alert| alert.kind).collect();
            assert_eq!(kinds, [AlertKind::Degraded]);
            pair.crash(opened);
            for members in [&[0, 1][..], &[1, 0], &[1 - failing]] {
                let pair = pair.copy();
                let opened = pair.open(members);
                assert_eq!(pair.versions(&opened)[..60], [2; 60], "{failing} at {trigger}");
                pair.close(opened);
            }
        }
    }
}

#[test]
fn a_member_whose_sectors_fail_is_repaired_by_a_scrub() {
    let pair = Pair::new();
    let opened = pair.open(&[0, 1]);
    (0..BLOCKS).for_each(|block| pair.write(&opened, block, 1));
    pair.flush(&opened);
    for segment in 0..pair.segment_count {
        let region = Region::Segment(SegmentId(segment));
        for page in (0..SEGMENT_BYTES).step_by(3 * 4096) {
            opened.members[1].add_bad_range(BadRange::unreadable(region, page..page + 512));
        }
    }
    assert_eq!(pair.versions(&opened), [1; BLOCKS]);
    let report = pair.runtime.block_on(opened.drive.scrub(0)).unwrap();
    assert_eq!(report.problems, []);
    assert!(report.repaired > 0, "{report:?}");
    let state = opened.drive.info().array.unwrap().members[1].state;
    assert_eq!(state, MemberStatus::Online);
    let report = pair.runtime.block_on(opened.drive.scrub(0)).unwrap();
    assert_eq!(report.repaired, 0, "{report:?}");
    pair.close(opened);
}

/// A program without support for arrays would write to one member and not to the others.
#[test]
fn a_member_is_not_opened_alone() {
    let pair = Pair::new();
    let opened = pair.open(&[0, 1]);
    pair.write(&opened, 0, 1);
    pair.close(opened);
    assert_eq!(pair.equal_segments(), vec![true; pair.segment_count as usize]);
    for memory in &pair.memory {
        let opening =
            Drive::open(Rc::new(memory.clone()), pair.runtime.clock(), OpenOptions::default());
        let error = pair.runtime.block_on(opening).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("a member of an array"), "{error}");
    }
}

/// Two lives of one drive wrote different data to the same locations, and none of it was flushed.
/// One member has all batches of the first life except the first one, so its log ends there; the
/// other member has the log of the second life.
#[test]
fn after_an_unclean_end_both_members_read_the_same() {
    let before = Pair::new();
    let life = |version: u64| {
        let pair = before.copy();
        let opened = pair.open(&[0, 1]);
        for round in 0..4 {
            (0..BLOCKS).for_each(|block| pair.write(&opened, block, version + round));
        }
        pair.runtime.block_on(pair.runtime.sleep_ns(500_000_000));
        pair.runtime.drop_tasks();
        pair
    };
    let (lost, kept) = (life(10), life(20));
    let opened = kept.copy();
    let expected = {
        let drive = opened.open(&[0, 1]);
        let versions = opened.versions(&drive);
        opened.close(drive);
        versions
    };
    assert!(expected.iter().all(|&version| version >= 20), "{expected:?}");
    for member in [0, 1] {
        let pair = kept.copy();
        let mut batches = 0;
        for segment in 0..pair.segment_count {
            let bytes = lost.peek(member, segment);
            let is_batch = |page: &[u8]| page.starts_with(b"PUMICEBT");
            pair.put(member, segment, 0, bytes.clone());
            let mut headers = (0..).zip(bytes.chunks(4096)).filter(|(_, page)| is_batch(page));
            let second = headers.nth(1);
            if let Some((page, _)) = second {
                batches += 1 + headers.count();
                pair.put(member, segment, 0, AlignedBuffer::zeroed(page * 4096));
            }
        }
        assert!(batches > 1, "what was lost is one batch");
        let (mirror, _members) = pair.assemble_to_read(&[0, 1]);
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let opening = Drive::open(mirror.clone(), pair.runtime.clock(), options);
        let drive = pair.runtime.block_on(opening).unwrap();
        for (block, &version) in expected.iter().enumerate() {
            let mut data = vec![0; BLOCK_BYTES];
            pair.runtime.block_on(drive.read(block as u64 * BLOCK, &mut data)).unwrap();
            assert_eq!(version_of(block, &data), version, "block {block}: {member} is lost");
        }
        let report = pair.runtime.block_on(check(&*mirror, Depth::Full, &mut |_| ())).unwrap();
        assert_eq!(report.problems, []);
        pair.runtime.drop_tasks();
        drop(drive);
        let opened = pair.open(&[0, 1]);
        assert_eq!(pair.versions(&opened), *expected);
        pair.close(opened);
    }
}

/// Replaces member 1 by another one, which becomes member 1.
fn replace(pair: &mut Pair) {
    let opened = pair.open(&[0, 1]);
    let array = opened.drive.medium().downcast_ref::<Array<Member>>().expect("a mirror");
    let memory = MemMedium::new(pair.memory[1].bytes());
    let layer = Fault::new(memory.clone(), pair.runtime.clone(), 77, FaultPlan::default());
    let new =
        NewMember { uuid: uuid::Uuid::from_u128(77), path: "/new".to_owned(), segment_count: 0 };
    let old = array.member_at("/m1").unwrap();
    pair.runtime.block_on(async {
        array.replace_member(Rc::new(layer), new, old).await.unwrap();
        let copy = async |segment, range, show: &mut dyn FnMut(u32, &[u8])| {
            array.copy(segment, range, show).await
        };
        opened.drive.copy_in_use(|_| (), copy).await.unwrap();
        array.finish_rebuild().await.unwrap();
    });
    pair.close(opened);
    pair.memory[1] = memory;
}

/// The member that remains is damaged in each page; the one that leaves is not.
#[test]
fn a_rebuild_copies_no_damage_that_another_member_can_repair() {
    let mut pair = Pair::new();
    let opened = pair.open(&[0, 1]);
    (0..BLOCKS).for_each(|block| pair.write(&opened, block, 4));
    pair.close(opened);
    pair.rot(0);
    replace(&mut pair);
    let opened = pair.open(&[1]);
    assert_eq!(pair.versions(&opened), [4; BLOCKS]);
    let report = pair.runtime.block_on(opened.drive.scrub(0)).unwrap();
    assert_eq!((report.problems, report.repaired), (vec![], 0));
    pair.close(opened);
}

/// No member has the complete batch, and each record is intact on one of them.
#[test]
fn a_rebuild_takes_each_record_from_the_member_that_has_it() {
    let mut pair = Pair::new();
    let opened = pair.open(&[0, 1]);
    (0..BLOCKS).for_each(|block| pair.write(&opened, block, 4));
    pair.close(opened);
    for segment in 0..pair.segment_count {
        let headers: Vec<usize> = {
            let bytes = pair.peek(0, segment);
            let pages = bytes.chunks(4096).enumerate();
            pages.filter(|(_, page)| page.starts_with(b"PUMICEBT")).map(|(at, _)| at).collect()
        };
        for header in headers {
            // Payloads far from each other, in a long batch.
            for (member, page) in [(0, header + 3), (1, header + 30)] {
                let bytes = pair.peek(member, segment);
                let mut page_bytes = AlignedBuffer::zeroed(4096);
                let Some(stored) = bytes.chunks(4096).nth(page) else { continue };
                page_bytes.copy_from_slice(stored);
                if stored.iter().any(|&byte| byte != 0) && !stored.starts_with(b"PUMICEBT") {
                    page_bytes[2000..2100].iter_mut().for_each(|byte| *byte ^= 0x55);
                    pair.put(member, segment, page as u32 * 4096, page_bytes);
                }
            }
        }
    }
    replace(&mut pair);
    let opened = pair.open(&[1]);
    assert_eq!(pair.versions(&opened), [4; BLOCKS]);
    pair.close(opened);
}

/// A check changes nothing, and reports the location of the damage.
#[test]
fn a_check_reads_every_copy_and_names_the_damaged_one() {
    for rotten in [0, 1] {
        let pair = Pair::new();
        let opened = pair.open(&[0, 1]);
        (0..BLOCKS).for_each(|block| pair.write(&opened, block, 7));
        pair.close(opened);
        let checked = |pair: &Pair| {
            let (mirror, _members) = pair.assemble_to_read(&[0, 1]);
            pair.runtime.block_on(check(&*mirror, Depth::Full, &mut |_| ())).unwrap()
        };
        let report = checked(&pair);
        assert_eq!((report.problem_count, report.frames > 0), (0, true), "{report:?}");
        pair.rot(rotten);
        let stored = || -> Vec<_> {
            (0..pair.segment_count).map(|segment| pair.peek(rotten, segment).to_vec()).collect()
        };
        let before = stored();
        let report = checked(&pair);
        let name = format!("on /m{rotten} is damaged");
        let named = report.problems.iter().filter(|problem| problem.what.contains(&name)).count();
        assert!(named > 1, "{report:#?}");
        let other = format!("/m{}", 1 - rotten);
        assert!(
            report.problems.iter().all(|problem| !problem.what.contains(&other)),
            "{report:#?}"
        );
        assert!(before == stored(), "a check has written");
        let opened = pair.open(&[0, 1]);
        pair.runtime.block_on(opened.drive.scrub(0)).unwrap();
        pair.close(opened);
        assert_eq!(checked(&pair).problems, [], "{rotten}");
    }
}

/// No checksum covers parity: only a comparison with all pages of its batch shows whether it is
/// right.
#[test]
fn a_rebuild_copies_no_damaged_parity() {
    for rotten in [&[0][..], &[0, 1]] {
        let mut pair = Pair::new();
        let opened = pair.open(&[0, 1]);
        (0..BLOCKS).for_each(|block| pair.write(&opened, block, 4));
        pair.close(opened);
        let before = pair.batches(0);
        let parity = |batch: &BatchHeader| {
            let end = batch.offset as usize + batch.batch_bytes() as usize;
            end - usize::from(batch.parity_pages) * 4096..end
        };
        let stored = |pair: &Pair, member, batch: &BatchHeader| {
            pair.peek(member, batch.segment.0)[parity(batch)].to_vec()
        };
        let right: Vec<_> = before.iter().map(|batch| stored(&pair, 0, batch)).collect();
        for &member in rotten {
            for batch in &before {
                for page in parity(batch).step_by(4096) {
                    pair.flip(member, batch.segment.0, page as u32 + 77);
                }
            }
        }
        replace(&mut pair);
        let mut compared = 0;
        for member in [0, 1] {
            let after = pair.batches(member);
            for (batch, right) in before.iter().zip(&right) {
                if after.contains(batch) && batch.parity_pages > 0 {
                    let what = format!("{rotten:?}: {member}, {} {}", batch.segment, batch.offset);
                    assert!(stored(&pair, member, batch) == *right, "{what}");
                    compared += member;
                }
            }
        }
        assert!(compared > 2, "{compared} batches have parity, and were copied");
    }
}

/// The data of another copy is verified with the keys of the drive before it overwrites a copy.
#[test]
fn reads_of_an_encrypted_drive_make_its_copies_equal() {
    let pair = Pair::encrypted();
    let opened = pair.open(&[0, 1]);
    (0..BLOCKS).for_each(|block| pair.write(&opened, block, 7));
    pair.close(opened);
    let mut damaged = Vec::new();
    for batch in pair.batches(0) {
        let bytes = pair.peek(0, batch.segment.0);
        let body = &bytes[batch.offset as usize + BATCH_HEADER_BYTES..];
        let found = log::records::records(&pair.cipher, &batch, &body[..batch.body_bytes as usize]);
        for found in found.map(Result::unwrap) {
            if matches!(found.record, Record::Data { .. }) {
                let offset = found.place.offset + found.record.header_bytes() + 50;
                pair.flip(0, batch.segment.0, offset);
                damaged.push((batch.segment.0, offset as usize));
            }
        }
    }
    assert!(damaged.len() > 100, "{} frames are damaged", damaged.len());
    let mut random = random(5);
    for _ in 0..16 {
        let opened = pair.open(&[0, 1]);
        // The order differs from that of the blocks: damaged data that was read ahead is simply
        // read again.
        for block in (0..BLOCKS).map(|block| block * 97 % BLOCKS) {
            // Members alternate. The first one is chosen at random.
            if random.random_range(0..2) == 0 {
                let medium = opened.drive.medium();
                let page = medium.read(SegmentId(0), 0, AlignedBuffer::zeroed(4096));
                pair.runtime.block_on(page).1.unwrap();
            }
            assert_eq!(version_of(block, &pair.read(&opened, block).unwrap()), 7);
        }
        assert_eq!(opened.drive.info().operations.corrupt_reads, 0);
        pair.close(opened);
    }
    let differs = |&&(segment, offset): &&(u32, usize)| {
        pair.peek(0, segment)[offset] != pair.peek(1, segment)[offset]
    };
    let unequal = damaged.iter().filter(differs).count();
    assert_eq!(unequal, 0, "of {} frames", damaged.len());
}

/// A member hangs once a check has begun.
#[test]
fn a_check_names_the_member_that_was_left_out_meanwhile() {
    for hanging in [0, 1] {
        let pair = Pair::new();
        let opened = pair.open(&[0, 1]);
        (0..BLOCKS).for_each(|block| pair.write(&opened, block, 7));
        pair.close(opened);
        let (mirror, members) = pair.assemble_to_read(&[0, 1]);
        let hour_ns = 3_600_000_000_000;
        let hangs = FaultPlan { latency_ns: hour_ns..=hour_ns, ..FaultPlan::default() };
        let mut hang = |_| members[hanging].set_plan(hangs.clone());
        let report = pair.runtime.block_on(check(&*mirror, Depth::Full, &mut hang)).unwrap();
        let states = mirror.info().members;
        assert_eq!(states[hanging].state, MemberStatus::Out);
        let what: Vec<_> = report.problems.iter().map(|problem| &*problem.what).collect();
        assert_eq!(what.len(), 1, "{what:#?}");
        let named = format!("/m{hanging} was left out");
        assert!(what[0].contains(&named), "{what:#?}");
    }
}
