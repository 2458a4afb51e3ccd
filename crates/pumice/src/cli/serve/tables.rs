//! The tables `[export.NAME]` of a configuration: access rules and limits of each export.
//!
//! The keys of a table are the long flags of [`Table`], which clap parses and checks like those of
//! the command line.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{CommandFactory, FromArgMatches};

use crate::cli::config::{FoundTable, Tables};
use crate::cli::key_args::KeyArgs;
use crate::cli::size;
use pumice_drive::base::near::nearest;
use pumice_nbd::{IpNet, Rate, Rules};

/// Longest name or description of an export: the longest string of the protocol.
const TEXT_BYTES_MAX: usize = 4096;

/// The description of the tables for [`crate::cli::config`].
pub(crate) const TABLES: Tables = Tables { command: "serve", key: "export", keys: Table::command };

/// Keys of a table.
#[derive(Clone, Debug, Default, PartialEq, clap::Parser)]
#[command(name = "export", disable_help_flag = true)]
pub(crate) struct Table {
    /// File or block device of the drive [default: the drive in `paths` that has this name]
    #[arg(long, value_name = "PATH")]
    pub(super) drive: Option<PathBuf>,

    /// Export description
    #[arg(long, value_name = "TEXT")]
    pub(super) description: Option<String>,

    /// Refuse writes and change nothing
    #[arg(long)]
    pub(super) read_only: bool,

    /// Names, at least one of which must be in the client's certificate; needs tls-verify-peer
    #[arg(long, value_name = "NAME", action = clap::ArgAction::Append)]
    allow_certificates: Option<Vec<String>>,

    /// Addresses of clients over TCP, or networks such as 10.0.0.0/8
    #[arg(long, value_name = "NETWORK", action = clap::ArgAction::Append, value_parser = network)]
    allow_addresses: Option<Vec<IpNet>>,

    /// Users of clients over Unix sockets, by name or number
    #[arg(long, value_name = "USER", action = clap::ArgAction::Append, value_parser = user)]
    allow_users: Option<Vec<u32>>,

    /// Maximum number of connections to the export
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=65536))]
    connections: Option<u32>,

    /// Requests per second of all its clients
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    iops: Option<u64>,

    /// Bytes that all its clients may read and write per second
    #[arg(long, value_name = "SIZE", value_parser = size)]
    bandwidth: Option<u64>,

    #[command(flatten)]
    pub(super) keys: KeyArgs,
}

/// The tables of a configuration, by the names of their exports, with the positions of these names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exports(pub(super) BTreeMap<String, (Table, String)>);

/// Tables with the same content are equal, regardless of their position.
impl PartialEq for Exports {
    fn eq(&self, other: &Self) -> bool {
        let tables = |exports: &Self| -> Vec<_> {
            exports.0.iter().map(|(name, (table, _))| (name.clone(), table.clone())).collect()
        };
        tables(self) == tables(other)
    }
}

impl Exports {
    /// Returns the tables of a configuration.
    ///
    /// # Errors
    /// A rule cannot be fulfilled.
    pub(crate) fn new(found: Vec<FoundTable>) -> Result<Self> {
        let mut tables = BTreeMap::new();
        for FoundTable { name, matches, position } in found {
            let table = Table::from_arg_matches(&matches)?;
            check_text(&format!("{position}: the name of an export"), &name)?;
            if name.is_empty() {
                bail!("{position}: an export needs a name");
            }
            if let Some(description) = &table.description {
                check_text(&format!("{position}: description"), description)?;
            }
            tables.insert(name, (table, position));
        }
        Ok(Self(tables))
    }

    /// Checks that each table has a drive, among the planned exports, and that rules about
    /// certificates can be fulfilled.
    ///
    /// # Errors
    /// A table has no drive, or needs certificates that clients do not have to show.
    pub(super) fn check(&self, exports: &[&str], verifies_peers: bool) -> Result<()> {
        for (name, (table, position)) in &self.0 {
            if !exports.contains(&name.as_str()) {
                let near = nearest(name, exports).map(|near| format!("did you mean '{near}'? "));
                let near = near.unwrap_or_default();
                bail!("{position}: no drive has this name: {near}Add drive = \"PATH\"");
            }
            if table.allow_certificates.is_some() && !verifies_peers {
                bail!("{position}: allow-certificates needs tls-verify-peer = true");
            }
        }
        Ok(())
    }

