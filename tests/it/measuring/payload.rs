//! Goal: `pumice payload` writes data as announced, measures it, and refuses meaningless requests;
//! data imitating a user's data saves as much, chunk by chunk.
//! Method: data written to files and to stdout is compared and measured again by the library.
//! Corpora are assembled from files that every Debian machine has, profiled and imitated; both are
//! measured with the same codecs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pumice_bench::payload::{Kind, Meter, Payload, PayloadOptions, Profile, UNIT_BYTES, measure};
use pumice_drive::codec::Codec;

use crate::harness::{PUMICE, pumice, skip};

/// Bytes of a corpus: 256 windows.
const CORPUS_BYTES: usize = 16 << 20;

/// Bytes taken from one file, so that a corpus has some variety.
const FILE_BYTES: usize = 512 << 10;

/// Returns a directory, and the path of a file `data` in it that does not exist yet.
fn place() -> (tempfile::TempDir, String) {
    let directory = tempfile::Builder::new().prefix("pumice-").tempdir().expect("temp dir");
    let path = directory.path().join("data").to_str().expect("a plain path").to_owned();
    (directory, path)
}

#[test]
fn data_is_written_and_measured() {
    let (_directory, path) = place();
    let options = ["payload", "--saved", "50%", "--size", "3M", "--seed", "7", "--json"];
    let finished = pumice(&[&options[..], &["--output", &path]].concat());
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let data = fs::read(&path).expect("the data");
    assert_eq!(data.len(), 3 << 20);
    let made: serde_json::Value = serde_json::from_str(&finished.stdout).expect("JSON");
    assert_eq!(made["measured_bytes"], 3 << 20);
    let findings = made["measured"].as_array().expect("findings");
    assert_eq!(findings.len(), 6);
    for finding in findings {
        let codec: Codec = finding["codec"].as_str().unwrap().parse().expect("a codec");
        let chunk_bytes = finding["chunk_bytes"].as_u64().unwrap() as usize;
        let saved = measure(&data, codec, chunk_bytes);
        let reported = finding["saved_percent"].as_f64().expect("a number");
        assert!((reported - saved.percent()).abs() < 1e-9, "{reported}, {saved}");
        assert!((saved.percent() - 50.0).abs() < 1.0, "{saved}");
    }
    let mut command = Command::new(PUMICE);
    let piped = command.args(options).args(["--output", "-"]).output().expect("run pumice");
    assert!(piped.status.success() && piped.stdout == data);
    let report: serde_json::Value = serde_json::from_slice(&piped.stderr).expect("JSON");
    assert_eq!(report["measured"], made["measured"]);
}

