//! Finds the process that has locked a drive, so that an error can name it.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{Uid, User};
use pumice_drive::base::{Error, ErrorKind};

/// A process that has locked a file.
pub(crate) struct Holder {
    process: u32,
    /// Whether no other process can open it, not even for reading.
    is_exclusive: bool,
    name: String,
    /// Its user, if that is not the user of this process.
    foreign_user: Option<String>,
}

impl Holder {
    /// Returns the process that has locked the file or device at `path`; `None` if there is none,
    /// or it is not visible from here, for example from another container.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let (device, inode) = (metadata.dev(), metadata.ino());
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let file = format!("{major:02x}:{minor:02x}:{inode}");
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let (process, is_exclusive) = locks.lines().find_map(|line| owner(line, &file))?;
        let place = format!("/proc/{process}");
        let name = fs::read_to_string(format!("{place}/comm")).ok()?.trim().to_owned();
        let user = Uid::from_raw(fs::metadata(place).ok()?.uid());
        let is_own = user == Uid::effective();
        let named = || User::from_uid(user).ok().flatten().map(|user| user.name);
        let foreign_user = (!is_own).then(|| named().unwrap_or_else(|| user.to_string()));
        Some(Self { process, is_exclusive, name, foreign_user })
    }

    /// Whether it prevents this process from opening the file.
    pub(crate) fn excludes_others(&self) -> bool {
        self.is_exclusive && self.process != std::process::id()
    }

    /// Returns the error for an attempt to use the drive at `path`.
    pub(crate) fn refusal(&self, path: &Path) -> Error {
        let next = match self.foreign_user {
            Some(_) => "try again as that user, or with sudo",
            None => "wait until it ends, or stop it",
        };
        Error::new(ErrorKind::Busy, format!("{} is in use by {self}: {next}", path.display()))
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.process, self.name)?;
        match &self.foreign_user {
            Some(user) => write!(f, " of user {user}"),
            None => Ok(()),
        }
    }
}

/// Returns the process of a line of `/proc/locks`, and whether its lock is exclusive, if it has
/// locked `file`, given as `MAJOR:MINOR:INODE`. Lines of processes that wait for a lock have an
/// arrow before the kind.
///
/// Source: proc_locks(5).
fn owner(line: &str, file: &str) -> Option<(u32, bool)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    match fields[..] {
        [_, "FLOCK", _, mode, process, locked, ..] if locked == file => {
            Some((process.parse().ok()?, mode == "WRITE"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the holder of a lock is found, and no other process.
    use super::*;

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let file = "fe:00:1064";
        assert_eq!(
            owner("1: FLOCK  ADVISORY  WRITE 3204 fe:00:1064 0 EOF", file),
            Some((3204, true))
        );
        assert_eq!(owner("1: FLOCK  ADVISORY  READ 3 fe:00:1064 0 EOF", file), Some((3, false)));
        for other in [
            "",
            "1: FLOCK  ADVISORY  WRITE 3204 fe:00:1065 0 EOF",
            "1: -> FLOCK  ADVISORY  WRITE 3204 fe:00:1064 0 EOF",
            "1: POSIX  ADVISORY  WRITE 3204 fe:00:1064 0 EOF",
            "1: FLOCK  ADVISORY  WRITE -1 fe:00:1064 0 EOF",
        ] {
            assert_eq!(owner(other, file), None, "{other}");
        }
    }

    #[test]
    fn this_process_is_the_holder_of_its_locks() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert!(Holder::of(file.path()).is_none());
        file.as_file().lock().expect("a lock");
        let holder = Holder::of(file.path()).expect("a holder");
        assert!(holder.is_exclusive && !holder.excludes_others());
        assert_eq!((holder.process, holder.foreign_user), (std::process::id(), None));
    }
}
