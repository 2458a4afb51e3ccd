//! The file system mounted: from the first request of the kernel to the last.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};

use super::carry::carry_all;
use super::file::DiskFile;
use super::inbox::Inbox;
use crate::base::{Error, Result};
use crate::runtime::Runtime;
use crate::serve::Disk;

/// The name of the only file.
pub const FILE_NAME: &str = "disk";

/// A mounted disk. Dropping it unmounts, if nothing holds the file; see [`FuseMount::unmount`].
pub struct FuseMount {
    session: BackgroundSession,
    directory: PathBuf,
}

impl FuseMount {
    /// Mounts `disk` on `directory` for its owner alone. Requests are carried out while the runtime
    /// runs. The thread that this starts is one of the caller's kind: it inherits what the caller
    /// has set for itself.
    ///
    /// # Errors
    /// There is no `/dev/fuse`, or the user may not mount.
    pub fn mount<D: Disk + 'static>(
        runtime: &Runtime,
        disk: Rc<D>,
        directory: &Path,
    ) -> Result<Self> {
        let inbox = Arc::<Inbox>::default();
        let file = DiskFile {
            size_bytes: disk.size_bytes(),
            is_read_only: disk.is_read_only(),
            inbox: inbox.clone(),
        };
        let mut config = Config::default();
        config.acl = SessionACL::Owner;
        config.mount_options = vec![
            MountOption::FSName("pumice".into()),
            MountOption::Subtype("pumice".into()),
            MountOption::NoDev,
            MountOption::NoSuid,
            MountOption::NoExec,
        ];
        let cannot = |error| {
            Error::os(format!("cannot mount a FUSE file system at {}", directory.display()), error)
        };
        let session = Session::new(file, directory, &config).map_err(cannot)?;
        let session = session.spawn().map_err(cannot)?;
        runtime.spawn(carry_all(runtime.clone(), disk, inbox));
        Ok(Self { session, directory: directory.to_owned() })
    }

    /// The file.
    pub fn file(&self) -> PathBuf {
        self.directory.join(FILE_NAME)
    }

    /// Unmounts, after which nothing more is asked of the disk.
    ///
    /// # Errors
    /// `Busy` if something holds the file; the mount then ends with the process.
    pub fn unmount(self) -> Result<()> {
        let directory = self.directory;
        self.session
            .umount_and_join()
            .map_err(|error| Error::os(format!("cannot unmount {}", directory.display()), error))
    }
}
