//! The client side of a control socket. Blocking, for commands that have nothing else to do.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
#[cfg(feature = "attach")]
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::Either;
use rustix::event::{Timespec, poll};
use rustix::net::sockopt::socket_peercred;

use super::directory::{Found, SOCKET_SUFFIX, existing, socket_name};
use super::protocol::{
    ANSWER_BYTES_MAX, Answer, ListedClient, PART_BYTES_MAX, Part, Request, Service, line,
};
use super::transfer::{Sending, Wanted};
use crate::holder::Holder;
#[cfg(feature = "top")]
use crate::watch::Snapshot;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::controller::{Info, Sent};

/// Time limit for a busy server; a long request reports progress more often.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of checks for a server that is starting, ending or being replaced: five seconds.
const LOOKS: u32 = 500;

/// Pause between two checks.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// A connection to the server of a drive.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
    drive: PathBuf,
}

/// Connects to the server of the drive at `drive`; `None` if there is none. If another process has
/// locked the drive, waits a few seconds for a server that starts or ends.
///
/// # Errors
/// `NotFound` if there is no file at `drive`; `PermissionDenied` if the server, or the directory of
/// its socket, belongs to another user, whose answers cannot be trusted.
pub(crate) fn connect(drive: &Path) -> Result<Option<Client>> {
    connect_within(drive, &mut LOOKS.clone())
}

fn connect_within(drive: &Path, looks: &mut u32) -> Result<Option<Client>> {
    loop {
        let connected = connect_now(drive)?;
        let is_locked = || Holder::of(drive).is_some_and(|holder| holder.excludes_others());
        if connected.is_some() || *looks == 0 || !is_locked() {
            return Ok(connected);
        }
        *looks -= 1;
        pause();
    }
}

/// Calls `served`, which asks the server of the drive at `drive` and returns `None` if the server
/// ends before it answers. Without a server, returns the drive that `open` opens. Like [`connect`],
/// waits for a server that starts between the two steps, or for another command that opens the
/// drive first.
///
/// # Errors
/// Errors of [`connect`], `served` and `open`.
pub(crate) fn served_or_open<T, D>(
    drive: &Path,
    served: impl Fn(Client) -> anyhow::Result<Option<T>>,
    open: impl Fn() -> anyhow::Result<D>,
) -> anyhow::Result<Either<T, D>> {
    let mut looks = LOOKS;
    loop {
        if let Some(client) = connect_within(drive, &mut looks)?
            && let Some(done) = served(client)?
        {
            return Ok(Either::Left(done));
        }
        let opened = open();
        let is_busy = opened.as_ref().is_err_and(|error| {
            error.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::Busy)
        });
        if !is_busy || looks == 0 {
            return opened.map(Either::Right);
        }
        // An attempt to open the drive lasts a second.
        looks = looks.saturating_sub(LOOKS / 5);
    }
}

fn pause() {
    // An interruption only shortens it.
    let _ = poll(&mut [], Some(&PAUSE));
}

fn connect_now(drive: &Path) -> Result<Option<Client>> {
    if let Some(client) = connect_to(drive)? {
        return Ok(Some(client));
    }
    // The server identifies an array by the member that it was given.
    let companions = crate::members::companions(drive).into_iter();
    Ok(companions.filter_map(|member| connect_to(&member).ok().flatten()).next())
}

/// Connects to the server that was given this path.
fn connect_to(drive: &Path) -> Result<Option<Client>> {
    let name = socket_name(drive)?;
    let mut refused = None;
    for found in existing() {
        let connected = found.and_then(|found| stream(&found.directory.join(&name), found.owner));
        match connected {
            Ok(Some(stream)) => return client(stream, drive).map(Some),
            Ok(None) => {}
            Err(error) => refused = Some(error),
        }
    }
    refused.map_or(Ok(None), Err)
}

/// Connects to a socket; `None` if its server has ended.
///
/// # Errors
/// `PermissionDenied` if the socket belongs to a user other than `owner` or root.
fn stream(path: &Path, owner: u32) -> Result<Option<UnixStream>> {
    let Ok(stream) = UnixStream::connect(path) else { return Ok(None) };
    let peer = socket_peercred(&stream).map(|peer| peer.uid.as_raw());
    if peer.is_ok_and(|peer| peer == owner || peer == 0) {
        return Ok(Some(stream));
    }
    let what = format!("{} is a socket of another user", path.display());
    Err(Error::new(ErrorKind::PermissionDenied, what))
}

