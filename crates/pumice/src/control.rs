//! The control socket: how other commands reach a drive that a server has locked.
//!
//! There is one Unix socket for each served drive, named after the device and inode of the drive's
//! file, so that any path to the drive leads to it, in a private directory of the user. A client
//! sends one request and receives one or several answers: see `protocol`. `session` is the server's
//! side, `client` the other.

mod client;
mod protocol;
mod session;

use std::fs::{self, DirBuilder, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

pub(crate) use client::{Client, connect, info, snapshot};
pub(crate) use protocol::{Answer, Request};

use crate::watch::Watch;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::controller::Drive;
use pumice_drive::media::Medium;
use pumice_drive::runtime::Runtime;

/// The listening control socket of one drive; its file is removed on drop.
pub(crate) struct ControlSocket {
    socket: Arc<OwnedFd>,
    path: PathBuf,
    /// Device and inode of the socket's file.
    file: (u64, u64),
}

impl ControlSocket {
    /// Listens for requests about the drive at `drive`, which the caller has locked. A socket that
    /// does not answer was left by a server that died, and is replaced.
    ///
    /// # Errors
    /// `Busy` if another server answers, which is possible only if both serve the drive read-only;
    /// the directory or the socket cannot be created.
    pub(crate) fn bind(drive: &Path) -> Result<Self> {
        let path = socket_path(drive)?;
        let cannot = |error| Error::os(format!("cannot listen on {}", path.display()), error);
        private_directory()?;
        if UnixStream::connect(&path).is_ok() {
            let what = "another server of the drive is running";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(cannot(error));
            }
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(cannot)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(cannot)?;
        let metadata = fs::symlink_metadata(&path).map_err(cannot)?;
        let file = (metadata.dev(), metadata.ino());
        Ok(Self { socket: Arc::new(listener.into()), path, file })
    }

    /// Serves requests about `drive`, which has that number in `watch`, forever. The socket's file
    /// may be removed before this ends.
    pub(crate) fn serve<M: Medium + 'static>(
        &self,
        runtime: Runtime,
        drive: Rc<Drive<M, Runtime>>,
        watch: (Rc<Watch>, usize),
    ) -> impl Future<Output = ()> + 'static {
        session::serve(runtime, self.socket.clone(), drive, watch)
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Another read-only server, started at the same moment, may have replaced the file.
        let is_own = |metadata: fs::Metadata| (metadata.dev(), metadata.ino()) == self.file;
        if fs::symlink_metadata(&self.path).is_ok_and(is_own) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns the path of the control socket of a drive.
fn socket_path(drive: &Path) -> Result<PathBuf> {
    place(drive, "sock")
}

/// Returns a path in the directory of [`private_directory`] for something that belongs to a drive;
/// every path to the drive leads to the same one.
///
/// # Errors
/// `NotFound` if there is nothing at `drive`.
pub(crate) fn place(drive: &Path, suffix: &str) -> Result<PathBuf> {
    let metadata = fs::metadata(drive)
        .map_err(|error| Error::os(format!("cannot open {}", drive.display()), error))?;
    let name = if metadata.file_type().is_block_device() {
        format!("device-{:x}.{suffix}", metadata.rdev())
    } else {
        format!("{:x}-{:x}.{suffix}", metadata.dev(), metadata.ino())
    };
    Ok(directory().join(name))
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
    let user = rustix::process::geteuid();
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if !directory.is_empty() => PathBuf::from(directory).join("pumice"),
        _ if user.is_root() => PathBuf::from("/run/pumice"),
        _ => std::env::temp_dir().join(format!("pumice-{}", user.as_raw())),
    }
}

/// Creates a directory that only its owner can enter, or checks that it is one.
fn make_private(directory: &Path) -> Result<()> {
    let cannot = |error| Error::os(format!("cannot use {}", directory.display()), error);
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(cannot(error));
        }
        _ => {}
    }
    let metadata = fs::symlink_metadata(directory).map_err(cannot)?;
    let user = rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || metadata.uid() != user || metadata.mode() & 0o077 != 0 {
        let what = format!("{} is not a private directory of this user", directory.display());
        return Err(Error::new(ErrorKind::PermissionDenied, what));
    }
    Ok(())
}
