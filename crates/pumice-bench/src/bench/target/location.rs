//! The location of a target, and whether the bench may write to it.
//!
//! The bench overwrites only its own files unless the user allows more: it refuses a file with
//! contents, and a device or export that is not blank. A device that is mounted or has partitions
//! is always refused, unless it is opened read-only ([`Location::Existing`]).

use std::fmt;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, OFlags, fadvise};

use super::blank::{LABEL_BYTES, too_small};
use super::drive::{DriveFile, DriveTarget};
use super::nbd;
use crate::error::{Error, Result};
use pumice_drive::controller::Info;
use pumice_drive::crypt::Secret;
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::client::Uri;
use pumice_sim::system::SystemSpec;

/// Name of the file that the bench creates in a folder.
const FILE_NAME: &str = "pumice-bench.data";

/// Location of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A file, which need not exist yet.
    File(PathBuf),
    /// A folder, in which the bench creates a file.
    Folder(PathBuf),
    /// A block device.
    Device(PathBuf),
    /// A Pumice drive in a file or device, opened in this process.
    Drive(DriveFile),
    /// An export of an NBD server.
    Nbd(Uri),
    /// A simulated drive: the name or file of its profile, and the settings of its host (see
    /// [`SystemSpec::find`]).
    Sim(String),
    /// A file, device, drive or export that contains data and is only read, possibly while other
    /// programs use it.
    Existing(Box<Location>),
}

/// A target with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender {
    /// The target.
    pub location: Location,
    /// The name of the target in reports; if empty, the location is used.
    pub label: String,
}

impl From<Location> for Contender {
    fn from(location: Location) -> Self {
        Self { location, label: String::new() }
    }
}

/// The mode for opening files and devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Bypass the page cache (O_DIRECT).
    pub direct: bool,
}

fn invalid(what: String) -> Error {
    Error::invalid(what)
}