fn client(stream: UnixStream, drive: &Path) -> Result<Client> {
    let limited = stream
        .set_read_timeout(Some(ANSWER_TIMEOUT))
        .and_then(|()| stream.set_write_timeout(Some(ANSWER_TIMEOUT)));
    limited.map_err(|error| Error::os("cannot use the control socket", error))?;
    Ok(Client { stream: BufReader::new(stream), drive: drive.to_owned() })
}

/// Requests the drive's info from its server; `None` if there is no server, or if it ends before it
/// answers.
///
/// # Errors
/// Errors of [`connect`] and [`Client::ask`].
pub(crate) fn info(drive: &Path) -> Result<Option<Info>> {
    let Some(client) = connect(drive)? else { return Ok(None) };
    match client.ask(&Request::Info {}, |_| ())? {
        None => Ok(None),
        Some(Answer::Info(info)) => Ok(Some(*info)),
        Some(_) => Err(malformed(drive)),
    }
}

/// Asks the drive's server how it serves the drive; `None` if there is no server, or if it ends
/// before it answers.
///
/// # Errors
/// Errors of [`connect`] and [`Client::ask`].
pub(crate) fn service(drive: &Path) -> Result<Option<Service>> {
    let Some(client) = connect(drive)? else { return Ok(None) };
    match client.ask(&Request::Service {}, |_| ())? {
        None => Ok(None),
        Some(Answer::Service(service)) => Ok(Some(service)),
        Some(_) => Err(malformed(drive)),
    }
}

/// Asks all servers of this user, and as root those of services as well, how each drive is served,
/// and for its info. Skips the servers of the drives at `but`, and servers that have ended.
pub(crate) fn servers(but: &[PathBuf]) -> Vec<Result<(Service, Info)>> {
    let but: Vec<_> = but.iter().filter_map(|drive| socket_name(drive).ok()).collect();
    let is_asked = |socket: &PathBuf| {
        socket.file_name().is_none_or(|name| !but.iter().any(|but| name == but.as_str()))
    };
    let asked = existing().into_iter().flat_map(|found| match found {
        Ok(Found { directory, owner }) => {
            let sockets = sockets(&directory).into_iter().filter(is_asked);
            sockets.filter_map(|socket| server(&socket, owner).transpose()).collect()
        }
        Err(error) => vec![Err(error)],
    });
    asked.collect()
}

/// Returns the control sockets in a directory.
fn sockets(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(|path| path.extension().is_some_and(|suffix| suffix == SOCKET_SUFFIX)).collect()
}

/// Queries the server at a socket; `None` if it has ended.
fn server(socket: &Path, owner: u32) -> Result<Option<(Service, Info)>> {
    let ask = |request: &Request| ask(socket, owner, request, |_| ());
    match (ask(&Request::Service {})?, ask(&Request::Info {})?) {
        (Some(Answer::Service(service)), Some(Answer::Info(info))) => Ok(Some((service, *info))),
        (None, _) | (_, None) => Ok(None),
        _ => Err(malformed(socket)),
    }
}

/// A server, through one of its drives.
pub(crate) struct Serving {
    /// The way in which that drive is served.
    pub(crate) service: Service,
    socket: PathBuf,
    owner: u32,
}

/// Returns the servers of this user, and for root those of services as well, once for each of their
/// drives. Servers that have ended are left out.
pub(crate) fn serving() -> Vec<Result<Serving>> {
    let found = existing().into_iter().flat_map(|found| match found {
        Ok(Found { directory, owner }) => {
            let of = |socket: PathBuf| match ask(&socket, owner, &Request::Service {}, |_| ()) {
                Ok(Some(Answer::Service(service))) => Some(Ok(Serving { service, socket, owner })),
                Ok(None) => None,
                Ok(Some(_)) => Some(Err(malformed(&socket))),
                Err(error) => Some(Err(error)),
            };
            sockets(&directory).into_iter().filter_map(of).collect()
        }
        Err(error) => vec![Err(error)],
    });
    found.collect()
}

