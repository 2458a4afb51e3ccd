//! One life of a drive: it is opened, compared, used by several concurrent hosts, and closed, or it
//! crashes at any point.
//!
//! A life does not decide what happens to the medium afterwards: `world` does.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use futures_util::future::join;
use rand::{Rng, RngExt};

use super::crash_point::CrashAt;
use super::host::{Habits, Host};
use super::medium::{Layers, TracedMedium};
use super::oracle::{Found, Mismatch};
use super::retention::ROUNDS;
use super::scene::{Farewell, Faults, Scene};
use pumice_drive::base::seed::Random;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::controller::{Audit, Drive, OpenOptions};
use pumice_drive::media::Geometry;
use pumice_drive::media::layer::{FaultPlan, Trigger};

/// Limit on the virtual time of a life, after which a request counts as waiting forever: an hour,
/// although no request should take more than seconds.
const LIFE_NS_MAX: u64 = 3_600_000_000_000;

/// Length of the reads that compare the whole disk, in bytes.
pub(super) const COMPARED_AT_ONCE: usize = 256 << 10;

/// The plan of a life.
#[derive(Clone)]
pub(super) struct Plan {
    /// Crash while the drive opens or serves.
    pub(super) crash: CrashAt,
    /// Crash while the drive closes.
    pub(super) crash_closing: CrashAt,
    /// Number of concurrent hosts.
    pub(super) hosts: u32,
    /// Requests of all hosts together.
    pub(super) requests: u64,
    /// Behaviour of the hosts.
    pub(super) habits: Habits,
    /// Options for opening the drive.
    pub(super) options: OpenOptions,
    /// Faults of the medium while the drive opens.
    pub(super) opening: FaultPlan,
    /// Faults of the medium while the drive serves and closes.
    pub(super) serving: FaultPlan,
    /// Whether reads fail or return wrong bits while the drive opens, so that opening may fail.
    pub(super) may_be_refused: bool,
    /// Whether the world's hazards damage the medium once the drive is open.
    pub(super) may_be_damaged: bool,
    /// Operations that may fail because of the medium while the drive serves.
    pub(super) faults: Faults,
    /// A wrong bit in one read of the opening: the number of reads before it, and the random number
    /// that selects it.
    pub(super) misread: Option<(u64, u64)>,
    /// Maximum number of batches at the end of the log that the medium may lose or damage.
    pub(super) lost_batches: u32,
}

impl Plan {
    /// Returns whether only writes to unwritable sectors fail.
    pub(super) fn is_sound(&self) -> bool {
        let FaultPlan { append_errors, sync_errors, .. } = self.serving;
        append_errors == Trigger::Never && sync_errors == Trigger::Never
    }
}

/// The stage that a life has reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// The drive is not open.
    #[default]
    Opening,
    /// Hosts are served.
    Serving,
    /// The drive is being closed.
    Closing,
    /// The drive was closed cleanly.
    Closed,
    /// The drive was closed after a failure of the medium had poisoned it.
    Poisoned,
}

/// A running life.
pub(super) struct Life {
    /// The state that all parts of the world share.
    pub(super) scene: Rc<Scene>,
    /// The medium.
    pub(super) layers: Rc<Layers>,
    /// The stage it has reached.
    pub(super) stage: Cell<Stage>,
    /// The drive, once it is open.
    pub(super) drive: RefCell<Option<Rc<Drive>>>,
}

impl Life {
    /// Returns a life that has not begun.
    pub(super) fn new(scene: Rc<Scene>, layers: Rc<Layers>) -> Self {
        Self { scene, layers, stage: Cell::default(), drive: RefCell::default() }
    }

    /// Returns a handle on the medium for a drive.
    pub(super) fn medium(&self) -> TracedMedium {
        TracedMedium {
            layers: self.layers.clone(),
            crash_point: self.scene.crash_point.clone(),
            trace: self.scene.trace.clone(),
            misread: self.scene.misread.clone(),
            in_flight: self.scene.in_flight.clone(),
            audits: self.scene.audits.clone(),
            clock: self.scene.runtime.clone(),
        }
    }

