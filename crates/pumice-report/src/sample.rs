//! Sample document for tests, with every kind of block, as a benchmark would create it.

use super::{Axis, Bar, BarChart, Column, Document, LineChart, Number, Point, Scale, Table};

/// Texts that every document printer must include, regardless of how it represents charts.
pub(crate) const EXPECTED: [&str; 12] = [
    "Pumice against its neighbours",
    "Three devices",
    "Throughput",
    "812.4",
    "Random read 4 KiB",
    "98 % saved",
    "not supported",
    "Repeatability",
    "Latency of random reads",
    "AMD EPYC 7B13",
    "governor",
    "pumice bench run",
];

/// Returns a document such as a benchmark would create.
pub(crate) fn document() -> Document {
    let mut document = Document::new(
        "Pumice against its neighbours",
        "Three devices, four operations, data of three compressibilities. Each number is the mean \
         of five runs of a minute after a preparation that filled the device twice; error bars \
         are one standard deviation.",
    );
    document
        .section("Throughput")
        .paragraph("Higher is better. The host writes and reads through the same NBD client.")
        .block(throughput());
    document
        .section("Repeatability")
        .warning(
            "The processor's frequency governor was \"ondemand\" in run 3: its numbers may be \
             too low.",
        )
        .note("Numbers of runs that were stopped early are left out.")
        .block(runs());
    document
        .section("Latency")
        .paragraph("Of single requests at a queue depth of one.")
        .block(percentiles())
        .block(over_time());
    document.section("Change since version 0.1").block(change()).block(amplification());
    document
        .section("Environment")
        .pairs([
            ("processor", "AMD EPYC 7B13, 2 cores"),
            ("kernel", "6.1.0"),
            ("governor", "ondemand"),
            ("medium", "file on ext4, O_DIRECT, on a Samsung PM9A3 of 1.92 TB"),
        ])
        .preformatted("pumice bench run --preset full \\\n    --device /dev/nbd0 --seed 7");
    document
}

/// Returns bars with deviations, one of them missing.
pub(crate) fn throughput() -> BarChart {
    let axis = Axis::new("throughput", "MB/s");
    let series = ["0 % saved", "50 % saved", "98 % saved"];
    let mut chart = BarChart::new("Throughput by operation", "operation", axis, series);
    let bar = |value, deviation| Bar::from(Number::new(value, 1).with_deviation(deviation));
    for (name, values) in [
        ("Sequential write 128 KiB", [(412.0, 9.5), (633.2, 21.0), (812.4, 35.1)]),
        ("Sequential read 128 KiB", [(1012.0, 14.0), (1333.2, 44.0), (1712.9, 60.3)]),
        ("Random write 4 KiB", [(142.3, 12.1), (166.0, 7.5), (171.4, 4.4)]),
        ("Random read 4 KiB", [(88.1, 2.2), (90.5, 3.1), (97.0, 1.9)]),
    ] {
        chart.group(name, values.map(|(value, deviation)| bar(value, deviation)).to_vec());
    }
    chart.group("Trim", vec![bar(1502.0, 99.0), Bar::missing("not supported")]);
    chart
}

/// Returns a table with means, an empty cell and words.
pub(crate) fn runs() -> Table {
    let mut table = Table::with_columns(vec![
        Column::left("operation"),
        Column::right("runs"),
        Column::right("throughput").with_unit("MB/s"),
        Column::right("p50").with_unit("µs"),
        Column::right("p99").with_unit("µs"),
        Column::right("p99.9").with_unit("µs"),
        Column::left("remark"),
    ])
    .titled("Means of five runs");
    let number = |value, deviation| Number::new(value, 1).with_deviation(deviation).into();
    for (name, mean, remark) in [
        ("Sequential write 128 KiB", 812.4, "steady"),
        ("Random write 4 KiB", 171.4, "=SUM(A1:A9) is no formula"),
        ("Random read 4 KiB", 97.0, ""),
    ] {
        table.push(vec![
            name.into(),
            Number::new(5.0, 0).into(),
            number(mean, mean / 40.0),
            number(41_000.0 / mean, 3.25),
            number(240_000.0 / mean, 44.0),
            None::<Number>.into(),
            remark.into(),
        ]);
    }
    table
}

/// Returns a chart of latency over percentile, on a logarithmic and on a percentile scale.
pub(crate) fn percentiles() -> LineChart {
    let mut chart = LineChart::new(
        "Latency of random reads",
        Axis::new("percentile", "%").with_scale(Scale::Percentile),
        Axis::new("latency", "µs").with_scale(Scale::Log),
    );
    for (name, base, tail) in
        [("Pumice, lz4", 62.0, 1.9), ("Pumice, zstd", 81.0, 2.1), ("raw device", 48.0, 1.6)]
    {
        let percents = [0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99, 100.0];
        let at = |percent: f64| {
            let nines = -(1.0 - percent.min(99.995) / 100.0).log10();
            Point::new(percent, base * f64::powf(tail, nines))
        };
        chart.line(name, percents.map(at).to_vec());
    }
    chart
}

/// Returns more points than any text printer shows.
pub(crate) fn over_time() -> LineChart {
    let (x, y) = (Axis::new("time", "s"), Axis::new("latency, 99th percentile", "µs"));
    let mut chart = LineChart::new("Latency over time", x, y);
    for (name, base) in [("write", 210.0), ("read", 120.0)] {
        let at = |second: u32| {
            let time = f64::from(second);
            let collecting = if second % 97 < 12 { 60.0 } else { 0.0 };
            let wave = 14.0 * (time / 9.0).sin() + 6.0 * (time * 1.7).cos();
            Point::new(time, base + wave + collecting)
        };
        chart.line(name, (0..300).map(at).collect());
    }
    chart
}

/// Returns bars below zero.
pub(crate) fn change() -> BarChart {
    let axis = Axis::new("change of throughput", "%");
    let mut chart = BarChart::new("Change since version 0.1", "operation", axis, ["change"]);
    for (name, value) in [("write", 12.5), ("read", -4.5), ("random write", 38.0)] {
        chart.group(name, vec![Number::new(value, 1).with_deviation(2.5).into()]);
    }
    chart
}

/// Returns bars on a logarithmic axis.
pub(crate) fn amplification() -> BarChart {
    let axis = Axis::new("requests", "1/s").with_scale(Scale::Log);
    let mut chart = BarChart::new("Requests", "operation", axis, ["Pumice", "raw device"]);
    let bar = |value: f64| Bar::from(Number::new(value, 0).with_deviation(value * 0.1));
    chart.group("random write", vec![bar(41_000.0), bar(380.0)]);
    chart.group("random read", vec![bar(23_000.0), bar(250_000.0)]);
    chart.group("flush", vec![bar(1_900.0), bar(1_100.0)]);
    chart
}
