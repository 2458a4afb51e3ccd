//! The sequence of requests of one thread.

use rand::RngExt;

use super::blend::Blend;
use super::request::{Action, Request};
use super::shuffle::Shuffle;
use super::zipf::Zipf;
use crate::workload::{Operation, Pattern, Workload};
use pumice_drive::base::seed::{Random, random};

/// Share of accesses to the hot part of the span, and size of that part as a share of the span.
///
/// Source: the 80/20 rule, as in SNIA's and most published studies of hot and cold data.
const HOT_ACCESSES: f64 = 0.8;
const HOT_SPACE: f64 = 0.2;

/// The requests of one thread. An operation that copies files has none.
pub struct Requests {
    workload: Workload,
    random: Random,
    /// Set for [`Pattern::Zipf`].
    zipf: Option<Zipf>,
    /// Set for [`Pattern::Once`], with the number of records already returned.
    shuffle: Option<(Shuffle, u64)>,
    /// Set for a mix.
    blend: Option<Blend>,
    /// This thread's record range for sequential operations: the first record, and the exclusive
    /// end.
    first: u64,
    end: u64,
    /// Number of requests already returned, their total bytes, and the bytes in the thread's part.
    given: u64,
    given_bytes: u64,
    part_bytes: u64,
    /// Next record of a stride read, and its lane.
    strided: u64,
    lane: u64,
}

impl Requests {
    /// Returns the requests of thread number `thread` of a checked workload.
    pub fn new(workload: &Workload, thread: u32, seed: u64) -> Self {
        let shared = match workload.operation {
            Operation::Copy => workload.records() / 2,
            Operation::SurfaceRead => workload.surface().reads(),
            operation if operation.file_set().is_some() => 0,
            _ => workload.records(),
        };
        let part = |number: u32| {
            (u128::from(shared) * u128::from(number) / u128::from(workload.threads)) as u64
        };
        let (first, end) = (part(thread), part(thread + 1));
        let zipf = match workload.pattern {
            Pattern::Zipf(theta) => Some(Zipf::new(workload.records(), theta)),
            Pattern::Uniform | Pattern::Once | Pattern::HotCold => None,
        };
        let is_once = workload.pattern == Pattern::Once;
        // All threads share one order and take turns.
        let shuffle = is_once.then(|| (Shuffle::new(workload.records(), seed), u64::from(thread)));
        // Threads of a random order take turns; threads of a sequential order have separate parts.
        let own = match workload.operation.is_timed() {
            true => shared.saturating_sub(u64::from(thread)).div_ceil(u64::from(workload.threads)),
            false => end - first,
        };
        let blend = (!workload.mix.is_empty()).then(|| Blend::new(workload, thread));
        Self {
            zipf,
            shuffle,
            blend,
            workload: workload.clone(),
            random: random(seed ^ (u64::from(thread) << 48)),
            first,
            end,
            given: 0,
            given_bytes: 0,
            part_bytes: own * workload.record_bytes,
            strided: first,
            lane: 0,
        }
    }

    fn offset(&self, record: u64) -> u64 {
        self.workload.shift_bytes + record * self.workload.record_bytes
    }

    fn drawn(&mut self) -> u64 {
        let records = self.workload.records();
        if let Some(zipf) = &self.zipf {
            return zipf.draw(&mut self.random);
        }
        if let Some((shuffle, next)) = &mut self.shuffle {
            let place = *next % records;
            *next += u64::from(self.workload.threads);
            return shuffle.record(place);
        }
        let hot = ((records as f64 * HOT_SPACE) as u64).clamp(1, records);
        match self.workload.pattern {
            Pattern::HotCold if hot < records => {
                if self.random.random_bool(HOT_ACCESSES) {
                    self.random.random_range(0..hot)
                } else {
                    self.random.random_range(hot..records)
                }
            }
            _ => self.random.random_range(0..records),
        }
    }

    /// Returns the next record of a stride read. Lanes are read one after another, so that every
    /// record is read once before any is read again.
    fn stride(&mut self) -> u64 {
        let record = self.strided;
        self.strided += self.workload.stride_records();
        if self.strided >= self.end {
            self.lane += 1;
            if self.lane >= self.workload.stride_records().min(self.end - self.first) {
                self.lane = 0;
            }
            self.strided = self.first + self.lane;
        }
        record
    }

