//! Goal: all bugs that the fuzzers ever found stay fixed, without running the fuzzers. Method:
//! every file of `fuzz/corpus/` goes through the entry point of its target. The encoders make the
//! seeds; each seed must be accepted, which shows that the targets get past the checksums.
//! `UPDATE_CORPUS=1` writes the seeds into the corpus.

mod protocols;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::*;
use pumice_drive::Uuid;
use pumice_drive::codec::Codec;
use pumice_drive::format::{
    ArrayHeader, ArrayLayout, ArrayMember, BATCH_HEADER_BYTES, META_PREFIX_BYTES, MemberState,
    RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, SOURCE_BYTES,
};
use pumice_scan::{Config, Reading, ScanOptions, ScanProgress, Shard, scan};

/// Limits on the files of one target and the bytes of all: a corpus here is for regressions.
const FILES_MAX: usize = 48;
const CORPUS_BYTES_MAX: u64 = 1 << 20;

fn folder(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz")).join(name)
}

/// Returns the inputs in the corpus of a target, with their file names.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let files = fs::read_dir(folder("corpus").join(target)).expect("a folder for each target");
    let mut files: Vec<_> = files.map(|file| file.expect("a directory entry").path()).collect();
    files.sort();
    let named = |path: PathBuf| (path.display().to_string(), fs::read(&path).expect("a file"));
    files.into_iter().map(named).collect()
}

#[test]
fn every_file_of_the_corpus_passes() {
    let mut bytes = 0;
    for (target, enter) in TARGETS {
        let files = corpus(target);
        assert!(files.len() <= FILES_MAX, "{target}: {} files", files.len());
        let mut taken = 0;
        for (name, input) in &files {
            let result = std::panic::catch_unwind(|| enter(input));
            taken += usize::from(result.unwrap_or_else(|_| panic!("{name} does not pass")));
            bytes += input.len() as u64;
        }
        assert!(taken > 0, "{target}: nothing is taken for good");
        assert!(taken < files.len(), "{target}: everything is taken for good");
    }
    assert!(bytes <= CORPUS_BYTES_MAX, "the corpus has {bytes} bytes");
}

#[test]
fn every_target_has_a_binary_and_a_corpus_and_nothing_else_has() {
    let manifest = fs::read_to_string(folder("Cargo.toml")).expect("the fuzzers' manifest");
    let makefile = fs::read_to_string(folder("../Makefile")).expect("the Makefile");
    let listed = makefile.lines().find_map(|line| line.strip_prefix("FUZZ_TARGETS := "));
    let listed: Vec<_> = listed.expect("its list of targets").split(' ').collect();
    let mut names: Vec<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    names.sort();
    for (kind, ending) in [("fuzz_targets", ".rs"), ("corpus", "")] {
        let entries = fs::read_dir(folder(kind)).expect("a folder of the fuzzers");
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let found = entries.map(|entry| name(entry.expect("a directory entry")));
        let mut found: Vec<_> = found.map(|name| name.replace(ending, "")).collect();
        found.sort();
        assert_eq!(found, names, "{kind}");
    }
    for name in &names {
        let path = format!("path = \"fuzz_targets/{name}.rs\"");
        assert!(manifest.contains(&path), "{name} is not in fuzz/Cargo.toml");
        let binary = fs::read_to_string(folder("fuzz_targets").join(format!("{name}.rs")));
        let call = format!("pumice_torture::fuzz::{name}(");
        assert!(listed.contains(&name.as_str()), "{name} is not in the Makefile");
        assert!(binary.expect("its source").contains(&call), "{name} fuzzes something else");
    }
}

#[test]
fn seeds_are_taken_for_good() {
    let update = std::env::var_os("UPDATE_CORPUS").is_some();
    for (target, enter) in TARGETS {
        let seeds = seeds(target);
        assert!(seeds.len() >= 2, "{target} has too few seeds");
        for (name, seed) in seeds {
            assert!(enter(&seed), "{target}: the seed {name} is refused");
            if update {
                keep(target, &format!("seed-{name}"), &seed);
            }
        }
    }
}

