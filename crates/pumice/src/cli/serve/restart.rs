//! Restarts a server in the same process: the program is executed again with the same arguments,
//! and continues with the listening sockets and the clients.
//!
//! The file of the program may be a newer version by then. The drives are closed in between, as in
//! any orderly shutdown, so that only sockets are handed over, and a failure in between is no worse
//! than a restart with downtime.
//!
//! ```text
//! PUMICE_HANDOVER       the process that the handover is for
//! LISTEN_FDS, ..        the socket that contains the handover, passed as by systemd
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

/// Returns what the previous server left to this process; `None` if there was none.
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

/// Returns the program to restart as: the file that this one was started from, if it runs and
/// accepts the arguments and the current configuration.
///
/// # Errors
/// It does not.
pub(super) fn program() -> Result<PathBuf> {
    let path = env::current_exe().map_err(|error| Error::os("cannot find this program", error))?;
    // Linux appends this to the name of a file that was replaced.
    let text = path.to_str().and_then(|path| path.strip_suffix(" (deleted)"));
    let path = text.map_or(path.clone(), PathBuf::from);
    // A positional after `--` must not swallow the option, so it is inserted where options are
    // allowed.
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

/// Executes `program`, which continues with the handover. Returns only on failure; the clients are
/// then lost.
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
