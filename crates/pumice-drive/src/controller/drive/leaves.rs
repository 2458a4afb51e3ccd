//! Loading leaves of the map from the medium.
//!
//! ```text
//! place -> (batch buffer or medium) -> header, checksum -> decode -> leaf -> core
//! ```
//!
//! A leaf that several requests miss is read once. A damaged leaf fails the requests that need it
//! and no others. Loading does not depend on eviction: the map has its own budget.
//!
//! **Progress.** A change may need two leaves at the same time. While it reads the second, or waits
//! for space, other requests may evict the first, just as it evicts theirs. A request whose leaf
//! was evicted takes a turn ([`Drive::keep_leaves`]) in which its leaves stay in memory once
//! loaded. One request has the turn at a time, in order of arrival. It only needs each of its
//! leaves to be read once, and never waits for a request that waits for the turn, so its turn ends.
//! A request that needs one leaf at a time obtains it in the same poll in which its own read ends.
//! Some request therefore always makes progress.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use futures_util::stream::{StreamExt, iter};

use super::super::core::{GIVE_UP_NS, LOSE_ATTEMPTS, LeafPlace};
use super::super::log::metadata::{Wanted, decode_meta, read_meta};
use super::super::map::{KeptLeaves, LEAF_BLOCKS, Leaf, Reap};
use super::super::place::FrameAddress;
use super::Drive;
use crate::base::wait::WaitQueue;
use crate::base::{Error, ErrorKind, Lba, Result};
use crate::format::{MetaKind, leaf_bytes_max};
use crate::media::SUPERBLOCK_SLOTS;

/// Pause between attempts to read a damaged leaf.
const LOSE_PAUSE_NS: u64 = 20_000_000;

/// Leaves that are read concurrently ahead of their use.
const LOADS_AT_ONCE: usize = 32;

/// Leaves loaded ahead occupy no more than this part of the map's cache.
pub(super) const LOADS_DIVISOR: usize = 4;

/// Maximum number of steps of reaping leaves in one turn.
const REAPS_MAX: u32 = 256;

/// Maximum number of leaves whose failures are remembered; any other counts as failing for the
/// first time.
const FAILING_MAX: usize = 4096;

/// Leaves that are being read, and the requests that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    loading: RefCell<Vec<u64>>,
    ended: WaitQueue,
    /// Leaves that could not be loaded at the last attempt.
    failing: RefCell<BTreeMap<u64, Failing>>,
    /// Whether a request has the turn in which its leaves stay in memory.
    is_keeping: Cell<bool>,
    kept: WaitQueue,
}

/// The failures of a leaf that cannot be loaded.
#[derive(Clone, Copy, Debug)]
struct Failing {
    /// The time of the first failure.
    since_ns: u64,
    /// Number of consecutive failures in which all of its batch could be read and the leaf was
    /// damaged.
    damaged: u32,
}

impl Loads {
    /// Records the outcome of loading a leaf.
    fn note(&self, leaf: u64, error: Option<&Error>, now_ns: u64) {
        let mut failing = self.failing.borrow_mut();
        let Some(error) = error else {
            failing.remove(&leaf);
            return;
        };
        if failing.len() < FAILING_MAX || failing.contains_key(&leaf) {
            let known = failing.entry(leaf).or_insert(Failing { since_ns: now_ns, damaged: 0 });
            let is_damaged = error.kind() == ErrorKind::Corrupt;
            known.damaged = if is_damaged { known.damaged + 1 } else { 0 };
        }
        assert!(failing.len() <= FAILING_MAX, "few failures are remembered");
    }
}

/// The turn of a change whose leaves stay in memory until this is dropped.
pub(crate) struct Kept<'a>(&'a Drive);

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.0.with_core(|core| core.keep_leaves(None));
        assert!(self.0.loads.is_keeping.replace(false), "a turn to keep leaves ends once");
        self.0.loads.kept.wake_all();
    }
}

/// A load under way, which ends when dropped.
struct Load<'a> {
    loads: &'a Loads,
    leaf: u64,
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        let mut loading = self.loads.loading.borrow_mut();
        let before = loading.len();
        loading.retain(|&leaf| leaf != self.leaf);
        assert_eq!(loading.len() + 1, before, "one load of a leaf ends");
        drop(loading);
        self.loads.ended.wake_all();
    }
}

impl Drive {
    /// Loads the leaves of `count` blocks starting at `lba`, one after the other. The last is in
    /// memory when this returns; earlier ones may have been evicted since, so if there are several,
    /// or after a later await, the caller must check again.
    ///
    /// # Errors
    /// `Medium` or `Corrupt`, naming the first block of the leaf.
    pub(in super::super) async fn load_range(&self, lba: Lba, count: u64) -> Result<()> {
        let leaf_blocks = u64::from(LEAF_BLOCKS);
        for leaf in lba.0 / leaf_blocks..(lba.0 + count).div_ceil(leaf_blocks) {
            while self.core().map().missing(Lba(leaf * leaf_blocks), 1).is_some() {
                self.load_leaf(leaf).await?;
            }
        }
        Ok(())
    }

