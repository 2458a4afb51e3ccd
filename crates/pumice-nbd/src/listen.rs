//! Listening sockets: Unix or TCP.
//!
//! Invariants: the file of a Unix socket is removed when its [`Listener`] is dropped, unless
//! another server has replaced it by then; if several servers find the socket of a dead one,
//! exactly one replaces it. This module does not accept connections and implements no protocol.

use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use pumice_drive::base::{Error, ErrorKind, Result};

/// Maximum wait for the lock of a socket's directory. Other servers hold it for the few system
/// calls of a bind, but any process that can read the directory could hold it.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

/// Maximum number of clients waiting to be accepted, as in the standard library.
const BACKLOG: i32 = 128;

/// Idle time until a TCP connection is probed, interval of the probes, and number of unanswered
/// probes after which the connection is dropped: after five minutes. Arbitrary, but a client whose
/// host has vanished must not hold its connection for hours, as with the default of the system.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_PROBES: u32 = 8;

/// Time after which a TCP connection is dropped whose peer accepts no data: the same five minutes,
/// in ms.
const USER_TIMEOUT_MS: u32 = 300_000;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Listen {
    /// A socket file. Its path is at most 107 bytes.
    Unix(PathBuf),
    /// A TCP address; port 0 lets the system choose one.
    Tcp(SocketAddr),
}

/// Permissions and owner of a Unix socket. `None` means the default of the operating system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Permissions, at most 0o777; connecting needs write permission.
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

/// The address of a [`Listener`], which may no longer exist.
#[derive(Clone, Debug)]
pub struct Endpoint(BoundAddress);

/// Address of a [`Listener`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum BoundAddress {
    /// Path of the socket, with device and inode if this process must remove the file.
    Unix {
        #[serde(with = "path_bytes")]
        path: PathBuf,
        file: Option<(u64, u64)>,
    },
    Tcp(SocketAddr),
}

/// Paths as arrays of bytes.
mod path_bytes {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_bytes().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<PathBuf, D::Error> {
        Ok(OsString::from_vec(Vec::deserialize(deserializer)?).into())
    }
}

impl Listener {
    /// Binds and listens; `access` applies to a Unix socket. The socket file of a dead server is
    /// replaced. No client can connect before owner and permissions are set.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if a live server listens there, [`ErrorKind::InvalidInput`] if the path
    /// is too long for a socket, [`ErrorKind::AlreadyExists`] if it is a file of another kind, and
    /// errors of the operating system.
    pub fn bind(listen: &Listen, access: Access) -> Result<Self> {
        match listen {
            Listen::Unix(path) => Self::bind_unix(path, access),
            Listen::Tcp(address) => Self::bind_tcp(*address),
        }
    }