#[test]
fn hostile_inputs_are_not_taken_for_good() {
    let update = std::env::var_os("UPDATE_CORPUS").is_some();
    for (target, name, input) in all_hostile() {
        let (_, enter) = TARGETS.into_iter().find(|(name, _)| *name == target).expect("a target");
        assert!(!enter(&input), "{target}: {name} is taken for good");
        if update {
            keep(target, &format!("hostile-{name}"), &input);
        }
    }
}

fn all_hostile() -> impl Iterator<Item = (&'static str, &'static str, Vec<u8>)> {
    hostile()
        .into_iter()
        .chain(protocols::hostile())
        .chain(keys::hostile())
        .chain(objects::hostile())
}

/// Puts an input into the corpus.
fn keep(target: &str, name: &str, input: &[u8]) {
    let folder = folder("corpus").join(target);
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join(name), input).expect("the input's file");
}

#[test]
fn damaged_media_are_not_taken_for_good() {
    let clean = [&LOG[..], &CLEAN].concat();
    assert!(open(&clean));
    let header = SEGMENT_HEADER_BYTES as u32;
    // The segment's header, the batch's, the first record's and its payload.
    for offset in [100, header, header + 128, header + 128 + 28] {
        let mut script = clean.clone();
        script.extend([9, 0, 0xf1]);
        script.extend((offset as u16).to_le_bytes());
        script.push(1);
        assert!(!open(&script), "damage at {offset} is overlooked");
    }
}

/// Returns inputs of a target that must be accepted.
fn seeds(target: &str) -> Vec<(&'static str, Vec<u8>)> {
    match target {
        "superblock" => superblock_seeds(),
        "array" => array_seeds(),
        "key_slot" => keys::seeds(),
        "object" => objects::seeds(),
        "segment" => segment_seeds(),
        "batch" => batch_seeds(),
        "record" => record_seeds(),
        "leaf" => leaf_seeds(),
        "checkpoint" => checkpoint_seeds(),
        "open" => open_seeds(),
        "transfer" => transfer::seeds(),
        "trace" => trace_seeds(),
        "bench_results" => results_seeds(),
        "scan_partial" => partial_seeds(),
        other => protocols::seeds(other),
    }
}

/// Returns inputs for limits and checks after the checksums: target, name, bytes.
fn hostile() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    // Block 2^51 is on no disk, and its number of bytes still fits 64 bits.
    let far = [0xf6, 0, 0, 0, 0, 0, 0, 8];
    let mut endless = transfer::seeds().remove(0).1;
    endless.truncate(endless.len() - BATCH_HEADER_BYTES);
    vec![
        ("transfer", "without-an-end", endless),
        ("open", "frame-off-the-disk", [&[3], &far[..], &[7, 1, 5]].concat()),
        ("open", "fill-off-the-disk", [&[4], &far[..], &[1, 5]].concat()),
        ("open", "frame-over-a-border", vec![3, 60, 7, 1, 65]),
        ("leaf", "run-after-the-first-block", [&[0, 1][..], &[0; 15]].concat()),
        ("leaf", "two-holes", [&[0; 17][..], &[1], &[0; 15]].concat()),
        ("leaf", "page-of-impossible-entries", vec![1, 0, 0, 0, 0, 0, 0, 0, 0xc0]),
        ("checkpoint", "longer-than-it-is", vec![0, 9, 0, 0, 0, 9, 0, 0, 0, 1]),
        ("checkpoint", "range-of-nothing", vec![3; 25]),
        ("open", "unknown-encoding", vec![2, 0, 1, 3, 3, 1, 2, 3]),
        ("open", "record-beyond-the-batch", vec![3, 0, 7, 0, 65, 8, 11, 40, 6, 11, 1]),
        ("open", "records-beyond-the-body", vec![3, 0, 7, 1, 65, 8, 12, 0xff, 6, 11, 1]),
        ("open", "live-bytes-of-nothing", [&LOG[..], &[13, 3, 2, 24, 0, 12, 11]].concat()),
        ("open", "tail-beyond-the-segment", [&LOG[..], &[13, 5, 2, 84, 0xff, 12, 11]].concat()),
        ("open", "tail-off-the-drive", [&LOG[..], &[13, 5, 2, 80, 99, 12, 11]].concat()),
        (
            "open",
            "tail-not-in-the-table",
            [&LOG[..], &[13, 3, 0, 29, 0, 12, 4, 0, 1, 1, 11]].concat(),
        ),
        ("open", "last-batch-there-is", [&LOG[..], &[13, 5, 3, 16, 0xf8, 12, 11]].concat()),
        ("open", "many-pieces", [&LOG[..], &[13, 5, 2, 132, 0xff, 12, 11]].concat()),
        ("open", "leaf-of-another-frame", [&LOG[..], &[13, 0, 0, 3, 9, 12, 11]].concat()),
        ("open", "lost-batch", [&LOG[..], &[0, 1, 4, 0, 1, 1, 6, 11, 9]].concat()),
        ("trace", "offset-beyond-any-drive", b"\x01 0 0 99999999999999999999 8 1\n".to_vec()),
        ("bench_results", "other-json", b"{\"fio version\": 3, \"jobs\": [{}]}".to_vec()),
        ("scan_partial", "other-json", b"{\"pumice_scan\": 1, \"main\": 0}".to_vec()),
    ]
}

