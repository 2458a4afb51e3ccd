//! Goal: durations on flash are the sum of the times of their parts, each die and bus performs one
//! operation at a time, and operations that real flash would not survive are refused. Method: sums
//! calculated by hand for single operations and for bandwidth; random operations whose busy times
//! on dies and buses are recorded and must not overlap.

use rand::RngExt;

use super::*;
use crate::ftl::sample;
use pumice_drive::base::ErrorKind;
use pumice_drive::base::seed::random;

/// 34 nm MLC as in the drives of 2010: 82 us per page over the bus.
const SHAPE: FlashShape = FlashShape {
    channels: 4,
    dies_per_channel: 4,
    blocks_per_plane: 8,
    pages_per_block: 16,
    ..sample::SHAPE
};
const TRANSFER_NS: u64 = 82_000;
const TIMING: FlashTiming =
    FlashTiming { bus_bytes_per_s: 4096 * 1_000_000_000 / TRANSFER_NS, ..sample::TIMING };

/// A period in which a die's array or a bus is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Taken {
    is_bus: bool,
    die: u32,
    from_ns: u64,
    to_ns: u64,
}

impl Taken {
    pub(super) fn bus(die: u32, from_ns: u64, to_ns: u64) -> Self {
        Self { is_bus: true, die, from_ns, to_ns }
    }

    pub(super) fn array(die: u32, from_ns: u64, to_ns: u64) -> Self {
        Self { is_bus: false, die, from_ns, to_ns }
    }
}

fn flash(timing: FlashTiming) -> Flash {
    Flash::new(SHAPE, timing).unwrap()
}

fn at(die: u32, block: u32) -> BlockAddress {
    BlockAddress { die, block }
}

/// Asserts equality to within two nanoseconds per transfer, because transfers are rounded up.
fn assert_near(ns: u64, expected_ns: u64, transfers: u64) {
    assert!(ns.abs_diff(expected_ns) <= 2 * transfers, "{ns} ns, not {expected_ns}");
}

#[test]
fn one_operation_takes_the_sum_of_its_parts() {
    let mut one = flash(TIMING);
    assert_near(one.program(0, at(0, 0), 0).unwrap(), 2 * TRANSFER_NS + 900_000, 2);
    let now = 10_000_000;
    assert_near(one.read(now, at(0, 0), 0, 1, 4096).unwrap(), now + 50_000 + TRANSFER_NS, 1);
    let now = 20_000_000;
    assert_near(one.read(now, at(0, 0), 0, 2, 2048).unwrap(), now + 50_000 + TRANSFER_NS / 2, 1);
    let now = 30_000_000;
    assert_eq!(one.erase(now, at(0, 0)).unwrap(), now + 2_000_000);
    let counts = FlashCounts { pages_programmed: 2, pages_read: 3, blocks_erased: 1 };
    assert_eq!(one.counts(), counts);
    assert_eq!((one.erases(at(0, 0)), one.wear().sum::<u32>()), (1, 1));

    let mut single = flash(FlashTiming { multi_plane: false, ..TIMING });
    assert_near(single.program(0, at(0, 0), 0).unwrap(), 2 * (TRANSFER_NS + 900_000), 2);
    let now = 10_000_000;
    let both = single.read(now, at(0, 0), 0, 2, 8192).unwrap();
    assert_near(both, now + 2 * 50_000 + 2 * TRANSFER_NS, 2);
    let now = 20_000_000;
    assert_eq!(single.erase(now, at(0, 0)).unwrap(), now + 4_000_000);
}

/// Bandwidth of writing row after row over all dies. The model of the drives of 2010 has 7.7 MB/s
/// per die. If the register is filled during programming, the slower of array and bus determines
/// the speed.
#[test]
fn a_sequential_write_reaches_the_bandwidth_of_its_parts() {
    let write = |timing: FlashTiming| {
        let mut flash = flash(timing);
        let mut ended_ns = 0;
        for row in 0..SHAPE.pages_per_block {
            for die in 0..SHAPE.dies() {
                ended_ns = ended_ns.max(flash.program(0, at(die, 0), row).unwrap());
            }
        }
        let bytes = u64::from(SHAPE.pages_per_block * SHAPE.dies() * SHAPE.row_bytes());
        bytes as f64 / ended_ns as f64 * 1e3
    };
    let per_row_us = 900.0 + 2.0 * 82.0;
    let expected = 16.0 * 8192.0 / per_row_us;
    let plain = write(TIMING);
    assert!((plain / expected - 1.0).abs() < 0.04, "{plain} MB/s, by arithmetic {expected}");
    // In the first round, the dies of a channel take turns on the bus, which adds 3 transfers.
    let cached = write(FlashTiming { cache_program: true, ..TIMING });
    let expected = 16.0 * 8192.0 / 900.0;
    assert!((cached / expected - 1.0).abs() < 0.06, "{cached} MB/s, by arithmetic {expected}");
    let slow_bus = FlashTiming { bus_bytes_per_s: 20_000_000, cache_program: true, ..TIMING };
    let limited = write(slow_bus);
    // With so few rows, the last program operation has a noticeable effect.
    assert!((limited / 80.0 - 1.0).abs() < 0.04, "{limited} MB/s over four buses of 20 MB/s");
}

