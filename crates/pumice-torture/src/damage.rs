//! Permanent damage to the medium of a served drive: flipped bits and bad sectors.
//!
//! Only bytes that were on the medium when the drive had opened are damaged. The superblock vouches
//! for all of them, so nothing may be lost silently, not even in a later crash: damaged data reads
//! as an error, or the drive refuses to open. After a refusal the damage is healed, and the drive
//! must open with everything.

use rand::RngExt;

use super::hazard::{Hazard, Hazards};
use super::medium::Layers;
use pumice_drive::base::seed::Random;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::{AlignedBuffer, SegmentId};
use pumice_drive::format::{SegmentHeader, Stream};
use pumice_drive::media::layer::fault::{BadRange, Region};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::media::{Geometry, Medium};

/// Maximum number of damaged places of each kind in one life.
const PLACES_MAX: u32 = 4;

/// Bytes of a page that contain a header, if the page begins with one.
const HEADER_BYTES: u32 = 160;

/// A bit of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bit {
    segment: SegmentId,
    offset: u32,
    bit: u8,
}

impl Bit {
    /// Draws a bit in a used page of a segment; a third of the bits are in its first bytes, where
    /// headers are, and a quarter are in segments of metadata, if one is found.
    pub(super) async fn draw(
        random: &mut Random,
        memory: &MemMedium,
        geometry: &Geometry,
    ) -> Option<Self> {
        let wants_metadata = random.random_range(0..4) == 0;
        for attempt in 0..30 {
            let segment = SegmentId(random.random_range(0..geometry.segment_count));
            let pages = match random.random() {
                true => geometry.segment_bytes / BLOCK_BYTES as u32,
                // Where even an almost empty segment contains data.
                false => 16,
            };
            let page = random.random_range(0..pages) * BLOCK_BYTES as u32;
            let within = match random.random_range(0..3) {
                0 => HEADER_BYTES,
                _ => BLOCK_BYTES as u32,
            };
            let offset = page + random.random_range(0..within);
            let drawn = Self { segment, offset, bit: random.random_range(0..8) };
            if wants_metadata && attempt < 20 && !is_of_metadata(memory, segment).await {
                continue;
            }
            if drawn.page(memory).await.iter().any(|&byte| byte != 0) {
                return Some(drawn);
            }
        }
        None
    }

    /// Returns the lowest bit of a byte.
    pub(super) fn lowest(segment: SegmentId, offset: u32) -> Self {
        Self { segment, offset, bit: 0 }
    }

    fn page_offset(self) -> u32 {
        self.offset / BLOCK_BYTES as u32 * BLOCK_BYTES as u32
    }

    /// Returns the page around the bit.
    async fn page(self, memory: &MemMedium) -> AlignedBuffer {
        let buffer = AlignedBuffer::zeroed(BLOCK_BYTES);
        memory.read(self.segment, self.page_offset(), buffer).await.0
    }

    async fn put_page(self, memory: &MemMedium, page: AlignedBuffer) {
        let written = memory.append(self.segment, self.page_offset(), page.into()).await;
        written.expect("memory does not fail");
    }

    /// Flips the bit on the medium.
    pub(super) async fn flip(self, memory: &MemMedium) {
        let mut page = self.page(memory).await;
        page[self.offset as usize % BLOCK_BYTES] ^= 1 << self.bit;
        self.put_page(memory, page).await;
    }
}

async fn is_of_metadata(memory: &MemMedium, segment: SegmentId) -> bool {
    let page = memory.read(segment, 0, AlignedBuffer::zeroed(BLOCK_BYTES)).await.0;
    SegmentHeader::found_in(&page).is_some_and(|header| header.stream == Stream::Meta)
}

/// A bit that is flipped on the medium unless its page was rewritten.
struct Flipped {
    bit: Bit,
    /// The page with the flipped bit.
    page: AlignedBuffer,
}

/// Number of lives that one unwritable place may end: the life that finds it, and one that dies
/// before it has recorded the place.
pub(super) const LIVES_PER_SECTOR: u32 = 2;

/// The damage of a world's medium.
#[derive(Default)]
pub(super) struct Damage {
    flipped: Vec<Flipped>,
    bad: Vec<BadRange>,
}

impl Damage {
    /// Damages the medium of a drive that has just opened. Returns the number of places.
    pub(super) async fn strike(
        &mut self,
        random: &mut Random,
        layers: &Layers,
        geometry: &Geometry,
        hazards: Hazards,
    ) -> u32 {
        let memory = layers.inner();
        let mut places = 0;
        for hazard in [Hazard::Rot, Hazard::BadReads] {
            if !hazards.has(hazard) {
                continue;
            }
            for _ in 0..random.random_range(1..=PLACES_MAX) {
                let Some(bit) = Bit::draw(random, memory, geometry).await else { continue };
                places += 1;
                if hazard == Hazard::Rot {
                    bit.flip(memory).await;
                    self.flipped.push(Flipped { bit, page: bit.page(memory).await });
                } else {
                    let sectors = bit.offset..bit.offset + 512 * random.random_range(1..=16);
                    let sectors = sectors.start..sectors.end.min(geometry.segment_bytes);
                    let region = Region::Segment(bit.segment);
                    let range = BadRange::unreadable(region, sectors);
                    layers.add_bad_range(BadRange { heals: random.random(), ..range });
                }
            }
        }
        if hazards.has(Hazard::BadWrites) && random.random() {
            let segment = SegmentId(random.random_range(0..geometry.segment_count));
            let page = random.random_range(0..geometry.segment_bytes / BLOCK_BYTES as u32);
            let start = page * BLOCK_BYTES as u32;
            layers.add_bad_range(BadRange::dead(Region::Segment(segment), start..start + 512));
            places += 1;
        }
        places
    }

    /// Adopts the bad ranges of a life's medium.
    pub(super) fn remember(&mut self, layers: &Layers) {
        self.bad = layers.bad_ranges();
    }

    /// Puts the bad ranges on the medium of the next life.
    pub(super) fn put_on(&self, layers: &Layers) {
        layers.clear_bad_ranges();
        self.bad.iter().for_each(|range| layers.add_bad_range(range.clone()));
    }

    /// Returns the number of unwritable places.
    pub(super) fn unwritable(&self) -> u32 {
        self.bad.iter().filter(|range| range.fails_writes).count() as u32
    }

    /// Undoes all remaining damage.
    pub(super) async fn heal(&mut self, memory: &MemMedium) {
        self.bad.clear();
        // Backwards: two bits may share a page.
        while let Some(Flipped { bit, page }) = self.flipped.pop() {
            if bit.page(memory).await[..] == page[..] {
                bit.flip(memory).await;
            }
        }
    }
}
