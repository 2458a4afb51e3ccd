//! Goal: a block-mapped drive stores every byte, follows the rules of flash, and the duration of a
//! write includes its merges. Method: random operations on small flash, compared with an array,
//! with several numbers of logs; merges of one kind at a time, compared with calculated durations.

use std::cell::Cell;
use std::rc::Rc;

use futures_util::future::try_join_all;
use rand::RngExt;

use super::*;
use crate::content::SECTOR_BYTES;
use crate::ftl::sample;
use pumice_drive::base::seed::random;
use pumice_drive::runtime::Runtime;

const SPEC: BlockMappedSpec = BlockMappedSpec {
    shape: FlashShape { planes: 1, blocks_per_plane: 32, pages_per_block: 16, ..sample::SHAPE },
    timing: FlashTiming {
        program_ns: 1_000_000,
        program_fast_ns: 1_000_000,
        bus_bytes_per_s: 40_960_000,
        multi_plane: false,
        ..sample::TIMING
    },
    bad_percent: 0.0,
    log_blocks: 4,
    buffer_bytes: 8192,
    out_bytes_per_s: 200_000_000,
};
/// Duration of the transfer of a page over the bus.
const SENT_NS: u64 = 100_000;
const PROGRAM_NS: u64 = SENT_NS + SPEC.timing.program_ns;
const COPY_NS: u64 = SPEC.timing.read_ns + SENT_NS + PROGRAM_NS;
const ERASE_NS: u64 = SPEC.timing.erase_ns;
/// Five stripes of four units of 64 KiB, with an incomplete last stripe.
const SIZE: u64 = 5 * (256 << 10) - 12_288;

struct Bench {
    runtime: Runtime,
    drive: Rc<BlockMapped<Runtime>>,
}

impl Bench {
    fn new(spec: BlockMappedSpec) -> Self {
        let runtime = Runtime::simulated();
        let drive = Rc::new(BlockMapped::new(SIZE, spec, runtime.clone()).unwrap());
        Self { runtime, drive }
    }

    /// Writes, and returns the duration.
    fn write(&self, offset: u64, bytes: &[u8]) -> u64 {
        let begun_ns = self.runtime.now_ns();
        self.runtime.block_on(self.drive.write(offset, bytes)).unwrap();
        self.runtime.now_ns() - begun_ns
    }

    /// Reads, and returns the duration.
    fn read(&self, offset: u64, target: &mut [u8]) -> u64 {
        let begun_ns = self.runtime.now_ns();
        self.runtime.block_on(self.drive.read(offset, target)).unwrap();
        self.runtime.now_ns() - begun_ns
    }

    /// Waits until every die is idle.
    fn settle(&self) {
        self.runtime.block_on(self.runtime.sleep_ns(100_000_000));
    }

    /// Fills all stripes except the last, in order.
    fn fill(&self) {
        for offset in (0..1 << 20).step_by(256 << 10) {
            self.write(offset, &vec![1; 256 << 10]);
        }
        self.settle();
    }
}

/// Compares random operations with an array. Returns the elapsed time and the counters.
fn random_operations(spec: BlockMappedSpec) -> String {
    let bench = Bench::new(spec);
    let mut random = random(spec.log_blocks.into());
    let mut plain = vec![0u8; SIZE as usize];
    let sectors = SIZE / SECTOR_BYTES;
    let mut trimmed = 0;
    for number in 0..1500u32 {
        let at = random.random_range(0..sectors);
        let most = if number.is_multiple_of(4) { 2500 } else { 40 };
        let count = random.random_range(1..=most.min(sectors - at));
        let (offset, len) = (at * SECTOR_BYTES, (count * SECTOR_BYTES) as usize);
        let place = &mut plain[offset as usize..][..len];
        match random.random_range(0..10) {
            0 => {
                bench.runtime.block_on(bench.drive.trim(offset, len as u64)).unwrap();
                place.fill(0);
                trimmed += len;
            }
            1..5 => {
                let mut target = vec![0xee; len];
                bench.read(offset, &mut target);
                assert!(target == place, "operation {number}: {len} bytes at {offset}");
            }
            _ => {
                let mut data = vec![0; len];
                random.fill(&mut data[..]);
                bench.write(offset, &data);
                place.copy_from_slice(&data);
            }
        }
    }
    let mut back = vec![0xee; plain.len()];
    bench.read(0, &mut back);
    assert!(back == plain);
    assert!(trimmed > 1 << 20);
    let state = bench.drive.state.borrow();
    conserved(&state);
    let (merges, flash) = (state.counts, state.flash.counts());
    assert!(merges.full > 50, "too tame a test: {merges:?}");
    format!("{} {merges:?} {flash:?}", bench.runtime.now_ns())
}

