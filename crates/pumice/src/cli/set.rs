//! `pumice set`: changes the stored settings of a drive, closed or served.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use schemars::JsonSchema;
use serde::Serialize;

use super::key_args::KeyArgs;
use super::{Outcome, lossy, print, print_schema, thresholds};
use crate::control::{Answer, Client, Request};
use crate::open::{self, origin};
use pumice_drive::base::near::nearest;
use pumice_drive::codec::Codec;
use pumice_drive::controller::{
    Drive, OpenOptions, SettingsChange, SettingsChanged, StoredSettings, WARN_THRESHOLDS_MAX,
};
use pumice_drive::runtime::Runtime;

/// Change settings of a drive, closed or served
///
/// Settings are stored in the drive, and apply until they are changed again. A codec applies to new
/// data; existing data keeps its codec until it is overwritten, or recompressed (see --recompress
/// of `pumice serve`). After a power loss the drive has the old or the new settings. `pumice info`
/// shows them. The description and the compaction of a drive are not stored in it: they are the
/// options --description and --compact of `pumice serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Settings:
  codec=CODEC         Codec for new data: none, lz4, zstd or zstd:LEVEL
  warn=PERCENT,...    Warn when this much of the capacity is in use; or none
  origin=PATH         Path of the drive from which a closed clone reads

Examples:
  pumice set drive.pumice codec=zstd:3
  pumice set drive.pumice codec=lz4 warn=70,85,95 --json")]
pub(crate) struct Args {
    /// File or block device
    path: PathBuf,

    /// Setting to change
    #[arg(value_parser = setting, required = true, value_name = "KEY=VALUE")]
    settings: Vec<Setting>,

    #[command(flatten)]
    keys: KeyArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A setting with its new value.
#[derive(Clone, Debug)]
enum Setting {
    Codec(Codec),
    Warn([u8; WARN_THRESHOLDS_MAX]),
    Origin(PathBuf),
}

const KEYS: [&str; 3] = ["codec", "warn", "origin"];

/// Properties that `pumice resize` changes.
const RESIZED: [&str; 2] = ["size", "capacity"];

/// Options of `pumice create` that cannot be changed afterwards.
const FIXED: [&str; 4] = ["frame", "segment", "preallocate", "over-provisioning"];

/// Options that apply while a drive is open.
const OF_AN_OPENING: [&str; 9] = [
    "cache",
    "checkpoint",
    "compact",
    "description",
    "export-name",
    "map-cache",
    "read-only",
    "recompress",
    "threads",
];

/// Parses an assignment.
fn setting(text: &str) -> Result<Setting, String> {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    let (key, value) = (key.trim(), value.trim());
    match key {
        "codec" if !value.is_empty() => value.parse().map(Setting::Codec),
        "warn" if !value.is_empty() => thresholds(value).map(Setting::Warn),
        "origin" if !value.is_empty() => Ok(Setting::Origin(value.into())),
        "codec" | "warn" | "origin" => Err(format!("expected {key}=VALUE")),
        key if RESIZED.contains(&key) => Err(format!("{key} is changed by `pumice resize`")),
        key if FIXED.contains(&key) => {
            Err(format!("{key} is fixed when a drive is created: copy its data to a new drive"))
        }
        key if OF_AN_OPENING.contains(&key) => {
            Err(format!("not a stored setting: pass --{key} to `pumice serve`"))
        }
        key => {
            let near = nearest(key, &KEYS).map(|near| format!(": did you mean '{near}'?"));
            let [codec, warn, origin] = KEYS;
            let keys = || format!(": use {codec}, {warn} or {origin}");
            Err(format!("unknown setting '{key}'{}", near.unwrap_or_else(keys)))
        }
    }
}

/// The result as JSON.
#[derive(Serialize, JsonSchema)]
pub(super) struct Changed {
    /// The drive's file or device.
    path: String,
    /// The settings before.
    before: Shown,
    /// The settings now.
    after: Shown,
    /// Whether the server was started with other thresholds, which it uses until it ends.
    warn_overridden: bool,
}

/// Settings in the words of `create`.
#[derive(PartialEq, Serialize, JsonSchema)]
struct Shown {
    /// Codec for new data.
    codec: String,
    /// Thresholds of warnings about space in percent, separated by commas; `none` for none.
    warn: String,
    /// Path of the origin, for a closed clone.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
}

impl Shown {
    fn of(settings: &StoredSettings) -> Self {
        let percents = settings.warn_percent.iter().filter(|percent| **percent > 0);
        let percents: Vec<String> = percents.map(u8::to_string).collect();
        let warn = if percents.is_empty() { "none".into() } else { percents.join(",") };
        Self { codec: settings.codec.to_string(), warn, origin: None }
    }
}

/// Runs the subcommand.
///
/// # Errors
/// There is no drive, it cannot be opened, or the settings do not suit it: nothing has changed.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.keys.provide()?;
    let wanted = change(&args.settings)?;
    let path = args.path.as_path();
    let served = |client| {
        if wanted.origin.is_some() {
            bail!("{} has its origin open: end its server first", path.display());
        }
        Ok(Some((ask(client, path, wanted.of_drive)?, [None, None])))
    };
    let options = OpenOptions { compact_percent: None, ..OpenOptions::default() };
    let open = |runtime: &Runtime| open::alone(runtime, path, options);
    let set = |runtime: &Runtime, drive: &Rc<Drive>| set(runtime, drive, &wanted);
    let (changed, [before, after]) = open::served_or_closed(path, served, open, set)?;
    let shown = Changed {
        path: lossy(&args.path),
        before: Shown { origin: before, ..Shown::of(&changed.before) },
        after: Shown { origin: after, ..Shown::of(&changed.after) },
        warn_overridden: changed.is_warn_overridden,
    };
    if args.json {
        print_schema("set-1", &shown)?;
    } else {
        print(&text(&args.settings, &shown))?;
    }
    Ok(Outcome::Good)
}

