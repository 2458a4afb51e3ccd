//! Goal: facts are read from their documented sources, for any device of the target.
//!
//! Method: this machine, and folders that contain the files of other machines: an NVMe drive below
//! btrfs, a loop device, an encrypted volume on two SATA disks, sensors.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::layer::Layer;
use super::*;

/// The sysfs path of the tests' disks.
const NVME: &str = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme0/nvme0n1";
const SDA: &str = "sys/devices/pci0000:00/0000:00:17.0/ata3/host2/target2:0:0/2:0:0:0/block/sda";
const SDB: &str = "sys/devices/pci0000:00/0000:00:17.0/ata4/host3/target3:0:0/3:0:0:0/block/sdb";
const MAPPED: &str = "sys/devices/virtual/block/dm-0";
const LOOP: &str = "sys/devices/virtual/block/loop3";

/// A folder with the files of a machine.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn files(&self) -> Files {
        Files::below(self.root())
    }

    fn write(&self, path: impl AsRef<Path>, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        fs::write(path, text).expect("written");
    }

    /// Creates a symbolic link from one path in the folder to another.
    fn link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) {
        let (from, to) = (self.root().join(from), self.root().join(to));
        fs::create_dir_all(from.parent().expect("a folder")).expect("created");
        symlink(to, from).expect("linked");
    }

    /// Creates a disk with one partition; each has a node in /dev.
    fn disk(&self, place: &str, model: &str, sectors: u64) {
        let name = place.rsplit('/').next().expect("a name");
        let part = if name.starts_with("nvme") { format!("{name}p1") } else { format!("{name}1") };
        self.write(format!("{place}/size"), &sectors.to_string());
        self.write(format!("{place}/stat"), "1 0 8 1 1 0 16 1 0 1 1");
        self.write(format!("{place}/device/model"), model);
        self.write(format!("{place}/queue/scheduler"), "mq-deadline [none] kyber\n");
        self.write(format!("{place}/queue/rotational"), "0\n");
        self.write(format!("{place}/{part}/partition"), "1\n");
        for (name, place) in [(name, place.to_owned()), (&part, format!("{place}/{part}"))] {
            self.link(format!("sys/class/block/{name}"), place);
            self.write(format!("dev/{name}"), "");
        }
    }

    /// Makes `place` the device of the tests' files.
    fn is_on(&self, place: &str) {
        let number = fs::metadata(self.root()).expect("a folder").st_dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        self.link(format!("sys/dev/block/{major}:{minor}"), place);
    }

    fn mounts(&self, kind: &str, source: &str) {
        let line = format!("22 1 0:21 / / rw,noatime - {kind} {source} rw,compress=zstd:1\n");
        self.write("proc/self/mountinfo", &line);
    }

    /// Returns the facts about a test file.
    fn facts(&self) -> Vec<(String, String)> {
        facts(&self.files(), Some(&self.root().join("data")))
    }
}

fn fact<'a>(facts: &'a [(String, String)], name: &str) -> Option<&'a str> {
    facts.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
}

#[test]
fn this_machine_is_described() {
    let folder = tempfile::tempdir().expect("a folder");
    let facts = environment(Some(&folder.path().join("not/yet/there")));
    for name in
        ["host", "kernel", "processors", "memory", "load before", "file system", "mount options"]
    {
        assert!(fact(&facts, name).is_some(), "{name} in {facts:?}");
    }
}

#[test]
fn a_machine_is_described_by_its_files() {
    let machine = Machine::new();
    machine.write("etc/os-release", "NAME=Debian\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n");
    machine.write("sys/class/dmi/id/sys_vendor", "Dell Inc.\n");
    machine.write("sys/class/dmi/id/product_name", "PowerEdge R640\n");
    machine.write("proc/cpuinfo", "model name\t: Xeon\nflags\t\t: fpu hypervisor sse\n");
    machine.write("proc/loadavg", "0.52 0.48 0.40 1/234 5678\n");
    machine.write("sys/devices/system/cpu/smt/active", "1\n");
    machine.write("sys/devices/system/cpu/intel_pstate/no_turbo", "1\n");
    let facts = facts(&machine.files(), None);
    for (name, value) in [
        ("distribution", "Debian GNU/Linux 12"),
        ("machine", "Dell Inc. PowerEdge R640, virtual"),
        ("processor", "Xeon"),
        ("threads of a core", "several (SMT)"),
        ("turbo", "off"),
        ("load before", "0.52 (1 min), 0.48 (5 min)"),
    ] {
        assert_eq!(fact(&facts, name), Some(value), "{facts:?}");
    }
    assert_eq!(fact(&facts, "memory"), None, "what cannot be read is omitted");
}

