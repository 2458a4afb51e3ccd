//! An audit of snapshots for tests, which checks whether each of them still has each of its blocks.
//! Unlike garbage collection, it infers nothing from one snapshot about another.
//!
//! ```text
//! map of a snapshot -> places that it names -> by its tables, the present places
//!     readable, with their checksums; in an existing segment that is retained for it
//!     named only by snapshots that are neighbours in the list
//! tables   -> every entry leads to a present use of a segment, and to no other entry; the
//!             disk names no place that has an entry
//! segments -> counts of the snapshots that need them equal the snapshots' own sets
//! ```
//!
//! Snapshots are opened and read like views. Unlike a view, an audit does not protect frames from
//! being moved, so that it does not end the emptying of a segment, which it must judge. It writes
//! nothing and takes no turn.

use std::collections::{HashMap, HashSet};

use super::super::core::{Core, Kept};
use super::super::drive::{Audited, Drive, Found, Named};
use super::super::map::Mapping;
use super::super::options::OpenOptions;
use super::super::place::{FrameAddress, SegmentUse};
use super::audit::compare_retained;
use crate::base::units::{BLOCK_BYTES, len_usize};
use crate::base::{Error, ErrorKind, Result};
use crate::crypt::Cipher;
use crate::format::{MetadataAddress, Record, RecordAddress, Snapshot, check_payload};

/// Number of rounds that changes of the drive may invalidate before the audit fails.
const ROUNDS_MAX: u32 = 100;

/// The data that a drive stores for its snapshots, which was found to be right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptAudit {
    /// Snapshots that were audited: those with data and without known damage.
    pub snapshots: u32,
    /// Runs of blocks that their maps name in frames.
    pub runs: u64,
    /// Number of these runs that were read; all others were read by earlier audits of this opening.
    pub reads: u64,
    /// Segments that are not emptied for now, because something in them cannot be read.
    pub stuck: u32,
}

/// Runs of a snapshot to be read, and their current places.
type Unread = (Snapshot, Vec<(Named, Found)>);

impl Drive {
    /// Checks by brute force that snapshots are intact: each of their blocks is where their tables
    /// state, and stays there. Snapshots with known damage are omitted. Data in buffers of the
    /// drive is checked there; all other data is read once in an opening.
    ///
    /// # Errors
    /// `Corrupt` without a location, naming the snapshot, the block and its place in the text, for
    /// a bug of the drive, or damage; `Poisoned`; `Busy` if the drive changes too fast.
    #[doc(hidden)]
    pub async fn audit_snapshots(&self) -> Result<KeptAudit> {
        let mut found = String::new();
        for _ in 0..ROUNDS_MAX {
            self.core().log().check_poison()?;
            match self.audit_kept().await {
                Ok(audit) => return Ok(audit),
                Err(error) if error.chain() == found => return Err(error),
                // State on which a round relies may have changed in the meantime. The next round
                // then differs.
                Err(error) => found = error.chain(),
            }
        }
        Err(Error::new(ErrorKind::Busy, format!("data of snapshots changes too fast: {found}")))
    }

    /// Returns the places of the newest checkpoint's forwarding tables, for tests that damage them.
    #[doc(hidden)]
    pub fn forward_pieces(&self) -> Vec<MetadataAddress> {
        self.core().forwards().metadata().collect()
    }

    async fn audit_kept(&self) -> Result<KeptAudit> {
        let entries: Vec<Snapshot> = {
            let core = self.core();
            readable(&core).map(|kept| kept.entry.clone()).collect()
        };
        let is_kept = |watermark| entries.iter().any(|entry| entry.watermark == watermark);
        self.audited.borrow_mut().named.retain(|&watermark, _| is_kept(watermark));
        for entry in &entries {
            let is_known = self.audited.borrow().named.contains_key(&entry.watermark);
            if !is_known {
                let named = self.kept_view(entry).await?.named_in_frames().await;
                let named = named.map_err(|error| broken(entry, "its map", &error.chain()))?;
                let audited = &mut *self.audited.borrow_mut();
                audited.named.insert(entry.watermark, named);
                audited.are_neighbors = false;
            }
        }
        let are_neighbors = self.audited.borrow().are_neighbors;
        if !are_neighbors {
            check_neighbors(&self.core(), &self.audited.borrow())?;
            self.audited.borrow_mut().are_neighbors = true;
        }
        let (mut audit, unread) = judge(&self.core(), &self.audited.borrow())?;
        for (entry, runs) in unread {
            let view = self.kept_view(&entry).await?;
            for (run, found) in runs {
                audit.reads += u64::from(self.read_run(&entry, &view, run, found).await?);
            }
        }
        Ok(audit)
    }

