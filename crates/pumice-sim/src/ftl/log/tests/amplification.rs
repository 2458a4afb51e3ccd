//! Goal: garbage collection has the cost predicted by theory, with and without compression. Method:
//! uniform random writes that cover several times the span, after the same number of writes to
//! reach steady state, on a few hundred segments of at least 1024 blocks, because the formulas
//! assume many blocks per segment and many segments. Raw space is the space of segments that
//! contain data: segments kept free do not count, and the two open ones count half.
//!
//! Three of the seven over-provisionings of the benchmark `model`, which measures all of them with
//! longer runs.

use rand::RngExt;

use super::*;
use crate::ftl::sample;
use pumice_drive::base::seed::random;

/// Returns the write amplification of uniform random writes under greedy garbage collection; a is
/// the ratio of raw to user space.
///
/// Source: Xiang and Kurkoski, "An improved analytic expression for write amplification in NAND
/// flash", 2012.
fn xiang_kurkoski(a: f64) -> f64 {
    // w = -W0(-a e^-a) is the root below 1 of w e^-w = a e^-a.
    let w = (0..100_000).fold(0.0, |w: f64, _| (w - a).exp() * a);
    a / (a - w)
}

/// Returns a drive of 250 segments of 1024 blocks, with every block written once.
fn drive(a: f64, stored: f64, header_bytes: u32) -> LogFtl {
    let shape = FlashShape { blocks_per_plane: 250, pages_per_block: 128, ..sample::SHAPE };
    let full = f64::from(shape.blocks_per_plane) - 1.0 - 1.5;
    let user_blocks = (full * 1024.0 / a) as u64;
    let stored = StoredSizes::Constant(stored);
    let spec = LogSpec { shape, user_blocks, stored, header_bytes, free_segments: 2, ..small() };
    let mut drive = LogFtl::new(spec).unwrap();
    host(Order::Sequential, 1).run(&mut drive, user_blocks).unwrap();
    drive.settle();
    drive
}

/// Returns a host that continues at the drive's current time.
fn uniform(drive: &LogFtl) -> Host {
    let spec = HostSpec { depth: 4, blocks: 1, order: Order::Uniform, read_percent: 0, seed: 1 };
    Host::new(spec, drive.now_ns).unwrap()
}

/// Overwrites the drive this many times. Returns the ratio of raw to user space, and the write
/// amplification.
fn measure(drive: &mut LogFtl, host: &mut Host, overwrites: u64) -> (f64, f64) {
    let before = drive.counts();
    let (mut free, mut samples) = (0.0, 0.0);
    let user_blocks = drive.spec.user_blocks;
    for _ in 0..overwrites * user_blocks / 100 {
        host.run(drive, 100).unwrap();
        drive.trace.clear();
        free += f64::from(drive.free_segments());
        samples += 1.0;
    }
    let full = f64::from(drive.spec.shape.blocks_per_plane) - 1.0 - free / samples;
    let raw_blocks = full * f64::from(drive.layout.segment_bytes) / 4096.0;
    (raw_blocks / user_blocks as f64, drive.counts().since(&before).write_amplification())
}

#[test]
fn the_formula_gives_the_published_figures() {
    for (a, published) in [(1.05, 10.67), (1.0737, 7.46), (1.28, 2.48), (1.5, 1.72)] {
        assert!((xiang_kurkoski(a) - published).abs() < 0.006, "{a}: {}", xiang_kurkoski(a));
    }
}

#[test]
fn amplification_follows_the_formula() {
    for (a, overwrites) in [(1.0737, 3), (1.2, 3), (1.5, 4)] {
        let mut drive = drive(a, 1.0, 0);
        let mut host = uniform(&drive);
        measure(&mut drive, &mut host, overwrites);
        let (a_measured, measured) = measure(&mut drive, &mut host, overwrites);
        assert!((a_measured / a - 1.0).abs() < 0.01, "a is {a_measured}, not {a}");
        let expected = xiang_kurkoski(a_measured);
        let ratio = measured / expected;
        assert!((ratio - 1.0).abs() < 0.02, "a = {a_measured}: {measured}, by formula {expected}");
    }
}

#[test]
fn compression_is_worth_more_over_provisioning() {
    for (stored, a) in [(0.44, 1.0737), (0.75, 1.1), (0.9, 1.0737)] {
        let mut drive = drive(a, stored, 24);
        let mut host = uniform(&drive);
        measure(&mut drive, &mut host, 3);
        let (a_measured, measured) = measure(&mut drive, &mut host, 3);
        let s = stored + 24.0 / 4096.0;
        let expected = s * xiang_kurkoski(a_measured / s);
        let ratio = measured / expected;
        assert!((ratio - 1.0).abs() < 0.03, "s = {s}: {measured}, first order {expected}");
    }
}

/// The cost-benefit policy spares cold segments until collecting them is worthwhile; the greedy
/// policy does not.
#[test]
fn cost_benefit_spares_cold_data() {
    let cost = |victims| {
        let mut drive = drive(1.15, 1.0, 0);
        drive.spec.victims = victims;
        let blocks = drive.spec.user_blocks;
        let mut random = random(3);
        let mut before = drive.counts();
        let mut now_ns = drive.now_ns;
        for write in 0..5 * blocks {
            // Nine of ten writes are in a tenth of the drive.
            let hot = random.random_range(0..10) > 0;
            let end = if hot { blocks / 10 } else { blocks };
            let lba = random.random_range(0..end);
            now_ns = drive.write(now_ns, Lba(lba), 1).unwrap();
            drive.trace.clear();
            if write == 3 * blocks {
                before = drive.counts();
            }
        }
        drive.counts().since(&before).write_amplification()
    };
    let (greedy, cost_benefit) = (cost(VictimPolicy::Greedy), cost(VictimPolicy::CostBenefit));
    assert!(cost_benefit < 0.9 * greedy, "{cost_benefit} against {greedy}");
}