/// Three frames, one a codec, a fill and a trim, in one batch.
const LOG: [u8; 25] =
    [3, 0, 7, 1, 65, 3, 8, 3, 2, 66, 3, 16, 0, 0, 67, 4, 24, 0xf1, 0, 8, 0xff, 5, 9, 1, 1];

/// The superblock records an orderly close at batch 1.
const CLEAN: [u8; 6] = [6, 2, 1, 6, 11, 1];

/// Returns `bytes` without the zeroes at its end.
fn trimmed(bytes: &[u8]) -> Vec<u8> {
    let length = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    bytes[..length].to_vec()
}

fn superblock_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let slot = |script: &[u8]| trimmed(&image::write(script).superblocks[0]);
    vec![
        ("new", slot(&[])),
        ("clean", slot(&CLEAN)),
        ("zstd", slot(&[6, 9, 2, 6, 10, 0xf8, 6, 8, 64])),
        ("large", slot(&[6, 3, 0xf4, 0, 0, 0, 0, 4, 6, 4, 0xf3, 0, 0, 0, 0x40])),
    ]
}

fn array_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let entry = |number, state, events, replaces, [first_segment, segment_count]: [u32; 2]| {
        let (uuid, path) = (Uuid::from_u128(number), format!("/m{number}"));
        ArrayMember { uuid, state, events, first_segment, segment_count, path, replaces }
    };
    let seed = |layout, members| {
        let (array, own) = (Uuid::from_u128(9), Uuid::from_u128(1));
        trimmed(&ArrayHeader { array, own, events: 5, layout, members }.encode())
    };
    let mirror = vec![
        entry(1, MemberState::Active, 0, None, [0; 2]),
        entry(2, MemberState::Out, 4, None, [0; 2]),
        entry(3, MemberState::Rebuilding, 0, Some(Uuid::from_u128(2)), [0; 2]),
    ];
    let part = |number, from| entry(number, MemberState::Active, 0, None, [from, 7]);
    vec![
        ("mirror", seed(ArrayLayout::Mirror, mirror)),
        ("concat", seed(ArrayLayout::Concat, vec![part(1, 0), part(2, 7)])),
    ]
}

fn segment_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let header = |script: &[u8], number| {
        trimmed(&image::write(script).segments[&number][..SEGMENT_HEADER_BYTES])
    };
    vec![("first", header(&LOG, 0)), ("later", header(&[7, 0, 0xff, 7, 1, 99, 0, 2, 5, 1, 1], 2))]
}

/// Returns the batch of a script that writes one, with `mode` before it.
fn batch_of(mode: u8, script: &[u8]) -> Vec<u8> {
    let image = image::write(script);
    [&[mode], &trimmed(&image.segments[&0][SEGMENT_HEADER_BYTES..])[..]].concat()
}

fn batch_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let small = [4, 1, 2, 3, 5, 6, 7];
    vec![
        ("as-it-is", batch_of(0, &small)),
        ("put-right", batch_of(3, &small)),
        ("frames", batch_of(3, &[3, 0, 1, 1, 5, 3, 8, 3, 2, 9, 2, 1, 1, 0, 3, 1, 2, 3])),
    ]
}

