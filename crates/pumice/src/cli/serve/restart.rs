//! A server that makes way for the next one in the same process: the program is executed again,
//! with the same arguments, and goes on with the listening sockets and the clients.
//!
//! The file of the program may be a newer one by then. The drives are closed in between, as at any
//! orderly end, so that nothing but sockets goes from one to the other, and a failure in between
//! is no worse than a restart with downtime.
//!
//! ```text
//! PUMICE_HANDOVER       the process that is meant
//! LISTEN_FDS, ..        the socket that the handover is in, as systemd passes its own
//! ```

use std::env;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use listenfd::ListenFd;
use rustix::io::{FdFlags, fcntl_setfd};

use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_nbd::Handover;

const PROCESS: &str = "PUMICE_HANDOVER";

/// What the server before left to this process; `None` if there was none.
///
/// # Errors
/// See [`Handover::receive`].
pub(super) fn inherited() -> Result<Option<Handover>> {
    if env::var(PROCESS).ok() != Some(process::id().to_string()) {
        return Ok(None);
    }
    let socket = ListenFd::from_env().take_unix_listener(0);
    let socket = socket.map_err(|error| Error::os("cannot take connections over", error))?;
    socket.map(|socket| Handover::receive(&UnixStream::from(OwnedFd::from(socket)))).transpose()
}

/// The program to go on with: what is now where this one was started from, if it runs, and takes
/// the arguments and what the configuration says by now.
///
/// # Errors
/// It does not.
pub(super) fn program() -> Result<PathBuf> {
    let path = env::current_exe().map_err(|error| Error::os("cannot find this program", error))?;
    // So does Linux name a file that was replaced.
    let text = path.to_str().and_then(|path| path.strip_suffix(" (deleted)"));
    let path = text.map_or(path.clone(), PathBuf::from);
    // A positional after `--` must not swallow the flag, so it goes where flags may be for sure.
    let args: Vec<_> = env::args_os().skip(1).collect();
    let at = args.iter().position(|arg| arg == "serve").map_or(args.len(), |at| at + 1);
    let (before, after) = args.split_at(at);
    let tried = Command::new(&path).args(before).arg("--check").args(after).output();
    let tried =
        tried.map_err(|error| Error::os(format!("cannot run {}", path.display()), error))?;
    if tried.status.success() {
        return Ok(path);
    }
    let said = String::from_utf8_lossy(&tried.stderr);
    let what = format!("{} --check: {}, {}", path.display(), tried.status, said.trim());
    Err(Error::new(ErrorKind::InvalidInput, what.replace('\n', "; ")))
}

/// Becomes `program`, which goes on with the handover. Returns only if that fails; the clients are
/// lost then.
pub(super) fn become_program(program: &Path, handover: &Handover) -> Error {
    let become_it = || -> Result<Error> {
        let cannot = |error| Error::os("cannot hand connections over", error);
        let (ours, theirs) = UnixStream::pair().map_err(cannot)?;
        handover.send(&ours)?;
        fcntl_setfd(&theirs, FdFlags::empty()).map_err(|error| cannot(error.into()))?;
        let process = process::id().to_string();
        let error = Command::new(program)
            .args(env::args_os().skip(1))
            .env(PROCESS, &process)
            .env("LISTEN_PID", &process)
            .env("LISTEN_FDS", "1")
            .env("LISTEN_FDS_FIRST_FD", theirs.as_raw_fd().to_string())
            .exec();
        Ok(Error::os(format!("cannot run {}", program.display()), error))
    };
    become_it().unwrap_or_else(|error| error)
}
