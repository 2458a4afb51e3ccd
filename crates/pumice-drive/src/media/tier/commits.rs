//! Commits: uploading an image of the medium, as it was at one moment, to the bucket.
//!
//! ```text
//! cut: everything that has completed, without waiting
//!   -> its chunks are uploaded -> the journal notes the commit, and is synced
//!   -> PUT of the commit -> no later claim exists: the commit counts
//!   -> the objects that it has unlinked are deleted
//! ```
//!
//! An image contains every append and superblock write that had completed when it was cut, and none
//! that was in progress. A power loss at that moment could have left exactly this state. The image
//! is durable in the journal before it can be in the bucket, so a journal is never older than the
//! bucket unless it was replaced by an earlier copy.
//!
//! A name is always written with the same content. Bytes that a failed commit has tried to upload
//! therefore count as uploaded: they are not overwritten under the same use, whose chunks would
//! have the same names.
//!
//! One commit is in progress at a time. Once its PUT was tried, it is repeated with the same bytes:
//! a PUT that arrives late changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::select;
use futures_util::stream::{self, StreamExt};

use super::local::Slot;
use super::object::{Chunk, Commit, CommitId, Entry, Index, claim_name, epoch_of, is_probe};
use super::state::{State, Superblocks};
use super::store::Store;
use super::uses::Use;
use crate::base::checksum::crc64;
use crate::base::{AlignedBuffer, Clock, Error, ErrorKind, Result};
use crate::media::Medium;

/// Largest chunk. Large enough that the number of requests does not matter, and small enough that a
/// few chunks fit into memory; otherwise arbitrary.
const CHUNK_BYTES_MAX: u32 = 8 << 20;

/// Requests of a commit that are in progress at a time.
const PARALLEL: usize = 4;

/// A change list up to this length is never worth a new base.
const CHANGES_SHORT: usize = 64 << 10;

/// A new base is written once the changes use more bytes than the old base divided by this.
const BASE_SHARE: usize = 4;

/// The first commit of an epoch and each commit whose number is a multiple of this are retained: a
/// search finds the newest commit by checking which of these exist.
pub(super) const KEPT_EVERY: u64 = 256;

/// Pause after a failed commit, before a requested commit is tried again.
const RETRY_NS: u64 = 100_000_000;

/// The unit in which leading and trailing zeroes are omitted.
const PAGE: usize = 4096;

/// The content of the next commit.
struct Image {
    cut: u64,
    superblocks: Superblocks,
    changed: BTreeSet<u32>,
    parts: Vec<Part>,
    /// The use of each changed segment, if it has one.
    uses: BTreeMap<u32, Rc<Use>>,
    since_ns: Option<u64>,
}

/// A use that is uploaded in part or as a whole. Holds the slot.
struct Part {
    used: Rc<Use>,
    slot: Rc<Slot>,
}

/// A commit, which must not be abandoned halfway: no other commit would contain the changes that it
/// took.
struct Outcome<'a, L, S, C> {
    state: &'a State<L, S, C>,
    is_known: bool,
}

impl<L, S, C> Drop for Outcome<'_, L, S, C> {
    fn drop(&mut self) {
        let is_in_use = !self.state.is_closing.get() && self.state.poison.borrow().is_none();
        if !self.is_known && is_in_use {
            self.state.set_poison("a commit was interrupted: open the drive again".into());
        }
    }
}

impl<L: Medium, S: Store, C: Clock> State<L, S, C> {
    /// Commits whenever there are changes, until the drive is closed or has failed. A commit that
    /// is in progress by then is abandoned.
    pub(super) async fn run_commits(&self) {
        self.while_open(self.commit_on()).await;
    }

    /// Runs `work` until it is done or the drive is closed.
    async fn while_open(&self, work: impl Future<Output = ()>) {
        let closed = pin!(self.wanted.wait_for(|| self.is_closing.get().then_some(())));
        select(closed, pin!(work)).await;
    }

