//! Forecasts of one workload for several over-provisionings and kinds of data: all combinations,
//! several of them concurrently.
//!
//! A grid covers only the drive itself, because a drive without compression behaves like this drive
//! with incompressible data.

use std::sync::atomic::AtomicBool;

use schemars::JsonSchema;
use serde::Serialize;

use super::host::Lane;
use super::side_by_side::{side_by_side, threads};
use super::simulation::Setup;
use super::{Case, Data, Figures, Forecast, ForecastOptions, Scenario, Watch};
use crate::error::Result;
use pumice_report::{Axis, Cell, Column, Document, LineChart, Number, Point, Scale, Table};
use pumice_sim::profile::Profile;

/// One cell of a grid.
#[derive(Clone, Debug, PartialEq)]
pub struct GridCell {
    /// See [`ForecastOptions::over_provisioning_percent`].
    pub over_provisioning_percent: Option<f64>,
    /// The data that the host writes.
    pub data: Data,
    /// Workloads that run sequentially on a drive with this over-provisioning.
    pub cases: Vec<Case>,
}

/// The cells of a grid and their common parameters.
#[derive(Clone, Copy, Debug)]
pub struct GridSpec<'a> {
    /// Profile of the drive.
    pub profile: &'a Profile,
    /// Options, except for the over-provisioning, which the cell determines.
    pub options: &'a ForecastOptions,
    /// Cells in row order.
    pub cells: &'a [GridCell],
    /// Number of cells in a row.
    pub columns: usize,
}

/// Forecasts in row order, with a row for each over-provisioning and a column for each kind of
/// data.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Grid {
    /// Id of the drive's profile.
    pub profile: String,
    /// Name of the drive.
    pub name: String,
    /// Number of columns.
    pub columns: usize,
    /// Forecasts, one for each row and column.
    pub forecasts: Vec<Forecast>,
    /// Deviations from the workload.
    pub remarks: Vec<String>,
}

/// Simulates all cells. Returns `None` if `stop` was set.
///
/// # Errors
/// The errors of [`forecast`](super::forecast).
pub fn grid(spec: GridSpec<'_>, watch: &dyn Watch, stop: &AtomicBool) -> Result<Option<Grid>> {
    let GridSpec { profile, cells, columns, .. } = spec;
    let options: Vec<ForecastOptions> =
        cells.iter().map(|cell| cell.options(spec.options)).collect();
    let setups: Vec<Setup<'_>> = cells
        .iter()
        .zip(&options)
        .map(|(GridCell { data, cases, .. }, options)| {
            let scenario = Scenario { profile, cases, options };
            Setup { scenario, data, loses_die: false }
        })
        .collect();
    let memory = setups.iter().map(Setup::memory_bytes_max).collect::<Result<Vec<_>>>()?;
    let threads = threads(memory.into_iter().max().unwrap_or(0));
    let found = side_by_side(setups.len(), threads, |number, index| {
        let setup = &setups[index];
        let name = match options[index].over_provisioning_percent {
            Some(percent) => format!("{percent} %, {}: ", setup.data.name),
            None => format!("{}: ", setup.data.name),
        };
        let found = setup.simulate(Lane { watch, number }, &name, stop)?;
        found.map(|found| setup.forecast(found, None, None)).transpose()
    })?;
    let Some(forecasts) = found else { return Ok(None) };
    let mut remarks = Vec::new();
    for remark in forecasts.iter().flat_map(|forecast| &forecast.remarks) {
        if !remarks.contains(remark) {
            remarks.push(remark.clone());
        }
    }
    let (profile, name) = (profile.id.clone(), profile.name.clone());
    Ok(Some(Grid { profile, name, columns: columns.max(1), forecasts, remarks }))
}

impl GridCell {
    fn options(&self, options: &ForecastOptions) -> ForecastOptions {
        let over_provisioning_percent = self.over_provisioning_percent;
        ForecastOptions { over_provisioning_percent, ..options.clone() }
    }
}

/// A row of a grid's table: name, unit, decimals, value.
type Shown = (&'static str, &'static str, u8, fn(&Figures) -> Option<f64>);

