//! Reading one metadata record: a leaf or a directory page of the map, a list, or a root.
//!
//! ```text
//! medium or batch buffer -> header -> checksum -> decode -> payload
//!           damaged: the batch -> parity -> restored record -^
//! ```
//!
//! Bytes from the medium are never trusted: a record other than the wanted one is `Corrupt`.

use std::cell::RefCell;

use super::buffers::Buffers;
use super::parity::restore_record;
use crate::base::{Error, ErrorKind, Result};
use crate::codec::{Decompressor, Encoding};
use crate::crypt::{Binding, Cipher, SEAL_BYTES};
use crate::format::{
    MetaKind, MetadataAddress, Record, RecordAddress, SEALED, check_payload, leaf_bytes_max,
    meta_payload,
};
use crate::media::AnyMedium;

/// Bytes of a directory page, and of a piece of a list, before encoding.
pub(crate) const LIST_BYTES: usize = 16 << 10;

/// Bytes of a list's entry that names a directory page: its number and its place.
pub(crate) const PAGE_ENTRY_BYTES: usize = 16;

/// Identifies a metadata record to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) place: RecordAddress,
    pub(crate) record_bytes: u32,
    pub(crate) kind: MetaKind,
    /// Its number among the records of its kind.
    pub(crate) number: u64,
}

impl Wanted {
    /// Identifies the record at a place that a map or a list names, in a generation of its segment.
    pub(crate) fn at(place: MetadataAddress, generation: u64, kind: MetaKind, number: u64) -> Self {
        let MetadataAddress { segment, offset, bytes } = place;
        let place = RecordAddress { generation, segment, offset };
        Self { place, record_bytes: bytes, kind, number }
    }

    /// Returns the record's address in the form in which a map or a list names it.
    pub(crate) fn address(&self) -> MetadataAddress {
        let RecordAddress { segment, offset, .. } = self.place;
        MetadataAddress { segment, offset, bytes: self.record_bytes }
    }
}

/// A metadata record that was read.
#[derive(Debug)]
pub(crate) struct Metadata {
    /// Its payload, decoded.
    pub(crate) raw: Vec<u8>,
    /// The checksum of the payload as stored.
    pub(crate) payload_checksum: u64,
    /// Whether the record is damaged on the medium, and was restored from parity.
    pub(crate) is_restored: bool,
}

/// Reads a metadata record from the medium. A damaged one is restored from its batch's parity.
///
/// # Errors
/// `Medium`; `Corrupt`, naming the place.
pub(crate) async fn read_meta(
    medium: &dyn AnyMedium,
    buffers: &Buffers,
    decompressor: &RefCell<Decompressor>,
    segment_bytes: u32,
    wanted: Wanted,
) -> Result<Metadata> {
    let RecordAddress { segment, offset, .. } = wanted.place;
    let range = offset..offset.saturating_add(wanted.record_bytes);
    let decode = |record: &[u8]| decode_meta(medium.cipher(), record, decompressor, wanted);
    let decoded = buffers.read(medium, segment, range, decode).await.flatten();
    let Err(error) = decoded else { return decoded };
    // The error of an unreadable part has precedence: it may be temporary, and the rest may be
    // restored.
    let restored = restore_meta(medium, decompressor, segment_bytes, wanted);
    let restored = Box::pin(restored).await?;
    let Some(restored) = restored else { return Err(error) };
    tracing::warn!(
        segment = %wanted.place.segment,
        offset = wanted.place.offset,
        kind = ?wanted.kind,
        number = wanted.number,
        error = %error.chain(),
        "damaged metadata was restored from parity"
    );
    Ok(restored)
}

/// Restores a metadata record from the parity of its batch, or reads it again.
async fn restore_meta(
    medium: &dyn AnyMedium,
    decompressor: &RefCell<Decompressor>,
    segment_bytes: u32,
    wanted: Wanted,
) -> Result<Option<Metadata>> {
    let mut restored = None;
    let mut decode = |record: &[u8]| {
        restored = decode_meta(medium.cipher(), record, decompressor, wanted).ok();
        restored.is_some()
    };
    restore_record(medium, segment_bytes, wanted.place, wanted.record_bytes, &mut decode).await?;
    Ok(restored.map(|metadata| Metadata { is_restored: true, ..metadata }))
}

/// Decodes a metadata record that was read from the medium or is still in a batch buffer.
///
/// # Errors
/// `Corrupt`, naming the place.
pub(crate) fn decode_meta(
    cipher: &Cipher,
    bytes: &[u8],
    decompressor: &RefCell<Decompressor>,
    wanted: Wanted,
) -> Result<Metadata> {
    let place = wanted.place;
    let wrong = |what: &'static str| {
        let error = Error::new(ErrorKind::Corrupt, what);
        error.in_segment(place.segment).at_offset(u64::from(place.offset))
    };
    let record = Record::decode_with(bytes, place, cipher)?;
    let Record::Meta { kind, number, encoding, payload_checksum, .. } = record else {
        return Err(wrong("a record is not the metadata record that the map names"));
    };
    if (kind, number, record.record_bytes()) != (wanted.kind, wanted.number, wanted.record_bytes) {
        return Err(wrong("a metadata record is not the one that the map names"));
    }
    let (_, payload) = bytes.split_at(record.header_bytes() as usize);
    check_payload(payload, payload_checksum, place)?;
    let is_sealed = encoding & SEALED != 0;
    if is_sealed == cipher.is_plain() || (is_sealed && payload.len() < SEAL_BYTES) {
        return Err(wrong("a metadata record has an unknown encoding"));
    }
    let mut opened = Vec::new();
    let payload = if is_sealed {
        let binding = Binding::metadata(kind as u8, number, encoding, place.bytes());
        opened.resize(payload.len() - SEAL_BYTES, 0);
        cipher.open(place.generation, binding, payload, &mut opened)?;
        &opened
    } else {
        payload
    };
    let encoding = encoding & !SEALED;
    let (raw_bytes, encoded) = meta_payload(payload)?;
    let bytes_max = match kind {
        MetaKind::Root => raw_bytes,
        MetaKind::Leaf => leaf_bytes_max(true),
        MetaKind::Page
        | MetaKind::PageList
        | MetaKind::Table
        | MetaKind::Dropped
        | MetaKind::Snapshots
        | MetaKind::Retained
        | MetaKind::Forwards => LIST_BYTES,
    };
    if raw_bytes > bytes_max {
        return Err(wrong("a metadata record is longer than the format allows"));
    }
    let encoding = Encoding::from_u8(encoding).filter(|&encoding| encoding != Encoding::Chunks);
    let encoding = encoding.ok_or_else(|| wrong("a metadata record has an unknown encoding"))?;
    let mut raw = vec![0; raw_bytes];
    decompressor.borrow_mut().decompress(encoding, encoded, &mut raw)?;
    Ok(Metadata { raw, payload_checksum, is_restored: false })
}
