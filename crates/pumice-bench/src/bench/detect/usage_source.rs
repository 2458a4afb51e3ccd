//! Sources of used space: numbers that the system maintains in any case, read before and after a
//! run.
//!
//! Sources that cannot be read are omitted; a remark states the reason.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::region::Region;
use super::{Class, Zeroes};
use crate::bench::results::environment::Device;
use crate::bench::target::Location;
use pumice_drive::base::units::BLOCK_BYTES;

/// Bytes per block of `st_blocks`, independent of the file system's block size.
const STAT_BLOCK_BYTES: u64 = 512;

/// Fields of zram's `mm_stat`.
///
/// Source: Linux, Documentation/admin-guide/blockdev/zram.rst.
const ZRAM_STORED: usize = 1;
const ZRAM_SAME_PAGES: usize = 5;
const ZRAM_PAGE_BYTES: u64 = 4096;

const EXPORT_REMARK: &str = "An export does not report how much space its data takes: test the \
                             drive, file or device that the server uses instead.";

/// A number that grows with the stored data.
pub(super) struct UsageSource {
    /// Name for reports.
    pub(super) name: String,
    /// Kind of evidence.
    pub(super) class: Class,
    source: Source,
}

enum Source {
    File(PathBuf),
    FileSystem(PathBuf),
    Zram(PathBuf),
    Drive,
    Counter(Device),
}

impl UsageSource {
    /// Returns the current number of bytes.
    pub(super) fn read(&self, region: &Region<'_>) -> Option<u64> {
        match &self.source {
            Source::File(path) => Some(fs::metadata(path).ok()?.blocks() * STAT_BLOCK_BYTES),
            Source::FileSystem(path) => {
                let room = rustix::fs::statvfs(path).ok()?;
                room.f_blocks.checked_sub(room.f_bfree)?.checked_mul(room.f_frsize)
            }
            Source::Zram(folder) => zram(folder, ZRAM_STORED),
            Source::Drive => Some(region.drive_info()?.frame_bytes),
            Source::Counter(device) => Some(device.bytes()?.written),
        }
    }
}

/// Returns the usage sources of a location, and remarks about missing ones.
pub(super) fn usage_sources(location: &Location) -> (Vec<UsageSource>, Vec<String>) {
    let path = location.path().unwrap_or_default();
    let (mut found, mut remarks) = (Vec::new(), Vec::new());
    let usage = |name: String, source: Source| UsageSource { name, class: Class::Usage, source };
    let mut counted = None;
    match location {
        Location::File(_) | Location::Folder(_) => {
            found.push(usage("blocks of the file (st_blocks)".into(), Source::File(path.clone())));
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).to_owned();
            found.push(usage(
                "file system's used blocks (statvfs)".into(),
                Source::FileSystem(folder),
            ));
            counted = Device::of(&path);
        }
        Location::Drive(_) => {
            found.push(usage("drive's frame_bytes".into(), Source::Drive));
            counted = Device::of(&path);
        }
        Location::Device(_) => match Device::of(&path).map(|device| device.name()) {
            Some(name) if name.starts_with("zram") => {
                let folder = Path::new("/sys/block").join(&name);
                found.push(usage("zram's compr_data_size (mm_stat)".into(), Source::Zram(folder)));
                remarks.push(format!(
                    "{name} counts the bytes of the host before it compresses them: its counter of \
                     bytes written is not usable, and there is no device below."
                ));
            }
            Some(name) if name.starts_with("loop") => {
                remarks.push(format!(
                    "{name} counts the bytes of the host: its own counter is not usable; its file \
                     and the device below the file are measured."
                ));
                let backing = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
                let backing = PathBuf::from(backing.unwrap_or_default().trim_end());
                if backing.is_absolute() {
                    found.push(usage(
                        "blocks of the loop device's file (st_blocks)".into(),
                        Source::File(backing.clone()),
                    ));
                    counted = Device::of(&backing);
                }
            }
            Some(name) => remarks.push(format!(
                "{name} counts the bytes that the host sends, not the bytes that it stores: no \
                 readable number shows how much space the data takes inside it."
            )),
            None => {}
        },
        Location::Nbd(_) => remarks.push(EXPORT_REMARK.into()),
        Location::Sim(_) | Location::Existing(_) => {}
    }
    match counted {
        Some(device) if device.name().starts_with("zram") => remarks.push(format!(
            "Below is {}, which compresses: specify it as the target for details.",
            device.name()
        )),
        Some(device) => found.push(UsageSource {
            name: format!("bytes that {} counted as written", device.name()),
            class: Class::Counter,
            source: Source::Counter(device),
        }),
        None if matches!(location, Location::Device(_) | Location::Nbd(_)) => {}
        None => remarks.push("No device below counts bytes written.".into()),
    }
    (found, remarks)
}

fn zram(folder: &Path, field: usize) -> Option<u64> {
    let text = fs::read_to_string(folder.join("mm_stat")).ok()?;
    text.split_whitespace().nth(field)?.parse().ok()
}

/// Returns how the last `bytes` zeroes were stored, if a block list is available.
pub(super) fn zeroes(location: &Location, region: &Region<'_>, bytes: u64) -> Option<Zeroes> {
    let path = location.path().unwrap_or_default();
    let recorded = match location {
        Location::Nbd(_) | Location::Sim(_) | Location::Existing(_) => return None,
        Location::Drive(_) => {
            let blocks = region.drive_info()?.operations.fill_blocks;
            blocks.saturating_mul(BLOCK_BYTES as u64)
        }
        Location::Device(_) => {
            let name = Device::of(&path)?.name();
            let same = zram(&Path::new("/sys/block").join(name), ZRAM_SAME_PAGES)?;
            same.checked_mul(ZRAM_PAGE_BYTES)?
        }
        Location::File(_) | Location::Folder(_) => match fs::metadata(&path).ok()?.blocks() {
            0 => 0,
            // Numbers of blocks do not show how zeroes are stored.
            _ => return None,
        },
    };
    Some(if recorded >= bytes / 2 { Zeroes::Fill } else { Zeroes::Unmapped })
}
