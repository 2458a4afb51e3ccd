//! The directory for sockets and records of running drives, and the names in it.
//!
//! | user | directory |
//! |---|---|
//! | any | `PUMICE_RUNTIME_DIR`, if it is set; nothing else counts then |
//! | root | `/run/pumice`; a client also tries those of services, `/run/pumice-NAME/control` |
//! | others | `pumice` in `/run/user/UID` or else in `XDG_RUNTIME_DIR`; else `/tmp/pumice-UID` |
//!
//! Root's directory does not depend on the environment, which differs between a login, sudo and a
//! service. For the same reason a client of another user tries each of the last three.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::objects::BucketPlace;
use crate::place::cannot_open;
use pumice_drive::base::checksum::crc64;
use pumice_drive::base::{Error, ErrorKind, Result};

/// Suffix of the control sockets.
pub(super) const SOCKET_SUFFIX: &str = "sock";

/// The variable that names the directory, for services and for tests.
const VARIABLE: &str = "PUMICE_RUNTIME_DIR";

/// The directory in which only root creates directories.
const RUN: &str = "/run";

/// A directory in which a client may look for a server.
pub(super) struct Found {
    pub(super) directory: PathBuf,
    /// The only user who can enter it; its servers run as this user.
    pub(super) owner: u32,
}

/// Returns the path of the control socket of a drive.
///
/// # Errors
/// Errors of [`place`].
pub(super) fn socket_path(drive: &Path) -> Result<PathBuf> {
    place(drive, SOCKET_SUFFIX)
}

/// Returns the name of the control socket of a drive in any of the directories.
///
/// # Errors
/// Errors of [`place`].
pub(super) fn socket_name(drive: &Path) -> Result<String> {
    name(drive, SOCKET_SUFFIX)
}

/// Returns the directories that exist and may contain the socket of a server, most likely first;
/// for a directory that other users could enter, returns the error instead.
pub(super) fn existing() -> Vec<Result<Found>> {
    let user = geteuid();
    let mut found: Vec<_> = candidates()
        .into_iter()
        .filter_map(|directory| {
            let metadata = fs::symlink_metadata(&directory).ok()?;
            let checked = check_private(&directory, &metadata, user.as_raw());
            Some(checked.map(|()| Found { directory, owner: user.as_raw() }))
        })
        .collect();
    if user.is_root() && std::env::var_os(VARIABLE).is_none() {
        found.extend(services().into_iter().map(Ok));
    }
    found
}

/// Returns the directories of services that run as other users.
fn services() -> Vec<Found> {
    let Ok(entries) = fs::read_dir(RUN) else { return Vec::new() };
    let directories = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let is_service = entry.file_name().to_str()?.starts_with("pumice-");
        let directory = is_service.then(|| entry.path().join("control"))?;
        let metadata = fs::symlink_metadata(&directory).ok()?;
        let owner = metadata.uid();
        check_private(&directory, &metadata, owner).ok()?;
        Some(Found { directory, owner })
    });
    directories.collect()
}

/// Returns a path in the directory of [`private_directory`] for a file that belongs to a drive;
/// every path to the drive leads to the same one.
///
/// # Errors
/// `NotFound` if there is no file at `drive`.
pub(crate) fn place(drive: &Path, suffix: &str) -> Result<PathBuf> {
    let name = name(drive, suffix)?;
    Ok(directory().join(name))
}

fn name(drive: &Path, suffix: &str) -> Result<String> {
    if let Ok(Some(place)) = BucketPlace::of(drive) {
        return Ok(format!("bucket-{:x}.{suffix}", crc64(place.to_string().as_bytes())));
    }
    let metadata = fs::metadata(drive).map_err(|error| cannot_open(drive, error))?;
    Ok(if metadata.file_type().is_block_device() {
        format!("device-{:x}.{suffix}", metadata.rdev())
    } else {
        format!("{:x}-{:x}.{suffix}", metadata.dev(), metadata.ino())
    })
}

/// Returns the directory for sockets and records of running drives. It is created if it does not
/// exist, and accessible only to the user.
///
/// # Errors
/// It cannot be created, or other users could enter it.
pub(crate) fn private_directory() -> Result<PathBuf> {
    let directory = directory();
    make_private(&directory)?;
    Ok(directory)
}

fn directory() -> PathBuf {
    candidates().into_iter().next().expect("there is always a last resort")
}

/// Returns the directories of this user, first the one for a new server.
fn candidates() -> Vec<PathBuf> {
    let user = geteuid().as_raw();
    candidates_of(user, std::env::var_os(VARIABLE), std::env::var_os("XDG_RUNTIME_DIR"))
}

fn candidates_of(user: u32, own: Option<OsString>, session: Option<OsString>) -> Vec<PathBuf> {
    if let Some(directory) = own.filter(|directory| !directory.is_empty()) {
        return vec![directory.into()];
    }
    if user == 0 {
        return vec![Path::new(RUN).join("pumice")];
    }
    let login = Path::new(RUN).join("user").join(user.to_string());
    // A directory that others can write, or that sudo or su has left in the environment, is not
    // used.
    let is_own = |directory: &PathBuf| {
        let found = fs::metadata(directory);
        found.is_ok_and(|found| found.uid() == user && found.mode() & 0o022 == 0)
    };
    let parents = [Some(login), session.map(PathBuf::from)].into_iter().flatten();
    let mut directories: Vec<_> =
        parents.filter(is_own).map(|directory| directory.join("pumice")).collect();
    directories.push(format!("/tmp/pumice-{user}").into());
    directories.dedup();
    directories
}

/// Creates a directory that only its owner can enter, or checks that an existing one is private.
fn make_private(directory: &Path) -> Result<()> {
    let cannot = |error| Error::os(format!("cannot use {}", directory.display()), error);
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(cannot(error));
        }
        _ => {}
    }
    let metadata = fs::symlink_metadata(directory).map_err(cannot)?;
    check_private(directory, &metadata, geteuid().as_raw())
}

fn check_private(directory: &Path, metadata: &Metadata, user: u32) -> Result<()> {
    if metadata.is_dir() && metadata.uid() == user && metadata.mode() & 0o077 == 0 {
        return Ok(());
    }
    let what = format!("{} is not a private directory of this user", directory.display());
    Err(Error::new(ErrorKind::PermissionDenied, what))
}

#[cfg(test)]
mod tests {
    //! Goal: a directory of other users is never used, and root has only one.
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn root_has_one_directory_in_any_environment() {
        let session = Some("/run/user/0".into());
        assert_eq!(candidates_of(0, None, session), [Path::new("/run/pumice")]);
        assert_eq!(candidates_of(0, Some("/a".into()), None), [Path::new("/a")]);
        assert_eq!(candidates_of(0, Some("".into()), None), [Path::new("/run/pumice")]);
    }

    #[test]
    fn a_session_s_directory_is_used_if_it_is_the_user_s_own() {
        // No logged-in user has this number.
        const STRANGER: u32 = 65_533;
        let folder = tempfile::tempdir().unwrap();
        let user = fs::metadata(folder.path()).unwrap().uid();
        let of = |user| candidates_of(user, None, Some(folder.path().into()));
        let last = PathBuf::from(format!("/tmp/pumice-{STRANGER}"));
        assert_eq!(of(STRANGER), [last], "a directory of user {user}");
        if user != 0 {
            assert!(of(user).contains(&folder.path().join("pumice")));
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
            assert!(!of(user).contains(&folder.path().join("pumice")), "open to others");
        }
    }
}
