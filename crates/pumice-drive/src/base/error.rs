//! The one public error: a stable kind that a caller can act on, what was being done and where,
//! and the cause.
//!
//! `Display` prints what happened to which thing and never repeats its source; the top of the
//! program prints the chain. There is no blanket conversion from `io::Error`: every place that
//! meets one says what it was doing.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::units::{Lba, SegmentId};

/// Result with the one public [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a caller can do about an error. Stable: a kind is never reused for another meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorKind {
    /// The request itself is wrong; repeating it cannot help. EINVAL.
    InvalidInput,
    /// The log has no room; nothing was acknowledged. ENOSPC.
    NoSpace,
    /// A checksum or a structure on the medium is wrong. EIO, for the named place only.
    Corrupt,
    /// The medium failed. EIO.
    Medium,
    /// An earlier failure means that writes can no longer become durable; reopen the drive. EIO.
    Poisoned,
    /// The drive was opened read-only. EPERM.
    ReadOnly,
    /// The drive is open elsewhere. EBUSY.
    Busy,
    /// The bytes are not a Pumice drive. EINVAL.
    NotADrive,
    /// The drive needs a newer version of this program, or a feature this one lacks. ENOTSUP.
    Unsupported,
    /// A file, device or socket does not exist. ENOENT.
    NotFound,
    /// The operating system refused access. EACCES.
    PermissionDenied,
    /// Something is there already that would be overwritten. EEXIST.
    AlreadyExists,
}

/// An error of the drive, a medium or a file format, with its place and its cause.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    what: Cow<'static, str>,
    segment: Option<SegmentId>,
    offset: Option<u64>,
    lba: Option<Lba>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; `what` says what happened to which thing, without a full stop.
    pub fn new(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        let what = what.into();
        Self(Box::new(Inner { kind, what, segment: None, offset: None, lba: None, source: None }))
    }

    /// An error from the operating system met while doing `what`; its kind follows the errno.
    pub fn os(what: impl Into<Cow<'static, str>>, source: std::io::Error) -> Self {
        let kind = match source.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            std::io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
            std::io::ErrorKind::StorageFull => ErrorKind::NoSpace,
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::ResourceBusy => ErrorKind::Busy,
            _ => ErrorKind::Medium,
        };
        Self::new(kind, what).caused_by(source)
    }

    /// Names the segment the error is about.
    pub fn in_segment(mut self, segment: SegmentId) -> Self {
        self.0.segment = Some(segment);
        self
    }

    /// Names the byte offset (in the segment if one is named, else in the medium).
    pub fn at_offset(mut self, offset: u64) -> Self {
        self.0.offset = Some(offset);
        self
    }

    /// Names the logical block the error is about.
    pub fn at_lba(mut self, lba: Lba) -> Self {
        self.0.lba = Some(lba);
        self
    }

    /// Adds the cause.
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The segment the error is about, if it is about one.
    pub fn segment(&self) -> Option<SegmentId> {
        self.0.segment
    }

    /// The logical block the error is about, if it is about one.
    pub fn lba(&self) -> Option<Lba> {
        self.0.lba
    }

    /// The error and all its causes in one line, as the top of a program prints it.
    pub fn chain(&self) -> String {
        let mut line = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            line.push_str(": ");
            line.push_str(&error.to_string());
            cause = error.source();
        }
        line
    }
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

#[cfg(test)]
mod tests {
    //! Goal: the line a user reads names the place once and each cause once.
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
}
