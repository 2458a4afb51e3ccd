//! Members that do not answer. A device whose operation never ends must not stop the drive while
//! another member can continue.
//!
//! ```text
//! write, sync   all at once; one active member has it -> the others get the limit -> out
//! read          the limit -> another member; if that answers -> the first is out
//!               none answers within the limit -> the first again, without a limit
//! opening       headers of all at once; one was read -> the others get the limit -> absent
//! a new one     the limit, for each step until it is a member -> refused
//! a removed one the limit -> its headers stay as they are
//! ```
//!
//! Superblocks and the lists of members are read and written in the same way.
//!
//! A member therefore counts as failed only when another member has completed the same operation.
//! If all are slow, the array waits, as a single device would. An abandoned operation may still
//! take effect, on a member that is out and is not read again before it has been rebuilt. Until the
//! operating system has ended the operation, the file stays locked, so the member cannot be added
//! again until then.

use std::pin::Pin;
use std::rc::Rc;

use std::future::poll_fn;

use futures_util::future::maybe_done;
use std::task::Poll;

use super::members::{Member, Target};
use super::{Array, Load, READ_COST_BYTES};
use crate::base::{AlignedBuffer, Clock, Error, ErrorKind, Result, SegmentId};
use crate::format::ArrayLayout;
use crate::media::Medium;

/// Number of parts of a limit. A part that elapses while the machine or the process is suspended
/// counts as one part, whatever the clock reads, and members have the rest of the limit to answer.
const PARTS: u64 = 8;

/// How long a member may delay an operation that another member has completed.
#[derive(Clone)]
pub struct Patience {
    ns: u64,
    sleep: Rc<dyn Fn(u64) -> Wait>,
}

type Wait = Pin<Box<dyn Future<Output = ()>>>;

impl Patience {
    /// Returns a limit in nanoseconds on a clock.
    pub fn new<C: Clock + Clone + 'static>(clock: &C, ns: u64) -> Self {
        let clock = clock.clone();
        let sleep = move |ns| -> Wait {
            let clock = clock.clone();
            Box::pin(async move { clock.sleep_ns(ns).await })
        };
        Self { ns, sleep: Rc::new(sleep) }
    }

    fn pass(&self) -> Wait {
        let Self { ns, sleep } = self.clone();
        Box::pin(async move {
            for _ in 0..PARTS {
                sleep(ns.div_ceil(PARTS)).await;
            }
        })
    }
}

/// Waits for operations concurrently. Once an operation that `counts` has ended, waits for the
/// others no longer than the limit. `None` stands for an operation that has not ended.
pub(super) async fn all_in_time<T>(
    operations: Vec<impl Future<Output = T>>,
    patience: Option<&Patience>,
    counts: impl Fn(usize, &T) -> bool,
) -> Vec<Option<T>> {
    let mut operations: Vec<_> =
        operations.into_iter().map(|operation| Box::pin(maybe_done(operation))).collect();
    let mut limit = None;
    poll_fn(|context| {
        let (mut is_waiting, mut is_done) = (false, false);
        for (index, operation) in operations.iter_mut().enumerate() {
            if operation.as_mut().poll(context).is_pending() {
                is_waiting = true;
            } else if !is_done {
                let outcome = operation.as_mut().output_mut();
                is_done = outcome.is_some_and(|outcome| counts(index, outcome));
            }
        }
        match patience {
            Some(patience) if is_waiting && is_done => {
                limit.get_or_insert_with(|| patience.pass()).as_mut().poll(context)
            }
            _ if is_waiting => Poll::Pending,
            _ => Poll::Ready(()),
        }
    })
    .await;
    operations.iter_mut().map(|operation| operation.as_mut().take_output()).collect()
}

pub(super) fn no_answer() -> Error {
    Error::new(ErrorKind::Medium, "it does not answer, and another member has")
}

impl<M: Medium> Array<M> {
    /// Sets how long a member may delay the array. The default is no limit.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Performs an operation on members concurrently and returns the outcome of each. A member that
    /// does not answer although an active one has completed the operation is marked out in memory.
    pub(super) async fn on_each<F>(
        &self,
        targets: &[Target<M>],
        operation: impl Fn(Rc<M>) -> F,
    ) -> Vec<Result<()>>
    where
        F: Future<Output = Result<()>>,
    {
        let begin = |target: &Target<M>| operation(target.medium.clone());
        let operations: Vec<_> = targets.iter().map(begin).collect();
        let counts = |index: usize, outcome: &Result<()>| {
            outcome.is_ok() && targets.get(index).is_some_and(|target| self.is_active(target.uuid))
        };
        // The members of a concatenation are not copies of each other.
        let patience = self.patience.as_ref().filter(|_| self.layout == ArrayLayout::Mirror);
        let outcomes = all_in_time(operations, patience, counts).await;
        assert_eq!(outcomes.len(), targets.len(), "each member has an outcome");
        let ended = |(outcome, target): (Option<Result<()>>, &Target<M>)| {
            outcome.unwrap_or_else(|| {
                self.give_up(target);
                Err(no_answer())
            })
        };
        outcomes.into_iter().zip(targets).map(ended).collect()
    }

    /// Marks out, in memory, a member that does not answer, unless it is the last complete one.
    fn give_up(&self, target: &Target<M>) {
        let is_other =
            |member: &Member<M>| member.entry.uuid != target.uuid && member.is_readable();
        let is_needless = self.members.borrow().iter().any(is_other);
        if is_needless {
            self.leave_out(target.uuid, &no_answer());
        }
    }

