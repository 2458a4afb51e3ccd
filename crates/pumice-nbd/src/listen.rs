//! Where a server listens: a Unix socket or a TCP address.
//!
//! Invariants: a Unix socket's file is removed when its [`Listener`] is dropped, unless another
//! server has replaced it by then; of several servers that find a dead one's socket, one gets it.
//! Does not accept anything and knows no protocol.

use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use pumice_drive::base::{Error, ErrorKind, Result};

/// How long to wait for the lock of a socket's directory: other servers hold it for the few system
/// calls of a bind, but it is anybody's to hold.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Listen {
    /// A socket file; its path is at most 107 bytes.
    Unix(PathBuf),
    /// A TCP address; port 0 lets the system choose one.
    Tcp(SocketAddr),
}

/// Who may connect to a Unix socket; `None` leaves it as the system makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Permissions, at most 0o777; to connect is to write.
    pub mode: Option<u32>,
    /// User and group.
    pub owner: Option<(Option<u32>, Option<u32>)>,
}

/// A bound and listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: Arc<OwnedFd>,
    address: BoundAddress,
}

/// Where a [`Listener`] is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum BoundAddress {
    /// The file, with its device and inode if it is ours to remove.
    Unix {
        path: PathBuf,
        file: Option<(u64, u64)>,
    },
    Tcp(SocketAddr),
}

impl Listener {
    /// Binds and listens; `access` is for a Unix socket. The socket file a dead server left behind
    /// is replaced. Nobody connects before the access is set.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if a live server listens there, [`ErrorKind::InvalidInput`] if the path
    /// is too long for a socket, [`ErrorKind::AlreadyExists`] if it is a file of another kind, and
    /// whatever the operating system says.
    pub fn bind(listen: &Listen, access: Access) -> Result<Self> {
        match listen {
            Listen::Unix(path) => Self::bind_unix(path, access),
            Listen::Tcp(address) => Self::bind_tcp(*address),
        }
    }

    /// The listening sockets that this process was given when it was started, as systemd does it
    /// (`LISTEN_FDS`, `LISTEN_PID`); their files stay when they are dropped.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if one is no listening stream socket.
    pub fn passed() -> Result<Vec<Self>> {
        let mut passed = listenfd::ListenFd::from_env();
        let cannot = |index: usize, error| {
            let what = format!("the socket passed as number {index} cannot be listened on");
            Error::new(ErrorKind::InvalidInput, what).caused_by(error)
        };
        let mut listeners = Vec::new();
        for index in 0..passed.len() {
            let listener = match passed.take_unix_listener(index) {
                Ok(listener) => listener.map(|listener| {
                    let path = listener.local_addr().ok();
                    let path = path.as_ref().and_then(|address| address.as_pathname());
                    let address = BoundAddress::Unix {
                        path: path.unwrap_or(Path::new("")).into(),
                        file: None,
                    };
                    (OwnedFd::from(listener), address)
                }),
                Err(_) => {
                    let tcp = passed.take_tcp_listener(index);
                    let tcp = tcp.map_err(|error| cannot(index, error))?;
                    let with_address = |listener: TcpListener| {
                        let address =
                            listener.local_addr().map_err(|error| cannot(index, error))?;
                        Ok::<_, Error>((OwnedFd::from(listener), BoundAddress::Tcp(address)))
                    };
                    tcp.map(with_address).transpose()?
                }
            };
            if let Some((socket, address)) = listener {
                let is_blocking = rustix::io::ioctl_fionbio(&socket, false);
                is_blocking.map_err(|error| cannot(index, error.into()))?;
                listeners.push(Self { socket: Arc::new(socket), address });
            }
        }
        Ok(listeners)
    }

    fn bind_unix(path: &Path, access: Access) -> Result<Self> {
        let path = std::path::absolute(path).map_err(|error| {
            Error::os(format!("cannot use {} as a socket", path.display()), error)
        })?;
        let address = SocketAddrUnix::new(&path).map_err(|error| {
            let what = format!("{} is too long for a socket: use a shorter path", path.display());
            Error::new(ErrorKind::InvalidInput, what).caused_by(io::Error::from(error))
        })?;
        // Between bind and listen a new socket refuses connections like a dead one, and between
        // the look at a dead one and its removal it may have been replaced: one server at a time.
        let _lock = lock_directory(&path)?;
        let mut bound = access.bind(&path);
        if matches!(&bound, Err(error) if error.kind() == io::ErrorKind::AddrInUse) {
            remove_stale(&path, &address)?;
            bound = access.bind(&path);
        }
        let listener = bound.map_err(|error| bind_error(&path.display().to_string(), error))?;
        let metadata = fs::symlink_metadata(&path)
            .map_err(|error| Error::os(format!("cannot look at {}", path.display()), error))?;
        let file = Some((metadata.dev(), metadata.ino()));
        // From here on the file goes if something fails.
        let address = BoundAddress::Unix { path: path.clone(), file };
        let listener = Self { socket: Arc::new(listener.into()), address };
        access.set(&path)?;
        Ok(listener)
    }

