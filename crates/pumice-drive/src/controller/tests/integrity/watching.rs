//! Goal: the parts of the overview add up to the capacity, whatever the drive holds; the map of
//! segments has the requested length and shows the actual state; and reasons for refusing writes
//! are reported. Method: drives that are written, filled, trimmed, damaged and poisoned.

use rand::RngExt;

use super::*;
use crate::base::seed::random;
use crate::media::layer::Trigger;

fn assert_adds_up(drive: &Drive) -> Overview {
    let (overview, info) = (drive.overview(), drive.info());
    let Overview { live_bytes, dead_bytes, free_bytes, reserve_bytes, .. } = overview;
    assert_eq!(live_bytes + dead_bytes + free_bytes + reserve_bytes, info.capacity_bytes);
    assert_eq!(live_bytes, info.live_bytes);
    overview
}

fn kinds(drive: &Drive) -> Vec<(AlertKind, bool)> {
    let alerts = drive.overview().alerts.into_iter();
    alerts.map(|alert| (alert.kind, alert.refuses_writes)).collect()
}

#[test]
fn the_parts_add_up_and_a_full_drive_is_in_trouble() {
    let size = 64u64 << 20;
    let world = World::new(small(size, 6));
    let warn_percent = Some([40, 0, 0, 0]);
    let options = OpenOptions { warn_percent, ..OpenOptions::default() };
    let drive = world.try_open(options).unwrap();
    let fresh = assert_adds_up(&drive);
    assert_eq!((fresh.live_bytes, fresh.dead_bytes, &*fresh.alerts), (0, 0, &[][..]));
    assert!(fresh.reserve_bytes > 0 && fresh.free_bytes > 5 * u64::from(SEGMENT_BYTES));
    let mut random = random(1);
    for len in [1 << 20, 4 << 10] {
        loop {
            let data = payload::noise(&mut random, len);
            let offset = random.random_range(0..size / len as u64) * len as u64;
            if world.write(&drive, offset, &data).is_err() {
                break;
            }
            assert_adds_up(&drive);
        }
    }
    let full = assert_adds_up(&drive);
    assert!(full.gc_debt_segments > 0);
    assert_eq!(kinds(&drive), [(AlertKind::Full, true)]);
    world.run(drive.trim_durable(0, size)).unwrap();
    world.run(drive.audit()).unwrap();
    assert_eq!(kinds(&drive), []);
    assert_adds_up(&drive);
}

#[test]
fn a_poisoned_drive_is_in_trouble() {
    let world = World::new(small(16 << 20, 8));
    let drive = world.open();
    let sync_errors = Trigger::Nth(1);
    drive.layers().set_plan(FaultPlan { sync_errors, ..FaultPlan::default() });
    world.write(&drive, 0, &[1; 4096]).unwrap();
    assert!(world.run(drive.flush()).is_err());
    assert_eq!(kinds(&drive), [(AlertKind::Poisoned, true)]);
}

#[test]
fn the_map_is_as_long_as_was_asked_for() {
    let world = World::new(small(64 << 20, 20));
    let drive = world.open();
    world.write(&drive, 0, &payload::noise(&mut random(1), 1 << 20)).unwrap();
    for _ in 0..3 {
        // Makes the host's stream continue in other segments, and leaves dead ones.
        for at in 0..8 {
            world.write(&drive, at << 20, &payload::noise(&mut random(at), 1 << 20)).unwrap();
        }
    }
    let map = drive.segment_map(u32::MAX);
    let count = drive.info().segment_count;
    assert_eq!((map.cells.len(), map.segments_per_cell), (count as usize, 1));
    let shown = |state| map.cells.iter().filter(|cell| cell.0 == state).count() as u32;
    assert_eq!(shown(CellState::Free), drive.info().free_segments);
    assert!(shown(CellState::Host) >= 3 && shown(CellState::Open) >= 1);
    assert_eq!(shown(CellState::Stuck), 0);
    for cells_max in [0, 1, 2, 5, 7, count - 1] {
        let map = drive.segment_map(cells_max);
        assert!(map.cells.len() <= cells_max.max(1) as usize, "{cells_max}");
        let covered = map.cells.len() as u32 * map.segments_per_cell;
        assert!(covered >= count && covered - count < map.segments_per_cell, "{cells_max}");
    }
    assert_eq!(drive.segment_map(1).cells[0].0, CellState::Open);
}
