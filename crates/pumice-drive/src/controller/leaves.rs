//! Bringing leaves of the map, and other metadata, in from the medium.
//!
//! ```text
//! place -> (batch buffer or medium) -> header, checksum -> decode -> leaf -> L2P
//! ```
//!
//! A leaf that several requests miss is read once. A damaged leaf fails the requests that need it
//! and no others. Knows nothing of eviction: the L2P keeps its own budget.
//!
//! **Progress.** A change may need two leaves at once, and while it reads the second, or waits for
//! room, others may have the first evicted, as it evicts theirs. Whoever finds that so takes a turn
//! ([`Drive::keep_leaves`]) in which its leaves, once read, stay. One has the turn at a time, in
//! the order of asking; it needs no more than to have each of its leaves read once, and waits for
//! nobody who waits for the turn, so it ends. Whoever needs one leaf at a time has it in the very
//! poll in which its own reading of it ends. So somebody always gets on.

use std::cell::{Cell, RefCell};

use super::Drive;
use super::buffers::Buffers;
use super::checkpoint::LIST_BYTES;
use super::l2p::Leaf;
use crate::base::wait::WaitQueue;
use crate::base::{Clock, Error, ErrorKind, Lba, Result};
use crate::codec::{Decompressor, Encoding};
use crate::format::{
    DirectoryEntry, LEAF_BLOCKS, MapLimits, MetaKind, Record, RecordPlace, check_payload,
    meta_payload,
};
use crate::media::Medium;

/// Leaves that are being read, and who waits for them.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    loading: RefCell<Vec<u64>>,
    ended: WaitQueue,
    /// Whether somebody has its leaves kept.
    is_keeping: Cell<bool>,
    kept: WaitQueue,
}

/// The turn of a change whose leaves stay in memory until this is dropped.
pub(crate) struct Kept<'a, M: Medium, C: Clock>(&'a Drive<M, C>);

impl<M: Medium, C: Clock> Drop for Kept<'_, M, C> {
    fn drop(&mut self) {
        self.0.l2p.borrow_mut().keep(None);
        self.0.loads.is_keeping.set(false);
        self.0.loads.kept.wake_all();
    }
}

/// A load under way; ends when dropped.
struct Load<'a> {
    loads: &'a Loads,
    leaf: u64,
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.loads.loading.borrow_mut().retain(|&leaf| leaf != self.leaf);
        self.loads.ended.wake_all();
    }
}

/// Which metadata record is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Where it stands.
    pub(crate) place: RecordPlace,
    /// Bytes of the record.
    pub(crate) record_bytes: u32,
    /// What it is.
    pub(crate) kind: MetaKind,
    /// Which one of its kind.
    pub(crate) number: u64,
}

/// Reads a metadata record from the medium; gives its payload, decoded, and the checksum of the
/// payload as stored.
///
/// # Errors
/// `Medium`; `Corrupt`, naming the place.
pub(crate) async fn read_meta<M: Medium>(
    medium: &M,
    buffers: &Buffers,
    decompressor: &RefCell<Decompressor>,
    wanted: Wanted,
) -> Result<(Vec<u8>, u64)> {
    let unit = medium.capabilities().read_unit;
    let offset = wanted.place.offset;
    let start = offset / unit * unit;
    let end = offset.saturating_add(wanted.record_bytes).next_multiple_of(unit);
    let buffer = buffers.take((end - start) as usize);
    let (bytes, result) = medium.read(wanted.place.segment, start, buffer).await;
    let record = &bytes[(offset - start) as usize..][..wanted.record_bytes as usize];
    let decoded = result.and_then(|()| decode_meta(record, decompressor, wanted));
    buffers.put(bytes);
    decoded
}

/// The payload of a metadata record, decoded, and the checksum of the payload as stored.
///
/// # Errors
/// `Corrupt`, naming the place.
pub(crate) fn decode_meta(
    bytes: &[u8],
    decompressor: &RefCell<Decompressor>,
    wanted: Wanted,
) -> Result<(Vec<u8>, u64)> {
    let place = wanted.place;
    let wrong = |what: &'static str| {
        let error = Error::new(ErrorKind::Corrupt, what);
        error.in_segment(place.segment).at_offset(u64::from(place.offset))
    };
    let record = Record::decode(bytes, place)?;
    let Record::Meta { kind, number, encoding, payload_checksum, .. } = record else {
        return Err(wrong("a record is not the metadata that is named there"));
    };
    if (kind, number, record.record_bytes()) != (wanted.kind, wanted.number, wanted.record_bytes) {
        return Err(wrong("metadata is not the one that is named there"));
    }
    let payload = &bytes[record.header_bytes() as usize..];
    check_payload(payload, payload_checksum, place)?;
    let (raw_bytes, encoded) = meta_payload(payload)?;
    if kind != MetaKind::Root && raw_bytes > LIST_BYTES {
        return Err(wrong("metadata is longer than it can be"));
    }
    let encoding = Encoding::from_u8(encoding);
    let encoding = encoding.ok_or_else(|| wrong("metadata has an unknown encoding"))?;
    let mut raw = vec![0; raw_bytes];
    decompressor.borrow_mut().decompress(encoding, encoded, &mut raw)?;
    Ok((raw, payload_checksum))
}

