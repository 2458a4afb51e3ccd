//! Where `pumice serve` listens, and which clients it accepts.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use tempfile::TempDir;

use crate::cli::socket_address;
use pumice_drive::base::clock::while_busy;
use pumice_drive::runtime::Runtime;
use pumice_nbd::{Access, Listen, Listener};
use pumice_nbd::{Identity, Policy, Rules, Security};

/// Options of sockets and of TLS.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub(super) struct Network {
    #[command(flatten)]
    sockets: UnixSockets,

    /// Permissions of the Unix sockets, in octal [default: set by the umask]
    #[arg(long, value_name = "MODE", value_parser = mode, requires = "UnixSockets")]
    unix_mode: Option<u32>,

    /// Owner of the Unix sockets, by name or number
    #[arg(long, value_name = "USER[:GROUP]", value_parser = owner, requires = "UnixSockets")]
    unix_owner: Option<(Option<u32>, Option<u32>)>,

    /// Listen on a TCP address; an address that other machines can reach needs --tls require, or
    /// --insecure
    #[arg(long, value_name = "ADDR:PORT", value_parser = socket_address)]
    listen: Option<SocketAddr>,

    /// Allow other machines to access the drives without encryption
    #[arg(long)]
    insecure: bool,

    /// Whether clients may or must use TLS [default: require with --tls-certificates, else off]
    #[arg(long, value_enum, value_name = "WHETHER")]
    tls: Option<Tls>,

    /// Directory with server-cert.pem and server-key.pem, and ca-cert.pem for --tls-verify-peer
    #[arg(long, value_name = "DIR")]
    tls_certificates: Option<PathBuf>,

    /// Accept only clients with a certificate signed by ca-cert.pem
    #[arg(long, requires = "tls_certificates")]
    tls_verify_peer: bool,

    /// Maximum number of connections; further clients wait
    #[arg(long, value_name = "NUMBER", default_value_t = 256,
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    connections: u32,

    /// Maximum number of connections from one address, or of one user over Unix sockets; further
    /// ones are refused
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=65536))]
    connections_per_peer: Option<u32>,

    /// Disconnect clients that have sent no request for this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    idle_limit: Option<u32>,

    /// Do not tell clients the names of the exports
    #[arg(long)]
    no_list: bool,
}

/// Unix sockets to listen on.
#[derive(Clone, Debug, PartialEq, clap::Args)]
struct UnixSockets {
    /// Listen on a Unix socket
    #[arg(long, value_name = "SOCKET")]
    unix: Option<PathBuf>,

    /// Serve a single drive as a vhost-user-blk device on a Unix socket: a disk for QEMU,
    /// cloud-hypervisor and other virtual machine monitors that share their guests' memory. A guest
    /// of QEMU with reconnect=1 continues when SIGHUP restarts the server; other guests may need a
    /// restart; after any other shutdown, all do
    #[cfg(feature = "vhost")]
    #[arg(long, value_name = "SOCKET")]
    vhost_user: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tls {
    /// No TLS
    Off,
    /// TLS for clients that ask for it
    Allow,
    /// TLS for all clients
    Require,
}

/// The sockets of a server.
pub(super) struct Sockets {
    pub(super) listeners: Vec<Listener>,
    /// The directory of a private socket, removed on drop.
    pub(super) private: Option<TempDir>,
}

impl Sockets {
    /// Returns the default socket to listen on, if no address is given.
    fn otherwise(&mut self, runs_a_command: bool) -> Result<Listen> {
        if !runs_a_command {
            tracing::info!("every user of this machine may connect: --unix SOCKET restricts that");
            return Ok(Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 10809))));
        }
        let private = Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().prefix("pumice").permissions(private).tempdir();
        let directory = self.private.insert(directory.context("cannot create a socket")?);
        Ok(Listen::Unix(directory.path().join("socket")))
    }
}

impl Network {
    pub(super) fn connections_max(&self) -> usize {
        self.connections as usize
    }

    /// Returns the rules and limits for clients.
    pub(super) fn policy(&self, rules: BTreeMap<String, Rules>) -> Policy {
        Policy {
            rules,
            hides_names: self.no_list,
            connections_per_peer_max: self.connections_per_peer.map(|number| number as usize),
            idle_max_ns: self.idle_limit.map(|seconds| u64::from(seconds) * 1_000_000_000),
        }
    }

    /// Whether clients must show a certificate.
    pub(super) fn verifies_peers(&self) -> bool {
        self.tls_verify_peer
    }

    /// Returns these options, with those options of `other` that can change while clients are
    /// served.
    pub(super) fn with_policy_of(&self, other: &Self) -> Self {
        let (connections_per_peer, idle_limit) = (other.connections_per_peer, other.idle_limit);
        Self { connections_per_peer, idle_limit, no_list: other.no_list, ..self.clone() }
    }