    /// Concurrently loads the leaves of the first of these ranges of blocks, as far as that is
    /// useful. Returns the number of ranges covered, at least one. An unreadable leaf is an error
    /// only when it is needed.
    pub(in super::super) async fn load_leaves_ahead(
        &self,
        ranges: impl Iterator<Item = (Lba, u64)>,
    ) -> usize {
        let most = self.loads_at_once();
        let mut leaves = Vec::new();
        let mut covered = 0;
        {
            let core = self.core();
            for (lba, count) in ranges {
                let missing = core.map().missing(lba, count);
                let missing = missing.filter(|leaf| !leaves.contains(leaf));
                if missing.is_some() && leaves.len() == most {
                    break;
                }
                leaves.extend(missing);
                covered += 1;
            }
        }
        self.load_side_by_side(leaves).await;
        covered.max(1)
    }

    /// Loads the leaves needed to change `count` blocks starting at `lba`, like
    /// [`Drive::load_range`]. A leaf that is damaged beyond restoring becomes lost, and the change
    /// takes effect.
    ///
    /// # Errors
    /// `Medium`, naming the first block of the leaf.
    pub(in super::super) async fn load_to_change(&self, lba: Lba, count: u64) -> Result<()> {
        let leaf_blocks = u64::from(LEAF_BLOCKS);
        for leaf in lba.0 / leaf_blocks..(lba.0 + count).div_ceil(leaf_blocks) {
            while self.core().map().missing(Lba(leaf * leaf_blocks), 1).is_some() {
                self.load_or_lose(leaf).await?;
            }
        }
        Ok(())
    }

    /// Loads a leaf. A leaf that is damaged beyond restoring in several attempts becomes lost, and
    /// so does a leaf that could not be read for five minutes, if the medium can be read elsewhere.
    /// Before that, a read may still succeed.
    ///
    /// # Errors
    /// The errors of [`Drive::load_to_change`].
    pub(in super::super) async fn load_or_lose(&self, leaf: u64) -> Result<()> {
        loop {
            let loaded = self.load_leaf(leaf).await;
            let Err(error) = loaded else {
                // Another request may have failed to load it.
                return Ok(());
            };
            // Requests that wait for one leaf share its count.
            let failing = self.loads.failing.borrow().get(&leaf).copied();
            let is_damaged = error.kind() == ErrorKind::Corrupt;
            let is_lost = match failing {
                Some(failing) if is_damaged => failing.damaged >= LOSE_ATTEMPTS,
                Some(failing) => {
                    self.clock.now_ns().saturating_sub(failing.since_ns) >= GIVE_UP_NS
                        && self.can_read_elsewhere().await
                }
                None => false,
            };
            if self.is_read_only() || !(is_damaged || is_lost) {
                return Err(error);
            }
            if is_lost {
                let error = error.chain();
                tracing::warn!(leaf, error, "cannot restore a leaf of the map");
                self.with_core(|core| core.lose_leaf(leaf));
                self.loads.failing.borrow_mut().remove(&leaf);
                return Ok(());
            }
            self.clock.sleep_ns(LOSE_PAUSE_NS).await;
        }
    }

    /// Returns whether the medium can be read elsewhere.
    async fn can_read_elsewhere(&self) -> bool {
        for slot in 0..SUPERBLOCK_SLOTS {
            if self.medium.read_superblock(slot).await.is_ok() {
                return true;
            }
        }
        false
    }

    /// Returns the number of leaves that are loaded ahead: they must not evict each other.
    fn loads_at_once(&self) -> usize {
        let leaf_bytes = leaf_bytes_max(self.core().superblock().has_chunks);
        let share = self.options.map_cache_bytes / LOADS_DIVISOR / leaf_bytes;
        share.clamp(1, LOADS_AT_ONCE)
    }

    async fn load_side_by_side(&self, leaves: Vec<u64>) {
        let loads = leaves.into_iter().map(|leaf| self.load_leaf(leaf));
        let mut loads = iter(loads).buffer_unordered(LOADS_AT_ONCE);
        while loads.next().await.is_some() {}
    }

    /// Loads the leaves at both ends of a range that becomes a hole or a fill.
    ///
    /// # Errors
    /// The errors of [`Drive::load_to_change`].
    pub(in super::super) async fn load_edges(&self, lba: Lba, count: u64) -> Result<()> {
        for edge in [lba.0, lba.0 + count] {
            if !edge.is_multiple_of(LEAF_BLOCKS.into()) {
                self.load_to_change(Lba(edge), 1).await?;
            }
        }
        Ok(())
    }

