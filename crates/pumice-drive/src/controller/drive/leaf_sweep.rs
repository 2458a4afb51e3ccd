//! Loading many leaves of the map in the order of the medium, for tasks that walk whole maps.
//!
//! ```text
//! leaves -> places, sorted -> spans of a segment -> medium -> decode -> core
//! ```
//!
//! A checkpoint writes its leaves one after the other, a few hundred bytes each if they map few
//! frames, so neighbours on the disk are mostly neighbours on the medium: a read of 64 KiB loads
//! hundreds of them, which would otherwise need a read each. A sweep is only an optimization:
//! leaves that cannot be read or decoded here, or are still in a buffer, are left to
//! [`Drive::load_leaf`], which restores damaged leaves and reports errors.

use std::ops::Range;

use futures_util::stream::{StreamExt, iter};

use super::super::core::LeafPlace;
use super::super::log::metadata::{Wanted, decode_meta};
use super::super::map::Leaf;
use super::super::place::FrameAddress;
use super::Drive;
use super::leaves::LOADS_DIVISOR;
use crate::base::SegmentId;
use crate::format::MetaKind;

/// Maximum number of leaves of one sweep.
pub(in super::super) const SWEEP_LEAVES_MAX: usize = 4096;

/// Approximate bytes of one read: decoding its leaves occupies the thread for less than a
/// millisecond.
const SPAN_BYTES: u32 = 64 << 10;

/// Maximum number of bytes between two leaves that are read in one operation: beyond it, another
/// read would be faster.
const GAP_BYTES: u32 = 16 << 10;

/// Concurrent reads.
const SPANS_AT_ONCE: usize = 8;

/// Bytes of a leaf in memory for each byte of its record, and a constant in addition: an estimate,
/// which is safe because a leaf that is evicted before its use is loaded again.
const DECODED_BYTES_EACH: usize = 4;
const DECODED_BYTES_MORE: usize = 128;

/// A leaf to load.
#[derive(Clone, Copy)]
struct Target {
    leaf: u64,
    /// The place that the map names.
    named: LeafPlace,
    /// Its current place.
    at: LeafPlace,
}

impl Target {
    fn end(&self) -> u32 {
        self.at.place.offset.saturating_add(self.at.place.bytes)
    }
}

/// Leaves that are read in one operation.
struct Span {
    segment: SegmentId,
    offsets: Range<u32>,
    targets: Range<usize>,
}

impl Drive {
    /// Loads the first of these leaves that are only on the medium, limited to a number that do not
    /// evict each other. Skips numbers beyond the disk. Returns the number of `leaves` examined, at
    /// least one if there is one.
    pub(in super::super) async fn sweep_leaves(&self, leaves: &[u64]) -> usize {
        let (targets, covered) = self.sweep_targets(leaves);
        if targets.len() > 1 {
            let spans = spans(&targets, self.medium.capabilities().read_unit);
            let reads = spans.into_iter().map(|span| self.sweep_span(&targets, span));
            let mut reads = iter(reads).buffer_unordered(SPANS_AT_ONCE);
            while reads.next().await.is_some() {}
        }
        covered
    }

    /// Returns the leaves to load, in the order of the medium, and the number of leaves examined.
    fn sweep_targets(&self, leaves: &[u64]) -> (Vec<Target>, usize) {
        let core = self.core();
        let mut bytes_left = self.options.map_cache_bytes / LOADS_DIVISOR;
        let (mut targets, mut covered) = (Vec::new(), 0);
        for &leaf in leaves.iter().take(SWEEP_LEAVES_MAX) {
            if core.map().is_on_medium_only(leaf)
                && let Some(named) = core.leaf_to_load(leaf)
            {
                let at = core.leaf_at(named);
                let bytes = DECODED_BYTES_MORE + at.place.bytes as usize * DECODED_BYTES_EACH;
                let Some(left) = bytes_left.checked_sub(bytes) else { break };
                bytes_left = left;
                let address = FrameAddress::from(Wanted::of(leaf, at).place);
                if at.place.bytes <= SPAN_BYTES && core.log().in_memory(address).is_none() {
                    targets.push(Target { leaf, named, at });
                }
            }
            covered += 1;
        }
        targets.sort_unstable_by_key(|target| (target.at.place.segment, target.at.place.offset));
        (targets, covered.max(1))
    }

    async fn sweep_span(&self, targets: &[Target], span: Span) {
        let Span { segment, offsets, targets: range } = span;
        let _pin = self.pin(segment);
        let first = offsets.start;
        let install = |bytes: &[u8]| {
            for target in targets.get(range).unwrap_or_default() {
                let start = (target.at.place.offset - first) as usize;
                let record = bytes.get(start..(target.end() - first) as usize);
                let loaded = record.and_then(|record| self.decode_leaf(record, target));
                if let Some(loaded) = loaded {
                    self.with_core(|core| {
                        core.install_leaf(target.leaf, target.named.place, loaded);
                    });
                }
            }
        };
        // Unreadable leaves are loaded, or reported, when they are needed.
        let _ = self.buffers.read(&*self.medium, segment, offsets, install).await;
    }

    fn decode_leaf(&self, record: &[u8], target: &Target) -> Option<Leaf> {
        let wanted = Wanted::of(target.leaf, target.at);
        let decoded = decode_meta(self.medium.cipher(), record, &self.decompressor, wanted);
        Leaf::decode(&decoded.ok()?.raw, &self.core().map_limits()).ok()
    }
}

impl Wanted {
    fn of(leaf: u64, at: LeafPlace) -> Self {
        Self::at(at.place, at.generation, MetaKind::Leaf, leaf)
    }
}

/// Returns the reads that cover targets, which are in the order of the medium.
fn spans(targets: &[Target], unit: u32) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        let place = target.at.place;
        let end = target.end().next_multiple_of(unit);
        match spans.last_mut() {
            Some(last)
                if last.segment == place.segment
                    && place.offset <= last.offsets.end.saturating_add(GAP_BYTES)
                    && end.saturating_sub(last.offsets.start) <= SPAN_BYTES.max(unit) =>
            {
                last.offsets.end = end.max(last.offsets.end);
                last.targets.end = index + 1;
            }
            _ => spans.push(Span {
                segment: place.segment,
                offsets: place.offset / unit * unit..end,
                targets: index..index + 1,
            }),
        }
    }
    let covered: usize = spans.iter().map(|span| span.targets.len()).sum();
    assert_eq!(covered, targets.len(), "each leaf is in one read");
    spans
}
