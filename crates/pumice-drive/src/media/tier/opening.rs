//! Creating a drive in a bucket, opening it with its journal, and taking it over without one.
//!
//! ```text
//! open:       newest claim was made from this journal -> next claim -> newest commit is not beyond
//!             the journal -> first commit of the epoch
//! take over:                              next claim -> newest commit -> first commit
//! ```
//!
//! The search for the newest commit takes place after the claim: by then, every commit of earlier
//! epochs that will ever count exists. Nothing is served before the first commit of the epoch
//! counts.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use uuid::Uuid;

use super::Shape;
use super::history::{self, Newest};
use super::local::{Local, Slot};
use super::object::{
    Claim, CommitId, DRIVE_NAME, DriveObject, EPOCH_MAX, Entry, Journal, NONCES_MAX,
    PLACE_BYTES_MAX, SlotHeader, claim_name,
};
use super::options::{Durable, Options};
use super::state::{Held, State};
use super::store::{Patience, Patient, Store};
use super::uses::Use;
use crate::base::{AlignedBuffer, Clock, Error, ErrorContext, ErrorKind, Remedy, Result, ensure};
use crate::media::{Medium, SUPERBLOCK_SLOTS};

/// Number of concurrent creations of one object. Exactly one must succeed.
const PROBES: usize = 8;

/// Probes with an unknown outcome before the attempt is abandoned.
const PROBE_ATTEMPTS: u32 = 3;

/// Minimum number of slots: one for each stream that a drive writes, and the same number for
/// uploads.
pub(super) const SLOTS_MIN: u32 = 16;

impl<L: Medium, S: Store, C: Clock + Clone> State<L, S, C> {
    /// Creates a drive in a bucket, with an empty medium as its journal, and opens it.
    pub(super) async fn create(
        local: L,
        store: S,
        clock: C,
        shape: Shape,
        nonce: Uuid,
        options: Options,
    ) -> Result<Self> {
        let Shape { uuid, segment_bytes, slots } = shape;
        let identity = DriveObject { uuid, segment_bytes };
        let store = Patient::new(store, clock.clone());
        let is_there = store.exists(DRIVE_NAME).await?;
        let what = "there is a drive in the bucket under this name";
        ensure(!is_there, ErrorKind::AlreadyExists, what)?;
        probe(&store, nonce).await?;
        let local =
            Local::format(local, new_journal(&identity, slots, 1, nonce, &options)?).await?;
        let is_new = store.claim(DRIVE_NAME, &identity.encode()).await?;
        ensure(is_new, ErrorKind::AlreadyExists, what)?;
        local.update(|_| {}).await?;
        claim(&store, &identity, 1, nonce, &options).await?;
        let state = Self::new(local, store, clock, options, 1);
        state.begin().await?;
        Ok(state)
    }

    /// Opens a drive in a bucket with its journal.
    pub(super) async fn open(
        local: L,
        store: S,
        clock: C,
        nonce: Uuid,
        host: &str,
    ) -> Result<Self> {
        let store = Patient::new(store, clock.clone());
        let drive = history::drive(&store).await?;
        let (local, slots) = Local::open(local).await?;
        check_drive(&local, &drive)?;
        let journal = local.journal();
        let newest = history::newest_claim(&store, &drive).await?;
        check_claim(&journal, &newest)?;
        let options = Options { host: host.to_owned(), ..options_of(&journal) };
        let epoch = next_epoch(newest.epoch)?;
        // An earlier copy of the journal must not fence the journal that is in use.
        let before = history::newest_commit(&store, &drive, newest.epoch).await?;
        check_age(&journal, before.id)?;
        local.update(|journal| add_nonce(journal, newest.nonce, nonce)).await?;
        claim(&store, &drive, epoch, nonce, &options).await?;
        let image = history::newest_commit(&store, &drive, newest.epoch).await?;
        check_age(&journal, image.id)?;
        let state = Self::new(local, store, clock, options, epoch);
        state.load_superblocks().await?;
        state.adopt(image, slots, false);
        state.begin().await?;
        Ok(state)
    }

