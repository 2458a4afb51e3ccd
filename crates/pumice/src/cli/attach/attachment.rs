//! The record of an attached drive, in a directory of its own, so that `pumice detach`, and
//! attaching after a crash, find everything that belongs to it.
//!
//! ```text
//! RUNTIME/pumice/<drive>.attached/record.json    path, process, mount point
//!                                 log            log of the background process
//!                                 fuse/NAME      the drive as a file, while the process runs
//! ```
//!
//! The loop device is identified by its backing file, which is unambiguous. The file has the
//! drive's name because lists of loop devices show it. Once a process with mounts of its own is
//! dead, the path of the file is lost; the recorded device is then used, if it is still in the same
//! use.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize};

use super::holders;
use crate::control;
use crate::place::Place;
use pumice_drive::base::checksum::crc64;

const SUFFIX: &str = "attached";

/// An attached drive, or the remains of one.
#[derive(Clone, Debug)]
pub(crate) struct Attachment {
    directory: PathBuf,
    record: Record,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    /// As bytes: paths need not be UTF-8. PATH@NAME of a snapshot.
    #[serde(with = "path_bytes")]
    path: PathBuf,
    process: i32,
    /// For a snapshot, the process that has its drive open, if that process lends it.
    #[serde(default)]
    lender: Option<u32>,
    /// Start time of the process, in ticks since boot, because process numbers are reused.
    started_ticks: u64,
    mountpoint: Option<RecordedPath>,
    #[serde(default)]
    device: Option<RecordedDevice>,
}

/// A loop device in one of its uses.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RecordedDevice {
    name: String,
    /// Number of the use; none before Linux 5.15.
    use_number: Option<u64>,
}

/// A path as bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RecordedPath(#[serde(with = "path_bytes")] PathBuf);

/// Paths in JSON, as arrays of bytes.
mod path_bytes {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_bytes().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<PathBuf, D::Error> {
        Ok(OsString::from_vec(Vec::deserialize(deserializer)?).into())
    }
}

impl Attachment {
    /// Returns the attachment of the drive at `path`, if there is one.
    ///
    /// # Errors
    /// There is no drive.
    pub(crate) fn of(path: &Path) -> Result<Option<Self>> {
        Self::at(path, None)
    }

    /// Like [`Attachment::of`], or returns the attachment of a snapshot of the drive.
    ///
    /// # Errors
    /// There is no drive.
    pub(crate) fn at(path: &Path, snapshot: Option<&str>) -> Result<Option<Self>> {
        Ok(Self::load(&place(path, snapshot)?))
    }

    /// Finds an attachment by its drive, under its old or its new name, by its device, or by a
    /// place where it is mounted. If several were made at one mount point, because an earlier
    /// process was killed, returns the one that is mounted there, else one that is served.
    ///
    /// # Errors
    /// No attachment matches the name.
    pub(crate) fn find(name: &Path) -> Result<Self> {
        let wanted = absolute(name);
        let of_file = Place::of(name).and_then(|it| Self::at(&it.path, it.snapshot.as_deref()));
        let of_file = of_file.ok().flatten().map(|found| found.directory);
        let is_of_file = |found: &Self| of_file.as_ref() == Some(&found.directory);
        let is_named = |found: &Self| {
            is_of_file(found)
                || found.record.path == wanted
                || found.mountpoint() == Some(&wanted)
                || found.devices().contains(&wanted)
                || found.is_mounted_at(&wanted)
        };
        let rank = |found: &Self| {
            (found.is_mounted_at(&wanted), is_of_file(found), found.process().is_some())
        };
        let found = Self::all()?.into_iter().filter(is_named).max_by_key(rank);
        found.with_context(|| format!("{} is not attached", name.display()))
    }

    /// Returns the attachment that is mounted at `path`, if there is one.
    ///
    /// # Errors
    /// The directory of the records cannot be read.
    pub(crate) fn mounted_at(path: &Path) -> Result<Option<Self>> {
        let path = absolute(path);
        Ok(Self::all()?.into_iter().find(|found| found.is_mounted_at(&path)))
    }

    fn all() -> Result<Vec<Self>> {
        let directory = control::private_directory()?;
        let entries = fs::read_dir(&directory)
            .with_context(|| format!("cannot read the directory {}", directory.display()))?;
        Ok(entries.filter_map(|entry| Self::load(&entry.ok()?.path())).collect())
    }

