//! Additional sections: savings of the data, counters of the device, and the environment.

use super::cells::{Cell, Cells};
use crate::bench::results::{DeviceBytes, MachineLoad, RunResult};
use crate::stats::Summary;
use crate::workload::Operation;
use crate::workload::{Cache, Order};
use pumice_drive::base::units::format_size_exact;
use pumice_report::{self as document, Column, Number, Section, Table};

/// Returns a section with the saving of each level's data, as all three quantities.
pub(super) fn payloads(cells: &Cells<'_>) -> Section {
    let mut section = super::section("Compressibility of the data");
    let mut table = Table::with_columns(vec![
        Column::left("level"),
        Column::left("codec"),
        Column::right("chunk"),
        Column::right("saved").with_unit("%"),
        Column::right("deviation").with_unit("points"),
        Column::right("stored fraction"),
        Column::right("ratio"),
    ]);
    for payload in &cells.results.header.payloads {
        for finding in &payload.findings {
            table.push(vec![
                payload.level.as_str().into(),
                finding.codec.as_str().into(),
                format_size_exact(finding.chunk_bytes as u64).into(),
                Number::new(finding.saved.percent(), 1).with_unit("%").into(),
                Number::new(finding.deviation_points, 1).with_unit("points").into(),
                Number::new(finding.saved.stored_fraction(), 3).into(),
                Number::new(finding.saved.ratio(), 2).into(),
            ]);
        }
    }
    if let Some(table) = super::filled(table) {
        section.paragraph(
            "Measured before the first run, in chunks that are compressed independently; chunks \
             that do not shrink are stored uncompressed. Headers and rounding of a drive are not \
             counted.",
        );
        section.block(table);
    }
    section
}

/// Returns a section with the bytes that the host issued and the device counted.
pub(super) fn device(cells: &Cells<'_>) -> Section {
    let mut section = super::section("Bytes at the device");
    let mut columns = vec![Column::left("test"), Column::left("level")];
    for what in ["written", "read", "trimmed"] {
        columns.push(Column::right(format!("{what} by host")).with_unit("MB"));
        columns.push(Column::right("by device").with_unit("MB"));
        columns.push(Column::right("device / host"));
    }
    let smart = |cell: &Cell<'_>| -> Option<u64> {
        cell.runs.iter().map(|run| run.device?.smart_written).sum()
    };
    let has_smart = cells.iter().any(|cell| smart(cell).is_some());
    if has_smart {
        columns.push(Column::right("written by SMART").with_unit("MB"));
    }
    let mut table = Table::with_columns(columns);
    for cell in cells.iter() {
        let Some((host, device)) = counted(cell) else { continue };
        let mut row = vec![cell.test.name.as_str().into(), cell.level.name.as_str().into()];
        for (host, device) in host.into_iter().zip(device) {
            let megabytes = |bytes: f64| Number::new(bytes / 1e6, 1).with_unit("MB").into();
            let nothing = host == 0.0 && device == 0.0;
            row.extend(
                [host, device]
                    .map(|bytes| if nothing { document::Cell::Empty } else { megabytes(bytes) }),
            );
            row.push((host > 0.0).then(|| Number::new(device / host, 3)).into());
        }
        if has_smart {
            let written = smart(cell).map(|bytes| Number::new(bytes as f64 / 1e6, 1));
            row.push(written.map(|written| written.with_unit("MB")).into());
        }
        table.push(row);
    }
    if let Some(table) = super::filled(table) {
        section.paragraph(
            "Sums over the runs. The device counts everything that reaches it, including file \
             system metadata, other programs and later write-back of a cache.",
        );
        section.block(table);
    }
    section
}

/// Returns the bytes written, read and trimmed, as counted by the host and by the device, over the
/// runs that have both counts.
fn counted(cell: &Cell<'_>) -> Option<([f64; 3], [f64; 3])> {
    let operation = cell.test.workload.operation;
    let runs = || cell.runs.iter().filter_map(|run| Some((run, run.device?)));
    runs().next()?;
    let sum = |of: &dyn Fn(&RunResult, DeviceBytes) -> u64| {
        runs().map(|(run, device)| of(run, device) as f64).sum::<f64>()
    };
    let read = |run: &RunResult, _| match operation {
        Operation::Trim => 0,
        Operation::Copy => run.sample.written_bytes,
        _ => run.sample.host_bytes.saturating_sub(run.sample.written_bytes),
    };
    let trimmed = |run: &RunResult, _| match operation {
        Operation::Trim => run.sample.host_bytes,
        _ => 0,
    };
    let host = [sum(&|run, _| run.sample.written_bytes), sum(&read), sum(&trimmed)];
    let device = [
        sum(&|_, device| device.written),
        sum(&|_, device| device.read),
        sum(&|_, device| device.discarded),
    ];
    Some((host, device))
}

