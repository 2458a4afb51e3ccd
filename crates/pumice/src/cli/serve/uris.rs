//! The URIs by which clients reach the drives.

use anyhow::Result;

use super::exports::Served;
use crate::cli::print_json;
use pumice_drive::runtime::Runtime;
use pumice_nbd::Listener;

/// Returns the URIs of each drive: one for each listener.
pub(super) fn of(listeners: &[Listener], served: &[Served], needs_tls: bool) -> Vec<Vec<String>> {
    // A single drive is the default export.
    let name = |drive: &Served| match served.len() {
        1 => String::new(),
        _ => drive.export.name.clone(),
    };
    let of = |drive: &Served| {
        let name = name(drive);
        listeners.iter().map(|listener| listener.uri(&name, needs_tls)).collect()
    };
    served.iter().map(of).collect()
}

/// Logs each drive with its URIs.
pub(super) fn log(runtime: &Runtime, served: &[Served], uris: &[Vec<String>]) {
    for (drive, uris) in served.iter().zip(uris) {
        let is_direct = drive.drive.medium().is_direct();
        tracing::info!(
            drive = %drive.path.display(),
            caching = if is_direct { "direct" } else { "buffered" },
            io = runtime.backend_name(),
            uris = %uris.join(" "),
            "serving a drive"
        );
    }
}

/// Prints the URIs as JSON.
///
/// # Errors
/// stdout cannot be written.
pub(super) fn print(served: &[Served], uris: &[Vec<String>]) -> Result<()> {
    let drive = |(drive, uris): (&Served, _)| {
        let (path, name) = (&drive.path, &drive.export.name);
        serde_json::json!({ "path": path, "name": name, "uris": uris })
    };
    let drives: Vec<_> = served.iter().zip(uris).map(drive).collect();
    print_json(&serde_json::json!({ "drives": drives }))
}