/// Guards against results on btrfs without facts about the device: its files use their own device
/// numbers.
#[test]
fn the_drives_below_btrfs_are_found() {
    let machine = Machine::new();
    machine.disk(NVME, "Samsung SSD 980", 2048);
    machine.disk(SDA, "MX500", 4096);
    let pci = Path::new(NVME).parent().and_then(|it| it.parent()?.parent()).expect("a bus");
    machine.write(pci.join("current_link_speed"), "8.0 GT/s PCIe\n");
    machine.write(pci.join("current_link_width"), "4\n");
    machine.write("sys/class/block/sda/device/vendor", "ATA     \n");
    let sata = "sys/devices/pci0000:00/0000:00:17.0/ata3/link3/ata_link/link3/sata_spd";
    machine.write(sata, "6.0 Gbps\n");
    machine.mounts("btrfs", "/dev/nvme0n1p1");
    machine.link("sys/fs/btrfs/uuid/devices/nvme0n1p1", format!("{NVME}/nvme0n1p1"));
    machine.link("sys/fs/btrfs/uuid/devices/sda1", format!("{SDA}/sda1"));
    fs::create_dir_all(machine.root().join("sys/fs/btrfs/features")).expect("created");
    let facts = machine.facts();
    for (name, value) in [
        ("file system", "btrfs on /dev/nvme0n1p1"),
        ("mount options", "rw,noatime,rw,compress=zstd:1"),
        ("device", "nvme0n1+sda"),
        ("device model", "nvme0n1: Samsung SSD 980; sda: MX500"),
        ("device link", "nvme0n1: 8.0 GT/s PCIe x4; sda: 6.0 Gbps"),
        ("device size", "nvme0n1: 1 MiB; sda: 2 MiB"),
        ("device scheduler", "none"),
        ("device rotates", "no"),
    ] {
        let value = value.replace("1 MiB", &format_size(1 << 20));
        let value = value.replace("2 MiB", &format_size(2 << 20));
        assert_eq!(fact(&facts, name), Some(value.as_str()), "{facts:?}");
    }
    let device = Device::found(&machine.files(), &machine.root().join("data")).expect("a device");
    let counted = device.bytes().expect("both count");
    assert_eq!((counted.read, counted.written), (2 * 4096, 2 * 8192));
}

#[test]
fn the_hardware_below_mappings_and_loops_is_found() {
    let machine = Machine::new();
    machine.disk(SDA, "MX500", 4096);
    machine.disk(SDB, "MX500", 4096);
    machine.write(format!("{MAPPED}/dm/name"), "vault\n");
    machine.write(format!("{MAPPED}/dm/uuid"), "CRYPT-LUKS2-0123-vault\n");
    machine.write(format!("{MAPPED}/stat"), "1 0 8 1 1 0 16 1 0 1 1");
    machine.link(format!("{MAPPED}/slaves/sda1"), format!("{SDA}/sda1"));
    machine.link(format!("{MAPPED}/slaves/sdb"), SDB);
    machine.is_on(MAPPED);
    machine.mounts("ext4", "/dev/mapper/vault");
    let facts = machine.facts();
    assert_eq!(fact(&facts, "device"), Some("dm-0"));
    assert_eq!(fact(&facts, "device stack"), Some("dm-0 (vault, CRYPT) on sda+sdb"));
    assert_eq!(fact(&facts, "device model"), Some("MX500"));

    // A loop device backed by a file of that volume.
    let file = machine.root().join("disk.img");
    fs::write(&file, "").expect("written");
    machine.write(format!("{LOOP}/loop/backing_file"), file.to_str().expect("plain"));
    machine.link("sys/class/block/loop3", LOOP);
    machine.write("dev/loop3", "");
    let layer = Layer::named(&machine.files(), "loop3").expect("a device");
    let below: Vec<String> = layer.below(&machine.files()).iter().map(Layer::name).collect();
    assert_eq!(below, ["dm-0"]);
}

#[test]
fn devices_below_each_other_in_a_circle_end() {
    let machine = Machine::new();
    let file = machine.root().join("disk.img");
    fs::write(&file, "").expect("written");
    machine.write(format!("{LOOP}/loop/backing_file"), file.to_str().expect("plain"));
    machine.is_on(LOOP);
    let device = Device::found(&machine.files(), &file).expect("a device");
    assert_eq!(device.name(), "loop3");
}

#[test]
fn sensors_of_the_processor_and_of_the_drive_are_told_apart() {
    let machine = Machine::new();
    machine.disk(NVME, "Samsung SSD 980", 2048);
    machine.is_on(NVME);
    let controller = Path::new(NVME).parent().expect("a folder");
    for (number, name, owner) in [
        (0, "coretemp", Path::new("sys/devices/platform/coretemp.0")),
        (1, "nvme", controller),
        (2, "nvme", Path::new("sys/devices/pci0000:00/0000:02:00.0/nvme/nvme1")),
    ] {
        let folder = format!("sys/class/hwmon/hwmon{number}");
        machine.write(format!("{folder}/name"), name);
        machine.write(owner.join("uevent"), "");
        machine.link(format!("{folder}/device"), owner);
        machine.write(format!("{folder}/temp1_input"), &format!("{}850\n", 40 + number));
        machine.write(format!("{folder}/temp1_max"), "81850\n");
        machine.write(format!("{folder}/temp2_input"), "-273150\n");
    }
    let counts = "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count";
    machine.write(counts, "7\n");
    machine.write("sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq", "3400000\n");
    machine.write("proc/stat", "cpu  100 0 0 100 0 0 0 0 0 0\ncpu0 1\n");
    let device = Device::found(&machine.files(), &machine.root().join("data"));
    let gauges = Gauges::found(machine.files(), device.as_ref());
    let before = gauges.now();
    machine.write("proc/stat", "cpu  150 0 0 150 0 0 0 0 0 0\ncpu0 1\n");
    machine.write(counts, "9\n");
    let load = gauges.since(before).expect("counters");
    assert_eq!((load.processor_celsius, load.device_celsius), (Some(40.85), Some(41.85)));
    assert_eq!((load.device_celsius_limit, load.processor_throttles), (Some(81.85), Some(2)));
    assert_eq!(load.processor_mhz, Some(3400.0));
}
