//! Clones of snapshots of a tortured drive: one clone at a time is made, used by its own hosts
//! while others write to its origin and delete its snapshots, made independent, and given up.
//!
//! ```text
//! registered with the origin -> created -> lives: while the origin is served, or between two of
//!    its lives, with writes, trims and parts of a flattening, each of which may crash
//!    -> flat: forgotten by the origin, and used on without it
//!    -> or its file is gone: forgotten
//! ```
//!
//! A clone is a world of its own: it has a scene with an oracle, whose disk begins as the snapshot,
//! and its lives are like those of any drive. A crash of the origin also ends the life of the
//! clone, because both are on one machine; a crash of the clone leaves the origin alone. As long as
//! a clone is registered, no call may delete its snapshot. No clone of a damaged origin is used,
//! because it may be unreadable wherever its origin is.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rand::{Rng, RngExt};
use uuid::Uuid;

use super::crash_point::CrashAt;
use super::hazard::Hazard;
use super::host::{Habits, Host};
use super::life::{Life, Plan, Stage};
use super::medium::Layers;
use super::oracle::{Image, Mismatch};
use super::registry::{Presence, Registration};
use super::scene::{Farewell, Faults, Limits, Scene, TorturedClone};
use super::world::{World, draw_crash, draw_options};
use pumice_drive::base::seed::{Random, random};
use pumice_drive::base::{Error, ErrorKind, Result, SeqNo};
use pumice_drive::codec::Codec;
use pumice_drive::controller::{Origin, RegisteredClone, SnapshotInfo, Spec, create};
use pumice_drive::media::layer::FaultPlan;
use pumice_drive::media::mem::MemMedium;

/// A host makes, uses or gives up the clone once in this many requests, on average.
const REQUESTS_PER_CLONE: u32 = 15;

/// A host gives up the clone once in this many turns, on average.
const USES_PER_CLONE: u32 = 8;

/// A host of a clone flattens a part of it once in this many requests, on average.
const REQUESTS_PER_FLATTENING: u32 = 25;

/// Requests of one life of a clone.
const REQUESTS: std::ops::RangeInclusive<u64> = 5..=60;

/// Maximum number of blocks by which a clone exceeds its snapshot.
const BLOCKS_MORE: u64 = 64;

/// How long a host waits for another host that uses the clone.
const RETRY_NS: u64 = 1_000_000;

impl TorturedClone {
    /// Creates the drive of a clone that is registered.
    async fn create(
        scene: &Scene,
        (uuid, info, image): (Uuid, &SnapshotInfo, &Image),
        origin: Uuid,
        random: &mut Random,
    ) -> Rc<Self> {
        let blocks = info.size_bytes / 4096;
        let origin = Origin {
            drive: origin,
            snapshot: info.guid,
            watermark: SeqNo(info.sequence),
            blocks,
            path: "/origin.pumice".into(),
        };
        let codecs = [Codec::None, Codec::Lz4, Codec::Zstd { level: 1 }];
        let size_bytes = (blocks + random.random_range(0..=BLOCKS_MORE)) * 4096;
        let spec = Spec {
            segment_bytes: 4 << 20,
            frame_blocks: 1 << random.random_range(0..7),
            codec: codecs[random.random_range(0..codecs.len())],
            origin: Some(origin),
            ..Spec::new(uuid, size_bytes)
        };
        let geometry = spec.geometry().expect("worlds are drawn within the limits");
        let memory = MemMedium::new(geometry.medium_bytes());
        create(&memory, &spec).await.expect("memory takes every drive");
        let options = draw_options(random);
        let limits = Limits {
            may_fill_up: false,
            is_strict: false,
            codec: None,
            map_cache_bytes: options.map_cache_bytes as u64,
            latency_ns: scene.latency_ns(),
            segments_max: geometry.segment_count,
        };
        let layers = fresh(&memory, scene, random.next_u64());
        let own = Scene::of_clone(scene, image.clone().of_length(size_bytes as usize), limits);
        Rc::new(Self {
            uuid,
            scene: Rc::new(own),
            memory,
            layers: RefCell::new(layers),
            options,
            is_used: Cell::default(),
            is_flat: Cell::default(),
        })
    }