    /// Opens a drive in a bucket with its journal, to read the data of both. If `fenced`, also
    /// accepts a journal, in its last state, after another machine has taken over the drive. Makes
    /// no claim.
    pub(super) async fn open_to_read(local: L, store: S, clock: C, fenced: bool) -> Result<Self> {
        let store = Patient::new(store, clock.clone());
        let drive = history::drive(&store).await?;
        let (local, slots) = Local::open(local).await?;
        check_drive(&local, &drive)?;
        let journal = local.journal();
        let newest = history::newest_claim(&store, &drive).await?;
        let image = history::newest_commit(&store, &drive, newest.epoch).await?;
        let is_fenced = fenced && check_claim(&journal, &newest).is_err();
        if !is_fenced {
            check_claim(&journal, &newest)?;
            check_age(&journal, image.id)?;
        }
        store.set_patience(Patience::Endless);
        let options = options_of(&journal);
        let state = Self::new(local, store, clock, options, newest.epoch);
        state.load_superblocks().await?;
        state.adopt(image, slots, is_fenced);
        state.is_for_reading.set(true);
        *state.poison.borrow_mut() = Some("the drive is open for reading".into());
        Ok(state)
    }

    /// Opens a drive in a bucket, with an empty medium as its journal. Changes that other machines
    /// have not committed are lost to the drive.
    pub(super) async fn take_over(
        local: L,
        store: S,
        clock: C,
        slots: u32,
        nonce: Uuid,
        options: Options,
    ) -> Result<Self> {
        let store = Patient::new(store, clock.clone());
        let drive = history::drive(&store).await?;
        let newest = history::newest_claim(&store, &drive).await?;
        let epoch = next_epoch(newest.epoch)?;
        let local =
            Local::format(local, new_journal(&drive, slots, epoch, nonce, &options)?).await?;
        local.update(|_| {}).await?;
        claim(&store, &drive, epoch, nonce, &options).await?;
        let image = history::newest_commit(&store, &drive, newest.epoch).await?;
        for (slot, superblock) in (0..SUPERBLOCK_SLOTS).zip(&image.superblocks) {
            if let Some(bytes) = superblock {
                local.write_superblock(slot, bytes.clone()).await?;
            }
        }
        let state = Self::new(local, store, clock, options, epoch);
        *state.superblocks.borrow_mut() = image.superblocks.clone();
        state.adopt(image, Vec::new(), false);
        state.begin().await?;
        Ok(state)
    }

    /// Reads the superblock slots of the drive from the journal.
    async fn load_superblocks(&self) -> Result<()> {
        for slot in 0..SUPERBLOCK_SLOTS {
            let bytes = self.local.read_superblock(slot).await?;
            let is_written = bytes.iter().any(|&byte| byte != 0);
            if let Some(superblock) = self.superblocks.borrow_mut().get_mut(slot as usize) {
                *superblock = is_written.then(|| Arc::new(bytes));
            }
        }
        Ok(())
    }

    /// Adopts the uses in the bucket and in slots. Of two uses of a segment, retains the later one.
    /// If `is_fenced`, retains the one in a slot: the one in the bucket belongs to another machine,
    /// unless the two are the same use, since the bytes of a use do not change.
    fn adopt(&self, image: Newest, slots: Vec<(SlotHeader, Slot)>, is_fenced: bool) {
        let mut in_slots: BTreeMap<u32, (u64, Slot)> = BTreeMap::new();
        for (SlotHeader { segment, use_id, .. }, slot) in slots {
            let in_bucket = image.index.get(&segment).filter(|_| !is_fenced);
            let in_bucket = in_bucket.map_or(0, |entry| entry.use_id);
            let other = in_slots.get(&segment).map_or(0, |(use_id, _)| *use_id);
            if use_id >= in_bucket.max(other) {
                in_slots.insert(segment, (use_id, slot));
            }
        }
        assert!(self.segments.borrow().is_empty(), "uses are found before any is begun");
        let segment_bytes = self.local.segment_bytes();
        let changed = &mut *self.changed.borrow_mut();
        for (&segment, entry) in &image.index {
            let slot = match in_slots.get(&segment) {
                Some(&(use_id, _)) if use_id == entry.use_id => in_slots.remove(&segment),
                Some(_) => continue,
                None => None,
            };
            let slot = slot.map(|(_, slot)| Rc::new(slot));
            let used = Use::found(segment, entry.use_id, slot, entry.chunks.clone(), segment_bytes);
            self.adopt_use(used, changed);
        }
        for (segment, (use_id, slot)) in in_slots {
            let slot = Some(Rc::new(slot));
            let used = Use::found(segment, use_id, slot, Vec::new(), segment_bytes);
            self.adopt_use(used, changed);
        }
        self.counted.set(image.id);
        self.stored_bytes.set(image.index.values().map(Entry::bytes).sum());
        *self.index.borrow_mut() = image.index;
    }