/// Asserts that every good block is free, a unit or a log, and that bytes are stored only at mapped
/// positions.
fn conserved(state: &State) {
    let shape = state.layout.shape;
    let used = state.blocks.iter().filter(|&&block| block != NONE).count() + state.logs.len();
    let mut free = state.free.clone();
    let mut counted = used;
    for die in 0..shape.dies() {
        let here = |unit: &u32| *unit % shape.dies() == die;
        let units =
            (0u32..).zip(&state.blocks).filter(|(unit, block)| here(unit) && **block != NONE);
        let taken = units.count() + state.logs.keys().filter(|unit| here(unit)).count();
        for _ in 0..shape.blocks_per_plane as usize - taken {
            free.take(die, Worn::Least);
            counted += 1;
        }
    }
    assert_eq!(counted, (shape.dies() * shape.blocks_per_plane) as usize);
    assert_eq!(free.segment_count(), 0, "a block is free and used");
    let rows = SIZE / u64::from(shape.row_bytes());
    let found = (0..rows).filter(|&row| state.find(state.layout.row(row)).is_some()).count();
    assert!(state.content.held() <= found, "{} rows held, {found} found", state.content.held());
    assert_eq!(state.order.len(), state.logs.len());
    let erases: u64 = state.flash.wear().map(u64::from).sum();
    assert_eq!(erases, state.flash.counts().blocks_erased);
}

#[test]
fn every_byte_is_kept_and_the_same_run_gives_the_same() {
    let first = random_operations(SPEC);
    assert_eq!(first, random_operations(SPEC));
    for log_blocks in [0, 1, 3, 9] {
        random_operations(BlockMappedSpec { log_blocks, ..SPEC });
    }
    let planes = FlashShape { planes: 2, pages_per_block: 8, ..SPEC.shape };
    random_operations(BlockMappedSpec { shape: planes, ..SPEC });
}

#[test]
fn bad_blocks_are_not_in_the_wear() {
    let shape = FlashShape { blocks_per_plane: SPEC.shape.blocks_per_plane * 2, ..SPEC.shape };
    let bench = Bench::new(BlockMappedSpec { bad_percent: 20.0, shape, ..SPEC });
    for turn in 0..40 {
        bench.write(turn % 8 * 8192, &[7; 4096]);
    }
    let (wear, flash) = (bench.drive.wear(), bench.drive.flash_counts());
    let all = f64::from(shape.dies() * shape.blocks_per_plane);
    assert!((0.5 * all..0.95 * all).contains(&(wear.len() as f64)), "{} of {all}", wear.len());
    assert!(flash.blocks_erased > 0);
    assert_eq!(wear.iter().copied().map(u64::from).sum::<u64>(), flash.blocks_erased);
}

