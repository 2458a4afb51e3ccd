//! Checks whether the path with which a medium was opened still leads to it.
//!
//! A file that is deleted while it is open continues to work, and is lost when it is closed. A path
//! lookup may block, on a network file system for minutes, so another thread performs it; the
//! medium only reads the result.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use rustix::fd::OwnedFd;

use super::FileKind;

/// Checks, on any thread, whether the path of an open medium still leads to it.
#[derive(Debug)]
pub struct PathWatch {
    /// Gone once the medium is closed.
    file: Weak<OwnedFd>,
    path: PathBuf,
    is_device: bool,
    found: Arc<Found>,
}

/// The result of the last check.
#[derive(Debug, Default)]
pub(super) struct Found(AtomicU8);

/// Values of [`Found`].
const THERE: u8 = 0;
const ELSEWHERE: u8 = 1;
const DELETED: u8 = 2;

/// The result of a check of an open medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing has changed since the last check.
    AsBefore,
    /// The path leads to the medium again.
    Back,
    /// The path no longer leads to the medium: a message with the cause and the remedy.
    Lost(String),
}

impl PathWatch {
    pub(super) fn new(
        file: &Arc<OwnedFd>,
        path: &Path,
        kind: FileKind,
        found: &Arc<Found>,
    ) -> Self {
        let (path, is_device) = (path.to_owned(), kind == FileKind::Device);
        Self { file: Arc::downgrade(file), path, is_device, found: found.clone() }
    }

    /// Returns the absolute path with which the medium was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks the path and stores the result for the medium; `None` once the medium is closed. May
    /// block.
    pub fn look(&self) -> Option<Look> {
        let found = {
            let file = self.file.upgrade()?;
            place(&file, &self.path, self.is_device)
        };
        let before = self.found.0.swap(found, Ordering::Relaxed);
        Some(match self.found.what(&self.path, self.is_device) {
            _ if found == before => Look::AsBefore,
            None => Look::Back,
            Some(what) => Look::Lost(what),
        })
    }
}

impl Found {
    /// Returns a message with the cause and the remedy; `None` if the path leads to the medium.
    pub(super) fn what(&self, path: &Path, is_device: bool) -> Option<String> {
        let path = path.display();
        match self.0.load(Ordering::Relaxed) {
            THERE => None,
            ELSEWHERE if is_device => Some(format!(
                "{path} no longer leads to the device of the drive, which was removed or renamed"
            )),
            ELSEWHERE => Some(format!(
                "{path} no longer leads to the file of the drive, which was moved or replaced: \
                 move it back before the process that uses it ends"
            )),
            _ => Some(format!(
                "{path} was deleted while in use: all data is lost when the process that uses it \
                 ends; copy the disk to another drive first"
            )),
        }
    }
}

/// Returns one of the values of [`Found`]: whether the path leads to the file. If that cannot be
/// determined, the path counts as leading there.
fn place(file: &OwnedFd, path: &Path, is_device: bool) -> u8 {
    let Ok(open) = rustix::fs::fstat(file) else { return THERE };
    let leads_there = match fs::metadata(path) {
        Ok(found) if is_device => {
            found.file_type().is_block_device() && found.rdev() == open.st_rdev
        }
        Ok(found) => (found.dev(), found.ino()) == (open.st_dev, open.st_ino),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    };
    match leads_there {
        true => THERE,
        false if open.st_nlink == 0 && !is_device => DELETED,
        false => ELSEWHERE,
    }
}