    /// Returns the listening sockets passed to this process at its start, as systemd does
    /// (`LISTEN_FDS`, `LISTEN_PID`). Their files are not removed when they are dropped.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if one of them is not a listening stream socket.
    pub fn passed() -> Result<Vec<Self>> {
        let mut passed = listenfd::ListenFd::from_env();
        let cannot = |index: usize, error| {
            let what = format!("passed socket {index} is not a listening stream socket");
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
            let what = format!("socket path {} is too long: use a shorter one", path.display());
            Error::new(ErrorKind::InvalidInput, what).caused_by(io::Error::from(error))
        })?;
        // Between bind and listen, a new socket refuses connections like a dead one, and a dead one
        // may be replaced between the check and its removal. The lock admits one server at a time.
        let _lock = lock_directory(&path, LOCK_LIMIT)?;
        let failed = |error: Errno| bind_error(&path.display().to_string(), error.into());
        let flags = SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = socket.map_err(failed)?;
        let mut bound = access.bind(&socket, &address);
        if bound == Err(Errno::ADDRINUSE) {
            remove_stale(&path, &address)?;
            bound = access.bind(&socket, &address);
        }
        bound.map_err(failed)?;
        // All later steps act on this file, even if the name leads to another one by then.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::empty()).map_err(failed)?;
        let metadata = rustix::fs::fstat(&file).map_err(failed)?;
        if FileType::from_raw_mode(metadata.st_mode) != FileType::Socket {
            let what = format!("{} was replaced by another file", path.display());
            return Err(Error::new(ErrorKind::AlreadyExists, what));
        }
        // From now on the file is removed if a step fails.
        let file_id = Some((metadata.st_dev, metadata.st_ino));
        let address = BoundAddress::Unix { path: path.clone(), file: file_id };
        let listener = Self { socket: Arc::new(socket), address };
        access.give(&file).map_err(|error| {
            Error::os(format!("cannot set the owner of {}", path.display()), error.into())
        })?;
        net::listen(&listener.socket, BACKLOG).map_err(failed)?;
        Ok(listener)
    }

    fn bind_tcp(address: SocketAddr) -> Result<Self> {
        let failed = |error| bind_error(&address.to_string(), error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { socket: Arc::new(listener.into()), address: BoundAddress::Tcp(address) })
    }

    /// Returns the NBD URI of an export: `nbd+unix:///NAME?socket=PATH` or `nbd://HOST:PORT/NAME`,
    /// with `nbds` if clients must use TLS.
    pub fn uri(&self, export: &str, needs_tls: bool) -> String {
        self.endpoint().uri(export, needs_tls)
    }

    /// Returns the address on which it listens.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint(self.address.clone())
    }

    /// Returns a listener for a socket that already listens.
    pub(super) fn at(address: BoundAddress, socket: OwnedFd) -> Self {
        Self { socket: Arc::new(socket), address }
    }

    pub(super) fn address(&self) -> &BoundAddress {
        &self.address
    }

    /// Returns the TCP address, with the port to which clients connect; `None` for a Unix socket.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self.address {
            BoundAddress::Tcp(address) => Some(address),
            BoundAddress::Unix { .. } => None,
        }
    }

    /// Returns the listening socket.
    pub fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Sets the options of an accepted socket.
    ///
    /// TCP_NODELAY, because a reply must not wait for the next one; keep-alive and a time limit for
    /// sending, because a vanished host would otherwise hold its connection for hours.
    ///
    /// # Errors
    /// The peer may have left already.
    pub(super) fn prepare(&self, accepted: &OwnedFd) -> io::Result<()> {
        if let BoundAddress::Tcp(_) = self.address {
            net::sockopt::set_tcp_nodelay(accepted, true)?;
            net::sockopt::set_socket_keepalive(accepted, true)?;
            net::sockopt::set_tcp_keepidle(accepted, KEEP_ALIVE_IDLE)?;
            net::sockopt::set_tcp_keepintvl(accepted, KEEP_ALIVE_INTERVAL)?;
            net::sockopt::set_tcp_keepcnt(accepted, KEEP_ALIVE_PROBES)?;
            net::sockopt::set_tcp_user_timeout(accepted, USER_TIMEOUT_MS)?;
        }
        Ok(())
    }
}

impl Endpoint {
    /// Returns the NBD URI of an export; see [`Listener::uri`].
    pub fn uri(&self, export: &str, needs_tls: bool) -> String {
        let scheme = if needs_tls { "nbds" } else { "nbd" };
        let name = percent_encode(export.as_bytes()).to_string();
        match &self.0 {
            BoundAddress::Unix { path, .. } => {
                let socket = percent_encode(path.as_os_str().as_bytes());
                format!("{scheme}+unix:///{name}?socket={socket}")
            }
            BoundAddress::Tcp(address) if name.is_empty() => format!("{scheme}://{address}"),
            BoundAddress::Tcp(address) => format!("{scheme}://{address}/{name}"),
        }
    }
}

impl Access {
    /// Binds a socket. Its file has the permissions from the beginning.
    fn bind(self, socket: &OwnedFd, address: &SocketAddrUnix) -> rustix::io::Result<()> {
        let Some(mode) = self.mode else { return net::bind(socket, address) };
        // Setting them afterwards, by name, could reach another file.
        let usual = rustix::process::umask(Mode::from_raw_mode(!mode & 0o777));
        let bound = net::bind(socket, address);
        rustix::process::umask(usual);
        bound
    }

