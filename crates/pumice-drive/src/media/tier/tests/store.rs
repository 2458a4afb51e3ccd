//! A simulated object store in virtual time. Operations take time and complete out of order; they
//! fail before their effect, after it, or long before a late effect; listings lag.
//!
//! After each effect, the store verifies the promises of the protocol: no name ever has two
//! contents, and everything that the newest commit refers to exists.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use rand::RngExt;

use super::super::object::{Commit, CommitId};
use super::super::store::{Listed, Store};
use crate::base::seed::{Random, random};
use crate::base::wait::WaitQueue;
use crate::base::{AlignedBuffer, Clock, Error, ErrorKind, Result};
use crate::runtime::Runtime;

/// The faults, each with a probability of one in this many operations; 0 for never.
#[derive(Clone, Copy, Default)]
pub(super) struct Faults {
    /// 503, 429 or a reset connection before the effect.
    pub(super) refused: u32,
    /// An answer that is lost after the effect.
    pub(super) lost_answer: u32,
    /// A failure, and the effect up to an hour later.
    pub(super) late: u32,
    /// A 409 for a conditional creation although there is no such object.
    pub(super) conflict: u32,
    /// A listing without the objects written in the last minute, and with deleted objects.
    pub(super) stale_list: u32,
}

/// All faults together, often.
pub(super) const STORMY: Faults =
    Faults { refused: 12, lost_answer: 12, late: 12, conflict: 3, stale_list: 2 };

pub(super) struct Sim {
    runtime: Runtime,
    random: RefCell<Random>,
    pub(super) faults: Cell<Faults>,
    pub(super) is_down: Cell<bool>,
    /// Additional time of each operation, in nanoseconds.
    pub(super) slow_ns: Cell<u64>,
    /// Whether concurrent creations all succeed.
    pub(super) is_lying: Cell<bool>,
    pub(super) objects: RefCell<BTreeMap<String, Arc<[u8]>>>,
    /// Every content that a name has had.
    contents: RefCell<BTreeMap<String, Arc<[u8]>>>,
    written_ns: RefCell<BTreeMap<String, u64>>,
    deleted: RefCell<BTreeSet<String>>,
    pub(super) operations: Cell<u64>,
    /// Effects of operations that have failed, with their times.
    late: RefCell<Vec<(u64, Effect)>>,
    segment_bytes: u32,
}

type Effect = Box<dyn Fn(&Sim)>;

/// One client of the store, which can be stopped at any operation.
pub(super) struct Client {
    sim: Rc<Sim>,
    is_stopped: Rc<Cell<bool>>,
    resumed: Rc<WaitQueue>,
}

/// Stops a client and lets it continue.
#[derive(Clone)]
pub(super) struct Gate {
    is_stopped: Rc<Cell<bool>>,
    resumed: Rc<WaitQueue>,
}

impl Gate {
    pub(super) fn stop(&self) {
        self.is_stopped.set(true);
    }

    pub(super) fn resume(&self) {
        self.is_stopped.set(false);
        self.resumed.wake_all();
    }
}

impl Sim {
    pub(super) fn new(runtime: &Runtime, seed: u64, segment_bytes: u32) -> Rc<Self> {
        Rc::new(Self {
            runtime: runtime.clone(),
            random: RefCell::new(random(seed)),
            faults: Cell::default(),
            is_down: Cell::default(),
            slow_ns: Cell::default(),
            is_lying: Cell::default(),
            objects: RefCell::default(),
            contents: RefCell::default(),
            written_ns: RefCell::default(),
            deleted: RefCell::default(),
            operations: Cell::default(),
            late: RefCell::default(),
            segment_bytes,
        })
    }

    pub(super) fn client(self: &Rc<Self>) -> (Client, Gate) {
        let gate = Gate { is_stopped: Rc::default(), resumed: Rc::default() };
        let Gate { is_stopped, resumed } = gate.clone();
        (Client { sim: self.clone(), is_stopped, resumed }, gate)
    }

    fn strikes(&self, one_in: u32) -> bool {
        one_in > 0 && self.random.borrow_mut().random_range(0..one_in) == 0
    }

    fn below(&self, limit: u64) -> u64 {
        self.random.borrow_mut().random_range(0..limit)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let known = self.contents.borrow().get(name).cloned();
        if let Some(known) = known {
            let is_probe = name.starts_with("probe/");
            assert!(is_probe || known[..] == *bytes, "{name} is written with another content");
        }
        let bytes: Arc<[u8]> = bytes.into();
        self.contents.borrow_mut().insert(name.to_owned(), bytes.clone());
        self.objects.borrow_mut().insert(name.to_owned(), bytes);
        self.written_ns.borrow_mut().insert(name.to_owned(), self.runtime.now_ns());
        self.check(name);
    }

    fn erase(&self, name: &str) {
        let unforgettable = name == "drive" || name.starts_with("claims/");
        assert!(!unforgettable, "{name} is deleted");
        self.objects.borrow_mut().remove(name);
        self.deleted.borrow_mut().insert(name.to_owned());
        self.check(name);
    }

    /// Verifies that the newest image is complete, if a change of `name` can have affected that.
    fn check(&self, name: &str) {
        if !(name.starts_with("commits/") || name.starts_with("s/")) {
            return;
        }
        for chunk in self.newest_chunks() {
            assert!(
                self.objects.borrow().contains_key(&chunk),
                "{chunk} is missing after an operation on {name}"
            );
        }
    }

