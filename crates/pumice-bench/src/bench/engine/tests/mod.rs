//! Goal: a run follows its workload exactly, and measures all of it; targets are protected. Method:
//! real files in a temporary folder, read back and compared with the payload; a drive in this
//! process.

mod nbd;
mod trace;

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::payload::{Kind, PayloadOptions, Saving};
use crate::workload::pattern::Requests;
use crate::workload::{Ends, Operation, Pattern};
use pumice_drive::base::ErrorKind;
use pumice_drive::controller::{Spec, create};
use pumice_drive::media::file::{FileMedium, FileOptions};

const RECORD: u64 = 16 << 10;
const RECORDS: u64 = 64;

fn workload(operation: Operation) -> Workload {
    Workload {
        operation,
        record_bytes: RECORD,
        depth: 4,
        threads: 1,
        span_bytes: RECORDS * RECORD,
        shift_bytes: 0,
        pattern: Pattern::Uniform,
        reads_percent: 50,
        seconds: 0.05,
        flush: Flush::Timed,
        ends: Ends::Usual,
        mix: Vec::new(),
    }
}

fn run(workload: Workload) -> RunSpec {
    let saved = Saving::from_fraction(0.5);
    let payload = Payload::new(PayloadOptions::new(Kind::Exact(saved))).unwrap();
    RunSpec { workload, payload, stream: 10, seed: 3 }
}

fn go(location: &Location, run: &RunSpec) -> Result<Sample> {
    measure(location, Access::default(), run, &AtomicBool::new(false))
}

fn file(folder: &Path) -> Location {
    let location = Location::Folder(folder.to_owned());
    location.prepare(RECORDS * RECORD, false).unwrap();
    location
}

/// Returns the first 4 KiB units of a stream.
fn units(run: &RunSpec, stream: u64, count: u64) -> Vec<Vec<u8>> {
    let stream = run.payload.stream(stream);
    let unit = |number| {
        let mut bytes = vec![0; 4096];
        stream.fill_at(number, &mut bytes);
        bytes
    };
    (0..count).map(unit).collect()
}

#[test]
fn a_write_writes_the_payload_and_counts_it() {
    let folder = tempfile::tempdir().unwrap();
    let location = file(folder.path());
    let run = run(workload(Operation::Write));
    let sample = go(&location, &run).unwrap();
    assert_eq!((sample.operations, sample.host_bytes), (RECORDS, RECORDS * RECORD));
    assert_eq!(sample.written_bytes, sample.host_bytes);
    assert_eq!(sample.latency.count(), RECORDS);
    assert_eq!(sample.intervals.iter().map(|one| one.operations).sum::<u64>(), RECORDS);
    assert!(sample.seconds > 0.0 && sample.generation_share > 0.0);
    // The data of each record depends on the order of the tasks, so the units are compared as sets.
    let written = fs::read(location.path().unwrap()).unwrap();
    let mut found: Vec<_> = written.chunks(4096).map(<[u8]>::to_vec).collect();
    let mut wanted = units(&run, 10, RECORDS * RECORD / 4096);
    found.sort();
    wanted.sort();
    assert!(found == wanted, "the file holds something else than the payload");
}

#[test]
fn threads_share_the_span_out_and_write_different_data() {
    let folder = tempfile::tempdir().unwrap();
    let location = file(folder.path());
    let run = run(Workload { threads: 3, ..workload(Operation::Write) });
    let sample = go(&location, &run).unwrap();
    assert_eq!((sample.operations, sample.host_bytes), (RECORDS, RECORDS * RECORD));
    let written = fs::read(location.path().unwrap()).unwrap();
    let mut found: Vec<_> = written.chunks(4096).collect();
    assert_eq!(written.len() as u64, RECORDS * RECORD);
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len() as u64, RECORDS * RECORD / 4096, "something was written twice");
}

#[test]
fn reads_write_nothing_and_read_everything() {
    let folder = tempfile::tempdir().unwrap();
    let location = file(folder.path());
    go(&location, &run(workload(Operation::Write))).unwrap();
    let before = fs::read(location.path().unwrap()).unwrap();
    for operation in [Operation::Read, Operation::BackwardRead, Operation::StrideRead] {
        let sample = go(&location, &run(workload(operation))).unwrap();
        assert_eq!((sample.operations, sample.written_bytes), (RECORDS, 0), "{operation:?}");
    }
    assert!(fs::read(location.path().unwrap()).unwrap() == before);
}

#[test]
fn random_loads_last_as_long_as_asked() {
    let folder = tempfile::tempdir().unwrap();
    let location = file(folder.path());
    go(&location, &run(workload(Operation::Write))).unwrap();
    for operation in [Operation::RandomRead, Operation::RandomWrite, Operation::Mixed] {
        let sample = go(&location, &run(workload(operation))).unwrap();
        assert!(sample.seconds >= 0.04, "{operation:?}: {} s", sample.seconds);
        assert!(sample.operations > 1);
        let all = sample.operations * RECORD;
        match operation {
            Operation::RandomRead => assert_eq!(sample.written_bytes, 0),
            Operation::RandomWrite => assert_eq!(sample.written_bytes, all),
            _ => assert!((1..all).contains(&sample.written_bytes)),
        }
    }
    let length = fs::metadata(location.path().unwrap()).unwrap().len();
    assert_eq!(length, RECORDS * RECORD, "written beyond the span");
}

#[test]
fn a_copy_makes_the_second_half_like_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let location = file(folder.path());
    go(&location, &run(workload(Operation::Write))).unwrap();
    let sample = go(&location, &run(workload(Operation::Copy))).unwrap();
    assert_eq!(sample.written_bytes, RECORDS / 2 * RECORD);
    let bytes = fs::read(location.path().unwrap()).unwrap();
    let (first, second) = bytes.split_at(bytes.len() / 2);
    assert!(first == second);
}