    fn adopt_use(&self, used: Use, changed: &mut std::collections::BTreeSet<u32>) {
        let dirty = used.dirty.borrow().bytes();
        self.dirty_bytes.set(self.dirty_bytes.get() + dirty);
        if dirty > 0 {
            changed.insert(used.segment);
        }
        let segment = used.segment;
        let other = self.segments.borrow_mut().insert(segment, Held::Use(Rc::new(used)));
        assert!(other.is_none(), "a segment has one use");
    }

    /// Makes the first commit of the epoch.
    async fn begin(&self) -> Result<()> {
        self.commit().await?;
        assert_eq!(self.counted_number(), 1, "the first commit of an epoch has number 1");
        self.store.set_patience(Patience::Endless);
        Ok(())
    }
}

fn new_journal(
    drive: &DriveObject,
    slots: u32,
    first_epoch: u32,
    nonce: Uuid,
    options: &Options,
) -> Result<Journal> {
    let is_short = options.place.len() <= PLACE_BYTES_MAX;
    ensure(is_short, ErrorKind::InvalidInput, "the URL of the bucket is too long")?;
    let what = format!("the journal is too small: it needs {SLOTS_MIN} slots");
    ensure(slots >= SLOTS_MIN, ErrorKind::InvalidInput, what)?;
    let journal = Journal {
        uuid: drive.uuid,
        revision: 0,
        segment_bytes: drive.segment_bytes,
        slots,
        first_epoch,
        intent: CommitId::default(),
        lag_ns: options.lag_ns,
        lag_bytes_max: options.lag_bytes_max,
        is_durable_in_bucket: options.durable == Durable::Bucket,
        place: options.place.clone(),
        nonces: vec![nonce],
    };
    let what = "impossible numbers for a journal: segments are a multiple of 4096 bytes from 64 \
                KiB to 1 GiB, there are up to 16,777,216 of them, and the lag is up to a day";
    ensure(journal.is_possible(), ErrorKind::InvalidInput, what)?;
    Ok(journal)
}

fn options_of(journal: &Journal) -> Options {
    let is_local = !journal.is_durable_in_bucket;
    Options {
        lag_ns: journal.lag_ns,
        lag_bytes_max: journal.lag_bytes_max,
        durable: if is_local { Durable::Local } else { Durable::Bucket },
        place: journal.place.clone(),
        ..Options::default()
    }
}

/// Remembers the nonce of a claim about to be tried, and the nonce of the newest claim, which was
/// made from this journal.
fn add_nonce(journal: &mut Journal, newest: Uuid, nonce: Uuid) {
    let nonces = &mut journal.nonces;
    nonces.retain(|&other| other != newest);
    let surplus = (nonces.len() + 2).saturating_sub(NONCES_MAX);
    nonces.drain(..surplus);
    nonces.extend([newest, nonce]);
}

fn next_epoch(epoch: u32) -> Result<u32> {
    let next = epoch.checked_add(1).filter(|&epoch| epoch <= EPOCH_MAX);
    next.or_error(ErrorKind::Corrupt, "the counter of claims overflows")
}

