//! Replacing the master key of an encrypted drive while it is in use.
//!
//! ```text
//! new key, from generation G on -> superblock with both keys, both slots
//!    -> segments begun after this have generation G or more; every stream continues in one
//!    -> garbage collection empties all others, including data of snapshots
//!    -> checkpoint -> superblock without the earlier key, both slots
//! ```
//!
//! Frames are opened with the key of their current segment and sealed with the key of their new
//! one; metadata is rewritten.
//!
//! **Power loss** at any moment leaves a drive that opens. *Before both superblocks contain the new
//! key:* one of them may contain it, and no segment has generation G or more, so that all data
//! opens with the earlier key, which both contain. The next opening begins an epoch whose
//! generations are higher than G. *After:* the generation of each segment determines its key, and
//! the superblocks contain both keys. The earlier key is dropped when no segment with an earlier
//! generation is in use. By then no map, snapshot or table, and no log that recovery reads, names a
//! record in such a segment, since a segment is only freed once the newest checkpoint, which both
//! superblocks name, needs nothing in it. If the replacement is interrupted before that, the next
//! call resumes it.

use serde::{Deserialize, Serialize};

use super::super::core::Core;
use super::super::drive::Drive;
use super::super::keys::NewKeys;
use crate::base::{Error, ErrorKind, Result};
use crate::crypt::Wrapped;
use crate::format::KeyArea;

/// The result of replacing a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rekeyed {
    /// Whether this call resumed an earlier one.
    pub was_begun: bool,
    /// Segments that were emptied.
    pub segments: u32,
}

/// Marks a key as being replaced until dropped.
struct Rekeying<'a>(&'a Drive);

impl Drop for Rekeying<'_> {
    fn drop(&mut self) {
        self.0.with_core(Core::end_rekey);
    }
}

impl Drive {
    /// Replaces the master key with a new one, and moves everything that the drive stores under the
    /// earlier key. When this returns, nothing on the medium that the drive uses opens with an
    /// earlier key, and the superblocks no longer contain it. Without `keys`, resumes an earlier
    /// call.
    ///
    /// May be dropped, or end with an error, at any time: both keys then remain in use until
    /// another call completes. If dropped while it writes superblocks, the drive accepts no writes
    /// until it is reopened.
    ///
    /// # Errors
    /// `InvalidInput` if the drive is not encrypted, if snapshots prevent the replacement, if there
    /// is nothing to resume, or if there is and new keys were given; `PermissionDenied` if the new
    /// keys were not made with a key in use; `NoSpace` if there is no space to move data; `Corrupt`
    /// if a segment cannot be emptied; `Busy`; `ReadOnly`; `Poisoned`; `Medium`.
    pub async fn rekey(&self, keys: Option<&NewKeys>) -> Result<Rekeyed> {
        let invalid = |what: &'static str| Error::new(ErrorKind::InvalidInput, what);
        let area = self.with_core(|core| {
            core.check_writable(0, 0)?;
            let area = core.superblock().keys.clone();
            let area = area.ok_or_else(|| invalid("the drive is not encrypted"))?;
            core.begin_rekey()?;
            Ok::<_, Error>(area)
        })?;
        let _rekeying = Rekeying(self);
        let was_begun = area.earlier.is_some();
        let since = match (keys, was_begun) {
            (Some(keys), false) => self.take_keys(&area, keys).await?,
            (None, true) => area.since,
            (Some(_), true) => {
                return Err(invalid(
                    "an earlier key is still in use: finish its replacement first, without a new \
                     key",
                ));
            }
            (None, false) => return Err(invalid("the drive has a single key: nothing to finish")),
        };
        self.with_core(|core| core.enter_key(since));
        let segments = self.core().space().used_before(since);
        self.move_to_key(since).await?;
        self.checkpoint().await?;
        let _turn = self.turn().await;
        self.core().log().check_poison()?;
        assert_eq!(self.core().space().used_before(since), 0, "generations only grow");
        self.update_superblocks(|superblock| {
            if let Some(keys) = &mut superblock.keys {
                keys.earlier = None;
            }
        })
        .await?;
        Ok(Rekeyed { was_begun, segments })
    }

    /// Adds a new key to the superblocks next to the current one. Returns the generation from which
    /// it applies.
    async fn take_keys(&self, area: &KeyArea, keys: &NewKeys) -> Result<u64> {
        let cipher = self.medium.cipher();
        let (slots, wrapped) = keys.decode()?;
        let master = cipher.unwrap(&wrapped, Wrapped::Next).map_err(|error| {
            let what = "the new key was not made with the key of the drive";
            Error::new(ErrorKind::PermissionDenied, what).caused_by(error)
        })?;
        let _turn = self.turn().await;
        self.core().log().check_poison()?;
        // A clone may have been registered in the superblocks in the meantime.
        self.core().snapshots().check_rekey()?;
        let since = self.core().next_key_since();
        assert!(since > area.since, "generations only grow");
        let earlier = cipher.newest().0.clone();
        cipher.renew(master, since);
        let earlier = Some(cipher.wrap(&earlier, Wrapped::Earlier));
        let area = KeyArea { since, earlier, slots };
        self.update_superblocks(|superblock| superblock.keys = Some(area)).await?;
        self.core().check_key_unused(since);
        Ok(since)
    }

    /// Waits until no segment of an earlier generation is in use.
    async fn move_to_key(&self, since: u64) -> Result<()> {
        let check_hindrance = |core: &Core| {
            core.snapshots().check_no_readers("the key cannot be replaced")?;
            core.snapshots().check_rekey()
        };
        self.until_emptied(|_| (), |core| core.rekeyed(since), check_hindrance).await
    }
}
