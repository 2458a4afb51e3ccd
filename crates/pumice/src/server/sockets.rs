//! The sockets of a server: bound, passed by systemd, or taken over from the server that restarted
//! as this one.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::watch::{self, Http};
use super::{Settings, restart, vhost};
use crate::control;
use pumice_drive::base::clock::while_busy;
use pumice_drive::runtime::Runtime;
use pumice_nbd::{Handover, Listen, Listener, Parked, Security};

/// The sockets of a server.
pub(super) struct Sockets {
    pub(super) listeners: Vec<Listener>,
    /// The directory of a private socket, removed on drop.
    pub(super) private: Option<TempDir>,
    /// Clients of the previous server.
    pub(super) clients: Vec<Parked>,
    pub(super) front_ends: vhost::Socket,
    pub(super) http: Option<Http>,
    pub(super) is_restarted: bool,
}

impl Sockets {
    /// Takes the sockets of the previous server over, or else listens.
    ///
    /// # Errors
    /// Same as [`Settings::listen`].
    pub(super) fn open(runtime: &Runtime, settings: &Settings) -> Result<Self> {
        let inherited = restart::inherited();
        let is_restarted = matches!(inherited, Ok(Some(_)));
        let (Handover { listeners, clients, others }, private) = match inherited {
            Ok(Some(handover)) => (handover, None),
            none => {
                let (listeners, private) = settings.listen(runtime, none.is_err())?;
                (Handover { listeners, ..Handover::default() }, private)
            }
        };
        control::take_over_sockets(others);
        settings.check_reach(listeners.iter().filter_map(Listener::tcp_address))?;
        let front_ends = vhost::Socket::bind(settings, runtime)?;
        let http = watch::bind(settings.access.clone())?;
        Ok(Self { listeners, private, clients, front_ends, http, is_restarted })
    }
}

impl Settings {
    /// Returns the sockets passed by systemd and those of the settings. Without either, listens on
    /// a private socket if the server runs a command, else on the default port.
    ///
    /// # Errors
    /// An address is not permitted, or cannot be bound. The sockets of the previous server were
    /// lost, and no setting contains their addresses.
    fn listen(&self, runtime: &Runtime, lost: bool) -> Result<(Vec<Listener>, Option<TempDir>)> {
        let passed = Listener::passed()?;
        let (mut listeners, mut private) = (Vec::new(), None);
        let unix = self.unix.clone().map(Listen::Unix);
        let mut listens: Vec<_> = unix.into_iter().chain(self.tcp.map(Listen::Tcp)).collect();
        // A command needs a URI.
        let needs_no_other = self.vhost_user.is_some() && self.command.is_none();
        if listens.is_empty() && passed.is_empty() && !needs_no_other {
            if lost {
                bail!("the sockets of the previous server are lost: start this one again");
            }
            listens.push(self.otherwise(&mut private)?);
        }
        self.check_reach(passed.iter().filter_map(Listener::tcp_address).chain(self.tcp))?;
        for listen in &listens {
            listeners.push(self.bind(runtime, listen)?);
        }
        listeners.extend(passed);
        Ok((listeners, private))
    }

    /// Returns the default socket to listen on, if no address is given.
    fn otherwise(&self, kept: &mut Option<TempDir>) -> Result<Listen> {
        if self.command.is_none() {
            tracing::info!("every user of this machine may connect: --unix SOCKET restricts that");
            return Ok(Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 10809))));
        }
        let private = Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().prefix("pumice").permissions(private).tempdir();
        let directory = kept.insert(directory.context("cannot create a socket")?);
        Ok(Listen::Unix(directory.path().join("socket")))
    }

    /// Listens on one socket.
    ///
    /// # Errors
    /// It cannot be bound.
    pub(super) fn bind(&self, runtime: &Runtime, listen: &Listen) -> Result<Listener> {
        let access = self.unix_access;
        Ok(runtime.block_on(while_busy(runtime, || Listener::bind(listen, access)))?)
    }

    /// Checks that other machines can reach only encrypted sockets, unless the user allows
    /// otherwise.
    ///
    /// # Errors
    /// They can reach one of these addresses.
    pub(super) fn check_reach(
        &self,
        addresses: impl IntoIterator<Item = SocketAddr>,
    ) -> Result<()> {
        let is_encrypted = matches!(self.offer.options.security, Security::Require(_));
        let is_open = |address: &SocketAddr| !address.ip().is_loopback();
        let Some(address) = addresses.into_iter().find(is_open) else { return Ok(()) };
        if is_encrypted || self.insecure {
            return Ok(());
        }
        bail!(
            "other machines can reach {address}, and NBD is neither encrypted nor authenticated: \
             use --tls-certificates or --insecure"
        )
    }
}
