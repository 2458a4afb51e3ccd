//! One world: a seed, the drive drawn from it, and the lives of that drive.
//!
//! ```text
//! draw geometry, codec, habits -> create -> life -> power loss | kill -9 | close [-> bit rot]
//!                                            ^-------------------------------------------+
//! -> a last life without failures -> check: no problem left
//! ```

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;

use rand::{Rng, RngExt};

use super::chores::{SEGMENTS_TO_GROW, secret};
use super::crash_point::CrashAt;
use super::crowd::{Crowd, SEGMENTS_MORE};
use super::damage::LIVES_PER_SECTOR;
use super::data::Texture;
use super::hazard::{Hazard, Hazards, Weights};
use super::host::{COLD_FIFTHS, Habits};
use super::keep::Keep;
use super::life::{Life, Plan, Stage};
use super::medium::Layers;
use super::oracle::{LOST_BATCHES_MAX, Mismatch};
use super::outbox::Receiving;
use super::registry::Clones;
use super::retention::{self, STEPS_OF_RETENTION};
use super::scene::{Farewell, Faults, Limits, Scene};
use super::tally::Tally;
use super::violation::Violation;
use pumice_drive::base::AlignedBuffer;
use pumice_drive::base::SegmentId;
use pumice_drive::base::seed::{Random, random};
use pumice_drive::codec::{Codec, FrameForm, Workers};
use pumice_drive::controller::{Depth, Locked, OpenOptions, Spec, check, create, new_keys};
use pumice_drive::crypt::{Randomness, SEAL_BYTES};
use pumice_drive::format::CHUNKED_BLOCKS_MAX;
use pumice_drive::media::layer::{FaultPlan, Trigger};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::media::{Geometry, Medium, SUPERBLOCK_SLOTS};

/// The smallest segments of the format: they fill up soonest.
const SEGMENT_BYTES: u32 = 4 << 20;

/// Memory for read-ahead: enough for two readers.
const READ_AHEAD_BYTES: usize = 1 << 20;

/// Additional segments of a drive with snapshots: from none, so that most snapshots are refused, to
/// space for several whole disks.
const SEGMENTS_FOR_SNAPSHOTS: RangeInclusive<u64> = 0..=24;

/// Blocks of a disk that ages.
const AGED_BLOCKS: u64 = 8192;

/// Segments of such a drive that data cannot take: the reserves, and one for each stream.
const AGED_RESERVES: u64 = 8;

/// Requests of a life of a world that ages, as a multiple of the steps.
const STEPS_OF_AGE: u64 = 30;

/// How worlds are drawn from seeds: with its seed, the definition of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Maximum number of requests of a life; a world that ages has thirty times as many.
    pub steps: u64,
    /// The chance of each hazard.
    pub weights: Weights,
    /// Whether damage must not spread: whole blocks can be written and trimmed over unreadable
    /// data, and no drive with space for its data is full.
    pub is_strict: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { steps: crate::STEPS_DEFAULT, weights: Weights::default(), is_strict: false }
    }
}

impl Rules {
    /// Returns the arguments of the program that set the weights and the strictness.
    fn arguments(&self) -> String {
        self.weights.arguments() + if self.is_strict { " --strict" } else { "" }
    }
}

/// The state of a world after a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The drive can be opened again.
    Continues,
    /// The drive is damaged beyond that.
    Over,
}

/// A world between two lives.
pub(super) struct World {
    pub(super) scene: Rc<Scene>,
    pub(super) random: Random,
    pub(super) memory: MemMedium,
    pub(super) geometry: Geometry,
    /// Maximum number of requests of a life.
    steps: u64,
    life: u64,
    pub(super) habits: Habits,
    /// Options for opening the drive.
    pub(super) options: OpenOptions,
    latency_ns_max: u64,
    /// The layer below the drive, if it outlives the last life.
    pub(super) layers: Option<Rc<Layers>>,
    keep: Option<Keep>,
    /// The drive that receives snapshots.
    pub(super) receiving: Receiving,
}

