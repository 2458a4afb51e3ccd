//! Compares published numbers with simulated ones.

use schemars::JsonSchema;
use serde::Serialize;

use super::experiment::{Basis, Experiment, Measure, Published};
use crate::bench::results::{Results, RunResult};
use crate::error::{Error, Result};
use crate::workload::Level;
use pumice_drive::codec::Codec;
use pumice_report::{Axis, Column, Document, LineChart, Number, Point, Table};
use pumice_sim::drive::SimDesign;
use pumice_sim::profile::{ParityFigures, Profile};
use pumice_sim::system::SystemSpec;

/// One cell.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Outcome {
    /// Name of the test.
    pub test: String,
    /// Name of the level.
    pub data: String,
    /// Compressibility according to the experiment, in percent; `None` if the experiment does not
    /// state it.
    pub compressibility_percent: Option<f64>,
    /// Unit of both numbers.
    pub unit: String,
    /// Published number, if known.
    pub published: Option<f64>,
    /// Published standard deviation.
    pub published_deviation: Option<f64>,
    /// Simulated number: the mean of the runs.
    pub simulated: f64,
    /// Standard deviation of the runs; `None` for a single run.
    pub simulated_deviation: Option<f64>,
    /// (simulated - published) / published, in percent.
    pub error_percent: Option<f64>,
    /// The relationship of the cell to the profile.
    pub basis: Basis,
    /// Remark about the cell.
    pub why: Option<String>,
}

/// A repeated experiment.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Reproduced {
    /// Profile of the drive.
    pub drive: String,
    /// Name of the workload.
    pub title: String,
    /// Author, publication and date.
    pub source: String,
    /// The simulated conditions.
    pub about: String,
    /// The target, in the bench's notation.
    pub target: String,
    /// Whether the drive compresses.
    pub compresses: bool,
    /// The cost of parity over dies for the drive, by calculation; `None` without parity.
    pub parity: Option<ParityFigures>,
    /// All cells.
    pub cells: Vec<Outcome>,
}

/// Errors of the cells of one drive, or of several drives.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct DriveError {
    /// Profile of the drive, or the common property of several drives.
    pub drive: String,
    /// Number of cells with a published number, excluding effects of the host.
    pub cells: usize,
    /// Mean of the absolute errors, in percent.
    pub mean_percent: f64,
    /// Maximum of the absolute errors, in percent.
    pub max_percent: f64,
}

/// Errors of the cells of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Group {
    /// The kind.
    pub basis: Basis,
    /// Number of cells with a published number.
    pub cells: usize,
    /// Mean of the absolute errors, in percent.
    pub mean_percent: f64,
    /// Maximum of the absolute errors, in percent.
    pub max_percent: f64,
}

impl Outcome {
    /// Returns all cells of an experiment, calculated from its runs. There must be at least one
    /// run.
    pub(super) fn all(experiment: &Experiment, runs: &[Results]) -> Result<Reproduced> {
        let cells = experiment.cells.iter().map(|cell| Self::of(cell, runs));
        Ok(Reproduced {
            drive: experiment.drive.clone(),
            title: experiment.title.clone(),
            source: experiment.source.clone(),
            about: experiment.about.clone(),
            target: runs[0].header.target.clone(),
            compresses: compresses(&experiment.target())?,
            parity: Profile::find(&experiment.drive)?.parity_figures(),
            cells: cells.collect::<Result<_>>()?,
        })
    }

    fn of(published: &Published, runs: &[Results]) -> Result<Self> {
        let plan = &runs[0].header.plan;
        let test = plan.tests.iter().position(|test| test.name == published.test);
        let level = plan.levels.iter().position(|level| level.name == published.data);
        let (Some(test), Some(level)) = (test, level) else {
            let what = format!("{}, {}: no such cell", published.test, published.data);
            return Err(Error::invalid(what));
        };
        let unit = plan.tests[test].unit;
        let ms = |run: &RunResult, ns: fn(&RunResult) -> f64| ns(run) / 1e6;
        let value = |run: &RunResult| match published.measure {
            Measure::Value => run.value(unit),
            Measure::LatencyMean => ms(run, |run| {
                let sum: u64 =
                    run.sample.intervals.iter().map(|interval| interval.latency_ns_sum).sum();
                sum as f64 / run.sample.operations.max(1) as f64
            }),
            Measure::LatencyMax => ms(run, |run| {
                run.sample
                    .intervals
                    .iter()
                    .map(|interval| interval.latency_ns_max)
                    .max()
                    .unwrap_or(0) as f64
            }),
        };
        let values: Vec<f64> =
            runs.iter().flat_map(|results| results.cell(test, level)).map(value).collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let unit = match published.measure {
            Measure::Value => unit.name(),
            Measure::LatencyMean | Measure::LatencyMax => "ms",
        };
        Ok(Self {
            test: match published.measure {
                Measure::Value => published.test.clone(),
                Measure::LatencyMean => format!("{}: mean latency", published.test),
                Measure::LatencyMax => format!("{}: maximum latency", published.test),
            },
            data: published.data.clone(),
            compressibility_percent: compressibility_percent(&plan.levels[level]),
            unit: unit.to_owned(),
            published: published.mean,
            published_deviation: published.deviation,
            simulated: mean,
            simulated_deviation: (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt()),
            error_percent: published.mean.map(|published| (mean / published - 1.0) * 100.0),
            basis: published.basis,
            why: published.why.clone(),
        })
    }
}