    /// Runs the life to its end, unless it crashes.
    pub(super) async fn live(&self, plan: &Plan, random: &mut Random) -> Result<(), Mismatch> {
        self.layers.set_plan(plan.opening.clone());
        self.scene.misread.set(plan.misread);
        let opened = self.open(plan.options).await;
        if plan.misread.is_some() && !self.scene.misread.is_set() {
            self.scene.tally.borrow_mut().misreads += 1;
        }
        self.scene.misread.set(None);
        let drive = match opened {
            Ok(drive) => drive,
            Err(error) if plan.may_be_refused && is_of_a_read(&error) => {
                self.scene.tally.borrow_mut().refusals += 1;
                return Ok(());
            }
            Err(error) if self.scene.is_damaged.get() && is_of_a_read(&error) => {
                self.scene.tally.borrow_mut().refusals += 1;
                self.scene.was_refused.set(true);
                return Ok(());
            }
            Err(error) => {
                let promised = "the drive opens".to_owned();
                return Err(Mismatch { promised, found: error.chain() });
            }
        };
        self.layers.set_plan(FaultPlan::default());
        self.drive.replace(Some(drive.clone()));
        self.compare(&drive, plan).await?;
        if plan.may_be_damaged {
            self.damage(&drive, random).await;
        }
        self.stage.set(Stage::Serving);
        self.scene.start_tasks();
        self.scene.faults.set(plan.faults);
        self.layers.set_plan(plan.serving.clone());
        self.serve(&drive, plan, random).await?;
        self.stage.set(Stage::Closing);
        self.scene.count_progress();
        self.scene.crash_point.set(plan.crash_closing);
        let Some(closed) = self.scene.runtime.timeout(LIFE_NS_MAX, drive.close()).await else {
            let found = "it does not complete".to_owned();
            return Err(Mismatch { promised: "the drive closes".to_owned(), found });
        };
        self.scene.crash_point.set(CrashAt::Never);
        match closed {
            Ok(()) => {
                let taken = self.scene.oracle.borrow().taken();
                self.scene.oracle.borrow_mut().promise(taken);
                self.layers.set_plan(FaultPlan::default());
                let audit = self.audit(&drive).await?;
                self.scene.farewell.set(audit.map(|audit| Farewell { audit, is_last: true }));
                self.stage.set(Stage::Closed);
                Ok(())
            }
            Err(error) if plan.faults.of_writes && error.kind() != ErrorKind::Busy => {
                self.stage.set(Stage::Poisoned);
                Ok(())
            }
            Err(error) => {
                Err(Mismatch { promised: "the drive closes".to_owned(), found: error.chain() })
            }
        }
    }

    /// Opens the drive; its tasks wait for [`Scene::start_tasks`].
    pub(super) async fn open(&self, options: OpenOptions) -> Result<Rc<Drive>> {
        let drive = Drive::open(Rc::new(self.medium()), self.scene.clock(), options).await?;
        if let Some(workers) = self.scene.workers.get() {
            drive.use_workers(workers.clone());
        }
        self.set_origin(&drive).await?;
        Ok(drive)
    }

    /// Lets a drive read from its origin, if it is a clone.
    async fn set_origin(&self, drive: &Drive) -> Result<()> {
        let origin = self.scene.origin.borrow().clone();
        let (Some(wanted), Some(layers)) = (drive.origin(), origin) else { return Ok(()) };
        let medium = TracedMedium {
            layers,
            misread: Rc::default(),
            in_flight: Rc::default(),
            audits: Rc::default(),
            ..self.medium()
        };
        let options = OpenOptions { read_cache_bytes: 0, ..OpenOptions::default() };
        let (clone, clock) = (drive.uuid(), self.scene.clock());
        let opening = Drive::open_origin(Rc::new(medium), clock, clone, &wanted, options);
        drive.set_origin(opening.await?)
    }

    /// Damages the data on the medium. From now on, reads may fail.
    async fn damage(&self, drive: &Drive, random: &mut Random) {
        let info = drive.info();
        let geometry = Geometry {
            segment_bytes: info.segment_bytes,
            segment_count: info.segment_count,
            data_offset: 0,
        };
        let mut damage = std::mem::take(&mut *self.scene.damage.borrow_mut());
        let places = damage.strike(random, &self.layers, &geometry, self.scene.hazards).await;
        self.scene.damage.replace(damage);
        self.scene.tally.borrow_mut().damaged_places += u64::from(places);
        if places > 0 {
            self.scene.is_damaged.set(true);
        }
    }

