//! Comparing the copies of a batch on a mirror, and overwriting the damaged copies.
//!
//! ```text
//! each copy: header, record headers, payloads, parity -> the first intact one -> all others
//! none intact: its records one by one; see `Drive::repair_records`
//! ```

use super::parity::fill_parity;
use super::records::{Body, Found, body_state};
use super::window::Window;
use super::{FIRST_BATCH_OFFSET, UNIT, batch_bytes};
use crate::base::units::len_u32;
use crate::base::{Result, SegmentId};
use crate::crypt::Cipher;
use crate::format::{BATCH_HEADER_BYTES, BatchHeader, DriveShape, SegmentHeader};
use crate::media::{AnyMedium, CopyId};

/// Overwrites copies of a batch that differ from an intact one. Returns their number; `None` if no
/// copy contains all of the batch. The caller protects the segment from being freed.
///
/// # Errors
/// `NoSpace` or `Medium`.
pub(crate) async fn repair_batch(
    medium: &dyn AnyMedium,
    shape: &DriveShape,
    header: &BatchHeader,
) -> Result<Option<u32>> {
    let copies = read_all(medium, shape, header).await;
    let mut copies = copies.into_iter().filter_map(|(_, copy)| copy);
    let right = copies.find(|copy| is_right(medium.cipher(), header, copy));
    let Some(mut append) = right else { return Ok(None) };
    if header.parity_pages > 0 {
        // No checksum confirms the parity.
        fill_parity(&mut append, header.parity_pages.into());
    }
    let (from, _) = place_of(header);
    let Some(array) = medium.as_array() else { return Ok(Some(0)) };
    Ok(Some(array.repair(header.segment, from, &append).await?))
}

/// Returns the copies in which a batch is damaged or cannot be read. If one copy is complete, these
/// are the copies that differ from it; if none is, the copies in which one of these records is
/// damaged. A copy removed in the meantime is not included.
pub(crate) async fn damaged_copies(
    medium: &dyn AnyMedium,
    shape: &DriveShape,
    header: &BatchHeader,
    live: &[Found<'_>],
) -> Vec<CopyId> {
    let copies = read_all(medium, shape, header).await;
    let is_whole = |copy: &Vec<u8>| is_right(medium.cipher(), header, copy);
    let mut right = copies.iter().filter_map(|(_, copy)| copy.as_ref());
    let mut right = right.find(|copy| is_whole(copy)).cloned();
    if let Some(right) = right.as_mut().filter(|_| header.parity_pages > 0) {
        fill_parity(right, header.parity_pages.into());
    }
    let (from, _) = place_of(header);
    let is_damaged = |copy: &Option<Vec<u8>>| match (copy, &right) {
        (None, _) => true,
        (Some(copy), Some(right)) => copy != right,
        (Some(copy), None) => live.iter().any(|found| {
            let record = copy.get((found.place.offset - from) as usize..);
            let record = record.and_then(|rest| rest.get(..found.bytes.len()));
            !record.is_some_and(|record| found.is_copied_in(record))
        }),
    };
    let present = medium.copies();
    let damaged = copies.iter().filter(|(id, copy)| present.contains(id) && is_damaged(copy));
    damaged.map(|(id, _)| *id).collect()
}

/// Returns a damaged record from a copy in which it is whole.
pub(crate) async fn whole_record(
    medium: &dyn AnyMedium,
    shape: &DriveShape,
    found: &Found<'_>,
) -> Option<Vec<u8>> {
    let mut window = Window::new(medium, shape.segment_bytes);
    let from = found.place.offset / UNIT * UNIT;
    let end = (found.place.offset + len_u32(found.bytes.len())).next_multiple_of(UNIT);
    for copy in medium.copies() {
        window.read_copy(Some(copy));
        let bytes = window.read(found.place.segment, from, end - from).await;
        let record = bytes.get((found.place.offset - from) as usize..);
        let record = record.and_then(|rest| rest.get(..found.bytes.len())).unwrap_or_default();
        if found.is_copied_in(record) {
            return Some(record.to_vec());
        }
    }
    None
}

/// Returns the offset in its segment and the length of the append of a batch.
fn place_of(header: &BatchHeader) -> (u32, u32) {
    let from = if header.offset == FIRST_BATCH_OFFSET { 0 } else { header.offset };
    (from, header.offset - from + batch_bytes(header))
}

/// Reads the append of a batch from each copy. Returns `None` for a copy that cannot be read, or
/// was removed.
async fn read_all(
    medium: &dyn AnyMedium,
    shape: &DriveShape,
    header: &BatchHeader,
) -> Vec<(CopyId, Option<Vec<u8>>)> {
    let (from, len) = place_of(header);
    let mut window = Window::new(medium, shape.segment_bytes);
    let mut copies = Vec::new();
    for copy in medium.copies() {
        window.read_copy(Some(copy));
        let append = window.read(header.segment, from, len).await.to_vec();
        copies.push((copy, window.take_error().is_none().then_some(append)));
    }
    copies
}

/// Returns whether an append, except its parity, is as it was written.
fn is_right(cipher: &Cipher, wanted: &BatchHeader, append: &[u8]) -> bool {
    let batch_at = append.len() - batch_bytes(wanted) as usize;
    let (segment_header, batch) = append.split_at(batch_at);
    let (head, body) = batch.split_at(BATCH_HEADER_BYTES);
    let is_header =
        BatchHeader::decode_with(head, cipher).is_ok_and(|(header, _)| header == *wanted);
    let is_entered = segment_header.is_empty() || is_header_of(wanted.segment, segment_header);
    is_header && is_entered && matches!(body_state(cipher, wanted, body), Body::Whole)
}

fn is_header_of(segment: SegmentId, bytes: &[u8]) -> bool {
    SegmentHeader::found_in(bytes).is_some_and(|header| header.segment == segment)
}
