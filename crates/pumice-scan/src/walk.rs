//! Finds the data to scan: folders with all files below them, files, block devices, exports.
//!
//! The walk follows no symbolic links, enters other file systems only on request, counts a file
//! with several names once, and counts skipped files. Several threads list folders concurrently,
//! because uncached folders take time to read. The order does not matter (see
//! [`super::population`]).
//!
//! Memory is used for the folders that have not been listed yet, and about 16 bytes for each file
//! with several names.

use std::collections::HashSet;
use std::fs::{self, DirEntry, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

use super::options::ScanProgress;
use super::passed::Passed;
use super::population::{Age, Location, Source};
use super::work::locked;
use super::{Error, Result, export, extents, read};
use pumice_drive::base::seed::mix;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::format::SUPERBLOCK_MAGIC;

/// Number of threads that list folders, sufficient to keep a disk busy.
const THREADS: usize = 8;

/// Maximum length of an extension. A longer one is treated as part of the name.
const EXTENSION_MAX: usize = 10;

/// A named path.
pub(super) enum Root {
    Folder(PathBuf),
    /// A file, device or export, ready to be scanned.
    Single(Source),
}

/// Examines the named paths, some of which represent exports. Returns `None` if `stop` was set
/// meanwhile.
///
/// # Errors
/// A path does not exist, cannot be read, contains no data, or was named twice.
pub(super) fn roots(
    named: &[PathBuf],
    exports: &[(PathBuf, String)],
    progress: &dyn ScanProgress,
    stop: &AtomicBool,
) -> Result<Option<Vec<Root>>> {
    refuse_overlaps(named)?;
    let roots = named.iter().enumerate().map(|(index, path)| {
        let known = exports.iter().find(|(named, _)| named == path).map(|(_, uri)| uri.as_str());
        let uri = known.or_else(|| path.to_str().filter(|text| export::is_uri(text)));
        match uri {
            Some(uri) => {
                let shown = path.display().to_string();
                let source = export::source(index, uri, shown, progress, stop)?;
                Ok(source.map(Root::Single))
            }
            None => root(index, path).map(Some),
        }
    });
    roots.collect()
}

fn refuse_overlaps(named: &[PathBuf]) -> Result<()> {
    // A path that does not exist is reported later.
    let whole: Vec<PathBuf> =
        named.iter().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())).collect();
    for (index, path) in whole.iter().enumerate() {
        let others = whole.iter().enumerate().filter(|(other, _)| *other != index);
        for (other, outer) in others {
            if path.starts_with(outer) && (path != outer || other < index) {
                let (inner, outer) = (named[index].display(), named[other].display());
                let what = format!("{inner} is part of {outer}: name it once");
                return Err(invalid(what));
            }
        }
    }
    Ok(())
}

fn root(index: usize, path: &Path) -> Result<Root> {
    let cannot = |source| Error::Io { what: format!("cannot scan {}", path.display()), source };
    let metadata = fs::metadata(path).map_err(cannot)?;
    if metadata.is_dir() {
        fs::read_dir(path).map_err(cannot)?;
        return Ok(Root::Folder(path.to_owned()));
    }
    let kind = metadata.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        let what = "is not a file, folder or block device";
        return Err(invalid(format!("{} {what}", path.display())));
    }
    let mut file = File::open(path).map_err(|error| {
        let refused = kind.is_block_device() && error.kind() == io::ErrorKind::PermissionDenied;
        if refused {
            let what = "only root and the group that owns the device may read it: scan it as root";
            Error::Io { what: format!("cannot scan {}: {what}", path.display()), source: error }
        } else {
            cannot(error)
        }
    })?;
    // The metadata of a block device does not contain its length.
    let bytes = file.seek(SeekFrom::End(0)).map_err(cannot)?;
    let extents = if kind.is_file() { extents::data(&file, bytes).map_err(cannot)? } else { None };
    let source = Source {
        location: Location::File(path.to_owned()),
        name: format!("{index}/"),
        bytes,
        extents,
        extension: extension_of(&path.file_name().unwrap_or_default().to_string_lossy()),
        folder: path.display().to_string(),
        age: Age::Unknown,
        identity: None,
    };
    if source.data_blocks() == 0 {
        return Err(invalid(format!("{} holds no data", path.display())));
    }
    Ok(Root::Single(source))
}

