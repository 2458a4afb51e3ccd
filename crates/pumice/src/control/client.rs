//! The client's side of a control socket. Blocks, for commands that have nothing else to do.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::directory::{SOCKET_SUFFIX, private_directory, socket_path};
use super::protocol::{ANSWER_BYTES_MAX, Answer, Request, Service, line};
#[cfg(feature = "top")]
use crate::watch::Snapshot;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::controller::Info;

/// Time limit for a busy server; a long request reports progress more often.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to the server of a drive.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
    drive: PathBuf,
}

/// Connects to the server of the drive at `drive`; `None` if there is none.
///
/// # Errors
/// `NotFound` if there is nothing at `drive`.
pub(crate) fn connect(drive: &Path) -> Result<Option<Client>> {
    let Ok(stream) = UnixStream::connect(socket_path(drive)?) else { return Ok(None) };
    client(stream, drive).map(Some)
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
/// Those of [`connect`] and [`Client::ask`].
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
/// Those of [`connect`] and [`Client::ask`].
pub(crate) fn service(drive: &Path) -> Result<Option<Service>> {
    let Some(client) = connect(drive)? else { return Ok(None) };
    match client.ask(&Request::Service {}, |_| ())? {
        None => Ok(None),
        Some(Answer::Service(service)) => Ok(Some(service)),
        Some(_) => Err(malformed(drive)),
    }
}

/// Asks all servers of this user: how each drive is served, and its info. Those that have ended are
/// left out.
///
/// # Errors
/// The directory of the sockets cannot be read.
pub(crate) fn servers() -> Result<Vec<Result<(Service, Info)>>> {
    let directory = private_directory()?;
    let entries = fs::read_dir(&directory)
        .map_err(|error| Error::os(format!("cannot read {}", directory.display()), error))?;
    let sockets = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let sockets =
        sockets.filter(|path| path.extension().is_some_and(|suffix| suffix == SOCKET_SUFFIX));
    Ok(sockets.filter_map(|socket| server(&socket).transpose()).collect())
}

/// Asks the server at a socket; `None` if it has ended.
fn server(socket: &Path) -> Result<Option<(Service, Info)>> {
    let ask = |request: &Request| match UnixStream::connect(socket) {
        Ok(stream) => client(stream, socket)?.ask(request, |_| ()),
        Err(_) => Ok(None),
    };
    match (ask(&Request::Service {})?, ask(&Request::Info {})?) {
        (Some(Answer::Service(service)), Some(Answer::Info(info))) => Ok(Some((service, *info))),
        (None, _) | (_, None) => Ok(None),
        _ => Err(malformed(socket)),
    }
}

/// Requests a snapshot of the drive from its server; `None` if there is no server, or if it ends
/// before it answers.
///
/// # Errors
/// Those of [`connect`] and [`Client::ask`].
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
    /// `None` if the server ended before that.
    ///
    /// # Errors
    /// That of the request, if it failed; `Busy` if the server sends nothing for ten seconds;
    /// `Unsupported` if an answer is malformed.
    pub(crate) fn ask(
        mut self,
        request: &Request,
        mut visit: impl FnMut(Answer),
    ) -> Result<Option<Answer>> {
        if self.stream.get_mut().write_all(&line(request)).is_err() {
            return Ok(None);
        }
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = self.stream.by_ref().take(ANSWER_BYTES_MAX).read_until(b'\n', &mut line);
            match read {
                Ok(_) if line.last() == Some(&b'\n') => {}
                Ok(_) if line.len() as u64 == ANSWER_BYTES_MAX => {
                    return Err(malformed(&self.drive));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let drive = self.drive.display();
                    let what = format!("the server of {drive} does not answer: try again later");
                    return Err(Error::new(ErrorKind::Busy, what).caused_by(error));
                }
                _ => return Ok(None),
            }
            let answer: Answer = serde_json::from_slice(&line)
                .map_err(|error| malformed(&self.drive).caused_by(error))?;
            match answer {
                Answer::Failed { kind, what } => return Err(Error::new(kind, what)),
                answer if answer.is_last() => return Ok(Some(answer)),
                answer => visit(answer),
            }
        }
    }
}
