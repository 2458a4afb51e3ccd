//! Goal: known results produce known words and numbers in every format, without omissions.
//!
//! Method: samples with simple numbers; one change at a time; the workbook is read back by another
//! library.

use calamine::{Data, Reader, Xlsx};

use super::*;
use crate::bench::results::MachineLoad;
use crate::bench::results::sample::{results, run, test, workload};
use crate::workload::{Level, Operation, Test, Workload};

/// Ten rounds without a trend or outliers: mean 100, deviation 2.94.
const ROUNDS: [f64; 10] = [100.0, 104.0, 97.0, 101.0, 96.0, 103.0, 99.0, 104.0, 97.0, 99.0];

fn text_of(document: &Document, heading: &str) -> String {
    let sections = document.sections.iter().filter(|section| section.heading == heading).cloned();
    let one = Document { sections: sections.collect(), ..Document::default() };
    assert_eq!(one.sections.len(), 1, "{heading}");
    one.to_text()
}

#[test]
fn the_summary_is_a_table_for_each_unit() {
    let text = summary(&results(&ROUNDS)).to_text();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("write")).collect();
    assert_eq!(
        lines,
        ["sequential write  100.0 ± 2.9  50.00 ± 1.47", "random write  100.0 ± 2.9  49.70 ± 1.57"],
        "{text}"
    );
    assert!(text.contains("98 % saved") && text.contains("MB/s") && text.contains("IOPS"));
    assert!(text.lines().all(|line| line.chars().count() <= 100));
    assert!(!text.contains("Read this first"), "{text}");
}

#[test]
fn every_section_is_there_with_its_numbers() {
    let document = document(&[results(&ROUNDS)]);
    let headings: Vec<&str> =
        document.sections.iter().map(|section| section.heading.as_str()).collect();
    let wanted = [
        "Throughput",
        "Requests per second",
        "Latency",
        "Timeline",
        "Consistency",
        "Compressibility of the data",
        "Bytes at the device",
        "Environment",
    ];
    assert_eq!(headings, wanted);
    let numbers = text_of(&document, "Throughput");
    let row = numbers.lines().rfind(|line| line.contains("98 %")).expect("a row");
    let words: Vec<&str> = row.split_whitespace().skip(5).collect();
    assert_eq!((words[0], words[1], words[2]), ("10", "100.0", "2.9"));
    assert_eq!(words[5..], ["99.5", "96.0", "104.0"], "{numbers}");
    let between = |text: &str, range: std::ops::Range<f64>| {
        assert!(range.contains(&text.parse().expect("a number")), "{text}");
    };
    between(words[3], 97.0..99.0);
    between(words[4], 101.0..103.0);
    // 99 of 100 requests took 100 µs.
    let latency = text_of(&document, "Latency");
    let row = latency
        .lines()
        .rfind(|line| line.starts_with("random write") && line.contains(" 0 % saved"))
        .expect("a row");
    let words: Vec<&str> = row.split_whitespace().skip(5).collect();
    assert_eq!(words[..4], ["10000", "109.0", "100.0", "100.0"], "{latency}");
    assert!(latency.contains("1000"));
    let saves = text_of(&document, "Compressibility of the data");
    for number in ["75.0", "0.250", "4.00"] {
        assert!(saves.contains(number), "{saves}");
    }
    let device = text_of(&document, "Bytes at the device");
    assert!(device.contains("1000.0") && device.contains("500.0") && device.contains("0.500"));
    let course = text_of(&document, "Timeline");
    assert!(course.contains("random write") && course.contains("200"), "{course}");
    assert!(!course.contains("sequential"), "what ends with its span has no course\n{course}");
    let environment = text_of(&document, "Environment");
    for fact in ["disk.img", "Linux 6.1", "2026-11-21", "bypassed (O_DIRECT)", "bench run sample"] {
        assert!(environment.contains(fact), "{environment}");
    }
}

