//! Goal: operations take as long as on the requested device, no burst exceeds its limits, and
//! nothing else changes. Method: virtual time, on memory, which takes no time, and on a slow
//! medium.

use super::*;
use crate::base::seed::random;
use crate::media::Geometry;
use crate::media::layer::{Fault, FaultPlan, Trigger};
use crate::media::mem::MemMedium;
use crate::runtime::Runtime;
use crate::{Drive, OpenOptions, Spec, Uuid, create};
use futures_util::future::{join, join_all};
use rand_xoshiro::rand_core::Rng;
use std::rc::Rc;

const MILLISECOND: u64 = 1_000_000;

/// A megabyte in a millisecond, and half of that speed for appends.
const SPEED: Speed = Speed {
    read_bytes_per_s: 1_000_000_000,
    append_bytes_per_s: 500_000_000,
    read_latency_ns: 3 * MILLISECOND,
    append_latency_ns: 5 * MILLISECOND,
};

fn memory() -> MemMedium {
    let medium = MemMedium::new(64 << 20);
    let geometry = Geometry { segment_bytes: 8 << 20, segment_count: 4, data_offset: 0 };
    medium.set_geometry(geometry).unwrap();
    medium
}

/// Returns a megabyte of one byte, plus alignment.
fn megabyte(byte: u8) -> Arc<AlignedBuffer> {
    let mut buffer = AlignedBuffer::zeroed(1_003_520);
    buffer.fill(byte);
    Arc::new(buffer)
}

/// Time on the pipe of an append of [`megabyte`].
const APPEND_NS: u64 = 2_007_040;
const READ_NS: u64 = APPEND_NS / 2;

#[test]
fn appends_in_progress_share_the_rate_and_overlap_their_latency() {
    let runtime = Runtime::simulated();
    let medium = Throttle::new(memory(), runtime.clone(), SPEED);
    let append = |index: u32| medium.append(SegmentId(0), index * 1_003_520, megabyte(1));
    runtime.block_on(async {
        let results = join_all((0..8).map(append)).await;
        results.into_iter().for_each(|result| result.unwrap());
    });
    assert_eq!(runtime.now_ns(), 8 * APPEND_NS + 5 * MILLISECOND);
    assert_eq!(medium.kept(), Kept { operations: 8, late: 0 });
}

#[test]
fn idle_time_is_not_saved_up() {
    let runtime = Runtime::simulated();
    let medium = Throttle::new(memory(), runtime.clone(), SPEED);
    runtime.block_on(async {
        medium.append(SegmentId(0), 0, megabyte(1)).await.unwrap();
        runtime.sleep_ns(1000 * MILLISECOND).await;
        let begun_ns = runtime.now_ns();
        let append = |index: u32| medium.append(SegmentId(1), index * 1_003_520, megabyte(1));
        join_all((0..8).map(append)).await;
        assert_eq!(runtime.now_ns() - begun_ns, 8 * APPEND_NS + 5 * MILLISECOND);
    });
}

#[test]
fn reads_and_durable_appends_share_the_pipe_at_their_own_rates() {
    let runtime = Runtime::simulated();
    let medium = Throttle::new(memory(), runtime.clone(), SPEED);
    runtime.block_on(async {
        let read = medium.read(SegmentId(0), 0, AlignedBuffer::zeroed(1_003_520));
        let append = medium.append_durably(SegmentId(1), 0, megabyte(2));
        let (read, appended) = join(read, append).await;
        read.1.unwrap();
        appended.unwrap();
        assert_eq!(runtime.now_ns(), READ_NS + APPEND_NS + 5 * MILLISECOND);
        let begun_ns = runtime.now_ns();
        let (bytes, result) = medium.read(SegmentId(1), 0, AlignedBuffer::zeroed(1_003_520)).await;
        result.unwrap();
        assert_eq!(*bytes, **megabyte(2));
        assert_eq!(runtime.now_ns() - begun_ns, READ_NS + 3 * MILLISECOND);
        let begun_ns = runtime.now_ns();
        medium.write_superblock(0, AlignedBuffer::zeroed(SUPERBLOCK_BYTES)).await.unwrap();
        medium.read_superblock(0).await.unwrap();
        assert_eq!(runtime.now_ns() - begun_ns, 8 * MILLISECOND + 8192 + 4096);
        let begun_ns = runtime.now_ns();
        medium.sync().await.unwrap();
        medium.discard(SegmentId(1)).await.unwrap();
        assert_eq!(runtime.now_ns(), begun_ns, "a sync or discard waits");
    });
}

