//! Values from outside drives and simulations: the date, and unique identities.

use std::time::{SystemTime, UNIX_EPOCH};

use uuid::Uuid;

/// Returns the seconds since 1970; 0 if the clock shows an earlier time, which is wrong anyway.
#[allow(
    clippy::disallowed_methods,
    reason = "drives, snapshots and results have a date, certificates an end"
)]
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns an identity for a new drive or snapshot, drawn at random.
#[allow(clippy::disallowed_methods, reason = "an identity must be unique, regardless of the seed")]
pub(crate) fn new_identity() -> Uuid {
    Uuid::new_v4()
}