/// Returns the record of a script that writes one, with `mode` before it.
fn record_of(mode: u8, script: &[u8]) -> Vec<u8> {
    record_in(mode, 0, script, 0)
}

/// Returns the record of this number in the first batch of a segment, with `mode` before it.
fn record_in(mode: u8, number: usize, script: &[u8], segment: u32) -> Vec<u8> {
    let image = image::write(script);
    let mut rest = &image.segments[&segment][SEGMENT_HEADER_BYTES + BATCH_HEADER_BYTES..];
    for _ in 0..number {
        rest = &rest[record_bytes(rest)..];
    }
    [&[mode], &rest[..record_bytes(rest)]].concat()
}

/// Bytes of the record at the beginning of `bytes`.
fn record_bytes(bytes: &[u8]) -> usize {
    let stored = u32::from_le_bytes(*bytes[4..].first_chunk().expect("a record")) as usize;
    RECORD_HEADER_BYTES + usize::from(bytes[17]) * SOURCE_BYTES + stored
}

/// Returns the content of the metadata record of this number in the first checkpoint of a script,
/// with `mode` before it.
fn metadata_of(mode: u8, number: usize, script: &[u8]) -> Vec<u8> {
    let record = record_in(mode, number, script, 1);
    let payload = &record[1 + RECORD_HEADER_BYTES..];
    let raw = u32::from_le_bytes(*payload.first_chunk().expect("a length")) as usize;
    [&[mode], &payload[META_PREFIX_BYTES..][..raw]].concat()
}

/// A frame of eight chunks; the third is written again.
const FRAME_IN_TWO: [u8; 10] = [3, 16, 7, 0x81, 1, 3, 18, 0, 1, 5];

fn leaf_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let log = [&LOG[..], &[4, 0xf1, 0, 4, 0xf1, 0, 4, 7, 12]].concat();
    vec![
        ("runs", metadata_of(0, 0, &log)),
        ("table", metadata_of(0, 0, &[&LOG[..], &FRAME_IN_TWO, &[12]].concat())),
        ("page", trimmed(&metadata_of(1, 2, &log))),
        ("one-hole", vec![0; 17]),
        ("empty-page", vec![1]),
    ]
}

fn checkpoint_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let log = [&LOG[..], &[15, 0, 1, 0, 15, 2, 4, 7, 12]].concat();
    let payload = record_in(0, 0, &log, 1);
    vec![
        ("payload", [&[0], &payload[1 + RECORD_HEADER_BYTES..]].concat()),
        ("root", metadata_of(1, 6, &log)),
        ("table", metadata_of(2, 4, &log)),
        ("dropped", metadata_of(3, 5, &log)),
    ]
}

fn record_seeds() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("fill", record_of(0, &[4, 5, 6, 7])),
        ("trim", record_of(0, &[5, 8, 9])),
        ("store", record_of(1, &[3, 0, 0, 0, 1])),
        ("lz4", record_of(0, &[3, 0, 7, 1, 1])),
        ("lz4-put-right", record_of(1, &[3, 0, 7, 1, 1])),
        ("zstd-put-right", record_of(1, &[3, 0, 7, 2, 1])),
        ("round-trip", record_of(3, &[3, 0, 0, 1, 77])),
        ("moved", record_in(1, 0, &[3, 0, 7, 1, 1, 14, 0, 7, 5, 1, 0], 1)),
        ("open", record_in(0, 1, &[4, 5, 6, 7, 0, 1], 0)),
        ("metadata", record_in(0, 0, &[3, 0, 7, 1, 1, 12], 1)),
    ]
}

