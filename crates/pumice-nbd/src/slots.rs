//! The requests in flight on a connection: up to 64 futures that live in the connection's task.
//!
//! A slot is a future that waits for a job, executes it, and waits for the next one. It is
//! allocated once, when the connection first has that number of requests in flight. Starting a job
//! polls its slot immediately, so a request that need not wait is complete when [`Slots::start`]
//! returns. Each slot has its own waker, a bit in one word, so that a connection with 64 waiting
//! requests polls only those that can continue.
//!
//! Slots are used instead of tasks of the runtime because they need no trip through the run queue
//! at depth 1, and because a connection then ends as a unit. This module implements no protocol:
//! the owner defines the jobs.

#![expect(
    clippy::indexing_slicing,
    reason = "a slot's index is below SLOTS_MAX and below the number of slots"
)]

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use pumice_drive::base::wait::WaitQueue;

/// Maximum number of requests in flight on a connection: the bits of a word. Few clients have more
/// (qemu 16, nbdcopy 64 by default); further requests wait in the socket.
pub(super) const SLOTS_MAX: usize = u64::BITS as usize;

type SlotFuture = Pin<Box<dyn Future<Output = ()>>>;

/// The slots of a connection, for jobs of type `J`.
pub(super) struct Slots<J> {
    slots: RefCell<Vec<Slot>>,
    inbox: Rc<Inbox<J>>,
    ready: Arc<Ready>,
    make: Box<dyn Fn(SlotInbox<J>) -> SlotFuture>,
}

struct Slot {
    future: SlotFuture,
    waker: Waker,
}

/// The state shared by the slots and their owner.
struct Inbox<J> {
    /// The job of each slot that was assigned and not yet started.
    jobs: [Cell<Option<J>>; SLOTS_MAX],
    free: RefCell<Vec<usize>>,
    freed: WaitQueue,
}

/// A slot's end of the inbox.
pub(super) struct SlotInbox<J> {
    inbox: Rc<Inbox<J>>,
    index: usize,
}

/// The slots that can continue, and the task to wake for them.
struct Ready {
    bits: AtomicU64,
    task: Mutex<Waker>,
}

struct SlotWaker {
    ready: Arc<Ready>,
    bit: u64,
}

