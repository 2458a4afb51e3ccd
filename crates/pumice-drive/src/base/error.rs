//! The public error type: a stable kind that a caller can act on, a description of the failure and
//! its place, and the cause.
//!
//! `Display` prints what happened to which object and never repeats its source; the top of a
//! program prints the [chain](Error::chain). There is no blanket conversion from `io::Error`: each
//! call site states its operation, usually through [`ErrorContext`].

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::io;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::units::{Lba, SegmentId};

/// Result with the public [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, which tells a caller how it can react. Stable: a kind is never reused for
/// another meaning.
///
/// Each kind has one Linux errno, from which every front end derives the value it reports:
///
/// | kind | [`errno`](ErrorKind::errno) | over FUSE | over NBD |
/// |---|---|---|---|
/// | `InvalidInput` | EINVAL | EINVAL | EINVAL |
/// | `NoSpace` | ENOSPC | ENOSPC | ENOSPC |
/// | `Corrupt` | EIO | EIO | EIO |
/// | `Medium` | EIO | EIO | EIO |
/// | `Io` | EIO | EIO | EIO |
/// | `Interrupted` | EINTR | EINTR | EIO |
/// | `Poisoned` | EIO | EIO | EIO |
/// | `ReadOnly` | EROFS | EROFS | EPERM |
/// | `Busy` | EBUSY | EBUSY | EIO |
/// | `NotADrive` | EINVAL | EINVAL | EINVAL |
/// | `Unsupported` | EOPNOTSUPP | EOPNOTSUPP | EINVAL |
/// | `NotFound` | ENOENT | ENOENT | EIO |
/// | `PermissionDenied` | EACCES | EACCES | EPERM |
/// | `AlreadyExists` | EEXIST | EEXIST | EIO |
///
/// NBD defines fewer values than Linux, and it reserves its ENOTSUP for fast zeroing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(description = "The kind of an error."))]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request itself is invalid; repeating it cannot help.
    InvalidInput,
    /// The log has no space left. Nothing was acknowledged.
    NoSpace,
    /// A checksum or a structure on the medium is wrong. Only the named location is affected.
    Corrupt,
    /// The medium of a drive failed.
    Medium,
    /// An earlier failure means that writes can no longer become durable. Reopen the drive.
    Poisoned,
    /// The drive was opened read-only.
    ReadOnly,
    /// The drive is open elsewhere.
    Busy,
    /// The bytes are not a Pumice drive.
    NotADrive,
    /// The drive needs a newer version of this program, or a feature that this build lacks.
    Unsupported,
    /// A file, device or socket does not exist.
    NotFound,
    /// The operating system refused access.
    PermissionDenied,
    /// The operation would overwrite something that exists.
    AlreadyExists,
    /// A file, device, connection or process other than a drive's medium failed.
    Io,
    /// The user or another task stopped the operation before it was done.
    Interrupted,
}

impl ErrorKind {
    /// Every kind.
    pub const ALL: [Self; 14] = [
        Self::InvalidInput,
        Self::NoSpace,
        Self::Corrupt,
        Self::Medium,
        Self::Poisoned,
        Self::ReadOnly,
        Self::Busy,
        Self::NotADrive,
        Self::Unsupported,
        Self::NotFound,
        Self::PermissionDenied,
        Self::AlreadyExists,
        Self::Io,
        Self::Interrupted,
    ];

    /// Returns the Linux errno of the kind. See the [table](ErrorKind).
    pub fn errno(self) -> i32 {
        let errno = match self {
            Self::InvalidInput | Self::NotADrive => Errno::INVAL,
            Self::NoSpace => Errno::NOSPC,
            Self::Corrupt | Self::Medium | Self::Poisoned | Self::Io => Errno::IO,
            Self::ReadOnly => Errno::ROFS,
            Self::Busy => Errno::BUSY,
            Self::Unsupported => Errno::OPNOTSUPP,
            Self::NotFound => Errno::NOENT,
            Self::PermissionDenied => Errno::ACCESS,
            Self::AlreadyExists => Errno::EXIST,
            Self::Interrupted => Errno::INTR,
        };
        errno.raw_os_error()
    }

    /// Returns whether stored data or the storage device failed, as opposed to a request that was
    /// refused. Such errors belong in the log as warnings.
    pub fn is_failure_of_storage(self) -> bool {
        matches!(self, Self::Corrupt | Self::Medium | Self::Io | Self::Poisoned)
    }
}

/// A choice that the caller can make to let a refused operation run. The text of an [`Error`] names
/// no command-line options; each program names its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Overwrite existing data.
    Overwrite,
    /// Open the mirror without its missing members.
    Degraded,
    /// Read the drive together with a journal that another machine has fenced.
    Fenced,
    /// Forget the clones of a snapshot that no longer exist.
    Forget,
    /// Continue the interrupted transfer.
    Resume,
}

