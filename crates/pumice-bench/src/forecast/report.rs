//! Reports of a forecast.

use super::{CacheUse, Failing, Figures, Forecast, Point, State, Test};
use pumice_drive::base::units::format_size;
use pumice_report::{Axis, Cell, Column, Document, LineChart, Number, Scale, Table};
use pumice_sim::profile::ChannelFigures;

/// A row of figures: name, unit, decimals, value.
type Row = (&'static str, &'static str, u8, fn(&Figures) -> Option<f64>);

/// Accuracy of a scaled drive: docs/forecast.md has the measurement.
const SCALED_ERROR: &str = "Write amplification, throughput and endurance are accurate to about 1 \
                            %, the longest latencies are not";

/// Converts nanoseconds to microseconds.
fn us(ns: f64) -> f64 {
    ns / 1e3
}

const ROWS: [Row; 46] = [
    ("throughput", "MB/s", 1, |it| Some(it.all.mb_per_s)),
    ("requests", "/s", 0, |it| Some(it.all.iops)),
    ("reads", "MB/s", 1, |it| mixed(it).then_some(it.reads.mb_per_s)),
    ("writes", "MB/s", 1, |it| mixed(it).then_some(it.writes.mb_per_s)),
    ("read latency, mean", "µs", 1, |it| it.read_latency.map(|it| us(it.mean_ns))),
    ("read latency, 50 %", "µs", 1, |it| it.read_latency.map(|it| us(it.p50_ns as f64))),
    ("read latency, 99 %", "µs", 1, |it| it.read_latency.map(|it| us(it.p99_ns as f64))),
    ("read latency, 99.9 %", "µs", 1, |it| it.read_latency.map(|it| us(it.p99_9_ns as f64))),
    ("read latency, longest", "µs", 1, |it| it.read_latency.map(|it| us(it.max_ns as f64))),
    ("write latency, mean", "µs", 1, |it| it.write_latency.map(|it| us(it.mean_ns))),
    ("write latency, 50 %", "µs", 1, |it| it.write_latency.map(|it| us(it.p50_ns as f64))),
    ("write latency, 99 %", "µs", 1, |it| it.write_latency.map(|it| us(it.p99_ns as f64))),
    ("write latency, 99.9 %", "µs", 1, |it| it.write_latency.map(|it| us(it.p99_9_ns as f64))),
    ("write latency, longest", "µs", 1, |it| it.write_latency.map(|it| us(it.max_ns as f64))),
    ("latest request of the trace", "ms", 1, |it| {
        (it.late_ns > 0).then_some(it.late_ns as f64 / 1e6)
    }),
    ("found in the cache", "%", 1, |it| it.cache?.hit_fraction.map(|share| share * 100.0)),
    ("written past the cache", "%", 1, |it| it.cache?.past_fraction.map(|share| share * 100.0)),
    ("written back by the cache", "GB", 2, |it| written_back(it, |it| it.written_back_bytes)),
    ("most data only in the cache", "GB", 2, |it| written_back(it, |it| it.dirty_bytes_max)),
    ("written by the host", "GB", 2, |it| {
        (it.host_bytes > 0).then_some(it.host_bytes as f64 / 1e9)
    }),
    ("programmed to flash", "GB", 2, |it| it.write_amplification.map(|_| it.flash_bytes / 1e9)),
    ("write amplification", "", 3, |it| it.write_amplification.map(|it| it.all)),
    ("  data of the host", "", 3, |it| it.write_amplification.map(|it| it.host)),
    ("  rest of map units", "", 3, |it| {
        it.write_amplification.map(|it| it.rewritten).filter(|&rewritten| rewritten > 0.0)
    }),
    ("  garbage collection", "", 3, |it| it.write_amplification.map(|it| it.collected)),
    ("  wear leveling", "", 3, |it| it.write_amplification.map(|it| it.leveled)),
    ("  padding", "", 3, |it| it.write_amplification.map(|it| it.padding)),
    ("  parity", "", 3, |it| {
        it.write_amplification.map(|it| it.parity).filter(|&parity| parity > 0.0)
    }),
    ("  overhead", "", 3, |it| it.write_amplification.map(|it| it.overhead)),
    ("by formula", "", 3, |it| it.write_amplification_by_formula),
    ("  off by", "%", 1, off_formula),
    ("erasures of a block, mean", "", 1, |it| Some(it.wear?.mean)),
    ("erasures of a block, most", "", 0, |it| Some(f64::from(it.wear?.max))),
    ("erasures of a block, deviation", "", 2, |it| Some(it.wear?.deviation)),
    ("endurance", "TB", 1, |it| it.endurance.map(|it| it.host_bytes / 1e12)),
    ("lasts", "years", 1, |it| it.endurance.and_then(|it| it.years)),
    ("if a die failed now, lost", "GB", 3, |it| it.lost_die.map(|it| it.lost_bytes / 1e9)),
    ("  rebuilt", "GB", 3, |it| it.lost_die.map(|it| it.rebuilt_bytes / 1e9)),
    ("  rebuilt within", "s", 1, |it| it.lost_die.map(|it| it.rebuild_seconds)),
    ("while the flash fails, throughput", "MB/s", 1, |it| failing(it, |it| it.all.mb_per_s)),
    ("  read latency, 99 %", "µs", 1, |it| {
        it.failing.as_ref()?.read_latency.map(|it| us(it.p99_ns as f64))
    }),
    ("  write latency, 99 %", "µs", 1, |it| {
        it.failing.as_ref()?.write_latency.map(|it| us(it.p99_ns as f64))
    }),
    ("  blocks the host could not read", "", 0, |it| failing(it, |it| it.unreadable_blocks as f64)),
    ("  lost", "GB", 3, |it| failing(it, |it| it.lost.lost_bytes / 1e9)),
    ("  rebuilt", "GB", 3, |it| failing(it, |it| it.lost.rebuilt_bytes / 1e9)),
    ("  rebuilt within", "s", 1, |it| failing(it, |it| it.lost.rebuild_seconds)),
];

