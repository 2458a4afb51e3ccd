//! Mounts the file system, from the first request of the kernel to the last.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::file::{DiskFile, file_name};
use super::payloads::Payloads;
use super::session::{Device, Session};
use pumice_drive::base::{Error, Result};
use pumice_drive::runtime::Runtime;
use pumice_nbd::AnyDisk;

/// Bytes of requests in flight beyond which further requests wait: the amount of a loop device with
/// its 128 requests of 512 KiB each.
const PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// A mounted disk. Dropping it unmounts the file system. Processes that have the file open then get
/// errors.
///
/// Only the runtime answers requests for the file: its thread must not access the file.
pub struct FuseMount {
    directory: PathBuf,
    is_mounted: bool,
}

impl FuseMount {
    /// Mounts `disk` on `directory`, accessible only to its owner. Lists of mounts show it as
    /// `pumice:NAME`, and lists of loop devices show its file, whose name is [`file_name`] of that
    /// name. Requests are executed while the runtime runs.
    ///
    /// # Errors
    /// `/dev/fuse` does not exist, the kernel is too old, or the user may not mount: only root may.
    pub fn mount(
        runtime: &Runtime,
        disk: Rc<dyn AnyDisk>,
        directory: &Path,
        name: &str,
    ) -> Result<Self> {
        let cannot = |error: io::Error| {
            Error::os(format!("cannot mount a FUSE file system at {}", directory.display()), error)
        };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let device =
            open("/dev/fuse", flags, Mode::empty()).map_err(|error| cannot(error.into()))?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options).expect("no zero byte");
        let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
        let source = format!("pumice:{name}");
        mount(source.as_str(), directory, "fuse.pumice", flags, options.as_c_str())
            .map_err(|error| cannot(error.into()))?;
        // Unmounts if a later step fails.
        let mounted = Self { directory: directory.to_owned(), is_mounted: true };
        runtime.spawn(serve_as(name, runtime, disk, device).map_err(cannot)?);
        Ok(mounted)
    }

    /// Unmounts. Afterwards, the disk receives no more requests. Does nothing if it is already
    /// unmounted.
    ///
    /// # Errors
    /// `Busy` if a process, or a loop device, has the file open. Nothing has changed then.
    pub fn unmount(&mut self) -> Result<()> {
        match unmount(&self.directory, UnmountFlags::empty()) {
            Ok(()) | Err(Errno::INVAL) => {
                self.is_mounted = false;
                Ok(())
            }
            Err(error) => {
                let what = format!("cannot unmount {}", self.directory.display());
                Err(Error::os(what, error.into()))
            }
        }
    }
}

/// Answers the first request from `device` immediately. The future executes all others until the
/// end of the file. `device` is a `/dev/fuse` just mounted with its file system, or a socket that
/// preserves message boundaries and whose other end behaves like the kernel; its reads must not
/// block.
///
/// # Errors
/// The first request is malformed, or the kernel is too old.
pub fn serve(
    runtime: &Runtime,
    disk: Rc<dyn AnyDisk>,
    device: OwnedFd,
) -> io::Result<impl Future<Output = ()> + use<>> {
    serve_as("", runtime, disk, device)
}

fn serve_as(
    name: &str,
    runtime: &Runtime,
    disk: Rc<dyn AnyDisk>,
    device: OwnedFd,
) -> io::Result<impl Future<Output = ()> + use<>> {
    let device = Device(Arc::new(device));
    device.shake_hands()?;
    let (name, size_bytes) = (file_name(name).to_owned(), disk.size_bytes());
    let file = DiskFile { name, size_bytes, is_read_only: disk.is_read_only() };
    let payloads = Rc::new(Payloads::new(PAYLOAD_BYTES_MAX));
    Ok(Session { runtime: runtime.clone(), disk, file, device, payloads }.serve())
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        if self.is_mounted {
            // There is no one left to report an error to.
            let _ = unmount(&self.directory, UnmountFlags::DETACH);
        }
    }
}
