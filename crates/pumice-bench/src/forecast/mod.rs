//! Forecasts: a profile, a workload and data produce figures, without a drive.
//!
//! * `scenario`: from a drive, workloads and data to a forecast; `options`: its parameters.
//! * `source`: workloads by name or file: operation, preset, another tool's file or trace.
//! * `data`: the stored fraction of data.
//! * `host`: the requests of a workload, a fill and a trace.
//! * `device`: the simulated drive, of any design.
//! * `simulation`: from a new drive to the measured round.
//! * `side_by_side`: concurrent simulations.
//! * `figures`: the figures of the measured round.
//! * `report`: reports of one drive.
//! * `grid`: forecasts for several over-provisionings and kinds of data.
//!
//! **Two or three simulations**: the drive of the profile, the same drive without compression, and,
//! if it has any, without parity; in a grid, incompressible data takes the place of the second, and
//! there is no third. Uses `workload`, `payload` and `stats`,
//! not the bench. Virtual time only; the same seed produces the same figures.

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
pub use device::Spec;
pub use figures::{
    Breakdown, CacheUse, Endurance, Failing, Figures, LostPart, Point, Preconditioning, Speed, Worn,
};
pub use grid::{Grid, GridCell, GridSpec, grid};
pub use options::{ForecastOptions, PlannedFault, SCALED_BYTES, State, size_bytes};
pub use scenario::{CacheFacts, Forecast, Scenario, Test, Watch, forecast, forecasts};
pub use source::{Asked, Case, Load, Source, TraceLoad};
