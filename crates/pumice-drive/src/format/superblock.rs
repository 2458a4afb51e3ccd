//! The superblock: a drive's identity, geometry and features, and the state of its log.
//!
//! Two slots are written in turn, each time with a higher `revision`. The valid slot with the
//! higher revision counts, so a torn write leaves the other slot intact. Magic, version, length and
//! checksum have the same offsets in every version of the format, so an old program can distinguish
//! a newer format from damage.

use uuid::Uuid;
use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::keys::{EARLIER_KEY_BYTES, KEY_SLOT_BYTES, KEY_SLOTS, KeyArea};
use super::layout::layout;
use super::limits::{
    CHUNKED_BLOCKS_MAX, DATA_OFFSET_MIN, FORMAT_VERSION, FRAME_BLOCKS_MAX, META_SEGMENTS_MAX,
    SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SIZE_BYTES_MAX,
};
use super::record::{BLOCK_LENGTH, RecordAddress};
use super::segment::{DriveShape, Stream};
use crate::base::checksum::crc64;
use crate::base::{Error, ErrorContext, ErrorKind, Result, SegmentId, SeqNo, ensure};
use crate::crypt::{Cipher, MAC_BYTES, PLAIN};

/// Bytes of one slot.
pub const SUPERBLOCK_BYTES: usize = LENGTH as usize;

const LENGTH: u32 = 4096;

/// The first eight bytes of a slot.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"PUMICESB";

/// The feature bits that this program supports. A drive with other bits is refused, unless they are
/// compatible ones. Unknown read-only-compatible bits are refused too, because none is defined yet.
const KNOWN_INCOMPATIBLE: u64 =
    CHUNKS | CHUNK_TABLES | SNAPSHOTS | RECEIVING | CLONE | CLONED | ENCRYPTED | ARRAY;
const KNOWN_READ_ONLY: u64 = 0;

/// The compatible feature: space for all segments was reserved on the medium.
const PREALLOCATED: u64 = 1;

/// The incompatible feature: frames may consist of chunks, and new frames of several blocks do.
const CHUNKS: u64 = 1;

/// The incompatible feature: leaves of the map may hold the tables of frames of chunks.
/// Each leaf records which tables it has, so a reader need not remember the feature. A writer sets
/// it on every drive with such frames.
const CHUNK_TABLES: u64 = 2;

/// The incompatible feature: the newest checkpoint may list snapshots, and the space they need is
/// not free.
const SNAPSHOTS: u64 = 4;

/// The incompatible feature: the disk holds a partially received snapshot.
const RECEIVING: u64 = 8;

/// The incompatible feature: the drive is a clone, whose holes read from a snapshot of another
/// drive.
const CLONE: u64 = 16;

/// The incompatible feature: the newest checkpoint may list clones of snapshots, and the data that
/// these snapshots need must not be moved.
const CLONED: u64 = 32;

/// The incompatible feature: payloads are encrypted, headers are hidden, and MACs replace some
/// checksums.
const ENCRYPTED: u64 = 64;

/// The incompatible feature: the medium is a member of an array, and may lack data that other
/// members have.
const ARRAY: u64 = 128;

/// The features that do not concern the form of frames.
const NOT_OF_FRAMES: u64 = SNAPSHOTS | RECEIVING | CLONE | CLONED | ENCRYPTED | ARRAY;

/// Maximum bytes of the path of a clone's origin.
pub const ORIGIN_PATH_MAX: usize = 1024;

/// `state` of the target of an unfinished rebuild; 1 means closed cleanly, 0 anything else.
const STATE_INCOMPLETE: u32 = 2;

/// Maximum number of bad segments listed in a superblock.
pub const BAD_SEGMENTS_MAX: usize = 128;

/// Maximum number of detours in a superblock. Each stream needs one, until the next checkpoint.
pub const DETOURS_MAX: usize = 16;

const _: () = assert!(size_of::<Layout>() == SUPERBLOCK_BYTES, "the layout fills a slot");
const _: () = assert!(DATA_OFFSET_MIN == 2 * LENGTH as u64, "segments follow two slots");

