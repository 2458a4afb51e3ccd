//! The control socket: how `pumice info` asks a server about the drive it holds locked.
//!
//! One Unix socket a served drive, named after the file's device and inode so that any path to it
//! finds it, in a directory of the user's own. Whoever connects is sent one JSON document and the
//! end of the stream; nothing is ever read from a client.

use std::fs::{self, DirBuilder, Permissions};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::base::{Clock, Error, ErrorKind, Result};
use crate::runtime::Runtime;

/// Longest answer that a client takes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// How long a client waits for a server that is busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time a client has to take its answer, and the pause after a failed accept.
const SEND_NS: u64 = 5_000_000_000;

/// The listening control socket of one drive; its file goes when this is dropped.
pub struct ControlSocket {
    socket: Arc<OwnedFd>,
    path: PathBuf,
}

impl ControlSocket {
    /// Listens for questions about the drive at `drive`, which the caller holds locked: a socket
    /// file that is there already was left by a server that died.
    ///
    /// # Errors
    /// The directory or the socket cannot be made.
    pub fn bind(drive: &Path) -> Result<Self> {
        let path = socket_path(drive)?;
        let cannot = |error| Error::os(format!("cannot listen at {}", path.display()), error);
        if let Some(directory) = path.parent() {
            make_private(directory)?;
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(cannot(error));
            }
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(cannot)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(cannot)?;
        Ok(Self { socket: Arc::new(listener.into()), path })
    }

    /// Answers every client with what `answer` gives, one after the other, for ever. The socket's
    /// file does not wait for this to end.
    pub fn serve(
        &self,
        runtime: Runtime,
        answer: impl Fn() -> Vec<u8> + 'static,
    ) -> impl Future<Output = ()> + 'static {
        answer_clients(runtime, self.socket.clone(), answer)
    }
}

async fn answer_clients(runtime: Runtime, socket: Arc<OwnedFd>, answer: impl Fn() -> Vec<u8>) {
    loop {
        match runtime.accept(&socket).await {
            Ok(client) => {
                let sending = send_all(&runtime, Arc::new(client), answer());
                runtime.timeout(SEND_NS, sending).await;
            }
            Err(error) => {
                tracing::warn!("the control socket failed: {error}");
                runtime.sleep_ns(SEND_NS).await;
            }
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

async fn send_all(runtime: &Runtime, client: Arc<OwnedFd>, mut bytes: Vec<u8>) {
    let mut at = 0;
    while at < bytes.len() {
        let range = at..bytes.len();
        let (buffer, sent) = runtime.send(&client, bytes, range).await;
        bytes = buffer;
        match sent {
            Ok(sent) if sent > 0 => at += sent,
            // The client has gone: its loss.
            _ => return,
        }
    }
}

/// Asks the server of the drive at `drive`; `None` if there is none, or if it ends just now.
///
/// # Errors
/// `Busy` if there is a server that does not answer in ten seconds.
pub fn ask(drive: &Path) -> Result<Option<Vec<u8>>> {
    let silent = |error| {
        let what = format!("the server of {} does not answer: try again later", drive.display());
        Error::new(ErrorKind::Busy, what).caused_by(error)
    };
    let Ok(mut stream) = UnixStream::connect(socket_path(drive)?) else { return Ok(None) };
    let mut answer = Vec::new();
    let read = stream
        .set_read_timeout(Some(ANSWER_TIMEOUT))
        .and_then(|()| stream.by_ref().take(ANSWER_BYTES_MAX).read_to_end(&mut answer));
    match read {
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some(answer)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Err(silent(error)),
        Err(_) => Ok(None),
    }
}

/// Where the control socket of a drive is.
fn socket_path(drive: &Path) -> Result<PathBuf> {
    let metadata = fs::metadata(drive)
        .map_err(|error| Error::os(format!("cannot open {}", drive.display()), error))?;
    let name = if metadata.file_type().is_block_device() {
        format!("device-{:x}.sock", metadata.rdev())
    } else {
        format!("{:x}-{:x}.sock", metadata.dev(), metadata.ino())
    };
    Ok(directory().join(name))
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
