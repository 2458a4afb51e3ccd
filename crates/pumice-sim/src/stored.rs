//! The stored size of each block of a compressing drive, with a lower bound.
//!
//! This program's controller stores a block of identical bytes in no space at all, and well
//! compressible blocks in very little; measured drives program a seventh of the host's bytes
//! whatever the data. So a small block gets a *mask* over its first bytes on its way to the
//! controller: noise that its address determines, as long as the lower bound. The block then takes
//! the lower bound and up to a seventh more for the rest; on the way back, the same mask restores
//! what the host wrote.
//!
//! Blocks that need more than the lower bound stay unmodified. The stored size of each block, and
//! whether it has a mask, is kept in two bytes per block. A read that is concurrent with a write of
//! the same block returns neither the old nor the new content.

use std::borrow::Cow;
use std::cell::RefCell;

use crate::{Error, Result};
use pumice_drive::base::seed::mix;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::codec::{Codec, Compressor};

/// Bytes of noise per random draw.
const WORD_BYTES: usize = 8;

/// Set in the entry of a masked block; the other bits are the stored size.
const MASKED: u16 = 1 << 15;

/// The stored sizes of the blocks of one drive.
pub(super) struct StoredBlocks {
    mask_bytes: usize,
    state: RefCell<State>,
}

struct State {
    entries: Box<[u16]>,
    compressor: Compressor,
    scratch: Vec<u8>,
}

impl State {
    fn is_masked(&self, block: u64) -> bool {
        self.entries[block as usize] & MASKED != 0
    }
}

/// Returns the parts of `offset..offset + len` by block: the block, the offset of the part in the
/// block, and its range among the `len` bytes.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % BLOCK_BYTES as u64) as usize;
        let part = done..len.min(done + BLOCK_BYTES - within);
        done = part.end;
        (!part.is_empty()).then_some((at / BLOCK_BYTES as u64, within, part))
    })
}

impl StoredBlocks {
    /// Creates the sizes of a drive of `size_bytes` with a lower bound of `stored_min` for each
    /// block, above 0 and up to 1.
    ///
    /// # Errors
    /// `InvalidInput` for a fraction out of range.
    pub(super) fn new(stored_min: f64, size_bytes: u64) -> Result<Self> {
        if !(stored_min > 0.0 && stored_min <= 1.0) {
            let what =
                format!("the least stored fraction must be above 0 and up to 1, not {stored_min}");
            return Err(Error::InvalidInput(what.into()));
        }
        let words = (stored_min * BLOCK_BYTES as f64 / WORD_BYTES as f64).ceil() as usize;
        let blocks = size_bytes.div_ceil(BLOCK_BYTES as u64);
        let state = State {
            entries: vec![0; blocks as usize].into_boxed_slice(),
            compressor: Compressor::new(Codec::Lz4),
            scratch: vec![0; Compressor::target_bytes(BLOCK_BYTES)],
        };
        Ok(Self { mask_bytes: words * WORD_BYTES, state: RefCell::new(state) })
    }

