//! Goal: garbage collection neither waits for whoever waits for it, nor makes a passing fault of
//! the medium last.
//! Method: drives that hold little more than their disk, overwritten many times.

use rand::RngExt;

use super::*;
use crate::base::seed::random;
use crate::media::layer::Trigger;

const SIZE: u64 = 6 << 20;

/// A full drive for garbage collection to be busy with.
fn full() -> World {
    World::new(Spec { capacity_bytes: None, ..small(SIZE, 0) })
}

/// Guards against a write that keeps the segment it merges a block from while it waits for room,
/// and garbage collection that waits for it to let go.
#[test]
fn writes_of_parts_of_blocks_do_not_stop_garbage_collection() {
    let mut world = full();
    world.plan.latency_ns = 1..=2_000_000;
    let drive = world.open();
    let left = Rc::new(Cell::new(8));
    for number in 0..left.get() {
        let (drive, left) = (drive.clone(), left.clone());
        world.runtime.spawn(async move {
            let mut random = random(number);
            for _ in 0..40 {
                let data = payload::noise(&mut random, (512 << 10) + 100);
                let offset = random.random_range(0..SIZE - data.len() as u64) | 1;
                drive.write(offset, &data, false).await.unwrap();
            }
            left.set(left.get() - 1);
        });
    }
    world.run(async {
        for _ in 0..3600 {
            world.runtime.sleep_ns(1_000_000_000).await;
        }
    });
    assert_eq!(left.get(), 0, "writes wait for ever");
    assert!(drive.info().operations.gc_victims > 0, "too tame a test");
}

/// Guards against a good frame that is read with a flipped bit, copied like that, and given back.
#[test]
fn a_disturbed_reading_damages_nothing() {
    let mut world = full();
    let mut random = random(5);
    let mut plain = vec![0; SIZE as usize];
    world.plan.read_corruptions = Trigger::Probability(0.2);
    let drive = world.open();
    while drive.info().operations.gc_victims < 40 {
        let data = payload::noise(&mut random, 64 << 10);
        let offset = random.random_range(0..(SIZE as usize - data.len()) / BLOCK_BYTES);
        let offset = offset * BLOCK_BYTES;
        // Pages of the map may be read wrong too; then nothing is written.
        if world.write(&drive, offset as u64, &data).is_ok() {
            plain[offset..offset + data.len()].copy_from_slice(&data);
        }
    }
    world.close(drive);
    world.plan = FaultPlan::default();
    let drive = world.open();
    assert!(world.read(&drive, 0, plain.len()).unwrap() == plain);
}