/// Guards against concurrent operations in the middle of a merge.
#[test]
fn operations_at_the_same_time_keep_every_byte() {
    let bench = Bench::new(BlockMappedSpec { log_blocks: 1, ..SPEC });
    let left = Rc::new(Cell::new(8u64));
    for task in 0..8u64 {
        let (drive, left) = (Rc::clone(&bench.drive), Rc::clone(&left));
        bench.runtime.spawn(async move {
            let mut random = random(task);
            // This task owns every eighth sector.
            let mut plain = vec![0u8; (SIZE / 8 / SECTOR_BYTES) as usize];
            for number in 0..100 {
                let at = random.random_range(0..plain.len());
                let offset = (at as u64 * 8 + task) * SECTOR_BYTES;
                let mut sector = [number; SECTOR_BYTES as usize];
                if random.random_range(0..2) == 0 {
                    drive.write(offset, &sector).await.unwrap();
                    plain[at] = number;
                }
                drive.read(offset, &mut sector).await.unwrap();
                assert_eq!(sector, [plain[at]; SECTOR_BYTES as usize]);
            }
            left.set(left.get() - 1);
        });
    }
    bench.runtime.block_on(async {
        while left.get() > 0 {
            bench.runtime.sleep_ns(1_000_000).await;
        }
    });
    conserved(&bench.drive.state.borrow());
}

#[test]
fn a_stream_in_order_copies_nothing_and_erases_once_a_unit() {
    let bench = Bench::new(SPEC);
    bench.fill();
    let before = bench.drive.flash_counts();
    assert_eq!(before.blocks_erased, 0);
    let begun_ns = bench.runtime.now_ns();
    for offset in (0..1 << 20).step_by(32 << 10) {
        bench.write(offset, &[2; 32 << 10]);
    }
    let took_ns = bench.runtime.now_ns() - begun_ns;
    let after = bench.drive.flash_counts();
    assert_eq!(bench.drive.merges().rows_copied, 0);
    assert_eq!(bench.drive.merges().switches, 2 * 16);
    assert_eq!(after.pages_programmed - before.pages_programmed, 256);
    assert_eq!((after.blocks_erased, after.pages_read), (16, 0));
    // Two rows on each of four dies, with four transfers on each of two buses.
    let command_ns = 2 * PROGRAM_NS + SENT_NS;
    let erases_ns = 3 * ERASE_NS;
    assert!(
        took_ns.abs_diff(32 * command_ns + erases_ns) < 3_000_000,
        "{took_ns}, {command_ns} a command"
    );
}

#[test]
fn a_random_write_costs_a_merge() {
    let bench = Bench::new(SPEC);
    bench.fill();
    // One row in each of four units, but not the first row, because these units have logs.
    let row = |unit: u64, within: u64| (unit / 4 * 64 + within * 4 + unit % 4) * 4096;
    for unit in 0..4 {
        assert_eq!(bench.write(row(unit, 5), &[2; 4096]), PROGRAM_NS, "unit {unit}");
    }
    let before = bench.drive.flash_counts();
    // The oldest unit is copied and two blocks are erased before the requested write.
    let merge_ns = 16 * COPY_NS + 2 * ERASE_NS;
    for unit in 4..12 {
        assert_eq!(bench.write(row(unit, 5), &[2; 4096]), merge_ns + PROGRAM_NS, "unit {unit}");
    }
    let after = bench.drive.flash_counts();
    assert_eq!(after.pages_programmed - before.pages_programmed, 8 * 17);
    assert_eq!(after.pages_read - before.pages_read, 8 * 16);
    assert_eq!(after.blocks_erased - before.blocks_erased, 8 * 2);
    let MergeCounts { full, partial, rows_copied, .. } = bench.drive.merges();
    assert_eq!((full, partial, rows_copied), (8, 0, 8 * 16));
    // The most recently started units still have their logs.
    assert_eq!(bench.write(row(9, 6), &[2; 4096]), PROGRAM_NS);
    // Two concurrent writes on two dies run sequentially.
    let begun_ns = bench.runtime.now_ns();
    let both = [12, 13].map(|unit| bench.drive.write(row(unit, 5), &[2; 4096]));
    bench.runtime.block_on(try_join_all(both)).unwrap();
    assert_eq!(bench.runtime.now_ns() - begun_ns, 2 * (merge_ns + PROGRAM_NS));
    // Half a row is read before it is written; then the merge follows, because there are no logs.
    let bench = Bench::new(BlockMappedSpec { log_blocks: 0, ..SPEC });
    bench.fill();
    assert_eq!(bench.write(8192 + 512, &[2; 512]), COPY_NS + merge_ns);
}

