//! From the drive's file to a device with a mounted file system.
//!
//! All or nothing: what was done before a step that fails is undone.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::{FileSystem, loop_device, tools};
use pumice_drive::base::{Error, ErrorKind, Result};

/// What is wanted on top of the file.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) sector_bytes: u16,
    pub(super) read_only: bool,
    pub(super) mkfs: Option<FileSystem>,
    pub(super) force: bool,
    pub(super) mountpoint: Option<PathBuf>,
}

impl Wanted {
    /// Looks whether the machine and the mount point are ready.
    ///
    /// # Errors
    /// No privileges, no FUSE, no loop devices or no program for a step; those of
    /// [`Wanted::check_mountpoint`].
    pub(super) fn check_machine(&self) -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            let what = "attaching a drive makes a block device, which only root may: try sudo";
            return Err(Error::new(ErrorKind::PermissionDenied, what));
        }
        for (file, module) in [("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")] {
            if !Path::new(file).exists() {
                let what = format!("there is no {file}: load its module with modprobe {module}");
                return Err(Error::new(ErrorKind::NotFound, what));
            }
        }
        tools::find("losetup")?;
        if let Some(file_system) = self.mkfs {
            tools::find("blkid")?;
            tools::find(file_system.program())?;
        }
        Ok(())
    }

    /// Looks whether there is a mount point that hides nothing.
    ///
    /// # Errors
    /// It is not there, no directory, or not empty.
    pub(super) fn check_mountpoint(&self) -> Result<()> {
        let Some(mountpoint) = &self.mountpoint else { return Ok(()) };
        tools::find("mount")?;
        let cannot = |error| Error::os(format!("cannot mount at {}", mountpoint.display()), error);
        if fs::read_dir(mountpoint).map_err(cannot)?.next().is_some() {
            let what = format!(
                "{} is not empty: mounting there would hide what is in it",
                mountpoint.display()
            );
            return Err(Error::new(ErrorKind::AlreadyExists, what));
        }
        Ok(())
    }

    /// Makes the device, the file system and the mount; gives the device.
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
        loop_device::complete_where_asked(&device);
        let ready = self.check_direct(&device).and_then(|()| self.fill(&device));
        if let Err(error) = ready {
            // The error that counts is the one that was first.
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
        let what = format!("{} does not do direct I/O: the kernel is too old", device.display());
        Err(Error::new(ErrorKind::Unsupported, what))
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
        // Source: blkid(8): 2 if nothing was found; 8 if several things were.
        if probed.status.code() != Some(2) && !self.force {
            let found = String::from_utf8_lossy(&probed.stdout);
            let what = format!(
                "the drive already carries {}: --force overwrites it",
                found.split_whitespace().next().unwrap_or("something")
            );
            return Err(Error::new(ErrorKind::AlreadyExists, what));
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