fn check_drive<L: Medium>(local: &Local<L>, drive: &DriveObject) -> Result<()> {
    let is_of_drive = local.uuid() == drive.uuid && local.segment_bytes() == drive.segment_bytes;
    ensure(is_of_drive, ErrorKind::InvalidInput, "the journal belongs to another drive")
}

/// # Errors
/// `Busy` if the newest claim was not made from this journal.
fn check_claim(journal: &Journal, newest: &Claim) -> Result<()> {
    let is_ours = journal.nonces.contains(&newest.nonce);
    let what = format!(
        "another machine ({}) has opened the drive since this journal was used: changes that \
         only the journal has are no longer part of the drive",
        if newest.host.is_empty() { "name unknown" } else { &newest.host }
    );
    ensure(is_ours, ErrorKind::Busy, what).map_err(|error| error.with_remedy(Remedy::Fenced))
}

/// # Errors
/// `InvalidInput` if the bucket has a commit that the journal does not record: the journal is an
/// earlier copy.
fn check_age(journal: &Journal, newest: CommitId) -> Result<()> {
    let is_known = newest <= journal.intent && newest.epoch >= journal.first_epoch;
    let what = "the journal is older than the bucket: it is an earlier copy, or was never used; \
                take the drive over with an empty journal";
    ensure(is_known, ErrorKind::InvalidInput, what)
}

/// # Errors
/// `Busy` if another machine was faster.
async fn claim<S: Store, C: Clock>(
    store: &Patient<S, C>,
    drive: &DriveObject,
    epoch: u32,
    nonce: Uuid,
    options: &Options,
) -> Result<()> {
    let claim = Claim { uuid: drive.uuid, epoch, nonce, host: options.host.clone() };
    let is_ours = store.claim(&claim_name(epoch), &claim.encode()).await?;
    let what = "another machine is opening the drive";
    ensure(is_ours, ErrorKind::Busy, what)
}

/// Verifies that exactly one of several concurrent creations of an object succeeds.
///
/// # Errors
/// `Unsupported` if more or fewer succeed; errors of the store.
async fn probe<S: Store, C: Clock>(store: &Patient<S, C>, nonce: Uuid) -> Result<()> {
    for attempt in 0..PROBE_ATTEMPTS {
        let name = format!("probe/{}-{attempt}", nonce.simple());
        let outcome = probe_once(store, &name).await;
        store.delete(&name).await;
        match outcome {
            Err(error) if error.kind() == ErrorKind::Io && attempt + 1 < PROBE_ATTEMPTS => {}
            outcome => return outcome,
        }
    }
    Ok(())
}

async fn probe_once<S: Store, C: Clock>(store: &Patient<S, C>, name: &str) -> Result<()> {
    let content = |number: usize| {
        let mut bytes = AlignedBuffer::zeroed(8);
        bytes.copy_from_slice(&(number as u64).to_le_bytes());
        Arc::new(bytes)
    };
    let creations = (0..PROBES).map(|number| store.try_create(name, content(number)));
    let outcomes = futures_util::future::join_all(creations).await;
    let mut created = Vec::new();
    let mut failure = None;
    for (number, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(true) => created.push(number),
            Ok(false) => {}
            Err(error) => failure = Some(error),
        }
    }
    let found = store.get(name, None).await?;
    let is_kept = |&number: &usize| found.as_deref() == Some(&content(number)[..]);
    let is_overwritten = matches!(store.try_create(name, content(PROBES)).await, Ok(true));
    let is_right = created.len() <= 1 && created.iter().all(is_kept) && !is_overwritten;
    let what = "the object store does not create objects exclusively (If-None-Match: *): two \
                machines could write one drive; use a store that does";
    ensure(is_right, ErrorKind::Unsupported, what)?;
    match (created.is_empty(), failure) {
        (true, Some(error)) => Err(error),
        (true, None) => Err(Error::new(ErrorKind::Unsupported, what)),
        (false, _) => Ok(()),
    }
}
