//! Goal: whatever the requests, sizes, data, codec and frame size, the disk reads like a plain
//! array of bytes; live bytes are exact; recovery restores the state before the end. Method: seeded
//! random requests to a drive and an array, compared throughout.

use rand::RngExt;

use super::*;
use crate::base::seed::{Random, random};

const SIZE: u64 = 8 << 20;
const STEPS: u32 = 220;

struct Pair {
    world: World,
    drive: Rc<Drive>,
    plain: Vec<u8>,
    random: Random,
    options: OpenOptions,
    /// Whether the state can be compared before and after a restart. If not, garbage collection and
    /// checkpoints continue after the last flush.
    is_exact: bool,
}

impl Pair {
    fn new(spec: Spec, options: OpenOptions, seed: u64) -> Self {
        let world = World::new(spec);
        let drive = world.try_open(options).unwrap();
        let plain = vec![0; SIZE as usize];
        let is_exact = options.recompress.is_none();
        Self { world, drive, plain, random: random(seed), options, is_exact }
    }

    /// Returns a byte range: aligned, within a block, or across borders; sometimes longer than 1
    /// MiB.
    fn range(&mut self) -> (u64, usize) {
        let random = &mut self.random;
        let len = match random.random_range(0..20) {
            0..6 => random.random_range(1..4096),
            6..12 => random.random_range(1..=8) * BLOCK_BYTES,
            12..19 => random.random_range(1..300 << 10),
            _ => random.random_range(1 << 20..2_500_000),
        };
        let offset = random.random_range(0..=SIZE - len as u64);
        if random.random() {
            return (offset / BLOCK * BLOCK, len);
        }
        (offset, len)
    }

    fn step(&mut self) {
        let (offset, len) = self.range();
        let range = offset as usize..offset as usize + len;
        let drive = self.drive.clone();
        let fua = self.random.random_range(0..8) == 0;
        match self.random.random_range(0..100) {
            0..50 => {
                let data = payload::any(&mut self.random, len);
                self.world.run(with(fua, &drive, drive.write(offset, &data))).unwrap();
                self.plain[range].copy_from_slice(&data);
            }
            50..58 => {
                self.world.run(with(fua, &drive, drive.trim(offset, len as u64))).unwrap();
                let whole = offset.div_ceil(BLOCK) * BLOCK..(offset + len as u64) / BLOCK * BLOCK;
                if !whole.is_empty() {
                    self.plain[whole.start as usize..whole.end as usize].fill(0);
                }
            }
            58..66 => {
                let allocation = allocation(self.random.random());
                let zeroes = drive.write_zeroes(offset, len as u64, allocation);
                self.world.run(with(fua, &drive, zeroes)).unwrap();
                self.plain[range].fill(0);
            }
            66..90 => {
                let read = self.world.read(&drive, offset, len).unwrap();
                assert!(read == self.plain[range], "read of {offset}+{len}");
            }
            90..94 => self.world.run(drive.flush()).unwrap(),
            94..96 => self.world.run(self.world.runtime.clone().sleep_ns(3_000_000_000)),
            kind => {
                drop(drive);
                self.restart(kind < 98);
            }
        }
    }

    /// Reopens, after a close or after a flush and a kill.
    fn restart(&mut self, closes: bool) {
        let before = state(&self.drive);
        if closes {
            self.world.run(self.drive.close()).unwrap();
        } else {
            self.world.run(self.drive.flush()).unwrap();
        }
        self.world.runtime.drop_tasks();
        self.drive = self.world.try_open(self.options).unwrap();
        assert_eq!(self.drive.info().was_clean, closes);
        if !self.is_exact {
            return self.compare();
        }
        assert_same_state(before, &self.drive);
    }

    fn compare(&self) {
        let read = self.world.read(&self.drive, 0, SIZE as usize).unwrap();
        let wrong = (0..SIZE as usize).find(|&at| read[at] != self.plain[at]);
        assert_eq!(wrong, None, "first wrong byte");
    }
}

fn compare_with_an_array(codec: Codec, workers: Option<&Workers>) {
    for (seed, frame_blocks) in [(1, 1), (2, 8), (3, 64)] {
        let spec = Spec { codec, frame_blocks, ..small(SIZE, 40) };
        let mut pair = Pair::new(spec, OpenOptions::default(), seed);
        if let Some(workers) = workers {
            pair.drive.use_workers(workers.clone());
        }
        for _ in 0..STEPS {
            pair.step();
        }
        pair.compare();
        assert_accounting(&pair.drive);
        pair.restart(true);
        pair.compare();
        pair.restart(true);
        let report = pair.world.check();
        assert_eq!(report.problems, [], "frames of {frame_blocks}");
        assert!(report.frames > 20 && report.segments > 1);
    }
}

