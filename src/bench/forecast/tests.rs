//! Goal: a forecast adds up, agrees with the formula where one holds, and says what compression is
//! worth; the same seed gives the same.
//! Method: a small drive; sums over what is said of it; traces and jobs written for it.

use std::fs;
use std::path::Path;

use super::super::payload::Saving;
use super::super::preset::Changes;
use super::*;
use crate::base::Error;

/// 256 MiB, on four dies with a quarter more flash, in segments of 256 blocks.
const PROFILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/forecast/samples/small.toml");

const SIZE: u64 = 256 << 20;

struct Nobody;

impl Watch for Nobody {
    fn begins(&mut self, _what: String, _requests: u64) {}
    fn goes_on(&mut self, _requests: u64) {}
}

static GO_ON: AtomicBool = AtomicBool::new(false);

fn profile() -> Profile {
    Profile::find(PROFILE).unwrap()
}

fn saved(percent: f64) -> Data {
    Data::saved(Saving::from_fraction(percent / 100.0))
}

/// What an operation, a preset or a file comes to.
fn made(workload: &str, data: &Data, asked: &Asked, options: &Options) -> Result<Forecast> {
    let profile = profile();
    let size_bytes = spec_of(&profile, data, options)?.size_bytes();
    let (source, _) = Source::find(workload, asked)?;
    let cases = source.cases(size_bytes, asked)?;
    let made = forecast(&profile, data, &cases, options, &mut Nobody, &GO_ON)?;
    Ok(made.expect("nobody stopped it"))
}

fn simple(workload: &str, data: &Data) -> Test {
    let made = made(workload, data, &Asked::default(), &Options::default()).unwrap();
    made.tests.into_iter().next().unwrap()
}

fn amplification(figures: &Figures) -> Breakdown {
    figures.write_amplification.expect("it wrote")
}

#[test]
fn causes_add_up_and_compression_pays() {
    let test = simple("random-write", &saved(50.0));
    let plain = test.uncompressed.as_ref().unwrap();
    for figures in [&test.drive, plain] {
        let of = amplification(figures);
        let sum = of.host + of.collected + of.leveled + of.padding + of.overhead;
        assert!((sum / of.all - 1.0).abs() < 1e-3, "{of:?}");
        assert!((of.overhead / of.all - 0.1).abs() < 1e-9, "{of:?}");
        assert!((of.all * figures.host_bytes as f64 / figures.flash_bytes - 1.0).abs() < 1e-9);
        assert_eq!(figures.host_bytes, SIZE, "a round is the span");
        assert_eq!(figures.preconditioning.filled_bytes, SIZE);
        assert!(figures.preconditioning.is_steady, "{:?}", figures.preconditioning);
        assert_eq!(figures.course.len() as u32, figures.preconditioning.rounds + 1);
        let erased: u64 = figures.erases.iter().map(|(_, blocks)| blocks).sum();
        assert_eq!(erased, 4 * 320);
        let written = figures.writes;
        assert!((written.iops * 4096.0 / 1e6 / written.mb_per_s - 1.0).abs() < 1e-9);
        assert_eq!(figures.write_latency.unwrap().count, SIZE / 4096);
        assert!(figures.read_latency.is_none());
        let endurance = figures.endurance.unwrap();
        let expected = SIZE as f64 * 3000.0 / of.all;
        assert!((endurance.host_bytes / expected - 1.0).abs() < 1e-9 && endurance.years.is_none());
    }
    assert_eq!((amplification(&test.drive).host, amplification(plain).host), (0.5, 1.0));
    assert!(test.drive.all.mb_per_s > 2.0 * plain.all.mb_per_s, "{:?}", test.drive.all);
    let latency = |figures: &Figures| figures.write_latency.unwrap().mean_ns;
    assert!(latency(&test.drive) < 0.5 * latency(plain));
    assert!(test.drive.endurance.unwrap().host_bytes > 2.0 * plain.endurance.unwrap().host_bytes);
}

#[test]
fn uniform_writes_agree_with_the_formula() {
    for percent in [0.0, 25.0, 56.0] {
        let test = simple("random-write", &saved(percent));
        for (figures, most) in [(&test.drive, 0.05), (test.uncompressed.as_ref().unwrap(), 0.02)] {
            let most = if percent == 0.0 { 0.02 } else { most };
            let formula = figures.write_amplification_by_formula.expect("it holds");
            let ratio = amplification(figures).all / formula;
            assert!((ratio - 1.0).abs() < most, "{percent} % saved: {ratio} of {formula}");
        }
    }
}

