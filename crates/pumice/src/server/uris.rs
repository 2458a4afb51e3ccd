//! The URIs under which clients reach the drives.

use super::drive_thread::Described;
use pumice_nbd::Endpoint;

/// Returns the URIs of each drive: one for each endpoint.
pub(super) fn of(
    endpoints: &[Endpoint],
    served: &[Described],
    needs_tls: bool,
) -> Vec<Vec<String>> {
    // A single drive is the default export.
    let name = |drive: &Described| match served.len() {
        1 => String::new(),
        _ => drive.name.clone(),
    };
    let of = |drive: &Described| {
        let name = name(drive);
        endpoints.iter().map(|endpoint| endpoint.uri(&name, needs_tls)).collect()
    };
    served.iter().map(of).collect()
}

/// Logs each drive with its URIs.
pub(super) fn log(served: &[Described], uris: &[Vec<String>]) {
    for (drive, uris) in served.iter().zip(uris) {
        tracing::info!(
            drive = %drive.path.display(),
            caching = if drive.is_direct { "direct" } else { "buffered" },
            io = drive.io,
            uris = %uris.join(" "),
            "serving a drive"
        );
    }
}
