//! Forecasts: a profile, a workload and data produce figures, without a drive.
//!
//! * `source`: workloads by name or file: operation, preset, fio job or trace.
//! * `job`: job files of fio.
//! * `data`: the stored fraction of data.
//! * `host`: the requests of a workload, a fill and a trace.
//! * `device`: the simulated drive, of any design.
//! * `simulation`: from a new drive to the measured round.
//! * `side_by_side`: concurrent simulations.
//! * `figures`: the figures of the measured round.
//! * `report`: reports of one drive.
//! * `grid`: forecasts for several over-provisionings and kinds of data.
//!
//! **Two simulations**: the drive of the profile, and the same drive without compression; in a
//! grid, incompressible data takes the place of the second. Uses `workload`, `payload` and `stats`,
//! not the bench. Virtual time only; the same seed produces the same figures.

mod data;
mod device;
mod figures;
mod grid;
mod host;
mod job;
mod report;
mod side_by_side;
mod simulation;
mod source;
#[cfg(test)]
mod tests;

use std::sync::atomic::AtomicBool;

use serde::Serialize;

pub use data::Data;
pub use device::Spec;
pub use figures::{Breakdown, Endurance, Figures, Point, Preconditioning, Speed, Worn};
pub use grid::{Grid, GridCell, GridSpec, grid};
pub use job::Job;
pub use source::{Asked, Case, Load, Source, TraceLoad};

use crate::error::Result;
use host::Lane;
use pumice_drive::codec::Codec;
use pumice_sim::ftl::StoredSizes;
use pumice_sim::profile::Profile;
use side_by_side::{side_by_side, threads};
use simulation::Simulation;

/// Size in bytes of the drive that is simulated in place of a larger one, unless the whole drive is
/// requested. At this size random writes reach steady state within seconds, and write amplification
/// is within a few per cent of the whole drive's (docs/forecast.md has the measurement).
pub const SCALED_BYTES: u64 = 4 << 30;

/// State in which a drive is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// New: never written.
    New,
    /// Every block of the span was written once, in order.
    Filled,
    /// Filled, then the workload ran until write amplification no longer changed.
    #[default]
    Steady,
}

/// Options of a forecast.
#[derive(Clone, Debug, PartialEq)]
pub struct ForecastOptions {
    /// See [`State`].
    pub state: State,
    /// Seed of everything random.
    pub seed: u64,
    /// Bytes that the host writes per day.
    pub bytes_per_day: Option<f64>,
    /// Simulate a smaller drive of about this size: see
    /// [`LogSpec::scaled`](pumice_sim::ftl::LogSpec::scaled).
    pub scaled_bytes: Option<u64>,
    /// Sell the same flash as another size: see
    /// [`LogSpec::over_provisioned`](pumice_sim::ftl::LogSpec::over_provisioned).
    pub over_provisioning_percent: Option<f64>,
}

impl Default for ForecastOptions {
    fn default() -> Self {
        Self {
            state: State::default(),
            seed: 1,
            bytes_per_day: None,
            scaled_bytes: None,
            over_provisioning_percent: None,
        }
    }
}

/// Receives the progress of simulations. As many run at a time as there are processors; they are
/// numbered from 0.
pub trait Watch: Sync {
    /// A simulation begins an activity of about this many requests.
    fn begins(&self, simulation: usize, what: String, requests: u64);

    /// A simulation has completed some more requests.
    fn advances(&self, simulation: usize, requests: u64);
}

/// The forecast for a drive.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// Id of the drive's profile.
    pub profile: String,
    /// Name of the drive.
    pub name: String,
    /// Size of the drive in bytes.
    pub size_bytes: u64,
    /// Size of the simulated drive in bytes.
    pub simulated_bytes: u64,
    /// Spare capacity of the flash in per cent of the drive's size, for a log.
    pub over_provisioning_percent: Option<f64>,
    /// The data.
    pub data: Data,
    /// Mean stored fraction of the data, as the drive stores it; 1 if it does not compress.
    pub stored_fraction: f64,
    /// State in which the drive was measured.
    pub state: State,
    /// Seed.
    pub seed: u64,
    /// Tests, in the order in which they ran on one drive.
    pub tests: Vec<Test>,
    /// Deviations from the workload.
    pub remarks: Vec<String>,
}

/// Figures of one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Test {
    /// Name of the workload.
    pub name: String,
    /// Figures of the drive.
    pub drive: Figures,
    /// Figures of the same drive without compression; `None` if it has none.
    pub uncompressed: Option<Figures>,
}

/// Returns the simulated drive of a profile.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for options that only a log supports; the
/// errors of invalid profiles.
pub fn spec_of(profile: &Profile, data: &Data, options: &ForecastOptions) -> Result<Spec> {
    Spec::of(profile, data, options)
}

/// Returns the size of a profile's drive in bytes, independently of scaling.
///
/// # Errors
/// The errors of [`spec_of`].
pub fn size_bytes(profile: &Profile, data: &Data, options: &ForecastOptions) -> Result<u64> {
    match options.over_provisioning_percent {
        None => Ok(profile.size_bytes.is),
        Some(_) => {
            let whole = ForecastOptions { scaled_bytes: None, ..options.clone() };
            Ok(spec_of(profile, data, &whole)?.size_bytes())
        }
    }
}

