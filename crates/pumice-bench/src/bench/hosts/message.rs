//! The messages between the coordinating machine and the hosts. Each message is one line of JSON.

use std::io::{self, BufRead, Read, Write};

use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::bench::results::{Header, RunResult};
use crate::bench::sink::Status;
use crate::workload::Plan;

/// Protocol version, which must be equal on both sides.
pub(super) const PROTOCOL: u32 = 1;

/// Maximum length of a line: several times the length of a run in a result file.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// An order to a host.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// Report the clocks.
    Clocks,
    /// Prepare the target.
    Prepare(Box<Task>),
    /// Start the awaited activity at this time of the host's monotonic clock.
    Go { at_ns: u64 },
}

/// The benchmark of one host.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) title: String,
    pub(super) about: String,
    pub(super) plan: Plan,
    /// The target, in the host's notation.
    pub(super) target: String,
    pub(super) destroy: bool,
    pub(super) begun_unix_s: u64,
    /// Index of the host. Hosts write different data.
    pub(super) host: u32,
}

/// A report of a host.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Report {
    /// The first message.
    Hello {
        protocol: u32,
        tool: String,
    },
    Clocks(Clocks),
    /// The target is prepared; the host waits for [`Order::Go`].
    Ready(Box<Header>),
    /// The next activity is ready; the host waits for [`Order::Go`].
    Waiting(Status),
    /// A run has ended. It started with this delay.
    Ran {
        late_ns: u64,
        run: Box<RunResult>,
    },
    /// Every run was made.
    Ended,
    /// The benchmark failed, with this error.
    Failed(String),
}

/// Clock readings of a host, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Clocks {
    /// Since an arbitrary moment; never set back.
    pub(super) monotonic_ns: u64,
    /// Since 1970, UTC.
    pub(super) unix_ns: u64,
}

impl Clocks {
    /// Reads the clocks of this machine.
    pub(super) fn now() -> Self {
        let ns = |clock| {
            let time = clock_gettime(clock);
            // Both are after 1970, and before 2554.
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        };
        Self { monotonic_ns: ns(ClockId::Monotonic), unix_ns: ns(ClockId::Realtime) }
    }
}

/// Writes a message.
pub(super) fn write(
    writer: &mut (impl Write + ?Sized),
    message: &impl Serialize,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(message).expect("messages serialize");
    line.push(b'\n');
    writer.write_all(&line)?;
    writer.flush()
}

/// Reads a message. Returns `None` at the end.
///
/// # Errors
/// The message is invalid (the error quotes its beginning), or the reader failed.
pub(super) fn read<T: DeserializeOwned>(reader: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    reader.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    let parsed = serde_json::from_slice(&line).ok().filter(|_| line.ends_with(b"\n"));
    parsed.map(Some).ok_or_else(|| {
        let shown: String = String::from_utf8_lossy(&line).trim().chars().take(80).collect();
        io::Error::new(io::ErrorKind::InvalidData, format!("not a message of pumice: '{shown}'"))
    })
}