    /// Runs one life of the clone, whose origin is on `origin`. If it crashes, the medium is then
    /// as the crash left it.
    async fn live(
        &self,
        origin: Rc<Layers>,
        habits: Habits,
        random: &mut Random,
    ) -> Result<(), Mismatch> {
        let scene = &self.scene;
        scene.origin.replace(Some(origin));
        self.is_used.set(true);
        let plan = self.draw_plan(habits, random);
        let life = Life::new(scene.clone(), self.layers.borrow().clone());
        scene.faults.set(Faults::default());
        scene.crash_point.set(plan.crash);
        let nest = scene.nest.as_ref().expect("a clone has tasks of its own");
        let living = nest.run(life.live(&plan, random));
        let ended = scene.crash_point.until_crash(living).await;
        nest.clear();
        scene.forget_tasks();
        scene.count_progress();
        if let Some(mismatch) = scene.verdict() {
            return Err(mismatch);
        }
        if scene.crash_point.loops_endlessly() {
            let promised = "the clone makes progress".to_owned();
            return Err(Mismatch { promised, found: "it loops endlessly".to_owned() });
        }
        if let Some(ended) = ended {
            ended?;
        }
        let stage = life.stage.get();
        let is_last = stage == Stage::Closed;
        let farewell = scene.farewell.take();
        scene.farewell.set(farewell.map(|farewell| Farewell { is_last, ..farewell }));
        let drive = life.drive.take();
        if stage != Stage::Closed {
            drop(drive);
            return self.crash(random.random_range(0..3) > 0, random.next_u64()).await;
        }
        if drive.is_some_and(|drive| drive.origin().is_none()) {
            self.is_flat.set(true);
        }
        self.is_used.set(false);
        scene.oracle.borrow_mut().end_life();
        Ok(())
    }

    /// Ends a life: the power is lost, or the process is killed.
    async fn crash(&self, loses_power: bool, seed: u64) -> Result<(), Mismatch> {
        self.is_used.set(false);
        self.scene.oracle.borrow_mut().end_life();
        let layers = self.layers.borrow().clone();
        let crashed = if loses_power { layers.crash().await } else { layers.kill().await };
        crashed.map_err(|error| broken("memory does not fail", &error))?;
        if loses_power {
            self.layers.replace(fresh(&self.memory, &self.scene, seed));
        }
        Ok(())
    }

    fn draw_plan(&self, habits: Habits, random: &mut Random) -> Plan {
        let requests = random.random_range(REQUESTS);
        let crash = match random.random_range(0..2) {
            0 => CrashAt::Never,
            _ => draw_crash(random, requests),
        };
        let crash_closing = match random.random_range(0..4) {
            0 => draw_crash(random, 4),
            _ => CrashAt::Never,
        };
        let latency_ns = 0..=self.scene.latency_ns();
        Plan {
            crash,
            crash_closing,
            hosts: random.random_range(1..=3),
            requests,
            habits: Habits { ages: false, ..habits },
            options: self.options,
            opening: FaultPlan::default(),
            serving: FaultPlan { latency_ns, ..FaultPlan::default() },
            may_be_refused: false,
            may_be_damaged: false,
            faults: Faults::default(),
            misread: None,
            lost_batches: 0,
        }
    }
}

/// Returns a layer without faults.
fn fresh(memory: &MemMedium, scene: &Scene, seed: u64) -> Rc<Layers> {
    Rc::new(Layers::new(memory.clone(), scene.runtime.clone(), seed, FaultPlan::default()))
}

impl Scene {
    /// Returns whether hosts may use clones now: the origin's data must be readable.
    fn may_use_clones(&self) -> bool {
        let is_drawn = self.hazards.has(Hazard::Clones) && self.hazards.has(Hazard::Snapshots);
        is_drawn && !self.is_damaged.get() && !self.faults.get().of_reads
    }

    /// Adds the counters of a life of a clone.
    fn count_clone(&self, clone: &TorturedClone) {
        let of = clone.scene.tally.take();
        let mut tally = self.tally.borrow_mut();
        tally.clone_lives += 1;
        tally.clone_requests += of.requests;
        tally.clone_polls += of.polls;
        tally.flattenings += of.flattenings;
    }
}