    /// Waits for a member. Returns `None` if it has not answered within the limit and another
    /// member may.
    pub(super) async fn in_time<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        match self.has_copies() {
            true => self.in_limit(answer).await,
            false => Some(answer.await),
        }
    }

    /// Waits for an answer no longer than the limit. Returns `None` if none has arrived.
    pub(super) async fn in_limit<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        let Some(patience) = &self.patience else { return Some(answer.await) };
        let mut answer = std::pin::pin!(answer);
        let mut limit = None;
        poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => {
                let limit = limit.get_or_insert_with(|| patience.pass());
                limit.as_mut().poll(context).map(|()| None)
            }
        })
        .await
    }

    async fn read_in_time(
        &self,
        target: &Target<M>,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> Option<(AlignedBuffer, Result<()>)> {
        let _load = Load::new(&target.load, READ_COST_BYTES + buffer.len() as u64);
        self.in_time(target.medium.read(segment, offset, buffer)).await
    }

    /// Reads from this member only. If it does not answer and is not the last one, it is marked
    /// out.
    pub(super) async fn read_one(
        &self,
        target: &Target<M>,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        let len = buffer.len();
        if let Some(outcome) = self.read_in_time(target, segment, offset, buffer).await {
            return outcome;
        }
        if !self.has_another_answer(target, segment, offset, len).await {
            return target.medium.read(segment, offset, AlignedBuffer::zeroed(len)).await;
        }
        self.give_up(target);
        let stored = self.save().await;
        (AlignedBuffer::zeroed(len), stored.and(Err(no_answer())))
    }

    /// Returns whether another member reads a location within the limit. If none does, all are
    /// slow.
    pub(super) async fn has_another_answer(
        &self,
        target: &Target<M>,
        segment: SegmentId,
        offset: u32,
        len: usize,
    ) -> bool {
        let mut tried = vec![target.uuid];
        while let Some(other) = self.choose(&tried) {
            tried.push(other.uuid);
            let buffer = AlignedBuffer::zeroed(len);
            let read = self.read_in_time(&other, segment, offset, buffer).await;
            if read.is_some_and(|(_, result)| result.is_ok()) {
                return true;
            }
        }
        false
    }

    /// Reads a superblock from this member only. If it does not answer and is not the last one, it
    /// is marked out.
    pub(super) async fn read_superblock_of(
        &self,
        target: &Target<M>,
        slot: u32,
    ) -> Result<AlignedBuffer> {
        if let Some(read) = self.in_time(target.medium.read_superblock(slot)).await {
            return read;
        }
        let mut tried = vec![target.uuid];
        while let Some(other) = self.choose_first(&tried) {
            tried.push(other.uuid);
            let read = self.in_time(other.medium.read_superblock(slot)).await;
            if read.is_some_and(|read| read.is_ok()) {
                self.give_up(target);
                self.save().await?;
                return Err(no_answer());
            }
        }
        target.medium.read_superblock(slot).await
    }

    /// Reads a superblock from the first member, or from another one if that fails or does not
    /// answer.
    pub(super) async fn read_any_superblock(&self, slot: u32) -> Result<AlignedBuffer> {
        let (mut tried, mut failure) = (Vec::new(), None);
        let mut late: Vec<Target<M>> = Vec::new();
        while let Some(target) = self.choose_first(&tried) {
            tried.push(target.uuid);
            match self.in_time(target.medium.read_superblock(slot)).await {
                Some(Ok(bytes)) => {
                    late.iter().for_each(|late| self.give_up(late));
                    if !late.is_empty() {
                        self.save().await?;
                    }
                    return Ok(bytes);
                }
                Some(Err(error)) => {
                    self.note_read_error(target.uuid, &error);
                    failure.get_or_insert(error);
                }
                None => late.push(target),
            }
        }
        if let Some(target) = late.first() {
            return target.medium.read_superblock(slot).await;
        }
        let absent = || Error::new(ErrorKind::Medium, "no member of the array can be read");
        Err(failure.unwrap_or_else(absent))
    }

    /// Reads from the member with the lowest load, or from another one if that fails or does not
    /// answer.
    pub(super) async fn read_any(
        &self,
        segment: SegmentId,
        offset: u32,
        mut buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        let len = buffer.len();
        let (mut tried, mut failure) = (Vec::new(), None);
        let mut late: Vec<Target<M>> = Vec::new();
        while let Some(target) = self.choose(&tried) {
            tried.push(target.uuid);
            let Some((back, result)) = self.read_in_time(&target, segment, offset, buffer).await
            else {
                late.push(target);
                buffer = AlignedBuffer::zeroed(len);
                continue;
            };
            buffer = back;
            let Err(error) = result else {
                late.iter().for_each(|late| self.give_up(late));
                let stored = if late.is_empty() { Ok(()) } else { self.save().await };
                return (buffer, stored);
            };
            self.note_read_error(target.uuid, &error);
            failure.get_or_insert(error);
        }
        if let Some(target) = late.first() {
            return target.medium.read(segment, offset, buffer).await;
        }
        let absent = || Error::new(ErrorKind::Medium, "no member of the array can be read");
        (buffer, Err(failure.unwrap_or_else(absent)))
    }
}
