//! `pumice serve`: serves drives as NBD exports until a signal or a command ends it.

mod exports;
mod network;
mod restart;

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;

use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};

pub(crate) use self::exports::name_of;
use self::exports::{Names, Served};
use self::network::Network;
use super::open::Opening;
use super::signals::{self, Signals};
use super::{Outcome, print_json, thresholds};
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::controller::{OpenOptions, WARN_THRESHOLDS_MAX};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::{Handover, Options, Security, Server};
use pumice_nbd::{Listen, Listener};

/// Serve drives over NBD until SIGINT or SIGTERM
///
/// Each drive is an export named after its file; a single drive is also the default export. Without
/// --unix, --listen or --run, the server listens on 127.0.0.1:10809, or on the sockets passed by
/// systemd. On shutdown it flushes all drives; a second signal ends it at once. SIGHUP restarts the
/// server, possibly as a newer version, with the same arguments; clients notice only a pause. The
/// restarted server rereads its configuration and keeps its sockets. On a terminal, or with --run,
/// SIGHUP shuts the server down. The log goes to stderr; `pumice --log debug serve` logs more.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice serve drive.pumice --unix /tmp/drive.sock
  pumice serve drives/ --listen 127.0.0.1:10809
  pumice serve drive.pumice --listen 0.0.0.0:10809 --tls-certificates /etc/pumice --tls-verify-peer
  pumice serve drive.pumice --run 'qemu-img convert -n -O raw disk.img \"$uri\"'")]
pub(crate) struct Args {
    /// Files, block devices, or directories, of which all *.pumice files are served
    #[arg(required_unless_present = "config", value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Read options from a TOML file: each long option is a key (unix = "...", read-only = true),
    /// drives are paths = ["..."]; the command line and the environment take precedence
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Validate options, configuration and certificates, then exit; opens no drive
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    network: Network,

    #[command(flatten)]
    names: Names,

    #[command(flatten)]
    opening: Opening,

    /// Run a shell command with $uri set, then exit with its exit code
    #[arg(long, value_name = "COMMAND")]
    run: Option<String>,

    /// Used capacity at which to warn, up to four percentages; or none [default: as set when the
    /// drive was created]
    #[arg(long, value_parser = thresholds, value_name = "PERCENT,...")]
    warn: Option<[u8; WARN_THRESHOLDS_MAX]>,

    #[command(flatten)]
    watch: super::watch::Args,

    /// I/O backend
    #[arg(long, value_enum, default_value_t = Io::Auto)]
    io: Io,

    /// Print the URIs as JSON once the drives are served
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Io {
    /// io_uring if the kernel allows it, otherwise threads
    Auto,
    /// io_uring only
    Uring,
    /// System calls on helper threads
    Threads,
}

impl Args {
    fn options(&self) -> OpenOptions {
        OpenOptions { warn_percent: self.warn, ..self.opening.options() }
    }
}

/// Runs the subcommand.
///
/// # Errors
/// A drive cannot be opened, a socket is in use, or the command cannot be started.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    if let ([], Some(file)) = (&args.paths[..], &args.config) {
        let file = file.display();
        let what = format!("{file} names no drive: add paths = [\"...\"], or a PATH argument");
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let security = args.network.security()?;
    let paths = exports::expand(&args.paths)?;
    if args.check {
        return Ok(Outcome::Good);
    }
    let runtime = Runtime::new(match args.io {
        Io::Auto => Backend::Auto,
        Io::Uring => Backend::Uring,
        Io::Threads => Backend::Threads,
    })?;
    let signals = Signals::catch(args.run.is_none() && !signals::is_on_a_terminal())?;
    let inherited = inherited();
    let is_restarted = inherited.is_some();
    // Bind before opening the drives: if a socket is in use, the drives stay unchanged.
    let (Handover { listeners, clients }, _private) = match inherited {
        Some(handover) => (handover, None),
        None => listen(args, &runtime, &security)?,
    };
    let http = args.watch.bind()?;
    let mut served = exports::open_all(&runtime, &paths, &args.names, args.options())?;
    let uris = uris(&listeners, &served, matches!(security, Security::Require(_)));
    log_drives(&runtime, &served, &uris);
    let exports = served.iter().map(|drive| drive.export.clone()).collect();
    let mut options = Options::default();
    options.security = security;
    options.connections_max = args.network.connections_max();
    let server = Server::new(runtime.clone(), exports, options);
    for listener in listeners {
        runtime.spawn(server.clone().serve(listener));
    }
    clients.into_iter().for_each(|client| server.resume(client));
    let watch = super::watch::watch(&runtime, &server);
    exports::show_all(&runtime, &mut served, &args.watch, &watch);
    let watching = super::watch::serve(http, &runtime, &watch)?;
    let said = if args.json && !is_restarted { print_uris(&served, &uris) } else { Ok(()) };
    let end = said.and_then(|()| match &args.run {
        None => Ok(wait_for_a_signal(&runtime, &signals)),
        Some(command) => run_command(command, &runtime, &signals, &uris[0][0]).map(End::Command),
    });
    drop(watching);
    let left = match &end {
        Ok(End::Restart(_)) => runtime.block_on(server.hand_over()),
        _ => runtime.block_on(server.shutdown()).map(|()| Handover::default()),
    };
    let closed = exports::close_all(&runtime, &served);
    drop(served);
    // The tasks hold the runtime; dropping them also removes the files of the listeners.
    runtime.drop_tasks();
    let problem = match (left.and_then(|left| closed.map(|()| left)), end?) {
        (Ok(left), End::Restart(program)) => restart(&program, &left, &signals),
        (Ok(_), End::Command(code)) => return Ok(Outcome::Code(code)),
        (Ok(_), End::Signal) => None,
        (Err(error), _) => Some(error),
    };
    let Some(problem) = problem else { return Ok(Outcome::Good) };
    super::say_error(&problem.chain());
    Ok(Outcome::Problem)
}

