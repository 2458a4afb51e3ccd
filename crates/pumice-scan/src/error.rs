//! The error of this crate.
//!
//! Only a failure that stops a scan is an error. An unreadable file below a scanned folder is
//! counted instead.

use std::borrow::Cow;
use std::io;

use pumice_drive::base::Error as DriveError;

/// Result with the [`Error`] of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a scan, a partial result or a verdict.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path, an option or a set of partial results is invalid.
    #[error("{0}")]
    InvalidInput(Cow<'static, str>),
    /// The partial result has another version, or the medium cannot be measured.
    #[error("{0}")]
    Unsupported(Cow<'static, str>),
    /// The file is not a partial result of a scan.
    #[error("not the result of a scan")]
    NotAPartial(#[source] serde_json::Error),
    /// The operating system refused an operation on a scanned path.
    #[error("{what}")]
    Io {
        /// The failed operation and its object.
        what: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// An NBD export could not be opened or read.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// A drive profile was not found or cannot be simulated.
    #[error(transparent)]
    Sim(#[from] pumice_sim::Error),
    /// A measurement or a forecast failed.
    #[error(transparent)]
    Bench(#[from] pumice_bench::Error),
}