    /// Returns the chunks that the newest commit refers to.
    fn newest_chunks(&self) -> Vec<String> {
        let objects = self.objects.borrow();
        let Some((name, bytes)) = objects.iter().rfind(|(name, _)| name.starts_with("commits/"))
        else {
            return Vec::new();
        };
        let decode = |bytes: &[u8], name: &str| Commit::decode(bytes, name, self.segment_bytes);
        let commit = decode(bytes, name).unwrap();
        let mut index = BTreeMap::new();
        if commit.base > 0 {
            let name = CommitId { number: commit.base, ..commit.id }.name();
            let base = objects.get(&name).unwrap_or_else(|| panic!("{name} is missing"));
            index.extend(decode(base, &name).unwrap().changes);
        }
        index.extend(commit.changes);
        let of_entry = |(segment, entry): (u32, Option<_>)| {
            let entry: Option<super::super::object::Entry> = entry;
            let name = move |use_id| {
                move |chunk: &super::super::object::Chunk| chunk.name(segment, use_id)
            };
            entry.map(|entry| entry.chunks.iter().map(name(entry.use_id)).collect::<Vec<_>>())
        };
        index.into_iter().filter_map(of_entry).flatten().collect()
    }

    pub(super) fn names(&self, prefix: &str) -> Vec<String> {
        let objects = self.objects.borrow();
        objects.keys().filter(|name| name.starts_with(prefix)).cloned().collect()
    }
}

fn failure() -> Error {
    Error::new(ErrorKind::Io, "503 Slow Down")
}

impl Client {
    /// Waits until the client may continue, and applies the late effects that are due by then.
    async fn pass(&self) {
        self.resumed.wait_for(|| (!self.is_stopped.get()).then_some(())).await;
        let now_ns = self.sim.runtime.now_ns();
        let come: Vec<_> =
            self.sim.late.borrow_mut().extract_if(.., |(due_ns, _)| *due_ns <= now_ns).collect();
        come.into_iter().for_each(|(_, effect)| effect(&self.sim));
    }

    /// Performs an operation that changes objects. It takes effect now, later or not at all.
    async fn change<T>(&self, effect: impl Fn(&Sim) -> T + 'static) -> Result<T> {
        let sim = &self.sim;
        sim.operations.set(sim.operations.get() + 1);
        self.pass().await;
        sim.runtime.sleep_ns(1 + sim.below(20_000_000) + sim.slow_ns.get()).await;
        self.pass().await;
        let faults = sim.faults.get();
        if sim.is_down.get() || sim.strikes(faults.refused) {
            return Err(failure());
        }
        if sim.strikes(faults.late) {
            let due_ns = sim.runtime.now_ns() + 1 + sim.below(1 << sim.below(42));
            let effect = move |sim: &Sim| _ = effect(sim);
            sim.late.borrow_mut().push((due_ns, Box::new(effect)));
            return Err(failure());
        }
        let result = effect(sim);
        sim.runtime.sleep_ns(1 + sim.below(20_000_000)).await;
        self.pass().await;
        if sim.strikes(faults.lost_answer) { Err(failure()) } else { Ok(result) }
    }

    async fn ask<T>(&self, answer: impl FnOnce(&Sim) -> T) -> Result<T> {
        let sim = &self.sim;
        sim.operations.set(sim.operations.get() + 1);
        self.pass().await;
        sim.runtime.sleep_ns(1 + sim.below(20_000_000) + sim.slow_ns.get()).await;
        self.pass().await;
        let answer = answer(sim);
        sim.runtime.sleep_ns(1 + sim.below(20_000_000)).await;
        self.pass().await;
        let fails = sim.is_down.get() || sim.strikes(sim.faults.get().refused);
        if fails { Err(failure()) } else { Ok(answer) }
    }
}

impl Store for Client {
    async fn put(&self, name: &str, bytes: Arc<AlignedBuffer>) -> Result<()> {
        let name = name.to_owned();
        self.change(move |sim| sim.write(&name, &bytes)).await
    }

    async fn put_if_absent(&self, name: &str, bytes: Arc<AlignedBuffer>) -> Result<bool> {
        if self.sim.strikes(self.sim.faults.get().conflict) {
            return Ok(false);
        }
        let name = name.to_owned();
        self.change(move |sim| {
            let is_absent = sim.is_lying.get() || !sim.objects.borrow().contains_key(&name);
            if is_absent {
                sim.write(&name, &bytes);
            }
            is_absent
        })
        .await
    }

    async fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Vec<u8>>> {
        self.ask(|sim| {
            let objects = sim.objects.borrow();
            let bytes = objects.get(name)?;
            let range =
                range.map_or(0..bytes.len(), |range| range.start as usize..range.end as usize);
            Some(bytes[range].to_vec())
        })
        .await
    }

    async fn exists(&self, name: &str) -> Result<bool> {
        self.ask(|sim| sim.objects.borrow().contains_key(name)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.ask(|sim| {
            let mut names: BTreeSet<String> = sim.names(prefix).into_iter().collect();
            if sim.strikes(sim.faults.get().stale_list) {
                let recent = sim.runtime.now_ns().saturating_sub(60_000_000_000);
                let written_ns = sim.written_ns.borrow();
                names.retain(|name| written_ns.get(name).is_none_or(|&at| at < recent));
                let deleted = sim.deleted.borrow();
                names.extend(deleted.iter().filter(|name| name.starts_with(prefix)).cloned());
            }
            names.into_iter().map(|name| Listed { name, bytes: 0 }).collect()
        })
        .await
    }

    async fn delete(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.change(move |sim| sim.erase(&name)).await
    }
}
