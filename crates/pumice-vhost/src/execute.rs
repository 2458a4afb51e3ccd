//! Takes requests from the rings of a device and executes them: short writes immediately, all other
//! requests by a worker.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use crate::buffers::{Buffer, Buffers, Charge, PIECE_BYTES};
use crate::guest::{Guests, Start};
use crate::request::{
    Command, ID_BYTES, Limits, Parts, Range, Segment, Status, copy_in, copy_out, pieces,
};
use crate::ring::{Idle, Ring, Taker};
use crate::workers::{Worker, Workers};
use pumice_drive::base::{Error, Result};
use pumice_drive::runtime::Runtime;
use pumice_nbd::{Allocation, AnyDisk, Durability};

/// Number of requests taken before other tasks run, and so the maximum number of completed writes
/// that share one notification.
const TOGETHER_MAX: usize = 16;

/// Bytes of data of all rings after which other tasks run: the drive accepts them in one step. The
/// last request may exceed it.
const TOGETHER_BYTES_MAX: u64 = 1 << 20;

/// The parts of a device that all its rings share.
pub(crate) struct Device {
    pub(crate) runtime: Runtime,
    pub(crate) disk: Rc<dyn AnyDisk>,
    pub(crate) buffers: Rc<Buffers>,
    pub(crate) workers: Workers<Job>,
    pub(crate) id: [u8; ID_BYTES],
    /// Whether the driver supports the write cache, that is, sends flushes.
    pub(crate) has_flush: Cell<bool>,
    pub(crate) guests: Guests,
    pub(crate) turn: Turn,
}

/// The bytes that all rings of a device have taken in the present turn of the runtime's loop.
#[derive(Default)]
pub(crate) struct Turn {
    number: Cell<u64>,
    written_bytes: Cell<u64>,
    /// The ring that takes requests next: the first one that found the turn used up.
    next: Cell<Option<usize>>,
}

impl Turn {
    /// Returns whether a ring may take requests in the turn with this number.
    fn admits(&self, ring: usize, number: u64) -> bool {
        if self.number.replace(number) != number {
            self.written_bytes.set(0);
        }
        let is_free = self.next.get().is_none_or(|next| next == ring);
        let is_admitted = is_free && !self.is_spent();
        if is_admitted {
            self.next.set(None);
        } else if is_free {
            self.next.set(Some(ring));
        }
        is_admitted
    }

    fn is_spent(&self) -> bool {
        self.written_bytes.get() >= TOGETHER_BYTES_MAX
    }

    /// Lets the other rings take requests if a ring that has stopped had the turn.
    fn leave(&self, ring: usize) {
        if self.next.get() == Some(ring) {
            self.next.set(None);
        }
    }
}

impl Device {
    /// Returns whether a change must be durable when it completes, because the driver cannot flush.
    pub(crate) fn durability(&self) -> Durability {
        if self.has_flush.get() { Durability::Volatile } else { Durability::Durable }
    }
}

/// A request that may wait.
enum Work {
    Read {
        offset: u64,
        length: u64,
        segments: Vec<Segment>,
        buffer: Buffer,
    },
    /// The first piece is in the buffer.
    Write {
        offset: u64,
        length: u64,
        segments: Vec<Segment>,
        buffer: Buffer,
    },
    Flush(Charge),
    Discard(Vec<Range>, Charge),
    WriteZeroes(Vec<Range>, Charge),
}

/// Starts a ring of the device, which is set up and enabled.
pub(crate) fn start(device: &Rc<Device>, ring: &Rc<Ring>, start: Start) {
    if let Some(kick) = ring.start(start) {
        device.runtime.spawn(take_all(device.clone(), ring.clone(), kick));
        device.runtime.spawn(ring.clone().notify_all());
    }
}

/// Takes requests until the ring stops.
async fn take_all(device: Rc<Device>, ring: Rc<Ring>, kick: Arc<OwnedFd>) {
    while ring.is_running() {
        let taken = take_some(&device, &ring);
        ring.notify();
        match taken {
            Ok(()) => device.runtime.yield_now().await,
            Err(Idle::Nothing) => ring.kicked(&kick).await,
            Err(Idle::Full) => ring.one_ended().await,
            Err(Idle::NoRoom) => device.buffers.room(|| !ring.is_running()).await,
            Err(Idle::Broken(why)) => ring.broken(why),
        }
    }
    device.turn.leave(ring.number());
    ring.end_task();
}

/// Takes requests, and executes those that need not wait; there may be more.
fn take_some(device: &Rc<Device>, ring: &Rc<Ring>) -> std::result::Result<(), Idle> {
    let turn = &device.turn;
    if !turn.admits(ring.number(), device.runtime.turns()) {
        return Ok(());
    }
    for _ in 0..TOGETHER_MAX {
        if turn.is_spent() {
            break;
        }
        let (taker, mut parts) = ring.take()?;
        turn.written_bytes.update(|bytes| bytes + parts.input_bytes());
        begin(device, taker, &mut parts);
        ring.reuse(parts);
    }
    Ok(())
}

