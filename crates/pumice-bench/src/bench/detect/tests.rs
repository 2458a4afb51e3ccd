//! Goal: the answer follows from the evidence, and speed alone is never conclusive.
//!
//! Method: the judge with numbers that have an obvious answer; data measured with codecs; whole
//! detections of a file in memory and of a small drive. `tests/it/measuring/detect.rs` tests real
//! file systems and devices.

use std::sync::atomic::{AtomicBool, Ordering};

use super::data::Maker;
use super::judge::{Rates, Reading, SweepReading};
use super::judge::{account, answer, best, reach, speeds, threshold, zeroes};
use super::look::{DISTANCES_KIB, SAVINGS};
use super::region::RECORD_BYTES;
use super::*;
use crate::bench::target::{Access, Location};
use crate::payload::measure;
use pumice_drive::base::ErrorKind;
use pumice_drive::codec::Codec;

const MIB: i64 = 1 << 20;
const SPAN: u64 = 8 << 20;

fn settings(span_bytes: u64) -> Settings {
    Settings { access: Access::default(), destroy: false, span_bytes, seed: 1 }
}

fn swept(value: f64, taken_bytes: i64) -> SweepReading {
    SweepReading { value, taken_bytes }
}

/// Returns six readings around each of these values, which are in the order of the kinds of data.
fn readings(mib: [f64; 5]) -> Vec<Reading> {
    let around = |mib: f64| (0..6).map(|run| (mib * MIB as f64) as i64 + run * 4096).collect();
    let all = Data::COMPARED.into_iter().zip(mib.map(around));
    all.map(|(data, bytes)| Reading { data, bytes }).collect()
}

fn judged(mib: [f64; 5]) -> Account {
    account("number", Class::Usage, SPAN, &readings(mib), None)
}

/// Returns write rates with equal spread around each of these means, which are in the order of the
/// kinds of data.
fn judged_speeds(mean: [f64; 5]) -> Vec<Speed> {
    let around = |mean: f64| (0..6).map(|run| mean * (1.0 + 0.01 * f64::from(run))).collect();
    let rates = Data::COMPARED.into_iter().zip(mean);
    let rates: Vec<_> = rates
        .map(|(data, mean)| Rates { data, operation: Operation::Write, rates: around(mean) })
        .collect();
    speeds(&rates, 1)
}

const FULL: [f64; 5] = [8.0; 5];
const ALIKE: [f64; 5] = [100.0; 5];

#[test]
fn saved_space_means_yes_and_names_the_saving() {
    for (mib, expected) in [
        ([8.0, 4.0, 1.0, 0.2, 8.0], Answer::Compresses),
        ([8.0, 8.0, 1.0, 0.2, 8.0], Answer::Compresses),
        ([8.0, 8.0, 8.0, 8.0, 2.0], Answer::Deduplicates),
        ([8.0, 4.0, 1.0, 0.0, 2.0], Answer::Both),
        (FULL, Answer::ShowsNone),
        // Savings only for zeroes, or of less than 5 %, are not compression.
        ([8.0, 8.0, 8.0, 0.0, 8.0], Answer::ShowsNone),
        ([8.0, 7.8, 7.7, 7.7, 7.8], Answer::ShowsNone),
    ] {
        assert_eq!(answer(&[judged(mib)], &judged_speeds(ALIKE)), expected, "{mib:?}");
    }
    let both = [judged(FULL), judged([8.0, 4.0, 1.0, 0.2, 8.0])];
    assert_eq!((answer(&both, &[]), best(&both)), (Answer::Compresses, Some(1)));
    assert_eq!(best(&both[..1]), None);
}

#[test]
fn usage_is_believed_before_counters() {
    let compresses = [8.0, 4.0, 1.0, 0.2, 8.0];
    let counter =
        account("counter", Class::Counter, SPAN, &readings([8.0, 3.0, 0.1, 0.1, 8.0]), None);
    assert_eq!(best(&[judged(compresses), counter.clone()]), Some(0));
    assert_eq!(best(&[judged(FULL), counter]), Some(1));
}

#[test]
fn counters_that_do_not_follow_the_writes_prove_nothing() {
    let frees = [4.0, 2.0, 1.0, 0.0, 4.0];
    let busy = [30.0, 20.0, 10.0, 8.0, 30.0];
    for mib in [frees, busy, [0.0; 5]] {
        let account = judged(mib);
        assert_eq!(account.strength, Strength::Unusable, "{mib:?}");
        assert!(account.amounts.iter().all(|amount| !amount.shown));
        assert_eq!(answer(std::slice::from_ref(&account), &[]), Answer::CannotTell);
        assert_eq!(zeroes(&[account], None), Zeroes::Unknown);
    }
    let mut none = readings([8.0, 4.0, 1.0, 0.2, 8.0]);
    let known = account("number", Class::Usage, SPAN, &none, Some("it cannot"));
    assert_eq!(known.unusable.as_deref(), Some("it cannot"));
    // One run took as much space as incompressible data: either another program wrote, or the data
    // is not compressed.
    for Reading { bytes, .. } in &mut none[1..] {
        bytes[3] = 9 * MIB;
    }
    let account = account("number", Class::Usage, SPAN, &none, None);
    assert_eq!(
        (account.strength, answer(std::slice::from_ref(&account), &[])),
        (Strength::Nothing, Answer::ShowsNone)
    );
}