    fn bind_tcp(address: SocketAddr) -> Result<Self> {
        let failed = |error| bind_error(&address.to_string(), error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { socket: Arc::new(listener.into()), address: BoundAddress::Tcp(address) })
    }

    /// The NBD URI of the export with this name here: `nbd+unix:///NAME?socket=PATH` or
    /// `nbd://HOST:PORT/NAME`, with `nbds` if clients must use TLS.
    pub fn uri(&self, export: &str, needs_tls: bool) -> String {
        let scheme = if needs_tls { "nbds" } else { "nbd" };
        let name = percent_encode(export.as_bytes()).to_string();
        match &self.address {
            BoundAddress::Unix { path, .. } => {
                let socket = percent_encode(path.as_os_str().as_bytes());
                format!("{scheme}+unix:///{name}?socket={socket}")
            }
            BoundAddress::Tcp(address) if name.is_empty() => format!("{scheme}://{address}"),
            BoundAddress::Tcp(address) => format!("{scheme}://{address}/{name}"),
        }
    }

    /// A socket that listens there already, and the place with it.
    pub(super) fn at(address: BoundAddress, socket: OwnedFd) -> Self {
        Self { socket: Arc::new(socket), address }
    }

    pub(super) fn address(&self) -> &BoundAddress {
        &self.address
    }

    /// The listening socket.
    pub(super) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Sets an accepted socket up for requests and replies.
    ///
    /// On TCP: no delay, because a reply must not wait for the next one, and keep-alive, because a
    /// host that vanished would otherwise hold its connection for ever.
    ///
    /// # Errors
    /// The peer may be gone already.
    pub(super) fn prepare(&self, accepted: &OwnedFd) -> io::Result<()> {
        if let BoundAddress::Tcp(_) = self.address {
            net::sockopt::set_tcp_nodelay(accepted, true)?;
            net::sockopt::set_socket_keepalive(accepted, true)?;
        }
        Ok(())
    }
}

impl Access {
    /// Binds so that only this process's user can connect, if others are to be let in later.
    fn bind(self, path: &Path) -> io::Result<UnixListener> {
        if self == Self::default() {
            return UnixListener::bind(path);
        }
        let usual = rustix::process::umask(Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(path);
        rustix::process::umask(usual);
        bound
    }

    fn set(self, path: &Path) -> Result<()> {
        let failed = |what: &str, error| {
            Error::os(format!("cannot set the {what} of {}", path.display()), error)
        };
        if let Some((user, group)) = self.owner {
            lchown(path, user, group).map_err(|error| failed("owner", error))?;
        }
        if let Some(mode) = self.mode {
            let permissions = fs::Permissions::from_mode(mode);
            fs::set_permissions(path, permissions).map_err(|error| failed("permissions", error))?;
        }
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let BoundAddress::Unix { path, file: Some(file) } = &self.address else { return };
        let is_ours = fs::symlink_metadata(path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == *file);
        if is_ours && let Err(error) = fs::remove_file(path) {
            tracing::warn!("cannot remove the socket {}: {error}", path.display());
        }
    }
}

fn bind_error(address: &str, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::AddrInUse {
        let what =
            format!("cannot listen on {address}: address in use; stop the other server first");
        return Error::new(ErrorKind::Busy, what).caused_by(error);
    }
    Error::os(format!("cannot listen on {address}"), error)
}

/// Locks the directory of `path` until the file is dropped.
fn lock_directory(path: &Path) -> Result<File> {
    let directory = path.parent().unwrap_or(path);
    let failed = |error| Error::os(format!("cannot lock {}", directory.display()), error);
    let file = File::open(directory).map_err(failed)?;
    let (sender, receiver) = channel();
    // There is no lock that waits for a limited time, so it is a thread that waits.
    std::thread::spawn(move || {
        let locked = file.lock().map(|()| file);
        // After the limit nobody takes it, and it is dropped and unlocked here.
        let _ = sender.send(locked);
    });
    match receiver.recv_timeout(LOCK_LIMIT) {
        Ok(locked) => locked.map_err(failed),
        Err(_) => {
            let what = format!(
                "cannot listen on {}: another process holds the lock of its directory",
                path.display()
            );
            Err(Error::new(ErrorKind::Busy, what))
        }
    }
}

/// Removes the socket file of a server that no longer listens.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<()> {
    let failed = |error| Error::os(format!("cannot replace {}", path.display()), error);
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if !metadata.file_type().is_socket() {
        let what = format!("{} exists and is not a socket: choose another path", path.display());
        return Err(Error::new(ErrorKind::AlreadyExists, what));
    }
    // Not blocking: a live server with a full backlog answers EAGAIN instead of making us wait.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|error| failed(error.into()))?;
    match net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed),
        Err(Errno::NOENT) => Ok(()),
        Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS) => {
            let what = format!("socket in use: a server listens on {}", path.display());
            Err(Error::new(ErrorKind::Busy, what))
        }
        Err(error) => Err(failed(error.into())),
    }
}

