//! The head of a transfer. It describes the snapshot that follows, in batches of the log's format,
//! and the earlier snapshot on which it is based.
//!
//! ```text
//! | head 640 | batch | batch | ... | batch without records |
//! ```
//!
//! A transfer arrives through a pipe from another machine, so no part of it is trusted.

use uuid::Uuid;
use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::layout::layout;
use super::limits::{FRAME_BLOCKS_MAX, SIZE_BYTES_MAX};
use super::record::BLOCK_LENGTH;
use super::snapshot::check_snapshot_name;
use crate::base::checksum::crc64;
use crate::base::{Error, ErrorContext, ErrorKind, Result, ensure};

/// Bytes of the head of a transfer. The first batch follows it.
pub const TRANSFER_HEAD_BYTES: usize = 640;

const LENGTH: u32 = 640;
const _: () = assert!(size_of::<Layout>() == TRANSFER_HEAD_BYTES, "the layout fills the head");
const _: () = assert!(LENGTH as usize == TRANSFER_HEAD_BYTES);

const MAGIC: [u8; 8] = *b"PUMICETR";

/// The version that this program writes, and the newest that it reads.
const VERSION: u32 = 1;

layout! {
    struct Layout: 640 {
        magic: [u8; 8],
        version: U32,
        length: U32,
        checksum: U64,
        features: U64,
        drive: [u8; 16],
        snapshot: [u8; 16],
        base: [u8; 16],
        size_bytes: U64,
        start: U64,
        created_seconds: U64,
        frame_blocks: U16,
        codec: U16,
        codec_level: I32,
        chunks: u8,
        name_bytes: u8,
        base_name_bytes: u8,
        reserved: [u8; 13],
        name: [u8; 256],
        base_name: [u8; 256],
    }
}

pub(super) const FIELDS: &[super::layout::Field] = Layout::FIELDS;

/// The decoded head of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferHead {
    /// The sending drive. Information only.
    pub drive: Uuid,
    /// Identity of the snapshot.
    pub snapshot: Uuid,
    /// Its name on the sending drive.
    pub name: String,
    /// Creation time of the snapshot, in seconds since 1970.
    pub created_seconds: u64,
    /// The base of an incremental transfer; `None` if the entire disk is sent.
    pub base: Option<TransferBase>,
    /// Size of the disk in bytes: a multiple of 4096 above 0.
    pub size_bytes: u64,
    /// Start of the sent part of the disk in bytes, since the receiver has everything before it: a
    /// multiple of 4096, at most `size_bytes`.
    pub start: u64,
    /// Maximum number of blocks of a frame in the host stream of the drive.
    pub frame_blocks: u16,
    /// Codec of most frames, as in the superblock. Each frame has its own encoding.
    pub codec: u16,
    /// Level of the codec.
    pub codec_level: i32,
    /// Whether most frames of several blocks consist of chunks.
    pub has_chunks: bool,
}

/// The snapshot on which an incremental transfer is based.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferBase {
    /// Its identity.
    pub snapshot: Uuid,
    /// Its name on the sending drive.
    pub name: String,
}

impl TransferHead {
    /// Encodes the head. Returns the bytes and their checksum, to which the first batch is chained.
    ///
    /// # Panics
    /// If [`TransferHead::decode`] would refuse a value.
    pub fn encode(&self) -> ([u8; TRANSFER_HEAD_BYTES], u64) {
        assert!(self.is_possible(), "a head that no program would read");
        let mut layout = Layout::new_zeroed();
        layout.magic = MAGIC;
        layout.version = VERSION.into();
        layout.length = LENGTH.into();
        layout.drive = *self.drive.as_bytes();
        layout.snapshot = *self.snapshot.as_bytes();
        layout.size_bytes = self.size_bytes.into();
        layout.start = self.start.into();
        layout.created_seconds = self.created_seconds.into();
        layout.frame_blocks = self.frame_blocks.into();
        layout.codec = self.codec.into();
        layout.codec_level = self.codec_level.into();
        layout.chunks = self.has_chunks.into();
        layout.name_bytes = put_name(&mut layout.name, &self.name);
        if let Some(base) = &self.base {
            layout.base = *base.snapshot.as_bytes();
            layout.base_name_bytes = put_name(&mut layout.base_name, &base.name);
        }
        let checksum = crc64(layout.as_bytes());
        layout.checksum = checksum.into();
        let mut bytes = [0; TRANSFER_HEAD_BYTES];
        bytes.copy_from_slice(layout.as_bytes());
        (bytes, checksum)
    }