layout! {
    struct Layout: 4096 {
        magic: [u8; 8],
        version: U32,
        length: U32,
        checksum: U64,
        features_compatible: U64,
        features_read_only: U64,
        features_incompatible: U64,
        uuid: [u8; 16],
        revision: U64,
        epoch: U32,
        state: U32,
        size_bytes: U64,
        segment_bytes: U32,
        segment_count: U32,
        data_offset: U64,
        created_seconds: U64,
        frame_blocks: U16,
        codec: U16,
        codec_level: I32,
        watermark: U64,
        watermark_checksum: U64,
        checkpoint_segment: U32,
        checkpoint_offset: U32,
        checkpoint_generation: U64,
        checkpoint_bytes: U32,
        warn_percent: [u8; 4],
        checkpoint_checksum: U64,
        bad_count: U32,
        detour_count: U32,
        bad_segments: [U32; BAD_SEGMENTS_MAX],
        detour_seqs: [U64; DETOURS_MAX],
        detour_generations: [U64; DETOURS_MAX],
        detour_segments: [U32; DETOURS_MAX],
        detour_streams: [u8; DETOURS_MAX],
        receiving_snapshot: [u8; 16],
        receiving_base: [u8; 16],
        receiving_offset: U64,
        origin_drive: [u8; 16],
        origin_snapshot: [u8; 16],
        origin_watermark: U64,
        origin_blocks: U64,
        origin_path_bytes: U16,
        origin_path: [u8; ORIGIN_PATH_MAX],
        key_mac: [u8; MAC_BYTES],
        key_since: U64,
        key_earlier: [u8; EARLIER_KEY_BYTES],
        key_slots: [[u8; KEY_SLOT_BYTES]; KEY_SLOTS],
        flat_since: U64,
        reserved: [u8; 842],
    }
}

pub(super) const FIELDS: &[super::layout::Field] = Layout::FIELDS;

/// The decoded superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity of the drive, drawn at random when the drive was created.
    pub uuid: Uuid,
    /// Number of superblock writes. The slot with the higher revision is newer.
    pub revision: u64,
    /// Number of openings for writing.
    pub epoch: u32,
    /// Whether the drive was closed cleanly: the log ends exactly at `watermark`.
    pub clean: bool,
    /// Whether the drive is the target of an unfinished rebuild: parts of its disk are missing, and
    /// it must not be used. `clean` is then not stored.
    pub incomplete: bool,
    /// Size of the host's disk in bytes: a multiple of 4096, at least 4096.
    pub size_bytes: u64,
    /// Bytes of a segment: a multiple of 4096 from [`SEGMENT_BYTES_MIN`] to
    /// [`SEGMENT_BYTES_MAX`].
    pub segment_bytes: u32,
    /// Number of segments, from 1 to [`META_SEGMENTS_MAX`].
    pub segment_count: u32,
    /// Byte offset of segment 0 on the medium: a multiple of 4096 beyond both slots.
    pub data_offset: u64,
    /// Creation time of the drive, in seconds since 1970. Information only.
    pub created_seconds: u64,
    /// Maximum number of blocks of one frame: a power of two up to [`FRAME_BLOCKS_MAX`]. Frames
    /// never cross a multiple of it, so they never cross a leaf of the L2P.
    pub frame_blocks: u16,
    /// The codec for new data: 0 none, 1 LZ4, 2 zstd. Each frame has its own encoding.
    pub codec: u16,
    /// Level of the codec; 0 for a codec without levels.
    pub codec_level: i32,
    /// A batch that was durable, with all earlier batches, when the superblock was written.
    pub watermark: SeqNo,
    /// Header checksum of that batch; for an empty log, the start of the chain (see the batch
    /// header).
    pub watermark_checksum: u64,
    /// The newest checkpoint. Before the first one, the log begins in segment 0.
    pub checkpoint: Option<CheckpointAddress>,
    /// Percentages of used capacity at which to warn; 0 means none.
    pub warn_percent: [u8; 4],
    /// Whether space for all segments was reserved on the medium; segments are then not discarded.
    pub is_preallocated: bool,
    /// Whether frames may consist of chunks, and new frames of several blocks do. Each
    /// frame has its own encoding.
    pub has_chunks: bool,
    /// Whether the newest checkpoint may list snapshots.
    pub has_snapshots: bool,
    /// The snapshot that the disk holds in part. The disk is then neither as a host wrote it nor,
    /// yet, the snapshot.
    pub receiving: Option<Receiving>,
    /// For a clone, the snapshot of another drive from which its holes read.
    pub origin: Option<Origin>,
    /// For a clone whose disk was flattened, with snapshots that were not: neither the disk nor a
    /// snapshot of this batch or a later one reads from the origin. Otherwise 0.
    pub flat_since: SeqNo,
    /// Whether the newest checkpoint may list clones of snapshots.
    pub has_clones: bool,
    /// For an encrypted drive, its keys.
    pub keys: Option<KeyArea>,
    /// Whether the drive is stored on an [array](super::ArrayHeader), whose members must not be
    /// used alone.
    pub is_array: bool,
    /// Segments in which an append failed, without duplicates. They are no longer written. At most
    /// [`BAD_SEGMENTS_MAX`].
    pub bad_segments: Vec<SegmentId>,
    /// The detours by which streams left a bad segment, in the order of the log: at most
    /// [`DETOURS_MAX`].
    pub detours: Vec<Detour>,
}

