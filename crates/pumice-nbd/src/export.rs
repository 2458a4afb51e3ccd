//! Exports: the disks that a server offers, each under a name.
//!
//! The default export has the empty name. A server of one disk also offers it as the default; a
//! server of several has no default. An earlier state of a disk may be an export as well. It does
//! not count as a disk, and the rules and limits of its disk apply to it.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::rate::{Limits, Paid};
use super::request::Shape;
use crate::AnyDisk;

/// The position of a disk in the sequence of its states, as texts that differ if the data may
/// differ.
///
/// A client handed over by another server continues only if the disk follows the state in which
/// that server left it: neither on another disk of the same name nor on an older copy. The texts
/// are empty for disks that have only one state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    /// State in which the previous server left the disk, if nothing was lost since.
    pub follows: String,
    /// State in which this server leaves the disk.
    pub leaves: String,
}

/// Identifies the earlier state of a disk that an export shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// Name of the disk's export.
    pub of: String,
    /// Name of the state, as metadata contexts spell it; at most 255 bytes.
    pub name: String,
    /// Later states of the disk have larger numbers.
    pub sequence: u64,
    /// Whether clients can read it. Otherwise they can only compare with it, and it is not an
    /// export.
    pub is_readable: bool,
}

/// A disk that clients can choose by its name.
pub struct Export {
    /// Name, at most 4096 bytes according to the protocol. If several exports have one name,
    /// clients get the first.
    pub name: String,
    /// Human-readable description; at most 4096 bytes according to the protocol.
    pub description: String,
    /// The disk.
    pub disk: Rc<dyn AnyDisk>,
    /// Decides which clients of another server may continue.
    pub lineage: Lineage,
    /// The disk, if this export is an earlier state of one.
    pub earlier: Option<Earlier>,
    refused: Arc<AtomicU64>,
    /// Rate limits of requests, which the front server may change.
    pub(super) limits: Arc<Limits>,
    pub(super) paid: Arc<Paid>,
}

impl Export {
    /// Returns an export of `disk`.
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        disk: Rc<dyn AnyDisk>,
    ) -> Self {
        let (name, description) = (name.into(), description.into());
        Self {
            name,
            description,
            disk,
            lineage: Lineage::default(),
            earlier: None,
            refused: Arc::default(),
            limits: Arc::default(),
            paid: Arc::default(),
        }
    }

    /// Returns the export of an earlier state of this export's disk. Both share the rate limits and
    /// the count of refused requests.
    pub fn of_earlier(
        &self,
        name: String,
        description: String,
        disk: Rc<dyn AnyDisk>,
        at: Earlier,
    ) -> Self {
        Self {
            name,
            description,
            disk,
            lineage: Lineage::default(),
            earlier: Some(at),
            refused: self.refused.clone(),
            limits: self.limits.clone(),
            paid: self.paid.clone(),
        }
    }

    /// Returns the export with the lineage of its disk.
    #[must_use]
    pub fn with_lineage(self, lineage: Lineage) -> Self {
        Self { lineage, ..self }
    }

    /// Returns the number of requests refused before they reached the disk: malformed requests, and
    /// requests that arrived during shutdown.
    pub fn refused_requests(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Counts a refused request.
    pub(super) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counter of refused requests.
    pub(super) fn refused(&self) -> &Arc<AtomicU64> {
        &self.refused
    }

    /// Returns the properties that the checks of a request need. The size changes when the disk is
    /// resized.
    pub(super) fn shape(&self) -> Shape {
        Shape { size_bytes: self.disk.size_bytes(), is_read_only: self.disk.is_read_only() }
    }
}

/// The properties of an export on another thread that are known without querying that thread.
#[derive(Debug)]
pub struct Announcement {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) lineage: Lineage,
    pub(super) earlier: Option<Earlier>,
    /// The shape when the server was created.
    pub(super) shape: Shape,
    pub(super) refused: Arc<AtomicU64>,
    pub(super) limits: Arc<Limits>,
}

impl Announcement {
    /// Returns the properties of an export for other threads.
    pub fn of(export: &Export) -> Self {
        Self {
            name: export.name.clone(),
            description: export.description.clone(),
            lineage: export.lineage.clone(),
            earlier: export.earlier.clone(),
            shape: export.shape(),
            refused: export.refused().clone(),
            limits: export.limits.clone(),
        }
    }
}

/// An export, as listed in a handshake.
pub(super) struct Offer<'a> {
    pub(super) name: &'a str,
    pub(super) description: &'a str,
    pub(super) earlier: Option<&'a Earlier>,
}

impl<'a> Offer<'a> {
    /// Returns whether clients can choose it.
    pub(super) fn is_export(&self) -> bool {
        self.earlier.is_none_or(|earlier| earlier.is_readable)
    }

    /// Returns the name of the export whose rules apply.
    pub(super) fn ruled_by(&self) -> &'a str {
        self.earlier.map_or(self.name, |earlier| &earlier.of)
    }
}
