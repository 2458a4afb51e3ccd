//! A ring: a queue in the guest's memory, and its stages.
//!
//! ```text
//! stopped --kick, addresses, enabled--> running --stop--> stopping --requests ended--> stopped
//!                                          |                             ^
//!                                          +-- malformed --> broken -----+
//! ```
//!
//! Two tasks run: one takes requests from the ring, the other notifies the guest of requests that
//! were completed. Invariant: at most as many requests are in flight as the ring has descriptors,
//! even if the guest claims more.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::{Errno, ioctl_fionbio};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Address, Bytes, GuestAddress};

use crate::buffers::Buffers;
use crate::guest::{Ended, Start};
use crate::memory::{Guest, Memory};
use crate::request::{Malformed, Parts, Status};
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::runtime::Runtime;

/// Maximum number of entries of a ring: the limit of QEMU.
const SIZE_MAX: u16 = 1024;

/// Bytes of the used ring before its entries, and of each entry.
const USED_HEAD_BYTES: u64 = 4;
const USED_ENTRY_BYTES: usize = 8;

/// One ring of a device.
pub(crate) struct Ring {
    runtime: Runtime,
    buffers: Rc<Buffers>,
    number: usize,
    state: RefCell<State>,
    stage: Cell<Stage>,
    is_enabled: Cell<bool>,
    /// Where the ring last began.
    began: Cell<Option<Start>>,
    /// Where the ring last ended, once it is stopped.
    ended: Cell<Option<Ended>>,
    /// Whether its addresses or its kick were set since it was stopped.
    is_renewed: Cell<bool>,
    /// Whether the log has already reported the ring as broken.
    was_broken: Cell<bool>,
    /// Requests taken and not completed.
    in_flight: Cell<u16>,
    /// Tasks that have not ended.
    tasks: Cell<u8>,
    /// Whether there are completed requests for which the guest has not been notified.
    has_completed: Cell<bool>,
    completed: WaitQueue,
    /// Woken when a request or task has ended.
    changed: WaitQueue,
}

struct State {
    queue: Queue,
    guest: Guest,
    /// The part in which requests are marked as used, once the ring has addresses.
    used: Option<GuestAddress>,
    kick: Option<Arc<OwnedFd>>,
    call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    parts: Parts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Stopped,
    Running,
    Stopping,
    Broken,
}

/// Why no request was taken from a ring.
pub(crate) enum Idle {
    /// No requests until the guest kicks.
    Nothing,
    /// No requests until one of this ring has ended.
    Full,
    /// No requests until memory is returned.
    NoRoom,
    /// The ring cannot be used.
    Broken(Malformed),
}

/// A request that was taken and not yet completed.
pub(crate) struct Taker {
    pub(crate) ring: Rc<Ring>,
    pub(crate) guest: Guest,
    /// The first descriptor of the chain.
    head: u16,
    status: GuestAddress,
    /// Length of the memory for the data to return.
    output_bytes: u64,
}

/// Addresses in the guest's memory.
pub(crate) struct GuestAddresses {
    pub(crate) descriptors: GuestAddress,
    pub(crate) available: GuestAddress,
    pub(crate) used: GuestAddress,
}

impl Ring {
    /// Returns a ring that is stopped.
    pub(crate) fn new(
        runtime: Runtime,
        buffers: Rc<Buffers>,
        number: usize,
        guest: Guest,
    ) -> Rc<Self> {
        let queue = Queue::new(SIZE_MAX).expect("a power of two");
        let parts = Parts::default();
        let state = State { queue, guest, used: None, kick: None, call: None, error: None, parts };
        Rc::new(Self {
            runtime,
            buffers,
            number,
            state: RefCell::new(state),
            stage: Cell::new(Stage::Stopped),
            is_enabled: Cell::new(false),
            began: Cell::new(None),
            ended: Cell::new(None),
            is_renewed: Cell::new(false),
            was_broken: Cell::new(false),
            in_flight: Cell::new(0),
            tasks: Cell::new(0),
            has_completed: Cell::new(false),
            completed: WaitQueue::default(),
            changed: WaitQueue::default(),
        })
    }

    /// Sets the number of entries.
    ///
    /// # Errors
    /// The size is not a power of two up to 1024, or the ring runs.
    pub(crate) fn set_size(&self, size: u32) -> Result<(), String> {
        self.check_stopped()?;
        let size = u16::try_from(size).map_err(|error| error.to_string())?;
        self.state.borrow_mut().queue.try_set_size(size).map_err(|error| error.to_string())
    }