/// A snapshot that is being received, and how much of it the disk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiving {
    /// Its identity, not nil.
    pub snapshot: Uuid,
    /// Identity of the snapshot that was the disk's previous content, if it was one.
    pub base: Option<Uuid>,
    /// Byte of the disk up to which it durably matches the new snapshot. Each block beyond may be
    /// old or new.
    pub offset: u64,
}

/// The snapshot from which a clone was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Identity of the snapshot's drive, not nil.
    pub drive: Uuid,
    /// Identity of the snapshot.
    pub snapshot: Uuid,
    /// Sequence number of its last batch, on that drive.
    pub watermark: SeqNo,
    /// Blocks of the disk, from the first, whose holes read from the snapshot. Other holes are
    /// zeroes.
    pub blocks: u64,
    /// Last known absolute path of the drive, at most [`ORIGIN_PATH_MAX`] bytes: a hint.
    pub path: String,
}

/// The continuation of a stream in another segment without a record of it, because the stream's
/// segment cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detour {
    /// The last batch before the detour.
    pub seq: SeqNo,
    /// Generation of the new segment.
    pub generation: u64,
    /// The new segment.
    pub segment: SegmentId,
    /// The stream.
    pub stream: Stream,
}

/// The location of a checkpoint's root record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointAddress {
    /// Segment and offset of the record, and the segment's generation.
    pub address: RecordAddress,
    /// Bytes of the record, at least 1.
    pub record_bytes: u32,
    /// Checksum of its payload.
    pub payload_checksum: u64,
}

impl Layout {
    /// Stores the origin of a clone in its fields.
    ///
    /// # Panics
    /// If its path is longer than [`ORIGIN_PATH_MAX`].
    fn encode_origin(&mut self, origin: &Origin) {
        assert!(origin.path.len() <= ORIGIN_PATH_MAX, "the path of an origin is a short one");
        self.origin_drive = *origin.drive.as_bytes();
        self.origin_snapshot = *origin.snapshot.as_bytes();
        self.origin_watermark = origin.watermark.0.into();
        self.origin_blocks = origin.blocks.into();
        let path_bytes = u16::try_from(origin.path.len());
        self.origin_path_bytes = path_bytes.expect("a short path").into();
        for (target, byte) in self.origin_path.iter_mut().zip(origin.path.bytes()) {
            *target = byte;
        }
    }
}

impl Superblock {
    /// Checks the rules for every superblock that a drive stores. Call this before
    /// [`Superblock::encode`], which also encodes other values, for tests of the decoders. The
    /// location of the checkpoint is read from the medium and is checked when the checkpoint is
    /// read.
    ///
    /// # Panics
    /// If a rule is violated.
    pub(crate) fn check_invariants(&self) {
        assert_eq!(self.impossible(), None, "a superblock that no program would open");
        if let Some(checkpoint) = &self.checkpoint {
            assert!(checkpoint.record_bytes > 0, "an empty root means that there is no checkpoint");
        }
    }