/// Disk images in a container format: the magic number, and a way to access the disk.
const CONTAINERS: [(&[u8], &str); 6] = [
    (&SUPERBLOCK_MAGIC, "a Pumice drive, compressed already: serve it read-only (pumice serve)"),
    (b"QFI\xfb", "a qcow2 image: serve it with qemu-nbd -r"),
    (b"KDMV", "a VMDK image: serve it with qemu-nbd -r"),
    (b"vhdxfile", "a VHDX image: serve it with qemu-nbd -r"),
    (b"conectix", "a VHD image: serve it with qemu-nbd -r"),
    (b"<<< Oracle VM VirtualBox", "a VDI image: serve it with qemu-nbd -r"),
];

/// Returns remarks for readers of the figures, about files that contain a disk in a container
/// format, and about exports whose holes are unknown.
pub(super) fn remarks(roots: &[Root]) -> Vec<String> {
    let singles = roots.iter().filter_map(|root| match root {
        Root::Single(source) => Some(source),
        Root::Folder(_) => None,
    });
    let found = singles.filter_map(|source| match &source.location {
        Location::File(path) => container(path),
        Location::Export(_) if source.extents.is_some() => None,
        Location::Export(uri) => Some(format!(
            "the server of {uri} does not report holes: they count as data, and as zeroes take \
             hardly anything"
        )),
    });
    found.collect()
}

fn container(path: &Path) -> Option<String> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(64).read_to_end(&mut head).ok()?;
    let (_, what) = CONTAINERS.iter().find(|(magic, _)| head.starts_with(magic))?;
    Some(format!("{} is {what}, then scan its export", path.display()))
}

fn invalid(what: String) -> Error {
    Error::InvalidInput(what.into())
}

/// Folders in the queue, and the number of folders being listed.
#[derive(Default)]
struct Waiting {
    folders: Vec<PathBuf>,
    busy: usize,
}

/// A named folder.
#[derive(Clone, Copy)]
pub(super) struct Folder<'a> {
    pub(super) path: &'a Path,
    /// Index among the named paths.
    pub(super) index: usize,
    /// Whether several paths were named, so that folder names start with this one.
    pub(super) one_of_many: bool,
}

