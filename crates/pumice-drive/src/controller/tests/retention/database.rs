//! Goal: snapshots occupy only the space of the data that they retain, however the data around it
//! changes: segments that they need are emptied to free their dead data, and no snapshot changes or
//! loses data in the process, whenever the drive ends. Method: a busy database with hourly
//! snapshots, on drives so small that they work only if such segments are emptied. Every page of
//! every snapshot is compared, and every set of changes between neighbours.

use std::collections::{BTreeSet, VecDeque};

use rand::RngExt;

use super::*;
use crate::base::seed::{Random, random};

/// A page of the database, which does not compress.
pub(crate) const PAGE: u64 = 2 * BLOCK;
pub(crate) const PAGES: u64 = 2048;
/// Pages written between two snapshots: 5 % of all pages. Four out of five of these writes go to a
/// fifth of the pages.
const WRITES: u64 = PAGES / 20;
/// Number of snapshots retained during the week.
const DAY: usize = 24;

/// A database, and the version of each page in each snapshot.
pub(crate) struct Database {
    pub(crate) world: World,
    pub(crate) state: RefCell<State>,
}

#[derive(Clone)]
pub(crate) struct State {
    random: Random,
    pub(crate) versions: Vec<u32>,
    pub(crate) kept: VecDeque<(String, Vec<u32>)>,
}

impl State {
    /// Returns a page to write, and its next version.
    fn next(&mut self) -> (u64, Vec<u8>) {
        let range = if self.random.random_range(0..5) > 0 { PAGES / 5 } else { PAGES };
        let page = self.random.random_range(0..range);
        let version = &mut self.versions[page as usize];
        *version += 1;
        (page, content(page, *version))
    }

    /// Returns a new version of a page that no disk had before.
    pub(crate) fn renew(&mut self, page: u64) -> u32 {
        let version = &mut self.versions[page as usize];
        *version += 1000;
        *version
    }
}

pub(crate) fn content(page: u64, version: u32) -> Vec<u8> {
    payload::noise(&mut random(page << 32 | u64::from(version)), PAGE as usize)
}

impl Database {
    pub(crate) fn new(segments: u64, seed: u64) -> (Self, Rc<Drive>) {
        let world = World::new(small(PAGES * PAGE, segments));
        let drive = world.open();
        for page in 0..PAGES {
            world.write(&drive, page * PAGE, &content(page, 0)).unwrap();
        }
        let (versions, kept) = (vec![0; PAGES as usize], VecDeque::new());
        let state = State { random: random(seed), versions, kept };
        (Self { world, state: RefCell::new(state) }, drive)
    }

    /// Returns a database like [`Database::new`], two hours later, on a drive that empties no
    /// segment by itself.
    pub(crate) fn of_two_hours(segments: u64, seed: u64) -> (Self, Rc<Drive>) {
        let (database, drive) = Self::new(segments, seed);
        let world = &database.world;
        world.close(drive);
        let drive = world.open_without_collector();
        world.run(database.pass_an_hour(&drive, 0));
        world.run(database.pass_an_hour(&drive, 1));
        world.run(drive.flush()).unwrap();
        (database, drive)
    }

    /// Writes the amount of one hour, and takes a snapshot.
    pub(crate) async fn pass_an_hour(&self, drive: &Drive, hour: u32) {
        for _ in 0..WRITES {
            let (page, data) = self.state.borrow_mut().next();
            drive.write(page * PAGE, &data).await.unwrap();
        }
        self.end_hour(drive, hour).await;
    }

    /// Takes a snapshot.
    pub(crate) async fn end_hour(&self, drive: &Drive, hour: u32) {
        let name = format!("hour {hour}");
        self.state.borrow_mut().keep(name.clone());
        let guid = uuid::Uuid::from_u128(hour.into());
        let new = NewSnapshot { name, guid, created_seconds: 3600, yields: false };
        drive.create_snapshot(new).await.unwrap();
    }

