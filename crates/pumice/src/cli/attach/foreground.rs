//! Attaches a drive and serves it, in this process.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use anyhow::{Result, anyhow};
use schemars::JsonSchema;
use serde::Serialize;

use super::set_up::Wanted;
use super::worker::Worker;
use super::{Args, Attachment, background, protect, take_down};
use crate::cli::serve::name_of;
use crate::cli::{Outcome, chain, print, print_schema, say_error};
use crate::control::{self, Client, ControlSocket, Loan};
use crate::notify;
use crate::open::{self, media};
use crate::path_watch;
use crate::place::Place;
use crate::signals;
use crate::watch::{Connections, Measured, Terms, Watch};
use pumice_drive::base::clock::while_busy;
use pumice_drive::base::{Error, ErrorKind};
use pumice_drive::codec::Workers;
use pumice_drive::controller::Drive;
use pumice_drive::runtime::{Backend, Runtime};
use pumice_fuse::{FuseMount, file_name};

/// Attaches the drive and serves it until it is detached.
pub(super) fn serve(args: &Args, wanted: Wanted) -> Result<Outcome> {
    let signal_socket = Arc::new(signals::socket()?);
    let later = wanted.clone();
    // Started before this process is protected, so that mkfs and other programs run unprotected.
    let (file, set_up) = Worker::new(move |file: PathBuf| later.set_up(&file))?;
    let failures = protect::against_reclaim();
    let runtime = Runtime::new(Backend::Auto)?;
    runtime.set_busy_poll(args.opening.busy_poll_ns());
    // Started after the protection is set, which threads inherit: their memory must not wait for
    // this drive.
    let workers = open::pool(args.opening.compressors())?.map(Workers::of);
    let steps = Steps { file, set_up, failures, signals: signal_socket };
    // The process that has the drive open knows its snapshots.
    if args.snapshot.is_some()
        && let Some(server) = control::connect(&args.path)?
    {
        let served = serve_opened(args, &wanted, &runtime, Source::Lent(server), steps);
        runtime.drop_tasks();
        served?.remove()?;
        return Ok(Outcome::Good);
    }
    let place = Place { path: args.path.clone(), snapshot: args.snapshot.clone() };
    let drive =
        open::at(&runtime, &place, &args.opening.access(&[]), args.opening.options(&args.path));
    let drive = match drive {
        Err(error) if open::is_busy(&error) => {
            let other = args.attachment()?;
            let other = other.filter(|other| other.process().is_some());
            return Err(other.map_or(error, |other| already_attached(&args.path, &other)));
        }
        drive => drive?,
    };
    if let Some(workers) = workers {
        drive.use_workers(workers);
    }
    let served = serve_opened(args, &wanted, &runtime, Source::Own(drive.clone()), steps);
    let closed = runtime.block_on(drive.close());
    runtime.drop_tasks();
    let attachment = served?;
    if let Err(error) = closed {
        // The directory with the log remains, so that `pumice detach` can report the failure.
        let error = anyhow::Error::from(error).context(args.path.display().to_string());
        say_error(&chain(&error));
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
    source: Source,
    steps: Steps,
) -> Result<Attachment> {
    // The drive is locked, so either an earlier process that attached it was killed and will be
    // gone within a moment, or both processes only read.
    if let Some(left) = args.attachment()? {
        if !wait_until(runtime, || left.process().is_none()) {
            return Err(already_attached(&args.path, &left));
        }
        take_down(&left, None)?;
        left.remove()?;
        tracing::warn!(drive = %args.path.display(), "cleaned up after a killed process");
    }
    wanted.check_mountpoint()?;
    let (snapshot, mountpoint) = (args.snapshot.as_deref(), args.mountpoint.as_deref());
    let mut attachment = Attachment::begin(&args.path, snapshot, source.lender(), mountpoint)?;
    let name = match &args.snapshot {
        Some(snapshot) => format!("{}@{snapshot}", name_of(&args.path)),
        None => name_of(&args.path),
    };
    let file = attachment.fuse_directory().join(file_name(&name));
    let offered = source.offer(args, runtime, &attachment.fuse_directory(), &name);
    let mut offered = offered.inspect_err(|_| clean(&attachment))?;
    // Fails only if the thread has ended, which its result reports.
    let _ = steps.file.send(file);
    let ready = runtime.block_on(steps.set_up.end(runtime)).and_then(|device| {
        protect::against_killing(steps.failures);
        let noted = attachment.note_device(&device);
        noted.and_then(|()| announce(args, &attachment, &device)).inspect_err(|_| {
            let _ = runtime.block_on(take_down_on_worker(runtime, &attachment));
        })
    });
    if let Err(error) = ready {
        let _ = offered.end(runtime);
        clean(&attachment);
        return Err(error);
    }
    runtime.block_on(until_taken_down(runtime, &attachment, &steps.signals));
    offered.end(runtime)?;
    Ok(attachment)
}

/// The attached disk.
enum Source {
    /// A drive, or a snapshot, that this process has opened.
    Own(Rc<Drive>),
    /// A snapshot of a drive that another process has open.
    Lent(Client),
}

/// A disk offered as a file, until it is removed.
enum Offered {
    Own(FuseMount, Option<ControlSocket>),
    Lent(Option<Loan>),
}

impl Source {
    /// Returns the process that lends the snapshot.
    fn lender(&self) -> Option<u32> {
        match self {
            Self::Own(_) => None,
            Self::Lent(client) => client.process(),
        }
    }

    /// Offers the disk as a file in a directory.
    fn offer(self, args: &Args, runtime: &Runtime, at: &Path, name: &str) -> Result<Offered> {
        let drive = match self {
            Self::Own(drive) => drive,
            Self::Lent(client) => {
                let snapshot = args.snapshot.clone().unwrap_or_default();
                return Ok(Offered::Lent(Some(client.borrow(snapshot, at, name)?)));
            }
        };
        let measured = Rc::new(Measured::new(drive.clone(), runtime.clone()));
        let mount = FuseMount::mount(runtime, measured.clone(), at, name)?;
        // A snapshot does not answer requests about the drive at its path.
        let is_whole = args.snapshot.is_none();
        let control = is_whole.then(|| ControlSocket::bind(runtime, &args.path)).transpose();
        let control = control.inspect_err(|error| {
            let (path, error) = (args.path.display(), error.chain());
            tracing::warn!(drive = %path, %error, "other commands cannot reach the drive");
        });
        let control = control.ok().flatten();
        if let Some(control) = &control {
            let watch = Watch::new(runtime.clone(), Connections::default, Arc::default());
            let shown = drive.clone();
            watch.add(name.to_owned(), move || shown.clone(), measured, Terms::default());
            let (watch, uris, drive) = ((watch, name.to_owned()), Rc::default(), drive.clone());
            runtime.spawn(control.serve(runtime.clone(), drive, watch, uris, None));
        }
        media::path_watch(&drive).into_iter().for_each(path_watch::watch);
        crate::devices::go_on(runtime, &drive);
        Ok(Offered::Own(mount, control))
    }
}

impl Offered {
    /// Removes the file.
    fn end(&mut self, runtime: &Runtime) -> Result<()> {
        match self {
            Self::Own(mount, control) => {
                if let Some(control) = control {
                    runtime.block_on(control.end(runtime));
                }
                mount.unmount()?;
            }
            Self::Lent(loan) => drop(loan.take().map(Loan::end)),
        }
        Ok(())
    }
}

/// Removes the files that a failed attempt has created. The first error is the one to report.
fn clean(attachment: &Attachment) {
    let _ = attachment.remove();
}

/// The attached drive.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Attached<'a> {
    /// The drive's file or device.
    path: &'a Path,
    /// The block device of the attached drive.
    device: &'a Path,
    /// The mount point; `None` if it is not mounted.
    mountpoint: Option<&'a Path>,
}

