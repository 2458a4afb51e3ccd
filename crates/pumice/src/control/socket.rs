//! The listening control socket of a drive.

use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use super::directory::{private_directory, socket_path};
use super::session;
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
