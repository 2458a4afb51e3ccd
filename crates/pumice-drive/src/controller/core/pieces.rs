//! Leaves of the map in the form that the comparison of disks needs: pieces with the places of
//! their frames.

use super::super::map::{LEAF_BLOCKS, Mapping};
use super::Core;
use crate::base::Lba;
use crate::base::units::BLOCK_BYTES;

/// Consecutive blocks of a leaf that belong to one frame, or to one hole or fill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafPiece {
    /// The first block.
    pub(crate) start: u64,
    /// The block after the last.
    pub(crate) end: u64,
    /// The mapping of the first block; the subsequent blocks continue it.
    pub(crate) mapping: Mapping,
    /// Generation of the segment of the frame; 0 without a frame.
    pub(crate) generation: u64,
}

impl Core {
    /// Returns the pieces that cover a leaf, in order, with the current places of frames. Returns
    /// `None` if the leaf must be loaded first or is beyond the disk, and for a clone whose holes
    /// may read from its origin.
    pub(crate) fn leaf_pieces(&self, leaf: u64) -> Option<impl Iterator<Item = LeafPiece>> {
        let leaves = (self.size_bytes() / BLOCK_BYTES as u64).div_ceil(LEAF_BLOCKS.into());
        let runs = (leaf < leaves && self.inherited_blocks() == 0)
            .then(|| self.map.all_leaf_runs(leaf))
            .flatten()?;
        Some(runs.map(|(Lba(start), blocks, mapping)| {
            let (mapping, generation) = match mapping {
                Mapping::Frame { place, index } => {
                    let generation = self.space.generation(place.segment);
                    let (place, generation) = self.forwards().resolve(place, generation);
                    (Mapping::Frame { place, index }, generation)
                }
                mapping => (mapping, 0),
            };
            LeafPiece { start, end: start + blocks, mapping, generation }
        }))
    }
}
