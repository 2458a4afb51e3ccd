//! A log-structured layer with a front end: a drive without contents, or a RAID 0 of several such
//! drives. The duration of a request is the same as with [`Front`](super::front::Front), but is
//! calculated from the times at which each part is free.
//!
//! ```text
//! request -> commands -> queue slot -> link -> processor -> engine -> layer (-> link)
//! ```
//!
//! Events are handled in order of time, then of creation: no event overtakes another. The host's
//! slots limit the number of requests in flight, so that forecasts of the layer stay short. Storage
//! and times are the same as in [`SimDrive`](super::drive::SimDrive), except that all data is
//! decompressed as if it were equally compressible. **A write of a part of a block** reads the
//! block first. Trims affect only whole blocks.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use super::convert;
use super::front::FrontSpec;
use super::ftl::{BLOCK_BYTES, FaultKind, LogCounts, ReadTimes, RebuildTimes, StoredSizes};
use super::log_store::{LogStore, LogStoreSpec};
use super::profile::Profile;
use super::streams::Streams;
use crate::{Error, Result};
use pumice_drive::base::units::transfer_ns;

/// Maximum number of slots of a host (arbitrary; the queues of drives are shorter).
const SLOTS_MAX: u32 = 1 << 16;

/// Maximum number of drives in a RAID 0 (arbitrary).
const STRIPE_MAX: u32 = 64;

/// Parameters of a log-structured drive with a front end.
#[derive(Clone, Debug, PartialEq)]
pub struct LogDriveSpec {
    /// Translation layer, flash and map.
    pub store: LogStoreSpec,
    /// Link and processor.
    pub front: FrontSpec,
    /// Maximum command length in bytes, a multiple of 4096. Longer requests are sent as several
    /// concurrent commands.
    pub command_bytes_max: u64,
    /// Number of drives of this kind in a RAID 0, at least 1. Adjacent chunks of
    /// `command_bytes_max` are on adjacent drives, each with its own link and queue.
    pub stripe: u32,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Read a range.
    Read,
    /// Write a range.
    Write,
    /// Discard a range.
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
    /// Returns the next request of a slot that is free at `now_ns`; `None` when there are no more
    /// requests.
    ///
    /// # Errors
    /// An error of the source of requests, which ends the run.
    fn next(&mut self, slot: u32, now_ns: u64) -> Result<Option<Request>>;

    /// Reports that a request that started at `begun_ns` has ended.
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

/// A part of a request that forms one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Command {
    slot: u32,
    /// Number of the drive in a RAID 0.
    member: u32,
    /// Offset on that drive.
    offset: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// The request of a slot is due.
    Due,
    /// The command has arrived at the layer.
    Arrived,
    /// The map page of the command's offset is in memory.
    Mapped,
    /// The blocks that a write covers partly have been read.
    Merged,
    /// The layer has read the data, which is sent over the link next.
    Read,
    /// The host has received the reply.
    Ended,
}

/// Ordered by time, then by creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at_ns: u64,
    number: u64,
    stage: Stage,
    command: Command,
}

/// The request in flight in a slot.
#[derive(Clone, Copy, Debug)]
struct Flight {
    request: Request,
    begun_ns: u64,
    commands_left: u32,
}

/// One drive of a RAID 0.
#[derive(Clone, Debug)]
struct Member {
    store: LogStore,
    streams: Streams,
    wire: Server,
    processor: Server,
    engine: Server,
    /// Commands that arrived while the queue was full.
    waiting: VecDeque<Command>,
    in_queue: u32,
}

/// A drive, or a RAID 0 of drives, in virtual time.
#[derive(Clone, Debug)]
pub struct LogDrive {
    members: Vec<Member>,
    /// Mean stored fraction of a block.
    stored: f64,
    spec: LogDriveSpec,
    now_ns: u64,
    events: BinaryHeap<Reverse<Event>>,
    events_made: u64,
    flights: Vec<Option<Flight>>,
    /// Number of requests that have ended since the faults were set.
    requests_ended: u64,
    /// Faults in the order of their occurrence.
    faults: VecDeque<FaultAt>,
}

