//! `pumice detach`: reverses `pumice attach`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::Outcome;
use super::attach::{Attachment, take_down};

/// Time limit for a process to close its drive, with a checkpoint on a slow medium.
const CLOSE_SECONDS_MAX: i64 = 120;

/// Unmount and detach an attached drive, and close it (root)
///
/// Refuses if the file system or the device is in use, and names the users. Returns when everything
/// is on the medium. Also removes what a killed process has left.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Path of the drive, its device, or its mount point
    target: PathBuf,
}

/// Runs the subcommand.
///
/// # Errors
/// Nothing of that name is attached, or it is in use.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    if !rustix::process::geteuid().is_root() {
        bail!("detaching a drive removes a block device and needs root: try sudo");
    }
    let attachment = Attachment::find(&args.target)?;
    // Opened first: the descriptor refers to this process even if the number is reused.
    let process = attachment.process().and_then(Pid::from_raw);
    let process = process.and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
    take_down(&attachment)?;
    let Some(process) = process else {
        attachment.remove()?;
        return Ok(Outcome::Good);
    };
    let target = args.target.display();
    let cannot = || format!("cannot end the process that serves {target}");
    pidfd_send_signal(&process, Signal::TERM).with_context(cannot)?;
    let limit = Timespec { tv_sec: CLOSE_SECONDS_MAX, tv_nsec: 0 };
    let mut polled = [PollFd::new(&process, PollFlags::IN)];
    if poll(&mut polled, Some(&limit)).with_context(cannot)? == 0 {
        bail!(
            "{target} is detached, but its process has not closed the drive in \
             {CLOSE_SECONDS_MAX} s"
        );
    }
    let Some(words) = attachment.last_words() else { return Ok(Outcome::Good) };
    let log = attachment.log_file();
    super::say_error(&format!("the drive was not closed cleanly: {words} (see {})", log.display()));
    Ok(Outcome::Problem)
}
