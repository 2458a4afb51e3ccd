//! Goal: a scan of real files is correct as often as stated, with any number of shards. Method:
//! folders of files in which every chunk is known, compared with sums calculated by hand; many
//! seeds.
//!
//! * this file: the whole scan, shards, skipped files, and invalid input.
//! * `coverage`: misleading populations.
//! * `holes`: files with holes and unwritten space.

mod coverage;
mod holes;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rand::Rng;

use super::options::NoProgress;
use super::partial::Measured;
use super::*;
use pumice_drive::base::chain;
use pumice_drive::base::seed::random;
use pumice_drive::base::units::BLOCK_BYTES;

static GO_ON: AtomicBool = AtomicBool::new(false);

const CODEC: Codec = Codec::Drive(pumice_drive::codec::Codec::Lz4);

pub(super) const LZ4: Config = Config { codec: CODEC, chunk_bytes: 32 << 10 };

pub(super) fn options() -> ScanOptions {
    ScanOptions {
        configs: vec![LZ4, Config { codec: CODEC, chunk_bytes: 4096 }],
        main: 0,
        error_points: 1.0,
        confidence_percent: 95.0,
        reading: Reading::Auto,
        seed: 1,
        shard: Shard::ALL,
        threads: 2,
        bytes_per_s: None,
        crosses: false,
        exports: Vec::new(),
        now_s: 1_800_000_000,
    }
}

pub(super) fn run(paths: &[&Path], options: &ScanOptions) -> Result<Partial> {
    let paths: Vec<PathBuf> = paths.iter().map(|path| path.to_path_buf()).collect();
    let scanned = scan(&paths, options, false, &NoProgress, &GO_ON)?;
    Ok(scanned.expect("no one stopped it").partial)
}

