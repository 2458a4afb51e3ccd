//! The control socket: how other commands reach a drive that a server holds locked.
//!
//! One Unix socket a served drive, named after the file's device and inode so that any path to it
//! finds it, in a directory of the user's own. Whoever connects sends one request and is sent one
//! answer or several: see `protocol`. `session` serves, `client` asks.

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

/// The listening control socket of one drive; its file goes when this is dropped.
pub(crate) struct ControlSocket {
    socket: Arc<OwnedFd>,
    path: PathBuf,
    /// Device and inode of the socket's file.
    file: (u64, u64),
}

impl ControlSocket {
    /// Listens for questions about the drive at `drive`, which the caller holds locked: a socket
    /// that does not answer was left by a server that died.
    ///
    /// # Errors
    /// `Busy` if another server answers, which both can only serve read-only; the directory or the
    /// socket cannot be made.
    pub(crate) fn bind(drive: &Path) -> Result<Self> {
        let path = socket_path(drive)?;
        let cannot = |error| Error::os(format!("cannot listen at {}", path.display()), error);
        private_directory()?;
        if UnixStream::connect(&path).is_ok() {
            let what = "another server of the drive answers already";
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

    /// Serves requests about `drive`, which has that number in `watch`, for ever. The socket's file
    /// does not wait for this to end.
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
        // Another read-only server that was started at the same moment may have taken the place.
        let is_own = |metadata: fs::Metadata| (metadata.dev(), metadata.ino()) == self.file;
        if fs::symlink_metadata(&self.path).is_ok_and(is_own) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Where the control socket of a drive is.
fn socket_path(drive: &Path) -> Result<PathBuf> {
    place(drive, "sock")
}

/// The place of something that belongs to a drive, in the directory of [`private_directory`]: any
/// path to the drive leads to it.
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

/// The directory of sockets and of what else belongs to running drives; made if it is not there,
/// and the user's alone.
///
/// # Errors
/// It cannot be made, or others could enter it.
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

/// Makes a directory that only its owner can enter, or checks that it is one.
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
        let what = format!("{} is not a directory of this user alone", directory.display());
        return Err(Error::new(ErrorKind::PermissionDenied, what));
    }
    Ok(())
}
