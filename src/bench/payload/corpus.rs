//! Profiles of files, folders and devices.
//!
//! Files are put one behind the other in the order of their names, each filled up with zeroes to a
//! whole unit, as a file system lays them out. Links are not followed. All of it is read, for the
//! duplicates; evenly spaced windows of it are measured.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::pool::WINDOW_BYTES;
use super::profile::{PROFILE_WINDOWS_MAX, Profile, UNIT_BYTES, WindowMeter, WindowProfile};
use super::saving::Saving;
use crate::base::{Error, ErrorKind, Result, checksum};

/// Different units remembered at most, in about 32 MiB; beyond that a fraction of them stands for
/// all.
const UNITS_REMEMBERED_MAX: usize = 1 << 20;

/// Files of a folder at most.
const FILES_MAX: usize = 10_000_000;

impl Profile {
    /// Measures a file, all files below a folder, or a block device.
    ///
    /// # Errors
    /// It cannot be read, or holds less than one window (64 KiB): `InvalidInput`.
    pub fn of_path(path: &Path) -> Result<Self> {
        let mut files = Vec::new();
        find_files(path, &mut files)?;
        let bytes: u64 = files.iter().map(|file| file.1.next_multiple_of(UNIT_BYTES as u64)).sum();
        let mut measuring = Measuring::new(bytes);
        for (path, bytes) in &files {
            measuring.read(path, *bytes)?;
        }
        measuring.finish().ok_or_else(|| {
            let what = format!("{} holds less than 64 KiB: too little to profile", path.display());
            Error::new(ErrorKind::InvalidInput, what)
        })
    }
}

fn cannot_read(path: &Path, error: std::io::Error) -> Error {
    Error::os(format!("cannot read {}", path.display()), error)
}

/// Regular files at or below `path` with their lengths, in the order of their names.
fn find_files(path: &Path, files: &mut Vec<(PathBuf, u64)>) -> Result<()> {
    let metadata = fs::metadata(path).map_err(|error| cannot_read(path, error))?;
    if !metadata.is_dir() {
        // A device has no length of its own.
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
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
    }
    files.sort();
    Ok(())
}

/// A profile in the making.
struct Measuring {
    window: Vec<u8>,
    windows: Vec<WindowProfile>,
    meter: WindowMeter,
    seen: Seen,
    windows_read: u64,
    windows_total: u64,
}

impl Measuring {
    fn new(bytes: u64) -> Self {
        Self {
            window: Vec::with_capacity(WINDOW_BYTES),
            windows: Vec::new(),
            meter: WindowMeter::new(),
            seen: Seen::default(),
            windows_read: 0,
            windows_total: bytes / WINDOW_BYTES as u64,
        }
    }

    /// Takes `bytes` of a file; what is missing by now counts as zeroes.
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
            self.seen.add(unit);
        }
        // The windows whose number crosses a multiple of total / max.
        let share = |read: u64| read * PROFILE_WINDOWS_MAX as u64 / self.windows_total.max(1);
        let all = self.windows_total <= PROFILE_WINDOWS_MAX as u64;
        if (all || share(self.windows_read + 1) > share(self.windows_read))
            && self.windows.len() < PROFILE_WINDOWS_MAX
        {
            self.windows.push(self.meter.measure(&self.window));
        }
        self.windows_read += 1;
        self.window.clear();
    }

    fn finish(self) -> Option<Profile> {
        let bytes = self.windows_read * WINDOW_BYTES as u64;
        (!self.windows.is_empty()).then(|| Profile::new(self.windows, self.seen.again(), bytes))
    }
}

/// Which units have been seen. Remembers only hashes, and of them only those that end in enough
/// zero bits to fit the limit: a fair sample of the different contents, with all their repetitions.
///
/// Source of the method: Gibbons, "Distinct Sampling for Highly-Accurate Answers to Distinct Values
/// Queries and Event Reports", 2001.
#[derive(Default)]
struct Seen {
    times: HashMap<u64, u64>,
    zero_bits: u32,
    units: u64,
    fills: u64,
}

impl Seen {
    fn add(&mut self, unit: &[u8]) {
        self.units += 1;
        if crate::codec::fill_byte(unit).is_some() {
            self.fills += 1;
            return;
        }
        let hash = super::pool::mix(checksum::crc64(unit));
        if hash.trailing_zeros() < self.zero_bits {
            return;
        }
        *self.times.entry(hash).or_default() += 1;
        while self.times.len() > UNITS_REMEMBERED_MAX {
            self.zero_bits += 1;
            self.times.retain(|hash, _| hash.trailing_zeros() >= self.zero_bits);
        }
    }

    /// The share of units that had been seen before, fills not among them.
    fn again(&self) -> Saving {
        let times: u64 = self.times.values().sum();
        let again = Saving::of(times, self.times.len() as u64);
        let not_fills = (self.units - self.fills) as f64 / self.units.max(1) as f64;
        Saving::from_fraction(again.fraction() * not_fills)
    }
}
