//! What is known of an attached drive, in a directory of its own, so that `pumice detach` and an
//! attaching after a crash find everything that belongs to it.
//!
//! ```text
//! RUNTIME/pumice/<drive>.attached/record.json    path, process, mount point
//!                                 log            what the process in the background says
//!                                 fuse/disk      the drive as a file, while the process lives
//! ```
//!
//! The loop device is not written down: whichever has that file as its backing is the one, which
//! cannot be wrong.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize};

use super::holders;
use crate::control;
use crate::fuse::FILE_NAME;
use pumice_drive::base::{Error, ErrorKind, Result};

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
    /// When the process started, in ticks since the machine did: numbers are used again.
    started_ticks: u64,
    mountpoint: Option<PathBuf>,
}

impl Attachment {
    /// What is known of the drive at `path`, if anything is.
    ///
    /// # Errors
    /// `NotFound` if there is no drive.
    pub(crate) fn of(path: &Path) -> Result<Option<Self>> {
        Ok(Self::load(&control::place(path, SUFFIX)?))
    }

    /// Finds what a user names by its drive, its device or its mount point.
    ///
    /// # Errors
    /// `NotFound` if nothing of that name is attached.
    pub(crate) fn find(name: &Path) -> Result<Self> {
        let wanted = absolute(name);
        let directory = control::private_directory()?;
        let unreadable =
            |error| Error::os(format!("cannot read the directory {}", directory.display()), error);
        for entry in fs::read_dir(&directory).map_err(unreadable)? {
            let Some(found) = Self::load(&entry.map_err(unreadable)?.path()) else { continue };
            let is_named = found.record.path == wanted
                || found.mountpoint().is_some_and(|mountpoint| mountpoint == wanted)
                || found.devices().contains(&wanted);
            if is_named {
                return Ok(found);
            }
        }
        let what = format!("{} is not attached", name.display());
        Err(Error::new(ErrorKind::NotFound, what))
    }

    /// Writes down that this process attaches the drive at `path`, of which nothing may be left.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub(crate) fn begin(path: &Path, mountpoint: Option<&Path>) -> Result<Self> {
        control::private_directory()?;
        let place = control::place(path, SUFFIX)?;
        let cannot = |error| Error::os(format!("cannot make {}", place.display()), error);
        let mut private = DirBuilder::new();
        private.mode(0o700).create(&place).map_err(cannot)?;
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let record = Record {
            path: absolute(path),
            process,
            started_ticks: holders::started_ticks(process).unwrap_or(0),
            mountpoint: mountpoint.map(absolute),
        };
        // Without links, as the kernel names the file.
        let directory = place.canonicalize().map_err(cannot)?;
        let attachment = Self { directory, record };
        let text = serde_json::to_vec(&attachment.record).expect("records serialize");
        // Renamed, so that a record is whole or absent.
        let draft = attachment.directory.join("record.new");
        private
            .create(attachment.fuse_directory())
            .and_then(|()| fs::write(&draft, text))
            .and_then(|()| fs::rename(&draft, attachment.record_file()))
            .map_err(cannot)?;
        Ok(attachment)
    }

    fn load(directory: &Path) -> Option<Self> {
        if directory.extension()? != SUFFIX {
            return None;
        }
        let directory = directory.canonicalize().ok()?;
        let nothing =
            || Record { path: PathBuf::new(), process: 0, started_ticks: 0, mountpoint: None };
        // One that ended before it could write is cleaned up like any other.
        let text = fs::read(directory.join("record.json")).ok();
        let record = text.and_then(|text| serde_json::from_slice(&text).ok());
        Some(Self { directory, record: record.unwrap_or_else(nothing) })
    }

    /// The process that serves the drive, if it lives.
    pub(crate) fn process(&self) -> Option<i32> {
        let Record { process, started_ticks, .. } = self.record;
        (holders::started_ticks(process)? == started_ticks).then_some(process)
    }

    /// The loop devices on the drive's file: one, unless somebody added others.
    pub(crate) fn devices(&self) -> Vec<PathBuf> {
        holders::loop_devices(&self.fuse_directory().join(FILE_NAME))
    }

    pub(crate) fn mountpoint(&self) -> Option<&Path> {
        self.record.mountpoint.as_deref()
    }

    pub(crate) fn fuse_directory(&self) -> PathBuf {
        self.directory.join("fuse")
    }

    /// What the process in the background says.
    pub(crate) fn log_file(&self) -> PathBuf {
        self.directory.join("log")
    }

    fn record_file(&self) -> PathBuf {
        self.directory.join("record.json")
    }

    /// The last line of the log, if the directory is still there.
    pub(crate) fn last_words(&self) -> Option<String> {
        if !self.directory.exists() {
            return None;
        }
        let log = fs::read_to_string(self.log_file()).unwrap_or_default();
        Some(log.lines().last().unwrap_or("it left no word").to_owned())
    }

    /// Removes the directory and, of a process that died, the mount in it.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn remove(&self) -> Result<()> {
        // Nothing is mounted there after a proper end, which is one of the errors.
        let _ = unmount(self.fuse_directory(), UnmountFlags::DETACH);
        let cannot =
            |error| Error::os(format!("cannot remove {}", self.directory.display()), error);
        // Not all at once: if the mount were still there, its file would be the drive.
        fs::remove_dir(self.fuse_directory()).map_err(cannot)?;
        fs::remove_dir_all(&self.directory).map_err(cannot)
    }

    /// Opens the log to be written.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn open_log(&self) -> std::io::Result<File> {
        File::options().create(true).append(true).open(self.log_file())
    }
}

/// The path without links, as far as it can be looked up: a mount that died cannot.
fn absolute(path: &Path) -> PathBuf {
    let plain = || std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.canonicalize().unwrap_or_else(|_| plain())
}
