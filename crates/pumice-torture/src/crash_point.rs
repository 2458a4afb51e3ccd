//! The crash of a life: at a poll of any task, or at an operation of the medium.
//!
//! Every task of a drive and of its hosts is polled through the crash point. Between two polls each
//! task is suspended at an await point, so counting polls reaches every await point, in every
//! combination of the schedule. After the crash, no task is polled and no operation starts: only
//! the caller of [`CrashPoint::until_crash`] continues.
//!
//! The crash point does not decide which data a power loss leaves on the medium.

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The moment of the crash, counted from 1 since the crash point was set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CrashAt {
    /// Never.
    #[default]
    Never,
    /// In place of a poll of any task.
    Poll(u64),
    /// In place of an operation of the medium.
    BeforeOperation(u64),
    /// In place of an operation other than a read: an opening has three of these and many reads.
    BeforeUpdate(u64),
    /// In place of a superblock write: an opening and every checkpoint have two of these.
    BeforeSuperblock(u64),
    /// In place of a discard: garbage collection frees a segment.
    BeforeDiscard(u64),
    /// After an operation of the medium, before its result reaches the caller.
    AfterOperation(u64),
}

/// The effect of an operation on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// A read.
    None,
    /// An append or a sync.
    Update,
    /// A superblock write.
    Superblock,
    /// A discard of a segment.
    Discard,
}

/// Limit on the polls or operations of one life, beyond which it counts as an endless loop: some
/// hundred times the longest life.
const PROGRESS_MAX: u64 = 1_000_000;

/// The crash point of one world, set again for each life.
#[derive(Debug, Default)]
pub(super) struct CrashPoint {
    crash: Cell<CrashAt>,
    polls: Cell<u64>,
    operations: Cell<u64>,
    updates: Cell<u64>,
    superblocks: Cell<u64>,
    discards: Cell<u64>,
    has_crashed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl CrashPoint {
    /// Clears the crash point and resets its counters.
    pub(super) fn set(&self, crash: CrashAt) {
        self.crash.set(crash);
        self.polls.set(0);
        self.operations.set(0);
        self.updates.set(0);
        self.superblocks.set(0);
        self.discards.set(0);
        self.has_crashed.set(false);
    }

    /// Returns the polls since the crash point was set.
    pub(super) fn polls(&self) -> u64 {
        self.polls.get()
    }

    /// Returns the operations of the medium since the crash point was set.
    pub(super) fn operations(&self) -> u64 {
        self.operations.get()
    }

    /// Returns whether the life crashed because of an endless loop.
    pub(super) fn loops_endlessly(&self) -> bool {
        self.polls.get().max(self.operations.get()) > PROGRESS_MAX
    }

    /// Crashes now.
    pub(super) fn crash(&self) {
        self.has_crashed.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Runs `future` to its end; returns `None` if the life crashes first.
    pub(super) async fn until_crash<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|context| {
            self.waker.replace(Some(context.waker().clone()));
            if !self.may_poll() {
                return Poll::Ready(None);
            }
            let polled = future.as_mut().poll(context);
            if self.has_crashed.get() { Poll::Ready(None) } else { polled.map(Some) }
        })
        .await
    }

    /// Wraps a task so that it is never polled after the crash.
    pub(super) fn task(
        self: &Rc<Self>,
        future: impl Future<Output = ()> + 'static,
    ) -> impl Future<Output = ()> + 'static {
        let crash_point = self.clone();
        let mut future = Box::pin(future);
        poll_fn(
            move |context| {
                if crash_point.may_poll() { future.as_mut().poll(context) } else { Poll::Pending }
            },
        )
    }

    /// Runs an operation of the medium; never completes if the life crashes at it.
    pub(super) async fn operation<T>(
        &self,
        effect: Effect,
        operation: impl Future<Output = T>,
    ) -> T {
        let count = |counter: &Cell<u64>, counts: bool| {
            counter.set(counter.get() + u64::from(counts));
            counter.get()
        };
        let number = count(&self.operations, true);
        let update = count(&self.updates, effect != Effect::None);
        let superblock = count(&self.superblocks, effect == Effect::Superblock);
        let discard = count(&self.discards, effect == Effect::Discard);
        let strikes = match self.crash.get() {
            CrashAt::BeforeOperation(struck) => struck == number,
            CrashAt::BeforeUpdate(struck) => effect != Effect::None && struck == update,
            CrashAt::BeforeSuperblock(struck) => {
                effect == Effect::Superblock && struck == superblock
            }
            CrashAt::BeforeDiscard(struck) => effect == Effect::Discard && struck == discard,
            _ => number > PROGRESS_MAX,
        };
        if self.has_crashed.get() || strikes {
            self.crash();
            return pending().await;
        }
        let result = operation.await;
        if self.crash.get() == CrashAt::AfterOperation(number) {
            self.crash();
            return pending().await;
        }
        result
    }

    fn may_poll(&self) -> bool {
        self.polls.set(self.polls.get() + 1);
        let polls = self.polls.get();
        if self.crash.get() == CrashAt::Poll(polls) || polls > PROGRESS_MAX {
            self.crash();
        }
        !self.has_crashed.get()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a crash happens exactly where it was set, and nothing runs afterwards.
    use super::*;
    use pumice_drive::runtime::Runtime;

    fn effect(number: u32) -> Effect {
        [Effect::Superblock, Effect::None, Effect::Discard][number as usize]
    }

    /// Runs three operations, the second a read, in a task. Returns how many were carried out, how
    /// many of them returned to their caller, and whether the life reached its end.
    fn run(crash: CrashAt) -> (u32, u32, bool) {
        let runtime = Runtime::simulated();
        let crash_point = Rc::new(CrashPoint::default());
        crash_point.set(crash);
        let (done, heard) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let counts = (done.clone(), heard.clone());
        let operations = crash_point.clone();
        let idle = runtime.clone();
        runtime.spawn(crash_point.task(async move {
            for number in 0..3 {
                let operation = async { counts.0.set(counts.0.get() + 1) };
                operations.operation(effect(number), operation).await;
                counts.1.set(counts.1.get() + 1);
                idle.yield_now().await;
            }
        }));
        let life = async {
            for _ in 0..10 {
                runtime.yield_now().await;
            }
        };
        let ended = runtime.block_on(crash_point.until_crash(life)).is_some();
        runtime.drop_tasks();
        (done.get(), heard.get(), ended)
    }

    #[test]
    fn it_blows_when_it_was_set_to() {
        assert_eq!(run(CrashAt::Never), (3, 3, true));
        assert_eq!(run(CrashAt::BeforeOperation(1)), (0, 0, false));
        assert_eq!(run(CrashAt::BeforeOperation(3)), (2, 2, false));
        assert_eq!(run(CrashAt::AfterOperation(2)), (2, 1, false));
        assert_eq!(run(CrashAt::BeforeUpdate(2)), (2, 2, false));
        assert_eq!(run(CrashAt::BeforeUpdate(3)), (3, 3, true));
        assert_eq!(run(CrashAt::BeforeSuperblock(1)), (0, 0, false));
        assert_eq!(run(CrashAt::BeforeSuperblock(2)), (3, 3, true));
        assert_eq!(run(CrashAt::BeforeDiscard(1)), (2, 2, false));
        assert_eq!(run(CrashAt::Poll(1)), (0, 0, false));
        // The task and the life are polled in turn.
        assert_eq!(run(CrashAt::Poll(2)), (1, 1, false));
        assert_eq!(run(CrashAt::Poll(4)), (2, 2, false));
    }
}
