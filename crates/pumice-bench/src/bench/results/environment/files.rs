//! The kernel's files, at their usual paths or below a test's folder.

use std::fs;
use std::path::{Path, PathBuf};

/// Maximum length of a text file. The files used here are far shorter.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// The root of `/proc`, `/sys`, `/etc` and `/dev`.
#[derive(Clone, Debug)]
pub(super) struct Files {
    root: PathBuf,
}

impl Files {
    /// Returns the files of this machine.
    pub(super) fn host() -> Self {
        Self { root: "/".into() }
    }

    /// Returns the files below a folder.
    #[cfg(test)]
    pub(super) fn below(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Returns the location of an absolute path.
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the text at an absolute path, trimmed; `None` if it is empty or cannot be read.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        text(&self.path(path))
    }

    /// Returns the entries of a folder, sorted by name; empty if it cannot be read.
    pub(super) fn entries(&self, path: impl AsRef<Path>) -> Vec<PathBuf> {
        entries(&self.path(path))
    }
}

/// Reads a resolved path as [`Files::text`] does.
pub(super) fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty() && text.len() <= TEXT_BYTES_MAX).then(|| text.to_owned())
}

/// Returns the number at the beginning of a file at a resolved path.
pub(super) fn number(path: &Path) -> Option<f64> {
    let number: f64 = text(path)?.split_whitespace().next()?.parse().ok()?;
    number.is_finite().then_some(number)
}

/// Lists a resolved path as [`Files::entries`] does.
pub(super) fn entries(path: &Path) -> Vec<PathBuf> {
    let Ok(found) = fs::read_dir(path) else { return Vec::new() };
    let mut entries: Vec<PathBuf> = found.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries
}