/// Returns the requested compressibility of a level's data, not the measured saving of a codec.
fn compressibility_percent(level: &Level) -> Option<f64> {
    match level.kind.as_str() {
        "random" => Some(0.0),
        kind if kind.starts_with("byte:") => Some(100.0),
        _ => level.saved_percent,
    }
}

/// Returns the mean absolute error of each kind of cell, over all experiments.
pub fn groups(all: &[Reproduced]) -> Vec<Group> {
    let of = |basis: Basis| {
        let cells = all.iter().flat_map(|one| &one.cells).filter(|cell| cell.basis == basis);
        let errors: Vec<f64> = cells.filter_map(|cell| cell.error_percent).map(f64::abs).collect();
        (!errors.is_empty()).then(|| Group {
            basis,
            cells: errors.len(),
            mean_percent: errors.iter().sum::<f64>() / errors.len() as f64,
            max_percent: errors.iter().copied().fold(0.0, f64::max),
        })
    };
    Basis::ALL.into_iter().filter_map(of).collect()
}

/// Returns whether the drive of a target compresses.
fn compresses(target: &str) -> Result<bool> {
    let spec = SystemSpec::find(target)?;
    Ok(matches!(spec.drive.design, SimDesign::Log(codec, _) if codec != Codec::None))
}

/// Returns the mean absolute error of each drive, then of all drives that compress, and of all
/// others.
pub fn drives(all: &[Reproduced]) -> Vec<DriveError> {
    let mut names: Vec<&str> = all.iter().map(|one| one.drive.as_str()).collect();
    names.dedup();
    let of = |drive: &str, is_meant: &dyn Fn(&Reproduced) -> bool| {
        let cells = all.iter().filter(|one| is_meant(one)).flat_map(|one| &one.cells);
        let cells = cells.filter(|cell| cell.basis != Basis::Host);
        let errors: Vec<f64> = cells.filter_map(|cell| cell.error_percent).map(f64::abs).collect();
        (!errors.is_empty()).then(|| DriveError {
            drive: drive.to_owned(),
            cells: errors.len(),
            mean_percent: errors.iter().sum::<f64>() / errors.len() as f64,
            max_percent: errors.iter().copied().fold(0.0, f64::max),
        })
    };
    let each = names.iter().filter_map(|name| of(name, &|one| one.drive == *name));
    let sums = [
        of("all compressing drives", &|one| one.compresses),
        of("all other drives", &|one| !one.compresses),
    ];
    each.chain(sums.into_iter().flatten()).collect()
}

fn columns(is_whole: bool) -> Vec<Column> {
    let mut columns = vec![
        Column::left("test"),
        Column::left("data"),
        Column::right("published"),
        Column::right("simulated"),
        Column::right("error").with_unit("%"),
        Column::left("basis"),
    ];
    if is_whole {
        columns.splice(0..0, [Column::left("drive"), Column::left("experiment")]);
    }
    columns
}

fn row(cell: &Outcome) -> Vec<pumice_report::Cell> {
    let number = |value: f64, deviation: Option<f64>| {
        let number = Number::significant(value, 4).with_unit(&cell.unit);
        deviation.map_or(number.clone(), |deviation| number.with_deviation(deviation))
    };
    vec![
        cell.test.as_str().into(),
        cell.data.as_str().into(),
        cell.published.map(|value| number(value, cell.published_deviation)).into(),
        number(cell.simulated, cell.simulated_deviation).into(),
        cell.error_percent.map(|error| Number::new(error, 1).with_unit("%")).into(),
        cell.basis.name().into(),
    ]
}

