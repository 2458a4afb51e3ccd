//! The records of a batch: frames of data, fills and trims; metadata; and the segment in which a
//! stream continues.
//!
//! ```text
//! | record header 28 | sources 16 * source_count | payload: stored_bytes |   byte by byte
//! ```
//!
//! A frame that garbage collection moved lists its *sources*: the frames from which its blocks were
//! copied, and the age of the data. Replay moves a block only if it still maps to its source, so
//! the order in which batches of the host and of garbage collection were sealed does not matter.
//!
//! The header has a checksum of its own, so a frame with a damaged payload still identifies its
//! blocks. The checksum is bound to the segment's generation and to the record's location, so a
//! header that was read from the wrong location, or left by an earlier use of the segment, does not
//! match.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::layout::layout;
use super::segment::Stream;
use crate::base::checksum::{crc32, crc32_pair, crc64};
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorContext, ErrorKind, Lba, Result, SegmentId, SeqNo};
use crate::crypt::{Cipher, PLAIN, SEAL_BYTES};

/// Bytes of a record header.
pub const RECORD_HEADER_BYTES: usize = HEADER_BYTES as usize;

pub(super) const HEADER_BYTES: u32 = 28;

/// Metadata records begin and end at multiples of this many bytes from the start of their segment,
/// so that a directory entry encodes location and length in 63 bits.
pub const META_ALIGNMENT: u32 = 16;

/// Bytes of the prefix of a metadata payload, which holds its lengths.
pub const META_PREFIX_BYTES: usize = 8;

layout! {
    struct Layout: 28 {
        header_checksum: U32,
        stored_bytes: U32,
        number: U64,
        blocks: u8,
        source_count: u8,
        kind: u8,
        argument: u8,
        tail: U64,
    }
}

pub(super) const FIELDS: &[super::layout::Field] = Layout::FIELDS;

layout! {
    struct SourceLayout: 16 {
        birth_blocks: U64,
        segment: U32,
        offset: U32,
    }
}

pub(super) const SOURCE_FIELDS: &[super::layout::Field] = SourceLayout::FIELDS;

/// Bytes of one source after a record header.
pub const SOURCE_BYTES: usize = SOURCE_LENGTH as usize;

pub(super) const SOURCE_LENGTH: u32 = 16;

/// Bytes of a header's checksum, which is its first field.
const CHECKSUM_BYTES: usize = size_of::<U32>();

/// Maximum bytes of the sources of a record.
const SOURCES_BYTES_MAX: usize = super::FRAME_BLOCKS_MAX as usize * SOURCE_BYTES;

/// The bit of an encoding that is set if the payload is encrypted.
pub(crate) const SEALED: u8 = 0x80;

/// [`SEAL_BYTES`] in the width of lengths in records.
const SEAL_LENGTH: u32 = 28;
const _: () = assert!(SEAL_LENGTH as usize == SEAL_BYTES);

/// [`BLOCK_BYTES`] in the width of lengths in records.
pub(super) const BLOCK_LENGTH: u32 = 4096;
const _: () = assert!(BLOCK_LENGTH as usize == BLOCK_BYTES);

const _: () = assert!(size_of::<Layout>() == RECORD_HEADER_BYTES, "the layout fills the header");
const _: () = assert!(size_of::<SourceLayout>() == SOURCE_BYTES, "the layout fills a source");
const _: () = assert!(
    RECORD_HEADER_BYTES + super::FRAME_BLOCKS_MAX as usize * (SOURCE_BYTES + BLOCK_BYTES)
        <= super::BATCH_BYTES_MAX,
    "the longest frame fits in a batch"
);

const KIND_DATA: u8 = 1;
const KIND_FILL: u8 = 2;
const KIND_TRIM: u8 = 3;
const KIND_OPEN: u8 = 4;
const KIND_META: u8 = 5;

/// Bits of a source's first word that hold the birth. The remaining bits count blocks.
pub(super) const BIRTH_BITS: u32 = 56;
const _: () = assert!(BIRTH_BITS + u8::BITS == u64::BITS, "a source's first word is full");

/// The location of a record, which its header's checksum also covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordAddress {
    /// Generation of the segment.
    pub generation: u64,
    /// The segment.
    pub segment: SegmentId,
    /// Byte offset of the record header in the segment.
    pub offset: u32,
}

