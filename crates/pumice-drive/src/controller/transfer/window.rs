//! The differences between two snapshots, with their frames, read ahead.
//!
//! ```text
//! differences, in the order of the disk -> parts, up to the size of a window
//!   -> frames read in the order of the medium, adjacent ones together; checked, or restored
//!   -> windows, in the order of the disk
//! ```
//!
//! Frames of a clone's origin are read from the origin's log and otherwise treated the same,
//! because a frame is stored under the numbers of its blocks, whichever drive wrote it.
//!
//! Several windows are read while one is sent, so that the medium is busy while the caller encodes
//! and writes. Reading continues as long as the stream is polled; reads already passed to the
//! medium complete in any case.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;

use futures_util::stream::{Peekable, Stream, StreamExt, iter, unfold};

use super::super::drive::Drive;
use super::super::log::buffers::COALESCED_BYTES_MAX;
use super::super::log::payload::Stored;
use super::super::map::Mapping;
use super::super::operations::{Difference, Differences, READS_AT_ONCE, group_len};
use super::super::place::FramePlace;
use crate::base::checksum::crc64;
use crate::base::units::len_u32;
use crate::base::{Error, ErrorKind, Lba, Result};
use crate::codec::Encoding;
use crate::crypt::Cipher;
use crate::format::{Record, RecordAddress, SEALED, check_payload};

/// Bytes of records that are read together: a few of the longest media reads, so that most frames
/// that were written together are also read together.
const WINDOW_BYTES: usize = 4 << 20;

/// Maximum number of parts of a window.
const PARTS_MAX: usize = 4096;

/// Windows being read or complete, in addition to the one being sent: the medium has work when one
/// of them is complete. With that one and the one being examined, five windows occupy 20 MiB and a
/// frame each.
const WINDOWS_AHEAD: usize = 3;

/// Buffers of windows, for reuse by later windows.
pub(super) type Spare = Rc<RefCell<Vec<Vec<u8>>>>;

/// The windows of a transfer. After an error there are none.
pub(super) type Windows<'a> = Peekable<Pin<Box<dyn Stream<Item = Result<Window>> + 'a>>>;

/// Parts that are read together.
#[derive(Default)]
pub(super) struct Window {
    pub(super) parts: VecDeque<Part>,
    /// The records of frames, as they are stored.
    pub(super) bytes: Vec<u8>,
}

/// Blocks of one frame or of one content.
pub(super) struct Part {
    pub(super) lba: Lba,
    pub(super) blocks: u64,
    pub(super) mapping: Mapping,
    generation: u64,
    /// Depth of the drive whose log contains the frame: 0 for the drive itself, 1 for its origin,
    /// and so on.
    depth: u32,
    /// Offset of its record in the bytes of the window.
    pub(super) at: usize,
    /// The record of its frame in the form that a host write produces, or the error of reading it.
    pub(super) record: Option<Result<Record>>,
}

impl Part {
    fn of(Difference { lba, blocks, mapping, generation, depth }: Difference) -> Self {
        Self { lba, blocks, mapping, generation, depth, at: 0, record: None }
    }

    fn place(&self) -> Option<&FramePlace> {
        match &self.mapping {
            Mapping::Frame { place, .. } => Some(place),
            Mapping::Hole | Mapping::Fill(_) => None,
        }
    }

    /// Adds the next difference, if it continues this part.
    fn extend(&mut self, next: &Difference) -> bool {
        let is_next = self.lba.0 + self.blocks == next.lba.0
            && (self.generation, self.depth) == (next.generation, next.depth);
        let is_more = match (self.mapping, next.mapping) {
            (Mapping::Frame { place, index }, Mapping::Frame { place: of_next, index: next }) => {
                place == of_next && u64::from(index) + self.blocks == u64::from(next)
            }
            (one, other) => one == other,
        };
        if is_next && is_more {
            self.blocks += next.blocks;
        }
        is_next && is_more
    }
}

