//! What a drive would do: a profile, a workload and data in, figures out, without a drive.
//!
//! * `source`: a workload by its name or file: operation, preset, fio job or trace.
//! * `job`: jobs of fio, as far as they are understood.
//! * `data`: which fraction of the data is stored.
//! * `host`: who makes the requests of a workload, of a fill, and of a trace.
//! * `simulation`: from a new drive to the round that is measured.
//! * `figures`: what that round shows.
//! * `report`: figures for people.
//!
//! **Everything twice**: for the drive of the profile, and for the same one that does not compress.
//! Knows no real time; the same seed gives the same figures.

mod data;
mod figures;
mod host;
mod job;
mod report;
mod simulation;
mod source;
#[cfg(test)]
mod tests;

use std::sync::atomic::AtomicBool;

use serde::Serialize;

pub use data::Data;
pub use figures::{Breakdown, Endurance, Figures, Point, Preconditioning, Speed, Worn};
pub use job::Job;
pub use source::{Asked, Case, Load, Source, TraceLoad};

use crate::base::Result;
use crate::codec::Codec;
use crate::model::ftl::StoredSizes;
use crate::model::log_drive::LogDriveSpec;
use crate::model::profile::Profile;
use simulation::Simulation;

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
pub struct Options {
    /// See [`State`].
    pub state: State,
    /// Of all that is drawn.
    pub seed: u64,
    /// What the host writes a day, in bytes.
    pub bytes_per_day: Option<f64>,
    /// Simulate a smaller drive, of about this size: see
    /// [`LogSpec::scaled`](crate::model::ftl::LogSpec::scaled).
    pub scaled_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { state: State::default(), seed: 1, bytes_per_day: None, scaled_bytes: None }
    }
}

/// Who is told how far it is.
pub trait Watch {
    /// Something begins that takes about so many requests.
    fn begins(&mut self, what: String, requests: u64);

    /// Some requests more are done.
    fn goes_on(&mut self, requests: u64);
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
/// `Unsupported` for drives that are no log; `InvalidInput` for what cannot be simulated.
pub fn spec_of(profile: &Profile, data: &Data, options: &Options) -> Result<LogDriveSpec> {
    let mut spec = LogDriveSpec::of(profile, data.sizes(options.seed))?;
    if let Some(size_bytes) = options.scaled_bytes {
        spec.log = spec.log.scaled(size_bytes)?;
    }
    Ok(spec)
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

/// Makes a forecast; nothing if `stop` was set meanwhile.
///
/// # Errors
/// Those of [`spec_of`]; cases that do not fit the drive; a trace that cannot be read.
pub fn forecast(
    profile: &Profile,
    data: &Data,
    cases: &[Case],
    options: &Options,
    watch: &mut dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<Forecast>> {
    let spec = spec_of(profile, data, options)?;
    let (simulated_bytes, stored_fraction) = (spec.size_bytes(), spec.log.stored_mean()?);
    let mut remarks = Vec::new();
    let drives = match profile.controller.codec() {
        Codec::None => vec![profile.clone()],
        _ => vec![profile.clone(), uncompressed(profile)],
    };
    let mut figures = Vec::new();
    for (number, profile) in drives.iter().enumerate() {
        let name = if number == 0 { "" } else { "without compression: " };
        let mut simulation = Simulation::new(profile, data, options, name)?;
        let mut of_drive = Vec::new();
        for case in cases {
            let Some((found, remark)) = simulation.case(case, watch, stop)? else {
                return Ok(None);
            };
            of_drive.push(found);
            remarks.extend(remark);
        }
        figures.push(of_drive.into_iter());
    }
    remarks.dedup();
    let mut figures = figures.into_iter();
    let (drive, mut plain) = (figures.next().into_iter().flatten(), figures.next());
    let tests = cases.iter().zip(drive).map(|(case, drive)| Test {
        name: case.name.clone(),
        drive,
        uncompressed: plain.as_mut().and_then(Iterator::next),
    });
    Ok(Some(Forecast {
        profile: profile.id.clone(),
        name: profile.name.clone(),
        size_bytes: profile.size_bytes.is,
        simulated_bytes,
        data: data.clone(),
        stored_fraction,
        state: options.state,
        seed: options.seed,
        tests: tests.collect(),
        remarks,
    }))
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
