//! `pumice receive`: creates a snapshot on a drive from the output of `pumice send`.

use std::fs::File;
use std::io::{ErrorKind as IoErrorKind, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::thread;

use crate::open;
use anyhow::{Context, Result, anyhow, bail};
use async_channel::{Receiver, Sender, bounded};
use pumice_drive::base::units::format_size;
use pumice_drive::base::{Error, ErrorKind};
use pumice_drive::codec::{Codec, FrameForm};
use pumice_drive::controller::{
    OpenOptions, Receive, Received, SnapshotInfo, Spec, TransferReader, transfer_batch_bytes,
};
use pumice_drive::format::{
    BATCH_HEADER_BYTES, TRANSFER_HEAD_BYTES, TransferHead, check_snapshot_name,
};
use pumice_drive::runtime::{Backend, Runtime};
use schemars::JsonSchema;
use serde::Serialize;

use super::key_args::KeyArgs;
use super::token::Token;
use super::{Outcome, chain, create, lossy, print, print_schema, progress, say_error, size};
use crate::environment;
use crate::place::Place;
use crate::signals::{self, Interrupt};
use pumice_drive::controller::Drive;

/// Batches that are read ahead of the drive, each of at most 4 MiB.
const BATCHES_AHEAD: usize = 4;

/// Interval of checks for a signal while the sender is silent.
const LOOK_NS: u64 = 100_000_000;

/// Recreate a snapshot written by `pumice send` on another drive
///
/// The snapshot appears once all of it has arrived. If the transfer is interrupted, the disk
/// contains a part of it and cannot be served until `pumice send --resume` has sent the rest. A
/// transfer sent with --since can only be received by a drive whose newest snapshot is the one
/// named there, and whose disk was not written to since. The drive must not be in use.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice send drive.pumice@monday | pumice receive copy.pumice --create
  pumice send drive.pumice@tuesday --since monday | pumice receive copy.pumice
  pumice receive copy.pumice --input tuesday.transfer --as tuesday-2
  pumice send drive.pumice --resume $(pumice receive copy.pumice --resume-token) |
    pumice receive copy.pumice")]
pub(crate) struct Args {
    /// File or block device of the drive
    path: PathBuf,

    /// Read from a file instead of stdin
    #[arg(short, long, value_name = "FILE")]
    input: Option<PathBuf>,

    /// Name of the snapshot on this drive [default: the sender's]
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,

    /// Create the drive first, with a disk as large as the sender's
    #[arg(long)]
    create: bool,

    /// With --create: codec for new data; received data is compressed again if the sender uses a
    /// different codec [default: the sender's]
    #[arg(long, value_name = "CODEC", requires = "create")]
    codec: Option<Codec>,

    /// With --create: size of the log on the medium [default: enough for incompressible data of the
    /// disk's size]
    #[arg(long, value_parser = size, value_name = "SIZE", requires = "create")]
    capacity: Option<u64>,

    /// Print the token with which `pumice send --resume` continues an interrupted transfer
    #[arg(long, conflicts_with_all = ["input", "name", "create", "json"])]
    resume_token: bool,

    /// With --create: encrypt the drive, with the given key; `pumice key add --new-recovery-code`
    /// adds a recovery code
    #[arg(long, requires = "create")]
    encrypt: bool,

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
    /// The snapshot on this drive.
    snapshot: SnapshotInfo,
    /// Bytes of the transfer.
    transfer_bytes: u64,
}

/// Runs the subcommand.
///
/// # Errors
/// The transfer does not fit this drive: nothing has changed. It is damaged or truncated, or the
/// drive cannot store it: the disk contains a part of the snapshot.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.keys.provide()?;
    let runtime = Runtime::new(Backend::Auto)?;
    if args.resume_token {
        return show_token(&runtime, args);
    }
    let interrupt = Interrupt::catch()?;
    let mut input = Input::open(args)?;
    let reader = TransferReader::new(&input.head()?).context(input.name.clone())?;
    let head = reader.head().clone();
    let name = args.name.clone().unwrap_or_else(|| head.name.clone());
    check_snapshot_name(&name)?;
    let shown = args.path.display().to_string();
    if args.create && !args.encrypt && !args.keys.is_empty() {
        bail!("a key was given without --encrypt");
    }
    let epoch = if args.create {
        make(args, &head)?;
        0
    } else {
        let explain = |error: anyhow::Error| match error.downcast_ref::<Error>().map(Error::kind) {
            Some(ErrorKind::NotFound) => anyhow!("{shown}: no such drive: `--create` creates it"),
            _ => error.context(shown.clone()),
        };
        check_fit(&runtime, &args.path, &head, &name).map_err(explain)?
    };
    let drive = open::drive(&runtime, &args.path, options(false))?;
    if drive.info().epoch != epoch + 1 {
        bail!("{shown}: another process has used the drive in the meantime: try again");
    }
    let batches = input.start()?;
    let received = runtime.block_on(receive(&runtime, &drive, reader, name, &batches, &interrupt));
    let (part, is_medium_full) = (drive.partial_receive(), drive.info().medium_full);
    let closed = runtime.block_on(drive.close());
    runtime.drop_tasks();
    let received = received.and_then(|received| closed.map(|()| received).map_err(Into::into));
    let (snapshot, transfer_bytes) = match received {
        Ok(Some(received)) => received,
        Ok(None) => {
            say_error(&format!("interrupted: {}", advice(&shown, part.map(Token), false)));
            return Ok(Outcome::Code(2));
        }
        Err(error) => {
            let kind = error.downcast_ref::<Error>().map(Error::kind);
            let lacks_room = kind == Some(ErrorKind::NoSpace) && !is_medium_full;
            let (what, next) = (chain(&error), advice(&shown, part.map(Token), lacks_room));
            bail!("{shown}: {what}: {next}");
        }
    };
    let name = snapshot.name.clone();
    let path = lossy(&args.path);
    if args.json {
        print_schema("receive-1", &Shown { path, snapshot, transfer_bytes })?;
    } else {
        print(&format!("{path}@{name}: received, {}\n", format_size(transfer_bytes)))?;
    }
    Ok(Outcome::Good)
}

