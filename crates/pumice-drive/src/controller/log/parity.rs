//! Parity of batches, which restores a page that is damaged or cannot be read, whatever its
//! content.
//!
//! ```text
//! | (segment header) | batch header, records, padding | parity |     n pages, then p pages
//!   page 0             page 1 ...           page n - 1   n ...
//! ```
//!
//! Parity page `g` is the XOR of all pages `i` of the append with `i = g (mod p)`, so it restores
//! any run of up to `p` pages: damage to several pages is most likely to affect neighbours. Parity
//! also covers the headers, without which neither the log nor a segment could be followed. No
//! checksum covers parity: restored pages are verified by their own checksums.
//!
//! **Cost.** A full batch of metadata has four such pages, 1.5 %: less than the share that makes a
//! segment worth collecting. Parity after each record would need 4 KiB for each leaf, which
//! compresses to about that size, and could not restore the headers. A batch of data with 16 pages
//! or more has one such page, 0.4 to 6 %; a shorter one has none, since a page for each small flush
//! would be expensive.

use std::ops::Range;

use super::window::Window;
use super::{FIRST_BATCH_OFFSET, UNIT, batch_bytes, closing_bytes};
use crate::base::units::len_u32;
use crate::base::{AlignedBuffer, Error, Result, SegmentId};
use crate::crypt::Cipher;
use crate::format::{
    BATCH_ALIGNMENT, BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BatchHeader, PARITY_PAGES_MAX,
    RecordAddress, Stream,
};
use crate::media::AnyMedium;

const PAGE: usize = BATCH_ALIGNMENT;

/// Bytes per read when searching for the header of a batch.
const SEARCH_BYTES: u32 = 64 << 10;

/// Minimum number of pages of a data append with parity: one more page costs 6 % there.
const DATA_PAGES_MIN: usize = 16;

/// Returns the number of parity pages of an append with this many other pages. The number grows
/// slowly: the record that closes a segment may add a page to both.
pub(super) fn parity_pages(stream: Stream, pages: usize) -> usize {
    let parity = match (stream, pages) {
        (Stream::Host | Stream::Moved, pages) => usize::from(pages >= DATA_PAGES_MIN),
        (Stream::Meta, 0..=1) => 1,
        (Stream::Meta, 2..=64) => 2,
        (Stream::Meta, 65..=128) => 3,
        (Stream::Meta, _) => 4,
    };
    assert!(parity <= usize::from(PARITY_PAGES_MAX), "a batch has a few pages of parity");
    parity
}

/// Returns the bytes, of the `room` for an append, that remain in addition to its parity. The
/// record that closes a segment fits into the bytes reserved for it, even if parity begins or grows
/// there.
pub(super) fn room_beside_parity(stream: Stream, room: usize) -> usize {
    let room_pages = room / PAGE;
    let closing_pages = closing_bytes(stream) as usize / PAGE;
    let fits = |pages: usize| {
        let closed = pages + 1;
        pages + parity_pages(stream, pages) <= room_pages
            && closed + parity_pages(stream, closed) <= room_pages + closing_pages
    };
    let mut pages = room_pages;
    while pages > 0 && !fits(pages) {
        pages -= 1;
    }
    pages * PAGE
}

/// Computes the last `parity` pages of an append from all others.
pub(crate) fn fill_parity(append: &mut [u8], parity: usize) {
    assert!(append.len().is_multiple_of(PAGE), "an append is whole pages");
    let pages = append.len().checked_sub(parity * PAGE);
    let (data, target) = append.split_at_mut(pages.expect("parity lies within its append"));
    target.fill(0);
    for (index, page) in data.chunks(PAGE).enumerate() {
        add(page_mut(target, index % parity), page);
    }
}

/// Adds one page to another, in the arithmetic of parity.
fn add(target: &mut [u8], page: &[u8]) {
    for (target, byte) in target.iter_mut().zip(page) {
        *target ^= byte;
    }
}

fn page_mut(bytes: &mut [u8], index: usize) -> &mut [u8] {
    let page = bytes.get_mut(index * PAGE..(index + 1) * PAGE);
    page.expect("a page lies in its append")
}

