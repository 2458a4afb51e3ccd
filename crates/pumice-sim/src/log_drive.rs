//! A log-structured layer with a front: a drive without content, whose requests take as long as
//! those of [`Front`](super::front::Front), computed from the times at which each part is free.
//!
//! ```text
//! request -> commands -> queue slot -> link -> processor -> engine -> layer (-> link)
//! ```
//!
//! Events are handled in order of time, then of creation: nothing overtakes. The host's slots limit
//! the requests in flight, so that forecasts of the layer stay short. Map look-ups and
//! decompression take the same time as in [`SimDrive`](super::drive::SimDrive), except that a
//! command is sent as a whole and decompressed as if all of it were equally compressible. **A write
//! of a part of a block** reads the block first. Trims affect whole blocks only.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use super::convert;
use super::front::FrontSpec;
use super::ftl::{BLOCK_BYTES, LogCounts, LogFtl, LogSpec, StoredSizes};
use super::map_pages::{MapPages, MapSpec};
use super::profile::Profile;
use crate::nand::Wear;
use crate::{Error, Result};
use pumice_drive::base::Lba;
use pumice_drive::base::units::transfer_ns;

/// Maximum number of slots of a host (arbitrary; the queues of drives are shorter).
const SLOTS_MAX: u32 = 1 << 16;

/// Parameters of a log-structured drive with a front.
#[derive(Clone, Debug, PartialEq)]
pub struct LogDriveSpec {
    /// Translation layer and flash.
    pub log: LogSpec,
    /// Link and processor.
    pub front: FrontSpec,
    /// Map cache; `None` if the whole map is in memory.
    pub map: Option<MapSpec>,
    /// Longest command in bytes; longer requests are sent as several commands at once. A multiple
    /// of 4096.
    pub command_bytes_max: u64,
    /// Limit on the bytes that the controller sends to the flash per second.
    pub store_bytes_per_s: Option<u64>,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Read a range.
    Read,
    /// Write a range.
    Write,
    /// Forget a range.
    Trim,
    /// Make all acknowledged writes durable.
    Flush,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Kind of the request.
    pub verb: Verb,
    /// Offset in bytes; 0 for a flush.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub bytes: u64,
    /// Earliest start time, in ns.
    pub due_ns: u64,
}

/// A source of requests. A slot holds one request in flight.
pub trait Host {
    /// Returns the next request of a slot that is free at `now_ns`; `None` at the end.
    ///
    /// # Errors
    /// The errors of the source of requests; they end the run.
    fn next(&mut self, slot: u32, now_ns: u64) -> Result<Option<Request>>;

    /// Reports that a request that began at `begun_ns` has ended.
    fn done(&mut self, request: &Request, begun_ns: u64, done_ns: u64);
}

/// A resource that serves one item at a time, first come, first served.
#[derive(Clone, Copy, Debug, Default)]
struct Server {
    free_ns: u64,
}

impl Server {
    /// Returns the completion time of an item that arrives at `now_ns` and takes `len_ns`.
    fn serve(&mut self, now_ns: u64, len_ns: u64) -> u64 {
        self.free_ns = self.free_ns.max(now_ns) + len_ns;
        self.free_ns
    }
}

/// A part of a request that is one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Command {
    slot: u32,
    offset: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// The request of a slot is due.
    Due,
    /// The command arrives at the layer.
    Arrived,
    /// The map page of the command's offset is in memory.
    Mapped,
    /// The blocks that a write covers partly were read.
    Merged,
    /// The layer has read; the link is next.
    Read,
    /// The host has its answer.
    Ended,
}

/// In the order of time, then of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at_ns: u64,
    number: u64,
    stage: Stage,
    command: Command,
}

/// The request in flight of a slot.
#[derive(Clone, Copy, Debug)]
struct Flight {
    request: Request,
    begun_ns: u64,
    commands_left: u32,
}

