//! On which processor a loop device ends its requests.
//!
//! The drive's thread ends them all. By the kernel's default they are completed on its processor,
//! but by ksoftirqd, which waits there until the thread, which is busy, is made to give way; on the
//! processor that asked, an interrupt completes them at once. Random writes of 4 KiB at depth 32
//! gain a quarter of that (`benches/attach.sh` with and without).

use std::path::Path;

/// Has requests end on the processor that asked. What cannot be had is speed, and no reason for a
/// refusal.
pub(super) fn where_asked(device: &Path) {
    set(device, "2");
}

/// Back to the kernel's default: near the processor that asked.
pub(super) fn as_ever(device: &Path) {
    set(device, "1");
}

fn set(device: &Path, affinity: &str) {
    let name = device.file_name().unwrap_or_default().to_string_lossy();
    let file = format!("/sys/block/{name}/queue/rq_affinity");
    if let Err(error) = std::fs::write(&file, affinity) {
        tracing::debug!("cannot write {file}: {error}");
    }
}