#[test]
fn a_drive_without_codec_is_an_array() {
    compare_with_an_array(Codec::None, None);
}

#[test]
fn a_drive_with_lz4_is_an_array() {
    compare_with_an_array(Codec::Lz4, None);
}

#[test]
fn a_drive_with_zstd_is_an_array() {
    compare_with_an_array(Codec::Zstd { level: 1 }, None);
}

#[test]
fn a_drive_with_fast_zstd_is_an_array() {
    compare_with_an_array(Codec::Zstd { level: -1 }, None);
}

/// No other thread participates: the tasks do the work of the threads, in virtual time.
#[test]
fn a_drive_that_compresses_before_it_appends_is_an_array() {
    let workers = Workers::start(0).unwrap();
    compare_with_an_array(Codec::Zstd { level: 1 }, Some(&workers));
    compare_with_an_array(Codec::Lz4, Some(&workers));
}

/// First with frames in a long log, then in one in which every block is moved and frames are cut.
#[test]
fn a_drive_of_chunks_is_an_array() {
    let zstd = Codec::Zstd { level: -1 };
    for (seed, frame_blocks, codec) in [(1, 8, Codec::Lz4), (2, 4, zstd)] {
        // Only a few blocks and tables fit.
        let options = OpenOptions { read_cache_bytes: 256 << 10, ..OpenOptions::default() };
        for (segments, steps) in [(40, STEPS), (4, 4 * STEPS)] {
            let frame_form = FrameForm::Chunks;
            let spec = Spec { codec, frame_blocks, frame_form, ..small(SIZE, segments) };
            let mut pair = Pair::new(spec, options, seed);
            pair.is_exact = segments == 40;
            for _ in 0..steps {
                pair.step();
            }
            pair.compare();
            pair.restart(false);
            pair.compare();
            assert!(segments > 4 || pair.drive.info().moved_bytes > 0, "too tame: nothing moved");
            pair.restart(true);
            let report = pair.world.check();
            assert!(report.problems.is_empty(), "{:?}", report.problems);
        }
    }
}

/// A log that is little longer than the disk, so that every block is moved.
#[test]
fn a_drive_that_recompresses_cold_data_is_an_array() {
    for (seed, frame_blocks) in [(1, 1), (2, 8), (3, 2), (4, 64)] {
        let spec = Spec { codec: Codec::Lz4, frame_blocks, ..small(SIZE, 4) };
        let recompress = Some(Codec::Zstd { level: 1 });
        let options = OpenOptions { recompress, ..OpenOptions::default() };
        let mut pair = Pair::new(spec, options, seed);
        for _ in 0..8 * STEPS {
            pair.step();
        }
        pair.compare();
        pair.restart(true);
        pair.compare();
        let Pair { world, drive, .. } = pair;
        assert!(drive.info().moved_bytes > 0, "too tame: nothing moved");
        world.close(drive);
        assert_eq!(world.check().problems, []);
    }
}

#[test]
fn requests_beyond_the_end_change_nothing() {
    let world = World::new(small(SIZE, 4));
    let drive = world.open();
    for (offset, len) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 2), (u64::MAX - 1, 1)] {
        let refused = Some(ErrorKind::InvalidInput);
        assert_eq!(kind(world.run(drive.write(offset, &vec![1; len as usize]))), refused);
        assert_eq!(kind(world.run(drive.trim(offset, len))), refused);
        assert_eq!(kind(world.run(drive.write_zeroes(offset, len, Allocation::Release))), refused);
        assert_eq!(kind(world.read(&drive, offset, len as usize)), refused);
    }
    for offset in [0, 1, SIZE] {
        world.write(&drive, offset, &[]).unwrap();
        world.run(drive.trim_durable(offset, 0)).unwrap();
        world.run(drive.write_zeroes_durable(offset, 0, Allocation::Release)).unwrap();
        world.read(&drive, offset, 0).unwrap();
    }
    assert_eq!(drive.info().sequence, 0, "a batch was written");
}

/// A write above 1 MiB is split into atomic pieces. A split within a block would let a crash leave
/// half of that block new.
#[test]
fn long_writes_are_cut_between_blocks() {
    let world = World::new(small(SIZE, 8));
    let drive = world.open();
    let data = payload::noise(&mut random(9), 3 << 20);
    world.write(&drive, 100, &data).unwrap();
    assert_eq!(drive.info().operations.merged_blocks, 2);
    assert!(world.read(&drive, 100, data.len()).unwrap() == data);
}
