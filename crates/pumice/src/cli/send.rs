//! `pumice send`: writes a snapshot, or what one has that an earlier one has not, to a file or a
//! pipe.

use std::fs::File;
use std::io::{ErrorKind as IoErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use pumice_drive::base::units::format_size;
use pumice_drive::controller::{OpenOptions, Partial, Send, Sent, SnapshotInfo, View};
use pumice_drive::runtime::{Backend, Runtime};
use serde::Serialize;

use super::open::{FileDrive, drive};
use super::output::open_output_with;
use super::progress;
use super::signals::Interrupt;
use super::token::Token;
use super::{Outcome, print, print_schema, say_error};
use crate::place::Place;

/// Write a snapshot to a pipe or file, from which `pumice receive` makes it on another drive
///
/// With --since, only what was written after an earlier snapshot is sent; the receiver must have
/// that one as its newest. Data is sent as it is stored, compressed. The drive must not be in use.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice send drive.pumice@monday | ssh backup pumice receive /backup/drive.pumice --create
  pumice send drive.pumice@tuesday --since monday | ssh backup pumice receive /backup/drive.pumice
  pumice send drive.pumice@tuesday --since monday --output tuesday.transfer
  pumice send drive.pumice --resume TOKEN | ssh backup pumice receive /backup/drive.pumice")]
pub(crate) struct Args {
    /// File or block device, and the name of the snapshot; with --resume the drive is enough
    #[arg(value_name = "PATH@NAME")]
    snapshot: PathBuf,

    /// Leave out what this earlier snapshot of the drive has; a bookmark of it will do
    #[arg(long, value_name = "NAME", conflicts_with = "resume")]
    since: Option<String>,

    /// Continue an interrupted receive: what `pumice receive --resume-token` prints
    #[arg(long, value_name = "TOKEN")]
    resume: Option<Token>,

    /// Write to a new file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Overwrite the file if it exists
    #[arg(long, requires = "output")]
    force: bool,

    /// Print the result as JSON; needs --output
    #[arg(long, requires = "output")]
    json: bool,
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Shown {
    snapshot: SnapshotInfo,
    since: Option<String>,
    changed_bytes: u64,
    record_bytes: u64,
    transfer_bytes: u64,
}

/// What is sent: a snapshot, what it is sent since, and from where on.
struct Wanted {
    info: SnapshotInfo,
    base: Option<SnapshotInfo>,
    start: u64,
}

/// Runs the subcommand.
///
/// # Errors
/// The drive cannot be opened, there is no such snapshot, a part of it cannot be read, or the
/// transfer cannot be written: what was written has no end then.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    if args.output.is_none() && std::io::stdout().is_terminal() {
        bail!(
            "a transfer is not text: use --output, or redirect stdout to a file or `pumice receive`"
        );
    }
    let interrupt = Interrupt::catch()?;
    let runtime = Runtime::new(Backend::Auto)?;
    let place = Place::of(&args.snapshot)?;
    let wanted = wanted(&runtime, &place, args)?;
    let view = |info: &SnapshotInfo, bookmark| view(&runtime, &place.path, info, bookmark);
    let disk = view(&wanted.info, false)?;
    let base = wanted.base.as_ref().map(|base| view(base, true)).transpose()?;
    let mut output = Output::open(args)?;
    let base = base.as_deref().zip(wanted.base.as_ref());
    let base = base.map(|(disk, info)| View { disk, info });
    let of = View { disk: &*disk, info: &wanted.info };
    let mut send =
        Send::new(of, base, wanted.start).with_context(|| place.path.display().to_string())?;
    let bar = progress::bytes(disk.size_bytes());
    let ended: Result<bool> = runtime.block_on(async {
        loop {
            if interrupt.came() {
                return Ok(false);
            }
            bar.set_position(send.sent().offset);
            match send.next().await.with_context(|| args.snapshot.display().to_string())? {
                Some(bytes) => output.write(bytes)?,
                None => return output.end().map(|()| true),
            }
        }
    });
    bar.finish_and_clear();
    runtime.drop_tasks();
    if !ended? {
        say_error("interrupted: the transfer has no end, and no receiver takes it for whole");
        return Ok(Outcome::Code(2));
    }
    let sent = send.sent();
    report(args, &wanted, &sent)
}

