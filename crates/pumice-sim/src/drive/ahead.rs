//! Read-ahead of a drive: while the data of one command goes over the link, the drive reads the
//! data of the next one, if the host reads sequentially.
//!
//! Applies only to hosts with one read in flight: with several, the next command has already
//! arrived. Any write or trim discards the data that was read ahead.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pumice_drive::base::wait::WaitQueue;

/// Data that is being read ahead, or has been.
#[derive(Debug)]
struct Window {
    offset: u64,
    /// `None` until it arrives.
    bytes: RefCell<Option<Vec<u8>>>,
    is_failed: Cell<bool>,
}

/// The read-ahead of one drive.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// End of the last read.
    end: Cell<u64>,
    reading: Cell<u32>,
    window: RefCell<Option<Rc<Window>>>,
    came: WaitQueue,
}

/// A read in flight, until it is dropped.
pub(super) struct Reading<'a>(&'a Ahead);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.reading.set(self.0.reading.get() - 1);
    }
}

impl Ahead {
    /// Begins a read. Returns whether the next command should be read ahead: if this read continues
    /// the last one and is the only one in flight.
    pub(super) fn begin(&self, offset: u64, len: u64) -> (Reading<'_>, bool) {
        let goes_on = self.end.replace(offset + len) == offset && offset > 0;
        self.reading.set(self.reading.get() + 1);
        (Reading(self), goes_on && self.reading.get() == 1)
    }

    /// Fills `target` if its data was or is being read ahead, and returns whether it did.
    pub(super) async fn take(&self, offset: u64, target: &mut [u8]) -> bool {
        let Some(window) = self.window.borrow_mut().take_if(|window| window.offset == offset)
        else {
            return false;
        };
        let has_come = || (window.bytes.borrow().is_some() || window.is_failed.get()).then_some(());
        self.came.wait_for(has_come).await;
        match &*window.bytes.borrow() {
            Some(bytes) if bytes.len() >= target.len() => {
                target.copy_from_slice(&bytes[..target.len()]);
                true
            }
            _ => false,
        }
    }

    /// Reads ahead with `read`, which returns the bytes, or `None` if the read failed.
    pub(super) async fn fetch(&self, offset: u64, read: impl Future<Output = Option<Vec<u8>>>) {
        let (bytes, is_failed) = (RefCell::default(), Cell::new(false));
        let window = Rc::new(Window { offset, bytes, is_failed });
        *self.window.borrow_mut() = Some(Rc::clone(&window));
        let bytes = read.await;
        window.is_failed.set(bytes.is_none());
        *window.bytes.borrow_mut() = bytes;
        self.came.wake_all();
    }

    /// Discards the data that was read ahead, because the content changes.
    pub(super) fn forget(&self) {
        *self.window.borrow_mut() = None;
    }
}