    /// Opens a snapshot like a view, but does not protect its frames from being moved.
    async fn kept_view(&self, entry: &Snapshot) -> Result<Self> {
        let forwards = self.core().forwards().of(entry);
        let options = OpenOptions { read_cache_bytes: 0, ..OpenOptions::default() };
        let opened = self.open_kept(entry, forwards, options).await;
        opened.map_err(|error| broken(entry, "its root", &error.chain()))
    }

    /// Returns the runs that the map of this view names in frames.
    async fn named_in_frames(&self) -> Result<Vec<Named>> {
        let (mut found, mut next) = (Vec::new(), 0);
        loop {
            let Some(leaf) = self.core().map().next_mapped_leaf(next) else { return Ok(found) };
            if self.add_named(leaf, &mut found) {
                next = leaf + 1;
            } else {
                self.load_leaf(leaf).await?;
            }
        }
    }

    /// Adds the runs that a leaf names in frames. Returns whether the leaf was in memory.
    fn add_named(&self, leaf: u64, found: &mut Vec<Named>) -> bool {
        let core = self.core();
        let Some(runs) = core.map().leaf_runs(leaf) else { return false };
        for (lba, blocks, mapping) in runs {
            // A block of a lost leaf has the place of metadata.
            if let Mapping::Frame { place, .. } = mapping
                && !core.has_metadata(place.segment)
            {
                let generation = core.space().generation(place.segment);
                found.push(Named { lba, blocks, place, generation });
            }
        }
        true
    }

    /// Reads a run, or checks its frame in a buffer. Returns whether it was read.
    async fn read_run(
        &self,
        entry: &Snapshot,
        view: &Self,
        run: Named,
        found: Found,
    ) -> Result<bool> {
        let address = RecordAddress {
            segment: found.of.segment,
            generation: found.of.generation,
            offset: found.offset,
        };
        let wrong = |error: Error| lost(entry, &run, &found, &error.chain());
        let in_memory = {
            let core = self.core();
            let bytes = core.log().in_memory(FrameAddress::from(address));
            bytes.map(|bytes| check_record(bytes, address, self.medium.cipher()))
        };
        if let Some(checked) = in_memory {
            return checked.map(|()| false).map_err(wrong);
        }
        let mut out = vec![0; len_usize(run.blocks) * BLOCK_BYTES];
        view.read_blocks(run.lba, &mut out).await.map_err(wrong)?;
        self.audited.borrow_mut().readable.insert(found);
        Ok(true)
    }
}

/// Returns the snapshots with data and without known damage, oldest first.
fn readable(core: &Core) -> impl Iterator<Item = &Kept> {
    let kept = core.snapshots().kept().iter();
    kept.filter(|kept| !kept.entry.is_bookmark && kept.damage.is_none())
}

/// Checks, at one point in time, the places of everything that snapshots name. Returns the runs to
/// read, by snapshot.
fn judge(core: &Core, audited: &Audited) -> Result<(KeptAudit, Vec<Unread>)> {
    compare_retained(core)?;
    check_entries(core)?;
    check_disk(core)?;
    let stuck = core.space().views().filter(|view| view.is_stuck).map(|_| 1).sum();
    let (mut audit, mut unread) = (KeptAudit { stuck, ..KeptAudit::default() }, Vec::new());
    let mut seen = HashSet::new();
    for kept in readable(core) {
        // A snapshot that was just taken is left to the next audit.
        let Some(named) = audited.named.get(&kept.entry.watermark) else { continue };
        audit.snapshots += 1;
        check_set(core, kept)?;
        let mut runs = Vec::new();
        for run in named.iter() {
            audit.runs += 1;
            let Named { place, generation, .. } = *run;
            let named = SegmentUse { segment: place.segment, generation };
            let (to, generation) = core.forwards().resolve_for(&kept.entry, place, generation);
            let of = SegmentUse { segment: to.segment, generation };
            let found = Found { of, offset: to.offset, lba: run.lba };
            let wrong = if !kept.named.contains(place.segment) {
                Some("the snapshot's bitmap does not have the segment that its map names")
            } else if to == place && core.forwards().has(named, place.offset) {
                Some("the place has an entry that is not for the snapshot")
            } else if is_over(core, of) {
                Some("that use of the segment is over")
            } else if !kept.retained.contains(to.segment) {
                Some("the segment is not retained for the snapshot")
            } else {
                None
            };
            if let Some(why) = wrong {
                return Err(lost(&kept.entry, run, &found, why));
            }
            if !audited.readable.contains(&found) && seen.insert(found) {
                runs.push((*run, found));
            }
        }
        if !runs.is_empty() {
            unread.push((kept.entry.clone(), runs));
        }
    }
    Ok((audit, unread))
}

