//! `pumice list`: the drives of this machine, with the state of each in one line.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::state::{self, HEALTHY, State, health};
use super::{Outcome, chain, lossy, output, print, print_schemas};
use crate::control;
use crate::savings::saved_text;
use pumice_drive::base::units::format_size;
use pumice_drive::base::{self, ErrorKind};
use pumice_drive::controller::Info;
use pumice_report::{Align, Table};

/// Suffix of the files of a folder that are listed.
const SUFFIX: &str = "pumice";

/// List the drives of this machine: their paths, their state, and their savings
///
/// Lists the drives that this user serves or has attached. A closed drive is listed if it is named,
/// or if a folder is named and its file ends in .pumice. Exits with code 1 if a named drive cannot
/// be read.
#[derive(Debug, clap::Args)]
#[command(visible_alias = "status")]
#[command(after_help = "\
Examples:
  pumice list
  pumice list /srv/drives /dev/sdx
  pumice list --json")]
pub(crate) struct Args {
    /// More drives, or folders of drives
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A drive in the list.
#[derive(Serialize, JsonSchema)]
pub(super) struct Listed {
    /// The drive's file or device.
    path: String,
    /// `closed`, `served` or `attached`; `in use` by a process that does not answer; `stale` if a
    /// killed process has left it attached; `unreadable`.
    state: &'static str,
    #[serde(flatten)]
    used_by: State,
    #[serde(flatten)]
    facts: Option<Facts>,
    /// The reason why nothing more is known.
    error: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Facts {
    /// Size of the host's disk.
    size_bytes: u64,
    /// Bytes of all segments.
    capacity_bytes: u64,
    /// Bytes of the disk that hold data other than zeroes.
    mapped_bytes: u64,
    /// Bytes in which they are stored.
    live_bytes: u64,
    /// Bytes that its file takes on its file system; `None` for a device.
    file_bytes: Option<u64>,
    /// Share of the space for data that is in use, in percent.
    used_percent: f64,
    /// Health of the drive, in a word or two.
    health: &'static str,
    #[serde(skip)]
    saved: String,
    #[serde(skip)]
    uuid: Uuid,
}

/// Runs the subcommand.
///
/// # Errors
/// A folder, or the directory of the servers' sockets, cannot be read.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let paths = drives_at(&args.paths)?;
    let mut all: Vec<Listed> = paths.iter().map(|path| look(path)).collect();
    all.extend(served(&paths, &all)?);
    if args.json {
        print_schemas("list-1", &all)?;
    } else if all.is_empty() {
        super::say_error("no drive is served or attached: name files or folders of closed drives");
    } else {
        print(&text(&all))?;
    }
    let errors = all.iter().filter_map(|one| one.error.as_ref());
    let is_good = errors.map(|error| super::say_error(error)).count() == 0;
    Ok(if is_good { Outcome::Good } else { Outcome::Problem })
}

/// Returns the named drives, and those in the named folders.
fn drives_at(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut drives = Vec::new();
    for path in paths {
        if !path.is_dir() {
            drives.push(path.clone());
            continue;
        }
        let entries = fs::read_dir(path).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let entries = entries.with_context(|| format!("cannot read {}", path.display()))?;
        let mut found: Vec<_> = entries.iter().map(fs::DirEntry::path).collect();
        found.retain(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX));
        found.sort();
        drives.extend(found);
    }
    Ok(drives)
}

/// Returns the served drives, except those that are named and listed already, perhaps under the
/// name to which they were moved.
fn served(named: &[PathBuf], listed: &[Listed]) -> Result<Vec<Listed>> {
    let file = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let files: Vec<_> = named.iter().filter_map(|path| file(path)).collect();
    let mut all = Vec::new();
    for answer in control::servers(named) {
        match answer {
            Ok((service, info)) => {
                let path = PathBuf::from(&service.path);
                let is_same = |one: &Listed| {
                    let uuid = one.facts.as_ref().map(|facts| facts.uuid);
                    (one.used_by.process, uuid) == (Some(service.process), Some(info.uuid))
                };
                if file(&path).is_none_or(|file| !files.contains(&file))
                    && !listed.iter().any(is_same)
                {
                    all.push(Listed::of(&path, info, State::of(&path, Some(service))));
                }
            }
            Err(error) => super::say_error(&error.chain()),
        }
    }
    all.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(all)
}

/// Returns the facts that can be determined about the drive at `path`.
fn look(path: &Path) -> Listed {
    let error = match state::read(path) {
        Ok((info, used_by)) => return Listed::of(path, info, used_by),
        Err(error) => error,
    };
    let kind = error.downcast_ref::<base::Error>().map(base::Error::kind);
    let state = if kind == Some(ErrorKind::Busy) { "in use" } else { "unreadable" };
    let error = Some(chain(&error));
    Listed { path: lossy(path), state, used_by: State::default(), facts: None, error }
}

impl Listed {
    fn of(path: &Path, info: Info, used_by: State) -> Self {
        let facts = Facts {
            size_bytes: info.size_bytes,
            capacity_bytes: info.capacity_bytes,
            mapped_bytes: info.mapped_bytes,
            live_bytes: info.live_bytes,
            file_bytes: state::file_bytes(path),
            used_percent: info.used_percent,
            health: health(&info),
            saved: saved_text(&info),
            uuid: info.uuid,
        };
        Self { path: lossy(path), state: used_by.word(), used_by, facts: Some(facts), error: None }
    }
}

fn text(all: &[Listed]) -> String {
    let left = |name| (name, Align::Left);
    let right = |name| (name, Align::Right);
    let mut table = Table::new(&[
        left("drive"),
        left("state"),
        right("size"),
        right("data"),
        right("saved"),
        right("file"),
        right("used"),
        left("health"),
        left("where"),
    ]);
    for one in all {
        let fact = |text: fn(&Facts) -> String| one.facts.as_ref().map_or("-".into(), text);
        table.row(vec![
            one.path.clone(),
            one.state.into(),
            fact(|facts| format_size(facts.size_bytes)),
            fact(|facts| format_size(facts.mapped_bytes)),
            fact(|facts| facts.saved.clone()),
            fact(|facts| facts.file_bytes.map_or("-".into(), format_size)),
            fact(|facts| format!("{:.1} %", facts.used_percent)),
            fact(|facts| facts.health.into()),
            one.used_by.places().join(" "),
        ]);
    }
    let mut text = output::table(&table);
    for (word, style) in
        [(HEALTHY, output::WELL), ("refuses writes", output::WRONG), ("attention", output::WRONG)]
    {
        // Matched between columns, so that no path is mistaken for it.
        let (from, to) = (format!("  {word}"), format!("  {}", output::styled(word, style)));
        text = text.replace(&from, &to);
    }
    text
}
