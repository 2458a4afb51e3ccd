//! Runs a scenario on the drive of a profile, and on the same drive without compression.

use std::sync::atomic::AtomicBool;

use schemars::JsonSchema;
use serde::Serialize;

use super::host::{Lane, Watch};
use super::side_by_side::{side_by_side, threads};
use super::simulation::{Scenario, Setup, Simulation};
use super::{Data, Figures, State, size_bytes};
use crate::error::Result;
use pumice_drive::codec::Codec;
use pumice_sim::drive::cached::DriveCache;
use pumice_sim::profile::{ChannelFigures, ParityFigures, Profile};

/// The forecast for a drive.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Forecast {
    /// Id of the drive's profile.
    pub profile: String,
    /// Name of the drive.
    pub name: String,
    /// Number of drives of this kind in a RAID 0; 1 for a single drive.
    pub stripe: u32,
    /// The cache in front of the drive; `None` if there is none.
    pub cache: Option<CacheFacts>,
    /// Size of the drive in bytes; for a RAID 0, the total of all drives.
    pub size_bytes: u64,
    /// Size of the simulated drive in bytes.
    pub simulated_bytes: u64,
    /// Spare capacity of a log's flash in percent of the drive's size; `None` for other drives.
    pub over_provisioning_percent: Option<f64>,
    /// The cost of parity over dies for one drive, by calculation; `None` without parity.
    pub parity: Option<ParityFigures>,
    /// The data.
    pub data: Data,
    /// Mean stored fraction of the data on this drive; 1 if the drive does not compress.
    pub stored_fraction: f64,
    /// State of the drive before it is measured.
    pub state: State,
    /// Seed.
    pub seed: u64,
    /// Tests, in the order in which they ran on the drive.
    pub tests: Vec<Test>,
    /// Sequential speeds of one drive by number of channels, by calculation; empty for a hard disk.
    pub by_channels: Vec<ChannelFigures>,
    /// Deviations from the workload.
    pub remarks: Vec<String>,
}

/// A cache in front of a drive.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CacheFacts {
    /// `ram`, `ram-card`, or the profile of the drive used as a cache.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Line size in bytes.
    pub line_bytes: u64,
    /// Whether a write is acknowledged when only the cache contains it.
    pub write_back: bool,
    /// Whether the cache is empty after a power loss.
    pub is_volatile: bool,
    /// The facts above in words.
    pub text: String,
}

impl CacheFacts {
    fn of(cache: &DriveCache) -> Self {
        Self {
            name: cache.name().to_owned(),
            size_bytes: cache.size_bytes,
            line_bytes: cache.line_bytes,
            write_back: cache.write_back,
            is_volatile: cache.is_volatile(),
            text: cache.to_string(),
        }
    }
}

/// Figures of one workload.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Test {
    /// Name of the workload.
    pub name: String,
    /// Figures of the drive.
    pub drive: Figures,
    /// Figures of the same drive without compression; `None` if the drive does not compress.
    pub uncompressed: Option<Figures>,
    /// Figures of the same drive without parity over dies; `None` if the drive has no parity.
    pub without_parity: Option<Figures>,
}