/// A part of the flash that fails while a host runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultAt {
    /// Number of requests that end before the failure.
    pub requests: u64,
    /// The kind of the failing part.
    pub kind: FaultKind,
    /// The die that contains the part, from 0; in a RAID 0, on the first drive.
    pub die: u32,
}

/// The consequences of the failure of a die.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostDie {
    /// Host blocks that are lost.
    pub blocks_lost: u64,
    /// Bytes of frames that were rewritten elsewhere.
    pub rebuilt_bytes: u64,
    /// Bytes of pages read for the rebuild.
    pub read_bytes: u64,
    /// The progress of the rebuild, on an otherwise idle drive.
    pub times: RebuildTimes,
}

impl LogDriveSpec {
    /// Returns the drive of a profile; see [`LogStoreSpec::of`].
    ///
    /// # Errors
    /// The errors of [`LogStoreSpec::of`].
    pub fn of(profile: &Profile, stored: StoredSizes) -> Result<Self> {
        Ok(Self {
            store: LogStoreSpec::of(profile, stored)?,
            front: convert::front(profile)?,
            command_bytes_max: convert::command_bytes_max(profile),
            stripe: 1,
        })
    }

    /// Returns the size of the disk in bytes. For a RAID 0, it consists of the whole chunks of all
    /// drives.
    pub fn size_bytes(&self) -> u64 {
        let bytes = self.store.log.user_blocks * u64::from(BLOCK_BYTES);
        if self.stripe == 1 {
            return bytes;
        }
        bytes / self.command_bytes_max * self.command_bytes_max * u64::from(self.stripe)
    }

    /// Returns the bytes of the segments of all drives; see [`LogSpec::raw_bytes`].
    ///
    /// # Errors
    /// The errors of [`LogSpec::raw_bytes`].
    ///
    /// [`LogSpec::raw_bytes`]: super::ftl::LogSpec::raw_bytes
    pub fn raw_bytes(&self) -> Result<f64> {
        Ok(self.store.log.raw_bytes()? * f64::from(self.stripe))
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
        if !(1..=STRIPE_MAX).contains(&spec.stripe) {
            let what = format!("a RAID 0 has 1 to {STRIPE_MAX} drives, not {}", spec.stripe);
            return Err(Error::InvalidInput(what.into()));
        }
        let member = |_| {
            Ok(Member {
                store: LogStore::new(&spec.store)?,
                streams: Streams::default(),
                wire: Server::default(),
                processor: Server::default(),
                engine: Server::default(),
                waiting: VecDeque::new(),
                in_queue: 0,
            })
        };
        Ok(Self {
            members: (0..spec.stripe).map(member).collect::<Result<_>>()?,
            stored: spec.store.log.stored_mean()?,
            spec,
            now_ns: 0,
            events: BinaryHeap::new(),
            events_made: 0,
            flights: Vec::new(),
            requests_ended: 0,
            faults: VecDeque::new(),
        })
    }

    /// Returns the specification of the drive.
    pub fn spec(&self) -> &LogDriveSpec {
        &self.spec
    }

    /// Returns the counters of written bytes, summed over all drives.
    pub fn counts(&self) -> LogCounts {
        let counts = self.members.iter().map(|member| member.store.ftl.counts());
        counts.fold(LogCounts::default(), |sum, counts| sum.with(&counts))
    }

    /// Returns the erase count of each good block on all drives.
    pub fn erases(&self) -> impl Iterator<Item = u32> {
        self.members.iter().flat_map(|member| member.store.ftl.erases())
    }

    /// Advances time without host requests until the flash is idle.
    pub fn settle(&mut self) {
        let idle_ns = self.members.iter_mut().map(|member| member.store.ftl.settle());
        self.now_ns = idle_ns.max().unwrap_or(0).max(self.now_ns);
    }

    /// Returns the time at which the last request ended or the drive settled, in ns.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Makes parts of the flash fail during subsequent requests.
    pub fn fail_at(&mut self, mut faults: Vec<FaultAt>) {
        faults.sort_by_key(|fault| fault.requests);
        self.faults = faults.into();
        self.requests_ended = 0;
    }

    /// Returns the progress of the rebuild after the last fault.
    pub fn rebuild(&self) -> RebuildTimes {
        self.members[0].store.ftl.rebuild()
    }