    /// Deletes the snapshot at a position in the list.
    pub(crate) async fn delete(&self, drive: &Drive, at: usize) {
        let (name, _) = self.state.borrow_mut().kept.remove(at).unwrap();
        drive.delete_snapshot(&name).await.unwrap();
    }

    fn kept(&self) -> usize {
        self.state.borrow().kept.len()
    }

    /// Returns the bytes of pages that snapshots refer to and the disk does not.
    fn named_bytes(&self) -> u64 {
        let state = self.state.borrow();
        let mut named = BTreeSet::new();
        for (_, versions) in &state.kept {
            for (page, version) in versions.iter().enumerate() {
                if state.versions[page] != *version {
                    named.insert((page, *version));
                }
            }
        }
        named.len() as u64 * PAGE
    }

    /// Compares every snapshot of the closed drive, and the changes between neighbours, with the
    /// expected ones.
    pub(crate) fn compare(&self) {
        let kept = self.state.borrow().kept.clone();
        for (name, versions) in &kept {
            let view = view(&self.world, name);
            for (page, version) in (0..).zip(versions) {
                let read = self.world.read(&view, page * PAGE, PAGE as usize).unwrap();
                assert!(read == content(page, *version), "page {page} of {name}");
            }
            self.world.close(view);
            let mut ignore = |_| ();
            let checking = check_snapshot(&self.world.memory, name, Depth::Full, &mut ignore);
            assert_eq!(self.world.run(checking).unwrap().problems, [], "{name}");
        }
        for ((before, old), (name, new)) in kept.iter().zip(kept.iter().skip(1)) {
            let differs: Vec<bool> = old.iter().zip(new).map(|(old, new)| old != new).collect();
            assert!(self.changed(before, name) == differs, "changes from {before} to {name}");
        }
        assert_eq!(self.world.check().problems, []);
    }

    /// Compares every snapshot of the open drive.
    pub(crate) fn compare_open(&self, drive: &Rc<Drive>) {
        self.world.run(drive.audit_snapshots()).unwrap();
        let kept = self.state.borrow().kept.clone();
        for (name, versions) in &kept {
            let view = self.world.run(drive.view(name, OpenOptions::default())).unwrap();
            for (page, version) in (0..).zip(versions) {
                let read = self.world.read(&view, page * PAGE, PAGE as usize);
                let read = read.unwrap_or_else(|error| panic!("page {page} of {name}: {error}"));
                assert!(read == content(page, *version), "page {page} of {name}");
            }
        }
    }

    /// Returns the number of readable pages in each snapshot of a closed drive, and checks that
    /// they are right.
    pub(crate) fn readable_pages(&self) -> Vec<(String, u64)> {
        let state = self.state.borrow();
        let of = |(name, versions): &(String, Vec<u32>)| {
            let view = view(&self.world, name);
            let read = |&(page, &version): &(u64, &u32)| {
                let read = self.world.read(&view, page * PAGE, PAGE as usize);
                read.is_ok_and(|read| {
                    assert!(read == content(page, version), "page {page} of {name}");
                    true
                })
            };
            let found = (0..).zip(versions).filter(read).count() as u64;
            self.world.close(view);
            (name.clone(), found)
        };
        state.kept.iter().map(of).collect()
    }

    /// Writes each of some pages once.
    pub(crate) fn overwrite(&self, drive: &Drive, pages: std::ops::Range<u64>) {
        for page in pages {
            let version = self.state.borrow_mut().renew(page);
            self.world.write(drive, page * PAGE, &content(page, version)).unwrap();
        }
    }

    /// Damages the frame of the first page from `page` on that is in a given segment, such that
    /// parity restores it.
    pub(crate) fn damage(&self, drive: &Drive, segment: SegmentId, page: u64) {
        let frame = |page| match drive.core().map().peek(Lba(page * PAGE / BLOCK)) {
            Lookup::Run(Mapping::Frame { place, .. }, _) => Some(place),
            _ => None,
        };
        let place = (page..PAGES).filter_map(frame).find(|place| place.segment == segment);
        self.world.flip(segment.0, place.expect("a page lies there").offset + 4000);
    }

