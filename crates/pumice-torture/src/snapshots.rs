//! Snapshots of a tortured drive: hosts take them, delete them or turn them into bookmarks while
//! other hosts write, across crashes.
//!
//! The oracle's disk is copied in the very poll in which the drive takes the snapshot: no other
//! task runs in between. After each life, and after each crash, every snapshot is read whole from
//! the medium as it was left, and compared with its copy. A snapshot whose call returned must
//! exist. A bookmark has no data to read: the changes that it reports up to a later snapshot must
//! include all blocks in which the copies differ.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;

use rand::RngExt;

use super::frozen::{Call, Frozen, Presence};
use super::hazard::Hazard;
use super::host::Host;
use super::life::{Life, is_of_a_read, read_all};
use super::medium::Layers;
use super::oracle::{Change, Content, Found, Mismatch};
use super::retention;
use super::world::World;
use pumice_drive::base::seed::Random;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::{Error, ErrorKind};
use pumice_drive::controller::{Changed, Depth, Drive, NewSnapshot, OpenOptions, check_snapshot};
use pumice_drive::media::layer::FaultPlan;

/// A host takes or deletes a snapshot once in this many requests, on average.
const REQUESTS_PER_SNAPSHOT: u32 = 20;

/// Once in this many deletions, on average, a host turns a snapshot into a bookmark instead.
const DELETIONS_PER_BOOKMARK: u32 = 3;

/// Number of snapshots beyond which hosts only delete.
const SNAPSHOTS_WANTED: usize = 3;

/// Where many snapshots are kept, the disk is rolled back to one of the newest, from this many.
const NEWEST: usize = 3;

/// How long a host waits for other hosts to finish taking or deleting snapshots.
const RETRY_NS: u64 = 1_000_000;

impl Host {
    /// Occasionally takes or deletes a snapshot, or turns one into a bookmark.
    pub(super) async fn snapshot(&mut self) -> Result<(), Mismatch> {
        if self.random.random_range(0..REQUESTS_PER_SNAPSHOT) > 0 {
            return Ok(());
        }
        self.change_snapshots().await?;
        self.scene.audit_snapshots(&self.drive)
    }

    pub(super) async fn change_snapshots(&mut self) -> Result<(), Mismatch> {
        let wanted = match self.habits.retains {
            true => retention::SNAPSHOTS_WANTED,
            false => SNAPSHOTS_WANTED,
        };
        let (is_held, count) = {
            let frozens = self.scene.snapshots.borrow();
            (!frozens.are_allowed(), frozens.all.len())
        };
        if !is_held && self.random.random_range(0..=wanted) >= count {
            return self.take_snapshot().await;
        }
        let is_kept = self.habits.retains && self.random.random();
        if !is_held && !is_kept && self.random.random_range(0..DELETIONS_PER_BOOKMARK) == 0 {
            return self.make_bookmark().await;
        }
        self.delete_snapshot().await.map(|_| ())
    }

    /// Turns an existing snapshot into a bookmark.
    async fn make_bookmark(&mut self) -> Result<(), Mismatch> {
        let scene = self.scene.clone();
        let names: Vec<String> = {
            let frozens = scene.snapshots.borrow();
            let with_data = frozens.with_data();
            with_data.map(|frozen| frozen.name.clone()).collect()
        };
        if names.is_empty() {
            return Ok(());
        }
        let name = &names[self.random.random_range(0..names.len())];
        scene.snapshots.borrow_mut().find(name).presence = Presence::Changing;
        let _call = Call::of(&scene.snapshots.borrow());
        match self.drive.bookmark_snapshot(name).await {
            Ok(_) if scene.clones.borrow().keep(name) => Err(needed_by_a_clone(name)),
            Ok(info) => {
                assert!(info.is_bookmark, "{info:?}");
                let mut frozens = scene.snapshots.borrow_mut();
                let frozen = frozens.find(name);
                (frozen.presence, frozen.is_bookmark) = (Presence::Sure, true);
                scene.tally.borrow_mut().bookmarks += 1;
                Ok(())
            }
            // Another host is reading it, or cloning it.
            Err(error) if error.kind() == ErrorKind::Busy => {
                scene.snapshots.borrow_mut().find(name).presence = Presence::Sure;
                Ok(())
            }
            Err(error) if self.may_fail(&error) => Ok(()),
            // Unwritable segments may be missing for good; damaged snapshots remain.
            Err(error)
                if error.kind() == ErrorKind::NoSpace && scene.has_faults()
                    || error.kind() == ErrorKind::Corrupt && scene.is_damaged.get() =>
            {
                scene.snapshots.borrow_mut().find(name).presence = Presence::Sure;
                Ok(())
            }
            Err(error) => {
                let promised = format!("{name} becomes a bookmark, however full the drive is");
                Err(Mismatch { promised, found: error.chain() })
            }
        }
    }

