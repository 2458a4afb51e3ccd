//! Goal: a simulated drive keeps every byte, and takes the time that its parts add up to: the link
//! for data that compresses, the flash for data that does not.
//! Method: a small drive of 34 nm MLC against an array and against arithmetic; the same run twice.

use rand::RngExt;

use super::*;
use crate::base::Clock;
use crate::base::seed::{Random, random};

const DIES: u32 = 8;

fn spec(codec: Codec) -> SimSpec {
    SimSpec {
        size_bytes: 128 << 20,
        codec,
        frame_blocks: 1,
        front: FrontSpec {
            read_bytes_per_s: 270_000_000,
            write_bytes_per_s: 260_000_000,
            command_ns: 2_000,
            depth: 32,
            read_ns: 10_000,
            write_ns: 20_000,
            engine_bytes_per_s: None,
        },
        command_bytes_max: 128 << 10,
        shape: FlashShape {
            channels: 4,
            dies_per_channel: DIES / 4,
            planes: 2,
            blocks_per_plane: 48,
            pages_per_block: 64,
            page_bytes: 4096,
        },
        timing: FlashTiming {
            read_ns: 50_000,
            program_ns: 900_000,
            erase_ns: 2_000_000,
            bus_bytes_per_s: 50_000_000,
            multi_plane: true,
            cache_program: false,
        },
        nand: NandSpec { bad_percent: 0.0, seed: 1, store_bytes_per_s: None },
    }
}

fn noise(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes[..]);
    bytes
}

/// MB/s of writing `count` records of 1 MiB one after another.
fn sequential_write(sim: &SimDrive, count: u64, record: impl Fn(u64) -> Vec<u8>) -> f64 {
    let begun_ns = sim.runtime().now_ns();
    for number in 0..count {
        sim.runtime().block_on(sim.write(number << 20, &record(number))).unwrap();
    }
    sim.runtime().block_on(sim.flush()).unwrap();
    (count << 20) as f64 / (sim.runtime().now_ns() - begun_ns) as f64 * 1e3
}

#[test]
fn data_that_does_not_compress_is_as_fast_as_the_flash_and_other_data_as_the_link() {
    let sim = SimDrive::new(spec(Codec::Lz4)).unwrap();
    let hard = sequential_write(&sim, 96, |number| noise(&mut random(number), 1 << 20));
    // A die takes two pages of 4 KiB in 900 us and the time of sending them.
    let flash = f64::from(DIES) * 8192.0 / (900.0 + 2.0 * 81.92);
    assert!((hard / flash - 1.0).abs() < 0.1, "{hard} MB/s, the flash {flash}");
    let counts = sim.counts();
    assert!(counts.flash_bytes >= 96 << 20, "{counts:?}");
    let soft = sequential_write(&sim, 96, |number| {
        let mut bytes = vec![0; 1 << 20];
        for block in bytes.chunks_mut(4096) {
            block[..400].copy_from_slice(&noise(&mut random(number), 400));
        }
        bytes
    });
    // The command's time and the processor's are beside the data on the wire.
    assert!((225.0..260.0).contains(&soft), "{soft} MB/s, the link 260");
    let programmed = sim.counts().flash_bytes - counts.flash_bytes;
    assert!(
        programmed < 20 << 20,
        "{programmed} bytes programmed of 96 MiB that compress to a ninth"
    );
}

#[test]
fn a_random_read_takes_the_sum_of_its_parts() {
    let sim = SimDrive::new(spec(Codec::None)).unwrap();
    sequential_write(&sim, 32, |number| noise(&mut random(number), 1 << 20));
    let mut random = random(5);
    let mut target = vec![0; 4096];
    let (mut sum_ns, count) = (0, 200);
    for _ in 0..count {
        let begun_ns = sim.runtime().now_ns();
        let offset = random.random_range(0..32 << 8) * 4096;
        sim.runtime().block_on(sim.read(offset, &mut target)).unwrap();
        sum_ns += sim.runtime().now_ns() - begun_ns;
    }
    // Command, processor, tR, the page over the bus, the data over the wire. A frame lies on two
    // pages as a rule: of one die, or of two that send their parts at the same time.
    let others_ns = 2_000 + 10_000 + 50_000 + 4096 * 1000 / 270;
    let (least_ns, most_ns) = (others_ns + 81_920 / 2, others_ns + 81_920 * 5 / 4);
    let mean_ns = sum_ns / count;
    assert!((least_ns..most_ns).contains(&mean_ns), "{mean_ns} ns, {least_ns} to {most_ns}");
}

/// Overwrites until garbage collection works, and compares with an array; gives what it cost.
fn overwritten(codec: Codec) -> (u64, String) {
    let sim = SimDrive::new(spec(codec)).unwrap();
    let mut random = random(7);
    let mut plain = vec![0; 128 << 20];
    for _ in 0..3 * (128 << 20) / (64 << 10) {
        let mut data = noise(&mut random, 64 << 10);
        let at = random.random_range(0..=(128 << 20) - data.len()) / 4096 * 4096;
        data.chunks_mut(4096).for_each(|block| block[..2000].fill(at as u8));
        sim.runtime().block_on(sim.write(at as u64, &data)).unwrap();
        plain[at..at + data.len()].copy_from_slice(&data);
    }
    sim.runtime().block_on(sim.trim(0, 1 << 20)).unwrap();
    plain[..1 << 20].fill(0);
    let mut back = vec![1; plain.len()];
    sim.runtime().block_on(sim.read(0, &mut back)).unwrap();
    assert!(back == plain);
    let counts = sim.counts();
    assert!(counts.drive.operations.gc_victims > 10, "too tame a test: {counts:?}");
    assert_eq!(
        counts.wear.iter().map(|&wear| u64::from(wear)).sum::<u64>(),
        counts.flash.blocks_erased
    );
    (sim.runtime().now_ns(), format!("{:?} {:?}", counts.flash, counts.drive.media_bytes))
}

#[test]
fn every_byte_is_kept_and_the_same_run_gives_the_same() {
    let first = overwritten(Codec::Lz4);
    assert_eq!(first, overwritten(Codec::Lz4));
    let plain = overwritten(Codec::None);
    assert!(plain.0 > first.0, "{plain:?}, compressing {first:?}");
}

#[test]
fn a_drive_that_cannot_be_is_refused() {
    let wrong: [fn(&mut SimSpec); 5] = [
        |spec| spec.size_bytes = 1 << 40,
        |spec| spec.command_bytes_max = 1000,
        |spec| spec.front.depth = 0,
        |spec| spec.shape.planes = 0,
        |spec| spec.frame_blocks = 3,
    ];
    for (number, wrong) in wrong.into_iter().enumerate() {
        let mut spec = spec(Codec::Lz4);
        wrong(&mut spec);
        assert!(SimDrive::new(spec).is_err(), "{number}");
    }
}