/// A drive in virtual time.
#[derive(Debug)]
pub struct LogDrive {
    ftl: LogFtl,
    map: Option<MapPages>,
    /// Mean stored fraction of a block.
    stored: f64,
    spec: LogDriveSpec,
    wire: Server,
    processor: Server,
    engine: Server,
    store: Server,
    /// Flash bytes that the store limit has accounted for.
    stored_bytes: u64,
    now_ns: u64,
    events: BinaryHeap<Reverse<Event>>,
    events_made: u64,
    flights: Vec<Option<Flight>>,
    /// Commands that found the queue full.
    waiting: VecDeque<Command>,
    in_queue: u32,
}

impl LogDriveSpec {
    /// Returns the drive of a profile: see [`LogSpec::of`].
    ///
    /// # Errors
    /// Those of [`LogSpec::of`].
    pub fn of(profile: &Profile, stored: StoredSizes) -> Result<Self> {
        Ok(Self {
            log: LogSpec::of(profile, stored)?,
            front: convert::front(profile)?,
            map: convert::map(profile),
            command_bytes_max: convert::command_bytes_max(profile),
            store_bytes_per_s: profile.controller.store_bytes_per_s.as_ref().map(|rate| rate.is),
        })
    }

    /// Returns the size of the disk in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.log.user_blocks * u64::from(BLOCK_BYTES)
    }
}

impl LogDrive {
    /// Creates an empty drive at time 0.
    ///
    /// # Errors
    /// `InvalidInput` for an impossible specification.
    pub fn new(spec: LogDriveSpec) -> Result<Self> {
        spec.front.check()?;
        let block = u64::from(BLOCK_BYTES);
        if spec.command_bytes_max < block || !spec.command_bytes_max.is_multiple_of(block) {
            let what = "the longest command must be a multiple of 4096 bytes";
            return Err(Error::InvalidInput(what.into()));
        }
        if spec.store_bytes_per_s == Some(0) {
            let what = "store_bytes_per_s must not be zero";
            return Err(Error::InvalidInput(what.into()));
        }
        Ok(Self {
            ftl: LogFtl::new(spec.log.clone())?,
            map: spec.map.map(MapPages::new),
            stored: spec.log.stored_mean()?,
            spec,
            wire: Server::default(),
            processor: Server::default(),
            engine: Server::default(),
            store: Server::default(),
            stored_bytes: 0,
            now_ns: 0,
            events: BinaryHeap::new(),
            events_made: 0,
            flights: Vec::new(),
            waiting: VecDeque::new(),
            in_queue: 0,
        })
    }

    /// Returns the specification of the drive.
    pub fn spec(&self) -> &LogDriveSpec {
        &self.spec
    }

    /// Returns the counters of written bytes.
    pub fn counts(&self) -> LogCounts {
        self.ftl.counts()
    }

    /// Returns the wear of the good blocks.
    pub fn wear(&self) -> Wear {
        self.ftl.wear()
    }

    /// Returns the erase count of each good block.
    pub fn erases(&self) -> impl Iterator<Item = u32> {
        self.ftl.erases()
    }

    /// Advances time without the host until the flash is idle.
    pub fn settle(&mut self) {
        self.now_ns = self.ftl.settle().max(self.now_ns);
    }