/// Returns a figure of the round with failing flash, if the round was completed.
fn failing(figures: &Figures, value: fn(&Failing) -> f64) -> Option<f64> {
    figures.failing.as_ref().filter(|it| it.ended_by.is_none()).map(value)
}

fn mixed(figures: &Figures) -> bool {
    figures.read_latency.is_some() && figures.write_latency.is_some()
}

/// Returns the gigabytes that a write-back cache has written back.
fn written_back(figures: &Figures, bytes: fn(&CacheUse) -> u64) -> Option<f64> {
    figures.cache.as_ref().map(bytes).filter(|&bytes| bytes > 0).map(|bytes| bytes as f64 / 1e9)
}

/// Returns the difference between the simulation and the formula, in percent.
fn off_formula(figures: &Figures) -> Option<f64> {
    let simulated = figures.write_amplification?.all;
    Some((simulated / figures.write_amplification_by_formula? - 1.0) * 100.0)
}

impl Forecast {
    /// Returns the full report, with charts.
    pub fn document(&self) -> Document {
        self.report(true)
    }

    /// Returns the report without charts, for a terminal.
    pub fn summary(&self) -> Document {
        self.report(false)
    }

    fn report(&self, with_charts: bool) -> Document {
        let mut document = Document::new(format!("Forecast for {}", self.name), self.lead());
        let heading = if with_charts { "simulated system" } else { "" };
        let section = document.section(heading).pairs(self.facts());
        if let Some(scaled) = self.scaled() {
            section.note(scaled);
        }
        for test in &self.tests {
            let section = document.section(&test.name);
            section.paragraph(preconditioned(&test.drive, self.state)).block(table(test));
            for (name, figures) in variants(test) {
                if let Some(what) = stopped(name, figures) {
                    section.note(what);
                }
            }
            if with_charts && test.drive.course.len() > 1 {
                for chart in course(test) {
                    section.block(chart);
                }
            }
            if with_charts && test.drive.wear.is_some() {
                section.block(wear(test));
            }
        }
        if with_charts && !self.by_channels.is_empty() {
            let section = document.section("speed by number of channels");
            section.paragraph(
                "Computed, with the same number of dies on each channel: the speed of the flash \
                 grows with the channels until the controller or the link is the limit. \
                 Sequential, incompressible data, one drive.",
            );
            section.block(self.channels());
        }
        self.remarks(&mut document);
        document
    }