impl RecordAddress {
    /// Returns the location in the form that checksums and ciphers use.
    #[inline]
    pub fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let (generation, rest) = bytes.split_at_mut(8);
        generation.copy_from_slice(&self.generation.to_le_bytes());
        let (segment, offset) = rest.split_at_mut(4);
        segment.copy_from_slice(&self.segment.0.to_le_bytes());
        offset.copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    /// Returns the location of the bytes after the header of the record.
    fn after_header(self) -> Self {
        Self { offset: self.offset.wrapping_add(HEADER_BYTES), ..self }
    }
}

/// The source of consecutive blocks in a frame that garbage collection wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The batch in which the host wrote the blocks: the age of the data. Below 2^56; 0 if the
    /// blocks were dead when the frame was moved.
    pub birth: SeqNo,
    /// Number of blocks, 1..=64.
    pub blocks: u8,
    /// Segment of the frame from which they were copied.
    pub segment: SegmentId,
    /// Byte offset of that frame's record in its segment.
    pub offset: u32,
}

/// The content of a metadata record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MetaKind {
    /// A leaf of the map. Its number counts leaves.
    Leaf = 1,
    /// A page of the map's directory. Its number counts pages.
    Page = 2,
    /// A piece of a checkpoint's list of directory pages.
    PageList = 3,
    /// A piece of a checkpoint's segment table.
    Table = 4,
    /// A piece of a checkpoint's list of dropped ranges.
    Dropped = 5,
    /// A checkpoint's root.
    Root = 6,
    /// A piece of a checkpoint's list of snapshots.
    Snapshots = 7,
    /// A piece of the bitmap of segments that a snapshot needs.
    Retained = 8,
    /// A piece of a forwarding table. Its number is 0.
    Forwards = 9,
}

impl MetaKind {
    fn from_u8(kind: u8) -> Option<Self> {
        let found = match kind {
            1 => Self::Leaf,
            2 => Self::Page,
            3 => Self::PageList,
            4 => Self::Table,
            5 => Self::Dropped,
            6 => Self::Root,
            7 => Self::Snapshots,
            8 => Self::Retained,
            9 => Self::Forwards,
            _ => return None,
        };
        assert_eq!(found as u8, kind, "a kind has a single number");
        Some(found)
    }
}

/// A record: a statement about consecutive logical blocks or about the log itself, or metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A frame. The blocks' content follows the header and the sources.
    Data {
        /// First block.
        lba: Lba,
        /// Number of blocks, 1..=64.
        lba_count: u16,
        /// Sources after the header: 0 in a host write; positive in a moved frame.
        source_count: u8,
        /// Encoding of the payload: a number of `codec::Encoding`, which is not checked here.
        encoding: u8,
        /// Bytes of the payload.
        stored_bytes: u32,
        /// CRC-64/NVME of the payload as stored.
        payload_checksum: u64,
    },
    /// Every byte of the blocks is `byte`. Nothing is stored.
    Fill {
        /// First block.
        lba: Lba,
        /// Number of blocks, at least 1.
        lba_count: u64,
        /// The byte.
        byte: u8,
    },
    /// The blocks no longer hold data and read as zeroes.
    Trim {
        /// First block.
        lba: Lba,
        /// Number of blocks, at least 1.
        lba_count: u64,
    },
    /// A stream of the log continues in another segment.
    Open {
        /// The stream.
        stream: Stream,
        /// The segment.
        segment: SegmentId,
        /// The segment's generation from now on.
        generation: u64,
    },
    /// Metadata. The payload follows the header and is padded so that header and payload together
    /// are a multiple of 16 bytes.
    Meta {
        /// Its kind.
        kind: MetaKind,
        /// Its number within the kind.
        number: u64,
        /// Encoding of the payload, as for a frame.
        encoding: u8,
        /// Bytes of the payload as stored, padding included.
        stored_bytes: u32,
        /// CRC-64/NVME of the payload as stored.
        payload_checksum: u64,
    },
}

