//! `pumice attach`: a drive as a block device of the kernel, by a file of a FUSE file system and a
//! loop device on that file.
//!
//! ```text
//! attach ----> the same program, --foreground --in-background
//!   | stdout      opens the drive, mounts the file          (this thread, which serves it)
//!   |             losetup, mkfs, mount                      (a second thread)
//!   +<----------- prints the device, leaves the terminal
//!  exit 0         serves until `pumice detach` or a signal has taken the device down
//! ```
//!
//! The background process is a new process and not a fork, because threads do not survive a fork. A
//! failed attempt leaves nothing; what a killed process left is removed by the next attempt.

mod attachment;
mod holders;
mod loop_device;
mod protect;
mod set_up;
mod take_down;
mod tools;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use clap::ValueEnum;

pub(crate) use self::attachment::Attachment;
use self::set_up::Wanted;
pub(crate) use self::take_down::take_down;
use super::open::{self, FileDrive, Opening, while_busy};
use super::serve::name_of;
use super::{Outcome, print, print_json, signals};
use crate::control::ControlSocket;
use crate::fuse::{FILE_NAME, FuseMount};
use crate::watch::{Connections, Measured, Watch};
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::runtime::{Backend, Runtime};

/// Attach a drive as a block device, and mount it (root)
///
/// Prints the device, /dev/loopN, once it is ready, and serves it in the background until `pumice
/// detach`. With a mount point, mounts the file system on the drive. fstrim returns unused space to
/// the drive.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice attach drive.pumice
  pumice attach drive.pumice /mnt --mkfs ext4
  pumice attach drive.pumice /mnt
  pumice detach /mnt")]
pub(crate) struct Args {
    /// File or block device of the drive
    path: PathBuf,

    /// Empty directory to mount the drive's file system on
    mountpoint: Option<PathBuf>,

    /// Create a file system on the drive first
    #[arg(long, value_enum, value_name = "KIND", conflicts_with = "read_only")]
    mkfs: Option<FileSystem>,

    /// Create it even if the drive already contains data, which is lost
    #[arg(long, requires = "mkfs")]
    force: bool,

    #[command(flatten)]
    opening: Opening,

    /// Sector size of the device, in bytes; use 512 for partition tables or XFS created on a
    /// 512-byte device, at a cost for small writes
    #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = sector_bytes)]
    sector_size: u16,

    /// Stay in the foreground; a signal detaches the device, unless it is in use
    #[arg(long)]
    foreground: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    /// Leave the terminal once the device is ready; starts the background process
    #[arg(long, hide = true, requires = "foreground")]
    in_background: bool,
}

/// File system that `--mkfs` creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileSystem {
    /// ext4, by mkfs.ext4
    Ext4,
    /// XFS, by mkfs.xfs
    Xfs,
}

impl FileSystem {
    fn program(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "mkfs.ext4",
            FileSystem::Xfs => "mkfs.xfs",
        }
    }
}

impl Args {
    fn wanted(&self) -> Wanted {
        Wanted {
            sector_bytes: self.sector_size,
            read_only: self.opening.read_only,
            mkfs: self.mkfs,
            force: self.force,
            mountpoint: self.mountpoint.clone(),
        }
    }
}

/// Runs the subcommand.
///
/// # Errors
/// A requirement on the machine, the drive or the mount point is not met, or a step fails; nothing
/// is left.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let wanted = args.wanted();
    wanted.check_machine()?;
    // Otherwise the mount found there may be left from this drive.
    if Attachment::of(&args.path)?.is_none() {
        wanted.check_mountpoint()?;
    }
    if args.foreground { serve(args, wanted) } else { start_in_background() }
}

fn refuse_attached(path: &Path, attachment: &Attachment) -> Result<()> {
    if attachment.process().is_none() {
        return Ok(());
    }
    let devices = attachment.devices();
    let devices: Vec<_> = devices.iter().map(|device| device.display().to_string()).collect();
    let what = format!("{} is already attached: {}", path.display(), devices.join(", "));
    Err(Error::new(ErrorKind::Busy, what))
}

