//! Goal: the figures of a forecast are consistent, agree with the formula where one applies, and
//! include the effect of compression; equal seeds produce equal forecasts. Method: a small drive;
//! sums over its figures; traces and jobs written for this drive.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::error::{Error, Result};
use crate::payload::Saving;
use crate::workload::{Changes, Pattern};
use pumice_sim::drive::cached::DriveCache;
use pumice_sim::profile::Profile;

mod parity;

/// 256 MiB on four dies, with a quarter more flash, in segments of 256 blocks.
const PROFILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/forecast/samples/small.toml");

const SIZE: u64 = 256 << 20;

struct Silent;

impl Watch for Silent {
    fn begins(&self, _simulation: usize, _what: String, _requests: u64) {}
    fn advances(&self, _simulation: usize, _requests: u64) {}
}

static GO_ON: AtomicBool = AtomicBool::new(false);

fn profile() -> Profile {
    Profile::find(PROFILE).unwrap()
}

fn saved(percent: f64) -> Data {
    Data::saved(Saving::from_fraction(percent / 100.0))
}

/// Returns the forecast for an operation, a preset or a file on the small drive.
fn made(workload: &str, data: &Data, asked: &Asked, options: &ForecastOptions) -> Result<Forecast> {
    made_on(&profile(), workload, data, asked, options)
}

fn made_on(
    profile: &Profile,
    workload: &str,
    data: &Data,
    asked: &Asked,
    options: &ForecastOptions,
) -> Result<Forecast> {
    let size_bytes = Spec::of(profile, data, options)?.size_bytes();
    let cases = Source::find(workload, asked)?.0.cases(size_bytes, asked)?;
    let made = forecast(Scenario { profile, cases: &cases, options }, data, &Silent, &GO_ON)?;
    Ok(made.expect("it was not stopped"))
}

fn simple(workload: &str, data: &Data) -> Test {
    let made = made(workload, data, &Asked::default(), &ForecastOptions::default()).unwrap();
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
        let sum = of.host + of.rewritten + of.collected + of.leveled + of.padding + of.overhead;
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
    // Data stored at a fifth of its size leaves most of the flash free after a round. Two rounds
    // are then equal long before a block is erased.
    let figures = simple("random-write", &saved(80.0)).drive;
    assert!(figures.preconditioning.is_steady, "{:?}", figures.preconditioning);
    assert!(figures.erases.iter().any(|&(times, _)| times > 0), "{:?}", figures.erases);
    assert!(figures.preconditioning.rounds > 2, "{:?}", figures.preconditioning);
}