    /// Returns the TLS settings, with the server's certificate.
    ///
    /// # Errors
    /// Options that contradict each other; errors of [`Identity::load`].
    pub(super) fn security(&self) -> Result<Security> {
        let with_certificates = self.tls_certificates.is_some();
        let tls = self.tls.unwrap_or(if with_certificates { Tls::Require } else { Tls::Off });
        let Some(directory) = &self.tls_certificates else {
            return match tls {
                Tls::Off => Ok(Security::Clear),
                _ => bail!("--tls needs the server's certificate: add --tls-certificates DIR"),
            };
        };
        if tls == Tls::Off {
            bail!("--tls off conflicts with --tls-certificates");
        }
        if tls == Tls::Allow && self.tls_verify_peer {
            bail!(
                "--tls-verify-peer conflicts with --tls allow, which lets clients in that have \
                 neither TLS nor a certificate"
            );
        }
        let identity = Identity::load(directory, self.tls_verify_peer)?;
        Ok(match tls {
            Tls::Allow => Security::Allow(identity),
            _ => Security::Require(identity),
        })
    }

    /// Returns the sockets passed by systemd and those of the options. Without either, listens on a
    /// private socket if the server runs a command, else on the default port.
    ///
    /// # Errors
    /// An address is not permitted, or cannot be bound. The sockets of the previous server were
    /// lost, and no option says where it listened.
    pub(super) fn listen(
        &self,
        runtime: &Runtime,
        security: &Security,
        runs_a_command: bool,
        lost_others: bool,
    ) -> Result<Sockets> {
        let passed = Listener::passed()?;
        let mut sockets = Sockets { listeners: Vec::new(), private: None };
        let mut listens = Vec::new();
        listens.extend(self.sockets.unix.clone().map(Listen::Unix));
        listens.extend(self.listen.map(Listen::Tcp));
        // A command needs a URI.
        let needs_no_other = self.vhost_user().is_some() && !runs_a_command;
        if listens.is_empty() && passed.is_empty() && !needs_no_other {
            if lost_others {
                bail!("the sockets of the previous server are lost: start this one again");
            }
            listens.push(sockets.otherwise(runs_a_command)?);
        }
        let passed_addresses = passed.iter().filter_map(Listener::tcp_address);
        self.check_reach(passed_addresses.chain(self.listen), security)?;
        for listen in &listens {
            sockets.listeners.push(self.bind(runtime, listen)?);
        }
        sockets.listeners.extend(passed);
        Ok(sockets)
    }

    /// Returns the path of the socket for front ends of vhost-user.
    pub(super) fn vhost_user(&self) -> Option<&Path> {
        #[cfg(feature = "vhost")]
        return self.sockets.vhost_user.as_deref();
        #[cfg(not(feature = "vhost"))]
        None
    }

    /// Listens on one socket.
    ///
    /// # Errors
    /// It cannot be bound.
    pub(super) fn bind(&self, runtime: &Runtime, listen: &Listen) -> Result<Listener> {
        let access = Access { mode: self.unix_mode, owner: self.unix_owner };
        Ok(runtime.block_on(while_busy(runtime, || Listener::bind(listen, access)))?)
    }

    /// Returns the address to listen on.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.listen
    }

    /// Checks that other machines can reach only encrypted sockets, unless the user allows
    /// otherwise.
    ///
    /// # Errors
    /// They can reach one of these addresses.
    pub(super) fn check_reach(
        &self,
        addresses: impl IntoIterator<Item = SocketAddr>,
        security: &Security,
    ) -> Result<()> {
        let is_encrypted = matches!(security, Security::Require(_));
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

fn mode(text: &str) -> std::result::Result<u32, String> {
    // A TOML file may contain the number without quotes.
    match u32::from_str_radix(text.strip_prefix("0o").unwrap_or(text), 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("expected an octal number such as 0660".into()),
    }
}

type Owner = (Option<u32>, Option<u32>);

fn owner(text: &str) -> std::result::Result<Owner, String> {
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    Ok((user_id(user)?, group_id(group)?))
}

pub(super) fn user_id(name: &str) -> std::result::Result<Option<u32>, String> {
    if name.is_empty() || name.parse::<u32>().is_ok() {
        return Ok(name.parse().ok());
    }
    match nix::unistd::User::from_name(name) {
        Ok(Some(user)) => Ok(Some(user.uid.as_raw())),
        Ok(None) => Err(format!("no such user: '{name}'")),
        Err(error) => Err(format!("cannot look up the user '{name}': {error}")),
    }
}

fn group_id(name: &str) -> std::result::Result<Option<u32>, String> {
    if name.is_empty() || name.parse::<u32>().is_ok() {
        return Ok(name.parse().ok());
    }
    match nix::unistd::Group::from_name(name) {
        Ok(Some(group)) => Ok(Some(group.gid.as_raw())),
        Ok(None) => Err(format!("no such group: '{name}'")),
        Err(error) => Err(format!("cannot look up the group '{name}': {error}")),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the limits of the command line apply to clients.
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        network: Network,
    }

    #[test]
    fn flags_become_limits() {
        let parse = |words: &[&str]| Line::try_parse_from(["serve"].iter().chain(words)).unwrap();
        let policy = |words: &[&str]| parse(words).network.policy(BTreeMap::new());
        assert_eq!(policy(&[]), Policy::default());
        let expected = Policy {
            hides_names: true,
            connections_per_peer_max: Some(3),
            idle_max_ns: Some(60_000_000_000),
            ..Policy::default()
        };
        let words = ["--no-list", "--connections-per-peer=3", "--idle-limit=60"];
        assert_eq!(policy(&words), expected);
        assert_eq!(parse(&["--connections=7"]).network.connections_max(), 7);
    }
}