impl Host {
    /// Occasionally makes, uses or gives up the clone.
    pub(super) async fn tend_clones(&mut self) -> Result<(), Mismatch> {
        if self.random.random_range(0..REQUESTS_PER_CLONE) > 0 || !self.scene.may_use_clones() {
            return Ok(());
        }
        let scene = self.scene.clone();
        if !scene.snapshots.borrow().are_allowed() {
            return Ok(());
        }
        let Some(_turn) = scene.clones.borrow().turn() else { return Ok(()) };
        let held = scene.used_clone.borrow().clone();
        let needed = held.as_ref().filter(|held| !held.is_flat.get()).map(|held| held.uuid);
        let orphan = scene.clones.borrow().orphan(needed);
        if let Some(orphan) = orphan {
            return self.forget_clone(orphan).await;
        }
        let Some(clone) = held else { return self.make_clone().await };
        if self.random.random_range(0..USES_PER_CLONE) == 0 {
            scene.used_clone.replace(None);
            return match clone.is_flat.get() {
                true => Ok(()),
                false => self.forget_clone(clone.uuid).await,
            };
        }
        let layers = scene.layers.borrow().clone().expect("a life has a medium");
        let mut random = random(self.random.next_u64());
        let lived = clone.live(layers, self.habits, &mut random).await;
        scene.count_clone(&clone);
        lived.map_err(|mismatch| blame(&clone, mismatch))
    }

    /// Makes a clone of a snapshot.
    async fn make_clone(&mut self) -> Result<(), Mismatch> {
        let scene = self.scene.clone();
        let readable = scene.snapshots.borrow().readable(&self.drive.snapshots());
        if readable.is_empty() {
            return Ok(());
        }
        let (info, image) = &readable[self.random.random_range(0..readable.len())];
        let clone = {
            let mut clones = scene.clones.borrow_mut();
            clones.named += 1;
            let clone = Uuid::from_u128(0xc10e << 64 | u128::from(clones.named));
            let (snapshot, presence) = (info.name.clone(), Presence::Making);
            clones.registered.push(Registration { clone, snapshot, presence });
            clone
        };
        let path = format!("/{clone}.pumice");
        let wanted = RegisteredClone { drive: clone, path, created_seconds: 1 };
        match self.drive.register_clone(&info.name, wanted.clone()).await {
            Ok(info) => assert!(info.clones.contains(&wanted), "{info:?}"),
            // Nothing changed: the snapshot is gone, a bookmark or being read, or there is no
            // space.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound
                        | ErrorKind::InvalidInput
                        | ErrorKind::Busy
                        | ErrorKind::NoSpace
                ) =>
            {
                scene.clones.borrow_mut().registered.retain(|it| it.clone != clone);
                return Ok(());
            }
            Err(error) if self.may_fail(&error) => return Ok(()),
            Err(error) => return Err(broken("a clone is registered or refused", &error)),
        }
        scene.clones.borrow_mut().set(clone, Presence::Sure);
        scene.audit_snapshots(&self.drive)?;
        let (of, origin) = ((clone, info, &**image), self.drive.uuid());
        let made = TorturedClone::create(&scene, of, origin, &mut self.random).await;
        scene.used_clone.replace(Some(made));
        scene.tally.borrow_mut().clones += 1;
        Ok(())
    }

    /// Lets the origin forget a clone that no one needs.
    async fn forget_clone(&mut self, clone: Uuid) -> Result<(), Mismatch> {
        let scene = self.scene.clone();
        let before = {
            let clones = scene.clones.borrow();
            let found = clones.registered.iter().find(|it| it.clone == clone);
            found.expect("a clone of the world").presence
        };
        scene.clones.borrow_mut().set(clone, Presence::Forgetting);
        match self.drive.forget_clone(clone).await {
            Ok(was_there) if was_there || before != Presence::Sure => {
                scene.clones.borrow_mut().registered.retain(|it| it.clone != clone);
                scene.audit_snapshots(&self.drive)
            }
            Ok(_) => {
                let promised = format!("the clone {clone} is listed until it is forgotten");
                Err(Mismatch { promised, found: "it is not".to_owned() })
            }
            Err(error) if self.may_fail(&error) => Ok(()),
            // Unwritable segments may be missing for good.
            Err(error) if error.kind() == ErrorKind::NoSpace && scene.has_faults() => Ok(()),
            Err(error) => Err(broken("a clone is forgotten, however full the drive is", &error)),
        }
    }

    /// Lets the origin forget all clones, so that snapshots can be deleted; ends the life of the
    /// clone in use.
    pub(super) async fn give_up_clones(&mut self) -> Result<(), Mismatch> {
        let scene = self.scene.clone();
        let _turn = loop {
            let turn = scene.clones.borrow().turn();
            if let Some(turn) = turn {
                break turn;
            }
            let held = scene.used_clone.borrow().clone();
            if let Some(held) = held.filter(|held| held.is_used.get()) {
                held.scene.crash_point.crash();
            }
            scene.sleep(RETRY_NS).await;
        };
        scene.used_clone.replace(None);
        let all: Vec<Uuid> = scene.clones.borrow().registered.iter().map(|it| it.clone).collect();
        for clone in all {
            self.forget_clone(clone).await?;
        }
        Ok(())
    }

    /// Copies a part of the data that this clone reads from its origin, or all the rest.
    pub(super) async fn flatten(&mut self) -> Result<(), Mismatch> {
        if self.scene.nest.is_none() || self.drive.origin().is_none() {
            return Ok(());
        }
        if self.random.random_range(0..REQUESTS_PER_FLATTENING) > 0 {
            return Ok(());
        }
        let scene = self.scene.clone();
        let Some(_turn) = scene.clones.borrow().turn() else { return Ok(()) };
        let mut left = match self.random.random_range(0..3) {
            0 => u32::MAX,
            _ => self.random.random_range(1..=20),
        };
        let goes_on = |_| {
            left -= 1;
            left > 0
        };
        let drive = self.drive.clone();
        // Writes before the flattening are durable after it.
        let promised = scene.oracle.borrow().taken();
        let flattened = drive.flatten(goes_on).await;
        let flattened = flattened.map_err(|error| broken("a clone is made independent", &error))?;
        scene.oracle.borrow_mut().promise(promised);
        if flattened.is_complete {
            scene.tally.borrow_mut().flattenings += 1;
            assert!(drive.origin().is_none(), "it is complete");
        }
        Ok(())
    }
}

