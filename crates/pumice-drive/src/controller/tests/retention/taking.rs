//! Goal: a snapshot is taken in a moment, and hosts do not notice. Method: virtual time, in which
//! only the medium takes time: 80 us to 2 ms per operation, as an SSD needs for anything from a
//! small read to a large write when it is busy.

use std::cell::RefCell;

use rand::RngExt;

use super::snapshots::new;
use super::*;
use crate::base::seed::random;
use crate::controller::tests::content::simulated::run_all;

const LATENCY_NS: std::ops::RangeInclusive<u64> = 80_000..=2_000_000;

const TIB: u64 = 1 << 40;

fn large(seed: u64) -> World {
    let spec = Spec::new(uuid::Uuid::from_u128(0x71b), TIB);
    let plan = FaultPlan { latency_ns: LATENCY_NS, ..FaultPlan::default() };
    World { plan, seed, ..World::new(spec) }
}

#[test]
fn a_snapshot_of_a_tebibyte_is_taken_within_20_ms() {
    let world = large(1);
    let drive = world.open();
    // A leaf in each gibibyte.
    for gib in 0..1024 {
        world.write(&drive, gib << 30, &[7; BLOCK_BYTES]).unwrap();
    }
    world.run(drive.create_snapshot(new("base", 0))).unwrap();
    let taken = (1..=30).map(|number| {
        let from = world.runtime.now_ns();
        world.run(drive.create_snapshot(new(&number.to_string(), number))).unwrap();
        world.runtime.now_ns() - from
    });
    let longest = taken.max().unwrap();
    assert!(longest < 20_000_000, "{longest} ns");
    world.close(drive);
}

/// The operation that [`latencies`] performs every 10 ms of virtual time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    Checkpoints,
    Snapshots,
}

/// Returns the latencies of writes with FUA by 32 hosts, in nanoseconds, in ascending order.
fn latencies(seed: u64, meanwhile: Meanwhile) -> Vec<u64> {
    let world = large(seed);
    let drive = world.open();
    let found: Rc<RefCell<Vec<u64>>> = Rc::default();
    let hosts = (0..32).map(|host| {
        let (drive, clock, found) = (drive.clone(), world.runtime.clone(), found.clone());
        let mut random = random(seed << 8 | host);
        async move {
            for _ in 0..400 {
                let offset = random.random_range(0..TIB / BLOCK) * BLOCK;
                let from = clock.now_ns();
                drive.write_durable(offset, &[random.random(); BLOCK_BYTES]).await.unwrap();
                found.borrow_mut().push(clock.now_ns() - from);
            }
        }
    });
    let (other, clock) = (drive.clone(), world.runtime.clone());
    world.runtime.spawn(async move {
        for number in 0..1000 {
            clock.sleep_ns(10_000_000).await;
            match meanwhile {
                Meanwhile::Checkpoints => other.checkpoint().await.unwrap(),
                Meanwhile::Snapshots => {
                    other.create_snapshot(new(&number.to_string(), number)).await.unwrap();
                }
            }
        }
    });
    run_all(&world, hosts);
    let (checkpoints, taken) = (drive.info().operations.checkpoints, drive.snapshots().len());
    assert!(checkpoints > 20, "{checkpoints} checkpoints: hosts leave them no buffers");
    assert_eq!(taken > 20, meanwhile == Meanwhile::Snapshots, "{taken} snapshots");
    world.runtime.drop_tasks();
    let mut found = found.take();
    found.sort_unstable();
    found
}

#[test]
fn no_write_waits_longer_for_a_snapshot_than_for_a_checkpoint() {
    let all = |meanwhile| -> Vec<u64> {
        let mut all: Vec<_> = (0..3).flat_map(|seed| latencies(seed, meanwhile)).collect();
        all.sort_unstable();
        all
    };
    let (checkpoints, snapshots) = (all(Meanwhile::Checkpoints), all(Meanwhile::Snapshots));
    for per_mille in [500, 990, 999, 1000] {
        let at = |all: &[u64]| all[(all.len() * per_mille).div_ceil(1000) - 1];
        let (without, with) = (at(&checkpoints), at(&snapshots));
        assert!(with <= without + without / 10, "{per_mille}: {with} ns, {without} ns without");
    }
}