    /// Empties a retained segment, and frees it.
    pub(crate) fn empty(&self, drive: &Drive, segment: SegmentId) {
        self.world.run(drive.flush()).unwrap();
        self.world.run(drive.empty_retained(segment)).unwrap();
        assert!(!drive.core().space().is_retained(segment), "segment {segment} is emptied");
        self.free(drive, segment);
    }

    /// Frees a segment that was emptied.
    pub(crate) fn free(&self, drive: &Drive, segment: SegmentId) {
        while !drive.core().empty_segments().contains(&segment) {
            self.world.run(drive.checkpoint()).unwrap();
        }
        self.world.run(drive.flush()).unwrap();
        self.world.run(drive.layers().discard(segment)).unwrap();
        drive.with_core(|core| core.free_segment(segment));
        self.world.run(drive.audit_snapshots()).unwrap();
    }

    /// Returns which pages differ between two snapshots.
    fn changed(&self, from: &str, to: &str) -> Vec<bool> {
        let (from, to) = (view(&self.world, from), view(&self.world, to));
        let mut changed = vec![false; PAGES as usize];
        let comparing = to.changes_since(&from, |range| {
            assert!(range.offset.is_multiple_of(PAGE) && range.bytes.is_multiple_of(PAGE));
            let pages = range.offset / PAGE..(range.offset + range.bytes) / PAGE;
            pages.for_each(|page| changed[page as usize] = true);
            true
        });
        self.world.run(comparing).unwrap();
        self.world.close(from);
        self.world.close(to);
        changed
    }

    /// Adopts the pages and snapshots that a crash left.
    pub(crate) fn settle(&self, drive: &Drive) {
        let state = &mut *self.state.borrow_mut();
        for (page, version) in (0..).zip(&mut state.versions) {
            let read = self.world.read(drive, page * PAGE, PAGE as usize).unwrap();
            let is_it = |version: &u32| content(page, *version) == read;
            *version = (0..=*version).rev().find(is_it).expect("a page has one of its versions");
        }
        let found: Vec<String> = drive.snapshots().into_iter().map(|info| info.name).collect();
        let missing = state.kept.iter().filter(|(name, _)| !found.contains(name)).count();
        assert!(missing <= 1, "only the newest may be missing: {found:?}");
        state.kept.retain(|(name, _)| found.contains(name));
    }
}

impl State {
    fn keep(&mut self, name: String) {
        let versions = self.versions.clone();
        self.kept.push_back((name, versions));
    }
}

/// Returns the number of entries that lead into a segment.
fn leading_into(drive: &Drive, segment: SegmentId) -> usize {
    let core = drive.core();
    let of = SegmentUse { segment, generation: core.space().generation(segment) };
    core.forwards().leading_to(of, 0..=u32::MAX).count()
}

fn view(world: &World, name: &str) -> Rc<Drive> {
    let options = OpenOptions::default();
    let opening = Drive::open_snapshot(world.medium(), world.runtime.clock(), name, options);
    world.run(opening).unwrap()
}

