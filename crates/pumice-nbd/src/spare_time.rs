//! The part of a thread's time that queries of the map may use.
//!
//! A query of 28 bytes may visit tens of thousands of extents, so a crowd of querying clients would
//! occupy the thread at the expense of clients that read and write. Answers are therefore computed
//! in pieces, at most one between two turns of the runtime's loop. After some pieces a pause
//! follows while other requests are served:
//!
//! ```text
//!  pieces                pause: PAUSES times as long                pieces
//!  |-|-|-|------------------------------------------------------|-|-|-|
//! ```
//!
//! Without other requests, there is no pause. Pieces of different connections alternate. This
//! module has no notion of requests or disks: work is a future, and only the time in which it runs
//! counts, not the time in which it waits for a medium.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;

use pumice_drive::base::Clock;
use pumice_drive::base::wait::Line;
use pumice_drive::runtime::Runtime;

/// Pause after a piece, in multiples of its time. Pieces use a sixteenth of the thread, and
/// encoding and sending their results uses the same again, which leaves a busy client more than 0.8
/// of its speed.
const PAUSES: u64 = 15;

/// Time of pieces and pauses that may be carried over. Most answers take a few microseconds, and so
/// do not each set a timer; pauses are longer by this time, so that the pieces after a pause share
/// its timer. Arbitrary.
const SAVED_NS: u64 = 1_000_000;

/// Time for which other requests count as being served after the last one. A client that waits for
/// a processor sends no requests for some milliseconds, and may wait for the processor of this
/// thread.
const RECENT_NS: u64 = 10_000_000;

/// Longest pause that may be due when a piece starts: work done while no other requests arrived is
/// not charged later. Long compared with the time between two requests of a busy client, and too
/// short to be noticed by a client that queries the map.
const OWED_NS: u64 = 20_000_000;

/// The time of one thread that is left for queries.
#[derive(Debug, Default)]
pub(super) struct SpareTime {
    /// Pieces that are about to start, in order of arrival.
    line: Line,
    /// When the next piece may start while other requests are served.
    due_ns: Cell<u64>,
    /// Whether another request was served since the last check.
    has_others: Cell<bool>,
    /// Time until which other requests count as being served.
    others_until_ns: Cell<u64>,
    /// The turn of the loop in which the last piece ran.
    turn: Cell<Option<u64>>,
}

impl SpareTime {
    /// Records that a request of another kind is served.
    pub(super) fn note_other(&self) {
        self.has_others.set(true);
    }

    /// Runs one piece of work, when it is due.
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
        if self.has_others.take() {
            self.others_until_ns.set(now_ns + RECENT_NS);
        }
        match self.due_ns.get().saturating_sub(now_ns) {
            owed_ns if owed_ns > 0 && now_ns < self.others_until_ns.get() => owed_ns + SAVED_NS,
            _ => 0,
        }
    }

    fn charge(&self, start_ns: u64, end_ns: u64) {
        let spent_ns = end_ns.saturating_sub(start_ns);
        let earliest_ns = start_ns.saturating_sub(SAVED_NS);
        let from_ns = self.due_ns.get().clamp(earliest_ns, start_ns + OWED_NS);
        self.due_ns.set(from_ns + spent_ns * (1 + PAUSES));
    }
}

#[cfg(test)]
mod tests {
    //! Goal: queries leave most of the time to other requests, and take all of it if there are
    //! none.
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
        assert_eq!(pause_ns, PAUSES * 2 * MS);
        let next_ns = 1002 * MS + pause_ns;
        spare.charge(next_ns, next_ns + 2 * MS);
        assert_eq!(spare.pause_ns(next_ns + 2 * MS), 0, "others of long ago");
        spare.note_other();
        assert_eq!(spare.pause_ns(next_ns + 2 * MS), PAUSES * 2 * MS);
        // A long time without queries saves no more.
        spare.charge(9000 * MS, 9001 * MS);
        spare.note_other();
        assert_eq!(spare.pause_ns(9001 * MS), PAUSES * MS);
    }

    /// Guards against pieces that keep a client from the processor that it shares with the thread,
    /// since it sends no requests while it does not run.
    #[test]
    fn others_are_served_as_long_as_they_were_recently() {
        let spare = SpareTime::default();
        spare.note_other();
        assert_eq!(spare.pause_ns(1000 * MS), 0, "nothing is owed");
        spare.charge(1000 * MS, 1001 * MS);
        for now_ms in 1001..1010 {
            assert!(spare.pause_ns(now_ms * MS) > 0, "{now_ms}");
        }
        assert_eq!(spare.pause_ns(1010 * MS), 0);
    }

    #[test]
    fn pieces_share_pauses_and_take_their_part_of_the_time() {
        let spare = SpareTime::default();
        let (mut now_ns, mut worked_ns, mut pauses) = (0, 0, 0);
        while now_ns < 1000 * MS {
            spare.note_other();
            let pause_ns = spare.pause_ns(now_ns);
            if pause_ns > 0 {
                pauses += 1;
                now_ns += pause_ns;
            } else {
                spare.charge(now_ns, now_ns + 20_000);
                worked_ns += 20_000;
                // Then other requests are served.
                now_ns += 50_000;
            }
        }
        let part_ns = 1000 * MS / (1 + PAUSES);
        assert!((part_ns * 9 / 10..part_ns + MS).contains(&worked_ns), "{worked_ns} ns");
        assert!(pauses < 900, "{pauses} pauses");
    }

    /// Guards against queries that run alone for seconds, and then get no answer for fifteen times
    /// as long once another client arrives.
    #[test]
    fn work_done_while_idle_is_not_charged_later() {
        let spare = SpareTime::default();
        (1000..5000).for_each(|ms| spare.charge(ms * MS, (ms + 1) * MS));
        spare.note_other();
        let pause_ns = spare.pause_ns(5000 * MS);
        assert_eq!(pause_ns, OWED_NS + PAUSES * MS + SAVED_NS);
    }

    #[test]
    fn short_answers_set_no_timers() {
        let spare = SpareTime::default();
        for ms in 1000..1010 {
            // Ten of them run, one right after the other.
            for start_ns in (ms * MS..).step_by(6_000).take(10) {
                spare.note_other();
                assert_eq!(spare.pause_ns(start_ns), 0);
                spare.charge(start_ns, start_ns + 5_000);
            }
        }
    }

    /// Guards against pieces that run one after the other while the sockets of other clients wait.
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
