//! The error of this crate.
//!
//! `Display` describes the failure and its object and never repeats the source; [`Error::chain`]
//! includes both. Errors of a Pumice drive, of an NBD client or of a simulation are preserved as
//! [`Error::Drive`] and [`Error::Sim`].

use std::error::Error as StdError;
use std::io;

use pumice_drive::base::{Error as DriveError, ErrorKind, chain};

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

type BoxError = Box<dyn StdError + Send + Sync>;

/// An error of a benchmark, a forecast or an experiment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A plan, preset, workload, payload or input file is invalid. Retrying the call cannot help.
    #[error("{what}")]
    Invalid {
        /// The problem and its object.
        what: String,
        /// The cause, if a parser or a nested check reported one.
        source: Option<BoxError>,
    },
    /// A result file is malformed.
    #[error("{path}, line {line}: {what}")]
    Results {
        /// The file.
        path: String,
        /// Line number, from 1.
        line: u64,
        /// The problem with the line.
        what: String,
    },
    /// The target or the file format does not support the operation.
    #[error("{what}")]
    Unsupported {
        /// The operation and its object.
        what: String,
        /// The operating system's error, if any.
        source: Option<BoxError>,
    },
    /// No preset, experiment or source has this name.
    #[error("{0}")]
    NotFound(String),
    /// The operation would overwrite existing data.
    #[error("{0}")]
    AlreadyExists(String),
    /// The target is mounted, partitioned or in use.
    #[error("{0}")]
    Busy(String),
    /// The target or its file system has too little space.
    #[error("{0}")]
    NoSpace(String),
    /// The target cannot be written.
    #[error("{0}")]
    ReadOnly(String),
    /// The target returned fewer bytes than were requested.
    #[error(
        "read of {requested} bytes at offset {offset} returned {returned}: the target is \
         smaller than the span, or was truncated"
    )]
    ShortRead {
        /// Offset of the read, in bytes.
        offset: u64,
        /// Bytes requested.
        requested: usize,
        /// Bytes returned.
        returned: usize,
    },
    /// One of several hosts failed or cannot be reached.
    #[error("{host}: {what}")]
    Host {
        /// The host.
        host: String,
        /// The error that the host reported, or the failure of the host.
        what: String,
    },
    /// The operating system reported an error.
    #[error("{what}")]
    Io {
        /// The failed operation and its object.
        what: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// A drive or an NBD client reported an error.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// A simulated drive, a profile or a trace reported an error.
    #[error(transparent)]
    Sim(#[from] pumice_sim::Error),
    /// Adds the object to another error.
    #[error("{what}")]
    Context {
        /// The object.
        what: String,
        /// The error.
        source: Box<Error>,
    },
}

impl Error {
    /// Returns an error for an invalid plan, preset, workload, payload or input file.
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into(), source: None }
    }

    /// Returns [`Error::invalid`] with a cause.
    pub(crate) fn invalid_because(what: impl Into<String>, cause: impl Into<BoxError>) -> Self {
        Self::Invalid { what: what.into(), source: Some(cause.into()) }
    }

    /// Returns an error for an unsupported operation.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into(), source: None }
    }

    /// Returns [`Error::unsupported`] with a cause.
    pub(crate) fn unsupported_because(what: impl Into<String>, cause: impl Into<BoxError>) -> Self {
        Self::Unsupported { what: what.into(), source: Some(cause.into()) }
    }

    /// Returns an error for the failure of a host.
    pub(crate) fn host(host: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Host { host: host.into(), what: what.into() }
    }

    /// Returns an operating system error that occurred during the operation `what`.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }

    /// Adds the object to this error.
    pub fn context(self, what: impl Into<String>) -> Self {
        Self::Context { what: what.into(), source: Box::new(self) }
    }

    /// Returns the innermost error, without the contexts around it.
    pub fn root(&self) -> &Self {
        match self {
            Self::Context { source, .. } => source.root(),
            error => error,
        }
    }

    /// Returns the error and all its causes in one line.
    pub fn chain(&self) -> String {
        chain(self)
    }

    /// Returns whether the error means that the target does not support the operation, either
    /// directly or as a drive's error.
    pub fn is_unsupported(&self) -> bool {
        self.kind() == ErrorKind::Unsupported
    }

    /// Returns the kind of the corresponding drive error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid { .. } | Self::Results { .. } => ErrorKind::InvalidInput,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::AlreadyExists(_) => ErrorKind::AlreadyExists,
            Self::Busy(_) => ErrorKind::Busy,
            Self::NoSpace(_) => ErrorKind::NoSpace,
            Self::ReadOnly(_) => ErrorKind::ReadOnly,
            Self::ShortRead { .. } | Self::Host { .. } => ErrorKind::Medium,
            Self::Io { source, .. } => DriveError::os("", io::Error::from(source.kind())).kind(),
            Self::Drive(error) => error.kind(),
            Self::Sim(error) => error.kind(),
            Self::Context { source, .. } => source.kind(),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: each cause is printed once, and the kind is taken from the innermost error.
    use super::*;

    #[test]
    fn chains_and_kinds_reach_through_contexts() {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let drive = || DriveError::new(ErrorKind::Corrupt, "bad checksum").caused_by("a bit flip");
        let busy = || Error::Busy("mounted".into()).context("/dev/x").context("y");
        for (error, kind, chain) in [
            (Error::invalid_because("no profile", "3"), ErrorKind::InvalidInput, "no profile: 3"),
            (
                Error::io("cannot read", missing()),
                ErrorKind::NotFound,
                "cannot read: entity not found",
            ),
            (Error::from(drive()), ErrorKind::Corrupt, "bad checksum: a bit flip"),
            (
                Error::from(drive()).context("sim:x"),
                ErrorKind::Corrupt,
                "sim:x: bad checksum: a bit flip",
            ),
            (busy(), ErrorKind::Busy, "y: /dev/x: mounted"),
        ] {
            assert_eq!((error.kind(), error.chain().as_str()), (kind, chain));
        }
        let nested = Error::Busy("mounted".into()).context("/dev/x");
        assert!(matches!(nested.root(), Error::Busy(_)));
    }
}