/// Reads all windows of the differences, in order; used buffers are returned in `spare`.
pub(super) fn windows<'a>(
    drive: &'a Drive,
    differences: Differences<'a>,
    spare: Spare,
) -> Windows<'a> {
    let collected = unfold(Some(differences), async |left| {
        let mut differences = left?;
        match Window::collect(&mut differences).await {
            Ok(window) if window.parts.is_empty() => None,
            Ok(window) => Some((Ok(window), Some(differences))),
            Err(error) => Some((Err(error), None)),
        }
    });
    let read = collected.map(move |window| {
        let spare = spare.clone();
        async move {
            let mut window = window?;
            window.bytes = spare.borrow_mut().pop().unwrap_or_default();
            window.read(drive).await;
            Ok(window)
        }
    });
    let ahead: Pin<Box<dyn Stream<Item = Result<Window>> + 'a>> =
        Box::pin(read.buffered(WINDOWS_AHEAD));
    ahead.peekable()
}

impl Window {
    /// Collects parts.
    async fn collect(differences: &mut Differences<'_>) -> Result<Self> {
        let mut parts = VecDeque::<Part>::new();
        let mut stored_bytes = 0;
        while stored_bytes < WINDOW_BYTES && parts.len() < PARTS_MAX {
            let Some(next) = differences.next().await? else { break };
            if parts.back_mut().is_some_and(|last| last.extend(&next)) {
                continue;
            }
            let part = Part::of(next);
            stored_bytes += part.place().map_or(0, |place| place.record_bytes as usize);
            parts.push_back(part);
        }
        assert!(parts.len() <= PARTS_MAX, "a window has few parts");
        Ok(Self { parts, bytes: Vec::new() })
    }

    /// Reads the records of the parts, and checks them.
    async fn read(&mut self, drive: &Drive) {
        let Self { parts, bytes } = self;
        let mut order: Vec<(FramePlace, &mut Part)> = parts
            .iter_mut()
            .filter_map(|part| part.place().copied().map(|place| (place, part)))
            .collect();
        order.sort_by_key(|(place, part)| (part.depth, place.segment, place.offset));
        let mut end = 0;
        for (place, part) in &mut order {
            part.at = end;
            end += place.record_bytes as usize;
        }
        // A part that cannot be read retains its old bytes, which are not a record of this place.
        bytes.resize(end, 0);
        let places: Vec<FramePlace> = order.iter().map(|(place, _)| *place).collect();
        let (mut places_left, mut rest) = (places.as_slice(), bytes.as_mut_slice());
        let mut groups = Vec::new();
        for of_one_log in order.chunk_by(|(_, one), (_, next)| one.depth == next.depth) {
            let (mut left, later) = places_left.split_at(of_one_log.len());
            places_left = later;
            let log = of_one_log.first().map_or(drive, |(_, part)| drive.origin_at(part.depth));
            while !left.is_empty() {
                let (group, later) = left.split_at(group_len(left.iter(), COALESCED_BYTES_MAX));
                let group_bytes = group.iter().map(|place| place.record_bytes as usize).sum();
                let (here, there) = rest.split_at_mut(group_bytes);
                groups.push(log.read_records(group, here));
                (left, rest) = (later, there);
            }
        }
        assert!(places_left.is_empty() && rest.is_empty(), "each record has its place");
        iter(groups).buffer_unordered(READS_AT_ONCE).collect::<()>().await;
        let mut rest = bytes.as_mut_slice();
        for (place, part) in order {
            let (stored, there) = rest.split_at_mut(place.record_bytes as usize);
            let log = drive.origin_at(part.depth);
            part.record = Some(log.checked(part, place, stored).await);
            rest = there;
        }
        assert!(rest.is_empty(), "a window has the bytes of its records");
    }
}

impl Drive {
    /// Returns the record of a part, whose bytes are `stored`. Damaged bytes are restored in place
    /// from the parity of the batch.
    ///
    /// # Errors
    /// `Corrupt` if they cannot be restored.
    async fn checked(&self, part: &Part, place: FramePlace, stored: &mut [u8]) -> Result<Record> {
        let Part { lba, mapping, generation, .. } = *part;
        let Mapping::Frame { index, .. } = mapping else { unreachable!("only frames have places") };
        let first = Lba(lba.0.wrapping_sub(index.into()));
        let address = RecordAddress { generation, segment: place.segment, offset: place.offset };
        let cipher = self.medium.cipher();
        let checked = check(stored, address, first, place, cipher);
        let error = match checked.and_then(|record| in_the_clear(record, stored, address, cipher)) {
            Ok(record) => return Ok(record),
            Err(error) => error.at_lba(lba),
        };
        let mut restored = None;
        let mut is_right = |record: &[u8]| {
            if let Ok(found) = check(record, address, first, place, cipher) {
                stored.copy_from_slice(record);
                restored = in_the_clear(found, stored, address, cipher).ok();
            }
            restored.is_some()
        };
        let done = self.restore_record(address, place.record_bytes, &mut is_right).await;
        restored.filter(|_| matches!(done, Ok(true))).ok_or(error)
    }

