//! Transfers: snapshots sent by a tortured drive are received on another one, which is also cut off
//! and crashes.
//!
//! ```text
//! sent in a life, or now from the medium as the life left it
//!   -> received: whole, cut off at any byte, or crashed at any operation of the copy's medium
//!   -> repeated, from the start or from the offset of the copy, until it is complete
//! ```
//!
//! After each attempt the copy has the whole snapshot, or it has no snapshot of that name and a
//! disk that equals the new one below the offset that it reports. A full copy is enlarged. At the
//! end, its disk and its snapshots are read whole and compared. The draws have a random stream of
//! their own, so that worlds without this hazard do not change.

use std::rc::Rc;

use rand::RngExt;

use super::crash_point::{CrashAt, CrashPoint};
use super::hazard::Hazard;
use super::medium::{Layers, TracedMedium};
use super::oracle::{Found, Image, Mismatch};
use super::outbox::{Copy, Transfer, collect};
use super::world::World;
use pumice_drive::base::seed::Random;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::codec::Codec;
use pumice_drive::controller::{
    Depth, Drive, OpenOptions, Partial, Receive, Resize, SnapshotInfo, Spec, TransferReader, View,
    check, create, transfer_batch_bytes,
};
use pumice_drive::format::TRANSFER_HEAD_BYTES;
use pumice_drive::media::layer::{FaultPlan, Trigger};
use pumice_drive::media::mem::MemMedium;

/// Number of attempts that may fail before one without interruption.
const ATTEMPTS_MAX: u32 = 3;

/// Number of snapshots of a copy before a new copy is begun.
const HELD_MAX: usize = 5;

/// How an attempt to receive ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// The snapshot was taken.
    Whole,
    /// The transfer was cut off.
    CutOff,
    /// The copy crashed.
    Crashed,
    /// The copy has no space left.
    Full,
    /// A fault of the copy's medium ended it.
    Failed,
}

/// The event that ends an attempt to receive.
struct End {
    /// Bytes of the transfer that arrive.
    at: usize,
    crash: CrashAt,
    faults: Option<FaultPlan>,
}

impl World {
    /// Receives the snapshot sent in the last life, or one sent from the medium as it is.
    pub(super) fn receive(&mut self) -> Result<(), Mismatch> {
        let hazards = self.scene.hazards;
        if !hazards.has(Hazard::Transfers) || !hazards.has(Hazard::Snapshots) {
            return Ok(());
        }
        let sent = self.scene.outbox.borrow_mut().sent.take();
        let transfer = match sent {
            Some(transfer) => Some(transfer),
            None => self.send_newest()?,
        };
        let Some(transfer) = transfer else { return Ok(()) };
        let held = self.receiving.copy.take();
        let copy = match (&transfer.base, held) {
            (None, _) => self.new_copy(transfer.image.len() as u64),
            (Some(base), Some(copy)) if copy.held.last().is_some_and(|held| held.0 == *base) => {
                copy
            }
            (Some(_), held) => {
                self.receiving.copy = held;
                return Ok(());
            }
        };
        self.receiving.copy = Some(self.receive_all(copy, transfer)?);
        let copy = self.receiving.copy.as_ref();
        let newest = copy.and_then(|copy| copy.held.last()).map(|held| held.0.clone());
        self.scene.outbox.borrow_mut().newest = newest;
        Ok(())
    }

