//! Worlds of a mirror of two members. Each member loses power in its own way, fails, vanishes,
//! returns with its old content, rots, and is replaced while the host writes.
//!
//! ```text
//! life: [rot on one | one absent | one fails midway | one is replaced] -> requests -> power loss
//!   -> open with present members -> every block: a version from the last flush on, never another
//!   -> every further opening, from either complete member: the same
//! ```
//!
//! The oracle: no flushed byte is lost as long as one complete member remains. It derives which
//! member is complete from its own actions alone.

use std::cell::Cell;
use std::rc::Rc;

use rand::{Rng, RngExt};

use pumice_drive::base::seed::{Random, random};
use pumice_drive::base::{AlignedBuffer, Clock, SegmentId};
use pumice_drive::controller::{Drive, OpenOptions, Spec, create};
use pumice_drive::format::ArrayLayout;
use pumice_drive::media::array::{Array, Assembly, MemberStatus, NewMember, Patience, read_header};
use pumice_drive::media::layer::{Fault, FaultPlan, Trigger};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::media::{Geometry, Medium, SLOTS};
use pumice_drive::runtime::Runtime;
use uuid::Uuid;

const BLOCKS: usize = 512;
const BLOCK_BYTES: usize = 4096;
const SEGMENT_BYTES: u32 = 4 << 20;

/// Time after which an unresponsive member is declared failed.
const PATIENCE_NS: u64 = 30_000_000_000;

/// The time of an operation on an unresponsive member.
const HANG_NS: u64 = 3_600_000_000_000;

/// Lives of a world.
const LIVES: u64 = 6;

type Member = Rc<Fault<MemMedium, Runtime>>;

fn array(drive: &Drive) -> &Array<Member> {
    drive.medium().downcast_ref().expect("a mirror")
}

/// The event of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// Both members lose power, independently.
    Crash,
    /// A member fails a write or a sync.
    Failure(usize),
    /// A member stops answering.
    Hang(usize),
    /// A member is absent.
    Absence(usize),
    /// Bits of a member rot before the opening, and a scrub finds them.
    Rot(usize),
    /// A member that is out is replaced, perhaps not completely.
    Replacement,
}

struct World {
    runtime: Runtime,
    random: Random,
    memory: [MemMedium; 2],
    geometry: Geometry,
    /// Members with all data.
    complete: [bool; 2],
    /// Version of each block at the last flush, and the newest written version.
    flushed: Vec<u64>,
    written: Vec<u64>,
    version: u64,
    members: u128,
    /// Whether no replacement is under way.
    was_replaced: Rc<Cell<bool>>,
}

/// Runs worlds by seed. Returns the number of lives.
///
/// # Errors
/// The first broken promise, with its seed.
pub fn run_mirrors(first_seed: u64, worlds: u64) -> Result<u64, String> {
    let mut lives = 0;
    for seed in first_seed..first_seed + worlds {
        let mut world = World::new(seed);
        for life in 0..LIVES {
            let event = world.draw_event();
            let told = |what: String| format!("mirror {seed}, life {life}, {event:?}: {what}");
            world.live(event).map_err(told)?;
            lives += 1;
        }
    }
    Ok(lives)
}

fn content(block: usize, version: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK_BYTES];
    if version > 0 {
        // Half of the data compresses.
        random(version << 20 | block as u64).fill_bytes(&mut data[..BLOCK_BYTES / 2]);
        data[..8].copy_from_slice(&version.to_le_bytes());
    }
    data
}