/// Starts the background process and prints its output. Its errors go to the same stderr until the
/// device is ready.
fn start_in_background() -> Result<Outcome> {
    let cannot = |error| Error::os("cannot start the background process", error);
    let program = std::env::current_exe().map_err(cannot)?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).args(["--foreground", "--in-background"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(cannot)?;
    let mut result = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        std::io::Read::read_to_string(&mut pipe, &mut result).map_err(cannot)?;
    }
    if !result.is_empty() {
        print(&result)?;
        return Ok(Outcome::Good);
    }
    // The process has printed the reason.
    let status = child.wait().map_err(cannot)?;
    Ok(Outcome::Code(status.code().unwrap_or(2) as u8))
}

/// Attaches the drive and serves it until it is detached.
fn serve(args: &Args, wanted: Wanted) -> Result<Outcome> {
    let signal_socket = Arc::new(signals::socket()?);
    let later = wanted.clone();
    // Started before this process is protected, so that mkfs and other programs run unprotected.
    let (file, set_up) = Worker::new(move |file: PathBuf| later.set_up(&file))?;
    let failures = protect::against_reclaim();
    let runtime = Runtime::new(Backend::Auto)?;
    let drive = open::drive(&runtime, &args.path, args.opening.options());
    let drive = drive.or_else(|error| match Attachment::of(&args.path)? {
        Some(other) if error.kind() == ErrorKind::Busy => {
            refuse_attached(&args.path, &other).and(Err(error))
        }
        _ => Err(error),
    })?;
    let steps = Steps { file, set_up, failures, signals: signal_socket };
    let served = serve_opened(args, &wanted, &runtime, &drive, steps);
    let closed = runtime.block_on(drive.close());
    runtime.drop_tasks();
    let attachment = served?;
    if let Err(error) = closed {
        // The directory with the log stays, so that `pumice detach` can report the failure.
        super::say_error(&super::at_path(&args.path, error).chain());
        return Ok(Outcome::Problem);
    }
    attachment.remove()?;
    Ok(Outcome::Good)
}

/// Prepared before the drive is opened.
struct Steps {
    /// Receives the drive's file, which starts the setup.
    file: Sender<PathBuf>,
    set_up: Worker<Result<PathBuf>>,
    failures: protect::Failures,
    signals: Arc<OwnedFd>,
}

/// Everything between opening and closing the drive.
fn serve_opened(
    args: &Args,
    wanted: &Wanted,
    runtime: &Runtime,
    drive: &Rc<FileDrive>,
    steps: Steps,
) -> Result<Attachment> {
    // The drive is locked, so an earlier process that attached it was killed and is gone within a
    // moment, or both only read.
    if let Some(left) = Attachment::of(&args.path)? {
        while_busy(runtime, || refuse_attached(&args.path, &left))?;
        take_down(&left)?;
        left.remove()?;
        tracing::warn!(drive = %args.path.display(), "removed what a killed process had left");
    }
    wanted.check_mountpoint()?;
    let attachment = Attachment::begin(&args.path, args.mountpoint.as_deref())?;
    let measured = Rc::new(Measured::new(drive.clone(), runtime.clone()));
    let mount = FuseMount::mount(runtime, measured.clone(), &attachment.fuse_directory());
    let mount = mount.inspect_err(|_| clean(&attachment))?;
    let control = ControlSocket::bind(&args.path).inspect_err(|error| {
        let (path, error) = (args.path.display(), error.chain());
        tracing::warn!(drive = %path, %error, "other commands cannot reach the drive");
    });
    if let Ok(control) = &control {
        let watch = Watch::new(runtime.clone(), Connections::default);
        let number = watch.add(name_of(&args.path), drive.clone(), measured, None);
        runtime.spawn(control.serve(runtime.clone(), drive.clone(), (watch, number)));
    }
    // Fails only if the thread has ended, which its result reports.
    let _ = steps.file.send(attachment.fuse_directory().join(FILE_NAME));
    let ready = runtime.block_on(steps.set_up.end(runtime)).and_then(|device| {
        protect::against_killing(steps.failures);
        announce(args, &attachment, &device).inspect_err(|_| {
            let _ = runtime.block_on(take_down_on_worker(runtime, &attachment));
        })
    });
    if let Err(error) = ready {
        let _ = mount.unmount();
        clean(&attachment);
        return Err(error);
    }
    runtime.block_on(until_taken_down(runtime, &attachment, &steps.signals));
    mount.unmount().map(|()| attachment)
}