/// Returns advice after a receive that did not complete.
fn advice(path: &str, token: Option<Token>, lacks_room: bool) -> String {
    let Some(token) = token else { return "nothing was received".to_owned() };
    let room = match lacks_room {
        false => String::new(),
        true => format!(
            "make space on the drive with `pumice resize {path} --capacity SIZE` or `pumice \
             snapshot delete`; then "
        ),
    };
    format!(
        "the disk holds a part of the snapshot: {room}`pumice send PATH --resume {token}` sends \
         the rest, for `pumice receive {path}`"
    )
}

fn options(read_only: bool) -> OpenOptions {
    OpenOptions { read_only, incomplete: true, compact_percent: None, ..OpenOptions::default() }
}

/// Prints the position from which an interrupted receive continues.
fn show_token(runtime: &Runtime, args: &Args) -> Result<Outcome> {
    let part = open::drive(runtime, &args.path, options(true))?.partial_receive();
    runtime.drop_tasks();
    match part {
        Some(part) => print(&format!("{}\n", Token(part)))?,
        None => bail!("{}: no interrupted receive: the disk is complete", args.path.display()),
    }
    Ok(Outcome::Good)
}

/// Creates the drive.
fn make(args: &Args, head: &TransferHead) -> Result<()> {
    let codec = args.codec.unwrap_or(Codec::from_format(head.codec, head.codec_level));
    let spec = Spec {
        created_seconds: environment::unix_seconds(),
        segment_bytes: create::segment_bytes_of(args.capacity.unwrap_or(head.size_bytes)),
        capacity_bytes: args.capacity,
        codec,
        frame_form: FrameForm::from_format(head.has_chunks),
        ..Spec::new(environment::new_identity(), head.size_bytes)
    };
    create::on_new(&args.path, &spec, args.encrypt.then_some(&args.keys))
}

/// Checks, before anything is changed, that a drive can receive a transfer. Returns how often the
/// drive has been opened for writing so far.
fn check_fit(runtime: &Runtime, path: &Path, head: &TransferHead, name: &str) -> Result<u32> {
    let disk = open::drive(runtime, path, options(true))?;
    let checked = runtime.block_on(async {
        let Received::Base(base) = disk.check_transfer(head, name).await? else { return Ok(()) };
        let place = Place { path: path.to_owned(), snapshot: Some(base.clone()) };
        let medium = open::medium_of(runtime, path).await?;
        let view = open::on_medium(runtime, place.snapshot.as_deref(), medium, options(true));
        let view = view.await?;
        let mut is_changed = false;
        disk.changes_since(&view, |_| {
            is_changed = true;
            false
        })
        .await?;
        if is_changed {
            bail!(
                "the disk was written after snapshot {base}, the base of the transfer: roll it \
                 back with `pumice snapshot rollback {}@{base}`",
                path.display()
            );
        }
        Ok(())
    });
    let epoch = disk.info().epoch;
    runtime.drop_tasks();
    checked.map(|()| epoch)
}

