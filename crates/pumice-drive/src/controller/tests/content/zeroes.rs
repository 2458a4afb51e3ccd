//! Goal: after a crash, a write-zeroes of up to 1 MiB has taken effect as a whole or not at all,
//! wherever it begins and ends. Method: several concurrent clients, and one that flushes
//! repeatedly, so that batches end anywhere; the process dies at random moments.

use rand::RngExt;

use super::*;
use crate::base::seed::random;

const REGION: u64 = 256 << 10;
const REGIONS: u64 = 60;
const FROM: u64 = 100;
const LEN: u64 = 40_000;

#[test]
fn a_write_of_zeroes_that_is_not_of_whole_blocks_is_atomic() {
    let mut seen = [0; 2];
    for seed in 0..30 {
        let mut world = World::new(small(REGIONS * REGION, 8));
        world.plan.latency_ns = 0..=200_000;
        world.seed = seed;
        let drive = world.open();
        let mut random = random(seed);
        let before = payload::noise(&mut random, REGION as usize);
        for region in 0..REGIONS {
            world.write(&drive, region * REGION, &before).unwrap();
        }
        world.run(drive.flush()).unwrap();
        for client in 0..3 {
            let drive = drive.clone();
            world.runtime.spawn(async move {
                for region in (client..REGIONS).step_by(3) {
                    let allocation = allocation(region % 2 == 0);
                    drive.write_zeroes(region * REGION + FROM, LEN, allocation).await.unwrap();
                }
            });
        }
        let (flusher, clock) = (drive.clone(), world.runtime.clone());
        world.runtime.spawn(async move {
            // A flush without data returns immediately, so without the sleep no time would pass.
            while flusher.flush().await.is_ok() {
                clock.sleep_ns(20_000).await;
            }
        });
        world.run(world.runtime.sleep_ns(random.random_range(0..4_000_000)));
        world.kill(drive);
        world.plan = FaultPlan::default();
        let drive = world.open();
        for region in 0..REGIONS {
            let found = world.read(&drive, region * REGION, before.len()).unwrap();
            let part = FROM as usize..(FROM + LEN) as usize;
            let mut after = before.clone();
            after[part].fill(0);
            assert!(found == before || found == after, "seed {seed}: region {region} in part");
            seen[usize::from(found == after)] += 1;
        }
        world.close(drive);
    }
    assert!(seen[0] > 100 && seen[1] > 100, "too tame a test: {seen:?}");
}
