//! One host of a tortured drive: issues random requests and reports accepted changes,
//! acknowledgements and reads to the oracle.
//!
//! A request changes the disk in one or more atomic steps (a write above 1 MiB in several; the
//! edges of write-zeroes separately from its middle). Each step is reported to the oracle in the
//! poll in which the drive accepts it, as the drive's counters show: no other task runs in between.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use rand::{Rng, RngExt};

use super::data::{self, Texture};
use super::oracle::{Change, Content, Mismatch};
use super::scene::Scene;
use super::verb::Verb;
use pumice_drive::base::seed::{Random, random};
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::{Clock, ErrorKind, Result};
use pumice_drive::controller::{ATOMIC_WRITE_BYTES, Allocation, Drive, Taken};
use pumice_nbd::Disk;
use pumice_nbd::Durability::{self, Durable, Volatile};

/// The behaviour of a world's hosts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habits {
    /// Longest pause between two requests of a host, in nanoseconds.
    pub(super) pause_ns: u64,
    /// Offset of the hot fifth of the disk, which receives four of five requests.
    pub(super) hot_offset: u64,
    /// Share of trims and write-zeroes among the requests that change the disk, in percent.
    pub(super) trim_percent: u32,
    /// Whether writes are at most one block long: many small batches of equal size, so that the
    /// next life writes exactly what a life lost in the middle of the log.
    pub(super) is_small: bool,
    /// Whether most writes are 64 KiB and longer, so that segments are reused repeatedly.
    pub(super) is_heavy: bool,
    /// The data that the hosts write.
    pub(super) texture: Texture,
    /// Whether the first host fills the disk, overwrites a part of each frame, and then leaves most
    /// of them alone.
    pub(super) ages: bool,
    /// Whether writes are of some blocks, on a drive with many snapshots.
    pub(super) retains: bool,
    /// Whether hosts mostly continue where their last read ended, so that the drive reads ahead.
    pub(super) reads_on: bool,
    /// Share of flushes among requests, and share of FUA among changes, in percent.
    pub(super) flush_percent: u32,
}

/// Blocks of a write on a drive with many snapshots.
const WRITTEN_BLOCKS: std::ops::RangeInclusive<usize> = 2..=40;

/// Fifths of an ageing disk that are written to once, and rarely after that.
pub(super) const COLD_FIFTHS: u64 = 3;

/// Number of trims by a host with a full disk before it reports a violation: other hosts may fill
/// the disk again in between.
const TRIES_AFTER_TRIM: u32 = 3;

pub(super) struct Host {
    pub(super) drive: Rc<Drive>,
    pub(super) scene: Rc<Scene>,
    pub(super) habits: Habits,
    pub(super) random: Random,
    /// Next offset of a host that overwrites the disk sequentially.
    sequential: Option<u64>,
    /// The next range of a host that reads sequentially.
    next_read: Option<(u64, usize)>,
}

/// How the drive's counters show that a step was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    /// Host bytes grow by the step's length.
    HostBytes,
    /// Record bytes grow, host bytes do not.
    Record,
}

type Steps = VecDeque<(Sign, Change)>;

impl Host {
    /// Creates a host with its own random stream.
    pub(super) fn new(drive: Rc<Drive>, scene: Rc<Scene>, habits: Habits, seed: u64) -> Self {
        let mut random = random(seed);
        let sequential = (random.random_range(0..5) == 0 && !habits.is_small).then_some(0);
        Self { drive, scene, habits, random, sequential, next_read: None }
    }

    /// Issues requests, one after the other, until the life has none left.
    pub(super) async fn run(mut self) {
        while let Some(number) = self.scene.next_request() {
            let begun_ns = self.scene.runtime.now_ns();
            let mut judged = self.request(number).await;
            if judged.is_ok() {
                judged = self.scene.judge_time(number, begun_ns);
            }
            if judged.is_ok() {
                judged = self.chore().await;
            }
            if judged.is_ok() {
                judged = self.scene.audit_if_due(&self.drive);
            }
            if let Err(mismatch) = judged {
                return self.scene.accuse(mismatch);
            }
            // Even a pause of zero lets the other hosts run first.
            self.scene.sleep(self.random.random_range(0..=self.habits.pause_ns)).await;
        }
    }

