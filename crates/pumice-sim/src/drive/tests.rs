//! Goal: a simulated drive stores every byte, and durations are the sum of the times of its parts:
//! the link for compressible data, the flash for incompressible data; other designs reproduce
//! published results. Method: a small drive of 34 nm MLC compared with an array and with calculated
//! durations; one run repeated; profiles of other designs.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use rand::RngExt;

use super::*;
use crate::front::FrontSpec;
use crate::ftl::sample;
use crate::ftl::{LogSpec, StoredSizes};
use crate::log_drive::{Host, LogDrive, LogDriveSpec, Request, Verb};
use crate::nand::{FlashShape, FlashTiming};
use crate::{LogStoreSpec, sim_host};
use pumice_drive::base::seed::{Random, random};
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::base::{Clock, ErrorKind};
use pumice_drive::codec::Codec;

const DIES: u32 = 8;

fn spec(codec: Codec) -> SimSpec {
    SimSpec {
        size_bytes: 128 << 20,
        front: FrontSpec {
            read_bytes_per_s: 270_000_000,
            write_bytes_per_s: 260_000_000,
            command_ns: 2_000,
            depth: 32,
            read_ns: 10_000,
            write_ns: 20_000,
            scattered_write_ns: 0,
            engine_bytes_per_s: None,
            load_bytes_per_s: None,
        },
        command_bytes_max: 128 << 10,
        design: SimDesign::Log(
            codec,
            Box::new(LogStoreSpec {
                log: LogSpec {
                    shape: FlashShape {
                        channels: 4,
                        dies_per_channel: DIES / 4,
                        blocks_per_plane: 48,
                        pages_per_block: 64,
                        ..sample::SHAPE
                    },
                    timing: FlashTiming { bus_bytes_per_s: 50_000_000, ..sample::TIMING },
                    user_blocks: (128 << 20) / 4096,
                    stored: match codec {
                        Codec::None => StoredSizes::Constant(1.0),
                        _ => StoredSizes::AsWritten,
                    },
                    buffer_bytes: 512 << 10,
                    ..sample::small()
                },
                map_cached_bytes: None,
                unit_blocks: 1,
            }),
        ),
    }
}

fn log(spec: &mut SimSpec) -> &mut LogSpec {
    match &mut spec.design {
        SimDesign::Log(_, store) => &mut store.log,
        other => panic!("{other:?}"),
    }
}

fn noise(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes[..]);
    bytes
}

/// Writes `count` records of 1 MiB sequentially, and returns the speed in MB/s.
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
    // A die needs 900 us for two pages of 4 KiB, plus the time to transfer them.
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
    // The durations of the command and of the processor are added to the transfer time of the data.
    assert!((225.0..260.0).contains(&soft), "{soft} MB/s, the link 260");
    let programmed = sim.counts().flash_bytes - counts.flash_bytes;
    assert!(
        programmed < 20 << 20,
        "{programmed} bytes programmed of 96 MiB that compress to a ninth"
    );
}