/// The requested changes.
#[derive(Default)]
struct Wanted {
    of_drive: SettingsChange,
    origin: Option<PathBuf>,
}

/// Returns the change that the assignments request.
fn change(settings: &[Setting]) -> Result<Wanted> {
    let mut change = Wanted::default();
    for setting in settings {
        let of_drive = &mut change.of_drive;
        let is_second = match setting {
            Setting::Codec(codec) => of_drive.codec.replace(*codec).is_some(),
            Setting::Warn(percents) => of_drive.warn_percent.replace(*percents).is_some(),
            Setting::Origin(path) => change.origin.replace(path.clone()).is_some(),
        };
        if is_second {
            bail!("a setting is specified twice: specify each once");
        }
    }
    Ok(change)
}

/// Asks the drive's server to change its settings.
fn ask(client: Client, path: &Path, change: SettingsChange) -> Result<SettingsChanged> {
    let answer = client.ask(&Request::Set(change), |_| ());
    match answer.with_context(|| path.display().to_string())? {
        Some(Answer::Set(changed)) => Ok(changed),
        _ => bail!(
            "{}: the server stopped before the settings were changed: see `pumice info`",
            path.display()
        ),
    }
}

/// Changes settings of a drive that is not served. Also returns the old and the new path of its
/// origin.
fn set(
    runtime: &Runtime,
    drive: &Rc<Drive>,
    wanted: &Wanted,
) -> Result<(SettingsChanged, [Option<String>; 2])> {
    let origin = || drive.origin().map(|origin| origin.path);
    let before = origin();
    let changed = runtime.block_on(async {
        if let Some(origin) = &wanted.origin {
            origin::move_to(runtime, drive, origin).await?;
        }
        drive.change_settings(wanted.of_drive).await
    })?;
    Ok((changed, [before, origin()]))
}

fn text(settings: &[Setting], shown: &Changed) -> String {
    let Changed { path, before, after, warn_overridden } = shown;
    let line = |setting: &Setting| {
        let path_of = |shown: &Option<String>| shown.clone().unwrap_or_default();
        let origins = [path_of(&before.origin), path_of(&after.origin)];
        let (name, before, after, note) = match setting {
            Setting::Origin(_) => ("origin", &origins[0], &origins[1], ""),
            Setting::Codec(_) => ("codec", &before.codec, &after.codec, "for new data"),
            Setting::Warn(_) if *warn_overridden => {
                let until = "once its server, which was started with --warn, has ended";
                ("warn", &before.warn, &after.warn, until)
            }
            Setting::Warn(_) => ("warn", &before.warn, &after.warn, ""),
        };
        let note = if note.is_empty() { String::new() } else { format!(", {note}") };
        if before == after {
            format!("{path}: {name} {after}, as before\n")
        } else {
            format!("{path}: {name} {before} -> {after}{note}\n")
        }
    };
    settings.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    //! Goal: an unknown setting is refused with advice.
    use super::*;

    #[test]
    fn a_refusal_names_a_remedy() {
        for (text, mention) in [
            ("codek=zstd", "did you mean 'codec'?"),
            ("codec", "expected codec=VALUE"),
            ("codec=zstd:99", "a level from -7 to 19"),
            ("warn=101", "such as 80,90,95, or none"),
            ("size=1G", "pumice resize"),
            ("frame=blocks", "fixed"),
            ("compact=20", "pass --compact to `pumice serve`"),
            ("colour=blue", "use codec, warn or origin"),
            ("=", "use codec, warn or origin"),
            ("origin=", "expected origin=VALUE"),
        ] {
            let refusal = setting(text).expect_err(text);
            assert!(refusal.contains(mention), "{text}: {refusal}");
        }
        let twice = ["codec=lz4", "codec=none"].map(|text| setting(text).expect("a setting"));
        assert!(change(&twice).is_err());
    }
}