/// Returns whether the parity of an append matches all its other pages: the pages of a batch and,
/// before the first batch of a segment, the segment header.
pub(crate) fn is_parity_right(segment_header: &[u8], batch: &[u8], parity: usize) -> bool {
    let len = segment_header.len() + batch.len();
    let pages = segment_header.chunks(PAGE).chain(batch.chunks(PAGE));
    parity == 0 || damaged_groups(pages, len, parity).iter().all(Option::is_none)
}

/// Returns, for each parity page of an append of `len` bytes that does not match its pages, the
/// difference.
fn damaged_groups<'a>(
    append: impl Iterator<Item = &'a [u8]>,
    len: usize,
    parity: usize,
) -> Vec<Option<Vec<u8>>> {
    let pages = (len / PAGE).checked_sub(parity).expect("parity lies within its append");
    let mut sums = vec![vec![0; PAGE]; parity];
    for (index, page) in append.enumerate() {
        let group = if index < pages { index % parity } else { index - pages };
        add(sums.get_mut(group).expect("a page has a group"), page);
    }
    sums.into_iter().map(|sum| sum.iter().any(|&byte| byte != 0).then_some(sum)).collect()
}

/// One append to a segment that was read, with its parity.
pub(crate) struct Append {
    /// Offset in its segment at which it begins.
    from: u32,
    /// Offset at which its batch begins.
    batch: u32,
    /// Number of parity pages.
    parity: usize,
    bytes: Vec<u8>,
    /// The pages that were restored.
    restored: Range<usize>,
}

impl Append {
    /// Reads the append whose batch begins at `batch` of a segment, in a given generation of the
    /// segment or, if that is unknown, in any, and restores its header if necessary. Returns `None`
    /// if there is no append, or none with parity.
    pub(crate) async fn read(
        window: &mut Window<'_>,
        segment: SegmentId,
        generation: Option<u64>,
        batch: u32,
        is_right: &dyn Fn(&BatchHeader) -> bool,
    ) -> Option<Self> {
        let from = if batch == FIRST_BATCH_OFFSET { 0 } else { batch };
        let at = (batch - from) as usize;
        let left = window.segment_bytes().checked_sub(from)? / UNIT * UNIT;
        let longest = left.min(len_u32(BATCH_BYTES_MAX) + FIRST_BATCH_OFFSET);
        let is_here = |header: &BatchHeader| {
            header.segment == segment
                && header.offset == batch
                && generation.is_none_or(|generation| header.generation == generation)
        };
        let belongs = |header: &BatchHeader| {
            let end = at as u64 + header.batch_bytes();
            let is_append = header.parity_pages > 0 && end <= u64::from(longest);
            is_here(header) && is_append && is_right(header)
        };
        let cipher = window.medium().cipher();
        let head = window.read(segment, batch, UNIT).await;
        let header = match decode_header(head, cipher) {
            Some(header) if belongs(&header) => header,
            // An intact batch without parity was not damaged.
            Some(header) if is_here(&header) => return None,
            _ => {
                let bytes = window.read(segment, from, longest).await;
                restored_header(bytes, at / PAGE, &belongs, cipher)?
            }
        };
        let append_bytes = batch - from + batch_bytes(&header);
        let bytes = window.read(segment, from, append_bytes).await.to_vec();
        let parity = usize::from(header.parity_pages);
        Some(Self { from, batch, parity, bytes, restored: 0..0 })
    }

    /// Returns whether the parity matches all other pages.
    pub(crate) fn is_parity_right(&self) -> bool {
        is_parity_right(&[], &self.bytes, self.parity)
    }

    /// Returns the bytes of a part of the segment, if they are a part of this append.
    pub(crate) fn part(&self, offset: u32, len: u32) -> Option<&[u8]> {
        let at = offset.checked_sub(self.from)? as usize;
        self.bytes.get(at..)?.get(..len as usize)
    }

    /// Returns the offset in its segment at which it begins, and all its bytes.
    pub(crate) fn all(&self) -> (u32, &[u8]) {
        (self.from, &self.bytes)
    }