/// Returns the same drive without compression.
fn uncompressed(profile: &Profile) -> Profile {
    let mut plain = profile.clone();
    plain.controller.codec = None;
    plain.controller.stored_min = None;
    plain.controller.frame_blocks = None;
    plain.controller.engine_bytes_per_s = None;
    plain.controller.load_bytes_per_s = None;
    plain
}

/// Figures of each case, with a remark.
type Found = Vec<(Figures, Option<String>)>;

/// A drive and a series of workloads.
#[derive(Clone, Copy, Debug)]
pub struct Scenario<'a> {
    /// Profile of the drive.
    pub profile: &'a Profile,
    /// Workloads, run one after the other on the same drive.
    pub cases: &'a [Case],
    /// How the forecast is made.
    pub options: &'a ForecastOptions,
}

/// A scenario with its data.
#[derive(Clone, Copy)]
struct Setup<'a> {
    scenario: Scenario<'a>,
    data: &'a Data,
}

impl Setup<'_> {
    fn spec(&self) -> Result<Spec> {
        spec_of(self.scenario.profile, self.data, self.scenario.options)
    }

    /// Runs the cases in order on a new drive. Returns `None` if `stop` was set.
    fn simulate(&self, lane: Lane<'_>, name: &str, stop: &AtomicBool) -> Result<Option<Found>> {
        let mut simulation = Simulation::new(self, lane, name)?;
        let mut found = Vec::new();
        for case in self.scenario.cases {
            let Some(of_case) = simulation.case(case, stop)? else { return Ok(None) };
            found.push(of_case);
        }
        Ok(Some(found))
    }

    /// Returns the maximum memory of the simulation in bytes.
    fn memory_bytes_max(&self) -> Result<u64> {
        self.spec()?.memory_bytes_max()
    }

    /// Returns the forecast from the figures of the drive and of the drive without compression.
    fn forecast(&self, drive: Found, plain: Option<Found>) -> Result<Forecast> {
        let Self { scenario: Scenario { profile, cases, options }, data } = *self;
        let spec = self.spec()?;
        let mut remarks: Vec<String> = Vec::new();
        let mut figures = |found: Found| {
            remarks.extend(found.iter().filter_map(|(_, remark)| remark.clone()));
            found.into_iter().map(|(figures, _)| figures)
        };
        let (drive, mut plain) = (figures(drive), plain.map(&mut figures));
        let tests = cases.iter().zip(drive).map(|(case, drive)| Test {
            name: case.name.clone(),
            drive,
            uncompressed: plain.as_mut().and_then(Iterator::next),
        });
        let tests = tests.collect();
        remarks.dedup();
        if !spec.is_flash() {
            remarks.push("A hard disk has no write amplification, wear or endurance.".into());
        }
        Ok(Forecast {
            profile: profile.id.clone(),
            name: profile.name.clone(),
            size_bytes: size_bytes(profile, data, options)?,
            simulated_bytes: spec.size_bytes(),
            over_provisioning_percent: spec.over_provisioning_percent()?,
            data: data.clone(),
            stored_fraction: spec.stored_mean()?,
            state: options.state,
            seed: options.seed,
            tests,
            remarks,
        })
    }
}

/// Makes a forecast; returns `None` if `stop` was set. Both drives are simulated concurrently if
/// processors and memory allow it.
///
/// # Errors
/// The errors of [`spec_of`]; cases that do not fit the drive; a trace that cannot be read.
pub fn forecast(
    scenario: Scenario<'_>,
    data: &Data,
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<Forecast>> {
    let made = forecasts(scenario, std::slice::from_ref(data), watch, stop)?;
    Ok(made.and_then(|made| made.into_iter().next()))
}

/// Returns the forecast for each kind of data, in order, or `None` if `stop` was set. The drive
/// without compression is simulated once for all of them, because it is independent of the data.
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
    let mut setups: Vec<Setup<'_>> = all.iter().map(|data| Setup { scenario, data }).collect();
    if let Some(first) = all.first().filter(|_| compresses) {
        setups.push(Setup { scenario: Scenario { profile: &plain, ..scenario }, data: first });
    }
    let memory = setups.iter().map(Setup::memory_bytes_max).collect::<Result<Vec<_>>>()?;
    let threads = threads(memory.into_iter().max().unwrap_or(0));
    let found = side_by_side(setups.len(), threads, |number, drive| {
        let name = if drive < all.len() { "" } else { "without compression: " };
        setups[drive].simulate(Lane { watch, number }, name, stop)
    })?;
    let Some(mut found) = found else { return Ok(None) };
    let plain = if compresses { found.pop() } else { None };
    let made = setups.iter().zip(found).map(|(setup, drive)| setup.forecast(drive, plain.clone()));
    made.collect::<Result<Vec<_>>>().map(Some)
}

impl Data {
    /// Returns the stored fractions for a drive; the seed assigns them to blocks.
    pub(super) fn sizes(&self, seed: u64) -> StoredSizes {
        match self.fractions() {
            [] => StoredSizes::Constant(self.stored_fraction()),
            fractions => StoredSizes::Table { fractions: fractions.to_vec(), seed },
        }
    }
}
