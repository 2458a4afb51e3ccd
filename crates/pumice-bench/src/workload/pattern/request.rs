//! One request of a thread.

/// The action of a request. Offsets are in bytes from the start of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read at this offset.
    Read(u64),
    /// Write at this offset.
    Write(u64),
    /// Trim at this offset.
    Trim(u64),
    /// Read at the first offset and write at the second.
    Copy(u64, u64),
}

/// One request, or the two requests of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The action.
    pub action: Action,
    /// The length in bytes: the workload's record size, or less in a mix.
    pub bytes: u64,
    /// Duration of the thread's pause before this request, in ns.
    pub pause_ns: u64,
}
