//! The objects of a drive in a bucket: their names, and the format of all but chunks, which are raw
//! parts of segments. The reference is `docs/objects.md`.
//!
//! ```text
//! drive                                    identity, segment size
//! claims/<epoch>                           the writer; one for each opening, never deleted
//! commits/<epoch>/<number>                 an image: superblocks, and the chunks of each segment
//! s/<segment>/<use>/<offset>-<bytes>-<epoch>      a chunk: bytes of a segment as they are
//! ```
//!
//! Decoders accept untrusted bytes: they never panic and allocate no more than the input justifies.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use crate::base::checksum::crc64;
use crate::base::units::len_u32;
use crate::base::{AlignedBuffer, ErrorContext, ErrorKind, Result, ensure};
use crate::media::{SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};

const DRIVE_MAGIC: [u8; 8] = *b"PUMICEBK";
const CLAIM_MAGIC: [u8; 8] = *b"PUMICECL";
const COMMIT_MAGIC: [u8; 8] = *b"PUMICECM";
const JOURNAL_MAGIC: [u8; 8] = *b"PUMICEJL";
const SLOT_MAGIC: [u8; 8] = *b"PUMICESL";

const VERSION: u32 = 1;

/// Offset of the checksum in every structure.
const CHECKSUM_AT: usize = 16;

/// Longest name of a host in a claim.
pub(super) const HOST_BYTES_MAX: usize = 64;

/// Nonces of claims that a journal remembers. Far more than the number of consecutive openings that
/// fail, and few enough for a page.
pub(super) const NONCES_MAX: usize = 64;

/// Longest location of a bucket, in bytes.
pub(super) const PLACE_BYTES_MAX: usize = 1024;

/// Highest epoch and highest commit number. No drive reaches them, and sums of them are far from an
/// overflow.
pub(super) const EPOCH_MAX: u32 = 1 << 30;
pub(super) const NUMBER_MAX: u64 = 1 << 48;

pub(super) const SLOT_HEADER_BYTES: u32 = 4096;

/// Maximum number of slots of a journal: 2^54 bytes of the largest segments.
const SLOTS_MAX: u32 = 1 << 24;

/// Longest lag: a day.
const LAG_NS_MAX: u64 = 86_400_000_000_000;

/// Number of chunks that marks an empty segment.
const REMOVED: u32 = u32::MAX;

/// A range of bytes of a segment that is an object of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Its offset in the segment.
    pub(super) offset: u32,
    pub(super) bytes: u32,
    /// The writer that uploaded it.
    pub(super) epoch: u32,
    /// CRC-64/NVME of the bytes.
    pub(super) checksum: u64,
}

impl Chunk {
    pub(super) fn end(&self) -> u32 {
        self.offset + self.bytes
    }

    pub(super) fn name(&self, segment: u32, use_id: u64) -> String {
        let Self { offset, bytes, epoch, .. } = self;
        format!("s/{segment:08x}/{use_id:016x}/{offset:08x}-{bytes:08x}-{epoch:08x}")
    }
}

/// A segment in the bucket: the number of its use, and its chunks in ascending order, without
/// overlaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) use_id: u64,
    pub(super) chunks: Vec<Chunk>,
}

/// The content of the bucket, by segment.
pub(super) type Index = BTreeMap<u32, Entry>;

impl Entry {
    /// Bytes of its chunks.
    pub(super) fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum()
    }
}

/// The identity of a drive in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DriveObject {
    pub(super) uuid: Uuid,
    pub(super) segment_bytes: u32,
}

/// The writer of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) uuid: Uuid,
    pub(super) epoch: u32,
    /// Drawn for this opening.
    pub(super) nonce: Uuid,
    /// Name of the host, for messages only.
    pub(super) host: String,
}

/// The number of a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CommitId {
    pub(super) epoch: u32,
    /// From 1 in each epoch.
    pub(super) number: u64,
}