impl World {
    fn new(seed: u64) -> Self {
        let size_bytes = (BLOCKS * BLOCK_BYTES) as u64;
        let spec = Spec {
            segment_bytes: SEGMENT_BYTES,
            capacity_bytes: Some(18 * u64::from(SEGMENT_BYTES)),
            ..Spec::new(Uuid::from_u128(7), size_bytes)
        };
        let geometry = spec.geometry().expect("a possible drive");
        let memory = [0, 1].map(|_| MemMedium::new(geometry.medium_bytes()));
        let mut world = Self {
            runtime: Runtime::simulated(),
            random: random(seed),
            memory,
            geometry,
            complete: [true; 2],
            flushed: vec![0; BLOCKS],
            written: vec![0; BLOCKS],
            version: 1,
            members: 2,
            was_replaced: Rc::default(),
        };
        if seed.is_multiple_of(3) {
            world.memory = world.memory.map(MemMedium::without_durable_appends);
        }
        let new = |index: usize| named(index, index as u128 + 1);
        let members = [0, 1].map(|index| (world.memory[index].clone(), new(index)));
        world.runtime.block_on(async {
            let uuid = Uuid::from_u128(99);
            let array = Array::create(uuid, ArrayLayout::Mirror, members.into()).await;
            create(&array.expect("a mirror"), &spec).await.expect("memory takes every drive");
        });
        world
    }

    fn draw_event(&mut self) -> Event {
        let member = self.random.random_range(0..2);
        if self.complete != [true; 2] {
            return [Event::Replacement, Event::Crash][self.random.random_range(0..4) / 3];
        }
        match self.random.random_range(0..9) {
            0..3 => Event::Crash,
            3..5 => Event::Failure(member),
            8 => Event::Hang(member),
            5 => Event::Absence(member),
            _ => Event::Rot(member),
        }
    }

    fn live(&mut self, event: Event) -> Result<(), String> {
        if let Event::Rot(member) = event {
            self.rot(member);
        }
        let present: Vec<usize> = match event {
            Event::Absence(member) => vec![1 - member],
            // An incomplete member may be present or absent.
            _ if self.complete == [true; 2] || self.random.random() => vec![0, 1],
            _ => (0..2).filter(|&member| self.complete[member]).collect(),
        };
        if let Event::Absence(member) = event {
            self.complete[member] = false;
        }
        let (drive, layers) = self.open(&present)?;
        self.compare(&drive)?;
        if let Event::Rot(_) = event {
            let report = self.runtime.block_on(drive.scrub(0)).map_err(|error| error.chain())?;
            if report.problem_count > 0 {
                return Err(format!("a scrub found {:?}", report.problems));
            }
        }
        let latency_ns = 1_000..=[1_000, 200_000, 3_000_000][self.random.random_range(0..3)];
        for layer in &layers {
            let leaves = self.random.random_range(0..4) == 0;
            let latency_ns = latency_ns.clone();
            let plan =
                FaultPlan { latency_ns, crash_leaves_unreadable: leaves, ..FaultPlan::default() };
            layer.set_plan(plan);
        }
        self.was_replaced.set(true);
        let replacing = event == Event::Replacement && self.replace(&drive);
        let requests = self.random.random_range(1..120);
        for request in 0..requests {
            if let Event::Failure(member) = event
                && request == requests / 2
            {
                self.fail(&layers[member]);
            }
            if let Event::Hang(member) = event
                && request == requests / 2
            {
                let plan = FaultPlan { latency_ns: HANG_NS..=HANG_NS, ..FaultPlan::default() };
                layers[member].set_plan(plan);
            }
            self.request(&drive)?;
        }
        if replacing && self.random.random() {
            self.until_replaced();
        }
        self.note_states(&drive, &present);
        self.runtime.drop_tasks();
        drop(drive);
        for layer in &layers {
            // A member that has lost power already stays as it is.
            let _ = self.runtime.block_on(layer.crash());
        }
        self.look_from_each_side()
    }

    fn open(&mut self, present: &[usize]) -> Result<(Rc<Drive>, Vec<Member>), String> {
        self.open_as(present, OpenOptions::default())
    }

