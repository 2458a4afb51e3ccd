//! Fuzz target for a whole medium: `check`, opening read-only and for writing, reading, writing,
//! and opening again.
//!
//! Damage is refused or reported, never accepted silently. A medium without a problem according to
//! `check` opens and reads without an error, and flushed data is present after the next opening. A
//! drive that opens despite a problem may also be written to.

use std::rc::Rc;

use super::image::{self, Image};
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::{AlignedBuffer, ErrorKind, Result, SegmentId};
use pumice_drive::controller::{CheckReport, Depth, Drive, OpenOptions, check};
use pumice_drive::format::{SUPERBLOCK_BYTES, Superblock};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::media::{Geometry, Medium};
use pumice_drive::runtime::Runtime;

/// Size of the medium: space for a few segments of the smallest size. A superblock that states more
/// is refused.
const MEDIUM_BYTES: u64 = 52 << 20;

/// Bytes read at the beginning of the disk.
const READ_BYTES_MAX: u64 = 256 << 10;

/// Offset of the write: unaligned, and one block and a half long.
const WRITE_OFFSET: u64 = 2 * BLOCK_BYTES as u64 + 100;
const WRITE_BYTES: usize = BLOCK_BYTES * 3 / 2;

/// Opens the medium that the input describes in the language of `image`. Accepted if it has no
/// problem.
pub fn open(input: &[u8]) -> bool {
    let runtime = Runtime::simulated();
    let is_whole = open_on(&runtime, input);
    // They keep the runtime alive.
    runtime.drop_tasks();
    is_whole
}

fn open_on(runtime: &Runtime, input: &[u8]) -> bool {
    let image = image::write(input);
    let Some(medium) = runtime.block_on(medium(&image)) else { return false };
    let report = runtime.block_on(check(&medium, Depth::Full, &mut |_| ()));
    let opened = open_drive(runtime, &medium, true);
    match (&report, &opened) {
        (Err(checked), Ok(_)) => panic!("opens, although check reports: {}", checked.chain()),
        (Ok(CheckReport { problem_count: 0, .. }), Err(error)) => {
            panic!("check reports no problem, but opening fails: {}", error.chain())
        }
        _ => {}
    }
    let Ok(drive) = opened else { return false };
    let is_whole = report.is_ok_and(|report| report.problem_count == 0);
    let before = read(runtime, &drive, is_whole);
    drop(drive);
    runtime.drop_tasks();
    match image.is_written_to {
        true if is_whole => write(runtime, &medium, before),
        true => write_to_wreck(runtime, &medium),
        false => {}
    }
    is_whole
}

/// Returns a medium with the image on it; `None` if its superblock leaves no space for the
/// segments.
async fn medium(image: &Image) -> Option<MemMedium> {
    let medium = MemMedium::new(MEDIUM_BYTES);
    // The newest readable superblock determines the layout of the segments; without one, no segment
    // will be read.
    let named = image.superblocks.each_ref().map(|slot| Superblock::decode(slot));
    let newest = named.into_iter().flatten().max_by_key(|superblock| superblock.revision);
    if let Some(newest) = newest {
        let geometry = Geometry {
            segment_bytes: newest.segment_bytes,
            segment_count: newest.segment_count,
            data_offset: newest.data_offset,
        };
        if medium.set_geometry(geometry).is_ok() {
            for (&number, bytes) in &image.segments {
                if number < geometry.segment_count {
                    let written = medium.append(SegmentId(number), 0, Image::buffer(bytes)).await;
                    written.expect("images have the smallest segments");
                }
            }
        }
    }
    for (slot, bytes) in (0..).zip(&image.superblocks) {
        let mut buffer = AlignedBuffer::zeroed(SUPERBLOCK_BYTES);
        buffer.copy_from_slice(bytes);
        medium.write_superblock(slot, buffer).await.ok()?;
    }
    Some(medium)
}

fn open_drive(runtime: &Runtime, medium: &MemMedium, read_only: bool) -> Result<Rc<Drive>> {
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    runtime.block_on(Drive::open(Rc::new(medium.clone()), runtime.clock(), options))
}

/// Reads the beginning of the disk, block by block; unreadable blocks become zeroes, and a drive
/// without a problem must have none. Also reads the end of the disk.
fn read(runtime: &Runtime, drive: &Drive, is_whole: bool) -> Vec<u8> {
    let size = drive.size_bytes();
    let mut beginning = vec![0; size.min(READ_BYTES_MAX) as usize];
    let mut last = [0; BLOCK_BYTES];
    let blocks = beginning.chunks_mut(BLOCK_BYTES).enumerate();
    let places = blocks.map(|(index, block)| ((index * BLOCK_BYTES) as u64, block));
    for (offset, block) in places.chain([(size - BLOCK_BYTES as u64, &mut last[..])]) {
        if let Err(error) = runtime.block_on(drive.read(offset, block)) {
            assert!(!is_whole, "check reports no problem, but reading fails: {}", error.chain());
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", error.chain());
            block.fill(0);
        }
    }
    beginning
}

/// Writes to a drive without a problem, loses power after a flush, and compares.
fn write(runtime: &Runtime, medium: &MemMedium, mut expected: Vec<u8>) {
    // Its counters may be exhausted: then the drive refuses to open for writing and stays
    // unchanged.
    let Ok(drive) = open_drive(runtime, medium, false) else { return };
    let data = [0xa5; WRITE_BYTES];
    let start = WRITE_OFFSET as usize;
    let is_written = expected.len() >= start + data.len()
        && runtime.block_on(drive.write(WRITE_OFFSET, &data)).is_ok();
    if is_written {
        expected[start..start + data.len()].copy_from_slice(&data);
    }
    runtime.block_on(drive.flush()).expect("memory does not fail");
    // A full drive has no space for a checkpoint.
    let _ = runtime.block_on(drive.checkpoint());
    drop(drive);
    runtime.drop_tasks();
    let report =
        runtime.block_on(check(medium, Depth::Full, &mut |_| ())).expect("a drive that was open");
    assert_eq!(report.problem_count, 0, "{report:?}");
    let drive = open_drive(runtime, medium, true).expect("a drive that was open");
    assert!(read(runtime, &drive, true) == expected, "flushed data is lost");
}

/// Writes to a drive with a problem. Any operation may fail; none may panic or run forever.
fn write_to_wreck(runtime: &Runtime, medium: &MemMedium) {
    let Ok(drive) = open_drive(runtime, medium, false) else { return };
    let size = drive.size_bytes();
    let wrecking = async {
        for offset in [0, WRITE_OFFSET, (size / 2).next_multiple_of(BLOCK_BYTES as u64)] {
            let length = WRITE_BYTES.min(size.saturating_sub(offset) as usize);
            let _ = drive.write_durable(offset, &[0xa5; WRITE_BYTES][..length]).await;
        }
        let _ = drive.trim_durable(0, size).await;
        let _ = drive.checkpoint().await;
        let _ = drive.write(0, &[0x5a; BLOCK_BYTES]).await;
        let _ = drive.close().await;
    };
    runtime.block_on(wrecking);
    drop(drive);
    runtime.drop_tasks();
    let _ = runtime.block_on(check(medium, Depth::Full, &mut |_| ()));
}