/// Runs the world of one seed. With `keep`, a folder, writes the medium before each life to
/// `world-SEED-life-N.pumice`, the disk that the life found on it to `world-SEED-life-N.img`, and
/// the disk of each snapshot to `world-SEED-life-N.NAME.img`; the first disk is missing if the life
/// ended before that.
///
/// # Errors
/// The first broken promise; a panic of the drive is one, and so is a state that cannot be kept.
pub fn run_world(seed: u64, rules: &Rules, keep: Option<&Path>) -> Result<Tally, Box<Violation>> {
    let mut world = World::new(seed, rules);
    world.keep = keep.map(|folder| Keep { folder: folder.to_owned(), seed });
    let scene = world.scene.clone();
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run()));
    scene.end_tasks();
    let mismatch = match outcome {
        Ok(Ok(())) => {
            let mut tally = scene.tally.take();
            tally.worlds = 1;
            tally.fingerprint = scene.trace.value();
            return Ok(tally);
        }
        Ok(Err(mismatch)) => mismatch,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            Mismatch { promised: "the drive does not panic".into(), found: text.to_owned() }
        }
    };
    Err(Box::new(Violation {
        seed,
        steps: rules.steps,
        arguments: rules.arguments(),
        life: world.life,
        request: scene.requests(),
        promised: mismatch.promised,
        found: mismatch.found,
    }))
}

/// Enlarges a drive, so that most snapshots fit.
fn give_room_for_snapshots(hazards: Hazards, spec: &mut Spec, random: &mut Random) {
    if !hazards.has(Hazard::Snapshots) {
        return;
    }
    if hazards.has(Hazard::Retention) {
        return retention::shape(spec, random);
    }
    let geometry = spec.geometry().expect("worlds are drawn within the limits");
    let more = random.random_range(SEGMENTS_FOR_SNAPSHOTS) * u64::from(SEGMENT_BYTES);
    spec.capacity_bytes = Some(geometry.capacity_bytes() + more);
}

/// Returns the bytes that each frame takes for its seal.
fn seal_bytes(hazards: Hazards) -> u64 {
    if hazards.has(Hazard::Encryption) { SEAL_BYTES as u64 } else { 0 }
}

/// Encrypts a new drive, on memory for it, if the world requires it.
fn encrypt(hazards: Hazards, spec: &mut Spec, memory: MemMedium, seed: u64) -> MemMedium {
    if !hazards.has(Hazard::Encryption) {
        return memory;
    }
    let keys = new_keys(spec.uuid, &[secret()], 0, Randomness::seeded(seed));
    let (cipher, area) = keys.expect("a key is not a passphrase");
    spec.keys = Some(area);
    memory.with_cipher(cipher)
}

impl World {
    fn new(seed: u64, rules: &Rules) -> Self {
        let hazards = rules.weights.draw(seed);
        let mut random = random(seed);
        let kind = random.random_range(0..6);
        let ages = hazards.has(Hazard::Age);
        let (is_small, is_heavy) = (kind == 0 && !ages, kind >= 2 && !ages);
        let texture = match hazards.has(Hazard::Content) || ages {
            true => Texture::UNIFORM[random.random_range(0..Texture::UNIFORM.len())],
            false => Texture::Any,
        };
        let age = ages.then_some(texture);
        let (mut spec, may_fill_up) = draw_spec(&mut random, is_heavy, age, seal_bytes(hazards));
        give_room_for_snapshots(hazards, &mut spec, &mut random);
        let needed = spec.geometry().expect("worlds are drawn within the limits").capacity_bytes();
        if hazards.has(Hazard::Crowd) {
            spec.capacity_bytes = Some(needed + SEGMENTS_MORE * u64::from(SEGMENT_BYTES));
        }
        let geometry = spec.geometry().expect("worlds are drawn within the limits");
        let more = u64::from(SEGMENTS_TO_GROW) * u64::from(SEGMENT_BYTES);
        let memory = MemMedium::new(geometry.medium_bytes() + more);
        let memory = if seed % 4 == 3 { memory.without_durable_appends() } else { memory };
        let memory = encrypt(hazards, &mut spec, memory, seed);
        // Reading ahead in every world would leave the plain reads less tested.
        let reads_on = seed % 4 == 1;
        let read_ahead_bytes = if reads_on { READ_AHEAD_BYTES } else { 0 };
        let options = OpenOptions { read_ahead_bytes, ..draw_options(&mut random) };
        let latency_ns_max = [0, 20_000, 500_000, 2_000_000, 10_000_000][random.random_range(0..5)];
        let limits = Limits {
            latency_ns: latency_ns_max,
            may_fill_up: may_fill_up || hazards.has(Hazard::Snapshots),
            is_strict: rules.is_strict,
            codec: (texture != Texture::Any).then_some(spec.codec),
            map_cache_bytes: options.map_cache_bytes as u64,
            segments_max: geometry.segment_count + SEGMENTS_TO_GROW,
        };
        let scene = Rc::new(Scene::new(spec.size_bytes, hazards, limits));
        if hazards.has(Hazard::Crowd) {
            let crowd = Crowd::new(memory.clone(), needed, seed);
            scene.crowd.set(crowd).ok().expect("a new scene has no others");
        }
        scene.clones.replace(Clones::new(seed));
        if seed % 4 == 2 {
            let workers = Workers::start(0).expect("no thread is started");
            scene.workers.set(workers).ok().expect("a new scene has no workers");
        }
        scene.runtime.block_on(create(&memory, &spec)).expect("memory takes every drive");
        let kind = Habits { is_small, is_heavy, texture, ages, reads_on, ..Habits::default() };
        let habits = draw_habits(&mut random, kind, spec.size_bytes / 4096);
        let retains = hazards.has(Hazard::Retention);
        let habits = if retains { retention::habits(habits) } else { habits };
        Self {
            scene,
            random,
            memory,
            geometry,
            steps: match (ages, retains) {
                (true, _) => rules.steps * STEPS_OF_AGE,
                (_, true) => rules.steps * STEPS_OF_RETENTION,
                _ => rules.steps,
            },
            life: 0,
            habits,
            options,
            latency_ns_max,
            layers: None,
            keep: None,
            receiving: Receiving::new(seed),
        }
    }