    pub(super) async fn take_snapshot(&mut self) -> Result<(), Mismatch> {
        let scene = self.scene.clone();
        let (name, number) = scene.snapshots.borrow_mut().begin();
        let _call = Call::of(&scene.snapshots.borrow());
        let guid = uuid::Uuid::from_u128(number.into());
        let new = NewSnapshot { name: name.clone(), guid, created_seconds: number, yields: false };
        let drive = self.drive.clone();
        let mut taking = pin!(drive.create_snapshot(new));
        let result = poll_fn(|context| {
            let before = drive.snapshots_begun();
            let polled = taking.as_mut().poll(context);
            if drive.snapshots_begun() > before {
                let oracle = scene.oracle.borrow();
                let image = oracle.freeze(drive.size_bytes() as usize);
                scene.snapshots.borrow_mut().cut(&name, image, oracle.taken());
            }
            polled
        })
        .await;
        let mut frozens = scene.snapshots.borrow_mut();
        match result {
            Ok(info) => {
                let frozen = frozens.find(&name);
                frozen.presence = Presence::Sure;
                let (image, taken) = frozen.cut.as_ref().ok_or_else(|| Mismatch {
                    promised: format!("{name} shows a moment of its call"),
                    found: "it was never begun".to_owned(),
                })?;
                assert_eq!((info.name, info.size_bytes), (name, image.len() as u64));
                scene.oracle.borrow_mut().promise(*taken);
                scene.tally.borrow_mut().snapshots += 1;
                Ok(())
            }
            Err(error) if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Busy) => {
                frozens.forget(&name);
                scene.tally.borrow_mut().snapshots_refused += 1;
                Ok(())
            }
            // The next opening shows whether it exists.
            Err(error) if self.may_fail(&error) => Ok(()),
            Err(error) => {
                let promised = format!("{name} is taken or refused");
                Err(Mismatch { promised, found: error.chain() })
            }
        }
    }

    /// Deletes an existing snapshot; returns whether there was one.
    async fn delete_snapshot(&mut self) -> Result<bool, Mismatch> {
        let scene = self.scene.clone();
        let names: Vec<String> =
            scene.snapshots.borrow().sure().map(|frozen| frozen.name.clone()).collect();
        if names.is_empty() {
            return Ok(false);
        }
        let name = &names[self.random.random_range(0..names.len())];
        scene.snapshots.borrow_mut().find(name).presence = Presence::Deleting;
        let _call = Call::of(&scene.snapshots.borrow());
        match self.drive.delete_snapshot(name).await {
            Ok(_) if scene.clones.borrow().keep(name) => Err(needed_by_a_clone(name)),
            Ok(_) => {
                scene.snapshots.borrow_mut().forget(name);
                scene.tally.borrow_mut().snapshots_deleted += 1;
                Ok(true)
            }
            // Another host or a clone is reading it.
            Err(error)
                if error.kind() == ErrorKind::Busy
                    && (scene.hazards.has(Hazard::Transfers)
                        || scene.hazards.has(Hazard::Retention)
                        || scene.clones.borrow().may_keep(name)) =>
            {
                // A drive that accepts no writes forgets no clones either.
                if !scene.faults.get().of_writes {
                    scene.snapshots.borrow_mut().find(name).presence = Presence::Sure;
                }
                scene.sleep(RETRY_NS).await;
                Ok(true)
            }
            Err(error) if self.may_fail(&error) => Ok(true),
            // Unwritable segments may be missing for good.
            Err(error) if error.kind() == ErrorKind::NoSpace && scene.has_faults() => {
                scene.snapshots.borrow_mut().find(name).presence = Presence::Sure;
                Ok(true)
            }
            Err(error) => {
                let promised = format!("{name} is deleted, however full the drive is");
                Err(Mismatch { promised, found: error.chain() })
            }
        }
    }

    /// Deletes all snapshots, and lets no host take one until [`Host::allow_snapshots`].
    pub(super) async fn forbid_snapshots(&mut self) -> Result<(), Mismatch> {
        if !self.scene.hazards.has(Hazard::Snapshots) {
            return Ok(());
        }
        self.scene.snapshots.borrow_mut().held += 1;
        loop {
            if self.scene.hazards.has(Hazard::Clones) {
                self.give_up_clones().await?;
            }
            if self.delete_snapshot().await? {
                continue;
            }
            if self.scene.snapshots.borrow().calls.get() == 0 {
                return Ok(());
            }
            self.scene.sleep(RETRY_NS).await;
        }
    }

    /// Lets hosts take snapshots again.
    pub(super) fn allow_snapshots(&mut self) {
        if self.scene.hazards.has(Hazard::Snapshots) {
            self.scene.snapshots.borrow_mut().held -= 1;
        }
    }
}

