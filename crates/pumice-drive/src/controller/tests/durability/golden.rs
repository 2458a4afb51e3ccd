//! Goal: a drive written by format version 1 stays readable forever. Method: images in the
//! repository, never rewritten, that contain both superblock slots and the used part of each
//! segment. They are opened and compared with the content that their history left on the disk. With
//! each codec, and with chunks, there is one image of [`two_lives`], where most data is
//! found through a checkpoint, and one of [`one_life`], where the log is read from its very
//! beginning. One image has snapshots, tables of frames moved for them, and a bookmark; another one
//! has shrunk since they were taken; a pair consists of a drive with a clone of its snapshot, and
//! that clone; and one is encrypted, and opens with a key of 32 bytes of value 1.
//!
//! To make a new image (of a new version), run the tests with `PUMICE_GOLDEN_FOLDER` set to a
//! folder. An existing image in it stops the run.

use std::path::Path;

use super::*;
use crate::base::seed::random;
use crate::controller::tests::payload::{noise, text};
use crate::format::{Origin, RegisteredClone};

const SIZE_BYTES: u64 = 1 << 20;
const SEGMENTS: u64 = 4;

/// Repeats the actions of a host, and returns the content of the disk.
type History = fn(&World) -> Vec<u8>;

/// Every stored image of version 1: its name, codec, form of frames and history.
const IMAGES: [(&str, Codec, FrameForm, History); 6] = [
    ("v1-lz4", Codec::Lz4, FrameForm::Solid, two_lives),
    ("v1-zstd", Codec::Zstd { level: 3 }, FrameForm::Solid, two_lives),
    ("v1-log", Codec::Lz4, FrameForm::Solid, one_life),
    ("v1-blocks", Codec::Lz4, FrameForm::Chunks, two_lives),
    // The same, with tables in the map.
    ("v1-tables", Codec::Lz4, FrameForm::Chunks, two_lives),
    // The same, with chunks of several blocks.
    ("v1-chunks", Codec::Lz4, FrameForm::Chunks, two_lives),
];

