//! One world: a seed, the drive drawn from it, and the lives of that drive.
//!
//! ```text
//! draw geometry, codec, habits -> create -> life -> power loss | kill -9 | close [-> bit rot]
//!                                            ^-------------------------------------------+
//! -> a last life without failures -> check: no problem left
//! ```

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;

use rand::{Rng, RngExt};

use super::crash_point::CrashAt;
use super::host::Habits;
use super::keep::Keep;
use super::life::{Farewell, Life, Plan, Stage};
use super::medium::Layers;
use super::oracle::Mismatch;
use super::scene::{Faults, Scene};
use super::tally::Tally;
use super::violation::Violation;
use pumice_drive::base::AlignedBuffer;
use pumice_drive::base::SegmentId;
use pumice_drive::base::seed::{Random, random};
use pumice_drive::codec::Codec;
use pumice_drive::controller::{Depth, OpenOptions, Spec, check, create};
use pumice_drive::media::layer::{FaultPlan, Trigger};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::media::{Geometry, Medium, SUPERBLOCK_SLOTS};

/// The smallest segments of the format: they fill up soonest.
const SEGMENT_BYTES: u32 = 4 << 20;

/// A world between two lives.
pub(super) struct World {
    pub(super) scene: Rc<Scene>,
    pub(super) random: Random,
    pub(super) memory: MemMedium,
    pub(super) geometry: Geometry,
    steps: u64,
    life: u64,
    habits: Habits,
    /// Options for opening the drive.
    pub(super) options: OpenOptions,
    latency_ns_max: u64,
    /// The layer below the drive, if it outlives the last life.
    layers: Option<Rc<Layers>>,
    farewell: Option<Farewell>,
    keep: Option<Keep>,
}

/// Runs the world of one seed: every life issues at most `steps` requests. With `keep`, a folder,
/// writes the medium before each life to `world-SEED-life-N.pumice` and the disk that the life
/// found on it to `world-SEED-life-N.img`; the disk is missing if the life ended before that.
///
/// # Errors
/// The first broken promise; a panic of the drive is one, and so is a state that cannot be kept.
pub fn run_world(seed: u64, steps: u64, keep: Option<&Path>) -> Result<Tally, Box<Violation>> {
    let mut world = World::new(seed, steps);
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
        steps,
        life: world.life,
        request: scene.requests(),
        promised: mismatch.promised,
        found: mismatch.found,
    }))
}

impl World {
    fn new(seed: u64, steps: u64) -> Self {
        let mut random = random(seed);
        let kind = random.random_range(0..6);
        let (is_small, is_heavy) = (kind == 0, kind >= 2);
        let (spec, may_fill_up) = draw_spec(&mut random, is_heavy);
        let geometry = spec.geometry().expect("worlds are drawn within the limits");
        let memory = MemMedium::new(geometry.medium_bytes());
        let scene = Rc::new(Scene::new(spec.size_bytes, may_fill_up));
        scene.runtime.block_on(create(&memory, &spec)).expect("memory takes every drive");
        let blocks = spec.size_bytes / 4096;
        let habits = Habits {
            is_small,
            is_heavy,
            pause_ns: [0, 0, 100_000, 5_000_000][random.random_range(0..4)],
            hot_offset: random.random_range(0..blocks - blocks / 5) * 4096,
            trim_percent: [5, 15, 40][random.random_range(0..3)],
            flush_percent: if is_small { 60 } else { [1, 4, 20][random.random_range(0..3)] },
        };
        let options = draw_options(&mut random);
        let latency_ns_max = [0, 20_000, 500_000, 2_000_000, 10_000_000][random.random_range(0..5)];
        Self {
            scene,
            random,
            memory,
            geometry,
            steps,
            life: 0,
            habits,
            options,
            latency_ns_max,
            layers: None,
            farewell: None,
            keep: None,
        }
    }

