//! Changing settings that a drive stores, while it is in use: the codec of new data, and the
//! thresholds for warnings about space.
//!
//! The settings are fields of the superblock, which is written as usual: one slot, sync, the other
//! slot, sync. **Power loss** leaves the old settings or the new ones. Every frame names its own
//! encoding, so both are valid for any content of the log.

use serde::{Deserialize, Serialize};

use super::super::core::WARN_THRESHOLDS_MAX;
use super::super::drive::Drive;
use crate::base::Result;
use crate::codec::{Codec, Compressor};
use crate::format::Superblock;

/// Settings to change; `None` leaves a setting as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsChange {
    /// Codec for new data.
    pub codec: Option<Codec>,
    /// Shares of the capacity in use, in percent, that cause a warning; 0 disables a threshold.
    pub warn_percent: Option<[u8; WARN_THRESHOLDS_MAX]>,
}

/// Settings that a drive stores and that can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSettings {
    /// Codec for new data.
    pub codec: Codec,
    /// Shares of the capacity in use, in percent, that cause a warning; 0 disables a threshold.
    pub warn_percent: [u8; WARN_THRESHOLDS_MAX],
}

/// Settings before and after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsChanged {
    /// The settings before the change.
    pub before: StoredSettings,
    /// The settings after the change.
    pub after: StoredSettings,
    /// Whether the drive was opened with its own thresholds ([`OpenOptions::warn_percent`]), which
    /// override the stored ones until it is closed.
    ///
    /// [`OpenOptions::warn_percent`]: crate::controller::OpenOptions::warn_percent
    pub is_warn_overridden: bool,
}

impl StoredSettings {
    fn of(superblock: &Superblock) -> Self {
        Self {
            codec: Codec::from_format(superblock.codec, superblock.codec_level),
            warn_percent: superblock.warn_percent,
        }
    }
}

impl Drive {
    /// Returns the settings that the drive stores.
    pub fn settings(&self) -> StoredSettings {
        StoredSettings::of(self.core().superblock())
    }

    /// Changes settings. When this returns, the change is durable, and the codec applies to all
    /// data written afterwards; existing data stays as it is. Writes nothing if no setting differs.
    ///
    /// The call must run to completion while the drive is open: if it is dropped while it writes
    /// superblocks, the drive accepts no writes until it is reopened.
    ///
    /// # Errors
    /// `ReadOnly` or `Poisoned`:
    /// nothing is changed. `Medium`: the drive accepts no writes.
    pub async fn change_settings(&self, change: SettingsChange) -> Result<SettingsChanged> {
        let _turn = self.turn().await;
        self.core().check_writable(0, 0)?;
        let before = self.settings();
        let after = StoredSettings {
            codec: change.codec.unwrap_or(before.codec),
            warn_percent: change.warn_percent.unwrap_or(before.warn_percent),
        };
        if after != before {
            self.update_superblocks(|superblock| {
                (superblock.codec, superblock.codec_level) = after.codec.to_format();
                superblock.warn_percent = after.warn_percent;
            })
            .await?;
        }
        if after.codec != before.codec {
            self.codec.set(after.codec);
            self.compressor.replace(Compressor::new(after.codec).with_form(self.form));
        }
        if after.warn_percent != before.warn_percent {
            self.with_core(|core| core.reclaim_mut().thresholds_changed());
        }
        let is_warn_overridden = self.options.warn_percent.is_some();
        Ok(SettingsChanged { before, after, is_warn_overridden })
    }
}