    pub(super) async fn request(&mut self, number: u64) -> Result<(), Mismatch> {
        let is_durable = self.random.random_range(0..100) < self.habits.flush_percent;
        let durability = if is_durable { Durable } else { Volatile };
        let drawn = self.random.random_range(0..100);
        match drawn {
            _ if drawn < self.habits.flush_percent => self.flush().await,
            80.. => self.read(number).await,
            40.. if self.habits.reads_on => self.read(number).await,
            _ if self.random.random_range(0..100) < self.habits.trim_percent => {
                self.zero(number, durability).await
            }
            _ => self.write(number, durability).await,
        }
    }

    async fn flush(&mut self) -> Result<(), Mismatch> {
        let promised = self.scene.oracle.borrow().taken();
        let abandons = self.random.random_range(0..if self.habits.is_small { 3 } else { 10 }) < 2;
        let patience_ns = if abandons { self.random.random_range(0..40_000) } else { u64::MAX };
        let flush = self.drive.flush();
        // A host that disappears leaves a sealed batch and possibly a sync that no task waits for.
        let Some(result) = self.scene.runtime.timeout(patience_ns, flush).await else {
            return Ok(());
        };
        self.scene.ended(Verb::Flush, 0, 0, &result)?;
        if result.is_ok() {
            self.scene.oracle.borrow_mut().promise(promised);
        }
        Ok(())
    }

    async fn read(&mut self, number: u64) -> Result<(), Mismatch> {
        let (offset, len) = self.range_to_read();
        let range = offset as usize..offset as usize + len;
        self.scene.oracle.borrow_mut().begin_read(number, range);
        let mut out = vec![0xa5; len];
        let result = self.drive.read(offset, &mut out).await;
        let found = result.is_ok().then_some(&out[..]);
        self.scene.oracle.borrow_mut().end_read(number, found)?;
        self.scene.ended(Verb::Read, offset, len as u64, &result)
    }

    async fn write(&mut self, number: u64, durability: Durability) -> Result<(), Mismatch> {
        let (offset, len) = self.next_range();
        self.write_at(offset, len, number, durability).await
    }

    /// Writes data of the world's texture, or noise to the hot part of a disk that ages.
    pub(super) async fn write_at(
        &mut self,
        offset: u64,
        len: usize,
        number: u64,
        durability: Durability,
    ) -> Result<(), Mismatch> {
        let is_noise = self.habits.is_heavy && self.random.random();
        let cold_bytes = self.disk_bytes() / 5 * COLD_FIFTHS;
        let texture = match self.habits.texture {
            Texture::Any if is_noise => Texture::Noise,
            _ if self.habits.ages && offset >= cold_bytes => Texture::Noise,
            texture => texture,
        };
        let bytes = data::of(texture, &mut self.random, offset, len, number);
        let write = Disk::write(&*self.drive, offset, &bytes, durability);
        let result = self.change(write_steps(offset, &bytes, number), durability, write).await?;
        self.scene.ended(Verb::Write, offset, len as u64, &result)?;
        let is_refused = result.is_err_and(|error| error.kind() == ErrorKind::NoSpace);
        if is_refused {
            self.scene.judge_refusal(&self.drive.info())?;
        }
        if is_refused && !self.scene.has_faults() && self.random.random_range(0..4) == 0 {
            self.forbid_snapshots().await?;
            self.make_space(number).await?;
            self.allow_snapshots();
        }
        Ok(())
    }