/// Why the server ends.
enum End {
    /// A signal asked for shutdown.
    Signal,
    /// The command has ended, with this exit code.
    Command(u8),
    /// The server restarts as this program.
    Restart(PathBuf),
}

/// Returns what the previous server handed over, if there was one and it is usable.
fn inherited() -> Option<Handover> {
    let inherited = restart::inherited().unwrap_or_else(|error| {
        tracing::error!(error = %error.chain(), "restarted without the clients");
        None
    });
    if let Some(handover) = &inherited {
        tracing::info!(clients = handover.clients.len(), "restarted");
    }
    inherited
}

/// Restarts as `program`. Returns an error if that fails, or nothing if a signal has asked for
/// shutdown.
fn restart(program: &Path, left: &Handover, signals: &Signals) -> Option<Error> {
    if let Err(error) = signals::block() {
        return Some(error);
    }
    if signals.is_ending() {
        return None;
    }
    tracing::info!(program = %program.display(), clients = left.clients.len(), "restarting");
    Some(restart::become_program(program, left))
}

fn wait_for_a_signal(runtime: &Runtime, signals: &Signals) -> End {
    loop {
        runtime.block_on(signals.next(runtime));
        if signals.is_ending() {
            return End::Signal;
        }
        match restart::program() {
            Ok(program) => return End::Restart(program),
            Err(error) => {
                tracing::error!(error = %error.chain(), "not restarted: the server continues")
            }
        }
    }
}

/// Returns the URIs of each drive: one for each listener.
fn uris(listeners: &[Listener], served: &[Served], needs_tls: bool) -> Vec<Vec<String>> {
    // A single drive is the default export.
    let name = |drive: &Served| match served.len() {
        1 => String::new(),
        _ => drive.export.name.clone(),
    };
    let of = |drive: &Served| {
        let name = name(drive);
        listeners.iter().map(|listener| listener.uri(&name, needs_tls)).collect()
    };
    served.iter().map(of).collect()
}

fn log_drives(runtime: &Runtime, served: &[Served], uris: &[Vec<String>]) {
    for (drive, uris) in served.iter().zip(uris) {
        let is_direct = drive.drive.medium().is_direct();
        tracing::info!(
            drive = %drive.path.display(),
            caching = if is_direct { "direct" } else { "buffered" },
            io = runtime.backend_name(),
            uris = %uris.join(" "),
            "serving a drive"
        );
    }
}

/// Prints the URIs as JSON.
fn print_uris(served: &[Served], uris: &[Vec<String>]) -> Result<()> {
    let drive = |(drive, uris): (&Served, _)| {
        let (path, name) = (&drive.path, &drive.export.name);
        serde_json::json!({ "path": path, "name": name, "uris": uris })
    };
    let drives: Vec<_> = served.iter().zip(uris).map(drive).collect();
    print_json(&serde_json::json!({ "drives": drives }))
}

/// Returns the sockets passed by systemd, else those of the options, and the directory of a private
/// socket.
fn listen(
    args: &Args,
    runtime: &Runtime,
    security: &Security,
) -> Result<(Handover, Option<tempfile::TempDir>)> {
    let clients = Vec::new();
    let passed = Listener::passed()?;
    if !passed.is_empty() && !args.network.has_address() {
        return Ok((Handover { listeners: passed, clients }, None));
    }
    let mut private = None;
    let otherwise = if args.run.is_some() {
        let directory = tempfile::Builder::new().prefix("pumice").tempdir();
        let directory = directory.map_err(|error| Error::os("cannot create a socket", error))?;
        let socket = directory.path().join("socket");
        private = Some(directory);
        Listen::Unix(socket)
    } else {
        Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 10809)))
    };
    let mut listeners = args.network.listen(runtime, security, otherwise)?;
    listeners.extend(passed);
    Ok((Handover { listeners, clients }, private))
}

/// Runs a shell command, which a signal terminates; returns its exit code.
fn run_command(command: &str, runtime: &Runtime, signals: &Signals, uri: &str) -> Result<u8> {
    let cannot = |error| Error::os("cannot run /bin/sh", error);
    let (receiver, sender) = UnixStream::pair().map_err(cannot)?;
    let child = Command::new("/bin/sh").arg("-c").arg(command).env("uri", uri).spawn();
    let child = child.map_err(cannot)?;
    let pid = Pid::from_raw(child.id() as i32);
    std::thread::spawn(move || wait_for(child, sender));
    let (passer, signals) = (runtime.clone(), signals.clone());
    runtime.spawn(async move {
        signals.next(&passer).await;
        // A terminal sends the signal to the command as well.
        pid.map(|pid| kill_process(pid, Signal::TERM));
    });
    let ended = Arc::new(receiver.into());
    let (code, received) = runtime.block_on(runtime.receive(&ended, vec![0; 1], 0..1));
    Ok(if received.is_ok_and(|count| count == 1) { code[0] } else { 1 })
}

/// Waits for the end of a command and sends its exit code.
fn wait_for(mut child: Child, mut sender: UnixStream) {
    let code = child.wait().map_or(1, |status| {
        // As in shells: 128 plus the signal.
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
    });
    // The other side is closed only when the process ends.
    let _ = sender.write_all(&[code as u8]);
}
