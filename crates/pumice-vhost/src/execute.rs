//! Executes requests: short writes immediately, all other requests by a worker.

use std::rc::Rc;

use crate::buffers::{Buffer, Charge, PIECE_BYTES};
use crate::request::{Command, ID_BYTES, Parts, Range, Segment, Status, copy_in, copy_out, pieces};
use crate::ring::{Device, Taker};
use crate::workers::Worker;
use pumice_drive::base::{Error, Result};
use pumice_nbd::{Allocation, Durability};

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

/// Begins a request. A write of up to 1 MiB that need not wait is complete on return.
pub(crate) fn begin(device: &Rc<Device>, taker: Taker, command: Command, parts: &mut Parts) {
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