/// Bytes that stay as they are in a URI's path and query: the unreserved ones of RFC 3986, and the
/// slash, so that paths stay readable.
const UNESCAPED: AsciiSet =
    NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// Returns `bytes` percent-encoded for a URI.
pub(super) fn percent_encode(bytes: &[u8]) -> PercentEncode<'_> {
    percent_encoding::percent_encode(bytes, &UNESCAPED)
}

#[cfg(test)]
mod tests {
    //! Goal: a dead server's socket is replaced, a live one's is not, and nothing else is removed.
    use std::os::unix::net::UnixStream;

    use super::*;

    fn kind(result: Result<Listener>) -> ErrorKind {
        result.map(|listener| listener.uri("", false)).unwrap_err().kind()
    }

    #[test]
    fn a_unix_socket_lives_as_long_as_its_listener() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a b%.sock");
        let listener = Listener::bind(&Listen::Unix(path.clone()), Access::default()).unwrap();
        assert!(
            listener.uri("", false).starts_with("nbd+unix:///?socket=/"),
            "{}",
            listener.uri("", false)
        );
        assert!(listener.uri("", false).ends_with("/a%20b%25.sock"), "{}", listener.uri("", false));
        UnixStream::connect(&path).unwrap();
        assert_eq!(
            kind(Listener::bind(&Listen::Unix(path.clone()), Access::default())),
            ErrorKind::Busy
        );
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_successor_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let first = Listener::bind(&Listen::Unix(path.clone()), Access::default()).unwrap();
        fs::remove_file(&path).unwrap();
        let second = Listener::bind(&Listen::Unix(path.clone()), Access::default()).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
        drop(second);
        assert!(!path.exists());
    }

    /// Guards against a server that looks at a dead socket, and removes the live one that another
    /// server has put there meanwhile.
    #[test]
    fn of_servers_that_find_a_stale_socket_one_gets_it() {
        const SERVERS: usize = 4;
        let directory = tempfile::tempdir().unwrap();
        for round in 0..100 {
            let path = directory.path().join(round.to_string());
            drop(UnixListener::bind(&path).unwrap());
            let listen = Listen::Unix(path.clone());
            let start = std::sync::Barrier::new(SERVERS);
            let bound: Vec<_> = std::thread::scope(|scope| {
                let bind = || {
                    start.wait();
                    Listener::bind(&listen, Access::default())
                };
                let servers: Vec<_> = (0..SERVERS).map(|_| scope.spawn(bind)).collect();
                servers.into_iter().map(|server| server.join().unwrap()).collect()
            });
            let (won, lost): (Vec<_>, Vec<_>) = bound.into_iter().partition(Result::is_ok);
            assert_eq!(won.len(), 1, "round {round}");
            assert!(lost.into_iter().all(|lost| kind(lost) == ErrorKind::Busy), "round {round}");
            UnixStream::connect(&path).unwrap();
        }
    }

    #[test]
    fn other_files_and_long_paths_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "precious").unwrap();
        assert_eq!(
            kind(Listener::bind(&Listen::Unix(file.clone()), Access::default())),
            ErrorKind::AlreadyExists
        );
        assert_eq!(fs::read(&file).unwrap(), b"precious");
        let long = directory.path().join("x".repeat(108));
        assert_eq!(
            kind(Listener::bind(&Listen::Unix(long), Access::default())),
            ErrorKind::InvalidInput
        );
        let absent = directory.path().join("absent/s");
        assert_eq!(
            kind(Listener::bind(&Listen::Unix(absent), Access::default())),
            ErrorKind::NotFound
        );
    }

    #[test]
    fn a_tcp_port_is_shown_as_bound_and_not_shared() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = Listener::bind(&Listen::Tcp(any), Access::default()).unwrap();
        let port =
            listener.uri("", false).strip_prefix("nbd://127.0.0.1:").unwrap().parse().unwrap();
        assert_ne!(port, 0);
        let taken = SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(kind(Listener::bind(&Listen::Tcp(taken), Access::default())), ErrorKind::Busy);
    }

    #[test]
    fn accepted_tcp_sockets_send_at_once_and_notice_a_lost_peer() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = Listener::bind(&Listen::Tcp(any), Access::default()).unwrap();
        let address = listener.uri("", false);
        let _client = std::net::TcpStream::connect(&address["nbd://".len()..]).unwrap();
        let accepted = net::accept(listener.socket()).unwrap();
        assert!(!net::sockopt::tcp_nodelay(&accepted).unwrap());
        listener.prepare(&accepted).unwrap();
        assert!(net::sockopt::tcp_nodelay(&accepted).unwrap());
        assert!(net::sockopt::socket_keepalive(&accepted).unwrap());
    }
}
