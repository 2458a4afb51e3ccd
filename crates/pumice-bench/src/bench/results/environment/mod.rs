//! The environment of a measurement: facts about the machine and the device.
//!
//! ```text
//! machine   distribution, kernel, processor, memory
//! mount     the file system of a path, its options and its fill
//! device    the block devices below a path, down to the hardware; their counters
//! layer     one block device          files     the places of the kernel's files
//! load      the load of the machine during a run in addition to the bench
//! ```
//!
//! The facts are read from the kernel's files and from the drive itself. Facts that cannot be read
//! are omitted, never guessed. The names of facts are part of the result format: docs/results.md.

mod device;
mod files;
mod layer;
mod load;
mod machine;
mod mount;
#[cfg(test)]
mod tests;

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

pub use device::{Device, DeviceBytes};
pub use load::{Gauges, MachineLoad, Moment};

use files::Files;
use mount::Mount;
use pumice_drive::base::units::format_size;
use pumice_drive::controller::Info;
use pumice_sim::profile::Profile;

/// Names with values, in reading order.
#[derive(Default)]
struct Facts(Vec<(String, String)>);

impl Facts {
    /// Adds a fact, if it is known.
    fn add(&mut self, name: &str, value: Option<String>) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.0.push((name.to_owned(), value));
        }
    }
}

/// Returns facts about this machine and about the device below `path`, if given.
pub fn environment(path: Option<&Path>) -> Vec<(String, String)> {
    facts(&Files::host(), path)
}

fn facts(files: &Files, path: Option<&Path>) -> Vec<(String, String)> {
    let mut facts = Facts::default();
    machine::describe(files, &mut facts);
    if let Some(path) = path {
        // The file system that contains a device node is unrelated to the device.
        if let Some(mount) = Mount::of(files, path).filter(|_| !is_device(path)) {
            mount.describe(path, &mut facts);
        }
        if let Some(device) = Device::found(files, path) {
            device.describe(&mut facts);
        }
    }
    facts.0
}

/// Returns facts about a Pumice drive: its codec, geometry and fill.
pub fn drive(info: &Info) -> Vec<(String, String)> {
    let form = if info.has_chunks { " chunked" } else { "" };
    let segments = format!("{} of {}", info.segment_count, format_size(info.segment_bytes.into()));
    let facts = [
        ("drive codec", info.codec.clone()),
        ("drive frames", format!("up to {}{form} blocks", info.frame_blocks)),
        ("drive size", format_size(info.size_bytes)),
        ("drive capacity", format_size(info.capacity_bytes)),
        ("drive segments", segments),
        ("drive used", format!("{:.1} % of the space for data", info.used_percent)),
        ("drive mapped", format_size(info.mapped_bytes)),
        ("drive format", info.format_version.to_string()),
    ];
    facts.map(|(name, fact)| (name.to_owned(), fact)).into()
}

/// Returns facts about a simulated drive: its profile and its cost model.
pub fn simulated(profile: &Profile) -> Vec<(String, String)> {
    let costs = "flash, link and commands according to the profile; compression and map lookups \
                 take no time";
    let facts = [
        ("program", concat!("pumice ", env!("CARGO_PKG_VERSION"))),
        ("simulated drive", &profile.name),
        ("profile", &profile.id),
        ("time", "virtual"),
        ("cost model", costs),
    ];
    facts.map(|(name, fact)| (name.to_owned(), fact.to_owned())).into()
}

/// Returns whether a path is a block device.
fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Returns the nearest existing ancestor of a path. A file that does not exist yet will be created
/// in that folder.
fn existing(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find_map(|path| fs::canonicalize(path).ok())
}