impl Record {
    /// Checks the rules for every record that a drive writes. Call this before
    /// [`Record::encode_into`], which also encodes other values, for tests of the decoders.
    ///
    /// # Panics
    /// If a rule is violated.
    #[inline]
    pub(crate) fn check_invariants(&self) {
        const BLOCKS_MAX: u64 = super::SIZE_BYTES_MAX / BLOCK_BYTES as u64;
        let (lba, blocks) = self.lba_range();
        assert!(
            lba.0 <= BLOCKS_MAX && blocks <= BLOCKS_MAX - lba.0,
            "the blocks of a record lie on the largest disk"
        );
        match *self {
            Record::Data { lba_count, source_count, encoding, stored_bytes, .. } => {
                assert!((1..=super::FRAME_BLOCKS_MAX).contains(&lba_count), "blocks of a frame");
                assert!(u16::from(source_count) <= lba_count, "a source covers a block or more");
                assert!(
                    stored_bytes <= stored_bytes_max(lba_count, encoding),
                    "a payload that encoding would lengthen is stored as it is"
                );
            }
            Record::Fill { .. } | Record::Trim { .. } => {
                assert!(blocks > 0, "a fill or a trim concerns a block or more");
            }
            Record::Open { segment, generation, .. } => {
                assert!(segment.0 < super::META_SEGMENTS_MAX, "an address names any segment");
                assert!(generation > 0, "a stream continues in an opened segment");
            }
            Record::Meta { stored_bytes, .. } => {
                assert!(
                    stored_bytes as usize >= META_PREFIX_BYTES,
                    "the lengths of a metadata payload precede it"
                );
                assert!(
                    self.record_bytes().is_multiple_of(META_ALIGNMENT),
                    "metadata ends where other metadata can begin"
                );
            }
        }
    }

    /// Returns the first block and the number of blocks. The number is 0 for records that do not
    /// concern blocks.
    pub fn lba_range(&self) -> (Lba, u64) {
        match *self {
            Record::Data { lba, lba_count, .. } => (lba, u64::from(lba_count)),
            Record::Fill { lba, lba_count, .. } | Record::Trim { lba, lba_count } => {
                (lba, lba_count)
            }
            Record::Open { .. } | Record::Meta { .. } => (Lba(0), 0),
        }
    }

    /// Returns the bytes of the header and the sources. The payload follows them.
    #[inline]
    pub fn header_bytes(&self) -> u32 {
        match *self {
            Record::Data { source_count, .. } => {
                HEADER_BYTES + u32::from(source_count) * SOURCE_LENGTH
            }
            _ => HEADER_BYTES,
        }
    }

    /// Returns the bytes of the payload.
    #[inline]
    pub fn stored_bytes(&self) -> u32 {
        match *self {
            Record::Data { stored_bytes, .. } | Record::Meta { stored_bytes, .. } => stored_bytes,
            Record::Fill { .. } | Record::Trim { .. } | Record::Open { .. } => 0,
        }
    }

    /// Returns the bytes of the whole record: header, sources and payload.
    #[inline]
    pub fn record_bytes(&self) -> u32 {
        let bytes = self.header_bytes().checked_add(self.stored_bytes());
        bytes.expect("a record is shorter than 4 GiB")
    }

    /// Returns the checksum of the payload, if the record has one.
    pub fn payload_checksum(&self) -> Option<u64> {
        match *self {
            Record::Data { payload_checksum, .. } | Record::Meta { payload_checksum, .. } => {
                Some(payload_checksum)
            }
            _ => None,
        }
    }

    /// Writes the header, for the location `address`, and the sources at the start of `target`.
    ///
    /// # Panics
    /// If `target` is shorter than [`Record::header_bytes`], or if the number of `sources` differs
    /// from the record's.
    #[inline]
    pub fn encode_into(&self, address: RecordAddress, sources: &[Source], target: &mut [u8]) {
        self.encode_with(address, sources, target, &PLAIN);
    }

