//! `pumice serve`: a drive as an NBD export, until a signal or a command ends it.

use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::open::{FileDrive, while_busy};
use super::{Outcome, print_json, size, thresholds};
use crate::base::{Error, Result};
use crate::codec::Codec;
use crate::controller::{COLD_FRAME_BLOCKS_DEFAULT, OpenOptions, WARN_THRESHOLDS_MAX};
use crate::runtime::{Backend, Runtime};
use crate::serve::control::ControlSocket;
use crate::serve::nbd::{Options, Server};
use crate::serve::{Listen, Listener};

/// Serve a drive over NBD until SIGINT, SIGTERM or SIGHUP
///
/// Without --unix, --listen or --run it listens on 127.0.0.1:10809. At the end everything is
/// flushed; a second signal does not wait for that. The log goes to stderr; PUMICE_LOG=debug makes
/// it longer.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice serve drive.pumice --unix /tmp/drive.sock
  pumice serve drive.pumice --listen 127.0.0.1:10809
  pumice serve drive.pumice --run 'qemu-img convert -n -O raw disk.img \"$uri\"'")]
pub(crate) struct Args {
    /// File or block device
    path: PathBuf,

    /// Listen on a Unix socket
    #[arg(long, value_name = "SOCKET")]
    unix: Option<PathBuf>,

    /// Listen on a TCP address; the protocol is neither encrypted nor authenticated
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,

    /// Refuse writes and change nothing
    #[arg(long)]
    read_only: bool,

    /// Run a shell command with $uri set, then end with its exit code
    #[arg(long, value_name = "COMMAND")]
    run: Option<String>,

    /// Memory for the map, about; what does not fit is read from the drive when it is needed
    #[arg(long, value_parser = size, default_value = "256M", value_name = "SIZE")]
    map_cache: u64,

    /// Log between checkpoints at most: what an opening after a crash reads again
    #[arg(long, value_parser = size, default_value = "1G", value_name = "SIZE")]
    checkpoint: u64,

    /// Compress what garbage collection moves with a denser codec: zstd or zstd:LEVEL
    #[arg(long, value_name = "CODEC")]
    recompress: Option<Codec>,

    /// Shares of the capacity in use at which to warn, up to four, in per cent; or none [default:
    /// those that the drive was created with]
    #[arg(long, value_parser = thresholds, value_name = "PERCENT,...")]
    warn: Option<[u8; WARN_THRESHOLDS_MAX]>,

    /// How the operating system is asked for I/O
    #[arg(long, value_enum, default_value_t = Io::Auto)]
    io: Io,

    /// Print the URIs as JSON once the drive is served
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Io {
    /// io_uring if the kernel allows it, else threads
    Auto,
    /// io_uring or nothing
    Uring,
    /// System calls on helper threads
    Threads,
}

impl Args {
    fn options(&self) -> OpenOptions {
        OpenOptions {
            read_only: self.read_only,
            map_cache_bytes: self.map_cache as usize,
            checkpoint_bytes: self.checkpoint,
            recompress: self.recompress,
            cold_frame_blocks: COLD_FRAME_BLOCKS_DEFAULT,
            warn_percent: self.warn,
        }
    }
}

/// Runs the subcommand.
///
/// # Errors
/// The drive cannot be opened, a socket is in use, or the command cannot be started.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let runtime = Runtime::new(match args.io {
        Io::Auto => Backend::Auto,
        Io::Uring => Backend::Uring,
        Io::Threads => Backend::Threads,
    })?;
    let signals = Arc::new(signal_socket()?);
    // Before the drive: a socket in use must change nothing on it.
    let (listeners, _private) = listeners(args, &runtime)?;
    let drive = super::open::drive(&runtime, &args.path, args.options())?;
    let uris: Vec<String> = listeners.iter().map(Listener::uri).collect();
    tracing::info!(
        "serving {} ({}, {} I/O) at {}",
        args.path.display(),
        if drive.medium().is_direct() { "direct" } else { "buffered" },
        runtime.backend_name(),
        uris.join(" and ")
    );
    let server = Server::new(runtime.clone(), drive.clone(), Options::default());
    for listener in listeners {
        runtime.spawn(server.clone().serve(listener));
    }
    let control = control(&runtime, &drive, &args.path);
    let code = serve_until_the_end(args, &runtime, signals, &uris);
    drop(control);
    let ended = runtime.block_on(async {
        let served = server.shutdown().await;
        served.and(drive.close().await)
    });
    // The tasks hold the runtime; without them the listeners' files go, too.
    runtime.drop_tasks();
    if let Err(error) = ended {
        super::say_error(&super::at_path(&args.path, error).chain());
        return Ok(Outcome::Problem);
    }
    Ok(code?.map_or(Outcome::Good, Outcome::Code))
}

