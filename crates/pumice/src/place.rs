//! Drives and their snapshots as arguments: `PATH` and `PATH@NAME`.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use pumice_drive::base::Error;

/// A drive, or a snapshot of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// File or block device.
    pub(crate) path: PathBuf,
    /// The snapshot.
    pub(crate) snapshot: Option<String>,
}

impl Place {
    /// Reads an argument. What exists as a whole is a path, whatever is in it; otherwise what
    /// follows the last `@` is the name of a snapshot.
    ///
    /// # Errors
    /// A name that is no UTF-8, or that no snapshot can have.
    pub(crate) fn of(argument: &Path) -> Result<Self> {
        let whole = || Self { path: argument.to_owned(), snapshot: None };
        let bytes = argument.as_os_str().as_bytes();
        let at = bytes.iter().rposition(|&byte| byte == b'@');
        let Some(at) = at.filter(|_| !argument.exists()) else { return Ok(whole()) };
        let (path, name) = (&bytes[..at], &bytes[at + 1..]);
        if path.is_empty() || name.contains(&b'/') {
            return Ok(whole());
        }
        let name = str::from_utf8(name).context("the name of a snapshot is not UTF-8")?;
        pumice_drive::format::check_snapshot_name(name)?;
        let path = Path::new(OsStr::from_bytes(path)).to_owned();
        Ok(Self { path, snapshot: Some(name.to_owned()) })
    }

    /// Returns the path and the name of the snapshot.
    ///
    /// # Errors
    /// The argument names no snapshot.
    pub(crate) fn snapshot(argument: &Path) -> Result<(PathBuf, String)> {
        match Self::of(argument)? {
            Self { path, snapshot: Some(name) } => Ok((path, name)),
            Self { path, .. } => {
                bail!("{}: name the snapshot: PATH@NAME, without / in NAME", path.display())
            }
        }
    }
}

/// Returns why nothing can be opened at `path`; if it names a snapshot of a drive, which commands
/// take one.
pub(crate) fn cannot_open(path: &Path, error: io::Error) -> Error {
    let place = Place::of(path).ok().filter(|place| place.snapshot.is_some());
    let what = match place.filter(|place| place.path.exists()) {
        None => format!("cannot open {}", path.display()),
        Some(_) => format!(
            "{} names a snapshot, which extract, check, diff, scan, serve and attach --read-only \
             read",
            path.display()
        ),
    };
    Error::os(what, error)
}

#[cfg(test)]
mod tests {
    //! Goal: every path stays one, and what follows it is a name.
    use super::*;

    #[test]
    fn names_follow_the_last_at_sign() {
        let directory = tempfile::tempdir().unwrap();
        let existing = directory.path().join("user@host.pumice");
        std::fs::write(&existing, "").unwrap();
        let with = |suffix: &str| {
            let mut path = existing.clone().into_os_string();
            path.push(suffix);
            Place::of(Path::new(&path))
        };
        assert_eq!(with("").unwrap(), Place { path: existing.clone(), snapshot: None });
        let named = Place { path: existing.clone(), snapshot: Some("nightly".into()) };
        assert_eq!(with("@nightly").unwrap(), named);
        assert!(with("@").is_err(), "an empty name");
        assert!(with("@-f").is_err(), "an option");
        let other = Place::of(Path::new("/a@b/drive")).unwrap();
        assert_eq!(other, Place { path: "/a@b/drive".into(), snapshot: None });
        assert!(Place::snapshot(&existing).is_err());
    }
}