    /// Returns the time at which the last request ended or the drive settled, in ns.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Runs a host with `slots` slots to its end. Returns whether the host reached it; false if
    /// `stop` was set first.
    ///
    /// # Errors
    /// The errors of the host; `InvalidInput` for requests beyond the drive, or no slots;
    /// `NoSpace`. After an error the drive must not be used again.
    pub fn run(&mut self, host: &mut impl Host, slots: u32, stop: &AtomicBool) -> Result<bool> {
        if !(1..=SLOTS_MAX).contains(&slots) {
            let what = format!("a host has {slots} requests in flight: expected 1 to {SLOTS_MAX}");
            return Err(Error::InvalidInput(what.into()));
        }
        self.flights = vec![None; slots as usize];
        for slot in 0..slots {
            self.ask(host, slot)?;
        }
        while let Some(Reverse(event)) = self.events.pop() {
            self.now_ns = event.at_ns;
            self.turn(host, event)?;
            if event.stage == Stage::Ended && stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the next request of a slot from the host, and begins it if it is due.
    fn ask(&mut self, host: &mut impl Host, slot: u32) -> Result<()> {
        let Some(request) = host.next(slot, self.now_ns)? else { return Ok(()) };
        let end = request.offset.checked_add(request.bytes);
        if end.is_none_or(|end| end > self.spec.size_bytes()) {
            let size = self.spec.size_bytes();
            let what = format!("a request of {} bytes at {}", request.bytes, request.offset);
            let what = format!("{what} reaches beyond the drive of {size} bytes");
            return Err(Error::InvalidInput(what.into()));
        }
        let begun_ns = request.due_ns.max(self.now_ns);
        let commands = request.bytes.div_ceil(self.spec.command_bytes_max).max(1);
        let commands_left = u32::try_from(commands).unwrap_or(u32::MAX);
        self.flights[slot as usize] = Some(Flight { request, begun_ns, commands_left });
        if begun_ns > self.now_ns {
            let command = Command { slot, offset: request.offset, bytes: request.bytes };
            self.push(begun_ns, Stage::Due, command);
            return Ok(());
        }
        self.begin(slot, &request);
        Ok(())
    }

    /// Creates the commands of a request.
    fn begin(&mut self, slot: u32, request: &Request) {
        let most = self.spec.command_bytes_max;
        let (mut offset, end) = (request.offset, request.offset + request.bytes);
        loop {
            let bytes = most.min(end - offset);
            self.waiting.push_back(Command { slot, offset, bytes });
            offset += bytes;
            if offset >= end {
                break;
            }
        }
        self.admit();
    }

    /// Admits waiting commands to the queue.
    fn admit(&mut self) {
        while self.in_queue < self.spec.front.depth {
            let Some(command) = self.waiting.pop_front() else { break };
            self.in_queue += 1;
            let verb = self.verb(command.slot);
            let front = &self.spec.front;
            let data = if verb == Verb::Write { command.bytes } else { 0 };
            let wire_ns = front.command_ns + transfer_ns(data, front.write_bytes_per_s);
            let processor_ns = if verb == Verb::Read { front.read_ns } else { front.write_ns };
            let mut at_ns = self.wire.serve(self.now_ns, wire_ns);
            at_ns = self.processor.serve(at_ns, processor_ns);
            if let Some(bytes_per_s) = front.engine_bytes_per_s.filter(|_| verb != Verb::Read) {
                at_ns = self.engine.serve(at_ns, transfer_ns(data, bytes_per_s));
            }
            self.push(at_ns, Stage::Arrived, command);
        }
    }

    fn verb(&self, slot: u32) -> Verb {
        self.flights[slot as usize].as_ref().map_or(Verb::Flush, |flight| flight.request.verb)
    }

    fn push(&mut self, at_ns: u64, stage: Stage, command: Command) {
        self.events_made += 1;
        self.events.push(Reverse(Event { at_ns, number: self.events_made, stage, command }));
    }

    fn turn(&mut self, host: &mut impl Host, Event { stage, command, .. }: Event) -> Result<()> {
        match (stage, self.verb(command.slot)) {
            (Stage::Due, verb) => {
                let Command { slot, offset, bytes } = command;
                self.begin(slot, &Request { verb, offset, bytes, due_ns: self.now_ns });
            }
            (Stage::Arrived, Verb::Read) => {
                let late_ns = self.map.as_ref().map_or(0, |map| map.need(command.offset));
                self.push(self.now_ns + late_ns, Stage::Mapped, command);
            }
            (Stage::Mapped, _) => {
                let (lba, blocks) = covered(command.offset, command.bytes);
                let read_ns = self.ftl.read(self.now_ns, lba, blocks)?;
                self.push(read_ns, Stage::Read, command);
            }
            (Stage::Read, _) => {
                let front = &self.spec.front;
                let stored_bytes = (command.bytes as f64 * self.stored) as u64;
                let load_ns = front.load_bytes_per_s.map_or(0, |it| transfer_ns(stored_bytes, it));
                let data_ns = transfer_ns(command.bytes, front.read_bytes_per_s);
                let ended_ns = self.wire.serve(self.now_ns, load_ns + data_ns);
                self.push(ended_ns, Stage::Ended, command);
            }
            (Stage::Arrived, Verb::Write) => {
                if let Some(map) = &self.map {
                    map.need(command.offset);
                }
                let merged_ns = self.read_edges(command)?;
                self.push(merged_ns, Stage::Merged, command);
            }
            (Stage::Merged, _) => {
                let ended_ns = self.write(command)?;
                self.push(ended_ns, Stage::Ended, command);
            }
            (Stage::Arrived, Verb::Trim) => {
                let block = u64::from(BLOCK_BYTES);
                let end = (command.offset + command.bytes) / block;
                let first = command.offset.div_ceil(block).min(end);
                self.ftl.trim(self.now_ns, Lba(first), (end - first) as u32)?;
                self.push(self.now_ns, Stage::Ended, command);
            }
            (Stage::Arrived, Verb::Flush) => {
                let flushed_ns = self.ftl.flush(self.now_ns)?;
                self.push(flushed_ns, Stage::Ended, command);
            }
            (Stage::Ended, _) => {
                self.in_queue -= 1;
                self.admit();
                self.end(host, command.slot)?;
            }
        }
        Ok(())
    }

    /// Reads the first and the last block of a write if the write covers them only partly. Returns
    /// the time at which they are available.
    fn read_edges(&mut self, Command { offset, bytes, .. }: Command) -> Result<u64> {
        let block = u64::from(BLOCK_BYTES);
        let (first, end) = (offset / block, offset + bytes);
        let last = end.saturating_sub(1) / block;
        let mut read_ns = self.now_ns;
        let covers_last = end.is_multiple_of(block);
        if !offset.is_multiple_of(block) || (first == last && !covers_last) {
            read_ns = read_ns.max(self.ftl.read(self.now_ns, Lba(first), 1)?);
        }
        if last > first && !covers_last {
            read_ns = read_ns.max(self.ftl.read(self.now_ns, Lba(last), 1)?);
        }
        Ok(read_ns)
    }

    /// Writes. Returns the time of the acknowledgement: not before all bytes sent to the flash,
    /// except those the buffer holds, have passed the store limit.
    fn write(&mut self, Command { offset, bytes, .. }: Command) -> Result<u64> {
        let (lba, blocks) = covered(offset, bytes);
        let ended_ns = self.ftl.write(self.now_ns, lba, blocks)?;
        let Some(bytes_per_s) = self.spec.store_bytes_per_s else { return Ok(ended_ns) };
        let flash_bytes = self.ftl.counts().flash_bytes;
        let added = flash_bytes - std::mem::replace(&mut self.stored_bytes, flash_bytes);
        let stored_ns = self.store.serve(self.now_ns, transfer_ns(added, bytes_per_s));
        let buffer_ns = transfer_ns(self.spec.log.buffer_bytes, bytes_per_s);
        Ok(ended_ns.max(stored_ns.saturating_sub(buffer_ns)))
    }

    /// Ends a command of a slot; after the last command the host continues.
    fn end(&mut self, host: &mut impl Host, slot: u32) -> Result<()> {
        let Some(flight) = &mut self.flights[slot as usize] else { return Ok(()) };
        flight.commands_left -= 1;
        if flight.commands_left > 0 {
            return Ok(());
        }
        host.done(&flight.request, flight.begun_ns, self.now_ns);
        self.flights[slot as usize] = None;
        self.ask(host, slot)
    }
}

/// Returns the blocks that a range touches.
fn covered(offset: u64, bytes: u64) -> (Lba, u32) {
    let block = u64::from(BLOCK_BYTES);
    let first = offset / block;
    (Lba(first), ((offset + bytes).div_ceil(block) - first) as u32)
}

#[cfg(test)]
mod tests;
