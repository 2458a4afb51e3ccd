//! The state that all parts of a world share: clock, crash point, oracle, counters, and the first
//! violation.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use uuid::Uuid;

use super::audits::Audits;
use super::crash_point::CrashPoint;
use super::crowd::Crowd;
use super::damage::Damage;
use super::frozen::Frozens;
use super::gauge::{self, InFlight};
use super::hazard::{Hazard, Hazards};
use super::medium::{Layers, Misread};
use super::oracle::{Image, Mismatch, Oracle};
use super::outbox::Outbox;
use super::registry::{Clones, Nest};
use super::tally::Tally;
use super::trace::Trace;
use super::verb::Verb;
use pumice_drive::base::clock::{self, Spawn, Task};
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::{Clock, ErrorKind, Result};
use pumice_drive::codec::{Codec, Workers};
use pumice_drive::controller::{Audit, Drive, Info, OpenOptions, SnapshotInfo};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::runtime::Runtime;

/// The clock of a drive under torture. It holds back the tasks that the drive spawns until
/// [`Scene::start_tasks`], so that the disk and the accounts can be judged as they were found.
#[derive(Clone)]
pub(super) struct TorturedClock {
    runtime: Runtime,
    held: Rc<RefCell<Vec<Task>>>,
}

impl Clock for TorturedClock {
    fn now_ns(&self) -> u64 {
        self.runtime.now_ns()
    }

    fn sleep_ns(&self, ns: u64) -> impl Future<Output = ()> {
        self.runtime.sleep_ns(ns)
    }
}

impl Spawn for TorturedClock {
    fn spawn(&self, task: Task) {
        self.held.borrow_mut().push(task);
    }
}

/// Number of trims that a full drive must still accept: its reserve is one segment, and the
/// smallest segment holds over a thousand batches of one trim each. This is half of that, to allow
/// for batches that are cut short.
const TRIMS_WHEN_FULL: u64 = 500;

/// Failures of the medium that are possible in the current life.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// Appends or syncs fail: writes and flushes may fail permanently.
    pub(super) of_writes: bool,
    /// Reads of the medium fail, or flip a bit.
    pub(super) of_reads: bool,
}

/// Limits of a drive of the world, and the promises relaxed for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Whether the drive may run out of space.
    pub(super) may_fill_up: bool,
    /// Whether damage must not spread: writing a whole block over unreadable data succeeds, and
    /// garbage collection continues.
    pub(super) is_strict: bool,
    /// The codec of new data; `None` if compressible data may be stored uncompressed.
    pub(super) codec: Option<Codec>,
    /// Budget of the map's leaves.
    pub(super) map_cache_bytes: u64,
    /// Longest time of an operation of the medium.
    pub(super) latency_ns: u64,
    /// Segments that fit on the medium.
    pub(super) segments_max: u32,
}

/// The state that the next life must find after a clean close.
#[derive(Clone, Copy, Debug)]
pub(super) struct Farewell {
    /// The accounts at the close.
    pub(super) audit: Audit,
    /// Whether no opening of the drive has been attempted since.
    pub(super) is_last: bool,
}

/// A clone, and the world in which it is used.
pub(super) struct TorturedClone {
    pub(super) uuid: Uuid,
    pub(super) scene: Rc<Scene>,
    pub(super) memory: MemMedium,
    pub(super) layers: RefCell<Rc<Layers>>,
    pub(super) options: OpenOptions,
    /// Whether one of its lives is running.
    pub(super) is_used: Cell<bool>,
    /// Whether it is known to need no origin.
    pub(super) is_flat: Cell<bool>,
}