    /// Fills the disk, then writes to a part of each frame of its cold part once.
    pub(super) async fn prepare(&mut self) -> Result<(), Mismatch> {
        let disk = self.disk_bytes();
        let mut offset = 0;
        while offset < disk {
            let Some(number) = self.scene.next_request() else { return Ok(()) };
            let len = (BLOCK * self.random.random_range(8..=64)).min(disk - offset);
            self.write_at(offset, len as usize, number, Volatile).await?;
            offset += len;
        }
        for frame in (0..disk / 5 * COLD_FIFTHS / BLOCK).step_by(8) {
            let Some(number) = self.scene.next_request() else { return Ok(()) };
            let lba = frame + self.random.random_range(0..8);
            let (offset, len) = (lba * BLOCK, BLOCK);
            if self.random.random() {
                self.write_at(offset, len as usize, number, Volatile).await?;
                continue;
            }
            let zeroes = self.drive.write_zeroes(offset, len, Allocation::Keep);
            let result = self.change(zero_steps(offset, len, number), Volatile, zeroes).await?;
            self.scene.ended(Verb::WriteZeroes, offset, len, &result)?;
        }
        Ok(())
    }

    /// Trims a full disk, after which writes must succeed.
    async fn make_space(&mut self, number: u64) -> Result<(), Mismatch> {
        let drive = self.drive.clone();
        let mut found = String::new();
        for _ in 0..TRIES_AFTER_TRIM {
            let len = self.disk_bytes();
            self.trim(0, len, number, Volatile).await?;
            let (offset, len) = (0, (64 << 10).min(len as usize));
            let bytes = data::any(&mut self.random, offset, len, number);
            let write = drive.write(offset, &bytes);
            match self.change(write_steps(offset, &bytes, number), Volatile, write).await? {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::NoSpace => found = error.chain(),
                result => return self.scene.ended(Verb::Write, offset, len as u64, &result),
            }
        }
        // The smallest drives have no spare segment for one that is no longer written.
        if !drive.info().bad_segments.is_empty() {
            return Ok(());
        }
        Err(Mismatch { promised: "writes succeed after the disk was trimmed".to_owned(), found })
    }

    /// Trims or writes zeroes, from a few bytes to the whole disk.
    async fn zero(&mut self, number: u64, durability: Durability) -> Result<(), Mismatch> {
        let (offset, len) = self.zero_range();
        let kind = self.random.random_range(0..3);
        if kind == 0 {
            return self.trim(offset, len, number, durability).await;
        }
        let allocation = if kind == 1 { Allocation::Keep } else { Allocation::Release };
        let zeroes = Disk::write_zeroes(&*self.drive, offset, len, allocation, durability);
        let result = self.change(zero_steps(offset, len, number), durability, zeroes).await?;
        let has_edges = !offset.is_multiple_of(BLOCK) || !len.is_multiple_of(BLOCK);
        let verb = if has_edges { Verb::Write } else { Verb::WriteZeroes };
        self.scene.ended(verb, offset, len, &result)
    }

    pub(super) async fn trim(
        &self,
        offset: u64,
        len: u64,
        number: u64,
        durability: Durability,
    ) -> Result<(), Mismatch> {
        let trim = Disk::trim(&*self.drive, offset, len, durability);
        let result = self.change(trim_steps(offset, len, number), durability, trim).await?;
        self.scene.ended(Verb::Trim, offset, len, &result)
    }

