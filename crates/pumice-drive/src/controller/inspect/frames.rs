//! Checking one frame that was read.

use super::super::log::payload::Stored;
use super::super::log::records::Found;
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, Result};
use crate::codec::Decompressor;
use crate::crypt::Cipher;
use crate::format::{Record, check_payload};

/// Checks a frame's payload and decodes it into `frame`, which has space for the longest one.
///
/// # Errors
/// `Corrupt`, naming the place.
pub(crate) fn check_frame(
    cipher: &Cipher,
    found: &Found<'_>,
    decompressor: &mut Decompressor,
    frame: &mut [u8],
) -> Result<()> {
    let Record::Data { lba_count, payload_checksum, .. } = found.record else {
        return Ok(());
    };
    let place = found.place;
    check_payload(found.payload(), payload_checksum, place)?;
    let named = |error: Error| error.in_segment(place.segment).at_offset(u64::from(place.offset));
    let stored = Stored::of_frame(&found.record, found.payload(), place.generation, cipher);
    let stored = stored.map_err(named)?;
    let frame = frame.get_mut(..usize::from(lba_count) * BLOCK_BYTES);
    let frame = frame.expect("the buffer holds the longest frame");
    stored.decode(cipher, decompressor, frame).map_err(named)
}
