//! The environment of a measurement: facts about the machine and the device.
//!
//! The facts come from the kernel's files. Facts that cannot be read are omitted, never guessed.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::DeviceBytes;
use crate::workload::memory_bytes;
use pumice_drive::base::units::format_size;
use pumice_sim::profile::Profile;

/// Bytes of one sector in `/sys/block/*/stat`, independent of the device's sector size.
///
/// Source: Linux, Documentation/block/stat.rst.
const STAT_SECTOR_BYTES: u64 = 512;

/// Returns facts about this machine and about the device below `path`, if given.
pub fn environment(path: Option<&Path>) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            facts.push((name.to_owned(), value));
        }
    };
    let system = rustix::system::uname();
    let word = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    add("kernel", Some(format!("{} {}", word(system.sysname()), word(system.release()))));
    add("processor", processor());
    add("processors", std::thread::available_parallelism().ok().map(|count| count.to_string()));
    add("memory", memory_bytes().map(format_size));
    add("governor", text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
    add("program", Some(format!("pumice {}", env!("CARGO_PKG_VERSION"))));
    let Some(path) = path else { return facts };
    if let Some(mount) = Mount::of(path) {
        add("file system", Some(mount.kind));
        add("mount options", Some(mount.options));
    }
    if let Some(device) = Device::of(path) {
        add("device", Some(device.name()));
        add("device model", device.text("device/model"));
        add("device firmware", device.text("device/firmware_rev").or(device.text("device/rev")));
        let sectors = device.text("size").and_then(|sectors| sectors.parse::<u64>().ok());
        add("device size", sectors.map(|count| format_size(count * STAT_SECTOR_BYTES)));
        add("device sectors", device.text("queue/logical_block_size"));
        add("device scheduler", device.text("queue/scheduler"));
        add("device rotates", device.text("queue/rotational").map(|flag| yes_or_no(&flag)));
        add("device write cache", device.text("queue/write_cache"));
        add("loop file", device.text("loop/backing_file"));
    }
    facts
}

/// Returns facts about a simulated drive: its profile and its cost model.
pub fn simulated(profile: &Profile) -> Vec<(String, String)> {
    let costs = "flash, link and commands as the profile says; compressing and looking the map up \
                 take no time of their own";
    let facts = [
        ("program", concat!("pumice ", env!("CARGO_PKG_VERSION"))),
        ("simulated drive", &profile.name),
        ("profile", &profile.id),
        ("time", "virtual"),
        ("cost model", costs),
    ];
    facts.map(|(name, fact)| (name.to_owned(), fact.to_owned())).into()
}

fn yes_or_no(flag: &str) -> String {
    if flag == "1" { "yes" } else { "no" }.into()
}

fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn text(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// Returns the nearest existing ancestor of a path: a file that does not exist yet is in its
/// folder.
fn existing(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find_map(|path| fs::canonicalize(path).ok())
}

struct Mount {
    kind: String,
    options: String,
}

impl Mount {
    /// Returns the file system of a path.
    fn of(path: &Path) -> Option<Self> {
        let path = existing(path)?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        // Of several mounts at the longest mount point the last one counts: it covers the earlier
        // ones.
        let mut best: Option<(usize, Self)> = None;
        for line in mounts.lines() {
            let (front, back) = line.split_once(" - ")?;
            let place = unescaped(front.split(' ').nth(4)?);
            let Some(options) = front.split(' ').nth(5) else { continue };
            let mut back = back.split(' ');
            let (kind, source) = (back.next()?, back.next()?);
            let own = back.next().unwrap_or_default();
            let longest = best.as_ref().map_or(0, |(bytes, _)| *bytes);
            if path.starts_with(&place) && place.len() >= longest {
                let kind = format!("{kind} on {}", unescaped(source));
                best = Some((place.len(), Self { kind, options: format!("{options},{own}") }));
            }
        }
        best.map(|(_, mount)| mount)
    }
}

/// Returns a path from mountinfo with its octal escapes resolved.
fn unescaped(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// A block device.
#[derive(Clone, Debug)]
pub struct Device {
    /// The device's folder in sysfs.
    folder: PathBuf,
    /// Whether smartctl reports the bytes written.
    has_smart: bool,
}

impl Device {
    /// Returns the whole device below a file or device; `None` if there is none, as in memory or on
    /// a network.
    pub fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(existing(path)?).ok()?;
        let is_device = metadata.st_mode() & 0o170_000 == 0o060_000;
        let number = if is_device { metadata.st_rdev() } else { metadata.st_dev() };
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let folder = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        // A partition's folder is inside its device's folder, which has the queue.
        let folder =
            if folder.join("partition").exists() { folder.parent()?.to_owned() } else { folder };
        let mut device = Self { folder, has_smart: false };
        device.has_smart = device.smart_written().is_some();
        Some(device)
    }

    /// Returns the name, such as `nvme0n1`.
    pub fn name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn text(&self, file: &str) -> Option<String> {
        text(self.folder.join(file))
    }

    /// Returns the counters since the device came up.
    pub fn bytes(&self) -> Option<DeviceBytes> {
        let stat = self.text("stat")?;
        let fields: Vec<u64> =
            stat.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let bytes = |index: usize| fields.get(index).map(|count| count * STAT_SECTOR_BYTES);
        Some(DeviceBytes {
            read: bytes(2)?,
            written: bytes(6)?,
            discarded: bytes(13).unwrap_or(0),
            smart_written: if self.has_smart { self.smart_written() } else { None },
        })
    }

    /// Returns the bytes written over the device's lifetime, as the device reports them.
    fn smart_written(&self) -> Option<u64> {
        let mut command = Command::new("smartctl");
        command.args(["--json", "--attributes"]).arg(format!("/dev/{}", self.name()));
        let answer = command.stdin(Stdio::null()).output().ok()?;
        smart_written(&serde_json::from_slice(&answer.stdout).ok()?)
    }
}

/// Returns the bytes written to a device, from smartctl's JSON.
///
/// Source: NVMe base specification, SMART/health information log, data units written: thousands of
/// 512 bytes. ATA has no standard; only an attribute named after LBAs is used.
fn smart_written(answer: &serde_json::Value) -> Option<u64> {
    let units = answer.pointer("/nvme_smart_health_information_log/data_units_written");
    if let Some(units) = units.and_then(serde_json::Value::as_u64) {
        return units.checked_mul(512_000);
    }
    let attributes = answer.pointer("/ata_smart_attributes/table")?.as_array()?;
    let named = |attribute: &&serde_json::Value| attribute["name"] == "Total_LBAs_Written";
    let sectors = attributes.iter().find(named)?.pointer("/raw/value")?.as_u64()?;
    sectors.checked_mul(answer["logical_block_size"].as_u64().unwrap_or(STAT_SECTOR_BYTES))
}

impl DeviceBytes {
    /// Returns the difference to `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            read: self.read.saturating_sub(earlier.read),
            written: self.written.saturating_sub(earlier.written),
            discarded: self.discarded.saturating_sub(earlier.discarded),
            smart_written: self
                .smart_written
                .zip(earlier.smart_written)
                .map(|(now, then)| now.saturating_sub(then)),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: facts come from where they are said to. Method: the machine that the test runs on.
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let folder = tempfile::tempdir().expect("a folder");
        let facts = environment(Some(&folder.path().join("not/yet/there")));
        let names: Vec<&str> = facts.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["kernel", "processors", "memory", "file system", "mount options"] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        assert!(memory_bytes().is_some_and(|bytes| bytes > 64 << 20));
    }

    #[test]
    fn blanks_in_places_are_read() {
        assert_eq!(unescaped("/mnt/a\\040b\\134c"), "/mnt/a b\\c");
    }

    #[test]
    fn counters_are_differences() {
        let bytes = |read, written, discarded, smart_written| DeviceBytes {
            read,
            written,
            discarded,
            smart_written,
        };
        let (earlier, later) = (bytes(5, 9, 1, Some(3)), bytes(7, 9, 4, Some(10)));
        assert_eq!(later.since(earlier), bytes(2, 0, 3, Some(7)));
        assert_eq!(later.since(bytes(5, 9, 1, None)), bytes(2, 0, 3, None));
    }

    #[test]
    fn devices_say_themselves_what_was_written() {
        let nvme = r#"{"nvme_smart_health_information_log": {"data_units_written": 7}}"#;
        let ata = r#"{"logical_block_size": 4096, "ata_smart_attributes": {"table": [
            {"id": 9, "name": "Power_On_Hours", "raw": {"value": 5}},
            {"id": 241, "name": "Total_LBAs_Written", "raw": {"value": 3}}]}}"#;
        // Gibibytes, not LBAs.
        let other = ata.replace("Total_LBAs_Written", "Host_Writes_GiB");
        let none = r#"{"smartctl": {"exit_status": 1}}"#;
        let huge = nvme.replace('7', "18446744073709551615");
        let written = |text: &str| smart_written(&serde_json::from_str(text).expect("JSON"));
        assert_eq!([nvme, ata].map(written), [Some(3_584_000), Some(12288)]);
        assert_eq!([other.as_str(), none, &huge].map(written), [None; 3]);
    }
}