/// An image of the medium, or its difference from an earlier image of the same epoch.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    pub(super) uuid: Uuid,
    pub(super) id: CommitId,
    /// The commit that this one follows; 0, 0 for the first of a drive.
    pub(super) after: CommitId,
    /// Number of the commit of this epoch to which `changes` are relative; 0 if they are relative
    /// to an empty medium.
    pub(super) base: u64,
    pub(super) superblocks: [Option<Arc<AlignedBuffer>>; SUPERBLOCK_SLOTS as usize],
    /// Segments that differ; `None` for empty ones.
    pub(super) changes: BTreeMap<u32, Option<Entry>>,
}

/// The state of a journal: its place in the history of the drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Journal {
    pub(super) uuid: Uuid,
    /// Number of times that the state was written. The copy with the higher number counts.
    pub(super) revision: u64,
    pub(super) segment_bytes: u32,
    pub(super) slots: u32,
    /// The claim with which this journal began. The journal never had the content of commits of
    /// earlier epochs.
    pub(super) first_epoch: u32,
    /// The highest commit that may have been written from this journal.
    pub(super) intent: CommitId,
    /// The lag in nanoseconds and in bytes, and whether a sync waits for the bucket.
    pub(super) lag_ns: u64,
    pub(super) lag_bytes_max: u64,
    pub(super) is_durable_in_bucket: bool,
    /// The location of the bucket, for the program that opens the journal.
    pub(super) place: String,
    /// Nonces of the claims that were tried from this journal, the newest last.
    pub(super) nonces: Vec<Uuid>,
}

/// The first page of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotHeader {
    pub(super) uuid: Uuid,
    pub(super) segment: u32,
    pub(super) use_id: u64,
}

/// Returns the epoch in the name of a chunk or a commit; `None` for other names.
pub(super) fn epoch_of(name: &str) -> Option<u32> {
    let (kind, numbers) = name.split_once('/')?;
    let numbers: Vec<&str> = numbers.split(['/', '-']).collect();
    let lengths: Vec<usize> = numbers.iter().map(|number| number.len()).collect();
    let epoch = match (kind, &lengths[..]) {
        ("s", [8, 16, 8, 8, 8]) => numbers.last(),
        ("commits", [8, 16]) => numbers.first(),
        _ => None,
    };
    let is_hexadecimal = |part: &&str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    u32::from_str_radix(epoch.filter(|_| numbers.iter().all(is_hexadecimal))?, 16).ok()
}

