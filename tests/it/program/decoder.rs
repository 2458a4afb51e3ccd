//! Goal: docs/format.md is enough to read a drive: `tests/decoder.py`, which shares no code with
//! Pumice, and `pumice extract` find the same disk.
//!
//! Method: both read the golden images, one of them a clone, and drives of each codec that
//! `fixtures/mixed.py` wrote, after clean closes and after `kill -9`; the images are compared byte
//! for byte. The states of simulated crashes are read by the tests of `pumice-torture`.

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

/// Result of a program that read a drive: exit code, image, and the summary as JSON.
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
    // Waits for the lock, which writes in flight still hold after their process was killed.
    let ours = by_pumice(path, path.with_extension("extracted"));
    let decoder = by_the_decoder(python, path, path.with_extension("decoded"));
    assert_eq!((decoder.code, ours.code), (Some(0), Some(0)), "{what}: {:#}", decoder.summary);
    assert_eq!(decoder.image.len(), ours.image.len(), "{what}");
    let differs = |at: &usize| decoder.image[*at] != ours.image[*at];
    let first = (0..ours.image.len()).find(differs);
    assert_eq!(first, None, "{what}: offset of the first byte that differs\n{:#}", decoder.summary);
    decoder.summary
}

/// Creates a drive file from a golden image: both superblock slots, then for each segment its
/// number, a length and that number of bytes.
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

/// Like [`restore`], for a member of an array, whose headers follow the superblocks.
fn restore_member(golden: &[u8], path: &Path) {
    let (slots, rest) = golden.split_at(4 * 4096);
    restore(&[&slots[..8192], rest].concat(), path);
    let file = File::options().write(true).open(path).expect("the drive file");
    for (header, offset) in slots[8192..].chunks(4096).zip([1 << 19, 3 << 19]) {
        file.write_all_at(header, offset).expect("write a header");
    }
}

/// The disks must have the checksums of the histories with which the drive's own golden tests
/// compare these images.
#[test]
fn golden_images_are_decoded() {
    let Some(python) = tool("python3") else { return };
    let of_two_lives = "f12e172219461f9032c595311cda87d186c7cf904a14d74081e67becd482dfb4";
    let of_one_life = "ee39231427578fe8b22cb13ad478db30bdd137b80c2d64c71266bb4e3d45f170";
    let folder = "crates/pumice-drive/src/controller/tests/durability/golden";
    for (name, sha256) in [
        ("v1-lz4", of_two_lives),
        ("v1-zstd", of_two_lives),
        ("v1-log", of_one_life),
        ("v1-blocks", of_two_lives),
        ("v1-tables", of_two_lives),
        ("v1-chunks", of_two_lives),
    ] {
        let golden = Path::new(REPOSITORY).join(folder).join(name).with_extension("bin");
        let drive = Drive::absent();
        restore(&fs::read(golden).expect("the golden image"), drive.path());
        let summary = assert_same(&python, drive.path(), name);
        assert_eq!(summary["sha256"], sha256, "{name}");
    }
}

/// Decodes each member of a mirror alone, one of which has more data, and both together.
#[test]
fn golden_images_of_a_mirror_are_decoded() {
    let Some(python) = tool("python3") else { return };
    let folder =
        Path::new(REPOSITORY).join("crates/pumice-drive/src/controller/tests/durability/golden");
    let place = tempfile::tempdir().unwrap();
    let path = |index: usize| place.path().join(format!("m{index}"));
    let restore_both = || {
        for index in [0, 1] {
            let name = folder.join(format!("v1-mirror-{index}.bin"));
            restore_member(&fs::read(name).expect("the golden image"), &path(index));
        }
    };
    restore_both();
    let decoded =
        [0, 1].map(|index| by_the_decoder(&python, &path(index), place.path().join("decoded")));
    assert_ne!(decoded[0].image, decoded[1].image, "what was not flushed is on one member");
    for index in [0, 1] {
        let both = by_pumice(&path(index), place.path().join("extracted"));
        assert_eq!(both.code, Some(0), "{:#}", both.summary);
        assert!(both.image == decoded[0].image, "by member {index}");
    }
}

/// Decodes a concatenation, whose members the decoder finds by their headers.
#[test]
fn a_concatenation_is_decoded() {
    let Some(python) = tool("python3") else { return };
    let drive = Drive::absent();
    let other = drive.beside("other");
    let (one, two) = (drive.path().to_str().unwrap(), other.to_str().unwrap());
    drive.ok(&["create", one, two, "--concat", "--size=32M", "--segment=4M"]);
    let server = drive.serve();
    let mut fill = Command::new("qemu-io");
    fill.args(["-f", "raw", "-c", "write -P 7 0 20M", "-c", "write -P 9 8M 1M", "-c", "flush"]);
    if tool("qemu-io").is_none() {
        return;
    }
    run_ok(fill.arg(server.uri()));
    server.kill();
    assert_same(&python, drive.path(), "by the first");
    assert_same(&python, &other, "by the second");
}