#[test]
fn warnings_are_joined_and_findings_named() {
    let mut results = results(&ROUNDS);
    for run in results.runs.iter_mut().filter(|run| run.test == 0) {
        run.warnings.push("the processor was busy".to_owned());
    }
    results.runs[2].warnings.push("a stall".to_owned());
    results.runs.iter_mut().for_each(|run| run.warnings.push("a loop device".to_owned()));
    results.runs[4].sample.host_bytes = 400_000_000;
    let text = text_of(&document(std::slice::from_ref(&results)), "Read this first");
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for wanted in [
        "in 20 of 40 runs: the processor was busy (sequential write, 98 % saved; sequential write",
        "in 1 of 40 runs: a stall (random write, 98 % saved)",
        "Warning: in 40 of 40 runs: a loop device Warning",
        "sequential write, 98 % saved: round 2 is an outlier with 400.0 MB/s",
    ] {
        assert!(joined.contains(wanted), "no {wanted:?} in {joined}");
    }
    assert!(!joined.contains("round to round"), "{joined}");
    let short = summary(&results).to_text();
    assert!(short.contains("a loop device") && short.contains("is an outlier"));
    results.runs.truncate(38);
    let text = text_of(&document(&[results]), "Read this first");
    assert!(text.contains("not all of the 10 planned runs were made: fewer of random write, 98 %"));
}

