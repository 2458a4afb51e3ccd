//! The kernel's files, at their usual places or below a test's folder.

use std::fs;
use std::path::{Path, PathBuf};

/// Longest text that is read; none of the files used here has more than a fraction of it.
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

    /// Returns the place of an absolute path.
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the text at an absolute path, without blanks at its ends; `None` if it is empty or
    /// cannot be read.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        text(&self.path(path))
    }

    /// Returns the entries of a folder, by name; none if it cannot be read.
    pub(super) fn entries(&self, path: impl AsRef<Path>) -> Vec<PathBuf> {
        entries(&self.path(path))
    }
}

/// Returns [`Files::text`] of a resolved path.
pub(super) fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty() && text.len() <= TEXT_BYTES_MAX).then(|| text.to_owned())
}

/// Returns the number at the beginning of a file of a resolved path.
pub(super) fn number(path: &Path) -> Option<f64> {
    let number: f64 = text(path)?.split_whitespace().next()?.parse().ok()?;
    number.is_finite().then_some(number)
}

/// Returns [`Files::entries`] of a resolved path.
pub(super) fn entries(path: &Path) -> Vec<PathBuf> {
    let Ok(found) = fs::read_dir(path) else { return Vec::new() };
    let mut entries: Vec<PathBuf> = found.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries
}
