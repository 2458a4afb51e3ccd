//! Goal: a profile finds duplicates and zeroes, and imitations reproduce them; a profile can be
//! saved and read as a file; other files are refused.
//!
//! Method: generated data is profiled, imitated and profiled again. `tests/it/measuring/payload.rs`
//! shows with system files that real data is imitated well.

use std::fs;
use std::path::Path;

use super::*;
use pumice_drive::base::ErrorKind;

/// Size of the profiled data in bytes: 256 windows.
const CORPUS_BYTES: usize = 16 << 20;

fn profile_of(data: &[u8]) -> Profile {
    let directory = tempfile::tempdir().expect("temp dir");
    let path = directory.path().join("data");
    fs::write(&path, data).expect("write the corpus");
    Profile::of_path(&path).expect("a profile")
}

/// Returns data in which a quarter of the units occurs twice and a quarter is zeroes.
fn mixture() -> Vec<u8> {
    let mut data = bytes(&payload(Kind::Spread(saving(40.0))), 9, CORPUS_BYTES);
    let quarter = CORPUS_BYTES / 4;
    data.copy_within(..quarter, quarter);
    data[2 * quarter..3 * quarter].fill(0);
    data
}

#[test]
fn duplicates_and_zeroes_are_imitated() {
    let profile = profile_of(&mixture());
    assert!((profile.duplicates().percent() - 25.0).abs() < 0.1, "{}", profile.duplicates());
    assert!((profile.fills().percent() - 25.0).abs() < 0.1, "{}", profile.fills());
    let like = bytes(&payload(Kind::Like(profile)), 0, 4 * CORPUS_BYTES);
    let again = profile_of(&like);
    assert!((again.duplicates().percent() - 25.0).abs() < 5.0, "{}", again.duplicates());
    assert!((again.fills().percent() - 25.0).abs() < 2.0, "{}", again.fills());
    let options =
        PayloadOptions { duplicates: Saving::NONE, ..PayloadOptions::new(Kind::Like(again)) };
    let unlike = bytes(&Payload::new(options).expect("good options"), 0, CORPUS_BYTES);
    // Zeroes are excluded, because the original data also contains them.
    let units = unlike.chunks(UNIT_BYTES).filter(|unit| unit.iter().any(|byte| *byte != 0));
    assert_no_unit_twice(&units.flatten().copied().collect::<Vec<u8>>(), UNIT_BYTES);
}

#[test]
fn a_profile_survives_being_a_file() {
    let profile = profile_of(&mixture());
    let text = profile.to_json();
    assert!((text.len() as u64) < PROFILE_FILE_BYTES_MAX);
    let read = Profile::from_json(&text).expect("its own text");
    assert_eq!(read.to_json(), text);
    let [saved, zstd] = profile.saved();
    assert!(read.saved()[0].points_from(saved) < 0.2 && read.saved()[1].points_from(zstd) < 0.2);
}

#[test]
fn invalid_profiles_are_refused() {
    let good = profile_of(&bytes(&payload(Kind::Random), 0, WINDOW_BYTES)).to_json();
    assert!(Profile::from_json(&good).is_ok());
    let line = good.lines().find(|line| line.len() > 70).expect("a window").trim();
    for (from, to) in [
        ("\"pumice_profile\": 1", "\"pumice_profile\": 2"),
        ("pumice_profile", "profile"),
        ("\"windows\": [", "\"windows\": [\"00\","),
        ("\"duplicate_percent\": 0.0", "\"duplicate_percent\": 101"),
        (line, ""),
        (line, &line.replacen("00", "g0", 1)),
        (line, &line.replacen("00", "fb", 1)),
        (line, &line.replacen("00", "\u{e4}", 1)),
        ("}", ""),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from}");
        assert!(Profile::from_json(&bad).is_err(), "{from} -> {to}");
    }
    let many = vec![line; 2049].join(",\n");
    assert!(Profile::from_json(&good.replace(line, &many)).is_err());
}

#[test]
fn a_folder_is_profiled_like_its_files_one_after_the_other() {
    let directory = tempfile::tempdir().expect("temp dir");
    let data = bytes(&payload(Kind::Spread(saving(40.0))), 3, 4 * WINDOW_BYTES);
    let mut whole = Vec::new();
    let inner = directory.path().join("b");
    fs::create_dir(&inner).expect("a folder");
    let cuts = [("a", 0, 100_000), ("b/c", 100_000, 100_000), ("b/d", 100_000, 170_001)];
    for (name, from, to) in cuts {
        fs::write(directory.path().join(name), &data[from..to]).expect("a file");
        whole.extend_from_slice(&data[from..to]);
        whole.resize(whole.len().next_multiple_of(UNIT_BYTES), 0);
    }
    std::os::unix::fs::symlink("a", directory.path().join("link")).expect("a link");
    assert_eq!(Profile::of_path(directory.path()).expect("a profile"), profile_of(&whole));
}

#[test]
fn data_that_cannot_be_profiled_is_named() {
    let error = Profile::of_path(Path::new("/nonexistent/x")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("/nonexistent/x"));
    let directory = tempfile::tempdir().expect("temp dir");
    let error = Profile::of_path(directory.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("64 KiB"), "{error}");
}