/// Writes blocks that start with a share of `share` of one letter and end with noise.
pub(super) fn write(path: &Path, blocks: usize, share: f64, seed: u64) {
    let mut bytes = vec![0; blocks * BLOCK_BYTES];
    random(seed).fill_bytes(&mut bytes);
    let alike = (share * BLOCK_BYTES as f64) as usize;
    bytes.chunks_mut(BLOCK_BYTES).for_each(|block| block[..alike].fill(b'x'));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Creates 48 MiB in files of various sizes and kinds.
fn tree() -> tempfile::TempDir {
    let tree = tempfile::tempdir().unwrap();
    for number in 0..60 {
        let blocks = 1 + (number * number) % 97;
        write(&tree.path().join(format!("text/{number}.txt")), blocks, 0.75, number as u64);
        write(&tree.path().join(format!("media/{number}.jpg")), 2 * blocks, 0.0, number as u64);
    }
    write(&tree.path().join("disk.img"), 4000, 0.5, 77);
    tree
}

/// Returns the outcome of a scan of a little noise, for tests that insert their own numbers.
pub(super) fn outcome_of_noise() -> Outcome {
    let tree = tempfile::tempdir().unwrap();
    write(&tree.path().join("noise"), 20, 0.0, 1);
    Outcome::of(&run(&[tree.path()], &options()).unwrap())
}

#[test]
fn everything_read_is_exact_and_draws_hold_it() {
    let tree = tree();
    let all = run(&[tree.path()], &ScanOptions { reading: Reading::All, ..options() }).unwrap();
    let exact = Outcome::of(&all);
    assert!(exact.is_exact && exact.files == 121 && exact.lost_percent == 0.0);
    assert_eq!(exact.bytes, exact.bytes_read);
    let text = |it: &Outcome, name: &str| {
        let group = it.extensions.iter().find(|group| group.name == name).unwrap();
        (group.bytes, group.drive.unwrap())
    };
    let (bytes, stored) = text(&exact, "jpg");
    assert_eq!(bytes, 2 * text(&exact, "txt").0);
    assert!((1.0..1.01).contains(&stored.stored), "noise and its headers: {stored:?}");
    let drawn = run(&[tree.path()], &ScanOptions { reading: Reading::Draws(3000), ..options() });
    let drawn = Outcome::of(&drawn.unwrap());
    assert!(!drawn.is_exact && (2800..3200).contains(&drawn.draws), "{}", drawn.draws);
    for (config, truth) in drawn.configs.iter().zip(&exact.configs) {
        for (it, truth) in [(config.drive, truth.drive), (config.codec, truth.codec)] {
            assert!(it.stored_low <= truth.stored && truth.stored <= it.stored_high, "{it:?}");
            assert!((it.stored - truth.stored).abs() < 0.02, "{it:?} {truth:?}");
            assert!(it.error_points() > 0.05 && it.error_points() < 3.0, "{it:?}");
        }
    }
    for groups in [(&drawn.folders, &exact.folders), (&drawn.ages, &exact.ages)] {
        let names = |groups: &[outcome::GroupOutcome]| {
            groups.iter().map(|group| (group.name.clone(), group.bytes)).collect::<Vec<_>>()
        };
        assert_eq!(names(groups.0), names(groups.1));
    }
    assert_eq!(drawn.worst[0].name, "0/disk.img");
}

#[test]
fn an_adaptive_scan_stops_at_its_error_or_reads_everything() {
    let tree = tempfile::tempdir().unwrap();
    let path = tree.path().join("disk.img");
    // 64 MiB of uniform data.
    write(&path, 16 << 10, 0.5, 5);
    let scan = |error_points| {
        let options = ScanOptions { error_points, configs: vec![LZ4], ..options() };
        Outcome::of(&run(&[&path], &options).unwrap())
    };
    // Regression: less than 480 MB was read completely before any draw was measured.
    let coarse = scan(1.0);
    assert_eq!((coarse.is_exact, coarse.draws), (false, 512));
    let points = coarse.main().drive.error_points();
    assert!(points <= 1.0 && coarse.bytes_read >= coarse.draws * 4096, "{points}");
    // For a tenth of a point, draws would read more than the whole data.
    assert!(scan(0.1).is_exact);
    write(&path, 4000, 0.5, 5);
    assert!(scan(6.0).is_exact, "the first draws alone would read all of it");
}

/// The first draws show that reading all data is cheaper, and the full read is then interrupted.
/// The draws are a sample; the data read first is not.
#[test]
fn an_interrupted_full_read_falls_back_on_its_draws() {
    struct Stopper(AtomicBool, AtomicBool);
    impl ScanProgress for Stopper {
        fn found(&self, _files: u64, _bytes: u64) {}
        fn begin(&self, reads_draws: bool, _total: u64) {
            self.1.store(!reads_draws, Ordering::Relaxed);
        }
        fn advance(&self, _count: u64) {
            self.0.fetch_or(self.1.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
    let tree = tempfile::tempdir().unwrap();
    for number in 0..40 {
        let share = if number % 2 == 0 { 0.0 } else { 0.95 };
        write(&tree.path().join(number.to_string()), 400, share, number);
    }
    let stopper = Stopper(AtomicBool::new(false), AtomicBool::new(false));
    let paths = [tree.path().to_owned()];
    let options = ScanOptions { error_points: 0.5, ..options() };
    let partial = scan(&paths, &options, false, &stopper, &stopper.0).unwrap().unwrap().partial;
    let outcome = Outcome::of(&partial);
    assert!(!outcome.is_complete && outcome.is_known() && outcome.draws == 512, "{outcome:?}");
    let of = outcome.main().drive;
    assert!(of.stored_low < 0.53 && of.stored_high > 0.53, "{of:?}");
}

#[test]
fn shards_together_are_one_scan() {
    let tree = tree();
    for reading in [Reading::All, Reading::Draws(2000)] {
        let options = ScanOptions { reading, ..options() };
        let whole = run(&[tree.path()], &options).unwrap();
        let mut parts = Vec::new();
        for index in [2, 0, 1] {
            let shard = Shard { index, count: 3 };
            let part = run(&[tree.path()], &ScanOptions { shard, ..options.clone() }).unwrap();
            let part = Partial::from_json(&part.to_json()).unwrap();
            assert!(part.blocks > 0 && part.blocks < whole.blocks);
            parts.push((format!("{index}.json"), part));
        }
        let merged = Partial::merge(&parts).unwrap();
        let figures = |partial: &Partial| {
            let mut outcome = Outcome::of(partial);
            // Clock measurements are excluded, and a file in two shards counts in each.
            outcome.choice = None;
            outcome.files = 0;
            outcome.configs.iter_mut().for_each(|config| config.mb_per_s = None);
            outcome
        };
        assert_eq!(figures(&merged), figures(&whole), "{reading:?}");

        let wrong = |parts: &[(String, Partial)]| Partial::merge(parts).unwrap_err().to_string();
        assert!(wrong(&parts[1..]).contains("shard 3/3 is missing"), "{}", wrong(&parts[1..]));
        let twice = [parts[0].clone(), parts[0].clone()];
        assert!(wrong(&twice).contains("are both shard 3/3"), "{}", wrong(&twice));
        let mut other = parts.clone();
        other[1].1.seed = 9;
        assert!(wrong(&other).contains("different scans: seed 1 and 9"), "{}", wrong(&other));
        other[1] = parts[1].clone();
        other[1].1.is_complete = false;
        assert!(wrong(&other).contains("was interrupted"), "{}", wrong(&other));
        assert!(wrong(&[]).contains("nothing to merge"));
    }
}

#[test]
fn copies_of_files_are_found_and_likes_are_not() {
    let tree = tempfile::tempdir().unwrap();
    let at = |name: String| tree.path().join(name);
    for number in 0..40u64 {
        // Three identical files, and one of equal length.
        for copy in 0..3 {
            write(&at(format!("{copy}/{number}")), 10 + number as usize, 0.3, number);
        }
        write(&at(format!("other/{number}")), 10 + number as usize, 0.3, 1000 + number);
    }
    for copy in 0..2 {
        write(&at(format!("{copy}/large")), 600, 0.3, 7000);
    }
    let options = ScanOptions { reading: Reading::Draws(2000), ..options() };
    let drawn = run(&[tree.path()], &options).unwrap();
    let found = Outcome::of(&drawn).duplicates;
    let blocks: f64 = (0..40).map(|number| f64::from(10 + number)).sum();
    let truth = 100.0 * (2.0 * blocks + 600.0) / (4.0 * blocks + 1200.0);
    assert!((found.percent.unwrap() - truth).abs() < 1e-9, "{found:?} {truth}");
    assert_eq!(found.deviation_points, 0.0);
    assert!(found.most_percent > truth, "{found:?}");
    let all = run(&[tree.path()], &ScanOptions { reading: Reading::All, ..options }).unwrap();
    let all = Outcome::of(&all).duplicates;
    assert!((all.percent.unwrap() - truth).abs() < 0.1, "{all:?} {truth}");
}

#[test]
fn files_without_data_are_skipped_and_counted() {
    let tree = tempfile::tempdir().unwrap();
    let at = |name: &str| tree.path().join(name);
    write(&at("a/one.bin"), 10, 0.0, 1);
    fs::hard_link(at("a/one.bin"), at("two.bin")).unwrap();
    symlink(at("a"), at("link")).unwrap();
    symlink("/", at("a/root")).unwrap();
    fs::write(at("empty"), b"").unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    // 1 GiB with data in two places; the last block is partial.
    let sparse = File::create(at("sparse")).unwrap();
    sparse.write_all_at(&[7; 100], 1 << 20).unwrap();
    sparse.write_all_at(&[7; 100], 1 << 30).unwrap();
    let outcome = Outcome::of(&run(&[tree.path()], &options()).unwrap());
    assert_eq!(outcome.bytes, 12 * 4096);
    assert_eq!(outcome.files, 2);
    let passed = &outcome.passed;
    assert_eq!((passed.links, passed.further_names, passed.special_files), (2, 1, 1));
    assert_eq!((passed.empty_files, passed.unreadable), (1, 0));
    assert_eq!(passed.hole_bytes, (1 << 30) + 4096 - 2 * 4096);
    let main = outcome.main().codec.stored;
    // Two blocks are nearly empty, ten are noise.
    assert!((0.83..0.86).contains(&main), "{main}");
}

#[test]
fn other_file_systems_are_left_alone() {
    // /dev, if it exists, has several file systems mounted below it.
    let options = ScanOptions { reading: Reading::All, ..options() };
    let passed = match run(&[Path::new("/dev")], &options) {
        Ok(partial) => partial.passed,
        Err(error) => {
            // The folder has no files of its own and contains no data, but the walk itself did not
            // fail.
            assert!(error.to_string().contains("holds no data"), "{error}");
            return;
        }
    };
    assert!(passed.other_file_systems > 0 || passed.special_files > 0, "{passed:?}");
}

#[test]
fn errors_of_a_scan_give_the_reason() {
    let tree = tempfile::tempdir().unwrap();
    let error = |paths: &[&Path]| chain(&run(paths, &options()).unwrap_err());
    let missing = tree.path().join("missing");
    assert!(error(&[&missing]).contains("cannot scan"), "{}", error(&[&missing]));
    assert!(error(&[tree.path()]).contains("holds no data"), "{}", error(&[tree.path()]));
    assert!(error(&[Path::new("/dev/null")]).contains("is not a file, folder or block device"));
    assert!(error(&[Path::new("nbd://127.0.0.1:1")]).contains("127.0.0.1:1"));
    assert!(error(&[Path::new("nbd+unix://")]).contains("invalid NBD URI"));
    write(&tree.path().join("a/b"), 3, 0.5, 1);
    let inner = tree.path().join("a");
    assert!(error(&[&inner, tree.path()]).contains("name it once"));
    assert!(error(&[&inner, &inner]).contains("name it once"));
    fs::write(tree.path().join("nothing"), b"").unwrap();
    assert!(error(&[&tree.path().join("nothing")]).contains("holds no data"));
}

#[test]
fn files_that_vanish_or_shrink_are_counted_and_lose_nothing_else() {
    struct Meddler(PathBuf);
    impl ScanProgress for Meddler {
        fn found(&self, _files: u64, _bytes: u64) {}
        fn begin(&self, _reads_draws: bool, _total: u64) {
            let _ = fs::remove_file(self.0.join("text/59.txt"));
            let shrunk = File::options().write(true).open(self.0.join("disk.img")).unwrap();
            shrunk.set_len(4096 * 100).unwrap();
        }
        fn advance(&self, _count: u64) {}
    }
    for reading in [Reading::All, Reading::Draws(2000)] {
        let tree = tree();
        let options = ScanOptions { reading, ..options() };
        let paths = [tree.path().to_owned()];
        let meddler = Meddler(tree.path().to_owned());
        let scanned = scan(&paths, &options, false, &meddler, &GO_ON).unwrap().unwrap().partial;
        let outcome = Outcome::of(&scanned);
        // When all data is read, the list is created again, so no read fails.
        let drawn = reading != Reading::All;
        assert_eq!((outcome.failed.changed > 0, outcome.failed.unreadable), (drawn, 0));
        // The image was two fifths of the whole data.
        assert!((20.0..50.0).contains(&outcome.lost_percent), "{}", outcome.lost_percent);
        assert_eq!(outcome.failed.examples.is_empty(), !drawn);
        let jpg = outcome.extensions.iter().find(|group| group.name == "jpg").unwrap();
        assert!((0.99..1.02).contains(&jpg.drive.unwrap().stored));
    }
}

#[test]
fn an_interrupted_scan_keeps_whole_rounds() {
    struct Stopper(AtomicBool, std::sync::atomic::AtomicU64);
    impl ScanProgress for Stopper {
        fn found(&self, _files: u64, _bytes: u64) {}
        fn begin(&self, _reads_draws: bool, _total: u64) {}
        fn advance(&self, count: u64) {
            if self.1.fetch_add(count, Ordering::Relaxed) > 1200 {
                self.0.store(true, Ordering::Relaxed);
            }
        }
    }
    let tree = tree();
    let paths = [tree.path().to_owned()];
    for reading in [Reading::Draws(4000), Reading::All] {
        let stopper = Stopper(AtomicBool::new(false), 0.into());
        let options = ScanOptions { reading, ..options() };
        let partial = scan(&paths, &options, false, &stopper, &stopper.0).unwrap().unwrap().partial;
        assert!(!partial.is_complete());
        let outcome = Outcome::of(&partial);
        assert!(!outcome.is_exact);
        match &partial.measured {
            Measured::Draws { drawn, .. } => assert_eq!(drawn.len(), 1024),
            Measured::All(sums) => assert!(sums.all.blocks >= 1200 && sums.all.blocks < 9000),
        }
        let text = outcome.document(&[], None).to_text();
        assert!(text.contains("Interrupted"), "{text}");
        assert_eq!(outcome.is_known(), reading != Reading::All);
        if reading == Reading::All {
            assert_it_reports_the_read_part(&outcome, &text);
        }
    }
    let stopped = AtomicBool::new(true);
    assert!(scan(&paths, &options(), false, &NoProgress, &stopped).unwrap().is_none());
}

/// Regression: an interrupted full read reported "exact" intervals and a verdict on all data.
fn assert_it_reports_the_read_part(outcome: &Outcome, text: &str) {
    let percent = outcome.covered_percent;
    assert!((5.0..99.0).contains(&percent), "{percent}");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [format!("of the {percent:.1} % that were read"), "is unknown".into()] {
        assert!(text.contains(&words), "no '{words}' in {text}");
    }
    for words in ["Yes", "exact", "pumice create", "Recommended codec"] {
        assert!(!text.contains(words), "'{words}' in {text}");
    }
    let of = outcome.main().drive;
    let known = of.stored * percent / 100.0;
    assert!((of.stored_low - known).abs() < 1e-9, "{of:?}");
    assert!((of.stored_high - known - 1.05 * (1.0 - percent / 100.0)).abs() < 1e-9, "{of:?}");
}

#[test]
fn a_profile_makes_data_like_the_scanned_data() {
    // Half of the data is in small files, and the smallest ones compress best.
    let tree = tempfile::tempdir().unwrap();
    write(&tree.path().join("large"), 800, 0.0, 1);
    for number in 0..400 {
        write(&tree.path().join(format!("small/{number}")), 1, 0.9, number);
    }
    for number in 0..50 {
        write(&tree.path().join(format!("middle/{number}")), 8, 0.3, 1000 + number);
    }
    let options = ScanOptions { reading: Reading::Draws(1500), ..options() };
    let paths = [tree.path().to_owned()];
    let Scanned { partial, profile } =
        scan(&paths, &options, true, &NoProgress, &GO_ON).unwrap().unwrap();
    let profile = profile.expect("there is more than a window");
    let outcome = Outcome::of(&partial);
    let [lz4, _] = profile.saved();
    let truth = outcome.configs[1].codec.stored;
    assert!((lz4.stored_fraction() - truth).abs() < 0.03, "{lz4} {truth}");
    assert_eq!(profile.source_bytes(), outcome.bytes);
}

#[test]
fn a_partial_result_from_elsewhere_is_not_trusted() {
    let tree = tree();
    let part =
        run(&[tree.path()], &ScanOptions { reading: Reading::Draws(50), ..options() }).unwrap();
    let json: serde_json::Value = serde_json::from_str(&part.to_json()).unwrap();
    let refused = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut json = json.clone();
        change(&mut json);
        chain(&Partial::from_json(&json.to_string()).unwrap_err())
    };
    type Change = fn(&mut serde_json::Value);
    let changes: [Change; 9] = [
        |it| it["main"] = 7.into(),
        |it| it["configs"][0]["chunk_bytes"] = 5000.into(),
        |it| it["configs"] = serde_json::json!([]),
        |it| it["shard"]["count"] = 0.into(),
        |it| it["ages"] = serde_json::json!([1]),
        |it| it["confidence_percent"] = 100.into(),
        |it| it["measured"]["draws"]["drawn"][3]["stratum"] = 999.into(),
        |it| it["measured"]["draws"]["drawn"][3]["fractions"] = serde_json::json!([]),
        |it| it["measured"]["draws"]["drawn"][3]["mark"] = 2.into(),
    ];
    for (number, change) in changes.iter().enumerate() {
        assert!(refused(change).contains("not the result of a scan"), "{number}");
    }
    assert!(refused(&|it| it["pumice_scan"] = 9.into()).contains("version 9"));
    assert!(Partial::from_json("{}").is_err() && Partial::from_json("").is_err());
}
