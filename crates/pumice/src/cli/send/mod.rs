//! `pumice send`: writes a snapshot, or its changes since an earlier one, to a file or a pipe.

mod output;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::open;
use anyhow::{Context, Result, bail};
use pumice_drive::base::units::format_size;
use pumice_drive::controller::{Drive, OpenOptions, SendStream, Sent, SnapshotInfo, View};
use pumice_drive::runtime::{Backend, Runtime};
use schemars::JsonSchema;
use serde::Serialize;

use super::progress;
use super::token::Token;
use super::{Outcome, print, print_schema, say_error};
use crate::cli::key_args::KeyArgs;
use crate::control::{self, Arrival, Arrived, Sending, Wanted};
use crate::place::Place;
use crate::signals::Interrupt;
use crate::storage::Access;
use output::Output;

/// Write a snapshot to a pipe or file, for `pumice receive` on another drive
///
/// With --since, only data written after an earlier snapshot is sent; the earlier snapshot must be
/// the newest one of the receiver. Data is sent as it is stored, compressed. A clone's transfer
/// includes the data of its origin. If the drive is in use, its server sends the data while clients
/// continue to use the drive.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice send drive.pumice@monday | ssh backup pumice receive /backup/drive.pumice --create
  pumice send drive.pumice@tuesday --since monday | ssh backup pumice receive /backup/drive.pumice
  pumice send drive.pumice@tuesday --since monday --output tuesday.transfer
  pumice send drive.pumice --resume TOKEN | ssh backup pumice receive /backup/drive.pumice")]
pub(crate) struct Args {
    /// File or block device, and the name of the snapshot; with --resume, the file or block device
    /// alone
    #[arg(value_name = "PATH@NAME")]
    snapshot: PathBuf,

    /// Send only data written after this earlier snapshot or bookmark of the drive
    #[arg(long, value_name = "NAME", conflicts_with = "resume")]
    since: Option<String>,

    /// Continue an interrupted transfer, with the token that `pumice receive --resume-token` prints
    #[arg(long, value_name = "TOKEN")]
    resume: Option<Token>,

    /// Write to a new file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Overwrite the file if it exists
    #[arg(long, requires = "output")]
    force: bool,

    #[command(flatten)]
    keys: KeyArgs,

    /// Print the result as JSON; needs --output
    #[arg(long, requires = "output")]
    json: bool,
}

/// The result as JSON.
#[derive(Serialize, JsonSchema)]
pub(super) struct Shown {
    /// The snapshot that was sent.
    snapshot: SnapshotInfo,
    /// The snapshot since which changes were sent; `None` for the whole disk.
    since: Option<String>,
    /// Bytes of the disk that were sent.
    changed_bytes: u64,
    /// Bytes of the records that hold them.
    record_bytes: u64,
    /// Bytes of the transfer.
    transfer_bytes: u64,
}

/// The snapshot that was sent, and the result of the transfer; `None` after a signal.
type Ended = Option<(Sending, Sent)>;

/// Runs the subcommand.
///
/// # Errors
/// The drive cannot be opened, there is no such snapshot, a part of it cannot be read, or the
/// transfer cannot be written: the output is then incomplete.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.keys.provide()?;
    if args.output.is_none() && std::io::stdout().is_terminal() {
        bail!(
            "a transfer is not text: use --output, or redirect stdout to a file or `pumice receive`"
        );
    }
    let interrupt = Interrupt::catch()?;
    let runtime = Runtime::new(Backend::Auto)?;
    let Place { path, snapshot } = Place::of(&args.snapshot)?;
    let wanted = Wanted {
        snapshot,
        since: args.since.clone(),
        resume: args.resume.map(|Token(partial)| partial),
    };
    let job = Job { args, runtime: &runtime, interrupt: &interrupt, path: &path };
    let arrival = job.ask(&wanted).with_context(|| path.display().to_string())?;
    let ended = match arrival {
        Some(arrival) => job.served(arrival),
        None => job.closed(&wanted),
    };
    runtime.drop_tasks();
    match ended.with_context(|| path.display().to_string())? {
        Some((sending, sent)) => report(args, sending, &sent),
        None => {
            say_error("interrupted: the transfer is incomplete; its receiver detects that");
            Ok(Outcome::Code(2))
        }
    }
}