    /// Like [`Record::encode_into`], on a drive with a cipher: if the cipher encrypts, header and
    /// sources are hidden, and a MAC replaces the checksum.
    ///
    /// # Panics
    /// See [`Record::encode_into`].
    #[inline]
    pub(crate) fn encode_with(
        &self,
        address: RecordAddress,
        sources: &[Source],
        target: &mut [u8],
        cipher: &Cipher,
    ) {
        let (number, blocks, source_count, kind, argument, tail) = match *self {
            Record::Data { lba, lba_count, source_count, encoding, payload_checksum, .. } => {
                let blocks = u8::try_from(lba_count).expect("a frame has at most 64 blocks");
                (lba.0, blocks, source_count, KIND_DATA, encoding, payload_checksum)
            }
            Record::Fill { lba, byte, lba_count } => (lba.0, 0, 0, KIND_FILL, byte, lba_count),
            Record::Trim { lba, lba_count } => (lba.0, 0, 0, KIND_TRIM, 0, lba_count),
            Record::Open { stream, segment, generation } => {
                (generation, 0, 0, KIND_OPEN, stream as u8, u64::from(segment.0))
            }
            Record::Meta { kind, number, encoding, payload_checksum, .. } => {
                (number, kind as u8, 0, KIND_META, encoding, payload_checksum)
            }
        };
        assert_eq!(sources.len(), usize::from(source_count), "sources of a record");
        assert!(target.len() >= self.header_bytes() as usize, "no room for a record header");
        let mut layout = Layout {
            header_checksum: 0.into(),
            stored_bytes: self.stored_bytes().into(),
            number: number.into(),
            blocks,
            source_count,
            kind,
            argument,
            tail: tail.into(),
        };
        let (header, rest) = target.split_at_mut(RECORD_HEADER_BYTES);
        for (source, bytes) in sources.iter().zip(rest.chunks_exact_mut(SOURCE_BYTES)) {
            bytes.copy_from_slice(source.layout().as_bytes());
        }
        let (sources, _) = rest.split_at_mut(sources.len() * SOURCE_BYTES);
        if cipher.is_plain() {
            layout.header_checksum = checksum(&layout, sources, address).into();
            header.copy_from_slice(layout.as_bytes());
        } else {
            header.copy_from_slice(layout.as_bytes());
            hide(header, sources, address, cipher);
        }
    }

    /// Decodes the record header at the start of `bytes`, which were read from `address`, and its
    /// sources.
    ///
    /// The block range is checked for overflow only. The caller checks whether it is within the
    /// disk and whether the payload is within the bytes read.
    ///
    /// # Errors
    /// `Corrupt`, with the location.
    #[inline]
    pub fn decode(bytes: &[u8], address: RecordAddress) -> Result<Self> {
        Self::decode_with(bytes, address, &PLAIN)
    }

    /// Like [`Record::decode`], on a drive with a cipher.
    ///
    /// # Errors
    /// See [`Record::decode`].
    #[inline]
    pub fn decode_with(bytes: &[u8], address: RecordAddress, cipher: &Cipher) -> Result<Self> {
        let decoded = if cipher.is_plain() {
            Self::decode_at(bytes, address)
        } else {
            Self::decode_hidden(bytes, address, cipher)
        };
        decoded
            .map_err(|error| error.in_segment(address.segment).at_offset(u64::from(address.offset)))
    }

    #[inline]
    fn decode_at(bytes: &[u8], address: RecordAddress) -> Result<Self> {
        const CORRUPT: ErrorKind = ErrorKind::Corrupt;
        let layout = Layout::read_from_prefix(bytes).ok();
        let (mut layout, rest) = layout.or_error(CORRUPT, "a record header is truncated")?;
        let sources = rest.get(..usize::from(layout.source_count) * SOURCE_BYTES);
        let sources = sources.or_error(CORRUPT, "the sources of a record are truncated")?;
        let expected = layout.header_checksum.get();
        layout.header_checksum = 0.into();
        if checksum(&layout, sources, address) != expected {
            return Err(Error::new(CORRUPT, "a record header's checksum is wrong"));
        }
        let record = Self::from_layout(&layout);
        let record = record
            .filter(|record| record.is_possible(&layout, sources))
            .or_error(CORRUPT, "a record's values are invalid")?;
        assert!(
            record.header_bytes() as usize <= bytes.len(),
            "a record is decoded with all of its sources"
        );
        Ok(record)
    }

    fn decode_hidden(bytes: &[u8], address: RecordAddress, cipher: &Cipher) -> Result<Self> {
        const CORRUPT: ErrorKind = ErrorKind::Corrupt;
        let split = bytes.split_first_chunk::<RECORD_HEADER_BYTES>();
        let (stored, rest) = split.or_error(CORRUPT, "a record header is truncated")?;
        let mut header = *stored;
        let (checksum, shown) = header.split_at_mut(CHECKSUM_BYTES);
        cipher.show(address.generation, address.bytes(), shown);
        checksum.fill(0);
        let layout = Layout::read_from_bytes(&header).ok();
        let layout = layout.or_error(CORRUPT, "a record header is truncated")?;
        let sources = rest.get(..usize::from(layout.source_count) * SOURCE_BYTES);
        let sources = sources.or_error(CORRUPT, "the sources of a record are truncated")?;
        let (expected, stored) = stored.split_at(CHECKSUM_BYTES);
        if mac(stored, sources, address, cipher)?.to_le_bytes() != *expected {
            return Err(Error::new(CORRUPT, "a record header is not authentic"));
        }
        let mut shown = [0; SOURCES_BYTES_MAX];
        let (shown, _) = shown.split_at_mut(sources.len());
        shown.copy_from_slice(sources);
        show_sources(shown, address, cipher);
        let record = Self::from_layout(&layout);
        record
            .filter(|record| record.is_possible(&layout, shown))
            .or_error(CORRUPT, "a record's values are invalid")
    }

