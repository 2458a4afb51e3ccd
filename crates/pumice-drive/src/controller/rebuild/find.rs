//! Identifying a drive whose superblocks are both lost, from its segment headers, each of which
//! describes the drive.
//!
//! A header counts if its checksum is right and its place is the one that it states, so that the
//! image of a drive, stored as data within another one, is not mistaken for a drive. This module
//! does no I/O: it returns the offsets to read, and the caller passes the bytes.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::Identity;
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorKind, Result};
use crate::format::{DriveShape, KeySlot, SegmentHeader};

/// Maximum number of drives remembered: on a device that more drives have used in turn, `--uuid`
/// selects one.
const DRIVES_MAX: usize = 64;

/// A search for segment headers.
#[derive(Debug, Default)]
pub struct Finder {
    wanted: Option<Uuid>,
    /// Each drive's newest header, and the number of its headers.
    drives: BTreeMap<Uuid, Found>,
    shape: Option<DriveShape>,
}

#[derive(Debug)]
struct Found {
    generation: u64,
    shape: DriveShape,
    recovery: Option<KeySlot>,
    headers: u64,
}

impl Finder {
    /// Begins a search for the drive `wanted`, or for any drive.
    pub fn new(wanted: Option<Uuid>) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Examines the 4096 bytes at byte `offset` of the medium. Returns the next byte offset to
    /// examine: every 4 KiB until a header is found, then only the starts of segments.
    pub fn look(&mut self, offset: u64, page: &[u8]) -> u64 {
        let header = SegmentHeader::found_in(page).filter(|header| {
            let DriveShape { data_offset, segment_bytes, .. } = header.shape;
            let start = u64::from(header.segment.0).checked_mul(segment_bytes.into());
            let start = start.and_then(|start| start.checked_add(data_offset));
            start == Some(offset)
                && self.wanted.is_none_or(|wanted| wanted == header.uuid)
                && Identity::new(header.uuid, header.shape).is_ok()
        });
        if let Some(header) = header {
            self.shape = Some(self.shape.unwrap_or(header.shape));
            self.count(&header);
        }
        let step = self.shape.map_or(BLOCK_BYTES as u64, |shape| shape.segment_bytes.into());
        assert!(step >= BLOCK_BYTES as u64, "a search makes progress");
        offset + step
    }

    fn count(&mut self, header: &SegmentHeader) {
        if self.drives.len() >= DRIVES_MAX && !self.drives.contains_key(&header.uuid) {
            return;
        }
        let (generation, shape) = (header.generation, header.shape);
        let recovery = &header.recovery;
        let new = || Found { generation, shape, recovery: recovery.clone(), headers: 0 };
        let found = self.drives.entry(header.uuid).or_insert_with(new);
        found.headers += 1;
        // A drive may have been resized: the newest header is right.
        if generation > found.generation {
            (found.generation, found.shape) = (generation, shape);
            found.recovery.clone_from(recovery);
        }
    }

    /// Returns the drive that was found.
    ///
    /// # Errors
    /// `NotADrive` if no drive was found, `InvalidInput` if several were.
    pub fn result(&self) -> Result<Identity> {
        let mut drives = self.drives.iter();
        match (drives.next(), drives.next()) {
            (None, _) => {
                let what = "no segment of a Pumice drive was found: there is nothing to rebuild";
                Err(Error::new(ErrorKind::NotADrive, what))
            }
            (Some((&uuid, found)), None) => {
                let recovery = found.recovery.clone();
                Ok(Identity { recovery, ..Identity::new(uuid, found.shape)? })
            }
            _ => {
                let list = self
                    .drives
                    .iter()
                    .map(|(uuid, found)| format!("{uuid} ({} segments)", found.headers));
                let list = list.collect::<Vec<_>>().join(", ");
                let what =
                    format!("segments of several drives were found: choose one by UUID: {list}");
                Err(Error::new(ErrorKind::InvalidInput, what))
            }
        }
    }
}