    async fn commit_on(&self) {
        loop {
            let is_over = || self.poison.borrow().is_some();
            self.wanted.wait_for(|| (is_over() || self.has_changes()).then_some(())).await;
            if is_over() {
                return;
            }
            self.until_due().await;
            if is_over() {
                return;
            }
            let cut = self.cut.get();
            if let Err(error) = self.commit().await {
                if is_over() {
                    return;
                }
                tracing::warn!(error = error.chain(), cut, "cannot commit: trying again");
                self.clock.sleep_ns(RETRY_NS).await;
                self.until_urgent(self.options.lag_ns).await;
            }
        }
    }

    /// Deletes the remains of earlier epochs, in parallel with all other work, until the drive is
    /// closed.
    pub(super) async fn run_sweep(&self) {
        self.while_open(self.sweep()).await;
    }

    /// Deletes the remains of earlier epochs: unreferenced chunks, left by commits that did not
    /// count and by deletions that failed; and commits, since one of this epoch counts. No later
    /// commit can refer to such chunks, and no search reaches such commits. Also deletes the probes
    /// of an interrupted creation.
    async fn sweep(&self) {
        if self.epoch == 1 {
            return;
        }
        let mut listed = Vec::new();
        for prefix in ["s/", "commits/", "probe/"] {
            match self.store.list(prefix).await {
                Ok(objects) => listed.extend(objects),
                Err(error) => {
                    let error = error.chain();
                    tracing::warn!(error, "cannot look for unneeded objects");
                    return;
                }
            }
        }
        let index = self.index.borrow().clone();
        let of_entry = |(&segment, entry): (&u32, &Entry)| {
            let names = entry.chunks.iter().map(move |chunk| chunk.name(segment, entry.use_id));
            names.collect::<Vec<_>>()
        };
        let named: BTreeSet<String> = index.iter().flat_map(of_entry).collect();
        // Objects with other names do not belong to the drive.
        let is_earlier = |name: &str| epoch_of(name).is_some_and(|epoch| epoch < self.epoch);
        let is_orphan = |name: &String| is_probe(name) || is_earlier(name) && !named.contains(name);
        let orphans = listed.into_iter().map(|object| object.name).filter(is_orphan);
        let deletions = orphans.map(|name| async move { self.store.delete(&name).await });
        stream::iter(deletions).buffer_unordered(PARALLEL).collect::<()>().await;
    }

    /// Waits until the lag has elapsed or a commit is requested, whichever is first.
    async fn until_due(&self) {
        let since = self.changed_ns.get().unwrap_or(self.clock.now_ns());
        let due = since + self.options.lag_ns;
        let left_ns = due.saturating_sub(self.clock.now_ns());
        let is_much = || (self.lag_bytes() >= self.options.lag_bytes_max / 2).then_some(());
        select(pin!(self.until_urgent(left_ns)), pin!(self.wanted.wait_for(is_much))).await;
    }

    /// Waits until an immediate commit is requested, or until a time has passed.
    async fn until_urgent(&self, ns: u64) {
        let hurry = pin!(self.wanted.wait_for(|| self.is_urgent.get().then_some(())));
        select(pin!(self.clock.sleep_ns(ns)), hurry).await;
    }

    /// Commits everything that differs from the newest image.
    ///
    /// # Errors
    /// `Poisoned` if another machine has taken over the drive; errors of the journal; errors of the
    /// store, if its patience is limited.
    pub(super) async fn commit(&self) -> Result<()> {
        let _turn = self.committing.turn().await;
        self.check()?;
        let image = self.cut();
        let mut outcome = Outcome { state: self, is_known: false };
        let result = self.commit_image(&image).await;
        outcome.is_known = true;
        if let Err(error) = &result {
            *self.failure.borrow_mut() = Some(error.chain());
            self.failures.set(self.failures.get() + 1);
            self.give_up(image);
        } else {
            // Its slots can be evicted from now on.
            drop(image);
        }
        self.wake();
        result
    }