    /// Creates a drive for the copy of a disk, with another codec and other frames.
    fn new_copy(&mut self, size_bytes: u64) -> Copy {
        let random = &mut self.receiving.random;
        let codecs = [Codec::None, Codec::Lz4, Codec::Zstd { level: 1 }];
        let full = Spec {
            segment_bytes: 4 << 20,
            frame_blocks: 1 << random.random_range(0..7),
            codec: codecs[random.random_range(0..codecs.len())],
            ..Spec::new(uuid::Uuid::from_u128(random.random()), size_bytes)
        };
        let geometry = full.geometry().expect("worlds are drawn within the limits");
        // Half of the copies have space for one snapshot, or none.
        let capacity_bytes = Some(match random.random() {
            true => random.random_range(11..=14) * u64::from(full.segment_bytes),
            false => geometry.capacity_bytes() * 3,
        });
        // The disk grows to the size of the snapshot's disk.
        let size_bytes = size_bytes - random.random_range(0..size_bytes / 8192) * 4096;
        let spec = Spec { capacity_bytes, size_bytes, ..full };
        let geometry = spec.geometry().expect("worlds are drawn within the limits");
        let memory = MemMedium::new(geometry.medium_bytes() * 8);
        let runtime = self.scene.runtime.clone();
        runtime.block_on(create(&memory, &spec)).expect("memory takes every drive");
        let layers = Layers::new(memory.clone(), runtime, random.random(), FaultPlan::default());
        Copy { memory, layers: Rc::new(layers), held: Vec::new() }
    }

    /// Lets a copy lose its power.
    fn lose_power(&mut self, copy: &mut Copy) -> Result<(), Mismatch> {
        let runtime = self.scene.runtime.clone();
        let lost = runtime.block_on(copy.layers.crash());
        lost.map_err(|error| broken("memory does not fail", &error))?;
        let (memory, seed) = (copy.memory.clone(), self.receiving.random.random());
        copy.layers = Rc::new(Layers::new(memory, runtime, seed, FaultPlan::default()));
        Ok(())
    }

    /// Ends the process that wrote a copy. After failures the next process has a medium without
    /// faults, as in a world: data that an operating system keeps of a failed write is not
    /// modelled.
    fn end_process(&mut self, copy: &mut Copy, has_failed: bool) -> Result<(), Mismatch> {
        let runtime = self.scene.runtime.clone();
        let killed = runtime.block_on(copy.layers.kill());
        killed.map_err(|error| broken("memory does not fail", &error))?;
        if has_failed {
            let (memory, seed) = (copy.memory.clone(), self.receiving.random.random());
            copy.layers = Rc::new(Layers::new(memory, runtime, seed, FaultPlan::default()));
        }
        Ok(())
    }

    /// Sends the newest existing snapshot, as changes since the copy's newest one if possible.
    fn send_newest(&mut self) -> Result<Option<Transfer>, Mismatch> {
        if self.scene.is_damaged.get() {
            return Ok(None);
        }
        let all = self.scene.snapshots.borrow().sure_names();
        let copy = self.receiving.copy.as_ref().filter(|copy| copy.held.len() < HELD_MAX);
        let newest = copy.and_then(|copy| copy.held.last()).map(|held| held.0.clone());
        let Some((name, image)) = all.last().cloned() else { return Ok(None) };
        if newest.as_ref() == Some(&name) {
            return Ok(None);
        }
        let base = newest.filter(|newest| all.iter().any(|(name, _)| name == newest));
        let bytes = self.send_closed(&name, base.as_deref(), 0)?;
        Ok(bytes.map(|bytes| Transfer { name, base, image, bytes }))
    }

    /// Sends a snapshot of the medium as the life left it; returns nothing if the base is newer.
    fn send_closed(
        &self,
        name: &str,
        base: Option<&str>,
        start: u64,
    ) -> Result<Option<Vec<u8>>, Mismatch> {
        let runtime = self.scene.runtime.clone();
        let layers = self.layers_as_left();
        layers.set_plan(FaultPlan::default());
        let options = OpenOptions { read_only: true, ..self.options };
        let sending = async {
            let drive = Drive::open(layers.clone(), runtime.clock(), options).await?;
            let infos = drive.snapshots();
            let info = |name: &str| infos.iter().find(|info| info.name == name);
            let open = async |name: &str| {
                Drive::open_snapshot(layers.clone(), runtime.clock(), name, options).await
            };
            let Some(of) = info(name) else { return Ok(None) };
            let disk = open(name).await?;
            let base = match base.map(info) {
                None => None,
                Some(Some(base)) if base.sequence < of.sequence => {
                    Some((open(&base.name).await?, base))
                }
                Some(_) => return Ok(None),
            };
            let base = base.as_ref().map(|(disk, info)| View { disk, info });
            collect(View { disk: &disk, info: of }, base, start, async || ()).await.map(Some)
        };
        let sent: Result<Option<Vec<u8>>> = runtime.block_on(sending);
        runtime.drop_tasks();
        sent.map_err(|error| Mismatch {
            promised: format!("{name} can be sent from byte {start} on"),
            found: error.chain(),
        })
    }