/// Without emptying, they occupied 8.4 times the bytes that they hold after this week, and more
/// each day.
#[test]
fn a_week_of_hourly_snapshots_costs_only_retained_data() {
    let (database, mut drive) = Database::new(18, 1);
    let (mut shares, mut victims) = (Vec::new(), 0);
    for hour in 0..7 * 24 {
        database.world.run(database.pass_an_hour(&drive, hour));
        if database.kept() > DAY {
            database.world.run(database.delete(&drive, 0));
        }
        if hour % 24 == 23 {
            let (named, kept) = (database.named_bytes(), drive.info().snapshot_bytes);
            shares.push(kept as f64 / named as f64);
            victims += drive.info().operations.gc_victims;
            drive = database.world.reopen(drive);
        }
    }
    database.world.run(drive.compact(10)).unwrap();
    let (named, kept) = (database.named_bytes(), drive.info().snapshot_bytes);
    shares.push(kept as f64 / named as f64);
    assert!(victims > 20, "too tame a test");
    database.world.close(drive);
    database.compare();
    assert!(shares.iter().all(|share| *share < 2.7), "{shares:?}");
    assert!(shares.last().is_some_and(|share| *share < 1.8), "compacted: {shares:?}");
}

/// A month of daily snapshots that were never thinned out, and then are thinned out in one step.
#[test]
fn thirty_snapshots_at_once_are_kept_and_deleted_under_garbage_collection() {
    let (database, mut drive) = Database::new(20, 3);
    for hour in 0..80 {
        database.world.run(database.pass_an_hour(&drive, hour));
        if database.kept() > 30 {
            database.world.run(database.delete(&drive, 0));
        }
    }
    assert_eq!(database.kept(), 30);
    assert!(drive.core().forwards().is_used(), "too tame a test: nothing was moved");
    database.world.close(drive);
    database.compare();
    drive = database.world.open();
    let gone: Vec<String> = {
        let kept = &mut database.state.borrow_mut().kept;
        // Deletes every second snapshot, so that neighbours take over the data that they shared.
        let gone = (0..15).rev().map(|at| kept.remove(2 * at).expect("thirty").0);
        gone.collect()
    };
    let names: Vec<&str> = gone.iter().map(String::as_str).collect();
    assert_eq!(database.world.run(drive.delete_snapshots(&names)).unwrap().len(), 15);
    for hour in 80..90 {
        database.world.run(database.pass_an_hour(&drive, hour));
    }
    database.world.audit(&drive);
    database.world.close(drive);
    database.compare();
}

#[test]
fn snapshots_deleted_in_any_order_leave_the_others_as_they_were() {
    for seed in 0..3 {
        let (database, mut drive) = Database::new(20, seed);
        let mut random = random(seed);
        for hour in 0..80 {
            let world = &database.world;
            world.run(database.pass_an_hour(&drive, hour));
            if database.kept() > 16 {
                let at = random.random_range(0..database.kept());
                world.run(database.delete(&drive, at));
            }
            if random.random_range(0..8) == 0 {
                world.audit(&drive);
                world.run(drive.flush()).unwrap();
                world.kill(drive);
                drive = world.open();
                world.audit(&drive);
            }
        }
        assert!(drive.core().forwards().is_used(), "too tame a test");
        drive = database.world.reopen(drive);
        database.world.close(drive);
        database.compare();
        let drive = database.world.open();
        while database.kept() > 0 {
            let at = random.random_range(0..database.kept());
            database.world.run(database.delete(&drive, at));
        }
        assert!(!drive.core().space().has_retained(), "nothing is needed any more");
        assert!(!drive.core().forwards().is_used(), "no table is needed any more");
        database.world.run(drive.checkpoint()).unwrap();
        database.world.audit(&drive);
        database.world.close(drive);
        database.compare();
    }
}