#[test]
fn all_three_quantities_are_shown() {
    let finished = pumice(&["payload", "--saved", "75%", "--size", "1M"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let line = finished.stdout.lines().nth(2).expect("a line");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[..6], ["lz4", "4", "KiB", "75.0", "0.250", "4.00"]);
}

#[test]
fn a_profile_is_saved_and_imitated() {
    let (directory, path) = place();
    let source = directory.path().join("source").to_str().expect("a plain path").to_owned();
    let spread = ["payload", "--kind", "spread", "--saved", "40%", "--size", "8M", "--output"];
    assert_eq!(pumice(&[&spread[..], &[&source]].concat()).code, Some(0));
    let finished = pumice(&["payload", "--profile-of", &source, "--output", &path]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(finished.stdout.contains("% saved (stored 0."), "{}", finished.stdout);
    let saved = |kind: &str| {
        let finished = pumice(&["payload", "--kind", kind, "--size", "8M", "--json"]);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        let made: serde_json::Value = serde_json::from_str(&finished.stdout).expect("JSON");
        made["measured"][0]["saved_percent"].as_f64().expect("a number")
    };
    let real = measure(&fs::read(&source).unwrap(), Codec::Lz4, 4096).percent();
    for kind in [format!("like:{path}"), format!("like:{source}")] {
        assert!((saved(&kind) - real).abs() < 2.0, "{kind}: {} for {real}", saved(&kind));
    }
    assert!((saved(&format!("replay:{source}")) - real).abs() < 0.1);
}

#[test]
fn mistakes_are_refused_and_leave_nothing() {
    let (directory, path) = place();
    let missing = directory.path().join("missing").to_str().expect("a plain path").to_owned();
    let like = format!("like:{missing}");
    for (args, hint) in [
        (&["--saved", "120%"][..], "from 0% to 100%"),
        (&["--saved", "50"], "such as 50%"),
        (&["--saved", "100%"], "at most 98.9"),
        (&["--kind", "exakt"], "did you mean exact?"),
        (&["--kind", "exact"], "needs --saved"),
        (&["--kind", "random", "--saved", "5%"], "remove --saved"),
        (&["--kind", &like], "missing"),
        (&["--size", "0"], "for --size: expected"),
        (&["--record", "700"], "powers of two"),
        (&["--duplicates", "100%"], "less than 100 %"),
        (&["--profile-of", &missing], "missing"),
        (&["--profile-of", &missing, "--saved", "5%"], "cannot be used with"),
    ] {
        let finished = pumice(&[&["payload", "--output", &path], args].concat());
        assert_eq!(finished.code, Some(2), "{args:?}");
        assert!(finished.stderr.contains(hint), "{args:?}: {}", finished.stderr);
        assert!(fs::metadata(&path).is_err(), "{args:?} left a file");
    }
    let forced = pumice(&["payload", "--profile-of", &missing, "--output", &path, "--force"]);
    assert!(forced.code == Some(2) && fs::metadata(&path).is_err(), "a forced file is left");
    let here = directory.path().to_str().expect("a plain path");
    let finished = pumice(&["payload", "--size", "4K", "--output", here]);
    assert!(finished.stderr.contains("is a directory: name a file in it"), "{}", finished.stderr);
    fs::write(&path, "mine").unwrap();
    let again = ["payload", "--size", "4K", "--output", &path];
    let finished = pumice(&again);
    assert!(finished.code == Some(2) && finished.stderr.contains("--force"), "{}", finished.stderr);
    assert_eq!(fs::read(&path).unwrap(), b"mine");
    assert_eq!(pumice(&[&again[..], &["--force"]].concat()).code, Some(0));
    assert_eq!(fs::read(&path).unwrap().len(), 4096);
}

/// Returns the beginnings of files below a folder, in the order of their names, each padded to
/// whole units. `None` if there is not enough.
fn corpus(folder: &str) -> Option<Vec<u8>> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(folder).into_iter().flatten().map_while(Result::ok);
        for entry in entries {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files.sort();
    let mut corpus = Vec::new();
    for file in files {
        let content = fs::read(file).unwrap_or_default();
        corpus.extend_from_slice(&content[..content.len().min(FILE_BYTES)]);
        corpus.resize(corpus.len().next_multiple_of(UNIT_BYTES), 0);
        if corpus.len() >= CORPUS_BYTES {
            corpus.truncate(CORPUS_BYTES);
            return Some(corpus);
        }
    }
    skip(&format!("{folder} holds less than {CORPUS_BYTES} bytes"))
}

#[test]
fn like_data_has_the_saving_of_real_data() {
    for folder in ["/usr/bin", "/usr/share"] {
        let Some(real) = corpus(folder) else { continue };
        let (_directory, path) = place();
        fs::write(&path, &real).expect("write the corpus");
        let profile = Profile::of_path(Path::new(&path)).expect("a profile");
        let payload = Payload::new(PayloadOptions::new(Kind::Like(profile))).expect("a payload");
        let mut like = vec![0; 2 * CORPUS_BYTES];
        payload.stream(0).fill(&mut like);
        for codec in [Codec::Lz4, Codec::Zstd { level: 1 }] {
            for chunk in [4096, 16 << 10, 64 << 10] {
                let [asked, found] = [&real, &like].map(|data| {
                    let mut meter = Meter::new(codec);
                    meter.add_chunks(data, chunk);
                    (meter.tally().saved(), meter.tally().deviation_points())
                });
                let text = format!("{folder}, {codec} at {chunk}: real {asked:?}, like {found:?}");
                println!("{text}");
                assert!(asked.0.points_from(found.0) <= 2.0, "{text}");
                assert!((asked.1 - found.1).abs() <= 2.0, "{text}");
            }
        }
    }
}
