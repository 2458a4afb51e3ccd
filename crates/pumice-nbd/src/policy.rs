//! Access to exports, and limits on the use of a server.
//!
//! Admission depends on properties that a client cannot forge: the address of its connection, the
//! user of its process as reported by the kernel, and the names in a certificate that TLS has
//! verified. A list admits only the clients on it, so that an omission denies access:
//!
//! | list | applies to |
//! |---|---|
//! | certificates | every client |
//! | addresses, users | clients over TCP by their address, over Unix sockets by their user |
//!
//! With addresses and no users, no client is admitted over a Unix socket, and vice versa.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::caller::{Caller, RemoteEnd};
use super::rate::Rate;

/// The rules for the use of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Names. A client's certificate must have one of them, as common or alternative name.
    pub certificates: Option<Vec<String>>,
    /// Addresses of clients over TCP.
    pub addresses: Option<Vec<IpNet>>,
    /// User numbers of clients over Unix sockets.
    pub users: Option<Vec<u32>>,
    /// Maximum number of concurrent connections of all clients.
    pub connections_max: Option<usize>,
    /// Rate of the requests of all clients together.
    pub rate: Rate,
}

/// The rules and limits for the clients of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Rules by the name of the export. Every client may use an export without rules.
    pub rules: BTreeMap<String, Rules>,
    /// Whether the names of exports are hidden from clients, which must then know the name of their
    /// export.
    pub hides_names: bool,
    /// Maximum number of concurrent connections from one address, or of one user over Unix sockets.
    pub connections_per_peer_max: Option<usize>,
    /// Longest time without requests, in nanoseconds. A client is then disconnected.
    pub idle_max_ns: Option<u64>,
}

impl Rules {
    /// Returns the reason why a client may not use the export.
    pub(super) fn objection(&self, caller: &Caller) -> Option<&'static str> {
        if let Some(allowed) = &self.certificates {
            let Some(certificate) = caller.certificate() else {
                return Some("the export needs a client certificate");
            };
            // Host names are case-insensitive, and no authority is expected to distinguish two
            // clients by case.
            let is_allowed =
                |name: &String| allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name));
            if !certificate.names.iter().any(is_allowed) {
                return Some("this certificate may not use the export");
            }
        }
        if self.addresses.is_none() && self.users.is_none() {
            return None;
        }
        let is_allowed = match caller.remote_end {
            RemoteEnd::Internet(address) => {
                let address = address.ip().to_canonical();
                let allowed = self.addresses.iter().flatten();
                allowed.into_iter().any(|network| network.contains(&address))
            }
            RemoteEnd::Local { user, .. } => {
                self.users.iter().flatten().any(|other| *other == user)
            }
            RemoteEnd::Unknown => false,
        };
        (!is_allowed).then_some(match caller.remote_end {
            RemoteEnd::Internet(_) => "this address may not use the export",
            _ => "this user may not use the export",
        })
    }
}

impl Policy {
    /// Returns the reason why a client may not use the export of this name, connections aside.
    pub(super) fn objection(&self, export: &str, caller: &Caller) -> Option<&'static str> {
        self.rules.get(export)?.objection(caller)
    }

    /// Returns the rate limit of an export.
    pub(super) fn rate(&self, export: &str) -> Rate {
        self.rules.get(export).map_or(Rate::default(), |rules| rules.rate)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a list admits only the clients on it, in any form of a name or an address.
    use super::*;

    fn lets_in(rules: &Rules, caller: &Caller) -> bool {
        rules.objection(caller).is_none()
    }

    fn internet(address: &str, names: Option<&[&str]>) -> Caller {
        Caller::made_up(RemoteEnd::Internet(address.parse().unwrap()), names)
    }

    fn addresses() -> Option<Vec<IpNet>> {
        let networks = ["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32"];
        Some(networks.map(|network| network.parse().unwrap()).into())
    }

    #[test]
    fn networks_hold_the_addresses_in_them() {
        let rules = Rules { addresses: addresses(), ..Rules::default() };
        for (address, is_in) in [
            ("10.255.0.1:1", true),
            ("11.0.0.1:1", false),
            ("192.0.2.7:1", true),
            ("192.0.2.6:1", false),
            ("[2001:db8::1]:1", true),
            ("[2001:db9::1]:1", false),
            // An IPv4 address, accepted by an IPv6 socket.
            ("[::ffff:10.0.0.1]:1", true),
            ("[::ffff:11.0.0.1]:1", false),
        ] {
            assert_eq!(lets_in(&rules, &internet(address, None)), is_in, "{address}");
        }
        assert!(!lets_in(&rules, &Caller::made_up(RemoteEnd::Unknown, None)));
    }

    #[test]
    fn one_name_of_the_certificate_is_on_the_list() {
        let allowed = ["vm1.example.com", "ops@example.com"];
        let certificates = Some(allowed.map(str::to_owned).into());
        let rules = Rules { certificates, ..Rules::default() };
        for (names, is_in) in [
            (None, false),
            (Some(&[][..]), false),
            (Some(&["vm1.example.com"][..]), true),
            (Some(&["VM1.Example.com"][..]), true),
            (Some(&["other", "ops@example.com"][..]), true),
            (Some(&["example.com", "vm1.example.com.", "xvm1.example.com"][..]), false),
        ] {
            assert_eq!(lets_in(&rules, &internet("192.0.2.1:1", names)), is_in, "{names:?}");
        }
        // A certificate does not replace an address, nor an address a certificate.
        let both = Rules { addresses: addresses(), ..rules };
        assert!(lets_in(&both, &internet("10.0.0.1:1", Some(&["vm1.example.com"]))));
        assert!(!lets_in(&both, &internet("11.0.0.1:1", Some(&["vm1.example.com"]))));
        assert!(!lets_in(&both, &internet("10.0.0.1:1", None)));
    }
}