#[test]
fn a_log_in_order_needs_only_the_rest_of_its_unit() {
    let bench = Bench::new(BlockMappedSpec { log_blocks: 1, ..SPEC });
    bench.fill();
    let before = (bench.drive.flash_counts(), bench.drive.merges());
    bench.write(0, &[2; 6 * 4096]);
    // A different unit.
    let took_ns = bench.write(128 << 10, &[2; 4096]);
    assert_eq!(took_ns, 10 * COPY_NS + ERASE_NS + PROGRAM_NS);
    let after = (bench.drive.flash_counts(), bench.drive.merges());
    assert_eq!(after.0.blocks_erased - before.0.blocks_erased, 1);
    assert_eq!((after.1.partial - before.1.partial, after.1.full - before.1.full), (1, 0));
    assert_eq!(after.1.rows_copied - before.1.rows_copied, 10);
}

#[test]
fn a_stream_is_read_at_the_speed_of_the_channels() {
    let bench = Bench::new(SPEC);
    bench.fill();
    let mut target = vec![0; 32 << 10];
    bench.read(512 << 10, &mut target);
    bench.settle();
    let alone_ns = bench.read(0, &mut target);
    // Two buses with four rows each; all rows except the last have left the drive by then.
    let wire_ns = 7 * 4096 * 5;
    assert_eq!(alone_ns, 50_000 + 4 * SENT_NS - wire_ns);
    let begun_ns = bench.runtime.now_ns();
    for offset in (32 << 10..512 << 10).step_by(32 << 10) {
        bench.read(offset, &mut target);
        bench.runtime.block_on(bench.runtime.sleep_ns(wire_ns + 40_000));
    }
    // The host's last pause is after the last read.
    let took_ns = bench.runtime.now_ns() - begun_ns - wire_ns - 40_000;
    let channels_ns = 15 * 4 * SENT_NS;
    assert!(took_ns.abs_diff(channels_ns) < channels_ns / 100, "{took_ns}, buses {channels_ns}");
}

#[test]
fn impossible_drives_are_refused() {
    let wrong: [fn(&mut BlockMappedSpec); 6] = [
        |spec| spec.bad_percent = 51.0,
        |spec| spec.out_bytes_per_s = 0,
        |spec| spec.shape.planes = 0,
        // Five units on each die, four logs, and a merge.
        |spec| spec.shape.blocks_per_plane = 9,
        |spec| spec.log_blocks = u32::MAX,
        |spec| spec.timing.bus_bytes_per_s = 0,
    ];
    for (number, wrong) in wrong.into_iter().enumerate() {
        let mut spec = SPEC;
        wrong(&mut spec);
        assert!(BlockMapped::new(SIZE, spec, Runtime::simulated()).is_err(), "{number}");
    }
    let mut fits = SPEC;
    fits.shape.blocks_per_plane = 10;
    assert!(BlockMapped::new(SIZE, fits, Runtime::simulated()).is_ok());
    assert!(BlockMapped::new(u64::MAX, SPEC, Runtime::simulated()).is_err());
    let bench = Bench::new(SPEC);
    for (offset, len) in [(100, 512), (0, 100), (SIZE, 512), (u64::MAX - 511, 512)] {
        let target = &mut vec![0; len];
        assert!(bench.runtime.block_on(bench.drive.read(offset, target)).is_err(), "{offset}");
        assert!(bench.runtime.block_on(bench.drive.write(offset, target)).is_err(), "{offset}");
        let trim = bench.drive.trim(offset, len as u64);
        assert!(bench.runtime.block_on(trim).is_err(), "{offset}");
    }
}