#[test]
fn a_slower_medium_shows_as_late() {
    let runtime = Runtime::simulated();
    let slow = |ns| FaultPlan { latency_ns: ns..=ns, ..FaultPlan::default() };
    let inner = Fault::new(memory(), runtime.clone(), 1, slow(6 * MILLISECOND));
    let medium = Throttle::new(inner, runtime.clone(), SPEED);
    runtime.block_on(async {
        medium.append(SegmentId(0), 0, megabyte(1)).await.unwrap();
        assert_eq!(runtime.now_ns(), APPEND_NS + 5 * MILLISECOND, "the times do not add up");
        medium.inner().set_plan(slow(60 * MILLISECOND));
        medium.append(SegmentId(1), 0, megabyte(1)).await.unwrap();
        assert_eq!(runtime.now_ns(), APPEND_NS + 65 * MILLISECOND);
        assert_eq!(medium.kept(), Kept { operations: 2, late: 1 });
        let failing = FaultPlan { append_errors: Trigger::Nth(1), ..slow(0) };
        medium.inner().set_plan(failing);
        medium.append(SegmentId(2), 0, megabyte(1)).await.unwrap_err();
    });
}

#[test]
fn without_limits_nothing_waits() {
    let runtime = Runtime::simulated();
    let medium = Throttle::new(memory(), runtime.clone(), Speed::default());
    runtime.block_on(async {
        medium.append(SegmentId(0), 0, megabyte(1)).await.unwrap();
        medium.read(SegmentId(0), 0, AlignedBuffer::zeroed(4096)).await.1.unwrap();
    });
    assert_eq!((runtime.now_ns(), medium.kept().late), (0, 0));
    let pipe = Pipe::default();
    assert_eq!(pipe.reserve(7, u64::MAX, 1), u64::MAX, "no overflow");
    assert_eq!(pipe.reserve(8, 1, 1), u64::MAX);
}

/// The number of bytes that a drive writes per second of virtual time depends on the data: the
/// speed of the medium divided by the stored fraction of the data.
#[test]
fn a_drive_is_as_fast_as_its_data_compresses() {
    const BYTES: usize = 16 << 20;
    let mut noise = vec![0; BYTES];
    random(7).fill_bytes(&mut noise);
    let mut half = noise.clone();
    half.chunks_mut(4096).for_each(|block| block[2048..].fill(0));
    let seconds = [noise, half].map(|data| {
        let runtime = Runtime::simulated();
        let spec = Spec::new(Uuid::from_u128(1), 64 << 20);
        let inner = MemMedium::new(spec.geometry().unwrap().medium_bytes());
        let speed = Speed { append_bytes_per_s: 100_000_000, ..Speed::default() };
        let medium = Rc::new(Throttle::new(inner, runtime.clone(), speed));
        runtime.block_on(async {
            create(&medium, &spec).await.unwrap();
            let options = OpenOptions::default();
            let drive = Drive::open(medium.clone(), runtime.clock(), options).await.unwrap();
            let begun_ns = runtime.now_ns();
            for (index, chunk) in data.chunks(1 << 20).enumerate() {
                drive.write((index << 20) as u64, chunk).await.unwrap();
            }
            drive.flush().await.unwrap();
            let seconds = (runtime.now_ns() - begun_ns) as f64 / 1e9;
            drive.close().await.unwrap();
            seconds
        })
    });
    let alone = BYTES as f64 / 100e6;
    assert!((1.0..1.05).contains(&(seconds[0] / alone)), "{seconds:?}");
    assert!((0.5..0.58).contains(&(seconds[1] / alone)), "{seconds:?}");
}