#[test]
fn a_segment_is_freed_after_the_checkpoint_that_has_its_table() {
    let (database, drive) = Database::of_two_hours(20, 7);
    let world = &database.world;
    let victim = SegmentId(0);
    assert!(drive.core().space().is_retained(victim), "a snapshot needs the first segment");
    world.run(drive.empty_retained(victim)).unwrap();
    assert!(!drive.core().space().is_retained(victim), "it was emptied");
    assert!(drive.core().space().last_seq(victim) > drive.core().checkpoints().checkpointed());
    assert!(!drive.core().empty_segments().contains(&victim), "no checkpoint has its table");
    world.run(drive.flush()).unwrap();
    let copy = Database { world: world.copy(), state: database.state.clone() };
    copy.compare();
    while !drive.core().empty_segments().contains(&victim) {
        world.run(drive.checkpoint()).unwrap();
    }
    let copy = Database { world: world.copy(), state: database.state.clone() };
    copy.compare();
    world.kill(drive);
    let drive = world.open();
    let (place, generation) = {
        let core = drive.core();
        let kept = &core.snapshots().kept()[0];
        assert!(kept.named.contains(victim) && !kept.retained.contains(victim), "{kept:?}");
        assert!(core.forwards().is_emptied(victim, kept.entry.watermark));
        let copied = *core.forwards().copies().next().expect("a copy");
        (copied.to, core.space().generation(copied.to.segment))
    };
    assert_eq!(place.generation, generation, "copies are in the present use of a segment");
    world.close(drive);
    database.compare();
}

#[test]
fn a_copy_that_is_copied_again_is_found_after_its_first_segment_is_free() {
    let (database, drive) = Database::new(20, 7);
    let world = &database.world;
    world.close(drive);
    let drive = world.open_without_collector();
    world.run(database.pass_an_hour(&drive, 0));
    world.run(database.pass_an_hour(&drive, 1));
    let mut of_copies = 0;
    for _ in 0..2 {
        for victim in (0..20).map(SegmentId) {
            let is_victim = {
                let core = drive.core();
                let space = core.space();
                let (stream, generation) = (space.stream(victim), space.generation(victim));
                let is_sealed = !space.is_open(victim, stream, generation);
                is_sealed && stream != Stream::Meta && space.is_retained(victim)
            };
            if !is_victim {
                continue;
            }
            of_copies += leading_into(&drive, victim);
            world.run(drive.empty_retained(victim)).unwrap();
            while !drive.core().empty_segments().contains(&victim) {
                world.run(drive.checkpoint()).unwrap();
            }
            world.run(drive.flush()).unwrap();
            drive.with_core(|core| core.free_segment(victim));
            world.run(drive.audit_snapshots()).unwrap();
        }
    }
    assert!(of_copies > 100, "too tame a test: {of_copies}");
    for copied in drive.core().forwards().copies() {
        let generation = drive.core().space().generation(copied.to.segment);
        assert_eq!(copied.to.generation, generation, "copies are in uses of today");
    }
    world.run(drive.flush()).unwrap();
    world.kill(drive);
    let drive = world.open();
    world.audit(&drive);
    world.close(drive);
    database.compare();
}

/// Tests the check itself: the audit reports a snapshot that lost data, with the block and its
/// location.
#[test]
fn an_audit_reports_the_lost_data_of_a_snapshot() {
    let (database, drive) = Database::of_two_hours(20, 7);
    let (world, victim) = (&database.world, SegmentId(0));
    let first = world.run(drive.audit_snapshots()).unwrap();
    assert!(first.snapshots == 2 && first.reads > PAGES && first.runs > first.reads, "{first:?}");
    let again = world.run(drive.audit_snapshots()).unwrap();
    assert_eq!(again, KeptAudit { reads: 0, ..first });
    let audit = |drive: &Drive| {
        let error = world.run(drive.audit_snapshots()).unwrap_err();
        assert_eq!((error.kind(), error.segment()), (ErrorKind::Corrupt, None), "{error}");
        error.to_string()
    };
    // The victim has no live data left, and its content was copied for no snapshot.
    database.overwrite(&drive, 0..700);
    reap_all(&drive);
    let emptying = drive.core().begin_emptying(victim).expect("nothing keeps it");
    assert!(drive.with_core(|core| core.end_emptying(&emptying)), "too tame a test");
    let found = audit(&drive);
    let is_named = found.starts_with("snapshot hour 0: block ") && found.contains("segment 0 at");
    assert!(is_named && found.ends_with("the segment is not retained for the snapshot"), "{found}");
    world.kill(drive);
    let drive = world.open_without_collector();
    world.run(drive.audit_snapshots()).unwrap();
    world.kill(drive);
    world.flip_for_good(0, 2 << 20);
    let drive = world.open_without_collector();
    let found = audit(&drive);
    assert!(found.starts_with("snapshot hour ") && found.contains(" of segment 0 at "), "{found}");
    world.kill(drive);
}

