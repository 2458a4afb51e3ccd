//! The data of the demo: the files of a folder as one stream, laid out as a file system would.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use pumice_drive::base::checksum::crc64;
use pumice_drive::base::units::BLOCK_BYTES;

/// Bytes of one write of real data.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// The files below a folder, one after another, each starting at a 4 KiB block.
pub(super) struct FileStream {
    folders: Vec<PathBuf>,
    files: Vec<PathBuf>,
    open: Option<File>,
    device: u64,
    left: u64,
    checksums: Vec<u64>,
}

impl FileStream {
    /// Returns a stream of up to `bytes` bytes of the files below `folder`, ordered by name. Links
    /// are not followed, and other file systems are not entered.
    pub(super) fn new(folder: &Path, bytes: u64) -> Result<Self> {
        let cannot_read = || format!("cannot read {}", folder.display());
        let device = fs::metadata(folder).with_context(cannot_read)?.dev();
        fs::read_dir(folder).with_context(cannot_read)?;
        let folders = vec![folder.to_owned()];
        let (files, checksums) = (Vec::new(), Vec::new());
        Ok(Self { folders, files, open: None, device, left: bytes, checksums })
    }

    /// Fills `chunk` with the next bytes, and with zeroes after the last file. Stores the checksum
    /// of the chunk. Returns false if there were no bytes left.
    pub(super) fn fill(&mut self, chunk: &mut [u8]) -> bool {
        let mut at = 0;
        while at < chunk.len() && self.left > 0 {
            let Some(file) = self.next_file() else { break };
            match file.read(&mut chunk[at..]) {
                Ok(count) if count > 0 => at += count,
                _ => {
                    self.open = None;
                    let end = at.next_multiple_of(BLOCK_BYTES);
                    chunk[at..end].fill(0);
                    at = end;
                }
            }
        }
        chunk[at..].fill(0);
        self.left = self.left.saturating_sub(at as u64);
        if at > 0 {
            self.checksums.push(crc64(chunk));
        }
        at > 0
    }

    /// Returns the CRC-64 of each chunk so far.
    pub(super) fn checksums(&self) -> &[u64] {
        &self.checksums
    }

    /// Returns the current file, or the next one. Files that cannot be opened are skipped.
    fn next_file(&mut self) -> Option<&mut File> {
        while self.open.is_none() {
            match self.files.pop() {
                Some(path) => self.open = File::open(path).ok(),
                None if self.next_folder() => {}
                None => return None,
            }
        }
        self.open.as_mut()
    }

    /// Lists the next folder. Returns false if there is none.
    fn next_folder(&mut self) -> bool {
        let Some(folder) = self.folders.pop() else { return false };
        let mut entries: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().collect();
        // Files are taken from the end.
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.file_name()));
        for entry in entries {
            match entry.metadata() {
                Ok(found) if found.is_dir() && found.dev() == self.device => {
                    self.folders.push(entry.path());
                }
                Ok(found) if found.is_file() && found.len() > 0 => self.files.push(entry.path()),
                _ => {}
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    //! Goal: files come out whole and aligned.
    use super::*;

    #[test]
    fn files_follow_one_another() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("b")).unwrap();
        fs::write(folder.path().join("a"), vec![1; 5000]).unwrap();
        fs::write(folder.path().join("b/c"), vec![2; 10]).unwrap();
        let mut stream = FileStream::new(folder.path(), 1 << 30).unwrap();
        let mut chunk = vec![9; 32768];
        assert!(stream.fill(&mut chunk));
        assert!(chunk[..5000].iter().all(|&byte| byte == 1));
        assert!(chunk[5000..8192].iter().all(|&byte| byte == 0));
        assert_eq!(chunk[8192..8203], [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0]);
        assert!(chunk[8203..].iter().all(|&byte| byte == 0));
        assert_eq!(stream.checksums(), [crc64(&chunk)]);
        assert!(!stream.fill(&mut chunk));
    }

    #[test]
    fn files_come_by_name_up_to_the_limit_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        for name in [3u8, 1, 2] {
            fs::write(folder.path().join(name.to_string()), [name; BLOCK_BYTES]).unwrap();
        }
        std::os::unix::fs::symlink("1", folder.path().join("0")).unwrap();
        std::os::unix::fs::symlink(".", folder.path().join("4")).unwrap();
        let mut stream = FileStream::new(folder.path(), 1 << 30).unwrap();
        let mut chunk = vec![9; 8 * BLOCK_BYTES];
        assert!(stream.fill(&mut chunk));
        let first_bytes: Vec<u8> = chunk.chunks(BLOCK_BYTES).map(|block| block[0]).collect();
        assert_eq!(first_bytes, [1, 2, 3, 0, 0, 0, 0, 0]);
        let mut stream = FileStream::new(folder.path(), BLOCK_BYTES as u64).unwrap();
        assert!(stream.fill(&mut chunk[..BLOCK_BYTES]));
        assert!(!stream.fill(&mut chunk[..BLOCK_BYTES]), "more than was asked for");
    }
}