    fn run(&mut self) -> Result<(), Mismatch> {
        let lives = if self.habits.ages { 1..=2 } else { 2..=6 };
        for _ in 0..self.random.random_range(lives) {
            let plan = self.draw_plan();
            let (stage, fate) = self.live_on(&plan)?;
            if fate == Fate::Over {
                return self.rebuild_wreck();
            }
            if stage == Stage::Closed && !self.scene.is_damaged.get() && self.random.random() {
                self.rot()?;
            }
        }
        let has_bad_writes = self.scene.hazards.has(Hazard::BadWrites);
        // The state after a failed life must work like any other.
        let plan = Plan {
            crash: CrashAt::Never,
            crash_closing: CrashAt::Never,
            serving: FaultPlan { latency_ns: 0..=self.latency_ns_max, ..FaultPlan::default() },
            opening: FaultPlan::default(),
            may_be_refused: false,
            misread: None,
            may_be_damaged: false,
            faults: Faults { of_writes: has_bad_writes, of_reads: false },
            requests: self.steps / 4,
            ..self.draw_plan()
        };
        for requests in [plan.requests, 0] {
            if self.live_on(&Plan { requests, ..plan.clone() })?.1 == Fate::Over {
                return self.rebuild_wreck();
            }
        }
        self.check()?;
        if self.scene.hazards.has(Hazard::Rescue) {
            self.rescue()?;
        }
        self.trace_medium();
        self.damage_a_table()
    }

    /// Runs a life and determines the state of the medium after it. If the drive refuses to open
    /// because of damage that can be healed, heals it and runs the life again.
    fn live_on(&mut self, plan: &Plan) -> Result<(Stage, Fate), Mismatch> {
        let stage = self.live(plan)?;
        self.end(stage)?;
        self.unlock();
        if stage == Stage::Poisoned && plan.is_sound() {
            let ended = self.scene.ended_by_sectors.get() + 1;
            self.scene.ended_by_sectors.set(ended);
            let most = LIVES_PER_SECTOR * self.scene.damage.borrow().unwritable();
            if ended > most {
                return Err(Mismatch {
                    promised: format!("sectors that cannot be written end {most} lives at most"),
                    found: format!("life {ended} that they end"),
                });
            }
        }
        if !self.scene.was_refused.take() {
            self.compare_snapshots()?;
            self.receive()?;
            self.use_clone()?;
            return Ok((stage, Fate::Continues));
        }
        let hazards = self.scene.hazards;
        if hazards.has(Hazard::LostWrites) || hazards.has(Hazard::MisdirectedWrites) {
            return Ok((stage, Fate::Over));
        }
        self.layers = None;
        let mut damage = self.scene.damage.take();
        self.scene.runtime.block_on(damage.heal(&self.memory));
        self.scene.damage.replace(damage);
        let stage = self.live(plan)?;
        self.end(stage)?;
        self.unlock();
        if self.scene.was_refused.take() {
            return Err(Mismatch {
                promised: "the drive opens again when all damage is healed".to_owned(),
                found: "it refuses".to_owned(),
            });
        }
        self.compare_snapshots()?;
        self.receive()?;
        self.use_clone()?;
        Ok((stage, Fate::Continues))
    }

