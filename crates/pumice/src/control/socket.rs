//! The listening control socket of a drive.

use std::cell::{Cell, RefCell};
use std::fs::{self, File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Once};

use super::directory::{SOCKET_SUFFIX, private_directory, socket_path};
use super::session::{self, SnapshotExports};
use crate::watch::Watch;
use pumice_drive::base::clock::while_busy;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::controller::Drive;
use pumice_drive::runtime::Runtime;

/// Whether this process has removed the sockets of servers that were killed.
static SWEPT: Once = Once::new();

/// The listening control socket of one drive; on drop its file is removed, and it is served no
/// longer.
pub(crate) struct ControlSocket {
    socket: Arc<OwnedFd>,
    path: PathBuf,
    /// The drive's path.
    drive: PathBuf,
    /// Device and inode of the socket's file.
    file: (u64, u64),
    end: Rc<session::End>,
}

impl ControlSocket {
    /// Listens for requests about the drive at `drive`, which the caller has locked. A socket that
    /// does not answer was left by a server that died, and is replaced.
    ///
    /// # Errors
    /// `Busy` if another server answers for a second, which is possible only if both serve the
    /// drive read-only; the directory or the socket cannot be created.
    pub(crate) fn bind(runtime: &Runtime, drive: &Path) -> Result<Self> {
        // A server that was killed may answer for a moment.
        runtime.block_on(while_busy(runtime, || Self::bind_now(drive)))
    }

    fn bind_now(drive: &Path) -> Result<Self> {
        let path = socket_path(drive)?;
        let cannot = |error| Error::os(format!("cannot listen on {}", path.display()), error);
        // Between bind and listen a new socket refuses connections like a dead one.
        let directory = private_directory()?;
        let locked = File::open(&directory).and_then(|file| file.lock().map(|()| file));
        let _lock = locked.map_err(cannot)?;
        // Once: a server of a thousand drives would ask each of its own sockets a thousand times.
        SWEPT.call_once(|| remove_dead(&directory));
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
        let drive = std::path::absolute(drive).unwrap_or_else(|_| drive.to_owned());
        let end = Rc::default();
        Ok(Self { socket: Arc::new(listener.into()), path, drive, file, end })
    }

    /// Serves requests about `drive`, which has that name in `watch` and is served at `uris`, with
    /// its snapshots, until this socket is dropped.
    pub(crate) fn serve(
        &self,
        runtime: Runtime,
        drive: Rc<Drive>,
        watch: (Rc<Watch>, String),
        uris: Rc<RefCell<Vec<String>>>,
        snapshots: Option<Rc<dyn SnapshotExports>>,
    ) -> impl Future<Output = ()> + 'static {
        let path = self.drive.to_string_lossy().into_owned();
        let (socket, end) = (self.socket.clone(), self.end.clone());
        let sends = Cell::default();
        let served = session::Served { path, drive, watch, uris, snapshots, sends };
        session::serve(runtime, socket, end, served)
    }
}

/// Removes the sockets of servers that were killed, of any drive: a drive whose file is gone, or is
/// another file by now, would never be served under that name again.
fn remove_dead(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let is_socket = path.extension().is_some_and(|extension| extension == SOCKET_SUFFIX);
        let is_dead = || {
            let connected = UnixStream::connect(&path);
            connected.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
        };
        if is_socket && is_dead() {
            // Another user of the directory may have been faster.
            let _ = fs::remove_file(&path);
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.end.come();
        // Another read-only server, started at the same moment, may have replaced the file.
        let is_own = |metadata: fs::Metadata| (metadata.dev(), metadata.ino()) == self.file;
        if fs::symlink_metadata(&self.path).is_ok_and(is_own) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