    /// Receives a transfer, however often it is interrupted.
    fn receive_all(&mut self, mut copy: Copy, mut transfer: Transfer) -> Result<Copy, Mismatch> {
        let wrong = |promised: &str, found| Mismatch { promised: promised.to_owned(), found };
        for attempt in 0.. {
            let len = transfer.bytes.len();
            let end = match attempt >= ATTEMPTS_MAX {
                true => End { at: len, crash: CrashAt::Never, faults: None },
                false => draw_end(&mut self.receiving.random, len),
            };
            let ended = self.attempt(&copy, &transfer, &end)?;
            match self.receiving.random.random() {
                true => self.lose_power(&mut copy)?,
                false => self.end_process(&mut copy, end.faults.is_some())?,
            }
            let (part, infos) = self.state(&copy, &transfer.image)?;
            let names: Vec<&str> = infos.iter().map(|info| info.name.as_str()).collect();
            let mut wanted: Vec<&str> = copy.held.iter().map(|held| held.0.as_str()).collect();
            let is_there = names.last() == Some(&transfer.name.as_str());
            wanted.extend(is_there.then_some(transfer.name.as_str()));
            let is_right = names == wanted
                && !(is_there && (end.at < len || part.is_some()))
                && (is_there || ended != Attempt::Whole);
            if !is_right {
                let end = end.at;
                let what = format!("{end} of {len} bytes, {ended:?}: {names:?}, {part:?}");
                return Err(wrong("a snapshot is received at the end or not at all", what));
            }
            if is_there {
                if ended != Attempt::Whole {
                    // The next opening rewrites a superblock that a crash tore.
                    self.reopen(&copy)?;
                }
                break;
            }
            {
                let mut tally = self.scene.tally.borrow_mut();
                tally.receives_interrupted += 1;
                tally.receives_failed += u64::from(ended == Attempt::Failed);
                tally.receives_full += u64::from(ended == Attempt::Full);
            }
            if ended == Attempt::Full {
                self.give_room(&copy)?;
            }
            self.go_on(&mut transfer, part)?;
        }
        self.scene.tally.borrow_mut().received += 1;
        copy.held.push((transfer.name, transfer.image));
        self.compare_copy(&copy)?;
        Ok(copy)
    }

    /// Enlarges a copy, which may hold only a part.
    fn give_room(&mut self, copy: &Copy) -> Result<(), Mismatch> {
        let segments = self.receiving.random.random_range(1..=8);
        let runtime = self.scene.runtime.clone();
        let resizing = async {
            let drive = Drive::open(copy.layers.clone(), runtime.clock(), even_a_part()).await?;
            let info = drive.info();
            let more = segments * u64::from(info.segment_bytes);
            let capacity_bytes = Some(info.capacity_bytes + more);
            drive.resize(Resize { capacity_bytes, ..Resize::default() }).await?;
            drive.close().await
        };
        let resized: Result<()> = runtime.block_on(resizing);
        runtime.drop_tasks();
        resized.map_err(|error| broken("the copy is given room", &error))
    }

    /// Sends the rest of a partly received snapshot, if the snapshots still exist; otherwise the
    /// same transfer is applied again.
    fn go_on(&mut self, transfer: &mut Transfer, part: Option<Partial>) -> Result<(), Mismatch> {
        let Some(part) = part else { return Ok(()) };
        let all = self.scene.snapshots.borrow().sure_names();
        let is_there = |wanted: &str| all.iter().any(|(name, _)| name == wanted);
        let are_there = is_there(&transfer.name) && transfer.base.as_deref().is_none_or(is_there);
        if !are_there || self.scene.is_damaged.get() || self.receiving.random.random() {
            return Ok(());
        }
        let (name, base) = (&transfer.name, transfer.base.as_deref());
        if let Some(rest) = self.send_closed(name, base, part.offset)? {
            transfer.bytes = rest;
        }
        Ok(())
    }

