//! The parameters of a forecast.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use crate::error::{Error, Result};
use pumice_sim::drive::cached::DriveCache;
use pumice_sim::ftl::FaultKind;

/// Size in bytes of the smaller drive that is simulated in place of a larger one, unless the whole
/// drive is requested. At this size, random writes reach steady state within seconds, and write
/// amplification is within a few percent of the whole drive's (docs/forecast.md has the
/// measurement).
pub const SCALED_BYTES: u64 = 4 << 30;

/// State of a drive before it is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// New: never written.
    New,
    /// Every block of the span was written once, sequentially.
    Filled,
    /// Filled; then the workload ran until write amplification was stable.
    #[default]
    Steady,
    /// Every block of the drive was written sequentially; then the workload ran on its span until
    /// write amplification was stable.
    Used,
}

impl State {
    /// Returns whether the workload runs until write amplification is stable.
    pub(super) fn is_steady(self) -> bool {
        matches!(self, Self::Steady | Self::Used)
    }
}

/// Options of a forecast.
#[derive(Clone, Debug, PartialEq)]
pub struct ForecastOptions {
    /// See [`State`].
    pub state: State,
    /// Seed of all random choices.
    pub seed: u64,
    /// Bytes that the host writes per day.
    pub bytes_per_day: Option<f64>,
    /// Simulates a smaller drive of about this size; see
    /// [`LogSpec::scaled`](pumice_sim::ftl::LogSpec::scaled).
    pub scaled_bytes: Option<u64>,
    /// Number of drives of this kind in a RAID 0, each of the size in the profile; at least 1.
    pub stripe: u32,
    /// A cache in front of the drive.
    pub cache: Option<DriveCache>,
    /// Uses the same flash for a drive of another size; see
    /// [`LogSpec::over_provisioned`](pumice_sim::ftl::LogSpec::over_provisioned).
    pub over_provisioning_percent: Option<f64>,
    /// Parts of the flash that fail during an additional round after the measured one.
    pub faults: Vec<PlannedFault>,
}

/// A part of the flash that fails during a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedFault {
    /// The kind of the failing part.
    pub kind: FaultKind,
    /// The die that contains the part, from 0.
    pub die: u32,
    /// Percentage of the round's requests that end before the failure, 0 to 100.
    pub percent: f64,
}

impl PlannedFault {
    /// Parses `die:3`, `block:3@50%` or `page:3@12.5%`. Without a percentage, the fault occurs
    /// before the first request.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the expected form.
    pub fn parse(text: &str) -> Result<Self> {
        let found = || {
            let (part, percent) = match text.split_once('@') {
                None => (text, 0.0),
                Some((part, share)) => (part, share.strip_suffix('%')?.parse::<f64>().ok()?),
            };
            let (kind, die) = part.split_once(':')?;
            let kind = match kind {
                "die" => FaultKind::Die,
                "block" => FaultKind::Block,
                "page" => FaultKind::Page,
                _ => return None,
            };
            let is_share = (0.0..=100.0).contains(&percent);
            is_share.then_some(Self { kind, die: die.parse().ok()?, percent })
        };
        found().ok_or_else(|| {
            let what = format!(
                "'{text}' is not a fault: expected die:NUMBER, block:NUMBER or page:NUMBER"
            );
            Error::invalid(format!("{what}, and when, such as die:3@50%"))
        })
    }
}

impl fmt::Display for PlannedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, die, percent } = self;
        let kind = match kind {
            FaultKind::Die => "die",
            FaultKind::Block => "block",
            FaultKind::Page => "page",
        };
        write!(f, "{kind}:{die}@{percent}%")
    }
}

impl Default for ForecastOptions {
    fn default() -> Self {
        Self {
            state: State::default(),
            seed: 1,
            bytes_per_day: None,
            scaled_bytes: None,
            stripe: 1,
            cache: None,
            over_provisioning_percent: None,
            faults: Vec::new(),
        }
    }
}
