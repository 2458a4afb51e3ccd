//! Registering a clone with the drive from which it reads, and removing it again. Both are
//! checkpoints, which list the clones of each snapshot.

use uuid::Uuid;

use super::super::core::Edit;
use super::super::drive::Drive;
use super::SnapshotInfo;
use crate::base::{Error, ErrorKind, Result, SeqNo};
use crate::format::{ORIGIN_PATH_MAX, RegisteredClone};

impl Drive {
    /// Registers a clone of a snapshot. The registration is durable when this returns: until the
    /// clone is forgotten, the snapshot is not deleted, and the data that it needs stays in place.
    /// Call this before creating the clone. The call must run to completion, like
    /// [`Drive::create_snapshot`].
    ///
    /// # Errors
    /// `NotFound`, `AlreadyExists`, `InvalidInput` for an impossible path, `NoSpace` if there are
    /// too many clones, `Corrupt` if the snapshot is damaged, `Busy` while the key of the drive is
    /// replaced, `ReadOnly`: nothing is changed. After `Medium` or `Poisoned` the clone may or may
    /// not be registered, and the drive accepts no writes.
    pub async fn register_clone(&self, name: &str, clone: RegisteredClone) -> Result<SnapshotInfo> {
        self.core().check_writable(0, 0)?;
        let watermark = SeqNo(self.snapshot_info(name)?.sequence);
        self.edit(Edit::Register(watermark, clone)).await?;
        self.snapshot_info(name)
    }

    /// Forgets a clone, which no longer reads from a snapshot of this drive. The change is durable
    /// when this returns. Returns whether the clone was registered.
    ///
    /// # Errors
    /// The errors of [`Drive::register_clone`].
    pub async fn forget_clone(&self, clone: Uuid) -> Result<bool> {
        self.core().check_writable(0, 0)?;
        let watermark = self.core().snapshots().origin_of(clone);
        let Some(watermark) = watermark else { return Ok(false) };
        self.edit(Edit::Forget(watermark, clone)).await?;
        Ok(true)
    }

    /// Changes the path of this clone's origin. The change is durable when this returns.
    ///
    /// # Errors
    /// `InvalidInput` if the drive is not a clone, or the path is too long; `ReadOnly`, `Poisoned`,
    /// `Medium`.
    pub async fn set_origin_path(&self, path: String) -> Result<()> {
        self.core().check_writable(0, 0)?;
        if self.origin().is_none() || path.len() > ORIGIN_PATH_MAX {
            let what = "only a clone has an origin, whose path has at most 1024 bytes";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let _turn = self.turn().await;
        self.core().log().check_poison()?;
        self.update_superblocks(|superblock| {
            if let Some(origin) = &mut superblock.origin {
                origin.path = path;
            }
        })
        .await
    }
}
