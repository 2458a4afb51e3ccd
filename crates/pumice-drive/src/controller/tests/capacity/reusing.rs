//! Goal: a segment is reused only when no read is in progress in it, and no content of its earlier
//! use is mistaken for its present content. Method: the one order of events that could cause this,
//! driven step by step on a slow medium.

use futures_util::future::join;

use super::*;
use crate::base::seed::random;
use crate::controller::core::Wakes;
use crate::controller::tests::durability::survival::take_free_segments;

const MIB: u64 = 1 << 20;

fn set_latency_ns(drive: &Drive, ns: u64) {
    drive.layers().set_plan(FaultPlan { latency_ns: ns..=ns, ..FaultPlan::default() });
}

/// Makes garbage collection free all segments that it can.
async fn give_back(drive: &Drive, clock: &Runtime) {
    drive.with_core(|core| core.reclaim_mut().set_compacting(true));
    drive.with_core(|core| core.wake(Wakes::COLLECTOR));
    clock.sleep_ns(1_000_000_000).await;
    drive.with_core(|core| core.reclaim_mut().set_compacting(false));
}

/// Reads `len` bytes at the start of a disk, slowly, while they are overwritten and garbage
/// collection searches for segments to free.
fn read_under_garbage_collection(len: usize) {
    let world = World::new(small(8 * MIB, 6));
    let drive = world.open();
    let old = payload::noise(&mut random(1), len);
    let new = payload::noise(&mut random(2), MIB as usize);
    world.run(drive.write_durable(0, &old)).unwrap();
    let mut out = vec![0; len];
    let (clock, read_from) = (&world.runtime, SegmentId(0));
    let is_free = || drive.core().space().is_free(read_from);
    world.run(async {
        set_latency_ns(&drive, 10_000_000_000);
        let read = drive.read(0, &mut out);
        let rival = async {
            clock.sleep_ns(1).await;
            set_latency_ns(&drive, 0);
            for _ in 0..6 {
                drive.write_durable(0, &new).await.unwrap();
            }
            drive.checkpoint().await.unwrap();
            assert_eq!(drive.core().space().live_bytes_of(read_from), 0);
            take_free_segments(&drive, 6);
            give_back(&drive, clock).await;
            assert!(!is_free(), "freed under a read");
        };
        join(read, rival).await.0.unwrap();
        assert!(out == old, "another content was read than was there");
        give_back(&drive, clock).await;
        assert!(is_free(), "too tame a test");
    });
}

#[test]
fn a_segment_is_not_given_back_under_a_read_of_one_frame() {
    read_under_garbage_collection(32 << 10);
}

#[test]
fn a_segment_is_not_given_back_under_a_read_of_many_frames() {
    read_under_garbage_collection(256 << 10);
}

fn place_of(drive: &Drive, lba: u64) -> FramePlace {
    match drive.core().map().peek(Lba(lba)).resident().0 {
        Mapping::Frame { place, .. } => place,
        other => panic!("LBA {lba} is {other:?}"),
    }
}

/// Fills the host's segment until a block needs another one, with few flushes: with many, the host
/// could move on to another segment.
async fn fill_segment(drive: &Drive, data: &[u8]) {
    while drive.core().log().fit(Stream::Host, BLOCK_BYTES + 28, u32::MAX) != log::Fit::NewSegment {
        let fits = |bytes: usize| {
            let room =
                packing::worst_case_bytes(bytes / BLOCK_BYTES, drive.medium.cipher().seal_bytes());
            drive.core().log().fit(Stream::Host, room, u32::MAX) != log::Fit::NewSegment
        };
        let len = if fits(data.len()) { data.len() } else { BLOCK_BYTES };
        drive.write(MIB, &data[..len]).await.unwrap();
    }
    drive.flush().await.unwrap();
}

/// A write of parts of two blocks has read the first and waits for the second. Meanwhile, the first
/// is overwritten, its segment is freed and reused, and the block is overwritten a second time. Its
/// mapping is then the same as before, to the byte, but in another use of the segment.
#[test]
fn a_block_that_came_back_to_its_old_place_is_merged_anew() {
    let world = World::new(Spec { frame_blocks: 1, ..small(8 * MIB, 8) });
    let drive = world.open();
    let noise = |seed| payload::noise(&mut random(seed), BLOCK_BYTES);
    let filler = payload::noise(&mut random(9), MIB as usize);
    let clock = &world.runtime;
    let (old, new, second) = (noise(1), noise(2), noise(3));
    world.run(async {
        // The first frame of segment 0.
        drive.write_durable(0, &old).await.unwrap();
        let place = place_of(&drive, 0);
        fill_segment(&drive, &filler).await;
        drive.write_durable(BLOCK, &second).await.unwrap();
        assert_ne!(place_of(&drive, 1).segment, place.segment);

        set_latency_ns(&drive, 1_000_000);
        let edges = [7; BLOCK_BYTES];
        let merging = drive.write(BLOCK / 2, &edges);
        let rival = async {
            // The first block is being read; the read of the second should take long.
            clock.sleep_ns(500_000).await;
            set_latency_ns(&drive, 100_000_000_000);
            clock.sleep_ns(1_000_000).await;
            set_latency_ns(&drive, 0);
            drive.write_durable(0, &noise(4)).await.unwrap();
            drive.write_durable(MIB, &filler).await.unwrap();
            drive.checkpoint().await.unwrap();
            give_back(&drive, clock).await;
            assert!(drive.core().space().is_free(place.segment), "not freed");
            fill_segment(&drive, &filler).await;
            drive.write_durable(0, &new).await.unwrap();
            assert_eq!(place_of(&drive, 0), place, "too tame a test");
        };
        join(merging, rival).await.0.unwrap();
    });
    let half = BLOCK_BYTES / 2;
    let mut expected = [new, second].concat();
    expected[half..half + BLOCK_BYTES].fill(7);
    assert!(world.read(&drive, 0, expected.len()).unwrap() == expected, "an old half came back");
}

/// Recovery meets a segment that was emptied by a trim, freed and reused, all after the newest
/// checkpoint. The data that the trim made dead must be dead before the segment's new use begins.
#[test]
fn a_segment_emptied_by_a_trim_and_used_again_is_recovered() {
    let world = World::new(small(16 * MIB, 6));
    let drive = world.open();
    let noise = payload::noise(&mut random(1), MIB as usize);
    let clock = &world.runtime;
    world.run(async {
        // One leaf, which a trim drops as a whole; three quarters of its data fill segment 0.
        for piece in 0..4 {
            drive.write_durable(piece * MIB, &noise).await.unwrap();
        }
        drive.checkpoint().await.unwrap();
        drive.trim_durable(0, 4 * MIB).await.unwrap();
        give_back(&drive, clock).await;
        assert!(drive.core().space().is_free(SegmentId(0)), "not freed");
        for piece in 4..8 {
            drive.write_durable(piece * MIB, &noise).await.unwrap();
        }
    });
    assert_eq!(
        drive.core().log().tail(Stream::Host).unwrap().segment,
        SegmentId(0),
        "not used again"
    );
    assert_eq!(drive.core().checkpoints().completed(), 1, "too tame a test");
    let before = state(&drive);
    world.kill(drive);
    let drive = world.open();
    assert_same_state(before, &drive);
    let read = world.read(&drive, 0, 8 * MIB as usize).unwrap();
    assert!(read[..4 << 20].iter().all(|&byte| byte == 0));
    assert!(read[4 << 20..].chunks(MIB as usize).all(|piece| piece == noise));
}
