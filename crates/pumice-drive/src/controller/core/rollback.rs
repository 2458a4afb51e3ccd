//! Rolling back, as far as it is state: the disk becomes that of a snapshot in one step, which the
//! checkpoint that it begins makes durable.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use super::super::map::L2p;
use super::super::space::Space;
use super::Core;
use crate::base::{Result, SegmentId, SeqNo};

/// Returns why something that only others know of is not possible now. Must not ask the drive.
pub type Condition = Rc<dyn Fn() -> Result<()>>;

/// A disk as a snapshot has it.
pub(crate) struct KeptDisk {
    /// The snapshot's last batch.
    pub(crate) watermark: SeqNo,
    /// Its map, of the size that the disk has now.
    pub(crate) map: L2p,
    /// The segment table when it was taken.
    pub(crate) space: Space,
    /// Leaves that the drive had lost until then.
    pub(crate) lost_leaves: u32,
    /// Live bytes of frames that its map names elsewhere than the snapshot's does, by segment.
    pub(crate) copies: BTreeMap<SegmentId, u32>,
}

impl Core {
    /// Lets what snapshots need stay where it is while the disk of one is read, which then becomes
    /// the disk, or lets it be moved again.
    pub(crate) fn set_rolling_back(&mut self, is_rolling_back: bool) {
        self.is_rolling_back = is_rolling_back;
        self.needs_changed();
        self.fix_retained();
    }

    /// Sets the last batch before the disk last became that of a snapshot, from a checkpoint.
    pub(crate) fn set_rolled_back(&mut self, last: SeqNo) {
        self.snapshots.set_rolled_back(last);
    }

    /// Makes the disk what a snapshot has, in memory: the map is the snapshot's, and the frames
    /// that were live then are live again. What else the newest checkpoint names stays until this
    /// one is complete.
    pub(super) fn roll_back_to(&mut self, disk: KeptDisk) {
        self.needs_changed();
        self.snapshots.begin_rollback(disk.watermark, self.log.sealed_seq());
        let KeptDisk { watermark, mut map, space, lost_leaves, copies } = disk;
        let mut before: HashSet<u64> =
            self.map.superseded_addresses().map(|place| place.pack()).collect();
        before.extend(self.map.metadata_addresses().map(|place| place.pack()));
        let after: HashSet<u64> = map.metadata_addresses().map(|place| place.pack()).collect();
        for place in map.metadata_addresses().filter(|place| !before.contains(&place.pack())) {
            self.space.add_live(place.segment, place.bytes);
        }
        map.supersede(before.difference(&after).copied().collect());
        self.space.restore_frames(&space);
        for (segment, bytes) in copies {
            self.space.add_live(segment, bytes);
        }
        self.map = map;
        self.inherit_as(watermark);
        self.set_lost_leaves(lost_leaves);
    }
}
