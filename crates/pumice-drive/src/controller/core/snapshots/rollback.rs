//! The state of rolling back: the disk becomes that of a snapshot in one step, which begins a
//! checkpoint that makes it durable.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use super::super::super::map::L2p;
use super::super::super::space::Space;
use super::super::Core;
use crate::base::{Result, SegmentId, SeqNo};

/// Returns an error if an external condition makes an action impossible now. Must not call the
/// drive.
pub type Condition = Rc<dyn Fn() -> Result<()>>;

/// The disk of a snapshot.
pub(crate) struct KeptDisk {
    /// The snapshot's last batch.
    pub(crate) watermark: SeqNo,
    /// Its map, in the current size of the disk.
    pub(crate) map: L2p,
    /// The segment table when it was taken.
    pub(crate) space: Space,
    /// Leaves that the drive had lost when the snapshot was taken.
    pub(crate) lost_leaves: u32,
    /// Live bytes of frames that its map names at other places than the snapshot's map, by segment.
    pub(crate) copies: BTreeMap<SegmentId, u32>,
}

impl Core {
    /// Sets whether frames that snapshots need stay in place. They do while the snapshot that
    /// becomes the disk is read.
    pub(crate) fn set_rolling_back(&mut self, is_rolling_back: bool) {
        let before = std::mem::replace(&mut self.snapshots.is_rolling_back, is_rolling_back);
        assert_ne!(before, is_rolling_back, "one rollback is prepared at a time");
        self.snapshots.needs_changed();
        self.snapshots.fix_retained(&mut self.space);
    }

    /// Sets the last batch before the disk was last rolled back to a snapshot, as stored in a
    /// checkpoint.
    pub(crate) fn set_rolled_back(&mut self, last: SeqNo) {
        self.snapshots.rolled_back = last;
    }

    /// Replaces the disk by that of a snapshot, in memory: the map is the snapshot's, and the
    /// frames that were live then are live again. Everything else that the newest checkpoint names
    /// stays until this one is complete.
    pub(in super::super) fn roll_back_to(&mut self, disk: KeptDisk) {
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
