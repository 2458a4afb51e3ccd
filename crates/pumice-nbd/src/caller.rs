//! The client of a connection, as seen by any thread: its identity and its activity.
//!
//! The server that accepts a client creates its [`Caller`]; the thread of its export updates the
//! counters. Since only that thread writes them, counting needs no atomic addition. Other threads
//! may read slightly old values.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustls::pki_types::CertificateDer;

use super::certificate;
use super::export::Earlier;
use pumice_drive::runtime::shutdown_socket;

/// The remote end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemoteEnd {
    /// A TCP address.
    Internet(SocketAddr),
    /// A process at the other end of a Unix socket at the time of the connection, and its user.
    Local { process: i32, user: u32 },
    /// The operating system does not report it, because the client has left.
    Unknown,
}

/// A peer: all connections from one address, or of one user, count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    Address(IpAddr),
    User(u32),
    Unknown,
}

/// A certificate that the server has verified.
#[derive(Debug)]
pub(super) struct Certificate {
    /// Common name and alternative names, see [`certificate::names`].
    pub(super) names: Vec<String>,
    /// The client's certificate, followed by intermediate ones.
    pub(super) chain: Vec<CertificateDer<'static>>,
}

/// The client of a connection.
#[derive(Debug)]
pub(super) struct Caller {
    /// Inode of the server's end of the connection: unique among the clients of this machine, and
    /// unchanged when another server continues the connection.
    pub(super) id: u64,
    pub(super) socket: Arc<OwnedFd>,
    pub(super) remote_end: RemoteEnd,
    /// Time when the server first saw the client, by the clock of the runtimes.
    pub(super) since_ns: u64,
    certificate: OnceLock<Certificate>,
    chosen: OnceLock<Chosen>,
    pub(super) meter: Meter,
}

/// The choices of a client in its handshake.
#[derive(Debug)]
pub(super) struct Chosen {
    /// The name of its export.
    pub(super) export: String,
    /// The name of the export whose rules apply to the client.
    pub(super) rules: String,
    /// Earlier states of the disk with which the client compares its export.
    pub(super) states: Vec<String>,
}

/// Counters of a client's requests since its server started.
#[derive(Debug, Default)]
pub(super) struct Meter {
    requests: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    /// When bytes of requests last arrived.
    active_ns: AtomicU64,
    is_busy: AtomicBool,
}

/// The values of a [`Meter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) requests: u64,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
}

impl Caller {
    /// Returns the client at the other end of `socket`.
    pub(super) fn new(socket: Arc<OwnedFd>, now_ns: u64) -> Arc<Self> {
        let id = rustix::fs::fstat(&socket).map_or(0, |status| status.st_ino);
        let remote_end = remote_end(&socket);
        let meter = Meter::default();
        meter.active_ns.store(now_ns, Ordering::Relaxed);
        let (certificate, chosen) = (OnceLock::new(), OnceLock::new());
        Arc::new(Self { id, socket, remote_end, since_ns: now_ns, certificate, chosen, meter })
    }

