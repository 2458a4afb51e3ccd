//! The requests in flight on a connection.
//!
//! ```text
//!         begin            answered              complete            poll
//!  free ---------> waiting ---------> receiving ----------> done --------> free
//!                     |                   |                   ^
//!                     +- connection lost -+-------------------+
//! ```
//!
//! Invariants:
//! * A slot holds the buffer of its request from `begin` to the end, except while the receiver uses
//!   it. A dropped future leaves the buffer there, and the slot becomes free once the reply has
//!   arrived.
//! * A cookie is a slot *and* its generation, which changes whenever the slot becomes free. A
//!   cookie that a server repeats, delays, or makes up therefore matches no waiting request.
//! * After warm-up nothing is allocated.
//!
//! This module has no notion of sockets or bytes. The owner waits for free slots.

#![expect(
    clippy::cast_possible_truncation,
    reason = "a cookie is two halves of 32 bits, and a table has at most 1024 slots"
)]
#![expect(clippy::indexing_slicing, reason = "a key comes from this table, which never shrinks")]

use std::mem;
use std::ops::Range;
use std::task::{Context, Poll, Waker};

use super::super::wire::Errno;
use pumice_drive::base::AlignedBuffer;

/// Maximum number of requests in flight on a connection. Further ones wait. Four times the depth of
/// a deep queue of a host's driver (256); otherwise arbitrary.
pub(super) const REQUESTS_MAX: usize = 1024;

/// The destination of a read's payload.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) buffer: AlignedBuffer,
    pub(super) range: Range<usize>,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The server has answered, with success or an error.
    Answered(Errno),
    /// The connection ended before an answer.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    Waiting,
    Receiving,
    Done(Outcome),
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    phase: Phase,
    /// The caller no longer waits for it.
    is_abandoned: bool,
    target: Option<Target>,
    waker: Waker,
}

/// Identifies a request from its start until its end has been observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// Returns the identifier of the request on the wire.
    pub(super) fn cookie(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    fn of(cookie: u64) -> Self {
        Self { index: cookie as u32, generation: (cookie >> 32) as u32 }
    }
}

/// All requests of a connection.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Table {
    /// Returns whether a request can begin.
    pub(super) fn has_room(&self) -> bool {
        self.count() < REQUESTS_MAX
    }

    /// Returns the number of requests whose end has not been observed yet.
    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Starts a request; a read has a target. A slot must be free.
    pub(super) fn begin(&mut self, target: Option<Target>) -> Key {
        assert!(self.has_room(), "a request without room");
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                phase: Phase::Free,
                is_abandoned: false,
                target: None,
                waker: Waker::noop().clone(),
            });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.phase = Phase::Waiting;
        slot.target = target;
        Key { index, generation: slot.generation }
    }

    /// Returns the request to which a reply belongs, with its target; `None` if no waiting request
    /// has this cookie.
    pub(super) fn answered(&mut self, cookie: u64) -> Option<(Key, Option<Target>)> {
        let key = Key::of(cookie);
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation || slot.phase != Phase::Waiting {
            return None;
        }
        slot.phase = Phase::Receiving;
        Some((key, slot.target.take()))
    }

    /// Ends a request that was answered, and returns the waker of its caller.
    pub(super) fn complete(&mut self, key: Key, outcome: Outcome, target: Option<Target>) -> Waker {
        let slot = self.slot(key);
        assert_eq!(slot.phase, Phase::Receiving, "a request completed out of order");
        slot.target = target;
        self.end(key, outcome)
    }

    /// Ends one request that still waits for an answer, and returns the waker of its caller; `None`
    /// if no request waits.
    pub(super) fn lose_one(&mut self) -> Option<Waker> {
        let index = self.slots.iter().position(|slot| slot.phase == Phase::Waiting)?;
        let generation = self.slots[index].generation;
        Some(self.end(Key { index: index as u32, generation }, Outcome::Lost))
    }

    /// Polls for the end of a request. Then returns its target and frees the slot.
    pub(super) fn poll(
        &mut self,
        key: Key,
        context: &Context<'_>,
    ) -> Poll<(Outcome, Option<Target>)> {
        let slot = self.slot(key);
        let Phase::Done(outcome) = slot.phase else {
            slot.waker.clone_from(context.waker());
            return Poll::Pending;
        };
        Poll::Ready((outcome, self.release(key)))
    }

    /// Abandons a request whose caller no longer waits.
    pub(super) fn abandon(&mut self, key: Key) {
        let slot = self.slot(key);
        match slot.phase {
            Phase::Done(_) => drop(self.release(key)),
            _ => slot.is_abandoned = true,
        }
    }

    fn end(&mut self, key: Key, outcome: Outcome) -> Waker {
        let slot = self.slot(key);
        slot.phase = Phase::Done(outcome);
        let waker = mem::replace(&mut slot.waker, Waker::noop().clone());
        if slot.is_abandoned {
            drop(self.release(key));
        }
        waker
    }

    fn release(&mut self, key: Key) -> Option<Target> {
        let slot = self.slot(key);
        slot.phase = Phase::Free;
        slot.is_abandoned = false;
        slot.generation = slot.generation.wrapping_add(1);
        let target = slot.target.take();
        self.free.push(key.index);
        target
    }

    fn slot(&mut self, key: Key) -> &mut Slot {
        let slot = &mut self.slots[key.index as usize];
        assert_eq!(slot.generation, key.generation, "a request was named after its end");
        slot
    }
}

