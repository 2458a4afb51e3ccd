//! The part of a thread's time that questions about the map may take.
//!
//! A question of 28 bytes may visit tens of thousands of extents, so a crowd of clients that ask
//! would take the thread from those that read and write. Answers are therefore worked out in
//! pieces, at most one between two turns of the runtime's loop, and after a piece a pause follows
//! while other requests are served:
//!
//! ```text
//!  piece            pause: PAUSES times as long            piece
//!  |----|------------------------------------------------|----|
//! ```
//!
//! Without other requests there is no pause. Pieces of different connections take turns. Knows
//! neither requests nor disks: work is a future, and only the time in which it runs counts, not
//! that in which it waits for a medium.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;

use pumice_drive::base::Clock;
use pumice_drive::base::wait::Line;
use pumice_drive::runtime::Runtime;

/// Pause after a piece, in multiples of its time: questions take an eighth of the thread, which
/// leaves a client at work more than 0.8 of its speed.
const PAUSES: u64 = 7;

/// Time of pieces and pauses that may be made up for: answers of some microseconds, which most are,
/// do not each set a timer. Arbitrary.
const SAVED_NS: u64 = 1_000_000;

/// The time of one thread that is left for questions.
#[derive(Debug, Default)]
pub(super) struct SpareTime {
    /// Pieces that are about to start, in order of arrival.
    line: Line,
    /// When the next piece may start while other requests are served.
    due_ns: Cell<u64>,
    /// Whether another request was served since the last piece.
    has_others: Cell<bool>,
    /// The turn of the loop in which the last piece ran.
    turn: Cell<Option<u64>>,
}

impl SpareTime {
    /// Notes that a request of another kind is served.
    pub(super) fn note_other(&self) {
        self.has_others.set(true);
    }

    /// Runs one piece of work, when its time has come.
    pub(super) async fn piece<T>(&self, runtime: &Runtime, work: impl Future<Output = T>) -> T {
        let turn = self.line.turn().await;
        while self.turn.get() == Some(runtime.turns()) {
            runtime.yield_now().await;
        }
        loop {
            let pause_ns = self.pause_ns(runtime.now_ns());
            if pause_ns == 0 {
                break;
            }
            runtime.sleep_ns(pause_ns).await;
        }
        self.turn.set(Some(runtime.turns()));
        drop(turn);
        let mut work = pin!(work);
        poll_fn(|context| {
            let start_ns = runtime.now_ns();
            let polled = work.as_mut().poll(context);
            self.charge(start_ns, runtime.now_ns());
            polled
        })
        .await
    }

    /// Returns how long the next piece has to wait.
    fn pause_ns(&self, now_ns: u64) -> u64 {
        if self.has_others.get() { self.due_ns.get().saturating_sub(now_ns) } else { 0 }
    }

    fn charge(&self, start_ns: u64, end_ns: u64) {
        let spent_ns = end_ns.saturating_sub(start_ns);
        let from_ns = self.due_ns.get().max(start_ns.saturating_sub(SAVED_NS));
        self.due_ns.set(from_ns + spent_ns * (1 + PAUSES));
        self.has_others.set(false);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: questions leave others most of the time, and take all of it if there are no others.
    use std::cell::RefCell;
    use std::rc::Rc;

    use pumice_drive::runtime::Backend;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_pause_follows_a_piece_while_others_are_served() {
        let spare = SpareTime::default();
        spare.charge(1000 * MS, 1002 * MS);
        assert_eq!(spare.pause_ns(1002 * MS), 0, "a pause without others");
        spare.note_other();
        let pause_ns = spare.pause_ns(1002 * MS);
        assert_eq!(pause_ns, PAUSES * 2 * MS - SAVED_NS);
        let next_ns = 1002 * MS + pause_ns;
        spare.charge(next_ns, next_ns + 2 * MS);
        assert_eq!(spare.pause_ns(next_ns + 2 * MS), 0, "others of long ago");
        spare.note_other();
        assert_eq!(spare.pause_ns(next_ns + 2 * MS), PAUSES * 2 * MS, "saved time is used once");
        // After a long time without questions no more than that is saved.
        spare.charge(9000 * MS, 9001 * MS);
        spare.note_other();
        assert_eq!(spare.pause_ns(9001 * MS), PAUSES * MS - SAVED_NS);
    }

    #[test]
    fn short_answers_set_no_timers() {
        let spare = SpareTime::default();
        for start_ns in (1000 * MS..1010 * MS).step_by(100_000) {
            spare.note_other();
            assert_eq!(spare.pause_ns(start_ns), 0);
            spare.charge(start_ns, start_ns + 5_000);
        }
    }

    /// Guards against pieces that run one after the other while the sockets of others wait.
    #[test]
    fn at_most_one_piece_runs_in_a_turn_of_the_loop() {
        let runtime = Runtime::new(Backend::Auto).unwrap();
        let spare = Rc::new(SpareTime::default());
        let turns = Rc::new(RefCell::new(Vec::new()));
        for _ in 0..8 {
            let (inner, spare, turns) = (runtime.clone(), spare.clone(), turns.clone());
            runtime.spawn(async move {
                for _ in 0..4 {
                    let note = async || turns.borrow_mut().push(inner.turns());
                    spare.piece(&inner, note()).await;
                }
            });
        }
        runtime.block_on(async {
            while turns.borrow().len() < 32 {
                runtime.yield_now().await;
            }
        });
        assert!(turns.borrow().is_sorted_by(|one, next| one < next), "{turns:?}");
    }

    #[test]
    fn pauses_are_slept() {
        let runtime = Runtime::new(Backend::Auto).unwrap();
        let spare = SpareTime::default();
        let begun_ns = runtime.now_ns();
        let mut worked_ns = 0;
        runtime.block_on(async {
            for _ in 0..5 {
                spare.note_other();
                let work = async {
                    let start_ns = runtime.now_ns();
                    while runtime.now_ns() < start_ns + 2 * MS {}
                    worked_ns += runtime.now_ns() - start_ns;
                };
                spare.piece(&runtime, work).await;
            }
        });
        // The last piece has no pause after it.
        let taken_ns = runtime.now_ns() - begun_ns;
        assert!(taken_ns > worked_ns * 5, "{worked_ns} of {taken_ns} ns");
    }
}
