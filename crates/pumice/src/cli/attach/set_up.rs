//! Sets up a loop device with a mounted file system on the drive's file.
//!
//! All or nothing: if a step fails, the earlier ones are undone.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::{Context, Result, anyhow, bail};

use super::{Attachment, FileSystem, loop_device, tools};
use crate::cli::serve::name_of;
use crate::partitions;

/// The requested setup.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) sector_bytes: u16,
    pub(super) read_only: bool,
    pub(super) mkfs: Option<FileSystem>,
    pub(super) force: bool,
    /// Path of the drive.
    pub(super) path: PathBuf,
    pub(super) mountpoint: Option<PathBuf>,
    pub(super) mount_options: Option<String>,
    /// Whether another process mounts the device once it exists.
    pub(super) is_mounted_later: bool,
}

impl Wanted {
    /// Checks that the machine and the mount point are ready.
    ///
    /// # Errors
    /// No privileges, no FUSE, no loop devices, or a missing program; errors of
    /// [`Wanted::check_mountpoint`].
    pub(super) fn check_machine(&self) -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            bail!("attaching a drive creates a block device and needs root: try sudo");
        }
        for (file, module) in [("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")] {
            if !Path::new(file).exists() {
                bail!("{file} does not exist: load its module with modprobe {module}");
            }
        }
        tools::find("losetup")?;
        if let Some(file_system) = self.mkfs {
            tools::find("blkid")?;
            tools::find(file_system.program())?;
        }
        Ok(())
    }

    /// Checks that the mount point exists and that mounting hides nothing.
    ///
    /// # Errors
    /// It does not exist, is not a directory, is not empty, or another drive is mounted there.
    pub(super) fn check_mountpoint(&self) -> Result<()> {
        let Some(mountpoint) = &self.mountpoint else { return Ok(()) };
        tools::find("mount")?;
        let shown = mountpoint.display();
        if let Some(other) = Attachment::mounted_at(mountpoint)? {
            bail!("{} is mounted on {shown}: detach it first", other.path().display());
        }
        let found = fs::read_dir(mountpoint);
        let mut found = found.with_context(|| format!("cannot mount on {shown}"))?;
        if found.next().is_some() {
            bail!("{shown} is not empty: mounting there would hide its content");
        }
        Ok(())
    }

    /// Creates the device, the file system and the mount; returns the device.
    ///
    /// # Errors
    /// A step fails, or the drive has a file system that would be overwritten.
    pub(super) fn set_up(&self, file: &Path) -> Result<PathBuf> {
        let sector = format!("--sector-size={}", self.sector_bytes);
        let mut args: Vec<&OsStr> =
            ["--find", "--show", "--direct-io=on", &sector].map(OsStr::new).to_vec();
        if self.read_only {
            args.push(OsStr::new("--read-only"));
        }
        if self.mountpoint.is_none() {
            args.push(OsStr::new("--partscan"));
        }
        args.push(file.as_os_str());
        let device = PathBuf::from(tools::run_well("losetup", &args)?);
        loop_device::complete_on_issuer(&device);
        let filled = self.check_direct(&device).and_then(|()| self.fill(&device));
        if self.mountpoint.is_none()
            && let Some(bytes) = self.other_sector_bytes(&device)
        {
            tracing::warn!(
                "the partition table uses sectors of {bytes} bytes, so no partition is found: \
                 detach the drive and attach it with --sector-size {bytes}"
            );
        }
        let ready = match self.is_mounted_later {
            true => filled,
            false => filled.and_then(|()| self.mount(&device)),
        };
        if let Err(error) = ready {
            // The first error is the one to report.
            let _ = loop_device::detach(&device);
            return Err(error);
        }
        Ok(device)
    }

    /// Checks that the device uses direct I/O. Without it everything would be cached twice, and
    /// flushed by a thread that may wait for memory.
    fn check_direct(&self, device: &Path) -> Result<()> {
        let name = device.file_name().unwrap_or_default().to_string_lossy();
        let is_direct = fs::read_to_string(format!("/sys/block/{name}/loop/dio"));
        if is_direct.is_ok_and(|text| text.trim() == "1") {
            return Ok(());
        }
        bail!("{} does not support direct I/O: the kernel is too old", device.display())
    }

    fn fill(&self, device: &Path) -> Result<()> {
        if let Some(file_system) = self.mkfs {
            self.make(file_system, device)?;
        }
        Ok(())
    }

    /// Mounts the device, if there is a mount point.
    ///
    /// # Errors
    /// It has no file system that can be mounted; errors of mount(8).
    pub(super) fn mount(&self, device: &Path) -> Result<()> {
        let Some(mountpoint) = &self.mountpoint else { return Ok(()) };
        let found = tools::find("blkid").and_then(|_| probe(device)).unwrap_or_default();
        if let Some(bytes) = self.other_sector_bytes(device) {
            bail!(
                "{} has a partition table for sectors of {bytes} bytes: attach it without a mount \
                 point, and with --sector-size {bytes}",
                self.path.display()
            );
        }
        self.check_file_system(&found)?;
        let access = if self.read_only { "ro" } else { "rw" };
        // Files that others have put on a drive must not gain root's rights by being mounted.
        let mut options = format!("{access},nosuid,nodev");
        if let Some(more) = &self.mount_options {
            options += &format!(",{more}");
        }
        let mount = |options: &str| {
            let args = [OsStr::new("-o"), OsStr::new(options), device.as_os_str()];
            tools::run_well("mount", &[&args[..], &[mountpoint.as_os_str()]].concat())
        };
        let log = tools::KernelLog::from_now();
        let mounted = mount(&options).map(drop).or_else(|error| {
            let methods = if self.read_only { found.other_methods() } else { &[] };
            let is_good =
                |method: &&MountMethod| mount(&format!("{options},{}", method.options)).is_ok();
            let method = methods.iter().find(is_good).ok_or(error)?;
            if method.skips_journal {
                tracing::warn!(
                    "mounted with {}: changes in the journal of the file system are missing; \
                     `pumice clone` creates a disk on which it can be replayed",
                    method.options
                );
            }
            Ok(())
        });
        mounted.map_err(|error: anyhow::Error| {
            // mount(8) refers to it.
            let said = log.line_with(&[&found.word(), &device_word(device)]);
            let error = said.map_or(error, |line| anyhow!("mount failed: {line}"));
            let is_finer = self.sector_bytes > 512 && xfs_sector_bytes(device) == Some(512);
            let hint = "its XFS was created for sectors of 512 bytes: add --sector-size 512";
            if is_finer { error.context(hint) } else { error }
        })?;
        if self.mkfs.is_some() {
            give_to_the_user(mountpoint);
        }
        Ok(())
    }

    /// Checks that the signatures found on the device belong to a file system that can be mounted.
    fn check_file_system(&self, found: &Signatures) -> Result<()> {
        let shown = self.path.display();
        if let Signatures::Nothing = found {
            let hint = if self.read_only { "" } else { ": add --mkfs ext4, or --mkfs xfs" };
            bail!("there is no file system on {shown}{hint}");
        }
        if let Signatures::Partitions(kind) = found {
            bail!("{shown} has a partition table ({kind}): attach it without a mount point");
        }
        Ok(())
    }

    /// Returns the sector size for which the partition table was made, if it is not the device's.
    fn other_sector_bytes(&self, device: &Path) -> Option<u32> {
        let mut file = File::open(device).ok()?;
        let mut start = [0; partitions::START_BYTES];
        file.read_exact(&mut start).ok()?;
        let disk_bytes = file.seek(SeekFrom::End(0)).ok()?;
        let found = partitions::sector_bytes(&start, disk_bytes)?;
        (found != u32::from(self.sector_bytes)).then_some(found)
    }

    fn make(&self, file_system: FileSystem, device: &Path) -> Result<()> {
        let found = probe(device)?;
        if !self.force && found != Signatures::Nothing {
            let found = match &found {
                Signatures::FileSystem(kind) | Signatures::Partitions(kind) => kind,
                _ => "something",
            };
            bail!("the drive already contains {found}: use --force to overwrite it");
        }
        let force = match file_system {
            FileSystem::Ext4 => "-F",
            FileSystem::Xfs => "-f",
        };
        let label = label(&name_of(&self.path), file_system.label_bytes_max());
        let args = ["-q", force, "-L", label.as_str()].map(OsStr::new);
        let args = [&args[..], &[device.as_os_str()]].concat();
        tools::run_well(file_system.program(), &args)?;
        Ok(())
    }
}

