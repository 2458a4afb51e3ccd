//! The kinds of requests.

/// The kind of a host's request. Write-zeroes with edges count as writes, because their edges are
/// writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// A read.
    Read = 11,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A trim.
    Trim,
    /// Write-zeroes of whole blocks.
    WriteZeroes,
}
