//! What a device or export must be like before the bench writes to it: blank, and large enough.

use std::fmt::Display;

use crate::error::Error;

/// Bytes at the beginning and at the end of a device or export that must be zero for it to count as
/// blank. Partition tables, file systems and volume managers store their labels there.
pub(super) const LABEL_BYTES: u64 = 1 << 20;

/// Returns the error of a target with too few bytes for a workload.
pub(super) fn too_small(target: impl Display, size_bytes: u64, bytes: u64) -> Error {
    Error::invalid(format!(
        "{target} has {size_bytes} bytes, the workload needs {bytes}: use a smaller --span"
    ))
}