/// Returns the account in the presence of another writer, which adds these MiB to each of six runs
/// of each kind of data.
fn beside_a_writer(added: [[f64; 6]; 5]) -> Account {
    let of = |(data, added): (Data, [f64; 6])| {
        let bytes = added.map(|added| ((8.0 + added) * MIB as f64) as i64).into();
        Reading { data, bytes }
    };
    let readings: Vec<_> = Data::COMPARED.into_iter().zip(added).map(of).collect();
    account("number", Class::Counter, SPAN, &readings, None)
}

#[test]
fn writes_of_others_are_no_saving() {
    let quiet = [0.0; 6];
    // By chance, another writer wrote less during all runs of one kind of data.
    let some = beside_a_writer([[0.7, 1.2, 0.9, 1.5, 0.6, 1.1], quiet, quiet, quiet, quiet]);
    assert!(some.is_usable());
    assert_eq!(answer(&[some], &[]), Answer::ShowsNone);
    let much = beside_a_writer([[0.7, 3.2, 0.9, 1.5, 2.6, 1.1], quiet, quiet, quiet, quiet]);
    assert!(much.unusable.as_deref().is_some_and(|why| why.contains("1.09 to 1.40")), "{much:?}");
    assert_eq!(answer(&[much], &[]), Answer::CannotTell);
}

#[test]
fn speed_alone_is_perhaps() {
    let compressible = judged_speeds([100.0, 130.0, 150.0, 100.0, 100.0]);
    let duplicates = judged_speeds([100.0, 100.0, 100.0, 100.0, 150.0]);
    for speeds in [&compressible, &duplicates] {
        assert_eq!(answer(&[], speeds), Answer::CannotTell);
        assert_eq!(answer(&[judged(FULL)], speeds), Answer::CannotTell);
        assert_eq!(answer(&[judged([8.0, 4.0, 1.0, 0.2, 8.0])], speeds), Answer::Compresses);
    }
    let words = |speeds: &[Speed]| words::verdict(&detection(&[judged(FULL)], speeds));
    assert!(words(&compressible).contains("compresses: such data"), "{}", words(&compressible));
    assert!(words(&duplicates).contains("deduplicates: such data"), "{}", words(&duplicates));
    // Faster zeroes, slower data, and a difference of 9 % are not signs of compression.
    for means in [
        [100.0, 100.0, 100.0, 900.0, 100.0],
        [100.0, 50.0, 50.0, 50.0, 50.0],
        [100.0, 109.0, 109.0, 109.0, 109.0],
    ] {
        let speeds = judged_speeds(means);
        assert_eq!(answer(&[judged(FULL)], &speeds), Answer::ShowsNone, "{means:?}");
    }
    let zeroes = words(&judged_speeds([100.0, 100.0, 100.0, 900.0, 100.0]));
    assert!(zeroes.contains("They are faster"), "{zeroes}");
}

#[test]
fn a_difference_within_the_spread_is_none() {
    // The rounds have different spreads.
    let scattered = |(round, mean): (usize, f64)| {
        let mut rates = [1.0, 1.5, 0.7, 1.2, 0.9, 1.0].map(|factor| factor * mean);
        rates.rotate_left(round);
        rates.to_vec()
    };
    let rates = [100.0, 115.0, 120.0, 110.0, 90.0].into_iter().enumerate().map(scattered);
    let rates: Vec<_> = Data::COMPARED
        .into_iter()
        .zip(rates)
        .map(|(data, rates)| Rates { data, operation: Operation::Read, rates })
        .collect();
    let speeds = speeds(&rates, 1);
    assert_eq!(speeds.len(), 4);
    assert!(speeds.iter().all(|speed| !speed.counts), "{speeds:#?}");
}

