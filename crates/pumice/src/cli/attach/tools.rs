//! External programs: losetup, blkid, mkfs, mount, umount; and the kernel's log messages meanwhile.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::OFlags;

/// Returns the path of a program. Administration programs are not on every user's path.
///
/// # Errors
/// It is not installed.
pub(super) fn find(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
        .ok_or_else(|| {
            let package = match name {
                "mkfs.xfs" => "xfsprogs",
                "mkfs.ext4" => "e2fsprogs",
                _ => "util-linux",
            };
            anyhow!("{name} is not installed: install the package {package}")
        })
}

/// Runs a program until it ends.
///
/// # Errors
/// It cannot be started.
pub(super) fn run<S: AsRef<OsStr>>(name: &str, args: &[S]) -> Result<Output> {
    let mut command = Command::new(find(name)?);
    command.args(args).env("LC_ALL", "C.UTF-8");
    command.output().with_context(|| format!("cannot run {name}"))
}

/// Runs a program that must succeed; returns its output.
///
/// # Errors
/// It cannot be started, or it fails: the error has the last line of its output.
pub(super) fn run_well<S: AsRef<OsStr>>(name: &str, args: &[S]) -> Result<String> {
    let output = run(name, args)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    let line = line.trim().trim_end_matches('.');
    bail!("{name} failed: {line}")
}

/// The kernel's log from a given moment on.
pub(super) struct KernelLog(Option<File>);

/// Maximum length of a record of the kernel's log.
///
/// Source: the kernel's `PRINTK_MESSAGE_MAX`.
const RECORD_BYTES_MAX: usize = 2048;

impl KernelLog {
    /// Listens from now on; without the permission to read the log it returns no lines.
    pub(super) fn from_now() -> Self {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let log = OpenOptions::new().read(true).custom_flags(flags).open("/dev/kmsg").ok();
        Self(log.filter(|mut log| log.seek(SeekFrom::End(0)).is_ok()))
    }

    /// Returns the first line so far that has one of these words.
    ///
    /// Source: the kernel's `Documentation/ABI/testing/dev-kmsg`: a read returns one record, whose
    /// text is between `;` and the end of the line.
    pub(super) fn line_with(self, words: &[&str]) -> Option<String> {
        let mut log = self.0?;
        let mut record = [0; RECORD_BYTES_MAX];
        while let Ok(count @ 1..) = log.read(&mut record) {
            let record = String::from_utf8_lossy(&record[..count]);
            let text = record.split_once(';').map_or("", |(_, text)| text);
            let line = text.lines().next().unwrap_or_default();
            if words.iter().any(|word| line.contains(word)) {
                return Some(line.to_owned());
            }
        }
        None
    }
}
