//! Freezes the file systems of attached drives while snapshots of them are taken, so that they are
//! consistent without their journals.
//!
//! A separate process, which signals to this one do not reach, thaws them as soon as this process
//! has ended for any reason, and after [`FROZEN_SECONDS_MAX`].

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cli::attach::Attachment;
use crate::cli::chain;

/// Far longer than a snapshot takes, and the longest wait for a user of the file system.
const FROZEN_SECONDS_MAX: u32 = 10;

/// A file system that is frozen until this is dropped.
struct Frozen {
    mount: PathBuf,
    shell: Child,
}

/// Calls `work` while the file systems on attached and mounted drives are frozen. If one cannot be
/// frozen, this is logged, and its snapshot is only crash-consistent.
pub(super) fn during<'a, T>(
    drives: impl Iterator<Item = &'a PathBuf>,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let mounts = drives.filter_map(|drive| {
        let attachment = Attachment::of(drive).ok().flatten()?;
        // Further mounts are of the same file system.
        attachment.mounts().into_iter().next()
    });
    let frozen = mounts.filter_map(|mount| {
        let begun = Frozen::begin(&mount);
        begun.inspect_err(|error| warn(&mount, &chain(error))).ok()
    });
    let frozen: Vec<_> = frozen.collect();
    let done = work();
    frozen.into_iter().for_each(Frozen::end);
    done
}

fn warn(mount: &Path, error: &str) {
    let what = "the file system was not frozen: the snapshot is only crash-consistent";
    tracing::warn!(mount = %mount.display(), %error, "{what}");
}

impl Frozen {
    fn begin(mount: &Path) -> Result<Self> {
        let script = format!(
            "trap '' INT HUP TERM; fsfreeze --freeze \"$1\" || exit 1; echo; \
             timeout {FROZEN_SECONDS_MAX} cat; ended=$?; fsfreeze --unfreeze \"$1\"; exit $ended"
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, "sh"]).arg(mount).process_group(0);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let shell = shell.spawn().context("cannot start sh")?;
        let mut frozen = Self { mount: mount.to_owned(), shell };
        let mut line = String::new();
        let stdout: Option<ChildStdout> = frozen.shell.stdout.take();
        stdout.map(|stdout| BufReader::new(stdout).read_line(&mut line)).transpose()?;
        if line.is_empty() {
            let mut said = String::new();
            frozen.shell.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said));
            bail!("{}", said.trim());
        }
        Ok(frozen)
    }

    fn end(mut self) {
        drop(self.shell.stdin.take());
        let ended = self.shell.wait();
        if !ended.is_ok_and(|status| status.success()) {
            warn(&self.mount, "it took too long");
        }
    }
}