#[cfg(test)]
mod tests {
    //! Goal: an answer reaches only the request that it belongs to, and slots are reused. Method:
    //! every order of an answer, a second answer, a poll and a dropped future.
    use super::*;

    fn target(len: usize) -> Option<Target> {
        Some(Target { buffer: AlignedBuffer::zeroed(len), range: 0..len })
    }

    fn look(table: &mut Table, key: Key) -> Poll<(Outcome, Option<Target>)> {
        table.poll(key, &Context::from_waker(Waker::noop()))
    }

    const GOOD: Outcome = Outcome::Answered(Errno::OK);

    #[test]
    fn an_answer_gives_the_buffer_back_once() {
        let mut table = Table::default();
        let key = table.begin(target(100));
        assert!(look(&mut table, key).is_pending());
        let (answered, target) = table.answered(key.cookie()).unwrap();
        assert_eq!((answered, target.as_ref().unwrap().range.clone()), (key, 0..100));
        assert!(table.answered(key.cookie()).is_none(), "twice while its payload arrives");
        table.complete(key, GOOD, target);
        assert!(table.answered(key.cookie()).is_none(), "twice before its end was seen");
        let Poll::Ready((outcome, Some(target))) = look(&mut table, key) else { panic!() };
        assert_eq!((outcome, target.buffer.len(), table.count()), (GOOD, 100, 0));
        assert!(table.answered(key.cookie()).is_none(), "twice after its end");
        let next = table.begin(None);
        assert_eq!(next.index, key.index, "slots are used again");
        assert_ne!(next.cookie(), key.cookie());
        assert!(table.answered(key.cookie()).is_none(), "late, while the slot is another's");
    }

    #[test]
    fn made_up_cookies_name_nothing() {
        let mut table = Table::default();
        assert!(table.answered(0).is_none());
        let key = table.begin(None);
        for cookie in [1, 1 << 32, u64::MAX, u64::from(u32::MAX)] {
            assert!(table.answered(cookie).is_none(), "{cookie:#x}");
        }
        assert!(table.answered(key.cookie()).is_some());
    }

    #[test]
    fn an_abandoned_request_keeps_its_slot_and_buffer_until_its_answer() {
        let mut table = Table::default();
        for is_answered_first in [false, true] {
            let key = table.begin(target(10));
            if is_answered_first {
                let (key, target) = table.answered(key.cookie()).unwrap();
                table.abandon(key);
                table.complete(key, GOOD, target);
            } else {
                table.abandon(key);
                assert_eq!(table.count(), 1, "its answer is still to come");
                let (key, target) = table.answered(key.cookie()).unwrap();
                assert!(target.is_some());
                table.complete(key, GOOD, target);
            }
            assert_eq!(table.count(), 0);
            let done = table.begin(None);
            let (_, target) = table.answered(done.cookie()).unwrap();
            table.complete(done, GOOD, target);
            table.abandon(done);
            assert_eq!(table.count(), 0, "abandoned after its end");
        }
        let key = table.begin(None);
        assert!(look(&mut table, key).is_pending(), "its slot was abandoned by another");
        table.answered(key.cookie()).unwrap();
        table.complete(key, GOOD, None);
        assert!(look(&mut table, key).is_ready());
    }

    #[test]
    fn a_lost_connection_ends_all_that_waits_and_a_full_table_has_no_room() {
        let mut table = Table::default();
        let keys: Vec<Key> = (0..REQUESTS_MAX).map(|_| table.begin(target(1))).collect();
        assert!(!table.has_room());
        table.abandon(keys[0]);
        while table.lose_one().is_some() {}
        assert!(table.has_room(), "the abandoned one is free");
        for &key in &keys[1..] {
            let Poll::Ready((outcome, target)) = look(&mut table, key) else { panic!() };
            assert!(outcome == Outcome::Lost && target.is_some());
        }
        assert_eq!(table.count(), 0);
    }
}