impl Location {
    /// Parses `drive:PATH`, `sim:PROFILE`, `nbd://HOST[:PORT]/EXPORT`,
    /// `nbd+unix:///EXPORT?socket=PATH`, or the path of a file, folder or block device.
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything else; [`Error::Io`] if the folder of a new file does not
    /// exist; the errors of [`Uri::parse`].
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("drive:") {
            return Ok(Self::Drive(PathBuf::from(path).into()));
        }
        if let Some(profile) = text.strip_prefix("sim:") {
            return Ok(Self::Sim(profile.to_owned()));
        }
        if let Some((scheme, _)) = text.split_once("://") {
            if scheme.to_ascii_lowercase().starts_with("nbd") {
                return Ok(Self::Nbd(Uri::parse(text)?));
            }
            return Err(invalid(format!(
                "unknown kind of target {scheme}://: expected a file, a folder, a block device, \
                 nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, drive:PATH or sim:PROFILE"
            )));
        }
        let path = PathBuf::from(text);
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                return match folder.filter(|folder| !folder.is_dir()) {
                    Some(folder) => {
                        let what = format!("there is no folder {}", folder.display());
                        Err(Error::NotFound(format!("cannot use {text}: {what}: create it first")))
                    }
                    None => Ok(Self::File(path)),
                };
            }
            Err(error) => return Err(Error::io(format!("cannot use {text}"), error)),
        };
        match metadata.file_type() {
            kind if kind.is_dir() => Ok(Self::Folder(path)),
            kind if kind.is_file() => Ok(Self::File(path)),
            kind if kind.is_block_device() => Ok(Self::Device(path)),
            _ => Err(invalid(format!("{text} is not a file, folder or block device"))),
        }
    }

    /// Returns the path to open; exports and simulated drives have none.
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Folder(path) => Some(path.join(FILE_NAME)),
            Self::File(path) | Self::Device(path) => Some(path.clone()),
            Self::Drive(file) => Some(file.path.clone()),
            Self::Nbd(_) | Self::Sim(_) => None,
            Self::Existing(inner) => inner.path(),
        }
    }

    /// Returns the target with the secret that unlocks it if it is an encrypted drive in this
    /// process. Other targets are returned unchanged.
    #[must_use]
    pub fn with_secret(self, secret: Option<Secret>) -> Self {
        match self {
            Self::Drive(file) => Self::Drive(DriveFile { secret, ..file }),
            Self::Existing(inner) => Self::Existing(Box::new(inner.with_secret(secret))),
            Self::File(_) | Self::Folder(_) | Self::Device(_) | Self::Nbd(_) | Self::Sim(_) => self,
        }
    }

    /// Returns a read-only version of a target that already contains data: a nonempty file, a
    /// device, a drive or an export. Other targets, whose data the bench creates, are returned
    /// unchanged.
    #[must_use]
    pub fn as_it_is(self) -> Self {
        match &self {
            Self::File(path) if fs::metadata(path).map_or(0, |it| it.len()) == 0 => self,
            Self::Folder(_) | Self::Sim(_) | Self::Existing(_) => self,
            Self::File(_) | Self::Device(_) | Self::Drive(_) | Self::Nbd(_) => {
                Self::Existing(Box::new(self))
            }
        }
    }

    /// Returns the target itself, also if it is wrapped as a read-only target.
    pub(crate) fn inner(&self) -> &Self {
        match self {
            Self::Existing(inner) => inner,
            _ => self,
        }
    }

    /// Returns whether the target is a drive in this process, which supports only one thread.
    pub fn is_in_process(&self) -> bool {
        matches!(self.inner(), Self::Drive(_) | Self::Sim(_))
    }

    /// Returns whether the contents of the target belong to the bench: its own file, or a simulated
    /// drive.
    pub(crate) fn is_own(&self) -> bool {
        self.is_made() || matches!(self, Self::Sim(_))
    }

    /// Returns the size in bytes of a target that exists before a benchmark: a device, a drive, an
    /// export or any read-only target. Returns `None` for other targets.
    ///
    /// # Errors
    /// The target cannot be opened.
    pub fn whole_bytes(&self) -> Result<Option<u64>> {
        match self.inner() {
            Self::Device(path) => file_bytes(path).map(Some),
            Self::File(path) if matches!(self, Self::Existing(_)) => file_bytes(path).map(Some),
            Self::Drive(file) => drive_info(file, true).map(|info| Some(info.size_bytes)),
            Self::Nbd(uri) => nbd::size_bytes(uri).map(Some),
            Self::File(_) | Self::Folder(_) | Self::Sim(_) | Self::Existing(_) => Ok(None),
        }
    }

    /// Returns whether both locations name the same target. Each simulated drive is created
    /// separately.
    pub fn is_same(&self, other: &Self) -> bool {
        if let Some((one, two)) = self.path().zip(other.path()) {
            let resolved = |path: &Path| fs::canonicalize(path).or(std::path::absolute(path)).ok();
            return resolved(&one) == resolved(&two);
        }
        self.inner() == other.inner() && !matches!(self, Self::Sim(_))
    }

    /// Returns whether the bench creates a file here, which it may truncate and which it removes at
    /// the end.
    pub fn is_made(&self) -> bool {
        matches!(self, Self::File(_) | Self::Folder(_))
    }

    /// Prepares the target for writing `bytes` bytes: checks for existing data, and creates the
    /// file.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] if there is existing data and `destroy` is not set; [`Error::Busy`]
    /// if a device is mounted or has partitions; [`Error::Invalid`] if the target is too small;
    /// [`Error::NoSpace`] if its file system is too small; [`Error::ReadOnly`] for a read-only
    /// export or device. These errors leave the target unchanged. [`Location::Existing`] is never
    /// changed, and must only be large enough.
    pub fn prepare(&self, bytes: u64, destroy: bool) -> Result<()> {
        if !destroy {
            self.check_empty()?;
        }
        match self {
            Self::File(path) => prepare_file(path, bytes),
            Self::Folder(path) => prepare_file(&path.join(FILE_NAME), bytes),
            Self::Device(path) => prepare_device(path, bytes, destroy),
            Self::Nbd(uri) => nbd::prepare(uri, bytes, destroy),
            Self::Existing(_) => match self.whole_bytes()? {
                Some(size_bytes) if size_bytes < bytes => Err(too_small(self, size_bytes, bytes)),
                _ => Ok(()),
            },
            Self::Sim(profile) => {
                let size_bytes = SystemSpec::find(profile)?.size_bytes();
                if size_bytes < bytes {
                    return Err(too_small(self, size_bytes, bytes));
                }
                Ok(())
            }
            Self::Drive(file) => {
                let size_bytes = drive_info(file, false)?.size_bytes;
                if size_bytes < bytes {
                    return Err(too_small(self, size_bytes, bytes));
                }
                Ok(())
            }
        }
    }

    /// Checks that a file is absent or empty, or that a drive contains no data. Does not change the
    /// target.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`]; [`Error::Io`] if the drive does not exist.
    pub fn check_empty(&self) -> Result<()> {
        let path = match self {
            Self::File(path) => path.clone(),
            Self::Folder(path) => path.join(FILE_NAME),
            Self::Drive(file) => {
                let path = &file.path;
                fs::metadata(path)
                    .map_err(|error| Error::io(format!("cannot open {}", path.display()), error))?;
                if drive_info(file, true)?.mapped_bytes > 0 {
                    return Err(Error::AlreadyExists(format!(
                        "the blocks of {} would be overwritten: use --destroy-data to allow it",
                        path.display()
                    )));
                }
                return Ok(());
            }
            Self::Device(_) | Self::Nbd(_) | Self::Existing(_) | Self::Sim(_) => return Ok(()),
        };
        let occupied = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        if occupied > 0 {
            return Err(Error::AlreadyExists(format!(
                "{} holds {occupied} bytes that would be overwritten: specify another file, or use \
                 --destroy-data",
                path.display()
            )));
        }
        Ok(())
    }

    /// Opens the file that [`Location::prepare`] prepared, for reading and writing, or read-only
    /// for [`Location::Existing`].
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Unsupported`] if direct I/O is requested but refused;
    /// [`Error::Invalid`] for an export, which is not a file.
    pub fn open_file(&self, access: Access) -> Result<File> {
        let no_file = || invalid(format!("{self} is not a file or device"));
        let path = self.path().ok_or_else(no_file)?;
        let mut options = File::options();
        options.read(true).write(!matches!(self, Self::Existing(_)));
        if access.direct {
            options.custom_flags(OFlags::DIRECT.bits() as i32);
        }
        options.open(&path).map_err(|error| {
            let refused = access.direct && error.kind() == std::io::ErrorKind::InvalidInput;
            let what = format!("cannot open {}", path.display());
            if refused {
                let what = format!("{what} with direct I/O (O_DIRECT): remove --direct");
                return Error::unsupported_because(what, error);
            }
            Error::io(what, error)
        })
    }

    /// Writes back the page cache of a file or device and drops it, so that the next read accesses
    /// the medium. Pages that other processes have mapped or dirtied remain. Has no effect on
    /// drives, which bypass the page cache, or on exports, whose server has its own cache. A
    /// read-only target is not written back.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn drop_cache(&self) -> Result<()> {
        let path = match self.inner() {
            Self::Drive(_) | Self::Nbd(_) | Self::Sim(_) | Self::Existing(_) => None,
            Self::File(_) | Self::Folder(_) | Self::Device(_) => self.path(),
        };
        let is_read = matches!(self, Self::Existing(_));
        let Some(path) = path else { return Ok(()) };
        // Only clean pages can be dropped, so everything is written back first.
        let dropped = File::open(&path).and_then(|file| {
            if !is_read {
                file.sync_all()?;
            }
            Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
        });
        let what = || format!("cannot drop the page cache of {}", path.display());
        dropped.map_err(|error| Error::io(what(), error))
    }

    /// Truncates a file that the bench created to zero length, so that the next write allocates
    /// space. Has no effect on other targets.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn empty(&self) -> Result<()> {
        let Some(path) = self.made() else { return Ok(()) };
        let emptied = File::options().write(true).open(&path).and_then(|file| file.set_len(0));
        emptied.map_err(|error| Error::io(format!("cannot empty {}", path.display()), error))
    }

    /// Removes a file that the bench created.
    pub fn remove(&self) {
        if let Some(path) = self.made() {
            // The file may already be gone, or the folder may be read-only; neither loses data.
            let _ = fs::remove_file(path);
        }
    }

    /// Returns the file that the bench created.
    fn made(&self) -> Option<PathBuf> {
        self.path().filter(|_| self.is_made())
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drive(file) => write!(f, "drive:{}", file.path.display()),
            Self::Nbd(uri) => uri.fmt(f),
            Self::Sim(profile) => write!(f, "sim:{profile}"),
            Self::Existing(inner) => inner.fmt(f),
            Self::File(path) | Self::Folder(path) | Self::Device(path) => path.display().fmt(f),
        }
    }
}

fn prepare_file(path: &Path, bytes: u64) -> Result<()> {
    let failed = |error| Error::io(format!("cannot write {}", path.display()), error);
    let occupied = fs::metadata(path).map_or(0, |metadata| metadata.len());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let room = rustix::fs::statvfs(folder.unwrap_or(Path::new(".")));
    let room = room.map_err(|errno| failed(errno.into()))?;
    let free = room.f_bavail.saturating_mul(room.f_frsize).saturating_add(occupied);
    if free < bytes {
        return Err(Error::NoSpace(format!(
            "the file system of {} has {free} bytes free, the workload needs {bytes}: use a \
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
            "{} has partitions: specify one of them, or wipe the partition table",
            path.display()
        )));
    }
    // A read-only device can be opened for writing, but refuses every write.
    if fs::read_to_string(entry.join("ro")).is_ok_and(|is_read_only| is_read_only.trim() == "1") {
        return Err(Error::ReadOnly(format!(
            "{0} is read-only: allow writes with blockdev --setrw {0}, or run a test that only \
             reads, such as --preset hd-tune",
            path.display()
        )));
    }
    // O_EXCL on a device fails if the device is mounted or in use by another layer.
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
        return Err(too_small(path.display(), size_bytes, bytes));
    }
    if !destroy && !is_blank(&device, size_bytes).map_err(failed)? {
        return Err(Error::AlreadyExists(format!(
            "{} is not blank: use --destroy-data to overwrite its content",
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

/// Returns the size of a file or device in bytes.
fn file_bytes(path: &Path) -> Result<u64> {
    let size = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
    size.map_err(|error| Error::io(format!("cannot read {}", path.display()), error))
}

/// Opens a drive and returns information about it. With `is_read`, the drive is opened read-only
/// and not changed.
///
/// # Errors
/// The errors of [`DriveTarget::open`].
pub(crate) fn drive_info(file: &DriveFile, is_read: bool) -> Result<Info> {
    let runtime = Runtime::new(Backend::Auto)?;
    let info = runtime.block_on(async {
        let drive = match is_read {
            true => DriveTarget::open_to_read(&runtime, file).await?,
            false => DriveTarget::open(&runtime, file).await?,
        };
        let info = drive.info();
        super::Target::close(&drive).await?;
        Ok(info)
    });
    runtime.drop_tasks();
    info
}