#[test]
fn trends_and_steady_state_are_told() {
    let falling = [120.0, 117.0, 111.0, 108.0, 103.0, 99.0, 95.0, 90.0];
    let mut results = results(&falling);
    let text = |results: &Results| {
        let text = text_of(&document(std::slice::from_ref(results)), "Read this first");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let told = text(&results);
    let trend = "sequential write, 98 % saved got slower from round to round (rank correlation \
                 -1.00, p 0.000)";
    assert!(told.contains(trend), "{told}");
    assert!(told.contains("4 cells were tested for trends"), "{told}");
    results.header.plan.steady = Some("random write".to_owned());
    let told = text(&results);
    assert!(!told.contains("from round to round"), "a trend is what it waits for: {told}");
    assert!(told.contains("random write, 0 % saved is not in steady state: in the last 5 rounds"));
    assert!(!told.contains("sequential write, 0 % saved is"), "{told}");
    for (round, value) in (8..).zip([90.0, 91.0, 90.0, 89.0, 90.0]) {
        results.runs.push(run(round, 1, 0, value));
    }
    let told = text(&results);
    assert!(told.contains(
        "random write, 98 % saved has been in steady state since round 10: in the last 5"
    ));
}

#[test]
fn steady_state_that_was_left_is_none() {
    let mut results = results(&[100.0, 100.0, 100.0, 100.0, 100.0, 400.0, 20.0]);
    results.header.plan.steady = Some("random write".to_owned());
    let text = text_of(&document(&[results]), "Read this first");
    assert!(text.contains("random write, 98 % saved is not in steady state"), "{text}");
}

#[test]
fn record_sizes_have_a_separate_chart() {
    let mut results = results(&[100.0]);
    let sizes = [65536, 4096, 16384];
    let sweep = |size: u64| {
        test(&format!("read {size}"), Unit::Throughput, workload(Operation::Read, size))
    };
    let tests: Vec<Test> = sizes.into_iter().map(sweep).collect();
    results.header.plan.tests.extend(tests);
    results.runs.extend([2, 3, 4].map(|index| {
        let mut one = run(0, 0, 0, 10.0 * index as f64);
        one.test = index;
        one
    }));
    let document = document(&[results]);
    let section = &document.sections.iter().find(|one| one.heading == "Throughput").expect("one");
    let bars = section.blocks.iter().filter_map(|block| match block {
        Block::Bars(chart) => Some(chart),
        _ => None,
    });
    let charts: Vec<_> = bars.collect();
    let groups: Vec<Vec<&str>> = charts
        .iter()
        .map(|chart| chart.groups().iter().map(|group| group.name.as_str()).collect())
        .collect();
    assert_eq!(groups, [vec!["sequential write"], vec!["4 KiB", "16 KiB", "64 KiB"]]);
    assert_eq!(charts[1].title, "read, by bytes of a record");
    let height = charts[1].groups()[0].bars[0].number.as_ref().expect("a bar").value;
    assert_eq!(height, 30.0);
    assert_eq!(charts[1].groups()[0].bars[1].label, "not run");
}

#[test]
fn the_best_run_is_shown_with_the_mean() {
    let mut results = results(&[100.0, 120.0, 90.0, 130.0]);
    assert!(
        document(std::slice::from_ref(&results))
            .sections
            .iter()
            .all(|one| { !one.heading.starts_with("Best of") })
    );
    results.header.plan.best_of = Some(3);
    let text = text_of(&document(std::slice::from_ref(&results)), "Best of 3 runs");
    let row = text.lines().find(|line| line.starts_with("sequential write  98 %")).expect("a row");
    let words: Vec<&str> = row.split_whitespace().skip(5).collect();
    // The fourth run is not among the first three; the ratio of 120 to the mean of all four is
    // 1.09.
    assert_eq!((words[0], words[1], words[2]), ("MB/s", "120.0", "110.0"), "{text}");
    assert_eq!((words[5], words[6]), ("1.09", "109.0"), "{text}");
    assert!(summary(&results).to_text().contains("best of 3"));
}

#[test]
fn several_results_stand_side_by_side() {
    let mut other = results(&ROUNDS.map(|value| value * 1.5));
    other.header.target = "other.img".to_owned();
    let document = document(&[results(&ROUNDS), other.clone(), other]);
    let text = document.to_text();
    for wanted in [
        "a sample on disk.img: Throughput",
        "a sample on other.img (2): Environment",
        "a sample on other.img (3) against a sample on disk.img",
        "1.500",
        "faster",
    ] {
        assert!(text.contains(wanted), "{wanted}");
    }
    let mut unlike = results(&ROUNDS);
    unlike.header.plan.tests[0].workload.depth = 77;
    let text = super::document(&[results(&ROUNDS), unlike]).to_text();
    assert!(text.contains("cannot be compared") && text.contains("depth is 77"), "{text}");
}

/// Guards against results with several depths that have bars labelled with the test name only.
#[test]
fn depths_are_lines_of_speed_and_latency() {
    let sweep = |scale: f64| {
        let mut results = results(&[100.0, 102.0]);
        let plan = &mut results.header.plan;
        plan.levels.truncate(1);
        plan.tests.truncate(1);
        results.runs.retain(|run| run.test == 0 && run.level == 0);
        for depth in [16, 1, 4] {
            let workload = Workload { depth, ..workload(Operation::RandomRead, 4096) };
            plan.tests.push(test(&format!("depth {depth}"), Unit::Rate, workload));
            let index = plan.tests.len() - 1;
            results.runs.extend((0..2).map(|round| {
                let mut run = run(round, 1, 0, scale * f64::from(depth * 1000 + round));
                run.test = index;
                run
            }));
        }
        results
    };
    let mut all = [sweep(1.0), sweep(2.0)];
    (all[0].header.label, all[1].header.label) = ("old".into(), "new".into());
    let one = document(&all[..1]);
    let charts = |document: &Document| -> Vec<pumice_report::LineChart> {
        let section = document.sections.iter().find(|it| it.heading == "Over queue depth");
        let blocks = section.expect("a section").blocks.iter();
        let lines = blocks.filter_map(|block| match block {
            Block::Lines(chart) => Some(chart.clone()),
            _ => None,
        });
        lines.collect()
    };
    let single = charts(&one);
    let titles: Vec<&str> = single.iter().map(|chart| chart.title.as_str()).collect();
    let wanted = ["Requests per second", "mean latency", "latency, 99th percentile"];
    assert_eq!(titles, wanted.map(|what| format!("random-read, 4 KiB: {what}")));
    let places: Vec<f64> = single[0].series[0].points.iter().map(|point| point.x).collect();
    assert_eq!(places, [1.0, 4.0, 16.0]);
    assert_eq!(single[0].series[0].points[1].y, 4000.5);
    assert!(single[0].series[0].points[1].deviation.is_some());
    assert_eq!(single[1].series[0].points[0].y.round(), 109.0);
    let both = charts(&document(&all));
    let names: Vec<&str> = both[0].series.iter().map(|line| line.name.as_str()).collect();
    assert_eq!(names, ["old", "new"]);
    assert_eq!(both[0].series[1].points[2].y, 32_001.0);
    let bars = text_of(&one, "Requests per second");
    assert!(!bars.contains("by test"), "depths are no bars, too: {bars}");
}

/// Guards against reports whose first screens are full of single outliers.
#[test]
fn many_outliers_are_one_note() {
    let mut results = results(&ROUNDS);
    for index in 0..6 {
        let name = format!("test {index}");
        let workload = workload(Operation::RandomWrite, 4096);
        results.header.plan.tests.push(test(&name, Unit::Rate, workload));
        results.runs.extend((0..).zip(ROUNDS).map(|(round, value)| {
            let mut run = run(round, 1, 0, if round == 3 { 9000.0 } else { value });
            run.test = 2 + index;
            run
        }));
    }
    let text = text_of(&document(&[results]), "Read this first");
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let wanted = "in 6 of 16 cells a round is an outlier: test 0, 98 % saved; test 1";
    assert!(joined.contains(wanted) && !joined.contains("robust deviations"), "{joined}");
}

#[test]
fn the_activity_of_the_machine_is_shown() {
    let mut results = results(&[100.0, 100.0]);
    let load = MachineLoad {
        processors: 8.0,
        others_processors: 0.5,
        stolen_processors: 0.0,
        processor_pressure: None,
        processor_mhz: None,
        processor_celsius: None,
        processor_throttles: None,
        device_celsius: Some(48.0),
        device_celsius_limit: None,
    };
    results.runs[0].machine = Some(load);
    results.runs[1].machine = Some(MachineLoad { others_processors: 1.5, ..load });
    let text = text_of(&document(&[results]), "The machine during the runs");
    let row = |name: &str| -> Vec<String> {
        let row = text.lines().find(|line| line.starts_with(name)).expect("a row");
        row[name.len()..].split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(row("used by others"), ["processors", "1.00", "0.50", "1.50", "2"]);
    assert_eq!(row("temperature of the drive"), ["°C", "48", "48", "48", "2"]);
    assert!(!text.contains("frequency"), "{text}");
}

/// Guards against titles that contain only the name of the preset.
#[test]
fn titles_name_test_target_and_time() {
    let mut one = results(&ROUNDS);
    one.header.environment.insert(0, ("host".into(), "mole".into()));
    let single = document(std::slice::from_ref(&one));
    assert_eq!(single.title, "a sample on disk.img");
    assert!(single.lead.ends_with("Measured on mole (Linux 6.1), 2026-11-21 16:17:24 UTC."));
    assert_eq!(summary(&one).title, single.title);
    let mut two = one.clone();
    (one.header.label, two.header.label) = ("6.1".into(), "6.18".into());
    two.header.environment[0].1 = "vole".into();
    let both = document(&[one, two]);
    assert_eq!(both.title, "a sample: 6.1 · 6.18");
    let text = text_of(&both, "Side by side");
    for word in ["mole", "vole", "disk.img", "Linux 6.1", "2026-11-21"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// Guards against charts in which small bars are invisible.
#[test]
fn small_bars_are_seen() {
    let mut results = results(&[10.0, 10.0]);
    let fast = test("fast", Unit::Throughput, workload(Operation::Read, 1 << 20));
    results.header.plan.tests.push(fast);
    results.runs.extend((0..2).map(|round| {
        let mut run = run(round, 0, 0, 1500.0);
        run.test = 2;
        run
    }));
    let mut other = results.clone();
    other.header.target = "other".into();
    for document in [document(std::slice::from_ref(&results)), document(&[results, other])] {
        let blocks = document.sections.iter().flat_map(|section| &section.blocks);
        let axes: Vec<&pumice_report::Axis> = blocks
            .filter_map(|block| match block {
                Block::Bars(chart) if chart.groups().len() > 1 => Some(&chart.axis),
                _ => None,
            })
            .filter(|axis| axis.unit == "MB/s")
            .collect();
        assert!(!axes.is_empty());
        let is_log = |axis: &&pumice_report::Axis| axis.scale == pumice_report::Scale::Log;
        assert!(axes.iter().any(is_log), "{axes:?}");
    }
}

/// Guards against comparisons without a chart that contains all drives.
#[test]
fn several_results_are_in_one_chart() {
    let mut other = results(&ROUNDS.map(|value| value * 1.5));
    other.header.label = "new drive".to_owned();
    let mut all = [results(&ROUNDS), other];
    let charts = |all: &[Results]| -> Vec<Vec<(String, Vec<f64>)>> {
        let section = &document(all).sections[0];
        assert_eq!(section.heading, "Side by side");
        let charts = section.blocks.iter().filter_map(|block| match block {
            Block::Bars(chart) => Some(chart),
            _ => None,
        });
        let height = |bar: &pumice_report::Bar| bar.number.as_ref().expect("a bar").value.round();
        let group = |group: &pumice_report::BarGroup| {
            (group.name.clone(), group.bars.iter().map(height).collect())
        };
        charts.map(|chart| chart.groups().iter().map(group).collect()).collect()
    };
    let group = |name: &str, heights: &[f64]| (name.to_owned(), heights.to_vec());
    let of_first = vec![group("a sample", &[100.0, 50.0]), group("new drive", &[150.0, 75.0])];
    let found = charts(&all);
    assert_eq!((found.len(), &found[0]), (2, &of_first));
    let curves = |all: &[Results]| -> Vec<Vec<f64>> {
        let blocks = document(all).sections.remove(0).blocks;
        let curves = blocks.into_iter().filter_map(|block| match block {
            Block::Lines(chart) => Some(chart),
            _ => None,
        });
        let first = curves.take(1).flat_map(|chart| chart.series);
        first.map(|line| line.points.iter().map(|point| point.y.round()).collect()).collect()
    };
    assert!(curves(&all).is_empty(), "two levels are no curve");
    let mut three = all.clone();
    for results in &mut three {
        let level = results.header.plan.levels[1].clone();
        let third = Level { name: "50 % saved".into(), saved_percent: Some(50.0), ..level };
        results.header.plan.levels.push(third);
        let more: Vec<_> = results.runs.iter().filter(|run| run.level == 1).cloned().collect();
        results.runs.extend(more.into_iter().map(|mut run| {
            run.level = 2;
            run
        }));
    }
    // In ascending order of the saving; one result has a line for each test.
    assert_eq!(curves(&three), [[50.0, 50.0, 100.0], [75.0, 75.0, 150.0]]);
    let alone = document(&three[..1]);
    let curve = alone.sections[0].blocks.iter().find_map(|block| match block {
        Block::Lines(chart) => Some(chart),
        _ => None,
    });
    let curve = curve.expect("a curve over the saving");
    assert_eq!((curve.series.len(), curve.series[0].name.as_str()), (1, "sequential write"));
    assert_eq!(curve.series[0].points[2].x, 98.0);
    assert!(curve.series[0].points[2].deviation.is_some());
    for results in &mut all {
        results.header.plan.levels.truncate(1);
        results.runs.retain(|run| run.level == 0);
    }
    let one_level = [group("sequential write", &[100.0, 150.0])];
    assert_eq!(charts(&all)[0], one_level);
}

#[test]
fn programs_read_whole_numbers() {
    let table = table(&[results(&ROUNDS)]).to_csv();
    let mut reader = csv::Reader::from_reader(table.as_bytes());
    let headers = reader.headers().expect("a header").clone();
    let rows: Vec<_> = reader.records().map(|row| row.expect("valid CSV")).collect();
    assert_eq!(rows.len(), 4);
    let field = |row: usize, name: &str| {
        let column = headers.iter().position(|header| header == name).expect("a column");
        rows[row][column].to_owned()
    };
    assert_eq!((field(0, "mean"), field(0, "n")), ("100".to_owned(), "10".to_owned()));
    assert_eq!(field(0, "latency longest (µs)").parse::<f64>().map(f64::round), Ok(1000.0));
    assert_eq!((field(3, "level"), field(3, "unit")), ("0 % saved".into(), "IOPS".into()));

    let bytes = document(&[results(&ROUNDS)]).to_xlsx().expect("a workbook");
    let mut workbook: Xlsx<_> = Xlsx::new(std::io::Cursor::new(bytes)).expect("opens");
    let sheet = workbook.worksheet_range("Throughput").expect("a sheet");
    let numbers = sheet.used_cells().filter_map(|(_, _, cell)| match cell {
        Data::Float(number) => Some(*number),
        _ => None,
    });
    let numbers: Vec<f64> = numbers.collect();
    for wanted in [100.0, 50.0, 99.5, 96.0, 104.0] {
        assert!(numbers.contains(&wanted), "{wanted} in {numbers:?}");
    }
}

#[test]
fn nothing_measured_is_no_report_of_numbers() {
    let mut none = results(&[]);
    none.header.payloads.clear();
    let document = document(&[none]);
    let headings: Vec<&str> =
        document.sections.iter().map(|section| section.heading.as_str()).collect();
    assert_eq!(headings, ["Environment"]);
}

/// Guards against reporting numbers of a drive before it has reached steady state.
#[test]
fn figures_cover_the_measurement_window_only() {
    let falling = [1605.0, 648.0, 2499.0, 645.0, 649.0, 636.0, 673.0, 681.0];
    let mut results = results(&falling);
    results.header.plan.steady = Some("random write".to_owned());
    results.header.plan.levels.truncate(1);
    results.runs.retain(|run| run.level == 0);
    assert_eq!(results.window(0), 3..=7);
    let cells = results.cells();
    assert_eq!((cells[1].values.n, cells[1].values.mean.round()), (5, 657.0));
    let document = document(std::slice::from_ref(&results));
    let rate = text_of(&document, "Requests per second");
    let row = rate.lines().rfind(|line| line.starts_with("random write")).expect("a row");
    assert!(row.contains(" 5 ") && row.contains("656.8") && !row.contains("1605"), "{rate}");
    let findings = text_of(&document, "Read this first");
    let findings = findings.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(findings.contains("random write has been in steady state since round 8"), "{findings}");
    assert!(!findings.contains("from round to round"), "{findings}");
    let section = document.sections.iter().find(|one| one.heading.starts_with("Rounds until"));
    let charts: Vec<&pumice_report::LineChart> = section
        .expect("a section")
        .blocks
        .iter()
        .filter_map(|block| match block {
            Block::Lines(chart) => Some(chart),
            _ => None,
        })
        .collect();
    let titles = ["round by round", "second by second", "latency round", "over the bytes written"];
    assert_eq!(charts.len(), titles.len());
    for (chart, title) in charts.iter().zip(titles) {
        assert!(chart.title.contains(title), "{}", chart.title);
    }
    let values: Vec<f64> = charts[0].series[0].points.iter().map(|point| point.y).collect();
    assert_eq!(values, falling);
    assert_eq!(charts[0].series[1].points[0].x, 4.0);
    // Nineteen complete intervals of 50 ms are less than a second, and become one dot.
    assert_eq!(charts[1].series[0].points.len(), 8);
    assert_eq!(charts[2].series.len(), 4);
    let written = charts[3].series[0].points.last().expect("points").x;
    assert!((written - 8036.0 * 4096.0 / 1e9).abs() < 1e-6, "{written}");
}
