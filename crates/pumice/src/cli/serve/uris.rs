//! The URIs under which clients reach the drives.

use std::path::Path;

use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;

use super::threads::Described;
use crate::cli::print_schema;
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

/// The result as JSON.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Shown<'a> {
    /// The drives, in the order of the command line.
    drives: Vec<ServedDrive<'a>>,
}

/// A served drive.
#[derive(Serialize, JsonSchema)]
struct ServedDrive<'a> {
    /// Its file or device.
    path: &'a Path,
    /// Name of its export.
    name: &'a str,
    /// Addresses for clients, one for each endpoint.
    uris: &'a [String],
}

/// Prints the URIs as JSON.
///
/// # Errors
/// stdout cannot be written.
pub(super) fn print(served: &[Described], uris: &[Vec<String>]) -> Result<()> {
    let drives = served.iter().zip(uris).map(|(drive, uris)| ServedDrive {
        path: &drive.path,
        name: &drive.name,
        uris,
    });
    print_schema("serve-1", &Shown { drives: drives.collect() })
}