/// The signatures that blkid finds on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Signatures {
    Nothing,
    FileSystem(String),
    Partitions(String),
    /// Several signatures, or blkid could not run.
    #[default]
    Unknown,
}

/// A way to mount a file system from a read-only device.
struct MountMethod {
    options: &'static str,
    skips_journal: bool,
}

/// Returns the name that file systems use for a device in the kernel's log.
fn device_word(device: &Path) -> String {
    format!("({})", device.file_name().unwrap_or_default().display())
}

impl Signatures {
    /// Returns the name of the file system in the kernel's log.
    fn word(&self) -> String {
        match self {
            Self::FileSystem(kind) => format!("{kind}: "),
            _ => String::from("none: "),
        }
    }

    /// Returns other ways to mount a file system from a read-only device: a snapshot, mounted in
    /// addition to the file system from which it was taken, whose journal may not be empty.
    ///
    /// Source: ext4(5), xfs(5).
    fn other_methods(&self) -> &'static [MountMethod] {
        let Self::FileSystem(kind) = self else { return &[] };
        match &**kind {
            "ext3" | "ext4" => &[MountMethod { options: "noload", skips_journal: true }],
            "xfs" => &[
                MountMethod { options: "nouuid", skips_journal: false },
                MountMethod { options: "nouuid,norecovery", skips_journal: true },
            ],
            _ => &[],
        }
    }
}