/// The shared state of one world.
pub(super) struct Scene {
    /// Virtual time.
    pub(super) runtime: Runtime,
    /// Ends a life.
    pub(super) crash_point: Rc<CrashPoint>,
    /// Fingerprint of all events.
    pub(super) trace: Rc<Trace>,
    pub(super) oracle: RefCell<Oracle>,
    /// The snapshots, and their expected content.
    pub(super) snapshots: RefCell<Frozens>,
    /// Clones of the snapshots.
    pub(super) clones: RefCell<Clones>,
    /// The clone that hosts use.
    pub(super) used_clone: RefCell<Option<Rc<TorturedClone>>>,
    /// From the previous life.
    pub(super) farewell: Cell<Option<Farewell>>,
    /// The layers of the running life.
    pub(super) layers: RefCell<Option<Rc<Layers>>>,
    /// The layers of the origin, if the drive is a clone.
    pub(super) origin: RefCell<Option<Rc<Layers>>>,
    /// The tasks of the drive, if it is a clone.
    pub(super) nest: Option<Nest>,
    /// Snapshots that hosts have sent.
    pub(super) outbox: RefCell<Outbox>,
    /// Counters.
    pub(super) tally: RefCell<Tally>,
    /// Failures that are possible in this life.
    pub(super) faults: Cell<Faults>,
    /// The hazards of the world.
    pub(super) hazards: Hazards,
    /// Damage to the medium.
    pub(super) damage: RefCell<Damage>,
    /// Whether stored bytes are or were damaged, so that reads may fail.
    pub(super) is_damaged: Cell<bool>,
    /// Number of batches at the end of the log that damage may have hit.
    pub(super) lost_batches: Cell<u32>,
    /// Whether the last opening was refused because of damage.
    pub(super) was_refused: Cell<bool>,
    /// Whether the disk was filled for ageing.
    pub(super) is_prepared: Cell<bool>,
    /// Number of lives ended by an unwritable sector.
    pub(super) ended_by_sectors: Cell<u32>,
    /// Durable size of the disk.
    pub(super) size_floor: Cell<u64>,
    /// In some worlds, the tasks themselves compress frames before appending them.
    pub(super) workers: OnceCell<Workers>,
    /// A wrong bit that the next opening reads.
    pub(super) misread: Rc<Misread>,
    /// Buffers that operations of the medium hold.
    pub(super) in_flight: Rc<InFlight>,
    /// Audits of snapshots.
    pub(super) audits: Rc<Audits>,
    /// In some worlds, other users who fill the file system.
    pub(super) crowd: OnceCell<Crowd>,
    limits: Limits,
    held: Rc<RefCell<Vec<Task>>>,
    verdict: RefCell<Option<Mismatch>>,
    requests: Cell<u64>,
    requests_left: Cell<u64>,
    trims_when_full: Cell<Option<u64>>,
}

impl Scene {
    /// Creates the state before the first life.
    pub(super) fn new(disk_bytes: u64, hazards: Hazards, limits: Limits) -> Self {
        Self {
            runtime: Runtime::simulated(),
            crash_point: Rc::default(),
            trace: Rc::default(),
            oracle: RefCell::new(Oracle::new(disk_bytes as usize)),
            snapshots: RefCell::default(),
            clones: RefCell::new(Clones::new(0)),
            used_clone: RefCell::default(),
            farewell: Cell::default(),
            layers: RefCell::default(),
            origin: RefCell::default(),
            nest: None,
            outbox: RefCell::default(),
            tally: RefCell::default(),
            faults: Cell::default(),
            hazards,
            damage: RefCell::default(),
            is_damaged: Cell::new(false),
            lost_batches: Cell::new(0),
            was_refused: Cell::new(false),
            is_prepared: Cell::new(false),
            ended_by_sectors: Cell::new(0),
            workers: OnceCell::new(),
            size_floor: Cell::new(disk_bytes),
            misread: Rc::default(),
            in_flight: Rc::default(),
            audits: Rc::default(),
            crowd: OnceCell::new(),
            limits,
            held: Rc::default(),
            verdict: RefCell::default(),
            requests: Cell::new(0),
            requests_left: Cell::new(0),
            trims_when_full: Cell::new(None),
        }
    }

    /// Creates the scene of a clone whose disk begins as `image`. It shares the clock and the trace
    /// of the world.
    pub(super) fn of_clone(world: &Self, image: Image, limits: Limits) -> Self {
        Self {
            runtime: world.runtime.clone(),
            trace: world.trace.clone(),
            nest: Some(Nest::default()),
            oracle: RefCell::new(Oracle::of(image.clone())),
            ..Self::new(image.len() as u64, Hazards::default(), limits)
        }
    }