/// Copies wait in a buffer for more, and a view reads the medium.
#[test]
fn a_view_reads_copies_that_are_not_on_the_medium_yet() {
    let (database, drive) = Database::of_two_hours(20, 7);
    let world = &database.world;
    world.run(drive.empty_retained(SegmentId(0))).unwrap();
    let are_in_memory = {
        let core = drive.core();
        core.forwards().copies().any(|copied| core.log().in_memory(copied.address()).is_some())
    };
    assert!(are_in_memory, "too tame a test: all is on the medium");
    database.compare_open(&drive);
    world.kill(drive);
}

/// Later snapshots refer to the copy of live data, and tables lead older ones to it.
#[test]
fn a_copy_that_snapshots_name_and_tables_lead_to_is_copied_for_all_of_them() {
    let (database, drive) = Database::new(40, 8);
    let world = &database.world;
    world.close(drive);
    let drive = world.open_without_collector();
    world.run(database.pass_an_hour(&drive, 0));
    database.empty(&drive, SegmentId(0));
    let copies: BTreeSet<SegmentId> =
        drive.core().forwards().copies().map(|copied| copied.to.segment).collect();
    world.run(database.pass_an_hour(&drive, 1));
    database.overwrite(&drive, 0..250);
    world.run(database.pass_an_hour(&drive, 2));
    // The stream leaves that segment.
    database.empty(&drive, SegmentId(1));
    database.empty(&drive, SegmentId(2));
    for segment in copies.into_iter().take(1) {
        assert!(leading_into(&drive, segment) > 0, "too tame a test");
        database.empty(&drive, segment);
    }
    database.compare_open(&drive);
    world.kill(drive);
    database.compare();
}

/// Crashes at moments spread over several hours in which segments are emptied.
#[test]
fn power_loss_while_segments_are_emptied_changes_no_snapshot() {
    let (database, drive) = Database::new(15, 5);
    for hour in 0..40 {
        database.world.run(database.pass_an_hour(&drive, hour));
        if database.kept() > 12 {
            database.world.run(database.delete(&drive, 0));
        }
    }
    database.world.close(drive);
    let mut victims = 0;
    for step in 0..12_u64 {
        let world = World { seed: step, ..database.world.copy() };
        let copy = Database { world, state: database.state.clone() };
        let drive = copy.world.open();
        let plan = FaultPlan { latency_ns: 1_000_000..=1_000_000, ..FaultPlan::default() };
        drive.layers().set_plan(plan);
        let hours = async {
            for hour in 100.. {
                copy.pass_an_hour(&drive, hour).await;
                let oldest = copy.state.borrow().kept[0].0.clone();
                drive.delete_snapshot(&oldest).await.unwrap();
                copy.state.borrow_mut().kept.pop_front();
            }
        };
        copy.world.run(copy.world.runtime.timeout(step * 74_000_000, hours));
        victims += drive.info().operations.gc_victims;
        copy.world.run(drive.layers().crash()).unwrap();
        copy.world.kill(drive);
        let drive = copy.world.open();
        copy.settle(&drive);
        copy.world.audit(&drive);
        copy.world.close_without_checkpoint(drive);
        copy.compare();
        let drive = copy.world.open();
        for hour in 200..204 {
            copy.world.run(copy.pass_an_hour(&drive, hour));
            copy.world.run(copy.delete(&drive, 0));
        }
        copy.world.audit(&drive);
        copy.world.close(drive);
        copy.compare();
    }
    assert!(victims > 10, "too tame a test: {victims}");
}