fn probe(device: &Path) -> Result<Signatures> {
    let value = |tag: &str| {
        let args = ["-p", "-o", "value", "-s", tag].map(OsStr::new);
        tools::run("blkid", &[&args[..], &[device.as_os_str()]].concat())
    };
    let (kind, partitions) = (value("TYPE")?, value("PTTYPE")?);
    // Source: blkid(8): 2 if nothing was found; 8 if several signatures were found.
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(match (text(&kind), text(&partitions)) {
        (kind, _) if !kind.is_empty() => Signatures::FileSystem(kind),
        (_, table) if !table.is_empty() => Signatures::Partitions(table),
        _ if [&kind, &partitions].iter().all(|output| output.status.code() == Some(2)) => {
            Signatures::Nothing
        }
        _ => Signatures::Unknown,
    })
}

/// Returns the sector size of an XFS; `None` if the device has none.
///
/// Source: XFS Algorithms and Data Structures, superblock: magic number at 0, sector size at 102.
fn xfs_sector_bytes(device: &Path) -> Option<u16> {
    let mut start = [0; 512];
    File::open(device).ok()?.read_exact(&mut start).ok()?;
    start.starts_with(b"XFSB").then(|| u16::from_be_bytes([start[102], start[103]]))
}

/// Makes the user who called sudo the owner of a new file system, which they could not write
/// otherwise.
fn give_to_the_user(mountpoint: &Path) {
    let id = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    let Some(user) = id("SUDO_UID") else { return };
    if let Err(error) = chown(mountpoint, Some(user), id("SUDO_GID")) {
        let path = mountpoint.display();
        tracing::warn!(%path, %error, "the new file system belongs to root");
    }
}

/// Returns a label of characters that every tool shows, of at most `bytes_max` bytes.
fn label(name: &str, bytes_max: usize) -> String {
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "-_.".contains(*letter);
    let plain = name.chars().map(|letter| if is_plain(&letter) { letter } else { '_' });
    plain.take(bytes_max).collect()
}

#[cfg(test)]
mod tests {
    //! Goal: every file system accepts the label.
    use super::label;

    #[test]
    fn labels_are_short_and_plain() {
        assert_eq!(label("data", 12), "data");
        assert_eq!(label("a name\u{fc}ber,16 bytes", 12), "a_name_ber_1");
        assert_eq!(label("", 12), "");
    }
}
