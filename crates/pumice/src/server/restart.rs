//! Restarts a server in the same process: the program is executed again with the same arguments,
//! and continues with the listening sockets and the clients.
//!
//! The file of the program may be a newer version by then. The drives are closed in between, as in
//! any orderly shutdown, so that only sockets are handed over, and a failure in between is no worse
//! than a restart with downtime.
//!
//! ```text
//! PUMICE_HANDOVER       the process that the handover is for
//! PUMICE_HANDOVER_GUEST the virtual machine that may continue on its disk; see `vhost`
//! PUMICE_HANDOVER_KEYS  a descriptor with passphrases that cannot be read again; see `keys`
//! PUMICE_HANDOVER_TCP   for --check: the addresses that the next server would inherit
//! LISTEN_FDS, ..        the socket that contains the handover, passed as by systemd
//! ```

use std::convert::Infallible;
use std::env;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Output, Stdio};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use async_channel::bounded;
use listenfd::ListenFd;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::Server;
use crate::control;
use crate::keys;
use crate::notify;
use crate::remedy::chain_of as chain;
use crate::signals::{self, Signals};
use pumice_drive::runtime::Runtime;
use pumice_nbd::Handover;

const PROCESS: &str = "PUMICE_HANDOVER";
const GUEST: &str = "PUMICE_HANDOVER_GUEST";
const KEYS: &str = "PUMICE_HANDOVER_KEYS";
const TCP: &str = "PUMICE_HANDOVER_TCP";

/// Time that the next program has to check its arguments and the configuration. Directories on an
/// unresponsive file server must not stall this one.
const CHECK_MAX_NS: u64 = 10_000_000_000;

/// The reason for the server's end.
pub(super) enum End {
    /// A signal requested shutdown.
    Signal,
    /// The command has ended, with this exit code.
    Command(u8),
    /// The server restarts as this program.
    Restart(PathBuf),
}

/// Returns the handover of the previous server, if there was one.
///
/// # Errors
/// It cannot be used.
pub(super) fn inherited() -> Result<Option<Handover>> {
    let inherited = received();
    match &inherited {
        Ok(None) => {}
        Ok(Some(handover)) => tracing::info!(clients = handover.clients.len(), "restarted"),
        Err(error) => tracing::error!(error = %chain(error), "restarted without the clients"),
    }
    inherited
}

/// Returns the addresses that the next server would inherit, if this process checks its program.
pub(super) fn inherited_addresses() -> Vec<SocketAddr> {
    let addresses = env::var(TCP).unwrap_or_default();
    addresses.split_whitespace().filter_map(|address| address.parse().ok()).collect()
}

/// Returns the previous server's description of its guest, if there was one.
pub(super) fn inherited_guest() -> Option<String> {
    if is_restarted() { env::var(GUEST).ok() } else { None }
}

/// Whether the environment is that of a restart of this process.
fn is_restarted() -> bool {
    env::var(PROCESS).ok() == Some(process::id().to_string())
}

/// Restarts as `program`. Returns an error if that fails, or nothing if a signal has requested
/// shutdown.
pub(super) fn restart(
    program: &Path,
    mut left: Handover,
    guest: Option<String>,
    signals: &Signals,
) -> Option<anyhow::Error> {
    left.others = control::kept_sockets();
    if let Err(error) = signals::block() {
        return Some(error);
    }
    if signals.is_ending() {
        return None;
    }
    tracing::info!(program = %program.display(), clients = left.clients.len(), "restarting");
    let Err(error) = become_program(program, &left, guest);
    Some(error)
}

impl Server<'_> {
    /// Waits for a signal. On SIGHUP reloads; if not all changes can be applied, the server has to
    /// restart.
    pub(super) fn wait_for_a_signal(&mut self) -> End {
        let (runtime, signals) = (self.runtime.clone(), self.signals.clone());
        loop {
            runtime.block_on(signals.next(&runtime));
            if signals.is_ending() {
                return End::Signal;
            }
            notify::reloading();
            let reloaded = runtime
                .block_on(program(&runtime, &self.addresses))
                .and_then(|program| Ok((self.reload(is_replaced(&program))?, program)));
            match reloaded {
                _ if signals.is_ending() => return End::Signal,
                Ok((true, _)) => notify::ready(),
                Ok((false, program)) => return End::Restart(program),
                Err(error) => {
                    tracing::error!(error = %chain(&error), "not restarted: the server continues");
                    notify::ready();
                }
            }
        }
    }
}

