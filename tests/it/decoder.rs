//! Goal: docs/format.md is enough to read a drive: `tests/decoder.py`, which shares no code with
//! Pumice, and `pumice extract` find the same disk.
//!
//! Method: both read the golden images, and drives of each codec that `fixtures/mixed.py` wrote,
//! after clean closes and after `kill -9`; the images are compared byte for byte. The states of
//! simulated crashes are read in `pumice-torture`, beside its other tests.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rand::RngExt;
use serde_json::Value;

use crate::harness::{
    COMMAND_LIMIT, Drive, PUMICE, Talker, counter, fixture, python_with_libnbd, run, run_ok, tool,
};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// What a program made of a drive: exit code, image, and the summary as JSON.
struct Extracted {
    code: Option<i32>,
    image: Vec<u8>,
    summary: Value,
}

fn by_the_decoder(python: &Path, path: &Path, image: PathBuf) -> Extracted {
    let mut command = Command::new(python);
    command.arg(Path::new(REPOSITORY).join("tests/decoder.py")).arg(path).arg(&image);
    let finished = run(&mut command, COMMAND_LIMIT);
    assert!(matches!(finished.code, Some(0 | 1)), "{finished:#?}");
    let summary = serde_json::from_str(&finished.stdout).expect("the decoder prints JSON");
    Extracted { code: finished.code, image: fs::read(image).expect("the image"), summary }
}

fn by_pumice(path: &Path, image: PathBuf) -> Extracted {
    let mut command = Command::new(PUMICE);
    command.arg("extract").arg(path).arg(&image).args(["--force", "--json"]);
    let finished = run(&mut command, COMMAND_LIMIT);
    assert!(matches!(finished.code, Some(0 | 1)), "{finished:#?}");
    let summary = serde_json::from_str(&finished.stdout).expect("extract --json prints JSON");
    Extracted { code: finished.code, image: fs::read(image).expect("the image"), summary }
}

/// Asserts that both programs read the same disk without an error; returns the decoder's summary.
fn assert_same(python: &Path, path: &Path, what: &str) -> Value {
    let decoder = by_the_decoder(python, path, path.with_extension("decoded"));
    let ours = by_pumice(path, path.with_extension("extracted"));
    assert_eq!((decoder.code, ours.code), (Some(0), Some(0)), "{what}: {:#}", decoder.summary);
    assert_eq!(decoder.image.len(), ours.image.len(), "{what}");
    let differs = |at: &usize| decoder.image[*at] != ours.image[*at];
    let first = (0..ours.image.len()).find(differs);
    assert_eq!(first, None, "{what}: offset of the first byte that differs\n{:#}", decoder.summary);
    decoder.summary
}

/// Makes a drive file of a golden image: both superblock slots, then of each segment its number,
/// a length and that number of bytes.
fn restore(golden: &[u8], path: &Path) {
    let word = |at: usize| u32::from_le_bytes(golden[at..at + 4].try_into().unwrap());
    let (segment_bytes, segments) = (u64::from(word(88)), u64::from(word(92)));
    let data_offset = u64::from_le_bytes(golden[96..104].try_into().unwrap());
    let file = File::create(path).expect("create a drive file");
    file.set_len(data_offset + segments * segment_bytes).expect("size the drive file");
    let put = |bytes: &[u8], offset| file.write_all_at(bytes, offset).expect("fill the drive file");
    put(&golden[..4096], 0);
    put(&golden[4096..8192], 1 << 20);
    let mut at = 8192;
    while at < golden.len() {
        let (segment, len) = (u64::from(word(at)), word(at + 4) as usize);
        put(&golden[at + 8..][..len], data_offset + segment * segment_bytes);
        at += 8 + len;
    }
}

/// The checksums of the disks are those of the histories with which the drive's own golden tests
/// compare these images.
#[test]
fn golden_images_are_decoded() {
    let Some(python) = tool("python3") else { return };
    let of_two_lives = "f12e172219461f9032c595311cda87d186c7cf904a14d74081e67becd482dfb4";
    let of_one_life = "ee39231427578fe8b22cb13ad478db30bdd137b80c2d64c71266bb4e3d45f170";
    let folder = "crates/pumice-drive/src/controller/tests/golden";
    for (name, sha256) in [
        ("v1-lz4", of_two_lives),
        ("v1-zstd", of_two_lives),
        ("v1-log", of_one_life),
        ("v1-blocks", of_two_lives),
        ("v1-tables", of_two_lives),
    ] {
        let golden = Path::new(REPOSITORY).join(folder).join(name).with_extension("bin");
        let drive = Drive::absent();
        restore(&fs::read(golden).expect("the golden image"), drive.path());
        let summary = assert_same(&python, drive.path(), name);
        assert_eq!(summary["sha256"], sha256, "{name}");
    }
}

/// The payloads that `codec::tests::impossible_payloads_of_blocks_are_refused` has.
const IMPOSSIBLE_BLOCKS: &str = r"
import sys
sys.path.insert(0, sys.argv[1])
from decoder import *

def is_refused(*blocks):
    entries = b''.join(struct.pack('<HI', n | code << 13, crc32c(part)) for code, n, part in blocks)
    try:
        decode(4, entries + b''.join(part for _, _, part in blocks), len(blocks) * BLOCK)
    except Damage:
        return True

