//! Sets up a loop device with a mounted file system on the drive's file.
//!
//! All or nothing: if a step fails, the earlier ones are undone.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{FileSystem, loop_device, tools};

/// The requested setup.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) sector_bytes: u16,
    pub(super) read_only: bool,
    pub(super) mkfs: Option<FileSystem>,
    pub(super) force: bool,
    pub(super) mountpoint: Option<PathBuf>,
}

impl Wanted {
    /// Checks that the machine and the mount point are ready.
    ///
    /// # Errors
    /// No privileges, no FUSE, no loop devices, or a missing program; those of
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
    /// It does not exist, is not a directory, or is not empty.
    pub(super) fn check_mountpoint(&self) -> Result<()> {
        let Some(mountpoint) = &self.mountpoint else { return Ok(()) };
        tools::find("mount")?;
        let shown = mountpoint.display();
        let found = fs::read_dir(mountpoint);
        let mut found = found.with_context(|| format!("cannot mount on {shown}"))?;
        if found.next().is_some() {
            bail!("{shown} is not empty: mounting there would hide what is in it");
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
        args.push(file.as_os_str());
        let device = PathBuf::from(tools::run_well("losetup", &args)?);
        loop_device::complete_on_issuer(&device);
        let ready = self.check_direct(&device).and_then(|()| self.fill(&device));
        if let Err(error) = ready {
            // The first error is the one to report.
            let _ = loop_device::detach(&device);
            return Err(error);
        }
        Ok(device)
    }

    /// Without direct I/O everything would be cached twice, and flushed by a thread that may wait
    /// for memory.
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
        let Some(mountpoint) = &self.mountpoint else { return Ok(()) };
        let options = if self.read_only { "ro" } else { "rw" };
        let args =
            [OsStr::new("-o"), OsStr::new(options), device.as_os_str(), mountpoint.as_os_str()];
        tools::run_well("mount", &args)?;
        Ok(())
    }

    fn make(&self, file_system: FileSystem, device: &Path) -> Result<()> {
        let probe = ["-p", "-o", "value", "-s", "TYPE", "-s", "PTTYPE"].map(OsStr::new);
        let probed = tools::run("blkid", &[&probe[..], &[device.as_os_str()]].concat())?;
        // Source: blkid(8): 2 if nothing was found; 8 if several signatures were found.
        if probed.status.code() != Some(2) && !self.force {
            let found = String::from_utf8_lossy(&probed.stdout);
            let found = found.split_whitespace().next().unwrap_or("something");
            bail!("the drive already contains {found}: use --force to overwrite it");
        }
        let force = match file_system {
            FileSystem::Ext4 => "-F",
            FileSystem::Xfs => "-f",
        };
        let args = [OsStr::new("-q"), OsStr::new(force), device.as_os_str()];
        tools::run_well(file_system.program(), &args)?;
        Ok(())
    }
}