    /// Returns the sources of this record, which was decoded from the start of `bytes` at
    /// `address`, on a drive with a cipher.
    pub(crate) fn sources_with(
        &self,
        bytes: &[u8],
        address: RecordAddress,
        cipher: &Cipher,
    ) -> Vec<Source> {
        let mut bytes = bytes.get(..self.header_bytes() as usize).unwrap_or_default().to_vec();
        let sources = bytes.get_mut(RECORD_HEADER_BYTES..).unwrap_or_default();
        show_sources(sources, address, cipher);
        self.sources(&bytes).collect()
    }

    /// Returns the sources of this record, which was decoded from the start of `bytes`, on an
    /// unencrypted drive.
    pub fn sources<'a>(&self, bytes: &'a [u8]) -> impl Iterator<Item = Source> + use<'a> {
        let sources = bytes.get(RECORD_HEADER_BYTES..self.header_bytes() as usize);
        let sources = sources.expect("the bytes from which a record was decoded hold its sources");
        let (layouts, rest) =
            <[SourceLayout]>::ref_from_prefix(sources).expect("sources need no alignment");
        assert!(rest.is_empty(), "whole sources precede a payload");
        layouts.iter().copied().map(Source::from)
    }

    fn from_layout(layout: &Layout) -> Option<Self> {
        let (lba, tail) = (Lba(layout.number.get()), layout.tail.get());
        let stored_bytes = layout.stored_bytes.get();
        Some(match (layout.kind, layout.argument) {
            (KIND_DATA, encoding) => Record::Data {
                lba,
                lba_count: u16::from(layout.blocks),
                source_count: layout.source_count,
                encoding,
                stored_bytes,
                payload_checksum: tail,
            },
            (KIND_FILL, byte) => Record::Fill { lba, lba_count: tail, byte },
            (KIND_TRIM, 0) => Record::Trim { lba, lba_count: tail },
            (KIND_OPEN, stream) => Record::Open {
                stream: Stream::from_u8(stream)?,
                segment: SegmentId(u32::try_from(tail).ok()?),
                generation: lba.0,
            },
            (KIND_META, encoding) => Record::Meta {
                kind: MetaKind::from_u8(layout.blocks)?,
                number: lba.0,
                encoding,
                stored_bytes,
                payload_checksum: tail,
            },
            _ => return None,
        })
    }

    fn is_possible(&self, layout: &Layout, sources: &[u8]) -> bool {
        let (lba, blocks) = self.lba_range();
        let stored_bytes = layout.stored_bytes.get();
        let bytes_fit = self.stored_bytes() == stored_bytes
            && stored_bytes as usize <= super::BATCH_BYTES_MAX
            && self.header_bytes() as usize == RECORD_HEADER_BYTES + sources.len();
        if !bytes_fit {
            return false;
        }
        let blocks_fit =
            lba.0.checked_add(blocks).is_some_and(|end| end <= u64::MAX / BLOCK_BYTES as u64);
        let kind_fits = match *self {
            Record::Data { lba_count, encoding, .. } => {
                let (mut moved, mut is_empty) = (0, false);
                for source in sources.as_chunks::<SOURCE_BYTES>().0 {
                    // The highest byte of the first word.
                    let [_, _, _, _, _, _, _, blocks, ..] = *source;
                    moved += u16::from(blocks);
                    is_empty |= blocks == 0;
                }
                // A payload that does not shrink is stored unencoded.
                (1..=super::FRAME_BLOCKS_MAX).contains(&lba_count)
                    && stored_bytes <= stored_bytes_max(lba_count, encoding)
                    && !is_empty
                    && (sources.is_empty() || moved == lba_count)
            }
            Record::Fill { .. } | Record::Trim { .. } => blocks > 0 && layout.blocks == 0,
            Record::Open { .. } => layout.blocks == 0,
            Record::Meta { .. } => self.record_bytes().is_multiple_of(META_ALIGNMENT),
        };
        blocks_fit && kind_fits
    }
}