    /// Starts a task, which the crash point ends.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let task = self.crash_point.task(task);
        match &self.nest {
            Some(nest) => nest.spawn(Box::pin(task)),
            None => self.runtime.spawn(task),
        }
    }

    /// Returns a clock for a drive.
    pub(super) fn clock(&self) -> Rc<dyn clock::AnyClock> {
        Rc::new(TorturedClock { runtime: self.runtime.clone(), held: self.held.clone() })
    }

    /// Starts the tasks of the drive that was opened last; the crash point ends them.
    pub(super) fn start_tasks(&self) {
        for task in self.held.take() {
            self.spawn(task);
        }
    }

    /// Drops the tasks that were not started.
    pub(super) fn forget_tasks(&self) {
        drop(self.held.take());
    }

    /// Drops all tasks, whether started or not.
    pub(super) fn end_tasks(&self) {
        self.runtime.drop_tasks();
        self.forget_tasks();
    }

    /// Begins a life that may issue `requests` requests.
    pub(super) fn allow_requests(&self, requests: u64) {
        self.requests_left.set(requests);
    }

    /// Returns the number of the next request in the world, from 1; `None` if the life has none
    /// left.
    pub(super) fn next_request(&self) -> Option<u64> {
        self.requests_left.set(self.requests_left.get().checked_sub(1)?);
        self.requests.set(self.requests.get() + 1);
        Some(self.requests.get())
    }

    /// Returns the number of the last request.
    pub(super) fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// Lets virtual time pass.
    pub(super) async fn sleep(&self, ns: u64) {
        self.runtime.sleep_ns(ns).await;
    }

    /// Adds the counters of the crash point to the tally; setting the crash point resets them.
    pub(super) fn count_progress(&self) {
        let mut tally = self.tally.borrow_mut();
        tally.polls += self.crash_point.polls();
        tally.media_operations += self.crash_point.operations();
    }

    /// Ends the life because a promise was broken. Only the first violation is kept.
    pub(super) fn accuse(&self, mismatch: Mismatch) {
        self.verdict.borrow_mut().get_or_insert(mismatch);
        self.crash_point.crash();
    }

    /// Returns the broken promise, if any.
    pub(super) fn verdict(&self) -> Option<Mismatch> {
        self.verdict.take()
    }

    /// Records the end of a request and checks its error.
    pub(super) fn ended(
        &self,
        verb: Verb,
        offset: u64,
        len: u64,
        result: &Result<()>,
    ) -> Result<(), Mismatch> {
        if let Some(crowd) = self.crowd.get() {
            crowd.press();
            crowd.judge()?;
        }
        let kind = result.as_ref().err().map(|error| error.kind());
        let code = kind.map_or(0, |kind| kind as u64 + 1);
        self.trace.add(&[verb as u64, offset, len, code, self.runtime.now_ns()]);
        self.tally.borrow_mut().request(verb, kind);
        let is_trim = matches!(verb, Verb::Trim | Verb::WriteZeroes);
        let faults = self.faults.get();
        let may_fail = match kind {
            None => {
                let trims = self.trims_when_full.get();
                self.trims_when_full.set(trims.map(|trims| trims + u64::from(is_trim)));
                true
            }
            Some(ErrorKind::NoSpace) => self.may_refuse(verb),
            Some(ErrorKind::Poisoned) => faults.of_writes && verb != Verb::Read,
            Some(ErrorKind::Medium | ErrorKind::Corrupt) => {
                // A trim may need to load leaves of the map.
                let is_damaged = self.is_damaged.get() && self.may_need(verb, offset, len);
                (faults.of_reads || is_damaged) && verb != Verb::Flush
            }
            Some(_) => false,
        };
        match result {
            Err(error) if !may_fail => Err(Mismatch {
                promised: format!("{verb:?} of {len} bytes at {offset} succeeds"),
                found: error.chain(),
            }),
            _ => Ok(()),
        }
    }

    /// Returns whether the medium may fail in this life.
    pub(super) fn has_faults(&self) -> bool {
        let Faults { of_writes, of_reads } = self.faults.get();
        of_writes || of_reads || self.is_damaged.get()
    }

    /// Returns the longest time of an operation of the medium.
    pub(super) fn latency_ns(&self) -> u64 {
        self.limits.latency_ns
    }

    /// Returns the number of segments that fit on the medium.
    pub(super) fn segments_max(&self) -> u32 {
        self.limits.segments_max
    }

    /// Returns whether a request may need damaged data.
    fn may_need(&self, verb: Verb, offset: u64, len: u64) -> bool {
        let block = BLOCK_BYTES as u64;
        let is_whole = offset.is_multiple_of(block) && len.is_multiple_of(block);
        match verb {
            Verb::Read => true,
            Verb::Write => !is_whole || !self.limits.is_strict,
            Verb::Trim | Verb::WriteZeroes | Verb::Flush => !self.limits.is_strict,
        }
    }

    /// Checks a refusal for lack of space against the content of the disk.
    pub(super) fn judge_refusal(&self, info: &Info) -> Result<(), Mismatch> {
        if self.hazards.has(Hazard::Snapshots) {
            // Snapshots may hold any part of the space.
            return Ok(());
        }
        let codec = self.limits.codec.unwrap_or(Codec::None);
        let needed = gauge::needed_bytes(&self.oracle.borrow(), codec);
        self.tally.borrow_mut().refused_at(gauge::needed_percent(info, needed));
        // Damaged data may take space for good.
        let cannot_read = self.is_damaged.get() || self.faults.get().of_reads;
        if cannot_read && !self.limits.is_strict {
            return Ok(());
        }
        gauge::judge_refusal(info, needed)
    }

    /// Checks the memory that the drive takes.
    pub(super) fn judge_memory(&self, info: &Info) -> Result<(), Mismatch> {
        let most = self.in_flight.most();
        self.tally.borrow_mut().held_at_most(most);
        gauge::judge_memory(info, most, self.limits.map_cache_bytes)
    }

    /// Checks the time of a request that began at `begun_ns`.
    pub(super) fn judge_time(&self, number: u64, begun_ns: u64) -> Result<(), Mismatch> {
        let ns = self.runtime.now_ns() - begun_ns;
        self.tally.borrow_mut().took_at_most(ns);
        gauge::judge_time(&format!("request {number}"), ns, self.limits.latency_ns)
    }

    /// Audits the snapshots of the drive, if a segment was freed since the last audit.
    pub(super) fn audit_if_due(&self, drive: &Drive) -> Result<(), Mismatch> {
        if self.audits.take_due() { self.audit_snapshots(drive) } else { Ok(()) }
    }

    /// Audits the snapshots of the drive, unless damage explains missing data.
    pub(super) fn audit_snapshots(&self, drive: &Drive) -> Result<(), Mismatch> {
        if !self.hazards.has(Hazard::Snapshots) || self.is_damaged.get() {
            return Ok(());
        }
        self.tally.borrow_mut().audits += 1;
        self.audits.run(drive, self.faults.get().of_reads)
    }

    /// Adopts the snapshots that an opening found; returns the number of changes that the disk must
    /// have because of them.
    pub(super) fn settle_snapshots(
        &self,
        found: &[SnapshotInfo],
        may_be_misread: bool,
    ) -> Result<usize, Mismatch> {
        let is_damaged = self.is_damaged.get() || may_be_misread;
        if !is_damaged {
            self.clones.borrow_mut().settle(found)?;
        }
        self.snapshots.borrow_mut().settle(found, is_damaged)
    }

    /// Returns whether a request may be refused for lack of space.
    fn may_refuse(&self, verb: Verb) -> bool {
        match verb {
            Verb::Write => {
                let trims = self.trims_when_full.get();
                self.trims_when_full.set(trims.or(Some(0)));
                // A victim that cannot be read cannot be emptied; if strict, that must not matter.
                let cannot_read = self.faults.get().of_reads || self.is_damaged.get();
                let may_lack =
                    self.hazards.has(Hazard::Resize) || self.hazards.has(Hazard::Snapshots);
                let Limits { may_fill_up, is_strict, .. } = self.limits;
                may_fill_up || may_lack || cannot_read && !is_strict
            }
            Verb::Trim | Verb::WriteZeroes => {
                // With snapshots, trims also need the reserve of checkpoints.
                self.hazards.has(Hazard::Snapshots)
                    || self.trims_when_full.get().is_some_and(|trims| trims >= TRIMS_WHEN_FULL)
            }
            Verb::Read | Verb::Flush => false,
        }
    }
}