    /// Decodes a head. Returns the head and its checksum.
    ///
    /// # Errors
    /// `InvalidInput` without the magic; `Unsupported` for a newer version; `Corrupt`.
    pub fn decode(bytes: &[u8; TRANSFER_HEAD_BYTES]) -> Result<(Self, u64)> {
        const CORRUPT: ErrorKind = ErrorKind::Corrupt;
        let layout = Layout::read_from_bytes(bytes).ok();
        let mut layout = layout.or_error(CORRUPT, "the head of a transfer is truncated")?;
        let is_transfer = layout.magic == MAGIC;
        ensure(is_transfer, ErrorKind::InvalidInput, "the input is not the output of a send")?;
        let checksum = layout.checksum.get();
        layout.checksum = 0.into();
        if crc64(layout.as_bytes()) != checksum {
            return Err(Error::new(CORRUPT, "the head of the transfer is damaged"));
        }
        if layout.version.get() > VERSION || layout.length != LENGTH || layout.features != 0 {
            let what = "the transfer is from a newer version: receive it with a newer pumice";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let head = Self::from_layout(&layout).filter(|head| {
            layout.version.get() > 0 && head.is_possible() && head.encode().0 == *bytes
        });
        Ok((head.or_error(CORRUPT, "the head of the transfer is invalid")?, checksum))
    }

    fn from_layout(layout: &Layout) -> Option<Self> {
        let name = |bytes: &[u8; 256], len: u8| {
            let name = str::from_utf8(bytes.get(..usize::from(len))?).ok()?;
            check_snapshot_name(name).is_ok().then(|| name.to_owned())
        };
        let base = match Uuid::from_bytes(layout.base) {
            base if base.is_nil() => None,
            snapshot => {
                let name = name(&layout.base_name, layout.base_name_bytes)?;
                Some(TransferBase { snapshot, name })
            }
        };
        Some(Self {
            drive: Uuid::from_bytes(layout.drive),
            snapshot: Uuid::from_bytes(layout.snapshot),
            name: name(&layout.name, layout.name_bytes)?,
            created_seconds: layout.created_seconds.get(),
            base,
            size_bytes: layout.size_bytes.get(),
            start: layout.start.get(),
            frame_blocks: layout.frame_blocks.get(),
            codec: layout.codec.get(),
            codec_level: layout.codec_level.get(),
            has_chunks: layout.chunks == 1,
        })
    }

    fn is_possible(&self) -> bool {
        let block = u64::from(BLOCK_LENGTH);
        let is_another = |base: &TransferBase| {
            !base.snapshot.is_nil()
                && base.snapshot != self.snapshot
                && check_snapshot_name(&base.name).is_ok()
        };
        (1..=SIZE_BYTES_MAX).contains(&self.size_bytes)
            && self.size_bytes.is_multiple_of(block)
            && self.start.is_multiple_of(block)
            && self.start <= self.size_bytes
            && self.frame_blocks.is_power_of_two()
            && self.frame_blocks <= FRAME_BLOCKS_MAX
            && self.codec <= 2
            && !self.snapshot.is_nil()
            && self.base.as_ref().is_none_or(is_another)
            && check_snapshot_name(&self.name).is_ok()
    }
}

/// Writes a name at the start of `target` and returns its length.
fn put_name(target: &mut [u8; 256], name: &str) -> u8 {
    for (target, byte) in target.iter_mut().zip(name.bytes()) {
        *target = byte;
    }
    u8::try_from(name.len()).expect("a name has 255 bytes at most")
}

#[cfg(test)]
mod tests {
    //! Goal: round trip; every damaged bit is detected; impossible heads are refused.
    use super::*;

    fn sample() -> TransferHead {
        TransferHead {
            drive: Uuid::from_u128(1),
            snapshot: Uuid::from_u128(2),
            name: "tuesday".into(),
            created_seconds: 1_790_000_000,
            base: Some(TransferBase { snapshot: Uuid::from_u128(3), name: "monday".into() }),
            size_bytes: 64 << 30,
            start: 4096,
            frame_blocks: 8,
            codec: 2,
            codec_level: -1,
            has_chunks: true,
        }
    }

    fn resealed(change: impl FnOnce(&mut Layout)) -> [u8; TRANSFER_HEAD_BYTES] {
        let mut layout = Layout::read_from_bytes(&sample().encode().0).unwrap();
        change(&mut layout);
        layout.checksum = 0.into();
        layout.checksum = crc64(layout.as_bytes()).into();
        layout.as_bytes().try_into().unwrap()
    }

    #[test]
    fn round_trip() {
        for head in [sample(), TransferHead { base: None, start: 0, ..sample() }] {
            let (bytes, checksum) = head.encode();
            assert_eq!(TransferHead::decode(&bytes).unwrap(), (head, checksum));
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (good, _) = sample().encode();
        for bit in 0..good.len() * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(TransferHead::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn impossible_heads_are_refused_though_the_checksum_is_right() {
        let changes: [fn(&mut Layout); 16] = [
            |layout| layout.version = 0.into(),
            |layout| layout.size_bytes = 0.into(),
            |layout| layout.size_bytes = 4097.into(),
            |layout| layout.size_bytes = (1 << 55).into(),
            |layout| layout.start = 1.into(),
            |layout| layout.start = ((64 << 30) + 4096).into(),
            |layout| layout.frame_blocks = 0.into(),
            |layout| layout.frame_blocks = 128.into(),
            |layout| layout.codec = 3.into(),
            |layout| layout.chunks = 2,
            |layout| layout.name_bytes = 0,
            |layout| layout.name[2] = b'@',
            |layout| layout.snapshot = [0; 16],
            |layout| layout.base = layout.snapshot,
            |layout| layout.base = [0; 16],
            |layout| layout.reserved[12] = 1,
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let error = TransferHead::decode(&resealed(change)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "change {index}");
        }
        let newer: [fn(&mut Layout); 3] = [
            |layout| layout.version = 2.into(),
            |layout| layout.length = 1024.into(),
            |layout| layout.features = 1.into(),
        ];
        for (index, change) in newer.into_iter().enumerate() {
            let error = TransferHead::decode(&resealed(change)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "change {index}");
        }
        let error = TransferHead::decode(&[0; TRANSFER_HEAD_BYTES]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}