impl Source {
    fn layout(&self) -> SourceLayout {
        assert!(self.birth.0 >> BIRTH_BITS == 0, "a birth has 56 bits");
        assert!(self.blocks > 0, "a source covers a block or more");
        SourceLayout {
            birth_blocks: (self.birth.0 | u64::from(self.blocks) << BIRTH_BITS).into(),
            segment: self.segment.0.into(),
            offset: self.offset.into(),
        }
    }
}

impl From<SourceLayout> for Source {
    fn from(layout: SourceLayout) -> Self {
        let word = layout.birth_blocks.get();
        Self {
            birth: SeqNo(word & ((1 << BIRTH_BITS) - 1)),
            blocks: (word >> BIRTH_BITS) as u8,
            segment: SegmentId(layout.segment.get()),
            offset: layout.offset.get(),
        }
    }
}

/// Checks a record's payload against its checksum.
///
/// # Errors
/// `Corrupt`, with the location.
#[inline]
pub fn check_payload(payload: &[u8], expected: u64, address: RecordAddress) -> Result<()> {
    if crc64(payload) == expected {
        return Ok(());
    }
    let error = Error::new(ErrorKind::Corrupt, "a record's payload has a wrong checksum");
    Err(error.in_segment(address.segment).at_offset(u64::from(address.offset)))
}

/// Returns the maximum bytes of the payload of a frame.
fn stored_bytes_max(lba_count: u16, encoding: u8) -> u32 {
    let seal_bytes = if encoding & SEALED == 0 { 0 } else { SEAL_LENGTH };
    u32::from(lba_count) * BLOCK_LENGTH + seal_bytes
}

/// Hides a header and its sources, and replaces the checksum with their MAC.
fn hide(header: &mut [u8], sources: &mut [u8], address: RecordAddress, cipher: &Cipher) {
    let (checksum, header) = header.split_at_mut(CHECKSUM_BYTES);
    cipher.hide(address.generation, address.bytes(), header);
    if !sources.is_empty() {
        cipher.hide(address.generation, address.after_header().bytes(), sources);
    }
    let mac = mac(header, sources, address, cipher).expect("a record has at most 64 sources");
    checksum.copy_from_slice(&mac.to_le_bytes());
}

fn show_sources(sources: &mut [u8], address: RecordAddress, cipher: &Cipher) {
    if !sources.is_empty() && !cipher.is_plain() {
        cipher.show(address.generation, address.after_header().bytes(), sources);
    }
}

/// Returns the MAC of a header, without its first field, and its sources, both hidden.
fn mac(header: &[u8], sources: &[u8], address: RecordAddress, cipher: &Cipher) -> Result<u32> {
    const PREFIX: usize = 16 + RECORD_HEADER_BYTES - CHECKSUM_BYTES;
    let mut bytes = [0; PREFIX + SOURCES_BYTES_MAX];
    let bytes = bytes.get_mut(..PREFIX + sources.len());
    let bytes = bytes.or_error(ErrorKind::Corrupt, "a record has too many sources")?;
    let (place, rest) = bytes.split_at_mut(16);
    place.copy_from_slice(&address.bytes());
    let (header_bytes, rest) = rest.split_at_mut(header.len());
    header_bytes.copy_from_slice(header);
    rest.copy_from_slice(sources);
    Ok(cipher.record_mac(address.generation, bytes))
}

fn checksum(layout: &Layout, sources: &[u8], address: RecordAddress) -> u32 {
    let mut bytes = [0; 16 + RECORD_HEADER_BYTES];
    let (place, rest) = bytes.split_at_mut(16);
    place.copy_from_slice(&address.bytes());
    rest.copy_from_slice(layout.as_bytes());
    if sources.is_empty() { crc32(&bytes) } else { crc32_pair(&bytes, sources) }
}

#[cfg(test)]
mod tests {
    //! Goal: every kind survives a round trip; every damaged bit and every wrong location is
    //! detected.
    use super::*;

    const PLACE: RecordAddress =
        RecordAddress { generation: 1 << 32 | 7, segment: SegmentId(3), offset: 4097 };

    const SOURCES: [Source; 2] = [
        Source { birth: SeqNo(9), blocks: 3, segment: SegmentId(5), offset: 77 },
        Source { birth: SeqNo((1 << 56) - 1), blocks: 5, segment: SegmentId(6), offset: 1 << 29 },
    ];