    /// Returns whether the thread has completed its part of the span.
    fn is_over(&self) -> bool {
        let is_done = self.given_bytes >= self.part_bytes;
        self.first == self.end || (self.workload.ends_with_span() && is_done)
    }

    fn action(&mut self) -> Action {
        // A time-based pass restarts at the end.
        let number = self.given % (self.end - self.first);
        match self.workload.operation {
            Operation::SurfaceRead => {
                let record = self.workload.surface().record(self.first + number);
                Action::Read(self.offset(record.unwrap_or(0)))
            }
            Operation::Write | Operation::Rewrite | Operation::FWrite | Operation::FRewrite => {
                Action::Write(self.offset(self.first + number))
            }
            Operation::Read | Operation::Reread | Operation::FRead | Operation::FReread => {
                Action::Read(self.offset(self.first + number))
            }
            Operation::BackwardRead => Action::Read(self.offset(self.end - 1 - number)),
            Operation::StrideRead => {
                let record = self.stride();
                Action::Read(self.offset(record))
            }
            Operation::RecordRewrite => Action::Write(self.offset(self.first)),
            Operation::Copy => {
                let record = self.first + number;
                Action::Copy(self.offset(record), self.offset(self.workload.records() / 2 + record))
            }
            Operation::RandomRead | Operation::AccessRead => Action::Read(self.drawn_offset()),
            Operation::BurstRead => Action::Read(self.offset(self.first)),
            Operation::RandomWrite => Action::Write(self.drawn_offset()),
            Operation::Trim => Action::Trim(self.drawn_offset()),
            // Files are copied elsewhere, without requests.
            Operation::CopyFile
            | Operation::CopyRange
            | Operation::CopyIso
            | Operation::CopyProgram
            | Operation::CopyGame => Action::Read(self.offset(self.first)),
            Operation::Mixed => {
                let reads = self.random.random_range(0..100) < self.workload.reads_percent;
                let offset = self.drawn_offset();
                if reads { Action::Read(offset) } else { Action::Write(offset) }
            }
        }
    }

    fn drawn_offset(&mut self) -> u64 {
        let record = self.drawn();
        self.offset(record)
    }
}

impl Iterator for Requests {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        if self.is_over() {
            return None;
        }
        let request = match &mut self.blend {
            Some(blend) => blend.draw(&mut self.random),
            None => {
                let action = self.action();
                Request { action, bytes: self.workload.record_bytes, pause_ns: 0 }
            }
        };
        self.given += 1;
        self.given_bytes += request.bytes;
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: every operation accesses the positions that its name implies, record by record or
    //! throughout the span, and never beyond it. Method: the steps are listed and examined.
    use std::collections::BTreeSet;

    use super::*;
    use crate::workload::{Ends, Flush};

    const RECORD: u64 = 4096;

    fn workload(operation: Operation, records: u64, threads: u32) -> Workload {
        Workload {
            operation,
            record_bytes: RECORD,
            depth: 1,
            threads,
            span_bytes: records * RECORD,
            shift_bytes: 0,
            pattern: Pattern::Uniform,
            reads_percent: 70,
            seconds: 1.0,
            flush: Flush::Timed,
            ends: Ends::Usual,
            mix: Vec::new(),
        }
    }

    fn actions(workload: &Workload, thread: u32, seed: u64) -> impl Iterator<Item = Action> {
        Requests::new(workload, thread, seed).map(|request| request.action)
    }

    /// Returns up to 10,000 steps of each thread, in records.
    fn steps(workload: &Workload) -> Vec<Action> {
        let threads = 0..workload.threads;
        threads.flat_map(|thread| actions(workload, thread, 5).take(10_000)).collect()
    }

    fn reads(steps: &[Action]) -> Vec<u64> {
        let read = |step: &Action| match step {
            Action::Read(offset) => Some(offset / RECORD),
            _ => None,
        };
        steps.iter().filter_map(read).collect()
    }

    fn writes(steps: &[Action]) -> Vec<u64> {
        let written = |step: &Action| match step {
            Action::Write(offset) => Some(offset / RECORD),
            _ => None,
        };
        steps.iter().filter_map(written).collect()
    }