    fn open_as(
        &mut self,
        present: &[usize],
        drive_options: OpenOptions,
    ) -> Result<(Rc<Drive>, Vec<Member>), String> {
        let mut layers = Vec::new();
        let is_member = |index: &&usize| {
            // A new member may not have a header yet.
            let header = self.runtime.block_on(read_header(&self.memory[**index]));
            header.is_ok_and(|header| header.is_some())
        };
        let present: Vec<usize> = present.iter().filter(is_member).copied().collect();
        for &index in &present {
            let (memory, clock) = (self.memory[index].clone(), self.runtime.clone());
            let plan = FaultPlan::default();
            layers.push(Rc::new(Fault::new(memory, clock, self.random.next_u64(), plan)));
        }
        let paths = present.iter().map(|index| format!("/{index}"));
        let members = layers.iter().cloned().zip(paths).collect();
        // A complete member is always present.
        let options = Assembly::default().with_degraded(true);
        let options = options.with_read_only(drive_options.read_only);
        let patience = Patience::new(&self.runtime, PATIENCE_NS);
        let opened = self.runtime.block_on(async {
            let array = Array::assemble(members, options).await?.with_patience(patience);
            let array = Rc::new(array);
            Drive::open(array, self.runtime.clock(), drive_options).await
        });
        opened.map(|drive| (drive, layers)).map_err(|error| error.chain())
    }