/// Decodes a clone and its origin, which is found in the same folder.
#[test]
fn golden_images_of_a_clone_are_decoded() {
    let Some(python) = tool("python3") else { return };
    let folder =
        Path::new(REPOSITORY).join("crates/pumice-drive/src/controller/tests/durability/golden");
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).with_extension("pumice");
    for name in ["v1-origin", "v1-clone"] {
        let golden = fs::read(folder.join(name).with_extension("bin")).expect("the golden image");
        restore(&golden, &path(name));
    }
    for (name, sha256) in [
        ("v1-clone", "9abdbb3ce2c5aee1aa5ef3ddb41a84a4178300637026310c3eb6cbef795aa984"),
        ("v1-origin", "c23a575c6f481f771269435de43d81fc22cb5fe2c3b580559a965a968f24fda8"),
    ] {
        let summary = assert_same(&python, &path(name), name);
        assert_eq!(summary["sha256"], sha256, "{name}");
    }
    let mut golden = Command::new(&python);
    golden.arg(Path::new(REPOSITORY).join("tests/decoder.py")).args(["--snapshot", "golden"]);
    let golden = run_ok(golden.arg(path("v1-origin"))).stdout;
    let golden: Value = serde_json::from_str(&golden).expect("the decoder prints JSON");
    let sha256 = "6ee537269773aa62cd97eb923ae26f47897e034883568c0ed41d09b99e08b10b";
    assert_eq!(golden["sha256"], sha256, "the snapshot that the clone reads from");
}

/// Decodes the encrypted image, with its key of 32 bytes of value 1.
#[test]
fn the_encrypted_golden_image_is_decoded() {
    let Some(python) = tool("python3") else { return };
    let golden = "crates/pumice-drive/src/controller/tests/durability/golden/v1-encrypted.bin";
    let drive = Drive::absent();
    restore(&fs::read(Path::new(REPOSITORY).join(golden)).expect("the image"), drive.path());
    let (key, wrong, image) = (drive.beside("key"), drive.beside("wrong"), drive.beside("image"));
    fs::write(&key, [1; 32]).expect("a key file");
    fs::write(&wrong, [2; 32]).expect("a key file");
    let decode = |key: &Path| {
        let mut command = Command::new(&python);
        command.arg(Path::new(REPOSITORY).join("tests/decoder.py")).arg("--key-file").arg(key);
        run(command.arg(drive.path()).arg(&image), COMMAND_LIMIT)
    };
    assert_eq!(decode(&wrong).code, Some(2));
    let decoded = decode(&key);
    assert_eq!(decoded.code, Some(0), "{decoded:#?}");
    let summary: Value = serde_json::from_str(&decoded.stdout).expect("the decoder prints JSON");
    let of_two_lives = "f12e172219461f9032c595311cda87d186c7cf904a14d74081e67becd482dfb4";
    assert_eq!(summary["sha256"], of_two_lives);
    let ours = drive.beside("ours");
    let mut command = Command::new(PUMICE);
    command.arg("extract").arg(drive.path()).arg(&ours).arg("--key-file").arg(&key);
    run_ok(&mut command);
    assert!(fs::read(ours).expect("ours") == fs::read(image).expect("the image"));
}

/// The payloads of `codec::tests::impossible_payloads_of_blocks_are_refused`.
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
fn drives_of_chunks_are_decoded() {
    write_and_decode("lz4", "chunks", 24);
}

/// Overwrites a small drive several times, with a clean close or a kill after each round.
fn write_and_decode(codec: &str, frame: &str, default_seed: u64) {
    let Some(python) = python_with_libnbd() else { return };
    let seed = env::var("PUMICE_SEED").map_or(default_seed, |text| text.parse().expect("a seed"));
    println!("PUMICE_SEED={seed}");
    let mut random = pumice_drive::base::seed::random(seed);
    // Little more than the disk may take, so that garbage collection begins early.
    let capacity = if codec == "none" { "56M" } else { "44M" };
    let flags = ["--codec", codec, "--frame", frame, "--segment", "4M", "--capacity", capacity];
    let drive = Drive::create("24M", &flags);
    let (mut replayed, mut echoes, mut moved) = (0, 0, 0);
    for (round, is_killed) in [false, true, true, false, true].into_iter().enumerate() {
        let mut flags = vec!["--checkpoint", "16M"];
        if round % 2 == 1 {
            // Garbage collection then compresses frames anew.
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
        echoes += counter(&summary, "echoes");
        moved = counter(&drive.info(), "moved_bytes");
        let written = counter(&summary, "mapped_blocks");
        assert!(written > 0, "{what}: an empty disk shows nothing");
    }
    let tame = replayed <= 8 || echoes == 0 || moved == 0;
    assert!(!tame, "too tame a test: {replayed} batches, {echoes} echoes, {moved} bytes moved");
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