    #[test]
    fn sequential_operations_go_over_every_record_once() {
        for threads in [1, 3] {
            use Operation::{FRead, FReread, FRewrite, FWrite, Read, Reread, Rewrite, Write};
            for operation in [Read, Reread, FRead, FReread] {
                let all: Vec<u64> = (0..100).collect();
                assert_eq!(reads(&steps(&workload(operation, 100, threads))), all);
            }
            for operation in [Write, Rewrite, FWrite, FRewrite] {
                let all: Vec<u64> = (0..100).collect();
                assert_eq!(writes(&steps(&workload(operation, 100, threads))), all);
            }
        }
    }

    #[test]
    fn backward_reads_begin_at_the_end() {
        let backwards: Vec<u64> = (0..100).rev().collect();
        assert_eq!(reads(&steps(&workload(Operation::BackwardRead, 100, 1))), backwards);
    }

    #[test]
    fn stride_reads_leap_and_miss_nothing() {
        for (records, threads) in [(100, 1), (100, 4), (5, 1), (17, 1), (18, 1)] {
            let found = reads(&steps(&workload(Operation::StrideRead, records, threads)));
            assert_eq!(found.len() as u64, records);
            assert_eq!(found.iter().copied().collect::<BTreeSet<_>>().len() as u64, records);
        }
        let found = reads(&steps(&workload(Operation::StrideRead, 100, 1)));
        assert_eq!(found[..8], [0, 17, 34, 51, 68, 85, 1, 18]);
    }

    #[test]
    fn a_surface_read_covers_the_whole_disk() {
        for (records, positions) in [(1, 1), (15, 1), (16, 1), (40, 2), (8000, 500), (99_999, 500)]
        {
            let found = reads(&steps(&workload(Operation::SurfaceRead, records, 1)));
            let stretch = records.min(16);
            assert_eq!(found.len() as u64, positions * stretch, "{records} records");
            assert!(found.is_sorted(), "{records} records");
            assert_eq!(found[0], 0);
            // A single stretch of a longer span is at its start.
            let end = if positions == 1 { stretch } else { records };
            assert_eq!(found.last(), Some(&(end - 1)), "{records} records");
        }
    }

    #[test]
    fn reads_as_it_is_stay_in_the_span() {
        let found = reads(&steps(&workload(Operation::AccessRead, 100, 1)));
        assert!(found.iter().any(|record| *record > 90) && found.iter().all(|it| *it < 100));
        let found = reads(&steps(&workload(Operation::BurstRead, 100, 1)));
        assert!(found.len() == 10_000 && found.iter().all(|record| *record == 0));
        assert_eq!(steps(&workload(Operation::CopyIso, 100, 1)), []);
    }

    #[test]
    fn a_record_rewrite_stays_at_its_record() {
        let found = writes(&steps(&workload(Operation::RecordRewrite, 100, 1)));
        assert_eq!(found.len(), 10_000);
        assert!(found.iter().all(|record| *record == 0));
    }

    #[test]
    fn a_copy_reads_one_half_and_writes_the_other() {
        let found = steps(&workload(Operation::Copy, 101, 2));
        let pairs = (0..50).map(|record| Action::Copy(record * RECORD, (50 + record) * RECORD));
        assert_eq!(found, pairs.collect::<Vec<_>>());
    }

    #[test]
    fn random_operations_cover_the_span_evenly() {
        for operation in [Operation::RandomRead, Operation::RandomWrite, Operation::Trim] {
            let mut counts = [0u32; 16];
            for step in steps(&workload(operation, 16, 1)) {
                let offset = match (operation, step) {
                    (Operation::RandomRead, Action::Read(offset))
                    | (Operation::RandomWrite, Action::Write(offset))
                    | (Operation::Trim, Action::Trim(offset)) => offset,
                    (_, other) => panic!("{operation:?} gave {other:?}"),
                };
                counts[(offset / RECORD) as usize] += 1;
            }
            // 625 are expected, with a deviation of 24.
            assert!(counts.iter().all(|count| (500..750).contains(count)), "{counts:?}");
        }
    }

    #[test]
    fn a_mixed_load_mixes_as_asked() {
        let found = steps(&workload(Operation::Mixed, 1000, 1));
        let share = reads(&found).len() as f64 / found.len() as f64;
        assert!((0.68..0.72).contains(&share), "{share}");
        assert_eq!(reads(&found).len() + writes(&found).len(), found.len());
    }