impl Life {
    /// In some lives, rolls the disk back to a snapshot once no request is under way.
    pub(super) async fn roll_back(
        &self,
        drive: &Drive,
        random: &mut Random,
    ) -> Result<(), Mismatch> {
        let scene = &self.scene;
        if !scene.hazards.has(Hazard::Snapshots) || random.random_range(0..3) > 0 {
            return Ok(());
        }
        let retains = scene.hazards.has(Hazard::Retention);
        let infos = drive.snapshots();
        let with_data: Vec<_> = infos.iter().filter(|info| !info.is_bookmark).collect();
        if with_data.is_empty() || scene.is_damaged.get() {
            return Ok(());
        }
        // Where many snapshots are kept, many must remain.
        let oldest = if retains { with_data.len().saturating_sub(NEWEST) } else { 0 };
        let name = &with_data[random.random_range(oldest..with_data.len())].name;
        let newer = infos.iter().skip_while(|info| info.name != *name).skip(1);
        let newer: Vec<&str> = newer.map(|info| info.name.as_str()).collect();
        if let Some(cloned) = newer.iter().find(|name| scene.clones.borrow().keep(name)) {
            let kept = drive.roll_back(name, true).await;
            let is_refused = kept.is_err_and(|error| error.kind() == ErrorKind::Busy);
            return if is_refused { Ok(()) } else { Err(needed_by_a_clone(cloned)) };
        }
        if newer.iter().any(|name| scene.clones.borrow().may_keep(name)) {
            return Ok(());
        }
        let change = {
            let mut frozens = scene.snapshots.borrow_mut();
            for name in &newer {
                frozens.find(name).presence = Presence::Deleting;
            }
            let (image, _) = frozens.find(name).cut.as_ref().expect("the snapshot was begun");
            let mut bytes = image.bytes().to_vec();
            bytes.resize(drive.size_bytes() as usize, 0);
            Change { request: 0, offset: 0, content: Content::Bytes(bytes) }
        };
        // After a crash the disk is either rolled back or not.
        scene.oracle.borrow_mut().take(change);
        let rolled = drive.roll_back(name, true).await.map_err(|error| Mismatch {
            promised: format!("the disk is rolled back to {name}"),
            found: error.chain(),
        })?;
        assert_eq!(&rolled.name, name);
        let mut oracle = scene.oracle.borrow_mut();
        let taken = oracle.taken();
        oracle.promise(taken);
        newer.iter().for_each(|name| scene.snapshots.borrow_mut().forget(name));
        scene.tally.borrow_mut().rollbacks += 1;
        scene.audit_snapshots(drive)
    }
}

impl World {
    /// Reads every snapshot from the medium as a life left it, and compares it with its copy.
    pub(super) fn compare_snapshots(&self) -> Result<(), Mismatch> {
        if !self.scene.hazards.has(Hazard::Snapshots) {
            return Ok(());
        }
        let runtime = self.scene.runtime.clone();
        let layers = self.layers_as_left();
        layers.set_plan(FaultPlan::default());
        let frozens = self.scene.snapshots.borrow();
        for frozen in &frozens.all {
            let compared = runtime.block_on(self.compare_snapshot(frozen, &layers));
            runtime.drop_tasks();
            compared?;
        }
        Ok(())
    }

    /// Returns the medium as the last life left it.
    pub(super) fn layers_as_left(&self) -> Rc<Layers> {
        self.layers.clone().unwrap_or_else(|| {
            let (memory, clock) = (self.memory.clone(), self.scene.runtime.clone());
            let fresh = Layers::new(memory, clock, 0, FaultPlan::default());
            self.scene.damage.borrow().put_on(&fresh);
            Rc::new(fresh)
        })
    }