/// Begins a request, and executes it if it need not wait.
fn begin(device: &Rc<Device>, taker: Taker, parts: &mut Parts) {
    // The size may have grown since the last request.
    let limits =
        Limits { size_bytes: device.disk.size_bytes(), is_read_only: device.disk.is_read_only() };
    match parts.command(&taker.guest, limits) {
        Ok(command) => execute(device, taker, command, parts),
        Err(status) => {
            tracing::debug!(ring = taker.ring_number(), ?status, "request refused");
            taker.complete(status, 0);
        }
    }
}

/// Executes a request. A write of up to 1 MiB that need not wait is complete on return.
fn execute(device: &Rc<Device>, taker: Taker, command: Command, parts: &mut Parts) {
    let lend = |length: u64| {
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(PIECE_BYTES);
        device.buffers.lend(length)
    };
    let work = match command {
        Command::Read { offset, length } => {
            Work::Read { offset, length, segments: parts.output.clone(), buffer: lend(length) }
        }
        Command::Write { offset, length } => {
            let mut buffer = lend(length);
            // These bytes are read only once, here: the guest may change them at any moment.
            if let Err(error) = copy_in(&taker.guest, &parts.input, 0, buffer.bytes_mut()) {
                return end(taker, "write", Err(error), 0);
            }
            let is_whole = buffer.bytes().len() as u64 == length;
            if is_whole
                && device.durability() == Durability::Volatile
                && let Some(result) = device.disk.try_write(offset, buffer.bytes())
            {
                return end(taker, "write", result, 0);
            }
            let segments = if is_whole { Vec::new() } else { parts.input.clone() };
            Work::Write { offset, length, segments, buffer }
        }
        Command::Flush => Work::Flush(device.buffers.charge()),
        Command::Identify => {
            let id: &[u8; ID_BYTES] = &device.id;
            let copied = copy_out(&taker.guest, &parts.output, 0, id);
            return end(taker, "identify", copied, ID_BYTES as u64);
        }
        Command::Discard(ranges) => Work::Discard(ranges, device.buffers.charge()),
        Command::WriteZeroes(ranges) => Work::WriteZeroes(ranges, device.buffers.charge()),
    };
    device
        .workers
        .give(&device.runtime, Job { work, taker }, |worker| serve(device.clone(), worker));
}

/// A request that waits, and the entry of its ring to complete.
pub(crate) struct Job {
    work: Work,
    taker: Taker,
}

/// Executes the jobs of a worker, one after another.
async fn serve(device: Rc<Device>, worker: Worker<Job>) {
    while let Some(Job { work, taker }) = device.workers.next(&worker).await {
        let data_bytes = if let Work::Read { length, .. } = &work { *length } else { 0 };
        let (command, result) = work.carry_out(&device, &taker).await;
        end(taker, command, result, data_bytes);
    }
}

impl Work {
    async fn carry_out(self, device: &Device, taker: &Taker) -> (&'static str, Result<()>) {
        let (disk, guest, durability) = (&*device.disk, &taker.guest, device.durability());
        match self {
            Self::Read { offset, length, segments, mut buffer } => {
                let work = async {
                    for (at, count) in pieces(length) {
                        buffer.truncate(count);
                        disk.read(offset + at, buffer.bytes_mut()).await?;
                        copy_out(guest, &segments, at, buffer.bytes())?;
                    }
                    Ok(())
                };
                ("read", work.await)
            }
            Self::Write { offset, length, segments, mut buffer } => {
                let work = async {
                    for (at, count) in pieces(length) {
                        if at > 0 {
                            buffer.truncate(count);
                            copy_in(guest, &segments, at, buffer.bytes_mut())?;
                        }
                        disk.write(offset + at, buffer.bytes(), durability).await?;
                    }
                    Ok(())
                };
                ("write", work.await)
            }
            Self::Flush(_charge) => ("flush", disk.flush().await),
            Self::Discard(ranges, _charge) => {
                let work = async {
                    for range in ranges {
                        disk.trim(range.offset, range.length, durability).await?;
                    }
                    Ok(())
                };
                ("trim", work.await)
            }
            Self::WriteZeroes(ranges, _charge) => {
                let work = async {
                    for Range { offset, length, may_unmap } in ranges {
                        let allocation = match may_unmap {
                            true => Allocation::Release,
                            false => Allocation::Keep,
                        };
                        disk.write_zeroes(offset, length, allocation, durability).await?;
                    }
                    Ok(())
                };
                ("write_zeroes", work.await)
            }
        }
    }
}

/// Completes a request, which has returned `data_bytes` if it succeeded, and logs the reason if it
/// failed.
fn end(taker: Taker, command: &str, result: Result<()>, data_bytes: u64) {
    match result {
        Ok(()) => taker.complete(Status::Good, data_bytes),
        Err(error) => {
            log(command, taker.ring_number(), &error);
            taker.complete(Status::Failed, 0);
        }
    }
}

fn log(command: &str, ring: usize, error: &Error) {
    let (kind, chain) = (error.kind(), error.chain());
    if kind.is_failure_of_storage() {
        tracing::warn!(command, ring, ?kind, error = %chain, "request failed");
    } else {
        tracing::debug!(command, ring, ?kind, error = %chain, "request failed");
    }
}
