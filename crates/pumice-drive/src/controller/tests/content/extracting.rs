//! Goal: the data extracted from a drive is its entire disk; damaged parts are reported, omitted,
//! and affect nothing else; the medium is unchanged. Method: the disk is assembled from the parts
//! and compared with the written data.

use super::*;
use crate::base::seed::random;
use crate::format::RECORD_HEADER_BYTES;

/// A disk and the blocks that were lost, as extracted.
struct Disk {
    bytes: Vec<u8>,
    lost: Vec<(u64, u64)>,
    mapped: u64,
}

/// Extracts a drive and checks that parts arrive in order.
fn extract(world: &World, drive: &Drive) -> Disk {
    let mut disk = Disk { bytes: vec![0; drive.size_bytes() as usize], lost: vec![], mapped: 0 };
    let mut extract = Extract::new(drive);
    let mut end = 0;
    while let Some(part) = world.run(extract.next()) {
        let range = match part {
            Extracted::Data { offset, bytes } => {
                disk.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
                disk.mapped += bytes.len() as u64;
                offset..offset + bytes.len() as u64
            }
            Extracted::Fill { offset, len, byte } => {
                disk.bytes[offset as usize..][..len as usize].fill(byte);
                disk.mapped += if byte == 0 { 0 } else { len };
                offset..offset + len
            }
            Extracted::Lost(problem) => {
                let (lba, count) = (problem.lba.unwrap(), problem.lba_count.unwrap());
                disk.lost.push((lba, count));
                lba * BLOCK..(lba + count) * BLOCK
            }
        };
        assert!(end <= range.start && range.start < range.end && range.end <= drive.size_bytes());
        end = range.end;
    }
    disk
}

fn read_only(world: &World) -> Rc<Drive> {
    world.try_open(OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap()
}

#[test]
fn a_killed_drive_is_extracted_whole_and_left_as_it_is() {
    // The disk ends within a leaf.
    let size = (12 << 20) + 5 * BLOCK;
    let world = World::new(small(size, 12));
    let drive = world.open();
    let mut plain = vec![0; size as usize];
    let mut random = random(7);
    for (offset, len) in [(100, 3 << 20), (5 << 20, 50_000), (6 << 20, 2 << 20), (4096, 9000)] {
        let data = payload::any(&mut random, len);
        world.write(&drive, offset, &data).unwrap();
        plain[offset as usize..][..len].copy_from_slice(&data);
    }
    world.write(&drive, size - 20_000, &[0xee; 20_000]).unwrap();
    plain[size as usize - 20_000..].fill(0xee);
    world.run(drive.trim(1 << 20, 1 << 20)).unwrap();
    plain[1 << 20..2 << 20].fill(0);
    world.run(drive.write_zeroes_durable(6 << 20, 4096, Allocation::Keep)).unwrap();
    plain[6 << 20..][..4096].fill(0);
    world.kill(drive);
    let before = world.medium_checksum();
    let drive = read_only(&world);
    let disk = extract(&world, &drive);
    assert_eq!(disk.lost, []);
    assert!(disk.bytes == plain);
    assert_eq!(disk.mapped, drive.info().mapped_bytes, "holes were extracted, too");
    world.kill(drive);
    assert_eq!(world.medium_checksum(), before);
}

#[test]
fn a_damaged_frame_is_lost_and_nothing_else() {
    let (world, data) = damage::written();
    let (segment, offset) = damage::record_of(&world, 50);
    world.flip_for_good(segment, offset + RECORD_HEADER_BYTES as u32 + 9);
    let drive = read_only(&world);
    let disk = extract(&world, &drive);
    assert_eq!(disk.lost, [(48, 8)]);
    let mut expected = data;
    expected[48 * BLOCK_BYTES..56 * BLOCK_BYTES].fill(0);
    assert!(disk.bytes[..expected.len()] == expected);
    world.kill(drive);
}

/// A leaf of the map is read before its frames, so damage to it affects 4 MiB of the disk.
#[test]
fn a_damaged_leaf_takes_its_blocks_and_no_others() {
    let size = 12u64 << 20;
    let world = World::new(small(size, 12));
    let drive = world.open();
    let data = payload::noise(&mut random(1), size as usize);
    for (at, part) in data.chunks(1 << 20).enumerate() {
        world.write(&drive, (at as u64) << 20, part).unwrap();
    }
    world.close(drive);
    let drive = read_only(&world);
    let crate::format::DirectoryEntry::Leaf(place) = drive.core().map().entry(1) else {
        panic!("the leaf is not on the medium")
    };
    parity::ruin(&world, place.segment, place.offset);
    let disk = extract(&world, &drive);
    assert_eq!(disk.lost, [(1024, 1024)]);
    assert!(disk.bytes[..4 << 20] == data[..4 << 20]);
    assert!(disk.bytes[8 << 20..] == data[8 << 20..]);
    world.kill(drive);
}
