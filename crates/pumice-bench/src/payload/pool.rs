//! Fresh random bytes at the speed of copying: a pool of random bytes, XORed with keys.
//!
//! The pool fits into the second-level cache. Each window of a stream (64 KiB) has a 32-byte key
//! that is unique within the stream. No codec therefore finds the same bytes twice, although the
//! pool is reused, and no stamps are needed: any 32 fresh bytes identify their window. Each unit of
//! a window has its own offset in the pool.

use pumice_drive::base::seed::random;
use rand_xoshiro::rand_core::Rng;

/// Window size in bytes: the largest chunk size for which data is calibrated, and the match window
/// of LZ4.
pub const WINDOW_BYTES: usize = 64 << 10;

/// Pool size in bytes: a quarter of a common second-level cache. A larger pool has no advantage,
/// because the key changes with every window.
const POOL_BYTES: usize = 4 * WINDOW_BYTES;

/// Period of a key in bytes. Copies at distances that are multiples of the period remain copies.
pub(super) const KEY_BYTES: usize = 32;

/// A value XORed with the bytes of a window.
pub(super) type Key = [u64; KEY_BYTES / 8];

/// Returns one step of SplitMix64 as a function: a bijection without visible structure.
///
/// Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
pub(super) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns the key with this number. Keys with different numbers and the same `base` never share
/// their first word.
pub(super) fn key(base: u64, number: u64) -> Key {
    let first = mix(base ^ mix(number));
    let mut key = [first; KEY_BYTES / 8];
    for (index, word) in key.iter_mut().enumerate().skip(1) {
        *word = mix(first.wrapping_add(index as u64));
    }
    key
}

/// Copies `source` to `target`, XORed with the key.
///
/// # Panics
/// If `source` and `target` differ in length.
#[inline]
pub(super) fn copy_keyed(target: &mut [u8], source: &[u8], key: &Key) {
    assert_eq!(target.len(), source.len());
    let mut targets = target.chunks_exact_mut(KEY_BYTES);
    let mut sources = source.chunks_exact(KEY_BYTES);
    for (target, source) in (&mut targets).zip(&mut sources) {
        for (index, word) in key.iter().enumerate() {
            let at = index * 8..index * 8 + 8;
            let bytes = u64::from_le_bytes(source[at.clone()].try_into().expect("eight bytes"));
            target[at].copy_from_slice(&(bytes ^ word).to_le_bytes());
        }
    }
    let key_bytes = key.iter().flat_map(|word| word.to_le_bytes());
    let rest = targets.into_remainder().iter_mut().zip(sources.remainder());
    for ((target, source), key_byte) in rest.zip(key_bytes) {
        *target = source ^ key_byte;
    }
}

/// Random bytes from which all fresh bytes of a stream are derived.
pub(super) struct Pool(Vec<u8>);

impl Pool {
    /// Returns the pool for a seed.
    pub(super) fn new(seed: u64) -> Self {
        let mut bytes = vec![0; POOL_BYTES];
        random(seed).fill_bytes(&mut bytes);
        Self(bytes)
    }

    /// Fills `target` with fresh bytes of a window, starting at `offset` within the window.
    ///
    /// # Panics
    /// If `target` extends beyond the window.
    #[inline]
    pub(super) fn fill(&self, base: u64, window: u64, offset: usize, target: &mut [u8]) {
        assert!(offset + target.len() <= WINDOW_BYTES);
        let start = (window % (POOL_BYTES / WINDOW_BYTES) as u64) as usize * WINDOW_BYTES + offset;
        copy_keyed(target, &self.0[start..start + target.len()], &key(base, window));
    }
}