#[test]
fn zeroes_are_recognized_by_their_space() {
    let taken = |mib: f64, listed| zeroes(&[judged([8.0, 8.0, 8.0, mib, 8.0])], listed);
    assert_eq!(taken(8.0, None), Zeroes::Stored);
    assert_eq!(taken(0.25, Some(Zeroes::Fill)), Zeroes::Compressed);
    assert_eq!(taken(0.0, None), Zeroes::LeftOut);
    assert_eq!(taken(0.0, Some(Zeroes::Fill)), Zeroes::Fill);
    assert_eq!(taken(0.0, Some(Zeroes::Unmapped)), Zeroes::Unmapped);
    // Other programs write: zeroes and one run of incompressible data both seem to take 7 % less.
    let mut busy = readings([8.0, 8.0, 8.0, 7.4, 8.0]);
    busy[0].bytes[0] = (7.3 * MIB as f64) as i64;
    let busy = account("number", Class::Usage, SPAN, &busy, None);
    assert!(busy.is_usable());
    assert_eq!(zeroes(&[busy], None), Zeroes::Stored);
}

#[test]
fn sweeps_find_their_limits() {
    let least = |saved: &[f64]| {
        let steps: Vec<_> = SAVINGS
            .into_iter()
            .zip(saved)
            .map(|(percent, saved)| swept(percent, (8e6 * (1.0 - saved)) as i64))
            .collect();
        threshold("number", &steps)
    };
    let sectors = least(&[0.0, 0.0, 0.0, 0.12, 0.24, 0.49, 0.74]);
    assert_eq!(sectors.limit, Some(12.5));
    assert!(!judge::is_uneven(&sectors, true));
    assert_eq!(least(&[0.0; 7]).limit, None);
    // Differences caused by a file system's block size are not savings.
    assert_eq!(least(&[0.0, 0.01, 0.02, 0.03, 0.05, 0.5, 0.7]).limit, Some(50.0));
    assert!(judge::is_uneven(&least(&[0.0, 0.05, 0.4, 0.1, 0.2, 0.5, 0.7]), true));

    let farthest = |saved: &[f64]| {
        let distances = [0].into_iter().chain(DISTANCES_KIB);
        let steps: Vec<_> = distances
            .zip(saved)
            .map(|(kib, saved)| swept((kib << 10) as f64, (8e6 * (1.0 - saved)) as i64))
            .collect();
        reach("number", &steps)
    };
    let unit = farthest(&[0.0, 0.5, 0.5, 0.5, 0.49, 0.0, 0.0, 0.0]);
    assert_eq!(unit.limit, Some(16384.0));
    assert!(!judge::is_uneven(&unit, false));
    assert_eq!(farthest(&[0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).limit, None);
    assert!(judge::is_uneven(&farthest(&[0.0, 0.5, 0.1, 0.5, 0.5, 0.0, 0.0, 0.0]), false));
}

fn detection(accounts: &[Account], speeds: &[Speed]) -> Detection {
    Detection {
        pumice_detection: FORMAT,
        target: "target".into(),
        environment: vec![("file system".into(), "btrfs on /dev/x".into())],
        span_bytes: SPAN,
        seed: 1,
        direct: true,
        stopped: false,
        answer: answer(accounts, speeds),
        verdict: String::new(),
        accounts: accounts.to_vec(),
        speeds: speeds.to_vec(),
        zeroes: zeroes(accounts, None),
        threshold: None,
        reach: None,
        remarks: Vec::new(),
    }
}

#[test]
fn the_words_state_the_finding() {
    let mut found = detection(&[judged([8.0, 4.0, 1.0, 0.2, 8.0])], &judged_speeds(ALIKE));
    let savings = SAVINGS.map(|percent| {
        let saved = if percent < 25.0 { 0.0 } else { percent };
        swept(percent, (8e6 * (1.0 - saved / 100.0)) as i64)
    });
    found.threshold = Some(threshold("number", &savings));
    let distances = [(0.0, 800), (2048.0, 400), (4096.0, 400), (8192.0, 800)];
    found.reach = Some(reach("number", &distances.map(|(value, taken)| swept(value, taken))));
    let text = words::verdict(&found);
    for part in [
        "target compresses",
        "50 % saved: 49.9 % less (ratio 2.00)",
        "Data that can save 25 % takes less space; at 12.5 % it does not",
        "up to 4 KiB apart, but not 8 KiB apart: it compresses units of 8 KiB",
        "Zeroes take a little space",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    found.remark();
    assert!(found.remarks.iter().any(|remark| remark.contains("without --direct")));
    let document = found.document().to_text();
    for part in ["reported usage: number", "sure", "Threshold", "12.5", "Unit", "btrfs on"] {
        assert!(document.contains(part), "{part}: {document}");
    }
    let json = serde_json::to_string(&found).expect("JSON");
    let read: Detection = serde_json::from_str(&json).expect("the same");
    assert_eq!(read.accounts, found.accounts);
    assert_eq!(read.threshold, found.threshold);
}

/// Returns the saving of a kind of data in chunks of this size.
fn saved(data: Data, codec: Codec, chunk_bytes: usize) -> f64 {
    let maker = Maker::new(data, 3, 5, SPAN).expect("data");
    let mut bytes = vec![0; SPAN as usize];
    for (index, record) in bytes.chunks_mut(RECORD_BYTES as usize).enumerate() {
        maker.fill(index as u64 * RECORD_BYTES, record);
    }
    measure(&bytes, codec, chunk_bytes).percent()
}

#[test]
fn test_data_has_the_wanted_saving() {
    let chunk = 128 << 10;
    for codec in [Codec::Lz4, Codec::Zstd { level: 3 }] {
        assert!(saved(Data::Incompressible, codec, chunk) < 0.1);
        assert!(saved(Data::Duplicates, codec, chunk) < 0.1);
        assert!((saved(Data::Saving(50.0), codec, 4096) - 50.0).abs() < 1.0);
        assert!(saved(Data::Zeroes, codec, 4096) > 98.0);
    }
    assert!(saved(Data::FewValues, Codec::Lz4, chunk) < 1.0);
    for kib in DISTANCES_KIB {
        let (within, beyond) = ((kib << 11) as usize, (kib << 10) as usize);
        let saves = |chunk| {
            let base = 100.0 - saved(Data::FewValues, Codec::Zstd { level: 3 }, chunk);
            1.0 - (100.0 - saved(Data::Repeats(kib << 10), Codec::Zstd { level: 3 }, chunk)) / base
        };
        assert!(saves(within) > 0.4, "{kib} KiB apart in chunks of {within}: {}", saves(within));
        assert!(saves(beyond) < 0.05, "{kib} KiB apart in chunks of {beyond}: {}", saves(beyond));
    }
}

#[test]
fn duplicates_are_a_quarter_apart_and_runs_have_nothing_in_common() {
    let at = |run: u64, offset: u64| {
        let maker = Maker::new(Data::Duplicates, 3, run, SPAN).expect("data");
        let mut record = vec![0; RECORD_BYTES as usize];
        maker.fill(offset, &mut record);
        record
    };
    assert_eq!(at(1, 0), at(1, SPAN / 4));
    assert_eq!(at(1, RECORD_BYTES), at(1, SPAN / 2 + RECORD_BYTES));
    assert_ne!(at(1, 0), at(1, SPAN / 8));
    let (one, other) = (at(1, 0), at(2, 0));
    assert!(one.chunks(4096).zip(other.chunks(4096)).all(|(one, other)| one != other));
}

#[test]
fn a_file_is_looked_at_and_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let location = Location::Folder(folder.path().to_owned());
    let mut heard = Vec::new();
    let stop = AtomicBool::new(false);
    let found = detect(&location, settings(SPAN), &stop, &mut |what, share| {
        heard.push((what.to_owned(), share));
    });
    let found = found.expect("a detection");
    assert!(found.speeds.len() == 8 && !found.stopped && !found.verdict.is_empty());
    assert!(found.accounts.iter().all(|account| account.amounts.len() == 5));
    assert!(heard.len() >= 30 && heard.iter().all(|(_, share)| (0.0..1.0).contains(share)));
    let left = std::fs::read_dir(folder.path()).expect("the folder").count();
    assert_eq!(left, 0, "something was left");
}

#[test]
fn a_stop_ends_it_with_no_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let location = Location::Folder(folder.path().to_owned());
    let stop = AtomicBool::new(false);
    let mut runs = 0;
    let found = detect(&location, settings(SPAN), &stop, &mut |_, _| {
        runs += 1;
        stop.store(runs == 3, Ordering::Relaxed);
    });
    let found = found.expect("what was found until then");
    assert!(found.stopped && found.answer == Answer::CannotTell && runs == 3, "{found:#?}");
    assert!(found.verdict.contains("was interrupted"), "{}", found.verdict);
    let reasons = found.accounts.iter().map(|account| account.unusable.as_deref());
    assert!(reasons.into_iter().all(|reason| reason == Some("it was stopped")), "{found:#?}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0);
}

#[test]
fn existing_data_is_not_touched() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("precious");
    std::fs::write(&path, b"precious").expect("a file");
    let location = Location::File(path.clone());
    let stop = AtomicBool::new(false);
    let refused = |location: &Location, span_bytes| {
        detect(location, settings(span_bytes), &stop, &mut |_, _| {}).expect_err("a refusal").kind()
    };
    assert_eq!(refused(&location, SPAN), ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&path).expect("the file"), b"precious");
    assert_eq!(refused(&location, SPAN - RECORD_BYTES), ErrorKind::InvalidInput);
    assert_eq!(refused(&location, SPAN + 4096), ErrorKind::InvalidInput);
}
