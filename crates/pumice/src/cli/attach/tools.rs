//! External programs: losetup, blkid, mkfs, mount, umount.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, Result, anyhow, bail};

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
/// It cannot be started, or it fails: with the last line of its output.
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
