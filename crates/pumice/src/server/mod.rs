//! A server of drives: its sockets, its threads, and the steps of its life.
//!
//! ```text
//! Sockets::open      listens, or takes over the sockets of the previous server
//! Server::open       opens the drives
//! Server::publish    clients, guests, monitoring and other commands reach them
//! Server::wait       until a signal, or the end of a command; SIGHUP reloads
//! Server::end        clients leave, or are kept for the next server; the drives are closed
//! ```
//!
//! * `sockets`, `uris`: where clients connect; `vhost`, `watch`: virtual machines, monitoring.
//! * `threads`, `drive_thread`: where the drives are; `exports`, `snapshots`: the drives, from
//!   opening to closing; `disk`, `follow`: the disks of the exports.
//! * `reload`, `restart`: SIGHUP; `expiry`: certificates; `command`: the command of `--run`.
//!
//! Nothing here parses a flag or prints: `cli::serve` turns the arguments into [`Settings`]. Drives
//! are opened as all subcommands open them, by `open` and with the keys of `keys`.

mod command;
mod disk;
mod drive_thread;
mod expiry;
mod exports;
mod follow;
mod reload;
mod restart;
mod snapshots;
mod sockets;
mod threads;
mod uris;
#[cfg_attr(not(feature = "vhost"), path = "no_vhost.rs")]
mod vhost;
mod watch;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::Result;

pub(crate) use self::drive_thread::Described;
use self::drive_thread::Plan;
pub(crate) use self::exports::Planned;
use self::restart::End;
use self::sockets::Sockets;
use self::threads::Drives;
pub(crate) use self::watch::Access;
use self::watch::Serving;
use crate::control;
use crate::notify;
use crate::open;
use crate::signals::{self, Signals};
use crate::watch::Terms;
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::{Endpoint, Handover, Listener, Options, Security};

/// The settings of a server.
pub(crate) struct Settings {
    pub(crate) offer: Offer,
    /// Unix socket to listen on.
    pub(crate) unix: Option<PathBuf>,
    pub(crate) unix_access: pumice_nbd::Access,
    /// TCP address to listen on.
    pub(crate) tcp: Option<SocketAddr>,
    /// Unix socket for front ends of vhost-user.
    pub(crate) vhost_user: Option<PathBuf>,
    /// Whether other machines may access the drives without encryption.
    pub(crate) insecure: bool,
    pub(crate) io: Backend,
    /// Threads of the drives; 0 if they are on the thread of the server.
    pub(crate) threads: usize,
    /// Threads that only compress.
    pub(crate) compressors: usize,
    /// See [`Runtime::set_busy_poll`].
    pub(crate) busy_poll_ns: u64,
    /// Shell command whose end also ends the server.
    pub(crate) command: Option<String>,
    /// Access rules for HTTP, if it is served.
    pub(crate) access: Option<Access>,
    pub(crate) terms: Terms,
    /// Called once the drives are served, but not after a restart.
    pub(crate) announce: Option<Announce>,
    /// Reads the configuration again; returns `None` if more has changed than the offer.
    pub(crate) reread: Box<dyn Fn() -> Result<Option<Offer>>>,
}

/// Reports the served drives to the user, with the URIs of each.
pub(crate) type Announce = fn(&[Described], &[Vec<String>]) -> Result<()>;

/// The settings that may change while clients are served.
#[derive(Clone)]
pub(crate) struct Offer {
    pub(crate) drives: Vec<Planned>,
    /// Security and limits; the number of connections cannot change.
    pub(crate) options: Options,
}

/// The end of a server.
pub(crate) enum Ended {
    /// A signal has requested it, and all data is durable.
    Well,
    /// The command has ended, with this exit code.
    Command(u8),
    /// A drive could not be closed, or the server could not restart.
    Badly(anyhow::Error),
}

/// A server whose drives are open.
struct Server<'a> {
    settings: &'a Settings,
    /// The current offer.
    offer: Offer,
    runtime: Runtime,
    signals: Signals,
    addresses: Vec<SocketAddr>,
    endpoints: Vec<Endpoint>,
    drives: Drives,
    /// The server that clients connect to.
    server: Rc<pumice_nbd::Server>,
    device: vhost::Device,
    watching: Option<Serving>,
    /// Whether a reload failed halfway, so that only a restart helps.
    is_broken: bool,
}

/// Serves until the server ends.
///
/// # Errors
/// A drive cannot be opened, a socket is in use, or the command cannot be started.
pub(crate) fn run(settings: &Settings) -> Result<Ended> {
    let runtime = Runtime::new(settings.io)?;
    let signals = Signals::catch(settings.command.is_none() && !signals::is_on_a_terminal())?;
    // Bind before opening the drives: if a socket is in use, the drives stay unchanged.
    let mut sockets = Sockets::open(&runtime, settings)?;
    let _private = sockets.private.take();
    let mut server = Server::open(settings, runtime, signals, &sockets)?;
    let end = server.publish(sockets).and_then(|()| server.wait());
    server.end(end)
}

