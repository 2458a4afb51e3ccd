//! `pumice key`: the keys of an encrypted drive.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use schemars::JsonSchema;
use serde::Serialize;

use super::key_args::{KeyArgs, NewKeyArgs};
use super::{Outcome, lossy, print, print_schema};
use crate::environment;
use crate::keys;
use crate::open;
use crate::storage::{Access, Storage};
use pumice_drive::controller::{KeyChange, Locked, SlotInfo, SlotKind, change_keys};
use pumice_drive::crypt::RecoveryCode;
use pumice_drive::runtime::{Backend, Runtime};

/// Add, remove, change and list the keys of an encrypted drive that is not in use
///
/// A drive has up to eight keys, each of which opens it. They are stored in its superblock, so
/// adding a key rewrites no data. Anyone who has copied the superblock can still open the copy with
/// a key that was removed later.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice key list drive.pumice
  pumice key add drive.pumice --key-file old.key --new-passphrase-file passphrase
  pumice key change drive.pumice
  pumice key remove drive.pumice --slot 0 --key-file other.key")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the keys; requires no key
    List {
        /// File or block device
        path: PathBuf,

        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Add a key
    Add {
        /// File or block device
        path: PathBuf,

        #[command(flatten)]
        new: NewKeyArgs,

        #[command(flatten)]
        keys: KeyArgs,

        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a key
    Remove {
        /// File or block device
        path: PathBuf,

        /// Number of the key, as shown by `key list`
        #[arg(long, value_name = "NUMBER")]
        slot: usize,

        #[command(flatten)]
        keys: KeyArgs,

        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Replace the given key with another one
    Change {
        /// File or block device
        path: PathBuf,

        #[command(flatten)]
        new: NewKeyArgs,

        #[command(flatten)]
        keys: KeyArgs,

        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
}

/// A key of a drive, as it is printed.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Slot {
    /// Its number, which does not change.
    pub(crate) slot: usize,
    /// passphrase, key or recovery-code.
    pub(crate) kind: &'static str,
    /// Time when it was added, in seconds since 1970; 0 if unknown.
    created_seconds: u64,
}

/// The result as JSON.
#[derive(Serialize, JsonSchema)]
pub(super) struct Shown {
    /// The drive's file or device.
    path: String,
    /// Identity.
    uuid: uuid::Uuid,
    /// The keys that open the drive from now on.
    keys: Vec<Slot>,
    /// A new recovery code. Shown only once.
    recovery_code: Option<String>,
}

/// Runs the subcommand.
///
/// # Errors
/// The drive is in use, is not encrypted, or no key opens it: nothing has changed.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let runtime = Runtime::new(Backend::Auto)?;
    let (path, json) = match &args.action {
        Action::List { path, json }
        | Action::Add { path, json, .. }
        | Action::Remove { path, json, .. }
        | Action::Change { path, json, .. } => (path.as_path(), *json),
    };
    let is_list = matches!(args.action, Action::List { .. });
    let medium = open::locked(&runtime, path, &Access::new(is_list))?;
    let named = || path.display().to_string();
    let locked = runtime.block_on(Locked::on(&*medium)).with_context(named)?;
    let Some(locked) = locked else { bail!("{}: the drive is not encrypted", path.display()) };
    let mut code = None;
    let slots = match &args.action {
        Action::List { .. } => locked.slots(),
        Action::Add { new, keys, .. } => {
            let medium = unlocked(&runtime, medium, keys)?;
            let secret = new.secret(&mut code)?;
            change(&runtime, &medium, &KeyChange::Add(secret), path)?
        }
        Action::Remove { slot, keys, .. } => {
            let medium = unlocked(&runtime, medium, keys)?;
            change(&runtime, &medium, &KeyChange::Remove(*slot), path)?
        }
        Action::Change { new, keys, .. } => {
            let old = keys::given_or_asked(keys.source()?, path)?;
            let slot = locked.slot_of(&old)?;
            let Some(slot) = slot else { bail!("{}: the key opens no slot", path.display()) };
            let cipher = locked.unlock(&old, pumice_drive::crypt::Randomness::System)?;
            let secret = new.secret(&mut code)?;
            let medium = medium.with_cipher(cipher);
            change(&runtime, &medium, &KeyChange::Replace(slot, secret), path)?
        }
    };
    let shown = Shown {
        path: lossy(path),
        uuid: locked.uuid,
        keys: slots.into_iter().map(Slot::from).collect(),
        recovery_code: code.map(|code: RecoveryCode| code.to_string()),
    };
    if json {
        print_schema("key-1", &shown)?;
    } else {
        print(&text(&shown))?;
    }
    Ok(Outcome::Good)
}

fn unlocked(runtime: &Runtime, medium: Storage, keys: &KeyArgs) -> Result<Storage> {
    keys.provide()?;
    Ok(runtime.block_on(keys::unlock(medium))?)
}

fn change(
    runtime: &Runtime,
    medium: &Storage,
    change: &KeyChange,
    path: &Path,
) -> Result<Vec<SlotInfo>> {
    let changed = runtime.block_on(change_keys(&**medium, change, environment::unix_seconds()));
    changed.with_context(|| path.display().to_string())
}

impl From<SlotInfo> for Slot {
    fn from(SlotInfo { number, kind, created_seconds }: SlotInfo) -> Self {
        Self { slot: number, kind: self::kind(kind), created_seconds }
    }
}

/// Returns the name of a kind of key.
fn kind(kind: SlotKind) -> &'static str {
    match kind {
        SlotKind::Passphrase => "passphrase",
        SlotKind::Key => "key",
        SlotKind::Recovery => "recovery-code",
    }
}

fn text(shown: &Shown) -> String {
    let mut text = String::new();
    for Slot { slot, kind, .. } in &shown.keys {
        text += &format!("slot {slot}: {kind}\n");
    }
    if let Some(code) = &shown.recovery_code {
        text += &format!("recovery code, which is not shown again:\n{code}\n");
    }
    text
}
