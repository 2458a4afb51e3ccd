//! A disk in memory, for examples and for tests of protocols. On request, it fails, waits, or
//! refuses to complete a write immediately, and it records its calls.

use std::cell::{Cell, RefCell};

use crate::Disk;
use crate::disk::{Allocation, Change, Content, Durability, Extent};
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::base::{Error, ErrorKind, Result};

/// Size of a [`MemoryDisk`] made by `default`, in bytes.
pub const SIZE: u64 = 40 << 20;

/// A block of zeroes.
const ZEROES: [u8; 4096] = [0; 4096];

/// Maximum number of recorded calls.
const CALLS_MAX: usize = 100;

/// A disk in memory that fails, waits and records as a test requires.
///
/// Panics when a request is outside of the disk: a server must never let such a request through.
///
/// ```
/// use pumice_nbd::memory_disk::MemoryDisk;
/// use pumice_nbd::Disk;
///
/// let disk = MemoryDisk::new(1 << 20);
/// assert_eq!(disk.size_bytes(), 1 << 20);
/// ```
pub struct MemoryDisk {
    /// The content; its length is the size of the disk.
    pub bytes: RefCell<Vec<u8>>,
    /// Refuses writes.
    pub is_read_only: bool,
    /// Whether a write at an offset completes without waiting.
    pub is_ready: fn(u64) -> bool,
    /// Requests that touch this byte fail.
    pub failure: Option<(u64, ErrorKind)>,
    /// Reads and writes at this offset wait until the gate opens.
    pub gated_offset: Option<u64>,
    /// Every flush fails.
    pub fails_flush: bool,
    /// Flushes wait until the gate opens.
    pub gates_flush: bool,
    /// Lists of extents wait until the gate opens.
    pub gates_extents: bool,
    /// Number of requested lists of extents.
    pub listed: Cell<u64>,
    /// Number of lists of extents that wait at the gate.
    pub waiting: Cell<u64>,
    /// Maximum number of lists of extents that waited at the gate at the same time.
    pub waited_together: Cell<u64>,
    /// Any other read opens the gate too.
    pub is_opened_by_reads: bool,
    /// Whether the gate is open.
    pub is_open: Cell<bool>,
    /// Wakes the requests that wait at the gate.
    pub opened: WaitQueue,
    /// The first 100 calls that change or prefetch data, as text.
    pub calls: RefCell<Vec<String>>,
    /// Number of requests that succeeded, except for extents.
    pub completed: Cell<u64>,
    /// Number of requests that failed, except for extents.
    pub failed: Cell<u64>,
}

impl Default for MemoryDisk {
    fn default() -> Self {
        Self::new(SIZE)
    }
}

impl MemoryDisk {
    /// Returns a disk of `size_bytes` zeroes that completes every request immediately.
    pub fn new(size_bytes: u64) -> Self {
        let size = usize::try_from(size_bytes).expect("a disk that fits memory");
        Self {
            bytes: RefCell::new(vec![0; size]),
            is_read_only: false,
            is_ready: |_| true,
            failure: None,
            gated_offset: None,
            fails_flush: false,
            gates_flush: false,
            gates_extents: false,
            listed: Cell::new(0),
            waiting: Cell::new(0),
            waited_together: Cell::new(0),
            is_opened_by_reads: false,
            is_open: Cell::new(false),
            opened: WaitQueue::default(),
            calls: RefCell::default(),
            completed: Cell::new(0),
            failed: Cell::new(0),
        }
    }

    /// Opens the gate permanently.
    pub fn open_gate(&self) {
        self.is_open.set(true);
        self.opened.wake_all();
    }

    async fn wait_at_gate(&self) {
        self.opened.wait_for(|| self.is_open.get().then_some(())).await;
    }

    fn note(&self, call: String) {
        let mut calls = self.calls.borrow_mut();
        if calls.len() < CALLS_MAX {
            calls.push(call);
        }
    }

    /// Returns the range of a request as indices.
    fn range(&self, offset: u64, length: u64) -> std::ops::Range<usize> {
        let end = offset.checked_add(length).filter(|&end| end <= self.size_bytes());
        let end = end.expect("a server passes on only requests within its disk");
        let index = |at| usize::try_from(at).expect("inside of the content");
        index(offset)..index(end)
    }

    /// Counts a request, and fails it if it touches the failing byte.
    fn touch(&self, offset: u64, length: u64) -> Result<std::ops::Range<usize>> {
        let range = self.range(offset, length);
        if let Err(error) = self.failure_of(offset, length) {
            self.failed.update(|failed| failed + 1);
            return Err(error);
        }
        self.completed.update(|completed| completed + 1);
        Ok(range)
    }

