//! `pumice serve`: serves drives over NBD, and to virtual machines, until a signal or a command
//! ends it.

mod command;
mod disk;
mod drive_thread;
mod expiry;
mod exports;
mod follow;
mod network;
mod reload;
mod restart;
mod snapshots;
mod tables;
mod threads;
mod uris;
#[cfg_attr(not(feature = "vhost"), path = "no_vhost.rs")]
mod vhost;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::ValueEnum;

pub(crate) use self::disk::ServedDisk;
use self::drive_thread::Plan;
#[cfg(feature = "attach")]
pub(crate) use self::exports::name_of;
use self::exports::{Names, Planned};
use self::network::Network;
use self::reload::Live;
use self::restart::{End, Inherited};
use self::tables::Exports;
pub(crate) use self::tables::TABLES;
use self::threads::Drives;
pub(super) use self::uris::Shown;
use super::config::FoundTable;
use super::keys::KeyArgs;
use super::open::Opening;
use super::signals::{self, Signals};
use super::watch::Access;
use super::{LogOptions, Outcome, chain, say_error, thresholds};
use crate::control;
use pumice_drive::controller::{OpenOptions, WARN_THRESHOLDS_MAX};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::{Handover, Listener, Options, Policy, Security, Server};

/// Serve drives over NBD until SIGINT or SIGTERM
///
/// Each drive is an export named after its file; a single drive is also the default export. Each
/// snapshot of a drive is the read-only export DRIVE@NAME. Without --unix, --listen, --vhost-user
/// or --run, the server listens on 127.0.0.1:10809, or on the sockets passed by systemd. On
/// shutdown it flushes all drives; a second signal ends it immediately. SIGHUP rereads
/// configuration and certificates. Access rules, limits, certificates, and added or removed drives
/// change while clients work; for any other change, or if nothing has changed, the server restarts,
/// possibly as a newer version, with the same arguments and sockets: clients notice only a pause.
/// On a terminal, or with --run, SIGHUP shuts the server down. The log goes to stderr; `pumice
/// --log debug serve` logs more.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(after_help = "\
Examples:
  pumice serve drive.pumice --unix /tmp/drive.sock
  pumice serve drives/ --listen 127.0.0.1:10809
  pumice serve drive.pumice --listen 0.0.0.0:10809 --tls-certificates /etc/pumice --tls-verify-peer
  pumice serve --follow s3://bucket/vm --unix /tmp/follower.sock
  pumice serve drive.pumice --run 'qemu-img convert -n -O raw disk.img \"$uri\"'")]
pub(crate) struct Args {
    /// Files, block devices, or directories, of which all *.pumice files are served
    #[arg(required_unless_present = "config", value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Read options from a TOML file: each long option is a key (unix = "...", read-only = true),
    /// drives are paths = ["..."]; the command line and the environment take precedence
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Validate options, configuration and certificates, print the exports, then exit; opens no
    /// drive
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    network: Network,

    #[command(flatten)]
    names: Names,

    #[command(flatten)]
    opening: Opening,

    /// Serve s3://BUCKET/NAME read-only while another machine writes it: looks for a newer commit
    /// at this interval, in seconds, moves on to it between two requests, and writes nothing to the
    /// bucket [default: 5]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "5",
        value_parser = clap::value_parser!(u32).range(1..=3600), value_name = "SECONDS",
        conflicts_with = "diskless")]
    follow: Option<u32>,

    #[command(flatten)]
    keys: KeyArgs,

    /// Run a shell command with $uri set, then exit with its exit code
    #[arg(long, value_name = "COMMAND")]
    run: Option<String>,

    /// Used capacity at which to warn, up to four percentages; or none [default: the drive's own
    /// setting, see `pumice set`]
    #[arg(long, value_parser = thresholds, value_name = "PERCENT,...")]
    warn: Option<[u8; WARN_THRESHOLDS_MAX]>,

    /// I/O backend
    #[arg(long, value_enum, default_value_t = Io::Auto)]
    io: Io,

    /// Print the URIs as JSON once the drives are served
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    watch: super::watch::Args,

    /// Tables of the configuration
    #[arg(skip)]
    exports: Exports,

    /// The log options, which belong to the program
    #[arg(skip)]
    log: LogOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Io {
    /// io_uring if the kernel allows it, otherwise threads
    Auto,
    /// io_uring only
    Uring,
    /// System calls on helper threads
    Threads,
}

