//! Goal: the data found in a file does not depend on its pages in the page cache. Holes, and space
//! that was allocated but never written, are not data; data that is still only in memory is.
//! Method: files with holes and preallocated space in the tests' file system, first read and then
//! dropped from the cache, whose data is known block by block.

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};

use super::extents::{data, may_have_holes};
use super::population::Extent;
use super::*;

const MIB: u64 = 1 << 20;

/// Creates a file of 8 MiB: 1 MiB of noise, a hole of 1 MiB, and 6 MiB of preallocated space with a
/// block of noise in the middle. Returns `None` if the file system cannot preallocate.
fn preallocated(path: &Path) -> Option<File> {
    let file =
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    let mut noise = vec![0; MIB as usize];
    random(1).fill_bytes(&mut noise);
    file.write_all_at(&noise, 0).unwrap();
    fallocate(&file, FallocateFlags::empty(), 2 * MIB, 6 * MIB).ok()?;
    file.write_all_at(&noise[..4096], 5 * MIB).unwrap();
    Some(file)
}

/// Returns the extents with data, in blocks.
fn expected() -> Vec<Extent> {
    vec![Extent { first: 0, blocks: 256 }, Extent { first: 1280, blocks: 1 }]
}

#[test]
fn unwritten_space_is_no_data_in_the_cache_or_out_of_it() {
    let tree = tempfile::tempdir().unwrap();
    let path = tree.path().join("disk.img");
    let Some(file) = preallocated(&path) else { return };
    let look = |when: &str| {
        let found = data(&file, 8 * MIB).unwrap();
        assert_eq!(found, Some(expected()), "{when}");
    };
    look("not yet on the disk");
    file.sync_all().unwrap();
    look("on the disk");
    fs::read(&path).unwrap();
    look("all of it in the cache");
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    look("none of it in the cache");
    // Written data that is still only in memory counts as data.
    file.write_all_at(&[7; 4096], 7 * MIB).unwrap();
    let mut all = expected();
    all.push(Extent { first: 7 * 256, blocks: 1 });
    assert_eq!(data(&file, 8 * MIB).unwrap(), Some(all));
}

#[test]
fn the_answer_is_the_same_cold_and_warm() {
    let tree = tempfile::tempdir().unwrap();
    let path = tree.path().join("disk.img");
    let Some(file) = preallocated(&path) else { return };
    file.sync_all().unwrap();
    let exact = |paths: &[&Path]| {
        let options = ScanOptions { reading: Reading::All, ..options() };
        let outcome = Outcome::of(&run(paths, &options).unwrap());
        assert_eq!((outcome.bytes, outcome.bytes_read), (257 * 4096, 257 * 4096));
        assert_eq!(outcome.passed.hole_bytes, 8 * MIB - 257 * 4096);
        outcome.configs.iter().map(|it| it.drive.stored).collect::<Vec<_>>()
    };
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    let cold = exact(&[&path]);
    fs::read(&path).unwrap();
    assert_eq!(exact(&[&path]), cold);
    // The result is the same in a folder, and if the file's size does not indicate a hole.
    fallocate(&file, FallocateFlags::empty(), MIB, MIB).unwrap();
    file.sync_all().unwrap();
    assert_eq!(exact(&[tree.path()]), cold);
    // Noise in 33 frames, with a header each, 32 of which have eight blocks and a table.
    let truth = 1.0 + (33.0 * 28.0 + 32.0 * 48.0) / (257.0 * 4096.0);
    assert!((cold[0] - truth).abs() < 1e-9, "{} {truth}", cold[0]);
}

#[test]
fn files_without_holes_are_whole() {
    let tree = tempfile::tempdir().unwrap();
    for (name, bytes) in [("large", 3 * MIB), ("odd", 2 * MIB + 5)] {
        let path = tree.path().join(name);
        fs::write(&path, vec![0; bytes as usize]).unwrap();
        assert!(may_have_holes(&fs::metadata(&path).unwrap()));
        assert_eq!(data(&File::open(&path).unwrap(), bytes).unwrap(), None, "zeroes were written");
    }
    let path = tree.path().join("hole");
    let file = File::create(&path).unwrap();
    file.set_len(5 * MIB).unwrap();
    assert_eq!(data(&File::open(&path).unwrap(), 5 * MIB).unwrap(), Some(Vec::new()));
}

#[test]
fn a_scan_leaves_the_page_cache_as_it_was() {
    let tree = tempfile::tempdir().unwrap();
    let uncached_file = |name: &str| {
        let path = tree.path().join(name);
        write(&path, 8 << 10, 0.5, 1);
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        (path, file)
    };
    let cached = |path: &Path| {
        let output = std::process::Command::new("fincore")
            .args(["--bytes", "--noheadings", "--output", "RES"])
            .arg(path)
            .output();
        let text = String::from_utf8(output.ok()?.stdout).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let (path, file) = uncached_file("unread");
    // The file system is in memory, or keeps its pages, so the effect cannot be observed.
    if cached(&path) != Some(0) {
        return;
    }
    // When all data is read, the kernel keeps some of the data that several threads have read
    // ahead.
    for (reading, most) in [(Reading::Draws(600), MIB), (Reading::All, 16 * MIB)] {
        run(&[&path], &ScanOptions { reading, ..options() }).unwrap();
        assert!(cached(&path).unwrap() < most, "{reading:?}: {:?}", cached(&path));
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    }
    // Another file is used, because the kernel might drop a page of the first one belatedly.
    let (path, _file) = uncached_file("read");
    fs::read(&path).unwrap();
    run(&[&path], &ScanOptions { reading: Reading::Draws(600), ..options() }).unwrap();
    assert_eq!(cached(&path), Some(32 * MIB), "what others have read stays");
}
