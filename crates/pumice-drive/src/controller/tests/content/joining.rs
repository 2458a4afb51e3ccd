//! Goal: frames that are neighbours on the disk are joined while a victim is emptied, with the age
//! of every block, and concurrent changes of the host take precedence.
//! Method: victims laid out by hand and emptied on a slow medium, with the host acting in between;
//! then checks of the log and of the disk, and of both again after a kill. Random lives with the
//! same options are in `survival`, `model` and the torture worlds.

use rand::RngExt;
use rand::seq::SliceRandom;

use super::*;
use crate::base::SeqNo;
use crate::base::seed::random;
use crate::controller::log::records::records;
use crate::controller::log::segment_scan::SegmentScan;
use crate::format::Record;

const SIZE: u64 = 16 << 20;

fn options() -> OpenOptions {
    let recompress = Some(Codec::Zstd { level: 3 });
    OpenOptions { recompress, cold_frame_blocks: 16, ..OpenOptions::default() }
}

fn open(world: &World) -> Rc<Drive> {
    world.try_open(options()).unwrap()
}

/// Returns a block of words; no two are the same, and the more of them the better they compress.
fn words(number: u64) -> Vec<u8> {
    let mut random = random(number);
    let mut block = Vec::new();
    while block.len() < BLOCK_BYTES {
        let word = random.random_range(0..500u64);
        block.extend(format!("{:x}-", word * word * word * 7919).as_bytes());
    }
    block.truncate(BLOCK_BYTES);
    block
}

fn frame_of(drive: &Drive, lba: u64) -> FramePlace {
    match drive.core().map().peek(Lba(lba)).resident().0 {
        Mapping::Frame { place, .. } => place,
        mapping => panic!("LBA {lba} is {mapping:?}"),
    }
}

/// Returns the first block and the sources of each moved record.
fn moved(world: &World, drive: &Drive) -> Vec<(u64, Vec<crate::format::Source>)> {
    drive.with_core(|core| core.seal(Stream::Moved));
    world.run(drive.flush_log()).unwrap();
    let segment = drive.core().log().tail(Stream::Moved).unwrap().segment;
    let shape = drive.core().superblock().shape();
    let generation = drive.core().space().generation(segment);
    let mut scan = SegmentScan::new(drive.medium(), drive.uuid(), &shape, segment, generation);
    let mut all = Vec::new();
    world.run(async {
        while let Some((header, body)) = scan.next().await {
            for found in records(drive.medium.cipher(), &header, body).map(|found| found.unwrap()) {
                if let Record::Data { lba, .. } = found.record {
                    all.push((lba.0, found.sources(drive.medium.cipher())));
                }
            }
        }
    });
    all
}

/// Kills the drive and opens it again; the map must be the same.
fn survive(world: &World, drive: Rc<Drive>) -> Rc<Drive> {
    for stream in Stream::ALL {
        drive.with_core(|core| core.seal(stream));
    }
    world.run(drive.flush_log()).unwrap();
    let before = state(&drive);
    world.kill(drive);
    let drive = open(world);
    assert_same_state(before, &drive);
    drive
}