impl From<Io> for Backend {
    fn from(io: Io) -> Self {
        match io {
            Io::Auto => Self::Auto,
            Io::Uring => Self::Uring,
            Io::Threads => Self::Threads,
        }
    }
}

impl Args {
    /// Takes settings that are not flags of this subcommand: tables, and the log options.
    ///
    /// # Errors
    /// A table contradicts itself.
    pub(crate) fn take(&mut self, tables: Vec<FoundTable>, log: LogOptions) -> Result<()> {
        self.exports = Exports::new(tables)?;
        self.log = log;
        Ok(())
    }

    /// Returns the drives to serve, and the TLS settings.
    ///
    /// # Errors
    /// Options or tables that contradict each other; a certificate that cannot be used; a directory
    /// without drives.
    fn prepare(&self) -> Result<(Security, Vec<Planned>)> {
        let has_drives = self.exports.has_drives() || !self.paths.is_empty();
        if let (false, Some(file)) = (has_drives, &self.config) {
            let file = file.display();
            bail!("{file} names no drive: add paths = [\"...\"], or a PATH argument");
        }
        let security = self.network.security()?;
        self.opening.hint(&self.paths);
        let found = exports::expand(&self.paths)?;
        vhost::check(&self.network, found.len())?;
        let options = |path: &Path| self.options(path);
        let mut drives = exports::plan(found, &self.names, &self.exports, options)?;
        vhost::check(&self.network, drives.len())?;
        if let Some(seconds) = self.follow {
            if self.network.vhost_user().is_some() {
                bail!("--follow is for clients over NBD: a guest expects that its disk stays");
            }
            let every_ns = u64::from(seconds) * 1_000_000_000;
            drives.iter_mut().try_for_each(|drive| drive.follow(every_ns))?;
        }
        let names: Vec<_> = drives.iter().map(|drive| &*drive.name).collect();
        self.exports.check(&names, self.network.verifies_peers())?;
        Ok((security, drives))
    }

    /// Returns the rules and limits for clients.
    fn policy(&self) -> Policy {
        self.network.policy(self.exports.rules())
    }

    fn server_options(&self, security: Security) -> Options {
        let mut options = Options::default();
        options.security = security;
        options.connections_max = self.network.connections_max();
        options.policy = self.policy();
        options
    }

    fn options(&self, path: &Path) -> OpenOptions {
        OpenOptions { warn_percent: self.warn, ..self.opening.options(path) }
    }

    /// Returns how many threads serve this number of drives in addition to this one; 0 if this
    /// thread serves them itself.
    fn threads(&self, drives: usize) -> usize {
        let threads = self.opening.threads();
        // The virtual machine's memory belongs to this thread.
        if threads == 1 || self.network.vhost_user().is_some() {
            return 0;
        }
        threads.min(drives)
    }

    /// Returns the I/O backend for the threads of drives: the same as for `runtime`, which has
    /// already warned about missing features.
    fn backend(&self, runtime: &Runtime) -> Backend {
        match Backend::from(self.io) {
            Backend::Auto if runtime.backend_name() == "threads" => Backend::Threads,
            backend => backend,
        }
    }
}

/// Runs the subcommand.
///
/// # Errors
/// A drive cannot be opened, a socket is in use, or the command cannot be started.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.keys.provide();
    let (security, drives) = args.prepare()?;
    let access = args.watch.access()?;
    if args.check {
        exports::check(&drives)?;
        // A restarted server keeps its sockets.
        let addresses = restart::inherited_addresses().into_iter().chain(args.network.address());
        args.network.check_reach(addresses, &security)?;
        let names: Vec<_> = drives.iter().map(|drive| &*drive.name).collect();
        super::print(&format!("valid: would serve {}\n", names.join(", ")))?;
        return Ok(Outcome::Good);
    }
    serve(args, security, drives, access)
}