    /// Returns the pages that were restored, with their offset in the segment.
    pub(crate) fn restored(&self) -> (u32, &[u8]) {
        let Range { start, end } = self.restored;
        let pages = self.bytes.get(start * PAGE..end * PAGE).unwrap_or_default();
        (self.from + len_u32(start * PAGE), pages)
    }

    /// Returns the bytes of the batch, and nothing else.
    pub(crate) fn into_batch(mut self) -> Vec<u8> {
        self.bytes.split_off((self.batch - self.from) as usize)
    }

    /// Returns the bytes of the batch.
    pub(crate) fn batch(&self) -> &[u8] {
        self.bytes.get((self.batch - self.from) as usize..).unwrap_or_default()
    }

    /// Returns the bytes before the batch: a segment header, or nothing.
    pub(crate) fn segment_header(&self) -> &[u8] {
        self.bytes.get(..(self.batch - self.from) as usize).unwrap_or_default()
    }

    /// Restores a run of pages so that `is_right` accepts them; the run is within the pages that
    /// overlap `wanted`, a range of bytes in the segment. Returns whether that was possible; if
    /// not, nothing has changed.
    pub(crate) fn restore(
        &mut self,
        wanted: Range<u32>,
        is_right: &mut dyn FnMut(&Self) -> bool,
    ) -> bool {
        if is_right(self) {
            return true;
        }
        let pages = self.bytes.len() / PAGE - self.parity;
        let groups = damaged_groups(self.bytes.chunks(PAGE), self.bytes.len(), self.parity);
        let first = wanted.start.saturating_sub(self.from) as usize / PAGE;
        let end = (wanted.end.saturating_sub(self.from) as usize).div_ceil(PAGE).min(pages);
        for len in (1..=self.parity).rev() {
            for start in first..(end + 1).saturating_sub(len) {
                let run = start..start + len;
                let is_damaged =
                    |page: usize| groups.get(page % self.parity).is_some_and(Option::is_some);
                if !is_damaged(start) || !is_damaged(start + len - 1) {
                    continue;
                }
                self.apply(run.clone(), &groups);
                if is_right(self) {
                    self.restored = run;
                    return true;
                }
                self.apply(run, &groups);
            }
        }
        false
    }

    /// Adds to each page of a run the difference of its group. A second call reverts the first.
    fn apply(&mut self, run: Range<usize>, groups: &[Option<Vec<u8>>]) {
        for page in run {
            if let Some(Some(sum)) = groups.get(page % self.parity) {
                add(page_mut(&mut self.bytes, page), sum);
            }
        }
    }
}

fn decode_header(bytes: &[u8], cipher: &Cipher) -> Option<BatchHeader> {
    BatchHeader::decode_with(bytes, cipher).ok().map(|(header, _)| header)
}

/// Returns the header of an append whose header is page `at`, restored from its parity. Only the
/// header states the length of the append: the correct length is the one that yields an intact
/// header.
fn restored_header(
    bytes: &[u8],
    at: usize,
    is_right: &dyn Fn(&BatchHeader) -> bool,
    cipher: &Cipher,
) -> Option<BatchHeader> {
    let head = |page: usize| bytes.get(page * PAGE..page * PAGE + BATCH_HEADER_BYTES);
    for parity in 1..=usize::from(PARITY_PAGES_MAX) {
        let group = at % parity;
        let mut sum = [0; BATCH_HEADER_BYTES];
        for page in (0..at).filter(|page| page % parity == group) {
            add(&mut sum, head(page)?);
        }
        for pages in at + 1.. {
            let Some(last) = head(pages + group) else { break };
            let mut candidate = sum;
            add(&mut candidate, last);
            let ends_here = |header: &BatchHeader| {
                usize::from(header.parity_pages) == parity
                    && batch_bytes(header) as usize == (pages + parity - at) * PAGE
            };
            let header = decode_header(&candidate, cipher).filter(ends_here).filter(is_right);
            if header.is_some() {
                return header;
            }
            if pages % parity == group {
                add(&mut sum, head(pages)?);
            }
        }
    }
    None
}

