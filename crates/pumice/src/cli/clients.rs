//! `pumice clients`: the NBD clients of the servers of this machine.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Result, bail};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Outcome, chain, output, print, print_schemas};
use crate::control::{self, ListedClient, Serving};
use pumice_drive::base::units::format_size;
use pumice_report::{Align, Table};

/// List the clients of served drives, or disconnect one
///
/// Shows the connected NBD clients with their exports, and for each the time and the requests since
/// it connected or its server restarted. Queries the servers of this user and, as root, those of
/// services.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
#[command(after_help = "\
Examples:
  pumice clients
  pumice clients drive.pumice
  pumice clients drop 4711")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,

    /// Only clients of this drive, or of exports of this name
    #[arg(value_name = "PATH|EXPORT")]
    export: Option<String>,

    /// Print the clients as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Disconnect a client; its requests in flight are still completed
    Drop {
        /// Number of the client, as shown by `pumice clients`
        #[arg(value_name = "ID")]
        id: u64,
    },
}

/// A client, and the process that serves it.
#[derive(Serialize, JsonSchema)]
pub(super) struct Shown {
    /// The process that serves it.
    process: u32,
    #[serde(flatten)]
    client: ListedClient,
}

/// Runs the subcommand.
///
/// # Errors
/// No server serves the drive or the export; there is no such client.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let (servers, is_good) = servers();
    if let Some(Action::Drop { id }) = args.action {
        return disconnect(&servers, id);
    }
    let wanted = args.export.as_deref();
    let shown = match wanted {
        None => clients(&servers, |_, _| true)?,
        Some(wanted) => {
            let chosen: Vec<_> = servers.iter().filter(|one| is_wanted(one, wanted)).collect();
            if chosen.is_empty() {
                bail!("none of your servers serves {wanted}: see `pumice list`");
            }
            let is_chosen = |process: u32, export: Option<&str>| {
                let is_it = |one: &&&Serving| one.service.process == process;
                chosen.iter().filter(is_it).any(|one| Some(&*one.service.export) == export)
            };
            clients(&servers, is_chosen)?
        }
    };
    if args.json {
        print_schemas("clients-1", &shown)?;
    } else if shown.is_empty() {
        super::say_error("no client is connected");
    } else {
        print(&text(&shown))?;
    }
    Ok(if is_good { Outcome::Good } else { Outcome::Problem })
}

/// Returns the servers, once for each of their drives, and whether all have answered.
fn servers() -> (Vec<Serving>, bool) {
    let mut servers = Vec::new();
    let mut is_good = true;
    for serving in control::serving() {
        match serving {
            Ok(serving) => servers.push(serving),
            Err(error) => {
                super::say_error(&chain(&error.into()));
                is_good = false;
            }
        }
    }
    (servers, is_good)
}

fn disconnect(servers: &[Serving], id: u64) -> Result<Outcome> {
    for server in once_each(servers) {
        if server.disconnect(id)? {
            print(&format!("disconnected client {id}\n"))?;
            return Ok(Outcome::Good);
        }
    }
    bail!("there is no client {id}: `pumice clients` lists them")
}

/// Returns each server once.
fn once_each(servers: &[Serving]) -> impl Iterator<Item = &Serving> {
    let mut seen = HashSet::new();
    servers.iter().filter(move |one| seen.insert(one.service.process))
}

/// Whether this is the drive at the path `wanted`, or an export of that name.
fn is_wanted(serving: &Serving, wanted: &str) -> bool {
    let file = |path: &str| fs::metadata(Path::new(path)).map(|found| (found.dev(), found.ino()));
    let is_file = match (file(wanted), file(&serving.service.path)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    };
    is_file || serving.service.export == wanted
}

fn clients(
    servers: &[Serving],
    is_chosen: impl Fn(u32, Option<&str>) -> bool,
) -> Result<Vec<Shown>> {
    let mut shown = Vec::new();
    for server in once_each(servers) {
        let process = server.service.process;
        let mut clients = server.clients()?;
        clients.retain(|client| is_chosen(process, client.export.as_deref()));
        shown.extend(clients.into_iter().map(|client| Shown { process, client }));
    }
    // The longest first.
    shown.sort_by_key(|one| std::cmp::Reverse(one.client.connected_ns));
    Ok(shown)
}

fn text(shown: &[Shown]) -> String {
    let left = |name| (name, Align::Left);
    let right = |name| (name, Align::Right);
    let mut table = Table::new(&[
        right("id"),
        left("export"),
        left("address"),
        left("identity"),
        right("connected"),
        right("idle"),
        right("requests"),
        right("read"),
        right("written"),
    ]);
    for Shown { client, .. } in shown {
        let or_none = |text: &Option<String>| plain(text.as_deref().unwrap_or("-"));
        table.row(vec![
            client.id.to_string(),
            or_none(&client.export),
            client.address.clone(),
            or_none(&client.identity),
            span(client.connected_ns),
            span(client.idle_ns),
            client.requests.to_string(),
            format_size(client.read_bytes),
            format_size(client.written_bytes),
        ]);
    }
    output::table(&table)
}

/// Returns a text from an untrusted source without control characters.
fn plain(text: &str) -> String {
    let is_plain = |letter: char| !letter.is_control();
    if text.chars().all(is_plain) { text.to_owned() } else { text.escape_debug().to_string() }
}

/// Returns a duration as text, such as "3 d 4 h" or "12 s".
fn span(time_ns: u64) -> String {
    let seconds = time_ns / 1_000_000_000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: times are readable, and a name cannot send control characters to the terminal.
    use super::*;

    #[test]
    fn times_and_names_are_readable() {
        for (seconds, text) in
            [(0, "0 s"), (59, "59 s"), (61, "1 min"), (3661, "1 h 1 min"), (100_000, "1 d 3 h")]
        {
            assert_eq!(span(seconds * 1_000_000_000), text);
        }
        assert_eq!((plain("ä b"), plain("a\u{1b}[2J")), ("ä b".into(), "a\\u{1b}[2J".into()));
    }
}
