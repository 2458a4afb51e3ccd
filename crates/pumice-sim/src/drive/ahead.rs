//! Reading ahead in a drive: a host that asks for one command after the other, each where the last
//! one ended, finds the next one's data read while the last one's went over the link.
//!
//! Only for a host with one read in flight: of several, the next is asked for already. What was
//! read ahead is forgotten when anything is written or trimmed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pumice_drive::base::wait::WaitQueue;

/// What is being read ahead, or has been.
#[derive(Debug)]
struct Window {
    offset: u64,
    /// None while it comes.
    bytes: RefCell<Option<Vec<u8>>>,
    is_failed: Cell<bool>,
}

/// What a drive has read ahead.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Where the last read ended.
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
    /// A read begins; says whether the next command is to be read ahead with it: it goes on where
    /// the last one ended, and is alone.
    pub(super) fn begin(&self, offset: u64, len: u64) -> (Reading<'_>, bool) {
        let goes_on = self.end.replace(offset + len) == offset && offset > 0;
        self.reading.set(self.reading.get() + 1);
        (Reading(self), goes_on && self.reading.get() == 1)
    }

    /// Fills `target` if it was read ahead, when it has come; says whether.
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

    /// Reads what comes next with `read`, which gives its bytes, or none if that failed.
    pub(super) async fn fetch(&self, offset: u64, read: impl Future<Output = Option<Vec<u8>>>) {
        let (bytes, is_failed) = (RefCell::default(), Cell::new(false));
        let window = Rc::new(Window { offset, bytes, is_failed });
        *self.window.borrow_mut() = Some(Rc::clone(&window));
        let bytes = read.await;
        window.is_failed.set(bytes.is_none());
        *window.bytes.borrow_mut() = bytes;
        self.came.wake_all();
    }

    /// Forgets what was read ahead: something changes.
    pub(super) fn forget(&self) {
        *self.window.borrow_mut() = None;
    }
}
