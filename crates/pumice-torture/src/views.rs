//! Snapshots of a served drive are read, compared and sent while hosts write.
//!
//! Each is opened as a view. It is read twice with a pause between, and must not change by a bit.
//! Blocks that are not listed as changed between two snapshots must be equal. A sent snapshot is
//! kept for `transfers`, which receives it after the life.

use std::rc::Rc;

use rand::RngExt;

use super::hazard::Hazard;
use super::host::Host;
use super::life::read_all;
use super::oracle::{Found, Image, Mismatch};
use super::outbox::{Transfer, collect};
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::{Error, ErrorKind};
use pumice_drive::controller::{Drive, OpenOptions, SnapshotInfo, View};

/// A host reads a snapshot once in this many requests, on average.
const REQUESTS_PER_LOOK: u32 = 25;

/// Longest time between two reads, and between two sent parts.
const PAUSE_NS: u64 = 3_000_000;

/// An open snapshot.
pub(super) struct Opened {
    info: SnapshotInfo,
    image: Rc<Image>,
    view: Rc<Drive>,
}

impl Host {
    /// Occasionally reads a snapshot.
    pub(super) async fn look_back(&mut self) -> Result<(), Mismatch> {
        let is_wanted = self.scene.hazards.has(Hazard::Transfers)
            && self.random.random_range(0..REQUESTS_PER_LOOK) == 0;
        if !is_wanted || self.scene.faults.get().of_reads {
            return Ok(());
        }
        let infos = self.drive.snapshots();
        let readable = self.scene.snapshots.borrow().readable(&infos);
        if readable.is_empty() {
            return Ok(());
        }
        let which = self.random.random_range(0..readable.len());
        let (earlier, rest) = readable.split_at(which);
        let Some(now) = self.open_view(&rest[0]).await? else { return Ok(()) };
        match self.random.random_range(0..3) {
            0 => self.read_twice(&now).await,
            1 if !earlier.is_empty() => {
                let before = &earlier[self.random.random_range(0..earlier.len())];
                let Some(before) = self.open_view(before).await? else { return Ok(()) };
                self.compare_views(&before, &now).await
            }
            _ => {
                let newest = self.scene.outbox.borrow().newest.clone();
                let base = earlier.iter().find(|(info, _)| Some(&info.name) == newest.as_ref());
                let base = match base {
                    Some(base) if self.random.random_range(0..4) > 0 => {
                        let Some(base) = self.open_view(base).await? else { return Ok(()) };
                        Some(base)
                    }
                    _ => None,
                };
                self.send(&now, base.as_ref()).await
            }
        }
    }

    /// Opens a snapshot, unless another host deletes it.
    pub(super) async fn open_view(
        &self,
        (info, image): &(SnapshotInfo, Rc<Image>),
    ) -> Result<Option<Opened>, Mismatch> {
        let options = OpenOptions { read_cache_bytes: 0, ..OpenOptions::default() };
        match self.drive.view(&info.name, options).await {
            Ok(view) => Ok(Some(Opened { info: info.clone(), image: image.clone(), view })),
            Err(error) if error.kind() == ErrorKind::NotFound || self.may_fail(&error) => Ok(None),
            Err(error) => Err(broken(info, "can be read", &error)),
        }
    }

    async fn read_twice(&mut self, now: &Opened) -> Result<(), Mismatch> {
        let first = self.read_view(now).await?;
        self.scene.sleep(self.random.random_range(0..=PAUSE_NS)).await;
        let second = self.read_view(now).await?;
        if let (Some(first), Some(second)) = (first, second)
            && first != second
        {
            let promised = format!("{} does not change by a bit", now.info.name);
            return Err(Mismatch { promised, found: "two reads of it differ".to_owned() });
        }
        Ok(())
    }

