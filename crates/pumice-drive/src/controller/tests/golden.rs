//! Goal: a drive written by format version 1 stays readable forever.
//! Method: images kept in the repository, never rewritten: both superblock slots and what was used
//! of each segment. They are opened and compared with what their history left on the disk. With
//! each codec, and with independent blocks, one of [`two_lives`], where most is found through a
//! checkpoint; and one of [`one_life`], where the log is read from its very beginning. One has
//! snapshots, tables of what was moved for them, and a bookmark.
//!
//! A new image (of a new version) is made by running the tests with `PUMICE_GOLDEN_FOLDER` set to a
//! folder, which an existing image in it ends.

use std::path::Path;

use super::payload::{noise, text};
use super::*;
use crate::base::seed::random;

const SIZE_BYTES: u64 = 1 << 20;
const SEGMENTS: u64 = 4;

/// Does what a host did, and returns what the disk then holds.
type History = fn(&World) -> Vec<u8>;

/// Every kept image of version 1: its name, codec, form of frames and history.
const IMAGES: [(&str, Codec, FrameForm, History); 5] = [
    ("v1-lz4", Codec::Lz4, FrameForm::Solid, two_lives),
    ("v1-zstd", Codec::Zstd { level: 3 }, FrameForm::Solid, two_lives),
    ("v1-log", Codec::Lz4, FrameForm::Solid, one_life),
    ("v1-blocks", Codec::Lz4, FrameForm::Blocks, two_lives),
    // The same, with tables in the map.
    ("v1-tables", Codec::Lz4, FrameForm::Blocks, two_lives),
];

/// Written, closed, opened and written again, and not closed.
fn two_lives(world: &World) -> Vec<u8> {
    let mut disk = vec![0; SIZE_BYTES as usize];
    let mut random = random(1);
    let mut write = |drive: &TestDrive, offset: u64, data: Vec<u8>| {
        world.write(drive, offset, &data).unwrap();
        disk[offset as usize..][..data.len()].copy_from_slice(&data);
    };
    let drive = world.open();
    write(&drive, 0, text(&mut random, 3 * BLOCK_BYTES));
    write(&drive, 5 * BLOCK, noise(&mut random, BLOCK_BYTES));
    write(&drive, 8 * BLOCK, text(&mut random, 16 * BLOCK_BYTES));
    write(&drive, 40 * BLOCK, vec![0xff; 4 * BLOCK_BYTES]);
    world.close(drive);
    let drive = world.open();
    write(&drive, 700, noise(&mut random, 300));
    write(&drive, 10 * BLOCK, vec![0; BLOCK_BYTES]);
    world.run(drive.trim(12 * BLOCK, 2 * BLOCK, false)).unwrap();
    world.run(drive.write_zeroes(41 * BLOCK, BLOCK, true, false)).unwrap();
    world.run(drive.flush()).unwrap();
    world.kill(drive);
    for (first, count) in [(12, 2), (41, 1)] {
        disk[first * BLOCK_BYTES..][..count * BLOCK_BYTES].fill(0);
    }
    disk
}

/// Written and not closed: there is no checkpoint, and every kind of record of the host's is read.
fn one_life(world: &World) -> Vec<u8> {
    let mut disk = vec![0; SIZE_BYTES as usize];
    let mut random = random(2);
    let drive = world.open();
    for (block, data) in [
        (0, text(&mut random, 6 * BLOCK_BYTES)),
        (20, vec![0xa7; 5 * BLOCK_BYTES]),
        (22, noise(&mut random, BLOCK_BYTES)),
    ] {
        world.write(&drive, block as u64 * BLOCK, &data).unwrap();
        disk[block * BLOCK_BYTES..][..data.len()].copy_from_slice(&data);
    }
    world.run(drive.trim(BLOCK, BLOCK, false)).unwrap();
    world.run(drive.write_zeroes(23 * BLOCK, BLOCK, true, false)).unwrap();
    world.run(drive.flush()).unwrap();
    world.kill(drive);
    for block in [1, 23] {
        disk[block * BLOCK_BYTES..][..BLOCK_BYTES].fill(0);
    }
    disk
}

fn new_world(codec: Codec, frame_form: FrameForm) -> World {
    World::new(Spec { codec, frame_form, ..small(SIZE_BYTES, SEGMENTS) })
}

/// Both superblock slots, then of every segment that was used its number, the length of its used
/// part (4 bytes each) and that part.
fn image(world: &World) -> Vec<u8> {
    let slot = |slot| world.run(world.memory.read_superblock(slot)).unwrap().to_vec();
    let mut image = [slot(0), slot(1)].concat();
    for number in 0..world.spec.geometry().unwrap().segment_count {
        let segment = world.peek(number, 0, SEGMENT_BYTES as usize);
        let Some(last) = segment.iter().rposition(|&byte| byte != 0) else { continue };
        let used = &segment[..(last + 1).next_multiple_of(4096)];
        image.extend(number.to_le_bytes());
        image.extend((used.len() as u32).to_le_bytes());
        image.extend(used);
    }
    image
}

/// Opens an image and compares every byte.
fn assert_reads(name: &str, new_world: impl Fn() -> World, history: History, image: &[u8]) {
    let expected = history(&new_world());
    let world = new_world();
    restore(&world, image);
    let report = world.check();
    assert_eq!(report.problem_count, 0, "{name}: {report:?}");
    let drive = world.open();
    assert!(world.read(&drive, 0, expected.len()).unwrap() == expected, "{name} reads otherwise");
    assert_accounting(&drive);
    world.close(drive);
}