#[test]
fn blocks_of_one_byte_take_the_floor_and_come_back() {
    const BYTES: u64 = 16 << 20;
    let sim = {
        let mut spec = spec(Codec::Lz4);
        log(&mut spec).stored_min = 0.14;
        SimDrive::new(spec).unwrap()
    };
    sequential_write(&sim, BYTES >> 20, |_| vec![0x5a; 1 << 20]);
    let fraction = sim.counts().flash_bytes as f64 / BYTES as f64;
    assert!((0.13..0.17).contains(&fraction), "{fraction} of the bytes were programmed");
    let read = |offset, len| {
        let mut target = vec![1; len];
        let begun_ns = sim.runtime().now_ns();
        sim.runtime().block_on(sim.read(offset, &mut target)).unwrap();
        (target, sim.runtime().now_ns() - begun_ns)
    };
    let (bytes, took_ns) = read(1 << 20, 4096);
    assert_eq!(bytes, [0x5a; 4096]);
    assert!(
        took_ns > log(&mut spec(Codec::Lz4)).timing.read_ns + 12_000,
        "{took_ns} ns: the flash was read"
    );
    sim.runtime().block_on(sim.trim((1 << 20) + 512, 8192)).unwrap();
    let (bytes, _) = read(1 << 20, 3 * 4096);
    assert_eq!(bytes, [vec![0x5a; 4096], vec![0; 4096], vec![0x5a; 4096]].concat());
    let beyond = sim.runtime().block_on(sim.write(128 << 20, &[0; 4096]));
    assert_eq!(beyond.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn the_next_blocks_are_read_ahead_and_dropped_when_they_change() {
    const LEN: usize = 64 << 10;
    let mut spec = spec(Codec::Lz4);
    log(&mut spec).timing.bus_bytes_per_s = 400_000_000;
    let sim = SimDrive::new(spec).unwrap();
    sequential_write(&sim, 2, |number| noise(&mut random(number), 1 << 20));
    let array = [0, 1].map(|number| noise(&mut random(number), 1 << 20)).concat();
    let read = |number: usize, expected: &[u8]| {
        let mut target = vec![0; LEN];
        let begun_ns = sim.runtime().now_ns();
        sim.runtime().block_on(sim.read((number * LEN) as u64, &mut target)).unwrap();
        assert_eq!(target, expected[number * LEN..][..LEN], "{number}");
        sim.runtime().now_ns() - begun_ns
    };
    let took_ns = Vec::from_iter((0..8).map(|number| read(number, &array)));
    // Command, processor and data over the link, without the flash.
    let link_ns = 2_000 + 10_000 + (LEN as u64 * 1_000).div_ceil(270);
    assert!(took_ns[1] > link_ns + 50_000, "{took_ns:?}");
    assert!(took_ns[3..].iter().all(|&ns| ns.abs_diff(link_ns) < 1_000), "{took_ns:?}");
    // Number 8 was read ahead and is now changed.
    let mut changed = array.clone();
    changed[9 * LEN - 4096..][..4096].fill(7);
    sim.runtime().block_on(sim.write((9 * LEN) as u64 - 4096, &[7; 4096])).unwrap();
    assert!(read(8, &changed) > link_ns + 50_000);
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
    // Command, processor, tR, the page over the bus, the data over the wire. A frame usually spans
    // two pages, either of one die, or of two dies that transfer their parts at the same time.
    let others_ns = 2_000 + 10_000 + 50_000 + 4096 * 1000 / 270;
    let (least_ns, most_ns) = (others_ns + 81_920 / 2, others_ns + 81_920 * 5 / 4);
    let mean_ns = sum_ns / count;
    assert!((least_ns..most_ns).contains(&mean_ns), "{mean_ns} ns, {least_ns} to {most_ns}");
}

/// Overwrites until garbage collection is active, and compares with an array. Returns the counters.
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
    let DesignCounts::Log(written) = counts.design else { panic!("{counts:?}") };
    assert!(written.segments_collected > 4, "too tame a test: {written:?}");
    assert_eq!(
        counts.wear.iter().map(|&wear| u64::from(wear)).sum::<u64>(),
        counts.flash.blocks_erased
    );
    (sim.runtime().now_ns(), format!("{:?} {written:?}", counts.flash))
}

#[test]
fn every_byte_is_kept_and_the_same_run_gives_the_same() {
    let first = overwritten(Codec::Lz4);
    assert_eq!(first, overwritten(Codec::Lz4));
    let plain = overwritten(Codec::None);
    assert!(plain.0 > first.0, "{plain:?}, compressing {first:?}");
}

/// Returns requests from a list, regardless of the slot.
struct List(VecDeque<Request>);

impl Host for List {
    fn next(&mut self, _slot: u32, _now_ns: u64) -> crate::Result<Option<Request>> {
        Ok(self.0.pop_front())
    }

    fn done(&mut self, _request: &Request, _begun_ns: u64, _done_ns: u64) {}
}

/// Guards against different results of a benchmark and a forecast for the same drive in the same
/// state.
#[test]
fn a_drive_with_content_takes_the_time_of_one_without() {
    let spec = spec(Codec::None);
    let SimDesign::Log(_, store) = &spec.design else { panic!("a log") };
    let without = LogDriveSpec {
        store: LogStoreSpec::clone(store),
        front: spec.front,
        command_bytes_max: spec.command_bytes_max,
        stripe: 1,
    };
    let mut without = LogDrive::new(without).unwrap();
    let with = SimDrive::new(spec.clone()).unwrap();
    let mut random = random(11);
    let mut list = |verb, bytes: u64, count: u64, is_random: bool| -> VecDeque<Request> {
        let mut offset = |number: u64| match is_random {
            true => random.random_range(0..(128 << 20) / bytes) * bytes,
            false => number * bytes,
        };
        (0..count)
            .map(|number| Request { verb, offset: offset(number), bytes, due_ns: 0 })
            .collect()
    };
    let loads = [
        ("sequential writes", 1, list(Verb::Write, 1 << 20, 128, false)),
        ("random writes", 8, list(Verb::Write, 4096, 20_000, true)),
        ("random reads", 8, list(Verb::Read, 4096, 5_000, true)),
        ("one sequential reader", 1, list(Verb::Read, 64 << 10, 500, false)),
        ("several", 4, list(Verb::Read, 1 << 20, 64, false)),
    ];
    let go_on = AtomicBool::new(false);
    for (name, slots, requests) in loads {
        let begun_ns = (with.runtime().now_ns(), without.now_ns());
        assert!(sim_host::run(&with, &mut List(requests.clone()), slots, &go_on).unwrap());
        assert!(without.run(&mut List(requests), slots, &go_on).unwrap());
        let took_ns = with.runtime().now_ns() - begun_ns.0;
        let other_ns = without.now_ns() - begun_ns.1;
        let ratio = took_ns as f64 / other_ns as f64;
        assert!((ratio - 1.0).abs() < 0.01, "{name}: {took_ns} ns, without content {other_ns} ns");
    }
    let DesignCounts::Log(counts) = with.counts().design else { panic!("a log") };
    let ratio = counts.flash_bytes as f64 / without.counts().flash_bytes as f64;
    assert!((ratio - 1.0).abs() < 0.01, "{counts:?}");
}

/// Guards against memory use for overwritten data: only live data is stored.
#[test]
fn data_of_one_byte_is_stored_and_read_by_a_drive_that_does_not_compress() {
    let sim = SimDrive::new(spec(Codec::None)).unwrap();
    sequential_write(&sim, 32, |_| vec![0x5a; 1 << 20]);
    assert!(sim.counts().flash_bytes >= 32 << 20, "{:?}", sim.counts().flash);
    let mut target = vec![0; 4096];
    let begun_ns = sim.runtime().now_ns();
    sim.runtime().block_on(sim.read(5 << 20, &mut target)).unwrap();
    let took_ns = sim.runtime().now_ns() - begun_ns;
    assert!(took_ns > 50_000 + 81_920, "{took_ns} ns: the flash was not read");
}

#[test]
fn a_drive_that_cannot_be_is_refused() {
    let wrong: [fn(&mut SimSpec); 5] = [
        |spec| spec.size_bytes = 1 << 40,
        |spec| spec.command_bytes_max = 1000,
        |spec| spec.front.depth = 0,
        |spec| log(spec).shape.planes = 0,
        |spec| log(spec).stored_min = 1.5,
    ];
    for (number, wrong) in wrong.into_iter().enumerate() {
        let mut spec = spec(Codec::Lz4);
        wrong(&mut spec);
        assert!(SimDrive::new(spec).is_err(), "{number}");
    }
}

#[test]
fn drives_that_are_no_log_keep_every_byte() {
    for profile in ["jmicron-jmf602b", "hdd-2010"] {
        let sim = SimDrive::new(SimSpec::find(profile).unwrap()).unwrap();
        let mut random = random(3);
        let mut plain = vec![0; 1 << 20];
        for _ in 0..20 {
            let at = random.random_range(0..plain.len() / 512);
            let count = random.random_range(1..=(plain.len() / 512 - at).min(600));
            let data = noise(&mut random, count * 512);
            sim.runtime().block_on(sim.write(at as u64 * 512, &data)).unwrap();
            plain[at * 512..][..data.len()].copy_from_slice(&data);
        }
        sim.runtime().block_on(sim.flush()).unwrap();
        let mut back = vec![1; plain.len()];
        sim.runtime().block_on(sim.read(0, &mut back)).unwrap();
        assert!(back == plain, "{profile}");
        let counts = sim.counts();
        let trimmed = sim.runtime().block_on(sim.trim(0, 4096));
        match &counts.design {
            DesignCounts::BlockMapped(_) => {
                assert!(counts.flash_bytes >= 1 << 20, "{:?}", counts.flash);
                trimmed.unwrap();
            }
            DesignCounts::Disk(head) => {
                assert!(head.head_writes > 0, "{head:?}");
                assert_eq!((counts.flash_bytes, counts.wear.len()), (0, 0));
                assert_eq!(trimmed.unwrap_err().kind(), ErrorKind::Unsupported);
            }
            _ => panic!("{profile}"),
        }
    }
}

/// Reads 2 MiB records sequentially from the start of the disk, and returns the speed in MB/s.
fn sequential_read(sim: &SimDrive, count: u64) -> f64 {
    let mut record = vec![0; 2 << 20];
    let begun_ns = sim.runtime().now_ns();
    for number in 0..count {
        sim.runtime().block_on(sim.read(number * (2 << 20), &mut record)).unwrap();
    }
    (count << 21) as f64 / (sim.runtime().now_ns() - begun_ns) as f64 * 1e3
}

/// Returns the number of random 4 KiB writes per second at depth 3, measured over their second
/// half.
fn random_writes(sim: &Rc<SimDrive>, count: u64, span_bytes: u64) -> f64 {
    let (left, half_ns) = (Rc::new(Cell::new(count)), Rc::new(Cell::new(0)));
    let ended = Rc::new(WaitQueue::default());
    for task in 0..3 {
        let (sim, left, half_ns) = (Rc::clone(sim), Rc::clone(&left), Rc::clone(&half_ns));
        let ended = Rc::clone(&ended);
        sim.runtime().clone().spawn(async move {
            let mut random = random(task);
            for _ in 0..count / 3 {
                let offset = random.random_range(0..span_bytes / 4096) * 4096;
                sim.write(offset, &[7; 4096]).await.unwrap();
                left.set(left.get() - 1);
                if left.get() == count / 2 {
                    half_ns.set(sim.runtime().now_ns());
                }
            }
            ended.wake_all();
        });
    }
    sim.runtime().block_on(ended.wait_for(|| (left.get() == 0).then_some(())));
    (count / 2) as f64 / (sim.runtime().now_ns() - half_ns.get()) as f64 * 1e9
}

/// Guards the numbers in both profiles that were fitted to these results (AnandTech, SSD Anthology,
/// 2009).
#[test]
fn published_figures_come_out_of_the_profiles() {
    let close = |value: f64, published: f64, percent: f64| {
        let off = (value / published - 1.0).abs() * 100.0;
        assert!(off < percent, "{value}, published {published}");
    };
    let sim = Rc::new(SimDrive::new(SimSpec::find("jmicron-jmf602b").unwrap()).unwrap());
    // There are 512 units, and 16 of them have a log, so 3 % of the writes find one.
    sequential_write(&sim, 256, |_| vec![1; 1 << 20]);
    close(sequential_read(&sim, 32), 134.7, 1.0);
    close(random_writes(&sim, 600, 256 << 20) * 0.97, 5.61, 3.0);
    let sim = Rc::new(SimDrive::new(SimSpec::find("hdd-2010").unwrap()).unwrap());
    close(sequential_read(&sim, 32), 104.6, 2.0);
    // The first 4096 enter the cache immediately.
    close(random_writes(&sim, 12_000, 8_000_000_000) * 4096e-6, 1.26, 5.0);
}
