//! Finds the processes and mounts that use a device, from `/proc` and `/sys`.
//!
//! Reads only names, never opens the files: access to a file system whose device is gone
//! could block forever.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The mounts that this process sees.
const MOUNTS: &str = "/proc/self/mountinfo";

/// Returns the start time of a process in ticks since boot; `None` if there is no such process.
pub(super) fn started_ticks(process: i32) -> Option<u64> {
    let line = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may contain any character. Source: proc_pid_stat(5), fields 3, 22.
    let mut fields = line.rsplit_once(')')?.1.split_ascii_whitespace();
    // A zombie no longer holds anything.
    fields.next().filter(|state| *state != "Z")?;
    fields.nth(18)?.parse().ok()
}

/// Returns the loop devices whose backing file is in this directory.
pub(super) fn loop_devices(directory: &Path) -> Vec<PathBuf> {
    let is_there = |name: &String| {
        let backing = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        backing.is_ok_and(|backing| Path::new(&backing).parent() == Some(directory))
    };
    let names = names_in(Path::new("/sys/block")).into_iter();
    let mut devices: Vec<PathBuf> =
        names.filter(is_there).map(|name| Path::new("/dev").join(name)).collect();
    devices.sort();
    devices
}

/// Whether a loop device is on a file in the root of a file system that is no longer mounted
/// anywhere, as far as its path shows.
pub(super) fn is_on_lost_file(device: &str) -> bool {
    let backing = fs::read_to_string(format!("/sys/block/{device}/loop/backing_file"));
    let backing = backing.unwrap_or_default();
    let path = Path::new(backing.trim_end_matches('\n'));
    path.parent() == Some(Path::new("/"))
}

/// Returns the number of the current use of a block device, unique among all uses of all devices;
/// `None` before Linux 5.15.
pub(super) fn use_number(device: &str) -> Option<u64> {
    let number = fs::read_to_string(format!("/sys/block/{device}/diskseq")).ok()?;
    number.trim().parse().ok()
}

/// Returns the mount points of a block device, in this process's view.
pub(super) fn mounts_of(device: &Path) -> Vec<PathBuf> {
    let name = device.file_name().unwrap_or_default().to_string_lossy();
    let Ok(number) = fs::read_to_string(format!("/sys/class/block/{name}/dev")) else {
        return Vec::new();
    };
    let Ok(mounts) = fs::read(MOUNTS) else { return Vec::new() };
    let lines = mounts.split(|&byte| byte == b'\n');
    let of_device = lines.filter_map(|line| mount(line, device, number.trim()));
    of_device.filter_map(|(place, is_of_device)| is_of_device.then_some(place)).collect()
}

/// Whether the last mount at `place`, which is the visible one, is of a device other than `device`.
pub(super) fn is_covered(device: &Path, place: &Path) -> bool {
    let Ok(mounts) = fs::read(MOUNTS) else { return false };
    let lines = mounts.split(|&byte| byte == b'\n');
    let name = device.file_name().unwrap_or_default().to_string_lossy();
    let number = fs::read_to_string(format!("/sys/class/block/{name}/dev")).unwrap_or_default();
    let mut there = lines.filter_map(|line| mount(line, device, number.trim()));
    // Later mounts are later in the list.
    there.rfind(|(mounted, _)| mounted == place).is_some_and(|(_, is_of_device)| !is_of_device)
}

/// Returns the mount point of a line of mountinfo, and whether the line is about `device`, whose
/// number is `MAJOR:MINOR`. The mounts of btrfs have an anonymous number, so the source is
/// compared, too.
///
/// Source: proc_pid_mountinfo(5): fields 3 and 5 are number and mount point; after the separator
/// follow the type of the file system and the source.
fn mount(line: &[u8], device: &Path, number: &str) -> Option<(PathBuf, bool)> {
    let mut fields = line.split(|&byte| byte == b' ');
    let has_number = fields.nth(2)? == number.as_bytes();
    let mount_point = unescaped(fields.nth(1)?);
    let source = fields.skip_while(|field| *field != b"-").nth(2).map(unescaped);
    Some((mount_point, has_number || source.as_deref() == Some(device)))
}

/// Returns the partitions that the kernel sees on a device.
pub(super) fn partitions(device: &Path) -> Vec<PathBuf> {
    let name = device.file_name().unwrap_or_default().to_string_lossy();
    let mut names = names_in(&Path::new("/sys/block").join(&*name));
    names.retain(|part| part.starts_with(&*name));
    names.into_iter().map(|part| Path::new("/dev").join(part)).collect()
}

