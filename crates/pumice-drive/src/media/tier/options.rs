//! The options of a drive in a bucket, and its status.

use serde::{Deserialize, Serialize};

use super::store::Requests;
use crate::base::units::format_size;

/// When a sync returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Durable {
    /// Once the journal has all data.
    #[default]
    Local,
    /// Once a counted commit has all data.
    Bucket,
}

/// The options of a drive in a bucket. They are stored in the journal when it is created.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How long a change may wait before it is committed, in nanoseconds; at most a day.
    pub lag_ns: u64,
    /// Maximum bytes in the journal alone, before they are uploaded. Beyond that, appends wait.
    pub lag_bytes_max: u64,
    /// When a sync returns.
    pub durable: Durable,
    /// The location of the bucket, at most 1024 bytes, stored in a new journal for the next
    /// opening.
    pub place: String,
    /// Name of this host, for messages on other machines.
    pub host: String,
    /// Whether the journal ends with the process, as one in memory does. Data that is not in the
    /// bucket by then is lost. Not stored in the journal.
    pub is_volatile: bool,
}

impl Default for Options {
    /// Returns a lag of 5 s or 256 MiB, and syncs of the journal.
    fn default() -> Self {
        Self {
            lag_ns: 5_000_000_000,
            lag_bytes_max: 256 << 20,
            durable: Durable::Local,
            place: String::new(),
            host: String::new(),
            is_volatile: false,
        }
    }
}

/// The status of a drive in a bucket. Fields appear in JSON under these names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Status {
    /// The place of the bucket.
    pub place: String,
    /// When a flush returns.
    pub durable: Durable,
    /// Bytes of segments that are in the journal alone.
    pub lag_bytes: u64,
    /// Limit of `lag_bytes`: writes wait beyond it.
    pub lag_bytes_max: u64,
    /// Age of the oldest change that is in no counted commit, in nanoseconds; 0 if the bucket has
    /// all changes.
    pub lag_ns: u64,
    /// How long a change waits before it is committed, in nanoseconds.
    pub lag_ns_max: u64,
    /// Bytes of segments that the newest counted commit refers to.
    pub stored_bytes: u64,
    /// Epoch of the claim.
    pub epoch: u32,
    /// Number of the newest counted commit of this epoch.
    pub commit: u64,
    /// Requests since the opening.
    #[serde(flatten)]
    pub requests: Requests,
    /// The last object whose bytes were found to differ from its commit's checksum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damaged_object: Option<String>,
    /// The last failure, if the store does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The reason why nothing can be written any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poison: Option<String>,
}

/// Lags below this are no cause for concern, however short the configured lag: one slow request can
/// cause them.
const LAG_NS_CALM: u64 = 15_000_000_000;

/// Percentage of the limit of bytes in the journal alone above which a drive is not healthy: raises
/// an alert before writes wait.
const ALERT_PERCENT: u64 = 75;

impl Status {
    /// Returns a message with the problem, if there is one, and whether the drive no longer accepts
    /// writes.
    pub fn alert(&self) -> Option<(bool, String)> {
        if let Some(why) = &self.poison {
            return Some((true, why.clone()));
        }
        let (seconds, most) = (self.lag_ns / 1_000_000_000, format_size(self.lag_bytes_max));
        let held = format!("{} of at most {most} are only in the journal", {
            format_size(self.lag_bytes)
        });
        if let Some(trouble) = &self.trouble
            && self.lag_ns > LAG_NS_CALM.max(2 * self.lag_ns_max)
        {
            let what = format!(
                "the bucket does not answer ({trouble}) and lags by {seconds} s; {held}: writes \
                 wait beyond that"
            );
            return Some((false, what));
        }
        if self.lag_bytes > self.lag_bytes_max / 100 * ALERT_PERCENT {
            let what = format!("the bucket lags by {seconds} s; {held}: writes wait beyond that");
            return Some((false, what));
        }
        let name = self.damaged_object.as_ref()?;
        let what = format!("the object {name} is damaged: a check lists the affected data");
        Some((false, what))
    }
}