    /// Records the certificate that TLS has verified.
    pub(super) fn note_certificate(&self, chain: &[CertificateDer<'_>]) {
        let Some(first) = chain.first() else { return };
        let names = certificate::names(first);
        let chain = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
        // TLS starts only once.
        let _ = self.certificate.set(Certificate { names, chain });
    }

    /// Returns the certificate that TLS has verified, if there is one.
    pub(super) fn certificate(&self) -> Option<&Certificate> {
        self.certificate.get()
    }

    /// Records the choices of the client.
    pub(super) fn note_chosen(&self, chosen: Chosen) {
        let _ = self.chosen.set(chosen);
    }

    /// Returns the name of the export that the client has chosen.
    pub(super) fn export(&self) -> Option<&str> {
        self.chosen.get().map(|chosen| &*chosen.export)
    }

    /// Returns the name of the export whose rules apply to the client.
    pub(super) fn rules(&self) -> Option<&str> {
        self.chosen.get().map(|chosen| &*chosen.rules)
    }

    /// Returns whether the client reads an earlier state of a disk, as its export or to compare
    /// with it.
    pub(super) fn reads(&self, export: &str, state: &Earlier) -> bool {
        self.chosen.get().is_some_and(|chosen| {
            let compares = chosen.rules == state.of && chosen.states.contains(&state.name);
            chosen.export == export || compares
        })
    }

    /// Returns the peer for which this connection counts.
    pub(super) fn peer(&self) -> Peer {
        match self.remote_end {
            RemoteEnd::Internet(address) => Peer::Address(address.ip().to_canonical()),
            RemoteEnd::Local { user, .. } => Peer::User(user),
            RemoteEnd::Unknown => Peer::Unknown,
        }
    }

    /// Returns the identity of the client, if it is known: the first name of its certificate, or
    /// its user.
    pub(super) fn identity(&self) -> Option<String> {
        let certificate = self.certificate().map(|certificate| match certificate.names.first() {
            Some(name) => format!("certificate={name}"),
            None => "certificate without a name".to_owned(),
        });
        certificate.or(match self.remote_end {
            RemoteEnd::Local { user, .. } => Some(format!("uid={user}")),
            _ => None,
        })
    }

    /// Ends all traffic immediately, whichever thread serves the connection.
    pub(super) fn cut(&self) {
        shutdown_socket(&self.socket);
    }
}

#[cfg(test)]
impl Caller {
    /// Returns a client with this remote end, and with a certificate if there are names.
    pub(super) fn made_up(remote_end: RemoteEnd, names: Option<&[&str]>) -> Self {
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let caller = Self::new(Arc::new(socket.into()), 0);
        if let Some(names) = names {
            let names = names.iter().map(|&name| name.to_owned()).collect();
            caller.certificate.set(Certificate { names, chain: Vec::new() }).unwrap();
        }
        Self { remote_end, ..Arc::into_inner(caller).unwrap() }
    }
}

/// The address of the client: `IP:PORT`, or the process at the other end of a Unix socket.
impl fmt::Display for Caller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.remote_end {
            RemoteEnd::Internet(address) => address.fmt(formatter),
            RemoteEnd::Local { process, .. } => write!(formatter, "unix:pid={process}"),
            RemoteEnd::Unknown => formatter.write_str("unix"),
        }
    }
}

impl Meter {
    /// Counts a request, and the bytes that it reads or writes.
    pub(super) fn count(&self, read_bytes: u64, written_bytes: u64) {
        let add = |counter: &AtomicU64, more: u64| {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        add(&self.requests, 1);
        add(&self.read_bytes, read_bytes);
        add(&self.written_bytes, written_bytes);
    }

    /// Records when bytes of requests arrived.
    pub(super) fn note_active(&self, now_ns: u64) {
        self.active_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Records whether requests or replies are in flight.
    pub(super) fn note_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Relaxed);
    }

    /// Returns the time since the client sent its last request; zero while requests or replies are
    /// in flight.
    pub(super) fn idle_ns(&self, now_ns: u64) -> u64 {
        if self.is_busy.load(Ordering::Relaxed) {
            return 0;
        }
        now_ns.saturating_sub(self.active_ns.load(Ordering::Relaxed))
    }

    /// Returns the values of the counters.
    pub(super) fn counted(&self) -> Counted {
        Counted {
            requests: self.requests.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
        }
    }
}

fn remote_end(socket: &OwnedFd) -> RemoteEnd {
    let peer = rustix::net::getpeername(socket).ok().flatten();
    match peer.and_then(|address| SocketAddr::try_from(address).ok()) {
        Some(address) => RemoteEnd::Internet(address),
        None => match rustix::net::sockopt::socket_peercred(socket) {
            Ok(credentials) => RemoteEnd::Local {
                process: credentials.pid.as_raw_nonzero().get(),
                user: credentials.uid.as_raw(),
            },
            Err(_) => RemoteEnd::Unknown,
        },
    }
}

#[cfg(test)]
mod tests {
    //! Goal: all connections of one host, or of one user, belong to one peer.
    use super::*;

    #[test]
    fn a_peer_is_an_address_in_any_form_or_a_user() {
        let internet = |address: &str| {
            Caller::made_up(RemoteEnd::Internet(address.parse().unwrap()), None).peer()
        };
        let local = |user| Caller::made_up(RemoteEnd::Local { process: 1, user }, None).peer();
        assert_eq!(internet("192.0.2.1:5"), internet("192.0.2.1:6"));
        assert_eq!(internet("192.0.2.1:5"), internet("[::ffff:192.0.2.1]:5"));
        assert_ne!(internet("192.0.2.1:5"), internet("192.0.2.2:5"));
        assert_ne!(internet("[2001:db8::1]:5"), internet("[2001:db8::2]:5"));
        assert_eq!(local(5), local(5));
        assert_ne!(local(5), local(6));
    }
}