    /// Receives the bytes up to `end`; the process ends after that.
    fn attempt(
        &mut self,
        copy: &Copy,
        transfer: &Transfer,
        end: &End,
    ) -> Result<Attempt, Mismatch> {
        let runtime = self.scene.runtime.clone();
        let crash_point = Rc::new(CrashPoint::default());
        crash_point.set(end.crash);
        let medium = TracedMedium {
            layers: copy.layers.clone(),
            crash_point: crash_point.clone(),
            trace: self.scene.trace.clone(),
            misread: Rc::default(),
            in_flight: Rc::default(),
            audits: Rc::default(),
            clock: runtime.clone(),
        };
        let notes = self.receiving.random.random();
        let (bytes, clock) = (&transfer.bytes[..end.at], runtime.clock());
        let options = OpenOptions { incomplete: true, ..self.options };
        let receiving = async {
            let drive = Drive::open(Rc::new(medium), clock, options).await?;
            copy.layers.set_plan(end.faults.clone().unwrap_or_default());
            receive(&drive, bytes, &transfer.name, notes).await
        };
        let ended = runtime.block_on(crash_point.until_crash(receiving));
        runtime.drop_tasks();
        copy.layers.set_plan(FaultPlan::default());
        let explains =
            |kind| matches!(kind, ErrorKind::NoSpace | ErrorKind::Medium | ErrorKind::Poisoned);
        match ended {
            None => Ok(Attempt::Crashed),
            Some(Ok(true)) => Ok(Attempt::Whole),
            Some(Ok(false)) => Ok(Attempt::CutOff),
            Some(Err(error)) if end.faults.is_some() && explains(error.kind()) => {
                Ok(Attempt::Failed)
            }
            Some(Err(error)) if error.kind() == ErrorKind::NoSpace => Ok(Attempt::Full),
            Some(Err(error)) => Err(Mismatch {
                promised: format!("{} is received", transfer.name),
                found: error.chain(),
            }),
        }
    }

    /// Opens and closes a copy.
    fn reopen(&self, copy: &Copy) -> Result<(), Mismatch> {
        let runtime = self.scene.runtime.clone();
        let (layers, clock) = (copy.layers.clone(), runtime.clone());
        let reopening = async {
            Drive::open(layers, clock.clock(), OpenOptions::default()).await?.close().await
        };
        let reopened = runtime.block_on(reopening);
        runtime.drop_tasks();
        reopened.map_err(|error| broken("the copy opens and closes", &error))
    }

    /// Returns the state of the copy after an attempt. Compares a part that was received.
    fn state(
        &self,
        copy: &Copy,
        image: &Image,
    ) -> Result<(Option<Partial>, Vec<SnapshotInfo>), Mismatch> {
        let runtime = self.scene.runtime.clone();
        let options = OpenOptions { read_only: true, ..even_a_part() };
        let mut disk = image.bytes().to_vec();
        let looking = async {
            let drive = Drive::open(copy.layers.clone(), runtime.clock(), options).await?;
            let part = drive.partial_receive();
            let offset = part.map_or(0, |part| part.offset as usize);
            drive.read(0, &mut disk[..offset]).await?;
            Ok((part, drive.snapshots()))
        };
        let state: Result<_> = runtime.block_on(looking);
        runtime.drop_tasks();
        let (part, infos) = state.map_err(|error| broken("the copy opens", &error))?;
        let found = Found { bytes: &disk, unreadable: &Default::default() };
        match image.first_wrong(&found) {
            None => Ok((part, infos)),
            Some(found) => {
                let promised = format!("the received part of a snapshot is there: {part:?}");
                Err(Mismatch { promised, found })
            }
        }
    }

