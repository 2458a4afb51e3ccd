//! Forecasts: figures calculated from a profile, a workload and data, without a drive.
//!
//! * `scenario`: forecasts a drive with workloads and data; `options`: its parameters.
//! * `source`: workloads by name or from a file: an operation, a preset, another tool's file or a
//!   trace.
//! * `data`: the stored fraction of data.
//! * `host`: the requests of a workload, a fill or a trace.
//! * `device`: the simulated drive, of any design.
//! * `simulation`: runs a new drive up to the measured round.
//! * `side_by_side`: concurrent simulations.
//! * `figures`: the figures of the measured round.
//! * `report`: reports of one drive.
//! * `grid`: forecasts for several over-provisionings and kinds of data.
//!
//! **Two or three simulations** are run: the drive of the profile, the same drive without
//! compression and, if the drive has parity, the same drive without parity. In a grid,
//! incompressible data takes the place of the second simulation, and there is no third. This module
//! uses `workload`, `payload` and `stats`, not the bench. Time is always virtual, and the same seed
//! produces the same figures.

mod data;
mod device;
mod figures;
mod grid;
mod host;
mod options;
mod report;
mod scenario;
mod side_by_side;
mod simulation;
mod source;
#[cfg(test)]
mod tests;

pub use data::Data;
pub use device::{Spec, size_bytes};
pub use figures::{
    Breakdown, CacheUse, Endurance, Failing, Figures, LostPart, Point, Preconditioning, Speed, Worn,
};
pub use grid::{Grid, GridCell, GridSpec, grid};
pub use host::Watch;
pub use options::{ForecastOptions, PlannedFault, SCALED_BYTES, State};
pub use scenario::{CacheFacts, Forecast, Test, forecast, forecasts};
pub use simulation::Scenario;
pub use source::{Asked, Case, Load, Source, TraceLoad};
