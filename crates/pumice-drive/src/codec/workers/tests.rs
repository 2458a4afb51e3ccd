//! Goal: each frame is returned unchanged and in order, whichever thread compressed it, even if the
//! queue is full, no other thread exists, or a request is dropped.
use futures_util::FutureExt;
use futures_util::future::join_all;

use super::super::Decompressor;
use super::*;
use crate::runtime::{Backend, Runtime};

const BLOCK: usize = 4096;

/// Returns frames of 1 to 8 blocks, each about half compressible and no two alike.
fn frames(count: usize, seed: usize) -> Vec<Vec<u8>> {
    let byte = |frame: usize, at: usize| {
        let noise = (at * 0x9e37_79b9 + frame * 31 + seed).wrapping_mul(0x85eb_ca6b) >> 13;
        if at % 512 < 256 { noise.to_le_bytes()[0] } else { frame.to_le_bytes()[0] }
    };
    let frame = |number| (0..(number % 8 + 1) * BLOCK).map(|at| byte(number, at)).collect();
    (0..count).map(frame).collect()
}

fn coding(codec: Codec) -> Coding {
    Coding { codec, form: FrameForm::Chunks }
}

fn borrowed(frames: &[Vec<u8>]) -> Vec<&[u8]> {
    frames.iter().map(|frame| &frame[..]).collect()
}

fn assert_same(compressed: &CompressedFrames, frames: &[Vec<u8>]) {
    let mut decompressor = Decompressor::new();
    let payloads: Vec<_> = compressed.iter().collect();
    assert_eq!(payloads.len(), frames.len());
    for (&(raw_bytes, encoding, payload), frame) in payloads.iter().zip(frames) {
        assert_eq!(raw_bytes, frame.len());
        let mut decoded = vec![0; raw_bytes];
        decompressor.decompress(encoding, payload, &mut decoded).unwrap();
        assert!(decoded == *frame, "another frame, or another order");
    }
}

#[test]
fn frames_come_back_in_order_from_any_number_of_threads() {
    for threads in [0, 1, 3] {
        let workers = Workers::start(threads).unwrap();
        let runtime = Runtime::new(Backend::Auto).unwrap();
        for codec in [Codec::Lz4, Codec::Zstd { level: 1 }] {
            for count in [0, 1, 2, 17, 100] {
                let frames = frames(count, threads);
                let parts =
                    runtime.block_on(workers.compress(&runtime, coding(codec), &borrowed(&frames)));
                assert_same(&parts, &frames);
            }
        }
    }
}

#[test]
fn requests_beyond_the_queue_share_the_threads() {
    let workers = Workers::start(2).unwrap();
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let request = |seed: usize| {
        let (workers, runtime) = (&workers, &runtime);
        async move {
            let frames = frames(60, seed);
            let codec = if seed.is_multiple_of(2) { Codec::Lz4 } else { Codec::Zstd { level: 1 } };
            assert_same(
                &workers.compress(runtime, coding(codec), &borrowed(&frames)).await,
                &frames,
            );
        }
    };
    // Each is 17 batches of LZ4 or 60 of zstd: several times the capacity of the queue.
    runtime.block_on(join_all((0..20).map(request)));
}

#[test]
fn writes_of_one_block_travel_together() {
    for threads in [0, 1, 2] {
        let workers = Workers::start(threads).unwrap();
        let runtime = Runtime::new(Backend::Auto).unwrap();
        let all = frames(200, threads);
        let request = |number: usize| {
            let (workers, runtime, all) = (&workers, &runtime, &all);
            async move {
                let codec = if number < 150 { Codec::Lz4 } else { Codec::Zstd { level: -1 } };
                let frames = &all[number..=number];
                assert_same(
                    &workers.compress(runtime, coding(codec), &borrowed(frames)).await,
                    frames,
                );
            }
        };
        for _ in 0..20 {
            runtime.block_on(join_all((0..200).map(request)));
        }
    }
}

/// Without other threads, no task waits for external events, so this works in virtual time.
#[test]
fn without_threads_the_caller_does_the_work() {
    let workers = Workers::start(0).unwrap();
    let runtime = Runtime::simulated();
    let frames = frames(3000, 1);
    let parts =
        runtime.block_on(workers.compress(&runtime, coding(Codec::Lz4), &borrowed(&frames)));
    assert_same(&parts, &frames);
}

#[test]
fn a_request_that_is_dropped_disturbs_no_other() {
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let frames = frames(41, 1);
    for threads in (0..=1).cycle().take(20) {
        let workers = Workers::start(threads).unwrap();
        let borrowed = borrowed(&frames);
        // After one poll its batches have been passed on, and one is on the tray.
        let dropped = workers.compress(&runtime, coding(Codec::Lz4), &borrowed).now_or_never();
        assert!(dropped.is_none() || threads > 0, "it ended before it could be dropped");
        let parts = runtime.block_on(workers.compress(&runtime, coding(Codec::Lz4), &borrowed));
        assert_same(&parts, &frames);
    }
}

#[test]
fn bytes_under_way_are_bounded() {
    let workers = Workers::start(0).unwrap();
    let runtime = Runtime::simulated();
    let zstd = Codec::Zstd { level: 1 };
    assert!(workers.can_take(zstd, PASSED_BYTES_MAX) && !workers.can_take(zstd, 1 + (16 << 20)));
    let frames = frames(1, 1);
    let kept = runtime.block_on(workers.compress(&runtime, coding(zstd), &borrowed(&frames)));
    assert!(!workers.can_take(zstd, PASSED_BYTES_MAX), "compressed frames are not counted");
    drop(kept);
    drop(workers.compress(&runtime, coding(zstd), &borrowed(&frames)).now_or_never());
    assert!(workers.can_take(zstd, PASSED_BYTES_MAX), "bytes of a dropped request are counted");
}

#[test]
#[should_panic = "a thread that compresses has panicked"]
fn a_panic_of_a_thread_reaches_the_write() {
    let workers = Workers::start(0).unwrap();
    let frames = frames(1, 1);
    let part = workers.put(coding(Codec::Lz4), &borrowed(&frames));
    // Unwinding has the same effect on the batch that a thread is compressing.
    drop(workers.take_from_tray(|_| true));
    let runtime = Runtime::simulated();
    runtime.block_on(workers.wait_for(&runtime, &[part]));
}

#[test]
fn threads_with_enough_to_do_are_given_no_more() {
    let mut workers = Workers::start(0).unwrap();
    let (zstd, block) = (Codec::Zstd { level: 1 }, frames(1, 1));
    let fill = |workers: &Workers, batches: usize| {
        for _ in 0..batches {
            workers.put(coding(zstd), &borrowed(&block));
            workers.pass_on(workers.take_from_tray(|_| true).unwrap());
        }
    };
    fill(&workers, 8);
    assert!(workers.can_take(zstd, BLOCK), "without threads nothing would be passed on");
    // This thread ends immediately and accepts no batch.
    let thread = thread::spawn(|| ());
    let own = Rc::get_mut(&mut workers.own).unwrap();
    Arc::get_mut(&mut own.pool).unwrap().threads.push(thread);
    assert!(!workers.can_take(zstd, BLOCK), "small writes are passed to a thread with 8 batches");
    assert!(workers.can_take(zstd, 128 << 10), "a thread has less than two long writes to do");
    while workers.own.pool.batches.len() > 1 {
        drop(workers.own.pool.batches.try_recv());
    }
    assert!(workers.can_take(zstd, BLOCK), "a thread that has little to do gets nothing");
}