/// Returns published and simulated numbers over compressibility, with one chart for each test with
/// several levels.
fn charts(one: &Reproduced) -> Vec<LineChart> {
    let mut tests: Vec<(&str, &str)> = Vec::new();
    for cell in &one.cells {
        let test = (cell.test.as_str(), cell.unit.as_str());
        if !tests.contains(&test) {
            tests.push(test);
        }
    }
    let chart = |(test, unit): (&str, &str)| {
        let cells = one.cells.iter().filter(|cell| (&*cell.test, &*cell.unit) == (test, unit));
        let mut cells: Vec<(f64, &Outcome)> =
            cells.filter_map(|cell| Some((cell.compressibility_percent?, cell))).collect();
        cells.sort_by(|one, other| one.0.total_cmp(&other.0));
        let is_spanned = cells.first()?.0 < cells.last()?.0;
        let y = if unit == "ms" { "latency" } else { "throughput" };
        let axis = Axis::new("compressibility according to the experiment", "%");
        let mut chart = LineChart::new(test, axis, Axis::new(y, unit));
        let simulated = cells.iter().map(|(x, cell)| Point::new(*x, cell.simulated));
        chart.line("simulated", simulated.collect());
        let published = cells.iter().filter_map(|(x, cell)| {
            Some(Point { x: *x, y: cell.published?, deviation: cell.published_deviation })
        });
        chart.dots("published", published.collect());
        is_spanned.then_some(chart)
    };
    tests.into_iter().filter_map(chart).collect()
}

/// Returns one table with every cell of all experiments.
pub fn table(all: &[Reproduced]) -> Table {
    let mut table = Table::with_columns(columns(true));
    for one in all {
        for cell in &one.cells {
            let mut cells = row(cell);
            cells.splice(0..0, [one.drive.as_str().into(), one.title.as_str().into()]);
            table.push(cells);
        }
    }
    table
}

/// Returns the full report, with charts.
pub fn document(all: &[Reproduced]) -> Document {
    made(all, true)
}

/// Returns the report without charts, for a terminal.
pub fn summary(all: &[Reproduced]) -> Document {
    made(all, false)
}

fn made(all: &[Reproduced], with_charts: bool) -> Document {
    let lead = "Published experiments, repeated on simulated drives in virtual time.";
    let mut document = Document::new("Published and simulated", lead);
    for one in all {
        let mut table = Table::with_columns(columns(false));
        one.cells.iter().for_each(|cell| table.push(row(cell)));
        let section = document.section(format!("{}: {}", one.drive, one.title));
        section.paragraph(format!("Published: {}", one.source)).paragraph(one.about.as_str());
        section.paragraph(format!("Target: {}", one.target));
        if let Some(parity) = &one.parity {
            section.paragraph(format!("Parity: {parity}."));
        }
        section.block(table);
        for cell in &one.cells {
            if let Some(why) = &cell.why {
                section.note(format!("{}, {}: {why}", cell.test, cell.data));
            }
        }
        if with_charts {
            for chart in charts(one) {
                section.block(chart);
            }
        }
    }
    let mut sums = Table::with_columns(vec![
        Column::left("basis"),
        Column::right("cells"),
        Column::right("mean absolute error").with_unit("%"),
        Column::right("largest").with_unit("%"),
    ]);
    for group in groups(all) {
        sums.push(vec![
            group.basis.name().into(),
            Number::new(group.cells as f64, 0).into(),
            Number::new(group.mean_percent, 1).with_unit("%").into(),
            Number::new(group.max_percent, 1).with_unit("%").into(),
        ]);
    }
    let meaning = "Calibrated: numbers of the profile were fitted to the cell. Predicted: no \
                   number was. Host: an effect of the machine around the drive, which the model \
                   does not include.";
    document.section("Errors").paragraph(meaning).block(sums);
    let mut sums = Table::with_columns(vec![
        Column::left("drive"),
        Column::right("cells"),
        Column::right("mean absolute error").with_unit("%"),
        Column::right("largest").with_unit("%"),
    ]);
    for error in drives(all) {
        sums.push(vec![
            error.drive.as_str().into(),
            Number::new(error.cells as f64, 0).into(),
            Number::new(error.mean_percent, 1).with_unit("%").into(),
            Number::new(error.max_percent, 1).with_unit("%").into(),
        ]);
    }
    document.section("Errors by drive").block(sums);
    document
}