noise = bytes(range(256)) * 16
raw = (0, 4096, noise)
short = b'\x1f\0\1\0' + b'\xff' * 15 + b'\xf6\x50' + bytes(5)
long = b'\xff' + b'\xff' * 15 + b'\xda' + noise[:4058] + b'\1\0\x0e\x50' + bytes(5)
good = (1, len(short), short)
assert len(long) == 4084 and len(lz4_block(long, BLOCK)) == BLOCK
assert not is_refused(good, raw) and not is_refused(good, (1, 4084, long))
for blocks in [
    [raw, (1, 4084, long)],
    [good],
    [good] * 9,
    [],
    [good, (0, 0, b'')],
    [good, (1, 0, b'')],
    [good, (0, 1000, noise[:1000])],
    [good, (1, 4096, noise)],
    [good, good, (1, 4097, bytes(4097))],
    [good, (3, len(short), short)],
    [good, (4, len(short), short)],
]:
    assert is_refused(*blocks), blocks
";

#[test]
fn impossible_payloads_of_blocks_are_refused() {
    let Some(python) = tool("python3") else { return };
    let mut command = Command::new(python);
    run_ok(
        command.args(["-B", "-c"]).arg(IMPOSSIBLE_BLOCKS).arg(Path::new(REPOSITORY).join("tests")),
    );
}

#[test]
fn drives_with_lz4_are_decoded() {
    write_and_decode("lz4", "solid", 21);
}

#[test]
fn drives_with_zstd_are_decoded() {
    write_and_decode("zstd", "solid", 22);
}

#[test]
fn drives_without_compression_are_decoded() {
    write_and_decode("none", "solid", 23);
}

#[test]
fn drives_of_independent_blocks_are_decoded() {
    write_and_decode("lz4", "blocks", 24);
}

/// Writes a small drive several times over, with a clean close or a kill after each round.
fn write_and_decode(codec: &str, frame: &str, default_seed: u64) {
    let Some(python) = python_with_libnbd() else { return };
    let seed = env::var("PUMICE_SEED").map_or(default_seed, |text| text.parse().expect("a seed"));
    println!("PUMICE_SEED={seed}");
    let mut random = pumice_drive::base::seed::random(seed);
    // Little more than what the disk may take, so that garbage collection begins early.
    let capacity = if codec == "none" { "56M" } else { "44M" };
    let flags = ["--codec", codec, "--frame", frame, "--segment", "4M", "--capacity", capacity];
    let drive = Drive::create("24M", &flags);
    let (mut replayed, mut moved) = (0, 0);
    for (round, is_killed) in [false, true, true, false, true].into_iter().enumerate() {
        let mut flags = vec!["--checkpoint", "16M"];
        if round % 2 == 1 {
            // Garbage collection then joins frames.
            flags.extend(["--recompress", "zstd:3"]);
        }
        let server = drive.serve_with(&flags);
        let operations = if is_killed { 0 } else { 2000 };
        let mut command = Command::new(&python);
        command.arg(fixture("mixed.py")).args(["--uri", &server.uri()]);
        command.arg(format!("--seed={}", seed * 1000 + round as u64));
        command.arg(format!("--operations={operations}"));
        if is_killed {
            let mut writer = Talker::start(&mut command);
            // A line is ten operations.
            for _ in 0..random.random_range(40..80) {
                writer.next_line();
            }
            server.kill();
            writer.finish();
        } else {
            run_ok(&mut command);
            server.stop();
        }
        let what = format!("{codec}, {frame}, round {round}, killed: {is_killed}");
        let summary = assert_same(&python, drive.path(), &what);
        println!("{what}: {}", summary["replayed"]);
        replayed += counter(&summary, "batches");
        moved = counter(&drive.info(), "moved_bytes");
        let written = counter(&summary, "mapped_blocks");
        assert!(written > 0, "{what}: an empty disk shows nothing");
    }
    assert!(replayed > 8 && moved > 0, "too tame a test: {replayed} batches, {moved} bytes moved");
}

/// The payload of a frame is damaged: both programs leave out the same blocks.
#[test]
fn a_damaged_frame_is_decoded_as_unreadable() {
    let Some(python) = python_with_libnbd() else { return };
    let drive = Drive::create("24M", &["--segment", "4M"]);
    let server = drive.serve();
    let mut command = Command::new(&python);
    command.arg(fixture("mixed.py")).args(["--uri", &server.uri()]);
    run_ok(command.args(["--seed=5", "--operations=100"]));
    server.stop();
    // Pages of segment 0, most of which belong to frames.
    let file = File::options().read(true).write(true).open(drive.path()).expect("the drive");
    let mut lost = 0;
    for page in 64..256 {
        let mut bytes = [0; 4096];
        let offset = (2 << 20) + page * 4096;
        file.read_exact_at(&mut bytes, offset).expect("read the drive");
        bytes[2048] ^= 0x10;
        file.write_all_at(&bytes, offset).expect("damage the drive");
        if page % 64 != 63 {
            continue;
        }
        let decoder = by_the_decoder(&python, drive.path(), drive.beside("decoded"));
        let ours = by_pumice(drive.path(), drive.beside("extracted"));
        let ranges = decoder.summary["unreadable"].as_array().expect("a list");
        let is_lost = |block: u64| {
            let holds = |range: &Value| {
                let first = counter(range, "lba");
                (first..first + counter(range, "blocks")).contains(&block)
            };
            ranges.iter().any(holds)
        };
        // The decoder restores nothing from parity.
        let pairs = decoder.image.chunks(4096).zip(ours.image.chunks(4096));
        for (block, (decoded, extracted)) in (0..).zip(pairs) {
            assert!(decoded == extracted || is_lost(block), "block {block}: {:#}", ours.summary);
        }
        lost = counter(&ours.summary, "lost_blocks");
        let all = ranges.iter().map(|range| counter(range, "blocks")).sum::<u64>();
        assert!(lost <= all, "{:#}\n{:#}", decoder.summary, ours.summary);
    }
    assert!(lost > 0, "too tame a test: no frame was damaged");
}