    /// Reads the records at places that are close together in one segment, one after the other,
    /// into `out`. Records that cannot be read leave their part of `out` unchanged.
    async fn read_records(&self, places: &[FramePlace], out: &mut [u8]) {
        if self.read_records_at_once(places, out).await.is_err() && places.len() > 1 {
            let mut rest = out;
            for place in places {
                let (here, there) = rest.split_at_mut(place.record_bytes as usize);
                let _ = self.read_records_at_once(std::slice::from_ref(place), here).await;
                rest = there;
            }
        }
    }

    async fn read_records_at_once(&self, places: &[FramePlace], out: &mut [u8]) -> Result<()> {
        let (first, last) = places.first().zip(places.last()).expect("a group has a record");
        let range = first.offset..last.offset + last.record_bytes;
        let copy = |bytes: &[u8]| {
            let mut rest = out;
            for place in places {
                let at = (place.offset - first.offset) as usize;
                let record = bytes.get(at..at + place.record_bytes as usize);
                let (here, there) = rest.split_at_mut(place.record_bytes as usize);
                here.copy_from_slice(record.expect("a read covers its records"));
                rest = there;
            }
        };
        self.buffers.read(&*self.medium, first.segment, range, copy).await
    }
}

/// Decrypts the payload of a record, which ends where `stored` ends, in place. Returns its record
/// in the form that a host write produces.
///
/// # Errors
/// `Corrupt` if the payload is not the one that was sealed.
fn in_the_clear(
    record: Record,
    stored: &mut [u8],
    address: RecordAddress,
    cipher: &Cipher,
) -> Result<Record> {
    let Record::Data { lba, lba_count, encoding, stored_bytes, .. } = record else {
        return Ok(record);
    };
    if cipher.is_plain() {
        return Ok(record);
    }
    let (_, payload) = stored.split_at(stored.len() - stored_bytes as usize);
    let clear = Stored::of_frame(&record, payload, address.generation, cipher)?.open(cipher)?;
    let (_, target) = stored.split_at_mut(stored.len() - clear.len());
    target.copy_from_slice(&clear);
    Ok(Record::Data {
        lba,
        lba_count,
        source_count: 0,
        encoding: encoding & !SEALED,
        stored_bytes: len_u32(clear.len()),
        payload_checksum: crc64(&clear),
    })
}

/// Returns the frame that `stored` must contain, in the form that a host write produces, though
/// encrypted if the drive is encrypted.
///
/// # Errors
/// `Corrupt` if it contains anything else.
fn check(
    stored: &[u8],
    address: RecordAddress,
    first: Lba,
    place: FramePlace,
    cipher: &Cipher,
) -> Result<Record> {
    let wrong = |what| Error::new(ErrorKind::Corrupt, what).in_segment(address.segment);
    let record = Record::decode_with(stored, address, cipher)?;
    let Record::Data { lba, lba_count, encoding, stored_bytes, payload_checksum, .. } = record
    else {
        return Err(wrong("the map names a record that is not a frame"));
    };
    if (lba, lba_count) != (first, place.blocks.into())
        || record.record_bytes() != place.record_bytes
    {
        return Err(wrong("a frame is not the one that the map names"));
    }
    let (_, payload) = stored.split_at(record.header_bytes() as usize);
    check_payload(payload, payload_checksum, address)?;
    match Encoding::from_u8(encoding & !SEALED) {
        None => Err(wrong("a frame has an unknown encoding")),
        Some(Encoding::Lost) => {
            Err(wrong("the content is lost: it was damaged before the frame was moved"))
        }
        Some(_) => {
            let source_count = 0;
            Ok(Record::Data {
                lba,
                lba_count,
                source_count,
                encoding,
                stored_bytes,
                payload_checksum,
            })
        }
    }
}