    /// Executes a request and reports each of its steps in the poll that accepts it. An
    /// acknowledged request was accepted completely; one without FUA is acknowledged in the poll
    /// that accepts its last step, so the order of changes is that of the acknowledgements.
    async fn change(
        &self,
        mut steps: Steps,
        durability: Durability,
        request: impl Future<Output = Result<()>>,
    ) -> Result<Result<()>, Mismatch> {
        let mut request = pin!(request);
        let mut last = None;
        let mut wrong = None;
        let result = poll_fn(|context| {
            let before = self.drive.taken();
            let polled = request.as_mut().poll(context);
            let took = self.enter(&mut steps, before, self.drive.taken());
            if took > 0 {
                last = Some(self.scene.oracle.borrow().taken());
                if steps.is_empty() && durability == Volatile && polled.is_pending() {
                    wrong = Some("a change was ordered and not acknowledged");
                }
            }
            match &polled {
                Poll::Ready(Ok(())) if !steps.is_empty() => {
                    wrong = Some("a change was acknowledged without being ordered");
                }
                _ => {}
            }
            polled
        })
        .await;
        if let Some(found) = wrong {
            let promised = "changes keep the order of the acknowledgements".to_owned();
            return Err(Mismatch { promised, found: found.to_owned() });
        }
        if durability == Durable
            && result.is_ok()
            && let Some(changes) = last
        {
            self.scene.oracle.borrow_mut().promise(changes);
        }
        Ok(result)
    }

    /// Reports the steps that were accepted between two readings of the counters; returns their
    /// number.
    fn enter(&self, steps: &mut Steps, before: Taken, after: Taken) -> u32 {
        let mut host_bytes = after.host_bytes - before.host_bytes;
        let mut records = after.frame_bytes > before.frame_bytes;
        let mut took = 0;
        while let Some((sign, change)) = steps.front() {
            let len = change.range().len() as u64;
            let taken = match sign {
                Sign::HostBytes => host_bytes >= len,
                Sign::Record => records,
            };
            if !taken {
                break;
            }
            match sign {
                Sign::HostBytes => host_bytes -= len,
                Sign::Record => {}
            }
            records = false;
            took += 1;
            let change = steps.pop_front().expect("there is a first").1;
            self.scene.oracle.borrow_mut().take(change);
        }
        took
    }

    /// Returns the range of the next read: for a sequential host, mostly the one after the last.
    fn range_to_read(&mut self) -> (u64, usize) {
        if !self.habits.reads_on {
            return self.range();
        }
        let turns = self.random.random_range(0..16) == 0;
        let disk = self.disk_bytes();
        let fits = |(offset, len): &(u64, usize)| offset + *len as u64 <= disk;
        let next = self.next_read.filter(fits).filter(|_| !turns);
        let (offset, len) = next.unwrap_or_else(|| self.range());
        let end = offset + len as u64;
        let left = usize::try_from(disk - end).unwrap_or(usize::MAX);
        self.next_read = (left > 0).then_some((end, len.min(left)));
        (offset, len)
    }

    pub(super) fn disk_bytes(&self) -> u64 {
        self.drive.size_bytes()
    }

    /// Returns the next range of a host that overwrites the disk sequentially, otherwise a random
    /// one.
    fn next_range(&mut self) -> (u64, usize) {
        let Some(at) = self.sequential else { return self.range() };
        let len = [4 << 10, 64 << 10, 256 << 10][self.random.random_range(0..3)];
        let len = (self.disk_bytes() - at).min(len);
        let end = at + len;
        self.sequential = Some(if end == self.disk_bytes() { 0 } else { end });
        (at, len as usize)
    }

    /// Returns a range of 1 byte to 1 MiB, rarely more: within a block, of whole blocks, or
    /// unaligned.
    fn range(&mut self) -> (u64, usize) {
        let random = &mut self.random;
        let len = match random.random_range(0..64) {
            _ if self.habits.is_small => 1 << random.random_range(8..=12),
            0..56 if self.habits.retains => BLOCK_BYTES * random.random_range(WRITTEN_BLOCKS),
            0..48 if self.habits.ages => BLOCK_BYTES * random.random_range(1..=8),
            0..36 if self.habits.is_heavy => BLOCK_BYTES * random.random_range(64..=256),
            drawn => any_len(random, drawn),
        };
        let len = len.min(self.drive.size_bytes() as usize);
        let hot = match self.random.random_range(0..5) {
            _ if self.habits.ages => self.random.random_range(0..50) > 0,
            drawn => drawn > if self.habits.is_heavy { 2 } else { 0 },
        };
        let (start, span) = if hot {
            (self.habits.hot_offset, self.disk_bytes() / 5)
        } else {
            (0, self.disk_bytes())
        };
        let offset = start + self.random.random_range(0..span);
        let offset = offset.min(self.disk_bytes() - len as u64);
        if len.is_multiple_of(BLOCK_BYTES) && self.random.random_range(0..4) > 0 {
            (offset / BLOCK * BLOCK, len)
        } else {
            (offset, len)
        }
    }