    /// Sets the owner of the socket's file.
    fn give(self, file: &OwnedFd) -> rustix::io::Result<()> {
        let Some((user, group)) = self.owner else { return Ok(()) };
        let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
        rustix::fs::chownat(file, c"", user, group, AtFlags::EMPTY_PATH)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let BoundAddress::Unix { path, file: Some(file) } = &self.address else { return };
        let is_ours = fs::symlink_metadata(path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == *file);
        if is_ours && let Err(error) = fs::remove_file(path) {
            tracing::warn!(path = %path.display(), %error, "cannot remove the socket");
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

/// Locks the directory of `path` until the file is dropped; `None` if another process holds the
/// lock for longer than `limit`. Any process may hold the lock, and must not prevent the server
/// from starting. Without the lock, only the order of servers that start at the same moment is
/// lost.
fn lock_directory(path: &Path, limit: Duration) -> Result<Option<File>> {
    let directory = path.parent().unwrap_or(path);
    let failed = |error| Error::os(format!("cannot use the folder {}", directory.display()), error);
    let file = File::open(directory).map_err(failed)?;
    let (sender, receiver) = channel();
    // The system has no lock with a time limit, so a thread waits for it.
    std::thread::spawn(move || {
        let locked = file.lock().map(|()| file);
        // After the limit, the receiver no longer exists; the file is dropped, and unlocked, here.
        let _ = sender.send(locked);
    });
    match receiver.recv_timeout(limit) {
        Ok(locked) => locked.map(Some).map_err(failed),
        Err(_) => {
            let path = path.display();
            tracing::warn!(%path, "another process holds the lock of the folder: not waiting");
            Ok(None)
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
    // Does not block: if the backlog of a live server is full, connect returns EAGAIN.
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

/// Bytes that are not escaped in a URI's path and query: the unreserved ones of RFC 3986, and the
/// slash, so that paths stay readable.
const UNESCAPED: AsciiSet =
    NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// Returns `bytes` percent-encoded for a URI.
pub(super) fn percent_encode(bytes: &[u8]) -> PercentEncode<'_> {
    percent_encoding::percent_encode(bytes, &UNESCAPED)
}

#[cfg(test)]
mod tests {
    //! Goal: a dead server's socket is replaced, a live one's is not, and no other file is removed.
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::atomic::{AtomicBool, Ordering};

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

    /// Guards against a server that finds a dead socket and removes the live one that another
    /// server has created in between.
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

    /// Guards against permissions that are set by name, on a file that another process has put
    /// there.
    #[test]
    fn the_permissions_of_a_socket_are_set_on_nothing_else() {
        const BINDS: usize = 3_000;
        let directory = tempfile::tempdir().unwrap();
        let precious = directory.path().join("precious");
        fs::write(&precious, "").unwrap();
        fs::set_permissions(&precious, fs::Permissions::from_mode(0o600)).unwrap();
        let path = directory.path().join("s");
        let access = Access { mode: Some(0o666), owner: None };
        let is_done = AtomicBool::new(false);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    if fs::remove_file(&path).is_ok() {
                        let _ = symlink(&precious, &path);
                    }
                }
            });
            for _ in 0..BINDS {
                let _ = Listener::bind(&Listen::Unix(path.clone()), access);
                if mode(&precious) != 0o600 {
                    break;
                }
                let _ = fs::remove_file(&path);
            }
            is_done.store(true, Ordering::Relaxed);
        });
        assert_eq!(mode(&precious), 0o600, "the permissions of another file were set");
        let _ = fs::remove_file(&path);
        let _listener = Listener::bind(&Listen::Unix(path.clone()), access).unwrap();
        assert_eq!(mode(&path), 0o666);
    }

    /// Guards against a process that locks the folder and prevents every server from starting.
    #[test]
    fn a_lock_that_is_held_by_others_is_not_waited_for_long() {
        let directory = tempfile::tempdir().unwrap();
        let holder = File::open(directory.path()).unwrap();
        holder.lock().unwrap();
        let path = directory.path().join("s");
        assert!(lock_directory(&path, Duration::from_millis(20)).unwrap().is_none());
        drop(holder);
        assert!(lock_directory(&path, LOCK_LIMIT).unwrap().is_some());
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
        let probing = net::sockopt::tcp_keepidle(&accepted).unwrap()
            + net::sockopt::tcp_keepintvl(&accepted).unwrap()
                * net::sockopt::tcp_keepcnt(&accepted).unwrap();
        assert_eq!(probing, Duration::from_secs(300));
        assert_eq!(net::sockopt::tcp_user_timeout(&accepted).unwrap(), 300_000);
    }
}