#[test]
fn sequential_writes_cost_their_stored_bytes() {
    let test = simple("rewrite", &saved(50.0));
    let of = amplification(&test.drive);
    assert!((of.all * 0.9 - 0.5).abs() < 0.01, "{of:?}");
    assert!(of.collected < 0.01 && test.drive.write_amplification_by_formula.is_none());
    let plain = test.uncompressed.unwrap();
    assert!((amplification(&plain).all * 0.9 - 1.0).abs() < 0.01);
    // Four dies program 4 KiB in (900 + 82) us; a tenth of the bytes is overhead; there is one
    // erasure for every 64 pages.
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
        let options = ForecastOptions { seed, state, ..ForecastOptions::default() };
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
fn reads_take_the_time_of_a_page() {
    let asked = Asked {
        changes: Changes { depth: Some(1), seconds: Some(0.5), ..Changes::default() },
        ..Asked::default()
    };
    let made = made("random-read", &saved(50.0), &asked, &ForecastOptions::default()).unwrap();
    let plain = made.tests[0].uncompressed.as_ref().unwrap();
    // Command, processor, tR, a page on the flash's bus, a block on the wire.
    let expected = 1_000.0 + 5_000.0 + 50_000.0 + 81_920.0 + 20_480.0;
    let latency = plain.read_latency.unwrap();
    assert!((latency.mean_ns / expected - 1.0).abs() < 0.002, "{latency:?}");
    assert!((plain.seconds - 0.5).abs() < 1e-3 && plain.write_amplification.is_none());
    assert!(plain.endurance.is_none() && plain.preconditioning.filled_bytes == SIZE);
    // Half of the data on the bus, sometimes from two pages.
    let half = made.tests[0].drive.read_latency.unwrap();
    assert!(half.p50_ns < latency.p50_ns, "{half:?}");
}

#[test]
fn years_follow_from_the_bytes_written_per_day() {
    let options = ForecastOptions { bytes_per_day: Some(1e9), ..ForecastOptions::default() };
    let made = made("rewrite", &saved(0.0), &Asked::default(), &options).unwrap();
    let endurance = made.tests[0].drive.endurance.unwrap();
    assert!((endurance.years.unwrap() / (endurance.host_bytes / 1e9 / 365.25) - 1.0).abs() < 1e-9);
}

/// Guards against a drive that is as fast when full of other data as when new.
#[test]
fn a_used_drive_collects_where_a_new_one_has_room() {
    let asked = Asked {
        changes: Changes { span_bytes: Some(SIZE / 4), ..Changes::default() },
        ..Asked::default()
    };
    let with = |state| {
        let options = ForecastOptions { state, ..ForecastOptions::default() };
        made("random-write", &saved(0.0), &asked, &options).unwrap().tests.remove(0).drive
    };
    let (steady, used) = (with(State::Steady), with(State::Used));
    assert_eq!(used.preconditioning.filled_bytes, SIZE);
    assert!(used.preconditioning.is_steady);
    let (steady_wa, used_wa) = (amplification(&steady).all, amplification(&used).all);
    assert!(used_wa > 1.05 * steady_wa, "{used_wa}, {steady_wa} with the rest unused");
    assert!(used.writes.iops < steady.writes.iops);
}

/// Guards against counting the size or the wear of only one drive in a RAID 0.
#[test]
fn two_drives_are_twice_as_fast_and_last_twice_as_long() {
    let with = |stripe| {
        let options = ForecastOptions { stripe, ..ForecastOptions::default() };
        made("rewrite", &saved(0.0), &Asked::default(), &options).unwrap()
    };
    let (one, two) = (with(1), with(2));
    let ratio =
        |value: fn(&Figures) -> f64| value(&two.tests[0].drive) / value(&one.tests[0].drive);
    assert!((1.9..2.1).contains(&ratio(|it| it.all.mb_per_s)), "{:?}", two.tests[0].drive.all);
    assert!((1.9..2.1).contains(&ratio(|it| it.endurance.unwrap().host_bytes)));
    assert_eq!((two.size_bytes, two.stripe), (2 * SIZE, 2));
    assert!(two.summary().to_text().contains("RAID 0 of 2 times small"));
    let options = ForecastOptions { stripe: 2, ..ForecastOptions::default() };
    let disk = Profile::find("hdd-2010").unwrap();
    let refused = Spec::of(&disk, &saved(0.0), &options).unwrap_err().to_string();
    assert!(refused.contains("--stripe is for profiles of kind"), "{refused}");
}

/// Guards against measuring a cache before it is full, and against misses without a cost.
#[test]
fn a_cache_helps_as_much_as_it_is_hit() {
    let disk = Profile::find("hdd-2010").unwrap();
    let changes = Changes {
        span_bytes: Some(64 << 20),
        depth: Some(4),
        pattern: Some(Pattern::Zipf(1.1)),
        ..Changes::default()
    };
    let asked = Asked { changes, ..Asked::default() };
    let with = |workload: &str, cache: Option<&str>| {
        let cache = cache.map(|cache| DriveCache::find(cache).unwrap());
        let options = ForecastOptions { cache, ..ForecastOptions::default() };
        made_on(&disk, workload, &saved(0.0), &asked, &options).unwrap()
    };
    let drive = |forecast: &Forecast| forecast.tests[0].drive.clone();
    let alone = drive(&with("random-read", None));
    assert!(alone.cache.is_none());
    let cached = with("random-read", Some("ram:16MiB"));
    let figures = drive(&cached);
    let hits = figures.cache.unwrap().hit_fraction.unwrap();
    assert!((0.5..0.99).contains(&hits) && figures.preconditioning.is_steady, "{hits}");
    // A miss takes as long as before, a hit almost no time.
    let expected = alone.all.iops / (1.0 - hits);
    assert!((0.7..1.4).contains(&(figures.all.iops / expected)), "{} {expected}", figures.all.iops);
    let text = cached.summary().to_text();
    assert!(text.contains("16 MiB of ram, write-through, lines of 4 KiB"), "{text}");
    let all = drive(&with("random-read", Some("intel-x25-e-32:64MiB:64KiB")));
    let of_all = all.cache.unwrap();
    assert!(of_all.hit_fraction.unwrap() > 0.99, "everything fits: {of_all:?}");
    let back = drive(&with("random-write", Some("ram-card:128MiB:write-back")));
    let past = back.cache.unwrap().past_fraction;
    let through = drive(&with("random-write", Some("ram-card:128MiB")));
    assert_eq!(past, Some(0.0), "the cache holds all of it");
    assert!(back.all.iops > 10.0 * through.all.iops, "{} {}", back.all.iops, through.all.iops);
    let small = drive(&with("random-write", Some("ram-card:4MiB:write-back")));
    let of_small = small.cache.unwrap();
    assert!(of_small.written_back_bytes > 0, "measured before it was full: {of_small:?}");
    assert!(small.all.iops < 0.2 * back.all.iops, "{} {}", small.all.iops, back.all.iops);
    let options = ForecastOptions {
        cache: Some(DriveCache::find("ram:1GiB").unwrap()),
        scaled_bytes: Some(SCALED_BYTES),
        ..ForecastOptions::default()
    };
    let refused = Spec::of(&profile(), &saved(0.0), &options).unwrap_err().to_string();
    assert!(refused.contains("--scaled is not possible with --cache"), "{refused}");
}

/// Guards against a cache that hides the drive's wear, and against a drive below it that stores
/// zeroes.
#[test]
fn a_drive_below_a_cache_wears_and_compresses() {
    let with = |cache: Option<&str>| {
        let cache = cache.map(|cache| DriveCache::find(cache).unwrap());
        let options = ForecastOptions { cache, ..ForecastOptions::default() };
        made("random-write", &saved(50.0), &Asked::default(), &options).unwrap()
    };
    let (alone, through) = (with(None), with(Some("ram:1MiB")));
    assert_eq!(through.stored_fraction, alone.stored_fraction);
    let [alone, through] = [alone, through].map(|it| amplification(&it.tests[0].drive));
    assert!((through.all / alone.all - 1.0).abs() < 0.03, "{through:?} {alone:?}");
    assert_eq!(through.host, 0.5);
}

/// Writes a trace of the first 64 MiB, with four requests per millisecond: three writes and a read.
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
    let options = ForecastOptions { state: State::Filled, ..ForecastOptions::default() };
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
    // The trace is replayed until the drive is steady.
    let steady = made(&path, &saved(50.0), &Asked::default(), &ForecastOptions::default()).unwrap();
    assert!(steady.tests[0].drive.preconditioning.rounds > 0);
    assert_eq!(steady.tests[0].drive.host_bytes, 3000 * 4096);
}