    #[test]
    fn four_of_five_go_to_the_hot_part() {
        let mut hot_cold = workload(Operation::RandomWrite, 1000, 1);
        hot_cold.pattern = Pattern::HotCold;
        let found = writes(&steps(&hot_cold));
        let hot = found.iter().filter(|record| **record < 200).count() as f64;
        assert!((0.78..0.82).contains(&(hot / found.len() as f64)), "{hot}");
        assert!(found.iter().any(|record| *record > 950));
    }

    #[test]
    fn a_pass_visits_every_record_once() {
        for (records, threads) in [(1, 1), (7, 1), (1000, 1), (1000, 4)] {
            let mut load = workload(Operation::RandomRead, records, threads);
            load.pattern = Pattern::Once;
            let each = (records / u64::from(threads)) as usize;
            let mut all = Vec::new();
            for thread in 0..threads {
                all.extend(reads(&actions(&load, thread, 3).take(each).collect::<Vec<_>>()));
            }
            let sorted = BTreeSet::from_iter(all.iter().copied());
            assert_eq!(sorted.len() as u64, records, "{records} records, {threads} threads");
            let rising = all.windows(2).filter(|pair| pair[0] < pair[1]).count();
            assert!(records < 1000 || (300..700).contains(&rising), "{rising} steps up of 999");
        }
    }

    #[test]
    fn zipf_has_hot_records_and_all_threads_the_same() {
        let mut skewed = workload(Operation::RandomWrite, 1000, 2);
        skewed.pattern = Pattern::Zipf(0.99);
        let hottest = |thread| {
            let mut counts = vec![0; 1000];
            for step in actions(&skewed, thread, 5).take(20_000) {
                let Action::Write(offset) = step else { panic!("{step:?} is no write") };
                counts[(offset / RECORD) as usize] += 1;
            }
            (0..1000).max_by_key(|record| counts[*record]).map(|record| (record, counts[record]))
        };
        let ((one, times), (other, _)) = (hottest(0).unwrap(), hottest(1).unwrap());
        assert_eq!(one, other);
        // One in 7.7 is expected.
        assert!((2400..2800).contains(&times), "{times} of 20000");
    }

    #[test]
    fn a_shift_moves_every_offset() {
        let mut shifted = workload(Operation::Read, 3, 1);
        shifted.shift_bytes = 63 * 512;
        let offsets = [32256, 36352, 40448].map(Action::Read);
        assert_eq!(steps(&shifted), offsets);
    }

    #[test]
    fn threads_and_seeds_draw_differently() {
        let load = workload(Operation::RandomRead, 1000, 2);
        let drawn = |thread, seed| Requests::new(&load, thread, seed).take(50).collect::<Vec<_>>();
        assert_eq!(drawn(0, 1), drawn(0, 1));
        assert_ne!(drawn(0, 1), drawn(1, 1));
        assert_ne!(drawn(0, 1), drawn(0, 2));
    }

    #[test]
    fn random_requests_end_with_the_span_when_asked() {
        for (ends, expected) in [(Ends::Span, 100), (Ends::First, 100), (Ends::Time, 10_000)] {
            let mut load = workload(Operation::RandomRead, 100, 3);
            (load.ends, load.pattern) = (ends, Pattern::Once);
            let threads = if ends == Ends::Time { 3 } else { 1 };
            let found = reads(&steps(&load));
            assert_eq!(found.len(), expected * threads, "{ends:?}");
            let distinct = found.iter().copied().collect::<BTreeSet<_>>();
            assert_eq!(distinct.len(), 100, "{ends:?}");
        }
        let mut again = workload(Operation::RecordRewrite, 100, 1);
        again.ends = Ends::Span;
        assert_eq!(writes(&steps(&again)), vec![0; 100]);
    }

    #[test]
    fn sequential_requests_begin_anew_until_time_is_over() {
        use Operation::{BackwardRead, Copy, Read, Rewrite, StrideRead};
        for operation in [Read, Rewrite, BackwardRead, StrideRead, Copy] {
            for records in [2, 40] {
                let mut load = workload(operation, records, 1);
                let pass = steps(&load);
                load.ends = Ends::Time;
                let found = steps(&load);
                assert_eq!(found.len(), 10_000, "{operation:?}");
                for (number, action) in found.iter().enumerate() {
                    assert_eq!(*action, pass[number % pass.len()], "{operation:?} {number}");
                }
            }
        }
    }
}