impl Settings {
    /// Checks the drives and the addresses, as far as possible without opening a drive.
    ///
    /// # Errors
    /// A file holds no drive; other machines can reach an address without encryption.
    pub(crate) fn check(&self) -> Result<()> {
        exports::check(&self.offer.drives)?;
        // A restarted server keeps its sockets.
        self.check_reach(restart::inherited_addresses().into_iter().chain(self.tcp))
    }
}

impl<'a> Server<'a> {
    /// Opens the drives.
    fn open(
        settings: &'a Settings,
        runtime: Runtime,
        signals: Signals,
        sockets: &Sockets,
    ) -> Result<Self> {
        let Offer { drives, options } = settings.offer.clone();
        let (pool, busy_poll_ns) = (open::pool(settings.compressors)?, settings.busy_poll_ns);
        let plan = Plan { drives, pool, threads: 1, options, busy_poll_ns };
        // The same for all threads: the runtime of this one has warned about missing features.
        let io = match settings.io {
            Backend::Auto if runtime.backend_name() == "threads" => Backend::Threads,
            backend => backend,
        };
        let (drives, server) = Drives::open(&runtime, plan, settings.threads, io)?;
        Ok(Self {
            settings,
            offer: settings.offer.clone(),
            runtime,
            signals,
            addresses: sockets.listeners.iter().filter_map(Listener::tcp_address).collect(),
            endpoints: sockets.listeners.iter().map(Listener::endpoint).collect(),
            drives,
            server,
            device: Default::default(),
            watching: None,
            is_broken: false,
        })
    }

    /// Returns the drives, and the URIs of each.
    fn described(&self) -> (Vec<Described>, Vec<Vec<String>>) {
        let described = self.drives.described().concat();
        let needs_tls = matches!(self.offer.options.security, Security::Require(_));
        let uris = uris::of(&self.endpoints, &described, needs_tls);
        (described, uris)
    }

    /// Makes the drives reachable.
    fn publish(&mut self, sockets: Sockets) -> Result<()> {
        let Sockets { listeners, clients, front_ends, http, is_restarted, .. } = sockets;
        let (described, uris) = self.described();
        uris::log(&described, &uris);
        let (runtime, server) = (&self.runtime, &self.server);
        runtime.spawn(expiry::watch(runtime.clone(), server.tally().clone()));
        for listener in listeners {
            runtime.spawn(server.clone().serve(listener));
        }
        clients.into_iter().for_each(|client| server.resume(client));
        let guest = restart::inherited_guest();
        self.device = front_ends.serve(runtime, self.drives.here(), guest.as_deref());
        let (watching, answerers) = watch::serve(http, self.drives.names())?;
        self.watching = watching;
        self.drives.show(runtime, answerers, server, self.settings.terms, &uris);
        control::remove_kept_sockets();
        let announced = match self.settings.announce {
            Some(announce) if !is_restarted => announce(&described, &uris),
            _ => Ok(()),
        };
        notify::ready();
        announced
    }

    /// Waits for a reason to end, and reloads until then.
    fn wait(&mut self) -> Result<End> {
        let Some(command) = &self.settings.command else { return Ok(self.wait_for_a_signal()) };
        let (_, uris) = self.described();
        command::run(command, &self.runtime, &self.signals, &uris[0][0]).map(End::Command)
    }

    /// Hands over to the next program, or ends.
    fn end(mut self, end: Result<End>) -> Result<Ended> {
        drop(self.watching.take());
        let left = self.disconnect(&end);
        let closed = self.drives.close();
        // The tasks hold references to the runtime; dropping them also removes the files of the
        // listeners.
        self.runtime.drop_tasks();
        let problem = match (left.and_then(|left| closed.map(|()| left)), end?) {
            (Ok((left, guest)), End::Restart(program)) => {
                restart::restart(&program, left, guest, &self.signals)
            }
            (Ok(_), End::Command(code)) => return Ok(Ended::Command(code)),
            (Ok(_), End::Signal) => None,
            (Err(error), _) => Some(error),
        };
        Ok(problem.map_or(Ended::Well, Ended::Badly))
    }

    /// Ends all sessions; returns the clients and the state of a guest, for the next server.
    fn disconnect(&self, end: &Result<End>) -> Result<(Handover, Option<String>)> {
        let Self { runtime, server, device, signals, .. } = self;
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
}