    /// Reads the disk and the snapshots of a copy.
    fn compare_copy(&self, copy: &Copy) -> Result<(), Mismatch> {
        let runtime = self.scene.runtime.clone();
        let mut ignore = |_| ();
        let checking = check(&copy.layers, Depth::Full, &mut ignore);
        let report = runtime.block_on(checking).map_err(|error| broken("a check", &error))?;
        if report.problem_count > 0 {
            let promised = "the copy has no problem".to_owned();
            return Err(Mismatch { promised, found: format!("{:?}", report.problems) });
        }
        let last = copy.held.last().map(|(_, image)| (None, image));
        let snapshots = copy.held.iter().map(|(name, image)| (Some(name.as_str()), image));
        for (name, image) in snapshots.chain(last) {
            let options = OpenOptions { read_only: true, ..OpenOptions::default() };
            let mut disk = vec![0xa5; image.len()];
            let reading = async {
                let (medium, clock) = (copy.layers.clone(), runtime.clone());
                let drive = match name {
                    Some(name) => {
                        Drive::open_snapshot(medium, clock.clock(), name, options).await?
                    }
                    None => Drive::open(medium, clock.clock(), options).await?,
                };
                drive.read(0, &mut disk).await
            };
            let read = runtime.block_on(reading);
            runtime.drop_tasks();
            read.map_err(|error| broken("the copy can be read", &error))?;
            let found = Found { bytes: &disk, unreadable: &Default::default() };
            if let Some(found) = image.first_wrong(&found) {
                let promised = format!("the received snapshot equals the sent one: {name:?}");
                return Err(Mismatch { promised, found });
            }
        }
        Ok(())
    }
}

fn broken(promised: &str, error: &Error) -> Mismatch {
    Mismatch { promised: promised.to_owned(), found: error.chain() }
}

fn even_a_part() -> OpenOptions {
    OpenOptions { incomplete: true, ..OpenOptions::default() }
}

/// Draws how an attempt ends, if it ends before the end of the transfer of `len` bytes.
fn draw_end(random: &mut Random, len: usize) -> End {
    let (often, always) = (Trigger::Probability(0.7), Trigger::Probability(1.0));
    let none = FaultPlan::default();
    let faults = match random.random_range(0..6) {
        0 => Some(FaultPlan { no_space_errors: often, ..none }),
        // A leaf of the map is read where there was data before.
        1 | 2 => Some(FaultPlan { read_errors: always, ..none }),
        3 => Some(FaultPlan { append_errors: Trigger::Nth(random.random_range(1..=4)), ..none }),
        _ => None,
    };
    match random.random_range(0..3) {
        0 => End { at: random.random_range(0..len), crash: CrashAt::Never, faults },
        _ => End { at: len, crash: draw_crash(random), faults },
    }
}

/// Draws the moment at which the copy crashes: often near the marks in its superblocks.
fn draw_crash(random: &mut Random) -> CrashAt {
    match random.random_range(0..6) {
        0 => CrashAt::Never,
        1 | 2 => CrashAt::BeforeSuperblock(random.random_range(1..=10)),
        3 => CrashAt::BeforeUpdate(random.random_range(1..=30)),
        4 => CrashAt::AfterOperation(random.random_range(1..=60)),
        _ => CrashAt::Poll(random.random_range(1..=200)),
    }
}

/// Receives the available bytes; returns whether the transfer is complete. Like the program,
/// records its progress when it ends early.
async fn receive(drive: &Drive, bytes: &[u8], name: &str, notes: bool) -> Result<bool> {
    let Some(head) = bytes.first_chunk() else { return Ok(false) };
    let reader = TransferReader::new(head)?;
    drive.check_transfer(reader.head(), name).await?;
    let mut receive = Receive::new(drive, reader, name.to_owned());
    let mut rest = &bytes[TRANSFER_HEAD_BYTES..];
    while let Some(header) = rest.first_chunk() {
        let Some((batch, later)) = rest.split_at_checked(transfer_batch_bytes(header)?) else {
            break;
        };
        let applied = receive.apply(batch).await;
        if matches!(applied, Ok(true)) {
            receive.end().await?;
            return Ok(true);
        }
        if notes || applied.is_err() {
            let noted = receive.note().await;
            applied?;
            noted?;
        }
        rest = later;
    }
    receive.note().await?;
    Ok(false)
}
