//! The medium of a drive that is not open yet, and how it was opened.

use std::any::Any;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use pumice_drive::crypt::Cipher;
use pumice_drive::media::AnyMedium;
use pumice_drive::media::array::Array;
use pumice_drive::media::file::FileMedium;

/// How the medium of a drive is opened, and the medium of its origin.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Access {
    pub(crate) read_only: bool,
    /// Whether the medium may be shorter than its drive. For readers.
    pub(crate) truncated: bool,
    /// Whether another process may have the medium open, and write to it. For readers.
    pub(crate) unlocked: bool,
    /// The members of an array that may be absent.
    pub(crate) absent: Absent,
    /// Paths at which members may be that were moved.
    pub(crate) members: Vec<PathBuf>,
    /// Whether a journal is read whose drive another machine has taken over.
    pub(crate) fenced: bool,
    /// Whether a bucket is written to without a journal.
    pub(crate) diskless: bool,
}

/// The members of an array that may be absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Absent {
    /// Members that the others know to be out.
    #[default]
    Known,
    /// Any, if a member is present that has everything, as far as it knows. For readers only.
    Allowed,
    /// Any; if members were used separately, the first one counts.
    AndApart,
}

impl Absent {
    /// Returns the members that may be absent when the user allows any.
    pub(crate) fn apart_if(self, is_allowed: bool) -> Self {
        if is_allowed { Self::AndApart } else { self }
    }
}

impl Access {
    /// Returns access for reading, or for writing as well.
    pub(crate) fn new(read_only: bool) -> Self {
        Self { read_only, ..Self::default() }
    }
}

/// The medium of a drive that is not open yet.
pub(crate) struct Storage {
    medium: Box<dyn Keyed>,
    path: PathBuf,
    access: Access,
}

/// A medium that accepts the keys of the drive on it.
pub(crate) trait Keyed: AnyMedium {
    /// Sets the keys of the drive.
    fn set_cipher(&mut self, cipher: Cipher);
}

impl Keyed for FileMedium {
    fn set_cipher(&mut self, cipher: Cipher) {
        self.set_cipher(cipher);
    }
}

impl Keyed for Array<FileMedium> {
    fn set_cipher(&mut self, cipher: Cipher) {
        self.set_cipher(cipher);
    }
}

impl Deref for Storage {
    type Target = dyn AnyMedium;

    fn deref(&self) -> &dyn AnyMedium {
        &*self.medium
    }
}

impl Storage {
    /// Returns the medium that was opened with a path, without any keys.
    pub(crate) fn new(medium: impl Keyed, path: impl Into<PathBuf>) -> Self {
        Self { medium: Box::new(medium), path: path.into(), access: Access::default() }
    }

    /// Returns the medium of a drive on one file or device.
    pub(crate) fn of_file(file: FileMedium) -> Self {
        let path = file.path().to_owned();
        Self::new(file, path)
    }

    /// Returns the file or device of a medium made by [`Storage::of_file`].
    pub(crate) fn into_file(self) -> FileMedium {
        let medium: Box<dyn Any> = self.medium;
        *medium.downcast().expect("the drive is on one file or device")
    }

    /// Returns the medium for opening the drive.
    pub(crate) fn into_shared(self) -> Rc<dyn AnyMedium> {
        Rc::from(self.medium as Box<dyn AnyMedium>)
    }

    /// Returns the medium with the keys of the drive on it.
    pub(crate) fn with_cipher(mut self, cipher: Cipher) -> Self {
        self.set_cipher(cipher);
        self
    }

    /// Sets the keys of the drive.
    pub(crate) fn set_cipher(&mut self, cipher: Cipher) {
        self.medium.set_cipher(cipher);
    }

    /// Returns the path with which the medium was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Records how the medium was opened.
    pub(crate) fn with_access(mut self, access: &Access) -> Self {
        self.access = access.clone();
        self
    }

    /// Returns how the medium was opened.
    pub(crate) fn access(&self) -> &Access {
        &self.access
    }
}