    fn data(lba_count: u16, source_count: u8) -> Record {
        Record::Data {
            lba: Lba(77),
            lba_count,
            source_count,
            encoding: 1,
            stored_bytes: 1234,
            payload_checksum: 0xdead_beef,
        }
    }

    fn meta(stored_bytes: u32) -> Record {
        let kind = MetaKind::Table;
        Record::Meta { kind, number: 8, encoding: 1, stored_bytes, payload_checksum: 9 }
    }

    fn samples() -> Vec<(Record, &'static [Source])> {
        let segment = SegmentId(u32::MAX - 2);
        vec![
            (data(8, 0), &[]),
            (data(8, 2), &SOURCES),
            (Record::Fill { lba: Lba(0), lba_count: 1 << 40, byte: 0xff }, &[]),
            (Record::Trim { lba: Lba(5), lba_count: 1 }, &[]),
            (Record::Open { stream: Stream::Moved, segment, generation: 1 << 40 }, &[]),
            (meta(36), &[]),
        ]
    }

    #[test]
    fn round_trip() {
        for (record, sources) in samples() {
            let mut bytes = [0; 64];
            record.encode_into(PLACE, sources, &mut bytes);
            assert_eq!(Record::decode(&bytes, PLACE).unwrap(), record);
            assert_eq!(record.sources(&bytes).collect::<Vec<_>>(), sources);
        }
    }

    #[test]
    fn every_flipped_bit_every_truncation_and_every_wrong_place_is_noticed() {
        for (record, sources) in samples() {
            let mut good = vec![0; record.header_bytes() as usize];
            record.encode_into(PLACE, sources, &mut good);
            for bit in 0..good.len() * 8 {
                let mut bytes = good.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(Record::decode(&bytes, PLACE).is_err(), "{record:?} bit {bit}");
            }
            for len in 0..good.len() {
                assert!(Record::decode(&good[..len], PLACE).is_err());
            }
            let wrong = [
                RecordAddress { generation: 1, ..PLACE },
                RecordAddress { segment: SegmentId(4), ..PLACE },
                RecordAddress { offset: 4098, ..PLACE },
            ];
            for address in wrong {
                assert!(Record::decode(&good, address).is_err(), "{address:?}");
            }
        }
    }

    #[test]
    fn impossible_values_are_refused_though_the_checksum_is_right() {
        let impossible: [(Record, &[Source]); 7] = [
            (Record::Trim { lba: Lba(5), lba_count: 0 }, &[]),
            (Record::Fill { lba: Lba(u64::MAX), lba_count: 2, byte: 1 }, &[]),
            (data(0, 0), &[]),
            (data(65, 0), &[]),
            (data(7, 2), &SOURCES),
            (data(9, 2), &SOURCES),
            (meta(35), &[]),
        ];
        for (record, sources) in impossible {
            let mut bytes = [0; 64];
            record.encode_into(PLACE, sources, &mut bytes);
            assert!(Record::decode(&bytes, PLACE).is_err(), "{record:?}");
        }
        type Change = (usize, fn(&mut Layout));
        const BATCH: u32 = 4 << 20;
        let changes: [Change; 10] = [
            (0, |layout| layout.stored_bytes = (8 * BLOCK_LENGTH + 1).into()),
            // The payload and its header together must be a multiple of 16 bytes.
            (5, |layout| layout.stored_bytes = (BATCH + 4).into()),
            (2, |layout| layout.stored_bytes = 1.into()),
            (2, |layout| layout.blocks = 1),
            (3, |layout| layout.blocks = 1),
            (3, |layout| layout.argument = 1),
            (3, |layout| layout.kind = 0),
            (3, |layout| layout.kind = 6),
            (4, |layout| layout.argument = 3),
            (5, |layout| layout.blocks = 10),
        ];
        for (index, (sample, change)) in changes.into_iter().enumerate() {
            let mut bytes = [0; RECORD_HEADER_BYTES];
            samples()[sample].0.encode_into(PLACE, &[], &mut bytes);
            let mut layout = Layout::read_from_bytes(&bytes).unwrap();
            change(&mut layout);
            layout.header_checksum = 0.into();
            layout.header_checksum = checksum(&layout, &[], PLACE).into();
            assert!(Record::decode(layout.as_bytes(), PLACE).is_err(), "change {index}");
        }
    }
}