    /// Whether a table names its drive.
    pub(super) fn has_drives(&self) -> bool {
        self.0.values().any(|(table, _)| table.drive.is_some())
    }

    /// Returns the rules by the names of the exports.
    pub(super) fn rules(&self) -> BTreeMap<String, Rules> {
        let rules = |table: &Table| Rules {
            certificates: table.allow_certificates.clone(),
            addresses: table.allow_addresses.clone(),
            users: table.allow_users.clone(),
            connections_max: table.connections.map(|number| number as usize),
            rate: Rate { operations: table.iops, bytes: table.bandwidth },
        };
        self.0.iter().map(|(name, (table, _))| (name.clone(), rules(table))).collect()
    }
}

/// Checks a name or a description of an export, which the protocol sends.
pub(super) fn check_text(option: &str, text: &str) -> Result<()> {
    if text.len() > TEXT_BYTES_MAX || text.contains('\0') {
        bail!("{option} takes up to {TEXT_BYTES_MAX} bytes without NUL");
    }
    Ok(())
}

fn network(text: &str) -> std::result::Result<IpNet, String> {
    let address = text.parse::<IpAddr>().map(IpNet::from);
    let expected = "expected an address, or a network such as 10.0.0.0/8";
    address.or_else(|_| text.parse()).map_err(|_| expected.into())
}

fn user(text: &str) -> std::result::Result<u32, String> {
    super::network::user_id(text)?.ok_or_else(|| "expected the name or number of a user".into())
}

#[cfg(test)]
mod tests {
    //! Goal: each key of a table sets its rule.
    use clap::{CommandFactory, Parser};

    use super::*;

    #[test]
    fn a_description_that_the_protocol_cannot_send_is_refused() {
        for (length, is_allowed) in [(TEXT_BYTES_MAX, true), (TEXT_BYTES_MAX + 1, false)] {
            let words = ["export".to_owned(), format!("--description={}", "d".repeat(length))];
            let matches = Table::command().try_get_matches_from(words).unwrap();
            let found = FoundTable { name: "vm".into(), matches, position: "a.toml:1".into() };
            assert_eq!(Exports::new(vec![found]).is_ok(), is_allowed, "{length} bytes");
        }
    }

    fn rules(words: &[&str]) -> Rules {
        let table = Table::try_parse_from(["export"].iter().chain(words)).unwrap();
        let exports = Exports([("vm".to_owned(), (table, String::new()))].into());
        exports.rules().remove("vm").unwrap()
    }

    #[test]
    fn keys_become_rules() {
        assert_eq!(rules(&["--read-only", "--description=text"]), Rules::default());
        let certificates = Some(vec!["one".to_owned(), "two".to_owned()]);
        let words = ["--allow-certificates=one", "--allow-certificates=two"];
        assert_eq!(rules(&words), Rules { certificates, ..Rules::default() });
        let addresses = Some(["10.0.0.0/8", "::1/128"].map(|text| text.parse().unwrap()).into());
        let words = ["--allow-addresses=10.0.0.0/8", "--allow-addresses=::1"];
        assert_eq!(rules(&words), Rules { addresses, ..Rules::default() });
        let words = ["--allow-users=root", "--allow-users=5"];
        assert_eq!(rules(&words), Rules { users: Some(vec![0, 5]), ..Rules::default() });
        let connections_max = Some(2);
        assert_eq!(rules(&["--connections=2"]), Rules { connections_max, ..Rules::default() });
        let rate = Rate { operations: Some(5), bytes: Some(1 << 20) };
        let words = ["--iops=5", "--bandwidth=1M"];
        assert_eq!(rules(&words), Rules { rate, ..Rules::default() });
    }
}