/// Removes what a failed attempt has created. The first error is the one to report.
fn clean(attachment: &Attachment) {
    let _ = attachment.remove();
}

/// Prints the device; in the background, also leaves the terminal, which lets the starting process
/// exit.
fn announce(args: &Args, attachment: &Attachment, device: &Path) -> Result<()> {
    if args.json {
        print_json(&serde_json::json!({
            "path": args.path, "device": device, "mountpoint": args.mountpoint,
        }))?;
    } else {
        print(&format!("{}\n", device.display()))?;
    }
    if !args.in_background {
        return Ok(());
    }
    let left = attachment.open_log().and_then(|log| {
        let null = File::options().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stderr(&log)?;
        rustix::process::setsid()?;
        std::env::set_current_dir("/")?;
        rustix::stdio::dup2_stdout(&null)?;
        Ok(())
    });
    left.map_err(|error| Error::os("cannot leave the terminal", error))
}

/// Waits for signals until one of them finds the device unused, or already detached.
async fn until_taken_down(runtime: &Runtime, attachment: &Attachment, signals: &Arc<OwnedFd>) {
    loop {
        runtime.receive(signals, vec![0; 1], 0..1).await.1.ok();
        match take_down_on_worker(runtime, attachment).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(error = %error.chain(), "cannot detach yet, still serving")
            }
        }
    }
}

/// Detaches the device while this thread serves it.
async fn take_down_on_worker(runtime: &Runtime, attachment: &Attachment) -> Result<()> {
    let attachment = attachment.clone();
    let (start, taking) = Worker::new(move |()| take_down(&attachment))?;
    let _ = start.send(());
    taking.end(runtime).await
}

/// Work on a second thread, while the thread of the runtime serves the file that the work accesses.
struct Worker<T> {
    thread: JoinHandle<Option<T>>,
    /// Closed when the thread ends.
    ended: Arc<OwnedFd>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts a thread that waits for its input; it ends if the sender is dropped.
    fn new<S: Send + 'static>(
        work: impl FnOnce(S) -> T + Send + 'static,
    ) -> Result<(Sender<S>, Self)> {
        let cannot = |error| Error::os("cannot start a thread", error);
        let (start, started) = channel();
        let (ended, ending) = UnixStream::pair().map_err(cannot)?;
        let thread = thread::Builder::new().name("worker".into()).spawn(move || {
            let result = started.recv().ok().map(work);
            drop(ending);
            result
        });
        Ok((start, Self { thread: thread.map_err(cannot)?, ended: Arc::new(ended.into()) }))
    }
}

impl<T> Worker<Result<T>> {
    /// Waits for the result of the work.
    async fn end(self, runtime: &Runtime) -> Result<T> {
        runtime.receive(&self.ended, vec![0; 1], 0..1).await.1.ok();
        let result = self.thread.join().expect("the thread does not panic");
        result.expect("it was started")
    }
}

fn sector_bytes(text: &str) -> Result<u16, String> {
    match text {
        "512" => Ok(512),
        "4096" => Ok(4096),
        _ => Err("expected 512 or 4096".into()),
    }
}
