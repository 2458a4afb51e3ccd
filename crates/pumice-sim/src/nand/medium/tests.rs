//! Goal: a medium of flash takes the time of its flash and returns what was written.
//! Method: appends and reads in virtual time against sums by hand; wear by counting.

use std::rc::Rc;

use super::*;
use crate::ftl::sample;
use crate::nand::{FlashShape, FlashTiming};
use pumice_drive::runtime::Runtime;

const SHAPE: FlashShape = FlashShape { blocks_per_plane: 10, pages_per_block: 64, ..sample::SHAPE };
const ROW: u32 = 8192;
const TIMING: FlashTiming = FlashTiming { bus_bytes_per_s: 50_000_000, ..sample::TIMING };
const PLAIN: NandSpec = NandSpec { bad_percent: 0.0, seed: 1, store_bytes_per_s: None };
const SEGMENT: SegmentId = SegmentId(3);

fn medium(spec: NandSpec) -> (Runtime, Rc<NandMedium<Runtime>>) {
    let runtime = Runtime::simulated();
    let flash = Flash::new(SHAPE, TIMING).unwrap();
    let medium = NandMedium::new(flash, spec, runtime.clone()).unwrap();
    (runtime, Rc::new(medium))
}

/// Bytes that differ from page to page.
fn bytes(len: u32, seed: u8) -> Arc<AlignedBuffer> {
    let mut buffer = AlignedBuffer::zeroed(len as usize);
    for (page, chunk) in buffer.chunks_mut(4096).enumerate() {
        chunk.fill(seed.wrapping_add(page as u8));
    }
    Arc::new(buffer)
}

fn read(runtime: &Runtime, medium: &NandMedium<Runtime>, offset: u32, len: u32) -> (Vec<u8>, u64) {
    let begun_ns = runtime.now_ns();
    let buffer = AlignedBuffer::zeroed(len as usize);
    let (buffer, result) = runtime.block_on(medium.read(SEGMENT, offset, buffer));
    result.unwrap();
    (buffer.to_vec(), runtime.now_ns() - begun_ns)
}

#[test]
fn what_is_appended_takes_the_time_of_its_rows_and_is_read_back() {
    let (runtime, medium) = medium(PLAIN);
    let data = bytes(5 * ROW, 7);
    runtime.block_on(medium.append(SEGMENT, 0, Arc::clone(&data))).unwrap();
    // Four dies at once, and the first one again.
    let row_ns = 2 * 81_920 + 900_000;
    assert_eq!(runtime.now_ns(), 2 * row_ns);
    assert_eq!(medium.counts().pages_programmed, 10);
    let (back, took_ns) = read(&runtime, &medium, 4096, 4096);
    assert!(back[..] == data[4096..8192]);
    assert_eq!(took_ns, 50_000 + 81_920);
    // Both planes are sensed at once; a sector is sent alone.
    assert_eq!(read(&runtime, &medium, 0, ROW).1, 50_000 + 2 * 81_920);
    assert_eq!(read(&runtime, &medium, ROW + 512, 512).1, 50_000 + 10_240);
    assert_eq!(medium.counts().pages_read, 4);
}

#[test]
fn the_end_that_is_no_row_yet_stays_in_the_buffer() {
    let (runtime, medium) = medium(PLAIN);
    runtime.block_on(medium.append(SEGMENT, 0, bytes(4096, 1))).unwrap();
    assert_eq!((runtime.now_ns(), medium.counts().pages_programmed), (0, 0));
    assert_eq!(read(&runtime, &medium, 0, 4096), (vec![1; 4096], 0));
    runtime.block_on(medium.append(SEGMENT, 4096, bytes(4096, 9))).unwrap();
    assert_eq!((runtime.now_ns(), medium.counts().pages_programmed), (2 * 81_920 + 900_000, 2));
    assert_eq!(read(&runtime, &medium, 4096, 4096).0, vec![9; 4096]);
}

