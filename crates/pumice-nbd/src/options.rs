//! The options of a server.

use super::caller::Caller;
use super::identity::Identity;
use super::policy::Policy;

/// Security and limits of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Whether clients may or must use TLS.
    pub security: Security,
    /// Time limit for a client's handshake, in nanoseconds.
    pub handshake_ns: u64,
    /// Time for requests in flight and unsent replies once the client has sent its last request, or
    /// the server shuts down, in nanoseconds.
    pub grace_ns: u64,
    /// Maximum number of concurrent connections. Beyond this number, a new client replaces a client
    /// that is still in its handshake: the oldest client of the peer that has most of them. If
    /// there is none, the new client waits.
    pub connections_max: usize,
    /// Memory for the payloads of all connections, in bytes. Each connection may use 1 MiB in
    /// addition, so that no connection can block another.
    pub payload_bytes: usize,
    /// Memory for replies of all connections that their clients have not received, in bytes. Beyond
    /// this limit, each connection may have 64 KiB.
    pub reply_bytes: usize,
    /// Access of clients to exports; see [`Server::set_policy`](crate::Server::set_policy).
    pub policy: Policy,
}

impl Options {
    /// Returns the options of one of `count` servers, each on its own thread, that share this
    /// memory. The front server admits clients.
    #[must_use]
    pub fn shared_by(self, count: usize) -> Self {
        let (payload_bytes, reply_bytes) = (self.payload_bytes / count, self.reply_bytes / count);
        Self { payload_bytes, reply_bytes, ..self }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            security: Security::Clear,
            // A client on the other side of the world needs a second.
            handshake_ns: 10_000_000_000,
            // Long enough for a client that reads its replies, and a limit for one that does not.
            grace_ns: 5_000_000_000,
            // Clients open 1 to 16; one with many requests in flight uses up to 1.7 MiB.
            connections_max: 256,
            // Sufficient for two of the longest reads, or 64 long writes.
            payload_bytes: 64 << 20,
            // Arbitrary: a deep queue for each of 32 clients.
            reply_bytes: 32 << 20,
            policy: Policy::default(),
        }
    }
}

/// Whether clients may or must use TLS.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Security {
    /// No TLS.
    Clear,
    /// TLS for clients that request it.
    Allow(Identity),
    /// TLS for all clients. Nothing is revealed before it starts.
    Require(Identity),
}

impl Security {
    /// Returns the identity for clients that use TLS.
    pub fn identity(&self) -> Option<&Identity> {
        match self {
            Self::Clear => None,
            Self::Allow(identity) | Self::Require(identity) => Some(identity),
        }
    }

    /// Returns whether a client whose connection was encrypted with `earlier`, or is in plain text,
    /// would be accepted now.
    pub(super) fn accepts(&self, caller: &Caller, earlier: Option<&Identity>) -> bool {
        match (self, earlier) {
            (Self::Clear, _) | (Self::Allow(_), None) => true,
            (Self::Require(_), None) => false,
            (Self::Allow(identity) | Self::Require(identity), Some(earlier)) => {
                let chain = caller.certificate().map(|certificate| &certificate.chain[..]);
                identity == earlier || identity.accepts(chain)
            }
        }
    }
}