impl<J: 'static> Slots<J> {
    /// Returns an empty set of slots; `make` returns the future of one, which takes job after job
    /// from its inbox.
    pub(super) fn new<F>(make: impl Fn(SlotInbox<J>) -> F + 'static) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        Self {
            slots: RefCell::default(),
            inbox: Rc::new(Inbox {
                jobs: [const { Cell::new(None) }; SLOTS_MAX],
                free: RefCell::default(),
                freed: WaitQueue::default(),
            }),
            ready: Arc::new(Ready {
                bits: AtomicU64::new(0),
                task: Mutex::new(Waker::noop().clone()),
            }),
            make: Box::new(move |inbox| Box::pin(make(inbox))),
        }
    }

    /// Waits until a job can be started.
    pub(super) async fn room(&self) {
        let has_room = || (self.count() < SLOTS_MAX).then_some(());
        if has_room().is_none() {
            self.inbox.freed.wait_for(has_room).await;
        }
    }

    /// Returns the number of jobs in flight.
    pub(super) fn count(&self) -> usize {
        self.slots.borrow().len() - self.inbox.free.borrow().len()
    }

    /// Starts a job and polls it once. A slot must be free.
    pub(super) fn start(&self, job: J) {
        let index = match self.inbox.free.borrow_mut().pop() {
            Some(index) => index,
            None => self.add(),
        };
        self.inbox.jobs[index].set(Some(job));
        self.poll_slot(index);
    }

    /// Polls the jobs that can continue. The task of `context` is woken when other jobs can.
    pub(super) fn poll(&self, context: &Context<'_>) {
        self.ready.register(context.waker());
        // Polls each slot once, including slots that others wake in this loop, so that their
        // replies are sent together. A slot that wakes itself is polled again after the other parts
        // of the connection.
        let mut polled = 0;
        loop {
            let woken = self.ready.bits.swap(0, Ordering::AcqRel);
            self.ready.bits.fetch_or(woken & polled, Ordering::AcqRel);
            let mut bits = woken & !polled;
            if bits == 0 {
                return;
            }
            polled |= bits;
            while bits != 0 {
                self.poll_slot(bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    fn add(&self) -> usize {
        let mut slots = self.slots.borrow_mut();
        let index = slots.len();
        assert!(index < SLOTS_MAX, "a job was started without room");
        let waker = SlotWaker { ready: self.ready.clone(), bit: 1 << index };
        let future = (self.make)(SlotInbox { inbox: self.inbox.clone(), index });
        slots.push(Slot { future, waker: Arc::new(waker).into() });
        index
    }

    fn poll_slot(&self, index: usize) {
        let Slot { future, waker } = &mut self.slots.borrow_mut()[index];
        let poll = future.as_mut().poll(&mut Context::from_waker(waker));
        assert!(poll.is_pending(), "a slot never ends");
    }
}

impl<J> SlotInbox<J> {
    /// Waits for the next job of this slot.
    ///
    /// Registers no waker: [`Slots::start`] polls the slot itself.
    pub(super) async fn job(&self) -> J {
        poll_fn(|_| match self.inbox.jobs[self.index].take() {
            Some(job) => Poll::Ready(job),
            None => Poll::Pending,
        })
        .await
    }

    /// Marks the job as done.
    pub(super) fn release(&self) {
        self.inbox.free.borrow_mut().push(self.index);
        self.inbox.freed.wake_all();
    }
}

impl Ready {
    fn register(&self, waker: &Waker) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if !task.will_wake(waker) {
            task.clone_from(waker);
        }
    }
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // If another bit was set, the task has already been woken and has not run yet.
        if self.ready.bits.fetch_or(self.bit, Ordering::AcqRel) == 0 {
            self.ready.task.lock().unwrap_or_else(PoisonError::into_inner).wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a job that need not wait is completed immediately, a waiting job costs a poll only
    //! when it is woken, slots are reused, and the owner is woken for every wake and once at a
    //! time. Method: jobs that wait for a number to be announced; a waker that counts.
    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[derive(Default)]
    struct World {
        announced: Cell<usize>,
        waiting: Vec<WaitQueue>,
        polls: Cell<usize>,
        done: RefCell<Vec<usize>>,
    }

    /// Runs jobs. Each waits until its number is below the announced number.
    async fn work(world: Rc<World>, inbox: SlotInbox<usize>) {
        loop {
            let job = inbox.job().await;
            world.waiting[job]
                .wait_for(|| {
                    world.polls.update(|polls| polls + 1);
                    (job < world.announced.get()).then_some(())
                })
                .await;
            world.done.borrow_mut().push(job);
            inbox.release();
        }
    }

    fn world() -> (Rc<World>, Slots<usize>) {
        let waiting = (0..SLOTS_MAX).map(|_| WaitQueue::default()).collect();
        let world = Rc::new(World { waiting, ..World::default() });
        let inner = world.clone();
        (world, Slots::new(move |inbox| work(inner.clone(), inbox)))
    }

    #[test]
    fn a_job_without_waits_completes_in_its_slot() {
        let (world, slots) = world();
        world.announced.set(1);
        for _ in 0..1000 {
            slots.start(0);
            assert_eq!(slots.count(), 0);
        }
        assert_eq!(world.done.borrow().len(), 1000);
        assert_eq!(slots.slots.borrow().len(), 1);
    }

    #[test]
    fn only_woken_slots_are_polled_and_the_owner_is_woken_once() {
        let (world, slots) = world();
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let context = Context::from_waker(&waker);
        (0..SLOTS_MAX).for_each(|job| slots.start(job));
        slots.poll(&context);
        assert_eq!((slots.count(), world.polls.get()), (SLOTS_MAX, SLOTS_MAX));
        world.announced.set(SLOTS_MAX);
        for job in [5, 63, 0] {
            world.waiting[job].wake_all();
        }
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        slots.poll(&context);
        assert_eq!(*world.done.borrow(), [0, 5, 63]);
        assert_eq!(world.polls.get(), SLOTS_MAX + 3);
        world.waiting[7].wake_all();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
        slots.poll(&context);
        assert_eq!(slots.count(), SLOTS_MAX - 4);
    }

    /// Each of them lets its predecessor, in the order of slots, continue.
    #[test]
    fn slots_that_wake_one_another_are_polled_at_once() {
        let world = Rc::new(World {
            waiting: (0..SLOTS_MAX).map(|_| WaitQueue::default()).collect(),
            ..World::default()
        });
        let inner = world.clone();
        let slots = Slots::new(move |inbox: SlotInbox<usize>| {
            let world = inner.clone();
            async move {
                let job = inbox.job().await;
                let turn = || (world.announced.get() == SLOTS_MAX - job).then_some(());
                world.waiting[job].wait_for(turn).await;
                world.announced.update(|announced| announced + 1);
                world.done.borrow_mut().push(job);
                if job > 0 {
                    world.waiting[job - 1].wake_all();
                }
                std::future::pending().await
            }
        });
        let context = Context::from_waker(Waker::noop());
        (0..SLOTS_MAX).for_each(|job| slots.start(job));
        slots.poll(&context);
        world.announced.set(1);
        world.waiting[SLOTS_MAX - 1].wake_all();
        slots.poll(&context);
        assert_eq!(world.done.borrow().len(), SLOTS_MAX);
    }

    #[test]
    fn a_full_set_has_room_once_a_job_ends() {
        let (world, slots) = world();
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let context = &mut Context::from_waker(&waker);
        (0..SLOTS_MAX).for_each(|job| slots.start(job));
        let mut room = pin!(slots.room());
        assert!(room.as_mut().poll(context).is_pending());
        world.announced.set(SLOTS_MAX);
        world.waiting[9].wake_all();
        slots.poll(context);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "the reader waits with the same waker");
        assert!(room.as_mut().poll(context).is_ready());
        slots.start(10);
        assert_eq!(slots.count(), SLOTS_MAX - 1);
    }
}