#[test]
fn reads_of_several_dies_share_only_their_bus() {
    let mut flash = flash(TIMING);
    for die in 0..SHAPE.dies() {
        flash.program(0, at(die, 0), 0).unwrap();
    }
    let now = 100_000_000;
    let mut read = |die| flash.read(now, at(die, 0), 0, 1, 4096).unwrap() - now;
    assert_near(read(0), 50_000 + TRANSFER_NS, 1);
    assert_near(read(1), 50_000 + TRANSFER_NS, 1);
    assert_near(read(4), 50_000 + 2 * TRANSFER_NS, 2);
    assert_near(read(1), 2 * (50_000 + TRANSFER_NS), 2);
}

#[test]
fn the_rules_of_flash_are_kept() {
    let mut flash = flash(TIMING);
    let refused = |result: Result<u64>, rule: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().starts_with(rule), "{error}");
    };
    let in_order = "pages must be programmed in order";
    let unwritten = "a page was read before it was programmed";
    refused(flash.program(0, at(0, 0), 1), in_order);
    refused(flash.read(0, at(0, 0), 0, 1, 1), unwritten);
    flash.program(0, at(0, 0), 0).unwrap();
    refused(flash.program(0, at(0, 0), 0), in_order);
    refused(flash.read(0, at(0, 0), 1, 1, 1), unwritten);
    refused(flash.read(0, at(0, 0), 0, 3, 1), "a read is longer");
    refused(flash.read(0, at(0, 0), 0, 1, 4097), "a read is longer");
    for row in 1..SHAPE.pages_per_block {
        flash.program(0, at(0, 0), row).unwrap();
    }
    refused(flash.program(0, at(0, 0), SHAPE.pages_per_block), in_order);
    flash.erase(0, at(0, 0)).unwrap();
    refused(flash.read(0, at(0, 0), 0, 1, 1), unwritten);
    flash.program(0, at(0, 0), 0).unwrap();
    for address in [at(16, 0), at(0, 8), at(u32::MAX, u32::MAX)] {
        refused(flash.program(0, address, 0), "there is no such block");
        refused(flash.read(0, address, 0, 1, 1), "there is no such block");
        refused(flash.erase(0, address), "there is no such block");
    }
}

#[test]
fn dies_and_buses_do_one_thing_at_a_time() {
    for seed in 0..8 {
        let mut random = random(seed);
        let (multi_plane, cache_program) = (seed & 1 > 0, seed & 2 > 0);
        let mut flash = flash(FlashTiming { multi_plane, cache_program, ..TIMING });
        let mut rows = vec![0; (SHAPE.dies() * SHAPE.blocks_per_plane) as usize];
        let mut now_ns = 0;
        for _ in 0..2000 {
            now_ns += random.random_range(0..200_000);
            let address = at(
                random.random_range(0..SHAPE.dies()),
                random.random_range(0..SHAPE.blocks_per_plane),
            );
            let row = &mut rows[(address.die * SHAPE.blocks_per_plane + address.block) as usize];
            let ended_ns = match random.random_range(0..10) {
                0..6 if *row < SHAPE.pages_per_block => {
                    *row += 1;
                    flash.program(now_ns, address, *row - 1)
                }
                0..9 if *row > 0 => {
                    let pages = random.random_range(1..=SHAPE.planes);
                    let bytes = random.random_range(0..=pages * SHAPE.page_bytes);
                    flash.read(now_ns, address, random.random_range(0..*row), pages, bytes)
                }
                _ => {
                    *row = 0;
                    flash.erase(now_ns, address)
                }
            };
            assert!(ended_ns.unwrap() >= now_ns);
        }
        assert_apart(flash.taken.iter().filter(|taken| !taken.is_bus), |taken| taken.die);
        let channel = |taken: &Taken| taken.die % SHAPE.channels;
        assert_apart(flash.taken.iter().filter(|taken| taken.is_bus), channel);
    }
}

/// Asserts that no two busy times of the same owner overlap.
fn assert_apart<'a>(taken: impl Iterator<Item = &'a Taken>, owner: impl Fn(&Taken) -> u32) {
    let mut all: Vec<&Taken> = taken.collect();
    all.sort_by_key(|taken| (owner(taken), taken.from_ns, taken.to_ns));
    assert!(all.len() > 1000, "too tame a test");
    for pair in all.windows(2) {
        let apart = pair[0].to_ns <= pair[1].from_ns || owner(pair[0]) != owner(pair[1]);
        assert!(apart, "{pair:?}");
    }
}

#[test]
fn impossible_flash_is_refused() {
    let wrong_shapes: [fn(&mut FlashShape); 8] = [
        |shape| shape.channels = 0,
        |shape| shape.dies_per_channel = 0,
        |shape| shape.planes = 0,
        |shape| shape.blocks_per_plane = 0,
        |shape| shape.pages_per_block = 0,
        |shape| shape.page_bytes = 4095,
        |shape| shape.blocks_per_plane = u32::MAX,
        |shape| (shape.channels, shape.blocks_per_plane) = (1 << 20, 1 << 20),
    ];
    for (number, wrong) in wrong_shapes.into_iter().enumerate() {
        let mut shape = SHAPE;
        wrong(&mut shape);
        assert!(Flash::new(shape, TIMING).is_err(), "shape {number}");
    }
    let timing = FlashTiming { bus_bytes_per_s: 0, ..TIMING };
    assert!(Flash::new(SHAPE, timing).is_err());
    let timing = FlashTiming { erase_ns: u64::MAX, ..TIMING };
    assert!(Flash::new(SHAPE, timing).is_err());
    assert_eq!(SHAPE.bytes(), 16 * 8 * 16 * 8192);
}
