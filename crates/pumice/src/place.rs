//! Drives and their snapshots as arguments: `PATH` and `PATH@NAME`.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use pumice_drive::base::{Error, ErrorKind};

/// A drive, or a snapshot of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// File or block device.
    pub(crate) path: PathBuf,
    pub(crate) snapshot: Option<String>,
}

impl Place {
    /// Reads an argument. An argument that exists as a path is a path, even with an `@` in it;
    /// otherwise the text after the last `@` is the name of a snapshot.
    ///
    /// # Errors
    /// A name that is not UTF-8, or that is not valid for a snapshot.
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

/// Returns the error for a drive at `path` that cannot be opened, with advice; if `path` names a
/// snapshot of a drive, with the commands that accept one.
pub(crate) fn cannot_open(path: &Path, error: io::Error) -> Error {
    let shown = path.display();
    let place = Place::of(path).ok().filter(|place| place.snapshot.is_some());
    if place.is_some_and(|place| place.path.exists()) {
        let what = format!(
            "{shown} names a snapshot, which extract, check, diff, scan, serve and attach \
             --read-only read"
        );
        return Error::os(what, error);
    }
    advise(path, Error::os(format!("cannot open {shown}"), error))
}

/// Adds advice to an error of opening the drive at `path`, if there is no file.
pub(crate) fn advise(path: &Path, error: Error) -> Error {
    if error.kind() != ErrorKind::NotFound {
        return error;
    }
    let what = format!(
        "cannot open {}: no such file or device: check the path, or create a drive with `pumice \
         create`",
        path.display()
    );
    Error::new(ErrorKind::NotFound, what)
}

#[cfg(test)]
mod tests {
    //! Goal: every existing path is read as a path, and the text after it as a name; an error of
    //! opening one contains advice.
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

    #[test]
    fn an_error_of_opening_names_a_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let drive = directory.path().join("drive.pumice");
        let cannot = |path: &Path, kind: io::ErrorKind| {
            let error = cannot_open(path, kind.into());
            (error.kind(), error.to_string())
        };
        let (kind, said) = cannot(&drive, io::ErrorKind::NotFound);
        assert_eq!(kind, ErrorKind::NotFound);
        assert!(said.ends_with("check the path, or create a drive with `pumice create`"), "{said}");
        let (kind, said) = cannot(&drive, io::ErrorKind::PermissionDenied);
        assert_eq!(kind, ErrorKind::PermissionDenied);
        assert_eq!(said, format!("cannot open {}", drive.display()));
        std::fs::write(&drive, "").unwrap();
        let snapshot = directory.path().join("drive.pumice@nightly");
        let (_, said) = cannot(&snapshot, io::ErrorKind::NotFound);
        assert!(said.contains("names a snapshot"), "{said}");
    }
}
