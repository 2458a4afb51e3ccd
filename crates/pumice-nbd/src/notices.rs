//! Log lines about clients. No client can cause many of them.
//!
//! Two kinds are counted separately, so that refused clients cannot hide admitted ones.

use std::cell::Cell;
use std::fmt::Display;

use super::caller::{Caller, Counted};

/// Number of lines of one kind that may be logged in a burst, and the time after which one more is
/// allowed. Arbitrary: enough for every client of a typical server, and an hour of noise is 3600
/// lines.
const LINES_MAX: u64 = 64;
const LINE_NS: u64 = 1_000_000_000;

/// The lines of a server.
#[derive(Debug, Default)]
pub(super) struct Notices {
    served: Quota,
    refused: Quota,
}

/// Lines of one kind.
#[derive(Debug, Default)]
struct Quota {
    /// Time when all lines so far are paid for: one each [`LINE_NS`].
    paid_ns: Cell<u64>,
    /// Lines omitted since the last one.
    omitted: Cell<u64>,
}

impl Quota {
    /// Returns the number of lines omitted before this one, if it may be logged.
    fn take(&self, now_ns: u64) -> Option<u64> {
        let paid_ns = self.paid_ns.get().max(now_ns);
        if paid_ns - now_ns > (LINES_MAX - 1) * LINE_NS {
            self.omitted.update(|omitted| omitted.saturating_add(1));
            return None;
        }
        self.paid_ns.set(paid_ns + LINE_NS);
        Some(self.omitted.take())
    }
}

/// Returns the field for omitted lines, if there were any.
fn some(omitted: u64) -> Option<u64> {
    Some(omitted).filter(|omitted| *omitted > 0)
}

impl Notices {
    /// Logs that a client has been admitted.
    pub(super) fn connected(&self, now_ns: u64, caller: &Caller, export: &str) {
        let Some(omitted) = self.served.take(now_ns) else { return };
        tracing::info!(
            export,
            client = %caller,
            identity = caller.identity().map(display),
            id = caller.id,
            omitted_lines = some(omitted),
            "client connected"
        );
    }

    /// Logs that an admitted client has left.
    pub(super) fn disconnected(&self, now_ns: u64, caller: &Caller) {
        let Some(omitted) = self.served.take(now_ns) else { return };
        let Counted { requests, read_bytes, written_bytes } = caller.meter.counted();
        tracing::info!(
            export = caller.export(),
            client = %caller,
            identity = caller.identity().map(display),
            id = caller.id,
            seconds = now_ns.saturating_sub(caller.since_ns) / 1_000_000_000,
            requests,
            read_bytes,
            written_bytes,
            omitted_lines = some(omitted),
            "client disconnected"
        );
    }

    /// Logs that a client is refused, or disconnected, for this reason.
    pub(super) fn refused(
        &self,
        now_ns: u64,
        caller: &Caller,
        export: Option<&str>,
        reason: impl Display,
    ) {
        let Some(omitted) = self.refused.take(now_ns) else { return };
        tracing::info!(
            export,
            client = %caller,
            identity = caller.identity().map(display),
            reason = %reason,
            omitted_lines = some(omitted),
            "client refused"
        );
    }

    /// Logs that the server is full: it disconnects `caller`, or new clients wait.
    pub(super) fn full(&self, now_ns: u64, connections: usize, caller: Option<&Caller>) {
        let Some(omitted) = self.refused.take(now_ns) else { return };
        tracing::warn!(
            connections,
            client = caller.map(display),
            omitted_lines = some(omitted),
            "connection limit reached: {}",
            match caller {
                Some(_) => "closing a connection still in its handshake",
                None => "new clients wait",
            }
        );
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a burst is logged, a flood is not, and omitted lines are counted.
    use super::*;

    #[test]
    fn a_flood_leaves_one_line_a_second() {
        let quota = Quota::default();
        let logged = |times: u64, now_ns| (0..times).filter_map(|_| quota.take(now_ns)).count();
        assert_eq!(logged(10_000, LINE_NS) as u64, LINES_MAX);
        assert_eq!(quota.take(LINE_NS), None);
        assert_eq!(quota.take(2 * LINE_NS), Some(10_001 - LINES_MAX));
        assert_eq!(quota.take(2 * LINE_NS), None);
        // A quiet period restores the quota.
        assert_eq!(logged(10_000, 1_000 * LINE_NS) as u64, LINES_MAX);
    }
}