/// Puts what an image has on the medium of a world.
fn restore(world: &World, image: &[u8]) {
    let part = |range: std::ops::Range<usize>| {
        let mut buffer = AlignedBuffer::zeroed(range.len());
        buffer.copy_from_slice(&image[range]);
        buffer
    };
    world.run(world.memory.write_superblock(0, part(0..4096))).unwrap();
    world.run(world.memory.write_superblock(1, part(4096..8192))).unwrap();
    let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap());
    let mut at = 8192;
    while at < image.len() {
        let (segment, len) = (SegmentId(word(at)), word(at + 4) as usize);
        let used = part(at + 8..at + 8 + len);
        world.run(world.memory.append(segment, 0, used.into())).unwrap();
        at += 8 + len;
    }
}

/// A world with room for snapshots.
fn roomy_world() -> World {
    World::new(small(SIZE_BYTES, 20))
}

/// Two snapshots, of which the first is a bookmark, and whose frames are in another segment than
/// their maps say; returns the disks of both and the disk.
fn moved_snapshots(world: &World) -> [Vec<u8>; 3] {
    let mut disk = vec![0; SIZE_BYTES as usize];
    let mut random = random(3);
    let drive = world.open_without_collector();
    let mut write = |offset: u64, data: Vec<u8>| {
        world.write(&drive, offset, &data).unwrap();
        disk[offset as usize..][..data.len()].copy_from_slice(&data);
        disk.clone()
    };
    let take = |name: &str, number| {
        world.run(drive.create_snapshot(super::snapshots::new(name, number))).unwrap();
    };
    write(0, text(&mut random, 24 * BLOCK_BYTES));
    let marked = write(30 * BLOCK, noise(&mut random, 2 * BLOCK_BYTES));
    take("mark", 1);
    let kept = write(2 * BLOCK, noise(&mut random, 3 * BLOCK_BYTES));
    take("kept", 2);
    write(0, text(&mut random, 8 * BLOCK_BYTES));
    assert!(drive.with_core(|core| core.leave_segment(Stream::Host)).unwrap());
    let now = write(50 * BLOCK, text(&mut random, 4 * BLOCK_BYTES));
    world.run(drive.bookmark_snapshot("mark")).unwrap();
    world.run(drive.flush()).unwrap();
    world.run(drive.empty_retained(SegmentId(0))).unwrap();
    while !drive.core().empty_segments().contains(&SegmentId(0)) {
        world.run(drive.checkpoint()).unwrap();
    }
    world.run(drive.flush()).unwrap();
    // The frames are elsewhere only.
    world.run(drive.medium().discard(SegmentId(0))).unwrap();
    assert!(drive.core().forwards().is_used(), "nothing was moved");
    world.kill(drive);
    [marked, kept, now]
}

fn assert_reads_snapshots(image: &[u8]) {
    let [marked, kept, now] = moved_snapshots(&roomy_world());
    let world = roomy_world();
    restore(&world, image);
    assert_eq!(world.check().problems, []);
    assert!(super::snapshots::whole(&world, "kept") == kept, "a snapshot reads otherwise");
    let open = |name| {
        let options = OpenOptions { bookmark: true, ..OpenOptions::default() };
        let (medium, clock) = (world.medium(), world.runtime.clone());
        world.run(Drive::open_snapshot(medium, clock, name, options)).unwrap()
    };
    let (mark, view) = (open("mark"), open("kept"));
    let found = super::snapshots::changed(&world, &mark, &view);
    let differs = |at: usize| {
        let block = at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES;
        marked[block.clone()] != kept[block]
    };
    assert!(found.iter().enumerate().all(|(at, &is_changed)| is_changed == differs(at)));
    world.run(mark.close()).unwrap();
    world.run(view.close()).unwrap();
    drop((mark, view));
    let drive = world.open();
    assert!(world.read(&drive, 0, now.len()).unwrap() == now, "the disk reads otherwise");
    assert!(drive.core().forwards().is_used(), "there is no table");
    assert_accounting(&drive);
    world.close(drive);
}

#[test]
fn an_image_with_snapshots_is_read() {
    assert_reads_snapshots(include_bytes!("golden/v1-snapshots.bin"));
}

#[test]
fn images_of_version_1_are_read() {
    let images: [&[u8]; 5] = [
        include_bytes!("golden/v1-lz4.bin"),
        include_bytes!("golden/v1-zstd.bin"),
        include_bytes!("golden/v1-log.bin"),
        include_bytes!("golden/v1-blocks.bin"),
        include_bytes!("golden/v1-tables.bin"),
    ];
    for ((name, codec, form, history), image) in IMAGES.into_iter().zip(images) {
        assert_reads(name, || new_world(codec, form), history, image);
    }
}

/// Keeps an image, if that is wanted.
fn keep(name: &str, image: &[u8]) {
    if let Some(folder) = std::env::var_os("PUMICE_GOLDEN_FOLDER") {
        let path = Path::new(&folder).join(format!("{name}.bin"));
        let file = std::fs::File::create_new(path).expect("a golden image is never rewritten");
        std::io::Write::write_all(&mut &file, image).unwrap();
    }
}

#[test]
fn a_new_image_reads_as_it_was_written() {
    let world = roomy_world();
    moved_snapshots(&world);
    let new = image(&world);
    assert_reads_snapshots(&new);
    keep("v1-snapshots", &new);
    for (name, codec, form, history) in IMAGES {
        let world = new_world(codec, form);
        history(&world);
        let image = image(&world);
        assert_reads(name, || new_world(codec, form), history, &image);
        keep(name, &image);
    }
}