/// Returns the kernel's own uses of a device or partition, each with the way to end it: loop
/// devices on it, which do not prevent detaching it; volumes; swap.
pub(super) fn kernel_users(device: &Path) -> Vec<(String, String)> {
    let mut users = Vec::new();
    for name in names_in(Path::new("/sys/block")) {
        let backing = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        if backing.is_ok_and(|backing| Path::new(backing.trim_end_matches('\n')) == device) {
            let top = format!("/dev/{name}");
            users.push((format!("by the loop device {top}"), format!("losetup --detach {top}")));
        }
    }
    let name = device.file_name().unwrap_or_default();
    for holder in names_in(&Path::new("/sys/class/block").join(name).join("holders")) {
        users.push((format!("by the device /dev/{holder}"), "remove that".to_owned()));
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().any(|line| line.split_whitespace().next() == device.to_str()) {
        users.push(("as swap".to_owned(), format!("swapoff {}", device.display())));
    }
    users
}

fn names_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// Returns the processes that have a file open, as `number (name)`.
pub(super) fn openers(file: &Path) -> Vec<String> {
    processes(&["fd"], |target| target == file)
}

/// Returns the processes that have a file open, run, or have their working directory below a mount
/// point.
pub(super) fn users(mountpoint: &Path) -> Vec<String> {
    processes(&["fd", "cwd", "root", "exe"], |target| target.starts_with(mountpoint))
}

fn processes(links: &[&str], is_wanted: impl Fn(&Path) -> bool) -> Vec<String> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let own = std::process::id();
    let mut found = Vec::new();
    for entry in entries.filter_map(|entry| entry.ok()) {
        let number = entry.file_name().to_string_lossy().parse::<u32>();
        let Some(number) = number.ok().filter(|number| *number != own) else { continue };
        let leads_there =
            |path: PathBuf| fs::read_link(path).is_ok_and(|target| is_wanted(&target));
        let holds = links.iter().any(|link| match fs::read_dir(entry.path().join(link)) {
            Ok(files) if *link == "fd" => {
                files.filter_map(|file| file.ok()).any(|file| leads_there(file.path()))
            }
            _ => leads_there(entry.path().join(link)),
        });
        if holds {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            found.push(format!("{number} ({})", name.trim()));
        }
    }
    found
}

/// Decodes a path of mountinfo, in which blanks and the like are written as `\040`.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let value = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match value.filter(|_| byte == b'\\') {
            Some(value) => {
                bytes.push(value);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    //! Goal: names are read as the kernel writes them.
    use super::*;

    #[test]
    fn a_mount_point_with_blanks_is_read() {
        assert_eq!(unescaped(br"/mnt/a\040b\134c"), Path::new(r"/mnt/a b\c"));
        assert_eq!(unescaped(br"/mnt/\0"), Path::new(r"/mnt/\0"));
    }

    /// Guards against a device that could not be detached, because the mount of its btrfs was not
    /// found.
    #[test]
    fn mounts_are_found_by_number_and_by_source() {
        let of = |line: &[u8]| {
            let (place, is_of_device) = mount(line, Path::new("/dev/loop3"), "7:3")?;
            is_of_device.then_some(place)
        };
        let ext4 = b"36 1 7:3 / /mnt/a rw,relatime shared:1 master:2 - ext4 /dev/root rw";
        assert_eq!(of(ext4), Some("/mnt/a".into()));
        let btrfs = b"41 1 0:42 / /mnt/b\\040c rw - btrfs /dev/loop3 rw,space_cache=v2";
        assert_eq!(of(btrfs), Some("/mnt/b c".into()));
        let other = b"42 1 7:33 / /mnt/c rw - ext4 /dev/loop33 rw";
        assert_eq!([of(other), of(b""), of(b"43 1 0:43 / /mnt/d rw -")], [None, None, None]);
    }

    #[test]
    fn this_process_has_started_and_another_has_not() {
        let own = std::process::id() as i32;
        assert!(started_ticks(own).is_some_and(|ticks| ticks > 0));
        assert_eq!(started_ticks(0), None);
    }

    #[test]
    fn every_mount_has_its_device() {
        // The root of a container need not be a block device, so this expects no results for it.
        assert!(mounts_of(Path::new("/dev/null")).is_empty());
        assert!(openers(Path::new("/no/such/file")).is_empty());
    }
}
