//! The data that hosts write: every block names its write and its LBA, so that a wrong block can be
//! identified.
//!
//! The kinds of data cover every path through framing and codec: fills, text, noise, halves,
//! mixtures by block. A fill carries no stamp; nor does a piece of a block that does not begin with
//! one.

use rand::{Rng, RngExt};

use pumice_drive::base::seed::Random;
use pumice_drive::base::units::BLOCK_BYTES;

/// Bytes of a stamp: the number of the write, and the LBA combined with a constant.
const STAMP_BYTES: usize = 16;

/// The kind of data that is noise.
const NOISE: u32 = 2;

/// Distinguishes a stamp from other bytes; arbitrary.
const STAMP_MARK: u64 = 0x7061_6d75_6963_6521;

/// Returns `len` bytes for disk offset `offset`, of a random kind, stamped with the write's
/// `number`.
pub(super) fn any(random: &mut Random, offset: u64, len: usize, number: u64) -> Vec<u8> {
    let whole = random.random_range(0..8);
    stamped(random, whole, offset, len, number)
}

/// Returns bytes like [`any`], but incompressible.
pub(super) fn noise(random: &mut Random, offset: u64, len: usize, number: u64) -> Vec<u8> {
    stamped(random, NOISE, offset, len, number)
}

fn stamped(random: &mut Random, whole: u32, offset: u64, len: usize, number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let at = offset + bytes.len() as u64;
        let block_end = (at / BLOCK_BYTES as u64 + 1) * BLOCK_BYTES as u64;
        let piece = ((block_end - at) as usize).min(len - bytes.len());
        let kind = if whole < 6 { whole } else { random.random_range(0..6) };
        let start = bytes.len();
        bytes.resize(start + piece, 0);
        fill(random, kind, &mut bytes[start..], at, number);
    }
    bytes
}

/// Fills a part of one block.
fn fill(random: &mut Random, kind: u32, target: &mut [u8], at: u64, number: u64) {
    match kind {
        0 => return target.fill(number as u8),
        1 => return target.fill([0, 0xff][number as usize % 2]),
        NOISE => random.fill_bytes(target),
        3 => {
            let half = target.len() / 2;
            random.fill_bytes(&mut target[..half]);
        }
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