/// Applies batches until the end; `None` if a signal has arrived.
async fn receive(
    runtime: &Runtime,
    drive: &Drive,
    reader: TransferReader,
    name: String,
    batches: &Receiver<Result<Vec<u8>>>,
    interrupt: &Interrupt,
) -> Result<Option<(SnapshotInfo, u64)>> {
    let bar = progress::bytes(reader.head().size_bytes);
    let mut receive = Receive::new(drive, reader, name);
    let result: Result<bool> = async {
        loop {
            if interrupt.came() {
                return Ok(false);
            }
            bar.set_position(receive.offset());
            let Some(batch) = runtime.timeout(LOOK_NS, batches.recv()).await else { continue };
            let batch = batch.map_err(|_| anyhow!("the transfer can no longer be read"))??;
            if receive.apply(&batch).await? {
                return Ok(true);
            }
        }
    }
    .await;
    bar.finish_and_clear();
    if !matches!(result, Ok(true)) {
        // Saves the sender from sending this again. If it fails, more is sent.
        let noted = receive.note().await;
        result?;
        noted?;
        return Ok(None);
    }
    let bytes = receive.bytes();
    Ok(Some((receive.end().await?, bytes)))
}

/// The source of the transfer.
struct Input {
    source: Option<Box<dyn Read + Send>>,
    name: String,
}

impl Input {
    fn open(args: &Args) -> Result<Self> {
        match &args.input {
            Some(path) => {
                let name = path.display().to_string();
                let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
                Ok(Self { source: Some(Box::new(file)), name })
            }
            None if std::io::stdin().is_terminal() => {
                bail!("no transfer on stdin: pipe `pumice send` to this command, or use --input")
            }
            None => Ok(Self { source: Some(Box::new(std::io::stdin())), name: "stdin".into() }),
        }
    }

    fn head(&mut self) -> Result<[u8; TRANSFER_HEAD_BYTES]> {
        let mut head = [0; TRANSFER_HEAD_BYTES];
        let source = self.source.as_mut().context("the transfer is being read")?;
        let what = || format!("cannot read the header of the transfer from {}", self.name);
        read(source, &mut head).with_context(what)?;
        Ok(head)
    }

    /// Starts a thread that reads batches; it ends with the input, or when the receiver is dropped.
    fn start(&mut self) -> Result<Receiver<Result<Vec<u8>>>> {
        let (sender, receiver) = bounded(BATCHES_AHEAD);
        let source = self.source.take().context("the transfer is being read")?;
        let thread = thread::Builder::new().name("transfer".into());
        signals::blocked(|| thread.spawn(move || read_batches(source, &sender)))?
            .context("cannot start a thread")?;
        Ok(receiver)
    }
}

fn read_batches(mut source: Box<dyn Read + Send>, batches: &Sender<Result<Vec<u8>>>) {
    loop {
        let batch = read_batch(&mut source);
        let is_last = batch.is_err();
        if batches.send_blocking(batch).is_err() || is_last {
            return;
        }
    }
}

fn read_batch(source: &mut impl Read) -> Result<Vec<u8>> {
    let mut header = [0; BATCH_HEADER_BYTES];
    read(source, &mut header)?;
    let mut batch = vec![0; transfer_batch_bytes(&header)?];
    let (start, rest) = batch.split_at_mut(BATCH_HEADER_BYTES);
    start.copy_from_slice(&header);
    read(source, rest)?;
    Ok(batch)
}

fn read(source: &mut impl Read, target: &mut [u8]) -> Result<()> {
    match source.read_exact(target) {
        Err(error) if error.kind() == IoErrorKind::UnexpectedEof => {
            bail!("the transfer is truncated")
        }
        read => read.context("cannot read the transfer"),
    }
}
