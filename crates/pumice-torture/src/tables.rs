//! The end of a world with many snapshots: a piece of a table that locates their frames is damaged
//! for good.
//!
//! The drive opens, and lists each snapshot that may need the piece as damaged, in this opening and
//! in all later ones, until the snapshot is deleted. A damaged snapshot returns its data or an
//! error; all others are whole. Views of the served drive are compared, and snapshots of the closed
//! one. The draws are the last of the world.

use std::collections::BTreeSet;
use std::rc::Rc;

use rand::RngExt;

use super::damage::Bit;
use super::hazard::Hazard;
use super::life::read_all;
use super::oracle::{Found, Image, Mismatch};
use super::world::World;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::{AlignedBuffer, Error};
use pumice_drive::controller::{Drive, OpenOptions};
use pumice_drive::format::{BatchHeader, MetadataAddress};
use pumice_drive::media::Medium;

const PAGE_BYTES: u32 = BLOCK_BYTES as u32;

impl World {
    /// Damages a piece of a table, if the drive has any, and checks the consequences.
    pub(super) fn damage_a_table(&mut self) -> Result<(), Mismatch> {
        if !self.scene.hazards.has(Hazard::Retention) || self.scene.is_damaged.get() {
            return Ok(());
        }
        // Damage to the newest checkpoint counts as damage to the end of the log.
        let older = self.serve(async |drive| Ok(drive.forward_pieces()))?;
        let mut pieces = self.serve(async |drive| Ok(drive.forward_pieces()))?;
        pieces.retain(|piece| older.contains(piece));
        if pieces.is_empty() {
            return Ok(());
        }
        let piece = pieces[self.random.random_range(0..pieces.len())];
        let offset = piece.offset + self.random.random_range(0..piece.bytes);
        self.scene.is_damaged.set(true);
        let runtime = self.scene.runtime.clone();
        runtime.block_on(self.flip_for_good(MetadataAddress { offset, ..piece }));
        let mut listed = self.open_damaged()?;
        self.scene.tally.borrow_mut().tables_damaged[0] += 1;
        self.scene.tally.borrow_mut().tables_damaged[1] += listed.len() as u64;
        let again = self.open_damaged()?;
        if again != listed {
            return Err(wrong("damaged snapshots stay listed", format!("{again:?}")));
        }
        self.compare_closed(&listed)?;
        let clones = self.scene.clones.borrow();
        self.serve(async |drive| {
            for name in listed.iter().filter(|name| !clones.may_keep(name)) {
                drive.delete_snapshot(name).await.map_err(|error| failed("a deletion", &error))?;
            }
            Ok(())
        })?;
        listed.retain(|name| clones.may_keep(name));
        let left = self.open_damaged()?;
        match left == listed {
            true => Ok(()),
            false => Err(wrong("snapshots that are not deleted are whole", format!("{left:?}"))),
        }
    }

    /// Flips a bit and its counterpart in parity, so that it cannot be restored.
    async fn flip_for_good(&self, at: MetadataAddress) {
        let MetadataAddress { segment, offset, .. } = at;
        Bit::lowest(segment, offset).flip(&self.memory).await;
        for first in (0..=offset / PAGE_BYTES).rev() {
            let page = AlignedBuffer::zeroed(BLOCK_BYTES);
            let page = self.memory.read(segment, first * PAGE_BYTES, page).await.0;
            let Ok((batch, _)) = BatchHeader::decode_with(&page, self.memory.cipher()) else {
                continue;
            };
            let from = if batch.offset == PAGE_BYTES { 0 } else { batch.offset };
            let end = batch.offset + batch.batch_bytes() as u32;
            let parity = u32::from(batch.parity_pages);
            if parity > 0 {
                let page = (offset - from) / PAGE_BYTES % parity;
                let place = end - (parity - page) * PAGE_BYTES + offset % PAGE_BYTES;
                Bit::lowest(segment, place).flip(&self.memory).await;
            }
            return;
        }
    }

    /// Opens the drive and compares its snapshots. Returns the names of the snapshots listed as
    /// damaged.
    fn open_damaged(&self) -> Result<BTreeSet<String>, Mismatch> {
        let mut snapshots = self.scene.snapshots.borrow().sure_names();
        self.serve(async |drive| {
            let infos = drive.snapshots();
            snapshots.retain(|(name, _)| infos.iter().any(|info| info.name == *name));
            let damaged = infos.into_iter().filter(|info| info.damage.is_some());
            let listed: BTreeSet<String> = damaged.map(|info| info.name).collect();
            for (name, image) in &snapshots {
                let view = drive.view(name, self.options).await;
                self.compare_with(view, name, image, listed.contains(name)).await?;
            }
            Ok(listed)
        })
    }

    /// Compares the snapshots of the closed drive.
    fn compare_closed(&self, listed: &BTreeSet<String>) -> Result<(), Mismatch> {
        let snapshots = self.scene.snapshots.borrow().sure_names();
        let clock = self.scene.runtime.clone();
        let compared = clock.block_on(async {
            for (name, image) in &snapshots {
                let memory = Rc::new(self.memory.clone());
                let options = OpenOptions { read_only: true, ..self.options };
                let view = Drive::open_snapshot(memory, clock.clock(), name, options).await;
                self.compare_with(view, name, image, listed.contains(name)).await?;
            }
            Ok(())
        });
        clock.drop_tasks();
        compared
    }

    /// Compares a snapshot. If it is listed as damaged, blocks may be unreadable.
    async fn compare_with(
        &self,
        view: Result<Rc<Drive>, Error>,
        name: &str,
        image: &Image,
        is_listed: bool,
    ) -> Result<(), Mismatch> {
        let view = match view {
            Err(_) if is_listed => return Ok(()),
            view => view.map_err(|error| failed(&format!("a view of {name}"), &error))?,
        };
        let mut disk = vec![0xa5; image.len()];
        let unreadable = read_all(&self.scene, &view, &mut disk).await?;
        if !unreadable.is_empty() && !is_listed {
            let promised = format!("{name}, which is not listed as damaged, is whole");
            return Err(wrong(&promised, format!("no block of {unreadable:?} can be read")));
        }
        let different = image.first_wrong(&Found { bytes: &disk, unreadable: &unreadable });
        different.map_or(Ok(()), |found| Err(wrong(&format!("{name} or an error"), found)))
    }

    /// Opens the drive for `job`, writes to it, so that the next opening finds another checkpoint,
    /// and closes it.
    fn serve<T>(
        &self,
        job: impl AsyncFnOnce(&Rc<Drive>) -> Result<T, Mismatch>,
    ) -> Result<T, Mismatch> {
        let runtime = self.scene.runtime.clone();
        let served = runtime.block_on(async {
            let memory = Rc::new(self.memory.clone());
            let opened = Drive::open(memory, runtime.clock(), self.options).await;
            let drive = opened.map_err(|error| failed("an opening", &error))?;
            let result = job(&drive).await?;
            let written = drive.write_durable(0, &[7; BLOCK_BYTES]).await;
            written.map_err(|error| failed("a write", &error))?;
            drive.close().await.map_err(|error| failed("a close", &error))?;
            Ok(result)
        });
        runtime.drop_tasks();
        served
    }
}

fn failed(what: &str, error: &Error) -> Mismatch {
    wrong(&format!("{what} succeeds although a table is damaged"), error.chain())
}

fn wrong(promised: &str, found: String) -> Mismatch {
    Mismatch { promised: promised.to_owned(), found }
}