    fn failure_of(&self, offset: u64, length: u64) -> Result<()> {
        match self.failure {
            Some((byte, kind)) if (offset..offset + length).contains(&byte) => {
                Err(Error::new(kind, "a failure on request"))
            }
            _ => Ok(()),
        }
    }
}

#[expect(clippy::indexing_slicing, reason = "`range` has checked the request; blocks lie inside")]
impl Disk for MemoryDisk {
    fn size_bytes(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    async fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let range = self.touch(offset, out.len() as u64)?;
        if self.gated_offset == Some(offset) {
            self.wait_at_gate().await;
        } else if self.is_opened_by_reads {
            self.open_gate();
        }
        out.copy_from_slice(&self.bytes.borrow()[range]);
        Ok(())
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> Option<Result<()>> {
        if !(self.is_ready)(offset) || self.gated_offset == Some(offset) {
            return None;
        }
        self.note(format!("write {offset} {} Volatile", data.len()));
        let range = self.touch(offset, data.len() as u64);
        Some(range.map(|range| self.bytes.borrow_mut()[range].copy_from_slice(data)))
    }

    async fn write(&self, offset: u64, data: &[u8], durability: Durability) -> Result<()> {
        self.note(format!("write {offset} {} {durability:?}", data.len()));
        let range = self.touch(offset, data.len() as u64)?;
        if self.gated_offset == Some(offset) {
            self.wait_at_gate().await;
        }
        self.bytes.borrow_mut()[range].copy_from_slice(data);
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        self.note("flush".into());
        if self.gates_flush {
            self.wait_at_gate().await;
        }
        if self.fails_flush {
            self.failed.update(|failed| failed + 1);
            return Err(Error::new(ErrorKind::Medium, "a failure on request"));
        }
        self.completed.update(|completed| completed + 1);
        Ok(())
    }

    async fn trim(&self, offset: u64, len: u64, durability: Durability) -> Result<()> {
        self.note(format!("trim {offset} {len} {durability:?}"));
        let range = self.touch(offset, len)?;
        self.bytes.borrow_mut()[range].fill(0);
        Ok(())
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        allocation: Allocation,
        durability: Durability,
    ) -> Result<()> {
        self.note(format!("zero {offset} {len} {allocation:?} {durability:?}"));
        let range = self.touch(offset, len)?;
        self.bytes.borrow_mut()[range].fill(0);
        Ok(())
    }

    async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.note(format!("prefetch {offset} {len}"));
        self.touch(offset, len).map(|_| ())
    }

    /// Reports 4 KiB blocks. A block of zeroes is a hole if its number is odd, and zeroes if it is
    /// even; any other block occupies as many bytes as its number.
    async fn extents(
        &self,
        offset: u64,
        len: u64,
        mut visit: impl FnMut(Extent) -> bool,
    ) -> Result<()> {
        self.range(offset, len);
        self.failure_of(offset, len)?;
        self.listed.update(|listed| listed + 1);
        if self.gates_extents {
            self.waiting.update(|waiting| waiting + 1);
            self.waited_together.set(self.waiting.get().max(self.waited_together.get()));
            self.wait_at_gate().await;
            self.waiting.update(|waiting| waiting - 1);
        }
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let block = at / 4096;
            let block_end = ((block + 1) * 4096).min(self.size_bytes());
            let bytes = block_end.min(end) - at;
            let range = self.range(block * 4096, block_end - block * 4096);
            let is_zero = self.bytes.borrow()[range.clone()] == ZEROES[..range.len()];
            let content = match (is_zero, block % 2) {
                (false, _) => Content::Data,
                (true, 0) => Content::Zeroes,
                (true, _) => Content::Hole,
            };
            let stored_bytes = if is_zero { 0 } else { block };
            if !visit(Extent { bytes, content, stored_bytes }) {
                break;
            }
            at += bytes;
        }
        Ok(())
    }

    /// Supports the state in which the disk was created, `new`: blocks of zeroes count as
    /// unchanged.
    async fn changes(
        &self,
        since: &str,
        offset: u64,
        len: u64,
        mut visit: impl FnMut(Change) -> bool,
    ) -> Result<()> {
        if since != "new" {
            return Err(Error::new(ErrorKind::NotFound, "no such state"));
        }
        let visit = |Extent { bytes, content, .. }| {
            visit(Change { bytes, is_changed: content == Content::Data })
        };
        self.extents(offset, len, visit).await
    }
}