impl<M: Medium, C: Clock> Drive<M, C> {
    /// Brings in the leaves that looking at `count` blocks from `lba` on needs, one after the
    /// other. The last is in memory when this returns; those before it may have been evicted
    /// meanwhile, so if there are several, or after a later await, the caller looks again.
    ///
    /// # Errors
    /// `Medium` or `Corrupt`, naming the first block of the leaf.
    pub(crate) async fn load_range(&self, lba: Lba, count: u64) -> Result<()> {
        let leaf_blocks = u64::from(LEAF_BLOCKS);
        for leaf in lba.0 / leaf_blocks..(lba.0 + count).div_ceil(leaf_blocks) {
            while self.l2p.borrow().missing(Lba(leaf * leaf_blocks), 1).is_some() {
                self.load_leaf(leaf).await?;
            }
        }
        Ok(())
    }

    /// The same for the leaves at both ends of a range that becomes a hole or a fill.
    ///
    /// # Errors
    /// As [`Drive::load_range`].
    pub(crate) async fn load_edges(&self, lba: Lba, count: u64) -> Result<()> {
        for edge in [lba.0, lba.0 + count] {
            if !edge.is_multiple_of(LEAF_BLOCKS.into()) {
                self.load_range(Lba(edge), 1).await?;
            }
        }
        Ok(())
    }

    /// Waits for the turn in which the leaves at both ends of a range, once they are in memory,
    /// stay there: for a change that lost one of them while it waited. See the module's header.
    pub(crate) async fn keep_leaves(&self, lba: Lba, count: u64) -> Kept<'_, M, C> {
        let is_free = || (!self.loads.is_keeping.get()).then_some(());
        self.loads.kept.wait_for(is_free).await;
        self.loads.is_keeping.set(true);
        self.l2p.borrow_mut().keep(Some((lba, count)));
        Kept(self)
    }

    /// Brings in a leaf, or waits until somebody else has tried to.
    ///
    /// # Errors
    /// As [`Drive::load_range`].
    pub(crate) async fn load_leaf(&self, leaf: u64) -> Result<()> {
        let is_loading = || self.loads.loading.borrow().contains(&leaf);
        if is_loading() {
            self.loads.ended.wait_for(|| (!is_loading()).then_some(())).await;
            return Ok(());
        }
        let DirectoryEntry::Leaf(place) = self.l2p.borrow().entry(leaf) else { return Ok(()) };
        self.loads.loading.borrow_mut().push(leaf);
        let _load = Load { loads: &self.loads, leaf };
        let _pin = self.pin(place.segment.0);
        let wanted = Wanted {
            place: RecordPlace {
                generation: self.space.borrow().generation(place.segment),
                segment: place.segment,
                offset: place.offset,
            },
            record_bytes: place.bytes,
            kind: MetaKind::Leaf,
            number: leaf,
        };
        // A checkpoint may have written it a moment ago.
        let in_memory = self.log.in_memory(place.segment.0, place.offset, |bytes| {
            let record = bytes.get(..place.bytes as usize).unwrap_or_default();
            decode_meta(record, &self.decompressor, wanted)
        });
        let raw = match in_memory {
            Some(raw) => raw,
            None => read_meta(&self.medium, &self.buffers, &self.decompressor, wanted).await,
        };
        let limits = self.map_limits();
        let loaded = raw.and_then(|(raw, _)| Leaf::decode(&raw, &limits));
        let loaded = loaded.map_err(|error| {
            let first = Lba(leaf * u64::from(LEAF_BLOCKS));
            let what = "a leaf of the map cannot be read";
            Error::new(error.kind(), what).at_lba(first).caused_by(error)
        })?;
        self.l2p.borrow_mut().install(leaf, place, loaded);
        Ok(())
    }

    /// What places on this drive must lie within.
    pub(crate) fn map_limits(&self) -> MapLimits {
        let superblock = self.superblock.borrow();
        MapLimits {
            segment_count: superblock.segment_count,
            segment_bytes: superblock.segment_bytes,
        }
    }

    /// Keeps a segment from being freed until the pin is dropped.
    pub(crate) fn pin(&self, segment: u32) -> Pin<'_, M, C> {
        self.space.borrow_mut().pin(segment);
        Pin { drive: self, segment }
    }
}

/// A read under way in a segment.
pub(crate) struct Pin<'a, M: Medium, C: Clock> {
    drive: &'a Drive<M, C>,
    segment: u32,
}

impl<M: Medium, C: Clock> Drop for Pin<'_, M, C> {
    fn drop(&mut self) {
        self.drive.space.borrow_mut().unpin(self.segment);
    }
}
