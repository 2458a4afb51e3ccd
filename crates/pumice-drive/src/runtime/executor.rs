//! Tasks and the queue of ready tasks.
//!
//! Invariants:
//! * Ready tasks run in the order in which they were woken, and a task is queued at most once.
//! * A task's future is polled and dropped while no borrow of the executor is held, so it can
//!   spawn, wake and drop anything.
//! * A slot retains its waker for later tasks in it. A waker that outlives its task can therefore
//!   cause one needless poll of a successor, but never a lost or a wrong one.
//!
//! The executor has no notion of time or I/O, and never blocks: the loop that does is
//! [`super::Runtime::block_on`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The index, among those of the spawned tasks, of the future that was passed to `block_on`.
pub(super) const ROOT: usize = usize::MAX;

/// The part of the executor that any thread may access: the woken tasks, and whether the loop
/// sleeps.
pub(super) struct Shared {
    queue: Mutex<Woken>,
    /// Becomes readable to end the loop's sleep. Absent if no thread ever blocks.
    alarm: Option<OwnedFd>,
}

#[derive(Default)]
struct Woken {
    tasks: VecDeque<usize>,
    parked: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Woken> {
        // No critical section can panic halfway, so a poisoned queue is intact.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, task: usize) {
        let mut woken = self.lock();
        woken.tasks.push_back(task);
        let parked = mem::take(&mut woken.parked);
        drop(woken);
        if parked && let Some(alarm) = &self.alarm {
            // Fails only if the counter would overflow, and then the alarm is readable anyway.
            let _ = rustix::io::write(alarm, &1u64.to_ne_bytes());
        }
    }

    /// Announces that the loop is about to block: from now on, a wake makes the alarm readable.
    /// Returns false if a task is already ready.
    pub(super) fn park(&self) -> bool {
        let mut woken = self.lock();
        woken.parked = woken.tasks.is_empty();
        woken.parked
    }

    /// Ends the effect of [`Shared::park`]. Called before the loop itself wakes a task.
    pub(super) fn unpark(&self) {
        self.lock().parked = false;
    }

    /// Returns the descriptor to wait on while parked.
    pub(super) fn alarm(&self) -> Option<BorrowedFd<'_>> {
        self.alarm.as_ref().map(AsFd::as_fd)
    }

    /// Makes the alarm unreadable again.
    pub(super) fn silence(&self) {
        if let Some(alarm) = &self.alarm {
            // Does not block: EAGAIN only means that the alarm was not readable.
            let _ = rustix::io::read(alarm, &mut [0u8; 8]);
        }
    }
}

struct TaskWaker {
    shared: Arc<Shared>,
    task: usize,
    queued: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.shared.push(self.task);
        }
    }
}

/// Holds one task after another, or the root future.
struct Slot {
    flag: Arc<TaskWaker>,
    waker: Waker,
    /// Absent while the task is being polled and after it has ended.
    task: Cell<Option<Task>>,
}

impl Slot {
    fn new(shared: &Arc<Shared>, task: usize) -> Self {
        let queued = AtomicBool::new(false);
        let flag = Arc::new(TaskWaker { shared: shared.clone(), task, queued });
        Self { waker: flag.clone().into(), flag, task: Cell::new(None) }
    }

    /// Polls `future`. A wake that arrives from here on queues the slot again.
    fn poll(&self, future: Pin<&mut dyn Future<Output = ()>>) -> Poll<()> {
        self.off_queue();
        future.poll(&mut Context::from_waker(&self.waker))
    }

    fn off_queue(&self) {
        self.flag.queued.store(false, Ordering::Release);
    }
}

#[derive(Default)]
struct Slots {
    slots: Vec<Rc<Slot>>,
    free: Vec<usize>,
}

/// All tasks of one runtime.
pub(super) struct Executor {
    shared: Arc<Shared>,
    root: Slot,
    tasks: RefCell<Slots>,
    /// The front of the ready queue, taken from `shared` in one step.
    ready: RefCell<VecDeque<usize>>,
    yielded: RefCell<Vec<Waker>>,
    running: Cell<bool>,
}