    /// Reads a snapshot whole; returns nothing if damage prevents that.
    pub(super) async fn read_view(&self, now: &Opened) -> Result<Option<Vec<u8>>, Mismatch> {
        let mut disk = vec![0xa5; now.image.len()];
        let unreadable = read_all(&self.scene, &now.view, &mut disk).await?;
        self.scene.tally.borrow_mut().views_read += 1;
        let wrong = now.image.first_wrong(&Found { bytes: &disk, unreadable: &unreadable });
        match wrong {
            Some(found) => {
                Err(Mismatch { promised: format!("{} as it was taken", now.info.name), found })
            }
            None => Ok(unreadable.is_empty().then_some(disk)),
        }
    }

    /// Checks that blocks not written between two snapshots are equal in both.
    async fn compare_views(&mut self, before: &Opened, now: &Opened) -> Result<(), Mismatch> {
        let blocks = now.image.len() / BLOCK_BYTES;
        let mut is_listed = vec![false; blocks];
        let listing = now.view.changes_since(&before.view, |changed| {
            let from = changed.offset as usize / BLOCK_BYTES;
            is_listed[from..from + changed.bytes as usize / BLOCK_BYTES].fill(true);
            true
        });
        match listing.await {
            Ok(()) => {}
            Err(error) if self.may_fail(&error) => return Ok(()),
            Err(error) => return Err(broken(&now.info, "can be compared", &error)),
        }
        let (old, new) = (self.read_view(before).await?, self.read_view(now).await?);
        let (Some(mut old), Some(new)) = (old, new) else { return Ok(()) };
        old.resize(new.len(), 0);
        self.scene.tally.borrow_mut().diffs += 1;
        let differ = |block: &usize| {
            let at = block * BLOCK_BYTES;
            old[at..at + BLOCK_BYTES] != new[at..at + BLOCK_BYTES]
        };
        // Data has a stamp of its write: equal blocks of data were not written in between.
        let is_data = |block: usize| {
            let at = block * BLOCK_BYTES;
            new[at..at + BLOCK_BYTES].iter().any(|&byte| byte != new[at])
        };
        let is_needless = |&block: &usize| is_listed[block] && !differ(&block) && is_data(block);
        if let Some(block) = (0..blocks).find(is_needless)
            && !self.scene.is_damaged.get()
        {
            return Err(Mismatch {
                promised: format!(
                    "a block that is the same in {} and {} is not listed",
                    before.info.name, now.info.name
                ),
                found: format!("block {block} is"),
            });
        }
        match (0..blocks).filter(differ).find(|&block| !is_listed[block]) {
            None => Ok(()),
            Some(block) => Err(Mismatch {
                promised: format!(
                    "a block that differs between {} and {} is listed",
                    before.info.name, now.info.name
                ),
                found: format!("block {block} is not"),
            }),
        }
    }

    /// Sends a snapshot in parts, with pauses.
    async fn send(&mut self, now: &Opened, base: Option<&Opened>) -> Result<(), Mismatch> {
        let of = |opened: &'_ Opened| (opened.view.clone(), opened.info.clone());
        let (disk, base) = (of(now), base.map(of));
        let base_view = base.as_ref().map(|(disk, info)| View { disk, info });
        let (scene, random) = (self.scene.clone(), &mut self.random);
        let pause = async || scene.sleep(random.random_range(0..=PAUSE_NS)).await;
        let sent = collect(View { disk: &disk.0, info: &disk.1 }, base_view, 0, pause).await;
        match sent {
            Ok(bytes) => {
                self.scene.tally.borrow_mut().sends += 1;
                let (name, image) = (now.info.name.clone(), now.image.clone());
                let base = base.map(|(_, info)| info.name);
                self.scene.outbox.borrow_mut().sent = Some(Transfer { name, base, image, bytes });
                Ok(())
            }
            Err(error) if self.may_fail(&error) => Ok(()),
            Err(error) => Err(broken(&now.info, "can be sent", &error)),
        }
    }
}

fn broken(info: &SnapshotInfo, what: &str, error: &Error) -> Mismatch {
    Mismatch { promised: format!("{} {what}", info.name), found: error.chain() }
}
