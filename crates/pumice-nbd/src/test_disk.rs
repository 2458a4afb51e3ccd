//! A disk in memory for tests of protocols: it fails, waits and remembers on request.

use std::cell::{Cell, RefCell};

use crate::Disk;
use crate::disk::{Content, Extent};
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::base::{Error, ErrorKind, Result};

/// Of every test's disk, in bytes.
pub const SIZE: u64 = 40 << 20;

/// A disk in memory that fails, waits and remembers as a test wants it to.
pub struct TestDisk {
    /// What it holds.
    pub bytes: RefCell<Vec<u8>>,
    /// Whether it refuses writes.
    pub is_read_only: bool,
    /// Whether `try_write` writes.
    pub is_ready: bool,
    /// Requests that touch this byte fail.
    pub failure: Option<(u64, ErrorKind)>,
    /// Reads and writes at this offset wait until the gate opens.
    pub gated_offset: Option<u64>,
    /// Whether every flush fails.
    pub fails_flush: bool,
    /// Flushes wait until the gate opens.
    pub gates_flush: bool,
    /// Any other read opens the gate too.
    pub is_opened_by_reads: bool,
    /// Whether the gate is open.
    pub is_open: Cell<bool>,
    /// Wakes what waits at the gate.
    pub opened: WaitQueue,
    /// The first 100 calls that change or prefetch something, as text.
    pub calls: RefCell<Vec<String>>,
}

impl Default for TestDisk {
    fn default() -> Self {
        Self {
            bytes: RefCell::new(vec![0; SIZE as usize]),
            is_read_only: false,
            is_ready: true,
            failure: None,
            gated_offset: None,
            fails_flush: false,
            gates_flush: false,
            is_opened_by_reads: false,
            is_open: Cell::new(false),
            opened: WaitQueue::default(),
            calls: RefCell::default(),
        }
    }
}

impl TestDisk {
    /// Opens the gate for good.
    pub fn open_gate(&self) {
        self.is_open.set(true);
        self.opened.wake_all();
    }

    async fn wait_at_gate(&self) {
        self.opened.wait_for(|| self.is_open.get().then_some(())).await;
    }

    fn put(&self, offset: u64, data: &[u8]) {
        self.bytes.borrow_mut()[offset as usize..][..data.len()].copy_from_slice(data);
    }

    fn note(&self, call: String) {
        let mut calls = self.calls.borrow_mut();
        if calls.len() < 100 {
            calls.push(call);
        }
    }

    /// Every request of a server lies within the disk, whatever its client sent.
    fn touch(&self, offset: u64, length: u64) -> Result<()> {
        assert!(offset.checked_add(length).is_some_and(|end| end <= SIZE));
        match self.failure {
            Some((byte, kind)) if (offset..offset + length).contains(&byte) => {
                Err(Error::new(kind, "a failure on request"))
            }
            _ => Ok(()),
        }
    }
}

impl Disk for TestDisk {
    fn size_bytes(&self) -> u64 {
        SIZE
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    async fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.touch(offset, out.len() as u64)?;
        if self.gated_offset == Some(offset) {
            self.wait_at_gate().await;
        } else if self.is_opened_by_reads {
            self.open_gate();
        }
        out.copy_from_slice(&self.bytes.borrow()[offset as usize..][..out.len()]);
        Ok(())
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> Option<Result<()>> {
        if !self.is_ready || self.gated_offset == Some(offset) {
            return None;
        }
        self.note(format!("write {offset} {} false", data.len()));
        Some(self.touch(offset, data.len() as u64).map(|()| self.put(offset, data)))
    }

    async fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<()> {
        self.note(format!("write {offset} {} {fua}", data.len()));
        self.touch(offset, data.len() as u64)?;
        if self.gated_offset == Some(offset) {
            self.wait_at_gate().await;
        }
        self.put(offset, data);
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        self.note("flush".into());
        if self.gates_flush {
            self.wait_at_gate().await;
        }
        match self.fails_flush {
            true => Err(Error::new(ErrorKind::Medium, "a failure on request")),
            false => Ok(()),
        }
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.note(format!("trim {offset} {len} {fua}"));
        self.touch(offset, len)?;
        self.bytes.borrow_mut()[offset as usize..][..len as usize].fill(0);
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, len: u64, keep: bool, fua: bool) -> Result<()> {
        self.note(format!("zero {offset} {len} {keep} {fua}"));
        self.touch(offset, len)?;
        self.bytes.borrow_mut()[offset as usize..][..len as usize].fill(0);
        Ok(())
    }

    async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.note(format!("prefetch {offset} {len}"));
        self.touch(offset, len)
    }

    /// Blocks of 4 KiB: those that hold nothing but zeroes are holes, if their number is odd, and
    /// zeroes if it is even; the others take as many bytes as their number says.
    async fn extents(
        &self,
        offset: u64,
        len: u64,
        mut visit: impl FnMut(Extent) -> bool,
    ) -> Result<()> {
        self.touch(offset, len)?;
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let block = at / 4096;
            let bytes = ((block + 1) * 4096).min(end) - at;
            let is_zero = self.bytes.borrow()[(block * 4096) as usize..][..4096] == [0; 4096];
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
}
