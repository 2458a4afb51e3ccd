//! The command of `--run`; its end is also the end of the server.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::Arc;

use anyhow::{Context, Result};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::signals::Signals;
use pumice_drive::runtime::Runtime;

/// Runs a shell command, which a signal terminates; returns its exit code.
///
/// # Errors
/// The shell cannot be started.
pub(super) fn run(command: &str, runtime: &Runtime, signals: &Signals, uri: &str) -> Result<u8> {
    let cannot = "cannot run /bin/sh";
    let (receiver, sender) = UnixStream::pair().context(cannot)?;
    let child = Command::new("/bin/sh").arg("-c").arg(command).env("uri", uri).spawn();
    let child = child.context(cannot)?;
    // Refers to this process only, even after it has ended.
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).context(cannot)?;
    std::thread::spawn(move || wait_for(child, sender));
    let (passer, signals) = (runtime.clone(), signals.clone());
    runtime.spawn(async move {
        signals.next(&passer).await;
        // A terminal sends the signal to the command as well.
        let _ = pidfd_send_signal(&process, Signal::TERM);
    });
    let ended = Arc::new(receiver.into());
    let (code, received) = runtime.block_on(runtime.receive(&ended, vec![0; 1], 0..1));
    Ok(if received.is_ok_and(|count| count == 1) { code[0] } else { 1 })
}

/// Waits for the end of a command and sends its exit code.
fn wait_for(mut child: Child, mut sender: UnixStream) {
    let code = child.wait().map_or(1, |status| {
        // As in shells: 128 plus the signal.
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
    });
    // The other side is closed only when the process ends.
    let _ = sender.write_all(&[code as u8]);
}