    /// Returns the sequential speeds by number of channels.
    fn channels(&self) -> LineChart {
        type Value = fn(&ChannelFigures) -> f64;
        let lines: [(&str, Value); 4] = [
            ("flash, reading", |of| of.flash_read_bytes_per_s),
            ("flash, programming", |of| of.flash_program_bytes_per_s),
            ("drive, reading", |of| of.read_bytes_per_s),
            ("drive, writing", |of| of.write_bytes_per_s),
        ];
        let axes = (Axis::new("channels", ""), Axis::new("throughput", "MB/s"));
        let mut chart = LineChart::new("Sequential speed by number of channels", axes.0, axes.1);
        for (name, value) in lines {
            let points = self.by_channels.iter();
            let points =
                points.map(|of| pumice_report::Point::new(of.channels as f64, value(of) / 1e6));
            chart.line(name, points.collect());
        }
        chart
    }

    /// Returns a table with a row for each figure.
    pub fn table(&self) -> Table {
        let mut table = Table::with_columns(vec![
            Column::left("test"),
            Column::left("figure"),
            Column::left("unit"),
            Column::right("drive"),
            Column::right("without compression"),
            Column::right("without parity"),
        ]);
        for test in &self.tests {
            for (name, unit, decimals, value) in ROWS {
                let number = |figures: &Figures| Some(Number::new(value(figures)?, decimals));
                let cells: [Cell; 3] = [
                    number(&test.drive).into(),
                    test.uncompressed.as_ref().and_then(number).into(),
                    test.without_parity.as_ref().and_then(number).into(),
                ];
                let [drive, plain, bare] = cells;
                table.push(vec![
                    test.name.as_str().into(),
                    name.trim().into(),
                    unit.into(),
                    drive,
                    plain,
                    bare,
                ]);
            }
        }
        table
    }

    fn lead(&self) -> String {
        let is_any =
            |of: fn(&Test) -> &Option<Figures>| self.tests.iter().any(|it| of(it).is_some());
        let compresses = is_any(|test| &test.uncompressed);
        if is_any(|test| &test.without_parity) {
            let plain = if compresses { "without compression, and " } else { "" };
            format!("Simulated: as the drive is, and the same {plain}without parity.")
        } else if compresses {
            "Simulated: as the drive is, and the same without compression.".to_owned()
        } else {
            "Simulated; this drive does not compress.".to_owned()
        }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let size = |bytes: u64| format!("{:.2} GB", bytes as f64 / 1e9);
        let drives = match self.stripe {
            1 => self.profile.clone(),
            several => format!("RAID 0 of {several} times {}", self.profile),
        };
        let mut facts = vec![("drive", format!("{drives}, {}", size(self.size_bytes)))];
        if let Some(cache) = &self.cache {
            let then = if cache.is_volatile { ", empty after a loss of power" } else { "" };
            facts.push(("cache", format!("{}{then}", cache.text)));
        }
        if let Some(percent) = self.over_provisioning_percent {
            facts.push(("over-provisioning", format!("{percent:.1} %")));
        }
        if let Some(parity) = &self.parity {
            facts.push(("parity", parity.to_string()));
        }
        facts.extend([
            ("data", format!("{}: {}", self.data.name, self.data.saved)),
            ("stored by this drive", format!("{:.3} of it", self.stored_fraction)),
            ("seed", self.seed.to_string()),
        ]);
        facts
    }

    /// Returns a remark on the scaled drive, if a smaller drive was simulated.
    pub(super) fn scaled(&self) -> Option<String> {
        let size = |bytes: u64| format!("{:.2} GB", bytes as f64 / 1e9);
        (self.simulated_bytes < self.size_bytes / 4096 * 4096).then(|| {
            format!(
                "Scaled down: a drive of {} represents {}, with the same number of dies and the \
                 same over-provisioning, but fewer and shorter blocks. {SCALED_ERROR}; --full-size \
                 simulates all of it.",
                size(self.simulated_bytes),
                size(self.size_bytes)
            )
        })
    }

    fn remarks(&self, document: &mut Document) {
        if !self.remarks.is_empty() {
            let section = document.section("remarks");
            for remark in &self.remarks {
                section.note(remark);
            }
        }
    }
}

/// Returns the reason why a drive could not continue after a failure.
fn stopped(name: &str, figures: &Figures) -> Option<String> {
    let failing = figures.failing.as_ref()?;
    let faults = failing.faults.join(", ");
    if let Some(what) = &failing.ended_by {
        return Some(format!("{name}, {faults}: the drive could not continue: {what}"));
    }
    let what = "no room was left for the rest of the rebuild, which stays readable through parity";
    (!failing.lost.is_rebuilt).then(|| format!("{name}, {faults}: {what}"))
}