/// Prints the device; in the background, also leaves the terminal, which lets the starting process
/// exit.
fn announce(args: &Args, attachment: &Attachment, device: &Path) -> Result<()> {
    if args.json {
        let Args { path, mountpoint, .. } = args;
        print_schema("attach-1", &Attached { path, device, mountpoint: mountpoint.as_deref() })?;
    } else {
        print(&format!("{}\n", device.display()))?;
    }
    if args.in_background {
        background::leave_terminal(attachment)?;
    }
    notify::ready();
    Ok(())
}

/// Waits for signals until one of them finds the device unused, or already detached.
async fn until_taken_down(runtime: &Runtime, attachment: &Attachment, signals: &Arc<OwnedFd>) {
    loop {
        runtime.receive(signals, vec![0; 1], 0..1).await.1.ok();
        match take_down_on_worker(runtime, attachment).await {
            Ok(_) => return,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "cannot detach yet, still serving")
            }
        }
    }
}

/// Detaches the device while this thread serves it.
async fn take_down_on_worker(runtime: &Runtime, attachment: &Attachment) -> Result<bool> {
    let attachment = attachment.clone();
    let (start, taking) = Worker::new(move |()| take_down(&attachment, None))?;
    let _ = start.send(());
    taking.end(runtime).await
}

/// Waits for up to a second until `condition` holds. Returns whether it does.
fn wait_until(runtime: &Runtime, condition: impl Fn() -> bool) -> bool {
    let unmet = || Error::new(ErrorKind::Busy, "not yet");
    runtime.block_on(while_busy(runtime, || condition().then_some(()).ok_or_else(unmet))).is_ok()
}

/// Returns the error for a drive that another process has attached.
fn already_attached(path: &Path, attachment: &Attachment) -> anyhow::Error {
    let devices = attachment.devices();
    let devices: Vec<_> = devices.iter().map(|device| device.display().to_string()).collect();
    anyhow!("{} is already attached: {}", path.display(), devices.join(", "))
}