#[test]
fn a_drive_is_steady_only_when_it_collects() {
    // At a fifth of its size a round leaves most of the flash free: two rounds are alike long
    // before a block is erased.
    let figures = simple("random-write", &saved(80.0)).drive;
    assert!(figures.preconditioning.is_steady, "{:?}", figures.preconditioning);
    assert!(figures.erases.iter().any(|&(times, _)| times > 0), "{:?}", figures.erases);
    assert!(figures.preconditioning.rounds > 2, "{:?}", figures.preconditioning);
}

#[test]
fn writes_in_order_cost_what_is_stored() {
    let test = simple("rewrite", &saved(50.0));
    let of = amplification(&test.drive);
    assert!((of.all * 0.9 - 0.5).abs() < 0.01, "{of:?}");
    assert!(of.collected < 0.01 && test.drive.write_amplification_by_formula.is_none());
    let plain = test.uncompressed.unwrap();
    assert!((amplification(&plain).all * 0.9 - 1.0).abs() < 0.01);
    // Four dies of 4 KiB in (900 + 82) us, of which a tenth is no data, and an erasure in 64.
    assert!((plain.all.mb_per_s / 14.6 - 1.0).abs() < 0.02, "{:?}", plain.all);
    assert!((test.drive.all.mb_per_s / 29.2 - 1.0).abs() < 0.02, "{:?}", test.drive.all);
}

#[test]
fn the_same_seed_gives_the_same_and_states_differ() {
    let data = saved(30.0);
    let asked = Asked {
        changes: Changes { pattern: Some("zipf".parse().unwrap()), ..Changes::default() },
        ..Asked::default()
    };
    let with = |seed, state| {
        let options = Options { seed, state, ..Options::default() };
        made("random-write", &data, &asked, &options).unwrap()
    };
    let one = with(1, State::Filled);
    assert_eq!(one, with(1, State::Filled));
    assert_ne!(one.tests, with(2, State::Filled).tests);
    let new = &with(1, State::New).tests[0].drive;
    assert_eq!(new.preconditioning, Preconditioning::default());
    let fresh = amplification(new);
    assert!(fresh.collected == 0.0 && (fresh.all * 0.9 - 0.7).abs() < 0.01, "{fresh:?}");
    assert_eq!(new.course.len(), 1);
    let filled = amplification(one.tests[0].uncompressed.as_ref().unwrap());
    assert!(filled.collected > 0.1, "{filled:?}");
}

#[test]
fn reads_take_what_a_page_takes() {
    let asked = Asked {
        changes: Changes { depth: Some(1), seconds: Some(0.5), ..Changes::default() },
        ..Asked::default()
    };
    let made = made("random-read", &saved(50.0), &asked, &Options::default()).unwrap();
    let plain = made.tests[0].uncompressed.as_ref().unwrap();
    // Command, processor, tR, a page on the flash's bus, a block on the wire.
    let expected = 1_000.0 + 5_000.0 + 50_000.0 + 81_920.0 + 20_480.0;
    let latency = plain.read_latency.unwrap();
    assert!((latency.mean_ns / expected - 1.0).abs() < 0.002, "{latency:?}");
    assert!((plain.seconds - 0.5).abs() < 1e-3 && plain.write_amplification.is_none());
    assert!(plain.endurance.is_none() && plain.preconditioning.filled_bytes == SIZE);
    // Half as much on the bus, now and then from two pages.
    let half = made.tests[0].drive.read_latency.unwrap();
    assert!(half.p50_ns < latency.p50_ns, "{half:?}");
}

#[test]
fn years_are_at_what_is_written_a_day() {
    let options = Options { bytes_per_day: Some(1e9), ..Options::default() };
    let made = made("rewrite", &saved(0.0), &Asked::default(), &options).unwrap();
    let endurance = made.tests[0].drive.endurance.unwrap();
    assert!((endurance.years.unwrap() / (endurance.host_bytes / 1e9 / 365.25) - 1.0).abs() < 1e-9);
}

/// A trace of four requests a millisecond: three writes and a read, over the first 64 MiB.
fn trace(folder: &Path, lines: u64) -> String {
    let line = |number: u64| {
        let (sector, kind) = (number * 7919 % 16_384 * 8, u64::from(number % 4 == 3));
        format!("{} 0 {sector} 8 {kind}\n", number * 250_000)
    };
    let path = folder.join("trace.txt");
    fs::write(&path, (0..lines).map(line).collect::<String>()).unwrap();
    path.display().to_string()
}

