//! Profiles of files, folders and devices.
//!
//! Files are concatenated in name order. Each file is padded with zeroes to a whole unit, as in a
//! file system. Links are not followed. All data is read to find duplicates; evenly spaced windows
//! of it are measured.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::pool::WINDOW_BYTES;
use super::profile::{PROFILE_WINDOWS_MAX, Profile, Profiling, UNIT_BYTES};
use super::repeats::Repeats;
use crate::error::{Error, Result};

/// Maximum number of distinct units in the set of known contents, which needs about 32 MiB.
const UNITS_REMEMBERED_MAX: usize = 1 << 20;

/// Maximum number of files in a folder.
const FILES_MAX: usize = 10_000_000;

impl Profile {
    /// Measures a file, all files below a folder, or a block device.
    ///
    /// # Errors
    /// [`Error::Io`] if the path cannot be read; [`Error::Invalid`] if it contains less than one
    /// window (64 KiB).
    pub fn of_path(path: &Path) -> Result<Self> {
        let mut files = Vec::new();
        find_files(path, &mut files)?;
        let bytes: u64 = files.iter().map(|file| file.1.next_multiple_of(UNIT_BYTES as u64)).sum();
        let mut measuring = Measuring::new(bytes);
        for (path, bytes) in &files {
            measuring.read(path, *bytes)?;
        }
        measuring.finish().ok_or_else(|| {
            let what =
                format!("{} holds less than 64 KiB: too little for a profile", path.display());
            Error::invalid(what)
        })
    }
}

fn cannot_read(path: &Path, error: std::io::Error) -> Error {
    Error::io(format!("cannot read {}", path.display()), error)
}

/// Returns the regular files at or below `path` with their lengths, in name order.
fn find_files(path: &Path, files: &mut Vec<(PathBuf, u64)>) -> Result<()> {
    let metadata = fs::metadata(path).map_err(|error| cannot_read(path, error))?;
    if !metadata.is_dir() {
        // The metadata of a device does not contain its length.
        let length = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
        files.push((path.into(), length.map_err(|error| cannot_read(path, error))?));
        return Ok(());
    }
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).map_err(|error| cannot_read(&folder, error))?;
        for entry in entries {
            let entry = entry.map_err(|error| cannot_read(&folder, error))?;
            let metadata = entry.metadata().map_err(|error| cannot_read(&entry.path(), error))?;
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if metadata.is_file() && metadata.len() > 0 {
                files.push((entry.path(), metadata.len()));
            }
        }
        if files.len() > FILES_MAX {
            let what = format!("{} has more than {FILES_MAX} files", path.display());
            return Err(Error::invalid(what));
        }
    }
    files.sort();
    Ok(())
}

/// A profile under construction.
struct Measuring {
    window: Vec<u8>,
    profiling: Profiling,
    repeats: Repeats,
    windows_read: u64,
    windows_total: u64,
}

impl Measuring {
    fn new(bytes: u64) -> Self {
        Self {
            window: Vec::with_capacity(WINDOW_BYTES),
            profiling: Profiling::default(),
            repeats: Repeats::new(UNITS_REMEMBERED_MAX),
            windows_read: 0,
            windows_total: bytes / WINDOW_BYTES as u64,
        }
    }

    /// Adds `bytes` of a file. If the file has become shorter, the missing bytes count as zeroes.
    fn read(&mut self, path: &Path, bytes: u64) -> Result<()> {
        let mut file = File::open(path).map_err(|error| cannot_read(path, error))?;
        let mut left = bytes;
        while left > 0 {
            let start = self.window.len();
            let take = left.min((WINDOW_BYTES - start) as u64);
            let got = Read::by_ref(&mut file).take(take).read_to_end(&mut self.window);
            got.map_err(|error| cannot_read(path, error))?;
            let filled = (start + take as usize).next_multiple_of(UNIT_BYTES);
            self.window.resize(filled, 0);
            left -= take;
            if filled == WINDOW_BYTES {
                self.end_window();
            }
        }
        Ok(())
    }

    fn end_window(&mut self) {
        for unit in self.window.chunks(UNIT_BYTES) {
            self.repeats.add(unit);
        }
        // Measures each window at which the number of windows read passes a multiple of total /
        // max.
        let share = |read: u64| read * PROFILE_WINDOWS_MAX as u64 / self.windows_total.max(1);
        let all = self.windows_total <= PROFILE_WINDOWS_MAX as u64;
        if all || share(self.windows_read + 1) > share(self.windows_read) {
            self.profiling.add(&self.window);
        }
        self.windows_read += 1;
        self.window.clear();
    }

    fn finish(self) -> Option<Profile> {
        let bytes = self.windows_read * WINDOW_BYTES as u64;
        self.profiling.finish(self.repeats.again(), bytes)
    }
}