    /// Returns the consequences of a failure of a die on the first drive at this point, while the
    /// host waits. Requires as much memory as the drive.
    ///
    /// # Errors
    /// `InvalidInput` for a die that does not exist or has already failed; `NoSpace` if the other
    /// dies have too little space.
    pub fn lost_die(&self, die: u32) -> Result<LostDie> {
        let mut ftl = self.members[0].store.ftl.clone();
        let (before, pages) = (ftl.counts(), ftl.flash_counts().pages_read);
        let now_ns = ftl.settle().max(self.now_ns);
        ftl.fail(now_ns, ftl.fault_on(die, FaultKind::Die))?;
        ftl.settle();
        let counts = ftl.counts().since(&before);
        let pages = ftl.flash_counts().pages_read - pages;
        Ok(LostDie {
            blocks_lost: counts.blocks_lost,
            rebuilt_bytes: counts.rebuilt_bytes,
            read_bytes: pages * u64::from(self.spec.store.log.shape.page_bytes),
            times: ftl.rebuild(),
        })
    }

    /// Triggers the failures that are due.
    fn fail_due(&mut self) -> Result<()> {
        while let Some(&FaultAt { requests, kind, die }) = self.faults.front() {
            if requests > self.requests_ended {
                break;
            }
            self.faults.pop_front();
            let ftl = &mut self.members[0].store.ftl;
            ftl.fail(self.now_ns, ftl.fault_on(die, kind))?;
        }
        Ok(())
    }

    /// Runs a host with `slots` slots to its end. Returns true if the host reached its end, or
    /// false if `stop` was set first.
    ///
    /// # Errors
    /// The errors of the host; `InvalidInput` for requests beyond the drive, or if there are no
    /// slots; `NoSpace`. After an error, the drive must not be used again.
    pub fn run(&mut self, host: &mut impl Host, slots: u32, stop: &AtomicBool) -> Result<bool> {
        if !(1..=SLOTS_MAX).contains(&slots) {
            let what = format!("a host has {slots} requests in flight: expected 1 to {SLOTS_MAX}");
            return Err(Error::InvalidInput(what.into()));
        }
        self.flights = vec![None; slots as usize];
        self.fail_due()?;
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

    /// Gets the next request of a slot from the host, and starts it if it is due.
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
        self.flights[slot as usize] = Some(Flight { request, begun_ns, commands_left: 0 });
        if begun_ns > self.now_ns {
            let command = Command { slot, member: 0, offset: request.offset, bytes: request.bytes };
            self.push(begun_ns, Stage::Due, command);
            return Ok(());
        }
        self.begin(slot, &request);
        Ok(())
    }

    /// Creates the commands of a request.
    fn begin(&mut self, slot: u32, request: &Request) {
        let (chunk, stripe) = (self.spec.command_bytes_max, u64::from(self.spec.stripe));
        let (mut at, end) = (request.offset, request.offset + request.bytes);
        let mut count = 0;
        if request.verb == Verb::Flush {
            for member in 0..self.spec.stripe {
                let command = Command { slot, member, offset: 0, bytes: 0 };
                self.members[member as usize].waiting.push_back(command);
                count += 1;
            }
        }
        while request.verb != Verb::Flush && (at < end || count == 0) {
            // A single drive has no chunks, so commands have their maximum length.
            let limit = if stripe == 1 { at + chunk } else { (at / chunk + 1) * chunk };
            let bytes = limit.min(end) - at;
            let (number, within) = (at / chunk, at % chunk);
            let offset = if stripe == 1 { at } else { number / stripe * chunk + within };
            let member = if stripe == 1 { 0 } else { (number % stripe) as u32 };
            self.members[member as usize].waiting.push_back(Command {
                slot,
                member,
                offset,
                bytes,
            });
            at += bytes;
            count += 1;
        }
        if let Some(flight) = &mut self.flights[slot as usize] {
            flight.commands_left = count;
        }
        (0..self.members.len()).for_each(|member| self.admit(member));
    }