fn is_over(core: &Core, of: SegmentUse) -> bool {
    core.space().is_free(of.segment) || core.space().generation(of.segment) != of.generation
}

/// Checks that a snapshot retains every segment in its bitmap that was not emptied, and every
/// segment to which an entry leads.
fn check_set(core: &Core, kept: &Kept) -> Result<()> {
    let (forwards, watermark) = (core.forwards(), kept.entry.watermark);
    let named = kept.named.iter().filter(|&segment| !forwards.is_emptied(segment, watermark));
    let copies = forwards.needed_by(&kept.entry).map(|to| to.segment);
    match named.chain(copies).find(|&segment| !kept.retained.contains(segment)) {
        None => Ok(()),
        Some(segment) => {
            Err(broken(&kept.entry, "its segments", &format!("segment {segment} is missing")))
        }
    }
}

/// Checks that every entry that a snapshot needs leads to a frame, and not to another entry.
fn check_entries(core: &Core) -> Result<()> {
    for copied in core.forwards().copies() {
        let Some(kept) = readable(core).find(|kept| copied.is_needed_by(&kept.entry)) else {
            continue;
        };
        let why = if is_over(core, copied.to) {
            "is over"
        } else if core.forwards().has(copied.to, copied.offset) {
            "has an entry there"
        } else {
            continue;
        };
        let SegmentUse { segment, generation } = copied.to;
        let what = format!("use {generation} of segment {segment} at {} {why}", copied.offset);
        return Err(broken(&kept.entry, "the target of an entry", &what));
    }
    Ok(())
}

/// Checks that the disk names no place that has an entry, for the part of its map in memory.
fn check_disk(core: &Core) -> Result<()> {
    let mut next = 0;
    while core.forwards().is_used()
        && let Some(leaf) = core.map().next_mapped_leaf(next)
    {
        for (lba, _, mapping) in core.map().leaf_runs(leaf).into_iter().flatten() {
            let Mapping::Frame { place, .. } = mapping else { continue };
            let (segment, offset) = (place.segment, place.offset);
            let of = SegmentUse { segment, generation: core.space().generation(segment) };
            if core.forwards().has(of, offset) {
                let what = format!(
                    "the disk names block {lba} in segment {segment} at {offset}, which has an \
                     entry"
                );
                return Err(Error::new(ErrorKind::Corrupt, what));
            }
        }
        next = leaf + 1;
    }
    Ok(())
}

/// Checks that the snapshots that name a place are neighbours.
fn check_neighbors(core: &Core, audited: &Audited) -> Result<()> {
    let mut last_named: HashMap<(SegmentUse, u32), usize> = HashMap::new();
    for (number, kept) in readable(core).enumerate() {
        let Some(named) = audited.named.get(&kept.entry.watermark) else { continue };
        for run in named.iter() {
            let of = SegmentUse { segment: run.place.segment, generation: run.generation };
            let before = last_named.insert((of, run.place.offset), number);
            if before.is_some_and(|before| before + 1 < number) {
                let found = Found { of, offset: run.place.offset, lba: run.lba };
                return Err(lost(&kept.entry, run, &found, "the snapshot before does not name it"));
            }
        }
    }
    Ok(())
}

/// Checks header and payload of a frame that is in a buffer.
fn check_record(bytes: &[u8], address: RecordAddress, cipher: &Cipher) -> Result<()> {
    let record = Record::decode_with(bytes, address, cipher)?;
    let Record::Data { payload_checksum, .. } = record else {
        return Err(Error::new(ErrorKind::Corrupt, "a record is not a frame"));
    };
    let payload = bytes.get(record.header_bytes() as usize..record.record_bytes() as usize);
    check_payload(payload.unwrap_or_default(), payload_checksum, address)
}

fn broken(entry: &Snapshot, what: &str, why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("snapshot {}: {what}: {why}", entry.name))
}

fn lost(entry: &Snapshot, run: &Named, found: &Found, why: &str) -> Error {
    let Named { lba, place, generation, .. } = run;
    let (segment, now) = (found.of.segment, found.of.generation);
    let what = format!(
        "block {lba}, named in use {generation} of segment {} at {}, now in use {now} of segment \
         {segment} at {}",
        place.segment, place.offset, found.offset
    );
    broken(entry, &what, why)
}