fn report(args: &Args, wanted: &Wanted, sent: &Sent) -> Result<Outcome> {
    let Sent { changed_bytes, record_bytes, transfer_bytes, .. } = *sent;
    let since = wanted.base.as_ref().map(|base| base.name.clone());
    let snapshot = wanted.info.clone();
    let shown = Shown { snapshot, since, changed_bytes, record_bytes, transfer_bytes };
    let text = format!(
        "sent {}: {} of the disk in {}\n",
        args.snapshot.display(),
        format_size(changed_bytes),
        format_size(transfer_bytes)
    );
    match (&args.output, args.json) {
        (None, _) => say_error(text.trim_end()),
        (Some(_), true) => print_schema("send-1", &shown)?,
        (Some(_), false) => print(&text)?,
    }
    Ok(Outcome::Good)
}

/// Finds the snapshots by name or by token.
fn wanted(runtime: &Runtime, place: &Place, args: &Args) -> Result<Wanted> {
    let options = OpenOptions { read_only: true, partial: true, ..OpenOptions::default() };
    let all = drive(runtime, &place.path, options)?.snapshots();
    let shown = place.path.display();
    let named = |name: &str| {
        let found = all.iter().find(|info| info.name == name).cloned();
        found.with_context(|| {
            format!("{shown} has no snapshot named {name}: see `pumice snapshot list`")
        })
    };
    let Some(Token(Partial { snapshot, base, offset })) = args.resume else {
        let Some(name) = &place.snapshot else {
            bail!("{shown}: name the snapshot: PATH@NAME, without / in NAME");
        };
        let base = args.since.as_deref().map(named).transpose()?;
        return Ok(Wanted { info: named(name)?, base, start: 0 });
    };
    let known = |guid| {
        let found = all.iter().find(|info| info.guid == guid).cloned();
        found.with_context(|| format!("{shown} has no snapshot with identity {guid} any more"))
    };
    let info = known(snapshot)?;
    if place.snapshot.as_ref().is_some_and(|name| *name != info.name) {
        bail!("{}: the token is of snapshot {}", args.snapshot.display(), info.name);
    }
    Ok(Wanted { info, base: base.map(known).transpose()?, start: offset })
}

/// Opens a snapshot, or a bookmark.
fn view(
    runtime: &Runtime,
    path: &Path,
    info: &SnapshotInfo,
    bookmark: bool,
) -> Result<Rc<FileDrive>> {
    let place = Place { path: path.to_owned(), snapshot: Some(info.name.clone()) };
    let medium = super::open::medium(runtime, path, true)?;
    let options = OpenOptions { read_only: true, bookmark, ..OpenOptions::default() };
    super::open::on(runtime, &place, medium, options)
}

/// Where the transfer goes.
enum Output {
    File(File, String),
    Stdout(std::io::StdoutLock<'static>),
}

impl Output {
    fn open(args: &Args) -> Result<Self> {
        let Some(path) = &args.output else { return Ok(Self::Stdout(std::io::stdout().lock())) };
        // The disk's files may be closed to other users: so is the transfer.
        let file = open_output_with(path, args.force, 0o600)?;
        let shown = path.display().to_string();
        file.set_len(0).with_context(|| format!("cannot write {shown}"))?;
        Ok(Self::File(file, shown))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::File(file, path) => {
                file.write_all(bytes).with_context(|| format!("cannot write {path}"))
            }
            Self::Stdout(stdout) => match stdout.write_all(bytes) {
                Err(error) if error.kind() == IoErrorKind::BrokenPipe => {
                    bail!("the receiver ended before the transfer: it says why")
                }
                written => written.context("cannot write to stdout"),
            },
        }
    }

    /// Completes the transfer. A file is durable when this returns.
    fn end(&mut self) -> Result<()> {
        match self {
            Self::File(file, path) => {
                file.sync_all().with_context(|| format!("cannot write {path}"))
            }
            Self::Stdout(stdout) => stdout.flush().context("cannot write to stdout"),
        }
    }
}
