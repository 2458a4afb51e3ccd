//! The snapshots of a world, and what the oracle knows of each.
//!
//! ```text
//! making --the call returned--> sure --the call to delete--> deleting --it returned--> gone
//!    \__________ after a crash: there or not, and then sure or gone __________/
//! ```

use std::cell::Cell;
use std::rc::Rc;

use super::keep::Keep;
use super::oracle::{Image, Mismatch};
use pumice_drive::controller::SnapshotInfo;

/// Knowledge about the existence of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// It is being taken, or taking it failed or crashed.
    Making,
    /// It exists.
    Sure,
    /// It exists, and is being turned into a bookmark, or that failed or crashed.
    Changing,
    /// It is being deleted, or the deletion failed or crashed.
    Deleting,
}

/// A snapshot, and its expected content.
#[derive(Debug)]
pub(super) struct Frozen {
    pub(super) name: String,
    pub(super) presence: Presence,
    /// Whether it is known to be a bookmark; after a crash it may be one without being known as
    /// such.
    pub(super) is_bookmark: bool,
    /// The disk when it was taken, and the number of earlier changes in that life; `None` until it
    /// is taken.
    pub(super) cut: Option<(Rc<Image>, usize)>,
    /// Its position in the order in which snapshots were taken.
    pub(super) order: u64,
}

/// The snapshots of one world.
#[derive(Debug, Default)]
pub(super) struct Frozens {
    /// All that may exist.
    pub(super) all: Vec<Frozen>,
    /// Snapshots that were ever begun, for names.
    named: u64,
    /// Snapshots that were ever taken.
    cuts: u64,
    /// Calls under way.
    pub(super) calls: Rc<Cell<u32>>,
    /// Number of hosts that forbid taking snapshots.
    pub(super) held: u32,
}

/// A call that is under way.
pub(super) struct Call(Rc<Cell<u32>>);

impl Call {
    pub(super) fn of(frozens: &Frozens) -> Self {
        frozens.calls.set(frozens.calls.get() + 1);
        Self(frozens.calls.clone())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.set(self.0.get().checked_sub(1).expect("a call ends once"));
    }
}

impl Frozens {
    /// Returns whether snapshots may be taken and used.
    pub(super) fn are_allowed(&self) -> bool {
        self.held == 0
    }

    /// Begins a snapshot; returns its name and its number.
    pub(super) fn begin(&mut self) -> (String, u64) {
        self.named += 1;
        let name = format!("snapshot {}", self.named);
        let (presence, is_bookmark, cut, order) = (Presence::Making, false, None, 0);
        self.all.push(Frozen { name: name.clone(), presence, is_bookmark, cut, order });
        (name, self.named)
    }

    /// Records that a snapshot holds the disk of this moment.
    pub(super) fn cut(&mut self, name: &str, image: Image, taken: usize) {
        self.cuts += 1;
        let order = self.cuts;
        let frozen = self.find(name);
        (frozen.cut, frozen.order) = (Some((Rc::new(image), taken)), order);
    }

    /// Returns the snapshot of a name.
    pub(super) fn find(&mut self, name: &str) -> &mut Frozen {
        self.all.iter_mut().find(|frozen| frozen.name == name).expect("a snapshot of the world")
    }

    /// Removes a snapshot that no longer exists.
    pub(super) fn forget(&mut self, name: &str) {
        self.all.retain(|frozen| frozen.name != name);
    }

    /// Returns the drive's snapshots that no host is deleting, with their expected content, oldest
    /// first; returns none while snapshots are forbidden.
    pub(super) fn readable(&self, infos: &[SnapshotInfo]) -> Vec<(SnapshotInfo, Rc<Image>)> {
        if self.held > 0 {
            return Vec::new();
        }
        let image = |info: &SnapshotInfo| {
            let frozen = self.with_data().find(|frozen| frozen.name == info.name)?;
            Some((info.clone(), frozen.cut.as_ref()?.0.clone()))
        };
        infos.iter().filter_map(image).collect()
    }

    /// Returns the existing snapshots with data and their expected content, in the order in which
    /// they were begun.
    pub(super) fn sure_names(&self) -> Vec<(String, Rc<Image>)> {
        let image = |frozen: &Frozen| frozen.cut.as_ref().map(|cut| cut.0.clone());
        let named = |frozen: &Frozen| Some((frozen.name.clone(), image(frozen)?));
        self.with_data().filter_map(named).collect()
    }

    /// Returns the existing snapshots that are not bookmarks.
    pub(super) fn with_data(&self) -> impl Iterator<Item = &Frozen> {
        self.sure().filter(|frozen| !frozen.is_bookmark)
    }

    /// Returns the existing snapshots.
    pub(super) fn sure(&self) -> impl Iterator<Item = &Frozen> {
        self.all.iter().filter(|frozen| frozen.presence == Presence::Sure)
    }

    /// Writes the expected content of each existing snapshot to files.
    pub(super) fn keep(&self, life: u64, keep: &Keep) -> std::io::Result<()> {
        for Frozen { name, cut, .. } in self.with_data() {
            let (image, _) = cut.as_ref().expect("a snapshot with data was begun");
            keep.snapshot(life, name, image.bytes())?;
        }
        Ok(())
    }

    /// Adopts the snapshots that an opening found. Returns the number of changes that the disk must
    /// have because a snapshot has them.
    ///
    /// # Errors
    /// A snapshot exists that must not, or one that must exist is missing.
    pub(super) fn settle(
        &mut self,
        found: &[SnapshotInfo],
        is_damaged: bool,
    ) -> Result<usize, Mismatch> {
        self.held = 0;
        let names: Vec<&str> = found.iter().map(|info| info.name.as_str()).collect();
        let wrong = |promised: String| Err(Mismatch { promised, found: format!("{names:?}") });
        let mut floor = 0;
        for info in found {
            let frozen = self.all.iter().find(|frozen| frozen.name == info.name);
            let Some(Frozen { cut: Some((image, taken)), presence, is_bookmark, .. }) = frozen
            else {
                return wrong(format!("{} was never taken, or was deleted", info.name));
            };
            let is_other = info.is_bookmark != *is_bookmark && *presence != Presence::Changing;
            if is_other && !is_damaged {
                return wrong(format!("whether {} is a bookmark: {is_bookmark}", info.name));
            }
            if info.size_bytes != image.len() as u64 {
                return wrong(format!("{} has {} bytes", info.name, image.len()));
            }
            if let Some(damage) = info.damage.as_ref().filter(|_| !is_damaged) {
                return wrong(format!("{} is not damaged: {damage}", info.name));
            }
            // Changes in snapshots that hosts know to exist are flushed.
            if *presence == Presence::Making {
                floor = floor.max(*taken);
            }
        }
        let must_be_there =
            |frozen: &&Frozen| matches!(frozen.presence, Presence::Sure | Presence::Changing);
        let mut there = self.all.iter().filter(must_be_there);
        if let Some(lost) = there.find(|frozen| !names.contains(&frozen.name.as_str()))
            && !is_damaged
        {
            return wrong(format!("{} is there", lost.name));
        }
        self.all.retain(|frozen| names.contains(&frozen.name.as_str()));
        for frozen in &mut self.all {
            frozen.presence = Presence::Sure;
            let info = found.iter().find(|info| info.name == frozen.name);
            frozen.is_bookmark = info.is_some_and(|info| info.is_bookmark);
        }
        Ok(floor)
    }
}
