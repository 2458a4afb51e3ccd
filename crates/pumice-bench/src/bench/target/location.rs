//! What the user named as a target, and whether the bench may write there.
//!
//! Nothing is ever overwritten that the bench did not make, unless the user said so: a file that
//! holds something and a device or export that is not blank are refused, and a device that is
//! mounted or has partitions is refused always.

use std::fmt;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, OFlags, fadvise};

use super::drive::DriveTarget;
use super::nbd;
use crate::error::{Error, Result};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::client::Uri;
use pumice_sim::system::SystemSpec;

/// Name of the file that the bench makes in a folder.
const FILE_NAME: &str = "pumice-bench.data";

/// Bytes at the beginning and end of a device or export that must be zero for it to count as blank:
/// where partition tables, file systems and volume managers have their labels.
pub(super) const LABEL_BYTES: u64 = 1 << 20;

/// A place to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A file, which need not exist yet.
    File(PathBuf),
    /// A folder, in which a file is made.
    Folder(PathBuf),
    /// A block device.
    Device(PathBuf),
    /// A Pumice drive in a file or device, opened in this process.
    Drive(PathBuf),
    /// An export of an NBD server.
    Nbd(Uri),
    /// A simulated drive: the name or file of its profile, and the conditions of its host (see
    /// [`SystemSpec::find`]).
    Sim(String),
}

/// How files and devices are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Around the page cache (`O_DIRECT`).
    pub direct: bool,
}

fn invalid(what: String) -> Error {
    Error::invalid(what)
}

