//! What a drive would do: a profile, a workload and data in, figures out, without a drive.
//!
//! * `source`: a workload by its name or file: operation, preset, fio job or trace.
//! * `job`: jobs of fio, as far as they are understood.
//! * `data`: which fraction of the data is stored.
//! * `host`: who makes the requests of a workload, of a fill, and of a trace.
//! * `device`: the drive, of whatever design.
//! * `simulation`: from a new drive to the round that is measured.
//! * `side_by_side`: several simulations at a time.
//! * `figures`: what that round shows.
//! * `report`: figures for people.
//! * `grid`: the same of several drives and kinds of data, side by side.
//!
//! **Everything twice**: for the drive of the profile, and for the same one that does not compress;
//! but a grid has its data without compression as one of its columns.
//! Knows no real time; the same seed gives the same figures.

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

/// Bytes of the drive that is simulated in place of a larger one, unless all of it is asked for:
/// with it random writes are steady within seconds, and write amplification is that of the whole
/// drive within a few per cent (docs/forecast.md has what was measured).
pub const SCALED_BYTES: u64 = 4 << 30;

/// What state a drive is measured in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Nothing was ever written.
    New,
    /// Every block of the span was written once, in order.
    Filled,
    /// The same, and then the workload went on until write amplification changed no more.
    #[default]
    Steady,
}

/// How a forecast is made.
#[derive(Clone, Debug, PartialEq)]
pub struct ForecastOptions {
    /// See [`State`].
    pub state: State,
    /// Of all that is drawn.
    pub seed: u64,
    /// What the host writes a day, in bytes.
    pub bytes_per_day: Option<f64>,
    /// Simulate a smaller drive, of about this size: see
    /// [`LogSpec::scaled`](pumice_sim::ftl::LogSpec::scaled).
    pub scaled_bytes: Option<u64>,
    /// The same flash sold as another size: see
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

/// Who is told how far it is, by as many simulations at a time as there are processors. They are
/// numbered from 0.
pub trait Watch: Sync {
    /// In this simulation something begins that takes about so many requests.
    fn begins(&self, simulation: usize, what: String, requests: u64);

    /// In this simulation some requests more are done.
    fn advances(&self, simulation: usize, requests: u64);
}

/// What a drive would do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// Id of the drive's profile.
    pub profile: String,
    /// Its name.
    pub name: String,
    /// Bytes of the drive.
    pub size_bytes: u64,
    /// Bytes of the drive that was simulated.
    pub simulated_bytes: u64,
    /// What its flash has room for beyond its size, in per cent of the size, if it is a log.
    pub over_provisioning_percent: Option<f64>,
    /// What is written.
    pub data: Data,
    /// What is stored of it on average, as the drive stores it; 1 if it does not compress.
    pub stored_fraction: f64,
    /// In which state it was measured.
    pub state: State,
    /// Of all that was drawn.
    pub seed: u64,
    /// One after the other, on the same drive.
    pub tests: Vec<Test>,
    /// What was left out or done otherwise.
    pub remarks: Vec<String>,
}

/// What one workload showed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Test {
    /// What was done.
    pub name: String,
    /// By the drive as it is.
    pub drive: Figures,
    /// By the same drive without compression; nothing if it has none anyway.
    pub uncompressed: Option<Figures>,
}

/// The drive that is simulated for a profile.
///
/// # Errors
/// `Unsupported` for what only a log can be asked for; `InvalidInput` for what cannot be simulated.
pub fn spec_of(profile: &Profile, data: &Data, options: &ForecastOptions) -> Result<Spec> {
    Spec::of(profile, data, options)
}

/// Bytes of the drive of a profile, however much of it is simulated.
///
/// # Errors
/// Those of [`spec_of`].
pub fn size_bytes(profile: &Profile, data: &Data, options: &ForecastOptions) -> Result<u64> {
    match options.over_provisioning_percent {
        None => Ok(profile.size_bytes.is),
        Some(_) => {
            let whole = ForecastOptions { scaled_bytes: None, ..options.clone() };
            Ok(spec_of(profile, data, &whole)?.size_bytes())
        }
    }
}

/// The same drive without compression.
fn uncompressed(profile: &Profile) -> Profile {
    let mut plain = profile.clone();
    plain.controller.codec = None;
    plain.controller.stored_min = None;
    plain.controller.frame_blocks = None;
    plain.controller.engine_bytes_per_s = None;
    plain.controller.load_bytes_per_s = None;
    plain
}

/// What a simulation showed of each case, with what is to be said of it.
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

    /// Does the cases one after the other on a new drive; nothing if `stop` was set meanwhile.
    fn simulate(&self, lane: Lane<'_>, name: &str, stop: &AtomicBool) -> Result<Option<Found>> {
        let mut simulation = Simulation::new(self, lane, name)?;
        let mut found = Vec::new();
        for case in self.scenario.cases {
            let Some(of_case) = simulation.case(case, stop)? else { return Ok(None) };
            found.push(of_case);
        }
        Ok(Some(found))
    }

    /// Bytes of memory that its simulation takes at most.
    fn memory_bytes_max(&self) -> Result<u64> {
        self.spec()?.memory_bytes_max()
    }

    /// The forecast from what was found of the drive and of the one that does not compress.
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

/// Makes a forecast; nothing if `stop` was set meanwhile. Both drives are simulated side by side if
/// there are processors and memory for it.
///
/// # Errors
/// Those of [`spec_of`]; cases that do not fit the drive; a trace that cannot be read.
pub fn forecast(
    scenario: Scenario<'_>,
    data: &Data,
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<Forecast>> {
    let made = forecasts(scenario, std::slice::from_ref(data), watch, stop)?;
    Ok(made.and_then(|made| made.into_iter().next()))
}

/// The forecast of each kind of data, in their order; nothing if `stop` was set meanwhile. The
/// drive that does not compress is simulated once for all of them: it does not look at data.
///
/// # Errors
/// As [`forecast`].
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
    /// The fractions for a drive; which block has which, the seed says.
    pub(super) fn sizes(&self, seed: u64) -> StoredSizes {
        match self.fractions() {
            [] => StoredSizes::Constant(self.stored_fraction()),
            fractions => StoredSizes::Table { fractions: fractions.to_vec(), seed },
        }
    }
}
