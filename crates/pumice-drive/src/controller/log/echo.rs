//! The echo of a batch without parity: its headers repeated in the padding of the next batch.
//!
//! ```text
//! | batch header | record | record | batch header, record headers of the previous batch | zeroes |
//! ```
//!
//! Without its headers it is unknown which blocks a batch contains, and a drive with such damage
//! does not open. Padding costs nothing; an echo that does not fit into it is omitted. Its bytes
//! are copies of the headers, so each has its checksum, and the batch names the checksum of the
//! previous batch header: an echo needs no checksum of its own.

use crate::base::units::len_u32;
use crate::crypt::Cipher;
use crate::format::{BATCH_HEADER_BYTES, BatchHeader, Record, RecordAddress};

/// The headers of a batch that the next one repeats.
#[derive(Clone, Copy, Debug)]
struct Echo<'a> {
    header: &'a BatchHeader,
    bytes: &'a [u8],
    cipher: &'a Cipher,
}

impl<'a> Echo<'a> {
    /// Returns each header with its offset in its batch; `None` if one is wrong.
    fn headers(&self) -> Option<Vec<(usize, &'a [u8])>> {
        let (first, mut rest) = self.bytes.split_at_checked(BATCH_HEADER_BYTES)?;
        let (mut headers, mut at) = (vec![(0, first)], BATCH_HEADER_BYTES);
        for _ in 0..self.header.record_count {
            let offset = self.header.offset.checked_add(len_u32(at))?;
            let (generation, segment) = (self.header.generation, self.header.segment);
            let place = RecordAddress { generation, segment, offset };
            let record = Record::decode_with(rest, place, self.cipher).ok()?;
            let (header, later) = rest.split_at_checked(record.header_bytes() as usize)?;
            headers.push((at, header));
            rest = later;
            at += record.record_bytes() as usize;
            if at > BATCH_HEADER_BYTES + self.header.record_bytes as usize {
                return None;
            }
        }
        Some(headers)
    }
}

/// Returns the header of the batch before a batch with this header and padding, if the padding
/// contains it.
pub(super) fn echoed(
    header: &BatchHeader,
    padding: &[u8],
    cipher: &Cipher,
) -> Option<(BatchHeader, u64)> {
    let echoed = BatchHeader::decode_with(padding, cipher).ok();
    echoed.filter(|(before, checksum)| {
        before.seq.0.checked_add(1) == Some(header.seq.0) && *checksum == header.previous_checksum
    })
}

/// Copies the headers that a padding repeats into their batch, whose bytes may be damaged. Returns
/// whether the padding contains all of them; if not, nothing has changed.
pub(super) fn restore(
    header: &BatchHeader,
    padding: &[u8],
    cipher: &Cipher,
    batch: &mut [u8],
) -> bool {
    let Some(headers) = (Echo { header, bytes: padding, cipher }).headers() else { return false };
    for (at, bytes) in headers {
        if let Some(target) = batch.get_mut(at..at + bytes.len()) {
            target.copy_from_slice(bytes);
        }
    }
    true
}

/// Returns whether the padding of a batch has the form that a writer produces: an echo, or nothing,
/// and zeroes.
pub(super) fn is_padding_right(header: &BatchHeader, padding: &[u8], cipher: &Cipher) -> bool {
    let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    if is_zero(padding) {
        return true;
    }
    let Some((before, _)) = echoed(header, padding, cipher) else { return false };
    let headers = Echo { header: &before, bytes: padding, cipher }.headers();
    let used = headers.map(|headers| headers.iter().map(|(_, bytes)| bytes.len()).sum());
    used.and_then(|used: usize| padding.get(used..)).is_some_and(is_zero)
}