impl Serving {
    /// Returns the clients of the server; none if it has ended.
    ///
    /// # Errors
    /// Errors of [`Client::ask`].
    pub(crate) fn clients(&self) -> Result<Vec<ListedClient>> {
        let mut clients = Vec::new();
        let visit = |answer| {
            if let Answer::SomeClients(some) = answer {
                clients.extend(some);
            }
        };
        match ask(&self.socket, self.owner, &Request::Clients {}, visit)? {
            Some(Answer::Clients(rest)) => clients.extend(rest),
            None => {}
            Some(_) => return Err(malformed(&self.socket)),
        }
        Ok(clients)
    }

    /// Disconnects a client; returns whether it was a client of this server.
    ///
    /// # Errors
    /// Errors of [`Client::ask`].
    pub(crate) fn disconnect(&self, id: u64) -> Result<bool> {
        match ask(&self.socket, self.owner, &Request::Disconnect { id }, |_| ())? {
            Some(Answer::Disconnected(was_there)) => Ok(was_there),
            None => Ok(false),
            Some(_) => Err(malformed(&self.socket)),
        }
    }
}

/// Queries the server at a socket; `None` if it has ended.
fn ask(
    socket: &Path,
    owner: u32,
    request: &Request,
    visit: impl FnMut(Answer),
) -> Result<Option<Answer>> {
    match stream(socket, owner)? {
        Some(stream) => client(stream, socket)?.ask(request, visit),
        None => Ok(None),
    }
}

/// Requests a snapshot of the drive from its server; `None` if there is no server, or if it ends
/// before it answers.
///
/// # Errors
/// Errors of [`connect`] and [`Client::ask`].
#[cfg(feature = "top")]
pub(crate) fn snapshot(drive: &Path) -> Result<Option<Snapshot>> {
    let Some(client) = connect(drive)? else { return Ok(None) };
    match client.ask(&Request::Watch {}, |_| ())? {
        None => Ok(None),
        Some(Answer::Watched(snapshot)) => Ok(Some(*snapshot)),
        Some(_) => Err(malformed(drive)),
    }
}

fn malformed(drive: &Path) -> Error {
    let what = format!("the server of {} sent a malformed answer", drive.display());
    Error::new(ErrorKind::Unsupported, what)
}

impl Client {
    /// Sends a request, calls `visit` with every answer before the last, and returns the last;
    /// `None` if the server ended before that. If a server ends before it has accepted the request,
    /// the request goes to the next server, if there is one.
    ///
    /// # Errors
    /// The error of the request, if it failed; `Busy` if the server sends nothing for ten seconds;
    /// `Unsupported` if an answer is malformed.
    pub(crate) fn ask(
        mut self,
        request: &Request,
        mut visit: impl FnMut(Answer),
    ) -> Result<Option<Answer>> {
        let Some(mut answer) = self.first(request)? else { return Ok(None) };
        while !answer.is_last() {
            visit(answer);
            match self.next()? {
                Some(next) => answer = next,
                None => return Ok(None),
            }
        }
        Ok(Some(answer))
    }

    /// Returns the process of the server, if it is visible to this process.
    #[cfg(feature = "attach")]
    pub(crate) fn process(&self) -> Option<u32> {
        let peer = socket_peercred(self.stream.get_ref()).ok()?;
        u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
    }

    /// Requests a snapshot as a file in `directory`, where it stays until the loan ends.
    ///
    /// # Errors
    /// The server reports an error, has ended, or lacks the permission to mount; errors of
    /// [`Client::ask`].
    #[cfg(feature = "attach")]
    pub(crate) fn borrow(mut self, name: String, directory: &Path, shown: &str) -> Result<Loan> {
        let directory = directory.to_str().ok_or_else(|| {
            let what = format!("{}: the path is not UTF-8", directory.display());
            Error::new(ErrorKind::InvalidInput, what)
        })?;
        let (directory, shown) = (directory.to_owned(), shown.to_owned());
        let mut answer = self.first(&Request::Lend { name, directory, shown })?;
        while let Some(Answer::Progress(_)) = answer {
            answer = self.next()?;
        }
        match answer {
            Some(Answer::Lent {}) => Ok(Loan(self)),
            Some(_) => Err(malformed(&self.drive)),
            None => {
                let what = format!("the server of {} has ended", self.drive.display());
                Err(Error::new(ErrorKind::Busy, what))
            }
        }
    }