/// Marks the executor as running until it is dropped.
pub(super) struct Running<'a>(&'a Executor);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        assert!(self.0.running.replace(false), "a run ends once");
    }
}

impl Executor {
    /// Creates an executor. With `alarm`, its loop can sleep, and other threads can wake it.
    pub(super) fn new(alarm: bool) -> std::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let alarm = if alarm { Some(eventfd(0, flags)?) } else { None };
        let shared = Arc::new(Shared { queue: Mutex::default(), alarm });
        Ok(Self {
            root: Slot::new(&shared, ROOT),
            shared,
            tasks: RefCell::default(),
            ready: RefCell::default(),
            yielded: RefCell::default(),
            running: Cell::new(false),
        })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Queues a new task.
    pub(super) fn spawn(&self, task: Task) {
        let mut tasks = self.tasks.borrow_mut();
        let index = tasks.free.pop().unwrap_or_else(|| {
            let index = tasks.slots.len();
            tasks.slots.push(Rc::new(Slot::new(&self.shared, index)));
            index
        });
        let slot = &tasks.slots[index];
        let previous = slot.task.replace(Some(task));
        assert!(previous.is_none(), "a free slot holds a task");
        slot.waker.wake_by_ref();
    }

    /// Starts a run and queues the root future.
    ///
    /// # Panics
    /// If a run is in progress.
    pub(super) fn enter(&self) -> Running<'_> {
        assert!(!self.running.replace(true), "block_on inside block_on");
        self.root.waker.wake_by_ref();
        Running(self)
    }

    /// Removes the next ready task, or [`ROOT`], from the queue and returns it.
    pub(super) fn next(&self) -> Option<usize> {
        let mut ready = self.ready.borrow_mut();
        if ready.is_empty() {
            mem::swap(&mut *ready, &mut self.shared.lock().tasks);
        }
        ready.pop_front()
    }

    pub(super) fn poll_root(&self, root: Pin<&mut dyn Future<Output = ()>>) -> Poll<()> {
        self.root.poll(root)
    }

    /// Polls a task that [`Executor::next`] returned.
    pub(super) fn poll_task(&self, index: usize) {
        assert!(self.running.get(), "tasks are polled in a run");
        let slot = self.tasks.borrow().slots[index].clone();
        let Some(mut task) = slot.task.take() else {
            // The task was woken after its end. The next task of this slot must be able to enter
            // the queue.
            slot.off_queue();
            return;
        };
        match slot.poll(task.as_mut()) {
            Poll::Pending => {
                let other = slot.task.replace(Some(task));
                assert!(other.is_none(), "a slot was reused while its task was polled");
            }
            Poll::Ready(()) => {
                drop(task);
                self.tasks.borrow_mut().free.push(index);
            }
        }
    }

    /// Lets every other ready task run, and then lets the kernel complete operations, before this
    /// task continues.
    pub(super) async fn yield_now(&self) {
        let mut yielded = false;
        poll_fn(|context| {
            if mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            self.yielded.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Whether a task waits in [`Executor::yield_now`].
    pub(super) fn has_yielded(&self) -> bool {
        !self.yielded.borrow().is_empty()
    }

    /// Queues the tasks that have yielded.
    pub(super) fn resume_yielded(&self) {
        for waker in self.yielded.borrow_mut().drain(..) {
            waker.wake();
        }
    }

    /// Drops all tasks, including those spawned while others are dropped.
    pub(super) fn drop_tasks(&self) {
        assert!(!self.running.get(), "tasks dropped while they run");
        let mut index = 0;
        loop {
            let Some(slot) = self.tasks.borrow().slots.get(index).cloned() else { break };
            match slot.task.take() {
                Some(task) => {
                    drop(task);
                    self.tasks.borrow_mut().free.push(index);
                    index = 0;
                }
                None => index += 1,
            }
        }
    }
}
