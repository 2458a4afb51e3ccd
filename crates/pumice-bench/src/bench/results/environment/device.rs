//! The block devices below a target, down to the hardware, with their properties and counters.

use std::path::Path;
use std::process::{Command, Stdio};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Facts;
use super::files::{Files, text};
use super::layer::{Layer, chosen, tops};
use pumice_drive::base::units::format_size;

/// Bytes of one sector in `/sys/block/*/stat` and `size`, independent of the device's sector size.
///
/// Source: Linux, Documentation/block/stat.rst.
const STAT_SECTOR_BYTES: u64 = 512;

/// Maximum number of devices in a stack, and maximum depth of the stack.
const LAYERS_MAX: usize = 64;
const DEPTH_MAX: usize = 16;

/// The block devices below a file or device.
#[derive(Clone, Debug)]
pub struct Device {
    /// From the devices of the target down to the hardware. No level has duplicates.
    levels: Vec<Vec<Layer>>,
    /// Devices without a device below them.
    bottoms: Vec<Layer>,
    /// Whether smartctl reports the bytes written.
    has_smart: bool,
}

/// Bytes counted by a block device during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceBytes {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Bytes discarded.
    pub discarded: u64,
    /// Bytes written over the device's lifetime, as reported by the device (SMART); absent if not
    /// available.
    #[serde(default)]
    pub smart_written: Option<u64>,
}

impl Device {
    /// Returns the devices below a file or device; `None` if there are none, as in memory or on a
    /// network file system.
    pub fn of(path: &Path) -> Option<Self> {
        Self::found(&Files::host(), path)
    }

    pub(super) fn found(files: &Files, path: &Path) -> Option<Self> {
        let mut device = Self { levels: Vec::new(), bottoms: Vec::new(), has_smart: false };
        let mut level = tops(files, path);
        let mut count = level.len();
        while !level.is_empty() && count <= LAYERS_MAX && device.levels.len() < DEPTH_MAX {
            let mut next: Vec<Layer> = Vec::new();
            for layer in &level {
                let below = layer.below(files);
                if below.is_empty() && !device.bottoms.contains(layer) {
                    device.bottoms.push(layer.clone());
                }
                let is_new = |layer: &Layer| {
                    !next.contains(layer) && !device.levels.iter().flatten().any(|one| one == layer)
                };
                let below: Vec<Layer> = below.into_iter().filter(is_new).collect();
                next.extend(below);
            }
            count += next.len();
            device.levels.push(level);
            level = next;
        }
        device.levels.first()?;
        device.has_smart = device.smart_written().is_some();
        Some(device)
    }

    /// Returns the name of the target's device, such as `nvme0n1`, or the joined names of several
    /// devices.
    pub fn name(&self) -> String {
        names(&self.levels[0], Layer::name)
    }

    /// Returns the devices without a device below them, which are hardware or equivalent.
    pub(super) fn bottoms(&self) -> &[Layer] {
        &self.bottoms
    }

    /// Returns the counters of the target's devices since their start.
    pub fn bytes(&self) -> Option<DeviceBytes> {
        let mut sum = DeviceBytes { read: 0, written: 0, discarded: 0, smart_written: None };
        for layer in &self.levels[0] {
            let one = counted(&layer.text("stat")?)?;
            sum.read = sum.read.saturating_add(one.read);
            sum.written = sum.written.saturating_add(one.written);
            sum.discarded = sum.discarded.saturating_add(one.discarded);
        }
        sum.smart_written = if self.has_smart { self.smart_written() } else { None };
        Some(sum)
    }

    /// Returns the bytes written over the lifetime of the hardware, as reported by the hardware.
    fn smart_written(&self) -> Option<u64> {
        let of = |layer: &Layer| {
            let mut command = Command::new("smartctl");
            command.args(["--json", "--attributes"]).arg(format!("/dev/{}", layer.name()));
            let answer = command.stdin(Stdio::null()).output().ok()?;
            smart_written(&serde_json::from_slice(&answer.stdout).ok()?)
        };
        let written: Option<Vec<u64>> = self.bottoms.iter().map(of).collect();
        written?.into_iter().try_fold(0u64, u64::checked_add)
    }