impl World {
    /// Uses the clone between two lives of its origin.
    pub(super) fn use_clone(&mut self) -> Result<(), Mismatch> {
        if self.scene.is_damaged.get() {
            self.scene.used_clone.replace(None);
            return Ok(());
        }
        let scene = self.scene.clone();
        let (seed, is_drawn) = {
            let random = &mut scene.clones.borrow_mut().random;
            (random.next_u64(), random.random::<bool>())
        };
        let held = scene.used_clone.borrow().clone();
        let Some(clone) = held.filter(|_| is_drawn) else { return Ok(()) };
        let origin = self.layers_as_left();
        origin.set_plan(FaultPlan::default());
        let mut random = random(seed);
        let lived = scene.runtime.block_on(clone.live(origin, self.habits, &mut random));
        scene.runtime.drop_tasks();
        scene.count_clone(&clone);
        lived.map_err(|mismatch| blame(&clone, mismatch))
    }

    /// Ends the life of the clone together with its origin, which crashed.
    pub(super) fn crash_clone(&self, loses_power: bool) -> Result<(), Mismatch> {
        let Some(held) = self.scene.used_clone.borrow().clone() else { return Ok(()) };
        let seed = self.scene.clones.borrow_mut().random.next_u64();
        if !loses_power && !held.is_used.get() {
            return Ok(());
        }
        if held.is_used.get() {
            held.scene.farewell.set(None);
            self.scene.tally.borrow_mut().clones_crashed += 1;
        }
        self.scene.runtime.block_on(held.crash(loses_power, seed))
    }
}

fn broken(promised: &str, error: &Error) -> Mismatch {
    Mismatch { promised: promised.to_owned(), found: error.chain() }
}

fn blame(clone: &TorturedClone, mismatch: Mismatch) -> Mismatch {
    let promised = format!("of the clone {}: {}", clone.uuid, mismatch.promised);
    Mismatch { promised, ..mismatch }
}