    fn run(&mut self) -> Result<(), Mismatch> {
        for _ in 0..self.random.random_range(2..=6) {
            let plan = self.draw_plan();
            let stage = self.live(&plan)?;
            self.end(stage)?;
            if stage == Stage::Closed && self.random.random() {
                self.rot()?;
            }
        }
        // The state after a failed life must work like any other.
        let plan = Plan {
            crash: CrashAt::Never,
            crash_closing: CrashAt::Never,
            serving: FaultPlan { latency_ns: 0..=self.latency_ns_max, ..FaultPlan::default() },
            opening: FaultPlan::default(),
            may_be_refused: false,
            faults: Faults::default(),
            requests: self.steps / 4,
            ..self.draw_plan()
        };
        let stage = self.live(&plan)?;
        self.end(stage)?;
        let plan = Plan { requests: 0, ..plan };
        let stage = self.live(&plan)?;
        self.end(stage)?;
        self.check()?;
        self.trace_medium();
        Ok(())
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
        let life = Life {
            scene: self.scene.clone(),
            layers: layers.clone(),
            stage: Cell::default(),
            farewell: Cell::new(self.farewell.take()),
            drive: RefCell::default(),
        };
        let mut random = random(self.random.next_u64());
        self.scene.faults.set(Faults::default());
        self.scene.crash_point.set(plan.crash);
        let living = self.scene.crash_point.until_crash(life.live(plan, &mut random));
        let ended = self.scene.runtime.block_on(living);
        self.scene.end_tasks();
        self.scene.count_progress();
        if let Some(drive) = life.drive.take() {
            self.scene.tally.borrow_mut().drive(&drive.info().operations);
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
        self.farewell = life.farewell.take().map(|farewell| Farewell { is_last, ..farewell });
        self.layers = Some(layers);
        Ok(life.stage.get())
    }

    /// Keeps the medium before a life, if all of it is in memory; returns whether it is kept.
    fn keep_medium(&self) -> Result<bool, Mismatch> {
        let Some(keep) = self.keep.as_ref().filter(|_| self.layers.is_none()) else {
            return Ok(false);
        };
        keep.medium(self.life, &self.memory, self.geometry, &self.scene.runtime)
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
            self.scene.runtime.block_on(layers.crash()).map_err(broke)?
        } else {
            tally.kills += 1;
            let crash = self.scene.runtime.block_on(layers.kill()).map_err(broke)?;
            // Data that a failed sync left in an operating system's cache, neither durable nor
            // lost, is not modelled: after a failure, the next life has a medium without faults.
            self.layers = (!self.scene.faults.get().of_writes).then_some(layers);
            crash
        };
        tally.crash(crash);
        let outcome = [crash.writes_kept, crash.writes_dropped, crash.writes_torn];
        self.scene.trace.add(&outcome);
        Ok(())
    }

    /// Forgets the state that the next life would have to find.
    pub(super) fn forget_farewell(&mut self) {
        self.farewell = None;
    }

    /// Checks the closed drive as `pumice check` does.
    fn check(&self) -> Result<(), Mismatch> {
        let report = self.scene.runtime.block_on(check(&self.memory, Depth::Full, &mut |_| ()));
        let found = match report {
            Ok(report) if report.problem_count == 0 => return Ok(()),
            Ok(report) => format!("{} problems: {:?}", report.problem_count, report.problems),
            Err(error) => error.chain(),
        };
        Err(Mismatch { promised: "a closed drive has no problem".to_owned(), found })
    }

    /// Takes every byte of the medium into the fingerprint.
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
        let mut faults = Faults::default();
        match random.random_range(0..10) {
            0 => serving.append_errors = Trigger::Nth(random.random_range(1..12)),
            1 => serving.sync_errors = Trigger::Nth(random.random_range(1..12)),
            2 => serving.read_errors = Trigger::Probability(0.05),
            3 => serving.read_corruptions = Trigger::Probability(0.05),
            _ => {}
        }
        faults.of_writes = (serving.append_errors, serving.sync_errors) != Default::default();
        faults.of_reads = (serving.read_errors, serving.read_corruptions) != Default::default();
        match random.random_range(0..5) {
            0 | 1 => serving.discards_ignored = Trigger::Probability(0.3),
            2 => serving.discards_scrambled = Trigger::Probability(0.5),
            3 => serving.discard_errors = Trigger::Probability(0.3),
            _ => {}
        }
        let steps = self.steps.max(1);
        let mut opening = quiet;
        let may_be_refused = random.random_range(0..8) == 0;
        if may_be_refused {
            opening.read_errors = Trigger::Probability(0.1);
        }
        // The data of a killed process is in a volatile cache while the drive opens.
        let crash = match self.layers.is_some() && random.random_range(0..3) == 0 {
            true => CrashAt::BeforeUpdate(random.random_range(1..=3)),
            // Large writes and what garbage collection does for them take more.
            false => draw_crash(random, if self.habits.is_heavy { steps * 4 } else { steps }),
        };
        // A life that writes next to nothing leaves the data after a lost batch in place.
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
            serving,
            faults,
        }
    }
}

fn cannot_keep(error: std::io::Error) -> Mismatch {
    Mismatch { promised: "the states can be kept as files".to_owned(), found: error.to_string() }
}

/// Draws the moment of the crash of a life with `requests` requests, if it crashes: often while the
/// drive opens, otherwise at any poll or operation of the medium.
fn draw_crash(random: &mut Random, requests: u64) -> CrashAt {
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

/// Draws a drive of some MiB, and whether it may run out of space.
fn draw_spec(random: &mut Random, is_heavy: bool) -> (Spec, bool) {
    let segments = match random.random_range(0..3) {
        0 => None,
        _ => Some(random.random_range(10..=14)),
    };
    let blocks = match random.random_range(0..8) {
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
    let capacity_bytes = segments.map(|count: u64| count * u64::from(SEGMENT_BYTES));
    let spec = Spec { capacity_bytes, ..full.clone() };
    let capacity_bytes =
        |spec: &Spec| spec.geometry().map_or(0, |geometry| geometry.capacity_bytes());
    let is_thin = capacity_bytes(&spec) < capacity_bytes(&full);
    (spec, is_thin)
}

/// Draws the options for opening the drive, in some worlds with caches too small for any use.
fn draw_options(random: &mut Random) -> OpenOptions {
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
