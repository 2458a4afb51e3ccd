//! `pumice detach`: reverses `pumice attach`.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use schemars::JsonSchema;
use serde::Serialize;

use super::Outcome;
use super::attach::{Attachment, take_down};

/// Time limit for a process to close its drive, with a checkpoint on a slow medium.
const CLOSE_SECONDS_MAX: i64 = 120;

/// Unmount and detach an attached drive, and close it (root)
///
/// Refuses if the file system or the device is in use, and names the users. Returns when everything
/// is on the medium, and prints the drive, its device and its mount points. Also removes the
/// remains of a killed process, and then exits with code 1, because writes that were not synced are
/// lost.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice detach /mnt
  pumice detach drive.pumice
  pumice detach /dev/loop0 --force")]
pub(crate) struct Args {
    /// Path of the drive, its device, or its mount point
    target: PathBuf,

    /// Kill the process that serves the drive, which discards unflushed data: for a drive that can
    /// no longer write
    #[arg(long)]
    force: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The detached drive.
#[derive(Serialize, JsonSchema)]
pub(super) struct Detached {
    /// The drive's file or device.
    path: String,
    /// The former block devices.
    devices: Vec<String>,
    /// The former mount points.
    mountpoints: Vec<String>,
}

impl Detached {
    fn of(attachment: &Attachment) -> Self {
        let shown = |paths: Vec<PathBuf>| {
            paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        Self {
            path: attachment.path().display().to_string(),
            devices: shown(attachment.devices()),
            mountpoints: shown(attachment.mounts()),
        }
    }

    fn text(&self) -> String {
        let places = [&self.devices[..], &self.mountpoints[..]].concat();
        format!("detached {} from {}\n", self.path, places.join(" and "))
    }
}

/// Runs the subcommand.
///
/// # Errors
/// No attachment matches the name, or it is in use.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    if !rustix::process::geteuid().is_root() {
        bail!("detaching a drive removes a block device and needs root: try sudo");
    }
    let attachment = Attachment::find(&args.target)?;
    let detached = Detached::of(&attachment);
    // Opened first: the descriptor refers to this process even if the number is reused.
    let process = attachment.process().and_then(Pid::from_raw);
    let mut process = process.and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
    if let Some(killed) = process.take_if(|_| args.force) {
        end(&killed, Signal::KILL, args)?;
    }
    let is_whole = take_down(&attachment, Some(&args.target))?;
    let outcome = match process {
        Some(process) => {
            end(&process, Signal::TERM, args)?;
            match closed(&attachment) {
                Outcome::Good if !is_whole => {
                    super::say_error("earlier writes to it had failed, and their data is lost");
                    Outcome::Problem
                }
                outcome => outcome,
            }
        }
        None => {
            attachment.remove()?;
            super::say_error(&format!(
                "cleaned up after the killed process of {}; unsynced writes are lost",
                attachment.path().display()
            ));
            Outcome::Problem
        }
    };
    if args.json {
        super::print_schema("detach-1", &detached)?;
    } else {
        super::print(&detached.text())?;
    }
    if let Some(other) = Attachment::mounted_at(&args.target)? {
        let (target, other) = (args.target.display(), other.path().display());
        super::say_error(&format!("{other} is still mounted on {target}: detach it, too"));
        return Ok(Outcome::Problem);
    }
    Ok(outcome)
}

/// Sends a signal to the process, and waits until it has ended.
fn end(process: &OwnedFd, signal: Signal, args: &Args) -> Result<()> {
    let target = args.target.display();
    let cannot = || format!("cannot end the process that serves {target}");
    pidfd_send_signal(process, signal).with_context(cannot)?;
    let limit = Timespec { tv_sec: CLOSE_SECONDS_MAX, tv_nsec: 0 };
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    if poll(&mut polled, Some(&limit)).with_context(cannot)? == 0 {
        bail!(
            "{target} is detached, but its process has not closed the drive in \
             {CLOSE_SECONDS_MAX} s"
        );
    }
    Ok(())
}

/// Returns the result with which the process has closed the drive.
fn closed(attachment: &Attachment) -> Outcome {
    let Some(words) = attachment.last_words() else { return Outcome::Good };
    let log = attachment.log_file();
    super::say_error(&format!("the drive was not closed cleanly: {words} (see {})", log.display()));
    Outcome::Problem
}