/// Four dies take a row each at once, but the controller has one only every 200 us.
#[test]
fn the_controller_gives_the_flash_no_more_than_it_can() {
    let (runtime, medium) = medium(NandSpec { store_bytes_per_s: Some(40_960_000), ..PLAIN });
    runtime.block_on(medium.append(SEGMENT, 0, bytes(4 * ROW, 1))).unwrap();
    assert_eq!(runtime.now_ns(), 3 * 200_000 + 2 * 81_920 + 900_000);
}

/// A read waits for the row being programmed, and not for all rows that are queued.
#[test]
fn reads_get_in_between_the_rows_of_an_append() {
    let (runtime, medium) = medium(PLAIN);
    runtime.block_on(medium.append(SEGMENT, 0, bytes(4 * ROW, 1))).unwrap();
    let writer = Rc::clone(&medium);
    runtime.spawn(async move {
        writer.append(SEGMENT, 4 * ROW, bytes(32 * ROW, 1)).await.unwrap();
    });
    runtime.block_on(runtime.sleep_ns(100_000));
    let (_, took_ns) = read(&runtime, &medium, 0, 4096);
    let row_ns = 2 * 81_920 + 900_000;
    assert!(took_ns < 2 * row_ns, "{took_ns} ns after an append of eight rows a die");
}

#[test]
fn segments_take_the_least_worn_blocks_and_no_bad_ones() {
    let (runtime, medium) = medium(NandSpec { bad_percent: 20.0, ..PLAIN });
    let good = medium.geometry().segment_count;
    assert!((4..10).contains(&good), "{good} of 10");
    for _ in 0..10 * good {
        runtime.block_on(medium.append(SEGMENT, 0, bytes(4 * ROW, 1))).unwrap();
        runtime.block_on(medium.discard(SEGMENT)).unwrap();
    }
    let mut fewest = u32::MAX;
    let wear: Vec<u32> = medium.state.borrow().flash.wear().collect();
    let used: Vec<u32> = wear.iter().copied().filter(|&erases| erases > 0).collect();
    assert_eq!(medium.wear(), used, "bad blocks have no wear");
    for die in wear.chunks(10) {
        let good: Vec<u32> = die.iter().copied().filter(|&erases| erases > 0).collect();
        fewest = fewest.min(good.len() as u32);
        assert!(
            good.iter().max() <= good.iter().map(|erases| erases + 1).min().as_ref(),
            "{die:?}"
        );
    }
    assert_eq!(fewest, good, "bad blocks were used");
    assert_eq!(medium.counts().blocks_erased, u64::from(40 * good));
    let (back, took_ns) = read(&runtime, &medium, 0, 4096);
    assert_eq!((back, took_ns), (vec![0; 4096], 0), "nothing is left of it");
}

#[test]
fn a_geometry_that_is_not_that_of_the_flash_is_refused() {
    let (_, medium) = medium(PLAIN);
    let geometry = medium.geometry();
    assert_eq!((geometry.segment_bytes, geometry.segment_count), (256 * ROW, 10));
    let refused = |change: fn(&mut Geometry)| {
        let mut other = geometry;
        change(&mut other);
        medium.set_geometry(other).is_err()
    };
    assert!(refused(|other| other.segment_count += 1));
    assert!(refused(|other| other.segment_bytes -= 4096));
    assert!(!refused(|other| other.segment_count -= 1));
    let runtime = Runtime::simulated();
    for spec in [
        NandSpec { store_bytes_per_s: Some(0), ..PLAIN },
        NandSpec { bad_percent: f64::NAN, ..PLAIN },
    ] {
        let flash = Flash::new(SHAPE, TIMING).unwrap();
        assert!(NandMedium::new(flash, spec, runtime.clone()).is_err(), "{spec:?}");
    }
    let shape = FlashShape { pages_per_block: 1 << 20, ..SHAPE };
    let flash = Flash::new(shape, TIMING).unwrap();
    assert!(NandMedium::new(flash, PLAIN, runtime).is_err(), "a segment of 32 GiB");
}