/// An error of the drive, a medium or a file format, with its location and its cause.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    what: Cow<'static, str>,
    segment: Option<SegmentId>,
    offset: Option<u64>,
    lba: Option<Lba>,
    remedy: Option<Remedy>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Creates an error of `kind`. The description states what happened to which object, without a
    /// full stop at the end.
    pub fn new(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        let what = what.into();
        let (segment, offset, lba, remedy, source) = (None, None, None, None, None);
        Self(Box::new(Inner { kind, what, segment, offset, lba, remedy, source }))
    }

    /// Creates an error from an error of the operating system and a description of the failed
    /// operation. The kind follows the errno; it is `Io` for an errno without a kind of its own.
    pub fn os(what: impl Into<Cow<'static, str>>, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
            io::ErrorKind::StorageFull => ErrorKind::NoSpace,
            io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy => ErrorKind::Busy,
            _ => ErrorKind::Io,
        };
        Self::new(kind, what).caused_by(source)
    }

    /// Sets the segment that the error concerns.
    pub fn in_segment(mut self, segment: SegmentId) -> Self {
        self.0.segment = Some(segment);
        self
    }

    /// Sets the byte offset: within the segment if one is set, otherwise within the medium.
    pub fn at_offset(mut self, offset: u64) -> Self {
        self.0.offset = Some(offset);
        self
    }

    /// Sets the logical block that the error concerns.
    pub fn at_lba(mut self, lba: Lba) -> Self {
        self.0.lba = Some(lba);
        self
    }

    /// Sets the choice that lets the operation run.
    pub fn with_remedy(mut self, remedy: Remedy) -> Self {
        self.0.remedy = Some(remedy);
        self
    }

    /// Sets the cause.
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Returns the kind, which determines how a caller can react.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the segment that the error concerns, if any.
    pub fn segment(&self) -> Option<SegmentId> {
        self.0.segment
    }

    /// Returns the logical block that the error concerns, if any.
    pub fn lba(&self) -> Option<Lba> {
        self.0.lba
    }

    /// Returns the choice that lets the operation run, if any.
    pub fn remedy(&self) -> Option<Remedy> {
        self.0.remedy
    }

    /// Returns the error and all its causes in one line, for a program to print.
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// Returns an error and all its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(": ");
        line.push_str(&error.to_string());
        cause = error.source();
    }
    line
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.what)?;
        let mut separator = " (";
        if let Some(segment) = self.0.segment {
            write!(f, "{separator}segment {segment}")?;
            separator = ", ";
        }
        if let Some(offset) = self.0.offset {
            write!(f, "{separator}offset {offset}")?;
            separator = ", ";
        }
        if let Some(lba) = self.0.lba {
            write!(f, "{separator}LBA {lba}")?;
            separator = ", ";
        }
        if separator == ", " { f.write_str(")") } else { Ok(()) }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.chain())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// Returns an error of `kind` unless `condition` holds. For the description, see [`Error::new`].
///
/// # Errors
/// An error of `kind`, if the condition does not hold.
#[inline]
pub fn ensure(condition: bool, kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Result<()> {
    if condition { Ok(()) } else { Err(Error::new(kind, what)) }
}

/// Converts a missing value or a foreign error into an [`Error`] that describes the operation.
pub trait ErrorContext<T>: Sized {
    /// Returns the value, or an error of `kind` with this description. A foreign error becomes its
    /// cause.
    ///
    /// # Errors
    /// An error of `kind`, if there is no value.
    fn or_error(self, kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Result<T>;
}

impl<T> ErrorContext<T> for Option<T> {
    #[inline]
    fn or_error(self, kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Result<T> {
        self.ok_or_else(|| Error::new(kind, what))
    }
}

impl<T, E: Into<Box<dyn StdError + Send + Sync>>> ErrorContext<T> for Result<T, E> {
    #[inline]
    fn or_error(self, kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Result<T> {
        self.map_err(|cause| Error::new(kind, what).caused_by(cause))
    }
}

/// Converts an error of the operating system into an [`Error`] that describes the operation.
pub trait OsContext<T>: Sized {
    /// Returns the value, or [`Error::os`] with the description that the closure returns.
    ///
    /// # Errors
    /// The error of the operating system.
    fn os_context<S: Into<Cow<'static, str>>>(self, what: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<io::Error>> OsContext<T> for Result<T, E> {
    fn os_context<S: Into<Cow<'static, str>>>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| Error::os(what(), error.into()))
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the line that a user reads states the location once and each cause once; kinds follow
    //! the errors of the operating system and have an errno.
    use super::*;

    #[test]
    fn display_names_the_place_and_chain_adds_the_cause() {
        let cause = std::io::Error::from_raw_os_error(5);
        let error = Error::os("cannot read a frame", cause)
            .in_segment(SegmentId(7))
            .at_offset(4096)
            .at_lba(Lba(12));
        assert_eq!(error.to_string(), "cannot read a frame (segment 7, offset 4096, LBA 12)");
        assert!(error.chain().starts_with(&format!("{error}: ")));
        assert_eq!(error.chain().matches("cannot read").count(), 1);
        assert_eq!(Error::new(ErrorKind::NoSpace, "full").to_string(), "full");
    }

    #[test]
    fn context_keeps_the_cause_and_the_kind() {
        assert_eq!(None::<u8>.or_error(ErrorKind::Corrupt, "gone").unwrap_err().kind(), {
            ErrorKind::Corrupt
        });
        let parsed = "x".parse::<u8>().or_error(ErrorKind::InvalidInput, "no number");
        assert!(parsed.unwrap_err().source().is_some());
        assert!(ensure(true, ErrorKind::Busy, "busy").is_ok());
        assert_eq!(ensure(false, ErrorKind::Busy, "busy").unwrap_err().kind(), ErrorKind::Busy);
        let missing: Result<()> = Err(Errno::NOENT).os_context(|| "cannot open x");
        assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
        let broken: Result<()> = Err(Errno::PIPE).os_context(|| "cannot send");
        assert_eq!(broken.unwrap_err().kind(), ErrorKind::Io);
    }

    #[test]
    fn every_kind_is_listed_once_and_has_an_errno() {
        for (index, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
            assert!(kind.errno() > 0);
        }
        assert_eq!(ErrorKind::ReadOnly.errno(), 30);
        assert_eq!(ErrorKind::Unsupported.errno(), 95);
    }
}