impl Location {
    /// Reads what was typed: `drive:PATH`, `sim:PROFILE`, `nbd://HOST[:PORT]/EXPORT`,
    /// `nbd+unix:///EXPORT?socket=PATH`, or a path whose kind is looked up.
    ///
    /// # Errors
    /// `InvalidInput` for anything that is no file, folder or block device; `NotFound` if the
    /// folder of a new file is not there; those of [`Uri::parse`].
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("drive:") {
            return Ok(Self::Drive(path.into()));
        }
        if let Some(profile) = text.strip_prefix("sim:") {
            return Ok(Self::Sim(profile.to_owned()));
        }
        if let Some((scheme, _)) = text.split_once("://") {
            if scheme.to_ascii_lowercase().starts_with("nbd") {
                return Ok(Self::Nbd(Uri::parse(text)?));
            }
            return Err(invalid(format!(
                "targets of the kind {scheme}:// are not known: give a file, a folder, a block \
                 device, nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, drive:PATH or sim:PROFILE"
            )));
        }
        let path = PathBuf::from(text);
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                if folder.is_some_and(|folder| !folder.is_dir()) {
                    return Err(Error::io(format!("cannot use {text}"), error));
                }
                return Ok(Self::File(path));
            }
            Err(error) => return Err(Error::io(format!("cannot use {text}"), error)),
        };
        match metadata.file_type() {
            kind if kind.is_dir() => Ok(Self::Folder(path)),
            kind if kind.is_file() => Ok(Self::File(path)),
            kind if kind.is_block_device() => Ok(Self::Device(path)),
            _ => Err(invalid(format!("{text} is no file, folder or block device"))),
        }
    }

    /// The path that is opened; an export and a simulated drive have none here.
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Folder(path) => Some(path.join(FILE_NAME)),
            Self::File(path) | Self::Device(path) | Self::Drive(path) => Some(path.clone()),
            Self::Nbd(_) | Self::Sim(_) => None,
        }
    }

    /// Whether the bench makes a file here, which it may empty and removes at the end.
    pub fn is_made(&self) -> bool {
        matches!(self, Self::File(_) | Self::Folder(_))
    }

    /// Makes ready for writing `bytes` bytes: looks whether something would be lost, and makes the
    /// file.
    ///
    /// # Errors
    /// `AlreadyExists` if something is there and `destroy` is not set; `Busy` if a device is
    /// mounted or has partitions; `InvalidInput` if the target is smaller; `NoSpace` if its file
    /// system has too little room; `ReadOnly` if an export is. Nothing is changed then.
    pub fn prepare(&self, bytes: u64, destroy: bool) -> Result<()> {
        match self {
            Self::File(path) => prepare_file(path, bytes, destroy),
            Self::Folder(path) => prepare_file(&path.join(FILE_NAME), bytes, destroy),
            Self::Device(path) => prepare_device(path, bytes, destroy),
            Self::Nbd(uri) => nbd::prepare(uri, bytes, destroy),
            Self::Sim(profile) => {
                let size_bytes = SystemSpec::find(profile)?.size_bytes();
                if size_bytes < bytes {
                    return Err(too_small(self, size_bytes, bytes));
                }
                Ok(())
            }
            Self::Drive(path) => {
                fs::metadata(path)
                    .map_err(|error| Error::io(format!("cannot open {}", path.display()), error))?;
                if !destroy {
                    return Err(Error::AlreadyExists(format!(
                        "the blocks of {} would be overwritten: say --destroy-data if they may",
                        path.display()
                    )));
                }
                let size_bytes = drive_bytes(path)?;
                if size_bytes < bytes {
                    return Err(too_small(self, size_bytes, bytes));
                }
                Ok(())
            }
        }
    }

    /// Opens what [`Location::prepare`] has made ready, for reading and writing.
    ///
    /// # Errors
    /// The operating system's; `Unsupported` if direct I/O is asked for and refused;
    /// `InvalidInput` for an export, which is no file here.
    pub fn open_file(&self, access: Access) -> Result<File> {
        let no_file = || invalid(format!("{self} is not a file or device"));
        let path = self.path().ok_or_else(no_file)?;
        let mut options = File::options();
        options.read(true).write(true);
        if access.direct {
            options.custom_flags(OFlags::DIRECT.bits() as i32);
        }
        options.open(&path).map_err(|error| {
            let refused = access.direct && error.kind() == std::io::ErrorKind::InvalidInput;
            let what = format!("cannot open {}", path.display());
            if refused {
                let what = format!("{what} around the page cache: leave --direct out");
                return Error::unsupported_because(what, error);
            }
            Error::io(what, error)
        })
    }

    /// Writes back what the page cache holds of a file or device and drops it, so that the next read
    /// comes from the medium. What others have mapped or hold dirty meanwhile stays. Nothing is done
    /// for drives, which go around the page cache, and for exports, whose server has its own.
    ///
    /// # Errors
    /// The operating system's.
    pub fn drop_cache(&self) -> Result<()> {
        let path = match self {
            Self::Drive(_) | Self::Nbd(_) | Self::Sim(_) => None,
            Self::File(_) | Self::Folder(_) | Self::Device(_) => self.path(),
        };
        let Some(path) = path else { return Ok(()) };
        // Only clean pages are dropped: everything is written back first.
        let dropped = File::open(&path).and_then(|file| {
            file.sync_all()?;
            Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
        });
        let what = || format!("cannot drop the page cache of {}", path.display());
        dropped.map_err(|error| Error::io(what(), error))
    }

    /// Empties a file that the bench made, so that the next write allocates anew; anything else
    /// stays as it is.
    ///
    /// # Errors
    /// The operating system's.
    pub fn empty(&self) -> Result<()> {
        let Some(path) = self.made() else { return Ok(()) };
        let emptied = File::options().write(true).open(&path).and_then(|file| file.set_len(0));
        emptied.map_err(|error| Error::io(format!("cannot empty {}", path.display()), error))
    }

    /// Removes a file that the bench made.
    pub fn remove(&self) {
        if let Some(path) = self.made() {
            // It may be gone already, or the folder be read-only by now: nothing is lost by it.
            let _ = fs::remove_file(path);
        }
    }

    /// The file that the bench made.
    fn made(&self) -> Option<PathBuf> {
        self.path().filter(|_| self.is_made())
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drive(path) => write!(f, "drive:{}", path.display()),
            Self::Nbd(uri) => uri.fmt(f),
            Self::Sim(profile) => write!(f, "sim:{profile}"),
            Self::File(path) | Self::Folder(path) | Self::Device(path) => path.display().fmt(f),
        }
    }
}