/// Returns the handover from the previous server to this process; `None` if there was none.
///
/// # Errors
/// See [`Handover::receive`].
fn received() -> Result<Option<Handover>> {
    if !is_restarted() {
        return Ok(None);
    }
    if let Some(descriptor) = env::var(KEYS).ok().and_then(|number| number.parse().ok())
        && let Err(error) = keys::take_over(descriptor)
    {
        tracing::error!(error = %error.chain(), "restarted without passphrases");
    }
    let socket = ListenFd::from_env().take_unix_listener(0);
    let Some(socket) = socket.context("cannot take connections over")? else { return Ok(None) };
    Ok(Some(Handover::receive(&UnixStream::from(OwnedFd::from(socket)))?))
}

/// Returns the program to restart as: the file that this one was started from, if it runs and
/// accepts the arguments and the current configuration. It would inherit sockets with these
/// addresses.
///
/// # Errors
/// The program does not run or does not accept them, or not in time.
async fn program(runtime: &Runtime, addresses: &[SocketAddr]) -> Result<PathBuf> {
    let path = env::current_exe().context("cannot find this program")?;
    // Linux appends this to the name of a file that was replaced.
    let text = path.to_str().and_then(|path| path.strip_suffix(" (deleted)"));
    let path = text.map_or(path.clone(), PathBuf::from);
    // A positional after `--` must not swallow the option, so it is inserted where options are
    // allowed.
    let args: Vec<_> = env::args_os().skip(1).collect();
    let at = args.iter().position(|arg| arg == "serve").map_or(args.len(), |at| at + 1);
    let (before, after) = args.split_at(at);
    let mut command = Command::new(&path);
    let addresses: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
    command.args(before).arg("--check").args(after).env(TCP, addresses.join(" "));
    let tried = output(runtime, command).await;
    let tried = tried.with_context(|| format!("cannot run {} --check", path.display()))?;
    if tried.status.success() {
        return Ok(path);
    }
    let said = String::from_utf8_lossy(&tried.stderr);
    let what = format!("{} --check: {}, {}", path.display(), tried.status, said.trim());
    bail!(what.replace('\n', "; "))
}

/// Whether the file of the program is no longer the one that this process executes.
fn is_replaced(program: &Path) -> bool {
    let file = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    file(program).is_none_or(|found| file(Path::new("/proc/self/exe")) != Some(found))
}

/// Returns the output of a command that ends in time, while the drives are served.
async fn output(runtime: &Runtime, mut command: Command) -> Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn()?;
    // Refers to this process only, even after it has ended.
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    let (sender, ended) = bounded(1);
    thread::spawn(move || sender.try_send(child.wait_with_output()));
    match runtime.timeout(CHECK_MAX_NS, ended.recv()).await {
        Some(output) => Ok(output??),
        None => {
            let _ = pidfd_send_signal(&process, Signal::KILL);
            bail!("it takes longer than {} seconds", CHECK_MAX_NS / 1_000_000_000)
        }
    }
}

/// Executes `program`, which continues with the handover. Returns only on failure; the clients are
/// then lost.
fn become_program(
    program: &Path,
    handover: &Handover,
    guest: Option<String>,
) -> Result<Infallible> {
    let cannot = "cannot hand connections over";
    let (ours, theirs) = UnixStream::pair().context(cannot)?;
    handover.send(&ours)?;
    fcntl_setfd(&theirs, FdFlags::empty()).context(cannot)?;
    let process = process::id().to_string();
    let mut command = Command::new(program);
    // Open until the program runs.
    let passphrases = keys::hand_over()?;
    let descriptor = passphrases.as_ref().map(|memory| memory.as_raw_fd().to_string());
    command.env_remove(KEYS).envs(descriptor.map(|descriptor| (KEYS, descriptor)));
    // A guest from an earlier restart is not the guest of this one.
    command.env_remove(TCP).env_remove(GUEST).envs(guest.map(|guest| (GUEST, guest)));
    let error = command
        .args(env::args_os().skip(1))
        .env(PROCESS, &process)
        .env("LISTEN_PID", &process)
        .env("LISTEN_FDS", "1")
        .env("LISTEN_FDS_FIRST_FD", theirs.as_raw_fd().to_string())
        .exec();
    Err(anyhow!(error).context(format!("cannot run {}", program.display())))
}