#[test]
fn a_trace_keeps_its_times() {
    let folder = tempfile::tempdir().unwrap();
    let path = trace(folder.path(), 4000);
    let options = Options { state: State::Filled, ..Options::default() };
    let found = made(&path, &saved(50.0), &Asked::default(), &options).unwrap();
    let figures = &found.tests[0].drive;
    assert!(
        (figures.seconds - 1.0).abs() < 0.02,
        "as long as it was recorded: {}",
        figures.seconds
    );
    assert_eq!(figures.read_latency.unwrap().count, 1000);
    assert_eq!(figures.host_bytes, 3000 * 4096);
    assert!((figures.all.iops / 4000.0 - 1.0).abs() < 0.02 && figures.late_ns < 1_000_000);
    // Played again and again until it is steady.
    let steady = made(&path, &saved(50.0), &Asked::default(), &Options::default()).unwrap();
    assert!(steady.tests[0].drive.preconditioning.rounds > 0);
    assert_eq!(steady.tests[0].drive.host_bytes, 3000 * 4096);
}

#[test]
fn what_goes_beyond_the_drive_is_refused_or_folded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    let line = |offset: u64| format!("128166372003061629,hm,1,Write,{offset},8192,5\n");
    let text = line(0) + &line((1 << 30) + 4096) + "broken\n" + &line(SIZE - 4096);
    fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    let options = Options { state: State::New, ..Options::default() };
    let with = |folds, skips_bad| {
        let mut asked = Asked { folds, ..Asked::default() };
        asked.trace.skips_bad = skips_bad;
        made(&path, &saved(0.0), &asked, &options)
    };
    let chain = |error: Error| error.chain();
    let beyond = chain(with(false, true).unwrap_err());
    assert!(beyond.contains("line 2") && beyond.contains("--fold"), "{beyond}");
    let broken = chain(with(true, false).unwrap_err());
    assert!(broken.contains("line 3"), "{broken}");
    let folded = with(true, true).unwrap();
    assert_eq!(folded.tests[0].drive.host_bytes, 3 * 8192);
    assert!(folded.remarks[0].contains("not be read: 1"), "{:?}", folded.remarks);
    let asked = Asked {
        changes: Changes { span_bytes: Some(1 << 30), ..Changes::default() },
        ..Asked::default()
    };
    let large = chain(made("random-write", &saved(0.0), &asked, &options).unwrap_err());
    assert!(large.contains("goes beyond the drive"), "{large}");
}

#[test]
fn presets_and_jobs_become_cases() {
    for (name, _) in super::super::preset::PRESETS {
        let (source, _) = Source::find(name, &Asked::default()).unwrap();
        let cases = source.cases(SIZE, &Asked::default()).expect(name);
        for case in cases {
            let Load::Steps(workload) = case.load else { panic!("{name} is no trace") };
            assert!(workload.end_bytes() <= SIZE && workload.span_bytes > SIZE / 4 * 3, "{name}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.fio");
    fs::write(&path, "[x]\nrw=randwrite\nsize=64m\nrate=1m\n[y]\nrw=read\n").unwrap();
    let (source, remarks) = Source::find(path.to_str().unwrap(), &Asked::default()).unwrap();
    let cases = source.cases(SIZE, &Asked::default()).unwrap();
    let spans = cases.iter().map(|case| match &case.load {
        Load::Steps(workload) => workload.span_bytes,
        Load::Trace(_) => 0,
    });
    assert_eq!(spans.collect::<Vec<_>>(), [64 << 20, SIZE]);
    assert!(remarks.iter().any(|remark| remark.contains("rate=1m")), "{remarks:?}");
    assert!(source.cases(32 << 20, &Asked::default()).is_err());
    for (name, word) in [("random-wirte", "random-write"), ("compresibility", "compressibility")] {
        let error = Source::find(name, &Asked::default()).unwrap_err().to_string();
        assert!(error.contains(&format!("did you mean {word}?")), "{error}");
    }
}

#[test]
fn a_stop_ends_it_and_reports_hold_all_figures() {
    let cases = Source::Operation(super::super::workload::Operation::RandomWrite)
        .cases(SIZE, &Asked::default())
        .unwrap();
    let stop = AtomicBool::new(true);
    let options = Options { state: State::New, ..Options::default() };
    let none = forecast(&profile(), &saved(0.0), &cases, &options, &mut Nobody, &stop).unwrap();
    assert!(none.is_none());
    let made = made("mixed", &saved(50.0), &Asked::default(), &Options::default()).unwrap();
    let text = made.summary().to_text();
    for word in ["write amplification", "by formula", "99.9 %", "endurance", "50.0 % saved"] {
        assert!(text.contains(word), "{word} in\n{text}");
    }
    let wide = text.lines().find(|line| line.chars().count() > 100);
    assert_eq!(wide, None);
    let page = made.document().to_html();
    assert!(page.matches("<svg").count() >= 4, "{}", page.matches("<svg").count());
    assert!(made.table().to_csv().lines().count() > 25);
}