    async fn compare_snapshot(&self, frozen: &Frozen, layers: &Rc<Layers>) -> Result<(), Mismatch> {
        let Frozen { name, presence, is_bookmark, cut, .. } = frozen;
        let (clock, is_damaged) = (self.scene.runtime.clone(), self.scene.is_damaged.get());
        let wrong = |found| Err(Mismatch { promised: format!("{name} ({presence:?})"), found });
        let opened = Drive::open_snapshot(layers.clone(), clock.clock(), name, self.options).await;
        let may_be_changed = *presence == Presence::Changing;
        let view = match (opened, cut) {
            (Ok(_), _) if *is_bookmark => return wrong("it is not a bookmark".to_owned()),
            (Err(error), Some(_))
                if error.kind() == ErrorKind::InvalidInput && (*is_bookmark || may_be_changed) =>
            {
                return self.compare_bookmark(frozen, layers).await;
            }
            (Ok(view), Some(_)) => view,
            (Ok(_), None) => return wrong("it is there and was never begun".to_owned()),
            (Err(error), _) if error.kind() == ErrorKind::NotFound => {
                return match presence {
                    Presence::Sure if !is_damaged => wrong(error.chain()),
                    _ => Ok(()),
                };
            }
            (Err(error), _) if is_damaged && is_of_a_read(&error) => return Ok(()),
            (Err(error), _) => return wrong(error.chain()),
        };
        let image = &cut.as_ref().expect("just matched").0;
        if view.size_bytes() as usize != image.len() {
            return wrong(format!("it has {} bytes, not {}", view.size_bytes(), image.len()));
        }
        let mut disk = vec![0xa5; image.len()];
        let unreadable = read_all(&self.scene, &view, &mut disk).await?;
        self.scene.tally.borrow_mut().snapshots_compared += 1;
        let different = image.first_wrong(&Found { bytes: &disk, unreadable: &unreadable });
        different.map_or(Ok(()), wrong)
    }

    /// Compares the changes reported from a bookmark up to the next readable snapshot with the
    /// actual differences.
    async fn compare_bookmark(
        &self,
        bookmark: &Frozen,
        layers: &Rc<Layers>,
    ) -> Result<(), Mismatch> {
        let is_damaged = self.scene.is_damaged.get();
        let Some((old, _)) = bookmark.cut.as_ref().filter(|_| !is_damaged) else {
            return Ok(());
        };
        let failed = |error: Error| Mismatch {
            promised: format!("{} is compared with later snapshots", bookmark.name),
            found: error.chain(),
        };
        let open = async |name: &str| {
            let clock = self.scene.runtime.clone();
            let options = OpenOptions { incomplete: true, ..self.options };
            Drive::open_snapshot(layers.clone(), clock.clock(), name, options).await
        };
        let earlier = open(&bookmark.name).await.map_err(failed)?;
        let later = {
            let frozens = self.scene.snapshots.borrow();
            let later = frozens.with_data().filter(|frozen| frozen.order > bookmark.order);
            let next = later.min_by_key(|frozen| frozen.order);
            next.and_then(|frozen| Some((frozen.name.clone(), frozen.cut.as_ref()?.0.clone())))
        };
        let Some((name, new)) = later else { return Ok(()) };
        let view = open(&name).await.map_err(failed)?;
        let mut changed = vec![false; new.len() / BLOCK_BYTES];
        let visit = |range: Changed| {
            let end = range.offset + range.bytes;
            changed[range.offset as usize / BLOCK_BYTES..end as usize / BLOCK_BYTES].fill(true);
            true
        };
        view.changes_since(&earlier, visit).await.map_err(failed)?;
        self.scene.tally.borrow_mut().bookmarks_compared += 1;
        let blocks = old.bytes().chunks(BLOCK_BYTES).zip(new.bytes().chunks(BLOCK_BYTES));
        match blocks.zip(changed).position(|((old, new), is_reported)| old != new && !is_reported) {
            None => Ok(()),
            Some(block) => Err(Mismatch {
                promised: format!("{name} equals {} where no change is reported", bookmark.name),
                found: format!("block {block} differs"),
            }),
        }
    }

    /// Checks every snapshot of the closed drive as `pumice check` does.
    pub(super) fn check_snapshots(&self) -> Result<(), Mismatch> {
        let runtime = &self.scene.runtime;
        for Frozen { name, .. } in self.scene.snapshots.borrow().sure() {
            let mut ignore = |_| ();
            let checking = check_snapshot(&self.memory, name, Depth::Full, &mut ignore);
            let found = match runtime.block_on(checking) {
                Ok(report) if report.problem_count == 0 => continue,
                _ if self.scene.is_damaged.get() => continue,
                Ok(report) => format!("{:?}", report.problems),
                Err(error) => error.chain(),
            };
            return Err(Mismatch { promised: format!("{name} has no problem"), found });
        }
        Ok(())
    }
}

fn needed_by_a_clone(name: &str) -> Mismatch {
    let promised = format!("{name} stays as long as a clone needs it");
    Mismatch { promised, found: "it was given up".to_owned() }
}
