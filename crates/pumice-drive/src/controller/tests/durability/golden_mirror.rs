//! Goal: a mirror written by format version 1 stays readable forever, from both members and from
//! either one. Method: as in `golden`; an image has the headers of the array after the superblocks.
//! Member 1 lacks the end of the log, because power was lost before its part of the last flush was
//! done.

use super::golden::keep;
use super::*;
use crate::base::seed::random;
use crate::controller::tests::payload::{noise, text};
use crate::format::ArrayLayout;
use crate::media::SLOTS;
use crate::media::array::{Array, Assembly, NewMember};

const DISK_BYTES: usize = 256 << 10;

fn spec() -> Spec {
    Spec { codec: Codec::Lz4, ..small(DISK_BYTES as u64, 4) }
}

fn blank() -> MemMedium {
    let geometry = spec().geometry().unwrap();
    let medium = MemMedium::new(geometry.medium_bytes());
    medium.set_geometry(geometry).unwrap();
    medium
}

fn open(runtime: &Runtime, members: &[(usize, &MemMedium)], options: OpenOptions) -> Rc<Drive> {
    let members = members.iter().map(|(index, medium)| ((*medium).clone(), format!("/m{index}")));
    let assembly = Assembly::default().with_degraded(true).with_read_only(options.read_only);
    runtime.block_on(async {
        let array = Array::assemble(members.collect(), assembly).await.unwrap();
        Drive::open(Rc::new(array), runtime.clock(), options).await.unwrap()
    })
}

/// Writes a mirror. Returns its members, and the content of the disk as read from each of them
/// alone.
fn written() -> ([MemMedium; 2], [Vec<u8>; 2]) {
    let runtime = Runtime::simulated();
    let members = [blank(), blank()];
    let named = [0, 1].map(|index: usize| {
        let uuid = uuid::Uuid::from_u128(index as u128 + 1);
        let path = format!("/m{index}");
        (members[index].clone(), NewMember { uuid, path, segment_count: 0 })
    });
    runtime.block_on(async {
        let uuid = uuid::Uuid::from_u128(9);
        let array = Array::create(uuid, ArrayLayout::Mirror, named.into()).await.unwrap();
        create(&array, &spec()).await.unwrap();
    });
    let drive = open(&runtime, &[(0, &members[0]), (1, &members[1])], OpenOptions::default());
    let mut disk = vec![0; DISK_BYTES];
    let mut random = random(25);
    let mut write = |block: usize, data: Vec<u8>| {
        runtime.block_on(drive.write((block * BLOCK_BYTES) as u64, &data)).unwrap();
        disk[block * BLOCK_BYTES..][..data.len()].copy_from_slice(&data);
    };
    write(0, text(&mut random, 6 * BLOCK_BYTES));
    write(20, vec![0xa7; 5 * BLOCK_BYTES]);
    write(22, noise(&mut random, BLOCK_BYTES));
    runtime.block_on(drive.flush()).unwrap();
    let flushed = disk.clone();
    let before = members[1].deep_copy();
    runtime.block_on(drive.write(40 * BLOCK, &[0x3c; BLOCK_BYTES])).unwrap();
    runtime.block_on(drive.flush()).unwrap();
    disk[40 * BLOCK_BYTES..][..BLOCK_BYTES].fill(0x3c);
    runtime.drop_tasks();
    ([members[0].clone(), before], [disk, flushed])
}

fn image(medium: &MemMedium) -> Vec<u8> {
    let runtime = Runtime::simulated();
    let slot = |slot| runtime.block_on(medium.read_superblock(slot)).unwrap().to_vec();
    let mut image: Vec<u8> = (0..SLOTS).flat_map(slot).collect();
    for number in 0..spec().geometry().unwrap().segment_count {
        let buffer = AlignedBuffer::zeroed(SEGMENT_BYTES as usize);
        let (segment, read) = runtime.block_on(medium.read(SegmentId(number), 0, buffer));
        read.unwrap();
        let Some(last) = segment.iter().rposition(|&byte| byte != 0) else { continue };
        let used = &segment[..(last + 1).next_multiple_of(4096)];
        image.extend(number.to_le_bytes());
        image.extend((used.len() as u32).to_le_bytes());
        image.extend(used);
    }
    image
}

fn restored(image: &[u8]) -> MemMedium {
    let (runtime, medium) = (Runtime::simulated(), blank());
    let buffer = |bytes: &[u8]| {
        let mut buffer = AlignedBuffer::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    };
    let (slots, mut rest) = image.split_at(SLOTS as usize * 4096);
    runtime.block_on(async {
        for (slot, bytes) in (0..).zip(slots.chunks(4096)) {
            medium.write_superblock(slot, buffer(bytes)).await.unwrap();
        }
        while let Some((head, later)) = rest.split_at_checked(8) {
            let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
            let (used, later) = later.split_at(word(4) as usize);
            medium.append(SegmentId(word(0)), 0, buffer(used).into()).await.unwrap();
            rest = later;
        }
    });
    medium
}

fn assert_read(images: &[Vec<u8>; 2], disks: &[Vec<u8>; 2]) {
    let both: &[usize] = &[0, 1];
    for (present, expected) in [(both, 0), (&[1, 0], 0), (&[0], 0), (&[1], 1)] {
        for read_only in [true, false] {
            let runtime = Runtime::simulated();
            let members = images.each_ref().map(|image| restored(image));
            let present: Vec<_> = present.iter().map(|&index| (index, &members[index])).collect();
            let options = OpenOptions { read_only, ..OpenOptions::default() };
            let drive = open(&runtime, &present, options);
            let mut found = vec![0xee; DISK_BYTES];
            runtime.block_on(drive.read(0, &mut found)).unwrap();
            assert!(found == disks[expected], "{} members, {read_only}", present.len());
            runtime.block_on(drive.close()).unwrap();
        }
    }
}

#[test]
fn a_mirror_of_version_1_is_read() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/controller/tests/durability/golden/");
    let image = |name| std::fs::read(format!("{folder}{name}.bin")).expect("a golden image");
    assert_read(&["v1-mirror-0", "v1-mirror-1"].map(image), &written().1);
}

#[test]
fn a_new_mirror_is_read_and_kept() {
    let (members, disks) = written();
    let images = members.each_ref().map(image);
    assert_read(&images, &disks);
    for (name, image) in ["v1-mirror-0", "v1-mirror-1"].into_iter().zip(&images) {
        keep(name, image);
    }
}
