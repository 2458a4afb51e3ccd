//! The files that a scan skips, with the reasons.

use std::io;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of skipped files that are listed by name.
const EXAMPLES_MAX: usize = 10;

/// Files that were found but not scanned, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Passed {
    /// Symbolic links.
    pub links: u64,
    /// Sockets, pipes, and devices in folders.
    pub special_files: u64,
    /// Folders on other file systems.
    pub other_file_systems: u64,
    /// Additional names of files that have already been found.
    pub further_names: u64,
    /// Files without data.
    pub empty_files: u64,
    /// Bytes of holes.
    pub hole_bytes: u64,
    /// Files and folders that could not be read.
    pub unreadable: u64,
    /// Files that had vanished or become shorter by the time they were read.
    pub changed: u64,
    /// Some of the unreadable and changed files, with the reasons.
    pub examples: Vec<String>,
}

impl Passed {
    /// Counts a file that could not be read.
    pub(super) fn failed(&mut self, path: &Path, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof => self.changed += 1,
            _ => self.unreadable += 1,
        }
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(format!("{}: {error}", path.display()));
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.links += other.links;
        self.special_files += other.special_files;
        self.other_file_systems += other.other_file_systems;
        self.further_names += other.further_names;
        self.empty_files += other.empty_files;
        self.hole_bytes += other.hole_bytes;
        self.unreadable += other.unreadable;
        self.changed += other.changed;
        let room = EXAMPLES_MAX - self.examples.len().min(EXAMPLES_MAX);
        self.examples.extend(other.examples.iter().take(room).cloned());
    }
}