/// A metric of the machine: its name, its unit, its decimals, and its value in a run.
type Gauge = (&'static str, &'static str, u8, fn(&MachineLoad) -> Option<f64>);

/// The metrics of the machine that are displayed.
const GAUGES: [Gauge; 6] = [
    ("used by others", "processors", 2, |load| Some(load.others_processors)),
    ("taken by the hypervisor", "processors", 2, |load| Some(load.stolen_processors)),
    ("processor pressure", "%", 1, |load| Some(load.processor_pressure? * 100.0)),
    ("frequency", "MHz", 0, |load| load.processor_mhz),
    ("temperature of the processor", "°C", 0, |load| load.processor_celsius),
    ("temperature of the drive", "°C", 0, |load| load.device_celsius),
];

/// Returns a section with the load on the machine that the bench did not cause.
pub(super) fn machine(cells: &Cells<'_>) -> Section {
    let mut section = super::section("The machine during the runs");
    let loads: Vec<MachineLoad> =
        cells.iter().flat_map(|cell| &cell.all).filter_map(|run| run.machine).collect();
    let mut table = Table::with_columns(vec![
        Column::left("quantity"),
        Column::left("unit"),
        Column::right("mean"),
        Column::right("least"),
        Column::right("greatest"),
        Column::right("runs"),
    ]);
    for (name, unit, decimals, value) in GAUGES {
        let values: Vec<f64> = loads.iter().filter_map(value).collect();
        let Some(summary) = Summary::of(&values) else { continue };
        let number = |value: f64| Number::new(value, decimals).into();
        table.push(vec![
            name.into(),
            unit.into(),
            number(summary.mean),
            number(summary.min),
            number(summary.max),
            Number::new(values.len() as f64, 0).into(),
        ]);
    }
    if let Some(table) = super::filled(table) {
        section.paragraph(
            "Others are all programs except the bench, kernel threads, and the target's server.",
        );
        section.block(table);
    }
    section
}

/// Returns a section with the target, the machine, the method and the command.
pub(super) fn environment(cells: &Cells<'_>) -> Section {
    let (header, plan) = (&cells.results.header, cells.plan());
    let mut section = super::section("Environment");
    let mut facts = vec![("target".to_owned(), header.target.clone())];
    let mut add = |name: &str, value: String| facts.push((name.to_owned(), value));
    add("measured by", header.tool.clone());
    if header.begun_unix_s > 0 {
        add("begun", utc(header.begun_unix_s));
    }
    let rounds =
        cells.results.runs.iter().map(|run| run.round.saturating_add(1)).max().unwrap_or(0);
    add("rounds", rounds.to_string());
    let order = match plan.order {
        Order::Shuffled => "levels in a different order in every round",
        Order::Given => "as given",
    };
    add("order", order.to_owned());
    let cache = match (plan.direct, plan.cache) {
        (true, _) => "bypassed (O_DIRECT)",
        (false, Cache::Dropped) => "dropped before every run",
        (false, Cache::Warm) => "as the previous run left it",
    };
    add("page cache", cache.to_owned());
    add("seed", plan.seed.to_string());
    facts.extend(header.environment.iter().cloned());
    section.pairs(facts);
    if !header.command.is_empty() {
        section.preformatted(&header.command);
    }
    section
}

/// Formats seconds since 1970 as date and time, without leap seconds.
///
/// Source: Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days (2013).
pub(super) fn utc(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400 + 719_468, unix_s % 86_400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    //! Goal: dates agree with the output of GNU `date -u -d @N`.
    use super::*;

    #[test]
    fn dates_are_the_usual_ones() {
        for (seconds, date) in [
            (1, "1970-01-01 00:00:01 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_799, "2000-02-29 23:59:59 UTC"),
            (1_795_277_844, "2026-11-21 16:17:24 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), date);
        }
        // Files are not trusted.
        assert!(utc(u64::MAX).ends_with("UTC"));
    }
}