/// One run of the command.
struct Job<'a> {
    args: &'a Args,
    runtime: &'a Runtime,
    interrupt: &'a Interrupt,
    path: &'a Path,
}

impl Job<'_> {
    /// Asks the drive's server to send; `None` if there is none, or it has just ended.
    fn ask(&self, wanted: &Wanted) -> Result<Option<Arrival>> {
        let Some(client) = control::connect(self.path)? else { return Ok(None) };
        Ok(client.send(wanted.clone())?)
    }

    /// Passes on the data that the drive's server sends.
    fn served(&self, mut arrival: Arrival) -> Result<Ended> {
        let mut output = Output::open(self.args)?;
        let bar = progress::bytes(arrival.sending.snapshot.size_bytes);
        let ended = loop {
            if self.interrupt.came() {
                break Ok(None);
            }
            let (bytes, offset) = match arrival.next(output.spare().unwrap_or_default()) {
                Ok(Arrived::Nothing) => continue,
                Ok(Arrived::Part(bytes, offset)) => (bytes, offset),
                Ok(Arrived::End(sent)) => break output.end().map(|()| Some(sent)),
                Err(error) => break Err(error.into()),
            };
            bar.set_position(offset);
            match self.runtime.block_on(output.write(self.runtime, self.interrupt, bytes)) {
                Ok(true) => {}
                Ok(false) => break Ok(None),
                Err(error) => break Err(error),
            }
        };
        bar.finish_and_clear();
        Ok(ended?.map(|sent| (arrival.sending, sent)))
    }

    /// Reads the drive.
    fn closed(&self, wanted: &Wanted) -> Result<Ended> {
        let options = OpenOptions { read_only: true, incomplete: true, ..OpenOptions::default() };
        let all = open::drive(self.runtime, self.path, options)?.snapshots();
        let sending = wanted.find(&all)?;
        let disk = self.view(&sending.snapshot, false)?;
        let base = sending.since.as_ref().map(|info| self.view(info, true)).transpose()?;
        let base = base.as_deref().zip(sending.since.as_ref());
        let base = base.map(|(disk, info)| View { disk, info });
        let of = View { disk: &disk, info: &sending.snapshot };
        let mut send = SendStream::new(of, base, sending.start)?;
        let mut output = Output::open(self.args)?;
        let bar = progress::bytes(disk.size_bytes());
        let ended: Result<bool> = self.runtime.block_on(async {
            while let Some(bytes) = send.next().await? {
                bar.set_position(send.sent().offset);
                if !output.write(self.runtime, self.interrupt, bytes).await? {
                    return Ok(false);
                }
                while let Some(bytes) = output.spare() {
                    send.reuse(bytes);
                }
                // Lets the medium start reading ahead.
                self.runtime.yield_now().await;
            }
            output.end().map(|()| true)
        });
        bar.finish_and_clear();
        let sent = send.sent();
        Ok(ended?.then_some((sending.clone(), sent)))
    }

    /// Opens a snapshot; a bookmark, which is `incomplete`, if that is accepted.
    fn view(&self, info: &SnapshotInfo, incomplete: bool) -> Result<Rc<Drive>> {
        let place = Place { path: self.path.to_owned(), snapshot: Some(info.name.clone()) };
        let medium = open::medium(self.runtime, self.path, &Access::new(true))?;
        let options = OpenOptions { read_only: true, incomplete, ..OpenOptions::default() };
        open::on(self.runtime, &place, medium, options)
    }
}

fn report(args: &Args, sending: Sending, sent: &Sent) -> Result<Outcome> {
    let Sent { changed_bytes, record_bytes, transfer_bytes, .. } = *sent;
    let Sending { snapshot, since, .. } = sending;
    let since = since.map(|base| base.name);
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