/// Returns whether this is the name of a probe, an object that tests a store.
pub(super) fn is_probe(name: &str) -> bool {
    let parts = name.strip_prefix("probe/").and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(nonce, attempt)| {
        let is_nonce = nonce.len() == 32 && nonce.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_nonce && attempt.len() == 1 && attempt.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// The objects and structures of a drive in a bucket that have a format of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// The identity of the drive.
    Drive,
    /// The claim of a writer.
    Claim,
    /// An image.
    Commit,
    /// The state of a journal.
    Journal,
    /// The header of a slot of a journal.
    Slot,
}

/// Decodes an object of a drive with segments of `segment_bytes`, and encodes it again: for
/// fuzzers.
///
/// # Errors
/// `NotADrive`, `Corrupt` or `Unsupported` if the bytes are not such an object.
pub fn encode_again(kind: ObjectKind, bytes: &[u8], segment_bytes: u32) -> Result<Vec<u8>> {
    Ok(match kind {
        ObjectKind::Drive => DriveObject::decode(bytes)?.encode().to_vec(),
        ObjectKind::Claim => Claim::decode(bytes, "a claim")?.encode().to_vec(),
        ObjectKind::Commit => Commit::decode(bytes, "a commit", segment_bytes)?.encode().to_vec(),
        ObjectKind::Journal => Journal::decode(bytes)?.encode().to_vec(),
        ObjectKind::Slot => SlotHeader::decode(bytes)?.encode().to_vec(),
    })
}

pub(super) const DRIVE_NAME: &str = "drive";

pub(super) fn claim_name(epoch: u32) -> String {
    format!("claims/{epoch:08x}")
}

impl CommitId {
    pub(super) fn name(self) -> String {
        format!("commits/{:08x}/{:016x}", self.epoch, self.number)
    }
}

/// Appends fields to a structure.
struct Writer(Vec<u8>);

impl Writer {
    fn new(magic: [u8; 8], uuid: Uuid) -> Self {
        let mut writer = Self(Vec::new());
        writer.0.extend(magic);
        writer.u32(VERSION);
        writer.u32(0);
        writer.u64(0);
        writer.uuid(uuid);
        writer
    }

    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn uuid(&mut self, value: Uuid) {
        self.0.extend(value.as_bytes());
    }

    fn commit_id(&mut self, id: CommitId) {
        self.u32(id.epoch);
        self.u64(id.number);
    }

    /// Fills in length and checksum, and pads with zeroes to at least `len` bytes.
    fn finish(self, len: usize) -> Arc<AlignedBuffer> {
        let used = self.0.len();
        let mut bytes = AlignedBuffer::zeroed(used.max(len));
        bytes[..used].copy_from_slice(&self.0);
        let len = len_u32(bytes.len());
        bytes[12..16].copy_from_slice(&len.to_le_bytes());
        let checksum = crc64(&bytes);
        bytes[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&checksum.to_le_bytes());
        Arc::new(bytes)
    }
}

/// Reads fields from bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Verifies magic, version, length and checksum.
    fn open(bytes: &'a [u8], magic: [u8; 8], name: &str) -> Result<(Self, Uuid)> {
        let mut reader = Self(bytes);
        let is_ours = reader.take(8).is_ok_and(|found| found == magic);
        ensure(is_ours, ErrorKind::NotADrive, format!("{name} is not a Pumice object"))?;
        let version = reader.u32()?;
        let length = reader.u32()?;
        let checksum = reader.u64()?;
        let mut copy = bytes.to_vec();
        if let Some(field) = copy.get_mut(CHECKSUM_AT..CHECKSUM_AT + 8) {
            field.fill(0);
        }
        let is_whole = length as usize == bytes.len() && crc64(&copy) == checksum;
        ensure(is_whole, ErrorKind::Corrupt, format!("{name} is damaged"))?;
        let what = format!(
            "{name} was made by a newer version of Pumice: its format is {version}, and this one \
             supports {VERSION}"
        );
        ensure(version == VERSION, ErrorKind::Unsupported, what)?;
        let uuid = reader.uuid()?;
        Ok((reader, uuid))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let taken = self.0.split_at_checked(len);
        let (taken, rest) = taken.or_error(ErrorKind::Corrupt, "an object is too short")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn uuid(&mut self) -> Result<Uuid> {
        self.array().map(Uuid::from_bytes)
    }

    fn commit_id(&mut self) -> Result<CommitId> {
        Ok(CommitId { epoch: self.u32()?, number: self.u64()? })
    }
}

impl DriveObject {
    pub(super) fn encode(&self) -> Arc<AlignedBuffer> {
        assert!(is_segment_size(self.segment_bytes), "a reader accepts the size of segments");
        let mut writer = Writer::new(DRIVE_MAGIC, self.uuid);
        writer.u32(self.segment_bytes);
        writer.finish(0)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let (mut reader, uuid) = Reader::open(bytes, DRIVE_MAGIC, DRIVE_NAME)?;
        let segment_bytes = reader.u32()?;
        check_segment_bytes(segment_bytes)?;
        Ok(Self { uuid, segment_bytes })
    }
}

/// Refuses sizes that no drive has.
fn check_segment_bytes(segment_bytes: u32) -> Result<()> {
    let what = format!("invalid segment size: {segment_bytes}");
    ensure(is_segment_size(segment_bytes), ErrorKind::Corrupt, what)
}

fn is_segment_size(bytes: u32) -> bool {
    bytes.is_multiple_of(4096) && (1 << 16..=1 << 30).contains(&bytes)
}

impl Claim {
    pub(super) fn encode(&self) -> Arc<AlignedBuffer> {
        assert!((1..=EPOCH_MAX).contains(&self.epoch), "epochs are numbered from 1");
        let mut writer = Writer::new(CLAIM_MAGIC, self.uuid);
        writer.u32(self.epoch);
        writer.uuid(self.nonce);
        let end = self.host.floor_char_boundary(HOST_BYTES_MAX);
        let host = self.host.as_bytes().get(..end).unwrap_or_default();
        writer.u32(len_u32(host.len()));
        writer.0.extend(host);
        writer.finish(0)
    }

    pub(super) fn decode(bytes: &[u8], name: &str) -> Result<Self> {
        let (mut reader, uuid) = Reader::open(bytes, CLAIM_MAGIC, name)?;
        let (epoch, nonce) = (reader.u32()?, reader.uuid()?);
        ensure(
            (1..=EPOCH_MAX).contains(&epoch),
            ErrorKind::Corrupt,
            format!("{name}: epoch {epoch}"),
        )?;
        let len = reader.u32()? as usize;
        let host = String::from_utf8_lossy(reader.take(len)?).into_owned();
        Ok(Self { uuid, epoch, nonce, host })
    }
}

impl Commit {
    pub(super) fn encode(&self) -> Arc<AlignedBuffer> {
        let mut writer = Writer::new(COMMIT_MAGIC, self.uuid);
        writer.commit_id(self.id);
        writer.commit_id(self.after);
        writer.u64(self.base);
        for superblock in &self.superblocks {
            writer.u32(u32::from(superblock.is_some()));
            if let Some(bytes) = superblock {
                writer.0.extend(&bytes[..]);
            }
        }
        writer.u32(len_u32(self.changes.len()));
        for (&segment, entry) in &self.changes {
            writer.u32(segment);
            let Some(Entry { use_id, chunks }) = entry else {
                writer.u64(0);
                writer.u32(REMOVED);
                continue;
            };
            writer.u64(*use_id);
            writer.u32(len_u32(chunks.len()));
            for chunk in chunks {
                writer.u32(chunk.offset);
                writer.u32(chunk.bytes);
                writer.u32(chunk.epoch);
                writer.u64(chunk.checksum);
            }
        }
        writer.finish(0)
    }

    pub(super) fn decode(bytes: &[u8], name: &str, segment_bytes: u32) -> Result<Self> {
        let (mut reader, uuid) = Reader::open(bytes, COMMIT_MAGIC, name)?;
        let (id, after, base) = (reader.commit_id()?, reader.commit_id()?, reader.u64()?);
        let mut superblocks = [None, None];
        for superblock in &mut superblocks {
            if reader.u32()? != 0 {
                let mut copy = AlignedBuffer::zeroed(SUPERBLOCK_BYTES);
                copy.copy_from_slice(reader.take(SUPERBLOCK_BYTES)?);
                *superblock = Some(Arc::new(copy));
            }
        }
        let mut changes = BTreeMap::new();
        for _ in 0..reader.u32()? {
            let (segment, use_id, count) = (reader.u32()?, reader.u64()?, reader.u32()?);
            let entry = match count {
                REMOVED => None,
                count => {
                    let chunks = read_chunks(&mut reader, count, segment_bytes)?;
                    Some(Entry { use_id, chunks })
                }
            };
            changes.insert(segment, entry);
        }
        ensure(reader.0.is_empty(), ErrorKind::Corrupt, format!("{name} is too long"))?;
        Ok(Self { uuid, id, after, base, superblocks, changes })
    }
}

fn read_chunks(reader: &mut Reader, count: u32, segment_bytes: u32) -> Result<Vec<Chunk>> {
    let mut chunks: Vec<Chunk> = Vec::new();
    let mut end = 0;
    for _ in 0..count {
        let (offset, bytes, epoch) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let checksum = reader.u64()?;
        let is_valid = offset >= end
            && bytes > 0
            && offset.checked_add(bytes).is_some_and(|end| end <= segment_bytes);
        ensure(is_valid, ErrorKind::Corrupt, "the chunks of a segment overlap or exceed it")?;
        end = offset + bytes;
        chunks.push(Chunk { offset, bytes, epoch, checksum });
    }
    Ok(chunks)
}

impl Journal {
    /// Returns the bytes of a superblock slot of the local medium.
    pub(super) fn encode(&self) -> AlignedBuffer {
        assert!(self.is_possible(), "the numbers of a journal are those that a reader accepts");
        assert!(self.nonces.len() <= NONCES_MAX, "more nonces than a page holds");
        let mut writer = Writer::new(JOURNAL_MAGIC, self.uuid);
        writer.u64(self.revision);
        writer.u32(self.segment_bytes);
        writer.u32(self.slots);
        writer.u32(self.first_epoch);
        writer.commit_id(self.intent);
        writer.u64(self.lag_ns);
        writer.u64(self.lag_bytes_max);
        writer.u32(u32::from(self.is_durable_in_bucket));
        writer.u32(len_u32(self.nonces.len()));
        for &nonce in &self.nonces {
            writer.uuid(nonce);
        }
        assert!(self.place.len() <= PLACE_BYTES_MAX, "a place is longer than a page holds");
        writer.u32(len_u32(self.place.len()));
        writer.0.extend(self.place.as_bytes());
        let bytes = writer.finish(SUPERBLOCK_BYTES);
        assert_eq!(bytes.len(), SUPERBLOCK_BYTES, "a journal fits its slot");
        Arc::into_inner(bytes).expect("a new buffer has one owner")
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let (mut reader, uuid) = Reader::open(bytes, JOURNAL_MAGIC, "the journal")?;
        let (revision, segment_bytes, slots) = (reader.u64()?, reader.u32()?, reader.u32()?);
        check_segment_bytes(segment_bytes)?;
        let (first_epoch, intent) = (reader.u32()?, reader.commit_id()?);
        let (lag_ns, lag_bytes_max) = (reader.u64()?, reader.u64()?);
        let is_durable_in_bucket = reader.u32()? != 0;
        let count = reader.u32()?;
        ensure(count as usize <= NONCES_MAX, ErrorKind::Corrupt, "the journal is damaged")?;
        let nonces = (0..count).map(|_| reader.uuid()).collect::<Result<_>>()?;
        let len = reader.u32()? as usize;
        ensure(len <= PLACE_BYTES_MAX, ErrorKind::Corrupt, "the journal is damaged")?;
        let place = str::from_utf8(reader.take(len)?).map(ToOwned::to_owned);
        let place = place.ok().or_error(ErrorKind::Corrupt, "the journal is damaged")?;
        let journal = Self {
            uuid,
            revision,
            segment_bytes,
            slots,
            first_epoch,
            intent,
            lag_ns,
            lag_bytes_max,
            is_durable_in_bucket,
            place,
            nonces,
        };
        // The revision is counted up from here, so the encoder does not check it.
        let is_possible = journal.is_possible() && revision < 1 << 62;
        ensure(is_possible, ErrorKind::Corrupt, "the journal has invalid numbers")?;
        Ok(journal)
    }

    /// Returns whether a reader accepts its numbers.
    pub(super) fn is_possible(&self) -> bool {
        is_segment_size(self.segment_bytes)
            && (1..=SLOTS_MAX).contains(&self.slots)
            && self.lag_ns <= LAG_NS_MAX
            && self.intent.epoch <= EPOCH_MAX
            && self.intent.number <= NUMBER_MAX
    }
}

impl SlotHeader {
    pub(super) fn encode(&self) -> Arc<AlignedBuffer> {
        let mut writer = Writer::new(SLOT_MAGIC, self.uuid);
        writer.u32(self.segment);
        writer.u64(self.use_id);
        writer.finish(SLOT_HEADER_BYTES as usize)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let (mut reader, uuid) = Reader::open(bytes, SLOT_MAGIC, "a slot of the journal")?;
        Ok(Self { uuid, segment: reader.u32()?, use_id: reader.u64()? })
    }
}