const SHOWN: [Shown; 5] = [
    ("write amplification", "", 3, amplification),
    ("  by formula", "", 3, |it| it.write_amplification_by_formula),
    ("throughput", "MB/s", 1, throughput),
    ("requests", "1/s", 0, |it| Some(it.all.iops)),
    ("endurance", "TB", 1, |it| it.endurance.map(|it| it.host_bytes / 1e12)),
];

fn amplification(figures: &Figures) -> Option<f64> {
    figures.write_amplification.map(|it| it.all)
}

fn throughput(figures: &Figures) -> Option<f64> {
    Some(figures.all.mb_per_s)
}

/// Formats a percentage with one decimal, unless it is zero.
fn percent(value: f64) -> String {
    format!("{} %", (value * 10.0).round() / 10.0)
}

/// Returns the over-provisioning of the forecast drive as text.
fn over(forecast: &Forecast) -> String {
    forecast.over_provisioning_percent.map_or("as sold".to_owned(), percent)
}

impl Grid {
    fn rows(&self) -> impl Iterator<Item = &[Forecast]> {
        self.forecasts.chunks(self.columns)
    }

    fn tests(&self) -> impl Iterator<Item = (usize, &str)> {
        let tests = self.forecasts.first().map_or(&[][..], |forecast| &forecast.tests);
        tests.iter().map(|test| test.name.as_str()).enumerate()
    }

    /// Returns the full report, with charts.
    pub fn document(&self) -> Document {
        self.made(true)
    }

    /// Returns the report without charts, for a terminal.
    pub fn summary(&self) -> Document {
        self.made(false)
    }

    fn made(&self, with_charts: bool) -> Document {
        let lead = "Simulated: this drive with different over-provisioning and data.";
        let mut document = Document::new(format!("Forecasts for {}", self.name), lead);
        let heading = if with_charts { "simulated system" } else { "" };
        let section = document.section(heading);
        if let Some(first) = self.forecasts.first() {
            section.pairs(self.facts(first));
            if let Some(scaled) = first.scaled() {
                section.note(scaled);
            }
        }
        for (index, name) in self.tests() {
            let section = document.section(name);
            section.block(self.of_test(index));
            for warning in self.unsteady(index) {
                section.warning(warning);
            }
            if with_charts {
                self.charts(index).into_iter().for_each(|chart| {
                    section.block(chart);
                });
            }
        }
        if !self.remarks.is_empty() {
            let section = document.section("remarks");
            for remark in &self.remarks {
                section.note(remark);
            }
        }
        document
    }

    fn facts(&self, first: &Forecast) -> Vec<(&'static str, String)> {
        let size = |forecast: &Forecast| format!("{:.2}", forecast.size_bytes as f64 / 1e9);
        let sizes: Vec<String> = self.rows().map(|row| size(&row[0])).collect();
        let all: Vec<String> = self.rows().map(|row| over(&row[0])).collect();
        vec![
            ("drive", self.profile.clone()),
            ("over-provisioning", all.join(", ")),
            ("resulting size", format!("{} GB of the same flash", sizes.join(", "))),
            ("seed", first.seed.to_string()),
        ]
    }

    /// Returns the figures of a test, with a row for each figure and over-provisioning, and a
    /// column for each kind of data.
    fn of_test(&self, index: usize) -> Table {
        let first = &self.forecasts[..self.columns.min(self.forecasts.len())];
        let mut columns = vec![Column::left(""), Column::right("over-provisioning")];
        columns.extend(first.iter().map(|forecast| Column::right(&forecast.data.name)));
        let mut table = Table::with_columns(columns);
        for (name, unit, decimals, value) in SHOWN {
            let mut name = match unit {
                "" => name.to_owned(),
                unit => format!("{name}, {unit}"),
            };
            for row in self.rows() {
                let values = row.iter().map(|forecast| value(&forecast.tests[index].drive));
                let values: Vec<Option<f64>> = values.collect();
                if values.iter().all(Option::is_none) {
                    continue;
                }
                let mut cells: Vec<Cell> =
                    vec![std::mem::take(&mut name).into(), over(&row[0]).into()];
                let numbers = values.into_iter();
                cells.extend(
                    numbers.map(|value| value.map(|value| Number::new(value, decimals)).into()),
                );
                table.push(cells);
            }
        }
        table
    }