    fn zero_range(&mut self) -> (u64, u64) {
        let disk = self.disk_bytes();
        // Cold data stays.
        let first = if self.habits.ages { 4 } else { 0 };
        match self.random.random_range(first..24) {
            0 => (0, disk),
            1..4 => {
                let from = self.random.random_range(0..disk / BLOCK) * BLOCK;
                (from, self.random.random_range(1..=(disk - from) / BLOCK) * BLOCK)
            }
            // Whole blocks after an edge would make it ambiguous which of the two was accepted in a
            // poll.
            4..16 => {
                let (offset, len) = self.range();
                let start = offset / BLOCK * BLOCK;
                (start, len as u64)
            }
            _ => {
                let (offset, _) = self.range();
                let rest = BLOCK - offset % BLOCK;
                (offset, 1 + self.random.next_u64() % rest)
            }
        }
    }
}

pub(super) const BLOCK: u64 = BLOCK_BYTES as u64;

/// Returns a length of 1 byte to 1 MiB, rarely more; `drawn` is below 64.
fn any_len(random: &mut Random, drawn: u32) -> usize {
    match drawn {
        0..16 => random.random_range(1..6000),
        16..24 => 512 * random.random_range(1..=16),
        24..58 => BLOCK_BYTES * random.random_range(1..=12),
        58..62 => random.random_range(1..200 << 10),
        62 => ATOMIC_WRITE_BYTES,
        _ => random.random_range(1..3 << 20),
    }
}

/// Returns the atomic steps of a write: one up to 1 MiB, otherwise split between blocks.
fn write_steps(offset: u64, bytes: &[u8], request: u64) -> Steps {
    let mut steps = Steps::new();
    let (mut at, mut rest) = (offset as usize, bytes);
    while !rest.is_empty() {
        let len = match rest.len() {
            short if short <= ATOMIC_WRITE_BYTES => short,
            _ => ATOMIC_WRITE_BYTES - at % BLOCK_BYTES,
        };
        let (piece, later) = rest.split_at(len);
        let content = Content::Bytes(piece.to_vec());
        steps.push_back((Sign::HostBytes, Change { request, offset: at, content }));
        (at, rest) = (at + len, later);
    }
    steps
}

/// Returns the step of a trim, which drops the blocks that lie completely in its range.
fn trim_steps(offset: u64, len: u64, request: u64) -> Steps {
    let (start, end) = (offset.next_multiple_of(BLOCK), (offset + len) / BLOCK * BLOCK);
    let whole = zeroes(Sign::Record, start, end, request);
    whole.into_iter().collect()
}

/// Returns the steps of write-zeroes: the blocks that lie completely in its range, and its edges.
fn zero_steps(offset: u64, len: u64, request: u64) -> Steps {
    let end = offset + len;
    let head_end = end.min(offset.next_multiple_of(BLOCK));
    let tail = head_end.max(end / BLOCK * BLOCK);
    let head = zeroes(Sign::HostBytes, offset, head_end, request);
    let middle = zeroes(Sign::Record, head_end, tail, request);
    let tail = zeroes(Sign::HostBytes, tail, end, request);
    head.into_iter().chain(middle).chain(tail).collect()
}

fn zeroes(sign: Sign, start: u64, end: u64, request: u64) -> Option<(Sign, Change)> {
    let content = Content::Zeroes(end.checked_sub(start).filter(|&len| len > 0)? as usize);
    Some((sign, Change { request, offset: start as usize, content }))
}