    fn request(&mut self, drive: &Rc<Drive>) -> Result<(), String> {
        let block = self.random.random_range(0..BLOCKS);
        let count = self.random.random_range(1..=8.min(BLOCKS - block));
        let mut data = Vec::new();
        for block in block..block + count {
            data.extend(content(block, self.version));
        }
        let offset = (block * BLOCK_BYTES) as u64;
        let written = self.runtime.block_on(drive.write(offset, &data));
        written.map_err(|error| format!("a write failed: {}", error.chain()))?;
        self.written[block..block + count].fill(self.version);
        self.version += 1;
        match self.random.random_range(0..8) {
            0 => {
                let flushed = self.runtime.block_on(drive.flush());
                flushed.map_err(|error| format!("a flush failed: {}", error.chain()))?;
                self.flushed.clone_from(&self.written);
            }
            1 => {
                let pause_ns = self.random.random_range(0..2_000_000_000);
                self.runtime.block_on(self.runtime.sleep_ns(pause_ns));
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that each block has an allowed version, which is its version from then on.
    fn compare(&mut self, drive: &Rc<Drive>) -> Result<(), String> {
        let mut data = vec![0; BLOCK_BYTES];
        for block in 0..BLOCKS {
            let read = self.runtime.block_on(drive.read((block * BLOCK_BYTES) as u64, &mut data));
            read.map_err(|error| format!("block {block}: {}", error.chain()))?;
            let version = u64::from_le_bytes(data[..8].try_into().expect("eight bytes"));
            let range = self.flushed[block]..=self.written[block];
            if !range.contains(&version) || data != content(block, version) {
                return Err(format!("block {block}: version {version}, expected {range:?}"));
            }
            (self.flushed[block], self.written[block]) = (version, version);
        }
        Ok(())
    }

    /// Opens the drive with all present members, first without changing anything, then from copies
    /// of each complete member alone: all must show the same data.
    fn look_from_each_side(&mut self) -> Result<(), String> {
        let to_read = OpenOptions { read_only: true, ..OpenOptions::default() };
        let (drive, _layers) = self.open_as(&[0, 1], to_read)?;
        self.compare(&drive).map_err(|what| format!("read-only: {what}"))?;
        self.runtime.drop_tasks();
        drop(drive);
        let (drive, _layers) = self.open(&[0, 1])?;
        self.compare(&drive)?;
        self.runtime.drop_tasks();
        drop(drive);
        let whole = self.memory.clone();
        let complete = self.complete;
        for member in (0..2).filter(|&member| complete[member]) {
            self.memory =
                whole.each_ref().map(|memory| copy_of(&self.runtime, self.geometry, memory));
            let looked = self.open(&[member]).and_then(|(drive, _)| {
                let looked = self.compare(&drive);
                self.runtime.drop_tasks();
                looked
            });
            self.memory.clone_from(&whole);
            looked.map_err(|what| format!("from member {member} alone: {what}"))?;
        }
        Ok(())
    }

    /// Flips bits of one member while both members are complete.
    fn rot(&mut self, member: usize) {
        self.memory[member].set_geometry(self.geometry).expect("the same size");
        for _ in 0..self.random.random_range(1..400) {
            let segment = SegmentId(self.random.random_range(0..self.geometry.segment_count));
            let page = self.random.random_range(0..SEGMENT_BYTES / 4096 / 8) * 4096;
            let (at, bit) = (self.random.random_range(0..4096), self.random.random_range(0..8));
            let memory = &self.memory[member];
            self.runtime.block_on(async {
                let buffer = AlignedBuffer::zeroed(4096);
                let (mut bytes, read) = memory.read(segment, page, buffer).await;
                read.expect("memory");
                bytes[at] ^= 1 << bit;
                memory.append(segment, page, bytes.into()).await.expect("memory");
            });
        }
    }

    fn fail(&mut self, layer: &Member) {
        let at = Trigger::Nth(self.random.random_range(1..6));
        let plan = match self.random.random() {
            true => FaultPlan { append_errors: at, ..FaultPlan::default() },
            false => FaultPlan { sync_errors: at, ..FaultPlan::default() },
        };
        layer.set_plan(plan);
    }

    /// Begins to replace the member that is out. Returns whether it could.
    fn replace(&mut self, drive: &Rc<Drive>) -> bool {
        let out: Vec<_> = array(drive).info().members;
        let Some(at) = out.iter().position(|member| member.state != MemberStatus::Online) else {
            return false;
        };
        let uuid = out[at].uuid;
        let index = usize::from(out[at].path == "/1");
        self.memory[index] = MemMedium::new(self.geometry.medium_bytes());
        let (memory, clock) = (self.memory[index].clone(), self.runtime.clone());
        let plan = FaultPlan { latency_ns: 0..=500_000, ..FaultPlan::default() };
        let layer = Rc::new(Fault::new(memory, clock, self.random.next_u64(), plan));
        self.members += 1;
        let new = named(index, self.members);
        let (drive, was_replaced) = (drive.clone(), self.was_replaced.clone());
        was_replaced.set(false);
        self.runtime.spawn(async move {
            let array = array(&drive);
            let replaced = async {
                array.remove_member(uuid).await?;
                array.add_member(layer, new).await?;
                let copy = async |segment, range, show: &mut dyn FnMut(u32, &[u8])| {
                    array.copy(segment, range, show).await
                };
                drive.copy_in_use(|_| (), copy).await?;
                array.finish_rebuild().await
            };
            // The replacement ends with the life, or fails with the drive.
            was_replaced.set(replaced.await.is_ok());
        });
        true
    }

    fn until_replaced(&self) {
        for _ in 0..10_000 {
            if self.was_replaced.get() {
                return;
            }
            self.runtime.block_on(self.runtime.sleep_ns(1_000_000));
        }
    }

    /// Records which members are complete now.
    fn note_states(&mut self, drive: &Rc<Drive>, present: &[usize]) {
        self.complete = [false; 2];
        for member in array(drive).info().members {
            let index = usize::from(member.path == "/1");
            let is_new = !self.was_replaced.get() && member.uuid == Uuid::from_u128(self.members);
            self.complete[index] = member.state == MemberStatus::Online && !is_new;
        }
        let is_any_present = present.iter().any(|&index| self.complete[index]);
        assert!(is_any_present, "a member that is present has everything");
    }
}

fn named(index: usize, number: u128) -> NewMember {
    NewMember { uuid: Uuid::from_u128(number), path: format!("/{index}"), segment_count: 0 }
}

/// Returns another medium with the same bytes.
fn copy_of(runtime: &Runtime, geometry: Geometry, memory: &MemMedium) -> MemMedium {
    let copy = MemMedium::new(geometry.medium_bytes());
    for medium in [&copy, memory] {
        medium.set_geometry(geometry).expect("the same size");
    }
    runtime.block_on(async {
        for slot in 0..SLOTS {
            let bytes = memory.read_superblock(slot).await.expect("memory");
            copy.write_superblock(slot, bytes).await.expect("memory");
        }
        for segment in (0..geometry.segment_count).map(SegmentId) {
            let buffer = AlignedBuffer::zeroed(SEGMENT_BYTES as usize);
            let (bytes, read) = memory.read(segment, 0, buffer).await;
            read.expect("memory");
            copy.append(segment, 0, bytes.into()).await.expect("memory");
        }
    });
    copy
}