/// Writes, closes, opens and writes again, without closing.
fn two_lives(world: &World) -> Vec<u8> {
    let mut disk = vec![0; SIZE_BYTES as usize];
    let mut random = random(1);
    let mut write = |drive: &Drive, offset: u64, data: Vec<u8>| {
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
    world.run(drive.trim(12 * BLOCK, 2 * BLOCK)).unwrap();
    world.run(drive.write_zeroes(41 * BLOCK, BLOCK, Allocation::Keep)).unwrap();
    world.run(drive.flush()).unwrap();
    world.kill(drive);
    for (first, count) in [(12, 2), (41, 1)] {
        disk[first * BLOCK_BYTES..][..count * BLOCK_BYTES].fill(0);
    }
    disk
}

/// Writes without closing, so there is no checkpoint, and every kind of record that a host causes
/// is read.
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
    world.run(drive.trim(BLOCK, BLOCK)).unwrap();
    world.run(drive.write_zeroes(23 * BLOCK, BLOCK, Allocation::Keep)).unwrap();
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

/// Returns both superblock slots, then for every used segment its number, the length of its used
/// part (4 bytes each) and that part.
fn image(world: &World) -> Vec<u8> {
    image_of(world, world.spec.geometry().unwrap().segment_count)
}

/// Returns the same for a drive that has `segment_count` segments now.
fn image_of(world: &World, segment_count: u32) -> Vec<u8> {
    let slot = |slot| world.run(world.memory.read_superblock(slot)).unwrap().to_vec();
    let mut image = [slot(0), slot(1)].concat();
    for number in 0..segment_count {
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

/// Writes the content of an image to the medium of a world.
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

/// Returns a world with space for snapshots.
fn roomy_world() -> World {
    World::new(small(SIZE_BYTES, 20))
}

/// Makes two snapshots whose frames are in a segment other than the one in their maps; the first is
/// a bookmark. Returns the disks of both, and the current disk.
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
        world.run(drive.create_snapshot(snapshots::new(name, number))).unwrap();
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
    // The frames exist only in their new locations.
    world.run(drive.layers().discard(SegmentId(0))).unwrap();
    assert!(drive.core().forwards().is_used(), "nothing was moved");
    world.kill(drive);
    [marked, kept, now]
}

/// Segments of the drive that has shrunk.
const FEWER: u32 = 14;

/// Makes snapshots like [`moved_snapshots`], but their data and maps in the last segments have
/// moved because the capacity shrank.
fn shrunk_snapshots(world: &World) -> [Vec<u8>; 3] {
    let mut disk = vec![0; SIZE_BYTES as usize];
    let mut random = random(4);
    let drive = world.open();
    let mut write = |offset: u64, data: Vec<u8>| {
        world.write(&drive, offset, &data).unwrap();
        disk[offset as usize..][..data.len()].copy_from_slice(&data);
        disk.clone()
    };
    let take = |name: &str, number| {
        world.run(drive.create_snapshot(snapshots::new(name, number))).unwrap();
    };
    write(0, text(&mut random, 4 * BLOCK_BYTES));
    // The log continues beyond the remaining segments.
    let taken = drive.with_core(|core| {
        let mut taken = Vec::new();
        while taken.last() < Some(&SegmentId(FEWER - 1)) {
            taken.push(core.space_mut().allocate(Stream::Moved, 1).unwrap());
        }
        taken
    });
    assert!(drive.with_core(|core| core.leave_segment(Stream::Host)).unwrap());
    let marked = write(8 * BLOCK, text(&mut random, 2 * BLOCK_BYTES));
    take("mark", 1);
    let kept = write(2 * BLOCK, noise(&mut random, BLOCK_BYTES));
    take("kept", 2);
    let now = write(0, text(&mut random, 3 * BLOCK_BYTES));
    world.run(drive.bookmark_snapshot("mark")).unwrap();
    drive.with_core(|core| {
        for segment in taken {
            core.space_mut().seal(segment, 0);
            core.space_mut().free(segment);
        }
    });
    let capacity_bytes = Some(u64::from(FEWER) * u64::from(SEGMENT_BYTES));
    world.run(drive.resize(Resize { size_bytes: None, capacity_bytes })).unwrap();
    world.run(drive.flush()).unwrap();
    for is_meta in [false, true] {
        let core = drive.core();
        let mut copies = core.forwards().copies();
        assert!(copies.any(|copied| copied.is_meta == is_meta), "nothing was moved");
    }
    world.kill(drive);
    [marked, kept, now]
}

fn assert_reads_shrunk(image: &[u8]) {
    let disks = shrunk_snapshots(&roomy_world());
    let others = u64::from(FEWER) - OTHER_SEGMENTS;
    assert_reads_snapshots(image, disks, &World::new(small(SIZE_BYTES, others)));
}

fn assert_reads_snapshots(image: &[u8], disks: [Vec<u8>; 3], world: &World) {
    let [marked, kept, now] = disks;
    restore(world, image);
    assert_eq!(world.check().problems, []);
    assert!(snapshots::whole(world, "kept") == kept, "a snapshot reads otherwise");
    let open = |name| {
        let options = OpenOptions { incomplete: true, ..OpenOptions::default() };
        let (medium, clock) = (world.medium(), world.runtime.clone());
        world.run(Drive::open_snapshot(medium, clock.clock(), name, options)).unwrap()
    };
    let (mark, view) = (open("mark"), open("kept"));
    let found = snapshots::changed(world, &mark, &view);
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
    let disks = moved_snapshots(&roomy_world());
    assert_reads_snapshots(include_bytes!("golden/v1-snapshots.bin"), disks, &roomy_world());
}

#[test]
fn an_image_that_has_shrunk_with_snapshots_is_read() {
    assert_reads_shrunk(include_bytes!("golden/v1-shrunk.bin"));
}

#[test]
fn images_of_version_1_are_read() {
    let images: [&[u8]; 6] = [
        include_bytes!("golden/v1-lz4.bin"),
        include_bytes!("golden/v1-zstd.bin"),
        include_bytes!("golden/v1-log.bin"),
        include_bytes!("golden/v1-blocks.bin"),
        include_bytes!("golden/v1-tables.bin"),
        include_bytes!("golden/v1-chunks.bin"),
    ];
    for ((name, codec, form, history), image) in IMAGES.into_iter().zip(images) {
        assert_reads(name, || new_world(codec, form), history, image);
    }
}

/// Returns a world for the drive from which a clone reads.
fn template_world() -> World {
    World::new(small(SIZE_BYTES, 12))
}

/// Bytes of the clone, whose disk is longer than its origin's.
const CLONE_BYTES: u64 = SIZE_BYTES + 16 * BLOCK;

/// Makes a drive with a snapshot and a listed clone of it, written to since. Returns the origin of
/// the clone, the earlier disk and the present one.
fn template(world: &World) -> (Origin, [Vec<u8>; 2]) {
    let mut disk = vec![0; SIZE_BYTES as usize];
    let mut random = random(4);
    let drive = world.open_without_collector();
    let mut write = |offset: u64, data: Vec<u8>| {
        world.write(&drive, offset, &data).unwrap();
        disk[offset as usize..][..data.len()].copy_from_slice(&data);
        disk.clone()
    };
    write(0, text(&mut random, 6 * BLOCK_BYTES));
    write(20 * BLOCK, vec![0xa7; 5 * BLOCK_BYTES]);
    let golden = write(22 * BLOCK, text(&mut random, 2 * BLOCK_BYTES));
    let new = snapshots::new("golden", 1);
    let taken = world.run(drive.create_snapshot(new)).unwrap();
    let drive_of_clone = uuid::Uuid::from_u128(0xc10e);
    let path = "/vm/v1-clone.pumice".to_owned();
    let clone = RegisteredClone { drive: drive_of_clone, path, created_seconds: 7 };
    world.run(drive.register_clone("golden", clone)).unwrap();
    let now = write(2 * BLOCK, text(&mut random, 2 * BLOCK_BYTES));
    world.run(drive.flush()).unwrap();
    let origin = Origin {
        drive: drive.uuid(),
        snapshot: taken.guid,
        watermark: crate::base::SeqNo(taken.sequence),
        blocks: SIZE_BYTES / BLOCK,
        path: "/vm/v1-origin.pumice".into(),
    };
    world.kill(drive);
    (origin, [golden, now])
}

fn clone_world(origin: Origin) -> World {
    let uuid = uuid::Uuid::from_u128(0xc10e);
    World::new(Spec { uuid, origin: Some(origin), ..small(CLONE_BYTES, SEGMENTS) })
}

/// Opens a clone and its origin.
fn open_clone(world: &World, template: &World) -> Rc<Drive> {
    let drive = world.open();
    let wanted = drive.origin().expect("it is a clone");
    let clock = world.runtime.clone();
    let count = Count::new(template.memory.clone());
    let medium = Rc::new(Fault::new(count, clock.clone(), 0, FaultPlan::default()));
    let (clone, options) = (drive.uuid(), OpenOptions::default());
    let opening = Drive::open_origin(medium, clock.clock(), clone, &wanted, options);
    drive.set_origin(world.run(opening).unwrap()).unwrap();
    drive
}

/// Makes a clone with part of a block written over the origin's, zeroes over blocks of the origin,
/// and blocks beyond its end. Returns the disk.
fn clone_of(world: &World, template: &World, golden: &[u8]) -> Vec<u8> {
    let mut disk = golden.to_vec();
    disk.resize(CLONE_BYTES as usize, 0);
    let mut random = random(5);
    let drive = open_clone(world, template);
    for (offset, data) in [
        (700, noise(&mut random, 300)),
        (21 * BLOCK, text(&mut random, BLOCK_BYTES)),
        (SIZE_BYTES, vec![0x11; BLOCK_BYTES]),
    ] {
        world.write(&drive, offset, &data).unwrap();
        disk[offset as usize..][..data.len()].copy_from_slice(&data);
    }
    world.run(drive.trim(4 * BLOCK, BLOCK)).unwrap();
    disk[4 * BLOCK_BYTES..5 * BLOCK_BYTES].fill(0);
    world.run(drive.flush()).unwrap();
    world.kill(drive);
    disk
}

fn assert_reads_clone(origin_image: &[u8], clone_image: &[u8]) {
    let written = template_world();
    let (origin, [golden, now]) = template(&written);
    let disk = clone_of(&clone_world(origin.clone()), &written, &golden);
    let (template, clone) = (template_world(), clone_world(origin));
    restore(&template, origin_image);
    restore(&clone, clone_image);
    assert_eq!((template.check().problems, clone.check().problems), (vec![], vec![]));
    let drive = open_clone(&clone, &template);
    assert!(clone.read(&drive, 0, disk.len()).unwrap() == disk, "the clone reads otherwise");
    clone.close(drive);
    let drive = template.open();
    assert!(template.read(&drive, 0, now.len()).unwrap() == now, "the disk reads otherwise");
    let refused = template.run(drive.delete_snapshot("golden")).unwrap_err();
    assert!(refused.to_string().contains("/vm/v1-clone.pumice"), "{refused}");
    template.close(drive);
}

#[test]
fn images_of_a_clone_and_its_origin_are_read() {
    let origin = include_bytes!("golden/v1-origin.bin");
    assert_reads_clone(origin, include_bytes!("golden/v1-clone.bin"));
}

/// An image is opened as by a user: with the key, and no other knowledge of the drive.
#[test]
fn an_encrypted_image_is_read() {
    let image = include_bytes!("golden/v1-encrypted.bin");
    let expected = two_lives(&new_world(Codec::Lz4, FrameForm::Solid));
    let world = new_world(Codec::Lz4, FrameForm::Solid);
    restore(&world, image);
    let locked = world.run(Locked::on(&world.memory)).unwrap().unwrap();
    let cipher = locked.unlock(&encryption::secret(1), Randomness::seeded(5)).unwrap();
    let world = world.with_cipher(cipher);
    assert_eq!(world.check().problems, []);
    let drive = world.open();
    assert!(world.read(&drive, 0, expected.len()).unwrap() == expected, "it reads otherwise");
    assert_accounting(&drive);
    world.close(drive);
}

/// Stores an image, if requested.
pub(crate) fn keep(name: &str, image: &[u8]) {
    if let Some(folder) = std::env::var_os("PUMICE_GOLDEN_FOLDER") {
        let path = Path::new(&folder).join(format!("{name}.bin"));
        let file = std::fs::File::create_new(path).expect("a golden image is never rewritten");
        std::io::Write::write_all(&mut &file, image).unwrap();
    }
}

#[test]
fn a_new_image_reads_as_it_was_written() {
    let world = roomy_world();
    let disks = moved_snapshots(&world);
    let new = image(&world);
    assert_reads_snapshots(&new, disks, &roomy_world());
    keep("v1-snapshots", &new);
    let world = roomy_world();
    shrunk_snapshots(&world);
    let new = image_of(&world, FEWER);
    assert_reads_shrunk(&new);
    keep("v1-shrunk", &new);
    let written = template_world();
    let (origin, [golden, _]) = template(&written);
    let clone = clone_world(origin);
    clone_of(&clone, &written, &golden);
    let [origin, clone] = [image(&written), image(&clone)];
    assert_reads_clone(&origin, &clone);
    keep("v1-origin", &origin);
    keep("v1-clone", &clone);
    for (name, codec, form, history) in IMAGES {
        let world = new_world(codec, form);
        history(&world);
        let image = image(&world);
        assert_reads(name, || new_world(codec, form), history, &image);
        keep(name, &image);
    }
    let spec = Spec { codec: Codec::Lz4, ..small(SIZE_BYTES, SEGMENTS) };
    let world = World::encrypted(spec);
    two_lives(&world);
    keep("v1-encrypted", &image(&world));
}