    /// Sends a request and returns the first answer; `None` if the server ended before that, and no
    /// other has replaced it. A server answers every request that it has begun.
    fn first(&mut self, request: &Request) -> Result<Option<Answer>> {
        for _ in 0..LOOKS {
            if self.stream.get_mut().write_all(&line(request)).is_ok()
                && let Some(answer) = self.next()?
            {
                return Ok(Some(answer));
            }
            pause();
            match connect(&self.drive) {
                Ok(Some(next)) => *self = next,
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Requests a transfer; `None` if the server ended before the transfer began.
    ///
    /// # Errors
    /// Same as [`Client::ask`].
    pub(crate) fn send(mut self, wanted: Wanted) -> Result<Option<Arrival>> {
        let mut answer = self.first(&Request::Send(wanted))?;
        loop {
            answer = match answer {
                None => return Ok(None),
                Some(Answer::Progress(_)) => self.next()?,
                Some(Answer::Sending(sending)) => {
                    return Ok(Some(Arrival { sending: *sending, client: self }));
                }
                Some(_) => return Err(malformed(&self.drive)),
            }
        }
    }

    /// Returns the next answer; `None` if the server ended.
    fn next(&mut self) -> Result<Option<Answer>> {
        let mut line = Vec::new();
        let read = self.stream.by_ref().take(ANSWER_BYTES_MAX).read_until(b'\n', &mut line);
        match read {
            Ok(_) if line.last() == Some(&b'\n') => {}
            Ok(_) if line.len() as u64 == ANSWER_BYTES_MAX => return Err(malformed(&self.drive)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(self.silent(error));
            }
            _ => return Ok(None),
        }
        let answer: Answer = serde_json::from_slice(&line)
            .map_err(|error| malformed(&self.drive).caused_by(error))?;
        match answer {
            Answer::Failed { kind, what } => Err(Error::new(kind, what)),
            answer => Ok(Some(answer)),
        }
    }

    fn silent(&self, error: io::Error) -> Error {
        let drive = self.drive.display();
        let what = format!("the server of {drive} does not answer: try again later");
        Error::new(ErrorKind::Busy, what).caused_by(error)
    }
}

/// A snapshot that a server offers as a file until this is dropped.
#[cfg(feature = "attach")]
pub(crate) struct Loan(Client);

#[cfg(feature = "attach")]
impl Loan {
    /// Ends the loan, and waits until the file is gone, for at most ten seconds.
    pub(crate) fn end(mut self) {
        let _ = self.0.stream.get_ref().shutdown(Shutdown::Write);
        let _ = self.0.stream.read(&mut [0]);
    }
}

/// A transfer on its way from a server.
pub(crate) struct Arrival {
    /// The snapshots of the transfer.
    pub(crate) sending: Sending,
    client: Client,
}

/// The next event of a transfer.
pub(crate) enum Arrived {
    /// Bytes, and the end of the part of the disk that they complete.
    Part(Vec<u8>, u64),
    /// No data yet: the server is searching for differences.
    Nothing,
    /// The end.
    End(Sent),
}

impl Arrival {
    /// Returns the next event, with bytes in `buffer`.
    ///
    /// # Errors
    /// The error of the server, which then sends no more; `Busy` if it sends nothing for ten
    /// seconds, or ended before the transfer did; `Unsupported` if an answer is malformed.
    pub(crate) fn next(&mut self, mut buffer: Vec<u8>) -> Result<Arrived> {
        match self.client.next()? {
            None => Err(self.ended()),
            Some(Answer::Progress(_)) => Ok(Arrived::Nothing),
            Some(Answer::Sent(sent)) => Ok(Arrived::End(sent)),
            Some(Answer::Part(Part { offset, bytes: bytes @ 0..=PART_BYTES_MAX })) => {
                buffer.resize(usize::try_from(bytes).expect("a few MiB"), 0);
                match self.client.stream.read_exact(&mut buffer) {
                    Ok(()) => Ok(Arrived::Part(buffer, offset)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        Err(self.client.silent(error))
                    }
                    Err(_) => Err(self.ended()),
                }
            }
            Some(_) => Err(malformed(&self.client.drive)),
        }
    }

    fn ended(&self) -> Error {
        let what = format!(
            "the server of {} ended before the transfer: try again later",
            self.client.drive.display()
        );
        Error::new(ErrorKind::Busy, what)
    }
}