#[cfg(test)]
mod tests {
    //! Goal: errors have the correct sign, cells without a published number are excluded from all
    //! means, and every cell is shown.
    use super::*;

    fn cell(published: Option<f64>, simulated: f64, basis: Basis) -> Outcome {
        Outcome {
            test: "write".into(),
            data: "zeros".into(),
            compressibility_percent: None,
            unit: "MB/s".into(),
            published,
            published_deviation: None,
            simulated,
            simulated_deviation: None,
            error_percent: published.map(|published| (simulated / published - 1.0) * 100.0),
            basis,
            why: Some("because".into()),
        }
    }

    #[test]
    fn errors_are_summed_up_by_kind() {
        let cells = vec![
            cell(Some(100.0), 104.0, Basis::Calibrated),
            cell(Some(100.0), 98.0, Basis::Calibrated),
            cell(None, 98.0, Basis::Predicted),
            cell(Some(50.0), 100.0, Basis::Host),
        ];
        let empty = String::new;
        let (drive, title, source) = (empty(), "a title".into(), empty());
        let one = Reproduced {
            drive,
            title,
            source,
            about: empty(),
            target: empty(),
            compresses: true,
            parity: None,
            cells,
        };
        let sums = groups(std::slice::from_ref(&one));
        let expected = [(Basis::Calibrated, 2, 3.0, 4.0), (Basis::Host, 1, 100.0, 100.0)];
        assert_eq!(sums.len(), expected.len());
        for (group, (basis, cells, mean, max)) in sums.iter().zip(expected) {
            assert_eq!((group.basis, group.cells), (basis, cells));
            assert!((group.mean_percent - mean).abs() < 1e-9, "{group:?}");
            assert!((group.max_percent - max).abs() < 1e-9, "{group:?}");
        }
        let by_drive = drives(std::slice::from_ref(&one));
        let names: Vec<_> = by_drive.iter().map(|error| (&*error.drive, error.cells)).collect();
        assert_eq!(names, [("", 2), ("all compressing drives", 2)], "no effect of the host");
        assert!((by_drive[0].mean_percent - 3.0).abs() < 1e-9, "{by_drive:?}");
        assert_eq!(table(std::slice::from_ref(&one)).rows().len(), 4);
        let text = document(&[one]).to_text();
        for words in ["-2.0", "4.0", "because", "mean absolute error", "calibrated"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
    #[test]
    fn levels_of_compressibility_make_a_chart() {
        let at = |percent: f64, published: Option<f64>, simulated: f64| Outcome {
            compressibility_percent: Some(percent),
            published_deviation: published.map(|_| 2.5),
            ..cell(published, simulated, Basis::Predicted)
        };
        let alone = Outcome { test: "read".into(), ..at(98.0, Some(1.0), 1.0) };
        let cells = vec![at(98.0, Some(50.0), 51.0), at(50.0, None, 30.0), alone];
        let cells = [cells, vec![at(2.0, Some(20.0), 19.0)]].concat();
        let text = String::new;
        let (drive, title, source) = (text(), "a title".into(), text());
        let one = Reproduced {
            drive,
            title,
            source,
            about: text(),
            target: text(),
            compresses: true,
            parity: None,
            cells,
        };
        let charts = charts(&one);
        assert_eq!(charts.len(), 1, "one level is no chart");
        let [simulated, published] = &charts[0].series[..] else { panic!("{charts:?}") };
        let points = [(2.0, 19.0), (50.0, 30.0), (98.0, 51.0)];
        assert_eq!(simulated.points, points.map(|(x, y)| Point::new(x, y)));
        let points = [(2.0, 20.0), (98.0, 50.0)];
        assert_eq!(published.points.iter().map(|it| (it.x, it.y)).collect::<Vec<_>>(), points);
        assert_eq!((published.points[0].deviation, published.is_joined), (Some(2.5), false));
        let all = [one];
        assert!(document(&all).to_html().contains("<figure"));
        assert!(!summary(&all).to_text().contains("compressibility"));
    }

    #[test]
    fn data_is_as_compressible_as_it_is_asked_for() {
        for (kind, saved_percent, percent) in [
            ("random", None, Some(0.0)),
            ("byte:0x5a", None, Some(100.0)),
            ("iozone-3.420", Some(75.0), Some(75.0)),
            ("like:data", None, None),
        ] {
            let (kind, name) = (kind.to_owned(), "x".to_owned());
            let level = Level { name, kind, saved_percent, duplicates_percent: None };
            assert_eq!(compressibility_percent(&level), percent, "{}", level.kind);
        }
    }
}
