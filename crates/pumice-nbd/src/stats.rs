//! What a server has done for the clients of one export so far, by command.
//!
//! Bytes are *host bytes*: the lengths the hosts asked for. A request is counted when it has been
//! carried out, before its reply is sent.

use std::cell::Cell;

use super::request::Verb;

/// Requests of one command since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandStats {
    /// Requests that succeeded.
    pub requests: u64,
    /// Host bytes of the requests that succeeded.
    pub bytes: u64,
    /// Requests that the disk failed.
    pub errors: u64,
}

/// Requests since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// `READ`.
    pub read: CommandStats,
    /// `WRITE`; one request, however many pieces it was streamed in.
    pub write: CommandStats,
    /// `FLUSH`; without bytes.
    pub flush: CommandStats,
    /// `TRIM`.
    pub trim: CommandStats,
    /// `WRITE_ZEROES`.
    pub write_zeroes: CommandStats,
    /// `CACHE`.
    pub cache: CommandStats,
    /// `BLOCK_STATUS`.
    pub block_status: CommandStats,
    /// Requests that never reached the disk: wrong, or during shutdown.
    pub refused: u64,
}

/// The counters behind [`Stats`].
#[derive(Debug, Default)]
pub(super) struct Counters(Cell<Stats>);

impl Counters {
    /// Counts a request that was carried out.
    pub(super) fn count(&self, verb: Verb, bytes: u64, is_error: bool) {
        let mut stats = self.0.get();
        let command = match verb {
            Verb::Read { .. } => &mut stats.read,
            Verb::Write => &mut stats.write,
            Verb::Flush => &mut stats.flush,
            Verb::Trim => &mut stats.trim,
            Verb::WriteZeroes { .. } => &mut stats.write_zeroes,
            Verb::Cache => &mut stats.cache,
            Verb::BlockStatus { .. } => &mut stats.block_status,
        };
        if is_error {
            command.errors += 1;
        } else {
            command.requests += 1;
            command.bytes += bytes;
        }
        self.0.set(stats);
    }

    /// Counts a request that was refused.
    pub(super) fn count_refused(&self) {
        self.0.set(Stats { refused: self.0.get().refused + 1, ..self.0.get() });
    }

    /// The counts now.
    pub(super) fn get(&self) -> Stats {
        self.0.get()
    }
}