    /// Adopts the size of the disk; a resize that was under way has taken effect or not.
    fn take_size(&self, drive: &Drive) -> Result<(), Mismatch> {
        let mut oracle = self.scene.oracle.borrow_mut();
        let (size, floor) = (drive.size_bytes(), self.scene.size_floor.get());
        if size < floor || size as usize > oracle.bytes() || !oracle.shrink(size as usize) {
            return Err(Mismatch {
                promised: format!("a disk of {floor} to {} bytes", oracle.bytes()),
                found: format!("a disk of {size} bytes"),
            });
        }
        self.scene.size_floor.set(size);
        Ok(())
    }

    /// Compares the disk and the accounts of a drive that was just opened.
    async fn compare(&self, drive: &Drive, plan: &Plan) -> Result<(), Mismatch> {
        self.take_size(drive)?;
        let audit = self.audit(drive).await?;
        if let Some(farewell) = self.scene.farewell.take()
            && let Some(audit) = audit
            && !self.scene.is_damaged.get()
            && (farewell.audit != audit || farewell.is_last && !drive.info().was_clean)
        {
            return Err(Mismatch {
                promised: format!("the accounts of the previous life: {:?}", farewell.audit),
                found: format!("{audit:?}, closed in order: {}", drive.info().was_clean),
            });
        }
        let mut disk = vec![0xa5; drive.size_bytes() as usize];
        let unreadable = read_all(&self.scene, drive, &mut disk).await?;
        let (taken, durable) = {
            let oracle = self.scene.oracle.borrow();
            (oracle.taken(), oracle.durable())
        };
        let found = Found { bytes: &disk, unreadable: &unreadable };
        let lost_batches = self.scene.lost_batches.take().max(u32::from(plan.misread.is_some()));
        let found_snapshots = drive.snapshots();
        let floor = self.scene.settle_snapshots(&found_snapshots, plan.may_be_refused)?;
        let floor = floor.max(self.scene.oracle.borrow().vouched(lost_batches));
        let settled = self.scene.oracle.borrow_mut().settle(found, floor)?;
        assert_eq!(settled.kept + settled.lost, taken);
        self.scene.trace.add_bytes(&disk);
        let mut tally = self.scene.tally.borrow_mut();
        tally.unreadable_blocks += unreadable.len() as u64;
        tally.changes_kept += settled.kept.saturating_sub(durable) as u64;
        tally.changes_lost += settled.lost as u64;
        Ok(())
    }

    /// Serves hosts, in one round or several, then audits the accounts.
    async fn serve(
        &self,
        drive: &Rc<Drive>,
        plan: &Plan,
        random: &mut Random,
    ) -> Result<(), Mismatch> {
        if plan.lost_batches > 0 {
            self.scene.is_damaged.set(true);
        }
        let rounds = match plan.habits.retains {
            true => random.random_range(ROUNDS),
            false => 1,
        };
        let share = plan.requests.div_ceil(rounds);
        self.scene.allow_requests(share);
        self.prepare(drive, plan, random).await?;
        for _ in 0..rounds {
            self.run_hosts(drive, plan, random).await?;
            // Segments are emptied before the disk is rolled back, or meanwhile.
            let mut emptier = None;
            if plan.habits.retains {
                let seed = random.next_u64();
                let host = Host::new(drive.clone(), self.scene.clone(), plan.habits, seed);
                match seed % 2 {
                    0 => host.empty_in_part().await?,
                    _ => emptier = Some(host),
                }
            }
            let rolling_back = async {
                match plan.is_sound() && plan.serving.no_space_errors == Trigger::Never {
                    true => self.roll_back(drive, random).await,
                    false => Ok(()),
                }
            };
            let emptying = async {
                match emptier {
                    Some(host) => host.empty_in_part().await,
                    None => Ok(()),
                }
            };
            let (rolled_back, emptied) = join(rolling_back, emptying).await;
            rolled_back.and(emptied)?;
            if plan.habits.retains {
                self.scene.audit_snapshots(drive)?;
            }
            self.scene.allow_requests(share);
        }
        // Half of the lives close immediately, the rest give the background tasks some idle time.
        if random.random() {
            self.scene.sleep(random.random_range(0..3_000_000_000)).await;
        }
        self.scene.judge_memory(&drive.info())?;
        self.layers.set_plan(FaultPlan::default());
        self.audit(drive).await?;
        self.layers.set_plan(plan.serving.clone());
        Ok(())
    }