    /// Returns the cells that did not reach steady state.
    fn unsteady(&self, index: usize) -> impl Iterator<Item = String> {
        let forecasts = self.forecasts.iter().filter(move |forecast| {
            let figures = &forecast.tests[index].drive;
            forecast.state.is_steady()
                && figures.write_amplification.is_some()
                && !figures.preconditioning.is_steady
        });
        forecasts.map(|forecast| {
            let over = over(forecast);
            format!("{over}, {}: NOT steady: write amplification still changes", forecast.data.name)
        })
    }

    fn charts(&self, index: usize) -> Vec<LineChart> {
        let saved = || Axis::new("saved by compression", "%");
        let amplified = || Axis::new("write amplification", "").with_scale(Scale::Log);
        let rows: Vec<&[Forecast]> = self.rows().collect();
        let mut charts = Vec::new();
        if rows.len() > 1 {
            let title = "Write amplification by over-provisioning";
            let mut chart = LineChart::new(title, Axis::new("over-provisioning", "%"), amplified());
            for column in 0..self.columns {
                let column = rows.iter().filter_map(|row| row.get(column));
                let points = column.clone().filter_map(|forecast| {
                    let value = amplification(&forecast.tests[index].drive)?;
                    Some(Point::new(forecast.over_provisioning_percent?, value))
                });
                let name = column.clone().next().map_or("", |forecast| &forecast.data.name);
                chart.line(name, points.collect());
            }
            charts.push(chart);
        }
        if self.columns > 1 {
            type Value = fn(&Figures) -> Option<f64>;
            let of: [(&str, Axis, Value); 2] = [
                ("Write amplification by compressibility", amplified(), amplification),
                ("Throughput by compressibility", Axis::new("throughput", "MB/s"), throughput),
            ];
            for (title, axis, value) in of {
                let mut chart = LineChart::new(title, saved(), axis);
                for row in &rows {
                    let points = row.iter().filter_map(|forecast| {
                        let value = value(&forecast.tests[index].drive)?;
                        Some(Point::new(forecast.data.saved.percent(), value))
                    });
                    let over = over(&row[0]);
                    let mut points: Vec<_> = points.collect();
                    points.sort_by(|one, other| one.x.total_cmp(&other.x));
                    chart.line(format!("{over} over-provisioned"), points);
                }
                charts.push(chart);
            }
        }
        charts.retain(|chart| chart.series.iter().any(|series| !series.points.is_empty()));
        charts
    }

    /// Returns a table with a row for each cell and test.
    pub fn table(&self) -> Table {
        let mut columns = vec![
            Column::left("test"),
            Column::right("over-provisioning").with_unit("%"),
            Column::left("data"),
            Column::right("saved").with_unit("%"),
            Column::right("stored"),
        ];
        let named = SHOWN.map(|(name, unit, ..)| Column::right(name.trim()).with_unit(unit));
        columns.extend(named);
        let mut table = Table::with_columns(columns);
        let number = |percent: Option<f64>| percent.map(|it| Number::new(it, 1).with_unit("%"));
        for (index, name) in self.tests() {
            for forecast in &self.forecasts {
                let mut cells: Vec<Cell> = vec![
                    name.into(),
                    number(forecast.over_provisioning_percent).into(),
                    forecast.data.name.as_str().into(),
                    Number::new(forecast.data.saved.percent(), 1).with_unit("%").into(),
                    Number::new(forecast.stored_fraction, 3).into(),
                ];
                let figures = &forecast.tests[index].drive;
                cells.extend(SHOWN.map(|(_, unit, decimals, value)| {
                    value(figures).map(|it| Number::new(it, decimals).with_unit(unit)).into()
                }));
                table.push(cells);
            }
        }
        table
    }
}