    /// Runs one life; returns the stage it reached.
    fn live(&mut self, plan: &Plan) -> Result<Stage, Mismatch> {
        self.life += 1;
        self.scene.tally.borrow_mut().lives += 1;
        let is_kept = self.keep_medium()?;
        let clock = self.scene.runtime.clone();
        let seed = self.random.next_u64();
        let fresh = || Rc::new(Layers::new(self.memory.clone(), clock, seed, FaultPlan::default()));
        let layers = self.layers.take().unwrap_or_else(fresh);
        self.scene.damage.borrow().put_on(&layers);
        self.scene.layers.replace(Some(layers.clone()));
        let life = Life::new(self.scene.clone(), layers.clone());
        let mut random = random(self.random.next_u64());
        self.scene.faults.set(Faults::default());
        self.scene.crash_point.set(plan.crash);
        let living = self.scene.crash_point.until_crash(life.live(plan, &mut random));
        let ended = self.scene.runtime.block_on(living);
        self.scene.end_tasks();
        self.scene.count_progress();
        if let Some(drive) = life.drive.take() {
            let info = drive.info();
            self.geometry.segment_count = info.segment_count;
            self.scene.tally.borrow_mut().drive(&info.operations);
        }
        if self.scene.crash_point.loops_endlessly() {
            return Err(Mismatch {
                promised: "the drive makes progress".to_owned(),
                found: "it loops endlessly".to_owned(),
            });
        }
        self.scene.crash_point.set(CrashAt::Never);
        self.scene.oracle.borrow_mut().end_life();
        if is_kept && life.stage.get() != Stage::Opening {
            self.keep_disk()?;
        }
        if let Some(mismatch) = self.scene.verdict() {
            return Err(mismatch);
        }
        if let Some(result) = ended {
            result?;
        }
        let is_last = life.stage.get() == Stage::Closed;
        let farewell = self.scene.farewell.take();
        self.scene.farewell.set(farewell.map(|farewell| Farewell { is_last, ..farewell }));
        self.scene.damage.borrow_mut().remember(&layers);
        self.layers = Some(layers);
        // A clean close vouches for everything.
        if life.stage.get() != Stage::Closed {
            let lost = self.scene.lost_batches.get().max(plan.lost_batches);
            self.scene.lost_batches.set(lost);
        }
        Ok(life.stage.get())
    }

    /// Unlocks an encrypted drive anew: the next process knows only the keys on the medium.
    fn unlock(&self) {
        if !self.scene.hazards.has(Hazard::Encryption) {
            return;
        }
        let locked = match &self.layers {
            Some(layers) => self.scene.runtime.block_on(Locked::on(layers)),
            None => self.scene.runtime.block_on(Locked::on(&self.memory)),
        };
        let randomness = Randomness::seeded(self.life);
        let cipher = locked.ok().flatten().map(|locked| locked.unlock(&secret(), randomness));
        // Where the superblocks are damaged, the next opening reports it.
        if let Some(Ok(cipher)) = cipher {
            self.memory.set_cipher(cipher);
        }
    }

    /// Keeps the medium before a life, if all of it is in memory; returns whether it is kept.
    fn keep_medium(&self) -> Result<bool, Mismatch> {
        let Some(keep) = self.keep.as_ref().filter(|_| self.layers.is_none()) else {
            return Ok(false);
        };
        keep.medium(self.life, &self.memory, self.geometry, &self.scene.runtime)
            .and_then(|()| self.scene.snapshots.borrow().keep(self.life, keep))
            .map_err(cannot_keep)?;
        Ok(true)
    }

    /// Keeps the disk that the life found.
    fn keep_disk(&self) -> Result<(), Mismatch> {
        let Some(keep) = &self.keep else { return Ok(()) };
        keep.disk(self.life, self.scene.oracle.borrow().base()).map_err(cannot_keep)
    }