/// Returns the start of the batch to which a record at `place` belongs, or would belong if the
/// batch's header were intact: the end of the previous batch. Searches backwards in small steps:
/// most batches are short, and reading next to a bad sector is slow. Also returns the reason why
/// the search may have missed a header.
pub(crate) async fn batch_of(
    window: &mut Window<'_>,
    place: RecordAddress,
) -> (u32, Option<Error>) {
    let last = place.offset / UNIT * UNIT;
    let lowest = last.saturating_sub(len_u32(BATCH_BYTES_MAX)).max(FIRST_BATCH_OFFSET);
    let mut end = last.saturating_add(UNIT);
    let mut unreadable = None;
    let cipher = window.medium().cipher();
    while end > lowest {
        let from = end.saturating_sub(SEARCH_BYTES).max(lowest);
        let bytes = window.read(place.segment, from, end - from).await;
        let headers = (from..).step_by(PAGE).zip(bytes.chunks(PAGE)).filter_map(|(at, page)| {
            let is_here = |header: &BatchHeader| {
                header.segment == place.segment
                    && header.offset == at
                    && header.generation == place.generation
            };
            Some((at, decode_header(page, cipher).filter(is_here)?))
        });
        let found = headers.last();
        unreadable = window.take_error().or(unreadable);
        if let Some((at, header)) = found {
            let end = at.saturating_add(batch_bytes(&header));
            return (if end > place.offset { at } else { end }, unreadable);
        }
        end = from;
    }
    (lowest, unreadable)
}

/// Restores a record from another copy or the parity of its batch, or reads it again; `is_right`
/// returns whether bytes are the wanted ones. Returns whether that was possible.
///
/// # Errors
/// `Medium` if it was not possible, and a part of the batch cannot be read.
pub(crate) async fn restore_record(
    medium: &dyn AnyMedium,
    segment_bytes: u32,
    place: RecordAddress,
    record_bytes: u32,
    is_right: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<bool> {
    let end = place.offset.checked_add(record_bytes).filter(|&end| end <= segment_bytes);
    let Some(end) = end else { return Ok(false) };
    if read_copies(medium, place.segment, place.offset..end, is_right).await {
        return Ok(true);
    }
    let mut window = Window::new(medium, segment_bytes);
    // The data after the range is not needed.
    window.read_again(Some(usize::MAX));
    let (batch, before) = batch_of(&mut window, place).await;
    let generation = Some(place.generation);
    let append = Append::read(&mut window, place.segment, generation, batch, &|_| true).await;
    // Errors before a batch that was found are irrelevant.
    let unreadable = window.take_error().or(if append.is_some() { None } else { before });
    let is_restored = append.is_some_and(|mut append| {
        append.restore(place.offset..end, &mut |append| {
            append.part(place.offset, record_bytes).is_some_and(&mut *is_right)
        })
    });
    match unreadable {
        Some(error) if !is_restored => Err(error),
        _ => Ok(is_restored),
    }
}

/// Reads a range of the segment from each copy, if the medium has several, until `is_right` accepts
/// the bytes. Returns whether it accepted any.
async fn read_copies(
    medium: &dyn AnyMedium,
    segment: SegmentId,
    range: Range<u32>,
    is_right: &mut dyn FnMut(&[u8]) -> bool,
) -> bool {
    let Some(array) = medium.as_array() else { return false };
    let copies = array.copies();
    if copies.len() == 1 {
        return false;
    }
    let unit = medium.capabilities().read_unit;
    let start = range.start / unit * unit;
    let bytes = (range.end.next_multiple_of(unit) - start) as usize;
    let wanted = (range.start - start) as usize..(range.end - start) as usize;
    let mut buffer = AlignedBuffer::zeroed(bytes);
    for copy in copies {
        let (back, result) = array.read_copy(copy, segment, start, buffer).await;
        if result.is_ok() && back.get(wanted.clone()).is_some_and(&mut *is_right) {
            return true;
        }
        buffer = back;
    }
    false
}
