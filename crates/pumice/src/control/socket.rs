//! The listening control socket of a drive.

use std::cell::{Cell, RefCell};
use std::fs::{self, File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, Once, PoisonError};

use super::directory::{SOCKET_SUFFIX, private_directory, socket_path};
use super::session::{self, SnapshotExports};
use crate::watch::Watch;
use pumice_drive::base::clock::while_busy;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::controller::Drive;
use pumice_drive::runtime::Runtime;

/// Whether this process has removed the sockets of servers that were killed.
static SWEPT: Once = Once::new();

/// Time for requests in progress when their drive is closed, before and after closing it.
const LEAVE_NS: u64 = 1_000_000_000;

/// The sockets of a server that restarts: clients wait in their backlogs for the next server.
static KEPT: Mutex<Kept> = Mutex::new(Kept { is_on: false, sockets: Vec::new() });

struct Kept {
    is_on: bool,
    sockets: Vec<UnixListener>,
}

fn kept<T>(visit: impl FnOnce(&mut Kept) -> T) -> T {
    visit(&mut KEPT.lock().unwrap_or_else(PoisonError::into_inner))
}

/// From now on, sockets that are dropped are retained for the next server.
pub(crate) fn keep_sockets() {
    kept(|kept| kept.is_on = true);
}

/// Returns the retained sockets.
pub(crate) fn kept_sockets() -> Vec<OwnedFd> {
    kept(|kept| std::mem::take(&mut kept.sockets).into_iter().map(OwnedFd::from).collect())
}

/// Takes over the sockets that the previous server retained; [`ControlSocket::bind`] uses them.
pub(crate) fn take_over_sockets(sockets: Vec<OwnedFd>) {
    kept(|kept| kept.sockets.extend(sockets.into_iter().map(UnixListener::from)));
}

/// Removes the sockets that were taken over and not used: their drives are no longer served.
pub(crate) fn remove_kept_sockets() {
    for socket in kept_sockets() {
        if let Some(path) = path_of(&UnixListener::from(socket)) {
            let _ = fs::remove_file(path);
        }
    }
}

fn path_of(socket: &UnixListener) -> Option<PathBuf> {
    socket.local_addr().ok()?.as_pathname().map(Path::to_owned)
}

/// The listening control socket of one drive; on drop its file is removed, and serving ends.
pub(crate) struct ControlSocket {
    socket: Arc<OwnedFd>,
    path: PathBuf,
    /// The drive's path.
    drive: PathBuf,
    /// Device and inode of the socket's file.
    file: (u64, u64),
    clients: Rc<session::Clients>,
}

impl ControlSocket {
    /// Listens for requests about the drive at `drive`, which the caller has locked. A socket that
    /// was taken over is used; a socket that does not answer was left by a server that died, and is
    /// replaced.
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
        let is_its_own = |kept: &UnixListener| path_of(kept).as_ref() == Some(&path);
        let taken_over = kept(|kept| {
            let at = kept.sockets.iter().position(is_its_own)?;
            Some(kept.sockets.swap_remove(at))
        });
        if let Some(listener) = taken_over {
            return Self::on(listener, path, drive);
        }
        let cannot = |error| Error::os(format!("cannot listen on {}", path.display()), error);
        // Between bind and listen a new socket refuses connections like a dead one.
        let directory = private_directory()?;
        let locked = File::open(&directory).and_then(|file| file.lock().map(|()| file));
        let _lock = locked.map_err(cannot)?;
        // Done once: a server of a thousand drives would query each of its own sockets a thousand
        // times.
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
        Self::on(listener, path, drive)
    }

    fn on(listener: UnixListener, path: PathBuf, drive: &Path) -> Result<Self> {
        let metadata = fs::symlink_metadata(&path);
        let metadata = metadata
            .map_err(|error| Error::os(format!("cannot listen on {}", path.display()), error))?;
        let file = (metadata.dev(), metadata.ino());
        let drive = std::path::absolute(drive).unwrap_or_else(|_| drive.to_owned());
        Ok(Self { socket: Arc::new(listener.into()), path, drive, file, clients: Rc::default() })
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
        let (socket, clients) = (self.socket.clone(), self.clients.clone());
        let served = session::Served {
            path,
            drive,
            watch,
            uris,
            snapshots,
            sends: Cell::default(),
            #[cfg(feature = "attach")]
            lent: Cell::default(),
        };
        session::serve(runtime, socket, clients, served)
    }

    /// Starts no more requests, and waits at most a second for those in progress. Call this before
    /// the drive is closed, so that completed work is not reported as failed, and again afterwards,
    /// so that requests that were ended by closing can report that. Later requests wait in the
    /// backlog.
    pub(crate) async fn end(&self, runtime: &Runtime) {
        self.clients.end();
        runtime.timeout(LEAVE_NS, self.clients.until_at_most(0)).await;
    }
}

/// Removes the sockets of servers that were killed, of any drive: a drive whose file is gone, or
/// has been replaced by another file, would never be served under that name again.
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
        self.clients.end();
        let is_kept = kept(|kept| {
            let socket = kept.is_on.then(|| self.socket.try_clone().ok()).flatten();
            kept.sockets.extend(socket.map(UnixListener::from));
            kept.is_on
        });
        if is_kept {
            return;
        }
        // Another read-only server, started at the same moment, may have replaced the file.
        let is_own = |metadata: fs::Metadata| (metadata.dev(), metadata.ino()) == self.file;
        if fs::symlink_metadata(&self.path).is_ok_and(is_own) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