    /// Determines the state of the medium after a life.
    fn end(&mut self, stage: Stage) -> Result<(), Mismatch> {
        let layers = self.layers.take().expect("a life leaves its medium");
        let loses_power = self.random.random_range(0..3) > 0;
        let broke = |error: pumice_drive::base::Error| Mismatch {
            promised: "memory does not fail".to_owned(),
            found: error.chain(),
        };
        let mut tally = self.scene.tally.borrow_mut();
        match stage {
            Stage::Closed => {
                tally.closes += 1;
                return Ok(());
            }
            Stage::Poisoned => tally.poisonings += 1,
            Stage::Opening => tally.crashes_while_opening += 1,
            Stage::Closing => tally.crashes_while_closing += 1,
            Stage::Serving => {}
        }
        let crash = if loses_power {
            tally.power_losses += 1;
            let crash = self.scene.runtime.block_on(layers.crash()).map_err(broke)?;
            self.scene.damage.borrow_mut().remember(&layers);
            crash
        } else {
            tally.kills += 1;
            let crash = self.scene.runtime.block_on(layers.kill()).map_err(broke)?;
            // Data that a failed sync left in an operating system's cache, neither durable nor
            // lost, is not modelled: after a failure, the next life has a medium without faults.
            self.layers = (!self.scene.faults.get().of_writes).then_some(layers);
            crash
        };
        tally.crash(crash);
        drop(tally);
        self.crash_clone(loses_power)?;
        let outcome = [crash.writes_kept, crash.writes_dropped, crash.writes_torn];
        self.scene.trace.add(&outcome);
        Ok(())
    }

    /// Checks the closed drive as `pumice check` does.
    fn check(&self) -> Result<(), Mismatch> {
        let report = self.scene.runtime.block_on(check(&self.memory, Depth::Full, &mut |_| ()));
        let found = match report {
            Ok(report) if report.problem_count == 0 => return self.check_snapshots(),
            _ if self.scene.is_damaged.get() => return Ok(()),
            Ok(report) => format!("{} problems: {:?}", report.problem_count, report.problems),
            Err(error) => error.chain(),
        };
        Err(Mismatch { promised: "a closed drive has no problem".to_owned(), found })
    }

    /// Adds every byte of the medium to the fingerprint.
    fn trace_medium(&self) {
        let runtime = &self.scene.runtime;
        for slot in 0..SUPERBLOCK_SLOTS {
            let bytes = runtime.block_on(self.memory.read_superblock(slot));
            self.scene.trace.add_bytes(&bytes.expect("memory does not fail"));
        }
        let mut buffer = AlignedBuffer::zeroed(SEGMENT_BYTES as usize);
        for segment in 0..self.geometry.segment_count {
            let read = self.memory.read(SegmentId(segment), 0, buffer);
            buffer = runtime.block_on(read).0;
            self.scene.trace.add_bytes(&buffer);
        }
    }

    fn draw_plan(&mut self) -> Plan {
        let random = &mut self.random;
        let latency_ns = match random.random_range(0..4) {
            0 => self.latency_ns_max..=self.latency_ns_max,
            _ => self.latency_ns_max.min(1)..=self.latency_ns_max,
        };
        let quiet = FaultPlan { latency_ns, ..FaultPlan::default() };
        let mut serving = quiet.clone();
        let faults = draw_faults(random, self.scene.hazards, &mut serving);
        let lost_batches = draw_hazards(random, self.scene.hazards, &mut serving);
        let mut opening = quiet;
        let mut may_be_refused = random.random_range(0..8) == 0;
        if may_be_refused {
            opening.read_errors = Trigger::Probability(0.1);
        }
        let mut misread = None;
        let is_tail_whole = self.scene.lost_batches.get() == 0;
        if self.scene.hazards.has(Hazard::WrongOpening) && is_tail_whole {
            may_be_refused = true;
            let reads = random.random_range(0..6);
            match random.random_range(0..3) {
                0 => opening.read_errors = Trigger::Nth(reads + 1),
                _ => misread = Some((reads, random.next_u64())),
            }
        }
        let steps = self.steps.max(1);
        // The data of a killed process is in a volatile cache while the drive opens.
        let crash = match self.layers.is_some() && random.random_range(0..3) == 0 {
            true => CrashAt::BeforeUpdate(random.random_range(1..=3)),
            // Large writes, and garbage collection for them, take more polls and operations.
            false if !self.habits.ages && !self.habits.retains => {
                draw_crash(random, if self.habits.is_heavy { steps * 4 } else { steps })
            }
            // Age takes time.
            false if random.random_range(0..3) > 0 => CrashAt::Never,
            false => CrashAt::Poll(random.random_range(steps..steps * 3)),
        };
        // A life that writes very little leaves the data after a lost batch in place.
        let requests = if self.habits.is_small && random.random() {
            random.random_range(1..=4)
        } else {
            random.random_range(steps.div_ceil(4)..=steps)
        };
        Plan {
            crash,
            crash_closing: match random.random_range(0..3) {
                0 => draw_crash(random, 4),
                _ => CrashAt::Never,
            },
            hosts: random.random_range(1..=8),
            requests,
            habits: self.habits,
            options: self.options,
            opening,
            may_be_refused,
            may_be_damaged: self.scene.hazards.damages() && random.random(),
            lost_batches,
            misread,
            serving,
            faults,
        }
    }
}