    /// Sets the addresses.
    ///
    /// # Errors
    /// The addresses are not aligned, or the ring runs.
    pub(crate) fn set_addresses(&self, addresses: &GuestAddresses) -> Result<(), String> {
        self.check_stopped()?;
        let state = &mut *self.state.borrow_mut();
        state.used = None;
        let queue = &mut state.queue;
        let mut set = || {
            queue.try_set_desc_table_address(addresses.descriptors)?;
            queue.try_set_avail_ring_address(addresses.available)?;
            queue.try_set_used_ring_address(addresses.used)
        };
        set().map_err(|error: virtio_queue::Error| error.to_string())?;
        state.used = Some(addresses.used);
        self.is_renewed.set(true);
        Ok(())
    }

    /// Sets the next entry to be taken.
    ///
    /// # Errors
    /// The ring runs.
    pub(crate) fn set_base(&self, base: u16) -> Result<(), String> {
        self.check_stopped()?;
        self.state.borrow_mut().queue.set_next_avail(base);
        Ok(())
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn base(&self) -> u16 {
        self.state.borrow().queue.next_avail()
    }

    pub(crate) fn set_event_index(&self, is_used: bool) {
        self.state.borrow_mut().queue.set_event_idx(is_used);
    }

    /// Replaces the guest's memory. Requests in flight retain their memory.
    pub(crate) fn set_memory(&self, guest: &Guest) {
        let state = &mut *self.state.borrow_mut();
        state.guest = guest.clone();
        let is_running = self.stage.get() == Stage::Running;
        if is_running && !state.queue.is_valid(&**guest) {
            self.break_down(state, Malformed("the ring is no longer in the guest's memory"));
        }
    }

    /// Sets the descriptor by which the guest announces requests.
    ///
    /// # Errors
    /// The descriptor cannot be made nonblocking.
    pub(crate) fn set_kick(&self, kick: OwnedFd) -> Result<(), String> {
        self.check_stopped()?;
        let kick = event(kick)?;
        self.state.borrow_mut().kick = Some(Arc::new(kick));
        self.is_renewed.set(true);
        Ok(())
    }

    /// Sets the descriptor by which the guest is notified. Without one, there are no notifications.
    ///
    /// # Errors
    /// See [`Self::set_kick`].
    pub(crate) fn set_call(&self, call: Option<OwnedFd>) -> Result<(), String> {
        let call = call.map(event).transpose()?;
        // Earlier completions may have been announced through another descriptor, or not at all.
        call.iter().for_each(signal);
        self.state.borrow_mut().call = call;
        Ok(())
    }

    /// Sets the descriptor by which the front end is notified that the ring is broken.
    ///
    /// # Errors
    /// See [`Self::set_kick`].
    pub(crate) fn set_error(&self, error: Option<OwnedFd>) -> Result<(), String> {
        self.state.borrow_mut().error = error.map(event).transpose()?;
        Ok(())
    }

    pub(crate) fn set_enabled(&self, is_enabled: bool) {
        self.is_enabled.set(is_enabled);
    }

    /// Returns whether the ring is stopped and completely set up.
    pub(crate) fn is_set_up(&self) -> bool {
        let state = self.state.borrow();
        self.stage.get() == Stage::Stopped && state.kick.is_some() && state.used.is_some()
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.is_enabled.get()
    }

    /// Returns whether the ring may run next. After a stop, its earlier setup may be out of date.
    pub(crate) fn is_current(&self) -> bool {
        self.is_enabled.get() || self.is_renewed.get()
    }

    /// Returns where the ring ended in this session.
    pub(crate) fn ended(&self) -> Option<Ended> {
        self.ended.get()
    }

    /// Returns where the ring begins.
    ///
    /// # Errors
    /// The ring is not in the guest's memory.
    pub(crate) fn beginning(&self, memory: &Memory) -> Result<Start, String> {
        let state = &mut *self.state.borrow_mut();
        let outside = || format!("ring {} is not in the guest's memory", self.number);
        let (queue, guest) = (&mut state.queue, &state.guest);
        queue.set_ready(true);
        if !queue.is_valid(&**guest) {
            return Err(outside());
        }
        let address = state.used.ok_or_else(outside)?;
        let file = memory.file_of(address).ok_or_else(outside)?;
        let used = queue.used_idx(&**guest, Ordering::Acquire);
        let used = used.map_err(|error| error.to_string())?.0;
        let mut entries = vec![0_u8; usize::from(queue.size()) * USED_ENTRY_BYTES];
        let entries_begin = address.unchecked_add(USED_HEAD_BYTES);
        guest.read_slice(&mut entries, entries_begin).map_err(|error| error.to_string())?;
        let is_untouched = entries.iter().all(|&byte| byte == 0);
        let base = queue.next_avail();
        Ok(Start { base, used, is_untouched, file })
    }

    /// Starts the ring, which must be set up and enabled. Returns its kick; the caller starts its
    /// tasks.
    pub(crate) fn start(&self, start: Start) -> Option<Arc<OwnedFd>> {
        let state = &mut *self.state.borrow_mut();
        let kick = state.kick.clone()?;
        assert_eq!(self.stage.get(), Stage::Stopped, "a ring that runs is started");
        assert_eq!(start.base, start.used, "the requests in flight are unknown");
        // The queue is created anew, because it counts completions, and no other call resets that
        // count to zero.
        state.queue = Queue::try_from(state.queue.state()).expect("the state of a queue");
        state.queue.set_next_used(start.used);
        self.began.set(Some(start));
        self.stage.set(Stage::Running);
        self.tasks.set(2);
        Some(kick)
    }

    /// Stops taking requests. Requests in flight have not ended yet: see [`Self::stopped`].
    pub(crate) fn begin_stop(&self) {
        if self.stage.get() == Stage::Running {
            self.stage.set(Stage::Stopping);
        }
        if let Some(kick) = &self.state.borrow().kick {
            self.runtime.interrupt(kick);
        }
        self.wake();
    }

    /// Waits until the requests in flight have ended and are marked as used.
    pub(crate) async fn stopped(&self) {
        let is_over = || self.in_flight.get() == 0 && self.tasks.get() == 0;
        self.changed.wait_for(|| is_over().then_some(())).await;
        self.notify();
        if self.stage.replace(Stage::Stopped) != Stage::Stopped {
            let ended = |start: Start| Ended { file: start.file, index: self.base() };
            self.ended.set(self.began.get().map(ended));
            self.is_renewed.set(false);
        }
        self.state.borrow_mut().queue.set_ready(false);
    }

    /// Stops the ring: stops taking requests, and waits until the requests in flight have ended.
    pub(crate) async fn stop(&self) {
        self.begin_stop();
        self.stopped().await;
    }

    /// Forgets the descriptor by which the guest announces requests, so that only a new one starts
    /// the ring again.
    pub(crate) fn forget_kick(&self) {
        self.state.borrow_mut().kick = None;
    }

    fn check_stopped(&self) -> Result<(), String> {
        match self.stage.get() {
            Stage::Stopped => Ok(()),
            _ => Err(format!("ring {} runs", self.number)),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.stage.get() == Stage::Running
    }

    /// Makes the tasks check the stage.
    fn wake(&self) {
        self.changed.wake_all();
        self.completed.wake_all();
        self.buffers.wake();
    }

    /// Records that one of the two tasks has ended.
    pub(crate) fn end_task(&self) {
        self.tasks.update(|tasks| tasks - 1);
        self.changed.wake_all();
    }

    /// Waits until the guest announces requests.
    pub(crate) async fn kicked(&self, kick: &Arc<OwnedFd>) {
        let enabled = {
            let State { queue, guest, .. } = &mut *self.state.borrow_mut();
            queue.enable_notification(&**guest)
        };
        match enabled {
            // A request arrived before notifications were enabled.
            Ok(true) => return,
            Ok(false) => {}
            Err(_) => return self.broken(UNREADABLE),
        }
        match self.runtime.readable(kick).await {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                return self.broken(Malformed("the kick cannot be read"));
            }
            _ => {}
        }
        // EAGAIN: the front end has read it. The ring counts, not the number in the eventfd.
        match rustix::io::read(kick, &mut [0; 8]) {
            Ok(1..) | Err(Errno::AGAIN | Errno::INTR) => {}
            // The descriptor would be readable forever.
            _ => return self.broken(Malformed("the kick has ended")),
        }
        let State { queue, guest, .. } = &mut *self.state.borrow_mut();
        // If this fails, taking the next request reports the error too.
        let _ = queue.disable_notification(&**guest);
    }

    /// Takes the next request.
    pub(crate) fn take(self: &Rc<Self>) -> Result<(Taker, Parts), Idle> {
        if !self.buffers.have_room() {
            return Err(Idle::NoRoom);
        }
        let State { queue, guest, parts, .. } = &mut *self.state.borrow_mut();
        if self.in_flight.get() >= queue.size() {
            return Err(Idle::Full);
        }
        match queue.avail_idx(&**guest, Ordering::Acquire) {
            Ok(index) if index.0 == queue.next_avail() => return Err(Idle::Nothing),
            Ok(_) => {}
            Err(_) => return Err(Idle::Broken(UNREADABLE)),
        }
        let Ok(mut chains) = queue.iter(&**guest) else {
            return Err(Idle::Broken(Malformed("more requests than the ring has entries")));
        };
        let Some(chain) = chains.next() else { return Err(Idle::Broken(UNREADABLE)) };
        let head = chain.head_index();
        parts.parse(guest, chain).map_err(Idle::Broken)?;
        self.in_flight.update(|count| count + 1);
        let (status, output_bytes) = (parts.status, parts.output_bytes());
        let taker = Taker { ring: self.clone(), guest: guest.clone(), head, status, output_bytes };
        Ok((taker, std::mem::take(parts)))
    }

    /// Takes the parts of a request back, for the memory that they hold.
    pub(crate) fn reuse(&self, parts: Parts) {
        self.state.borrow_mut().parts = parts;
    }

    /// Waits until a request of the ring has ended.
    pub(crate) async fn one_ended(&self) {
        let in_flight = self.in_flight.get();
        let is_less = || self.in_flight.get() < in_flight || !self.is_running();
        self.changed.wait_for(|| is_less().then_some(())).await;
    }

    /// Notifies the guest of completed requests together, once the tasks that were ready with the
    /// first of them have run.
    pub(crate) async fn notify_all(self: Rc<Self>) {
        loop {
            let is_due = || self.has_completed.get() || !self.is_running();
            self.completed.wait_for(|| is_due().then_some(())).await;
            self.notify();
            if !self.is_running() {
                break;
            }
        }
        self.end_task();
    }

    /// Notifies the guest of the requests that were completed since the last call.
    pub(crate) fn notify(&self) {
        if !self.has_completed.replace(false) {
            return;
        }
        let State { queue, guest, call, .. } = &mut *self.state.borrow_mut();
        // The queue counts from one call of this function to the next, so it is called even without
        // `call`. If the guest's setting cannot be read, a superfluous notification is better than
        // none.
        let is_wanted = queue.needs_notification(&**guest).unwrap_or(true);
        if let Some(call) = call.as_ref().filter(|_| is_wanted) {
            signal(call);
        }
    }

    /// Stops serving the ring, which is unusable, until it is set up again.
    pub(crate) fn broken(&self, why: Malformed) {
        self.break_down(&self.state.borrow(), why);
    }

    fn break_down(&self, state: &State, why: Malformed) {
        let (ring, error, message) = (self.number, why.0, "the guest's ring is unusable");
        // A guest can break its ring any number of times.
        if self.was_broken.replace(true) {
            tracing::debug!(ring, error, "{message}");
        } else {
            tracing::warn!(ring, error, "{message}");
        }
        if self.is_running() {
            self.stage.set(Stage::Broken);
        }
        if let Some(error) = &state.error {
            signal(error);
        }
        self.wake();
    }
}

const UNREADABLE: Malformed = Malformed("the ring is not in the guest's memory");

impl Taker {
    /// Completes the request, which has written `data_bytes` to the guest's memory. The guest is
    /// notified soon.
    pub(crate) fn complete(self, status: Status, data_bytes: u64) {
        let ring = &*self.ring;
        // The guest may read the bytes that the device has written, from the first one up to the
        // first gap.
        let written = data_bytes + u64::from(data_bytes == self.output_bytes);
        let written = u32::try_from(written).unwrap_or(u32::MAX);
        // If its status is not in memory, the guest learns that the request ended, but not its
        // outcome.
        let _ = self.guest.write_obj(status as u8, self.status);
        ring.in_flight.update(|count| count - 1);
        let used = {
            let State { queue, guest, .. } = &mut *ring.state.borrow_mut();
            queue.add_used(&**guest, self.head, written)
        };
        if used.is_err() && ring.is_running() {
            let why = Malformed("a chain that begins outside of the ring");
            ring.broken(why);
        }
        ring.has_completed.set(true);
        ring.completed.wake_all();
        ring.changed.wake_all();
    }

    /// Returns the number of the ring, for logs.
    pub(crate) fn ring_number(&self) -> usize {
        self.ring.number
    }
}

/// Makes an eventfd nonblocking.
fn event(descriptor: OwnedFd) -> Result<OwnedFd, String> {
    ioctl_fionbio(&descriptor, true).map_err(|error| error.to_string())?;
    Ok(descriptor)
}

/// Adds 1 to an eventfd.
fn signal(event: &OwnedFd) {
    match rustix::io::write(event, &1_u64.to_ne_bytes()) {
        // EAGAIN: the counter is at its maximum.
        Ok(_) | Err(Errno::AGAIN) => {}
        Err(error) => tracing::debug!(%error, "cannot notify the front end"),
    }
}
