//! Unmounts and detaches a device. Everything that can be refused is checked before anything is
//! lost.
//!
//! Also cleans up after a process that died, whose device answers only with errors.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{Timespec, poll};
use rustix::fs::OFlags;
use rustix::mount::{UnmountFlags, unmount};

use super::attachment::{Attachment, absolute};
use super::{holders, loop_device};

/// Number of checks for whether a device is free or gone. A program that inspects devices (losetup,
/// udev) holds a device open for a moment, and the device remains that long.
const FREE_LOOKS: u32 = 50;
const GONE_LOOKS: u32 = 250;

/// Pause between two checks.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Unmounts the file system that was mounted when the drive was attached, or is mounted at `named`,
/// flushes the device and detaches it. Skips steps that are already done. Returns whether all data
/// written to the device has reached the drive.
///
/// # Errors
/// The device is mounted elsewhere or in use; it then remains, flushed or not.
pub(crate) fn take_down(attachment: &Attachment, named: Option<&Path>) -> Result<bool> {
    if let Some(lent) = attachment.lent()? {
        bail!(
            "{} is attached and reads through this drive: detach it first",
            lent.path().display()
        );
    }
    let named = named.map(absolute);
    let mut is_whole = true;
    for device in attachment.devices() {
        release(attachment, &device, named.as_deref())?;
        let excluding = exclusively(&device)?;
        if attachment.process().is_some() {
            is_whole &= flush(&device, &excluding)?;
        }
        drop(excluding);
        loop_device::detach(&device)?;
        wait_until_gone(attachment, &device)?;
    }
    Ok(is_whole)
}

/// Flushes the device. Returns false if an earlier write has failed, which the kernel reports once;
/// the kernel has then dropped the data of that write.
fn flush(device: &Path, opened: &File) -> Result<bool> {
    if opened.sync_all().is_ok() {
        return Ok(true);
    }
    let again = opened.sync_all().with_context(|| {
        format!(
            "cannot flush {}: if the drive is full, make space and detach it again (`pumice detach \
             --force` discards unflushed writes)",
            device.display()
        )
    });
    again.map(|()| false)
}

/// Unmounts the device; refuses if it has other mounts or users.
fn release(attachment: &Attachment, device: &Path, named: Option<&Path>) -> Result<()> {
    let mounts = holders::mounts_of(device);
    let is_own =
        |mount: &&PathBuf| attachment.mountpoint() == Some(mount) || named == Some(mount.as_path());
    if let Some(mount) = mounts.iter().find(|mount| !is_own(mount)) {
        bail!("{} is mounted on {}: unmount it first", device.display(), mount.display());
    }
    if let Some(mount) = mounts.iter().find(|mount| holders::is_covered(device, mount)) {
        bail!("another file system is mounted over {}: unmount that first", mount.display());
    }
    let partitions = holders::partitions(device);
    for partition in &partitions {
        if let Some(mount) = holders::mounts_of(partition).first() {
            bail!("{} is mounted on {}: unmount it first", partition.display(), mount.display());
        }
    }
    for used in [device.to_owned()].iter().chain(&partitions) {
        if let Some((user, remedy)) = holders::kernel_users(used).into_iter().next() {
            bail!("{} is in use {user}: {remedy} first", used.display());
        }
    }
    if !becomes(FREE_LOOKS, || holders::openers(device).is_empty()) {
        let openers = holders::openers(device).join(", ");
        bail!("{} is held open by process {openers}", device.display());
    }
    for mount in mounts {
        if let Err(error) = unmount(&mount, UnmountFlags::empty()) {
            let users = holders::users(&mount);
            let by = if users.is_empty() { "" } else { " by process " };
            let what = format!("{} is in use{by}{}", mount.display(), users.join(", "));
            return Err(anyhow!(error).context(what));
        }
    }
    Ok(())
}

/// Opens the device exclusively, which fails while a mount, a swap or another device uses it. A
/// mount namespace that starts or ends may use it for a moment.
fn exclusively(device: &Path) -> Result<File> {
    let mut opening = File::options();
    opening.read(true).custom_flags(OFlags::EXCL.bits().cast_signed());
    let is_busy = || {
        let opened = opening.open(device);
        opened.is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy)
    };
    becomes(FREE_LOOKS, || !is_busy());
    opening.open(device).with_context(|| {
        format!(
            "{} is in use: by a mount in another namespace, as swap, or by another device",
            device.display()
        )
    })
}

fn wait_until_gone(attachment: &Attachment, device: &Path) -> Result<()> {
    if becomes(GONE_LOOKS, || !attachment.devices().iter().any(|other| other == device)) {
        return Ok(());
    }
    // As a service this process may not see the files that others have open.
    let openers = holders::openers(device).join(", ");
    let by = if openers.is_empty() { "" } else { " by process " };
    bail!("{} is removed once it is closed{by}{openers}", device.display())
}

/// Whether a condition holds, or starts to hold within the given number of checks.
fn becomes(looks: u32, is_so: impl Fn() -> bool) -> bool {
    for _ in 1..looks {
        if is_so() {
            return true;
        }
        // An interruption only shortens the pause.
        let _ = poll(&mut [], Some(&PAUSE));
    }
    is_so()
}