    /// Records that this process attaches the drive at `path`, or a snapshot of it, which `lender`
    /// may lend; an earlier attachment must have been removed completely.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub(crate) fn begin(
        path: &Path,
        snapshot: Option<&str>,
        lender: Option<u32>,
        mountpoint: Option<&Path>,
    ) -> Result<Self> {
        control::private_directory()?;
        let place = place(path, snapshot)?;
        let cannot = || format!("cannot create {}", place.display());
        let mut private = DirBuilder::new();
        private.mode(0o700).create(&place).with_context(cannot)?;
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let mut shown = absolute(path).into_os_string();
        if let Some(name) = snapshot {
            shown.push("@");
            shown.push(name);
        }
        let record = Record {
            path: shown.into(),
            process,
            lender,
            started_ticks: holders::started_ticks(process).unwrap_or(0),
            mountpoint: mountpoint.map(|path| RecordedPath(absolute(path))),
            device: None,
        };
        // Without symbolic links, as the kernel names the file.
        let directory = place.canonicalize().with_context(cannot)?;
        let attachment = Self { directory, record };
        private
            .create(attachment.fuse_directory())
            .and_then(|()| attachment.write())
            .with_context(cannot)?;
        Ok(attachment)
    }

    fn write(&self) -> std::io::Result<()> {
        let text = serde_json::to_vec(&self.record).expect("records serialize");
        // Renamed, so that a record is complete or absent.
        let draft = self.directory.join("record.new");
        fs::write(&draft, text).and_then(|()| fs::rename(&draft, self.record_file()))
    }

    /// Records the loop device on the drive's file.
    ///
    /// # Errors
    /// The record cannot be written.
    pub(super) fn note_device(&mut self, device: &Path) -> Result<()> {
        let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let use_number = holders::use_number(&name);
        self.record.device = Some(RecordedDevice { name, use_number });
        self.write().with_context(|| format!("cannot write {}", self.record_file().display()))
    }

    fn load(directory: &Path) -> Option<Self> {
        if directory.extension()? != SUFFIX {
            return None;
        }
        let directory = directory.canonicalize().ok()?;
        let nothing = || Record {
            path: PathBuf::new(),
            process: 0,
            lender: None,
            started_ticks: 0,
            mountpoint: None,
            device: None,
        };
        // A process that was killed before it wrote its record is cleaned up like any other.
        let text = fs::read(directory.join("record.json")).ok();
        let record = text.and_then(|text| serde_json::from_slice(&text).ok());
        Some(Self { directory, record: record.unwrap_or_else(nothing) })
    }

    /// Returns the process that serves the drive, if that process is alive.
    pub(crate) fn process(&self) -> Option<i32> {
        let Record { process, started_ticks, .. } = self.record;
        (holders::started_ticks(process)? == started_ticks).then_some(process)
    }

    /// Returns an attached snapshot that is lent by the process of this attachment.
    ///
    /// # Errors
    /// The directory of the records cannot be read.
    pub(super) fn lent(&self) -> Result<Option<Self>> {
        let lender = self.process().and_then(|process| u32::try_from(process).ok());
        let is_lent = |found: &Self| found.record.lender == lender && found.process().is_some();
        Ok(Self::all()?.into_iter().find(|found| lender.is_some() && is_lent(found)))
    }

    /// Returns the loop devices on the drive's file: one, unless others were added manually.
    pub(crate) fn devices(&self) -> Vec<PathBuf> {
        let mut devices = holders::loop_devices(&self.fuse_directory());
        if let Some(RecordedDevice { name, use_number }) = &self.record.device
            && holders::is_on_lost_file(name)
            && holders::use_number(name) == *use_number
        {
            devices.push(Path::new("/dev").join(name));
        }
        devices
    }

    /// Returns the path of the drive; empty if its process was killed before it wrote a record.
    pub(crate) fn path(&self) -> &Path {
        &self.record.path
    }

    pub(crate) fn mountpoint(&self) -> Option<&Path> {
        self.record.mountpoint.as_ref().map(|recorded| recorded.0.as_path())
    }

    /// Returns the mount points of its device, in this process's view.
    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        self.devices().iter().flat_map(|device| holders::mounts_of(device)).collect()
    }

    /// Whether its device is mounted at `path`.
    pub(crate) fn is_mounted_at(&self, path: &Path) -> bool {
        self.mounts().iter().any(|mount| mount == path)
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
    /// Errors of the operating system.
    pub(crate) fn remove(&self) -> Result<()> {
        // After an orderly end no file system is mounted there, and this call fails.
        let _ = unmount(self.fuse_directory(), UnmountFlags::DETACH);
        let cannot = || format!("cannot remove {}", self.directory.display());
        // Not recursively: if the mount were still there, its file would be the drive.
        match fs::remove_dir(self.fuse_directory()) {
            // A process that was killed, or failed, while it started may not have created the
            // directory.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(cannot);
            }
            _ => {}
        }
        fs::remove_dir_all(&self.directory).with_context(cannot)
    }

    /// Opens the log for writing.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn open_log(&self) -> std::io::Result<File> {
        File::options().create(true).append(true).open(self.log_file())
    }
}

/// Returns the directory of a drive, or of a snapshot of it, whose name may be too long for a file.
fn place(path: &Path, snapshot: Option<&str>) -> pumice_drive::base::Result<PathBuf> {
    let suffix = snapshot.map(|name| format!("{:x}.{SUFFIX}", crc64(name.as_bytes())));
    control::place(path, suffix.as_deref().unwrap_or(SUFFIX))
}

/// Returns the path without symbolic links, as far as it can be resolved: a dead mount cannot.
pub(super) fn absolute(path: &Path) -> PathBuf {
    let plain = || std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.canonicalize().unwrap_or_else(|_| plain())
}

#[cfg(test)]
mod tests {
    //! Goal: every path survives the record, and the remains of an attempt can be removed.
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_path_that_is_not_utf_8_survives_the_record() {
        let path = Path::new(OsStr::from_bytes(b"/tmp/not\xffutf-8"));
        let mountpoint = Some(RecordedPath(path.to_owned()));
        let path = path.to_owned();
        let (process, started_ticks, lender, device) = (1, 2, None, None);
        let record = Record { path, process, lender, started_ticks, mountpoint, device };
        let text = serde_json::to_vec(&record).unwrap();
        let read: Record = serde_json::from_slice(&text).unwrap();
        let mountpoint = read.mountpoint.expect("a mount point").0;
        assert_eq!((&read.path, &mountpoint), (&record.path, &record.path));
    }

    /// Guards against a record of a process killed between two steps, which could not be removed.
    #[test]
    fn any_part_of_an_attachment_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        for has_fuse in [false, true] {
            let directory = folder.path().join("left.attached");
            fs::create_dir(&directory).unwrap();
            if has_fuse {
                fs::create_dir(directory.join("fuse")).unwrap();
            }
            let left = Attachment::load(&directory).unwrap();
            assert_eq!(left.process(), None);
            left.remove().unwrap();
            assert!(!directory.exists());
        }
    }
}
