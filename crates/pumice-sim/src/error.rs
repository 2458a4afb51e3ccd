//! The error of this crate.
//!
//! A variant tells the caller how to react; its text contains the event and the object. `Display`
//! does not repeat the source, because the top level of a program prints the chain.

use std::borrow::Cow;
use std::io;

use pumice_drive::base::{Error as DriveError, ErrorKind};

/// Result with the [`Error`] of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a simulation, a drive profile or a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A profile, a trace, a specification or a request is invalid.
    #[error("{0}")]
    InvalidInput(Cow<'static, str>),
    /// This kind of drive does not support the operation.
    #[error("{0}")]
    Unsupported(Cow<'static, str>),
    /// Neither a profile nor a file has this name.
    #[error("{0}")]
    NotFound(Cow<'static, str>),
    /// The simulated flash has too little space for the simulated disk.
    #[error("{0}")]
    NoSpace(Cow<'static, str>),
    /// The operating system refused to read a file.
    #[error("{what}")]
    Io {
        /// The failed operation and its object.
        what: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A profile describes a drive that cannot be simulated.
    #[error("{profile}")]
    Profile {
        /// Id of the profile.
        profile: String,
        /// The reason.
        source: Box<Error>,
    },
    /// The drive's controller or its medium returned an error.
    #[error(transparent)]
    Drive(#[from] DriveError),
}

impl Error {
    /// Returns the corresponding drive error kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidInput(_) => ErrorKind::InvalidInput,
            Self::Unsupported(_) => ErrorKind::Unsupported,
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::NoSpace(_) => ErrorKind::NoSpace,
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
                _ => ErrorKind::Medium,
            },
            Self::Profile { source, .. } => source.kind(),
            Self::Drive(error) => error.kind(),
        }
    }
}
