//! The path from the write buffer to the flash: rows wait in the queue of their die, and each die
//! programs one row at a time.
//!
//! ```text
//! row --> queue of its die --(the die is ready, the data has arrived)--> flash --> done
//!                            reads go to the flash immediately, before all waiting rows
//! ```
//!
//! There are no events between two calls: [`Drain::advance`] issues the jobs that the dies have
//! accepted since the previous call, in order of time.
//!
//! **Completion times of waiting rows are forecasts**: the current operation of the die, then the
//! rows that wait before the row in question. Later reads, and other dies on the same bus, delay
//! it. A forecast is never too late, and its error does not accumulate: the queue retains its
//! length, and the next forecast includes all of it. Bandwidth is therefore exact, whereas a single
//! time can be too early by the duration of intervening reads and transfers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::nand::{BlockAddress, Flash};

/// Marks a row without host data.
const NO_HOST_ROW: u64 = u64::MAX;

/// Completion time of a row that has not been issued yet.
const UNKNOWN_NS: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Erases a block if it has been programmed; otherwise has no effect.
    Erase,
    Program {
        row: u32,
        ready_ns: u64,
        host_row: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Job {
    block: u32,
    work: Work,
}

#[derive(Clone, Debug, Default)]
struct Die {
    jobs: VecDeque<Job>,
    /// The last issued row: block, row and completion time.
    last: Option<(u32, u32, u64)>,
}

/// A row that contains host data.
#[derive(Clone, Copy, Debug)]
struct HostRow {
    die: u32,
    /// The host's bytes up to this count are in this row or an earlier one.
    covered: u64,
    done_ns: u64,
}

/// Rows waiting for the flash.
#[derive(Clone, Debug)]
pub(super) struct Drain {
    dies: Vec<Die>,
    /// For each die that has work, the time at which it accepts the next job.
    events: BinaryHeap<Reverse<(u64, u32)>>,
    /// Rows that are not on flash yet, oldest first.
    host_rows: VecDeque<HostRow>,
    /// Number of the oldest row in `host_rows`.
    first_host_row: u64,
    /// The host's bytes up to this count are on flash.
    covered: u64,
}

impl Drain {
    pub(super) fn new(dies: u32) -> Self {
        Self {
            dies: vec![Die::default(); dies as usize],
            events: BinaryHeap::new(),
            host_rows: VecDeque::new(),
            first_host_row: 0,
            covered: 0,
        }
    }

    /// Issues the jobs that the dies accept up to `now_ns`.
    #[inline]
    pub(super) fn advance(&mut self, flash: &mut Flash, now_ns: u64) {
        while let Some(&Reverse((at_ns, die))) = self.events.peek() {
            if at_ns > now_ns {
                break;
            }
            self.events.pop();
            self.turn(flash, at_ns, die);
        }
        while self.host_rows.front().is_some_and(|row| row.done_ns <= now_ns) {
            let row = self.host_rows.pop_front().expect("a row was just seen there");
            self.covered = row.covered;
            self.first_host_row += 1;
        }
    }

    /// Queues the erasure of a block, before its next row is programmed.
    pub(super) fn erase(&mut self, now_ns: u64, address: BlockAddress) {
        self.push(now_ns, address.die, Job { block: address.block, work: Work::Erase });
    }

    /// Queues the next row of a block, which is programmed at `ready_ns` at the earliest. `covered`
    /// counts the host's bytes, from the first one ever written, that are in this row or an earlier
    /// one; `None` if the row contains no host data.
    pub(super) fn program(
        &mut self,
        now_ns: u64,
        address: BlockAddress,
        row: u32,
        ready_ns: u64,
        covered: Option<u64>,
    ) {
        let host_row = match covered {
            None => NO_HOST_ROW,
            Some(covered) => {
                let last = self.host_rows.back().map_or(self.covered, |row| row.covered);
                assert!(covered >= last, "rows of the host are issued in order");
                let row = HostRow { die: address.die, covered, done_ns: UNKNOWN_NS };
                self.host_rows.push_back(row);
                self.first_host_row + self.host_rows.len() as u64 - 1
            }
        };
        let work = Work::Program { row, ready_ns, host_row };
        self.push(now_ns, address.die, Job { block: address.block, work });
    }

    /// Returns the time at which the host's bytes up to `covered` leave the buffer; 0 if they
    /// already have.
    ///
    /// # Panics
    /// If the bytes are not in any row yet.
    pub(super) fn done_ns(&self, flash: &Flash, now_ns: u64, covered: u64) -> u64 {
        if covered <= self.covered {
            return 0;
        }
        let index = self.host_rows.partition_point(|row| row.covered < covered);
        let row = self.host_rows[index];
        if row.done_ns != UNKNOWN_NS {
            return row.done_ns;
        }
        let number = self.first_host_row + index as u64;
        self.forecast(flash, now_ns, row.die, |host_row| host_row == number)
    }

    /// Returns the time at which all rows with host data are on flash; 0 if they already are.
    pub(super) fn all_done_ns(&self, flash: &Flash, now_ns: u64) -> u64 {
        let known = self.host_rows.iter().map(|row| row.done_ns).filter(|&ns| ns != UNKNOWN_NS);
        let waiting = (0..self.dies.len() as u32)
            .map(|die| self.forecast(flash, now_ns, die, |host_row| host_row != NO_HOST_ROW));
        known.chain(waiting).max().unwrap_or(0)
    }

    /// Returns whether a row is still in the controller's memory.
    #[inline]
    pub(super) fn is_buffered(
        &self,
        flash: &Flash,
        now_ns: u64,
        address: BlockAddress,
        row: u32,
    ) -> bool {
        // A block that is waiting for its erasure still reports its previous rows.
        let die = &self.dies[address.die as usize];
        let is_last = die
            .last
            .is_some_and(|last| (last.0, last.1) == (address.block, row) && last.2 > now_ns);
        let waits = |job: &Job| {
            job.block == address.block
                && matches!(job.work, Work::Program { row: waiting, .. } if waiting == row)
        };
        is_last || row >= flash.programmed_rows(address) || die.jobs.iter().any(waits)
    }

    /// Removes the rows that are waiting for a failed die, or for one of its blocks, from the
    /// queue. They never reach the flash. Returns their number.
    pub(super) fn drop_rows(&mut self, now_ns: u64, die: u32, block: Option<u32>) -> u64 {
        let mut dropped = 0;
        let (host_rows, first) = (&mut self.host_rows, self.first_host_row);
        self.dies[die as usize].jobs.retain(|job| {
            let stays = block.is_some_and(|block| job.block != block);
            if let Work::Program { host_row, .. } = job.work
                && !stays
            {
                dropped += 1;
                if host_row != NO_HOST_ROW {
                    host_rows[(host_row - first) as usize].done_ns = now_ns;
                }
            }
            stays
        });
        dropped
    }

    /// Issues all waiting jobs, as if time passed without host requests. Returns the time at which
    /// all dies are idle.
    pub(super) fn finish(&mut self, flash: &mut Flash, now_ns: u64) -> u64 {
        let mut ended_ns = now_ns;
        while let Some(&Reverse((at_ns, _))) = self.events.peek() {
            ended_ns = ended_ns.max(at_ns);
            self.advance(flash, at_ns);
        }
        let free = (0..self.dies.len() as u32).map(|die| flash.free_at_ns(die));
        let ended_ns = free.max().unwrap_or(0).max(ended_ns);
        self.advance(flash, ended_ns);
        ended_ns
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        let jobs: usize = self.dies.iter().map(|die| die.jobs.capacity()).sum();
        (jobs * size_of::<Job>() + self.host_rows.capacity() * size_of::<HostRow>()) as u64
    }

    fn push(&mut self, now_ns: u64, die: u32, job: Job) {
        let jobs = &mut self.dies[die as usize].jobs;
        jobs.push_back(job);
        if jobs.len() == 1 {
            self.events.push(Reverse((now_ns, die)));
        }
    }

    /// Issues the next job of the die if the die is ready at `at_ns`; otherwise schedules the job
    /// for later.
    fn turn(&mut self, flash: &mut Flash, at_ns: u64, die: u32) {
        let queue = &mut self.dies[die as usize];
        let Some(&job) = queue.jobs.front() else { return };
        let address = BlockAddress { die, block: job.block };
        let can_ns = match job.work {
            Work::Erase => flash.free_at_ns(die),
            Work::Program { ready_ns, .. } => flash.takes_row_at_ns(die).max(ready_ns),
        };
        if can_ns > at_ns {
            self.events.push(Reverse((can_ns, die)));
            return;
        }
        queue.jobs.pop_front();
        match job.work {
            Work::Erase => {
                if flash.programmed_rows(address) > 0 {
                    flash.erase(at_ns, address).expect("the block exists");
                }
            }
            Work::Program { row, host_row, .. } => {
                let done_ns =
                    flash.program(at_ns, address, row).expect("rows wait in order of their block");
                queue.last = Some((job.block, row, done_ns));
                if host_row != NO_HOST_ROW {
                    let index = (host_row - self.first_host_row) as usize;
                    self.host_rows[index].done_ns = done_ns;
                }
            }
        }
        if !queue.jobs.is_empty() {
            let next_ns = flash.takes_row_at_ns(die).max(at_ns);
            self.events.push(Reverse((next_ns, die)));
        }
    }

    /// Returns the forecast for the last waiting row of a die for which `wanted` is true; 0 if
    /// there is none.
    fn forecast(&self, flash: &Flash, now_ns: u64, die: u32, wanted: impl Fn(u64) -> bool) -> u64 {
        let (shape, timing) = (flash.shape(), flash.timing());
        let (times, pages) = if timing.multi_plane { (1, shape.planes) } else { (shape.planes, 1) };
        let transfer_ns = timing.transfer_ns(u64::from(pages) * u64::from(shape.page_bytes));
        let mut takes_ns = flash.takes_row_at_ns(die).max(now_ns);
        let mut free_ns = flash.free_at_ns(die).max(now_ns);
        let mut found_ns = 0;
        for job in &self.dies[die as usize].jobs {
            match job.work {
                Work::Erase => {
                    let address = BlockAddress { die, block: job.block };
                    if flash.programmed_rows(address) > 0 {
                        free_ns += u64::from(times) * timing.erase_ns;
                        takes_ns = free_ns;
                    }
                }
                Work::Program { row, ready_ns, host_row } => {
                    for _ in 0..times {
                        let begun_ns = (takes_ns.max(ready_ns) + transfer_ns).max(free_ns);
                        free_ns = begun_ns + timing.row_program_ns(row);
                        takes_ns = if timing.cache_program { begun_ns } else { free_ns };
                    }
                    if wanted(host_row) {
                        found_ns = free_ns;
                    }
                }
            }
        }
        found_ns
    }
}
