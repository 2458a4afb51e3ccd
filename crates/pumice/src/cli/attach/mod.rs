//! `pumice attach`: a drive as a block device of the kernel, through a file of a FUSE file system
//! and a loop device on that file.
//!
//! ```text
//! attach ----> the same program, --foreground --in-background
//!   | stdout      opens the drive, mounts the file          (this thread, which serves it)
//!   |             losetup, mkfs, mount                      (a second thread)
//!   +<----------- prints the device, leaves the terminal
//!  exit 0         serves until `pumice detach` or a signal has taken the device down
//! ```
//!
//! * `background`: starts that process; leaves the terminal in it. `foreground`: serves.
//! * `worker`: the second thread. `set_up`, `take_down`: its work, by `loop_device` and `tools`.
//! * `attachment`: the record of an attached drive. `holders`: the users of a device.
//! * `protect`: keeps the process alive when memory is short.
//!
//! In a unit (`--step`), the serving process has mounts of its own, and separate short-lived
//! processes mount and unmount for the machine.
//!
//! The background process is a new process and not a fork, because threads do not survive a fork. A
//! failed attempt leaves nothing; the next attempt removes the remains of a killed process.

mod attachment;
mod background;
mod foreground;
mod holders;
mod loop_device;
mod protect;
mod set_up;
mod take_down;
mod tools;
mod worker;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

pub(crate) use self::attachment::Attachment;
pub(super) use self::foreground::Attached;
use self::set_up::Wanted;
pub(crate) use self::take_down::take_down;
use super::Outcome;
use super::key_args::KeyArgs;
use super::opening::Opening;
use crate::place::Place;

/// Attach a drive as a block device, and mount it (root)
///
/// Prints the device, /dev/loopN, once it is ready, and serves it in the background until `pumice
/// detach`. With a mount point, mounts the file system on the drive. fstrim returns unused space to
/// the drive.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice attach drive.pumice
  pumice attach drive.pumice /mnt --mkfs ext4
  pumice attach drive.pumice /mnt
  pumice detach /mnt")]
pub(crate) struct Args {
    /// File or block device of the drive; PATH@NAME for a snapshot, with --read-only
    path: PathBuf,

    /// Empty directory to mount the drive's file system on
    mountpoint: Option<PathBuf>,

    /// Create a file system on the drive first, labelled with the drive's name; under sudo its root
    /// directory belongs to the user
    #[arg(long, value_enum, value_name = "KIND", conflicts_with = "read_only")]
    mkfs: Option<FileSystem>,

    /// Create it even if the drive already contains data, which is lost
    #[arg(long, requires = "mkfs")]
    force: bool,

    /// Options for mounting, which follow nosuid,nodev and can undo them: noatime, discard, suid
    #[arg(long, value_name = "OPTION,...", requires = "mountpoint")]
    mount_options: Option<String>,

    /// Read options from a TOML file: each long option is a key (read-only = true), and so are path
    /// and mountpoint; the command line and the environment take precedence
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    opening: Opening,

    #[command(flatten)]
    keys: KeyArgs,

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

    /// One step of several, for a service that serves the device without the machine's mounts
    #[arg(long, hide = true, value_enum, conflicts_with = "in_background")]
    step: Option<Step>,

    /// The snapshot that the path named
    #[arg(skip)]
    snapshot: Option<String>,
}

/// File system that `--mkfs` creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileSystem {
    /// ext4, by mkfs.ext4
    Ext4,
    /// XFS, by mkfs.xfs
    Xfs,
}

/// A step of a unit: only `serve` keeps running, and it is the only one that does not see the
/// machine's mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Step {
    /// Remove the remains of a killed process.
    Clean,
    /// Serve the device, and do not mount it.
    Serve,
    /// Mount the device.
    Mount,
    /// Unmount and detach the device, which the server sees.
    Unmount,
}

impl FileSystem {
    fn program(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "mkfs.ext4",
            FileSystem::Xfs => "mkfs.xfs",
        }
    }

    /// Returns the longest label, in bytes. Source: mkfs.ext4(8), mkfs.xfs(8).
    fn label_bytes_max(self) -> usize {
        match self {
            FileSystem::Ext4 => 16,
            FileSystem::Xfs => 12,
        }
    }
}

impl Args {
    /// Returns the attachment of the drive or its snapshot, or its remains.
    fn attachment(&self) -> Result<Option<Attachment>> {
        Attachment::at(&self.path, self.snapshot.as_deref())
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            sector_bytes: self.sector_size,
            read_only: self.opening.read_only,
            mkfs: self.mkfs,
            force: self.force,
            path: self.path.clone(),
            mountpoint: self.mountpoint.clone(),
            mount_options: self.mount_options.clone(),
            is_mounted_later: self.step == Some(Step::Serve),
        }
    }
}

/// Runs the subcommand.
///
/// # Errors
/// A requirement on the machine, the drive or the mount point is not met, or a step fails;
/// everything is then undone.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.keys.provide()?;
    let Place { path, snapshot } = Place::of(&args.path)?;
    if snapshot.is_some() && !args.opening.read_only {
        bail!("{}: a snapshot can only be read: use --read-only", args.path.display());
    }
    let args = &Args { path, snapshot, ..args.clone() };
    let wanted = args.wanted();
    wanted.check_machine()?;
    // Otherwise the mount found there may be left from this drive.
    if args.step.is_none() && args.attachment()?.is_none() {
        wanted.check_mountpoint()?;
    }
    match args.step {
        Some(Step::Clean) => {
            let left = args.attachment()?.filter(|left| left.process().is_none());
            left.map_or(Ok(()), |left| take_down(&left, None).and_then(|_| left.remove()))?;
        }
        Some(Step::Mount) => mount(args, &wanted)?,
        Some(Step::Unmount) => {
            let attached = args.attachment()?;
            attached.map_or(Ok(true), |attached| take_down(&attached, None))?;
        }
        Some(Step::Serve) => return foreground::serve(args, wanted),
        None if args.foreground => return foreground::serve(args, wanted),
        None => return background::start(),
    }
    Ok(Outcome::Good)
}

/// Mounts a device that another process serves.
fn mount(args: &Args, wanted: &Wanted) -> Result<()> {
    let attached = args.attachment()?.map(|attached| attached.devices());
    let device = attached.unwrap_or_default().into_iter().next();
    let device = device.with_context(|| format!("{} is not attached", args.path.display()))?;
    wanted.mount(&device)
}

fn sector_bytes(text: &str) -> Result<u16, String> {
    match text {
        "512" => Ok(512),
        "4096" => Ok(4096),
        _ => Err("expected 512 or 4096".into()),
    }
}