fn open_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let second = [0, 1, 3, 0, 3, 1, 90, 8, 3, 1, 1];
    let other_slot = [10, 6, 1, 2, 6, 11, 1];
    // Another epoch, in which a segment is continued, and a used one is used again.
    let again = [0, 1, 4, 0, 9, 1, 1, 6, 1, 2, 0, 2, 5, 2, 3, 0, 1, 5, 4, 3, 1];
    let moved = [14, 0, 7, 5, 1, 0];
    let dropped = [4, 0, 0xf1, 0, 8, 9, 15, 1, 2, 0];
    vec![
        ("empty", Vec::new()),
        ("one-batch", LOG.to_vec()),
        ("clean", [&LOG[..], &CLEAN].concat()),
        ("two-segments", [&LOG[..], &second].concat()),
        ("two-slots", [&LOG[..], &other_slot, &second].concat()),
        ("written-to", [&LOG[..], &second, &[11]].concat()),
        ("new-and-written-to", vec![11]),
        ("later-epoch", [&LOG[..], &[6, 1, 2, 4, 3, 4, 5, 1]].concat()),
        ("used-again", [&LOG[..], &again].concat()),
        ("checkpoint", [&LOG[..], &[12]].concat()),
        ("checkpoint-and-log", [&LOG[..], &second, &[12], &LOG, &[0, 3, 3, 1, 1, 1, 7]].concat()),
        ("two-checkpoints", [&LOG[..], &[12], &LOG, &[0, 5, 3, 1, 1, 1, 7, 10, 12]].concat()),
        ("checkpoint-and-written-to", [&LOG[..], &[12], &LOG, &[11]].concat()),
        ("moved", [&LOG[..], &moved].concat()),
        ("moved-and-checkpoint", [&LOG[..], &moved, &[12, 11]].concat()),
        ("checkpoint-and-moved", [&LOG[..], &[12], &moved, &[11]].concat()),
        ("dropped", [&LOG[..], &dropped, &[12, 11]].concat()),
        ("torn-tail", [&LOG[..], &second, &[9, 1, 0xf1, 0x9c, 0x10, 1]].concat()),
        (
            "large-disk",
            [&[6, 3, 0xf4, 0, 0, 0, 0, 4, 4, 9, 0xf3, 0, 0, 0, 9, 1], &LOG[..]].concat(),
        ),
    ]
}

fn trace_seeds() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("msr", b"\x00128166372026382245,hm,1,Write,8192,4096,17\n".to_vec()),
        ("mqsim", b"\x0148513000 0 1024 16 1\n48514000 0 2048 8 0\n".to_vec()),
        (
            "blkparse",
            b"\x02  8,0    3       11     0.009507758   697  Q   W 223490 + 8 [kjournald]\n"
                .to_vec(),
        ),
        ("iolog", b"\x7ffio version 2 iolog\n/dev/sdb add\n/dev/sdb write 4096 512\n".to_vec()),
        ("bad-lines", b"\x81nonsense\n48513000 0 1024 16 1\n".to_vec()),
    ]
}

fn results_seeds() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        (
            "fio",
            include_bytes!("../../../../pumice-bench/src/bench/interop/samples/fio-plain.json")
                .into(),
        ),
        (
            "iozone",
            include_bytes!("../../../../pumice-bench/src/bench/interop/samples/iozone-auto.txt")
                .into(),
        ),
    ]
}

/// Returns partial results of scans of a file: everything, and a few draws.
fn partial_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bytes: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(folder.path().join("numbers.bin"), bytes).expect("room for a file");
    let scanned = |reading| {
        let options = ScanOptions {
            configs: vec![Config { codec: Codec::Lz4.into(), chunk_bytes: 4096 }],
            main: 0,
            error_points: 1.0,
            confidence_percent: 95.0,
            reading,
            seed: 1,
            shard: Shard::ALL,
            threads: 1,
            bytes_per_s: None,
            crosses: false,
            exports: Vec::new(),
            now_s: 1_800_000_000,
        };
        let paths = [folder.path().to_owned()];
        let scanned = scan(&paths, &options, false, &Silent, &AtomicBool::new(false));
        let partial = scanned.expect("a scan").expect("not stopped").partial;
        let name = folder.path().to_str().expect("a plain path");
        partial.to_json().replace(name, "data").into_bytes()
    };
    vec![("everything", scanned(Reading::All)), ("draws", scanned(Reading::Draws(20)))]
}

struct Silent;

impl ScanProgress for Silent {
    fn found(&self, _files: u64, _bytes: u64) {}
    fn begin(&self, _reads_draws: bool, _total: u64) {}
    fn advance(&self, _count: u64) {}
}
