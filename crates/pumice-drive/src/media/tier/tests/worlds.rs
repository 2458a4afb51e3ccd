//! Goal: the promises hold at any moment, whatever fails. Method: seeded worlds. Each is a sequence
//! of lives. A life writes for a random time and ends at any point where its tasks wait: by a power
//! loss of the journal, by its loss, or because another machine takes over the drive while the
//! first one is stopped, to continue later. In some worlds, a flush waits for the bucket. After
//! each life, an earlier copy of the journal is tried.

use rand::RngExt;

use super::store::STORMY;
use super::*;
use crate::base::seed::random;

/// Enough for each kind of end to meet each state; many more were run by hand.
const SEEDS: u64 = 8;

const LIVES: u32 = 6;

/// Attempts to open a drive in a storm.
const ATTEMPTS: u32 = 10;

/// The writes that the bucket and the journal must have.
#[derive(Clone, Copy, Default)]
struct Floor {
    /// Writes that were flushed.
    flushed: u64,
    /// Writes that were flushed before the cut of an image that counts.
    committed: u64,
}

/// Writes in order, with an occasional flush, as long as the machine permits.
async fn work(machine: &Machine, first: u64, floor: &Cell<Floor>, seed: u64) {
    let mut random = random(seed);
    for number in first.. {
        if write(&machine.drive, number).await.is_err() {
            return;
        }
        match random.random_range(0..300) {
            0 => {
                if machine.tier.state.until_committed(true).await.is_err() {
                    return;
                }
                let Floor { flushed, .. } = floor.get();
                floor.set(Floor { flushed, committed: flushed });
            }
            1..30 => {
                if machine.drive.flush().await.is_err() {
                    return;
                }
                let in_bucket = machine.tier.state.is_durable_in_bucket();
                let committed = if in_bucket { number } else { floor.get().committed };
                floor.set(Floor { flushed: number, committed });
            }
            _ => {}
        }
    }
}

/// The state of a world between two lives.
struct Between {
    journal: MemMedium,
    floor: Floor,
}

fn live(world: &World, between: &mut Between, seed: u64) {
    let mut random = random(seed);
    let floor = between.floor;
    let copy = world.run(copy_of(world, &between.journal));
    let (local, machine) = open(world, &between.journal);
    let found = world.run(prefix(&machine.drive));
    assert!(found >= floor.flushed, "{found} writes of {} flushed", floor.flushed);
    // The recovered writes are durable now.
    let now = Cell::new(Floor { flushed: found, committed: floor.committed });
    let for_ns = random.random_range(0..20_000_000_000);
    world.run(world.runtime.timeout(for_ns, work(&machine, found + 1, &now, seed)));
    between.floor = now.get();
    if random.random_range(0..3) == 0 {
        // The journal retains its synced bytes.
        world.run(local.crash()).unwrap();
    } else {
        lose_journal(world, between, &machine, seed);
    }
    drop(machine);
    world.runtime.drop_tasks();
    refuse(world, &copy);
}

/// Checks that an earlier copy of a journal is refused.
fn refuse(world: &World, copy: &MemMedium) {
    for _ in 0..ATTEMPTS {
        let error = world.run(world.open(copy)).err().expect("the journal is an earlier copy");
        if error.kind() != ErrorKind::Io {
            let is_refused = matches!(error.kind(), ErrorKind::Busy | ErrorKind::InvalidInput);
            assert!(is_refused, "{}", error.chain());
            break;
        }
    }
}

/// Opens the drive. A storm may make this fail a few times.
fn open(world: &World, journal: &MemMedium) -> (Local, Machine) {
    for _ in 0..ATTEMPTS {
        let local = world.local(journal);
        match world.run(world.open_on(local.clone())) {
            Ok(machine) => return (local, machine),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io, "{}", error.chain()),
        }
    }
    panic!("the journal is the drive's");
}

fn take_over(world: &World, journal: &mut MemMedium) -> Machine {
    for _ in 0..ATTEMPTS {
        *journal = world.journal();
        match world.run(world.take_over(journal)) {
            Ok(machine) => return machine,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io, "{}", error.chain()),
        }
    }
    panic!("a drive can be taken over");
}

/// Lets another machine take over the drive while the first one is stopped. The first one continues
/// at some later time.
fn lose_journal(world: &World, between: &mut Between, first: &Machine, seed: u64) {
    let floor = between.floor;
    first.gate.stop();
    let other = take_over(world, &mut between.journal);
    let found = world.run(prefix(&other.drive));
    assert!(found >= floor.committed, "{found} writes of {} committed", floor.committed);
    let now = Cell::new(Floor { flushed: found, committed: found });
    if seed.is_multiple_of(2) {
        first.gate.resume();
    }
    let fenced = Cell::new(floor);
    // The first machine continues to write, in vain.
    let in_vain = work(first, u64::from(u32::MAX), &fenced, seed ^ 1);
    let both = futures_util::future::join(in_vain, work(&other, found + 1, &now, seed ^ 2));
    world.run(world.runtime.timeout(15_000_000_000, both));
    first.gate.resume();
    world.run(world.runtime.sleep_ns(5_000_000_000));
    assert_eq!(fenced.get().committed, floor.committed, "a fenced machine has committed");
    between.floor = now.get();
}

#[test]
fn promises_hold_under_any_failure() {
    let from = std::env::var("PUMICE_TIER_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = from.map_or(0..SEEDS, |seed: u64| seed..seed + SEEDS);
    for seed in seeds {
        let mut world = World::new(seed);
        world.options.lag_bytes_max = if seed % 3 == 0 { 2 << 20 } else { 64 << 20 };
        world.options.lag_ns = 1_000_000_000;
        let in_bucket = seed % 4 >= 2;
        world.options.durable = if in_bucket { Durable::Bucket } else { Durable::Local };
        let mut between = Between { journal: world.journal(), floor: Floor::default() };
        world.run(world.create(&between.journal)).expect("the store answers");
        world.sim.faults.set(if seed % 2 == 0 { STORMY } else { Faults::default() });
        for life in 0..LIVES {
            live(&world, &mut between, seed * 1000 + u64::from(life));
        }
    }
}

#[test]
fn a_concurrent_takeover_finds_every_counted_commit() {
    for seed in 0..8 {
        let mut world = World::new(seed);
        world.options.durable = Durable::Bucket;
        let (journal, other) = (world.journal(), world.journal());
        world.run(world.create(&journal)).unwrap();
        let first = world.run(world.open(&journal)).unwrap();
        let committed = Cell::new(0);
        let write_on = async {
            for number in 1.. {
                let flushed = match write(&first.drive, number).await {
                    Ok(()) => first.drive.flush().await,
                    failed => failed,
                };
                if flushed.is_err() {
                    return;
                }
                committed.set(number);
            }
        };
        let take_over = async {
            world.runtime.sleep_ns(1_000_000_000 + seed * 37_000_000).await;
            let second = world.take_over(&other).await.unwrap();
            prefix(&second.drive).await
        };
        let both = futures_util::future::join(write_on, take_over);
        let (_, found) = world.run(both);
        assert!(committed.get() > 0, "some were committed");
        assert!(found >= committed.get(), "{found} of {}, seed {seed}", committed.get());
        drop(first);
        world.runtime.drop_tasks();
    }
}
