//! One block device of the kernel, and its component devices.
//!
//! A partition is represented by its whole disk, which has the queue and the counters.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::existing;
use super::files::{Files, entries, text};
use super::mount::Mount;

/// Maximum depth of stacked overlays.
const OVERLAYS_MAX: u32 = 8;

/// A block device, represented by its folder in sysfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    folder: PathBuf,
}

/// Returns the devices of a file or of a device path. A file system on several devices has several;
/// one in memory or on a network has none.
pub(super) fn tops(files: &Files, path: &Path) -> Vec<Layer> {
    let mut path = path.to_owned();
    for _ in 0..OVERLAYS_MAX {
        let Some(metadata) = existing(&path).and_then(|path| fs::metadata(path).ok()) else {
            break;
        };
        let is_device = metadata.st_mode() & 0o170_000 == 0o060_000;
        let number = if is_device { metadata.st_rdev() } else { metadata.st_dev() };
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        if let Some(layer) = Layer::numbered(files, major, minor) {
            return vec![layer];
        }
        // Some file systems, such as btrfs, use their own device numbers.
        let Some(mount) = Mount::of(files, &path).filter(|_| !is_device) else { break };
        match mount.upper() {
            Some(upper) => path = upper,
            None => return mounted(files, &mount.source),
        }
    }
    Vec::new()
}

/// Returns the devices of a mount's source: all devices of a btrfs, or the devices named by the
/// source.
fn mounted(files: &Files, source: &str) -> Vec<Layer> {
    let named = |place: &str| {
        let device = fs::canonicalize(files.path(place)).ok()?;
        Layer::named(files, &device.file_name()?.to_string_lossy())
    };
    let mut layers: Vec<Layer> = source.split(':').filter_map(named).collect();
    for system in files.entries("/sys/fs/btrfs") {
        let members = entries(&system.join("devices"));
        let members: Vec<Layer> = members.iter().filter_map(|path| Layer::whole(path)).collect();
        if layers.iter().any(|layer| members.contains(layer)) {
            layers = members;
            break;
        }
    }
    layers.dedup();
    layers
}

impl Layer {
    /// Returns the device with this number.
    fn numbered(files: &Files, major: u32, minor: u32) -> Option<Self> {
        Self::whole(&files.path(format!("/sys/dev/block/{major}:{minor}")))
    }

    /// Returns the device of this name, such as `sda1`.
    pub(super) fn named(files: &Files, name: &str) -> Option<Self> {
        Self::whole(&files.path(format!("/sys/class/block/{name}")))
    }

    /// Returns the device of a folder. The folder of a partition returns the whole disk.
    fn whole(path: &Path) -> Option<Self> {
        let folder = fs::canonicalize(path).ok()?;
        let is_part = folder.join("partition").exists();
        Some(Self { folder: if is_part { folder.parent()?.to_owned() } else { folder } })
    }

    /// Returns the folder in sysfs.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the name, such as `nvme0n1`.
    pub(super) fn name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns the text of a file in the device's folder.
    pub(super) fn text(&self, file: &str) -> Option<String> {
        text(&self.folder.join(file))
    }

    /// Returns the devices directly below; none for hardware.
    pub(super) fn below(&self, files: &Files) -> Vec<Layer> {
        let members = entries(&self.folder.join("slaves"));
        let mut below: Vec<Layer> = members.iter().filter_map(|path| Self::whole(path)).collect();
        if let Some(file) = self.text("loop/backing_file") {
            below.extend(tops(files, Path::new(&file)));
        }
        below.dedup();
        below
    }

    /// Returns the name with the backing of the device: `loop0 (file /srv/disk.img)`,
    /// `dm-0 (vault, CRYPT)`, `md0 (raid1)`, `nbd0 (process 12)`, `zram0 (lz4)`.
    pub(super) fn title(&self) -> String {
        let name = self.name();
        let mapped = || {
            let name = self.text("dm/name")?;
            let kind =
                self.text("dm/uuid").and_then(|uuid| Some(uuid.split_once('-')?.0.to_owned()));
            Some(kind.map_or(name.clone(), |kind| format!("{name}, {kind}")))
        };
        let what = (self.text("loop/backing_file").map(|file| format!("file {file}")))
            .or_else(mapped)
            .or_else(|| self.text("md/level"))
            .or_else(|| self.text("pid").map(|process| format!("process {process}")))
            .or_else(|| self.text("comp_algorithm").map(|all| chosen(&all)));
        what.map_or(name.clone(), |what| format!("{name} ({what})"))
    }
}

/// Returns the word in brackets, which marks the selected choice in the kernel's files; all words
/// if there are no brackets.
pub(super) fn chosen(text: &str) -> String {
    let inside = |text: &str| Some(text.split_once('[')?.1.split_once(']')?.0.to_owned());
    inside(text).unwrap_or_else(|| text.to_owned())
}