    /// Admits waiting commands to the queue of a drive.
    fn admit(&mut self, member: usize) {
        while self.members[member].in_queue < self.spec.front.depth {
            let Some(command) = self.members[member].waiting.pop_front() else { break };
            let verb = self.verb(command.slot);
            let (front, now_ns) = (&self.spec.front, self.now_ns);
            let of = &mut self.members[member];
            of.in_queue += 1;
            let data = if verb == Verb::Write { command.bytes } else { 0 };
            let wire_ns = front.command_ns + transfer_ns(data, front.write_bytes_per_s);
            let is_scattered =
                verb == Verb::Write && !of.streams.add(command.offset, command.bytes);
            let processor_ns = match verb {
                Verb::Read => front.read_ns,
                _ => front.write_ns_of(is_scattered),
            };
            let mut at_ns = of.wire.serve(now_ns, wire_ns);
            at_ns = of.processor.serve(at_ns, processor_ns);
            if let Some(bytes_per_s) = front.engine_bytes_per_s.filter(|_| verb != Verb::Read) {
                at_ns = of.engine.serve(at_ns, transfer_ns(data, bytes_per_s));
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
        let (member, now_ns) = (command.member as usize, self.now_ns);
        match (stage, self.verb(command.slot)) {
            (Stage::Due, verb) => {
                let Command { slot, offset, bytes, .. } = command;
                self.begin(slot, &Request { verb, offset, bytes, due_ns: now_ns });
            }
            (Stage::Arrived, Verb::Read) => {
                let Command { offset, bytes, .. } = command;
                match self.members[member].store.begin_read(now_ns, offset, bytes)? {
                    Some(times) => self.push_read(times, command),
                    None => {
                        let mapped_ns = self.members[member].store.look_up(now_ns, offset)?;
                        self.push(mapped_ns, Stage::Mapped, command);
                    }
                }
            }
            (Stage::Mapped, _) => {
                let times =
                    self.members[member].store.read(now_ns, command.offset, command.bytes)?;
                self.push_read(times, command);
            }
            (Stage::Read, _) => {
                let send_ns = self.spec.front.send_ns(command.bytes, self.stored_bytes(command));
                let ended_ns = self.members[member].wire.serve(now_ns, send_ns);
                self.push(ended_ns, Stage::Ended, command);
            }
            (Stage::Arrived, Verb::Write) => {
                let Command { offset, bytes, .. } = command;
                let merged_ns = self.members[member].store.read_edges(now_ns, offset, bytes)?;
                self.push(merged_ns, Stage::Merged, command);
            }
            (Stage::Merged, _) => {
                let Command { offset, bytes, .. } = command;
                let ended_ns = self.members[member].store.write(now_ns, offset, bytes, None)?;
                self.push(ended_ns, Stage::Ended, command);
            }
            (Stage::Arrived, Verb::Trim) => {
                self.members[member].store.trim(now_ns, command.offset, command.bytes)?;
                self.push(now_ns, Stage::Ended, command);
            }
            (Stage::Arrived, Verb::Flush) => {
                let flushed_ns = self.members[member].store.flush(now_ns)?;
                self.push(flushed_ns, Stage::Ended, command);
            }
            (Stage::Ended, verb) => {
                if verb == Verb::Read {
                    self.members[member].store.end_read();
                }
                self.members[member].in_queue -= 1;
                self.admit(member);
                self.end(host, command.slot)?;
            }
        }
        Ok(())
    }

    /// Sends the data of a command as soon as enough of it is available.
    fn push_read(&mut self, times: ReadTimes, command: Command) {
        let stored_bytes = self.stored_bytes(command);
        let at_ns = self.spec.front.send_at_ns(times, command.bytes, stored_bytes);
        self.push(at_ns.max(self.now_ns), Stage::Read, command);
    }

    /// Returns the number of bytes read from flash for a command.
    fn stored_bytes(&self, command: Command) -> u64 {
        (command.bytes as f64 * self.stored) as u64
    }

    /// Ends a command of a slot. After the last command of a request, the host continues.
    fn end(&mut self, host: &mut impl Host, slot: u32) -> Result<()> {
        let Some(flight) = &mut self.flights[slot as usize] else { return Ok(()) };
        flight.commands_left -= 1;
        if flight.commands_left > 0 {
            return Ok(());
        }
        host.done(&flight.request, flight.begun_ns, self.now_ns);
        self.flights[slot as usize] = None;
        self.requests_ended += 1;
        self.fail_due()?;
        self.ask(host, slot)
    }
}

#[cfg(test)]
mod tests;