#[test]
fn a_run_can_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let location = file(folder.path());
    go(&location, &run(workload(Operation::Write))).unwrap();
    let endless = run(Workload { seconds: 1e6, ..workload(Operation::RandomRead) });
    measure(&location, Access::default(), &endless, &AtomicBool::new(true)).unwrap();
}

#[test]
fn a_target_that_is_too_short_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let location = file(folder.path());
    let error = go(&location, &run(workload(Operation::Read))).unwrap_err();
    assert!(error.chain().contains("smaller than the span"), "{}", error.chain());
}

#[test]
fn a_drive_in_this_process_is_a_target() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drive");
    let spec = Spec {
        segment_bytes: 4 << 20,
        capacity_bytes: Some(64 << 20),
        ..Spec::new(uuid::Uuid::from_u128(7), 8 << 20)
    };
    FileMedium::create(&path, spec.geometry().unwrap().medium_bytes(), false).unwrap();
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let medium = FileMedium::open(runtime.clone(), &path, FileOptions::default()).unwrap();
    runtime.block_on(create(&medium, &spec)).unwrap();
    drop(medium);
    let location = Location::Drive(path.into());
    assert_eq!(location.prepare(9 << 20, true).unwrap_err().kind(), ErrorKind::InvalidInput);
    // The target does not contain data yet.
    location.prepare(RECORDS * RECORD, false).unwrap();
    for operation in [Operation::Write, Operation::Read, Operation::Trim, Operation::Copy] {
        let sample = go(&location, &run(workload(operation))).unwrap();
        assert!(sample.operations > 0, "{operation:?}");
        if operation == Operation::Write {
            let error = location.prepare(RECORDS * RECORD, false).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        }
    }
    let threads = run(Workload { threads: 2, ..workload(Operation::Read) });
    assert_eq!(go(&location, &threads).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_file_that_holds_something_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    fs::write(&path, b"data").unwrap();
    let location = Location::parse(path.to_str().unwrap()).unwrap();
    assert_eq!(location.prepare(4096, false).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).unwrap(), b"data");
    assert_eq!(location.prepare(1 << 60, true).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(fs::read(&path).unwrap(), b"data");
    location.prepare(4096, true).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
}

#[test]
fn long_runs_keep_their_course_in_few_intervals() {
    let mut record = Record::new(&workload(Operation::Write));
    for number in 0..10_000u64 {
        record.add(number * INTERVAL_NS_MIN / 2, number);
    }
    assert!(record.intervals.len() <= INTERVALS_MAX && record.intervals.len() >= INTERVALS_MAX / 2);
    let sums = record.intervals.iter().copied().fold(Interval::default(), sum);
    assert_eq!(sums.operations, 10_000);
    assert_eq!(sums.latency_ns_sum, 9_999 * 5_000);
    assert_eq!(sums.latency_ns_max, 9_999);
    assert!(Requests::new(&workload(Operation::Read), 0, 0).count() as u64 == RECORDS);
}

#[test]
fn buffered_operations_write_and_read_the_same() {
    use Operation::{FRead, FReread, FRewrite, FWrite};
    for record in [512, 6144, RECORD] {
        let folder = tempfile::tempdir().unwrap();
        let location = file(folder.path());
        let span_bytes = RECORDS * record;
        let buffered = |operation, threads| {
            let whole =
                Workload { record_bytes: record, depth: 1, span_bytes, ..workload(operation) };
            run(Workload { threads, ..whole })
        };
        let mut written = Vec::new();
        for (operation, threads) in [(FWrite, 1), (FRewrite, 1), (FRewrite, 3)] {
            let sample = go(&location, &buffered(operation, threads)).unwrap();
            assert_eq!((sample.operations, sample.written_bytes), (RECORDS, span_bytes));
            let bytes = fs::read(location.path().unwrap()).unwrap();
            assert_eq!(bytes.len() as u64, span_bytes);
            written.push(bytes);
        }
        assert!(written[0] == written[1] && written[1] != written[2]);
        for operation in [FRead, FReread] {
            let sample = go(&location, &buffered(operation, 1)).unwrap();
            assert_eq!((sample.operations, sample.host_bytes), (RECORDS, span_bytes));
        }
        location.empty().unwrap();
        let error = go(&location, &buffered(FRead, 1)).unwrap_err();
        assert!(error.chain().contains("smaller than the span"), "{}", error.chain());
    }
}

#[test]
fn impossible_operations_of_a_target_are_refused_before_the_run() {
    let uri = Location::parse("nbd://localhost/disk").unwrap();
    let path = std::path::PathBuf::from("data");
    let device = Location::Device(path.clone());
    let drive = Location::Drive(path.clone().into());
    let file = Location::File(path);
    let (cached, direct) = (Access { direct: false }, Access { direct: true });
    let with = |depth, threads| Workload { depth, threads, ..workload(Operation::FRewrite) };
    for (location, access, workload, word) in [
        (&uri, cached, with(1, 1), "frewrite needs a file"),
        (&device, cached, with(1, 1), "frewrite needs a file"),
        (&drive, cached, with(1, 1), "frewrite needs a file"),
        (&file, direct, with(1, 1), "frewrite uses the page cache"),
        (&file, cached, with(2, 1), "frewrite has one request in flight"),
        (&drive, cached, Workload { threads: 2, ..workload(Operation::Read) }, "one thread"),
    ] {
        let error = measure(location, access, &run(workload), &AtomicBool::new(false)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{location}");
        assert!(error.to_string().contains(word), "{error}");
    }
    check(&file, cached, &with(1, 3)).unwrap();
    check(&drive, cached, &workload(Operation::Read)).unwrap();
}