/// The walk below one folder.
pub(super) struct Walk<'a> {
    root: &'a Path,
    index: usize,
    /// Whether folder names start with the named path.
    one_of_many: bool,
    crosses: bool,
    now_s: i64,
    stop: &'a AtomicBool,
    progress: &'a dyn ScanProgress,
    waiting: Mutex<Waiting>,
    news: Condvar,
    sink: &'a (dyn Fn(Source) + Sync),
    passed: Mutex<Passed>,
    /// Device and inode numbers of files with several names.
    linked: Mutex<HashSet<(u64, u64)>>,
    /// Device and inode numbers of folders that are mount points.
    mounts: Mutex<HashSet<(u64, u64)>>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        folder: Folder<'a>,
        options: &super::ScanOptions,
        sink: &'a (dyn Fn(Source) + Sync),
        progress: &'a dyn ScanProgress,
        stop: &'a AtomicBool,
    ) -> Self {
        let Folder { path: root, index, one_of_many } = folder;
        Self {
            root,
            index,
            one_of_many,
            crosses: options.crosses,
            now_s: options.now_s,
            stop,
            progress,
            waiting: Mutex::new(Waiting { folders: vec![root.to_owned()], busy: 0 }),
            news: Condvar::new(),
            sink,
            passed: Mutex::default(),
            linked: Mutex::default(),
            mounts: Mutex::default(),
        }
    }

    /// Lists all files, or stops when `stop` is set.
    pub(super) fn run(self) -> Passed {
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| self.work());
            }
        });
        self.passed.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(folder) = self.next() {
            if let Err(error) = self.list(&folder) {
                locked(&self.passed).failed(&folder, &error);
            }
            locked(&self.waiting).busy -= 1;
            self.news.notify_all();
        }
    }

    /// Returns a folder to list; `None` when all folders have been listed.
    fn next(&self) -> Option<PathBuf> {
        let mut waiting = locked(&self.waiting);
        loop {
            if self.stop.load(Ordering::Relaxed) {
                self.news.notify_all();
                return None;
            }
            if let Some(folder) = waiting.folders.pop() {
                waiting.busy += 1;
                return Some(folder);
            }
            if waiting.busy == 0 {
                return None;
            }
            waiting = self.news.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn list(&self, folder: &Path) -> io::Result<()> {
        let (mut files, mut bytes) = (0, 0);
        for entry in fs::read_dir(folder)? {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let entry = entry?;
            match self.entry(&entry) {
                Ok(Some(source)) => {
                    files += 1;
                    bytes += source.bytes;
                    (self.sink)(source);
                }
                Ok(None) => {}
                Err(error) => locked(&self.passed).failed(&entry.path(), &error),
            }
        }
        self.progress.found(files, bytes);
        Ok(())
    }

    /// Returns the file of an entry if it must be scanned. A folder is added to the queue.
    fn entry(&self, entry: &DirEntry) -> io::Result<Option<Source>> {
        let kind = entry.file_type()?;
        if kind.is_dir() {
            if self.is_to_be_listed(&entry.path())? {
                locked(&self.waiting).folders.push(entry.path());
                self.news.notify_one();
            }
            return Ok(None);
        }
        if !kind.is_file() {
            let mut passed = locked(&self.passed);
            if kind.is_symlink() {
                passed.links += 1
            } else {
                passed.special_files += 1
            }
            return Ok(None);
        }
        let metadata = entry.metadata()?;
        if metadata.nlink() > 1 && !locked(&self.linked).insert((metadata.dev(), metadata.ino())) {
            locked(&self.passed).further_names += 1;
            return Ok(None);
        }
        if metadata.len() == 0 {
            locked(&self.passed).empty_files += 1;
            return Ok(None);
        }
        self.source(entry.path(), &metadata).map(Some)
    }

    fn source(&self, path: PathBuf, metadata: &Metadata) -> io::Result<Source> {
        let bytes = metadata.len();
        let extents = if extents::may_have_holes(metadata) {
            let found = read::open_quietly(&path).and_then(|file| extents::data(&file, bytes));
            match found {
                // A draw of the file will fail, which determines the share of unreadable data.
                Err(_) if !extents::is_sparse(metadata) => None,
                found => found?,
            }
        } else {
            None
        };
        let below = path.strip_prefix(self.root).unwrap_or(&path);
        let mut folder = self.root.display().to_string();
        match below.components().next() {
            Some(first) if below.components().nth(1).is_some() => {
                let first = first.as_os_str().to_string_lossy();
                folder = if self.one_of_many { format!("{folder}/{first}") } else { first.into() };
            }
            _ if !self.one_of_many => folder = ".".to_owned(),
            _ => {}
        }
        let source = Source {
            name: format!("{}/{}", self.index, below.to_string_lossy()),
            bytes,
            extents,
            extension: extension_of(&path.file_name().unwrap_or_default().to_string_lossy()),
            folder,
            age: Age::of_seconds(self.now_s - metadata.mtime()),
            identity: (metadata.nlink() > 1).then(|| mix(metadata.ino())),
            location: Location::File(path),
        };
        let holes = source.blocks() - source.data_blocks();
        locked(&self.passed).hole_bytes += holes * BLOCK_BYTES as u64;
        Ok(source)
    }

    /// Returns whether to list a folder: it must be on the file system of the walk, or be permitted
    /// on another one and not have been listed before.
    fn is_to_be_listed(&self, path: &Path) -> io::Result<bool> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let found = statx(CWD, path, flags, StatxFlags::INO | StatxFlags::TYPE)?;
        let is_mount = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        if !is_mount {
            return Ok(true);
        }
        let device = u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor);
        if self.crosses && locked(&self.mounts).insert((device, found.stx_ino)) {
            return Ok(true);
        }
        locked(&self.passed).other_file_systems += 1;
        Ok(false)
    }
}

/// Returns the extension of a file's name in lower case. Trailing numbers are ignored, as in
/// `libc.so.6`.
fn extension_of(name: &str) -> String {
    // The part up to the first dot is the name, including a leading dot.
    let name = name.strip_prefix('.').unwrap_or(name);
    let Some((_, ends)) = name.split_once('.') else { return String::new() };
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let last = ends.rsplit('.').find(|part| !is_number(part));
    let fits = |part: &&str| {
        part.len() <= EXTENSION_MAX && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    last.filter(fits).map_or(String::new(), str::to_ascii_lowercase)
}