    /// Encodes the slot of an unencrypted drive.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        self.encode_with(&PLAIN)
    }

    /// Encodes the slot. On an encrypted drive, the slot has a MAC, computed with the cipher.
    ///
    /// # Panics
    /// If the drive is encrypted and the cipher is [`PLAIN`].
    pub(crate) fn encode_with(&self, cipher: &Cipher) -> [u8; SUPERBLOCK_BYTES] {
        let mut layout = Layout::new_zeroed();
        layout.magic = SUPERBLOCK_MAGIC;
        layout.version = FORMAT_VERSION.into();
        layout.length = LENGTH.into();
        layout.features_compatible = (u64::from(self.is_preallocated) * PREALLOCATED).into();
        let chunks = if self.has_chunks { CHUNKS | CHUNK_TABLES } else { 0 };
        let snapshots = if self.has_snapshots { SNAPSHOTS } else { 0 };
        let receiving = if self.receiving.is_some() { RECEIVING } else { 0 };
        let clone = if self.origin.is_some() { CLONE } else { 0 };
        let cloned = if self.has_clones { CLONED } else { 0 };
        let encrypted = if self.keys.is_some() { ENCRYPTED } else { 0 };
        let array = if self.is_array { ARRAY } else { 0 };
        let features = chunks | snapshots | receiving | clone | cloned | encrypted | array;
        layout.features_incompatible = features.into();
        layout.uuid = *self.uuid.as_bytes();
        layout.revision = self.revision.into();
        layout.epoch = self.epoch.into();
        layout.state = if self.incomplete { STATE_INCOMPLETE } else { self.clean.into() }.into();
        layout.size_bytes = self.size_bytes.into();
        layout.segment_bytes = self.segment_bytes.into();
        layout.segment_count = self.segment_count.into();
        layout.data_offset = self.data_offset.into();
        layout.created_seconds = self.created_seconds.into();
        layout.frame_blocks = self.frame_blocks.into();
        layout.codec = self.codec.into();
        layout.codec_level = self.codec_level.into();
        layout.watermark = self.watermark.0.into();
        layout.watermark_checksum = self.watermark_checksum.into();
        layout.warn_percent = self.warn_percent;
        if let Some(checkpoint) = &self.checkpoint {
            layout.checkpoint_segment = checkpoint.address.segment.0.into();
            layout.checkpoint_offset = checkpoint.address.offset.into();
            layout.checkpoint_generation = checkpoint.address.generation.into();
            layout.checkpoint_bytes = checkpoint.record_bytes.into();
            layout.checkpoint_checksum = checkpoint.payload_checksum.into();
        }
        if let Some(receiving) = &self.receiving {
            layout.receiving_snapshot = *receiving.snapshot.as_bytes();
            layout.receiving_base = receiving.base.unwrap_or_default().into_bytes();
            layout.receiving_offset = receiving.offset.into();
        }
        if let Some(origin) = &self.origin {
            layout.encode_origin(origin);
        }
        layout.flat_since = self.flat_since.0.into();
        self.encode_bad(&mut layout);
        if let Some(keys) = &self.keys {
            layout.key_since = keys.since.into();
            layout.key_earlier = keys.encode_earlier();
            layout.key_slots = keys.encode_slots();
            layout.key_mac = cipher.superblock_mac(keys.since, layout.as_bytes());
        }
        layout.checksum = crc64(layout.as_bytes()).into();
        let mut bytes = [0; SUPERBLOCK_BYTES];
        bytes.copy_from_slice(layout.as_bytes());
        bytes
    }

    /// Checks the MAC of a decoded slot of an encrypted drive.
    ///
    /// # Errors
    /// `Corrupt` if the MAC is wrong: the slot was changed, or the cipher has a different key.
    ///
    /// # Panics
    /// If the cipher is that of an unencrypted drive.
    pub(crate) fn check_mac(bytes: &[u8], cipher: &Cipher) -> Result<()> {
        const CORRUPT: ErrorKind = ErrorKind::Corrupt;
        let layout = Layout::read_from_bytes(bytes).ok();
        let mut layout = layout.or_error(CORRUPT, "a superblock slot must be 4096 bytes")?;
        let mac = std::mem::take(&mut layout.key_mac);
        layout.checksum = 0.into();
        let since = layout.key_since.get();
        let is_authentic = cipher.superblock_mac(since, layout.as_bytes()) == mac;
        ensure(is_authentic, CORRUPT, "the superblock is not authentic: it was changed")
    }

    fn encode_bad(&self, layout: &mut Layout) {
        assert!(self.bad_segments.len() <= BAD_SEGMENTS_MAX, "too many bad segments");
        assert!(self.detours.len() <= DETOURS_MAX, "too many detours");
        layout.bad_count = count(self.bad_segments.len());
        layout.detour_count = count(self.detours.len());
        for (target, segment) in layout.bad_segments.iter_mut().zip(&self.bad_segments) {
            *target = segment.0.into();
        }
        let targets = layout.detour_seqs.iter_mut().zip(&mut layout.detour_generations);
        let targets = targets.zip(&mut layout.detour_segments).zip(&mut layout.detour_streams);
        for ((((seq, generation), segment), stream), detour) in targets.zip(&self.detours) {
            *seq = detour.seq.0.into();
            *generation = detour.generation.into();
            *segment = detour.segment.0.into();
            *stream = detour.stream as u8;
        }
    }

    /// Returns the bad segments and detours; `None` if the lists differ from the encoding of
    /// [`Self::encode_bad`].
    fn decode_bad(layout: &Layout) -> Option<(Vec<SegmentId>, Vec<Detour>)> {
        let bad_segments = layout.bad_segments.get(..layout.bad_count.get() as usize)?;
        let bad_segments = bad_segments.iter().map(|segment| SegmentId(segment.get())).collect();
        let places = layout.detour_generations.iter().zip(&layout.detour_segments);
        let detours = layout.detour_seqs.iter().zip(&layout.detour_streams).zip(places);
        let detours = detours.map(|((seq, &stream), (generation, segment))| {
            Some(Detour {
                seq: SeqNo(seq.get()),
                generation: generation.get(),
                segment: SegmentId(segment.get()),
                stream: Stream::from_u8(stream)?,
            })
        });
        let detours =
            detours.take(layout.detour_count.get() as usize).collect::<Option<Vec<_>>>()?;
        (count(detours.len()) == layout.detour_count).then_some((bad_segments, detours))
    }

    /// Decodes one slot.
    ///
    /// # Errors
    /// `NotADrive` without the magic; `Corrupt` for a wrong checksum or impossible values;
    /// `Unsupported` for a newer version or unknown incompatible features.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        const CORRUPT: ErrorKind = ErrorKind::Corrupt;
        let layout = Layout::read_from_bytes(bytes).ok();
        let mut layout = layout.or_error(CORRUPT, "a superblock slot must be 4096 bytes")?;
        let is_pumice = layout.magic == SUPERBLOCK_MAGIC;
        ensure(is_pumice, ErrorKind::NotADrive, "there is no Pumice superblock")?;
        let checksum = layout.checksum.get();
        layout.checksum = 0.into();
        if crc64(layout.as_bytes()) != checksum {
            return Err(Error::new(CORRUPT, "the superblock's checksum is wrong"));
        }
        check_features(&layout)?;
        let is_possible = layout.version.get() > 0
            && layout.state.get() <= STATE_INCOMPLETE
            && layout.features_incompatible.get() & !NOT_OF_FRAMES != CHUNK_TABLES;
        ensure(is_possible, CORRUPT, "the superblock's values are invalid")?;
        let superblock = Self::from_layout(&layout);
        let superblock = superblock
            .or_error(CORRUPT, "the superblock's lists, receipt, origin or keys are invalid")?;
        if let Some(what) = superblock.impossible() {
            return Err(Error::new(CORRUPT, what));
        }
        let mut lists = Layout::new_zeroed();
        superblock.encode_bad(&mut lists);
        let is_zero = layout.reserved.iter().all(|&byte| byte == 0)
            && lists.bad_segments == layout.bad_segments
            && lists.detour_seqs == layout.detour_seqs
            && lists.detour_generations == layout.detour_generations
            && lists.detour_segments == layout.detour_segments
            && lists.detour_streams == layout.detour_streams;
        ensure(is_zero, CORRUPT, "reserved superblock bytes are not zero")?;
        debug_assert!(
            layout.features_compatible.get() != 0
                || layout.features_incompatible.get() & !NOT_OF_FRAMES == CHUNKS
                || superblock.encodes_to(bytes),
            "a superblock has a single encoding"
        );
        Ok(superblock)
    }

    /// Returns whether this superblock encodes to `bytes`. Not checked on an encrypted drive or
    /// without a checkpoint.
    fn encodes_to(&self, bytes: &[u8]) -> bool {
        self.keys.is_some() || self.checkpoint.is_none() || self.encode() == *bytes
    }

    /// Returns the keys of an encrypted drive; `None` if they are impossible.
    fn decode_keys(layout: &Layout) -> Option<Option<KeyArea>> {
        let (since, earlier) = (layout.key_since.get(), &layout.key_earlier);
        if layout.features_incompatible.get() & ENCRYPTED != 0 {
            return KeyArea::decode(since, earlier, &layout.key_slots).map(Some);
        }
        let mut rest = layout.key_mac.iter().chain(earlier).chain(layout.key_slots.as_flattened());
        (since == 0 && rest.all(|&byte| byte == 0)).then_some(None)
    }

    /// Returns the snapshot being received; `None` if its fields are impossible.
    fn decode_receiving(layout: &Layout) -> Option<Option<Receiving>> {
        let snapshot = Uuid::from_bytes(layout.receiving_snapshot);
        let base = Uuid::from_bytes(layout.receiving_base);
        let offset = layout.receiving_offset.get();
        if layout.features_incompatible.get() & RECEIVING == 0 {
            let is_nothing = snapshot.is_nil() && base.is_nil() && offset == 0;
            return is_nothing.then_some(None);
        }
        let is_possible = !snapshot.is_nil() && offset <= SIZE_BYTES_MAX;
        let base = (!base.is_nil()).then_some(base);
        is_possible.then_some(Some(Receiving { snapshot, base, offset }))
    }

    /// Returns the origin of a clone; `None` if its fields are impossible.
    fn decode_origin(layout: &Layout) -> Option<Option<Origin>> {
        let (path, rest) = layout.origin_path.split_at_checked(layout.origin_path_bytes.into())?;
        let origin = Origin {
            drive: Uuid::from_bytes(layout.origin_drive),
            snapshot: Uuid::from_bytes(layout.origin_snapshot),
            watermark: SeqNo(layout.origin_watermark.get()),
            blocks: layout.origin_blocks.get(),
            path: str::from_utf8(path).ok()?.to_owned(),
        };
        if rest.iter().any(|&byte| byte != 0) {
            return None;
        }
        if layout.features_incompatible.get() & CLONE != 0 {
            return (!origin.drive.is_nil()).then_some(Some(origin));
        }
        let is_nothing = origin.drive.is_nil()
            && origin.snapshot.is_nil()
            && (origin.watermark.0, origin.blocks) == (0, 0)
            && path.is_empty();
        is_nothing.then_some(None)
    }

    /// Returns `None` if a list, the snapshot being received, the origin or the keys are
    /// impossible.
    fn from_layout(layout: &Layout) -> Option<Self> {
        let (bad_segments, detours) = Self::decode_bad(layout)?;
        Some(Self {
            uuid: Uuid::from_bytes(layout.uuid),
            revision: layout.revision.get(),
            epoch: layout.epoch.get(),
            clean: layout.state.get() == 1,
            incomplete: layout.state.get() == STATE_INCOMPLETE,
            size_bytes: layout.size_bytes.get(),
            segment_bytes: layout.segment_bytes.get(),
            segment_count: layout.segment_count.get(),
            data_offset: layout.data_offset.get(),
            created_seconds: layout.created_seconds.get(),
            frame_blocks: layout.frame_blocks.get(),
            codec: layout.codec.get(),
            codec_level: layout.codec_level.get(),
            watermark: SeqNo(layout.watermark.get()),
            watermark_checksum: layout.watermark_checksum.get(),
            checkpoint: (layout.checkpoint_bytes.get() > 0).then(|| CheckpointAddress {
                address: RecordAddress {
                    generation: layout.checkpoint_generation.get(),
                    segment: SegmentId(layout.checkpoint_segment.get()),
                    offset: layout.checkpoint_offset.get(),
                },
                record_bytes: layout.checkpoint_bytes.get(),
                payload_checksum: layout.checkpoint_checksum.get(),
            }),
            warn_percent: layout.warn_percent,
            is_preallocated: layout.features_compatible.get() & PREALLOCATED != 0,
            has_chunks: layout.features_incompatible.get() & CHUNKS != 0,
            has_snapshots: layout.features_incompatible.get() & SNAPSHOTS != 0,
            receiving: Self::decode_receiving(layout)?,
            origin: Self::decode_origin(layout)?,
            flat_since: SeqNo(layout.flat_since.get()),
            has_clones: layout.features_incompatible.get() & CLONED != 0,
            keys: Self::decode_keys(layout)?,
            is_array: layout.features_incompatible.get() & ARRAY != 0,
            bad_segments,
            detours,
        })
    }

    /// Returns the parameters that every segment header repeats.
    pub fn shape(&self) -> DriveShape {
        DriveShape {
            size_bytes: self.size_bytes,
            data_offset: self.data_offset,
            segment_bytes: self.segment_bytes,
            segment_count: self.segment_count,
            frame_blocks: self.frame_blocks,
        }
    }

    /// Returns a description of the first impossible value, if there is one.
    pub fn impossible(&self) -> Option<&'static str> {
        let block = u64::from(BLOCK_LENGTH);
        if self.size_bytes == 0 || !self.size_bytes.is_multiple_of(block) {
            return Some("the size must be a multiple of 4 KiB above 0");
        }
        if self.size_bytes > SIZE_BYTES_MAX {
            return Some("the size must not be above 16 PiB");
        }
        let segment_range = SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX;
        if !segment_range.contains(&self.segment_bytes)
            || !self.segment_bytes.is_multiple_of(BLOCK_LENGTH)
        {
            return Some("a segment must be a multiple of 4 KiB from 4 MiB to 1 GiB");
        }
        if self.origin.as_ref().is_some_and(|origin| origin.blocks > self.size_bytes / block) {
            return Some("the origin of a clone is larger than its disk");
        }
        if self.origin.is_none() && self.flat_since > SeqNo(0) {
            return Some("a disk that is being flattened is not a clone");
        }
        if self.segment_count == 0 || self.segment_count > META_SEGMENTS_MAX {
            return Some("the number of segments is invalid");
        }
        if self.data_offset < DATA_OFFSET_MIN
            || !self.data_offset.is_multiple_of(block)
            || self.data_offset > 1 << 40
        {
            return Some("the offset of the first segment is invalid");
        }
        if !(1..=FRAME_BLOCKS_MAX).contains(&self.frame_blocks)
            || !self.frame_blocks.is_power_of_two()
        {
            return Some("a frame must have 1, 2, 4, 8, 16, 32 or 64 blocks");
        }
        if self.has_chunks && self.frame_blocks > CHUNKED_BLOCKS_MAX {
            return Some("a frame of chunks must have at most 8 blocks");
        }
        if self.keys.is_some() && self.has_chunks {
            return Some("frames of an encrypted drive must be solid");
        }
        if self.codec > 2 {
            return Some("the codec is unknown");
        }
        let mut named = self.bad_segments.iter().chain(self.detours.iter().map(|to| &to.segment));
        if named.any(|segment| segment.0 >= self.segment_count) {
            return Some("a segment that is bad, or follows a bad one, does not exist");
        }
        if !self.detours.is_sorted_by_key(|detour| detour.seq) {
            return Some("detours are not in the order of the log");
        }
        None
    }
}

fn count(len: usize) -> U32 {
    u32::try_from(len).expect("a list of a superblock is short").into()
}

fn check_features(layout: &Layout) -> Result<()> {
    let version = layout.version.get();
    if version > FORMAT_VERSION || layout.length.get() != LENGTH {
        let what = format!(
            "the drive has format version {version}, this program supports up to \
             {FORMAT_VERSION}: use a newer pumice"
        );
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let unknown = layout.features_incompatible.get() & !KNOWN_INCOMPATIBLE
        | layout.features_read_only.get() & !KNOWN_READ_ONLY;
    if unknown != 0 {
        let what = format!("the drive uses unknown features {unknown:#x}: use a newer pumice");
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