    /// Runs all hosts until no request is left.
    async fn run_hosts(
        &self,
        drive: &Rc<Drive>,
        plan: &Plan,
        random: &mut Random,
    ) -> Result<(), Mismatch> {
        let left = Rc::new(Cell::new(plan.hosts));
        let ended = Rc::new(WaitQueue::default());
        for _ in 0..plan.hosts {
            let scene = self.scene.clone();
            let host = Host::new(drive.clone(), scene, plan.habits, random.next_u64());
            let (left, ended) = (left.clone(), ended.clone());
            self.scene.spawn(async move {
                host.run().await;
                left.set(left.get() - 1);
                ended.wake_all();
            });
        }
        let all_ended = ended.wait_for(|| (left.get() == 0).then_some(()));
        if self.scene.runtime.timeout(LIFE_NS_MAX, all_ended).await.is_none() {
            return Err(Mismatch {
                promised: "every request ends".to_owned(),
                found: format!("{} hosts still wait", left.get()),
            });
        }
        Ok(())
    }

    /// Lets a host prepare the disk for ageing, once in a world.
    async fn prepare(
        &self,
        drive: &Rc<Drive>,
        plan: &Plan,
        random: &mut Random,
    ) -> Result<(), Mismatch> {
        if !plan.habits.ages || self.scene.is_prepared.replace(true) {
            return Ok(());
        }
        let seed = random.next_u64();
        Host::new(drive.clone(), self.scene.clone(), plan.habits, seed).prepare().await
    }

    /// Compares the drive's accounts with a recount from its map; returns nothing if damage
    /// prevents the recount. Also audits the snapshots.
    async fn audit(&self, drive: &Drive) -> Result<Option<Audit>, Mismatch> {
        self.scene.audit_snapshots(drive)?;
        let wrong = |found: String| Mismatch {
            promised: "the accounts equal a recount, and no space is leaked".to_owned(),
            found,
        };
        let audited = self.scene.runtime.timeout(LIFE_NS_MAX, drive.audit()).await;
        let audited = audited.ok_or_else(|| wrong("the audit does not complete".to_owned()))?;
        match audited {
            Ok(audit) => Ok(Some(audit)),
            // A wrong account has no location.
            Err(error) if self.scene.is_damaged.get() && has_location(&error) => Ok(None),
            Err(error) => Err(wrong(error.chain())),
        }
    }
}

/// Returns whether an error or one of its causes names a location on the medium.
fn has_location(error: &Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<Error>().is_some_and(|error| error.segment().is_some()) {
            return true;
        }
        cause = error.source();
    }
    // A failed read of the medium names none.
    error.kind() == ErrorKind::Medium
}

/// Reads the whole disk; returns the blocks that cannot be read because of damage.
pub(super) async fn read_all(
    scene: &Scene,
    drive: &Drive,
    disk: &mut [u8],
) -> Result<BTreeSet<usize>, Mismatch> {
    let may_be_of_damage = |error: &Error| {
        if scene.is_damaged.get() && is_of_a_read(error) {
            return Ok(());
        }
        let promised = "the whole disk can be read".to_owned();
        Err(Mismatch { promised, found: error.chain() })
    };
    let mut unreadable = BTreeSet::new();
    for (index, part) in disk.chunks_mut(COMPARED_AT_ONCE).enumerate() {
        let offset = index * COMPARED_AT_ONCE;
        let Err(error) = drive.read(offset as u64, part).await else { continue };
        may_be_of_damage(&error)?;
        for (number, block) in part.chunks_mut(BLOCK_BYTES).enumerate() {
            let offset = offset + number * BLOCK_BYTES;
            let Err(error) = drive.read(offset as u64, block).await else { continue };
            may_be_of_damage(&error)?;
            unreadable.insert(offset / BLOCK_BYTES);
        }
    }
    Ok(unreadable)
}

/// Returns whether an error comes from a read: from the medium, or from the data it returned.
pub(super) fn is_of_a_read(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Medium | ErrorKind::Corrupt)
}
