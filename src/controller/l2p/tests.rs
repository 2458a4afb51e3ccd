//! Goal: the map agrees with a plain array of mappings under random operations, reports every
//! frame piece exactly once when it dies, and keeps its leaves normalised.

use std::collections::HashMap;

use rand::RngExt;

use super::*;
use crate::base::seed::random;

const BLOCKS: u64 = 5 * 1024 + 100;

struct Model {
    map: L2p,
    plain: Vec<Mapping>,
    live: HashMap<(u32, u32), u64>,
    next_offset: u32,
}

impl Model {
    fn new() -> Self {
        let plain = vec![Mapping::Hole; BLOCKS as usize];
        Self { map: L2p::new(BLOCKS), plain, live: HashMap::new(), next_offset: 0 }
    }

    fn write(&mut self, lba: u64, blocks: u8) {
        self.next_offset += 1000;
        let record_bytes = 100 + self.next_offset % 97;
        let place = FramePlace { segment: 3, offset: self.next_offset, record_bytes, blocks };
        self.live.insert((3, place.offset), u64::from(record_bytes));
        let live = &mut self.live;
        self.map.map_frame(Lba(lba), place, |released| release(live, released));
        for index in 0..blocks {
            self.plain[lba as usize + usize::from(index)] = Mapping::Frame { place, index };
        }
    }

    fn uniform(&mut self, lba: u64, count: u64, mapping: Mapping) {
        let live = &mut self.live;
        self.map.map_uniform(Lba(lba), count, mapping, |released| release(live, released));
        self.plain[lba as usize..(lba + count) as usize].fill(mapping);
    }

    fn reap(&mut self, steps: u32) -> bool {
        let live = &mut self.live;
        self.map.reap(steps, |released| release(live, released))
    }

    fn check(&self) {
        let mut lba = 0;
        while lba < BLOCKS {
            let (mapping, count) = self.map.lookup(Lba(lba));
            assert!(count > 0);
            for step in 0..count.min(BLOCKS - lba) {
                let expected = match mapping {
                    Mapping::Frame { place, index } => {
                        Mapping::Frame { place, index: index + step as u8 }
                    }
                    uniform => uniform,
                };
                assert_eq!(self.plain[(lba + step) as usize], expected, "LBA {}", lba + step);
            }
            lba += count;
        }
        let mapped: u64 = self.map.runs().map(|(_, count, _)| count).sum();
        let expected = self.plain.iter().filter(|mapping| **mapping != Mapping::Hole).count();
        assert_eq!(mapped, expected as u64);
        for leaf in self.map.pages.iter().flatten().flat_map(|page| page.iter().flatten()) {
            leaf.check();
        }
    }

    /// Live bytes by frame, recounted from the plain array.
    fn recount(&self) -> HashMap<(u32, u32), u64> {
        let mut live = HashMap::new();
        for mapping in &self.plain {
            if let Mapping::Frame { place, index } = mapping {
                let bytes = u64::from(place.share(*index, 1));
                *live.entry((place.segment, place.offset)).or_default() += bytes;
            }
        }
        live
    }
}

fn release(live: &mut HashMap<(u32, u32), u64>, released: Released) {
    let key = (released.place.segment, released.place.offset);
    let bytes = u64::from(released.place.share(released.index, released.count));
    let left = live.get_mut(&key).expect("a frame was released twice");
    *left = left.checked_sub(bytes).expect("more bytes released than the frame has");
    if *left == 0 {
        live.remove(&key);
    }
}

#[test]
fn agrees_with_a_plain_array() {
    for seed in 0..20 {
        let mut random = random(seed);
        let mut model = Model::new();
        for step in 0..600 {
            let lba = random.random_range(0..BLOCKS);
            match random.random_range(0..10) {
                0..6 => {
                    let room = (1024 - lba % 1024).min(BLOCKS - lba).min(16);
                    model.write(lba, random.random_range(1..=room) as u8);
                }
                kind => {
                    let limit = if kind == 6 { BLOCKS } else { 40 };
                    let count = random.random_range(1..=(BLOCKS - lba).min(limit));
                    let mapping = match random.random_range(0..3) {
                        0 => Mapping::Fill(0),
                        1 => Mapping::Fill(0xff),
                        _ => Mapping::Hole,
                    };
                    model.uniform(lba, count, mapping);
                }
            }
            model.reap(random.random_range(0..2));
            if step % 20 == 0 {
                model.check();
            }
        }
        while model.reap(7) {}
        model.check();
        assert_eq!(model.live, model.recount(), "seed {seed}");
    }
}

/// Random writes of single blocks leave a leaf in which nothing is searched for.
#[test]
fn a_leaf_of_single_blocks_finds_each() {
    let mut model = Model::new();
    for step in 0..1024 {
        model.write(1024 + step * 357 % 1024, 1);
    }
    model.check();
    assert_eq!(model.map.runs().count(), 1024);
    for step in 0..1024 {
        model.uniform(1024 + step * 31 % 1024, 1, Mapping::Fill(1));
    }
    model.check();
    assert_eq!(model.map.runs().collect::<Vec<_>>(), [(Lba(1024), 1024, Mapping::Fill(1))]);
    assert!(model.live.is_empty());
}

#[test]
fn trimming_the_largest_drive_touches_no_leaf() {
    let blocks = 1u64 << 40;
    let mut map = L2p::new(blocks);
    let place = FramePlace { segment: 0, offset: 0, record_bytes: 50, blocks: 1 };
    map.map_frame(Lba(blocks / 2), place, |_| panic!("nothing was there"));
    map.map_uniform(Lba(1), blocks - 2, Mapping::Hole, |_| panic!("not an edge"));
    assert_eq!(map.lookup(Lba(blocks / 2)).0, Mapping::Hole);
    let mut released = 0;
    let mut calls = 0;
    while map.reap(64, |_| released += 1) {
        calls += 1;
    }
    assert_eq!(released, 1);
    assert!(calls <= blocks / 1024 / 1024 / 64 + 20, "{calls} calls: absent pages are skipped");
}

#[test]
fn a_sequential_frame_is_one_run_of_sixteen_bytes() {
    let mut model = Model::new();
    for lba in (0..1024).step_by(8) {
        model.write(lba, 8);
    }
    model.check();
    assert_eq!(model.map.runs().count(), 128);
    assert!(model.map.memory_bytes() < 8 * 1024 + 128 * 16 * 2 + 200);
}