/// Draws transient faults of a life. Returns which operations they may fail.
fn draw_faults(random: &mut Random, hazards: Hazards, serving: &mut FaultPlan) -> Faults {
    let mut faults = Faults::default();
    match random.random_range(0..10) {
        0 => serving.append_errors = Trigger::Nth(random.random_range(1..12)),
        1 => serving.sync_errors = Trigger::Nth(random.random_range(1..12)),
        2 => serving.read_errors = Trigger::Probability(0.05),
        3 => serving.read_corruptions = Trigger::Probability(0.05),
        _ => {}
    }
    faults.of_writes = (serving.append_errors, serving.sync_errors) != Default::default()
        || hazards.has(Hazard::BadWrites);
    faults.of_reads = (serving.read_errors, serving.read_corruptions) != Default::default();
    match random.random_range(0..5) {
        0 | 1 => serving.discards_ignored = Trigger::Probability(0.3),
        2 => serving.discards_scrambled = Trigger::Probability(0.5),
        3 => serving.discard_errors = Trigger::Probability(0.3),
        _ => {}
    }
    if hazards.has(Hazard::Crowd) {
        // The file system would keep space that the drive believes it has released.
        serving.discards_ignored = Trigger::Never;
        serving.discards_scrambled = Trigger::Never;
        serving.discard_errors = Trigger::Never;
    }
    faults
}

/// Adds the hazards of the medium to the faults of a life. Returns how many batches at the end of
/// the log the hazards may damage.
fn draw_hazards(random: &mut Random, hazards: Hazards, serving: &mut FaultPlan) -> u32 {
    serving.crash_leaves_unreadable = hazards.has(Hazard::TornUnreadable);
    let number = Trigger::Nth(random.random_range(1..40));
    if hazards.has(Hazard::LostWrites) {
        serving.lost_writes = number;
        return 1;
    }
    if hazards.has(Hazard::MisdirectedWrites) {
        serving.misdirected_writes = number;
        return LOST_BATCHES_MAX;
    }
    0
}

fn cannot_keep(error: std::io::Error) -> Mismatch {
    Mismatch { promised: "the states can be kept as files".to_owned(), found: error.to_string() }
}

/// Draws the moment of the crash of a life with `requests` requests, if it crashes: often while the
/// drive opens, otherwise at any poll or operation of the medium.
pub(super) fn draw_crash(random: &mut Random, requests: u64) -> CrashAt {
    // A request takes about two polls and at most one operation of the medium (measured), and most
    // lives should end before their requests do.
    let (polls, operations) = (requests * 3 / 2, requests * 2 / 3);
    match random.random_range(0..26) {
        20..23 => CrashAt::BeforeSuperblock(random.random_range(1..=12)),
        23..25 => CrashAt::BeforeDiscard(random.random_range(1..=8)),
        0..3 => CrashAt::Never,
        3 => CrashAt::Poll(random.random_range(1..40)),
        4 => CrashAt::BeforeOperation(random.random_range(1..30)),
        5..7 => CrashAt::BeforeUpdate(random.random_range(1..=4)),
        7..13 => CrashAt::Poll(random.random_range(1..polls.max(2))),
        13..16 => CrashAt::BeforeOperation(random.random_range(1..operations.max(2))),
        _ => CrashAt::AfterOperation(random.random_range(1..operations.max(2))),
    }
}

