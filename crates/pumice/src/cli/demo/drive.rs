//! A drive in the temporary folder, its server, which is a child process, and its client.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::load::Client;
use super::{BENCH_BYTES, Defect, ROOM_BYTES};
use crate::control;
use pumice_drive::controller::Info;

/// A drive in the temporary folder, and its server.
pub(super) struct DemoDrive {
    path: PathBuf,
    pub(super) socket: PathBuf,
    server: Child,
}

impl DemoDrive {
    fn start(folder: &Path, codec: &str, real_bytes: u64) -> Result<Self> {
        let (path, socket) = (folder.join(codec), folder.join(format!("{codec}.sock")));
        let size = real_bytes + BENCH_BYTES;
        let capacity = size + size / 50 + ROOM_BYTES;
        let (size, capacity) = (size.to_string(), capacity.to_string());
        let mut create = pumice()?;
        create.arg("create").arg(&path).args(["--size", &size, "--capacity", &capacity]);
        let output =
            create.args(["--codec", codec]).output().context("cannot run pumice create")?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            let message = message.trim();
            bail!("{}", message.strip_prefix("pumice: ").unwrap_or(message));
        }
        let mut serve = pumice()?;
        serve.arg("serve").arg(&path).arg("--unix").arg(&socket).arg("--json");
        serve.env("PUMICE_LOG", "warn").stdout(Stdio::piped()).stdin(Stdio::null());
        let mut server = serve.spawn().context("cannot run pumice serve")?;
        // The server prints at least one line once it listens, and none if it cannot.
        let mut first = String::new();
        if let Some(stdout) = server.stdout.take() {
            let read = BufReader::new(stdout).read_line(&mut first);
            read.context("cannot read the output of pumice serve")?;
        }
        if first.is_empty() {
            bail!("pumice serve did not start");
        }
        Ok(Self { path, socket, server })
    }

    pub(super) fn info(&self) -> Result<Info> {
        control::info(&self.path)?
            .with_context(|| format!("no server answers for {}", self.path.display()))
    }

    /// Stops the server, checks the drive and removes it.
    pub(super) fn finish(mut self) -> Result<()> {
        terminate(&self.server);
        let status = self.server.wait().context("cannot wait for pumice serve")?;
        let check = pumice()?.arg("check").arg(&self.path).output();
        let check = check.context("cannot run pumice check")?;
        if !status.success() || !check.status.success() {
            let found = String::from_utf8_lossy(&check.stdout);
            let found = found.lines().collect::<Vec<_>>().join("; ");
            bail!(Defect(format!("pumice serve ended with {status}; pumice check: {found}")));
        }
        fs::remove_file(&self.path).context("cannot remove the drive")
    }
}

impl Drop for DemoDrive {
    fn drop(&mut self) {
        // The server removes its sockets when it is terminated.
        terminate(&self.server);
        let _ = self.server.wait();
    }
}

fn terminate(server: &Child) {
    // The server may have exited already.
    let _ = kill_process(Pid::from_child(server), Signal::TERM);
}

/// Returns a command that runs this program.
fn pumice() -> Result<Command> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    // In a separate process group, Ctrl-C reaches only the demo, which then stops its children.
    command.process_group(0);
    Ok(command)
}

/// A drive and its client.
pub(super) struct Side {
    pub(super) codec: &'static str,
    pub(super) client: Client,
    pub(super) drive: DemoDrive,
}

impl Side {
    pub(super) fn start(
        folder: &Path,
        codec: &'static str,
        real_bytes: u64,
        interrupted: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let drive = DemoDrive::start(folder, codec, real_bytes)?;
        let client = Client::connect(&drive.socket, interrupted.clone())?;
        Ok(Self { codec, client, drive })
    }
}