/// Says where the drive is, runs the command if there is one, and waits for the end.
fn serve_until_the_end(
    args: &Args,
    runtime: &Runtime,
    signals: Arc<OwnedFd>,
    uris: &[String],
) -> Result<Option<u8>> {
    if args.json {
        print_json(&serde_json::json!({ "path": &args.path, "uris": uris }))?;
    }
    match &args.run {
        None => {
            runtime.block_on(runtime.receive(&signals, vec![0; 1], 0..1)).1.ok();
            Ok(None)
        }
        Some(command) => run_command(command, runtime, signals, &uris[0]).map(Some),
    }
}

/// The sockets asked for, and the directory of a private one.
fn listeners(args: &Args, runtime: &Runtime) -> Result<(Vec<Listener>, Option<tempfile::TempDir>)> {
    let mut listens = Vec::new();
    listens.extend(args.unix.clone().map(Listen::Unix));
    listens.extend(args.listen.map(Listen::Tcp));
    let mut private = None;
    if listens.is_empty() && args.run.is_some() {
        let directory = tempfile::Builder::new().prefix("pumice").tempdir();
        let directory = directory.map_err(|error| Error::os("cannot make a socket", error))?;
        listens.push(Listen::Unix(directory.path().join("socket")));
        private = Some(directory);
    } else if listens.is_empty() {
        listens.push(Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 10809))));
    }
    let bind = |listen| while_busy(runtime, || Listener::bind(listen));
    let listeners = listens.iter().map(bind).collect::<Result<_>>()?;
    Ok((listeners, private))
}

/// Lets other commands reach the drive. Serving works without.
fn control(runtime: &Runtime, drive: &Rc<FileDrive>, path: &Path) -> Option<ControlSocket> {
    let socket = ControlSocket::bind(path).inspect_err(|error| {
        tracing::warn!("no other command will reach this server: {}", error.chain());
    });
    let socket = socket.ok()?;
    runtime.spawn(socket.serve(runtime.clone(), drive.clone()));
    Some(socket)
}

/// A socket that gets a byte at SIGINT, SIGTERM or SIGHUP. A second signal ends the process as it
/// is: what was not flushed is lost.
fn signal_socket() -> Result<OwnedFd> {
    let cannot = |error| Error::os("cannot catch signals", error);
    let (receiver, sender) = UnixStream::pair().map_err(cannot)?;
    let is_ending = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let sender = sender.try_clone().map_err(cannot)?;
        // The order counts: the first signal finds the flag unset, and sets it.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, is_ending.clone())
            .and_then(|_| signal_hook::flag::register(signal, is_ending.clone()))
            .and_then(|_| signal_hook::low_level::pipe::register(signal, sender))
            .map_err(cannot)?;
    }
    Ok(receiver.into())
}

/// Runs a shell command to its end, which a signal hastens; gives its exit code.
fn run_command(command: &str, runtime: &Runtime, signals: Arc<OwnedFd>, uri: &str) -> Result<u8> {
    let cannot = |error| Error::os("cannot run /bin/sh", error);
    let (receiver, sender) = UnixStream::pair().map_err(cannot)?;
    let child = Command::new("/bin/sh").arg("-c").arg(command).env("uri", uri).spawn();
    let child = child.map_err(cannot)?;
    let pid = Pid::from_raw(child.id() as i32);
    std::thread::spawn(move || wait_for(child, sender));
    let passer = runtime.clone();
    runtime.spawn(async move {
        let _ = passer.receive(&signals, vec![0; 1], 0..1).await;
        // From a terminal the command has it already.
        pid.map(|pid| kill_process(pid, Signal::TERM));
    });
    let ended = Arc::new(receiver.into());
    let (code, received) = runtime.block_on(runtime.receive(&ended, vec![0; 1], 0..1));
    Ok(if received.is_ok_and(|count| count == 1) { code[0] } else { 1 })
}

/// Waits for a command's end and sends its exit code.
fn wait_for(mut child: Child, mut sender: UnixStream) {
    let code = child.wait().map_or(1, |status| {
        // As shells do: 128 and the signal.
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
    });
    // The other side is gone only when the process ends.
    let _ = sender.write_all(&[code as u8]);
}