/// Serves the planned drives until the server ends.
fn serve(
    args: &Args,
    security: Security,
    drives: Vec<Planned>,
    access: Option<Access>,
) -> Result<Outcome> {
    let runtime = Runtime::new(args.io.into())?;
    let signals = Signals::catch(args.run.is_none() && !signals::is_on_a_terminal())?;
    let inherited = restart::inherited();
    let is_restarted = matches!(inherited, Inherited::Sockets(_));
    // Bind before opening the drives: if a socket is in use, the drives stay unchanged.
    let (Handover { listeners, clients, others }, _private) = match inherited {
        Inherited::Sockets(handover) => (handover, None),
        other => {
            let (runs_a_command, is_lost) = (args.run.is_some(), matches!(other, Inherited::Lost));
            let sockets = args.network.listen(&runtime, &security, runs_a_command, is_lost)?;
            let listeners = sockets.listeners;
            (Handover { listeners, ..Handover::default() }, sockets.private)
        }
    };
    control::take_over_sockets(others);
    let addresses: Vec<_> = listeners.iter().filter_map(Listener::tcp_address).collect();
    args.network.check_reach(addresses.iter().copied(), &security)?;
    let front_ends = vhost::Socket::bind(&args.network, &runtime)?;
    let http = super::watch::bind(access)?;
    let needs_tls = matches!(security, Security::Require(_));
    let endpoints: Vec<_> = listeners.iter().map(Listener::endpoint).collect();
    let mut live = Live::new(args, &security, &drives, endpoints.clone());
    let threads = args.threads(drives.len());
    let options = args.server_options(security);
    let (pool, busy_poll_ns) = (args.opening.pool()?, args.opening.busy_poll_ns());
    let plan = Plan { drives, pool, threads: 1, options, busy_poll_ns };
    let (mut drives, server) = Drives::open(&runtime, plan, threads, args.backend(&runtime))?;
    let described = drives.described().concat();
    let uris = uris::of(&endpoints, &described, needs_tls);
    uris::log(&described, &uris);
    runtime.spawn(expiry::watch(runtime.clone(), server.tally().clone()));
    for listener in listeners {
        runtime.spawn(server.clone().serve(listener));
    }
    clients.into_iter().for_each(|client| server.resume(client));
    let device = front_ends.serve(&runtime, drives.here(), restart::inherited_guest().as_deref());
    let (watching, answerers) = super::watch::serve(http, drives.names())?;
    drives.show(&runtime, answerers, &server, args.watch.terms(), &uris);
    control::remove_kept_sockets();
    let printed = if args.json && !is_restarted { uris::print(&described, &uris) } else { Ok(()) };
    super::notify::ready();
    let end = printed.and_then(|()| match &args.run {
        None => Ok(restart::wait_for_a_signal(&runtime, &signals, &addresses, |is_replaced| {
            live.reload(&runtime, &server, &mut drives, is_replaced)
        })),
        Some(command) => command::run(command, &runtime, &signals, &uris[0][0]).map(End::Command),
    });
    drop(watching);
    let left = disconnect(&runtime, &server, &device, &signals, &end);
    let closed = drives.close();
    // The tasks hold the runtime; dropping them also removes the files of the listeners.
    runtime.drop_tasks();
    let problem = match (left.and_then(|left| closed.map(|()| left)), end?) {
        (Ok((left, guest)), End::Restart(program)) => {
            restart::restart(&program, left, guest, &signals)
        }
        (Ok(_), End::Command(code)) => return Ok(Outcome::Code(code)),
        (Ok(_), End::Signal) => None,
        (Err(error), _) => Some(error),
    };
    let Some(problem) = problem else { return Ok(Outcome::Good) };
    say_error(&chain(&problem));
    Ok(Outcome::Problem)
}

/// Ends all sessions; returns the clients and the state of a guest, for the next server.
fn disconnect(
    runtime: &Runtime,
    server: &Server,
    device: &vhost::Device,
    signals: &Signals,
    end: &Result<End>,
) -> Result<(Handover, Option<String>)> {
    // Both sides end, even if a flush fails.
    if let Ok(End::Restart(_)) = end {
        control::keep_sockets();
        let guest = runtime.block_on(device.hand_over(signals.next(runtime)));
        let clients = runtime.block_on(server.hand_over());
        return Ok((clients?, guest?));
    }
    let ended = runtime.block_on(device.shutdown());
    runtime.block_on(server.shutdown())?;
    ended.map(|()| (Handover::default(), None))
}
