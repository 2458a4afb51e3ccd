//! Making the copies of a medium equal after an unclean end.
//!
//! A sync covers all copies. Data that no sync has covered may be in one copy and not in another,
//! which may contain remains of an earlier life instead. Recovery accepts a batch that any copy
//! contains. Before the batch is called durable, all copies must contain it, or a later reader
//! could find another past:
//!
//! ```text
//! log      ... | durable: every copy | accepted by recovery: in some copy     | end
//!              ^ watermark           \_____ written to all copies, then synced _/
//! ```
//!
//! A read-only drive instead records which copies contain such a batch.
//!
//! Beyond the end, and in free segments, copies may differ: data there never counts, whichever copy
//! is read.

use super::super::log::records::{Body, body_state};
use super::super::log::walk::Unproven;
use super::super::log::window::Window;
use super::super::log::{FIRST_BATCH_OFFSET, UNIT, batch_bytes};
use crate::base::units::len_u32;
use crate::base::{Error, ErrorKind, Result};
use crate::format::{BATCH_HEADER_BYTES, BatchHeader};
use crate::media::{AnyMedium, CopyId};

/// Writes batches that recovery accepted to all copies that differ. Not durable before a sync.
///
/// # Errors
/// `Medium` or `NoSpace`.
pub(crate) async fn make_equal(
    medium: &dyn AnyMedium,
    segment_bytes: u32,
    batches: &[Unproven],
) -> Result<()> {
    let Some(array) = medium.as_array() else { return Ok(()) };
    for batch in batches {
        let Some(bytes) = read_whole(medium, segment_bytes, batch).await else {
            let what = "a batch of the log can no longer be read: try again";
            let error = Error::new(ErrorKind::Medium, what);
            return Err(error.in_segment(batch.segment).at_offset(batch.offset.into()));
        };
        let from = if batch.is_first { 0 } else { batch.offset };
        array.repair(batch.segment, from, &bytes).await?;
    }
    Ok(())
}

/// Returns a batch, preceded by the header of the segment if it is the first one, from the first
/// copy that contains all of it.
async fn read_whole(
    medium: &dyn AnyMedium,
    segment_bytes: u32,
    batch: &Unproven,
) -> Option<Vec<u8>> {
    let mut window = Window::new(medium, segment_bytes);
    for copy in medium.copies() {
        if let Some(bytes) = whole_in(&mut window, copy, batch).await {
            return Some(bytes);
        }
    }
    None
}

/// Records which copies contain the batches that recovery accepted, so that a reader, which cannot
/// make copies equal, finds the same past in all of them.
pub(super) async fn note_holders(medium: &dyn AnyMedium, segment_bytes: u32, batches: &[Unproven]) {
    let Some(array) = medium.as_array() else { return };
    let mut window = Window::new(medium, segment_bytes);
    for batch in batches {
        let (mut holders, mut end) = (Vec::new(), 0);
        let from = if batch.is_first { 0 } else { batch.offset };
        for copy in array.copies() {
            if let Some(bytes) = whole_in(&mut window, copy, batch).await {
                holders.push(copy);
                end = from + len_u32(bytes.len());
            }
        }
        if !holders.is_empty() {
            assert!(from < end, "a batch has bytes");
            array.note_holders(&holders, batch.segment, from..end);
        }
    }
}

/// Returns a batch like [`read_whole`], from one copy, if that copy contains all of it.
async fn whole_in(window: &mut Window<'_>, copy: CopyId, batch: &Unproven) -> Option<Vec<u8>> {
    let &Unproven { segment, offset, checksum, is_first, .. } = batch;
    let medium = window.medium();
    window.read_copy(Some(copy));
    let bytes = window.read(segment, offset, UNIT).await;
    let (header, found) = BatchHeader::decode_with(bytes, medium.cipher()).ok()?;
    if found != checksum {
        return None;
    }
    let len = batch_bytes(&header);
    let bytes = window.read(segment, offset, len).await;
    let (_, body) = bytes.split_at(BATCH_HEADER_BYTES);
    if !matches!(body_state(medium.cipher(), &header, body), Body::Whole) {
        return None;
    }
    if !is_first {
        return Some(bytes.to_vec());
    }
    let bytes = window.read(segment, 0, FIRST_BATCH_OFFSET + len).await;
    // This copy may lack the segment's header.
    let segment_header = bytes.get(..FIRST_BATCH_OFFSET as usize).unwrap_or_default();
    let found = crate::format::SegmentHeader::found_in(segment_header)?;
    (found.generation == header.generation).then(|| bytes.to_vec())
}