    async fn commit_image(&self, image: &Image) -> Result<()> {
        let entries = self.upload(image).await?;
        let id = CommitId { epoch: self.epoch, number: self.counted_number() + 1 };
        let (commit, index) = self.describe(image, &entries, id);
        let bytes = commit.encode();
        self.sync_local_with(id).await?;
        let is_fenced = match self.store.put(&id.name(), &bytes).await {
            Ok(()) => self.store.exists(&claim_name(self.epoch + 1)).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &is_fenced {
            // The commit may still arrive, or count: its name must never be used for other bytes.
            self.is_uncertain.set(true);
            self.set_poison(format!(
                "it is unknown whether a commit has arrived ({}): open the drive again",
                error.chain()
            ));
        }
        if is_fenced? {
            let what = "another machine has taken the drive over: writes since the last commit are \
                        only in the journal";
            self.set_poison(what.into());
            return Err(Error::new(ErrorKind::Poisoned, what));
        }
        self.count(image, &commit, bytes.len(), index).await;
        Ok(())
    }

    /// Returns the number of the newest counted commit of this epoch.
    pub(super) fn counted_number(&self) -> u64 {
        let CommitId { epoch, number } = self.counted.get();
        assert!(epoch <= self.epoch, "no commit of a later epoch counts here");
        if epoch == self.epoch { number } else { 0 }
    }

    /// Takes the changes as they are at this moment.
    fn cut(&self) -> Image {
        assert_eq!(self.uploading_bytes.get(), 0, "one image is uploaded at a time");
        self.cut.set(self.cut.get() + 1);
        self.is_urgent.set(false);
        self.superblocks_changed.set(false);
        let changed = self.changed.take();
        let used = |&segment: &u32| Some((segment, self.used(segment)?));
        let uses: BTreeMap<_, _> = changed.iter().filter_map(used).collect();
        let mut parts = Vec::new();
        let mut bytes = 0;
        for used in uses.values() {
            let ranges = self.take_dirty(used);
            if ranges.is_empty() {
                continue;
            }
            let slot = used.slot().expect("a segment that the bucket lacks has a slot");
            bytes += ranges.bytes();
            let before = used.uploading.replace(ranges);
            assert!(before.is_empty(), "a use is in one image at a time");
            parts.push(Part { used: used.clone(), slot });
        }
        self.uploading_bytes.set(bytes);
        let still_dirty = uses.values().filter(|used| !used.dirty.borrow().is_empty());
        self.changed.borrow_mut().extend(still_dirty.map(|used| used.segment));
        self.committing_since_ns.set(self.changed_ns.get());
        Image {
            cut: self.cut.get(),
            superblocks: self.superblocks.borrow().clone(),
            changed,
            parts,
            uses,
            since_ns: self.changed_ns.take(),
        }
    }

    /// Adds the content of an uncommitted image to the next one.
    fn give_up(&self, image: Image) {
        assert!(image.cut > self.counted_cut.get(), "an image that counts is not given up");
        for Part { used, .. } in &image.parts {
            let ranges = used.uploading.take();
            // Each of the uploads may still arrive.
            ranges.iter().for_each(|(start, end)| used.tried.borrow_mut().insert(start, end));
            // A use that has ended meanwhile needs no upload any more.
            if self.used(used.segment).is_some_and(|current| Rc::ptr_eq(&current, used)) {
                self.add_dirty(used, &ranges);
            }
        }
        self.uploading_bytes.set(0);
        self.changed.borrow_mut().extend(image.changed);
        self.superblocks_changed.set(true);
        if image.since_ns.is_some() {
            self.changed_ns.set(image.since_ns);
        }
        self.committing_since_ns.set(None);
    }

    /// Uploads the bytes of an image that are in no commit. Returns the chunks of its uses.
    async fn upload(&self, image: &Image) -> Result<BTreeMap<u32, Vec<Chunk>>> {
        let mut chunks: BTreeMap<u32, Vec<Chunk>> = BTreeMap::new();
        let mut pieces = Vec::new();
        for (&segment, used) in &image.uses {
            chunks.insert(segment, used.chunks.borrow().clone());
        }
        for part in &image.parts {
            let segment = part.used.segment;
            let kept = chunks.entry(segment).or_default();
            for (start, end) in part.used.uploading.borrow().iter() {
                let start = absorb(kept, start, end);
                let starts = (start..end).step_by(CHUNK_BYTES_MAX as usize);
                pieces.extend(starts.map(|at| (part, at, end.min(at + CHUNK_BYTES_MAX))));
            }
        }
        let uploads = pieces.into_iter().map(|(part, start, end)| async move {
            Ok::<_, Error>((part.used.segment, self.upload_piece(part, start, end).await?))
        });
        let mut uploads = stream::iter(uploads).buffer_unordered(PARALLEL);
        while let Some(uploaded) = uploads.next().await {
            if let (segment, Some(chunk)) = uploaded? {
                chunks.entry(segment).or_default().push(chunk);
            }
        }
        drop(uploads);
        for chunks in chunks.values_mut() {
            chunks.sort_by_key(|chunk| chunk.offset);
            let is_possible = chunks.is_sorted_by(|one, next| one.end() <= next.offset);
            assert!(is_possible, "the chunks of a use do not overlap");
        }
        Ok(chunks)
    }

    /// Uploads a part of a segment, unless an earlier process left only zeroes there.
    async fn upload_piece(&self, part: &Part, start: u32, end: u32) -> Result<Option<Chunk>> {
        assert!(start < end && end - start <= CHUNK_BYTES_MAX, "a piece fits a chunk");
        let buffer = AlignedBuffer::zeroed((end - start) as usize);
        let (mut buffer, read) = self.local.read(&part.slot, start, buffer).await;
        read?;
        let mut start = start;
        if part.used.is_inherited {
            let is_used = |page: &[u8]| page.iter().any(|&byte| byte != 0);
            let pages = || buffer.chunks(PAGE);
            let Some(first) = pages().position(is_used) else { return Ok(None) };
            let last = pages().rposition(is_used).map_or(0, |page| (page + 1) * PAGE);
            let (first, last) = (first * PAGE, last.min(buffer.len()));
            buffer.copy_within(first..last, 0);
            buffer.set_len(last - first);
            start += u32::try_from(first).unwrap_or(0);
        }
        let bytes = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
        assert!(bytes > 0 && bytes <= end - start, "a chunk holds a part of its piece");
        let checksum = crc64(&buffer);
        let chunk = Chunk { offset: start, bytes, epoch: self.epoch, checksum };
        let name = chunk.name(part.used.segment, part.used.id);
        self.store.put(&name, &Arc::new(buffer)).await?;
        Ok(Some(chunk))
    }

    /// Returns the commit of an image, and the index of the bucket once the commit counts.
    fn describe(
        &self,
        image: &Image,
        chunks: &BTreeMap<u32, Vec<Chunk>>,
        id: CommitId,
    ) -> (Commit, Index) {
        let mut index = self.index.borrow().clone();
        for &segment in &image.changed {
            let entry = image.uses.get(&segment).map(|used| Entry {
                use_id: used.id,
                chunks: chunks.get(&segment).cloned().unwrap_or_default(),
            });
            match entry {
                Some(entry) => _ = index.insert(segment, entry),
                None => _ = index.remove(&segment),
            }
        }
        let since_base = self.since_base.borrow();
        let segments = since_base.union(&image.changed);
        let changes = segments.map(|&segment| (segment, index.get(&segment).cloned())).collect();
        let mut commit = Commit {
            uuid: self.local.uuid(),
            id,
            after: self.counted.get(),
            base: self.base.get().0,
            superblocks: image.superblocks.clone(),
            changes,
        };
        let (base, base_bytes) = self.base.get();
        assert!(base < id.number, "a commit follows its base");
        let is_long = commit.encode().len() > CHANGES_SHORT.max(base_bytes / BASE_SHARE);
        if base == 0 || is_long {
            commit.base = 0;
            commit.changes = index.iter().map(|(&at, entry)| (at, Some(entry.clone()))).collect();
        }
        (commit, index)
    }

    /// Records in the journal which commit may be in the bucket from now on, and makes its content
    /// durable.
    async fn sync_local_with(&self, id: CommitId) -> Result<()> {
        let result = self.local.update(|journal| journal.intent = id).await;
        if let Err(error) = &result
            && error.kind() != ErrorKind::NoSpace
        {
            self.set_poison(format!("the journal failed: {}", error.chain()));
        }
        result
    }

    /// Makes a commit the counted one, and deletes the objects that it has unlinked.
    async fn count(&self, image: &Image, commit: &Commit, bytes: usize, index: Index) {
        let id = commit.id;
        assert!(id > self.counted.get(), "each commit follows the last that counts");
        assert!(image.cut > self.counted_cut.get(), "images count in the order of their cuts");
        self.counted.set(id);
        self.counted_cut.set(image.cut);
        if commit.base == 0 {
            self.base.set((id.number, bytes));
            self.since_base.take();
        } else {
            self.since_base.borrow_mut().extend(&image.changed);
        }
        for (segment, used) in &image.uses {
            let named = index.get(segment).map(|entry| entry.chunks.clone());
            *used.chunks.borrow_mut() = named.unwrap_or_default();
            used.uploading.take();
        }
        self.uploading_bytes.set(0);
        self.committing_since_ns.set(None);
        self.stored_bytes.set(index.values().map(Entry::bytes).sum());
        let before = self.index.replace(index);
        self.wake();
        let dead = self.dead(&before, &image.changed);
        let old = self.old_commits(id);
        let names = dead.into_iter().chain(old);
        let deletions = names.map(|name| async move { self.store.delete(&name).await });
        stream::iter(deletions).buffer_unordered(PARALLEL).collect::<()>().await;
    }

    /// Returns the chunks that an earlier image refers to and the counted one does not.
    fn dead(&self, before: &Index, changed: &BTreeSet<u32>) -> Vec<String> {
        let index = self.index.borrow();
        let mut dead = Vec::new();
        for &segment in changed {
            let Some(old) = before.get(&segment) else { continue };
            let new = index.get(&segment).filter(|new| new.use_id == old.use_id);
            let is_named = |chunk: &Chunk| new.is_some_and(|new| new.chunks.contains(chunk));
            let gone = old.chunks.iter().filter(|chunk| !is_named(chunk));
            dead.extend(gone.map(|chunk| chunk.name(segment, old.use_id)));
        }
        dead
    }

    /// Returns the commits that are no longer needed now that `id` counts.
    fn old_commits(&self, id: CommitId) -> Vec<String> {
        if !id.number.is_multiple_of(KEPT_EVERY) {
            return Vec::new();
        }
        let base = self.base.get().0;
        let first = (id.number - KEPT_EVERY).max(1) + 1;
        let old = (first..id.number).filter(|&number| number != base);
        old.map(|number| CommitId { number, ..id }.name()).collect()
    }
}

/// Removes chunks from a list that end where a range begins and are no longer than the range, to
/// upload them again with it, so that the number of chunks grows with the logarithm of the number
/// of their commits. Returns the new start of the range.
fn absorb(chunks: &mut Vec<Chunk>, start: u32, end: u32) -> u32 {
    let mut start = start;
    while let Some(at) = chunks.iter().position(|chunk| chunk.end() == start) {
        let Some(chunk) = chunks.get(at).copied() else { break };
        let is_short = chunk.bytes <= end - start && end - chunk.offset <= CHUNK_BYTES_MAX;
        if !is_short {
            break;
        }
        chunks.remove(at);
        start = chunk.offset;
    }
    start
}