    /// Returns the bytes for the controller in place of the host's bytes at `offset`. A partly
    /// written block keeps its mask, or its lack of one.
    pub(super) fn cover<'a>(&self, offset: u64, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let mut covered = Cow::Borrowed(bytes);
        let state = &mut *self.state.borrow_mut();
        for (block, within, part) in parts(offset, bytes.len()) {
            if part.len() == BLOCK_BYTES {
                let source = &bytes[part.clone()];
                let (_, stored) = state.compressor.compress(source, &mut state.scratch);
                state.entries[block as usize] = if stored < self.mask_bytes {
                    MASKED | self.mask_bytes as u16
                } else {
                    stored as u16
                };
            }
            if state.is_masked(block) {
                self.mask(block, within, &mut covered.to_mut()[part]);
            }
        }
        covered
    }

    /// Restores the host's bytes from those of the controller at `offset`.
    pub(super) fn uncover(&self, offset: u64, bytes: &mut [u8]) {
        let state = self.state.borrow();
        for (block, within, part) in parts(offset, bytes.len()) {
            if state.is_masked(block) {
                self.mask(block, within, &mut bytes[part]);
            }
        }
    }

    /// Forgets blocks that hold no data any more.
    pub(super) fn forget(&self, first_block: u64, blocks: u64) {
        let mut state = self.state.borrow_mut();
        state.entries[first_block as usize..][..blocks as usize].fill(0);
    }

    /// Returns the stored bytes of `offset..offset + len`; blocks that lie partly in the range
    /// count in proportion.
    pub(super) fn stored_bytes(&self, offset: u64, len: usize) -> u64 {
        let state = self.state.borrow();
        let stored = |block: u64| u64::from(state.entries[block as usize] & !MASKED);
        let sums = parts(offset, len).map(|(block, _, part)| stored(block) * part.len() as u64);
        sums.sum::<u64>() / BLOCK_BYTES as u64
    }

    /// Applies or removes the mask of a block on a part of it.
    fn mask(&self, block: u64, within: usize, part: &mut [u8]) {
        let masked = part.len().min(self.mask_bytes.saturating_sub(within));
        for (at, byte) in (within..).zip(&mut part[..masked]) {
            let word = mix(block * (BLOCK_BYTES / WORD_BYTES) as u64 + (at / WORD_BYTES) as u64);
            *byte ^= (word >> (at % WORD_BYTES * 8)) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what was covered comes back whatever the parts it is written and read in, takes the
    //! floor and little more, and what compresses less is left alone.
    //! Method: a flat array beside a covered one; the codec itself.

    use rand::RngExt;

    use super::*;
    use pumice_drive::base::seed::random;

    const BLOCKS: usize = 16;
    const STORED_MIN: f64 = 0.14;

    fn stored(block: &[u8]) -> usize {
        let mut target = vec![0; Compressor::target_bytes(block.len())];
        Compressor::new(Codec::Lz4).compress(block, &mut target).1
    }

    #[test]
    fn any_parts_come_back() {
        let mut random = random(5);
        let blocks = StoredBlocks::new(STORED_MIN, (BLOCKS * BLOCK_BYTES) as u64).unwrap();
        let mut plain = vec![0; BLOCKS * BLOCK_BYTES];
        let mut covered = plain.clone();
        let mut was_masked = [0; 2];
        for _ in 0..2000 {
            let first = random.random_range(0..BLOCKS * 8) * 512;
            let len = (random.random_range(1..24) * 512).min(plain.len() - first);
            let range = first..first + len;
            match random.random_range(0..3) {
                0 => plain[range.clone()].fill(random.random()),
                1 => random.fill(&mut plain[range.clone()]),
                _ => {
                    let mut read = covered[range.clone()].to_vec();
                    blocks.uncover(first as u64, &mut read);
                    assert_eq!(read, plain[range], "at {first}");
                    continue;
                }
            }
            let given = blocks.cover(first as u64, &plain[range.clone()]);
            was_masked[usize::from(matches!(given, Cow::Owned(_)))] += 1;
            covered[range].copy_from_slice(&given);
        }
        assert!(was_masked.iter().all(|&count| count > 100), "{was_masked:?}");
    }

    #[test]
    fn a_block_takes_the_floor_at_least() {
        let blocks = StoredBlocks::new(STORED_MIN, 1 << 20).unwrap();
        let least = STORED_MIN * BLOCK_BYTES as f64;
        let mut block = vec![0x5a; BLOCK_BYTES];
        let taken = stored(&blocks.cover(0, &block)) as f64;
        assert!((least..least * 1.1).contains(&taken), "{taken}");
        random(1).fill(&mut block[..700]);
        assert!(matches!(blocks.cover(4096, &block), Cow::Borrowed(_)));
        let (soft, hard) = (blocks.stored_bytes(0, 4096), blocks.stored_bytes(4096, 4096));
        assert!(soft as f64 >= least && soft < 600 && (700..800).contains(&hard), "{soft} {hard}");
        assert_eq!(blocks.stored_bytes(2048, 4096), (soft + hard) / 2);
        assert_eq!(blocks.stored_bytes(8192, 4096), 0);
    }

    #[test]
    fn what_was_trimmed_has_no_mask() {
        let blocks = StoredBlocks::new(STORED_MIN, 1 << 20).unwrap();
        assert!(matches!(blocks.cover(0, &[0; 2 * BLOCK_BYTES]), Cow::Owned(_)));
        blocks.forget(1, 1);
        let mut zeros = [0; BLOCK_BYTES];
        blocks.uncover(BLOCK_BYTES as u64, &mut zeros);
        assert_eq!(zeros, [0; BLOCK_BYTES]);
        blocks.uncover(0, &mut zeros);
        assert_ne!(zeros, [0; BLOCK_BYTES]);
    }

    #[test]
    fn what_is_no_fraction_is_refused() {
        for stored_min in [0.0, -1.0, 1.1, f64::NAN] {
            assert!(StoredBlocks::new(stored_min, 4096).is_err());
        }
    }
}