/// Draws the remaining habits of a world's hosts of the given kind.
fn draw_habits(random: &mut Random, kind: Habits, blocks: u64) -> Habits {
    Habits {
        pause_ns: [0, 0, 100_000, 5_000_000][random.random_range(0..4)],
        hot_offset: match kind.ages {
            // One of its two hot fifths is hotter.
            true => blocks / 5 * COLD_FIFTHS * 4096,
            false => random.random_range(0..blocks - blocks / 5) * 4096,
        },
        trim_percent: if kind.ages { 5 } else { [5, 15, 40][random.random_range(0..3)] },
        flush_percent: if kind.is_small { 60 } else { [1, 4, 20][random.random_range(0..3)] },
        ..kind
    }
}

/// Draws a drive of some MiB, and whether it may run out of space.
fn draw_spec(
    random: &mut Random,
    is_heavy: bool,
    age: Option<Texture>,
    seal_bytes: u64,
) -> (Spec, bool) {
    let drawn = random.random_range(0..3);
    let segments = match (drawn, age) {
        (0, _) => None,
        (_, Some(texture)) => Some(aged_segments(texture, seal_bytes) + random.random_range(0..=3)),
        _ => Some(random.random_range(11..=14)),
    };
    let blocks = match random.random_range(0..8) {
        _ if age.is_some() => AGED_BLOCKS,
        // Not much more than a thin drive holds: it fills up.
        _ if is_heavy && segments.is_some() => random.random_range(2048..=12_288),
        0..4 => random.random_range(64..=1536),
        4..7 => random.random_range(1536..=6144),
        // Some tens of leaves of the map.
        _ => random.random_range(8192..=24_576),
    };
    let codecs = [Codec::None, Codec::Lz4, Codec::Lz4, Codec::Zstd { level: 1 }];
    let full = Spec {
        segment_bytes: SEGMENT_BYTES,
        capacity_bytes: None,
        frame_blocks: 1 << random.random_range(0..7),
        codec: codecs[random.random_range(0..codecs.len())],
        ..Spec::new(uuid::Uuid::from_u64_pair(random.next_u64(), random.next_u64()), blocks * 4096)
    };
    // This makes no random draw of its own. The stored size in chunks of the textures of old drives
    // is unknown.
    let is_solid = age.is_some() || seal_bytes > 0 || !full.uuid.as_u128().is_multiple_of(2);
    let full = if is_solid {
        Spec { frame_form: FrameForm::Solid, ..full }
    } else {
        Spec { frame_blocks: full.frame_blocks.min(CHUNKED_BLOCKS_MAX), ..full }
    };
    let capacity_bytes = segments.map(|count: u64| count * u64::from(SEGMENT_BYTES));
    let spec = Spec { capacity_bytes, ..full.clone() };
    let capacity_bytes =
        |spec: &Spec| spec.geometry().map_or(0, |geometry| geometry.capacity_bytes());
    let is_thin = capacity_bytes(&spec) < capacity_bytes(&full);
    (spec, is_thin)
}

/// Returns the segments of a nearly full drive whose cold part has a texture.
fn aged_segments(texture: Texture, seal_bytes: u64) -> u64 {
    // Blocks of cold data are in frames with others; a block of noise has a header of its own.
    let stored = |texture: Texture| texture.stored_bytes() + seal_bytes;
    let cold = AGED_BLOCKS / 5 * COLD_FIFTHS * stored(texture);
    let hot = AGED_BLOCKS / 5 * (5 - COLD_FIFTHS) * stored(Texture::Noise);
    AGED_RESERVES + (cold + hot).div_ceil(u64::from(SEGMENT_BYTES) / 100 * 92)
}

/// Draws the options for opening the drive, in some worlds with caches too small for any use.
pub(super) fn draw_options(random: &mut Random) -> OpenOptions {
    let default = OpenOptions::default();
    let caches = [32 << 10, 32 << 10, 128 << 10, 1 << 20, default.map_cache_bytes];
    let distances = [256 << 10, 1 << 20, 4 << 20, default.checkpoint_bytes];
    let denser = [None, None, Some(Codec::Zstd { level: 3 })];
    OpenOptions {
        read_only: false,
        map_cache_bytes: caches[random.random_range(0..caches.len())],
        checkpoint_bytes: distances[random.random_range(0..distances.len())],
        recompress: denser[random.random_range(0..denser.len())],
        ..default
    }
}
