//! Runs a host whose requests have no contents on a drive that stores bytes: all data is zeroes,
//! which need no memory.
//!
//! Used for designs that cannot be simulated without contents, and whose timing is independent of
//! the data.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::drive::SimDrive;
use super::log_drive::{Host, Request, Verb};
use crate::Result;
use pumice_drive::base::Clock;

/// Runs a host with `slots` slots to its end, like
/// [`LogDrive::run`](super::log_drive::LogDrive::run). Returns true if the host reached its end, or
/// false if `stop` was set first.
///
/// # Errors
/// The errors of the host and of the drive, after which the drive must not be used again.
pub fn run(drive: &SimDrive, host: &mut impl Host, slots: u32, stop: &AtomicBool) -> Result<bool> {
    let (host, runtime) = (RefCell::new(host), drive.runtime());
    let slot = async |slot: u32| -> Result<bool> {
        let mut bytes = Vec::new();
        loop {
            let now_ns = runtime.now_ns();
            let Some(request) = host.borrow_mut().next(slot, now_ns)? else { return Ok(true) };
            if request.due_ns > now_ns {
                runtime.sleep_ns(request.due_ns - now_ns).await;
            }
            let begun_ns = runtime.now_ns();
            answer(drive, &request, &mut bytes).await?;
            host.borrow_mut().done(&request, begun_ns, runtime.now_ns());
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
        }
    };
    // Requests are polled in wake-up order, so that none overtakes another.
    let mut all: FuturesUnordered<_> = (0..slots).map(slot).collect();
    runtime.block_on(async {
        let mut have_ended = true;
        while let Some(has_ended) = all.next().await {
            have_ended &= has_ended?;
        }
        Ok(have_ended)
    })
}

/// Performs a request, reusing the buffer `bytes`.
async fn answer(drive: &SimDrive, request: &Request, bytes: &mut Vec<u8>) -> Result<()> {
    let Request { verb, offset, bytes: len, .. } = *request;
    match verb {
        Verb::Flush => return drive.flush().await,
        Verb::Trim => return drive.trim(offset, len).await,
        Verb::Read | Verb::Write => {}
    }
    // All written data is zeroes.
    bytes.resize(len as usize, 0);
    match verb {
        Verb::Read => drive.read(offset, bytes).await,
        _ => drive.write(offset, bytes).await,
    }
}

#[cfg(test)]
mod tests {
    //! Goal: requests are issued when they are due, one per slot at a time, and have the latency of
    //! the drive. Method: a hard disk; a host that returns requests from a list.

    use super::*;
    use crate::drive::SimSpec;

    /// Returns requests in sequence, and records their results.
    struct List {
        left: Vec<Request>,
        done: Vec<(u64, u64, u64)>,
    }

    impl Host for List {
        fn next(&mut self, _slot: u32, _now_ns: u64) -> Result<Option<Request>> {
            Ok(self.left.pop())
        }

        fn done(&mut self, request: &Request, begun_ns: u64, done_ns: u64) {
            self.done.push((request.offset, begun_ns, done_ns));
        }
    }

    fn read(offset: u64, due_ns: u64) -> Request {
        Request { verb: Verb::Read, offset, bytes: 4096, due_ns }
    }

    fn ran(left: Vec<Request>, slots: u32) -> Vec<(u64, u64, u64)> {
        let drive = SimDrive::new(SimSpec::find("hdd-2010").unwrap()).unwrap();
        let mut list = List { left, done: Vec::new() };
        assert!(run(&drive, &mut list, slots, &AtomicBool::new(false)).unwrap());
        list.done
    }

    #[test]
    fn requests_go_when_they_are_due() {
        let far = 500 << 30;
        let done = ran(vec![read(4096, 5_000_000_000), read(far, 0)], 1);
        assert_eq!((done[0].0, done[0].1, done[1].1), (far, 0, 5_000_000_000));
        assert!((1_000_000..40_000_000).contains(&done[0].2), "a seek and a turn: {done:?}");
        let both = ran(vec![read(4096, 0), read(far, 0)], 2);
        assert_eq!((both[0].1, both[1].1), (0, 0), "at the same time");
        let one = ran(vec![read(4096, 0), read(far, 0)], 1);
        assert_eq!(one[1].1, one[0].2, "one after the other");
    }

    #[test]
    fn nobody_waits_for_ever() {
        // There is one place in the queue for five slots.
        let drive = SimDrive::new(SimSpec::find("jmicron-jmf602b").unwrap()).unwrap();
        let write = |number: u64| Request { verb: Verb::Write, ..read(number << 24, 0) };
        let mut list = List { left: (0..60).map(write).collect(), done: Vec::new() };
        assert!(run(&drive, &mut list, 5, &AtomicBool::new(false)).unwrap());
        let took: Vec<u64> = list.done.iter().map(|(_, begun, done)| done - begun).collect();
        let mean = took.iter().sum::<u64>() / 60;
        assert!(took.iter().all(|&took| took < 2 * mean), "{mean}: {took:?}");
    }

    #[test]
    fn a_stop_ends_it_and_mistakes_are_errors() {
        let drive = SimDrive::new(SimSpec::find("hdd-2010").unwrap()).unwrap();
        let mut list = List { left: vec![read(0, 0); 100], done: Vec::new() };
        assert!(!run(&drive, &mut list, 1, &AtomicBool::new(true)).unwrap());
        assert_eq!(list.done.len(), 1);
        let beyond = Request { verb: Verb::Trim, ..read(0, 0) };
        let mut list = List { left: vec![beyond], done: Vec::new() };
        assert!(run(&drive, &mut list, 1, &AtomicBool::new(false)).is_err(), "no trim");
    }
}
