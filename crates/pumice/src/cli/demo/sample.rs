//! A sample of real data: evenly spaced pieces of all files of a folder, as a file system would lay
//! them out.
//!
//! Each byte of the files has the same chance. The pieces are in a mixed order, so that any part of
//! the sample is also a sample.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};

use super::CHUNK_BYTES;
use pumice_drive::base::seed::mix;
use pumice_drive::base::units::BLOCK_BYTES;

/// Bytes of a piece: several frames of a drive. Arbitrary beyond that.
const PIECE_BYTES: u64 = 256 << 10;

/// Maximum number of files to choose from: their names take memory.
const FILES_MAX: usize = 2_000_000;

/// A sample.
pub(super) struct Sample {
    /// The data: whole chunks of [`CHUNK_BYTES`].
    pub(super) bytes: Vec<u8>,
    /// Bytes of all files, each in whole blocks.
    pub(super) files_bytes: u64,
}

/// A file, and its offset in the concatenation of all files.
struct Place {
    path: PathBuf,
    begin: u64,
    bytes: u64,
}

impl Sample {
    /// Draws up to `bytes` bytes of the files below `folder`. Links are not followed, and other
    /// file systems are not entered.
    ///
    /// # Errors
    /// The folder cannot be read or holds less than a chunk; `stop` was set.
    pub(super) fn draw(folder: &Path, bytes: u64, stop: &AtomicBool) -> Result<Self> {
        let places = places(folder, stop)?;
        let files_bytes = places.last().map_or(0, |last| last.begin + blocks_of(last.bytes));
        let count = bytes.min(files_bytes) / PIECE_BYTES;
        let mut order: Vec<u64> = (0..count).collect();
        order.sort_by_key(|index| mix(*index));
        let mut sample = Vec::with_capacity((count * PIECE_BYTES) as usize);
        for index in order {
            if stop.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            let begin = u128::from(files_bytes - PIECE_BYTES) * u128::from(index)
                / u128::from((count - 1).max(1));
            let begin = begin as u64 / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
            let end = sample.len() + PIECE_BYTES as usize;
            read(&places, begin, end, &mut sample);
            sample.resize(end, 0);
        }
        sample.truncate(sample.len() / CHUNK_BYTES * CHUNK_BYTES);
        if sample.is_empty() {
            bail!("{} holds less than 1 MiB of files: name another folder", folder.display());
        }
        Ok(Self { bytes: sample, files_bytes })
    }
}

/// Returns the files below a folder in the order of their names.
fn places(folder: &Path, stop: &AtomicBool) -> Result<Vec<Place>> {
    let cannot_read = || format!("cannot read {}", folder.display());
    let device = fs::metadata(folder).with_context(cannot_read)?.dev();
    fs::read_dir(folder).with_context(cannot_read)?;
    let mut folders = vec![folder.to_owned()];
    let mut places = Vec::new();
    while let Some(folder) = folders.pop() {
        if stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() && found.dev() == device => folders.push(entry.path()),
                Ok(found) if found.is_file() && found.len() > 0 && places.len() < FILES_MAX => {
                    places.push(Place { path: entry.path(), begin: 0, bytes: found.len() });
                }
                _ => {}
            }
        }
    }
    places.sort_by(|a, b| a.path.cmp(&b.path));
    let mut begin = 0;
    for place in &mut places {
        place.begin = begin;
        begin = u64::saturating_add(begin, blocks_of(place.bytes));
    }
    Ok(places)
}

fn blocks_of(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES as u64)
}

/// Appends bytes from offset `begin` of the concatenation of all files, up to a length of `end`.
/// Skips a file that cannot be read.
fn read(places: &[Place], begin: u64, end: usize, sample: &mut Vec<u8>) {
    let first = places.partition_point(|place| place.begin <= begin).saturating_sub(1);
    for (index, Place { path, begin: file_begin, bytes }) in places.iter().enumerate().skip(first) {
        if sample.len() >= end {
            return;
        }
        let Ok(file) = File::open(path) else { continue };
        let offset = if index == first { begin - file_begin } else { 0 };
        let at = sample.len();
        let wanted = bytes.saturating_sub(offset).min((end - at) as u64) as usize;
        sample.resize(at + wanted, 0);
        if file.read_exact_at(&mut sample[at..], offset).is_err() {
            sample.truncate(at);
            continue;
        }
        sample.resize((at + wanted).next_multiple_of(BLOCK_BYTES), 0);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a sample has only whole blocks of the files, in proportion to their sizes, and is the
    //! same each time.
    use super::*;

    fn draw(folder: &Path, bytes: u64) -> Result<Sample> {
        Sample::draw(folder, bytes, &AtomicBool::new(false))
    }

    #[test]
    fn files_are_represented_by_their_bytes() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("b")).unwrap();
        fs::write(folder.path().join("a"), vec![1; 24 << 20]).unwrap();
        fs::write(folder.path().join("b/c"), vec![2; 8 << 20]).unwrap();
        std::os::unix::fs::symlink("b/c", folder.path().join("d")).unwrap();
        let sample = draw(folder.path(), 4 << 20).unwrap();
        assert_eq!((sample.bytes.len(), sample.files_bytes), (4 << 20, 32 << 20));
        let share = |part: &[u8], byte| part.iter().filter(|one| **one == byte).count();
        assert_eq!(share(&sample.bytes, 0), 0, "padding in whole files");
        assert_eq!(share(&sample.bytes, 1), 3 << 20);
        assert!(share(&sample.bytes[..3 << 20], 2) > 0, "the pieces are not mixed");
        assert!(sample.bytes == draw(folder.path(), 4 << 20).unwrap().bytes, "by chance");
    }

    #[test]
    fn small_files_follow_one_another_in_whole_blocks() {
        let folder = tempfile::tempdir().unwrap();
        for index in 0..512u32 {
            fs::write(folder.path().join(format!("{index:03}")), vec![7; 3000]).unwrap();
        }
        let sample = draw(folder.path(), 1 << 30).unwrap();
        assert_eq!((sample.bytes.len(), sample.files_bytes), (2 << 20, 2 << 20));
        for block in sample.bytes.chunks(BLOCK_BYTES) {
            assert!(block[..3000].iter().all(|&byte| byte == 7));
            assert!(block[3000..].iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn too_little_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), vec![1; 1000]).unwrap();
        let Err(error) = draw(folder.path(), 1 << 30) else { panic!("drawn from nothing") };
        assert!(error.to_string().contains("less than 1 MiB"), "{error}");
        let Err(error) = draw(&folder.path().join("a"), 1 << 30) else { panic!("a file") };
        assert!(error.to_string().contains("cannot read"), "{error}");
        let stopped = AtomicBool::new(true);
        assert!(Sample::draw(folder.path(), 1 << 30, &stopped).is_err());
    }
}