#[test]
fn requests_beyond_the_drive_are_refused_or_folded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    let line = |offset: u64| format!("128166372003061629,hm,1,Write,{offset},8192,5\n");
    let text = line(0) + &line((1 << 30) + 4096) + "broken\n" + &line(SIZE - 4096);
    fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    let options = ForecastOptions { state: State::New, ..ForecastOptions::default() };
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
    assert!(folded.remarks[0].contains("malformed lines: 1"), "{:?}", folded.remarks);
    let asked = Asked {
        changes: Changes { span_bytes: Some(1 << 30), ..Changes::default() },
        ..Asked::default()
    };
    let large = chain(made("random-write", &saved(0.0), &asked, &options).unwrap_err());
    assert!(large.contains("extends beyond the drive"), "{large}");
}

#[test]
fn presets_and_jobs_become_cases() {
    for (name, _) in crate::workload::PRESETS {
        let (source, _) = Source::find(name, &Asked::default()).unwrap();
        let cases = source.cases(SIZE, &Asked::default()).expect(name);
        for case in cases {
            let Load::Steps(workload) = case.load else { panic!("{name} is no trace") };
            assert!(workload.end_bytes() <= SIZE && workload.span_bytes > SIZE / 4 * 3, "{name}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.fio");
    let text = "[x]\nrw=randwrite\nsize=64m\niodepth=4\n[y]\nstonewall\nrw=read\n";
    fs::write(&path, text).unwrap();
    let (source, remarks) = Source::find(path.to_str().unwrap(), &Asked::default()).unwrap();
    let cases = source.cases(SIZE, &Asked::default()).unwrap();
    let spans = cases.iter().map(|case| match &case.load {
        Load::Steps(workload) => workload.span_bytes,
        Load::Trace(_) => 0,
    });
    assert_eq!(spans.collect::<Vec<_>>(), [64 << 20, SIZE]);
    // Options for the data or the engine of a benchmark are omitted.
    assert!(
        matches!(&remarks[..], [depth] if depth.contains("iodepth=4 becomes 1")),
        "{remarks:?}"
    );
    assert!(source.cases(32 << 20, &Asked::default()).is_err());
    for (name, word) in [("random-wirte", "random-write"), ("compresibility", "compressibility")] {
        let error = Source::find(name, &Asked::default()).unwrap_err().to_string();
        assert!(error.contains(&format!("did you mean {word}?")), "{error}");
    }
}

#[test]
fn drives_without_compression_are_simulated_once() {
    #[derive(Default)]
    struct Heard(Mutex<Vec<String>>);
    impl Watch for Heard {
        fn begins(&self, _simulation: usize, what: String, _requests: u64) {
            self.0.lock().unwrap().push(what);
        }
        fn advances(&self, _simulation: usize, _requests: u64) {}
    }
    let (all, options) = ([saved(50.0), saved(40.0)], ForecastOptions::default());
    let cases = Source::Operation(crate::workload::Operation::RandomWrite)
        .cases(SIZE, &Asked::default())
        .unwrap();
    let heard = |all: &[Data]| {
        let heard = Heard::default();
        let made = forecasts(
            Scenario { profile: &profile(), cases: &cases, options: &options },
            all,
            &heard,
            &GO_ON,
        )
        .unwrap()
        .unwrap();
        let plain = |what: &&String| what.starts_with("without compression");
        let count = heard.0.lock().unwrap().iter().filter(plain).count();
        (made, count)
    };
    let (made, plain) = heard(&all);
    let alone: Vec<_> = all.iter().map(|data| heard(std::slice::from_ref(data))).collect();
    assert!(plain > 0 && alone.iter().all(|(_, count)| *count == plain), "{plain}");
    // Each forecast equals the separately calculated one, including the drive without compression.
    for (made, (alone, _)) in made.iter().zip(&alone) {
        assert_eq!(made.tests, alone[0].tests);
    }
    assert_eq!(made.len(), 2);
    assert_ne!(made[0].tests[0].drive, made[1].tests[0].drive);
}

#[test]
fn a_stop_ends_it_and_reports_hold_all_figures() {
    let cases = Source::Operation(crate::workload::Operation::RandomWrite)
        .cases(SIZE, &Asked::default())
        .unwrap();
    let stop = AtomicBool::new(true);
    let options = ForecastOptions { state: State::New, ..ForecastOptions::default() };
    let none = forecast(
        Scenario { profile: &profile(), cases: &cases, options: &options },
        &saved(0.0),
        &Silent,
        &stop,
    )
    .unwrap();
    assert!(none.is_none());
    let made = made("mixed", &saved(50.0), &Asked::default(), &ForecastOptions::default()).unwrap();
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

#[test]
fn a_scaled_drive_stands_for_the_whole_one_and_says_so() {
    let profile = profile();
    let options = |scaled_bytes| ForecastOptions { scaled_bytes, ..ForecastOptions::default() };
    let with = |scaled| made("random-write", &saved(50.0), &Asked::default(), &options(scaled));
    let (whole, small) = (with(None).unwrap(), with(Some(128 << 20)).unwrap());
    assert_eq!((whole.size_bytes, small.size_bytes), (SIZE, SIZE));
    assert!(whole.simulated_bytes == SIZE && small.simulated_bytes < SIZE / 100 * 52);
    let over = |made: &Forecast| made.over_provisioning_percent.unwrap();
    let over = over(&small) / over(&whole);
    assert!((over - 1.0).abs() < 1e-3, "{over}");
    let of = |made: &Forecast| made.tests[0].drive.clone();
    let endurance = |made: &Forecast| of(made).endurance.unwrap().host_bytes;
    assert!((endurance(&small) / endurance(&whole) - 1.0).abs() < 0.05, "of the whole drive");
    let says = |made: &Forecast| made.summary().to_text().contains("--full-size");
    assert!(says(&small) && !says(&whole));
    assert!(small.document().to_html().contains("--full-size"));
    // Half of the drive corresponds to half of the smaller drive that represents it.
    let asked = Asked {
        changes: Changes { span_bytes: Some(SIZE / 2), ..Changes::default() },
        ..Asked::default()
    };
    let simulated = Spec::of(&profile, &Data::none(), &options(Some(128 << 20))).unwrap();
    let scaled = asked.scaled(SIZE, simulated.size_bytes()).unwrap();
    let span = scaled.changes.span_bytes.unwrap();
    assert!(
        span.abs_diff(simulated.size_bytes() / 2) < 8192 && span.is_multiple_of(4096),
        "{span}"
    );
    assert_eq!(asked.scaled(SIZE, SIZE).unwrap().changes.span_bytes, Some(SIZE / 2));
    assert!(asked.scaled(SIZE / 4, SIZE / 8).unwrap_err().to_string().contains("beyond the drive"));
}

#[test]
fn workloads_with_fixed_places_are_not_scaled() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.fio");
    let of = |text: &str| {
        fs::write(&path, text).unwrap();
        Source::find(path.to_str().unwrap(), &Asked::default()).unwrap().0.is_relative()
    };
    assert!(of("[x]\nrw=randwrite\n"));
    assert!(!of("[x]\nrw=randwrite\n[y]\nstonewall\nrw=randwrite\nsize=64m\n"));
    assert!(!of("[x]\nrw=randwrite\noffset=64m\n"));
    let trace = trace(folder.path(), 10);
    assert!(!Source::find(&trace, &Asked::default()).unwrap().0.is_relative());
    for name in ["random-write", "wsat"] {
        assert!(Source::find(name, &Asked::default()).unwrap().0.is_relative());
    }
}

/// Returns a grid of random writes, and its cells.
fn small_grid(over: &[f64], saved_percent: &[f64]) -> (Vec<GridCell>, Grid) {
    let (profile, options) = (profile(), ForecastOptions::default());
    let place = |(&over, &percent): (&f64, &f64)| {
        let (data, over_provisioning_percent) = (saved(percent), Some(over));
        let options = ForecastOptions { over_provisioning_percent, ..options.clone() };
        let size_bytes = size_bytes(&profile, &data, &options).unwrap();
        let source = Source::find("random-write", &Asked::default()).unwrap().0;
        let cases = source.cases(size_bytes, &Asked::default()).unwrap();
        GridCell { over_provisioning_percent, data, cases }
    };
    let pairs = over.iter().flat_map(|over| saved_percent.iter().map(move |it| (over, it)));
    let places: Vec<GridCell> = pairs.map(place).collect();
    let (profile, options, columns) = (&profile, &options, saved_percent.len());
    let spec = GridSpec { profile, options, cells: &places, columns };
    let made = grid(spec, &Silent, &GO_ON).unwrap();
    (places, made.expect("it was not stopped"))
}

#[test]
fn a_grid_is_the_forecasts_of_its_places() {
    let (places, grid) = small_grid(&[12.0, 28.0], &[0.0, 50.0]);
    for (place, found) in places.iter().zip(&grid.forecasts) {
        let over = place.over_provisioning_percent.unwrap();
        assert!((found.over_provisioning_percent.unwrap() - over).abs() < 0.1, "{over}");
        assert_eq!((&found.data, found.tests[0].uncompressed.is_none()), (&place.data, true));
        let figures = &found.tests[0].drive;
        let formula = figures.write_amplification_by_formula.unwrap();
        let ratio = amplification(figures).all / formula;
        assert!((ratio - 1.0).abs() < 0.05, "{over} %, {}: {ratio}", found.data.name);
        let size = found.size_bytes as f64 * (1.0 + over / 100.0);
        let first = &grid.forecasts[0];
        assert!((size / (first.size_bytes as f64 * 1.12) - 1.0).abs() < 1e-3, "the same flash");
    }
    let alone = {
        let options =
            ForecastOptions { over_provisioning_percent: Some(28.0), ..ForecastOptions::default() };
        forecast(
            Scenario { profile: &profile(), cases: &places[3].cases, options: &options },
            &places[3].data,
            &Silent,
            &GO_ON,
        )
    };
    let alone = alone.unwrap().unwrap();
    assert_eq!(alone.tests[0].drive, grid.forecasts[3].tests[0].drive);
    let written = |index: usize| amplification(&grid.forecasts[index].tests[0].drive).all;
    assert!(written(0) > written(1) && written(0) > written(2) && written(1) > written(3));
}

#[test]
fn reports_of_a_grid_have_every_figure_at_its_place() {
    let (_, grid) = small_grid(&[12.0, 28.0], &[0.0, 50.0]);
    let text = grid.summary().to_text();
    let line = |name: &str, over: &str| {
        let mut lines = text.lines().skip_while(|line| !line.trim().starts_with(name));
        lines.find(|line| line.contains(over)).expect(name).to_owned()
    };
    for (row, over) in ["12 %", "28 %"].into_iter().enumerate() {
        let amplified = line("write amplification", over);
        let speed = line("throughput", over);
        for forecast in &grid.forecasts[2 * row..][..2] {
            let figures = &forecast.tests[0].drive;
            let number = format!("{:.3}", amplification(figures).all);
            assert!(amplified.contains(&number), "{number} in {amplified}");
            let number = format!("{:.1}", figures.all.mb_per_s);
            assert!(speed.contains(&number), "{number} in {speed}");
        }
    }
    assert!(text.contains("throughput, MB/s") && text.contains("by formula"));
    assert!(text.lines().all(|it| it.chars().count() <= 100));
    assert_eq!(grid.table().rows().len(), 4);
    let charts: Vec<_> = grid.document().sections.into_iter().flat_map(|it| it.blocks).collect();
    let charts: Vec<_> = charts
        .into_iter()
        .filter_map(|block| match block {
            pumice_report::Block::Lines(chart) => Some(chart),
            _ => None,
        })
        .collect();
    let shown = |index: usize| -> Vec<(f64, f64)> {
        let points = charts.iter().map(|chart| chart.series[index].points[1]);
        points.map(|point| (point.x, point.y)).collect()
    };
    let wa = |index: usize| amplification(&grid.forecasts[index].tests[0].drive).all;
    // The over-provisionings of the first kind of data; then the kinds of data of the first
    // over-provisioning.
    let speed = grid.forecasts[1].tests[0].drive.all.mb_per_s;
    let over = grid.forecasts[2].over_provisioning_percent.unwrap();
    assert_eq!(shown(0), [(over, wa(2)), (50.0, wa(1)), (50.0, speed)]);
    assert_eq!(charts.iter().map(|chart| chart.series.len()).collect::<Vec<_>>(), [2, 2, 2]);
    assert!(grid.document().to_xlsx().is_ok());
}

#[test]
fn a_block_mapped_drive_has_its_merges_told() {
    let profile = Profile::find("jmicron-jmf602b").unwrap();
    let options = ForecastOptions::default();
    let size_bytes = Spec::of(&profile, &Data::none(), &options).unwrap().size_bytes();
    let of = |operation: &str, span: u64| {
        let asked = Asked {
            changes: Changes { span_bytes: Some(span), depth: Some(3), ..Changes::default() },
            ..Asked::default()
        };
        let cases = Source::find(operation, &asked).unwrap().0.cases(size_bytes, &asked).unwrap();
        let made = forecast(
            Scenario { profile: &profile, cases: &cases, options: &options },
            &Data::none(),
            &Silent,
            &GO_ON,
        );
        made.unwrap().unwrap().tests.remove(0).drive
    };
    let random = of("random-write", 64 << 20);
    let of_random = amplification(&random);
    let sum = of_random.host + of_random.collected + of_random.padding + of_random.overhead;
    assert!((sum / of_random.all - 1.0).abs() < 1e-3, "{of_random:?}");
    // A 4 KiB write makes the drive copy blocks of 512 KiB.
    assert!(of_random.all > 50.0 && of_random.collected > 50.0, "{of_random:?}");
    assert!(random.wear.unwrap().max > 0 && random.preconditioning.is_steady);
    assert!(random.writes.iops < 20.0, "{:?}", random.writes);
    let latency = random.write_latency.unwrap();
    assert!((latency.max_ns as f64) < 2.0 * latency.mean_ns, "in turn: {latency:?}");
    let endurance = random.endurance.unwrap().host_bytes;
    let ordered = of("rewrite", 64 << 20);
    let of_ordered = amplification(&ordered);
    assert!(of_ordered.all < 1.3 && ordered.writes.mb_per_s > 10.0, "{of_ordered:?}");
    assert!(ordered.endurance.unwrap().host_bytes > 40.0 * endurance);
    let scaled = ForecastOptions { scaled_bytes: Some(1 << 30), ..options.clone() };
    let refused = Spec::of(&profile, &Data::none(), &scaled).unwrap_err().to_string();
    assert!(refused.contains("--scaled is for profiles of kind \"log\" only"), "{refused}");
}

#[test]
fn a_disk_has_no_endurance_rather_than_none_left() {
    let (profile, options) = (Profile::find("hdd-2010").unwrap(), ForecastOptions::default());
    let asked = Asked {
        changes: Changes { depth: Some(1), seconds: Some(2.0), ..Changes::default() },
        ..Asked::default()
    };
    let data = saved(50.0);
    let made = made_on(&profile, "random-read", &data, &asked, &options).unwrap();
    let figures = &made.tests[0].drive;
    assert!(made.tests[0].uncompressed.is_none() && figures.preconditioning.filled_bytes == 0);
    // A seek and half a revolution.
    let latency = figures.read_latency.unwrap().mean_ns;
    assert!((8e6..25e6).contains(&latency), "{latency}");
    let asked = Asked {
        changes: Changes { span_bytes: Some(1 << 30), ..Changes::default() },
        ..Asked::default()
    };
    let made = made_on(&profile, "random-write", &data, &asked, &options).unwrap();
    let figures = &made.tests[0].drive;
    assert_eq!(figures.write_latency.unwrap().count, 20_000, "not all of the span");
    assert!(figures.write_amplification.is_none() && figures.wear.is_none());
    assert!(figures.endurance.is_none() && made.over_provisioning_percent.is_none());
    let text = made.summary().to_text();
    assert!(text.contains("A hard disk has no write amplification"), "{text}");
    for word in ["TB", "erasures", "programmed", "NOT steady"] {
        assert!(!text.contains(word), "{word} in {text}");
    }
}
