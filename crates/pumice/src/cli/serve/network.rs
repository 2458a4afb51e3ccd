//! Where `pumice serve` listens, and which clients it accepts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::cli::socket_address;
use pumice_nbd::{Access, Identity, Options, Policy, Rules, Security};

/// Options of sockets and of TLS.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub(super) struct Network {
    #[command(flatten)]
    pub(super) sockets: UnixSockets,

    /// Permissions of the Unix sockets, in octal [default: set by the umask]
    #[arg(long, value_name = "MODE", value_parser = mode, requires = "UnixSockets")]
    unix_mode: Option<u32>,

    /// Owner of the Unix sockets, by name or number
    #[arg(long, value_name = "USER[:GROUP]", value_parser = owner, requires = "UnixSockets")]
    unix_owner: Option<(Option<u32>, Option<u32>)>,

    /// Listen on a TCP address; an address that other machines can reach needs --tls require, or
    /// --insecure
    #[arg(long, value_name = "ADDR:PORT", value_parser = socket_address)]
    pub(super) listen: Option<SocketAddr>,

    /// Allow other machines to access the drives without encryption
    #[arg(long)]
    pub(super) insecure: bool,

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
pub(super) struct UnixSockets {
    /// Listen on a Unix socket
    #[arg(long, value_name = "SOCKET")]
    pub(super) unix: Option<PathBuf>,

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
    /// TLS for clients that request it
    Allow,
    /// TLS for all clients
    Require,
}

impl Network {
    /// Returns security, rules and limits for clients.
    ///
    /// # Errors
    /// Same as [`Self::security`].
    pub(super) fn options(&self, rules: BTreeMap<String, Rules>) -> Result<Options> {
        let mut options = Options::default();
        options.security = self.security()?;
        options.connections_max = self.connections as usize;
        options.policy = Policy {
            rules,
            hides_names: self.no_list,
            connections_per_peer_max: self.connections_per_peer.map(|number| number as usize),
            idle_max_ns: self.idle_limit.map(|seconds| u64::from(seconds) * 1_000_000_000),
        };
        Ok(options)
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
    fn security(&self) -> Result<Security> {
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
                "--tls-verify-peer conflicts with --tls allow, which admits clients without \
                 TLS or a certificate"
            );
        }
        let identity = Identity::load(directory, self.tls_verify_peer)?;
        Ok(match tls {
            Tls::Allow => Security::Allow(identity),
            _ => Security::Require(identity),
        })
    }

    /// Returns the permissions and owner of the Unix sockets.
    pub(super) fn unix_access(&self) -> Access {
        Access { mode: self.unix_mode, owner: self.unix_owner }
    }

    /// Checks that there is only one drive, if a device is configured.
    ///
    /// # Errors
    /// There are several.
    pub(super) fn check_device(&self, drives: usize) -> Result<()> {
        if self.vhost_user().is_some() && drives > 1 {
            bail!("--vhost-user needs a single drive: a device has no name by which to choose one");
        }
        Ok(())
    }

    /// Returns the path of the socket for front ends of vhost-user.
    pub(super) fn vhost_user(&self) -> Option<&Path> {
        #[cfg(feature = "vhost")]
        return self.sockets.vhost_user.as_deref();
        #[cfg(not(feature = "vhost"))]
        None
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
        let options = |words: &[&str]| parse(words).network.options(BTreeMap::new()).unwrap();
        assert_eq!(options(&[]).policy, Policy::default());
        let expected = Policy {
            hides_names: true,
            connections_per_peer_max: Some(3),
            idle_max_ns: Some(60_000_000_000),
            ..Policy::default()
        };
        let words = ["--no-list", "--connections-per-peer=3", "--idle-limit=60"];
        assert_eq!(options(&words).policy, expected);
        assert_eq!(options(&["--connections=7"]).connections_max, 7);
    }
}