    /// Adds the stack of devices, and the properties of each.
    pub(super) fn describe(&self, facts: &mut Facts) {
        facts.add("device", Some(self.name()));
        let stack: Vec<String> =
            self.levels.iter().map(|level| names(level, Layer::title)).collect();
        if stack.len() > 1 || stack[0] != self.name() {
            facts.add("device stack", Some(stack.join(" on ")));
        }
        let mut all = |name: &str, value: &dyn Fn(&Layer) -> Option<String>| {
            facts.add(name, self.each(value));
        };
        all("device model", &model);
        all("device firmware", &|layer| {
            layer.text("device/firmware_rev").or_else(|| layer.text("device/rev"))
        });
        all("device link", &link);
        all("device size", &|layer| {
            let sectors = layer.text("size")?.parse::<u64>().ok()?;
            Some(format_size(sectors.checked_mul(STAT_SECTOR_BYTES)?))
        });
        all("device sectors", &|layer| {
            let logical = layer.text("queue/logical_block_size")?;
            let physical = layer.text("queue/physical_block_size").filter(|it| *it != logical);
            Some(physical.map_or(logical.clone(), |physical| format!("{logical} of {physical}")))
        });
        all("device scheduler", &|layer| Some(chosen(&layer.text("queue/scheduler")?)));
        all("device queue", &|layer| layer.text("queue/nr_requests"));
        all("device rotates", &|layer| {
            Some(if layer.text("queue/rotational")? == "1" { "yes" } else { "no" }.into())
        });
        all("device write cache", &|layer| layer.text("queue/write_cache"));
    }

    /// Returns a property of all devices: one value if they agree, otherwise each value with its
    /// device's name.
    fn each(&self, value: &dyn Fn(&Layer) -> Option<String>) -> Option<String> {
        let layers: Vec<&Layer> = self.levels.iter().flatten().collect();
        let values: Vec<(String, String)> =
            layers.iter().filter_map(|layer| Some((layer.name(), value(layer)?))).collect();
        let (_, first) = values.first()?;
        if values.iter().all(|(_, value)| value == first) {
            return Some(first.clone());
        }
        let named = values.iter().map(|(name, value)| format!("{name}: {value}"));
        Some(named.collect::<Vec<_>>().join("; "))
    }
}

fn names(layers: &[Layer], name: fn(&Layer) -> String) -> String {
    layers.iter().map(name).collect::<Vec<_>>().join("+")
}

/// Returns the model, preceded by the vendor if that is a name and not a number.
fn model(layer: &Layer) -> Option<String> {
    let model = layer.text("device/model")?;
    let maker = layer.text("device/vendor").filter(|maker| !maker.starts_with("0x"));
    // The SCSI layer reports this vendor for every ATA disk.
    let maker = maker.filter(|maker| maker != "ATA");
    Some(maker.map_or(model.clone(), |maker| format!("{maker} {model}")))
}

/// Returns the speed and width of the bus: the nearest PCIe device or the SATA link.
fn link(layer: &Layer) -> Option<String> {
    for folder in layer.folder().ancestors() {
        if let Some(speed) = text(&folder.join("current_link_speed")) {
            let width = text(&folder.join("current_link_width"))?;
            return Some(format!("{speed} x{width}"));
        }
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_prefix("ata").filter(|number| number.parse::<u32>().is_ok());
        if let Some(number) = number {
            let link = format!("link{number}/ata_link/link{number}/sata_spd");
            return text(&folder.join(link));
        }
    }
    None
}

/// Returns the counters of `/sys/block/*/stat`.
fn counted(stat: &str) -> Option<DeviceBytes> {
    let fields: Vec<u64> =
        stat.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let bytes = |index: usize| fields.get(index)?.checked_mul(STAT_SECTOR_BYTES);
    Some(DeviceBytes {
        read: bytes(2)?,
        written: bytes(6)?,
        discarded: bytes(13).unwrap_or(0),
        smart_written: None,
    })
}

/// Returns the number of bytes written to a device, from smartctl's JSON output.
///
/// Source: NVMe base specification, SMART/health information log, data units written: thousands of
/// 512 bytes. ATA has no standard; this function uses only an attribute with a name that mentions
/// LBAs.
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
    //! Goal: counters are parsed in the formats of the kernel and of smartctl.
    use super::*;

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
        let stat = "7 0 16 3 9 1 32 4 0 5 6 2 0 8 1 0 0";
        assert_eq!(counted(stat), Some(bytes(8192, 16384, 4096, None)));
        assert_eq!(counted("7 0 18446744073709551615 3 9 1 32"), None);
    }

    #[test]
    fn devices_report_their_own_writes() {
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
