//! The data that hosts write: every block names its write and its LBA, so that a wrong block can be
//! identified.
//!
//! The kinds of data cover every path through framing and codec: fills, text, noise, halves, tiny
//! and repeated blocks, mixtures by block.
//!
//! A fill carries no stamp; nor does a piece of a block that does not begin with one.

use rand::{Rng, RngExt};

use pumice_drive::base::seed::Random;
use pumice_drive::base::units::BLOCK_BYTES;

/// Bytes of a stamp: the number of the write, and the LBA combined with a constant.
const STAMP_BYTES: usize = 16;

/// The kinds of data that a block can have.
mod kind {
    pub(super) const BYTE_FILL: u32 = 0;
    pub(super) const BIT_FILL: u32 = 1;
    pub(super) const NOISE: u32 = 2;
    pub(super) const HALF_NOISE: u32 = 3;
    pub(super) const TEXT: u32 = 4;
    pub(super) const TINY: u32 = 6;
    pub(super) const REPEATED: u32 = 7;
}

/// Drawn numbers from this one up select a kind for each block.
const MIXED: u32 = 8;

/// The data that the hosts of a world write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Texture {
    /// Every kind of data.
    #[default]
    Any,
    /// Incompressible data.
    Noise,
    /// Blocks that compress to a small part.
    Text,
    /// Blocks of zeroes except for some bytes.
    Tiny,
    /// One random block repeatedly, so that a frame is little larger than one block, and each part
    /// of it as large as the whole.
    Repeated,
    /// Blocks of one byte.
    Fills,
}

impl Texture {
    /// All textures of one kind.
    pub(super) const UNIFORM: [Self; 5] =
        [Self::Noise, Self::Text, Self::Tiny, Self::Repeated, Self::Fills];

    /// Returns the approximate stored bytes of a block in frames of eight blocks.
    pub(super) fn stored_bytes(self) -> u64 {
        match self {
            Self::Any | Self::Noise => 4150,
            Self::Repeated => 600,
            Self::Text => 400,
            Self::Tiny => 100,
            Self::Fills => 0,
        }
    }

    fn kind(self) -> Option<u32> {
        match self {
            Self::Any => None,
            Self::Noise => Some(kind::NOISE),
            Self::Text => Some(kind::TEXT),
            Self::Tiny => Some(kind::TINY),
            Self::Repeated => Some(kind::REPEATED),
            Self::Fills => Some(kind::BYTE_FILL),
        }
    }
}

/// Random bytes in a block of the kind `TINY`.
const TINY_BYTES: usize = 16;

/// Distinguishes a stamp from other bytes; arbitrary.
const STAMP_MARK: u64 = 0x7061_6d75_6963_6521;

/// Returns `len` bytes for disk offset `offset`, stamped with the write's `number`.
pub(super) fn of(
    texture: Texture,
    random: &mut Random,
    offset: u64,
    len: usize,
    number: u64,
) -> Vec<u8> {
    let kind = texture.kind().unwrap_or_else(|| random.random_range(0..MIXED + 2));
    stamped(random, kind, offset, len, number)
}

/// Returns bytes of a random kind.
pub(super) fn any(random: &mut Random, offset: u64, len: usize, number: u64) -> Vec<u8> {
    of(Texture::Any, random, offset, len, number)
}

fn stamped(random: &mut Random, whole: u32, offset: u64, len: usize, number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    let mut repeated = [0; BLOCK_BYTES];
    if whole == kind::REPEATED {
        random.fill_bytes(&mut repeated);
    }
    while bytes.len() < len {
        let at = offset + bytes.len() as u64;
        let block_end = (at / BLOCK_BYTES as u64 + 1) * BLOCK_BYTES as u64;
        let piece = ((block_end - at) as usize).min(len - bytes.len());
        let kind = if whole < MIXED { whole } else { random.random_range(0..MIXED) };
        let start = bytes.len();
        bytes.extend_from_slice(&repeated[..piece]);
        fill(random, kind, &mut bytes[start..], at, number);
    }
    bytes
}

/// Fills a part of one block.
fn fill(random: &mut Random, kind: u32, target: &mut [u8], at: u64, number: u64) {
    match kind {
        kind::BYTE_FILL => return target.fill(number as u8),
        kind::BIT_FILL => return target.fill([0, 0xff][number as usize % 2]),
        kind::NOISE => random.fill_bytes(target),
        kind::HALF_NOISE => {
            let half = target.len() / 2;
            random.fill_bytes(&mut target[..half]);
        }
        kind::TINY => {
            let from = target.len().saturating_sub(TINY_BYTES);
            random.fill_bytes(&mut target[from..]);
        }
        // The caller has put the block there.
        kind::REPEATED => {}
        _ => {
            let words = number.to_le_bytes();
            for (index, byte) in target.iter_mut().enumerate() {
                *byte = words[index % 8] ^ (index / 97) as u8;
            }
        }
    }
    if at.is_multiple_of(BLOCK_BYTES as u64) && target.len() >= STAMP_BYTES {
        target[..8].copy_from_slice(&number.to_le_bytes());
        let mark = (at / BLOCK_BYTES as u64) ^ STAMP_MARK;
        target[8..STAMP_BYTES].copy_from_slice(&mark.to_le_bytes());
    }
}

/// Describes the content of a block, for a message.
pub(super) fn describe(block: &[u8]) -> String {
    let first = block.first().copied().unwrap_or(0);
    if block.iter().all(|&byte| byte == first) {
        return format!("bytes {first:#04x}");
    }
    let number = |from: usize| {
        let bytes = block.get(from..from + 8).and_then(|bytes| bytes.try_into().ok());
        u64::from_le_bytes(bytes.unwrap_or([0; 8]))
    };
    let lba = number(8) ^ STAMP_MARK;
    // Far above any tortured disk: not a stamp.
    if lba < 1 << 40 {
        return format!("the stamp of request {} for LBA {lba}", number(0));
    }
    let start: String = block.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("unstamped bytes {start}...")
}