pub(super) fn too_small(location: &Location, size_bytes: u64, bytes: u64) -> Error {
    invalid(format!(
        "{location} has {size_bytes} bytes, the workload needs {bytes}: give a smaller --span"
    ))
}

fn prepare_file(path: &Path, bytes: u64, destroy: bool) -> Result<()> {
    let failed = |error| Error::io(format!("cannot write {}", path.display()), error);
    let occupied = fs::metadata(path).map_or(0, |metadata| metadata.len());
    if occupied > 0 && !destroy {
        return Err(Error::AlreadyExists(format!(
            "{} holds {occupied} bytes that would be overwritten: name another file, or say \
                 --destroy-data",
            path.display()
        )));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let room = rustix::fs::statvfs(folder.unwrap_or(Path::new(".")));
    let room = room.map_err(|errno| failed(errno.into()))?;
    let free = room.f_bavail.saturating_mul(room.f_frsize).saturating_add(occupied);
    if free < bytes {
        return Err(Error::NoSpace(format!(
            "the file system of {} has {free} bytes free, the workload needs {bytes}: give a \
                 smaller --span",
            path.display()
        )));
    }
    let file = File::options().write(true).create(true).truncate(true).open(path);
    file.map(drop).map_err(failed)
}

fn prepare_device(path: &Path, bytes: u64, destroy: bool) -> Result<()> {
    let failed = |error| Error::io(format!("cannot use {}", path.display()), error);
    let number = fs::metadata(path).map_err(failed)?.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let entry = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let partitions = fs::read_dir(&entry).into_iter().flatten().flatten();
    if partitions.into_iter().any(|child| child.path().join("partition").exists()) {
        return Err(Error::Busy(format!(
            "{} has partitions: name one of them, or wipe the table",
            path.display()
        )));
    }
    // O_EXCL on a device: refused while it is mounted or part of something that is in use.
    let exclusive =
        File::options().read(true).write(true).custom_flags(OFlags::EXCL.bits() as i32).open(path);
    let mut device = exclusive.map_err(|error| match error.kind() {
        std::io::ErrorKind::ResourceBusy => Error::Busy(format!(
            "{} is mounted or in use by the system: nothing was written",
            path.display()
        )),
        _ => failed(error),
    })?;
    let size_bytes = device.seek(SeekFrom::End(0)).map_err(failed)?;
    if size_bytes < bytes {
        return Err(too_small(&Location::Device(path.into()), size_bytes, bytes));
    }
    if !destroy && !is_blank(&device, size_bytes).map_err(failed)? {
        return Err(Error::AlreadyExists(format!(
            "{} is not blank: say --destroy-data if everything on it may be lost",
            path.display()
        )));
    }
    Ok(())
}

fn is_blank(device: &File, size_bytes: u64) -> std::io::Result<bool> {
    let mut label = vec![0; LABEL_BYTES.min(size_bytes) as usize];
    for offset in [0, size_bytes - label.len() as u64] {
        device.read_exact_at(&mut label, offset)?;
        if label.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Bytes of the disk that a drive shows.
fn drive_bytes(path: &Path) -> Result<u64> {
    let runtime = Runtime::new(Backend::Auto)?;
    let size_bytes = runtime.block_on(async {
        let drive = DriveTarget::open(&runtime, path).await?;
        let size_bytes = drive.size_bytes();
        super::Target::close(&drive).await?;
        Ok(size_bytes)
    });
    runtime.drop_tasks();
    size_bytes
}