/// Sixteen blocks written one by one in any order, each in a batch of its own.
#[test]
fn neighbours_become_one_frame_that_names_all_of_them() {
    let world = World::new(Spec { codec: Codec::Lz4, ..small(SIZE, 6) });
    let drive = open(&world);
    let mut order: Vec<u64> = (0..16).collect();
    order.shuffle(&mut random(1));
    let mut expected = vec![(SeqNo(0), 0); 16];
    for &lba in &order {
        world.run(drive.write_durable((32 + lba) * BLOCK, &words(lba))).unwrap();
        let place = frame_of(&drive, 32 + lba);
        expected[lba as usize] = (drive.core().log().sealed_seq(), place.offset);
    }
    let before = frame_of(&drive, 32);
    let before_bytes = drive.info().live_bytes;
    world.run(drive.empty_victim(before.segment)).unwrap();
    assert_eq!(drive.core().space().live_bytes_of(before.segment), 0);
    let after = frame_of(&drive, 32);
    assert_eq!((after.blocks, frame_of(&drive, 47)), (16, after));
    assert!(drive.info().live_bytes < before_bytes * 3 / 4, "{} bytes", drive.info().live_bytes);
    assert_eq!(drive.info().operations.joined_frames, 1);
    let moved = moved(&world, &drive);
    let [(32, sources)] = &moved[..] else { panic!("{moved:?}") };
    let found: Vec<_> = sources.iter().map(|source| (source.birth, source.offset)).collect();
    assert_eq!(found, expected);
    let drive = survive(&world, drive);
    let disk = world.read(&drive, 32 * BLOCK, 16 * BLOCK_BYTES).unwrap();
    assert!(disk.chunks(BLOCK_BYTES).zip(0..).all(|(block, lba)| block == words(lba)));
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

/// Frames with dead parts, holes and other segments in between: only live neighbours are joined.
#[test]
fn a_run_ends_where_a_block_lives_elsewhere() {
    let world = World::new(Spec { codec: Codec::Lz4, ..small(SIZE, 6) });
    let drive = open(&world);
    let disk: Vec<u8> = (0..32).flat_map(words).collect();
    world.run(drive.write_durable(0, &disk)).unwrap();
    let victim = frame_of(&drive, 0).segment;
    // Fill the rest of the segment, so that later writes go to another one.
    while drive.core().space().table()[victim.0 as usize].last_seq
        == drive.core().log().sealed_seq()
    {
        world.run(drive.write_durable(SIZE / 2, &payload::noise(&mut random(1), 1 << 20))).unwrap();
    }
    world.run(drive.write_durable(3 * BLOCK, &words(99))).unwrap();
    world.run(drive.trim_durable(20 * BLOCK, 2 * BLOCK)).unwrap();
    world.run(drive.trim_durable(SIZE / 2, 1 << 20)).unwrap();
    world.run(drive.empty_victim(victim)).unwrap();
    assert_eq!(drive.core().space().live_bytes_of(victim), 0);
    let blocks = |lba| frame_of(&drive, lba).blocks;
    assert_eq!([0, 4, 16, 22].map(blocks), [3, 12, 4, 10]);
    let drive = survive(&world, drive);
    let mut expected = disk;
    expected[3 * BLOCK_BYTES..4 * BLOCK_BYTES].copy_from_slice(&words(99));
    expected[20 * BLOCK_BYTES..22 * BLOCK_BYTES].fill(0);
    assert!(world.read(&drive, 0, expected.len()).unwrap() == expected);
}

/// Joining gains nothing for noise, or for dense frames of the largest size.
#[test]
fn what_saves_nothing_is_not_joined() {
    let world = World::new(Spec { codec: Codec::Lz4, ..small(SIZE, 6) });
    let drive = open(&world);
    let noise = payload::noise(&mut random(1), 16 * BLOCK_BYTES);
    for lba in 0..16 {
        let block = &noise[lba * BLOCK_BYTES..][..BLOCK_BYTES];
        world.run(drive.write_durable(lba as u64 * BLOCK, block)).unwrap();
    }
    world.run(drive.empty_victim(frame_of(&drive, 0).segment)).unwrap();
    assert_eq!(drive.info().operations.joined_frames, 0);
    assert_eq!(frame_of(&drive, 0).blocks, 1);
    assert!(world.read(&drive, 0, noise.len()).unwrap() == noise);
}

/// Writes LBA 0, then enough for a window to end, then LBA 1: a run of two whose first frame must
/// be read again.
fn two_far_apart(world: &World) -> (Rc<Drive>, SegmentId) {
    let drive = open(world);
    world.run(drive.write_durable(0, &words(0))).unwrap();
    let victim = frame_of(&drive, 0).segment;
    let noise = payload::noise(&mut random(1), 1 << 20);
    for at in 0..2 {
        world.run(drive.write_durable(SIZE / 2 + (at << 20), &noise)).unwrap();
    }
    world.run(drive.write_durable(BLOCK, &words(1))).unwrap();
    assert_eq!(frame_of(&drive, 1).segment, victim);
    world.run(drive.trim_durable(SIZE / 2, 2 << 20)).unwrap();
    world.run(drive.reap_all()).unwrap();
    let latency_ns = 1_000_000..=1_000_000;
    drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
    (drive, victim)
}

/// Lets the host trim LBA 1 after `steps` quarters of a media read. Returns the number of joined
/// frames.
fn trim_during_move(steps: u64) -> usize {
    let world = World::new(Spec { codec: Codec::Lz4, ..small(SIZE, 6) });
    let (drive, victim) = two_far_apart(&world);
    let moved_before = world.run(async {
        let host = async {
            world.runtime.sleep_ns(steps * 250_000 + 1).await;
            drive.trim(BLOCK, BLOCK).await.unwrap();
            drive.info().moved_bytes
        };
        futures_util::future::join(drive.empty_victim(victim), host).await.1
    });
    assert_eq!(drive.core().space().live_bytes_of(victim), 0, "step {steps}");
    let joined = drive.info().operations.joined_frames;
    let moved = moved(&world, &drive);
    let claims_dead = |(lba, sources): &(u64, Vec<crate::format::Source>)| {
        let ages = sources.iter().flat_map(|source| vec![source.birth.0; source.blocks.into()]);
        ages.zip(*lba..).any(|(age, lba)| lba == 1 && age > 0)
    };
    // A rebuild without the map would take such a copy for the newest version once the trim's own
    // record is gone.
    assert!(moved_before > 0 || !moved.iter().any(claims_dead), "step {steps}: {moved:?}");
    let drive = survive(&world, drive);
    let mut expected = words(0);
    expected.resize(2 * BLOCK_BYTES, 0);
    assert!(world.read(&drive, 0, expected.len()).unwrap() == expected, "step {steps}");
    joined as usize
}

/// The host trims before the run is found, while its frames are read, and after it was moved.
#[test]
fn what_the_host_changes_while_a_run_moves_wins() {
    let joined: Vec<_> = (0..20).map(trim_during_move).collect();
    assert!(joined.contains(&0) && joined.contains(&1), "too tame a test: {joined:?}");
}
