//! Memory of the results of audits of snapshots: see `inspect::audit_kept`.

use std::collections::{BTreeMap, HashSet};

use super::super::place::{FramePlace, SegmentUse};
use crate::base::{Lba, SeqNo};

/// The results of earlier audits. The map of a snapshot does not change, nor does a frame in the
/// current use of a segment.
#[derive(Default)]
pub(in super::super) struct Audited {
    pub(in super::super) named: BTreeMap<SeqNo, Vec<Named>>,
    /// Whether the snapshots of `named` that name a place are neighbours. If so, they still are
    /// after a deletion.
    pub(in super::super) are_neighbors: bool,
    pub(in super::super) readable: HashSet<Found>,
}

/// A run of blocks that the map of a snapshot names in a frame.
#[derive(Clone, Copy)]
pub(in super::super) struct Named {
    pub(in super::super) lba: Lba,
    pub(in super::super) blocks: u64,
    pub(in super::super) place: FramePlace,
    pub(in super::super) generation: u64,
}

/// The current place of a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(in super::super) struct Found {
    pub(in super::super) of: SegmentUse,
    pub(in super::super) offset: u32,
    pub(in super::super) lba: Lba,
}