    /// Waits for the turn in which the leaves at both ends of a range stay in memory once loaded:
    /// for a change that lost one of them while it waited. See the module's header.
    pub(in super::super) async fn keep_leaves(&self, lba: Lba, count: u64) -> Kept<'_> {
        let is_free = || (!self.loads.is_keeping.get()).then_some(());
        self.loads.kept.wait_for(is_free).await;
        assert!(!self.loads.is_keeping.replace(true), "one request at a time keeps leaves");
        self.with_core(|core| core.keep_leaves(Some(KeptLeaves::of_range(lba, count))));
        Kept(self)
    }

    /// Loads a leaf, or waits until another request has tried to load it.
    ///
    /// # Errors
    /// The errors of [`Drive::load_range`].
    pub(in super::super) async fn load_leaf(&self, leaf: u64) -> Result<()> {
        let is_loading = || self.loads.loading.borrow().contains(&leaf);
        if is_loading() {
            self.loads.ended.wait_for(|| (!is_loading()).then_some(())).await;
            return Ok(());
        }
        let named = self.core().leaf_to_load(leaf);
        let Some(named) = named else { return Ok(()) };
        let LeafPlace { place, generation } = self.core().leaf_at(named);
        self.loads.loading.borrow_mut().push(leaf);
        let _load = Load { loads: &self.loads, leaf };
        let _pin = self.pin(place.segment);
        let wanted = Wanted::at(place, generation, MetaKind::Leaf, leaf);
        let limits = self.core().map_limits();
        // A checkpoint may just have written it.
        let in_memory = {
            let core = self.core();
            core.log().in_memory(FrameAddress::from(wanted.place)).map(|bytes| {
                let record = bytes.get(..place.bytes as usize).unwrap_or_default();
                decode_meta(self.medium.cipher(), record, &self.decompressor, wanted)
            })
        };
        let metadata = match in_memory {
            Some(metadata) => metadata,
            None => {
                let (buffers, decompressor) = (&self.buffers, &self.decompressor);
                read_meta(&*self.medium, buffers, decompressor, limits.segment_bytes, wanted).await
            }
        };
        let is_restored = metadata.as_ref().is_ok_and(|metadata| metadata.is_restored);
        let loaded = metadata.and_then(|metadata| Leaf::decode(&metadata.raw, &limits));
        self.loads.note(leaf, loaded.as_ref().err(), self.clock.now_ns());
        let loaded = loaded.map_err(|error| {
            let first = Lba(leaf * u64::from(LEAF_BLOCKS));
            let what = "cannot read a leaf of the map";
            Error::new(error.kind(), what).at_lba(first).caused_by(error)
        })?;
        self.with_core(|core| {
            core.install_leaf(leaf, named.place, loaded);
            if is_restored {
                core.rewrite_metadata(MetaKind::Leaf, leaf, place);
            }
        });
        Ok(())
    }

    /// Reaps every leaf of trimmed ranges, whose frames are dead only then.
    ///
    /// # Errors
    /// The errors of [`Drive::load_range`].
    pub(in super::super) async fn reap_all(&self) -> Result<()> {
        while self.reap_some().await? {}
        Ok(())
    }

    /// Reaps leaves of trimmed ranges for about `limit_ns`. Returns whether any are left.
    ///
    /// # Errors
    /// The errors of [`Drive::load_range`].
    pub(in super::super) async fn reap_for(&self, limit_ns: u64) -> Result<bool> {
        let end_ns = self.clock.now_ns().saturating_add(limit_ns);
        // Without any reads, no time may pass in a simulation.
        for _ in 0..REAPS_MAX {
            if !self.reap_some().await? {
                return Ok(false);
            }
            if self.clock.now_ns() >= end_ns {
                break;
            }
        }
        Ok(true)
    }

    /// Reaps some leaves of trimmed ranges; leaves that are not in memory are read concurrently.
    /// Returns whether there may be more.
    async fn reap_some(&self) -> Result<bool> {
        let reaped = self.with_core(|core| core.reap());
        match reaped {
            Reap::Done => return Ok(false),
            Reap::More => self.clock.sleep_ns(0).await,
            Reap::Missing(first) => {
                let leaves = self.core().map().missing_to_reap(self.loads_at_once());
                // An error counts only if it stops the reaping.
                let (ahead, _) = futures_util::future::join(
                    self.load_or_lose(first),
                    self.load_side_by_side(leaves),
                )
                .await;
                ahead?;
            }
        }
        Ok(true)
    }
}