/// Describes the preconditioning of a drive.
fn preconditioned(figures: &Figures, state: State) -> String {
    let done = figures.preconditioning;
    let filled = match done.filled_bytes {
        0 => "not filled before".to_owned(),
        bytes => format!("{} written in order before", format_size(bytes)),
    };
    let rounds = match done.rounds {
        0 => String::new(),
        1 => ", then one round".to_owned(),
        rounds => format!(", then {rounds} rounds"),
    };
    let steady = match (state, done.is_steady, figures.write_amplification) {
        (State::Steady | State::Used, false, _) if figures.cache.is_some() => {
            "; NOT steady: the shares of the cache still change"
        }
        (State::Steady | State::Used, true, _) => "; steady",
        (State::Steady | State::Used, false, Some(_)) => {
            "; NOT steady: write amplification still changes"
        }
        _ => "",
    };
    format!("{filled}{rounds}{steady}; then {:.1} s measured.", figures.seconds)
}

/// Returns the figures with and without compression, and the ratio between them.
fn table(test: &Test) -> Table {
    let mut columns = vec![Column::left(""), Column::right("drive")];
    if test.uncompressed.is_some() {
        columns.push(Column::right("uncompressed"));
        columns.push(Column::right("ratio"));
    }
    if test.without_parity.is_some() {
        columns.push(Column::right("no parity"));
    }
    columns.push(Column::left("unit"));
    let mut table = Table::with_columns(columns);
    for (name, unit, decimals, value) in ROWS {
        let drive = value(&test.drive);
        let plain = test.uncompressed.as_ref().and_then(value);
        let bare = test.without_parity.as_ref().and_then(value);
        if [drive, plain, bare].iter().all(Option::is_none) {
            continue;
        }
        let number = |value: Option<f64>| value.map(|value| Number::new(value, decimals));
        let mut cells: Vec<Cell> = vec![name.into(), number(drive).into()];
        if test.uncompressed.is_some() {
            let ratio = drive.zip(plain).map(|(drive, plain)| drive / plain);
            let ratio = ratio.filter(|ratio| ratio.is_finite() && unit != "%");
            cells.push(number(plain).into());
            cells.push(ratio.map(|ratio| Number::new(ratio, 2)).into());
        }
        if test.without_parity.is_some() {
            cells.push(number(bare).into());
        }
        cells.push(unit.into());
        table.push(cells);
    }
    table
}

/// Returns charts of a drive's progress from new to used: write amplification, throughput, latency.
fn course(test: &Test) -> [LineChart; 3] {
    let written = || Axis::new("written by the host", "GB");
    let chart = |title: &str, y: Axis, value: fn(&Point) -> Option<f64>| {
        let mut chart = LineChart::new(title, written(), y);
        for (name, figures) in variants(test) {
            let points = figures.course.iter();
            let points = points.filter_map(|it| {
                Some(pumice_report::Point::new(it.host_bytes as f64 / 1e9, value(it)?))
            });
            chart.line(name, points.collect());
        }
        chart
    };
    let latency = Axis::new("write latency, 99 %", "µs").with_scale(Scale::Log);
    [
        chart("Write amplification", Axis::new("write amplification", ""), |it| {
            it.write_amplification
        }),
        chart("Throughput", Axis::new("throughput", "MB/s"), |it| Some(it.mb_per_s)),
        chart("Write latency", latency, |it| it.write_p99_ns.map(|ns| us(ns as f64))),
    ]
}

/// Returns the histogram of the erase counts of the blocks.
fn wear(test: &Test) -> LineChart {
    let (x, y) = (Axis::new("erasures", ""), Axis::new("blocks", ""));
    let mut chart = LineChart::new("Wear", x, y);
    for (name, figures) in variants(test) {
        let points = figures
            .erases
            .iter()
            .map(|&(count, blocks)| pumice_report::Point::new(f64::from(count), blocks as f64));
        chart.line(name, points.collect());
    }
    chart
}

fn variants(test: &Test) -> impl Iterator<Item = (&'static str, &Figures)> {
    let plain = test.uncompressed.as_ref().map(|figures| ("without compression", figures));
    let bare = test.without_parity.as_ref().map(|figures| ("without parity", figures));
    [("as it is", &test.drive)].into_iter().chain(plain).chain(bare)
}
