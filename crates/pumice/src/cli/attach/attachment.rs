//! The record of an attached drive, in a directory of its own, so that `pumice detach`, and
//! attaching after a crash, find everything that belongs to it.
//!
//! ```text
//! RUNTIME/pumice/<drive>.attached/record.json    path, process, mount point
//!                                 log            log of the background process
//!                                 fuse/disk      the drive as a file, while the process runs
//! ```
//!
//! The loop device is not recorded: it is the one whose backing file is that file, which cannot be
//! wrong.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize};

use super::holders;
use crate::control;
use pumice_fuse::FILE_NAME;

const SUFFIX: &str = "attached";

/// An attached drive, or what is left of one.
#[derive(Clone, Debug)]
pub(crate) struct Attachment {
    directory: PathBuf,
    record: Record,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    path: PathBuf,
    process: i32,
    /// Start time of the process, in ticks since boot, because process numbers are reused.
    started_ticks: u64,
    mountpoint: Option<PathBuf>,
}

impl Attachment {
    /// Returns the attachment of the drive at `path`, if there is one.
    ///
    /// # Errors
    /// There is no drive.
    pub(crate) fn of(path: &Path) -> Result<Option<Self>> {
        Ok(Self::load(&control::place(path, SUFFIX)?))
    }

    /// Finds an attachment by its drive, its device or its mount point.
    ///
    /// # Errors
    /// Nothing of that name is attached.
    pub(crate) fn find(name: &Path) -> Result<Self> {
        let wanted = absolute(name);
        let directory = control::private_directory()?;
        let unreadable = || format!("cannot read the directory {}", directory.display());
        for entry in fs::read_dir(&directory).with_context(unreadable)? {
            let entry = entry.with_context(unreadable)?;
            let Some(found) = Self::load(&entry.path()) else { continue };
            let is_named = found.record.path == wanted
                || found.mountpoint().is_some_and(|mountpoint| mountpoint == wanted)
                || found.devices().contains(&wanted);
            if is_named {
                return Ok(found);
            }
        }
        bail!("{} is not attached", name.display())
    }

    /// Records that this process attaches the drive at `path`; nothing of an earlier attachment may
    /// be left.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub(crate) fn begin(path: &Path, mountpoint: Option<&Path>) -> Result<Self> {
        control::private_directory()?;
        let place = control::place(path, SUFFIX)?;
        let cannot = || format!("cannot create {}", place.display());
        let mut private = DirBuilder::new();
        private.mode(0o700).create(&place).with_context(cannot)?;
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let record = Record {
            path: absolute(path),
            process,
            started_ticks: holders::started_ticks(process).unwrap_or(0),
            mountpoint: mountpoint.map(absolute),
        };
        // Without symbolic links, as the kernel names the file.
        let directory = place.canonicalize().with_context(cannot)?;
        let attachment = Self { directory, record };
        let text = serde_json::to_vec(&attachment.record).expect("records serialize");
        // Renamed, so that a record is complete or absent.
        let draft = attachment.directory.join("record.new");
        private
            .create(attachment.fuse_directory())
            .and_then(|()| fs::write(&draft, text))
            .and_then(|()| fs::rename(&draft, attachment.record_file()))
            .with_context(cannot)?;
        Ok(attachment)
    }

    fn load(directory: &Path) -> Option<Self> {
        if directory.extension()? != SUFFIX {
            return None;
        }
        let directory = directory.canonicalize().ok()?;
        let nothing =
            || Record { path: PathBuf::new(), process: 0, started_ticks: 0, mountpoint: None };
        // A process that was killed before it wrote its record is cleaned up like any other.
        let text = fs::read(directory.join("record.json")).ok();
        let record = text.and_then(|text| serde_json::from_slice(&text).ok());
        Some(Self { directory, record: record.unwrap_or_else(nothing) })
    }

    /// Returns the process that serves the drive, if it is alive.
    pub(crate) fn process(&self) -> Option<i32> {
        let Record { process, started_ticks, .. } = self.record;
        (holders::started_ticks(process)? == started_ticks).then_some(process)
    }

    /// Returns the loop devices on the drive's file: one, unless others were added by hand.
    pub(crate) fn devices(&self) -> Vec<PathBuf> {
        holders::loop_devices(&self.fuse_directory().join(FILE_NAME))
    }

    pub(crate) fn mountpoint(&self) -> Option<&Path> {
        self.record.mountpoint.as_deref()
    }

    pub(crate) fn fuse_directory(&self) -> PathBuf {
        self.directory.join("fuse")
    }

    /// Returns the path of the background process's log.
    pub(crate) fn log_file(&self) -> PathBuf {
        self.directory.join("log")
    }

    fn record_file(&self) -> PathBuf {
        self.directory.join("record.json")
    }

    /// Returns the last line of the log, if the directory still exists.
    pub(crate) fn last_words(&self) -> Option<String> {
        if !self.directory.exists() {
            return None;
        }
        let log = fs::read_to_string(self.log_file()).unwrap_or_default();
        Some(log.lines().last().unwrap_or("its log is empty").to_owned())
    }

    /// Removes the directory and, if the process died, the mount in it.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn remove(&self) -> Result<()> {
        // After an orderly end nothing is mounted there, and this fails.
        let _ = unmount(self.fuse_directory(), UnmountFlags::DETACH);
        let cannot = || format!("cannot remove {}", self.directory.display());
        // Not recursively: if the mount were still there, its file would be the drive.
        fs::remove_dir(self.fuse_directory()).with_context(cannot)?;
        fs::remove_dir_all(&self.directory).with_context(cannot)
    }

    /// Opens the log for writing.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn open_log(&self) -> std::io::Result<File> {
        File::options().create(true).append(true).open(self.log_file())
    }
}

/// Returns the path without symbolic links, as far as it can be resolved: a dead mount cannot.
fn absolute(path: &Path) -> PathBuf {
    let plain = || std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.canonicalize().unwrap_or_else(|_| plain())
}