/// Calculates a forecast. Returns `None` if `stop` was set. Both drives are simulated concurrently
/// if processors and memory allow it.
///
/// # Errors
/// The errors of [`Spec::of`](super::Spec::of); a case does not fit on the drive; a trace cannot
/// be read.
pub fn forecast(
    scenario: Scenario<'_>,
    data: &Data,
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<Forecast>> {
    let made = forecasts(scenario, std::slice::from_ref(data), watch, stop)?;
    Ok(made.and_then(|made| made.into_iter().next()))
}

/// Returns the forecasts for all kinds of data, in order, or `None` if `stop` was set. The drive
/// without compression is simulated only once, because it is independent of the data.
///
/// # Errors
/// The errors of [`forecast`].
pub fn forecasts(
    scenario: Scenario<'_>,
    all: &[Data],
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<Vec<Forecast>>> {
    let compresses = scenario.profile.controller.codec() != Codec::None;
    let plain = uncompressed(scenario.profile);
    let bare = scenario.profile.clone().without_parity();
    let has_parity = scenario.profile.parity().is_some();
    let of = |profile, data| {
        let scenario = Scenario { profile, ..scenario };
        Setup { scenario, data, loses_die: has_parity }
    };
    let mut setups = Vec::from_iter(all.iter().map(|data| of(scenario.profile, data)));
    if has_parity {
        setups.extend(all.iter().map(|data| of(&bare, data)));
    }
    if let Some(first) = all.first().filter(|_| compresses) {
        setups.push(of(&plain, first));
    }
    let memory = setups.iter().map(Setup::memory_bytes_max).collect::<Result<Vec<_>>>()?;
    let threads = threads(memory.into_iter().max().unwrap_or(0));
    let found = side_by_side(setups.len(), threads, |number, drive| {
        let name = match drive {
            _ if drive < all.len() => "",
            _ if has_parity && drive < 2 * all.len() => "without parity: ",
            _ => "without compression: ",
        };
        setups[drive].simulate(Lane { watch, number }, name, stop)
    })?;
    let Some(mut found) = found else { return Ok(None) };
    let plain = if compresses { found.pop() } else { None };
    let mut bare = found.split_off(all.len()).into_iter();
    let made = setups
        .iter()
        .zip(found)
        .map(|(setup, drive)| setup.forecast(drive, plain.clone(), bare.next()));
    made.collect::<Result<Vec<_>>>().map(Some)
}

/// Returns the same drive without compression.
fn uncompressed(profile: &Profile) -> Profile {
    let mut plain = profile.clone();
    plain.controller.codec = None;
    plain.controller.stored_min = None;
    plain.controller.engine_bytes_per_s = None;
    plain.controller.load_bytes_per_s = None;
    plain
}

/// Figures of each case, with a remark.
pub(super) type Found = Vec<(Figures, Option<String>)>;

impl Setup<'_> {
    /// Runs the cases in order on a new drive. Returns `None` if `stop` was set.
    pub(super) fn simulate(
        &self,
        lane: Lane<'_>,
        name: &str,
        stop: &AtomicBool,
    ) -> Result<Option<Found>> {
        let mut simulation = Simulation::new(self, lane, name)?;
        let mut found = Vec::new();
        for case in self.scenario.cases {
            let Some(of_case) = simulation.case(case, stop)? else { return Ok(None) };
            found.push(of_case);
        }
        Ok(Some(found))
    }

    /// Returns the forecast, assembled from the figures of the drive, of the drive without
    /// compression, and of the drive without parity.
    pub(super) fn forecast(
        &self,
        drive: Found,
        plain: Option<Found>,
        bare: Option<Found>,
    ) -> Result<Forecast> {
        let Self { scenario: Scenario { profile, cases, options }, data, .. } = *self;
        let spec = self.spec()?;
        let mut remarks: Vec<String> = Vec::new();
        let mut figures = |found: Found| {
            remarks.extend(found.iter().filter_map(|(_, remark)| remark.clone()));
            found.into_iter().map(|(figures, _)| figures)
        };
        let (drive, mut plain) = (figures(drive), plain.map(&mut figures));
        let mut bare = bare.map(figures);
        let tests = cases.iter().zip(drive).map(|(case, drive)| Test {
            name: case.name.clone(),
            drive,
            uncompressed: plain.as_mut().and_then(Iterator::next),
            without_parity: bare.as_mut().and_then(Iterator::next),
        });
        let tests = tests.collect();
        remarks.dedup();
        if !spec.is_flash() {
            remarks.push("A hard disk has no write amplification, wear or endurance.".into());
        }
        Ok(Forecast {
            profile: profile.id.clone(),
            name: profile.name.clone(),
            stripe: options.stripe,
            cache: options.cache.as_ref().map(CacheFacts::of),
            size_bytes: size_bytes(profile, data, options)?,
            simulated_bytes: spec.size_bytes(),
            over_provisioning_percent: spec.over_provisioning_percent()?,
            parity: profile.parity_figures(),
            data: data.clone(),
            stored_fraction: spec.stored_mean()?,
            state: options.state,
            seed: options.seed,
            tests,
            by_channels: profile.by_channels(),
            remarks,
        })
    }
}
