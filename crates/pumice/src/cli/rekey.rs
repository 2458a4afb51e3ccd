//! `pumice rekey`: replaces the master key of an encrypted drive, closed or served.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use futures_util::future::{Either, select};
use schemars::JsonSchema;
use serde::Serialize;

use super::key_args::KeyArgs;
use super::progress::Descent;
use super::{Outcome, lossy, print, print_schema};
use crate::control::{Answer, Client, Request};
use crate::environment;
use crate::keys;
use crate::open::{self, origin};
use crate::signals::Interrupt;
use crate::storage::Access;
use pumice_drive::base::Clock;
use pumice_drive::controller::{Drive, Locked, NewKeys, OpenOptions, Rekeyed, SlotInfo, SlotKind};
use pumice_drive::crypt::{Randomness, RecoveryCode};
use pumice_drive::runtime::{Backend, Runtime};

/// Interval of checks for progress and an interruption.
const LOOK_NS: u64 = 100_000_000;

/// Replace the master key of an encrypted drive, closed or served
///
/// Draws a new master key, re-encrypts all data of the drive with it, and forgets the old one:
/// anyone who has the old master key, from a copy of the superblock and a key that was removed, can
/// then read neither the drive's data nor later writes. The given key opens the drive as before; a
/// recovery code is replaced by a new one, which is printed immediately. A served drive remains in
/// use: its server replaces the key, and continues if this command is interrupted. After an
/// interruption or a crash, run the command again to complete the replacement; until then, both
/// keys are in use.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice rekey drive.pumice --key-file drive.key
  pumice rekey drive.pumice --key-file drive.key --drop-other-keys")]
pub(crate) struct Args {
    /// File or block device
    path: PathBuf,

    /// Drop the other keys of the drive; `pumice key add` adds them again
    #[arg(long)]
    drop_other_keys: bool,

    #[command(flatten)]
    keys: KeyArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The result as JSON.
#[derive(Serialize, JsonSchema)]
pub(super) struct Shown {
    /// The drive's file or device.
    path: String,
    #[serde(flatten)]
    rekeyed: Rekeyed,
    /// A new recovery code. Shown only once.
    recovery_code: Option<String>,
}

/// Runs the subcommand.
///
/// # Errors
/// The drive is not encrypted, the key opens no slot, or there are other keys: nothing has changed.
/// Or not all data can be moved: both keys are in use.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.keys.provide()?;
    let path = args.path.as_path();
    let runtime = Runtime::new(Backend::Auto)?;
    let medium = runtime.block_on(origin::medium(&runtime, path, &Access::default()))?;
    let locked = runtime.block_on(Locked::on(&*medium)).with_context(|| lossy(path))?;
    let Some(locked) = locked else { bail!("{}: the drive is not encrypted", path.display()) };
    drop(medium);
    let mut code = None;
    let new = if locked.has_earlier_key() { None } else { Some(draw(args, &locked, &mut code)?) };
    if let Some(code) = &code {
        // Printed now, so that a crash cannot lose it.
        let text =
            format!("new recovery code, once the key is replaced; not shown again:\n{code}\n");
        if args.json { eprint!("{text}") } else { print(&text)? }
    }
    let served = |client| ask(client, path, new.clone()).map(Some);
    let options = OpenOptions { compact_percent: None, ..OpenOptions::default() };
    let open = |runtime: &Runtime| open::alone(runtime, path, options);
    let rekey = |runtime: &Runtime, drive: &Rc<Drive>| rekey(runtime, drive, new.as_ref());
    let rekeyed = open::served_or_closed(path, served, open, rekey)?;
    if args.json {
        let recovery_code = code.map(|code| code.to_string());
        print_schema("rekey-1", &Shown { path: lossy(path), rekeyed, recovery_code })?;
    } else {
        let shown = path.display();
        print(&format!("{shown}: master key replaced, {} segments moved\n", rekeyed.segments))?;
    }
    Ok(Outcome::Good)
}

/// Draws a master key for the given key, and a recovery code if the drive has one.
fn draw(args: &Args, locked: &Locked, code: &mut Option<RecoveryCode>) -> Result<NewKeys> {
    let path = args.path.as_path();
    let secret = keys::given_or_asked(args.keys.source()?, path)?;
    let present = locked.unlock(&secret, Randomness::System).with_context(|| lossy(path))?;
    let slots = locked.slots();
    let own = locked.slot_of(&secret)?;
    let is_other = |slot: &&SlotInfo| Some(slot.number) != own && slot.kind != SlotKind::Recovery;
    let others = slots.iter().filter(is_other).count();
    if others > 0 && !args.drop_other_keys {
        bail!(
            "{}: the drive has {others} other keys, which could no longer open it: allow this with \
             --drop-other-keys, then add them again with `pumice key add`",
            path.display()
        );
    }
    let mut secrets = vec![secret];
    let has_code = slots.iter().any(|slot| slot.kind == SlotKind::Recovery);
    let is_code = own.is_some_and(|own| {
        slots.iter().any(|slot| slot.number == own && slot.kind == SlotKind::Recovery)
    });
    if has_code && !is_code {
        secrets.push(code.insert(RecoveryCode::draw(&Randomness::System)).secret());
    }
    let now = environment::unix_seconds();
    Ok(NewKeys::draw(locked.uuid, &present, &secrets, now, Randomness::System)?)
}

/// Asks the drive's server.
fn ask(client: Client, path: &Path, keys: Option<NewKeys>) -> Result<Rekeyed> {
    let mut shown = Descent::new();
    let answer = client.ask(&Request::Rekey { keys }, |answer| {
        if let Answer::Progress(progress) = answer {
            shown.set_segments_left(progress.total);
        }
    });
    drop(shown);
    match answer.with_context(|| path.display().to_string())? {
        Some(Answer::Rekeyed(rekeyed)) => Ok(rekeyed),
        _ => bail!(
            "{}: the server stopped before everything was moved: run `pumice rekey` again",
            path.display()
        ),
    }
}

/// Replaces the key of a drive that is not served.
fn rekey(runtime: &Runtime, drive: &Drive, keys: Option<&NewKeys>) -> Result<Rekeyed> {
    let interrupt = Interrupt::catch()?;
    let mut shown = Descent::new();
    let working = async {
        let mut work = pin!(drive.rekey(keys));
        loop {
            match select(work.as_mut(), pin!(runtime.sleep_ns(LOOK_NS))).await {
                Either::Left((rekeyed, _)) => return Ok(rekeyed?),
                Either::Right(_) if interrupt.came() && drive.segments_to_empty() > 0 => {
                    bail!("interrupted; the drive is sound, and both keys are in use: run it again")
                }
                Either::Right(_) => shown.set_segments_left(drive.segments_to_empty().into()),
            }
        }
    };
    runtime.block_on(working)
}
