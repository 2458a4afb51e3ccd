//! The background process: started by `pumice attach`, and left alone once the device is ready.

use std::fs::File;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::Attachment;
use crate::cli::{Outcome, print};

/// Starts the background process and prints its output. Its errors go to the same stderr until the
/// device is ready.
pub(super) fn start() -> Result<Outcome> {
    let cannot = "cannot start the background process";
    let program = std::env::current_exe().context(cannot)?;
    let mut command = Command::new(program);
    // Inserted where options are allowed: the paths may follow a `--`.
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let at = args.iter().position(|arg| arg == "attach").map_or(args.len(), |at| at + 1);
    let (before, after) = args.split_at(at);
    command.args(before).args(["--foreground", "--in-background"]).args(after);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context(cannot)?;
    let mut result = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        std::io::Read::read_to_string(&mut pipe, &mut result).context(cannot)?;
    }
    if !result.is_empty() {
        print(&result)?;
        return Ok(Outcome::Good);
    }
    // The process has printed the reason.
    let status = child.wait().context(cannot)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(Outcome::Code(code.unwrap_or(2)))
}

/// Sends messages to the log, and closes stdout, which lets the starting process exit.
///
/// # Errors
/// Errors of the operating system.
pub(super) fn leave_terminal(attachment: &Attachment) -> Result<()> {
    let left = attachment.open_log().and_then(|log| {
        let null = File::options().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stderr(&log)?;
        rustix::process::setsid()?;
        std::env::set_current_dir("/")?;
        rustix::stdio::dup2_stdout(&null)?;
        Ok(())
    });
    left.context("cannot leave the terminal")
}
